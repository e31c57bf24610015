//! Rows of the element-wise primitives of one operand.

use super::{Case, arg, edges};
use oxbridge::DType::{self, *};
use oxbridge::{Result, Value, ops};

type Op = fn(&Value) -> Result<Value>;

const FLOATS: &[DType] = &[F32, F64, F16, BF16];
const FIELDS: &[DType] = &[F32, F64, F16, BF16, C64, C128];
const NUMBERS: &[DType] = &[F32, F64, F16, BF16, C64, I8, I32, I64, U8, U32];
const INTS: &[DType] = &[I8, I16, I32, I64, U8, U16, U32, U64];
const BITS: &[DType] = &[Bool, I8, I32, I64, U8, U64];
const COMPLEX: &[DType] = &[C64, C128];

/// Rows of `op` for each dtype, uniform between `low` and `high`; the integers have their own range.
fn table(rows: &mut Vec<Case>, prim: &'static str, op: Op, dtypes: &[DType], range: (f64, f64)) {
    for &dtype in dtypes {
        let x = arg(dtype, [2, 3]);
        let x = if dtype.is_differentiable() { x.range(range.0, range.1) } else { x };
        rows.push(Case::one(prim, [x], move |v| op(&v[0])));
    }
    if dtypes.contains(&F32) {
        rows.push(Case::one(prim, [edges(F32)], move |v| op(&v[0])).tag("edges").no_grad("edges"));
    }
}

const WIDE: (f64, f64) = (-2.0, 2.0);
const POSITIVE: (f64, f64) = (0.2, 3.0);

pub fn rows(rows: &mut Vec<Case>) {
    table(rows, "neg", ops::neg, NUMBERS, WIDE);
    table(rows, "sign", ops::sign, &[F32, F64, F16, BF16, C64, C128, I8, I32, I64], WIDE);
    table(rows, "sin", ops::sin, FIELDS, WIDE);
    table(rows, "cos", ops::cos, FIELDS, WIDE);
    table(rows, "tan", ops::tan, FIELDS, (-1.0, 1.0));
    table(rows, "tanh", ops::tanh, FIELDS, (-1.4, 1.4));
    table(rows, "exp", ops::exp, FIELDS, WIDE);
    table(rows, "expm1", ops::expm1, FIELDS, WIDE);
    table(rows, "log", ops::log, FIELDS, POSITIVE);
    table(rows, "log1p", ops::log1p, FIELDS, (-0.8, 3.0));
    table(rows, "logistic", ops::logistic, FIELDS, WIDE);
    table(rows, "sqrt", ops::sqrt, FIELDS, POSITIVE);
    table(rows, "rsqrt", ops::rsqrt, FIELDS, POSITIVE);
    table(rows, "cbrt", ops::cbrt, FLOATS, POSITIVE);
    table(rows, "erf", ops::erf, FLOATS, WIDE);
    table(rows, "erfc", ops::erfc, FLOATS, WIDE);
    table(rows, "erf_inv", ops::erf_inv, FLOATS, (-0.9, 0.9));
    table(rows, "floor", ops::floor, FLOATS, WIDE);
    table(rows, "ceil", ops::ceil, FLOATS, WIDE);
    table(rows, "round", ops::round, FLOATS, WIDE);
    table(rows, "abs", ops::abs, &[F32, F64, F16, BF16, C64, C128, I8, I32, I64], WIDE);
    table(rows, "conj", ops::conj, COMPLEX, WIDE);
    table(rows, "real", ops::real, COMPLEX, WIDE);
    table(rows, "imag", ops::imag, COMPLEX, WIDE);
    table(rows, "not", ops::not, BITS, WIDE);
    table(rows, "popcnt", ops::popcnt, INTS, WIDE);
    table(rows, "clz", ops::clz, INTS, WIDE);
    table(rows, "is_finite", ops::is_finite, FLOATS, WIDE);
    gamma(rows);
    rows.push(Case::one("sin", [arg(F32, [])], |v| ops::sin(&v[0])));
    rows.push(Case::one("sin", [arg(F32, [0, 3])], |v| ops::sin(&v[0])));
    for op in [("not", ops::not as Op), ("popcnt", ops::popcnt), ("clz", ops::clz)] {
        rows.push(Case::one(op.0, [edges(I32)], move |v| op.1(&v[0])).tag("edges"));
        rows.push(Case::one(op.0, [edges(U8)], move |v| op.1(&v[0])).tag("edges"));
    }
    rows.push(Case::one("neg", [edges(I32)], |v| ops::neg(&v[0])).tag("edges"));
    rows.push(Case::one("abs", [edges(I64)], |v| ops::abs(&v[0])).tag("edges"));
    rows.push(Case::one("sign", [edges(I8)], |v| ops::sign(&v[0])).tag("edges"));
}

/// `digamma` has no derivative, so `lgamma` has no second.
fn gamma(rows: &mut Vec<Case>) {
    for &dtype in FLOATS {
        let x = || [arg(dtype, [2, 3]).range(0.2, 5.0)];
        let lgamma = Case::one("lgamma", x(), |v| ops::lgamma(&v[0]));
        rows.push(lgamma.no_second("digamma has no derivative"));
        let digamma = Case::one("digamma", x(), |v| ops::digamma(&v[0]));
        rows.push(digamma.no_grad("has no derivative"));
    }
}
