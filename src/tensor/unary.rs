//! Element-wise methods of one operand.
//!
//! Floating functions take integers and bools as `f32`, as torch does. What has no primitive of
//! its own is one program of several, computed in `f32` for half precision.

use super::promotion::{Kind, Operand, elementwise};
use super::wrap;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops::{self, full_like};
use crate::trace::Value;
use crate::trace::cell::Tensor;
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, LN_10, PI};

/// Whether the sign bit is set, also of -0 and NaN.
pub(crate) fn sign_bit(x: &Value) -> Result<Value> {
    let (zero, int) = match x.dtype() {
        DType::F64 => (Scalar::zero(DType::I64), DType::I64),
        DType::F32 => (Scalar::zero(DType::I32), DType::I32),
        DType::F16 | DType::BF16 => (Scalar::zero(DType::I16), DType::I16),
        DType::Bool => return ops::full(Scalar::new(false), x.shape()),
        _ => return ops::lt(x, &full_like(x, 0.0)?),
    };
    let bits = ops::bitcast(x, int)?;
    ops::lt(&bits, &ops::full(zero, bits.shape())?)
}

/// The integer part.
pub(crate) fn truncate(x: &Value) -> Result<Value> {
    ops::select(&ops::lt(x, &full_like(x, 0.0)?)?, &ops::ceil(x)?, &ops::floor(x)?)
}

/// `x` itself if its dtype is exact, else `f(x)`.
fn of_floats(x: &Value, f: impl FnOnce(&Value) -> Result<Value>) -> Result<Value> {
    if x.dtype().is_differentiable() { f(x) } else { Ok(x.clone()) }
}

fn scaled(x: &Value, factor: f64) -> Result<Value> {
    ops::mul(x, &full_like(x, factor)?)
}

/// `sqrt(1 - x^2)`, exact near 1.
fn leg(x: &Value) -> Result<Value> {
    let one = full_like(x, 1.0)?;
    ops::sqrt(&ops::mul(&ops::sub(&one, x)?, &ops::add(&one, x)?)?)
}

fn sinh(x: &Value) -> Result<Value> {
    let ln2 = full_like(x, LN_2)?;
    let up = ops::exp(&ops::sub(x, &ln2)?)?;
    let down = ops::exp(&ops::sub(&ops::neg(x)?, &ln2)?)?;
    let large = ops::sub(&up, &down)?;
    if x.dtype().is_complex() {
        return Ok(large);
    }
    let (zero, one) = (full_like(x, 0.0)?, full_like(x, 1.0)?);
    let is_small = ops::lt(&ops::abs(x)?, &one)?;
    let e = ops::expm1(&ops::select(&is_small, x, &zero)?)?;
    let small = scaled(&ops::add(&e, &ops::div(&e, &ops::add(&e, &one)?)?)?, 0.5)?;
    ops::select(&is_small, &small, &large)
}

fn cosh(x: &Value) -> Result<Value> {
    let ln2 = full_like(x, LN_2)?;
    let up = ops::exp(&ops::sub(x, &ln2)?)?;
    ops::add(&up, &ops::exp(&ops::sub(&ops::neg(x)?, &ln2)?)?)
}

fn asinh(x: &Value) -> Result<Value> {
    let (zero, one) = (full_like(x, 0.0)?, full_like(x, 1.0)?);
    // A sign that is not 0 at 0, so that the derivative is 1 there.
    let sign = ops::select(&ops::lt(x, &zero)?, &ops::neg(&one)?, &one)?;
    let a = ops::mul(&sign, x)?;
    let huge = full_like(x, if x.dtype() == DType::F64 { 1e150 } else { 1e18 })?;
    let is_huge = ops::gt(&a, &huge)?;
    let safe = ops::select(&is_huge, &one, &a)?;
    let square = ops::mul(&safe, &safe)?;
    let root = ops::sqrt(&ops::add(&square, &one)?)?;
    let small = ops::log1p(&ops::add(&safe, &ops::div(&square, &ops::add(&root, &one)?)?)?)?;
    let large = ops::add(&ops::log(&ops::select(&is_huge, &a, &one)?)?, &full_like(x, LN_2)?)?;
    ops::mul(&sign, &ops::select(&is_huge, &large, &small)?)
}

fn acosh(x: &Value) -> Result<Value> {
    let one = full_like(x, 1.0)?;
    let roots = ops::mul(&ops::sqrt(&ops::sub(x, &one)?)?, &ops::sqrt(&ops::add(x, &one)?)?)?;
    ops::log(&ops::add(x, &roots)?)
}

fn softplus(x: &Value) -> Result<Value> {
    let zero = full_like(x, 0.0)?;
    let tail = ops::log1p(&ops::exp(&ops::neg(&ops::abs(x)?)?)?)?;
    ops::add(&ops::max(x, &zero)?, &tail)
}

fn between(x: &Value, low: f64, high: f64) -> Result<Value> {
    super::arithmetic::clamp_values(x, &full_like(x, low)?, &full_like(x, high)?)
}

pub(crate) fn relu(x: &Value) -> Result<Value> {
    let zero = full_like(x, 0.0)?;
    ops::select(&ops::le(x, &zero)?, &zero, x)
}

/// `scale * (x, or alpha * (e^x - 1) below 0)`.
fn elu(x: &Value, alpha: &Value, scale: &Value) -> Result<Value> {
    let zero = full_like(x, 0.0)?;
    let above = ops::gt(x, &zero)?;
    let safe = ops::select(&above, &zero, x)?;
    let below = ops::mul(alpha, &ops::expm1(&safe)?)?;
    ops::mul(scale, &ops::select(&above, x, &below)?)
}

fn gelu_erf(x: &Value) -> Result<Value> {
    let half = scaled(x, 0.5)?;
    let one = full_like(x, 1.0)?;
    ops::mul(&half, &ops::add(&one, &ops::erf(&scaled(x, FRAC_1_SQRT_2)?)?)?)
}

fn gelu_tanh(x: &Value) -> Result<Value> {
    let cube = ops::mul(x, &ops::mul(x, x)?)?;
    let inner = scaled(&ops::add(x, &scaled(&cube, 0.044_715)?)?, (2.0 / PI).sqrt())?;
    let one = full_like(x, 1.0)?;
    ops::mul(&scaled(x, 0.5)?, &ops::add(&one, &ops::tanh(&inner)?)?)
}

fn sinc(x: &Value) -> Result<Value> {
    let is_zero = ops::eq(x, &full_like(x, 0.0)?)?;
    let one = full_like(x, 1.0)?;
    let angle = scaled(&ops::select(&is_zero, &one, x)?, PI)?;
    ops::select(&is_zero, &one, &ops::div(&ops::sin(&angle)?, &angle)?)
}

fn is_inf(x: &Value) -> Result<Value> {
    if !x.dtype().is_float() {
        return ops::full(Scalar::new(false), x.shape());
    }
    ops::eq(&ops::abs(x)?, &full_like(x, f64::INFINITY)?)
}

fn is_finite(x: &Value) -> Result<Value> {
    match x.dtype() {
        d if d.is_complex() => {
            ops::and(&ops::is_finite(&ops::real(x)?)?, &ops::is_finite(&ops::imag(x)?)?)
        }
        d if d.is_float() => ops::is_finite(x),
        _ => ops::full(Scalar::new(true), x.shape()),
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])+ $name:ident $torch:literal $kind:ident |$x:ident| $body:expr;)*) => {
        impl Tensor {$(
            $(#[$doc])+
            ///
            /// # Errors
            /// If the dtype is not among those taken.
            ///
            #[doc = concat!(
                "**Source:** [torch.", $torch, "](https://docs.pytorch.org/docs/stable/generated/torch.",
                $torch, ".html)."
            )]
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                wrap(elementwise(stringify!($name), Kind::$kind, &[], &[self.into()], |v| {
                    let $x = &v[0];
                    $body
                }))
            }
        )*}
    };
}

unary! {
    /// Element-wise `-self`. **Dtypes:** numbers.
    neg "neg" One |x| ops::neg(x);
    /// Element-wise absolute value; of complex numbers the length, a real number.
    abs "abs" One |x| ops::abs(x);
    /// Element-wise -1, 0 or 1; keeps NaN.
    sign "sign" One |x| if x.dtype() == DType::Bool { Ok(x.clone()) } else { ops::sign(x) };
    /// Element-wise `self / |self|`, 0 at 0.
    sgn "sgn" One |x| if x.dtype() == DType::Bool { Ok(x.clone()) } else { ops::sign(x) };
    /// Element-wise `e^self`. **Dtypes:** floating and complex; integers as `f32`.
    exp "exp" OneFloat |x| ops::exp(x);
    /// Element-wise `2^self`. **Dtypes:** floating and complex; integers as `f32`.
    exp2 "exp2" ManyFloat |x| ops::pow(&full_like(x, 2.0)?, x);
    /// Element-wise `e^self - 1`, exact near 0. **Dtypes:** floating; integers as `f32`.
    expm1 "expm1" OneFloat |x| ops::expm1(x);
    /// Element-wise natural logarithm. **Dtypes:** floating and complex; integers as `f32`.
    log "log" OneFloat |x| ops::log(x);
    /// Element-wise logarithm to base 2. **Dtypes:** floating and complex; integers as `f32`.
    log2 "log2" ManyFloat |x| ops::div(&ops::log(x)?, &full_like(x, LN_2)?);
    /// Element-wise logarithm to base 10. **Dtypes:** floating and complex; integers as `f32`.
    log10 "log10" ManyFloat |x| ops::div(&ops::log(x)?, &full_like(x, LN_10)?);
    /// Element-wise `log(1 + self)`, exact near 0. **Dtypes:** floating; integers as `f32`.
    log1p "log1p" OneFloat |x| ops::log1p(x);
    /// Element-wise square root. **Dtypes:** floating and complex; integers as `f32`.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[4i64, 9], [2])?;
    /// assert_eq!(x.sqrt()?.to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), Error>(())
    /// ```
    sqrt "sqrt" OneFloat |x| ops::sqrt(x);
    /// Element-wise `1 / sqrt(self)`. **Dtypes:** floating and complex; integers as `f32`.
    rsqrt "rsqrt" OneFloat |x| ops::rsqrt(x);
    /// Element-wise `self * self`; bools become `i64`.
    square "square" Many |x| {
        let x = if x.dtype() == DType::Bool { ops::convert(x, DType::I64)? } else { x.clone() };
        ops::mul(&x, &x)
    };
    /// Element-wise `1 / self`. **Dtypes:** floating and complex; integers as `f32`.
    reciprocal "reciprocal" ManyFloat |x| ops::div(&full_like(x, 1.0)?, x);
    /// Element-wise sine. **Dtypes:** floating and complex; integers as `f32`.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// assert_eq!(Tensor::zeros([2], DType::I64)?.sin()?.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok::<(), Error>(())
    /// ```
    sin "sin" OneFloat |x| ops::sin(x);
    /// Element-wise cosine. **Dtypes:** floating and complex; integers as `f32`.
    cos "cos" OneFloat |x| ops::cos(x);
    /// Element-wise tangent. **Dtypes:** floating and complex; integers as `f32`.
    tan "tan" OneFloat |x| ops::tan(x);
    /// Element-wise inverse sine. **Dtypes:** floating; integers as `f32`.
    asin "asin" ManyFloat |x| ops::atan2(x, &leg(x)?);
    /// Element-wise inverse cosine. **Dtypes:** floating; integers as `f32`.
    acos "acos" ManyFloat |x| ops::atan2(&leg(x)?, x);
    /// Element-wise inverse tangent. **Dtypes:** floating; integers as `f32`.
    atan "atan" ManyFloat |x| ops::atan2(x, &full_like(x, 1.0)?);
    /// Element-wise hyperbolic sine. **Dtypes:** floating and complex; integers as `f32`.
    sinh "sinh" ManyFloat |x| sinh(x);
    /// Element-wise hyperbolic cosine. **Dtypes:** floating and complex; integers as `f32`.
    cosh "cosh" ManyFloat |x| cosh(x);
    /// Element-wise hyperbolic tangent. **Dtypes:** floating and complex; integers as `f32`.
    tanh "tanh" OneFloat |x| ops::tanh(x);
    /// Element-wise inverse hyperbolic sine. **Dtypes:** floating; integers as `f32`.
    asinh "asinh" ManyFloat |x| asinh(x);
    /// Element-wise inverse hyperbolic cosine. **Dtypes:** floating; integers as `f32`.
    acosh "acosh" ManyFloat |x| acosh(x);
    /// Element-wise inverse hyperbolic tangent. **Dtypes:** floating; integers as `f32`.
    atanh "atanh" ManyFloat |x| {
        scaled(&ops::sub(&ops::log1p(x)?, &ops::log1p(&ops::neg(x)?)?)?, 0.5)
    };
    /// Element-wise error function. **Dtypes:** floating; integers as `f32`.
    erf "erf" OneFloat |x| ops::erf(x);
    /// Element-wise `1 - erf(self)`, exact for large values. **Dtypes:** floating; integers as `f32`.
    erfc "erfc" OneFloat |x| ops::erfc(x);
    /// Element-wise inverse of the error function. **Dtypes:** floating; integers as `f32`.
    erfinv "erfinv" OneFloat |x| ops::erf_inv(x);
    /// Element-wise `log |gamma(self)|`. **Dtypes:** floating; integers as `f32`.
    lgamma "lgamma" OneFloat |x| ops::lgamma(x);
    /// Element-wise derivative of [`Tensor::lgamma`]. **Dtypes:** floating; integers as `f32`.
    digamma "digamma" OneFloat |x| ops::digamma(x);
    /// Element-wise `1 / (1 + e^-self)`. **Dtypes:** floating and complex; integers as `f32`.
    sigmoid "sigmoid" OneFloat |x| ops::logistic(x);
    /// Element-wise `sin(pi self) / (pi self)`, 1 at 0. **Dtypes:** floating; integers as `f32`.
    sinc "sinc" ManyFloat |x| sinc(x);
    /// Element-wise `self`, or 0 below 0; NaN stays. The derivative at 0 is 0.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[-1.0f32, 0.0, 2.0], [3])?;
    /// assert_eq!(x.relu()?.to_vec::<f32>()?, [0.0, 0.0, 2.0]);
    /// # Ok::<(), Error>(())
    /// ```
    relu "nn.functional.relu" Many |x| relu(x);
    /// Element-wise `self` between 0 and 6.
    relu6 "nn.functional.relu6" Many |x| between(x, 0.0, 6.0);
    /// Scaled exponential linear unit: 1.0507 times `self`, or 1.6733 (e^self - 1) below 0.
    selu "nn.functional.selu" ManyFloat |x| {
        let alpha = full_like(x, 1.673_263_242_354_377_2)?;
        elu(x, &alpha, &full_like(x, 1.050_700_987_355_480_5)?)
    };
    /// Element-wise `self * sigmoid(self)`, also named swish.
    silu "nn.functional.silu" ManyFloat |x| ops::mul(x, &ops::logistic(x)?);
    /// Element-wise `self * tanh(log(1 + e^self))`.
    mish "nn.functional.mish" ManyFloat |x| ops::mul(x, &ops::tanh(&softplus(x)?)?);
    /// Element-wise `log(sigmoid(self))` without overflow on the way.
    logsigmoid "nn.functional.logsigmoid" ManyFloat |x| ops::neg(&softplus(&ops::neg(x)?)?);
    /// Element-wise `self / 6 + 1/2` between 0 and 1.
    hardsigmoid "nn.functional.hardsigmoid" ManyFloat |x| {
        scaled(&between(&ops::add(x, &full_like(x, 3.0)?)?, 0.0, 6.0)?, 1.0 / 6.0)
    };
    /// Element-wise `self * hardsigmoid(self)`.
    hardswish "nn.functional.hardswish" ManyFloat |x| {
        let gate = scaled(&between(&ops::add(x, &full_like(x, 3.0)?)?, 0.0, 6.0)?, 1.0 / 6.0)?;
        ops::mul(x, &gate)
    };
    /// Element-wise `self / (1 + |self|)`.
    softsign "nn.functional.softsign" ManyFloat |x| {
        ops::div(x, &ops::add(&ops::abs(x)?, &full_like(x, 1.0)?)?)
    };
    /// Element-wise `self - tanh(self)`.
    tanhshrink "nn.functional.tanhshrink" ManyFloat |x| ops::sub(x, &ops::tanh(x)?);
    /// Element-wise largest integer that is not above; integers stay as they are.
    floor "floor" One |x| of_floats(x, ops::floor);
    /// Element-wise smallest integer that is not below; integers stay as they are.
    ceil "ceil" One |x| of_floats(x, ops::ceil);
    /// Element-wise nearest integer, halves to even; integers stay as they are.
    round "round" One |x| of_floats(x, ops::round);
    /// Element-wise integer part; integers stay as they are.
    trunc "trunc" Many |x| of_floats(x, truncate);
    /// Element-wise `self - trunc(self)`. **Dtypes:** floating.
    frac "frac" Many |x| ops::sub(x, &truncate(x)?);
    /// Whether the value is not a number, as bool.
    isnan "isnan" Many |x| ops::ne(x, x);
    /// Whether the value is infinite, as bool.
    isinf "isinf" Many |x| is_inf(x);
    /// Whether the value is neither infinite nor NaN, as bool.
    isfinite "isfinite" Many |x| is_finite(x);
    /// Whether the sign bit is set, also of -0, as bool.
    signbit "signbit" Many |x| sign_bit(x);
    /// Whether the value is zero, as bool.
    logical_not "logical_not" Many |x| ops::not(&ops::convert(x, DType::Bool)?);
    /// Element-wise `not` of bits or bools. **Dtypes:** integers and bool.
    bitwise_not "bitwise_not" One |x| ops::not(x);
    /// Element-wise complex conjugate; real numbers stay as they are.
    conj "conj" One |x| if x.dtype().is_complex() { ops::conj(x) } else { Ok(x.clone()) };
    /// Element-wise real part; real numbers stay as they are. **Unlike torch:** no view.
    real "real" One |x| if x.dtype().is_complex() { ops::real(x) } else { Ok(x.clone()) };
    /// Element-wise imaginary part. **Dtypes:** complex. **Unlike torch:** no view.
    imag "imag" One |x| ops::imag(x);
    /// Element-wise radians from degrees.
    deg2rad "deg2rad" ManyFloat |x| scaled(x, PI / 180.0);
    /// Element-wise degrees from radians.
    rad2deg "rad2deg" ManyFloat |x| scaled(x, 180.0 / PI);
}

/// How [`Tensor::gelu`] computes the normal distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approximate {
    /// By the error function.
    #[default]
    None,
    /// By `tanh` of a cubic.
    Tanh,
}

/// Replacements of [`Tensor::nan_to_num`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NanToNum {
    /// For NaN.
    pub nan: f64,
    /// For infinity; none for the dtype's largest number.
    pub posinf: Option<f64>,
    /// For minus infinity; none for the dtype's smallest number.
    pub neginf: Option<f64>,
}

impl Tensor {
    #[track_caller]
    fn with_numbers(
        &self,
        op: &'static str,
        numbers: &[f64],
        f: impl FnOnce(&[Value]) -> Result<Value>,
    ) -> Result<Tensor> {
        let numbers = numbers.iter().map(|&n| Operand::from(n));
        let operands: Vec<Operand<'_>> = std::iter::once(self.into()).chain(numbers).collect();
        wrap(elementwise(op, Kind::Many, &[], &operands, f))
    }

    /// Gaussian error linear unit: `self` times the normal distribution at `self`.
    ///
    /// **Source:** [torch.nn.functional.gelu](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.gelu.html).
    #[track_caller]
    pub fn gelu(&self, approximate: Approximate) -> Result<Tensor> {
        let params = [i64::from(approximate == Approximate::Tanh)];
        wrap(elementwise("gelu", Kind::ManyFloat, &params, &[self.into()], |v| match approximate {
            Approximate::None => gelu_erf(&v[0]),
            Approximate::Tanh => gelu_tanh(&v[0]),
        }))
    }

    /// `self`, or `negative_slope * self` below 0 (torch's default slope is 0.01).
    ///
    /// **Source:** [torch.nn.functional.leaky_relu](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.leaky_relu.html).
    #[track_caller]
    pub fn leaky_relu(&self, negative_slope: f64) -> Result<Tensor> {
        self.with_numbers("leaky_relu", &[negative_slope], |v| {
            let above = ops::gt(&v[0], &full_like(&v[0], 0.0)?)?;
            ops::select(&above, &v[0], &ops::mul(&v[0], &v[1])?)
        })
    }

    /// `self`, or `alpha * (e^self - 1)` below 0 (torch's default alpha is 1).
    ///
    /// **Source:** [torch.nn.functional.elu](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.elu.html).
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        self.with_numbers("elu", &[alpha], |v| elu(&v[0], &v[1], &full_like(&v[0], 1.0)?))
    }

    /// `self`, or `alpha * (e^(self / alpha) - 1)` below 0.
    ///
    /// **Source:** [torch.nn.functional.celu](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.celu.html).
    #[track_caller]
    pub fn celu(&self, alpha: f64) -> Result<Tensor> {
        self.with_numbers("celu", &[alpha], |v| {
            let zero = full_like(&v[0], 0.0)?;
            let above = ops::gt(&v[0], &zero)?;
            let safe = ops::select(&above, &zero, &ops::div(&v[0], &v[1])?)?;
            ops::select(&above, &v[0], &ops::mul(&v[1], &ops::expm1(&safe)?)?)
        })
    }

    /// `log(1 + e^(beta self)) / beta`, and `self` itself where `beta self > threshold` (torch's
    /// defaults are 1 and 20).
    ///
    /// **Source:** [torch.nn.functional.softplus](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softplus.html).
    #[track_caller]
    pub fn softplus(&self, beta: f64, threshold: f64) -> Result<Tensor> {
        self.with_numbers("softplus", &[beta, threshold], |v| {
            let scaled = ops::mul(&v[0], &v[1])?;
            let linear = ops::gt(&scaled, &v[2])?;
            ops::select(&linear, &v[0], &ops::div(&softplus(&scaled)?, &v[1])?)
        })
    }

    /// `self` between `min` and `max` (torch's defaults are -1 and 1).
    ///
    /// **Source:** [torch.nn.functional.hardtanh](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.hardtanh.html).
    #[track_caller]
    pub fn hardtanh(&self, min: f64, max: f64) -> Result<Tensor> {
        self.with_numbers("hardtanh", &[min, max], |v| {
            super::arithmetic::clamp_values(&v[0], &v[1], &v[2])
        })
    }

    /// `self` where it is above `threshold`, else `value`.
    ///
    /// **Source:** [torch.nn.functional.threshold](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.threshold.html).
    #[track_caller]
    pub fn threshold(&self, threshold: f64, value: f64) -> Result<Tensor> {
        self.with_numbers("threshold", &[threshold, value], |v| {
            ops::select(&ops::le(&v[0], &v[1])?, &v[2], &v[0])
        })
    }

    /// `log(self / (1 - self))`; with `eps`, of `self` kept between `eps` and `1 - eps`.
    ///
    /// **Source:** [torch.logit](https://docs.pytorch.org/docs/stable/generated/torch.logit.html).
    #[track_caller]
    pub fn logit(&self, eps: Option<f64>) -> Result<Tensor> {
        let params = [i64::from(eps.is_some())];
        let operands = [self.into(), Operand::from(eps.unwrap_or(0.0))];
        wrap(elementwise("logit", Kind::ManyFloat, &params, &operands, |v| {
            let one = full_like(&v[0], 1.0)?;
            let x = match eps {
                Some(_) => super::arithmetic::clamp_values(&v[0], &v[1], &ops::sub(&one, &v[1])?)?,
                None => v[0].clone(),
            };
            ops::log(&ops::div(&x, &ops::sub(&one, &x)?)?)
        }))
    }

    /// `self` with numbers in place of NaN and of the infinities; integers stay as they are.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[f32::NAN, f32::INFINITY, 1.0], [3])?;
    /// let y = x.nan_to_num(Default::default())?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, f32::MAX, 1.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.nan_to_num](https://docs.pytorch.org/docs/stable/generated/torch.nan_to_num.html).
    #[track_caller]
    pub fn nan_to_num(&self, options: NanToNum) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return wrap(self.value());
        }
        let largest = match self.dtype() {
            DType::F64 => f64::MAX,
            DType::F16 => half::f16::MAX.to_f64(),
            DType::BF16 => half::bf16::MAX.to_f64(),
            _ => f64::from(f32::MAX),
        };
        let numbers =
            [options.nan, options.posinf.unwrap_or(largest), options.neginf.unwrap_or(-largest)];
        self.with_numbers("nan_to_num", &numbers, |v| {
            let x = &v[0];
            let out = ops::select(&ops::ne(x, x)?, &v[1], x)?;
            let out = ops::select(&ops::eq(x, &full_like(x, f64::INFINITY)?)?, &v[2], &out)?;
            ops::select(&ops::eq(x, &full_like(x, f64::NEG_INFINITY)?)?, &v[3], &out)
        })
    }
}
