//! `cond`: one of several graphs, chosen by an index.

use super::call::{Call, Split, batch_key, batched, key, places, residuals_at, split, transposed};
use super::region::{chosen, front, graph_of, in_front, misfit, padded};
use super::{bad_dtype, eq, select};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::ops::zeros;
use crate::trace::batch::BatchAxis;
use crate::trace::graph::{DerivedKey, Graph};
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, RunGraph, Tangent, Tangents};
use crate::trace::{Value, Values, bind};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

/// The primitive `cond`: the branch whose number the first operand is, applied to the others; the
/// last branch if there is none of that number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cond {
    /// The branches, which have operands and results of equal types.
    pub branches: Vec<Arc<Graph>>,
}

/// The branches split as those of [`Call`] are, made to have equal types.
struct CondSplit {
    /// From the operands to the results, then the residuals of all branches.
    forward: Vec<Arc<Graph>>,
    /// From the active tangents, the operands and the residuals to the tangents.
    linear: Vec<Arc<Graph>>,
    depends: Vec<bool>,
}

impl Cond {
    /// What is derived from all branches under `key`.
    fn derived<T: Any + Send + Sync>(
        &self,
        key: DerivedKey,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let ids = self.branches.iter().map(|graph| graph.id() as usize);
        let numbers = std::iter::once(self.branches.len()).chain(ids).chain(key.numbers).collect();
        self.branches[0].derived(DerivedKey { numbers, ..key }, make)
    }

    fn split(&self, active: &[bool]) -> Result<CondSplit> {
        // The linear part takes all operands, whatever it reads of them.
        let lean = |g: &Arc<Graph>| split(g, active)?.lean(|_| true);
        let splits = self.branches.iter().map(lean).collect::<Result<Vec<_>>>()?;
        let (ins, outs) = (self.branches[0].in_avals(), self.branches[0].out_avals());
        let depends: Vec<bool> =
            (0..outs.len()).map(|i| splits.iter().any(|s| s.depends[i])).collect();
        let mut slots = Avals::new();
        let made = |s: &Split| s.forward.out_avals()[outs.len()..].to_vec();
        let places: Vec<_> = splits.iter().map(|s| assign(&mut slots, &made(s))).collect();
        let tangents = chosen(&ins, active);
        let linear_ins: Vec<Aval> = tangents.iter().chain(&ins).chain(&slots).cloned().collect();
        let (mut forward, mut linear) = (Vec::new(), Vec::new());
        for (split, places) in splits.iter().zip(&places) {
            forward.push(graph_of(&ins, |values| {
                let all = split.forward.run(values)?;
                let mut results: Values = all[..outs.len()].iter().cloned().collect();
                for (slot, aval) in slots.iter().enumerate() {
                    results.push(match places.iter().position(|&p| p == slot) {
                        Some(i) => all[outs.len() + i].clone(),
                        None => zeros(aval)?,
                    });
                }
                Ok(results)
            })?);
            linear.push(graph_of(&linear_ins, |values| {
                let (ts, rest) = values.split_at(tangents.len());
                let made = places.iter().map(|slot| rest[ins.len() + slot].clone());
                let residuals = residuals_at(&split.residuals, rest, made);
                let operands: Values = ts.iter().cloned().chain(residuals).collect();
                padded(&outs, &depends, &split.depends, split.linear.run(&operands)?)
            })?);
        }
        Ok(CondSplit { forward, linear, depends })
    }

    /// From the known operands and the cotangents to the cotangents of those linear operands that
    /// some branch reaches.
    fn transposed(&self, linear: &[bool], has: &[bool]) -> Result<(Vec<Arc<Graph>>, Vec<bool>)> {
        let parts = self.branches.iter().map(|g| transposed(g, linear, has));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let avals = chosen(&self.branches[0].in_avals(), linear);
        let wanted: Vec<bool> =
            (0..avals.len()).map(|i| parts.iter().any(|(_, nonzero)| nonzero[i])).collect();
        let pad = |(graph, nonzero): &(Arc<Graph>, Vec<bool>)| {
            graph_of(&graph.in_avals(), |xs| padded(&avals, &wanted, nonzero, graph.run(xs)?))
        };
        let graphs = parts.iter().map(pad).collect::<Result<_>>()?;
        Ok((graphs, wanted))
    }

    fn batched(
        &self,
        batch: &BatchAxis,
        ins: &[Aval],
        axes: &[Option<usize>],
        all: bool,
    ) -> Result<(Vec<Arc<Graph>>, Vec<bool>)> {
        let parts = self.branches.iter().map(|g| batched(g, batch, ins, axes));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let outs = self.branches[0].outputs().len();
        let mapped: Vec<bool> =
            (0..outs).map(|i| all || parts.iter().any(|(_, axes)| axes[i].is_some())).collect();
        let align = |(graph, axes): &(Arc<Graph>, Vec<Option<usize>>)| {
            graph_of(ins, |xs| in_front(batch.size, &graph.run(xs)?, axes, &mapped))
        };
        let graphs = parts.iter().map(align).collect::<Result<_>>()?;
        Ok((graphs, mapped))
    }
}

/// The place of each of one branch's residuals among those of all: one slot of its type, which is
/// added if there is none left.
fn assign(slots: &mut Avals, residuals: &[Aval]) -> Vec<usize> {
    let mut places = Vec::new();
    for aval in residuals {
        let free = (0..slots.len()).find(|i| slots[*i] == *aval && !places.contains(i));
        places.push(free.unwrap_or_else(|| {
            slots.push(aval.clone());
            slots.len() - 1
        }));
    }
    places
}

fn flags(flags: &[bool]) -> impl Iterator<Item = usize> + '_ {
    flags.iter().map(|&flag| usize::from(flag))
}

impl Primitive for Cond {
    fn name(&self) -> &'static str {
        "cond"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let Some(first) = self.branches.first() else {
            return Err(Error::new(ErrorKind::Value, "cond", "there is no branch"));
        };
        if operands[0] != Aval::scalar(DType::I32) {
            return Err(bad_dtype("cond", &operands[0], "an index of i32[]"));
        }
        let outs = first.out_avals();
        for (i, branch) in self.branches.iter().enumerate() {
            if branch.in_avals().as_slice() != &operands[1..] {
                let what = format!("branch {i} takes");
                return Err(misfit("cond", &what, &branch.in_avals(), &operands[1..]));
            }
            if branch.out_avals() != outs {
                let what = format!("branch {i} gives {:?}, but branch 0", branch.out_avals());
                let text = format!("{what} gives {outs:?}");
                return Err(Error::new(ErrorKind::Shape, "cond", text)
                    .help("let all branches give the same shapes and dtypes"));
            }
        }
        Ok(outs)
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let region = |graph: &Arc<Graph>| cx.region(&[], |cx, _| cx.inline(graph, &operands[1..]));
        let regions = self.branches.iter().map(region).collect::<Result<Vec<_>>>()?;
        Ok(cx.op_with_regions("stablehlo.case", &operands[..1], "", &regions, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        let last = self.branches.len() - 1;
        let index = usize::try_from(operands[0].scalar()?.to_i64()).unwrap_or(last);
        self.branches[index.min(last)].host(&operands[1..])
    }

    fn open(&self, operands: &[Value], run: RunGraph<'_>) -> Result<Option<Values>> {
        let last = self.branches.len() - 1;
        let index = operands[0].array("cond")?.to_host()?.scalar()?;
        let index = usize::try_from(index.to_i64()).unwrap_or(last).min(last);
        let place = |e: Error| e.note(format!("in branch {index} of a `cond`"));
        run(&self.branches[index], &operands[1..]).map(Some).map_err(place)
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let active: Vec<bool> = tangents[1..].iter().map(Option::is_some).collect();
        let split = self.derived(key("cond_split", flags(&active)), || self.split(&active))?;
        let mut outs = bind(&Cond { branches: split.forward.clone() }, primals)?;
        let residuals: Values = outs.drain(split.depends.len()..).collect();
        if !split.depends.contains(&true) {
            return Ok((outs, split.depends.iter().map(|_| None).collect()));
        }
        let mut operands: Values = primals[..1].iter().cloned().collect();
        operands.extend(tangents[1..].iter().flatten().cloned());
        operands.extend(primals[1..].iter().cloned().chain(residuals));
        let mut ts = bind(&Cond { branches: split.linear.clone() }, &operands)?.into_iter();
        let ts = split.depends.iter().map(|d| if *d { ts.next() } else { None }).collect();
        Ok((outs, ts))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(index) = operands[0].known() else { return Err(not_linear(self)) };
        let linear: Vec<bool> = operands[1..].iter().map(Operand::is_linear).collect();
        let has: Vec<bool> = cts.iter().map(Option::is_some).collect();
        let numbers = flags(&linear).chain(flags(&has));
        let made =
            self.derived(key("cond_transpose", numbers), || self.transposed(&linear, &has))?;
        let known = operands[1..].iter().filter_map(|o| o.known().cloned());
        let inputs: Values = std::iter::once(index.clone())
            .chain(known)
            .chain(cts.iter().flatten().cloned())
            .collect();
        let mut outs = bind(&Cond { branches: made.0.clone() }, &inputs)?.into_iter();
        let mut wanted = made.1.iter();
        let mut out: Tangents = std::iter::once(None).collect();
        for is_linear in linear {
            let there = is_linear && *wanted.next().unwrap_or(&false);
            out.push(if there { outs.next() } else { None });
        }
        Ok(out)
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let ins: Vec<Aval> = operands[1..].iter().map(|v| v.aval().unsharded()).collect();
        let all = axes[0].is_some();
        let batch = batch.seen_by(&self.branches);
        let key = batch_key("cond_batch", &batch, places(axes));
        let made = self.derived(key, || self.batched(&batch, &ins, &axes[1..], all))?;
        let (graphs, mapped) = &*made;
        let out_axes = front(mapped).into_iter().collect();
        if !all {
            return Ok((bind(&Cond { branches: graphs.clone() }, operands)?, out_axes));
        }
        // Examples differ in their branch: all run, and each takes its own.
        let run = |graph: &Arc<Graph>| {
            bind(&Call::new("branch", Arc::clone(graph), true), &operands[1..])
        };
        let results = graphs.iter().map(run).collect::<Result<Vec<_>>>()?;
        let Some((last, others)) = results.split_last() else { return Err(not_linear(self)) };
        let mut outs = last.clone();
        for (i, results) in others.iter().enumerate() {
            let number = super::full(Scalar::new(i as i32), operands[0].shape())?;
            let here = eq(&operands[0], &number)?;
            for (out, result) in outs.iter_mut().zip(results) {
                let here = super::broadcast_in_dim(&here, out.shape(), &[0])?;
                *out = select(&here, result, out)?;
            }
        }
        Ok((outs, out_axes))
    }

    fn graphs(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        self.branches.iter().collect()
    }

    fn params(&self) -> String {
        let branches: Vec<String> = self.branches.iter().map(|g| format!("{g}")).collect();
        format!("branches=[{}]", branches.join(", "))
    }
}

/// The results of the branch whose number `index` is, an i32 scalar; of the last branch if there
/// is none of that number. Source: StableHLO `case`.
///
/// # Errors
/// If the branches' types differ or do not fit the operands.
pub fn cond(index: &Value, branches: &[Arc<Graph>], operands: &[Value]) -> Result<Values> {
    let operands: Values = std::iter::once(index).chain(operands).cloned().collect();
    bind(&Cond { branches: branches.to_vec() }, &operands)
}
