//! Running sums, products, extremes and log-sum-exps along one axis.

use super::HostArray;
use super::elementwise::PARALLEL;
use super::number::{HostNumber, HostReal};
use super::reduce::Accumulate;
use crate::dtype::DType;
use crate::with_dtype;
use num_traits::Float;
use rayon::prelude::*;

/// The operation that [`cumulative`] runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cumulative {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The largest element so far; NaN from the first NaN on.
    Max,
    /// The smallest element so far; NaN from the first NaN on.
    Min,
    /// The logarithm of the sum of exponentials, for floats.
    LogSumExp,
}

/// The running result of `kind` along `axis`, from the end if `reverse`. f16 and bf16 accumulate in
/// f32.
pub fn cumulative(x: &HostArray, axis: usize, reverse: bool, kind: Cumulative) -> HostArray {
    if reverse {
        let forward = cumulative(&x.reverse(&[axis]), axis, false, kind);
        return forward.reverse(&[axis]).contiguous();
    }
    let dtype = x.dtype();
    match kind {
        Cumulative::Sum => with_dtype!(number, dtype, T => {
            scan::<T>(x, axis, HostNumber::add)
        }, else unreachable!("{dtype} has no sum")),
        Cumulative::Prod => with_dtype!(number, dtype, T => {
            scan::<T>(x, axis, HostNumber::mul)
        }, else unreachable!("{dtype} has no product")),
        Cumulative::Max => with_dtype!(real, bits(dtype), T => {
            scan::<T>(x, axis, HostReal::maximum)
        }, else unreachable!("{dtype} has no maximum")),
        Cumulative::Min => with_dtype!(real, bits(dtype), T => {
            scan::<T>(x, axis, HostReal::minimum)
        }, else unreachable!("{dtype} has no minimum")),
        Cumulative::LogSumExp => with_dtype!(float, dtype, T => {
            scan::<T>(x, axis, log_add_exp)
        }, else unreachable!("{dtype} is no float")),
    }
}

fn bits(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::U8 } else { dtype }
}

/// `ln(e^x + e^y)` without overflow.
fn log_add_exp<T: Float + HostReal>(x: T, y: T) -> T {
    let large = HostReal::maximum(x, y);
    if !large.is_finite() {
        return large;
    }
    large + (-Float::abs(x - y)).exp().ln_1p()
}

fn scan<T: Accumulate>(
    x: &HostArray,
    axis: usize,
    f: impl Fn(T::Acc, T::Acc) -> T::Acc + Sync,
) -> HostArray {
    let source = x.contiguous();
    let data = source.as_contiguous::<T>().unwrap_or_default();
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let block = x.shape()[axis] * inner;
    HostArray::build_as::<T>(x.dtype(), x.shape(), |out| {
        if out.is_empty() {
            return;
        }
        let one = |(out, data): (&mut [T], &[T])| scan_block(out, data, inner, &f);
        if out.len() >= PARALLEL {
            out.par_chunks_mut(block).zip(data.par_chunks(block)).for_each(one);
        } else {
            out.chunks_mut(block).zip(data.chunks(block)).for_each(one);
        }
    })
}

/// Scans over rows of `inner` elements.
fn scan_block<T: Accumulate>(
    out: &mut [T],
    data: &[T],
    inner: usize,
    f: impl Fn(T::Acc, T::Acc) -> T::Acc,
) {
    let mut so_far: Vec<T::Acc> = data[..inner].iter().map(|v| v.widen()).collect();
    out[..inner].copy_from_slice(&data[..inner]);
    let rows = out.chunks_exact_mut(inner).zip(data.chunks_exact(inner));
    for (out, row) in rows.skip(1) {
        for ((o, v), sum) in out.iter_mut().zip(row).zip(&mut so_far) {
            *sum = f(*sum, v.widen());
            *o = T::narrow(*sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{Element, Scalar};
    use half::f16;

    fn run<T: Element>(data: &[T], axis: usize, reverse: bool, kind: Cumulative) -> Vec<T> {
        let x = HostArray::from_slice(data, &[2, data.len() / 2].into()).unwrap();
        cumulative(&x, axis, reverse, kind).to_vec::<T>().unwrap()
    }

    #[test]
    fn along_each_axis_and_backwards() {
        let x = [1i32, 2, 3, 4, 5, 6];
        assert_eq!(run(&x, 1, false, Cumulative::Sum), [1, 3, 6, 4, 9, 15]);
        assert_eq!(run(&x, 1, true, Cumulative::Sum), [6, 5, 3, 15, 11, 6]);
        assert_eq!(run(&x, 0, false, Cumulative::Prod), [1, 2, 3, 4, 10, 18]);
        assert_eq!(run(&x, 0, true, Cumulative::Sum), [5, 7, 9, 4, 5, 6]);
        assert_eq!(run(&[3i8, -1, 2, 5], 1, false, Cumulative::Min), [3, -1, 2, 2]);
        assert_eq!(run::<f32>(&[], 1, false, Cumulative::Sum), [0f32; 0]);
    }

    #[test]
    fn nan_stays_and_log_sum_exp_does_not_overflow() {
        let y = run(&[1.0f32, f32::NAN, 2.0, 0.0, 3.0, 1.0], 1, false, Cumulative::Max);
        assert!(y[0] == 1.0 && y[1].is_nan() && y[2].is_nan(), "{y:?}");
        assert_eq!(y[3..], [0.0, 3.0, 3.0]);
        let low = f64::NEG_INFINITY;
        let y =
            run(&[low, low, 1000.0, 1000.0, 0.0, f64::INFINITY], 1, false, Cumulative::LogSumExp);
        assert_eq!(y, [low, low, 1000.0, 1000.0, 1000.0, f64::INFINITY]);
        let y = run(&[1000.0f64, 1000.0], 0, false, Cumulative::LogSumExp);
        assert_eq!(y[1], 1000.0 + std::f64::consts::LN_2);
    }

    #[test]
    fn f16_accumulates_in_f32_and_large_ones_in_parallel() {
        let x = HostArray::full(Scalar::one(DType::F16), &[4096].into());
        let y = cumulative(&x, 0, false, Cumulative::Sum).to_vec::<f16>().unwrap();
        assert_eq!(y[4095], f16::from_f32(4096.0));
        let x = HostArray::full(Scalar::one(DType::I32), &[300, 400].into());
        let y = cumulative(&x, 1, false, Cumulative::Sum).to_vec::<i32>().unwrap();
        assert!(y.iter().enumerate().all(|(i, &v)| v == i as i32 % 400 + 1), "rows count up");
    }
}
