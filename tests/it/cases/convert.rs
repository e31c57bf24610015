//! Rows of `convert` and `bitcast`.

use super::{Case, arg, edges, exact, vals};
use oxbridge::DType::{self, *};
use oxbridge::ops;

const ALL: &[DType] = &[Bool, U8, U16, U32, U64, I8, I16, I32, I64, F16, BF16, F32, F64, C64, C128];

pub fn rows(rows: &mut Vec<Case>) {
    for &from in ALL {
        for &to in ALL.iter().filter(|&&to| to != from) {
            if from.is_complex() && !to.is_complex() {
                continue;
            }
            // Negative numbers to unsigned types are left to the rows of edges.
            let low = if to.is_unsigned() || from.is_unsigned() { 0.0 } else { -8.0 };
            let row = Case::one("convert", [arg(from, [2, 3]).range(low, 8.0)], move |v| {
                ops::convert(&v[0], to)
            });
            rows.push(row.tag(format!("to {to}")));
        }
    }
    for (from, to) in
        [(F32, I8), (F32, U8), (F32, I32), (F32, I64), (F32, Bool), (F32, F16), (F32, BF16)]
    {
        let row = Case::one("convert", [edges(from)], move |v| ops::convert(&v[0], to));
        rows.push(row.tag(format!("to {to}, edges")).no_grad("edges"));
    }
    for (from, to) in
        [(I64, I8), (I64, U8), (I32, U32), (I32, F32), (I32, Bool), (U8, I8), (I64, I32)]
    {
        let row = Case::one("convert", [edges(from)], move |v| ops::convert(&v[0], to));
        rows.push(row.tag(format!("to {to}, edges")));
    }
    let halves = vals(F32, [8], &[0.5, 1.5, 2.5, -0.5, -1.5, 2.49, -2.51, 126.9]);
    let row = Case::one("convert", [halves], |v| ops::convert(&v[0], I8));
    rows.push(row.tag("towards zero"));
    let large = exact([3], &[i64::MAX, (1 << 53) + 1, i64::MIN + 1]);
    let row = Case::one("convert", [large], |v| ops::convert(&v[0], F64));
    rows.push(row.tag("beyond 53 bits"));
    for (from, to) in [
        (F32, I32),
        (I32, F32),
        (F32, U32),
        (F64, I64),
        (U64, F64),
        (F16, I16),
        (BF16, U16),
        (I8, U8),
    ] {
        let row = Case::one("bitcast", [arg(from, [2, 3])], move |v| ops::bitcast(&v[0], to));
        rows.push(row.tag(format!("to {to}")).no_grad("bits have no derivative"));
    }
}
