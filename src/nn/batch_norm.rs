//! Batch normalisation of images.

use super::buffer::Buffer;
use super::init::Init;
use super::module::Layer;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::normalise::BatchNorm;
use crate::tensor::placed;
use crate::trace::Value;
use crate::trace::cell::Tensor;
use crate::trace::guard::Guarded;
use oxbridge_derive::Module;

/// `(x - mean) / sqrt(variance + eps) * weight + bias`, for each channel over the batch.
///
/// **Shapes:** `[n, channels, height, width]` gives the same. In training mode the statistics are
/// the batch's and the running ones are updated in place, also inside of `jit` and `grad`; in
/// evaluation they are the running ones.
///
/// **Source:** [torch.nn.BatchNorm2d](https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html).
#[derive(Clone, Debug, Module)]
pub struct BatchNorm2d {
    /// `[channels]`.
    pub weight: Tensor,
    /// `[channels]`.
    pub bias: Tensor,
    /// `[channels]`.
    pub running_mean: Buffer,
    /// `[channels]`, of the unbiased variances.
    pub running_var: Buffer,
    /// How many batches were seen, i64.
    pub num_batches_tracked: Buffer,
    /// Added to the variance.
    #[tree(static)]
    pub eps: f64,
    /// The share of a new batch in the running statistics.
    #[tree(static)]
    pub momentum: f64,
    /// Whether the batch's statistics are used.
    #[module(training)]
    pub training: Guarded<bool>,
}

impl BatchNorm2d {
    /// A layer with weight 1, bias 0, `eps` 1e-5 and momentum 0.1, in training mode.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(channels: usize, init: &Init) -> Result<BatchNorm2d> {
        let count = Tensor::from_value(Value::scalar(Scalar::zero(DType::I64)));
        Ok(BatchNorm2d {
            weight: init.full([channels], 1.0)?,
            bias: init.full([channels], 0.0)?,
            running_mean: Buffer::new(&init.full([channels], 0.0)?)?,
            running_var: Buffer::new(&init.full([channels], 1.0)?)?,
            num_batches_tracked: Buffer::new(&count)?,
            eps: 1e-5,
            momentum: 0.1,
            training: Guarded::new(true),
        })
    }

    fn check(&self, x: &Tensor, training: bool) -> Result<()> {
        let (shape, channels) = (x.shape(), self.weight.numel());
        let why = match () {
            () if shape.rank() != 4 || shape[1] != channels => {
                format!("takes [n, {channels}, height, width], not {}", x.aval())
            }
            () if training && shape.size() / channels.max(1) < 2 => {
                format!("needs more than one value a channel in training, {} has not", x.aval())
            }
            () => return Ok(()),
        };
        Err(Error::new(ErrorKind::Shape, "batch_norm", why))
    }
}

impl Layer for BatchNorm2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let training = self.training.get();
        placed(self.check(x, training))?;
        if training {
            self.num_batches_tracked.tensor().add_(1)?;
        }
        let options = BatchNorm {
            weight: Some(&self.weight),
            bias: Some(&self.bias),
            training,
            momentum: self.momentum,
            eps: self.eps,
        };
        let (mean, var) = (self.running_mean.tensor(), self.running_var.tensor());
        x.batch_norm(Some(mean), Some(var), options)
    }
}
