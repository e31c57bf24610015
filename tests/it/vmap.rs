//! `vmap` over any axes, under names, and collectives over them, against plain formulas.

use crate::cases::engine::case::draws_alone;
use crate::cases::engine::case::{mix, uniform};
use crate::cases::engine::compare;
use oxbridge::backend::host::HostArray;
use oxbridge::ops;
use oxbridge::prelude::*;
use oxbridge::tensor::conv::Conv;
use oxbridge::tensor::random::{Key, manual_seed};
use oxbridge::transforms::control::map;
use oxbridge::transforms::jit::make_graph;
use oxbridge::transforms::{Axes, IntoAxes};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

fn t(data: &[f64], shape: impl Into<Shape>) -> Tensor {
    Tensor::from_slice(data, shape).unwrap()
}

fn random(shape: impl Into<Shape>, seed: u64) -> Tensor {
    let data = uniform(DType::F64, &shape.into(), seed, -2.0, 2.0);
    Tensor::from_slice(&data.to_vec::<f64>().unwrap(), data.shape().clone()).unwrap()
}

fn host(x: &Tensor) -> HostArray {
    HostArray::from_slice(&x.to_vec::<f64>().unwrap(), &x.shape()).unwrap()
}

fn assert_close(got: &Tensor, want: &Tensor, what: &str) {
    let compared = compare::all(&[host(got)], &[host(want)], 100.0);
    assert_eq!(compared, Ok(()), "{what}");
}

fn named(name: &str) -> VmapOptions {
    VmapOptions::new().axis_name(name)
}

/// The examples of a tensor: one for each index of the axis, or the same `n` times.
fn examples(x: &Tensor, axis: Option<isize>, n: usize) -> Vec<Tensor> {
    let one = |i: usize| match axis {
        Some(axis) => x.select(axis as i64, i as i64).unwrap(),
        None => x.clone(),
    };
    (0..n).map(one).collect()
}

/// A tensor whose examples, of the given shape, stand on `axis`.
fn batch_of(shape: &[usize], axis: Option<isize>, n: usize, seed: u64) -> Tensor {
    let mut shape = shape.to_vec();
    if let Some(axis) = axis {
        let rank = shape.len() as isize + 1;
        shape.insert(axis.rem_euclid(rank) as usize, n);
    }
    random(shape, seed)
}

fn f(x: &Tensor, y: &Tensor, z: &Tensor) -> Result<(Tensor, Tensor)> {
    let product = x.matmul(y)?.tanh()?;
    Ok((product.add(z)?, x.sin()?.sum_dim([0], false)?))
}

#[test]
fn any_axes_are_stacked_calls() {
    let n = 5;
    for seed in 0..60u64 {
        let pick = |k: u64, rank: usize| {
            let choices = 2 * (rank as u64 + 1) + 1;
            let at = (mix(31 * seed + k) % choices) as isize;
            (at > 0).then(|| at - 1 - (rank as isize + 1))
        };
        let axes = [pick(0, 2), pick(1, 2), pick(2, 1)];
        let shapes: [&[usize]; 3] = [&[3, 4], &[4, 2], &[2]];
        let inputs: Vec<Tensor> =
            (0..3).map(|i| batch_of(shapes[i], axes[i], n, 7 * seed + i as u64)).collect();
        let outs = [pick(3, 2).unwrap_or(0), pick(4, 1).unwrap_or(-1)];
        let options = VmapOptions::new()
            .in_axes((axes[0], axes[1], axes[2]))
            .out_axes((outs[0], outs[1]))
            .axis_size(n);
        let batched = vmap_with(|(x, y, z): &(Tensor, Tensor, Tensor)| f(x, y, z), options.clone());
        let args = (inputs[0].clone(), inputs[1].clone(), inputs[2].clone());
        let got = batched(&args).unwrap();
        let rows: Vec<Vec<Tensor>> = (0..3).map(|i| examples(&inputs[i], axes[i], n)).collect();
        let singles: Vec<(Tensor, Tensor)> =
            (0..n).map(|e| f(&rows[0][e], &rows[1][e], &rows[2][e]).unwrap()).collect();
        let want = |pick: fn(&(Tensor, Tensor)) -> Tensor, axis: isize| {
            Tensor::stack(&singles.iter().map(pick).collect::<Vec<_>>(), axis as i64).unwrap()
        };
        let what = format!("axes {axes:?} to {outs:?}");
        assert_close(&got.0, &want(|s| s.0.clone(), outs[0]), &what);
        assert_close(&got.1, &want(|s| s.1.clone(), outs[1]), &what);
        let compiled = jit(vmap_with(|(x, y, z): &(Tensor, Tensor, Tensor)| f(x, y, z), options));
        let compiled = compiled.call(&args).unwrap();
        assert_close(&compiled.0, &got.0, &what);
        assert_close(&compiled.1, &got.1, &what);
    }
}

#[test]
fn axes_are_a_prefix_of_the_tree() {
    let (x, y) = (random([3, 2], 1), random([2, 3], 2));
    let mut tree = BTreeMap::new();
    tree.insert("x".to_string(), x.clone());
    tree.insert("y".to_string(), y.clone());
    let sum = |m: &BTreeMap<String, Tensor>| m["x"].add(&m["y"]);
    let want = x.add(&y.t().unwrap()).unwrap();
    let axes = Axes::fields([("x", 0), ("y", 1)]);
    let got = vmap_with(sum, VmapOptions::new().in_axes(axes)).clone_call(&tree);
    assert_close(&got, &want, "fields of a map");
    let pairs = vec![(x.clone(), y.clone()), (x.clone(), y.clone())];
    let second = |v: &Vec<(Tensor, Tensor)>| v[0].0.add(&v[1].1);
    for axes in [[(0, 1), (0, 1)].into_axes(), vec![(0, -1), (-2, 1)].into_axes()] {
        let got = vmap_with(second, VmapOptions::new().in_axes(axes)).clone_call(&pairs);
        assert_close(&got, &want, "a list of tuples");
    }
    // `None` for one element, and a result that is given once.
    let options = VmapOptions::new().in_axes((0, None)).out_axes((1, None));
    let both = |(x, y): &(Tensor, Tensor)| Ok((x.mul(2.0)?, y.mul(3.0)?));
    let (a, b) = vmap_with(both, options)(&(x.clone(), y.clone())).unwrap();
    assert_close(&a, &x.t().unwrap().mul(2.0).unwrap(), "moved");
    assert_close(&b, &y.mul(3.0).unwrap(), "not mapped");
    // Nothing mapped, with a size.
    let options = VmapOptions::new().in_axes(None).axis_size(4);
    let out = vmap_with(|x: &Tensor| x.mul(2.0), options)(&x).unwrap();
    assert_eq!(out.shape().dims(), [4, 3, 2]);
}

/// Calls a function on a reference, in method form.
trait Call<A, B> {
    fn clone_call(&self, args: &A) -> B;
}

impl<A, B, F: Fn(&A) -> Result<B>> Call<A, B> for F {
    fn clone_call(&self, args: &A) -> B {
        self(args).unwrap()
    }
}

#[test]
fn collectives_are_their_formulas() {
    let x = random([4, 3], 3);
    let sums = x.sum_dim([0], true).unwrap();
    let over = |f: fn(&Tensor) -> Result<Tensor>| vmap_with(f, named("i"))(&x).unwrap();
    let wide = |row: &Tensor| row.expand_as(&x).unwrap();
    assert_close(&over(|x| psum(x, "i")), &wide(&sums), "psum");
    assert_close(&over(|x| pmean(x, "i")), &wide(&sums.div(4.0).unwrap()), "pmean");
    assert_close(&over(|x| pmax(x, "i")), &wide(&x.amax_dim([0], true).unwrap()), "pmax");
    assert_close(&over(|x| pmin(x, "i")), &wide(&x.amin_dim([0], true).unwrap()), "pmin");
    assert_close(&over(|x| psum(&x.mul(0.0)?.add(1.0)?, "i")), &wide(&t(&[4.0], [1, 1])), "ones");
    assert_close(
        &over(|x| x.mul(&axis_index("i")?.to_dtype(DType::F64)?)),
        &x.mul(&t(&[0.0, 1.0, 2.0, 3.0], [4, 1])).unwrap(),
        "axis_index",
    );
    let gathered = over(|x| all_gather(x, "i", -1, false));
    let want = x.t().unwrap().broadcast_to([4, 3, 4]).unwrap();
    assert_close(&gathered, &want, "all_gather");
    let tiled = over(|x| all_gather(x, "i", 0, true));
    assert_close(&tiled, &x.reshape([1, 12]).unwrap().broadcast_to([4, 12]).unwrap(), "tiled");
    let ring = over(|x| ppermute(x, "i", &[(0, 1), (1, 2), (2, 3), (3, 0)]));
    assert_close(&ring, &x.roll(1, 0).unwrap(), "ppermute");
    let square = random([4, 4, 2], 4);
    let swapped = vmap_with(|x: &Tensor| all_to_all(x, "i", 0, 0, false), named("i"));
    let want = square.permute([1, 0, 2]).unwrap();
    assert_close(&swapped(&square).unwrap(), &want, "all_to_all");
    let scattered = vmap_with(|x: &Tensor| psum_scatter(x, "i", 0, false), named("i"));
    let want = square.sum_dim([0], false).unwrap();
    assert_close(&scattered(&square).unwrap(), &want, "psum_scatter");
    // What all examples share counts once for each of them.
    let one = t(&[2.5], []);
    let counted = vmap_with(|_: &Tensor| psum(&one, "i"), named("i").out_axes(None));
    assert_eq!(counted(&x).unwrap().item::<f64>().unwrap(), 10.0);
    // bool is counted, integers have a mean.
    let flags = x.gt(0.0).unwrap();
    let count = vmap_with(|b: &Tensor| psum(b, "i"), named("i").out_axes(None))(&flags).unwrap();
    assert!(count.equal(&flags.sum_dim([0], false).unwrap()).unwrap());
    let whole = Tensor::from_slice(&[1i64, 2, 4, 6], [4]).unwrap();
    let mean = vmap_with(|n: &Tensor| pmean(n, "i"), named("i").out_axes(None))(&whole).unwrap();
    assert_eq!(mean.item::<f32>().unwrap(), 3.25);
}

#[test]
fn names_nest_and_pass() {
    let x = random([4, 3, 2], 5);
    let inner = |f: fn(&Tensor) -> Result<Tensor>| {
        let rows = move |x: &Tensor| vmap_with(f, named("j"))(x);
        vmap_with(rows, named("i"))(&x).unwrap()
    };
    let wide = |dims: &[i64]| x.sum_dim(dims, true).unwrap().expand_as(&x).unwrap();
    assert_close(&inner(|x| psum(x, "i")), &wide(&[0]), "outer");
    assert_close(&inner(|x| psum(x, "j")), &wide(&[1]), "inner");
    assert_close(&inner(|x| psum(x, ("i", "j"))), &wide(&[0, 1]), "both");
    assert_close(&inner(|x| psum(&psum(x, "j")?, "i")), &wide(&[0, 1]), "one by one");
    assert_close(
        &inner(|x| pmean(x, ["j", "i"])),
        &wide(&[0, 1]).div(12.0).unwrap(),
        "mean of both",
    );
    assert_close(
        &inner(|x| x.mul(axis_size(["i", "j"])? as f64)),
        &x.mul(12.0).unwrap(),
        "sizes multiply",
    );
    // The inner one of two of one name is meant.
    let hidden =
        vmap_with(|x: &Tensor| vmap_with(|x: &Tensor| psum(x, "i"), named("i"))(x), named("i"));
    assert_close(&hidden(&x).unwrap(), &wide(&[1]), "hidden name");
    // A vmap without a name, in between.
    let between = vmap_with(|x: &Tensor| vmap(|x: &Tensor| psum(x, "i"))(x), named("i"));
    assert_close(&between(&x).unwrap(), &wide(&[0]), "passed");
}

#[test]
fn names_reach_through_jit_and_scans() {
    let x = random([4, 3], 6);
    let want = x.mul(&x.sum_dim([0], true).unwrap()).unwrap();
    let traces = AtomicUsize::new(0);
    let inner = jit(|x: &Tensor| {
        traces.fetch_add(1, Ordering::Relaxed);
        x.mul(&psum(x, "i")?)
    });
    let batched = vmap_with(|x: &Tensor| inner.call(x), named("i"));
    assert_close(&batched(&x).unwrap(), &want, "jit inside vmap");
    assert_close(&batched(&x).unwrap(), &want, "again");
    assert_eq!(traces.load(Ordering::Relaxed), 1, "one program for one size of `i`");
    // Another size of the axis, and no axis at all, are other signatures.
    let half = x.narrow(0, 0, 2).unwrap();
    let sums = half.sum_dim([0], true).unwrap().expand_as(&half).unwrap();
    assert_close(&batched(&half).unwrap(), &half.mul(&sums).unwrap(), "another size");
    assert_eq!(traces.load(Ordering::Relaxed), 2, "a program for each size");
    let why = inner.recompiles().pop().unwrap().why();
    assert!(why.contains("axes of `vmap` around: were [i:4], are [i:2]"), "{why}");
    let error = inner.call(&x).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Axis, "{error}");
    let outer = jit(vmap_with(|x: &Tensor| inner.call(x), named("i")));
    assert_close(&outer.call(&x).unwrap(), &want, "jit around it");

    let looped = |x: &Tensor| {
        let step = |c: &Tensor, _: &Tensor| {
            let c = c.mul(0.5)?.add(&psum(c, "i")?.mul(0.125)?)?;
            Ok((c.clone(), axis_index("i")?.to_dtype(DType::F64)?.add(&c)?))
        };
        scan(step, x, &Tensor::zeros([3], DType::F64)?, ScanOptions::default())
    };
    let unrolled = |x: &Tensor| {
        let (mut c, mut ys) = (x.clone(), Vec::new());
        for _ in 0..3 {
            c = c.mul(0.5)?.add(&psum(&c, "i")?.mul(0.125)?)?;
            ys.push(axis_index("i")?.to_dtype(DType::F64)?.add(&c)?);
        }
        Ok((c, Tensor::stack(&ys, 0)?))
    };
    let (got, want) =
        (vmap_with(looped, named("i"))(&x).unwrap(), vmap_with(unrolled, named("i"))(&x).unwrap());
    assert_close(&got.0, &want.0, "scan");
    assert_close(&got.1, &want.1, "rows of a scan");
    let gradient = |f: fn(&Tensor) -> Result<Tensor>| {
        vmap_with(move |x: &Tensor| grad(f)(x), named("i"))(&x).unwrap()
    };
    let scanned = gradient(|x| {
        let step = |c: &Tensor, _: &Tensor| Ok((c.mul(&psum(c, "i")?)?.sin()?, ()));
        scan(step, x, &Tensor::zeros([2], DType::F64)?, ScanOptions::default())?.0.sum()
    });
    let plain = gradient(|x| {
        let step = |c: &Tensor| c.mul(&psum(c, "i")?)?.sin();
        step(&step(x)?)?.sum()
    });
    assert_close(&scanned, &plain, "grad of a scan");
}

#[test]
fn programs_depend_on_the_axes_that_they_speak_of() {
    let _alone = draws_alone();
    let x = random([4, 3], 16);
    let half = x.narrow(0, 0, 2).unwrap();
    let plain = jit(|x: &Tensor| x.sin()?.sum());
    for x in [&x, &half] {
        vmap(|x: &Tensor| plain.call(x))(x).unwrap();
        vmap_with(|x: &Tensor| plain.call(x), named("i"))(x).unwrap();
    }
    plain.call(x.select(0, 0).unwrap()).unwrap();
    assert_eq!(plain.compiled(), 1, "it speaks of no axis");
    // The name is bound inside of the function, so what is around it makes no difference.
    let closed = jit(vmap_with(|x: &Tensor| psum(x, "i"), named("i")));
    closed.call(&x).unwrap();
    vmap_with(|_: &Tensor| closed.call(&x), named("i"))(&half).unwrap();
    assert_eq!(closed.compiled(), 1, "it binds its own axis");
    // A function around one that speaks of an axis depends on it too, traced or found.
    let inner = jit(|x: &Tensor| psum(x, "i"));
    let outer = jit(|x: &Tensor| inner.call(x)?.mul(2.0));
    vmap_with(|x: &Tensor| inner.call(x), named("i"))(&x).unwrap();
    let over = |x: &Tensor| vmap_with(|x: &Tensor| outer.call(x), named("i").out_axes(None))(x);
    for x in [&x, &half, &x] {
        let sums = x.sum_dim([0], false).unwrap();
        assert_close(&over(x).unwrap(), &sums.mul(2.0).unwrap(), "outer");
    }
    assert_eq!((inner.compiled(), outer.compiled()), (2, 2), "one for each size");
    // What draws numbers depends on the batches around it, and on nothing else.
    let noise = jit(|x: &Tensor| x.add(&Tensor::rand([3])?));
    noise.call(x.select(0, 0).unwrap()).unwrap();
    let drawn = vmap(|x: &Tensor| noise.call(x))(&x.mul(0.0).unwrap()).unwrap();
    let (a, b) = (drawn.select(0, 0).unwrap(), drawn.select(0, 1).unwrap());
    assert!(!a.equal(&b).unwrap(), "the program of one call is not that of a batch");
    assert_eq!(noise.compiled(), 2, "alone, and in a batch");
}

#[test]
fn names_reach_into_conditions() {
    let x = random([4, 3], 6);
    // A predicate that differs from example to example: both branches run for all.
    let branch = |x: &Tensor| {
        let first = x.select(0, 0)?.gt(0.0)?;
        cond(&first, |x: &Tensor| psum(x, "i"), |x: &Tensor| x.neg(), x)
    };
    let chosen = |x: &Tensor| {
        let first = x.select(0, 0)?.gt(0.0)?;
        psum(x, "i")?.where_(&first, &x.neg()?)
    };
    let got = vmap_with(branch, named("i"))(&x).unwrap();
    assert_close(&got, &vmap_with(chosen, named("i"))(&x).unwrap(), "cond");
    let shared = t(&[1.0], []).gt(0.0).unwrap();
    let branch = |x: &Tensor| cond(&shared, |x: &Tensor| psum(x, "i"), |x: &Tensor| x.neg(), x);
    let sums = x.sum_dim([0], true).unwrap().expand_as(&x).unwrap();
    assert_close(&vmap_with(branch, named("i"))(&x).unwrap(), &sums, "cond of one predicate");

    // Each example stops at its own time; those that are done still take part.
    let stopped = |x: &Tensor| {
        let limit = axis_index("i")?.add(1)?;
        let go = |(k, _): &(Tensor, Tensor)| k.lt(&limit);
        let step = |(k, x): &(Tensor, Tensor)| Ok((k.add(1)?, x.add(&psum(x, "i")?)?));
        let zero = Tensor::from_value(oxbridge::Value::scalar(Scalar::new(0i32)));
        Ok(while_loop(go, step, &(zero, x.clone()))?.1)
    };
    let got = vmap_with(stopped, named("i"))(&x).unwrap();
    let mut rows = x.clone();
    for k in 0..4 {
        let next = rows.add(&rows.sum_dim([0], true).unwrap()).unwrap();
        let done = rows.narrow(0, 0, k).unwrap();
        let going = next.narrow(0, k as i64, 4 - k).unwrap();
        rows = Tensor::cat(&[done, going], 0).unwrap();
    }
    assert_close(&got, &rows, "while");
}

#[test]
fn derivatives_are_those_of_all_examples() {
    let x = random([4, 3], 8);
    let n = 4.0;
    // The cotangents of all examples are summed: n times the gradient of one result.
    let f = |x: &Tensor| psum(&x.square()?, "i")?.sum();
    let got = vmap_with(|x: &Tensor| grad(f)(x), named("i"))(&x).unwrap();
    assert_close(&got, &x.mul(2.0 * n).unwrap(), "grad inside");
    let total = |x: &Tensor| vmap_with(f, named("i"))(x)?.sum();
    assert_close(&grad(total)(&x).unwrap(), &got, "grad outside");
    let mean = |x: &Tensor| pmean(&x.square()?, "i")?.sum();
    let got = vmap_with(|x: &Tensor| grad(mean)(x), named("i"))(&x).unwrap();
    assert_close(&got, &x.mul(2.0).unwrap(), "grad of a mean");

    type Function = fn(&Tensor) -> Result<Tensor>;
    let functions: &[(&str, Function)] = &[
        ("psum", |x| x.mul(&psum(&x.sin()?, "i")?)?.sum()),
        ("pmax", |x| x.mul(&pmax(x, "i")?)?.sum()),
        ("pmin", |x| x.sin()?.mul(&pmin(&x.cos()?, "i")?)?.sum()),
        ("all_gather", |x| all_gather(&x.sin()?, "i", 0, false)?.mul(x)?.sum()),
        ("tiled", |x| all_gather(&x.sin()?, "i", 0, true)?.cumsum(0)?.tanh()?.sum()),
        ("ppermute", |x| ppermute(&x.exp()?, "i", &[(0, 2), (3, 1)])?.mul(x)?.sum()),
        ("all_to_all", |x| {
            let y = all_gather(x, "i", 0, false)?.sin()?;
            all_to_all(&y, "i", 0, 1, false)?.square()?.cumsum(1)?.sum()
        }),
        ("psum_scatter", |x| {
            let y = all_gather(x, "i", 0, false)?.sin()?;
            psum_scatter(&y, "i", 0, false)?.square()?.sum()
        }),
        ("jit", |x| jit(|x: &Tensor| x.mul(&psum(&x.sin()?, "i")?)).call(x)?.sum()),
        ("index", |x| x.sin()?.mul(&axis_index("i")?.to_dtype(DType::F64)?)?.sum()),
    ];
    for (name, f) in functions {
        let inside = vmap_with(|x: &Tensor| grad(f)(x), named("i"))(&x).unwrap();
        let total = |x: &Tensor| vmap_with(f, named("i"))(x)?.sum();
        assert_close(&inside, &grad(total)(&x).unwrap(), name);
        let compiled = jit(vmap_with(|x: &Tensor| grad(f)(x), named("i")));
        assert_close(&compiled.call(&x).unwrap(), &inside, name);
        let forward = vmap_with(|x: &Tensor| Ok(jvp(f, x, &x.cos()?)?.1), named("i"))(&x).unwrap();
        let along = jvp(vmap_with(f, named("i")), &x, &x.cos().unwrap()).unwrap().1;
        assert_close(&forward, &along, name);
        let twice = |x: &Tensor| grad(|x: &Tensor| grad(f)(x)?.sin()?.sum())(x);
        let second = vmap_with(twice, named("i"))(&x).unwrap();
        let outer = |x: &Tensor| {
            let inner = |x: &Tensor| vmap_with(f, named("i"))(x)?.sum();
            grad(inner)(x)?.sin()?.sum()
        };
        assert_close(&second, &grad(outer)(&x).unwrap(), name);
    }
}

#[test]
fn random_numbers_of_a_batch() {
    let _alone = draws_alone();
    // Keys that are mapped: what each draws alone.
    let keys = Key::new(3).unwrap().split(4).unwrap();
    let data: Vec<Tensor> = keys.iter().map(|k| k.data().clone()).collect();
    let stacked = Tensor::stack(&data, 0).unwrap();
    let draw = |key: &Tensor| Key::from_data(key).normal([3], DType::F32);
    let want = Tensor::stack(
        &keys.into_iter().map(|k| k.normal([3], DType::F32).unwrap()).collect::<Vec<_>>(),
        0,
    );
    assert!(vmap(draw)(&stacked).unwrap().equal(&want.unwrap()).unwrap());
    // The default generator: each example draws its own, the same again for the same seed.
    let x = Tensor::zeros([3, 2, 4], DType::F32).unwrap();
    let noise = |x: &Tensor| x.add(&Tensor::rand([4])?);
    let rows = |x: &Tensor| vmap(vmap(noise))(x);
    let run = |f: &dyn Fn(&Tensor) -> Result<Tensor>| {
        manual_seed(11).unwrap();
        f(&x).unwrap().reshape([6, 4]).unwrap()
    };
    let drawn = run(&rows);
    for i in 0..6 {
        for j in 0..i {
            let (a, b) = (drawn.select(0, i).unwrap(), drawn.select(0, j).unwrap());
            assert!(!a.equal(&b).unwrap(), "examples {i} and {j} draw the same");
        }
    }
    assert!(run(&rows).equal(&drawn).unwrap(), "the same seed gives the same numbers");
    let compiled = jit(rows);
    assert!(run(&|x| compiled.call(x)).equal(&drawn).unwrap(), "jit around");
    let inner = jit(noise);
    let called = |x: &Tensor| vmap(vmap(|x: &Tensor| inner.call(x)))(x);
    assert!(run(&called).equal(&drawn).unwrap(), "jit inside");
}

#[test]
fn control_flow_of_a_batch() {
    let x = random([3, 2], 12);
    let rows = examples(&x, Some(0), 3);
    let stacked = |f: &dyn Fn(&Tensor) -> Result<Tensor>| {
        Tensor::stack(&rows.iter().map(|r| f(r).unwrap()).collect::<Vec<_>>(), 0).unwrap()
    };
    type Function = fn(&Tensor) -> Result<Tensor>;
    let functions: &[(&str, Function)] = &[
        ("cond", |x| cond(&x.sum()?.gt(0.0)?, |x: &Tensor| x.sin(), |x: &Tensor| x.exp(), x)),
        ("while", |x| {
            while_loop(|x: &Tensor| x.abs()?.sum()?.lt(20.0), |x: &Tensor| x.mul(1.5), x)
        }),
        ("scan", |x| {
            let step = |c: &Tensor, r: &Tensor| Ok((c.mul(r)?.tanh()?, c.clone()));
            Ok(scan(step, &Tensor::ones([], DType::F64)?, x, ScanOptions::default())?.1)
        }),
        ("map", |x| map(|r: &Tensor| r.mul(2.0), x)),
        ("sort", |x| Ok(x.sort(0, true)?.0)),
        ("conv with a kernel of its own", |x| {
            let signal = Tensor::ones([1, 1, 5], DType::F64)?.cumsum(2)?;
            signal.conv1d(&x.reshape([1, 1, 2])?, None, Conv::default())
        }),
    ];
    for (name, f) in functions {
        assert_close(&vmap(f)(&x).unwrap(), &stacked(f), name);
        assert_close(&jit(vmap(f)).call(&x).unwrap(), &stacked(f), name);
    }
}

#[test]
fn sharding_constraints_of_a_batch() {
    let mesh = Mesh::new(&Client::host(4).devices(), [("data", 2), ("model", 2)]).unwrap();
    let spec = NamedSharding::new(&mesh, spec!["model"]).unwrap();
    let constrained = |x: &Tensor| {
        let value = ops::sharding_constraint(&x.mul(2.0)?.value()?, &spec)?;
        Ok(Tensor::from_value(value))
    };
    let x = Tensor::zeros([4, 6], DType::F32).unwrap();
    let text = |options: VmapOptions| {
        let graph = make_graph(vmap_with(constrained, options))(&x).unwrap();
        graph.to_string()
    };
    let named = text(VmapOptions::new().spmd_axis_name(["data"]));
    assert!(named.contains("data"), "{named}");
    let free = text(VmapOptions::new());
    assert!(!free.contains("data\""), "{free}");
}

#[test]
fn a_batch_of_a_called_graph_is_made_once_for_all_names() {
    let inner = jit(|x: &Tensor| x.sin()?.sum());
    let x = random([4, 3], 13);
    let programs = |name: &str| {
        let f = vmap_with(|x: &Tensor| inner.call(x), named(name));
        let graph = make_graph(f)(&x).unwrap();
        let ids = graph.eqns().iter().filter_map(|e| e.prim.graph().map(|g| g.id()));
        ids.collect::<Vec<_>>()
    };
    assert_eq!(programs("i").len(), 1, "the call stays a call");
}
