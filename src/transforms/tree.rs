//! Trees: values that hold tensors at their leaves.
//!
//! [`Leaves`] visits the tensors of a tree in order, with their paths; [`Tree`] can also be rebuilt
//! with other tensors at its leaves. Implemented for tensors, tuples, `Vec`, arrays, `Option`, `Box`,
//! `BTreeMap`, `IndexMap`, references (to visit only), and by `#[derive(Tree)]` for structs, whose
//! `#[tree(static)]` fields take part in equality of structure.

use crate::error::{Error, ErrorKind, Result};
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values};
use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::fmt::{Debug, Display, Write};
use std::hash::{Hash, Hasher};

/// What visits a tree: each tensor, and the places and static parts on the way to it.
pub trait Visitor<'t> {
    /// A tensor.
    fn leaf(&mut self, tensor: &'t Tensor);
    /// A place is entered: a field, an index, a key.
    fn enter(&mut self, _key: Key<'_>) {}
    /// The place entered last is left.
    fn exit(&mut self) {}
    /// A part of the structure that is no tensor: a length, a variant, a static field.
    fn fixed(&mut self, _part: &dyn Fixed) {}
    /// A part that the user marked as static: a field with its name, or what stands at this place.
    fn stated(&mut self, _key: Option<Key<'_>>, part: &dyn Fixed) {
        self.fixed(part);
    }
    /// What follows belongs to no element of an argument's tuple.
    fn beside(&mut self) {}
    /// A tensor that is state and no leaf: see [`Buffer`](crate::nn::Buffer).
    fn buffer(&mut self, _tensor: &'t Tensor) {}
}

/// One step of a path.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "a map's key need not be `Debug`")]
pub enum Key<'k> {
    /// The place in a tuple, array or `Vec`.
    Index(usize),
    /// The name of a field.
    Name(&'k str),
    /// The key of a map.
    Entry(&'k dyn Display),
}

/// A static part of a tree: compared and printed, never traced.
pub trait Fixed {
    /// Writes the part into a hash.
    fn hash_into(&self, state: &mut dyn Hasher);
    /// The part as text, by which two parts are compared.
    fn text(&self) -> String;
}

impl<T: Hash + Debug> Fixed for T {
    fn hash_into(&self, mut state: &mut dyn Hasher) {
        self.hash(&mut state);
    }
    fn text(&self) -> String {
        format!("{self:?}")
    }
}

/// A static number that is compared by its bits and printed as a number.
#[derive(Clone, Copy)]
pub struct Number(pub f64);

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Number {}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl Debug for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Debug::fmt(&self.0, f)
    }
}

/// A static argument of `jit`: a value that is no tensor, in the key and known while tracing.
///
/// Equality is that of what `T` hashes; a static float is wrapped as [`Number`].
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let f = jit(|(x, power): &(Tensor, Static<i32>)| {
///     (1..**power).try_fold(x.clone(), |y, _| y.mul(x))
/// });
/// let x = Tensor::from_slice(&[3f32], [1])?;
/// assert_eq!(f.call((&x, &Static(2)))?.to_vec::<f32>()?, [9.0]);
/// assert_eq!(f.call((&x, &Static(3)))?.to_vec::<f32>()?, [27.0]);
/// assert_eq!(f.compiled(), 2);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Static<T>(pub T);

impl<T> std::ops::Deref for Static<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Hash + Debug> Leaves for Static<T> {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        visitor.stated(None, &self.0);
    }
}

impl<T: Hash + Debug + Clone> Tree for Static<T> {
    fn map(&self, _: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Static<T>> {
        Ok(self.clone())
    }
}

/// A value whose tensors can be visited in order.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tree of tensors",
    label = "not a tree",
    note = "a field that holds no tensors is marked `#[tree(static)]`; a struct of tensors derives `Tree` or `Module`"
)]
pub trait Leaves {
    /// Shows each tensor and each static part to `visitor`, in an order that the structure fixes.
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>);
}

/// A value that can be rebuilt with other tensors at its leaves.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tree of tensors",
    label = "not a tree",
    note = "a field that holds no tensors is marked `#[tree(static)]`; a struct of tensors derives `Tree` or `Module`"
)]
pub trait Tree: Leaves {
    /// The same structure with `f` of each tensor, in the order of [`Leaves::visit`].
    ///
    /// # Errors
    /// What `f` says.
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self>
    where
        Self: Sized;
}

/// All tensors of a tree, in order.
pub fn leaves<T: Leaves + ?Sized>(tree: &T) -> Vec<&Tensor> {
    struct Collect<'t>(Vec<&'t Tensor>);
    impl<'t> Visitor<'t> for Collect<'t> {
        fn leaf(&mut self, tensor: &'t Tensor) {
            self.0.push(tensor);
        }
    }
    let mut collect = Collect(Vec::new());
    tree.visit(&mut collect);
    collect.0
}

/// The way to the place of a tree that is being visited, as text: `layers[0].weight`.
#[derive(Debug, Default)]
pub struct Path {
    at: String,
    lengths: Vec<usize>,
}

impl Path {
    /// Goes one step down.
    pub fn enter(&mut self, key: Key<'_>) {
        self.lengths.push(self.at.len());
        let dot = if self.at.is_empty() { "" } else { "." };
        // Writing to a `String` cannot fail.
        let _ = match key {
            Key::Index(i) => write!(self.at, "[{i}]"),
            Key::Name(name) => write!(self.at, "{dot}{name}"),
            Key::Entry(key) => write!(self.at, "{dot}{key}"),
        };
    }

    /// Goes back up.
    pub fn exit(&mut self) {
        self.at.truncate(self.lengths.pop().unwrap_or(0));
    }

    /// The path; empty at the root.
    pub fn text(&self) -> &str {
        &self.at
    }
}

/// The path of each tensor of a tree, in order: `layers[0].weight`; empty for a tree that is one
/// tensor.
pub fn paths<T: Leaves + ?Sized>(tree: &T) -> Vec<String> {
    #[derive(Default)]
    struct Paths {
        at: Path,
        all: Vec<String>,
    }
    impl<'t> Visitor<'t> for Paths {
        fn leaf(&mut self, _: &'t Tensor) {
            self.all.push(self.at.text().to_owned());
        }
        fn enter(&mut self, key: Key<'_>) {
            self.at.enter(key);
        }
        fn exit(&mut self) {
            self.at.exit();
        }
    }
    let mut paths = Paths::default();
    tree.visit(&mut paths);
    paths.all
}

/// The name of the `i`-th tensor of an argument, for errors: its path in backticks.
pub(crate) fn leaf_name<A: Leaves>(args: &A, i: usize) -> String {
    let path = paths(args).into_iter().nth(i).unwrap_or_default();
    if path.is_empty() { "the argument".into() } else { format!("`{path}`") }
}

/// The structure of a tree without its tensors, as text: two trees are alike if these are equal.
pub fn structure<T: Leaves + ?Sized>(tree: &T) -> String {
    #[derive(Default)]
    struct Structure(String);
    impl<'t> Visitor<'t> for Structure {
        fn leaf(&mut self, _: &'t Tensor) {
            self.0.push('*');
        }
        fn enter(&mut self, key: Key<'_>) {
            let _ = match key {
                Key::Index(i) => write!(self.0, "{i}("),
                Key::Name(name) => write!(self.0, "{name}("),
                Key::Entry(key) => write!(self.0, "{key}("),
            };
        }
        fn exit(&mut self) {
            self.0.push(')');
        }
        fn fixed(&mut self, part: &dyn Fixed) {
            let _ = write!(self.0, "<{}>", part.text());
        }
    }
    let mut structure = Structure::default();
    tree.visit(&mut structure);
    structure.0
}

/// The tree with the given tensors at its leaves.
///
/// # Errors
/// If there are more or fewer tensors than leaves.
pub fn rebuild<T: Tree>(tree: &T, tensors: impl IntoIterator<Item = Tensor>) -> Result<T> {
    let mut tensors = tensors.into_iter();
    let missing = || Error::new(ErrorKind::Tree, "tree", "there are fewer tensors than leaves");
    let out = tree.map(&mut |_| tensors.next().ok_or_else(missing))?;
    match tensors.next() {
        None => Ok(out),
        Some(_) => Err(Error::new(ErrorKind::Tree, "tree", "there are more tensors than leaves")),
    }
}

/// The values of a tree's tensors, in order.
pub(crate) fn values_of(tree: &(impl Leaves + ?Sized)) -> Result<Values> {
    leaves(tree).into_iter().map(Tensor::value).collect()
}

/// The tree with the given values at its leaves.
pub(crate) fn with_values<T: Tree>(like: &T, values: impl IntoIterator<Item = Value>) -> Result<T> {
    rebuild(like, values.into_iter().map(Tensor::from_value))
}

/// `f` of each tensor of a tree, which keeps its structure.
///
/// # Errors
/// What `f` says.
pub fn tree_map<T: Tree>(tree: &T, mut f: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<T> {
    tree.map(&mut f)
}

/// `f` of the tensors that stand at one place in two trees of one structure.
///
/// # Errors
/// If the structures differ; what `f` says.
pub fn tree_map2<T: Tree, U: Leaves>(
    tree: &T,
    other: &U,
    mut f: impl FnMut(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<T> {
    let others = leaves(other);
    let count = leaves(tree).len();
    if count != others.len() {
        let text = format!("trees of {count} and {} tensors differ in structure", others.len());
        return Err(Error::new(ErrorKind::Tree, "tree_map", text));
    }
    let mut others = others.into_iter();
    tree.map(&mut |t| match others.next() {
        Some(other) => f(t, other),
        None => Err(Error::new(ErrorKind::Tree, "tree_map", "the trees differ in structure")),
    })
}

impl Leaves for Tensor {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        visitor.leaf(self);
    }
}

impl Tree for Tensor {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        f(self)
    }
}

impl<T: Leaves + ?Sized> Leaves for &T {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        (**self).visit(visitor);
    }
}

impl<T: Leaves + ?Sized> Leaves for Box<T> {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        (**self).visit(visitor);
    }
}

impl<T: Tree> Tree for Box<T> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Box<T>> {
        Ok(Box::new((**self).map(f)?))
    }
}

impl<T: Leaves> Leaves for [T] {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        visitor.fixed(&self.len());
        for (i, item) in self.iter().enumerate() {
            visitor.enter(Key::Index(i));
            item.visit(visitor);
            visitor.exit();
        }
    }
}

impl<T: Leaves> Leaves for Vec<T> {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        self.as_slice().visit(visitor);
    }
}

impl<T: Tree> Tree for Vec<T> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Vec<T>> {
        self.iter().map(|item| item.map(f)).collect()
    }
}

impl<T: Leaves, const N: usize> Leaves for [T; N] {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        self.as_slice().visit(visitor);
    }
}

impl<T: Tree, const N: usize> Tree for [T; N] {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<[T; N]> {
        let items: Vec<T> = self.iter().map(|item| item.map(f)).collect::<Result<_>>()?;
        items.try_into().map_err(|_| Error::new(ErrorKind::Tree, "tree", "an array changed length"))
    }
}

impl<T: Leaves> Leaves for Option<T> {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        visitor.fixed(&self.is_some());
        if let Some(item) = self {
            item.visit(visitor);
        }
    }
}

impl<T: Tree> Tree for Option<T> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Option<T>> {
        self.as_ref().map(|item| item.map(f)).transpose()
    }
}

fn visit_map<'t, K: Display, T: Leaves + 't>(
    entries: impl ExactSizeIterator<Item = (K, &'t T)>,
    visitor: &mut dyn Visitor<'t>,
) {
    visitor.fixed(&entries.len());
    for (key, item) in entries {
        visitor.enter(Key::Entry(&key));
        item.visit(visitor);
        visitor.exit();
    }
}

impl<K: Display + Ord, T: Leaves> Leaves for BTreeMap<K, T> {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        visit_map(self.iter(), visitor);
    }
}

impl<K: Display + Ord + Clone, T: Tree> Tree for BTreeMap<K, T> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<BTreeMap<K, T>> {
        self.iter().map(|(key, item)| Ok((key.clone(), item.map(f)?))).collect()
    }
}

impl<K: Display + Hash + Eq, T: Leaves> Leaves for IndexMap<K, T> {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        visit_map(self.iter(), visitor);
    }
}

impl<K: Display + Hash + Eq + Clone, T: Tree> Tree for IndexMap<K, T> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<IndexMap<K, T>> {
        self.iter().map(|(key, item)| Ok((key.clone(), item.map(f)?))).collect()
    }
}

impl Leaves for () {
    fn visit<'t>(&'t self, _: &mut dyn Visitor<'t>) {}
}

impl Tree for () {
    fn map(&self, _: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<()> {
        Ok(())
    }
}

macro_rules! tuples {
    ($(($($T:ident $i:tt),+))*) => {$(
        impl<$($T: Leaves),+> Leaves for ($($T,)+) {
            fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
                $(
                    visitor.enter(Key::Index($i));
                    self.$i.visit(visitor);
                    visitor.exit();
                )+
            }
        }

        impl<$($T: Tree),+> Tree for ($($T,)+) {
            fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
                Ok(($(self.$i.map(f)?,)+))
            }
        }
    )*};
}

tuples! {
    (A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5) (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}
