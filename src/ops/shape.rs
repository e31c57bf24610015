//! Primitives that move elements and do not look at them: `reshape`, `broadcast_in_dim`,
//! `permute`; and how batch rules bring mapped axes together.

use super::mapped;
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::reduce::reduce_sum;
use crate::shape::{Shape, inverse_permutation};
use crate::trace::batch::BatchAxis;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::{SmallVec, smallvec};

/// The primitive `broadcast_in_dim`: operand axis `i` becomes axis `axes[i]` of the result, and
/// the data repeat along all others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BroadcastInDim {
    /// The result's shape.
    pub shape: Shape,
    /// For each axis of the operand its place in the result, growing.
    pub axes: SmallVec<[usize; 4]>,
}

impl BroadcastInDim {
    /// The result's axes along which the operand `x` repeats, and those among them that the operand
    /// has with size 1.
    fn repeated(&self, x: &Shape) -> (Vec<usize>, Vec<usize>) {
        let place = |axis| self.axes.iter().position(|&a| a == axis);
        let stretched = |axis| place(axis).is_some_and(|i| x[i] != self.shape[axis]);
        let all = 0..self.shape.rank();
        let repeated = all.clone().filter(|&a| place(a).is_none() || stretched(a)).collect();
        (repeated, all.filter(|&a| stretched(a)).collect())
    }
}

impl Primitive for BroadcastInDim {
    fn name(&self) -> &'static str {
        "broadcast_in_dim"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        let fail = |why: String| {
            let text = format!("{x} cannot become {} with axes {:?}: {why}", self.shape, self.axes);
            Err(Error::new(ErrorKind::Shape, "broadcast_in_dim", text))
        };
        if self.axes.len() != x.rank() {
            return fail(format!("{} axes are named for rank {}", self.axes.len(), x.rank()));
        }
        for (i, &axis) in self.axes.iter().enumerate() {
            if axis >= self.shape.rank() || (i > 0 && axis <= self.axes[i - 1]) {
                return fail(format!("axis {axis} is outside of the shape or out of order"));
            }
            let (from, to) = (x.shape()[i], self.shape[axis]);
            if from != to && from != 1 {
                return fail(format!("axis {i} has size {from}, not 1 or {to}"));
            }
        }
        Ok(smallvec![x.with_shape(&self.shape)])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let attrs = format!("broadcast_dimensions = {}", hlo::i64_array(&self.axes));
        Ok(cx.op("stablehlo.broadcast_in_dim", operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![operands[0].broadcast_in_dim(&self.shape, &self.axes)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        linear_jvp(self, primals, tangents)
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None]) };
        let x = operands[0].aval().shape();
        let (repeated, _) = self.repeated(x);
        Ok(smallvec![Some(reshape(&reduce_sum(ct, &repeated)?, x)?)])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let x = move_batch_axis(batch.size, &operands[0], axes[0], 0)?;
        let shape = self.shape.insert(0, batch.size);
        let places: Vec<usize> =
            std::iter::once(0).chain(self.axes.iter().map(|a| a + 1)).collect();
        Ok((smallvec![broadcast_in_dim(&x, &shape, &places)?], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        format!("shape={}, axes={:?}", self.shape, self.axes)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// `x` repeated to `shape`: axis `i` of `x` becomes axis `axes[i]`, a size of 1 stretches. `x`
/// itself if nothing changes. Source: StableHLO `broadcast_in_dim`.
///
/// # Errors
/// If an axis is outside of the shape, out of order, or its size is neither 1 nor the shape's.
pub fn broadcast_in_dim(x: &Value, shape: &Shape, axes: &[usize]) -> Result<Value> {
    if x.shape() == shape && axes.iter().copied().eq(0..shape.rank()) {
        return Ok(x.clone());
    }
    let prim = BroadcastInDim { shape: shape.clone(), axes: SmallVec::from_slice(axes) };
    bind_one(&prim, std::slice::from_ref(x))
}

/// The primitive `reshape`: the same elements in row-major order, in another shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reshape {
    /// The result's shape.
    pub shape: Shape,
}

impl Primitive for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        if x.size() != self.shape.size() {
            let text = format!(
                "{x} has {} elements, shape {} has {}",
                x.size(),
                self.shape,
                self.shape.size()
            );
            return Err(Error::new(ErrorKind::Shape, "reshape", text));
        }
        Ok(smallvec![x.with_shape(&self.shape)])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        Ok(cx.op("stablehlo.reshape", operands, "", outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![operands[0].reshape(&self.shape)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        linear_jvp(self, primals, tangents)
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let back = |ct: &Value| reshape(ct, operands[0].aval().shape());
        Ok(smallvec![cts[0].as_ref().map(back).transpose()?])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let x = move_batch_axis(batch.size, &operands[0], axes[0], 0)?;
        Ok((smallvec![reshape(&x, &self.shape.insert(0, batch.size))?], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        format!("shape={}", self.shape)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The elements of `x` in row-major order in another shape; `x` itself if the shape is its own.
/// Source: StableHLO `reshape`.
///
/// # Errors
/// If the number of elements differs.
pub fn reshape(x: &Value, shape: &Shape) -> Result<Value> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    bind_one(&Reshape { shape: shape.clone() }, std::slice::from_ref(x))
}

/// The primitive `permute`: axis `i` of the result is axis `perm[i]` of the operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Permute {
    /// For each axis of the result the operand's axis.
    pub perm: SmallVec<[usize; 4]>,
}

impl Primitive for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        let mut sorted = self.perm.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..x.rank()) {
            let text = format!("{:?} is no order of the {} axes of {x}", self.perm, x.rank());
            return Err(Error::new(ErrorKind::Axis, "permute", text));
        }
        let shape: Shape = self.perm.iter().map(|&p| x.shape()[p]).collect();
        Ok(smallvec![x.with_shape(shape)])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let attrs = format!("permutation = {}", hlo::i64_array(&self.perm));
        Ok(cx.op("stablehlo.transpose", operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![operands[0].permute(&self.perm)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        linear_jvp(self, primals, tangents)
    }

    fn transpose(&self, cts: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        let back = |ct: &Value| permute(ct, &inverse_permutation(&self.perm));
        Ok(smallvec![cts[0].as_ref().map(back).transpose()?])
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        let inner = self.perm.iter().map(|&p| p + usize::from(p >= axis));
        let perm: Vec<usize> = std::iter::once(axis).chain(inner).collect();
        Ok((smallvec![permute(x, &perm)?], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        format!("perm={:?}", self.perm)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// `x` with its axes in the order `perm`; `x` itself if that is their order. Source: StableHLO
/// `transpose`.
///
/// # Errors
/// If `perm` does not name each axis once.
pub fn permute(x: &Value, perm: &[usize]) -> Result<Value> {
    if perm.len() == x.rank() && perm.iter().copied().eq(0..perm.len()) {
        return Ok(x.clone());
    }
    bind_one(&Permute { perm: SmallVec::from_slice(perm) }, std::slice::from_ref(x))
}

/// The jvp of a primitive that is linear in its one operand.
pub(crate) fn linear_jvp(
    prim: &dyn Primitive,
    primals: &[Value],
    tangents: &[Tangent],
) -> Result<(Values, Tangents)> {
    let out = bind_one(prim, primals)?;
    let t = tangents[0].as_ref().map(|t| bind_one(prim, std::slice::from_ref(t))).transpose()?;
    Ok((smallvec![out], smallvec![t]))
}

/// `x` with axis `from` moved to be axis `to`.
///
/// # Errors
/// If an axis is out of range.
pub fn move_axis(x: &Value, from: usize, to: usize) -> Result<Value> {
    let mut perm: Vec<usize> = (0..x.rank()).filter(|&a| a != from).collect();
    perm.insert(to.min(perm.len()), from);
    permute(x, &perm)
}

/// A batch with its mapped axis at `to`; what is not mapped is repeated `size` times.
///
/// # Errors
/// If an axis is out of range.
pub fn move_batch_axis(size: usize, x: &Value, from: Option<usize>, to: usize) -> Result<Value> {
    match from {
        Some(from) => move_axis(x, from, to),
        None => {
            let shape = x.shape().insert(to, size);
            let axes: Vec<usize> = (0..shape.rank()).filter(|&a| a != to).collect();
            broadcast_in_dim(x, &shape, &axes)
        }
    }
}

/// All operands with their mapped axis at one place, which is given too; what is not mapped is
/// repeated.
///
/// # Errors
/// If an axis is out of range.
pub fn align_batch(
    size: usize,
    operands: &[Value],
    axes: &[Option<usize>],
) -> Result<(Values, usize)> {
    let to = axes.iter().flatten().next().copied().unwrap_or(0);
    let moved = operands.iter().zip(axes).map(|(x, &from)| move_batch_axis(size, x, from, to));
    Ok((moved.collect::<Result<_>>()?, to))
}
