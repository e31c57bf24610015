//! Random tensors: torch's functions over a [`Generator`], and JAX's over a [`Key`].
//!
//! Both draw the same numbers eagerly, inside of `jit` and on every device: Threefry-2x32, bit for
//! bit as in JAX. A generator's state is a tensor, so inside of `jit` it is a hidden argument and
//! result, and each call of a compiled function draws anew.

use super::promotion::{Kind, Operand, elementwise};
use super::{placed, wrap};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{self, collective, distributions, rng};
use crate::shape::Shape;
use crate::trace::batch::{axis_env, note_axes_read};
use crate::trace::cell::Tensor;
use crate::trace::{Value, with_current};
use crate::transforms::tree::{Leaves, Tree, Visitor};
use std::sync::{Mutex, PoisonError};

/// A stream of random numbers with a state, as `torch.Generator`.
#[derive(Debug)]
pub struct Generator {
    key: Tensor,
    /// Held while the state is read and written, so that two threads do not draw the same.
    drawing: Mutex<()>,
}

static DEFAULT: Mutex<Option<Tensor>> = Mutex::new(None);
static DRAWING: Mutex<()> = Mutex::new(());

/// The seed of the default generator before [`manual_seed`].
const FIRST_SEED: u64 = 0;

/// A seed's key as data, made outside of any transform.
fn seeded(seed: u64) -> Result<Value> {
    with_current(None, || rng::key_from_seed(seed))
}

/// The state of the default generator, made when first asked for.
fn default_state() -> Result<Tensor> {
    let mut state = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(state) = &*state {
        return Ok(state.clone());
    }
    let key = seeded(FIRST_SEED)?;
    let made = with_current(None, || Tensor::from_value(key));
    Ok(state.insert(made).clone())
}

/// Takes a key from a state, which moves on.
fn advance(state: &Tensor, drawing: &Mutex<()>) -> Result<Value> {
    let _drawing = drawing.lock().unwrap_or_else(PoisonError::into_inner);
    let keys = rng::split(&state.value()?, 2)?;
    state.set_value(ops::index_axis(&keys, 0, 0)?)?;
    own_key(ops::index_axis(&keys, 0, 1)?)
}

/// Inside of `vmap` a key of its own for each example, so that their draws differ.
fn own_key(mut key: Value) -> Result<Value> {
    note_axes_read();
    for axis in axis_env().iter().rev() {
        let index = ops::convert(&collective::axis_index(axis)?, DType::U32)?;
        key = rng::fold_in(&key, &index)?;
    }
    Ok(key)
}

/// A key for one draw from the default generator.
pub(crate) fn next_key() -> Result<Value> {
    advance(&default_state()?, &DRAWING)
}

/// Seeds the default generator: the same seed gives the same numbers after it.
///
/// **Unlike torch:** the numbers are JAX's for the keys split from `seed`; without a call the seed
/// is 0.
///
/// # Errors
/// If the device refuses.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// use oxbridge::tensor::random::manual_seed;
/// manual_seed(7)?;
/// let x = Tensor::randn([3])?;
/// manual_seed(7)?;
/// assert!(x.equal(&Tensor::randn([3])?)?);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** [torch.manual_seed](https://docs.pytorch.org/docs/stable/generated/torch.manual_seed.html).
#[track_caller]
pub fn manual_seed(seed: u64) -> Result<()> {
    placed(seeded(seed).and_then(|key| default_state()?.set_value(key)))
}

impl Generator {
    /// A generator of its own with the given seed.
    ///
    /// # Errors
    /// If the device refuses.
    #[track_caller]
    pub fn new(seed: u64) -> Result<Generator> {
        let key = Tensor::from_value(placed(seeded(seed))?);
        Ok(Generator { key, drawing: Mutex::new(()) })
    }

    /// Starts the stream of another seed.
    #[track_caller]
    pub fn manual_seed(&self, seed: u64) -> Result<()> {
        placed(seeded(seed).and_then(|key| self.key.set_value(key)))
    }

    /// The state: a tensor `u32[2]`, to be saved and written back with `copy_`.
    pub fn state(&self) -> &Tensor {
        &self.key
    }

    /// A key for functional draws; the stream moves on.
    #[track_caller]
    pub fn key(&self) -> Result<Key> {
        wrap(advance(&self.key, &self.drawing)).map(Key)
    }
}

/// A key of JAX's functional random numbers. A draw consumes it: split it first to draw again.
#[derive(Debug)]
pub struct Key(Tensor);

impl Key {
    /// The key of a seed (`jax.random.key`).
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// use oxbridge::tensor::random::Key;
    /// let mut keys = Key::new(0)?.split(2)?;
    /// let x = keys.remove(0).normal([2], DType::F32)?;
    /// let y = keys.remove(0).normal([2], DType::F32)?;
    /// assert!(!x.equal(&y)?);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn new(seed: u64) -> Result<Key> {
        wrap(rng::key_from_seed(seed)).map(Key)
    }

    /// The key whose two words a tensor `u32[2]` holds.
    pub fn from_data(data: &Tensor) -> Key {
        Key(data.clone())
    }

    /// The two words, `u32[2]`.
    pub fn data(&self) -> &Tensor {
        &self.0
    }

    /// `n` keys for independent draws (`jax.random.split`).
    #[track_caller]
    pub fn split(self, n: usize) -> Result<Vec<Key>> {
        let run = || {
            let keys = rng::split(&self.0.value()?, n)?;
            let key = |i| Ok(Key(Tensor::from_value(ops::index_axis(&keys, 0, i)?)));
            (0..n).map(key).collect()
        };
        placed(run())
    }

    /// The key of a numbered stream (`jax.random.fold_in`); the key itself stays usable.
    #[track_caller]
    pub fn fold_in(&self, data: u32) -> Result<Key> {
        let data = Value::scalar(Scalar::new(data));
        wrap(self.0.value().and_then(|key| rng::fold_in(&key, &data))).map(Key)
    }

    #[track_caller]
    fn draw(self, f: impl FnOnce(&Value) -> Result<Value>) -> Result<Tensor> {
        wrap(self.0.value().and_then(|key| f(&key)))
    }

    /// Numbers of the standard normal distribution (`jax.random.normal`).
    #[track_caller]
    pub fn normal(self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        self.draw(|key| distributions::normal(key, &shape.into(), dtype))
    }

    /// Numbers evenly from `low` to `high` (`jax.random.uniform`).
    #[track_caller]
    pub fn uniform(
        self,
        shape: impl Into<Shape>,
        dtype: DType,
        low: f64,
        high: f64,
    ) -> Result<Tensor> {
        self.draw(|key| uniform(key, &shape.into(), dtype, low, high))
    }

    /// Integers from `low` to `high`, which is left out (`jax.random.randint`).
    #[track_caller]
    pub fn randint(
        self,
        shape: impl Into<Shape>,
        dtype: DType,
        low: i64,
        high: i64,
    ) -> Result<Tensor> {
        self.draw(|key| distributions::randint(key, &shape.into(), dtype, low.into(), high.into()))
    }

    /// `true` with probability `p` (`jax.random.bernoulli`).
    #[track_caller]
    pub fn bernoulli(self, p: f32, shape: impl Into<Shape>) -> Result<Tensor> {
        self.draw(|key| {
            distributions::bernoulli(key, &shape.into(), &Value::scalar(Scalar::new(p)))
        })
    }
}

impl Leaves for Key {
    fn visit<'t>(&'t self, visitor: &mut dyn Visitor<'t>) {
        visitor.leaf(&self.0);
    }
}

impl Tree for Key {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Key> {
        f(&self.0).map(Key)
    }
}

fn uniform(key: &Value, shape: &Shape, dtype: DType, low: f64, high: f64) -> Result<Value> {
    let end = |v| Value::scalar(Scalar::from_f64(dtype, v));
    distributions::uniform(key, shape, dtype, &end(low), &end(high))
}

impl Tensor {
    #[track_caller]
    fn drawn(f: impl FnOnce(&Value) -> Result<Value>) -> Result<Tensor> {
        wrap(next_key().and_then(|key| f(&key)))
    }

    /// Numbers of the standard normal distribution, `f32`, from the default generator.
    ///
    /// **Source:** [torch.randn](https://docs.pytorch.org/docs/stable/generated/torch.randn.html).
    #[track_caller]
    pub fn randn(shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::drawn(|key| distributions::normal(key, &shape.into(), DType::F32))
    }

    /// Numbers evenly from 0 to 1, `f32`, from the default generator.
    ///
    /// **Source:** [torch.rand](https://docs.pytorch.org/docs/stable/generated/torch.rand.html).
    #[track_caller]
    pub fn rand(shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::drawn(|key| uniform(key, &shape.into(), DType::F32, 0.0, 1.0))
    }

    /// Integers from `low` to `high`, which is left out, `i64`, from the default generator.
    ///
    /// # Errors
    /// If `high` is not above `low`.
    ///
    /// **Source:** [torch.randint](https://docs.pytorch.org/docs/stable/generated/torch.randint.html).
    #[track_caller]
    pub fn randint(low: i64, high: i64, shape: impl Into<Shape>) -> Result<Tensor> {
        if high <= low {
            let text = format!("there is no integer from {low} to below {high}");
            return placed(Err(Error::new(ErrorKind::Value, "randint", text)));
        }
        Tensor::drawn(|key| {
            distributions::randint(key, &shape.into(), DType::I64, low.into(), high.into())
        })
    }

    /// The integers `0..n` in random order, `i64`, from the default generator.
    ///
    /// **Source:** [torch.randperm](https://docs.pytorch.org/docs/stable/generated/torch.randperm.html).
    #[track_caller]
    pub fn randperm(n: usize) -> Result<Tensor> {
        Tensor::drawn(|key| ops::convert(&distributions::permutation(key, n)?, DType::I64))
    }

    /// Standard normal numbers in the shape and floating dtype of `self`.
    #[track_caller]
    pub fn randn_like(&self) -> Result<Tensor> {
        Tensor::drawn(|key| distributions::normal(key, &self.shape(), self.dtype()))
    }

    /// Numbers evenly from 0 to 1 in the shape and floating dtype of `self`.
    #[track_caller]
    pub fn rand_like(&self) -> Result<Tensor> {
        Tensor::drawn(|key| uniform(key, &self.shape(), self.dtype(), 0.0, 1.0))
    }

    /// 1 with the probability that each element of `self` is, else 0, in its dtype.
    ///
    /// **Source:** [torch.bernoulli](https://docs.pytorch.org/docs/stable/generated/torch.bernoulli.html).
    #[track_caller]
    pub fn bernoulli(&self) -> Result<Tensor> {
        let draws = self.detach()?.rand_like()?.lt(self)?;
        draws.to_dtype(self.dtype())
    }

    /// Writes numbers of the normal distribution with the given mean and standard deviation.
    #[track_caller]
    pub fn normal_(&self, mean: f64, std: f64) -> Result<Tensor> {
        let new = self.randn_like()?.mul(std)?.add(mean);
        placed(self.store("normal_", new))
    }

    /// Writes numbers evenly from `from` to `to`.
    #[track_caller]
    pub fn uniform_(&self, from: f64, to: f64) -> Result<Tensor> {
        let new = Tensor::drawn(|key| uniform(key, &self.shape(), self.dtype(), from, to));
        placed(self.store("uniform_", new))
    }

    /// When training, each element with probability `p` zero, else divided by `1 - p`; `self` as it
    /// is otherwise.
    ///
    /// # Errors
    /// If `p` is not from 0 to 1.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let x = Tensor::ones([1000], DType::F32)?;
    /// let kept = x.dropout(0.25, true)?.count_nonzero()?.item::<i64>()?;
    /// assert!((650..850).contains(&kept));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// **Source:** [torch.nn.functional.dropout](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html).
    #[track_caller]
    pub fn dropout(&self, p: f64, training: bool) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&p) {
            let text = format!("the probability {p} is not from 0 to 1");
            return placed(Err(Error::new(ErrorKind::Value, "dropout", text)));
        }
        if !training || p == 0.0 {
            return Ok(self.clone());
        }
        let keep = Value::scalar(Scalar::new((1.0 - p) as f32));
        let kept = Tensor::drawn(|key| distributions::bernoulli(key, &self.shape(), &keep))?;
        let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        let operands = [self.into(), (&kept).into(), Operand::from(scale)];
        wrap(elementwise("dropout", Kind::ManyFloat, &[], &operands, |v| {
            let on = ops::ne(&v[1], &ops::full_like(&v[1], 0.0)?)?;
            ops::select(&on, &ops::mul(&v[0], &v[2])?, &ops::full_like(&v[0], 0.0)?)
        }))
    }
}
