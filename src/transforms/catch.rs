//! Panics of the std operators as typed errors.
//!
//! `&a + &b` cannot give a `Result`, so it panics with the text of its [`Error`]. Transforms and
//! [`catch`] bring such a panic back as that very error.

use crate::error::{Error, Result};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    static THROWN: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Panics with the error's text; a [`catch`] around gives the error itself.
///
/// # Panics
/// Always.
#[cold]
#[track_caller]
#[expect(clippy::panic, reason = "the std operators have no other way to fail")]
pub fn throw(error: Error) -> ! {
    let text = error.to_string();
    THROWN.set(Some(error));
    panic!("{text}")
}

/// Runs `f`; a panic of a tensor operator inside of it comes back as its typed error. Other panics
/// go on.
///
/// # Errors
/// What `f` says, or the error of the operator that panicked.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let a = Tensor::zeros([2], DType::F32)?;
/// let b = Tensor::zeros([3], DType::F32)?;
/// let error = oxbridge::catch(|| Ok(&a + &b)).unwrap_err();
/// assert_eq!(*error.kind(), ErrorKind::Shape);
/// # Ok::<(), Error>(())
/// ```
pub fn catch<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    let outer = THROWN.take();
    let result = catch_unwind(AssertUnwindSafe(f));
    let thrown = THROWN.replace(outer);
    match (result, thrown) {
        (Ok(result), _) => result,
        (Err(_), Some(error)) => Err(error),
        (Err(payload), None) => resume_unwind(payload),
    }
}
