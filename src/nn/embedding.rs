//! A table of vectors.

use super::init::Init;
use super::module::Layer;
use crate::error::Result;
use crate::trace::cell::Tensor;
use oxbridge_derive::Module;

/// The rows of a table that integers name.
///
/// **Shapes:** `[..]` gives `[.., width]`. **Dtypes:** the input is i32 or i64.
///
/// # Example
/// ```
/// use oxbridge::nn::Embedding;
/// use oxbridge::prelude::*;
/// let table = Embedding::new(5, 2, &mut Init::seed(0))?;
/// let rows = table.forward(&Tensor::from_slice(&[4i64, 0], [2])?)?;
/// assert_eq!(rows.to_vec::<f32>()?[2..], table.weight.to_vec::<f32>()?[..2]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.nn.Embedding](https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html).
#[derive(Clone, Debug, Module)]
pub struct Embedding {
    /// `[count, width]`.
    pub weight: Tensor,
}

impl Embedding {
    /// A table of standard normal numbers.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(count: usize, width: usize, init: &mut Init) -> Result<Embedding> {
        Ok(Embedding { weight: init.normal([count, width], 0.0, 1.0)? })
    }
}

impl Layer for Embedding {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.embedding(&self.weight)
    }
}
