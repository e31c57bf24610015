//! Pure shape arithmetic: no values, no devices.

use crate::error::{Error, ErrorKind, Result};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Deref;

/// The sizes of an array, outermost axis first. Up to four are stored in place.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Shape {
    /// The shape with the given sizes.
    pub fn new(dims: &[usize]) -> Shape {
        Shape(SmallVec::from_slice(dims))
    }

    /// The shape of a scalar: no axes, one element.
    pub fn scalar() -> Shape {
        Shape::default()
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements: the product of the sizes.
    pub fn size(&self) -> usize {
        self.0.iter().product()
    }

    /// The sizes as a slice.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Row-major strides, in elements.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.rank()];
        for axis in (1..self.rank()).rev() {
            strides[axis - 1] = strides[axis] * self.0[axis];
        }
        strides
    }

    /// The shape with `size` inserted before `axis`.
    #[must_use]
    pub fn insert(&self, axis: usize, size: usize) -> Shape {
        let mut dims = self.0.clone();
        dims.insert(axis, size);
        Shape(dims)
    }

    /// The shape without the given axis.
    #[must_use]
    pub fn remove(&self, axis: usize) -> Shape {
        let mut dims = self.0.clone();
        dims.remove(axis);
        Shape(dims)
    }

    /// The shape without the given axes.
    #[must_use]
    pub fn without(&self, axes: &[usize]) -> Shape {
        self.0.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, &d)| d).collect()
    }

    /// The shape with one axis set to another size.
    #[must_use]
    pub fn with(&self, axis: usize, size: usize) -> Shape {
        let mut dims = self.0.clone();
        dims[axis] = size;
        Shape(dims)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Shape {
        Shape(iter.into_iter().collect())
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape::new(dims)
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        Shape(SmallVec::from_vec(dims))
    }
}

impl From<&Vec<usize>> for Shape {
    fn from(dims: &Vec<usize>) -> Shape {
        Shape::new(dims)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape::new(&dims)
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Shape {
        Shape::new(dims)
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}

impl From<()> for Shape {
    fn from((): ()) -> Shape {
        Shape::scalar()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The shape that both broadcast to by torch's (and NumPy's) rule: aligned at the last axis, a
/// missing axis counts as size 1, and size 1 stretches to the other's.
///
/// # Errors
/// If an aligned pair of sizes differs and neither is 1; `op` names the caller.
pub fn broadcast(op: &'static str, lhs: &Shape, rhs: &Shape) -> Result<Shape> {
    if lhs == rhs {
        return Ok(lhs.clone());
    }
    let rank = lhs.rank().max(rhs.rank());
    let mut dims = SmallVec::<[usize; 4]>::from_elem(1, rank);
    for i in 0..rank {
        let a = if i + lhs.rank() >= rank { lhs[i + lhs.rank() - rank] } else { 1 };
        let b = if i + rhs.rank() >= rank { rhs[i + rhs.rank() - rank] } else { 1 };
        dims[i] = match (a, b) {
            (a, b) if a == b => a,
            (1, b) => b,
            (a, 1) => a,
            (a, b) => return Err(broadcast_error(op, lhs, rhs, i, a, b)),
        };
    }
    Ok(Shape(dims))
}

#[cold]
fn broadcast_error(
    op: &'static str,
    lhs: &Shape,
    rhs: &Shape,
    i: usize,
    a: usize,
    b: usize,
) -> Error {
    let text = format!(
        "shapes {lhs} and {rhs} do not broadcast: axis {i} of the result would have size {a} and {b}"
    );
    Error::new(ErrorKind::Shape, op, text)
}

/// The axis that a torch dim means: a negative one counts from the end.
///
/// A scalar takes dims 0 and -1, as in torch.
///
/// # Errors
/// If the dim is outside of `-rank..rank`.
pub fn axis(op: &'static str, dim: i64, rank: usize) -> Result<usize> {
    let n = rank.max(1) as i64;
    if dim < -n || dim >= n {
        let text = format!("dim {dim} is outside of {}..{n} for rank {rank}", -n);
        return Err(Error::new(ErrorKind::Axis, op, text));
    }
    Ok((if dim < 0 { dim + n } else { dim }) as usize)
}

/// The axes that torch dims mean, in the order given.
///
/// # Errors
/// If a dim is out of range or named twice.
pub fn axes(op: &'static str, dims: &[i64], rank: usize) -> Result<SmallVec<[usize; 4]>> {
    let mut out = SmallVec::new();
    for &dim in dims {
        let a = axis(op, dim, rank)?;
        if out.contains(&a) {
            let text = format!("dim {dim} (axis {a}) is named twice in {dims:?}");
            return Err(Error::new(ErrorKind::Axis, op, text));
        }
        out.push(a);
    }
    Ok(out)
}

/// The shape that a torch `view`/`reshape` argument means: at most one -1 is worked out.
///
/// # Errors
/// If the number of elements differs or more than one size is negative.
pub fn resolve_reshape(op: &'static str, from: &Shape, to: &[i64]) -> Result<Shape> {
    let fail = |why: &str| {
        Error::new(ErrorKind::Shape, op, format!("shape {from} cannot become {to:?}: {why}"))
    };
    let known: usize = to.iter().filter(|&&d| d >= 0).map(|&d| d as usize).product();
    let unknown = to.iter().filter(|&&d| d < 0).count();
    if to.iter().any(|&d| d < -1) {
        return Err(fail("a size is below -1"));
    }
    let fill = match unknown {
        0 => 0,
        1 if known > 0 && from.size().is_multiple_of(known) => from.size() / known,
        1 if known == 0 => return Err(fail("-1 is ambiguous beside a size of 0")),
        1 => return Err(fail(&format!("{} elements do not divide by {known}", from.size()))),
        _ => return Err(fail("only one size can be -1")),
    };
    let shape: Shape = to.iter().map(|&d| if d < 0 { fill } else { d as usize }).collect();
    if shape.size() != from.size() {
        return Err(fail(&format!("{} elements are not {}", from.size(), shape.size())));
    }
    Ok(shape)
}

/// The permutation that undoes `perm`.
pub fn inverse_permutation(perm: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; perm.len()];
    for (i, &p) in perm.iter().enumerate() {
        inverse[p] = i;
    }
    inverse
}

/// Appends a number, faster than by formatting.
pub(crate) fn push_number(text: &mut String, number: usize) {
    let mut digits = [0; 20];
    let (mut rest, mut at) = (number, digits.len());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.push_str(std::str::from_utf8(&digits[at..]).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_follows_torch() {
        let b = |a: &[usize], c: &[usize]| broadcast("add", &a.into(), &c.into());
        assert_eq!(b(&[2, 1, 4], &[3, 1]).unwrap().dims(), [2, 3, 4]);
        assert_eq!(b(&[], &[0]).unwrap().dims(), [0]);
        let text = b(&[2, 3], &[4]).unwrap_err().to_string();
        assert_eq!(
            text,
            "add: shapes [2,3] and [4] do not broadcast: axis 1 of the result would have size 3 and 4"
        );
    }

    #[test]
    fn reshape_works_out_one_size() {
        let r = |from: &[usize], to: &[i64]| resolve_reshape("view", &from.into(), to);
        assert_eq!(r(&[6, 4], &[3, -1]).unwrap().dims(), [3, 8]);
        assert!(r(&[6], &[4, -1]).is_err());
        assert!(r(&[6], &[-1, -1]).is_err());
        assert!(r(&[0], &[0, -1]).is_err());
    }

    #[test]
    fn dims_count_from_the_end() {
        assert_eq!(axis("sum", -1, 3).unwrap(), 2);
        assert_eq!(axis("sum", 0, 0).unwrap(), 0);
        assert!(axis("sum", 3, 3).is_err());
        assert!(axes("sum", &[0, -3], 3).is_err());
    }
}
