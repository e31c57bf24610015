//! Rows of reductions.

use super::{Case, Operand, arg, edges, vals};
use oxbridge::DType::{self, *};
use oxbridge::{Result, Value, ops};

type Op = fn(&Value, &[usize]) -> Result<Value>;

const NUMBERS: &[DType] = &[F32, F64, F16, BF16, C64, C128, I8, I32, I64, U8, U32];
const ORDERED: &[DType] = &[Bool, F32, F64, F16, BF16, I8, I32, I64, U8, U32];
const BITS: &[DType] = &[Bool, I8, I32, I64, U8, U64];

fn reduce(prim: &'static str, op: Op, x: Operand, axes: &'static [usize]) -> Case {
    Case::one(prim, [x], move |v| op(&v[0], axes)).tag(format!("{axes:?}"))
}

fn table(rows: &mut Vec<Case>, prim: &'static str, op: Op, dtypes: &[DType]) {
    for &dtype in dtypes {
        rows.push(reduce(prim, op, arg(dtype, [2, 5]), &[1]));
    }
    let dtype = if dtypes.contains(&F32) { F32 } else { I32 };
    rows.push(reduce(prim, op, arg(dtype, [2, 5]), &[0]));
    rows.push(reduce(prim, op, arg(dtype, [2, 5]), &[0, 1]));
    rows.push(reduce(prim, op, arg(dtype, [2, 4, 5]), &[1]));
    rows.push(reduce(prim, op, arg(dtype, [2, 4, 5]), &[0, 2]));
    rows.push(reduce(prim, op, arg(dtype, [2, 0]), &[1]).no_grad("nothing to move"));
    rows.push(reduce(prim, op, arg(dtype, [1, 3]), &[0]));
    rows.push(reduce(prim, op, edges(dtype), &[0]).no_grad("edges"));
}

pub fn rows(rows: &mut Vec<Case>) {
    table(rows, "reduce_sum", ops::reduce_sum, NUMBERS);
    table(rows, "reduce_prod", ops::reduce_prod, NUMBERS);
    table(rows, "reduce_max", ops::reduce_max, ORDERED);
    table(rows, "reduce_min", ops::reduce_min, ORDERED);
    table(rows, "reduce_and", ops::reduce_and, BITS);
    table(rows, "reduce_or", ops::reduce_or, BITS);
    let zeros = || vals(F32, [2, 3], &[0.0, 2.0, 3.0, 0.0, 0.0, 1.0]);
    rows.push(reduce("reduce_prod", ops::reduce_prod, zeros(), &[1, 0]));
    let ties = vals(F32, [2, 3], &[1.0, 1.0, 0.0, -1.0, -1.0, -1.0]);
    rows.push(reduce("reduce_max", ops::reduce_max, ties, &[0, 1]).no_grad("a kink"));
    for (prim, op) in
        [("argmax", ops::argmax as fn(&Value, usize, DType) -> _), ("argmin", ops::argmin)]
    {
        for &dtype in ORDERED {
            rows.push(Case::one(prim, [arg(dtype, [2, 5])], move |v| op(&v[0], 1, I64)));
        }
        let row = Case::one(prim, [arg(F32, [4, 2])], move |v| op(&v[0], 0, I32));
        rows.push(row.tag("axis 0 in i32"));
        rows.push(Case::one(prim, [edges(F32)], move |v| op(&v[0], 0, I64)).tag("edges"));
    }
}
