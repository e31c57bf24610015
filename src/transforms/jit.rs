//! `jit`: a function as one compiled program for each signature.
//!
//! The first call with a signature runs the function on tracers and records a graph; that call and
//! all later ones run the compiled program. What the function captures becomes a hidden operand,
//! read anew at each call, and what it writes in place to captured or passed tensors becomes a
//! hidden result that is written back.

use super::catch::catch;
use super::tree::{Fixed, Key, Leaves, Tree, Visitor, leaves, rebuild};
use crate::aval::{Aval, Avals};
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::{Mesh, NamedSharding};
use crate::ops::call::Call;
use crate::ops::sharding_constraint;
use crate::trace::cell::{Cell, Tensor};
use crate::trace::eval::{Compiled, compile_only};
use crate::trace::graph::Graph;
use crate::trace::lower;
use crate::trace::primitive::Primitive;
use crate::trace::record::{Recorder, Source};
use crate::trace::{Value, Values, bind};
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use std::fmt::{self, Write};
use std::hash::Hasher;
use std::marker::PhantomData;
use std::sync::{Arc, RwLock};

/// Marks a function that takes its argument by reference.
#[derive(Debug)]
pub struct ByRef;

/// Marks a function that takes its argument by value.
#[derive(Debug)]
pub struct ByValue;

/// A function of one tree, by value or by reference; `M` tells which and is never written.
pub trait Function<A, B, M> {
    /// Calls the function.
    ///
    /// # Errors
    /// What the function says.
    fn apply(&self, args: A) -> Result<B>;
}

impl<A: Tree, B: Tree, F: Fn(&A) -> Result<B>> Function<A, B, ByRef> for F {
    fn apply(&self, args: A) -> Result<B> {
        self(&args)
    }
}

impl<A: Tree, B: Tree, F: Fn(A) -> Result<B>> Function<A, B, ByValue> for F {
    fn apply(&self, args: A) -> Result<B> {
        self(args)
    }
}

/// What may be passed where a tree is wanted: the tree, a reference to it, or a tuple of references
/// for a tuple.
pub trait IntoTree<A> {
    /// Runs `f` on the tree. Only a tuple of references has to be copied for it.
    fn with_tree<R>(self, f: impl FnOnce(&A) -> R) -> R;
}

impl<A> IntoTree<A> for A {
    fn with_tree<R>(self, f: impl FnOnce(&A) -> R) -> R {
        f(&self)
    }
}

impl<A> IntoTree<A> for &A {
    fn with_tree<R>(self, f: impl FnOnce(&A) -> R) -> R {
        f(self)
    }
}

macro_rules! tuples_of_references {
    ($(($($T:ident $i:tt),+))*) => {$(
        impl<$($T: Clone),+> IntoTree<($($T,)+)> for ($(&$T,)+) {
            fn with_tree<R>(self, f: impl FnOnce(&($($T,)+)) -> R) -> R {
                f(&($(self.$i.clone(),)+))
            }
        }
    )*};
}

tuples_of_references! {
    (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

/// A function that runs as one compiled program for each signature. Made by [`jit`].
pub struct Jit<A, B, M, F> {
    f: F,
    name: Arc<str>,
    donated: Vec<usize>,
    in_shardings: Vec<Option<NamedSharding>>,
    out_shardings: OutShardings,
    entries: RwLock<Entries<B>>,
    marker: PhantomData<fn(A) -> (B, M)>,
}

/// The shardings that results must have, by element of the result's outermost tuple.
enum OutShardings {
    /// Left to the compiler.
    Free,
    /// One for all tensors of an element; none leaves them to the compiler.
    Named(Vec<Option<NamedSharding>>),
    /// Those of the tensors of an element of the argument, in order.
    Like(Vec<Option<usize>>),
}

/// One signature's program.
struct Entry<B> {
    structure: SmallVec<[u8; 64]>,
    avals: Avals,
    call: Arc<Call>,
    hidden: Vec<(Source, Aval)>,
    /// Which leaves of the argument the function wrote in place.
    written_args: Vec<usize>,
    /// The cells from outside that the function wrote.
    written: Vec<Arc<Cell>>,
    out: B,
    results: usize,
}

/// `f` as one compiled program for each signature: structure, shapes, dtypes and shardings of its
/// argument.
///
/// `f` takes one tree, by value or by reference; several arguments are a tuple.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let step = jit(|(w, g): (Tensor, Tensor)| Ok(&w - &g * 0.5));
/// let w = Tensor::from_slice(&[1f32, 2.], [2])?;
/// assert_eq!(step.call((&w, &w))?.to_vec::<f32>()?, [0.5, 1.0]);
/// assert_eq!(step.compiled(), 1);
/// # Ok::<(), Error>(())
/// ```
pub fn jit<A: Tree, B: Tree, M, F: Function<A, B, M>>(f: F) -> Jit<A, B, M, F> {
    let name = std::any::type_name::<F>();
    let name = name.rsplit("::").find(|part| !part.starts_with('{')).unwrap_or("jit");
    Jit {
        f,
        name: name.into(),
        donated: Vec::new(),
        in_shardings: Vec::new(),
        out_shardings: OutShardings::Free,
        entries: RwLock::default(),
        marker: PhantomData,
    }
}

/// The tensors and the structure of an argument, in one visit.
#[derive(Default)]
struct Signature<'t> {
    leaves: SmallVec<[&'t Tensor; 16]>,
    /// For each leaf the element of the outermost tuple that it belongs to.
    elements: SmallVec<[usize; 16]>,
    structure: SmallVec<[u8; 64]>,
    depth: usize,
    element: usize,
}

/// Takes a `Hash` as its bytes, which can be compared for equality.
struct Bytes<'b>(&'b mut SmallVec<[u8; 64]>);

impl Hasher for Bytes<'_> {
    fn finish(&self) -> u64 {
        0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Takes text as its bytes.
struct Text<'b>(&'b mut SmallVec<[u8; 64]>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl<'t> Visitor<'t> for Signature<'t> {
    fn leaf(&mut self, tensor: &'t Tensor) {
        self.leaves.push(tensor);
        self.elements.push(self.element);
        self.structure.push(b'*');
    }
    fn enter(&mut self, key: Key<'_>) {
        match key {
            Key::Index(i) if self.depth == 0 => self.element = i,
            Key::Index(_) => {}
            Key::Name(name) => self.structure.extend_from_slice(name.as_bytes()),
            Key::Entry(key) => {
                // Writing to memory cannot fail.
                let _ = write!(Text(&mut self.structure), "{key}");
            }
        }
        self.depth += 1;
    }
    fn exit(&mut self) {
        self.depth -= 1;
    }
    fn fixed(&mut self, part: &dyn Fixed) {
        part.hash_into(&mut Bytes(&mut self.structure));
    }
}

impl<A: Tree, B: Tree, M, F: Function<A, B, M>> Jit<A, B, M, F> {
    /// The same function whose given arguments may be overwritten: elements of the argument's
    /// tuple, or 0 for an argument that is no tuple. A donated tensor must not be used again.
    #[must_use]
    pub fn donate(mut self, elements: impl IntoIterator<Item = usize>) -> Self {
        self.donated = elements.into_iter().collect();
        self
    }

    /// The same function whose arguments are first moved to the given shardings: one for all tensors
    /// of an element of the argument's tuple (or of an argument that is no tuple); none leaves them
    /// as they are.
    #[must_use]
    pub fn in_shardings(mut self, s: impl IntoIterator<Item = Option<NamedSharding>>) -> Self {
        self.in_shardings = s.into_iter().collect();
        self
    }

    /// The same function whose results have the given shardings: one for all tensors of an element
    /// of the result's tuple (or of a result that is no tuple); none leaves them to the compiler.
    #[must_use]
    pub fn out_shardings(mut self, s: impl IntoIterator<Item = Option<NamedSharding>>) -> Self {
        self.out_shardings = OutShardings::Named(s.into_iter().collect());
        self
    }

    /// The same function whose results are split as its arguments: `like[k]` names the element of
    /// the argument's tuple whose tensors those of the result's element `k` follow, in order. A
    /// training step that gives new parameters for old is compiled once by this.
    #[must_use]
    pub fn out_like(mut self, like: impl IntoIterator<Item = Option<usize>>) -> Self {
        self.out_shardings = OutShardings::Like(like.into_iter().collect());
        self
    }

    /// The same function under another name, which StableHLO and diagnostics print.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// How many signatures have been compiled.
    pub fn compiled(&self) -> usize {
        self.entries().values().map(SmallVec::len).sum()
    }

    /// Runs the function.
    ///
    /// # Errors
    /// What the function says while it is traced; what the compiler or the device says.
    pub fn call(&self, args: impl IntoTree<A>) -> Result<B> {
        args.with_tree(|args| self.run(args))
    }

    fn run(&self, args: &A) -> Result<B> {
        let signature = Signature::of(args);
        let mut operands = self.operands(&signature)?;
        let entry = self.entry(args, &signature, &operands)?;
        for (source, _) in &entry.hidden {
            operands.push(source_value(source)?);
        }
        let mut outs = bind(&*entry.call, &operands)?.into_iter();
        let results: Values = outs.by_ref().take(entry.results).collect();
        for &i in &entry.written_args {
            if let Some(value) = outs.next() {
                signature.leaves[i].set_value(value)?;
            }
        }
        for (cell, value) in entry.written.iter().zip(outs) {
            cell.write(value);
        }
        rebuild(&entry.out, results.into_iter().map(Tensor::from_value))
    }

    /// The program for an argument's signature, without running it.
    ///
    /// # Errors
    /// What the function says while it is traced.
    pub fn lower(&self, args: impl IntoTree<A>) -> Result<Lowered> {
        args.with_tree(|args| {
            let signature = Signature::of(args);
            let operands = self.operands(&signature)?;
            let entry = self.entry(args, &signature, &operands)?;
            let mut operands = operands;
            for (source, _) in &entry.hidden {
                operands.push(source_value(source)?);
            }
            Ok(Lowered { call: Arc::clone(&entry.call), operands })
        })
    }

    fn operands(&self, signature: &Signature<'_>) -> Result<Values> {
        let mut values = values(signature)?;
        if !self.in_shardings.is_empty() {
            for (value, &element) in values.iter_mut().zip(&signature.elements) {
                if let Some(Some(sharding)) = self.in_shardings.get(element) {
                    *value = sharding_constraint(value, sharding)?;
                }
            }
        }
        Ok(values)
    }

    /// The sharding that each tensor of the result must have; none at all if all are free.
    fn shardings_of(
        &self,
        out: &B,
        signature: &Signature<'_>,
        avals: &[Aval],
    ) -> Result<SmallVec<[Option<NamedSharding>; 1]>> {
        let elements = Signature::of(out).elements;
        match &self.out_shardings {
            OutShardings::Free => Ok(SmallVec::new()),
            OutShardings::Named(named) => {
                Ok(elements.iter().map(|&e| named.get(e).cloned().flatten()).collect())
            }
            OutShardings::Like(like) => {
                let mut taken = vec![0; like.len()];
                let follow = |&e: &usize| {
                    let Some(Some(argument)) = like.get(e) else { return Ok(None) };
                    let of = signature.elements.iter().zip(avals);
                    let mut of = of.filter(|(a, _)| *a == argument).map(|(_, aval)| aval);
                    taken[e] += 1;
                    let aval = of.nth(taken[e] - 1).ok_or_else(|| {
                        let text = format!("result {e} has more tensors than argument {argument}");
                        Error::new(ErrorKind::Tree, "jit", text)
                    })?;
                    Ok(aval.sharding().cloned())
                };
                elements.iter().map(follow).collect()
            }
        }
    }

    fn entries(&self) -> std::sync::RwLockReadGuard<'_, Entries<B>> {
        self.entries.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn entry(
        &self,
        args: &A,
        signature: &Signature<'_>,
        operands: &[Value],
    ) -> Result<Arc<Entry<B>>> {
        let key = key(signature, operands);
        let found = self
            .entries()
            .get(&key)
            .and_then(|list| list.iter().find(|entry| entry.matches(signature, operands)).cloned());
        if let Some(found) = found {
            return Ok(found);
        }
        let made = Arc::new(self.trace(args, signature, operands)?);
        let mut entries = self.entries.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let list = entries.entry(key).or_default();
        list.retain(|entry| entry.is_usable());
        list.push(Arc::clone(&made));
        Ok(made)
    }

    fn trace(&self, args: &A, signature: &Signature<'_>, operands: &[Value]) -> Result<Entry<B>> {
        let avals: Avals = operands.iter().map(|v| v.aval().clone()).collect();
        let mut parts = None;
        let recorded = Recorder::record("jit", &avals, |tracers| {
            let inner: Vec<Tensor> = tracers.iter().cloned().map(Tensor::from_value).collect();
            let args = rebuild(args, inner.iter().cloned())?;
            let out = catch(|| self.f.apply(args))?;
            let mut values =
                leaves(&out).into_iter().map(Tensor::value).collect::<Result<Values>>()?;
            let results = values.len();
            let mut written_args = Vec::new();
            for (i, (tensor, tracer)) in inner.iter().zip(tracers).enumerate() {
                let value = tensor.value()?;
                if !value.same(tracer) {
                    written_args.push(i);
                    values.push(value);
                }
            }
            parts = Some((out, results, written_args));
            Ok(values)
        })?;
        let (out, results, written_args) = parts
            .ok_or_else(|| Error::new(ErrorKind::NoRule, "jit", "the function did not run"))?;
        let graph = Arc::new(recorded.graph);
        let hidden_avals: Avals = recorded
            .hidden
            .iter()
            .map(|s| Ok(source_value(s)?.aval().clone()))
            .collect::<Result<_>>()?;
        let mut donated: SmallVec<[bool; 8]> =
            signature.elements.iter().map(|e| self.donated.contains(e)).collect();
        donated.resize(graph.inputs().len(), false);
        let mut out_shardings = self.shardings_of(&out, signature, &avals)?;
        if out_shardings.iter().all(Option::is_none) {
            out_shardings.clear();
        } else {
            out_shardings.resize(graph.outputs().len(), None);
        }
        let call = Call { donated, out_shardings, ..Call::new(&self.name, graph, false) };
        Ok(Entry {
            structure: signature.structure.clone(),
            avals,
            call: Arc::new(call),
            hidden: recorded.hidden.into_iter().zip(hidden_avals).collect(),
            written_args,
            written: recorded.written,
            out,
            results,
        })
    }
}

type Entries<B> = FxHashMap<u64, SmallVec<[Arc<Entry<B>>; 1]>>;

impl<'t> Signature<'t> {
    fn of<A: Leaves>(args: &'t A) -> Signature<'t> {
        let mut signature = Signature::default();
        args.visit(&mut signature);
        signature
    }
}

fn values(signature: &Signature<'_>) -> Result<Values> {
    signature.leaves.iter().map(|t| t.value()).collect()
}

/// The value of a hidden operand as the current trace sees it.
pub(super) fn source_value(source: &Source) -> Result<Value> {
    match source {
        Source::Cell(cell) => cell.read(),
        Source::Constant(value) => Ok(value.clone()),
    }
}

fn key(signature: &Signature<'_>, operands: &[Value]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(&signature.structure);
    for value in operands {
        hasher.write_u64(value.aval().hash_code());
    }
    hasher.finish()
}

impl<B> Entry<B> {
    fn matches(&self, signature: &Signature<'_>, operands: &[Value]) -> bool {
        self.structure == signature.structure
            && self.avals.len() == operands.len()
            && self.avals.iter().zip(operands).all(|(aval, v)| aval == v.aval())
            && self.hidden.iter().all(|(source, aval)| match source {
                Source::Cell(cell) => cell.read().is_ok_and(|v| v.aval() == aval),
                Source::Constant(_) => true,
            })
            && self.is_usable()
    }

    /// Whether no operand is a tracer of a transform that has ended.
    fn is_usable(&self) -> bool {
        self.hidden.iter().all(|(source, _)| match source {
            Source::Constant(Value::Tracer(tracer)) => tracer.trace().is_alive(),
            _ => true,
        })
    }
}

impl<A, B, M, F> fmt::Debug for Jit<A, B, M, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Jit({})", self.name)
    }
}

/// A function's program for one signature, traced and not yet compiled.
#[derive(Clone, Debug)]
pub struct Lowered {
    call: Arc<Call>,
    operands: Values,
}

impl Lowered {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.call.graph
    }

    /// The call that `jit` binds.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The text of the StableHLO module, with the operands' shardings.
    pub fn stablehlo(&self) -> String {
        let in_shardings: Vec<Option<NamedSharding>> =
            self.operands.iter().map(|v| v.aval().sharding().cloned()).collect();
        let mesh = in_shardings.iter().flatten().next().map(NamedSharding::mesh);
        let mesh = mesh.or_else(|| self.call.mesh());
        let entry = lower::Entry {
            name: &self.call.name,
            in_shardings: &in_shardings,
            out_shardings: &self.call.out_shardings,
            donated: &self.call.donated,
            partitions: mesh.map_or(1, Mesh::size),
        };
        lower::module(&self.call.graph, &entry).unwrap_or_else(|error| format!("// {error}\n"))
    }

    /// The program compiled, or taken from the caches, without running it; the first call with this
    /// signature then compiles nothing.
    ///
    /// # Errors
    /// What the compiler says; [`ErrorKind::NotConcrete`] inside of another transform.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let f = jit(|x: &Tensor| x.sin());
    /// let compiled = f.lower(&Tensor::zeros([3], DType::F32)?)?.compile()?;
    /// assert_eq!(compiled.outs()[0].to_string(), "f32[3]");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn compile(&self) -> Result<Arc<Compiled>> {
        compile_only(&*self.call, &self.operands)
    }
}

/// The graph that `f` records for an argument: what `jit` would compile.
///
/// # Errors
/// What `f` says.
pub fn make_graph<A: Tree + Clone, B: Tree, M>(
    f: impl Function<A, B, M>,
) -> impl Fn(&A) -> Result<Arc<Graph>> {
    let f = jit(f);
    move |args| Ok(Arc::clone(&f.lower(args)?.call.graph))
}
