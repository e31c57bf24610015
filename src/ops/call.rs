//! A graph as one operation, and composite operations that run as one program.

use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::pjrt::options::{OverrideValue, Overrides};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::mesh::{Mesh, NamedSharding};
use crate::ops::ARITHMETIC;
use crate::ops::precision::{Precision, matmul_precision};
use crate::ops::region::intern;
use crate::trace::batch::{self, Batch, BatchAxis};
use crate::trace::graph::{DerivedKey, Graph};
use crate::trace::linear::{Input, LinearTape, Linearized, linearize};
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::record::Recorder;
use crate::trace::{Trace, Value, Values, bind};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::{Arc, Mutex};

/// The primitive `call`: a graph applied to its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The name of the function in StableHLO.
    pub name: Arc<str>,
    /// The graph.
    pub graph: Arc<Graph>,
    /// Whether `jit` opens the call up in place rather than keep it as a function.
    pub inline: bool,
    /// For each operand whether the program may overwrite it; empty for none.
    pub donated: SmallVec<[bool; 8]>,
    /// For each result the sharding that it must have; empty or none leaves it to the compiler.
    pub out_shardings: SmallVec<[Option<NamedSharding>; 1]>,
    /// The XLA flags that a program of it is compiled with; none at all in most cases.
    pub compiler_options: Option<Arc<Overrides>>,
}

impl Call {
    /// A call that donates nothing.
    pub fn new(name: &str, graph: Arc<Graph>, inline: bool) -> Call {
        Call {
            name: name.into(),
            graph,
            inline,
            donated: SmallVec::new(),
            out_shardings: SmallVec::new(),
            compiler_options: None,
        }
    }

    fn with(&self, graph: Arc<Graph>) -> Call {
        Call { graph, donated: SmallVec::new(), out_shardings: SmallVec::new(), ..self.clone() }
    }
}

/// A graph split into what is known and what is linear: the results and residuals, and from
/// residuals and tangents the results' tangents.
#[derive(Debug)]
pub(super) struct Split {
    /// From the operands to the results, then the residuals.
    pub(super) forward: Arc<Graph>,
    /// From the residuals and the active tangents to the tangents of those results that have one.
    pub(super) linear: Arc<Graph>,
    /// For each residual the operand that it is, or none for the next of `forward`'s results.
    pub(super) residuals: Vec<Option<usize>>,
    /// Which results have a tangent.
    pub(super) depends: Vec<bool>,
}

pub(super) fn key(what: &'static str, numbers: impl IntoIterator<Item = usize>) -> DerivedKey {
    DerivedKey { what, numbers: numbers.into_iter().collect(), batch: None }
}

/// The key of what is derived for a batch.
pub(super) fn batch_key(
    what: &'static str,
    batch: &BatchAxis,
    numbers: impl IntoIterator<Item = usize>,
) -> DerivedKey {
    DerivedKey { batch: Some(batch.clone()), ..key(what, numbers) }
}

/// A number for each mapped axis, for keys.
pub(super) fn places(axes: &[Option<usize>]) -> impl Iterator<Item = usize> + '_ {
    axes.iter().map(|axis| axis.map_or(0, |axis| axis + 1))
}

/// The graph of `f` over operands of the given types, which must capture nothing.
fn record(ins: &[Aval], f: impl FnOnce(&[Value]) -> Result<Values>) -> Result<Arc<Graph>> {
    let recorded = Recorder::record("jit", ins, f)?;
    debug_assert!(recorded.hidden.is_empty(), "a derived graph captures nothing");
    // What is derived from a graph that is recorded anew at each call has to be the same object.
    Ok(intern(recorded.graph))
}

/// Binds each equation, and those of graphs that it calls, so that what is known and what is linear
/// in a tangent do not meet in one operation.
pub(super) fn run_open(graph: &Graph, operands: &[Value]) -> Result<Values> {
    graph.run_by(operands, &mut |prim, inputs| match prim.graph() {
        Some(inner) => run_open(inner, inputs),
        None => bind(prim, inputs),
    })
}

/// Runs the graph under `jvp` with linear tangents, both parts being recorded.
pub(super) fn split(graph: &Graph, active: &[bool]) -> Result<Split> {
    split_by(&graph.in_avals(), active, |primals, active| {
        linearize("grad", primals, active, ARITHMETIC, |xs| graph.run(xs))
    })
}

/// Records what `run` makes known and what it leaves linear in the active tangents.
pub(super) fn split_by(
    ins: &[Aval],
    active: &[bool],
    run: impl FnOnce(&[Value], &[bool]) -> Result<Linearized>,
) -> Result<Split> {
    let (mut depends, mut places) = (Vec::new(), Vec::new());
    let mut linear = None;
    // The residuals are whatever the linear part captures from the forward part.
    let forward = record(ins, |primals| {
        let lin = run(primals, active)?;
        depends = lin.depends();
        let tangents: Vec<Aval> = primals
            .iter()
            .zip(active)
            .filter(|(p, a)| **a && p.dtype().is_differentiable())
            .map(|(p, _)| p.aval().clone())
            .collect();
        let recorded = Recorder::record("grad", &tangents, |ts| {
            let mut ts = ts.iter().cloned();
            let all: Tangents = primals
                .iter()
                .zip(active)
                .map(|(p, a)| if *a && p.dtype().is_differentiable() { ts.next() } else { None })
                .collect();
            Ok(lin.apply(&all)?.into_iter().flatten().collect())
        })?;
        let mut outs = lin.outputs.clone();
        for source in &recorded.hidden {
            let residual = source.value()?;
            let operand = primals.iter().position(|p| p.same(&residual));
            places.push(operand);
            if operand.is_none() {
                outs.push(residual);
            }
        }
        linear = Some(intern(recorded.graph));
        Ok(outs)
    })?;
    let linear = linear.ok_or_else(|| Error::new(ErrorKind::NoRule, "call", "was not run"))?;
    Ok(Split { forward, linear, residuals: places, depends })
}

/// The residuals in order: for each place the operand that it names, or the next of `made`.
pub(super) fn residuals_at<T: Clone>(
    places: &[Option<usize>],
    operands: &[T],
    made: impl IntoIterator<Item = T>,
) -> impl Iterator<Item = T> {
    let mut made = made.into_iter();
    places.iter().filter_map(move |place| match place {
        Some(i) => Some(operands[*i].clone()),
        None => made.next(),
    })
}

impl Split {
    /// Calls both parts, as `like` is called, for the operands and the active tangents: the results,
    /// and the tangents of those that have one.
    pub(super) fn apply(
        &self,
        like: &Call,
        primals: &[Value],
        tangents: impl IntoIterator<Item = Value>,
    ) -> Result<(Values, Tangents)> {
        let made = self.residuals.iter().filter(|place| place.is_none()).count();
        let mut outs = bind(&like.with(Arc::clone(&self.forward)), primals)?;
        let made = outs.drain(outs.len() - made..);
        let residuals: Values = residuals_at(&self.residuals, primals, made).collect();
        if !self.depends.contains(&true) {
            return Ok((outs, self.depends.iter().map(|_| None).collect()));
        }
        // The recorder puts what it captures after the operands.
        let operands: Values = tangents.into_iter().chain(residuals).collect();
        let mut ts = bind(&like.with(Arc::clone(&self.linear)), &operands)?.into_iter();
        let ts = self.depends.iter().map(|d| if *d { ts.next() } else { None }).collect();
        Ok((outs, ts))
    }
}

impl Primitive for Call {
    fn name(&self) -> &'static str {
        "call"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let wants = self.graph.in_avals();
        if wants.len() != operands.len() || wants.iter().zip(operands).any(|(a, b)| a != b) {
            let text = format!("`{}` takes {wants:?}, not {operands:?}", self.name);
            return Err(Error::new(ErrorKind::Shape, "call", text));
        }
        Ok(self.graph.out_avals())
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        if self.inline {
            return cx.inline(&self.graph, operands);
        }
        cx.call(&self.name, &self.graph, operands)
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        self.graph.host(operands)
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let active: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let numbers = active.iter().map(|&a| usize::from(a));
        // Two programs that run one after the other hand over as little as they can; of parts of
        // one program the compiler sees both and chooses.
        let split = match primals.iter().all(|v| matches!(v, Value::Array(_))) {
            true => self.graph.derived(key("lean_split", numbers), || {
                split(&self.graph, &active)?.lean(|_| false)
            }),
            false => self.graph.derived(key("split", numbers), || split(&self.graph, &active)),
        }?;
        split.apply(self, primals, tangents.iter().flatten().cloned())
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let linear: Vec<bool> = operands.iter().map(Operand::is_linear).collect();
        let has: Vec<bool> = cts.iter().map(Option::is_some).collect();
        let numbers = linear.iter().chain(&has).map(|&b| usize::from(b));
        let transposed = self
            .graph
            .derived(key("transpose", numbers), || transposed(&self.graph, &linear, &has))?;
        let known = operands.iter().filter_map(|o| o.known().cloned());
        let inputs: Values = known.chain(cts.iter().flatten().cloned()).collect();
        let mut outs = bind(&self.with(Arc::clone(&transposed.0)), &inputs)?.into_iter();
        let mut nonzero = transposed.1.iter();
        let mut take = |o: &Operand| match o.is_linear() && *nonzero.next().unwrap_or(&false) {
            true => outs.next(),
            false => None,
        };
        Ok(operands.iter().map(|o| if o.is_linear() { take(o) } else { None }).collect())
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let ins: Avals = operands.iter().map(|v| v.aval().unsharded()).collect();
        let batch = batch.seen_by([&self.graph]);
        let key = batch_key("batch", &batch, places(axes));
        let batched = self.graph.derived(key, || batched(&self.graph, &batch, &ins, axes))?;
        let outs = bind(&self.with(Arc::clone(&batched.0)), operands)?;
        Ok((outs, batched.1.iter().copied().collect()))
    }

    fn params(&self) -> String {
        format!("name={}, graph={}", self.name, self.graph)
    }

    fn inline(&self) -> Option<&Arc<Graph>> {
        self.inline.then_some(&self.graph)
    }

    fn donated(&self) -> &[bool] {
        &self.donated
    }

    fn out_shardings(&self) -> &[Option<NamedSharding>] {
        &self.out_shardings
    }

    fn compiler_options(&self) -> &[(String, OverrideValue)] {
        self.compiler_options.as_ref().map_or(&[], |options| options)
    }

    fn mesh(&self) -> Option<&Mesh> {
        let asked = self.out_shardings.iter().flatten().next();
        asked.map(NamedSharding::mesh).or_else(|| self.graph.mesh())
    }

    fn entry_name(&self) -> &str {
        &self.name
    }

    fn graph(&self) -> Option<&Arc<Graph>> {
        Some(&self.graph)
    }
}

/// From the known operands and the cotangents that are there to those of the linear operands, and
/// which of these are not zero.
pub(super) fn transposed(
    graph: &Graph,
    linear: &[bool],
    has: &[bool],
) -> Result<(Arc<Graph>, Vec<bool>)> {
    let avals = graph.in_avals();
    let known = avals.iter().zip(linear).filter(|(_, l)| !**l).map(|(a, _)| a.clone());
    let cts = graph.out_avals().into_iter().zip(has).filter(|(_, h)| **h).map(|(a, _)| a);
    let ins: Vec<Aval> = known.chain(cts).collect();
    let mut nonzero = Vec::new();
    let made = record(&ins, |values| {
        let mut values = values.iter().cloned();
        let operand = |(aval, &linear): (&Aval, &bool)| match linear {
            true => Some(Operand::Linear(aval.clone())),
            false => values.next().map(Operand::Known),
        };
        let operands: SmallVec<[Operand; 4]> =
            avals.iter().zip(linear).filter_map(operand).collect();
        let (tape, inputs, outputs) = LinearTape::of_graph(graph, &operands)?;
        let mut seeds = Vec::new();
        for (output, _) in outputs.iter().zip(has).filter(|(_, h)| **h) {
            if let (Input::Var(var), Some(ct)) = (output, values.next()) {
                seeds.push((*var, ct));
            }
        }
        let cts = tape.transpose(&seeds, &inputs, ARITHMETIC)?;
        nonzero = cts.iter().map(Option::is_some).collect();
        Ok(cts.into_iter().flatten().collect())
    })?;
    Ok((made, nonzero))
}

/// The graph over a batch, and the mapped axis of each result.
pub(super) fn batched(
    graph: &Graph,
    batch: &BatchAxis,
    ins: &[Aval],
    axes: &[Option<usize>],
) -> Result<(Arc<Graph>, Vec<Option<usize>>)> {
    let mut out_axes = Vec::new();
    let made = record(ins, |values| {
        let guard = Trace::start(Box::new(Batch { axis: batch.clone() }));
        let mapped: Values = values
            .iter()
            .zip(axes)
            .map(|(v, &axis)| batch::join(guard.trace(), v.clone(), axis))
            .collect();
        let outs = guard.enter(|| graph.run(&mapped))?;
        let (values, axes): (Values, Vec<_>) =
            outs.iter().map(|v| batch::split(guard.trace(), v)).unzip();
        out_axes = axes;
        Ok(values)
    })?;
    Ok((made, out_axes))
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct FusedKey {
    name: &'static str,
    params: SmallVec<[i64; 8]>,
    avals: Avals,
    /// A body may form products.
    precision: Precision,
}

thread_local! {
    static FUSED: RefCell<FxHashMap<FusedKey, Arc<Call>>> = RefCell::default();
}

/// What any thread has recorded, so that all threads run the same compiled programs.
static ALL_FUSED: Mutex<Option<FxHashMap<FusedKey, Arc<Call>>>> = Mutex::new(None);

/// A composite operation as one program: `body` is recorded once for each `name`, `params` and
/// operand types, and runs as one call; inside of `jit` it is opened up in place.
///
/// `body` must depend on `params` and its operands alone: `name` and `params` stand for it in the
/// cache.
///
/// # Errors
/// What `body` says.
pub fn fused(
    name: &'static str,
    params: &[i64],
    operands: &[Value],
    body: impl FnOnce(&[Value]) -> Result<Values>,
) -> Result<Values> {
    let avals: Avals = operands.iter().map(|v| v.aval().unsharded()).collect();
    let precision = matmul_precision();
    let key = FusedKey { name, params: SmallVec::from_slice(params), avals, precision };
    let call = match FUSED.with_borrow(|map| map.get(&key).cloned()) {
        Some(call) => call,
        None => record_fused(key, body)?,
    };
    bind(&*call, operands)
}

/// More composites than this are forgotten at once.
const MAX_FUSED: usize = 4096;

/// Keeps a table of composites bounded.
fn bounded(map: &mut FxHashMap<FusedKey, Arc<Call>>) -> &mut FxHashMap<FusedKey, Arc<Call>> {
    if map.len() >= MAX_FUSED {
        map.clear();
    }
    map
}

fn record_fused(key: FusedKey, body: impl FnOnce(&[Value]) -> Result<Values>) -> Result<Arc<Call>> {
    let lock = || ALL_FUSED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let found = lock().get_or_insert_default().get(&key).cloned();
    let call = match found {
        Some(call) => call,
        None => {
            // Not under the lock: a body may be made of fused operations itself.
            let graph = record(&key.avals, body)?;
            let made = Arc::new(Call::new(key.name, graph, true));
            let mut all = lock();
            let all = bounded(all.get_or_insert_default());
            Arc::clone(all.entry(key.clone()).or_insert(made))
        }
    };
    FUSED.with_borrow_mut(|map| bounded(map).insert(key, Arc::clone(&call)));
    Ok(call)
}
