//! The graph: operations that were recorded, and leaves.

use super::{Rules, level, tracked};
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::mesh::NamedSharding;
use crate::trace::cell::{Cell, CellId};
use crate::trace::linear::{Input, LinearTape, linearize};
use crate::trace::primitive::{Primitive, Tangent, Tangents};
use crate::trace::source::Place;
use crate::trace::{Value, Values, bind};
use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// One result of a node.
#[derive(Clone, Debug)]
pub struct Edge {
    pub(super) node: Arc<Node>,
    pub(super) index: usize,
}

impl Edge {
    pub(super) fn same(&self, other: &Edge) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.index == other.index
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }
}

/// An operation that was recorded, or a leaf: a tensor that requires grad of itself.
pub struct Node {
    /// Grows with every node, so a node's operands have smaller numbers.
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) watchers: Mutex<Vec<Watcher>>,
    /// Where in the user's source the operation stands.
    pub(in crate::trace) at: OnceLock<Place>,
}

pub(super) enum Kind {
    Leaf(Leaf),
    /// None once a backward pass has freed it.
    Op(Mutex<Option<Arc<Record>>>),
}

pub(super) struct Leaf {
    pub(super) owner: CellId,
    /// The gradient; a bool scalar stands for none.
    pub(super) grad: Arc<Cell>,
    /// How the gradient is laid out.
    pub(super) sharding: Option<NamedSharding>,
    /// For the handles on the gradient: what they show once it is thrown away.
    pub(super) kept: Mutex<Kept>,
}

/// The gradient as it was when it was thrown away; none until then.
pub type Kept = Arc<Mutex<Option<Value>>>;

/// What one operation is linear in, and from where its operands came.
pub(super) struct Record {
    /// None for what passes its operand on as it is.
    pub(super) prim: Option<Arc<dyn Primitive>>,
    pub(super) operands: SmallVec<[Source; 2]>,
    pub(super) tape: LinearTape,
    pub(super) outputs: SmallVec<[Option<Input>; 1]>,
}

/// An operand of a recorded operation.
pub(super) struct Source {
    pub(super) edge: Option<Edge>,
    /// Kept where a second derivative needs it: where the tape holds what depends on operands.
    pub(super) primal: Option<Value>,
}

/// What is called with a gradient when it is known, and may give another one instead.
pub type Hook = Arc<dyn Fn(&Value) -> Result<Option<Value>> + Send + Sync>;

pub(super) struct Watcher {
    pub(super) id: u64,
    pub(super) index: usize,
    pub(super) watch: Watch,
}

#[derive(Clone)]
pub(super) enum Watch {
    Hook(Hook),
    /// Keeps the gradient of a value that is no leaf.
    Retain(Arc<Cell>),
}

static NEXT: AtomicU64 = AtomicU64::new(1);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn none() -> Value {
    Value::scalar(Scalar::new(false))
}

/// A cell for a gradient that is not there yet.
pub(super) fn slot() -> Arc<Cell> {
    Cell::plain(none())
}

/// Whether what a gradient's slot holds is one.
pub fn is_grad(value: &Value) -> bool {
    value.dtype() != DType::Bool
}

pub(super) fn read_slot(slot: &Arc<Cell>) -> Result<Option<Value>> {
    let value = slot.read()?;
    Ok(is_grad(&value).then_some(value))
}

impl Node {
    fn new(kind: Kind) -> Arc<Node> {
        Arc::new(Node { id: next(), kind, watchers: Mutex::default(), at: OnceLock::new() })
    }

    pub(super) fn op(record: Record) -> Arc<Node> {
        Node::new(Kind::Op(Mutex::new(Some(Arc::new(record)))))
    }

    pub(super) fn leaf(owner: CellId, sharding: Option<NamedSharding>) -> Arc<Node> {
        let leaf = Leaf { owner, grad: slot(), sharding, kept: Mutex::default() };
        Node::new(Kind::Leaf(leaf))
    }

    pub(super) fn as_leaf(&self) -> Option<&Leaf> {
        match &self.kind {
            Kind::Leaf(leaf) => Some(leaf),
            Kind::Op(_) => None,
        }
    }

    /// Whether this is a leaf.
    pub fn is_leaf(&self) -> bool {
        self.as_leaf().is_some()
    }

    /// Cuts the handles on the gradient off: they keep what they show.
    fn keep_handles(&self) {
        let Some(leaf) = self.as_leaf() else { return };
        let kept = std::mem::take(&mut *lock(&leaf.kept));
        if Arc::strong_count(&kept) > 1 {
            *lock(&kept) = leaf.grad.seen().filter(is_grad);
        }
    }

    /// Whether this is the leaf of the given cell.
    pub fn is_leaf_of(&self, cell: CellId) -> bool {
        self.as_leaf().is_some_and(|leaf| leaf.owner == cell)
    }

    /// What was recorded, and is not freed.
    pub(super) fn record(&self) -> Option<Arc<Record>> {
        match &self.kind {
            Kind::Op(record) => lock(record).clone(),
            Kind::Leaf(_) => None,
        }
    }

    pub(super) fn free(&self) {
        if let Kind::Op(record) = &self.kind {
            lock(record).take();
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, self.record()) {
            (Kind::Leaf(_), _) => write!(f, "leaf"),
            (_, Some(record)) => {
                f.write_str(record.prim.as_ref().map_or("copy", |p| p.entry_name()))
            }
            _ => write!(f, "freed"),
        }
    }
}

impl Record {
    pub(super) fn edges(&self) -> impl Iterator<Item = &Edge> {
        self.operands.iter().filter_map(|source| source.edge.as_ref())
    }

    fn take_edges(&mut self) -> impl Iterator<Item = Edge> + '_ {
        self.operands.iter_mut().filter_map(|source| source.edge.take())
    }

    /// Whether the tape holds values, which a backward pass frees.
    pub(super) fn has_residuals(&self) -> bool {
        self.tape.knowns().next().is_some()
    }

    /// The cotangents of the operands that have an edge.
    pub(super) fn pull(&self, cts: &[Tangent], create: bool, rules: Rules) -> Result<Tangents> {
        if let Some(prim) = &self.prim
            && create
            && self.operands.iter().all(|source| source.primal.is_some())
        {
            return self.pull_again(&**prim, cts, rules);
        }
        let seeds = self.outputs.iter().zip(cts).filter_map(|(out, ct)| match (out, ct) {
            (Some(Input::Var(var)), Some(ct)) => Some((*var, ct.clone())),
            _ => None,
        });
        let seeds: SmallVec<[_; 2]> = seeds.collect();
        // The variables of the operands are the first of the tape.
        let count = self.edges().count();
        let vars: SmallVec<[u32; 4]> = (0..count as u32).collect();
        Ok(self.tape.transpose(&seeds, &vars, rules.arithmetic)?.into_iter().collect())
    }

    /// The same from the operands anew, so that what it gives depends on them too.
    fn pull_again(&self, prim: &dyn Primitive, cts: &[Tangent], rules: Rules) -> Result<Tangents> {
        let level = level();
        let operand = |source: &Source| {
            let primal = source.primal.clone().unwrap_or_else(none);
            match &source.edge {
                Some(edge) => tracked(primal, edge.clone(), level),
                None => primal,
            }
        };
        let operands: Values = self.operands.iter().map(operand).collect();
        let active: SmallVec<[bool; 4]> =
            self.operands.iter().map(|source| source.edge.is_some()).collect();
        let run = |xs: &[Value]| bind(prim, xs);
        let linear = linearize("grad", &operands, &active, rules.arithmetic, run)?;
        let cts = linear.transpose(cts)?;
        Ok(cts.into_iter().zip(active).filter(|(_, a)| *a).map(|(ct, _)| ct).collect())
    }
}

impl Drop for Record {
    /// Drops the past in a loop: a long chain of operations must not end the stack.
    fn drop(&mut self) {
        let mut open: Vec<Edge> = self.take_edges().collect();
        while let Some(edge) = open.pop() {
            let Some(mut node) = Arc::into_inner(edge.node) else { continue };
            let Kind::Op(record) = &mut node.kind else { continue };
            let record = record.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(mut record) = record.and_then(Arc::into_inner) {
                open.extend(record.take_edges());
            }
        }
    }
}

impl Edge {
    /// Registers a hook; the number takes it away again.
    pub fn hook(&self, hook: Hook) -> HookId {
        let id = next();
        let watcher = Watcher { id, index: self.index, watch: Watch::Hook(hook) };
        lock(&self.node.watchers).push(watcher);
        HookId { node: Arc::downgrade(&self.node), id }
    }

    /// Keeps the gradient of this value from now on.
    pub fn retain(&self) {
        if self.node.as_leaf().is_none() && self.retained().is_none() {
            let watcher = Watcher { id: next(), index: self.index, watch: Watch::Retain(slot()) };
            lock(&self.node.watchers).push(watcher);
        }
    }

    fn retained(&self) -> Option<Arc<Cell>> {
        lock(&self.node.watchers).iter().find_map(|w| match &w.watch {
            Watch::Retain(slot) if w.index == self.index => Some(Arc::clone(slot)),
            _ => None,
        })
    }

    /// Where the gradient is kept: for the leaf of `cell`, or where `retain` was asked for.
    pub fn slot(&self, cell: CellId) -> Option<Arc<Cell>> {
        match self.node.as_leaf() {
            Some(leaf) => (leaf.owner == cell).then(|| Arc::clone(&leaf.grad)),
            None => self.retained(),
        }
    }

    /// The gradient that is kept, if there is one.
    ///
    /// # Errors
    /// If the slot cannot be read.
    pub fn grad(&self, cell: CellId) -> Result<Option<Value>> {
        self.slot(cell).map_or(Ok(None), |slot| read_slot(&slot))
    }

    /// Puts a gradient in, or throws it away.
    pub fn set_grad(&self, cell: CellId, grad: Option<Value>) {
        if let Some(slot) = self.slot(cell) {
            if grad.is_none() {
                self.node.keep_handles();
            }
            slot.put(grad.unwrap_or_else(none));
        }
    }

    /// What a handle on the gradient shows once it is thrown away.
    pub fn kept(&self) -> Kept {
        self.node.as_leaf().map_or_else(Kept::default, |leaf| Arc::clone(&lock(&leaf.kept)))
    }

    /// The name of the operation that the value came from.
    pub fn op(&self) -> String {
        format!("{:?}", self.node)
    }
}

/// Names a hook.
#[derive(Clone, Debug)]
pub struct HookId {
    node: Weak<Node>,
    id: u64,
}

impl HookId {
    /// Takes the hook away.
    pub fn remove(&self) {
        if let Some(node) = self.node.upgrade() {
            lock(&node.watchers).retain(|w| w.id != self.id);
        }
    }
}
