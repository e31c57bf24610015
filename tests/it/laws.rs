//! Laws of the transforms over random programs.
//!
//! A program is a list of steps over a pool of values of f64[3,4]; each step's domain is kept safe by
//! what goes before it (`log` of `1 + x * x`, a quotient by `2 + tanh`), so every program is smooth.

#![expect(clippy::print_stdout, reason = "every failing program is printed")]

use crate::cases::engine::case::{mix, place, read, uniform};
use crate::cases::engine::compare;
use crate::cases::engine::derivative::{difference, pairing};
use oxbridge::backend::host::HostArray;
use oxbridge::prelude::*;
use oxbridge::trace::Value;
use oxbridge::transforms::CheckOptions;
use oxbridge::{check_grads, ops, vjp};

/// How many programs are tried, and how many values each has beyond its two operands.
const PROGRAMS: u64 = 200;
const STEPS: u64 = 7;

type Unary = fn(&Value) -> Result<Value>;
type Binary = fn(&Value, &Value) -> Result<Value>;

fn constant(x: &Value, value: f64) -> Result<Value> {
    ops::full_like(x, value)
}

/// At least 1.
fn positive(x: &Value) -> Result<Value> {
    ops::add(&ops::mul(x, x)?, &constant(x, 1.0)?)
}

/// Sums over `axis` and repeats the result along it.
fn spread_sum(x: &Value, axis: usize) -> Result<Value> {
    let sum = ops::reduce_sum(x, &[axis])?;
    ops::broadcast_in_dim(&ops::tanh(&sum)?, x.shape(), &[1 - axis])
}

const UNARY: &[(&str, Unary)] = &[
    ("sin", ops::sin),
    ("cos", ops::cos),
    ("tanh", ops::tanh),
    ("logistic", ops::logistic),
    ("neg", ops::neg),
    ("exp of tanh", |x| ops::exp(&ops::tanh(x)?)),
    ("expm1 of sin", |x| ops::expm1(&ops::sin(x)?)),
    ("log of 1 + x²", |x| ops::log(&positive(x)?)),
    ("log1p of x²", |x| ops::log1p(&ops::mul(x, x)?)),
    ("sqrt of 1 + x²", |x| ops::sqrt(&positive(x)?)),
    ("rsqrt of 1 + x²", |x| ops::rsqrt(&positive(x)?)),
    ("cbrt of 1 + x²", |x| ops::cbrt(&positive(x)?)),
    ("erf", ops::erf),
    ("atan2 with 1 + x²", |x| ops::atan2(x, &positive(x)?)),
    ("sum over rows", |x| spread_sum(x, 0)),
    ("sum over columns", |x| spread_sum(x, 1)),
    ("reshape and permute", |x| {
        let y = ops::permute(&ops::reshape(x, &[4, 3].into())?, &[1, 0])?;
        ops::sin(&y)
    }),
    ("half of it by a slice", |x| {
        let part = ops::slice(x, &[0, 1], &[3, 3], &[1, 1])?;
        ops::concatenate(&[ops::tanh(&part)?, part], 1)
    }),
    ("running sum", |x| ops::tanh(&ops::cumsum(x, 1, false)?)),
    ("where positive", |x| {
        let zero = constant(x, 0.0)?;
        ops::select(&ops::lt(&zero, x)?, &ops::sin(x)?, &ops::neg(x)?)
    }),
];

const BINARY: &[(&str, Binary)] = &[
    ("add", ops::add),
    ("sub", ops::sub),
    ("mul of tanh", |x, y| ops::mul(&ops::tanh(x)?, y)),
    ("div by 2 + tanh", |x, y| ops::div(x, &ops::add(&ops::tanh(y)?, &constant(y, 2.0)?)?)),
    ("pow of 1 + x²", |x, y| ops::pow(&positive(&ops::tanh(x)?)?, &ops::sin(y)?)),
    ("product of matrices", |x, y| {
        let dims = ops::dot::DotDims {
            lhs_contract: vec![1],
            rhs_contract: vec![1],
            ..ops::dot::DotDims::default()
        };
        let square = ops::dot_general(x, y, &dims, ops::dot::Precision::Default, None)?;
        let rows = ops::reduce_sum(&ops::tanh(&square)?, &[1])?;
        ops::broadcast_in_dim(&rows, x.shape(), &[0])
    }),
];

#[derive(Clone, Copy, Debug)]
enum Step {
    Unary(usize, usize),
    Binary(usize, usize, usize),
}

/// One random program of two operands.
#[derive(Clone, Debug)]
struct Program {
    seed: u64,
    steps: Vec<Step>,
}

impl Program {
    fn random(seed: u64) -> Program {
        let mut state = mix(seed ^ 0x9e37_79b9_7f4a_7c15);
        let mut below = |n: usize| {
            state = mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
            (state % n as u64) as usize
        };
        let steps = (2..2 + STEPS as usize).map(|pool| {
            // The last value made is always read, so that programs are deep.
            let last = pool - 1;
            match below(2) {
                0 => Step::Unary(below(UNARY.len()), last),
                _ => Step::Binary(below(BINARY.len()), last, below(pool)),
            }
        });
        Program { seed, steps: steps.collect() }
    }

    /// The operands and all values that the steps make of them.
    fn pool(steps: &[Step], operands: &[Value]) -> Result<Vec<Value>> {
        let mut pool = operands.to_vec();
        for step in steps {
            pool.push(match *step {
                Step::Unary(f, x) => UNARY[f].1(&pool[x])?,
                Step::Binary(f, x, y) => BINARY[f].1(&pool[x], &pool[y])?,
            });
        }
        Ok(pool)
    }

    fn run(&self, operands: &[Value]) -> Result<Value> {
        Program::pool(&self.steps, operands)?
            .pop()
            .ok_or_else(|| Error::new(ErrorKind::Value, "program", "is empty"))
    }

    fn apply(&self, (x, y): &(Tensor, Tensor)) -> Result<Tensor> {
        Ok(Tensor::from_value(self.run(&[x.value()?, y.value()?])?))
    }

    /// One number, for `grad`.
    fn loss(&self, xy: &(Tensor, Tensor)) -> Result<Tensor> {
        let out = self.apply(xy)?.value()?;
        Ok(Tensor::from_value(ops::reduce_sum(&ops::sin(&out)?, &[0, 1])?))
    }

    fn words(&self) -> String {
        let step = |step: &Step| match *step {
            Step::Unary(f, x) => format!("{} ({x})", UNARY[f].0),
            Step::Binary(f, x, y) => format!("{} ({x}, {y})", BINARY[f].0),
        };
        format!(
            "seed {}: {}",
            self.seed,
            self.steps.iter().map(step).collect::<Vec<_>>().join("; ")
        )
    }
}

fn data(seed: u64, rank: &[usize]) -> HostArray {
    uniform(DType::F64, &Shape::new(rank), seed, -1.0, 1.0)
}

fn pair(a: &HostArray, b: &HostArray) -> Result<(Tensor, Tensor)> {
    Ok((Tensor::from_value(place(a)?), Tensor::from_value(place(b)?)))
}

fn host(tensor: &Tensor) -> Result<HostArray> {
    read(&tensor.value()?)
}

fn hosts((a, b): &(Tensor, Tensor)) -> Result<[HostArray; 2]> {
    Ok([host(a)?, host(b)?])
}

/// Goes over all programs, prints each for which the law fails, and fails if there is one.
fn law(name: &str, check: impl Fn(&Program, [HostArray; 2]) -> Result<Result<(), String>>) {
    law_of(PROGRAMS, name, check);
}

/// [`law`] over the first `count` programs, for what takes long.
fn law_of(
    count: u64,
    name: &str,
    check: impl Fn(&Program, [HostArray; 2]) -> Result<Result<(), String>>,
) {
    let mut failed = 0;
    for seed in 0..count {
        let program = Program::random(seed);
        let operands = [data(2 * seed, &[3, 4]), data(2 * seed + 1, &[3, 4])];
        let result = check(&program, operands).unwrap_or_else(|error| Err(error.to_string()));
        if let Err(why) = result {
            failed += 1;
            println!("{name}: {}: {why}", program.words());
        }
    }
    assert_eq!(failed, 0, "{name}: {failed} of {count} programs fail");
}

/// Whether the arrays are equal within `tol`.
fn same(got: &[HostArray], want: &[HostArray], tol: f64) -> Result<(), String> {
    assert_eq!(got.len(), want.len(), "number of results");
    got.iter().zip(want).try_for_each(|(g, w)| compare::one(g, w, tol))
}

#[test]
fn jvp_and_vjp_are_differences() {
    law("jvp and vjp", |program, [x, y]| {
        let f = |xy: &(Tensor, Tensor)| program.apply(xy);
        let ts = [data(901, &[3, 4]), data(902, &[3, 4])];
        let xy = pair(&x, &y)?;
        let got = host(&jvp(f, &xy, &pair(&ts[0], &ts[1])?)?.1)?;
        let run = |xs: &[HostArray]| Ok(vec![host(&f(&pair(&xs[0], &xs[1])?)?)?]);
        let want = difference(&run, &[x, y], &ts)?;
        let ct = data(903, &[3, 4]);
        let cts = hosts(&vjp(f, &xy)?.1(&Tensor::from_value(place(&ct)?))?)?;
        let (forth, back) = (pairing(&[ct], std::slice::from_ref(&got)), pairing(&cts, &ts));
        if (forth - back).abs() > 1e-10 * (1.0 + forth.abs()) {
            return Ok(Err(format!("<ct, J t> = {forth}, but <ct J, t> = {back}")));
        }
        Ok(same(&[got], &want, 1e-6))
    });
}

#[test]
fn second_order_is_a_difference_of_gradients() {
    law("second order", |program, [x, y]| {
        let gradient = grad(|xy: &(Tensor, Tensor)| program.loss(xy));
        let ts = [data(911, &[3, 4]), data(912, &[3, 4])];
        let got = jvp(&gradient, &pair(&x, &y)?, &pair(&ts[0], &ts[1])?)?.1;
        let run = |xs: &[HostArray]| Ok(hosts(&gradient(&pair(&xs[0], &xs[1])?)?)?.to_vec());
        let want = difference(&run, &[x.clone(), y.clone()], &ts)?;
        // A Hessian is symmetric: reverse over reverse is the same.
        let t = pair(&ts[0], &ts[1])?;
        let along = |xy: &(Tensor, Tensor)| {
            let (a, b) = gradient(xy)?;
            let dot = |g: &Tensor, t: &Tensor| ops::mul(&g.value()?, &t.value()?);
            let sum = ops::add(&dot(&a, &t.0)?, &dot(&b, &t.1)?)?;
            Ok(Tensor::from_value(ops::reduce_sum(&sum, &[0, 1])?))
        };
        let reverse = hosts(&grad(along)(&pair(&x, &y)?)?)?;
        let got = hosts(&got)?;
        Ok(same(&got, &want, 1e-5).and_then(|()| same(&reverse, &got, 1e-9)))
    });
}

/// All mixed: `jvp` of `jvp`, `jvp` of `vjp`, `vjp` of `jvp`, `vjp` of `vjp`.
#[test]
fn every_second_derivative_passes_check_grads() {
    // Each takes some fifty runs of the program.
    law_of(PROGRAMS / 5, "check_grads", |program, [x, y]| {
        let options = CheckOptions { seed: program.seed, ..CheckOptions::default() };
        let f = |xy: &(Tensor, Tensor)| program.apply(xy);
        check_grads(f, &pair(&x, &y)?, 2, &options)?;
        Ok(Ok(()))
    });
}

#[test]
fn jit_changes_no_value_and_no_gradient() {
    law("jit", |program, [x, y]| {
        let xy = pair(&x, &y)?;
        let value = host(&program.apply(&xy)?)?;
        let compiled = host(&jit(|xy: &(Tensor, Tensor)| program.apply(xy)).call(&xy)?)?;
        let gradient = grad(|xy: &(Tensor, Tensor)| program.loss(xy));
        let want = hosts(&gradient(&xy)?)?;
        let outer = hosts(&jit(&gradient).call(&xy)?)?;
        let inner = jit(|xy: &(Tensor, Tensor)| program.loss(xy));
        let inner = hosts(&grad(|xy: &(Tensor, Tensor)| inner.call(xy))(&xy)?)?;
        Ok(same(&[compiled], &[value], 1e-13)
            .and_then(|()| same(&outer, &want, 1e-12).map_err(|e| format!("jit of grad: {e}")))
            .and_then(|()| same(&inner, &want, 1e-12).map_err(|e| format!("grad of jit: {e}"))))
    });
}

/// The `i`-th example of a batch.
fn example(batch: &HostArray, i: usize) -> HostArray {
    let rest = batch.shape().remove(0);
    let mut starts = vec![0; rest.rank() + 1];
    starts[0] = i;
    let limits = batch.shape().with(0, i + 1);
    let part = batch.slice(&starts, &limits, &vec![1; starts.len()]);
    part.contiguous().reshape(&rest)
}

#[test]
fn vmap_is_stacked_calls_and_commutes_with_grad() {
    law("vmap", |program, _| {
        let seed = 5000 + program.seed;
        let (x, y) = (data(seed, &[3, 3, 4]), data(seed + 7777, &[3, 3, 4]));
        let xy = pair(&x, &y)?;
        let f = |xy: &(Tensor, Tensor)| program.apply(xy);
        let got = host(&vmap(f)(&xy)?)?;
        let gradient = grad(|xy: &(Tensor, Tensor)| program.loss(xy));
        let inner = hosts(&vmap(&gradient)(&xy)?)?;
        let total = |xy: &(Tensor, Tensor)| {
            let losses = vmap(|xy: &(Tensor, Tensor)| program.loss(xy))(xy)?;
            Ok(Tensor::from_value(ops::reduce_sum(&losses.value()?, &[0])?))
        };
        let outer = hosts(&grad(total)(&xy)?)?;
        let compiled = hosts(&jit(vmap(&gradient)).call(&xy)?)?;
        for i in 0..3 {
            let one = pair(&example(&x, i), &example(&y, i))?;
            let single = host(&f(&one)?)?;
            if let Err(e) = same(&[example(&got, i)], &[single], 1e-12) {
                return Ok(Err(format!("example {i}: {e}")));
            }
            let single = hosts(&gradient(&one)?)?;
            let batched = [example(&inner[0], i), example(&inner[1], i)];
            if let Err(e) = same(&batched, &single, 1e-10) {
                return Ok(Err(format!("gradient of example {i}: {e}")));
            }
        }
        Ok(same(&outer, &inner, 1e-10).map_err(|e| format!("grad of vmap: {e}")).and_then(|()| {
            same(&compiled, &inner, 1e-10).map_err(|e| format!("jit of vmap of grad: {e}"))
        }))
    });
}

#[test]
fn linearized_twice_is_transposed_twice_and_is_jvp() {
    law("linearize", |program, [x, y]| {
        let f = |xy: &(Tensor, Tensor)| program.apply(xy);
        let (xy, t) = (pair(&x, &y)?, pair(&data(921, &[3, 4]), &data(922, &[3, 4]))?);
        let want = host(&jvp(f, &xy, &t)?.1)?;
        let (out, along) = linearize(f, &xy)?;
        let once = host(&along(&t)?)?;
        // A linear function is its own derivative, at whatever point.
        let twice = host(&linearize(&along, &xy)?.1(&t)?)?;
        // Its transpose is the reverse derivative, whose transpose is the function again.
        let ct = Tensor::from_value(place(&data(923, &[3, 4]))?);
        let (_, back) = vjp(f, &xy)?;
        let transposed = hosts(&vjp(&along, &xy)?.1(&ct)?)?;
        let reverse = hosts(&back(&ct)?)?;
        let again = host(&vjp(&back, &ct)?.1(&t)?)?;
        let value = host(&program.apply(&xy)?)?;
        let want = [want];
        Ok(same(&[host(&out)?], &[value], 1e-13)
            .and_then(|()| same(&[once], &want, 1e-12))
            .and_then(|()| same(&[twice], &want, 1e-12).map_err(|e| format!("twice: {e}")))
            .and_then(|()| same(&transposed, &reverse, 1e-12).map_err(|e| format!("once: {e}")))
            .and_then(|()| same(&[again], &want, 1e-12).map_err(|e| format!("transposed: {e}"))))
    });
}

#[test]
fn jacobians_agree() {
    law_of(40, "jacobians", |program, [x, y]| {
        let f = |xy: &(Tensor, Tensor)| program.apply(xy);
        let xy = pair(&x, &y)?;
        let forward = hosts(&jacfwd(f)(&xy)?)?;
        let reverse = hosts(&jacrev(f)(&xy)?)?;
        // Times a tangent it is that of `jvp`.
        let ts = [data(931, &[3, 4]), data(932, &[3, 4])];
        let t = pair(&ts[0], &ts[1])?;
        let times = |j: &Tensor, t: &Tensor| Tensor::einsum("abij,ij->ab", &[j.clone(), t.clone()]);
        let (by_x, by_y) = pair(&forward[0], &forward[1])?;
        let product = ops::add(&times(&by_x, &t.0)?.value()?, &times(&by_y, &t.1)?.value()?)?;
        let (along, product) = (host(&jvp(f, &xy, &t)?.1)?, read(&product)?);
        Ok(same(&forward, &reverse, 1e-11)
            .and_then(|()| same(&[product], &[along], 1e-11).map_err(|e| format!("product: {e}"))))
    });
}

#[test]
fn hessian_times_vector_is_hvp() {
    law_of(40, "hvp", |program, [x, y]| {
        // In the first operand; the second is captured.
        let (x, y) = pair(&x, &y)?;
        let f = |x: &Tensor| program.loss(&(x.clone(), y.clone()));
        let v = Tensor::from_value(place(&data(941, &[3, 4]))?);
        let h = hessian(f)(&x)?;
        let product = host(&Tensor::einsum("abij,ij->ab", &[h.clone(), v.clone()])?)?;
        let (turned, h) = (host(&h.permute([2, 3, 0, 1])?)?, host(&h)?);
        let along = host(&hvp(f, &x, &v)?)?;
        Ok(same(&[product], &[along], 1e-10)
            .and_then(|()| same(&[turned], &[h], 1e-10).map_err(|e| format!("symmetry: {e}"))))
    });
}

#[test]
fn what_is_stopped_is_constant() {
    law("stop_gradient", |program, [x, y]| {
        let (x, y) = pair(&x, &y)?;
        let v = Tensor::from_value(place(&data(951, &[3, 4]))?);
        // A stopped function of `x` beside `x` is as its value captured, in every order.
        let inner = |x: &Tensor| program.apply(&(x.clone(), y.clone()));
        let stopped = |x: &Tensor| program.loss(&(x.clone(), stop_gradient(&inner(x)?)?));
        let value = inner(&x)?;
        let held = |x: &Tensor| program.loss(&(x.clone(), value.clone()));
        let all = |x: &Tensor| stopped(&stop_gradient(x)?);
        let orders = |f: &dyn Fn(&Tensor) -> Result<Tensor>| {
            Ok([host(&f(&x)?)?, host(&grad(f)(&x)?)?, host(&hvp(f, &x, &v)?)?])
        };
        let (got, want) = (orders(&stopped)?, orders(&held)?);
        let zeros = [host(&Tensor::zeros([3, 4], DType::F64)?)?];
        let none = [host(&grad(all)(&x)?)?];
        Ok(same(&got, &want, 1e-10)
            .and_then(|()| same(&none, &zeros, 0.0).map_err(|e| format!("all: {e}"))))
    });
}

/// The gradient of a loss, its derivative along `ts`, and the same by reverse mode.
fn two_orders(
    loss: impl Fn(&(Tensor, Tensor)) -> Result<Tensor>,
    xy: &(Tensor, Tensor),
    ts: &(Tensor, Tensor),
) -> Result<Vec<HostArray>> {
    let gradient = grad(loss);
    let (first, second) = jvp(&gradient, xy, ts)?;
    let along = |xy: &(Tensor, Tensor)| {
        let (a, b) = gradient(xy)?;
        let dot = |g: &Tensor, t: &Tensor| ops::mul(&g.value()?, &t.value()?);
        let sum = ops::add(&dot(&a, &ts.0)?, &dot(&b, &ts.1)?)?;
        Ok(Tensor::from_value(ops::reduce_sum(&sum, &[0, 1])?))
    };
    let reverse = grad(along)(xy)?;
    Ok([hosts(&first)?, hosts(&second)?, hosts(&reverse)?].concat())
}

/// The program with all of it checkpointed, and half of it once more.
fn checkpointed(program: &Program, policy: &Policy, xy: &(Tensor, Tensor)) -> Result<Tensor> {
    let tensors = |pool: Vec<Value>| pool.into_iter().map(Tensor::from_value).collect::<Vec<_>>();
    let values = |pool: &[Tensor]| pool.iter().map(Tensor::value).collect::<Result<Vec<_>>>();
    let (first, last) = program.steps.split_at(program.steps.len() / 2);
    let half = checkpoint(|pool: &Vec<Tensor>| Ok(tensors(Program::pool(first, &values(pool)?)?)));
    let whole = |(x, y): &(Tensor, Tensor)| {
        let pool = half(&vec![x.clone(), y.clone()])?;
        let pool = Program::pool(last, &values(&pool)?)?;
        let out = ops::sin(&pool[pool.len() - 1])?;
        Ok(Tensor::from_value(ops::reduce_sum(&out, &[0, 1])?))
    };
    checkpoint_with(whole, policy.clone())(xy)
}

#[test]
fn checkpoint_changes_no_value_and_no_derivative() {
    let policies = [Policy::Nothing, Policy::Everything, Policy::Dots];
    law_of(48, "checkpoint", |program, [x, y]| {
        let (xy, ts) = (pair(&x, &y)?, pair(&data(921, &[3, 4]), &data(922, &[3, 4]))?);
        let policy = &policies[(program.seed % 3) as usize];
        let plain = |xy: &(Tensor, Tensor)| program.loss(xy);
        let light = |xy: &(Tensor, Tensor)| checkpointed(program, policy, xy);
        let want = two_orders(plain, &xy, &ts)?;
        let eager = same(&two_orders(light, &xy, &ts)?, &want, 1e-12);
        let value = host(&jit(light).call(&xy)?)?;
        let value = same(&[value], &[host(&plain(&xy)?)?], 1e-12);
        let compiled = hosts(&jit(grad(light)).call(&xy)?)?;
        let compiled = same(&compiled, &want[..2], 1e-12);
        let seed = 7000 + program.seed;
        let many = pair(&data(seed, &[3, 3, 4]), &data(seed + 7777, &[3, 3, 4]))?;
        let batched = hosts(&vmap(grad(light))(&many)?)?;
        let batched = same(&batched, &hosts(&vmap(grad(plain))(&many)?)?, 1e-10);
        let name = |what: &'static str| move |e: String| format!("{what} by {policy}: {e}");
        Ok(eager
            .map_err(name("derivatives"))
            .and_then(|()| value.map_err(name("jit")))
            .and_then(|()| compiled.map_err(name("jit of grad")))
            .and_then(|()| batched.map_err(name("vmap of grad"))))
    });
}
