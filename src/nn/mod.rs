//! Layers as plain structs of tensors, with torch's names, layouts and first values.
//!
//! A layer is a [`Tree`](crate::transforms::Tree): `grad`, `jit` and the optimisers take a whole
//! model and give one back. What a model learns are its leaves; what it only keeps ([`Buffer`]) is
//! state that a forward pass writes in place. Losses and functional forms are methods of
//! [`Tensor`](crate::Tensor): `cross_entropy`, `mse_loss`, `layer_norm`, ….
//!
//! | module | holds |
//! |---|---|
//! | [`module`] | [`Module`]: state dicts, training and evaluation; [`Layer`]: `forward` |
//! | [`buffer`] | [`Buffer`]: state that is not learnt |
//! | [`checkpoint`] | trees of tensors on disk, as safetensors files |
//! | [`init`] | [`Init`]: first values drawn from a seed |
//! | [`linear`], [`embedding`] | [`Linear`], [`Embedding`] |
//! | [`conv`], [`pool`] | [`Conv1d`], [`Conv2d`], [`MaxPool2d`], [`AvgPool2d`] |
//! | [`layer_norm`], [`rms_norm`], [`batch_norm`] | [`LayerNorm`], [`RmsNorm`], [`BatchNorm2d`] |
//! | [`attention`] | [`MultiheadAttention`] |
//! | [`dropout`] | [`Dropout`] |
//! | [`activation`] | [`ReLU`], [`GELU`], [`SiLU`], …, [`Flatten`] |
//! | [`sequential`] | [`Sequential`]: layers one after another |

pub mod activation;
pub mod attention;
pub mod batch_norm;
pub mod buffer;
pub mod checkpoint;
pub mod conv;
pub mod dropout;
pub mod embedding;
pub mod init;
pub mod layer_norm;
pub mod linear;
pub mod module;
pub mod pool;
pub mod rms_norm;
pub mod sequential;

pub use activation::{Flatten, GELU, Identity, ReLU, SiLU, Sigmoid, Tanh};
pub use attention::MultiheadAttention;
pub use batch_norm::BatchNorm2d;
pub use buffer::Buffer;
pub use conv::{Conv1d, Conv2d};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use init::Init;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use module::{Layer, Module};
pub use pool::{AvgPool2d, MaxPool2d};
pub use rms_norm::RmsNorm;
pub use sequential::Sequential;
