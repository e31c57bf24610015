//! Control flow on data: `cond`, `switch`, `while_loop`, `fori_loop`, `scan`, `map`.
//!
//! The functions given run once, on tracers, and become regions of one operation; what they capture
//! becomes an operand of it. They may be differentiated in what they capture. What they write in place
//! to tensors from outside (counters, running statistics, the state of a random generator) a loop
//! carries from step to step, and it is written once, after the operation.

use super::catch::catch;
use super::tree::{Leaves, Tree, leaf_name, leaves, rebuild, structure, values_of, with_values};
use crate::aval::Aval;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::Steps;
use crate::ops::region::intern;
use crate::shape::Shape;
use crate::trace::cell::{Cell, Tensor};
use crate::trace::graph::{Atom, Graph, Var};
use crate::trace::record::{Recorder, Source};
use crate::trace::source::placed;
use crate::trace::{Value, Values};
use std::sync::Arc;

/// A function as a graph, the values that it captured, and its result's structure.
pub(super) struct Region<B> {
    graph: Graph,
    operands: usize,
    pub(super) captured: Values,
    /// Where each captured value comes from.
    sources: Vec<Source>,
    /// The tensors from outside that it writes in place.
    written: Vec<Arc<Cell>>,
    pub(super) out: B,
}

pub(super) fn bare(values: &[Value]) -> Vec<Aval> {
    values.iter().map(|v| v.aval().unsharded()).collect()
}

impl<B: Tree> Region<B> {
    /// A function that writes to no tensor from outside.
    pub(super) fn record(
        op: &'static str,
        ins: &[Aval],
        f: impl FnOnce(&[Value]) -> Result<B>,
    ) -> Result<Region<B>> {
        let region = Region::record_writing(op, ins, f)?;
        if !region.written.is_empty() {
            let text = "the function writes in place to a tensor from outside";
            return Err(Error::new(ErrorKind::Value, op, text)
                .help("give the tensor's new value as a result"));
        }
        Ok(region)
    }

    fn record_writing(
        op: &'static str,
        ins: &[Aval],
        f: impl FnOnce(&[Value]) -> Result<B>,
    ) -> Result<Region<B>> {
        let mut out = None;
        let recorded = Recorder::record(op, ins, |xs| {
            let tree = catch(|| f(xs))?;
            let values = values_of(&tree)?;
            out = Some(tree);
            Ok(values)
        })?;
        let out = out.ok_or_else(|| Error::new(ErrorKind::NoRule, op, "was not run"))?;
        let captured = recorded.hidden.iter().map(Source::value).collect::<Result<_>>()?;
        Ok(Region {
            graph: recorded.graph,
            operands: ins.len(),
            captured,
            sources: recorded.hidden,
            written: recorded.written,
            out,
        })
    }

    /// The graph with the captured values in front.
    pub(super) fn captured_first(&self) -> Arc<Graph> {
        let (operands, captured) = self.graph.inputs().split_at(self.operands);
        let inputs = captured.iter().chain(operands).copied().collect();
        intern(self.graph.between(inputs, self.graph.outputs().to_vec()))
    }

    /// The parts that the graph of an operation is put together of, which hands `state` on.
    fn parts(&self, state: &State) -> Parts<'_> {
        let graph = &self.graph;
        let (operands, hidden) = graph.inputs().split_at(self.operands);
        let (results, written) =
            graph.outputs().split_at(graph.outputs().len() - self.written.len());
        let mut avals = graph.avals().to_vec();
        let mut captured = Vec::new();
        let mut places = vec![None; state.cells.len()];
        for ((&var, source), value) in hidden.iter().zip(&self.sources).zip(&self.captured) {
            let place = match source {
                Source::Cell(cell) => state.place(cell),
                Source::Constant(_) => None,
            };
            match place {
                Some(i) => places[i] = Some(var),
                None => captured.push((var, value.clone())),
            }
        }
        let (mut before, mut next) = (Vec::new(), Vec::new());
        for ((cell, value), place) in state.cells.iter().zip(&state.values).zip(places) {
            let var = place.unwrap_or_else(|| {
                avals.push(value.aval().unsharded());
                (avals.len() - 1) as Var
            });
            let new = self.written.iter().position(|mine| Arc::ptr_eq(mine, cell));
            before.push(var);
            next.push(new.map_or(Atom::Var(var), |i| written[i].clone()));
        }
        Parts { graph, operands, captured, state: before, next, results, avals }
    }
}

/// The tensors from outside that the functions of one operation write in place. A loop carries
/// them beside what it is given; a branch gives their new values beside its result.
struct State {
    cells: Vec<Arc<Cell>>,
    /// Their values before the operation.
    values: Values,
}

impl State {
    fn of<'r>(written: impl IntoIterator<Item = &'r Vec<Arc<Cell>>>) -> Result<State> {
        let mut state = State { cells: Vec::new(), values: Values::new() };
        for cell in written.into_iter().flatten() {
            if state.place(cell).is_none() {
                state.values.push(cell.read()?);
                state.cells.push(Arc::clone(cell));
            }
        }
        Ok(state)
    }

    fn place(&self, cell: &Arc<Cell>) -> Option<usize> {
        self.cells.iter().position(|known| Arc::ptr_eq(known, cell))
    }

    /// Writes the values after the operation.
    fn write(&self, values: impl IntoIterator<Item = Value>) {
        for (cell, value) in self.cells.iter().zip(values) {
            cell.write(value);
        }
    }
}

/// A region's variables by what they stand for.
struct Parts<'g> {
    graph: &'g Graph,
    operands: &'g [Var],
    /// Captured values but for the state.
    captured: Vec<(Var, Value)>,
    /// The state before, and after.
    state: Vec<Var>,
    next: Vec<Atom>,
    results: &'g [Atom],
    avals: Vec<Aval>,
}

impl Parts<'_> {
    fn captured_vars(&self) -> impl Iterator<Item = &Var> {
        self.captured.iter().map(|(var, _)| var)
    }

    fn captured_values(&self) -> Values {
        self.captured.iter().map(|(_, value)| value.clone()).collect()
    }

    /// The variables of the values in `all`, of which it captured some.
    fn captured_among(&mut self, all: &[Value]) -> Vec<Var> {
        let mut vars = Vec::new();
        for value in all {
            let mine = self.captured.iter().find(|(_, v)| v.same(value)).map(|(var, _)| *var);
            vars.push(mine.unwrap_or_else(|| {
                self.avals.push(value.aval().unsharded());
                (self.avals.len() - 1) as Var
            }));
        }
        vars
    }

    fn graph(self, inputs: Vec<Var>, outputs: Vec<Atom>) -> Arc<Graph> {
        intern(Graph::new(inputs, self.graph.eqns().to_vec(), outputs, self.avals))
    }
}

/// Checks that a body gives what it was given.
pub(super) fn check_carry<C: Tree>(op: &'static str, carry: &C, next: &C) -> Result<()> {
    if structure(carry) != structure(next) {
        let text = "the body gives a carry of another structure than it takes";
        return Err(Error::new(ErrorKind::Tree, op, text));
    }
    for (i, (a, b)) in leaves(carry).into_iter().zip(leaves(next)).enumerate() {
        let (a, b) = (a.aval().unsharded(), b.aval().unsharded());
        if a != b {
            let name = leaf_name(carry, i);
            let kind = if a.dtype() == b.dtype() { ErrorKind::Shape } else { ErrorKind::DType };
            let text = format!("the body takes {name} of the carry as {a} but gives {b}");
            return Err(Error::new(kind, op, text)
                .help("let the first carry have the type that the body gives"));
        }
    }
    Ok(())
}

/// The result of `yes` if `pred` holds, else that of `no`: one program, in which one branch runs.
///
/// **Shapes:** `pred` is a bool scalar; both functions give the same structure, shapes and dtypes.
///
/// # Errors
/// If `pred` is not a bool scalar, if the results differ in type, or with what a function says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2.], [2])?;
/// let f = |x: &Tensor| cond(&x.sum()?.gt(0.0)?, |x: &Tensor| x.sin(), |x: &Tensor| x.mul(x), x);
/// assert_eq!(f(&x)?.to_vec::<f32>()?, x.sin()?.to_vec::<f32>()?);
/// assert_eq!(grad(|x: &Tensor| f(x)?.sum())(&x.neg()?)?.to_vec::<f32>()?, [-2., -4.]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn cond<A: Tree, B: Tree>(
    pred: &Tensor,
    yes: impl Fn(&A) -> Result<B>,
    no: impl Fn(&A) -> Result<B>,
    operands: &A,
) -> Result<B> {
    let aval = pred.aval();
    if aval.rank() != 0 || aval.dtype() != DType::Bool {
        let text = format!("the predicate is {aval}, not a bool scalar");
        return Err(Error::new(ErrorKind::DType, "cond", text));
    }
    let index = ops::convert(&pred.value()?, DType::I32)?;
    choose("cond", &index, &[&no, &yes], operands)
}

/// One branch of [`switch`].
pub type Branch<'f, A, B> = &'f dyn Fn(&A) -> Result<B>;

/// The result of the branch whose number `index` is, kept between the first and the last: one
/// program, in which one branch runs.
///
/// **Shapes:** `index` is an integer scalar; all branches give the same structure, shapes and
/// dtypes.
///
/// # Errors
/// If `index` is not an integer scalar, if there is no branch, if results differ in type, or with
/// what a branch says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2.], [2])?;
/// let index = Tensor::from_slice(&[1i64], [])?;
/// let y = switch(&index, &[&|x: &Tensor| x.neg(), &|x: &Tensor| x.mul(x)], &x)?;
/// assert_eq!(y.to_vec::<f32>()?, [1., 4.]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn switch<A: Tree, B: Tree>(
    index: &Tensor,
    branches: &[Branch<'_, A, B>],
    operands: &A,
) -> Result<B> {
    let aval = index.aval();
    if aval.rank() != 0 || !aval.dtype().is_int() {
        let text = format!("the index is {aval}, not an integer scalar");
        return Err(Error::new(ErrorKind::DType, "switch", text));
    }
    let bound = |i: usize| Value::scalar(Scalar::from_i64(DType::I64, i as i64));
    let index = ops::convert(&index.value()?, DType::I64)?;
    let index = ops::clamp(&bound(0), &index, &bound(branches.len().saturating_sub(1)))?;
    choose("switch", &ops::convert(&index, DType::I32)?, branches, operands)
}

#[track_caller]
fn choose<A: Tree, B: Tree>(
    op: &'static str,
    index: &Value,
    branches: &[Branch<'_, A, B>],
    operands: &A,
) -> Result<B> {
    let mut values = values_of(operands)?;
    let ins = bare(&values);
    let record = |f: &Branch<'_, A, B>| {
        Region::record_writing(op, &ins, |xs| f(&with_values(operands, xs.iter().cloned())?))
    };
    let regions = branches.iter().map(record).collect::<Result<Vec<_>>>()?;
    let Some(first) = regions.first() else {
        return Err(Error::new(ErrorKind::Value, op, "there is no branch"));
    };
    let state = State::of(regions.iter().map(|region| &region.written))?;
    let mut parts: Vec<Parts<'_>> = regions.iter().map(|region| region.parts(&state)).collect();
    let mut captured = Values::new();
    for (region, parts) in regions.iter().zip(&parts) {
        if structure(&region.out) != structure(&first.out) {
            let text = "the branches give trees of different structure";
            return Err(Error::new(ErrorKind::Tree, op, text));
        }
        for (_, value) in &parts.captured {
            if !captured.iter().any(|v| v.same(value)) {
                captured.push(value.clone());
            }
        }
    }
    let results = parts[0].results.len();
    let among: Vec<Vec<Var>> = parts.iter_mut().map(|p| p.captured_among(&captured)).collect();
    let graph = |(parts, captured): (Parts<'_>, Vec<Var>)| {
        let inputs = [parts.operands, &captured, &parts.state].concat();
        let outputs = [parts.results, &parts.next].concat();
        parts.graph(inputs, outputs)
    };
    let graphs: Vec<_> = parts.into_iter().zip(among).map(graph).collect();
    values.extend(captured.into_iter().chain(state.values.iter().cloned()));
    let mut outs = placed(ops::cond(index, &graphs, &values))?;
    state.write(outs.drain(results..));
    with_values(&first.out, outs)
}

/// The last carry of `body` applied to its own result, beginning with `init`, as long as `test`
/// holds of the carry.
///
/// **Unlike** [`scan`], it has no reverse derivative, for its length is not known; `jvp` and `vmap`
/// work.
///
/// # Errors
/// If `test` does not give a bool scalar or writes to a tensor from outside, if `body` gives another
/// type than it takes, or with what a function says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[3f32], [])?;
/// let big = while_loop(|x: &Tensor| x.lt(100.0), |x: &Tensor| x.mul(x), &x)?;
/// assert_eq!(big.item::<f32>()?, 6561.0);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn while_loop<C: Tree>(
    test: impl Fn(&C) -> Result<Tensor>,
    body: impl Fn(&C) -> Result<C>,
    init: &C,
) -> Result<C> {
    let values = values_of(init)?;
    let ins = bare(&values);
    let carry = |xs: &[Value]| with_values(init, xs.iter().cloned());
    let test = Region::record("while_loop", &ins, |xs| test(&carry(xs)?))?;
    let body = Region::record_writing("while_loop", &ins, |xs| body(&carry(xs)?))?;
    check_carry("while_loop", init, &body.out)?;
    let state = State::of([&body.written])?;
    let (test, body) = (test.parts(&state), body.parts(&state));
    let inputs = |parts: &Parts<'_>| {
        let vars = parts.captured_vars().chain(parts.operands).chain(&parts.state);
        vars.copied().collect::<Vec<Var>>()
    };
    let (test_ins, body_ins) = (inputs(&test), inputs(&body));
    let (test_consts, body_consts) = (test.captured_values(), body.captured_values());
    let (test_outs, body_outs) = (test.results.to_vec(), [body.results, &body.next].concat());
    let first: Values = values.iter().chain(&state.values).cloned().collect();
    let outs = ops::while_loop(
        (&test.graph(test_ins, test_outs), &test_consts),
        (&body.graph(body_ins, body_outs), &body_consts),
        &first,
    );
    let mut outs = placed(outs)?;
    state.write(outs.drain(values.len()..));
    with_values(init, outs)
}

/// A bound of [`fori_loop`].
#[derive(Clone, Debug)]
pub enum Bound {
    /// A number known when the program is made.
    Static(i64),
    /// An integer scalar.
    Data(Tensor),
}

impl From<i32> for Bound {
    fn from(bound: i32) -> Bound {
        Bound::Static(bound.into())
    }
}

impl From<i64> for Bound {
    fn from(bound: i64) -> Bound {
        Bound::Static(bound)
    }
}

impl From<usize> for Bound {
    fn from(bound: usize) -> Bound {
        Bound::Static(i64::try_from(bound).unwrap_or(i64::MAX))
    }
}

impl From<&Tensor> for Bound {
    fn from(bound: &Tensor) -> Bound {
        Bound::Data(bound.clone())
    }
}

impl Bound {
    fn value(&self) -> Result<Value> {
        match self {
            Bound::Static(bound) => Ok(Value::scalar(Scalar::new(*bound))),
            Bound::Data(tensor) if tensor.aval().rank() == 0 && tensor.aval().dtype().is_int() => {
                ops::convert(&tensor.value()?, DType::I64)
            }
            Bound::Data(tensor) => {
                let text = format!("a bound is {}, not an integer scalar", tensor.aval());
                Err(Error::new(ErrorKind::DType, "fori_loop", text))
            }
        }
    }
}

/// The last carry of `body` applied to the i64 counter and the carry, for the counter from `low` up
/// to but without `high`.
///
/// If both bounds are numbers this is a [`scan`], which has a reverse derivative; else it is a
/// [`while_loop`], which has none.
///
/// # Errors
/// As for [`while_loop`]; if a bound is not an integer scalar.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[2f32], [])?;
/// let cube = |x: &Tensor| fori_loop(0, 2, |_, y: &Tensor| y.mul(x), x);
/// assert_eq!(cube(&x)?.item::<f32>()?, 8.0);
/// assert_eq!(grad(cube)(&x)?.item::<f32>()?, 12.0);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn fori_loop<C: Tree>(
    low: impl Into<Bound>,
    high: impl Into<Bound>,
    body: impl Fn(&Tensor, &C) -> Result<C>,
    init: &C,
) -> Result<C> {
    let (low, high) = (low.into(), high.into());
    if let (Bound::Static(low), Bound::Static(high)) = (&low, &high) {
        let length = usize::try_from(high.saturating_sub(*low)).unwrap_or(0);
        let shape = Shape::new(&[length]);
        let counter = ops::iota(DType::I64, &shape, 0)?;
        let counter = ops::add(&counter, &ops::full(Scalar::new(*low), &shape)?)?;
        let step = |carry: &C, i: &Tensor| Ok((body(i, carry)?, ()));
        return Ok(scan(step, init, &Tensor::from_value(counter), ScanOptions::default())?.0);
    }
    let high = Tensor::from_value(high.value()?);
    let one = Value::scalar(Scalar::new(1i64));
    let copy = rebuild(init, leaves(init).into_iter().cloned())?;
    let test = |(i, _): &(Tensor, C)| Ok(Tensor::from_value(ops::lt(&i.value()?, &high.value()?)?));
    let next = |(i, carry): &(Tensor, C)| {
        let carry = body(i, carry)?;
        Ok((Tensor::from_value(ops::add(&i.value()?, &one)?), carry))
    };
    Ok(while_loop(test, next, &(Tensor::from_value(low.value()?), copy))?.1)
}

/// How [`scan`] runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanOptions {
    /// From the last row to the first.
    pub reverse: bool,
    /// The number of steps; needed only if no tensor is scanned over.
    pub length: Option<usize>,
    /// How many steps are written one after the other in the program's loop, to trade compile time
    /// and size for speed; 0 counts as 1, and [`ScanOptions::UNROLL_ALL`], or as many as there are
    /// steps, gives a program without a loop. Results and derivatives are the same.
    pub unroll: usize,
}

impl ScanOptions {
    /// As [`ScanOptions::unroll`]: no loop is left.
    pub const UNROLL_ALL: usize = usize::MAX;
}

/// The last carry, and the stack of what each step gives: `body` is applied to the carry and one
/// row of `xs` after the other.
///
/// **Shapes:** all tensors of `xs` have one size on axis 0, which is the number of steps; the second
/// result's tensors have it as a new axis 0.
///
/// # Errors
/// If the sizes on axis 0 differ or there is none, if `body` gives another carry type than it takes,
/// or with what it says.
///
/// # Example
/// Each step sees what earlier steps wrote to `count`.
/// ```
/// use oxbridge::prelude::*;
/// let count = Tensor::zeros([], DType::I64)?;
/// let step = |y: &Tensor, x: &Tensor| {
///     count.add_(1)?;
///     Ok((y.add(&x.mul(&count)?)?, ()))
/// };
/// let (zero, x) = (Tensor::zeros([], DType::F32)?, Tensor::ones([3], DType::F32)?);
/// assert_eq!(scan(step, &zero, &x, ScanOptions::default())?.0.item::<f32>()?, 6.0);
/// assert_eq!(count.item::<i64>()?, 3);
/// # Ok::<(), Error>(())
/// ```
///
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2., 3.], [3])?;
/// let zero = Tensor::zeros([], DType::F32)?;
/// let add = |sum: &Tensor, x: &Tensor| {
///     let sum = sum.add(x)?;
///     Ok((sum.clone(), sum))
/// };
/// let (last, sums) = scan(add, &zero, &x, ScanOptions::default())?;
/// assert_eq!(last.item::<f32>()?, 6.0);
/// assert_eq!(sums.to_vec::<f32>()?, [1., 3., 6.]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn scan<C: Tree, X: Tree, Y: Tree>(
    body: impl Fn(&C, &X) -> Result<(C, Y)>,
    init: &C,
    xs: &X,
    options: ScanOptions,
) -> Result<(C, Y)> {
    let (carry, rows) = (values_of(init)?, values_of(xs)?);
    let length = length_of("scan", xs, &rows, options.length)?;
    let mut ins = bare(&carry);
    ins.extend(bare(&rows).iter().map(|aval| aval.with_shape(aval.shape().remove(0))));
    let region = Region::record_writing("scan", &ins, |values| {
        let (c, x) = values.split_at(carry.len());
        let x = with_values(xs, x.iter().cloned())?;
        body(&with_values(init, c.iter().cloned())?, &x)
    })?;
    check_carry("scan", init, &region.out.0)?;
    let state = State::of([&region.written])?;
    let parts = region.parts(&state);
    let captured = parts.captured_values();
    let (carried, of_rows) = parts.operands.split_at(carry.len());
    let inputs = parts.captured_vars().chain(carried).chain(&parts.state).chain(of_rows);
    let inputs = inputs.copied().collect();
    let (next, stacked) = parts.results.split_at(carry.len());
    let outputs = [next, &parts.next, stacked].concat();
    let graph = parts.graph(inputs, outputs);
    let how = Steps { length, reverse: options.reverse, unroll: options.unroll };
    let first: Values = carry.iter().chain(&state.values).cloned().collect();
    let mut outs = placed(ops::scan(&graph, how, &captured, &first, &rows))?;
    let stacks: Values = outs.drain(first.len()..).collect();
    state.write(outs.drain(carry.len()..));
    Ok((with_values(init, outs)?, with_values(&region.out.1, stacks)?))
}

pub(super) fn length_of(
    op: &'static str,
    xs: &impl Leaves,
    rows: &[Value],
    given: Option<usize>,
) -> Result<usize> {
    let mut length = given;
    for (i, value) in rows.iter().enumerate() {
        let fail = |why: String| {
            let text = format!("{} {} {why}", leaf_name(xs, i), value.aval());
            Err(Error::new(ErrorKind::Shape, op, text))
        };
        match (value.shape().first().copied(), length) {
            (None, _) => return fail("has no axis 0 to go along".into()),
            (Some(n), Some(m)) if n != m => {
                return fail(format!("has size {n} on axis 0, but the loop has {m} steps"));
            }
            (found, _) => length = found,
        }
    }
    length.ok_or_else(|| {
        Error::new(ErrorKind::Value, op, "there is no tensor that gives the number of steps")
            .help("give it as `ScanOptions::length`")
    })
}

/// `f` of one row of `xs` after the other, stacked: as [`vmap`](super::vmap()) but one at a time.
///
/// # Errors
/// As for [`scan`].
#[track_caller]
pub fn map<X: Tree, Y: Tree>(f: impl Fn(&X) -> Result<Y>, xs: &X) -> Result<Y> {
    Ok(scan(|(), x: &X| Ok(((), f(x)?)), &(), xs, ScanOptions::default())?.1)
}
