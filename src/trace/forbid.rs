//! A scope in which nothing is compiled.

use crate::error::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static SCOPES: Cell<usize> = const { Cell::new(0) };
}

/// As long as it lives, compiling on this thread is an error. Made by [`forbid_compile`].
#[derive(Debug)]
#[must_use = "compiling is forbidden only as long as this lives"]
pub struct ForbidCompile {
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

/// From here to the end of the returned value's scope, whatever would have to be compiled on this
/// thread gives an error of kind [`ErrorKind::Compile`] that names it and says why: for serving,
/// where one compile is a stall. Other threads are not concerned.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let f = jit(|x: &Tensor| x.sin()?.mul(2));
/// let (two, three) = (Tensor::zeros([2], DType::F32)?, Tensor::zeros([3], DType::F32)?);
/// f.call(&two)?;
/// let _serving = forbid_compile();
/// f.call(&two)?;
/// let error = f.call(&three).unwrap_err();
/// assert_eq!(*error.kind(), ErrorKind::Compile);
/// assert!(error.text().contains("axis 0 had size 2, has 3"), "{error}");
/// # Ok::<(), Error>(())
/// ```
pub fn forbid_compile() -> ForbidCompile {
    SCOPES.set(SCOPES.get() + 1);
    ForbidCompile { thread: PhantomData }
}

impl Drop for ForbidCompile {
    fn drop(&mut self) {
        SCOPES.set(SCOPES.get() - 1);
    }
}

/// Checks that compiling is allowed on this thread.
///
/// # Errors
/// [`ErrorKind::Compile`] with what `what` gives: what would be compiled, and why, which may be
/// empty.
pub(crate) fn check(op: &str, what: impl FnOnce() -> (String, String)) -> Result<()> {
    if SCOPES.get() == 0 {
        return Ok(());
    }
    let (what, why) = what();
    let colon = if why.is_empty() { "" } else { ": " };
    let text = format!(
        "{what} would have to be compiled, which `forbid_compile` rules out here{colon}{why}"
    );
    Err(Error::new(ErrorKind::Compile, op.to_owned(), text)
        .help("compile it beforehand: `Jit::warm_up`, or one run with operands of these types"))
}
