//! Rows of `gather` and the ways to call it.

use super::{Case, arg, vals};
use oxbridge::DType::{self, *};
use oxbridge::{Value, ops};

const DTYPES: &[DType] = &[Bool, F32, F64, F16, BF16, C64, I8, I32, I64, U8];

pub fn rows(rows: &mut Vec<Case>) {
    let take = |axis: usize| move |v: &[Value]| ops::take(&v[0], &v[1], axis);
    for &dtype in DTYPES {
        let indices = arg(I64, [2]).range(0.0, 4.0);
        rows.push(Case::one("gather", [arg(dtype, [4, 5]), indices], take(0)).tag("take"));
    }
    let indices = || arg(I32, [2, 2]).range(0.0, 5.0);
    rows.push(Case::one("gather", [arg(F32, [4, 5]), indices()], take(1)).tag("take axis 1"));
    let one = vals(I32, [], &[2.0]);
    rows.push(Case::one("gather", [arg(F32, [4, 5]), one], take(0)).tag("take one"));
    let outside = vals(I32, [4], &[-1.0, 0.0, 4.0, 9.0]);
    let row = Case::one("gather", [arg(F32, [4, 2]), outside], take(0));
    rows.push(row.tag("take outside").no_grad("NaN stands for what is outside"));
    let along = |axis: usize| move |v: &[Value]| ops::take_along_axis(&v[0], &v[1], axis);
    let indices = arg(I64, [4, 2]).range(0.0, 5.0);
    let row = Case::one("gather", [arg(F32, [4, 5]), indices], along(1));
    rows.push(row.tag("along axis 1"));
    let indices = arg(I32, [2, 5]).range(0.0, 4.0);
    let row = Case::one("gather", [arg(C64, [4, 5]), indices], along(0));
    rows.push(row.tag("along axis 0"));
}
