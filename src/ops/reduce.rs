//! Reductions over axes, which go away, and the position of the extreme element.
//!
//! | function | of | derivative |
//! |---|---|---|
//! | [`reduce_sum`], [`reduce_prod`] | numbers | right also where elements are zero |
//! | [`reduce_max`], [`reduce_min`] | real numbers, bool | shared equally by equal extremes |
//! | [`reduce_and`], [`reduce_or`] | integers' bits, bool | |
//! | [`argmax`], [`argmin`] | real numbers, bool | |

use super::compare::{compare_in, eq};
use super::elementwise::Domain;
use super::shape::{broadcast_in_dim, permute, reshape};
use super::slice::{check_axis, concatenate, slice_axis};
use super::{bad_dtype, mapped};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host::reduce::{Reduction, arg_reduce, reduce};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::binary::{add, div, mul};
use crate::ops::call::fused;
use crate::ops::convert::convert;
use crate::ops::create::full;
use crate::shape::Shape;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind_one};
use smallvec::{SmallVec, smallvec};
use std::fmt::Debug;
use std::hash::Hash;

/// One way to fold elements: what a reduction adds to the shared rules of [`Reduce`].
pub trait Reducer: Copy + Debug + Eq + Hash + Send + Sync + 'static {
    /// The printed name.
    const NAME: &'static str;
    /// The StableHLO op of two elements.
    const HLO: &'static str;
    /// Which dtypes it takes.
    const DOMAIN: Domain;
    /// The host kernel.
    const HOST: Reduction;
    /// Whether f16 and bf16 are folded in f32, because each step rounds.
    const WIDE: bool = false;

    /// The result over no element.
    fn neutral(dtype: DType) -> Scalar;

    /// What the tangent `t` of `x` becomes; `y` is the result.
    fn jvp(x: &Value, y: &Value, t: &Value, axes: &[usize]) -> Result<Tangent>;

    /// The cotangent of `x`, if the reduction is linear.
    fn transpose(_ct: &Value, _x: &Aval, _axes: &[usize]) -> Option<Result<Value>> {
        None
    }
}

/// A [`Reducer`] as a primitive: some axes folded into one element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reduce<R> {
    /// The axes, growing.
    pub axes: SmallVec<[usize; 4]>,
    /// How it folds.
    pub by: R,
}

/// The axes of `x` that are not among `axes`.
pub(crate) fn kept(rank: usize, axes: &[usize]) -> Vec<usize> {
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

/// The dtype in which a kernel that rounds at each step works on `dtype`.
pub(crate) fn wide(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

impl<R: Reducer> Primitive for Reduce<R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        if !R::DOMAIN.contains(x.dtype()) {
            return Err(bad_dtype(R::NAME, x, R::DOMAIN.words()));
        }
        check_axes(R::NAME, x, &self.axes)?;
        Ok(smallvec![x.with_shape(x.shape().without(&self.axes))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let (x, out) = (&operands[0], &outs[0]);
        let dtype = if R::WIDE { wide(out.dtype()) } else { out.dtype() };
        if dtype == out.dtype() {
            return lower_reduce::<R>(cx, x, &self.axes, out);
        }
        let x = cx.op1("stablehlo.convert", &[x], "", &x.aval().with_dtype(dtype));
        let y = lower_reduce::<R>(cx, &x, &self.axes, &out.with_dtype(dtype))?;
        Ok(cx.op("stablehlo.convert", &y, "", outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![reduce(&operands[0], &self.axes, R::HOST)])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let y = bind_one(self, primals)?;
        let t = match &tangents[0] {
            Some(t) => R::jvp(&primals[0], &y, t, &self.axes)?,
            None => None,
        };
        Ok((smallvec![y], smallvec![t]))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(smallvec![None]) };
        match R::transpose(ct, operands[0].aval(), &self.axes) {
            Some(ct) => Ok(smallvec![Some(ct?)]),
            None => Err(not_linear(self)),
        }
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        let inner: SmallVec<[usize; 4]> =
            self.axes.iter().map(|&a| a + usize::from(a >= axis)).collect();
        let place = axis - inner.iter().filter(|&&a| a < axis).count();
        let prim = Reduce { axes: inner, by: self.by };
        Ok((smallvec![bind_one(&prim, std::slice::from_ref(x))?], smallvec![Some(place)]))
    }

    fn params(&self) -> String {
        format!("axes={:?}", self.axes)
    }
}

/// Writes `stablehlo.reduce` of one operand.
fn lower_reduce<R: Reducer>(
    cx: &mut Lowering,
    x: &Val,
    axes: &[usize],
    out: &Aval,
) -> Result<Vec<Val>> {
    let scalar = Aval::scalar(x.aval().dtype());
    let init = cx.constant(R::neutral(scalar.dtype()), &scalar);
    let region = cx.region(&[scalar.clone(), scalar.clone()], |cx, args| {
        Ok(vec![cx.op1(R::HLO, &[&args[0], &args[1]], "", &scalar)])
    })?;
    let attrs = format!("dimensions = {}", hlo::i64_array(axes));
    let outs = std::slice::from_ref(out);
    Ok(cx.op_with_regions("stablehlo.reduce", &[x.clone(), init], &attrs, &[region], outs))
}

/// `x` reduced over `axes`; `x` itself if there are none.
fn reduce_by<R: Reducer>(by: R, x: &Value, axes: &[usize]) -> Result<Value> {
    if axes.is_empty() {
        return Ok(x.clone());
    }
    let mut axes = SmallVec::from_slice(axes);
    axes.sort_unstable();
    bind_one(&Reduce { axes, by }, std::slice::from_ref(x))
}

/// Folds by addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BySum;

/// The primitive `reduce_sum`.
pub type ReduceSum = Reduce<BySum>;

impl Reducer for BySum {
    const NAME: &'static str = "reduce_sum";
    const HLO: &'static str = "stablehlo.add";
    const DOMAIN: Domain = Domain::Number;
    const HOST: Reduction = Reduction::Sum;
    const WIDE: bool = true;

    fn neutral(dtype: DType) -> Scalar {
        Scalar::zero(dtype)
    }

    fn jvp(_: &Value, _: &Value, t: &Value, axes: &[usize]) -> Result<Tangent> {
        reduce_sum(t, axes).map(Some)
    }

    fn transpose(ct: &Value, x: &Aval, axes: &[usize]) -> Option<Result<Value>> {
        Some(broadcast_in_dim(ct, x.shape(), &kept(x.rank(), axes)))
    }
}

/// The sum of `x` over `axes`, which go away; `x` itself if there are none. f16 and bf16 are summed
/// in f32. Source: StableHLO `reduce`.
///
/// # Errors
/// If an axis is out of range or named twice, or the dtype is bool.
pub fn reduce_sum(x: &Value, axes: &[usize]) -> Result<Value> {
    reduce_by(BySum, x, axes)
}

/// Folds by multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByProd;

/// The primitive `reduce_prod`.
pub type ReduceProd = Reduce<ByProd>;

impl Reducer for ByProd {
    const NAME: &'static str = "reduce_prod";
    const HLO: &'static str = "stablehlo.multiply";
    const DOMAIN: Domain = Domain::Number;
    const HOST: Reduction = Reduction::Prod;
    const WIDE: bool = true;

    fn neutral(dtype: DType) -> Scalar {
        Scalar::one(dtype)
    }

    fn jvp(x: &Value, _: &Value, t: &Value, axes: &[usize]) -> Result<Tangent> {
        let params: Vec<i64> = axes.iter().map(|&a| a as i64).collect();
        let mut outs =
            fused("reduce_prod_tangent", &params, &[x.clone(), t.clone()], |operands| {
                Ok(smallvec![prod_tangent(&operands[0], &operands[1], axes)?])
            })?;
        Ok(outs.pop())
    }
}

/// The tangent of a product of many: that of a product of two, on halves, then on halves of those.
/// Nothing is divided by, so zeros among the factors are no matter.
fn prod_tangent(x: &Value, t: &Value, axes: &[usize]) -> Result<Value> {
    let rest = kept(x.rank(), axes);
    let perm: Vec<usize> = axes.iter().chain(&rest).copied().collect();
    let out: Shape = rest.iter().map(|&a| x.shape()[a]).collect();
    let mut n: usize = axes.iter().map(|&a| x.shape()[a]).product();
    if n == 0 {
        return full(Scalar::zero(t.dtype()), &out);
    }
    let rows = out.insert(0, n);
    let mut x = reshape(&permute(x, &perm)?, &rows)?;
    let mut t = reshape(&permute(t, &perm)?, &rows)?;
    while n > 1 {
        let half = n / 2;
        let parts = |v: &Value| -> Result<(Value, Value)> {
            Ok((slice_axis(v, 0, 0, half)?, slice_axis(v, 0, half, 2 * half)?))
        };
        let ((x1, x2), (t1, t2)) = (parts(&x)?, parts(&t)?);
        let (odd_x, odd_t) = (slice_axis(&x, 0, 2 * half, n)?, slice_axis(&t, 0, 2 * half, n)?);
        t = concatenate(&[add(&mul(&t1, &x2)?, &mul(&t2, &x1)?)?, odd_t], 0)?;
        x = concatenate(&[mul(&x1, &x2)?, odd_x], 0)?;
        n -= half;
    }
    reshape(&t, &out)
}

/// The product of `x` over `axes`, which go away; `x` itself if there are none. f16 and bf16 are
/// multiplied in f32. Source: StableHLO `reduce`.
///
/// # Errors
/// If an axis is out of range or named twice, or the dtype is bool.
pub fn reduce_prod(x: &Value, axes: &[usize]) -> Result<Value> {
    reduce_by(ByProd, x, axes)
}

/// The tangent of an extreme: the mean over the places where it lies.
fn extreme_tangent(x: &Value, y: &Value, t: &Value, axes: &[usize]) -> Result<Tangent> {
    let rest = kept(x.rank(), axes);
    let places = convert(&eq(x, &broadcast_in_dim(y, x.shape(), &rest)?)?, x.dtype())?;
    let count = reduce_sum(&places, axes)?;
    let share = div(&places, &broadcast_in_dim(&count, x.shape(), &rest)?)?;
    reduce_sum(&mul(t, &share)?, axes).map(Some)
}

/// Folds by the larger of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByMax;

/// The primitive `reduce_max`.
pub type ReduceMax = Reduce<ByMax>;

impl Reducer for ByMax {
    const NAME: &'static str = "reduce_max";
    const HLO: &'static str = "stablehlo.maximum";
    const DOMAIN: Domain = Domain::Ordered;
    const HOST: Reduction = Reduction::Max;

    fn neutral(dtype: DType) -> Scalar {
        Scalar::min_value(dtype)
    }

    fn jvp(x: &Value, y: &Value, t: &Value, axes: &[usize]) -> Result<Tangent> {
        extreme_tangent(x, y, t, axes)
    }
}

/// The largest element of `x` over `axes`, which go away; NaN if there is one, the dtype's smallest
/// value if there is none. `x` itself if there are no axes. Equal extremes share the derivative.
/// Source: StableHLO `reduce`.
///
/// # Errors
/// If an axis is out of range or named twice, or the dtype is complex.
pub fn reduce_max(x: &Value, axes: &[usize]) -> Result<Value> {
    reduce_by(ByMax, x, axes)
}

/// Folds by the smaller of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByMin;

/// The primitive `reduce_min`.
pub type ReduceMin = Reduce<ByMin>;

impl Reducer for ByMin {
    const NAME: &'static str = "reduce_min";
    const HLO: &'static str = "stablehlo.minimum";
    const DOMAIN: Domain = Domain::Ordered;
    const HOST: Reduction = Reduction::Min;

    fn neutral(dtype: DType) -> Scalar {
        Scalar::max_value(dtype)
    }

    fn jvp(x: &Value, y: &Value, t: &Value, axes: &[usize]) -> Result<Tangent> {
        extreme_tangent(x, y, t, axes)
    }
}

/// The smallest element of `x` over `axes`, which go away; NaN if there is one, the dtype's largest
/// value if there is none. `x` itself if there are no axes. Equal extremes share the derivative.
/// Source: StableHLO `reduce`.
///
/// # Errors
/// If an axis is out of range or named twice, or the dtype is complex.
pub fn reduce_min(x: &Value, axes: &[usize]) -> Result<Value> {
    reduce_by(ByMin, x, axes)
}

/// Folds by "and".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByAnd;

/// The primitive `reduce_and`.
pub type ReduceAnd = Reduce<ByAnd>;

impl Reducer for ByAnd {
    const NAME: &'static str = "reduce_and";
    const HLO: &'static str = "stablehlo.and";
    const DOMAIN: Domain = Domain::Bits;
    const HOST: Reduction = Reduction::And;

    fn neutral(dtype: DType) -> Scalar {
        let signed = dtype.is_int() && !dtype.is_unsigned();
        if signed { Scalar::from_i64(dtype, -1) } else { Scalar::max_value(dtype) }
    }

    fn jvp(_: &Value, _: &Value, _: &Value, _: &[usize]) -> Result<Tangent> {
        Ok(None)
    }
}

/// Whether all elements of `x` over `axes` hold, which go away; the "and" of the bits of integers.
/// `x` itself if there are no axes. Source: StableHLO `reduce`.
///
/// # Errors
/// If an axis is out of range or named twice, or the dtype is neither bool nor integer.
pub fn reduce_and(x: &Value, axes: &[usize]) -> Result<Value> {
    reduce_by(ByAnd, x, axes)
}

/// Folds by "or".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByOr;

/// The primitive `reduce_or`.
pub type ReduceOr = Reduce<ByOr>;

impl Reducer for ByOr {
    const NAME: &'static str = "reduce_or";
    const HLO: &'static str = "stablehlo.or";
    const DOMAIN: Domain = Domain::Bits;
    const HOST: Reduction = Reduction::Or;

    fn neutral(dtype: DType) -> Scalar {
        Scalar::zero(dtype)
    }

    fn jvp(_: &Value, _: &Value, _: &Value, _: &[usize]) -> Result<Tangent> {
        Ok(None)
    }
}

/// Whether any element of `x` over `axes` holds, which go away; the "or" of the bits of integers.
/// `x` itself if there are no axes. Source: StableHLO `reduce`.
///
/// # Errors
/// If an axis is out of range or named twice, or the dtype is neither bool nor integer.
pub fn reduce_or(x: &Value, axes: &[usize]) -> Result<Value> {
    reduce_by(ByOr, x, axes)
}

/// The primitives `argmax` and `argmin`: the index of the extreme element along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArgReduce {
    /// The axis, which goes away.
    pub axis: usize,
    /// The dtype of the index.
    pub dtype: DType,
    /// Whether the largest element is looked for; else the smallest.
    pub max: bool,
}

impl ArgReduce {
    /// The region that keeps the better of two elements and its index.
    fn region(&self, cx: &mut Lowering, value: &Aval) -> Result<String> {
        let index = Aval::scalar(self.dtype);
        let better = if self.max { "GT" } else { "LT" };
        let params = [value.clone(), index.clone(), value.clone(), index.clone()];
        cx.region(&params, |cx, args| {
            let [x, i, y, j] = args else { unreachable!("a region has its parameters") };
            let bool = Aval::scalar(DType::Bool);
            let mut first = compare_in(cx, better, x, y);
            let mut same = compare_in(cx, "EQ", x, y);
            if value.dtype().is_float() {
                let (nan_x, nan_y) = (compare_in(cx, "NE", x, x), compare_in(cx, "NE", y, y));
                let number_y = cx.op1("stablehlo.not", &[&nan_y], "", &bool);
                let only_x = cx.op1("stablehlo.and", &[&nan_x, &number_y], "", &bool);
                let both = cx.op1("stablehlo.and", &[&nan_x, &nan_y], "", &bool);
                first = cx.op1("stablehlo.or", &[&first, &only_x], "", &bool);
                same = cx.op1("stablehlo.or", &[&same, &both], "", &bool);
            }
            let earlier = compare_in(cx, "LT", i, j);
            let earlier = cx.op1("stablehlo.and", &[&same, &earlier], "", &bool);
            let first = cx.op1("stablehlo.or", &[&first, &earlier], "", &bool);
            let value = cx.op(
                "stablehlo.select",
                &[first.clone(), x.clone(), y.clone()],
                "",
                std::slice::from_ref(value),
            );
            let index = cx.op("stablehlo.select", &[first, i.clone(), j.clone()], "", &[index]);
            Ok([value, index].concat())
        })
    }
}

impl Primitive for ArgReduce {
    fn name(&self) -> &'static str {
        if self.max { "argmax" } else { "argmin" }
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        if !Domain::Ordered.contains(x.dtype()) {
            return Err(bad_dtype(self.name(), x, Domain::Ordered.words()));
        }
        if !matches!(self.dtype, DType::I32 | DType::I64) {
            let text = format!("an index is i32 or i64, not {}", self.dtype);
            return Err(Error::new(ErrorKind::DType, self.name(), text));
        }
        check_axis(self.name(), x, self.axis)?;
        if x.shape()[self.axis] == 0 {
            let text = format!("axis {} of {x} has no element", self.axis);
            return Err(Error::new(ErrorKind::Shape, self.name(), text));
        }
        Ok(smallvec![Aval::new(self.dtype, x.shape().remove(self.axis))])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let x = &operands[0];
        let (value, index) = (Aval::scalar(x.aval().dtype()), Aval::scalar(self.dtype));
        let worst = if self.max { ByMax::neutral } else { ByMin::neutral };
        let iota = format!("iota_dimension = {} : i64", self.axis);
        let iota = cx.op("stablehlo.iota", &[], &iota, &[x.aval().with_dtype(self.dtype)]);
        let init = cx.constant(worst(value.dtype()), &value);
        // Index 0 wins over all others where every element is the worst: that is the first.
        let zero = cx.constant(Scalar::zero(self.dtype), &index);
        let region = self.region(cx, &value)?;
        let attrs = format!("dimensions = {}", hlo::i64_array([self.axis]));
        let operands = [x.clone(), iota[0].clone(), init, zero];
        let types = [x.aval().with_shape(outs[0].shape()), outs[0].clone()];
        let mut results =
            cx.op_with_regions("stablehlo.reduce", &operands, &attrs, &[region], &types);
        Ok(results.split_off(1))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(vec![arg_reduce(&operands[0], self.axis, self.dtype, self.max)])
    }

    fn jvp(&self, primals: &[Value], _: &[Tangent]) -> Result<(Values, Tangents)> {
        Ok((smallvec![bind_one(self, primals)?], smallvec![None]))
    }

    fn transpose(&self, _: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Err(not_linear(self))
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        let prim = ArgReduce { axis: self.axis + usize::from(self.axis >= axis), ..*self };
        let place = axis - usize::from(prim.axis < axis);
        Ok((smallvec![bind_one(&prim, std::slice::from_ref(x))?], smallvec![Some(place)]))
    }

    fn params(&self) -> String {
        format!("axis={}, dtype={}", self.axis, self.dtype)
    }
}

/// The index of the largest element of `x` along `axis`, which goes away: the first of equal ones,
/// and the first NaN if there is one. Source: StableHLO `reduce`, of elements and indices together.
///
/// # Errors
/// If the axis is out of range or empty, `x` is complex, or `dtype` is neither i32 nor i64.
pub fn argmax(x: &Value, axis: usize, dtype: DType) -> Result<Value> {
    bind_one(&ArgReduce { axis, dtype, max: true }, std::slice::from_ref(x))
}

/// The index of the smallest element of `x` along `axis`, which goes away: the first of equal ones,
/// and the first NaN if there is one. Source: StableHLO `reduce`, of elements and indices together.
///
/// # Errors
/// If the axis is out of range or empty, `x` is complex, or `dtype` is neither i32 nor i64.
pub fn argmin(x: &Value, axis: usize, dtype: DType) -> Result<Value> {
    bind_one(&ArgReduce { axis, dtype, max: false }, std::slice::from_ref(x))
}
