//! Element-wise methods of several operands: arithmetic, comparison, logic, bits, selection.
//!
//! Operands are tensors or Rust numbers; they are promoted and broadcast as in torch (see
//! [`promotion`](super::promotion)). The std operators stand in [`operators`](super::operators).

use super::promotion::{Kind, Operand, elementwise};
use super::wrap;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops;
use crate::trace::Value;
use crate::trace::cell::Tensor;

/// Whether `m`, a remainder with the sign of the dividend, has to go to the divisor's side.
fn wrong_side(m: &Value, y: &Value) -> Result<Value> {
    let zero = ops::full_like(m, 0.0)?;
    let differs = ops::xor(&ops::lt(m, &zero)?, &ops::lt(y, &zero)?)?;
    ops::and(&ops::ne(m, &zero)?, &differs)
}

fn remainder_values(x: &Value, y: &Value) -> Result<Value> {
    let m = ops::rem(x, y)?;
    if x.dtype().is_unsigned() {
        return Ok(m);
    }
    ops::select(&wrong_side(&m, y)?, &ops::add(&m, y)?, &m)
}

fn floor_divide_values(x: &Value, y: &Value) -> Result<Value> {
    let q = ops::div(x, y)?;
    if x.dtype().is_unsigned() {
        return Ok(q);
    }
    let m = ops::rem(x, y)?;
    let one = ops::full_like(x, 1.0)?;
    if x.dtype().is_int() {
        return ops::select(&wrong_side(&m, y)?, &ops::sub(&q, &one)?, &q);
    }
    // Of floats: (x - m) / y is all but whole, so that rounding cannot skip over an integer.
    let whole = ops::div(&ops::sub(x, &m)?, y)?;
    let whole = ops::select(&wrong_side(&m, y)?, &ops::sub(&whole, &one)?, &whole)?;
    let zero_divisor = ops::eq(y, &ops::full_like(y, 0.0)?)?;
    ops::select(&zero_divisor, &q, &ops::round(&whole)?)
}

/// `x` where `y` is NaN, `y` where `x` is, else `f` of both.
fn ignore_nan(
    x: &Value,
    y: &Value,
    f: impl FnOnce(&Value, &Value) -> Result<Value>,
) -> Result<Value> {
    let (no_x, no_y) = (ops::ne(x, x)?, ops::ne(y, y)?);
    ops::select(&no_x, y, &ops::select(&no_y, x, &f(x, y)?)?)
}

fn log_add(x: &Value, y: &Value) -> Result<Value> {
    let high = ops::max(x, y)?;
    let equal = ops::eq(x, y)?;
    let zero = ops::full_like(x, 0.0)?;
    // Equal infinities would give NaN as their difference.
    let apart = ops::select(&equal, &zero, &ops::abs(&ops::sub(x, y)?)?)?;
    ops::add(&high, &ops::log1p(&ops::exp(&ops::neg(&apart)?)?)?)
}

fn xlogy_values(x: &Value, y: &Value) -> Result<Value> {
    let zero = ops::full_like(x, 0.0)?;
    let skip = ops::and(&ops::eq(x, &zero)?, &ops::eq(y, y)?)?;
    let safe = ops::select(&skip, &ops::full_like(y, 1.0)?, y)?;
    ops::select(&skip, &zero, &ops::mul(x, &ops::log(&safe)?)?)
}

fn hypot_values(x: &Value, y: &Value) -> Result<Value> {
    let (x, y) = (ops::abs(x)?, ops::abs(y)?);
    let (low, high) = (ops::min(&x, &y)?, ops::max(&x, &y)?);
    let zero = ops::eq(&high, &ops::full_like(&x, 0.0)?)?;
    let one = ops::full_like(&x, 1.0)?;
    let ratio = ops::div(&low, &ops::select(&zero, &one, &high)?)?;
    ops::mul(&high, &ops::sqrt(&ops::add(&ops::mul(&ratio, &ratio)?, &one)?)?)
}

fn copysign_values(x: &Value, y: &Value) -> Result<Value> {
    let size = ops::abs(x)?;
    ops::select(&super::unary::sign_bit(y)?, &ops::neg(&size)?, &size)
}

/// Raises integers by squaring; a negative power of an integer is 0, but of 1 and -1.
fn pow_values(x: &Value, y: &Value) -> Result<Value> {
    if x.dtype() == DType::Bool {
        return ops::or(x, &ops::not(y)?);
    }
    ops::pow(x, y)
}

fn truth(x: &Value) -> Result<Value> {
    ops::convert(x, DType::Bool)
}

/// `x` between two bounds; at a bound the derivative is that of `x`.
pub(crate) fn clamp_values(x: &Value, low: &Value, high: &Value) -> Result<Value> {
    at_most(&at_least(x, low)?, high)
}

fn at_least(x: &Value, low: &Value) -> Result<Value> {
    ops::select(&ops::lt(x, low)?, low, x)
}

fn at_most(x: &Value, high: &Value) -> Result<Value> {
    ops::select(&ops::gt(x, high)?, high, x)
}

/// One row for each method: doc, name, kind, and the operation over values that are alike.
macro_rules! binary {
    ($($(#[$doc:meta])+ $name:ident $torch:literal $kind:ident |$x:ident, $y:ident| $body:expr;)*) => {
        /// The operations over both sides as operands, so that a number can stand left.
        pub(crate) mod raw {
            use super::*;
            $(
                pub(crate) fn $name(lhs: Operand<'_>, rhs: Operand<'_>) -> Result<Value> {
                    elementwise(stringify!($name), Kind::$kind, &[], &[lhs, rhs], |v| {
                        let ($x, $y) = (&v[0], &v[1]);
                        $body
                    })
                }
            )*
        }

        impl Tensor {$(
            $(#[$doc])+
            ///
            /// # Errors
            /// If the shapes do not broadcast or the dtypes are not among those taken.
            ///
            #[doc = concat!(
                "**Source:** [torch.", $torch, "](https://docs.pytorch.org/docs/stable/generated/torch.",
                $torch, ".html)."
            )]
            #[track_caller]
            pub fn $name<'t>(&'t self, rhs: impl Into<Operand<'t>>) -> Result<Tensor> {
                wrap(raw::$name(self.into(), rhs.into()))
            }
        )*}
    };
}

binary! {
    /// Element-wise sum; of bools `or`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1i64, 2, 3], [3])?;
    /// let column = Tensor::from_slice(&[0.5f32, 1.5], [2, 1])?;
    /// let y = x.add(&column)?;
    /// assert_eq!((y.dtype(), y.shape()), (DType::F32, Shape::from([2, 3])));
    /// assert_eq!(y.to_vec::<f32>()?, [1.5, 2.5, 3.5, 2.5, 3.5, 4.5]);
    /// # Ok::<(), Error>(())
    /// ```
    add "add" One |x, y| ops::add(x, y);
    /// Element-wise difference; not of bools.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    sub "sub" One |x, y| ops::sub(x, y);
    /// Element-wise product; of bools `and`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1i32, 2, 3], [3])?;
    /// assert_eq!(x.mul(2i64)?.to_vec::<i32>()?, [2, 4, 6]);
    /// # Ok::<(), Error>(())
    /// ```
    mul "mul" One |x, y| ops::mul(x, y);
    /// Element-wise quotient; integers are divided as `f32`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted, then floating.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1i64, 2], [2])?;
    /// assert_eq!(x.div(4i64)?.to_vec::<f32>()?, [0.25, 0.5]);
    /// # Ok::<(), Error>(())
    /// ```
    div "div" OneFloat |x, y| ops::div(x, y);
    /// Element-wise quotient, rounded down.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted. **Unlike torch:** an integer over 0 is no error.
    floor_divide "floor_divide" Many |x, y| floor_divide_values(x, y);
    /// Element-wise quotient, rounded towards zero.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    div_trunc "div" Many |x, y| {
        let q = ops::div(x, y)?;
        if q.dtype().is_int() { Ok(q) } else { super::super::unary::truncate(&q) }
    };
    /// Element-wise remainder with the sign of the divisor, as Python's `%`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[-3i64, 3], [2])?;
    /// assert_eq!(x.remainder(2i64)?.to_vec::<i64>()?, [1, 1]);
    /// assert_eq!(x.fmod(2i64)?.to_vec::<i64>()?, [-1, 1]);
    /// # Ok::<(), Error>(())
    /// ```
    remainder "remainder" Many |x, y| remainder_values(x, y);
    /// Element-wise remainder with the sign of the dividend, as C's `fmod`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    fmod "fmod" One |x, y| ops::rem(x, y);
    /// Element-wise power.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted. **Unlike torch:** a negative power of an
    /// integer is no error but 0 (1 or -1 for these bases).
    pow "pow" Many |x, y| pow_values(x, y);
    /// Element-wise larger of two; NaN wins. At a tie each side has half of the derivative.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    maximum "maximum" One |x, y| ops::max(x, y);
    /// Element-wise smaller of two; NaN wins. At a tie each side has half of the derivative.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    minimum "minimum" One |x, y| ops::min(x, y);
    /// Element-wise larger of two; a number wins over NaN.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    fmax "fmax" Many |x, y| ignore_nan(x, y, ops::max);
    /// Element-wise smaller of two; a number wins over NaN.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    fmin "fmin" Many |x, y| ignore_nan(x, y, ops::min);
    /// Element-wise angle of the point `(rhs, self)`, in `-pi..=pi`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted, then floating.
    atan2 "atan2" OneFloat |x, y| ops::atan2(x, y);
    /// Element-wise `sqrt(self^2 + rhs^2)` without overflow on the way.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted, then floating.
    hypot "hypot" ManyFloat |x, y| hypot_values(x, y);
    /// Element-wise `log(exp(self) + exp(rhs))` without overflow on the way.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted, then floating.
    logaddexp "logaddexp" ManyFloat |x, y| log_add(x, y);
    /// Element-wise `self * log(rhs)`, 0 where `self` is 0.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted, then floating.
    xlogy "xlogy" ManyFloat |x, y| xlogy_values(x, y);
    /// The size of `self` with the sign of `rhs`, also of its zeros.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted, then floating.
    copysign "copysign" ManyFloat |x, y| copysign_values(x, y);
    /// The next number after `self` towards `rhs`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** floating.
    nextafter "nextafter" One |x, y| ops::next_after(x, y);
    /// Element-wise `==`, as bool.
    ///
    /// **Shapes:** broadcast. **Dtypes:** compared in the promoted dtype.
    eq "eq" One |x, y| ops::eq(x, y);
    /// Element-wise `!=`, as bool.
    ///
    /// **Shapes:** broadcast. **Dtypes:** compared in the promoted dtype.
    ne "ne" One |x, y| ops::ne(x, y);
    /// Element-wise `<`, as bool.
    ///
    /// **Shapes:** broadcast. **Dtypes:** compared in the promoted dtype, which is not complex.
    lt "lt" One |x, y| ops::lt(x, y);
    /// Element-wise `<=`, as bool.
    ///
    /// **Shapes:** broadcast. **Dtypes:** compared in the promoted dtype, which is not complex.
    le "le" One |x, y| ops::le(x, y);
    /// Element-wise `>`, as bool.
    ///
    /// **Shapes:** broadcast. **Dtypes:** compared in the promoted dtype, which is not complex.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[-1.0f32, 0.0, 1.0], [3])?;
    /// assert_eq!(x.gt(0.0)?.to_vec::<bool>()?, [false, false, true]);
    /// # Ok::<(), Error>(())
    /// ```
    gt "gt" One |x, y| ops::gt(x, y);
    /// Element-wise `>=`, as bool.
    ///
    /// **Shapes:** broadcast. **Dtypes:** compared in the promoted dtype, which is not complex.
    ge "ge" One |x, y| ops::ge(x, y);
    /// Whether both are not zero.
    ///
    /// **Shapes:** broadcast. **Dtypes:** any to bool.
    logical_and "logical_and" Many |x, y| ops::and(&truth(x)?, &truth(y)?);
    /// Whether one or both are not zero.
    ///
    /// **Shapes:** broadcast. **Dtypes:** any to bool.
    logical_or "logical_or" Many |x, y| ops::or(&truth(x)?, &truth(y)?);
    /// Whether exactly one is not zero.
    ///
    /// **Shapes:** broadcast. **Dtypes:** any to bool.
    logical_xor "logical_xor" Many |x, y| ops::xor(&truth(x)?, &truth(y)?);
    /// Element-wise `and` of bits or bools.
    ///
    /// **Shapes:** broadcast. **Dtypes:** integers and bool, promoted.
    bitwise_and "bitwise_and" One |x, y| ops::and(x, y);
    /// Element-wise `or` of bits or bools.
    ///
    /// **Shapes:** broadcast. **Dtypes:** integers and bool, promoted.
    bitwise_or "bitwise_or" One |x, y| ops::or(x, y);
    /// Element-wise exclusive `or` of bits or bools.
    ///
    /// **Shapes:** broadcast. **Dtypes:** integers and bool, promoted.
    bitwise_xor "bitwise_xor" One |x, y| ops::xor(x, y);
    /// Element-wise shift to the left.
    ///
    /// **Shapes:** broadcast. **Dtypes:** integers, promoted.
    bitwise_left_shift "bitwise_left_shift" One |x, y| ops::shift_left(x, y);
    /// Element-wise shift to the right that keeps the sign.
    ///
    /// **Shapes:** broadcast. **Dtypes:** integers, promoted.
    bitwise_right_shift "bitwise_right_shift" One |x, y| {
        if x.dtype().is_unsigned() {
            ops::shift_right_logical(x, y)
        } else {
            ops::shift_right_arithmetic(x, y)
        }
    };
    /// `self`, but not less than `min`; NaN stays. At the bound the derivative is that of `self`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    clamp_min "clamp" Many |x, y| at_least(x, y);
    /// `self`, but not more than `max`; NaN stays. At the bound the derivative is that of `self`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    clamp_max "clamp" Many |x, y| at_most(x, y);
}

impl Tensor {
    /// `self + alpha * rhs`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted; `alpha` takes the result's dtype.
    #[track_caller]
    pub fn add_scaled<'t>(&'t self, rhs: impl Into<Operand<'t>>, alpha: f64) -> Result<Tensor> {
        let alpha = Operand::Scalar(Scalar::new(alpha));
        wrap(elementwise("add_scaled", Kind::Many, &[], &[self.into(), rhs.into(), alpha], |v| {
            ops::add(&v[0], &ops::mul(&v[1], &v[2])?)
        }))
    }

    /// `rhs - self`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    #[track_caller]
    pub fn rsub<'t>(&'t self, rhs: impl Into<Operand<'t>>) -> Result<Tensor> {
        wrap(raw::sub(rhs.into(), self.into()))
    }

    /// `self` between `min` and `max`; NaN stays. At a bound the derivative is that of `self`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    ///
    /// # Errors
    /// If the shapes do not broadcast or the dtype is complex.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[-2.0f32, 0.5, 3.0], [3])?;
    /// assert_eq!(x.clamp(-1.0, 1.0)?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.clamp](https://docs.pytorch.org/docs/stable/generated/torch.clamp.html).
    #[track_caller]
    pub fn clamp<'t>(
        &'t self,
        min: impl Into<Operand<'t>>,
        max: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        let operands = [self.into(), min.into(), max.into()];
        wrap(elementwise("clamp", Kind::Many, &[], &operands, |v| {
            clamp_values(&v[0], &v[1], &v[2])
        }))
    }

    /// `self + weight * (end - self)`: from `self` at weight 0 to `end` at weight 1.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted, then floating.
    ///
    /// **Source:** [torch.lerp](https://docs.pytorch.org/docs/stable/generated/torch.lerp.html).
    #[track_caller]
    pub fn lerp<'t>(&'t self, end: &'t Tensor, weight: impl Into<Operand<'t>>) -> Result<Tensor> {
        let operands = [self.into(), end.into(), weight.into()];
        wrap(elementwise("lerp", Kind::ManyFloat, &[], &operands, |v| {
            let (start, end, weight) = (&v[0], &v[1], &v[2]);
            let apart = ops::sub(end, start)?;
            let near = ops::add(start, &ops::mul(weight, &apart)?)?;
            // From the end's side past the middle, so that weight 1 gives `end` to the bit.
            let one = ops::full_like(weight, 1.0)?;
            let far = ops::sub(end, &ops::mul(&apart, &ops::sub(&one, weight)?)?)?;
            let half = ops::full_like(weight, 0.5)?;
            ops::select(&ops::lt(&ops::abs(weight)?, &half)?, &near, &far)
        }))
    }

    /// `self + value * tensor1 * tensor2`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted.
    ///
    /// **Source:** [torch.addcmul](https://docs.pytorch.org/docs/stable/generated/torch.addcmul.html).
    #[track_caller]
    pub fn addcmul<'t>(
        &'t self,
        tensor1: &'t Tensor,
        tensor2: &'t Tensor,
        value: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        let operands = [self.into(), tensor1.into(), tensor2.into(), value.into()];
        wrap(elementwise("addcmul", Kind::Many, &[], &operands, |v| {
            ops::add(&v[0], &ops::mul(&ops::mul(&v[3], &v[1])?, &v[2])?)
        }))
    }

    /// `self + value * tensor1 / tensor2`.
    ///
    /// **Shapes:** broadcast. **Dtypes:** promoted, then floating.
    ///
    /// **Source:** [torch.addcdiv](https://docs.pytorch.org/docs/stable/generated/torch.addcdiv.html).
    #[track_caller]
    pub fn addcdiv<'t>(
        &'t self,
        tensor1: &'t Tensor,
        tensor2: &'t Tensor,
        value: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        let operands = [self.into(), tensor1.into(), tensor2.into(), value.into()];
        wrap(elementwise("addcdiv", Kind::ManyFloat, &[], &operands, |v| {
            ops::add(&v[0], &ops::div(&ops::mul(&v[3], &v[1])?, &v[2])?)
        }))
    }

    /// `self` where `condition` holds, else `other`.
    ///
    /// **Shapes:** all three broadcast. **Dtypes:** `condition` bool, the others promoted.
    ///
    /// # Errors
    /// If the condition is not bool or the shapes do not broadcast.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[-1.0f32, 2.0], [2])?;
    /// assert_eq!(x.where_(&x.gt(0.0)?, 0.0)?.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.where](https://docs.pytorch.org/docs/stable/generated/torch.where.html).
    #[track_caller]
    pub fn where_<'t>(
        &'t self,
        condition: &'t Tensor,
        other: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        where_(condition, self, other)
    }
}

/// `x` where `condition` holds, else `y`; [`Tensor::where_`] for two operands that may be numbers.
///
/// # Errors
/// If the condition is not bool or the shapes do not broadcast.
#[track_caller]
pub fn where_<'t>(
    condition: &'t Tensor,
    x: impl Into<Operand<'t>>,
    y: impl Into<Operand<'t>>,
) -> Result<Tensor> {
    wrap(select_values(condition, x.into(), y.into()))
}

fn select_values(condition: &Tensor, x: Operand<'_>, y: Operand<'_>) -> Result<Value> {
    use super::promotion::{broadcast_all, expand, first_of, result_type};
    let dtype = result_type(&[x, y]).map_err(|e| e.in_op("where_"))?;
    let place = |o: Operand<'_>| match o {
        Operand::Scalar(scalar) => Ok(Value::scalar(scalar.convert(dtype))),
        Operand::Tensor(tensor) => tensor.value(),
    };
    let values = [condition.value()?, place(x)?, place(y)?];
    let shape = broadcast_all("where_", &values)?;
    let outs = ops::call::fused("where_", &[dtype as i64], &values, |v| {
        let (x, y) = (ops::convert(&v[1], dtype)?, ops::convert(&v[2], dtype)?);
        let out = ops::select(&expand(&v[0], &shape)?, &expand(&x, &shape)?, &expand(&y, &shape)?)?;
        Ok(smallvec::smallvec![out])
    });
    first_of("where_", outs)
}
