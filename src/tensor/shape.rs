//! Methods that move and repeat elements into a tensor of its own.

use super::promotion::{Operand, first_of, result_type};
use super::views::{index_value, part};
use super::{placed, wrap};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::call::fused;
use crate::shape::{self, Shape};
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use smallvec::smallvec;

/// What [`Tensor::pad_mode`] puts around a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadMode {
    /// The elements mirrored at the edge, which is not repeated.
    Reflect,
    /// The edge element.
    Replicate,
    /// The elements of the other end.
    Circular,
}

impl Tensor {
    /// The tensors one after the other along one dimension, in their promoted dtype.
    ///
    /// # Errors
    /// If there is no tensor, or the other dimensions differ in size.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 2, 1)?;
    /// assert_eq!(Tensor::cat(&[&x, &x], 0)?.to_vec::<i64>()?, [0, 1, 0, 1]);
    /// assert_eq!(Tensor::stack(&[&x, &x], 1)?.to_vec::<i64>()?, [0, 0, 1, 1]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.cat](https://docs.pytorch.org/docs/stable/generated/torch.cat.html).
    #[track_caller]
    pub fn cat<T: AsRef<Tensor>>(tensors: &[T], dim: i64) -> Result<Tensor> {
        wrap(cat(tensors, dim))
    }

    /// The tensors, all of one shape, along a new dimension, in their promoted dtype.
    ///
    /// **Source:** [torch.stack](https://docs.pytorch.org/docs/stable/generated/torch.stack.html).
    #[track_caller]
    pub fn stack<T: AsRef<Tensor>>(tensors: &[T], dim: i64) -> Result<Tensor> {
        wrap(stack(tensors, dim))
    }

    /// The whole tensor `repeats[i]` times along dimension `i`; more repeats than dimensions make
    /// new dimensions in front.
    ///
    /// **Source:** [torch.Tensor.repeat](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.repeat.html).
    #[track_caller]
    pub fn repeat(&self, repeats: &[usize]) -> Result<Tensor> {
        wrap(self.value().and_then(|x| repeat(&x, repeats)))
    }

    /// Each element `repeats` times in a row along one dimension.
    ///
    /// **Source:** [torch.repeat_interleave](https://docs.pytorch.org/docs/stable/generated/torch.repeat_interleave.html).
    #[track_caller]
    pub fn repeat_interleave(&self, repeats: usize, dim: i64) -> Result<Tensor> {
        let run = || {
            let x = self.value()?;
            let axis = shape::axis("repeat_interleave", dim, x.rank())?;
            let params = [repeats as i64, axis as i64];
            first_of(
                "repeat_interleave",
                fused("repeat_interleave", &params, &[x], |v| {
                    let axes: Vec<usize> = (0..=v[0].rank()).filter(|&a| a != axis + 1).collect();
                    let wide = v[0].shape().insert(axis + 1, repeats);
                    let wide = ops::broadcast_in_dim(&v[0], &wide, &axes)?;
                    let size = v[0].shape()[axis] * repeats;
                    Ok(smallvec![ops::reshape(&wide, &v[0].shape().with(axis, size))?])
                }),
            )
        };
        wrap(run())
    }

    /// The elements in reverse order along the given dimensions.
    ///
    /// **Source:** [torch.flip](https://docs.pytorch.org/docs/stable/generated/torch.flip.html).
    #[track_caller]
    pub fn flip(&self, dims: impl AsRef<[i64]>) -> Result<Tensor> {
        let run = || {
            let x = self.value()?;
            let axes = shape::axes("flip", dims.as_ref(), x.rank())?;
            if x.rank() == 0 { Ok(x) } else { ops::reverse(&x, &axes) }
        };
        wrap(run())
    }

    /// The elements moved by `shift` along one dimension; what leaves at one end comes in at the
    /// other.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// assert_eq!(Tensor::arange(0, 4, 1)?.roll(1, 0)?.to_vec::<i64>()?, [3, 0, 1, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.roll](https://docs.pytorch.org/docs/stable/generated/torch.roll.html).
    #[track_caller]
    pub fn roll(&self, shift: i64, dim: i64) -> Result<Tensor> {
        wrap(self.value().and_then(|x| roll(&x, shift, dim)))
    }

    /// The matrices with zeros above the given diagonal (0: the main one, 1: the one above).
    ///
    /// **Source:** [torch.tril](https://docs.pytorch.org/docs/stable/generated/torch.tril.html).
    #[track_caller]
    pub fn tril(&self, diagonal: i64) -> Result<Tensor> {
        wrap(self.value().and_then(|x| triangle("tril", &x, diagonal, ops::le)))
    }

    /// The matrices with zeros below the given diagonal (0: the main one, 1: the one above).
    ///
    /// **Source:** [torch.triu](https://docs.pytorch.org/docs/stable/generated/torch.triu.html).
    #[track_caller]
    pub fn triu(&self, diagonal: i64) -> Result<Tensor> {
        wrap(self.value().and_then(|x| triangle("triu", &x, diagonal, ops::ge)))
    }

    /// `value` around the tensor: `pad` has two sizes, before and after, for each dimension from
    /// the last on; negative ones cut off.
    ///
    /// # Errors
    /// If `pad` is of odd length or longer than there are dimensions, or more is cut off than there
    /// is.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 2, 1)?;
    /// assert_eq!(x.pad(&[1, 2], 7)?.to_vec::<i64>()?, [7, 0, 1, 7, 7]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.nn.functional.pad](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.pad.html).
    #[track_caller]
    pub fn pad<'t>(&'t self, pad: &[i64], value: impl Into<Operand<'t>>) -> Result<Tensor> {
        let run = || {
            let x = self.value()?;
            let (low, high) = sides(&x, pad)?;
            let value = ops::convert(&value.into().value()?, x.dtype())?;
            ops::pad(&x, &value, &low, &high, &vec![0; x.rank()])
        };
        wrap(run())
    }

    /// Elements of the tensor itself around it; `pad` as in [`Tensor::pad`], not negative.
    ///
    /// # Errors
    /// As [`Tensor::pad`]; if a side is longer than what it is taken from.
    #[track_caller]
    pub fn pad_mode(&self, pad: &[i64], mode: PadMode) -> Result<Tensor> {
        let run = || {
            let x = self.value()?;
            let (low, high) = sides(&x, pad)?;
            check_sides(&x, &low, &high, mode)?;
            let params: Vec<i64> =
                std::iter::once(mode as i64).chain(pad.iter().copied()).collect();
            first_of(
                "pad",
                fused("pad_mode", &params, &[x], |v| {
                    let mut out = v[0].clone();
                    for axis in 0..out.rank() {
                        out = pad_axis(&out, axis, low[axis] as usize, high[axis] as usize, mode)?;
                    }
                    Ok(smallvec![out])
                }),
            )
        };
        wrap(run())
    }

    /// The grids of coordinates of several vectors, indexed as matrices (`ij`).
    ///
    /// **Source:** [torch.meshgrid](https://docs.pytorch.org/docs/stable/generated/torch.meshgrid.html).
    #[track_caller]
    pub fn meshgrid<T: AsRef<Tensor>>(tensors: &[T]) -> Result<Vec<Tensor>> {
        let sizes: Vec<i64> = tensors.iter().map(|t| t.as_ref().numel() as i64).collect();
        let mut grids = Vec::with_capacity(sizes.len());
        for (i, tensor) in tensors.iter().enumerate() {
            let mut own = vec![1; sizes.len()];
            own[i] = sizes[i];
            grids.push(tensor.as_ref().view(own)?.expand(&sizes)?);
        }
        Ok(grids)
    }

    /// Of a vector the square matrix with it on a diagonal; of a matrix its diagonal.
    ///
    /// **Source:** [torch.diag](https://docs.pytorch.org/docs/stable/generated/torch.diag.html).
    #[track_caller]
    pub fn diag(&self, diagonal: i64) -> Result<Tensor> {
        match self.dim() {
            1 => {
                let n = self.numel() + diagonal.unsigned_abs() as usize;
                let square = Tensor::zeros([n, n], self.dtype())?;
                square.diagonal(diagonal, 0, 1)?.copy_(self)?;
                Ok(square)
            }
            2 => self.diagonal(diagonal, 0, 1)?.copy(),
            _ => placed(Err(Error::new(
                ErrorKind::Shape,
                "diag",
                format!("takes a vector or a matrix, not {}", self.aval()),
            ))),
        }
    }
}

impl AsRef<Tensor> for Tensor {
    fn as_ref(&self) -> &Tensor {
        self
    }
}

/// The tensors' values and promoted dtype.
fn promoted<T: AsRef<Tensor>>(op: &'static str, tensors: &[T]) -> Result<(Values, DType)> {
    if tensors.is_empty() {
        return Err(Error::new(ErrorKind::Value, op, "there are no tensors"));
    }
    let operands: Vec<Operand<'_>> = tensors.iter().map(|t| t.as_ref().into()).collect();
    let dtype = result_type(&operands).map_err(|e| e.in_op(op))?;
    let values = tensors.iter().map(|t| t.as_ref().value()).collect::<Result<_>>()?;
    Ok((values, dtype))
}

fn cat<T: AsRef<Tensor>>(tensors: &[T], dim: i64) -> Result<Value> {
    let (mut values, dtype) = promoted("cat", tensors)?;
    // An empty vector takes no part, as in torch.
    if values.iter().any(|v| v.rank() != 1) {
        values.retain(|v| v.shape().dims() != [0]);
    }
    let axis = shape::axis("cat", dim, values[0].rank())?;
    let params = [axis as i64, dtype as i64];
    first_of(
        "cat",
        fused("cat", &params, &values, |v| {
            let alike: Values = v.iter().map(|v| ops::convert(v, dtype)).collect::<Result<_>>()?;
            Ok(smallvec![ops::concatenate(&alike, axis)?])
        }),
    )
}

fn stack<T: AsRef<Tensor>>(tensors: &[T], dim: i64) -> Result<Value> {
    let (values, dtype) = promoted("stack", tensors)?;
    let axis = shape::axis("stack", dim, values[0].rank() + 1)?;
    if let Some(other) = values.iter().find(|v| v.shape() != values[0].shape()) {
        let text = format!("{} and {} differ in shape", values[0].aval(), other.aval());
        return Err(Error::new(ErrorKind::Shape, "stack", text));
    }
    let params = [axis as i64, dtype as i64];
    first_of(
        "stack",
        fused("stack", &params, &values, |v| {
            let alike: Values = v.iter().map(|v| ops::convert(v, dtype)).collect::<Result<_>>()?;
            Ok(smallvec![ops::stack(&alike, axis)?])
        }),
    )
}

fn repeat(x: &Value, repeats: &[usize]) -> Result<Value> {
    let Some(new) = repeats.len().checked_sub(x.rank()) else {
        let text = format!("{} repeats do not name all dims of {}", repeats.len(), x.aval());
        return Err(Error::new(ErrorKind::Shape, "repeat", text));
    };
    let params: Vec<i64> = repeats.iter().map(|&n| n as i64).collect();
    first_of(
        "repeat",
        fused("repeat", &params, std::slice::from_ref(x), |v| {
            let sizes: Vec<usize> =
                vec![1; new].into_iter().chain(v[0].shape().iter().copied()).collect();
            let wide: Shape = repeats.iter().zip(&sizes).flat_map(|(&n, &d)| [n, d]).collect();
            let axes: Vec<usize> = (new..sizes.len()).map(|a| 2 * a + 1).collect();
            let out: Shape = repeats.iter().zip(&sizes).map(|(n, d)| n * d).collect();
            Ok(smallvec![ops::reshape(&ops::broadcast_in_dim(&v[0], &wide, &axes)?, &out)?])
        }),
    )
}

fn roll(x: &Value, shift: i64, dim: i64) -> Result<Value> {
    let axis = shape::axis("roll", dim, x.rank())?;
    let Some(&size) = x.shape().get(axis).filter(|&&n| n > 0) else { return Ok(x.clone()) };
    let start = (-shift).rem_euclid(size as i64) as usize;
    first_of(
        "roll",
        fused("roll", &[axis as i64], &[x.clone(), index_value(start)], |v| {
            let twice = ops::concatenate(&[v[0].clone(), v[0].clone()], axis)?;
            Ok(smallvec![part(&twice, axis, &v[1], size)?])
        }),
    )
}

/// `x` where `keep(column - row, diagonal)`, zeros elsewhere.
fn triangle(
    op: &'static str,
    x: &Value,
    diagonal: i64,
    keep: impl FnOnce(&Value, &Value) -> Result<Value>,
) -> Result<Value> {
    if x.rank() < 2 {
        let text = format!("takes two or more dimensions, not {}", x.aval());
        return Err(Error::new(ErrorKind::Shape, op, text));
    }
    let operands = [x.clone(), Value::scalar(Scalar::new(diagonal))];
    first_of(
        op,
        fused(op, &[], &operands, |v| {
            let (shape, rank) = (v[0].shape(), v[0].rank());
            let (rows, columns) =
                (ops::iota(DType::I64, shape, rank - 2)?, ops::iota(DType::I64, shape, rank - 1)?);
            let limit = ops::broadcast_in_dim(&v[1], shape, &[])?;
            let kept = keep(&ops::sub(&columns, &rows)?, &limit)?;
            Ok(smallvec![ops::select(&kept, &v[0], &ops::full_like(&v[0], 0.0)?)?])
        }),
    )
}

/// Sizes before and after each axis, from torch's pairs that begin at the last one.
fn sides(x: &Value, pad: &[i64]) -> Result<(Vec<i64>, Vec<i64>)> {
    if !pad.len().is_multiple_of(2) || pad.len() > 2 * x.rank() {
        let text =
            format!("{} sizes are not two for each of the last dims of {}", pad.len(), x.aval());
        return Err(Error::new(ErrorKind::Shape, "pad", text));
    }
    let (mut low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
    for (i, pair) in pad.chunks(2).enumerate() {
        low[x.rank() - 1 - i] = pair[0];
        high[x.rank() - 1 - i] = pair[1];
    }
    Ok((low, high))
}

fn check_sides(x: &Value, low: &[i64], high: &[i64], mode: PadMode) -> Result<()> {
    for (axis, &size) in x.shape().iter().enumerate() {
        let most = match mode {
            PadMode::Reflect => size as i64 - 1,
            PadMode::Replicate if size > 0 => i64::MAX,
            PadMode::Replicate => 0,
            PadMode::Circular => size as i64,
        };
        let (a, b) = (low[axis], high[axis]);
        let none = a == 0 && b == 0;
        if !none && (a < 0 || b < 0 || a > most || b > most) {
            let text = format!("sizes {a} and {b} do not fit axis {axis} of {}", x.aval());
            return Err(Error::new(ErrorKind::Value, "pad", text)
                .note(format!("{mode:?} takes from 0 to {most} here")));
        }
    }
    Ok(())
}

fn pad_axis(x: &Value, axis: usize, low: usize, high: usize, mode: PadMode) -> Result<Value> {
    let n = x.shape()[axis];
    let flipped = |start, end| ops::reverse(&ops::slice_axis(x, axis, start, end)?, &[axis]);
    let edge = |i: usize, count: usize| {
        let one = ops::slice_axis(x, axis, i, i + 1)?;
        let axes: Vec<usize> = (0..x.rank()).collect();
        ops::broadcast_in_dim(&one, &x.shape().with(axis, count), &axes)
    };
    let mut parts = Vec::with_capacity(3);
    if low > 0 {
        parts.push(match mode {
            PadMode::Reflect => flipped(1, low + 1)?,
            PadMode::Replicate => edge(0, low)?,
            PadMode::Circular => ops::slice_axis(x, axis, n - low, n)?,
        });
    }
    parts.push(x.clone());
    if high > 0 {
        parts.push(match mode {
            PadMode::Reflect => flipped(n - 1 - high, n - 1)?,
            PadMode::Replicate => edge(n - 1, high)?,
            PadMode::Circular => ops::slice_axis(x, axis, 0, high)?,
        });
    }
    if parts.len() == 1 { Ok(x.clone()) } else { ops::concatenate(&parts, axis) }
}
