//! Bucketing: arguments of many sizes, padded up to few, so that a ragged batch compiles nothing.

use super::signature::Signature;
use super::{Function, IntoTree, Jit};
use crate::array::Array;
use crate::backend::Device;
use crate::backend::host::{HostArray, layout};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::NamedSharding;
use crate::ops;
use crate::shape::{Shape, axis};
use crate::trace::Value;
use crate::trace::cell::Tensor;
use crate::transforms::tree::{Key, Leaves, Tree, Visitor, leaf_name, paths, rebuild};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sizes that a dimension may have inside of the compiled function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Buckets {
    /// 1, 2, 4, 8, …
    PowersOfTwo,
    /// The multiples of a number.
    Multiples(usize),
    /// These; a larger size is an error.
    List(Vec<usize>),
}

impl Buckets {
    /// The smallest bucket that holds `size`; none if all are smaller.
    pub fn bucket(&self, size: usize) -> Option<usize> {
        match self {
            Buckets::PowersOfTwo => size.checked_next_power_of_two(),
            Buckets::Multiples(step) => size.max(1).checked_next_multiple_of((*step).max(1)),
            Buckets::List(sizes) => sizes.iter().copied().filter(|&b| b >= size).min(),
        }
    }
}

/// A named dimension of a function's arguments that is padded: which tensors have it, and up to
/// which sizes.
#[derive(Clone, Debug)]
pub struct Bucketing {
    name: Arc<str>,
    buckets: Buckets,
    arguments: Vec<(Of, i64)>,
    results: Vec<(usize, i64)>,
    fill: f64,
}

/// Which tensors of an argument.
#[derive(Clone, Debug)]
enum Of {
    Element(usize),
    Leaf(String),
}

impl Bucketing {
    /// A dimension of the given name, which no tensor has yet.
    pub fn new(name: &str, buckets: Buckets) -> Bucketing {
        let (arguments, results) = (Vec::new(), Vec::new());
        Bucketing { name: name.into(), buckets, arguments, results, fill: 0.0 }
    }

    /// The same, being dimension `dim` of every tensor of an element of the argument's tuple (0 for
    /// an argument that is no tuple). A negative one counts from the end.
    #[must_use]
    pub fn of(mut self, element: usize, dim: i64) -> Bucketing {
        self.arguments.push((Of::Element(element), dim));
        self
    }

    /// The same, being dimension `dim` of the tensor at a path of the argument, `[1].tokens`.
    #[must_use]
    pub fn of_leaf(mut self, path: &str, dim: i64) -> Bucketing {
        self.arguments.push((Of::Leaf(path.to_owned()), dim));
        self
    }

    /// The same, being also dimension `dim` of every tensor of an element of the result's tuple (0
    /// for a result that is no tuple), which is cut back to the true size.
    #[must_use]
    pub fn result(mut self, element: usize, dim: i64) -> Bucketing {
        self.results.push((element, dim));
        self
    }

    /// The same, padding with `value` instead of 0.
    #[must_use]
    pub fn fill(mut self, value: f64) -> Bucketing {
        self.fill = value;
        self
    }
}

/// What a bucketed function is given: the arguments, padded, and what of them is true.
#[derive(Clone, Debug)]
pub struct Padded<A> {
    /// The arguments.
    pub args: A,
    /// Which part of each named dimension is not padding.
    pub mask: Mask,
}

/// The true sizes of padded dimensions, by name. Inside of the function they are tensors: another
/// size needs no other program.
#[derive(Clone, Debug)]
pub struct Mask(Vec<Masked>);

#[derive(Clone, Debug)]
struct Masked {
    name: Arc<str>,
    bucket: usize,
    length: Tensor,
}

impl Mask {
    fn find(&self, name: &str) -> Result<&Masked> {
        self.0.iter().find(|m| &*m.name == name).ok_or_else(|| {
            let known: Vec<String> = self.0.iter().map(|m| format!("`{}`", m.name)).collect();
            let text = format!("no dimension is named `{name}`, only {}", known.join(", "));
            Error::new(ErrorKind::Axis, "mask", text)
        })
    }

    /// The true size of a dimension, i64 without dimensions.
    ///
    /// # Errors
    /// [`ErrorKind::Axis`] if no dimension has the name.
    pub fn length(&self, name: &str) -> Result<Tensor> {
        Ok(self.find(name)?.length.clone())
    }

    /// Where a dimension is not padding: a bool tensor of the bucket's size.
    ///
    /// # Errors
    /// [`ErrorKind::Axis`] if no dimension has the name.
    pub fn of(&self, name: &str) -> Result<Tensor> {
        let masked = self.find(name)?;
        let shape = Shape::from([masked.bucket]);
        let length = ops::broadcast_in_dim(&masked.length.value()?, &shape, &[])?;
        let places = ops::iota(DType::I64, &shape, 0)?;
        Ok(Tensor::from_value(ops::lt(&places, &length)?))
    }

    /// `x` with `value` wherever dimension `dim`, which is the named one, is padding.
    ///
    /// # Errors
    /// [`ErrorKind::Axis`] if no dimension has the name, or `x` has no dimension `dim`;
    /// [`ErrorKind::Shape`] if that has not the bucket's size.
    pub fn keep(&self, x: &Tensor, name: &str, dim: i64, value: f64) -> Result<Tensor> {
        let (mask, x) = (self.of(name)?.value()?, x.value()?);
        let axis = axis("mask", dim, x.rank())?;
        let bucket = mask.shape()[0];
        if x.shape()[axis] != bucket {
            let text = format!("axis {axis} of {} is not `{name}`, of size {bucket}", x.aval());
            return Err(Error::new(ErrorKind::Shape, "mask", text));
        }
        let mask = ops::broadcast_in_dim(&mask, x.shape(), &[axis])?;
        let value = ops::full(Scalar::from_f64(x.dtype(), value), x.shape())?;
        Ok(Tensor::from_value(ops::select(&mask, &x, &value)?))
    }
}

impl Leaves for Mask {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        for masked in &self.0 {
            visitor.enter(Key::Entry(&masked.name));
            masked.length.visit(visitor);
            visitor.exit();
        }
    }
}

impl Tree for Mask {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Mask> {
        let one = |m: &Masked| Ok(Masked { length: f(&m.length)?, ..m.clone() });
        Ok(Mask(self.0.iter().map(one).collect::<Result<_>>()?))
    }
}

impl<A: Leaves> Leaves for Padded<A> {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        // Paths and elements are those of the arguments.
        self.args.visit(visitor);
        visitor.beside();
        visitor.enter(Key::Name("mask"));
        self.mask.visit(visitor);
        visitor.exit();
    }
}

impl<A: Tree> Tree for Padded<A> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Padded<A>> {
        Ok(Padded { args: self.args.map(f)?, mask: self.mask.map(f)? })
    }
}

/// How often a bucket was used, and how well filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketUse {
    /// The dimension.
    pub name: Arc<str>,
    /// The bucket.
    pub bucket: usize,
    /// The calls that used it.
    pub calls: u64,
    /// The sum of the true sizes.
    pub filled: u64,
}

impl BucketUse {
    /// The padded size over the true one; 1 if nothing was padded.
    pub fn waste(&self) -> f64 {
        (self.bucket as u64 * self.calls) as f64 / self.filled.max(1) as f64
    }
}

impl fmt::Display for BucketUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BucketUse { name, bucket, calls, .. } = self;
        write!(f, "`{name}` padded to {bucket}: {calls} calls, {:.2} times the size", self.waste())
    }
}

/// A compiled function whose arguments are padded up to buckets. Made by [`Jit::bucket`].
pub struct Bucketed<A, B, M, F> {
    jit: Jit<Padded<A>, B, M, F>,
    dims: Vec<Bucketing>,
    uses: Mutex<BTreeMap<(usize, usize), (u64, u64)>>,
}

impl<A, B, M, F> fmt::Debug for Bucketed<A, B, M, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucketed({:?}, {:?})", self.jit, self.dims)
    }
}

impl<A: Tree, B: Tree, M, F: Function<Padded<A>, B, M>> Jit<Padded<A>, B, M, F> {
    /// The same function with named dimensions of its arguments padded up to buckets: a call with
    /// sizes of one bucket compiles nothing new. The function takes [`Padded`]: the padded arguments
    /// and the [`Mask`], by which it leaves the padding out of sums and means. Padding and cutting
    /// back happen in host memory, and only where a size is not a bucket's already.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// use oxbridge::transforms::jit::{Bucketing, Buckets, Padded};
    /// let mean = jit(|Padded { args: x, mask }: &Padded<Tensor>| {
    ///     mask.keep(x, "rows", 0, 0.0)?.sum()?.div(&mask.length("rows")?)
    /// })
    /// .bucket([Bucketing::new("rows", Buckets::Multiples(4)).of(0, 0)]);
    /// let two = Tensor::from_slice(&[1f32, 4.], [2])?;
    /// let three = Tensor::from_slice(&[1f32, 4., 7.], [3])?;
    /// assert_eq!(mean.call(&two)?.item::<f32>()?, 2.5);
    /// assert_eq!(mean.call(&three)?.item::<f32>()?, 4.0);
    /// assert_eq!(mean.jit().compiled(), 1);
    /// assert_eq!(mean.uses()[0].waste(), 8.0 / 5.0);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn bucket(self, dims: impl IntoIterator<Item = Bucketing>) -> Bucketed<A, B, M, F> {
        Bucketed { jit: self, dims: dims.into_iter().collect(), uses: Mutex::default() }
    }
}

/// One dimension of one call.
struct Dim<'d> {
    of: &'d Bucketing,
    size: usize,
    bucket: usize,
    /// The tensors that have it, each with the axis.
    leaves: Vec<(usize, usize)>,
}

impl<A: Tree, B: Tree, M, F: Function<Padded<A>, B, M>> Bucketed<A, B, M, F> {
    /// The compiled function, for its counters and options.
    pub fn jit(&self) -> &Jit<Padded<A>, B, M, F> {
        &self.jit
    }

    /// Which buckets were used, in order of dimension and size.
    pub fn uses(&self) -> Vec<BucketUse> {
        let row = |(&(dim, bucket), &(calls, filled)): (&(usize, usize), &(u64, u64))| {
            let name = Arc::clone(&self.dims[dim].name);
            BucketUse { name, bucket, calls, filled }
        };
        self.counts().iter().map(row).collect()
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<(usize, usize), (u64, u64)>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pads, runs the function, and cuts its results back.
    ///
    /// # Errors
    /// [`ErrorKind::Shape`] if a size is beyond the last bucket, tensors that share a dimension
    /// differ in it, or a result has not the bucket's size; [`ErrorKind::Axis`] and
    /// [`ErrorKind::Tree`] for a dimension or a tensor that is not there; what the function says.
    #[track_caller]
    pub fn call(&self, args: impl IntoTree<A>) -> Result<B> {
        let location = Location::caller();
        args.with_tree(|args| self.run(args, location))
    }

    fn run(&self, args: &A, location: &'static Location<'static>) -> Result<B> {
        let (dims, padded) = self.padded(args)?;
        let before = values(&padded.args)?;
        let out = self.jit.run(&padded, location)?;
        self.count(&dims);
        let signature = Signature::of(args);
        let written = Signature::of(&padded.args).leaves;
        for (i, (tensor, before)) in written.iter().zip(&before).enumerate() {
            let value = tensor.value()?;
            if !tensor.same_storage(signature.leaves[i]) && !value.same(before) {
                let cuts = dims.iter().flat_map(|d| d.cuts(i)).collect::<Vec<_>>();
                signature.leaves[i].set_value(cut(&value, &cuts)?)?;
            }
        }
        cut_results(&out, &dims)
    }

    /// Compiles the programs of the buckets that hold these arguments, and runs none; as
    /// [`Jit::warm_up`].
    ///
    /// # Errors
    /// As [`call`](Bucketed::call) and [`Jit::warm_up`].
    #[track_caller]
    pub fn warm_up<T: IntoTree<A>>(&self, args: impl IntoIterator<Item = T>) -> Result<usize> {
        let location = Location::caller();
        let before = self.jit.compiled();
        for args in args {
            let padded = args.with_tree(|args| self.padded(args))?.1;
            self.jit.lower_at(&padded, location)?.compile()?;
        }
        Ok(self.jit.compiled() - before)
    }

    fn count(&self, dims: &[Dim<'_>]) {
        let mut counts = self.counts();
        for (i, dim) in dims.iter().enumerate() {
            let (calls, filled) = counts.entry((i, dim.bucket)).or_default();
            *calls += 1;
            *filled += dim.size as u64;
        }
    }

    /// The sizes of this call, and the arguments padded.
    fn padded(&self, args: &A) -> Result<(Vec<Dim<'_>>, Padded<A>)> {
        let signature = Signature::of(args);
        let dim = |of| Dim::of(of, args, &signature);
        let dims = self.dims.iter().map(dim).collect::<Result<Vec<_>>>()?;
        let pad_leaf = |(i, tensor): (usize, &&Tensor)| {
            let pads: Vec<_> = dims.iter().flat_map(|d| d.pads(i)).collect();
            match pads.is_empty() {
                true => Ok((*tensor).clone()),
                false => Ok(Tensor::from_value(pad(&tensor.value()?, &pads)?)),
            }
        };
        let tensors = signature.leaves.iter().enumerate().map(pad_leaf);
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let masked = |dim: &Dim<'_>| {
            let length = Scalar::from_i64(DType::I64, dim.size as i64);
            let length = Tensor::from_value(Value::scalar(length));
            Masked { name: Arc::clone(&dim.of.name), bucket: dim.bucket, length }
        };
        let mask = Mask(dims.iter().map(masked).collect());
        let padded = Padded { args: rebuild(args, tensors)?, mask };
        Ok((dims, padded))
    }
}

fn values<A: Leaves>(args: &A) -> Result<Vec<Value>> {
    Signature::of(args).leaves.iter().map(|t| t.value()).collect()
}

impl<'d> Dim<'d> {
    fn of<A: Leaves>(of: &'d Bucketing, args: &A, signature: &Signature<'_>) -> Result<Dim<'d>> {
        let mut leaves = Vec::new();
        for (which, dim) in &of.arguments {
            for i in which.find(args, signature, &of.name)? {
                let rank = signature.leaves[i].aval().rank();
                let axis = axis("bucket", *dim, rank).map_err(|e| e.note(of.note(args, i)))?;
                leaves.push((i, axis));
            }
        }
        let size = |&(i, axis): &(usize, usize)| signature.leaves[i].aval().shape()[axis];
        let Some(&first) = leaves.first() else {
            let text = format!("no tensor has the dimension `{}`", of.name);
            return Err(Error::new(ErrorKind::Tree, "bucket", text)
                .help("say with `of` or `of_leaf` which tensors have it"));
        };
        if let Some(&other) = leaves.iter().find(|leaf| size(leaf) != size(&first)) {
            let (a, b) = (leaf_name(args, first.0), leaf_name(args, other.0));
            let text = format!(
                "`{}` has size {} in {a} and size {} in {b}",
                of.name,
                size(&first),
                size(&other)
            );
            return Err(Error::new(ErrorKind::Shape, "bucket", text));
        }
        let size = size(&first);
        let bucket = of.buckets.bucket(size).ok_or_else(|| of.beyond(size))?;
        Ok(Dim { of, size, bucket, leaves })
    }

    /// The axes of a tensor that are padded: axis, bucket, value.
    fn pads(&self, leaf: usize) -> impl Iterator<Item = (usize, usize, f64)> + '_ {
        let padded =
            self.leaves.iter().filter(move |(i, _)| *i == leaf && self.size != self.bucket);
        padded.map(|&(_, axis)| (axis, self.bucket, self.of.fill))
    }

    /// The axes of a tensor that are cut back: axis, true size.
    fn cuts(&self, leaf: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.pads(leaf).map(|(axis, ..)| (axis, self.size))
    }
}

impl Of {
    fn find<A: Leaves>(
        &self,
        args: &A,
        signature: &Signature<'_>,
        name: &str,
    ) -> Result<Vec<usize>> {
        let found: Vec<usize> = match self {
            Of::Element(element) => {
                let at = signature.elements.iter().enumerate();
                at.filter(|(_, e)| *e == element).map(|(i, _)| i).collect()
            }
            Of::Leaf(path) => {
                let paths = paths(args);
                paths.iter().enumerate().filter(|(_, p)| *p == path).map(|(i, _)| i).collect()
            }
        };
        if !found.is_empty() {
            return Ok(found);
        }
        let what = match self {
            Of::Element(element) => format!("element {element} of the argument has no tensor"),
            Of::Leaf(path) => format!("the argument has no tensor `{path}`"),
        };
        Err(Error::new(ErrorKind::Tree, "bucket", format!("{what}, which `{name}` is to be of")))
    }
}

impl Bucketing {
    fn note<A: Leaves>(&self, args: &A, leaf: usize) -> String {
        format!("`{}` is to be a dimension of {}", self.name, leaf_name(args, leaf))
    }

    #[cold]
    fn beyond(&self, size: usize) -> Error {
        let last = match &self.buckets {
            Buckets::List(sizes) => sizes.iter().copied().max().unwrap_or(0),
            _ => usize::MAX,
        };
        let text = format!("`{}` has size {size}, beyond the last bucket, {last}", self.name);
        Error::new(ErrorKind::Shape, "bucket", text)
    }
}

/// Results with the padded dimensions cut back to the true sizes.
fn cut_results<B: Tree>(out: &B, dims: &[Dim<'_>]) -> Result<B> {
    let wanted = |dim: &&Dim<'_>| dim.size != dim.bucket && !dim.of.results.is_empty();
    if !dims.iter().any(|dim| wanted(&dim)) {
        return out.map(&mut |t| Ok(t.clone()));
    }
    let elements = Signature::of(out).elements;
    let mut at = elements.iter().enumerate();
    out.map(&mut |tensor| {
        let Some((i, element)) = at.next() else { return Ok(tensor.clone()) };
        let mut cuts = Vec::new();
        for dim in dims.iter().filter(wanted) {
            for &(_, d) in dim.of.results.iter().filter(|(e, _)| e == element) {
                let aval = tensor.aval();
                let axis = axis("bucket", d, aval.rank())?;
                if aval.shape()[axis] != dim.bucket {
                    let name = leaf_name(out, i).replace("argument", "result");
                    let (dim, bucket) = (&dim.of.name, dim.bucket);
                    let text = format!(
                        "axis {axis} of {name}, {aval}, is to be `{dim}`, which has size {bucket}"
                    );
                    return Err(Error::new(ErrorKind::Shape, "bucket", text));
                }
                cuts.push((axis, dim.size));
            }
        }
        match cuts.is_empty() {
            true => Ok(tensor.clone()),
            false => Ok(Tensor::from_value(cut(&tensor.value()?, &cuts)?)),
        }
    })
}

/// A value padded at the end of the given axes. A compiled program would be one for each size: a
/// concrete array is padded in host memory.
fn pad(value: &Value, pads: &[(usize, usize, f64)]) -> Result<Value> {
    let one = |value: Value, &(axis, bucket, fill): &(usize, usize, f64)| {
        let mut high = vec![0; value.rank()];
        let none = high.clone();
        high[axis] = bucket as i64 - value.shape()[axis] as i64;
        let fill = Scalar::from_f64(value.dtype(), fill);
        match &value {
            Value::Array(array) => {
                let mut sizes = value.shape().to_vec();
                sizes[axis] = bucket;
                let fill = HostArray::full(fill, &Shape::scalar());
                on_host(array, &sizes.into(), |host| layout::pad(host, &fill, &none, &high, &none))
            }
            Value::Tracer(_) => ops::pad(&value, &Value::scalar(fill), &none, &high, &none),
        }
    };
    pads.iter().try_fold(value.clone(), one)
}

/// A value cut off at the end of the given axes.
fn cut(value: &Value, cuts: &[(usize, usize)]) -> Result<Value> {
    let limits: Vec<usize> = (0..value.rank())
        .map(|a| cuts.iter().find(|(axis, _)| *axis == a).map_or(value.shape()[a], |(_, n)| *n))
        .collect();
    let (starts, steps) = (vec![0; limits.len()], vec![1; limits.len()]);
    match value {
        Value::Array(array) => {
            let shape = Shape::from(limits.as_slice());
            on_host(array, &shape, |host| host.slice(&starts, &limits, &steps))
        }
        Value::Tracer(_) => ops::slice(value, &starts, &limits, &steps),
    }
}

/// What `change` makes of an array's data, being of `shape` then, in the same place.
fn on_host(
    array: &Array,
    shape: &Shape,
    change: impl FnOnce(&HostArray) -> HostArray,
) -> Result<Value> {
    let (aval, place) = (array.aval(), array.place());
    let whole = |s: &NamedSharding| NamedSharding::replicated(s.mesh());
    let kept = |s: &NamedSharding| s.check("bucket", shape).is_ok().then(|| s.clone());
    let sharding = aval.sharding().map(|s| kept(s).unwrap_or_else(|| whole(s)));
    if array.is_meta() {
        let aval = aval.with_shape(shape.clone()).with_sharding(sharding);
        return Ok(Value::Array(Array::meta(aval, place)));
    }
    let host = change(&array.to_host()?);
    if let Some(sharding) = sharding {
        return Ok(Value::Array(Array::upload_sharded(&host, &sharding)?));
    }
    let device = place.device.map_or_else(Device::default, Device::by_id)?;
    Ok(Value::Array(Array::upload(host, &device, place.committed)?))
}
