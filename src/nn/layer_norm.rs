//! Layer normalisation.

use super::init::Init;
use super::module::Layer;
use crate::error::Result;
use crate::shape::Shape;
use crate::trace::cell::Tensor;
use oxbridge_derive::Module;

/// `(x - mean) / sqrt(variance + eps) * weight + bias`, over the last dims.
///
/// **Shapes:** `[.., *shape]` gives the same.
///
/// # Example
/// ```
/// use oxbridge::nn::LayerNorm;
/// use oxbridge::prelude::*;
/// let layer = LayerNorm::new([2], &Init::seed(0))?;
/// let y = layer.forward(&Tensor::from_slice(&[1f32, 3.0], [1, 2])?)?.to_vec::<f32>()?;
/// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 1.0).abs() < 1e-4);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.nn.LayerNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html).
#[derive(Clone, Debug, Module)]
pub struct LayerNorm {
    /// The sizes of the last dims.
    pub weight: Tensor,
    /// The same.
    pub bias: Option<Tensor>,
    /// Added to the variance.
    #[tree(static)]
    pub eps: f64,
}

impl LayerNorm {
    /// A layer over last dims of the given sizes, at first with weight 1 and bias 0; `eps` is 1e-5.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(shape: impl Into<Shape>, init: &Init) -> Result<LayerNorm> {
        let shape = shape.into();
        let (weight, bias) = (init.full(&shape, 1.0)?, init.full(&shape, 0.0)?);
        Ok(LayerNorm { weight, bias: Some(bias), eps: 1e-5 })
    }
}

impl Layer for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.layer_norm(self.weight.shape(), Some(&self.weight), self.bias.as_ref(), self.eps)
    }
}
