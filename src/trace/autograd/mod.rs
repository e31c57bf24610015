//! What tensors that require grad remember: torch's dynamic graph, on the rules of the transforms.
//!
//! A value that requires grad is a tracer of one trace that never ends: its primal value and the
//! [`Node`] that it came from. [`bind`] meets such an operand only where it looks at tracers at all,
//! so tensors that need no gradient pay nothing. There the primitive's `jvp` rule runs on the
//! primals, with variables of a small tape as tangents; the tape becomes a node whose edges lead to
//! the nodes of the operands. [`Backward`] goes over the nodes from the youngest to the oldest and
//! transposes each one's tape. Values are never overwritten, so what a node keeps stays as it was,
//! whatever is written in place later: there are no version counters.
//!
//! A value belongs to the trace that was current when it came to require grad (its level). Inside of
//! a transform that started later it is a constant from outside; [`bind`] in its own trace treats it
//! before the trace does. So gradients nest with `jit`, `grad` and `vmap` in any order.

mod backward;
mod mode;
mod node;

pub use backward::Backward;
pub(in crate::trace) use mode::results;
pub use mode::{GradMode, Stop, is_grad_enabled};
pub use node::{Edge, Hook, HookId, Kept, Node, is_grad};

use super::cell::{Cell, CellId};
use super::linear::{Arithmetic, Input, Linear, LinearTape, input};
use super::primitive::{Primitive, Tangents};
use super::{Interpreter, Payload, Trace, Tracer, Value, Values, bind, leaked};
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::NamedSharding;
use node::{Record, Source};
use smallvec::SmallVec;
use std::fmt;
use std::sync::{Arc, LazyLock};

/// What the graph needs of the operations; `ops` gives them.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Sums and zeros of cotangents.
    pub arithmetic: Arithmetic,
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
pub(in crate::trace) fn concerns(operands: &[Value], level: u64) -> bool {
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
pub(in crate::trace) fn primal_at(value: &Value, level: u64) -> Value {
    match graded_at(value, level) {
        Some(graded) => primal_at(&graded.primal, level),
        None => value.clone(),
    }
}

/// Runs an operation at once that has a tracer among its operands: recorded, if one requires grad.
#[cold]
pub(in crate::trace) fn eager(
    prim: &dyn Primitive,
    operands: &[Value],
    met: &Tracer,
) -> Result<Values> {
    match met.payload() {
        Payload::Graded(_) => process(prim, operands),
        _ => Err(leaked(prim.name(), met)),
    }
}

/// Applies a primitive of whose operands one requires grad in the current trace.
pub(in crate::trace) fn process(prim: &dyn Primitive, operands: &[Value]) -> Result<Values> {
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

/// The value that a cell gets in place of `old`, when `new` is written: a leaf stays a leaf, and
/// what is written while nothing is recorded keeps the past of what was there, as in torch.
pub(in crate::trace) fn successor(cell: CellId, old: &Value, new: Value) -> Value {
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
pub(in crate::trace) fn check_write(
    cell: CellId,
    old: &Value,
    new: &Value,
    view: bool,
) -> Result<()> {
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
