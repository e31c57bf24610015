//! Noise for training.

use super::module::Layer;
use crate::error::{Error, ErrorKind, Result};
use crate::trace::cell::Tensor;
use crate::trace::guard::Guarded;
use oxbridge_derive::Module;

/// In training mode, zero with probability `p` for each element, else the element over `1 - p`; in
/// evaluation the input.
///
/// Draws come from the default generator, whose state is a hidden argument and result of `jit`:
/// each call of a compiled step draws anew.
///
/// # Example
/// ```
/// use oxbridge::nn::Dropout;
/// use oxbridge::prelude::*;
/// let layer = Dropout::new(0.5)?;
/// let x = Tensor::ones([100], DType::F32)?;
/// assert!(layer.forward(&x)?.to_vec::<f32>()?.iter().all(|x| *x == 0.0 || *x == 2.0));
/// layer.eval();
/// assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, [1.0; 100]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.nn.Dropout](https://docs.pytorch.org/docs/stable/generated/torch.nn.Dropout.html).
#[derive(Clone, Debug, Module)]
pub struct Dropout {
    /// The probability of zero.
    #[tree(static)]
    pub p: f64,
    /// Whether anything is done.
    #[module(training)]
    pub training: Guarded<bool>,
}

impl Dropout {
    /// A layer in training mode.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] if `p` is not from 0 to 1.
    pub fn new(p: f64) -> Result<Dropout> {
        if !(0.0..=1.0).contains(&p) {
            let text = format!("the probability {p} is not from 0 to 1");
            return Err(Error::new(ErrorKind::Value, "dropout", text));
        }
        Ok(Dropout { p, training: Guarded::new(true) })
    }
}

impl Layer for Dropout {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.dropout(self.p, self.training.get())
    }
}
