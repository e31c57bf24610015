//! Reductions over dimensions, and what is made of them: means, norms, `softmax`.
//!
//! Each name without `_dim` reduces all dimensions; with it, the dimensions named (none: all),
//! which stay with size 1 if `keepdim`. Half precision is summed in `f32`.

use super::promotion::{first_of, wide};
use super::wrap;
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::call::fused;
use crate::ops::{self, full_like};
use crate::shape::{self, Shape};
use crate::trace::Value;
use crate::trace::cell::Tensor;
use smallvec::smallvec;

/// The axes that dims mean: none named are all.
pub(crate) fn reduced_axes(op: &'static str, x: &Value, dims: &[i64]) -> Result<Vec<usize>> {
    if dims.is_empty() {
        return Ok((0..x.rank()).collect());
    }
    let mut axes = shape::axes(op, dims, x.rank())?.to_vec();
    axes.retain(|&a| a < x.rank());
    axes.sort_unstable();
    Ok(axes)
}

/// The shape with the reduced axes kept at size 1.
fn kept_shape(x: &Shape, axes: &[usize]) -> Shape {
    x.iter().enumerate().map(|(a, &d)| if axes.contains(&a) { 1 } else { d }).collect()
}

/// `x`, which was reduced from `full` over `axes`, repeated to `full`.
pub(crate) fn spread(x: &Value, full: &Shape, axes: &[usize]) -> Result<Value> {
    let kept: Vec<usize> = (0..full.rank()).filter(|a| !axes.contains(a)).collect();
    ops::broadcast_in_dim(x, full, &kept)
}

/// What a reduction does with its operand's dtype.
#[derive(Clone, Copy)]
pub(super) struct Types {
    /// The result's dtype, if it is one that `f` keeps.
    pub(super) out: DType,
    /// What `f` works in.
    work: DType,
}

impl Types {
    fn same(dtype: DType) -> Types {
        Types { out: dtype, work: wide(dtype) }
    }

    /// Integers and bools are summed as `i64`.
    pub(super) fn sum(dtype: DType) -> Types {
        let exact = matches!(dtype.category(), Category::Bool | Category::Int);
        if exact { Types { out: DType::I64, work: DType::I64 } } else { Types::same(dtype) }
    }

    fn float(dtype: DType) -> Types {
        Types::same(if dtype.is_differentiable() { dtype } else { DType::F32 })
    }
}

/// One program that reduces: `f` gets the operand in the working dtype and the axes.
fn reduce(
    op: &'static str,
    x: &Value,
    types: Types,
    params: &[i64],
    dims: &[i64],
    keepdim: bool,
    f: impl FnOnce(&Value, &[usize]) -> Result<Value>,
) -> Result<Value> {
    let axes = reduced_axes(op, x, dims)?;
    let mut key = vec![types.out as i64, i64::from(keepdim), axes.len() as i64];
    key.extend(axes.iter().map(|&a| a as i64).chain(params.iter().copied()));
    first_of(
        op,
        fused(op, &key, std::slice::from_ref(x), |v| {
            let work = ops::convert(&v[0], types.work)?;
            let mut out = f(&work, &axes)?;
            if out.dtype() == types.work {
                out = ops::convert(&out, types.out)?;
            }
            if keepdim {
                out = ops::reshape(&out, &kept_shape(v[0].shape(), &axes))?;
            }
            Ok(smallvec![out])
        }),
    )
}

fn count(x: &Value, axes: &[usize]) -> f64 {
    axes.iter().map(|&a| x.shape()[a] as f64).product()
}

pub(crate) fn mean_value(x: &Value, axes: &[usize]) -> Result<Value> {
    let sum = ops::reduce_sum(x, axes)?;
    ops::div(&sum, &full_like(&sum, count(x, axes))?)
}

pub(crate) fn variance(x: &Value, axes: &[usize], correction: f64) -> Result<Value> {
    let mean = spread(&mean_value(x, axes)?, x.shape(), axes)?;
    let apart = ops::sub(x, &mean)?;
    let squares = if x.dtype().is_complex() {
        let size = ops::abs(&apart)?;
        ops::mul(&size, &size)?
    } else {
        ops::mul(&apart, &apart)?
    };
    let sum = ops::reduce_sum(&squares, axes)?;
    ops::div(&sum, &full_like(&sum, (count(x, axes) - correction).max(0.0))?)
}

/// The square root, with derivative 0 at 0.
fn safe_sqrt(x: &Value) -> Result<Value> {
    let zero = full_like(x, 0.0)?;
    let at_zero = ops::eq(x, &zero)?;
    let safe = ops::select(&at_zero, &full_like(x, 1.0)?, x)?;
    ops::select(&at_zero, &zero, &ops::sqrt(&safe)?)
}

fn norm(x: &Value, axes: &[usize], p: f64) -> Result<Value> {
    let size = ops::abs(x)?;
    if p == f64::INFINITY {
        return ops::reduce_max(&size, axes);
    }
    if p == f64::NEG_INFINITY {
        return ops::reduce_min(&size, axes);
    }
    if p == 0.0 {
        let zero = full_like(&size, 0.0)?;
        return ops::reduce_sum(&ops::convert(&ops::ne(&size, &zero)?, size.dtype())?, axes);
    }
    if p == 1.0 {
        return ops::reduce_sum(&size, axes);
    }
    if p == 2.0 {
        return safe_sqrt(&ops::reduce_sum(&ops::mul(&size, &size)?, axes)?);
    }
    let sum = ops::reduce_sum(&ops::pow(&size, &full_like(&size, p)?)?, axes)?;
    ops::pow(&sum, &full_like(&sum, 1.0 / p)?)
}

fn logsumexp(x: &Value, axes: &[usize]) -> Result<Value> {
    let most = ops::stop_gradient(&ops::reduce_max(x, axes)?)?;
    // An infinite maximum would give NaN as a difference.
    let most = ops::select(&ops::is_finite(&most)?, &most, &full_like(&most, 0.0)?)?;
    let apart = ops::sub(x, &spread(&most, x.shape(), axes)?)?;
    ops::add(&ops::log(&ops::reduce_sum(&ops::exp(&apart)?, axes)?)?, &most)
}

/// `x` less its largest element along the axis, which the derivative does not see.
fn centred(x: &Value, axis: &[usize]) -> Result<Value> {
    let most = ops::stop_gradient(&ops::reduce_max(x, axis)?)?;
    ops::sub(x, &spread(&most, x.shape(), axis)?)
}

pub(crate) fn softmax_value(x: &Value, axis: usize) -> Result<Value> {
    let e = ops::exp(&centred(x, &[axis])?)?;
    ops::div(&e, &spread(&ops::reduce_sum(&e, &[axis])?, x.shape(), &[axis])?)
}

pub(crate) fn log_softmax_value(x: &Value, axis: usize) -> Result<Value> {
    let apart = centred(x, &[axis])?;
    let log = ops::log(&ops::reduce_sum(&ops::exp(&apart)?, &[axis])?)?;
    ops::sub(&apart, &spread(&log, x.shape(), &[axis])?)
}

fn truth(x: &Value, f: impl FnOnce(&Value) -> Result<Value>) -> Result<Value> {
    let out = f(&ops::convert(x, DType::Bool)?)?;
    if x.dtype() == DType::U8 { ops::convert(&out, DType::U8) } else { Ok(out) }
}

fn floats_only(op: &'static str, x: &Value) -> Result<()> {
    if x.dtype().is_differentiable() {
        return Ok(());
    }
    let text = format!("takes floating dtypes, not {}", x.aval());
    Err(Error::new(ErrorKind::DType, op, text).help("convert with `to_dtype(DType::F32)`"))
}

fn not_empty(op: &'static str, x: &Value, dims: &[i64]) -> Result<()> {
    let axes = reduced_axes(op, x, dims)?;
    match axes.iter().find(|&&a| x.shape()[a] == 0) {
        None => Ok(()),
        Some(a) => {
            let text = format!("axis {a} of {} is empty and has no such element", x.aval());
            Err(Error::new(ErrorKind::Value, op, text))
        }
    }
}

/// One row for each reduction: doc, both names, dtypes, a check, the operation.
macro_rules! reductions {
    ($($(#[$doc:meta])+ $name:ident $dim:ident $torch:literal $types:ident
        check($cx:pat, $cd:pat) $check:expr; |$x:ident, $axes:ident| $body:expr;)*) => {
        impl Tensor {$(
            $(#[$doc])+
            ///
            #[doc = concat!(
                "**Source:** [torch.", $torch, "](https://docs.pytorch.org/docs/stable/generated/torch.",
                $torch, ".html)."
            )]
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                self.$dim([], false)
            }

            #[doc = concat!(
                "[`Tensor::", stringify!($name), "`] over the dimensions `dims` (none: all), which \
                 stay with size 1 if `keepdim`."
            )]
            ///
            /// # Errors
            /// If a dim is out of range or named twice, or the dtype is not among those taken.
            #[track_caller]
            pub fn $dim(&self, dims: impl AsRef<[i64]>, keepdim: bool) -> Result<Tensor> {
                let dims = dims.as_ref();
                let run = |x: Value| {
                    let ($cx, $cd) = (&x, dims);
                    $check?;
                    let types = Types::$types(x.dtype());
                    reduce(stringify!($name), &x, types, &[], dims, keepdim, |$x, $axes| $body)
                };
                wrap(self.value().and_then(run))
            }
        )*}
    };
}

reductions! {
    /// The sum of all elements. **Dtypes:** numbers; integers and bools give `i64`.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::arange(0, 6, 1)?.view([2, 3])?;
    /// assert_eq!(x.sum()?.item::<i64>()?, 15);
    /// assert_eq!(x.sum_dim([-1], true)?.shape(), Shape::from([2, 1]));
    /// # Ok::<(), Error>(())
    /// ```
    sum sum_dim "sum" sum check(_, _) Ok(()); |x, axes| ops::reduce_sum(x, axes);
    /// The mean of all elements. **Dtypes:** floating and complex.
    mean mean_dim "mean" float check(x, _) floats_only("mean", x); |x, axes| mean_value(x, axes);
    /// The product of all elements. **Dtypes:** numbers; integers and bools give `i64`.
    prod prod_dim "prod" sum check(_, _) Ok(()); |x, axes| ops::reduce_prod(x, axes);
    /// The sum of all elements that are not NaN. **Dtypes:** real; integers give `i64`.
    nansum nansum_dim "nansum" sum check(_, _) Ok(()); |x, axes| {
        let number = ops::eq(x, x)?;
        ops::reduce_sum(&ops::select(&number, x, &full_like(x, 0.0)?)?, axes)
    };
    /// How many elements are not zero, as `i64`.
    count_nonzero count_nonzero_dim "count_nonzero" same check(_, _) Ok(()); |x, axes| {
        let hit = ops::ne(x, &ops::full(Scalar::zero(x.dtype()), x.shape())?)?;
        ops::reduce_sum(&ops::convert(&hit, DType::I64)?, axes)
    };
    /// The largest element; NaN if there is one; equal ones share the derivative. **Dtypes:** real.
    amax amax_dim "amax" same check(x, dims) not_empty("amax", x, dims);
        |x, axes| ops::reduce_max(x, axes);
    /// The smallest element; NaN if there is one; equal ones share the derivative. **Dtypes:** real.
    amin amin_dim "amin" same check(x, dims) not_empty("amin", x, dims);
        |x, axes| ops::reduce_min(x, axes);
    /// Whether no element is zero, as bool (`u8` of `u8`).
    all all_dim "all" same check(_, _) Ok(());
        |x, axes| truth(x, |x| ops::reduce_and(x, axes));
    /// Whether some element is not zero, as bool (`u8` of `u8`).
    any any_dim "any" same check(_, _) Ok(());
        |x, axes| truth(x, |x| ops::reduce_or(x, axes));
    /// The logarithm of the sum of exponentials, without overflow on the way.
    logsumexp logsumexp_dim "logsumexp" float check(_, _) Ok(()); |x, axes| logsumexp(x, axes);
}

impl Tensor {
    /// The largest element; [`Tensor::max_dim`] for one dimension, [`Tensor::maximum`] of two
    /// tensors.
    #[track_caller]
    pub fn max(&self) -> Result<Tensor> {
        self.amax()
    }

    /// The smallest element; [`Tensor::min_dim`] for one dimension, [`Tensor::minimum`] of two
    /// tensors.
    #[track_caller]
    pub fn min(&self) -> Result<Tensor> {
        self.amin()
    }

    /// The variance of all elements, with torch's correction of 1.
    ///
    /// **Source:** [torch.var](https://docs.pytorch.org/docs/stable/generated/torch.var.html).
    #[track_caller]
    pub fn var(&self) -> Result<Tensor> {
        self.var_dim([], 1.0, false)
    }

    /// The variance over dimensions (none: all): squares of distances from the mean, summed and
    /// divided by their number less `correction`.
    ///
    /// # Errors
    /// If a dim is out of range or named twice, or the dtype is not floating.
    #[track_caller]
    pub fn var_dim(
        &self,
        dims: impl AsRef<[i64]>,
        correction: f64,
        keepdim: bool,
    ) -> Result<Tensor> {
        wrap(self.spread_of("var", dims.as_ref(), correction, keepdim, Ok))
    }

    /// The standard deviation of all elements, with torch's correction of 1.
    ///
    /// **Source:** [torch.std](https://docs.pytorch.org/docs/stable/generated/torch.std.html).
    #[track_caller]
    pub fn std(&self) -> Result<Tensor> {
        self.std_dim([], 1.0, false)
    }

    /// The square root of [`Tensor::var_dim`].
    #[track_caller]
    pub fn std_dim(
        &self,
        dims: impl AsRef<[i64]>,
        correction: f64,
        keepdim: bool,
    ) -> Result<Tensor> {
        wrap(self.spread_of("std", dims.as_ref(), correction, keepdim, |v| ops::sqrt(&v)))
    }

    /// Variance and mean over dimensions (none: all).
    #[track_caller]
    pub fn var_mean_dim(
        &self,
        dims: impl AsRef<[i64]>,
        correction: f64,
        keepdim: bool,
    ) -> Result<(Tensor, Tensor)> {
        let dims = dims.as_ref();
        Ok((self.var_dim(dims, correction, keepdim)?, self.mean_dim(dims, keepdim)?))
    }

    fn spread_of(
        &self,
        op: &'static str,
        dims: &[i64],
        correction: f64,
        keepdim: bool,
        f: impl FnOnce(Value) -> Result<Value>,
    ) -> Result<Value> {
        let x = self.value()?;
        floats_only(op, &x)?;
        let params = [correction.to_bits() as i64];
        reduce(op, &x, Types::float(x.dtype()), &params, dims, keepdim, |x, axes| {
            f(variance(x, axes, correction)?)
        })
    }

    /// The `p`-norm of all elements: 2 for the length, infinity for the largest size.
    ///
    /// **Source:** [torch.linalg.vector_norm](https://docs.pytorch.org/docs/stable/generated/torch.linalg.vector_norm.html).
    #[track_caller]
    pub fn norm(&self, p: f64) -> Result<Tensor> {
        self.norm_dim(p, [], false)
    }

    /// The `p`-norm over dimensions (none: all); its derivative at 0 is 0.
    #[track_caller]
    pub fn norm_dim(&self, p: f64, dims: impl AsRef<[i64]>, keepdim: bool) -> Result<Tensor> {
        let run = || {
            let x = self.value()?;
            floats_only("norm", &x)?;
            let types = Types::float(x.dtype());
            let params = [p.to_bits() as i64];
            reduce("norm", &x, types, &params, dims.as_ref(), keepdim, |x, axes| norm(x, axes, p))
        };
        wrap(run())
    }

    /// The index, as `i64`, of the largest element along `dim`, or in the flattened tensor; of
    /// equal ones the first, and a NaN before all.
    ///
    /// # Errors
    /// If the dimension is out of range or empty.
    ///
    /// **Source:** [torch.argmax](https://docs.pytorch.org/docs/stable/generated/torch.argmax.html).
    #[track_caller]
    pub fn argmax(&self, dim: Option<i64>, keepdim: bool) -> Result<Tensor> {
        wrap(self.value().and_then(|x| arg("argmax", &x, dim, keepdim, ops::argmax)))
    }

    /// The index, as `i64`, of the smallest element, as in [`Tensor::argmax`].
    ///
    /// **Source:** [torch.argmin](https://docs.pytorch.org/docs/stable/generated/torch.argmin.html).
    #[track_caller]
    pub fn argmin(&self, dim: Option<i64>, keepdim: bool) -> Result<Tensor> {
        wrap(self.value().and_then(|x| arg("argmin", &x, dim, keepdim, ops::argmin)))
    }

    /// The largest element along `dim` and its index.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1.0f32, 5.0, 2.0, 4.0, 0.0, 4.0], [2, 3])?;
    /// let (values, indices) = x.max_dim(1, false)?;
    /// assert_eq!(values.to_vec::<f32>()?, [5.0, 4.0]);
    /// assert_eq!(indices.to_vec::<i64>()?, [1, 0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.max](https://docs.pytorch.org/docs/stable/generated/torch.max.html).
    #[track_caller]
    pub fn max_dim(&self, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
        self.at_index(dim, keepdim, self.argmax(Some(dim), true)?)
    }

    /// The smallest element along `dim` and its index.
    #[track_caller]
    pub fn min_dim(&self, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
        self.at_index(dim, keepdim, self.argmin(Some(dim), true)?)
    }

    /// The elements at an index of size 1 along `dim`: the derivative goes there alone.
    #[track_caller]
    fn at_index(&self, dim: i64, keepdim: bool, index: Tensor) -> Result<(Tensor, Tensor)> {
        let values = self.gather(dim, &index)?;
        if keepdim || self.dim() == 0 {
            return Ok((values, index));
        }
        Ok((values.squeeze_dim([dim])?, index.squeeze_dim([dim])?))
    }

    #[track_caller]
    fn along(
        &self,
        op: &'static str,
        dim: i64,
        f: impl FnOnce(&Value, usize) -> Result<Value>,
    ) -> Result<Tensor> {
        let run = || {
            let x = self.value()?;
            let axis = shape::axis(op, dim, x.rank())?;
            let types = Types::float(x.dtype());
            let params = [axis as i64, types.out as i64];
            first_of(
                op,
                fused(op, &params, &[x], |v| {
                    let work = ops::convert(&v[0], types.work)?;
                    // A scalar counts as a vector of one element.
                    let shape =
                        if work.rank() == 0 { Shape::from([1]) } else { work.shape().clone() };
                    let out = f(&ops::reshape(&work, &shape)?, axis)?;
                    Ok(smallvec![ops::reshape(&ops::convert(&out, types.out)?, v[0].shape())?])
                }),
            )
        };
        wrap(run())
    }

    /// `e^self` divided by its sum along `dim`, without overflow on the way.
    ///
    /// # Errors
    /// If the dimension is out of range.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1000.0f32, 1000.0], [2])?;
    /// assert_eq!(x.softmax(-1)?.to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.softmax](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html).
    #[track_caller]
    pub fn softmax(&self, dim: i64) -> Result<Tensor> {
        self.along("softmax", dim, softmax_value)
    }

    /// The logarithm of [`Tensor::softmax`].
    ///
    /// **Source:** [torch.log_softmax](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.log_softmax.html).
    #[track_caller]
    pub fn log_softmax(&self, dim: i64) -> Result<Tensor> {
        self.along("log_softmax", dim, log_softmax_value)
    }

    /// `self` divided by its `p`-norm along `dim`, which counts as at least `eps`.
    ///
    /// **Source:** [torch.nn.functional.normalize](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html).
    #[track_caller]
    pub fn normalize(&self, p: f64, dim: i64, eps: f64) -> Result<Tensor> {
        self.div(&self.norm_dim(p, [dim], true)?.clamp_min(eps)?)
    }

    /// Whether both have one shape and dtype and equal elements.
    ///
    /// # Errors
    /// Inside of `jit`, where there are no values.
    #[track_caller]
    pub fn equal(&self, other: &Tensor) -> Result<bool> {
        if self.shape() != other.shape() {
            return Ok(false);
        }
        self.eq(other)?.all()?.item()
    }

    /// Whether all elements are as close as `|self - other| <= atol + rtol * |other|`.
    ///
    /// # Errors
    /// If the shapes do not broadcast; inside of `jit`, where there are no values.
    ///
    /// **Source:** [torch.allclose](https://docs.pytorch.org/docs/stable/generated/torch.allclose.html).
    #[track_caller]
    pub fn allclose(&self, other: &Tensor, rtol: f64, atol: f64) -> Result<bool> {
        let limit = other.abs()?.mul(rtol)?.add(atol)?;
        let close = self.sub(other)?.abs()?.le(&limit)?;
        close.logical_or(&self.eq(other)?)?.all()?.item()
    }
}

fn arg(
    op: &'static str,
    x: &Value,
    dim: Option<i64>,
    keepdim: bool,
    f: impl FnOnce(&Value, usize, DType) -> Result<Value>,
) -> Result<Value> {
    let axis = dim.map(|d| shape::axis(op, d, x.rank())).transpose()?;
    let scalar = x.rank() == 0;
    let axes: Vec<usize> = match axis {
        _ if scalar => vec![],
        Some(axis) => vec![axis],
        None => (0..x.rank()).collect(),
    };
    let params = [axis.map_or(-1, |a| a as i64), i64::from(keepdim)];
    let x = if x.dtype() == DType::Bool { ops::convert(x, DType::U8)? } else { x.clone() };
    first_of(
        op,
        fused(op, &params, &[x], |v| {
            let flat = axis.is_none() || scalar;
            let x = if flat {
                ops::reshape(&v[0], &Shape::from([v[0].shape().size()]))?
            } else {
                v[0].clone()
            };
            let out = f(&x, if flat { 0 } else { axis.unwrap_or(0) }, DType::I64)?;
            let shape = kept_shape(v[0].shape(), &axes);
            Ok(smallvec![if keepdim { ops::reshape(&out, &shape)? } else { out }])
        }),
    )
}
