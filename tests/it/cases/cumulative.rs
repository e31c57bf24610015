//! Rows of running results.

use super::{Case, arg, edges};
use oxbridge::DType::{self, *};
use oxbridge::{Result, Value, ops};

type Op = fn(&Value, usize, bool) -> Result<Value>;

const FLOATS: &[DType] = &[F32, F64, F16, BF16];
const NUMBERS: &[DType] = &[F32, F64, F16, BF16, C64, I8, I32, I64, U8, U32];
const ORDERED: &[DType] = &[Bool, F32, F64, F16, BF16, I8, I32, I64, U8, U32];

pub fn rows(rows: &mut Vec<Case>) {
    table(rows, "cumsum", ops::cumsum, NUMBERS);
    table(rows, "cumprod", ops::cumprod, NUMBERS);
    table(rows, "cummax", ops::cummax, ORDERED);
    table(rows, "cummin", ops::cummin, ORDERED);
    table(rows, "cumlogsumexp", ops::cumlogsumexp, FLOATS);
}

fn table(rows: &mut Vec<Case>, prim: &'static str, op: Op, dtypes: &[DType]) {
    for &dtype in dtypes {
        let row = Case::one(prim, [arg(dtype, [2, 5])], move |v| op(&v[0], 1, false));
        rows.push(row.tol(2.0, "errors add up along the axis"));
    }
    for (axis, reverse) in [(0, false), (1, true), (0, true)] {
        let row = Case::one(prim, [arg(F32, [4, 2])], move |v| op(&v[0], axis, reverse));
        let way = if reverse { "from the end" } else { "from the front" };
        rows.push(row.tag(format!("axis {axis} {way}")));
    }
    let row = Case::one(prim, [edges(F32)], move |v| op(&v[0], 0, false));
    rows.push(row.tag("edges").no_grad("edges"));
}
