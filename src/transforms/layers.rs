//! Equal layers as one loop: [`scan_layers`] and the stacked form of a list of layers.

use super::control::{ScanOptions, scan};
use super::tree::{Fixed, Key, Leaves, Path, Tree, Visitor, leaves, rebuild, tree_map, values_of};
use crate::aval::Aval;
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use rustc_hash::FxHasher;

/// `f` of one layer after the other: `f(layers[n - 1], .. f(layers[1], f(layers[0], x)))`, as one
/// loop, so that a program with many layers is as small, and compiles as fast, as one with a few.
///
/// Layers may draw random numbers, each its own, as those of dropout.
///
/// The layers' tensors are stacked first, in each call; [`stack_layers`] and [`scan_stacked`] save
/// that. The derivative of the loop comes back to each layer's own tensors. Layers have one
/// structure, equal shapes and dtypes and equal static fields; those of the first are what `f` sees.
/// Without a layer the result is `x`.
///
/// # Errors
/// With the path of what differs, if a layer is not like the first; if layers have buffers, which
/// a loop cannot write to; if `f` gives another type than it takes, or with what it says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let layers: Vec<Tensor> =
///     (1..5).map(|i| Tensor::full([2], i, DType::F32)).collect::<Result<_>>()?;
/// let model = |layers: &Vec<Tensor>| {
///     let x = Tensor::ones([2], DType::F32)?;
///     scan_layers(layers, &x, |w: &Tensor, x: &Tensor| x.mul(w))
/// };
/// assert_eq!(model(&layers)?.to_vec::<f32>()?, [24.0, 24.0]);
/// let slopes = grad(|layers: &Vec<Tensor>| model(layers)?.sum())(&layers)?;
/// assert_eq!(slopes[3].to_vec::<f32>()?, [6.0, 6.0]);
/// # Ok::<(), Error>(())
/// ```
pub fn scan_layers<L: Tree, X: Tree>(
    layers: &[L],
    x: &X,
    f: impl Fn(&L, &X) -> Result<X>,
) -> Result<X> {
    if layers.is_empty() {
        return tree_map(x, |t| Ok(t.clone()));
    }
    let stacked = stack_layers(layers)?;
    let options = ScanOptions { length: Some(layers.len()), ..ScanOptions::default() };
    over(&stacked, x, options, f)
}

/// [`scan_layers`] over layers that [`stack_layers`] has stacked: `f` sees one layer after the
/// other.
///
/// The stacked form is a tree as any other: a model may keep its parameters so, and optimisers,
/// `grad` and `jit` work on it. With inputs or results of each layer's own use
/// [`scan`](super::scan()) itself over `(stacked, inputs)`.
///
/// # Errors
/// If the tensors' sizes on axis 0 differ or there is no tensor; as for [`scan_layers`].
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let stacked = Tensor::from_slice(&[1f32, 2., 3.], [3, 1])?;
/// let x = Tensor::ones([1], DType::F32)?;
/// let y = scan_stacked(&stacked, &x, |w: &Tensor, x: &Tensor| x.mul(w))?;
/// assert_eq!(y.to_vec::<f32>()?, [6.0]);
/// # Ok::<(), Error>(())
/// ```
pub fn scan_stacked<L: Tree, X: Tree>(
    stacked: &L,
    x: &X,
    f: impl Fn(&L, &X) -> Result<X>,
) -> Result<X> {
    over(stacked, x, ScanOptions::default(), f)
}

fn over<L: Tree, X: Tree>(
    stacked: &L,
    x: &X,
    options: ScanOptions,
    f: impl Fn(&L, &X) -> Result<X>,
) -> Result<X> {
    let step = |x: &X, layer: &L| Ok((f(layer, x)?, ()));
    let done = scan(step, x, stacked, options).map_err(|e| e.in_op("scan_layers"))?;
    Ok(done.0)
}

/// Equal layers as one, whose tensors have one more axis in front that counts the layers.
///
/// # Errors
/// If there is no layer; as for [`scan_layers`].
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let layers = [Tensor::zeros([2], DType::F32)?, Tensor::ones([2], DType::F32)?];
/// let stacked = stack_layers(&layers)?;
/// assert_eq!(stacked.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0]);
/// assert_eq!(unstack_layers(&stacked)?[1].to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), Error>(())
/// ```
pub fn stack_layers<L: Tree>(layers: &[L]) -> Result<L> {
    let shown: Vec<Parts> = layers.iter().map(Parts::of).collect();
    let Some(first) = shown.first() else {
        return Err(Error::new(ErrorKind::Value, "scan_layers", "there is no layer"));
    };
    if let Some(path) = &first.buffer {
        let text = format!("the layers have a buffer, `{path}`, of which each layer has its own");
        return Err(Error::new(ErrorKind::Value, "scan_layers", text)
            .help("run layers with running statistics one after the other"));
    }
    for (i, other) in shown.iter().enumerate().skip(1) {
        first.check(other, i)?;
    }
    let columns: Vec<Vec<&Tensor>> = layers.iter().map(leaves).collect();
    let stack = |i: usize| {
        let values = columns.iter().map(|column| column[i].value()).collect::<Result<Values>>()?;
        Ok(Tensor::from_value(ops::stack(&values, 0)?))
    };
    let stacked = (0..columns[0].len()).map(stack).collect::<Result<Vec<_>>>()?;
    rebuild(&layers[0], stacked)
}

/// The layers of which [`stack_layers`] has made one.
///
/// # Errors
/// If the tensors' sizes on axis 0 differ, or there is no tensor.
pub fn unstack_layers<L: Tree>(stacked: &L) -> Result<Vec<L>> {
    let values = values_of(stacked)?;
    let count = super::control::length_of("unstack_layers", stacked, &values, None)?;
    let layer = |i: usize| {
        let row = |x: &Value| Ok(Tensor::from_value(ops::index_axis(x, 0, i)?));
        rebuild(stacked, values.iter().map(row).collect::<Result<Vec<_>>>()?)
    };
    (0..count).map(layer).collect()
}

/// What a layer shows to a visitor, in order, each with its path.
#[derive(Default)]
struct Parts {
    at: Path,
    all: Vec<(String, Part)>,
    /// The path of the first buffer.
    buffer: Option<String>,
}

#[derive(PartialEq)]
enum Part {
    Tensor(Aval),
    /// A length, a variant, whether something is there.
    Structure(String),
    /// A static field.
    Stated(String),
}

impl<'t> Visitor<'t> for Parts {
    fn leaf(&mut self, tensor: &'t Tensor) {
        self.push(Part::Tensor(tensor.aval().unsharded()));
    }
    fn enter(&mut self, key: Key<'_>) {
        self.at.enter(key);
    }
    fn exit(&mut self) {
        self.at.exit();
    }
    fn fixed(&mut self, part: &dyn Fixed) {
        self.push(Part::Structure(part.text()));
    }
    fn stated(&mut self, key: Option<Key<'_>>, part: &dyn Fixed) {
        // A guarded value is watched from now on, in every layer.
        part.hash_into(&mut FxHasher::default());
        let stated = Part::Stated(part.text());
        match key {
            Some(key) => {
                self.enter(key);
                self.push(stated);
                self.exit();
            }
            None => self.push(stated),
        }
    }
    fn buffer(&mut self, _: &'t Tensor) {
        self.buffer.get_or_insert_with(|| self.at.text().to_owned());
    }
}

impl Parts {
    fn push(&mut self, part: Part) {
        self.all.push((self.at.text().to_owned(), part));
    }

    fn of(layer: &impl Leaves) -> Parts {
        let mut parts = Parts::default();
        layer.visit(&mut parts);
        parts
    }

    /// Checks that layer `i` is like this one, the first.
    fn check(&self, other: &Parts, i: usize) -> Result<()> {
        let pairs = self.all.iter().zip(&other.all);
        if let Some((mine, theirs)) = pairs.into_iter().find(|(a, b)| a != b) {
            return Err(differs(mine, theirs, i));
        }
        let shorter = self.all.len().min(other.all.len());
        let Some((path, _)) = self.all.get(shorter).or(other.all.get(shorter)) else {
            return Ok(());
        };
        let text = format!("only one of layers 0 and {i} has `{path}`");
        Err(Error::new(ErrorKind::Tree, "scan_layers", text))
    }
}

#[cold]
fn differs((path, mine): &(String, Part), (other, theirs): &(String, Part), i: usize) -> Error {
    let at = if path.is_empty() { String::new() } else { format!(" at `{path}`") };
    let (kind, text) = match (mine, theirs) {
        _ if path != other => {
            (ErrorKind::Tree, format!("layer 0 has `{path}` where layer {i} has `{other}`"))
        }
        (Part::Tensor(a), Part::Tensor(b)) => {
            let kind = if a.dtype() == b.dtype() { ErrorKind::Shape } else { ErrorKind::DType };
            (kind, format!("layers 0 and {i} differ{at}: {a} and {b}"))
        }
        (Part::Stated(a), Part::Stated(b)) => {
            (ErrorKind::Tree, format!("layers 0 and {i} differ{at}: {a} and {b}"))
        }
        (Part::Structure(a), Part::Structure(b)) => {
            (ErrorKind::Tree, format!("layers 0 and {i} differ in structure{at}: {a} and {b}"))
        }
        _ => (ErrorKind::Tree, format!("only one of layers 0 and {i} has a tensor{at}")),
    };
    Error::new(kind, "scan_layers", text)
        .help("scan layers that are alike; run the others before or after the loop")
}
