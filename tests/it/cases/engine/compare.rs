//! Comparing two arrays: types, and elements within a tolerance.

use num_complex::Complex;
use oxbridge::DType;
use oxbridge::backend::host::{HostArray, convert::convert};

/// The relative error that is accepted of a dtype.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype.real() {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 0.0,
    }
}

/// Says what differs between two lists of results.
pub fn all(got: &[HostArray], want: &[HostArray], factor: f64) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} results, not {}", got.len(), want.len()));
    }
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        one(got, want, factor * tolerance(want.dtype()))
            .map_err(|why| format!("result {i}: {why}"))?;
    }
    Ok(())
}

/// Says what differs between two arrays: their types, or elements by more than `tol` relative to 1
/// or to the larger one. NaN equals NaN, and integers must be equal.
pub fn one(got: &HostArray, want: &HostArray, tol: f64) -> Result<(), String> {
    let types = |x: &HostArray| format!("{}{}", x.dtype(), x.shape());
    if types(got) != types(want) {
        return Err(format!("is {}, not {}", types(got), types(want)));
    }
    if !want.dtype().is_differentiable() {
        let (a, b) = (got.contiguous(), want.contiguous());
        let equal = a.contiguous_bytes() == b.contiguous_bytes();
        return if equal {
            Ok(())
        } else {
            Err(format!("{}: {got:?} is not {want:?}", types(want)))
        };
    }
    let (mut abs, mut rel, mut first) = (0f64, 0f64, None);
    for (i, (a, b)) in parts(got).into_iter().zip(parts(want)).enumerate() {
        let error = difference(a, b);
        let relative = if error == 0.0 { 0.0 } else { error / (1.0 + a.abs().min(b.abs())) };
        if relative > tol || relative.is_nan() {
            first.get_or_insert((i, a, b));
        }
        if error > abs || error.is_nan() {
            abs = error;
        }
        if relative > rel || relative.is_nan() {
            rel = relative;
        }
    }
    match first {
        None => Ok(()),
        Some((i, a, b)) => Err(format!(
            "{}: differs by {abs:.3e} absolute, {rel:.3e} relative, first at {i}: {a:?} is not {b:?}",
            types(want)
        )),
    }
}

/// 0 for equal numbers and for two NaNs, infinite if only one is finite.
fn difference(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        0.0
    } else if a.is_finite() && b.is_finite() {
        (a - b).abs()
    } else {
        f64::INFINITY
    }
}

/// The elements as doubles, complex ones as two.
pub fn parts(x: &HostArray) -> Vec<f64> {
    if x.dtype().is_complex() {
        let list = convert(x, DType::C128).to_vec::<Complex<f64>>().unwrap();
        return list.into_iter().flat_map(|z| [z.re, z.im]).collect();
    }
    convert(x, DType::F64).to_vec::<f64>().unwrap()
}
