//! Collectives over the examples of a named `vmap`: `psum`, `pmean`, `all_gather`, `axis_index`, ….
//!
//! A `vmap` gives the axis of its examples a name by [`VmapOptions::axis_name`]; inside of it, also
//! through `jit`, `grad`, `scan` and other `vmap`s, these functions speak of all examples by that
//! name. Each takes a tree and works on each of its tensors.
//!
//! [`VmapOptions::axis_name`]: super::VmapOptions::axis_name

use super::tree::{Tree, tree_map};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{self, collective};
use crate::shape;
use crate::trace::Value;
use crate::trace::batch::{NamedAxis, named_axis};
use crate::trace::cell::Tensor;
use std::panic::Location;

/// One name of an axis, or several.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the name of an axis",
    note = "write `\"batch\"`, or `[\"rows\", \"columns\"]` for several axes"
)]
pub trait AxisNames {
    /// Each name.
    fn names(&self) -> Vec<&str>;
}

impl AxisNames for &str {
    fn names(&self) -> Vec<&str> {
        vec![self]
    }
}

impl AxisNames for &String {
    fn names(&self) -> Vec<&str> {
        vec![self]
    }
}

impl<N: AsRef<str>, const K: usize> AxisNames for [N; K] {
    fn names(&self) -> Vec<&str> {
        self.iter().map(AsRef::as_ref).collect()
    }
}

impl<N: AsRef<str>> AxisNames for &[N] {
    fn names(&self) -> Vec<&str> {
        self.iter().map(AsRef::as_ref).collect()
    }
}

impl AxisNames for (&str, &str) {
    fn names(&self) -> Vec<&str> {
        vec![self.0, self.1]
    }
}

impl AxisNames for (&str, &str, &str) {
    fn names(&self) -> Vec<&str> {
        vec![self.0, self.1, self.2]
    }
}

/// The axes of the given names.
fn axes(op: &'static str, names: &impl AxisNames) -> Result<Vec<NamedAxis>> {
    let names = names.names();
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) {
            let text = format!("the axis name `{name}` is given twice");
            return Err(Error::new(ErrorKind::Axis, op, text));
        }
    }
    if names.is_empty() {
        return Err(Error::new(ErrorKind::Axis, op, "no axis name is given"));
    }
    names.into_iter().map(|name| named_axis(op, name)).collect()
}

/// The caller's place put into an error.
#[track_caller]
fn placed<T>(result: Result<T>) -> Result<T> {
    let here = Location::caller();
    result.map_err(|error| error.at(here))
}

/// `f` of each tensor's value.
fn each<T: Tree>(x: &T, f: impl Fn(&Value) -> Result<Value>) -> Result<T> {
    tree_map(x, |tensor| Ok(Tensor::from_value(f(&tensor.value()?)?)))
}

fn reduced<T: Tree>(
    op: &'static str,
    x: &T,
    names: &impl AxisNames,
    f: impl Fn(&Value, &[NamedAxis]) -> Result<Value>,
) -> Result<T> {
    let axes = axes(op, names)?;
    each(x, |value| f(value, &axes))
}

/// The value in another dtype, if it is one of those for which `from` holds.
fn promoted(value: &Value, from: fn(DType) -> bool, to: DType) -> Result<Value> {
    if from(value.dtype()) { ops::convert(value, to) } else { Ok(value.clone()) }
}

/// The sum of each tensor over all examples of one axis or several, the same for each of them.
///
/// **Dtypes:** bool is summed as `i64`. What is not mapped counts once for each example. **Derivative:** that of the
/// function of all examples at once: the cotangents of all examples are summed.
///
/// # Errors
/// If a name is not bound by a `vmap` around, or is given twice.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let share = |x: &Tensor| x.div(&psum(x, "i")?);
/// let x = Tensor::from_slice(&[1f32, 2., 5.], [3])?;
/// let out = vmap_with(share, VmapOptions::new().axis_name("i"))(&x)?;
/// assert_eq!(out.to_vec::<f32>()?, [0.125, 0.25, 0.625]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [`jax.lax.psum`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.psum.html).
#[track_caller]
pub fn psum<T: Tree>(x: &T, names: impl AxisNames) -> Result<T> {
    let sum = |value: &Value, axes: &[NamedAxis]| {
        collective::psum(&promoted(value, |d| d == DType::Bool, DType::I64)?, axes)
    };
    placed(reduced("psum", x, &names, sum))
}

/// The mean of each tensor over all examples of one axis or several.
///
/// **Dtypes:** integers and bool become `f32`.
///
/// # Errors
/// As [`psum`].
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let centred = |x: &Tensor| x.sub(&pmean(x, "i")?);
/// let x = Tensor::from_slice(&[1f32, 2., 6.], [3])?;
/// let out = vmap_with(centred, VmapOptions::new().axis_name("i"))(&x)?;
/// assert_eq!(out.to_vec::<f32>()?, [-2., -1., 3.]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [`jax.lax.pmean`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.pmean.html).
#[track_caller]
pub fn pmean<T: Tree>(x: &T, names: impl AxisNames) -> Result<T> {
    let mean = |value: &Value, axes: &[NamedAxis]| {
        collective::pmean(&promoted(value, |d| !d.is_differentiable(), DType::F32)?, axes)
    };
    placed(reduced("pmean", x, &names, mean))
}

/// The largest of each element over all examples of one axis or several.
///
/// **Derivative:** examples that share the extreme share the derivative; JAX has none.
///
/// # Errors
/// As [`psum`], and if a tensor is complex.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let below = |x: &Tensor| pmax(x, "i")?.sub(x);
/// let x = Tensor::from_slice(&[1f32, 4., 2.], [3])?;
/// let out = vmap_with(below, VmapOptions::new().axis_name("i"))(&x)?;
/// assert_eq!(out.to_vec::<f32>()?, [3., 0., 2.]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [`jax.lax.pmax`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.pmax.html).
#[track_caller]
pub fn pmax<T: Tree>(x: &T, names: impl AxisNames) -> Result<T> {
    placed(reduced("pmax", x, &names, collective::pmax))
}

/// The smallest of each element over all examples of one axis or several; see [`pmax`].
///
/// # Errors
/// As [`pmax`].
///
/// **Source:** [`jax.lax.pmin`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.pmin.html).
#[track_caller]
pub fn pmin<T: Tree>(x: &T, names: impl AxisNames) -> Result<T> {
    placed(reduced("pmin", x, &names, collective::pmin))
}

/// Each tensor of all examples: on a new axis `axis` of the result, or joined along axis `axis` of
/// the tensor if `tiled`.
///
/// **Shapes:** with 3 examples and `axis` 0, `[2, 4]` gives `[3, 2, 4]`, or `[6, 4]` if tiled.
///
/// # Errors
/// If the name is not bound, or there is no such axis.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// // The rank of each number among all.
/// let rank = |x: &Tensor| all_gather(x, "i", 0, false)?.lt(x)?.sum();
/// let x = Tensor::from_slice(&[5f32, 1., 3.], [3])?;
/// let out = vmap_with(rank, VmapOptions::new().axis_name("i"))(&x)?;
/// assert_eq!(out.to_vec::<i64>()?, [2, 0, 1]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [`jax.lax.all_gather`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.all_gather.html).
#[track_caller]
pub fn all_gather<T: Tree>(x: &T, name: &str, axis: i64, tiled: bool) -> Result<T> {
    let run = || {
        let named = named_axis("all_gather", name)?;
        each(x, |value| {
            let rank = value.rank() + usize::from(!tiled);
            collective::all_gather(value, &named, shape::axis("all_gather", axis, rank)?, tiled)
        })
    };
    placed(run())
}

/// The sum of each tensor over all examples, of which example `i` keeps the `i`-th index of axis
/// `axis`, or the `i`-th of equal slices of it if `tiled`.
///
/// **Shapes:** with 3 examples and `axis` 0, `[3, 4]` gives `[4]`; `[6, 4]` gives `[2, 4]` if tiled.
///
/// # Errors
/// If the name is not bound, there is no such axis, or its size does not fit.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let part = |x: &Tensor| psum_scatter(x, "i", 0, false);
/// let x = Tensor::from_slice(&[1f32, 2., 10., 20.], [2, 2])?;
/// let out = vmap_with(part, VmapOptions::new().axis_name("i"))(&x)?;
/// assert_eq!(out.to_vec::<f32>()?, [11., 22.]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [`jax.lax.psum_scatter`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.psum_scatter.html).
#[track_caller]
pub fn psum_scatter<T: Tree>(x: &T, name: &str, axis: i64, tiled: bool) -> Result<T> {
    let run = || {
        let named = named_axis("psum_scatter", name)?;
        each(x, |value| {
            let at = shape::axis("psum_scatter", axis, value.rank())?;
            collective::reduce_scatter(value, &named, at, tiled)
                .map_err(|error| error.in_op("psum_scatter"))
        })
    };
    placed(run())
}

/// Axis `split` of each tensor dealt out to the examples: example `i` has the `i`-th index of it
/// of all examples, on a new axis `concat`; with `tiled`, the `i`-th of equal slices of it, joined
/// along axis `concat`.
///
/// **Shapes:** with 3 examples, `split` 0 and `concat` 1, `[3, 4]` gives `[4, 3]`; `[6, 4]` gives
/// `[2, 12]` if tiled.
///
/// # Errors
/// If the name is not bound, there are no such axes, or the size of `split` does not fit.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let exchange = |x: &Tensor| all_to_all(x, "i", 0, 0, false);
/// let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [2, 2])?;
/// let out = vmap_with(exchange, VmapOptions::new().axis_name("i"))(&x)?;
/// assert_eq!(out.to_vec::<f32>()?, [1., 3., 2., 4.]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [`jax.lax.all_to_all`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.all_to_all.html).
#[track_caller]
pub fn all_to_all<T: Tree>(x: &T, name: &str, split: i64, concat: i64, tiled: bool) -> Result<T> {
    let run = || {
        let named = named_axis("all_to_all", name)?;
        each(x, |value| {
            let split = shape::axis("all_to_all", split, value.rank())?;
            let concat = shape::axis("all_to_all", concat, value.rank())?;
            match tiled {
                true => collective::all_to_all_tiled(value, &named, split, concat),
                false => collective::all_to_all(value, &named, split, concat),
            }
        })
    };
    placed(run())
}

/// For each pair `(from, to)` the tensors of example `from` at example `to`; zeros at examples that
/// are no pair's second.
///
/// # Errors
/// If the name is not bound, a pair names an example that is not there, or two pairs share a source
/// or a destination.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let shifted = |x: &Tensor| ppermute(x, "i", &[(0, 1), (1, 2)]);
/// let x = Tensor::from_slice(&[1f32, 2., 3.], [3])?;
/// let out = vmap_with(shifted, VmapOptions::new().axis_name("i"))(&x)?;
/// assert_eq!(out.to_vec::<f32>()?, [0., 1., 2.]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [`jax.lax.ppermute`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.ppermute.html).
#[track_caller]
pub fn ppermute<T: Tree>(x: &T, name: &str, pairs: &[(usize, usize)]) -> Result<T> {
    let run = || {
        let named = named_axis("ppermute", name)?;
        each(x, |value| collective::ppermute(value, &named, pairs))
    };
    placed(run())
}

/// The number of the example along an axis, `i32[]`.
///
/// # Errors
/// If the name is not bound.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let numbered = |x: &Tensor| x.add(&axis_index("i")?);
/// let x = Tensor::from_slice(&[10f32, 20.], [2])?;
/// let out = vmap_with(numbered, VmapOptions::new().axis_name("i"))(&x)?;
/// assert_eq!(out.to_vec::<f32>()?, [10., 21.]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [`jax.lax.axis_index`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.axis_index.html).
#[track_caller]
pub fn axis_index(name: &str) -> Result<Tensor> {
    let index = named_axis("axis_index", name).and_then(|axis| collective::axis_index(&axis));
    placed(index).map(Tensor::from_value)
}

/// The number of examples of an axis, or the product of those of several.
///
/// # Errors
/// If a name is not bound, or is given twice.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let shared = |x: &Tensor| x.div(axis_size("i")? as f64);
/// let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [4])?;
/// let out = vmap_with(shared, VmapOptions::new().axis_name("i"))(&x)?;
/// assert_eq!(out.to_vec::<f32>()?, [0.25, 0.5, 0.75, 1.0]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn axis_size(names: impl AxisNames) -> Result<usize> {
    let axes = placed(axes("axis_size", &names))?;
    Ok(axes.iter().map(|axis| axis.size).product())
}
