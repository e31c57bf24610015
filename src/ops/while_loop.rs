//! `while`: a graph applied to its own results as long as another graph says so.

use super::call::{batch_key, batched, key};
use super::create::or_zeros;
use super::region::{batch_avals, chosen, front, graph_of, in_front, misfit, padded};
use super::{broadcast_in_dim, reduce_or, select};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::trace::batch::BatchAxis;
use crate::trace::graph::Graph;
use crate::trace::jvp::{self, Jvp};
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, RunGraph, Tangent, Tangents};
use crate::trace::{Trace, Value, Values, bind};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// The primitive `while`. Its operands are what `cond` reads besides the carry, what `body` reads
/// besides the carry, and the carry; its results are the last carry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct While {
    /// From its constants and the carry to whether the loop goes on.
    pub cond: Arc<Graph>,
    /// From its constants and the carry to the next carry.
    pub body: Arc<Graph>,
    /// How many constants `cond` has.
    pub cond_consts: usize,
    /// How many constants `body` has.
    pub body_consts: usize,
}

/// The loop with tangents.
struct Derived {
    cond: Arc<Graph>,
    body: Arc<Graph>,
    /// Which carries have a tangent.
    active: Vec<bool>,
}

/// The loop over a batch.
struct Batched {
    cond: Arc<Graph>,
    body: Arc<Graph>,
    /// Which carries are mapped.
    mapped: Vec<bool>,
    /// Whether `body` reads the constants of `cond` too.
    own_time: bool,
}

impl While {
    /// The operands of each kind.
    fn parts<'a, T>(&self, operands: &'a [T]) -> (&'a [T], &'a [T], &'a [T]) {
        let (cond, rest) = operands.split_at(self.cond_consts);
        let (body, carry) = rest.split_at(self.body_consts);
        (cond, body, carry)
    }

    fn next<'a, T: Clone>(consts: &'a [T], carry: &'a [T]) -> Vec<T> {
        consts.iter().chain(carry).cloned().collect()
    }

    /// The body's results and the tangents of those that have one.
    fn body_jvp(&self, primals: &[Value], tangents: &Tangents) -> Result<(Values, Tangents)> {
        let guard = Trace::start(Box::new(Jvp { name: "jvp" }));
        let pairs = primals.iter().zip(tangents);
        let inputs: Values =
            pairs.map(|(p, t)| jvp::join(guard.trace(), p.clone(), t.clone())).collect();
        let outs = guard.enter(|| self.body.run(&inputs))?;
        Ok(outs.iter().map(|v| jvp::split(guard.trace(), v)).unzip())
    }

    /// The body with the tangents of active constants after the constants, and those of active
    /// carries after the carry; and which results have a tangent.
    fn body_with(&self, consts: &[bool], active: &[bool]) -> Result<(Arc<Graph>, Vec<bool>)> {
        let ins = self.body.in_avals();
        let (const_avals, carry_avals) = ins.split_at(self.body_consts);
        let (const_ts, carry_ts) = (chosen(const_avals, consts), chosen(carry_avals, active));
        let all: Avals = const_avals
            .iter()
            .chain(&const_ts)
            .chain(carry_avals)
            .chain(&carry_ts)
            .cloned()
            .collect();
        let mut has = Vec::new();
        let graph = graph_of(&all, |values| {
            let (c, rest) = values.split_at(const_avals.len());
            let (ct, rest) = rest.split_at(const_ts.len());
            let (x, xt) = rest.split_at(carry_avals.len());
            let mut ts = ct.iter().chain(xt).cloned();
            let flags = consts.iter().chain(active);
            let ts: Tangents = flags.map(|f| if *f { ts.next() } else { None }).collect();
            let (mut outs, ts) = self.body_jvp(&While::next(c, x), &ts)?;
            has = ts.iter().map(Option::is_some).collect();
            outs.extend(padded(carry_avals, active, &has, ts.into_iter().flatten())?);
            Ok(outs)
        })?;
        Ok((graph, has))
    }

    fn derive(&self, consts: &[bool], active: &[bool]) -> Result<Derived> {
        let mut active = active.to_vec();
        let body = loop {
            let (graph, has) = self.body_with(consts, &active)?;
            if !grow(&mut active, &has) {
                break graph;
            }
        };
        let ins = self.cond.in_avals();
        let carry_ts = chosen(&ins[self.cond_consts..], &active);
        let all: Avals = ins.iter().chain(&carry_ts).cloned().collect();
        let cond = graph_of(&all, |values| self.cond.run(&values[..ins.len()]))?;
        Ok(Derived { cond, body, active })
    }

    /// The loop over a batch; `consts` says which constants are mapped over axis 0.
    fn batched(&self, batch: &BatchAxis, consts: &[bool], carry: &[bool]) -> Result<Batched> {
        let mut mapped = carry.to_vec();
        let (cond_consts, body_consts) = consts.split_at(self.cond_consts);
        let ins = |graph: &Graph, consts: &[bool], mapped: &[bool]| {
            let flags = While::next(consts, mapped);
            (batch_avals(batch.size, &graph.in_avals(), &flags), front(&flags))
        };
        let mut own_time = false;
        let (cond, body, out_axes) = loop {
            let (avals, axes) = ins(&self.cond, cond_consts, &mapped);
            let (cond, pred) = batched(&self.cond, batch, &avals, &axes)?;
            own_time |= pred[0].is_some();
            let (avals, axes) = ins(&self.body, body_consts, &mapped);
            let (body, out_axes) = batched(&self.body, batch, &avals, &axes)?;
            let has: Vec<bool> = out_axes.iter().map(|a| own_time || a.is_some()).collect();
            if !grow(&mut mapped, &has) {
                break (cond, body, out_axes);
            }
        };
        let n = self.cond_consts;
        let body_ins = body.in_avals();
        if !own_time {
            let body =
                graph_of(&body_ins, |xs| in_front(batch.size, &body.run(xs)?, &out_axes, &mapped));
            return Ok(Batched { cond, body: body?, mapped, own_time });
        }
        // Each example stops at its own time: the loop goes on while one of them does, and those
        // that are done keep their carry.
        let any =
            graph_of(&cond.in_avals(), |xs| Ok(smallvec![reduce_or(&cond.run(xs)?[0], &[0])?]))?;
        let all: Avals = cond.in_avals()[..n].iter().chain(&body_ins).cloned().collect();
        let body = graph_of(&all, |xs| {
            let (cc, rest) = xs.split_at(n);
            let old = &rest[self.body_consts..];
            let goes_on = &cond.run(&While::next(cc, old))?[0];
            let new = in_front(batch.size, &body.run(rest)?, &out_axes, &mapped)?;
            let keep = |(new, old): (&Value, &Value)| {
                select(&broadcast_in_dim(goes_on, new.shape(), &[0])?, new, old)
            };
            new.iter().zip(old).map(keep).collect()
        })?;
        Ok(Batched { cond: any, body, mapped, own_time })
    }
}

/// Adds the flags of `more`; whether that changed anything.
pub(super) fn grow(flags: &mut [bool], more: &[bool]) -> bool {
    let mut grown = false;
    for (flag, more) in flags.iter_mut().zip(more) {
        grown |= *more && !*flag;
        *flag |= *more;
    }
    grown
}

impl Primitive for While {
    fn name(&self) -> &'static str {
        "while"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (cc, bc, carry) = self.parts(operands);
        for (what, graph, consts) in
            [("the condition takes", &self.cond, cc), ("the body takes", &self.body, bc)]
        {
            let have = While::next(consts, carry);
            if graph.in_avals().as_slice() != have {
                return Err(misfit("while", what, &graph.in_avals(), &have));
            }
        }
        if self.cond.out_avals().as_slice() != [Aval::scalar(DType::Bool)] {
            let what = "the condition has to give one bool scalar";
            return Err(Error::new(ErrorKind::DType, "while", what));
        }
        if self.body.out_avals().as_slice() != carry {
            return Err(misfit("while", "the body gives", &self.body.out_avals(), carry)
                .help("let the body give the carry's shapes and dtypes"));
        }
        Ok(carry.iter().cloned().collect())
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        // All is carried, for a region that reads values from outside is not taken everywhere.
        let avals: Avals = operands.iter().map(|v| v.aval().clone()).collect();
        let cond = cx.region(&avals, |cx, xs| {
            let (cc, _, carry) = self.parts(xs);
            cx.inline(&self.cond, &While::next(cc, carry))
        })?;
        let body = cx.region(&avals, |cx, xs| {
            let (cc, bc, carry) = self.parts(xs);
            let next = cx.inline(&self.body, &While::next(bc, carry))?;
            Ok(cc.iter().chain(bc).cloned().chain(next).collect())
        })?;
        let outs = cx.op_with_regions("stablehlo.while", operands, "", &[cond, body], &avals);
        Ok(self.parts(&outs).2.to_vec())
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        let (cc, bc, carry) = self.parts(operands);
        let mut carry = carry.to_vec();
        while self.cond.host(&While::next(cc, &carry))?[0].scalar()?.to_i64() != 0 {
            carry = self.body.host(&While::next(bc, &carry))?;
        }
        Ok(carry)
    }

    fn open(&self, operands: &[Value], run: RunGraph<'_>) -> Result<Option<Values>> {
        let (cc, bc, carry) = self.parts(operands);
        let mut carry: Values = carry.iter().cloned().collect();
        for round in 0usize.. {
            let place = |e: Error| e.note(format!("in round {round} of a `while`"));
            let test = run(&self.cond, &While::next(cc, &carry)).map_err(place)?;
            if test[0].array("while")?.to_host()?.scalar()?.to_i64() == 0 {
                break;
            }
            carry = run(&self.body, &While::next(bc, &carry)).map_err(place)?;
        }
        Ok(Some(carry))
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let (cc, bc, carry) = self.parts(primals);
        let (_, bt, ct) = self.parts(tangents);
        let has = |ts: &[Tangent]| ts.iter().map(Option::is_some).collect::<Vec<bool>>();
        let (consts, active) = (has(bt), has(ct));
        let numbers = std::iter::once(self.cond.id() as usize);
        let numbers = numbers.chain(consts.iter().chain(&active).map(|&a| usize::from(a)));
        let made =
            self.body.derived(key("while_jvp", numbers), || self.derive(&consts, &active))?;
        let mut operands: Values = cc.iter().chain(bc).cloned().collect();
        operands.extend(bt.iter().flatten().cloned());
        operands.extend(carry.iter().cloned());
        for ((x, t), active) in carry.iter().zip(ct).zip(&made.active) {
            if *active {
                operands.push(or_zeros(t, x.aval())?);
            }
        }
        let prim = While {
            cond: Arc::clone(&made.cond),
            body: Arc::clone(&made.body),
            cond_consts: self.cond_consts,
            body_consts: self.body_consts + bt.iter().flatten().count(),
        };
        let mut outs = bind(&prim, &operands)?;
        let mut ts = outs.drain(carry.len()..).collect::<Values>().into_iter();
        if tangents.iter().flatten().any(on_tape) {
            // On a tape the values must not depend on the tangents.
            outs = bind(self, primals)?;
        }
        let ts = made.active.iter().map(|a| if *a { ts.next() } else { None }).collect();
        Ok((outs, ts))
    }

    fn transpose(&self, _: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        let text = "a loop of unknown length has no reverse derivative";
        Err(Error::new(ErrorKind::NoRule, "while", text).help(
            "use `scan`, or `fori_loop` with numbers as bounds; `jvp` works through `while_loop`",
        ))
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let flags: Vec<bool> = axes.iter().map(Option::is_some).collect();
        let (consts, carry) = flags.split_at(self.cond_consts + self.body_consts);
        let batch = batch.seen_by([&self.cond, &self.body]);
        let numbers = flags.iter().map(|&f| usize::from(f));
        let numbers = std::iter::once(self.cond.id() as usize).chain(numbers);
        let key = batch_key("while_batch", &batch, numbers);
        let made = self.body.derived(key, || self.batched(&batch, consts, carry))?;
        let all = While::next(consts, &made.mapped);
        let values = in_front(batch.size, operands, axes, &all)?;
        let (cc, bc, carry) = self.parts(&values);
        let again = if made.own_time { cc } else { &[] };
        let inputs: Values = cc.iter().chain(again).chain(bc).chain(carry).cloned().collect();
        let prim = While {
            cond: Arc::clone(&made.cond),
            body: Arc::clone(&made.body),
            cond_consts: self.cond_consts,
            body_consts: self.body_consts + again.len(),
        };
        Ok((bind(&prim, &inputs)?, front(&made.mapped).into_iter().collect()))
    }

    fn graphs(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        smallvec![&self.cond, &self.body]
    }

    fn params(&self) -> String {
        format!(
            "cond_consts={}, body_consts={}, cond={}, body={}",
            self.cond_consts, self.body_consts, self.cond, self.body
        )
    }
}

/// Whether a tangent is a variable of the tape of reverse derivatives.
fn on_tape(tangent: &Value) -> bool {
    match tangent {
        Value::Tracer(tracer) => tracer.trace().interpreter().as_linear().is_some(),
        Value::Array(_) => false,
    }
}

/// The last carry of the loop that applies `body` to its constants and the carry as long as `cond`
/// of its constants and the carry holds. Source: StableHLO `while`.
///
/// # Errors
/// If the graphs' types do not fit the operands.
pub fn while_loop(
    (cond, cond_consts): (&Arc<Graph>, &[Value]),
    (body, body_consts): (&Arc<Graph>, &[Value]),
    carry: &[Value],
) -> Result<Values> {
    let operands: Values = cond_consts.iter().chain(body_consts).chain(carry).cloned().collect();
    let prim = While {
        cond: Arc::clone(cond),
        body: Arc::clone(body),
        cond_consts: cond_consts.len(),
        body_consts: body_consts.len(),
    };
    bind(&prim, &operands)
}
