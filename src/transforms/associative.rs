//! All partial results of an associative operation, in logarithmically many steps.

use super::control::check_carry;
use super::tree::{Tree, leaf_name, values_of, with_values};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::shape;
use crate::trace::{Value, Values};

/// The running results of an associative operation along a dimension: of `a, b, c, …` the tensors
/// `a, f(a, b), f(f(a, b), c), …`. With `reverse` it goes from the last element to the first.
///
/// About `2 log2(n)` calls of `f` for `n` elements, each on many of them at once: `f` takes and
/// gives trees of the structure of `xs` whose tensors have any size in the dimension, and combines
/// what stands at one place. It must be associative; `xs` of no or one element comes back as it is.
///
/// # Errors
/// If a tensor has no such dimension, sizes in it differ, if `f` gives another type than it takes,
/// or with what it says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2., 3., 4., 5.], [5])?;
/// let product = |a: &Tensor, b: &Tensor| a.mul(b);
/// let y = associative_scan(product, &x, false, 0)?;
/// assert_eq!(y.to_vec::<f32>()?, [1., 2., 6., 24., 120.]);
/// let y = associative_scan(product, &x, true, 0)?;
/// assert_eq!(y.to_vec::<f32>()?, [120., 120., 60., 20., 5.]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [jax.lax.associative_scan](https://docs.jax.dev/en/latest/_autosummary/jax.lax.associative_scan.html).
pub fn associative_scan<T: Tree>(
    f: impl Fn(&T, &T) -> Result<T>,
    xs: &T,
    reverse: bool,
    axis: i64,
) -> Result<T> {
    let mut values = values_of(xs)?;
    let axes = axes_of(xs, &values, axis)?;
    if reverse {
        values = each(&values, &axes, |x, axis| ops::reverse(x, &[axis]))?;
    }
    let apply = |a: &[Value], b: &[Value]| {
        let tree = |values: &[Value]| with_values(xs, values.iter().cloned());
        let (a, b) = (tree(a)?, tree(b)?);
        let c = f(&a, &b)?;
        check_carry("associative_scan", &a, &c)?;
        values_of(&c)
    };
    let mut out = running(&apply, values, &axes)?;
    if reverse {
        out = each(&out, &axes, |x, axis| ops::reverse(x, &[axis]))?;
    }
    with_values(xs, out)
}

/// The dimension as an axis of each tensor, in which all have one size.
fn axes_of<T: Tree>(xs: &T, values: &[Value], axis: i64) -> Result<Vec<usize>> {
    let mut size = None;
    let mut axes = Vec::with_capacity(values.len());
    for (i, x) in values.iter().enumerate() {
        let axis = shape::axis("associative_scan", axis, x.rank())?;
        let own = x.shape()[axis];
        if *size.get_or_insert(own) != own {
            let (name, first) = (leaf_name(xs, i), size.unwrap_or(own));
            let text = format!(
                "{name} {} has size {own} in dimension {axis}, but the first tensor has {first}",
                x.aval()
            );
            return Err(Error::new(ErrorKind::Shape, "associative_scan", text));
        }
        axes.push(axis);
    }
    Ok(axes)
}

fn each(
    values: &[Value],
    axes: &[usize],
    f: impl Fn(&Value, usize) -> Result<Value>,
) -> Result<Values> {
    values.iter().zip(axes).map(|(x, &axis)| f(x, axis)).collect()
}

/// Every `step`-th element from `start` up to but without `limit`.
fn part(x: &Value, axis: usize, start: usize, limit: usize, step: usize) -> Result<Value> {
    let (mut starts, mut steps) = (vec![0; x.rank()], vec![1; x.rank()]);
    let mut limits = x.shape().to_vec();
    (starts[axis], limits[axis], steps[axis]) = (start.min(limit), limit, step);
    ops::slice(x, &starts, &limits, &steps)
}

/// The operation, over the tensors of two trees.
type Combine<'f> = &'f dyn Fn(&[Value], &[Value]) -> Result<Values>;

/// Pairs are combined, their running results are those at the odd places, and each even place
/// combines the odd one before it with its own element.
fn running(apply: Combine<'_>, xs: Values, axes: &[usize]) -> Result<Values> {
    let n = match (xs.first(), axes.first()) {
        (Some(x), Some(&axis)) => x.shape()[axis],
        _ => 0,
    };
    if n < 2 {
        return Ok(xs);
    }
    let pick = |xs: &[Value], start, limit, step| {
        each(xs, axes, |x, axis| part(x, axis, start, limit, step))
    };
    let pairs = apply(&pick(&xs, 0, n - 1, 2)?, &pick(&xs, 1, n, 2)?)?;
    let odd = running(apply, pairs, axes)?;
    let mut even = pick(&xs, 0, 1, 1)?;
    if n > 2 {
        let before = pick(&odd, 0, n.div_ceil(2) - 1, 1)?;
        let later = apply(&before, &pick(&xs, 2, n, 2)?)?;
        for ((first, later), &axis) in even.iter_mut().zip(&later).zip(axes) {
            *first = ops::concatenate(&[first.clone(), later.clone()], axis)?;
        }
    }
    even.iter().zip(&odd).zip(axes).map(|((even, odd), &axis)| woven(even, odd, axis)).collect()
}

/// The elements of both in turn; `even` comes first and may have one more.
fn woven(even: &Value, odd: &Value, axis: usize) -> Result<Value> {
    let (more, n) = (even.shape()[axis], odd.shape()[axis]);
    let paired = ops::stack(&[part(even, axis, 0, n, 1)?, odd.clone()], axis + 1)?;
    let paired = ops::reshape(&paired, &odd.shape().with(axis, 2 * n))?;
    if more == n {
        return Ok(paired);
    }
    ops::concatenate(&[paired, part(even, axis, n, more, 1)?], axis)
}
