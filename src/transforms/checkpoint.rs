//! `checkpoint`: reverse mode with less memory and more work.

use super::catch::catch;
use super::control::bare;
use super::custom::just_runs;
use super::tree::{Tree, values_of, with_values};
use crate::error::{Error, ErrorKind, Result};
pub use crate::ops::checkpoint::Policy;
use crate::ops::checkpoint::{Checkpoint, checkpoint_name as named};
use crate::ops::region::intern;
use crate::trace::cell::Tensor;
use crate::trace::record::Recorder;
use crate::trace::{Value, Values, bind};

/// `f`, whose derivative keeps `f`'s argument only and works out again what it needs in between.
///
/// Without it reverse mode keeps the values of the whole program from the forward pass to the
/// backward pass. With one `checkpoint` around each layer it keeps the layers' arguments, and the
/// insides of one layer at a time: a transformer's memory grows with its layers by one activation
/// each, for about a third more work. What `f` captures counts as argument. Values and derivatives
/// are those of `f`, of any order and in all other transforms. Inside of a transform `f` runs on
/// tracers. With torch's `backward` a tensor of the argument has to require grad, or `f` just runs.
///
/// # Errors
/// What `f` says.
///
/// # Example
/// Blocks of a net in a loop, each of them checkpointed: the loop keeps one row for each step, the
/// state that goes into the block, and nothing of what is inside.
/// ```
/// use oxbridge::prelude::*;
/// use oxbridge::transforms::jit::make_graph;
///
/// type Block = (Tensor, Tensor);
/// let block = |((up, down), x): &(Block, Tensor)| x.add(&x.matmul(up)?.tanh()?.matmul(down)?);
/// let plain = |(layers, x): &(Block, Tensor)| {
///     let step = |x: &Tensor, layer: &Block| Ok((block(&(layer.clone(), x.clone()))?, ()));
///     scan(step, x, layers, ScanOptions::default())?.0.sum()
/// };
/// let light = |(layers, x): &(Block, Tensor)| {
///     let block = checkpoint(block);
///     let step = |x: &Tensor, layer: &Block| Ok((block(&(layer.clone(), x.clone()))?, ()));
///     scan(step, x, layers, ScanOptions::default())?.0.sum()
/// };
///
/// let weights = |shape: [usize; 3]| Tensor::full(shape, 0.1, DType::F32);
/// let layers = (weights([12, 8, 32])?, weights([12, 32, 8])?);
/// let args = (layers, Tensor::full([4, 8], 0.01, DType::F32)?);
/// let (want, got) = (grad(plain)(&args)?, grad(light)(&args)?);
/// for (a, b) in got.0.0.to_vec::<f32>()?.iter().zip(want.0.0.to_vec::<f32>()?) {
///     assert!((a - b).abs() <= 1e-5 * b.abs());
/// }
///
/// // The hidden activations of all 12 blocks, which the plain loop keeps, are not among the values.
/// let hidden = "f32[12,4,32]";
/// assert!(make_graph(grad(plain))(&args)?.to_string().contains(hidden));
/// assert!(!make_graph(grad(light))(&args)?.to_string().contains(hidden));
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** `jax.checkpoint`; [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html).
pub fn checkpoint<A: Tree, B: Tree>(f: impl Fn(&A) -> Result<B>) -> impl Fn(&A) -> Result<B> {
    checkpoint_with(f, Policy::Nothing)
}

/// [`checkpoint`] with a choice of what is kept besides the argument.
///
/// A policy sees into functions that `f` calls, also jitted ones, but not into the bodies of loops
/// and branches: a loop is one operation, which runs again if its results are not kept. Put the
/// `checkpoint` into the body instead.
///
/// # Errors
/// What `f` says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let layer = |x: &Tensor| checkpoint_name(&x.sin()?, "wave")?.exp()?.sin();
/// let x = Tensor::from_slice(&[1f32, 2.], [2])?;
/// let want = vjp(layer, &x)?.1(&x)?.to_vec::<f32>()?;
/// for policy in [Policy::names(["wave"]), Policy::Dots, Policy::all_but_names(["wave"])] {
///     assert_eq!(vjp(checkpoint_with(layer, policy), &x)?.1(&x)?.to_vec::<f32>()?, want);
/// }
/// # Ok::<(), Error>(())
/// ```
pub fn checkpoint_with<A: Tree, B: Tree>(
    f: impl Fn(&A) -> Result<B>,
    policy: Policy,
) -> impl Fn(&A) -> Result<B> {
    move |args| {
        let mut operands = values_of(args)?;
        if just_runs(&operands) {
            return f(args);
        }
        let mut out = None;
        let recorded = Recorder::record("checkpoint", &bare(&operands), |xs: &[Value]| {
            let args = with_values(args, xs.iter().cloned())?;
            let tree = catch(|| f(&args))?;
            let values = values_of(&tree)?;
            out = Some((tree, values.len()));
            Ok(values)
        })?;
        let (out, results) =
            out.ok_or_else(|| Error::new(ErrorKind::NoRule, "checkpoint", "was not run"))?;
        for source in &recorded.hidden {
            operands.push(source.value()?);
        }
        let graph = intern(recorded.graph);
        let prim = Checkpoint { graph, policy: policy.clone(), barrier: false };
        let mut outs = bind(&prim, &operands)?;
        let written: Values = outs.drain(results..).collect();
        // What the function writes in place, such as the state of a random generator, is written
        // once, by the first run.
        for (cell, value) in recorded.written.iter().zip(written) {
            cell.write(value);
        }
        with_values(&out, outs)
    }
}

/// `x`, under a name by which a [`Policy`] may keep it or not.
///
/// The name belongs to the value: it may be given before or after the operation that needs it.
/// Outside of [`checkpoint_with`] it means nothing.
///
/// # Errors
/// If the tensor cannot be read.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2.], [2])?;
/// assert_eq!(checkpoint_name(&x, "x")?.to_vec::<f32>()?, [1., 2.]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn checkpoint_name(x: &Tensor, name: &str) -> Result<Tensor> {
    Ok(Tensor::from_value(named(&x.value()?, name)?))
}
