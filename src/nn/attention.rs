//! Attention of several heads.

use super::init::Init;
use super::linear::Linear;
use super::module::Layer;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::normalise::Attention;
use crate::tensor::placed;
use crate::trace::cell::Tensor;
use oxbridge_derive::Module;

/// Several heads of attention over parts of the width, with projections before and after.
///
/// **Shapes:** `[n, t, width]` (torch's `batch_first`) gives the same.
///
/// # Example
/// ```
/// use oxbridge::nn::MultiheadAttention;
/// use oxbridge::prelude::*;
/// let layer = MultiheadAttention::new(8, 2, &mut Init::seed(0))?.causal();
/// let y = layer.forward(&Tensor::ones([1, 3, 8], DType::F32)?)?;
/// assert_eq!(y.shape(), Shape::from([1, 3, 8]));
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.nn.MultiheadAttention](https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html).
#[derive(Clone, Debug, Module)]
pub struct MultiheadAttention {
    /// Those of queries, keys and values: `[3 * width, width]`.
    pub in_proj_weight: Tensor,
    /// `[3 * width]`.
    pub in_proj_bias: Tensor,
    /// The projection of all heads' results.
    pub out_proj: Linear,
    /// How many parts the width is split into.
    #[tree(static)]
    pub num_heads: usize,
    /// Whether later places are hidden from earlier ones.
    #[tree(static)]
    pub causal: bool,
}

impl MultiheadAttention {
    /// A layer with torch's first values that hides nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] if the width is not a multiple of the heads.
    pub fn new(width: usize, num_heads: usize, init: &mut Init) -> Result<MultiheadAttention> {
        if num_heads == 0 || !width.is_multiple_of(num_heads) {
            let text = format!("a width of {width} cannot be split among {num_heads} heads");
            return Err(Error::new(ErrorKind::Value, "multihead_attention", text));
        }
        let in_proj_weight = init.xavier_uniform([3 * width, width])?;
        let out = Linear::without_bias(width, width, init)?;
        Ok(MultiheadAttention {
            in_proj_weight,
            in_proj_bias: init.full([3 * width], 0.0)?,
            out_proj: Linear { bias: Some(init.full([width], 0.0)?), ..out },
            num_heads,
            causal: false,
        })
    }

    /// The same layer, hiding later places from earlier ones.
    #[must_use]
    pub fn causal(self) -> MultiheadAttention {
        MultiheadAttention { causal: true, ..self }
    }

    /// Attention of `query` to other sequences.
    ///
    /// **Shapes:** `[n, t, width]`, `[n, s, width]` and `[n, s, width]` give `[n, t, width]`.
    ///
    /// # Errors
    /// If shapes or dtypes do not fit.
    #[track_caller]
    pub fn attend(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let width = self.out_proj.weight.shape()[0] as i64;
        let mut heads = Vec::new();
        for (i, x) in [query, key, value].into_iter().enumerate() {
            placed(check(x, width))?;
            let start = i as i64 * width;
            let weight = self.in_proj_weight.narrow(0, start, width as usize)?;
            let bias = self.in_proj_bias.narrow(0, start, width as usize)?;
            heads.push(split_heads(&x.linear(&weight, Some(&bias))?, self.num_heads)?);
        }
        let options = Attention { is_causal: self.causal, ..Attention::default() };
        let out = heads[0].scaled_dot_product_attention(&heads[1], &heads[2], options)?;
        self.out_proj.forward(&merge_heads(&out)?)
    }
}

/// The width as heads: `[n, t, width]` gives `[n, heads, t, width / heads]`.
///
/// # Errors
/// If the width is not a multiple of the heads.
#[track_caller]
pub fn split_heads(x: &Tensor, heads: usize) -> Result<Tensor> {
    x.unflatten(-1, [heads as i64, -1])?.transpose(-3, -2)
}

/// The heads side by side: the inverse of [`split_heads`].
///
/// # Errors
/// If there are fewer than three dims.
#[track_caller]
pub fn merge_heads(x: &Tensor) -> Result<Tensor> {
    x.transpose(-3, -2)?.flatten(-2, -1)
}

fn check(x: &Tensor, width: i64) -> Result<()> {
    if x.dim() == 3 && x.shape()[2] as i64 == width {
        return Ok(());
    }
    let text = format!("takes [n, t, {width}], not {}", x.aval());
    Err(Error::new(ErrorKind::Shape, "multihead_attention", text))
}

impl Layer for MultiheadAttention {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.attend(x, x, x)
    }
}
