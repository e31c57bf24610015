//! Values, tracers, and the one door through which every operation goes: [`bind`].
//!
//! | module | holds |
//! |---|---|
//! | [`primitive`] | the trait [`Primitive`]: one operation with all its rules |
//! | [`graph`] | [`Graph`](graph::Graph): typed SSA, JAX's jaxpr |
//! | [`eval`] | running one primitive at once, and the cache of compiled programs |
//! | [`placement`] | where an eager operation runs |
//! | [`lower`] | from a graph to StableHLO |
//! | [`record`] | the interpreter of `jit`: writes a graph |
//! | [`jvp`], [`linear`], [`batch`] | the interpreters of derivatives and of `vmap` |
//! | [`forbid`] | a scope in which nothing is compiled |
//! | [`guard`] | plain values that a traced function may read |
//! | [`autograd`] | torch's graph of tensors that require grad |
//! | [`source`], [`finite`] | where operations come from in the user's source; which of them makes a NaN |
//! | [`cell`] | storage cells and the [`Tensor`](cell::Tensor) handle |
//!
//! A [`Trace`] is one running interpreter. They nest: the innermost is current, and passes what is
//! not its own business on to its parent. With no trace current, operations run at once.

pub mod autograd;
pub mod batch;
pub mod cell;
pub mod eval;
pub mod finite;
pub mod forbid;
pub mod graph;
pub mod guard;
pub mod jvp;
pub mod linear;
pub mod lower;
pub mod placement;
pub mod primitive;
mod programs;
pub mod record;
pub mod source;

use crate::array::Array;
use crate::aval::Aval;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::shape::Shape;
use cell::{Cell, CellId};
use primitive::Primitive;
pub use programs::{ProgramStats, program_stats, set_program_limit};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Several values: operands or results.
pub type Values = SmallVec<[Value; 2]>;

/// Anything a primitive can take: a concrete array, or a tracer of a transform under way.
#[derive(Clone)]
pub enum Value {
    /// Data on devices.
    Array(Array),
    /// A stand-in that belongs to a transform.
    Tracer(Tracer),
}

impl Value {
    /// A number as a value; it goes to whatever device the other operands are on.
    pub fn scalar(value: Scalar) -> Value {
        Value::Array(Array::literal(value))
    }

    /// The type.
    pub fn aval(&self) -> &Aval {
        match self {
            Value::Array(array) => array.aval(),
            Value::Tracer(tracer) => tracer.aval(),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.aval().dtype()
    }

    /// The sizes.
    pub fn shape(&self) -> &Shape {
        self.aval().shape()
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.aval().rank()
    }

    /// The number, if this is a host scalar that no device holds yet.
    pub fn as_literal(&self) -> Option<Scalar> {
        match self {
            Value::Array(array) => array.as_literal(),
            Value::Tracer(_) => None,
        }
    }

    /// Whether it is a variable of a tape of reverse mode: known only as linear in a tangent.
    pub fn is_linear(&self) -> bool {
        let Value::Tracer(tracer) = self else { return false };
        tracer.trace().interpreter().as_linear().is_some()
    }

    /// Whether both are the same object, not only equal ones.
    pub fn same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Array(a), Value::Array(b)) => a.same(b),
            (Value::Tracer(a), Value::Tracer(b)) => Arc::ptr_eq(&a.0, &b.0),
            _ => false,
        }
    }

    /// The concrete array.
    ///
    /// # Errors
    /// [`ErrorKind::NotConcrete`] for a tracer.
    pub fn array(&self, op: &'static str) -> Result<&Array> {
        match self {
            Value::Array(array) => Ok(array),
            Value::Tracer(tracer) => Err(not_concrete(op, tracer)),
        }
    }

    /// The concrete array that stands behind the value: that of a tracer of `grad` or `jvp` outside
    /// of `jit` is its primal.
    ///
    /// # Errors
    /// [`ErrorKind::NotConcrete`] if there is none: inside `jit`, and for a mapped value of `vmap`.
    pub fn concrete(&self, op: &'static str) -> Result<Array> {
        match self {
            Value::Array(array) => Ok(array.clone()),
            Value::Tracer(tracer) => match &tracer.0.payload {
                Payload::Pair { primal, .. } => primal.concrete(op),
                Payload::Graded(graded) => graded.primal().concrete(op),
                _ => Err(not_concrete(op, tracer)),
            },
        }
    }
}

#[cold]
fn not_concrete(op: &'static str, tracer: &Tracer) -> Error {
    let name = tracer.0.trace.name();
    let text =
        format!("the value of {} is not known inside `{name}`, only its type", tracer.aval());
    Error::new(ErrorKind::NotConcrete, op, text)
        .help("branch on data with `cond` or `where_`, loop with `while_loop`, or read it outside")
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Array(array) => write!(f, "{array:?}"),
            Value::Tracer(tracer) => write!(f, "{tracer:?}"),
        }
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Array(array)
    }
}

/// A stand-in for an array: its type, the trace it belongs to, and what that trace knows of it.
#[derive(Clone)]
pub struct Tracer(Arc<TracerInner>);

struct TracerInner {
    trace: Arc<Trace>,
    aval: Aval,
    payload: Payload,
}

/// What a trace knows of one of its tracers.
#[derive(Clone, Debug)]
pub enum Payload {
    /// A variable of the graph or tape that is being written.
    Var(graph::Var),
    /// A value and its tangent (`jvp`, `grad`).
    Pair {
        /// The value.
        primal: Value,
        /// Its derivative along the direction asked for.
        tangent: Value,
    },
    /// A value with one more axis, over which `vmap` maps.
    Batched {
        /// The whole batch.
        value: Value,
        /// The axis of `value` that is mapped.
        axis: usize,
    },
    /// A value that requires grad.
    Graded(autograd::Graded),
}

impl Tracer {
    /// The type.
    pub fn aval(&self) -> &Aval {
        &self.0.aval
    }

    /// The trace it belongs to.
    pub fn trace(&self) -> &Arc<Trace> {
        &self.0.trace
    }

    /// What its trace knows of it.
    pub fn payload(&self) -> &Payload {
        &self.0.payload
    }

    /// The tracer of a transform that has ended which this is or rests on, if there is one.
    fn dead(&self) -> Option<&Tracer> {
        match self.payload() {
            Payload::Graded(graded) => match graded.primal() {
                Value::Tracer(tracer) => tracer.dead(),
                Value::Array(_) => None,
            },
            _ => (!self.trace().is_alive()).then_some(self),
        }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracer({} of {})", self.0.aval, self.0.trace.name())
    }
}

/// How a running trace treats an operation.
pub trait Interpreter: Send + Sync + 'static {
    /// The user's name of the transform: `jit`, `grad`, `vmap`.
    fn name(&self) -> &'static str;

    /// Applies a primitive; `trace` is the trace that this interpreter belongs to, and is current.
    fn process(
        &self,
        trace: &Arc<Trace>,
        prim: &dyn Primitive,
        operands: &[Value],
    ) -> Result<Values>;

    /// What is written to a tensor from outside when the transform ends, for a `value` of its own.
    fn leave(&self, value: &Value) -> Result<Value>;

    /// The writer of a linear tape, if this is the interpreter of reverse derivatives.
    fn as_linear(&self) -> Option<&linear::Linear> {
        None
    }

    /// The axis that is mapped, if this is the interpreter of `vmap`.
    fn batch_axis(&self) -> Option<&batch::BatchAxis> {
        None
    }

    /// The recorder, if this is the interpreter of `jit`.
    fn recorder(&self) -> Option<&record::Recorder> {
        None
    }
}

/// One running interpreter.
pub struct Trace {
    id: u64,
    parent: Option<Arc<Trace>>,
    alive: AtomicBool,
    interpreter: Box<dyn Interpreter>,
    /// Tensors from outside as this trace sees them.
    overlay: Mutex<FxHashMap<CellId, Overlay>>,
}

struct Overlay {
    cell: Arc<Cell>,
    value: Value,
    written: bool,
}

static NEXT_TRACE: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static CURRENT: RefCell<Option<Arc<Trace>>> = const { RefCell::new(None) };
}

/// The trace that is current on this thread; none if operations run at once.
pub fn current() -> Option<Arc<Trace>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Whether operations run at once on this thread: no transform is under way.
pub fn is_eager() -> bool {
    CURRENT.with_borrow(Option::is_none)
}

/// Whether a program is being written on this thread, by whatever transform is under way.
pub fn is_recording() -> bool {
    let first = current();
    let mut traces = std::iter::successors(first.as_ref(), |trace| trace.parent());
    traces.any(|trace| trace.interpreter.recorder().is_some())
}

/// Runs `f` with `trace` current, and restores what was current before, also on unwind.
pub fn with_current<T>(trace: Option<Arc<Trace>>, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<Trace>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _restore = Restore(CURRENT.replace(trace));
    f()
}

/// Applies a primitive: the one door. With no trace current it runs at once; else the current
/// trace applies one of its rules.
///
/// # Errors
/// What `infer`, the rule or the backend says.
pub fn bind(prim: &dyn Primitive, operands: &[Value]) -> Result<Values> {
    match current() {
        None => eval::run(prim, operands),
        Some(trace) if autograd::concerns(operands, trace.id) => autograd::process(prim, operands),
        Some(trace) => autograd::results(|| trace.interpreter.process(&trace, prim, operands)),
    }
}

/// [`bind`] for a primitive with one result.
///
/// # Errors
/// As [`bind`].
pub fn bind_one(prim: &dyn Primitive, operands: &[Value]) -> Result<Value> {
    let mut outs = bind(prim, operands)?;
    debug_assert_eq!(outs.len(), 1, "{} has one result", prim.name());
    outs.pop().ok_or_else(|| Error::new(ErrorKind::NoRule, prim.name(), "gave no result"))
}

impl Trace {
    /// Starts a trace inside of the one that is current. It does not become current by that.
    pub fn start(interpreter: Box<dyn Interpreter>) -> TraceGuard {
        Trace::start_in(current(), interpreter)
    }

    /// Starts a trace inside of `parent`.
    pub fn start_in(parent: Option<Arc<Trace>>, interpreter: Box<dyn Interpreter>) -> TraceGuard {
        TraceGuard(Trace::make(parent, interpreter))
    }

    fn make(parent: Option<Arc<Trace>>, interpreter: Box<dyn Interpreter>) -> Arc<Trace> {
        Arc::new(Trace {
            id: NEXT_TRACE.fetch_add(1, Ordering::Relaxed),
            parent,
            alive: AtomicBool::new(true),
            interpreter,
            overlay: Mutex::default(),
        })
    }

    /// A number that grows with every trace started.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The user's name of the transform.
    pub fn name(&self) -> &'static str {
        self.interpreter.name()
    }

    /// The trace that this one runs inside of.
    pub fn parent(&self) -> Option<&Arc<Trace>> {
        self.parent.as_ref()
    }

    /// Whether the transform is still under way.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// The interpreter.
    pub fn interpreter(&self) -> &dyn Interpreter {
        &*self.interpreter
    }

    /// A new tracer of this trace.
    pub fn tracer(self: &Arc<Trace>, aval: Aval, payload: Payload) -> Value {
        Value::Tracer(Tracer(Arc::new(TracerInner { trace: Arc::clone(self), aval, payload })))
    }

    /// What this trace knows of `value`, if it is one of its tracers.
    pub fn own<'v>(self: &Arc<Trace>, value: &'v Value) -> Option<&'v Payload> {
        match value {
            Value::Tracer(tracer) if Arc::ptr_eq(&tracer.0.trace, self) => Some(&tracer.0.payload),
            Value::Tracer(tracer) => match tracer.payload() {
                Payload::Graded(graded) => self.own(graded.primal()),
                _ => None,
            },
            Value::Array(_) => None,
        }
    }

    /// Runs `f` with this trace's parent current.
    pub fn in_parent<T>(&self, f: impl FnOnce() -> T) -> T {
        with_current(self.parent.clone(), f)
    }

    fn overlay(&self) -> MutexGuard<'_, FxHashMap<CellId, Overlay>> {
        self.overlay.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({} #{})", self.name(), self.id)
    }
}

/// Ends a trace when dropped: its tracers are dead from then on.
#[derive(Debug)]
pub struct TraceGuard(Arc<Trace>);

impl TraceGuard {
    /// The trace.
    pub fn trace(&self) -> &Arc<Trace> {
        &self.0
    }

    /// Runs `f` with the trace current. A `no_grad` around the transform has no say inside of it.
    pub fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        let _mode = autograd::GradMode::set(true);
        with_current(Some(Arc::clone(&self.0)), f)
    }

    /// Writes what was written to tensors from outside back to them, in the parent.
    ///
    /// # Errors
    /// If the transform cannot write there: a mapped value to a tensor outside of `vmap`.
    pub fn write_back(&self) -> Result<()> {
        let written: Vec<_> = {
            let overlay = self.0.overlay();
            let written = overlay.values().filter(|o| o.written);
            written.map(|o| (Arc::clone(&o.cell), o.value.clone())).collect()
        };
        for (cell, value) in written {
            let value = self.0.interpreter.leave(&value)?;
            self.0.in_parent(|| cell.write(value));
        }
        Ok(())
    }
}

impl Drop for TraceGuard {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
        // Tracers hold the trace, and cells here may hold tracers: break the circle.
        self.0.overlay().clear();
    }
}

#[cold]
fn leaked(op: &'static str, tracer: &Tracer) -> Error {
    let name = tracer.0.trace.name();
    let text = format!("a tensor {} that `{name}` traced is used outside of it", tracer.aval());
    Error::new(ErrorKind::LeakedTracer, op, text)
        .help(format!("return the tensor from the function that `{name}` was given"))
}
