//! Which values the linear part of a derivative keeps from the first run, and which it works out
//! again from those.
//!
//! What linearization needs of the first run is taken as it comes: `x * x`, `x * 0.5` and a constant
//! as large as `x` beside `x` itself. Kept as they stand such residuals are the memory of training,
//! and in a loop each is one more array that every step writes and reads. [`Split::lean`] keeps the
//! fewest bytes from which simple arithmetic and movement of data, the operations that say
//! [`is_cheap`](crate::trace::primitive::Primitive::is_cheap), give the rest: a minimum cut of the
//! graph of the first run between what is dear and what is needed.

use super::call::{Split, residuals_at};
use super::region::{graph_of, intern};
use crate::aval::Aval;
use crate::error::Result;
use crate::trace::graph::{Atom, Graph, Var};
use crate::trace::{Value, Values, bind};
use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;

fn var(atom: &Atom) -> Option<Var> {
    match atom {
        Atom::Var(v) => Some(*v),
        Atom::Literal(_) => None,
    }
}

/// For each variable the equation that defines it.
fn made_by(graph: &Graph) -> Vec<Option<usize>> {
    let mut made_by = vec![None; graph.var_count()];
    for (i, eqn) in graph.eqns().iter().enumerate() {
        eqn.outputs.iter().for_each(|&v| made_by[v as usize] = Some(i));
    }
    made_by
}

/// How some values of a graph come from its inputs and from those that are kept.
pub(super) struct Again<'g> {
    graph: &'g Graph,
    /// For each variable the one whose value it has under another name.
    root: Vec<Var>,
    /// The variables that are kept, in order; none is an input.
    pub(super) kept: Vec<Var>,
    /// For each equation whether it runs again.
    pub(super) runs: Vec<bool>,
}

impl<'g> Again<'g> {
    /// For the values of `atoms`: keeps those that `keep` allows, as late as it can.
    pub(super) fn new(
        graph: &'g Graph,
        root: Vec<Var>,
        atoms: &[Atom],
        keep: impl Fn(Var) -> bool,
    ) -> Again<'g> {
        let made_by = made_by(graph);
        let (mut kept, mut runs) = (Vec::new(), vec![false; graph.eqns().len()]);
        let mut open: Vec<Var> = atoms.iter().filter_map(var).collect();
        while let Some(v) = open.pop() {
            let v = root[v as usize];
            let Some(i) = made_by[v as usize] else { continue };
            if keep(v) {
                kept.push(v);
            } else if !std::mem::replace(&mut runs[i], true) {
                open.extend(graph.eqns()[i].inputs.iter().filter_map(var));
            }
        }
        kept.sort_unstable();
        kept.dedup();
        Again { graph, root, kept, runs }
    }

    /// The values of `atoms` for those of inputs and of the kept variables.
    fn run<'a>(
        &self,
        atoms: &[Atom],
        given: impl IntoIterator<Item = (&'a Var, &'a Value)>,
    ) -> Result<Values> {
        let mut env: Vec<Option<Value>> = vec![None; self.graph.var_count()];
        for (&v, value) in given {
            env[v as usize] = Some(value.clone());
        }
        for (eqn, _) in self.graph.eqns().iter().zip(&self.runs).filter(|(_, runs)| **runs) {
            let operands = self.read(&env, &eqn.inputs);
            for (&v, value) in eqn.outputs.iter().zip(bind(&*eqn.prim, &operands)?) {
                env[v as usize].get_or_insert(value);
            }
        }
        Ok(self.read(&env, atoms))
    }

    /// What `linear` gives, with what it takes after the tangents worked out from operands and kept
    /// values: a graph of the tangents, some operands and the kept values; and which operands.
    pub(super) fn linear(
        &self,
        linear: &Graph,
        residuals: &[Atom],
    ) -> Result<(Arc<Graph>, Vec<usize>)> {
        let (inputs, tangents) = (self.graph.inputs(), linear.inputs().len() - residuals.len());
        let vars = || inputs.iter().chain(&self.kept);
        let ts = linear.in_avals().into_iter().take(tangents);
        let avals: Vec<Aval> = ts.chain(vars().map(|&v| self.graph.aval(v).clone())).collect();
        let whole = graph_of(&avals, |xs| {
            let (ts, given) = xs.split_at(tangents);
            let residuals = self.run(residuals, vars().zip(given))?;
            linear.run(&ts.iter().cloned().chain(residuals).collect::<Values>())
        })?;
        Ok(without_unused(&whole, tangents..tangents + inputs.len()))
    }

    fn read(&self, env: &[Option<Value>], atoms: &[Atom]) -> Values {
        let read = |atom: &Atom| match atom {
            Atom::Literal(scalar) => Some(Value::scalar(*scalar)),
            Atom::Var(v) => env[self.root[*v as usize] as usize].clone(),
        };
        atoms.iter().filter_map(read).collect()
    }
}

/// What one more array costs beside its bytes.
const ARRAY: u64 = 64;

fn cost(aval: &Aval) -> u64 {
    ARRAY + (aval.size() * aval.dtype().size()) as u64
}

/// The variables from which cheap equations give the values of `atoms`, together with those inputs
/// that are `held` at any rate: those of the least bytes, and of equal ones the latest.
fn cut(graph: &Graph, atoms: &[Atom], held: impl Fn(Var) -> bool) -> Vec<Var> {
    /// More than all arrays have together.
    const NO_LIMIT: u64 = u64::MAX / 4;
    let made_by = made_by(graph);
    let mut net: DiGraph<(), u64> = DiGraph::new();
    let (source, sink) = (net.add_node(()), net.add_node(()));
    // A variable is an edge that its bytes go through, from what it is made of to what reads it.
    let mut ends: FxHashMap<Var, (NodeIndex, NodeIndex)> = FxHashMap::default();
    let mut open: Vec<(Var, NodeIndex)> = atoms.iter().filter_map(var).map(|v| (v, sink)).collect();
    while let Some((v, reader)) = open.pop() {
        let (_, to) = *ends.entry(v).or_insert_with(|| {
            let (from, to) = (net.add_node(()), net.add_node(()));
            net.add_edge(from, to, cost(graph.aval(v)));
            match made_by[v as usize].map(|i| &graph.eqns()[i]) {
                Some(eqn) if eqn.prim.is_cheap() => {
                    open.extend(eqn.inputs.iter().filter_map(var).map(|v| (v, from)));
                }
                None if held(v) => {}
                _ => {
                    net.add_edge(source, from, NO_LIMIT);
                }
            }
            (from, to)
        });
        net.update_edge(to, reader, NO_LIMIT);
    }
    let (_, flow) = dinics(&net, source, sink);
    // What still reaches the sink through edges that are not full.
    let mut late = vec![false; net.node_count()];
    let mut open = vec![sink];
    while let Some(node) = open.pop() {
        if std::mem::replace(&mut late[node.index()], true) {
            continue;
        }
        let into = net.edges_directed(node, petgraph::Incoming);
        open.extend(into.filter(|e| flow[e.id().index()] < *e.weight()).map(|e| e.source()));
        let out = net.edges(node);
        open.extend(out.filter(|e| flow[e.id().index()] > 0).map(|e| e.target()));
    }
    let is_cut = |(from, to): (NodeIndex, NodeIndex)| !late[from.index()] && late[to.index()];
    ends.into_iter().filter_map(|(v, ends)| is_cut(ends).then_some(v)).collect()
}

impl Split {
    /// The same split with residuals of the fewest bytes. `held` says which operands are there at
    /// any rate and cost nothing.
    ///
    /// # Errors
    /// What a rule says.
    pub(super) fn lean(self, held: impl Fn(usize) -> bool) -> Result<Split> {
        let Split { forward, linear, residuals, depends } = &self;
        let inputs = forward.inputs();
        let atoms = self.residual_atoms();
        let cut = cut(forward, &atoms, |v| inputs.iter().position(|i| *i == v).is_some_and(&held));
        let roots = (0..forward.var_count() as Var).collect();
        let again = Again::new(forward, roots, &atoms, |v| cut.contains(&v));
        if !again.runs.contains(&true) {
            return Ok(self);
        }
        debug_assert_eq!(atoms.len(), residuals.len(), "a value for each");
        let (linear, operands) = again.linear(linear, &atoms)?;
        let mut results = forward.outputs()[..depends.len()].to_vec();
        results.extend(again.kept.iter().map(|&v| Atom::Var(v)));
        let residuals = operands.into_iter().map(Some).chain(again.kept.iter().map(|_| None));
        Ok(Split {
            residuals: residuals.collect(),
            linear,
            depends: depends.clone(),
            forward: intern(forward.between(inputs.to_vec(), results)),
        })
    }

    /// What stands for each residual in the graph of the first run.
    pub(super) fn residual_atoms(&self) -> Vec<Atom> {
        let operands: Vec<Atom> = self.forward.inputs().iter().map(|&v| Atom::Var(v)).collect();
        let made = self.forward.outputs()[self.depends.len()..].iter().cloned();
        residuals_at(&self.residuals, &operands, made).collect()
    }
}

/// The graph without those inputs of the range that nothing reads, and the others' places in it.
fn without_unused(graph: &Graph, range: Range<usize>) -> (Arc<Graph>, Vec<usize>) {
    let mut read = vec![false; graph.var_count()];
    let atoms = graph.eqns().iter().flat_map(|eqn| &eqn.inputs).chain(graph.outputs());
    atoms.filter_map(var).for_each(|v| read[v as usize] = true);
    let used = |i: &usize| read[graph.inputs()[*i] as usize];
    let places: Vec<usize> = range.clone().filter(|i| used(i)).map(|i| i - range.start).collect();
    let stays = |i: &usize| !range.contains(i) || used(i);
    let inputs = (0..graph.inputs().len()).filter(stays).map(|i| graph.inputs()[i]).collect();
    (intern(graph.between(inputs, graph.outputs().to_vec())), places)
}
