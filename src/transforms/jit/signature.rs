//! What a program is found by: the structure and the types of an argument, and what else it
//! depends on.

use super::options::Options;
use crate::error::Result;
use crate::ops::precision::{Precision, matmul_precision};
use crate::trace::Values;
use crate::trace::batch::NamedAxes;
use crate::trace::cell::Tensor;
use crate::transforms::tree::{Fixed, Key, Leaves, Visitor};
use rustc_hash::FxHasher;
use smallvec::SmallVec;
use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The element of a tensor that belongs to no element of the argument.
pub(super) const BESIDE: usize = usize::MAX;

/// The tensors and the structure of an argument, in one visit.
#[derive(Default)]
pub(super) struct Signature<'t> {
    pub(super) leaves: SmallVec<[&'t Tensor; 16]>,
    /// For each leaf the element of the outermost tuple that it belongs to.
    pub(super) elements: SmallVec<[usize; 16]>,
    pub(super) structure: SmallVec<[u8; 64]>,
    depth: usize,
    element: usize,
}

/// Ends a name; no byte of a text is like it.
const END: u8 = 0xff;

/// Takes a `Hash` as its bytes, which can be compared for equality.
struct Bytes<'b>(&'b mut SmallVec<[u8; 64]>);

impl Hasher for Bytes<'_> {
    fn finish(&self) -> u64 {
        0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Takes text as its bytes.
struct Text<'b>(&'b mut SmallVec<[u8; 64]>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl<'t> Visitor<'t> for Signature<'t> {
    fn leaf(&mut self, tensor: &'t Tensor) {
        self.leaves.push(tensor);
        self.elements.push(self.element);
        self.structure.push(b'*');
    }
    fn enter(&mut self, key: Key<'_>) {
        match key {
            Key::Index(i) if self.depth == 0 => self.element = i,
            Key::Index(_) => {}
            Key::Name(name) => {
                self.structure.extend_from_slice(name.as_bytes());
                self.structure.push(END);
            }
            Key::Entry(key) => {
                // Writing to memory cannot fail.
                let _ = write!(Text(&mut self.structure), "{key}");
                self.structure.push(END);
            }
        }
        self.depth += 1;
    }
    fn exit(&mut self) {
        self.depth -= 1;
    }
    fn beside(&mut self) {
        self.element = BESIDE;
    }
    fn fixed(&mut self, part: &dyn Fixed) {
        part.hash_into(&mut Bytes(&mut self.structure));
    }
}

impl<'t> Signature<'t> {
    pub(super) fn of<A: Leaves + ?Sized>(args: &'t A) -> Signature<'t> {
        let mut signature = Signature::default();
        args.visit(&mut signature);
        signature
    }
}

pub(super) fn values(signature: &Signature<'_>) -> Result<Values> {
    signature.leaves.iter().map(|t| t.value()).collect()
}

/// What a program depends on besides its operands' types and the function's own options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Context {
    pub(super) precision: Precision,
}

impl Context {
    pub(super) fn current() -> Context {
        Context { precision: matmul_precision() }
    }
}

/// A program that is asked for.
pub(super) struct Request<'t> {
    pub(super) signature: Signature<'t>,
    pub(super) operands: Values,
    pub(super) context: Context,
    /// The axes of `vmap`s around; not in the key, for few functions speak of them.
    pub(super) axes: NamedAxes,
    pub(super) options: &'t Arc<Options>,
}

impl Request<'_> {
    pub(super) fn key(&self) -> u64 {
        let mut hasher = FxHasher::default();
        hasher.write(&self.signature.structure);
        self.context.hash(&mut hasher);
        for value in &self.operands {
            hasher.write_u64(value.aval().hash_code());
        }
        hasher.finish()
    }
}
