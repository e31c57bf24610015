//! The std operators: `+ - * / % - ! & | ^` on tensors, in every ownership, and with Rust numbers
//! on either side: `f64` and `i64`, so that a literal needs no suffix.
//!
//! They are the methods of the same meaning (`%` is [`Tensor::remainder`], `/` is true division),
//! but cannot give a `Result`: an error becomes a panic with its text, which `jit`, `grad`, `vmap`
//! and [`catch`](crate::catch()) bring back as the typed error.

use super::arithmetic::raw;
use super::promotion::Operand;
use super::wrap;
use crate::error::Result;
use crate::trace::Value;
use crate::trace::cell::Tensor;
use crate::transforms::catch::throw;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

#[track_caller]
fn or_throw(result: Result<Value>) -> Tensor {
    match wrap(result) {
        Ok(tensor) => tensor,
        Err(error) => throw(error),
    }
}

macro_rules! one {
    ($trait:ident $op:ident $raw:ident, $lhs:ty, $rhs:ty, |$l:ident, $r:ident| $left:expr, $right:expr) => {
        impl $trait<$rhs> for $lhs {
            type Output = Tensor;
            #[doc = concat!("[`Tensor::", stringify!($raw), "`] as an operator.")]
            ///
            /// # Panics
            /// With the text of the error, if the method gives one.
            #[track_caller]
            fn $op(self, rhs: $rhs) -> Tensor {
                let ($l, $r) = (self, rhs);
                or_throw(raw::$raw($left, $right))
            }
        }
    };
}

macro_rules! tensors {
    ($($trait:ident $op:ident $raw:ident)*) => {$(
        one! { $trait $op $raw, &Tensor, &Tensor, |l, r| Operand::from(l), Operand::from(r) }
        one! { $trait $op $raw, Tensor, &Tensor, |l, r| Operand::from(&l), Operand::from(r) }
        one! { $trait $op $raw, &Tensor, Tensor, |l, r| Operand::from(l), Operand::from(&r) }
        one! { $trait $op $raw, Tensor, Tensor, |l, r| Operand::from(&l), Operand::from(&r) }
    )*};
}

macro_rules! numbers {
    ($ty:ty: $($trait:ident $op:ident $raw:ident)*) => {$(
        one! { $trait $op $raw, &Tensor, $ty, |l, r| Operand::from(l), Operand::from(r) }
        one! { $trait $op $raw, Tensor, $ty, |l, r| Operand::from(&l), Operand::from(r) }
        one! { $trait $op $raw, $ty, &Tensor, |l, r| Operand::from(l), Operand::from(r) }
        one! { $trait $op $raw, $ty, Tensor, |l, r| Operand::from(l), Operand::from(&r) }
    )*};
}

tensors! {
    Add add add Sub sub sub Mul mul mul Div div div Rem rem remainder
    BitAnd bitand bitwise_and BitOr bitor bitwise_or BitXor bitxor bitwise_xor
}
numbers! { f64: Add add add Sub sub sub Mul mul mul Div div div Rem rem remainder }
numbers! { i64: Add add add Sub sub sub Mul mul mul Div div div Rem rem remainder }

macro_rules! unary {
    ($($trait:ident $op:ident $method:ident)*) => {$(
        impl $trait for &Tensor {
            type Output = Tensor;
            #[doc = concat!("[`Tensor::", stringify!($method), "`] as an operator.")]
            ///
            /// # Panics
            /// With the text of the error, if the method gives one.
            #[track_caller]
            fn $op(self) -> Tensor {
                match Tensor::$method(self) {
                    Ok(tensor) => tensor,
                    Err(error) => throw(error),
                }
            }
        }

        impl $trait for Tensor {
            type Output = Tensor;
            #[doc = concat!("[`Tensor::", stringify!($method), "`] as an operator.")]
            ///
            /// # Panics
            /// With the text of the error, if the method gives one.
            #[track_caller]
            fn $op(self) -> Tensor {
                $trait::$op(&self)
            }
        }
    )*};
}

unary! { Neg neg neg Not not bitwise_not }

/// The result of an in-place operator, or a panic with its error.
#[track_caller]
pub(crate) fn done(result: Result<Tensor>) {
    if let Err(error) = result {
        throw(error);
    }
}
