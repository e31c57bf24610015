//! `vmap` of each row over each subset of its operands = single calls stacked; and derivatives of
//! `vmap` = `vmap` of derivatives.

use super::case::{Case, place, read, uniform};
use super::run::{function, say, tensors};
use super::{compare, each};
use oxbridge::backend::host::HostArray;
use oxbridge::ops::move_batch_axis;
use oxbridge::trace::batch::{Batch, BatchAxis, join, split};
use oxbridge::trace::{Trace, Value};
use oxbridge::{Result, Shape, Tensor, vjp, vmap};
use std::collections::BTreeSet;

/// How many examples are in a batch; no axis of a row should have this size only by chance.
const SIZE: usize = 3;

/// The arrays, all of one type, with one more axis in front.
pub fn stack(arrays: &[HostArray]) -> HostArray {
    let whole: Vec<_> = arrays.iter().map(HostArray::contiguous).collect();
    let bytes: Vec<u8> =
        whole.iter().flat_map(|a| a.contiguous_bytes().unwrap().iter().copied()).collect();
    let shape = whole[0].shape().insert(0, whole.len());
    HostArray::from_bytes(whole[0].dtype(), &shape, &bytes).unwrap()
}

/// The array with its axis 0 moved to be axis `to`.
fn moved(x: &HostArray, to: usize) -> HostArray {
    let mut perm: Vec<usize> = (1..x.shape().rank()).collect();
    perm.insert(to, 0);
    x.permute(&perm).contiguous()
}

/// Runs `f` with the given axes of the values mapped; the results have theirs in front.
pub fn vmap_at(
    f: impl Fn(&[Value]) -> Result<Vec<Value>>,
    values: &[Value],
    axes: &[Option<usize>],
) -> Result<Vec<Value>> {
    let guard = Trace::start(Box::new(Batch { axis: BatchAxis::of_size(SIZE) }));
    let mapped: Vec<Value> =
        values.iter().zip(axes).map(|(v, &axis)| join(guard.trace(), v.clone(), axis)).collect();
    let outs = guard.enter(|| f(&mapped))?;
    outs.iter()
        .map(|out| {
            let (value, axis) = split(guard.trace(), out);
            move_batch_axis(SIZE, &value, axis, 0)
        })
        .collect()
}

/// The places of the mapped axes that are tried for a subset of the operands.
fn placements(shapes: &[Shape], subset: usize) -> BTreeSet<Vec<Option<usize>>> {
    let choose = |place: &dyn Fn(usize, usize) -> usize| -> Vec<Option<usize>> {
        let operands = shapes.iter().enumerate();
        operands.map(|(i, s)| (subset >> i & 1 == 1).then(|| place(i, s.rank()))).collect()
    };
    let mut all = BTreeSet::from([
        choose(&|_, _| 0),
        choose(&|_, rank| rank),
        choose(&|i, rank| if i % 2 == 0 { rank } else { 0 }),
    ]);
    if subset.is_power_of_two() {
        let ranks = shapes.iter().map(Shape::rank).max().unwrap_or(0);
        all.extend((1..ranks).map(|axis| choose(&|_, rank| axis.min(rank))));
    }
    all
}

fn check(
    case: &Case,
    axes: &[Option<usize>],
    examples: &[Vec<HostArray>],
) -> std::result::Result<(), String> {
    let single = |e: usize| {
        let data: Vec<_> =
            axes.iter().enumerate().map(|(i, a)| examples[a.map_or(0, |_| e)][i].clone()).collect();
        case.run(&data)
    };
    let singles = (0..SIZE).map(single).collect::<Result<Vec<_>>>().map_err(say)?;
    let results = 0..singles[0].len();
    let want: Vec<_> =
        results.map(|r| stack(&singles.iter().map(|s| s[r].clone()).collect::<Vec<_>>())).collect();
    let operand = |(i, axis): (usize, &Option<usize>)| match axis {
        None => place(&examples[0][i]),
        Some(to) => {
            let data: Vec<_> = examples.iter().map(|e| e[i].clone()).collect();
            place(&moved(&stack(&data), *to))
        }
    };
    let values = axes.iter().enumerate().map(operand).collect::<Result<Vec<_>>>().map_err(say)?;
    let outs = vmap_at(|v| (case.apply)(v), &values, axes).map_err(say)?;
    let got = outs.iter().map(read).collect::<Result<Vec<_>>>().map_err(say)?;
    compare::all(&got, &want, 4.0 * case.tol)
}

#[test]
fn vmap_is_stacked_calls() {
    each("vmap", |case| {
        if case.operands.is_empty() {
            return Ok(false);
        }
        let examples: Vec<_> = (0..SIZE as u64).map(|e| case.data(e)).collect();
        let shapes: Vec<Shape> = case.operands.iter().map(|o| o.shape.clone()).collect();
        for subset in 1..1usize << shapes.len().min(6) {
            for axes in placements(&shapes, subset) {
                check(case, &axes, &examples).map_err(|why| format!("axes {axes:?}: {why}"))?;
            }
        }
        Ok(true)
    });
}

fn compare_orders(case: &Case) -> std::result::Result<(), String> {
    let examples: Vec<_> = (0..SIZE as u64).map(|e| case.data(e)).collect();
    let outs = case.run(&examples[0]).map_err(say)?;
    let batches = |lists: &[Vec<HostArray>]| -> Result<Vec<Tensor>> {
        let columns = 0..lists[0].len();
        let stacked =
            columns.map(|i| stack(&lists.iter().map(|l| l[i].clone()).collect::<Vec<_>>()));
        Ok(tensors(stacked.map(|x| place(&x)).collect::<Result<Vec<_>>>()?))
    };
    let seeds = |e: u64| {
        let outs = outs.iter().enumerate();
        outs.map(|(i, o)| uniform(o.dtype(), o.shape(), 100 * e + i as u64, -1.0, 1.0)).collect()
    };
    let run = || -> Result<_> {
        let xs = batches(&examples)?;
        let cts = batches(&(0..SIZE as u64).map(seeds).collect::<Vec<_>>())?;
        let f = function(case);
        let outer = vmap(|(xs, cts): &(Vec<Tensor>, Vec<Tensor>)| vjp(&f, xs)?.1(cts));
        let vmap_of_grad = outer(&(xs.clone(), cts.clone()))?;
        let grad_of_vmap = vjp(vmap(&f), &xs)?.1(&cts)?;
        let read =
            |list: Vec<Tensor>| list.iter().map(|t| read(&t.value()?)).collect::<Result<Vec<_>>>();
        Ok((read(grad_of_vmap)?, read(vmap_of_grad)?))
    };
    let (got, want) = run().map_err(say)?;
    compare::all(&got, &want, 100.0 * case.tol)
}

#[test]
fn grad_of_vmap_is_vmap_of_grad() {
    each("grad and vmap", |case| {
        let Some(case) = case.doubled().filter(|c| c.grad) else { return Ok(false) };
        if !case.operands.iter().any(|o| o.dtype.is_differentiable()) {
            return Ok(false);
        }
        compare_orders(&case)?;
        Ok(true)
    });
}
