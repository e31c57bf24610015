//! What users call: `grad`, `vmap`, `jit` and their kin, over trees of tensors.
//!
//! | module | holds |
//! |---|---|
//! | [`tree`] | [`Tree`]: flatten, rebuild, paths |
//! | [`mod@jit`] | `jit`: one compiled program for each signature |
//! | [`mod@grad`] | `grad`, `value_and_grad`, `stop_gradient` |
//! | [`mod@linearize`] | `linearize`, `vjp` |
//! | [`mod@jvp`] | `jvp`, `hvp` |
//! | [`jacobian`] | `jacfwd`, `jacrev`, `hessian` |
//! | [`nest`] | [`Nest`]: trees of trees, which Jacobians are |
//! | [`mod@argnums`] | derivatives in some of the arguments |
//! | [`mod@checkpoint`] | `checkpoint`: memory for work in reverse mode |
//! | [`custom`] | `custom_jvp`, `custom_vjp` |
//! | [`mod@vmap`], [`axes`] | `vmap`, `vmap_with`, and which axes they map |
//! | [`collective`] | `psum`, `all_gather`, … over the examples of a named `vmap` |
//! | [`control`] | `cond`, `switch`, `while_loop`, `fori_loop`, `scan`, `map` |
//! | [`check`] | `check_grads`: derivatives against differences |
//! | [`layers`] | `scan_layers`: equal layers as one loop |
//! | [`associative`] | `associative_scan` |
//! | [`mod@catch`] | panics of the std operators as typed errors |
//!
//! The interpreters behind them stand in [`trace`](crate::trace).

pub mod argnums;
pub mod associative;
pub mod axes;
pub mod catch;
pub mod check;
pub mod checkpoint;
pub mod collective;
pub mod control;
pub mod custom;
pub mod grad;
pub mod jacobian;
pub mod jit;
pub mod jvp;
pub mod layers;
pub mod linearize;
pub mod nest;
pub mod tree;
pub mod vmap;

pub use argnums::{Arg, Select, argnums, grad_argnums, value_and_grad_argnums};
pub use associative::associative_scan;
pub use axes::{Axes, IntoAxes};
pub use catch::catch;
pub use check::{CheckOptions, check_grads};
pub use checkpoint::{Policy, checkpoint, checkpoint_name, checkpoint_with};
pub use collective::{
    AxisNames, all_gather, all_to_all, axis_index, axis_size, pmax, pmean, pmin, ppermute, psum,
    psum_scatter,
};
pub use control::{Bound, Branch, ScanOptions, cond, fori_loop, map, scan, switch, while_loop};
pub use custom::{custom_jvp, custom_vjp};
pub use grad::{
    GradOptions, grad, grad_aux, grad_with, stop_gradient, value_and_grad, value_and_grad_aux,
    value_and_grad_with,
};
pub use jacobian::{hessian, hessian_aux, jacfwd, jacfwd_aux, jacrev, jacrev_aux};
pub use jit::{Jit, eval_shape, jit};
pub use jvp::{hvp, jvp, jvp_aux};
pub use layers::{scan_layers, scan_stacked, stack_layers, unstack_layers};
pub use linearize::{linearize, linearize_aux, vjp, vjp_aux};
pub use nest::Nest;
pub use tree::{Leaves, Static, Tree};
pub use vmap::{VmapOptions, vmap, vmap_with};
