//! Rows of functions with derivatives of their own, and of those whose values are worked out again.

use super::{Case, arg};
use oxbridge::DType::*;
use oxbridge::ops::checkpoint::{Checkpoint, Policy, checkpoint_name};
use oxbridge::ops::custom::{CustomJvp, CustomVjp};
use oxbridge::ops::region::graph_of;
use oxbridge::trace::{Values, bind};
use oxbridge::{Aval, Result, Value, ops};

fn avals(values: &[Value]) -> Vec<Aval> {
    values.iter().map(|v| v.aval().unsharded()).collect()
}

fn twice(x: &Value) -> Result<Value> {
    ops::add(x, x)
}

/// `x²`, twice an integer, `sin y`.
fn results(v: &[Value]) -> Result<Values> {
    Ok(Values::from_vec(vec![ops::mul(&v[0], &v[0])?, twice(&v[1])?, ops::sin(&v[2])?]))
}

/// The results with their derivative along `ts`.
fn rule(v: &[Value], ts: &[Value]) -> Result<Values> {
    let mut out = results(v)?;
    out.push(ops::mul(&twice(&v[0])?, &ts[0])?);
    out.push(ops::mul(&ops::cos(&v[2])?, &ts[1])?);
    Ok(out)
}

/// The function of three operands, whose rule is told where the operands begin.
fn custom_jvp(v: &[Value]) -> Result<Vec<Value>> {
    let ins = avals(v);
    let call = graph_of(&ins, results)?;
    let with_tangents = [&ins[..], &[ins[0].clone(), ins[2].clone()]].concat();
    let rule = graph_of(&with_tangents, |x| rule(&x[..3], &x[3..]))?;
    let prim = CustomJvp { call, rule, call_consts: 0, rule_consts: 0 };
    Ok(bind(&prim, v)?.to_vec())
}

/// `c x`, of which the rule knows `x` and a constant of its own.
fn custom_jvp_with_constants(v: &[Value]) -> Result<Vec<Value>> {
    let ins = avals(v);
    let call = graph_of(&[ins[0].clone(), ins[2].clone()], |x| {
        Ok(Values::from_iter([ops::mul(&x[0], &x[1])?]))
    })?;
    let rule_ins = [ins[1].clone(), ins[2].clone(), ins[2].clone()];
    let rule = graph_of(&rule_ins, |x| {
        Ok(Values::from_iter([ops::mul(&x[0], &x[1])?, ops::mul(&x[0], &x[2])?]))
    })?;
    let prim = CustomJvp { call, rule, call_consts: 1, rule_consts: 1 };
    Ok(bind(&prim, v)?.to_vec())
}

/// The same function as [`custom_jvp`], with a rule for reverse mode.
fn custom_vjp(v: &[Value]) -> Result<Vec<Value>> {
    let ins = avals(v);
    let call = graph_of(&ins, results)?;
    let fwd = graph_of(&ins, |x| {
        let mut out = results(x)?;
        out.extend([x[0].clone(), ops::cos(&x[2])?]);
        Ok(out)
    })?;
    let bwd_ins = [0, 2, 0, 2].map(|i: usize| ins[i].clone());
    let bwd = graph_of(&bwd_ins, |x| {
        Ok(Values::from_iter([ops::mul(&twice(&x[0])?, &x[2])?, ops::mul(&x[1], &x[3])?]))
    })?;
    let prim = CustomVjp { call, fwd, bwd, consts: [0; 3] };
    Ok(bind(&prim, v)?.to_vec())
}

/// Three layers of `sin(w x)`, of which the first two have names.
fn checkpoint(v: &[Value], policy: Policy, barrier: bool) -> Result<Vec<Value>> {
    let graph = graph_of(&avals(v), |x| {
        let a = checkpoint_name(&ops::sin(&ops::mul(&x[0], &x[1])?)?, "a")?;
        let b = ops::sin(&checkpoint_name(&ops::mul(&x[0], &a)?, "b")?)?;
        let c = ops::sin(&ops::mul(&x[0], &b)?)?;
        Ok(Values::from_vec(vec![c, twice(&x[2])?, b]))
    })?;
    Ok(bind(&Checkpoint { graph, policy, barrier }, v)?.to_vec())
}

pub fn rows(rows: &mut Vec<Case>) {
    let operands = || [arg(F32, [3]), arg(I32, [2]), arg(F32, [2, 3])];
    rows.push(Case::many("custom_jvp", operands(), custom_jvp));
    let operands_with_constants = [arg(F32, [3]), arg(F32, [3]), arg(F32, [3])];
    rows.push(
        Case::many("custom_jvp", operands_with_constants, custom_jvp_with_constants)
            .no_grad("a constant has no derivative by the rule"),
    );
    rows.push(
        Case::many("custom_vjp", operands(), custom_vjp)
            .no_grad("there is no forward derivative; `custom` tests the reverse one"),
    );
    for policy in [
        Policy::Nothing,
        Policy::Everything,
        Policy::names(["a"]),
        Policy::all_but_names(["a"]),
        Policy::names(["b"]).or(Policy::Dots),
    ] {
        let operands = [arg(F32, [3]), arg(F32, [3]), arg(I32, [2])];
        let (barrier, tag) = (policy == Policy::Nothing, policy.to_string());
        let call = move |v: &[Value]| checkpoint(v, policy.clone(), barrier);
        rows.push(Case::many("checkpoint", operands, call).tag(tag));
    }
    for dtype in [F32, C64] {
        // The sum makes a second operation, without which the engines would see no graph.
        rows.push(Case::one("checkpoint_name", [arg(dtype, [2])], |v| {
            twice(&checkpoint_name(&v[0], "x")?)
        }));
    }
}
