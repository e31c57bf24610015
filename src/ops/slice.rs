//! Primitives that cut and join along axes: `slice`, `pad`, `concatenate`, `reverse`.

use super::shape::{broadcast_in_dim, linear_jvp, move_batch_axis, reshape};
use super::{mapped, mismatch};
use crate::aval::{Aval, Avals};
use crate::backend::host::{HostArray, layout};
use crate::dtype::Scalar;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::compare::select;
use crate::ops::create::{full, full_like, or_zeros};
use crate::ops::reduce::reduce_sum;
use crate::shape::Shape;
use crate::trace::batch::BatchAxis;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::{SmallVec, smallvec};

/// The primitive `slice`: every `steps[i]`-th element of axis `i` from `starts[i]`, inclusive, to
/// `limits[i]`, exclusive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// For each axis the first index.
    pub starts: SmallVec<[usize; 4]>,
    /// For each axis the index before which it ends.
    pub limits: SmallVec<[usize; 4]>,
    /// For each axis the distance of the indices.
    pub steps: SmallVec<[usize; 4]>,
}

impl Slice {
    fn size(&self, axis: usize) -> usize {
        (self.limits[axis] - self.starts[axis]).div_ceil(self.steps[axis])
    }

    #[cold]
    fn fail<T>(kind: ErrorKind, why: String) -> Result<T> {
        Err(Error::new(kind, "slice", why))
    }
}

impl Primitive for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (x, (starts, limits, steps)) =
            (&operands[0], (&self.starts, &self.limits, &self.steps));
        if [starts.len(), limits.len(), steps.len()] != [x.rank(); 3] {
            let (a, b, c) = (starts.len(), limits.len(), steps.len());
            let why = format!("{a} starts, {b} limits and {c} steps do not fit the axes of {x}");
            return Slice::fail(ErrorKind::Shape, why);
        }
        for axis in 0..x.rank() {
            let (start, limit, size) = (starts[axis], limits[axis], x.shape()[axis]);
            if steps[axis] == 0 {
                return Slice::fail(
                    ErrorKind::Value,
                    format!("the step of axis {axis} of {x} is 0"),
                );
            }
            if limit > size {
                let why =
                    format!("limit {limit} is beyond axis {axis} of {x}, which has size {size}");
                return Slice::fail(ErrorKind::Shape, why);
            }
            if start > limit {
                let why = format!("start {start} is beyond limit {limit} on axis {axis} of {x}");
                return Slice::fail(ErrorKind::Shape, why);
            }
        }
        let shape: Shape = (0..x.rank()).map(|axis| self.size(axis)).collect();
        Ok(smallvec![x.with_shape(shape)])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let attrs = format!(
            "start_indices = {}, limit_indices = {}, strides = {}",
            hlo::i64_array(&self.starts),
            hlo::i64_array(&self.limits),
            hlo::i64_array(&self.steps)
        );
        Ok(cx.op("stablehlo.slice", operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![operands[0].slice(&self.starts, &self.limits, &self.steps)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        linear_jvp(self, primals, tangents)
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None]) };
        let (mut low, mut high, mut interior) = (vec![], vec![], vec![]);
        for (axis, &size) in operands[0].aval().shape().iter().enumerate() {
            let (start, step) = (self.starts[axis], self.steps[axis]);
            let spread = self.size(axis).checked_sub(1).map_or(0, |last| last * step + 1);
            low.push(start as i64);
            high.push((size - start - spread) as i64);
            interior.push(step as i64 - 1);
        }
        let zero = Value::scalar(Scalar::zero(ct.dtype()));
        Ok(smallvec![Some(pad(ct, &zero, &low, &high, &interior)?)])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        let mut prim = self.clone();
        prim.starts.insert(axis, 0);
        prim.limits.insert(axis, batch.size);
        prim.steps.insert(axis, 1);
        Ok((smallvec![bind_one(&prim, std::slice::from_ref(x))?], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        format!("starts={:?}, limits={:?}, steps={:?}", self.starts, self.limits, self.steps)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// Every `steps[i]`-th element of axis `i` of `x` from `starts[i]`, inclusive, to `limits[i]`,
/// exclusive; `x` itself if that is all of it. Source: StableHLO `slice`.
///
/// # Errors
/// If an axis has no start, limit or step, a step is 0, a limit is beyond the axis, or a start is
/// beyond its limit.
pub fn slice(x: &Value, starts: &[usize], limits: &[usize], steps: &[usize]) -> Result<Value> {
    let all = [starts.len(), steps.len()] == [x.rank(); 2] && limits == x.shape().dims();
    if all && starts.iter().all(|&s| s == 0) && steps.iter().all(|&s| s == 1) {
        return Ok(x.clone());
    }
    let prim = Slice {
        starts: SmallVec::from_slice(starts),
        limits: SmallVec::from_slice(limits),
        steps: SmallVec::from_slice(steps),
    };
    bind_one(&prim, std::slice::from_ref(x))
}

/// The elements of `x` from `start` to `limit` on one axis, all on the others.
///
/// # Errors
/// If the axis is out of range, the limit is beyond it, or the start is beyond the limit.
pub fn slice_axis(x: &Value, axis: usize, start: usize, limit: usize) -> Result<Value> {
    check_axis("slice", x.aval(), axis)?;
    let mut starts = vec![0; x.rank()];
    starts[axis] = start;
    slice(x, &starts, &x.shape().with(axis, limit), &vec![1; x.rank()])
}

/// The element `index` along one axis, which goes away.
///
/// # Errors
/// If the axis or the index is out of range.
pub fn index_axis(x: &Value, axis: usize, index: usize) -> Result<Value> {
    let one = slice_axis(x, axis, index, index + 1)?;
    reshape(&one, &x.shape().remove(axis))
}

/// The values, all of one type, along a new axis.
///
/// # Errors
/// If there is no value, the types differ, or the axis is out of range.
pub fn stack(values: &[Value], axis: usize) -> Result<Value> {
    let wide = |x: &Value| reshape(x, &x.shape().insert(axis.min(x.rank()), 1));
    concatenate(&values.iter().map(wide).collect::<Result<Vec<_>>>()?, axis)
}

pub(crate) fn check_axis(op: &'static str, x: &Aval, axis: usize) -> Result<()> {
    if axis < x.rank() {
        return Ok(());
    }
    let text = format!("axis {axis} is outside of {x}, which has {} axes", x.rank());
    Err(Error::new(ErrorKind::Axis, op, text))
}

/// The primitive `pad`: `low[i]` values before, `high[i]` after and `interior[i]` between the
/// elements of axis `i`; negative `low` and `high` cut off.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pad {
    /// For each axis how many before.
    pub low: SmallVec<[i64; 4]>,
    /// For each axis how many after.
    pub high: SmallVec<[i64; 4]>,
    /// For each axis how many between two elements.
    pub interior: SmallVec<[i64; 4]>,
}

impl Pad {
    /// The result's size on an axis of size `n`; negative if more is cut off than there is.
    fn size(&self, axis: usize, n: usize) -> i128 {
        let wide = i128::from;
        let between = n.saturating_sub(1) as i128 * wide(self.interior[axis]);
        wide(self.low[axis]) + wide(self.high[axis]) + n as i128 + between
    }

    /// The padding over a batch whose mapped axis is `axis`.
    fn over(&self, axis: usize) -> Pad {
        let mut prim = self.clone();
        for sizes in [&mut prim.low, &mut prim.high, &mut prim.interior] {
            sizes.insert(axis, 0);
        }
        prim
    }

    /// Where the result holds an element of an operand of the given shape.
    fn mask(&self, shape: &Shape) -> Result<Value> {
        let inside = full(Scalar::new(true), shape)?;
        bind_one(self, &[inside, Value::scalar(Scalar::new(false))])
    }
}

impl Primitive for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (x, value) = (&operands[0], &operands[1]);
        let fail = |kind, why: String| Err(Error::new(kind, "pad", why));
        if value.rank() != 0 {
            return fail(ErrorKind::Shape, format!("the padding value is {value}, not a scalar"));
        }
        if x.dtype() != value.dtype() {
            return Err(mismatch("pad", x, value));
        }
        let lengths = [self.low.len(), self.high.len(), self.interior.len()];
        if lengths != [x.rank(); 3] {
            let [a, b, c] = lengths;
            let why =
                format!("{a} low, {b} high and {c} interior sizes do not fit the axes of {x}");
            return fail(ErrorKind::Shape, why);
        }
        let mut shape = x.shape().clone();
        for axis in 0..x.rank() {
            if self.interior[axis] < 0 {
                let why =
                    format!("interior size {} of axis {axis} is negative", self.interior[axis]);
                return fail(ErrorKind::Value, why);
            }
            let size = self.size(axis, x.shape()[axis]);
            let Some(size) = usize::try_from(size).ok().filter(|&n| i64::try_from(n).is_ok())
            else {
                let (low, high) = (self.low[axis], self.high[axis]);
                let why =
                    format!("axis {axis} of {x} with {low} low and {high} high has size {size}");
                return fail(ErrorKind::Shape, why);
            };
            shape = shape.with(axis, size);
        }
        Ok(smallvec![x.with_shape(shape)])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let attrs = format!(
            "edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
            hlo::i64_array(&self.low),
            hlo::i64_array(&self.high),
            hlo::i64_array(&self.interior)
        );
        Ok(cx.op("stablehlo.pad", operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        let (x, value) = (&operands[0], &operands[1]);
        Ok(vec![layout::pad(x, value, &self.low, &self.high, &self.interior)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let t = bind_one(self, &filled(primals, tangents)?)?;
        Ok((smallvec![bind_one(self, primals)?], smallvec![Some(t)]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None, None]) };
        let (mut to_x, mut to_value) = (None, None);
        let shape = operands[0].aval().shape();
        if operands[0].is_linear() {
            let negative = |v: &[i64]| v.iter().map(|n| -n).collect::<Vec<_>>();
            let zero = Value::scalar(Scalar::zero(ct.dtype()));
            let none = vec![0; shape.rank()];
            let inner = pad(ct, &zero, &negative(&self.low), &negative(&self.high), &none)?;
            let steps: Vec<usize> = self.interior.iter().map(|&n| n as usize + 1).collect();
            to_x = Some(slice(&inner, &vec![0; shape.rank()], inner.shape(), &steps)?);
        }
        if operands[1].is_linear() {
            let outside = select(&self.mask(shape)?, &full_like(ct, 0.0)?, ct)?;
            to_value = Some(reduce_sum(&outside, &(0..ct.rank()).collect::<Vec<_>>())?);
        }
        Ok(smallvec![to_x, to_value])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        if let (Some(axis), None) = (axes[0], axes[1]) {
            let out = bind_one(&self.over(axis), operands)?;
            return Ok((smallvec![out], smallvec![Some(axis)]));
        }
        // Each example has its own padding value: pad with zeros, then put the values there.
        let x = move_batch_axis(batch.size, &operands[0], axes[0], 0)?;
        let prim = self.over(0);
        let zero = Value::scalar(Scalar::zero(x.dtype()));
        let out = bind_one(&prim, &[x.clone(), zero])?;
        let value = broadcast_in_dim(&operands[1], out.shape(), &[0])?;
        Ok((smallvec![select(&prim.mask(x.shape())?, &out, &value)?], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        format!("low={:?}, high={:?}, interior={:?}", self.low, self.high, self.interior)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// `x` with `low[i]` times `value` before, `high[i]` times after and `interior[i]` times between the
/// elements of axis `i`; negative `low` and `high` cut off, after the interior is put in. `x`
/// itself if nothing changes. Source: StableHLO `pad`.
///
/// # Errors
/// If `value` is no scalar of the dtype of `x`, an axis lacks a size, an interior size is negative,
/// or more is cut off than there is.
pub fn pad(x: &Value, value: &Value, low: &[i64], high: &[i64], interior: &[i64]) -> Result<Value> {
    let none = |v: &[i64]| v.len() == x.rank() && v.iter().all(|&n| n == 0);
    if none(low) && none(high) && none(interior) {
        return Ok(x.clone());
    }
    let prim = Pad {
        low: SmallVec::from_slice(low),
        high: SmallVec::from_slice(high),
        interior: SmallVec::from_slice(interior),
    };
    bind_one(&prim, &[x.clone(), value.clone()])
}

/// The tangents, zeros for those that are not there.
pub(crate) fn filled(primals: &[Value], tangents: &[Tangent]) -> Result<Values> {
    primals.iter().zip(tangents).map(|(x, t)| or_zeros(t, x.aval())).collect()
}

/// The primitive `concatenate`: the operands one after the other along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concatenate {
    /// The axis.
    pub axis: usize,
}

impl Primitive for Concatenate {
    fn name(&self) -> &'static str {
        "concatenate"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let Some(first) = operands.first() else {
            return Err(Error::new(ErrorKind::Value, "concatenate", "there is nothing to join"));
        };
        check_axis("concatenate", first, self.axis)?;
        let mut total = 0;
        for (i, x) in operands.iter().enumerate() {
            if x.dtype() != first.dtype() {
                return Err(mismatch("concatenate", first, x));
            }
            if x.rank() != first.rank()
                || x.shape().with(self.axis, 0) != first.shape().with(self.axis, 0)
            {
                let axis = self.axis;
                let text =
                    format!("operand {i}, {x}, differs from {first} not only on axis {axis}");
                return Err(Error::new(ErrorKind::Shape, "concatenate", text));
            }
            total += x.shape()[self.axis];
        }
        Ok(smallvec![first.with_shape(first.shape().with(self.axis, total))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let attrs = format!("dimension = {} : i64", self.axis);
        Ok(cx.op("stablehlo.concatenate", operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![layout::concatenate(operands, self.axis)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let t = bind_one(self, &filled(primals, tangents)?)?;
        Ok((smallvec![bind_one(self, primals)?], smallvec![Some(t)]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let mut start = 0;
        let mut part = |operand: &Operand| {
            let from = start;
            start += operand.aval().shape()[self.axis];
            match &cts[0] {
                Some(ct) if operand.is_linear() => slice_axis(ct, self.axis, from, start).map(Some),
                _ => Ok(None),
            }
        };
        operands.iter().map(&mut part).collect()
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        // To the front, where the axis of each operand exists whatever its place was.
        let moved = operands.iter().zip(axes).map(|(x, &a)| move_batch_axis(batch.size, x, a, 0));
        let moved = moved.collect::<Result<Values>>()?;
        Ok((smallvec![concatenate(&moved, self.axis + 1)?], smallvec![Some(0)]))
    }

    fn params(&self) -> String {
        format!("axis={}", self.axis)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// The operands one after the other along `axis`; a single operand as it is. Source: StableHLO
/// `concatenate`.
///
/// # Errors
/// If there is none, the axis is out of range, the dtypes differ, or sizes differ on another axis.
pub fn concatenate(operands: &[Value], axis: usize) -> Result<Value> {
    match operands {
        [x] if axis < x.rank() => Ok(x.clone()),
        _ => bind_one(&Concatenate { axis }, operands),
    }
}

/// The primitive `reverse`: the elements in reverse order along some axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reverse {
    /// The axes.
    pub axes: SmallVec<[usize; 4]>,
}

impl Primitive for Reverse {
    fn name(&self) -> &'static str {
        "reverse"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        super::reduce::check_axes("reverse", &operands[0], &self.axes)?;
        Ok(smallvec![operands[0].clone()])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let attrs = format!("dimensions = {}", hlo::i64_array(&self.axes));
        Ok(cx.op("stablehlo.reverse", operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![operands[0].reverse(&self.axes)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        linear_jvp(self, primals, tangents)
    }

    fn transpose(&self, cts: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Ok(smallvec![cts[0].as_ref().map(|ct| reverse(ct, &self.axes)).transpose()?])
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        let inner: Vec<usize> = self.axes.iter().map(|&a| a + usize::from(a >= axis)).collect();
        Ok((smallvec![reverse(x, &inner)?], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        format!("axes={:?}", self.axes)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// `x` in reverse order along `axes`; `x` itself if there are none. Source: StableHLO `reverse`.
///
/// # Errors
/// If an axis is out of range or named twice.
pub fn reverse(x: &Value, axes: &[usize]) -> Result<Value> {
    if axes.is_empty() {
        return Ok(x.clone());
    }
    bind_one(&Reverse { axes: SmallVec::from_slice(axes) }, std::slice::from_ref(x))
}
