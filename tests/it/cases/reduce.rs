//! Rows of reductions.

use super::{Case, Operand, arg, edges};
use oxbridge::DType::{self, *};
use oxbridge::ops;

const NUMBERS: &[DType] = &[F32, F64, F16, BF16, C64, C128, I8, I32, I64, U8, U32];

fn sum(x: Operand, axes: &'static [usize]) -> Case {
    Case::one("reduce_sum", [x], move |v| ops::reduce_sum(&v[0], axes)).tag(format!("{axes:?}"))
}

pub fn rows(rows: &mut Vec<Case>) {
    for &dtype in NUMBERS {
        rows.push(sum(arg(dtype, [2, 5]), &[1]));
    }
    rows.push(sum(arg(F32, [2, 5]), &[0]));
    rows.push(sum(arg(F32, [2, 5]), &[0, 1]));
    rows.push(sum(arg(F32, [2, 4, 5]), &[1]));
    rows.push(sum(arg(F32, [2, 4, 5]), &[0, 2]));
    rows.push(sum(arg(F32, [2, 0]), &[1]));
    rows.push(sum(arg(F32, [1, 3]), &[0]));
    rows.push(sum(edges(F32), &[0]).no_grad("edges"));
}
