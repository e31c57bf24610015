//! `scan`: a loop of known length that takes rows in and gives rows out.

use super::call::{batch_key, batched, key, run_open, split, transposed};
use super::create::or_zeros;
use super::region::{batch_avals, chosen, front, graph_of, in_front, misfit, padded, stacked};
use super::while_loop::grow;
use super::{add, index_axis, move_batch_axis, stack, zeros};
use crate::aval::{Aval, Avals};
use crate::backend::host::{HostArray, layout};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result};
use crate::hlo::{self, Val};
use crate::trace::batch::BatchAxis;
use crate::trace::graph::Graph;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, RunGraph, Tangent, Tangents};
use crate::trace::{Value, Values, bind};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// The primitive `scan`. Its operands are constants, the first carry, and stacks of rows; the body
/// takes constants, carry and one row of each stack, and gives the next carry and one row of each
/// result. Its results are the last carry and the stacks of rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scan {
    /// One step.
    pub body: Arc<Graph>,
    /// The number of steps.
    pub length: usize,
    /// Whether the last row comes first.
    pub reverse: bool,
    /// How many steps one pass of the loop in the program does; never above `length`, and all of
    /// them make a program without a loop.
    pub unroll: usize,
    /// How many operands are constants.
    pub num_consts: usize,
    /// How many operands are carried.
    pub num_carry: usize,
}

/// Where the linear part of a step finds a residual.
#[derive(Clone, Copy)]
enum Place {
    /// Among the constants kept.
    Const(usize),
    /// Among the rows of operands kept.
    Row(usize),
    /// Among the rows that the forward part adds.
    Made(usize),
}

/// A scan split into what is known and what is linear.
struct ScanSplit {
    forward: Arc<Graph>,
    linear: Arc<Graph>,
    /// Which carries have tangents.
    carry: Vec<bool>,
    /// Which rows of results have tangents.
    rows: Vec<bool>,
    /// The constants and stacks that the linear part reads, by operand.
    consts_kept: Vec<usize>,
    rows_kept: Vec<usize>,
}

impl Scan {
    /// The operands of each kind.
    fn parts<'a, T>(&self, operands: &'a [T]) -> (&'a [T], &'a [T], &'a [T]) {
        let (consts, rest) = operands.split_at(self.num_consts);
        let (carry, rows) = rest.split_at(self.num_carry);
        (consts, carry, rows)
    }

    fn with(&self, body: &Arc<Graph>, num_consts: usize, num_carry: usize) -> Scan {
        Scan { body: Arc::clone(body), num_consts, num_carry, ..self.clone() }
    }

    fn split(&self, active: &[bool]) -> Result<ScanSplit> {
        let (c, k) = (self.num_consts, self.num_carry);
        let mut active = active.to_vec();
        // Calls are opened up, so that what is cheap in them is seen.
        let flat = graph_of(&self.body.in_avals(), |xs| run_open(&self.body, xs))?;
        let step = loop {
            let step = split(&flat, &active)?;
            if !grow(&mut active[c..c + k], &step.depends[..k]) {
                break step;
            }
        };
        // Constants and rows are there for each step anyway; a carry is not.
        let step = step.lean(|i| i < c || i >= c + k)?;
        let (ins, outs) = (self.body.in_avals(), self.body.out_avals());
        let new = step.forward.outputs().len() - outs.len();
        let (mut consts_kept, mut rows_kept, mut carry_kept) = (vec![], vec![], vec![]);
        let mut made = 0;
        let place = |list: &mut Vec<usize>, i: usize| {
            list.push(i);
            list.len() - 1
        };
        let mut places = Vec::new();
        for residual in &step.residuals {
            places.push(match *residual {
                Some(i) if i < c => Place::Const(place(&mut consts_kept, i)),
                Some(i) if i < c + k => Place::Made(new + place(&mut carry_kept, i)),
                Some(i) => Place::Row(place(&mut rows_kept, i)),
                None => {
                    made += 1;
                    Place::Made(made - 1)
                }
            });
        }
        let forward = graph_of(&ins, |xs| {
            let mut all = step.forward.run(xs)?;
            all.extend(carry_kept.iter().map(|&i| xs[i].clone()));
            Ok(all)
        })?;
        let of = |list: &[usize]| list.iter().map(|&i| ins[i].clone()).collect::<Vec<_>>();
        let ts = |range: std::ops::Range<usize>| chosen(&ins[range.clone()], &active[range]);
        let groups = [
            ts(0..c),
            of(&consts_kept),
            ts(c..c + k),
            ts(c + k..ins.len()),
            of(&rows_kept),
            forward.out_avals()[outs.len()..].to_vec(),
        ];
        let wanted = active[c..c + k].iter().chain(&step.depends[k..]).copied().collect::<Vec<_>>();
        let linear = graph_of(&groups.concat(), |xs| {
            let mut rest = xs;
            let groups: Vec<&[Value]> = groups
                .iter()
                .map(|group| {
                    let (head, tail) = rest.split_at(group.len());
                    rest = tail;
                    head
                })
                .collect();
            let residual = |place: &Place| match *place {
                Place::Const(i) => groups[1][i].clone(),
                Place::Row(i) => groups[4][i].clone(),
                Place::Made(i) => groups[5][i].clone(),
            };
            let ts = groups[0].iter().chain(groups[2]).chain(groups[3]).cloned();
            let operands: Values = ts.chain(places.iter().map(residual)).collect();
            padded(&outs, &wanted, &step.depends, step.linear.run(&operands)?)
        })?;
        let rows = step.depends[k..].to_vec();
        let carry = active[c..c + k].to_vec();
        Ok(ScanSplit { forward, linear, carry, rows, consts_kept, rows_kept })
    }

    /// One step backwards: takes the known constants, the sums of the linear constants' cotangents,
    /// those of the carry, known rows and the cotangents of rows; gives the next sums, carry's
    /// cotangents and those of the linear rows.
    fn transposed(&self, linear: &[bool], has: &[bool]) -> Result<Arc<Graph>> {
        let (c, k) = (self.num_consts, self.num_carry);
        let (ins, outs) = (self.body.in_avals(), self.body.out_avals());
        let mut all_linear = linear.to_vec();
        all_linear[c..c + k].fill(true);
        let mut all_has = has.to_vec();
        all_has[..k].fill(true);
        let (step, nonzero) = transposed(&self.body, &all_linear, &all_has)?;
        let known: Vec<bool> = all_linear.iter().map(|l| !l).collect();
        let known_consts = chosen(&ins[..c], &known[..c]);
        let sums = chosen(&ins[..c], &linear[..c]);
        let known_rows = chosen(&ins[c + k..], &known[c + k..]);
        let row_cts = chosen(&outs[k..], &has[k..]);
        let carry = &ins[c..c + k];
        let all: Vec<Aval> = [&known_consts, &sums, carry, &known_rows, &row_cts]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let avals = chosen(&ins, &all_linear);
        graph_of(&all, |xs| {
            let (kc, rest) = xs.split_at(known_consts.len());
            let (sums, rest) = rest.split_at(sums.len());
            let (carry, rest) = rest.split_at(k);
            let (kr, cts) = rest.split_at(known_rows.len());
            let operands: Values = kc.iter().chain(kr).chain(carry).chain(cts).cloned().collect();
            let made = step.run(&operands)?;
            let mut outs = padded(&avals, &vec![true; avals.len()], &nonzero, made)?;
            for ((out, sum), nonzero) in outs.iter_mut().zip(sums).zip(&nonzero) {
                *out = if *nonzero { add(sum, out)? } else { sum.clone() };
            }
            Ok(outs)
        })
    }

    /// The body over a batch, and which carries and rows of results are mapped.
    fn batched(&self, batch: &BatchAxis, flags: &[bool]) -> Result<(Arc<Graph>, Vec<bool>)> {
        let (c, k) = (self.num_consts, self.num_carry);
        let mut flags = flags.to_vec();
        let (graph, axes) = loop {
            let ins = batch_avals(batch.size, &self.body.in_avals(), &flags);
            let (graph, axes) = batched(&self.body, batch, &ins, &front(&flags))?;
            let has: Vec<bool> = axes[..k].iter().map(Option::is_some).collect();
            if !grow(&mut flags[c..c + k], &has) {
                break (graph, axes);
            }
        };
        let rows = axes[k..].iter().map(Option::is_some);
        let mapped: Vec<bool> = flags[c..c + k].iter().copied().chain(rows).collect();
        let graph = graph_of(&graph.in_avals(), |xs| {
            in_front(batch.size, &graph.run(xs)?, &axes, &mapped)
        })?;
        Ok((graph, mapped))
    }

    /// The place of each row in the order of the steps.
    fn order(&self) -> Vec<usize> {
        let steps = 0..self.length;
        if self.reverse { steps.rev().collect() } else { steps.collect() }
    }

    /// Writes one step of the loop: reads the rows at `i`, applies the body, puts the new rows in.
    fn step(&self, cx: &mut Lowering, xs: &[Val]) -> Result<Vec<Val>> {
        let int = Aval::scalar(DType::I32);
        let (i, rest) = (&xs[0], &xs[1..]);
        let operands = self.body.inputs().len();
        let (consts, carry, rows) = self.parts(&rest[..operands]);
        let zero = cx.constant(Scalar::new(0i32), &int);
        let at = if self.reverse {
            let last = cx.constant(Scalar::new(self.length as i32 - 1), &int);
            cx.op1("stablehlo.subtract", &[&last, i], "", &int)
        } else {
            i.clone()
        };
        let starts = |x: &Val, rank: usize| {
            let zeros = std::iter::repeat_n(zero.clone(), rank - 1);
            std::iter::once(x.clone()).chain([at.clone()]).chain(zeros).collect::<Vec<Val>>()
        };
        let mut ins: Vec<Val> = consts.iter().chain(carry).cloned().collect();
        for x in rows {
            let shape = x.aval().shape().remove(0);
            let part = x.aval().with_shape(shape.insert(0, 1));
            let attrs = format!("slice_sizes = {}", hlo::i64_array(part.shape().iter()));
            let operands = starts(x, x.aval().rank());
            let outs = std::slice::from_ref(&part);
            let row = cx.op("stablehlo.dynamic_slice", &operands, &attrs, outs).swap_remove(0);
            ins.push(reshaped(cx, &row, &x.aval().with_shape(shape)));
        }
        let outs = cx.inline(&self.body, &ins)?;
        let one = cx.constant(Scalar::new(1i32), &int);
        let mut results = vec![cx.op1("stablehlo.add", &[i, &one], "", &int)];
        results.extend(consts.iter().cloned().chain(outs[..self.num_carry].iter().cloned()));
        results.extend(rows.iter().cloned());
        for (all, row) in rest[operands..].iter().zip(&outs[self.num_carry..]) {
            let part = reshaped(cx, row, &stacked(1, row.aval()));
            let mut operands = starts(all, all.aval().rank());
            operands.insert(1, part);
            let (op, out) = ("stablehlo.dynamic_update_slice", all.aval().clone());
            results.extend(cx.op_with_regions(op, &operands, "", &[], &[out]));
        }
        Ok(results)
    }
}

fn reshaped(cx: &mut Lowering, x: &Val, to: &Aval) -> Val {
    cx.op_with_regions(
        "stablehlo.reshape",
        std::slice::from_ref(x),
        "",
        &[],
        std::slice::from_ref(to),
    )
    .swap_remove(0)
}

/// Row `i` of a stack.
fn row(x: &HostArray, i: usize) -> HostArray {
    let shape = x.shape();
    let mut starts = vec![0; shape.rank()];
    let mut limits = shape.to_vec();
    (starts[0], limits[0]) = (i, i + 1);
    x.slice(&starts, &limits, &vec![1; shape.rank()]).reshape(&shape.remove(0))
}

/// For each operand that `linear` names the next of `made`.
fn spread(linear: &[bool], made: &mut impl Iterator<Item = Value>) -> Tangents {
    linear.iter().map(|l| if *l { made.next() } else { None }).collect()
}

impl Primitive for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let ins = self.body.in_avals();
        let (consts, carry, rows) = self.parts(&ins);
        let rows = rows.iter().map(|aval| stacked(self.length, aval));
        let wants: Avals = consts.iter().chain(carry).cloned().chain(rows).collect();
        if wants.as_slice() != operands {
            return Err(misfit("scan", "takes", &wants, operands));
        }
        let outs = self.body.out_avals();
        let (next, rows) = outs.split_at(self.num_carry);
        if next != carry {
            return Err(misfit("scan", "the body gives the carry", next, carry)
                .help("let the body give the carry's shapes and dtypes"));
        }
        let rows = rows.iter().map(|aval| stacked(self.length, aval));
        Ok(next.iter().cloned().chain(rows).collect())
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let int = Aval::scalar(DType::I32);
        if self.length == 0 {
            // There is no row that a step could be written for.
            let rows = outs[self.num_carry..].iter();
            let rows = rows.map(|aval| cx.constant(Scalar::zero(aval.dtype()), aval));
            return Ok(self.parts(operands).1.iter().cloned().chain(rows).collect());
        }
        let mut state = vec![cx.constant(Scalar::new(0i32), &int)];
        state.extend(operands.iter().cloned());
        for aval in &outs[self.num_carry..] {
            state.push(cx.constant(Scalar::zero(aval.dtype()), aval));
        }
        let avals: Avals = state.iter().map(|v| v.aval().clone()).collect();
        let looped =
            if self.unroll < self.length { self.length - self.length % self.unroll } else { 0 };
        if looped > 0 {
            let cond = cx.region(&avals, |cx, xs| {
                let end = cx.constant(Scalar::new(looped as i32), &int);
                let attrs = "comparison_direction = #stablehlo<comparison_direction LT>";
                let out = Aval::scalar(DType::Bool);
                Ok(vec![cx.op1("stablehlo.compare", &[&xs[0], &end], attrs, &out)])
            })?;
            let body = cx.region(&avals, |cx, xs| {
                (1..self.unroll).try_fold(self.step(cx, xs)?, |xs, _| self.step(cx, &xs))
            })?;
            state = cx.op_with_regions("stablehlo.while", &state, "", &[cond, body], &avals);
        }
        // What does not fill a pass of the loop.
        let all = (looped..self.length).try_fold(state, |xs, _| self.step(cx, &xs))?;
        let first = 1 + self.num_consts;
        let carry = all[first..first + self.num_carry].iter();
        Ok(carry.chain(&all[1 + operands.len()..]).cloned().collect())
    }

    fn host(&self, operands: &[HostArray], outs: &[Aval]) -> Result<Vec<HostArray>> {
        let (consts, carry, rows) = self.parts(operands);
        let mut carry = carry.to_vec();
        let mut stacks: Vec<Vec<HostArray>> = vec![Vec::new(); outs.len() - self.num_carry];
        for i in self.order() {
            let rows = rows.iter().map(|x| row(x, i));
            let ins: Vec<HostArray> = consts.iter().chain(&carry).cloned().chain(rows).collect();
            carry = self.body.host(&ins)?;
            for (stack, y) in stacks.iter_mut().zip(carry.drain(self.num_carry..)) {
                stack.push(y.reshape(&y.shape().insert(0, 1)));
            }
        }
        for (mut stack, aval) in stacks.into_iter().zip(&outs[carry.len()..]) {
            if self.reverse {
                stack.reverse();
            }
            carry.push(match stack.is_empty() {
                true => HostArray::full(Scalar::zero(aval.dtype()), aval.shape()),
                false => layout::concatenate(&stack, 0),
            });
        }
        Ok(carry)
    }

    fn open(&self, operands: &[Value], run: RunGraph<'_>) -> Result<Option<Values>> {
        if self.length == 0 {
            return Ok(None);
        }
        let (consts, carry, stacks) = self.parts(operands);
        let mut carry = carry.to_vec();
        let mut made = Vec::new();
        for (round, i) in self.order().into_iter().enumerate() {
            let rows = stacks.iter().map(|x| index_axis(x, 0, i)).collect::<Result<Vec<_>>>()?;
            let place = |e: Error| e.note(format!("in round {round} of a `scan`"));
            let outs = run(&self.body, &[consts, &carry, &rows].concat()).map_err(place)?;
            carry = outs[..self.num_carry].to_vec();
            made.push((i, outs[self.num_carry..].to_vec()));
        }
        made.sort_by_key(|(i, _)| *i);
        let count = made[0].1.len();
        let column = |k: usize| made.iter().map(|(_, rows)| rows[k].clone()).collect::<Vec<_>>();
        let stacks = (0..count).map(|k| stack(&column(k), 0));
        let outs = carry.into_iter().map(Ok).chain(stacks);
        outs.collect::<Result<Values>>().map(Some)
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let (c, k) = (self.num_consts, self.num_carry);
        let active: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let numbers = [c, k].into_iter().chain(active.iter().map(|&a| usize::from(a)));
        let made = self.body.derived(key("scan_split", numbers), || self.split(&active))?;
        let mut outs = bind(&self.with(&made.forward, c, k), primals)?;
        let residuals: Values = outs.drain(k + made.rows.len()..).collect();
        let (consts, carry, rows) = self.parts(tangents);
        let kept = |list: &[usize]| list.iter().map(|&i| primals[i].clone()).collect::<Values>();
        let mut operands: Values = consts.iter().flatten().cloned().collect();
        operands.extend(kept(&made.consts_kept));
        let num_consts = operands.len();
        for ((x, t), active) in primals[c..].iter().zip(carry).zip(&made.carry) {
            if *active {
                operands.push(or_zeros(t, x.aval())?);
            }
        }
        let num_carry = operands.len() - num_consts;
        operands.extend(rows.iter().flatten().cloned());
        operands.extend(kept(&made.rows_kept).into_iter().chain(residuals));
        let depends: Vec<bool> = made.carry.iter().chain(&made.rows).copied().collect();
        if !depends.contains(&true) {
            return Ok((outs, depends.iter().map(|_| None).collect()));
        }
        let ts = bind(&self.with(&made.linear, num_consts, num_carry), &operands)?;
        Ok((outs, spread(&depends, &mut ts.into_iter())))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let (c, k) = (self.num_consts, self.num_carry);
        if self.parts(operands).1.iter().any(|o| !o.aval().dtype().is_differentiable()) {
            return Err(not_linear(self));
        }
        let linear: Vec<bool> = operands.iter().map(Operand::is_linear).collect();
        let has: Vec<bool> = cts.iter().map(Option::is_some).collect();
        let numbers = linear.iter().chain(&has).map(|&b| usize::from(b));
        let numbers = [c, k].into_iter().chain(numbers);
        let body =
            self.body.derived(key("scan_transpose", numbers), || self.transposed(&linear, &has))?;
        let known = |list: &[Operand]| {
            list.iter().filter_map(|o| o.known().cloned()).collect::<Vec<Value>>()
        };
        let (consts, carry, rows) = self.parts(operands);
        let mut inputs = known(consts);
        let num_consts = inputs.len();
        for operand in consts.iter().filter(|o| o.is_linear()) {
            inputs.push(zeros(operand.aval())?);
        }
        for (operand, ct) in carry.iter().zip(cts) {
            inputs.push(or_zeros(ct, operand.aval())?);
        }
        let num_carry = inputs.len() - num_consts;
        inputs.extend(known(rows).into_iter().chain(cts[k..].iter().flatten().cloned()));
        let back = Scan { reverse: !self.reverse, ..self.with(&body, num_consts, num_carry) };
        let mut outs = bind(&back, &inputs)?.into_iter();
        let mut result = spread(&linear[..c], &mut outs);
        result.extend(outs.by_ref().take(k).map(Some).collect::<Tangents>());
        result.extend(spread(&linear[c + k..], &mut outs));
        Ok(result)
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (c, k) = (self.num_consts, self.num_carry);
        let flags: Vec<bool> = axes.iter().map(Option::is_some).collect();
        let batch = batch.seen_by([&self.body]);
        let numbers = [c, k].into_iter().chain(flags.iter().map(|&f| usize::from(f)));
        let key = batch_key("scan_batch", &batch, numbers);
        let made = self.body.derived(key, || self.batched(&batch, &flags))?;
        let (body, mapped) = &*made;
        let first = [&flags[..c], &mapped[..k]].concat();
        let mut inputs = in_front(batch.size, &operands[..c + k], &axes[..c + k], &first)?;
        // Axis 0 of a stack counts the steps.
        for (x, axis) in operands[c + k..].iter().zip(&axes[c + k..]) {
            inputs.push(match axis {
                Some(axis) => move_batch_axis(batch.size, x, Some(*axis), 1)?,
                None => x.clone(),
            });
        }
        let outs = bind(&self.with(body, c, k), &inputs)?;
        let place = |(i, m): (usize, &bool)| m.then_some(usize::from(i >= k));
        Ok((outs, mapped.iter().enumerate().map(place).collect()))
    }

    fn graphs(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        smallvec![&self.body]
    }

    fn params(&self) -> String {
        let (c, k, n) = (self.num_consts, self.num_carry, self.length);
        let unroll =
            if self.unroll > 1 { format!(", unroll={}", self.unroll) } else { String::new() };
        format!(
            "length={n}, reverse={}{unroll}, num_consts={c}, num_carry={k}, body={}",
            self.reverse, self.body
        )
    }
}

/// How many steps a [`scan`] has, and how they are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Steps {
    /// Their number.
    pub length: usize,
    /// Whether the last row comes first.
    pub reverse: bool,
    /// How many of them are written one after the other in the program's loop; 0 counts as 1, and
    /// all of them or more give a program without a loop.
    pub unroll: usize,
}

impl From<(usize, bool)> for Steps {
    fn from((length, reverse): (usize, bool)) -> Steps {
        Steps { length, reverse, unroll: 1 }
    }
}

/// The last carry and the stacks of rows of the loop whose one step is `body`. `steps` is also a
/// pair of length and reverse. Source: `lax.scan` of JAX.
///
/// # Errors
/// If the body's types do not fit the operands.
pub fn scan(
    body: &Arc<Graph>,
    steps: impl Into<Steps>,
    consts: &[Value],
    carry: &[Value],
    rows: &[Value],
) -> Result<Values> {
    let operands: Values = consts.iter().chain(carry).chain(rows).cloned().collect();
    let Steps { length, reverse, unroll } = steps.into();
    let scan = Scan {
        body: Arc::clone(body),
        length,
        reverse,
        unroll: unroll.clamp(1, length.max(1)),
        num_consts: consts.len(),
        num_carry: carry.len(),
    };
    bind(&scan, &operands)
}
