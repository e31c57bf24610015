//! Rows of the primitives that cut and join along axes.

use super::{Case, arg, vals};
use oxbridge::DType::{self, *};
use oxbridge::{Value, ops};

const DTYPES: &[DType] = &[Bool, F32, F64, F16, BF16, C64, I8, I32, I64, U8];

fn slice(dtype: DType, [starts, limits, steps]: [&'static [usize]; 3]) -> Case {
    let apply = move |v: &[Value]| ops::slice(&v[0], starts, limits, steps);
    let tag = format!("{starts:?} to {limits:?} by {steps:?}");
    Case::one("slice", [arg(dtype, [4, 5])], apply).tag(tag)
}

fn pad(dtype: DType, [low, high, interior]: [&'static [i64]; 3]) -> Case {
    let apply = move |v: &[Value]| ops::pad(&v[0], &v[1], low, high, interior);
    let tag = format!("{low:?} {high:?} {interior:?}");
    Case::one("pad", [arg(dtype, [2, 4]), arg(dtype, [])], apply).tag(tag)
}

pub fn rows(rows: &mut Vec<Case>) {
    for &dtype in DTYPES {
        rows.push(slice(dtype, [&[1, 0], &[3, 5], &[1, 2]]));
        rows.push(pad(dtype, [&[1, 0], &[0, 2], &[0, 1]]));
        let parts = [arg(dtype, [2, 4]), arg(dtype, [2, 1])];
        rows.push(Case::one("concatenate", parts, |v| ops::concatenate(v, 1)));
        rows.push(Case::one("reverse", [arg(dtype, [2, 4])], |v| ops::reverse(&v[0], &[1])));
    }
    rows.push(slice(F32, [&[0, 2], &[4, 2], &[1, 1]]));
    rows.push(slice(F32, [&[1, 1], &[2, 2], &[1, 1]]));
    rows.push(pad(F32, [&[-1, 0], &[0, -2], &[0, 0]]));
    rows.push(pad(F32, [&[0, -1], &[1, 3], &[2, 1]]));
    let parts = [arg(F32, [1, 2]), arg(F32, [4, 2]), arg(F32, [0, 2])];
    rows.push(Case::one("concatenate", parts, |v| ops::concatenate(v, 0)).tag("three"));
    let both = Case::one("reverse", [arg(F32, [2, 4])], |v| ops::reverse(&v[0], &[0, 1]));
    rows.push(both.tag("both axes"));
    dynamic(rows);
}

/// Slices at starts that are operands, inside and outside of the array.
fn dynamic(rows: &mut Vec<Case>) {
    let at = |n: f64| vals(I32, [], &[n]);
    let cut = |v: &[Value]| ops::dynamic_slice(&v[0], &v[1..], &[2, 3]);
    let put = |v: &[Value]| ops::dynamic_update_slice(&v[0], &v[1], &v[2..]);
    for &dtype in DTYPES {
        rows.push(Case::one("dynamic_slice", [arg(dtype, [4, 5]), at(1.0), at(2.0)], cut));
        let operands = [arg(dtype, [4, 5]), arg(dtype, [2, 3]), at(1.0), at(2.0)];
        rows.push(Case::one("dynamic_update_slice", operands, put));
    }
    let outside = [arg(F32, [4, 5]), at(-3.0), at(7.0)];
    rows.push(Case::one("dynamic_slice", outside, cut).tag("outside"));
    let outside = [arg(F32, [4, 5]), arg(F32, [2, 3]), at(9.0), at(-1.0)];
    rows.push(Case::one("dynamic_update_slice", outside, put).tag("outside"));
    // Examples have starts of their own here.
    let starts = || arg(I64, []).range(0.0, 3.0);
    let operands = [arg(F32, [4, 5]), starts(), starts()];
    rows.push(Case::one("dynamic_slice", operands, cut).tag("many starts"));
    let operands = [arg(F32, [4, 5]), arg(F32, [2, 3]), starts(), starts()];
    rows.push(Case::one("dynamic_update_slice", operands, put).tag("many starts"));
}
