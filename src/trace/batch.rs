//! The interpreter of `vmap`: each mapped value is a whole batch with one more axis.

use super::primitive::{BatchAxes, Primitive};
use super::{Interpreter, Payload, Trace, Value, Values, bind};
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Applies the `batch` rules.
#[derive(Debug)]
pub struct Batch {
    /// The size of the batch.
    pub size: usize,
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
            if axes.iter().all(Option::is_none) {
                return Ok((bind(prim, &values)?, BatchAxes::new()));
            }
            prim.batch(self.size, &values, &axes).map_err(|e| self.note(e))
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
    #[cold]
    fn note(&self, error: Error) -> Error {
        error.note(format!("inside `vmap` over {} examples", self.size))
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
