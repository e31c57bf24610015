//! Rows of comparison, selection and clamping.

use super::{Case, arg, edges, vals};
use oxbridge::DType::{self, *};
use oxbridge::{Result, Value, ops};

type Op = fn(&Value, &Value) -> Result<Value>;

const ORDERED: &[DType] = &[Bool, F32, F64, F16, BF16, I8, I32, I64, U8, U32];

pub fn rows(rows: &mut Vec<Case>) {
    let comparisons: [(&str, Op); 6] = [
        ("eq", ops::eq),
        ("ne", ops::ne),
        ("lt", ops::lt),
        ("le", ops::le),
        ("gt", ops::gt),
        ("ge", ops::ge),
    ];
    for (prim, op) in comparisons {
        let row = |operands| Case::one(prim, operands, move |v| op(&v[0], &v[1]));
        for &dtype in ORDERED {
            rows.push(row([arg(dtype, [2, 3]), arg(dtype, [2, 3])]));
        }
        for dtype in [F32, I32, U8] {
            let n = edges(dtype).shape[0];
            let apply = move |v: &[Value]| {
                let shape = [n, n].into();
                let x = ops::broadcast_in_dim(&v[0], &shape, &[0])?;
                op(&x, &ops::broadcast_in_dim(&v[1], &shape, &[1])?)
            };
            let operands = [edges(dtype), edges(dtype)];
            rows.push(Case::one(prim, operands, apply).tag("all pairs of edges"));
        }
    }
    for (prim, op) in [("eq", ops::eq as Op), ("ne", ops::ne)] {
        let z = || vals(C64, [3], &[1.0, 2.0, 3.0]);
        rows.push(Case::one(prim, [z(), z()], move |v| op(&v[0], &v[1])).tag("equal"));
        let both = [arg(C128, [2]), arg(C128, [2])];
        rows.push(Case::one(prim, both, move |v| op(&v[0], &v[1])));
    }
    select(rows);
}

fn select(rows: &mut Vec<Case>) {
    let apply = |v: &[Value]| ops::select(&v[0], &v[1], &v[2]);
    for dtype in [Bool, F32, F64, F16, BF16, C64, I8, I32, I64, U8] {
        let operands = [arg(Bool, [2, 3]), arg(dtype, [2, 3]), arg(dtype, [2, 3])];
        rows.push(Case::one("select", operands, apply));
    }
    rows.push(Case::one("select", [arg(Bool, []), arg(F32, [2, 3]), arg(F32, [2, 3])], apply));
    rows.push(Case::one("select", [arg(Bool, []), arg(F32, []), arg(F32, [])], apply));
    let clamp = |v: &[Value]| ops::clamp(&v[0], &v[1], &v[2]);
    for dtype in [F32, F64, I32] {
        let ranges = [(-1.0, 0.0), (-2.0, 2.0), (1.0, 3.0)];
        let operands = ranges.map(|(low, high)| arg(dtype, [2, 3]).range(low, high));
        rows.push(Case::one("min", operands, clamp).tag("clamp"));
    }
}
