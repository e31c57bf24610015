//! Rows of collectives. Each is the batch of a function of one example, over axis 0 of its operands
//! and under the name `i`: directly, as a graph that is called, and inside of a `vmap` of no name.

use super::{Case, Operand, arg};
use oxbridge::DType::*;
use oxbridge::aval::Aval;
use oxbridge::ops::call::Call;
use oxbridge::ops::collective as co;
use oxbridge::trace::batch::{Batch, BatchAxis, NamedAxis, join, split};
use oxbridge::trace::graph::Graph;
use oxbridge::trace::record::Recorder;
use oxbridge::trace::{Trace, Value, bind};
use oxbridge::{Result, ops};
use std::sync::Arc;

/// A function of one example.
type Example = fn(&[Value]) -> Result<Value>;

/// How many examples the named axis has.
const SIZE: usize = 4;

fn axis(name: &str, size: usize) -> NamedAxis {
    NamedAxis { name: name.into(), size }
}

fn i() -> NamedAxis {
    axis("i", SIZE)
}

/// `f` over axis 0 of the values, under a name if there is one; the examples come out in front.
fn over(
    name: Option<&str>,
    values: &[Value],
    f: impl FnOnce(&[Value]) -> Result<Value>,
) -> Result<Value> {
    let size = values[0].shape()[0];
    let batch = BatchAxis { name: name.map(Into::into), ..BatchAxis::of_size(size) };
    let guard = Trace::start(Box::new(Batch { axis: batch }));
    let mapped: Vec<Value> =
        values.iter().map(|v| join(guard.trace(), v.clone(), Some(0))).collect();
    let out = guard.enter(|| f(&mapped))?;
    let (out, axis) = split(guard.trace(), &out);
    ops::move_batch_axis(size, &out, axis, 0)
}

/// The graph of the function of one example, recorded where `i` is bound.
fn graph(values: &[Value], f: Example) -> Result<Arc<Graph>> {
    let avals: Vec<Aval> = values.iter().map(|v| v.aval().unsharded()).collect();
    let recorded = Recorder::record("jit", &avals, |xs| Ok([f(xs)?].into_iter().collect()))?;
    Ok(Arc::new(recorded.graph))
}

/// The function of one example of each row, by the row's primitive, with the operands of the batch.
fn examples() -> Vec<(&'static str, &'static str, Vec<Operand>, Example)> {
    let one = |shape: &[usize]| vec![arg(F32, shape.to_vec())];
    vec![
        ("psum", "", one(&[SIZE, 2, 3]), |v| co::psum(&v[0], &[i()])),
        ("psum", "of integers", vec![arg(I32, [SIZE, 3])], |v| co::psum(&v[0], &[i()])),
        ("psum", "of complex", vec![arg(C64, [SIZE, 3])], |v| co::psum(&v[0], &[i()])),
        ("psum", "times x", one(&[SIZE, 3]), |v| {
            ops::mul(&v[0], &co::psum(&ops::sin(&v[0])?, &[i()])?)
        }),
        ("psum", "of what is not mapped", one(&[SIZE, 3]), |v| {
            let ones = ops::full_like(&v[0], 1.0)?;
            ops::mul(&v[0], &co::psum(&ones, &[i()])?)
        }),
        ("psum", "as mean", one(&[SIZE, 3]), |v| co::pmean(&v[0], &[i()])),
        ("pmax", "", one(&[SIZE, 2, 3]), |v| co::pmax(&v[0], &[i()])),
        ("pmin", "", one(&[SIZE, 3]), |v| co::pmin(&v[0], &[i()])),
        ("pmax", "below", one(&[SIZE, 3]), |v| {
            ops::mul(&v[0], &ops::sub(&v[0], &co::pmax(&v[0], &[i()])?)?)
        }),
        ("all_gather", "in front", one(&[SIZE, 2, 3]), |v| co::all_gather(&v[0], &i(), 0, false)),
        ("all_gather", "at the end", one(&[SIZE, 2, 3]), |v| co::all_gather(&v[0], &i(), 2, false)),
        ("all_gather", "tiled", one(&[SIZE, 2, 3]), |v| co::all_gather(&v[0], &i(), 1, true)),
        ("reduce_scatter", "", one(&[SIZE, 2, SIZE]), |v| {
            co::reduce_scatter(&v[0], &i(), 1, false)
        }),
        ("reduce_scatter", "tiled", one(&[SIZE, 2 * SIZE, 2]), |v| {
            co::reduce_scatter(&v[0], &i(), 0, true)
        }),
        ("ppermute", "around", one(&[SIZE, 2]), |v| {
            co::ppermute(&v[0], &i(), &[(0, 1), (1, 2), (2, 3), (3, 0)])
        }),
        ("ppermute", "with gaps", one(&[SIZE, 2]), |v| {
            co::ppermute(&v[0], &i(), &[(3, 0), (0, 3)])
        }),
        ("ppermute", "down to nothing", one(&[SIZE, 2]), |v| {
            co::ppermute(&v[0], &i(), &[(1, 0), (0, 1)])
        }),
        ("ppermute", "backwards", one(&[SIZE, 2]), |v| {
            co::ppermute(&v[0], &i(), &[(0, 3), (1, 2), (2, 1), (3, 0)])
        }),
        ("all_to_all", "", one(&[SIZE, SIZE, 2]), |v| co::all_to_all(&v[0], &i(), 0, 1)),
        ("all_to_all", "back", one(&[SIZE, 2, SIZE]), |v| co::all_to_all(&v[0], &i(), 1, 0)),
        ("all_to_all", "tiled", one(&[SIZE, 3, 2 * SIZE]), |v| {
            co::all_to_all_tiled(&v[0], &i(), 1, 0)
        }),
        ("axis_index", "times x", one(&[SIZE]), |v| {
            ops::mul(&v[0], &ops::convert(&co::axis_index(&i())?, v[0].dtype())?)
        }),
    ]
}

/// The graph of one example of a row of this family, where the collective itself is seen.
pub fn inner_graph(case: &Case) -> Option<Result<Arc<Graph>>> {
    let (_, _, operands, f) = examples().into_iter().find(|(prim, ..)| *prim == case.prim)?;
    let shapes: Vec<Value> = operands
        .iter()
        .map(|o| ops::zeros(&Aval::new(o.dtype, o.shape.clone())))
        .collect::<Result<_>>()
        .ok()?;
    let mut found = None;
    let run = over(Some("i"), &shapes, |xs| {
        found = Some(graph(xs, f)?);
        f(xs)
    });
    Some(run.map(|_| found).and_then(|g| {
        g.ok_or_else(|| oxbridge::Error::new(oxbridge::ErrorKind::NoRule, "row", "did not run"))
    }))
}

pub fn rows(rows: &mut Vec<Case>) {
    for (prim, tag, operands, f) in examples() {
        let row = Case::one(prim, operands.clone(), move |v| over(Some("i"), v, f));
        rows.push(row.tag(tag));
        let called = move |v: &[Value]| {
            over(Some("i"), v, |xs| {
                let call = Call::new("example", graph(xs, f)?, false);
                Ok(bind(&call, xs)?.swap_remove(0))
            })
        };
        rows.push(Case::one(prim, operands.clone(), called).tag(format!("called {tag}")));
        // Two batches of no name, each of which has all examples of `i`.
        let mut wider = operands;
        for operand in &mut wider {
            operand.shape = operand.shape.insert(1, 2);
        }
        let inside = move |v: &[Value]| over(Some("i"), v, |xs| over(None, xs, f));
        rows.push(Case::one(prim, wider, inside).tag(format!("around a vmap {tag}")));
    }
    let both = |v: &[Value]| {
        over(Some("i"), v, |xs| {
            over(Some("j"), xs, |x| ops::mul(&x[0], &co::psum(&x[0], &[i(), axis("j", 2)])?))
        })
    };
    rows.push(Case::one("psum", [arg(F32, [SIZE, 2, 3])], both).tag("over two axes"));
}
