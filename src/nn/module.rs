//! What all layers and models have: torch's names for their tensors, and the switch between
//! training and evaluation.

use crate::error::{Error, ErrorKind, Result};
use crate::trace::cell::Tensor;
use crate::transforms::tree::{Key, Leaves, Tree, Visitor, leaves};
use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::hash::Hash;

/// A tree of parameters and buffers under torch's names: `layers.0.weight`.
///
/// `#[derive(Module)]` implements it, and the [`Tree`] below it, for structs and enums.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// #[derive(Clone, Debug, Module)]
/// struct Scale {
///     weights: Vec<Tensor>,
///     #[tree(static)]
///     power: usize,
/// }
/// let weights = vec![Tensor::zeros([2], DType::F32)?, Tensor::zeros([3], DType::F32)?];
/// let scale = Scale { weights, power: 2 };
/// let names: Vec<String> = scale.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["weights.0", "weights.1"]);
/// # Ok::<(), Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    label = "not a module",
    note = "a field that holds no tensors is marked `#[tree(static)]`; a struct of layers derives `Module`"
)]
pub trait Module: Tree {
    /// Sets training mode (`true`) or evaluation (`false`) in every layer below, as torch's `train`.
    ///
    /// A compiled function that was traced in the other mode is traced anew, also if it captured the
    /// module. A clone has a mode of its own.
    fn train(&self, mode: bool);

    /// Sets evaluation mode: `train(false)`.
    fn eval(&self) {
        self.train(false);
    }

    /// What is learnt, in order.
    fn parameters(&self) -> Vec<Tensor> {
        leaves(self).into_iter().cloned().collect()
    }

    /// What is learnt, with names.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        named(self).into_iter().filter(|n| !n.buffer).map(Named::pair).collect()
    }

    /// What is kept and not learnt, with names.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        named(self).into_iter().filter(|n| n.buffer).map(Named::pair).collect()
    }

    /// What is kept and not learnt, in order.
    fn buffers(&self) -> Vec<Tensor> {
        named(self).into_iter().filter(|n| n.buffer).map(|n| n.tensor.clone()).collect()
    }

    /// Makes every floating-point parameter a leaf that requires grad, or one that does not.
    ///
    /// # Errors
    /// If a parameter is no leaf and should not require grad.
    fn requires_grad_(&self, requires_grad: bool) -> Result<()> {
        let mut all = leaves(self).into_iter().filter(|p| p.aval().dtype().is_differentiable());
        all.try_for_each(|p| p.requires_grad_(requires_grad).map(drop))
    }

    /// Throws the gradients of all parameters away.
    ///
    /// # Errors
    /// If a parameter was traced by a transform that has ended.
    fn zero_grad(&self) -> Result<()> {
        leaves(self).into_iter().try_for_each(Tensor::zero_grad)
    }

    /// Parameters and buffers by name, in order. The tensors are handles on the module's own.
    fn state_dict(&self) -> IndexMap<String, Tensor> {
        named(self).into_iter().map(Named::pair).collect()
    }

    /// Puts the values of a state dict into the module's tensors, in place, each in the dtype that
    /// the module has; every clone of the module sees them.
    ///
    /// # Errors
    /// If names are missing or not known, or shapes differ: all of them are told, and nothing is
    /// changed.
    fn load_state_dict(&self, state: &IndexMap<String, Tensor>) -> Result<()> {
        load(self, state)
    }
}

/// A module that takes one tensor to one.
pub trait Layer: Module {
    /// The layer's function.
    ///
    /// # Errors
    /// If the input does not fit.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;
}

impl<F: Layer> Layer for Box<F> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (**self).forward(x)
    }
}

/// A tensor of a tree under its name in a state dict.
pub(crate) struct Named<'t> {
    pub(crate) name: String,
    pub(crate) tensor: &'t Tensor,
    pub(crate) buffer: bool,
}

impl Named<'_> {
    fn pair(self) -> (String, Tensor) {
        (self.name, self.tensor.clone())
    }
}

/// All tensors of a tree, buffers too, under their names with torch's dots.
pub(crate) fn named<T: Leaves + ?Sized>(tree: &T) -> Vec<Named<'_>> {
    #[derive(Default)]
    struct Names<'t> {
        at: String,
        lengths: Vec<usize>,
        all: Vec<Named<'t>>,
    }
    impl<'t> Names<'t> {
        fn add(&mut self, tensor: &'t Tensor, buffer: bool) {
            self.all.push(Named { name: self.at.clone(), tensor, buffer });
        }
    }
    impl<'t> Visitor<'t> for Names<'t> {
        fn leaf(&mut self, tensor: &'t Tensor) {
            self.add(tensor, false);
        }
        fn buffer(&mut self, tensor: &'t Tensor) {
            self.add(tensor, true);
        }
        fn enter(&mut self, key: Key<'_>) {
            self.lengths.push(self.at.len());
            let dot = if self.at.is_empty() { "" } else { "." };
            // Writing to a `String` cannot fail.
            let _ = match key {
                Key::Index(i) => write!(self.at, "{dot}{i}"),
                Key::Name(name) => write!(self.at, "{dot}{name}"),
                Key::Entry(key) => write!(self.at, "{dot}{key}"),
            };
        }
        fn exit(&mut self) {
            self.at.truncate(self.lengths.pop().unwrap_or(0));
        }
    }
    let mut names = Names::default();
    tree.visit(&mut names);
    names.all
}

/// What keeps `state` from being loaded into `wants`, in words; empty if nothing does.
pub(crate) fn misfits(wants: &[Named<'_>], state: &IndexMap<String, Tensor>) -> Vec<String> {
    let list = |what: &str, names: Vec<&str>| match names.len() {
        0 => None,
        _ => Some(format!(
            "{what}: {}",
            names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
        )),
    };
    let missing = wants.iter().filter(|n| !state.contains_key(&n.name)).map(|n| &*n.name).collect();
    let known = |name: &str| wants.iter().any(|n| n.name == name);
    let unexpected = state.keys().map(String::as_str).filter(|name| !known(name)).collect();
    let mut out: Vec<String> = [list("missing keys", missing), list("unexpected keys", unexpected)]
        .into_iter()
        .flatten()
        .collect();
    for want in wants {
        let Some(have) = state.get(&want.name) else { continue };
        let (a, b) = (want.tensor.aval(), have.aval());
        if a.shape() != b.shape() {
            out.push(format!("`{}` is {a} in the module and {b} in the state dict", want.name));
        }
    }
    out
}

fn load<T: Leaves + ?Sized>(module: &T, state: &IndexMap<String, Tensor>) -> Result<()> {
    let wants = named(module);
    let misfits = misfits(&wants, state);
    if !misfits.is_empty() {
        let text = format!("the state dict does not fit the module: {}", misfits.join("; "));
        return Err(Error::new(ErrorKind::Tree, "load_state_dict", text));
    }
    let values = wants.iter().map(|want| {
        let value = state[&want.name].value()?;
        crate::ops::convert(&value, want.tensor.aval().dtype())
    });
    let values = values.collect::<Result<Vec<_>>>()?;
    wants.iter().zip(values).try_for_each(|(want, value)| want.tensor.write_back(value))
}

impl Module for Tensor {
    fn train(&self, _: bool) {}
}

impl Module for () {
    fn train(&self, _: bool) {}
}

impl<M: Module> Module for Box<M> {
    fn train(&self, mode: bool) {
        (**self).train(mode);
    }
}

impl<M: Module> Module for Vec<M> {
    fn train(&self, mode: bool) {
        for module in self {
            module.train(mode);
        }
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn train(&self, mode: bool) {
        for module in self {
            module.train(mode);
        }
    }
}

impl<M: Module> Module for Option<M> {
    fn train(&self, mode: bool) {
        if let Some(module) = self {
            module.train(mode);
        }
    }
}

impl<K: Display + Ord + Clone, M: Module> Module for BTreeMap<K, M> {
    fn train(&self, mode: bool) {
        for module in self.values() {
            module.train(mode);
        }
    }
}

impl<K: Display + Hash + Eq + Clone, M: Module> Module for IndexMap<K, M> {
    fn train(&self, mode: bool) {
        for module in self.values() {
            module.train(mode);
        }
    }
}

macro_rules! tuples {
    ($(($($M:ident $i:tt),+))*) => {$(
        impl<$($M: Module),+> Module for ($($M,)+) {
            fn train(&self, mode: bool) {
                $(self.$i.train(mode);)+
            }
        }
    )*};
}

tuples! {
    (A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5) (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}
