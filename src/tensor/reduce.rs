//! Reductions.

use super::wrap;
use crate::error::Result;
use crate::ops;
use crate::trace::cell::Tensor;

impl Tensor {
    /// Sum of all elements.
    #[track_caller]
    pub fn sum(&self) -> Result<Tensor> {
        let x = self.value()?;
        let axes: Vec<usize> = (0..x.rank()).collect();
        wrap(ops::reduce_sum(&x, &axes))
    }
}
