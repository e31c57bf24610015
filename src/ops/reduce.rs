//! Reductions: `reduce_sum` and its like.

use super::bad_dtype;
use super::mapped;
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host::reduce::{Reduction, reduce};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::shape::{broadcast_in_dim, linear_jvp};
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::{SmallVec, smallvec};

/// The primitive `reduce_sum`: the sum over some axes, which go away.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceSum {
    /// The axes, growing.
    pub axes: SmallVec<[usize; 4]>,
}

/// The axes of `x` that are not among `axes`.
fn kept(rank: usize, axes: &[usize]) -> Vec<usize> {
    (0..rank).filter(|a| !axes.contains(a)).collect()
}

pub(crate) fn check_axes(op: &'static str, x: &Aval, axes: &[usize]) -> Result<()> {
    for (i, &axis) in axes.iter().enumerate() {
        if axis >= x.rank() || axes[..i].contains(&axis) {
            let text = format!("axis {axis} of {axes:?} is outside of {x} or named twice");
            return Err(Error::new(ErrorKind::Axis, op, text));
        }
    }
    Ok(())
}

/// Writes `stablehlo.reduce` of one operand with the combining op `combine`.
fn lower_reduce(
    cx: &mut Lowering,
    x: &Val,
    init: Scalar,
    combine: &str,
    axes: &[usize],
    out: &Aval,
) -> Result<Vec<Val>> {
    let scalar = Aval::scalar(x.aval().dtype());
    let init = cx.constant(init, &scalar);
    let region = cx.region(&[scalar.clone(), scalar.clone()], |cx, args| {
        Ok(vec![cx.op1(combine, &[&args[0], &args[1]], "", &scalar)])
    })?;
    let attrs = format!("dimensions = {}", hlo::i64_array(axes));
    let outs = std::slice::from_ref(out);
    Ok(cx.op_with_regions("stablehlo.reduce", &[x.clone(), init], &attrs, &[region], outs))
}

impl Primitive for ReduceSum {
    fn name(&self) -> &'static str {
        "reduce_sum"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        if x.dtype() == DType::Bool {
            return Err(bad_dtype("reduce_sum", x, "numbers"));
        }
        check_axes("reduce_sum", x, &self.axes)?;
        Ok(smallvec![x.with_shape(x.shape().without(&self.axes))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let zero = Scalar::zero(outs[0].dtype());
        lower_reduce(cx, &operands[0], zero, "stablehlo.add", &self.axes, &outs[0])
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![reduce(&operands[0], &self.axes, Reduction::Sum)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        linear_jvp(self, primals, tangents)
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let x = operands[0].aval();
        let back = |ct: &Value| broadcast_in_dim(ct, x.shape(), &kept(x.rank(), &self.axes));
        Ok(smallvec![cts[0].as_ref().map(back).transpose()?])
    }

    fn batch(
        &self,
        _: usize,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        let inner: SmallVec<[usize; 4]> =
            self.axes.iter().map(|&a| a + usize::from(a >= axis)).collect();
        let place = axis - inner.iter().filter(|&&a| a < axis).count();
        Ok((smallvec![reduce_sum(x, &inner)?], smallvec![Some(place)]))
    }

    fn params(&self) -> String {
        format!("axes={:?}", self.axes)
    }
}

/// The sum of `x` over `axes`, which go away; `x` itself if there are none. Source: StableHLO
/// `reduce`.
///
/// # Errors
/// If an axis is out of range or named twice, or the dtype is bool.
pub fn reduce_sum(x: &Value, axes: &[usize]) -> Result<Value> {
    if axes.is_empty() {
        return Ok(x.clone());
    }
    bind_one(&ReduceSum { axes: SmallVec::from_slice(axes) }, std::slice::from_ref(x))
}
