//! Comparison, selection and clamping.

use super::binary::{max, min};
use super::shape::{align_batch, broadcast_in_dim, move_batch_axis};
use super::{bad_dtype, mismatch};
use crate::aval::{Aval, Avals};
use crate::backend::host::{HostArray, convert};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::ops::create::{full_like, or_zeros};
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::smallvec;

pub use crate::backend::host::convert::Direction;

/// The primitive `compare`: element-wise comparison to bool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Compare {
    /// Which comparison.
    pub direction: Direction,
}

impl Compare {
    fn word(self) -> &'static str {
        match self.direction {
            Direction::Eq => "EQ",
            Direction::Ne => "NE",
            Direction::Lt => "LT",
            Direction::Le => "LE",
            Direction::Gt => "GT",
            Direction::Ge => "GE",
        }
    }
}

impl Primitive for Compare {
    fn name(&self) -> &'static str {
        match self.direction {
            Direction::Eq => "eq",
            Direction::Ne => "ne",
            Direction::Lt => "lt",
            Direction::Le => "le",
            Direction::Gt => "gt",
            Direction::Ge => "ge",
        }
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (x, y) = (&operands[0], &operands[1]);
        if x != y {
            return Err(mismatch(self.name(), x, y));
        }
        let orders = !matches!(self.direction, Direction::Eq | Direction::Ne);
        if orders && x.dtype().is_complex() {
            return Err(bad_dtype(self.name(), x, "ordered dtypes"));
        }
        Ok(smallvec![x.with_dtype(DType::Bool)])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let attrs = attributes(self.word(), operands[0].aval().dtype());
        Ok(cx.op("stablehlo.compare", operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![convert::compare(&operands[0], &operands[1], self.direction)])
    }

    fn jvp(&self, primals: &[Value], _: &[Tangent]) -> Result<(Values, Tangents)> {
        Ok((smallvec![bind_one(self, primals)?], smallvec![None]))
    }

    fn transpose(&self, _: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Err(not_linear(self))
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (operands, axis) = align_batch(batch.size, operands, axes)?;
        Ok((smallvec![bind_one(self, &operands)?], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        String::new()
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The attributes of `stablehlo.compare` for elements of `dtype`.
fn attributes(word: &str, dtype: DType) -> String {
    let kind = match dtype {
        d if d.is_differentiable() => "FLOAT",
        d if d.is_unsigned() || d == DType::Bool => "UNSIGNED",
        _ => "SIGNED",
    };
    format!(
        "compare_type = #stablehlo<comparison_type {kind}>, \
         comparison_direction = #stablehlo<comparison_direction {word}>"
    )
}

/// Writes the comparison `word`, as `GT`, of two values.
pub(crate) fn compare_in(cx: &mut Lowering, word: &str, x: &Val, y: &Val) -> Val {
    let attrs = attributes(word, x.aval().dtype());
    cx.op1("stablehlo.compare", &[x, y], &attrs, &x.aval().with_dtype(DType::Bool))
}

macro_rules! comparisons {
    ($($name:ident $direction:ident $sign:literal)*) => {$(
        #[doc = concat!("Element-wise `x ", $sign, " y`, as bool. Source: StableHLO `compare`.")]
        ///
        /// # Errors
        /// If the operands differ in dtype or shape, or are complex and the comparison orders.
        pub fn $name(x: &Value, y: &Value) -> Result<Value> {
            bind_one(&Compare { direction: Direction::$direction }, &[x.clone(), y.clone()])
        }
    )*};
}

comparisons! { eq Eq "==" ne Ne "!=" lt Lt "<" le Le "<=" gt Gt ">" ge Ge ">=" }

/// The primitive `select`: one of two operands for each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Select;

impl Primitive for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (pred, x, y) = (&operands[0], &operands[1], &operands[2]);
        if pred.dtype() != DType::Bool {
            return Err(bad_dtype("select", pred, "a bool predicate"));
        }
        if x != y {
            return Err(mismatch("select", x, y));
        }
        if pred.rank() != 0 && pred.shape() != x.shape() {
            let text = format!("predicate {pred} has neither the shape of {x} nor is it a scalar");
            return Err(Error::new(ErrorKind::Shape, "select", text));
        }
        Ok(smallvec![x.clone()])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        Ok(cx.op("stablehlo.select", operands, "", outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![convert::select(&operands[0], &operands[1], &operands[2])])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let out = bind_one(self, primals)?;
        if tangents[1].is_none() && tangents[2].is_none() {
            return Ok((smallvec![out], smallvec![None]));
        }
        let x = or_zeros(&tangents[1], primals[1].aval())?;
        let y = or_zeros(&tangents[2], primals[2].aval())?;
        Ok((smallvec![out], smallvec![Some(select(&primals[0], &x, &y)?)]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None, None, None]) };
        let Some(pred) = operands[0].known() else { return Err(not_linear(self)) };
        let zero = full_like(ct, 0.0)?;
        let ask = |on: &Operand, x: &Value, y: &Value| {
            if on.is_linear() { select(pred, x, y).map(Some) } else { Ok(None) }
        };
        Ok(smallvec![None, ask(&operands[1], ct, &zero)?, ask(&operands[2], &zero, ct)?])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let scalar = operands[0].rank() == usize::from(axes[0].is_some());
        if scalar && axes[0].is_none() {
            let (rest, axis) = align_batch(batch.size, &operands[1..], &axes[1..])?;
            let out = select(&operands[0], &rest[0], &rest[1])?;
            return Ok((smallvec![out], smallvec![Some(axis)]));
        }
        if !scalar {
            let (all, axis) = align_batch(batch.size, operands, axes)?;
            return Ok((smallvec![bind_one(self, &all)?], smallvec![Some(axis)]));
        }
        // One predicate for each example: spread it over the example's axes.
        let x = move_batch_axis(batch.size, &operands[1], axes[1], 0)?;
        let y = move_batch_axis(batch.size, &operands[2], axes[2], 0)?;
        let pred = broadcast_in_dim(&operands[0], x.shape(), &[0])?;
        Ok((smallvec![select(&pred, &x, &y)?], smallvec![Some(0)]))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// `x` where `pred` holds, else `y`; `pred` has their shape or is a scalar. Source: StableHLO
/// `select`.
///
/// # Errors
/// If `x` and `y` differ in type, or `pred` is not bool or has another shape.
pub fn select(pred: &Value, x: &Value, y: &Value) -> Result<Value> {
    bind_one(&Select, &[pred.clone(), x.clone(), y.clone()])
}

/// `x` kept between `low` and `high`, all of one shape: `min(max(low, x), high)`. Source:
/// StableHLO `clamp`.
///
/// # Errors
/// If the operands differ in type.
pub fn clamp(low: &Value, x: &Value, high: &Value) -> Result<Value> {
    min(&max(x, low)?, high)
}
