//! Stochastic gradient descent.

use super::{Step, hash_by_bits, like, number, rate_dtype, scaled, zeros_like};
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops;
use crate::tensor::autograd::no_grad;
use crate::tensor::placed;
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use crate::transforms::tree::{Tree, rebuild};
use oxbridge_derive::Tree;

/// What [`Sgd`] is told; torch's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct SgdOptions {
    /// Learning rate.
    pub lr: f64,
    /// How much of the last step's direction is kept.
    pub momentum: f64,
    /// How much of the gradient is held back from the momentum.
    pub dampening: f64,
    /// Factor of the parameter that is added to its gradient.
    pub weight_decay: f64,
    /// Whether to look one step of momentum ahead.
    pub nesterov: bool,
}

hash_by_bits!(SgdOptions: lr, momentum, dampening, weight_decay; nesterov);

impl Default for SgdOptions {
    fn default() -> SgdOptions {
        SgdOptions { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

/// Gradient descent with torch's momentum: `g += weight_decay p`, `b = momentum b + (1 - dampening)
/// g` (`b = g` at first), `p -= lr b`, or with Nesterov's form `p -= lr (g + momentum b)`.
///
/// # Example
/// ```
/// use oxbridge::optim::{Sgd, SgdOptions};
/// use oxbridge::prelude::*;
/// let p = Tensor::from_slice(&[1f32, 2.0], [2])?;
/// let sgd = Sgd::new(&p, SgdOptions { lr: 0.5, ..SgdOptions::default() })?;
/// let (p, _sgd) = sgd.update(&p, &p)?;
/// assert_eq!(p.to_vec::<f32>()?, [0.5, 1.0]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Tree)]
pub struct Sgd<P> {
    /// Updates so far, i64.
    pub step: Tensor,
    /// Learning rate: set it freely, a compiled step stays the same.
    pub lr: Tensor,
    /// The momentum of each parameter, if there is any.
    pub momentum_buffer: Option<P>,
    #[tree(static)]
    options: SgdOptions,
}

impl<P: Tree> Sgd<P> {
    /// The state before the first step.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn new(params: &P, options: SgdOptions) -> Result<Sgd<P>> {
        let momentum = options.momentum != 0.0;
        Ok(Sgd {
            step: number(DType::I64, 0.0),
            lr: number(rate_dtype(params), options.lr),
            momentum_buffer: momentum.then(|| zeros_like(params)).transpose()?,
            options,
        })
    }

    /// The same state with another learning rate.
    #[must_use]
    pub fn with_lr(self, lr: f64) -> Sgd<P> {
        let lr = number(self.lr.aval().dtype(), lr);
        Sgd { lr, ..self }
    }

    /// New parameters and state from the gradients.
    ///
    /// # Errors
    /// If gradients or state do not have the parameters' structure, shapes and dtypes.
    #[track_caller]
    pub fn update(&self, params: &P, grads: &P) -> Result<(P, Sgd<P>)>
    where
        P: Clone,
    {
        let ps = like("sgd", "parameter", params, params)?;
        let gs = like("sgd", "gradient", params, grads)?;
        let (lr, step) = (self.lr.value()?, self.step.value()?);
        let dtype = lr.dtype();
        let o = &self.options;
        let numbers = [o.momentum, 1.0 - o.dampening, o.weight_decay];
        let mut operands: Values = [lr, step].into_iter().collect();
        operands.extend(numbers.map(|n| Value::scalar(Scalar::from_f64(dtype, n))));
        let count = ps.len();
        operands.extend(ps.into_iter().chain(gs));
        if let Some(buffer) = &self.momentum_buffer {
            operands.extend(like("sgd", "momentum", params, buffer)?);
        }
        let shape = Shape {
            count,
            momentum: self.momentum_buffer.is_some(),
            dampening: o.dampening != 0.0,
            decay: o.weight_decay != 0.0,
            nesterov: o.nesterov,
        };
        let outs = ops::call::fused("sgd", &shape.params(), &operands, |values| shape.run(values));
        let mut outs = placed(outs)?.into_iter().map(Tensor::from_value);
        let step = outs.next().unwrap_or_else(|| self.step.clone());
        let new = rebuild(params, outs.by_ref().take(count))?;
        let momentum_buffer = match &self.momentum_buffer {
            Some(buffer) => Some(rebuild(buffer, outs)?),
            None => None,
        };
        let state = Sgd { step, lr: self.lr.clone(), momentum_buffer, options: o.clone() };
        Ok((new, state))
    }

    /// One step in torch's manner: takes the gradients that backward passes left in the parameters,
    /// and writes parameters and state in place. Parameters without a gradient stay as they are.
    ///
    /// **Unlike torch:** the number of steps is one for all parameters.
    ///
    /// # Errors
    /// If no parameter has a gradient; as [`Sgd::update`].
    ///
    /// # Example
    /// ```
    /// use oxbridge::optim::{Sgd, SgdOptions};
    /// use oxbridge::prelude::*;
    /// let w = Tensor::from_slice(&[1f32, 2.0], [2])?.requires_grad_(true)?;
    /// let sgd = Sgd::new(&w, SgdOptions { lr: 0.25, ..SgdOptions::default() })?;
    /// w.mul(&w)?.sum()?.backward()?;
    /// sgd.step_(&w)?;
    /// assert_eq!(w.to_vec::<f32>()?, [0.5, 1.0]);
    /// w.zero_grad()?;
    /// assert!(w.requires_grad() && sgd.step_(&w).is_err());
    /// # Ok::<(), Error>(())
    /// ```
    pub fn step_(&self, params: &P) -> Result<()> {
        let step = Step::of("sgd", params)?;
        let momentum_buffer = self.momentum_buffer.as_ref().map(|buffer| step.part(buffer));
        let (lr, options) = (self.lr.clone(), self.options.clone());
        let old = Sgd { step: self.step.clone(), lr, momentum_buffer, options };
        let (params, new) = no_grad(|| old.update(&step.params, &step.grads))?;
        old.step.write_back(new.step.value()?)?;
        if let (Some(old), Some(new)) = (&old.momentum_buffer, &new.momentum_buffer) {
            Step::write(old, new)?;
        }
        Step::write(&step.params, &params)
    }
}

/// What the program of an update depends on, besides the operands' types.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part of the program or is not")]
struct Shape {
    count: usize,
    momentum: bool,
    dampening: bool,
    decay: bool,
    nesterov: bool,
}

impl Shape {
    fn params(self) -> [i64; 5] {
        let flags = [self.momentum, self.dampening, self.decay, self.nesterov].map(i64::from);
        [self.count as i64, flags[0], flags[1], flags[2], flags[3]]
    }

    /// Operands: rate, step, three numbers, parameters, gradients, momenta.
    fn run(self, values: &[Value]) -> Result<Values> {
        let (lr, step) = (&values[0], &values[1]);
        let (ps, rest) = values[5..].split_at(self.count);
        let (gs, momenta) = rest.split_at(self.count);
        let kept = self.kept(step, &values[3])?;
        let mut news = Values::from_iter([ops::add(step, &ops::full_like(step, 1.0)?)?]);
        let mut buffers = Values::new();
        for (i, (p, g)) in ps.iter().zip(gs).enumerate() {
            let mut g = g.clone();
            if self.decay {
                g = ops::add(&g, &scaled(p, &values[4])?)?;
            }
            if self.momentum {
                let fresh = if self.dampening { scaled(&g, &kept)? } else { g.clone() };
                let buffer = ops::add(&scaled(&momenta[i], &values[2])?, &fresh)?;
                g = match self.nesterov {
                    true => ops::add(&g, &scaled(&buffer, &values[2])?)?,
                    false => buffer.clone(),
                };
                buffers.push(buffer);
            }
            news.push(ops::sub(p, &scaled(&g, lr)?)?);
        }
        news.extend(buffers);
        Ok(news)
    }

    /// The share of the gradient that the momentum takes: all of it in the first step.
    fn kept(self, step: &Value, kept: &Value) -> Result<Value> {
        let first = ops::eq(step, &ops::full_like(step, 0.0)?)?;
        ops::select(&first, &ops::full_like(kept, 1.0)?, kept)
    }
}
