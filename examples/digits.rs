//! A small convolutional network that reads handwritten digits: trains in seconds, and prints what
//! share of 297 digits that it has not seen it reads right.

#![expect(clippy::print_stdout, reason = "an example prints")]

use anyhow::{Context, Result};
use clap::Parser;
use flate2::read::GzDecoder;
use oxbridge::nn::*;
use oxbridge::optim::{AdamW, AdamWOptions, Schedule};
use oxbridge::prelude::{Result as Outcome, *};
use oxbridge::tensor::conv::Conv;
use oxbridge::tensor::loss::CrossEntropy;
use oxbridge::tensor::random::manual_seed;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Rows that are trained on; the rest are for the test.
const TRAINING: i64 = 1500;

/// Trains a small convolutional network on handwritten digits.
#[derive(Parser)]
struct Args {
    /// Times that all training digits are gone through.
    #[arg(long, default_value_t = 15)]
    epochs: usize,
    /// Digits in a step.
    #[arg(long, default_value_t = 50)]
    batch: usize,
    /// Highest learning rate.
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,
    /// Seed of the split, the first values and the dropout.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The data.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz"))]
    data: PathBuf,
}

#[derive(Clone, Debug, Module)]
struct Net {
    conv1: Conv2d,
    norm1: BatchNorm2d,
    conv2: Conv2d,
    norm2: BatchNorm2d,
    dropout: Dropout,
    out: Linear,
}

impl Net {
    fn new(init: &mut Init) -> Outcome<Net> {
        let same = Conv { padding: [1, 1], ..Conv::default() };
        Ok(Net {
            conv1: Conv2d::new(1, 16, [3, 3], same, init)?,
            norm1: BatchNorm2d::new(16, init)?,
            conv2: Conv2d::new(16, 32, [3, 3], same, init)?,
            norm2: BatchNorm2d::new(32, init)?,
            dropout: Dropout::new(0.25)?,
            out: Linear::new(32 * 4 * 4, 10, init)?,
        })
    }
}

impl Layer for Net {
    fn forward(&self, x: &Tensor) -> Outcome<Tensor> {
        let x = self.norm1.forward(&self.conv1.forward(x)?)?.relu()?;
        let x = self.norm2.forward(&self.conv2.forward(&x)?)?.relu()?;
        let x = MaxPool2d::new(2).forward(&x)?.flatten(1, -1)?;
        self.out.forward(&self.dropout.forward(&x)?)
    }
}

/// Images `[n, 1, 8, 8]` from 0 to 1, and labels `[n]`.
fn read(path: &Path) -> Result<(Tensor, Tensor)> {
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(GzDecoder::new(file));
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for row in reader.deserialize() {
        let row: Vec<u8> = row?;
        let (label, image) = row.split_last().context("an empty row")?;
        labels.push(i64::from(*label));
        pixels.extend(image.iter().map(|p| f32::from(*p) / 16.0));
    }
    let n = labels.len();
    Ok((Tensor::from_slice(&pixels, [n, 1, 8, 8])?, Tensor::from_slice(&labels, [n])?))
}

fn main() -> Result<()> {
    let args = Args::parse();
    manual_seed(args.seed)?;
    let (images, labels) = read(&args.data)?;
    let order = Tensor::randperm(labels.numel())?;
    let (train, test) =
        (order.slice(0, None, Some(TRAINING), 1)?, order.slice(0, Some(TRAINING), None, 1)?);
    let rows = |rows: &Tensor| -> Outcome<(Tensor, Tensor)> {
        Ok((images.index_select(0, rows)?, labels.index_select(0, rows)?))
    };

    let mut model = Net::new(&mut Init::seed(args.seed))?;
    let mut opt = AdamW::new(&model, AdamWOptions::default())?;
    let step = jit(|(model, opt, batch): (Net, AdamW<Net>, Tensor)| {
        let (x, y) = rows(&batch)?;
        let loss = |m: &Net| m.forward(&x)?.cross_entropy(&y, CrossEntropy::default());
        let (value, grads) = value_and_grad(loss)(&model)?;
        let (model, opt) = opt.update(&model, &grads)?;
        Ok((model, opt, value))
    })
    .donate([0, 1])
    .named("step");

    let start = Instant::now();
    let batches = TRAINING as usize / args.batch.clamp(1, TRAINING as usize);
    let schedule = Schedule::cosine(args.lr, 0.0, batches, batches * args.epochs);
    for epoch in 0..args.epochs {
        let shuffled = train.index_select(0, &Tensor::randperm(TRAINING as usize)?)?;
        let mut sum = 0.0;
        for k in 0..batches {
            let batch = shuffled.narrow(0, (k * args.batch) as i64, args.batch)?;
            let value;
            let rate = schedule.at(epoch * batches + k);
            (model, opt, value) = step.call((model, opt.with_lr(rate), batch))?;
            sum += value.item::<f32>()?;
        }
        println!("epoch {:2}  loss {:.4}", epoch + 1, sum / batches as f32);
    }

    model.eval();
    let (x, y) = rows(&test)?;
    let read = model.forward(&x)?.argmax(Some(1), false)?;
    let right = read.eq(&y)?.to_dtype(DType::F32)?.mean()?.item::<f32>()?;
    println!(
        "test accuracy {:.2} % of {} digits, in {:.1} s",
        100.0 * right,
        y.numel(),
        start.elapsed().as_secs_f32()
    );
    Ok(())
}
