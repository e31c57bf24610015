//! `debug_callback`: a function of this process, called with values while a program runs.

use super::move_batch_axis;
use crate::array::Array;
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host_call::{HostCall, TARGET};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::Val;
use crate::trace::batch::BatchAxis;
use crate::trace::linear::not_linear;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind, is_eager};
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The primitive `debug_callback`: no result, but for its effect.
#[derive(Clone, Debug)]
pub struct DebugCallback {
    /// What is called.
    pub call: Arc<HostCall>,
    /// How many axes in front of every operand are batches: it is called for each example.
    pub axes: usize,
}

impl PartialEq for DebugCallback {
    fn eq(&self, other: &DebugCallback) -> bool {
        self.call.id() == other.call.id() && self.axes == other.axes
    }
}

impl Eq for DebugCallback {}

impl Hash for DebugCallback {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.call.id(), self.axes).hash(state);
    }
}

impl Primitive for DebugCallback {
    fn name(&self) -> &'static str {
        "debug_callback"
    }

    fn infer(&self, _: &[Aval]) -> Result<Avals> {
        Ok(Avals::new())
    }

    /// A custom call that also takes the result of the one before it, so that they run in order.
    fn lower(&self, cx: &mut Lowering, operands: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        let attrs = format!(
            "call_target_name = \"{TARGET}\", api_version = 4 : i32, has_side_effect = true, \
             backend_config = {{axes = {} : i64, count = {} : i64, id = {} : i64}}",
            self.axes,
            operands.len(),
            self.call.id()
        );
        let operands: Vec<Val> = operands.iter().cloned().chain(cx.take_effect()).collect();
        let token = Aval::scalar(DType::U8);
        let out = cx.op("stablehlo.custom_call", &operands, &attrs, &[token]).swap_remove(0);
        cx.set_effect(Some(out));
        Ok(Vec::new())
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        self.call.run(operands, self.axes)?;
        Ok(Vec::new())
    }

    fn jvp(&self, primals: &[Value], _: &[Tangent]) -> Result<(Values, Tangents)> {
        run(self, primals)?;
        Ok((Values::new(), Tangents::new()))
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
        let front = operands.iter().zip(axes);
        let front = front.map(|(x, axis)| move_batch_axis(batch.size, x, *axis, 0));
        let prim = DebugCallback { call: Arc::clone(&self.call), axes: self.axes + 1 };
        Ok((bind(&prim, &front.collect::<Result<Values>>()?)?, SmallVec::new()))
    }

    fn params(&self) -> String {
        if self.axes == 0 { String::new() } else { format!("batch_axes={}", self.axes) }
    }

    fn host_calls(&self) -> SmallVec<[Arc<HostCall>; 1]> {
        [Arc::clone(&self.call)].into_iter().collect()
    }
}

/// Calls `call` with the values of `operands` when the program runs there.
///
/// # Errors
/// What the function says, if it runs at once; without an operand.
pub fn debug_callback(call: &Arc<HostCall>, operands: &[Value]) -> Result<()> {
    if operands.is_empty() {
        let text = "takes at least one tensor, whose program it is called in";
        return Err(Error::new(ErrorKind::Value, "debug_callback", text));
    }
    run(&DebugCallback { call: Arc::clone(call), axes: 0 }, operands)
}

/// Binds it; where operations run at once it is called without a program of its own.
fn run(prim: &DebugCallback, operands: &[Value]) -> Result<()> {
    let arrays: Option<Vec<&Array>> = operands.iter().map(|v| v.array("").ok()).collect();
    match arrays {
        Some(arrays) if is_eager() => {
            let hosts = arrays.iter().map(|a| a.to_host()).collect::<Result<Vec<_>>>()?;
            prim.call.run(&hosts, prim.axes)
        }
        _ => bind(prim, operands).map(drop),
    }
}
