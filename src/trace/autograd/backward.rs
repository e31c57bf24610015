//! Going over the graph backwards.

use super::node::{Edge, Leaf, Node, Watch, lock, read_slot};
use super::{GradMode, Rules, primal};
use crate::aval::Aval;
use crate::error::{Error, ErrorKind, Result};
use crate::trace::primitive::{Tangent, Tangents};
use crate::trace::{Value, current, source};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A backward pass.
#[derive(Debug)]
pub struct Backward<'a> {
    /// The values to differentiate, and their cotangents.
    pub roots: Vec<(Edge, Value)>,
    /// Whose gradients are asked for; none: they are added to those of all leaves.
    pub inputs: Option<&'a [Edge]>,
    /// Whether another pass may follow.
    pub retain_graph: bool,
    /// Whether the gradients may be differentiated.
    pub create_graph: bool,
    /// The operations.
    pub rules: Rules,
}

impl Backward<'_> {
    /// Runs the pass: the gradients of `inputs`.
    ///
    /// # Errors
    /// If a part of the graph is freed; what a rule or a hook says.
    pub fn run(&self) -> Result<Tangents> {
        let _mode = GradMode::set(self.create_graph);
        if let Some(trace) = current()
            && let Some(recorder) = trace.interpreter().recorder()
        {
            recorder.note_backward();
        }
        let needed = self.inputs.map(|inputs| self.needed(inputs));
        let mut found: Tangents = self.inputs.unwrap_or_default().iter().map(|_| None).collect();
        let mut pending = Pending::default();
        for (edge, ct) in &self.roots {
            self.add(&mut pending, edge, ct)?;
        }
        while let Some((_, (node, mut cts))) = pending.pop_last() {
            node.watch(&mut cts)?;
            for (input, found) in self.inputs.unwrap_or_default().iter().zip(&mut found) {
                if Arc::ptr_eq(&input.node, &node) {
                    *found = cts.get(input.index).cloned().flatten();
                }
            }
            if let (Some(leaf), None, Some(Some(ct))) = (node.as_leaf(), self.inputs, cts.first()) {
                self.accumulate(leaf, ct)?;
            }
            if needed.as_ref().is_none_or(|needed| needed.contains(&node.id)) {
                self.step(&mut pending, needed.as_ref(), &node, &cts)?;
            }
        }
        Ok(found)
    }

    /// The nodes between the roots and the inputs; those of the inputs alone are not among them.
    fn needed(&self, inputs: &[Edge]) -> FxHashSet<u64> {
        let mut nodes = BTreeMap::new();
        let mut open: Vec<Arc<Node>> =
            self.roots.iter().map(|(e, _)| Arc::clone(&e.node)).collect();
        while let Some(node) = open.pop() {
            if nodes.contains_key(&node.id) {
                continue;
            }
            let record = node.record();
            open.extend(record.iter().flat_map(|r| r.edges()).map(|e| Arc::clone(&e.node)));
            nodes.insert(node.id, record);
        }
        let mut needed = FxHashSet::default();
        let wanted = |id: u64| inputs.iter().any(|input| input.node.id == id);
        for (id, record) in nodes {
            let mut edges = record.iter().flat_map(|r| r.edges());
            if edges.any(|e| wanted(e.node.id) || needed.contains(&e.node.id)) {
                needed.insert(id);
            }
        }
        needed
    }

    fn step(
        &self,
        pending: &mut Pending,
        needed: Option<&FxHashSet<u64>>,
        node: &Arc<Node>,
        cts: &[Tangent],
    ) -> Result<()> {
        if node.as_leaf().is_some() {
            return Ok(());
        }
        let record = node.record().ok_or_else(freed)?;
        if !self.retain_graph && record.has_residuals() {
            node.free();
        }
        let wanted = |edge: &Edge| match (needed, self.inputs) {
            (Some(needed), Some(inputs)) => {
                needed.contains(&edge.node.id) || inputs.iter().any(|i| i.same(edge))
            }
            _ => true,
        };
        let pull = || record.pull(cts, self.create_graph, self.rules);
        let pulled = source::with(node.at.get().copied(), pull)?;
        for (edge, ct) in record.edges().zip(pulled) {
            if let Some(ct) = ct.filter(|_| wanted(edge)) {
                self.add(pending, edge, &ct)?;
            }
        }
        Ok(())
    }

    fn add(&self, pending: &mut Pending, edge: &Edge, ct: &Value) -> Result<()> {
        let entry = pending.entry(edge.node.id);
        let (_, cts) = entry.or_insert_with(|| (Arc::clone(&edge.node), Tangents::new()));
        while cts.len() <= edge.index {
            cts.push(None);
        }
        let ct = if self.create_graph { ct.clone() } else { primal(ct) };
        cts[edge.index] = Some(match cts[edge.index].take() {
            Some(sum) => (self.rules.arithmetic.add)(&sum, &ct)?,
            None => ct,
        });
        Ok(())
    }

    fn accumulate(&self, leaf: &Leaf, ct: &Value) -> Result<()> {
        let ct = match &leaf.sharding {
            Some(sharding) if ct.aval().sharding() != Some(sharding) => {
                (self.rules.place)(ct, sharding)?
            }
            _ => ct.clone(),
        };
        let sum = match read_slot(&leaf.grad)? {
            Some(old) => (self.rules.arithmetic.add)(&old, &ct)?,
            None => ct,
        };
        leaf.grad.put(sum);
        Ok(())
    }
}

type Pending = BTreeMap<u64, (Arc<Node>, Tangents)>;

impl Node {
    /// Shows the gradients to those who asked, hooks first.
    fn watch(&self, cts: &mut [Tangent]) -> Result<()> {
        if lock(&self.watchers).is_empty() {
            return Ok(());
        }
        // Not under the lock: a hook may register another.
        let watchers: Vec<(usize, Watch)> =
            lock(&self.watchers).iter().map(|w| (w.index, w.watch.clone())).collect();
        for (index, watch) in &watchers {
            if let (Watch::Hook(hook), Some(Some(ct))) = (watch, cts.get_mut(*index))
                && let Some(new) = hook(ct)?
            {
                check_replaced(ct.aval(), new.aval())?;
                *ct = new;
            }
        }
        for (index, watch) in watchers {
            if let (Watch::Retain(slot), Some(Some(ct))) = (watch, cts.get(index)) {
                slot.put(ct.clone());
            }
        }
        Ok(())
    }
}

fn check_replaced(old: &Aval, new: &Aval) -> Result<()> {
    if old.unsharded() == new.unsharded() {
        return Ok(());
    }
    let text = format!("a hook gave {new} in place of a gradient {old}");
    let kind = if old.dtype() == new.dtype() { ErrorKind::Shape } else { ErrorKind::DType };
    Err(Error::new(kind, "backward", text))
}

#[cold]
fn freed() -> Error {
    let text = "a part of the graph was freed by an earlier backward pass";
    Error::new(ErrorKind::Autograd, "backward", text).help(
        "give the earlier pass `retain_graph: Some(true)`, or run the forward computation again",
    )
}
