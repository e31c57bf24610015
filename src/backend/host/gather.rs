//! `gather` and `scatter`.

use super::HostArray;
use super::combine::Combine;
use crate::dtype::{DType, Scalar};
use crate::shape::{Shape, inverse_permutation};
use crate::with_dtype;
use bytemuck::Pod;
use num_traits::AsPrimitive;
use rayon::prelude::*;

/// Elements moved from which the work is split over the cores.
const PARALLEL: usize = 1 << 16;

/// What happens to a slice that does not lie inside the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexMode {
    /// Its start is moved to the nearest place where it fits.
    Clip,
    /// A gather fills it (NaN for floats, the smallest value for signed integers, the largest for
    /// unsigned ones, `true` for `bool`); a scatter leaves it out.
    FillOrDrop,
    /// The caller promises that there is none. If there is: a gather clips, a scatter leaves it out.
    PromiseInBounds,
}

/// The axes of a `gather`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct GatherDims {
    /// Axes of the result that index into a slice, ascending.
    pub offset_dims: Vec<usize>,
    /// Axes of the operand with slice size 1 that the result lacks, ascending.
    pub collapsed_slice_dims: Vec<usize>,
    /// Axes of the operand that pair up with axes of the indices, ascending.
    pub operand_batching_dims: Vec<usize>,
    /// The axes of the indices that pair up with `operand_batching_dims`.
    pub start_indices_batching_dims: Vec<usize>,
    /// The operand axis that each component of an index vector is for.
    pub start_index_map: Vec<usize>,
    /// The axis of the indices that holds the vectors; their rank if each index is a vector of one.
    pub index_vector_dim: usize,
}

impl GatherDims {
    /// The shape of the result.
    pub fn out_shape(&self, indices: &Shape, slice_sizes: &[usize]) -> Shape {
        let batch: Vec<usize> = without(indices, &[self.index_vector_dim]);
        let window = without(slice_sizes, &self.removed());
        let mut shape: Vec<usize> = batch.iter().chain(&window).copied().collect();
        for (from, &to) in self.order(shape.len()).iter().enumerate() {
            shape[to] = if from < batch.len() { batch[from] } else { window[from - batch.len()] };
        }
        Shape::from(shape)
    }

    /// Operand axes that no axis of a slice stands for.
    fn removed(&self) -> Vec<usize> {
        [self.collapsed_slice_dims.as_slice(), &self.operand_batching_dims].concat()
    }

    /// The result axis of each axis in the order batch, then slice.
    fn order(&self, rank: usize) -> Vec<usize> {
        order(&self.offset_dims, rank)
    }

    fn starts(&self) -> Starts<'_> {
        Starts {
            map: &self.start_index_map,
            vector_dim: self.index_vector_dim,
            operand_batch: &self.operand_batching_dims,
            indices_batch: &self.start_indices_batching_dims,
        }
    }
}

/// The axes of a `scatter`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct ScatterDims {
    /// Axes of the updates that index into a window, ascending.
    pub update_window_dims: Vec<usize>,
    /// Axes of the operand with window size 1 that the updates lack, ascending.
    pub inserted_window_dims: Vec<usize>,
    /// Axes of the operand that pair up with axes of the indices, ascending.
    pub input_batching_dims: Vec<usize>,
    /// The axes of the indices that pair up with `input_batching_dims`.
    pub scatter_indices_batching_dims: Vec<usize>,
    /// The operand axis that each component of an index vector is for.
    pub scatter_dims_to_operand_dims: Vec<usize>,
    /// The axis of the indices that holds the vectors; their rank if each index is a vector of one.
    pub index_vector_dim: usize,
}

impl ScatterDims {
    fn starts(&self) -> Starts<'_> {
        Starts {
            map: &self.scatter_dims_to_operand_dims,
            vector_dim: self.index_vector_dim,
            operand_batch: &self.input_batching_dims,
            indices_batch: &self.scatter_indices_batching_dims,
        }
    }

    /// The size of a window along each operand axis, from the shape of the updates.
    pub fn window(&self, rank: usize, updates: &Shape) -> Vec<usize> {
        let mut sizes = self.update_window_dims.iter().map(|&a| updates[a]);
        let removed =
            |a| self.inserted_window_dims.contains(&a) || self.input_batching_dims.contains(&a);
        (0..rank).map(|a| if removed(a) { 1 } else { sizes.next().unwrap_or(1) }).collect()
    }
}

/// How an update meets the element that it falls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterKind {
    /// Replaces it; the last one stays.
    Set,
    /// Is added; integers wrap around, `bool` is "or".
    Add,
    /// Is multiplied; integers wrap around, `bool` is "and".
    Mul,
    /// The smaller one stays; NaN wins. Not for complex numbers.
    Min,
    /// The larger one stays; NaN wins. Not for complex numbers.
    Max,
}

/// Slices of `operand` of size `slice_sizes`, one for each index vector of `indices` (of any
/// integer dtype), which says where it starts.
pub fn gather(
    operand: &HostArray,
    indices: &HostArray,
    dims: &GatherDims,
    slice_sizes: &[usize],
    mode: IndexMode,
) -> HostArray {
    gather_filled(operand, indices, dims, slice_sizes, mode, fill_value(operand.dtype()))
}

/// As [`gather`], with the value that [`IndexMode::FillOrDrop`] fills with; it has the dtype of
/// `operand`.
pub fn gather_filled(
    operand: &HostArray,
    indices: &HostArray,
    dims: &GatherDims,
    slice_sizes: &[usize],
    mode: IndexMode,
    fill: Scalar,
) -> HostArray {
    debug_assert_eq!(fill.dtype(), operand.dtype(), "the fill value has the operand's dtype");
    match operand.dtype().size() {
        1 => gather_as::<u8>(operand, indices, dims, slice_sizes, mode, fill),
        2 => gather_as::<u16>(operand, indices, dims, slice_sizes, mode, fill),
        4 => gather_as::<u32>(operand, indices, dims, slice_sizes, mode, fill),
        8 => gather_as::<u64>(operand, indices, dims, slice_sizes, mode, fill),
        _ => gather_as::<u128>(operand, indices, dims, slice_sizes, mode, fill),
    }
}

fn gather_as<T: Pod + Send + Sync>(
    operand: &HostArray,
    indices: &HostArray,
    dims: &GatherDims,
    slice_sizes: &[usize],
    mode: IndexMode,
    fill: Scalar,
) -> HostArray {
    let starts = dims.starts().places(operand, indices, slice_sizes, mode != IndexMode::FillOrDrop);
    let window = Window::new(slice_sizes, operand.strides());
    let shape = dims.out_shape(indices.shape(), slice_sizes);
    let order = dims.order(shape.rank());
    // First as [batch.., slice..], then in the order of the result's axes.
    let direct: Shape = order.iter().map(|&a| shape[a]).collect();
    let fill: T = bytemuck::pod_read_unaligned(fill.bytes());
    let data = operand.storage::<T>();
    let one = |(out, start): (&mut [T], &Option<isize>)| match *start {
        Some(start) => window.read(data, start, out),
        None => out.fill(fill),
    };
    let out = HostArray::build_as::<T>(operand.dtype(), &direct, |out| {
        let size = window.size().max(1);
        if out.len() < PARALLEL {
            out.chunks_mut(size).zip(&starts).for_each(one);
        } else {
            let at_least = (PARALLEL / 16 / size).max(1);
            out.par_chunks_mut(size).zip(&starts).with_min_len(at_least).for_each(one);
        }
    });
    out.permute(&inverse_permutation(&order)).contiguous()
}

/// What [`IndexMode::FillOrDrop`] fills a slice with unless it is told otherwise.
pub fn fill_value(dtype: DType) -> Scalar {
    match dtype {
        d if d.is_differentiable() => Scalar::from_f64(d, f64::NAN),
        d if d.is_int() && !d.is_unsigned() => Scalar::min_value(d),
        d => Scalar::max_value(d),
    }
}

/// `operand` with each window of `updates` put where its index vector in `indices` says.
///
/// A window that does not lie inside the operand is left out as a whole, or moved under
/// [`IndexMode::Clip`]. Updates of one element are applied in row-major order of the indices.
pub fn scatter(
    operand: &HostArray,
    indices: &HostArray,
    updates: &HostArray,
    dims: &ScatterDims,
    kind: ScatterKind,
    mode: IndexMode,
) -> HostArray {
    debug_assert_eq!(operand.dtype(), updates.dtype(), "operands of a scatter have one dtype");
    let operand = operand.contiguous();
    let window = dims.window(operand.shape().rank(), updates.shape());
    let starts = dims.starts().places(&operand, indices, &window, mode == IndexMode::Clip);
    let base = operand.offset() as isize;
    let starts: Vec<Option<isize>> = starts.into_iter().map(|s| Some(s? - base)).collect();
    let order = order(&dims.update_window_dims, updates.shape().rank());
    let updates = updates.permute(&order).contiguous();
    let plan = Scatter { starts, window: Window::new(&window, operand.strides()) };
    if operand.dtype() == DType::Bool {
        // On bytes that are 0 or 1 "or" is the maximum and "and" the minimum.
        let kind = match kind {
            ScatterKind::Add => ScatterKind::Max,
            ScatterKind::Mul => ScatterKind::Min,
            other => other,
        };
        return plan.run::<u8>(&operand, &updates, kind);
    }
    with_dtype!(number, operand.dtype(), T => plan.run::<T>(&operand, &updates, kind), else operand)
}

/// Where the windows begin in the contiguous operand, and their form.
struct Scatter {
    starts: Vec<Option<isize>>,
    window: Window,
}

impl Scatter {
    fn run<T: Combine>(
        &self,
        operand: &HostArray,
        updates: &HostArray,
        kind: ScatterKind,
    ) -> HostArray {
        let source = operand.as_contiguous::<T>().unwrap_or_default();
        let updates = updates.as_contiguous::<T>().unwrap_or_default();
        let apply: fn(&mut [T], &[T]) = match kind {
            ScatterKind::Set => |out, new| out.copy_from_slice(new),
            ScatterKind::Add => |out, new| each(out, new, T::sum),
            ScatterKind::Mul => |out, new| each(out, new, T::product),
            ScatterKind::Min => |out, new| each(out, new, T::smaller),
            ScatterKind::Max => |out, new| each(out, new, T::larger),
        };
        HostArray::build_as::<T>(operand.dtype(), operand.shape(), |out| {
            out.copy_from_slice(source);
            if updates.is_empty() {
                return;
            }
            match self.aligned_row() {
                Some(row) if updates.len() >= PARALLEL => self.by_rows(out, updates, row, apply),
                _ => self.in_order(out, updates, apply),
            }
        })
    }

    fn in_order<T: Copy>(&self, out: &mut [T], updates: &[T], apply: fn(&mut [T], &[T])) {
        for (new, start) in updates.chunks(self.window.size()).zip(&self.starts) {
            if let Some(start) = *start {
                self.window.write(out, start, new, apply);
            }
        }
    }

    /// The length of a window that is one run of memory and always begins at a multiple of itself.
    fn aligned_row(&self) -> Option<usize> {
        let row = self.window.size();
        let runs = self.window.stride == 1 && self.window.outer.is_empty();
        let aligned = |s: &Option<isize>| s.is_none_or(|s| (s as usize).is_multiple_of(row));
        (runs && row >= 8 && self.starts.iter().all(aligned)).then_some(row)
    }

    /// Each core owns a part of the rows and applies the updates that fall there, in order.
    fn by_rows<T: Pod + Send + Sync>(
        &self,
        out: &mut [T],
        updates: &[T],
        row: usize,
        apply: fn(&mut [T], &[T]),
    ) {
        let part = (out.len() / row).div_ceil(rayon::current_num_threads()).max(1) * row;
        out.par_chunks_mut(part).enumerate().for_each(|(i, out)| {
            let own = i * part..i * part + out.len();
            for (new, start) in updates.chunks(row).zip(&self.starts) {
                let Some(start) = start.map(|s| s as usize).filter(|s| own.contains(s)) else {
                    continue;
                };
                apply(&mut out[start - own.start..][..row], new);
            }
        });
    }
}

#[inline]
fn each<T: Copy>(out: &mut [T], new: &[T], f: impl Fn(T, T) -> T) {
    for (o, &n) in out.iter_mut().zip(new) {
        *o = f(*o, n);
    }
}

/// How index vectors name places of an operand, for gather and scatter alike.
struct Starts<'a> {
    map: &'a [usize],
    vector_dim: usize,
    operand_batch: &'a [usize],
    indices_batch: &'a [usize],
}

impl Starts<'_> {
    /// The storage position at which each slice begins, in row-major order of the index vectors;
    /// `None` for one that does not fit, unless `clip` moves it.
    fn places(
        &self,
        operand: &HostArray,
        indices: &HostArray,
        sizes: &[usize],
        clip: bool,
    ) -> Vec<Option<isize>> {
        let mut batch = indices.shape().to_vec();
        if self.vector_dim < batch.len() {
            batch.remove(self.vector_dim);
        }
        let count = batch.iter().product();
        let base = self.batch_offsets(operand, &batch);
        let vectors = self.components(indices);
        let (shape, strides) = (operand.shape(), operand.strides());
        let place = |i: usize| {
            let mut place = base[i];
            for (component, &axis) in vectors.chunks(count).zip(self.map) {
                let last = shape[axis] as i64 - sizes[axis] as i64;
                let mut at = component[i];
                if clip {
                    at = at.min(last).max(0);
                }
                if at < 0 || at > last {
                    return None;
                }
                place += at as isize * strides[axis];
            }
            Some(place)
        };
        (0..count).map(place).collect()
    }

    /// The share that the paired axes have in each position.
    fn batch_offsets(&self, operand: &HostArray, batch: &[usize]) -> Vec<isize> {
        let mut offsets = vec![operand.offset() as isize];
        for (axis, &size) in batch.iter().enumerate() {
            let own = axis + usize::from(axis >= self.vector_dim);
            let pair = self.indices_batch.iter().position(|&a| a == own);
            let stride = pair.map_or(0, |p| operand.strides()[self.operand_batch[p]]);
            let step = |&start: &isize| (0..size as isize).map(move |i| start + i * stride);
            offsets = offsets.iter().flat_map(step).collect();
        }
        offsets
    }

    /// The indices as i64, first component of all vectors first.
    fn components(&self, indices: &HostArray) -> Vec<i64> {
        let rank = indices.shape().rank();
        let indices = if self.vector_dim < rank {
            let rest = (0..rank).filter(|&a| a != self.vector_dim);
            indices.permute(&std::iter::once(self.vector_dim).chain(rest).collect::<Vec<_>>())
        } else {
            indices.clone()
        };
        let indices = indices.contiguous();
        if indices.dtype() == DType::U64 {
            let all = indices.as_contiguous::<u64>().unwrap_or_default();
            return all.iter().map(|&v| i64::try_from(v).unwrap_or(i64::MAX)).collect();
        }
        with_dtype!(int, indices.dtype(), T => {
            let all = indices.as_contiguous::<T>().unwrap_or_default();
            all.iter().map(|&v| AsPrimitive::<i64>::as_(v)).collect()
        }, else Vec::new())
    }
}

/// The form of a slice of a strided array: its neighbouring axes merged where they can be.
struct Window {
    /// Sizes and strides of all axes but the last merged one.
    outer: Vec<(usize, isize)>,
    len: usize,
    stride: isize,
}

impl Window {
    fn new(sizes: &[usize], strides: &[isize]) -> Window {
        let mut axes: Vec<(usize, isize)> = Vec::new();
        for (&size, &stride) in sizes.iter().zip(strides).filter(|(size, _)| **size != 1) {
            match axes.last_mut() {
                Some(last) if last.1 == stride * size as isize => *last = (last.0 * size, stride),
                _ => axes.push((size, stride)),
            }
        }
        let (len, stride) = axes.pop().unwrap_or((1, 1));
        Window { outer: axes, len, stride }
    }

    fn size(&self) -> usize {
        self.outer.iter().map(|a| a.0).product::<usize>() * self.len
    }

    /// Calls `f` with the position of each run of `len` elements, in row-major order.
    fn each_run(&self, start: isize, mut f: impl FnMut(isize)) {
        if self.outer.is_empty() {
            return f(start);
        }
        for i in 0..self.outer.iter().map(|a| a.0).product() {
            let (mut rest, mut at) = (i, start);
            for &(size, stride) in self.outer.iter().rev() {
                at += (rest % size) as isize * stride;
                rest /= size;
            }
            f(at);
        }
    }

    fn read<T: Copy>(&self, data: &[T], start: isize, out: &mut [T]) {
        let mut rows = out.chunks_mut(self.len);
        self.each_run(start, |at| {
            let Some(row) = rows.next() else { return };
            if self.stride == 1 {
                return row.copy_from_slice(&data[at as usize..][..row.len()]);
            }
            for (i, o) in row.iter_mut().enumerate() {
                *o = data[(at + i as isize * self.stride) as usize];
            }
        });
    }

    fn write<T: Copy>(&self, out: &mut [T], start: isize, new: &[T], apply: fn(&mut [T], &[T])) {
        let mut rows = new.chunks(self.len);
        self.each_run(start, |at| {
            let Some(row) = rows.next() else { return };
            if self.stride == 1 {
                return apply(&mut out[at as usize..][..row.len()], row);
            }
            for (i, new) in row.iter().enumerate() {
                let at = (at + i as isize * self.stride) as usize;
                apply(&mut out[at..=at], std::slice::from_ref(new));
            }
        });
    }
}

fn without(sizes: &[usize], axes: &[usize]) -> Vec<usize> {
    sizes.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, &s)| s).collect()
}

/// The axes below `rank` with those in `last` moved behind the others.
fn order(last: &[usize], rank: usize) -> Vec<usize> {
    (0..rank).filter(|a| !last.contains(a)).chain(last.iter().copied()).collect()
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

    fn iota(shape: &[usize]) -> HostArray {
        let shape = Shape::new(shape);
        HostArray::from_slice(&(0..shape.size() as i32).collect::<Vec<_>>(), &shape).unwrap()
    }

    /// Whole rows: `out[i.., :] = operand[indices[i..], :]`.
    fn rows(indices_rank: usize) -> GatherDims {
        GatherDims {
            offset_dims: vec![indices_rank],
            collapsed_slice_dims: vec![0],
            start_index_map: vec![0],
            index_vector_dim: indices_rank,
            ..GatherDims::default()
        }
    }

    fn row_updates(indices_rank: usize) -> ScatterDims {
        ScatterDims {
            update_window_dims: vec![indices_rank],
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![0],
            index_vector_dim: indices_rank,
            ..ScatterDims::default()
        }
    }

    #[test]
    fn rows_in_each_mode() {
        let x = iota(&[3, 2]);
        let at = array(&[2i64, 0, -1, 3], &[2, 2]);
        let run = |mode| gather(&x, &at, &rows(2), &[1, 2], mode);
        assert_eq!(run(IndexMode::Clip).shape().dims(), [2, 2, 2]);
        let clipped = [4, 5, 0, 1, 0, 1, 4, 5];
        assert_eq!(run(IndexMode::Clip).to_vec::<i32>().unwrap(), clipped);
        assert_eq!(run(IndexMode::PromiseInBounds).to_vec::<i32>().unwrap(), clipped);
        let min = i32::MIN;
        let filled = [4, 5, 0, 1, min, min, min, min];
        assert_eq!(run(IndexMode::FillOrDrop).to_vec::<i32>().unwrap(), filled);
        let turned = iota(&[2, 3]).permute(&[1, 0]).reverse(&[0]);
        let y = gather(&turned, &array(&[2u8, 0], &[2]), &rows(1), &[1, 2], IndexMode::Clip);
        assert_eq!(y.to_vec::<i32>().unwrap(), [0, 3, 2, 5]);
    }

    #[test]
    fn fills_by_dtype() {
        fn filled<T: Element>(x: T) -> T {
            let at = array(&[1u64 << 63], &[1]);
            let y = gather(&array(&[x], &[1, 1]), &at, &rows(1), &[1, 1], IndexMode::FillOrDrop);
            y.to_vec::<T>().unwrap()[0]
        }
        assert!(filled(f16::ONE).is_nan() && filled(bf16::ONE).is_nan() && filled(1f64).is_nan());
        assert!(filled(Complex::new(1f32, 0.)).re.is_nan());
        assert_eq!((filled(1u16), filled(1i8), filled(false)), (u16::MAX, i8::MIN, true));
    }

    #[test]
    fn slices_between_batch_axes() {
        // out[o, b, p] = operand[start0(b) + o, start1(b) + p]; vectors are columns (axis 0).
        let x = iota(&[4, 5]);
        let at = array(&[1i32, 3, 2, 4], &[2, 2]);
        let dims = GatherDims {
            offset_dims: vec![0, 2],
            start_index_map: vec![1, 0],
            index_vector_dim: 0,
            ..GatherDims::default()
        };
        let y = gather(&x, &at, &dims, &[2, 3], IndexMode::Clip);
        assert_eq!(y.shape().dims(), [2, 2, 3]);
        // Vector 0 is (axis 1: 1, axis 0: 2); vector 1 is (3, 4), clipped to (2, 2).
        let expected = [11, 12, 13, 12, 13, 14, 16, 17, 18, 17, 18, 19];
        assert_eq!(y.to_vec::<i32>().unwrap(), expected);
    }

    #[test]
    fn batching_dims_and_inverse() {
        // out[b, i] = operand[b, at[b, i]]: torch's gather along the last axis.
        let x = iota(&[2, 3]);
        let at = array(&[2i32, 0, 1, 1], &[2, 2]);
        let dims = GatherDims {
            collapsed_slice_dims: vec![1],
            operand_batching_dims: vec![0],
            start_indices_batching_dims: vec![0],
            start_index_map: vec![1],
            index_vector_dim: 2,
            ..GatherDims::default()
        };
        let y = gather(&x, &at, &dims, &[1, 1], IndexMode::Clip);
        assert_eq!(y.to_vec::<i32>().unwrap(), [2, 0, 4, 4]);
        let dims = ScatterDims {
            inserted_window_dims: vec![1],
            input_batching_dims: vec![0],
            scatter_indices_batching_dims: vec![0],
            scatter_dims_to_operand_dims: vec![1],
            index_vector_dim: 2,
            ..ScatterDims::default()
        };
        let new = array(&[10i32, 20, 30, 40], &[2, 2]);
        let run = |kind| scatter(&x, &at, &new, &dims, kind, IndexMode::FillOrDrop).to_vec::<i32>();
        assert_eq!(run(ScatterKind::Add).unwrap(), [20, 1, 12, 3, 74, 5]);
        assert_eq!(run(ScatterKind::Set).unwrap(), [20, 1, 10, 3, 40, 5]);
        assert_eq!(run(ScatterKind::Mul).unwrap(), [0, 1, 20, 3, 4800, 5]);
        assert_eq!(run(ScatterKind::Max).unwrap(), [20, 1, 10, 3, 40, 5]);
        assert_eq!(run(ScatterKind::Min).unwrap(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn windows_drop_or_clip() {
        let x = HostArray::full(Scalar::new(0f32), &[2, 4].into());
        let at = array(&[0i32, 1, 0, 3, 1, -1], &[3, 2]);
        let dims = ScatterDims {
            update_window_dims: vec![0],
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![0, 1],
            index_vector_dim: 1,
            ..ScatterDims::default()
        };
        // Two elements a window, one window a column.
        let new = array(&[1f32, 2., 3., 10., 20., 30.], &[2, 3]);
        let run = |mode| scatter(&x, &at, &new, &dims, ScatterKind::Add, mode).to_vec::<f32>();
        assert_eq!(run(IndexMode::FillOrDrop).unwrap(), [0., 1., 10., 0., 0., 0., 0., 0.]);
        assert_eq!(run(IndexMode::PromiseInBounds).unwrap(), [0., 1., 10., 0., 0., 0., 0., 0.]);
        assert_eq!(run(IndexMode::Clip).unwrap(), [0., 1., 12., 20., 3., 30., 0., 0.]);
    }

    #[test]
    fn scatters_other_dtypes() {
        let at = array(&[1u8, 1], &[2]);
        let ends = |x: HostArray, new: HostArray, kind| {
            scatter(&x, &at, &new, &row_updates(1), kind, IndexMode::FillOrDrop)
        };
        let b = array(&[true, false], &[2, 1]);
        let y = ends(b.clone(), array(&[true, false], &[2, 1]), ScatterKind::Add);
        assert_eq!(y.to_vec::<bool>().unwrap(), [true, true]);
        let y = ends(array(&[200u8, 200], &[2, 1]), array(&[50u8, 50], &[2, 1]), ScatterKind::Add);
        assert_eq!(y.to_vec::<u8>().unwrap(), [200, 44]);
        let i = Complex::<f64>::i();
        let y = ends(array(&[i, i], &[2, 1]), array(&[i, i], &[2, 1]), ScatterKind::Mul);
        assert_eq!(y.to_vec::<Complex<f64>>().unwrap(), [i, -i]);
        let y =
            ends(array(&[1f32, 2.], &[2, 1]), array(&[f32::NAN, 9.], &[2, 1]), ScatterKind::Max);
        assert!(y.to_vec::<f32>().unwrap()[1].is_nan());
    }

    #[test]
    fn large_rows_over_cores() {
        let (count, width, n) = (300usize, 32usize, 5000usize);
        let x = iota(&[count, width]);
        let at: Vec<i32> = (0..n as i32).map(|i| i * 37 % 310 - 5).collect();
        let indices = array(&at, &[n]);
        let y = gather(&x, &indices, &rows(1), &[1, width], IndexMode::Clip);
        for (row, &i) in y.to_vec::<i32>().unwrap().chunks(width).zip(&at) {
            let i = i.clamp(0, count as i32 - 1) * width as i32;
            assert_eq!(row, (i..i + width as i32).collect::<Vec<_>>());
        }
        let new = iota(&[n, width]);
        for (kind, f) in [
            (ScatterKind::Add, (|old, new| old + new) as fn(i32, i32) -> i32),
            (ScatterKind::Set, |_, new| new),
        ] {
            let y = scatter(&x, &indices, &new, &row_updates(1), kind, IndexMode::FillOrDrop);
            let mut expected = x.to_vec::<i32>().unwrap();
            for (u, &i) in at.iter().enumerate().filter(|(_, i)| (0..count as i32).contains(i)) {
                for c in 0..width {
                    let old = &mut expected[i as usize * width + c];
                    *old = f(*old, (u * width + c) as i32);
                }
            }
            assert_eq!(y.to_vec::<i32>().unwrap(), expected, "{kind:?}");
        }
    }

    #[test]
    fn empty_ones() {
        let x = iota(&[3, 2]);
        let none = array::<i32>(&[], &[0]);
        let y = gather(&x, &none, &rows(1), &[1, 2], IndexMode::Clip);
        assert_eq!(y.shape().dims(), [0, 2]);
        let y = gather(&x, &array(&[1i32], &[1]), &rows(1), &[1, 0], IndexMode::Clip);
        assert_eq!(y.shape().dims(), [1, 0]);
        let new = array::<i32>(&[], &[0, 2]);
        let y = scatter(&x, &none, &new, &row_updates(1), ScatterKind::Add, IndexMode::Clip);
        assert_eq!(y.to_vec::<i32>().unwrap(), [0, 1, 2, 3, 4, 5]);
        // An operand without rows: every index is out of range, even when it is clipped.
        let y = gather(&iota(&[0, 2]), &array(&[0i32], &[1]), &rows(1), &[1, 2], IndexMode::Clip);
        assert_eq!(y.to_vec::<i32>().unwrap(), [i32::MIN; 2]);
        // No index vector at all: one slice from the start.
        let d = GatherDims { offset_dims: vec![0, 1], ..GatherDims::default() };
        let y = gather(&x, &array::<i32>(&[], &[0]), &d, &[2, 1], IndexMode::Clip);
        assert_eq!(y.to_vec::<i32>().unwrap(), [0, 2]);
    }
}
