//! [`HostArray`]: a strided, immutable, cheaply cloned array in host memory.

use crate::dtype::{DType, Element, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::shape::Shape;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Bytes with the alignment that vector loads and PJRT's zero-copy upload like best.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// An immutable array in host memory.
///
/// Cloning, permuting, broadcasting, slicing and reversing share the bytes. A byte of a `bool`
/// array is 0 or 1.
#[derive(Clone)]
pub struct HostArray {
    #[expect(clippy::rc_buffer, reason = "a boxed slice would copy what the vector holds")]
    lines: Arc<Vec<Line>>,
    dtype: DType,
    shape: Shape,
    /// In elements; negative for a reversed axis, 0 for a broadcast one.
    strides: Vec<isize>,
    /// In elements, from the start of the bytes.
    offset: usize,
}

impl From<&HostArray> for HostArray {
    /// Another array over the same bytes.
    fn from(array: &HostArray) -> HostArray {
        array.clone()
    }
}

impl HostArray {
    /// An array of `dtype` and `shape` whose contiguous bytes `fill` writes (they start as zeros).
    pub fn build(dtype: DType, shape: &Shape, fill: impl FnOnce(&mut [u8])) -> HostArray {
        let bytes = shape.size() * dtype.size();
        let mut lines = vec![Line([0; 64]); bytes.div_ceil(64)];
        fill(&mut bytemuck::cast_slice_mut::<Line, u8>(&mut lines)[..bytes]);
        HostArray {
            lines: Arc::new(lines),
            dtype,
            shape: shape.clone(),
            strides: shape.strides().iter().map(|&s| s as isize).collect(),
            offset: 0,
        }
    }

    /// An array of `shape` whose contiguous elements `fill` writes (they start as zeros).
    ///
    /// `T` is the storage type: `u8` stands for `bool` when `dtype` is [`DType::Bool`].
    pub fn build_as<T: bytemuck::Pod>(
        dtype: DType,
        shape: &Shape,
        fill: impl FnOnce(&mut [T]),
    ) -> HostArray {
        debug_assert_eq!(size_of::<T>(), dtype.size(), "storage type of {dtype}");
        HostArray::build(dtype, shape, |bytes| fill(bytemuck::cast_slice_mut(bytes)))
    }

    /// An array that holds a copy of `data`, row-major.
    ///
    /// # Errors
    /// If the number of elements is not that of `shape`.
    pub fn from_slice<T: Element>(data: &[T], shape: &Shape) -> Result<HostArray> {
        if data.len() != shape.size() {
            let text = format!("{} elements do not fill shape {shape}", data.len());
            return Err(Error::new(ErrorKind::Shape, "from_slice", text));
        }
        let bytes = T::to_bytes(data);
        Ok(HostArray::build(T::DTYPE, shape, |out| out.copy_from_slice(&bytes)))
    }

    /// An array of `dtype` and `shape` from its row-major bytes.
    ///
    /// # Errors
    /// If the number of bytes does not fit.
    pub fn from_bytes(dtype: DType, shape: &Shape, bytes: &[u8]) -> Result<HostArray> {
        if bytes.len() != shape.size() * dtype.size() {
            let text = format!("{} bytes do not fill {dtype}{shape}", bytes.len());
            return Err(Error::new(ErrorKind::Shape, "from_bytes", text));
        }
        Ok(HostArray::build(dtype, shape, |out| out.copy_from_slice(bytes)))
    }

    /// An array filled with one value; it stores a single element.
    pub fn full(value: Scalar, shape: &Shape) -> HostArray {
        let one = HostArray::build(value.dtype(), &Shape::scalar(), |out| {
            out.copy_from_slice(value.bytes());
        });
        HostArray { shape: shape.clone(), strides: vec![0; shape.rank()], ..one }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The strides, in elements; 0 for a broadcast axis, negative for a reversed one.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Where the first element lies, in elements from the start of [`storage`](Self::storage).
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// All elements of the storage that this array is a strided view of.
    ///
    /// `T` is the storage type: `u8` for `bool`.
    ///
    /// # Panics
    /// If `T` does not have the dtype's size (a fault of the calling kernel).
    pub fn storage<T: bytemuck::Pod>(&self) -> &[T] {
        assert_eq!(size_of::<T>(), self.dtype.size(), "storage type of {}", self.dtype);
        bytemuck::cast_slice(&self.lines)
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 && stride != expected {
                return self.shape.size() == 0;
            }
            expected *= size as isize;
        }
        true
    }

    /// The elements in row-major order, if they lie so.
    pub fn as_contiguous<T: bytemuck::Pod>(&self) -> Option<&[T]> {
        if !self.is_contiguous() {
            return None;
        }
        Some(&self.storage::<T>()[self.offset..self.offset + self.shape.size()])
    }

    /// The row-major bytes, if they lie so.
    pub fn contiguous_bytes(&self) -> Option<&[u8]> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.lines);
        Some(&bytes[self.contiguous_range()?])
    }

    /// Where the row-major bytes lie, if they lie so.
    fn contiguous_range(&self) -> Option<Range<usize>> {
        let size = self.dtype.size();
        let range = self.offset * size..(self.offset + self.shape.size()) * size;
        self.is_contiguous().then_some(range)
    }

    /// The row-major bytes to write to, if they lie so and no other array shares them.
    pub fn own_bytes(&mut self) -> Option<&mut [u8]> {
        let range = self.contiguous_range()?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(Arc::get_mut(&mut self.lines)?);
        Some(&mut bytes[range])
    }

    /// The same array with its elements in row-major order; shares the bytes if they are already.
    #[must_use]
    pub fn contiguous(&self) -> HostArray {
        if self.is_contiguous() {
            return self.clone();
        }
        match self.dtype.size() {
            1 => self.gather::<u8>(),
            2 => self.gather::<u16>(),
            4 => self.gather::<u32>(),
            8 => self.gather::<u64>(),
            _ => self.gather::<u128>(),
        }
    }

    fn gather<T: bytemuck::Pod>(&self) -> HostArray {
        let source = self.storage::<T>();
        HostArray::build_as::<T>(self.dtype, &self.shape, |out| {
            let mut next = out.iter_mut();
            self.each_row(|start, stride, len| {
                for (i, o) in next.by_ref().take(len).enumerate() {
                    *o = source[(start + i as isize * stride) as usize];
                }
            });
        })
    }

    /// Calls `f(start, stride, len)` for each run along the last axis, in row-major order;
    /// positions and strides are in elements of the storage.
    pub fn each_row(&self, mut f: impl FnMut(isize, isize, usize)) {
        if self.shape.size() == 0 {
            return;
        }
        let Some((&len, outer)) = self.shape.split_last() else {
            return f(self.offset as isize, 1, 1);
        };
        let stride = self.strides[outer.len()];
        let mut index = vec![0; outer.len()];
        let mut start = self.offset as isize;
        loop {
            f(start, stride, len);
            let mut axis = outer.len();
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                start += self.strides[axis];
                if index[axis] < outer[axis] {
                    break;
                }
                start -= self.strides[axis] * outer[axis] as isize;
                index[axis] = 0;
            }
        }
    }

    /// The elements as Rust values, row-major.
    ///
    /// # Errors
    /// If `T` does not stand for this array's dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            let text = format!("an array of {} cannot be read as {}", self.dtype, T::DTYPE);
            return Err(Error::new(ErrorKind::DType, "to_vec", text)
                .help("convert it first, for example with `to_dtype`"));
        }
        let whole = self.contiguous();
        Ok(whole.contiguous_bytes().map(T::from_bytes).unwrap_or_default())
    }

    /// The first element (of a scalar: the element).
    ///
    /// # Errors
    /// If the array is empty.
    pub fn scalar(&self) -> Result<Scalar> {
        if self.shape.size() == 0 {
            let text = format!("an array of shape {} has no element", self.shape);
            return Err(Error::new(ErrorKind::Shape, "item", text));
        }
        let size = self.dtype.size();
        let bytes: &[u8] = bytemuck::cast_slice(&self.lines);
        Scalar::from_le_bytes(self.dtype, &bytes[self.offset * size..][..size])
    }

    /// A view with the axes in the order `perm`.
    #[must_use]
    pub fn permute(&self, perm: &[usize]) -> HostArray {
        HostArray {
            shape: perm.iter().map(|&p| self.shape[p]).collect(),
            strides: perm.iter().map(|&p| self.strides[p]).collect(),
            ..self.clone()
        }
    }

    /// A view of shape `to` in which operand axis `i` becomes axis `axes[i]`; all other axes, and
    /// those of size 1 that become larger, repeat the data.
    #[must_use]
    pub fn broadcast_in_dim(&self, to: &Shape, axes: &[usize]) -> HostArray {
        let mut strides = vec![0; to.rank()];
        for (i, &axis) in axes.iter().enumerate() {
            strides[axis] = if self.shape[i] == 1 { 0 } else { self.strides[i] };
        }
        HostArray { shape: to.clone(), strides, ..self.clone() }
    }

    /// A view of every `steps[i]`-th element from `starts[i]` (inclusive) to `limits[i]` (exclusive).
    #[must_use]
    pub fn slice(&self, starts: &[usize], limits: &[usize], steps: &[usize]) -> HostArray {
        let mut out = self.clone();
        let sizes = (0..self.shape.rank()).map(|i| (limits[i] - starts[i]).div_ceil(steps[i]));
        out.shape = sizes.collect();
        if out.shape.size() == 0 {
            return out;
        }
        for i in 0..self.shape.rank() {
            out.offset = (out.offset as isize + starts[i] as isize * self.strides[i]) as usize;
            out.strides[i] *= steps[i] as isize;
        }
        out
    }

    /// A view with the given axes reversed.
    #[must_use]
    pub fn reverse(&self, axes: &[usize]) -> HostArray {
        let mut out = self.clone();
        if self.shape.size() == 0 {
            return out;
        }
        for &axis in axes {
            let last = (self.shape[axis] - 1) as isize;
            out.offset = (out.offset as isize + last * self.strides[axis]) as usize;
            out.strides[axis] = -self.strides[axis];
        }
        out
    }

    /// The same elements, row-major, in another shape of the same size; copies only if needed.
    #[must_use]
    pub fn reshape(&self, to: &Shape) -> HostArray {
        debug_assert_eq!(self.shape.size(), to.size(), "reshape keeps the number of elements");
        let whole = self.contiguous();
        HostArray {
            shape: to.clone(),
            strides: to.strides().iter().map(|&s| s as isize).collect(),
            ..whole
        }
    }

    /// The same bytes read as another dtype of the same size.
    #[must_use]
    pub fn bitcast(&self, dtype: DType) -> HostArray {
        debug_assert_eq!(self.dtype.size(), dtype.size(), "bitcast keeps the size");
        HostArray { dtype, ..self.clone() }
    }
}

impl fmt::Debug for HostArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostArray({}{} strides {:?})", self.dtype, self.shape, self.strides)
    }
}

/// Runs the body with `$T` standing for the storage type of `$dtype` in the named set, or else
/// evaluates `$otherwise`.
///
/// Sets: `float` (f16, bf16, f32, f64), `complex`, `field` (float and complex), `int` (eight
/// integers), `real` (float and int), `number` (real and complex), `any` (number and bool as `u8`).
#[macro_export]
#[doc(hidden)]
macro_rules! with_dtype {
    (float, $dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        $crate::with_dtype!(@ $dtype, $T, $body, $otherwise,
            F16 half::f16, BF16 half::bf16, F32 f32, F64 f64)
    };
    (int, $dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        $crate::with_dtype!(@ $dtype, $T, $body, $otherwise,
            U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64)
    };
    (complex, $dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        $crate::with_dtype!(@ $dtype, $T, $body, $otherwise,
            C64 num_complex::Complex<f32>, C128 num_complex::Complex<f64>)
    };
    (field, $dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        $crate::with_dtype!(@ $dtype, $T, $body, $otherwise,
            F16 half::f16, BF16 half::bf16, F32 f32, F64 f64,
            C64 num_complex::Complex<f32>, C128 num_complex::Complex<f64>)
    };
    (real, $dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        $crate::with_dtype!(@ $dtype, $T, $body, $otherwise,
            F16 half::f16, BF16 half::bf16, F32 f32, F64 f64,
            U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64)
    };
    (number, $dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        $crate::with_dtype!(@ $dtype, $T, $body, $otherwise,
            F16 half::f16, BF16 half::bf16, F32 f32, F64 f64,
            U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64,
            C64 num_complex::Complex<f32>, C128 num_complex::Complex<f64>)
    };
    (any, $dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        $crate::with_dtype!(@ $dtype, $T, $body, $otherwise,
            Bool u8, F16 half::f16, BF16 half::bf16, F32 f32, F64 f64,
            U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64,
            C64 num_complex::Complex<f32>, C128 num_complex::Complex<f64>)
    };
    (@ $dtype:expr, $T:ident, $body:expr, $otherwise:expr, $($variant:ident $ty:ty),*) => {
        match $dtype {
            $($crate::dtype::DType::$variant => { type $T = $ty; $body })*
            #[allow(unreachable_patterns, clippy::allow_attributes, reason = "the set `any` is whole")]
            _ => $otherwise,
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_share_and_read_in_order() {
        let a = HostArray::from_slice(&[0i32, 1, 2, 3, 4, 5], &[2, 3].into()).unwrap();
        assert_eq!(a.permute(&[1, 0]).to_vec::<i32>().unwrap(), [0, 3, 1, 4, 2, 5]);
        assert_eq!(a.reverse(&[1]).to_vec::<i32>().unwrap(), [2, 1, 0, 5, 4, 3]);
        assert_eq!(a.slice(&[0, 1], &[2, 3], &[1, 1]).to_vec::<i32>().unwrap(), [1, 2, 4, 5]);
        let row = HostArray::from_slice(&[7i32, 8], &[2].into()).unwrap();
        let wide = row.broadcast_in_dim(&[2, 2].into(), &[0]);
        assert_eq!(wide.to_vec::<i32>().unwrap(), [7, 7, 8, 8]);
        assert_eq!(
            a.permute(&[1, 0]).reshape(&[6].into()).to_vec::<i32>().unwrap(),
            [0, 3, 1, 4, 2, 5]
        );
    }

    #[test]
    fn bool_reads_as_bool_only() {
        let a = HostArray::from_slice(&[true, false], &[2].into()).unwrap();
        assert_eq!(a.to_vec::<bool>().unwrap(), [true, false]);
        assert!(a.to_vec::<u8>().is_err());
    }
}
