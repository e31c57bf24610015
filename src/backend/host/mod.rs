//! The host backend: arrays in this process's memory and pure Rust kernels over them.
//!
//! | module | holds |
//! |---|---|
//! | [`mod@array`] | [`HostArray`]: bytes, dtype, shape, strides |
//! | [`conv`] | `convolution` |
//! | [`convert`] | dtype conversion, comparison, selection, `iota` |
//! | [`cumulative`] | running sums and their like |
//! | [`dot`] | `dot_general` and matrix products |
//! | [`elementwise`] | loops over one to three operands of any strides |
//! | [`gather`] | `gather`, `scatter` |
//! | [`linalg`] | factorisations of matrices, triangular systems |
//! | [`layout`] | padding, concatenation, slices at run-time positions |
//! | [`number`] | what each function of one element means for each dtype |
//! | [`reduce`] | reductions over axes, positions of extremes |
//! | [`sort`] | sorting along an axis, the largest elements |
//! | [`threefry`] | the random bits |
//! | [`window`] | `reduce_window`, `select_and_scatter` |

pub mod array;
mod combine;
pub mod conv;
pub mod convert;
pub mod cumulative;
pub mod dot;
pub mod elementwise;
pub mod gather;
pub mod layout;
pub mod linalg;
pub mod number;
pub mod reduce;
pub mod sort;
mod special;
pub mod threefry;
pub mod window;

pub use array::HostArray;
