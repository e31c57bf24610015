//! Recording what is linear in a tangent, and running it backwards.
//!
//! Reverse mode is forward mode whose tangents are variables of a [`LinearTape`]: every rule's
//! operations on known values run at once in the trace around it, and only those that touch a
//! tangent are written down, with the known operands beside them. [`LinearTape::transpose`] then goes over the
//! tape in reverse.

use super::graph::{Atom, Graph, Var};
use super::primitive::{Operand, Primitive, Tangent, Tangents};
use super::source::{self, Place};
use super::{Interpreter, Payload, Trace, Value, Values, bind, current};
use crate::aval::{Aval, Avals};
use crate::error::{Error, ErrorKind, Result};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, MutexGuard};

/// The two operations that running a tape needs itself; `ops` gives them.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic {
    /// The sum of two cotangents of one value.
    pub add: fn(&Value, &Value) -> Result<Value>,
    /// Zeros of a type.
    pub zeros: fn(&Aval) -> Result<Value>,
}

/// An operand on the tape.
#[derive(Clone, Debug)]
pub enum Input {
    /// A linear variable.
    Var(Var),
    /// A value from outside: a residual.
    Known(Value),
}

/// One operation that touches a linear variable.
#[derive(Clone, Debug)]
pub struct LinearEqn {
    prim: Arc<dyn Primitive>,
    inputs: SmallVec<[Input; 2]>,
    outputs: SmallVec<[Var; 1]>,
    at: Option<Place>,
}

/// Operations in order, all linear in the tape's variables.
#[derive(Clone, Debug, Default)]
pub struct LinearTape {
    avals: Vec<Aval>,
    eqns: Vec<LinearEqn>,
}

impl LinearTape {
    pub(super) fn var(&mut self, aval: Aval) -> Var {
        self.avals.push(aval);
        (self.avals.len() - 1) as Var
    }

    /// The values from outside that it holds.
    pub(super) fn knowns(&self) -> impl Iterator<Item = &Value> {
        self.eqns.iter().flat_map(|eqn| &eqn.inputs).filter_map(|input| match input {
            Input::Known(value) => Some(value),
            Input::Var(_) => None,
        })
    }

    /// Runs the tape forward for the given values of variables.
    ///
    /// # Errors
    /// What a rule says.
    pub fn run(
        &self,
        inputs: &[(Var, Value)],
        outputs: &[Input],
        with: Arithmetic,
    ) -> Result<Values> {
        let mut env: Vec<Option<Value>> = vec![None; self.avals.len()];
        for (var, value) in inputs {
            env[*var as usize] = Some(value.clone());
        }
        let read = |env: &[Option<Value>], input: &Input| match input {
            Input::Known(value) => Ok(value.clone()),
            Input::Var(v) => match &env[*v as usize] {
                Some(value) => Ok(value.clone()),
                None => (with.zeros)(&self.avals[*v as usize]),
            },
        };
        for eqn in self.needed(outputs) {
            let operands = eqn.inputs.iter().map(|i| read(&env, i)).collect::<Result<Values>>()?;
            let outs = source::with(eqn.at, || bind(&*eqn.prim, &operands))?;
            for (&var, value) in eqn.outputs.iter().zip(outs) {
                env[var as usize] = Some(value);
            }
        }
        outputs.iter().map(|i| read(&env, i)).collect()
    }

    /// The operations that `outputs` depend on, in order.
    fn needed(&self, outputs: &[Input]) -> impl Iterator<Item = &LinearEqn> {
        let mut wanted = vec![false; self.avals.len()];
        let want = |wanted: &mut [bool], inputs: &[Input]| {
            for input in inputs {
                if let Input::Var(v) = input {
                    wanted[*v as usize] = true;
                }
            }
        };
        want(&mut wanted, outputs);
        let mut needed = vec![false; self.eqns.len()];
        for (eqn, needed) in self.eqns.iter().zip(&mut needed).rev() {
            *needed = eqn.outputs.iter().any(|&v| wanted[v as usize]);
            if *needed {
                want(&mut wanted, &eqn.inputs);
            }
        }
        self.eqns.iter().zip(needed).filter_map(|(eqn, needed)| needed.then_some(eqn))
    }

    /// The cotangents of `inputs` for the given cotangents of outputs: the tape run backwards.
    ///
    /// # Errors
    /// What a `transpose` rule says.
    pub fn transpose(
        &self,
        outputs: &[(Var, Value)],
        inputs: &[Var],
        with: Arithmetic,
    ) -> Result<Tangents> {
        let mut cts: Vec<Tangent> = vec![None; self.avals.len()];
        for (var, ct) in outputs {
            accumulate(&mut cts[*var as usize], ct, with)?;
        }
        for eqn in self.eqns.iter().rev() {
            let out_cts: Tangents = eqn.outputs.iter().map(|&v| cts[v as usize].take()).collect();
            if out_cts.iter().all(Option::is_none) {
                continue;
            }
            let operands: SmallVec<[Operand; 2]> =
                eqn.inputs.iter().map(|i| self.operand(i)).collect();
            source::with(eqn.at, || -> Result<()> {
                let in_cts = eqn.prim.transpose(&out_cts, &operands)?;
                for (input, ct) in eqn.inputs.iter().zip(in_cts) {
                    if let (Input::Var(v), Some(ct)) = (input, ct) {
                        accumulate(&mut cts[*v as usize], &ct, with)?;
                    }
                }
                Ok(())
            })?;
        }
        Ok(inputs.iter().map(|&v| cts[v as usize].take()).collect())
    }

    fn operand(&self, input: &Input) -> Operand {
        match input {
            Input::Known(value) => Operand::Known(value.clone()),
            Input::Var(v) => Operand::Linear(self.avals[*v as usize].clone()),
        }
    }

    /// The tape of a graph whose inputs are known or linear, for the operands given: what depends
    /// on known inputs alone is run at once. Gives the tape, the variables of the linear inputs
    /// and the outputs.
    ///
    /// # Errors
    /// What a rule says.
    pub fn of_graph(
        graph: &Graph,
        operands: &[Operand],
    ) -> Result<(LinearTape, Vec<Var>, Vec<Input>)> {
        let mut tape = LinearTape::default();
        let mut env: Vec<Option<Input>> = vec![None; graph.var_count()];
        let mut linear = Vec::new();
        for (&var, operand) in graph.inputs().iter().zip(operands) {
            env[var as usize] = Some(match operand {
                Operand::Known(value) => Input::Known(value.clone()),
                Operand::Linear(aval) => {
                    linear.push(tape.var(aval.clone()));
                    Input::Var(linear[linear.len() - 1])
                }
            });
        }
        let read = |env: &[Option<Input>], atom: &Atom| match atom {
            Atom::Literal(s) => Input::Known(Value::scalar(*s)),
            Atom::Var(v) => {
                env[*v as usize].clone().unwrap_or_else(|| unreachable!("checked graph"))
            }
        };
        for eqn in graph.eqns() {
            let inputs: SmallVec<[Input; 2]> = eqn.inputs.iter().map(|a| read(&env, a)).collect();
            let known: Option<Values> = inputs.iter().map(known).collect();
            let outs = source::with(eqn.at, || -> Result<SmallVec<[Input; 1]>> {
                let Some(values) = known else {
                    let avals = eqn.outputs.iter().map(|&v| graph.aval(v).clone()).collect();
                    let vars = tape.push(&eqn.prim, inputs, &avals);
                    return Ok(vars.into_iter().map(Input::Var).collect());
                };
                Ok(bind(&*eqn.prim, &values)?.into_iter().map(Input::Known).collect())
            })?;
            for (&var, out) in eqn.outputs.iter().zip(outs) {
                env[var as usize] = Some(out);
            }
        }
        let outputs = graph.outputs().iter().map(|a| read(&env, a)).collect();
        Ok((tape, linear, outputs))
    }

    fn push(
        &mut self,
        prim: &Arc<dyn Primitive>,
        inputs: SmallVec<[Input; 2]>,
        outs: &Avals,
    ) -> SmallVec<[Var; 1]> {
        let outputs: SmallVec<[Var; 1]> = outs.iter().map(|a| self.var(a.clone())).collect();
        let (prim, at) = (Arc::clone(prim), source::here());
        self.eqns.push(LinearEqn { prim, inputs, outputs: outputs.clone(), at });
        outputs
    }
}

fn known(input: &Input) -> Option<Value> {
    match input {
        Input::Known(value) => Some(value.clone()),
        Input::Var(_) => None,
    }
}

/// Adds a cotangent to what is there.
fn accumulate(slot: &mut Tangent, ct: &Value, with: Arithmetic) -> Result<()> {
    *slot = Some(match slot.take() {
        None => ct.clone(),
        Some(sum) => (with.add)(&sum, ct)?,
    });
    Ok(())
}

/// The interpreter that writes a [`LinearTape`].
#[derive(Debug, Default)]
pub struct Linear {
    tape: Mutex<LinearTape>,
}

impl Linear {
    /// Gives a place to the operations that were written last and have none.
    pub(super) fn label(&self, place: Place) {
        let mut tape = self.tape();
        let last = tape.eqns.iter_mut().rev().take_while(|eqn| eqn.at.is_none());
        last.for_each(|eqn| eqn.at = Some(place));
    }

    fn tape(&self) -> MutexGuard<'_, LinearTape> {
        self.tape.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A new variable, as a tracer of the `trace` that this interpreter belongs to.
    pub(super) fn variable(&self, trace: &Arc<Trace>, aval: Aval) -> Value {
        let var = self.tape().var(aval.clone());
        trace.tracer(aval, Payload::Var(var))
    }

    /// What was written so far.
    pub(super) fn take(&self) -> LinearTape {
        std::mem::take(&mut *self.tape())
    }
}

impl Interpreter for Linear {
    fn name(&self) -> &'static str {
        "grad"
    }

    fn process(
        &self,
        trace: &Arc<Trace>,
        prim: &dyn Primitive,
        operands: &[Value],
    ) -> Result<Values> {
        if !operands.iter().any(|v| trace.own(v).is_some()) {
            return trace.in_parent(|| bind(prim, operands));
        }
        let avals: Avals = operands.iter().map(|v| v.aval().unsharded()).collect();
        let outs = prim.infer(&avals)?;
        let inputs = operands.iter().map(|v| input(trace, v)).collect();
        let vars = self.tape().push(&prim.to_arc(), inputs, &outs);
        let values = vars.into_iter().zip(outs);
        Ok(values.map(|(v, aval)| trace.tracer(aval, Payload::Var(v))).collect())
    }

    fn leave(&self, value: &Value) -> Result<Value> {
        Ok(value.clone())
    }

    fn as_linear(&self) -> Option<&Linear> {
        Some(self)
    }
}

/// The value as an operand on the tape of `trace`.
pub(super) fn input(trace: &Arc<Trace>, value: &Value) -> Input {
    match trace.own(value) {
        Some(Payload::Var(var)) => Input::Var(*var),
        _ => Input::Known(value.clone()),
    }
}

/// A function evaluated at a point, with what is linear in its inputs' tangents on a tape.
#[derive(Debug)]
pub struct Linearized {
    /// The results.
    pub outputs: Values,
    tape: LinearTape,
    inputs: Vec<Option<Var>>,
    tangents: Vec<Option<Input>>,
    with: Arithmetic,
}

/// Runs `f` at `primals` and writes down what is linear in the tangents of those for which
/// `active` holds. Integer and bool inputs are never active. `name` is the user's name of the
/// transform.
///
/// # Errors
/// What `f` or a rule says.
pub fn linearize(
    name: &'static str,
    primals: &[Value],
    active: &[bool],
    with: Arithmetic,
    f: impl FnOnce(&[Value]) -> Result<Values>,
) -> Result<Linearized> {
    let outer = current();
    // The interpreter is read again through the trace that owns it.
    let linear = Trace::start_in(outer, Box::new(Linear::default()));
    let jvp = Trace::start_in(Some(Arc::clone(linear.trace())), Box::new(super::jvp::Jvp { name }));
    let mut tape = LinearTape::default();
    let mut inputs = Vec::new();
    let mut operands = Values::new();
    for (primal, &active) in primals.iter().zip(active) {
        if !active || !primal.dtype().is_differentiable() {
            inputs.push(None);
            operands.push(primal.clone());
            continue;
        }
        let aval = primal.aval().clone();
        let var = tape.var(aval.clone());
        inputs.push(Some(var));
        let tangent = linear.trace().tracer(aval, Payload::Var(var));
        operands.push(super::jvp::join(jvp.trace(), primal.clone(), Some(tangent)));
    }
    let Some(recorder) = linear_of(linear.trace()) else { unreachable!("made above") };
    *recorder.tape() = tape;
    let results = jvp.enter(|| f(&operands))?;
    let (outputs, tangents): (Values, Tangents) =
        results.iter().map(|v| super::jvp::split(jvp.trace(), v)).unzip();
    jvp.write_back()?;
    linear.write_back()?;
    let tangents = tangents.iter().map(|t| t.as_ref().map(|t| input(linear.trace(), t))).collect();
    let tape = std::mem::take(&mut *recorder.tape());
    Ok(Linearized { outputs, tape, inputs, tangents, with })
}

/// As [`linearize`], for a function that is given with its derivative: `f` takes primals and
/// tangents, of which the active ones are variables of the tape, and gives results and theirs.
///
/// # Errors
/// [`ErrorKind::NotLinear`] if a result depends on a tangent; what `f` says.
pub fn linearize_rule(
    primals: &[Value],
    active: &[bool],
    with: Arithmetic,
    f: impl FnOnce(&[Value], &[Tangent]) -> Result<(Values, Tangents)>,
) -> Result<Linearized> {
    let linear = Trace::start(Box::new(Linear::default()));
    let trace = linear.trace();
    let Some(recorder) = linear_of(trace) else { unreachable!("made above") };
    let mut inputs = Vec::new();
    let mut given = Tangents::new();
    for (primal, &active) in primals.iter().zip(active) {
        let aval = primal.aval().clone();
        let var = active.then(|| recorder.tape().var(aval.clone()));
        given.push(var.map(|var| trace.tracer(aval, Payload::Var(var))));
        inputs.push(var);
    }
    let (outputs, tangents) = linear.enter(|| f(primals, &given))?;
    linear.write_back()?;
    if outputs.iter().any(|out| trace.own(out).is_some()) {
        let text = "a result of the rule depends on a tangent, or an operation gives both at once";
        return Err(Error::new(ErrorKind::NotLinear, "grad", text));
    }
    let tangents = tangents.iter().map(|t| t.as_ref().map(|t| input(trace, t))).collect();
    let tape = std::mem::take(&mut *recorder.tape());
    Ok(Linearized { outputs, tape, inputs, tangents, with })
}

fn linear_of(trace: &Arc<Trace>) -> Option<&Linear> {
    trace.interpreter().as_linear()
}

impl Linearized {
    /// The tangents of the outputs for those of the inputs: the tape run forward.
    ///
    /// # Errors
    /// What a rule says.
    pub fn apply(&self, tangents: &[Tangent]) -> Result<Tangents> {
        let inputs = self.inputs.iter().zip(tangents);
        let inputs: Vec<_> = inputs.filter_map(|(v, t)| Some((((*v)?), t.clone()?))).collect();
        let wanted: Vec<Input> = self.tangents.iter().flatten().cloned().collect();
        let mut results = self.tape.run(&inputs, &wanted, self.with)?.into_iter();
        Ok(self.tangents.iter().map(|t| t.as_ref().and_then(|_| results.next())).collect())
    }

    /// The cotangents of the inputs for those of the outputs: the tape run backwards.
    ///
    /// # Errors
    /// What a rule says.
    pub fn transpose(&self, cts: &[Tangent]) -> Result<Tangents> {
        let outputs = self.tangents.iter().zip(cts);
        let outputs: Vec<_> = outputs
            .filter_map(|(t, ct)| match (t, ct) {
                (Some(Input::Var(v)), Some(ct)) => Some((*v, ct.clone())),
                _ => None,
            })
            .collect();
        let wanted: Vec<Var> = self.inputs.iter().flatten().copied().collect();
        let mut results = self.tape.transpose(&outputs, &wanted, self.with)?.into_iter();
        Ok(self.inputs.iter().map(|v| v.and_then(|_| results.next().flatten())).collect())
    }

    /// The same with the first `count` outputs alone.
    #[must_use]
    pub fn truncated(mut self, count: usize) -> Linearized {
        self.outputs.truncate(count);
        self.tangents.truncate(count);
        self
    }

    /// Which outputs depend on an active input.
    pub fn depends(&self) -> Vec<bool> {
        self.tangents.iter().map(Option::is_some).collect()
    }
}

/// The error of a primitive that is not linear in the operand asked for.
#[cold]
pub fn not_linear(prim: &dyn Primitive) -> Error {
    let text = "is not linear in the operand that it is transposed in";
    Error::new(ErrorKind::NotLinear, prim.name(), text)
}
