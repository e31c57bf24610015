//! Primitives without an operand: `full` and `iota`.

use crate::aval::{Aval, Avals};
use crate::backend::host::{HostArray, convert};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::shape::Shape;
use crate::trace::batch::BatchAxis;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::smallvec;

/// The primitive `full`: an array of one value everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Full {
    /// The value.
    pub value: Scalar,
    /// The shape.
    pub shape: Shape,
}

impl Primitive for Full {
    fn name(&self) -> &'static str {
        "full"
    }

    fn infer(&self, _: &[Aval]) -> Result<Avals> {
        Ok(smallvec![Aval::new(self.value.dtype(), &self.shape)])
    }

    fn lower(&self, cx: &mut Lowering, _: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        Ok(vec![cx.constant(self.value, &outs[0])])
    }

    fn host(&self, _: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![HostArray::full(self.value, &self.shape)])
    }

    fn jvp(&self, _: &[Value], _: &[Tangent]) -> Result<(Values, Tangents)> {
        Ok((smallvec![full(self.value, &self.shape)?], smallvec![None]))
    }

    fn transpose(&self, _: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Ok(smallvec![])
    }

    fn batch(
        &self,
        _: &BatchAxis,
        _: &[Value],
        _: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        Ok((smallvec![full(self.value, &self.shape)?], smallvec![None]))
    }

    fn params(&self) -> String {
        format!("value={}, shape={}", self.value, self.shape)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// An array of `value` everywhere. Source: StableHLO `constant`.
///
/// # Errors
/// If the backend fails.
pub fn full(value: Scalar, shape: &Shape) -> Result<Value> {
    if shape.rank() == 0 {
        return Ok(Value::scalar(value));
    }
    bind_one(&Full { value, shape: shape.clone() }, &[])
}

/// `value` everywhere, in the dtype and shape of `x`.
///
/// # Errors
/// If the backend fails.
pub fn full_like(x: &Value, value: f64) -> Result<Value> {
    full(Scalar::from_f64(x.dtype(), value), x.shape())
}

/// Zeros of the given type.
///
/// # Errors
/// If the backend fails.
pub fn zeros(aval: &Aval) -> Result<Value> {
    full(Scalar::zero(aval.dtype()), aval.shape())
}

/// A tangent or cotangent, as zeros of the type `aval` if it is not there.
pub(crate) fn or_zeros(tangent: &Tangent, aval: &Aval) -> Result<Value> {
    tangent.clone().map_or_else(|| zeros(aval), Ok)
}

/// The primitive `iota`: each element is its index along one axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Iota {
    /// The element type.
    pub dtype: DType,
    /// The shape.
    pub shape: Shape,
    /// The axis that is counted along.
    pub axis: usize,
}

impl Primitive for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }

    fn infer(&self, _: &[Aval]) -> Result<Avals> {
        if self.axis >= self.shape.rank() {
            let text = format!("axis {} is outside of shape {}", self.axis, self.shape);
            return Err(Error::new(ErrorKind::Axis, "iota", text));
        }
        if self.dtype == DType::Bool {
            return Err(Error::new(ErrorKind::DType, "iota", "takes numbers, not bool"));
        }
        Ok(smallvec![Aval::new(self.dtype, &self.shape)])
    }

    fn lower(&self, cx: &mut Lowering, _: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        Ok(cx.op("stablehlo.iota", &[], &format!("iota_dimension = {} : i64", self.axis), outs))
    }

    fn host(&self, _: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![convert::iota(self.dtype, &self.shape, self.axis)])
    }

    fn jvp(&self, _: &[Value], _: &[Tangent]) -> Result<(Values, Tangents)> {
        Ok((smallvec![bind_one(self, &[])?], smallvec![None]))
    }

    fn transpose(&self, _: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Ok(smallvec![])
    }

    fn batch(
        &self,
        _: &BatchAxis,
        _: &[Value],
        _: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        Ok((smallvec![bind_one(self, &[])?], smallvec![None]))
    }

    fn params(&self) -> String {
        format!("dtype={}, shape={}, axis={}", self.dtype, self.shape, self.axis)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// An array whose elements are their index along `axis`. Source: StableHLO `iota`.
///
/// # Errors
/// If the axis is outside of the shape, or the dtype is bool.
pub fn iota(dtype: DType, shape: &Shape, axis: usize) -> Result<Value> {
    bind_one(&Iota { dtype, shape: shape.clone(), axis }, &[])
}
