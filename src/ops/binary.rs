//! Element-wise primitives of two operands of one dtype and one shape.
//!
//! [`Map2`] holds the rules that all of them share; what differs stands in one row.

use super::shape::align_batch;
use super::{Domain, bad_dtype, mismatch};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host::elementwise::map2;
use crate::backend::host::number::{HostFloat, HostInt, HostNumber, HostReal};
use crate::dtype::DType;
use crate::error::Result;
use crate::hlo::Val;
use crate::ops::compare::{eq, lt, select};
use crate::ops::create::full_like;
use crate::ops::elementwise::*;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use crate::with_dtype;
use smallvec::smallvec;
use std::fmt::Debug;
use std::hash::Hash;

/// What an element-wise operation of two operands says of itself; [`Map2`] does the rest.
pub trait Binary: Copy + Debug + Eq + Hash + Send + Sync + 'static {
    /// The printed name.
    const NAME: &'static str;
    /// The StableHLO or CHLO op.
    const HLO: &'static str;
    /// Which dtypes it takes.
    const DOMAIN: Domain;
    /// Whether it costs no more than reading its operands and writing its result.
    const CHEAP: bool = false;

    /// The result's dtype.
    fn out(dtype: DType) -> DType {
        dtype
    }

    /// The host kernel.
    fn host(x: &HostArray, y: &HostArray) -> HostArray;

    /// What the tangent `t` of `x` adds to the result's; `z` is the result.
    fn jvp_lhs(x: &Value, y: &Value, z: &Value, t: &Value) -> Result<Tangent>;

    /// What the tangent `t` of `y` adds to the result's; `z` is the result.
    fn jvp_rhs(x: &Value, y: &Value, z: &Value, t: &Value) -> Result<Tangent>;

    /// The cotangents of the linear operands, if the operation is linear in them.
    fn transpose(_ct: &Value, _x: &Operand, _y: &Operand) -> Option<Result<(Tangent, Tangent)>> {
        None
    }
}

/// A [`Binary`] as a primitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Map2<B>(pub B);

impl<B: Binary> Primitive for Map2<B> {
    fn name(&self) -> &'static str {
        B::NAME
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (x, y) = (&operands[0], &operands[1]);
        if x != y {
            return Err(mismatch(B::NAME, x, y));
        }
        if !B::DOMAIN.contains(x.dtype()) {
            return Err(bad_dtype(B::NAME, x, B::DOMAIN.words()));
        }
        Ok(smallvec![x.with_dtype(B::out(x.dtype()))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        Ok(cx.op(B::HLO, operands, "", outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![B::host(&operands[0], &operands[1])])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let z = bind_one(self, primals)?;
        let (x, y) = (&primals[0], &primals[1]);
        let lhs = tangents[0].as_ref().map(|t| B::jvp_lhs(x, y, &z, t)).transpose()?.flatten();
        let rhs = tangents[1].as_ref().map(|t| B::jvp_rhs(x, y, &z, t)).transpose()?.flatten();
        let t = match (lhs, rhs) {
            (Some(a), Some(b)) => Some(add(&a, &b)?),
            (a, b) => a.or(b),
        };
        Ok((smallvec![z], smallvec![t]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None, None]) };
        match B::transpose(ct, &operands[0], &operands[1]) {
            Some(cts) => cts.map(|(x, y)| smallvec![x, y]),
            None => Err(not_linear(self)),
        }
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
        B::CHEAP
    }
}

macro_rules! kernel {
    ($set:ident, $x:ident, $y:ident, $f:expr) => {
        with_dtype!($set, $x.dtype(), T => map2::<T, T, T>($x, $y, $x.dtype(), $f), else $x.clone())
    };
}

/// A kernel of bits: `$f` for integers, and for bool on its bytes 0 and 1.
macro_rules! bits {
    ($x:ident, $y:ident, $f:path) => {
        match $x.dtype() {
            DType::Bool => map2::<u8, u8, u8>($x, $y, DType::Bool, $f),
            _ => kernel!(int, $x, $y, $f),
        }
    };
}

/// One row for each operation.
macro_rules! binary {
    ($($(#[$doc:meta])+ $ty:ident $name:ident $hlo:literal $domain:ident $(, $cheap:ident)?
        host($hx:ident, $hy:ident) $host:expr;
        lhs($lx:pat, $ly:pat, $lz:pat, $lt:pat) $lhs:expr;
        rhs($rx:pat, $ry:pat, $rz:pat, $rt:pat) $rhs:expr;
        $(transpose($ct:pat, $tx:pat, $ty_:pat) $transpose:expr;)?
        $(out($dtype:ident) $out:expr;)?
    )*) => {$(
        #[doc = concat!("The primitive `", stringify!($name), "`.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $ty;

        impl Binary for $ty {
            const NAME: &'static str = stringify!($name);
            const HLO: &'static str = $hlo;
            const DOMAIN: Domain = Domain::$domain;
            $(const $cheap: bool = true;)?
            fn host($hx: &HostArray, $hy: &HostArray) -> HostArray { $host }
            fn jvp_lhs($lx: &Value, $ly: &Value, $lz: &Value, $lt: &Value) -> Result<Tangent> { $lhs }
            fn jvp_rhs($rx: &Value, $ry: &Value, $rz: &Value, $rt: &Value) -> Result<Tangent> { $rhs }
            $(fn transpose($ct: &Value, $tx: &Operand, $ty_: &Operand)
                -> Option<Result<(Tangent, Tangent)>> { $transpose })?
            $(fn out($dtype: DType) -> DType { $out })?
        }

        $(#[$doc])+
        ///
        /// # Errors
        /// If the operands differ in dtype or shape, or the dtype is not among those taken.
        pub fn $name(x: &Value, y: &Value) -> Result<Value> {
            bind_one(&Map2($ty), &[x.clone(), y.clone()])
        }
    )*};
}

/// `f(ct)` if the operand's cotangent is asked for.
fn ask(operand: &Operand, f: impl FnOnce() -> Result<Value>) -> Result<Tangent> {
    if operand.is_linear() { f().map(Some) } else { Ok(None) }
}

/// The share of `t` of the operand that was chosen by `max` or `min`: all of it if the operand is
/// the result alone, half of it at a tie, as in JAX and torch.
fn chosen(operand: &Value, other: &Value, z: &Value, t: &Value) -> Result<Tangent> {
    let share = select(&eq(operand, z)?, &full_like(t, 1.0)?, &full_like(t, 0.0)?)?;
    let tie = select(&eq(operand, other)?, &full_like(t, 0.5)?, &full_like(t, 1.0)?)?;
    Ok(Some(mul(t, &mul(&share, &tie)?)?))
}

binary! {
    /// Element-wise sum; `or` for bool. Source: StableHLO `add`.
    Add add "stablehlo.add" Any, CHEAP
        host(x, y) match x.dtype() {
            DType::Bool => map2::<u8, u8, u8>(x, y, DType::Bool, HostInt::or),
            _ => kernel!(number, x, y, HostNumber::add),
        };
        lhs(_, _, _, t) Ok(Some(t.clone()));
        rhs(_, _, _, t) Ok(Some(t.clone()));
        transpose(ct, x, y) Some((|| Ok((ask(x, || Ok(ct.clone()))?, ask(y, || Ok(ct.clone()))?)))());
    /// Element-wise difference. Source: StableHLO `subtract`.
    Sub sub "stablehlo.subtract" Number, CHEAP
        host(x, y) kernel!(number, x, y, HostNumber::sub);
        lhs(_, _, _, t) Ok(Some(t.clone()));
        rhs(_, _, _, t) Ok(Some(neg(t)?));
        transpose(ct, x, y) Some((|| Ok((ask(x, || Ok(ct.clone()))?, ask(y, || neg(ct))?)))());
    /// Element-wise product; `and` for bool. Source: StableHLO `multiply`.
    Mul mul "stablehlo.multiply" Any, CHEAP
        host(x, y) match x.dtype() {
            DType::Bool => map2::<u8, u8, u8>(x, y, DType::Bool, HostInt::and),
            _ => kernel!(number, x, y, HostNumber::mul),
        };
        lhs(_, y, _, t) Ok(Some(mul(t, y)?));
        rhs(x, _, _, t) Ok(Some(mul(x, t)?));
        transpose(ct, x, y) match (x, y) {
            (Operand::Linear(_), Operand::Known(y)) => Some(mul(ct, y).map(|c| (Some(c), None))),
            (Operand::Known(x), Operand::Linear(_)) => Some(mul(x, ct).map(|c| (None, Some(c)))),
            _ => None,
        };
    /// Element-wise quotient; of integers rounded towards zero. Source: StableHLO `divide`.
    Div div "stablehlo.divide" Number, CHEAP
        host(x, y) kernel!(number, x, y, HostNumber::div);
        lhs(_, y, _, t) Ok(Some(div(t, y)?));
        rhs(_, y, z, t) Ok(Some(neg(&mul(t, &div(z, y)?)?)?));
        transpose(ct, x, y) match (x, y) {
            (Operand::Linear(_), Operand::Known(y)) => Some(div(ct, y).map(|c| (Some(c), None))),
            _ => None,
        };
    /// Element-wise remainder with the sign of `x` (C's `fmod`). Source: StableHLO `remainder`.
    Rem rem "stablehlo.remainder" Number
        host(x, y) kernel!(real, x, y, HostReal::rem);
        lhs(_, _, _, t) Ok(Some(t.clone()));
        rhs(x, y, _, t) {
            let quotient = div(x, y)?;
            let whole = mul(&sign(&quotient)?, &floor(&abs(&quotient)?)?)?;
            Ok(Some(neg(&mul(t, &whole)?)?))
        };
    /// Element-wise maximum; NaN wins; `or` for bool. Source: StableHLO `maximum`.
    Max max "stablehlo.maximum" Ordered, CHEAP
        host(x, y) match x.dtype() {
            DType::Bool => map2::<u8, u8, u8>(x, y, DType::Bool, HostInt::or),
            _ => kernel!(real, x, y, HostReal::maximum),
        };
        lhs(x, y, z, t) chosen(x, y, z, t);
        rhs(x, y, z, t) chosen(y, x, z, t);
    /// Element-wise minimum; NaN wins; `and` for bool. Source: StableHLO `minimum`.
    Min min "stablehlo.minimum" Ordered, CHEAP
        host(x, y) match x.dtype() {
            DType::Bool => map2::<u8, u8, u8>(x, y, DType::Bool, HostInt::and),
            _ => kernel!(real, x, y, HostReal::minimum),
        };
        lhs(x, y, z, t) chosen(x, y, z, t);
        rhs(x, y, z, t) chosen(y, x, z, t);
    /// Element-wise `x` to the power `y`; the derivative in `y` is 0 where `x` is 0 and `y` is not
    /// negative. Source: StableHLO `power`.
    Pow pow "stablehlo.power" Number
        host(x, y) kernel!(number, x, y, HostNumber::pow);
        lhs(x, y, _, t) {
            let zero = full_like(y, 0.0)?;
            let one = full_like(y, 1.0)?;
            let power = select(&eq(y, &zero)?, &one, &sub(y, &one)?)?;
            Ok(Some(mul(t, &mul(y, &pow(x, &power)?)?)?))
        };
        rhs(x, y, z, t) {
            let zero = full_like(x, 0.0)?;
            let at_zero = eq(x, &zero)?;
            let safe = select(&at_zero, &full_like(x, 1.0)?, x)?;
            let slope = mul(&log(&safe)?, z)?;
            let slope = if x.dtype().is_complex() {
                slope
            } else {
                let edge = select(&lt(y, &zero)?, &full_like(x, f64::NAN)?, &zero)?;
                select(&at_zero, &edge, &slope)?
            };
            Ok(Some(mul(t, &slope)?))
        };
    /// Element-wise angle of the point `(y, x)`, in `-pi..pi`. Source: StableHLO `atan2`.
    Atan2 atan2 "stablehlo.atan2" Float
        host(y, x) kernel!(float, y, x, num_traits::Float::atan2);
        lhs(y, x, _, t) Ok(Some(mul(t, &div(x, &add(&mul(x, x)?, &mul(y, y)?)?)?)?));
        rhs(y, x, _, t) Ok(Some(neg(&mul(t, &div(y, &add(&mul(x, x)?, &mul(y, y)?)?)?)?)?));
    /// The next representable number after `x` towards `y`. Source: CHLO `next_after`.
    NextAfter next_after "chlo.next_after" Float
        host(x, y) kernel!(float, x, y, HostFloat::next_after);
        lhs(_, _, _, _) Ok(None);
        rhs(_, _, _, _) Ok(None);
    /// Element-wise complex number of real and imaginary parts. Source: StableHLO `complex`.
    Complex complex "stablehlo.complex" Float, CHEAP
        host(x, y) match x.dtype() {
            DType::F64 => map2::<f64, f64, num_complex::Complex<f64>>(
                x, y, DType::C128, num_complex::Complex::new),
            _ => map2::<f32, f32, num_complex::Complex<f32>>(
                x, y, DType::C64, num_complex::Complex::new),
        };
        lhs(_, _, _, t) Ok(Some(complex(t, &full_like(t, 0.0)?)?));
        rhs(_, _, _, t) Ok(Some(complex(&full_like(t, 0.0)?, t)?));
        transpose(ct, x, y) Some((|| {
            Ok((ask(x, || real(ct))?, ask(y, || imag(&neg(ct)?))?))
        })());
        out(dtype) dtype.complex();
    /// Element-wise `and` of bits or bools. Source: StableHLO `and`.
    And and "stablehlo.and" Bits, CHEAP
        host(x, y) bits!(x, y, HostInt::and);
        lhs(_, _, _, _) Ok(None);
        rhs(_, _, _, _) Ok(None);
    /// Element-wise `or` of bits or bools. Source: StableHLO `or`.
    Or or "stablehlo.or" Bits, CHEAP
        host(x, y) bits!(x, y, HostInt::or);
        lhs(_, _, _, _) Ok(None);
        rhs(_, _, _, _) Ok(None);
    /// Element-wise exclusive `or` of bits or bools. Source: StableHLO `xor`.
    Xor xor "stablehlo.xor" Bits, CHEAP
        host(x, y) bits!(x, y, HostInt::xor);
        lhs(_, _, _, _) Ok(None);
        rhs(_, _, _, _) Ok(None);
    /// Element-wise shift to the left; 0 from the width on. Source: StableHLO `shift_left`.
    ShiftLeft shift_left "stablehlo.shift_left" Int, CHEAP
        host(x, y) kernel!(int, x, y, HostInt::shift_left);
        lhs(_, _, _, _) Ok(None);
        rhs(_, _, _, _) Ok(None);
    /// Element-wise shift to the right that brings in zeros. Source: StableHLO
    /// `shift_right_logical`.
    ShiftRightLogical shift_right_logical "stablehlo.shift_right_logical" Int, CHEAP
        host(x, y) kernel!(int, x, y, HostInt::shift_right_logical);
        lhs(_, _, _, _) Ok(None);
        rhs(_, _, _, _) Ok(None);
    /// Element-wise shift to the right that brings in the sign. Source: StableHLO
    /// `shift_right_arithmetic`.
    ShiftRightArithmetic shift_right_arithmetic "stablehlo.shift_right_arithmetic" Int, CHEAP
        host(x, y) kernel!(int, x, y, HostInt::shift_right_arithmetic);
        lhs(_, _, _, _) Ok(None);
        rhs(_, _, _, _) Ok(None);
}
