//! JAX's StableHLO for the same step, and our state in its order of operands.

use crate::gpt::{Gpt, PLACES};
use flate2::read::GzDecoder;
use oxbridge::Result;
use oxbridge::backend::host::HostArray;
use oxbridge::nn::{LayerNorm, Linear};
use oxbridge::prelude::*;
use std::io::Read;
use std::path::Path;

const NAME: &str = "gpt12_jax_step.mlir";

/// The text: from the folder that `OXBRIDGE_BENCH_DATA` names, or the one kept here.
pub(crate) fn stablehlo() -> anyhow::Result<String> {
    if let Some(folder) = std::env::var_os("OXBRIDGE_BENCH_DATA") {
        return Ok(std::fs::read_to_string(Path::new(&folder).join(NAME))?);
    }
    let file = format!("{}/benches/data/{NAME}.gz", env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(file)?).read_to_string(&mut text)?;
    Ok(text)
}

/// The same program, allowed to write the new state over the old one as ours is: operand `i` of
/// main gives its memory to result `i`, but for the batch and the mask.
pub(crate) fn donating(text: &str) -> String {
    let Some((head, rest)) = text.split_once(") -> ") else { return text.into() };
    let mut parts: Vec<String> = head.split("%arg").map(str::to_owned).collect();
    // The first part stands before all operands, the last three operands are kept.
    let count = parts.len();
    for (i, part) in parts.iter_mut().enumerate().take(count - 3).skip(1) {
        if let Some(at) = part.find('>') {
            part.insert_str(at + 1, &format!(" {{tf.aliasing_output = {} : i32}}", i - 1));
        }
    }
    format!("{}) -> {rest}", parts.join("%arg"))
}

fn push_norm(out: &mut Vec<Tensor>, norm: &LayerNorm) {
    out.extend(norm.bias.clone());
    out.push(norm.weight.clone());
}

fn push_linear(out: &mut Vec<Tensor>, linear: &Linear) -> Result<()> {
    out.extend(linear.bias.clone());
    out.push(linear.weight.t()?);
    Ok(())
}

/// Parameters in the order of their names.
fn parameters(model: &Gpt) -> Result<Vec<Tensor>> {
    let mut out = Vec::new();
    for block in &model.blocks {
        push_linear(&mut out, &block.fc1)?;
        push_linear(&mut out, &block.fc2)?;
        push_norm(&mut out, &block.norm1);
        push_norm(&mut out, &block.norm2);
        push_linear(&mut out, &block.proj)?;
        push_linear(&mut out, &block.qkv)?;
    }
    push_linear(&mut out, &model.head)?;
    push_norm(&mut out, &model.norm);
    out.extend([model.positions.clone(), model.tokens.clone()]);
    Ok(out)
}

/// All operands before the first step.
pub(crate) fn operands(model: &Gpt, (ids, targets): &(Tensor, Tensor)) -> Result<Vec<HostArray>> {
    let host = |t: &Tensor| t.value()?.concrete("bench")?.to_host();
    let mut out = parameters(model)?.iter().map(host).collect::<Result<Vec<_>>>()?;
    let zeros: Vec<HostArray> =
        out.iter().map(|p| HostArray::full(Scalar::new(0f32), p.shape())).collect();
    out.extend(zeros.iter().cloned());
    out.push(HostArray::full(Scalar::new(0f32), &Shape::scalar()));
    out.extend(zeros);
    out.extend([host(ids)?, host(targets)?]);
    let mask: Vec<bool> = (0..PLACES * PLACES).map(|i| i % PLACES <= i / PLACES).collect();
    out.push(HostArray::from_slice(&mask, &[1, 1, PLACES, PLACES].into())?);
    Ok(out)
}
