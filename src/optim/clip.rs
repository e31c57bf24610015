//! The norm of a tree of gradients.

use super::scaled;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::tensor::placed;
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use crate::transforms::tree::{Leaves, Tree, rebuild, values_of};

/// The root of the sum of all squares in a tree, as one number: f64 if a tensor is, else f32.
///
/// # Errors
/// If a tensor is no floating-point number, or there is none.
#[track_caller]
pub fn grad_norm(grads: &impl Leaves) -> Result<Tensor> {
    let values = float_values("grad_norm", grads)?;
    let outs = ops::call::fused("grad_norm", &[], &values, |gs| Ok(Values::from_iter([norm(gs)?])));
    Ok(Tensor::from_value(placed(outs)?.remove(0)))
}

/// The gradients scaled down together so that their norm is at most `max_norm`, and the norm that
/// they had: torch's `clip_grad_norm_` as a function.
///
/// # Errors
/// As [`grad_norm`].
///
/// # Example
/// ```
/// use oxbridge::optim::clip_grad_norm;
/// use oxbridge::prelude::*;
/// let grads = (Tensor::from_slice(&[3f64], [1])?, Tensor::from_slice(&[4f64], [1])?);
/// let (clipped, norm) = clip_grad_norm(&grads, 1.0)?;
/// assert_eq!(norm.item::<f64>()?, 5.0);
/// assert!((clipped.0.item::<f64>()? - 0.6).abs() < 1e-6);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.nn.utils.clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html).
#[track_caller]
pub fn clip_grad_norm<G: Tree>(grads: &G, max_norm: f64) -> Result<(G, Tensor)> {
    let mut operands = float_values("clip_grad_norm", grads)?;
    operands.insert(0, Value::scalar(Scalar::new(max_norm)));
    let outs = ops::call::fused("clip_grad_norm", &[], &operands, |values| {
        let (max, gs) = (&values[0], &values[1..]);
        let norm = norm(gs)?;
        let above = ops::add(&norm, &ops::full_like(&norm, 1e-6)?)?;
        let ratio = ops::div(&ops::convert(max, norm.dtype())?, &above)?;
        let ratio = ops::min(&ratio, &ops::full_like(&ratio, 1.0)?)?;
        let clipped = gs.iter().map(|g| scaled(g, &ratio));
        std::iter::once(Ok(norm)).chain(clipped).collect()
    });
    let mut outs = placed(outs)?;
    let norm = Tensor::from_value(outs.remove(0));
    Ok((rebuild(grads, outs.into_iter().map(Tensor::from_value))?, norm))
}

fn float_values(op: &'static str, grads: &impl Leaves) -> Result<Values> {
    let values = values_of(grads)?;
    match values.iter().find(|g| !g.dtype().is_float()) {
        Some(g) => {
            let text = format!("takes floating-point gradients, not {}", g.aval());
            Err(Error::new(ErrorKind::DType, op, text))
        }
        None if values.is_empty() => Err(Error::new(ErrorKind::Tree, op, "the tree has no tensor")),
        None => Ok(values),
    }
}

fn norm(gs: &[Value]) -> Result<Value> {
    let double = gs.iter().any(|g| g.dtype() == DType::F64);
    let dtype = if double { DType::F64 } else { DType::F32 };
    let mut total = Value::scalar(Scalar::zero(dtype));
    for g in gs {
        let g = ops::convert(g, dtype)?;
        let axes: Vec<usize> = (0..g.rank()).collect();
        total = ops::add(&total, &ops::reduce_sum(&ops::mul(&g, &g)?, &axes)?)?;
    }
    ops::sqrt(&total)
}
