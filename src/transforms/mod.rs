//! What users call: `grad`, `vmap`, `jit` and their kin, over trees of tensors.
//!
//! | module | holds |
//! |---|---|
//! | [`tree`] | [`Tree`]: flatten, rebuild, paths |
//! | [`mod@jit`] | `jit`: one compiled program for each signature |
//! | [`mod@grad`] | `grad`, `value_and_grad`, `vjp`, `jvp` |
//! | [`mod@vmap`] | `vmap` |
//! | [`control`] | `cond`, `switch`, `while_loop`, `fori_loop`, `scan`, `map` |
//! | [`mod@catch`] | panics of the std operators as typed errors |
//!
//! The interpreters behind them stand in [`trace`](crate::trace).

pub mod catch;
pub mod control;
pub mod grad;
pub mod jit;
pub mod tree;
pub mod vmap;

pub use catch::catch;
pub use control::{Bound, Branch, ScanOptions, cond, fori_loop, map, scan, switch, while_loop};
pub use grad::{grad, jvp, value_and_grad, vjp};
pub use jit::{Jit, jit};
pub use tree::{Leaves, Tree};
pub use vmap::vmap;
