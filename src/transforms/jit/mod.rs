//! `jit`: a function as one compiled program for each signature.
//!
//! The first call with a signature runs the function on tracers and records a graph; that call and
//! all later ones run the compiled program. What the function captures becomes a hidden operand,
//! read anew at each call, and what it writes in place to captured or passed tensors becomes a
//! hidden result that is written back.
//!
//! | module | holds |
//! |---|---|
//! | `function` | [`Function`], [`IntoTree`]: what may be compiled, what may be passed |
//! | `options`, `signature` | what a program is found by |
//! | `entry` | the bounded table of programs |
//! | `explain` | [`Recompile`], [`Difference`]: why there was no program |
//! | `ahead` | `warm_up`, [`eval_shape`]: before the first call |
//! | `bucket` | [`Bucketing`]: sizes padded up to few |
//! | `lowered` | [`Lowered`]: a program that is not yet compiled |

mod ahead;
mod bucket;
mod entry;
mod explain;
mod function;
mod lowered;
mod options;
mod signature;

pub use ahead::eval_shape;
pub use bucket::{BucketUse, Bucketed, Bucketing, Buckets, Mask, Padded};
pub use explain::{Difference, Recompile};
pub use function::{ByRef, ByValue, Function, IntoTree};
pub use lowered::Lowered;

use super::catch::catch;
use super::tree::{Tree, rebuild, values_of};
use crate::aval::Avals;
use crate::backend::pjrt::options::{OverrideValue, set_override};
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::NamedSharding;
use crate::ops::call::Call;
use crate::ops::sharding_constraint;
use crate::trace::autograd::primal;
use crate::trace::batch::axis_env;
use crate::trace::cell::Tensor;
use crate::trace::graph::Graph;
use crate::trace::record::Recorder;
use crate::trace::{Values, bind, forbid, is_recording, source};
use entry::{Entry, Table};
use explain::Readable;
use options::{Options, OutShardings};
use signature::{Context, Request, Signature, values};
use smallvec::SmallVec;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A function that runs as one compiled program for each signature. Made by [`jit`].
pub struct Jit<A, B, M, F> {
    f: F,
    options: Arc<Options>,
    cache_size: usize,
    max_graphs: Option<(usize, Excess)>,
    table: Table<B>,
    marker: PhantomData<fn(A) -> (B, M)>,
}

/// What happens when a function is traced more often than [`Jit::max_graphs`] allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// A warning, as an event of target `oxbridge::jit`; the program is made.
    Warn,
    /// An error of kind [`ErrorKind::Compile`]; nothing is traced.
    Error,
}

/// How many programs a function keeps if [`Jit::cache_size`] does not say.
const CACHE_SIZE: usize = 256;

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
        options: Arc::new(Options { name: name.into(), ..Options::default() }),
        cache_size: CACHE_SIZE,
        max_graphs: None,
        table: Table::default(),
        marker: PhantomData,
    }
}

impl<A: Tree, B: Tree, M, F: Function<A, B, M>> Jit<A, B, M, F> {
    fn with(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(Arc::make_mut(&mut self.options));
        self
    }

    /// The same function whose given arguments may be overwritten: elements of the argument's
    /// tuple, or 0 for an argument that is no tuple. A donated tensor must not be used again.
    #[must_use]
    pub fn donate(self, elements: impl IntoIterator<Item = usize>) -> Self {
        self.with(|options| options.donated = elements.into_iter().collect())
    }

    /// The same function whose arguments are first moved to the given shardings: one for all tensors
    /// of an element of the argument's tuple (or of an argument that is no tuple); none leaves them
    /// as they are.
    #[must_use]
    pub fn in_shardings(self, s: impl IntoIterator<Item = Option<NamedSharding>>) -> Self {
        self.with(|options| options.in_shardings = s.into_iter().collect())
    }

    /// The same function whose results have the given shardings: one for all tensors of an element
    /// of the result's tuple (or of a result that is no tuple); none leaves them to the compiler.
    #[must_use]
    pub fn out_shardings(self, s: impl IntoIterator<Item = Option<NamedSharding>>) -> Self {
        self.with(|options| options.out_shardings = OutShardings::Named(s.into_iter().collect()))
    }

    /// The same function whose results are split as its arguments: `like[k]` names the element of
    /// the argument's tuple whose tensors those of the result's element `k` follow, in order. A
    /// training step that gives new parameters for old is compiled once by this.
    #[must_use]
    pub fn out_like(self, like: impl IntoIterator<Item = Option<usize>>) -> Self {
        self.with(|options| options.out_shardings = OutShardings::Like(like.into_iter().collect()))
    }

    /// The same function compiled with an XLA flag: its name without dashes in front, and a `bool`, a
    /// whole number, a number or a text. The host backend compiles nothing and does not look at it.
    /// `jax.jit` knows these as `compiler_options`.
    ///
    /// A program has one set of flags, so a function with flags of its own cannot be called inside of
    /// another `jit`. A flag that the plugin does not know is an error of the compiler.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// // Less time in the compiler, more in the program.
    /// let f = jit(|x: &Tensor| x.sin()).compiler_option("xla_backend_optimization_level", 1);
    /// assert_eq!(f.call(&Tensor::zeros([2], DType::F32)?)?.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn compiler_option(self, flag: &str, value: impl Into<OverrideValue>) -> Self {
        self.with(|options| {
            let all = options.flags.get_or_insert_default();
            set_override(Arc::make_mut(all), flag, value.into());
        })
    }

    /// The same function under another name, which StableHLO and diagnostics print.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.with(|options| options.name = name.into())
    }

    /// The same function that keeps at most `programs` programs (256 if nothing is said); of more,
    /// the one whose last use lies furthest back is dropped, and compiled anew when it is needed.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let f = jit(|x: &Tensor| x.sin()).cache_size(2);
    /// for n in [1, 2, 3] {
    ///     f.call(&Tensor::zeros([n], DType::F32)?)?;
    /// }
    /// assert_eq!((f.compiled(), f.cached(), f.evictions()), (3, 2, 1));
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn cache_size(mut self, programs: usize) -> Self {
        self.cache_size = programs;
        self
    }

    /// The same function that warns, or fails, when it would be traced for the `n + 1`-st time. The
    /// text names what differs.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// use oxbridge::transforms::jit::Excess;
    /// let f = jit(|x: &Tensor| x.sin()).max_graphs(1, Excess::Error);
    /// f.call(&Tensor::zeros([1], DType::F32)?)?;
    /// let error = f.call(&Tensor::zeros([1], DType::F64)?).unwrap_err();
    /// assert_eq!(*error.kind(), ErrorKind::Compile);
    /// assert!(error.text().ends_with("the argument: was of f32, is of f64"), "{error}");
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn max_graphs(mut self, n: usize, excess: Excess) -> Self {
        self.max_graphs = Some((n, excess));
        self
    }

    /// How many programs have been traced, those included that are no longer kept.
    pub fn compiled(&self) -> usize {
        self.table.traced()
    }

    /// How many programs are kept.
    pub fn cached(&self) -> usize {
        self.table.len()
    }

    /// How many programs were dropped because there were too many.
    pub fn evictions(&self) -> usize {
        self.table.evictions()
    }

    /// Runs the function.
    ///
    /// # Errors
    /// What the function says while it is traced; what the compiler or the device says.
    #[track_caller]
    pub fn call(&self, args: impl IntoTree<A>) -> Result<B> {
        let location = Location::caller();
        args.with_tree(|args| self.run(args, location))
    }

    fn run(&self, args: &A, location: &'static Location<'static>) -> Result<B> {
        if self.options.flags.is_some() && is_recording() {
            return Err(self.inner_options().at(location));
        }
        let mut request = self.request(args)?;
        let entry = self.entry(args, &request, location)?;
        for (source, _) in &entry.hidden {
            request.operands.push(source.value()?);
        }
        if entry.ran_backward {
            request.operands.iter_mut().for_each(|v| *v = primal(v));
        }
        let outs = source::with(Some(location), || bind(&*entry.call, &request.operands));
        let mut outs = outs?.into_iter();
        let results: Values = outs.by_ref().take(entry.results).collect();
        for &i in &entry.written_args {
            if let Some(value) = outs.next() {
                request.signature.leaves[i].write_back(value)?;
            }
        }
        for (cell, value) in entry.written.iter().zip(outs) {
            cell.write(value);
        }
        rebuild(&entry.out, results.into_iter().map(Tensor::from_value))
    }

    #[cold]
    fn inner_options(&self) -> Error {
        let text = format!(
            "`{}` has compiler options of its own and is called in a function that is being compiled",
            self.options.name
        );
        Error::new(ErrorKind::Compile, "jit", text).help("give the options to the outermost `jit`")
    }

    /// The program for an argument's signature, without running it.
    ///
    /// # Errors
    /// What the function says while it is traced.
    #[track_caller]
    pub fn lower(&self, args: impl IntoTree<A>) -> Result<Lowered> {
        let location = Location::caller();
        args.with_tree(|args| self.lower_at(args, location))
    }

    fn lower_at(&self, args: &A, location: &'static Location<'static>) -> Result<Lowered> {
        let mut request = self.request(args)?;
        let entry = self.entry(args, &request, location)?;
        for (source, _) in &entry.hidden {
            request.operands.push(source.value()?);
        }
        Ok(Lowered { call: Arc::clone(&entry.call), operands: request.operands })
    }

    /// Why a call with this argument would trace the function; none if there is a program for it.
    /// Nothing is traced.
    ///
    /// # Errors
    /// If a tensor was traced by a transform that has ended.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let f = jit(|(x, y): &(Tensor, Tensor)| x.mul(y)).named("product");
    /// let (x, y) = (Tensor::zeros([32, 4], DType::F32)?, Tensor::zeros([4], DType::F32)?);
    /// f.call((&x, &y))?;
    /// assert!(f.explain((&x, &y))?.is_none());
    /// let why = f.explain((&x.narrow(0, 0, 17)?, &y))?.map(|r| r.why());
    /// assert_eq!(why.as_deref(), Some("`[0]`: axis 0 had size 32, has 17"));
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn explain(&self, args: impl IntoTree<A>) -> Result<Option<Recompile>> {
        let location = Location::caller();
        args.with_tree(|args| {
            let request = self.request(args)?;
            let key = request.key();
            let found = self.table.find(key, &request);
            Ok(found.is_none().then(|| self.why(key, &request, &Readable::of(args), location)))
        })
    }

    /// Why the function was traced last though it had programs; none if that never was.
    pub fn last_recompile(&self) -> Option<Recompile> {
        self.table.history().back().cloned()
    }

    /// All times that the function was traced though it had programs, the latest last; at most 32.
    pub fn recompiles(&self) -> Vec<Recompile> {
        self.table.history().iter().cloned().collect()
    }

    fn request<'r>(&'r self, args: &'r A) -> Result<Request<'r>> {
        let signature = Signature::of(args);
        let operands = self.operands(&signature)?;
        let (context, axes) = (Context::current(), axis_env());
        Ok(Request { signature, operands, context, axes, options: &self.options })
    }

    fn operands(&self, signature: &Signature<'_>) -> Result<Values> {
        let mut values = values(signature)?;
        let shardings = &self.options.in_shardings;
        if !shardings.is_empty() {
            for (value, &element) in values.iter_mut().zip(&signature.elements) {
                if let Some(Some(sharding)) = shardings.get(element) {
                    *value = sharding_constraint(value, sharding)?;
                }
            }
        }
        Ok(values)
    }

    fn entry(
        &self,
        args: &A,
        request: &Request<'_>,
        location: &'static Location<'static>,
    ) -> Result<Arc<Entry<B>>> {
        let key = request.key();
        if let Some(found) = self.table.find(key, request) {
            found.pass_guards_on();
            return Ok(found);
        }
        let readable = Readable::of(args);
        let why = self.why(key, request, &readable, location);
        self.check_allowed(&why)?;
        let made = Arc::new(self.trace(args, request, readable)?);
        self.table.insert(key, &made, self.cache_size);
        self.tell(why);
        Ok(made)
    }

    #[cold]
    fn why(
        &self,
        key: u64,
        request: &Request<'_>,
        readable: &Readable,
        location: &'static Location<'static>,
    ) -> Recompile {
        Recompile {
            name: Arc::clone(&self.options.name),
            programs: self.table.traced(),
            differences: self.table.nearest(key, request, readable),
            location,
        }
    }

    /// Checks that one more program may be made.
    fn check_allowed(&self, why: &Recompile) -> Result<()> {
        let (name, programs) = (&why.name, why.programs);
        forbid::check("jit", || (format!("`{name}`"), why.why()))
            .map_err(|error| error.at(why.location))?;
        let Some((max, excess)) = self.max_graphs.filter(|(max, _)| programs >= *max) else {
            return Ok(());
        };
        let text = format!(
            "`{name}` has {programs} programs and needs another, at most {max} are allowed: {}",
            why.why()
        );
        match excess {
            Excess::Warn => {
                let (file, line) = (why.location.file(), why.location.line());
                tracing::warn!(target: "oxbridge::jit", name = &**name, file, line, "{text}");
                Ok(())
            }
            Excess::Error => {
                let error = Error::new(ErrorKind::Compile, "jit", text);
                let error = self.recompiles().iter().fold(error, |error, earlier| {
                    error.note(format!("compiled again before: {}", earlier.why()))
                });
                Err(error.help("pass what varies as a tensor, or pad it").at(why.location))
            }
        }
    }

    /// Tells that a program was made, and remembers it if it was not the first.
    fn tell(&self, why: Recompile) {
        let (name, text) = (&*why.name, why.why());
        let (file, line) = (why.location.file(), why.location.line());
        if why.differences == [Difference::First] {
            tracing::debug!(target: "oxbridge::jit", name, why = text, file, line, "traced");
            return;
        }
        tracing::info!(target: "oxbridge::jit", name, why = text, file, line, "traced again");
        self.table.remember(why);
    }

    fn trace(&self, args: &A, request: &Request<'_>, readable: Readable) -> Result<Entry<B>> {
        let avals: Avals = request.operands.iter().map(|v| v.aval().clone()).collect();
        let mut parts = None;
        let recorded = Recorder::record("jit", &avals, |tracers| {
            let inner: Vec<Tensor> = tracers.iter().cloned().map(Tensor::from_value).collect();
            let args = rebuild(args, inner.iter().cloned())?;
            let out = catch(|| self.f.apply(args))?;
            let mut values = values_of(&out)?;
            let results = values.len();
            let mut written_args = Vec::new();
            for (i, (tensor, tracer)) in inner.iter().zip(tracers).enumerate() {
                let value = primal(&tensor.value()?);
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
        let hidden = recorded
            .hidden
            .into_iter()
            .map(|source| {
                let aval = source.value()?.aval().clone();
                Ok((source, aval))
            })
            .collect::<Result<_>>()?;
        let call = self.program(Arc::new(recorded.graph), &out, &request.signature, &avals)?;
        Ok(Entry {
            structure: request.signature.structure.clone(),
            avals,
            context: request.context.clone(),
            options: Arc::clone(&self.options),
            readable,
            call: Arc::new(call),
            hidden,
            guards: recorded.guards,
            axes: recorded.reads_axes.then(|| request.axes.clone()),
            written_args,
            written: recorded.written,
            out,
            results,
            ran_backward: recorded.ran_backward,
            used: AtomicU64::new(u64::MAX),
        })
    }

    /// The call of a recorded graph, with what the options say of its operands and results.
    fn program(
        &self,
        graph: Arc<Graph>,
        out: &B,
        signature: &Signature<'_>,
        avals: &Avals,
    ) -> Result<Call> {
        let donates = |e| self.options.donated.contains(e);
        let mut donated: SmallVec<[bool; 8]> = signature.elements.iter().map(donates).collect();
        donated.resize(graph.inputs().len(), false);
        let mut out_shardings = self.options.shardings_of(out, signature, avals)?;
        if out_shardings.iter().all(Option::is_none) {
            out_shardings.clear();
        } else {
            out_shardings.resize(graph.outputs().len(), None);
        }
        let compiler_options = self.options.flags.clone();
        let call = Call::new(&self.options.name, graph, false);
        Ok(Call { donated, out_shardings, compiler_options, ..call })
    }
}

impl<A, B, M, F> fmt::Debug for Jit<A, B, M, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Jit({})", self.options.name)
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
