//! Products that sum: `matmul` and its special cases, `linear`, `tensordot`.
//!
//! All of them end in [`ops::dot_general`]; half precision is summed in
//! `f32`. [`einsum`](super::einsum) is the general form.

use super::promotion::{Kind, Operand, elementwise, first_of, result_type};
use super::{placed, wrap};
use crate::aval::Aval;
use crate::backend::host::dot::DotDims;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::ops::call::fused;
use crate::ops::precision::matmul_precision;
use crate::shape::{self, Shape, broadcast};
use crate::trace::Value;
use crate::trace::cell::Tensor;
use smallvec::smallvec;

#[cold]
fn cannot_multiply(op: &'static str, lhs: &Aval, rhs: &Aval, why: String) -> Error {
    let text = format!("lhs {lhs} and rhs {rhs} cannot be multiplied: {why}");
    Error::new(ErrorKind::Shape, op, text)
}

fn dot(lhs: &Value, rhs: &Value, batch: usize, contract: (usize, usize)) -> Result<Value> {
    let dims = DotDims {
        lhs_batch: (0..batch).collect(),
        rhs_batch: (0..batch).collect(),
        lhs_contract: vec![contract.0],
        rhs_contract: vec![contract.1],
    };
    ops::dot_general(lhs, rhs, &dims, matmul_precision(), None)
}

/// The axes that `matmul` sums over.
fn inner_axes(op: &'static str, lhs: &Aval, rhs: &Aval) -> Result<(usize, usize)> {
    for (side, aval) in [("lhs", lhs), ("rhs", rhs)] {
        if aval.rank() == 0 {
            let why = format!("{side} has no dimensions");
            return Err(cannot_multiply(op, lhs, rhs, why).help("use `mul`"));
        }
    }
    let (a, b) = (lhs.rank() - 1, rhs.rank().saturating_sub(2));
    let (k, l) = (lhs.shape()[a], rhs.shape()[b]);
    if k == l {
        return Ok((a, b));
    }
    let why = format!("axis {a} of lhs has size {k}, but axis {b} of rhs has size {l}");
    Err(cannot_multiply(op, lhs, rhs, why))
}

/// The product of values of one dtype, by torch's rules of ranks.
pub(crate) fn product(op: &'static str, x: &Value, y: &Value) -> Result<Value> {
    let (a, b) = inner_axes(op, x.aval(), y.aval())?;
    if y.rank() <= 2 {
        return dot(x, y, 0, (a, b));
    }
    if x.rank() <= 2 {
        let out = dot(x, y, 0, (a, b))?;
        // The rows of the left operand came out before the batch.
        return if x.rank() == 2 { ops::move_axis(&out, 0, y.rank() - 2) } else { Ok(out) };
    }
    let lead = |v: &Value| Shape::new(&v.shape()[..v.rank() - 2]);
    let batch = broadcast(op, &lead(x), &lead(y))?;
    let spread = |v: &Value| {
        let shape: Shape = batch.iter().chain(&v.shape()[v.rank() - 2..]).copied().collect();
        super::promotion::expand(v, &shape)
    };
    let n = batch.rank();
    dot(&spread(x)?, &spread(y)?, n, (n + 1, n))
}

fn matmul(op: &'static str, lhs: &Tensor, rhs: &Tensor) -> Result<Value> {
    let (x, y) = (lhs.value()?, rhs.value()?);
    inner_axes(op, x.aval(), y.aval())?;
    if x.dtype() == y.dtype() && y.rank() <= 2 {
        return product(op, &x, &y).map_err(|e| e.in_op(op));
    }
    let dtype = result_type(&[lhs.into(), rhs.into()]).map_err(|e| e.in_op(op))?;
    first_of(
        op,
        fused("matmul", &[dtype as i64], &[x, y], |v| {
            let (x, y) = (ops::convert(&v[0], dtype)?, ops::convert(&v[1], dtype)?);
            Ok(smallvec![product(op, &x, &y)?])
        }),
    )
}

fn check_ranks(op: &'static str, lhs: &Tensor, rhs: &Tensor, ranks: (usize, usize)) -> Result<()> {
    if (lhs.dim(), rhs.dim()) == ranks {
        return Ok(());
    }
    let (a, b) = ranks;
    let why = format!("they need {a} and {b} dimensions");
    Err(cannot_multiply(op, &lhs.aval(), &rhs.aval(), why).help("use `matmul` for other ranks"))
}

fn with_bias(
    op: &'static str,
    product: Value,
    bias: &Tensor,
    scale: Option<(f64, f64)>,
) -> Result<Value> {
    let product = Tensor::from_value(product);
    let (beta, alpha) = scale.unwrap_or((1.0, 1.0));
    if (beta, alpha) == (1.0, 1.0) {
        return elementwise(op, Kind::One, &[], &[(&product).into(), bias.into()], |v| {
            ops::add(&v[0], &v[1])
        });
    }
    let operands = [(&product).into(), bias.into(), Operand::from(alpha), Operand::from(beta)];
    elementwise(op, Kind::Many, &[1], &operands, |v| {
        ops::add(&ops::mul(&v[0], &v[2])?, &ops::mul(&v[1], &v[3])?)
    })
}

impl Tensor {
    /// The matrix product of `self` and `rhs`, batched over the leading dimensions.
    ///
    /// **Shapes:** `[.., m, k]` and `[.., k, n]` give `[.., m, n]`; leading dimensions broadcast; a
    /// one-dimensional operand counts as a row (left) or a column (right) and its dimension goes
    /// away. **Dtypes:** promoted as in `torch.result_type`. **Unlike torch:** dtypes may differ.
    ///
    /// # Errors
    /// If the inner sizes differ, if leading dimensions do not broadcast, or if an operand is a
    /// scalar or bool.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
    /// let y = Tensor::from_slice(&[1.0f32, 10.0], [2])?;
    /// assert_eq!(x.matmul(&y)?.to_vec::<f32>()?, [21.0, 43.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.matmul](https://docs.pytorch.org/docs/stable/generated/torch.matmul.html);
    /// one [`ops::dot_general`].
    #[track_caller]
    pub fn matmul(&self, rhs: &Tensor) -> Result<Tensor> {
        wrap(matmul("matmul", self, rhs))
    }

    /// The product of two matrices: `[m, k]` and `[k, n]` give `[m, n]`.
    ///
    /// **Source:** [torch.mm](https://docs.pytorch.org/docs/stable/generated/torch.mm.html).
    #[track_caller]
    pub fn mm(&self, mat2: &Tensor) -> Result<Tensor> {
        wrap(check_ranks("mm", self, mat2, (2, 2)).and_then(|()| matmul("mm", self, mat2)))
    }

    /// The products of two batches of matrices: `[b, m, k]` and `[b, k, n]` give `[b, m, n]`.
    ///
    /// **Source:** [torch.bmm](https://docs.pytorch.org/docs/stable/generated/torch.bmm.html).
    #[track_caller]
    pub fn bmm(&self, mat2: &Tensor) -> Result<Tensor> {
        let run = || {
            check_ranks("bmm", self, mat2, (3, 3))?;
            let (a, b) = (self.shape()[0], mat2.shape()[0]);
            if a != b {
                let why = format!("the batches have sizes {a} and {b}");
                return Err(cannot_multiply("bmm", &self.aval(), &mat2.aval(), why));
            }
            matmul("bmm", self, mat2)
        };
        wrap(run())
    }

    /// The product of a matrix and a vector: `[m, k]` and `[k]` give `[m]`.
    ///
    /// **Source:** [torch.mv](https://docs.pytorch.org/docs/stable/generated/torch.mv.html).
    #[track_caller]
    pub fn mv(&self, vec: &Tensor) -> Result<Tensor> {
        wrap(check_ranks("mv", self, vec, (2, 1)).and_then(|()| matmul("mv", self, vec)))
    }

    /// The inner product of two vectors.
    ///
    /// **Source:** [torch.dot](https://docs.pytorch.org/docs/stable/generated/torch.dot.html).
    #[track_caller]
    pub fn dot(&self, tensor: &Tensor) -> Result<Tensor> {
        wrap(check_ranks("dot", self, tensor, (1, 1)).and_then(|()| matmul("dot", self, tensor)))
    }

    /// All products of the elements of two vectors: `[n]` and `[m]` give `[n, m]`.
    ///
    /// **Source:** [torch.outer](https://docs.pytorch.org/docs/stable/generated/torch.outer.html).
    #[track_caller]
    pub fn outer(&self, vec2: &Tensor) -> Result<Tensor> {
        placed(check_ranks("outer", self, vec2, (1, 1)))?;
        self.unsqueeze(1)?.mul(vec2)
    }

    /// `beta * self + alpha * (mat1 @ mat2)`; `self` broadcasts to the product's shape.
    ///
    /// **Source:** [torch.addmm](https://docs.pytorch.org/docs/stable/generated/torch.addmm.html).
    #[track_caller]
    pub fn addmm(&self, mat1: &Tensor, mat2: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        let run = || {
            check_ranks("addmm", mat1, mat2, (2, 2))?;
            with_bias("addmm", matmul("addmm", mat1, mat2)?, self, Some((beta, alpha)))
        };
        wrap(run())
    }

    /// `beta * self + alpha * (batch1 @ batch2)` of batches of matrices.
    ///
    /// **Source:** [torch.baddbmm](https://docs.pytorch.org/docs/stable/generated/torch.baddbmm.html).
    #[track_caller]
    pub fn baddbmm(
        &self,
        batch1: &Tensor,
        batch2: &Tensor,
        beta: f64,
        alpha: f64,
    ) -> Result<Tensor> {
        let run = || {
            check_ranks("baddbmm", batch1, batch2, (3, 3))?;
            with_bias("baddbmm", matmul("baddbmm", batch1, batch2)?, self, Some((beta, alpha)))
        };
        wrap(run())
    }

    /// `self @ weight^T + bias`: `[.., in]`, `[out, in]` and `[out]` give `[.., out]`.
    ///
    /// # Errors
    /// If the sizes differ.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2])?;
    /// let weight = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0], [3, 2])?;
    /// let bias = Tensor::from_slice(&[0.0f32, 0.0, 10.0], [3])?;
    /// assert_eq!(x.linear(&weight, Some(&bias))?.to_vec::<f32>()?, [1.0, 2.0, 13.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.nn.functional.linear](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.linear.html).
    #[track_caller]
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        wrap(linear(self, weight, bias))
    }

    /// The product summed over pairs of dimensions: `dims_self[i]` of `self` with `dims_other[i]`
    /// of `other`. The result has the other dimensions of `self`, then those of `other`.
    ///
    /// **Source:** [torch.tensordot](https://docs.pytorch.org/docs/stable/generated/torch.tensordot.html).
    #[track_caller]
    pub fn tensordot(
        &self,
        other: &Tensor,
        dims_self: impl AsRef<[i64]>,
        dims_other: impl AsRef<[i64]>,
    ) -> Result<Tensor> {
        wrap(tensordot(self, other, dims_self.as_ref(), dims_other.as_ref()))
    }
}

/// The operands in their promoted dtype.
fn alike(op: &'static str, x: &Tensor, y: &Tensor) -> Result<(Value, Value, DType)> {
    let dtype = result_type(&[x.into(), y.into()]).map_err(|e| e.in_op(op))?;
    Ok((ops::convert(&x.value()?, dtype)?, ops::convert(&y.value()?, dtype)?, dtype))
}

fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Value> {
    let (x, w, _) = alike("linear", x, weight)?;
    if x.rank() == 0 || !matches!(w.rank(), 1 | 2) {
        let why = "they need `[.., in]` and `[out, in]`".to_string();
        return Err(cannot_multiply("linear", x.aval(), w.aval(), why));
    }
    let (a, b) = (x.rank() - 1, w.rank() - 1);
    let (k, l) = (x.shape()[a], w.shape()[b]);
    if k != l {
        let why = format!("axis {a} of lhs has size {k}, but axis {b} of rhs has size {l}");
        return Err(cannot_multiply("linear", x.aval(), w.aval(), why));
    }
    let Some(bias) = bias else { return dot(&x, &w, 0, (a, b)).map_err(|e| e.in_op("linear")) };
    let bias = ops::convert(&bias.value()?, x.dtype())?;
    let operands = [x, w, bias];
    first_of(
        "linear",
        fused("linear", &[], &operands, |v| {
            let product = dot(&v[0], &v[1], 0, (a, b))?;
            let bias = super::promotion::expand(&v[2], product.shape());
            Ok(smallvec![ops::add(&product, &bias?)?])
        }),
    )
}

fn tensordot(x: &Tensor, y: &Tensor, dims_x: &[i64], dims_y: &[i64]) -> Result<Value> {
    let lhs = shape::axes("tensordot", dims_x, x.dim())?;
    let rhs = shape::axes("tensordot", dims_y, y.dim())?;
    let (x, y, _) = alike("tensordot", x, y)?;
    let dims = DotDims {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: lhs.to_vec(),
        rhs_contract: rhs.to_vec(),
    };
    ops::dot_general(&x, &y, &dims, matmul_precision(), None).map_err(|e| e.in_op("tensordot"))
}
