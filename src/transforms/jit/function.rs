//! What `jit` takes: a function of one tree, and what may be passed for the tree.

use crate::error::Result;
use crate::transforms::tree::Tree;

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
