//! The interpreter of `vmap`: each mapped value is a whole batch with one more axis.

use super::graph::Graph;
use super::primitive::{BatchAxes, Primitive};
use super::{Interpreter, Payload, Trace, Value, Values, bind, current};
use crate::error::{Error, ErrorKind, Result};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// The name of a mapped axis, which collectives inside of `vmap` speak of.
pub type AxisName = Arc<str>;

/// The axis that one `vmap` adds: what a `batch` rule knows of it. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BatchAxis {
    /// The number of examples.
    pub size: usize,
    /// The name, for the collectives that reduce or gather over this axis.
    pub name: Option<AxisName>,
    /// The mesh axes over which sharding constraints split this axis; none leaves that to the
    /// compiler.
    pub spmd: Option<Arc<[AxisName]>>,
}

impl BatchAxis {
    /// An axis without a name.
    pub fn of_size(size: usize) -> BatchAxis {
        BatchAxis { size, name: None, spmd: None }
    }

    /// The axis without what makes no difference to these graphs, so that one that is batched
    /// under several names is batched once.
    pub fn seen_by<'g>(&self, graphs: impl IntoIterator<Item = &'g Arc<Graph>>) -> BatchAxis {
        let (mut named, mut sharded) = (false, false);
        for graph in graphs {
            named |= self.name.as_ref().is_some_and(|n| graph.axis_names().contains(n));
            sharded |= graph.mesh().is_some();
        }
        BatchAxis {
            size: self.size,
            name: self.name.clone().filter(|_| named),
            spmd: self.spmd.clone().filter(|_| sharded),
        }
    }
}

impl BatchAxis {
    /// Whether this is the axis called `name`.
    pub fn is(&self, name: &str) -> bool {
        self.name.as_deref() == Some(name)
    }
}

impl fmt::Debug for BatchAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("_");
        write!(f, "{name}:{}", self.size)
    }
}

/// A named axis with its size, as a collective speaks of it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NamedAxis {
    /// The name.
    pub name: AxisName,
    /// The number of examples.
    pub size: usize,
}

impl fmt::Debug for NamedAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.size)
    }
}

/// How the names begin that `vmap` gives to axes for which the user has none.
const NAMELESS: char = '#';

/// Whether a user may give an axis this name.
pub fn is_user_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(NAMELESS)
}

/// The named axes that are mapped here, the innermost first; of two of one name the outer one is
/// hidden. An axis to which the user gave no name has one of its own.
///
/// What asks on behalf of the user's function says so by [`note_axes_read`].
pub fn axis_env() -> NamedAxes {
    let mut found = NamedAxes::new();
    outwards(|trace| {
        let axis = bound_by(trace);
        found.extend(axis.filter(|axis| !found.iter().any(|other| other.name == axis.name)));
        false
    });
    found
}

/// Several named axes.
pub type NamedAxes = SmallVec<[NamedAxis; 2]>;

/// Goes over the traces under way, the innermost first, until `f` gives true; whether it did.
fn outwards(mut f: impl FnMut(&Arc<Trace>) -> bool) -> bool {
    let mut next = current();
    while let Some(trace) = next {
        if f(&trace) {
            return true;
        }
        next = trace.parent().cloned();
    }
    false
}

fn bound_by(trace: &Arc<Trace>) -> Option<NamedAxis> {
    let axis = trace.interpreter().batch_axis()?;
    Some(NamedAxis { name: Arc::clone(axis.name.as_ref()?), size: axis.size })
}

fn note(trace: &Arc<Trace>) {
    if let Some(recorder) = trace.interpreter().recorder() {
        recorder.note_axes();
    }
}

/// Makes every function that is being traced depend on the axes that are mapped around it.
pub fn note_axes_read() {
    outwards(|trace| {
        note(trace);
        false
    });
}

/// A name for an axis that has none from the user; no axis around has it.
pub fn nameless() -> AxisName {
    let depth = axis_env().iter().filter(|axis| !is_user_name(&axis.name)).count();
    format!("{NAMELESS}{depth}").into()
}

/// The axis called `name` that is mapped here. A function being traced inside of that `vmap`
/// depends on it from then on.
///
/// # Errors
/// [`ErrorKind::Axis`] if there is none.
pub fn named_axis(op: &'static str, name: &str) -> Result<NamedAxis> {
    let mut found = None;
    outwards(|trace| {
        note(trace);
        found = bound_by(trace).filter(|axis| *axis.name == *name);
        found.is_some()
    });
    found.ok_or_else(|| unbound(op, name))
}

/// The error of a name that no `vmap` around gives to an axis.
#[cold]
pub fn unbound(op: &'static str, name: &str) -> Error {
    let bound: Vec<String> = axis_env()
        .iter()
        .filter(|axis| is_user_name(&axis.name))
        .map(|axis| format!("`{}` (size {})", axis.name, axis.size))
        .collect();
    let bound = match bound.is_empty() {
        true => "none is".to_owned(),
        false => format!("bound are {}", bound.join(", ")),
    };
    Error::new(ErrorKind::Axis, op, format!("the axis name `{name}` is not bound here; {bound}"))
        .help("give the name to a `vmap` around the call, by `VmapOptions::axis_name`")
}

/// Applies the `batch` rules.
#[derive(Debug)]
pub struct Batch {
    /// The axis that is added.
    pub axis: BatchAxis,
}

impl Interpreter for Batch {
    fn name(&self) -> &'static str {
        "vmap"
    }

    fn process(
        &self,
        trace: &Arc<Trace>,
        prim: &dyn Primitive,
        operands: &[Value],
    ) -> Result<Values> {
        let (values, axes): (Values, BatchAxes) = operands.iter().map(|v| split(trace, v)).unzip();
        let outs = trace.in_parent(|| {
            if axes.iter().all(Option::is_none) && !self.is_named_by(prim) {
                return Ok((bind(prim, &values)?, BatchAxes::new()));
            }
            prim.batch(&self.axis, &values, &axes).map_err(|e| self.note(e))
        });
        let (outs, out_axes) = outs?;
        if out_axes.is_empty() {
            return Ok(outs);
        }
        Ok(outs.into_iter().zip(out_axes).map(|(v, axis)| join(trace, v, axis)).collect())
    }

    fn batch_axis(&self) -> Option<&BatchAxis> {
        Some(&self.axis)
    }

    fn leave(&self, value: &Value) -> Result<Value> {
        match value {
            Value::Tracer(tracer) if matches!(tracer.payload(), Payload::Batched { .. }) => {
                let text = format!(
                    "a mapped value {} is written to a tensor from outside of `vmap`, which has room \
                     for one example only",
                    tracer.aval()
                );
                Err(Error::new(ErrorKind::Value, "vmap", text).help("return the value instead"))
            }
            _ => Ok(value.clone()),
        }
    }
}

impl Batch {
    /// Whether the primitive speaks of this axis, so that its result may differ from example to
    /// example even if no operand does.
    fn is_named_by(&self, prim: &dyn Primitive) -> bool {
        self.axis.name.as_ref().is_some_and(|name| prim.axis_names().contains(name))
    }

    #[cold]
    fn note(&self, error: Error) -> Error {
        error.note(format!("inside `vmap` over {} examples", self.axis.size))
    }
}

/// A value of `trace` as the whole batch and its mapped axis; a value from outside has none.
pub fn split(trace: &Arc<Trace>, value: &Value) -> (Value, Option<usize>) {
    match trace.own(value) {
        Some(Payload::Batched { value, axis }) => (value.clone(), Some(*axis)),
        _ => (value.clone(), None),
    }
}

/// A batch and its mapped axis as one value of `trace`.
pub fn join(trace: &Arc<Trace>, value: Value, axis: Option<usize>) -> Value {
    let Some(axis) = axis else { return value };
    let aval = value.aval().with_shape(value.shape().remove(axis));
    trace.tracer(aval, Payload::Batched { value, axis })
}
