//! Collectives: what speaks of the examples of a named `vmap`: `psum`, `all_gather`, `axis_index`.
//!
//! A collective names an axis that a `vmap` around it binds. Its batch rule under that very `vmap`
//! makes it an operation over the mapped axis; any other `vmap` passes it on. So it never comes to
//! a device by itself: what does, was run where its name is not bound, and fails with that.
//!
//! The derivatives are those of the function of all examples at once, as in JAX: `psum` sums the
//! cotangents of all examples, and `all_gather` and `reduce_scatter` are each other's transpose.

use super::shape::linear_jvp;
use super::{
    bad_dtype, concatenate, convert, div, eq, full_like, iota, move_axis, move_batch_axis, mul,
    reduce_max, reduce_min, reduce_sum, reshape, reverse, slice_axis, zeros,
};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::shape::Shape;
use crate::trace::batch::{BatchAxis, NamedAxes, NamedAxis, unbound};
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents, fields};
use crate::trace::{Value, Values, bind, bind_one};
use smallvec::{SmallVec, smallvec};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

/// The names of axes, as [`Primitive::axis_names`] gives them.
fn names(axes: &[NamedAxis]) -> SmallVec<[Arc<str>; 1]> {
    axes.iter().map(|axis| Arc::clone(&axis.name)).collect()
}

/// One mapped result.
fn one(out: Value, axis: Option<usize>) -> (Values, BatchAxes) {
    (smallvec![out], smallvec![axis])
}

/// The primitive applied to an operand that it takes: under `vmap` its batch rule comes first, and
/// what the rule makes of it would no longer say what is wrong.
fn checked(prim: &dyn Primitive, x: &Value) -> Result<Value> {
    prim.infer(std::slice::from_ref(x.aval()))?;
    bind_one(prim, std::slice::from_ref(x))
}

/// The cotangent through the linear primitive that is the transpose.
fn back(prim: &dyn Primitive, cts: &[Tangent]) -> Result<Tangents> {
    let back = |ct: &Value| bind_one(prim, std::slice::from_ref(ct));
    Ok(smallvec![cts[0].as_ref().map(back).transpose()?])
}

/// How [`AxisReduce`] folds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// By addition.
    Sum,
    /// By the larger of two.
    Max,
    /// By the smaller of two.
    Min,
}

/// The primitives `psum`, `pmax`, `pmin`: the operand folded over all examples of named axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AxisReduce {
    /// How it folds.
    pub by: Fold,
    /// The axes.
    pub axes: NamedAxes,
}

impl AxisReduce {
    fn with(&self, by: Fold) -> AxisReduce {
        AxisReduce { by, axes: self.axes.clone() }
    }

    /// The fold over the examples of `batch`, of which each has its own `x` or all the same.
    fn over(&self, batch: &BatchAxis, x: &Value, axis: Option<usize>) -> Result<Value> {
        match (self.by, axis) {
            (Fold::Sum, Some(axis)) => reduce_sum(x, &[axis]),
            (Fold::Max, Some(axis)) => reduce_max(x, &[axis]),
            (Fold::Min, Some(axis)) => reduce_min(x, &[axis]),
            (Fold::Sum, None) => mul(x, &full_like(x, batch.size as f64)?),
            (_, None) => Ok(x.clone()),
        }
    }
}

impl Primitive for AxisReduce {
    fn name(&self) -> &'static str {
        match self.by {
            Fold::Sum => "psum",
            Fold::Max => "pmax",
            Fold::Min => "pmin",
        }
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let dtype = operands[0].dtype();
        if self.by == Fold::Sum && dtype == DType::Bool {
            return Err(bad_dtype(self.name(), &operands[0], "numbers"));
        }
        if self.by != Fold::Sum && dtype.is_complex() {
            return Err(bad_dtype(self.name(), &operands[0], "what has an order"));
        }
        Ok(smallvec![operands[0].unsharded()])
    }

    fn lower(&self, _: &mut Lowering, _: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        Err(unbound(self.name(), &self.axes[0].name))
    }

    fn host(&self, _: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Err(unbound(self.name(), &self.axes[0].name))
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        if self.by == Fold::Sum {
            return linear_jvp(self, primals, tangents);
        }
        let (x, y) = (&primals[0], bind_one(self, primals)?);
        let Some(t) = &tangents[0] else { return Ok((smallvec![y], smallvec![None])) };
        // As for a reduction, examples with equal extremes share the derivative.
        let here = convert(&eq(x, &y)?, x.dtype())?;
        let sum = self.with(Fold::Sum);
        let count = bind_one(&sum, std::slice::from_ref(&here))?;
        let t = bind_one(&sum, &[mul(t, &div(&here, &count)?)?])?;
        Ok((smallvec![y], smallvec![Some(t)]))
    }

    fn transpose(&self, cts: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        if self.by == Fold::Sum { back(self, cts) } else { Err(not_linear(self)) }
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let rest: NamedAxes = self.axes.iter().filter(|a| !batch.is(&a.name)).cloned().collect();
        if rest.len() == self.axes.len() {
            return Ok((bind(self, operands)?, axes.iter().copied().collect()));
        }
        let mut out = self.over(batch, &operands[0], axes[0])?;
        if !rest.is_empty() {
            out = bind_one(&AxisReduce { by: self.by, axes: rest }, &[out])?;
        }
        Ok(one(out, None))
    }

    fn params(&self) -> String {
        format!("axes={:?}", self.axes)
    }

    fn axis_names(&self) -> SmallVec<[Arc<str>; 1]> {
        names(&self.axes)
    }
}

fn reduce(by: Fold, x: &Value, axes: &[NamedAxis]) -> Result<Value> {
    checked(&AxisReduce { by, axes: axes.into() }, x)
}

/// The sum of `x` over all examples of the axes; `size` times `x` if it is the same for all.
/// Source: `psum` of JAX's `lax/parallel.py`.
///
/// # Errors
/// If `x` is bool or an axis is not bound.
pub fn psum(x: &Value, axes: &[NamedAxis]) -> Result<Value> {
    reduce(Fold::Sum, x, axes)
}

/// The largest of `x` over all examples of the axes. Equal extremes share the derivative.
///
/// # Errors
/// If `x` is complex or an axis is not bound.
pub fn pmax(x: &Value, axes: &[NamedAxis]) -> Result<Value> {
    reduce(Fold::Max, x, axes)
}

/// The smallest of `x` over all examples of the axes. Equal extremes share the derivative.
///
/// # Errors
/// If `x` is complex or an axis is not bound.
pub fn pmin(x: &Value, axes: &[NamedAxis]) -> Result<Value> {
    reduce(Fold::Min, x, axes)
}

/// A linear collective over one axis: what tells it from the others.
pub trait OverAxis: Clone + Debug + Eq + Hash + Send + Sync + 'static {
    /// The name of the primitive.
    const NAME: &'static str;

    /// The collective that takes cotangents of the result to those of the operand.
    type Transposed: OverAxis;

    /// The axis whose examples take part.
    fn axis(&self) -> &NamedAxis;

    /// The type of the result for the operand's.
    ///
    /// # Errors
    /// If the operand does not fit.
    fn infer(&self, x: &Aval) -> Result<Aval>;

    /// The collective that takes cotangents of the result to those of the operand.
    fn transposed(&self) -> Self::Transposed;

    /// The operation over the examples of `batch`, which is the axis.
    ///
    /// # Errors
    /// What the operations say that it becomes.
    fn over(&self, batch: &BatchAxis, x: &Value, axis: Option<usize>) -> Result<Mapped>;

    /// The operation under a `vmap` of another name, over whose examples `x` has `axis`.
    ///
    /// # Errors
    /// What the operations say that it becomes.
    fn pass(&self, x: &Value, axis: Option<usize>) -> Result<Mapped>;
}

/// A result and its mapped axis.
type Mapped = (Value, Option<usize>);

/// A linear collective over one axis as a primitive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collective<C>(pub C);

impl<C: OverAxis> Primitive for Collective<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        Ok(smallvec![self.0.infer(&operands[0])?.unsharded()])
    }

    fn lower(&self, _: &mut Lowering, _: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        Err(unbound(C::NAME, &self.0.axis().name))
    }

    fn host(&self, _: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Err(unbound(C::NAME, &self.0.axis().name))
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        linear_jvp(self, primals, tangents)
    }

    fn transpose(&self, cts: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        back(&Collective(self.0.transposed()), cts)
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let (out, axis) = match batch.is(&self.0.axis().name) {
            true => self.0.over(batch, &operands[0], axes[0])?,
            false => self.0.pass(&operands[0], axes[0])?,
        };
        Ok(one(out, axis))
    }

    fn params(&self) -> String {
        fields(&self.0)
    }

    fn axis_names(&self) -> SmallVec<[Arc<str>; 1]> {
        names(std::slice::from_ref(self.0.axis()))
    }
}

/// A collective for operands with one more axis in front, applied to `x` with its mapped axis there:
/// how a collective that counts axes is passed on.
fn in_front<C: OverAxis>(behind: C, x: &Value, axis: Option<usize>) -> Result<Mapped> {
    let x = move_axis(x, axis.unwrap_or(0), 0)?;
    Ok((bind_one(&Collective(behind), &[x])?, Some(0)))
}

/// The shape with axes `at` and `at + 1` as one.
fn merged(shape: &Shape, at: usize) -> Shape {
    let size = shape[at] * shape[at + 1];
    shape.remove(at).with(at, size)
}

#[cold]
fn no_axis(op: &'static str, x: &Aval, at: usize) -> Error {
    Error::new(ErrorKind::Axis, op, format!("{x} has no axis {at}"))
}

#[cold]
fn bad_split(op: &'static str, x: &Aval, at: usize, why: &str, axis: &NamedAxis) -> Error {
    let (name, size) = (&axis.name, axis.size);
    let text = format!("axis {at} of {x} {why} {size}, the size of the axis `{name}`");
    Error::new(ErrorKind::Shape, op, text)
}

/// The primitive `all_gather`: the operands of all examples, one beside the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllGather {
    /// The axis that is gathered.
    pub axis: NamedAxis,
    /// Where the examples are put.
    pub at: usize,
    /// Whether they are joined along an axis that is there, in place of a new one.
    pub tiled: bool,
}

impl OverAxis for AllGather {
    const NAME: &'static str = "all_gather";

    type Transposed = ReduceScatter;

    fn axis(&self) -> &NamedAxis {
        &self.axis
    }

    fn infer(&self, x: &Aval) -> Result<Aval> {
        let (at, size) = (self.at, self.axis.size);
        if at >= x.rank() + usize::from(!self.tiled) {
            return Err(no_axis(Self::NAME, x, at));
        }
        let shape = x.shape();
        let shape =
            if self.tiled { shape.with(at, shape[at] * size) } else { shape.insert(at, size) };
        Ok(x.with_shape(shape))
    }

    fn transposed(&self) -> ReduceScatter {
        ReduceScatter { axis: self.axis.clone(), at: self.at, tiled: self.tiled }
    }

    fn over(&self, batch: &BatchAxis, x: &Value, axis: Option<usize>) -> Result<Mapped> {
        let x = move_batch_axis(batch.size, x, axis, self.at)?;
        Ok((if self.tiled { reshape(&x, &merged(x.shape(), self.at))? } else { x }, None))
    }

    fn pass(&self, x: &Value, axis: Option<usize>) -> Result<Mapped> {
        in_front(AllGather { at: self.at + 1, ..self.clone() }, x, axis)
    }
}

/// The values of `x` of all examples of an axis, on a new axis at `at`, or joined along axis `at` if
/// `tiled`. Source: `all_gather` of JAX's `lax/parallel.py`.
///
/// # Errors
/// If there is no such place or the axis is not bound.
pub fn all_gather(x: &Value, axis: &NamedAxis, at: usize, tiled: bool) -> Result<Value> {
    checked(&Collective(AllGather { axis: axis.clone(), at, tiled }), x)
}

/// The primitive `reduce_scatter`: the sum over all examples, of which each keeps its own part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceScatter {
    /// The axis that is summed over.
    pub axis: NamedAxis,
    /// The axis of the operand whose parts the examples keep.
    pub at: usize,
    /// Whether a part is a slice, in place of an index.
    pub tiled: bool,
}

impl OverAxis for ReduceScatter {
    const NAME: &'static str = "reduce_scatter";

    type Transposed = AllGather;

    fn axis(&self) -> &NamedAxis {
        &self.axis
    }

    fn infer(&self, x: &Aval) -> Result<Aval> {
        let (at, size) = (self.at, self.axis.size);
        if at >= x.rank() {
            return Err(no_axis(Self::NAME, x, at));
        }
        if x.dtype() == DType::Bool {
            return Err(bad_dtype(Self::NAME, x, "numbers"));
        }
        let shape = x.shape();
        let shape = match self.tiled {
            true if size == 0 || !shape[at].is_multiple_of(size) => {
                return Err(bad_split(Self::NAME, x, at, "is no multiple of", &self.axis));
            }
            true => shape.with(at, shape[at] / size),
            false if shape[at] != size => {
                return Err(bad_split(Self::NAME, x, at, "does not have size", &self.axis));
            }
            false => shape.remove(at),
        };
        Ok(x.with_shape(shape))
    }

    fn transposed(&self) -> AllGather {
        AllGather { axis: self.axis.clone(), at: self.at, tiled: self.tiled }
    }

    fn over(&self, batch: &BatchAxis, x: &Value, axis: Option<usize>) -> Result<Mapped> {
        let sum = AxisReduce { by: Fold::Sum, axes: NamedAxes::new() }.over(batch, x, axis)?;
        if !self.tiled {
            return Ok((sum, Some(self.at)));
        }
        let part = sum.shape()[self.at] / batch.size;
        let shape = sum.shape().with(self.at, part).insert(self.at, batch.size);
        Ok((reshape(&sum, &shape)?, Some(self.at)))
    }

    fn pass(&self, x: &Value, axis: Option<usize>) -> Result<Mapped> {
        in_front(ReduceScatter { at: self.at + 1, ..self.clone() }, x, axis)
    }
}

/// The sum of `x` over all examples of an axis, of which example `i` keeps the `i`-th index of axis
/// `at`, or the `i`-th of equal slices of it if `tiled`. Source: `psum_scatter` of JAX's
/// `lax/parallel.py`.
///
/// # Errors
/// If there is no such axis, its size does not fit, `x` is bool, or the axis is not bound.
pub fn reduce_scatter(x: &Value, axis: &NamedAxis, at: usize, tiled: bool) -> Result<Value> {
    checked(&Collective(ReduceScatter { axis: axis.clone(), at, tiled }), x)
}

/// The primitive `ppermute`: each example has the operand of another one, or zeros.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ppermute {
    /// The axis along which values move.
    pub axis: NamedAxis,
    /// From which example to which.
    pub pairs: SmallVec<[(usize, usize); 4]>,
}

impl Ppermute {
    /// For each example the one that it takes from.
    fn sources(&self) -> Vec<Option<usize>> {
        let mut sources = vec![None; self.axis.size];
        for &(from, to) in &self.pairs {
            sources[to] = Some(from);
        }
        sources
    }
}

impl OverAxis for Ppermute {
    const NAME: &'static str = "ppermute";

    type Transposed = Ppermute;

    fn axis(&self) -> &NamedAxis {
        &self.axis
    }

    fn infer(&self, x: &Aval) -> Result<Aval> {
        let size = self.axis.size;
        let (mut from, mut to) = (vec![false; size], vec![false; size]);
        for &(a, b) in &self.pairs {
            let range = a >= size || b >= size;
            if range || std::mem::replace(&mut from[a], true) || std::mem::replace(&mut to[b], true)
            {
                let why = if range { "names an example that is not there" } else { "repeats one" };
                let text = format!("the pair ({a}, {b}) {why}; `{}` has {size}", self.axis.name);
                return Err(Error::new(ErrorKind::Index, Self::NAME, text));
            }
        }
        Ok(x.clone())
    }

    fn transposed(&self) -> Ppermute {
        let pairs = self.pairs.iter().map(|&(from, to)| (to, from)).collect();
        Ppermute { axis: self.axis.clone(), pairs }
    }

    fn over(&self, batch: &BatchAxis, x: &Value, axis: Option<usize>) -> Result<Mapped> {
        let x = move_batch_axis(batch.size, x, axis, 0)?;
        Ok((rows(&x, &self.sources())?, Some(0)))
    }

    fn pass(&self, x: &Value, axis: Option<usize>) -> Result<Mapped> {
        Ok((bind_one(&Collective(self.clone()), std::slice::from_ref(x))?, axis))
    }
}

/// The rows of `x` that `sources` names, zeros where it names none: one slice for each run of rows
/// that follow each other, up or down.
fn rows(x: &Value, sources: &[Option<usize>]) -> Result<Value> {
    let mut parts = Values::new();
    let mut rest = sources;
    while let Some(&first) = rest.first() {
        let up = |i: usize| first.map(|f| f + i);
        let down = |i: usize| first.and_then(|f| f.checked_sub(i));
        let run = |next: &dyn Fn(usize) -> Option<usize>| {
            let there = |s: &Option<usize>| s.is_some() == first.is_some();
            rest.iter().enumerate().take_while(|(i, s)| there(s) && **s == next(*i)).count()
        };
        let (n, reversed) = match (run(&up), run(&down)) {
            (1, back) if back > 1 && first.is_some() => (back, true),
            (ahead, _) => (ahead, false),
        };
        parts.push(match first {
            None => zeros(&x.aval().unsharded().with_shape(x.shape().with(0, n)))?,
            Some(f) if reversed => reverse(&slice_axis(x, 0, f + 1 - n, f + 1)?, &[0])?,
            Some(f) => slice_axis(x, 0, f, f + n)?,
        });
        rest = &rest[n..];
    }
    if parts.len() == 1 { Ok(parts.swap_remove(0)) } else { concatenate(&parts, 0) }
}

/// For each pair the value of `x` of its first example at its second one; zeros at examples that
/// are no pair's second. Source: `ppermute` of JAX's `lax/parallel.py`.
///
/// # Errors
/// If a pair names an example that is not there, two pairs share a source or a destination, or the
/// axis is not bound.
pub fn ppermute(x: &Value, axis: &NamedAxis, pairs: &[(usize, usize)]) -> Result<Value> {
    checked(&Collective(Ppermute { axis: axis.clone(), pairs: SmallVec::from_slice(pairs) }), x)
}

/// The primitive `all_to_all`: example `i` has the `i`-th parts of all examples.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllToAll {
    /// The axis whose examples exchange parts.
    pub axis: NamedAxis,
    /// The axis of the operand that is split; it goes away.
    pub split: usize,
    /// Where the parts are put.
    pub concat: usize,
}

impl OverAxis for AllToAll {
    const NAME: &'static str = "all_to_all";

    type Transposed = AllToAll;

    fn axis(&self) -> &NamedAxis {
        &self.axis
    }

    fn infer(&self, x: &Aval) -> Result<Aval> {
        let size = self.axis.size;
        for at in [self.split, self.concat] {
            if at >= x.rank() {
                return Err(no_axis(Self::NAME, x, at));
            }
        }
        if x.shape()[self.split] != size {
            return Err(bad_split(Self::NAME, x, self.split, "does not have size", &self.axis));
        }
        Ok(x.with_shape(x.shape().remove(self.split).insert(self.concat, size)))
    }

    fn transposed(&self) -> AllToAll {
        AllToAll { axis: self.axis.clone(), split: self.concat, concat: self.split }
    }

    fn over(&self, batch: &BatchAxis, x: &Value, axis: Option<usize>) -> Result<Mapped> {
        // The split axis becomes the examples, the examples become an axis.
        let x = move_batch_axis(batch.size, x, axis, 0)?;
        let x = move_axis(&x, self.split + 1, 0)?;
        Ok((move_axis(&x, 1, self.concat + 1)?, Some(0)))
    }

    fn pass(&self, x: &Value, axis: Option<usize>) -> Result<Mapped> {
        let (split, concat) = (self.split + 1, self.concat + 1);
        in_front(AllToAll { axis: self.axis.clone(), split, concat }, x, axis)
    }
}

/// Axis `split` of `x`, which has the size of the named axis, dealt out: example `i` has the `i`-th
/// index of it of all examples, on a new axis at `concat`. Source: `all_to_all` of JAX's
/// `lax/parallel.py`.
///
/// # Errors
/// If there are no such axes, the size of `split` does not fit, or the axis is not bound.
pub fn all_to_all(x: &Value, axis: &NamedAxis, split: usize, concat: usize) -> Result<Value> {
    checked(&Collective(AllToAll { axis: axis.clone(), split, concat }), x)
}

/// [`all_to_all`] with slices in place of indices: axis `split`, a multiple of the named axis's
/// size, shrinks by that factor, and axis `concat` grows by it.
///
/// # Errors
/// As [`all_to_all`].
pub fn all_to_all_tiled(x: &Value, axis: &NamedAxis, split: usize, concat: usize) -> Result<Value> {
    let size = axis.size;
    for at in [split, concat] {
        if at >= x.rank() {
            return Err(no_axis("all_to_all", x.aval(), at));
        }
    }
    if size == 0 || !x.shape()[split].is_multiple_of(size) {
        return Err(bad_split("all_to_all", x.aval(), split, "is no multiple of", axis));
    }
    let part = x.shape()[split] / size;
    let x = reshape(x, &x.shape().with(split, part).insert(split, size))?;
    let x = all_to_all(&x, axis, split, concat)?;
    reshape(&x, &merged(x.shape(), concat))
}

/// The primitive `axis_index`: the number of the example along a named axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AxisIndex {
    /// The axis.
    pub axis: NamedAxis,
}

impl Primitive for AxisIndex {
    fn name(&self) -> &'static str {
        "axis_index"
    }

    fn infer(&self, _: &[Aval]) -> Result<Avals> {
        Ok(smallvec![Aval::scalar(DType::I32)])
    }

    fn lower(&self, _: &mut Lowering, _: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        Err(unbound(self.name(), &self.axis.name))
    }

    fn host(&self, _: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Err(unbound(self.name(), &self.axis.name))
    }

    fn jvp(&self, _: &[Value], _: &[Tangent]) -> Result<(Values, Tangents)> {
        Ok((smallvec![bind_one(self, &[])?], smallvec![None]))
    }

    fn transpose(&self, _: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Ok(smallvec![])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        _: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        if !batch.is(&self.axis.name) {
            return Ok((bind(self, operands)?, smallvec![None]));
        }
        Ok(one(iota(DType::I32, &Shape::new(&[batch.size]), 0)?, Some(0)))
    }

    fn axis_names(&self) -> SmallVec<[Arc<str>; 1]> {
        names(std::slice::from_ref(&self.axis))
    }
}

/// The number of the example along an axis, `i32[]`. Source: `axis_index` of JAX's
/// `lax/parallel.py`.
///
/// # Errors
/// If the axis is not bound.
pub fn axis_index(axis: &NamedAxis) -> Result<Value> {
    bind_one(&AxisIndex { axis: axis.clone() }, &[])
}

/// The mean of `x` over all examples of the axes, which must be a float or complex.
///
/// # Errors
/// As [`psum`].
pub fn pmean(x: &Value, axes: &[NamedAxis]) -> Result<Value> {
    let size: usize = axes.iter().map(|axis| axis.size).product();
    let sum = psum(x, axes)?;
    div(&sum, &full_like(&sum, size as f64)?)
}
