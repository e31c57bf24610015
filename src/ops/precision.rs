//! How exactly products of floats are formed, as a setting.
//!
//! The methods of [`Tensor`](crate::Tensor) that form products (matrix products, `einsum`,
//! convolutions) take it as a parameter of their primitive, and `jit` has it in its key: changing it
//! compiles anew and never runs a program of the other setting.

pub use super::dot::Precision;
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

static PROCESS: AtomicU8 = AtomicU8::new(Precision::Default as u8);

thread_local! {
    static SCOPE: Cell<Option<Precision>> = const { Cell::new(None) };
}

/// The precision that products have on this thread now.
pub fn matmul_precision() -> Precision {
    SCOPE.get().unwrap_or_else(|| match PROCESS.load(Ordering::Relaxed) {
        0 => Precision::Default,
        1 => Precision::High,
        _ => Precision::Highest,
    })
}

/// Sets the precision of products in the whole process, outside of [`with_matmul_precision`].
///
/// **Source:** [torch.set_float32_matmul_precision](https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html).
pub fn set_matmul_precision(precision: Precision) {
    PROCESS.store(precision as u8, Ordering::Relaxed);
}

/// Runs `f` with the given precision of products on this thread.
///
/// # Example
/// ```
/// use oxbridge::ops::precision::{Precision, with_matmul_precision};
/// use oxbridge::prelude::*;
/// let square = jit(|x: &Tensor| x.matmul(x));
/// let x = Tensor::ones([2, 2], DType::F32)?;
/// let text = || square.lower(&x).map(|lowered| lowered.stablehlo());
/// assert!(text()?.contains("precision DEFAULT"));
/// assert!(with_matmul_precision(Precision::Highest, text)?.contains("precision HIGHEST"));
/// assert_eq!(square.compiled(), 2);
/// # Ok::<(), Error>(())
/// ```
pub fn with_matmul_precision<T>(precision: Precision, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<Precision>);
    impl Drop for Restore {
        fn drop(&mut self) {
            SCOPE.set(self.0);
        }
    }
    let _restore = Restore(SCOPE.replace(Some(precision)));
    f()
}
