//! The interpreter of `vmap`: each mapped value is a whole batch with one more axis.

use super::graph::Graph;
use super::primitive::{BatchAxes, Primitive};
use super::{Interpreter, Payload, Trace, Value, Values, bind};
use crate::error::{Error, ErrorKind, Result};
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

impl fmt::Debug for BatchAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("_");
        write!(f, "{name}:{}", self.size)
    }
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
