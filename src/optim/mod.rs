//! Optimisers as values: parameters, gradients and state go in, new parameters and state come out.
//!
//! `update` changes nothing in place, so a whole training step can be one `jit` that is donated the
//! old parameters and state. All numbers that a program might vary between steps are operands: the
//! step count and the learning rate are tensors of the state, so a schedule or a sweep of learning
//! rates runs one compiled program. Outside of `jit` one update is one program too.
//!
//! In torch's manner, `step_` takes the gradients that `backward` left and writes parameters and
//! state in place.
//!
//! | module | holds |
//! |---|---|
//! | [`sgd`] | [`Sgd`]: momentum, Nesterov's form, weight decay |
//! | [`adam`] | [`Adam`], [`AdamW`] |
//! | [`schedule`] | learning rates over steps: [`Schedule`] |
//! | [`clip`] | [`clip_grad_norm`] |

pub mod adam;
pub mod clip;
pub mod schedule;
pub mod sgd;

pub use adam::{Adam, AdamOptions, AdamW, AdamWOptions};
pub use clip::{clip_grad_norm, grad_norm};
pub use schedule::Schedule;
pub use sgd::{Sgd, SgdOptions};

use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use crate::transforms::tree::{Leaves, Tree, leaf_name, leaves};

/// Numbers that make an options struct: hashed by their bits, so that they can be static parts.
macro_rules! hash_by_bits {
    ($options:ty: $($number:ident),+; $($other:ident),*) => {
        impl std::hash::Hash for $options {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                $(self.$number.to_bits().hash(state);)+
                $(self.$other.hash(state);)*
            }
        }
    };
}
pub(crate) use hash_by_bits;

/// The values of `tree`, which must be like `params`: one for each, of its dtype and shape.
fn like<P: Leaves>(op: &'static str, what: &str, params: &P, tree: &P) -> Result<Values> {
    let (wants, have) = (leaves(params), leaves(tree));
    if wants.len() != have.len() {
        let text = format!("{} {what}s for {} parameters", have.len(), wants.len());
        return Err(Error::new(ErrorKind::Tree, op, text));
    }
    let mut values = Values::new();
    for (i, (want, have)) in wants.into_iter().zip(have).enumerate() {
        let (want, value) = (want.value()?, have.value()?);
        if (want.dtype(), want.shape()) != (value.dtype(), value.shape()) {
            let name = leaf_name(params, i);
            let (a, b) = (want.aval(), value.aval());
            let text = format!("the {what} of {name} is {b}, but the parameter is {a}");
            return Err(Error::new(ErrorKind::Shape, op, text));
        }
        values.push(value);
    }
    Ok(values)
}

/// A tree of zeros like `params`.
fn zeros_like<P: Tree>(params: &P) -> Result<P> {
    // Each on its parameter's devices: a product keeps what `full` would not know.
    params.map(&mut |p| {
        let p = p.value()?;
        let zeros = ops::call::fused("zeros_like", &[], &[p], |ops| {
            Ok(Values::from_iter([ops::full_like(&ops[0], 0.0)?]))
        });
        Ok(Tensor::from_value(zeros?.remove(0)))
    })
}

/// The parameters that have a gradient: what a step in torch's manner changes.
struct Step {
    params: Vec<Tensor>,
    grads: Vec<Tensor>,
    /// Their places among all.
    places: Vec<usize>,
}

impl Step {
    fn of(op: &'static str, params: &impl Leaves) -> Result<Step> {
        let mut step = Step { params: Vec::new(), grads: Vec::new(), places: Vec::new() };
        for (i, param) in leaves(params).into_iter().enumerate() {
            let Some(grad) = param.grad() else { continue };
            step.params.push(param.clone());
            step.grads.push(grad);
            step.places.push(i);
        }
        if step.places.is_empty() {
            let text = "no parameter has a gradient";
            return Err(Error::new(ErrorKind::Autograd, op, text)
                .help("call `requires_grad_(true)` on the model and `backward` on the loss"));
        }
        Ok(step)
    }

    /// The tensors of a tree like the parameters that belong to them.
    fn part(&self, tree: &impl Leaves) -> Vec<Tensor> {
        let all = leaves(tree);
        self.places.iter().filter_map(|&i| all.get(i).map(|&t| t.clone())).collect()
    }

    /// Writes new values in place; parameters stay leaves.
    fn write(old: &[Tensor], new: &[Tensor]) -> Result<()> {
        old.iter().zip(new).try_for_each(|(old, new)| old.write_back(new.value()?))
    }
}

/// The dtype of step sizes: f64 if a parameter is, else f32.
fn rate_dtype(params: &impl Leaves) -> DType {
    let double = leaves(params).into_iter().any(|p| p.aval().dtype() == DType::F64);
    if double { DType::F64 } else { DType::F32 }
}

fn number(dtype: DType, value: f64) -> Tensor {
    Tensor::from_value(Value::scalar(Scalar::from_f64(dtype, value)))
}

/// The one number of `scalar` in the dtype and shape of `x`.
fn spread(scalar: &Value, x: &Value) -> Result<Value> {
    ops::broadcast_in_dim(&ops::convert(scalar, x.dtype())?, x.shape(), &[])
}

/// `scale * x` for a scalar.
fn scaled(x: &Value, scale: &Value) -> Result<Value> {
    ops::mul(x, &spread(scale, x)?)
}
