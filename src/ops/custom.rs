//! Functions whose derivative is given: `custom_jvp`, `custom_vjp`.
//!
//! The function and its rules are graphs. What they read besides the operands stands in front of the
//! operands, as constants: those of the function first, then those of each rule.

use super::call::{Call, Split, batch_key, batched, key, residuals_at, run_open, split_by};
use super::create::or_zeros;
use super::region::{batch_avals, chosen, front, graph_of, in_front, misfit};
use super::{move_batch_axis, reduce_sum, zeros};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::mesh::Mesh;
use crate::ops::ARITHMETIC;
use crate::trace::batch::BatchAxis;
use crate::trace::graph::{Atom, Graph};
use crate::trace::linear::{linearize_rule, not_linear};
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// The primitive `custom_jvp`: a function with the rule for its forward derivative. Operands are
/// the function's constants, the rule's, and what both take.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomJvp {
    /// From the function's constants and the operands to the results.
    pub call: Arc<Graph>,
    /// From the rule's constants, the operands and the tangents of those that have a derivative to
    /// the results and the tangents of those that have one.
    pub rule: Arc<Graph>,
    /// How many operands are constants of the function.
    pub call_consts: usize,
    /// How many operands are constants of the rule.
    pub rule_consts: usize,
}

/// Which types have a derivative.
fn floats(avals: &[Aval]) -> Vec<bool> {
    avals.iter().map(|aval| aval.dtype().is_differentiable()).collect()
}

/// The types that have a derivative.
fn float_avals(avals: &[Aval]) -> Vec<Aval> {
    chosen(avals, &floats(avals))
}

/// One tangent for each result, the next of `made` for those that have a derivative.
fn spread(outs: &[Aval], made: impl IntoIterator<Item = Tangent>) -> Tangents {
    let mut made = made.into_iter();
    floats(outs).into_iter().map(|f| if f { made.next().flatten() } else { None }).collect()
}

/// The graph whose results are mapped where `mapped` holds, over the axis in front.
fn aligned(
    size: usize,
    graph: &Graph,
    axes: &[Option<usize>],
    mapped: &[bool],
) -> Result<Arc<Graph>> {
    graph_of(&graph.in_avals(), |xs| in_front(size, &graph.run(xs)?, axes, mapped))
}

/// The graph over a batch of operands in front where `flags` holds, and the axes of its results.
fn over_batch(
    batch: &BatchAxis,
    graph: &Graph,
    flags: &[bool],
) -> Result<(Arc<Graph>, Vec<Option<usize>>)> {
    batched(graph, batch, &batch_avals(batch.size, &graph.in_avals(), flags), &front(flags))
}

#[cold]
fn closed_over(op: &'static str) -> Error {
    let text = "is differentiated in a value that the function captures, of which its rule knows \
                nothing";
    Error::new(ErrorKind::NoRule, op, text).help("make the value a part of the argument")
}

/// Checks that the operands are those of a graph.
fn check_operands(op: &'static str, graph: &Graph, have: &[Aval]) -> Result<()> {
    let wants = graph.in_avals();
    if wants.as_slice() == have { Ok(()) } else { Err(misfit(op, "takes", &wants, have)) }
}

/// Checks the types of a rule.
fn check_rule(op: &'static str, rule: &Graph, ins: &[Aval], outs: &[Aval]) -> Result<()> {
    if rule.in_avals().as_slice() != ins {
        return Err(misfit(op, "the rule takes", &rule.in_avals(), ins));
    }
    if rule.out_avals().as_slice() != outs {
        return Err(misfit(op, "the rule gives", &rule.out_avals(), outs));
    }
    Ok(())
}

impl CustomJvp {
    /// The function's operands.
    fn of_call<T: Clone>(&self, operands: &[T]) -> Vec<T> {
        let xs = &operands[self.call_consts + self.rule_consts..];
        operands[..self.call_consts].iter().chain(xs).cloned().collect()
    }

    /// Runs the rule in the current trace.
    fn run_rule(&self, inputs: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let mut operands: Values = inputs.iter().cloned().collect();
        for (x, t) in inputs.iter().zip(tangents).skip(self.rule_consts) {
            if x.dtype().is_differentiable() {
                operands.push(or_zeros(t, &x.aval().unsharded())?);
            }
        }
        let mut outs = run_open(&self.rule, &operands)?;
        let made = outs.drain(self.call.outputs().len()..).map(Some).collect::<Tangents>();
        Ok((outs, made))
    }

    /// The rule in its two parts: what is known, and what is linear in the active tangents.
    fn split(&self, active: &[bool]) -> Result<Split> {
        let ins = &self.rule.in_avals()[..active.len()];
        split_by(ins, active, |primals, active| {
            linearize_rule(primals, active, ARITHMETIC, |xs, ts| self.run_rule(xs, ts))
        })
    }

    /// The function and the rule over a batch in front where `flags` holds, and which results are
    /// mapped.
    fn batched(&self, batch: &BatchAxis, flags: &[bool]) -> Result<(CustomJvp, Vec<bool>)> {
        let xs = &flags[self.call_consts + self.rule_consts..];
        let ins = self.rule.in_avals();
        let ts = chosen(xs, &floats(&ins[self.rule_consts..self.rule_consts + xs.len()]));
        let (call, axes) = over_batch(batch, &self.call, &self.of_call(flags))?;
        let rule_flags = [&flags[self.call_consts..], &ts].concat();
        let (rule, rule_axes) = over_batch(batch, &self.rule, &rule_flags)?;
        let float = floats(&self.call.out_avals());
        let (outs, mut tangents) = (axes.len(), rule_axes[axes.len()..].iter());
        let mut mapped = Vec::new();
        for i in 0..outs {
            let tangent = float[i] && tangents.next().is_some_and(Option::is_some);
            mapped.push(tangent || axes[i].is_some() || rule_axes[i].is_some());
        }
        let rule_mapped = [&mapped[..], &chosen(&mapped, &float)].concat();
        let call = aligned(batch.size, &call, &axes, &mapped)?;
        let rule = aligned(batch.size, &rule, &rule_axes, &rule_mapped)?;
        Ok((CustomJvp { call, rule, ..*self }, mapped))
    }
}

impl Primitive for CustomJvp {
    fn name(&self) -> &'static str {
        "custom_jvp"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        check_operands("custom_jvp", &self.call, &self.of_call(operands))?;
        let outs = self.call.out_avals();
        let xs = &operands[self.call_consts + self.rule_consts..];
        let ins = [&operands[self.call_consts..], &float_avals(xs)].concat();
        check_rule("custom_jvp", &self.rule, &ins, &[&outs[..], &float_avals(&outs)].concat())?;
        Ok(outs)
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        cx.inline(&self.call, &self.of_call(operands))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        self.call.host(&self.of_call(operands))
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        if tangents[..self.call_consts].iter().any(Option::is_some) {
            return Err(closed_over("custom_jvp"));
        }
        // The results do not depend on the rule's constants.
        let (inputs, mut ts) =
            (&primals[self.call_consts..], tangents[self.call_consts..].to_vec());
        ts[..self.rule_consts].fill(None);
        let outs = self.call.out_avals();
        let active: Vec<bool> = ts.iter().map(Option::is_some).collect();
        if !active.contains(&true) {
            return Ok((bind(self, primals)?, outs.iter().map(|_| None).collect()));
        }
        let numbers = active.iter().map(|&a| usize::from(a));
        let numbers = [self.rule_consts, outs.len()].into_iter().chain(numbers);
        let (values, made) =
            match self.rule.derived(key("rule_split", numbers), || self.split(&active)) {
                Ok(split) => {
                    let call = Call::new("custom_jvp", Arc::clone(&split.forward), true);
                    split.apply(&call, inputs, ts.iter().flatten().cloned())?
                }
                // An operation of the rule has known and linear results: forward mode has them.
                Err(error) if *error.kind() == ErrorKind::NotLinear => {
                    let (values, made) = self.run_rule(inputs, &ts)?;
                    if values.iter().any(Value::is_linear) && !inputs.iter().any(Value::is_linear) {
                        return Err(error.in_op("custom_jvp"));
                    }
                    (values, made)
                }
                Err(error) => return Err(error),
            };
        Ok((values, spread(&outs, made)))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        // A linear function is its own derivative.
        let call = Call::new("custom_jvp", Arc::clone(&self.call), true);
        let mut out = call.transpose(cts, &self.of_call(operands))?;
        out.insert_many(self.call_consts, (0..self.rule_consts).map(|_| None));
        Ok(out)
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let flags: Vec<bool> = axes.iter().map(Option::is_some).collect();
        let numbers = [self.rule.id() as usize, self.call_consts, self.rule_consts];
        let numbers = numbers.into_iter().chain(flags.iter().map(|&f| usize::from(f)));
        let batch = batch.seen_by(self.graphs());
        let key = batch_key("custom_jvp_batch", &batch, numbers);
        let made = self.call.derived(key, || self.batched(&batch, &flags))?;
        let outs = bind(&made.0, &in_front(batch.size, operands, axes, &flags)?)?;
        Ok((outs, front(&made.1).into_iter().collect()))
    }

    fn params(&self) -> String {
        format!("call={}, rule={}", self.call, self.rule)
    }

    fn graphs(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        smallvec![&self.call, &self.rule]
    }

    fn mesh(&self) -> Option<&Mesh> {
        self.call.mesh()
    }
}

/// The primitive `custom_vjp`: a function with the rule for its reverse derivative. Operands are the
/// constants of the function, of `fwd` and of `bwd`, and what the function takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomVjp {
    /// From the function's constants and the operands to the results.
    pub call: Arc<Graph>,
    /// From its constants and the operands to the results, then the residuals.
    pub fwd: Arc<Graph>,
    /// From its constants, the residuals and the cotangents of those results that have a derivative
    /// to the cotangents of those operands that have one.
    pub bwd: Arc<Graph>,
    /// How many operands are constants of the function, of `fwd` and of `bwd`.
    pub consts: [usize; 3],
}

/// `fwd` without those residuals that are its operands.
struct Forward {
    graph: Arc<Graph>,
    /// For each residual the operand that it is, or none for the next result of the graph.
    places: Vec<Option<usize>>,
}

impl CustomVjp {
    /// The constants of the function, of `fwd`, of `bwd`, and the operands of the function.
    fn parts<'a, T>(&self, operands: &'a [T]) -> [&'a [T]; 4] {
        let (call, rest) = operands.split_at(self.consts[0]);
        let (fwd, rest) = rest.split_at(self.consts[1]);
        let (bwd, xs) = rest.split_at(self.consts[2]);
        [call, fwd, bwd, xs]
    }

    /// The function's operands.
    fn of_call<T: Clone>(&self, operands: &[T]) -> Vec<T> {
        let [consts, .., xs] = self.parts(operands);
        consts.iter().chain(xs).cloned().collect()
    }

    fn forward(&self) -> Result<Forward> {
        let (outputs, outs) = (self.fwd.outputs(), self.call.outputs().len());
        let place = |atom: &Atom| match atom {
            Atom::Var(v) => self.fwd.inputs().iter().position(|input| input == v),
            Atom::Literal(_) => None,
        };
        let places: Vec<Option<usize>> = outputs[outs..].iter().map(place).collect();
        let graph = graph_of(&self.fwd.in_avals(), |xs| {
            let all = self.fwd.run(xs)?;
            let kept = places.iter().zip(&all[outs..]).filter(|(place, _)| place.is_none());
            Ok(all[..outs].iter().chain(kept.map(|(_, value)| value)).cloned().collect())
        })?;
        Ok(Forward { graph, places })
    }

    /// All three graphs over a batch in front where `flags` holds, and which results are mapped.
    fn batched(&self, batch: &BatchAxis, flags: &[bool]) -> Result<(CustomVjp, Vec<bool>)> {
        let [_, fwd_flags, bwd_flags, xs] = self.parts(flags);
        let (call, axes) = over_batch(batch, &self.call, &self.of_call(flags))?;
        let (fwd, fwd_axes) = over_batch(batch, &self.fwd, &[fwd_flags, xs].concat())?;
        let outs = axes.len();
        let mapped: Vec<bool> =
            (0..outs).map(|i| axes[i].is_some() || fwd_axes[i].is_some()).collect();
        let residuals: Vec<bool> = fwd_axes[outs..].iter().map(Option::is_some).collect();
        let cts = chosen(&mapped, &floats(&self.call.out_avals()));
        let (bwd, bwd_axes) =
            over_batch(batch, &self.bwd, &[bwd_flags, &residuals, &cts].concat())?;
        let avals = self.fwd.in_avals();
        let wanted = chosen(xs, &floats(&avals[self.consts[1]..]));
        let bwd = graph_of(&bwd.in_avals(), |values| {
            let made = bwd.run(values)?;
            let place = |((x, axis), wanted): ((&Value, &Option<usize>), &bool)| {
                match (wanted, axis) {
                    (true, axis) => move_batch_axis(batch.size, x, *axis, 0),
                    // All examples share the operand, which gets the sum of what they give.
                    (false, Some(axis)) => reduce_sum(x, &[*axis]),
                    (false, None) => Ok(x.clone()),
                }
            };
            made.iter().zip(&bwd_axes).zip(&wanted).map(place).collect()
        })?;
        let call = aligned(batch.size, &call, &axes, &mapped)?;
        let fwd = aligned(batch.size, &fwd, &fwd_axes, &[&mapped[..], &residuals].concat())?;
        Ok((CustomVjp { call, fwd, bwd, consts: self.consts }, mapped))
    }
}

impl Primitive for CustomVjp {
    fn name(&self) -> &'static str {
        "custom_vjp"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        check_operands("custom_vjp", &self.call, &self.of_call(operands))?;
        let [_, fwd, bwd, xs] = self.parts(operands);
        let (outs, made) = (self.call.out_avals(), self.fwd.out_avals());
        let residuals = made.get(outs.len()..).unwrap_or_default();
        check_rule("custom_vjp", &self.fwd, &[fwd, xs].concat(), &[&outs[..], residuals].concat())?;
        let ins = [bwd, residuals, &float_avals(&outs)].concat();
        check_rule("custom_vjp", &self.bwd, &ins, &float_avals(xs))?;
        Ok(outs)
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        cx.inline(&self.call, &self.of_call(operands))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        self.call.host(&self.of_call(operands))
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let [call_ts, fwd_ts, _, ts] = self.parts(tangents);
        if call_ts.iter().chain(fwd_ts).any(Option::is_some) {
            return Err(closed_over("custom_vjp"));
        }
        let outs = self.call.out_avals();
        if ts.iter().all(Option::is_none) {
            return Ok((bind(self, primals)?, outs.iter().map(|_| None).collect()));
        }
        let numbers = [outs.len()];
        let forward = self.fwd.derived(key("custom_vjp_fwd", numbers), || self.forward())?;
        let [_, fwd, bwd, xs] = self.parts(primals);
        let inputs: Values = fwd.iter().chain(xs).cloned().collect();
        let mut values = bind(&Call::new("custom_vjp", Arc::clone(&forward.graph), true), &inputs)?;
        let made = values.drain(outs.len()..);
        let mut operands: Values = bwd.iter().cloned().collect();
        operands.extend(residuals_at(&forward.places, &inputs, made));
        let known = operands.len();
        operands.extend(ts.iter().flatten().cloned());
        let active = ts.iter().zip(xs).filter(|(_, x)| x.dtype().is_differentiable());
        let linear = CustomVjpLinear {
            bwd: Arc::clone(&self.bwd),
            known,
            active: active.map(|(t, _)| t.is_some()).collect(),
        };
        let made = bind(&linear, &operands)?.into_iter().map(Some);
        Ok((values, spread(&outs, made)))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        // A linear function is its own derivative.
        let call = Call::new("custom_vjp", Arc::clone(&self.call), true);
        let mut out = call.transpose(cts, &self.of_call(operands))?;
        out.insert_many(self.consts[0], (0..self.consts[1] + self.consts[2]).map(|_| None));
        Ok(out)
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let flags: Vec<bool> = axes.iter().map(Option::is_some).collect();
        let ids = [self.fwd.id() as usize, self.bwd.id() as usize];
        let numbers = ids.into_iter().chain(self.consts);
        let numbers = numbers.chain(flags.iter().map(|&f| usize::from(f)));
        let batch = batch.seen_by(self.graphs());
        let key = batch_key("custom_vjp_batch", &batch, numbers);
        let made = self.call.derived(key, || self.batched(&batch, &flags))?;
        let outs = bind(&made.0, &in_front(batch.size, operands, axes, &flags)?)?;
        Ok((outs, front(&made.1).into_iter().collect()))
    }

    fn params(&self) -> String {
        format!("call={}, fwd={}, bwd={}", self.call, self.fwd, self.bwd)
    }

    fn graphs(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        smallvec![&self.call, &self.fwd, &self.bwd]
    }

    fn mesh(&self) -> Option<&Mesh> {
        self.call.mesh()
    }
}

/// The primitive `custom_vjp_linear`: the derivative of [`CustomVjp`], known by its transpose alone.
/// Operands are the constants of `bwd`, the residuals, and the active tangents; the results are the
/// tangents of those results that have one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomVjpLinear {
    bwd: Arc<Graph>,
    /// How many operands are constants of `bwd` or residuals.
    known: usize,
    /// For each operand of the function that has a derivative whether its tangent is there.
    active: Vec<bool>,
}

#[cold]
fn reverse_only() -> Error {
    let text = "has a rule for reverse mode only, but its forward derivative is asked for";
    Error::new(ErrorKind::NoRule, "custom_vjp", text)
        .help("use `custom_jvp`, whose rule serves both modes")
}

impl Primitive for CustomVjpLinear {
    fn name(&self) -> &'static str {
        "custom_vjp_linear"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let wants = self.bwd.in_avals();
        let active = chosen(&self.bwd.out_avals(), &self.active);
        let have = [&wants[..self.known], &active].concat();
        if have != operands {
            return Err(misfit("custom_vjp", "takes", &have, operands));
        }
        Ok(wants[self.known..].iter().cloned().collect())
    }

    fn lower(&self, _: &mut Lowering, _: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        Err(reverse_only())
    }

    fn host(&self, _: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Err(reverse_only())
    }

    fn jvp(&self, _: &[Value], _: &[Tangent]) -> Result<(Values, Tangents)> {
        Err(reverse_only())
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let (known, linear) = operands.split_at(self.known);
        let mut inputs = Values::new();
        for operand in known {
            inputs.push(operand.known().cloned().ok_or_else(|| not_linear(self))?);
        }
        for (ct, aval) in cts.iter().zip(&self.bwd.in_avals()[self.known..]) {
            inputs.push(or_zeros(ct, aval)?);
        }
        let made = bind(&Call::new("custom_vjp", Arc::clone(&self.bwd), true), &inputs)?;
        let made = made.into_iter().zip(&self.active).filter(|(_, a)| **a);
        let none = known.iter().map(|_| None);
        Ok(none.chain(made.map(|(ct, _)| Some(ct))).take(known.len() + linear.len()).collect())
    }

    fn batch(
        &self,
        _: &BatchAxis,
        _: &[Value],
        _: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        Err(reverse_only())
    }

    fn params(&self) -> String {
        format!("bwd={}", self.bwd)
    }
}

/// One value for each type: the next of `given` for those that have a derivative, zeros for the
/// others.
///
/// # Errors
/// If the backend fails.
pub fn with_zeros(avals: &[Aval], given: &[Value]) -> Result<Values> {
    let mut given = given.iter();
    let one = |aval: &Aval| match aval.dtype().is_differentiable() {
        true => given.next().cloned().map_or_else(|| zeros(aval), Ok),
        false => zeros(aval),
    };
    avals.iter().map(one).collect()
}
