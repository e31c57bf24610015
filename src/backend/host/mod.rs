//! The host backend: arrays in this process's memory and pure Rust kernels over them.
//!
//! | module | holds |
//! |---|---|
//! | [`array`] | [`HostArray`]: bytes, dtype, shape, strides |
//! | [`dot`] | `dot_general` and matrix products |
//! | [`threefry`] | the random bits |

pub mod array;
pub mod dot;
pub mod threefry;

pub use array::HostArray;
