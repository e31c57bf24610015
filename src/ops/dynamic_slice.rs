//! Slices whose place is data: `dynamic_slice` and `dynamic_update_slice`. One compiled program
//! serves every place.

use super::index::{GatherDims, IndexMode, gather};
use super::scatter::{ScatterDims, ScatterKind, scatter};
use super::shape::{move_axis, move_batch_axis};
use super::slice::{filled, stack};
use super::{bad_dtype, mismatch};
use crate::aval::{Aval, Avals};
use crate::backend::host::{HostArray, layout};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::create::zeros;
use crate::shape::Shape;
use crate::trace::batch::BatchAxis;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::smallvec;

/// Checks that there is one integer scalar for each axis of `x`, all of one dtype, and that a part
/// of shape `sizes` fits into `x`.
fn check(op: &'static str, x: &Aval, sizes: &Shape, starts: &[Aval]) -> Result<()> {
    let fail = |why: String| Err(Error::new(ErrorKind::Shape, op, why));
    if sizes.rank() != x.rank() {
        return fail(format!("a part of shape {sizes} has not the {} axes of {x}", x.rank()));
    }
    if starts.len() != x.rank() {
        return fail(format!("{} starts are given for the {} axes of {x}", starts.len(), x.rank()));
    }
    for (axis, (&part, &size)) in sizes.iter().zip(x.shape().iter()).enumerate() {
        if part > size {
            return fail(format!("a part of size {part} does not fit on axis {axis} of {x}"));
        }
    }
    for start in starts {
        if !matches!(start.dtype(), DType::I32 | DType::I64) {
            return Err(bad_dtype(op, start, "starts of i32 or i64"));
        }
        if start.rank() != 0 {
            return fail(format!("a start is {start}, not a scalar"));
        }
        if start.dtype() != starts[0].dtype() {
            return Err(mismatch(op, &starts[0], start));
        }
    }
    Ok(())
}

fn read(starts: &[HostArray]) -> Result<Vec<i64>> {
    starts.iter().map(|s| Ok(s.scalar()?.to_i64())).collect()
}

/// The starts with one for the mapped axis, which is always whole.
fn with_batch(starts: &[Value], axis: usize) -> Values {
    let dtype = starts.first().map_or(DType::I32, Value::dtype);
    let mut starts: Values = starts.iter().cloned().collect();
    starts.insert(axis, Value::scalar(Scalar::zero(dtype)));
    starts
}

/// The starts of all examples as the rows of a matrix.
fn rows(size: usize, starts: &[Value], axes: &[Option<usize>]) -> Result<Value> {
    let column = |(start, &axis)| move_batch_axis(size, start, axis, 0);
    stack(&starts.iter().zip(axes).map(column).collect::<Result<Vec<_>>>()?, 1)
}

/// The result of `prim` over a batch without examples.
fn no_example(
    prim: &dyn Primitive,
    operands: &[Value],
    axes: &[Option<usize>],
) -> Result<(Values, BatchAxes)> {
    let inner = operands.iter().zip(axes).map(|(x, axis)| match axis {
        Some(axis) => x.aval().with_shape(x.shape().remove(*axis)),
        None => x.aval().unsharded(),
    });
    let out = prim.infer(&inner.collect::<Vec<_>>())?.remove(0);
    let out = zeros(&out.with_shape(out.shape().insert(0, 0)))?;
    Ok((smallvec![out], smallvec![Some(0)]))
}

/// The primitive `dynamic_slice`: the part of shape `sizes` that begins where the scalar operands
/// say, moved inwards so that it lies inside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DynamicSlice {
    /// The result's shape.
    pub sizes: Shape,
}

impl Primitive for DynamicSlice {
    fn name(&self) -> &'static str {
        "dynamic_slice"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        check("dynamic_slice", &operands[0], &self.sizes, &operands[1..])?;
        Ok(smallvec![operands[0].with_shape(&self.sizes)])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let attrs = format!("slice_sizes = {}", hlo::i64_array(self.sizes.iter()));
        Ok(cx.op("stablehlo.dynamic_slice", operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![layout::dynamic_slice(&operands[0], &read(&operands[1..])?, &self.sizes)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let along = |t: &Value| dynamic_slice(t, &primals[1..], &self.sizes);
        let t = tangents[0].as_ref().map(along).transpose()?;
        Ok((smallvec![bind_one(self, primals)?], smallvec![t]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let mut out: Tangents = operands.iter().map(|_| None).collect();
        if let Some(ct) = &cts[0] {
            let starts: Values = operands[1..].iter().filter_map(|o| o.known().cloned()).collect();
            out[0] = Some(dynamic_update_slice(&zeros(operands[0].aval())?, ct, &starts)?);
        }
        Ok(out)
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        if batch.size == 0 {
            return no_example(self, operands, axes);
        }
        if let (Some(axis), true) = (axes[0], axes[1..].iter().all(Option::is_none)) {
            let starts = with_batch(&operands[1..], axis);
            let out = dynamic_slice(&operands[0], &starts, &self.sizes.insert(axis, batch.size))?;
            return Ok((smallvec![out], smallvec![Some(axis)]));
        }
        // Each example has a place of its own.
        let starts = rows(batch.size, &operands[1..], &axes[1..])?;
        let rank = self.sizes.rank();
        let mut dims = GatherDims {
            offset_dims: (1..=rank).collect(),
            start_index_map: (0..rank).collect(),
            index_vector_dim: 1,
            ..GatherDims::default()
        };
        let Some(axis) = axes[0] else {
            let out = gather(&operands[0], &starts, &dims, &self.sizes, IndexMode::Clip)?;
            return Ok((smallvec![out], smallvec![Some(0)]));
        };
        dims.operand_batching_dims = vec![0];
        dims.start_indices_batching_dims = vec![0];
        dims.start_index_map = (1..=rank).collect();
        let x = move_axis(&operands[0], axis, 0)?;
        let out = gather(&x, &starts, &dims, &self.sizes.insert(0, 1), IndexMode::Clip)?;
        Ok((smallvec![out], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        format!("sizes={}", self.sizes)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The part of `x` of shape `sizes` that begins at `starts`, one i32 or i64 scalar for each axis;
/// a start is moved inwards so that the part lies inside. Source: StableHLO `dynamic_slice`.
///
/// Mapped over the starts it is one [`gather`].
///
/// # Errors
/// If the starts are not one integer scalar for each axis, all of one dtype, or the part is larger
/// than `x` on an axis.
pub fn dynamic_slice(x: &Value, starts: &[Value], sizes: &[usize]) -> Result<Value> {
    let operands: Values = std::iter::once(x).chain(starts).cloned().collect();
    bind_one(&DynamicSlice { sizes: Shape::new(sizes) }, &operands)
}

/// The primitive `dynamic_update_slice`: the first operand with the second put where the scalar
/// operands say, moved inwards so that it lies inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DynamicUpdateSlice;

impl Primitive for DynamicUpdateSlice {
    fn name(&self) -> &'static str {
        "dynamic_update_slice"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (x, update) = (&operands[0], &operands[1]);
        if x.dtype() != update.dtype() {
            return Err(mismatch("dynamic_update_slice", x, update));
        }
        check("dynamic_update_slice", x, update.shape(), &operands[2..])?;
        Ok(smallvec![x.clone()])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        // Always in the generic form: two scalars alone would have the short one.
        Ok(cx.op_with_regions("stablehlo.dynamic_update_slice", operands, "", &[], outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        let starts = read(&operands[2..])?;
        Ok(vec![layout::dynamic_update_slice(&operands[0], &operands[1], &starts)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let ts = filled(&primals[..2], &tangents[..2])?;
        let t = dynamic_update_slice(&ts[0], &ts[1], &primals[2..])?;
        Ok((smallvec![bind_one(self, primals)?], smallvec![Some(t)]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let mut out: Tangents = operands.iter().map(|_| None).collect();
        let Some(ct) = &cts[0] else { return Ok(out) };
        let starts: Values = operands[2..].iter().filter_map(|o| o.known().cloned()).collect();
        let update = operands[1].aval();
        if operands[0].is_linear() {
            out[0] = Some(dynamic_update_slice(ct, &zeros(update)?, &starts)?);
        }
        if operands[1].is_linear() {
            out[1] = Some(dynamic_slice(ct, &starts, update.shape())?);
        }
        Ok(out)
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        if batch.size == 0 {
            return no_example(self, operands, axes);
        }
        let x = move_batch_axis(batch.size, &operands[0], axes[0], 0)?;
        let update = move_batch_axis(batch.size, &operands[1], axes[1], 0)?;
        if axes[2..].iter().any(Option::is_some) {
            // Each example has a place of its own.
            let starts = rows(batch.size, &operands[2..], &axes[2..])?;
            let all: Vec<usize> = (1..x.rank()).collect();
            let dims = ScatterDims {
                update_window_dims: all.clone(),
                input_batching_dims: vec![0],
                scatter_indices_batching_dims: vec![0],
                scatter_dims_to_operand_dims: all,
                index_vector_dim: 1,
                ..ScatterDims::default()
            };
            let out = scatter(&x, &starts, &update, &dims, ScatterKind::Set, IndexMode::Clip)?;
            return Ok((smallvec![out], smallvec![Some(0)]));
        }
        let out = dynamic_update_slice(&x, &update, &with_batch(&operands[2..], 0))?;
        Ok((smallvec![out], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        String::new()
    }
}

/// `x` with `update` put at `starts`, one i32 or i64 scalar for each axis; a start is moved inwards
/// so that `update` lies inside. Source: StableHLO `dynamic_update_slice`.
///
/// Mapped over the starts it is one [`scatter`].
///
/// # Errors
/// If the dtypes differ, the starts are not one integer scalar for each axis, all of one dtype, or
/// `update` is larger than `x` on an axis.
pub fn dynamic_update_slice(x: &Value, update: &Value, starts: &[Value]) -> Result<Value> {
    let operands: Values = [x, update].into_iter().chain(starts).cloned().collect();
    bind_one(&DynamicUpdateSlice, &operands)
}
