//! Rows of what runs over windows.

use super::{Case, arg, edges};
use oxbridge::DType::{self, *};
use oxbridge::ops::{self, Pick, ReduceWindow, WindowDims, WindowKind};
use oxbridge::trace::bind_one;

const NUMBERS: &[DType] = &[F32, F64, F16, BF16, I8, I32, I64, U8];

pub fn rows(rows: &mut Vec<Case>) {
    let padded = WindowDims { padding: vec![(1, 0), (0, 2)], ..WindowDims::new(&[2, 3], &[1, 2]) };
    let dilated = WindowDims {
        base_dilation: vec![2, 1],
        window_dilation: vec![1, 2],
        ..WindowDims::new(&[2, 2], &[1, 1])
    };
    let kinds = [
        ("reduce_window_sum", WindowKind::Sum),
        ("reduce_window_prod", WindowKind::Prod),
        ("reduce_window_max", WindowKind::Max),
        ("reduce_window_min", WindowKind::Min),
    ];
    for (prim, kind) in kinds {
        let run = |dims: &WindowDims| {
            let prim = ReduceWindow { dims: dims.clone(), kind };
            move |v: &[oxbridge::Value]| bind_one(&prim, &v[..1])
        };
        let mut push = |row: Case| match kind {
            WindowKind::Prod => rows.push(row.no_grad("has no derivative rule")),
            _ => rows.push(row),
        };
        let plain = WindowDims::new(&[2, 2], &[2, 1]);
        for &dtype in NUMBERS {
            push(Case::one(prim, [arg(dtype, [4, 5])], run(&plain)));
        }
        push(Case::one(prim, [arg(F32, [4, 5])], run(&padded)).tag("padded"));
        push(Case::one(prim, [arg(F32, [4, 5])], run(&dilated)).tag("dilated"));
        let row = Case::one(prim, [edges(F32)], run(&WindowDims::new(&[2], &[1])));
        rows.push(row.tag("edges").no_grad("edges"));
    }
    for (word, pick) in [("ge", Pick::Ge), ("le", Pick::Le)] {
        for &dtype in &[F32, F64, I32] {
            let dims = WindowDims::new(&[2, 2], &[2, 1]);
            let gather = {
                let dims = dims.clone();
                move |v: &[oxbridge::Value]| ops::select_and_gather(&v[0], &v[1], &dims, pick)
            };
            let operands = [arg(dtype, [4, 5]), arg(dtype, [4, 5])];
            rows.push(Case::one("select_and_gather", operands, gather).tag(word));
            let scatter =
                move |v: &[oxbridge::Value]| ops::select_and_scatter_add(&v[0], &v[1], &dims, pick);
            let operands = [arg(dtype, [4, 5]), arg(dtype, [2, 4])];
            rows.push(Case::one("select_and_scatter_add", operands, scatter).tag(word));
        }
    }
}
