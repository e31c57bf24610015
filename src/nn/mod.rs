//! Layers as plain structs of tensors, with torch's names, layouts and first values.
//!
//! A layer is a [`Tree`](crate::transforms::Tree): `grad`, `jit` and the optimisers take a whole
//! model and give one back. What a model learns are its leaves; what it only keeps ([`Buffer`]) is
//! state that a forward pass writes in place.
//!
//! | module | holds |
//! |---|---|
//! | [`module`] | [`Module`]: state dicts, training and evaluation; [`Layer`]: `forward` |
//! | [`buffer`] | [`Buffer`]: state that is not learnt |
//! | [`checkpoint`] | trees of tensors on disk, as safetensors files |
//! | [`init`] | [`Init`]: first values drawn from a seed |

pub mod buffer;
pub mod checkpoint;
pub mod init;
pub mod module;

pub use buffer::Buffer;
pub use init::Init;
pub use module::{Layer, Module};
