//! What steers the compiler: `sharding_constraint`, `optimization_barrier`.

use crate::array::{Array, Place};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::error::Result;
use crate::hlo::Val;
use crate::mesh::{AxisSpec, Mesh, NamedSharding};
use crate::ops::shape::linear_jvp;
use crate::trace::batch::BatchAxis;
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind, bind_one, is_eager};
use smallvec::{SmallVec, smallvec};

/// The primitive `sharding_constraint`: the same array, split over a mesh as told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardingConstraint {
    sharding: [Option<NamedSharding>; 1],
    /// Axes that `vmap` added, along which the compiler may split as it likes.
    open: SmallVec<[usize; 2]>,
}

impl ShardingConstraint {
    /// The text of the attribute.
    fn attribute(&self, sharding: &NamedSharding, rank: usize) -> String {
        let axis = |a: usize| {
            if self.open.contains(&a) {
                return "{?}".to_owned();
            }
            let names: Vec<String> =
                sharding.spec().axis(a).iter().map(|n| format!("\"{n}\"")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let axes: Vec<String> = (0..rank).map(axis).collect();
        format!("sharding = #sdy.sharding<@mesh, [{}]>", axes.join(", "))
    }
}

impl Primitive for ShardingConstraint {
    fn name(&self) -> &'static str {
        "sharding_constraint"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        if let Some(sharding) = &self.sharding[0] {
            sharding.check("sharding_constraint", operands[0].shape())?;
        }
        Ok(smallvec![operands[0].unsharded()])
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        let Some(sharding) = &self.sharding[0] else { return Ok(operands.to_vec()) };
        cx.use_mesh(sharding.mesh())?;
        let attrs = self.attribute(sharding, outs[0].rank());
        Ok(cx.op("sdy.sharding_constraint", operands, &attrs, outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(operands.to_vec())
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        linear_jvp(self, primals, tangents)
    }

    fn transpose(&self, cts: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        let back = |ct: &Value| bind_one(self, std::slice::from_ref(ct));
        Ok(smallvec![cts[0].as_ref().map(back).transpose()?])
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let axis = axes[0].unwrap_or(0);
        let over: AxisSpec = batch.spmd.iter().flat_map(|names| names.iter()).cloned().collect();
        let free = over.is_empty().then_some(axis);
        let wider =
            |s: &NamedSharding| NamedSharding::new(s.mesh(), s.spec().insert(axis, over.clone()));
        let moved = self.open.iter().map(|&a| a + usize::from(a >= axis));
        let prim = ShardingConstraint {
            sharding: [self.sharding[0].as_ref().map(wider).transpose()?],
            open: moved.chain(free).collect(),
        };
        Ok((smallvec![bind_one(&prim, operands)?], smallvec![Some(axis)]))
    }

    fn params(&self) -> String {
        self.sharding[0].as_ref().map_or_else(String::new, |s| format!("sharding={s}"))
    }

    fn out_shardings(&self) -> &[Option<NamedSharding>] {
        &self.sharding
    }

    fn mesh(&self) -> Option<&Mesh> {
        self.sharding[0].as_ref().map(NamedSharding::mesh)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// `x`, split over a mesh as `sharding` says: inside of `jit` a demand on the compiler, and the same
/// for its derivative. Under `vmap` the mapped axis is split over the mesh axes that its
/// `spmd_axis_name` names, or left to the compiler.
///
/// # Errors
/// If the sharding does not fit the shape.
pub fn sharding_constraint(x: &Value, sharding: &NamedSharding) -> Result<Value> {
    if let Value::Array(array) = x
        && is_eager()
    {
        return move_to(array, sharding);
    }
    let prim = ShardingConstraint { sharding: [Some(sharding.clone())], open: SmallVec::new() };
    bind_one(&prim, std::slice::from_ref(x))
}

/// A concrete array laid out anew; itself if it lies so already.
fn move_to(array: &Array, sharding: &NamedSharding) -> Result<Value> {
    if array.aval().sharding() == Some(sharding) {
        return Ok(Value::Array(array.clone()));
    }
    if array.is_meta() {
        sharding.check("shard", array.aval().shape())?;
        let place =
            Place { device: sharding.mesh().device_ids().first().copied(), committed: true };
        let aval = array.aval().with_sharding(Some(sharding.clone()));
        return Ok(Value::Array(Array::meta(aval, place)));
    }
    Ok(Value::Array(Array::upload_sharded(&array.to_host()?, sharding)?))
}

/// The primitive `optimization_barrier`: its operands, none of which is there before all are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OptimizationBarrier;

/// A barrier over the tangents that are there.
fn barrier_of(tangents: &[Tangent]) -> Result<Tangents> {
    let there: Vec<Value> = tangents.iter().flatten().cloned().collect();
    let mut held = optimization_barrier(&there)?.into_iter();
    Ok(tangents.iter().map(|t| t.as_ref().and_then(|_| held.next())).collect())
}

impl Primitive for OptimizationBarrier {
    fn name(&self) -> &'static str {
        "optimization_barrier"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        Ok(operands.iter().map(Aval::unsharded).collect())
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        Ok(cx.op("stablehlo.optimization_barrier", operands, "", outs))
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(operands.to_vec())
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        Ok((bind(self, primals)?, barrier_of(tangents)?))
    }

    fn transpose(&self, cts: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        barrier_of(cts)
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        Ok((bind(self, operands)?, axes.iter().copied().collect()))
    }

    fn params(&self) -> String {
        String::new()
    }
}

/// The operands as they are, which the compiler may not move or fold together across this point:
/// for rematerialisation. Source: StableHLO `optimization_barrier`.
///
/// # Errors
/// If the backend fails.
pub fn optimization_barrier(operands: &[Value]) -> Result<Values> {
    if operands.is_empty() {
        return Ok(Values::new());
    }
    bind(&OptimizationBarrier, operands)
}
