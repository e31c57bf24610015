//! Element types and torch's promotion rules.
//!
//! A [`DType`] is dynamic; an [`Element`] is the Rust type that stands for one at the edge
//! (`Tensor::from_slice::<T>`, `to_vec::<T>`).

use crate::error::{Error, ErrorKind, Result};
use half::{bf16, f16};
use num_complex::Complex;
use std::fmt;

/// The element type of an array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// True or false, one byte on the host.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer, torch's default for integers.
    I64,
    /// IEEE half precision.
    F16,
    /// Brain float: f32's exponent, 8 bits of precision.
    BF16,
    /// Single precision, torch's default for floats.
    F32,
    /// Double precision.
    F64,
    /// Complex of two f32.
    C64,
    /// Complex of two f64.
    C128,
}

/// The promotion category of a dtype; a higher one wins over a lower one whatever the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// `bool`.
    Bool,
    /// Signed and unsigned integers.
    Int,
    /// Real floating point.
    Float,
    /// Complex floating point.
    Complex,
}

impl DType {
    /// All dtypes, in declaration order.
    pub const ALL: [DType; 15] = [
        DType::Bool,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::C64,
        DType::C128,
    ];

    /// The short name that types print with: `f32`, `i64`, `bool`, `bf16`, `c64`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::C64 => "c64",
            DType::C128 => "c128",
        }
    }

    /// The name in StableHLO's textual types: `f32`, `i64`, `i1`, `ui8`, `complex<f32>`.
    pub const fn hlo_name(self) -> &'static str {
        match self {
            DType::Bool => "i1",
            DType::U8 => "ui8",
            DType::U16 => "ui16",
            DType::U32 => "ui32",
            DType::U64 => "ui64",
            DType::C64 => "complex<f32>",
            DType::C128 => "complex<f64>",
            other => other.name(),
        }
    }

    /// The dtype with the given [`name`](DType::name), or torch's (`float32`, `int64`, `complex64`).
    ///
    /// # Errors
    /// If no dtype has that name.
    pub fn from_name(name: &str) -> Result<DType> {
        let short = match name {
            "uint8" => "u8",
            "uint16" => "u16",
            "uint32" => "u32",
            "uint64" => "u64",
            "int8" => "i8",
            "int16" | "short" => "i16",
            "int32" | "int" => "i32",
            "int64" | "long" => "i64",
            "float16" | "half" => "f16",
            "bfloat16" => "bf16",
            "float32" | "float" => "f32",
            "float64" | "double" => "f64",
            "complex64" => "c64",
            "complex128" => "c128",
            other => other,
        };
        DType::ALL.into_iter().find(|d| d.name() == short).ok_or_else(|| {
            Error::new(ErrorKind::DType, "dtype", format!("there is no dtype named `{name}`"))
        })
    }

    /// Bytes of one element in host memory.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 | DType::C64 => 8,
            DType::C128 => 16,
        }
    }

    /// The promotion category.
    pub const fn category(self) -> Category {
        match self {
            DType::Bool => Category::Bool,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Category::Float,
            DType::C64 | DType::C128 => Category::Complex,
            _ => Category::Int,
        }
    }

    /// Whether the dtype is real floating point.
    pub const fn is_float(self) -> bool {
        matches!(self.category(), Category::Float)
    }

    /// Whether the dtype is complex.
    pub const fn is_complex(self) -> bool {
        matches!(self.category(), Category::Complex)
    }

    /// Whether the dtype is a signed or unsigned integer (not bool).
    pub const fn is_int(self) -> bool {
        matches!(self.category(), Category::Int)
    }

    /// Whether the dtype is an unsigned integer.
    pub const fn is_unsigned(self) -> bool {
        matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }

    /// Whether values of this dtype have derivatives: real and complex floating point.
    pub const fn is_differentiable(self) -> bool {
        self.is_float() || self.is_complex()
    }

    /// The dtype of the real and imaginary parts; a real dtype is its own.
    pub const fn real(self) -> DType {
        match self {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => other,
        }
    }

    /// The complex dtype whose parts have this dtype; f16 and bf16 go to `c64`.
    pub const fn complex(self) -> DType {
        match self {
            DType::F64 | DType::C128 => DType::C128,
            _ => DType::C64,
        }
    }

    /// The dtype that both promote to, both being tensors of one or more dimensions
    /// (`torch.promote_types`).
    ///
    /// # Errors
    /// For `u16`, `u32` and `u64` with another integer dtype, which torch does not define.
    pub fn promote(self, other: DType) -> Result<DType> {
        if self == other {
            return Ok(self);
        }
        let (low, high) =
            if self.category() <= other.category() { (self, other) } else { (other, self) };
        if low.category() != high.category() {
            return Ok(match (low, high) {
                (DType::F64, DType::C64) => DType::C128,
                _ => high,
            });
        }
        match low.category() {
            Category::Bool => Ok(DType::Bool),
            Category::Int => promote_int(self, other),
            Category::Float => Ok(match self.size().cmp(&other.size()) {
                std::cmp::Ordering::Less => other,
                std::cmp::Ordering::Greater => self,
                std::cmp::Ordering::Equal => DType::F32, // f16 with bf16
            }),
            Category::Complex => Ok(DType::C128),
        }
    }
}

fn promote_int(a: DType, b: DType) -> Result<DType> {
    let wide_unsigned = |d| matches!(d, DType::U16 | DType::U32 | DType::U64);
    if wide_unsigned(a) || wide_unsigned(b) {
        return Err(Error::new(
            ErrorKind::DType,
            "promote",
            format!("{a} and {b} have no common dtype in torch's promotion"),
        )
        .help("convert one operand with `to_dtype` first"));
    }
    let (unsigned, other) = if a == DType::U8 {
        (true, b)
    } else if b == DType::U8 {
        (true, a)
    } else {
        (false, a)
    };
    if !unsigned {
        return Ok(if a.size() >= b.size() { a } else { b });
    }
    Ok(if other == DType::I8 { DType::I16 } else { other })
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    #[expect(unnameable_types, reason = "sealing is the point")]
    pub trait Sealed {}
}

/// A Rust type that is the element of an array.
///
/// Every bit pattern that a kernel writes is a valid value; `bool` is read and written as a byte
/// that is 0 or 1.
pub trait Element: sealed::Sealed + Copy + Send + Sync + PartialEq + fmt::Debug + 'static {
    /// The dtype that this type stands for.
    const DTYPE: DType;

    /// The bytes of a slice, in the machine's order.
    fn to_bytes(slice: &[Self]) -> Vec<u8>;

    /// The elements that `bytes` hold, which need not be aligned.
    ///
    /// # Panics
    /// If the length is no multiple of the element's size.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! element {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn to_bytes(slice: &[Self]) -> Vec<u8> {
                bytemuck::cast_slice(slice).to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                bytemuck::pod_collect_to_vec(bytes)
            }
        }
    )*};
}

element! {
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
    Complex<f32> => C64, Complex<f64> => C128,
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn to_bytes(slice: &[Self]) -> Vec<u8> {
        slice.iter().map(|&b| u8::from(b)).collect()
    }
    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&b| b != 0).collect()
    }
}

/// One host number of any dtype: a scalar operand, a fill value, the padding of a reduction.
///
/// Equality and hashing are by bits, so it can be part of a program's key.
#[derive(Clone, Copy)]
pub struct Scalar {
    dtype: DType,
    bits: [u8; 16],
}

impl Scalar {
    /// The scalar that holds `value`.
    pub fn new<T: Element>(value: T) -> Scalar {
        let mut bits = [0; 16];
        let bytes = T::to_bytes(&[value]);
        bits[..bytes.len()].copy_from_slice(&bytes);
        Scalar { dtype: T::DTYPE, bits }
    }

    /// `value` converted to `dtype` (rounded for narrower floats; truncated towards zero and
    /// saturated for integers; not zero for bool; as the real part for complex).
    pub fn from_f64(dtype: DType, value: f64) -> Scalar {
        match dtype {
            DType::Bool => Scalar::new(value != 0.0),
            DType::U8 => Scalar::new(value as u8),
            DType::U16 => Scalar::new(value as u16),
            DType::U32 => Scalar::new(value as u32),
            DType::U64 => Scalar::new(value as u64),
            DType::I8 => Scalar::new(value as i8),
            DType::I16 => Scalar::new(value as i16),
            DType::I32 => Scalar::new(value as i32),
            DType::I64 => Scalar::new(value as i64),
            DType::F16 => Scalar::new(f16::from_f64(value)),
            DType::BF16 => Scalar::new(bf16::from_f64(value)),
            DType::F32 => Scalar::new(value as f32),
            DType::F64 => Scalar::new(value),
            DType::C64 => Scalar::new(Complex::new(value as f32, 0.0)),
            DType::C128 => Scalar::new(Complex::new(value, 0.0)),
        }
    }

    /// `value` converted to `dtype`; wraps around for narrower integers, as torch does.
    pub fn from_i64(dtype: DType, value: i64) -> Scalar {
        match dtype {
            DType::Bool => Scalar::new(value != 0),
            DType::U8 => Scalar::new(value as u8),
            DType::U16 => Scalar::new(value as u16),
            DType::U32 => Scalar::new(value as u32),
            DType::U64 => Scalar::new(value as u64),
            DType::I8 => Scalar::new(value as i8),
            DType::I16 => Scalar::new(value as i16),
            DType::I32 => Scalar::new(value as i32),
            DType::I64 => Scalar::new(value),
            other => Scalar::from_f64(other, value as f64),
        }
    }

    /// Zero of `dtype` (`false` for bool).
    pub fn zero(dtype: DType) -> Scalar {
        Scalar { dtype, bits: [0; 16] }
    }

    /// One of `dtype` (`true` for bool).
    pub fn one(dtype: DType) -> Scalar {
        Scalar::from_i64(dtype, 1)
    }

    /// The largest value: infinity for floats, the maximum for integers, `true` for bool.
    pub fn max_value(dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::new(true),
            DType::U8 => Scalar::new(u8::MAX),
            DType::U16 => Scalar::new(u16::MAX),
            DType::U32 => Scalar::new(u32::MAX),
            DType::U64 => Scalar::new(u64::MAX),
            DType::I8 => Scalar::new(i8::MAX),
            DType::I16 => Scalar::new(i16::MAX),
            DType::I32 => Scalar::new(i32::MAX),
            DType::I64 => Scalar::new(i64::MAX),
            other => Scalar::from_f64(other, f64::INFINITY),
        }
    }

    /// The smallest value: minus infinity for floats, the minimum for integers, `false` for bool.
    pub fn min_value(dtype: DType) -> Scalar {
        match dtype {
            DType::I8 => Scalar::new(i8::MIN),
            DType::I16 => Scalar::new(i16::MIN),
            DType::I32 => Scalar::new(i32::MIN),
            DType::I64 => Scalar::new(i64::MIN),
            d if d.is_float() => Scalar::from_f64(d, f64::NEG_INFINITY),
            other => Scalar::zero(other),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The bytes of the one element, in the machine's order.
    pub fn bytes(&self) -> &[u8] {
        &self.bits[..self.dtype.size()]
    }

    /// The scalar whose bytes are `bytes`.
    ///
    /// # Errors
    /// If the number of bytes is not the dtype's size.
    pub fn from_le_bytes(dtype: DType, bytes: &[u8]) -> Result<Scalar> {
        if bytes.len() != dtype.size() {
            let text = format!("{} bytes are not one {dtype}", bytes.len());
            return Err(Error::new(ErrorKind::Format, "scalar", text));
        }
        let mut bits = [0; 16];
        bits[..bytes.len()].copy_from_slice(bytes);
        Ok(Scalar { dtype, bits })
    }

    fn get<T: Element>(&self) -> T {
        T::from_bytes(self.bytes())[0]
    }

    /// The value as f64 (the real part of a complex one; i64 and u64 may round).
    pub fn to_f64(&self) -> f64 {
        match self.dtype {
            DType::Bool => f64::from(u8::from(self.get::<bool>())),
            DType::U8 => self.get::<u8>().into(),
            DType::U16 => self.get::<u16>().into(),
            DType::U32 => self.get::<u32>().into(),
            DType::U64 => self.get::<u64>() as f64,
            DType::I8 => self.get::<i8>().into(),
            DType::I16 => self.get::<i16>().into(),
            DType::I32 => self.get::<i32>().into(),
            DType::I64 => self.get::<i64>() as f64,
            DType::F16 => self.get::<f16>().to_f64(),
            DType::BF16 => self.get::<bf16>().to_f64(),
            DType::F32 => self.get::<f32>().into(),
            DType::F64 => self.get::<f64>(),
            DType::C64 => self.get::<Complex<f32>>().re.into(),
            DType::C128 => self.get::<Complex<f64>>().re,
        }
    }

    /// The value as i64: floats truncate towards zero and saturate, u64 wraps.
    pub fn to_i64(&self) -> i64 {
        match self.dtype {
            DType::U64 => self.get::<u64>() as i64,
            DType::I64 => self.get::<i64>(),
            _ => self.to_f64() as i64,
        }
    }

    /// The imaginary part as f64; 0 for a real dtype.
    pub fn imag_f64(&self) -> f64 {
        match self.dtype {
            DType::C64 => self.get::<Complex<f32>>().im.into(),
            DType::C128 => self.get::<Complex<f64>>().im,
            _ => 0.0,
        }
    }

    /// The scalar converted to another dtype, as [`from_f64`](Scalar::from_f64) and
    /// [`from_i64`](Scalar::from_i64) do; complex to real drops the imaginary part.
    #[must_use]
    pub fn convert(&self, dtype: DType) -> Scalar {
        match (self.dtype, dtype) {
            (a, b) if a == b => *self,
            (a, DType::C64) if a.is_complex() => {
                Scalar::new(Complex::new(self.to_f64() as f32, self.imag_f64() as f32))
            }
            (a, DType::C128) if a.is_complex() => {
                Scalar::new(Complex::new(self.to_f64(), self.imag_f64()))
            }
            (a, _) if a.is_int() => Scalar::from_i64(dtype, self.to_i64()),
            _ => Scalar::from_f64(dtype, self.to_f64()),
        }
    }
}

impl<T: Element> From<T> for Scalar {
    fn from(value: T) -> Scalar {
        Scalar::new(value)
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        self.dtype == other.dtype && self.bits == other.bits
    }
}

impl Eq for Scalar {}

impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.dtype.hash(state);
        state.write(&self.bits);
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype.category() {
            Category::Bool => write!(f, "{}", self.get::<bool>()),
            Category::Int if self.dtype == DType::U64 => write!(f, "{}", self.get::<u64>()),
            Category::Int => write!(f, "{}", self.to_i64()),
            Category::Float => write!(f, "{:?}", self.to_f64()),
            Category::Complex => write!(f, "{:?}{:+?}j", self.to_f64(), self.imag_f64()),
        }
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}{}", self.dtype)
    }
}
