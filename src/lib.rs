//! Torch-shaped tensors over real device arrays, with JAX's transforms.

pub mod array;
pub mod aval;
pub mod backend;
pub mod dtype;
pub mod error;
pub mod hlo;
pub mod mesh;
pub mod ops;
pub mod shape;
pub mod trace;

pub use array::Array;
pub use aval::Aval;
pub use backend::{Client, Device};
pub use dtype::{DType, Element, Scalar};
pub use error::{Error, ErrorKind, Result};
pub use mesh::{Mesh, NamedSharding, PartitionSpec};
pub use shape::Shape;
pub use trace::Value;
pub use trace::cell::Tensor;
