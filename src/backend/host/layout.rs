//! Kernels that move elements: padding, concatenation, slices at run-time positions.

use super::HostArray;
use super::elementwise::{Data, Nest};
use crate::shape::Shape;

/// Runs the body with `$T` standing for an unsigned integer of the dtype's size.
macro_rules! with_size {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype.size() {
            1 => with_size!(@ $T, u8, $body),
            2 => with_size!(@ $T, u16, $body),
            4 => with_size!(@ $T, u32, $body),
            8 => with_size!(@ $T, u64, $body),
            _ => with_size!(@ $T, u128, $body),
        }
    };
    (@ $T:ident, $ty:ty, $body:expr) => {{
        type $T = $ty;
        $body
    }};
}

/// `x` with `low[i]` values before, `high[i]` after and `interior[i]` between the elements of axis
/// `i`; negative `low` and `high` cut off. `value` is a scalar.
pub fn pad(
    x: &HostArray,
    value: &HostArray,
    low: &[i64],
    high: &[i64],
    interior: &[i64],
) -> HostArray {
    debug_assert_eq!(x.dtype(), value.dtype(), "pad takes equal dtypes");
    let rank = x.shape().rank();
    let mut dims = vec![0; rank];
    let (mut from, mut to) = (vec![0; rank], vec![0; rank]);
    let mut first = vec![0; rank];
    for i in 0..rank {
        let (n, step) = (x.shape()[i] as i64, interior[i] + 1);
        let size = (low[i] + high[i] + n + (n - 1).max(0) * interior[i]).max(0);
        let begin = steps_to(-low[i], step).min(n);
        let end = steps_to(size - low[i], step).clamp(begin, n);
        dims[i] = size as usize;
        (from[i], to[i]) = (begin as usize, end as usize);
        first[i] = (low[i] + begin * step) as isize;
    }
    let kept = x.slice(&from, &to, &vec![1; rank]);
    let shape = Shape::from(dims);
    with_size!(x.dtype(), T => {
        HostArray::build_as::<T>(x.dtype(), &shape, |out| {
            out.fill(value.storage::<T>()[value.offset()]);
            let strides = shape.strides();
            let steps: Vec<isize> =
                (0..rank).map(|i| strides[i] as isize * (interior[i] + 1) as isize).collect();
            let start = (0..rank).map(|i| strides[i] as isize * first[i]).sum();
            write_at(out, start, &steps, &kept);
        })
    })
}

/// The arrays, of equal dtype and of equal sizes elsewhere, one after the other along `axis`.
pub fn concatenate(operands: &[HostArray], axis: usize) -> HostArray {
    let size = operands.iter().map(|x| x.shape()[axis]).sum();
    let shape = operands[0].shape().with(axis, size);
    let dtype = operands[0].dtype();
    let steps: Vec<isize> = shape.strides().iter().map(|&s| s as isize).collect();
    with_size!(dtype, T => {
        HostArray::build_as::<T>(dtype, &shape, |out| {
            let mut start = 0;
            for x in operands {
                debug_assert_eq!(x.dtype(), dtype, "concatenate takes equal dtypes");
                write_at(out, start, &steps, x);
                start += x.shape()[axis] as isize * steps[axis];
            }
        })
    })
}

/// The part of `sizes` at `starts`, which are moved inwards so that it lies inside.
pub fn dynamic_slice(x: &HostArray, starts: &[i64], sizes: &[usize]) -> HostArray {
    let starts = inside(x.shape(), starts, sizes);
    let limits: Vec<usize> = starts.iter().zip(sizes).map(|(start, size)| start + size).collect();
    x.slice(&starts, &limits, &vec![1; sizes.len()]).contiguous()
}

/// `x` with `update` at `starts`, which are moved inwards so that it lies inside.
pub fn dynamic_update_slice(x: &HostArray, update: &HostArray, starts: &[i64]) -> HostArray {
    debug_assert_eq!(x.dtype(), update.dtype(), "dynamic_update_slice takes equal dtypes");
    let starts = inside(x.shape(), starts, update.shape());
    let steps: Vec<isize> = x.shape().strides().iter().map(|&s| s as isize).collect();
    let start = steps.iter().zip(&starts).map(|(step, &start)| step * start as isize).sum();
    with_size!(x.dtype(), T => {
        HostArray::build_as::<T>(x.dtype(), x.shape(), |out| {
            write_at(out, 0, &steps, x);
            write_at(out, start, &steps, update);
        })
    })
}

/// How many multiples of `step` from 0 on lie below `distance`.
fn steps_to(distance: i64, step: i64) -> i64 {
    (distance.max(0) + step - 1) / step
}

/// The starts nearest to the given ones from which `sizes` elements lie inside `shape`.
fn inside(shape: &[usize], starts: &[i64], sizes: &[usize]) -> Vec<usize> {
    let room = shape.iter().zip(sizes).map(|(dim, size)| (dim - size) as i64);
    starts.iter().zip(room).map(|(&start, room)| start.clamp(0, room) as usize).collect()
}

/// Writes `source` into `out` from position `start` on, its axes `steps` apart.
fn write_at<T: Data>(out: &mut [T], start: isize, steps: &[isize], source: &HostArray) {
    let data = source.storage::<T>();
    let first = [source.offset() as isize, start];
    let nest = Nest::new(source.shape(), [source.strides(), steps], first);
    let [p, q] = nest.inner;
    nest.segments(0, nest.size(), |[s, t], n| {
        if (p, q) == (1, 1) {
            let (s, t) = (s as usize, t as usize);
            out[t..t + n].copy_from_slice(&data[s..s + n]);
        } else {
            for i in 0..n as isize {
                out[(t + i * q) as usize] = data[(s + i * p) as usize];
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{DType, Scalar};

    fn i32s(data: &[i32], shape: impl Into<Shape>) -> HostArray {
        HostArray::from_slice(data, &shape.into()).unwrap()
    }

    fn read(x: &HostArray) -> Vec<i32> {
        assert!(x.is_contiguous(), "results are contiguous");
        x.to_vec::<i32>().unwrap()
    }

    #[test]
    fn pad_in_all_directions() {
        let (x, zero) = (i32s(&[1, 2, 3], [3]), i32s(&[0], ()));
        assert_eq!(read(&pad(&x, &zero, &[1], &[2], &[0])), [0, 1, 2, 3, 0, 0]);
        assert_eq!(read(&pad(&x, &zero, &[1], &[0], &[1])), [0, 1, 0, 2, 0, 3]);
        assert_eq!(read(&pad(&x, &zero, &[-1], &[0], &[0])), [2, 3]);
        assert_eq!(read(&pad(&x, &zero, &[-1], &[-1], &[1])), [0, 2, 0]);
        assert_eq!(read(&pad(&x, &zero, &[-2], &[1], &[1])), [2, 0, 3, 0]);
        assert_eq!(read(&pad(&x, &zero, &[-4], &[4], &[0])), [0, 0, 0]);
        assert_eq!(read(&pad(&x, &zero, &[4], &[-4], &[0])), [0, 0, 0]);
        assert_eq!(read(&pad(&x, &zero, &[-2], &[-2], &[0])), [0i32; 0]);
        assert_eq!(read(&pad(&i32s(&[], [0]), &zero, &[1], &[1], &[3])), [0, 0]);
        assert_eq!(read(&pad(&i32s(&[5], ()), &zero, &[], &[], &[])), [5]);
    }

    #[test]
    fn pad_of_a_transposed_matrix() {
        let x = i32s(&[1, 2, 3, 4], [2, 2]).permute(&[1, 0]);
        let y = pad(&x, &i32s(&[9], ()), &[0, 1], &[1, 0], &[0, 1]);
        assert_eq!(read(&y), [9, 1, 9, 3, 9, 2, 9, 4, 9, 9, 9, 9]);
    }

    #[test]
    fn concatenate_along_each_axis() {
        let (x, y) = (i32s(&[1, 2, 3, 4], [2, 2]), i32s(&[5, 6], [2, 1]));
        assert_eq!(read(&concatenate(&[x.clone(), y.clone()], 1)), [1, 2, 5, 3, 4, 6]);
        let row = y.permute(&[1, 0]);
        assert_eq!(read(&concatenate(&[x.clone(), row], 0)), [1, 2, 3, 4, 5, 6]);
        let empty = i32s(&[], [2, 0]);
        assert_eq!(read(&concatenate(&[empty, x.reverse(&[1])], 1)), [2, 1, 4, 3]);
        let wide = HostArray::full(Scalar::one(DType::C128), &[2].into());
        assert_eq!(concatenate(&[wide.clone(), wide], 0).shape().size(), 4);
    }

    #[test]
    fn dynamic_slices_are_moved_inside() {
        let x = i32s(&[0, 1, 2, 3, 4, 5], [2, 3]);
        assert_eq!(read(&dynamic_slice(&x, &[1, 0], &[1, 2])), [3, 4]);
        assert_eq!(read(&dynamic_slice(&x, &[9, 9], &[1, 2])), [4, 5]);
        assert_eq!(read(&dynamic_slice(&x, &[-5, 1], &[2, 1])), [1, 4]);
        let update = i32s(&[8, 9], [1, 2]);
        assert_eq!(read(&dynamic_update_slice(&x, &update, &[0, 9])), [0, 8, 9, 3, 4, 5]);
        let y = dynamic_update_slice(&x.permute(&[1, 0]), &i32s(&[7], [1, 1]), &[-1, 1]);
        assert_eq!(read(&y), [0, 7, 1, 4, 2, 5]);
    }
}
