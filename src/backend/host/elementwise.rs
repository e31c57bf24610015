//! Element-wise kernels: walking strided operands, and the loops that a rule gives its function.
//!
//! The functions of one element are in [`super::number`].

use super::HostArray;
use crate::dtype::DType;
use crate::shape::Shape;
use bytemuck::Pod;
use rayon::prelude::*;

/// From this many elements on, a kernel is split over the cores.
pub(crate) const PARALLEL: usize = 1 << 16;
/// Elements of one piece of a kernel that is split.
const PIECE: usize = 1 << 14;

/// Storage types that a kernel may share between threads.
pub trait Data: Pod + Send + Sync {}
impl<T: Pod + Send + Sync> Data for T {}

/// A loop nest over one shape and the positions of `N` operands in it.
///
/// Adjacent axes are merged where all operands allow it, so that contiguous operands are one row.
#[derive(Debug)]
pub(crate) struct Nest<const N: usize> {
    outer: Vec<usize>,
    /// Per axis of `outer`, the operands' strides.
    steps: Vec<[isize; N]>,
    /// The length of one row.
    pub(crate) len: usize,
    /// The operands' strides along a row.
    pub(crate) inner: [isize; N],
    start: [isize; N],
}

impl<const N: usize> Nest<N> {
    /// The nest over `dims` with the strides of each operand and the position of its first element.
    pub(crate) fn new(dims: &[usize], strides: [&[isize]; N], start: [isize; N]) -> Nest<N> {
        let mut axes: Vec<(usize, [isize; N])> = Vec::with_capacity(dims.len());
        for (axis, &size) in dims.iter().enumerate().filter(|&(_, &size)| size != 1) {
            let step = strides.map(|s| s[axis]);
            match axes.last_mut() {
                Some((n, last)) if (0..N).all(|i| last[i] == step[i] * size as isize) => {
                    *n *= size;
                    *last = step;
                }
                _ => axes.push((size, step)),
            }
        }
        let (len, inner) = axes.pop().unwrap_or((1, [1; N]));
        let (outer, steps) = axes.into_iter().unzip();
        Nest { outer, steps, len, inner, start }
    }

    /// The nest over arrays of equal shape.
    pub(crate) fn over(arrays: [&HostArray; N]) -> Nest<N> {
        let strides = arrays.map(HostArray::strides);
        Nest::new(arrays[0].shape(), strides, arrays.map(|a| a.offset() as isize))
    }

    /// The number of elements.
    pub(crate) fn size(&self) -> usize {
        self.outer.iter().product::<usize>() * self.len
    }

    /// Calls `f(positions, n)` for each piece of a row in the elements `from..to` (row-major).
    pub(crate) fn segments(&self, from: usize, to: usize, mut f: impl FnMut([isize; N], usize)) {
        if from >= to {
            return;
        }
        let (mut row, mut column) = (from / self.len, from % self.len);
        let mut index = vec![0; self.outer.len()];
        let mut at = self.start;
        for axis in (0..index.len()).rev() {
            index[axis] = row % self.outer[axis];
            row /= self.outer[axis];
            shift(&mut at, &self.steps[axis], index[axis] as isize);
        }
        let mut left = to - from;
        loop {
            let n = left.min(self.len - column);
            let mut first = at;
            shift(&mut first, &self.inner, column as isize);
            f(first, n);
            left -= n;
            if left == 0 {
                return;
            }
            column = 0;
            self.advance(&mut index, &mut at);
        }
    }

    fn advance(&self, index: &mut [usize], at: &mut [isize; N]) {
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            shift(at, &self.steps[axis], 1);
            if index[axis] < self.outer[axis] {
                return;
            }
            shift(at, &self.steps[axis], -(index[axis] as isize));
            index[axis] = 0;
        }
    }

    /// Fills `out`, whose elements are this nest's in row-major order, by pieces of rows:
    /// `body(piece, positions)`. Pieces of `grain` elements run on all cores if there are several.
    ///
    /// The body is a `dyn` so that this and rayon are compiled once per storage type.
    pub(crate) fn fill<U: Data>(
        &self,
        out: &mut [U],
        grain: usize,
        body: &(dyn Fn(&mut [U], [isize; N]) + Sync),
    ) {
        debug_assert_eq!(out.len(), self.size(), "the output has the nest's size");
        let piece = |(i, mut piece): (usize, &mut [U])| {
            let from = i * grain;
            let to = from + piece.len();
            self.segments(from, to, |at, n| {
                let (row, rest) = std::mem::take(&mut piece).split_at_mut(n);
                piece = rest;
                body(row, at);
            });
        };
        if out.len() <= grain {
            piece((0, out));
        } else {
            out.par_chunks_mut(grain).enumerate().for_each(piece);
        }
    }
}

fn shift<const N: usize>(at: &mut [isize; N], step: &[isize; N], times: isize) {
    for (a, s) in at.iter_mut().zip(step) {
        *a += s * times;
    }
}

/// The piece size for an element-wise kernel over `size` elements.
fn grain(size: usize) -> usize {
    if size >= PARALLEL { PIECE } else { PARALLEL }
}

fn at<T: Copy>(data: &[T], start: isize, step: isize, i: usize) -> T {
    data[(start + step * i as isize) as usize]
}

fn row<T>(data: &[T], start: isize, n: usize) -> &[T] {
    &data[start as usize..start as usize + n]
}

/// `f` of each element, as a contiguous array of dtype `out`.
///
/// `T` and `U` are the storage types of the operand and the result (`u8` for bool).
pub fn map1<T: Data, U: Data>(
    x: &HostArray,
    out: DType,
    f: impl Fn(T) -> U + Sync + Send,
) -> HostArray {
    let data = x.storage::<T>();
    let nest = Nest::over([x]);
    let [step] = nest.inner;
    HostArray::build_as::<U>(out, x.shape(), |out| {
        let grain = grain(out.len());
        nest.fill(out, grain, &|out, [start]| match step {
            1 => {
                let xs = row(data, start, out.len());
                out.iter_mut().zip(xs).for_each(|(o, &x)| *o = f(x));
            }
            0 => out.fill(f(data[start as usize])),
            _ => out.iter_mut().enumerate().for_each(|(i, o)| *o = f(at(data, start, step, i))),
        });
    })
}

/// `f` of each pair of elements of two arrays of equal shape, as a contiguous array of dtype `out`.
pub fn map2<A: Data, B: Data, U: Data>(
    x: &HostArray,
    y: &HostArray,
    out: DType,
    f: impl Fn(A, B) -> U + Sync + Send,
) -> HostArray {
    debug_assert_eq!(x.shape(), y.shape(), "map2 takes equal shapes");
    let (xs, ys) = (x.storage::<A>(), y.storage::<B>());
    let nest = Nest::over([x, y]);
    let [p, q] = nest.inner;
    HostArray::build_as::<U>(out, x.shape(), |out| {
        let grain = grain(out.len());
        nest.fill(out, grain, &|out, [s, t]| {
            let n = out.len();
            match (p, q) {
                (1, 1) => {
                    let pairs = row(xs, s, n).iter().zip(row(ys, t, n));
                    out.iter_mut().zip(pairs).for_each(|(o, (&x, &y))| *o = f(x, y));
                }
                (1, 0) => {
                    let y = ys[t as usize];
                    out.iter_mut().zip(row(xs, s, n)).for_each(|(o, &x)| *o = f(x, y));
                }
                (0, 1) => {
                    let x = xs[s as usize];
                    out.iter_mut().zip(row(ys, t, n)).for_each(|(o, &y)| *o = f(x, y));
                }
                _ => {
                    for (i, o) in out.iter_mut().enumerate() {
                        *o = f(at(xs, s, p, i), at(ys, t, q, i));
                    }
                }
            }
        });
    })
}

/// `f` of each triple of elements of three arrays of equal shape, as a contiguous array.
pub fn map3<A: Data, B: Data, C: Data, U: Data>(
    [x, y, z]: [&HostArray; 3],
    out: DType,
    f: impl Fn(A, B, C) -> U + Sync + Send,
) -> HostArray {
    debug_assert!(x.shape() == y.shape() && y.shape() == z.shape(), "map3 takes equal shapes");
    let (xs, ys, zs) = (x.storage::<A>(), y.storage::<B>(), z.storage::<C>());
    let nest = Nest::over([x, y, z]);
    let [p, q, r] = nest.inner;
    HostArray::build_as::<U>(out, x.shape(), |out| {
        let grain = grain(out.len());
        nest.fill(out, grain, &|out, [s, t, u]| {
            let n = out.len();
            if (p, q, r) == (1, 1, 1) {
                let triples = row(xs, s, n).iter().zip(row(ys, t, n)).zip(row(zs, u, n));
                out.iter_mut().zip(triples).for_each(|(o, ((&x, &y), &z))| *o = f(x, y, z));
            } else {
                for (i, o) in out.iter_mut().enumerate() {
                    *o = f(at(xs, s, p, i), at(ys, t, q, i), at(zs, u, r, i));
                }
            }
        });
    })
}

/// A view of a scalar as an array of `shape`; an array that has the shape already stays as it is.
pub(crate) fn spread(x: &HostArray, shape: &Shape) -> HostArray {
    if x.shape() == shape {
        return x.clone();
    }
    debug_assert_eq!(x.shape().rank(), 0, "only a scalar is spread");
    x.broadcast_in_dim(shape, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Scalar;

    fn i32s(data: &[i32], shape: &Shape) -> HostArray {
        HostArray::from_slice(data, shape).unwrap()
    }

    #[test]
    fn map1_reads_any_strides() {
        let a = i32s(&[0, 1, 2, 3, 4, 5], &[2, 3].into());
        let double = |x: &HostArray| {
            let y = map1::<i32, i32>(x, DType::I32, |v| 2 * v);
            assert!(y.is_contiguous());
            y.to_vec::<i32>().unwrap()
        };
        assert_eq!(double(&a), [0, 2, 4, 6, 8, 10]);
        assert_eq!(double(&a.permute(&[1, 0])), [0, 6, 2, 8, 4, 10]);
        assert_eq!(double(&a.reverse(&[0, 1])), [10, 8, 6, 4, 2, 0]);
        assert_eq!(double(&HostArray::full(Scalar::new(7i32), &[2, 2].into())), [14; 4]);
        assert_eq!(double(&i32s(&[9], &().into())), [18]);
        assert_eq!(double(&i32s(&[], &[3, 0].into())), [0i32; 0]);
    }

    #[test]
    fn map2_broadcasts_rows_and_columns() {
        let a = i32s(&[0, 1, 2, 3, 4, 5], &[2, 3].into());
        let row = i32s(&[10, 20, 30], &[3].into()).broadcast_in_dim(&[2, 3].into(), &[1]);
        let col = i32s(&[100, 200], &[2].into()).broadcast_in_dim(&[2, 3].into(), &[0]);
        let sub = |x: &HostArray, y: &HostArray| {
            map2::<i32, i32, i32>(x, y, DType::I32, |x, y| x - y).to_vec::<i32>().unwrap()
        };
        assert_eq!(sub(&a, &row), [-10, -19, -28, -7, -16, -25]);
        assert_eq!(sub(&a, &col), [-100, -99, -98, -197, -196, -195]);
        assert_eq!(sub(&col, &a), [100, 99, 98, 197, 196, 195]);
        assert_eq!(sub(&col, &row), [90, 80, 70, 190, 180, 170]);
    }

    #[test]
    fn map3_mixes_strides() {
        let a = i32s(&[0, 1, 2, 3], &[2, 2].into());
        let one = HostArray::full(Scalar::new(1i32), &[2, 2].into());
        let fma = |x: &HostArray, y: &HostArray, z: &HostArray| {
            let y = map3::<i32, i32, i32, i32>([x, y, z], DType::I32, |x, y, z| x * y + z);
            y.to_vec::<i32>().unwrap()
        };
        assert_eq!(fma(&a, &a, &a), [0, 2, 6, 12]);
        assert_eq!(fma(&a, &a.permute(&[1, 0]), &one), [1, 3, 3, 10]);
    }

    #[test]
    fn large_arrays_are_split_without_a_seam() {
        let (rows, cols) = (300, 701);
        let data: Vec<i32> = (0..rows * cols).collect();
        let a = i32s(&data, &[rows as usize, cols as usize].into());
        assert_eq!(map1::<i32, i32>(&a, DType::I32, |v| v).to_vec::<i32>().unwrap(), data);
        let t = map1::<i32, i32>(&a.permute(&[1, 0]), DType::I32, |v| v);
        let expected: Vec<i32> =
            (0..cols).flat_map(|c| (0..rows).map(move |r| r * cols + c)).collect();
        assert_eq!(t.to_vec::<i32>().unwrap(), expected);
        let base: Vec<i32> = (0..cols).collect();
        let row = i32s(&base, &[701].into()).broadcast_in_dim(a.shape(), &[1]);
        let d = map2::<i32, i32, i32>(&a, &row, DType::I32, |x, y| x - y).to_vec::<i32>().unwrap();
        assert!(d.iter().enumerate().all(|(i, &v)| v == (i as i32 / cols) * cols), "{d:?}");
    }
}
