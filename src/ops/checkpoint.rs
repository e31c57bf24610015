//! `checkpoint`: a call whose intermediate values reverse mode works out again instead of keeping
//! them; `checkpoint_name`, which names those to keep; and the [`Policy`] that chooses.
//!
//! The derivative of a checkpointed call runs the function as it stands, and is one more checkpointed
//! call that works out from the operands what is linear in the tangents. The transpose of that one is
//! a third, behind an `optimization_barrier`, so that the compiler can neither share the values with
//! the first run nor make them before the cotangents are there.

use super::call::{Call, batch_key, batched, key, places, run_open, split, transposed};
use super::conv::ConvGeneral;
use super::dot::DotGeneral;
use super::optimization_barrier;
use super::region::{graph_of, intern, misfit};
use super::residuals::Again;
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::hlo::Val;
use crate::mesh::Mesh;
use crate::trace::batch::BatchAxis;
use crate::trace::graph::{Atom, Graph, Var};
use crate::trace::lower::Lowering;
use crate::trace::primitive::{BatchAxes, Operand, Primitive, Tangent, Tangents};
use crate::trace::{Value, Values, bind, bind_one, is_eager};
use smallvec::{SmallVec, smallvec};
use std::fmt;
use std::sync::Arc;

/// Which intermediate values of a checkpointed function are kept for its derivative; the others are
/// worked out again. The arguments are always there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// None: least memory, most work.
    #[default]
    Nothing,
    /// All that the derivative needs, as without `checkpoint`.
    Everything,
    /// The results of products of matrices and of convolutions.
    Dots,
    /// The results of products of matrices without batch axes: those with the weights of a layer,
    /// not those of attention.
    DotsWithNoBatchDims,
    /// The values that [`checkpoint_name`] gave one of these names.
    Names(Vec<Arc<str>>),
    /// All values but those that [`checkpoint_name`] gave one of these names.
    AllButNames(Vec<Arc<str>>),
    /// What either of two policies keeps.
    Either(Box<[Policy; 2]>),
}

fn names<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Vec<Arc<str>> {
    let mut names: Vec<Arc<str>> = names.into_iter().map(|n| n.as_ref().into()).collect();
    names.sort();
    names.dedup();
    names
}

impl Policy {
    /// [`Policy::Names`].
    pub fn names<S: AsRef<str>>(list: impl IntoIterator<Item = S>) -> Policy {
        Policy::Names(names(list))
    }

    /// [`Policy::AllButNames`].
    pub fn all_but_names<S: AsRef<str>>(list: impl IntoIterator<Item = S>) -> Policy {
        Policy::AllButNames(names(list))
    }

    /// Keeps what this policy or `other` keeps.
    #[must_use]
    pub fn or(self, other: Policy) -> Policy {
        Policy::Either(Box::new([self, other]))
    }

    /// For each variable of a graph whether its value is kept. `root` gives the variable whose value
    /// it has under another name.
    fn kept(&self, graph: &Graph, root: &[Var]) -> Vec<bool> {
        let all_but = matches!(self, Policy::Everything | Policy::AllButNames(_));
        let mut kept = vec![all_but; graph.var_count()];
        if let Policy::Either(both) = self {
            let [a, b] = both.each_ref().map(|policy| policy.kept(graph, root));
            return a.into_iter().zip(b).map(|(a, b)| a || b).collect();
        }
        for eqn in graph.eqns() {
            let any = eqn.prim.as_any();
            let named = any.downcast_ref::<CheckpointName>().map(|prim| &prim.name);
            let says = match self {
                Policy::Dots => (any.is::<DotGeneral>() || any.is::<ConvGeneral>()).then_some(true),
                Policy::DotsWithNoBatchDims => any
                    .downcast_ref::<DotGeneral>()
                    .is_some_and(|dot| dot.dims.lhs_batch.is_empty())
                    .then_some(true),
                Policy::Names(list) => named.filter(|n| list.contains(n)).map(|_| true),
                Policy::AllButNames(list) => named.filter(|n| list.contains(n)).map(|_| false),
                _ => None,
            };
            if let Some(says) = says {
                eqn.outputs.iter().for_each(|&v| kept[root[v as usize] as usize] = says);
            }
        }
        kept
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Nothing => f.write_str("nothing"),
            Policy::Everything => f.write_str("everything"),
            Policy::Dots => f.write_str("dots"),
            Policy::DotsWithNoBatchDims => f.write_str("dots_with_no_batch_dims"),
            Policy::Names(names) => write!(f, "names({})", names.join(", ")),
            Policy::AllButNames(names) => write!(f, "all_but_names({})", names.join(", ")),
            Policy::Either(both) => write!(f, "{} or {}", both[0], both[1]),
        }
    }
}

/// For each variable the one that holds its value under no name: a name makes no new value.
fn roots(graph: &Graph) -> Vec<Var> {
    let mut root: Vec<Var> = (0..graph.var_count() as Var).collect();
    for eqn in graph.eqns().iter().filter(|eqn| eqn.prim.as_any().is::<CheckpointName>()) {
        if let (Some(Atom::Var(from)), Some(&to)) = (eqn.inputs.first(), eqn.outputs.first()) {
            root[to as usize] = root[*from as usize];
        }
    }
    root
}

/// The primitive `checkpoint`: a graph applied to its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    /// The graph.
    pub graph: Arc<Graph>,
    /// Which values the derivative keeps.
    pub policy: Policy,
    /// Whether the operands pass a barrier first: it runs in reverse mode.
    pub barrier: bool,
}

/// The derivative of a checkpointed call.
struct Parts {
    /// From the operands to the results, then those kept values that are no result.
    forward: Arc<Graph>,
    /// Where each kept value stands among the results of `forward`.
    kept: Vec<usize>,
    /// From the active tangents, some operands and the kept values to the tangents of the results
    /// that have one.
    linear: Arc<Graph>,
    /// Which operands `linear` reads.
    operands: Vec<usize>,
    /// Whether `linear` works anything out again.
    again: bool,
    /// Which results have a tangent.
    depends: Vec<bool>,
}

impl Checkpoint {
    fn with(&self, graph: Arc<Graph>, barrier: bool) -> Checkpoint {
        Checkpoint { graph, barrier, policy: self.policy.clone() }
    }

    /// Writes the graph as one branch of a `case` whose index the compiler does not know.
    ///
    /// The CPU's compiler drops barriers before it puts operations in order, and would then run all
    /// of them as early as it can. What is in a branch it keeps together.
    fn lower_as_branch(
        &self,
        cx: &mut Lowering,
        operands: &[Val],
        outs: &[Aval],
    ) -> Result<Vec<Val>> {
        let mut all = vec![cx.constant(Scalar::new(0i32), &Aval::scalar(DType::I32))];
        all.extend(operands.iter().cloned());
        let avals: Avals = all.iter().map(|v| v.aval().clone()).collect();
        let held = cx.op("stablehlo.optimization_barrier", &all, "", &avals);
        let (index, held) = held.split_at(1);
        let run = cx.region(&[], |cx, _| cx.inline(&self.graph, held))?;
        let other = cx.region(&[], |cx, _| {
            Ok(outs.iter().map(|aval| cx.constant(Scalar::zero(aval.dtype()), aval)).collect())
        })?;
        Ok(cx.op_with_regions("stablehlo.case", index, "", &[run, other], outs))
    }

    fn parts(&self, active: &[bool]) -> Result<Parts> {
        let ins = self.graph.in_avals();
        // Calls are opened up, so that the policy sees what is in them.
        let flat = graph_of(&ins, |xs| run_open(&self.graph, xs))?;
        let split = split(&flat, active)?;
        let (forward, residuals) = (&split.forward, split.residual_atoms());
        let root = roots(forward);
        let may_keep = self.policy.kept(forward, &root);
        let again = Again::new(forward, root, &residuals, |v| may_keep[v as usize]);
        let mut results = forward.outputs()[..split.depends.len()].to_vec();
        let mut kept = Vec::new();
        for &v in &again.kept {
            let place = results.iter().position(|atom| *atom == Atom::Var(v));
            kept.push(place.unwrap_or(results.len()));
            if place.is_none() {
                results.push(Atom::Var(v));
            }
        }
        let (linear, operands) = again.linear(&split.linear, &residuals)?;
        let again = again.runs.contains(&true);
        let mut forward = intern(forward.between(forward.inputs().to_vec(), results));
        if self.barrier {
            forward = graph_of(&ins, |xs| forward.run(&optimization_barrier(xs)?))?;
        }
        Ok(Parts { forward, kept, linear, operands, again, depends: split.depends })
    }
}

impl Primitive for Checkpoint {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        let wants = self.graph.in_avals();
        if wants.as_slice() != operands {
            return Err(misfit("checkpoint", "takes", &wants, operands));
        }
        Ok(self.graph.out_avals())
    }

    fn lower(&self, cx: &mut Lowering, operands: &[Val], outs: &[Aval]) -> Result<Vec<Val>> {
        if !self.barrier || operands.is_empty() {
            return cx.inline(&self.graph, operands);
        }
        if cx.platform() == "cpu" {
            return self.lower_as_branch(cx, operands, outs);
        }
        let avals: Avals = operands.iter().map(|v| v.aval().clone()).collect();
        let held = cx.op("stablehlo.optimization_barrier", operands, "", &avals);
        cx.inline(&self.graph, &held)
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        self.graph.host(operands)
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        let active: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let barrier = usize::from(self.barrier);
        let numbers = active.iter().map(|&a| usize::from(a)).chain([barrier]);
        // Equal policies, and no others, have equal texts.
        let policy = format!("{:?}", self.policy);
        let numbers = numbers.chain(policy.bytes().map(usize::from));
        let made = self.graph.derived(key("checkpoint_split", numbers), || self.parts(&active))?;
        let parts = &*made;
        let mut outs = bind(&Call::new("checkpoint", Arc::clone(&parts.forward), true), primals)?;
        let kept: Values = parts.kept.iter().map(|&i| outs[i].clone()).collect();
        outs.truncate(parts.depends.len());
        if !parts.depends.contains(&true) {
            return Ok((outs, parts.depends.iter().map(|_| None).collect()));
        }
        let mut operands: Values = tangents.iter().flatten().cloned().collect();
        operands.extend(parts.operands.iter().map(|&i| primals[i].clone()).chain(kept));
        let linear = Arc::clone(&parts.linear);
        let mut ts = match parts.again {
            true => bind(&self.with(linear, false), &operands)?.into_iter(),
            false => bind(&Call::new("checkpoint", linear, true), &operands)?.into_iter(),
        };
        let ts = parts.depends.iter().map(|d| if *d { ts.next() } else { None }).collect();
        Ok((outs, ts))
    }

    fn transpose(&self, cts: &[Tangent], operands: &[Operand]) -> Result<Tangents> {
        let linear: Vec<bool> = operands.iter().map(Operand::is_linear).collect();
        let has: Vec<bool> = cts.iter().map(Option::is_some).collect();
        let numbers = linear.iter().chain(&has).map(|&b| usize::from(b));
        let made = self
            .graph
            .derived(key("transpose", numbers), || transposed(&self.graph, &linear, &has))?;
        let known = operands.iter().filter_map(|o| o.known().cloned());
        let inputs: Values = known.chain(cts.iter().flatten().cloned()).collect();
        let mut outs = bind(&self.with(Arc::clone(&made.0), true), &inputs)?.into_iter();
        let mut nonzero = made.1.iter();
        let take = |is_linear: bool| {
            let there = is_linear && *nonzero.next().unwrap_or(&false);
            if there { outs.next() } else { None }
        };
        Ok(linear.into_iter().map(take).collect())
    }

    fn batch(
        &self,
        batch: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let ins: Avals = operands.iter().map(|v| v.aval().unsharded()).collect();
        let batch = batch.seen_by(self.graphs());
        let key = batch_key("batch", &batch, places(axes));
        let made = self.graph.derived(key, || batched(&self.graph, &batch, &ins, axes))?;
        let outs = bind(&self.with(Arc::clone(&made.0), self.barrier), operands)?;
        Ok((outs, made.1.iter().copied().collect()))
    }

    fn params(&self) -> String {
        format!("policy={}, barrier={}, graph={}", self.policy, self.barrier, self.graph)
    }

    fn graphs(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        smallvec![&self.graph]
    }

    fn mesh(&self) -> Option<&Mesh> {
        self.graph.mesh()
    }
}

/// The primitive `checkpoint_name`: its operand, under a name that a [`Policy`] may speak of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckpointName {
    /// The name.
    pub name: Arc<str>,
}

impl Primitive for CheckpointName {
    fn name(&self) -> &'static str {
        "checkpoint_name"
    }

    fn infer(&self, operands: &[Aval]) -> Result<Avals> {
        Ok(smallvec![operands[0].unsharded()])
    }

    fn lower(&self, _: &mut Lowering, operands: &[Val], _: &[Aval]) -> Result<Vec<Val>> {
        Ok(operands.to_vec())
    }

    fn host(&self, operands: &[HostArray], _: &[Aval]) -> Result<Vec<HostArray>> {
        Ok(operands.to_vec())
    }

    fn jvp(&self, primals: &[Value], tangents: &[Tangent]) -> Result<(Values, Tangents)> {
        // The tangent is another value and has no name.
        let x = checkpoint_name(&primals[0], &self.name)?;
        Ok((smallvec![x], tangents.iter().cloned().collect()))
    }

    fn transpose(&self, cts: &[Tangent], _: &[Operand]) -> Result<Tangents> {
        Ok(cts.iter().cloned().collect())
    }

    fn batch(
        &self,
        _: &BatchAxis,
        operands: &[Value],
        axes: &[Option<usize>],
    ) -> Result<(Values, BatchAxes)> {
        let x = checkpoint_name(&operands[0], &self.name)?;
        Ok((smallvec![x], axes.iter().copied().collect()))
    }

    fn params(&self) -> String {
        format!("name={}", self.name)
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

/// `x`, under a name that a [`Policy`] may speak of. Source: `checkpoint_name` of JAX.
///
/// # Errors
/// If the backend fails.
pub fn checkpoint_name(x: &Value, name: &str) -> Result<Value> {
    if is_eager() {
        return Ok(x.clone());
    }
    bind_one(&CheckpointName { name: name.into() }, std::slice::from_ref(x))
}
