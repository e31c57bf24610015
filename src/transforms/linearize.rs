//! Functions linear in a tangent or cotangent: `linearize`, `vjp`; and what all derivatives share.

use super::catch::catch;
use super::tree::{Leaves, Tree, leaf_name, leaves, values_of, with_values};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::create::or_zeros;
use crate::trace::cell::Tensor;
use crate::trace::linear::{self, Linearized};
use crate::trace::primitive::Tangents;
use crate::trace::{Value, Values};

/// A function without auxiliary output as one that has an empty one.
pub(super) fn no_aux<A, B>(f: impl Fn(&A) -> Result<B>) -> impl Fn(&A) -> Result<(B, ())> {
    move |args| Ok((f(args)?, ()))
}

/// Runs `f` on a tree of the given values and gives its results with the values of their leaves.
pub(super) fn run<A: Tree, B: Tree, X: Tree>(
    f: &impl Fn(&A) -> Result<(B, X)>,
    like: &A,
    values: &[Value],
) -> Result<((B, X), Values)> {
    let args = with_values(like, values.iter().cloned())?;
    let out = catch(|| f(&args))?;
    let values = values_of(&out)?;
    Ok((out, values))
}

/// The function's results, and what is linear in the argument's tangents: those of the first result,
/// not of the auxiliary one.
pub(super) fn linearized<A: Tree, B: Tree, X: Tree>(
    name: &'static str,
    f: &impl Fn(&A) -> Result<(B, X)>,
    args: &A,
) -> Result<((B, X), Linearized)> {
    let primals = values_of(args)?;
    let active = vec![true; primals.len()];
    let mut out = None;
    let linear = linear::linearize(name, &primals, &active, ops::ARITHMETIC, |xs| {
        let (tree, values) = run(f, args, xs)?;
        out = Some(tree);
        Ok(values)
    })?;
    let out = out.ok_or_else(|| Error::new(ErrorKind::NoRule, name, "the function did not run"))?;
    let out = with_values(&out, linear.outputs.iter().cloned())?;
    let count = leaves(&out.0).len();
    Ok((out, linear.truncated(count)))
}

/// The tree of tangents or cotangents, with zeros where a tensor does not take part.
pub(super) fn filled<A: Tree>(like: &A, tangents: Tangents) -> Result<A> {
    let mut tangents = tangents.into_iter();
    like.map(&mut |tensor| {
        let tangent = tangents.next().flatten();
        Ok(Tensor::from_value(or_zeros(&tangent, &tensor.aval().unsharded())?))
    })
}

/// The values of `given`, which must have the structure and types of `like`; those of integers are
/// left out.
pub(super) fn matching(
    op: &'static str,
    what: &str,
    like: &impl Leaves,
    given: &impl Leaves,
) -> Result<Tangents> {
    let (wants, have) = (leaves(like), leaves(given));
    if wants.len() != have.len() {
        let text = format!("{} {what}s are given for {} tensors", have.len(), wants.len());
        return Err(Error::new(ErrorKind::Tree, op, text));
    }
    let mut out = Tangents::new();
    for (i, (want, have)) in wants.into_iter().zip(have).enumerate() {
        let (a, b) = (want.aval().unsharded(), have.aval().unsharded());
        if a != b {
            let name = leaf_name(like, i);
            let text = format!("the {what} of {name} is {b}, not {a} as the tensor it belongs to");
            let same = a.dtype() == b.dtype();
            let kind = if same { ErrorKind::Shape } else { ErrorKind::DType };
            return Err(Error::new(kind, op, text));
        }
        out.push(if a.dtype().is_differentiable() { Some(have.value()?) } else { None });
    }
    Ok(out)
}

/// Checks that every tensor of an argument has a derivative.
pub(super) fn check_differentiable(op: &'static str, args: &impl Leaves) -> Result<()> {
    for (i, tensor) in leaves(args).into_iter().enumerate() {
        let aval = tensor.aval();
        if !aval.dtype().is_differentiable() {
            let text = format!("{} is {aval}, which has no derivative", leaf_name(args, i));
            return Err(Error::new(ErrorKind::DType, op, text)
                .help("capture the tensor in the closure, or convert it to floating point"));
        }
    }
    Ok(())
}

/// `f`'s result, and the function that takes tangents of the argument to those of the result: the
/// derivative at one point, found once and applied as often as wanted.
///
/// Tangents of integers are left out and those of integer results are zeros.
///
/// # Errors
/// What `f` says. The function given fails if its argument does not have the structure, shapes and
/// dtypes of `args`.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2.], [2])?;
/// let (y, along) = linearize(|x: &Tensor| x.mul(x), &x)?;
/// assert_eq!(y.to_vec::<f32>()?, [1., 4.]);
/// assert_eq!(along(&Tensor::from_slice(&[1f32, 10.], [2])?)?.to_vec::<f32>()?, [2., 40.]);
/// # Ok::<(), Error>(())
/// ```
pub fn linearize<A: Tree + Clone, B: Tree + Clone, F: Fn(&A) -> Result<B>>(
    f: F,
    args: &A,
) -> Result<(B, impl Fn(&A) -> Result<B> + use<A, B, F>)> {
    let (out, along, ()) = linearize_aux(no_aux(f), args)?;
    Ok((out, along))
}

/// [`linearize`] of a function whose result has an auxiliary part, which comes out as its third
/// result and has no derivative.
///
/// # Errors
/// As for [`linearize`].
pub fn linearize_aux<A, B, X, F>(
    f: F,
    args: &A,
) -> Result<(B, impl Fn(&A) -> Result<B> + use<A, B, X, F>, X)>
where
    A: Tree + Clone,
    B: Tree + Clone,
    X: Tree,
    F: Fn(&A) -> Result<(B, X)>,
{
    let ((out, aux), linear) = linearized("linearize", &f, args)?;
    let (args, like) = (args.clone(), out.clone());
    let along = move |tangents: &A| {
        let tangents = matching("linearize", "tangent", &args, tangents)?;
        filled(&like, linear.apply(&tangents)?)
    };
    Ok((out, along, aux))
}

/// `f`'s result, and the function that takes cotangents of the result to those of the argument.
///
/// Cotangents of integers are left out and those of integer arguments are zeros.
///
/// # Errors
/// What `f` says. The function given fails if its argument does not have the result's structure,
/// shapes and dtypes.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2.], [2])?;
/// let (y, back) = vjp(|x: &Tensor| x.mul(x), &x)?;
/// assert_eq!(y.to_vec::<f32>()?, [1., 4.]);
/// assert_eq!(back(&Tensor::from_slice(&[1f32, 10.], [2])?)?.to_vec::<f32>()?, [2., 40.]);
/// # Ok::<(), Error>(())
/// ```
pub fn vjp<A: Tree + Clone, B: Tree + Clone, F: Fn(&A) -> Result<B>>(
    f: F,
    args: &A,
) -> Result<(B, impl Fn(&B) -> Result<A> + use<A, B, F>)> {
    let (out, back, ()) = vjp_aux(no_aux(f), args)?;
    Ok((out, back))
}

/// [`vjp`] of a function whose result has an auxiliary part, which comes out as its third result
/// and has no derivative.
///
/// # Errors
/// As for [`vjp`].
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// use oxbridge::transforms::vjp_aux;
/// let x = Tensor::from_slice(&[1f32, 2.], [2])?;
/// let (y, back, sum) = vjp_aux(|x: &Tensor| Ok((x.mul(x)?, x.sum()?)), &x)?;
/// assert_eq!(y.to_vec::<f32>()?, [1., 4.]);
/// assert_eq!(sum.item::<f32>()?, 3.0);
/// assert_eq!(back(&x)?.to_vec::<f32>()?, [2., 8.]);
/// # Ok::<(), Error>(())
/// ```
pub fn vjp_aux<A, B, X, F>(
    f: F,
    args: &A,
) -> Result<(B, impl Fn(&B) -> Result<A> + use<A, B, X, F>, X)>
where
    A: Tree + Clone,
    B: Tree + Clone,
    X: Tree,
    F: Fn(&A) -> Result<(B, X)>,
{
    let ((out, aux), linear) = linearized("vjp", &f, args)?;
    let (args, like) = (args.clone(), out.clone());
    let back = move |cts: &B| {
        let cts = matching("vjp", "cotangent", &like, cts)?;
        filled(&args, linear.transpose(&cts)?)
    };
    Ok((out, back, aux))
}
