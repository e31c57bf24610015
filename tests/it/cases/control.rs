//! Rows of control flow: branches, loops of unknown and of known length.

use super::{Case, arg, vals};
use oxbridge::DType::*;
use oxbridge::ops::Steps;
use oxbridge::ops::region::graph_of;
use oxbridge::trace::Values;
use oxbridge::trace::graph::Graph;
use oxbridge::{Aval, Result, Scalar, Shape, Value, ops};
use std::sync::Arc;

fn graph(ins: &[Aval], f: impl FnOnce(&[Value]) -> Result<Vec<Value>>) -> Result<Arc<Graph>> {
    graph_of(ins, |xs| Ok(Values::from_vec(f(xs)?)))
}

fn avals(values: &[Value]) -> Vec<Aval> {
    values.iter().map(|v| v.aval().unsharded()).collect()
}

fn cond(v: &[Value]) -> Result<Vec<Value>> {
    let ins = avals(&v[1..]);
    let branches = [
        graph(&ins, |x| Ok(vec![ops::mul(&x[0], &x[1])?, x[0].clone()]))?,
        graph(&ins, |x| Ok(vec![ops::sin(&x[0])?, ops::mul(&ops::cos(&x[1])?, &x[0])?]))?,
        graph(&ins, |x| Ok(vec![x[1].clone(), ops::full_like(&x[0], 1.0)?]))?,
    ];
    Ok(ops::cond(&v[0], &branches, &v[1..])?.to_vec())
}

/// Adds `v[1]` to `v[2]` and halves `v[3]` until the last is below `v[0]`.
fn halve(v: &[Value]) -> Result<Vec<Value>> {
    let (limit, step, carry) = (&v[..1], &v[1..2], &v[2..]);
    let test = graph(&avals(&[limit, carry].concat()), |x| Ok(vec![ops::gt(&x[2], &x[0])?]))?;
    let body = graph(&avals(&[step, carry].concat()), |x| {
        let half = ops::full_like(&x[2], 0.5)?;
        Ok(vec![ops::add(&ops::sin(&x[1])?, &x[0])?, ops::mul(&x[2], &half)?])
    })?;
    Ok(ops::while_loop((&test, limit), (&body, step), carry)?.to_vec())
}

/// `h = sin(w h + x)`, counted, with rows `h x` out.
fn recurrent(v: &[Value], reverse: bool, unroll: usize) -> Result<Vec<Value>> {
    let row = v[2].aval().with_shape(v[2].shape().remove(0));
    let count = Value::scalar(Scalar::new(0i32));
    let ins = [&avals(&v[..2])[..], &[Aval::scalar(I32), row]].concat();
    let body = graph(&ins, |x| {
        let h = ops::sin(&ops::add(&ops::mul(&x[0], &x[1])?, &x[3])?)?;
        let one = Value::scalar(Scalar::new(1i32));
        let y = ops::mul(&h, &x[3])?;
        Ok(vec![h, ops::add(&x[2], &one)?, y, x[2].clone()])
    })?;
    let (consts, carry) = (&v[..1], [v[1].clone(), count]);
    let how = Steps { length: v[2].shape()[0], reverse, unroll };
    Ok(ops::scan(&body, how, consts, &carry, &v[2..])?.to_vec())
}

pub fn rows(rows: &mut Vec<Case>) {
    for index in [-1.0, 0.0, 1.0, 2.0, 7.0] {
        let operands = [vals(I32, [], &[index]), arg(F32, [3]), arg(F32, [3])];
        rows.push(Case::many("cond", operands, cond).tag(format!("{index}")));
    }
    for start in [0.1, 3.0, 20.0] {
        let operands =
            [vals(F32, [], &[0.5]), arg(F32, [2]), arg(F32, [2]), vals(F32, [], &[start])];
        rows.push(
            Case::many("while", operands, halve)
                .tag(format!("{start}"))
                .no_grad("a loop of unknown length has no reverse derivative"),
        );
    }
    for (length, reverse) in [(4, false), (3, true), (1, false), (0, false)] {
        let shape = Shape::new(&[length, 2]);
        let operands = [arg(F32, [2]), arg(F32, [2]), arg(F32, shape)];
        let row = Case::many("scan", operands, move |v| recurrent(v, reverse, 1));
        rows.push(if reverse { row.tag("reverse") } else { row });
    }
    for (length, reverse, unroll) in [(5, false, 2), (4, true, 2), (3, true, 3), (0, false, 4)] {
        let operands = [arg(F32, [2]), arg(F32, [2]), arg(F32, [length, 2])];
        let row = Case::many("scan", operands, move |v| recurrent(v, reverse, unroll));
        rows.push(row.tag(format!("reverse {reverse}, unroll {unroll}")));
    }
}
