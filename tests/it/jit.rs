//! `jit` beyond its results: why it compiles again, what it watches, what bounds it.

use oxbridge::nn::{BatchNorm2d, Dropout, Layer, Sequential};
use oxbridge::ops::precision::{Precision, with_matmul_precision};
use oxbridge::prelude::*;
use oxbridge::tensor::conv::Conv;
use oxbridge::transforms::jit::{Difference, Excess};
use std::collections::BTreeMap;
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
