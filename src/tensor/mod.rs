//! Torch's methods on [`Tensor`], by family.
//!
//! A method normalises (promotion, broadcasting, negative dims, keepdim) and calls `ops`. What is
//! more than one primitive runs as one program through [`ops::call::fused`](crate::ops::call::fused).
//!
//! | module | methods |
//! |---|---|
//! | [`promotion`] | what operands of mixed dtypes and shapes become |
//! | [`arithmetic`] | `add`, `mul`, …, comparison, logic, `clamp`, `where_` |
//! | [`operators`] | `+ - * / % - ! & \| ^` |
//! | [`unary`] | `neg`, `exp`, `relu`, `gelu`, … |
//! | [`create`] | `zeros`, `arange`, `from_slice`, … |
//! | [`read`] | `shape`, `dtype`, `item`, `to_vec`, `to_dtype`, … |
//! | [`views`] | `view`, `permute`, `narrow`, `select`, … |
//! | [`mod@shape`] | `cat`, `stack`, `flip`, `roll`, `pad`, … |
//! | [`matmul`] | `matmul`, `mm`, `linear`, … |
//! | [`einsum`] | `einsum` |
//! | [`linalg`] | `cholesky`, `lu`, `solve`, `inv`, `det`, `diag_embed`, … |
//! | [`reduce`] | `sum`, `mean`, `argmax`, `softmax`, … |
//! | [`order`] | `sort`, `topk`, `cumsum`, … |
//! | [`index`] | `gather`, `scatter`, `index_select`, `embedding`, … |
//! | [`loss`] | `cross_entropy`, `mse_loss`, … |
//! | [`normalise`] | `layer_norm`, `batch_norm`, `scaled_dot_product_attention`, … |
//! | [`conv`] | `conv2d`, `conv_transpose2d`, … |
//! | [`random`] | `randn`, `rand`, `dropout`, …, `Generator`, `Key` |
//! | [`sharding`] | `shard`, `with_sharding_constraint`, `visualize_sharding` |
//! | [`inplace`] | `add_`, `copy_`, … |
//! | [`mod@autograd`] | `requires_grad_`, `backward`, `grad`, hooks, `no_grad`, `detach`, `copy` |
//! | [`debug`] | `debug_print`, `debug_callback` |
//! | [`print`](mod@print) | `Display` |

pub mod arithmetic;
pub mod autograd;
pub mod conv;
pub mod create;
pub mod debug;
pub mod einsum;
pub mod index;
pub mod inplace;
pub mod linalg;
pub mod loss;
pub mod matmul;
pub mod normalise;
pub mod operators;
pub mod order;
pub mod print;
pub mod promotion;
pub mod random;
pub mod read;
pub mod reduce;
pub mod shape;
pub mod sharding;
pub mod unary;
pub mod views;

use crate::error::Result;
use crate::trace::Value;
use crate::trace::cell::Tensor;
use crate::trace::source::label_value;
pub(crate) use crate::trace::source::placed;
use std::panic::Location;

/// Puts an operation's result into a tensor, or the caller's place into its error.
///
/// Every public method ends in this and is `#[track_caller]`, so that the place is the user's.
#[track_caller]
pub(crate) fn wrap(result: Result<Value>) -> Result<Tensor> {
    let value = placed(result)?;
    label_value(&value, Location::caller());
    Ok(Tensor::from_value(value))
}
