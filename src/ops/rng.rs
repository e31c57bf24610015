//! Random bits: `threefry2x32`, keys and what is derived from them. The distributions stand in
//! [`super::distributions`].
//!
//! A key is two u32 words, `[2]`. The same key gives the same numbers on every device, eagerly and
//! compiled, sharded or not: they are JAX's, where counters are 64-bit row-major positions.

use super::bad_dtype;
use super::mismatch;
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host::threefry::threefry2x32 as kernel;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::ops::binary::{and, or, shift_left, shift_right_logical, xor};
use crate::ops::call::fused;
use crate::ops::convert::convert;
use crate::ops::create::{full, full_like, iota};
use crate::ops::shape::{align_batch, broadcast_in_dim, permute, reshape};
use crate::ops::slice::{concatenate, index_axis, slice_axis, stack};
use crate::shape::Shape;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind};
use smallvec::smallvec;

/// Rotations of the rounds: even groups of four use the first row, odd ones the second.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// The primitive `threefry2x32`: the block cipher of 20 rounds, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Threefry2x32;

/// Writes u32 arithmetic of one type.
struct Words<'a> {
    cx: &'a mut Lowering,
    aval: Aval,
}

impl Words<'_> {
    fn op(&mut self, name: &str, x: &Val, y: &Val) -> Val {
        self.cx.op1(name, &[x, y], "", &self.aval)
    }

    fn add(&mut self, x: &Val, y: &Val) -> Val {
        self.op("stablehlo.add", x, y)
    }

    fn xor(&mut self, x: &Val, y: &Val) -> Val {
        self.op("stablehlo.xor", x, y)
    }

    fn number(&mut self, value: u32) -> Val {
        self.cx.constant(Scalar::new(value), &self.aval)
    }

    fn rotate(&mut self, x: &Val, by: u32) -> Val {
        let (left, right) = (self.number(by), self.number(32 - by));
        let high = self.op("stablehlo.shift_left", x, &left);
        let low = self.op("stablehlo.shift_right_logical", x, &right);
        self.op("stablehlo.or", &high, &low)
    }

    fn block(&mut self, key: [&Val; 2], counter: [&Val; 2]) -> Vec<Val> {
        let parity = self.number(0x1BD1_1BDA);
        let mixed = self.xor(key[0], key[1]);
        let keys = [key[0].clone(), key[1].clone(), self.xor(&mixed, &parity)];
        let mut x = self.add(counter[0], &keys[0]);
        let mut y = self.add(counter[1], &keys[1]);
        for group in 0..5usize {
            for by in ROTATIONS[group % 2] {
                x = self.add(&x, &y);
                y = self.rotate(&y, by);
                y = self.xor(&y, &x);
            }
            x = self.add(&x, &keys[(group + 1) % 3]);
            y = self.add(&y, &keys[(group + 2) % 3]);
            let count = self.number(group as u32 + 1);
            y = self.add(&y, &count);
        }
        vec![x, y]
    }
}

impl Primitive for Threefry2x32 {
    fn name(&self) -> &'static str {
        "threefry2x32"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let first = &operands[0];
        if first.dtype() != DType::U32 {
            return Err(bad_dtype(self.name(), first, "u32"));
        }
        if let Some(other) = operands.iter().find(|&o| o != first) {
            return Err(mismatch(self.name(), first, other));
        }
        Ok(smallvec![first.clone(), first.clone()])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let [k0, k1, x0, x1] = operands else { return Ok(Vec::new()) };
        Ok(Words { cx, aval: outs[0].clone() }.block([k0, k1], [x0, x1]))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        let (x, y) = kernel(&operands[0], &operands[1], &operands[2], &operands[3]);
        Ok(vec![x, y])
    }

    fn jvp(&self, primals: &[Value], _: &[Tangent]) -> Result<(Values, Tangents)> {
        Ok((bind(self, primals)?, smallvec![None, None]))
    }

    fn transpose(&self, _: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Err(not_linear(self))
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (operands, axis) = align_batch(batch.size, operands, axes)?;
        Ok((bind(self, &operands)?, smallvec![Some(axis), Some(axis)]))
    }

    fn params(&self) -> String {
        String::new()
    }
}

/// The Threefry-2x32 block cipher of 20 rounds: key `(k0, k1)`, counter `(x0, x1)`, all u32 of one
/// shape.
///
/// # Errors
/// If the operands are not u32 of one shape.
pub fn threefry2x32(k0: &Value, k1: &Value, x0: &Value, x1: &Value) -> Result<(Value, Value)> {
    let mut outs = bind(&Threefry2x32, &[k0.clone(), k1.clone(), x0.clone(), x1.clone()])?;
    match (outs.pop(), outs.pop()) {
        (Some(second), Some(first)) => Ok((first, second)),
        _ => Err(Error::new(ErrorKind::NoRule, "threefry2x32", "gave no results")),
    }
}

pub(crate) fn check_key(op: &'static str, key: &Value) -> Result<()> {
    if key.dtype() == DType::U32 && key.shape().dims() == [2] {
        return Ok(());
    }
    let text = format!("a key is u32[2], not {}", key.aval());
    Err(Error::new(ErrorKind::Shape, op, text).help("map over several keys with `vmap`"))
}

/// Parameters of a fused operation: some numbers, then a shape.
pub(crate) fn params(first: &[i64], shape: &Shape) -> Vec<i64> {
    first.iter().copied().chain(shape.iter().map(|&d| d as i64)).collect()
}

/// A fused operation with one result.
pub(crate) fn fused_one(
    name: &'static str,
    params: &[i64],
    operands: &[Value],
    body: impl FnOnce(&[Value]) -> Result<Value>,
) -> Result<Value> {
    let mut outs = fused(name, params, operands, |xs| Ok(smallvec![body(xs)?]))?;
    outs.pop().ok_or_else(|| Error::new(ErrorKind::NoRule, name, "gave no result"))
}

/// Both words of the block for each 64-bit position in an array of the given shape.
fn blocks(key: &Value, shape: &Shape) -> Result<(Value, Value)> {
    let flat = Shape::new(&[shape.size()]);
    let (high, low) = if u32::try_from(shape.size()).is_ok() {
        (full(Scalar::zero(DType::U32), shape)?, iota(DType::U32, &flat, 0)?)
    } else {
        let at = iota(DType::U64, &flat, 0)?;
        let high = shift_right_logical(&at, &full_like(&at, 32.0)?)?;
        (reshape(&convert(&high, DType::U32)?, shape)?, convert(&at, DType::U32)?)
    };
    let word = |i| broadcast_in_dim(&index_axis(key, 0, i)?, shape, &[]);
    threefry2x32(
        &word(0)?,
        &word(1)?,
        &broadcast_in_dim(&high, shape, &all(shape))?,
        &reshape(&low, shape)?,
    )
}

fn all(shape: &Shape) -> Vec<usize> {
    (0..shape.rank()).collect()
}

/// The unsigned dtype of that many bits.
pub(crate) fn unsigned(op: &'static str, bits: usize) -> Result<DType> {
    match bits {
        8 => Ok(DType::U8),
        16 => Ok(DType::U16),
        32 => Ok(DType::U32),
        64 => Ok(DType::U64),
        _ => {
            let text = format!("there is no dtype of {bits} bits to fill: take 8, 16, 32 or 64");
            Err(Error::new(ErrorKind::Value, op, text))
        }
    }
}

/// Random bits of the given width (8, 16, 32 or 64) as unsigned integers.
///
/// # Errors
/// If `key` is not `u32[2]`, or the width is another one.
pub fn random_bits(key: &Value, bits: usize, shape: &Shape) -> Result<Value> {
    check_key("random_bits", key)?;
    let dtype = unsigned("random_bits", bits)?;
    fused_one("random_bits", &params(&[bits as i64], shape), std::slice::from_ref(key), |xs| {
        let (x, y) = blocks(&xs[0], shape)?;
        if dtype == DType::U64 { join(&x, &y) } else { convert(&xor(&x, &y)?, dtype) }
    })
}

/// Two words as one number of 64 bits.
fn join(high: &Value, low: &Value) -> Result<Value> {
    let high = convert(high, DType::U64)?;
    or(&shift_left(&high, &full_like(&high, 32.0)?)?, &convert(low, DType::U64)?)
}

/// The cipher over a list of counters, of which the first half are first words: the older way, in
/// which a number's place in the stream depends on the size of the whole.
fn stream(key: &Value, counters: &Value) -> Result<Value> {
    let n = counters.shape()[0];
    let even = match n % 2 {
        0 => counters.clone(),
        _ => concatenate(&[counters.clone(), full(Scalar::zero(DType::U32), &[1].into())?], 0)?,
    };
    let half = n.div_ceil(2);
    let shape = Shape::new(&[half]);
    let word = |i| broadcast_in_dim(&index_axis(key, 0, i)?, &shape, &[]);
    let (first, second) = (slice_axis(&even, 0, 0, half)?, slice_axis(&even, 0, half, 2 * half)?);
    let (x, y) = threefry2x32(&word(0)?, &word(1)?, &first, &second)?;
    slice_axis(&concatenate(&[x, y], 0)?, 0, 0, n)
}

/// [`random_bits`] as JAX gives them with `jax_threefry_partitionable` off: for results recorded
/// with it.
///
/// # Errors
/// As [`random_bits`].
pub fn random_bits_original(key: &Value, bits: usize, shape: &Shape) -> Result<Value> {
    check_key("random_bits_original", key)?;
    let dtype = unsigned("random_bits_original", bits)?;
    let operands = std::slice::from_ref(key);
    fused_one("random_bits_original", &params(&[bits as i64], shape), operands, |xs| {
        let size = shape.size();
        let count = (bits * size).div_ceil(32);
        let words = stream(&xs[0], &iota(DType::U32, &[count].into(), 0)?)?;
        let flat = match bits {
            64 => join(&slice_axis(&words, 0, 0, size)?, &slice_axis(&words, 0, size, 2 * size)?)?,
            32 => words,
            _ => {
                // Each word gives its low bits first.
                let parts = 32 / bits;
                let wide = Shape::new(&[parts, count]);
                let by = iota(DType::U32, &wide, 0)?;
                let by = crate::ops::mul(&by, &full_like(&by, bits as f64)?)?;
                let words = broadcast_in_dim(&words, &wide, &[1])?;
                let part = shift_right_logical(&words, &by)?;
                let mask = full_like(&part, ((1u64 << bits) - 1) as f64)?;
                let part = permute(&and(&part, &mask)?, &[1, 0])?;
                let part = reshape(&part, &Shape::new(&[count * parts]))?;
                slice_axis(&convert(&part, dtype)?, 0, 0, size)?
            }
        };
        reshape(&flat, shape)
    })
}

/// The key that a seed stands for: its high and its low word.
///
/// # Errors
/// If the backend fails.
pub fn key_from_seed(seed: u64) -> Result<Value> {
    let word = |w: u32| Value::scalar(Scalar::new(w));
    let words = [word((seed >> 32) as u32), word(seed as u32)];
    fused_one("key_from_seed", &[], &words, |xs| stack(xs, 0))
}

/// As many new keys as `shape` has elements, in an array of that shape and one more axis of 2.
///
/// # Errors
/// If `key` is not `u32[2]`.
pub fn split_shape(key: &Value, shape: &Shape) -> Result<Value> {
    check_key("split", key)?;
    fused_one("split", &params(&[], shape), std::slice::from_ref(key), |xs| {
        let (x, y) = blocks(&xs[0], shape)?;
        stack(&[x, y], shape.rank())
    })
}

/// `n` new keys, `u32[n,2]`.
///
/// # Errors
/// If `key` is not `u32[2]`.
pub fn split(key: &Value, n: usize) -> Result<Value> {
    split_shape(key, &Shape::new(&[n]))
}

/// [`split`] as JAX gives it with `jax_threefry_partitionable` off.
///
/// # Errors
/// As [`split`].
pub fn split_original(key: &Value, n: usize) -> Result<Value> {
    check_key("split_original", key)?;
    fused_one("split_original", &[n as i64], std::slice::from_ref(key), |xs| {
        let words = stream(&xs[0], &iota(DType::U32, &[2 * n].into(), 0)?)?;
        reshape(&words, &Shape::new(&[n, 2]))
    })
}

/// The `i`-th of some keys, `u32[n,2]`.
pub(crate) fn nth_key(keys: &Value, i: usize) -> Result<Value> {
    index_axis(keys, 0, i)
}

/// A new key from a key and a number (a u32 scalar): for streams that are numbered, as steps are.
///
/// # Errors
/// If `key` is not `u32[2]`, or `data` no scalar u32.
pub fn fold_in(key: &Value, data: &Value) -> Result<Value> {
    check_key("fold_in", key)?;
    if data.dtype() != DType::U32 || data.rank() != 0 {
        let text = format!("takes one u32 number, not {}", data.aval());
        return Err(Error::new(ErrorKind::DType, "fold_in", text));
    }
    fused_one("fold_in", &[], &[key.clone(), data.clone()], |xs| {
        let word = |i| index_axis(&xs[0], 0, i);
        let zero = full_like(&xs[1], 0.0)?;
        let (x, y) = threefry2x32(&word(0)?, &word(1)?, &zero, &xs[1])?;
        stack(&[x, y], 0)
    })
}
