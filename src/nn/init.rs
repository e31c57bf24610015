//! First values of parameters, drawn from a seed on the host.

use crate::array::Array;
use crate::backend::Device;
use crate::backend::host::{HostArray, convert, threefry};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::shape::Shape;
use crate::trace::Value;
use crate::trace::cell::Tensor;

/// Draws the first values of a model's parameters: one seed, one model, on every device.
///
/// Each draw takes the next stream of Threefry-2x32 under the seed's key. The numbers come about on
/// the host, so that making a model compiles nothing. The laws are torch's; the numbers are not.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let mut init = Init::seed(0);
/// let a = init.uniform([2, 3], -1.0, 1.0)?;
/// assert!(a.to_vec::<f32>()?.iter().all(|x| (-1.0..1.0).contains(x)));
/// assert_eq!(Init::seed(0).uniform([2, 3], -1.0, 1.0)?.to_vec::<f32>()?, a.to_vec::<f32>()?);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Init {
    key: [u32; 2],
    draws: u32,
    dtype: DType,
}

impl Init {
    /// Draws from `seed`, in f32.
    pub fn seed(seed: u64) -> Init {
        Init { key: [(seed >> 32) as u32, seed as u32], draws: 0, dtype: DType::F32 }
    }

    /// The same draws in another floating-point dtype.
    #[must_use]
    pub fn dtype(self, dtype: DType) -> Init {
        Init { dtype, ..self }
    }

    /// Uniform between `low` and `high`.
    ///
    /// # Errors
    /// If the dtype is not floating point, or the device refuses.
    pub fn uniform(&mut self, shape: impl Into<Shape>, low: f64, high: f64) -> Result<Tensor> {
        let shape = shape.into();
        let draws = self.bits(&shape)?;
        self.tensor(&shape, draws.into_iter().map(|(word, _)| unit(word) * (high - low) + low))
    }

    /// Normal with the given mean and standard deviation.
    ///
    /// # Errors
    /// If the dtype is not floating point, or the device refuses.
    pub fn normal(&mut self, shape: impl Into<Shape>, mean: f64, std: f64) -> Result<Tensor> {
        let shape = shape.into();
        let draws = self.bits(&shape)?;
        // Box and Muller: one number from two words.
        let normal = |(a, b): (u32, u32)| {
            let radius = (-2.0 * (1.0 - unit(a)).ln()).sqrt();
            radius * (std::f64::consts::TAU * unit(b)).cos()
        };
        self.tensor(&shape, draws.into_iter().map(|words| normal(words) * std + mean))
    }

    /// Uniform within `gain * sqrt(3 / fan_in)`, torch's `kaiming_uniform_` with that gain. The
    /// fan-in is the product of all sizes but the first.
    ///
    /// # Errors
    /// As [`Init::uniform`].
    pub fn kaiming_uniform(&mut self, shape: impl Into<Shape>, gain: f64) -> Result<Tensor> {
        let shape = shape.into();
        let bound = gain * (3.0 / fan_in(&shape) as f64).sqrt();
        self.uniform(shape, -bound, bound)
    }

    /// Uniform within `sqrt(6 / (fan_in + fan_out))`, torch's `xavier_uniform_`, for a matrix.
    ///
    /// # Errors
    /// As [`Init::uniform`].
    pub fn xavier_uniform(&mut self, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        let fan_out = shape.size() / shape.dims().get(1).copied().unwrap_or(1).max(1);
        let bound = (6.0 / (fan_in(&shape) + fan_out) as f64).sqrt();
        self.uniform(shape, -bound, bound)
    }

    /// What torch's `Linear` and convolutions draw: a weight of the given shape and, if wanted, a
    /// bias, both uniform within `1 / sqrt(fan_in)`.
    ///
    /// # Errors
    /// As [`Init::uniform`].
    pub fn weight_and_bias(
        &mut self,
        shape: impl Into<Shape>,
        bias: bool,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let shape = shape.into();
        let bound = 1.0 / (fan_in(&shape) as f64).sqrt();
        let outputs = shape.dims().first().copied().unwrap_or(1);
        let weight = self.uniform(shape, -bound, bound)?;
        let bias = bias.then(|| self.uniform([outputs], -bound, bound)).transpose()?;
        Ok((weight, bias))
    }

    /// `value` everywhere; takes no draw.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn full(&self, shape: impl Into<Shape>, value: f64) -> Result<Tensor> {
        upload(HostArray::full(Scalar::from_f64(self.dtype, value), &shape.into()))
    }

    /// Two words for each element, from the next stream.
    fn bits(&mut self, shape: &Shape) -> Result<Vec<(u32, u32)>> {
        if !self.dtype.is_float() {
            let text = format!("draws floating-point numbers, not {}", self.dtype);
            return Err(Error::new(ErrorKind::DType, "init", text));
        }
        let words = |value: u32| HostArray::full(Scalar::new(value), shape);
        let places: Vec<u32> = (0..shape.size() as u32).collect();
        let [k0, k1] = self.key.map(words);
        let (stream, places) = (words(self.draws), HostArray::from_slice(&places, shape)?);
        self.draws = self.draws.wrapping_add(1);
        let (a, b) = threefry::threefry2x32(&k0, &k1, &stream, &places);
        Ok(a.to_vec::<u32>()?.into_iter().zip(b.to_vec::<u32>()?).collect())
    }

    fn tensor(&self, shape: &Shape, numbers: impl Iterator<Item = f64>) -> Result<Tensor> {
        let numbers: Vec<f64> = numbers.collect();
        upload(convert::convert(&HostArray::from_slice(&numbers, shape)?, self.dtype))
    }
}

/// A fraction in `[0, 1)`, with the 24 bits that an f32 holds.
fn unit(word: u32) -> f64 {
    f64::from(word >> 8) / f64::from(1 << 24)
}

fn fan_in(shape: &Shape) -> usize {
    shape.dims().iter().skip(1).product::<usize>().max(1)
}

fn upload(host: HostArray) -> Result<Tensor> {
    let array = Array::upload(host, &Device::default()?, false)?;
    Ok(Tensor::from_value(Value::Array(array)))
}
