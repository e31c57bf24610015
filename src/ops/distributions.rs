//! Random numbers of all kinds from a key, JAX's bit for bit where they are exact. Each function
//! is one program in eager mode.
//!
//! Bounds and parameters are scalar operands, so that changing them compiles nothing.

use super::bad_dtype;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::rng::{check_key, fused_one, nth_key, params, random_bits, split, unsigned};
use crate::ops::*;
use crate::shape::Shape;
use crate::trace::Value;

/// The number of bits of a float's mantissa.
fn mantissa(dtype: DType) -> usize {
    match dtype {
        DType::F16 => 10,
        DType::BF16 => 7,
        DType::F32 => 23,
        _ => 52,
    }
}

/// The smallest normal number.
fn tiny(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-14),
        DType::BF16 | DType::F32 => f64::from(f32::MIN_POSITIVE),
        _ => f64::MIN_POSITIVE,
    }
}

/// Half the distance from 1 to the next larger number.
fn half_epsilon(dtype: DType) -> f64 {
    0.5f64.powi(mantissa(dtype) as i32 + 1)
}

fn check(op: &'static str, key: &Value, dtype: DType) -> Result<()> {
    check_key(op, key)?;
    if dtype.is_float() {
        return Ok(());
    }
    let text = format!("random numbers of this kind are real and floating point, not {dtype}");
    Err(Error::new(ErrorKind::DType, op, text))
}

fn number(dtype: DType, value: f64) -> Value {
    Value::scalar(Scalar::from_f64(dtype, value))
}

fn spread(x: &Value, shape: &Shape) -> Result<Value> {
    if x.rank() != 0 {
        let text = format!("takes one number as parameter, not {}", x.aval());
        return Err(Error::new(ErrorKind::Shape, "random", text));
    }
    broadcast_in_dim(x, shape, &[])
}

/// How many random bits a float is made of.
pub fn uniform_bits(dtype: DType) -> usize {
    if mantissa(dtype) < 8 { 8 } else { dtype.size() * 8 }
}

/// Uniform numbers from random bits ([`uniform_bits`] of them each) between scalars `low` and
/// `high` of `dtype`.
///
/// # Errors
/// If the bits are not those of the dtype, or the bounds have another one.
pub fn uniform_of_bits(bits: &Value, dtype: DType, low: &Value, high: &Value) -> Result<Value> {
    if bits.dtype() != unsigned("uniform", uniform_bits(dtype))? {
        return Err(bad_dtype("uniform", bits.aval(), "as many random bits as the dtype needs"));
    }
    let (width, given) = (dtype.size() * 8, bits.dtype().size() * 8);
    let bits = convert(bits, unsigned("uniform", width)?)?;
    let shift = (given - mantissa(dtype)) as f64;
    let bits = shift_right_logical(&bits, &full_like(&bits, shift)?)?;
    // The mantissa under the exponent of 1 is a number from 1 to 2.
    let one = Scalar::one(dtype);
    let word = one.bytes().iter().rev().fold(0u64, |word, &b| word << 8 | u64::from(b));
    let word = full(Scalar::from_i64(bits.dtype(), word as i64), bits.shape())?;
    let unit = bitcast(&or(&bits, &word)?, dtype)?;
    let unit = sub(&unit, &full_like(&unit, 1.0)?)?;
    let (span, low) = (spread(&sub(high, low)?, unit.shape())?, spread(low, unit.shape())?);
    max(&low, &add(&mul(&unit, &span)?, &low)?)
}

/// Uniform numbers from `low` (included) to `high` (left out), two scalars of `dtype`.
///
/// # Errors
/// If `key` is not `u32[2]`, the dtype no float, or the bounds have another one.
pub fn uniform(
    key: &Value,
    shape: &Shape,
    dtype: DType,
    low: &Value,
    high: &Value,
) -> Result<Value> {
    check("uniform", key, dtype)?;
    let operands = [key.clone(), low.clone(), high.clone()];
    fused_one("uniform", &params(&[dtype as i64], shape), &operands, |xs| {
        let bits = random_bits(&xs[0], uniform_bits(dtype), shape)?;
        uniform_of_bits(&bits, dtype, &xs[1], &xs[2])
    })
}

fn between(key: &Value, shape: &Shape, dtype: DType, low: f64, high: f64) -> Result<Value> {
    uniform(key, shape, dtype, &number(dtype, low), &number(dtype, high))
}

/// Standard normal numbers from the random bits of as many uniform ones.
///
/// # Errors
/// If the bits are not those of the dtype.
pub fn normal_of_bits(bits: &Value, dtype: DType) -> Result<Value> {
    let low = number(dtype, half_epsilon(dtype) - 1.0);
    let u = uniform_of_bits(bits, dtype, &low, &number(dtype, 1.0))?;
    mul(&full_like(&u, std::f64::consts::SQRT_2)?, &erf_inv(&u)?)
}

/// A function of a key alone.
fn draw(
    name: &'static str,
    key: &Value,
    shape: &Shape,
    dtype: DType,
    body: impl FnOnce(&Value) -> Result<Value>,
) -> Result<Value> {
    check(name, key, dtype)?;
    let operands = std::slice::from_ref(key);
    fused_one(name, &params(&[dtype as i64], shape), operands, |xs| body(&xs[0]))
}

/// Standard normal numbers: mean 0, variance 1.
///
/// # Errors
/// If `key` is not `u32[2]`, or the dtype no float.
pub fn normal(key: &Value, shape: &Shape, dtype: DType) -> Result<Value> {
    draw("normal", key, shape, dtype, |key| {
        normal_of_bits(&random_bits(key, uniform_bits(dtype), shape)?, dtype)
    })
}

/// Standard normal numbers of which only those between `low` and `high`, two scalars of `dtype`,
/// are taken.
///
/// # Errors
/// If `key` is not `u32[2]`, the dtype no float, or the bounds have another one.
pub fn truncated_normal(
    key: &Value,
    shape: &Shape,
    dtype: DType,
    low: &Value,
    high: &Value,
) -> Result<Value> {
    check("truncated_normal", key, dtype)?;
    let operands = [key.clone(), low.clone(), high.clone()];
    fused_one("truncated_normal", &params(&[dtype as i64], shape), &operands, |xs| {
        let root = number(dtype, std::f64::consts::SQRT_2);
        let end = |x: &Value| erf(&div(x, &root)?);
        let u = uniform(&xs[0], shape, dtype, &end(&xs[1])?, &end(&xs[2])?)?;
        let x = mul(&spread(&root, shape)?, &erf_inv(&u)?)?;
        let inside = |x: &Value, to: f64| spread(&next_after(x, &number(dtype, to))?, shape);
        clamp(&inside(&xs[1], f64::INFINITY)?, &x, &inside(&xs[2], f64::NEG_INFINITY)?)
    })
}

/// `true` with probability `p`, a scalar whose dtype is that of the uniform numbers drawn.
///
/// # Errors
/// If `key` is not `u32[2]`, or `p` no float.
pub fn bernoulli(key: &Value, shape: &Shape, p: &Value) -> Result<Value> {
    let dtype = p.dtype();
    check("bernoulli", key, dtype)?;
    fused_one("bernoulli", &params(&[], shape), &[key.clone(), p.clone()], |xs| {
        lt(&between(&xs[0], shape, dtype, 0.0, 1.0)?, &spread(&xs[1], shape)?)
    })
}

/// Numbers of the standard exponential distribution.
///
/// # Errors
/// If `key` is not `u32[2]`, or the dtype no float.
pub fn exponential(key: &Value, shape: &Shape, dtype: DType) -> Result<Value> {
    draw("exponential", key, shape, dtype, |key| {
        neg(&log1p(&neg(&between(key, shape, dtype, 0.0, 1.0)?)?)?)
    })
}

/// Numbers of the standard Gumbel distribution.
///
/// # Errors
/// If `key` is not `u32[2]`, or the dtype no float.
pub fn gumbel(key: &Value, shape: &Shape, dtype: DType) -> Result<Value> {
    draw("gumbel", key, shape, dtype, |key| {
        neg(&log(&neg(&log(&between(key, shape, dtype, tiny(dtype), 1.0)?)?)?)?)
    })
}

/// Numbers of the standard Laplace distribution.
///
/// # Errors
/// If `key` is not `u32[2]`, or the dtype no float.
pub fn laplace(key: &Value, shape: &Shape, dtype: DType) -> Result<Value> {
    draw("laplace", key, shape, dtype, |key| {
        let u = between(key, shape, dtype, half_epsilon(dtype) - 1.0, 1.0)?;
        mul(&sign(&u)?, &log1p(&neg(&abs(&u)?)?)?)
    })
}

/// Numbers of the standard logistic distribution.
///
/// # Errors
/// If `key` is not `u32[2]`, or the dtype no float.
pub fn logistic_numbers(key: &Value, shape: &Shape, dtype: DType) -> Result<Value> {
    draw("logistic_numbers", key, shape, dtype, |key| {
        let u = between(key, shape, dtype, tiny(dtype), 1.0)?;
        sub(&log(&u)?, &log1p(&neg(&u)?)?)
    })
}

/// Numbers of the standard Cauchy distribution.
///
/// # Errors
/// If `key` is not `u32[2]`, or the dtype no float.
pub fn cauchy(key: &Value, shape: &Shape, dtype: DType) -> Result<Value> {
    draw("cauchy", key, shape, dtype, |key| {
        let u = between(key, shape, dtype, 2.0 * half_epsilon(dtype), 1.0)?;
        let centred = sub(&u, &full_like(&u, 0.5)?)?;
        tan(&mul(&full_like(&u, std::f64::consts::PI)?, &centred)?)
    })
}

/// -1 or 1 with equal probability.
///
/// # Errors
/// If `key` is not `u32[2]`, or `dtype` is bool.
pub fn rademacher(key: &Value, shape: &Shape, dtype: DType) -> Result<Value> {
    let up = convert(&bernoulli(key, shape, &number(DType::F32, 0.5))?, dtype)?;
    sub(&mul(&full_like(&up, 2.0)?, &up)?, &full_like(&up, 1.0)?)
}

/// Integers from `low` (included) to `high` (left out); `low` everywhere if there is none between.
/// `high` may be one more than the dtype holds.
///
/// # Errors
/// If `key` is not `u32[2]`, or the dtype no integer.
pub fn randint(key: &Value, shape: &Shape, dtype: DType, low: i128, high: i128) -> Result<Value> {
    check_key("randint", key)?;
    let (wide, ends) = randint_ends(dtype, low, high)?;
    let bits = wide.size() * 8;
    let operands = [key.clone(), ends[0].clone(), ends[1].clone()];
    fused_one("randint", &params(&[dtype as i64], shape), &operands, |xs| {
        let keys = split(&xs[0], 2)?;
        let draw = |i| random_bits(&nth_key(&keys, i)?, bits, shape);
        randint_body(&draw(0)?, &draw(1)?, &xs[1..], dtype)
    })
}

/// [`randint`] from two sets of random bits: of 64 bits for dtypes of that size, else of 32.
///
/// # Errors
/// If the dtype is no integer, or the bits differ in shape or have another width.
pub fn randint_of_bits(
    bits: (&Value, &Value),
    dtype: DType,
    low: i128,
    high: i128,
) -> Result<Value> {
    let (_, ends) = randint_ends(dtype, low, high)?;
    randint_body(bits.0, bits.1, &ends, dtype)
}

/// The dtype that integers are drawn in, the lower end in it, and how many there are, where 0 stands
/// for all of the dtype. Small ones are drawn in 32 bits, which spreads them more evenly.
fn randint_ends(dtype: DType, low: i128, high: i128) -> Result<(DType, [Value; 2])> {
    if !dtype.is_int() {
        let text = format!("random integers have an integer dtype, not {dtype}");
        return Err(Error::new(ErrorKind::DType, "randint", text));
    }
    let bits = dtype.size() * 8;
    let least = if dtype.is_unsigned() { 0 } else { -(1i128 << (bits - 1)) };
    let most = least + (1i128 << bits);
    let (low, high) = (low.clamp(least, most - 1), high.clamp(least, most));
    let span = if high <= low { 1 } else { (high - low) as u64 };
    let word = if bits == 64 { DType::U64 } else { DType::U32 };
    let number = |v: i64| Value::scalar(Scalar::from_i64(DType::I64, v).convert(word));
    Ok((word, [number(low as i64), number(span as i64)]))
}

/// The remainder of a number twice as wide as the dtype, so that no integer is much more likely.
fn randint_body(high: &Value, low: &Value, ends: &[Value], dtype: DType) -> Result<Value> {
    let (word, shape) = (low.dtype(), low.shape());
    let whole = eq(&ends[1], &number(word, 0.0))?;
    let span = select(&whole, &number(word, 1.0), &ends[1])?;
    let half = Value::scalar(Scalar::from_i64(word, 1i64 << (word.size() * 4)));
    let factor = rem(&half, &span)?;
    let factor = spread(&rem(&mul(&factor, &factor)?, &span)?, shape)?;
    let span = spread(&span, shape)?;
    let offset = add(&mul(&rem(high, &span)?, &factor)?, &rem(low, &span)?)?;
    let whole = spread(&whole, shape)?;
    let offset = select(&whole, low, &rem(&offset, &span)?)?;
    convert(&add(&spread(&ends[0], shape)?, &offset)?, dtype)
}

/// `x` with its elements shuffled along `axis`, each lane by itself.
///
/// # Errors
/// If `key` is not `u32[2]`, or `x` has no such axis.
pub fn shuffle(key: &Value, x: &Value, axis: usize) -> Result<Value> {
    check_key("shuffle", key)?;
    fused_one("shuffle", &[axis as i64], &[key.clone(), x.clone()], |xs| {
        let (mut key, mut x) = (xs[0].clone(), xs[1].clone());
        // So many sorts by 32-bit numbers that ties hardly show.
        let size = x.shape().size().max(1) as f64;
        let rounds = (3.0 * size.ln() / f64::from(u32::MAX).ln()).ceil() as usize;
        for _ in 0..rounds {
            let keys = split(&key, 2)?;
            key = nth_key(&keys, 0)?;
            let order = random_bits(&nth_key(&keys, 1)?, 32, x.shape())?;
            x = sort(&[order, x], axis, 1, false)?.swap_remove(1);
        }
        Ok(x)
    })
}

/// The numbers from 0 to `n`, without `n`, in random order, as i32.
///
/// # Errors
/// If `key` is not `u32[2]`.
pub fn permutation(key: &Value, n: usize) -> Result<Value> {
    shuffle(key, &iota(DType::I32, &Shape::new(&[n]), 0)?, 0)
}

/// `x` with its parts along `axis` in random order.
///
/// # Errors
/// If `key` is not `u32[2]`, or `x` has no such axis.
pub fn permute_parts(key: &Value, x: &Value, axis: usize) -> Result<Value> {
    if x.rank() == 1 {
        return shuffle(key, x, axis);
    }
    take(x, &permutation(key, x.shape().get(axis).copied().unwrap_or(0))?, axis)
}

/// For each lane along `axis` of `logits` an index drawn with probability `softmax(logits)`, as
/// i32; with `draws`, as many as that shape has elements, on new axes in front.
///
/// # Errors
/// If `key` is not `u32[2]`, the logits are no floats, or have no such axis.
pub fn categorical(key: &Value, logits: &Value, axis: usize, draws: &Shape) -> Result<Value> {
    check("categorical", key, logits.dtype())?;
    let operands = [key.clone(), logits.clone()];
    fused_one("categorical", &params(&[axis as i64], draws), &operands, |xs| {
        let count = draws.rank();
        let shape: Shape = draws.iter().chain(xs[1].shape().iter()).copied().collect();
        let noise = gumbel(&xs[0], &shape, xs[1].dtype())?;
        let axes: Vec<usize> = (count..shape.rank()).collect();
        let logits = broadcast_in_dim(&xs[1], &shape, &axes)?;
        argmax(&add(&noise, &logits)?, count + axis, DType::I32)
    })
}

/// Indices drawn with the probabilities `p`, a list of floats, with repetition, as i32.
///
/// # Errors
/// If `key` is not `u32[2]`, or `p` is no list of floats.
pub fn choice(key: &Value, shape: &Shape, p: &Value) -> Result<Value> {
    check("choice", key, p.dtype())?;
    if p.rank() != 1 || p.shape()[0] == 0 {
        let text = format!("probabilities are a list, not {}", p.aval());
        return Err(Error::new(ErrorKind::Shape, "choice", text));
    }
    fused_one("choice", &params(&[], shape), &[key.clone(), p.clone()], |xs| {
        let count = xs[1].shape()[0];
        let ends = cumsum(&xs[1], 0, false)?;
        let u = between(&xs[0], shape, xs[1].dtype(), 0.0, 1.0)?;
        let last = spread(&index_axis(&ends, 0, count - 1)?, shape)?;
        let at = mul(&last, &sub(&full_like(&u, 1.0)?, &u)?)?;
        // How many probabilities are used up before the number drawn.
        let wide = shape.insert(shape.rank(), count);
        let at = broadcast_in_dim(&at, &wide, &(0..shape.rank()).collect::<Vec<_>>())?;
        let before = lt(&broadcast_in_dim(&ends, &wide, &[shape.rank()])?, &at)?;
        reduce_sum(&convert(&before, DType::I32)?, &[shape.rank()])
    })
}
