//! The factorisation `lu` with exchange of rows, and `linear_solve`, which stands on it.
//!
//! No device is asked for a factorisation of its own: `lu` is written as a loop over the columns
//! that runs everywhere.

use super::linalg::{
    Transpose, Triangle, check_beside, check_matrix, fold_batch, identity, lower_part, matrix,
    product, transposed, triangular_solve, upper_part,
};
use super::{add, neg, sub};
use crate::aval::{Aval, Avals};
use crate::backend::host::{HostArray, linalg as kernel};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::ops;
use crate::ops::index::{GatherDims, IndexMode, along_axis};
use crate::ops::region::graph_of;
use crate::shape::Shape;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind, bind_one};
use smallvec::smallvec;

/// The primitive `lu`: both factors in one array, the exchanges, and the order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lu;

impl Primitive for Lu {
    fn name(&self) -> &'static str {
        "lu"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        check_matrix("lu", x)?;
        let (rows, columns) = matrix(x.shape());
        let last = |size: usize| {
            let shape = x.shape().remove(x.rank() - 1).with(x.rank() - 2, size);
            Aval::new(DType::I32, shape)
        };
        Ok(smallvec![x.clone(), last(rows.min(columns)), last(rows)])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        let graph = graph_of(&[operands[0].aval().unsharded()], |x| factored(&x[0]))?;
        cx.inline(&graph, operands)
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(kernel::lu(&operands[0]).into())
    }

    /// With `m = l^-1 · t · u^-1` the factors' tangents are `l · tril(m, -1)` and `triu(m) · u`,
    /// both factors being made square first.
    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let outs = bind(self, primals)?;
        let Some(t) = &tangents[0] else { return Ok((outs, smallvec![None, None, None])) };
        let (l, u) = square_factors(&outs[0])?;
        let t = rows_in_order(t, &outs[2])?;
        let how = Triangle { left: true, lower: true, unit: true, transpose: Transpose::No };
        let right = Triangle { left: false, lower: false, unit: false, ..how };
        let inner = triangular_solve(&u, &triangular_solve(&l, &t, how)?, right)?;
        let of_l = product(&l, &lower_part(&inner, -1)?)?;
        let of_u = product(&upper_part(&inner, 0)?, &u)?;
        Ok((outs, smallvec![Some(add(&of_l, &of_u)?), None, None]))
    }

    fn transpose(&self, _: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Err(not_linear(self))
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let x = ops::move_batch_axis(batch.size, &operands[0], axes[0], 0)?;
        Ok((bind(self, &[x])?, smallvec![Some(0); 3]))
    }

    fn params(&self) -> String {
        String::new()
    }
}

/// `l` and `u` as square matrices: `l` is filled up with columns, `u` with rows of the identity.
fn square_factors(lu: &Value) -> Result<(Value, Value)> {
    let rank = lu.rank();
    let (rows, columns) = matrix(lu.shape());
    let steps = rows.min(columns);
    let zero = Value::scalar(Scalar::zero(lu.dtype()));
    let padded = |x: Value, axis: usize, by: usize| {
        let mut high = vec![0; rank];
        high[axis] = by as i64;
        ops::pad(&x, &zero, &vec![0; rank], &high, &vec![0; rank])
    };
    let l = lower_part(&ops::slice_axis(lu, rank - 1, 0, steps)?, -1)?;
    let l = padded(l, rank - 1, rows - steps)?;
    let l = add(&l, &identity(l.dtype(), l.shape())?)?;
    let u = upper_part(&ops::slice_axis(lu, rank - 2, 0, steps)?, 0)?;
    let u = padded(u, rank - 2, columns - steps)?;
    if columns == steps {
        return Ok((l, u));
    }
    let ones = identity(u.dtype(), u.shape())?;
    let rest = ops::slice_axis(&ones, rank - 2, steps, columns)?;
    let mut low = vec![0; rank];
    low[rank - 2] = steps as i64;
    let rest = ops::pad(&rest, &zero, &low, &vec![0; rank], &vec![0; rank])?;
    Ok((l, add(&u, &rest)?))
}

/// The rows of each matrix in the order given.
fn rows_in_order(x: &Value, order: &Value) -> Result<Value> {
    let lead = x.rank() - 2;
    if x.shape().size() == 0 {
        return Ok(x.clone());
    }
    let dims = GatherDims {
        offset_dims: vec![lead + 1],
        collapsed_slice_dims: vec![lead],
        operand_batching_dims: (0..lead).collect(),
        start_indices_batching_dims: (0..lead).collect(),
        start_index_map: vec![lead],
        index_vector_dim: lead + 1,
    };
    let mut sizes = vec![1; x.rank()];
    sizes[lead + 1] = x.shape()[lead + 1];
    ops::gather(x, order, &dims, &sizes, IndexMode::PromiseInBounds)
}

/// The elements of each vector in the order given.
fn in_order(x: &Value, order: &Value) -> Result<Value> {
    let axis = x.rank() - 1;
    let dims = along_axis(x.rank(), axis);
    ops::gather(x, order, &dims, &vec![1; x.rank()], IndexMode::PromiseInBounds)
}

/// What `lu` gives, by plain operations: a loop over the columns.
fn factored(x: &Value) -> Result<Values> {
    let (rows, columns) = matrix(x.shape());
    let steps = rows.min(columns);
    let lead = Shape::new(&x.shape()[..x.rank() - 2]);
    let count = lead.size();
    let int = |sizes: &[usize]| Aval::new(DType::I32, sizes);
    let flat = ops::reshape(x, &Shape::new(&[count, rows, columns]))?;
    let order = ops::iota(DType::I32, &Shape::new(&[count, rows]), 1)?;
    if steps * count == 0 {
        let none = ops::zeros(&Aval::new(DType::I32, lead.insert(lead.rank(), steps)))?;
        let order = ops::reshape(&order, &lead.insert(lead.rank(), rows))?;
        return Ok(smallvec![x.clone(), none, order]);
    }
    let ins = [flat.aval().clone(), int(&[count, rows]), int(&[])];
    let body = graph_of(&ins, |v| eliminated(&v[0], &v[1], &v[2]))?;
    let columns_done = ops::iota(DType::I32, &Shape::new(&[steps]), 0)?;
    let outs = ops::scan(&body, (steps, false), &[], &[flat, order], &[columns_done])?;
    let pivots = ops::permute(&outs[2], &[1, 0])?;
    Ok(smallvec![
        ops::reshape(&outs[0], x.shape())?,
        ops::reshape(&pivots, &lead.insert(lead.rank(), steps))?,
        ops::reshape(&outs[1], &lead.insert(lead.rank(), rows))?,
    ])
}

/// One column: the row with the largest element is brought up, and the column eliminated below.
fn eliminated(a: &Value, order: &Value, k: &Value) -> Result<Values> {
    let (count, rows, columns) = (a.shape()[0], a.shape()[1], a.shape()[2]);
    let zero = Value::scalar(Scalar::new(0i32));
    let part = |a: &Value, starts: [&Value; 3], sizes: [usize; 3]| {
        ops::dynamic_slice(a, &starts.map(Clone::clone), &sizes)
    };
    let wide = |x: &Value, sizes: &[usize], axes: &[usize]| {
        ops::broadcast_in_dim(x, &Shape::new(sizes), axes)
    };
    let pairs = [count, rows];
    let row = ops::iota(DType::I32, &Shape::new(&pairs), 1)?;
    let here = wide(k, &pairs, &[])?;
    let column = part(a, [&zero, &zero, k], [count, rows, 1])?;
    let size = magnitude(&ops::reshape(&column, &Shape::new(&pairs))?)?;
    let size = ops::select(&ops::ge(&row, &here)?, &size, &ops::full_like(&size, -1.0)?)?;
    let pivot = ops::argmax(&size, 1, DType::I32)?;
    let there = wide(&pivot, &pairs, &[0])?;
    let from = ops::select(&ops::eq(&row, &there)?, &here, &row)?;
    let from = ops::select(&ops::eq(&row, &here)?, &there, &from)?;
    let (a, order) = (rows_in_order(a, &from)?, in_order(order, &from)?);

    let top = part(&a, [&zero, k, &zero], [count, 1, columns])?;
    let column = part(&a, [&zero, &zero, k], [count, rows, 1])?;
    let pivot_value = wide(&part(&a, [&zero, k, k], [count, 1, 1])?, &[count, rows, 1], &[0, 1, 2]);
    let pivot_value = pivot_value?;
    let below = ops::gt(&row, &here)?;
    let divides = ops::ne(&pivot_value, &ops::zeros(pivot_value.aval())?)?;
    let divides = ops::and(&divides, &wide(&below, &[count, rows, 1], &[0, 1])?)?;
    let column = ops::select(&divides, &ops::div(&column, &pivot_value)?, &column)?;
    let a = ops::dynamic_update_slice(&a, &column, &[zero.clone(), zero, k.clone()])?;

    let all = [count, rows, columns];
    let right = ops::iota(DType::I32, &Shape::new(&all), 2)?;
    let rest = ops::and(&wide(&below, &all, &[0, 1])?, &ops::gt(&right, &wide(k, &all, &[])?)?)?;
    let outer = ops::mul(&wide(&column, &all, &[0, 1, 2])?, &wide(&top, &all, &[0, 1, 2])?)?;
    let a = ops::select(&rest, &sub(&a, &outer)?, &a)?;
    Ok(smallvec![a, order, pivot])
}

/// What pivots are compared by: the absolute value, of a complex number the sum of its parts'.
fn magnitude(x: &Value) -> Result<Value> {
    if x.dtype().is_complex() {
        return add(&ops::abs(&ops::real(x)?)?, &ops::abs(&ops::imag(x)?)?);
    }
    ops::abs(x)
}

/// The factors of each matrix with its rows in another order: `x[order] = l · u`.
///
/// **Shapes:** `[.., m, n]` gives both factors in one array of that shape (`l` has ones on its
/// diagonal, which are not kept), for each of the `min(m, n)` columns the row that was exchanged
/// with it, and the order of the `m` rows; both as i32, counted from 0. **Dtypes:** f32, f64, c64,
/// c128. In each column the first of the largest elements comes up; a column of zeros is left as it
/// is. Source: `lax.linalg.lu` of JAX.
///
/// # Errors
/// If `x` has fewer than two axes or another dtype.
pub fn lu(x: &Value) -> Result<(Value, Value, Value)> {
    let mut outs = bind(&Lu, std::slice::from_ref(x))?.into_iter();
    match (outs.next(), outs.next(), outs.next()) {
        (Some(lu), Some(pivots), Some(order)) => Ok((lu, pivots, order)),
        _ => Err(Error::new(ErrorKind::NoRule, "lu", "gave no result")),
    }
}

/// The primitive `linear_solve`: the unknown of a system whose factors are known. Its operands are
/// the matrix, its `lu`, the order of rows, and the right side. Derivatives are those of the system
/// and pass the factors by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearSolve {
    /// Whether the system is of the transposed matrix.
    pub transpose: bool,
}

impl LinearSolve {
    fn solve(&self, factors: &[Value], b: &Value) -> Result<Value> {
        let operands = factors.iter().chain([b]).cloned().collect::<Values>();
        bind_one(self, &operands)
    }

    /// What the primitive gives, by plain operations.
    fn solved(&self, lu: &Value, order: &Value, b: &Value) -> Result<Value> {
        let l = Triangle { left: true, lower: true, unit: true, transpose: Transpose::No };
        let u = Triangle { lower: false, unit: false, ..l };
        if !self.transpose {
            let b = rows_in_order(b, order)?;
            return triangular_solve(lu, &triangular_solve(lu, &b, l)?, u);
        }
        let turned = |how: Triangle| Triangle { transpose: Transpose::Yes, ..how };
        let y = triangular_solve(lu, &triangular_solve(lu, b, turned(u))?, turned(l))?;
        rows_in_order(&y, &ops::argsort(order, order.rank() - 1, false)?)
    }
}

impl Primitive for LinearSolve {
    fn name(&self) -> &'static str {
        "linear_solve"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let [a, lu, order, b] = operands else {
            let text = format!("takes 4 operands, not {}", operands.len());
            return Err(Error::new(ErrorKind::Shape, "linear_solve", text));
        };
        check_beside("linear_solve", a, b, true)?;
        let rows = a.shape().remove(a.rank() - 1);
        if lu != a || *order.shape() != rows || order.dtype() != DType::I32 {
            let text = format!("{lu} and {order} are not the factors of {a}");
            return Err(Error::new(ErrorKind::Shape, "linear_solve", text));
        }
        Ok(smallvec![b.clone()])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        let ins: Avals = operands[1..].iter().map(|v| v.aval().unsharded()).collect();
        let graph = graph_of(&ins, |v| Ok(smallvec![self.solved(&v[0], &v[1], &v[2])?]))?;
        cx.inline(&graph, &operands[1..])
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        let aval = |x: &HostArray| Aval::new(x.dtype(), x.shape());
        let ins: Avals = operands[1..].iter().map(aval).collect();
        let graph = graph_of(&ins, |v| Ok(smallvec![self.solved(&v[0], &v[1], &v[2])?]))?;
        graph.host(&operands[1..])
    }

    /// Of `a · x = b` follows `a · dx = db - da · x`.
    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let x = bind_one(self, primals)?;
        let word = if self.transpose { Transpose::Yes } else { Transpose::No };
        let of_a = tangents[0].as_ref();
        let of_a = of_a.map(|t| neg(&product(&transposed(t, word)?, &x)?)).transpose()?;
        let side = match (of_a, &tangents[3]) {
            (Some(a), Some(b)) => Some(add(&a, b)?),
            (a, b) => a.or(b.clone()),
        };
        let t = side.map(|side| self.solve(&primals[..3], &side)).transpose()?;
        Ok((smallvec![x], smallvec![t]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let known: Option<Values> = operands[..3].iter().map(|o| o.known().cloned()).collect();
        let (Some(known), true) = (known, operands[3].is_linear()) else {
            return Err(not_linear(self));
        };
        let Some(ct) = &cts[0] else { return Ok(smallvec![None; 4]) };
        let back = LinearSolve { transpose: !self.transpose };
        Ok(smallvec![None, None, None, Some(back.solve(&known, ct)?)])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        if let [None, None, None, Some(axis)] = axes {
            let solve = |b: &Value| self.solve(&operands[..3], b);
            return fold_batch(&operands[3], *axis, true, solve);
        }
        let front = operands.iter().zip(axes);
        let front = front.map(|(x, &axis)| ops::move_batch_axis(batch.size, x, axis, 0));
        let x = bind_one(self, &front.collect::<Result<Values>>()?)?;
        Ok((smallvec![x], smallvec![Some(0)]))
    }
}

/// The unknown `x` of `a · x = b`.
///
/// **Shapes:** `a` is `[.., n, n]`, `b` and the result are `[.., n, m]`. **Dtypes:** f32, f64, c64,
/// c128, one for both. A singular `a` gives infinities or NaN. Derivatives are those of the system,
/// not of the elimination. Source: `jnp.linalg.solve` of JAX.
///
/// # Errors
/// If the operands differ in dtype or batch axes, `a` is not square, or `b` does not fit.
pub fn solve(a: &Value, b: &Value) -> Result<Value> {
    check_beside("solve", a.aval(), b.aval(), true)?;
    let (factors, _, order) = lu(&ops::stop_gradient(a)?)?;
    LinearSolve { transpose: false }.solve(&[a.clone(), factors, order], b)
}
