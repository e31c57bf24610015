//! [`Primitive`]: one strict operation with all its rules.

use super::{Value, Values};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host_call::HostCall;
use crate::backend::pjrt::options::OverrideValue;
use crate::error::Result;
use crate::hlo::Val;
use crate::mesh::{Mesh, NamedSharding};
use crate::trace::batch::{AxisName, BatchAxis};
use crate::trace::graph::Graph;
use crate::trace::lower::Lowering;
use rustc_hash::FxHasher;
use smallvec::SmallVec;
use std::any::{Any, TypeId};
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A tangent or cotangent; none stands for zeros, which are never made if nobody asks.
pub type Tangent = Option<Value>;

/// Several tangents or cotangents.
pub type Tangents = SmallVec<[Tangent; 2]>;

/// For each operand or result the axis that `vmap` maps over; none if it is not mapped.
pub type BatchAxes = SmallVec<[Option<usize>; 2]>;

/// Runs a graph on operands.
pub type RunGraph<'r> = &'r mut dyn FnMut(&Arc<Graph>, &[Value]) -> Result<Values>;

/// What a `transpose` rule knows of an operand.
#[derive(Clone, Debug)]
pub enum Operand {
    /// A value: the operation is not transposed in it.
    Known(Value),
    /// Only the type: the operation is linear in it, and its cotangent is asked for.
    Linear(Aval),
}

impl Operand {
    /// The type.
    pub fn aval(&self) -> &Aval {
        match self {
            Operand::Known(value) => value.aval(),
            Operand::Linear(aval) => aval,
        }
    }

    /// Whether the cotangent is asked for.
    pub fn is_linear(&self) -> bool {
        matches!(self, Operand::Linear(_))
    }

    /// The value of a known operand.
    pub fn known(&self) -> Option<&Value> {
        match self {
            Operand::Known(value) => Some(value),
            Operand::Linear(_) => None,
        }
    }
}

/// One strict operation with all its rules. A type's fields are all its parameters, so equal
/// primitives over equal operand types mean one compiled program.
///
/// No rule has a default body: a missing rule does not compile. A rule calls `ops::…` and nothing
/// else, so it works under every stack of transforms.
pub trait Primitive: PrimitiveKey + Debug + Send + Sync + 'static {
    /// The name that graphs and errors print, in snake case.
    fn name(&self) -> &'static str;

    /// The types of the results; the only place that checks operands against each other.
    fn infer(&self, operands: &[Aval]) -> Result<Avals>;

    /// Writes the operation as StableHLO. `outs` is what [`infer`](Primitive::infer) gave.
    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>>;

    /// Works the operation out in host memory.
    fn host(&self, operands: &[HostArray], outs: &[Aval]) -> Result<Vec<HostArray>>;

    /// The results and their tangents for the given operands and theirs. At least one tangent is
    /// there; tangents of integer and bool results must be none.
    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)>;

    /// The cotangents of the linear operands for the given cotangents of the results; at least one
    /// of these is there. Entries of known operands are ignored.
    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents>;

    /// The operation over a batch, where at least one operand is mapped over an axis, or the
    /// operation speaks of the axis by its name.
    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)>;

    /// The parameters as graphs print them, `axes=[0]`; empty if there are none.
    fn params(&self) -> String {
        fields(self)
    }

    /// For each operand whether a program of this primitive alone may overwrite it.
    fn donated(&self) -> &[bool] {
        &[]
    }

    /// For each result the sharding that it must have; empty or none leaves it to the compiler.
    fn out_shardings(&self) -> &[Option<NamedSharding>] {
        &[]
    }

    /// The XLA flags that a program of this primitive alone is compiled with.
    fn compiler_options(&self) -> &[(String, OverrideValue)] {
        &[]
    }

    /// The mesh that the operation runs on, if it names one.
    fn mesh(&self) -> Option<&Mesh> {
        None
    }

    /// The name of a program of this primitive alone.
    fn entry_name(&self) -> &str {
        self.name()
    }

    /// The graph that this primitive calls, if it is nothing but a call of one.
    fn graph(&self) -> Option<&Arc<Graph>> {
        None
    }

    /// All graphs that this primitive runs: the one it calls, or its regions.
    fn graphs(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        self.graph().into_iter().collect()
    }

    /// The results, for operands that are there, with each run of one of the graphs by `run`: a loop
    /// opened, for a search by operations. None if there is nothing to open.
    ///
    /// # Errors
    /// What `run` or the backend says.
    fn open(&self, operands: &[Value], run: RunGraph<'_>) -> Result<Option<Values>> {
        let _ = (operands, run);
        Ok(None)
    }

    /// Whether the results cost less to work out again than to keep in memory: movement of data and
    /// simple arithmetic on elements, with one result.
    fn is_cheap(&self) -> bool {
        false
    }

    /// The functions of this process that the operation, or one in its graphs, calls. Such an
    /// operation is never left out.
    fn host_calls(&self) -> SmallVec<[Arc<HostCall>; 1]> {
        self.graphs().iter().flat_map(|graph| graph.host_calls()).cloned().collect()
    }

    /// The axes of `vmap` that the operation, or one in its graphs, names.
    fn axis_names(&self) -> SmallVec<[AxisName; 1]> {
        self.graphs().iter().flat_map(|graph| graph.axis_names()).cloned().collect()
    }

    /// The graph that this primitive calls, if it is a call that may be opened up in place.
    fn inline(&self) -> Option<&Arc<Graph>> {
        None
    }
}

/// The fields of a value as graphs print them, `axes=[0]`.
pub fn fields(value: &(impl Debug + ?Sized)) -> String {
    let text = format!("{value:?}");
    match text.split_once([' ', '(']) {
        Some((_, rest)) => rest.trim_matches(|c| "{}() ".contains(c)).replace(": ", "="),
        None => String::new(),
    }
}

/// Equality, hashing and cloning of primitives behind `dyn`; written once for all of them.
pub trait PrimitiveKey: Any {
    /// Whether both are of one type with equal parameters.
    fn dyn_eq(&self, other: &dyn Primitive) -> bool;
    /// A hash of type and parameters.
    fn dyn_hash(&self) -> u64;
    /// A copy behind an `Arc`.
    fn to_arc(&self) -> Arc<dyn Primitive>;
    /// The primitive as `Any`, to look for one certain type.
    fn as_any(&self) -> &dyn Any;
}

impl<T: Primitive + Clone + Eq + Hash> PrimitiveKey for T {
    fn dyn_eq(&self, other: &dyn Primitive) -> bool {
        other.as_any().downcast_ref::<T>().is_some_and(|o| o == self)
    }

    fn dyn_hash(&self) -> u64 {
        let mut hasher = FxHasher::default();
        TypeId::of::<T>().hash(&mut hasher);
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn to_arc(&self) -> Arc<dyn Primitive> {
        Arc::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
