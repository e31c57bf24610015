//! What operands of mixed dtypes and shapes become: torch's promotion and broadcasting.
//!
//! Dtypes fall in categories, bool < integers < floats < complex. Tensors with dimensions decide;
//! a tensor without dimensions, and a Rust number still less, changes the dtype only if its
//! category is higher than theirs. So `f32[3] + 2.0f64` is `f32`, and `i64[3] + 0.5` is `f32`.

use crate::dtype::{Category, DType, Scalar};
use crate::error::Result;
use crate::ops;
use crate::ops::call::fused;
use crate::shape::{Shape, broadcast};
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use smallvec::{SmallVec, smallvec};

/// An operand of a [`Tensor`] method: a tensor, or a Rust number that takes part in promotion with
/// its category only.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'t> {
    /// A tensor.
    Tensor(&'t Tensor),
    /// A number.
    Scalar(Scalar),
}

impl<'t> From<&'t Tensor> for Operand<'t> {
    fn from(tensor: &'t Tensor) -> Operand<'t> {
        Operand::Tensor(tensor)
    }
}

impl From<Scalar> for Operand<'_> {
    fn from(scalar: Scalar) -> Self {
        Operand::Scalar(scalar)
    }
}

macro_rules! numbers {
    ($($ty:ty)*) => {$(
        impl From<$ty> for Operand<'_> {
            fn from(number: $ty) -> Self {
                Operand::Scalar(Scalar::new(number))
            }
        }
    )*};
}

numbers! { f64 f32 i64 i32 bool }

impl Operand<'_> {
    /// The value as the transform under way sees it.
    pub(crate) fn value(&self) -> Result<Value> {
        match self {
            Operand::Tensor(tensor) => tensor.value(),
            Operand::Scalar(scalar) => Ok(Value::scalar(*scalar)),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Operand::Tensor(tensor) => tensor.dtype(),
            Operand::Scalar(scalar) => weak(scalar.dtype()),
        }
    }
}

/// The dtype that a Rust number stands for: torch's default of its category.
fn weak(dtype: DType) -> DType {
    match dtype.category() {
        Category::Bool => DType::Bool,
        Category::Int => DType::I64,
        Category::Float => DType::F32,
        Category::Complex => DType::C64,
    }
}

/// The dtype of `high` (of the stronger operands) beside `low` (of the weaker ones).
fn combine(high: Option<DType>, low: Option<DType>) -> Result<Option<DType>> {
    let (Some(high), Some(low)) = (high, low) else { return Ok(high.or(low)) };
    Ok(Some(match (high.category(), low.category()) {
        (Category::Complex, _) => high,
        (Category::Float, Category::Complex) => high.complex(),
        (Category::Float, _) => high,
        (Category::Bool, _) | (_, Category::Float | Category::Complex) => high.promote(low)?,
        _ => high,
    }))
}

/// The dtype that the operands of an operation are brought to (`torch.result_type`, for any
/// number of operands).
///
/// # Errors
/// If `u16`, `u32` or `u64` meets another integer dtype.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// use oxbridge::tensor::promotion::result_type;
/// let x = Tensor::zeros([2], DType::I32)?;
/// assert_eq!(result_type(&[(&x).into(), 2i64.into()])?, DType::I32);
/// assert_eq!(result_type(&[(&x).into(), 2.5.into()])?, DType::F32);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.result_type](https://docs.pytorch.org/docs/stable/generated/torch.result_type.html).
pub fn result_type(operands: &[Operand<'_>]) -> Result<DType> {
    let mut classes: [Option<DType>; 3] = [None; 3];
    for operand in operands {
        let class = match operand {
            Operand::Tensor(tensor) if tensor.dim() > 0 => 0,
            Operand::Tensor(_) => 1,
            Operand::Scalar(_) => 2,
        };
        let dtype = operand.dtype();
        classes[class] = Some(classes[class].map_or(Ok(dtype), |d| d.promote(dtype))?);
    }
    let [dims, zero_dims, numbers] = classes;
    Ok(combine(dims, combine(zero_dims, numbers)?)?.unwrap_or(DType::F32))
}

/// What an element-wise operation computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One primitive in the operands' common dtype.
    One,
    /// One primitive over floats: integers and bools become `f32`.
    OneFloat,
    /// Several primitives in the common dtype; half precision is computed in `f32`.
    Many,
    /// Several primitives over floats; half precision is computed in `f32`.
    ManyFloat,
}

impl Kind {
    fn is_one(self) -> bool {
        matches!(self, Kind::One | Kind::OneFloat)
    }

    fn dtype(self, common: DType) -> DType {
        let floats = matches!(self, Kind::OneFloat | Kind::ManyFloat);
        if floats && !common.is_differentiable() { DType::F32 } else { common }
    }
}

/// `dtype`, or `f32` for half precision: where products and sums of several steps are computed.
pub(crate) fn wide(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// Brings the operands to one dtype and shape and applies `f`, which must depend on `op`, `params`
/// and the operands' types only. Operands that are alike go straight to a single primitive; all
/// else is one program.
pub(crate) fn elementwise(
    op: &'static str,
    kind: Kind,
    params: &[i64],
    operands: &[Operand<'_>],
    f: impl FnOnce(&[Value]) -> Result<Value>,
) -> Result<Value> {
    let mut values: Values = operands.iter().map(Operand::value).collect::<Result<_>>()?;
    let numbers = operands.iter().any(|o| matches!(o, Operand::Scalar(_)));
    let first = values[0].aval();
    let alike = || values[1..].iter().all(|v| v.aval() == first);
    if kind.is_one() && !numbers && kind.dtype(first.dtype()) == first.dtype() && alike() {
        return f(&values).map_err(|e| e.in_op(op));
    }
    let dtype = kind.dtype(result_type(operands).map_err(|e| e.in_op(op))?);
    let work = if kind.is_one() && !numbers { dtype } else { wide(dtype) };
    for (value, operand) in values.iter_mut().zip(operands) {
        if let Operand::Scalar(scalar) = operand {
            *value = Value::scalar(scalar.convert(work));
        }
    }
    let shape = broadcast_all(op, &values)?;
    let mut key: SmallVec<[i64; 8]> = smallvec![dtype as i64];
    key.extend_from_slice(params);
    let outs = fused(op, &key, &values, |values| {
        let alike = values.iter().map(|v| expand(&ops::convert(v, work)?, &shape));
        let out = f(&alike.collect::<Result<Values>>()?)?;
        let back = out.dtype() == work && work != dtype;
        Ok(smallvec![if back { ops::convert(&out, dtype)? } else { out }])
    });
    first_of(op, outs)
}

/// The only result of a program, or its error named after `op`.
pub(crate) fn first_of(op: &'static str, outs: Result<Values>) -> Result<Value> {
    outs.map(|mut outs| outs.swap_remove(0)).map_err(|e| e.in_op(op))
}

/// The shape that all values broadcast to.
pub(crate) fn broadcast_all(op: &'static str, values: &[Value]) -> Result<Shape> {
    let mut shape = values[0].shape().clone();
    for value in &values[1..] {
        shape = broadcast(op, &shape, value.shape())?;
    }
    Ok(shape)
}

/// `x` broadcast to `shape`, aligned at the last axis.
pub(crate) fn expand(x: &Value, shape: &Shape) -> Result<Value> {
    let skip = shape.rank() - x.rank();
    let axes: SmallVec<[usize; 4]> = (skip..shape.rank()).collect();
    ops::broadcast_in_dim(x, shape, &axes)
}
