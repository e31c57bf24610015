//! Rows of products.

use super::{Case, arg, vals};
use oxbridge::DType::{self, *};
use oxbridge::ops::dot::{DotDims, Precision, dot_general};

const NUMBERS: &[DType] = &[F32, F64, F16, BF16, C64, C128, I8, I32, I64, U8];

fn dot(dtype: DType, shapes: [&[usize]; 2], dims: [&[usize]; 4], out: Option<DType>) -> Case {
    let [lhs_batch, rhs_batch, lhs_contract, rhs_contract] = dims.map(<[usize]>::to_vec);
    let dims = DotDims { lhs_batch, rhs_batch, lhs_contract, rhs_contract };
    let tag = format!(
        "batch {:?} {:?} contract {:?} {:?}{}",
        dims.lhs_batch,
        dims.rhs_batch,
        dims.lhs_contract,
        dims.rhs_contract,
        out.map_or(String::new(), |out| format!(" in {out}"))
    );
    let apply = move |v: &[oxbridge::Value]| {
        let out = out.map(|out| if v[0].dtype() == F64 { F64 } else { out });
        dot_general(&v[0], &v[1], &dims, Precision::Default, out)
    };
    Case::one("dot_general", shapes.map(|shape| arg(dtype, shape)), apply).tag(tag)
}

pub fn rows(rows: &mut Vec<Case>) {
    for &dtype in NUMBERS {
        rows.push(dot(dtype, [&[2, 4], &[4, 5]], [&[], &[], &[1], &[0]], None));
    }
    rows.push(dot(F32, [&[4], &[4]], [&[], &[], &[0], &[0]], None));
    rows.push(dot(F32, [&[2], &[5]], [&[], &[], &[], &[]], None));
    rows.push(dot(F32, [&[4, 2], &[5, 4]], [&[], &[], &[0], &[1]], None));
    rows.push(dot(F32, [&[2, 4, 5], &[2, 5, 1]], [&[0], &[0], &[2], &[1]], None));
    rows.push(dot(F32, [&[4, 2, 5], &[5, 6, 2]], [&[1], &[2], &[2], &[0]], None));
    rows.push(dot(F32, [&[2, 4, 5], &[5, 4, 6]], [&[], &[], &[1, 2], &[1, 0]], None));
    rows.push(dot(F32, [&[2, 0], &[0, 4]], [&[], &[], &[1], &[0]], None));
    for (dtype, out) in [(BF16, F32), (F16, F32), (I8, I32), (F32, F64)] {
        rows.push(dot(dtype, [&[2, 4], &[4, 5]], [&[], &[], &[1], &[0]], Some(out)));
    }
    let dims = DotDims { lhs_contract: vec![0], rhs_contract: vec![0], ..DotDims::default() };
    let edge = || vals(F32, [4], &[1.0, f64::INFINITY, 2.0, 0.0]);
    let apply =
        move |v: &[oxbridge::Value]| dot_general(&v[0], &v[1], &dims, Precision::Highest, None);
    rows.push(Case::one("dot_general", [edge(), edge()], apply).tag("inf").no_grad("edges"));
}
