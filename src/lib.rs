//! Torch-shaped tensors over real device arrays, with JAX's transforms.

pub mod backend;
pub mod dtype;
pub mod error;
pub mod shape;

pub use dtype::{DType, Element, Scalar};
pub use error::{Error, ErrorKind, Result};
pub use shape::Shape;
