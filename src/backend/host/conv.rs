//! `convolution`: patches of the operand as columns of a matrix, one product a group.

use super::HostArray;
use super::dot::{Multiply, cast, gemm, or_and, wrapping};
use super::window::{Run, WindowAxis};
use crate::dtype::DType;
use crate::shape::{Shape, inverse_permutation};
use crate::with_dtype;
use bytemuck::Pod;
use ndarray::{ArrayView2, ArrayViewMut2, Axis};
use num_complex::Complex;
use rayon::prelude::*;

/// Elements of the patch matrix that are made at a time.
const BLOCK: usize = 1 << 18;
/// Multiplications from which images and groups are spread over the cores.
const PARALLEL: usize = 1 << 16;

/// The axes and the window of a `convolution` over 0 to 3 spatial axes.
///
/// The fields that end in `spatial` list axis numbers, outermost first; `strides`, `padding`, both
/// dilations and `window_reversal` have one entry for each of these.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct ConvDims {
    /// `input_batch_dimension`.
    pub lhs_batch: usize,
    /// `input_feature_dimension`.
    pub lhs_feature: usize,
    /// `input_spatial_dimensions`.
    pub lhs_spatial: Vec<usize>,
    /// `kernel_output_feature_dimension`.
    pub rhs_out_feature: usize,
    /// `kernel_input_feature_dimension`.
    pub rhs_in_feature: usize,
    /// `kernel_spatial_dimensions`.
    pub rhs_spatial: Vec<usize>,
    /// `output_batch_dimension`.
    pub out_batch: usize,
    /// `output_feature_dimension`.
    pub out_feature: usize,
    /// `output_spatial_dimensions`.
    pub out_spatial: Vec<usize>,
    /// `window_strides`.
    pub strides: Vec<usize>,
    /// Elements added before and after each spatial axis of the dilated input; negative ones cut.
    pub padding: Vec<(i64, i64)>,
    /// Distance of neighbouring input elements: 1, or the stride of a transposed convolution.
    pub lhs_dilation: Vec<usize>,
    /// Distance of neighbouring kernel elements.
    pub rhs_dilation: Vec<usize>,
    /// Whether the kernel is reversed along each spatial axis.
    pub window_reversal: Vec<bool>,
    /// `feature_group_count`.
    pub feature_groups: usize,
    /// `batch_group_count`; one of the two counts is 1.
    pub batch_groups: usize,
}

impl ConvDims {
    /// The dims of torch's layout (`NC..`, `OI..`, `NC..`) without padding, dilation or groups.
    pub fn new(spatial: usize) -> ConvDims {
        let axes: Vec<usize> = (2..2 + spatial).collect();
        ConvDims {
            lhs_feature: 1,
            lhs_spatial: axes.clone(),
            rhs_in_feature: 1,
            rhs_spatial: axes.clone(),
            out_feature: 1,
            out_spatial: axes,
            strides: vec![1; spatial],
            padding: vec![(0, 0); spatial],
            lhs_dilation: vec![1; spatial],
            rhs_dilation: vec![1; spatial],
            window_reversal: vec![false; spatial],
            feature_groups: 1,
            batch_groups: 1,
            ..ConvDims::default()
        }
    }

    /// The shape of the result.
    pub fn out_shape(&self, lhs: &Shape, rhs: &Shape) -> Shape {
        let mut out = vec![0; lhs.rank()];
        out[self.out_batch] = lhs[self.lhs_batch] / self.batch_groups;
        out[self.out_feature] = rhs[self.rhs_out_feature];
        for (i, &axis) in self.out_spatial.iter().enumerate() {
            let sizes = [lhs[self.lhs_spatial[i]], rhs[self.rhs_spatial[i]]];
            out[axis] = self.axis(i, sizes).out_size();
        }
        Shape::from(out)
    }

    fn axis(&self, i: usize, [size, window]: [usize; 2]) -> WindowAxis {
        WindowAxis {
            size,
            window,
            stride: self.strides[i],
            base_dilation: self.lhs_dilation[i],
            window_dilation: self.rhs_dilation[i],
            padding: self.padding[i],
        }
    }
}

/// The convolution of `lhs` with the kernel `rhs`, as StableHLO defines it (no reversal of the
/// kernel unless `window_reversal` says so).
///
/// Operands have one dtype; sums are formed in `out` if that is wider. f16 and bf16 sum in f32,
/// integers wrap around, `bool` is "or" of "and".
pub fn convolution(lhs: &HostArray, rhs: &HostArray, dims: &ConvDims, out: DType) -> HostArray {
    debug_assert_eq!(lhs.dtype(), rhs.dtype(), "operands of a convolution have one dtype");
    debug_assert!(dims.lhs_spatial.len() <= 3, "at most three spatial axes");
    let wide = if out.size() >= lhs.dtype().size() { out } else { lhs.dtype() };
    let compute = if matches!(wide, DType::F16 | DType::BF16) { DType::F32 } else { wide };
    let (lhs, rhs) = (cast(lhs, compute), cast(rhs, compute));
    let result = match compute {
        DType::F32 => convolve(&lhs, &rhs, dims, gemm::<f32>),
        DType::F64 => convolve(&lhs, &rhs, dims, gemm::<f64>),
        DType::C64 => convolve(&lhs, &rhs, dims, gemm::<Complex<f32>>),
        DType::C128 => convolve(&lhs, &rhs, dims, gemm::<Complex<f64>>),
        DType::Bool => convolve(&lhs, &rhs, dims, or_and),
        int => with_dtype!(int, int, T => convolve(&lhs, &rhs, dims, wrapping::<T>), else lhs),
    };
    cast(&result, out)
}

fn convolve<T: Pod + Send + Sync>(
    lhs: &HostArray,
    rhs: &HostArray,
    dims: &ConvDims,
    multiply: Multiply<T>,
) -> HostArray {
    let shape = dims.out_shape(lhs.shape(), rhs.shape());
    let plan = Plan::new(lhs, rhs, dims);
    // First as [batch, feature, spatial..], then in the order of the result's axes.
    let order = [&[dims.out_batch, dims.out_feature], dims.out_spatial.as_slice()].concat();
    let direct: Shape = order.iter().map(|&a| shape[a]).collect();
    let result = HostArray::build_as::<T>(lhs.dtype(), &direct, |out| plan.run(out, multiply));
    result.permute(&inverse_permutation(&order)).contiguous()
}

/// A convolution with its axes in one fixed order.
struct Plan {
    /// `[batch, feature, spatial..]`, strided.
    lhs: HostArray,
    /// `[out feature, in feature, spatial..]`, contiguous, reversed where asked for.
    kernel: HostArray,
    /// Always three: missing ones of size 1 come first.
    axes: [WindowAxis; 3],
    /// Strides of the spatial axes of `lhs`.
    strides: [isize; 3],
    feature_groups: usize,
    batch_groups: usize,
}

impl Plan {
    fn new(lhs: &HostArray, rhs: &HostArray, dims: &ConvDims) -> Plan {
        let lhs =
            lhs.permute(&[&[dims.lhs_batch, dims.lhs_feature], &dims.lhs_spatial[..]].concat());
        let kernel = rhs.permute(
            &[&[dims.rhs_out_feature, dims.rhs_in_feature], &dims.rhs_spatial[..]].concat(),
        );
        let reversed = dims.window_reversal.iter().enumerate().filter(|(_, r)| **r);
        let reversed: Vec<usize> = reversed.map(|(i, _)| i + 2).collect();
        let kernel = kernel.reverse(&reversed).contiguous();
        let one = WindowAxis {
            size: 1,
            window: 1,
            stride: 1,
            base_dilation: 1,
            window_dilation: 1,
            padding: (0, 0),
        };
        let (mut axes, mut strides) = ([one; 3], [0; 3]);
        let missing = 3 - dims.lhs_spatial.len();
        for i in 0..dims.lhs_spatial.len() {
            axes[missing + i] = dims.axis(i, [lhs.shape()[i + 2], kernel.shape()[i + 2]]);
            strides[missing + i] = lhs.strides()[i + 2];
        }
        let (feature_groups, batch_groups) = (dims.feature_groups, dims.batch_groups);
        Plan { lhs, kernel, axes, strides, feature_groups, batch_groups }
    }

    fn run<T: Pod + Send + Sync>(&self, out: &mut [T], multiply: Multiply<T>) {
        let groups = self.feature_groups * self.batch_groups;
        let kernel = self.kernel.as_contiguous::<T>().unwrap_or_default();
        if out.is_empty() || kernel.is_empty() {
            return; // The result starts as zeros.
        }
        let features = self.kernel.shape()[0] / groups;
        let inner = kernel.len() / self.kernel.shape()[0];
        let positions: usize = self.axes.iter().map(WindowAxis::out_size).product();
        let work = out.len() * inner;
        let one = |(i, out): (usize, &mut [T])| {
            let (image, group) = (i / groups, i % groups);
            let weights = &kernel[group * features * inner..][..features * inner];
            let weights = ArrayView2::from_shape((features, inner), weights);
            let out = ArrayViewMut2::from_shape((features, positions), out);
            if let (Ok(weights), Ok(out)) = (weights, out) {
                self.group(weights, out, self.start(image, group), multiply);
            }
        };
        if work < PARALLEL {
            out.chunks_mut(features * positions).enumerate().for_each(one);
        } else {
            out.par_chunks_mut(features * positions).enumerate().for_each(one);
        }
    }

    /// Where the channels of a group of an image begin in the storage of `lhs`.
    fn start(&self, image: usize, group: usize) -> isize {
        let images = self.lhs.shape()[0] / self.batch_groups;
        let (image, channel) = if self.batch_groups > 1 {
            (group * images + image, 0)
        } else {
            (image, group * self.kernel.shape()[1])
        };
        let strides = self.lhs.strides();
        self.lhs.offset() as isize + image as isize * strides[0] + channel as isize * strides[1]
    }

    /// One image and group: blocks of whole result rows, each made into patches and multiplied.
    fn group<T: Pod>(
        &self,
        weights: ArrayView2<'_, T>,
        mut out: ArrayViewMut2<'_, T>,
        start: isize,
        multiply: Multiply<T>,
    ) {
        let width = self.axes[2].out_size();
        let rows = out.ncols() / width;
        let inner = weights.ncols();
        let at_once = (BLOCK / (inner * width)).clamp(1, rows);
        let mut patches = vec![T::zeroed(); inner * at_once * width];
        for (block, out) in out.axis_chunks_iter_mut(Axis(1), at_once * width).enumerate() {
            let patches = &mut patches[..inner * out.ncols()];
            if block > 0 {
                patches.fill(T::zeroed());
            }
            self.fill(patches, start, block * at_once, out.ncols() / width);
            if let Ok(patches) = ArrayView2::from_shape((inner, out.ncols()), patches) {
                multiply(weights, patches, out);
            }
        }
    }

    /// Writes the operand element under each kernel element (rows: channel, then kernel position)
    /// for `rows` result rows from `first` on; places in the padding stay zero.
    fn fill<T: Pod>(&self, patches: &mut [T], start: isize, first: usize, rows: usize) {
        let [depth, height, width] = self.axes;
        let data = self.lhs.storage::<T>();
        let runs: Vec<Run> = (0..width.window).map(|k| width.run(k)).collect();
        let (width, high) = (width.out_size(), height.out_size());
        let mut lines = patches.chunks_mut(rows * width);
        for channel in 0..self.kernel.shape()[1] {
            let start = start + channel as isize * self.lhs.strides()[1];
            for (kd, kh) in (0..depth.window).flat_map(|d| (0..height.window).map(move |h| (d, h)))
            {
                for (run, line) in runs.iter().zip(&mut lines) {
                    for (i, out) in line.chunks_mut(width).enumerate() {
                        let (d, h) = ((first + i) / high, (first + i) % high);
                        if let (Some(d), Some(h)) = (depth.input(d, kd), height.input(h, kh)) {
                            let start =
                                start + d as isize * self.strides[0] + h as isize * self.strides[1];
                            copy(out, data, *run, start, self.strides[2]);
                        }
                    }
                }
            }
        }
    }
}

fn copy<T: Copy>(out: &mut [T], data: &[T], run: Run, start: isize, stride: isize) {
    if run.count == 0 {
        return;
    }
    let mut at = start + run.input as isize * stride;
    let step = run.in_step as isize * stride;
    if step == 1 && run.out_step == 1 {
        return out[run.out..][..run.count].copy_from_slice(&data[at as usize..][..run.count]);
    }
    for o in out[run.out..].iter_mut().step_by(run.out_step).take(run.count) {
        *o = data[at as usize];
        at += step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Element;
    use half::bf16;

    fn counting<T: Element>(shape: &[usize], f: impl Fn(i64) -> T) -> HostArray {
        let shape = Shape::new(shape);
        let data: Vec<T> = (0..shape.size() as i64).map(|i| f((i * 7 + 3) % 11 - 5)).collect();
        HostArray::from_slice(&data, &shape).unwrap()
    }

    fn unravel(mut at: usize, shape: &[usize]) -> Vec<usize> {
        let mut index = vec![0; shape.len()];
        for (i, &size) in index.iter_mut().zip(shape).rev() {
            (*i, at) = (at % size, at / size);
        }
        index
    }

    fn ravel(index: &[usize], shape: &[usize]) -> usize {
        index.iter().zip(shape).fold(0, |at, (i, size)| at * size + i)
    }

    /// The definition, element by element over i64.
    fn naive(lhs: &HostArray, rhs: &HostArray, d: &ConvDims) -> Vec<i64> {
        let (x, w) = (lhs.to_vec::<i64>().unwrap(), rhs.to_vec::<i64>().unwrap());
        let (xs, ws) = (lhs.shape(), rhs.shape());
        let ys = d.out_shape(xs, ws);
        let channels = ws[d.rhs_in_feature];
        let window: Vec<usize> = d.rhs_spatial.iter().map(|&a| ws[a]).collect();
        let one = |at: usize| {
            let y = unravel(at, &ys);
            let (n, o) = (y[d.out_batch], y[d.out_feature]);
            let outs = ys[d.out_feature];
            let mut sum = 0;
            for tap in 0..channels * window.iter().product::<usize>() {
                let k = unravel(tap, &[&[channels], &window[..]].concat());
                let (mut xi, mut wi) = (vec![0; xs.rank()], vec![0; xs.rank()]);
                xi[d.lhs_batch] = n + o / (outs / d.batch_groups) * ys[d.out_batch];
                xi[d.lhs_feature] = k[0] + o / (outs / d.feature_groups) * channels;
                (wi[d.rhs_out_feature], wi[d.rhs_in_feature]) = (o, k[0]);
                let mut inside = true;
                for s in 0..window.len() {
                    let place = (y[d.out_spatial[s]] * d.strides[s] + k[s + 1] * d.rhs_dilation[s])
                        as i64
                        - d.padding[s].0;
                    let dilation = d.lhs_dilation[s] as i64;
                    let size = xs[d.lhs_spatial[s]] as i64;
                    inside &= place >= 0 && place % dilation == 0 && place / dilation < size;
                    xi[d.lhs_spatial[s]] = (place / dilation).max(0) as usize;
                    let last = window[s] - 1;
                    wi[d.rhs_spatial[s]] =
                        if d.window_reversal[s] { last - k[s + 1] } else { k[s + 1] };
                }
                if inside {
                    sum += x[ravel(&xi, xs)] * w[ravel(&wi, ws)];
                }
            }
            sum
        };
        (0..ys.size()).map(one).collect()
    }

    fn check(lhs: &[usize], rhs: &[usize], d: &ConvDims) {
        let expected = naive(&counting(lhs, |i| i), &counting(rhs, |i| i), d);
        let y = convolution(&counting(lhs, |i| i), &counting(rhs, |i| i), d, DType::I64);
        assert_eq!(y.to_vec::<i64>().unwrap(), expected, "i64 {lhs:?} {rhs:?} {d:?}");
        assert!(y.is_contiguous());
        let f = |i| i as f32;
        let y = convolution(&counting(lhs, f), &counting(rhs, f), d, DType::F32);
        let floats: Vec<f32> = expected.iter().map(|&v| v as f32).collect();
        assert_eq!(y.to_vec::<f32>().unwrap(), floats, "f32 {lhs:?} {rhs:?} {d:?}");
        let f = |i| bf16::from_f64(i as f64);
        let y = convolution(&counting(lhs, f), &counting(rhs, f), d, DType::F32);
        assert_eq!(y.to_vec::<f32>().unwrap(), floats, "bf16 {lhs:?} {rhs:?} {d:?}");
        let f = |i| Complex::new(0.0, i as f64);
        let y = convolution(&counting(lhs, f), &counting(rhs, f), d, DType::C128);
        let turned: Vec<_> = expected.iter().map(|&v| Complex::new(-v as f64, 0.0)).collect();
        assert_eq!(y.to_vec::<Complex<f64>>().unwrap(), turned, "c128 {lhs:?} {rhs:?} {d:?}");
    }

    #[test]
    fn by_hand() {
        let x = HostArray::from_slice(&[1i32, 2, 3, 4], &[1, 1, 4].into()).unwrap();
        let w = HostArray::from_slice(&[10i32, 1], &[1, 1, 2].into()).unwrap();
        let run = |d: &ConvDims| convolution(&x, &w, d, DType::I32).to_vec::<i32>().unwrap();
        let plain = ConvDims::new(1);
        assert_eq!(run(&plain), [12, 23, 34]);
        assert_eq!(run(&ConvDims { window_reversal: vec![true], ..plain.clone() }), [21, 32, 43]);
        let padded = ConvDims { padding: vec![(1, -1)], ..plain.clone() };
        assert_eq!(run(&padded), [1, 12, 23]);
        let holes = ConvDims { lhs_dilation: vec![2], ..plain };
        assert_eq!(run(&holes), [10, 2, 20, 3, 30, 4]);
    }

    #[test]
    fn windows_in_each_number_of_axes() {
        check(&[2, 3], &[4, 3], &ConvDims::new(0));
        for (stride, lhs_dilation, rhs_dilation) in [(1, 1, 1), (2, 1, 2), (1, 2, 1), (3, 2, 3)] {
            for padding in [(0, 0), (2, 1), (-1, 2), (1, -2)] {
                for spatial in 1..=3 {
                    let d = ConvDims {
                        strides: vec![stride; spatial],
                        lhs_dilation: vec![lhs_dilation; spatial],
                        rhs_dilation: vec![rhs_dilation; spatial],
                        padding: vec![padding; spatial],
                        window_reversal: vec![stride == 2; spatial],
                        ..ConvDims::new(spatial)
                    };
                    let sizes = [&[2usize, 2][..], &[7, 6, 8][..spatial]].concat();
                    let kernel = [&[3usize, 2][..], &[3, 2, 1][..spatial]].concat();
                    check(&sizes, &kernel, &d);
                }
            }
        }
    }

    #[test]
    fn groups() {
        let d = ConvDims { feature_groups: 3, padding: vec![(1, 1); 2], ..ConvDims::new(2) };
        check(&[2, 6, 5, 4], &[9, 2, 3, 3], &d);
        let d = ConvDims { feature_groups: 4, strides: vec![2; 2], ..ConvDims::new(2) };
        check(&[2, 4, 5, 6], &[4, 1, 3, 2], &d);
        let d = ConvDims { batch_groups: 2, ..ConvDims::new(1) };
        check(&[6, 3, 8], &[4, 3, 2], &d);
    }

    #[test]
    fn other_layouts_and_strides() {
        let d = ConvDims {
            lhs_batch: 0,
            lhs_spatial: vec![1, 2],
            lhs_feature: 3,
            rhs_spatial: vec![0, 1],
            rhs_in_feature: 2,
            rhs_out_feature: 3,
            out_batch: 3,
            out_spatial: vec![2, 0],
            out_feature: 1,
            ..ConvDims::new(2)
        };
        check(&[2, 5, 6, 3], &[2, 3, 3, 4], &d);
        let x = counting(&[5, 2, 3], |i| i).permute(&[1, 2, 0]).reverse(&[2]);
        let w = counting(&[2, 4, 3], |i| i).permute(&[1, 2, 0]);
        let y = convolution(&x, &w, &ConvDims::new(1), DType::I64);
        assert_eq!(y.to_vec::<i64>().unwrap(), naive(&x, &w, &ConvDims::new(1)));
    }

    #[test]
    fn large_in_blocks() {
        let d = ConvDims { padding: vec![(1, 1); 2], ..ConvDims::new(2) };
        let (x, w) = (counting(&[1, 16, 60, 70], |i| i), counting(&[2, 16, 3, 3], |i| i));
        const { assert!(16 * 9 * 60 * 70 > BLOCK, "more than one block") };
        let y = convolution(&cast(&x, DType::F32), &cast(&w, DType::F32), &d, DType::F32);
        let expected: Vec<f32> = naive(&x, &w, &d).into_iter().map(|v| v as f32).collect();
        assert_eq!(y.to_vec::<f32>().unwrap(), expected);
    }

    #[test]
    fn empty_and_bool() {
        let d = ConvDims::new(1);
        check(&[0, 2, 5], &[3, 2, 2], &d);
        check(&[2, 0, 5], &[3, 0, 2], &d);
        check(&[2, 1, 1], &[3, 1, 2], &d);
        let x = HostArray::from_slice(&[true, false, false, true], &[1, 1, 4].into()).unwrap();
        let w = HostArray::from_slice(&[true, false], &[1, 1, 2].into()).unwrap();
        let y = convolution(&x, &w, &d, DType::Bool);
        assert_eq!(y.to_vec::<bool>().unwrap(), [true, false, false]);
    }
}
