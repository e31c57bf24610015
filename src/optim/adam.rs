//! Adam, with its weight decay in the gradient or beside it.

use super::{Step, hash_by_bits, like, number, rate_dtype, scaled, spread, zeros_like};
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops;
use crate::tensor::autograd::no_grad;
use crate::tensor::placed;
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use crate::transforms::tree::{Tree, rebuild};
use oxbridge_derive::Tree;

/// What [`Adam`] is told; torch's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamOptions {
    /// Learning rate.
    pub lr: f64,
    /// How much of the mean of gradients, and of their squares, each step keeps.
    pub betas: (f64, f64),
    /// Added to the root of the mean square.
    pub eps: f64,
    /// Factor of the parameter that is added to its gradient.
    pub weight_decay: f64,
}

/// What [`AdamW`] is told; torch's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWOptions {
    /// Learning rate.
    pub lr: f64,
    /// How much of the mean of gradients, and of their squares, each step keeps.
    pub betas: (f64, f64),
    /// Added to the root of the mean square.
    pub eps: f64,
    /// Share of a parameter that goes in each step, times the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamOptions {
    fn default() -> AdamOptions {
        AdamOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 }
    }
}

impl Default for AdamWOptions {
    fn default() -> AdamWOptions {
        AdamWOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 1e-2 }
    }
}

/// The options of both as one static part.
#[derive(Clone, Debug, PartialEq)]
struct Options {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    decoupled: bool,
}

hash_by_bits!(Options: beta1, beta2, eps, weight_decay; decoupled);

macro_rules! adam {
    ($(#[$doc:meta])* $name:ident $options:ident $text:literal $decoupled:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Tree)]
        pub struct $name<P> {
            /// Updates so far, i64.
            pub step: Tensor,
            /// Learning rate: set it freely, a compiled step stays the same.
            pub lr: Tensor,
            /// The running mean of each parameter's gradient.
            pub exp_avg: P,
            /// The running mean of its square.
            pub exp_avg_sq: P,
            #[tree(static)]
            options: Options,
        }

        impl<P: Tree> $name<P> {
            /// The state before the first step.
            ///
            /// # Errors
            /// If the device refuses.
            pub fn new(params: &P, options: $options) -> Result<$name<P>> {
                Ok($name {
                    step: number(DType::I64, 0.0),
                    lr: number(rate_dtype(params), options.lr),
                    exp_avg: zeros_like(params)?,
                    exp_avg_sq: zeros_like(params)?,
                    options: Options {
                        beta1: options.betas.0,
                        beta2: options.betas.1,
                        eps: options.eps,
                        weight_decay: options.weight_decay,
                        decoupled: $decoupled,
                    },
                })
            }

            /// The same state with another learning rate.
            #[must_use]
            pub fn with_lr(self, lr: f64) -> $name<P> {
                let lr = number(self.lr.aval().dtype(), lr);
                $name { lr, ..self }
            }

            /// New parameters and state from the gradients.
            ///
            /// # Errors
            /// If gradients or state do not have the parameters' structure, shapes and dtypes.
            #[track_caller]
            pub fn update(&self, params: &P, grads: &P) -> Result<(P, $name<P>)> {
                let (lr, step) = (self.lr.value()?, self.step.value()?);
                let mut operands: Values = [lr, step].into_iter().collect();
                let dtype = operands[0].dtype();
                let numbers = self.options.numbers();
                operands.extend(numbers.map(|n| Value::scalar(Scalar::from_f64(dtype, n))));
                let ps = like($text, "parameter", params, params)?;
                let count = ps.len();
                operands.extend(ps);
                operands.extend(like($text, "gradient", params, grads)?);
                operands.extend(like($text, "running mean", params, &self.exp_avg)?);
                operands.extend(like($text, "running mean", params, &self.exp_avg_sq)?);
                let key = [count as i64, i64::from(self.options.weight_decay != 0.0)];
                let decoupled = $decoupled;
                let outs = ops::call::fused($text, &key, &operands, |values| {
                    step_of(values, count, key[1] == 1, decoupled)
                });
                let mut outs = placed(outs)?.into_iter().map(Tensor::from_value);
                let step = outs.next().unwrap_or_else(|| self.step.clone());
                let new = rebuild(params, outs.by_ref().take(count))?;
                let exp_avg = rebuild(&self.exp_avg, outs.by_ref().take(count))?;
                let exp_avg_sq = rebuild(&self.exp_avg_sq, outs)?;
                let (lr, options) = (self.lr.clone(), self.options.clone());
                Ok((new, $name { step, lr, exp_avg, exp_avg_sq, options }))
            }

            /// One step in torch's manner: takes the gradients that backward passes left in the parameters,
            /// and writes parameters and state in place. Parameters without a gradient stay as they are.
            ///
            /// **Unlike torch:** the number of steps is one for all parameters.
            ///
            /// # Errors
            /// If no parameter has a gradient; as [`Self::update`].
            pub fn step_(&self, params: &P) -> Result<()> {
                let step = Step::of($text, params)?;
                let old = $name {
                    step: self.step.clone(),
                    lr: self.lr.clone(),
                    exp_avg: step.part(&self.exp_avg),
                    exp_avg_sq: step.part(&self.exp_avg_sq),
                    options: self.options.clone(),
                };
                let (params, new) = no_grad(|| old.update(&step.params, &step.grads))?;
                old.step.write_back(new.step.value()?)?;
                Step::write(&old.exp_avg, &new.exp_avg)?;
                Step::write(&old.exp_avg_sq, &new.exp_avg_sq)?;
                Step::write(&step.params, &params)
            }
        }
    };
}

adam! {
    /// Adam: the gradient's running mean over the root of that of its square, both corrected for
    /// their start at zero. Weight decay is added to the gradient.
    ///
    /// **Source:** [torch.optim.Adam](https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html).
    Adam AdamOptions "adam" false
}

adam! {
    /// [`Adam`] whose weight decay shrinks the parameter directly, by `lr * weight_decay`.
    ///
    /// # Example
    /// ```
    /// use oxbridge::optim::{AdamW, AdamWOptions};
    /// use oxbridge::prelude::*;
    /// let p = Tensor::from_slice(&[1f32, -2.0], [2])?;
    /// let opt = AdamW::new(&p, AdamWOptions { lr: 0.5, weight_decay: 0.0, ..Default::default() })?;
    /// let (p, opt) = opt.update(&p, &p)?;
    /// // The first step goes by the learning rate against the gradient's sign.
    /// let p = p.to_vec::<f32>()?;
    /// assert!((p[0] - 0.5).abs() < 1e-5 && (p[1] + 1.5).abs() < 1e-5);
    /// assert_eq!(opt.step.item::<i64>()?, 1);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.optim.AdamW](https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html).
    AdamW AdamWOptions "adamw" true
}

/// Where each number of [`Options::numbers`] stands among the operands.
const BETA1: usize = 2;
const REST1: usize = 3;
const LN1: usize = 4;
const BETA2: usize = 5;
const REST2: usize = 6;
const LN2: usize = 7;
const EPS: usize = 8;
const DECAY: usize = 9;
const NUMBERS: usize = 8;

impl Options {
    /// The numbers that a program takes. What is near 0 or 1 is worked out here in f64, so that f32
    /// steps lose nothing.
    fn numbers(&self) -> [f64; NUMBERS] {
        let (a, b) = (self.beta1, self.beta2);
        [a, 1.0 - a, a.ln(), b, 1.0 - b, b.ln(), self.eps, self.weight_decay]
    }
}

/// Operands: rate, step, the numbers, then parameters, gradients and both means.
fn step_of(values: &[Value], count: usize, decays: bool, decoupled: bool) -> Result<Values> {
    let lr = &values[0];
    let step = ops::add(&values[1], &ops::full_like(&values[1], 1.0)?)?;
    let time = ops::convert(&step, lr.dtype())?;
    // 1 - beta^t, exact where beta^t is near 1.
    let correction = |ln: &Value| ops::neg(&ops::expm1(&ops::mul(&time, ln)?)?);
    let rate = ops::div(lr, &correction(&values[LN1])?)?;
    let root = ops::sqrt(&correction(&values[LN2])?)?;
    let kept = ops::mul(lr, &values[DECAY])?;
    let kept = ops::sub(&ops::full_like(&kept, 1.0)?, &kept)?;
    let part = |i: usize| &values[2 + NUMBERS + i * count..][..count];
    let (mut news, mut means, mut squares) = (Values::new(), Values::new(), Values::new());
    for (((p, g), m), v) in part(0).iter().zip(part(1)).zip(part(2)).zip(part(3)) {
        let (mut p, mut g) = (p.clone(), g.clone());
        if decays && decoupled {
            p = scaled(&p, &kept)?;
        } else if decays {
            g = ops::add(&g, &scaled(&p, &values[DECAY])?)?;
        }
        let m = ops::add(&scaled(m, &values[BETA1])?, &scaled(&g, &values[REST1])?)?;
        let square = scaled(&ops::mul(&g, &g)?, &values[REST2])?;
        let v = ops::add(&scaled(v, &values[BETA2])?, &square)?;
        let below = ops::div(&ops::sqrt(&v)?, &spread(&root, &v)?)?;
        let below = ops::add(&below, &spread(&values[EPS], &v)?)?;
        news.push(ops::sub(&p, &ops::div(&scaled(&m, &rate)?, &below)?)?);
        means.push(m);
        squares.push(v);
    }
    let outs = std::iter::once(step).chain(news).chain(means).chain(squares);
    Ok(outs.collect())
}
