//! Whole matrices of derivatives: `jacfwd`, `jacrev`, `hessian`.
//!
//! A Jacobian has the result's structure, and at each of its tensors the argument's: see [`Nest`]. At
//! the leaf that belongs to a result of shape `out` and an argument of shape `in` stands a tensor of
//! shape `out + in`.

use super::linearize::{check_differentiable, linearized, no_aux};
use super::nest::Nest;
use super::tree::{Leaves, Tree, leaf_name, leaves, with_values};
use super::vmap::vmap;
use crate::aval::Aval;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::call::fused;
use crate::shape::Shape;
use crate::trace::cell::Tensor;
use crate::trace::primitive::{Tangent, Tangents};
use crate::trace::{Value, Values};

/// The Jacobian of `f` by forward mode: one pass for each element of the argument. It is the one to
/// take when the argument has fewer elements than the result.
///
/// **Shapes:** a result of shape `out` and an argument of shape `in` give `out + in`; trees give the
/// result's structure with the argument's at each tensor, see [`Nest`]. **Dtypes:** the result's.
///
/// # Errors
/// The function given fails if a tensor of the argument is not real floating-point, if one of the
/// result is an integer or bool, or with what `f` says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[2f32, 3.], [2])?;
/// let f = |x: &Tensor| Tensor::stack(&[x.prod()?, x.sum()?, x.select(0, 0)?], 0);
/// let j = jacfwd(f)(&x)?;
/// assert_eq!(j.shape(), Shape::from([3, 2]));
/// assert_eq!(j.to_vec::<f32>()?, [3., 2., 1., 1., 1., 0.]);
/// # Ok::<(), Error>(())
/// ```
pub fn jacfwd<A: Tree, B: Nest>(f: impl Fn(&A) -> Result<B>) -> impl Fn(&A) -> Result<B::Of<A>> {
    let f = jacfwd_aux(no_aux(f));
    move |args| Ok(f(args)?.0)
}

/// [`jacfwd`] of a function whose result has an auxiliary part, which comes out beside the Jacobian
/// and has no derivative.
///
/// # Errors
/// As for [`jacfwd`].
pub fn jacfwd_aux<A: Tree, B: Nest, X: Tree>(
    f: impl Fn(&A) -> Result<(B, X)>,
) -> impl Fn(&A) -> Result<(B::Of<A>, X)> {
    forward("jacfwd", f)
}

fn forward<A: Tree, B: Nest, X: Tree>(
    op: &'static str,
    f: impl Fn(&A) -> Result<(B, X)>,
) -> impl Fn(&A) -> Result<(B::Of<A>, X)> {
    move |args| {
        check_differentiable(op, args)?;
        check_real(op, "the argument", args)?;
        let ((out, aux), linear) = linearized(op, &f, args)?;
        check_result(op, &out)?;
        let columns = over_basis(args, &out, |ts| linear.apply(ts))?;
        let blocks = blocks(&columns, args, |column, i, ins| {
            columns_of(column, ins, &leaves(&out)[i].aval())
        })?;
        Ok((nested(&out, args, blocks)?, aux))
    }
}

/// The Jacobian of `f` by reverse mode: one pass for each element of the result. It is the one to
/// take when the result has fewer elements than the argument.
///
/// **Shapes:** as for [`jacfwd`]. **Dtypes:** the argument's.
///
/// # Errors
/// The function given fails if a tensor of the argument is an integer or bool, if one of the result
/// is not real floating-point, or with what `f` says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[2f32, 3.], [2])?;
/// let y = Tensor::from_slice(&[5f32], [])?;
/// let (by_x, by_y) = jacrev(|(x, y): &(Tensor, Tensor)| x.mul(y)?.mul(x))(&(x, y))?;
/// assert_eq!(by_x.to_vec::<f32>()?, [20., 0., 0., 30.]);
/// assert_eq!(by_y.to_vec::<f32>()?, [4., 9.]);
/// # Ok::<(), Error>(())
/// ```
pub fn jacrev<A: Tree, B: Nest>(f: impl Fn(&A) -> Result<B>) -> impl Fn(&A) -> Result<B::Of<A>> {
    let f = jacrev_aux(no_aux(f));
    move |args| Ok(f(args)?.0)
}

/// [`jacrev`] of a function whose result has an auxiliary part, which comes out beside the Jacobian
/// and has no derivative.
///
/// # Errors
/// As for [`jacrev`].
pub fn jacrev_aux<A: Tree, B: Nest, X: Tree>(
    f: impl Fn(&A) -> Result<(B, X)>,
) -> impl Fn(&A) -> Result<(B::Of<A>, X)> {
    reverse("jacrev", f)
}

fn reverse<A: Tree, B: Nest, X: Tree>(
    op: &'static str,
    f: impl Fn(&A) -> Result<(B, X)>,
) -> impl Fn(&A) -> Result<(B::Of<A>, X)> {
    move |args| {
        check_differentiable(op, args)?;
        let ((out, aux), linear) = linearized(op, &f, args)?;
        check_result(op, &out)?;
        check_real(op, "the result", &out)?;
        let rows = over_basis(&out, args, |cts| linear.transpose(cts))?;
        let blocks =
            blocks(&rows, &out, |row, i, outs| rows_of(row, outs, &leaves(args)[i].aval()))?;
        Ok((nested(&out, args, turned(blocks, leaves(&out).len()))?, aux))
    }
}

/// What [`hessian`] gives for an argument `A` and a result `B`.
pub type HessianOf<A, B> = <<B as Nest>::Of<A> as Nest>::Of<A>;

/// The matrix of second derivatives of `f`: forward mode over reverse mode, `jacfwd(jacrev(f))`.
///
/// **Shapes:** a result of shape `out` and an argument of shape `in` give `out + in + in`; for a
/// scalar function of a tree, the argument's structure with the argument's structure at each tensor,
/// see [`Nest`].
///
/// # Errors
/// The function given fails if a tensor of the argument or of the result is not real
/// floating-point, or with what `f` says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[2f32, 3.], [2])?;
/// assert_eq!(hessian(|x: &Tensor| x.prod())(&x)?.to_vec::<f32>()?, [0., 1., 1., 0.]);
///
/// let xy = (x, Tensor::from_slice(&[4f32], [])?);
/// let ((xx, xy), (yx, yy)) = hessian(|(x, y): &(Tensor, Tensor)| x.mul(y)?.mul(y)?.sum())(&xy)?;
/// assert_eq!(xx.to_vec::<f32>()?, [0., 0., 0., 0.]);
/// assert_eq!(xy.to_vec::<f32>()?, [8., 8.]);
/// assert_eq!(yx.to_vec::<f32>()?, [8., 8.]);
/// assert_eq!(yy.to_vec::<f32>()?, [10.]);
/// # Ok::<(), Error>(())
/// ```
pub fn hessian<A: Tree, B: Nest>(
    f: impl Fn(&A) -> Result<B>,
) -> impl Fn(&A) -> Result<HessianOf<A, B>>
where
    B::Of<A>: Nest,
{
    let f = hessian_aux(no_aux(f));
    move |args| Ok(f(args)?.0)
}

/// [`hessian`] of a function whose result has an auxiliary part, which comes out beside the matrix
/// and has no derivative.
///
/// # Errors
/// As for [`hessian`].
pub fn hessian_aux<A: Tree, B: Nest, X: Tree>(
    f: impl Fn(&A) -> Result<(B, X)>,
) -> impl Fn(&A) -> Result<(HessianOf<A, B>, X)>
where
    B::Of<A>: Nest,
{
    forward("hessian", reverse("hessian", f))
}

fn check_real(op: &'static str, what: &str, tree: &impl Leaves) -> Result<()> {
    for (i, tensor) in leaves(tree).into_iter().enumerate() {
        if tensor.aval().dtype().is_complex() {
            let name = place(what, tree, i);
            let text = format!("{name} is {}, not real", tensor.aval());
            return Err(Error::new(ErrorKind::DType, op, text)
                .help("split it into real and imaginary parts"));
        }
    }
    Ok(())
}

fn check_result(op: &'static str, out: &impl Leaves) -> Result<()> {
    for (i, tensor) in leaves(out).into_iter().enumerate() {
        let aval = tensor.aval();
        if !aval.dtype().is_differentiable() {
            let name = place("the result", out, i);
            let text = format!("{name} is {aval}, which has no derivative");
            return Err(Error::new(ErrorKind::DType, op, text)
                .help(format!("give it as auxiliary output, with `{op}_aux`")));
        }
    }
    Ok(())
}

/// `the result`, or the path in it.
fn place(what: &str, tree: &impl Leaves, i: usize) -> String {
    match leaf_name(tree, i).as_str() {
        "the argument" => what.into(),
        path => format!("{path} of {what}"),
    }
}

/// The numbers of elements of a tree's tensors.
fn sizes(tree: &impl Leaves) -> Vec<usize> {
    leaves(tree).iter().map(|t| t.aval().shape().size()).collect()
}

/// A linear function of each element of `from` in turn, the others being zero: for each tensor of
/// `to` its values, stacked along a new axis 0.
fn over_basis(
    from: &impl Leaves,
    to: &impl Leaves,
    linear: impl Fn(&[Tangent]) -> Result<Tangents>,
) -> Result<Values> {
    let total = sizes(from).iter().sum();
    let tos: Vec<Aval> = leaves(to).iter().map(|t| t.aval().unsharded()).collect();
    if total == 0 {
        let none = |aval: &Aval| ops::zeros(&aval.with_shape(aval.shape().insert(0, 0)));
        return tos.iter().map(none).collect();
    }
    let mut first = 0;
    let mut basis = Vec::new();
    for tensor in leaves(from) {
        let aval = tensor.aval().unsharded();
        basis.push(Tensor::from_value(unit_rows(&aval, first, total)?));
        first += aval.shape().size();
    }
    let rows = vmap(|rows: &Vec<Tensor>| {
        let rows = rows.iter().map(|t| t.value().map(Some)).collect::<Result<Tangents>>()?;
        let outs = linear(&rows)?;
        let outs = outs
            .iter()
            .zip(&tos)
            .map(|(t, aval)| Ok(Tensor::from_value(ops::create::or_zeros(t, aval)?)));
        outs.collect::<Result<Vec<Tensor>>>()
    })(&basis)?;
    rows.iter().map(Tensor::value).collect()
}

/// `total` rows of the type `aval`, all zero but that row `first + i` has 1 at element `i`.
fn unit_rows(aval: &Aval, first: usize, total: usize) -> Result<Value> {
    let (dtype, shape) = (aval.dtype(), aval.shape());
    let mut params = vec![dtype as i64, first as i64, total as i64];
    params.extend(shape.iter().map(|&n| n as i64));
    one("unit_rows", &params, &[], |_| {
        let flat = Shape::from([total, shape.size()]);
        let start = ops::full(crate::dtype::Scalar::new(first as i64), &flat)?;
        let element = ops::add(&ops::iota(DType::I64, &flat, 1)?, &start)?;
        let on = ops::eq(&ops::iota(DType::I64, &flat, 0)?, &element)?;
        ops::reshape(&ops::convert(&on, dtype)?, &shape.insert(0, total))
    })
}

/// The part of each stacked tensor that belongs to each tensor of `basis`, by `cut`.
fn blocks(
    stacked: &[Value],
    basis: &impl Leaves,
    cut: impl Fn(&Value, usize, (usize, &Shape)) -> Result<Value>,
) -> Result<Vec<Vec<Value>>> {
    let avals: Vec<Aval> = leaves(basis).iter().map(|t| t.aval()).collect();
    let row = |(i, value): (usize, &Value)| {
        let mut first = 0;
        let cuts = avals.iter().map(|aval| {
            let block = cut(value, i, (first, aval.shape()));
            first += aval.shape().size();
            block
        });
        cuts.collect::<Result<Vec<_>>>()
    };
    stacked.iter().enumerate().map(row).collect()
}

/// `[total] + out`, of which the rows from `first` belong to an argument of shape `ins`, as
/// `out + ins`.
fn columns_of(column: &Value, (first, ins): (usize, &Shape), out: &Aval) -> Result<Value> {
    let shape: Shape = out.shape().iter().chain(ins.iter()).copied().collect();
    one("jacobian_columns", &numbers(first, ins), std::slice::from_ref(column), |values| {
        let rows = ops::slice_axis(&values[0], 0, first, first + ins.size())?;
        let perm: Vec<usize> = (1..rows.rank()).chain([0]).collect();
        ops::reshape(&ops::permute(&rows, &perm)?, &shape)
    })
}

/// `[total] + in`, of which the rows from `first` belong to a result of shape `outs`, as
/// `outs + in`.
fn rows_of(row: &Value, (first, outs): (usize, &Shape), input: &Aval) -> Result<Value> {
    let shape: Shape = outs.iter().chain(input.shape().iter()).copied().collect();
    one("jacobian_rows", &numbers(first, outs), std::slice::from_ref(row), |values| {
        let rows = ops::slice_axis(&values[0], 0, first, first + outs.size())?;
        ops::reshape(&rows, &shape)
    })
}

fn numbers(first: usize, shape: &Shape) -> Vec<i64> {
    std::iter::once(first).chain(shape.iter().copied()).map(|n| n as i64).collect()
}

/// [`fused`] with one result.
fn one(
    name: &'static str,
    params: &[i64],
    operands: &[Value],
    body: impl FnOnce(&[Value]) -> Result<Value>,
) -> Result<Value> {
    let outs = fused(name, params, operands, |values| Ok(std::iter::once(body(values)?).collect()));
    Ok(outs?.swap_remove(0))
}

/// Blocks by argument and result as blocks by result and argument.
fn turned(blocks: Vec<Vec<Value>>, results: usize) -> Vec<Vec<Value>> {
    let mut out = vec![Vec::new(); results];
    for row in blocks {
        for (to, block) in out.iter_mut().zip(row) {
            to.push(block);
        }
    }
    out
}

/// The result's structure with the argument's at each tensor.
fn nested<A: Tree, B: Nest>(out: &B, args: &A, blocks: Vec<Vec<Value>>) -> Result<B::Of<A>> {
    let mut blocks = blocks.into_iter();
    out.nest(&mut |_| with_values(args, blocks.next().unwrap_or_default()))
}
