//! Rows of the primitives that move elements and do not look at them.

use super::{Case, arg};
use oxbridge::DType::{self, *};
use oxbridge::{Shape, ops};

const DTYPES: &[DType] = &[Bool, F32, F64, F16, BF16, C64, I8, I32, I64, U8];

fn broadcast(dtype: DType, from: &[usize], to: &[usize], axes: &'static [usize]) -> Case {
    let to = Shape::new(to);
    let tag = format!("to {to} axes {axes:?}");
    let apply = move |v: &[oxbridge::Value]| ops::broadcast_in_dim(&v[0], &to, axes);
    Case::one("broadcast_in_dim", [arg(dtype, Shape::new(from))], apply).tag(tag)
}

fn reshape(dtype: DType, from: &[usize], to: &[usize]) -> Case {
    let to = Shape::new(to);
    let tag = format!("to {to}");
    let apply = move |v: &[oxbridge::Value]| ops::reshape(&v[0], &to);
    Case::one("reshape", [arg(dtype, Shape::new(from))], apply).tag(tag)
}

fn permute(dtype: DType, from: &[usize], perm: &'static [usize]) -> Case {
    let apply = move |v: &[oxbridge::Value]| ops::permute(&v[0], perm);
    Case::one("permute", [arg(dtype, Shape::new(from))], apply).tag(format!("{perm:?}"))
}

pub fn rows(rows: &mut Vec<Case>) {
    for &dtype in DTYPES {
        rows.push(broadcast(dtype, &[3], &[2, 3], &[1]));
        rows.push(reshape(dtype, &[2, 6], &[4, 3]));
        rows.push(permute(dtype, &[2, 4, 5], &[2, 0, 1]));
    }
    rows.push(broadcast(F32, &[], &[2, 3], &[]));
    rows.push(broadcast(F32, &[2], &[2, 3], &[0]));
    rows.push(broadcast(F32, &[2, 1], &[2, 5], &[0, 1]));
    rows.push(broadcast(F32, &[1, 2], &[4, 5, 2], &[0, 2]));
    rows.push(broadcast(F32, &[1], &[1, 2], &[0]));
    rows.push(broadcast(F32, &[3], &[0, 3], &[1]));
    rows.push(reshape(F32, &[2, 3], &[6]));
    rows.push(reshape(F32, &[1, 1], &[]));
    rows.push(reshape(F32, &[], &[1, 1]));
    rows.push(reshape(F32, &[4, 3], &[2, 2, 3, 1]));
    rows.push(reshape(F32, &[0, 3], &[3, 0]));
    rows.push(permute(F32, &[2, 4], &[1, 0]));
    rows.push(permute(F32, &[2, 4, 5], &[1, 2, 0]));
    rows.push(permute(F32, &[2, 4, 1, 3], &[3, 1, 0, 2]));
}
