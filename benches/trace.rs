//! How long it takes to trace a whole training step and write its StableHLO, and how long to
//! compile it, with layers unrolled and with one layer in a scan.
//!
//! The step is `gpt12`'s: forward, gradient, AdamW on 149 arrays. Nothing is compiled for the lines
//! `gpt…_trace_lower`; each is a median of fresh traces, and `first` the first one of the process.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

#[path = "common/figures.rs"]
mod figures;
#[path = "common/gpt.rs"]
mod gpt;

use figures::{median, timed};
use gpt::{BATCH, Block, Gpt, PLACES, State, adamw, step};
use oxbridge::backend::pjrt;
use oxbridge::backend::pjrt::options::CompileOptions;
use oxbridge::prelude::*;
use oxbridge::transforms::jit::{Function, IntoTree};

/// Traces of each model, and compilations.
const TRACES: usize = 15;
const COMPILES: usize = 2;

type BenchResult<T = ()> = anyhow::Result<T>;
type Batch = (Tensor, Tensor);

fn zeros(layers: usize) -> BenchResult<(State, Batch)> {
    let model = Gpt::new(layers, &mut |_, shape| Tensor::zeros(shape, DType::F32))?;
    let optimiser = adamw(&model)?;
    let ids = Tensor::zeros([BATCH, PLACES], DType::I32)?;
    Ok(((model, optimiser), (ids.clone(), ids)))
}

fn unrolled((state, (ids, targets)): &(State, Batch)) -> Result<(State, Tensor)> {
    step(state, |model| model.loss(ids, targets))
}

/// The text of the step's StableHLO, traced afresh.
fn lower<A: Tree, B: Tree, M>(
    f: impl Function<A, B, M>,
    args: impl IntoTree<A>,
) -> Result<(String, usize)> {
    let lowered = jit(f).donate([0]).lower(args)?;
    Ok((lowered.stablehlo(), lowered.graph().eqns().len()))
}

fn main() -> BenchResult {
    let (first, _) = trace_lower(12, 1)?;
    println!("gpt12_trace_lower_first: {first:.1} ms");
    let mut per_layer = Vec::new();
    for layers in [3, 6, 12, 24] {
        let (time, (text, eqns)) = trace_lower(layers, TRACES)?;
        println!("gpt{layers}_trace_lower: {time:.1} ms");
        println!("  {eqns} equations, {} kB of text", text.len() / 1000);
        per_layer.push(time / layers as f64);
    }
    println!("time a layer, 24 against 6 layers: {:.2} times", per_layer[3] / per_layer[1]);
    compile()
}

/// The median time and what came out.
fn trace_lower(layers: usize, traces: usize) -> BenchResult<(f64, (String, usize))> {
    let args = zeros(layers)?;
    let (mut times, mut last) = (Vec::new(), (String::new(), 0));
    for _ in 0..traces {
        let (time, lowered) = timed(|| lower(unrolled, &args));
        times.push(time);
        last = lowered?;
    }
    Ok((median(&times), last))
}

/// Compiles by the plugin itself, past the disk cache.
fn compile_ms(client: &pjrt::Client, text: &str) -> BenchResult<f64> {
    let options = CompileOptions::spmd(vec![client.devices()[0].id()]);
    let options = options.exact_on(client.platform_name()).encode();
    let (time, executable) = timed(|| client.compile(text, &options));
    drop(executable?);
    Ok(time)
}

fn compile() -> BenchResult {
    let client = Client::default()?;
    let Some(session) = client.session() else {
        anyhow::bail!("compiling needs a PJRT plugin: `oxbridge plugin install cpu`")
    };
    let args = zeros(12)?;
    let (unrolled, _) = lower(unrolled, &args)?;
    let model = stacked(&args.0.0)?;
    let args = ((model.clone(), adamw(&model)?), args.1);
    let (scanned, _) = lower(scanned, &args)?;
    let (mut a, mut b) = (Vec::new(), Vec::new());
    if let Some(d) = std::env::var_os("DUMP") {
        let d = std::path::Path::new(&d);
        std::fs::write(d.join("u.mlir"), &unrolled)?;
        std::fs::write(d.join("s.mlir"), &scanned)?;
    }
    for _ in 0..COMPILES {
        a.push(compile_ms(session.client(), &unrolled)?);
        b.push(compile_ms(session.client(), &scanned)?);
    }
    let (a, b) = (median(&a), median(&b));
    println!("gpt12_compile_unrolled: {a:.0} ms");
    println!("gpt12_compile_scan_layers: {b:.0} ms ({:.3} x unrolled)", b / a);
    Ok(())
}

/// The same step of a model whose blocks are one block of stacked arrays, with a scan over it.
fn scanned((state, (ids, targets)): &(State, Batch)) -> Result<(State, Tensor)> {
    step(state, |model| {
        let x = model.embed(ids)?;
        let body = |x: &Tensor, block: &Block| Ok((block.forward(x)?, ()));
        let (x, ()) = scan(body, &x, &model.blocks[0], ScanOptions::default())?;
        model.loss_of(&x, targets)
    })
}

/// The model with one block whose arrays have the layers as their first axis.
fn stacked(model: &Gpt) -> Result<Gpt> {
    let mut lists: Vec<std::vec::IntoIter<Tensor>> =
        model.blocks.iter().map(|block| block.parameters().into_iter()).collect();
    let block = model.blocks[0].map(&mut |_| {
        let parts: Vec<Tensor> = lists.iter_mut().filter_map(Iterator::next).collect();
        Tensor::stack(&parts, 0)
    })?;
    Ok(Gpt { blocks: vec![block], ..model.clone() })
}
