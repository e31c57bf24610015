//! Why a compiled function had no program for a call: what differs from the nearest program it has.

use super::entry::Entry;
use super::signature::Request;
use crate::aval::Aval;
use crate::ops::precision::Precision;
use crate::trace::Value;
use crate::trace::cell::Tensor;
use crate::trace::record::Source;
use crate::transforms::tree::{Fixed, Key, Leaves, Path, Visitor};
use std::fmt::{self, Write};
use std::panic::Location;
use std::sync::Arc;

/// A program that was traced although others were there, or that would be: which function, and what
/// differs from the nearest program.
#[derive(Clone, Debug)]
pub struct Recompile {
    pub(super) name: Arc<str>,
    pub(super) programs: usize,
    pub(super) differences: Vec<Difference>,
    pub(super) location: &'static Location<'static>,
}

impl Recompile {
    /// The function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many programs had been traced before.
    pub fn programs(&self) -> usize {
        self.programs
    }

    /// What differs.
    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// Where the call stands.
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }

    /// The differences as one text.
    pub fn why(&self) -> String {
        /// More are only counted.
        const MAX: usize = 4;
        let shown = self.differences.iter().take(MAX).map(ToString::to_string);
        let mut text = shown.collect::<Vec<_>>().join("; ");
        if self.differences.len() > MAX {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "; and {} more differences", self.differences.len() - MAX);
        }
        text
    }
}

impl fmt::Display for Recompile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, line) = (self.location.file(), self.location.line());
        write!(
            f,
            "`{}` is compiled again, after {} programs: {}\n  at {file}:{line}",
            self.name,
            self.programs,
            self.why()
        )
    }
}

/// One thing in which a call differs from a program that is there. Paths are those of the argument's
/// tensors, `[0].layers[2].weight`; empty for an argument that is one tensor.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// There is no program yet.
    First,
    /// The program was there and was evicted.
    Evicted,
    /// A tensor has another size along an axis.
    Size {
        /// The tensor.
        path: String,
        /// The axis.
        axis: usize,
        /// The program's size.
        old: usize,
        /// The call's.
        new: usize,
    },
    /// A tensor has another number of axes.
    Rank {
        /// The tensor.
        path: String,
        /// The program's type.
        old: Aval,
        /// The call's.
        new: Aval,
    },
    /// A tensor has another dtype.
    DType {
        /// The tensor.
        path: String,
        /// The program's type.
        old: Aval,
        /// The call's.
        new: Aval,
    },
    /// A tensor is split otherwise.
    Sharding {
        /// The tensor.
        path: String,
        /// The program's type.
        old: Aval,
        /// The call's.
        new: Aval,
    },
    /// A tensor that the program's argument has not.
    Added {
        /// The tensor.
        path: String,
    },
    /// A tensor that only the program's argument has.
    Removed {
        /// The tensor.
        path: String,
    },
    /// A static field or argument.
    Static {
        /// The field.
        path: String,
        /// The program's value.
        old: String,
        /// The call's.
        new: String,
    },
    /// A length, a variant, whether an `Option` is there, which storage a buffer has.
    Structure {
        /// The part of the argument.
        path: String,
        /// The program's.
        old: String,
        /// The call's.
        new: String,
    },
    /// A tensor from outside that the function reads.
    Captured {
        /// Where the tensor was made.
        made_at: &'static Location<'static>,
        /// The program's type.
        old: Aval,
        /// The type now.
        new: Aval,
    },
    /// A [`Guarded`](crate::Guarded) value that the function reads.
    Guard {
        /// Where it was made.
        made_at: &'static Location<'static>,
        /// The value that the program was traced with.
        old: String,
        /// The value now.
        new: String,
    },
    /// The precision of products.
    Precision {
        /// The program's.
        old: Precision,
        /// The one in force.
        new: Precision,
    },
    /// The axes that `vmap`s around map over.
    Axes {
        /// Those of the program, with their sizes.
        old: String,
        /// Those that are bound now.
        new: String,
    },
    /// An option of the function, changed since.
    Option {
        /// The method that sets it.
        name: &'static str,
        /// The program's.
        old: String,
        /// The function's now.
        new: String,
    },
    /// The program captured a traced tensor of a transform that has ended.
    Ended {
        /// The transform.
        transform: &'static str,
    },
}

/// A path in backticks.
struct At<'p>(&'p str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str("the argument"),
            path => write!(f, "`{path}`"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::First => f.write_str("there is no program yet"),
            Difference::Evicted => f.write_str("its program was evicted from the cache"),
            Difference::Size { path, axis, old, new } => {
                write!(f, "{}: axis {axis} had size {old}, has {new}", At(path))
            }
            Difference::Rank { path, old, new } => write!(f, "{}: was {old}, is {new}", At(path)),
            Difference::DType { path, old, new } => {
                write!(f, "{}: was of {}, is of {}", At(path), old.dtype(), new.dtype())
            }
            Difference::Sharding { path, old, new } => {
                write!(f, "{}: was split as {old}{}, ", At(path), mesh(old))?;
                write!(f, "is as {new}{}", mesh(new))
            }
            Difference::Added { path } => write!(f, "{} is new", At(path)),
            Difference::Removed { path } => write!(f, "{} is gone", At(path)),
            Difference::Static { path, old, new } => {
                write!(f, "static {}: was {old}, is {new}", At(path))
            }
            Difference::Structure { path, old, new } => {
                write!(f, "structure of {}: was {old}, is {new}", At(path))
            }
            Difference::Captured { made_at, old, new } => {
                write!(f, "a captured tensor: was {old}, is {new}, made at {made_at}")
            }
            Difference::Guard { made_at, old, new } => {
                write!(f, "a guarded value: was {old}, is {new}, made at {made_at}")
            }
            Difference::Precision { old, new } => {
                write!(f, "matmul precision: was {old:?}, is {new:?}")
            }
            Difference::Axes { old, new } => {
                write!(f, "axes of `vmap` around: were {old}, are {new}")
            }
            Difference::Option { name, old, new } => {
                write!(f, "option `{name}`: was {old}, is {new}")
            }
            Difference::Ended { transform } => {
                write!(f, "it had captured a tensor of a `{transform}` that has ended")
            }
        }
    }
}

fn mesh(aval: &Aval) -> String {
    aval.sharding().map_or_else(String::new, |s| format!(" on {}", s.mesh()))
}

/// A structure in words: the paths of the tensors, and the static parts with their places.
#[derive(Debug, Default)]
pub(super) struct Readable {
    at: Path,
    paths: Vec<String>,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    path: String,
    text: String,
    /// Whether a user would call it static, not a length or a variant.
    named: bool,
}

impl Readable {
    pub(super) fn of(tree: &(impl Leaves + ?Sized)) -> Readable {
        let mut readable = Readable::default();
        tree.visit(&mut readable);
        readable
    }
}

impl<'t> Visitor<'t> for Readable {
    fn leaf(&mut self, _: &'t Tensor) {
        self.paths.push(self.at.text().to_owned());
    }
    fn enter(&mut self, key: Key<'_>) {
        self.at.enter(key);
    }
    fn exit(&mut self) {
        self.at.exit();
    }
    fn fixed(&mut self, part: &dyn Fixed) {
        let path = self.at.text().to_owned();
        self.parts.push(Part { path, text: part.text(), named: false });
    }
    fn stated(&mut self, key: Option<Key<'_>>, part: &dyn Fixed) {
        if let Some(key) = key {
            self.at.enter(key);
        }
        let path = self.at.text().to_owned();
        self.parts.push(Part { path, text: part.text(), named: true });
        if key.is_some() {
            self.at.exit();
        }
    }
}

/// In what a request differs from an entry.
pub(super) fn differences<B>(
    entry: &Entry<B>,
    request: &Request<'_>,
    readable: &Readable,
) -> Vec<Difference> {
    let mut out = Vec::new();
    of_structure(&entry.readable, readable, &mut out);
    of_types(entry, request, readable, &mut out);
    if entry.context.precision != request.context.precision {
        let (old, new) = (entry.context.precision, request.context.precision);
        out.push(Difference::Precision { old, new });
    }
    if let Some(axes) = entry.axes.as_ref().filter(|axes| **axes != request.axes) {
        let (old, new) = (format!("{axes:?}"), format!("{:?}", request.axes));
        out.push(Difference::Axes { old, new });
    }
    let options = entry.options.named().into_iter().zip(request.options.named());
    for ((name, old), (_, new)) in options.filter(|(old, new)| old != new) {
        out.push(Difference::Option { name, old, new });
    }
    for guard in entry.guards.iter().filter(|guard| !guard.holds()) {
        let made_at = guard.made_at();
        out.push(Difference::Guard { made_at, old: guard.seen(), new: guard.now() });
    }
    for (source, aval) in &entry.hidden {
        out.extend(of_hidden(source, aval));
    }
    out
}

fn of_structure(old: &Readable, new: &Readable, out: &mut Vec<Difference>) {
    let places = |parts: &[Part]| parts.iter().map(|p| p.path.clone()).collect::<Vec<_>>();
    if places(&old.parts) == places(&new.parts) {
        for (a, b) in old.parts.iter().zip(&new.parts).filter(|(a, b)| a.text != b.text) {
            let (path, old, new) = (b.path.clone(), a.text.clone(), b.text.clone());
            out.push(match b.named {
                true => Difference::Static { path, old, new },
                false => Difference::Structure { path, old, new },
            });
        }
    } else {
        // Of parts that stand at one path only the first are compared.
        for b in &new.parts {
            let first =
                |parts: &[Part]| parts.iter().find(|p| p.path == b.path).map(|p| p.text.clone());
            let (Some(old), Some(new)) = (first(&old.parts), first(&new.parts)) else { continue };
            let known = Difference::Structure { path: b.path.clone(), old: old.clone(), new };
            if old != b.text && !out.contains(&known) {
                out.push(known);
            }
        }
    }
    let added = new.paths.iter().filter(|path| !old.paths.contains(path));
    out.extend(added.map(|path| Difference::Added { path: path.clone() }));
    let removed = old.paths.iter().filter(|path| !new.paths.contains(path));
    out.extend(removed.map(|path| Difference::Removed { path: path.clone() }));
}

fn of_types<B>(
    entry: &Entry<B>,
    request: &Request<'_>,
    readable: &Readable,
    out: &mut Vec<Difference>,
) {
    for (path, value) in readable.paths.iter().zip(&request.operands) {
        let place = entry.readable.paths.iter().position(|p| p == path);
        if let Some(old) = place.and_then(|i| entry.avals.get(i)) {
            of_type(path, old, value.aval(), out);
        }
    }
}

fn of_type(path: &str, old: &Aval, new: &Aval, out: &mut Vec<Difference>) {
    if old == new {
        return;
    }
    let path = || path.to_owned();
    if old.dtype() != new.dtype() {
        out.push(Difference::DType { path: path(), old: old.clone(), new: new.clone() });
    }
    if old.rank() != new.rank() {
        out.push(Difference::Rank { path: path(), old: old.clone(), new: new.clone() });
        return;
    }
    let sizes = old.shape().iter().zip(new.shape().iter()).enumerate();
    for (axis, (&old, &new)) in sizes.filter(|(_, (a, b))| a != b) {
        out.push(Difference::Size { path: path(), axis, old, new });
    }
    if old.sharding() != new.sharding() {
        out.push(Difference::Sharding { path: path(), old: old.clone(), new: new.clone() });
    }
}

fn of_hidden(source: &Source, aval: &Aval) -> Option<Difference> {
    match source {
        Source::Cell(cell) => {
            let new = cell.read().ok()?.aval().clone();
            let changed = new != *aval;
            changed.then(|| Difference::Captured {
                made_at: cell.made_at(),
                old: aval.clone(),
                new,
            })
        }
        Source::Constant(Value::Tracer(tracer)) if !tracer.trace().is_alive() => {
            Some(Difference::Ended { transform: tracer.trace().name() })
        }
        Source::Constant(_) => None,
    }
}
