//! Derivatives in some of the arguments only: JAX's `argnums`.
//!
//! The arguments are a tuple. [`Arg<N>`](Arg) chooses one, a tuple of them several; a number that is
//! no place of the tuple does not compile.

use super::grad::value_and_grad;
use super::tree::Tree;
use crate::error::{Error, ErrorKind, Result};
use crate::trace::cell::Tensor;

/// The argument at place `N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arg<const N: usize>;

/// A tuple with a place `N`.
pub trait Place<const N: usize> {
    /// What stands there.
    type Item: Tree + Clone;

    /// What stands there.
    fn item(&self) -> &Self::Item;

    /// Puts something else there.
    fn set_item(&mut self, item: Self::Item);
}

/// A choice among the elements of an argument tuple `A`: [`Arg<N>`](Arg), or a tuple of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose among the arguments `{A}`",
    note = "write `Arg::<0>` for one argument of a tuple, or `(Arg::<0>, Arg::<2>)` for several"
)]
pub trait Select<A> {
    /// What is chosen: the element, or the tuple of them.
    type Chosen: Tree + Clone;

    /// The places chosen, in order.
    fn places(&self) -> Vec<usize>;

    /// What is chosen.
    fn choose(&self, args: &A) -> Self::Chosen;

    /// Puts other values at the places chosen.
    fn put(&self, args: &mut A, chosen: &Self::Chosen);
}

impl<const N: usize, A: Place<N>> Select<A> for Arg<N> {
    type Chosen = A::Item;

    fn places(&self) -> Vec<usize> {
        vec![N]
    }

    fn choose(&self, args: &A) -> A::Item {
        args.item().clone()
    }

    fn put(&self, args: &mut A, chosen: &A::Item) {
        args.set_item(chosen.clone());
    }
}

macro_rules! selections {
    ($(($($S:ident $i:tt),+))*) => {$(
        impl<A, $($S: Select<A>),+> Select<A> for ($($S,)+) {
            type Chosen = ($($S::Chosen,)+);

            fn places(&self) -> Vec<usize> {
                [$(self.$i.places()),+].concat()
            }

            fn choose(&self, args: &A) -> Self::Chosen {
                ($(self.$i.choose(args),)+)
            }

            fn put(&self, args: &mut A, chosen: &Self::Chosen) {
                $(self.$i.put(args, &chosen.$i);)+
            }
        }
    )*};
}

selections! {
    (S 0) (S 0, T 1) (S 0, T 1, U 2) (S 0, T 1, U 2, V 3) (S 0, T 1, U 2, V 3, W 4)
}

macro_rules! place {
    ([$($T:ident)+] $N:literal $Item:ident $i:tt) => {
        impl<$($T),+> Place<$N> for ($($T,)+)
        where
            $Item: Tree + Clone,
        {
            type Item = $Item;

            fn item(&self) -> &$Item {
                &self.$i
            }

            fn set_item(&mut self, item: $Item) {
                self.$i = item;
            }
        }
    };
}

macro_rules! places {
    ($($all:tt $(($N:literal $Item:ident $i:tt))+;)*) => {$($(place! { $all $N $Item $i })+)*};
}

places! {
    [A] (0 A 0);
    [A B] (0 A 0) (1 B 1);
    [A B C] (0 A 0) (1 B 1) (2 C 2);
    [A B C D] (0 A 0) (1 B 1) (2 C 2) (3 D 3);
    [A B C D E] (0 A 0) (1 B 1) (2 C 2) (3 D 3) (4 E 4);
    [A B C D E F] (0 A 0) (1 B 1) (2 C 2) (3 D 3) (4 E 4) (5 F 5);
    [A B C D E F G] (0 A 0) (1 B 1) (2 C 2) (3 D 3) (4 E 4) (5 F 5) (6 G 6);
    [A B C D E F G H] (0 A 0) (1 B 1) (2 C 2) (3 D 3) (4 E 4) (5 F 5) (6 G 6) (7 H 7);
}

/// What `S` chooses of the arguments `A`.
pub type Chosen<S, A> = <S as Select<A>>::Chosen;

/// The chosen arguments, and `f` as a function of these alone, the others being constants: what
/// any derivative in some of the arguments is taken of.
///
/// # Errors
/// If an argument is chosen twice.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let args = (
///     Tensor::from_slice(&[2f32, 3.], [2])?,
///     Tensor::from_slice(&[1i64], [])?,
///     Tensor::from_slice(&[5f32], [])?,
/// );
/// let f = |(x, n, y): &(Tensor, Tensor, Tensor)| x.mul(x)?.mul(y)?.add(n)?.sum();
/// let (xy, f_of_xy) = argnums((Arg::<0>, Arg::<2>), f, &args)?;
/// let (dx, dy) = grad(f_of_xy)(&xy)?;
/// assert_eq!(dx.to_vec::<f32>()?, [20., 30.]);
/// assert_eq!(dy.item::<f32>()?, 13.0);
/// let (x, f_of_x) = argnums(Arg::<0>, f, &args)?;
/// assert_eq!(hessian(f_of_x)(&x)?.to_vec::<f32>()?, [10., 0., 0., 10.]);
/// # Ok::<(), Error>(())
/// ```
#[expect(clippy::type_complexity, reason = "a pair; a closure's type has no name")]
pub fn argnums<S: Select<A>, A: Clone, B, F: Fn(&A) -> Result<B>>(
    select: S,
    f: F,
    args: &A,
) -> Result<(Chosen<S, A>, impl Fn(&Chosen<S, A>) -> Result<B> + use<S, A, B, F>)> {
    check(&select.places())?;
    let (chosen, args) = (select.choose(args), args.clone());
    let of_chosen = move |chosen: &S::Chosen| {
        let mut args = args.clone();
        select.put(&mut args, chosen);
        f(&args)
    };
    Ok((chosen, of_chosen))
}

/// [`grad`](super::grad()) in the chosen arguments alone.
///
/// # Errors
/// The function given fails if an argument is chosen twice, and as `grad`'s does.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let f = |(x, y): &(Tensor, Tensor)| x.mul(y)?.sum();
/// let args = (Tensor::from_slice(&[2f32], [1])?, Tensor::from_slice(&[7i32], [1])?);
/// assert_eq!(grad_argnums(Arg::<0>, f)(&args)?.to_vec::<f32>()?, [7.]);
/// # Ok::<(), Error>(())
/// ```
pub fn grad_argnums<S: Select<A> + Clone, A: Clone>(
    select: S,
    f: impl Fn(&A) -> Result<Tensor>,
) -> impl Fn(&A) -> Result<S::Chosen> {
    let f = value_and_grad_argnums(select, f);
    move |args| Ok(f(args)?.1)
}

/// [`value_and_grad`](super::value_and_grad()) in the chosen arguments alone.
///
/// # Errors
/// As for [`grad_argnums`].
pub fn value_and_grad_argnums<S: Select<A> + Clone, A: Clone>(
    select: S,
    f: impl Fn(&A) -> Result<Tensor>,
) -> impl Fn(&A) -> Result<(Tensor, S::Chosen)> {
    move |args| {
        let (chosen, of_chosen) = argnums(select.clone(), &f, args)?;
        value_and_grad(of_chosen)(&chosen)
    }
}

fn check(places: &[usize]) -> Result<()> {
    for (i, place) in places.iter().enumerate() {
        if places[..i].contains(place) {
            let text = format!("argument {place} is chosen twice");
            return Err(Error::new(ErrorKind::Value, "argnums", text));
        }
    }
    Ok(())
}
