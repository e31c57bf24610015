//! Factorisations of matrices and triangular systems, over the last two axes.
//!
//! Each takes a contiguous row-major stack of matrices; batches are independent.

use super::HostArray;
use super::number::{HostField, HostNumber};
use crate::dtype::DType;
use crate::shape::Shape;
use num_complex::Complex;

/// Which matrix a triangular system is of, given `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Transpose {
    /// `a` itself.
    #[default]
    No,
    /// `a` with rows and columns exchanged.
    Yes,
    /// The conjugate of that.
    Adjoint,
}

/// A triangular system: its side, and which part of the matrix is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Triangle {
    /// Whether the matrix stands left of the unknown.
    pub left: bool,
    /// Whether the lower triangle is read, else the upper one.
    pub lower: bool,
    /// Whether ones stand on the diagonal, which is not read then.
    pub unit: bool,
    /// Which matrix the system is of.
    pub transpose: Transpose,
}

/// The element types of these kernels.
trait Entry: HostField {
    /// What pivots are compared by: the absolute value, of a complex number the sum of its parts'.
    fn size(self) -> f64;
    /// Whether the number is real and above 0.
    fn is_positive(self) -> bool;
}

macro_rules! entries {
    ($($real:ident)*) => {$(
        impl Entry for $real {
            fn size(self) -> f64 {
                f64::from($real::abs(self))
            }
            fn is_positive(self) -> bool {
                self > 0.0
            }
        }

        impl Entry for Complex<$real> {
            fn size(self) -> f64 {
                f64::from(self.re.abs() + self.im.abs())
            }
            fn is_positive(self) -> bool {
                self.re > 0.0
            }
        }
    )*};
}

entries! { f32 f64 }

/// Runs the body with `$T` standing for the element type.
macro_rules! with_entry {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $T = f32;
                $body
            }
            DType::F64 => {
                type $T = f64;
                $body
            }
            DType::C64 => {
                type $T = Complex<f32>;
                $body
            }
            DType::C128 => {
                type $T = Complex<f64>;
                $body
            }
            other => unreachable!("{other} has no factorisation"),
        }
    };
}

/// The sizes of the last two axes.
fn matrix(shape: &Shape) -> (usize, usize) {
    let rank = shape.rank();
    (shape[rank - 2], shape[rank - 1])
}

/// A copy of the array in which `f` may change one matrix after the other.
fn each<T: Entry>(x: &HostArray, mut f: impl FnMut(usize, &mut [T])) -> HostArray {
    let whole = x.contiguous();
    let data = whole.as_contiguous::<T>().unwrap_or_default();
    let (rows, columns) = matrix(x.shape());
    HostArray::build_as::<T>(x.dtype(), x.shape(), |out| {
        out.copy_from_slice(data);
        if !out.is_empty() {
            out.chunks_exact_mut(rows * columns).enumerate().for_each(|(i, one)| f(i, one));
        }
    })
}

/// The lower triangular `l` of `l · l^H` for each matrix, whose lower triangle alone is read; NaN in
/// the whole lower triangle where the matrix is not positive definite.
pub fn cholesky(x: &HostArray) -> HostArray {
    let n = matrix(x.shape()).0;
    with_entry!(x.dtype(), T => each::<T>(x, |_, a| {
        let fine = cholesky_one(a, n);
        for i in 0..n {
            if !fine {
                let zero = T::ZERO;
                a[i * n..=i * n + i].fill(HostNumber::div(zero, zero));
            }
            a[i * n + i + 1..(i + 1) * n].fill(T::ZERO);
        }
    }))
}

/// Works in place on the lower triangle; false if a pivot is not positive.
fn cholesky_one<T: Entry>(a: &mut [T], n: usize) -> bool {
    for j in 0..n {
        for i in j..n {
            let mut sum = a[i * n + j];
            for k in 0..j {
                sum = sum.sub(a[i * n + k].mul(a[j * n + k].conj()));
            }
            if i > j {
                a[i * n + j] = sum.div(a[j * n + j]);
            } else if sum.is_positive() {
                a[j * n + j] = sum.sqrt();
            } else {
                return false;
            }
        }
    }
    true
}

/// The unknown `x` of `op(a) · x = b`, or of `x · op(a) = b`.
pub fn triangular_solve(a: &HostArray, b: &HostArray, how: Triangle) -> HostArray {
    let n = matrix(a.shape()).0;
    let rank = b.shape().rank();
    let mut swap: Vec<usize> = (0..rank).collect();
    swap.swap(rank - 2, rank - 1);
    // The system from the right is that of both sides transposed.
    let side = if how.left { b.clone() } else { b.permute(&swap) };
    let columns = matrix(side.shape()).1;
    let turned = (how.transpose != Transpose::No) == how.left;
    let lower = how.lower != turned;
    let solved = with_entry!(a.dtype(), T => {
        let whole = a.contiguous();
        let data = whole.as_contiguous::<T>().unwrap_or_default();
        each::<T>(&side, |i, x| {
            let a = &data[i * n * n..(i + 1) * n * n];
            let at = |row: usize, column: usize| {
                let entry = if turned { a[column * n + row] } else { a[row * n + column] };
                if how.transpose == Transpose::Adjoint { entry.conj() } else { entry }
            };
            substitute(x, (n, columns), lower, how.unit, at);
        })
    });
    if how.left { solved } else { solved.permute(&swap).contiguous() }
}

/// Solves in place, row after row, from the top for a lower triangle and from the bottom else.
fn substitute<T: Entry>(
    x: &mut [T],
    (n, columns): (usize, usize),
    lower: bool,
    unit: bool,
    at: impl Fn(usize, usize) -> T,
) {
    for step in 0..n {
        let row = if lower { step } else { n - 1 - step };
        let known = if lower { 0..row } else { row + 1..n };
        for other in known {
            let factor = at(row, other);
            for c in 0..columns {
                x[row * columns + c] = x[row * columns + c].sub(factor.mul(x[other * columns + c]));
            }
        }
        if !unit {
            let pivot = at(row, row);
            for v in &mut x[row * columns..(row + 1) * columns] {
                *v = v.div(pivot);
            }
        }
    }
}

/// `l` and `u` of each matrix in one array, the rows that were exchanged step by step, and the
/// order of the rows that comes of it.
pub fn lu(x: &HostArray) -> [HostArray; 3] {
    let (rows, columns) = matrix(x.shape());
    let steps = rows.min(columns);
    let lead = &x.shape()[..x.shape().rank() - 2];
    let shape = |last: usize| lead.iter().copied().chain([last]).collect::<Shape>();
    let count: usize = lead.iter().product();
    let mut pivots = vec![0i32; count * steps];
    let mut order: Vec<i32> = (0..count).flat_map(|_| 0..rows as i32).collect();
    let lu = with_entry!(x.dtype(), T => each::<T>(x, |i, a| {
        let pivots = &mut pivots[i * steps..(i + 1) * steps];
        lu_one(a, columns, pivots, &mut order[i * rows..(i + 1) * rows]);
    }));
    let ints = |data: &[i32], shape: &Shape| {
        HostArray::build_as::<i32>(DType::I32, shape, |out| out.copy_from_slice(data))
    };
    [lu, ints(&pivots, &shape(steps)), ints(&order, &shape(rows))]
}

fn lu_one<T: Entry>(a: &mut [T], columns: usize, pivots: &mut [i32], order: &mut [i32]) {
    let rows = order.len();
    for k in 0..pivots.len() {
        let pivot = largest((k..rows).map(|row| a[row * columns + k].size())) + k;
        pivots[k] = pivot as i32;
        order.swap(k, pivot);
        if pivot != k {
            let (above, below) = a.split_at_mut(pivot * columns);
            above[k * columns..(k + 1) * columns].swap_with_slice(&mut below[..columns]);
        }
        let (above, below) = a.split_at_mut((k + 1) * columns);
        let top = &above[k * columns..];
        for row in below.chunks_exact_mut(columns) {
            if top[k] != T::ZERO {
                row[k] = row[k].div(top[k]);
            }
            let factor = row[k];
            for c in k + 1..columns {
                row[c] = row[c].sub(factor.mul(top[c]));
            }
        }
    }
}

/// The place of the first largest number, or of the first NaN.
fn largest(sizes: impl Iterator<Item = f64>) -> usize {
    let mut best: Option<(usize, f64)> = None;
    for (i, size) in sizes.enumerate() {
        let wins = best.is_none_or(|(_, b)| !b.is_nan() && (size > b || size.is_nan()));
        if wins {
            best = Some((i, size));
        }
    }
    best.map_or(0, |(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(data: &[f64], shape: &[usize]) -> HostArray {
        HostArray::from_slice(data, &Shape::new(shape)).unwrap()
    }

    #[test]
    fn cholesky_reads_the_lower_triangle() {
        let x = host(&[4., 99., 2., 5., 1., 0., 0., -1.], &[2, 2, 2]);
        let l = cholesky(&x).to_vec::<f64>().unwrap();
        assert_eq!(l[..4], [2., 0., 1., 2.]);
        assert!(l[4].is_nan() && l[5] == 0. && l[6].is_nan() && l[7].is_nan(), "{l:?}");
    }

    #[test]
    fn lu_exchanges_rows() {
        let [lu, pivots, order] = lu(&host(&[1., 2., 4., 2., 2., 9.], &[3, 2]));
        assert_eq!(lu.to_vec::<f64>().unwrap(), [4., 2., 0.5, 8., 0.25, 1.5 / 8.]);
        assert_eq!(pivots.to_vec::<i32>().unwrap(), [1, 2]);
        assert_eq!(order.to_vec::<i32>().unwrap(), [1, 2, 0]);
    }

    #[test]
    fn systems_from_both_sides() {
        let a = host(&[2., 0., 1., 4.], &[2, 2]);
        let mut how = Triangle { left: true, lower: true, unit: false, transpose: Transpose::No };
        let b = host(&[2., 9.], &[2, 1]);
        assert_eq!(triangular_solve(&a, &b, how).to_vec::<f64>().unwrap(), [1., 2.]);
        how.transpose = Transpose::Yes;
        let b = host(&[4., 8.], &[2, 1]);
        assert_eq!(triangular_solve(&a, &b, how).to_vec::<f64>().unwrap(), [1., 2.]);
        how.left = false;
        let b = host(&[2., 9.], &[1, 2]);
        assert_eq!(triangular_solve(&a, &b, how).to_vec::<f64>().unwrap(), [1., 2.]);
    }
}
