//! `dot_general`, and the matrix products that it and the convolution stand on.

use super::HostArray;
use super::convert::convert;
use crate::dtype::DType;
use crate::shape::Shape;
use crate::with_dtype;
use bytemuck::Pod;
use half::{bf16, f16};
use ndarray::linalg::{general_mat_mul, general_mat_vec_mul};
use ndarray::{ArrayView2, ArrayViewMut2, Axis, LinalgScalar, ShapeBuilder, s};
use num_complex::Complex;
use num_traits::{AsPrimitive, WrappingAdd, WrappingMul};
use rayon::prelude::*;

/// Multiplications from which a product is split over the cores.
const PARALLEL: usize = 1 << 16;

/// The axes of a `dot_general`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct DotDims {
    /// `lhs_batching_dimensions`: axes of the left operand that pair up and stay.
    pub lhs_batch: Vec<usize>,
    /// `rhs_batching_dimensions`, in the order of `lhs_batch`.
    pub rhs_batch: Vec<usize>,
    /// `lhs_contracting_dimensions`: axes of the left operand that are summed over.
    pub lhs_contract: Vec<usize>,
    /// `rhs_contracting_dimensions`, in the order of `lhs_contract`.
    pub rhs_contract: Vec<usize>,
}

impl DotDims {
    /// Axes of the left operand that are neither batch nor contracting, in order.
    pub fn lhs_free(&self, rank: usize) -> Vec<usize> {
        free(rank, &self.lhs_batch, &self.lhs_contract)
    }

    /// Axes of the right operand that are neither batch nor contracting, in order.
    pub fn rhs_free(&self, rank: usize) -> Vec<usize> {
        free(rank, &self.rhs_batch, &self.rhs_contract)
    }

    /// The shape of the result: batch axes, free axes of `lhs`, free axes of `rhs`.
    pub fn out_shape(&self, lhs: &Shape, rhs: &Shape) -> Shape {
        let batch = self.lhs_batch.iter().map(|&a| lhs[a]);
        let rows = self.lhs_free(lhs.rank()).into_iter().map(|a| lhs[a]);
        let columns = self.rhs_free(rhs.rank()).into_iter().map(|a| rhs[a]);
        batch.chain(rows).chain(columns).collect()
    }
}

fn free(rank: usize, batch: &[usize], contract: &[usize]) -> Vec<usize> {
    (0..rank).filter(|a| !batch.contains(a) && !contract.contains(a)).collect()
}

/// The generalised product: sums over the contracting axes, pairs the batch axes; the result has
/// the batch axes, then the free axes of `lhs`, then those of `rhs`.
///
/// Operands have one dtype; the sum is formed in `out` if that is wider. f16 and bf16 sum in f32,
/// integers wrap around, `bool` is "or" of "and".
pub fn dot_general(lhs: &HostArray, rhs: &HostArray, dims: &DotDims, out: DType) -> HostArray {
    debug_assert_eq!(lhs.dtype(), rhs.dtype(), "operands of dot_general have one dtype");
    let compute = compute_dtype(lhs.dtype(), out);
    let (lhs, rhs) = (cast(lhs, compute), cast(rhs, compute));
    let result = match compute {
        DType::F32 => dot_as(&lhs, &rhs, dims, gemm::<f32>),
        DType::F64 => dot_as(&lhs, &rhs, dims, gemm::<f64>),
        DType::C64 => dot_as(&lhs, &rhs, dims, gemm::<Complex<f32>>),
        DType::C128 => dot_as(&lhs, &rhs, dims, gemm::<Complex<f64>>),
        DType::F16 => dot_half::<f16>(&lhs, &rhs, dims, out),
        DType::BF16 => dot_half::<bf16>(&lhs, &rhs, dims, out),
        DType::Bool => dot_as(&lhs, &rhs, dims, or_and),
        int => with_dtype!(int, int, T => dot_as(&lhs, &rhs, dims, wrapping::<T>), else lhs),
    };
    cast(&result, out)
}

/// The dtype that operands of `operand` are multiplied in when the result is `out`; f16 and bf16
/// stand for themselves with sums in f32.
fn compute_dtype(operand: DType, out: DType) -> DType {
    let half = matches!(operand, DType::F16 | DType::BF16);
    if half && matches!(out, DType::F16 | DType::BF16 | DType::F32) {
        return operand;
    }
    if out.size() >= operand.size() { out } else { operand }
}

fn dot_as<T: Pod + Send + Sync>(
    lhs: &HostArray,
    rhs: &HostArray,
    dims: &DotDims,
    multiply: Multiply<T>,
) -> HostArray {
    let shape = dims.out_shape(lhs.shape(), rhs.shape());
    let stacks = Stacks::new(lhs, rhs, dims);
    HostArray::build_as::<T>(lhs.dtype(), &shape, |out| stacks.run(out, multiply))
}

/// As [`dot_as`] for f16 and bf16: blocks become f32, and the sum is kept or rounded as `out` says.
fn dot_half<T>(lhs: &HostArray, rhs: &HostArray, dims: &DotDims, out: DType) -> HostArray
where
    T: Pod + Send + Sync + AsPrimitive<f32>,
    f32: AsPrimitive<T>,
{
    let shape = dims.out_shape(lhs.shape(), rhs.shape());
    let stacks = Stacks::new(lhs, rhs, dims);
    if out == DType::F32 {
        return HostArray::build_as::<f32>(out, &shape, |out| stacks.run::<T, f32>(out, half_gemm));
    }
    let rounded: Multiply<T> = |a, b, mut c| {
        let mut wide = ndarray::Array2::<f32>::zeros(c.raw_dim());
        half_gemm(a, b, wide.view_mut());
        c.zip_mut_with(&wide, |c, &w| *c = w.as_());
    };
    HostArray::build_as::<T>(lhs.dtype(), &shape, |out| stacks.run(out, rounded))
}

/// A product that adds `a · b` to `c`.
pub(super) type Multiply<T, O = T> = fn(ArrayView2<'_, T>, ArrayView2<'_, T>, ArrayViewMut2<'_, O>);

/// Both operands as stacks of matrices, `[batch, rows, inner]` and `[batch, inner, columns]`.
struct Stacks {
    lhs: Stack,
    rhs: Stack,
}

impl Stacks {
    fn new(lhs: &HostArray, rhs: &HostArray, dims: &DotDims) -> Stacks {
        let rows = dims.lhs_free(lhs.shape().rank());
        let columns = dims.rhs_free(rhs.shape().rank());
        Stacks {
            lhs: Stack::new(lhs, [&dims.lhs_batch, &rows, &dims.lhs_contract]),
            rhs: Stack::new(rhs, [&dims.rhs_batch, &dims.rhs_contract, &columns]),
        }
    }

    fn run<T: Pod + Send + Sync, O: Send>(&self, out: &mut [O], multiply: Multiply<T, O>) {
        let (rows, columns, inner) = (self.lhs.sizes[0], self.rhs.sizes[1], self.lhs.sizes[1]);
        if out.is_empty() || inner == 0 {
            return; // The result starts as zeros.
        }
        let one = |(i, c): (usize, &mut [O])| {
            let (a, b) = (self.lhs.matrix(i), self.rhs.matrix(i));
            if let (Some(a), Some(b), Ok(c)) = (a, b, ArrayViewMut2::from_shape((rows, columns), c))
            {
                multiply(a, b, c);
            }
        };
        if out.len() * inner < PARALLEL {
            out.chunks_mut(rows * columns).enumerate().for_each(one);
        } else {
            out.par_chunks_mut(rows * columns).enumerate().for_each(one);
        }
    }
}

/// An array seen as matrices: where each begins, their two sizes and strides.
struct Stack {
    array: HostArray,
    starts: Vec<usize>,
    sizes: [usize; 2],
    strides: [usize; 2],
}

impl Stack {
    /// Groups the axes as batch, first and second matrix axis; copies only where the strides of a
    /// group do not merge into one.
    fn new(x: &HostArray, groups: [&[usize]; 3]) -> Stack {
        let array = x.permute(&groups.concat());
        let split = [groups[0].len(), groups[0].len() + groups[1].len()];
        let merged = |array: &HostArray| {
            let (first, second) = (split[0]..split[1], split[1]..array.shape().rank());
            Some([merge(array, first)?, merge(array, second)?])
        };
        let (array, strides) = if let Some(strides) = merged(&array) {
            (array, strides)
        } else {
            let array = array.contiguous();
            let second: usize = array.shape()[split[1]..].iter().product();
            (array, [second.max(1), 1])
        };
        let sizes = [split[0]..split[1], split[1]..array.shape().rank()]
            .map(|axes| array.shape()[axes].iter().product());
        let starts = starts(&array, split[0]);
        Stack { array, starts, sizes, strides }
    }

    fn matrix<T: Pod>(&self, i: usize) -> Option<ArrayView2<'_, T>> {
        let shape = (self.sizes[0], self.sizes[1]).strides((self.strides[0], self.strides[1]));
        ArrayView2::from_shape(shape, &self.array.storage::<T>()[self.starts[i]..]).ok()
    }
}

/// The one positive stride that stands for the given neighbouring axes.
fn merge(array: &HostArray, axes: std::ops::Range<usize>) -> Option<usize> {
    let mut stride = None;
    let mut expected = 0;
    for axis in axes.rev().filter(|&a| array.shape()[a] != 1) {
        let own = array.strides()[axis];
        if own <= 0 || stride.is_some() && own != expected {
            return None;
        }
        stride.get_or_insert(own as usize);
        expected = own * array.shape()[axis] as isize;
    }
    Some(stride.unwrap_or(1))
}

/// The position in the storage of each index of the first `axes` axes, row-major.
fn starts(array: &HostArray, axes: usize) -> Vec<usize> {
    let mut starts = vec![array.offset() as isize];
    for (&size, &stride) in array.shape().iter().zip(array.strides()).take(axes) {
        let step = |&start: &isize| (0..size as isize).map(move |i| start + i * stride);
        starts = starts.iter().flat_map(step).collect();
    }
    starts.into_iter().map(|s| s as usize).collect()
}

/// Adds `a · b` to `c` for floats and complex numbers, over all cores if large.
pub(super) fn gemm<T>(a: ArrayView2<'_, T>, b: ArrayView2<'_, T>, c: ArrayViewMut2<'_, T>)
where
    T: LinalgScalar + Send + Sync,
{
    blocks(a, b, c, |a, b, mut c| {
        let one = T::one();
        if c.ncols() == 1 {
            matrix_vector(a, b.column(0), c.column_mut(0));
        } else if c.nrows() == 1 {
            matrix_vector(b.t(), a.row(0), c.row_mut(0));
        } else {
            general_mat_mul(one, &a, &b, one, &mut c);
        }
    });
}

/// Adds `a · x` to `y`, along the axis of `a` that lies in memory in order.
fn matrix_vector<T: LinalgScalar>(
    a: ArrayView2<'_, T>,
    x: ndarray::ArrayView1<'_, T>,
    mut y: ndarray::ArrayViewMut1<'_, T>,
) {
    if a.strides()[1] == 1 || a.ncols() == 1 && a.strides()[0] != 1 {
        return general_mat_vec_mul(T::one(), &a, &x, T::one(), &mut y);
    }
    for (column, &x) in a.columns().into_iter().zip(x) {
        y.zip_mut_with(&column, |y, &a| *y = *y + a * x);
    }
}

/// Adds `a · b` to `c`, block by block of f32.
fn half_gemm<T>(a: ArrayView2<'_, T>, b: ArrayView2<'_, T>, c: ArrayViewMut2<'_, f32>)
where
    T: Copy + Send + Sync + AsPrimitive<f32>,
{
    // The smaller operand is converted once, the other one in blocks as they are needed.
    if a.len() <= b.len() {
        let a = a.mapv(AsPrimitive::as_);
        blocks(b.t(), a.t(), c.reversed_axes(), |b, a, mut c| {
            gemm(b.mapv(AsPrimitive::as_).view(), a, c.view_mut());
        });
    } else {
        let b = b.mapv(AsPrimitive::as_);
        blocks(a, b.view(), c, |a, b, c| gemm(a.mapv(AsPrimitive::as_).view(), b, c));
    }
}

/// Splits the rows of `a` and `c`, or the columns of `b` and `c`, whichever there are more of, and
/// works on the blocks in parallel.
fn blocks<A, B, C>(
    a: ArrayView2<'_, A>,
    b: ArrayView2<'_, B>,
    mut c: ArrayViewMut2<'_, C>,
    block: impl Fn(ArrayView2<'_, A>, ArrayView2<'_, B>, ArrayViewMut2<'_, C>) + Sync,
) where
    A: Send + Sync,
    B: Send + Sync,
    C: Send + Sync,
{
    let threads = rayon::current_num_threads();
    let (rows, columns) = c.dim();
    if threads == 1 || rows * columns * a.ncols() < PARALLEL {
        return block(a, b, c);
    }
    let axis = Axis(usize::from(columns > rows));
    // A multiple of the micro kernel's width, so that blocks have no ragged edges inside.
    let size = rows.max(columns).div_ceil(threads).next_multiple_of(16);
    let parts: Vec<_> = c.axis_chunks_iter_mut(axis, size).enumerate().collect();
    parts.into_par_iter().for_each(|(i, c)| {
        let start = i * size;
        if axis.index() == 0 {
            block(a.slice(s![start..start + c.nrows(), ..]), b, c);
        } else {
            block(a, b.slice(s![.., start..start + c.ncols()]), c);
        }
    });
}

/// Adds `a · b` to `c`, wrapping around.
pub(super) fn wrapping<T>(a: ArrayView2<'_, T>, b: ArrayView2<'_, T>, c: ArrayViewMut2<'_, T>)
where
    T: Copy + Send + Sync + WrappingAdd + WrappingMul,
{
    blocks(a, b, c, |a, b, c| rows(a, b, c, |c, a, b| c.wrapping_add(&a.wrapping_mul(&b))));
}

/// Ors `a · b` into `c`, all of bytes that are 0 or 1.
pub(super) fn or_and(a: ArrayView2<'_, u8>, b: ArrayView2<'_, u8>, c: ArrayViewMut2<'_, u8>) {
    blocks(a, b, c, |a, b, c| rows(a, b, c, |c, a, b| c | (a & b)));
}

fn rows<T: Copy>(
    a: ArrayView2<'_, T>,
    b: ArrayView2<'_, T>,
    mut c: ArrayViewMut2<'_, T>,
    step: impl Fn(T, T, T) -> T,
) {
    let b = b.as_standard_layout();
    for (a, mut c) in a.rows().into_iter().zip(c.rows_mut()) {
        for (&a, b) in a.iter().zip(b.rows()) {
            c.zip_mut_with(&b, |c, &b| *c = step(*c, a, b));
        }
    }
}

/// `x` as `to`, by [`convert`]; the same dtype shares `x`, strides and all.
pub(super) fn cast(x: &HostArray, to: DType) -> HostArray {
    if x.dtype() == to { x.clone() } else { convert(x, to) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Element;

    fn counting<T: Element>(shape: &[usize], f: impl Fn(i64) -> T) -> HostArray {
        let shape = Shape::new(shape);
        let data: Vec<T> = (0..shape.size() as i64).map(|i| f((i * 7 + 3) % 11 - 5)).collect();
        HostArray::from_slice(&data, &shape).unwrap()
    }

    fn dims(lb: &[usize], rb: &[usize], lc: &[usize], rc: &[usize]) -> DotDims {
        DotDims {
            lhs_batch: lb.to_vec(),
            rhs_batch: rb.to_vec(),
            lhs_contract: lc.to_vec(),
            rhs_contract: rc.to_vec(),
        }
    }

    /// `[b, m, k] · [b, k, n]` by three loops over i64.
    fn naive(a: &[i64], b: &[i64], [batch, m, k, n]: [usize; 4]) -> Vec<i64> {
        let mut out = vec![0; batch * m * n];
        for (at, o) in out.iter_mut().enumerate() {
            let (i, row, col) = (at / (m * n), at / n % m, at % n);
            *o = (0..k).map(|x| a[(i * m + row) * k + x] * b[(i * k + x) * n + col]).sum();
        }
        out
    }

    const BATCHED: [usize; 4] = [2, 3, 4, 5];

    fn batched<T: Element>(f: impl Fn(i64) -> T, out: DType) -> (HostArray, Vec<i64>) {
        let (a, b) = (counting(&[2, 3, 4], &f), counting(&[2, 4, 5], &f));
        let ints = |s| counting(s, |i| i).to_vec::<i64>().unwrap();
        let expected = naive(&ints(&[2, 3, 4]), &ints(&[2, 4, 5]), BATCHED);
        (dot_general(&a, &b, &dims(&[0], &[0], &[2], &[1]), out), expected)
    }

    #[test]
    fn every_dtype_in_batches() {
        let (y, e) = batched(|i| i as f32, DType::F32);
        assert_eq!(y.to_vec::<f32>().unwrap(), e.iter().map(|&v| v as f32).collect::<Vec<_>>());
        let (y, e) = batched(|i| i as f64, DType::F64);
        assert_eq!(y.to_vec::<f64>().unwrap(), e.iter().map(|&v| v as f64).collect::<Vec<_>>());
        let (y, e) = batched(|i| f16::from_f64(i as f64), DType::F16);
        let expected: Vec<_> = e.iter().map(|&v| f16::from_f64(v as f64)).collect();
        assert_eq!(y.to_vec::<f16>().unwrap(), expected);
        let (y, e) = batched(|i| bf16::from_f64(i as f64), DType::F32);
        assert_eq!(y.to_vec::<f32>().unwrap(), e.iter().map(|&v| v as f32).collect::<Vec<_>>());
        let (y, e) = batched(|i| i as i8, DType::I8);
        assert_eq!(y.to_vec::<i8>().unwrap(), e.iter().map(|&v| v as i8).collect::<Vec<_>>());
        let (y, e) = batched(|i| i as i8, DType::I64);
        assert_eq!(y.to_vec::<i64>().unwrap(), e);
        let (y, e) = batched(|i| i as u64, DType::U64);
        assert_eq!(y.to_vec::<u64>().unwrap(), e.iter().map(|&v| v as u64).collect::<Vec<_>>());
        // (i·v)(i·w) = -vw
        let (y, e) = batched(|i| Complex::new(0.0, i as f32), DType::C64);
        let expected: Vec<_> = e.iter().map(|&v| Complex::new(-v as f32, 0.0)).collect();
        assert_eq!(y.to_vec::<Complex<f32>>().unwrap(), expected);
    }

    #[test]
    fn bool_is_or_of_and() {
        let a = HostArray::from_slice(&[true, false, false, true], &[2, 2].into()).unwrap();
        let b = HostArray::from_slice(&[false, true, true, true], &[2, 2].into()).unwrap();
        let y = dot_general(&a, &b, &dims(&[], &[], &[1], &[0]), DType::Bool);
        assert_eq!(y.to_vec::<bool>().unwrap(), [false, true, true, true]);
        let counts = dot_general(&b, &b, &dims(&[], &[], &[0], &[0]), DType::I32);
        assert_eq!(counts.to_vec::<i32>().unwrap(), [1, 1, 1, 2]);
        let y = dot_general(&b, &b, &dims(&[], &[], &[0], &[0]), DType::Bool);
        assert_eq!(y.to_vec::<bool>().unwrap(), [true; 4]);
    }

    #[test]
    fn bf16_sums_in_f32() {
        let ones = HostArray::full(crate::Scalar::new(bf16::ONE), &[1, 1000].into());
        let y = dot_general(&ones, &ones, &dims(&[], &[], &[1], &[1]), DType::BF16);
        assert_eq!(y.to_vec::<bf16>().unwrap(), [bf16::from_f32(1000.0)]);
    }

    #[test]
    fn strided_reversed_and_broadcast_operands() {
        let a = counting(&[4, 3], |i| i as f32);
        let b = counting(&[5, 4], |i| i as f32);
        let d = dims(&[], &[], &[1], &[0]);
        for (a, b) in [
            (a.permute(&[1, 0]), b.permute(&[1, 0])),
            (a.permute(&[1, 0]).reverse(&[0]), b.permute(&[1, 0]).reverse(&[0, 1])),
            (
                a.slice(&[0, 0], &[4, 3], &[2, 1]).permute(&[1, 0]),
                b.slice(&[0, 0], &[2, 4], &[1, 1]),
            ),
            (
                b.slice(&[0, 1], &[5, 3], &[1, 1]).broadcast_in_dim(&[5, 2].into(), &[0, 1]),
                HostArray::full(crate::Scalar::new(2f32), &[2, 3].into()),
            ),
        ] {
            let [m, k, n] = [a.shape()[0], a.shape()[1], b.shape()[1]];
            let ints = |x: &HostArray| -> Vec<i64> {
                x.to_vec::<f32>().unwrap().iter().map(|&v| v as i64).collect()
            };
            let expected = naive(&ints(&a), &ints(&b), [1, m, k, n]);
            assert_eq!(ints(&dot_general(&a, &b, &d, DType::F32)), expected, "{a:?} {b:?}");
        }
    }

    #[test]
    fn many_axes_contract_and_stay() {
        // out[b, i, j, l] = sum over p, q of lhs[p, i, b, q, j] * rhs[q, l, p, b]
        let lhs = counting(&[2, 3, 2, 4, 2], |i| i);
        let rhs = counting(&[4, 3, 2, 2], |i| i);
        let y = dot_general(&lhs, &rhs, &dims(&[2], &[3], &[0, 3], &[2, 0]), DType::I64);
        assert_eq!(y.shape().dims(), [2, 3, 2, 3]);
        let (a, b) = (lhs.to_vec::<i64>().unwrap(), rhs.to_vec::<i64>().unwrap());
        let mut expected = vec![];
        for at in 0..36 {
            let (batch, i, j, l) = (at / 18, at / 6 % 3, at / 3 % 2, at % 3);
            let term = |p: usize, q: usize| {
                a[(((p * 3 + i) * 2 + batch) * 4 + q) * 2 + j]
                    * b[((q * 3 + l) * 2 + p) * 2 + batch]
            };
            expected.push((0..8).map(|pq| term(pq / 4, pq % 4)).sum::<i64>());
        }
        assert_eq!(y.to_vec::<i64>().unwrap(), expected);
    }

    #[test]
    fn large_products_and_vectors_over_cores() {
        for [m, k, n] in [[70, 50, 90], [1, 300, 300], [300, 300, 1], [40, 2000, 1]] {
            let ints = |s: &[usize]| counting(s, |i| i).to_vec::<i64>().unwrap();
            let expected = naive(&ints(&[m, k]), &ints(&[k, n]), [1, m, k, n]);
            let d = dims(&[], &[], &[1], &[0]);
            let turned = dims(&[], &[], &[0], &[1]);
            let check = |y: HostArray| {
                let y: Vec<i64> = y.to_vec::<f32>().unwrap().iter().map(|&v| v as i64).collect();
                assert_eq!(y, expected, "{m} {k} {n}");
            };
            let (a, b) = (counting(&[m, k], |i| i as f32), counting(&[k, n], |i| i as f32));
            check(dot_general(&a, &b, &d, DType::F32));
            let (at, bt) = (a.permute(&[1, 0]).contiguous(), b.permute(&[1, 0]).contiguous());
            check(dot_general(&at, &bt, &turned, DType::F32));
            let h = |i| bf16::from_f64(i as f64);
            let (a, b) = (counting(&[m, k], h), counting(&[k, n], h));
            check(dot_general(&a, &b, &d, DType::F32));
            let y =
                dot_general(&counting(&[m, k], |i| i), &counting(&[k, n], |i| i), &d, DType::I64);
            assert_eq!(y.to_vec::<i64>().unwrap(), expected);
        }
    }

    #[test]
    fn empty_and_scalar() {
        let d = dims(&[], &[], &[1], &[0]);
        let y = dot_general(
            &counting(&[2, 0], |i| i as f32),
            &counting(&[0, 3], |i| i as f32),
            &d,
            DType::F32,
        );
        assert_eq!(y.to_vec::<f32>().unwrap(), [0.0; 6]);
        let y = dot_general(&counting(&[0, 2], |i| i), &counting(&[2, 3], |i| i), &d, DType::I64);
        assert_eq!(y.shape().dims(), [0, 3]);
        let two = HostArray::full(crate::Scalar::new(2i32), &Shape::scalar());
        let y = dot_general(&two, &two, &DotDims::default(), DType::I32);
        assert_eq!(y.to_vec::<i32>().unwrap(), [4]);
    }
}
