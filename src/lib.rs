#![doc = include_str!("../README.md")]
//! ## Modules
//!
//! | module | layer | holds |
//! |---|---|---|
//! | [`error`], [`dtype`], [`shape`](mod@shape) | 0 | errors, element types and promotion, shape arithmetic |
//! | [`mesh`], [`aval`], [`hlo`] | 1 | meshes and shardings, types of values, StableHLO text |
//! | [`backend`] | 2 | the host backend, PJRT plugins, clients and devices |
//! | [`array`](mod@array) | 3 | data on devices |
//! | [`trace`] | 4 | values, `bind`, graphs, running and lowering, the interpreters |
//! | [`ops`] | 5 | the primitives |
//! | [`transforms`] | 6 | `jit`, `grad`, `vmap`, trees |
//! | [`tensor`] | 7 | torch's methods |
//! | [`nn`], [`optim`] | 8 | layers, optimisers, checkpoints |

// So that what the derives write holds inside of this crate too.
extern crate self as oxbridge;

pub mod array;
pub mod aval;
pub mod backend;
pub mod dtype;
pub mod error;
pub mod hlo;
pub mod mesh;
pub mod nn;
pub mod ops;
pub mod optim;
pub mod shape;
pub mod tensor;
pub mod trace;
pub mod transforms;

pub use array::Array;
pub use aval::Aval;
pub use backend::{Client, ClientOptions, Device};
pub use dtype::{DType, Element, Scalar};
pub use error::{Error, ErrorKind, Result};
pub use mesh::{Mesh, NamedSharding, PartitionSpec};
pub use oxbridge_derive::{Module, Tree};
pub use shape::Shape;
pub use tensor::autograd;
pub use tensor::autograd::{enable_grad, no_grad};
pub use tensor::debug::{debug_callback, debug_print};
pub use trace::Value;
pub use trace::cell::Tensor;
pub use trace::finite::{debug_infs, debug_nans};
pub use trace::forbid::forbid_compile;
pub use trace::guard::Guarded;
pub use transforms::check::check_grads;
pub use transforms::{
    Arg, Policy, ScanOptions, VmapOptions, all_gather, all_to_all, argnums, associative_scan,
    axis_index, axis_size, catch, checkpoint, checkpoint_name, checkpoint_with, cond, custom_jvp,
    custom_vjp, fori_loop, grad, hessian, hvp, jacfwd, jacrev, jit, jvp, linearize, pmax, pmean,
    pmin, ppermute, psum, psum_scatter, scan, scan_layers, scan_stacked, stack_layers,
    stop_gradient, switch, unstack_layers, value_and_grad, vjp, vmap, vmap_with, while_loop,
};

/// What most programs use: `use oxbridge::prelude::*;`.
pub mod prelude {
    pub use crate::mesh::{Mesh, NamedSharding, PartitionSpec};
    pub use crate::nn::{Init, Layer, Module};
    pub use crate::tensor::autograd::{enable_grad, no_grad};
    pub use crate::trace::forbid::forbid_compile;
    pub use crate::transforms::{
        Arg, Jit, Policy, ScanOptions, Static, Tree, VmapOptions, all_gather, all_to_all, argnums,
        associative_scan, axis_index, axis_size, catch, checkpoint, checkpoint_name,
        checkpoint_with, cond, custom_jvp, custom_vjp, fori_loop, grad, grad_argnums, grad_aux,
        hessian, hvp, jacfwd, jacrev, jit, jvp, linearize, pmax, pmean, pmin, ppermute, psum,
        psum_scatter, scan, scan_layers, scan_stacked, stack_layers, stop_gradient, switch,
        unstack_layers, value_and_grad, value_and_grad_argnums, value_and_grad_aux, vjp, vmap,
        vmap_with, while_loop,
    };
    pub use crate::{
        Client, ClientOptions, DType, Device, Error, ErrorKind, Guarded, Result, Scalar, Shape,
        Tensor, spec,
    };
    pub use oxbridge_derive::{Module, Tree};
}
