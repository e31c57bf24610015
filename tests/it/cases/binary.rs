//! Rows of the element-wise primitives of two operands.

use super::{Case, Operand, arg, edges, vals};
use oxbridge::DType::{self, *};
use oxbridge::{Result, Value, ops};

type Op = fn(&Value, &Value) -> Result<Value>;

const FLOATS: &[DType] = &[F32, F64, F16, BF16];
const NUMBERS: &[DType] = &[F32, F64, F16, BF16, C64, C128, I8, I32, I64, U8, U32];
const ORDERED: &[DType] = &[Bool, F32, F64, F16, BF16, I8, I32, I64, U8, U32];
const BITS: &[DType] = &[Bool, I8, I16, I32, I64, U8, U16, U32, U64];
const INTS: &[DType] = &[I8, I16, I32, I64, U8, U16, U32, U64];

fn row(prim: &'static str, op: Op, operands: [Operand; 2]) -> Case {
    Case::one(prim, operands, move |v| op(&v[0], &v[1]))
}

/// Rows of `op` for each dtype: floats between the given bounds, integers as `arg` has them.
fn table(
    rows: &mut Vec<Case>,
    prim: &'static str,
    op: Op,
    dtypes: &[DType],
    ranges: [(f64, f64); 2],
) {
    for &dtype in dtypes {
        let operands = ranges.map(|(low, high)| {
            let x = arg(dtype, [2, 3]);
            if dtype.is_differentiable() { x.range(low, high) } else { x }
        });
        rows.push(row(prim, op, operands));
    }
    if dtypes.contains(&F32) {
        rows.push(pairs(prim, op, F32));
    }
}

/// Every pair of edge values.
fn pairs(prim: &'static str, op: Op, dtype: DType) -> Case {
    let n = edges(dtype).shape[0];
    let spread = move |v: &Value, axis: usize| {
        let all = ops::broadcast_in_dim(v, &[n, n].into(), &[axis])?;
        ops::reshape(&all, &[n * n].into())
    };
    let apply = move |v: &[Value]| op(&spread(&v[0], 0)?, &spread(&v[1], 1)?);
    Case::one(prim, [edges(dtype), edges(dtype)], apply).tag("all pairs of edges").no_grad("edges")
}

const WIDE: (f64, f64) = (-2.0, 2.0);
const POSITIVE: (f64, f64) = (0.5, 3.0);

pub fn rows(rows: &mut Vec<Case>) {
    table(rows, "add", ops::add, NUMBERS, [WIDE; 2]);
    table(rows, "add", ops::add, &[Bool], [WIDE; 2]);
    table(rows, "sub", ops::sub, NUMBERS, [WIDE; 2]);
    table(rows, "mul", ops::mul, NUMBERS, [WIDE; 2]);
    table(rows, "mul", ops::mul, &[Bool], [WIDE; 2]);
    table(rows, "div", ops::div, &[F32, F64, F16, BF16, C64, C128], [WIDE, POSITIVE]);
    table(rows, "rem", ops::rem, FLOATS, [(-5.0, 5.0), (0.7, 1.3)]);
    table(rows, "max", ops::max, ORDERED, [WIDE; 2]);
    table(rows, "min", ops::min, ORDERED, [WIDE; 2]);
    table(rows, "pow", ops::pow, &[F32, F64, C64, C128], [POSITIVE, WIDE]);
    table(rows, "pow", ops::pow, &[F16, BF16], [(0.8, 1.3), WIDE]);
    table(rows, "atan2", ops::atan2, FLOATS, [WIDE, POSITIVE]);
    for dtype in [F32, F64] {
        let next = row("next_after", ops::next_after, [arg(dtype, [2, 3]), arg(dtype, [2, 3])]);
        rows.push(next.no_grad("a step"));
    }
    rows.push(pairs("next_after", ops::next_after, F32));
    table(rows, "complex", ops::complex, &[F32, F64], [WIDE; 2]);
    table(rows, "and", ops::and, BITS, [WIDE; 2]);
    table(rows, "or", ops::or, BITS, [WIDE; 2]);
    table(rows, "xor", ops::xor, BITS, [WIDE; 2]);
    let shifts: [(&str, Op); 3] = [
        ("shift_left", ops::shift_left),
        ("shift_right_logical", ops::shift_right_logical),
        ("shift_right_arithmetic", ops::shift_right_arithmetic),
    ];
    for (prim, op) in shifts {
        for &dtype in INTS {
            rows.push(row(prim, op, [arg(dtype, [2, 3]), arg(dtype, [2, 3]).range(0.0, 8.0)]));
        }
        let by = vals(I32, [12], &[0., 1., 5., 31., 32., 40., 1., 2., 3., 31., 4., 33.]);
        rows.push(row(prim, op, [edges(I32), by]).tag("edges"));
    }
    integers(rows);
    kinks(rows);
}

/// Division, remainder and powers of integers, with zero divisors left out.
fn integers(rows: &mut Vec<Case>) {
    for &dtype in &[I8, I16, I32, I64, U8, U32] {
        let top = if dtype.is_unsigned() { 100.0 } else { 60.0 };
        let x = || arg(dtype, [4, 3]).range(if dtype.is_unsigned() { 0.0 } else { -60.0 }, top);
        let y = || arg(dtype, [4, 3]).range(1.0, 9.0);
        rows.push(row("div", ops::div, [x(), y()]));
        rows.push(row("rem", ops::rem, [x(), y()]));
        rows.push(row("pow", ops::pow, [y().range(0.0, 4.0), y().range(0.0, 4.0)]));
    }
    for (prim, op) in [("div", ops::div as Op), ("rem", ops::rem)] {
        let x = vals(I32, [6], &[7.0, -7.0, 7.0, -7.0, 6.0, 0.0]);
        let y = vals(I32, [6], &[2.0, 2.0, -2.0, -2.0, -3.0, 5.0]);
        rows.push(row(prim, op, [x, y]).tag("signs"));
    }
    for (prim, op) in [("add", ops::add as Op), ("sub", ops::sub), ("mul", ops::mul)] {
        rows.push(pairs(prim, op, I32).tag("wraps around"));
        rows.push(pairs(prim, op, U8).tag("wraps around"));
    }
}

/// Where operands tie, where a power is of zero, where scalars are combined.
fn kinks(rows: &mut Vec<Case>) {
    for (prim, op) in [("max", ops::max as Op), ("min", ops::min)] {
        let x = || vals(F32, [4], &[1.0, 2.0, -1.0, 0.0]);
        let y = vals(F32, [4], &[1.0, 1.0, -1.0, 0.0]);
        rows.push(row(prim, op, [x(), y]).tag("ties").no_grad("a kink"));
    }
    let base = vals(F32, [6], &[0.0, 0.0, 0.0, 2.0, -2.0, -2.0]);
    let power = vals(F32, [6], &[0.0, 1.0, 2.0, 0.0, 2.0, 3.0]);
    rows.push(row("pow", ops::pow, [base, power]).tag("zeros and signs").no_grad("an edge"));
    rows.push(row("mul", ops::mul, [arg(F32, []), arg(F32, [])]));
    rows.push(row("add", ops::add, [arg(F32, [0, 2]), arg(F32, [0, 2])]));
}
