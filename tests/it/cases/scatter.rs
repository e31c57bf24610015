//! Rows of the scatters.

use super::{Case, arg, vals};
use oxbridge::DType::{self, *};
use oxbridge::ops::{self, ScatterKind};

const NUMBERS: &[DType] = &[F32, F64, F16, BF16, I8, I32, I64, U8];

pub fn rows(rows: &mut Vec<Case>) {
    let kinds = [
        ("scatter", ScatterKind::Set),
        ("scatter_add", ScatterKind::Add),
        ("scatter_mul", ScatterKind::Mul),
        ("scatter_min", ScatterKind::Min),
        ("scatter_max", ScatterKind::Max),
    ];
    for (prim, kind) in kinds {
        let at = move |axis: usize| {
            move |v: &[oxbridge::Value]| ops::scatter_along_axis(&v[0], &v[1], &v[2], axis, kind)
        };
        let ruled = matches!(kind, ScatterKind::Set | ScatterKind::Add);
        let mut push = |row: Case| {
            rows.push(if ruled { row } else { row.no_grad("has no derivative rule") });
        };
        // No index stands twice in a column, so the order does not matter.
        let apart = || vals(I32, [2, 3], &[0.0, 3.0, 1.0, 2.0, 1.0, 3.0]);
        for &dtype in NUMBERS {
            let operands = [arg(dtype, [4, 3]), apart(), arg(dtype, [2, 3])];
            push(Case::one(prim, operands, at(0)).tag("apart"));
        }
        let outside = vals(I64, [2, 2], &[0.0, 7.0, 2.0, 1.0]);
        let operands = [arg(F32, [2, 4]), outside, arg(F32, [2, 2])];
        push(Case::one(prim, operands, at(1)).tag("one outside"));
        if kind != ScatterKind::Set {
            let same = vals(I32, [3, 1], &[1.0, 1.0, 0.0]);
            let operands = [arg(F32, [2, 1]), same, arg(F32, [3, 1])];
            push(Case::one(prim, operands, at(0)).tag("twice"));
        }
    }
}
