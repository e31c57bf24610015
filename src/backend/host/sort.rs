//! Sorting along an axis and the largest elements, on keys whose unsigned order is the wanted one.

use super::HostArray;
use super::elementwise::{Data, PARALLEL};
use crate::dtype::DType;
use crate::shape::inverse_permutation;
use crate::with_dtype;
use half::{bf16, f16};
use num_complex::Complex;
use rayon::prelude::*;

/// An element with an unsigned key of the same order: -0 equals 0, all NaNs are equal and last;
/// complex numbers by real part, then imaginary part.
trait SortKey: Data {
    type Key: Ord + Copy + Send + Sync + std::ops::Not<Output = Self::Key>;
    fn key(self) -> Self::Key;
}

macro_rules! int_key {
    ($($ty:ident as $key:ident with $flip:expr),*) => {$(
        impl SortKey for $ty {
            type Key = $key;
            #[inline]
            fn key(self) -> $key {
                (self as $key) ^ $flip
            }
        }
    )*};
}

int_key!(
    u8 as u8 with 0, u16 as u16 with 0, u32 as u32 with 0, u64 as u64 with 0,
    i8 as u8 with 1 << 7, i16 as u16 with 1 << 15, i32 as u32 with 1 << 31, i64 as u64 with 1 << 63
);

macro_rules! float_key {
    ($($ty:ident as $key:ident),*) => {$(
        impl SortKey for $ty {
            type Key = $key;
            #[inline]
            fn key(self) -> $key {
                const SIGN: $key = 1 << ($key::BITS - 1);
                if self.is_nan() {
                    return $key::MAX;
                }
                let bits = self.to_bits();
                match bits & SIGN {
                    0 => bits | SIGN,
                    _ if bits == SIGN => SIGN, // -0
                    _ => !bits,
                }
            }
        }
    )*};
}

float_key!(f16 as u16, bf16 as u16, f32 as u32, f64 as u64);

impl SortKey for Complex<f32> {
    type Key = u64;
    #[inline]
    fn key(self) -> u64 {
        u64::from(self.re.key()) << 32 | u64::from(self.im.key())
    }
}

impl SortKey for Complex<f64> {
    type Key = u128;
    #[inline]
    fn key(self) -> u128 {
        u128::from(self.re.key()) << 64 | u128::from(self.im.key())
    }
}

/// The operands, all of one shape, sorted along `axis` by the first `num_keys` of them, the first
/// one foremost; equal elements keep their order.
///
/// NaN comes last, or first if `descending`; -0 equals 0.
pub fn sort(
    operands: &[HostArray],
    axis: usize,
    num_keys: usize,
    descending: bool,
) -> Vec<HostArray> {
    let mut perm: Vec<usize> = (0..operands[0].shape().rank()).filter(|&a| a != axis).collect();
    perm.push(axis);
    let lines: Vec<HostArray> = operands.iter().map(|x| x.permute(&perm).contiguous()).collect();
    let size = operands[0].shape()[axis];
    let order = if num_keys == 1 {
        with_dtype!(any, lines[0].dtype(), T => {
            order_by_one::<T>(&lines[0], size, descending)
        }, else unreachable!("`any` is whole"))
    } else {
        order_by_many(&lines[..num_keys], size, descending)
    };
    let back = inverse_permutation(&perm);
    lines.iter().map(|x| take(x, size, &order).permute(&back).contiguous()).collect()
}

/// The `k` largest elements along the last axis, largest first, and their indices as i32; of equal
/// ones the first comes first, and NaN counts as largest.
pub fn top_k(x: &HostArray, k: usize) -> (HostArray, HostArray) {
    let x = x.contiguous();
    let axis = x.shape().rank() - 1;
    let size = x.shape()[axis];
    let order = with_dtype!(any, x.dtype(), T => {
        first_k::<T>(&x, size, k)
    }, else unreachable!("`any` is whole"));
    let shape = x.shape().with(axis, k);
    let indices = HostArray::build_as::<i32>(DType::I32, &shape, |out| {
        out.iter_mut().zip(&order).for_each(|(o, &i)| *o = i as i32);
    });
    let values = with_dtype!(any, x.dtype(), T => {
        let data = x.as_contiguous::<T>().unwrap_or_default();
        HostArray::build_as::<T>(x.dtype(), &shape, |out| {
            for (i, (o, &from)) in out.iter_mut().zip(&order).enumerate() {
                *o = data[i / k * size + from as usize];
            }
        })
    }, else unreachable!("`any` is whole"));
    (values, indices)
}

/// The keys of a line with their indices. Inverting the keys, not the order, makes a descending
/// sort keep the order of equal elements.
fn keys<T: SortKey>(line: &[T], descending: bool) -> Vec<(T::Key, u32)> {
    let key = |v: T| if descending { !v.key() } else { v.key() };
    line.iter().zip(0..).map(|(&v, i)| (key(v), i)).collect()
}

/// For each line of `size` elements, the index of the element that belongs at each position.
fn order_by_one<T: SortKey>(x: &HostArray, size: usize, descending: bool) -> Vec<u32> {
    let data = x.as_contiguous::<T>().unwrap_or_default();
    each_line(x.shape().size(), size, size, |line, out| {
        let mut keys = keys(&data[line * size..][..size], descending);
        keys.sort_unstable();
        out.iter_mut().zip(keys).for_each(|(o, (_, i))| *o = i);
    })
}

fn first_k<T: SortKey>(x: &HostArray, size: usize, k: usize) -> Vec<u32> {
    let data = x.as_contiguous::<T>().unwrap_or_default();
    each_line(x.shape().size(), size, k, |line, out| {
        let mut keys = keys(&data[line * size..][..size], true);
        if k < size {
            keys.select_nth_unstable(k);
        }
        keys[..k].sort_unstable();
        out.iter_mut().zip(keys).for_each(|(o, (_, i))| *o = i);
    })
}

#[expect(clippy::useless_conversion, reason = "the keys of c128 are u128 already")]
fn order_by_many(lines: &[HostArray], size: usize, descending: bool) -> Vec<u32> {
    let keys: Vec<Vec<u128>> = lines
        .iter()
        .map(|x| {
            with_dtype!(any, x.dtype(), T => {
                let data = x.as_contiguous::<T>().unwrap_or_default();
                data.iter().map(|v| u128::from(v.key())).collect()
            }, else unreachable!("`any` is whole"))
        })
        .collect();
    each_line(lines[0].shape().size(), size, size, |line, out| {
        out.iter_mut().zip(0..).for_each(|(o, i)| *o = i);
        out.sort_by(|&i, &j| {
            let at = |key: &[u128], i: u32| key[line * size + i as usize];
            let order = keys.iter().map(|key| at(key, i).cmp(&at(key, j)));
            let order = order.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then);
            if descending { order.reverse() } else { order }
        });
    })
}

/// Runs `f(line, out)` for each of the `total / size` lines; `out` holds `k` indices.
fn each_line(
    total: usize,
    size: usize,
    k: usize,
    f: impl Fn(usize, &mut [u32]) + Sync,
) -> Vec<u32> {
    if total == 0 || k == 0 {
        return Vec::new();
    }
    let mut out = vec![0; total / size * k];
    if total >= PARALLEL / 8 {
        out.par_chunks_mut(k).enumerate().for_each(|(line, out)| f(line, out));
    } else {
        out.chunks_mut(k).enumerate().for_each(|(line, out)| f(line, out));
    }
    out
}

/// The elements of `x` in the given order within each line.
fn take(x: &HostArray, size: usize, order: &[u32]) -> HostArray {
    with_dtype!(any, x.dtype(), T => {
        let data = x.as_contiguous::<T>().unwrap_or_default();
        HostArray::build_as::<T>(x.dtype(), x.shape(), |out| {
            for (i, (o, &from)) in out.iter_mut().zip(order).enumerate() {
                *o = data[i / size * size + from as usize];
            }
        })
    }, else unreachable!("`any` is whole"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Element;

    fn of<T: Element>(data: &[T]) -> HostArray {
        HostArray::from_slice(data, &[data.len()].into()).unwrap()
    }

    fn by_one<T: Element>(data: &[T], descending: bool) -> Vec<T> {
        sort(&[of(data)], 0, 1, descending)[0].to_vec::<T>().unwrap()
    }

    #[test]
    fn numbers_in_order() {
        assert_eq!(by_one(&[3i8, -128, 127, 0], false), [-128, 0, 3, 127]);
        assert_eq!(by_one(&[3u64, u64::MAX, 0], true), [u64::MAX, 3, 0]);
        assert_eq!(by_one(&[true, false], false), [false, true]);
        let half = |v: &[f32]| v.iter().map(|&v| f16::from_f32(v)).collect::<Vec<_>>();
        assert_eq!(by_one(&half(&[1.0, -2.0, 0.5]), false), half(&[-2.0, 0.5, 1.0]));
        assert_eq!(by_one::<f32>(&[], false), [0f32; 0]);
        let z = |re, im| Complex::<f64>::new(re, im);
        let sorted = [z(-1.0, 0.0), z(1.0, -1.0), z(1.0, 2.0)];
        assert_eq!(by_one(&[z(1.0, 2.0), z(-1.0, 0.0), z(1.0, -1.0)], false), sorted);
    }

    #[test]
    fn nan_is_last_and_zeros_are_equal() {
        let x = [f32::NAN, 1.0, f32::INFINITY, 0.0, -0.0, -f32::NAN, f32::NEG_INFINITY];
        let y = by_one(&x, false);
        assert_eq!(y[..5], [f32::NEG_INFINITY, 0.0, -0.0, 1.0, f32::INFINITY]);
        assert!(y[1].is_sign_positive() && y[2].is_sign_negative(), "zeros keep their order");
        assert!(y[5].is_nan() && y[6].is_nan(), "{y:?}");
        let y = by_one(&x, true);
        assert!(y[0].is_nan() && y[1].is_nan() && y[2] == f32::INFINITY, "{y:?}");
        assert!(y[4].is_sign_positive() && y[5].is_sign_negative(), "zeros keep their order");
    }

    #[test]
    fn values_are_carried_and_equal_keys_stay() {
        let (key, value) = (of(&[2i32, 1, 2, 1]), of(&[0i64, 1, 2, 3]));
        let up = sort(&[key.clone(), value.clone()], 0, 1, false);
        assert_eq!(up[0].to_vec::<i32>().unwrap(), [1, 1, 2, 2]);
        assert_eq!(up[1].to_vec::<i64>().unwrap(), [1, 3, 0, 2]);
        let down = sort(&[key.clone(), value.clone()], 0, 1, true);
        assert_eq!(down[1].to_vec::<i64>().unwrap(), [0, 2, 1, 3]);
        let second = of(&[5.0f32, 4.0, 3.0, f32::NAN]);
        let y = sort(&[key, second, value], 0, 2, false);
        assert_eq!(y[2].to_vec::<i64>().unwrap(), [1, 3, 2, 0]);
    }

    #[test]
    fn along_the_first_axis() {
        let x = HostArray::from_slice(&[3, 1, 2, 0, 5, 4], &[3, 2].into()).unwrap();
        let y = &sort(std::slice::from_ref(&x), 0, 1, false)[0];
        assert_eq!(y.to_vec::<i32>().unwrap(), [2, 0, 3, 1, 5, 4]);
        assert!(y.is_contiguous(), "results are contiguous");
    }

    #[test]
    fn top_k_prefers_nan_then_the_first() {
        let x = HostArray::from_slice(
            &[1.0f32, 7.0, 7.0, -1.0, 0.0, f32::NAN, 3.0, 9.0],
            &[2, 4].into(),
        )
        .unwrap();
        let (values, indices) = top_k(&x, 2);
        assert_eq!(indices.to_vec::<i32>().unwrap(), [1, 2, 1, 3]);
        let values = values.to_vec::<f32>().unwrap();
        assert!(values[..2] == [7.0, 7.0] && values[2].is_nan() && values[3] == 9.0, "{values:?}");
        assert_eq!(top_k(&x, 4).1.to_vec::<i32>().unwrap(), [1, 2, 0, 3, 1, 3, 2, 0]);
        assert_eq!(top_k(&x, 0).0.shape().size(), 0);
    }

    #[test]
    fn long_lines_sort() {
        let n = 100_003u64;
        let data: Vec<u32> = (0..n).map(|i| (i * 48_271 % n) as u32).collect();
        let y = by_one(&data, false);
        assert!(y.iter().zip(0..).all(|(&v, i)| v == i), "a permutation of 0..n sorts to 0..n");
    }
}
