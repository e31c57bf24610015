//! Reductions over axes, and the position of the extreme element.
//!
//! Sums are pairwise with several lanes at the leaves, so that their error grows with the logarithm
//! of the number of terms.

use super::HostArray;
use super::convert::convert;
use super::elementwise::{Data, Nest, PARALLEL};
use super::number::{HostInt, HostNumber, HostReal, is_nan};
use crate::dtype::{DType, Scalar};
use crate::shape::Shape;
use crate::with_dtype;
use half::{bf16, f16};
use num_complex::Complex;

/// The operation that [`reduce`] folds with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum; of `bool` the disjunction.
    Sum,
    /// The product; of `bool` the conjunction.
    Prod,
    /// The largest element, NaN if there is one; of `bool` the disjunction.
    Max,
    /// The smallest element, NaN if there is one; of `bool` the conjunction.
    Min,
    /// The conjunction of integers' bits or of `bool`.
    And,
    /// The disjunction of integers' bits or of `bool`.
    Or,
    /// The exclusive or of integers' bits or of `bool`.
    Xor,
}

/// A number and the type in which it is accumulated: f32 for f16 and bf16, else its own.
pub(crate) trait Accumulate: Data {
    /// The type of the accumulator.
    type Acc: HostNumber;
    /// The number as an accumulator.
    fn widen(self) -> Self::Acc;
    /// The accumulator rounded to the number's type.
    fn narrow(acc: Self::Acc) -> Self;
}

macro_rules! accumulate {
    ($($ty:ty),*) => {$(
        impl Accumulate for $ty {
            type Acc = $ty;
            #[inline]
            fn widen(self) -> $ty {
                self
            }
            #[inline]
            fn narrow(acc: $ty) -> $ty {
                acc
            }
        }
    )*};
}

accumulate!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64, Complex<f32>, Complex<f64>);

macro_rules! accumulate_half {
    ($($ty:ident),*) => {$(
        impl Accumulate for $ty {
            type Acc = f32;
            #[inline]
            fn widen(self) -> f32 {
                self.to_f32()
            }
            #[inline]
            fn narrow(acc: f32) -> $ty {
                $ty::from_f32(acc)
            }
        }
    )*};
}

accumulate_half!(f16, bf16);

/// The reduction of `x` over `axes`, which go away; the dtype stays. Over no element it gives the
/// operation's neutral element (for a maximum the dtype's smallest value).
pub fn reduce(x: &HostArray, axes: &[usize], reduction: Reduction) -> HostArray {
    let dtype = x.dtype();
    let bits = if dtype == DType::Bool { DType::U8 } else { dtype };
    match of_bool(dtype, reduction) {
        Reduction::Sum => with_dtype!(number, dtype, T => {
            fold::<T>(x, axes, HostNumber::ZERO, HostNumber::add)
        }, else unreachable!("bool has no sum")),
        Reduction::Prod => with_dtype!(number, dtype, T => {
            fold::<T>(x, axes, HostNumber::ONE, HostNumber::mul)
        }, else unreachable!("bool has no product")),
        Reduction::Max => with_dtype!(real, dtype, T => {
            fold::<T>(x, axes, neutral::<T>(Scalar::min_value(dtype)), HostReal::maximum)
        }, else unreachable!("{dtype} has no maximum")),
        Reduction::Min => with_dtype!(real, dtype, T => {
            fold::<T>(x, axes, neutral::<T>(Scalar::max_value(dtype)), HostReal::minimum)
        }, else unreachable!("{dtype} has no minimum")),
        Reduction::And => with_dtype!(int, bits, T => {
            let all = if dtype == DType::Bool { 1 } else { !0 };
            fold::<T>(x, axes, all, HostInt::and)
        }, else unreachable!("{dtype} has no bits")),
        Reduction::Or => with_dtype!(int, bits, T => {
            fold::<T>(x, axes, 0, HostInt::or)
        }, else unreachable!("{dtype} has no bits")),
        Reduction::Xor => with_dtype!(int, bits, T => {
            fold::<T>(x, axes, 0, HostInt::xor)
        }, else unreachable!("{dtype} has no bits")),
    }
}

/// The reduction that stands for `reduction` if the dtype is bool.
fn of_bool(dtype: DType, reduction: Reduction) -> Reduction {
    match reduction {
        Reduction::Sum | Reduction::Max if dtype == DType::Bool => Reduction::Or,
        Reduction::Prod | Reduction::Min if dtype == DType::Bool => Reduction::And,
        other => other,
    }
}

fn neutral<T: Accumulate>(value: Scalar) -> T::Acc {
    bytemuck::pod_read_unaligned::<T>(value.bytes()).widen()
}

/// The kept axes and the reduced axes of one operand as two nests; positions in the second are
/// relative to those in the first.
struct Plan {
    kept: Nest<1>,
    reduced: Nest<1>,
    shape: Shape,
}

impl Plan {
    fn new(x: &HostArray, axes: &[usize]) -> Plan {
        let part = |axes: &[usize]| -> (Vec<usize>, Vec<isize>) {
            axes.iter().map(|&a| (x.shape()[a], x.strides()[a])).unzip()
        };
        let rest: Vec<usize> = (0..x.shape().rank()).filter(|a| !axes.contains(a)).collect();
        // Memory order: the order of the terms is free.
        let mut axes = axes.to_vec();
        axes.sort_by_key(|&a| std::cmp::Reverse(x.strides()[a].abs()));
        let (sizes, strides) = part(&axes);
        let (kept_sizes, kept_strides) = part(&rest);
        Plan {
            kept: Nest::new(&kept_sizes, [&kept_strides], [x.offset() as isize]),
            reduced: Nest::new(&sizes, [&strides], [0]),
            shape: kept_sizes.into(),
        }
    }

    /// Whether neighbours in memory go to different results, so that whole rows are added up.
    fn by_columns(&self) -> bool {
        self.kept.inner == [1] && self.kept.len > 1 && self.reduced.inner != [1]
    }

    /// Results of one piece of work.
    fn grain(&self) -> usize {
        let terms = self.reduced.size().max(1);
        let parallel = self.kept.size().saturating_mul(terms) >= PARALLEL;
        let grain = if parallel { PARALLEL / 4 / terms } else { PARALLEL };
        if self.by_columns() { grain.clamp(64, 2048) } else { grain.max(1) }
    }
}

/// Terms that are added up one after the other.
const LEAF: usize = 1024;
/// Rows that are added up one after the other.
const LEAF_ROWS: usize = 64;
const LANES: usize = 16;

struct Fold<'a, T: Accumulate, F> {
    data: &'a [T],
    reduced: &'a Nest<1>,
    init: T::Acc,
    f: F,
}

fn fold<T: Accumulate>(
    x: &HostArray,
    axes: &[usize],
    init: T::Acc,
    f: impl Fn(T::Acc, T::Acc) -> T::Acc + Sync,
) -> HostArray {
    let plan = Plan::new(x, axes);
    let fold = Fold { data: x.storage::<T>(), reduced: &plan.reduced, init, f };
    let terms = plan.reduced.size();
    let by_columns = plan.by_columns();
    let [step] = plan.kept.inner;
    HostArray::build_as::<T>(x.dtype(), &plan.shape, |out| {
        plan.kept.fill(out, plan.grain(), &|out, [start]| {
            if by_columns {
                let mut sums = vec![init; out.len()];
                fold.columns(start, 0, terms, &mut sums);
                out.iter_mut().zip(sums).for_each(|(o, sum)| *o = T::narrow(sum));
            } else {
                for (i, o) in out.iter_mut().enumerate() {
                    *o = T::narrow(fold.terms(start + step * i as isize, 0, terms));
                }
            }
        });
    })
}

impl<T: Accumulate, F: Fn(T::Acc, T::Acc) -> T::Acc + Sync> Fold<'_, T, F> {
    /// The fold of the reduced elements `from..to` as seen from position `base`.
    fn terms(&self, base: isize, from: usize, to: usize) -> T::Acc {
        // Rows shorter than the lanes fill only the first ones.
        let leaf = if self.reduced.len < LANES { LEAF / LANES } else { LEAF };
        if to - from <= leaf {
            return self.leaf(base, from, to);
        }
        let middle = from + ((to - from) / 2).next_multiple_of(LANES);
        let (low, high) = if to - from >= PARALLEL {
            rayon::join(|| self.terms(base, from, middle), || self.terms(base, middle, to))
        } else {
            (self.terms(base, from, middle), self.terms(base, middle, to))
        };
        (self.f)(low, high)
    }

    fn leaf(&self, base: isize, from: usize, to: usize) -> T::Acc {
        let mut lanes = [self.init; LANES];
        let [step] = self.reduced.inner;
        self.reduced.segments(from, to, |[at], n| {
            let start = base + at;
            if step == 1 {
                self.row(&self.data[start as usize..start as usize + n], &mut lanes);
            } else {
                for i in 0..n {
                    let v = self.data[(start + i as isize * step) as usize].widen();
                    lanes[i % LANES] = (self.f)(lanes[i % LANES], v);
                }
            }
        });
        self.across(lanes)
    }

    fn row(&self, row: &[T], lanes: &mut [T::Acc; LANES]) {
        let (chunks, rest) = row.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, v) in lanes.iter_mut().zip(chunk) {
                *lane = (self.f)(*lane, v.widen());
            }
        }
        for (lane, v) in lanes.iter_mut().zip(rest) {
            *lane = (self.f)(*lane, v.widen());
        }
    }

    fn across(&self, mut lanes: [T::Acc; LANES]) -> T::Acc {
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] = (self.f)(lanes[i], lanes[i + width]);
            }
            width /= 2;
        }
        lanes[0]
    }

    /// Folds the rows `from..to`, each as long as `sums` and contiguous, into `sums`.
    fn columns(&self, base: isize, from: usize, to: usize, sums: &mut [T::Acc]) {
        if to - from <= LEAF_ROWS {
            let [step] = self.reduced.inner;
            return self.reduced.segments(from, to, |[at], n| {
                for i in 0..n as isize {
                    let start = (base + at + i * step) as usize;
                    let row = &self.data[start..start + sums.len()];
                    sums.iter_mut().zip(row).for_each(|(s, v)| *s = (self.f)(*s, v.widen()));
                }
            });
        }
        let middle = from + (to - from) / 2;
        let mut others = vec![self.init; sums.len()];
        if (to - from) * sums.len() >= PARALLEL {
            rayon::join(
                || self.columns(base, from, middle, sums),
                || self.columns(base, middle, to, &mut others),
            );
        } else {
            self.columns(base, from, middle, sums);
            self.columns(base, middle, to, &mut others);
        }
        sums.iter_mut().zip(others).for_each(|(s, other)| *s = (self.f)(*s, other));
    }
}

/// The index of the largest (`max`) or smallest element along `axis`, as `index_dtype`; the first
/// of equal ones, and the first NaN if there is one.
pub fn arg_reduce(x: &HostArray, axis: usize, index_dtype: DType, max: bool) -> HostArray {
    let bits = if x.dtype() == DType::Bool { DType::U8 } else { x.dtype() };
    let index = with_dtype!(real, bits, T => if max {
        extreme::<T>(x, axis, |v, best| v > best)
    } else {
        extreme::<T>(x, axis, |v, best| v < best)
    }, else unreachable!("{} has no order", x.dtype()));
    convert(&index, index_dtype)
}

fn extreme<T: HostReal>(
    x: &HostArray,
    axis: usize,
    better: impl Fn(T, T) -> bool + Sync,
) -> HostArray {
    let plan = Plan::new(x, &[axis]);
    let (data, terms, stride) = (x.storage::<T>(), x.shape()[axis], x.strides()[axis]);
    let [step] = plan.kept.inner;
    let beats = |v: T, best: T| better(v, best) || (is_nan(v) && !is_nan(best));
    HostArray::build_as::<i64>(DType::I64, &plan.shape, |out| {
        if terms == 0 {
            return;
        }
        plan.kept.fill(out, plan.grain(), &|out, [start]| {
            // Term by term over all results, so that rows of memory are read in order.
            let position =
                |i: usize, k: usize| (start + step * i as isize + stride * k as isize) as usize;
            let mut best: Vec<T> = (0..out.len()).map(|i| data[position(i, 0)]).collect();
            for k in 1..terms {
                for (i, (o, best)) in out.iter_mut().zip(&mut best).enumerate() {
                    let v = data[position(i, k)];
                    if beats(v, *best) {
                        (*o, *best) = (k as i64, v);
                    }
                }
            }
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Element;

    fn of<T: Element>(data: &[T], shape: impl Into<Shape>) -> HostArray {
        HostArray::from_slice(data, &shape.into()).unwrap()
    }

    fn run<T: Element>(x: &HostArray, axes: &[usize], reduction: Reduction) -> Vec<T> {
        reduce(x, axes, reduction).to_vec::<T>().unwrap()
    }

    #[test]
    fn sums_over_each_set_of_axes() {
        let data: Vec<i32> = (0..24).collect();
        let x = of(&data, [2, 3, 4]);
        assert_eq!(run::<i32>(&x, &[2], Reduction::Sum), [6, 22, 38, 54, 70, 86]);
        assert_eq!(run::<i32>(&x, &[0, 1], Reduction::Sum), [60, 66, 72, 78]);
        assert_eq!(run::<i32>(&x, &[1], Reduction::Sum), [12, 15, 18, 21, 48, 51, 54, 57]);
        assert_eq!(run::<i32>(&x, &[0, 2], Reduction::Sum), [60, 92, 124]);
        assert_eq!(run::<i32>(&x, &[0, 1, 2], Reduction::Sum), [276]);
        assert_eq!(run::<i32>(&x, &[], Reduction::Sum), data);
        let t = x.permute(&[2, 0, 1]).reverse(&[0]);
        assert_eq!(run::<i32>(&t, &[1, 2], Reduction::Sum), [78, 72, 66, 60]);
        assert_eq!(run::<i32>(&x.reverse(&[2]), &[2], Reduction::Max), [3, 7, 11, 15, 19, 23]);
    }

    #[test]
    fn nothing_gives_the_neutral_element() {
        let x = of::<f32>(&[], [2, 0]);
        assert_eq!(run::<f32>(&x, &[1], Reduction::Sum), [0.0, 0.0]);
        assert_eq!(run::<f32>(&x, &[1], Reduction::Prod), [1.0, 1.0]);
        assert_eq!(run::<f32>(&x, &[1], Reduction::Max), [f32::NEG_INFINITY; 2]);
        assert_eq!(run::<f32>(&x, &[0], Reduction::Sum), [0f32; 0]);
        assert_eq!(run::<u8>(&of::<u8>(&[], [0]), &[0], Reduction::Min), [255]);
        assert_eq!(run::<i8>(&of::<i8>(&[], [0]), &[0], Reduction::And), [-1]);
        assert_eq!(run::<bool>(&of::<bool>(&[], [0]), &[0], Reduction::And), [true]);
    }

    #[test]
    fn bits_bools_and_complex() {
        let x = of(&[true, false, true], [3]);
        for (reduction, holds) in [
            (Reduction::Sum, true),
            (Reduction::Prod, false),
            (Reduction::Max, true),
            (Reduction::Min, false),
            (Reduction::And, false),
            (Reduction::Or, true),
            (Reduction::Xor, false),
        ] {
            assert_eq!(run::<bool>(&x, &[0], reduction), [holds], "{reduction:?}");
        }
        assert_eq!(run::<u8>(&of(&[6u8, 3], [2]), &[0], Reduction::Xor), [5]);
        assert_eq!(run::<i8>(&of(&[100i8, 100], [2]), &[0], Reduction::Sum), [-56]);
        let z = of(&[Complex::new(0.0f32, 1.0), Complex::new(0.0, 1.0)], [2]);
        assert_eq!(run::<Complex<f32>>(&z, &[0], Reduction::Prod), [Complex::new(-1.0, 0.0)]);
    }

    #[test]
    fn extremes_keep_nan() {
        let x = of(&[1.0f32, f32::NAN, 3.0, -5.0, 4.0, 2.0], [2, 3]);
        let max = run::<f32>(&x, &[1], Reduction::Max);
        assert!(max[0].is_nan() && max[1] == 4.0, "{max:?}");
        let min = run::<f32>(&x, &[0], Reduction::Min);
        assert!(min[0] == -5.0 && min[1].is_nan() && min[2] == 2.0, "{min:?}");
    }

    #[test]
    fn long_sums_are_accurate() {
        let n = 1 << 20;
        let x = HostArray::full(Scalar::new(0.1f32), &[n].into());
        for x in [x.clone(), x.contiguous()] {
            let sum = run::<f32>(&x, &[0], Reduction::Sum)[0];
            let exact = f64::from(0.1f32) * n as f64;
            assert!((f64::from(sum) / exact - 1.0).abs() < 1e-6, "{sum} and {exact}");
        }
        let column = x.reshape(&[n / 4, 4].into());
        let sums = run::<f32>(&column, &[0], Reduction::Sum);
        assert!(sums.iter().all(|s| (s / 26214.4 - 1.0).abs() < 1e-6), "{sums:?}");
        // In f16 itself the sum would stop at 2048.
        let ones = HostArray::full(Scalar::one(DType::F16), &[4096].into());
        assert_eq!(run::<f16>(&ones, &[0], Reduction::Sum), [f16::from_f32(4096.0)]);
        let ones = HostArray::full(Scalar::one(DType::BF16), &[1000, 3].into()).contiguous();
        assert_eq!(run::<bf16>(&ones, &[0], Reduction::Sum), [bf16::from_f32(1000.0); 3]);
    }

    #[test]
    fn many_results_in_parallel() {
        let (rows, cols) = (513, 257);
        let x = of(&(0..rows * cols).collect::<Vec<i64>>(), [rows as usize, cols as usize]);
        let by_row = run::<i64>(&x, &[1], Reduction::Sum);
        let by_column = run::<i64>(&x, &[0], Reduction::Sum);
        let row = |r: i64| r * cols * cols + cols * (cols - 1) / 2;
        let column = |c: i64| c * rows + cols * rows * (rows - 1) / 2;
        assert!((0..rows).all(|r| by_row[r as usize] == row(r)), "rows");
        assert!((0..cols).all(|c| by_column[c as usize] == column(c)), "columns");
    }

    #[test]
    fn positions_of_extremes() {
        let x = of(&[3.0f32, 1.0, 3.0, 1.0, f32::NAN, f32::NAN], [2, 3]);
        let at = |x: &HostArray, axis, max| {
            arg_reduce(x, axis, DType::I32, max).to_vec::<i32>().unwrap()
        };
        assert_eq!((at(&x, 1, true), at(&x, 1, false)), (vec![0, 1], vec![1, 1]));
        assert_eq!((at(&x, 0, true), at(&x, 0, false)), (vec![0, 1, 1], vec![1, 1, 1]));
        assert_eq!(at(&x.permute(&[1, 0]), 0, false), [1, 1]);
        assert_eq!(at(&of(&[false, true, true], [3]), 0, true), [1]);
        assert_eq!(arg_reduce(&x, 1, DType::U8, true).dtype(), DType::U8);
    }
}
