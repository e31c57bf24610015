//! Value and gradient of a small perceptron, `mlp3`: eager, where each operation runs at once, by
//! `backward` in torch's manner, and under `jit`.
//!
//! Batch 32, widths 64, 128, 128, 10, GELU by `tanh`, mean cross entropy; all six arrays' gradients.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

#[path = "common/figures.rs"]
mod figures;

use figures::{median, timed};
use oxbridge::nn::Linear;
use oxbridge::prelude::*;
use oxbridge::tensor::loss::CrossEntropy;
use oxbridge::tensor::unary::Approximate;
use oxbridge::transforms::tree::{leaves, tree_map};

const BATCH: usize = 32;
const WIDTHS: [usize; 4] = [64, 128, 128, 10];
const ROUNDS: usize = 300;

type BenchResult<T = ()> = anyhow::Result<T>;
type Mlp = Vec<Linear>;

fn loss(layers: &Mlp, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let mut x = x.clone();
    for (i, layer) in layers.iter().enumerate() {
        x = layer.forward(&x)?;
        if i + 1 < layers.len() {
            x = x.gelu(Approximate::Tanh)?;
        }
    }
    x.cross_entropy(targets, CrossEntropy::default())
}

/// The median time of a call whose results are waited for.
fn time(name: &str, mut f: impl FnMut() -> Result<(Tensor, Mlp)>) -> BenchResult {
    let mut times = Vec::new();
    for round in 0..ROUNDS + ROUNDS / 10 {
        let (time, out) = timed(|| -> Result<()> {
            let (_, gradient) = f()?;
            leaves(&gradient).iter().try_for_each(|t| t.value()?.concrete("bench")?.block())
        });
        out?;
        if round >= ROUNDS / 10 {
            times.push(time);
        }
    }
    println!("{name}: {:.3} ms", median(&times));
    Ok(())
}

fn main() -> BenchResult {
    let mut init = Init::seed(0);
    let pairs = WIDTHS.iter().zip(&WIDTHS[1..]);
    let mlp: Mlp = pairs.map(|(&i, &o)| Linear::new(i, o, &mut init)).collect::<Result<_>>()?;
    let x = init.normal([BATCH, WIDTHS[0]], 0.0, 1.0)?;
    let targets: Vec<i64> = (0..BATCH as i64).map(|i| i % 10).collect();
    let targets = Tensor::from_slice(&targets, [BATCH])?;
    let f = value_and_grad(|mlp: &Mlp| loss(mlp, &x, &targets));
    let (first, out) = timed(|| f(&mlp));
    drop(out?);
    println!("mlp3_value_and_grad_first: {first:.0} ms");
    time("mlp3_value_and_grad", || f(&mlp))?;
    let client = Client::default()?;
    let before = client.metrics();
    drop(f(&mlp)?);
    println!("  {} programs run in one call", client.metrics().since(&before).executions);
    let leaf: Mlp = tree_map(&mlp, |p| p.copy()?.detach()?.requires_grad_(true))?;
    time("mlp3_backward", || {
        leaf.zero_grad()?;
        let value = loss(&leaf, &x, &targets)?;
        value.backward()?;
        Ok((value, tree_map(&leaf, |p| Ok(p.grad().unwrap_or_else(|| p.clone())))?))
    })?;
    let step = jit(|(mlp, x, targets): &(Mlp, Tensor, Tensor)| {
        value_and_grad(|mlp: &Mlp| loss(mlp, x, targets))(mlp)
    });
    time("mlp3_jit_value_and_grad", || step.call((&mlp, &x, &targets)))?;
    Ok(())
}
