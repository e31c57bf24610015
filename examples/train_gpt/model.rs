//! A character GPT: pre-norm blocks, learned positions, an untied head.

use oxbridge::nn::{Init, LayerNorm, Linear};
use oxbridge::prelude::*;
use oxbridge::tensor::loss::CrossEntropy;
use oxbridge::tensor::normalise::Attention;
use oxbridge::tensor::random::Key;
use oxbridge::tensor::unary::Approximate;

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) width: usize,
    pub(crate) dropout: f64,
}

/// The model. Names and layouts are torch's.
#[derive(Clone, Debug, Module)]
pub(crate) struct Gpt {
    pub(crate) tokens: Tensor,
    pub(crate) positions: Tensor,
    pub(crate) layers: Vec<Block>,
    pub(crate) norm: LayerNorm,
    pub(crate) head: Linear,
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
    #[tree(static)]
    heads: usize,
}

/// Draws dropout masks, each from a key of its own; none in evaluation.
pub(crate) struct Dropout<'k> {
    key: Option<&'k Key>,
    rate: f64,
    draws: std::cell::Cell<u32>,
}

impl<'k> Dropout<'k> {
    pub(crate) fn new(key: Option<&'k Key>, rate: f64) -> Dropout<'k> {
        Dropout { key: key.filter(|_| rate > 0.0), rate, draws: std::cell::Cell::new(0) }
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let Some(key) = self.key else { return Ok(x.clone()) };
        let draw = self.draws.replace(self.draws.get() + 1);
        let keep = 1.0 - self.rate;
        let mask = key.fold_in(draw)?.bernoulli(keep as f32, x.shape())?;
        (x / keep).where_(&mask, 0.0)
    }
}

impl Gpt {
    pub(crate) fn new(config: &Config, init: &mut Init) -> Result<Gpt> {
        let width = config.width;
        Ok(Gpt {
            tokens: init.normal([config.vocabulary, width], 0.0, 0.02)?,
            positions: init.normal([config.context, width], 0.0, 0.02)?,
            layers: (0..config.layers).map(|_| Block::new(config, init)).collect::<Result<_>>()?,
            norm: LayerNorm::new([width], init)?,
            head: Linear::without_bias(width, config.vocabulary, init)?,
        })
    }

    /// Logits `[batch, time, vocabulary]` for characters `[batch, time]`.
    pub(crate) fn forward(&self, ids: &Tensor, dropout: &Dropout<'_>) -> Result<Tensor> {
        let time = ids.size(-1)?;
        let x = ids.embedding(&self.tokens)?;
        let x = dropout.apply(&(x + self.positions.narrow(0, 0, time)?))?;
        let x = self.layers.iter().try_fold(x, |x, block| block.forward(&x, dropout))?;
        self.head.forward(&self.norm.forward(&x)?)
    }

    /// The mean cross entropy of the next characters, in nats.
    pub(crate) fn loss(
        &self,
        ids: &Tensor,
        targets: &Tensor,
        dropout: &Dropout<'_>,
    ) -> Result<Tensor> {
        let logits = self.forward(ids, dropout)?;
        let vocabulary = logits.size(-1)? as i64;
        logits
            .reshape([-1, vocabulary])?
            .cross_entropy(&targets.reshape([-1])?, CrossEntropy::default())
    }
}

impl Block {
    fn new(config: &Config, init: &mut Init) -> Result<Block> {
        let width = config.width;
        Ok(Block {
            norm1: LayerNorm::new([width], init)?,
            qkv: Linear::new(width, 3 * width, init)?,
            proj: Linear::new(width, width, init)?,
            norm2: LayerNorm::new([width], init)?,
            fc1: Linear::new(width, 4 * width, init)?,
            fc2: Linear::new(4 * width, width, init)?,
            heads: config.heads,
        })
    }

    fn forward(&self, x: &Tensor, dropout: &Dropout<'_>) -> Result<Tensor> {
        let mixed = self.attention(&self.norm1.forward(x)?)?;
        let x = x + dropout.apply(&mixed)?;
        let hidden = self.fc1.forward(&self.norm2.forward(&x)?)?.gelu(Approximate::Tanh)?;
        Ok(&x + dropout.apply(&self.fc2.forward(&hidden)?)?)
    }

    /// Causal self-attention; the columns of `qkv` are ordered (head, {q, k, v}, place in the head),
    /// so that a mesh axis splits them by heads.
    fn attention(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, time, width) = (x.size(0)? as i64, x.size(1)? as i64, x.size(2)? as i64);
        let heads = self.heads as i64;
        let qkv = self.qkv.forward(x)?.reshape([batch, time, heads, 3, width / heads])?;
        let parts = qkv.permute([3, 0, 2, 1, 4])?.unbind(0)?;
        let causal = Attention { is_causal: true, ..Attention::default() };
        let mixed = parts[0].scaled_dot_product_attention(&parts[1], &parts[2], causal)?;
        self.proj.forward(&mixed.transpose(1, 2)?.reshape([batch, time, width])?)
    }
}

/// How the parameter of a name is split over a mesh with the axes `data` and `model`: the wide side
/// of each product over `model`, everything else whole.
pub(crate) fn spec_of(name: &str) -> PartitionSpec {
    match name.rsplit_once("layers.").map_or(name, |(_, rest)| rest) {
        n if n.ends_with("qkv.weight") || n.ends_with("fc1.weight") => spec!["model", None],
        n if n.ends_with("qkv.bias") || n.ends_with("fc1.bias") => spec!["model"],
        n if n.ends_with("proj.weight") || n.ends_with("fc2.weight") => spec![None, "model"],
        _ => spec![],
    }
}

/// A tree of the model's structure (the model, or a running mean of it) over a mesh.
pub(crate) fn shard<T: Module>(tree: &T, mesh: &Mesh) -> Result<T> {
    let names: Vec<String> = tree.named_parameters().into_iter().map(|(name, _)| name).collect();
    let mut names = names.iter();
    tree.map(&mut |tensor| {
        let spec = names.next().map_or_else(|| spec![], |name| spec_of(name));
        tensor.shard(mesh, spec)
    })
}
