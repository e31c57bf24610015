//! Layers one after another.

use super::module::{Layer, Module};
use crate::error::Result;
use crate::trace::cell::Tensor;
use crate::transforms::nest::{Nest, by_path};
use crate::transforms::tree::{Key, Leaves, Tree, Visitor};
use indexmap::IndexMap;
use std::fmt::Debug;

/// Layers of any kinds, each on the last one's result. Names are `0.weight`, `2.bias`, as torch's.
///
/// # Example
/// ```
/// use oxbridge::nn::{Linear, ReLU, Sequential};
/// use oxbridge::prelude::*;
/// let mut init = Init::seed(0);
/// let model = Sequential::new()
///     .then(Linear::new(4, 8, &mut init)?)
///     .then(ReLU)
///     .then(Linear::new(8, 2, &mut init)?);
/// let names: Vec<String> = model.state_dict().into_keys().collect();
/// assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
/// assert_eq!(model.forward(&Tensor::zeros([3, 4], DType::F32)?)?.shape(), Shape::from([3, 2]));
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.nn.Sequential](https://docs.pytorch.org/docs/stable/generated/torch.nn.Sequential.html).
#[derive(Clone, Debug, Default)]
pub struct Sequential {
    layers: Vec<Box<dyn AnyLayer>>,
}

impl Sequential {
    /// No layers: gives back what it gets.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// The same layers and one more.
    #[must_use]
    pub fn then(mut self, layer: impl Layer + Clone + Debug + Send + Sync + 'static) -> Sequential {
        self.layers.push(Box::new(layer));
        self
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }
}

/// A layer whose type is not known, with what [`Tree`] and [`Module`] do for known ones.
trait AnyLayer: Leaves + Debug + Send + Sync {
    fn kind(&self) -> &'static str;
    fn copy(&self) -> Box<dyn AnyLayer>;
    fn rebuilt(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Box<dyn AnyLayer>>;
    fn set_mode(&self, mode: bool);
    fn run(&self, x: &Tensor) -> Result<Tensor>;
}

impl<L: Layer + Clone + Debug + Send + Sync + 'static> AnyLayer for L {
    fn kind(&self) -> &'static str {
        std::any::type_name::<L>()
    }
    fn copy(&self) -> Box<dyn AnyLayer> {
        Box::new(self.clone())
    }
    fn rebuilt(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Box<dyn AnyLayer>> {
        Ok(Box::new(self.map(f)?))
    }
    fn set_mode(&self, mode: bool) {
        self.train(mode);
    }
    fn run(&self, x: &Tensor) -> Result<Tensor> {
        self.forward(x)
    }
}

impl Clone for Box<dyn AnyLayer> {
    fn clone(&self) -> Self {
        (**self).copy()
    }
}

impl Leaves for Sequential {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        visitor.fixed(&self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            visitor.fixed(&(**layer).kind());
            visitor.enter(Key::Index(i));
            (**layer).visit(visitor);
            visitor.exit();
        }
    }
}

impl Tree for Sequential {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Sequential> {
        let layers = self.layers.iter().map(|layer| (**layer).rebuilt(f));
        Ok(Sequential { layers: layers.collect::<Result<_>>()? })
    }
}

impl Nest for Sequential {
    type Of<A: Tree> = IndexMap<String, A>;

    fn nest<A: Tree>(
        &self,
        f: &mut dyn FnMut(&Tensor) -> Result<A>,
    ) -> Result<IndexMap<String, A>> {
        by_path(self, f)
    }
}

impl Module for Sequential {
    fn train(&self, mode: bool) {
        self.layers.iter().for_each(|layer| (**layer).set_mode(mode));
    }
}

impl Layer for Sequential {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(x.clone(), |x, layer| (**layer).run(&x))
    }
}
