//! Which axis of each tensor of a tree `vmap` maps over: [`Axes`], a prefix of the tree.

use super::tree::{Key, Leaves, Visitor, leaf_name};
use crate::error::{Error, ErrorKind, Result};
use crate::trace::cell::Tensor;
use rustc_hash::FxHashSet;

/// Axes for the tensors of a tree: one for all of them, or one for each element.
///
/// Written as a number, `None`, tuples, arrays and `Vec`s of these, or [`Axes::fields`].
///
/// # Example
/// ```
/// use oxbridge::transforms::{Axes, IntoAxes};
/// let axes = (0, None, [1, -1]).into_axes();
/// let pair = Axes::Each(vec![Axes::At(1), Axes::At(-1)]);
/// assert_eq!(axes, Axes::Each(vec![Axes::At(0), Axes::Unmapped, pair]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Axes {
    /// No tensor below is mapped: `None`.
    Unmapped,
    /// All tensors below are mapped over this axis; a negative one counts from the end.
    At(isize),
    /// One entry for each element of a tuple, array or `Vec`.
    Each(Vec<Axes>),
    /// One entry for each field of a struct, or key of a map, by its name.
    Fields(Vec<(String, Axes)>),
}

impl Axes {
    /// Axes for the fields of a struct or the keys of a map; each has to be named.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// use oxbridge::transforms::Axes;
    /// #[derive(Clone, Tree)]
    /// struct Affine {
    ///     scale: Tensor,
    ///     shift: Tensor,
    /// }
    /// let axes = Axes::fields([("scale", None), ("shift", Some(0))]);
    /// let apply = vmap_with(|a: &Affine| a.scale.add(&a.shift), VmapOptions::new().in_axes(axes));
    /// let scale = Tensor::from_slice(&[1f32, 2.], [2])?;
    /// let shift = Tensor::from_slice(&[10f32, 20., 30.], [3])?;
    /// let out = apply(&Affine { scale, shift })?;
    /// assert_eq!(out.to_vec::<f32>()?, [11., 12., 21., 22., 31., 32.]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn fields<N: Into<String>>(fields: impl IntoIterator<Item = (N, impl IntoAxes)>) -> Axes {
        Axes::Fields(fields.into_iter().map(|(n, axes)| (n.into(), axes.into_axes())).collect())
    }
}

/// What can be written where [`Axes`] are wanted.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which axes are mapped",
    note = "write a number, `None`, `Some(number)`, or a tuple, array or `Vec` of these"
)]
pub trait IntoAxes {
    /// The axes.
    fn into_axes(self) -> Axes;
}

impl IntoAxes for Axes {
    fn into_axes(self) -> Axes {
        self
    }
}

impl IntoAxes for i32 {
    fn into_axes(self) -> Axes {
        Axes::At(self as isize)
    }
}

impl IntoAxes for isize {
    fn into_axes(self) -> Axes {
        Axes::At(self)
    }
}

impl IntoAxes for Option<isize> {
    fn into_axes(self) -> Axes {
        self.map_or(Axes::Unmapped, Axes::At)
    }
}

impl<T: IntoAxes> IntoAxes for Vec<T> {
    fn into_axes(self) -> Axes {
        Axes::Each(self.into_iter().map(T::into_axes).collect())
    }
}

impl<T: IntoAxes, const N: usize> IntoAxes for [T; N] {
    fn into_axes(self) -> Axes {
        Axes::Each(self.into_iter().map(T::into_axes).collect())
    }
}

macro_rules! tuples {
    ($(($($T:ident $i:tt),+))*) => {$(
        impl<$($T: IntoAxes),+> IntoAxes for ($($T,)+) {
            fn into_axes(self) -> Axes {
                Axes::Each(vec![$(self.$i.into_axes()),+])
            }
        }
    )*};
}

tuples! {
    (A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5) (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

/// For each tensor of a tree what the prefix says; `what` is the option's name.
///
/// # Errors
/// If the prefix does not fit the tree.
pub(super) fn resolve<T: Leaves>(
    axes: &Axes,
    tree: &T,
    what: &'static str,
) -> Result<Vec<Option<isize>>> {
    let mut walk = Walk { open: vec![Some(axes)], reached: FxHashSet::default(), found: vec![] };
    tree.visit(&mut walk);
    let Walk { reached, found, .. } = walk;
    let axis = |(i, axes): (usize, Option<&Axes>)| match axes {
        Some(Axes::Unmapped) => Ok(None),
        Some(Axes::At(axis)) => Ok(Some(*axis)),
        axes => Err(misfit(tree, i, what, axes)),
    };
    let all = found.into_iter().enumerate().map(axis).collect::<Result<_>>()?;
    match unreached(axes, &reached) {
        None => Ok(all),
        Some(path) => {
            let text = format!("`{what}` has an entry for `{path}`, which the tree does not have");
            Err(Error::new(ErrorKind::Tree, "vmap", text))
        }
    }
}

#[cold]
fn misfit<T: Leaves>(tree: &T, i: usize, what: &str, axes: Option<&Axes>) -> Error {
    let name = leaf_name(tree, i);
    let text = match axes {
        None => format!("`{what}` has no entry for {name}"),
        Some(_) => format!("`{what}` has several entries for {name}, which is one tensor"),
    };
    Error::new(ErrorKind::Tree, "vmap", text)
        .help("give one axis for all tensors below a place, or one entry for each of its elements")
}

struct Walk<'a> {
    /// What the prefix says of the places entered; none if it says nothing.
    open: Vec<Option<&'a Axes>>,
    /// The entries that belong to a place, by address.
    reached: FxHashSet<usize>,
    /// What it says of each tensor.
    found: Vec<Option<&'a Axes>>,
}

fn address(axes: &Axes) -> usize {
    std::ptr::from_ref(axes).addr()
}

fn child<'a>(axes: &'a Axes, key: Key<'_>) -> Option<&'a Axes> {
    let named = |fields: &'a [(String, Axes)], name: &str| {
        fields.iter().find(|(n, _)| n == name).map(|(_, axes)| axes)
    };
    match (axes, key) {
        (Axes::Unmapped | Axes::At(_), _) => Some(axes),
        (Axes::Each(list), Key::Index(i)) => list.get(i),
        (Axes::Fields(fields), Key::Name(name)) => named(fields, name),
        (Axes::Fields(fields), Key::Entry(key)) => named(fields, &key.to_string()),
        _ => None,
    }
}

impl<'t> Visitor<'t> for Walk<'_> {
    fn leaf(&mut self, _: &'t Tensor) {
        self.found.push(self.open.last().copied().flatten());
    }

    fn enter(&mut self, key: Key<'_>) {
        let axes = self.open.last().copied().flatten().and_then(|axes| child(axes, key));
        self.reached.extend(axes.map(address));
        self.open.push(axes);
    }

    fn exit(&mut self) {
        self.open.pop();
    }
}

/// The path of an entry that no place of the tree has.
fn unreached(axes: &Axes, reached: &FxHashSet<usize>) -> Option<String> {
    let children: Vec<(String, &Axes)> = match axes {
        Axes::Unmapped | Axes::At(_) => return None,
        Axes::Each(list) => list.iter().enumerate().map(|(i, a)| (format!("[{i}]"), a)).collect(),
        Axes::Fields(fields) => fields.iter().map(|(n, a)| (format!(".{n}"), a)).collect(),
    };
    let below = |(path, axes): (String, &Axes)| match reached.contains(&address(axes)) {
        false => Some(path),
        true => unreached(axes, reached).map(|rest| format!("{path}{rest}")),
    };
    let path = children.into_iter().find_map(below)?;
    Some(path.strip_prefix('.').map_or(path.clone(), str::to_owned))
}
