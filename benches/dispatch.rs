//! What one eager operation and one `jit` call cost, beside the bare PJRT call of the same program.
//!
//! Each line is a median over many rounds, ours and the bare call's taken in turn in one run:
//! `eager_add: 2.1 us (1.24 x raw)`. The last line tells what the disk cache did; in a second run
//! of this program nothing is compiled.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use oxbridge::Value;
use oxbridge::backend::{Buffer, Executable, pjrt};
use oxbridge::ops;
use oxbridge::prelude::*;
use oxbridge::trace::eval::compile_only;
use oxbridge::trace::primitive::Primitive;
use oxbridge::transforms::jit::{Function, IntoTree};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

/// Calls in one round, and rounds.
const CALLS: usize = 500;
const ROUNDS: usize = 200;

type BenchResult<T = ()> = anyhow::Result<T>;

fn main() -> BenchResult {
    anyhow::ensure!(
        Device::default()?.client().session().is_some(),
        "the benchmark needs a PJRT plugin: `oxbridge plugin install cpu`"
    );
    eager_add()?;
    jit_add()?;
    jit_100_leaves()?;
    let stats = Client::cache_stats();
    println!(
        "disk cache: {} hits, {} misses; compiled in this process: {}",
        stats.hits,
        stats.misses,
        Client::default()?.compiles()
    );
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Medians in microseconds of one call of ours and of the bare one.
fn compare(
    name: &str,
    calls: usize,
    mut ours: impl FnMut() -> Result<()>,
    raw: &pjrt::Executable,
    args: &[&pjrt::Buffer],
) -> BenchResult {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS + ROUNDS / 10 {
        let start = Instant::now();
        for _ in 0..calls {
            ours()?;
        }
        let mine = start.elapsed();
        let bare = raw.execute_raw_loop(args, calls)?;
        if round >= ROUNDS / 10 {
            a.push(mine.as_secs_f64() * 1e6 / calls as f64);
            b.push(bare.as_secs_f64() * 1e6 / calls as f64);
        }
    }
    let (a, b) = (median(a), median(b));
    println!("{name}: {a:.2} us ({:.2} x raw)", a / b);
    Ok(())
}

fn executable(
    prim: &dyn Primitive,
    operands: &[Value],
) -> BenchResult<std::sync::Arc<pjrt::Executable>> {
    match compile_only(prim, operands)?.executable() {
        Executable::Pjrt(executable) => Ok(executable.clone()),
        Executable::Host(_) => anyhow::bail!("not a plugin's executable"),
    }
}

fn buffer(value: &Value) -> BenchResult<&pjrt::Buffer> {
    match value {
        Value::Array(array) => match array.buffers() {
            [Buffer::Pjrt(buffer)] => Ok(buffer),
            _ => anyhow::bail!("not a plugin's buffer"),
        },
        Value::Tracer(_) => anyhow::bail!("not concrete"),
    }
}

fn buffers(values: &[Value]) -> BenchResult<Vec<&pjrt::Buffer>> {
    values.iter().map(buffer).collect()
}

fn operands() -> BenchResult<(Tensor, Tensor)> {
    Ok((
        Tensor::from_slice(&[1f32, 2., 3., 4.], [4])?,
        Tensor::from_slice(&[5f32, 6., 7., 8.], [4])?,
    ))
}

fn eager_add() -> BenchResult {
    let (a, b) = operands()?;
    let values = [a.value()?, b.value()?];
    let raw = executable(&ops::Map2(ops::Add), &values)?;
    let ours = || {
        black_box(a.add(&b)?);
        Ok(())
    };
    compare("eager_add", CALLS, ours, &raw, &buffers(&values)?)
}

fn raw_of<A: Tree, B: Tree, M, F: Function<A, B, M>>(
    f: &Jit<A, B, M, F>,
    args: impl IntoTree<A>,
    values: &[Value],
) -> BenchResult<std::sync::Arc<pjrt::Executable>> {
    executable(f.lower(args)?.call(), values)
}

fn jit_add() -> BenchResult {
    let (a, b) = operands()?;
    let values = [a.value()?, b.value()?];
    let f = jit(|(a, b): &(Tensor, Tensor)| a.add(b));
    let raw = raw_of(&f, (&a, &b), &values)?;
    let ours = || {
        black_box(f.call((&a, &b))?);
        Ok(())
    };
    compare("jit_add", CALLS, ours, &raw, &buffers(&values)?)
}

fn jit_100_leaves() -> BenchResult {
    type Dict = BTreeMap<String, Tensor>;
    let leaves: Dict = (0..100)
        .map(|i| Ok((format!("p{i:02}"), Tensor::from_slice(&[i as f32], ())?)))
        .collect::<Result<_>>()?;
    let values: Vec<Value> = leaves.values().map(Tensor::value).collect::<Result<_>>()?;
    let sum = jit(|dict: &Dict| {
        let mut tensors = dict.values();
        let first = tensors.next().cloned().map_or_else(|| Tensor::zeros((), DType::F32), Ok)?;
        tensors.try_fold(first, |sum, t| sum.add(t))
    });
    let raw = raw_of(&sum, &leaves, &values)?;
    let ours = || {
        black_box(sum.call(&leaves)?);
        Ok(())
    };
    compare("jit_100_leaves", CALLS / 10, ours, &raw, &buffers(&values)?)
}
