//! Element-wise primitives of one operand.
//!
//! [`Map1`] holds the rules that all of them share; what differs stands in one row: name,
//! StableHLO op, dtypes, host kernel, derivative, and the transpose of a linear operation.

use super::{bad_dtype, mapped};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host::elementwise::map1;
use crate::backend::host::number::{HostField, HostFloat, HostInt, HostNumber, not_bool};
use crate::dtype::DType;
use crate::error::Result;
use crate::hlo::Val;
use crate::ops::{binary::*, create::full_like};
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use crate::with_dtype;
use smallvec::smallvec;
use std::fmt::Debug;
use std::hash::Hash;

/// Which dtypes an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Real floating point.
    Float,
    /// Real and complex floating point.
    Field,
    /// All but bool.
    Number,
    /// Integers and bool.
    Bits,
    /// Integers.
    Int,
    /// Complex.
    Complex,
    /// All but complex.
    Ordered,
    /// All.
    Any,
}

impl Domain {
    /// Whether the dtype is among them.
    pub fn contains(self, dtype: DType) -> bool {
        match self {
            Domain::Float => dtype.is_float(),
            Domain::Field => dtype.is_differentiable(),
            Domain::Number => dtype != DType::Bool,
            Domain::Bits => dtype == DType::Bool || dtype.is_int(),
            Domain::Int => dtype.is_int(),
            Domain::Complex => dtype.is_complex(),
            Domain::Ordered => !dtype.is_complex(),
            Domain::Any => true,
        }
    }

    /// The dtypes in words.
    pub fn words(self) -> &'static str {
        match self {
            Domain::Float => "real floating point",
            Domain::Field => "real or complex floating point",
            Domain::Number => "numbers",
            Domain::Bits => "integers or bool",
            Domain::Int => "integers",
            Domain::Complex => "complex numbers",
            Domain::Ordered => "real numbers or bool",
            Domain::Any => "all dtypes",
        }
    }
}

/// What an element-wise operation of one operand says of itself; [`Map1`] does the rest.
pub trait Unary: Copy + Debug + Eq + Hash + Send + Sync + 'static {
    /// The printed name.
    const NAME: &'static str;
    /// The StableHLO or CHLO op.
    const HLO: &'static str;
    /// Which dtypes it takes.
    const DOMAIN: Domain;
    /// Whether it costs no more than reading and writing its operand.
    const CHEAP: bool = false;

    /// The result's dtype.
    fn out(dtype: DType) -> DType {
        dtype
    }

    /// The host kernel.
    fn host(x: &HostArray) -> HostArray;

    /// The tangent for operand `x`, result `y` and the operand's tangent `t`; none where the
    /// derivative is zero everywhere.
    fn jvp(x: &Value, y: &Value, t: &Value) -> Result<Tangent>;

    /// The operand's cotangent, if the operation is linear.
    fn transpose(_ct: &Value, _operand: &Aval) -> Option<Result<Value>> {
        None
    }
}

/// A [`Unary`] as a primitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Map1<U>(pub U);

impl<U: Unary> Primitive for Map1<U> {
    fn name(&self) -> &'static str {
        U::NAME
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        if !U::DOMAIN.contains(x.dtype()) {
            return Err(bad_dtype(U::NAME, x, U::DOMAIN.words()));
        }
        Ok(smallvec![x.with_dtype(U::out(x.dtype()))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        Ok(cx.op(U::HLO, operands, "", outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![U::host(&operands[0])])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let y = bind_one(self, primals)?;
        let t = match &tangents[0] {
            Some(t) => U::jvp(&primals[0], &y, t)?,
            None => None,
        };
        Ok((smallvec![y], smallvec![t]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None]) };
        match U::transpose(ct, operands[0].aval()) {
            Some(ct) => Ok(smallvec![Some(ct?)]),
            None => Err(not_linear(self)),
        }
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        Ok((smallvec![bind_one(self, std::slice::from_ref(x))?], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        String::new()
    }

    fn is_cheap(&self) -> bool {
        U::CHEAP
    }
}

/// A kernel over the storage types of a set of [`with_dtype!`].
macro_rules! kernel {
    ($set:ident, $x:ident, $f:expr) => {
        with_dtype!($set, $x.dtype(), T => map1::<T, T>($x, $x.dtype(), $f), else $x.clone())
    };
}

/// One row for each operation: doc, type, function, StableHLO op, domain, host kernel, derivative,
/// and where they apply transpose and result dtype.
macro_rules! unary {
    ($($(#[$doc:meta])+ $ty:ident $name:ident $hlo:literal $domain:ident $(, $cheap:ident)?
        host($hx:ident) $host:expr;
        jvp($x:pat, $y:pat, $t:pat) $jvp:expr;
        $(transpose($ct:pat, $operand:pat) $transpose:expr;)?
        $(out($dtype:ident) $out:expr;)?
    )*) => {$(
        #[doc = concat!("The primitive `", stringify!($name), "`.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $ty;

        impl Unary for $ty {
            const NAME: &'static str = stringify!($name);
            const HLO: &'static str = $hlo;
            const DOMAIN: Domain = Domain::$domain;
            $(const $cheap: bool = true;)?
            fn host($hx: &HostArray) -> HostArray { $host }
            fn jvp($x: &Value, $y: &Value, $t: &Value) -> Result<Tangent> { $jvp }
            $(fn transpose($ct: &Value, $operand: &Aval) -> Option<Result<Value>> { $transpose })?
            $(fn out($dtype: DType) -> DType { $out })?
        }

        $(#[$doc])+
        ///
        /// # Errors
        /// If the operand's dtype is not among those that the operation takes.
        pub fn $name(x: &Value) -> Result<Value> {
            bind_one(&Map1($ty), std::slice::from_ref(x))
        }
    )*};
}

/// `c` in the shape and dtype of `x`.
fn c(x: &Value, value: f64) -> Result<Value> {
    full_like(x, value)
}

unary! {
    /// Element-wise `-x`. Source: StableHLO `negate`.
    Neg neg "stablehlo.negate" Number, CHEAP
        host(x) kernel!(number, x, HostNumber::neg);
        jvp(_, _, t) Ok(Some(neg(t)?));
        transpose(ct, _) Some(neg(ct));
    /// Element-wise sign: -1, 0 or 1 (`x / |x|` for complex); keeps NaN. Source: StableHLO `sign`.
    Sign sign "stablehlo.sign" Number, CHEAP
        host(x) kernel!(number, x, HostNumber::sign);
        jvp(x, y, t) {
            if !x.dtype().is_complex() {
                return Ok(None);
            }
            // Only what `t` has across the direction of `x` turns the result.
            let along = real(&mul(&conj(y)?, t)?)?;
            let along = mul(y, &complex(&along, &full_like(&along, 0.0)?)?)?;
            let length = abs(x)?;
            let length = complex(&length, &full_like(&length, 0.0)?)?;
            Ok(Some(div(&sub(t, &along)?, &length)?))
        };
    /// Element-wise sine. Source: StableHLO `sine`.
    Sin sin "stablehlo.sine" Field
        host(x) kernel!(field, x, HostField::sin);
        jvp(x, _, t) Ok(Some(mul(&cos(x)?, t)?));
    /// Element-wise cosine. Source: StableHLO `cosine`.
    Cos cos "stablehlo.cosine" Field
        host(x) kernel!(field, x, HostField::cos);
        jvp(x, _, t) Ok(Some(neg(&mul(&sin(x)?, t)?)?));
    /// Element-wise tangent. Source: StableHLO `tan`.
    Tan tan "stablehlo.tan" Field
        host(x) kernel!(field, x, HostField::tan);
        jvp(_, y, t) Ok(Some(add(t, &mul(t, &mul(y, y)?)?)?));
    /// Element-wise hyperbolic tangent. Source: StableHLO `tanh`.
    Tanh tanh "stablehlo.tanh" Field
        host(x) kernel!(field, x, HostField::tanh);
        jvp(_, y, t) Ok(Some(sub(t, &mul(t, &mul(y, y)?)?)?));
    /// Element-wise `e^x`. Source: StableHLO `exponential`.
    Exp exp "stablehlo.exponential" Field
        host(x) kernel!(field, x, HostField::exp);
        jvp(_, y, t) Ok(Some(mul(t, y)?));
    /// Element-wise `e^x - 1`, exact near 0. Source: StableHLO `exponential_minus_one`.
    Expm1 expm1 "stablehlo.exponential_minus_one" Field
        host(x) kernel!(field, x, HostField::expm1);
        jvp(_, y, t) Ok(Some(add(t, &mul(t, y)?)?));
    /// Element-wise natural logarithm. Source: StableHLO `log`.
    Log log "stablehlo.log" Field
        host(x) kernel!(field, x, HostField::log);
        jvp(x, _, t) Ok(Some(div(t, x)?));
    /// Element-wise `log(1 + x)`, exact near 0. Source: StableHLO `log_plus_one`.
    Log1p log1p "stablehlo.log_plus_one" Field
        host(x) kernel!(field, x, HostField::log1p);
        jvp(x, _, t) Ok(Some(div(t, &add(x, &c(x, 1.0)?)?)?));
    /// Element-wise `1 / (1 + e^-x)`. Source: StableHLO `logistic`.
    Logistic logistic "stablehlo.logistic" Field
        host(x) kernel!(field, x, HostField::logistic);
        jvp(_, y, t) Ok(Some(mul(t, &sub(y, &mul(y, y)?)?)?));
    /// Element-wise square root. Source: StableHLO `sqrt`.
    Sqrt sqrt "stablehlo.sqrt" Field
        host(x) kernel!(field, x, HostField::sqrt);
        jvp(_, y, t) Ok(Some(div(&mul(t, &c(y, 0.5)?)?, y)?));
    /// Element-wise `1 / sqrt(x)`. Source: StableHLO `rsqrt`.
    Rsqrt rsqrt "stablehlo.rsqrt" Field
        host(x) kernel!(field, x, HostField::rsqrt);
        jvp(x, y, t) Ok(Some(mul(&mul(t, &c(y, -0.5)?)?, &div(y, x)?)?));
    /// Element-wise cube root. Source: StableHLO `cbrt`.
    Cbrt cbrt "stablehlo.cbrt" Float
        host(x) kernel!(float, x, num_traits::Float::cbrt);
        jvp(x, y, t) Ok(Some(div(&mul(t, &div(y, x)?)?, &c(x, 3.0)?)?));
    /// Element-wise error function. Source: CHLO `erf`.
    Erf erf "chlo.erf" Float
        host(x) kernel!(float, x, HostFloat::erf);
        jvp(x, _, t) {
            let slope = mul(&exp(&neg(&mul(x, x)?)?)?, &c(x, std::f64::consts::FRAC_2_SQRT_PI)?)?;
            Ok(Some(mul(t, &slope)?))
        };
    /// Element-wise `1 - erf(x)`, exact for large `x`. Source: CHLO `erfc`.
    Erfc erfc "chlo.erfc" Float
        host(x) kernel!(float, x, HostFloat::erfc);
        jvp(x, _, t) {
            let slope = mul(&exp(&neg(&mul(x, x)?)?)?, &c(x, -std::f64::consts::FRAC_2_SQRT_PI)?)?;
            Ok(Some(mul(t, &slope)?))
        };
    /// Element-wise inverse of the error function. Source: CHLO `erf_inv`.
    ErfInv erf_inv "chlo.erf_inv" Float
        host(x) kernel!(float, x, HostFloat::erf_inv);
        jvp(_, y, t) {
            let slope = mul(&exp(&mul(y, y)?)?, &c(y, 1.0 / std::f64::consts::FRAC_2_SQRT_PI)?)?;
            Ok(Some(mul(t, &slope)?))
        };
    /// Element-wise `log |gamma(x)|`. Source: CHLO `lgamma`.
    Lgamma lgamma "chlo.lgamma" Float
        host(x) kernel!(float, x, HostFloat::lgamma);
        jvp(x, _, t) Ok(Some(mul(t, &digamma(x)?)?));
    /// Element-wise derivative of [`lgamma`]; its own derivative is not known here. Source: CHLO
    /// `digamma`.
    Digamma digamma "chlo.digamma" Float
        host(x) kernel!(float, x, HostFloat::digamma);
        jvp(_, _, _) Err(crate::Error::new(
            crate::ErrorKind::NoRule, "digamma", "has no derivative rule"
        ));
    /// Element-wise largest integer that is not above. Source: StableHLO `floor`.
    Floor floor "stablehlo.floor" Float, CHEAP
        host(x) kernel!(float, x, num_traits::Float::floor);
        jvp(_, _, _) Ok(None);
    /// Element-wise smallest integer that is not below. Source: StableHLO `ceil`.
    Ceil ceil "stablehlo.ceil" Float, CHEAP
        host(x) kernel!(float, x, num_traits::Float::ceil);
        jvp(_, _, _) Ok(None);
    /// Element-wise nearest integer, halves to even (torch's `round`). Source: StableHLO
    /// `round_nearest_even`.
    Round round "stablehlo.round_nearest_even" Float, CHEAP
        host(x) kernel!(float, x, HostFloat::round_even);
        jvp(_, _, _) Ok(None);
    /// Element-wise absolute value; of a complex number its length, a real number. Source:
    /// StableHLO `abs`.
    Abs abs "stablehlo.abs" Number, CHEAP
        host(x) with_dtype!(number, x.dtype(), T => {
            map1::<T, <T as HostNumber>::Real>(x, x.dtype().real(), HostNumber::abs)
        }, else x.clone());
        jvp(x, _, t) {
            if x.dtype().is_complex() {
                return Ok(Some(real(&mul(&conj(&sign(x)?)?, t)?)?));
            }
            Ok(Some(mul(&sign(x)?, t)?))
        };
        out(dtype) dtype.real();
    /// Element-wise complex conjugate. Source: CHLO `conj`.
    Conj conj "chlo.conj" Complex, CHEAP
        host(x) kernel!(complex, x, HostField::conj);
        jvp(_, _, t) Ok(Some(conj(t)?));
        transpose(ct, _) Some(conj(ct));
    /// Element-wise real part. Source: StableHLO `real`.
    Real real "stablehlo.real" Complex, CHEAP
        host(x) with_dtype!(complex, x.dtype(), T => {
            map1::<T, <T as HostNumber>::Real>(x, x.dtype().real(), HostField::real)
        }, else x.clone());
        jvp(_, _, t) Ok(Some(real(t)?));
        transpose(ct, _) Some(full_like(ct, 0.0).and_then(|zero| complex(ct, &zero)));
        out(dtype) dtype.real();
    /// Element-wise imaginary part. Source: StableHLO `imag`.
    Imag imag "stablehlo.imag" Complex, CHEAP
        host(x) with_dtype!(complex, x.dtype(), T => {
            map1::<T, <T as HostNumber>::Real>(x, x.dtype().real(), HostField::imag)
        }, else x.clone());
        jvp(_, _, t) Ok(Some(imag(t)?));
        transpose(ct, _) Some(full_like(ct, 0.0).and_then(|zero| complex(&zero, &neg(ct)?)));
        out(dtype) dtype.real();
    /// Element-wise `not`: of bits for integers, logical for bool. Source: StableHLO `not`.
    Not not "stablehlo.not" Bits, CHEAP
        host(x) match x.dtype() {
            DType::Bool => map1::<u8, u8>(x, DType::Bool, not_bool),
            _ => kernel!(int, x, HostInt::not),
        };
        jvp(_, _, _) Ok(None);
    /// The number of one bits. Source: StableHLO `popcnt`.
    PopCount popcnt "stablehlo.popcnt" Int
        host(x) kernel!(int, x, HostInt::popcnt);
        jvp(_, _, _) Ok(None);
    /// The number of leading zero bits. Source: StableHLO `count_leading_zeros`.
    CountLeadingZeros clz "stablehlo.count_leading_zeros" Int
        host(x) kernel!(int, x, HostInt::clz);
        jvp(_, _, _) Ok(None);
    /// Whether the value is neither infinite nor NaN. Source: StableHLO `is_finite`.
    IsFinite is_finite "stablehlo.is_finite" Float, CHEAP
        host(x) with_dtype!(float, x.dtype(), T => {
            map1::<T, u8>(x, DType::Bool, |v: T| u8::from(num_traits::Float::is_finite(v)))
        }, else x.clone());
        jvp(_, _, _) Ok(None);
        out(_dtype) DType::Bool;
}
