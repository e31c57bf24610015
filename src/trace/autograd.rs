//! What tensors that require grad remember: torch's dynamic graph, on the rules of the transforms.
//!
//! A value that requires grad is a tracer of one trace that never ends: its primal value and the
//! [`Node`] that it came from. [`bind`] meets such an operand only where it looks at tracers at all,
//! so tensors that need no gradient pay nothing. [`process`] then runs the primitive's `jvp` rule on
//! the primals, with variables of a small tape as tangents; the tape becomes a node whose edges lead
//! to the nodes of the operands. [`backward`] goes over the nodes from the youngest to the oldest
//! and transposes each one's tape. Values are never overwritten, so what a node keeps stays as it
//! was, whatever is written in place later: there are no version counters.
//!
//! A value belongs to the trace that was current when it came to require grad (its level). Inside of
//! a transform that started later it is a constant from outside; [`bind`] in its own trace treats it
//! before the trace does. So gradients nest with `jit`, `grad` and `vmap` in any order.

use super::cell::{Cell, CellId};
use super::linear::{Input, Linear, LinearTape, input, linearize};
use super::primitive::{Primitive, Tangent, Tangents};
use super::{Interpreter, Payload, Trace, Tracer, Value, Values, bind, current, leaked};
use crate::aval::Aval;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::NamedSharding;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// What the graph needs of the operations; `ops` gives them.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Sums and zeros of cotangents.
    pub arithmetic: super::linear::Arithmetic,
    /// A gradient laid out over a mesh as its tensor is.
    pub place: fn(&Value, &NamedSharding) -> Result<Value>,
}

/// A value that requires grad.
#[derive(Clone)]
pub struct Graded {
    primal: Value,
    edge: Edge,
    /// The trace that was current when the value came to require grad; 0 for none.
    level: u64,
}

impl Graded {
    /// The value itself.
    pub fn primal(&self) -> &Value {
        &self.primal
    }

    /// Which result of which node it is.
    pub fn edge(&self) -> &Edge {
        &self.edge
    }
}

impl fmt::Debug for Graded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graded({:?}, {:?})", self.primal, self.edge.node)
    }
}

/// One result of a node.
#[derive(Clone, Debug)]
pub struct Edge {
    node: Arc<Node>,
    index: usize,
}

impl Edge {
    fn same(&self, other: &Edge) -> bool {
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
    id: u64,
    kind: Kind,
    watchers: Mutex<Vec<Watcher>>,
}

enum Kind {
    Leaf(Leaf),
    /// None once a backward pass has freed it.
    Op(Mutex<Option<Arc<Record>>>),
}

struct Leaf {
    owner: CellId,
    /// The gradient; a bool scalar stands for none.
    grad: Arc<Cell>,
    /// How the gradient is laid out.
    sharding: Option<NamedSharding>,
    /// For the handles on the gradient: what they show once it is thrown away.
    kept: Mutex<Kept>,
}

/// The gradient as it was when it was thrown away; none until then.
pub type Kept = Arc<Mutex<Option<Value>>>;

/// What one operation is linear in, and from where its operands came.
struct Record {
    /// None for what passes its operand on as it is.
    prim: Option<Arc<dyn Primitive>>,
    operands: SmallVec<[Source; 2]>,
    tape: LinearTape,
    outputs: SmallVec<[Option<Input>; 1]>,
}

/// An operand of a recorded operation.
struct Source {
    edge: Option<Edge>,
    /// Kept where a second derivative needs it: where the tape holds what depends on operands.
    primal: Option<Value>,
}

/// What is called with a gradient when it is known, and may give another one instead.
pub type Hook = Arc<dyn Fn(&Value) -> Result<Option<Value>> + Send + Sync>;

struct Watcher {
    id: u64,
    index: usize,
    watch: Watch,
}

#[derive(Clone)]
enum Watch {
    Hook(Hook),
    /// Keeps the gradient of a value that is no leaf.
    Retain(Arc<Cell>),
}

static NEXT: AtomicU64 = AtomicU64::new(1);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static ENABLED: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
}

/// Whether operations on this thread are recorded.
pub fn is_grad_enabled() -> bool {
    ENABLED.get()
}

/// Switches recording on this thread; dropping it switches back.
#[derive(Debug)]
#[must_use = "recording switches back when this is dropped"]
pub struct GradMode {
    before: bool,
    // Belongs to the thread whose flag it restores.
    here: std::marker::PhantomData<*const ()>,
}

impl GradMode {
    /// Switches recording on or off.
    pub fn set(enabled: bool) -> GradMode {
        GradMode { before: ENABLED.replace(enabled), here: std::marker::PhantomData }
    }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        ENABLED.set(self.before);
    }
}

/// The interpreter that owns all values that require grad. It is never current.
#[derive(Debug)]
struct Autograd;

impl Interpreter for Autograd {
    fn name(&self) -> &'static str {
        "autograd"
    }

    fn process(&self, _: &Arc<Trace>, prim: &dyn Primitive, operands: &[Value]) -> Result<Values> {
        process(prim, operands)
    }

    fn leave(&self, value: &Value) -> Result<Value> {
        Ok(value.clone())
    }
}

static TRACE: LazyLock<Arc<Trace>> = LazyLock::new(|| Trace::make(None, Box::new(Autograd)));

/// The number of the trace that is current; 0 for none.
fn level() -> u64 {
    super::CURRENT.with_borrow(|t| t.as_ref().map_or(0, |t| t.id()))
}

/// What is known of a value that requires grad, in whatever trace it does.
pub fn graded(value: &Value) -> Option<&Graded> {
    match value {
        Value::Tracer(tracer) => match tracer.payload() {
            Payload::Graded(graded) => Some(graded),
            _ => None,
        },
        Value::Array(_) => None,
    }
}

/// What is known of a value that requires grad in the trace `level` or one inside of it.
fn graded_at(value: &Value, level: u64) -> Option<&Graded> {
    graded(value).filter(|g| g.level >= level)
}

/// Whether the trace with this number must leave an operation to [`process`].
pub(super) fn concerns(operands: &[Value], level: u64) -> bool {
    operands.iter().any(|v| graded_at(v, level).is_some())
}

fn tracked(primal: Value, edge: Edge, level: u64) -> Value {
    let aval = primal.aval().clone();
    TRACE.tracer(aval, Payload::Graded(Graded { primal, edge, level }))
}

/// The value without what it requires in the current trace.
pub fn primal(value: &Value) -> Value {
    primal_at(value, level())
}

/// The value without what it requires in the trace `level` and those inside of it.
pub(super) fn primal_at(value: &Value, level: u64) -> Value {
    match graded_at(value, level) {
        Some(graded) => primal_at(&graded.primal, level),
        None => value.clone(),
    }
}

/// Runs an operation at once that has a tracer among its operands: recorded, if one requires grad.
#[cold]
pub(super) fn eager(prim: &dyn Primitive, operands: &[Value], met: &Tracer) -> Result<Values> {
    match met.payload() {
        Payload::Graded(_) => process(prim, operands),
        _ => Err(leaked(prim.name(), met)),
    }
}

/// Applies a primitive of whose operands one requires grad in the current trace.
pub(super) fn process(prim: &dyn Primitive, operands: &[Value]) -> Result<Values> {
    let level = level();
    let primals: Values = operands.iter().map(|v| primal_at(v, level)).collect();
    if !is_grad_enabled() {
        return bind(prim, &primals);
    }
    let edges = operands.iter().map(|v| graded_at(v, level).map(|g| g.edge.clone()));
    let edges: SmallVec<[Option<Edge>; 2]> = edges.collect();
    let guard = Trace::start(Box::new(Linear::default()));
    let trace = guard.trace();
    let Some(linear) = trace.interpreter().as_linear() else { unreachable!("made above") };
    let tangents: Tangents = primals
        .iter()
        .zip(&edges)
        .map(|(p, edge)| edge.as_ref().map(|_| linear.variable(trace, p.aval().unsharded())))
        .collect();
    let (outs, out_tangents) = guard.enter(|| prim.jvp(&primals, &tangents))?;
    if out_tangents.iter().all(Option::is_none) {
        return Ok(outs);
    }
    let outputs = out_tangents.iter().map(|t| t.as_ref().map(|t| input(trace, t)));
    let outputs: SmallVec<[Option<Input>; 1]> = outputs.collect();
    let tape = linear.take();
    let free = |i: usize| edges[i].is_none();
    let constant = |value: &Value| {
        value.as_literal().is_some()
            || (0..primals.len()).any(|i| free(i) && value.same(&primals[i]))
    };
    let keep = !tape.knowns().all(constant);
    let operands = edges.into_iter().zip(primals);
    let operands = operands.map(|(edge, p)| Source { edge, primal: keep.then_some(p) }).collect();
    let record = Record { prim: Some(prim.to_arc()), operands, tape, outputs };
    let depends: SmallVec<[bool; 2]> = record.outputs.iter().map(Option::is_some).collect();
    let node = Node::op(record);
    let track = |(index, (out, depends)): (usize, (Value, bool))| match depends {
        true => tracked(out, Edge { node: Arc::clone(&node), index }, level),
        false => out,
    };
    Ok(outs.into_iter().zip(depends).enumerate().map(track).collect())
}

fn none() -> Value {
    Value::scalar(Scalar::new(false))
}

/// A cell for a gradient that is not there yet.
fn slot() -> Arc<Cell> {
    Cell::plain(none())
}

/// Whether what a gradient's slot holds is one.
pub fn is_grad(value: &Value) -> bool {
    value.dtype() != DType::Bool
}

fn read_slot(slot: &Arc<Cell>) -> Result<Option<Value>> {
    let value = slot.read()?;
    Ok(is_grad(&value).then_some(value))
}

impl Node {
    fn new(kind: Kind) -> Arc<Node> {
        Arc::new(Node { id: next(), kind, watchers: Mutex::default() })
    }

    fn op(record: Record) -> Arc<Node> {
        Node::new(Kind::Op(Mutex::new(Some(Arc::new(record)))))
    }

    fn leaf(owner: CellId, sharding: Option<NamedSharding>) -> Arc<Node> {
        let leaf = Leaf { owner, grad: slot(), sharding, kept: Mutex::default() };
        Node::new(Kind::Leaf(leaf))
    }

    fn as_leaf(&self) -> Option<&Leaf> {
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
    fn record(&self) -> Option<Arc<Record>> {
        match &self.kind {
            Kind::Op(record) => lock(record).clone(),
            Kind::Leaf(_) => None,
        }
    }

    fn free(&self) {
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
    fn edges(&self) -> impl Iterator<Item = &Edge> {
        self.operands.iter().filter_map(|source| source.edge.as_ref())
    }

    fn take_edges(&mut self) -> impl Iterator<Item = Edge> + '_ {
        self.operands.iter_mut().filter_map(|source| source.edge.take())
    }

    /// Whether the tape holds values, which a backward pass frees.
    fn has_residuals(&self) -> bool {
        self.tape.knowns().next().is_some()
    }

    /// The cotangents of the operands that have an edge.
    fn pull(&self, cts: &[Tangent], create: bool, rules: Rules) -> Result<Tangents> {
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

/// The value that a cell gets in place of `old`, when `new` is written: a leaf stays a leaf, and
/// what is written while nothing is recorded keeps the past of what was there, as in torch.
pub(super) fn successor(cell: CellId, old: &Value, new: Value) -> Value {
    let level = level();
    let Some(was) = graded(old) else { return new };
    if graded(&new).is_some_and(|g| g.edge.same(&was.edge)) || new.shape() != old.shape() {
        return new;
    }
    if was.edge.node.is_leaf_of(cell) || !is_grad_enabled() {
        return tracked(primal_at(&new, was.level), was.edge.clone(), was.level);
    }
    if graded(&new).is_some() {
        return new;
    }
    // Constants over all of a tensor that requires grad: it still does, and gets nothing back.
    let nothing = Record {
        prim: None,
        operands: SmallVec::new(),
        tape: LinearTape::default(),
        outputs: SmallVec::new(),
    };
    tracked(new, Edge { node: Node::op(nothing), index: 0 }, level)
}

/// Refuses a write that torch refuses: to a leaf, or through a view of one, while operations are
/// recorded.
///
/// # Errors
/// If it is one.
pub(super) fn check_write(cell: CellId, old: &Value, new: &Value, view: bool) -> Result<()> {
    let Some(was) = graded_at(old, level()) else { return Ok(()) };
    let same = graded(new).is_some_and(|g| g.edge.same(&was.edge));
    if same || !is_grad_enabled() || !was.edge.node.is_leaf_of(cell) {
        return Ok(());
    }
    let what = if view { "a view of a leaf" } else { "a leaf" };
    let text = format!("{what} {} that requires grad is written in place", old.aval());
    Err(Error::new(ErrorKind::Autograd, "in-place write", text)
        .help("write inside of `no_grad`, through `detach`, or write to `copy` of it"))
}

/// `new` with the past of `old`: what is written through `detach`.
pub fn with_past(old: &Value, new: &Value) -> Value {
    match graded_at(old, level()) {
        Some(was) => tracked(primal(new), was.edge.clone(), was.level),
        None => new.clone(),
    }
}

/// A value that requires grad of itself in the current trace, for the tensor of `cell`. One that
/// is a leaf outside of the trace shares its gradient and hooks.
pub fn leaf(cell: &Arc<Cell>, value: &Value) -> Value {
    let outside = cell.outside().and_then(|v| {
        let graded = graded(&v)?;
        graded.edge.node.is_leaf_of(cell.id()).then(|| graded.edge.clone())
    });
    let edge = outside.unwrap_or_else(|| Edge {
        node: Node::leaf(cell.id(), value.aval().sharding().cloned()),
        index: 0,
    });
    tracked(value.clone(), edge, level())
}

/// The same value as the result of an operation that does nothing: no leaf any more.
pub fn alias(value: &Value) -> Value {
    let Some(was) = graded_at(value, level()) else { return value.clone() };
    let mut tape = LinearTape::default();
    let var = tape.var(was.primal.aval().unsharded());
    let source = Source { edge: Some(was.edge.clone()), primal: None };
    let record = Record {
        prim: None,
        operands: SmallVec::from_iter([source]),
        tape,
        outputs: SmallVec::from_iter([Some(Input::Var(var))]),
    };
    tracked(was.primal.clone(), Edge { node: Node::op(record), index: 0 }, was.level)
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

/// A backward pass.
#[derive(Debug)]
pub struct Backward<'a> {
    /// The values to differentiate, and their cotangents.
    pub roots: Vec<(Edge, Value)>,
    /// Whose gradients are asked for; none: they are added to those of all leaves.
    pub inputs: Option<&'a [Edge]>,
    /// Whether another pass may follow.
    pub retain_graph: bool,
    /// Whether the gradients may be differentiated.
    pub create_graph: bool,
    /// The operations.
    pub rules: Rules,
}

impl Backward<'_> {
    /// Runs the pass: the gradients of `inputs`.
    ///
    /// # Errors
    /// If a part of the graph is freed; what a rule or a hook says.
    pub fn run(&self) -> Result<Tangents> {
        let _mode = GradMode::set(self.create_graph);
        if let Some(trace) = current()
            && let Some(recorder) = trace.interpreter().recorder()
        {
            recorder.note_backward();
        }
        let needed = self.inputs.map(|inputs| self.needed(inputs));
        let mut found: Tangents = self.inputs.unwrap_or_default().iter().map(|_| None).collect();
        let mut pending = Pending::default();
        for (edge, ct) in &self.roots {
            self.add(&mut pending, edge, ct)?;
        }
        while let Some((_, (node, mut cts))) = pending.pop_last() {
            node.watch(&mut cts)?;
            for (input, found) in self.inputs.unwrap_or_default().iter().zip(&mut found) {
                if Arc::ptr_eq(&input.node, &node) {
                    *found = cts.get(input.index).cloned().flatten();
                }
            }
            if let (Some(leaf), None, Some(Some(ct))) = (node.as_leaf(), self.inputs, cts.first()) {
                self.accumulate(leaf, ct)?;
            }
            if needed.as_ref().is_none_or(|needed| needed.contains(&node.id)) {
                self.step(&mut pending, needed.as_ref(), &node, &cts)?;
            }
        }
        Ok(found)
    }

    /// The nodes between the roots and the inputs; those of the inputs alone are not among them.
    fn needed(&self, inputs: &[Edge]) -> FxHashSet<u64> {
        let mut nodes = BTreeMap::new();
        let mut open: Vec<Arc<Node>> =
            self.roots.iter().map(|(e, _)| Arc::clone(&e.node)).collect();
        while let Some(node) = open.pop() {
            if nodes.contains_key(&node.id) {
                continue;
            }
            let record = node.record();
            open.extend(record.iter().flat_map(|r| r.edges()).map(|e| Arc::clone(&e.node)));
            nodes.insert(node.id, record);
        }
        let mut needed = FxHashSet::default();
        let wanted = |id: u64| inputs.iter().any(|input| input.node.id == id);
        for (id, record) in nodes {
            let mut edges = record.iter().flat_map(|r| r.edges());
            if edges.any(|e| wanted(e.node.id) || needed.contains(&e.node.id)) {
                needed.insert(id);
            }
        }
        needed
    }

    fn step(
        &self,
        pending: &mut Pending,
        needed: Option<&FxHashSet<u64>>,
        node: &Arc<Node>,
        cts: &[Tangent],
    ) -> Result<()> {
        if node.as_leaf().is_some() {
            return Ok(());
        }
        let record = node.record().ok_or_else(freed)?;
        if !self.retain_graph && record.has_residuals() {
            node.free();
        }
        let wanted = |edge: &Edge| match (needed, self.inputs) {
            (Some(needed), Some(inputs)) => {
                needed.contains(&edge.node.id) || inputs.iter().any(|i| i.same(edge))
            }
            _ => true,
        };
        let pulled = record.pull(cts, self.create_graph, self.rules)?;
        for (edge, ct) in record.edges().zip(pulled) {
            if let Some(ct) = ct.filter(|_| wanted(edge)) {
                self.add(pending, edge, &ct)?;
            }
        }
        Ok(())
    }

    fn add(&self, pending: &mut Pending, edge: &Edge, ct: &Value) -> Result<()> {
        let entry = pending.entry(edge.node.id);
        let (_, cts) = entry.or_insert_with(|| (Arc::clone(&edge.node), Tangents::new()));
        while cts.len() <= edge.index {
            cts.push(None);
        }
        let ct = if self.create_graph { ct.clone() } else { primal(ct) };
        cts[edge.index] = Some(match cts[edge.index].take() {
            Some(sum) => (self.rules.arithmetic.add)(&sum, &ct)?,
            None => ct,
        });
        Ok(())
    }

    fn accumulate(&self, leaf: &Leaf, ct: &Value) -> Result<()> {
        let ct = match &leaf.sharding {
            Some(sharding) if ct.aval().sharding() != Some(sharding) => {
                (self.rules.place)(ct, sharding)?
            }
            _ => ct.clone(),
        };
        let sum = match read_slot(&leaf.grad)? {
            Some(old) => (self.rules.arithmetic.add)(&old, &ct)?,
            None => ct,
        };
        leaf.grad.put(sum);
        Ok(())
    }
}

type Pending = BTreeMap<u64, (Arc<Node>, Tangents)>;

impl Node {
    /// Shows the gradients to those who asked, hooks first.
    fn watch(&self, cts: &mut [Tangent]) -> Result<()> {
        if lock(&self.watchers).is_empty() {
            return Ok(());
        }
        // Not under the lock: a hook may register another.
        let watchers: Vec<(usize, Watch)> =
            lock(&self.watchers).iter().map(|w| (w.index, w.watch.clone())).collect();
        for (index, watch) in &watchers {
            if let (Watch::Hook(hook), Some(Some(ct))) = (watch, cts.get_mut(*index))
                && let Some(new) = hook(ct)?
            {
                check_replaced(ct.aval(), new.aval())?;
                *ct = new;
            }
        }
        for (index, watch) in watchers {
            if let (Watch::Retain(slot), Some(Some(ct))) = (watch, cts.get(index)) {
                slot.put(ct.clone());
            }
        }
        Ok(())
    }
}

fn check_replaced(old: &Aval, new: &Aval) -> Result<()> {
    if old.unsharded() == new.unsharded() {
        return Ok(());
    }
    let text = format!("a hook gave {new} in place of a gradient {old}");
    let kind = if old.dtype() == new.dtype() { ErrorKind::Shape } else { ErrorKind::DType };
    Err(Error::new(kind, "backward", text))
}

#[cold]
fn freed() -> Error {
    let text = "a part of the graph was freed by an earlier backward pass";
    Error::new(ErrorKind::Autograd, "backward", text).help(
        "give the earlier pass `retain_graph: Some(true)`, or run the forward computation again",
    )
}
