//! Reading and writing at indices: `gather`, `scatter`, `index_select`, `embedding`.
//!
//! **Unlike torch**, an index out of range is no error, since the data are on the device: reading
//! gives NaN (the extreme value of integers), writing leaves it out. Negative indices count as out
//! of range.

use super::promotion::{Operand, expand, first_of};
use super::views::index_value;
use super::{placed, wrap};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::call::fused;
use crate::ops::{self, ScatterKind};
use crate::shape::{self, Shape};
use crate::trace::Value;
use crate::trace::cell::Tensor;
use smallvec::smallvec;

/// How a row is combined with others by [`Tensor::scatter_reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// The largest.
    Amax,
    /// The smallest.
    Amin,
}

#[cold]
fn bad_index(op: &'static str, x: &Value, index: &Value, why: &str) -> Error {
    let text = format!("index {} does not fit {}: {why}", index.aval(), x.aval());
    Error::new(ErrorKind::Shape, op, text)
}

/// Checks an index that goes along the axes of `x`: equal ranks, no axis but `axis` longer.
fn check_along(op: &'static str, x: &Value, index: &Value, axis: usize) -> Result<()> {
    if !index.dtype().is_int() {
        let text = format!("the index is {}, not integers", index.aval());
        return Err(Error::new(ErrorKind::DType, op, text));
    }
    if index.rank() != x.rank() {
        return Err(bad_index(op, x, index, "the ranks differ"));
    }
    let longer = |a: usize| a != axis && index.shape()[a] > x.shape()[a];
    if (0..x.rank()).any(longer) {
        return Err(bad_index(op, x, index, "it is longer on another axis"));
    }
    Ok(())
}

/// `x` cut to the sizes of `index`, but for `axis`.
fn cut(x: &Value, index: &Value, axis: usize) -> Result<Value> {
    let shape = index.shape().with(axis, x.shape()[axis]);
    ops::slice(x, &vec![0; x.rank()], &shape, &vec![1; x.rank()])
}

/// The element of `x` at each index along the axis.
pub(crate) fn gather(op: &'static str, x: &Value, index: &Value, dim: i64) -> Result<Value> {
    let axis = shape::axis(op, dim, x.rank())?;
    if x.rank() == 0 && index.rank() == 0 {
        return Ok(x.clone());
    }
    check_along(op, x, index, axis)?;
    first_of(
        op,
        fused("gather", &[axis as i64], &[x.clone(), index.clone()], |v| {
            Ok(smallvec![ops::take_along_axis(&cut(&v[0], &v[1], axis)?, &v[1], axis)?])
        }),
    )
}

fn scatter(
    op: &'static str,
    x: &Tensor,
    dim: i64,
    index: &Tensor,
    src: Operand<'_>,
    kind: ScatterKind,
) -> Result<Value> {
    let (x, index) = (x.value()?, index.value()?);
    let axis = shape::axis(op, dim, x.rank())?;
    check_along(op, &x, &index, axis)?;
    let src = match src {
        Operand::Scalar(scalar) => Value::scalar(scalar.convert(x.dtype())),
        Operand::Tensor(tensor) => tensor.value()?,
    };
    if src.dtype() != x.dtype() {
        let text = format!("the source {} has not the dtype of {}", src.aval(), x.aval());
        return Err(Error::new(ErrorKind::DType, op, text));
    }
    let fits = src.rank() == 0
        || (src.rank() == x.rank() && (0..x.rank()).all(|a| index.shape()[a] <= src.shape()[a]));
    if !fits {
        return Err(bad_index(op, &src, &index, "the source is smaller"));
    }
    let params = [axis as i64, kind as i64];
    first_of(
        op,
        fused("scatter", &params, &[x, index, src], |v| {
            let (x, index) = (&v[0], &v[1]);
            let src = if v[2].rank() == 0 {
                expand(&v[2], index.shape())?
            } else {
                ops::slice(&v[2], &vec![0; x.rank()], index.shape(), &vec![1; x.rank()])?
            };
            let part = cut(x, index, axis)?;
            let new = ops::scatter_along_axis(&part, index, &src, axis, kind)?;
            if new.shape() == x.shape() {
                return Ok(smallvec![new]);
            }
            let starts = vec![index_value(0); x.rank()];
            Ok(smallvec![ops::dynamic_update_slice(x, &new, &starts)?])
        }),
    )
}

/// Checks a vector of indices along one axis, and gives that axis.
fn along(op: &'static str, x: &Value, dim: i64, index: &Value) -> Result<usize> {
    if index.rank() > 1 || !index.dtype().is_int() {
        return Err(bad_index(op, x, index, "it must be a vector of integers"));
    }
    if x.rank() == 0 {
        let text = format!("dim {dim} of a tensor without dimensions");
        return Err(Error::new(ErrorKind::Axis, op, text));
    }
    shape::axis(op, dim, x.rank())
}

/// A vector of indices, repeated over the other axes of rows that are written.
fn index_rows(
    op: &'static str,
    x: &Tensor,
    dim: i64,
    index: &Tensor,
    source: &Tensor,
    kind: ScatterKind,
) -> Result<Value> {
    let (x, index, source) = (x.value()?, index.value()?, source.value()?);
    let axis = along(op, &x, dim, &index)?;
    let rows = x.shape().with(axis, index.shape().size());
    if source.shape() != &rows || source.dtype() != x.dtype() {
        let text = format!("the source is {}, not {}{rows}", source.aval(), x.dtype());
        return Err(Error::new(ErrorKind::Shape, op, text));
    }
    let params = [axis as i64, kind as i64];
    first_of(
        op,
        fused("index_rows", &params, &[x, index, source], |v| {
            let index = ops::reshape(&v[1], &Shape::from([v[1].shape().size()]))?;
            let index = ops::broadcast_in_dim(&index, v[2].shape(), &[axis])?;
            Ok(smallvec![ops::scatter_along_axis(&v[0], &index, &v[2], axis, kind)?])
        }),
    )
}

impl Tensor {
    /// For each element of `index` the element of `self` at that place along `dim`.
    ///
    /// **Shapes:** `index` has the rank of `self` and is on no other dimension longer; the result
    /// has its shape.
    ///
    /// # Errors
    /// If the index does not fit or is not of integers.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 6, 1)?.view([2, 3])?;
    /// let index = Tensor::from_slice(&[2i64, 0], [2, 1])?;
    /// assert_eq!(x.gather(1, &index)?.to_vec::<i64>()?, [2, 3]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.gather](https://docs.pytorch.org/docs/stable/generated/torch.gather.html).
    #[track_caller]
    pub fn gather(&self, dim: i64, index: &Tensor) -> Result<Tensor> {
        wrap(self.value().and_then(|x| gather("gather", &x, &index.value()?, dim)))
    }

    /// As [`Tensor::gather`], in any order of indices (`torch.take_along_dim` without broadcasting).
    #[track_caller]
    pub fn take_along_dim(&self, index: &Tensor, dim: i64) -> Result<Tensor> {
        self.gather(dim, index)
    }

    /// `self` with the elements of `src` at the places along `dim` that `index` says.
    ///
    /// # Errors
    /// If index or source do not fit, or dtypes differ.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let index = Tensor::from_slice(&[2i64, 0], [2])?;
    /// let y = Tensor::zeros([3], DType::F32)?.scatter(0, &index, 5.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [5.0, 0.0, 5.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.scatter](https://docs.pytorch.org/docs/stable/generated/torch.scatter.html).
    #[track_caller]
    pub fn scatter<'t>(
        &self,
        dim: i64,
        index: &Tensor,
        src: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        wrap(scatter("scatter", self, dim, index, src.into(), ScatterKind::Set))
    }

    /// `self` plus the elements of `src` at the places along `dim` that `index` says.
    ///
    /// **Source:** [torch.scatter_add](https://docs.pytorch.org/docs/stable/generated/torch.scatter_add.html).
    #[track_caller]
    pub fn scatter_add<'t>(
        &self,
        dim: i64,
        index: &Tensor,
        src: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        wrap(scatter("scatter_add", self, dim, index, src.into(), ScatterKind::Add))
    }

    /// `self` combined with the elements of `src` at the places along `dim` that `index` says.
    ///
    /// **Source:** [torch.scatter_reduce](https://docs.pytorch.org/docs/stable/generated/torch.scatter_reduce.html), with `include_self`.
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        dim: i64,
        index: &Tensor,
        src: &Tensor,
        reduce: Reduce,
    ) -> Result<Tensor> {
        let kind = match reduce {
            Reduce::Sum => ScatterKind::Add,
            Reduce::Prod => ScatterKind::Mul,
            Reduce::Amax => ScatterKind::Max,
            Reduce::Amin => ScatterKind::Min,
        };
        wrap(scatter("scatter_reduce", self, dim, index, src.into(), kind))
    }

    /// Writes [`Tensor::scatter`] of `self`.
    #[track_caller]
    pub fn scatter_<'t>(
        &self,
        dim: i64,
        index: &Tensor,
        src: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        placed(self.store("scatter_", self.scatter(dim, index, src)))
    }

    /// Writes [`Tensor::scatter_add`] of `self`.
    #[track_caller]
    pub fn scatter_add_<'t>(
        &self,
        dim: i64,
        index: &Tensor,
        src: impl Into<Operand<'t>>,
    ) -> Result<Tensor> {
        placed(self.store("scatter_add_", self.scatter_add(dim, index, src)))
    }

    /// The parts of `self` along `dim` that the vector `index` names, in its order.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 6, 1)?.view([3, 2])?;
    /// let index = Tensor::from_slice(&[2i64, 0], [2])?;
    /// assert_eq!(x.index_select(0, &index)?.to_vec::<i64>()?, [4, 5, 0, 1]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.index_select](https://docs.pytorch.org/docs/stable/generated/torch.index_select.html).
    #[track_caller]
    pub fn index_select(&self, dim: i64, index: &Tensor) -> Result<Tensor> {
        let run = || {
            let (x, index) = (self.value()?, index.value()?);
            let axis = along("index_select", &x, dim, &index)?;
            let index = ops::reshape(&index, &Shape::from([index.shape().size()]))?;
            ops::take(&x, &index, axis).map_err(|e| e.in_op("index_select"))
        };
        wrap(run())
    }

    /// `self` plus the parts of `source` at the places along `dim` that the vector `index` names.
    ///
    /// **Source:** [torch.index_add](https://docs.pytorch.org/docs/stable/generated/torch.index_add.html).
    #[track_caller]
    pub fn index_add(&self, dim: i64, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        wrap(index_rows("index_add", self, dim, index, source, ScatterKind::Add))
    }

    /// `self` with the parts of `source` at the places along `dim` that the vector `index` names.
    ///
    /// **Source:** [torch.index_copy](https://docs.pytorch.org/docs/stable/generated/torch.index_copy.html).
    #[track_caller]
    pub fn index_copy(&self, dim: i64, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        wrap(index_rows("index_copy", self, dim, index, source, ScatterKind::Set))
    }

    /// Writes [`Tensor::index_add`] of `self`.
    #[track_caller]
    pub fn index_add_(&self, dim: i64, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        placed(self.store("index_add_", self.index_add(dim, index, source)))
    }

    /// Writes [`Tensor::index_copy`] of `self`.
    #[track_caller]
    pub fn index_copy_(&self, dim: i64, index: &Tensor, source: &Tensor) -> Result<Tensor> {
        placed(self.store("index_copy_", self.index_copy(dim, index, source)))
    }

    /// The rows of `weight` that the integers of `self` name: `[..]` and `[n, d]` give `[.., d]`.
    ///
    /// # Errors
    /// If `self` is not of integers, or `weight` no matrix.
    ///
    /// **Source:** [torch.nn.functional.embedding](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html).
    #[track_caller]
    pub fn embedding(&self, weight: &Tensor) -> Result<Tensor> {
        let run = || {
            let (index, weight) = (self.value()?, weight.value()?);
            if weight.rank() != 2 || !matches!(index.dtype(), DType::I64 | DType::I32) {
                return Err(bad_index(
                    "embedding",
                    &weight,
                    &index,
                    "it needs integers and a matrix",
                ));
            }
            ops::take(&weight, &index, 0).map_err(|e| e.in_op("embedding"))
        };
        wrap(run())
    }
}
