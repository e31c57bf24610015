//! State that a module keeps and does not learn.

use super::module::Module;
use crate::error::Result;
use crate::trace::cell::Tensor;
use crate::transforms::nest::Nest;
use crate::transforms::tree::{Leaves, Tree, Visitor};

/// A tensor that a module keeps and does not learn: running statistics, a counter.
///
/// It is no leaf: `grad` does not differentiate in it, and optimisers pass it by. A module writes it
/// in place with [`Tensor::set_value`]; inside of `jit` that is a hidden result, written back after
/// the call. Clones of a module, and modules rebuilt by a transform, share its storage. In state
/// dicts and checkpoints it stands beside the parameters.
#[derive(Clone, Debug)]
pub struct Buffer(Tensor);

impl Buffer {
    /// A buffer that holds `tensor`'s value in storage of its own.
    ///
    /// # Errors
    /// If the tensor was traced by a transform that has ended.
    pub fn new(tensor: &Tensor) -> Result<Buffer> {
        Ok(Buffer(Tensor::from_value(tensor.value()?)))
    }

    /// The tensor; what is written to it stays.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }
}

impl Leaves for Buffer {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        // A compiled program writes to the very storage that it was traced with.
        visitor.fixed(&self.0.cell().id());
        visitor.buffer(&self.0);
    }
}

impl Tree for Buffer {
    fn map(&self, _: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Buffer> {
        Ok(self.clone())
    }
}

impl Nest for Buffer {
    type Of<A: Tree> = ();

    fn nest<A: Tree>(&self, _: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<()> {
        Ok(())
    }
}

impl Module for Buffer {
    fn train(&self, _: bool) {}
}
