//! Graphs as regions: what the operations of control flow share.
//!
//! A region that is recorded anew at each call has to be the same object each time, or its program
//! would be compiled each time: [`intern`] gives equal graphs one identity.

use crate::aval::{Aval, Avals};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::create::or_zeros;
use crate::ops::move_batch_axis;
use crate::trace::graph::{Atom, Graph};
use crate::trace::record::Recorder;
use crate::trace::{Value, Values};
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The graphs given so far that are still in use.
static INTERNED: Mutex<Option<FxHashMap<u64, Vec<Weak<Graph>>>>> = Mutex::new(None);

/// The graph itself, or one with the same equations that was given before.
pub fn intern(graph: Graph) -> Arc<Graph> {
    let mut table = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
    let list = table.get_or_insert_default().entry(hash(&graph)).or_default();
    list.retain(|weak| weak.strong_count() > 0);
    if let Some(found) = list.iter().filter_map(Weak::upgrade).find(|other| alike(other, &graph)) {
        return found;
    }
    let made = Arc::new(graph);
    list.push(Arc::downgrade(&made));
    made
}

fn hash(graph: &Graph) -> u64 {
    let mut hasher = FxHasher::default();
    graph.inputs().hash(&mut hasher);
    graph.in_avals().iter().for_each(|aval| hasher.write_u64(aval.hash_code()));
    for eqn in graph.eqns() {
        hasher.write_u64(eqn.prim.dyn_hash());
        eqn.outputs.hash(&mut hasher);
        for atom in &eqn.inputs {
            hasher.write_u64(if let Atom::Var(v) = atom { u64::from(*v) } else { u64::MAX });
        }
    }
    hasher.finish()
}

fn alike(a: &Graph, b: &Graph) -> bool {
    a.inputs() == b.inputs()
        && same_atoms(a.outputs(), b.outputs())
        && a.in_avals() == b.in_avals()
        && a.eqns().len() == b.eqns().len()
        && a.eqns().iter().zip(b.eqns()).all(|(x, y)| {
            x.outputs == y.outputs && same_atoms(&x.inputs, &y.inputs) && x.prim.dyn_eq(&*y.prim)
        })
}

/// Equality of atoms in which a NaN equals itself and zeros of different signs differ.
fn same_atoms(a: &[Atom], b: &[Atom]) -> bool {
    let same = |pair: (&Atom, &Atom)| match pair {
        (Atom::Var(v), Atom::Var(w)) => v == w,
        (Atom::Literal(x), Atom::Literal(y)) => x.dtype() == y.dtype() && x.bytes() == y.bytes(),
        _ => false,
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// The graph of `f` over operands of the given types.
///
/// # Errors
/// What `f` says; if `f` captures an array or writes a tensor from outside.
pub fn graph_of(ins: &[Aval], f: impl FnOnce(&[Value]) -> Result<Values>) -> Result<Arc<Graph>> {
    let recorded = Recorder::record("region", ins, f)?;
    if !recorded.hidden.is_empty() || !recorded.written.is_empty() {
        let text = "the function uses a value from outside; a region takes it as an operand";
        return Err(Error::new(ErrorKind::Value, "region", text));
    }
    Ok(intern(recorded.graph))
}

/// The types with one more axis of `size` in front.
pub(super) fn stacked(size: usize, aval: &Aval) -> Aval {
    aval.with_shape(aval.shape().insert(0, size))
}

/// The items for which the flag holds.
pub(super) fn chosen<T: Clone>(items: &[T], flags: &[bool]) -> Vec<T> {
    items.iter().zip(flags).filter(|(_, flag)| **flag).map(|(item, _)| item.clone()).collect()
}

/// One value for each type for which `wanted` holds: the next of `made` where `has` holds, zeros
/// elsewhere.
pub(super) fn padded(
    avals: &[Aval],
    wanted: &[bool],
    has: &[bool],
    made: impl IntoIterator<Item = Value>,
) -> Result<Values> {
    let mut made = made.into_iter();
    let mut out = Values::new();
    for ((aval, wanted), has) in avals.iter().zip(wanted).zip(has) {
        let value = if *has { made.next() } else { None };
        if *wanted {
            out.push(or_zeros(&value, aval)?);
        }
    }
    Ok(out)
}

/// The values with the mapped axis in front where `mapped` holds.
pub(super) fn in_front(
    size: usize,
    values: &[Value],
    axes: &[Option<usize>],
    mapped: &[bool],
) -> Result<Values> {
    let place = |((x, axis), mapped): ((&Value, &Option<usize>), &bool)| match mapped {
        true => move_batch_axis(size, x, *axis, 0),
        false => Ok(x.clone()),
    };
    values.iter().zip(axes).zip(mapped).map(place).collect()
}

/// The mapped axis of what [`in_front`] gives.
pub(super) fn front(mapped: &[bool]) -> Vec<Option<usize>> {
    mapped.iter().map(|&m| m.then_some(0)).collect()
}

/// The types over a batch in front where `mapped` holds.
pub(super) fn batch_avals(size: usize, avals: &[Aval], mapped: &[bool]) -> Avals {
    let one = |(aval, mapped): (&Aval, &bool)| match mapped {
        true => stacked(size, aval),
        false => aval.clone(),
    };
    avals.iter().zip(mapped).map(one).collect()
}

/// The error of operands that a region does not take.
#[cold]
pub(super) fn misfit(op: &'static str, what: &str, wants: &[Aval], have: &[Aval]) -> Error {
    Error::new(ErrorKind::Shape, op, format!("{what} {wants:?}, not {have:?}"))
}
