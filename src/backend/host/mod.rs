//! The host backend: arrays in this process's memory and pure Rust kernels over them.
//!
//! | module | holds |
//! |---|---|
//! | [`array`] | [`HostArray`]: bytes, dtype, shape, strides |

pub mod array;

pub use array::HostArray;
