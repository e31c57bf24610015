//! Torch's methods on [`Tensor`], by family.
//!
//! A method normalises (promotion, broadcasting, negative dims, keepdim) and calls `ops`. What is
//! more than one primitive runs as one program through [`ops::call::fused`].
//!
//! | module | methods |
//! |---|---|
//! | [`arithmetic`] | `add`, `mul`, …, and the std operators |
//! | [`create`] | `zeros`, `from_slice`, … and reading back |

pub mod arithmetic;
pub mod create;

use crate::error::Result;
use crate::trace::Value;
use crate::trace::cell::Tensor;
use std::panic::Location;

/// Puts an operation's result into a tensor, or the caller's place into its error.
///
/// Every public method ends in this and is `#[track_caller]`, so that the place is the user's.
#[track_caller]
pub(crate) fn wrap(result: Result<Value>) -> Result<Tensor> {
    match result {
        Ok(value) => Ok(Tensor::from_value(value)),
        Err(error) => Err(error.at(Location::caller())),
    }
}
