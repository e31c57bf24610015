//! Functions whose derivative is given: [`custom_jvp`], [`custom_vjp`].
//!
//! Outside of all transforms such a function just runs. Inside of one, and for tensors that require
//! grad, it is traced with its rules into one operation that every other transform knows how to treat.

use super::control::{Region, bare};
use super::tree::{Leaves, Tree, leaves, paths, structure, values_of, with_values};
use crate::aval::Aval;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::custom::{CustomJvp, CustomVjp, with_zeros};
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values, bind, is_eager};

/// Whether nothing asks for more than values: no transform is under way and no operand requires
/// grad.
pub(super) fn just_runs(operands: &[Value]) -> bool {
    is_eager() && operands.iter().all(|value| matches!(value, Value::Array(_)))
}

/// The types that have a derivative.
fn floats(avals: &[Aval]) -> Vec<Aval> {
    avals.iter().filter(|aval| aval.dtype().is_differentiable()).cloned().collect()
}

/// The tensors of a tree that have a derivative.
fn float_leaves(tree: &impl Leaves) -> Vec<Tensor> {
    let all = leaves(tree).into_iter();
    all.filter(|t| t.aval().dtype().is_differentiable()).cloned().collect()
}

/// The tree with the given values at those leaves that have a derivative, zeros at the others.
fn with_floats<T: Tree>(like: &T, values: &[Value]) -> Result<T> {
    let avals: Vec<Aval> = leaves(like).iter().map(|t| t.aval().unsharded()).collect();
    with_values(like, with_zeros(&avals, values)?)
}

/// What a rule gives and has to be like: words for errors.
struct Given {
    op: &'static str,
    /// `the rule gives the tangent of`
    what: &'static str,
    /// `the result`
    whole: &'static str,
    /// Whether it is a derivative, of which integers have none.
    derivative: bool,
}

impl Given {
    fn check(&self, want: &impl Leaves, have: &impl Leaves) -> Result<()> {
        let Given { op, what, whole, derivative } = *self;
        if structure(want) != structure(have) {
            let (want, have) = (leaves(want).len(), leaves(have).len());
            let text =
                format!("{what} {whole} in another structure, with {have} for {want} tensors");
            return Err(Error::new(ErrorKind::Tree, op, text));
        }
        for (i, (a, b)) in leaves(want).into_iter().zip(leaves(have)).enumerate() {
            let (a, b) = (a.aval().unsharded(), b.aval().unsharded());
            if a != b && (!derivative || a.dtype().is_differentiable()) {
                let path = paths(want).swap_remove(i);
                let name =
                    if path.is_empty() { whole.into() } else { format!("`{path}` of {whole}") };
                let kind = if a.dtype() == b.dtype() { ErrorKind::Shape } else { ErrorKind::DType };
                return Err(Error::new(kind, op, format!("{what} {name} as {b}, not {a}")));
            }
        }
        Ok(())
    }
}

/// `f` with a rule of its own for its derivative: `rule` takes the argument and its tangents, and
/// gives `f`'s result and its tangents.
///
/// The rule must be linear in the tangents. It serves forward mode as it stands, reverse mode by its
/// transpose, and higher orders by its own derivative; [`vmap`](super::vmap()) maps `f` and rule
/// alike. The tangent of an integer or bool tensor is zeros of its type, and what the rule gives as
/// one is not looked at. Inside of a transform `f` and the rule run on tracers.
///
/// # Errors
/// The function given fails if the rule's results do not have the structure, shapes and dtypes of
/// `f`'s; with [`ErrorKind::NoRule`] if it is differentiated in a tensor that `f` captures; with what
/// `f` or the rule says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// // `log(1 + exp(x))`, whose derivative as it stands is not a number for large `x`.
/// let softplus = custom_jvp(
///     |x: &Tensor| x.exp()?.add(1.0)?.log(),
///     |x: &Tensor, t: &Tensor| Ok((x.exp()?.add(1.0)?.log()?, x.sigmoid()?.mul(t)?)),
/// );
/// let x = Tensor::from_slice(&[0f32, 100.], [2])?;
/// let slope = grad(|x: &Tensor| softplus(x)?.sum())(&x)?;
/// assert_eq!(slope.to_vec::<f32>()?, [0.5, 1.0]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** `jax.custom_jvp`.
pub fn custom_jvp<A: Tree, B: Tree>(
    f: impl Fn(&A) -> Result<B>,
    rule: impl Fn(&A, &A) -> Result<(B, B)>,
) -> impl Fn(&A) -> Result<B> {
    const OP: &str = "custom_jvp";
    move |args| {
        let values = values_of(args)?;
        if just_runs(&values) {
            return f(args);
        }
        let ins = bare(&values);
        let call = Region::record(OP, &ins, |xs| f(&with_values(args, xs.iter().cloned())?))?;
        let given = |what, derivative| Given { op: OP, what, whole: "the result", derivative };
        let rule = Region::record(OP, &[&ins[..], &floats(&ins)].concat(), |xs| {
            let (xs, ts) = xs.split_at(ins.len());
            let (out, t) = rule(&with_values(args, xs.iter().cloned())?, &with_floats(args, ts)?)?;
            given("the rule gives", false).check(&call.out, &out)?;
            given("the rule gives the tangent of", true).check(&call.out, &t)?;
            Ok((leaves(&out).into_iter().cloned().collect::<Vec<_>>(), tangents(&call.out, &t)))
        })?;
        let prim = CustomJvp {
            call: call.captured_first(),
            rule: rule.captured_first(),
            call_consts: call.captured.len(),
            rule_consts: rule.captured.len(),
        };
        let operands: Values =
            [call.captured, rule.captured, values].into_iter().flatten().collect();
        with_values(&call.out, bind(&prim, &operands)?)
    }
}

/// The tensors of `t` that stand where `like` has one with a derivative.
fn tangents(like: &impl Leaves, t: &impl Leaves) -> Vec<Tensor> {
    let both = leaves(like).into_iter().zip(leaves(t));
    both.filter(|(l, _)| l.aval().dtype().is_differentiable()).map(|(_, t)| t.clone()).collect()
}

/// `f` with a rule of its own for its reverse derivative: `fwd` gives `f`'s result and residuals,
/// any tree of tensors; `bwd` takes the residuals and the cotangents of the result, and gives those
/// of the argument.
///
/// Only reverse mode goes by the rule: forward mode is an error, for which there is [`custom_jvp`].
/// Higher orders differentiate `fwd` and `bwd`; [`vmap`](super::vmap()) maps all three functions. The
/// cotangent of an integer or bool tensor is zeros of its type, and what `bwd` gives as one is not
/// looked at. Inside of a transform the functions run on tracers; outside only `f` runs.
///
/// # Errors
/// The function given fails if `fwd`'s result or `bwd`'s cotangents do not have the structure, shapes
/// and dtypes of `f`'s result and of the argument; with [`ErrorKind::NoRule`] in forward mode, or if
/// it is differentiated in a tensor that `f` captures; with what a function says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// // The identity, whose gradient is kept between -1 and 1.
/// let clipped = custom_vjp(
///     |x: &Tensor| Ok(x.clone()),
///     |x: &Tensor| Ok((x.clone(), ())),
///     |(): &(), ct: &Tensor| ct.clamp(-1.0, 1.0),
/// );
/// let x = Tensor::from_slice(&[1f32, 3.], [2])?;
/// let slope = grad(|x: &Tensor| clipped(x)?.square()?.mul(0.25)?.sum())(&x)?;
/// assert_eq!(slope.to_vec::<f32>()?, [0.5, 1.0]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** `jax.custom_vjp`.
pub fn custom_vjp<A: Tree, B: Tree, R: Tree>(
    f: impl Fn(&A) -> Result<B>,
    fwd: impl Fn(&A) -> Result<(B, R)>,
    bwd: impl Fn(&R, &B) -> Result<A>,
) -> impl Fn(&A) -> Result<B> {
    const OP: &str = "custom_vjp";
    move |args| {
        let values = values_of(args)?;
        if just_runs(&values) {
            return f(args);
        }
        let ins = bare(&values);
        let call = Region::record(OP, &ins, |xs| f(&with_values(args, xs.iter().cloned())?))?;
        let fwd = Region::record(OP, &ins, |xs| {
            let out = fwd(&with_values(args, xs.iter().cloned())?)?;
            let given =
                Given { op: OP, what: "`fwd` gives", whole: "the result", derivative: false };
            given.check(&call.out, &out.0)?;
            Ok(out)
        })?;
        let residuals: Vec<Aval> =
            leaves(&fwd.out.1).iter().map(|t| t.aval().unsharded()).collect();
        let cts = float_leaves(&call.out).iter().map(Tensor::aval).collect::<Vec<_>>();
        let bwd = Region::record(OP, &[&residuals[..], &cts].concat(), |xs| {
            let (residuals, cts) = xs.split_at(residuals.len());
            let cts = with_floats(&call.out, cts)?;
            let out = bwd(&with_values(&fwd.out.1, residuals.iter().cloned())?, &cts)?;
            let what = "`bwd` gives the cotangent of";
            let given = Given { op: OP, what, whole: "the argument", derivative: true };
            given.check(args, &out)?;
            Ok(tangents(args, &out))
        })?;
        let prim = CustomVjp {
            call: call.captured_first(),
            fwd: fwd.captured_first(),
            bwd: bwd.captured_first(),
            consts: [call.captured.len(), fwd.captured.len(), bwd.captured.len()],
        };
        let captured = [call.captured, fwd.captured, bwd.captured];
        let operands: Values = captured.into_iter().flatten().chain(values).collect();
        with_values(&call.out, bind(&prim, &operands)?)
    }
}
