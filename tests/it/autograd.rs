//! Torch's face of derivatives, beside the transforms on the same functions.

use crate::cases::engine::case::draws_alone;
use oxbridge::autograd::{BackwardOptions, GradOptions, is_grad_enabled, set_grad_enabled};
use oxbridge::nn::{BatchNorm2d, Conv2d, Dropout, Init, Linear};
use oxbridge::optim::{Adam, AdamOptions, AdamW, AdamWOptions, Sgd, SgdOptions};
use oxbridge::prelude::*;
use oxbridge::tensor::conv::Conv;
use oxbridge::tensor::loss::CrossEntropy;
use oxbridge::tensor::random::manual_seed;
use oxbridge::{autograd, catch};
use std::sync::{Arc, Mutex};

fn t(data: &[f64]) -> Tensor {
    Tensor::from_slice(data, [data.len()]).unwrap()
}

fn leaf(data: &[f64]) -> Tensor {
    t(data).requires_grad_(true).unwrap()
}

fn v(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

fn g(tensor: &Tensor) -> Vec<f64> {
    v(&tensor.grad().expect("a gradient"))
}

fn near(what: &str, got: &Tensor, want: &Tensor, tolerance: f64) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    for (a, b) in v(got).iter().zip(v(want)) {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{what}: {a} is not {b}");
    }
}

fn fails<T>(kind: &ErrorKind, words: &str, result: Result<T>) {
    let error = result.err().expect(words);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

type Function = fn(&Tensor) -> Result<Tensor>;

/// Functions of a 2 by 3 matrix to one number, with what they go through.
const FUNCTIONS: &[(&str, Function)] = &[
    ("product", |x| x.mul(x)?.sin()?.sum()),
    ("a part unused", |x| x.select(0, 1)?.exp()?.sum()),
    ("matmul", |x| x.matmul(&x.t()?)?.tanh()?.sum()),
    ("softmax", |x| x.softmax(-1)?.square()?.sum()),
    ("views", |x| x.view([3, 2])?.permute([1, 0])?.narrow(1, 1, 2)?.mul(3.0)?.square()?.sum()),
    ("log_softmax and mean", |x| x.log_softmax(0)?.mean()),
    ("branch on data", |x| if x.sum()?.item::<f64>()? > 0.0 { x.exp()?.sum() } else { x.sum() }),
    ("in place", |x| {
        let y = x.mul(2.0)?;
        y.select(0, 0)?.mul_(&x.select(0, 1)?)?;
        y.square_()?;
        y.sum()
    }),
    ("in place into zeros", |x| {
        let y = Tensor::zeros([2, 2, 3], DType::F64)?;
        y.select(0, 1)?.copy_(&x.square()?)?;
        y.mul(&y.detach()?.add(1.0)?)?.sum()
    }),
    ("scan", |x| {
        let body = |c: &Tensor, row: &Tensor| {
            let c = c.mul(row)?.sin()?;
            Ok((c.clone(), c))
        };
        let (last, all) = scan(body, &x.select(0, 0)?, x, ScanOptions::default())?;
        last.sum()?.add(&all.square()?.sum()?)
    }),
    ("cond", |x| {
        let y = x.mul(2.0)?;
        let branch = |x: &Tensor| x.mul(&y);
        cond(&x.sum()?.gt(0.0)?, branch, |x: &Tensor| x.sin(), x)?.sum()
    }),
    ("jit", |x| jit(|x: &Tensor| x.mul(x)?.sin()?.sum()).call(x)),
    ("jit with a capture", |x| {
        let y = x.square()?;
        jit(|z: &Tensor| z.mul(&y)?.sum()).call(x)
    }),
    ("custom_vjp", |x| {
        let clipped = custom_vjp(
            |x: &Tensor| Ok(x.clone()),
            |x: &Tensor| Ok((x.clone(), x.clone())),
            |x: &Tensor, ct: &Tensor| ct.clamp(-1.0, 1.0)?.mul(&x.cos()?),
        );
        clipped(&x.mul(1.0)?)?.square()?.sum()
    }),
    ("custom_jvp", |x| {
        let sine = custom_jvp(Tensor::sin, |x: &Tensor, t: &Tensor| {
            Ok((x.sin()?, x.cos()?.mul(t)?.mul(2.0)?))
        });
        sine(x)?.sum()
    }),
    ("checkpoint", |x| checkpoint(|x: &Tensor| x.sin()?.mul(x)?.exp())(x)?.sum()),
    ("vmap", |x| vmap(|row: &Tensor| row.softmax(0)?.mul(x)?.sum())(x)?.square()?.sum()),
    ("sort and cumsum", |x| x.sort(-1, false)?.0.cumsum(0)?.square()?.sum()),
];

fn matrix() -> Tensor {
    Tensor::from_slice(&[0.3f64, -0.7, 1.1, 0.9, 0.2, -0.4], [2, 3]).unwrap()
}

#[test]
fn backward_is_the_transform() {
    for (name, f) in FUNCTIONS {
        let want = grad(f)(&matrix()).unwrap();
        let x = matrix().requires_grad_(true).unwrap();
        let y = f(&x).unwrap();
        assert!(y.requires_grad() && !y.is_leaf(), "{name}");
        y.backward().unwrap_or_else(|e| panic!("{name}: {e}"));
        near(name, &x.grad().unwrap(), &want, 1e-12);
    }
}

/// Gradients of gradients: a product of the Hessian with a vector, both ways.
#[test]
fn create_graph_is_the_transform_twice() {
    let w = Tensor::from_slice(&[1.0f64, 0.5, -2.0, 0.1, 0.2, 0.3], [2, 3]).unwrap();
    for (name, f) in FUNCTIONS {
        // Where the rule is not the derivative of `fwd`, torch differentiates a result by the rule
        // again, and JAX by `fwd`.
        if matches!(*name, "a part unused" | "branch on data" | "custom_vjp") {
            continue;
        }
        let want = grad(|x: &Tensor| grad(f)(x)?.mul(&w)?.sum())(&matrix()).unwrap();
        let x = matrix().requires_grad_(true).unwrap();
        let options = GradOptions { create_graph: true, ..GradOptions::default() };
        let first = autograd::grad(&[f(&x).unwrap()], &[&x], &options).unwrap().remove(0);
        let dot = first.mul(&w).unwrap().sum().unwrap();
        let third = GradOptions { create_graph: true, allow_unused: true, ..options.clone() };
        let got = autograd::grad(&[&dot], &[&x], &third).unwrap().remove(0);
        near(name, &got, &want, 1e-10);
        assert!(x.grad().is_none(), "{name}: only `backward` adds to gradients");
    }
    // The derivative of (1 + y) y with dy = 3 dx, whatever y is: 3 (1 + 2 y), then 18.
    let triple = custom_vjp(
        |x: &Tensor| Ok(x.clone()),
        |x: &Tensor| Ok((x.clone(), ())),
        |(): &(), ct: &Tensor| ct.mul(3.0),
    );
    let x = leaf(&[2.0]);
    let y = triple(&x).unwrap();
    let z = y.mul(&y.add(1.0).unwrap()).unwrap().sum().unwrap();
    let options = GradOptions { create_graph: true, ..GradOptions::default() };
    let first = autograd::grad(&[&z], &[&x], &options).unwrap().remove(0);
    let second = autograd::grad(&[&first], &[&x], &options).unwrap().remove(0);
    assert_eq!((v(&first), v(&second)), (vec![15.0], vec![18.0]));
    // The third derivative of x^4, by `backward`.
    let x = leaf(&[2.0]);
    let mut y = x.pow(4.0).unwrap().sum().unwrap();
    for want in [32.0, 48.0, 48.0] {
        x.zero_grad().unwrap();
        y.backward_options(&BackwardOptions { create_graph: true, ..Default::default() }).unwrap();
        y = x.grad().unwrap().sum().unwrap();
        near("powers", &y, &t(&[want]).sum().unwrap(), 1e-12);
    }
    x.zero_grad().unwrap();
}

#[test]
fn leaves_and_gradients() {
    let x = leaf(&[1.0, 2.0]);
    assert!(x.requires_grad() && x.is_leaf() && x.grad().is_none() && x.grad_fn().is_none());
    let y = x.mul(3.0).unwrap();
    assert!(y.requires_grad() && !y.is_leaf());
    assert_eq!(y.grad_fn().as_deref(), Some("mul"));
    let free = t(&[1.0]);
    assert!(!free.requires_grad() && free.is_leaf() && free.grad().is_none());
    // The value of a comparison has no derivative, nor has an integer.
    assert!(!x.gt(0.0).unwrap().requires_grad());
    assert!(!x.to_dtype(DType::I64).unwrap().requires_grad());
    y.retain_grad().unwrap();
    let z = y.square().unwrap().sum().unwrap();
    z.backward().unwrap();
    assert_eq!(g(&x), [18.0, 36.0]);
    assert_eq!(g(&y), [6.0, 12.0]);
    assert!(z.grad().is_none(), "not asked for");
    // Sums over passes; a handle on the gradient sees them.
    let handle = x.grad().unwrap();
    x.sum().unwrap().backward().unwrap();
    assert_eq!((v(&handle), g(&x)), (vec![19.0, 37.0], vec![19.0, 37.0]));
    handle.mul_(2.0).unwrap();
    assert_eq!(g(&x), [38.0, 74.0]);
    x.zero_grad().unwrap();
    assert!(x.grad().is_none());
    x.mul(&t(&[5.0, 7.0])).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!((v(&handle), g(&x)), (vec![38.0, 74.0], vec![5.0, 7.0]), "an old handle is kept");
    x.set_grad(Some(&t(&[1.0, 1.0]))).unwrap();
    x.sum().unwrap().backward().unwrap();
    assert_eq!(g(&x), [2.0, 2.0]);
    fails(&ErrorKind::Shape, "gradient", x.set_grad(Some(&t(&[1.0]))));
    // A copy and a view are no leaves; a reading is of the value.
    let copy = x.copy().unwrap();
    assert!(!copy.is_leaf() && copy.grad().is_none());
    let view = x.view([2]).unwrap();
    assert!(!view.is_leaf() && view.grad().is_none());
    view.retain_grad().unwrap();
    x.zero_grad().unwrap();
    view.add(&copy).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!((g(&x), g(&view)), (vec![2.0, 2.0], vec![1.0, 1.0]));
    assert_eq!(x.select(0, 1).unwrap().item::<f64>().unwrap(), 2.0);
    assert!(x.to_string().contains('2'), "{x}");
    // Off again.
    x.requires_grad_(false).unwrap();
    assert!(!x.requires_grad() && !x.mul(2.0).unwrap().requires_grad());
}

#[test]
fn what_torch_refuses() {
    use ErrorKind::{Autograd, DType as Type, Shape};
    let x = leaf(&[1.0, 2.0]);
    let y = x.mul(&x).unwrap();
    fails(&Type, "no derivative", Tensor::zeros([2], DType::I64).unwrap().requires_grad_(true));
    fails(&Shape, "not one number", y.backward());
    fails(&Shape, "cotangent", y.backward_with(&t(&[1.0])));
    fails(&Autograd, "does not require grad", t(&[1.0]).sum().unwrap().backward());
    fails(&Autograd, "does not require grad", t(&[1.0]).register_hook(|_| Ok(None)));
    fails(&Autograd, "no leaf", y.requires_grad_(false));
    let sum = y.sum().unwrap();
    sum.backward().unwrap();
    fails(&Autograd, "retain_graph", sum.backward());
    fails(&Autograd, "a leaf", x.mul_(2.0));
    fails(&Autograd, "a view of a leaf", x.select(0, 0).unwrap().fill_(0.0));
    fails(
        &Autograd,
        "a leaf",
        catch(|| {
            let mut x = x.clone();
            x += 1.0;
            Ok(())
        }),
    );
    assert_eq!(v(&x), [1.0, 2.0], "nothing was written");
    let unused = leaf(&[1.0]);
    let z = x.sum().unwrap();
    let keep = GradOptions { retain_graph: Some(true), ..GradOptions::default() };
    fails(&Autograd, "no part", autograd::grad(&[&z], &[&unused], &keep));
    let zeros = GradOptions { allow_unused: true, ..keep };
    assert_eq!(v(&autograd::grad(&[&z], &[&unused], &zeros).unwrap()[0]), [0.0]);
    // What keeps no values may run backwards again, as in torch.
    z.backward().unwrap();
    z.backward().unwrap();
}

#[test]
fn writes_in_place() {
    // y = 2x, y[0] = 0.
    let x = leaf(&[1.0, 2.0, 3.0]);
    let y = x.mul(2.0).unwrap();
    y.select(0, 0).unwrap().fill_(0.0).unwrap();
    y.sum().unwrap().backward().unwrap();
    assert_eq!(g(&x), [0.0, 2.0, 2.0]);
    // What an operation has used is not spoilt by a later write.
    x.zero_grad().unwrap();
    let y = x.mul(1.0).unwrap();
    let z = y.mul(&y).unwrap();
    y.mul_(100.0).unwrap();
    z.sum().unwrap().backward().unwrap();
    assert_eq!(g(&x), [2.0, 4.0, 6.0]);
    // Constants all over: it still requires grad, and nothing flows.
    let y = x.mul(2.0).unwrap();
    y.zero_().unwrap();
    assert!(y.requires_grad());
    y.add(&x).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(g(&x), [3.0, 5.0, 7.0]);
    // Through `detach`, and inside of `no_grad`: values change, the past stays.
    x.detach().unwrap().mul_(2.0).unwrap();
    assert_eq!(v(&x), [2.0, 4.0, 6.0]);
    no_grad(|| x.select(0, 0).unwrap().fill_(9.0)).unwrap();
    assert_eq!(v(&x), [9.0, 4.0, 6.0]);
    assert!(x.is_leaf() && x.requires_grad());
    let y = x.mul(2.0).unwrap();
    no_grad(|| y.fill_(1.0)).unwrap();
    x.zero_grad().unwrap();
    y.mul(&y).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(g(&x), [4.0, 4.0, 4.0]);
    // A detached tensor may become a leaf of its own.
    let w = x.mul(2.0).unwrap().detach().unwrap().requires_grad_(true).unwrap();
    assert!(w.is_leaf());
    w.mul(&w).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(g(&w), [36.0, 16.0, 24.0]);
    no_grad(|| w.sub_(&w.grad().unwrap())).unwrap();
    assert_eq!((v(&w), w.is_leaf()), (vec![-18.0, -8.0, -12.0], true));
    w.sum().unwrap().backward().unwrap();
    assert_eq!(g(&w), [37.0, 17.0, 25.0]);
    let y = w.mul(2.0).unwrap();
    y.detach_().unwrap();
    assert!(y.is_leaf() && !y.requires_grad());
}

#[test]
fn recording_is_switched_off_and_on() {
    let x = leaf(&[1.0]);
    assert!(!no_grad(|| x.mul(2.0)).unwrap().requires_grad());
    assert!(no_grad(|| enable_grad(|| x.mul(2.0))).unwrap().requires_grad());
    {
        let _guard = set_grad_enabled(false);
        assert!(!x.mul(2.0).unwrap().requires_grad());
        assert!(leaf(&[1.0]).requires_grad(), "leaves are made all the same");
    }
    assert!(is_grad_enabled());
    let panicked = std::panic::catch_unwind(|| no_grad(|| panic!("inside")));
    assert!(panicked.is_err() && is_grad_enabled(), "restored on unwind");
    assert!(!x.detach().unwrap().requires_grad());
    // A constant inside of a transform; around one it has no say.
    let f = |x: &Tensor| x.mul(&no_grad(|| x.sin())?)?.sum();
    let want = [1f64.sin()];
    assert_eq!(v(&grad(f)(&t(&[1.0])).unwrap()), want);
    let compiled = jit(f);
    for _ in 0..2 {
        let x = leaf(&[1.0]);
        assert!(!no_grad(|| compiled.call(&x)).unwrap().requires_grad());
        compiled.call(&x).unwrap().backward().unwrap();
        assert_eq!(g(&x), want);
    }
    assert_eq!(v(&no_grad(|| grad(f)(&t(&[1.0]))).unwrap()), want);
    // So is the result of control flow, and of a compiled function.
    let rows = Tensor::from_slice(&[1.0f64, 2.0], [2, 1]).unwrap();
    let body = |c: &Tensor, row: &Tensor| Ok((c.mul(row)?, ()));
    let last = |x: &Tensor| Ok(scan(body, x, &rows, ScanOptions::default())?.0);
    let sine = jit(|x: &Tensor| x.sin());
    let f = |x: &Tensor| x.mul(&no_grad(|| last(x)?.add(&sine.call(x)?))?)?.sum();
    for f in [&f as &dyn Fn(&Tensor) -> Result<Tensor>, &|x| jit(f).call(x)] {
        near("control flow", &grad(f)(&t(&[1.0])).unwrap(), &t(&[2.0 + 1f64.sin()]), 1e-12);
    }
}

#[test]
fn hooks() {
    type Seen = Vec<(&'static str, Vec<f64>)>;
    let x = leaf(&[1.0, 2.0]);
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let log = |name: &'static str, factor: f64| {
        let seen = Arc::clone(&seen);
        move |g: &Tensor| {
            seen.lock().unwrap().push((name, v(g)));
            if factor == 1.0 { Ok(None) } else { Ok(Some(g.mul(factor)?)) }
        }
    };
    let y = x.mul(2.0).unwrap();
    let _first = y.register_hook(log("first", 10.0)).unwrap();
    let second = y.register_hook(log("second", 1.0)).unwrap();
    let _of_leaf = x.register_hook(log("leaf", -1.0)).unwrap();
    y.retain_grad().unwrap();
    let keep = BackwardOptions { retain_graph: Some(true), ..Default::default() };
    // Once a pass, with the sum of all uses.
    let z = y.sum().unwrap().add(&y.sum().unwrap()).unwrap();
    z.backward_options(&keep).unwrap();
    let log = std::mem::take(&mut *seen.lock().unwrap());
    let want = [("first", vec![2.0; 2]), ("second", vec![20.0; 2]), ("leaf", vec![40.0; 2])];
    assert_eq!(log, want);
    assert_eq!((g(&x), g(&y)), (vec![-40.0; 2], vec![20.0; 2]));
    second.remove();
    z.backward().unwrap();
    let names: Vec<&str> = seen.lock().unwrap().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["first", "leaf"]);
    // What a hook gives must fit, and its error comes out.
    let y = x.mul(2.0).unwrap();
    let _bad = y.register_hook(|_| Ok(Some(t(&[1.0])))).unwrap();
    fails(&ErrorKind::Shape, "hook", y.sum().unwrap().backward());
    let y = x.mul(2.0).unwrap();
    let _bad = y.register_hook(|g| Ok(Some(g.reshape([7])?))).unwrap();
    fails(&ErrorKind::Shape, "reshape", y.sum().unwrap().backward());
}

#[test]
fn a_deep_graph_is_dropped_in_a_loop() {
    let x = Tensor::from_slice(&[1f32], [1]).unwrap();
    let x = x.to_device(&Client::host(1).device(0).unwrap()).unwrap().requires_grad_(true).unwrap();
    let chain =
        |n: usize| (0..n).try_fold(x.clone(), |y, i| if i % 2 == 0 { y.sin() } else { y.neg() });
    drop(chain(20_000).unwrap());
    chain(20_000).unwrap().sum().unwrap().backward().unwrap();
    assert!(x.grad().is_some());
}

/// Two linear layers with dropout between.
#[derive(Clone, Debug, Module)]
struct Mlp {
    first: Linear,
    dropout: Dropout,
    second: Linear,
}

impl Mlp {
    fn new(p: f64) -> Mlp {
        let mut init = Init::seed(3);
        Mlp {
            first: Linear::new(4, 8, &mut init).unwrap(),
            dropout: Dropout::new(p).unwrap(),
            second: Linear::new(8, 3, &mut init).unwrap(),
        }
    }

    fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let hidden = self.dropout.forward(&self.first.forward(x)?.tanh()?)?;
        self.second.forward(&hidden)?.cross_entropy(y, CrossEntropy::default())
    }
}

fn ramp(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let data: Vec<f32> = (0..n).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    Tensor::from_slice(&data, shape).unwrap()
}

fn batch() -> (Tensor, Tensor) {
    let labels: Vec<i64> = (0..6).map(|i| i * i % 3).collect();
    (ramp(&[6, 4]), Tensor::from_slice(&labels, [6]).unwrap())
}

fn same_tree(what: &str, got: &[Tensor], want: &[Tensor], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    got.iter().zip(want).for_each(|(a, b)| near(what, a, b, tolerance));
}

fn gradients(model: &impl Module) -> Vec<Tensor> {
    model.parameters().iter().map(|p| p.grad().expect("a gradient")).collect()
}

#[test]
fn modules() {
    let _alone = draws_alone();
    let (x, y) = batch();
    let model = Mlp::new(0.5);
    manual_seed(5).unwrap();
    let (want, grads) = value_and_grad(|m: &Mlp| m.loss(&x, &y))(&model).unwrap();
    model.requires_grad_(true).unwrap();
    manual_seed(5).unwrap();
    let loss = model.loss(&x, &y).unwrap();
    loss.backward().unwrap();
    near("loss", &loss, &want, 1e-6);
    same_tree("dropout", &gradients(&model), &grads.parameters(), 1e-6);
    model.zero_grad().unwrap();
    assert!(model.parameters().iter().all(|p| p.grad().is_none()));

    let net = || {
        let mut init = Init::seed(1);
        let conv = Conv2d::new(2, 3, [3, 3], Conv::default(), &mut init).unwrap();
        (conv, BatchNorm2d::new(3, &init).unwrap())
    };
    let image = ramp(&[2, 2, 5, 5]);
    let f = |(conv, norm): &(Conv2d, BatchNorm2d)| {
        norm.forward(&conv.forward(&image)?)?.relu()?.square()?.mean()
    };
    let (free, model) = (net(), net());
    let grads = grad(f)(&free).unwrap();
    model.requires_grad_(true).unwrap();
    f(&model).unwrap().backward().unwrap();
    same_tree("batch norm", &gradients(&model), &grads.parameters(), 1e-5);
    same_tree("running", &model.buffers(), &free.buffers(), 1e-6);
    assert!(model.buffers().iter().all(|b| !b.requires_grad()), "statistics have no past");
    // A state dict is loaded into leaves.
    model.load_state_dict(&free.state_dict()).unwrap();
    assert!(model.parameters().iter().all(|p| p.requires_grad() && p.is_leaf()));
    model.requires_grad_(false).unwrap();
    assert!(!f(&model).unwrap().requires_grad());
}

#[test]
fn training_in_torchs_manner_is_the_functional_one() {
    let (x, y) = batch();
    let free = Mlp::new(0.0);
    let mut want = Vec::new();
    let mut model = free.clone();
    let options = SgdOptions { lr: 0.3, momentum: 0.9, weight_decay: 0.01, ..Default::default() };
    let mut sgd = Sgd::new(&model, options.clone()).unwrap();
    for _ in 0..20 {
        let (loss, grads) = value_and_grad(|m: &Mlp| m.loss(&x, &y))(&model).unwrap();
        want.push(loss.item::<f64>().unwrap());
        (model, sgd) = sgd.update(&model, &grads).unwrap();
    }
    assert!(want[19] < want[0], "{want:?}");

    let close = |what: &str, losses: &[f64], trained: &Mlp| {
        for (a, b) in losses.iter().zip(&want) {
            assert!((a - b).abs() < 1e-6, "{what}: {losses:?} is not {want:?}");
        }
        same_tree(what, &trained.parameters(), &model.parameters(), 1e-5);
    };
    let fresh = || free.map(&mut |p: &Tensor| p.copy()).unwrap();

    let eager = fresh();
    eager.requires_grad_(true).unwrap();
    let sgd = Sgd::new(&eager, options.clone()).unwrap();
    let mut losses = Vec::new();
    for _ in 0..20 {
        eager.zero_grad().unwrap();
        let loss = eager.loss(&x, &y).unwrap();
        loss.backward().unwrap();
        sgd.step_(&eager).unwrap();
        losses.push(loss.item::<f64>().unwrap());
    }
    close("eager", &losses, &eager);

    // The same step inside of `jit`, model and optimiser captured.
    let captured = fresh();
    captured.requires_grad_(true).unwrap();
    let sgd = Sgd::new(&captured, options).unwrap();
    let step = jit(|(x, y): &(Tensor, Tensor)| {
        captured.requires_grad_(true)?;
        captured.zero_grad()?;
        let loss = captured.loss(x, y)?;
        loss.backward()?;
        sgd.step_(&captured)?;
        Ok(loss)
    });
    let mut losses = Vec::new();
    for _ in 0..20 {
        let loss = step.call((&x, &y)).unwrap();
        assert!(!loss.requires_grad(), "its graph ended inside");
        losses.push(loss.item::<f64>().unwrap());
    }
    close("jit", &losses, &captured);
    assert_eq!(step.compiled(), 1);
    assert!(captured.parameters().iter().all(|p| p.is_leaf() && p.requires_grad()));
    assert_eq!(sgd.step.item::<i64>().unwrap(), 20);
    // The gradients of the last step are outside too.
    same_tree("gradients", &gradients(&captured), &gradients(&eager), 1e-4);
}

/// Model and optimiser passed to the step, which writes them in place, with a compiled function
/// inside of it.
#[test]
fn a_step_takes_model_and_optimiser() {
    let (x, y) = batch();
    let options = SgdOptions { lr: 0.3, momentum: 0.9, ..Default::default() };
    let fresh = || Mlp::new(0.0).map(&mut |p: &Tensor| p.copy()).unwrap();
    let (eager, passed) = (fresh(), fresh());
    let (first, second) = (Sgd::new(&eager, options.clone()), Sgd::new(&passed, options));
    let (first, second) = (first.unwrap(), second.unwrap());
    let forward = jit(|(model, x, y): &(Mlp, Tensor, Tensor)| model.loss(x, y));
    let step = |(model, sgd): &(Mlp, Sgd<Mlp>)| {
        model.requires_grad_(true)?;
        model.zero_grad()?;
        let loss = forward.call((model, &x, &y))?;
        loss.backward()?;
        sgd.step_(model)?;
        Ok(loss)
    };
    let compiled = jit(step);
    passed.requires_grad_(true).unwrap();
    for _ in 0..5 {
        let want = step(&(eager.clone(), first.clone())).unwrap();
        let loss = compiled.call((&passed, &second)).unwrap();
        near("loss", &loss, &want, 1e-6);
        assert!(!loss.requires_grad());
    }
    assert_eq!(compiled.compiled(), 1);
    same_tree("parameters", &passed.parameters(), &eager.parameters(), 1e-6);
    assert!(passed.parameters().iter().all(|p| p.is_leaf() && p.requires_grad()));
    let momenta = |sgd: &Sgd<Mlp>| sgd.momentum_buffer.as_ref().unwrap().parameters();
    same_tree("momenta", &momenta(&second), &momenta(&first), 1e-6);
}

#[test]
fn adam_steps() {
    let (x, y) = batch();
    let free = Mlp::new(0.0);
    let trained = |step: &dyn Fn(&Mlp) -> Result<()>| {
        let model = free.map(&mut |p: &Tensor| p.copy()).unwrap();
        model.requires_grad_(true).unwrap();
        for _ in 0..3 {
            model.zero_grad().unwrap();
            model.loss(&x, &y).unwrap().backward().unwrap();
            step(&model).unwrap();
        }
        model.parameters()
    };
    macro_rules! check {
        ($name:ident, $options:expr) => {
            let state = $name::new(&free, $options).unwrap();
            let got = trained(&|model: &Mlp| state.step_(model));
            let (mut model, mut state) = (free.clone(), $name::new(&free, $options).unwrap());
            for _ in 0..3 {
                let grads = grad(|m: &Mlp| m.loss(&x, &y))(&model).unwrap();
                (model, state) = state.update(&model, &grads).unwrap();
            }
            same_tree(stringify!($name), &got, &model.parameters(), 1e-5);
        };
    }
    check!(Adam, AdamOptions { lr: 0.1, ..Default::default() });
    check!(AdamW, AdamWOptions { lr: 0.1, ..Default::default() });
    // A parameter without a gradient stays as it is.
    let model = Mlp::new(0.0);
    model.first.requires_grad_(true).unwrap();
    let before = v(&model.second.weight);
    let adam = AdamW::new(&model, AdamWOptions::default()).unwrap();
    model.loss(&x, &y).unwrap().backward().unwrap();
    adam.step_(&model).unwrap();
    assert_eq!(v(&model.second.weight), before);
    assert!(!model.second.weight.requires_grad());
    model.zero_grad().unwrap();
    fails(&ErrorKind::Autograd, "no parameter", adam.step_(&model));
}

#[test]
fn inside_and_around_transforms() {
    let w = leaf(&[2.0, 3.0]);
    // Made inside: the transform sees plain values of its own.
    let inside = |x: &Tensor| {
        let x = x.detach()?.requires_grad_(true)?;
        x.mul(&x)?.mul(&w.detach()?)?.sum()?.backward()?;
        x.grad().expect("a gradient").sum()
    };
    let x = t(&[1.0, 4.0]);
    assert_eq!(v(&inside(&x).unwrap()), [28.0]);
    assert_eq!(v(&jit(inside).call(&x).unwrap()), [28.0]);
    let both = |x: &Tensor| Tensor::stack(&[x.clone(), x.mul(2.0)?], 0);
    assert_eq!(v(&vmap(inside)(&both(&x).unwrap()).unwrap()), [28.0, 56.0]);
    // Captured by a transform: a constant inside, and gradients flow outside of it.
    let y = vmap(|x: &Tensor| x.mul(&w)?.sum())(&both(&x).unwrap()).unwrap();
    y.sum().unwrap().backward().unwrap();
    assert_eq!(g(&w), [3.0, 12.0]);
    w.zero_grad().unwrap();
    let slope = grad(|x: &Tensor| x.mul(x)?.mul(&w)?.sum())(&x).unwrap();
    assert_eq!(v(&slope), [4.0, 24.0]);
    slope.sum().unwrap().backward().unwrap();
    assert_eq!(g(&w), [2.0, 8.0]);
    w.zero_grad().unwrap();
    let (_, t) = jvp(|x: &Tensor| x.mul(x)?.mul(&w)?.sum(), &x, &x).unwrap();
    t.backward().unwrap();
    assert_eq!(g(&w), [2.0, 32.0]);
    // Through a compiled function, captured and passed, twice with one program.
    let f = jit(|x: &Tensor| x.mul(&w)?.sin()?.sum());
    for _ in 0..2 {
        w.zero_grad().unwrap();
        let x = leaf(&[1.0, 4.0]);
        f.call(&x).unwrap().backward().unwrap();
        let want: Vec<f64> = [(1.0, 2.0f64), (4.0, 3.0)].map(|(x, w)| x * (x * w).cos()).to_vec();
        near("captured", &w.grad().unwrap(), &self::t(&want), 1e-12);
        let want: Vec<f64> = [(1.0, 2.0f64), (4.0, 3.0)].map(|(x, w)| w * (x * w).cos()).to_vec();
        near("passed", &x.grad().unwrap(), &self::t(&want), 1e-12);
    }
    assert_eq!(f.compiled(), 1);
    // A tensor traced inside is still told when it escapes.
    let leak = Mutex::new(None);
    jit(|x: &Tensor| {
        let x = x.detach()?.requires_grad_(true)?;
        *leak.lock().unwrap() = Some(x.clone());
        x.sin()
    })
    .call(&x)
    .unwrap();
    fails(&ErrorKind::LeakedTracer, "`jit`", leak.lock().unwrap().take().unwrap().sin());
}

/// Gradients added up over compiled calls come out of them.
#[test]
fn gradients_come_out_of_jit() {
    let w = leaf(&[2.0, 3.0]);
    let step = jit(|x: &Tensor| {
        w.requires_grad_(true)?;
        let loss = w.mul(x)?.square()?.sum()?;
        loss.backward()?;
        Ok(loss)
    });
    let x = t(&[1.0, 2.0]);
    for times in 1..5 {
        step.call(&x).unwrap();
        let n = f64::from(times);
        assert_eq!(g(&w), [4.0 * n, 24.0 * n]);
    }
    // Once without a gradient to add to, once with one.
    assert_eq!(step.compiled(), 2);
    w.zero_grad().unwrap();
    step.call(&x).unwrap();
    assert_eq!(g(&w), [4.0, 24.0]);
    assert_eq!(step.compiled(), 2);
    // A step on gradients from outside.
    let sgd = Sgd::new(&w, SgdOptions { lr: 0.5, ..SgdOptions::default() }).unwrap();
    jit(|()| sgd.step_(&w)).call(()).unwrap();
    assert_eq!((v(&w), w.is_leaf()), (vec![0.0, -9.0], true));
}

#[test]
fn sharded_gradients() {
    let mesh = Mesh::new(&crate::mesh::DEVICES, [("data", 4), ("model", 2)]).unwrap();
    let (w, x) = (ramp(&[16, 8]), ramp(&[8, 16]));
    let f = |w: &Tensor, x: &Tensor| x.matmul(w)?.tanh()?.square()?.mean();
    let want = grad(|w: &Tensor| f(w, &x))(&w).unwrap();
    let w = w.shard(&mesh, spec![None, "model"]).unwrap().requires_grad_(true).unwrap();
    let x = x.shard(&mesh, spec!["data"]).unwrap();
    f(&w, &x).unwrap().backward().unwrap();
    let gradient = w.grad().unwrap();
    near("sharded", &gradient, &want, 1e-5);
    let sharding = w.value().unwrap().aval().sharding().cloned();
    assert!(sharding.is_some());
    assert_eq!(gradient.value().unwrap().aval().sharding().cloned(), sharding);
    // In a compiled step as well.
    let step = jit(|x: &Tensor| {
        w.requires_grad_(true)?;
        w.zero_grad()?;
        f(&w, x)?.backward()
    });
    step.call(&x).unwrap();
    let gradient = w.grad().unwrap();
    near("sharded in jit", &gradient, &want, 1e-5);
    assert_eq!(gradient.value().unwrap().aval().sharding().cloned(), sharding);
}
