//! Sorting along an axis, and the largest elements.
//!
//! The order is total: NaN is above all numbers, -0 equals 0, complex numbers go by real part, then
//! by imaginary part; equal elements keep their order. Derivatives follow the elements: tangents
//! are moved as their primals were.

use super::compare::compare_in;
use super::elementwise::Domain;
use super::index::{IndexMode, along_axis, gather};
use super::shape::{align_batch, move_batch_axis};
use super::slice::check_axis;
use super::{bad_dtype, mapped};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host::sort as kernel;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Val};
use crate::ops::create::iota;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind};
use smallvec::smallvec;

/// The primitive `sort`: the operands, all of one shape, sorted along an axis by the first few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sort {
    /// The axis.
    pub axis: usize,
    /// How many of the operands are keys, the first foremost.
    pub num_keys: usize,
    /// Whether the largest comes first.
    pub descending: bool,
}

impl Sort {
    /// For each place the index of the element that comes there.
    fn order(&self, keys: &[Value]) -> Result<Value> {
        let iota = iota(DType::I32, keys[0].shape(), self.axis)?;
        let operands: Values = keys.iter().cloned().chain([iota]).collect();
        let sorted = bind(self, &operands)?.pop();
        sorted.ok_or_else(|| Error::new(ErrorKind::NoRule, "sort", "gave no result"))
    }
}

impl Primitive for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let fail = |kind, why: String| Err(Error::new(kind, "sort", why));
        if self.num_keys == 0 || self.num_keys > operands.len() {
            let (keys, n) = (self.num_keys, operands.len());
            return fail(ErrorKind::Value, format!("{keys} keys are asked for among {n} operands"));
        }
        check_axis("sort", &operands[0], self.axis)?;
        for (i, x) in operands.iter().enumerate() {
            if x.shape() != operands[0].shape() {
                let why = format!("operand {i}, {x}, has not the shape of {}", operands[0]);
                return fail(ErrorKind::Shape, why);
            }
        }
        Ok(operands.iter().cloned().collect())
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        self.write(cx, operands, outs)
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(kernel::sort(operands, self.axis, self.num_keys, self.descending))
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let iota = iota(DType::I32, primals[0].shape(), self.axis)?;
        let operands: Values = primals.iter().cloned().chain([iota]).collect();
        let mut outs = bind(self, &operands)?;
        let order = outs.remove(primals.len());
        let along = |t: &Tangent| t.as_ref().map(|t| moved(t, &order, self.axis)).transpose();
        Ok((outs, tangents.iter().map(along).collect::<Result<_>>()?))
    }

    /// Sorting is linear in what is not a key: the cotangents go back to where the elements were.
    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let (keys, rest) = operands.split_at(self.num_keys);
        let keys: Option<Values> = keys.iter().map(|k| k.known().cloned()).collect();
        let Some(keys) = keys else { return Err(not_linear(self)) };
        let order = self.order(&keys)?;
        let back = |(ct, operand): (&Tangent, &Operand)| match ct {
            Some(ct) if operand.is_linear() => unmoved(ct, &order, self.axis).map(Some),
            _ => Ok(None),
        };
        let known = keys.iter().map(|_| Ok(None));
        known.chain(cts[self.num_keys..].iter().zip(rest).map(back)).collect()
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (operands, to) = align_batch(batch.size, operands, axes)?;
        let prim = Sort { axis: self.axis + usize::from(self.axis >= to), ..*self };
        let outs = bind(&prim, &operands)?;
        let axes = outs.iter().map(|_| Some(to)).collect();
        Ok((outs, axes))
    }

    fn params(&self) -> String {
        let (axis, keys, descending) = (self.axis, self.num_keys, self.descending);
        format!("axis={axis}, num_keys={keys}, descending={descending}")
    }
}

impl Sort {
    fn write(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let scalars = operands.iter().map(|x| Aval::scalar(x.aval().dtype()));
        let params: Vec<Aval> = scalars.flat_map(|a| [a.clone(), a]).collect();
        let region = cx.region(&params, |cx, args| {
            let mut pairs = Vec::new();
            for pair in args.chunks(2).take(self.num_keys) {
                let (x, y) =
                    if self.descending { (&pair[1], &pair[0]) } else { (&pair[0], &pair[1]) };
                pairs.extend(real_pairs(cx, x, y));
            }
            Ok(vec![before(cx, &pairs)])
        })?;
        let attrs = format!("dimension = {} : i64, is_stable = true", self.axis);
        Ok(cx.op_with_regions("stablehlo.sort", operands, &attrs, &[region], outs))
    }
}

/// Two scalars as pairs of real scalars that are compared one after the other.
fn real_pairs(cx: &mut Lowering, x: &Val, y: &Val) -> Vec<(Val, Val)> {
    if !x.aval().dtype().is_complex() {
        return vec![(x.clone(), y.clone())];
    }
    let real = x.aval().with_dtype(x.aval().dtype().real());
    let mut part = |op: &str| (cx.op1(op, &[x], "", &real), cx.op1(op, &[y], "", &real));
    vec![part("stablehlo.real"), part("stablehlo.imag")]
}

/// Whether the first of each pair comes before the second, the first pair being foremost.
fn before(cx: &mut Lowering, pairs: &[(Val, Val)]) -> Val {
    let bool = Aval::scalar(DType::Bool);
    let mut result: Option<Val> = None;
    for (x, y) in pairs.iter().rev() {
        let mut less = compare_in(cx, "LT", x, y);
        let mut same = result.as_ref().map(|_| compare_in(cx, "EQ", x, y));
        if x.aval().dtype().is_float() {
            let number_x = compare_in(cx, "EQ", x, x);
            let nan_y = compare_in(cx, "NE", y, y);
            let only_y = cx.op1("stablehlo.and", &[&number_x, &nan_y], "", &bool);
            less = cx.op1("stablehlo.or", &[&less, &only_y], "", &bool);
            if let Some(equal) = same {
                let nan_x = cx.op1("stablehlo.not", &[&number_x], "", &bool);
                let both = cx.op1("stablehlo.and", &[&nan_x, &nan_y], "", &bool);
                same = Some(cx.op1("stablehlo.or", &[&equal, &both], "", &bool));
            }
        }
        if let (Some(same), Some(rest)) = (same, result) {
            let rest = cx.op1("stablehlo.and", &[&same, &rest], "", &bool);
            less = cx.op1("stablehlo.or", &[&less, &rest], "", &bool);
        }
        result = Some(less);
    }
    result.unwrap_or_else(|| cx.constant(crate::Scalar::new(false), &bool))
}

/// The elements of `x` in the order given along an axis: place `i` gets element `order[i]`.
fn moved(x: &Value, order: &Value, axis: usize) -> Result<Value> {
    let dims = along_axis(x.rank(), axis);
    gather(x, order, &dims, &vec![1; x.rank()], IndexMode::PromiseInBounds)
}

/// What [`moved`] undoes: element `i` of `x` goes to place `order[i]`. Sorting by the places does
/// that, since each occurs once.
fn unmoved(x: &Value, order: &Value, axis: usize) -> Result<Value> {
    let prim = Sort { axis, num_keys: 1, descending: false };
    let sorted = bind(&prim, &[order.clone(), x.clone()])?.pop();
    sorted.ok_or_else(|| Error::new(ErrorKind::NoRule, "sort", "gave no result"))
}

/// The operands, all of one shape, sorted along `axis` by the first `num_keys` of them, the first
/// foremost; the others are carried along. NaN comes last, or first if `descending`; -0 equals 0;
/// equal elements keep their order. Source: StableHLO `sort`.
///
/// # Errors
/// If shapes differ, the axis is out of range, or there are fewer operands than keys, or no key.
pub fn sort(operands: &[Value], axis: usize, num_keys: usize, descending: bool) -> Result<Values> {
    bind(&Sort { axis, num_keys, descending }, operands)
}

/// For each place along `axis` the index, as i32, of the element of `x` that a [`sort`] puts there.
///
/// # Errors
/// If the axis is out of range.
pub fn argsort(x: &Value, axis: usize, descending: bool) -> Result<Value> {
    check_axis("sort", x.aval(), axis)?;
    Sort { axis, num_keys: 1, descending }.order(std::slice::from_ref(x))
}

/// The primitive `top_k`: the largest elements along the last axis, and their indices as i32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopK {
    /// How many.
    pub k: usize,
}

impl TopK {
    /// The sort whose first elements these are.
    fn sort(rank: usize) -> Sort {
        Sort { axis: rank - 1, num_keys: 1, descending: true }
    }
}

impl Primitive for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let x = &operands[0];
        if !Domain::Ordered.contains(x.dtype()) {
            return Err(bad_dtype("top_k", x, Domain::Ordered.words()));
        }
        let Some((&size, _)) = x.shape().split_last() else {
            return Err(Error::new(ErrorKind::Axis, "top_k", format!("{x} has no last axis")));
        };
        if self.k > size {
            let text = format!("{} elements are asked for on the last axis of {x}", self.k);
            return Err(Error::new(ErrorKind::Shape, "top_k", text));
        }
        let values = x.with_shape(x.shape().with(x.rank() - 1, self.k));
        let indices = values.with_dtype(DType::I32);
        Ok(smallvec![values, indices])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let x = &operands[0];
        let sort = TopK::sort(x.aval().rank());
        let types = [x.aval().clone(), x.aval().with_dtype(DType::I32)];
        let attrs = format!("iota_dimension = {} : i64", sort.axis);
        let iota = cx.op("stablehlo.iota", &[], &attrs, &types[1..]).remove(0);
        let sorted = sort.write(cx, &[x.clone(), iota], &types)?;
        let attrs = format!(
            "start_indices = {}, limit_indices = {}, strides = {}",
            hlo::i64_array(vec![0; x.aval().rank()]),
            hlo::i64_array(outs[0].shape().iter()),
            hlo::i64_array(vec![1; x.aval().rank()])
        );
        let first = sorted.iter().zip(outs);
        Ok(first.map(|(all, out)| cx.op1("stablehlo.slice", &[all], &attrs, out)).collect())
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        let (values, indices) = kernel::top_k(&operands[0], self.k);
        Ok(vec![values, indices])
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let outs = bind(self, primals)?;
        let Some(t) = &tangents[0] else { return Ok((outs, smallvec![None, None])) };
        let t = moved(t, &outs[1], t.rank() - 1)?;
        Ok((outs, smallvec![Some(t), None]))
    }

    fn transpose(&self, _: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Err(not_linear(self))
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (x, axis) = mapped(operands, axes);
        let x = move_batch_axis(batch.size, x, Some(axis), 0)?;
        Ok((bind(self, &[x])?, smallvec![Some(0), Some(0)]))
    }

    fn params(&self) -> String {
        format!("k={}", self.k)
    }
}

/// The `k` largest elements of `x` along the last axis, largest first, and their indices as i32; of
/// equal ones the first comes first, and NaN counts as largest. Source: CHLO `top_k`, written as a
/// sort.
///
/// # Errors
/// If `x` is complex or has no axis, or the last axis has fewer than `k` elements.
pub fn top_k(x: &Value, k: usize) -> Result<(Value, Value)> {
    let mut outs = bind(&TopK { k }, std::slice::from_ref(x))?.into_iter();
    match (outs.next(), outs.next()) {
        (Some(values), Some(indices)) => Ok((values, indices)),
        _ => Err(Error::new(ErrorKind::NoRule, "top_k", "gave no result")),
    }
}
