//! `jit` beyond its results: why it compiles again, what it watches, what bounds it.

use crate::cases::engine::case::draws_alone;
use oxbridge::backend::Buffer;
use oxbridge::nn::{BatchNorm2d, Dropout, Layer, Sequential};
use oxbridge::ops::precision::{Precision, with_matmul_precision};
use oxbridge::optim::{AdamW, AdamWOptions};
use oxbridge::prelude::*;
use oxbridge::tensor::conv::Conv;
use oxbridge::transforms::eval_shape;
use oxbridge::transforms::jit::{Bucketing, Buckets, Difference, Excess, Lowered, Padded};
use oxbridge::transforms::tree::{Number, leaves, tree_map};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

fn zeros(shape: impl Into<Shape>) -> Tensor {
    Tensor::zeros(shape, DType::F32).unwrap()
}

fn ones(shape: impl Into<Shape>) -> Tensor {
    Tensor::ones(shape, DType::F32).unwrap()
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap()
}

#[derive(Clone, Debug, Tree)]
struct Scale {
    weights: Vec<Tensor>,
    #[tree(static)]
    power: i64,
    #[tree(static)]
    slope: f32,
    bias: Option<Tensor>,
}

fn scale(n: usize) -> Scale {
    Scale { weights: vec![ones([2]); n], power: 2, slope: 0.5, bias: None }
}

#[test]
fn a_miss_names_what_differs() {
    type Args = (Scale, BTreeMap<String, Tensor>);
    let f = jit(|(scale, x): &Args| {
        let sum = scale.weights[0].pow(scale.power)?.mul(scale.slope)?;
        sum.add(&x["x"])
    })
    .named("f");
    let args = |scale: Scale, x: Tensor| (scale, BTreeMap::from([("x".to_string(), x)]));
    let first = args(scale(1), zeros([3, 2]));
    let none = f.explain(&first).unwrap().unwrap();
    assert_eq!(none.differences(), [Difference::First]);
    f.call(&first).unwrap();
    assert!(f.explain(&first).unwrap().is_none());
    assert!(f.last_recompile().is_none());

    let cases: Vec<(Args, &str)> = vec![
        (args(scale(1), zeros([5, 2])), "`[1].x`: axis 0 had size 3, has 5"),
        (args(scale(1), zeros([2])), "`[1].x`: was f32[3,2], is f32[2]"),
        (
            args(scale(1), Tensor::zeros([3, 2], DType::F64).unwrap()),
            "`[1].x`: was of f32, is of f64",
        ),
        (args(Scale { power: 3, ..scale(1) }, zeros([3, 2])), "static `[0].power`: was 2, is 3"),
        (
            args(Scale { slope: 0.25, ..scale(1) }, zeros([3, 2])),
            "static `[0].slope`: was 0.5, is 0.25",
        ),
        (
            args(scale(2), zeros([3, 2])),
            "structure of `[0].weights`: was 1, is 2; `[0].weights[1]` is new",
        ),
        (
            args(Scale { bias: Some(ones([1])), ..scale(1) }, zeros([3, 2])),
            "structure of `[0].bias`: was false, is true; `[0].bias` is new",
        ),
    ];
    for (args, expected) in &cases {
        let why = f.explain(args).unwrap().unwrap();
        assert_eq!(why.why(), *expected);
        assert_eq!((why.name(), why.programs()), ("f", 1));
    }
    // Against all programs that are there the nearest one counts.
    f.call(args(scale(1), zeros([5, 2]))).unwrap();
    let far = args(Scale { power: 7, ..scale(1) }, zeros([5, 2]));
    let line = line!() + 1;
    f.call(&far).unwrap();
    let last = f.last_recompile().unwrap();
    assert_eq!(last.why(), "static `[0].power`: was 2, is 7");
    assert_eq!((last.location().line(), last.programs()), (line, 2));
    assert!(last.location().file().ends_with("jit.rs"), "{last}");
    assert_eq!(f.recompiles().len(), 2);
    let text = last.to_string();
    assert!(text.starts_with("`f` is compiled again, after 2 programs: static"), "{text}");
}

#[test]
fn captures_options_shardings_and_precision_are_explained() {
    let state = zeros([2]);
    let captured = state.clone();
    let f = jit(move |x: &Tensor| x.matmul(x)?.add(&captured.sum()?));
    let x = ones([2, 2]);
    f.call(&x).unwrap();
    state.set_value(zeros([3]).value().unwrap()).unwrap();
    let why = f.explain(&x).unwrap().unwrap();
    assert!(why.why().starts_with("a captured tensor: was f32[2], is f32[3], made at "), "{why}");
    f.call(&x).unwrap();
    let high = with_matmul_precision(Precision::High, || f.explain(&x)).unwrap().unwrap();
    assert_eq!(high.why(), "matmul precision: was Default, is High");
    let f = f.donate([0]);
    assert_eq!(f.explain(&x).unwrap().unwrap().why(), "option `donate`: was [], is [0]");
    f.call(x.copy().unwrap()).unwrap();
    assert_eq!(f.compiled(), 3);

    let mesh = Mesh::new(&Client::host(2).devices(), [("data", 2)]).unwrap();
    let f = jit(|x: &Tensor| x.sin());
    f.call(zeros([4])).unwrap();
    let why = f.explain(zeros([4]).shard(&mesh, spec!["data"]).unwrap()).unwrap().unwrap().why();
    assert!(why.starts_with("the argument: was split as f32[4], is as f32[4@data] on "), "{why}");
}

#[test]
fn precision_reaches_every_product() {
    let text = |f: &dyn Fn(&Tensor) -> Result<Tensor>, x: &Tensor| {
        with_matmul_precision(Precision::Highest, || {
            jit(|x: &Tensor| f(x)).lower(x).unwrap().stablehlo()
        })
    };
    let x = ones([2, 2]);
    let matmul = text(&|x| x.matmul(x), &x);
    let einsum = text(&|x| Tensor::einsum("ij,jk->ik", &[x.clone(), x.clone()]), &x);
    let slope = text(&|x| grad(|x: &Tensor| x.matmul(x)?.sum())(x), &x);
    let image = ones([1, 1, 4, 4]);
    let conv = text(&|x| x.conv2d(&ones([1, 1, 2, 2]), None, Conv::default()), &image);
    for text in [matmul, einsum, slope, conv] {
        assert!(
            text.contains("precision HIGHEST") && !text.contains("precision DEFAULT"),
            "{text}"
        );
    }
    let eager = with_matmul_precision(Precision::High, || x.matmul(&x)).unwrap();
    assert_eq!(values(&eager), [2.0; 4]);
}

#[test]
fn eval_after_the_first_trace_is_honoured() {
    let _alone = draws_alone();
    let init = &mut Init::seed(1);
    let model =
        Sequential::new().then(BatchNorm2d::new(1, init).unwrap()).then(Dropout::new(0.5).unwrap());
    let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [1, 1, 2, 2]).unwrap();
    // Captured by reference, shared, and passed.
    let captured = jit(|x: &Tensor| model.forward(x));
    let passed = jit(|(m, x): &(Sequential, Tensor)| m.forward(x));
    let trained = values(&captured.call(&x).unwrap());
    assert!(trained.contains(&0.0) || trained.iter().any(|v| v.abs() > 1.4), "{trained:?}");
    passed.call((&model, &x)).unwrap();
    model.eval();
    let expected = values(&model.forward(&x).unwrap());
    assert_eq!(values(&captured.call(&x).unwrap()), expected);
    assert_eq!(values(&passed.call((&model, &x)).unwrap()), expected);
    assert_eq!(values(&captured.call(&x).unwrap()), expected);
    let why = captured.last_recompile().unwrap().why();
    assert!(why.contains("a guarded value: was true, is false, made at src/nn/"), "{why}");
    let why = passed.last_recompile().unwrap().why();
    assert_eq!(
        why,
        "static `[0][0].training`: was true, is false; static `[0][1].training`: was true, is false"
    );
    model.train(true);
    captured.call(&x).unwrap();
    assert_eq!((captured.compiled(), passed.compiled()), (2, 2));
}

#[test]
fn guards_pass_through_nested_functions() {
    let double = Arc::new(Guarded::new(1i64));
    let cell = Arc::clone(&double);
    let inner = jit(move |x: &Tensor| x.mul(cell.get()));
    let x = ones([2]);
    // The inner program is there already when the outer one is traced.
    inner.call(&x).unwrap();
    let outer = jit(|x: &Tensor| inner.call(x)?.add(1));
    let sum = |x: &Tensor| outer.call(x)?.sum();
    let slope = jit(grad(sum));
    assert_eq!(values(&outer.call(&x).unwrap()), [2.0; 2]);
    assert_eq!(values(&slope.call(&x).unwrap()), [1.0; 2]);
    double.set(3);
    assert_eq!(values(&outer.call(&x).unwrap()), [4.0; 2]);
    assert_eq!(values(&slope.call(&x).unwrap()), [3.0; 2]);
    double.set(1);
    assert_eq!(values(&outer.call(&x).unwrap()), [2.0; 2]);
    assert_eq!((inner.compiled(), outer.compiled(), slope.compiled()), (2, 2, 2));
}

#[test]
fn a_guarded_value_set_while_tracing_is_the_functions_own() {
    let mode = Guarded::new(1i64);
    let f = jit(|x: &Tensor| {
        let old = mode.get();
        mode.set(5);
        let y = x.mul(mode.get());
        mode.set(old);
        y
    });
    for _ in 0..3 {
        assert_eq!(values(&f.call(ones([1])).unwrap()), [5.0]);
    }
    assert_eq!(f.compiled(), 1);
    let made_inside = jit(|x: &Tensor| x.mul(Guarded::new(2i64).get()));
    assert_eq!(values(&made_inside.call(ones([1])).unwrap()), [2.0]);
    assert_eq!(values(&made_inside.call(ones([1])).unwrap()), [2.0]);
    assert_eq!(made_inside.compiled(), 1);
}

#[test]
fn what_a_custom_rule_reads_is_watched() {
    let factor = Guarded::new(Number(2.0));
    let f = custom_vjp(
        |x: &Tensor| x.sum(),
        |x: &Tensor| Ok((x.sum()?, x.clone())),
        |x: &Tensor, ct: &Tensor| x.mul(ct)?.mul(factor.get().0),
    );
    let f = jit(f);
    let slope = jit(grad(|x: &Tensor| f.call(x)));
    let eager = |x: &Tensor| grad(|x: &Tensor| f.call(x))(x);
    let x = ones([3]);
    assert_eq!(
        (values(&eager(&x).unwrap()), values(&slope.call(&x).unwrap())),
        (vec![2.0; 3], vec![2.0; 3])
    );
    factor.set(Number(5.0));
    assert_eq!(
        (values(&eager(&x).unwrap()), values(&slope.call(&x).unwrap())),
        (vec![5.0; 3], vec![5.0; 3])
    );
    factor.set(Number(2.0));
    assert_eq!(
        (values(&eager(&x).unwrap()), values(&slope.call(&x).unwrap())),
        (vec![2.0; 3], vec![2.0; 3])
    );
    assert_eq!((f.compiled(), slope.compiled()), (2, 2));
}

#[test]
fn the_least_recently_used_program_goes() {
    let f = jit(|x: &Tensor| x.add(1)).cache_size(2);
    let (a, b, c) = (zeros([1]), zeros([2]), zeros([3]));
    f.call(&a).unwrap();
    f.call(&b).unwrap();
    f.call(&a).unwrap();
    f.call(&c).unwrap();
    assert!(f.explain(&a).unwrap().is_none(), "`a` was used later than `b`");
    let why = f.explain(&b).unwrap().unwrap();
    assert_eq!(why.differences(), [Difference::Evicted]);
    assert_eq!(values(&f.call(&b).unwrap()), [1.0; 2]);
    assert_eq!((f.compiled(), f.cached(), f.evictions()), (4, 2, 2));
}

#[test]
fn more_graphs_than_allowed_warn_or_fail() {
    let f = jit(|x: &Tensor| x.add(1)).max_graphs(2, Excess::Error);
    f.call(zeros([1])).unwrap();
    f.call(zeros([2])).unwrap();
    f.call(zeros([1])).unwrap();
    let error = f.call(zeros([3])).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Compile);
    assert_eq!(error.notes().len(), 1);
    assert!(error.location().unwrap().file().ends_with("jit.rs"), "{error}");
    let f = jit(|x: &Tensor| x.add(1)).max_graphs(1, Excess::Warn);
    f.call(zeros([1])).unwrap();
    f.call(zeros([2])).unwrap();
    assert_eq!(f.compiled(), 2);
}

#[test]
fn nothing_is_compiled_where_it_is_forbidden() {
    let (x, more, most) = (zeros([7, 3]), zeros([8, 3]), zeros([9, 3]));
    let f = jit(|x: &Tensor| x.sin()?.mul(x));
    f.call(&x).unwrap();
    x.cos().unwrap();
    {
        let _outer = forbid_compile();
        {
            let _inner = forbid_compile();
        }
        f.call(&x).unwrap();
        x.cos().unwrap();
        let error = x.tan().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Compile);
        assert!(error.text().contains("`tan` for (f32[7,3])"), "{error}");
        let error = f.call(&more).unwrap_err();
        assert!(error.text().contains("axis 0 had size 7, has 8"), "{error}");
        let elsewhere = std::thread::scope(|s| s.spawn(|| f.call(&most)).join().unwrap());
        elsewhere.unwrap();
    }
    x.tan().unwrap();
    assert_eq!(f.compiled(), 2);
}

#[test]
fn what_is_warmed_up_compiles_nothing_when_called() {
    let init = &mut Init::seed(3);
    let model = Sequential::new().then(oxbridge::nn::Linear::new(3, 2, init).unwrap());
    let step = jit(|(model, x): &(Sequential, Tensor)| {
        let (loss, slope) = value_and_grad(|m: &Sequential| m.forward(x)?.square()?.sum())(model)?;
        Ok((loss, oxbridge::transforms::tree::tree_map2(model, &slope, |p, g| p.sub(g))?))
    })
    .donate([0]);
    let types = tree_map(&model, Tensor::to_meta).unwrap();
    assert!(leaves(&types).iter().all(|t| t.to_vec::<f32>().is_err()));
    let sizes = [4, 6].map(|n| (types.clone(), Tensor::meta([n, 3], DType::F32)));
    let batches = [4, 6].map(|n| ones([n, 3]));
    let before = Client::default().unwrap().compiles();
    assert_eq!(step.warm_up(&sizes).unwrap(), 2);
    assert_eq!(step.warm_up(&sizes).unwrap(), 0);
    let warm = Client::default().unwrap().compiles();
    assert!(warm >= before);
    let _serving = forbid_compile();
    let (_, model) = step.call((&model, &batches[0])).unwrap();
    let (_, _) = step.call((&model, &batches[1])).unwrap();
    assert_eq!(step.compiled(), 2);
    // What is only a type cannot be run.
    let error = step.call(sizes[0].clone()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotConcrete);
}

#[test]
fn what_is_warmed_up_may_be_split_over_a_mesh() {
    let mesh = Mesh::new(&Client::host(2).devices(), [("data", 2)]).unwrap();
    let f = jit(|(x, y): &(Tensor, Tensor)| x.add(y))
        .in_shardings([Some(NamedSharding::new(&mesh, spec!["data"]).unwrap()), None]);
    let types = (Tensor::meta([4], DType::F32), Tensor::meta([4], DType::F32));
    let (x, y) = (ones([4]), ones([4]));
    assert_eq!(f.warm_up([&types]).unwrap(), 1);
    let sharded = Tensor::meta([4], DType::F32).shard(&mesh, spec!["data"]).unwrap();
    assert_eq!(sharded.aval().to_string(), "f32[4@data]");
    let g = jit(|x: &Tensor| x.add(x));
    g.warm_up([&sharded]).unwrap();
    let z = ones([4]).shard(&mesh, spec!["data"]).unwrap();
    let _serving = forbid_compile();
    assert_eq!(values(&f.call((&x, &y)).unwrap()), [2.0; 4]);
    assert_eq!(values(&g.call(&z).unwrap()), [2.0; 4]);
}

#[test]
fn shapes_are_evaluated_without_effects() {
    let count = zeros([]);
    let f = |x: &Tensor| {
        count.set_value(count.add(1)?.value()?)?;
        Ok(vec![x.sum()?, x.matmul(x)?])
    };
    let out = eval_shape(f, Tensor::meta([5, 5], DType::F64)).unwrap();
    let types: Vec<String> = out.iter().map(|t| t.aval().to_string()).collect();
    assert_eq!(types, ["f64[]", "f64[5,5]"]);
    assert_eq!(values(&count), [0.0]);
    assert!(eval_shape(|x: &Tensor| x.matmul(x), zeros([2, 3])).is_err());
}

#[test]
fn a_nested_function_is_traced_once_and_called() {
    let traced = std::sync::atomic::AtomicUsize::new(0);
    let inner = jit(|x: &Tensor| {
        traced.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        x.sin()?.mul(x)
    })
    .named("inner");
    let outer = jit(|x: &Tensor| inner.call(inner.call(x)?)?.add(&inner.call(x)?)).named("outer");
    let x = ones([3]);
    let text = outer.lower(&x).unwrap().stablehlo();
    assert_eq!(text.matches("callee = @inner").count(), 3, "{text}");
    assert_eq!(text.matches("func.func private @inner").count(), 1, "{text}");
    outer.call(&x).unwrap();
    inner.call(&x).unwrap();
    assert_eq!(traced.into_inner(), 1);
}

#[test]
fn a_donated_argument_is_gone_and_its_memory_used() {
    let f = jit(|(x, y): &(Tensor, Tensor)| x.add(y)).donate([0]);
    let (x, y) = (ones([64]), ones([64]));
    let text = f.lower((&x, &y)).unwrap().stablehlo();
    assert!(text.contains("aliasing_output") || text.contains("buffer_donor"), "{text}");
    let handle = x.clone();
    let x = f.call((x, y.clone())).unwrap();
    assert_eq!(*handle.sum().unwrap_err().kind(), ErrorKind::Donated);
    assert_eq!(*handle.to_vec::<f32>().unwrap_err().kind(), ErrorKind::Donated);
    // The same tensor twice is not overwritten, and what is not donated lives on.
    assert_eq!(values(&f.call((&y, &y)).unwrap()), [2.0; 64]);
    assert_eq!(values(&x), [2.0; 64]);
}

/// Large arrays are used where they lie; a program writes over them only if nobody else reads them.
#[test]
fn a_donated_array_is_overwritten_where_nobody_else_reads_it() {
    const N: usize = 1 << 16;
    let device = Client::cpu(1).unwrap().device(0).unwrap();
    let next = jit(|x: &Tensor| x.add(1)).donate([0]);
    let numbers: Vec<f32> = (0..N).map(|i| i as f32).collect();
    let want: Vec<f32> = numbers.iter().map(|x| x + 3.0).collect();
    let on_host = Tensor::from_slice(&numbers, [N]).unwrap();
    let on_host = on_host.to_device(&Client::host(1).device(0).unwrap()).unwrap();
    let moved = on_host.to_device(&device).unwrap();
    let part = on_host.narrow(0, 0, N - 1).unwrap().to_device(&device).unwrap();
    let own = Tensor::from_slice(&numbers, [N]).unwrap().to_device(&device).unwrap();
    for x in [moved, own] {
        let x = (0..3).fold(x, |x, _| next.call(x).unwrap());
        assert_eq!(values(&x), want);
    }
    next.call(part).unwrap();
    assert_eq!(values(&on_host), numbers);
    assert_eq!(values(&Tensor::zeros([N], DType::F32).unwrap()), vec![0.0; N]);
}

/// A number that no device holds yet, as a new optimiser's learning rate, keeps nothing else from
/// being overwritten.
#[test]
fn a_donated_number_keeps_no_array_alive() {
    let device = Client::cpu(1).unwrap().device(0).unwrap();
    let params = ones([1 << 16]).to_device(&device).unwrap();
    let state = AdamW::new(&params, AdamWOptions { lr: 0.25, ..AdamWOptions::default() }).unwrap();
    let next = jit(|state: &AdamW<Tensor>| tree_map(state, |t| t.add(1))).donate([0]);
    let old = state.exp_avg.value().unwrap();
    let lr = state.lr.clone();
    let state = next.call(state).unwrap();
    let Buffer::Pjrt(buffer) = &old.array("test").unwrap().buffers()[0] else { unreachable!() };
    assert!(buffer.is_deleted().unwrap());
    assert_eq!((values(&state.exp_avg)[7], values(&state.lr)), (1.0, vec![1.25]));
    let state = next.call(state).unwrap();
    assert_eq!((values(&state.exp_avg_sq)[7], values(&state.lr)), (2.0, vec![2.25]));
    assert_eq!(*lr.mul(2.0).unwrap_err().kind(), ErrorKind::Donated);
    // The same number given anew is what it was.
    assert_eq!(
        values(&next.call(AdamW::new(&params, AdamWOptions::default()).unwrap()).unwrap().lr),
        [1.001]
    );
}

#[test]
fn a_ragged_batch_compiles_nothing_new() {
    let normalise = jit(|Padded { args: (x, w), mask }: &Padded<(Tensor, Tensor)>| {
        let kept = mask.keep(&x.matmul(w)?, "rows", 0, 0.0)?;
        let mean = kept.sum_dim([0], true)?.div(&mask.length("rows")?)?;
        Ok((x.matmul(w)?.sub(&mean)?, mean))
    })
    .bucket([Bucketing::new("rows", Buckets::PowersOfTwo).of(0, 0).result(0, -2).fill(7.0)]);
    let w = Tensor::from_slice(&[1f32, 2.0], [1, 2]).unwrap();
    let rows = |n: usize| {
        let data: Vec<f32> = (0..n).map(|i| i as f32).collect();
        Tensor::from_slice(&data, [n, 1]).unwrap()
    };
    for n in [5, 8, 6, 7] {
        let serving = (n != 5).then(forbid_compile);
        let (centred, mean) = normalise.call((&rows(n), &w)).unwrap();
        let middle = (n - 1) as f32 / 2.0;
        assert_eq!(values(&mean), [middle, 2.0 * middle]);
        let expected: Vec<f32> =
            (0..n).flat_map(|i| [i as f32 - middle, 2.0 * (i as f32 - middle)]).collect();
        assert_eq!((values(&centred), centred.shape()), (expected, [n, 2].into()));
        drop(serving);
    }
    assert_eq!(normalise.jit().compiled(), 1);
    let uses = normalise.uses();
    assert_eq!((uses[0].bucket, uses[0].calls, uses[0].filled), (8, 4, 26));
    assert_eq!(uses[0].to_string(), "`rows` padded to 8: 4 calls, 1.23 times the size");
    let wide = (Tensor::meta([100, 1], DType::F32), Tensor::meta([1, 2], DType::F32));
    assert_eq!(normalise.warm_up([&wide]).unwrap(), 1);
    normalise.call((&rows(65), &w)).unwrap();
    assert_eq!(normalise.jit().compiled(), 2);
}

#[test]
fn a_bucketed_function_has_derivatives_and_writes_back() {
    let mean = jit(|Padded { args: x, mask }: &Padded<Tensor>| {
        mask.keep(&x.square()?, "n", 0, 0.0)?.sum()?.div(&mask.length("n")?)
    })
    .bucket([Bucketing::new("n", Buckets::List(vec![8, 4])).of(0, 0)]);
    let x = Tensor::from_slice(&[1f32, 2.0, 3.0], [3]).unwrap();
    let slope = grad(|x: &Tensor| mean.call(x))(&x).unwrap();
    assert_eq!(values(&slope), [2.0 / 3.0, 4.0 / 3.0, 2.0]);
    let error = mean.call(ones([9])).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape);

    let grow = jit(|Padded { args: (x, y), mask }: &Padded<(Tensor, Tensor)>| {
        x.set_value(mask.keep(&x.add(1)?, "m", 0, 0.0)?.value()?)?;
        y.set_value(y.add(1)?.value()?)?;
        Ok(())
    })
    .bucket([Bucketing::new("m", Buckets::Multiples(4)).of_leaf("[0]", 0)]);
    let y = ones([1]);
    grow.call((&x, &y)).unwrap();
    assert_eq!((values(&x), values(&y)), (vec![2.0, 3.0, 4.0], vec![2.0]));
}

#[test]
fn a_compiled_program_has_a_text() {
    let f = jit(|(x, w): &(Tensor, Tensor)| x.matmul(w)?.sin()).named("wave");
    let args = (ones([16, 8]), ones([8, 4]));
    let text = f.lower(&args).unwrap().compile().unwrap().as_text().unwrap();
    if Client::default().unwrap().session().is_none() {
        assert!(text.contains("dot_general") && text.contains("sin"), "{text}");
        return;
    }
    assert!(text.starts_with("HloModule wave\n"), "{text}");
    assert!(text.contains("\nENTRY %") && text.contains("ROOT %"), "{text}");
    assert!(text.contains(" = f32[16,8]{1,0} parameter(0)\n"), "{text}");
    assert!(text.contains("dot(%") && text.contains("lhs_contracting_dims={1}"), "{text}");
    assert!(!text.contains("unknown"), "{text}");
}

thread_local! {
    /// The events of `oxbridge::jit` on this thread.
    static EVENTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Takes down the fields of all events of `oxbridge::jit`, for each thread by itself. It is the
/// process's subscriber: whether an event is wanted is kept for all threads together, so one that
/// another thread does not have could miss what that thread met first.
struct Events;

struct Fields(String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "oxbridge::jit"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(format!("{} ", event.metadata().level()));
        event.record(&mut fields);
        EVENTS.with_borrow_mut(|events| events.push(fields.0));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_recompile_is_an_event() {
    tracing::subscriber::set_global_default(Events).unwrap();
    // An event that another thread met between the two would else stay unwanted.
    tracing::callsite::rebuild_interest_cache();
    let f = jit(|x: &Tensor| x.sin()).named("wave").max_graphs(1, Excess::Warn);
    EVENTS.take();
    f.call(zeros([2])).unwrap();
    f.call(zeros([2])).unwrap();
    f.call(zeros([3])).unwrap();
    let events = EVENTS.take();
    let has = |i: usize, texts: &[&str]| texts.iter().all(|t| events[i].contains(t));
    assert_eq!(events.len(), 3, "{events:?}");
    assert!(has(0, &["DEBUG", "name=\"wave\"", "there is no program yet"]), "{events:?}");
    assert!(has(1, &["WARN", "at most 1 are allowed", "axis 0 had size 2, has 3"]), "{events:?}");
    let file = format!("file={:?}", file!());
    assert!(has(2, &["INFO", "axis 0 had size 2, has 3", &file, "line="]), "{events:?}");
}

/// Flags reach the compiler, and are a part of what a program is found by.
#[test]
fn compiler_options_make_programs_of_their_own() {
    let device = Client::cpu(1).unwrap().device(0).unwrap();
    let x = ones([8]).to_device(&device).unwrap();
    let wave = |x: &Tensor| x.sin()?.mul(x)?.exp();
    let plain = jit(wave).lower(&x).unwrap();
    let text = |lowered: &Lowered| lowered.compile().unwrap().as_text().unwrap();
    assert!(text(&plain).contains("fusion("), "{}", text(&plain));
    let bare = jit(wave).compiler_option("xla_disable_all_hlo_passes", true);
    assert!(!text(&bare.lower(&x).unwrap()).contains("fusion("));
    // The flag of a lowered program stands in place of the function's.
    let back = bare.lower(&x).unwrap().compiler_option("xla_disable_all_hlo_passes", false);
    assert!(text(&back).contains("fusion("));
    // The order in which flags are given makes no other program.
    let [a, b] = [["xla_a", "xla_b"], ["xla_b", "xla_a"]]
        .map(|flags| flags.iter().fold(plain.clone(), |l, flag| l.compiler_option(flag, 1)));
    assert_eq!(a.call(), b.call());
    assert_ne!(a.call(), a.clone().compiler_option("xla_b", 2).call());
    // Flags of each kind, and results as without them.
    let all = jit(wave)
        .compiler_option("xla_cpu_enable_fast_math", false)
        .compiler_option("xla_backend_optimization_level", 0)
        .compiler_option("xla_cpu_max_isa", "AVX2");
    assert_eq!(values(&all.call(&x).unwrap()).len(), 8);
    for (got, want) in values(&bare.call(&x).unwrap()).iter().zip(values(&wave(&x).unwrap())) {
        assert!((got - want).abs() < 1e-5, "{got} is not {want}");
    }
    let why = all.explain(zeros([3])).unwrap().unwrap().why();
    assert!(why.contains("axis 0 had size 8, has 3"), "{why}");
    let changed = all.compiler_option("xla_cpu_enable_fast_math", true);
    let why = changed.explain(&x).unwrap().unwrap().why();
    assert_eq!(
        why,
        "option `compiler_option`: was xla_backend_optimization_level=0, \
         xla_cpu_enable_fast_math=false, xla_cpu_max_isa=AVX2, is xla_backend_optimization_level=0, \
         xla_cpu_enable_fast_math=true, xla_cpu_max_isa=AVX2"
    );
}

#[test]
fn compiler_options_go_along_with_derivatives_but_not_into_another_program() {
    let device = Client::cpu(1).unwrap().device(0).unwrap();
    let x = ones([8]).to_device(&device).unwrap();
    // A flag that no compiler knows fails wherever it is passed on.
    let unknown = |x: &Tensor| x.sin()?.sum();
    let unknown = jit(unknown).compiler_option("xla_no_such_flag", true);
    let sum = |x: &Tensor| unknown.call(x);
    for error in [
        unknown.call(&x).unwrap_err(),
        grad(sum)(&x).unwrap_err(),
        jvp(sum, &x, &x).unwrap_err(),
        vmap(sum)(&x.reshape([2, 4]).unwrap()).unwrap_err(),
        unknown.lower(&x).unwrap().compile().unwrap_err(),
    ] {
        assert!(error.to_string().contains("xla_no_such_flag"), "{error}");
    }
    // It is not asked for where nothing is compiled.
    assert_eq!(
        values(&unknown.call(x.to_device(&Client::host(1).device(0).unwrap()).unwrap()).unwrap())
            .len(),
        1
    );
    let outer = jit(sum);
    assert_eq!(*outer.call(&x).unwrap_err().kind(), ErrorKind::Compile);
    // A good flag after the failure.
    let known =
        jit(|x: &Tensor| x.sin()?.sum()).compiler_option("xla_backend_optimization_level", 1);
    let slope = grad(|x: &Tensor| known.call(x))(&x).unwrap();
    assert!((values(&slope)[0] - 1f32.cos()).abs() < 1e-6);
}
