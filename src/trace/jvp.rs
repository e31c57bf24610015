//! The interpreter of forward derivatives: each value carries its tangent.

use super::primitive::{Primitive, Tangent, Tangents};
use super::{Interpreter, Payload, Trace, Value, Values, bind};
use crate::error::Result;
use std::sync::Arc;

/// Applies the `jvp` rules.
#[derive(Debug)]
pub struct Jvp {
    /// The user's name of the transform: `jvp`, `grad`, ….
    pub name: &'static str,
}

impl Interpreter for Jvp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn process(
        &self,
        trace: &Arc<Trace>,
        prim: &dyn Primitive,
        operands: &[Value],
    ) -> Result<Values> {
        let (primals, tangents): (Values, Tangents) =
            operands.iter().map(|v| split(trace, v)).unzip();
        trace.in_parent(|| {
            if tangents.iter().all(Option::is_none) {
                return bind(prim, &primals);
            }
            let (outs, out_tangents) = prim.jvp(&primals, &tangents)?;
            Ok(outs.into_iter().zip(out_tangents).map(|(p, t)| join(trace, p, t)).collect())
        })
    }

    fn leave(&self, value: &Value) -> Result<Value> {
        // A tensor from outside keeps the value; the derivative ends with the transform.
        Ok(match value {
            Value::Tracer(tracer) => match tracer.payload() {
                Payload::Pair { primal, .. } => primal.clone(),
                _ => value.clone(),
            },
            Value::Array(_) => value.clone(),
        })
    }
}

/// A value of `trace` as primal and tangent; a value from outside has no tangent.
pub fn split(trace: &Arc<Trace>, value: &Value) -> (Value, Tangent) {
    match trace.own(value) {
        Some(Payload::Pair { primal, tangent }) => (primal.clone(), Some(tangent.clone())),
        _ => (value.clone(), None),
    }
}

/// A primal and its tangent as one value of `trace`.
pub fn join(trace: &Arc<Trace>, primal: Value, tangent: Tangent) -> Value {
    let Some(tangent) = tangent else { return primal };
    debug_assert_eq!(primal.aval().unsharded(), tangent.aval().unsharded(), "type of a tangent");
    let aval = primal.aval().clone();
    trace.tracer(aval, Payload::Pair { primal, tangent })
}
