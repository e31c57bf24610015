//! Linear algebra over the last two dimensions: factorisations, systems, determinants.
//!
//! Nothing here looks at the data, so that it works under every transform: a matrix that cannot be
//! factored or inverted gives NaN or infinities, where torch raises.

use super::promotion::{expand, first_of, result_type};
use super::{placed, wrap};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::call::fused;
use crate::ops::linalg::{self, Transpose, Triangle};
use crate::shape::{self, Shape, broadcast};
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use smallvec::smallvec;

/// Checks that the last two dimensions are matrices; square ones, if asked for.
fn check(op: &'static str, x: &Value, square: bool) -> Result<()> {
    let aval = x.aval();
    let fail = |text: String| Err(Error::new(ErrorKind::Shape, op, text));
    if !matches!(aval.dtype(), DType::F32 | DType::F64 | DType::C64 | DType::C128) {
        let text = format!("takes f32, f64, c64 and c128, not {aval}");
        return Err(Error::new(ErrorKind::DType, op, text).help("convert it with `to_dtype`"));
    }
    if aval.rank() < 2 {
        return fail(format!("{aval} is no matrix nor a batch of them"));
    }
    let (rows, columns) = (aval.shape()[aval.rank() - 2], aval.shape()[aval.rank() - 1]);
    if square && rows != columns {
        return fail(format!("{aval} is not square: {rows} rows and {columns} columns"));
    }
    Ok(())
}

/// The matrix and the right side in one dtype, with their batch dimensions broadcast. `axis` is the
/// dimension of the right side, among its last two, that the matrix is as large as.
fn beside(op: &'static str, a: &Tensor, b: &Tensor, axis: usize) -> Result<(Value, Value)> {
    let dtype = result_type(&[a.into(), b.into()]).map_err(|e| e.in_op(op))?;
    let (a, b) = (ops::convert(&a.value()?, dtype)?, ops::convert(&b.value()?, dtype)?);
    check(op, &a, true)?;
    check(op, &b, false)?;
    let (n, m) = (a.shape()[a.rank() - 1], b.shape()[b.rank() - 2 + axis]);
    if n != m {
        let text = format!(
            "matrix {} and right side {} do not fit: dimension {} of the right side has size {m}, \
             not {n}",
            a.aval(),
            b.aval(),
            b.rank() - 2 + axis
        );
        return Err(Error::new(ErrorKind::Shape, op, text));
    }
    let lead = |v: &Value| Shape::new(&v.shape()[..v.rank() - 2]);
    let batch = broadcast(op, &lead(&a), &lead(&b))?;
    let spread = |v: &Value| {
        let last = &v.shape()[v.rank() - 2..];
        expand(v, &batch.iter().chain(last).copied().collect::<Shape>())
    };
    Ok((spread(&a)?, spread(&b)?))
}

fn one(x: &Value) -> &[Value] {
    std::slice::from_ref(x)
}

fn cholesky(x: &Value, upper: bool) -> Result<Value> {
    check("cholesky", x, true)?;
    first_of(
        "cholesky",
        fused("cholesky", &[i64::from(upper)], one(x), |v| {
            let x = ops::add(&v[0], &linalg::transposed(&v[0], Transpose::Adjoint)?)?;
            let l = ops::cholesky(&ops::mul(&x, &ops::full_like(&x, 0.5)?)?)?;
            Ok(smallvec![if upper { linalg::transposed(&l, Transpose::Adjoint)? } else { l }])
        }),
    )
}

fn cholesky_solve(b: &Tensor, factor: &Tensor, upper: bool) -> Result<Value> {
    let (factor, b) = beside("cholesky_solve", factor, b, 0)?;
    first_of(
        "cholesky_solve",
        fused("cholesky_solve", &[i64::from(upper)], &[factor, b], |v| {
            let first = if upper { Transpose::Adjoint } else { Transpose::No };
            let second = if upper { Transpose::No } else { Transpose::Adjoint };
            let how = |transpose| Triangle { left: true, lower: !upper, unit: false, transpose };
            let y = ops::triangular_solve(&v[0], &v[1], how(first))?;
            Ok(smallvec![ops::triangular_solve(&v[0], &y, how(second))?])
        }),
    )
}

/// The factors as torch gives them: the permutation matrix, `l` and `u`.
fn lu(x: &Value) -> Result<Values> {
    check("lu", x, false)?;
    fused("lu", &[], one(x), |v| {
        let (lu, _, order) = ops::lu(&v[0])?;
        let (rank, dtype) = (lu.rank(), lu.dtype());
        let (m, n) = (lu.shape()[rank - 2], lu.shape()[rank - 1]);
        let square = lu.shape().with(rank - 1, m);
        // Row `order[j]` of the matrix became row `j`.
        let row = ops::iota(DType::I32, &square, rank - 2)?;
        let axes: Vec<usize> = (0..rank).filter(|&a| a != rank - 2).collect();
        let from = ops::broadcast_in_dim(&order, &square, &axes)?;
        let p = ops::convert(&ops::eq(&row, &from)?, dtype)?;
        let l = linalg::lower_part(&ops::slice_axis(&lu, rank - 1, 0, m.min(n))?, -1)?;
        let l = ops::add(&l, &linalg::identity(dtype, l.shape())?)?;
        let u = linalg::upper_part(&ops::slice_axis(&lu, rank - 2, 0, m.min(n))?, 0)?;
        Ok(smallvec![p, l, u])
    })
    .map_err(|e| e.in_op("lu"))
}

fn lu_factor(x: &Value) -> Result<Values> {
    check("lu_factor", x, false)?;
    fused("lu_factor", &[], one(x), |v| {
        let (lu, pivots, _) = ops::lu(&v[0])?;
        let pivots = ops::add(&pivots, &ops::full_like(&pivots, 1.0)?)?;
        Ok(smallvec![lu, pivots])
    })
    .map_err(|e| e.in_op("lu_factor"))
}

fn solve(a: &Tensor, b: &Tensor) -> Result<Value> {
    let shape = a.shape();
    // As in torch, a right side with one dimension less and the same batch is a batch of vectors.
    let vector = b.dim() == 1
        || (b.dim() + 1 == shape.rank() && shape[..shape.rank() - 1] == *b.shape().dims());
    let b = if vector { b.unsqueeze(-1)? } else { b.clone() };
    let (a, b) = beside("solve", a, &b, 0)?;
    first_of(
        "solve",
        fused("solve", &[i64::from(vector)], &[a, b], |v| {
            let x = ops::solve(&v[0], &v[1])?;
            let shape = x.shape().remove(x.rank() - 1);
            Ok(smallvec![if vector { ops::reshape(&x, &shape)? } else { x }])
        }),
    )
}

fn inv(x: &Value) -> Result<Value> {
    check("inv", x, true)?;
    first_of(
        "inv",
        fused("inv", &[], one(x), |v| {
            Ok(smallvec![ops::solve(&v[0], &linalg::identity(v[0].dtype(), v[0].shape())?)?])
        }),
    )
}

/// The diagonal of `u`, and 1 or -1 for an even or odd number of exchanges.
fn pivots_of(x: &Value) -> Result<(Value, Value)> {
    let (lu, pivots, _) = ops::lu(x)?;
    let axis = pivots.rank() - 1;
    let own = ops::iota(DType::I32, pivots.shape(), axis)?;
    let count = ops::reduce_sum(&ops::convert(&ops::ne(&pivots, &own)?, DType::I32)?, &[axis])?;
    let odd = ops::rem(&count, &ops::full_like(&count, 2.0)?)?;
    let sign =
        ops::sub(&ops::full_like(&odd, 1.0)?, &ops::mul(&odd, &ops::full_like(&odd, 2.0)?)?)?;
    Ok((linalg::diagonal(&lu)?, ops::convert(&sign, x.dtype())?))
}

fn det(x: &Value) -> Result<Value> {
    check("det", x, true)?;
    first_of(
        "det",
        fused("det", &[], one(x), |v| {
            let (diagonal, sign) = pivots_of(&v[0])?;
            Ok(smallvec![ops::mul(&ops::reduce_prod(&diagonal, &[diagonal.rank() - 1])?, &sign)?])
        }),
    )
}

/// The sign and the logarithm of the absolute value of the determinant.
fn sign_and_log(x: &Value) -> Result<(Value, Value)> {
    let (diagonal, sign) = pivots_of(x)?;
    let axis = diagonal.rank() - 1;
    let signs = ops::reduce_prod(&ops::sign(&diagonal)?, &[axis])?;
    let log = ops::reduce_sum(&ops::log(&ops::abs(&diagonal)?)?, &[axis])?;
    Ok((ops::mul(&signs, &sign)?, log))
}

fn slogdet(x: &Value) -> Result<Values> {
    check("slogdet", x, true)?;
    let outs = fused("slogdet", &[], one(x), |v| {
        let (sign, log) = sign_and_log(&v[0])?;
        Ok(smallvec![sign, log])
    });
    outs.map_err(|e| e.in_op("slogdet"))
}

fn logdet(x: &Value) -> Result<Value> {
    check("logdet", x, true)?;
    first_of(
        "logdet",
        fused("logdet", &[], one(x), |v| {
            let (sign, log) = sign_and_log(&v[0])?;
            let log = if sign.dtype().is_complex() {
                ops::complex(&log, &ops::zeros(log.aval())?)?
            } else {
                log
            };
            // The logarithm of the sign is 0, or NaN for -1 and -inf for 0.
            Ok(smallvec![ops::add(&log, &ops::log(&sign)?)?])
        }),
    )
}

fn diag_embed(x: &Value, offset: i64, dims: (i64, i64)) -> Result<Value> {
    let rank = x.rank() + 1;
    let (a, b) =
        (shape::axis("diag_embed", dims.0, rank)?, shape::axis("diag_embed", dims.1, rank)?);
    if x.rank() == 0 || a == b {
        let text = match x.rank() {
            0 => format!("takes at least one dimension, not {}", x.aval()),
            _ => format!("dims {} and {} are the same", dims.0, dims.1),
        };
        return Err(Error::new(ErrorKind::Axis, "diag_embed", text));
    }
    let params = [offset, a as i64, b as i64];
    first_of(
        "diag_embed",
        fused("diag_embed", &params, one(x), |v| {
            let x = &v[0];
            let last = x.rank() - 1;
            let mut pads = [vec![0; rank - 1], vec![0; rank - 1]];
            pads[usize::from(offset > 0)][last] = offset.unsigned_abs() as i64;
            let zero = Value::scalar(Scalar::zero(x.dtype()));
            let x = ops::pad(x, &zero, &pads[0], &pads[1], &vec![0; rank - 1])?;
            let square = x.shape().insert(rank - 1, x.shape()[last]);
            let row = ops::iota(DType::I32, &square, rank - 2)?;
            let column = ops::iota(DType::I32, &square, rank - 1)?;
            let wanted = ops::add(&row, &ops::full_like(&row, offset as f64)?)?;
            let axes: Vec<usize> = (0..rank - 1).collect();
            let rows = ops::broadcast_in_dim(&x, &square, &axes)?;
            let out = ops::select(&ops::eq(&column, &wanted)?, &rows, &ops::zeros(rows.aval())?)?;
            // Rows go to dimension `a`, columns to `b`.
            let mut perm: Vec<usize> = (0..rank - 2).collect();
            let mut ends = [(a, rank - 2), (b, rank - 1)];
            ends.sort_unstable();
            for (at, from) in ends {
                perm.insert(at, from);
            }
            Ok(smallvec![ops::permute(&out, &perm)?])
        }),
    )
}

fn trace(x: &Value) -> Result<Value> {
    if x.rank() != 2 {
        let text = format!("takes a matrix, not {}", x.aval());
        return Err(Error::new(ErrorKind::Shape, "trace", text));
    }
    let whole = x.dtype().is_int() || x.dtype() == DType::Bool;
    first_of(
        "trace",
        fused("trace", &[], one(x), |v| {
            let x = if whole { ops::convert(&v[0], DType::I64)? } else { v[0].clone() };
            let n = x.shape()[0].min(x.shape()[1]);
            let square = ops::slice_axis(&ops::slice_axis(&x, 0, 0, n)?, 1, 0, n)?;
            Ok(smallvec![ops::reduce_sum(&linalg::diagonal(&square)?, &[0])?])
        }),
    )
}

/// The tensors of a program's results.
fn tensors<const N: usize>(op: &'static str, outs: Result<Values>) -> Result<[Tensor; N]> {
    let outs: Vec<Tensor> = outs?.into_iter().map(Tensor::from_value).collect();
    outs.try_into().map_err(|_| Error::new(ErrorKind::NoRule, op, "gave another number of results"))
}

impl Tensor {
    /// The triangular factor of each Hermitian positive definite matrix: `l` with `l · l^H = self`,
    /// or its adjoint if `upper` holds.
    ///
    /// **Shapes:** `[.., n, n]` gives the same. **Dtypes:** f32, f64, c64, c128. **Unlike torch:** a
    /// matrix that is not positive definite gives NaN in the triangle, as in JAX, where torch
    /// raises; and the mean of the matrix and its adjoint is factored, where torch reads one
    /// triangle.
    ///
    /// # Errors
    /// If the matrices are not square or of another dtype.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[4.0f64, 2.0, 2.0, 5.0], [2, 2])?;
    /// assert_eq!(x.cholesky(false)?.to_vec::<f64>()?, [2.0, 0.0, 1.0, 2.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.linalg.cholesky](https://docs.pytorch.org/docs/stable/generated/torch.linalg.cholesky.html).
    #[track_caller]
    pub fn cholesky(&self, upper: bool) -> Result<Tensor> {
        wrap(self.value().and_then(|x| cholesky(&x, upper)))
    }

    /// The unknown `x` of `a · x = self`, where `factor` is the [`Tensor::cholesky`] of `a`.
    ///
    /// **Shapes:** `self` is `[.., n, k]`, `factor` is `[.., n, n]`; batches broadcast.
    ///
    /// # Errors
    /// If shapes do not fit, or a dtype is no f32, f64, c64 or c128.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let l = Tensor::from_slice(&[2.0f64, 0.0, 1.0, 2.0], [2, 2])?;
    /// let b = Tensor::from_slice(&[4.0f64, 2.0], [2, 1])?;
    /// assert_eq!(b.cholesky_solve(&l, false)?.to_vec::<f64>()?, [1.0, 0.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.cholesky_solve](https://docs.pytorch.org/docs/stable/generated/torch.cholesky_solve.html).
    #[track_caller]
    pub fn cholesky_solve(&self, factor: &Tensor, upper: bool) -> Result<Tensor> {
        wrap(cholesky_solve(self, factor, upper))
    }

    /// The unknown `x` of `self · x = b` (of `x · self = b` unless `left` holds), where only the
    /// upper or lower triangle of `self` is read, and not the diagonal if `unitriangular` holds.
    ///
    /// **Shapes:** `self` is `[.., n, n]`, `b` is `[.., n, k]` (`[.., k, n]` unless `left`); batches
    /// broadcast. A zero on the diagonal gives infinities or NaN.
    ///
    /// # Errors
    /// If shapes do not fit, or a dtype is no f32, f64, c64 or c128.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let a = Tensor::from_slice(&[2.0f64, 0.0, 1.0, 4.0], [2, 2])?;
    /// let b = Tensor::from_slice(&[2.0f64, 9.0], [2, 1])?;
    /// let x = a.solve_triangular(&b, false, true, false)?;
    /// assert_eq!(x.to_vec::<f64>()?, [1.0, 2.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.linalg.solve_triangular](https://docs.pytorch.org/docs/stable/generated/torch.linalg.solve_triangular.html).
    #[track_caller]
    pub fn solve_triangular(
        &self,
        b: &Tensor,
        upper: bool,
        left: bool,
        unitriangular: bool,
    ) -> Result<Tensor> {
        let run = || {
            let (a, b) = beside("solve_triangular", self, b, usize::from(!left))?;
            let (unit, transpose) = (unitriangular, Transpose::No);
            let how = Triangle { left, lower: !upper, unit, transpose };
            ops::triangular_solve(&a, &b, how).map_err(|e| e.in_op("solve_triangular"))
        };
        wrap(run())
    }

    /// The factors of each matrix: a permutation `p`, a lower triangular `l` with ones on its
    /// diagonal and an upper triangular `u` with `p · l · u = self`.
    ///
    /// **Shapes:** `[.., m, n]` gives `[.., m, m]`, `[.., m, k]` and `[.., k, n]` for
    /// `k = min(m, n)`. **Dtypes:** f32, f64, c64, c128.
    ///
    /// # Errors
    /// If there are fewer than two dimensions, or the dtype is another.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1.0f64, 2.0, 4.0, 2.0], [2, 2])?;
    /// let (p, l, u) = x.lu()?;
    /// assert_eq!(l.to_vec::<f64>()?, [1.0, 0.0, 0.25, 1.0]);
    /// assert_eq!(p.matmul(&l)?.matmul(&u)?.to_vec::<f64>()?, x.to_vec::<f64>()?);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.linalg.lu](https://docs.pytorch.org/docs/stable/generated/torch.linalg.lu.html).
    #[track_caller]
    pub fn lu(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let [p, l, u] = placed(self.value().and_then(|x| tensors("lu", lu(&x))))?;
        Ok((p, l, u))
    }

    /// Both factors of each matrix in one tensor, and the exchanges of rows as i32, counted from 1:
    /// row `i` was exchanged with row `pivots[i] - 1`.
    ///
    /// **Shapes:** `[.., m, n]` gives the same and `[.., min(m, n)]`. **Dtypes:** f32, f64, c64,
    /// c128. **Unlike torch:** a singular matrix is no error.
    ///
    /// # Errors
    /// If there are fewer than two dimensions, or the dtype is another.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1.0f64, 2.0, 4.0, 2.0], [2, 2])?;
    /// let (lu, pivots) = x.lu_factor()?;
    /// assert_eq!(lu.to_vec::<f64>()?, [4.0, 2.0, 0.25, 1.5]);
    /// assert_eq!(pivots.to_vec::<i32>()?, [2, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.linalg.lu_factor](https://docs.pytorch.org/docs/stable/generated/torch.linalg.lu_factor.html).
    #[track_caller]
    pub fn lu_factor(&self) -> Result<(Tensor, Tensor)> {
        let outs = self.value().and_then(|x| tensors("lu_factor", lu_factor(&x)));
        let [lu, pivots] = placed(outs)?;
        Ok((lu, pivots))
    }

    /// The unknown `x` of `self · x = b`.
    ///
    /// **Shapes:** `self` is `[.., n, n]`; `b` is a vector `[n]`, a batch of vectors `[.., n]` with
    /// the batch of `self`, or `[.., n, k]`, whose batch broadcasts. **Dtypes:** promoted; f32, f64,
    /// c64, c128. **Unlike torch:** a singular matrix gives infinities or NaN, where torch raises.
    /// Derivatives solve with the same factors.
    ///
    /// # Errors
    /// If the matrices are not square, `b` does not fit, or a dtype is another.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let a = Tensor::from_slice(&[0.0f64, 2.0, 4.0, 0.0], [2, 2])?;
    /// let b = Tensor::from_slice(&[6.0f64, 8.0], [2])?;
    /// assert_eq!(a.solve(&b)?.to_vec::<f64>()?, [2.0, 3.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.linalg.solve](https://docs.pytorch.org/docs/stable/generated/torch.linalg.solve.html).
    #[track_caller]
    pub fn solve(&self, b: &Tensor) -> Result<Tensor> {
        wrap(solve(self, b))
    }

    /// The inverse of each matrix; infinities or NaN where there is none (torch raises).
    ///
    /// **Shapes:** `[.., n, n]` gives the same. **Dtypes:** f32, f64, c64, c128.
    ///
    /// # Errors
    /// If the matrices are not square, or the dtype is another.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let a = Tensor::from_slice(&[0.0f64, 2.0, 4.0, 0.0], [2, 2])?;
    /// assert_eq!(a.inv()?.to_vec::<f64>()?, [0.0, 0.25, 0.5, 0.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.linalg.inv](https://docs.pytorch.org/docs/stable/generated/torch.linalg.inv.html).
    #[track_caller]
    pub fn inv(&self) -> Result<Tensor> {
        wrap(self.value().and_then(|x| inv(&x)))
    }

    /// The determinant of each matrix. At a singular matrix the derivative is NaN or infinite.
    ///
    /// **Shapes:** `[.., n, n]` gives `[..]`. **Dtypes:** f32, f64, c64, c128.
    ///
    /// # Errors
    /// If the matrices are not square, or the dtype is another.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let a = Tensor::from_slice(&[0.0f64, 2.0, 4.0, 0.0], [2, 2])?;
    /// assert_eq!(a.det()?.item::<f64>()?, -8.0);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.linalg.det](https://docs.pytorch.org/docs/stable/generated/torch.linalg.det.html).
    #[track_caller]
    pub fn det(&self) -> Result<Tensor> {
        wrap(self.value().and_then(|x| det(&x)))
    }

    /// The sign of each determinant, and the logarithm of its absolute value: 0 and `-inf` for a
    /// singular matrix. The sign of a complex determinant has length 1.
    ///
    /// **Shapes:** `[.., n, n]` gives `[..]` twice. **Dtypes:** f32, f64, c64, c128; the logarithm
    /// is real.
    ///
    /// # Errors
    /// If the matrices are not square, or the dtype is another.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let a = Tensor::from_slice(&[0.0f64, 1.0, 1.0, 0.0], [2, 2])?;
    /// let (sign, log) = a.slogdet()?;
    /// assert_eq!((sign.item::<f64>()?, log.item::<f64>()?), (-1.0, 0.0));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.linalg.slogdet](https://docs.pytorch.org/docs/stable/generated/torch.linalg.slogdet.html).
    #[track_caller]
    pub fn slogdet(&self) -> Result<(Tensor, Tensor)> {
        let outs = self.value().and_then(|x| tensors("slogdet", slogdet(&x)));
        let [sign, log] = placed(outs)?;
        Ok((sign, log))
    }

    /// The logarithm of each determinant: NaN for a negative one, `-inf` for 0.
    ///
    /// **Shapes:** `[.., n, n]` gives `[..]`. **Dtypes:** f32, f64, c64, c128.
    ///
    /// # Errors
    /// If the matrices are not square, or the dtype is another.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let a = Tensor::from_slice(&[2.0f64, 0.0, 0.0, 0.5], [2, 2])?;
    /// assert_eq!(a.logdet()?.item::<f64>()?, 0.0);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.logdet](https://docs.pytorch.org/docs/stable/generated/torch.logdet.html).
    #[track_caller]
    pub fn logdet(&self) -> Result<Tensor> {
        wrap(self.value().and_then(|x| logdet(&x)))
    }

    /// Matrices with the last dimension on a diagonal (0: the main one, 1: the one above), their
    /// rows along `dim1` and columns along `dim2` of the result.
    ///
    /// # Errors
    /// If there is no dimension, or `dim1` and `dim2` are the same or out of range.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1i32, 2], [2])?;
    /// assert_eq!(x.diag_embed(0, -2, -1)?.to_vec::<i32>()?, [1, 0, 0, 2]);
    /// assert_eq!(x.diag_embed(1, 0, 1)?.to_vec::<i32>()?, [0, 1, 0, 0, 0, 2, 0, 0, 0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.diag_embed](https://docs.pytorch.org/docs/stable/generated/torch.diag_embed.html).
    #[track_caller]
    pub fn diag_embed(&self, offset: i64, dim1: i64, dim2: i64) -> Result<Tensor> {
        wrap(self.value().and_then(|x| diag_embed(&x, offset, (dim1, dim2))))
    }

    /// The sum of a matrix's main diagonal; of integers and bools as i64.
    ///
    /// # Errors
    /// If the tensor is no matrix.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// assert_eq!(x.trace()?.item::<f32>()?, 5.0);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.trace](https://docs.pytorch.org/docs/stable/generated/torch.trace.html).
    #[track_caller]
    pub fn trace(&self) -> Result<Tensor> {
        wrap(self.value().and_then(|x| trace(&x)))
    }
}
