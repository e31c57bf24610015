//! Kernels that change or test element types: conversion, comparison, selection, `iota`.

use super::HostArray;
use super::elementwise::{map1, map2, map3, spread};
use super::number::HostReal;
use crate::dtype::DType;
use crate::shape::Shape;
use crate::with_dtype;
use num_complex::Complex;
use num_traits::AsPrimitive;

/// The relation that [`compare`] tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// The array converted to dtype `to`, contiguous.
///
/// Floats become integers by truncation, saturating, NaN as 0; integers wrap around; complex
/// numbers lose their imaginary part; all that is not 0 becomes `true`.
pub fn convert(x: &HostArray, to: DType) -> HostArray {
    if x.dtype() == to {
        return x.contiguous();
    }
    if to == DType::Bool {
        return with_dtype!(any, x.dtype(), T => {
            map1::<T, u8>(x, to, |v| u8::from(v != T::default()))
        }, else unreachable!("`any` is whole"));
    }
    match x.dtype() {
        DType::C64 if to == DType::C128 => {
            let wide = |v: Complex<f32>| Complex::new(f64::from(v.re), f64::from(v.im));
            map1::<Complex<f32>, Complex<f64>>(x, to, wide)
        }
        DType::C128 if to == DType::C64 => {
            let narrow = |v: Complex<f64>| Complex::new(v.re as f32, v.im as f32);
            map1::<Complex<f64>, Complex<f32>>(x, to, narrow)
        }
        DType::C64 => from_real(&map1::<Complex<f32>, f32>(x, DType::F32, |v| v.re), to),
        DType::C128 => from_real(&map1::<Complex<f64>, f64>(x, DType::F64, |v| v.re), to),
        DType::Bool => from_real(&x.bitcast(DType::U8), to),
        _ => from_real(x, to),
    }
}

fn from_real(x: &HostArray, to: DType) -> HostArray {
    if x.dtype() == to {
        return x.contiguous();
    }
    with_dtype!(real, x.dtype(), T => match to {
        DType::C64 => map1::<T, Complex<f32>>(x, to, |v| Complex::new(v.as_(), 0.0)),
        DType::C128 => map1::<T, Complex<f64>>(x, to, |v| Complex::new(v.as_(), 0.0)),
        _ => with_dtype!(real, to, U => {
            map1::<T, U>(x, to, AsPrimitive::as_)
        }, else unreachable!("{to} is neither real nor complex here"))
    }, else unreachable!("{} is not real", x.dtype()))
}

/// Whether the relation holds, for each pair of elements of two arrays of equal dtype and shape.
///
/// A NaN is unequal to everything and in no order; complex numbers only take `Eq` and `Ne`.
pub fn compare(x: &HostArray, y: &HostArray, direction: Direction) -> HostArray {
    debug_assert_eq!(x.dtype(), y.dtype(), "compare takes equal dtypes");
    match direction {
        Direction::Eq | Direction::Ne => with_dtype!(any, x.dtype(), T => {
            let equal = direction == Direction::Eq;
            map2::<T, T, u8>(x, y, DType::Bool, |x, y| u8::from((x == y) == equal))
        }, else unreachable!("`any` is whole")),
        Direction::Gt => compare(y, x, Direction::Lt),
        Direction::Ge => compare(y, x, Direction::Le),
        Direction::Lt | Direction::Le => {
            let bytes = if x.dtype() == DType::Bool { DType::U8 } else { x.dtype() };
            with_dtype!(real, bytes, T => if direction == Direction::Lt {
                map2::<T, T, u8>(x, y, DType::Bool, |x, y| u8::from(x < y))
            } else {
                map2::<T, T, u8>(x, y, DType::Bool, |x, y| u8::from(x <= y))
            }, else unreachable!("{} has no order", x.dtype()))
        }
    }
}

/// `on_true` where `pred` holds, else `on_false`; `pred` has their shape or is a scalar.
pub fn select(pred: &HostArray, on_true: &HostArray, on_false: &HostArray) -> HostArray {
    debug_assert_eq!(on_true.dtype(), on_false.dtype(), "select takes equal dtypes");
    if pred.shape() != on_true.shape() {
        let holds = pred.storage::<u8>()[pred.offset()] != 0;
        return if holds { on_true.contiguous() } else { on_false.contiguous() };
    }
    match on_true.dtype().size() {
        1 => select_as::<u8>(pred, on_true, on_false),
        2 => select_as::<u16>(pred, on_true, on_false),
        4 => select_as::<u32>(pred, on_true, on_false),
        8 => select_as::<u64>(pred, on_true, on_false),
        _ => select_as::<u128>(pred, on_true, on_false),
    }
}

fn select_as<T: super::elementwise::Data>(
    p: &HostArray,
    x: &HostArray,
    y: &HostArray,
) -> HostArray {
    map3::<u8, T, T, T>([p, x, y], x.dtype(), |p, x, y| if p != 0 { x } else { y })
}

/// `x` bounded by `min` and `max`, each of its shape or a scalar; NaN if any of the three is.
pub fn clamp(min: &HostArray, x: &HostArray, max: &HostArray) -> HostArray {
    let (low, high) = (spread(min, x.shape()), spread(max, x.shape()));
    let bytes = if x.dtype() == DType::Bool { DType::U8 } else { x.dtype() };
    with_dtype!(real, bytes, T => {
        map3::<T, T, T, T>([&low, x, &high], x.dtype(), |low, x, high| {
            HostReal::minimum(HostReal::maximum(x, low), high)
        })
    }, else unreachable!("{} has no order", x.dtype()))
}

/// An array whose elements are their index along `axis`.
pub fn iota(dtype: DType, shape: &Shape, axis: usize) -> HostArray {
    if dtype.is_complex() || dtype == DType::Bool {
        return convert(
            &iota(if dtype == DType::Bool { DType::U8 } else { dtype.real() }, shape, axis),
            dtype,
        );
    }
    let size = shape[axis];
    let line = with_dtype!(real, dtype, T => {
        HostArray::build_as::<T>(dtype, &[size].into(), |out| {
            out.iter_mut().enumerate().for_each(|(i, o)| *o = (i as u64).as_());
        })
    }, else unreachable!("{dtype} is real"));
    line.broadcast_in_dim(shape, &[axis]).contiguous()
}

/// Whether each element is neither infinite nor NaN; of a complex number, whether both parts are.
pub fn is_finite(x: &HostArray) -> HostArray {
    match x.dtype() {
        DType::C64 => map1(x, DType::Bool, |v: Complex<f32>| u8::from(v.is_finite())),
        DType::C128 => map1(x, DType::Bool, |v: Complex<f64>| u8::from(v.is_finite())),
        _ => with_dtype!(float, x.dtype(), T => {
            map1::<T, u8>(x, DType::Bool, |v| u8::from(v.is_finite()))
        }, else HostArray::build(DType::Bool, x.shape(), |out| out.fill(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Element;
    use half::{bf16, f16};

    fn of<T: Element>(data: &[T]) -> HostArray {
        HostArray::from_slice(data, &[data.len()].into()).unwrap()
    }

    fn to<T: Element>(x: &HostArray) -> Vec<T> {
        convert(x, T::DTYPE).to_vec::<T>().unwrap()
    }

    #[test]
    fn floats_to_integers_truncate_and_saturate() {
        let x = of(&[1.9f32, -1.9, 300.0, -300.0, f32::NAN, f32::INFINITY]);
        assert_eq!(to::<i8>(&x), [1, -1, 127, -128, 0, 127]);
        assert_eq!(to::<u8>(&x), [1, 0, 255, 0, 0, 255]);
        assert_eq!(to::<i64>(&x), [1, -1, 300, -300, 0, i64::MAX]);
        assert_eq!(to::<bool>(&x), [true; 6]);
        assert_eq!(to::<bool>(&of(&[0.0f64, -0.0, 0.25])), [false, false, true]);
        assert_eq!(to::<i32>(&of(&[f16::from_f32(-2.5), f16::NAN])), [-2, 0]);
    }

    #[test]
    fn integers_wrap_and_keep_all_bits() {
        assert_eq!(to::<u8>(&of(&[-1i32, 256, 511])), [255, 0, 255]);
        assert_eq!(to::<i8>(&of(&[200u8])), [-56]);
        let large = (1i64 << 62) + 1; // not an f64
        assert_eq!(to::<u64>(&of(&[large])), [large as u64]);
        assert_eq!(to::<f16>(&of(&[70000i32])), [f16::INFINITY]);
        assert_eq!(to::<f32>(&of(&[16_777_217i32])), [16_777_216.0]);
    }

    #[test]
    fn bool_complex_and_half() {
        assert_eq!(to::<f32>(&of(&[true, false])), [1.0, 0.0]);
        assert_eq!(to::<u8>(&of(&[true, false])), [1, 0]);
        let z = of(&[Complex::new(1.5f32, 2.0), Complex::new(0.0, 1.0)]);
        assert_eq!(to::<i32>(&z), [1, 0]);
        assert_eq!(to::<bool>(&z), [true, true]);
        assert_eq!(to::<Complex<f64>>(&z)[0], Complex::new(1.5, 2.0));
        assert_eq!(to::<Complex<f32>>(&of(&[3i8])), [Complex::new(3.0, 0.0)]);
        assert_eq!(to::<bf16>(&of(&[1.0f32 + 1.0 / 256.0]))[0].to_f32(), 1.0);
        assert_eq!(to::<f16>(&of(&[bf16::from_f32(0.5)])), [f16::from_f32(0.5)]);
        assert_eq!(to::<bool>(&convert(&of(&[2.0f32]), DType::F32)), [true]);
    }

    #[test]
    fn every_pair_of_dtypes_converts_two() {
        for from in DType::ALL {
            for to in DType::ALL {
                let y = convert(&convert(&of(&[1.0f64]), from), to);
                assert_eq!(y.dtype(), to, "{from} to {to}");
                let one = convert(&y, DType::F64).to_vec::<f64>().unwrap();
                assert_eq!(one, [1.0], "{from} to {to}");
            }
        }
    }

    #[test]
    fn comparisons_know_nan() {
        let (x, y) = (of(&[1.0f32, f32::NAN, -0.0]), of(&[2.0f32, f32::NAN, 0.0]));
        let holds = |d| compare(&x, &y, d).to_vec::<bool>().unwrap();
        assert_eq!(holds(Direction::Eq), [false, false, true]);
        assert_eq!(holds(Direction::Ne), [true, true, false]);
        assert_eq!(holds(Direction::Lt), [true, false, false]);
        assert_eq!(holds(Direction::Le), [true, false, true]);
        assert_eq!(holds(Direction::Gt), [false, false, false]);
        assert_eq!(holds(Direction::Ge), [false, false, true]);
        let (f, t) = (of(&[false]), of(&[true]));
        assert_eq!(compare(&f, &t, Direction::Lt).to_vec::<bool>().unwrap(), [true]);
        let (z, w) = (of(&[Complex::new(1.0f64, 2.0)]), of(&[Complex::new(1.0f64, -2.0)]));
        assert_eq!(compare(&z, &w, Direction::Ne).to_vec::<bool>().unwrap(), [true]);
        let (a, b) = (of(&[u64::MAX]), of(&[u64::MAX - 1]));
        assert_eq!(compare(&a, &b, Direction::Gt).to_vec::<bool>().unwrap(), [true]);
    }

    #[test]
    fn select_and_clamp() {
        let (x, y) = (of(&[1i16, 2, 3]), of(&[-1i16, -2, -3]));
        let p = of(&[true, false, true]);
        assert_eq!(select(&p, &x, &y).to_vec::<i16>().unwrap(), [1, -2, 3]);
        let scalar = HostArray::from_slice(&[false], &().into()).unwrap();
        assert_eq!(select(&scalar, &x, &y).to_vec::<i16>().unwrap(), [-1, -2, -3]);
        let low = HostArray::from_slice(&[0.0f32], &().into()).unwrap();
        let x = of(&[-1.0f32, 0.5, f32::NAN]);
        let z = clamp(&low, &x, &of(&[1.0f32, 0.25, 1.0])).to_vec::<f32>().unwrap();
        assert_eq!(z[..2], [0.0, 0.25]);
        assert!(z[2].is_nan(), "NaN stays");
    }

    #[test]
    fn iota_and_is_finite() {
        let a = iota(DType::I32, &[2, 3].into(), 1);
        assert_eq!(a.to_vec::<i32>().unwrap(), [0, 1, 2, 0, 1, 2]);
        let b = iota(DType::C64, &[2, 2].into(), 0).to_vec::<Complex<f32>>().unwrap();
        assert_eq!(b[2], Complex::new(1.0, 0.0));
        assert_eq!(iota(DType::F16, &[0].into(), 0).shape().size(), 0);
        let x = of(&[1.0f64, f64::NAN, f64::NEG_INFINITY]);
        assert_eq!(is_finite(&x).to_vec::<bool>().unwrap(), [true, false, false]);
        assert_eq!(is_finite(&of(&[f16::INFINITY])).to_vec::<bool>().unwrap(), [false]);
    }
}
