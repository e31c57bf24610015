//! Sliding windows: `reduce_window_sum`, `_max`, `_min`, and what their derivatives are made of.

use super::bad_dtype;
use super::mapped;
use super::mismatch;
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host::window as kernel;
pub use crate::backend::host::window::{Select as Pick, WindowDims, WindowKind};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::binary::{add, sub};
use crate::ops::create::{full_like, iota, zeros};
use crate::ops::index::IndexMode;
use crate::ops::scatter::{ScatterDims, ScatterKind, scatter};
use crate::ops::shape::{align_batch, linear_jvp, reshape};
use crate::ops::slice::pad;
use crate::shape::Shape;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::smallvec;

/// Checks that the window has an entry for each axis.
fn check_window(op: &'static str, x: &Aval, d: &WindowDims) -> Result<()> {
    let lists = [&d.window, &d.strides, &d.base_dilation, &d.window_dilation];
    if lists.iter().any(|l| l.len() != x.rank()) || d.padding.len() != x.rank() {
        let text = format!("the window needs one entry in each field for each axis of {x}: {d:?}");
        return Err(Error::new(ErrorKind::Shape, op, text));
    }
    if lists.into_iter().flatten().any(|&n| n == 0) {
        let text = format!("a window size, stride or dilation is 0: {d:?}");
        return Err(Error::new(ErrorKind::Value, op, text));
    }
    Ok(())
}

/// The same window over an array with one more axis at `axis`.
fn over_batch(d: &WindowDims, axis: usize) -> WindowDims {
    let mut d = d.clone();
    for list in [&mut d.window, &mut d.strides, &mut d.base_dilation, &mut d.window_dilation] {
        list.insert(axis, 1);
    }
    d.padding.insert(axis, (0, 0));
    d
}

fn attrs(d: &WindowDims) -> String {
    format!(
        "window_dimensions = {}, window_strides = {}, base_dilations = {}, window_dilations = {}, \
         padding = {}",
        hlo::i64_array(&d.window),
        hlo::i64_array(&d.strides),
        hlo::i64_array(&d.base_dilation),
        hlo::i64_array(&d.window_dilation),
        hlo::pairs(&d.padding)
    )
}

fn params(d: &WindowDims) -> String {
    format!(
        "window={:?}, strides={:?}, base_dilation={:?}, window_dilation={:?}, padding={:?}",
        d.window, d.strides, d.base_dilation, d.window_dilation, d.padding
    )
}

/// The window and padding under which a sum's cotangent is summed.
fn transposed(d: &WindowDims, x: &Shape, out: &Shape) -> Vec<(i64, i64)> {
    let dilated = |n: usize, by: usize| if n == 0 { 0 } else { ((n - 1) * by + 1) as i64 };
    let one = |a: usize| {
        let window = dilated(d.window[a], d.window_dilation[a]);
        let before = window - d.padding[a].0 - 1;
        let whole = dilated(x[a], d.base_dilation[a]) + window - 1;
        (before, whole - dilated(out[a], d.strides[a]) - before)
    };
    (0..x.rank()).map(one).collect()
}

/// The element that a window picks first loses to all others.
fn loser(pick: Pick, dtype: DType) -> Scalar {
    match pick {
        Pick::Ge => Scalar::min_value(dtype),
        Pick::Le => Scalar::max_value(dtype),
    }
}

/// Writes whether `x` stays picked against `y`.
fn lower_stays(cx: &mut Lowering, pick: Pick, x: &Val, y: &Val) -> Val {
    let direction = if pick == Pick::Ge { "GE" } else { "LE" };
    let attrs = format!("comparison_direction = #stablehlo<comparison_direction {direction}>");
    cx.op1("stablehlo.compare", &[x, y], &attrs, &Aval::scalar(DType::Bool))
}

/// The primitive `reduce_window`: each result is the reduction of what lies under the window there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceWindow {
    /// The window.
    pub dims: WindowDims,
    /// What it is reduced by.
    pub kind: WindowKind,
}

impl ReduceWindow {
    fn pick(&self) -> Option<Pick> {
        match self.kind {
            WindowKind::Max => Some(Pick::Ge),
            WindowKind::Min => Some(Pick::Le),
            WindowKind::Sum | WindowKind::Prod => None,
        }
    }

    fn combine(&self) -> (&'static str, fn(DType) -> Scalar) {
        match self.kind {
            WindowKind::Sum => ("stablehlo.add", Scalar::zero),
            WindowKind::Prod => ("stablehlo.multiply", Scalar::one),
            WindowKind::Max => ("stablehlo.maximum", Scalar::min_value),
            WindowKind::Min => ("stablehlo.minimum", Scalar::max_value),
        }
    }
}

impl Primitive for ReduceWindow {
    fn name(&self) -> &'static str {
        match self.kind {
            WindowKind::Sum => "reduce_window_sum",
            WindowKind::Prod => "reduce_window_prod",
            WindowKind::Max => "reduce_window_max",
            WindowKind::Min => "reduce_window_min",
        }
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        check_window(self.name(), x, &self.dims)?;
        if x.dtype() == DType::Bool || (self.pick().is_some() && x.dtype().is_complex()) {
            let takes = if self.pick().is_some() { "real numbers" } else { "numbers" };
            return Err(bad_dtype(self.name(), x, takes));
        }
        Ok(smallvec![x.with_shape(self.dims.out_shape(x.shape()))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let scalar = Aval::scalar(outs[0].dtype());
        let (op, init) = self.combine();
        let init = cx.constant(init(scalar.dtype()), &scalar);
        let region = cx.region(&[scalar.clone(), scalar.clone()], |cx, args| {
            Ok(vec![cx.op1(op, &[&args[0], &args[1]], "", &scalar)])
        })?;
        let operands = [operands[0].clone(), init];
        let attrs = attrs(&self.dims);
        Ok(cx.op_with_regions("stablehlo.reduce_window", &operands, &attrs, &[region], outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![kernel::reduce_window(&operands[0], &self.dims, self.kind)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let pick = match (self.kind, self.pick()) {
            (_, Some(pick)) => pick,
            (WindowKind::Sum, None) => return linear_jvp(self, primals, tangents),
            _ => return Err(Error::new(ErrorKind::NoRule, self.name(), "has no derivative")),
        };
        let out = bind_one(self, primals)?;
        let t = tangents[0].as_ref();
        let t = t.map(|t| select_and_gather(&primals[0], t, &self.dims, pick)).transpose()?;
        Ok((smallvec![out], smallvec![t]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None]) };
        if self.kind != WindowKind::Sum {
            return Err(not_linear(self));
        }
        let (d, x) = (&self.dims, operands[0].aval().shape());
        let (low, high): (Vec<i64>, Vec<i64>) = transposed(d, x, ct.shape()).into_iter().unzip();
        let holes: Vec<i64> = d.strides.iter().map(|&s| s as i64 - 1).collect();
        let zero = Value::scalar(Scalar::zero(ct.dtype()));
        let spread = pad(ct, &zero, &low, &high, &holes)?;
        let dims = WindowDims {
            window_dilation: d.window_dilation.clone(),
            ..WindowDims::new(&d.window, &d.base_dilation)
        };
        Ok(smallvec![Some(reduce_window_sum(&spread, &dims)?)])
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        let out = reduce_window(x, &over_batch(&self.dims, axis), self.kind)?;
        Ok((smallvec![out], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        params(&self.dims)
    }
}

fn reduce_window(x: &Value, dims: &WindowDims, kind: WindowKind) -> Result<Value> {
    bind_one(&ReduceWindow { dims: dims.clone(), kind }, std::slice::from_ref(x))
}

/// The sum of what lies under the window, for each place of it; padding counts as 0. Source:
/// StableHLO `reduce_window`.
///
/// # Errors
/// If the window has not one entry an axis, or a 0 among sizes, strides and dilations; if `x` is
/// bool.
pub fn reduce_window_sum(x: &Value, dims: &WindowDims) -> Result<Value> {
    reduce_window(x, dims, WindowKind::Sum)
}

/// The largest element under the window, for each place of it; padding counts as the smallest
/// value. NaN wins. The derivative goes to the first of equal elements.
///
/// # Errors
/// As [`reduce_window_sum`], and if `x` is complex.
pub fn reduce_window_max(x: &Value, dims: &WindowDims) -> Result<Value> {
    reduce_window(x, dims, WindowKind::Max)
}

/// The smallest element under the window, for each place of it; padding counts as the largest
/// value. NaN wins. The derivative goes to the first of equal elements.
///
/// # Errors
/// As [`reduce_window_max`].
pub fn reduce_window_min(x: &Value, dims: &WindowDims) -> Result<Value> {
    reduce_window(x, dims, WindowKind::Min)
}

/// The primitive `select_and_gather`: of a second array the elements that lie where each window of
/// the first one picks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SelectAndGather {
    /// The window.
    pub dims: WindowDims,
    /// Which element is picked.
    pub pick: Pick,
}

fn check_picked(op: &'static str, x: &Aval) -> Result<()> {
    if x.dtype() == DType::Bool || x.dtype().is_complex() {
        return Err(bad_dtype(op, x, "real numbers to pick from"));
    }
    Ok(())
}

impl Primitive for SelectAndGather {
    fn name(&self) -> &'static str {
        "select_and_gather"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (x, values) = (&operands[0], &operands[1]);
        check_picked(self.name(), x)?;
        check_window(self.name(), x, &self.dims)?;
        if x.shape() != values.shape() {
            return Err(mismatch(self.name(), x, &values.with_dtype(x.dtype())));
        }
        Ok(smallvec![values.with_shape(self.dims.out_shape(x.shape()))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let key = Aval::scalar(operands[0].aval().dtype());
        let value = Aval::scalar(outs[0].dtype());
        let params = [key.clone(), value.clone(), key.clone(), value.clone()];
        let region = cx.region(&params, |cx, args| {
            let stays = lower_stays(cx, self.pick, &args[0], &args[2]);
            let key = cx.op1("stablehlo.select", &[&stays, &args[0], &args[2]], "", &key);
            Ok(vec![key, cx.op1("stablehlo.select", &[&stays, &args[1], &args[3]], "", &value)])
        })?;
        let first = cx.constant(loser(self.pick, key.dtype()), &key);
        let zero = cx.constant(Scalar::zero(value.dtype()), &value);
        let operands = [operands[0].clone(), operands[1].clone(), first, zero];
        let both = [outs[0].with_dtype(key.dtype()), outs[0].clone()];
        let attrs = attrs(&self.dims);
        let mut results =
            cx.op_with_regions("stablehlo.reduce_window", &operands, &attrs, &[region], &both);
        Ok(results.split_off(1))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![kernel::select_and_gather(&operands[0], &operands[1], &self.dims, self.pick)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let out = bind_one(self, primals)?;
        let t = tangents[1].as_ref().map(|t| bind_one(self, &[primals[0].clone(), t.clone()]));
        Ok((smallvec![out], smallvec![t.transpose()?]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None, None]) };
        let Some(x) = operands[0].known() else { return Err(not_linear(self)) };
        let d = &self.dims;
        let dilated = d.base_dilation.iter().chain(&d.window_dilation).any(|&n| n != 1);
        let cut = d.padding.iter().any(|p| p.0 < 0 || p.1 < 0);
        let sum = if dilated || cut || x.dtype() != ct.dtype() {
            self.scatter_by_index(x, ct)?
        } else {
            select_and_scatter_add(x, ct, d, self.pick)?
        };
        Ok(smallvec![None, Some(sum)])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (operands, axis) = align_batch(batch.size, operands, axes)?;
        let dims = over_batch(&self.dims, axis);
        let out = select_and_gather(&operands[0], &operands[1], &dims, self.pick)?;
        Ok((smallvec![out], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        format!("{}, pick={:?}", params(&self.dims), self.pick)
    }
}

impl SelectAndGather {
    /// The cotangent by the position of each picked element: for windows with holes, which
    /// `select_and_scatter` does not take.
    fn scatter_by_index(&self, x: &Value, ct: &Value) -> Result<Value> {
        let flat = Shape::new(&[x.shape().size()]);
        // Counted from 1, so that 0 means that a window covers padding only.
        let at = iota(DType::I64, &flat, 0)?;
        let at = reshape(&add(&at, &full_like(&at, 1.0)?)?, x.shape())?;
        let picked = select_and_gather(x, &at, &self.dims, self.pick)?;
        let picked = sub(&picked, &full_like(&picked, 1.0)?)?;
        let count = Shape::new(&[ct.shape().size()]);
        let dims = ScatterDims {
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![0],
            index_vector_dim: 1,
            ..ScatterDims::default()
        };
        let (indices, updates) = (reshape(&picked, &count)?, reshape(ct, &count)?);
        let zero = zeros(&Aval::new(ct.dtype(), &flat))?;
        let sum =
            scatter(&zero, &indices, &updates, &dims, ScatterKind::Add, IndexMode::FillOrDrop)?;
        reshape(&sum, x.shape())
    }
}

/// For each place of the window the element of `values` that lies where the picked element of `x`
/// does; 0 where the window covers padding only. `values` may have another dtype: with positions
/// as values this is where the maxima of a pooling lie.
///
/// # Errors
/// If the shapes differ, `x` is bool or complex, or the window does not fit.
pub fn select_and_gather(
    x: &Value,
    values: &Value,
    dims: &WindowDims,
    pick: Pick,
) -> Result<Value> {
    bind_one(&SelectAndGather { dims: dims.clone(), pick }, &[x.clone(), values.clone()])
}

/// The primitive `select_and_scatter_add`: the derivative of pooling by the largest or smallest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SelectAndScatterAdd {
    /// The window.
    pub dims: WindowDims,
    /// Which element is picked.
    pub pick: Pick,
}

impl Primitive for SelectAndScatterAdd {
    fn name(&self) -> &'static str {
        "select_and_scatter_add"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let (x, source, d) = (&operands[0], &operands[1], &self.dims);
        check_picked(self.name(), x)?;
        check_window(self.name(), x, d)?;
        let dilated = d.base_dilation.iter().chain(&d.window_dilation).any(|&n| n != 1);
        if dilated || d.padding.iter().any(|p| p.0 < 0 || p.1 < 0) {
            let text = format!("takes no dilation and no negative padding: {d:?}");
            return Err(Error::new(ErrorKind::Value, self.name(), text));
        }
        let expected = x.with_shape(d.out_shape(x.shape()));
        if source.unsharded() != expected {
            let text = format!("the source {source} has not one element a window, {expected}");
            return Err(Error::new(ErrorKind::Shape, self.name(), text));
        }
        Ok(smallvec![x.clone()])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let (d, x) = (&self.dims, &operands[0]);
        let scalar = Aval::scalar(outs[0].dtype());
        let pair = [scalar.clone(), scalar.clone()];
        let stays =
            cx.region(&pair, |cx, args| Ok(vec![lower_stays(cx, self.pick, &args[0], &args[1])]))?;
        let sum = cx.region(&pair, |cx, args| {
            Ok(vec![cx.op1("stablehlo.add", &[&args[0], &args[1]], "", &scalar)])
        })?;
        let zero = cx.constant(Scalar::zero(scalar.dtype()), &scalar);
        // CPU plugins pick from the padding, so the operand is padded with what is never picked.
        let (low, high): (Vec<i64>, Vec<i64>) = d.padding.iter().copied().unzip();
        let sizes = x.aval().shape().iter().zip(&d.padding);
        let whole: Shape = sizes.map(|(&n, p)| n + (p.0 + p.1) as usize).collect();
        let whole = outs[0].with_shape(whole);
        let edge = cx.constant(loser(self.pick, scalar.dtype()), &scalar);
        let padding = format!(
            "edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
            hlo::i64_array(&low),
            hlo::i64_array(&high),
            hlo::i64_array(vec![0; low.len()])
        );
        let padded = cx.op1("stablehlo.pad", &[x, &edge], &padding, &whole);
        let attrs = format!(
            "window_dimensions = {}, window_strides = {}, padding = {}",
            hlo::i64_array(&d.window),
            hlo::i64_array(&d.strides),
            hlo::pairs(&vec![(0, 0); low.len()])
        );
        let (name, operands) =
            ("stablehlo.select_and_scatter", [padded, operands[1].clone(), zero]);
        let out = cx.op_with_regions(name, &operands, &attrs, &[stays, sum], &[whole]);
        let limits = low.iter().zip(x.aval().shape().iter()).map(|(&l, &n)| l + n as i64);
        let slice = format!(
            "start_indices = {}, limit_indices = {}, strides = {}",
            hlo::i64_array(&low),
            hlo::i64_array(limits),
            hlo::i64_array(vec![1; low.len()])
        );
        Ok(vec![cx.op1("stablehlo.slice", &[&out[0]], &slice, &outs[0])])
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        let (x, source) = (&operands[0], &operands[1]);
        Ok(vec![kernel::select_and_scatter_add(x, source, &self.dims, self.pick)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let out = bind_one(self, primals)?;
        let t = tangents[1].as_ref().map(|t| bind_one(self, &[primals[0].clone(), t.clone()]));
        Ok((smallvec![out], smallvec![t.transpose()?]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None, None]) };
        let Some(x) = operands[0].known() else { return Err(not_linear(self)) };
        Ok(smallvec![None, Some(select_and_gather(x, ct, &self.dims, self.pick)?)])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (operands, axis) = align_batch(batch.size, operands, axes)?;
        let dims = over_batch(&self.dims, axis);
        let out = select_and_scatter_add(&operands[0], &operands[1], &dims, self.pick)?;
        Ok((smallvec![out], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        format!("{}, pick={:?}", params(&self.dims), self.pick)
    }
}

/// An array of the shape of `x`: each element of `source`, which has one for each place of the
/// window, added to where the window's picked element of `x` lies; all others are 0. Source:
/// StableHLO `select_and_scatter`.
///
/// # Errors
/// If dtypes or shapes do not fit, or the window has dilation or negative padding.
pub fn select_and_scatter_add(
    x: &Value,
    source: &Value,
    dims: &WindowDims,
    pick: Pick,
) -> Result<Value> {
    bind_one(&SelectAndScatterAdd { dims: dims.clone(), pick }, &[x.clone(), source.clone()])
}
