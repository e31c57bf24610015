//! `vmap`: a function of one example over a batch of them.

use super::catch::catch;
use super::tree::{Tree, leaf_name, leaves, rebuild};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::trace::batch::{self, Batch, BatchAxis};
use crate::trace::cell::Tensor;
use crate::trace::{Trace, Values};

/// `f` over a batch: axis 0 of every tensor of the argument is mapped, and of every result.
///
/// **Shapes:** `f` sees each tensor without its axis 0; results that do not depend on the argument
/// are repeated.
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
/// let out = vmap(dot)(&(x.clone(), x))?;
/// assert_eq!(out.to_vec::<f32>()?, [5., 25.]);
/// # Ok::<(), Error>(())
/// ```
pub fn vmap<A: Tree, B: Tree>(f: impl Fn(&A) -> Result<B>) -> impl Fn(&A) -> Result<B> {
    move |args| vmap_call(&f, args)
}

fn vmap_call<A: Tree, B: Tree>(f: &impl Fn(&A) -> Result<B>, args: &A) -> Result<B> {
    let values: Values = leaves(args).into_iter().map(Tensor::value).collect::<Result<_>>()?;
    let mut size = None;
    for (i, value) in values.iter().enumerate() {
        let found = value.shape().first().copied();
        match (found, size) {
            (None, _) => return Err(misfit(args, i, "has no axis 0 to map over")),
            (Some(n), Some(m)) if n != m => {
                let why = format!("has size {n} on axis 0, but an earlier tensor has {m}");
                return Err(misfit(args, i, &why));
            }
            _ => size = found,
        }
    }
    let Some(size) = size else {
        return Err(Error::new(ErrorKind::Tree, "vmap", "the argument has no tensor to map over"));
    };
    let guard = Trace::start(Box::new(Batch { axis: BatchAxis::of_size(size) }));
    let mapped = values.into_iter().map(|v| batch::join(guard.trace(), v, Some(0)));
    let inner = guard.enter(|| {
        let args = rebuild(args, mapped.map(Tensor::from_value))?;
        catch(|| f(&args))
    })?;
    let mut outs = Vec::new();
    for tensor in leaves(&inner) {
        let (value, axis) = guard.enter(|| Ok(batch::split(guard.trace(), &tensor.value()?)))?;
        outs.push(Tensor::from_value(ops::move_batch_axis(size, &value, axis, 0)?));
    }
    guard.write_back()?;
    rebuild(&inner, outs)
}

#[cold]
fn misfit<A: Tree>(args: &A, i: usize, why: &str) -> Error {
    let leaf = leaves(args)[i].aval();
    Error::new(ErrorKind::Shape, "vmap", format!("{} {leaf} {why}", leaf_name(args, i)))
}
