//! `debug_nans`: every result is looked at, and the operation that makes a NaN is named.
//!
//! While nobody looks, the cost is one relaxed load for each operation. A program of several
//! operations whose result has a NaN is run again one operation at a time, its calls and regions
//! opened, until one makes it.

use super::eval;
use super::graph::Graph;
use super::primitive::Primitive;
use super::source;
use super::{Value, Values};
use crate::array::Array;
use crate::backend::host::{HostArray, convert::convert};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use num_complex::Complex;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    nans: bool,
    infs: bool,
}

/// How many there are that may want to look: scopes of all threads, and the environment. It counts
/// until it has been read.
static WATCHERS: AtomicUsize = AtomicUsize::new(1);
static ENVIRONMENT: OnceLock<Wanted> = OnceLock::new();

thread_local! {
    static NANS: Cell<usize> = const { Cell::new(0) };
    static INFS: Cell<usize> = const { Cell::new(0) };
    static PAUSED: Cell<bool> = const { Cell::new(false) };
}

/// As long as it lives, results on this thread are looked at. Made by [`debug_nans`] and
/// [`debug_infs`].
#[derive(Debug)]
#[must_use = "results are looked at only as long as this lives"]
pub struct DebugNans {
    infs: bool,
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

/// From here to the end of the returned value's scope, an operation on this thread whose result has
/// a NaN gives an error of kind [`ErrorKind::NotFinite`] that names it, its operands' types, and the
/// caller's line. `OXBRIDGE_DEBUG_NANS=1` does so for the whole process.
///
/// Of a function under `jit` whose results have one, every operation is then run by itself, calls
/// and loops opened, and the first that makes a NaN is named, with the line where it was traced.
/// Each result is waited for and brought to the host, so this is slow. Arguments that are donated
/// are copied first.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[4f32, -1.0], [2])?;
/// let f = jit(|x: &Tensor| x.sqrt()?.add(1.0)?.sum());
/// assert!(f.call(&x)?.item::<f32>()?.is_nan());
/// let _looking = oxbridge::debug_nans();
/// let error = f.call(&x).unwrap_err();
/// assert_eq!(*error.kind(), ErrorKind::NotFinite);
/// assert_eq!(error.op(), "sqrt");
/// assert_eq!(error.location().map(|at| at.file()), Some(file!()));
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** `jax.debug_nans`.
pub fn debug_nans() -> DebugNans {
    scope(false)
}

/// [`debug_nans`] for infinities: results of either sign. `OXBRIDGE_DEBUG_INFS=1` does so for the
/// whole process. Where both are wanted, have both.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let x = Tensor::from_slice(&[1f32, 0.0], [2])?;
/// let _looking = oxbridge::debug_infs();
/// let error = x.log().unwrap_err();
/// assert_eq!(*error.kind(), ErrorKind::NotFinite);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** `jax.debug_infs`.
pub fn debug_infs() -> DebugNans {
    scope(true)
}

fn scope(infs: bool) -> DebugNans {
    WATCHERS.fetch_add(1, Ordering::Relaxed);
    count(infs, |n| n + 1);
    DebugNans { infs, thread: PhantomData }
}

fn count(infs: bool, change: impl Fn(usize) -> usize) {
    let counter = if infs { &INFS } else { &NANS };
    counter.set(change(counter.get()));
}

impl Drop for DebugNans {
    fn drop(&mut self) {
        WATCHERS.fetch_sub(1, Ordering::Relaxed);
        count(self.infs, |n| n - 1);
    }
}

/// Whether results are looked at now.
pub(super) fn watching() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0 && !PAUSED.get() && wanted() != Wanted::default()
}

#[cold]
fn wanted() -> Wanted {
    let env = ENVIRONMENT.get_or_init(|| {
        let on = |name| std::env::var(name).is_ok_and(|v| !matches!(v.as_str(), "" | "0"));
        let env = Wanted { nans: on("OXBRIDGE_DEBUG_NANS"), infs: on("OXBRIDGE_DEBUG_INFS") };
        if env == Wanted::default() {
            WATCHERS.fetch_sub(1, Ordering::Relaxed);
        }
        env
    });
    Wanted { nans: env.nans || NANS.get() > 0, infs: env.infs || INFS.get() > 0 }
}

/// Runs `f` without looking at results.
fn paused<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            PAUSED.set(self.0);
        }
    }
    let _restore = Restore(PAUSED.replace(true));
    f()
}

/// As [`eval::run`], with a look at the results.
///
/// # Errors
/// As there; [`ErrorKind::NotFinite`] for what is looked for.
#[cold]
pub(super) fn run(prim: &dyn Primitive, operands: &[Value]) -> Result<Values> {
    let wanted = wanted();
    paused(|| {
        let kept = kept(prim, operands)?;
        let outs = eval::run(prim, operands)?;
        let Some(found) = found(&outs, wanted)? else { return Ok(outs) };
        Err(located(prim, &kept, &found, wanted))
    })
}

/// The operands, those that the program may overwrite as copies.
fn kept(prim: &dyn Primitive, operands: &[Value]) -> Result<Values> {
    let donated = prim.donated();
    let keep = |(i, value): (usize, &Value)| match value {
        Value::Array(array)
            if donated.get(i).copied().unwrap_or(false) && array.as_literal().is_none() =>
        {
            copied(array).map(Value::Array)
        }
        _ => Ok(value.clone()),
    };
    operands.iter().enumerate().map(keep).collect()
}

fn copied(array: &Array) -> Result<Array> {
    let data = array.to_host()?;
    if let Some(sharding) = array.aval().sharding() {
        return Array::upload_sharded(&data, sharding);
    }
    let place = array.place();
    let device = place.device.map_or_else(crate::Device::default, crate::Device::by_id)?;
    Array::upload(data, &device, place.committed)
}

/// The error for a program whose result has what is looked for: of the first operation in it that
/// makes it.
#[cold]
fn located(prim: &dyn Primitive, operands: &[Value], found: &Found, wanted: Wanted) -> Error {
    let whole = || error(prim, operands, found, wanted);
    let name = prim.entry_name();
    let error = if prim.graphs().is_empty() {
        whole()
    } else {
        match opened(prim, operands, wanted) {
            Err(error) if *error.kind() == ErrorKind::NotFinite => {
                error.note(format!("found by running `{name}` again, one operation at a time"))
            }
            Err(error) => whole().note(format!("running it again by operations failed: {error}")),
            Ok(_) => whole().note(
                "run one operation at a time it has none: the compiler's order of operations \
                 makes the difference",
            ),
        }
    };
    if prim.donated().contains(&true) {
        return error.note(format!("what was donated to `{name}` is gone"));
    }
    error
}

/// Runs an operation; one that has graphs by their operations.
///
/// # Errors
/// [`ErrorKind::NotFinite`] for the first that makes what is looked for; what the backend says.
fn opened(prim: &dyn Primitive, operands: &[Value], wanted: Wanted) -> Result<Values> {
    if let Some(graph) = prim.graph() {
        let inside = |error: Error| match prim.entry_name() {
            name if *error.kind() == ErrorKind::NotFinite => {
                error.note(format!("inside of `{name}`"))
            }
            _ => error,
        };
        return by_operations(graph, operands, wanted).map_err(inside);
    }
    let by_graphs = prim.open(operands, &mut |graph, xs| by_operations(graph, xs, wanted))?;
    if let Some(outs) = by_graphs {
        return Ok(outs);
    }
    let outs = eval::run(prim, operands)?;
    match found(&outs, wanted)? {
        None => Ok(outs),
        Some(found) => Err(error(prim, operands, &found, wanted)),
    }
}

fn by_operations(graph: &Graph, operands: &[Value], wanted: Wanted) -> Result<Values> {
    graph.run_by(operands, &mut |prim, inputs| opened(prim, inputs, wanted))
}

/// A result that has what is looked for.
struct Found {
    aval: String,
    first: Vec<usize>,
    count: usize,
    size: usize,
    nan: bool,
}

/// The first of the results that has what is looked for.
fn found(outs: &[Value], wanted: Wanted) -> Result<Option<Found>> {
    for out in outs.iter().filter(|out| out.dtype().is_differentiable()) {
        let data = out.array("debug_nans")?.to_host()?;
        let bad = |x: &f64| (wanted.nans && x.is_nan()) || (wanted.infs && x.is_infinite());
        let parts = parts(&data);
        let each = if data.dtype().is_complex() { 2 } else { 1 };
        let mut places = parts.chunks(each).enumerate().filter(|(_, x)| x.iter().any(bad));
        let Some((first, x)) = places.next() else { continue };
        let dims = data.shape().strides().into_iter().zip(data.shape().dims());
        return Ok(Some(Found {
            aval: out.aval().to_string(),
            first: dims.map(|(stride, size)| first / stride % size).collect(),
            count: 1 + places.count(),
            size: data.shape().size(),
            nan: x.iter().any(|x| x.is_nan()),
        }));
    }
    Ok(None)
}

/// The elements as doubles, complex ones as two.
fn parts(x: &HostArray) -> Vec<f64> {
    if x.dtype().is_complex() {
        let list: Vec<Complex<f64>> = convert(x, DType::C128).to_vec().unwrap_or_default();
        return list.into_iter().flat_map(|z| [z.re, z.im]).collect();
    }
    convert(x, DType::F64).to_vec().unwrap_or_default()
}

fn error(prim: &dyn Primitive, operands: &[Value], found: &Found, wanted: Wanted) -> Error {
    let Found { aval, first, count, size, nan } = found;
    let what = if *nan { "NaN" } else { "an infinity" };
    let place = if first.is_empty() { String::new() } else { format!(" at {first:?}") };
    let share = if *size > 1 { format!(", {count} of {size} elements") } else { String::new() };
    let types: Vec<String> = operands.iter().map(|v| v.aval().to_string()).collect();
    let text =
        format!("the result {aval} has {what}{place}{share}; operands are ({})", types.join(", "));
    let mut error = Error::new(ErrorKind::NotFinite, prim.name(), text);
    if let Some(place) = source::here() {
        error = error.at(place);
    }
    for (i, operand) in operands.iter().enumerate() {
        if self::found(std::slice::from_ref(operand), wanted).is_ok_and(|f| f.is_some()) {
            error = error.note(format!("operand {i} has one already"));
        }
    }
    error
}
