//! Rows of sorting.

use super::{Case, Operand, arg, edges, vals};
use oxbridge::DType::{self, *};
use oxbridge::ops;

const ORDERED: &[DType] = &[Bool, F32, F64, F16, BF16, I8, I32, I64, U8, U32];

fn sort(operands: Vec<Operand>, axis: usize, keys: usize, descending: bool) -> Case {
    let apply = move |v: &[oxbridge::Value]| Ok(ops::sort(v, axis, keys, descending)?.to_vec());
    let way = if descending { "falling" } else { "growing" };
    Case::many("sort", operands, apply).tag(format!("axis {axis}, {keys} keys, {way}"))
}

fn top_k(x: Operand, k: usize) -> Case {
    let apply = move |v: &[oxbridge::Value]| {
        let (values, indices) = ops::top_k(&v[0], k)?;
        Ok(vec![values, indices])
    };
    Case::many("top_k", [x], apply).tag(format!("k = {k}"))
}

pub fn rows(rows: &mut Vec<Case>) {
    for &dtype in ORDERED {
        rows.push(sort(vec![arg(dtype, [2, 5])], 1, 1, false));
        rows.push(top_k(arg(dtype, [2, 5]), 3));
    }
    rows.push(sort(vec![arg(F32, [5, 2])], 0, 1, true));
    rows.push(sort(vec![edges(F32)], 0, 1, false).no_grad("edges"));
    rows.push(sort(vec![edges(F32)], 0, 1, true).no_grad("edges"));
    rows.push(top_k(edges(F32), 13).no_grad("edges"));
    let keys = || vals(I32, [6], &[2.0, 1.0, 2.0, 1.0, 2.0, 1.0]);
    rows.push(sort(vec![keys(), arg(F32, [6])], 0, 1, false));
    rows.push(sort(vec![keys(), arg(F32, [6])], 0, 2, false));
    rows.push(sort(vec![keys(), arg(F32, [6]), arg(C64, [6])], 0, 2, true));
}
