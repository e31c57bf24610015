//! `reduce_window` and `select_and_scatter`: pooling and its derivative.

use super::HostArray;
use super::combine::Combine;
use super::dot::cast;
use crate::dtype::{DType, Scalar};
use crate::shape::Shape;
use crate::with_dtype;
use rayon::prelude::*;

/// Elements times window size from which the work is split over the cores.
const PARALLEL: usize = 1 << 16;

/// A window that slides over an array; one entry an axis in each field.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct WindowDims {
    /// `window_dimensions`: the size of the window.
    pub window: Vec<usize>,
    /// `window_strides`: how far it moves from one result to the next.
    pub strides: Vec<usize>,
    /// `base_dilations`: distance of neighbouring elements of the operand, 1 for no holes.
    pub base_dilation: Vec<usize>,
    /// `window_dilations`: distance of neighbouring elements of the window.
    pub window_dilation: Vec<usize>,
    /// Elements added before and after each axis of the dilated operand; negative ones cut off.
    pub padding: Vec<(i64, i64)>,
}

impl WindowDims {
    /// A window without dilation or padding.
    pub fn new(window: &[usize], strides: &[usize]) -> WindowDims {
        WindowDims {
            window: window.to_vec(),
            strides: strides.to_vec(),
            base_dilation: vec![1; window.len()],
            window_dilation: vec![1; window.len()],
            padding: vec![(0, 0); window.len()],
        }
    }

    /// The shape of `reduce_window`'s result for an operand of shape `x`.
    pub fn out_shape(&self, x: &Shape) -> Shape {
        (0..x.rank()).map(|axis| self.axis(axis, x[axis]).out_size()).collect()
    }

    fn axis(&self, axis: usize, size: usize) -> WindowAxis {
        WindowAxis {
            size,
            window: self.window[axis],
            stride: self.strides[axis],
            base_dilation: self.base_dilation[axis],
            window_dilation: self.window_dilation[axis],
            padding: self.padding[axis],
        }
    }

    fn axes(&self, x: &Shape) -> Vec<WindowAxis> {
        (0..x.rank()).map(|axis| self.axis(axis, x[axis])).collect()
    }
}

/// One axis of a sliding window over `size` elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowAxis {
    pub(super) size: usize,
    pub(super) window: usize,
    pub(super) stride: usize,
    pub(super) base_dilation: usize,
    pub(super) window_dilation: usize,
    pub(super) padding: (i64, i64),
}

/// The results whose window element lies on an operand element: `count` of them, from `out` in
/// steps of `out_step`, reading from `input` in steps of `in_step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) out: usize,
    pub(super) out_step: usize,
    pub(super) input: usize,
    pub(super) in_step: usize,
    pub(super) count: usize,
}

impl WindowAxis {
    pub(super) fn out_size(&self) -> usize {
        let dilated = |size: usize, by: usize| if size == 0 { 0 } else { (size - 1) * by + 1 };
        let base = dilated(self.size, self.base_dilation) as i64 + self.padding.0 + self.padding.1;
        let window = dilated(self.window, self.window_dilation) as i64;
        if base < window || base <= 0 {
            return 0;
        }
        (base - window) as usize / self.stride + 1
    }

    /// The operand's index under element `k` of the window of result `out`, if there is one.
    pub(super) fn input(&self, out: usize, k: usize) -> Option<usize> {
        let place = (out * self.stride + k * self.window_dilation) as i64 - self.padding.0;
        let dilation = self.base_dilation as i64;
        if place < 0 || place % dilation != 0 {
            return None;
        }
        Some((place / dilation) as usize).filter(|&i| i < self.size)
    }

    /// All results for which [`input`](Self::input) of window element `k` gives an index.
    pub(super) fn run(&self, k: usize) -> Run {
        let (results, dilation, stride) =
            (self.out_size(), self.base_dilation as i64, self.stride as i64);
        let from = (k * self.window_dilation) as i64 - self.padding.0;
        let empty = Run { out: 0, out_step: 1, input: 0, in_step: 1, count: 0 };
        // Below `low` the place is before the operand; hits repeat with a period of `dilation`.
        let low = if from < 0 { (-from + stride - 1) / stride } else { 0 };
        let Some(first) = (low..low + dilation).find(|o| (o * stride + from) % dilation == 0)
        else {
            return empty;
        };
        let step = dilation / gcd(dilation, stride);
        let input = (first * stride + from) / dilation;
        let in_step = step * stride / dilation;
        let left =
            |limit: usize, at: i64, step: i64| (limit as i64 - at + step - 1).div_euclid(step);
        let count = left(results, first, step).min(left(self.size, input, in_step));
        if count <= 0 {
            return empty;
        }
        Run {
            out: first as usize,
            out_step: step as usize,
            input: input as usize,
            in_step: in_step as usize,
            count: count as usize,
        }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What a window is reduced by; the initial value is the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// Sum; integers wrap around, `bool` is "or".
    Sum,
    /// Largest element; NaN wins.
    Max,
    /// Smallest element; NaN wins.
    Min,
    /// Product; integers wrap around, `bool` is "and".
    Prod,
}

impl WindowKind {
    fn identity(self, dtype: DType) -> Scalar {
        match self {
            WindowKind::Sum => Scalar::zero(dtype),
            WindowKind::Prod => Scalar::one(dtype),
            WindowKind::Max => Scalar::min_value(dtype),
            WindowKind::Min => Scalar::max_value(dtype),
        }
    }
}

/// Each result is the reduction of the elements under one position of the window.
///
/// f16 and bf16 are reduced in f32 and rounded once. Max and Min take real numbers and `bool`.
pub fn reduce_window(x: &HostArray, dims: &WindowDims, kind: WindowKind) -> HostArray {
    match x.dtype() {
        DType::F16 | DType::BF16 => {
            cast(&reduce_window(&cast(x, DType::F32), dims, kind), x.dtype())
        }
        // On bytes that are 0 or 1 "or" is the maximum and "and" the minimum.
        DType::Bool if matches!(kind, WindowKind::Sum | WindowKind::Max) => {
            reduce_as::<u8>(x, dims, WindowKind::Max, reducer(WindowKind::Max))
        }
        DType::Bool => reduce_as::<u8>(x, dims, WindowKind::Min, reducer(WindowKind::Min)),
        dtype => {
            with_dtype!(number, dtype, T => reduce_as(x, dims, kind, reducer::<T>(kind)), else x.clone())
        }
    }
}

/// The loop that reduces a lane by `kind`.
fn reducer<T: Combine>(kind: WindowKind) -> fn(&mut Lane<'_, T>, &[T]) {
    match kind {
        WindowKind::Sum => |lane, x| lane.each(x, T::sum),
        WindowKind::Prod => |lane, x| lane.each(x, T::product),
        WindowKind::Max => |lane, x| lane.each(x, T::larger),
        WindowKind::Min => |lane, x| lane.each(x, T::smaller),
    }
}

/// A row of results, and where in the operand the elements lie that go into it.
struct Lane<'a, T> {
    out: &'a mut [T],
    run: Run,
    start: isize,
    stride: isize,
}

impl<T: Copy> Lane<'_, T> {
    #[inline]
    fn each(&mut self, x: &[T], f: impl Fn(T, T) -> T) {
        let Run { out, out_step, count, .. } = self.run;
        if out_step == 1 && self.stride == 1 {
            let x = &x[self.start as usize..][..count];
            for (o, &v) in self.out[out..][..count].iter_mut().zip(x) {
                *o = f(*o, v);
            }
            return;
        }
        let mut at = self.start;
        for o in self.out[out..].iter_mut().step_by(out_step).take(count) {
            *o = f(*o, x[at as usize]);
            at += self.stride;
        }
    }
}

fn reduce_as<T: Combine>(
    x: &HostArray,
    dims: &WindowDims,
    kind: WindowKind,
    reducer: fn(&mut Lane<'_, T>, &[T]),
) -> HostArray {
    let shape = dims.out_shape(x.shape());
    let axes = dims.axes(x.shape());
    let (data, identity) = (x.storage::<T>(), kind.identity(x.dtype()));
    let identity: T = bytemuck::pod_read_unaligned(identity.bytes());
    let Some((&last, outer)) = axes.split_last() else {
        return x.contiguous();
    };
    let (width, stride) = (last.out_size(), x.strides()[outer.len()]);
    let runs: Vec<Run> = (0..last.window).map(|k| last.run(k)).collect();
    let row = |(index, out): (usize, &mut [T])| {
        out.fill(identity);
        each_input(outer, x, index, |start| {
            for &run in &runs {
                let start = start + run.input as isize * stride;
                let mut lane = Lane { out, run, start, stride: stride * run.in_step as isize };
                if run.count > 0 {
                    reducer(&mut lane, data);
                }
            }
        });
    };
    let work = shape.size() * dims.window.iter().product::<usize>();
    HostArray::build_as::<T>(x.dtype(), &shape, |out| {
        if out.is_empty() {
        } else if work < PARALLEL {
            out.chunks_mut(width).enumerate().for_each(row);
        } else {
            out.par_chunks_mut(width).enumerate().for_each(row);
        }
    })
}

/// Calls `f` with the storage position of each operand row (of all axes but the last) under the
/// window of the result row `index`, in row-major order.
fn each_input(axes: &[WindowAxis], x: &HostArray, mut index: usize, mut f: impl FnMut(isize)) {
    let mut starts = vec![x.offset() as isize];
    let mut result = vec![0; axes.len()];
    for (axis, place) in axes.iter().zip(&mut result).rev() {
        (index, *place) = (index / axis.out_size(), index % axis.out_size());
    }
    for ((axis, &stride), &out) in axes.iter().zip(x.strides()).zip(&result) {
        let inputs = |&start: &isize| {
            let inputs = (0..axis.window).filter_map(move |k| axis.input(out, k));
            inputs.map(move |i| start + i as isize * stride)
        };
        starts = starts.iter().flat_map(inputs).collect();
    }
    starts.into_iter().for_each(&mut f);
}

/// Which element of a window `select_and_scatter` picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Select {
    /// The first largest one: an element stays picked while it is `>=` the later ones.
    Ge,
    /// The first smallest one.
    Le,
}

/// An array of the operand's shape: each element of `source` added to where its window's picked
/// element of `operand` lies; all others zero.
///
/// Padding is never picked. `dims` has no dilation. f16 and bf16 add in f32.
pub fn select_and_scatter_add(
    operand: &HostArray,
    source: &HostArray,
    dims: &WindowDims,
    select: Select,
) -> HostArray {
    debug_assert_eq!(source.shape(), &dims.out_shape(operand.shape()), "one source a window");
    match operand.dtype() {
        DType::F16 | DType::BF16 => {
            let [x, y] = [operand, source].map(|a| cast(a, DType::F32));
            cast(&select_and_scatter_add(&x, &y, dims, select), operand.dtype())
        }
        dtype => with_dtype!(real, dtype, T => {
            match select {
                Select::Ge => scatter_as::<T>(operand, source, dims, |a, b| a >= b),
                Select::Le => scatter_as::<T>(operand, source, dims, |a, b| a <= b),
            }
        }, else operand.clone()),
    }
}

fn scatter_as<T: Combine>(
    operand: &HostArray,
    source: &HostArray,
    dims: &WindowDims,
    stays: impl Fn(T, T) -> bool,
) -> HostArray {
    let (x, source) = (operand.contiguous(), source.contiguous());
    let data = x.as_contiguous::<T>().unwrap_or_default();
    let axes = dims.axes(x.shape());
    HostArray::build_as::<T>(x.dtype(), x.shape(), |out| {
        for (i, &v) in source.as_contiguous::<T>().unwrap_or_default().iter().enumerate() {
            let mut picked: Option<usize> = None;
            each_input(&axes, &x, i, |at| {
                let at = at as usize - x.offset();
                if picked.is_none_or(|p| !stays(data[p], data[at])) {
                    picked = Some(at);
                }
            });
            if let Some(at) = picked {
                out[at] = out[at].sum(v);
            }
        }
    })
}

/// For each window the element of `values` that lies where the picked element of `operand` does,
/// both of one shape; zero where a window covers padding only. `values` may have any dtype.
pub fn select_and_gather(
    operand: &HostArray,
    values: &HostArray,
    dims: &WindowDims,
    select: Select,
) -> HostArray {
    debug_assert_eq!(operand.shape(), values.shape(), "one value an element");
    let shape = dims.out_shape(operand.shape());
    let picked = match operand.dtype() {
        DType::F16 | DType::BF16 => picked_as::<f32>(&cast(operand, DType::F32), dims, select),
        dtype => {
            with_dtype!(real, dtype, T => picked_as::<T>(operand, dims, select), else Vec::new())
        }
    };
    let values = values.contiguous();
    let bytes = values.contiguous_bytes().unwrap_or_default();
    let size = values.dtype().size();
    HostArray::build(values.dtype(), &shape, |out| {
        for (out, at) in out.chunks_mut(size).zip(picked) {
            if let Some(at) = at {
                out.copy_from_slice(&bytes[at * size..][..size]);
            }
        }
    })
}

/// The row-major position of each window's picked element.
fn picked_as<T: Combine + PartialOrd>(
    x: &HostArray,
    dims: &WindowDims,
    select: Select,
) -> Vec<Option<usize>> {
    let x = x.contiguous();
    let data = x.as_contiguous::<T>().unwrap_or_default();
    let axes = dims.axes(x.shape());
    let one = |i: usize| {
        let mut picked: Option<usize> = None;
        each_input(&axes, &x, i, |at| {
            let at = at as usize - x.offset();
            let stays = |p: usize| match select {
                Select::Ge => data[p] >= data[at],
                Select::Le => data[p] <= data[at],
            };
            if picked.is_none_or(|p| !stays(p)) {
                picked = Some(at);
            }
        });
        picked
    };
    (0..dims.out_shape(x.shape()).size()).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Element;
    use half::{bf16, f16};
    use num_complex::Complex;

    fn array<T: Element>(data: &[T], shape: &[usize]) -> HostArray {
        HostArray::from_slice(data, &shape.into()).unwrap()
    }

    #[test]
    fn runs_are_all_inputs() {
        for stride in 1..4 {
            for (base_dilation, window_dilation) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
                for padding in [(0, 0), (3, 1), (-1, 2), (0, -2), (9, 9)] {
                    let axis = WindowAxis {
                        size: 5,
                        window: 3,
                        stride,
                        base_dilation,
                        window_dilation,
                        padding,
                    };
                    for k in 0..3 {
                        let slow: Vec<_> = (0..axis.out_size())
                            .filter_map(|o| Some((o, axis.input(o, k)?)))
                            .collect();
                        let r = axis.run(k);
                        let fast: Vec<_> = (0..r.count)
                            .map(|i| (r.out + i * r.out_step, r.input + i * r.in_step))
                            .collect();
                        assert_eq!(fast, slow, "{axis:?} {k}");
                    }
                }
            }
        }
    }

    #[test]
    fn pools_by_hand() {
        let x = array(&[1i32, 5, 2, 4, 3, 9, -7, 8, 6, 0, 11, 10], &[3, 4]);
        let d = WindowDims::new(&[2, 2], &[1, 2]);
        let run = |kind| reduce_window(&x, &d, kind).to_vec::<i32>().unwrap();
        assert_eq!(run(WindowKind::Max), [9, 8, 9, 11]);
        assert_eq!(run(WindowKind::Min), [1, -7, 0, -7]);
        assert_eq!(run(WindowKind::Sum), [18, 7, 18, 22]);
        assert_eq!(run(WindowKind::Prod), [135, -448, 0, -6160]);
        let turned = x.permute(&[1, 0]).reverse(&[1]);
        let d = WindowDims::new(&[2, 3], &[2, 1]);
        let y = reduce_window(&turned, &d, WindowKind::Max);
        assert_eq!(y.to_vec::<i32>().unwrap(), [9, 11]);
    }

    #[test]
    fn padding_and_dilation_by_hand() {
        let x = array(&[1f32, 2., 3.], &[3]);
        let mut d = WindowDims::new(&[2], &[1]);
        d.padding = vec![(2, -1)];
        // 0 0 1 2 | cut 3
        assert_eq!(reduce_window(&x, &d, WindowKind::Sum).to_vec::<f32>().unwrap(), [0., 1., 3.]);
        let empty = f32::NEG_INFINITY;
        assert_eq!(
            reduce_window(&x, &d, WindowKind::Max).to_vec::<f32>().unwrap(),
            [empty, 1., 2.]
        );
        // 1 . 2 . 3 under elements at distance 3
        d = WindowDims {
            base_dilation: vec![2],
            window_dilation: vec![3],
            ..WindowDims::new(&[2], &[1])
        };
        assert_eq!(reduce_window(&x, &d, WindowKind::Sum).to_vec::<f32>().unwrap(), [1., 3.]);
        let big = WindowDims::new(&[4], &[1]);
        assert_eq!(reduce_window(&x, &big, WindowKind::Sum).shape().dims(), [0]);
        let none = array::<f32>(&[], &[0, 3]);
        let d = WindowDims::new(&[1, 2], &[1, 1]);
        assert_eq!(reduce_window(&none, &d, WindowKind::Sum).shape().dims(), [0, 2]);
    }

    #[test]
    fn other_dtypes() {
        let d = WindowDims::new(&[2], &[1]);
        let b = array(&[false, false, true, true], &[4]);
        let run = |kind| reduce_window(&b, &d, kind).to_vec::<bool>().unwrap();
        assert_eq!(run(WindowKind::Sum), [false, true, true]);
        assert_eq!(run(WindowKind::Prod), [false, false, true]);
        let i = array(&[100i8, 100, -100], &[3]);
        assert_eq!(reduce_window(&i, &d, WindowKind::Sum).to_vec::<i8>().unwrap(), [-56, 0]);
        let i = Complex::<f32>::i();
        let c = array(&[i, i, i * 2.], &[3]);
        let y = reduce_window(&c, &d, WindowKind::Prod).to_vec::<Complex<f32>>().unwrap();
        assert_eq!(y, [Complex::new(-1., 0.), Complex::new(-2., 0.)]);
        let n = array(&[1f64, f64::NAN, 3., 4.], &[4]);
        let y = reduce_window(&n, &d, WindowKind::Max).to_vec::<f64>().unwrap();
        assert!(y[0].is_nan() && y[1].is_nan() && y[2] == 4.);
        let ones = HostArray::full(Scalar::new(bf16::ONE), &[1000].into());
        let y = reduce_window(&ones, &WindowDims::new(&[1000], &[1]), WindowKind::Sum);
        assert_eq!(y.to_vec::<bf16>().unwrap(), [bf16::from_f32(1000.)]);
    }

    #[test]
    fn large_pooling_over_cores() {
        let data: Vec<i64> = (0..64 * 64 * 8).map(|i| i * 7919 % 1009).collect();
        let x = array(&data, &[8, 64, 64]);
        let d = WindowDims::new(&[1, 3, 3], &[1, 2, 2]);
        let y = reduce_window(&x, &d, WindowKind::Max).to_vec::<i64>().unwrap();
        for (at, &v) in y.iter().enumerate() {
            let (c, i, j) = (at / 961, at / 31 % 31, at % 31);
            let under = (0..9).map(|k| data[(c * 64 + i * 2 + k / 3) * 64 + j * 2 + k % 3]);
            assert_eq!(Some(v), under.max(), "result {at}");
        }
    }

    #[test]
    fn scatters_to_the_first_winner() {
        let x = array(&[1f32, 3., 3., 0., 2., 3.], &[6]);
        let source = array(&[10f32, 20., 30.], &[3]);
        let d = WindowDims::new(&[2], &[2]);
        let y = select_and_scatter_add(&x, &source, &d, Select::Ge);
        assert_eq!(y.to_vec::<f32>().unwrap(), [0., 10., 20., 0., 0., 30.]);
        let y = select_and_scatter_add(&x, &source, &d, Select::Le);
        assert_eq!(y.to_vec::<f32>().unwrap(), [10., 0., 0., 20., 30., 0.]);
        // Overlapping windows, padding of two: the first window is padding only.
        let d = WindowDims { padding: vec![(2, 0)], ..WindowDims::new(&[2], &[1]) };
        let x = array(&[f16::from_f32(-5.), f16::from_f32(-4.), f16::from_f32(-4.)], &[3]);
        let source = array(&[1f32, 2., 4., 8.].map(f16::from_f32), &[4]);
        let y = select_and_scatter_add(&x, &source, &d, Select::Ge);
        assert_eq!(y.to_vec::<f16>().unwrap(), [2f32, 12., 0.].map(f16::from_f32));
    }

    #[test]
    fn scatter_of_images() {
        let x = array(&[1i32, 2, 3, 4, 5, 6, 7, 8, 9], &[3, 3]).permute(&[1, 0]);
        let source = array(&[1i32, 1, 1, 1], &[2, 2]);
        let y = select_and_scatter_add(&x, &source, &WindowDims::new(&[2, 2], &[1, 1]), Select::Le);
        assert_eq!(y.to_vec::<i32>().unwrap(), [1, 1, 0, 1, 1, 0, 0, 0, 0]);
    }
}
