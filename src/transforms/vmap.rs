//! `vmap`: a function of one example over a batch of them.

use super::axes::{Axes, IntoAxes, resolve};
use super::catch::catch;
use super::tree::{Tree, leaf_name, leaves, rebuild, values_of};
use crate::aval::Aval;
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::trace::batch::{self, AxisName, Batch, BatchAxis, is_user_name, nameless};
use crate::trace::cell::Tensor;
use crate::trace::primitive::BatchAxes;
use crate::trace::{Trace, Value};
use std::sync::Arc;

/// Which axes [`vmap_with`] maps over, and what they are called.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// // One matrix for all examples, which are the columns of the second operand.
/// let options = VmapOptions::new().in_axes((None, 1)).out_axes(1);
/// let product = vmap_with(|(a, x): &(Tensor, Tensor)| a.mv(x), options);
/// let a = Tensor::from_slice(&[1f32, 2., 3., 4.], [2, 2])?;
/// let x = Tensor::from_slice(&[1f32, 0., 1., 0., 1., 1.], [2, 3])?;
/// assert!(product(&(a.clone(), x.clone()))?.equal(&a.matmul(&x)?)?);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct VmapOptions {
    in_axes: Axes,
    out_axes: Axes,
    axis_name: Option<AxisName>,
    spmd: Option<Arc<[AxisName]>>,
    axis_size: Option<usize>,
}

impl Default for VmapOptions {
    fn default() -> VmapOptions {
        let (in_axes, out_axes) = (Axes::At(0), Axes::At(0));
        VmapOptions { in_axes, out_axes, axis_name: None, spmd: None, axis_size: None }
    }
}

impl VmapOptions {
    /// Axis 0 of every tensor of the argument and of the result, without a name.
    pub fn new() -> VmapOptions {
        VmapOptions::default()
    }

    /// The axis of each tensor of the argument that is mapped: one for all, or a tuple, array or
    /// tree of them that is a prefix of the argument. `None` stands for what all examples share; a
    /// negative axis counts from the end.
    #[must_use]
    pub fn in_axes(self, axes: impl IntoAxes) -> VmapOptions {
        VmapOptions { in_axes: axes.into_axes(), ..self }
    }

    /// Where each tensor of the result has the axis of the examples. `None` stands for a tensor that
    /// is the same for all examples; it is given once.
    #[must_use]
    pub fn out_axes(self, axes: impl IntoAxes) -> VmapOptions {
        VmapOptions { out_axes: axes.into_axes(), ..self }
    }

    /// The name by which [collectives](super::collective) inside speak of the examples.
    #[must_use]
    pub fn axis_name(self, name: &str) -> VmapOptions {
        VmapOptions { axis_name: Some(name.into()), ..self }
    }

    /// The mesh axis, or axes, over which sharding constraints inside split the examples.
    #[must_use]
    pub fn spmd_axis_name<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> VmapOptions {
        let names = names.into_iter().map(|n| n.as_ref().into());
        VmapOptions { spmd: Some(names.collect()), ..self }
    }

    /// The number of examples: needed only if no tensor of the argument is mapped.
    #[must_use]
    pub fn axis_size(self, size: usize) -> VmapOptions {
        VmapOptions { axis_size: Some(size), ..self }
    }
}

/// `f` over a batch: axis 0 of every tensor of the argument is mapped, and of every result.
/// [`vmap_with`] maps over other axes.
///
/// **Shapes:** `f` sees each tensor without its axis 0; results that do not depend on the argument
/// are repeated. **Random numbers:** draws of the default generator differ from example to example,
/// as with `randomness="different"` of torch; keys that are mapped give each example what it draws
/// alone.
///
/// # Errors
/// The function given fails if a tensor of the argument has no axis 0 or sizes differ, or with what
/// `f` says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let dot = |(x, y): &(Tensor, Tensor)| x.mul(y)?.sum();
/// let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [2, 2])?;
/// let out = vmap(dot)(&(x.clone(), x.clone()))?;
/// assert_eq!(out.to_vec::<f32>()?, [5., 25.]);
///
/// // The gradient for each example, compiled.
/// let per_example = jit(vmap(grad(|x: &Tensor| x.square()?.sum())));
/// assert_eq!(per_example.call(&x)?.to_vec::<f32>()?, [2., 4., 6., 8.]);
/// # Ok::<(), Error>(())
/// ```
pub fn vmap<A: Tree, B: Tree>(f: impl Fn(&A) -> Result<B>) -> impl Fn(&A) -> Result<B> {
    vmap_with(f, VmapOptions::default())
}

/// `f` over a batch whose axes and names the options give; see [`vmap`].
///
/// **Shapes:** `f` sees each mapped tensor without its mapped axis, and the others whole.
///
/// # Errors
/// The function given fails if
/// - `in_axes` or `out_axes` does not fit the argument or the result,
/// - a tensor does not have the axis named for it, or sizes differ,
/// - no tensor is mapped and no `axis_size` is given,
/// - `out_axes` is `None` for a result that differs from example to example,
///
/// or with what `f` says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// // The gradients of one set of weights for each example of a batch.
/// let loss = |w: &Tensor, x: &Tensor| w.dot(x)?.square();
/// let each = |(w, x): &(Tensor, Tensor)| grad(|w: &Tensor| loss(w, x))(w);
/// let per_example = jit(vmap_with(each, VmapOptions::new().in_axes((None, 0))));
/// let w = Tensor::from_slice(&[1f32, 2.], [2])?;
/// let x = Tensor::from_slice(&[1f32, 0., 0., 1.], [2, 2])?;
/// assert_eq!(per_example.call((&w, &x))?.to_vec::<f32>()?, [2., 0., 0., 4.]);
///
/// // What speaks of all examples does so by the name of their axis.
/// let centred = |x: &Tensor| x.sub(&pmean(x, "batch")?);
/// let centred = vmap_with(centred, VmapOptions::new().axis_name("batch"));
/// let x = Tensor::from_slice(&[1f32, 2., 6.], [3])?;
/// assert_eq!(centred(&x)?.to_vec::<f32>()?, [-2., -1., 3.]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [`jax.vmap`](https://docs.jax.dev/en/latest/_autosummary/jax.vmap.html).
pub fn vmap_with<A: Tree, B: Tree>(
    f: impl Fn(&A) -> Result<B>,
    options: VmapOptions,
) -> impl Fn(&A) -> Result<B> {
    move |args| vmap_call(&f, &options, args)
}

fn vmap_call<A: Tree, B: Tree>(
    f: &impl Fn(&A) -> Result<B>,
    options: &VmapOptions,
    args: &A,
) -> Result<B> {
    let values = values_of(args)?;
    let axes = in_axes(args, &values, options)?;
    let size = batch_size(args, &values, &axes, options.axis_size)?;
    let name = name_of(options)?;
    let axis = BatchAxis { size, name: Some(name), spmd: options.spmd.clone() };
    let guard = Trace::start(Box::new(Batch { axis }));
    let mapped = values.into_iter().zip(axes).map(|(v, axis)| batch::join(guard.trace(), v, axis));
    let inner = guard.enter(|| {
        let args = rebuild(args, mapped.map(Tensor::from_value))?;
        catch(|| f(&args))
    })?;
    let wanted = resolve(&options.out_axes, &inner, "out_axes")?;
    let mut outs = Vec::new();
    for (i, (tensor, to)) in leaves(&inner).into_iter().zip(wanted).enumerate() {
        let (value, axis) = guard.enter(|| Ok(batch::split(guard.trace(), &tensor.value()?)))?;
        let to = out_axis(&inner, i, &value, axis, to)?;
        outs.push(Tensor::from_value(match to {
            Some(to) => ops::move_batch_axis(size, &value, axis, to)?,
            None => value,
        }));
    }
    guard.write_back()?;
    rebuild(&inner, outs)
}

/// The name of the axis; one of its own if the user gave none.
fn name_of(options: &VmapOptions) -> Result<AxisName> {
    match &options.axis_name {
        None => Ok(nameless()),
        Some(name) if is_user_name(name) => Ok(Arc::clone(name)),
        Some(name) => {
            let text = format!("`{name}` cannot be the name of an axis");
            Err(Error::new(ErrorKind::Value, "vmap", text)
                .help("use a name that is not empty and does not start with `#`"))
        }
    }
}

/// The position that an axis means among `rank`; none if there is no such axis.
fn position(axis: isize, rank: usize) -> Option<usize> {
    let from_front = if axis < 0 { axis + rank as isize } else { axis };
    usize::try_from(from_front).ok().filter(|&axis| axis < rank)
}

/// The mapped axis of each tensor of the argument.
fn in_axes<A: Tree>(args: &A, values: &[Value], options: &VmapOptions) -> Result<BatchAxes> {
    let wanted = resolve(&options.in_axes, args, "in_axes")?;
    let place = |(i, (value, axis)): (usize, (&Value, Option<isize>))| {
        let Some(axis) = axis else { return Ok(None) };
        let place = position(axis, value.rank());
        place.map(Some).ok_or_else(|| {
            let text = format!("has no axis {axis} to map over");
            misfit(args, i, value.aval(), &text)
        })
    };
    values.iter().zip(wanted).enumerate().map(place).collect()
}

/// The number of examples, on which all mapped tensors must agree.
fn batch_size<A: Tree>(
    args: &A,
    values: &[Value],
    axes: &[Option<usize>],
    given: Option<usize>,
) -> Result<usize> {
    let mut first: Option<(usize, usize)> = None;
    for (i, (value, axis)) in values.iter().zip(axes).enumerate() {
        let Some(axis) = *axis else { continue };
        let size = value.shape()[axis];
        let other = match (given, first) {
            (Some(n), _) if n != size => format!("`axis_size` is {n}"),
            (None, Some((j, n))) if n != size => {
                let other = values[j].aval();
                format!("{} {other} has {n} examples", leaf_name(args, j))
            }
            _ => {
                first.get_or_insert((i, size));
                continue;
            }
        };
        let text = format!("has size {size} on axis {axis}, but {other}");
        return Err(misfit(args, i, value.aval(), &text));
    }
    given.or(first.map(|(_, size)| size)).ok_or_else(|| nothing_mapped(values))
}

#[cold]
fn nothing_mapped(values: &[Value]) -> Error {
    let error = |text: &str| Error::new(ErrorKind::Tree, "vmap", text);
    if values.is_empty() {
        return error("the argument has no tensor to map over");
    }
    error("no tensor of the argument is mapped, so the number of examples is not known")
        .help("map a tensor by `VmapOptions::in_axes`, or give `VmapOptions::axis_size`")
}

/// Where a result has the examples; none if it is given once.
fn out_axis<B: Tree>(
    out: &B,
    i: usize,
    value: &Value,
    axis: Option<usize>,
    to: Option<isize>,
) -> Result<Option<usize>> {
    let result = |text: &str| {
        let aval = leaves(out)[i].aval();
        let name = match leaf_name(out, i) {
            path if path.starts_with('`') => format!("the result {path}"),
            _ => "the result".to_owned(),
        };
        Error::new(ErrorKind::Axis, "vmap", format!("{name} {aval} {text}"))
    };
    let rank = value.rank() + usize::from(axis.is_none());
    match (to, axis) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            let text = "differs from example to example, but `out_axes` is `None` for it";
            Err(result(text).help("give it an axis, or reduce it over the examples, as by `psum`"))
        }
        (Some(to), _) => position(to, rank).map(Some).ok_or_else(|| {
            result(&format!("over a batch has {rank} axes; `out_axes` wants the examples on {to}"))
        }),
    }
}

#[cold]
fn misfit<A: Tree>(args: &A, i: usize, aval: &Aval, why: &str) -> Error {
    Error::new(ErrorKind::Shape, "vmap", format!("{} {aval} {why}", leaf_name(args, i)))
}
