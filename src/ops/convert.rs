//! Changing the element type: `convert` by value, `bitcast` by bits.

use super::mapped;
use crate::aval::{Aval, Avals};
use crate::backend::host::{HostArray, convert as kernel};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::ops::elementwise::{imag, real};
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, autograd, bind_one};
use smallvec::smallvec;

/// The primitive `convert`: each element by value to another dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convert {
    /// The new dtype.
    pub dtype: DType,
}

impl Primitive for Convert {
    fn name(&self) -> &'static str {
        "convert"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        if operands[0].dtype().is_complex() && !self.dtype.is_complex() {
            let text = format!("{} has no one value in {}", operands[0], self.dtype);
            return Err(Error::new(ErrorKind::DType, "convert", text)
                .help("take `real`, `imag` or `abs` first"));
        }
        Ok(smallvec![operands[0].with_dtype(self.dtype)])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let x = &operands[0];
        // Floats beyond the integers' range are brought to its ends, NaN to 0, on every backend.
        if x.aval().dtype().is_float() && self.dtype.is_int() && self.dtype.size() < 4 {
            let wide = if self.dtype.is_unsigned() { DType::U32 } else { DType::I32 };
            let wide = x.aval().with_dtype(wide);
            let y = cx.op1("stablehlo.convert", &[x], "", &wide);
            let low =
                cx.constant(crate::Scalar::min_value(self.dtype).convert(wide.dtype()), &wide);
            let high =
                cx.constant(crate::Scalar::max_value(self.dtype).convert(wide.dtype()), &wide);
            let y = cx.op1("stablehlo.maximum", &[&y, &low], "", &wide);
            let y = cx.op1("stablehlo.minimum", &[&y, &high], "", &wide);
            return Ok(cx.op("stablehlo.convert", &[y], "", outs));
        }
        Ok(cx.op("stablehlo.convert", operands, "", outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![kernel::convert(&operands[0], self.dtype)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let t = match &tangents[0] {
            Some(t) if self.dtype.is_differentiable() => Some(convert(t, self.dtype)?),
            _ => None,
        };
        Ok((smallvec![bind_one(self, primals)?], smallvec![t]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let dtype = operands[0].aval().dtype();
        let Some(ct) = &cts[0] else { return Ok(smallvec![None]) };
        if !dtype.is_differentiable() {
            return Err(not_linear(self));
        }
        // The cotangent of a real number that became complex is the real part.
        let ct =
            if self.dtype.is_complex() && !dtype.is_complex() { real(ct)? } else { ct.clone() };
        Ok(smallvec![Some(convert(&ct, dtype)?)])
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        Ok((smallvec![convert(x, self.dtype)?], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        format!("dtype={}", self.dtype)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// `x` by value in another dtype: floats go to integers towards zero (NaN to 0, beyond the range to
/// its ends), integers wrap around, anything but zero is `true`. `x` itself if it has the dtype.
/// Source: StableHLO `convert`.
///
/// # Errors
/// If a complex `x` should become real.
pub fn convert(x: &Value, dtype: DType) -> Result<Value> {
    if x.dtype() == dtype {
        return Ok(x.clone());
    }
    if let Some(scalar) = x.as_literal()
        && (dtype.is_complex() || !scalar.dtype().is_complex())
    {
        return Ok(Value::scalar(scalar.convert(dtype)));
    }
    bind_one(&Convert { dtype }, std::slice::from_ref(x))
}

/// The primitive `bitcast`: the same bits as another dtype of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bitcast {
    /// The new dtype.
    pub dtype: DType,
}

impl Primitive for Bitcast {
    fn name(&self) -> &'static str {
        "bitcast"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let from = operands[0].dtype();
        let odd = |d: DType| d == DType::Bool || d.is_complex();
        if from.size() != self.dtype.size() || odd(from) || odd(self.dtype) {
            let text = format!("the bits of {} cannot be read as {}", operands[0], self.dtype);
            return Err(Error::new(ErrorKind::DType, "bitcast", text)
                .note("both must be real numbers of one size"));
        }
        Ok(smallvec![operands[0].with_dtype(self.dtype)])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        if operands[0].aval() == &outs[0] {
            return Ok(operands.to_vec());
        }
        Ok(cx.op("stablehlo.bitcast_convert", operands, "", outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![operands[0].bitcast(self.dtype)])
    }

    fn jvp(&self, primals: &[Value], _: &[Tangent]) -> Result<(Values, Tangents)> {
        Ok((smallvec![bind_one(self, primals)?], smallvec![None]))
    }

    fn transpose(&self, _: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Err(not_linear(self))
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        Ok((smallvec![bitcast(x, self.dtype)?], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        format!("dtype={}", self.dtype)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The bits of `x` read as another dtype of the same size. Source: StableHLO `bitcast_convert`.
///
/// # Errors
/// If the sizes differ, or a dtype is bool or complex.
pub fn bitcast(x: &Value, dtype: DType) -> Result<Value> {
    bind_one(&Bitcast { dtype }, std::slice::from_ref(x))
}

/// `x` without its derivative, of any order: reading bits has none. An array has none to lose.
///
/// # Errors
/// If the backend fails.
pub fn stop_gradient(x: &Value) -> Result<Value> {
    let x = &autograd::primal(x);
    match (x, x.dtype()) {
        (Value::Array(_), _) => Ok(x.clone()),
        (_, d) if d.is_float() => bitcast(x, d),
        (_, d) if d.is_complex() => {
            let bare = |part: Value| bitcast(&part, d.real());
            crate::ops::complex(&bare(real(x)?)?, &bare(imag(x)?)?)
        }
        _ => Ok(x.clone()),
    }
}
