//! Rows of the primitives without an operand, and of a graph as one operation.

use super::{Case, arg};
use oxbridge::DType::*;
use oxbridge::{Scalar, Tensor, Value, jit, ops};

pub fn rows(rows: &mut Vec<Case>) {
    for dtype in oxbridge::DType::ALL {
        let full = move |_: &[Value]| ops::full(Scalar::from_f64(dtype, 1.0), &[2, 3].into());
        rows.push(Case::one("full", [], full).tag(dtype.name()));
    }
    for (word, x) in
        [("nan", f64::NAN), ("inf", f64::INFINITY), ("minus zero", -0.0), ("a third", 1.0 / 3.0)]
    {
        let full = move |_: &[Value]| ops::full(Scalar::from_f64(F32, x), &[3].into());
        rows.push(Case::one("full", [], full).tag(word));
    }
    for dtype in [F32, F64, F16, BF16, C64, I8, I32, I64, U8, U32] {
        for axis in [0, 1] {
            let iota = move |_: &[Value]| ops::iota(dtype, &[2, 3].into(), axis);
            rows.push(Case::one("iota", [], iota).tag(format!("{dtype} axis {axis}")));
        }
    }
    call(rows);
}

/// A compiled function inside of another.
fn call(rows: &mut Vec<Case>) {
    let apply = |v: &[Value]| {
        let f = jit(|(x, y): (Tensor, Tensor)| {
            let (x, y) = (x.value()?, y.value()?);
            let product = ops::mul(&ops::sin(&x)?, &y)?;
            Ok((Tensor::from_value(product), Tensor::from_value(ops::exp(&y)?)))
        })
        .named("inner");
        let (a, b) =
            f.call((Tensor::from_value(v[0].clone()), Tensor::from_value(v[1].clone())))?;
        Ok(vec![a.value()?, b.value()?])
    };
    rows.push(Case::many("call", [arg(F32, [2, 3]), arg(F32, [2, 3])], apply));
    rows.push(Case::many("call", [arg(C64, [2]), arg(C64, [2])], apply));
}
