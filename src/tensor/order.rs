//! Order and running results along a dimension: `sort`, `topk`, `cumsum`, ….

use super::reduce::Types;
use super::{placed, wrap};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::call::fused;
use crate::shape::{self, Shape};
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};

/// Values in order along an axis, with the indices they came from, as `i64`.
fn sorted(x: &Value, axis: usize, descending: bool) -> Result<Values> {
    let indices = ops::iota(DType::I64, x.shape(), axis)?;
    ops::sort(&[x.clone(), indices], axis, 1, descending)
}

impl Tensor {
    /// One program that gives values and their indices along `dim`.
    #[track_caller]
    fn ordered(
        &self,
        op: &'static str,
        dim: i64,
        params: &[i64],
        f: impl FnOnce(&Value, usize) -> Result<Values>,
    ) -> Result<(Tensor, Tensor)> {
        let run = || {
            let x = self.value()?;
            let axis = shape::axis(op, dim, x.rank())?;
            let key: Vec<i64> =
                std::iter::once(axis as i64).chain(params.iter().copied()).collect();
            let mut outs = fused(op, &key, &[x], |v| {
                if v[0].rank() > 0 {
                    return f(&v[0], axis);
                }
                let outs = f(&ops::reshape(&v[0], &Shape::from([1]))?, 0)?;
                outs.iter().map(|o| ops::reshape(o, &Shape::scalar())).collect()
            })
            .map_err(|e| e.in_op(op))?;
            let indices = outs.swap_remove(1);
            Ok((outs.swap_remove(0), indices))
        };
        let (values, indices) = placed(run())?;
        Ok((Tensor::from_value(values), Tensor::from_value(indices)))
    }

    /// The elements in order along `dim`, and the indices they came from. Equal elements keep their
    /// order; NaN counts as largest.
    ///
    /// # Errors
    /// If the dimension is out of range or the dtype is complex.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[3i64, 1, 2], [3])?;
    /// let (values, indices) = x.sort(0, false)?;
    /// assert_eq!(values.to_vec::<i64>()?, [1, 2, 3]);
    /// assert_eq!(indices.to_vec::<i64>()?, [1, 2, 0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.sort](https://docs.pytorch.org/docs/stable/generated/torch.sort.html).
    #[track_caller]
    pub fn sort(&self, dim: i64, descending: bool) -> Result<(Tensor, Tensor)> {
        let params = [i64::from(descending)];
        self.ordered("sort", dim, &params, |x, axis| sorted(x, axis, descending))
    }

    /// The indices that put the elements in order along `dim`.
    ///
    /// **Source:** [torch.argsort](https://docs.pytorch.org/docs/stable/generated/torch.argsort.html).
    #[track_caller]
    pub fn argsort(&self, dim: i64, descending: bool) -> Result<Tensor> {
        Ok(self.sort(dim, descending)?.1)
    }

    /// The `k` largest elements along `dim` (or smallest, if not `largest`), in order, and their
    /// indices.
    ///
    /// # Errors
    /// If the dimension is out of range or has fewer than `k` elements.
    ///
    /// **Source:** [torch.topk](https://docs.pytorch.org/docs/stable/generated/torch.topk.html).
    #[track_caller]
    pub fn topk(&self, k: usize, dim: i64, largest: bool) -> Result<(Tensor, Tensor)> {
        let params = [k as i64, i64::from(largest)];
        self.ordered("topk", dim, &params, |x, axis| {
            let outs = sorted(x, axis, largest)?;
            outs.iter().map(|o| ops::slice_axis(o, axis, 0, k)).collect()
        })
    }

    /// The `k`-th smallest element along `dim`, from 1, and its index; the dimension goes away.
    ///
    /// **Source:** [torch.kthvalue](https://docs.pytorch.org/docs/stable/generated/torch.kthvalue.html).
    #[track_caller]
    pub fn kthvalue(&self, k: usize, dim: i64) -> Result<(Tensor, Tensor)> {
        self.ordered("kthvalue", dim, &[k as i64], |x, axis| {
            if k == 0 || k > x.shape()[axis] {
                let text = format!("k is {k}, axis {axis} of {} has no such place", x.aval());
                return Err(Error::new(ErrorKind::Value, "kthvalue", text));
            }
            let outs = sorted(x, axis, false)?;
            outs.iter().map(|o| ops::index_axis(o, axis, k - 1)).collect()
        })
    }

    /// The lower of the middle elements along `dim`, and its index; the dimension goes away.
    ///
    /// **Unlike torch:** NaN counts as largest rather than win.
    ///
    /// **Source:** [torch.median](https://docs.pytorch.org/docs/stable/generated/torch.median.html).
    #[track_caller]
    pub fn median(&self, dim: i64) -> Result<(Tensor, Tensor)> {
        let axis = placed(shape::axis("median", dim, self.dim()))?;
        let size = self.shape().get(axis).copied().unwrap_or(1);
        self.kthvalue(size.div_ceil(2), dim)
    }

    #[track_caller]
    fn cumulative(
        &self,
        op: &'static str,
        dim: i64,
        types: Types,
        f: impl FnOnce(&Value, usize) -> Result<Value>,
    ) -> Result<Tensor> {
        let run = || {
            let x = self.value()?;
            let axis = shape::axis(op, dim, x.rank())?;
            let x = ops::convert(&x, types.out)?;
            if x.rank() == 0 { Ok(x) } else { f(&x, axis).map_err(|e| e.in_op(op)) }
        };
        wrap(run())
    }

    /// The sums of all elements up to each one along `dim`. **Dtypes:** numbers; integers give
    /// `i64`.
    ///
    /// **Source:** [torch.cumsum](https://docs.pytorch.org/docs/stable/generated/torch.cumsum.html).
    #[track_caller]
    pub fn cumsum(&self, dim: i64) -> Result<Tensor> {
        self.cumulative("cumsum", dim, Types::sum(self.dtype()), |x, axis| {
            ops::cumsum(x, axis, false)
        })
    }

    /// The products of all elements up to each one along `dim`. **Dtypes:** numbers; integers give
    /// `i64`.
    ///
    /// **Source:** [torch.cumprod](https://docs.pytorch.org/docs/stable/generated/torch.cumprod.html).
    #[track_caller]
    pub fn cumprod(&self, dim: i64) -> Result<Tensor> {
        self.cumulative("cumprod", dim, Types::sum(self.dtype()), |x, axis| {
            ops::cumprod(x, axis, false)
        })
    }
}
