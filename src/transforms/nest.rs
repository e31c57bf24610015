//! Trees of trees: what a Jacobian is.

use super::tree::{Tree, paths};
use crate::error::{Error, ErrorKind, Result};
use crate::trace::cell::Tensor;
use indexmap::IndexMap;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::Hash;

/// A tree at whose tensors other trees can stand.
///
/// | the tree | with a tree `A` at each tensor |
/// |---|---|
/// | `Tensor` | `A` |
/// | a tuple, an array, `Vec`, `Option`, `Box`, a map | the same of the elements' |
/// | a struct or an enum that derives `Tree` or `Module` | `IndexMap<String, A>`, by the paths of its tensors |
///
/// A Jacobian is the result's structure with the argument's structure at each tensor: that of a
/// function from `(Tensor, Tensor)` to `Vec<Tensor>` is a `Vec<(Tensor, Tensor)>`.
pub trait Nest: Tree {
    /// The structure with `A` at each tensor.
    type Of<A: Tree>: Tree;

    /// The structure with `f` of each tensor, in the order of
    /// [`Leaves::visit`](super::tree::Leaves::visit).
    ///
    /// # Errors
    /// What `f` says.
    fn nest<A: Tree>(&self, f: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<Self::Of<A>>;
}

/// A tree at each tensor of a struct, by the tensor's path.
pub type ByPath<A> = IndexMap<String, A>;

/// `f` of each tensor of a tree by the tensor's path: how a struct nests.
///
/// # Errors
/// What `f` says.
pub fn by_path<T: Tree, A>(tree: &T, f: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<ByPath<A>> {
    let all = super::tree::leaves(tree);
    paths(tree).into_iter().zip(all).map(|(path, tensor)| Ok((path, f(tensor)?))).collect()
}

impl Nest for Tensor {
    type Of<A: Tree> = A;

    fn nest<A: Tree>(&self, f: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<A> {
        f(self)
    }
}

impl<T: Nest> Nest for Box<T> {
    type Of<A: Tree> = Box<T::Of<A>>;

    fn nest<A: Tree>(&self, f: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<Self::Of<A>> {
        Ok(Box::new((**self).nest(f)?))
    }
}

impl<T: Nest> Nest for Vec<T> {
    type Of<A: Tree> = Vec<T::Of<A>>;

    fn nest<A: Tree>(&self, f: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<Self::Of<A>> {
        self.iter().map(|item| item.nest(f)).collect()
    }
}

impl<T: Nest, const N: usize> Nest for [T; N] {
    type Of<A: Tree> = [T::Of<A>; N];

    fn nest<A: Tree>(&self, f: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<Self::Of<A>> {
        let items: Vec<_> = self.iter().map(|item| item.nest(f)).collect::<Result<_>>()?;
        items.try_into().map_err(|_| Error::new(ErrorKind::Tree, "tree", "an array changed length"))
    }
}

impl<T: Nest> Nest for Option<T> {
    type Of<A: Tree> = Option<T::Of<A>>;

    fn nest<A: Tree>(&self, f: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<Self::Of<A>> {
        self.as_ref().map(|item| item.nest(f)).transpose()
    }
}

impl<K: Display + Ord + Clone, T: Nest> Nest for BTreeMap<K, T> {
    type Of<A: Tree> = BTreeMap<K, T::Of<A>>;

    fn nest<A: Tree>(&self, f: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<Self::Of<A>> {
        self.iter().map(|(key, item)| Ok((key.clone(), item.nest(f)?))).collect()
    }
}

impl<K: Display + Hash + Eq + Clone, T: Nest> Nest for IndexMap<K, T> {
    type Of<A: Tree> = IndexMap<K, T::Of<A>>;

    fn nest<A: Tree>(&self, f: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<Self::Of<A>> {
        self.iter().map(|(key, item)| Ok((key.clone(), item.nest(f)?))).collect()
    }
}

impl Nest for () {
    type Of<A: Tree> = ();

    fn nest<A: Tree>(&self, _: &mut dyn FnMut(&Tensor) -> Result<A>) -> Result<()> {
        Ok(())
    }
}

macro_rules! tuples {
    ($(($($T:ident $i:tt),+))*) => {$(
        impl<$($T: Nest),+> Nest for ($($T,)+) {
            type Of<Inner: Tree> = ($($T::Of<Inner>,)+);

            fn nest<Inner: Tree>(
                &self,
                f: &mut dyn FnMut(&Tensor) -> Result<Inner>,
            ) -> Result<Self::Of<Inner>> {
                Ok(($(self.$i.nest(f)?,)+))
            }
        }
    )*};
}

tuples! {
    (A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5) (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}
