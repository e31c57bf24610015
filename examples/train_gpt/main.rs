//! Trains a character GPT on the first five books of the King James Bible over a mesh of devices,
//! then writes some text of its own.
//!
//! ```text
//! cargo run --release --example train_gpt -- --steps 500 --layers 2 --mesh 4x2
//! ```
//!
//! A step is one compiled program: loss, gradient, clipping, AdamW, with parameters and optimiser
//! state donated. `--resume` goes on from the last checkpoint, exactly as if it had not stopped.

#![expect(clippy::print_stdout, reason = "the program talks to its user")]

mod chart;
mod data;
mod model;

use anyhow::Context;
use clap::Parser;
use data::{Batch, Text};
use indicatif::{ProgressBar, ProgressStyle};
use model::{Config, Dropout, Gpt};
use oxbridge::nn::Init;
use oxbridge::nn::checkpoint::{Checkpoint, Metadata, save};
use oxbridge::optim::{AdamW, AdamWOptions, Schedule, clip_grad_norm};
use oxbridge::prelude::*;
use oxbridge::tensor::random::Key;
use std::path::PathBuf;
use std::time::Instant;

/// Trains a character GPT over a mesh of devices.
#[derive(Parser)]
struct Options {
    /// Number of blocks.
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// Width of the residual stream.
    #[arg(long, default_value_t = 128)]
    width: usize,
    /// Attention heads.
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Characters that the model sees at once.
    #[arg(long, default_value_t = 64)]
    context: usize,
    /// Sequences in a batch.
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Training steps.
    #[arg(long, default_value_t = 1500)]
    steps: usize,
    /// Highest learning rate.
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// Share of activations dropped.
    #[arg(long, default_value_t = 0.05)]
    dropout: f64,
    /// Devices as DATAxMODEL; `1x1` is one device.
    #[arg(long, default_value = "4x2", value_parser = parse_mesh)]
    mesh: (usize, usize),
    /// Seed of first values, batches and dropout.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Steps between validations and checkpoints.
    #[arg(long, default_value_t = 250)]
    every: usize,
    /// Characters to write at the end.
    #[arg(long, default_value_t = 400)]
    sample: usize,
    /// Where checkpoints and the loss curve go.
    #[arg(long, default_value = "target/train_gpt")]
    out: PathBuf,
    /// The text to learn.
    #[arg(long, default_value = "data/pentateuch-kjv.txt")]
    text: PathBuf,
    /// Stop after this step, to be resumed later.
    #[arg(long)]
    stop_at: Option<usize>,
    /// Go on from the checkpoint in `--out`.
    #[arg(long)]
    resume: bool,
    /// Plugin to use: `cpu`, `tpu`, a path, or `host`.
    #[arg(long)]
    device: Option<String>,
}

fn parse_mesh(text: &str) -> Result<(usize, usize), String> {
    let sizes = text.split_once('x').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    sizes.filter(|(a, b)| a * b > 0).ok_or_else(|| format!("`{text}` is not like 4x2"))
}

/// All that a checkpoint holds.
#[derive(Clone, Debug, Tree)]
struct State {
    model: Gpt,
    opt: AdamW<Gpt>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mesh = open_mesh(&options)?;
    let text = Text::load(&options.text, options.context)?;
    let config = Config {
        vocabulary: text.characters.len(),
        context: options.context,
        layers: options.layers,
        heads: options.heads,
        width: options.width,
        dropout: options.dropout,
    };
    let (mut state, first, mut curves) = start(&options, &config, &mesh)?;
    let count: usize = state.model.parameters().iter().map(Tensor::numel).sum();
    println!("{count} parameters over {mesh}, {} characters in the alphabet", config.vocabulary);

    let last = train(&options, &config, &mesh, &text, &mut state, first, &mut curves)?;
    let chart = options.out.join("loss.png");
    if curves.train.is_empty() {
        println!("nothing left to train");
    } else {
        chart::write(&chart, &curves)?;
        println!("validation loss {last:.4} nats per character; curve in {}", chart.display());
    }
    println!("---\n{}", write_text(&options, &mesh, &text, &state.model)?);
    Ok(())
}

/// Opens as many devices as the mesh needs, and makes the first the default.
fn open_mesh(options: &Options) -> anyhow::Result<Mesh> {
    let (data, model) = options.mesh;
    let client = Client::open(&ClientOptions {
        plugin: options.device.clone(),
        cpu_device_count: Some(data * model),
        ..ClientOptions::default()
    })?;
    let devices = client.devices();
    anyhow::ensure!(
        devices.len() >= data * model
            && options.batch.is_multiple_of(data)
            && options.heads.is_multiple_of(model),
        "a mesh of {data}x{model} needs as many devices ({} are there), a batch that divides by \
         {data} and heads that divide by {model}",
        devices.len()
    );
    devices[0].set_default();
    Ok(Mesh::new(&devices[..data * model], [("data", data), ("model", model)])?)
}

fn checkpoint_path(options: &Options) -> PathBuf {
    options.out.join("checkpoint.safetensors")
}

/// The first state, or that of the checkpoint, over the mesh; the first step to run, and the losses
/// up to there.
fn start(
    options: &Options,
    config: &Config,
    mesh: &Mesh,
) -> anyhow::Result<(State, usize, chart::Curves)> {
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("making {}", options.out.display()))?;
    let model = model::shard(&Gpt::new(config, &mut Init::seed(options.seed))?, mesh)?;
    let betas = (0.9, 0.99);
    let mut opt = AdamW::new(&model, AdamWOptions { lr: options.lr, betas, ..Default::default() })?;
    opt.step = opt.step.shard(mesh, spec![])?;
    opt.exp_avg = model::shard(&opt.exp_avg, mesh)?;
    opt.exp_avg_sq = model::shard(&opt.exp_avg_sq, mesh)?;
    let state = State { model, opt };
    if !options.resume {
        return Ok((state, 0, chart::Curves::default()));
    }
    let checkpoint = Checkpoint::open(checkpoint_path(options))?;
    let entry = |name: &str| {
        let entry = checkpoint.metadata().get(name);
        entry.with_context(|| format!("the checkpoint does not tell its {name}"))
    };
    let curves = chart::Curves {
        train: serde_json::from_str(entry("train_losses")?)?,
        validation: serde_json::from_str(entry("validation_losses")?)?,
    };
    Ok((checkpoint.restore(&state)?, entry("step")?.parse()?, curves))
}

/// Trains from step `first` on; gives the last validation loss.
fn train(
    options: &Options,
    config: &Config,
    mesh: &Mesh,
    text: &Text,
    state: &mut State,
    first: usize,
    curves: &mut chart::Curves,
) -> anyhow::Result<f64> {
    let rate = config.dropout;
    let step = jit(move |(model, opt, batch): &(Gpt, AdamW<Gpt>, Batch)| {
        let loss = |model: &Gpt| {
            model.loss(&batch.ids, &batch.targets, &Dropout::new(Some(&batch.key), rate))
        };
        let (loss, grads) = value_and_grad(loss)(model)?;
        let (grads, _) = clip_grad_norm(&grads, 1.0)?;
        let (model, opt) = opt.update(model, &grads)?;
        Ok((loss, model, opt))
    })
    .named("train_step")
    .donate([0, 1])
    .out_like([None, Some(0), Some(1)]);
    let evaluate = jit(|(model, ids, targets): &(Gpt, Tensor, Tensor)| {
        model.loss(ids, targets, &Dropout::new(None, 0.0))
    })
    .named("evaluate");
    let validation = text.validation(16, options.batch, options.context)?;
    let validation = validation
        .iter()
        .map(|(x, y)| Ok((x.shard(mesh, spec!["data"])?, y.shard(mesh, spec!["data"])?)))
        .collect::<Result<Vec<_>>>()?;
    let schedule =
        Schedule::cosine(options.lr, options.lr / 10.0, options.steps / 20, options.steps);

    let bar = ProgressBar::new(options.steps as u64).with_position(first as u64);
    bar.set_style(ProgressStyle::with_template(
        "{bar:30} {pos}/{len} [{elapsed_precise} < {eta_precise}] {msg}",
    )?);
    let started = Instant::now();
    let mut last = f64::NAN;
    let end = options.stop_at.map_or(options.steps, |stop| stop.min(options.steps));
    for at in first..end {
        let batch = text.batch(options.seed, at, options.batch, options.context)?;
        let batch = Batch {
            ids: batch.ids.shard(mesh, spec!["data"])?,
            targets: batch.targets.shard(mesh, spec!["data"])?,
            ..batch
        };
        let opt = state.opt.clone().with_lr(schedule.at(at));
        let (loss, model, opt) = step.call((state.model.clone(), opt, batch))?;
        *state = State { model, opt };
        let done = at + 1;
        // Reading a loss waits for the step, so not every one is read.
        if done % 10 == 0 || done == end {
            let loss = f64::from(loss.item::<f32>()?);
            anyhow::ensure!(loss.is_finite(), "the loss is {loss} at step {done}");
            let tokens = (done - first) * options.batch * options.context;
            let speed = tokens as f64 / started.elapsed().as_secs_f64();
            bar.set_message(format!("loss {loss:.4}, {speed:.0} tokens/s"));
            curves.train.push((done as f64, loss));
        }
        bar.inc(1);
        if done % options.every == 0 || done == end {
            let mut sum = 0.0;
            for (ids, targets) in &validation {
                let args = (state.model.clone(), ids.clone(), targets.clone());
                sum += f64::from(evaluate.call(args)?.item::<f32>()?);
            }
            last = sum / validation.len() as f64;
            curves.validation.push((done as f64, last));
            let line = format!("step {done}: validation loss {last:.4}");
            bar.suspend(|| println!("{line}"));
            let metadata = Metadata::from([
                ("step".to_string(), done.to_string()),
                ("train_losses".to_string(), serde_json::to_string(&curves.train)?),
                ("validation_losses".to_string(), serde_json::to_string(&curves.validation)?),
            ]);
            save(state, checkpoint_path(options), &metadata)?;
        }
    }
    bar.finish();
    Ok(last)
}

/// Text that the model writes, a character at a time.
fn write_text(options: &Options, mesh: &Mesh, text: &Text, model: &Gpt) -> anyhow::Result<String> {
    let context = options.context;
    let next = jit(|(model, ids, at, key): &(Gpt, Tensor, Tensor, Key)| {
        let logits = model.forward(ids, &Dropout::new(None, 0.0))?;
        let row = logits.select(0, 0)?.index_select(0, at)?.reshape([-1])?;
        // The largest of logits plus Gumbel noise is a draw from their softmax.
        let noise = key.fold_in(0)?.uniform(row.shape(), DType::F32, 1e-6, 1.0)?;
        (row / 0.8 - noise.log()?.neg()?.log()?).argmax(Some(0), false)
    })
    .named("next_character");
    let mut ids = text.encode("\nAnd the LORD said");
    let key = Key::new(options.seed.wrapping_add(1))?;
    for i in 0..options.sample {
        let mut window = ids[ids.len().saturating_sub(context)..].to_vec();
        let at = [window.len() as i64 - 1];
        window.resize(context, 0);
        let window = Tensor::from_slice(&window, [1, context])?.shard(mesh, spec![])?;
        let at = Tensor::from_slice(&at, [1])?;
        let args = (model.clone(), window, at, key.fold_in(i as u32)?);
        ids.push(next.call(args)?.item::<i64>()?);
    }
    Ok(text.decode(&ids))
}
