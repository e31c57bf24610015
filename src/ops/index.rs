//! Reading at computed places: `gather`, and the two uses of it that have names of their own.

use super::bad_dtype;
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
pub use crate::backend::host::gather::{GatherDims, IndexMode};
use crate::backend::host::gather::{fill_value, gather_filled};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::create::zeros;
use crate::ops::scatter::{ScatterDims, ScatterKind, scatter};
use crate::ops::shape::move_axis;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::smallvec;

/// The primitive `gather`: slices of the operand, one for each index vector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// Which axes are what.
    pub dims: GatherDims,
    /// The size of a slice along each axis of the operand.
    pub slice_sizes: Vec<usize>,
    /// What happens to slices that do not fit.
    pub mode: IndexMode,
    /// What [`IndexMode::FillOrDrop`] fills with; none for the default of the dtype.
    pub fill: Option<Scalar>,
}

/// How index vectors point into an operand: what `gather` and `scatter` share.
pub(crate) struct Pointing<'a> {
    pub(crate) op: &'static str,
    pub(crate) operand: &'a Aval,
    pub(crate) indices: &'a Aval,
    /// Operand axes that no axis of a window stands for.
    pub(crate) removed: &'a [usize],
    pub(crate) operand_batch: &'a [usize],
    pub(crate) indices_batch: &'a [usize],
    pub(crate) map: &'a [usize],
    pub(crate) vector_dim: usize,
}

impl Pointing<'_> {
    fn fail<T>(&self, kind: ErrorKind, text: String) -> Result<T> {
        Err(Error::new(kind, self.op, text))
    }

    pub(crate) fn check(&self) -> Result<()> {
        let (operand, indices) = (self.operand, self.indices);
        if !indices.dtype().is_int() {
            return Err(bad_dtype(self.op, indices, "integers as indices"));
        }
        if self.vector_dim > indices.rank() {
            let text =
                format!("the index vectors' axis {} is outside of {indices}", self.vector_dim);
            return self.fail(ErrorKind::Axis, text);
        }
        let size = indices.shape().get(self.vector_dim).copied().unwrap_or(1);
        if size != self.map.len() {
            let text = format!(
                "index vectors of {indices} have {size} components along axis {}, but {} operand \
                 axes are named for them",
                self.vector_dim,
                self.map.len()
            );
            return self.fail(ErrorKind::Shape, text);
        }
        for (word, axes) in [
            ("collapsed or inserted", self.removed),
            ("batching", self.operand_batch),
            ("indexed", self.map),
        ] {
            self.distinct(word, axes, operand)?;
        }
        self.distinct("batching", self.indices_batch, indices)?;
        for &axis in self.operand_batch {
            if self.removed.contains(&axis) || self.map.contains(&axis) {
                let text =
                    format!("axis {axis} of operand {operand} is batching and something else");
                return self.fail(ErrorKind::Axis, text);
            }
        }
        self.check_batch()
    }

    fn distinct(&self, word: &str, axes: &[usize], of: &Aval) -> Result<()> {
        for (i, &axis) in axes.iter().enumerate() {
            if axis >= of.rank() || axes[..i].contains(&axis) {
                let text = format!("{word} axis {axis} is outside of {of} or named twice");
                return self.fail(ErrorKind::Axis, text);
            }
        }
        Ok(())
    }

    fn check_batch(&self) -> Result<()> {
        let (operand, indices) = (self.operand, self.indices);
        if self.operand_batch.len() != self.indices_batch.len() {
            let text = format!(
                "batching axes {:?} of the operand and {:?} of the indices do not pair up",
                self.operand_batch, self.indices_batch
            );
            return self.fail(ErrorKind::Axis, text);
        }
        for (&o, &i) in self.operand_batch.iter().zip(self.indices_batch) {
            let (a, b) = (operand.shape()[o], indices.shape()[i]);
            if a != b || i == self.vector_dim {
                let text = format!(
                    "batching axis {o} of operand {operand} has size {a}, but axis {i} of indices \
                     {indices} has size {b} or holds the vectors"
                );
                return self.fail(ErrorKind::Shape, text);
            }
        }
        Ok(())
    }

    /// Checks the size of a window along each operand axis.
    pub(crate) fn check_window(&self, sizes: &[usize]) -> Result<()> {
        let operand = self.operand;
        for (axis, (&size, &whole)) in sizes.iter().zip(operand.shape().iter()).enumerate() {
            if size > whole {
                let text =
                    format!("a slice of size {size} does not fit axis {axis} of operand {operand}");
                return self.fail(ErrorKind::Shape, text);
            }
            let gone = self.removed.contains(&axis) || self.operand_batch.contains(&axis);
            if gone && size != 1 {
                let text = format!(
                    "axis {axis} of operand {operand} goes away, so its slice size must be 1, not \
                     {size}"
                );
                return self.fail(ErrorKind::Shape, text);
            }
        }
        Ok(())
    }

    /// Checks that window axes are in order and inside of an array of rank `rank`.
    pub(crate) fn check_window_axes(&self, axes: &[usize], rank: usize) -> Result<()> {
        let expected =
            self.operand.rank().saturating_sub(self.removed.len() + self.operand_batch.len());
        if axes.len() != expected {
            let text = format!(
                "{} axes are named for windows, which have {expected} axes in operand {}",
                axes.len(),
                self.operand
            );
            return self.fail(ErrorKind::Axis, text);
        }
        if !axes.is_sorted_by(|a, b| a < b) || axes.last().is_some_and(|&a| a >= rank) {
            let text = format!("window axes {axes:?} are not in order or not below {rank}");
            return self.fail(ErrorKind::Axis, text);
        }
        Ok(())
    }
}

/// The indices in a dtype that holds all of them with a sign, as the device's comparisons need.
pub(crate) fn signed_indices(cx: &mut Lowering, indices: &Val) -> Val {
    let aval = indices.aval();
    let (wide, source) = match aval.dtype() {
        DType::I32 | DType::I64 => return indices.clone(),
        DType::U32 => (DType::I64, indices.clone()),
        DType::U64 => {
            let most = cx.constant(Scalar::from_i64(DType::U64, i64::MAX), aval);
            (DType::I64, cx.op1("stablehlo.minimum", &[indices, &most], "", aval))
        }
        _ => (DType::I32, indices.clone()),
    };
    cx.op1("stablehlo.convert", &[&source], "", &aval.with_dtype(wide))
}

/// The largest start at which a window fits, for each index vector: of the indices' type.
pub(crate) fn last_starts(
    cx: &mut Lowering,
    indices: &Aval,
    operand: &Aval,
    map: &[usize],
    window: &[usize],
    vector_dim: usize,
) -> Val {
    let last: Vec<usize> = map.iter().map(|&a| operand.shape()[a] - window[a]).collect();
    if vector_dim == indices.rank() {
        return cx.constant(Scalar::from_i64(indices.dtype(), last[0] as i64), indices);
    }
    let vector = indices.with_shape([last.len()]);
    let text = if last.is_empty() { String::new() } else { hlo::list(&last) };
    let value = format!("value = dense<{text}> : {}", vector.hlo());
    let list = cx.op("stablehlo.constant", &[], &value, std::slice::from_ref(&vector));
    let attrs = format!("broadcast_dimensions = {}", hlo::i64_array([vector_dim]));
    cx.op1("stablehlo.broadcast_in_dim", &[&list[0]], &attrs, indices)
}

/// Starts moved to where their windows fit.
pub(crate) fn clamp_starts(cx: &mut Lowering, starts: &Val, last: &Val) -> Val {
    let aval = starts.aval();
    let zero = cx.constant(Scalar::zero(aval.dtype()), aval);
    cx.op1("stablehlo.clamp", &[&zero, starts, last], "", aval)
}

/// The axes of a slice back in a scatter with the same windows.
fn scatter_dims(d: &GatherDims) -> ScatterDims {
    ScatterDims {
        update_window_dims: d.offset_dims.clone(),
        inserted_window_dims: d.collapsed_slice_dims.clone(),
        input_batching_dims: d.operand_batching_dims.clone(),
        scatter_indices_batching_dims: d.start_indices_batching_dims.clone(),
        scatter_dims_to_operand_dims: d.start_index_map.clone(),
        index_vector_dim: d.index_vector_dim,
    }
}

impl Gather {
    fn pointing<'a>(&'a self, operand: &'a Aval, indices: &'a Aval) -> Pointing<'a> {
        Pointing {
            op: "gather",
            operand,
            indices,
            removed: &self.dims.collapsed_slice_dims,
            operand_batch: &self.dims.operand_batching_dims,
            indices_batch: &self.dims.start_indices_batching_dims,
            map: &self.dims.start_index_map,
            vector_dim: self.dims.index_vector_dim,
        }
    }

    /// Where a slice lies inside of the operand, spread over the result.
    fn lower_mask(&self, cx: &mut Lowering, starts: &Val, last: &Val, out: &Aval) -> Result<Val> {
        let aval = starts.aval();
        let bools = aval.with_dtype(DType::Bool);
        let zero = cx.constant(Scalar::zero(aval.dtype()), aval);
        let mut compare = |x: &Val, y: &Val, direction: &str| {
            let attrs = format!(
                "comparison_direction = #stablehlo<comparison_direction {direction}>, \
                 compare_type = #stablehlo<comparison_type SIGNED>"
            );
            cx.op1("stablehlo.compare", &[x, y], &attrs, &bools)
        };
        let (low, high) = (compare(starts, &zero, "GE"), compare(starts, last, "LE"));
        let mut mask = cx.op1("stablehlo.and", &[&low, &high], "", &bools);
        if self.dims.index_vector_dim < aval.rank() {
            let scalar = Aval::scalar(DType::Bool);
            let region = cx.region(&[scalar.clone(), scalar.clone()], |cx, args| {
                Ok(vec![cx.op1("stablehlo.and", &[&args[0], &args[1]], "", &scalar)])
            })?;
            let attrs = format!("dimensions = {}", hlo::i64_array([self.dims.index_vector_dim]));
            let init = cx.constant(Scalar::new(true), &scalar);
            let shape = bools.with_shape(bools.shape().remove(self.dims.index_vector_dim));
            let mut outs =
                cx.op_with_regions("stablehlo.reduce", &[mask, init], &attrs, &[region], &[shape]);
            mask = outs.swap_remove(0);
        }
        let axes = (0..out.rank()).filter(|a| !self.dims.offset_dims.contains(a));
        let attrs = format!("broadcast_dimensions = {}", hlo::i64_array(axes));
        Ok(cx.op1("stablehlo.broadcast_in_dim", &[&mask], &attrs, &out.with_dtype(DType::Bool)))
    }

    fn fill(&self, dtype: DType) -> Scalar {
        self.fill.unwrap_or_else(|| fill_value(dtype))
    }
}

impl Primitive for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (operand, indices) = (&operands[0], &operands[1]);
        let pointing = self.pointing(operand, indices);
        pointing.check()?;
        if self.slice_sizes.len() != operand.rank() {
            let text = format!("{:?} is not one slice size an axis of {operand}", self.slice_sizes);
            return Err(Error::new(ErrorKind::Shape, "gather", text));
        }
        pointing.check_window(&self.slice_sizes)?;
        let vectors = indices.rank() - usize::from(self.dims.index_vector_dim < indices.rank());
        let rank = vectors + self.dims.offset_dims.len();
        pointing.check_window_axes(&self.dims.offset_dims, rank)?;
        if let Some(fill) = self.fill
            && fill.dtype() != operand.dtype()
        {
            let text = format!("the fill value is {}, the operand {operand}", fill.dtype());
            return Err(Error::new(ErrorKind::DType, "gather", text));
        }
        Ok(smallvec![operand.with_shape(self.dims.out_shape(indices.shape(), &self.slice_sizes))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let d = &self.dims;
        let attrs = format!(
            "dimension_numbers = #stablehlo.gather<offset_dims = {}, collapsed_slice_dims = {}, \
             operand_batching_dims = {}, start_indices_batching_dims = {}, start_index_map = {}, \
             index_vector_dim = {}>, slice_sizes = {}, indices_are_sorted = false",
            hlo::list(&d.offset_dims),
            hlo::list(&d.collapsed_slice_dims),
            hlo::list(&d.operand_batching_dims),
            hlo::list(&d.start_indices_batching_dims),
            hlo::list(&d.start_index_map),
            d.index_vector_dim,
            hlo::i64_array(&self.slice_sizes)
        );
        // The op itself moves starts to where their slices fit.
        let starts = signed_indices(cx, &operands[1]);
        let out = cx.op("stablehlo.gather", &[operands[0].clone(), starts.clone()], &attrs, outs);
        if self.mode != IndexMode::FillOrDrop || d.start_index_map.is_empty() {
            return Ok(out);
        }
        let (operand, map) = (operands[0].aval(), &d.start_index_map);
        let last =
            last_starts(cx, starts.aval(), operand, map, &self.slice_sizes, d.index_vector_dim);
        let mask = self.lower_mask(cx, &starts, &last, &outs[0])?;
        let fill = cx.constant(self.fill(operand.dtype()), &outs[0]);
        Ok(vec![cx.op1("stablehlo.select", &[&mask, &out[0], &fill], "", &outs[0])])
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        let (operand, indices) = (&operands[0], &operands[1]);
        let fill = self.fill(operand.dtype());
        let out = gather_filled(operand, indices, &self.dims, &self.slice_sizes, self.mode, fill);
        Ok(vec![out])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let out = bind_one(self, primals)?;
        // What is filled in does not depend on the operand.
        let zero = Some(Scalar::zero(primals[0].dtype()));
        let linear = Gather { fill: zero, ..self.clone() };
        let t = tangents[0].as_ref().map(|t| bind_one(&linear, &[t.clone(), primals[1].clone()]));
        Ok((smallvec![out], smallvec![t.transpose()?]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None, None]) };
        let Some(indices) = operands[1].known() else { return Err(not_linear(self)) };
        let zero = zeros(operands[0].aval())?;
        let dims = scatter_dims(&self.dims);
        let sum = scatter(&zero, indices, ct, &dims, ScatterKind::Add, self.mode)?;
        Ok(smallvec![Some(sum), None])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let front = |x: &Value, axis: Option<usize>| match axis {
            Some(axis) => move_axis(x, axis, 0),
            None => Ok(x.clone()),
        };
        let (x, indices) = (front(&operands[0], axes[0])?, front(&operands[1], axes[1])?);
        let mut to = self.clone();
        let dims = &mut to.dims;
        shift(&mut dims.offset_dims);
        if axes[0].is_some() {
            shift(&mut dims.collapsed_slice_dims);
            shift(&mut dims.operand_batching_dims);
            shift(&mut dims.start_index_map);
        }
        if axes[1].is_some() {
            shift(&mut dims.start_indices_batching_dims);
            dims.index_vector_dim += 1;
        }
        match (axes[0], axes[1]) {
            (Some(_), Some(_)) => {
                dims.operand_batching_dims.insert(0, 0);
                dims.start_indices_batching_dims.insert(0, 0);
                to.slice_sizes.insert(0, 1);
            }
            // The whole of the mapped axis is a part of each slice.
            (Some(_), None) => {
                dims.offset_dims.insert(0, 0);
                to.slice_sizes.insert(0, batch.size);
            }
            _ => {}
        }
        Ok((smallvec![bind_one(&to, &[x, indices])?], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        let d = &self.dims;
        let batch = batch_params(&d.operand_batching_dims, &d.start_indices_batching_dims);
        let fill = self.fill.map_or_else(String::new, |fill| format!(", fill={fill}"));
        format!(
            "offset_dims={:?}, collapsed={:?}{batch}, map={:?}, vector_dim={}, slice_sizes={:?}, \
             mode={:?}{fill}",
            d.offset_dims,
            d.collapsed_slice_dims,
            d.start_index_map,
            d.index_vector_dim,
            self.slice_sizes,
            self.mode
        )
    }
}

/// Paired axes as graphs print them; nothing if there are none.
pub(crate) fn batch_params(operand: &[usize], indices: &[usize]) -> String {
    if operand.is_empty() {
        return String::new();
    }
    format!(", batch=({operand:?}, {indices:?})")
}

/// Each axis behind one that is new in front.
pub(crate) fn shift(axes: &mut [usize]) {
    for axis in axes {
        *axis += 1;
    }
}

/// Slices of `operand` of size `slice_sizes`, one for each index vector of `indices` (of any
/// integer dtype), which says where it starts. Source: StableHLO `gather`.
///
/// # Errors
/// If the indices are no integers, axes are out of range or named twice, the axes named do not
/// match the shapes, or a slice is larger than the operand.
pub fn gather(
    operand: &Value,
    indices: &Value,
    dims: &GatherDims,
    slice_sizes: &[usize],
    mode: IndexMode,
) -> Result<Value> {
    let prim = Gather { dims: dims.clone(), slice_sizes: slice_sizes.to_vec(), mode, fill: None };
    bind_one(&prim, &[operand.clone(), indices.clone()])
}

#[cold]
fn no_axis(op: &'static str, x: &Value, axis: usize) -> Error {
    Error::new(ErrorKind::Axis, op, format!("{} has no axis {axis}", x.aval()))
}

/// The parts of `x` along `axis` that `indices` names: the axis is replaced by those of `indices`.
/// With `axis` 0 of a matrix: the rows of an embedding. An index outside of the axis (also a
/// negative one) gives NaN, or the dtype's extreme value for integers; its derivative is zero.
///
/// # Errors
/// If `x` has no such axis, or it is empty, or `indices` are no integers.
pub fn take(x: &Value, indices: &Value, axis: usize) -> Result<Value> {
    if axis >= x.rank() {
        return Err(no_axis("take", x, axis));
    }
    let count = indices.rank();
    let dims = GatherDims {
        offset_dims: (0..axis).chain(axis + count..x.rank() - 1 + count).collect(),
        collapsed_slice_dims: vec![axis],
        start_index_map: vec![axis],
        index_vector_dim: count,
        ..GatherDims::default()
    };
    gather(x, indices, &dims, x.shape().with(axis, 1).dims(), IndexMode::FillOrDrop)
}

/// The axes for one index an element along `axis` of an array of rank `rank`.
pub(crate) fn along_axis(rank: usize, axis: usize) -> GatherDims {
    let others: Vec<usize> = (0..rank).filter(|&a| a != axis).collect();
    GatherDims {
        collapsed_slice_dims: vec![axis],
        operand_batching_dims: others.clone(),
        start_indices_batching_dims: others,
        start_index_map: vec![axis],
        index_vector_dim: rank,
        ..GatherDims::default()
    }
}

pub(crate) fn along_axis_dims(
    op: &'static str,
    x: &Value,
    indices: &Value,
    axis: usize,
) -> Result<GatherDims> {
    if axis >= x.rank() {
        return Err(no_axis(op, x, axis));
    }
    if indices.rank() != x.rank() {
        let text = format!("indices {} and operand {} differ in rank", indices.aval(), x.aval());
        return Err(Error::new(ErrorKind::Shape, op, text));
    }
    Ok(along_axis(x.rank(), axis))
}

/// For each element of `indices` the element of `x` at that place along `axis`, and at the same
/// place along the other axes, in which both have equal sizes. An index outside of the axis (also a
/// negative one) gives NaN, or the dtype's extreme value for integers; its derivative is zero.
///
/// # Errors
/// If `x` has no such axis, the ranks or the sizes of other axes differ, or `indices` are no
/// integers.
pub fn take_along_axis(x: &Value, indices: &Value, axis: usize) -> Result<Value> {
    let dims = along_axis_dims("take_along_axis", x, indices, axis)?;
    gather(x, indices, &dims, &vec![1; x.rank()], IndexMode::FillOrDrop)
}
