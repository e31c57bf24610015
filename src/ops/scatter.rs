//! Writing at computed places: `scatter`.

use super::{bad_dtype, mismatch};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host::gather::scatter as kernel;
pub use crate::backend::host::gather::{ScatterDims, ScatterKind};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::binary::add;
use crate::ops::compare::{eq, select};
use crate::ops::create::{full_like, iota, or_zeros, zeros};
use crate::ops::index::{
    Gather, GatherDims, IndexMode, Pointing, along_axis_dims, batch_params, clamp_starts,
    last_starts, shift, signed_indices,
};
use crate::ops::shape::{broadcast_in_dim, move_axis, move_batch_axis, reshape};
use crate::shape::Shape;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::smallvec;

/// The primitive `scatter`: the operand with windows of updates put where index vectors say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scatter {
    /// Which axes are what.
    pub dims: ScatterDims,
    /// How an update meets what is there.
    pub kind: ScatterKind,
    /// What happens to windows that do not fit.
    pub mode: IndexMode,
}

impl ScatterKind {
    fn name(self) -> &'static str {
        match self {
            ScatterKind::Set => "scatter",
            ScatterKind::Add => "scatter_add",
            ScatterKind::Mul => "scatter_mul",
            ScatterKind::Min => "scatter_min",
            ScatterKind::Max => "scatter_max",
        }
    }
}

/// Which update is the one that stays, where several fall on one element.
struct Winners {
    /// For each element of the operand: whether no update falls on it.
    untouched: Value,
    /// For each element of the updates: whether it is the one that stays.
    stays: Value,
}

impl Scatter {
    fn pointing<'a>(&'a self, operand: &'a Aval, indices: &'a Aval) -> Pointing<'a> {
        Pointing {
            op: self.kind.name(),
            operand,
            indices,
            removed: &self.dims.inserted_window_dims,
            operand_batch: &self.dims.input_batching_dims,
            indices_batch: &self.dims.scatter_indices_batching_dims,
            map: &self.dims.scatter_dims_to_operand_dims,
            vector_dim: self.dims.index_vector_dim,
        }
    }

    fn check_updates(&self, operand: &Aval, indices: &Aval, updates: &Aval) -> Result<()> {
        let op = self.kind.name();
        if operand.dtype() != updates.dtype() {
            return Err(mismatch(op, operand, updates));
        }
        let orders = matches!(self.kind, ScatterKind::Min | ScatterKind::Max);
        if orders && operand.dtype().is_complex() {
            return Err(bad_dtype(op, operand, "real numbers or bool"));
        }
        let mut vectors = indices.shape().to_vec();
        if self.dims.index_vector_dim < vectors.len() {
            vectors.remove(self.dims.index_vector_dim);
        }
        let window = &self.dims.update_window_dims;
        let given = updates.shape().without(window);
        if updates.rank() != vectors.len() + window.len() || given.dims() != vectors {
            let text = format!(
                "updates {updates} without window axes {window:?} do not have the shape {} of the \
                 index vectors of {indices}",
                Shape::from(vectors)
            );
            return Err(Error::new(ErrorKind::Shape, op, text));
        }
        Ok(())
    }

    /// The gather that reads where this writes, with zero for windows that are left out.
    fn gather(&self, operand: &Aval, updates: &Shape) -> Gather {
        let d = &self.dims;
        Gather {
            dims: GatherDims {
                offset_dims: d.update_window_dims.clone(),
                collapsed_slice_dims: d.inserted_window_dims.clone(),
                operand_batching_dims: d.input_batching_dims.clone(),
                start_indices_batching_dims: d.scatter_indices_batching_dims.clone(),
                start_index_map: d.scatter_dims_to_operand_dims.clone(),
                index_vector_dim: d.index_vector_dim,
            },
            slice_sizes: d.window(operand.rank(), updates),
            mode: self.mode,
            fill: Some(Scalar::zero(operand.dtype())),
        }
    }

    fn of_kind(&self, kind: ScatterKind, x: &Value, indices: &Value, y: &Value) -> Result<Value> {
        scatter(x, indices, y, &self.dims, kind, self.mode)
    }

    /// Numbers the updates from 1 on, writes the numbers and looks which ones are read back.
    fn winners(&self, operand: &Aval, indices: &Value, updates: &Shape) -> Result<Winners> {
        let number = DType::I64;
        let outer = updates.without(&self.dims.update_window_dims);
        let ids = iota(number, &Shape::new(&[outer.size()]), 0)?;
        let ids = reshape(&add(&ids, &full_like(&ids, 1.0)?)?, &outer)?;
        let axes: Vec<usize> =
            (0..updates.rank()).filter(|a| !self.dims.update_window_dims.contains(a)).collect();
        let ids = broadcast_in_dim(&ids, updates, &axes)?;
        let none = zeros(&operand.with_dtype(number))?;
        let written = self.of_kind(ScatterKind::Set, &none, indices, &ids)?;
        let back = self.gather(written.aval(), updates);
        let read = bind_one(&back, &[written.clone(), indices.clone()])?;
        Ok(Winners { untouched: eq(&written, &none)?, stays: eq(&read, &ids)? })
    }

    /// A tangent is set as its primal is: only the update that stays takes part.
    fn set_jvp(&self, primals: &[Value], x: &Tangent, y: &Tangent) -> Result<Value> {
        let (operand, indices, updates) = (&primals[0], &primals[1], &primals[2]);
        let winners = self.winners(operand.aval(), indices, updates.shape())?;
        let masked = |t: &Tangent, mask: &Value, like: &Value| match t {
            Some(t) => select(mask, t, &full_like(t, 0.0)?),
            None => zeros(like.aval()),
        };
        let x = masked(x, &winners.untouched, operand)?;
        if y.is_none() {
            return Ok(x);
        }
        let y = masked(y, &winners.stays, updates)?;
        self.of_kind(ScatterKind::Add, &x, indices, &y)
    }

    #[cold]
    fn no_rule(&self, of: &str) -> Error {
        let text = format!("has no derivative in its {of}");
        Error::new(ErrorKind::NoRule, self.kind.name(), text)
    }

    fn tangent(&self, primals: &[Value], tangents: &[Tangent]) -> Result<Tangent> {
        let (indices, x, y) = (&primals[1], &tangents[0], &tangents[2]);
        if x.is_none() && y.is_none() {
            return Ok(None);
        }
        match (self.kind, y) {
            (ScatterKind::Set, _) => self.set_jvp(primals, x, y).map(Some),
            (ScatterKind::Add, None) => Ok(x.clone()),
            (ScatterKind::Add, Some(y)) => {
                let x = or_zeros(x, primals[0].aval())?;
                self.of_kind(ScatterKind::Add, &x, indices, y).map(Some)
            }
            (ScatterKind::Mul, None) => match x {
                Some(x) => self.of_kind(ScatterKind::Mul, x, indices, &primals[2]).map(Some),
                None => Ok(None),
            },
            (ScatterKind::Mul, Some(_)) => Err(self.no_rule("updates")),
            _ => Err(self.no_rule("operand and updates")),
        }
    }

    fn lower_combine(&self, cx: &mut Lowering, scalar: &Aval) -> Result<String> {
        cx.region(&[scalar.clone(), scalar.clone()], |cx, args| {
            let op = match self.kind {
                ScatterKind::Set => return Ok(vec![args[1].clone()]),
                ScatterKind::Add => "stablehlo.add",
                ScatterKind::Mul => "stablehlo.multiply",
                ScatterKind::Min => "stablehlo.minimum",
                ScatterKind::Max => "stablehlo.maximum",
            };
            Ok(vec![cx.op1(op, &[&args[0], &args[1]], "", scalar)])
        })
    }
}

impl Primitive for Scatter {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (operand, indices, updates) = (&operands[0], &operands[1], &operands[2]);
        let pointing = self.pointing(operand, indices);
        pointing.check()?;
        pointing.check_window_axes(&self.dims.update_window_dims, updates.rank())?;
        self.check_updates(operand, indices, updates)?;
        pointing.check_window(&self.dims.window(operand.rank(), updates.shape()))?;
        Ok(smallvec![operand.clone()])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let d = &self.dims;
        let mut starts = signed_indices(cx, &operands[1]);
        let map = &d.scatter_dims_to_operand_dims;
        if self.mode == IndexMode::Clip && !map.is_empty() {
            let operand = operands[0].aval();
            let window = d.window(operand.rank(), operands[2].aval().shape());
            let last = last_starts(cx, starts.aval(), operand, map, &window, d.index_vector_dim);
            starts = clamp_starts(cx, &starts, &last);
        }
        let attrs = format!(
            "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {}, \
             inserted_window_dims = {}, input_batching_dims = {}, scatter_indices_batching_dims = \
             {}, scatter_dims_to_operand_dims = {}, index_vector_dim = {}>, indices_are_sorted = \
             false, unique_indices = false",
            hlo::list(&d.update_window_dims),
            hlo::list(&d.inserted_window_dims),
            hlo::list(&d.input_batching_dims),
            hlo::list(&d.scatter_indices_batching_dims),
            hlo::list(map),
            d.index_vector_dim
        );
        let region = self.lower_combine(cx, &Aval::scalar(outs[0].dtype()))?;
        let operands = [operands[0].clone(), starts, operands[2].clone()];
        Ok(cx.op_with_regions("stablehlo.scatter", &operands, &attrs, &[region], outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        let (operand, indices, updates) = (&operands[0], &operands[1], &operands[2]);
        Ok(vec![kernel(operand, indices, updates, &self.dims, self.kind, self.mode)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        Ok((smallvec![bind_one(self, primals)?], smallvec![self.tangent(primals, tangents)?]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None, None, None]) };
        let Some(indices) = operands[1].known() else { return Err(not_linear(self)) };
        let (x, y) = (&operands[0], &operands[2]);
        let ask = |on: &Operand, f: &dyn Fn() -> Result<Value>| {
            if on.is_linear() { f().map(Some) } else { Ok(None) }
        };
        let shape = y.aval().shape();
        let read = || bind_one(&self.gather(ct.aval(), shape), &[ct.clone(), indices.clone()]);
        match self.kind {
            ScatterKind::Add => Ok(smallvec![ask(x, &|| Ok(ct.clone()))?, None, ask(y, &read)?]),
            ScatterKind::Set => {
                let winners = self.winners(x.aval(), indices, shape)?;
                let masked = |mask: &Value, ct: &Value| select(mask, ct, &full_like(ct, 0.0)?);
                let to_x = ask(x, &|| masked(&winners.untouched, ct))?;
                Ok(smallvec![to_x, None, ask(y, &|| masked(&winners.stays, &read()?))?])
            }
            ScatterKind::Mul => match y.known() {
                Some(y) => {
                    let ct = self.of_kind(ScatterKind::Mul, ct, indices, y)?;
                    Ok(smallvec![Some(ct), None, None])
                }
                None => Err(not_linear(self)),
            },
            ScatterKind::Min | ScatterKind::Max => Err(not_linear(self)),
        }
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let x = move_batch_axis(batch.size, &operands[0], axes[0], 0)?;
        let updates = move_batch_axis(batch.size, &operands[2], axes[2], 0)?;
        let mut dims = self.dims.clone();
        shift(&mut dims.update_window_dims);
        shift(&mut dims.inserted_window_dims);
        shift(&mut dims.input_batching_dims);
        shift(&mut dims.scatter_dims_to_operand_dims);
        let indices = if let Some(axis) = axes[1] {
            shift(&mut dims.scatter_indices_batching_dims);
            dims.index_vector_dim += 1;
            dims.input_batching_dims.insert(0, 0);
            dims.scatter_indices_batching_dims.insert(0, 0);
            move_axis(&operands[1], axis, 0)?
        } else {
            // The whole of the mapped axis is a part of each window.
            dims.update_window_dims.insert(0, 0);
            operands[1].clone()
        };
        let out = scatter(&x, &indices, &updates, &dims, self.kind, self.mode)?;
        Ok((smallvec![out], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        let d = &self.dims;
        let batch = batch_params(&d.input_batching_dims, &d.scatter_indices_batching_dims);
        format!(
            "window_dims={:?}, inserted={:?}{batch}, map={:?}, vector_dim={}, mode={:?}",
            d.update_window_dims,
            d.inserted_window_dims,
            d.scatter_dims_to_operand_dims,
            d.index_vector_dim,
            self.mode
        )
    }
}

/// `operand` with each window of `updates` put where its index vector in `indices` says, combined
/// as `kind` says. A window that does not lie inside the operand is left out, or moved under
/// [`IndexMode::Clip`]. Source: StableHLO `scatter`.
///
/// Where several updates are set on one element, one of them stays, and the derivative is that one's;
/// on the host it is the last.
///
/// # Errors
/// If dtypes differ, the indices are no integers, axes are out of range or named twice, or the axes
/// named do not match the shapes. The derivatives of `Min` and `Max`, and of `Mul` in the updates,
/// give [`ErrorKind::NoRule`].
pub fn scatter(
    operand: &Value,
    indices: &Value,
    updates: &Value,
    dims: &ScatterDims,
    kind: ScatterKind,
    mode: IndexMode,
) -> Result<Value> {
    let prim = Scatter { dims: dims.clone(), kind, mode };
    bind_one(&prim, &[operand.clone(), indices.clone(), updates.clone()])
}

/// `x` with each element of `updates` put at the place along `axis` that `indices` says, and at the
/// same place along the other axes, in which all have equal sizes. An index outside of the axis is
/// left out.
///
/// # Errors
/// As for [`scatter`].
pub fn scatter_along_axis(
    x: &Value,
    indices: &Value,
    updates: &Value,
    axis: usize,
    kind: ScatterKind,
) -> Result<Value> {
    let d = along_axis_dims(kind.name(), x, indices, axis)?;
    let dims = ScatterDims {
        update_window_dims: Vec::new(),
        inserted_window_dims: d.collapsed_slice_dims,
        input_batching_dims: d.operand_batching_dims,
        scatter_indices_batching_dims: d.start_indices_batching_dims,
        scatter_dims_to_operand_dims: d.start_index_map,
        index_vector_dim: d.index_vector_dim,
    };
    scatter(x, indices, updates, &dims, kind, IndexMode::FillOrDrop)
}
