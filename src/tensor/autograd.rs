//! Torch's derivatives: `requires_grad_`, `backward`, `.grad()`, hooks, and the functional
//! [`grad`]; [`no_grad`] and [`enable_grad`].
//!
//! They are the same rules as those of the transform [`grad`](crate::grad()), remembered by
//! the tensors. What a tensor holds is never overwritten below this surface, so an in-place write never
//! spoils what an earlier operation keeps for its derivative: where torch says that a saved tensor
//! was modified, the derivative here is that of the values which were used. Reading a tensor
//! (`to_vec`, `item`, printing) reads its value, whether it requires grad or not.
//!
//! Inside of `jit`, a tensor from outside requires grad after `requires_grad_(true)` in there; its
//! gradient is the one that is seen outside, and what is added to it comes out with the call. A
//! function that runs `backward` in `jit` gives results that require no grad. Without it gradients
//! flow through the call, by its compiled derivative. `no_grad` inside of a transform makes
//! constants for it; around a transform it has no say inside.

use super::{placed, wrap};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::create::or_zeros;
use crate::ops::stop_gradient;
use crate::trace::autograd::{self, Backward, Edge, GradMode, Graded, HookId, Kept, Rules, graded};
use crate::trace::cell::Tensor;
use crate::trace::{Value, is_eager};
use std::panic::Location;
use std::sync::{Arc, PoisonError};

const RULES: Rules = Rules {
    arithmetic: ops::ARITHMETIC,
    place: |x, sharding| ops::sharding_constraint(x, sharding),
};

/// Runs `f` while nothing is recorded for derivatives on this thread.
///
/// What it gives requires no grad. What is written in place keeps its past: a leaf stays a leaf.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let w = Tensor::from_slice(&[1f32, 2.0], [2])?.requires_grad_(true)?;
/// w.mul(&w)?.sum()?.backward()?;
/// let g = w.grad().expect("backward gave one");
/// no_grad(|| w.sub_(&g.mul(0.5)?))?;
/// assert_eq!(w.to_vec::<f32>()?, [0.0, 0.0]);
/// assert!(w.requires_grad() && w.is_leaf());
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.no_grad](https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html).
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    let _mode = set_grad_enabled(false);
    f()
}

/// Runs `f` while operations are recorded, inside of [`no_grad`] too.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32], [1])?.requires_grad_(true)?;
/// let y = no_grad(|| enable_grad(|| x.sin()))?;
/// assert!(y.requires_grad());
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.enable_grad](https://docs.pytorch.org/docs/stable/generated/torch.enable_grad.html).
pub fn enable_grad<T>(f: impl FnOnce() -> T) -> T {
    let _mode = GradMode::set(true);
    f()
}

/// Switches recording on this thread until the guard is dropped: [`no_grad`] for a scope.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// use oxbridge::autograd::{is_grad_enabled, set_grad_enabled};
/// {
///     let _guard = set_grad_enabled(false);
///     assert!(!is_grad_enabled());
/// }
/// assert!(is_grad_enabled());
/// ```
///
/// **Source:** [torch.set_grad_enabled](https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.set_grad_enabled.html).
pub fn set_grad_enabled(enabled: bool) -> GradMode {
    if enabled { GradMode::set(true) } else { GradMode::constants(stop_gradient) }
}

/// Whether operations on this thread are recorded.
pub fn is_grad_enabled() -> bool {
    autograd::is_grad_enabled()
}

/// How [`Tensor::backward_options`] runs.
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// The cotangent of the tensor; none for 1, which fits a tensor of one element alone.
    pub gradient: Option<Tensor>,
    /// Whether another pass may follow over the same operations; none for what `create_graph` says.
    pub retain_graph: Option<bool>,
    /// Whether the gradients may be differentiated.
    pub create_graph: bool,
}

/// How [`grad`] runs.
#[derive(Clone, Debug, Default)]
pub struct GradOptions {
    /// The cotangents of the outputs; none for 1, which fits outputs of one element alone.
    pub grad_outputs: Option<Vec<Tensor>>,
    /// Whether another pass may follow over the same operations; none for what `create_graph` says.
    pub retain_graph: Option<bool>,
    /// Whether the gradients may be differentiated.
    pub create_graph: bool,
    /// Whether an input may have no part in the outputs; its gradient is zeros then.
    pub allow_unused: bool,
}

/// The gradients of the sum of `outputs` in `inputs`, each weighed by its cotangent; no `.grad()`
/// is changed.
///
/// **Shapes:** the gradients have the inputs' shapes and dtypes. **Unlike torch:** the gradient of
/// an input that has no part is zeros, if that is allowed.
///
/// # Errors
/// If an output or input does not require grad, if a cotangent is missing or does not fit, if an
/// input has no part in the outputs and `allow_unused` is not set, or if the graph is freed.
///
/// # Example
/// ```
/// use oxbridge::autograd::{GradOptions, grad};
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[2f64], [1])?.requires_grad_(true)?;
/// let y = x.pow(3.0)?.sum()?;
/// let options = GradOptions { create_graph: true, ..Default::default() };
/// let slope = grad(&[&y], &[&x], &options)?.remove(0);
/// let curvature = grad(&[&slope], &[&x], &GradOptions::default())?.remove(0);
/// assert_eq!(slope.to_vec::<f64>()?, [12.0]);
/// assert_eq!(curvature.to_vec::<f64>()?, [12.0]);
/// assert!(x.grad().is_none());
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.autograd.grad](https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html).
#[track_caller]
pub fn grad<O: AsRef<Tensor>, I: AsRef<Tensor>>(
    outputs: &[O],
    inputs: &[I],
    options: &GradOptions,
) -> Result<Vec<Tensor>> {
    placed(grad_of(outputs, inputs, options))
}

fn grad_of<O: AsRef<Tensor>, I: AsRef<Tensor>>(
    outputs: &[O],
    inputs: &[I],
    options: &GradOptions,
) -> Result<Vec<Tensor>> {
    let weights = options.grad_outputs.as_deref();
    if let Some(weights) = weights
        && weights.len() != outputs.len()
    {
        let text = format!("{} cotangents are given for {} outputs", weights.len(), outputs.len());
        return Err(Error::new(ErrorKind::Tree, "grad", text));
    }
    let root = |(i, y): (usize, &O)| root("grad", y.as_ref(), weights.map(|w| &w[i]));
    let roots = outputs.iter().enumerate().map(root).collect::<Result<_>>()?;
    let edges = inputs.iter().map(|x| own_edge("grad", x.as_ref())).collect::<Result<Vec<_>>>()?;
    let pass = Backward {
        roots,
        inputs: Some(&edges),
        retain_graph: options.retain_graph.unwrap_or(options.create_graph),
        create_graph: options.create_graph,
        rules: RULES,
    };
    let found = pass.run()?;
    let pairs = inputs.iter().zip(found).enumerate();
    pairs
        .map(|(i, (input, ct))| {
            if ct.is_none() && !options.allow_unused {
                return Err(unused(i, input.as_ref()));
            }
            Ok(Tensor::from_value(or_zeros(&ct, &input.as_ref().aval())?))
        })
        .collect()
}

#[cold]
fn unused(i: usize, input: &Tensor) -> Error {
    let text = format!("input {i} {} has no part in the outputs", input.aval());
    Error::new(ErrorKind::Autograd, "grad", text)
        .help("set `allow_unused` if zeros are right for it")
}

#[cold]
fn no_past(op: &'static str, tensor: &Tensor) -> Error {
    let text = format!("{} does not require grad and does not come from what does", tensor.aval());
    Error::new(ErrorKind::Autograd, op, text).help(
        "call `requires_grad_(true)` on what it is computed from, outside of `no_grad`; inside of \
         `jit` call it there",
    )
}

/// Where a backward pass starts from a tensor, and with what.
fn root(op: &'static str, y: &Tensor, weight: Option<&Tensor>) -> Result<(Edge, Value)> {
    let value = y.value()?;
    let Some(graded) = graded(&value) else { return Err(no_past(op, y)) };
    let weight = match weight {
        Some(weight) => fitting(op, "cotangent", weight, y)?,
        None if value.aval().size() == 1 => ops::full_like(graded.primal(), 1.0)?,
        None => {
            let text = format!("{} is not one number, and no cotangent of it is given", y.aval());
            return Err(Error::new(ErrorKind::Shape, op, text)
                .help("reduce it, for example with `sum` or `mean`, or use `backward_with`"));
        }
    };
    Ok((graded.edge().clone(), weight))
}

/// The value of `given`, which must have the type of `like`.
fn fitting(op: &'static str, what: &str, given: &Tensor, like: &Tensor) -> Result<Value> {
    let value = given.value()?;
    let (have, want) = (value.aval().unsharded(), like.aval().unsharded());
    if have == want {
        return Ok(value);
    }
    let kind = if have.dtype() == want.dtype() { ErrorKind::Shape } else { ErrorKind::DType };
    let text = format!("the {what} is {have}, not {want} as the tensor it belongs to");
    Err(Error::new(kind, op, text))
}

/// Where the tensor's own gradient arrives; a handle on another tensor's leaf gets a past of its
/// own first.
fn own_edge(op: &'static str, x: &Tensor) -> Result<Edge> {
    let mut value = x.value()?;
    let Some(first) = graded(&value) else { return Err(no_past(op, x)) };
    let node = first.edge().node();
    if node.is_leaf() && !node.is_leaf_of(x.cell().id()) {
        value = autograd::alias(&value);
        x.cell().mark(value.clone());
    }
    graded(&value).map(|g| g.edge().clone()).ok_or_else(|| no_past(op, x))
}

/// A hook on a tensor's gradient, as [`Tensor::register_hook`] gives it.
#[derive(Clone, Debug)]
#[must_use = "the hook stays for ever if it is not removed"]
pub struct HookHandle(HookId);

impl HookHandle {
    /// Takes the hook away. Dropping the handle does not.
    pub fn remove(&self) {
        self.0.remove();
    }
}

impl Tensor {
    /// Makes the tensor a leaf that requires grad (`true`), or one that does not (`false`): its
    /// operations are recorded from now on, and [`Tensor::backward`] adds to its [`Tensor::grad`].
    ///
    /// A view that comes to require grad, like `x.detach()?.requires_grad_(true)?`, has storage of
    /// its own from then on.
    ///
    /// # Errors
    /// If the dtype is an integer or bool; for `false` if the tensor is no leaf.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let w = Tensor::from_slice(&[1f32, 2.0, 3.0], [3])?.requires_grad_(true)?;
    /// let loss = w.mul(&w)?.sum()?;
    /// loss.backward()?;
    /// assert_eq!(w.grad().expect("backward gave one").to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.Tensor.requires_grad_](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.requires_grad_.html).
    #[track_caller]
    pub fn requires_grad_(&self, requires_grad: bool) -> Result<Tensor> {
        placed(self.set_requires_grad(requires_grad).map(|()| self.clone()))
    }

    fn set_requires_grad(&self, requires_grad: bool) -> Result<()> {
        const OP: &str = "requires_grad_";
        let value = self.value()?;
        match (graded(&value), requires_grad) {
            (Some(_), true) | (None, false) => Ok(()),
            (None, true) if value.dtype().is_differentiable() => {
                self.cell().mark_leaf(&value);
                Ok(())
            }
            (None, true) => {
                let text = format!("{} has no derivative", value.aval());
                Err(Error::new(ErrorKind::DType, OP, text).help("convert it to floating point"))
            }
            (Some(_), false) if self.is_leaf() => {
                self.cell().mark(autograd::primal(&value));
                Ok(())
            }
            (Some(_), false) => {
                let text = format!("{} is no leaf, and requires grad by its past", value.aval());
                Err(Error::new(ErrorKind::Autograd, OP, text).help("use `detach`"))
            }
        }
    }

    /// Whether operations on the tensor are recorded: it is a leaf that requires grad, or comes from
    /// one.
    ///
    /// **Source:** [torch.Tensor.requires_grad](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.requires_grad.html).
    pub fn requires_grad(&self) -> bool {
        self.value().is_ok_and(|value| graded(&value).is_some())
    }

    /// Whether the tensor comes from no recorded operation: it requires no grad, or does of itself.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let w = Tensor::zeros([2], DType::F32)?.requires_grad_(true)?;
    /// assert!(w.is_leaf() && !w.mul(2.0)?.is_leaf() && !w.view([2, 1])?.is_leaf());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.Tensor.is_leaf](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.is_leaf.html).
    pub fn is_leaf(&self) -> bool {
        let of_this = |g: &Graded| g.edge().node().is_leaf_of(self.cell().id());
        self.value().is_ok_and(|value| graded(&value).is_none_or(of_this))
    }

    /// The gradient that backward passes have added up: of a leaf, or of any tensor after
    /// [`Tensor::retain_grad`]; none if there is none yet.
    ///
    /// It is a handle on the gradient: in-place methods change it, and later passes add to it.
    /// After [`Tensor::zero_grad`] handles taken before keep what they held.
    ///
    /// **Source:** [torch.Tensor.grad](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.grad.html).
    #[track_caller]
    pub fn grad(&self) -> Option<Tensor> {
        let edge = self.grad_edge()?;
        edge.grad(self.cell().id()).ok()??;
        let slot = Tensor::of_cell(edge.slot(self.cell().id())?);
        let (kept, written) = (edge.kept(), edge.kept());
        let lock = |kept: &Kept| kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let forward = move |now: &Value| Ok(lock(&kept).unwrap_or_else(|| now.clone()));
        // What is written after the gradient was thrown away is lost.
        let backward =
            move |old: &Value, new: &Value| Ok(lock(&written).map_or(new.clone(), |_| old.clone()));
        Tensor::view_of(&slot, Arc::new(forward), Arc::new(backward)).ok()
    }

    /// Where the gradient of this tensor is kept: known here, or by the leaf outside of a transform.
    fn grad_edge(&self) -> Option<Edge> {
        let of_this = |value: &Value| {
            let edge = graded(value)?.edge().clone();
            edge.slot(self.cell().id()).is_some().then_some(edge)
        };
        let value = self.value().ok()?;
        of_this(&value).or_else(|| of_this(&self.cell().outside()?))
    }

    /// Puts a gradient in, in place of what passes have added up; none throws it away.
    ///
    /// # Errors
    /// If the gradient has another shape or dtype; if the tensor keeps no gradient.
    #[track_caller]
    pub fn set_grad(&self, grad: Option<&Tensor>) -> Result<()> {
        placed(self.put_grad(grad))
    }

    fn put_grad(&self, grad: Option<&Tensor>) -> Result<()> {
        let grad = grad.map(|g| fitting("set_grad", "gradient", g, self)).transpose()?;
        match (self.grad_edge(), grad) {
            (Some(edge), grad) => edge.set_grad(self.cell().id(), grad),
            (None, None) => {}
            (None, Some(_)) => return Err(no_past("set_grad", self)),
        }
        Ok(())
    }

    /// Throws the gradient away, as torch's `optimizer.zero_grad()` does.
    ///
    /// # Errors
    /// If the tensor was traced by a transform that has ended.
    #[track_caller]
    pub fn zero_grad(&self) -> Result<()> {
        self.set_grad(None)
    }

    /// Adds the gradient of this number to [`Tensor::grad`] of every leaf that it comes from.
    ///
    /// # Errors
    /// If the tensor is not one number; if it does not require grad; if an earlier pass has freed
    /// what was recorded (see [`BackwardOptions::retain_graph`]); what a hook says.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[3f32], [])?.requires_grad_(true)?;
    /// x.mul(&x)?.backward()?;
    /// x.mul(2.0)?.backward()?;
    /// assert_eq!(x.grad().expect("backward gave one").item::<f32>()?, 8.0);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.Tensor.backward](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html).
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        placed(self.run_backward(None, false, false))
    }

    /// [`Tensor::backward`] from a tensor of any shape and its cotangent.
    ///
    /// # Errors
    /// If the cotangent has another shape or dtype; as [`Tensor::backward`].
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1f32, 2.0], [2])?.requires_grad_(true)?;
    /// x.mul(&x)?.backward_with(&Tensor::from_slice(&[1f32, 10.0], [2])?)?;
    /// assert_eq!(x.grad().expect("backward gave one").to_vec::<f32>()?, [2.0, 40.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn backward_with(&self, gradient: &Tensor) -> Result<()> {
        placed(self.run_backward(Some(gradient), false, false))
    }

    /// [`Tensor::backward`] with torch's options.
    ///
    /// # Errors
    /// As [`Tensor::backward`].
    ///
    /// # Example
    /// ```
    /// use oxbridge::autograd::BackwardOptions;
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[3f32], [])?.requires_grad_(true)?;
    /// let y = x.mul(&x)?;
    /// y.backward_options(&BackwardOptions { retain_graph: Some(true), ..Default::default() })?;
    /// y.backward()?;
    /// assert_eq!(x.grad().expect("backward gave one").item::<f32>()?, 12.0);
    /// assert!(y.backward().unwrap_err().to_string().contains("retain_graph"));
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn backward_options(&self, options: &BackwardOptions) -> Result<()> {
        let retain = options.retain_graph.unwrap_or(options.create_graph);
        placed(self.run_backward(options.gradient.as_ref(), retain, options.create_graph))
    }

    fn run_backward(
        &self,
        gradient: Option<&Tensor>,
        retain_graph: bool,
        create_graph: bool,
    ) -> Result<()> {
        let roots = vec![root("backward", self, gradient)?];
        Backward { roots, inputs: None, retain_graph, create_graph, rules: RULES }.run()?;
        Ok(())
    }

    /// Calls `hook` with the tensor's gradient whenever a backward pass has it; what the hook gives
    /// takes the gradient's place. Several hooks run in the order in which they were registered, and
    /// before the gradient is kept.
    ///
    /// # Errors
    /// If the tensor does not require grad.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[3f32], [1])?.requires_grad_(true)?;
    /// let y = x.mul(2.0)?;
    /// let hook = y.register_hook(|g: &Tensor| Ok(Some(g.mul(10.0)?)))?;
    /// y.sum()?.backward()?;
    /// assert_eq!(x.grad().expect("backward gave one").to_vec::<f32>()?, [20.0]);
    /// hook.remove();
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.Tensor.register_hook](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.register_hook.html).
    #[track_caller]
    pub fn register_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        let edge = placed(own_edge("register_hook", self))?;
        let call = move |ct: &Value| match hook(&Tensor::from_value(ct.clone()))? {
            Some(new) => Ok(Some(new.value()?)),
            None => Ok(None),
        };
        Ok(HookHandle(edge.hook(Arc::new(call))))
    }

    /// Keeps the gradient of a tensor that is no leaf too, for [`Tensor::grad`].
    ///
    /// # Errors
    /// If the tensor does not require grad.
    ///
    /// **Source:** [torch.Tensor.retain_grad](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.retain_grad.html).
    #[track_caller]
    pub fn retain_grad(&self) -> Result<()> {
        placed(own_edge("retain_grad", self).map(|edge| edge.retain()))
    }

    /// The name of the operation that the tensor comes from; none for a leaf.
    ///
    /// **Source:** torch's `Tensor.grad_fn`.
    pub fn grad_fn(&self) -> Option<String> {
        let value = self.value().ok()?;
        let edge = graded(&value)?.edge();
        (!edge.node().is_leaf_of(self.cell().id())).then(|| edge.op())
    }

    /// A view of `self` through which no derivative flows: writes to either are seen by both, and
    /// `self` keeps its past.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[3.0f32], [1])?;
    /// let slope = grad(|x: &Tensor| x.mul(&x.detach()?)?.sum())(&x)?;
    /// assert_eq!(slope.to_vec::<f32>()?, [3.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html).
    #[track_caller]
    pub fn detach(&self) -> Result<Tensor> {
        let back = |old: &Value, new: &Value| Ok(autograd::with_past(old, new));
        placed(Tensor::view_of(self, Arc::new(stop_gradient), Arc::new(back)))
    }

    /// Cuts the tensor itself from its past; all handles see it.
    ///
    /// **Source:** torch's `Tensor.detach_`.
    ///
    /// # Errors
    /// If the tensor was traced by a transform that has ended.
    #[track_caller]
    pub fn detach_(&self) -> Result<Tensor> {
        let here = Location::caller();
        let value = self.value().map_err(|e| e.at(here))?;
        self.cell().mark(stop_gradient(&value).map_err(|e| e.at(here))?);
        Ok(self.clone())
    }

    /// A tensor of its own with the same elements (torch's `clone`; Rust's `clone` is one more
    /// handle on the same storage). The copy has memory of its own on the device, so it is still
    /// there when `self` has been donated. Derivatives flow through it.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1f32, 2.0], [2])?;
    /// let kept = x.copy()?;
    /// jit(|x: &Tensor| x.add(1.0)).donate([0]).call(&x)?;
    /// assert_eq!(kept.to_vec::<f32>()?, [1.0, 2.0]);
    /// assert_eq!(*x.to_vec::<f32>().unwrap_err().kind(), ErrorKind::Donated);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.clone](https://docs.pytorch.org/docs/stable/generated/torch.clone.html).
    #[track_caller]
    pub fn copy(&self) -> Result<Tensor> {
        wrap(self.value().and_then(|value| match &value {
            // A program never gives its operand's own memory back.
            Value::Array(array) if array.as_literal().is_none() => barrier(value),
            _ if is_eager() && graded(&value).is_some() => barrier(value),
            _ => Ok(autograd::alias(&value)),
        }))
    }
}

fn barrier(value: Value) -> Result<Value> {
    Ok(ops::optimization_barrier(&[value])?.swap_remove(0))
}
