//! What reverse mode keeps from the first run: the fewest bytes from which simple arithmetic gives
//! the rest.

use crate::remat::{close, wave};
use oxbridge::prelude::*;
use oxbridge::tensor::unary::Approximate;
use oxbridge::trace::graph::{Eqn, Graph};
use oxbridge::transforms::jit::make_graph;
use std::sync::Arc;

/// How many steps the loops have.
const STEPS: usize = 5;

type Pair = (Tensor, Tensor);
/// One step: the next state from a row and the state.
type Step<'f> = &'f dyn Fn(&Tensor, &Tensor) -> Result<Tensor>;

fn looped(step: Step<'_>, (rows, x): &Pair) -> Result<Tensor> {
    let body = |x: &Tensor, row: &Tensor| Ok((step(row, x)?, ()));
    scan(body, x, rows, ScanOptions::default())?.0.square()?.sum()
}

fn one_by_one(step: Step<'_>, (rows, x): &Pair) -> Result<Tensor> {
    let mut x = x.clone();
    for i in 0..STEPS {
        x = step(&rows.select(0, i as i64)?, &x)?;
    }
    x.square()?.sum()
}

/// Rows `[4, 4]` and a state `[3, 4]`.
fn args() -> Pair {
    (wave(&[STEPS, 4, 4]), wave(&[3, 4]))
}

fn backward(step: Step<'_>, args: &Pair) -> Arc<Graph> {
    make_graph(grad(|args: &Pair| looped(step, args)))(args).unwrap()
}

fn scans(graph: &Graph) -> Vec<&Eqn> {
    graph.eqns().iter().filter(|e| e.prim.name() == "scan").collect()
}

/// What each step of the forward loop keeps for the backward one, sorted: the loop's stacks.
fn kept(step: Step<'_>) -> Vec<String> {
    let graph = backward(step, &args());
    let loops = scans(&graph);
    assert_eq!(loops.len(), 2, "{graph}");
    let mut stacks: Vec<String> =
        loops[0].outputs[1..].iter().map(|v| graph.aval(*v).to_string()).collect();
    stacks.sort();
    stacks
}

/// How often operations of the name are in the body of the backward loop.
fn again(step: Step<'_>, name: &str) -> usize {
    let graph = backward(step, &args());
    let body = scans(&graph)[1].prim.graphs()[0].clone();
    body.eqns().iter().filter(|e| e.prim.name() == name).count()
}

fn gelu(w: &Tensor, x: &Tensor) -> Result<Tensor> {
    x.matmul(w)?.gelu(Approximate::Tanh)
}

fn normed(w: &Tensor, x: &Tensor) -> Result<Tensor> {
    let centred = x.sub(&x.mean_dim([-1], true)?)?;
    let scale = centred.square()?.mean_dim([-1], true)?.add(1e-5)?.rsqrt()?;
    centred.mul(&scale)?.matmul(w)
}

fn masked(w: &Tensor, x: &Tensor) -> Result<Tensor> {
    let rows = Tensor::arange(0i64, 3, 1)?.to_dtype(DType::F64)?.reshape([3, 1])?;
    let columns = Tensor::arange(0i64, 4, 1)?.to_dtype(DType::F64)?;
    let mask = columns.le(&rows.add(1.0)?)?;
    x.matmul(w)?.sigmoid()?.masked_fill(&mask.logical_not()?, 0.0)
}

#[test]
fn a_step_keeps_what_is_dear() {
    // The state before the product, the product and its tanh; not `x * x`, `x / 2`, `1 + tanh` and
    // constants of the same size.
    assert_eq!(kept(&gelu), ["f64[5,3,4]"; 3]);
    // The state, and of the normalisation one number a row for the mean and two for the scale.
    let stacks = kept(&normed);
    let large = stacks.iter().filter(|t| *t == "f64[5,3,4]").count();
    assert_eq!(large, 1, "{stacks:?}");
    assert!(stacks.len() <= 4, "{stacks:?}");
    // A mask is made of nothing.
    assert_eq!(kept(&masked), ["f64[5,3,4]"; 2]);
    // Nothing but the rows themselves, which are there.
    assert_eq!(kept(&|w, x| x.matmul(&w.mul(2.0)?.t()?)?.mul(0.5)?.add(x)), ["f64[5,3,4]"]);
    assert_eq!(kept(&|w, x| x.mul(&w.narrow(0, 0, 3)?.mul(2.0)?)?.add(1.0)), ["f64[5,3,4]"]);
}

#[test]
fn what_is_dear_runs_once() {
    for name in ["tanh", "logistic", "rsqrt", "reduce_sum"] {
        let forward = |step: Step<'_>| {
            let graph = backward(step, &args());
            let body = scans(&graph)[0].prim.graphs()[0].clone();
            body.eqns().iter().filter(|e| e.prim.name() == name).count()
        };
        let all: usize = [&gelu as Step<'_>, &normed, &masked].iter().map(|s| forward(s)).sum();
        assert!(all > 0, "no `{name}` at all");
    }
    assert_eq!(again(&gelu, "tanh"), 0);
    assert_eq!(again(&masked, "logistic"), 0);
    assert_eq!(again(&normed, "rsqrt"), 0);
    // The products of the backward pass itself: one for the state, one for the row.
    assert_eq!(again(&gelu, "dot_general"), 2);
}

#[test]
fn derivatives_are_those_of_the_steps_one_by_one() {
    let args = args();
    let steps: [Step<'_>; 5] = [
        &gelu,
        &normed,
        &masked,
        &|w, x| x.matmul(&w.mul(2.0)?.t()?)?.mul(0.5)?.add(&x.sin()?),
        &|w, x| {
            // A branch that reads a value made before it, and a division by one.
            let y = x.mul(2.0)?;
            let positive = y.sum()?.gt(0.0)?;
            let z = cond(&positive, |y: &Tensor| y.mul(y)?.sin(), |y: &Tensor| y.div(3.0), &y)?;
            z.matmul(w)?.div(&y.square()?.add(1.0)?)
        },
    ];
    for step in steps {
        let (f, g) = (|args: &Pair| looped(step, args), |args: &Pair| one_by_one(step, args));
        let want = grad(g)(&args).unwrap();
        for got in [grad(f)(&args).unwrap(), jit(grad(f)).call(&args).unwrap()] {
            close(&got.0, &want.0, 1e-11);
            close(&got.1, &want.1, 1e-11);
        }
        let (_, t) = jvp(f, &args, &args).unwrap();
        close(&t, &jvp(g, &args, &args).unwrap().1, 1e-11);
        let slope = |f: &dyn Fn(&Pair) -> Result<Tensor>| {
            let slope = |args: &Pair| {
                let (a, b) = grad(f)(args)?;
                a.square()?.sum()?.add(&b.square()?.sum()?)
            };
            grad(slope)(&args).unwrap()
        };
        let (got, want) = (slope(&f), slope(&g));
        close(&got.0, &want.0, 1e-9);
        close(&got.1, &want.1, 1e-9);
    }
}

#[test]
fn a_loop_over_layers_needs_little_memory() {
    let device = Client::cpu(1).unwrap().device(0).unwrap();
    let zeros =
        |shape: &[usize]| Tensor::zeros(shape, DType::F32).unwrap().to_device(&device).unwrap();
    let args = (zeros(&[16, 64, 64]), zeros(&[512, 64]));
    let step = |x: &Tensor, w: &Tensor| Ok((gelu(w, x)?, ()));
    let f = |(ws, x): &Pair| scan(step, x, ws, ScanOptions::default())?.0.square()?.sum();
    let compiled = jit(grad(f)).lower(&args).unwrap().compile().unwrap();
    let bytes = compiled.memory_analysis().unwrap().temporaries;
    // Three stacks of 16 states, and what single steps need.
    let stack = 16 * 512 * 64 * 4;
    assert!(
        bytes < 4 * stack,
        "{bytes} bytes are {:.1} stacks",
        bytes as f64 / f64::from(stack as i32)
    );
}
