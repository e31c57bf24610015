//! Views: other shapes of the same storage. A write through a view changes its base, and a view
//! sees what was written to its base.
//!
//! Starts and indices are operands of the programs, so `x.narrow(0, k, 1)` compiles once for all
//! `k`.

use super::placed;
use super::promotion::{expand, first_of};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::call::fused;
use crate::shape::{self, Shape, inverse_permutation};
use crate::trace::Value;
use crate::trace::cell::Tensor;
use smallvec::smallvec;
use std::sync::Arc;

/// An index as an operand of a program.
pub(crate) fn index_value(index: usize) -> Value {
    Value::scalar(Scalar::new(index as i64))
}

/// The starts of a dynamic slice: `start` on `axis`, 0 elsewhere.
fn starts(rank: usize, axis: usize, start: &Value) -> Vec<Value> {
    (0..rank).map(|a| if a == axis { start.clone() } else { index_value(0) }).collect()
}

/// The part of `length` from `start` on one axis.
pub(crate) fn part(x: &Value, axis: usize, start: &Value, length: usize) -> Result<Value> {
    ops::dynamic_slice(x, &starts(x.rank(), axis, start), &x.shape().with(axis, length))
}

/// `x` with `new` from `start` on one axis.
fn with_part(x: &Value, new: &Value, axis: usize, start: &Value) -> Result<Value> {
    ops::dynamic_update_slice(x, new, &starts(x.rank(), axis, start))
}

fn select_at(x: &Value, axis: usize, index: usize) -> Result<Value> {
    let operands = [x.clone(), index_value(index)];
    first_of(
        "select",
        fused("select", &[axis as i64], &operands, |v| {
            let one = part(&v[0], axis, &v[1], 1)?;
            Ok(smallvec![ops::reshape(&one, &one.shape().remove(axis))?])
        }),
    )
}

fn with_selected(x: &Value, new: &Value, axis: usize, index: usize) -> Result<Value> {
    let operands = [x.clone(), new.clone(), index_value(index)];
    first_of(
        "select",
        fused("select_write", &[axis as i64], &operands, |v| {
            let one = ops::reshape(&v[1], &v[1].shape().insert(axis, 1))?;
            Ok(smallvec![with_part(&v[0], &one, axis, &v[2])?])
        }),
    )
}

/// Every `step`-th element from `start` on, `length` of them.
#[derive(Clone, Copy)]
struct Stride {
    axis: usize,
    start: usize,
    step: usize,
    length: usize,
}

impl Stride {
    fn span(self) -> usize {
        if self.length == 0 { 0 } else { (self.length - 1) * self.step + 1 }
    }

    fn params(self) -> [i64; 3] {
        [self.axis as i64, self.step as i64, self.length as i64]
    }

    fn read(self, x: &Value) -> Result<Value> {
        let start = index_value(self.start);
        if self.step == 1 {
            return part(x, self.axis, &start, self.length);
        }
        let operands = [x.clone(), start];
        first_of(
            "slice",
            fused("slice", &self.params(), &operands, |v| {
                let whole = part(&v[0], self.axis, &v[1], self.span())?;
                let mut steps = vec![1; whole.rank()];
                steps[self.axis] = self.step;
                Ok(smallvec![ops::slice(&whole, &vec![0; whole.rank()], whole.shape(), &steps)?])
            }),
        )
    }

    fn write(self, x: &Value, new: &Value) -> Result<Value> {
        let start = index_value(self.start);
        if self.step == 1 {
            return with_part(x, new, self.axis, &start);
        }
        let operands = [x.clone(), new.clone(), start];
        first_of(
            "slice",
            fused("slice_write", &self.params(), &operands, |v| {
                let spread = |v: &Value| {
                    let none = vec![0; v.rank()];
                    let mut interior = none.clone();
                    interior[self.axis] = self.step as i64 - 1;
                    ops::pad(v, &Value::scalar(Scalar::zero(v.dtype())), &none, &none, &interior)
                };
                let old = part(&v[0], self.axis, &v[2], self.span())?;
                let hit = spread(&ops::full(Scalar::new(true), v[1].shape())?)?;
                let merged = ops::select(&hit, &spread(&v[1])?, &old)?;
                Ok(smallvec![with_part(&v[0], &merged, self.axis, &v[2])?])
            }),
        )
    }
}

/// A diagonal of the last two axes.
#[derive(Clone, Copy)]
struct Diagonal {
    row: usize,
    column: usize,
    length: usize,
}

impl Diagonal {
    fn of(rows: usize, columns: usize, offset: i64) -> Diagonal {
        let (row, column) = ((-offset).max(0) as usize, offset.max(0) as usize);
        let length = rows.saturating_sub(row).min(columns.saturating_sub(column));
        Diagonal { row, column, length }
    }

    fn params(self) -> [i64; 3] {
        [self.row as i64, self.column as i64, self.length as i64]
    }

    /// A column of a matrix one wider: its elements stand one row and one column apart.
    fn read(self, x: &Value) -> Result<Value> {
        first_of(
            "diagonal",
            fused("diagonal", &self.params(), std::slice::from_ref(x), |v| {
                let rank = v[0].rank();
                let (rows, columns) = (rank - 2, rank - 1);
                let lead = Shape::new(&v[0].shape()[..rows]);
                let part = ops::slice_axis(&v[0], rows, self.row.min(v[0].shape()[rows]), {
                    (self.row + self.length).min(v[0].shape()[rows])
                })?;
                let n = self.length;
                if n == 0 {
                    return Ok(smallvec![ops::full(
                        Scalar::zero(part.dtype()),
                        &lead.insert(rows, 0)
                    )?]);
                }
                let part = ops::slice_axis(&part, columns, self.column, part.shape()[columns])?;
                let width = part.shape()[columns];
                let flat = ops::reshape(&part, &lead.insert(rows, n * width))?;
                let none = vec![0; rank - 1];
                let mut high = none.clone();
                high[rows] = n as i64;
                let zero = Value::scalar(Scalar::zero(flat.dtype()));
                let flat = ops::pad(&flat, &zero, &none, &high, &none)?;
                let square = ops::reshape(&flat, &lead.insert(rows, n).insert(columns, width + 1))?;
                Ok(smallvec![ops::index_axis(&square, columns, 0)?])
            }),
        )
    }

    fn write(self, x: &Value, new: &Value) -> Result<Value> {
        let operands = [x.clone(), new.clone()];
        first_of(
            "diagonal",
            fused("diagonal_write", &self.params(), &operands, |v| {
                let shape = v[0].shape();
                let rank = shape.rank();
                let none = vec![0; rank - 1];
                let (mut low, mut high) = (none.clone(), none.clone());
                low[rank - 2] = self.row as i64;
                high[rank - 2] = shape[rank - 2] as i64 - (self.row + self.length) as i64;
                let zero = Value::scalar(Scalar::zero(v[1].dtype()));
                let tall = ops::pad(&v[1], &zero, &low, &high, &none)?;
                let axes: Vec<usize> = (0..rank - 1).collect();
                let wide = ops::broadcast_in_dim(&tall, shape, &axes)?;
                let (rows, columns) = (
                    ops::iota(DType::I64, shape, rank - 2)?,
                    ops::iota(DType::I64, shape, rank - 1)?,
                );
                let offset = self.column as f64 - self.row as f64;
                let offset = ops::full_like(&rows, offset)?;
                let on = ops::eq(&ops::sub(&columns, &rows)?, &offset)?;
                Ok(smallvec![ops::select(&on, &wide, &v[0])?])
            }),
        )
    }
}

impl Tensor {
    #[track_caller]
    fn view_by(
        &self,
        op: &'static str,
        forward: impl Fn(&Value) -> Result<Value> + Send + Sync + 'static,
        backward: impl Fn(&Value, &Value) -> Result<Value> + Send + Sync + 'static,
    ) -> Result<Tensor> {
        let view = Tensor::view_of(self, Arc::new(forward), Arc::new(backward));
        placed(view.map_err(|e| e.in_op(op)))
    }

    #[track_caller]
    fn reshaped(&self, op: &'static str, shape: Shape) -> Result<Tensor> {
        self.view_by(
            op,
            move |x| ops::reshape(x, &shape),
            |base, new| ops::reshape(new, base.shape()),
        )
    }

    #[track_caller]
    fn permuted(&self, op: &'static str, perm: Vec<usize>) -> Result<Tensor> {
        let inverse = inverse_permutation(&perm);
        self.view_by(op, move |x| ops::permute(x, &perm), move |_, new| ops::permute(new, &inverse))
    }

    #[track_caller]
    fn axis_of(&self, op: &'static str, dim: i64) -> Result<usize> {
        let rank = self.dim();
        let axis = placed(shape::axis(op, dim, rank))?;
        if rank == 0 {
            let text = format!("dim {dim} of a tensor without dimensions");
            return placed(Err(Error::new(ErrorKind::Axis, op, text)));
        }
        Ok(axis)
    }

    /// The same elements, row-major, in another shape; one size may be -1. A view: writes reach
    /// `self`.
    ///
    /// **Unlike torch:** every reshape is a view, whatever the strides were.
    ///
    /// # Errors
    /// If the number of elements differs.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 6, 1)?;
    /// let y = x.view([2, -1])?;
    /// y.select(0, 1)?.fill_(9)?;
    /// assert_eq!(x.to_vec::<i64>()?, [0, 1, 2, 9, 9, 9]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.Tensor.view](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.view.html).
    #[track_caller]
    pub fn view(&self, shape: impl AsRef<[i64]>) -> Result<Tensor> {
        let shape = placed(shape::resolve_reshape("view", &self.shape(), shape.as_ref()))?;
        self.reshaped("view", shape)
    }

    /// As [`Tensor::view`].
    #[track_caller]
    pub fn reshape(&self, shape: impl AsRef<[i64]>) -> Result<Tensor> {
        let shape = placed(shape::resolve_reshape("reshape", &self.shape(), shape.as_ref()))?;
        self.reshaped("reshape", shape)
    }

    /// `self` in the shape of `other`, as a view.
    #[track_caller]
    pub fn view_as(&self, other: &Tensor) -> Result<Tensor> {
        self.reshaped("view_as", other.shape())
    }

    /// The dimensions `start_dim..=end_dim` as one. A view.
    ///
    /// **Source:** [torch.flatten](https://docs.pytorch.org/docs/stable/generated/torch.flatten.html).
    #[track_caller]
    pub fn flatten(&self, start_dim: i64, end_dim: i64) -> Result<Tensor> {
        let shape = self.shape();
        if shape.rank() == 0 {
            return self.reshaped("flatten", Shape::from([1]));
        }
        let start = self.axis_of("flatten", start_dim)?;
        let end = self.axis_of("flatten", end_dim)?;
        if start > end {
            let text = format!("dim {start_dim} comes after dim {end_dim}");
            return placed(Err(Error::new(ErrorKind::Axis, "flatten", text)));
        }
        let middle: usize = shape[start..=end].iter().product();
        let dims = shape[..start].iter().copied().chain([middle]);
        self.reshaped("flatten", dims.chain(shape[end + 1..].iter().copied()).collect())
    }

    /// One dimension as several; one size may be -1. A view.
    ///
    /// **Source:** [torch.unflatten](https://docs.pytorch.org/docs/stable/generated/torch.unflatten.html).
    #[track_caller]
    pub fn unflatten(&self, dim: i64, sizes: impl AsRef<[i64]>) -> Result<Tensor> {
        let shape = self.shape();
        let axis = self.axis_of("unflatten", dim)?;
        let one = Shape::from([shape[axis]]);
        let inner = placed(shape::resolve_reshape("unflatten", &one, sizes.as_ref()))?;
        let dims = shape[..axis].iter().chain(inner.iter()).chain(&shape[axis + 1..]);
        self.reshaped("unflatten", dims.copied().collect())
    }

    /// A new dimension of size 1 at `dim`. A view.
    ///
    /// **Source:** [torch.unsqueeze](https://docs.pytorch.org/docs/stable/generated/torch.unsqueeze.html).
    #[track_caller]
    pub fn unsqueeze(&self, dim: i64) -> Result<Tensor> {
        let axis = placed(shape::axis("unsqueeze", dim, self.dim() + 1))?;
        self.reshaped("unsqueeze", self.shape().insert(axis, 1))
    }

    /// Without any dimension of size 1. A view.
    ///
    /// **Source:** [torch.squeeze](https://docs.pytorch.org/docs/stable/generated/torch.squeeze.html).
    #[track_caller]
    pub fn squeeze(&self) -> Result<Tensor> {
        self.reshaped("squeeze", self.shape().iter().copied().filter(|&d| d != 1).collect())
    }

    /// Without those of the dimensions named that have size 1. A view.
    ///
    /// **Source:** [torch.squeeze](https://docs.pytorch.org/docs/stable/generated/torch.squeeze.html).
    #[track_caller]
    pub fn squeeze_dim(&self, dims: impl AsRef<[i64]>) -> Result<Tensor> {
        let shape = self.shape();
        let mut axes = placed(shape::axes("squeeze", dims.as_ref(), shape.rank()))?;
        axes.retain(|a| shape.get(*a) == Some(&1));
        self.reshaped("squeeze", shape.without(&axes))
    }

    /// The dimensions in the order `dims`. A view.
    ///
    /// # Errors
    /// If `dims` does not name each dimension once.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 6, 1)?.view([2, 3])?;
    /// assert_eq!(x.permute([1, 0])?.to_vec::<i64>()?, [0, 3, 1, 4, 2, 5]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.permute](https://docs.pytorch.org/docs/stable/generated/torch.permute.html).
    #[track_caller]
    pub fn permute(&self, dims: impl AsRef<[i64]>) -> Result<Tensor> {
        let perm = placed(shape::axes("permute", dims.as_ref(), self.dim()))?;
        if perm.len() != self.dim() {
            let text = format!("{:?} does not name each dim of {}", dims.as_ref(), self.aval());
            return placed(Err(Error::new(ErrorKind::Axis, "permute", text)));
        }
        self.permuted("permute", perm.to_vec())
    }

    /// Two dimensions exchanged. A view.
    ///
    /// **Source:** [torch.transpose](https://docs.pytorch.org/docs/stable/generated/torch.transpose.html).
    #[track_caller]
    pub fn transpose(&self, dim0: i64, dim1: i64) -> Result<Tensor> {
        let rank = self.dim();
        let (a, b) = placed((|| {
            Ok((shape::axis("transpose", dim0, rank)?, shape::axis("transpose", dim1, rank)?))
        })())?;
        let mut perm: Vec<usize> = (0..rank).collect();
        if rank > 0 {
            perm.swap(a, b);
        }
        self.permuted("transpose", perm)
    }

    /// As [`Tensor::transpose`].
    #[track_caller]
    pub fn swapaxes(&self, axis0: i64, axis1: i64) -> Result<Tensor> {
        self.transpose(axis0, axis1)
    }

    /// The transposed matrix; a tensor of fewer dimensions as it is. A view.
    ///
    /// # Errors
    /// If there are more than two dimensions.
    ///
    /// **Source:** [torch.t](https://docs.pytorch.org/docs/stable/generated/torch.t.html).
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        match self.dim() {
            0 | 1 => self.permuted("t", (0..self.dim()).collect()),
            2 => self.permuted("t", vec![1, 0]),
            _ => placed(Err(Error::new(
                ErrorKind::Shape,
                "t",
                format!("takes up to two dimensions, not {}", self.aval()),
            )
            .help("use `transpose` or `mt`"))),
        }
    }

    /// The last two dimensions exchanged (torch's `mT`). A view.
    #[track_caller]
    pub fn mt(&self) -> Result<Tensor> {
        self.transpose(-2, -1)
    }

    /// The dimensions `source` moved to the places `destination`; the others keep their order. A
    /// view.
    ///
    /// **Source:** [torch.movedim](https://docs.pytorch.org/docs/stable/generated/torch.movedim.html).
    #[track_caller]
    pub fn movedim(
        &self,
        source: impl AsRef<[i64]>,
        destination: impl AsRef<[i64]>,
    ) -> Result<Tensor> {
        let rank = self.dim();
        let from = placed(shape::axes("movedim", source.as_ref(), rank))?;
        let to = placed(shape::axes("movedim", destination.as_ref(), rank))?;
        if from.len() != to.len() {
            let text = format!("{} dims go to {} places", from.len(), to.len());
            return placed(Err(Error::new(ErrorKind::Axis, "movedim", text)));
        }
        let mut rest = (0..rank).filter(|a| !from.contains(a));
        let at = |axis: usize| match to.iter().position(|&t| t == axis) {
            Some(i) => from[i],
            None => rest.next().unwrap_or(axis),
        };
        self.permuted("movedim", (0..rank).map(at).collect())
    }

    /// Repeated to `shape` without copies: sizes of 1 stretch, -1 keeps the size. A view that
    /// cannot be written.
    ///
    /// # Errors
    /// If a size is neither 1 nor the one asked for.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 2, 1)?.view([2, 1])?;
    /// assert_eq!(x.expand([-1, 2])?.to_vec::<i64>()?, [0, 0, 1, 1]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.Tensor.expand](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.expand.html).
    #[track_caller]
    pub fn expand(&self, shape: impl AsRef<[i64]>) -> Result<Tensor> {
        let to = placed(expanded("expand", &self.shape(), shape.as_ref()))?;
        self.view_by(
            "expand",
            move |x| expand(x, &to),
            |_, new| {
                let text = format!("elements of the view {} share memory", new.aval());
                Err(Error::new(ErrorKind::Value, "expand", text)
                    .help("write to `copy()` of the expanded tensor"))
            },
        )
    }

    /// As [`Tensor::expand`].
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl AsRef<[i64]>) -> Result<Tensor> {
        self.expand(shape)
    }

    /// As [`Tensor::expand`], to the shape of `other`.
    #[track_caller]
    pub fn expand_as(&self, other: &Tensor) -> Result<Tensor> {
        self.expand(other.shape().iter().map(|&d| d as i64).collect::<Vec<_>>())
    }

    /// `length` elements of one dimension from `start` on; a negative start counts from the end. A
    /// view.
    ///
    /// # Errors
    /// If the range is not inside of the dimension.
    ///
    /// **Source:** [torch.narrow](https://docs.pytorch.org/docs/stable/generated/torch.narrow.html).
    #[track_caller]
    pub fn narrow(&self, dim: i64, start: i64, length: usize) -> Result<Tensor> {
        let axis = self.axis_of("narrow", dim)?;
        let size = self.shape()[axis];
        let from = if start < 0 { start + size as i64 } else { start };
        if from < 0 || from as usize + length > size {
            let text = format!(
                "start {start} and length {length} are outside of axis {axis} of {}",
                self.aval()
            );
            return placed(Err(Error::new(ErrorKind::Index, "narrow", text)));
        }
        self.strided("narrow", Stride { axis, start: from as usize, step: 1, length })
    }

    #[track_caller]
    fn strided(&self, op: &'static str, stride: Stride) -> Result<Tensor> {
        self.view_by(op, move |x| stride.read(x), move |base, new| stride.write(base, new))
    }

    /// Python's `start:end:step` on one dimension: ends are optional, negative ones count from the
    /// end, and what is outside is cut off. A view.
    ///
    /// # Errors
    /// If the step is not positive.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 6, 1)?;
    /// x.slice(0, Some(1), None, 2)?.fill_(0)?;
    /// assert_eq!(x.to_vec::<i64>()?, [0, 0, 2, 0, 4, 0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn slice(
        &self,
        dim: i64,
        start: Option<i64>,
        end: Option<i64>,
        step: i64,
    ) -> Result<Tensor> {
        let axis = self.axis_of("slice", dim)?;
        let size = self.shape()[axis] as i64;
        if step < 1 {
            let text = format!("step {step} is not positive");
            return placed(Err(Error::new(ErrorKind::Value, "slice", text).help("use `flip`")));
        }
        let clip = |i: i64| (if i < 0 { i.saturating_add(size) } else { i }).clamp(0, size);
        let (start, end) = (clip(start.unwrap_or(0)), clip(end.unwrap_or(size)));
        let length = ((end - start).max(0) as u64).div_ceil(step as u64) as usize;
        let start = if length == 0 { 0 } else { start as usize };
        self.strided("slice", Stride { axis, start, step: step as usize, length })
    }

    /// The element `index` of one dimension, which goes away; a negative one counts from the end.
    /// A view.
    ///
    /// # Errors
    /// If the index is outside of the dimension.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 4, 1)?.view([2, 2])?;
    /// assert_eq!(x.select(1, -1)?.to_vec::<i64>()?, [1, 3]);
    /// assert_eq!(*x.select(0, 2).unwrap_err().kind(), ErrorKind::Index);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.select](https://docs.pytorch.org/docs/stable/generated/torch.select.html).
    #[track_caller]
    pub fn select(&self, dim: i64, index: i64) -> Result<Tensor> {
        let axis = self.axis_of("select", dim)?;
        let size = self.shape()[axis] as i64;
        if index < -size || index >= size {
            let text = format!("index {index} is outside of axis {axis} of {}", self.aval());
            return placed(Err(Error::new(ErrorKind::Index, "select", text)));
        }
        let index = (if index < 0 { index + size } else { index }) as usize;
        self.view_by(
            "select",
            move |x| select_at(x, axis, index),
            move |base, new| with_selected(base, new, axis, index),
        )
    }

    /// The elements whose index in `dim2` is that in `dim1` plus `offset`, as a last dimension. A
    /// view.
    ///
    /// **Source:** [torch.diagonal](https://docs.pytorch.org/docs/stable/generated/torch.diagonal.html).
    #[track_caller]
    pub fn diagonal(&self, offset: i64, dim1: i64, dim2: i64) -> Result<Tensor> {
        let (a, b) = (self.axis_of("diagonal", dim1)?, self.axis_of("diagonal", dim2)?);
        if a == b {
            let text = format!("dims {dim1} and {dim2} are the same");
            return placed(Err(Error::new(ErrorKind::Axis, "diagonal", text)));
        }
        let shape = self.shape();
        let diagonal = Diagonal::of(shape[a], shape[b], offset);
        let perm: Vec<usize> =
            (0..shape.rank()).filter(|&axis| axis != a && axis != b).chain([a, b]).collect();
        let inverse = inverse_permutation(&perm);
        let back = perm.clone();
        self.view_by(
            "diagonal",
            move |x| diagonal.read(&ops::permute(x, &perm)?),
            move |base, new| {
                ops::permute(&diagonal.write(&ops::permute(base, &back)?, new)?, &inverse)
            },
        )
    }

    /// Parts of `split_size` along one dimension; the last may be smaller. Views.
    ///
    /// **Source:** [torch.split](https://docs.pytorch.org/docs/stable/generated/torch.split.html).
    #[track_caller]
    pub fn split(&self, split_size: usize, dim: i64) -> Result<Vec<Tensor>> {
        let axis = self.axis_of("split", dim)?;
        let size = self.shape()[axis];
        if split_size == 0 {
            let text = "the size of a part is 0";
            return placed(Err(Error::new(ErrorKind::Value, "split", text)));
        }
        let count = size.div_ceil(split_size).max(1);
        let length = |i: usize| split_size.min(size - i * split_size);
        let sizes: Vec<usize> = (0..count).map(length).collect();
        self.split_sizes(&sizes, dim)
    }

    /// Parts of the given sizes along one dimension. Views.
    ///
    /// # Errors
    /// If the sizes do not add up to the dimension's.
    #[track_caller]
    pub fn split_sizes(&self, sizes: &[usize], dim: i64) -> Result<Vec<Tensor>> {
        let axis = self.axis_of("split", dim)?;
        if sizes.iter().sum::<usize>() != self.shape()[axis] {
            let text = format!("sizes {sizes:?} do not add up to axis {axis} of {}", self.aval());
            return placed(Err(Error::new(ErrorKind::Shape, "split", text)));
        }
        let mut parts = Vec::with_capacity(sizes.len());
        let mut start = 0;
        for &length in sizes {
            parts.push(self.strided("split", Stride { axis, start, step: 1, length })?);
            start += length;
        }
        Ok(parts)
    }

    /// Up to `chunks` parts of equal size along one dimension; the last may be smaller. Views.
    ///
    /// **Source:** [torch.chunk](https://docs.pytorch.org/docs/stable/generated/torch.chunk.html).
    #[track_caller]
    pub fn chunk(&self, chunks: usize, dim: i64) -> Result<Vec<Tensor>> {
        let axis = self.axis_of("chunk", dim)?;
        if chunks == 0 {
            let text = "there is no way into 0 parts";
            return placed(Err(Error::new(ErrorKind::Value, "chunk", text)));
        }
        self.split(self.shape()[axis].div_ceil(chunks).max(1), dim)
    }

    /// The elements of one dimension, which goes away. Views.
    ///
    /// **Source:** [torch.unbind](https://docs.pytorch.org/docs/stable/generated/torch.unbind.html).
    #[track_caller]
    pub fn unbind(&self, dim: i64) -> Result<Vec<Tensor>> {
        let axis = self.axis_of("unbind", dim)?;
        let mut parts = Vec::with_capacity(self.shape()[axis]);
        for i in 0..self.shape()[axis] {
            parts.push(self.select(dim, i as i64)?);
        }
        Ok(parts)
    }
}

/// The shape that `expand` asks for.
fn expanded(op: &'static str, from: &Shape, to: &[i64]) -> Result<Shape> {
    let fail = |why: String| {
        Error::new(ErrorKind::Shape, op, format!("shape {from} cannot become {to:?}: {why}"))
    };
    let few = || fail(format!("it has {} dims, not up to {}", from.rank(), to.len()));
    let skip = to.len().checked_sub(from.rank()).ok_or_else(few)?;
    let size = |(i, &d): (usize, &i64)| match (i.checked_sub(skip).map(|i| from[i]), d) {
        (Some(old), -1) => Ok(old),
        (Some(old), d) if d >= 0 && (old == 1 || old == d as usize) => Ok(d as usize),
        (Some(old), d) => {
            Err(fail(format!("dim {} has size {old}, which is neither 1 nor {d}", i - skip)))
        }
        (None, d) if d >= 0 => Ok(d as usize),
        (None, d) => Err(fail(format!("size {d} of a new dim is not known"))),
    };
    to.iter().enumerate().map(size).collect::<Result<Vec<_>>>().map(Shape::from)
}
