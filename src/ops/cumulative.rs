//! Running sums, products, extremes and log-sum-exps along an axis.
//!
//! A running result of `n` elements is made in about `log2(n)` steps: after the step of distance
//! `d` each element holds the result of the up to `2d` elements that end at it, from which the next
//! step joins two neighbouring windows. `reduce_window` would take `n` steps for each element on a
//! CPU. Derivatives go through the same windows, with a tangent beside each element, so nothing is
//! divided by.

use super::compare::{eq, gt, lt, ne, select};
use super::elementwise::Domain;
use super::reduce::wide;
use super::slice::{check_axis, pad};
use super::{bad_dtype, mapped};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host::cumulative::cumulative;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::hlo::{self, Val};
use crate::ops::binary::{add, and, max, mul, or, sub};
use crate::ops::call::fused;
use crate::ops::create::full_like;
use crate::ops::elementwise::{abs, exp, is_finite, log1p, neg, not};
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::smallvec;

pub use crate::backend::host::cumulative::Cumulative as Running;

/// The primitives `cumsum`, `cumprod`, `cummax`, `cummin` and `cumlogsumexp`: at each element the
/// result of all elements up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cumulative {
    /// Of what.
    pub kind: Running,
    /// Along which axis.
    pub axis: usize,
    /// Whether it runs from the end.
    pub reverse: bool,
}

impl Cumulative {
    fn domain(self) -> Domain {
        match self.kind {
            Running::Sum | Running::Prod => Domain::Number,
            Running::Max | Running::Min => Domain::Ordered,
            Running::LogSumExp => Domain::Float,
        }
    }

    /// The dtype in which it is worked out.
    fn works_in(self, dtype: DType) -> DType {
        if matches!(self.kind, Running::Max | Running::Min) { dtype } else { wide(dtype) }
    }

    /// What changes nothing.
    fn neutral(self, dtype: DType) -> Scalar {
        match self.kind {
            Running::Sum => Scalar::zero(dtype),
            Running::Prod => Scalar::one(dtype),
            Running::Max | Running::LogSumExp => Scalar::min_value(dtype),
            Running::Min => Scalar::max_value(dtype),
        }
    }

    /// The padding, low and high, that puts the window that ends `distance` before each element in
    /// that element's place.
    fn shift(self, rank: usize, distance: usize) -> (Vec<i64>, Vec<i64>) {
        let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
        let distance = if self.reverse { -(distance as i64) } else { distance as i64 };
        (low[self.axis], high[self.axis]) = (distance, -distance);
        (low, high)
    }

    fn shifted(self, x: &Value, distance: usize, fill: Scalar) -> Result<Value> {
        let (low, high) = self.shift(x.rank(), distance);
        pad(x, &Value::scalar(fill), &low, &high, &vec![0; x.rank()])
    }

    /// Writes the join of two windows.
    fn join(self, cx: &mut Lowering, x: &Val, y: &Val) -> Val {
        let name = match self.kind {
            Running::Sum => "stablehlo.add",
            Running::Prod => "stablehlo.multiply",
            Running::Max => "stablehlo.maximum",
            Running::Min => "stablehlo.minimum",
            Running::LogSumExp => return lower_log_add_exp(cx, x, y),
        };
        cx.op1(name, &[x, y], "", x.aval())
    }

    /// The tangents of the running results for the tangents `t` of `x`.
    fn tangents(self, x: &Value, t: &Value) -> Result<Value> {
        let (mut x, mut t) = (x.clone(), t.clone());
        let zero = Scalar::zero(t.dtype());
        for distance in distances(x.shape()[self.axis]) {
            let before = self.shifted(&x, distance, self.neutral(x.dtype()))?;
            let t_before = self.shifted(&t, distance, zero)?;
            (x, t) = self.join_tangents((&before, &t_before), (&x, &t))?;
        }
        Ok(t)
    }

    /// The join of two windows and its tangent, linear in the tangents.
    fn join_tangents(
        self,
        (x, tx): (&Value, &Value),
        (y, ty): (&Value, &Value),
    ) -> Result<(Value, Value)> {
        match self.kind {
            Running::Sum => Ok((add(x, y)?, add(tx, ty)?)),
            Running::Prod => Ok((mul(x, y)?, add(&mul(tx, y)?, &mul(ty, x)?)?)),
            Running::Max | Running::Min => {
                let better = if self.kind == Running::Max { gt(x, y)? } else { lt(x, y)? };
                let only_x = and(&ne(x, x)?, &not(&ne(y, y)?)?)?;
                let first = or(&better, &only_x)?;
                Ok((select(&first, x, y)?, select(&first, tx, ty)?))
            }
            Running::LogSumExp => {
                let z = log_add_exp(x, y)?;
                let (wx, wy) = (share(x, &z)?, share(y, &z)?);
                Ok((z, add(&mul(tx, &wx)?, &mul(ty, &wy)?)?))
            }
        }
    }
}

/// The powers of two below `size`.
fn distances(size: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |d| Some(d * 2)).take_while(move |&d| d < size)
}

/// `log(e^x + e^y)` without overflow.
fn log_add_exp(x: &Value, y: &Value) -> Result<Value> {
    let large = max(x, y)?;
    let finite = is_finite(&large)?;
    let zero = full_like(x, 0.0)?;
    let apart = select(&finite, &sub(x, y)?, &zero)?;
    let more = log1p(&exp(&neg(&abs(&apart)?)?)?)?;
    add(&large, &select(&finite, &more, &zero)?)
}

/// The part `e^x` of `e^z`: 0 of nothing, and 1 if they are equal, also at infinity.
fn share(x: &Value, z: &Value) -> Result<Value> {
    let (zero, one) = (full_like(x, 0.0)?, full_like(x, 1.0)?);
    let nothing = eq(z, &full_like(z, f64::NEG_INFINITY)?)?;
    let plain = not(&or(&nothing, &eq(x, z)?)?)?;
    let part = select(&plain, &exp(&select(&plain, &sub(x, z)?, &zero)?)?, &one)?;
    select(&nothing, &zero, &part)
}

fn lower_log_add_exp(cx: &mut Lowering, x: &Val, y: &Val) -> Val {
    let aval = x.aval().clone();
    let large = cx.op1("stablehlo.maximum", &[x, y], "", &aval);
    let bool = aval.with_dtype(DType::Bool);
    let finite = cx.op1("stablehlo.is_finite", &[&large], "", &bool);
    let apart = cx.op1("stablehlo.subtract", &[x, y], "", &aval);
    let apart = cx.op1("stablehlo.abs", &[&apart], "", &aval);
    let apart = cx.op1("stablehlo.negate", &[&apart], "", &aval);
    let part = cx.op1("stablehlo.exponential", &[&apart], "", &aval);
    let more = cx.op1("stablehlo.log_plus_one", &[&part], "", &aval);
    let sum = cx.op1("stablehlo.add", &[&large, &more], "", &aval);
    cx.op1("stablehlo.select", &[&finite, &sum, &large], "", &aval)
}

impl Primitive for Cumulative {
    fn name(&self) -> &'static str {
        match self.kind {
            Running::Sum => "cumsum",
            Running::Prod => "cumprod",
            Running::Max => "cummax",
            Running::Min => "cummin",
            Running::LogSumExp => "cumlogsumexp",
        }
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        if !self.domain().contains(x.dtype()) {
            return Err(bad_dtype(self.name(), x, self.domain().words()));
        }
        check_axis(self.name(), x, self.axis)?;
        Ok(smallvec![x.clone()])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let (mut x, out) = (operands[0].clone(), &outs[0]);
        let aval = out.with_dtype(self.works_in(out.dtype()));
        if aval != *out {
            x = cx.op1("stablehlo.convert", &[&x], "", &aval);
        }
        let neutral = cx.constant(self.neutral(aval.dtype()), &Aval::scalar(aval.dtype()));
        for distance in distances(aval.shape()[self.axis]) {
            let (low, high) = self.shift(aval.rank(), distance);
            let attrs = format!(
                "edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
                hlo::i64_array(low),
                hlo::i64_array(high),
                hlo::i64_array(vec![0; aval.rank()])
            );
            let before = cx.op1("stablehlo.pad", &[&x, &neutral], &attrs, &aval);
            x = self.join(cx, &before, &x);
        }
        if aval != *out {
            x = cx.op1("stablehlo.convert", &[&x], "", out);
        }
        Ok(vec![x])
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![cumulative(&operands[0], self.axis, self.reverse, self.kind)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let y = bind_one(self, primals)?;
        let Some(t) = &tangents[0] else { return Ok((smallvec![y], smallvec![None])) };
        if self.kind == Running::Sum {
            let t = bind_one(self, std::slice::from_ref(t))?;
            return Ok((smallvec![y], smallvec![Some(t)]));
        }
        let params = [self.kind as i64, self.axis as i64, i64::from(self.reverse)];
        let operands = [primals[0].clone(), t.clone()];
        let ts = fused("cumulative_tangent", &params, &operands, |v| {
            Ok(smallvec![self.tangents(&v[0], &v[1])?])
        })?;
        Ok((smallvec![y], ts.into_iter().map(Some).collect()))
    }

    fn transpose(&self, cts: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        if self.kind != Running::Sum {
            return Err(not_linear(self));
        }
        let back = |ct: &Value| cumsum(ct, self.axis, !self.reverse);
        Ok(smallvec![cts[0].as_ref().map(back).transpose()?])
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        let prim = Cumulative { axis: self.axis + usize::from(self.axis >= axis), ..*self };
        Ok((smallvec![bind_one(&prim, std::slice::from_ref(x))?], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        format!("axis={}, reverse={}", self.axis, self.reverse)
    }
}

macro_rules! running {
    ($($(#[$doc:meta])+ $name:ident $kind:ident)*) => {$(
        $(#[$doc])+
        pub fn $name(x: &Value, axis: usize, reverse: bool) -> Result<Value> {
            bind_one(&Cumulative { kind: Running::$kind, axis, reverse }, std::slice::from_ref(x))
        }
    )*};
}

running! {
    /// The sum of all elements of `x` up to each along `axis`, from the end if `reverse`. f16 and
    /// bf16 are summed in f32. Source: `cumsum_p` in JAX's `lax`.
    ///
    /// # Errors
    /// If the axis is out of range, or the dtype is bool.
    cumsum Sum
    /// The product of all elements of `x` up to each along `axis`, from the end if `reverse`. f16
    /// and bf16 are multiplied in f32. Source: `cumprod_p` in JAX's `lax`.
    ///
    /// # Errors
    /// If the axis is out of range, or the dtype is bool.
    cumprod Prod
    /// The largest of all elements of `x` up to each along `axis`, from the end if `reverse`; NaN
    /// from the first NaN on. The derivative is that of the nearest of equal elements. Source:
    /// `cummax_p` in JAX's `lax`.
    ///
    /// # Errors
    /// If the axis is out of range, or the dtype is complex.
    cummax Max
    /// The smallest of all elements of `x` up to each along `axis`, from the end if `reverse`; NaN
    /// from the first NaN on. The derivative is that of the nearest of equal elements. Source:
    /// `cummin_p` in JAX's `lax`.
    ///
    /// # Errors
    /// If the axis is out of range, or the dtype is complex.
    cummin Min
    /// The logarithm of the sum of the exponentials of all elements of `x` up to each along `axis`,
    /// from the end if `reverse`. f16 and bf16 are worked out in f32. Source: `cumlogsumexp_p` in
    /// JAX's `lax`.
    ///
    /// # Errors
    /// If the axis is out of range, or the dtype is not a real float.
    cumlogsumexp LogSumExp
}
