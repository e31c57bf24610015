//! Derivatives: `grad`, `value_and_grad`, `vjp`, `jvp`.

use super::catch::catch;
use super::tree::{Leaves, Tree, leaf_name, leaves, rebuild};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::create::or_zeros;
use crate::trace::cell::Tensor;
use crate::trace::jvp::{self, Jvp};
use crate::trace::linear::{Linearized, linearize};
use crate::trace::primitive::{Tangent, Tangents};
use crate::trace::{Trace, Value, Values};

fn values_of(tree: &impl Leaves) -> Result<Values> {
    leaves(tree).into_iter().map(Tensor::value).collect()
}

/// Runs `f` on a tree of the given values and gives its result with the values of its leaves.
fn run<A: Tree, B: Tree>(
    f: &impl Fn(&A) -> Result<B>,
    like: &A,
    values: &[Value],
) -> Result<(B, Values)> {
    let args = rebuild(like, values.iter().cloned().map(Tensor::from_value))?;
    let out = catch(|| f(&args))?;
    let values = values_of(&out)?;
    Ok((out, values))
}

/// The function's result, and what is linear in the argument's tangents.
fn linearized<A: Tree, B: Tree>(
    name: &'static str,
    f: &impl Fn(&A) -> Result<B>,
    args: &A,
) -> Result<(B, Linearized)> {
    let primals = values_of(args)?;
    let active = vec![true; primals.len()];
    let mut out = None;
    let linear = linearize(name, &primals, &active, ops::ARITHMETIC, |xs| {
        let (tree, values) = run(f, args, xs)?;
        out = Some(tree);
        Ok(values)
    })?;
    let out = out.ok_or_else(|| Error::new(ErrorKind::NoRule, name, "the function did not run"))?;
    let out = rebuild(&out, linear.outputs.iter().cloned().map(Tensor::from_value))?;
    Ok((out, linear))
}

/// The tree of cotangents, with zeros where a tensor does not take part.
fn cotangents<A: Tree>(args: &A, cts: Tangents) -> Result<A> {
    let mut cts = cts.into_iter();
    args.map(&mut |tensor| {
        let ct = cts.next().flatten();
        Ok(Tensor::from_value(or_zeros(&ct, &tensor.aval())?))
    })
}

/// `f`'s value and the gradient of it in every tensor of the argument.
///
/// **Shapes:** the gradient has the argument's structure, shapes and dtypes. **Unlike torch:** the
/// argument's tensors are not marked; outside of `jit` their values stay concrete inside of `f`.
///
/// # Errors
/// The function given fails if `f`'s value is not one real floating-point number, if a tensor of
/// the argument is an integer or bool, or with what `f` says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 2., 3.], [3])?;
/// let (value, gradient) = value_and_grad(|x: &Tensor| x.mul(x)?.sum())(&x)?;
/// assert_eq!(value.item::<f32>()?, 14.0);
/// assert_eq!(gradient.to_vec::<f32>()?, [2., 4., 6.]);
/// # Ok::<(), Error>(())
/// ```
pub fn value_and_grad<A: Tree>(
    f: impl Fn(&A) -> Result<Tensor>,
) -> impl Fn(&A) -> Result<(Tensor, A)> {
    move |args| {
        check_differentiable("grad", args)?;
        let (value, linear) = linearized("grad", &f, args)?;
        let aval = value.aval();
        if aval.rank() != 0 || !aval.dtype().is_float() {
            return Err(not_scalar(&value));
        }
        let seed: Tangent = Some(ops::full_like(&value.value()?, 1.0)?);
        let cts = linear.transpose(&[seed])?;
        Ok((value, cotangents(args, cts)?))
    }
}

/// The gradient of `f`'s value in every tensor of the argument: [`value_and_grad`] without the
/// value.
///
/// # Errors
/// As for [`value_and_grad`].
pub fn grad<A: Tree>(f: impl Fn(&A) -> Result<Tensor>) -> impl Fn(&A) -> Result<A> {
    let f = value_and_grad(f);
    move |args| Ok(f(args)?.1)
}

#[cold]
fn not_scalar(value: &Tensor) -> Error {
    let text = format!("the function gave {}, not one real number to differentiate", value.aval());
    Error::new(ErrorKind::Shape, "grad", text)
        .help("reduce it, for example with `sum` or `mean`, or use `vjp`")
}

fn check_differentiable(op: &'static str, args: &impl Leaves) -> Result<()> {
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

/// `f`'s result, and the function that takes cotangents of the result to those of the argument.
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
pub fn vjp<A: Tree + Clone, B: Tree + Clone>(
    f: impl Fn(&A) -> Result<B>,
    args: &A,
) -> Result<(B, impl Fn(&B) -> Result<A>)> {
    let (out, linear) = linearized("vjp", &f, args)?;
    let (args, like) = (args.clone(), out.clone());
    let back = move |ct: &B| {
        let cts = matching("vjp", "cotangent", &like, ct)?;
        cotangents(&args, linear.transpose(&cts)?)
    };
    Ok((out, back))
}

/// The values of `given`, which must have the structure and types of `like`; those of integers are
/// left out.
fn matching(
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

/// `f`'s result and its derivative along `tangents`, which has the argument's structure, shapes and
/// dtypes.
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
    let tangents = matching("jvp", "tangent", args, tangents)?;
    let guard = Trace::start(Box::new(Jvp { name: "jvp" }));
    let primals = values_of(args)?;
    let pairs = primals.into_iter().zip(tangents);
    let inputs: Values = pairs.map(|(p, t)| jvp::join(guard.trace(), p, t)).collect();
    let (out, values) = guard.enter(|| run(&f, args, &inputs))?;
    guard.write_back()?;
    let (primals, tangents): (Values, Tangents) =
        values.iter().map(|v| jvp::split(guard.trace(), v)).unzip();
    let tangents = primals.iter().zip(tangents);
    let tangents = tangents
        .map(|(p, t)| Ok(Tensor::from_value(or_zeros(&t, p.aval())?)))
        .collect::<Result<Vec<_>>>()?;
    Ok((rebuild(&out, primals.into_iter().map(Tensor::from_value))?, rebuild(&out, tangents)?))
}
