//! Matrices over the last two axes: `cholesky`, `triangular_solve`, and what their rules share with
//! [`lu`](super::lu()).

use super::{add, bad_dtype, mul, neg};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host::dot::DotDims;
use crate::backend::host::linalg as kernel;
pub use crate::backend::host::linalg::{Transpose, Triangle};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::ops;
use crate::ops::region::graph_of;
use crate::shape::Shape;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::smallvec;

/// Checks that the last two axes are matrices of a dtype that can be factored.
pub(super) fn check_matrix(op: &'static str, x: &Aval) -> Result<()> {
    if !matches!(x.dtype(), DType::F32 | DType::F64 | DType::C64 | DType::C128) {
        return Err(bad_dtype(op, x, "f32, f64, c64 and c128"));
    }
    if x.rank() < 2 {
        let text = format!("{x} is no matrix nor a batch of them");
        return Err(Error::new(ErrorKind::Shape, op, text));
    }
    Ok(())
}

/// As [`check_matrix`], for square ones.
pub(super) fn check_square(op: &'static str, x: &Aval) -> Result<()> {
    check_matrix(op, x)?;
    let (rows, columns) = matrix(x.shape());
    if rows != columns {
        let text = format!("{x} is not square: {rows} rows and {columns} columns");
        return Err(Error::new(ErrorKind::Shape, op, text));
    }
    Ok(())
}

/// Checks that `b` stands beside the square matrices `a`: one dtype, equal batch axes, and as many
/// rows (columns, if `a` stands on its right) as `a` has.
pub(super) fn check_beside(op: &'static str, a: &Aval, b: &Aval, left: bool) -> Result<()> {
    check_square(op, a)?;
    if a.dtype() != b.dtype() || a.rank() != b.rank() {
        let text = format!("matrix {a} and right side {b} differ in dtype or rank");
        return Err(Error::new(ErrorKind::Shape, op, text));
    }
    let lead = a.rank() - 2;
    let axis = if left { lead } else { lead + 1 };
    let (n, m) = (a.shape()[lead], b.shape()[axis]);
    if a.shape()[..lead] != b.shape()[..lead] || n != m {
        let text = format!(
            "matrix {a} and right side {b} do not fit: the batch axes are equal, and axis {axis} of \
             the right side has size {n}"
        );
        return Err(Error::new(ErrorKind::Shape, op, text));
    }
    Ok(())
}

/// The sizes of the last two axes.
pub(super) fn matrix(shape: &Shape) -> (usize, usize) {
    let rank = shape.rank();
    (shape[rank - 2], shape[rank - 1])
}

/// Whether row and column of an element of a matrix fulfil a comparison of `column` and
/// `row + offset`.
fn where_indices(
    shape: &Shape,
    offset: i64,
    test: fn(&Value, &Value) -> Result<Value>,
) -> Result<Value> {
    let (rows, columns) = matrix(shape);
    let flat = Shape::new(&[rows, columns]);
    let row = ops::iota(DType::I32, &flat, 0)?;
    let column = ops::iota(DType::I32, &flat, 1)?;
    let row = if offset == 0 { row } else { add(&row, &ops::full_like(&row, offset as f64)?)? };
    let mask = test(&column, &row)?;
    let rank = shape.rank();
    ops::broadcast_in_dim(&mask, shape, &[rank - 2, rank - 1])
}

/// The matrices with zeros above the diagonal that lies `offset` above the main one.
pub(crate) fn lower_part(x: &Value, offset: i64) -> Result<Value> {
    let mask = where_indices(x.shape(), offset, ops::le)?;
    ops::select(&mask, x, &ops::zeros(x.aval())?)
}

/// The matrices with zeros below the diagonal that lies `offset` above the main one.
pub(crate) fn upper_part(x: &Value, offset: i64) -> Result<Value> {
    let mask = where_indices(x.shape(), offset, ops::ge)?;
    ops::select(&mask, x, &ops::zeros(x.aval())?)
}

/// Ones on the main diagonal, zeros elsewhere.
pub(crate) fn identity(dtype: DType, shape: &Shape) -> Result<Value> {
    ops::convert(&where_indices(shape, 0, ops::eq)?, dtype)
}

/// The main diagonals, as the last axis, of square matrices.
pub(crate) fn diagonal(x: &Value) -> Result<Value> {
    let mask = where_indices(x.shape(), 0, ops::eq)?;
    let only = ops::select(&mask, x, &ops::zeros(x.aval())?)?;
    ops::reduce_sum(&only, &[x.rank() - 1])
}

/// The products of two batches of matrices, at full precision.
pub(crate) fn product(x: &Value, y: &Value) -> Result<Value> {
    let lead = x.rank() - 2;
    let dims = DotDims {
        lhs_batch: (0..lead).collect(),
        rhs_batch: (0..lead).collect(),
        lhs_contract: vec![lead + 1],
        rhs_contract: vec![lead],
    };
    ops::dot_general(x, y, &dims, ops::Precision::Highest, None)
}

/// The matrices that `transpose` names.
pub(crate) fn transposed(x: &Value, transpose: Transpose) -> Result<Value> {
    if transpose == Transpose::No {
        return Ok(x.clone());
    }
    let mut perm: Vec<usize> = (0..x.rank()).collect();
    perm.swap(x.rank() - 2, x.rank() - 1);
    let x = ops::permute(x, &perm)?;
    if transpose == Transpose::Adjoint && x.dtype().is_complex() { ops::conj(&x) } else { Ok(x) }
}

/// The batch rule of a system of which only the right side, the last operand, is mapped: the batch
/// becomes more columns (rows, if the matrix stands on its right).
pub(super) fn fold_batch(
    b: &Value,
    axis: usize,
    left: bool,
    solve: impl FnOnce(&Value) -> Result<Value>,
) -> Result<(Values, BatchAxes)> {
    let rank = b.rank() - 1;
    let to = if left { rank } else { rank - 2 };
    let b = ops::move_axis(b, axis, to)?;
    let at = if left { rank - 1 } else { rank - 2 };
    let folded = b.shape().remove(at).with(at, b.shape()[at] * b.shape()[at + 1]);
    let x = solve(&ops::reshape(&b, &folded)?)?;
    Ok((smallvec![ops::reshape(&x, b.shape())?], smallvec![Some(to)]))
}

/// The primitive `cholesky`: the lower triangular factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cholesky;

impl Primitive for Cholesky {
    fn name(&self) -> &'static str {
        "cholesky"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        check_square("cholesky", &operands[0])?;
        Ok(smallvec![operands[0].clone()])
    }

    /// What the op leaves in the upper triangle is up to the compiler: zeros are written there.
    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let factor = cx.op("stablehlo.cholesky", operands, "lower = true", outs);
        let part = graph_of(&[outs[0].unsharded()], |x| Ok(smallvec![lower_part(&x[0], 0)?]))?;
        cx.inline(&part, &factor)
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![kernel::cholesky(&operands[0])])
    }

    /// `l · phi(l^-1 · t · l^-H)`, where `phi` takes the lower triangle with half of the diagonal.
    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let l = bind_one(self, primals)?;
        let Some(t) = &tangents[0] else { return Ok((smallvec![l], smallvec![None])) };
        let how = Triangle { left: true, lower: true, unit: false, transpose: Transpose::No };
        let right = Triangle { left: false, transpose: Transpose::Adjoint, ..how };
        let inner = triangular_solve(&l, &triangular_solve(&l, t, right)?, how)?;
        let half = ops::full_like(&inner, 0.5)?;
        let scale = ops::sub(
            &ops::full_like(&inner, 1.0)?,
            &mul(&identity(inner.dtype(), inner.shape())?, &half)?,
        )?;
        let t = product(&l, &lower_part(&mul(&inner, &scale)?, 0)?)?;
        Ok((smallvec![l], smallvec![Some(t)]))
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
        Ok((smallvec![bind_one(self, &[x])?], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        String::new()
    }
}

/// The lower triangular `l` with `l · l^H = x` for each Hermitian positive definite matrix.
///
/// **Shapes:** `[.., n, n]` gives the same. **Dtypes:** f32, f64, c64, c128. Only the lower triangle
/// of `x` is read; where `x` is not positive definite the lower triangle of the result is NaN. The
/// derivative is that along Hermitian tangents, as in JAX. Source: StableHLO `cholesky`.
///
/// # Errors
/// If `x` is not square or of another dtype.
pub fn cholesky(x: &Value) -> Result<Value> {
    bind_one(&Cholesky, std::slice::from_ref(x))
}

/// The primitive `triangular_solve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TriangularSolve(pub Triangle);

impl TriangularSolve {
    /// `op(a) · x`, or `x · op(a)`, for an `a` of which only the triangle counts.
    fn apply(&self, a: &Value, x: &Value) -> Result<Value> {
        let offset = i64::from(self.0.unit);
        let a = if self.0.lower { lower_part(a, -offset)? } else { upper_part(a, offset)? };
        let a = transposed(&a, self.0.transpose)?;
        if self.0.left { product(&a, x) } else { product(x, &a) }
    }
}

impl Primitive for TriangularSolve {
    fn name(&self) -> &'static str {
        "triangular_solve"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        check_beside("triangular_solve", &operands[0], &operands[1], self.0.left)?;
        Ok(smallvec![operands[1].clone()])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let Triangle { left, lower, unit, transpose } = self.0;
        let word = match transpose {
            Transpose::No => "NO_TRANSPOSE",
            Transpose::Yes => "TRANSPOSE",
            Transpose::Adjoint => "ADJOINT",
        };
        let attrs = format!(
            "left_side = {left}, lower = {lower}, transpose_a = #stablehlo<transpose {word}>, \
             unit_diagonal = {unit}"
        );
        Ok(cx.op("stablehlo.triangular_solve", operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![kernel::triangular_solve(&operands[0], &operands[1], self.0)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let x = bind_one(self, primals)?;
        let of_a = tangents[0].as_ref().map(|t| neg(&self.apply(t, &x)?)).transpose()?;
        let side = match (of_a, &tangents[1]) {
            (Some(a), Some(b)) => Some(add(&a, b)?),
            (a, b) => a.or(b.clone()),
        };
        let t = side.map(|side| bind_one(self, &[primals[0].clone(), side])).transpose()?;
        Ok((smallvec![x], smallvec![t]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let (Some(a), true) = (operands[0].known(), operands[1].is_linear()) else {
            return Err(not_linear(self));
        };
        let Some(ct) = &cts[0] else { return Ok(smallvec![None, None]) };
        let (a, transpose) = match self.0.transpose {
            Transpose::No => (a.clone(), Transpose::Yes),
            Transpose::Yes => (a.clone(), Transpose::No),
            Transpose::Adjoint if a.dtype().is_complex() => (ops::conj(a)?, Transpose::No),
            Transpose::Adjoint => (a.clone(), Transpose::No),
        };
        Ok(smallvec![None, Some(triangular_solve(&a, ct, Triangle { transpose, ..self.0 })?)])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        if let (None, Some(axis)) = (axes[0], axes[1]) {
            let solve = |b: &Value| triangular_solve(&operands[0], b, self.0);
            return fold_batch(&operands[1], axis, self.0.left, solve);
        }
        let a = ops::move_batch_axis(batch.size, &operands[0], axes[0], 0)?;
        let b = ops::move_batch_axis(batch.size, &operands[1], axes[1], 0)?;
        Ok((smallvec![triangular_solve(&a, &b, self.0)?], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        let Triangle { left, lower, unit, transpose } = self.0;
        let word = match transpose {
            Transpose::No => "",
            Transpose::Yes => ", transpose=yes",
            Transpose::Adjoint => ", transpose=adjoint",
        };
        format!("left={left}, lower={lower}, unit={unit}{word}")
    }
}

/// The unknown `x` of `op(a) · x = b`, or of `x · op(a) = b`, for triangular `a`.
///
/// **Shapes:** `a` is `[.., n, n]`, `b` is `[.., n, m]` (`[.., m, n]` with `a` on the right), and so
/// is the result. **Dtypes:** f32, f64, c64, c128, one for both. A zero on the diagonal gives
/// infinities or NaN. Source: StableHLO `triangular_solve`.
///
/// # Errors
/// If the operands differ in dtype or batch axes, `a` is not square, or `b` does not fit.
pub fn triangular_solve(a: &Value, b: &Value, how: Triangle) -> Result<Value> {
    bind_one(&TriangularSolve(how), &[a.clone(), b.clone()])
}
