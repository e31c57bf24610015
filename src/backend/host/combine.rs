//! How two elements meet in a window or a scatter.

use bytemuck::Pod;
use half::{bf16, f16};
use num_complex::Complex;

/// The four ways in which two elements of one type become one.
pub(super) trait Combine: Pod + Send + Sync {
    /// The sum; integers wrap around.
    fn sum(self, other: Self) -> Self;
    /// The product; integers wrap around.
    fn product(self, other: Self) -> Self;
    /// The larger one; NaN wins.
    fn larger(self, other: Self) -> Self;
    /// The smaller one; NaN wins.
    fn smaller(self, other: Self) -> Self;
}

macro_rules! combine {
    ($($ty:ty)*, $sum:expr, $product:expr, $larger:expr, $smaller:expr) => {$(
        impl Combine for $ty {
            #[inline]
            fn sum(self, other: Self) -> Self { $sum(self, other) }
            #[inline]
            fn product(self, other: Self) -> Self { $product(self, other) }
            #[inline]
            fn larger(self, other: Self) -> Self { $larger(self, other) }
            #[inline]
            fn smaller(self, other: Self) -> Self { $smaller(self, other) }
        }
    )*};
}

combine!(u8 u16 u32 u64 i8 i16 i32 i64,
    Self::wrapping_add, Self::wrapping_mul, Ord::max, Ord::min);
combine!(f16 bf16 f32 f64,
    |x, y| x + y,
    |x, y| x * y,
    |x: Self, y| if x >= y || x.is_nan() { x } else { y },
    |x: Self, y| if x <= y || x.is_nan() { x } else { y });
// Complex numbers have no order; the callers validate that none is asked for.
combine!(Complex<f32> Complex<f64>, |x, y| x + y, |x, y| x * y, |x, _| x, |x, _| x);
