//! Gradients: `grad`, `value_and_grad`, `stop_gradient`.

use super::linearize::{check_differentiable, filled, linearized, no_aux};
use super::tree::{Tree, tree_map};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::trace::cell::Tensor;
use crate::trace::primitive::Tangent;

/// What [`grad_with`] and [`value_and_grad_with`] take.
#[derive(Clone, Copy, Debug, Default)]
pub struct GradOptions {
    /// Lets tensors of the argument be integer or bool: their gradient is zeros of their own dtype.
    pub allow_int: bool,
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
    value_and_grad_with(GradOptions::default(), f)
}

/// [`value_and_grad`] with options.
///
/// # Errors
/// As for [`value_and_grad`].
pub fn value_and_grad_with<A: Tree>(
    options: GradOptions,
    f: impl Fn(&A) -> Result<Tensor>,
) -> impl Fn(&A) -> Result<(Tensor, A)> {
    let f = no_aux(f);
    move |args| {
        let ((value, ()), gradient) = reverse(options, &f, args)?;
        Ok((value, gradient))
    }
}

/// [`value_and_grad`] of a function that gives more than the value to differentiate: the value and
/// the auxiliary output, and the gradient of the value. The auxiliary output has no derivative.
///
/// # Errors
/// As for [`value_and_grad`].
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let loss = |w: &Tensor| {
///     let out = w.mul(w)?;
///     Ok((out.sum()?, out))
/// };
/// let w = Tensor::from_slice(&[1f32, 2.], [2])?;
/// let ((value, out), gradient) = value_and_grad_aux(loss)(&w)?;
/// assert_eq!(value.item::<f32>()?, 5.0);
/// assert_eq!(out.to_vec::<f32>()?, [1., 4.]);
/// assert_eq!(gradient.to_vec::<f32>()?, [2., 4.]);
/// # Ok::<(), Error>(())
/// ```
pub fn value_and_grad_aux<A: Tree, X: Tree>(
    f: impl Fn(&A) -> Result<(Tensor, X)>,
) -> impl Fn(&A) -> Result<((Tensor, X), A)> {
    move |args| reverse(GradOptions::default(), &f, args)
}

/// The gradient of `f`'s value in every tensor of the argument: [`value_and_grad`] without the
/// value.
///
/// # Errors
/// As for [`value_and_grad`].
pub fn grad<A: Tree>(f: impl Fn(&A) -> Result<Tensor>) -> impl Fn(&A) -> Result<A> {
    grad_with(GradOptions::default(), f)
}

/// [`grad`] with options.
///
/// # Errors
/// As for [`value_and_grad`].
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// use oxbridge::transforms::{GradOptions, grad_with};
/// let rows = (Tensor::from_slice(&[3f32, 5.], [2])?, Tensor::from_slice(&[1i64], [1])?);
/// let pick = |(x, i): &(Tensor, Tensor)| x.index_select(0, i)?.sum();
/// let options = GradOptions { allow_int: true };
/// let (dx, di) = grad_with(options, pick)(&rows)?;
/// assert_eq!(dx.to_vec::<f32>()?, [0., 1.]);
/// assert_eq!(di.to_vec::<i64>()?, [0]);
/// # Ok::<(), Error>(())
/// ```
pub fn grad_with<A: Tree>(
    options: GradOptions,
    f: impl Fn(&A) -> Result<Tensor>,
) -> impl Fn(&A) -> Result<A> {
    let f = no_aux(f);
    move |args| Ok(reverse(options, &f, args)?.1)
}

/// [`grad`] of a function that gives more than the value to differentiate: the gradient and the
/// auxiliary output, which has no derivative.
///
/// # Errors
/// As for [`value_and_grad`].
pub fn grad_aux<A: Tree, X: Tree>(
    f: impl Fn(&A) -> Result<(Tensor, X)>,
) -> impl Fn(&A) -> Result<(A, X)> {
    move |args| {
        let ((_, aux), gradient) = reverse(GradOptions::default(), &f, args)?;
        Ok((gradient, aux))
    }
}

fn reverse<A: Tree, X: Tree>(
    options: GradOptions,
    f: &impl Fn(&A) -> Result<(Tensor, X)>,
    args: &A,
) -> Result<((Tensor, X), A)> {
    if !options.allow_int {
        check_differentiable("grad", args)?;
    }
    let (out, linear) = linearized("grad", f, args)?;
    let aval = out.0.aval();
    if aval.rank() != 0 || !aval.dtype().is_float() {
        return Err(not_scalar(&out.0));
    }
    let seed: Tangent = Some(ops::full_like(&out.0.value()?, 1.0)?);
    let gradient = filled(args, linear.transpose(&[seed])?)?;
    Ok((out, gradient))
}

#[cold]
fn not_scalar(value: &Tensor) -> Error {
    let text = format!("the function gave {}, not one real number to differentiate", value.aval());
    Error::new(ErrorKind::Shape, "grad", text)
        .help("reduce it, for example with `sum` or `mean`, or use `vjp`")
}

/// The tree with the same values, of which no derivative is taken: to every derivative around it,
/// of any order, they are constants.
///
/// # Errors
/// If a tensor has leaked from a transform that has ended.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[3f32], [])?;
/// let f = |x: &Tensor| x.mul(&stop_gradient(&x.mul(x)?)?);
/// assert_eq!(f(&x)?.item::<f32>()?, 27.0);
/// assert_eq!(grad(f)(&x)?.item::<f32>()?, 9.0);
/// assert_eq!(grad(grad(f))(&x)?.item::<f32>()?, 0.0);
/// # Ok::<(), Error>(())
/// ```
pub fn stop_gradient<T: Tree>(tree: &T) -> Result<T> {
    tree_map(tree, |tensor| Ok(Tensor::from_value(ops::stop_gradient(&tensor.value()?)?)))
}
