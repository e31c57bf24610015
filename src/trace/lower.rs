//! From a [`Graph`] to the text of a StableHLO module.

use super::graph::{Atom, Graph};
use crate::aval::{Aval, Avals};
use crate::dtype::Scalar;
use crate::error::{Error, ErrorKind, Result};
use crate::hlo::{self, Body, Val};
use crate::mesh::{Mesh, NamedSharding};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::fmt::Write;
use std::sync::Arc;

/// A module under way: what the `lower` rules write to.
#[derive(Debug)]
pub struct Lowering {
    body: Body,
    functions: Vec<(u64, String)>,
    texts: Vec<String>,
    mesh: Option<Mesh>,
    platform: String,
    /// The result of the operation with an effect that was written last in this body.
    effect: Option<Val>,
}

/// How the module's entry is called.
#[derive(Clone, Debug, Default)]
pub struct Entry<'a> {
    /// The module's name.
    pub name: &'a str,
    /// The sharding of each operand; empty if there is none.
    pub in_shardings: &'a [Option<NamedSharding>],
    /// The sharding asked for each result; empty or none leaves the choice to the compiler.
    pub out_shardings: &'a [Option<NamedSharding>],
    /// Which operands the program may overwrite; empty for none.
    pub donated: &'a [bool],
    /// The number of partitions; 0 counts as 1.
    pub partitions: usize,
    /// The platform that the module is compiled for; empty if it is not known.
    pub platform: &'a str,
}

impl Lowering {
    fn new(platform: &str) -> Lowering {
        Lowering {
            body: Body::new(2),
            functions: Vec::new(),
            texts: Vec::new(),
            mesh: None,
            platform: platform.into(),
            effect: None,
        }
    }

    /// The platform that the module is compiled for: `cpu`, `tpu`, …; empty if it is not known.
    pub fn platform(&self) -> &str {
        &self.platform
    }

    /// The result of the last operation with an effect in this body, for the next to follow it.
    pub fn take_effect(&mut self) -> Option<Val> {
        self.effect.take()
    }

    /// Says what the next operation with an effect has to follow.
    pub fn set_effect(&mut self, effect: Option<Val>) {
        self.effect = effect;
    }

    /// Writes one op; see [`Body::op`].
    pub fn op(&mut self, name: &str, operands: &[Val], attrs: &str, outs: &[Aval]) -> Vec<Val> {
        self.body.op(name, operands, attrs, outs)
    }

    /// Writes one op with one result of the given type.
    pub fn op1(&mut self, name: &str, operands: &[&Val], attrs: &str, out: &Aval) -> Val {
        let mut outs = self.body.op(name, operands, attrs, std::slice::from_ref(out));
        outs.swap_remove(0)
    }

    /// Writes an op with regions; see [`Body::generic`].
    pub fn op_with_regions(
        &mut self,
        name: &str,
        operands: &[Val],
        attrs: &str,
        regions: &[String],
        outs: &[Aval],
    ) -> Vec<Val> {
        self.body.generic(name, operands, attrs, &hlo::join(regions), outs)
    }

    /// Writes a constant that holds `value` everywhere.
    pub fn constant(&mut self, value: Scalar, aval: &Aval) -> Val {
        self.body.constant(value, aval)
    }

    /// The text of a region with parameters of the given types, whose body `fill` writes.
    ///
    /// # Errors
    /// What `fill` says.
    pub fn region(
        &mut self,
        params: &[Aval],
        fill: impl FnOnce(&mut Lowering, &[Val]) -> Result<Vec<Val>>,
    ) -> Result<String> {
        let mut inner = self.body.nested();
        let args: Vec<Val> = params.iter().map(|a| Val::new(inner.fresh(), a)).collect();
        let outer = std::mem::replace(&mut self.body, inner);
        let effect = self.effect.take();
        let results = fill(self, &args);
        self.effect = effect;
        let mut inner = std::mem::replace(&mut self.body, outer);
        inner.ret("stablehlo.return", &results?);
        Ok(self.body.close(inner, &args))
    }

    /// Names a mesh for sharding annotations.
    ///
    /// # Errors
    /// If the module has another mesh already.
    pub fn use_mesh(&mut self, mesh: &Mesh) -> Result<()> {
        match &self.mesh {
            Some(other) if other != mesh => {
                let text = format!("one program cannot use two meshes, {other} and {mesh}");
                Err(Error::new(ErrorKind::Sharding, "lower", text))
            }
            _ => {
                self.mesh = Some(mesh.clone());
                Ok(())
            }
        }
    }

    /// Writes the graph's equations in place and gives its results.
    ///
    /// # Errors
    /// What a `lower` rule says.
    pub fn inline(&mut self, graph: &Graph, operands: &[Val]) -> Result<Vec<Val>> {
        let mut env: Vec<Option<Val>> = vec![None; graph.var_count()];
        for (&var, value) in graph.inputs().iter().zip(operands) {
            env[var as usize] = Some(value.clone());
        }
        for eqn in graph.eqns() {
            let inputs: SmallVec<[Val; 4]> =
                eqn.inputs.iter().map(|a| self.read(&env, a)).collect::<Result<_>>()?;
            let outs: Avals = eqn.outputs.iter().map(|&v| graph.aval(v).clone()).collect();
            let results = eqn.prim.lower(self, &inputs, &outs)?;
            for (&var, value) in eqn.outputs.iter().zip(results) {
                env[var as usize] = Some(value);
            }
        }
        graph.outputs().iter().map(|a| self.read(&env, a)).collect()
    }

    fn read(&mut self, env: &[Option<Val>], atom: &Atom) -> Result<Val> {
        match atom {
            Atom::Literal(s) => Ok(self.constant(*s, &Aval::scalar(s.dtype()))),
            Atom::Var(v) => env[*v as usize].clone().ok_or_else(|| {
                Error::new(ErrorKind::Format, "lower", "a variable is used before it is defined")
            }),
        }
    }

    /// Writes a call of the graph as a function of its own, which is written once.
    ///
    /// # Errors
    /// What a `lower` rule says.
    pub fn call(&mut self, name: &str, graph: &Arc<Graph>, operands: &[Val]) -> Result<Vec<Val>> {
        let function = self.function(name, graph)?;
        let outs = graph.out_avals();
        Ok(self.body.generic("func.call", operands, &format!("callee = @{function}"), "", &outs))
    }

    fn function(&mut self, name: &str, graph: &Arc<Graph>) -> Result<String> {
        if let Some((_, name)) = self.functions.iter().find(|(id, _)| *id == graph.id()) {
            return Ok(name.clone());
        }
        let mut unique = identifier(name);
        if unique == "main" || self.functions.iter().any(|(_, n)| *n == unique) {
            write!(unique, "_{}", self.functions.len()).unwrap_or(());
        }
        self.functions.push((graph.id(), unique.clone()));
        let outer = std::mem::replace(&mut self.body, Body::new(2));
        let args = arguments(&graph.in_avals());
        let effect = self.effect.take();
        let results = self.inline(graph, &args);
        self.effect = effect;
        let mut body = std::mem::replace(&mut self.body, outer);
        let results = results?;
        body.ret("func.return", &results);
        let params = hlo::join(args.iter().map(|v| format!("{}: {}", v.name(), v.aval().hlo())));
        let types = hlo::join(results.iter().map(|v| v.aval().hlo()));
        self.texts.push(format!(
            "  func.func private @{unique}({params}) -> ({types}) {{\n{}  }}\n",
            body.text()
        ));
        Ok(unique)
    }
}

fn identifier(name: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let text: String = name.chars().map(word).collect();
    if text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        text
    } else {
        format!("f{text}")
    }
}

fn arguments(avals: &[Aval]) -> Vec<Val> {
    avals.iter().enumerate().map(|(i, a)| Val::new(format!("%arg{i}"), a)).collect()
}

/// The text of a module whose function `main` is the graph.
///
/// # Errors
/// What a `lower` rule says.
pub fn module(graph: &Graph, entry: &Entry<'_>) -> Result<String> {
    let mut cx = Lowering::new(entry.platform);
    for sharding in entry.in_shardings.iter().chain(entry.out_shardings).flatten() {
        cx.use_mesh(sharding.mesh())?;
    }
    let args = arguments(&graph.in_avals());
    let results = cx.inline(graph, &args)?;
    cx.body.ret("func.return", &results);
    let aliases = aliases(&args, &results, entry);
    let params = args.iter().enumerate().map(|(i, v)| {
        let mut attrs = sharding_attr(entry.in_shardings, i, v.aval());
        attrs.extend(aliases[i].clone());
        annotated(format!("{}: {}", v.name(), v.aval().hlo()), &attrs)
    });
    let types = results
        .iter()
        .enumerate()
        .map(|(i, v)| annotated(v.aval().hlo(), &sharding_attr(entry.out_shardings, i, v.aval())));
    let mut text = format!(
        "module @{} attributes {{mhlo.num_partitions = {} : i32, mhlo.num_replicas = 1 : i32}} {{\n",
        identifier(entry.name),
        entry.partitions.max(1)
    );
    if let Some(mesh) = &cx.mesh {
        let axes = mesh.axis_names().iter().zip(mesh.axis_sizes());
        let axes = hlo::join(axes.map(|(n, s)| format!("\"{n}\"={s}")));
        writeln!(text, "  sdy.mesh @mesh = <[{axes}]>").unwrap_or(());
    }
    let (params, types) = (hlo::join(params), hlo::join(types));
    write!(text, "  func.func public @main({params}) -> ({types}) {{\n{}  }}\n", cx.body.text())
        .unwrap_or(());
    cx.texts.iter().for_each(|t| text.push_str(t));
    text.push_str("}\n");
    Ok(text)
}

fn annotated(text: String, attrs: &[String]) -> String {
    if attrs.is_empty() { text } else { format!("{text} {{{}}}", hlo::join(attrs)) }
}

fn sharding_attr(shardings: &[Option<NamedSharding>], i: usize, aval: &Aval) -> Vec<String> {
    let sharding = shardings.get(i).and_then(Option::as_ref);
    sharding.map(|s| format!("sdy.sharding = {}", s.sdy(aval.rank()))).into_iter().collect()
}

/// For each donated operand the attribute that lets a result take its memory: a fixed pair where
/// there is one device, the compiler's choice where there are several.
fn aliases(args: &[Val], results: &[Val], entry: &Entry<'_>) -> Vec<Option<String>> {
    // The results of each type that are still free, the first one last.
    let mut free: FxHashMap<&Aval, Vec<usize>> = FxHashMap::default();
    for (i, result) in results.iter().enumerate().rev() {
        free.entry(result.aval()).or_default().push(i);
    }
    let mut alias = |arg: &Val| {
        if entry.partitions > 1 {
            return Some("jax.buffer_donor = true".to_string());
        }
        let result = free.get_mut(arg.aval())?.pop()?;
        Some(format!("tf.aliasing_output = {result} : i32"))
    };
    let donated = |i: usize| entry.donated.get(i).copied().unwrap_or(false);
    let args = args.iter().enumerate();
    args.map(|(i, arg)| if donated(i) { alias(arg) } else { None }).collect()
}
