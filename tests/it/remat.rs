//! `checkpoint`: what is kept, what the compiled programs need, and that nothing else changes.

use crate::cases::engine::case::draws_alone;
use crate::cases::engine::case::host_device;
use oxbridge::prelude::*;
use oxbridge::trace::graph::Atom;
use oxbridge::transforms::jit::make_graph;

/// Reproducible numbers, on the host: many small programs are run once each.
pub(crate) fn wave(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let data: Vec<f64> = (0..n).map(|i| (1.7 * i as f64 + 0.3).sin() * 0.4).collect();
    Tensor::from_slice(&data, shape).unwrap().to_device(host_device()).unwrap()
}

pub(crate) fn close(got: &Tensor, want: &Tensor, tol: f64) {
    assert_eq!(got.aval().shape(), want.aval().shape(), "shape");
    let (got, want) = (got.to_vec::<f64>().unwrap(), want.to_vec::<f64>().unwrap());
    for (a, b) in got.iter().zip(&want) {
        assert!((a - b).abs() < tol * (1.0 + b.abs()), "{got:?} is not {want:?}");
    }
}

/// One layer as a function of its weights and its argument.
type Layer<'f> = &'f dyn Fn(&(Tensor, Tensor)) -> Result<Tensor>;

/// How many layers the chains have.
const LAYERS: usize = 16;

/// The bytes beside operands and results that a compiled program needs on the CPU plugin.
fn temporary(f: impl Fn(&(Tensor, Tensor)) -> Result<(Tensor, Tensor)>) -> u64 {
    let device = Client::cpu(1).unwrap().device(0).unwrap();
    let put = |shape: &[usize]| Tensor::zeros(shape, DType::F32).unwrap().to_device(&device);
    let args = (put(&[LAYERS, 64, 64]).unwrap(), put(&[256, 64]).unwrap());
    let compiled = jit(f).lower(&args).unwrap().compile().unwrap();
    u64::try_from(compiled.memory_analysis().unwrap().temporaries).unwrap()
}

/// One layer: two products, and between them what no compiler makes part of another operation.
fn layer((w, x): &(Tensor, Tensor)) -> Result<Tensor> {
    let inner = x.matmul(w)?.tanh()?.softmax(-1)?.cumsum(1)?.sin()?;
    inner.matmul(w)?.tanh()
}

/// Layers one after the other, each as `layer` has it.
fn chain(layer: Layer<'_>, (ws, x): &(Tensor, Tensor)) -> Result<Tensor> {
    let mut x = x.clone();
    for i in 0..LAYERS {
        x = layer(&(ws.select(0, i as i64)?, x))?;
    }
    x.square()?.sum()
}

fn looped(layer: Layer<'_>, (ws, x): &(Tensor, Tensor)) -> Result<Tensor> {
    let step = |x: &Tensor, w: &Tensor| Ok((layer(&(w.clone(), x.clone()))?, ()));
    scan(step, x, ws, ScanOptions::default())?.0.square()?.sum()
}

#[test]
fn a_deep_chain_needs_less_memory() {
    let need = |layer: Layer<'_>| temporary(grad(|args: &(Tensor, Tensor)| chain(layer, args)));
    let plain = need(&layer);
    let light = need(&checkpoint(layer));
    let dots = need(&checkpoint_with(layer, Policy::Dots));
    let everything = need(&checkpoint_with(layer, Policy::Everything));
    println!("chain: plain {plain}, nothing {light}, dots {dots}, everything {everything}");
    assert!(2 * light < plain, "checkpoint needs {light} bytes, without it {plain}");
    assert!(light < dots && dots < everything, "{light}, {dots}, {everything}");
    assert_eq!(everything, plain, "nothing is worked out again");
}

#[test]
fn a_loop_over_layers_needs_less_memory() {
    let need = |layer: Layer<'_>| temporary(grad(|args: &(Tensor, Tensor)| looped(layer, args)));
    let plain = need(&layer);
    let light = need(&checkpoint(layer));
    let dots = need(&checkpoint_with(layer, Policy::Dots));
    let everything = need(&checkpoint_with(layer, Policy::Everything));
    println!("loop: plain {plain}, nothing {light}, dots {dots}, everything {everything}");
    assert!(2 * light < plain, "checkpoint needs {light} bytes, without it {plain}");
    assert!(light < dots && dots < everything, "{light}, {dots}, {everything}");
    assert_eq!(everything, plain, "nothing is worked out again");
}

/// The types that reverse mode of `f` keeps from the forward pass: the results of the first run that
/// are not the function's.
fn kept(f: impl Fn(&Tensor) -> Result<Tensor>, policy: Policy, x: &Tensor) -> Vec<String> {
    let f = checkpoint_with(f, policy);
    // Reverse mode inside of `jit`: what goes into the backward pass goes through the barrier.
    let graph = make_graph(grad(|x: &Tensor| f(x)?.sum()))(x).unwrap();
    let backward: Vec<_> = graph.eqns().iter().filter(|e| e.prim.name() == "checkpoint").collect();
    assert_eq!(backward.len(), 1, "{graph}");
    let made = |atom: &Atom| match atom {
        Atom::Var(v) => !graph.inputs().contains(v),
        Atom::Literal(_) => false,
    };
    // The last operand is the cotangent.
    let operands = &backward[0].inputs[..backward[0].inputs.len() - 1];
    let mut all: Vec<String> =
        operands.iter().filter(|a| made(a)).map(|a| graph.atom_aval(a).to_string()).collect();
    all.sort();
    all
}

/// A product with weights, one with a batch axis, names on values of shapes of their own.
fn shapes(x: &Tensor) -> Result<Tensor> {
    let w = x.narrow(0, 0, 1)?.reshape([3, 4])?.transpose(0, 1)?; // [4, 3]
    let a = checkpoint_name(&x.sin()?, "a")?; // [2, 3, 4]
    let b = a.matmul(&w)?.sin()?; // a product [2, 3, 3] without batch axes
    let c = b.narrow(1, 0, 1)?.matmul(&b)?; // a product [2, 1, 3] with one
    let d = checkpoint_name(&c.exp()?.reshape([6])?, "d")?; // [6]
    d.mul(&d)?.reshape([3, 2])?.exp()
}

#[test]
fn each_policy_keeps_what_it_says() {
    let x = wave(&[2, 3, 4]);
    let kept = |policy: Policy| kept(shapes, policy, &x);
    assert_eq!(kept(Policy::Nothing), [""; 0]);
    assert_eq!(kept(Policy::names(["a"])), ["f64[2,3,4]"]);
    assert_eq!(kept(Policy::names(["d"])), ["f64[6]"]);
    assert_eq!(kept(Policy::names(["a", "d"])), ["f64[2,3,4]", "f64[6]"]);
    assert_eq!(kept(Policy::names(["a"]).or(Policy::names(["d"]))), ["f64[2,3,4]", "f64[6]"]);
    assert_eq!(kept(Policy::DotsWithNoBatchDims), ["f64[2,3,3]"]);
    assert_eq!(kept(Policy::Dots), ["f64[2,1,3]", "f64[2,3,3]"]);
    // All but one, which is made again of the value before it.
    let but = kept(Policy::all_but_names(["d"]));
    assert!(!but.contains(&"f64[6]".to_string()) && but.len() > 4, "{but:?}");
}

#[test]
fn policies_see_into_jitted_functions_and_change_no_gradient() {
    let x = wave(&[2, 3, 4]);
    let inner = jit(shapes);
    let through = |x: &Tensor| inner.call(x);
    assert_eq!(kept(through, Policy::names(["a"]), &x), ["f64[2,3,4]"]);
    assert_eq!(kept(through, Policy::Dots, &x), kept(shapes, Policy::Dots, &x));
    let want = grad(|x: &Tensor| shapes(x)?.sum())(&x).unwrap();
    for policy in [
        Policy::Nothing,
        Policy::Everything,
        Policy::Dots,
        Policy::DotsWithNoBatchDims,
        Policy::names(["a"]),
        Policy::all_but_names(["a", "d"]),
        Policy::Dots.or(Policy::names(["d"])),
    ] {
        let f = checkpoint_with(through, policy.clone());
        let loss = |x: &Tensor| f(x)?.sum();
        close(&grad(loss)(&x).unwrap(), &want, 1e-12);
        close(&jit(grad(loss)).call(&x).unwrap(), &want, 1e-12);
        let outer = jit(loss);
        close(&grad(|x: &Tensor| outer.call(x))(&x).unwrap(), &want, 1e-12);
        let many = Tensor::stack(&[x.clone(), x.mul(2.0).unwrap()], 0).unwrap();
        let batch = vmap(grad(loss))(&many).unwrap();
        close(&batch.select(0, 0).unwrap(), &want, 1e-12);
        let outer = grad(|many: &Tensor| vmap(loss)(many)?.sum())(&many).unwrap();
        close(&outer, &batch, 1e-12);
    }
}

#[test]
fn bodies_of_loops_and_branches() {
    let args = (wave(&[LAYERS, 4, 4]), wave(&[3, 4]));
    let light = checkpoint(layer);
    let named = checkpoint_with(
        |(w, x): &(Tensor, Tensor)| {
            let inner = checkpoint_name(&x.matmul(w)?.tanh()?.softmax(-1)?, "inner")?;
            inner.cumsum(1)?.sin()?.matmul(w)?.tanh()
        },
        Policy::names(["inner"]),
    );
    let want = grad(|args: &(Tensor, Tensor)| chain(&layer, args))(&args).unwrap();
    let second = |f: Layer<'_>| {
        let slope = |args: &(Tensor, Tensor)| {
            let g = grad(f)(args)?;
            g.0.square()?.sum()?.add(&g.1.sum()?)
        };
        grad(slope)(&args).unwrap()
    };
    let want_second = second(&|args| chain(&layer, args));
    let bodies: [Layer<'_>; 3] = [&layer, &light, &named];
    for body in bodies {
        let f = |args: &(Tensor, Tensor)| looped(body, args);
        for got in [grad(f)(&args).unwrap(), jit(grad(f)).call(&args).unwrap()] {
            close(&got.0, &want.0, 1e-11);
            close(&got.1, &want.1, 1e-11);
        }
        let got = second(&f);
        close(&got.0, &want_second.0, 1e-9);
        close(&got.1, &want_second.1, 1e-9);
        // A checkpoint around the loop as well.
        let outer = checkpoint(f);
        close(&grad(outer)(&args).unwrap().0, &want.0, 1e-11);
        let branch = |args: &(Tensor, Tensor)| {
            let positive = args.1.sum()?.lt(1e9)?;
            cond(&positive, f, |(_, x): &(Tensor, Tensor)| x.sum(), args)
        };
        close(&grad(branch)(&args).unwrap().0, &want.0, 1e-11);
    }
}

/// What one step of the loop keeps is the state that goes in and what has a name.
#[test]
fn a_loop_keeps_the_state_only() {
    let args = (wave(&[LAYERS, 4, 4]), wave(&[3, 4]));
    let stacks = |body: Layer<'_>| {
        let graph = make_graph(grad(|args: &(Tensor, Tensor)| looped(body, args)))(&args).unwrap();
        let forward = graph.eqns().iter().find(|e| e.prim.name() == "scan").unwrap();
        let out = |v: &u32| graph.aval(*v).to_string();
        forward.outputs.iter().map(out).filter(|t| t.starts_with("f64[16,")).collect::<Vec<_>>()
    };
    assert_eq!(stacks(&checkpoint(layer)), ["f64[16,3,4]"]);
    assert!(stacks(&layer).len() > 3, "{:?}", stacks(&layer));
}

#[test]
fn what_a_function_writes_is_written_once() {
    let _alone = draws_alone();
    let count = Tensor::zeros([], DType::F64).unwrap();
    let f = checkpoint(|x: &Tensor| {
        count.add_(1.0)?;
        x.mul(&count)?.sin()?.sum()
    });
    let x = wave(&[3]);
    let slope = grad(&f)(&x).unwrap();
    close(&slope, &x.cos().unwrap(), 1e-12);
    assert_eq!(count.item::<f64>().unwrap(), 1.0);
    let step = jit(grad(&f));
    let two = x.mul(2.0).unwrap().cos().unwrap().mul(2.0).unwrap();
    close(&step.call(&x).unwrap(), &two, 1e-12);
    assert_eq!(count.item::<f64>().unwrap(), 2.0);
    // The mask of the second run is that of the first.
    let dropped = checkpoint(|x: &Tensor| x.dropout(0.5, true)?.square()?.sum());
    let (value, slope) = value_and_grad(dropped)(&Tensor::ones([64], DType::F64).unwrap()).unwrap();
    let slope = slope.to_vec::<f64>().unwrap();
    assert!(slope.iter().all(|s| *s == 0.0 || *s == 8.0), "{slope:?}");
    assert_eq!(slope.iter().sum::<f64>(), 2.0 * value.item::<f64>().unwrap());
}

#[test]
fn integers_captures_and_rules_of_its_own() {
    let w = wave(&[3]);
    let rows = Tensor::from_slice(&[2i64, 0], [2]).unwrap();
    let f = |(x, rows): &(Tensor, Tensor)| {
        let y = x.mul(&w)?.sin()?.exp()?;
        Ok((y.index_select(0, rows)?.sin()?, rows.add(rows)?))
    };
    let args = (wave(&[3]), rows);
    let light = checkpoint(f);
    let (out, back) = vjp(&light, &args).unwrap();
    let (want, want_back) = vjp(f, &args).unwrap();
    assert_eq!(out.1.to_vec::<i64>().unwrap(), [4, 0]);
    close(&out.0, &want.0, 1e-12);
    close(&back(&out).unwrap().0, &want_back(&want).unwrap().0, 1e-12);
    // In what it captures, too.
    let captured = |w: &Tensor| checkpoint(|x: &Tensor| x.mul(w)?.sin()?.sum())(&args.0);
    close(
        &grad(captured)(&w).unwrap(),
        &grad(|w: &Tensor| args.0.mul(w)?.sin()?.sum())(&w).unwrap(),
        1e-12,
    );
    // A rule for reverse mode inside: `3 x` in place of `cos x`.
    let ruled = custom_vjp(
        Tensor::sin,
        |x: &Tensor| Ok((x.sin()?, x.clone())),
        |x: &Tensor, ct: &Tensor| ct.mul(x)?.mul(3.0),
    );
    let loss = checkpoint(|x: &Tensor| ruled(x)?.sum());
    let three = args.0.mul(3.0).unwrap();
    close(&grad(&loss)(&args.0).unwrap(), &three, 1e-12);
    close(&jit(grad(&loss)).call(&args.0).unwrap(), &three, 1e-12);
    close(&jvp(&light, &args, &args).unwrap().1.0, &jvp(f, &args, &args).unwrap().1.0, 1e-12);
}

#[test]
fn on_a_mesh() {
    let mesh = Mesh::new(&crate::mesh::DEVICES, [("data", 4), ("model", 2)]).unwrap();
    let loss =
        |(w, x): &(Tensor, Tensor)| layer(&(w.clone(), layer(&(w.clone(), x.clone()))?))?.sum();
    let light = checkpoint_with(loss, Policy::Dots);
    let args = (wave(&[4, 4]), wave(&[8, 4]));
    let want = grad(loss)(&args).unwrap();
    let sharded = (
        args.0.shard(&mesh, spec![None, "model"]).unwrap(),
        args.1.shard(&mesh, spec!["data"]).unwrap(),
    );
    close(&jit(grad(&light)).call(&sharded).unwrap().0, &want.0, 1e-12);
    close(&grad(&light)(&sharded).unwrap().1, &want.1, 1e-12);
}

#[test]
fn with_backward_and_named_axes() {
    let f = |x: &Tensor| x.sin()?.exp()?.sin()?.sum();
    let x = wave(&[3]);
    let want = grad(f)(&x).unwrap();
    let leaf = x.copy().unwrap().requires_grad_(true).unwrap();
    checkpoint(f)(&leaf).unwrap().backward().unwrap();
    close(&leaf.grad().unwrap(), &want, 1e-12);
    let share = |x: &Tensor| x.exp()?.div(&psum(&x.exp()?, "i")?)?.square();
    let light = checkpoint(share);
    let options = || VmapOptions::new().axis_name("i");
    let want = grad(|x: &Tensor| vmap_with(share, options())(x)?.sum())(&x).unwrap();
    close(&grad(|x: &Tensor| vmap_with(&light, options())(x)?.sum())(&x).unwrap(), &want, 1e-12);
    let inner = |f: &dyn Fn(&Tensor) -> Result<Tensor>| vmap_with(grad(f), options())(&x).unwrap();
    close(&inner(&light), &inner(&share), 1e-12);
}
