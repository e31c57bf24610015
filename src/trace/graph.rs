//! [`Graph`]: typed SSA, JAX's jaxpr. It prints as one and checks itself.

use super::batch::{AxisName, BatchAxis};
use super::primitive::Primitive;
use super::source::{self, Place};
use super::{Value, Values, bind};
use crate::array::Array;
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::host_call::HostCall;
use crate::dtype::Scalar;
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::Mesh;
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Applies a primitive to operands in place of [`bind`].
pub type Apply<'f> = dyn FnMut(&dyn Primitive, &[Value]) -> Result<Values> + 'f;

/// The number of a variable: its place in the graph's environment.
pub type Var = u32;

/// An operand of an equation.
#[derive(Clone, Debug, PartialEq)]
pub enum Atom {
    /// A variable.
    Var(Var),
    /// A number that stands in the program itself.
    Literal(Scalar),
}

/// One application of a primitive.
#[derive(Clone, Debug)]
pub struct Eqn {
    /// The primitive.
    pub prim: Arc<dyn Primitive>,
    /// Its operands.
    pub inputs: SmallVec<[Atom; 2]>,
    /// The variables that it defines.
    pub outputs: SmallVec<[Var; 1]>,
    /// Where in the user's source it comes from, if that is known. It takes no part in equality.
    pub at: Option<Place>,
}

/// A closed program: inputs, equations in order, outputs. Constants are inputs.
///
/// Two graphs are equal if they are the same object; what is derived from a graph (its derivative,
/// its transpose, its batched form) is kept with it, so deriving twice gives the same object.
pub struct Graph {
    id: u64,
    inputs: Vec<Var>,
    eqns: Vec<Eqn>,
    outputs: Vec<Atom>,
    avals: Vec<Aval>,
    mesh: Option<Mesh>,
    axis_names: Vec<AxisName>,
    /// The functions of this process that equations call.
    host_calls: Vec<Arc<HostCall>>,
    derived: Mutex<Vec<(DerivedKey, Arc<dyn Any + Send + Sync>)>>,
}

/// Names one thing that is derived from a graph: which, and for which operands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedKey {
    /// `jvp`, `transpose`, `batch`, …
    pub what: &'static str,
    /// Numbers that say for which operands.
    pub numbers: Vec<usize>,
    /// The axis that `vmap` adds, for what is derived for a batch.
    pub batch: Option<BatchAxis>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl Graph {
    /// The graph with the given parts; `avals` has one entry for each variable. Equations that no
    /// output needs are left out.
    pub fn new(inputs: Vec<Var>, eqns: Vec<Eqn>, outputs: Vec<Atom>, avals: Vec<Aval>) -> Graph {
        let mesh = eqns.iter().find_map(|eqn| eqn.prim.mesh().cloned());
        let mut graph = Graph {
            mesh,
            axis_names: Vec::new(),
            host_calls: Vec::new(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            inputs,
            eqns,
            outputs,
            avals,
            derived: Mutex::default(),
        };
        graph.drop_dead();
        graph.note_axis_names();
        graph
    }

    fn drop_dead(&mut self) {
        for eqn in &self.eqns {
            self.host_calls.extend(eqn.prim.host_calls());
        }
        let mut live = vec![false; self.avals.len()];
        let mark = |live: &mut Vec<bool>, atom: &Atom| {
            if let Atom::Var(v) = atom {
                live[*v as usize] = true;
            }
        };
        self.outputs.iter().for_each(|a| mark(&mut live, a));
        let mut keep = vec![false; self.eqns.len()];
        for (i, eqn) in self.eqns.iter().enumerate().rev() {
            // What has an effect is not left out; most graphs have nothing of the kind.
            keep[i] = eqn.outputs.iter().any(|&v| live[v as usize])
                || (!self.host_calls.is_empty() && !eqn.prim.host_calls().is_empty());
            if keep[i] {
                eqn.inputs.iter().for_each(|a| mark(&mut live, a));
            }
        }
        let mut keep = keep.into_iter();
        self.eqns.retain(|_| keep.next().unwrap_or(true));
    }

    /// The functions of this process that the graph calls.
    pub fn host_calls(&self) -> &[Arc<HostCall>] {
        &self.host_calls
    }

    fn note_axis_names(&mut self) {
        for eqn in &self.eqns {
            for name in eqn.prim.axis_names() {
                if !self.axis_names.contains(&name) {
                    self.axis_names.push(name);
                }
            }
        }
    }

    /// The axes of `vmap` that operations of this graph name.
    pub fn axis_names(&self) -> &[AxisName] {
        &self.axis_names
    }

    /// A number that no other graph of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The mesh that an operation names, if one does.
    pub fn mesh(&self) -> Option<&Mesh> {
        self.mesh.as_ref()
    }

    /// The variables that operands are bound to.
    pub fn inputs(&self) -> &[Var] {
        &self.inputs
    }

    /// The equations, in order.
    pub fn eqns(&self) -> &[Eqn] {
        &self.eqns
    }

    /// The results.
    pub fn outputs(&self) -> &[Atom] {
        &self.outputs
    }

    /// The number of variables.
    pub fn var_count(&self) -> usize {
        self.avals.len()
    }

    /// The types of all variables.
    pub fn avals(&self) -> &[Aval] {
        &self.avals
    }

    /// The same equations between other inputs and outputs, but for those that no output needs.
    #[must_use]
    pub fn between(&self, inputs: Vec<Var>, outputs: Vec<Atom>) -> Graph {
        Graph::new(inputs, self.eqns.clone(), outputs, self.avals.clone())
    }

    /// The type of a variable.
    pub fn aval(&self, var: Var) -> &Aval {
        &self.avals[var as usize]
    }

    /// The type of an atom.
    pub fn atom_aval(&self, atom: &Atom) -> Aval {
        match atom {
            Atom::Var(v) => self.aval(*v).clone(),
            Atom::Literal(s) => Aval::scalar(s.dtype()),
        }
    }

    /// The types of the inputs.
    pub fn in_avals(&self) -> Avals {
        self.inputs.iter().map(|&v| self.aval(v).clone()).collect()
    }

    /// The types of the outputs.
    pub fn out_avals(&self) -> Avals {
        self.outputs.iter().map(|a| self.atom_aval(a)).collect()
    }

    /// Runs `make` once for each `key`, and gives the same result ever after.
    pub fn derived<T: Any + Send + Sync>(
        &self,
        key: DerivedKey,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let find = |list: &[(DerivedKey, Arc<dyn Any + Send + Sync>)]| {
            let found = list.iter().find(|(k, _)| *k == key)?.1.clone();
            found.downcast::<T>().ok()
        };
        if let Some(found) = find(&lock(&self.derived)) {
            return Ok(found);
        }
        // Not under the lock: deriving may derive from the same graph again.
        let made = Arc::new(make()?);
        let mut list = lock(&self.derived);
        if let Some(found) = find(&list) {
            return Ok(found);
        }
        list.push((key, Arc::clone(&made) as Arc<dyn Any + Send + Sync>));
        Ok(made)
    }

    /// Binds every equation in order: runs the graph under whatever transforms are under way.
    ///
    /// # Errors
    /// What a rule says.
    pub fn run(&self, operands: &[Value]) -> Result<Values> {
        self.run_by(operands, &mut |prim, inputs| bind(prim, inputs))
    }

    /// Applies `apply` to every equation's primitive and operands, in order.
    ///
    /// # Errors
    /// What `apply` says.
    pub fn run_by(&self, operands: &[Value], apply: &mut Apply<'_>) -> Result<Values> {
        let mut env: Vec<Option<Value>> = vec![None; self.avals.len()];
        for (&var, value) in self.inputs.iter().zip(operands) {
            env[var as usize] = Some(value.clone());
        }
        for eqn in &self.eqns {
            let inputs = self.read_all(&env, &eqn.inputs)?;
            let outs = source::with(eqn.at, || apply(&*eqn.prim, &inputs))?;
            for (&var, value) in eqn.outputs.iter().zip(outs) {
                env[var as usize] = Some(value);
            }
        }
        self.read_all(&env, &self.outputs)
    }

    fn read_all(&self, env: &[Option<Value>], atoms: &[Atom]) -> Result<Values> {
        let read = |atom: &Atom| match atom {
            Atom::Literal(s) => Ok(Value::Array(Array::literal(*s))),
            Atom::Var(v) => env[*v as usize].clone().ok_or_else(|| self.undefined(*v)),
        };
        atoms.iter().map(read).collect()
    }

    #[cold]
    fn undefined(&self, var: Var) -> Error {
        let text = format!("variable {} is used before it is defined", name(var));
        Error::new(ErrorKind::Format, "graph", text)
    }

    /// Runs the graph on host arrays with the primitives' host rules.
    ///
    /// # Errors
    /// What a host rule says.
    pub fn host(&self, operands: &[HostArray]) -> Result<Vec<HostArray>> {
        let mut env: Vec<Option<HostArray>> = vec![None; self.avals.len()];
        for (&var, value) in self.inputs.iter().zip(operands) {
            env[var as usize] = Some(value.clone());
        }
        let last = self.last_uses();
        let read = |env: &[Option<HostArray>], atom: &Atom| match atom {
            Atom::Literal(s) => Ok(HostArray::full(*s, &crate::shape::Shape::scalar())),
            Atom::Var(v) => env[*v as usize].clone().ok_or_else(|| self.undefined(*v)),
        };
        for (i, eqn) in self.eqns.iter().enumerate() {
            let inputs = eqn.inputs.iter().map(|a| read(&env, a)).collect::<Result<Vec<_>>>()?;
            let outs: Avals = eqn.outputs.iter().map(|&v| self.aval(v).clone()).collect();
            let results = eqn.prim.host(&inputs, &outs)?;
            for (&var, value) in eqn.outputs.iter().zip(results) {
                env[var as usize] = Some(value);
            }
            for atom in &eqn.inputs {
                if let Atom::Var(v) = atom
                    && last[*v as usize] == i
                {
                    env[*v as usize] = None;
                }
            }
        }
        self.outputs.iter().map(|a| read(&env, a)).collect()
    }

    /// For each variable the last equation that reads it; past the end for outputs.
    fn last_uses(&self) -> Vec<usize> {
        let mut last = vec![0; self.avals.len()];
        for (i, eqn) in self.eqns.iter().enumerate() {
            for atom in &eqn.inputs {
                if let Atom::Var(v) = atom {
                    last[*v as usize] = i;
                }
            }
        }
        for atom in &self.outputs {
            if let Atom::Var(v) = atom {
                last[*v as usize] = usize::MAX;
            }
        }
        last
    }

    /// Checks that variables are defined once and before use, and that every equation's results
    /// have the types that its primitive infers.
    ///
    /// # Errors
    /// Names the first equation that does not.
    pub fn check(&self) -> Result<()> {
        let mut defined = vec![false; self.avals.len()];
        let fail = |text: String| Err(Error::new(ErrorKind::Format, "graph", text));
        for &v in &self.inputs {
            if std::mem::replace(&mut defined[v as usize], true) {
                return fail(format!("input {} stands twice", name(v)));
            }
        }
        let ready = |defined: &[bool], atoms: &[Atom]| {
            atoms.iter().all(|a| {
                matches!(a, Atom::Literal(_)) || matches!(a, Atom::Var(v) if defined[*v as usize])
            })
        };
        for eqn in &self.eqns {
            if !ready(&defined, &eqn.inputs) {
                return fail(format!(
                    "`{}` reads a variable before it is defined",
                    eqn.prim.name()
                ));
            }
            let ins: Avals = eqn.inputs.iter().map(|a| self.atom_aval(a)).collect();
            let outs = eqn.prim.infer(&ins)?;
            let have: Avals = eqn.outputs.iter().map(|&v| self.aval(v).clone()).collect();
            if outs != have {
                return fail(format!("`{}` gives {outs:?}, not {have:?}", eqn.prim.name()));
            }
            for &v in &eqn.outputs {
                if std::mem::replace(&mut defined[v as usize], true) {
                    return fail(format!("variable {} is defined twice", name(v)));
                }
            }
        }
        if ready(&defined, &self.outputs) {
            Ok(())
        } else {
            fail("an output is not defined".into())
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.id == other.id
    }
}

impl Eq for Graph {}

impl Hash for Graph {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.id);
    }
}

/// The printed name of a variable: `a` to `z`, then `ba`, `bb`, ….
fn name(var: Var) -> String {
    let mut rest = var;
    let mut out = Vec::new();
    loop {
        out.push(b'a' + (rest % 26) as u8);
        rest /= 26;
        if rest == 0 {
            break;
        }
    }
    out.iter().rev().map(|&b| b as char).collect()
}

impl fmt::Display for Graph {
    /// `{ a:f32[3] -> b:f32[3] = sin a; (b) }`, on several lines if there are several equations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Variables are numbered in the order in which they are printed.
        let mut order = vec![None; self.avals.len()];
        let defined = self.inputs.iter().chain(self.eqns.iter().flat_map(|e| &e.outputs));
        for (i, &v) in defined.enumerate() {
            order[v as usize] = Some(i as Var);
        }
        let var = |v: &Var| name(order[*v as usize].unwrap_or(*v));
        let typed = |v: &Var| format!("{}:{}", var(v), self.aval(*v));
        let atom = |a: &Atom| match a {
            Atom::Var(v) => var(v),
            Atom::Literal(s) => format!("{s:?}"),
        };
        let words = |items: Vec<String>| items.join(" ");
        write!(f, "{{ {} ->", words(self.inputs.iter().map(typed).collect()))?;
        let (sep, end) = if self.eqns.len() > 1 { ("\n  ", "\n  ") } else { (" ", " ") };
        for eqn in &self.eqns {
            // Graphs among the parameters stand further in than the equation.
            let params = eqn.prim.params().replace('\n', "\n  ");
            let params = if params.is_empty() { params } else { format!("[{params}]") };
            let outs = words(eqn.outputs.iter().map(typed).collect());
            let ins = words(eqn.inputs.iter().map(atom).collect());
            let gap = if ins.is_empty() { "" } else { " " };
            write!(f, "{sep}{outs} = {}{params}{gap}{ins};", eqn.prim.name())?;
        }
        let outs: Vec<_> = self.outputs.iter().map(atom).collect();
        let last = if self.eqns.len() > 1 { "\n}" } else { " }" };
        write!(f, "{end}({}){last}", outs.join(", "))
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
