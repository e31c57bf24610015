//! The generalised product: `dot_general`.

use super::{bad_dtype, convert};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
pub use crate::backend::host::dot::DotDims;
use crate::backend::host::dot::dot_general as kernel;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::binary::add;
use crate::ops::index::batch_params;
use crate::ops::shape::permute;
use crate::shape::inverse_permutation;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::smallvec;

/// How exactly a product of floats is formed. The host and CPU plugins always work at full
/// precision; accelerators may split or round the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// What is fastest on the device.
    #[default]
    Default,
    /// More exact, where the device offers it.
    High,
    /// As exact as the operands' dtype.
    Highest,
}

impl Precision {
    /// The attribute of a StableHLO op with two operands.
    pub(crate) fn hlo(self) -> String {
        let word = match self {
            Precision::Default => "DEFAULT",
            Precision::High => "HIGH",
            Precision::Highest => "HIGHEST",
        };
        let one = format!("#stablehlo<precision {word}>");
        format!("precision_config = [{one}, {one}]")
    }
}

/// Checks dtypes of a product: the operands' and the one its sums are formed in.
pub(crate) fn check_product_dtypes(
    op: &'static str,
    lhs: &Aval,
    rhs: &Aval,
    out: DType,
) -> Result<()> {
    let (from, other) = (lhs.dtype(), rhs.dtype());
    if from != other {
        let text = format!("lhs is {from} and rhs is {other}; `ops` does not promote");
        return Err(Error::new(ErrorKind::DType, op, text).help(format!(
            "use the `Tensor` method, or convert one operand to {from} or {other}"
        )));
    }
    if from == DType::Bool {
        return Err(bad_dtype(op, lhs, "numbers"));
    }
    let same = from.category() == out.category() && from.is_unsigned() == out.is_unsigned();
    if from != out && (!same || out.size() <= from.size()) {
        let text = format!("a product of {from} cannot be summed in {out}");
        return Err(Error::new(ErrorKind::DType, op, text)
            .note("the result has the operands' dtype or a wider one of the same kind"));
    }
    Ok(())
}

/// The primitive `dot_general`: sums over contracting axes, pairs batch axes; the result has the
/// batch axes, then the free axes of the left operand, then those of the right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DotGeneral {
    /// Which axes are contracting and batch.
    pub dims: DotDims,
    /// How exactly.
    pub precision: Precision,
    /// The dtype of sums and result.
    pub out: DType,
}

const NAME: &str = "dot_general";

impl DotGeneral {
    fn check_axes(&self, lhs: &Aval, rhs: &Aval) -> Result<()> {
        let d = &self.dims;
        check_side("lhs", lhs, &d.lhs_batch, &d.lhs_contract)?;
        check_side("rhs", rhs, &d.rhs_batch, &d.rhs_contract)?;
        check_pairs("batch", lhs, rhs, &d.lhs_batch, &d.rhs_batch)?;
        check_pairs("contracting", lhs, rhs, &d.lhs_contract, &d.rhs_contract)
    }

    fn product(&self, lhs: &Value, rhs: &Value, dims: &DotDims) -> Result<Value> {
        dot_general(lhs, rhs, dims, self.precision, Some(self.out))
    }

    /// The cotangent of one operand: a product of `ct` with the other one, whose contracting axes
    /// come back as free ones.
    fn back(&self, ct: &Value, known: &Value, known_is_lhs: bool, to: &Aval) -> Result<Value> {
        let d = &self.dims;
        let (batch, contract, known_batch, known_contract) = if known_is_lhs {
            (&d.rhs_batch, &d.rhs_contract, &d.lhs_batch, &d.lhs_contract)
        } else {
            (&d.lhs_batch, &d.lhs_contract, &d.rhs_batch, &d.rhs_contract)
        };
        let free = axes_without(to.rank(), batch, contract);
        let known_free = axes_without(known.rank(), known_batch, known_contract);
        let count = batch.len();
        // The free axes of `known` lie in the cotangent first if it is the left operand.
        let start = if known_is_lhs { count } else { count + free.len() };
        let ct_contract: Vec<usize> = (start..start + known_free.len()).collect();
        let ct_batch: Vec<usize> = (0..count).collect();
        // The contracting axes come out in the order in which `known` has them.
        let mut order: Vec<usize> = (0..contract.len()).collect();
        order.sort_by_key(|&i| known_contract[i]);
        let summed: Vec<usize> = order.iter().map(|&i| contract[i]).collect();
        let known = convert(known, ct.dtype())?;
        // Of the two orders of the operands the one that needs no permutation afterwards.
        let swapped = [batch.as_slice(), &summed, &free].concat();
        let (result, axes) = if swapped.is_sorted() {
            let dims = DotDims {
                lhs_batch: known_batch.clone(),
                rhs_batch: ct_batch,
                lhs_contract: known_free,
                rhs_contract: ct_contract,
            };
            (self.product(&known, ct, &dims)?, swapped)
        } else {
            let dims = DotDims {
                lhs_batch: ct_batch,
                rhs_batch: known_batch.clone(),
                lhs_contract: ct_contract,
                rhs_contract: known_free,
            };
            (self.product(ct, &known, &dims)?, [batch.as_slice(), &free, &summed].concat())
        };
        convert(&permute(&result, &inverse_permutation(&axes))?, to.dtype())
    }
}

fn axes_without(rank: usize, batch: &[usize], contract: &[usize]) -> Vec<usize> {
    (0..rank).filter(|a| !batch.contains(a) && !contract.contains(a)).collect()
}

fn check_side(side: &str, aval: &Aval, batch: &[usize], contract: &[usize]) -> Result<()> {
    for (i, &axis) in batch.iter().chain(contract).enumerate() {
        if axis >= aval.rank() {
            let text = format!("{side} {aval} has no axis {axis}");
            return Err(Error::new(ErrorKind::Axis, NAME, text));
        }
        if batch.iter().chain(contract).take(i).any(|&a| a == axis) {
            let text = format!(
                "axis {axis} of {side} {aval} is named twice, among batch axes {batch:?} and \
                 contracting axes {contract:?}"
            );
            return Err(Error::new(ErrorKind::Axis, NAME, text));
        }
    }
    Ok(())
}

fn check_pairs(
    word: &str,
    lhs: &Aval,
    rhs: &Aval,
    of_lhs: &[usize],
    of_rhs: &[usize],
) -> Result<()> {
    if of_lhs.len() != of_rhs.len() {
        let text = format!("{word} axes {of_lhs:?} of lhs and {of_rhs:?} of rhs do not pair up");
        return Err(Error::new(ErrorKind::Axis, NAME, text));
    }
    for (&l, &r) in of_lhs.iter().zip(of_rhs) {
        let (a, b) = (lhs.shape()[l], rhs.shape()[r]);
        if a != b {
            let text = format!(
                "lhs {lhs} and rhs {rhs} cannot be multiplied: {word} axis {l} of lhs has size \
                 {a}, but {word} axis {r} of rhs has size {b}"
            );
            return Err(Error::new(ErrorKind::Shape, NAME, text));
        }
    }
    Ok(())
}

/// The tangent of a product that is linear in each of its two operands.
pub(crate) fn bilinear_jvp(
    primals: &[Value],
    tangents: &[Tangent],
    product: impl Fn(&Value, &Value) -> Result<Value>,
) -> Result<(Values, Tangents)> {
    let (lhs, rhs) = (&primals[0], &primals[1]);
    let out = product(lhs, rhs)?;
    let left = tangents[0].as_ref().map(|t| product(t, rhs)).transpose()?;
    let right = tangents[1].as_ref().map(|t| product(lhs, t)).transpose()?;
    let t = match (left, right) {
        (Some(a), Some(b)) => Some(add(&a, &b)?),
        (a, b) => a.or(b),
    };
    Ok((smallvec![out], smallvec![t]))
}

impl Primitive for DotGeneral {
    fn name(&self) -> &'static str {
        NAME
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (lhs, rhs) = (&operands[0], &operands[1]);
        self.check_axes(lhs, rhs)?;
        check_product_dtypes(NAME, lhs, rhs, self.out)?;
        Ok(smallvec![Aval::new(self.out, self.dims.out_shape(lhs.shape(), rhs.shape()))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let d = &self.dims;
        let attrs = format!(
            "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {}, \
             rhs_batching_dimensions = {}, lhs_contracting_dimensions = {}, \
             rhs_contracting_dimensions = {}>, {}",
            hlo::list(&d.lhs_batch),
            hlo::list(&d.rhs_batch),
            hlo::list(&d.lhs_contract),
            hlo::list(&d.rhs_contract),
            self.precision.hlo()
        );
        let operands = widen(cx, operands, self.out);
        Ok(cx.op("stablehlo.dot_general", &operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![kernel(&operands[0], &operands[1], &self.dims, self.out)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        if !self.out.is_differentiable() {
            return Ok((smallvec![bind_one(self, primals)?], smallvec![None]));
        }
        bilinear_jvp(primals, tangents, |x, y| self.product(x, y, &self.dims))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None, None]) };
        match (&operands[0], &operands[1]) {
            (Operand::Linear(lhs), Operand::Known(rhs)) => {
                Ok(smallvec![Some(self.back(ct, rhs, false, lhs)?), None])
            }
            (Operand::Known(lhs), Operand::Linear(rhs)) => {
                Ok(smallvec![None, Some(self.back(ct, lhs, true, rhs)?)])
            }
            _ => Err(not_linear(self)),
        }
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let shift = |list: &[usize], axis: Option<usize>| -> Vec<usize> {
            list.iter().map(|&a| a + usize::from(axis.is_some_and(|at| a >= at))).collect()
        };
        let mut dims = DotDims {
            lhs_batch: shift(&self.dims.lhs_batch, axes[0]),
            rhs_batch: shift(&self.dims.rhs_batch, axes[1]),
            lhs_contract: shift(&self.dims.lhs_contract, axes[0]),
            rhs_contract: shift(&self.dims.rhs_contract, axes[1]),
        };
        let count = dims.lhs_batch.len();
        let (lhs_free, rhs_free) =
            (dims.lhs_free(operands[0].rank()), dims.rhs_free(operands[1].rank()));
        let place = |free: &[usize], axis| free.iter().position(|&a| a == axis).unwrap_or(0);
        // An axis that only one operand is mapped over is one more free axis of it.
        let out = match (axes[0], axes[1]) {
            (Some(l), Some(r)) => {
                dims.lhs_batch.insert(0, l);
                dims.rhs_batch.insert(0, r);
                0
            }
            (Some(l), None) => count + place(&lhs_free, l),
            (None, r) => count + lhs_free.len() + place(&rhs_free, r.unwrap_or(0)),
        };
        let result = self.product(&operands[0], &operands[1], &dims)?;
        Ok((smallvec![result], smallvec![Some(out)]))
    }

    fn params(&self) -> String {
        let d = &self.dims;
        let batch = batch_params(&d.lhs_batch, &d.rhs_batch);
        let precision = match self.precision {
            Precision::Default => "",
            Precision::High => ", precision=high",
            Precision::Highest => ", precision=highest",
        };
        let (lhs, rhs, out) = (&d.lhs_contract, &d.rhs_contract, self.out);
        format!("contract=({lhs:?}, {rhs:?}){batch}{precision}, out={out}")
    }
}

/// Operands as they go into a product that is summed in `out`: halves may stay, since sums of theirs
/// in f32 are what devices do; all others become `out` first.
pub(crate) fn widen(cx: &mut Lowering, operands: &[Val], out: DType) -> Vec<Val> {
    let keep = |v: &Val| {
        let from = v.aval().dtype();
        from == out || (matches!(from, DType::F16 | DType::BF16) && out == DType::F32)
    };
    let one = |v: &Val| {
        if keep(v) {
            return v.clone();
        }
        cx.op1("stablehlo.convert", &[v], "", &v.aval().with_dtype(out))
    };
    operands.iter().map(one).collect()
}

/// The generalised product of `lhs` and `rhs`.
///
/// **Shapes:** the result has the batch axes, then the free axes of `lhs`, then those of `rhs`.
/// **Dtypes:** both operands have one, which is the result's unless `out` names a wider one of the
/// same kind; f16 and bf16 are summed in f32. Source: StableHLO `dot_general`.
///
/// # Errors
/// If the dtypes differ or are bool, an axis is out of range or named twice, paired axes differ in
/// number or size, or `out` is not wider.
pub fn dot_general(
    lhs: &Value,
    rhs: &Value,
    dims: &DotDims,
    precision: Precision,
    out: Option<DType>,
) -> Result<Value> {
    let out = out.unwrap_or(lhs.dtype());
    let prim = DotGeneral { dims: dims.clone(), precision, out };
    bind_one(&prim, &[lhs.clone(), rhs.clone()])
}
