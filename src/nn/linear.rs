//! The affine layer.

use super::init::Init;
use super::module::Layer;
use crate::error::Result;
use crate::trace::cell::Tensor;
use oxbridge_derive::Module;

/// `x weight^T + bias`.
///
/// **Shapes:** `[.., in]` gives `[.., out]`.
///
/// # Example
/// ```
/// use oxbridge::nn::Linear;
/// use oxbridge::prelude::*;
/// let layer = Linear::new(3, 2, &mut Init::seed(0))?;
/// let x = Tensor::zeros([4, 3], DType::F32)?;
/// assert_eq!(layer.forward(&x)?.shape(), Shape::from([4, 2]));
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.nn.Linear](https://docs.pytorch.org/docs/stable/generated/torch.nn.Linear.html).
#[derive(Clone, Debug, Module)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// A layer with a bias, both uniform within `1 / sqrt(inputs)`.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(inputs: usize, outputs: usize, init: &mut Init) -> Result<Linear> {
        let (weight, bias) = init.weight_and_bias([outputs, inputs], true)?;
        Ok(Linear { weight, bias })
    }

    /// A layer without a bias.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn without_bias(inputs: usize, outputs: usize, init: &mut Init) -> Result<Linear> {
        let (weight, bias) = init.weight_and_bias([outputs, inputs], false)?;
        Ok(Linear { weight, bias })
    }
}

impl Layer for Linear {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.linear(&self.weight, self.bias.as_ref())
    }
}
