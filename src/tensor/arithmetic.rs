//! Arithmetic.

use super::wrap;
use crate::error::Result;
use crate::ops;
use crate::trace::cell::Tensor;

impl Tensor {
    /// Product.
    #[track_caller]
    pub fn mul(&self, rhs: &Tensor) -> Result<Tensor> {
        wrap(ops::mul(&self.value()?, &rhs.value()?))
    }
    /// Sine.
    #[track_caller]
    pub fn sin(&self) -> Result<Tensor> {
        wrap(ops::sin(&self.value()?))
    }
    /// Sum of all elements.
    #[track_caller]
    pub fn sum(&self) -> Result<Tensor> {
        let x = self.value()?;
        let axes: Vec<usize> = (0..x.rank()).collect();
        wrap(ops::reduce_sum(&x, &axes))
    }
}
