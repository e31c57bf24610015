//! One training step of `gpt12` under `jit`, beside two bare executions by the same plugin, taken
//! in turn in one run: that of our own StableHLO, and that of the StableHLO which JAX lowers for
//! the same step. All three start from the same numbers and must give the same losses.
//!
//! `cargo bench --bench gpt12 -- 40` takes 40 rounds. The memory is that of a process of its own.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

#[path = "common/figures.rs"]
mod figures;
#[path = "common/gpt.rs"]
mod gpt;
#[path = "common/jax.rs"]
mod jax;
#[path = "common/numpy.rs"]
mod numpy;

use anyhow::Context;
use figures::{median, timed};
use gpt::{BATCH, Gpt, PLACES, Start, State, VOCABULARY, adamw, step};
use oxbridge::backend::host::HostArray;
use oxbridge::backend::pjrt::options::CompileOptions;
use oxbridge::backend::{Executable, pjrt};
use oxbridge::prelude::*;
use oxbridge::trace::eval::Compiled;
use oxbridge::transforms::jit::Function;
use oxbridge::transforms::tree::leaves;
use std::process::Command;
use std::sync::Arc;

const LAYERS: usize = 12;
/// Rounds, unless the command line says how many.
const ROUNDS: usize = 15;
/// The first losses that other systems give from the same numbers.
const LOSSES: [f32; 5] = [6.9954, 6.62122, 6.39352, 6.17270, 5.87173];

/// What our step is compared with, all of it bare.
const BARE: [&str; 4] = [
    "own StableHLO",
    "JAX's StableHLO",
    "JAX's with donation",
    "JAX's with donation and the plugin's own flags",
];
/// Of our step, then of each of those.
type Times = [Vec<f64>; 1 + BARE.len()];
type Losses = [Vec<f32>; 1 + BARE.len()];

type BenchResult<T = ()> = anyhow::Result<T>;
type Batch = (Tensor, Tensor);
type Arguments = (State, Batch);

fn train((state, (ids, targets)): Arguments) -> Result<(State, Tensor)> {
    step(&state, |model| model.loss(&ids, &targets))
}

/// The model, the optimiser and the batch before the first step.
fn start() -> Result<Arguments> {
    let mut draws = numpy::Generator::new();
    let mut make = |start: Start, shape: [usize; 2]| match start {
        Start::Normal => {
            let count = shape[0] * shape[1];
            let numbers: Vec<f32> = (0..count).map(|_| (draws.normal() * 0.02) as f32).collect();
            Tensor::from_slice(&numbers, shape)
        }
        Start::One => Tensor::ones(shape, DType::F32),
        Start::Zero => Tensor::zeros(shape, DType::F32),
    };
    let model = Gpt::new(LAYERS, &mut make)?;
    let optimiser = adamw(&model)?;
    let bits = VOCABULARY.ilog2();
    let mut tokens = || {
        let tokens: Vec<i32> =
            (0..BATCH * PLACES).map(|_| draws.below_power(bits) as i32).collect();
        Tensor::from_slice(&tokens, [BATCH, PLACES])
    };
    let batch = (tokens()?, tokens()?);
    Ok(((model, optimiser), batch))
}

fn main() -> BenchResult {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|a| a == "--memory") {
        return memory_of_one_process();
    }
    let rounds = arguments.iter().find_map(|a| a.parse().ok()).unwrap_or(ROUNDS);
    compare(rounds)?;
    memory()
}

fn compiled<M>(
    f: &Jit<Arguments, (State, Tensor), M, impl Function<Arguments, (State, Tensor), M>>,
    args: &Arguments,
) -> BenchResult<Arc<Compiled>> {
    Ok(f.lower(args)?.compile()?)
}

/// The options that this library compiles with, and those without its flags.
fn options(client: &pjrt::Client) -> (CompileOptions, CompileOptions) {
    let plain = CompileOptions::spmd(vec![client.devices()[0].id()]);
    let plain = CompileOptions { shardy: false, ..plain };
    (plain.clone().exact_on(client.platform_name()), plain)
}

fn plugins(compiled: &Compiled) -> BenchResult<&pjrt::Executable> {
    match compiled.executable() {
        Executable::Pjrt(executable) => Ok(executable),
        Executable::Host(_) => {
            anyhow::bail!("the benchmark needs a PJRT plugin: `oxbridge plugin install cpu`")
        }
    }
}

/// A bare execution whose results are the next one's first operands.
struct Bare<'e> {
    executable: &'e pjrt::Executable,
    state: Vec<pjrt::Buffer>,
    rest: Vec<pjrt::Buffer>,
}

impl<'e> Bare<'e> {
    /// The first `carried` of `operands` are what the results replace.
    fn new(
        executable: &'e pjrt::Executable,
        operands: &[HostArray],
        carried: usize,
    ) -> Result<Bare<'e>> {
        let upload = |array| executable.client().upload(array, 0);
        let (state, rest) = operands.split_at(carried);
        let state = state.iter().map(upload).collect::<Result<_>>()?;
        let rest = rest.iter().map(upload).collect::<Result<_>>()?;
        Ok(Bare { executable, state, rest })
    }

    /// One step; the loss.
    fn step(&mut self) -> Result<f32> {
        let operands: Vec<&pjrt::Buffer> = self.state.iter().chain(&self.rest).collect();
        let mut outs = self.executable.execute(&[&operands], &[])?.swap_remove(0);
        let loss = outs.pop().map(|loss| loss.download()).transpose()?;
        self.state = outs;
        Ok(loss.map(|loss| loss.to_vec::<f32>()).transpose()?.map_or(f32::NAN, |l| l[0]))
    }
}

fn host(tensors: &[&Tensor]) -> Result<Vec<HostArray>> {
    tensors.iter().map(|t| t.value()?.concrete("bench")?.to_host()).collect()
}

/// The same numbers in memory of their own.
fn copies(arrays: Vec<HostArray>) -> Result<Vec<HostArray>> {
    let copy = |a: HostArray| match a.dtype() {
        DType::F32 => HostArray::from_slice(&a.to_vec::<f32>()?, a.shape()),
        _ => Ok(a),
    };
    arrays.into_iter().map(copy).collect()
}

fn compare(rounds: usize) -> BenchResult {
    let args = start()?;
    let f = jit(train).donate([0]);
    let (compile, compiled) = timed(|| compiled(&f, &args));
    let compiled = compiled?;
    let own = plugins(&compiled)?;
    println!("gpt12_trace_and_compile: {compile:.0} ms (from the disk cache if it is there)");
    let operands = copies(host(&leaves(&args))?)?;
    let mut raw = Bare::new(own, &operands, operands.len() - 2)?;
    let (exact, plain) = options(own.client());
    let text = jax::stablehlo()?;
    let donating = jax::donating(&text);
    let compile =
        |text: &str, options: &CompileOptions| own.client().compile(text, &options.encode());
    let jaxs = [compile(&text, &exact)?, compile(&donating, &exact)?, compile(&donating, &plain)?];
    let operands = jax::operands(&args.0.0, &args.1)?;
    let jaxs = jaxs.iter().map(|e| Bare::new(e, &operands, operands.len() - 3));
    let mut jaxs = jaxs.collect::<Result<Vec<_>>>()?;
    let (state, batch) = args;
    let mut state = Some(state);
    let mut ours = || -> Result<f32> {
        let Some(old) = state.take() else { return Ok(f32::NAN) };
        let (new, loss) = f.call((old, batch.clone()))?;
        state = Some(new);
        loss.item()
    };
    let mut raw = || raw.step();
    let mut runs: Vec<&mut dyn FnMut() -> Result<f32>> = vec![&mut ours, &mut raw];
    let mut jaxs: Vec<_> = jaxs.iter_mut().map(|bare| || bare.step()).collect();
    runs.extend(jaxs.iter_mut().map(|run| run as &mut dyn FnMut() -> Result<f32>));
    let mut times: Times = Default::default();
    let mut losses: Losses = Default::default();
    for round in 0..=rounds {
        for place in 0..runs.len() {
            // Forwards and backwards in turn, so that none always follows the same one.
            let i = if round % 2 == 0 { place } else { runs.len() - 1 - place };
            let (time, loss) = timed(&mut *runs[i]);
            times[i].push(time);
            losses[i].push(loss?);
        }
    }
    report(&times, &losses);
    Ok(())
}

fn report(times: &Times, losses: &Losses) {
    // The first step of each copies its state and warms the memory up.
    let ours = &times[0][1..];
    println!("gpt12_step: {:.1} ms", median(ours));
    for (name, theirs) in BARE.iter().zip(&times[1..]) {
        let ratios: Vec<f64> = ours.iter().zip(&theirs[1..]).map(|(a, b)| a / b).collect();
        let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            "  {name}: {:.1} ms; ours takes {:.3} times as long (least of each: {:.3})",
            median(&theirs[1..]),
            median(&ratios),
            least(ours) / least(&theirs[1..]),
        );
    }
    let first = |i: usize| &losses[i][..LOSSES.len().min(losses[i].len())];
    println!("gpt12_losses: {:?}", first(0));
    let apart =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("  farthest from the recorded ones: {:.6}", apart(first(0), &LOSSES));
    println!("  farthest from JAX's StableHLO: {:.6}", apart(first(0), first(2)));
}

/// The plugin's figures, and a process that does nothing but train.
fn memory() -> BenchResult {
    let args = start()?;
    let f = jit(train).donate([0]);
    let memory = compiled(&f, &args)?.memory_analysis()?;
    let mib = |bytes: i64| bytes as f64 / f64::from(1 << 20);
    let total = memory.arguments + memory.outputs + memory.temporaries - memory.aliases;
    println!(
        "gpt12_memory_analysis: {:.0} MiB (arguments {:.0} + outputs {:.0} + temporaries {:.0} - \
         aliases {:.0})",
        mib(total),
        mib(memory.arguments),
        mib(memory.outputs),
        mib(memory.temporaries),
        mib(memory.aliases)
    );
    // What is freed there goes back to the system, so that what the process has is what it uses.
    let child = Command::new(std::env::current_exe()?)
        .arg("--memory")
        .envs([("MALLOC_MMAP_THRESHOLD_", "65536"), ("MALLOC_TRIM_THRESHOLD_", "65536")])
        .env("MALLOC_ARENA_MAX", "1")
        .output()?;
    print!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    Ok(())
}

/// A line of `/proc/self/status`, in MiB.
fn status(name: &str) -> BenchResult<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix(name)).context("no such line")?;
    let number = line.trim_matches(|c: char| !c.is_ascii_digit());
    Ok(number.parse::<f64>()? / 1024.0)
}

fn memory_of_one_process() -> BenchResult {
    let f = jit(train).donate([0]);
    drop(compiled(&f, &start()?)?);
    let before = status("VmRSS:")?;
    let (mut state, batch) = start()?;
    let mut peaks = Vec::new();
    // In the first step there are also the matrices that the first weights are views of.
    for _ in 0..2 {
        // The kernel counts the peak anew from here.
        std::fs::write("/proc/self/clear_refs", "5")?;
        for _ in 0..3 {
            let (new, loss) = f.call((state, batch.clone()))?;
            loss.item::<f32>()?;
            state = new;
        }
        peaks.push(status("VmHWM:")?);
    }
    println!(
        "gpt12_peak_memory: {:.0} MiB more in a step than before there was a tensor ({:.0} MiB in \
         the first three); the whole process, with plugin and program, {:.0} MiB",
        peaks[1] - before,
        peaks[0] - before,
        peaks[1]
    );
    Ok(())
}
