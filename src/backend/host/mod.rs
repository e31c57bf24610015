//! The host backend: arrays in this process's memory and pure Rust kernels over them.
//!
//! | module | holds |
//! |---|---|
//! | [`array`] | [`HostArray`]: bytes, dtype, shape, strides |
//! | [`conv`] | `convolution` |
//! | [`dot`] | `dot_general` and matrix products |
//! | [`gather`] | `gather`, `scatter` |
//! | [`threefry`] | the random bits |
//! | [`window`] | `reduce_window`, `select_and_scatter` |

pub mod array;
mod combine;
pub mod conv;
pub mod dot;
pub mod gather;
pub mod threefry;
pub mod window;

pub use array::HostArray;
