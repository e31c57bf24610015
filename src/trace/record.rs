//! The interpreter of `jit`: every operation becomes an equation of a graph.

use super::cell::{Cell, CellId};
use super::graph::{Atom, Eqn, Graph, Var};
use super::guard::{Guard, Guards};
use super::primitive::Primitive;
use super::source::{self, Place};
use super::{Interpreter, Payload, Trace, TraceGuard, Value, Values, autograd, leaked};
use crate::aval::{Aval, Avals};
use crate::error::Result;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Writes a [`Graph`] while a function runs.
#[derive(Debug, Default)]
pub struct Recorder {
    name: &'static str,
    tape: Mutex<Tape>,
    backward: AtomicBool,
}

#[derive(Debug, Default)]
struct Tape {
    avals: Vec<Aval>,
    inputs: Vec<Var>,
    hidden: Vec<Hidden>,
    /// Variables of arrays and outer tracers seen so far, by address; `hidden` keeps them alive.
    known: FxHashMap<usize, Var>,
    eqns: Vec<Eqn>,
    /// What was read of guarded cells from outside.
    guards: Guards,
    /// The guarded cells that the function itself set, by address: what it reads of them later
    /// it has put there.
    set_inside: FxHashSet<usize>,
    /// Whether the function asked for axes that are mapped outside of it.
    reads_axes: bool,
}

/// An operand that the user does not pass: what the function captured.
#[derive(Clone, Debug)]
pub struct Hidden {
    /// The variable it is bound to.
    pub var: Var,
    /// Where its value comes from at each call.
    pub source: Source,
}

/// Where a hidden operand's value comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A tensor from outside, read anew at each call.
    Cell(Arc<Cell>),
    /// A value that was made while tracing, or an array that no tensor holds.
    Constant(Value),
}

impl Source {
    /// The operand's value as the current trace sees it.
    ///
    /// # Errors
    /// If a view's value has to be made anew and that fails.
    pub fn value(&self) -> Result<Value> {
        match self {
            Source::Cell(cell) => cell.read(),
            Source::Constant(value) => Ok(value.clone()),
        }
    }
}

/// What recording a function gave.
#[derive(Debug)]
pub struct Recorded {
    /// The graph; its inputs are the operands, then the hidden ones; its outputs are the results,
    /// then the new values of the cells written.
    pub graph: Graph,
    /// The hidden operands.
    pub hidden: Vec<Source>,
    /// The cells from outside that the function wrote.
    pub written: Vec<Arc<Cell>>,
    /// What the function read of guarded cells from outside.
    pub guards: Guards,
    /// Whether the function depends on which axes are mapped where it is called.
    pub reads_axes: bool,
    /// Whether a backward pass ran in the function: its results carry no derivative then.
    pub ran_backward: bool,
}

fn lock(tape: &Mutex<Tape>) -> MutexGuard<'_, Tape> {
    tape.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Tape {
    fn var(&mut self, aval: Aval) -> Var {
        self.avals.push(aval);
        (self.avals.len() - 1) as Var
    }

    fn hide(&mut self, aval: &Aval, source: Source) -> Var {
        let var = self.var(aval.unsharded());
        self.hidden.push(Hidden { var, source });
        var
    }
}

impl Recorder {
    /// Runs `f` on tracers of the given types and records what it does. `name` is the user's name
    /// of the transform, for errors.
    ///
    /// # Errors
    /// What `f` says; a tracer of a transform that has ended.
    pub fn record(
        name: &'static str,
        ins: &[Aval],
        f: impl FnOnce(&[Value]) -> Result<Values>,
    ) -> Result<Recorded> {
        let guard = Trace::start(Box::new(Recorder { name, ..Recorder::default() }));
        let trace = guard.trace();
        let Some(recorder) = trace.interpreter().recorder() else { unreachable!("made above") };
        let operands: Values = ins.iter().map(|aval| recorder.input(trace, aval)).collect();
        let results = source::anew(|| guard.enter(|| f(&operands)))?;
        recorder.finish(&guard, &results)
    }

    fn input(&self, trace: &Arc<Trace>, aval: &Aval) -> Value {
        let mut tape = lock(&self.tape);
        let aval = aval.unsharded();
        let var = tape.var(aval.clone());
        tape.inputs.push(var);
        trace.tracer(aval, Payload::Var(var))
    }

    fn finish(&self, guard: &TraceGuard, results: &[Value]) -> Result<Recorded> {
        let trace = guard.trace();
        let mut written: Vec<(CellId, Arc<Cell>, Value)> = {
            let overlay = trace.overlay();
            let entries = overlay.iter().filter(|(_, o)| o.written);
            entries.map(|(id, o)| (*id, Arc::clone(&o.cell), o.value.clone())).collect()
        };
        written.sort_by_key(|(id, ..)| *id);
        let outs = results.iter().chain(written.iter().map(|(.., value)| value));
        let outputs = outs.map(|v| self.atom(trace, v)).collect::<Result<Vec<_>>>()?;
        let tape = std::mem::take(&mut *lock(&self.tape));
        let hidden = tape.hidden;
        let inputs = tape.inputs.into_iter().chain(hidden.iter().map(|h| h.var)).collect();
        Ok(Recorded {
            graph: Graph::new(inputs, tape.eqns, outputs, tape.avals),
            hidden: hidden.into_iter().map(|h| h.source).collect(),
            written: written.into_iter().map(|(_, cell, _)| cell).collect(),
            guards: tape.guards,
            reads_axes: tape.reads_axes,
            ran_backward: self.backward.load(Ordering::Relaxed),
        })
    }

    /// Gives a place to the equations that were written last and have none.
    pub(super) fn label(&self, place: Place) {
        let mut tape = lock(&self.tape);
        let last = tape.eqns.iter_mut().rev().take_while(|eqn| eqn.at.is_none());
        last.for_each(|eqn| eqn.at = Some(place));
    }

    /// Remembers what was read of a guarded cell, the first time.
    pub(super) fn watch(&self, guard: &Arc<dyn Guard>) {
        let mut tape = lock(&self.tape);
        let address = guard.address();
        let known = tape.guards.iter().any(|g| g.address() == address);
        if !known && !tape.set_inside.contains(&address) {
            tape.guards.push(Arc::clone(guard));
        }
    }

    /// Remembers that the function asked for axes that are mapped outside of it.
    pub(super) fn note_axes(&self) {
        lock(&self.tape).reads_axes = true;
    }

    /// Remembers that the function set a guarded cell.
    pub(super) fn set_inside(&self, address: usize) {
        lock(&self.tape).set_inside.insert(address);
    }

    /// The tracer that stands for a cell from outside, whose value out there is `outer`.
    pub fn capture_cell(&self, trace: &Arc<Trace>, cell: &Arc<Cell>, outer: &Value) -> Value {
        let var = lock(&self.tape).hide(outer.aval(), Source::Cell(Arc::clone(cell)));
        trace.tracer(outer.aval().unsharded(), Payload::Var(var))
    }

    /// Notes that a backward pass runs.
    pub(super) fn note_backward(&self) {
        self.backward.store(true, Ordering::Relaxed);
    }

    fn atom(&self, trace: &Arc<Trace>, value: &Value) -> Result<Atom> {
        let value = &autograd::primal_at(value, trace.id());
        if let Some(Payload::Var(var)) = trace.own(value) {
            return Ok(Atom::Var(*var));
        }
        if let Some(scalar) = value.as_literal() {
            return Ok(Atom::Literal(scalar));
        }
        let address = match value {
            Value::Array(array) => array.address(),
            Value::Tracer(tracer) if !tracer.trace().is_alive() => {
                return Err(leaked(self.name, tracer));
            }
            Value::Tracer(tracer) => Arc::as_ptr(&tracer.0) as usize,
        };
        let mut tape = lock(&self.tape);
        if let Some(&var) = tape.known.get(&address) {
            return Ok(Atom::Var(var));
        }
        let var = tape.hide(value.aval(), Source::Constant(value.clone()));
        tape.known.insert(address, var);
        Ok(Atom::Var(var))
    }
}

impl Interpreter for Recorder {
    fn name(&self) -> &'static str {
        self.name
    }

    fn process(
        &self,
        trace: &Arc<Trace>,
        prim: &dyn Primitive,
        operands: &[Value],
    ) -> Result<Values> {
        if let Some(graph) = prim.inline() {
            return graph.run(operands);
        }
        let avals: Avals = operands.iter().map(|v| v.aval().unsharded()).collect();
        let outs = prim.infer(&avals)?;
        let inputs = operands.iter().map(|v| self.atom(trace, v)).collect::<Result<_>>()?;
        let mut tape = lock(&self.tape);
        let outputs: smallvec::SmallVec<[Var; 1]> =
            outs.iter().map(|aval| tape.var(aval.clone())).collect();
        let values = outputs.iter().zip(&outs);
        let values = values.map(|(&v, a)| trace.tracer(a.clone(), Payload::Var(v))).collect();
        tape.eqns.push(Eqn { prim: prim.to_arc(), inputs, outputs, at: source::here() });
        Ok(values)
    }

    fn leave(&self, value: &Value) -> Result<Value> {
        Ok(value.clone())
    }

    fn recorder(&self) -> Option<&Recorder> {
        Some(self)
    }
}
