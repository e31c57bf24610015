//! Before the first call: compiling for types, and the types of results.

use super::explain::Readable;
use super::{Function, IntoTree, Jit, jit};
use crate::array::{Array, Place};
use crate::error::Result;
use crate::trace::cell::Tensor;
use crate::transforms::tree::{Tree, rebuild};
use std::panic::Location;

impl<A: Tree, B: Tree, M, F: Function<A, B, M>> Jit<A, B, M, F> {
    /// Compiles the programs for several arguments and runs none; the first calls with arguments of
    /// these types compile nothing. Tensors may be types without data, [`Tensor::meta`]. Gives how
    /// many had to be traced.
    ///
    /// # Errors
    /// What the function says while it is traced; what the compiler says;
    /// [`ErrorKind::NotConcrete`](crate::ErrorKind::NotConcrete) inside of another transform.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let double = jit(|x: &Tensor| x.mul(2));
    /// let sizes = [1, 8, 64].map(|n| Tensor::meta([n], DType::F32));
    /// assert_eq!(double.warm_up(&sizes)?, 3);
    /// let x = Tensor::from_slice(&[1f32; 8], [8])?;
    /// let _serving = forbid_compile();
    /// assert_eq!(double.call(&x)?.to_vec::<f32>()?, [2.0; 8]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn warm_up<T: IntoTree<A>>(&self, args: impl IntoIterator<Item = T>) -> Result<usize> {
        let location = Location::caller();
        let before = self.compiled();
        for args in args {
            args.with_tree(|args| self.lower_at(args, location))?.compile()?;
        }
        Ok(self.compiled() - before)
    }
}

/// The result of `f` as types without data ([`Tensor::meta`]): `f` is traced, nothing is compiled,
/// run or written to tensors from outside.
///
/// # Errors
/// What `f` says.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// use oxbridge::transforms::eval_shape;
/// let f = |(x, w): &(Tensor, Tensor)| x.matmul(w);
/// let (x, w) = (Tensor::meta([8, 3], DType::F32), Tensor::meta([3, 5], DType::F32));
/// assert_eq!(eval_shape(f, (&x, &w))?.aval().to_string(), "f32[8,5]");
/// # Ok::<(), Error>(())
/// ```
pub fn eval_shape<A: Tree, B: Tree, M>(
    f: impl Function<A, B, M>,
    args: impl IntoTree<A>,
) -> Result<B> {
    let f = jit(f);
    args.with_tree(|args| {
        let request = f.request(args)?;
        let entry = f.trace(args, &request, Readable::default())?;
        let place = Place { device: None, committed: false };
        let types = entry.call.graph.out_avals().into_iter().take(entry.results);
        rebuild(&entry.out, types.map(|t| Tensor::from_value(Array::meta(t, place).into())))
    })
}
