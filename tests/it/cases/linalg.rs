//! Rows of linear algebra: factorisations and systems.

use super::{Case, arg, vals};
use oxbridge::DType::*;
use oxbridge::backend::host::dot::DotDims;
use oxbridge::ops::{self, Precision, Transpose, Triangle};
use oxbridge::{Result, Scalar, Value};

/// `x · x^H + n · 1`, a positive definite matrix.
fn definite(x: &Value) -> Result<Value> {
    let (rank, n) = (x.rank(), x.shape()[x.rank() - 1]);
    let y = if x.dtype().is_complex() { ops::conj(x)? } else { x.clone() };
    let dims = DotDims {
        lhs_batch: (0..rank - 2).collect(),
        rhs_batch: (0..rank - 2).collect(),
        lhs_contract: vec![rank - 1],
        rhs_contract: vec![rank - 1],
    };
    let square = ops::dot_general(x, &y, &dims, Precision::Highest, None)?;
    let row = ops::iota(I32, x.shape(), rank - 2)?;
    let same = ops::eq(&row, &ops::iota(I32, x.shape(), rank - 1)?)?;
    let scale = ops::full(Scalar::from_f64(x.dtype(), n as f64), x.shape())?;
    ops::add(&square, &ops::select(&same, &scale, &ops::zeros(x.aval())?)?)
}

fn lu(v: &[Value]) -> Result<Vec<Value>> {
    let (lu, pivots, order) = ops::lu(&v[0])?;
    Ok(vec![lu, pivots, order])
}

pub fn rows(rows: &mut Vec<Case>) {
    for dtype in [F32, C64] {
        for shape in [&[3, 3][..], &[2, 4, 4], &[1, 1], &[0, 0]] {
            let case =
                Case::one("cholesky", [arg(dtype, shape)], |v| ops::cholesky(&definite(&v[0])?));
            rows.push(case.tol(4.0, "a product goes before"));
        }
        for (shape, tag) in [
            (&[3, 3][..], ""),
            (&[2, 4, 4], ""),
            (&[4, 2], "tall"),
            (&[2, 3], "wide"),
            (&[2, 0, 3], "empty"),
            (&[0, 2, 2], "no matrix"),
        ] {
            rows.push(Case::many("lu", [arg(dtype, shape)], lu).tag(tag).tol(10.0, "quotients"));
        }
        for (a, b) in
            [(&[3, 3][..], &[3, 2][..]), (&[2, 4, 4], &[2, 4, 1]), (&[0, 2, 2], &[0, 2, 1])]
        {
            let operands = [arg(dtype, a), arg(dtype, b)];
            let case =
                Case::one("linear_solve", operands, |v| ops::solve(&definite(&v[0])?, &v[1]));
            rows.push(case.tol(4.0, "a product goes before"));
        }
    }
    let indefinite = vals(F32, [2, 2], &[1.0, 2.0, 2.0, 1.0]);
    rows.push(
        Case::one("cholesky", [indefinite], |v| ops::cholesky(&v[0]))
            .tag("indefinite")
            .no_grad("NaN"),
    );
    let singular = vals(F32, [3, 3], &[1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 0.0, 0.0, 0.0]);
    rows.push(Case::many("lu", [singular], lu).tag("singular").no_grad("divides by zero"));
    triangles(rows);
}

fn triangles(rows: &mut Vec<Case>) {
    let flags = [false, true];
    let words = [Transpose::No, Transpose::Yes, Transpose::Adjoint];
    for (left, lower) in flags.into_iter().flat_map(|l| flags.map(|m| (l, m))) {
        for (unit, transpose) in flags.into_iter().flat_map(|u| words.map(|t| (u, t))) {
            let how = Triangle { left, lower, unit, transpose };
            let dtype = if transpose == Transpose::Adjoint { C64 } else { F32 };
            let shape = if left { [3, 2] } else { [2, 3] };
            let operands = [arg(dtype, [3, 3]).range(0.5, 1.5), arg(dtype, shape)];
            let solve = move |v: &[Value]| ops::triangular_solve(&v[0], &v[1], how);
            let word = format!("left {left}, lower {lower}, unit {unit}, {transpose:?}");
            rows.push(
                Case::one("triangular_solve", operands, solve).tag(word).tol(4.0, "quotients"),
            );
        }
    }
    let how = Triangle { left: true, lower: true, unit: false, transpose: Transpose::No };
    let solve = move |v: &[Value]| ops::triangular_solve(&v[0], &v[1], how);
    let operands = [arg(F32, [2, 3, 3]).range(0.5, 1.5), arg(F32, [2, 3, 1])];
    rows.push(Case::one("triangular_solve", operands, solve).tol(4.0, "quotients"));
}
