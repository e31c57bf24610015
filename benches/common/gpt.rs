//! The model that the benchmarks train: `gpt12` and the same with fewer or more layers.
//!
//! Width 256, 8 heads, 128 places, a batch of 4, a vocabulary of 1024; pre-norm blocks, learned
//! positions, an untied head without bias, no dropout. The loss is the mean cross entropy of all
//! 512 places; the optimiser is AdamW on all parameters.

use oxbridge::nn::{LayerNorm, Linear};
use oxbridge::optim::{AdamW, AdamWOptions};
use oxbridge::prelude::*;
use oxbridge::tensor::loss::CrossEntropy;
use oxbridge::tensor::normalise::Attention;
use oxbridge::tensor::unary::Approximate;

pub(crate) const WIDTH: usize = 256;
pub(crate) const HEADS: usize = 8;
pub(crate) const PLACES: usize = 128;
pub(crate) const BATCH: usize = 4;
pub(crate) const VOCABULARY: usize = 1024;

/// What an array of parameters starts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Drawn from `N(0, 0.02)`; a matrix that a layer multiplies by is drawn as `[in, out]`.
    Normal,
    /// All ones.
    One,
    /// All zeros.
    Zero,
}

/// The model; names and layouts are torch's.
#[derive(Clone, Debug, Module)]
pub(crate) struct Gpt {
    pub(crate) tokens: Tensor,
    pub(crate) positions: Tensor,
    pub(crate) head: Linear,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: LayerNorm,
}

/// One block: attention, then an MLP, each on a normed copy and added back.
#[derive(Clone, Debug, Module)]
pub(crate) struct Block {
    pub(crate) norm1: LayerNorm,
    pub(crate) qkv: Linear,
    pub(crate) proj: Linear,
    pub(crate) norm2: LayerNorm,
    pub(crate) fc1: Linear,
    pub(crate) fc2: Linear,
}

/// What one step takes and, but for the batch, gives anew.
pub(crate) type State = (Gpt, AdamW<Gpt>);

fn linear(
    inputs: usize,
    outputs: usize,
    bias: bool,
    make: &mut impl FnMut(Start, [usize; 2]) -> Result<Tensor>,
) -> Result<Linear> {
    let weight = make(Start::Normal, [inputs, outputs])?.t()?;
    let bias = bias.then(|| make(Start::Zero, [1, outputs])?.reshape([-1])).transpose()?;
    Ok(Linear { weight, bias })
}

fn norm(make: &mut impl FnMut(Start, [usize; 2]) -> Result<Tensor>) -> Result<LayerNorm> {
    let weight = make(Start::One, [1, WIDTH])?.reshape([-1])?;
    let bias = make(Start::Zero, [1, WIDTH])?.reshape([-1])?;
    Ok(LayerNorm { weight, bias: Some(bias), eps: 1e-5 })
}

impl Gpt {
    /// A model whose arrays `make` gives, asked for in the order in which they are drawn.
    pub(crate) fn new(
        layers: usize,
        make: &mut impl FnMut(Start, [usize; 2]) -> Result<Tensor>,
    ) -> Result<Gpt> {
        Ok(Gpt {
            tokens: make(Start::Normal, [VOCABULARY, WIDTH])?,
            positions: make(Start::Normal, [PLACES, WIDTH])?,
            head: linear(WIDTH, VOCABULARY, false, make)?,
            blocks: (0..layers).map(|_| Block::new(make)).collect::<Result<_>>()?,
            norm: norm(make)?,
        })
    }

    /// The embedded tokens, before the first block.
    pub(crate) fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        ids.embedding(&self.tokens)?.add(&self.positions)
    }

    /// The mean cross entropy from what the last block gave.
    pub(crate) fn loss_of(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let logits = self.head.forward(&self.norm.forward(x)?)?;
        logits
            .reshape([-1, VOCABULARY as i64])?
            .cross_entropy(&targets.reshape([-1])?, CrossEntropy::default())
    }

    /// The mean cross entropy of the next tokens, layer after layer.
    pub(crate) fn loss(&self, ids: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let x = self.embed(ids)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.forward(&x))?;
        self.loss_of(&x, targets)
    }
}

impl Block {
    fn new(make: &mut impl FnMut(Start, [usize; 2]) -> Result<Tensor>) -> Result<Block> {
        Ok(Block {
            norm1: norm(make)?,
            qkv: linear(WIDTH, 3 * WIDTH, true, make)?,
            proj: linear(WIDTH, WIDTH, true, make)?,
            norm2: norm(make)?,
            fc1: linear(WIDTH, 4 * WIDTH, true, make)?,
            fc2: linear(4 * WIDTH, WIDTH, true, make)?,
        })
    }

    /// `[batch, places, width]` to the same.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.add(&self.attention(&self.norm1.forward(x)?)?)?;
        let hidden = self.fc1.forward(&self.norm2.forward(&x)?)?.gelu(Approximate::Tanh)?;
        x.add(&self.fc2.forward(&hidden)?)
    }

    /// The columns of `qkv` are ordered (head, {q, k, v}, place in the head).
    fn attention(&self, x: &Tensor) -> Result<Tensor> {
        let [batch, places, width] = [BATCH, PLACES, WIDTH].map(|n| n as i64);
        let heads = HEADS as i64;
        let qkv = self.qkv.forward(x)?.reshape([batch, places, heads, 3, width / heads])?;
        let parts = qkv.permute([3, 0, 2, 1, 4])?.unbind(0)?;
        let causal = Attention { is_causal: true, ..Attention::default() };
        let mixed = parts[0].scaled_dot_product_attention(&parts[1], &parts[2], causal)?;
        self.proj.forward(&mixed.transpose(1, 2)?.reshape([batch, places, width])?)
    }
}

/// The optimiser's state before the first step.
pub(crate) fn adamw(model: &Gpt) -> Result<AdamW<Gpt>> {
    let options = AdamWOptions { lr: 3e-4, betas: (0.9, 0.95), eps: 1e-8, weight_decay: 0.1 };
    AdamW::new(model, options)
}

/// One step of training by the given loss: new state and the loss before it.
pub(crate) fn step(
    (model, optimiser): &State,
    loss: impl Fn(&Gpt) -> Result<Tensor>,
) -> Result<(State, Tensor)> {
    let (value, gradient) = value_and_grad(loss)(model)?;
    Ok((optimiser.update(model, &gradient)?, value))
}
