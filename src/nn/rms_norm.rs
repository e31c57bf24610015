//! Normalisation by the root of the mean square.

use super::init::Init;
use super::module::Layer;
use crate::dtype::DType;
use crate::error::Result;
use crate::shape::Shape;
use crate::trace::cell::Tensor;
use oxbridge_derive::Module;

/// `x / sqrt(mean(x^2) + eps) * weight`, over the last dims.
///
/// **Shapes:** `[.., *shape]` gives the same.
///
/// **Source:** [torch.nn.RMSNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.RMSNorm.html).
#[derive(Clone, Debug, Module)]
pub struct RmsNorm {
    /// The sizes of the last dims.
    pub weight: Tensor,
    /// Added to the mean square.
    #[tree(static)]
    pub eps: f64,
}

impl RmsNorm {
    /// A layer over last dims of the given sizes, at first with weight 1; `eps` is f64's epsilon for f64,
    /// else f32's.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(shape: impl Into<Shape>, init: &Init) -> Result<RmsNorm> {
        let weight = init.full(shape, 1.0)?;
        let double = weight.dtype() == DType::F64;
        Ok(RmsNorm { weight, eps: if double { f64::EPSILON } else { f32::EPSILON.into() } })
    }
}

impl Layer for RmsNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.rms_norm(self.weight.shape(), Some(&self.weight), Some(self.eps))
    }
}
