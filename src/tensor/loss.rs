//! Losses. Each is one program, computed in `f32` for half precision.

use super::index::gather;
use super::promotion::{Kind, Operand, elementwise, first_of, wide};
use super::reduce::log_softmax_value;
use super::wrap;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::call::fused;
use crate::ops::{self, full_like};
use crate::trace::Value;
use crate::trace::cell::Tensor;
use smallvec::smallvec;

/// What becomes of the losses of all elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// Nothing: they are the result.
    None,
}

/// Options of [`Tensor::cross_entropy`] and [`Tensor::nll_loss`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'t> {
    /// A weight for each class.
    pub weight: Option<&'t Tensor>,
    /// The class that does not count.
    pub ignore_index: i64,
    /// What becomes of the losses; a mean is weighted.
    pub reduction: Reduction,
    /// How much of each target goes to all classes evenly, from 0 to 1.
    pub label_smoothing: f64,
}

impl Default for CrossEntropy<'_> {
    fn default() -> Self {
        let reduction = Reduction::Mean;
        CrossEntropy { weight: None, ignore_index: -100, reduction, label_smoothing: 0.0 }
    }
}

fn sum_all(x: &Value) -> Result<Value> {
    ops::reduce_sum(x, &(0..x.rank()).collect::<Vec<_>>())
}

fn reduced(losses: &Value, reduction: Reduction) -> Result<Value> {
    match reduction {
        Reduction::None => Ok(losses.clone()),
        Reduction::Sum => sum_all(losses),
        Reduction::Mean => {
            let sum = sum_all(losses)?;
            ops::div(&sum, &full_like(&sum, losses.shape().size() as f64)?)
        }
    }
}

fn squared(x: &Value, y: &Value) -> Result<Value> {
    let apart = ops::sub(x, y)?;
    ops::mul(&apart, &apart)
}

/// `max(x, 0) - x y + log(1 + e^-|x|)`: cross entropy of a logit without overflow.
fn with_logits(x: &Value, y: &Value) -> Result<Value> {
    let tail = ops::log1p(&ops::exp(&ops::neg(&ops::abs(x)?)?)?)?;
    let high = ops::max(x, &full_like(x, 0.0)?)?;
    ops::add(&ops::sub(&high, &ops::mul(x, y)?)?, &tail)
}

fn binary_entropy(x: &Value, y: &Value) -> Result<Value> {
    let (one, least) = (full_like(x, 1.0)?, full_like(x, -100.0)?);
    let log = |v: &Value| ops::max(&ops::log(v)?, &least);
    let yes = ops::mul(y, &log(x)?)?;
    let no = ops::mul(&ops::sub(&one, y)?, &log(&ops::sub(&one, x)?)?)?;
    ops::neg(&ops::add(&yes, &no)?)
}

fn kl(x: &Value, y: &Value) -> Result<Value> {
    let positive = ops::gt(y, &full_like(y, 0.0)?)?;
    let safe = ops::select(&positive, y, &full_like(y, 1.0)?)?;
    let log = ops::select(&positive, &ops::log(&safe)?, &full_like(y, 0.0)?)?;
    ops::mul(y, &ops::sub(&log, x)?)
}

macro_rules! losses {
    ($($(#[$doc:meta])+ $name:ident |$x:ident, $y:ident| $body:expr;)*) => {
        impl Tensor {$(
            $(#[$doc])+
            ///
            /// **Shapes:** broadcast. **Dtypes:** promoted, then floating.
            ///
            #[doc = concat!(
                "**Source:** [torch.nn.functional.", stringify!($name),
                "](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.",
                stringify!($name), ".html)."
            )]
            #[track_caller]
            pub fn $name(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
                let operands = [self.into(), target.into()];
                let params = [reduction as i64];
                wrap(elementwise(stringify!($name), Kind::ManyFloat, &params, &operands, |v| {
                    let ($x, $y) = (&v[0], &v[1]);
                    reduced(&$body?, reduction)
                }))
            }
        )*}
    };
}

losses! {
    /// Squares of the differences.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// use oxbridge::tensor::loss::Reduction;
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [2])?;
    /// let loss = x.mse_loss(&Tensor::zeros([2], DType::F32)?, Reduction::Mean)?;
    /// assert_eq!(loss.item::<f32>()?, 5.0);
    /// # Ok::<(), Error>(())
    /// ```
    mse_loss |x, y| squared(x, y);
    /// Sizes of the differences.
    l1_loss |x, y| ops::abs(&ops::sub(x, y)?);
    /// Cross entropy of probabilities `self` and targets between 0 and 1; logarithms count as at
    /// least -100.
    binary_cross_entropy |x, y| binary_entropy(x, y);
    /// Cross entropy of `sigmoid(self)` and targets between 0 and 1, without overflow.
    binary_cross_entropy_with_logits |x, y| with_logits(x, y);
    /// Kullback-Leibler divergence of log-probabilities `self` from probabilities `target`.
    kl_div |x, y| kl(x, y);
}

impl Tensor {
    /// Half of squares of differences below `beta`, divided by it; above, sizes less `beta / 2`.
    ///
    /// **Source:** [torch.nn.functional.smooth_l1_loss](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.smooth_l1_loss.html).
    #[track_caller]
    pub fn smooth_l1_loss(
        &self,
        target: &Tensor,
        reduction: Reduction,
        beta: f64,
    ) -> Result<Tensor> {
        let operands = [self.into(), target.into(), Operand::from(beta)];
        let params = [reduction as i64];
        wrap(elementwise("smooth_l1_loss", Kind::ManyFloat, &params, &operands, |v| {
            let (size, beta) = (ops::abs(&ops::sub(&v[0], &v[1])?)?, &v[2]);
            let half = full_like(&size, 0.5)?;
            let small = ops::lt(&size, beta)?;
            let safe = ops::select(&small, beta, &full_like(&size, 1.0)?)?;
            let square = ops::div(&ops::mul(&half, &ops::mul(&size, &size)?)?, &safe)?;
            let line = ops::sub(&size, &ops::mul(&half, beta)?)?;
            reduced(&ops::select(&small, &square, &line)?, reduction)
        }))
    }

    /// Cross entropy of the classes' logits `self` and `target`: indices of classes, or
    /// probabilities.
    ///
    /// **Shapes:** `self` `[n, classes, ..]` or `[classes]`; `target` the same without classes
    /// (integers), or the same (floats).
    ///
    /// # Errors
    /// If the shapes do not fit.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let logits = Tensor::zeros([2, 4], DType::F32)?;
    /// let target = Tensor::from_slice(&[0i64, 3], [2])?;
    /// let loss = logits.cross_entropy(&target, Default::default())?.item::<f32>()?;
    /// assert!((loss - 4f32.ln()).abs() < 1e-6);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.nn.functional.cross_entropy](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html).
    #[track_caller]
    pub fn cross_entropy(&self, target: &Tensor, options: CrossEntropy<'_>) -> Result<Tensor> {
        wrap(entropy("cross_entropy", self, target, options, true))
    }

    /// The negative of the log-probabilities `self` at the classes `target`; shapes as in
    /// [`Tensor::cross_entropy`].
    ///
    /// **Source:** [torch.nn.functional.nll_loss](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.nll_loss.html).
    #[track_caller]
    pub fn nll_loss(&self, target: &Tensor, options: CrossEntropy<'_>) -> Result<Tensor> {
        wrap(entropy("nll_loss", self, target, options, false))
    }
}

fn entropy(
    op: &'static str,
    x: &Tensor,
    target: &Tensor,
    options: CrossEntropy<'_>,
    logits: bool,
) -> Result<Value> {
    let (x, target) = (x.value()?, target.value()?);
    let axis = usize::from(x.rank() > 1);
    let by_index = target.dtype().is_int();
    let fits = x.rank() > 0
        && x.dtype().is_float()
        && if by_index {
            *target.shape() == x.shape().remove(axis)
        } else {
            target.aval() == x.aval()
        };
    let weighted = options.weight.map(Tensor::value).transpose()?;
    let classes = x.shape().get(axis).copied().unwrap_or(0);
    let fits = fits && weighted.as_ref().is_none_or(|w| w.shape().dims() == [classes]);
    if !fits {
        let text = format!("target {} does not fit {}", target.aval(), x.aval());
        return Err(Error::new(ErrorKind::Shape, op, text).note(
            "the input is `[n, classes, ..]`, the target `[n, ..]` of integers or as the input",
        ));
    }
    let dtype = x.dtype();
    let work = wide(dtype);
    let mut operands = vec![
        x,
        target,
        Value::scalar(Scalar::new(options.ignore_index)),
        Value::scalar(Scalar::from_f64(work, options.label_smoothing)),
    ];
    operands.extend(weighted);
    let smooth = options.label_smoothing != 0.0;
    let params = [options.reduction as i64, i64::from(smooth), i64::from(logits)];
    first_of(
        op,
        fused("cross_entropy", &params, &operands, |v| {
            let x = ops::convert(&v[0], work)?;
            let log = if logits { log_softmax_value(&x, axis)? } else { x };
            let weight = match v.get(4) {
                Some(w) => ops::convert(w, work)?,
                None => ops::full(Scalar::one(work), &[classes].into())?,
            };
            let case = Case { log, weight, axis, smoothing: smooth.then(|| v[3].clone()) };
            let (losses, weights) = if by_index {
                case.of_indices(&ops::convert(&v[1], DType::I64)?, &v[2])?
            } else {
                case.of_probabilities(&ops::convert(&v[1], work)?)?
            };
            let out = match (options.reduction, weights) {
                (Reduction::Mean, Some(weights)) => {
                    ops::div(&sum_all(&losses)?, &sum_all(&weights)?)?
                }
                (Reduction::Mean, None) => {
                    let sum = sum_all(&losses)?;
                    ops::div(&sum, &full_like(&sum, losses.shape().size() as f64)?)?
                }
                (reduction, _) => reduced(&losses, reduction)?,
            };
            Ok(smallvec![ops::convert(&out, dtype)?])
        }),
    )
}

/// Log-probabilities along an axis and what weighs them.
struct Case {
    log: Value,
    weight: Value,
    axis: usize,
    smoothing: Option<Value>,
}

impl Case {
    /// Weighted log-probabilities.
    fn weighted(&self) -> Result<Value> {
        let weight = ops::broadcast_in_dim(&self.weight, self.log.shape(), &[self.axis])?;
        ops::mul(&self.log, &weight)
    }

    /// `(1 - s) * exact + s * even / classes`.
    fn smoothed(&self, exact: &Value, even: &Value) -> Result<Value> {
        let Some(s) = &self.smoothing else { return Ok(exact.clone()) };
        let s = ops::broadcast_in_dim(s, exact.shape(), &[])?;
        let one = full_like(&s, 1.0)?;
        let each = full_like(&s, self.log.shape()[self.axis] as f64)?;
        let even = ops::div(&ops::mul(&s, even)?, &each)?;
        ops::add(&ops::mul(&ops::sub(&one, &s)?, exact)?, &even)
    }

    fn of_indices(&self, target: &Value, ignored: &Value) -> Result<(Value, Option<Value>)> {
        let ignored = ops::broadcast_in_dim(ignored, target.shape(), &[])?;
        let counts = ops::ne(target, &ignored)?;
        let class = ops::select(&counts, target, &full_like(target, 0.0)?)?;
        let index = ops::reshape(&class, &class.shape().insert(self.axis, 1))?;
        let pick = |x: &Value| {
            ops::reshape(&gather("cross_entropy", x, &index, self.axis as i64)?, class.shape())
        };
        let weighted = self.weighted()?;
        let losses = ops::neg(&pick(&weighted)?)?;
        let even = ops::neg(&ops::reduce_sum(&weighted, &[self.axis])?)?;
        let losses = self.smoothed(&losses, &even)?;
        let zero = full_like(&losses, 0.0)?;
        let spread = ops::broadcast_in_dim(&self.weight, self.log.shape(), &[self.axis])?;
        let weights = ops::select(&counts, &pick(&spread)?, &zero)?;
        Ok((ops::select(&counts, &losses, &zero)?, Some(weights)))
    }

    fn of_probabilities(&self, target: &Value) -> Result<(Value, Option<Value>)> {
        let weighted = self.weighted()?;
        let exact = ops::neg(&ops::reduce_sum(&ops::mul(&weighted, target)?, &[self.axis])?)?;
        let even = ops::neg(&ops::reduce_sum(&weighted, &[self.axis])?)?;
        Ok((self.smoothed(&exact, &even)?, None))
    }
}
