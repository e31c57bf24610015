//! Derivatives along a direction: `jvp`, and `hvp`, the second derivative along one.

use super::grad::grad;
use super::linearize::{check_differentiable, filled, matching, no_aux, run};
use super::tree::{Tree, leaves, values_of, with_values};
use crate::error::Result;
use crate::trace::cell::Tensor;
use crate::trace::jvp::{Jvp, join, split};
use crate::trace::primitive::Tangents;
use crate::trace::{Trace, Values};

/// `f`'s result and its derivative along `tangents`, which has the argument's structure, shapes and
/// dtypes.
///
/// Tangents of integers are left out and those of integer results are zeros.
///
/// # Errors
/// If `tangents` does not fit the argument; what `f` says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2.], [2])?;
/// let (y, t) = jvp(|x: &Tensor| x.mul(x), &x, &x)?;
/// assert_eq!(t.to_vec::<f32>()?, [2., 8.]);
/// # Ok::<(), Error>(())
/// ```
pub fn jvp<A: Tree, B: Tree>(
    f: impl Fn(&A) -> Result<B>,
    args: &A,
    tangents: &A,
) -> Result<(B, B)> {
    let (out, tangent, ()) = forward("jvp", no_aux(f), args, tangents)?;
    Ok((out, tangent))
}

/// [`jvp`] of a function whose result has an auxiliary part, which comes out as its third result
/// and has no derivative.
///
/// # Errors
/// As for [`jvp`].
pub fn jvp_aux<A: Tree, B: Tree, X: Tree>(
    f: impl Fn(&A) -> Result<(B, X)>,
    args: &A,
    tangents: &A,
) -> Result<(B, B, X)> {
    forward("jvp", f, args, tangents)
}

/// The derivative of `f`'s gradient along `v`: its Hessian at `args` times `v`, without making the
/// Hessian. It has the argument's structure, shapes and dtypes.
///
/// It is forward mode over reverse mode; `jvp(grad(f), args, v)` gives the gradient too.
///
/// # Errors
/// If `f`'s value is not one real number, if a tensor of the argument is an integer or bool, if `v`
/// does not fit the argument, or with what `f` says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2.], [2])?;
/// let v = Tensor::from_slice(&[1f32, 0.5], [2])?;
/// let cubes = |x: &Tensor| x.mul(x)?.mul(x)?.sum();
/// assert_eq!(hvp(cubes, &x, &v)?.to_vec::<f32>()?, [6., 6.]);
/// # Ok::<(), Error>(())
/// ```
pub fn hvp<A: Tree>(f: impl Fn(&A) -> Result<Tensor>, args: &A, v: &A) -> Result<A> {
    check_differentiable("hvp", args)?;
    Ok(forward("hvp", no_aux(grad(f)), args, v)?.1)
}

fn forward<A: Tree, B: Tree, X: Tree>(
    name: &'static str,
    f: impl Fn(&A) -> Result<(B, X)>,
    args: &A,
    tangents: &A,
) -> Result<(B, B, X)> {
    let tangents = matching(name, "tangent", args, tangents)?;
    let guard = Trace::start(Box::new(Jvp { name }));
    let primals = values_of(args)?;
    let pairs = primals.into_iter().zip(tangents);
    let inputs: Values = pairs.map(|(p, t)| join(guard.trace(), p, t)).collect();
    let (out, values) = guard.enter(|| run(&f, args, &inputs))?;
    guard.write_back()?;
    let (primals, mut tangents): (Values, Tangents) =
        values.iter().map(|v| split(guard.trace(), v)).unzip();
    let (out, aux) = with_values(&out, primals)?;
    tangents.truncate(leaves(&out).len());
    let tangent = filled(&out, tangents)?;
    Ok((out, tangent, aux))
}
