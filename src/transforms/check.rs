//! `check_grads`: derivatives against differences.
//!
//! A function is taken as one of its differentiable tensors to its differentiable results; the
//! others stay as they are. Forwards, `jvp` along a random direction is compared with a difference
//! of fourth order along it; backwards, `vjp` of a random cotangent, paired with the direction. For
//! the next order the same is done to the function's `jvp` and to its `vjp`.

use super::tree::{Leaves, Tree, leaves, paths, rebuild};
use super::{jvp, vjp};
use crate::array::Array;
use crate::backend::Device;
use crate::backend::host::{HostArray, convert::convert};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::shape::Shape;
use crate::trace::Value;
use crate::trace::cell::Tensor;
use num_complex::Complex;
use std::fmt;

/// A direction of differentiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `jvp`: from tangents of the arguments to those of the results.
    Forward,
    /// `vjp`: from cotangents of the results to those of the arguments.
    Reverse,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Forward => "jvp",
            Mode::Reverse => "vjp",
        })
    }
}

/// How [`check_grads`] compares.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// What is checked.
    pub modes: Vec<Mode>,
    /// The step of the differences; none for one that fits the lowest precision among the
    /// arguments: 1e-4 for f64, 2e-2 for f32, 1/8 for f16, 1/4 for bf16.
    pub eps: Option<f64>,
    /// The error accepted relative to the larger number; none for 1e-6 (f64), 2e-3 (f32), 3e-2
    /// (f16), 1e-1 (bf16), of the lowest precision among arguments and results.
    pub rtol: Option<f64>,
    /// The absolute error accepted besides; none for the same as `rtol`.
    pub atol: Option<f64>,
    /// What the random directions are drawn from.
    pub seed: u64,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        let modes = vec![Mode::Forward, Mode::Reverse];
        CheckOptions { modes, eps: None, rtol: None, atol: None, seed: 0 }
    }
}

/// Compares the derivatives of `f` at `args` with differences, up to the given order: 2 checks the
/// derivatives of the derivatives, too.
///
/// Integer and bool tensors of the argument stay as they are, those of the result are left out.
/// `f` must be smooth near `args`, and give the same each time it is called. Numbers of less than
/// double precision allow loose tolerances only: check in f64 where you can.
///
/// # Errors
/// [`ErrorKind::Derivative`] if a derivative differs: the text names the mode, the order, the
/// tensor and both numbers. What `f` says; [`ErrorKind::NotConcrete`] inside of a transform;
/// [`ErrorKind::DType`] if nothing can be differentiated.
///
/// # Example
/// ```
/// use oxbridge::check_grads;
/// use oxbridge::prelude::*;
/// use oxbridge::transforms::CheckOptions;
/// let x = Tensor::from_slice(&[0.5, 1.5], [2])?;
/// check_grads(|x: &Tensor| x.mul(x)?.sin(), &x, 2, &CheckOptions::default())?;
/// // `detach` hides one factor from the derivative.
/// let wrong = |x: &Tensor| x.mul(&x.detach()?);
/// let error = check_grads(wrong, &x, 1, &CheckOptions::default()).unwrap_err();
/// assert_eq!(*error.kind(), ErrorKind::Derivative);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** `jax.test_util.check_grads`.
pub fn check_grads<A: Tree, B: Tree>(
    f: impl Fn(&A) -> Result<B>,
    args: &A,
    order: usize,
    options: &CheckOptions,
) -> Result<()> {
    let all: Vec<Tensor> = leaves(args).into_iter().cloned().collect();
    let active: Vec<usize> = (0..all.len()).filter(|&i| is_active(&all[i])).collect();
    let xs: Vec<Tensor> = active.iter().map(|&i| all[i].clone()).collect();
    let names = named("argument", args);
    let inputs: Vec<String> = active.iter().map(|&i| names[i].clone()).collect();
    let out = f(args)?;
    let results = leaves(&out).into_iter().map(is_active);
    let outputs = named("result", &out).into_iter().zip(results);
    let outputs: Vec<String> = outputs.filter_map(|(name, on)| on.then_some(name)).collect();
    if xs.is_empty() || outputs.is_empty() {
        let text = "no tensor of the argument and the result is of a floating-point dtype";
        return Err(Error::new(ErrorKind::DType, OP, text));
    }
    let flat = |xs: &Vec<Tensor>| {
        let mut all = all.clone();
        active.iter().zip(xs).for_each(|(&i, x)| all[i] = x.clone());
        let out = f(&rebuild(args, all)?)?;
        Ok(leaves(&out).into_iter().filter(|t| is_active(t)).cloned().collect())
    };
    let function = Function { f: &flat, inputs, outputs };
    let dtypes = xs.iter().chain(leaves(&out)).map(|t| t.aval().dtype());
    Check::new(options, dtypes).order(&function, &xs, order, &mut Vec::new())
}

const OP: &str = "check_grads";

fn is_active(tensor: &Tensor) -> bool {
    tensor.aval().dtype().is_differentiable()
}

/// A name for each tensor of a tree: the path in backticks after what the tree is.
fn named(what: &str, tree: &impl Leaves) -> Vec<String> {
    let name = |path: String| match path.is_empty() {
        true => format!("the {what}"),
        false => format!("{what} `{path}`"),
    };
    paths(tree).into_iter().map(name).collect()
}

/// A function from tensors to tensors, all of them differentiable.
type Flat<'f> = &'f dyn Fn(&Vec<Tensor>) -> Result<Vec<Tensor>>;

struct Function<'f> {
    f: Flat<'f>,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

/// What is compared within which bounds, and the source of directions.
struct Check<'o> {
    modes: &'o [Mode],
    eps: f64,
    rtol: f64,
    atol: f64,
    state: u64,
}

/// The step and the tolerance that fit a dtype.
fn precision(dtype: DType) -> (f64, f64) {
    match dtype.real() {
        DType::F64 => (1e-4, 1e-6),
        DType::F32 => (2e-2, 2e-3),
        DType::F16 => (0.125, 3e-2),
        _ => (0.25, 1e-1),
    }
}

impl<'o> Check<'o> {
    fn new(options: &'o CheckOptions, dtypes: impl Iterator<Item = DType>) -> Check<'o> {
        let float = dtypes.filter(|dtype| dtype.is_differentiable()).map(precision);
        let widest = |(a, b): (f64, f64), (c, d): (f64, f64)| (a.max(c), b.max(d));
        let (eps, tol) = float.reduce(widest).unwrap_or((1e-4, 1e-6));
        let rtol = options.rtol.unwrap_or(tol);
        Check {
            modes: &options.modes,
            eps: options.eps.unwrap_or(eps),
            rtol,
            atol: options.atol.unwrap_or(rtol),
            state: options.seed,
        }
    }

    /// Checks `function`, which is made of the user's by the transforms in `chain`, and what is made
    /// of it up to the given order.
    fn order(
        &mut self,
        function: &Function<'_>,
        xs: &Vec<Tensor>,
        order: usize,
        chain: &mut Vec<Mode>,
    ) -> Result<()> {
        if order == 0 {
            return Ok(());
        }
        for mode in self.modes {
            chain.push(*mode);
            match mode {
                Mode::Forward => self.forward(function, xs, chain)?,
                Mode::Reverse => self.reverse(function, xs, chain)?,
            }
            match mode {
                _ if order == 1 => {}
                Mode::Forward => self.after_jvp(function, xs, order - 1, chain)?,
                Mode::Reverse => self.after_vjp(function, xs, order - 1, chain)?,
            }
            chain.pop();
        }
        Ok(())
    }

    /// `jvp` as a function of the arguments and their tangents.
    fn after_jvp(
        &mut self,
        function: &Function<'_>,
        xs: &[Tensor],
        order: usize,
        chain: &mut Vec<Mode>,
    ) -> Result<()> {
        let count = xs.len();
        let f = |both: &Vec<Tensor>| {
            let (xs, ts) = (both[..count].to_vec(), both[count..].to_vec());
            let (mut outs, tangents) = jvp(function.f, &xs, &ts)?;
            outs.extend(tangents);
            Ok(outs)
        };
        let tangent = |name: &String| format!("the tangent of {name}");
        let with_tangents = |names: &[String]| {
            names.iter().cloned().chain(names.iter().map(tangent)).collect::<Vec<_>>()
        };
        let ts = self.directions(&hosts(xs)?);
        let mut both = xs.to_vec();
        both.extend(placed(&ts, xs)?);
        let (inputs, outputs) = (with_tangents(&function.inputs), with_tangents(&function.outputs));
        self.order(&Function { f: &f, inputs, outputs }, &both, order, chain)
    }

    /// The gradient, for a fixed cotangent, as a function of the arguments.
    fn after_vjp(
        &mut self,
        function: &Function<'_>,
        xs: &Vec<Tensor>,
        order: usize,
        chain: &mut Vec<Mode>,
    ) -> Result<()> {
        let outs = (function.f)(xs)?;
        let cts = placed(&self.directions(&hosts(&outs)?), &outs)?;
        let f = |xs: &Vec<Tensor>| vjp(function.f, xs)?.1(&cts);
        let inputs = function.inputs.clone();
        let outputs = inputs.iter().map(|name| format!("the cotangent of {name}")).collect();
        self.order(&Function { f: &f, inputs, outputs }, xs, order, chain)
    }

    fn forward(&mut self, function: &Function<'_>, xs: &Vec<Tensor>, chain: &[Mode]) -> Result<()> {
        let at = hosts(xs)?;
        let ts = self.directions(&at);
        let (outs, tangents) = jvp(function.f, xs, &placed(&ts, xs)?)?;
        let plain = hosts(&(function.f)(xs)?)?;
        let differences = self.differences(function.f, xs, &at, &ts)?;
        for (i, name) in function.outputs.iter().enumerate() {
            let value = self.worst(&parts(&host(&outs[i])?), &parts(&plain[i]));
            if let Some((element, got, want)) = value {
                let what =
                    format!("{name}{} under it is {}", at_element(element, &plain[i]), short(got));
                return Err(self.differs(chain, &what, &format!("without it {}", short(want))));
            }
            let slope = self.worst(&parts(&host(&tangents[i])?), &differences[i]);
            if let Some((element, got, want)) = slope {
                let place = at_element(element, &plain[i]);
                let got = short(got);
                let what = format!("along a random direction {name}{place} changes by {got}");
                return Err(self.differs(chain, &what, &format!("by differences {}", short(want))));
            }
        }
        Ok(())
    }

    fn reverse(&mut self, function: &Function<'_>, xs: &Vec<Tensor>, chain: &[Mode]) -> Result<()> {
        let at = hosts(xs)?;
        let ts = self.directions(&at);
        let (outs, back) = vjp(function.f, xs)?;
        let cts = self.directions(&hosts(&outs)?);
        let slopes = hosts(&back(&placed(&cts, &outs)?)?)?;
        let pair = |check: &Self, ts: &[HostArray]| -> Result<(f64, f64)> {
            let got = slopes.iter().zip(ts).map(|(s, t)| pairing(s, &parts(t))).sum();
            let differences = check.differences(function.f, xs, &at, ts)?;
            let want = cts.iter().zip(&differences).map(|(ct, d)| pairing(ct, d)).sum();
            Ok((got, want))
        };
        let (got, want) = pair(self, &ts)?;
        if self.close(got, want) {
            return Ok(());
        }
        // Along each argument alone, to tell which one it is.
        let mut worst = (0.0, 0, got, want);
        for i in 0..ts.len() {
            let alone = |(j, t): (usize, &HostArray)| if i == j { t.clone() } else { zeros(t) };
            let (got, want) = pair(self, &ts.iter().enumerate().map(alone).collect::<Vec<_>>())?;
            let error = (got - want).abs();
            if error > worst.0 || !error.is_finite() {
                worst = (error, i, got, want);
            }
        }
        let (_, i, got, want) = worst;
        let name = &function.inputs[i];
        let what = format!(
            "the cotangent of {name} for a random cotangent of the result gives {} along a random \
             direction",
            short(got)
        );
        Err(self.differs(chain, &what, &format!("differences give {}", short(want))))
    }

    #[cold]
    fn differs(&self, chain: &[Mode], got: &str, want: &str) -> Error {
        let names: Vec<String> = chain.iter().rev().map(|mode| format!("`{mode}`")).collect();
        let text = format!("order {}, {}: {got}, {want}", chain.len(), names.join(" of "));
        let (eps, rtol, atol) = (self.eps, self.rtol, self.atol);
        Error::new(ErrorKind::Derivative, OP, text)
            .note(format!("the step is {eps}, accepted are {atol} + {rtol} of the larger number"))
    }

    fn close(&self, a: f64, b: f64) -> bool {
        // Not-a-number is close to nothing.
        (a - b).abs() <= self.atol + self.rtol * a.abs().max(b.abs())
    }

    /// The element where two lists differ most, with both numbers; none if all are close.
    fn worst(&self, got: &[f64], want: &[f64]) -> Option<(usize, f64, f64)> {
        let far = |(_, (g, w)): &(usize, (&f64, &f64))| !self.close(**g, **w);
        let error = |(_, (g, w)): &(usize, (&f64, &f64))| {
            let error = (*g - *w).abs();
            if error.is_nan() { f64::INFINITY } else { error }
        };
        let all = got.iter().zip(want).enumerate().filter(far);
        let worst = all.max_by(|a, b| error(a).total_cmp(&error(b)));
        worst.map(|(i, (g, w))| (i, *g, *w))
    }

    /// A random direction for each array: uniform from -1 to 1.
    fn directions(&mut self, arrays: &[HostArray]) -> Vec<HostArray> {
        let mut next = || {
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        };
        arrays.iter().map(|like| whole(like, |n| (0..n).map(|_| next()).collect())).collect()
    }

    /// The derivative of each result along `ts`, by a difference of fourth order.
    fn differences(
        &self,
        f: Flat<'_>,
        xs: &[Tensor],
        at: &[HostArray],
        ts: &[HostArray],
    ) -> Result<Vec<Vec<f64>>> {
        let moved = |steps: f64| {
            let moved = at.iter().zip(ts).map(|(x, t)| axpy(x, steps * self.eps, t));
            let outs = f(&placed(&moved.collect::<Vec<_>>(), xs)?)?;
            outs.iter().map(|out| Ok(parts(&host(out)?))).collect::<Result<Vec<_>>>()
        };
        let (a, b, c, d) = (moved(-2.0)?, moved(-1.0)?, moved(1.0)?, moved(2.0)?);
        let slope = |i: usize, j: usize| {
            (8.0 * (c[i][j] - b[i][j]) - (d[i][j] - a[i][j])) / (12.0 * self.eps)
        };
        Ok((0..a.len()).map(|i| (0..a[i].len()).map(|j| slope(i, j)).collect()).collect())
    }
}

/// A number to six digits.
fn short(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

fn host(tensor: &Tensor) -> Result<HostArray> {
    tensor.value()?.array(OP)?.to_host()
}

fn hosts(tensors: &[Tensor]) -> Result<Vec<HostArray>> {
    tensors.iter().map(host).collect()
}

/// Arrays as tensors where those of `like` are.
fn placed(arrays: &[HostArray], like: &[Tensor]) -> Result<Vec<Tensor>> {
    let place = |(data, like): (&HostArray, &Tensor)| {
        let value = like.value()?;
        let array = value.array(OP)?;
        if let Some(sharding) = array.aval().sharding() {
            return Array::upload_sharded(data, sharding);
        }
        let place = array.place();
        let device = place.device.map_or_else(Device::default, Device::by_id)?;
        Array::upload(data, &device, place.committed)
    };
    let arrays = arrays.iter().zip(like).map(place);
    arrays.map(|array| Ok(Tensor::from_value(Value::Array(array?)))).collect()
}

/// The elements as doubles, complex ones as two.
fn parts(x: &HostArray) -> Vec<f64> {
    if x.dtype().is_complex() {
        let list: Vec<Complex<f64>> = convert(x, DType::C128).to_vec().unwrap_or_default();
        return list.into_iter().flat_map(|z| [z.re, z.im]).collect();
    }
    convert(x, DType::F64).to_vec().unwrap_or_default()
}

/// An array of `like`'s type whose parts `fill` gives for their number.
fn whole(like: &HostArray, fill: impl FnOnce(usize) -> Vec<f64>) -> HostArray {
    let shape = like.shape();
    let made = if like.dtype().is_complex() {
        let list: Vec<Complex<f64>> =
            fill(2 * shape.size()).chunks(2).map(|z| Complex::new(z[0], z[1])).collect();
        HostArray::from_slice(&list, shape)
    } else {
        HostArray::from_slice(&fill(shape.size()), shape)
    };
    // The list has one part for each element, so this is the array made.
    convert(&made.unwrap_or_else(|_| like.clone()), like.dtype())
}

fn axpy(x: &HostArray, s: f64, t: &HostArray) -> HostArray {
    whole(x, |_| parts(x).iter().zip(parts(t)).map(|(x, t)| x + s * t).collect())
}

fn zeros(like: &HostArray) -> HostArray {
    whole(like, |n| vec![0.0; n])
}

/// The real part of the sum of products: how a cotangent is paired with a tangent.
fn pairing(ct: &HostArray, t: &[f64]) -> f64 {
    let products = parts(ct).into_iter().zip(t).map(|(a, b)| a * b);
    if ct.dtype().is_complex() {
        return products.enumerate().map(|(i, p)| if i % 2 == 0 { p } else { -p }).sum();
    }
    products.sum()
}

/// The place of a part in an array, in words; empty for a single number.
fn at_element(part: usize, like: &HostArray) -> String {
    let element = if like.dtype().is_complex() { part / 2 } else { part };
    if like.shape().rank() == 0 {
        return String::new();
    }
    format!(" at {:?}", index_of(element, like.shape()))
}

fn index_of(element: usize, shape: &Shape) -> Vec<usize> {
    shape.strides().iter().zip(shape.dims()).map(|(s, d)| element / s % d).collect()
}
