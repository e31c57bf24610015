//! Normalisation and attention, as functions of their parameters.

use super::promotion::{expand, first_of, wide};
use super::reduce::{mean_value, softmax_value, spread, variance};
use super::{placed, wrap};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::call::fused;
use crate::ops::{self, full_like};
use crate::shape::Shape;
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use smallvec::smallvec;

/// Options of [`Tensor::batch_norm`].
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm<'t> {
    /// Factors by channel.
    pub weight: Option<&'t Tensor>,
    /// Summands by channel.
    pub bias: Option<&'t Tensor>,
    /// Whether the batch's own statistics are used, and the running ones updated.
    pub training: bool,
    /// The new statistics' share of the running ones.
    pub momentum: f64,
    /// What is added to the variance.
    pub eps: f64,
}

impl Default for BatchNorm<'_> {
    fn default() -> Self {
        BatchNorm { weight: None, bias: None, training: false, momentum: 0.1, eps: 1e-5 }
    }
}

/// Options of [`Tensor::scaled_dot_product_attention`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention<'t> {
    /// Bool (true: attend) or summands to the scores; broadcasts to `[.., queries, keys]`.
    pub mask: Option<&'t Tensor>,
    /// Whether a query sees only keys at its own place and before.
    pub is_causal: bool,
    /// The factor of the scores; none for one over the root of the heads' size.
    pub scale: Option<f64>,
}

/// Operands that may be missing: their values, and for each whether it is there.
fn optional(tensors: &[Option<&Tensor>]) -> Result<(Vec<i64>, Values)> {
    let there = tensors.iter().map(|t| i64::from(t.is_some())).collect();
    Ok((there, tensors.iter().flatten().map(|t| t.value()).collect::<Result<_>>()?))
}

/// `x * weight + bias`, each repeated from `axes` of the shape, where it is there.
fn affine(x: Value, mut params: &[Value], there: &[i64], axes: &[usize]) -> Result<Value> {
    let mut out = x;
    for (i, &there) in there.iter().enumerate() {
        let (true, Some((first, rest))) = (there == 1, params.split_first()) else { continue };
        let p = ops::broadcast_in_dim(&ops::convert(first, out.dtype())?, out.shape(), axes)?;
        out = if i == 0 { ops::mul(&out, &p)? } else { ops::add(&out, &p)? };
        params = rest;
    }
    Ok(out)
}

/// `(x - mean) / sqrt(var + eps)` over axes.
fn normalised(x: &Value, axes: &[usize], eps: &Value) -> Result<Value> {
    let mean = spread(&mean_value(x, axes)?, x.shape(), axes)?;
    scaled(&ops::sub(x, &mean)?, &variance(x, axes, 0.0)?, axes, eps)
}

/// `x / sqrt(var + eps)`.
fn scaled(x: &Value, var: &Value, axes: &[usize], eps: &Value) -> Result<Value> {
    let factor = ops::rsqrt(&ops::add(var, &expand(eps, var.shape())?)?)?;
    ops::mul(x, &spread(&factor, x.shape(), axes)?)
}

#[cold]
fn bad_params(op: &'static str, x: &Tensor, why: String) -> Error {
    Error::new(ErrorKind::Shape, op, format!("{} does not fit: {why}", x.aval()))
}

/// The last axes that `shape` names, after checking parameters of that shape.
fn last_axes(
    op: &'static str,
    x: &Tensor,
    shape: &Shape,
    params: &[Option<&Tensor>],
) -> Result<Vec<usize>> {
    let full = x.shape();
    let start = full.rank().checked_sub(shape.rank());
    let Some(start) = start.filter(|&s| full[s..] == shape[..] && shape.rank() > 0) else {
        return Err(bad_params(op, x, format!("the last dims are not {shape}")));
    };
    if let Some(p) = params.iter().flatten().find(|p| p.shape() != *shape) {
        return Err(bad_params(
            op,
            x,
            format!("a parameter is {}, not of shape {shape}", p.aval()),
        ));
    }
    if !x.dtype().is_float() {
        return Err(bad_params(op, x, "it is not floating".into()).help("use `to_dtype`"));
    }
    Ok((start..full.rank()).collect())
}

impl Tensor {
    /// `self` less its mean, divided by its standard deviation, over the last dimensions, which
    /// have `normalized_shape`; then times `weight` plus `bias` (torch's default `eps` is 1e-5).
    ///
    /// # Errors
    /// If the last dimensions are not `normalized_shape`, or a parameter has another shape.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [1, 2])?;
    /// let y = x.layer_norm([2], None, None, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [-1.0, 1.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.nn.functional.layer_norm](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html).
    #[track_caller]
    pub fn layer_norm(
        &self,
        normalized_shape: impl Into<Shape>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let shape = normalized_shape.into();
        wrap(self.by_last("layer_norm", &shape, &[weight, bias], eps, normalised))
    }

    /// `self` divided by the root of the mean of its squares over the last dimensions, which have
    /// `normalized_shape`; then times `weight` (torch's default `eps` is the dtype's).
    ///
    /// **Source:** [torch.nn.functional.rms_norm](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html).
    #[track_caller]
    pub fn rms_norm(
        &self,
        normalized_shape: impl Into<Shape>,
        weight: Option<&Tensor>,
        eps: Option<f64>,
    ) -> Result<Tensor> {
        let least =
            if wide(self.dtype()) == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() };
        let (shape, eps) = (normalized_shape.into(), eps.unwrap_or(least));
        wrap(self.by_last("rms_norm", &shape, &[weight], eps, |x, axes, eps| {
            scaled(x, &mean_value(&ops::mul(x, x)?, axes)?, axes, eps)
        }))
    }

    fn by_last(
        &self,
        op: &'static str,
        shape: &Shape,
        params: &[Option<&Tensor>],
        eps: f64,
        f: impl FnOnce(&Value, &[usize], &Value) -> Result<Value>,
    ) -> Result<Value> {
        let axes = last_axes(op, self, shape, params)?;
        let (there, values) = optional(params)?;
        let (dtype, work) = (self.dtype(), wide(self.dtype()));
        let mut operands: Values = smallvec![self.value()?, eps_value(eps, work)];
        operands.extend(values);
        let key: Vec<i64> = std::iter::once(shape.rank() as i64).chain(there.clone()).collect();
        first_of(
            op,
            fused(op, &key, &operands, |v| {
                let out = f(&ops::convert(&v[0], work)?, &axes, &v[1])?;
                let out = affine(out, &v[2..], &there, &axes)?;
                Ok(smallvec![ops::convert(&out, dtype)?])
            }),
        )
    }

    /// Each channel (dimension 1) less its mean, divided by its standard deviation, over all other
    /// dimensions; then times `weight` plus `bias`. When training, the batch's own statistics are
    /// used and `running_mean` and `running_var` are written in place.
    ///
    /// # Errors
    /// If the parameters are not one number a channel; without running statistics, if not training.
    ///
    /// **Source:** [torch.nn.functional.batch_norm](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.batch_norm.html).
    #[track_caller]
    pub fn batch_norm(
        &self,
        running_mean: Option<&Tensor>,
        running_var: Option<&Tensor>,
        options: BatchNorm<'_>,
    ) -> Result<Tensor> {
        wrap(batch_norm(self, running_mean, running_var, options))
    }

    /// The channels (dimension 1) in `num_groups` groups, each normalised over its channels and
    /// all later dimensions; then times `weight` plus `bias` by channel.
    ///
    /// **Source:** [torch.nn.functional.group_norm](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.group_norm.html).
    #[track_caller]
    pub fn group_norm(
        &self,
        num_groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let shape = self.shape();
        if shape.rank() < 2 || num_groups == 0 || !shape[1].is_multiple_of(num_groups) {
            let why = format!("dimension 1 is not {num_groups} equal groups");
            return placed(Err(bad_params("group_norm", self, why)));
        }
        let groups = [shape[0] as i64, num_groups as i64, -1];
        let size = shape[1..].iter().product::<usize>() / num_groups;
        let mut out = self.view(groups)?.layer_norm([size], None, None, eps)?.view_as(self)?;
        let channels: Vec<i64> = (1..shape.rank()).map(|a| if a == 1 { -1 } else { 1 }).collect();
        if let Some(weight) = weight {
            out = out.mul(&weight.view(&channels)?)?;
        }
        if let Some(bias) = bias {
            out = out.add(&bias.view(&channels)?)?;
        }
        Ok(out)
    }

    /// Attention: `softmax(self @ key^T * scale + mask) @ value`, `self` being the queries.
    ///
    /// **Shapes:** `[.., queries, d]`, `[.., keys, d]`, `[.., keys, e]` give `[.., queries, e]`.
    /// **Dtypes:** floating, all of one; scores in `f32` for half precision. **Unlike torch:** no
    /// dropout.
    ///
    /// # Errors
    /// If the shapes do not fit.
    ///
    /// **Source:** [torch.nn.functional.scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html).
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &self,
        key: &Tensor,
        value: &Tensor,
        options: Attention<'_>,
    ) -> Result<Tensor> {
        wrap(attention(self, key, value, options))
    }
}

fn eps_value(eps: f64, dtype: DType) -> Value {
    Value::scalar(Scalar::from_f64(dtype, eps))
}

fn batch_norm(
    x: &Tensor,
    running_mean: Option<&Tensor>,
    running_var: Option<&Tensor>,
    options: BatchNorm<'_>,
) -> Result<Value> {
    const OP: &str = "batch_norm";
    let shape = x.shape();
    if shape.rank() < 2 || !x.dtype().is_float() {
        return Err(bad_params(OP, x, "it needs floats of two or more dimensions".into()));
    }
    let all = [options.weight, options.bias, running_mean, running_var];
    if let Some(p) = all.iter().flatten().find(|p| p.shape().dims() != [shape[1]]) {
        return Err(bad_params(OP, x, format!("a parameter is {}", p.aval())));
    }
    let own = options.training || running_mean.is_none() || running_var.is_none();
    let (dtype, work) = (x.dtype(), wide(x.dtype()));
    let axes: Vec<usize> = (0..shape.rank()).filter(|&a| a != 1).collect();
    let (there, params) = optional(&[options.weight, options.bias])?;
    let mut operands: Values = smallvec![x.value()?, eps_value(options.eps, work)];
    let (_, statistics) = optional(if own { &[] } else { &all[2..] })?;
    operands.extend(statistics);
    operands.extend(params);
    let key: Vec<i64> = std::iter::once(i64::from(own)).chain(there.clone()).collect();
    let mut outs = fused(OP, &key, &operands, |v| {
        let x = ops::convert(&v[0], work)?;
        let (mean, var, rest) = if own {
            (mean_value(&x, &axes)?, variance(&x, &axes, 0.0)?, &v[2..])
        } else {
            (ops::convert(&v[2], work)?, ops::convert(&v[3], work)?, &v[4..])
        };
        let apart = ops::sub(&x, &spread(&mean, x.shape(), &axes)?)?;
        let out = affine(scaled(&apart, &var, &axes, &v[1])?, rest, &there, &[1])?;
        let n = x.shape().size() as f64 / x.shape()[1].max(1) as f64;
        let unbiased = ops::mul(&var, &full_like(&var, n / (n - 1.0).max(1.0))?)?;
        Ok(smallvec![ops::convert(&out, dtype)?, mean, unbiased])
    })
    .map_err(|e| e.in_op(OP))?;
    if options.training {
        let news = outs.drain(1..).collect::<Values>();
        for (running, new) in [running_mean, running_var].into_iter().zip(news) {
            let Some(running) = running else { continue };
            let new = Tensor::from_value(ops::convert(&new, running.dtype())?);
            // Not `lerp_`, whose rounding near weight 1 differs from torch's here.
            let kept = running.mul(1.0 - options.momentum)?;
            running.copy_(&kept.add(&new.detach()?.mul(options.momentum)?)?)?;
        }
    }
    Ok(outs.swap_remove(0))
}

fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: Attention<'_>,
) -> Result<Value> {
    const OP: &str = "scaled_dot_product_attention";
    let (dtype, work) = (query.dtype(), wide(query.dtype()));
    if !dtype.is_float() || query.dim() < 2 || key.dim() < 2 || value.dim() < 2 {
        return Err(bad_params(OP, query, "it needs floats of two or more dimensions".into()));
    }
    let size = query.shape()[query.dim() - 1].max(1) as f64;
    let scale = options.scale.unwrap_or(1.0 / size.sqrt());
    let mut operands: Values =
        smallvec![query.value()?, key.value()?, value.value()?, eps_value(scale, work)];
    operands.extend(options.mask.map(Tensor::value).transpose()?);
    let params = [i64::from(options.is_causal), i64::from(options.mask.is_some())];
    first_of(
        OP,
        fused(OP, &params, &operands, |v| {
            let [q, k, values] = [0, 1, 2].map(|i| ops::convert(&v[i], work));
            let (q, k, values) = (q?, k?, values?);
            let q = ops::mul(&q, &expand(&v[3], q.shape())?)?;
            let mut perm: Vec<usize> = (0..k.rank()).collect();
            perm.swap(k.rank() - 2, k.rank() - 1);
            let mut scores = super::matmul::product(OP, &q, &ops::permute(&k, &perm)?)?;
            let none = full_like(&scores, f64::NEG_INFINITY)?;
            if options.is_causal {
                let rank = scores.rank();
                let row = ops::iota(DType::I32, scores.shape(), rank - 2)?;
                let column = ops::iota(DType::I32, scores.shape(), rank - 1)?;
                scores = ops::select(&ops::le(&column, &row)?, &scores, &none)?;
            }
            if let Some(mask) = v.get(4) {
                let to = crate::shape::broadcast(OP, scores.shape(), mask.shape())?;
                let (old, mask) = (expand(&scores, &to)?, expand(mask, &to)?);
                scores = if mask.dtype() == DType::Bool {
                    ops::select(&mask, &old, &expand(&none, &to)?)?
                } else {
                    ops::add(&old, &ops::convert(&mask, work)?)?
                };
            }
            let shares = softmax_value(&scores, scores.rank() - 1)?;
            // A query that may see no key gives 0, as in torch.
            let seen = ops::eq(&shares, &shares)?;
            let shares = match options.mask {
                Some(_) => ops::select(&seen, &shares, &full_like(&shares, 0.0)?)?,
                None => shares,
            };
            Ok(smallvec![ops::convert(&super::matmul::product(OP, &shares, &values)?, dtype)?])
        }),
    )
}
