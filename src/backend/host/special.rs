//! Special functions that `libm` does not have.

use num_traits::{Float, FloatConst, cast};

/// The inverse error function in single precision: Giles' two polynomials in `-ln(1 - x^2)`.
pub(super) fn erf_inv_f32(x: f32) -> f32 {
    const CENTRE: [f32; 9] = [
        2.810_226_4e-8,
        3.432_739_4e-7,
        -3.523_387_7e-6,
        -4.391_506_5e-6,
        2.185_808_7e-4,
        -1.253_725e-3,
        -4.177_681_6e-3,
        0.246_640_73,
        1.501_409_4,
    ];
    const TAIL: [f32; 9] = [
        -2.002_142_6e-4,
        1.009_505_6e-4,
        1.349_343_2e-3,
        -3.673_428_4e-3,
        5.739_507_7e-3,
        -7.622_461_3e-3,
        9.438_870_5e-3,
        1.001_674,
        2.832_976_8,
    ];
    if x.abs() == 1.0 {
        return x * f32::INFINITY;
    }
    let near = x.abs() < 0.5;
    let w = if near { -(-x * x).ln_1p() } else { -((1.0 - x) * (1.0 + x)).ln() };
    let (table, at) = if w < 5.0 { (&CENTRE, w - 2.5) } else { (&TAIL, w.sqrt() - 3.0) };
    x * table.iter().fold(0.0, |sum, &c| sum * at + c)
}

/// The inverse error function in double precision: Winitzki's estimate (2e-3 off) and three steps
/// of Halley's method on `erf`, or on `erfc` where `erf` is close to 1.
pub(super) fn erf_inv_f64(x: f64) -> f64 {
    let y = x.abs();
    if y == 0.0 || is_outside(y) {
        return if y == 0.0 { x } else { f64::NAN };
    }
    if y == 1.0 {
        return x * f64::INFINITY;
    }
    let log = (-y * y).ln_1p();
    let a = 0.147;
    let t = 2.0 / (f64::PI() * a) + log / 2.0;
    let root = (t * t - log / a).sqrt();
    let square = if t > 0.0 { -log / a / (root + t) } else { root - t };
    let mut z = square.sqrt();
    for _ in 0..3 {
        let off = if y < 0.5 { libm::erf(z) - y } else { (1.0 - y) - libm::erfc(z) };
        let step = off * f64::PI().sqrt() / 2.0 * (z * z).exp();
        z -= step / (1.0 + z * step);
    }
    z.copysign(x)
}

fn is_outside(y: f64) -> bool {
    y > 1.0 || y.is_nan()
}

/// The digamma function: reflected to the right half, moved up to 10 by its recurrence, and there
/// its asymptotic series.
pub(super) fn digamma<T: Float + FloatConst>(x: T) -> T {
    let c = |v: f64| cast::<f64, T>(v).unwrap_or_else(T::nan);
    if x <= T::zero() {
        if x == x.floor() {
            return T::nan();
        }
        let angle = T::PI() * (x - x.round());
        return digamma(T::one() - x) - T::PI() / angle.tan();
    }
    let (mut x, mut shift) = (x, T::zero());
    while x < c(10.0) {
        shift = shift - x.recip();
        x = x + T::one();
    }
    // B(2n) / 2n for n from 7 to 1.
    const SERIES: [f64; 7] = [
        1.0 / 12.0,
        -691.0 / 32760.0,
        1.0 / 132.0,
        -1.0 / 240.0,
        1.0 / 252.0,
        -1.0 / 120.0,
        1.0 / 12.0,
    ];
    let inverse = (x * x).recip();
    let series = SERIES.iter().fold(T::zero(), |sum, &b| (sum + c(b)) * inverse);
    shift + x.ln() - c(0.5) / x - series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_inv_at_known_points() {
        for (x, y) in [
            (0.5, 0.476_936_276_204_469_9),
            (-0.9, -1.163_087_153_676_674),
            (1e-10, 8.862_269_254_527_58e-11),
            (0.999, 2.326_753_765_513_525),
        ] {
            let z = erf_inv_f64(x);
            assert!((z / y - 1.0).abs() < 1e-15, "erf_inv({x}) = {z}, not {y}");
        }
        assert_eq!((erf_inv_f64(1.0), erf_inv_f32(-1.0)), (f64::INFINITY, f32::NEG_INFINITY));
        assert!(erf_inv_f64(1.1).is_nan() && erf_inv_f32(1.1).is_nan(), "no inverse beyond 1");
        assert!(erf_inv_f32(-0.0).is_sign_negative(), "the sign of zero stays");
    }

    #[test]
    fn erf_inv_inverts_and_both_precisions_agree() {
        for i in 1..2000 {
            let x = f64::from(i) / 2000.0;
            let z = erf_inv_f64(x);
            assert!((libm::erf(z) - x).abs() < 3e-16, "erf(erf_inv({x}))");
            let single = f64::from(erf_inv_f32(x as f32));
            let z = erf_inv_f64(f64::from(x as f32));
            assert!((single / z - 1.0).abs() < 5e-7, "erf_inv({x}): {single} and {z}");
        }
        for exponent in 1..53 {
            let tail = 0.5f64.powi(exponent);
            let off = libm::erfc(erf_inv_f64(1.0 - tail)) / tail - 1.0;
            assert!(off.abs() < 1e-13, "1 - 2^-{exponent}: {off}");
        }
    }

    #[test]
    fn digamma_at_known_points() {
        for (x, y) in [
            (1.0, -0.577_215_664_901_532_9),
            (0.5, -1.963_510_026_021_423_5),
            (10.0, 2.251_752_589_066_721),
            (-0.5, 0.036_489_973_978_576_52),
            (1e10, 23.025_850_929_890_456),
        ] {
            let z: f64 = digamma(x);
            assert!((z - y).abs() < 1e-14 * y.abs().max(1.0), "digamma({x}) = {z}, not {y}");
            let z: f32 = digamma(x as f32);
            assert!((f64::from(z) - y).abs() < 1e-6 * y.abs().max(1.0), "f32 digamma({x}) = {z}");
        }
        assert!(digamma(0.0f64).is_nan() && digamma(-3.0f32).is_nan(), "poles");
    }
}
