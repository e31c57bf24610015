//! Functions of one element: what `add`, `erf` or `popcnt` mean on the host for each dtype.
//!
//! | trait | for |
//! |---|---|
//! | [`HostNumber`] | integers, floats, complex |
//! | [`HostReal`] | integers, floats |
//! | [`HostInt`] | integers, and `bool` as `u8` where it says so |
//! | [`HostField`] | floats, complex |
//! | [`HostFloat`] | floats |
//!
//! f16 and bf16 compute in f32 and round once. Call them by path
//! (`map1(x, dtype, HostField::exp)`): many names are those of other traits too.

use super::elementwise::Data;
use half::{bf16, f16};
use num_complex::Complex;
use num_traits::{Float, PrimInt};

/// Arithmetic of all numbers; integers wrap around.
pub trait HostNumber: Data + PartialEq {
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The type of the absolute value.
    type Real: Data;
    /// The sum.
    fn add(self, y: Self) -> Self;
    /// The difference.
    fn sub(self, y: Self) -> Self;
    /// The product.
    fn mul(self, y: Self) -> Self;
    /// The quotient. Integers truncate; by zero all bits are ones; `MIN / -1` is `MIN`.
    fn div(self, y: Self) -> Self;
    /// The negative.
    fn neg(self) -> Self;
    /// The absolute value; that of an integer's `MIN` is `MIN`.
    fn abs(self) -> Self::Real;
    /// The sign: -1, 0 or 1; a zero and a NaN stay as they are; `x / |x|` for complex.
    fn sign(self) -> Self;
    /// The power; for integers with a negative exponent that of the rounded reciprocal.
    fn pow(self, y: Self) -> Self;
}

/// What ordered numbers have besides.
pub trait HostReal: HostNumber + PartialOrd {
    /// The remainder with the sign of `self`; by integer zero it is `self`.
    fn rem(self, y: Self) -> Self;

    /// The larger one; NaN if either is.
    #[inline]
    fn maximum(self, y: Self) -> Self {
        if self > y || is_nan(self) { self } else { y }
    }

    /// The smaller one; NaN if either is.
    #[inline]
    fn minimum(self, y: Self) -> Self {
        if self < y || is_nan(self) { self } else { y }
    }
}

/// Whether `x` is NaN, for any element type.
#[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
pub(crate) fn is_nan<T: PartialEq + Copy>(x: T) -> bool {
    x != x
}

/// The functions of bits. Those without a word on `bool` are not for it.
pub trait HostInt: HostReal {
    /// Bits that both have; for `bool` the conjunction.
    fn and(self, y: Self) -> Self;
    /// Bits that either has; for `bool` the disjunction.
    fn or(self, y: Self) -> Self;
    /// Bits that only one has; for `bool` whether they differ.
    fn xor(self, y: Self) -> Self;
    /// All bits inverted; for `bool` use [`not_bool`].
    fn not(self) -> Self;
    /// Shifted left; 0 from the width on.
    fn shift_left(self, by: Self) -> Self;
    /// Shifted right with zeros; 0 from the width on.
    fn shift_right_logical(self, by: Self) -> Self;
    /// Shifted right with the sign bit; only the sign from the width on.
    fn shift_right_arithmetic(self, by: Self) -> Self;
    /// The number of ones.
    fn popcnt(self) -> Self;
    /// The number of leading zeros.
    fn clz(self) -> Self;
}

/// The negation of a `bool` in storage.
pub fn not_bool(x: u8) -> u8 {
    x ^ 1
}

macro_rules! int {
    ($signed:ident: $($ty:ident $s:ident $u:ident),*) => {$(
        impl HostNumber for $ty {
            const ZERO: $ty = 0;
            const ONE: $ty = 1;
            type Real = $ty;
            #[inline]
            fn add(self, y: $ty) -> $ty {
                self.wrapping_add(y)
            }
            #[inline]
            fn sub(self, y: $ty) -> $ty {
                self.wrapping_sub(y)
            }
            #[inline]
            fn mul(self, y: $ty) -> $ty {
                self.wrapping_mul(y)
            }
            #[inline]
            fn div(self, y: $ty) -> $ty {
                if y == 0 { !0 } else { self.wrapping_div(y) }
            }
            #[inline]
            fn neg(self) -> $ty {
                self.wrapping_neg()
            }
            #[inline]
            fn abs(self) -> $ty {
                int!(@$signed self.wrapping_abs(), self)
            }
            #[inline]
            fn sign(self) -> $ty {
                int!(@$signed self.signum(), self.min(1))
            }
            #[inline]
            fn pow(self, y: $ty) -> $ty {
                int!(@$signed pow_signed(self, y), pow_wrapping(self, y))
            }
        }

        impl HostReal for $ty {
            #[inline]
            fn rem(self, y: $ty) -> $ty {
                if y == 0 { self } else { self.wrapping_rem(y) }
            }
        }

        impl HostInt for $ty {
            #[inline]
            fn and(self, y: $ty) -> $ty {
                self & y
            }
            #[inline]
            fn or(self, y: $ty) -> $ty {
                self | y
            }
            #[inline]
            fn xor(self, y: $ty) -> $ty {
                self ^ y
            }
            #[inline]
            fn not(self) -> $ty {
                !self
            }
            #[inline]
            fn shift_left(self, by: $ty) -> $ty {
                if (by as u64) < $ty::BITS as u64 { self << by } else { 0 }
            }
            #[inline]
            fn shift_right_logical(self, by: $ty) -> $ty {
                let bits = self as $u;
                if (by as u64) < $ty::BITS as u64 { (bits >> by) as $ty } else { 0 }
            }
            #[inline]
            fn shift_right_arithmetic(self, by: $ty) -> $ty {
                ((self as $s) >> (by as u64).min($ty::BITS as u64 - 1)) as $ty
            }
            #[inline]
            fn popcnt(self) -> $ty {
                self.count_ones() as $ty
            }
            #[inline]
            fn clz(self) -> $ty {
                self.leading_zeros() as $ty
            }
        }
    )*};
    (@signed $then:expr, $otherwise:expr) => { $then };
    (@unsigned $then:expr, $otherwise:expr) => { $otherwise };
}

int!(signed: i8 i8 u8, i16 i16 u16, i32 i32 u32, i64 i64 u64);
int!(unsigned: u8 i8 u8, u16 i16 u16, u32 i32 u32, u64 i64 u64);

/// `x` to the power of `y >= 0`, wrapping around.
fn pow_wrapping<T: HostInt + PrimInt>(mut x: T, mut y: T) -> T {
    let mut out = T::ONE;
    while y != T::ZERO {
        if HostInt::and(y, T::ONE) == T::ONE {
            out = HostNumber::mul(out, x);
        }
        x = HostNumber::mul(x, x);
        y = y.unsigned_shr(1);
    }
    out
}

fn pow_signed<T: HostInt + PrimInt>(x: T, y: T) -> T {
    if y >= T::ZERO {
        return pow_wrapping(x, y);
    }
    let one = T::ONE;
    if x == one || (x == HostNumber::neg(one) && HostInt::and(y, one) == T::ZERO) {
        one
    } else if x == HostNumber::neg(one) {
        x
    } else {
        T::ZERO
    }
}

macro_rules! float_number {
    ($($ty:ident, $zero:expr, $one:expr);*) => {$(
        impl HostNumber for $ty {
            const ZERO: $ty = $zero;
            const ONE: $ty = $one;
            type Real = $ty;
            #[inline]
            fn add(self, y: $ty) -> $ty {
                self + y
            }
            #[inline]
            fn sub(self, y: $ty) -> $ty {
                self - y
            }
            #[inline]
            fn mul(self, y: $ty) -> $ty {
                self * y
            }
            #[inline]
            fn div(self, y: $ty) -> $ty {
                self / y
            }
            #[inline]
            fn neg(self) -> $ty {
                -self
            }
            #[inline]
            fn abs(self) -> $ty {
                Float::abs(self)
            }
            #[inline]
            fn sign(self) -> $ty {
                if is_nan(self) || self == $zero { self } else { Float::signum(self) }
            }
            #[inline]
            fn pow(self, y: $ty) -> $ty {
                Float::powf(self, y)
            }
        }

        impl HostReal for $ty {
            #[inline]
            fn rem(self, y: $ty) -> $ty {
                self % y
            }
        }
    )*};
}

float_number!(f16, f16::ZERO, f16::ONE; bf16, bf16::ZERO, bf16::ONE; f32, 0.0, 1.0; f64, 0.0, 1.0);

macro_rules! complex_number {
    ($($ty:ident),*) => {$(
        impl HostNumber for Complex<$ty> {
            const ZERO: Self = Complex::new(0.0, 0.0);
            const ONE: Self = Complex::new(1.0, 0.0);
            type Real = $ty;
            #[inline]
            fn add(self, y: Self) -> Self {
                self + y
            }
            #[inline]
            fn sub(self, y: Self) -> Self {
                self - y
            }
            #[inline]
            fn mul(self, y: Self) -> Self {
                self * y
            }
            #[inline]
            fn div(self, y: Self) -> Self {
                divide(self, y)
            }
            #[inline]
            fn neg(self) -> Self {
                -self
            }
            #[inline]
            fn abs(self) -> $ty {
                self.re.hypot(self.im)
            }
            #[inline]
            fn sign(self) -> Self {
                if self == Self::ZERO { self } else { self / HostNumber::abs(self) }
            }
            #[inline]
            fn pow(self, y: Self) -> Self {
                if y == Self::ZERO {
                    Self::ONE
                } else if self == Self::ZERO && y.re > 0.0 {
                    Self::ZERO
                } else {
                    self.powc(y)
                }
            }
        }
    )*};
}

complex_number!(f32, f64);

/// The quotient by Smith's method, which neither over- nor underflows where the result does not.
fn divide<T: Float>(x: Complex<T>, y: Complex<T>) -> Complex<T> {
    if y.re.is_zero() && y.im.is_zero() {
        return Complex::new(x.re / y.re, x.im / y.re);
    }
    if y.re.abs() >= y.im.abs() {
        let ratio = y.im / y.re;
        let scale = y.re + y.im * ratio;
        Complex::new((x.re + x.im * ratio) / scale, (x.im - x.re * ratio) / scale)
    } else {
        let ratio = y.re / y.im;
        let scale = y.re * ratio + y.im;
        Complex::new((x.re * ratio + x.im) / scale, (x.im * ratio - x.re) / scale)
    }
}

/// The elementary functions of floats and complex numbers.
pub trait HostField: HostNumber {
    /// `e^x`.
    fn exp(self) -> Self;
    /// `e^x - 1`, accurate near 0.
    fn expm1(self) -> Self;
    /// The natural logarithm.
    fn log(self) -> Self;
    /// The natural logarithm of `1 + x`, accurate near 0.
    fn log1p(self) -> Self;
    /// The sine.
    fn sin(self) -> Self;
    /// The cosine.
    fn cos(self) -> Self;
    /// The tangent.
    fn tan(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// `1 / sqrt(x)`.
    fn rsqrt(self) -> Self;
    /// `1 / (1 + e^-x)`.
    fn logistic(self) -> Self;
    /// The complex conjugate; a float is its own.
    fn conj(self) -> Self;
    /// The real part.
    fn real(self) -> Self::Real;
    /// The imaginary part; 0 for a float.
    fn imag(self) -> Self::Real;
}

macro_rules! float_field {
    ($($ty:ident),*) => {$(
        impl HostField for $ty {
            #[inline]
            fn exp(self) -> $ty {
                Float::exp(self)
            }
            #[inline]
            fn expm1(self) -> $ty {
                Float::exp_m1(self)
            }
            #[inline]
            fn log(self) -> $ty {
                Float::ln(self)
            }
            #[inline]
            fn log1p(self) -> $ty {
                Float::ln_1p(self)
            }
            #[inline]
            fn sin(self) -> $ty {
                Float::sin(self)
            }
            #[inline]
            fn cos(self) -> $ty {
                Float::cos(self)
            }
            #[inline]
            fn tan(self) -> $ty {
                Float::tan(self)
            }
            #[inline]
            fn tanh(self) -> $ty {
                Float::tanh(self)
            }
            #[inline]
            fn sqrt(self) -> $ty {
                Float::sqrt(self)
            }
            #[inline]
            fn rsqrt(self) -> $ty {
                self.in_single(|x| x.sqrt().recip(), |x| x.sqrt().recip())
            }
            #[inline]
            fn logistic(self) -> $ty {
                self.in_single(|x| 1.0 / (1.0 + (-x).exp()), |x| 1.0 / (1.0 + (-x).exp()))
            }
            #[inline]
            fn conj(self) -> $ty {
                self
            }
            #[inline]
            fn real(self) -> $ty {
                self
            }
            #[inline]
            fn imag(self) -> $ty {
                Self::ZERO
            }
        }
    )*};
}

float_field!(f16, bf16, f32, f64);

macro_rules! complex_field {
    ($($ty:ident),*) => {$(
        impl HostField for Complex<$ty> {
            #[inline]
            fn exp(self) -> Self {
                if self.im == 0.0 { Complex::new(self.re.exp(), self.im) } else { self.exp() }
            }
            #[inline]
            fn expm1(self) -> Self {
                let half = (self.im / 2.0).sin();
                let re = self.re.exp_m1() * self.im.cos() - 2.0 * half * half;
                Complex::new(re, self.re.exp() * self.im.sin())
            }
            #[inline]
            fn log(self) -> Self {
                Complex::new(HostNumber::abs(self).ln(), self.im.atan2(self.re))
            }
            #[inline]
            fn log1p(self) -> Self {
                let (re, im) = (self.re, self.im);
                let part = if re.abs() < 0.5 && im.abs() < 0.5 {
                    0.5 * (re * (2.0 + re) + im * im).ln_1p()
                } else {
                    (1.0 + re).hypot(im).ln()
                };
                Complex::new(part, im.atan2(1.0 + re))
            }
            #[inline]
            fn sin(self) -> Self {
                self.sin()
            }
            #[inline]
            fn cos(self) -> Self {
                self.cos()
            }
            #[inline]
            fn tan(self) -> Self {
                // tan(x) = -i tanh(i x)
                let t = HostField::tanh(Complex::new(-self.im, self.re));
                Complex::new(t.im, -t.re)
            }
            #[inline]
            fn tanh(self) -> Self {
                // Kahan's form, which does not overflow: t = tan(y), s = sinh(x), 1 + t^2 = b.
                if self.re.abs() > 20.0 {
                    let decay = 4.0 * (-2.0 * self.re.abs()).exp();
                    let im = decay * self.im.sin() * self.im.cos();
                    return Complex::new((1.0 as $ty).copysign(self.re), im);
                }
                let (t, s) = (self.im.tan(), self.re.sinh());
                let (b, rho) = (1.0 + t * t, (1.0 + s * s).sqrt());
                let scale = 1.0 + b * s * s;
                Complex::new(b * rho * s / scale, t / scale)
            }
            #[inline]
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            #[inline]
            fn rsqrt(self) -> Self {
                divide(Self::ONE, self.sqrt())
            }
            #[inline]
            fn logistic(self) -> Self {
                divide(Self::ONE, Self::ONE + HostField::exp(-self))
            }
            #[inline]
            fn conj(self) -> Self {
                Complex::new(self.re, -self.im)
            }
            #[inline]
            fn real(self) -> $ty {
                self.re
            }
            #[inline]
            fn imag(self) -> $ty {
                self.im
            }
        }
    )*};
}

complex_field!(f32, f64);

/// What floats have besides [`num_traits::Float`].
pub trait HostFloat: Float + Data {
    /// `f` in f32 for f16, bf16 and f32, `g` for f64.
    fn in_single(self, f: impl Fn(f32) -> f32, g: impl Fn(f64) -> f64) -> Self;
    /// The next number towards `to`.
    fn next_after(self, to: Self) -> Self;

    /// The error function.
    #[inline]
    fn erf(self) -> Self {
        self.in_single(libm::erff, libm::erf)
    }
    /// `1 - erf(x)`, accurate for large `x`.
    #[inline]
    fn erfc(self) -> Self {
        self.in_single(libm::erfcf, libm::erfc)
    }
    /// The inverse of [`erf`](HostFloat::erf); infinite at -1 and 1, NaN beyond.
    fn erf_inv(self) -> Self {
        self.in_single(super::special::erf_inv_f32, super::special::erf_inv_f64)
    }
    /// The logarithm of the absolute value of the gamma function.
    #[inline]
    fn lgamma(self) -> Self {
        self.in_single(libm::lgammaf, libm::lgamma)
    }
    /// The derivative of [`lgamma`](HostFloat::lgamma); NaN at 0 and the negative integers.
    fn digamma(self) -> Self {
        self.in_single(super::special::digamma, super::special::digamma)
    }
    /// The cube root.
    #[inline]
    fn cube_root(self) -> Self {
        self.in_single(f32::cbrt, f64::cbrt)
    }
    /// The nearest integer, the even one of two.
    #[inline]
    fn round_even(self) -> Self {
        self.in_single(f32::round_ties_even, f64::round_ties_even)
    }
    /// The nearest integer, the one away from zero of two.
    #[inline]
    fn round_away(self) -> Self {
        self.in_single(f32::round, f64::round)
    }
}

macro_rules! float {
    ($($ty:ident, $x:ident => $single:expr, $back:expr);*) => {$(
        impl HostFloat for $ty {
            #[inline]
            fn in_single(self, f: impl Fn(f32) -> f32, _: impl Fn(f64) -> f64) -> $ty {
                let $x = self;
                $back(f($single))
            }
            float!(@next $ty);
        }
    )*};
    (@next $ty:ident) => {
        #[inline]
        fn next_after(self, to: $ty) -> $ty {
            if is_nan(self) || is_nan(to) {
                return $ty::NAN;
            }
            if self == to {
                return to;
            }
            if self == Self::ZERO {
                return $ty::from_bits(1).copysign(to);
            }
            let away = (self < to) == (self > Self::ZERO);
            $ty::from_bits(if away { self.to_bits() + 1 } else { self.to_bits() - 1 })
        }
    };
}

float!(
    f16, x => x.to_f32(), f16::from_f32;
    bf16, x => x.to_f32(), bf16::from_f32;
    f32, x => x, std::convert::identity
);

impl HostFloat for f64 {
    #[inline]
    fn in_single(self, _: impl Fn(f32) -> f32, g: impl Fn(f64) -> f64) -> f64 {
        g(self)
    }
    float!(@next f64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_follow_xla() {
        assert_eq!(HostNumber::add(i8::MAX, 1), i8::MIN);
        assert_eq!((HostNumber::div(7i32, 0), HostNumber::div(7u8, 0)), (-1, 255));
        assert_eq!(HostNumber::div(i32::MIN, -1), i32::MIN);
        assert_eq!((HostReal::rem(7i32, 0), HostReal::rem(-7i32, 3)), (7, -1));
        assert_eq!(HostReal::rem(i32::MIN, -1), 0);
        assert_eq!((HostNumber::abs(i8::MIN), HostNumber::neg(1u8)), (i8::MIN, 255));
        assert_eq!((HostNumber::sign(-3i16), HostNumber::sign(3u16)), (-1, 1));
        assert_eq!((HostNumber::pow(3i32, 4), HostNumber::pow(-2i8, 7)), (81, -128));
        assert_eq!((HostNumber::pow(2u8, 8), HostNumber::pow(0i32, 0)), (0, 1));
        assert_eq!((HostNumber::pow(-1i32, -3), HostNumber::pow(2i32, -1)), (-1, 0));
        assert_eq!((HostNumber::pow(3u8, 200), HostNumber::pow(1i8, -8)), (161, 1));
    }

    #[test]
    fn shifts_past_the_width_lose_all_bits() {
        assert_eq!((HostInt::shift_left(1u8, 7), HostInt::shift_left(1u8, 8)), (128, 0));
        assert_eq!(HostInt::shift_left(1i8, -1), 0);
        assert_eq!(HostInt::shift_right_logical(-1i8, 4), 15);
        assert_eq!(HostInt::shift_right_logical(-1i8, 8), 0);
        assert_eq!(HostInt::shift_right_arithmetic(-16i8, 2), -4);
        assert_eq!(HostInt::shift_right_arithmetic(-16i8, 99), -1);
        assert_eq!(HostInt::shift_right_arithmetic(0x80u8, 4), 0xf8);
        assert_eq!((HostInt::popcnt(-1i16), HostInt::clz(1u32)), (16, 31));
        assert_eq!((HostInt::not(0u8), not_bool(0), not_bool(1)), (255, 1, 0));
    }

    #[test]
    fn float_edges() {
        assert!(HostReal::maximum(f32::NAN, 1.0).is_nan());
        assert!(HostReal::minimum(1.0, f64::NAN).is_nan());
        assert!(HostNumber::sign(-0.0f32).is_sign_negative());
        assert!(HostNumber::sign(f32::NAN).is_nan());
        assert_eq!(HostNumber::sign(f16::from_f32(-2.5)), f16::NEG_ONE);
        assert_eq!(HostReal::rem(-5.5f32, 2.0), -1.5);
        assert_eq!(
            (2.5f32.round_even(), 3.5f32.round_even(), (-2.5f64).round_even()),
            (2.0, 4.0, -2.0)
        );
        assert_eq!(bf16::from_f32(0.5).round_even(), bf16::ZERO);
        assert_eq!((HostFloat::next_after(0.0f32, -1.0)).to_bits(), 0x8000_0001);
        assert_eq!(HostFloat::next_after(1.0f64, 2.0), 1.0 + f64::EPSILON);
        assert_eq!(HostFloat::next_after(f16::ONE, f16::ZERO).to_bits(), 0x3bff);
        assert_eq!(HostField::logistic(-1000.0f32), 0.0);
        assert_eq!(HostField::rsqrt(f16::from_f32(4.0)), f16::from_f32(0.5));
    }

    #[test]
    fn half_precision_computes_in_single_and_rounds_once() {
        let third = f16::from_f32(0.333_251_95);
        assert_eq!(HostFloat::erf(third), f16::from_f32(0.362_56));
        assert_eq!(HostFloat::erf_inv(f16::ONE), f16::INFINITY);
        assert_eq!(HostFloat::lgamma(bf16::from_f32(4.0)), bf16::from_f32(6.0f32.ln()));
        assert_eq!(HostFloat::cube_root(bf16::from_f32(-27.0)), bf16::from_f32(-3.0));
        assert_eq!(HostFloat::erfc(0.0f64), 1.0);
        assert!((HostFloat::erf(0.5f64) - 0.520_499_877_813_046_5).abs() < 2e-16, "erf(1/2)");
        assert_eq!(HostNumber::add(f16::from_f32(65504.0), f16::from_f32(16.0)), f16::INFINITY);
    }

    #[test]
    fn complex_edges() {
        let c = Complex::<f64>::new;
        assert_eq!(HostNumber::div(c(1.0, 2.0), c(3.0, -4.0)), c(-0.2, 0.4));
        assert_eq!(HostNumber::div(c(1e300, 1e300), c(1e300, 1e300)), c(1.0, 0.0));
        assert_eq!(
            (HostNumber::abs(c(3.0, 4.0)), HostNumber::sign(c(0.0, -2.0))),
            (5.0, c(0.0, -1.0))
        );
        assert_eq!(HostNumber::pow(c(0.0, 0.0), c(2.0, 0.0)), c(0.0, 0.0));
        assert_eq!(HostNumber::pow(c(0.0, 0.0), c(0.0, 0.0)), c(1.0, 0.0));
        let t = HostField::tanh(c(0.5, 1.0));
        assert!((t - c(1.042_830_728_344_361, 0.806_877_412_163_085)).norm() < 1e-14, "{t}");
        assert_eq!(HostField::tanh(c(-800.0, 1.0)), c(-1.0, 0.0));
        let e = HostField::expm1(c(1e-12, 0.0));
        assert!((e.re - 1e-12).abs() < 1e-24, "{e}");
        let l = HostField::log1p(c(-1.5, 0.0));
        assert!((l - c(-std::f64::consts::LN_2, std::f64::consts::PI)).norm() < 1e-15, "{l}");
        assert_eq!((HostField::real(c(1.0, 2.0)), HostField::imag(3.0f32)), (1.0, 0.0));
    }
}
