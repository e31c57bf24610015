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
#[path = "common/jax.rs"]
#[expect(dead_code, reason = "nothing is run here, so operands are not needed")]
mod jax;

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
        let before = processor_ms();
        let (time, (text, eqns)) = trace_lower(layers, TRACES)?;
        let processor = (processor_ms() - before) / TRACES as f64;
        println!("gpt{layers}_trace_lower: {time:.1} ms");
        println!(
            "  {eqns} equations, {} kB of text; {processor:.1} ms of processor time",
            text.len() / 1000
        );
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

/// What this process has had of the processors: the same on a busy machine as on a quiet one. 0
/// where the system does not tell it as Linux does.
fn processor_ms() -> f64 {
    /// Milliseconds in one of the kernel's units.
    const TICK: f64 = 10.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    // User and system time, the 14th and 15th fields; the name, the second, is cut off above.
    fields.skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum::<f64>() * TICK
}

/// With this flag off, XLA's CPU compiler makes code for each operation by itself. With it on it
/// makes code once for equal operations, for example of equal layers.
const SHARING: &str = "xla_cpu_use_fusion_emitters";

/// The least times of compiling by the plugin itself, past the disk cache: by the clock, and of the
/// processors.
fn compile_ms(client: &pjrt::Client, text: &str, sharing: bool) -> BenchResult<[f64; 2]> {
    let options = CompileOptions::spmd(vec![client.devices()[0].id()]);
    let options = CompileOptions { shardy: false, ..options };
    let mut options = options.exact_on(client.platform_name());
    if !sharing {
        options.overrides.push((SHARING.into(), false.into()));
    }
    let options = options.encode();
    let mut least = [f64::INFINITY; 2];
    for _ in 0..COMPILES {
        let before = processor_ms();
        let (time, executable) = timed(|| client.compile(text, &options));
        drop(executable?);
        least = [least[0].min(time), least[1].min(processor_ms() - before)];
    }
    Ok(least)
}

/// The step with layers unrolled and by `scan_layers`, of models of growing depth; what both have
/// in common, embedding, loss and optimiser, is that of no layers.
fn compile() -> BenchResult {
    let client = Client::default()?;
    let Some(session) = client.session() else {
        anyhow::bail!("compiling needs a PJRT plugin: `oxbridge plugin install cpu`")
    };
    let least = |text: &str, sharing| compile_ms(session.client(), text, sharing);
    for layers in [0, 1, 12, 48] {
        let args = zeros(layers)?;
        let (text, _) = lower(unrolled, &args)?;
        let [time, processor] = least(&text, true)?;
        println!(
            "gpt{layers}_compile_unrolled: {time:.0} ms ({processor:.0} ms of processor time)"
        );
        if layers == 0 {
            continue;
        }
        let model = stacked(&args.0.0)?;
        let args = ((model.clone(), adamw(&model)?), args.1);
        let (looped, _) = lower(scanned, &args)?;
        compared(
            &format!("gpt{layers}_compile_scan_layers"),
            least(&looped, true)?,
            time,
            processor,
        );
        if layers == 12 {
            let [time, processor] = least(&text, false)?;
            let name = "gpt12_compile_scan_layers_unshared";
            compared(name, least(&looped, false)?, time, processor);
        }
    }
    let [time, processor] = least(&jax::donating(&jax::stablehlo()?), true)?;
    println!("gpt12_compile_jaxs_unrolled: {time:.0} ms ({processor:.0} ms of processor time)");
    Ok(())
}

/// Prints the times of a loop beside those of the same layers unrolled.
fn compared(name: &str, [time, processor]: [f64; 2], unrolled: f64, of_processors: f64) {
    println!("{name}: {time:.0} ms ({processor:.0} ms of processor time)");
    println!(
        "  {:.3} x unrolled, which takes {unrolled:.0} ms ({:.3} x in processor time)",
        time / unrolled,
        processor / of_processors
    );
}

/// The same step of a model whose blocks are one block of stacked arrays, with a loop over it.
fn scanned((state, (ids, targets)): &(State, Batch)) -> Result<(State, Tensor)> {
    step(state, |model| {
        let x = model.embed(ids)?;
        let x = scan_stacked(&model.blocks[0], &x, Block::forward)?;
        model.loss_of(&x, targets)
    })
}

/// The model with one block whose arrays have the layers as their first axis.
fn stacked(model: &Gpt) -> Result<Gpt> {
    Ok(Gpt { blocks: vec![stack_layers(&model.blocks)?], ..model.clone() })
}
