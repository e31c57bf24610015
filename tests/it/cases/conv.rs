//! Rows of convolution.

use super::{Case, arg};
use oxbridge::DType::{self, *};
use oxbridge::ops::{ConvDims, Precision, conv_general};

fn conv(dtype: DType, shapes: [&[usize]; 2], dims: ConvDims, word: &str) -> Case {
    let apply =
        move |v: &[oxbridge::Value]| conv_general(&v[0], &v[1], &dims, Precision::Default, None);
    Case::one("conv_general", shapes.map(|shape| arg(dtype, shape)), apply)
        .tag(word)
        .tol(4.0, "many products are summed")
}

pub fn rows(rows: &mut Vec<Case>) {
    for dtype in [F32, F64, F16, BF16, C64, I32, I8] {
        rows.push(conv(dtype, [&[2, 2, 6], &[4, 2, 3]], ConvDims::new(1), "plain"));
    }
    let plain = || ConvDims::new(2);
    let shapes: [&[usize]; 2] = [&[1, 2, 5, 4], &[4, 2, 3, 2]];
    rows.push(conv(F32, shapes, plain(), "two axes"));
    let strided = ConvDims { strides: vec![2, 1], padding: vec![(1, 2), (0, 1)], ..plain() };
    rows.push(conv(F32, shapes, strided, "strides and padding"));
    let dilated = ConvDims {
        lhs_dilation: vec![2, 1],
        rhs_dilation: vec![1, 2],
        padding: vec![(0, -1), (2, 2)],
        ..plain()
    };
    rows.push(conv(F32, shapes, dilated, "dilations and a cut"));
    let reversed = ConvDims { window_reversal: vec![true, false], ..plain() };
    rows.push(conv(F32, shapes, reversed, "reversed"));
    let grouped = ConvDims { feature_groups: 2, ..plain() };
    rows.push(conv(F32, [&[1, 4, 4, 4], &[6, 2, 3, 3]], grouped, "feature groups"));
    let batches = ConvDims { batch_groups: 2, ..plain() };
    rows.push(conv(F32, [&[4, 2, 4, 4], &[6, 2, 3, 3]], batches, "batch groups"));
    let last = ConvDims {
        lhs_feature: 2,
        lhs_spatial: vec![1],
        rhs_out_feature: 2,
        rhs_in_feature: 1,
        rhs_spatial: vec![0],
        out_feature: 2,
        out_spatial: vec![1],
        ..ConvDims::new(1)
    };
    rows.push(conv(F32, [&[2, 6, 2], &[3, 2, 4]], last, "channels last"));
}
