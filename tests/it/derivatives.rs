//! The entries of derivatives: trees, Jacobians, auxiliary outputs, arguments chosen, any order.

use crate::cases::engine::case::host_device;
use oxbridge::prelude::*;
use oxbridge::transforms::nest::ByPath;
use oxbridge::transforms::{
    GradOptions, grad_with, hessian_aux, jacfwd_aux, jacrev_aux, jvp_aux, linearize_aux,
    value_and_grad_with, vjp_aux,
};

fn t(data: &[f64], shape: impl Into<Shape>) -> Tensor {
    Tensor::from_slice(data, shape).unwrap().to_device(host_device()).unwrap()
}

fn x() -> Tensor {
    t(&[0.5, 1.0, 2.0], [3])
}

fn close(tensor: &Tensor, expected: &[f64]) {
    let got = tensor.to_vec::<f64>().unwrap();
    assert_eq!(got.len(), expected.len(), "{got:?} is not {expected:?}");
    for (a, b) in got.iter().zip(expected) {
        assert!((a - b).abs() < 1e-12 * (1.0 + b.abs()), "{got:?} is not {expected:?}");
    }
}

fn same(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape(), "shapes");
    close(a, &b.to_vec::<f64>().unwrap());
}

/// `sum(sin(x²))`, whose Hessian is diagonal.
fn f(x: &Tensor) -> Result<Tensor> {
    x.mul(x)?.sin()?.sum()
}

/// The second derivative of `sin(x²)`.
fn curvature(x: f64) -> f64 {
    2.0 * (x * x).cos() - 4.0 * x * x * (x * x).sin()
}

/// The third derivative of `sin(x²)`.
fn third(x: f64) -> f64 {
    -12.0 * x * (x * x).sin() - 8.0 * x * x * x * (x * x).cos()
}

const POINTS: [f64; 3] = [0.5, 1.0, 2.0];

fn diagonal(entries: &[f64]) -> Vec<f64> {
    let n = entries.len();
    (0..n * n).map(|k| if k / n == k % n { entries[k / n] } else { 0.0 }).collect()
}

#[test]
fn every_mix_of_second_order_is_the_hessian() {
    let (x, want) = (x(), diagonal(&POINTS.map(curvature)));
    close(&hessian(f)(&x).unwrap(), &want);
    close(&jit(hessian(f)).call(&x).unwrap(), &want);
    let compiled = jit(f);
    let inner = |x: &Tensor| compiled.call(x);
    close(&hessian(inner)(&x).unwrap(), &want);
    close(&jacfwd(grad(f))(&x).unwrap(), &want);
    close(&jacrev(grad(f))(&x).unwrap(), &want);
    close(&jacfwd(jacfwd(f))(&x).unwrap(), &want);
    close(&jacrev(jacfwd(f))(&x).unwrap(), &want);
    close(&jacrev(jacrev(inner))(&x).unwrap(), &want);
    let v = t(&[1.0, 10.0, 100.0], [3]);
    let product: Vec<f64> =
        POINTS.iter().zip([1.0, 10.0, 100.0]).map(|(&x, v)| curvature(x) * v).collect();
    close(&hvp(f, &x, &v).unwrap(), &product);
    close(&hvp(inner, &x, &v).unwrap(), &product);
    close(&jit(|xv: &(Tensor, Tensor)| hvp(f, &xv.0, &xv.1)).call((&x, &v)).unwrap(), &product);
    // Reverse over forward, over reverse, and over the function that `linearize` gives.
    close(&grad(|x: &Tensor| Ok(jvp(f, x, &v)?.1))(&x).unwrap(), &product);
    close(&grad(|x: &Tensor| linearize(f, x)?.1(&v))(&x).unwrap(), &product);
    close(&grad(|x: &Tensor| grad(f)(x)?.mul(&v)?.sum())(&x).unwrap(), &product);
    let one = t(&[1.0], []);
    close(&grad(|x: &Tensor| vjp(f, x)?.1(&one)?.mul(&v)?.sum())(&x).unwrap(), &product);
    close(&vjp(grad(f), &x).unwrap().1(&v).unwrap(), &product);
}

#[test]
fn third_order() {
    let (x, want) = (x(), POINTS.map(third));
    let dense: Vec<f64> = (0..27)
        .map(|k| if k / 9 == k / 3 % 3 && k % 3 == k / 9 { want[k / 9] } else { 0.0 })
        .collect();
    close(&jacfwd(hessian(f))(&x).unwrap(), &dense);
    close(&jacrev(hessian(f))(&x).unwrap(), &dense);
    let twice = |x: &Tensor| grad(|x: &Tensor| grad(f)(x)?.sum())(x)?.sum();
    close(&grad(twice)(&x).unwrap(), &want);
    close(&jit(grad(twice)).call(&x).unwrap(), &want);
}

#[test]
fn jacobians_and_batches() {
    let rows = t(&[0.5, 1.0, 2.0, -0.3, 0.7, 0.1], [2, 3]);
    let all = rows.to_vec::<f64>().unwrap();
    let each: Vec<f64> = all
        .chunks(3)
        .flat_map(|r| diagonal(&r.iter().map(|&x| curvature(x)).collect::<Vec<_>>()))
        .collect();
    close(&vmap(hessian(f))(&rows).unwrap(), &each);
    close(&jit(vmap(hessian(f))).call(&rows).unwrap(), &each);
    // The Hessian of a batch has zeros between different examples.
    let sums = |x: &Tensor| vmap(f)(x)?.sum();
    let whole = diagonal(&all.iter().map(|&x| curvature(x)).collect::<Vec<_>>());
    close(&hessian(sums)(&rows).unwrap(), &whole);
    // A Jacobian over examples: [2] + [2, 3].
    let j = jacrev(vmap(f))(&rows).unwrap();
    assert_eq!(j.shape(), Shape::from([2, 2, 3]));
    same(&j, &jacfwd(vmap(f))(&rows).unwrap());
    // What `linearize` and `vjp` keep may be mapped, and so may what they are given.
    let v = t(&[1.0, 2.0, 3.0], [3]);
    let along = vmap(|x: &Tensor| linearize(|x: &Tensor| x.mul(x), x)?.1(&v))(&rows).unwrap();
    close(&along, &[1.0, 4.0, 12.0, -0.6, 2.8, 0.6]);
    let (_, along) = linearize(|x: &Tensor| x.mul(x), &v).unwrap();
    close(&vmap(along)(&rows).unwrap(), &[1.0, 4.0, 12.0, -0.6, 2.8, 0.6]);
    let (_, back) = vjp(|x: &Tensor| x.mul(x), &v).unwrap();
    close(&vmap(&back)(&rows).unwrap(), &[1.0, 4.0, 12.0, -0.6, 2.8, 0.6]);
    close(&jit(vmap(back)).call(&rows).unwrap(), &[1.0, 4.0, 12.0, -0.6, 2.8, 0.6]);
}

#[test]
fn loops_and_branches_of_second_order() {
    let cube = |x: &Tensor| {
        let step = |y: &Tensor, (): &()| Ok((y.mul(x)?, ()));
        let options = ScanOptions { length: Some(2), ..ScanOptions::default() };
        scan(step, x, &(), options)?.0.sum()
    };
    let want = diagonal(&POINTS.map(|x| 6.0 * x));
    close(&hessian(cube)(&x()).unwrap(), &want);
    close(&jit(hessian(cube)).call(x()).unwrap(), &want);
    let twice = grad(|x: &Tensor| grad(cube)(x)?.sum());
    close(&twice(&x()).unwrap(), &POINTS.map(|x| 6.0 * x));
    close(&grad(|x: &Tensor| twice(x)?.sum())(&x()).unwrap(), &[6.0; 3]);
    let either = |x: &Tensor| {
        let test = x.sum()?.gt(0.0)?;
        cond(&test, |x: &Tensor| f(x), |x: &Tensor| cube(x), x)
    };
    close(&hessian(either)(&x()).unwrap(), &diagonal(&POINTS.map(curvature)));
    let minus = x().neg().unwrap();
    close(&hessian(either)(&minus).unwrap(), &diagonal(&POINTS.map(|x| -6.0 * x)));
    let both = Tensor::stack(&[x(), minus], 0).unwrap();
    let each = [diagonal(&POINTS.map(curvature)), diagonal(&POINTS.map(|x| -6.0 * x))].concat();
    close(&vmap(hessian(either))(&both).unwrap(), &each);
}

#[derive(Clone, Debug, Tree)]
struct Line {
    slope: Tensor,
    offset: Tensor,
    #[tree(static)]
    power: i32,
}

fn line() -> Line {
    Line { slope: t(&[2.0, 3.0], [2]), offset: t(&[5.0], []), power: 2 }
}

#[test]
fn jacobians_of_trees() {
    let (a, b) = (t(&[2.0, 3.0], [2]), t(&[5.0], []));
    let args = (a, vec![b]);
    let f = |(a, b): &(Tensor, Vec<Tensor>)| {
        Ok((a.mul(&b[0])?, [b[0].mul(&b[0])?, a.sum()?], Some(Box::new(a.clone()))))
    };
    type Args = (Tensor, Vec<Tensor>);
    let check = |j: (Args, [Args; 2], Option<Box<Args>>)| {
        let (scaled, [square, sum], copy) = j;
        assert_eq!(scaled.0.shape(), Shape::from([2, 2]));
        close(&scaled.0, &[5.0, 0.0, 0.0, 5.0]);
        close(&scaled.1[0], &[2.0, 3.0]);
        close(&square.0, &[0.0, 0.0]);
        close(&square.1[0], &[10.0]);
        close(&sum.0, &[1.0, 1.0]);
        close(&sum.1[0], &[0.0]);
        let copy = copy.unwrap();
        close(&copy.0, &[1.0, 0.0, 0.0, 1.0]);
        close(&copy.1[0], &[0.0, 0.0]);
    };
    check(jacfwd(f)(&args).unwrap());
    check(jacrev(f)(&args).unwrap());
    check(jit(jacrev(f)).call(&args).unwrap());
    // A struct as argument is one at each tensor of the result; as result it nests by paths.
    let value = |l: &Line| l.slope.mul(&l.offset)?.mul(&l.offset)?.sum();
    let by: Line = jacrev(value)(&line()).unwrap();
    assert_eq!(by.power, 2);
    close(&by.offset, &[50.0]);
    let h: ByPath<Line> = hessian(value)(&line()).unwrap();
    assert_eq!(h.keys().collect::<Vec<_>>(), ["slope", "offset"]);
    close(&h["slope"].slope, &[0.0; 4]);
    close(&h["slope"].offset, &[10.0, 10.0]);
    close(&h["offset"].slope, &[10.0, 10.0]);
    close(&h["offset"].offset, &[10.0]);
}

#[test]
fn jacobians_of_nothing_and_of_constants() {
    let empty = t(&[], [0, 2]);
    let j = jacfwd(|x: &Tensor| Tensor::cat(&[x.clone(), x.clone()], 1))(&empty).unwrap();
    assert_eq!(j.shape(), Shape::from([0, 4, 0, 2]));
    let j = jacrev(|x: &Tensor| x.sum_dim([0], false))(&empty).unwrap();
    assert_eq!(j.shape(), Shape::from([2, 0, 2]));
    let (held, x) = (t(&[7.0], [1]), x());
    close(&jacfwd(|_: &Tensor| Ok(held.clone()))(&x).unwrap(), &[0.0; 3]);
    close(&jacrev(|_: &Tensor| Ok(held.clone()))(&x).unwrap(), &[0.0; 3]);
    close(&hessian(|x: &Tensor| x.sum())(&x).unwrap(), &[0.0; 9]);
    // A result in another dtype: forward has the result's, reverse the argument's.
    let narrow = |x: &Tensor| x.to_dtype(DType::F32);
    assert_eq!(jacfwd(narrow)(&x).unwrap().dtype(), DType::F32);
    assert_eq!(jacrev(narrow)(&x).unwrap().dtype(), DType::F64);
}

#[test]
fn auxiliary_outputs_are_values_without_derivative() {
    let x = x();
    let f = |x: &Tensor| {
        let hits = x.gt(0.7)?.to_dtype(DType::I64)?.sum()?;
        Ok((x.mul(x)?.sum()?, (x.exp()?, hits)))
    };
    let (double, exp) = (POINTS.map(|x| 2.0 * x), POINTS.map(f64::exp));
    let check = |aux: &(Tensor, Tensor)| {
        close(&aux.0, &exp);
        assert_eq!(aux.1.item::<i64>().unwrap(), 2);
        assert!(aux.0.to_vec::<f64>().is_ok(), "no tracer comes out");
    };
    let ((value, aux), gradient) = value_and_grad_aux(f)(&x).unwrap();
    close(&value, &[5.25]);
    close(&gradient, &double);
    check(&aux);
    let (gradient, aux) = jit(grad_aux(f)).call(&x).unwrap();
    close(&gradient, &double);
    check(&aux);
    let (j, aux) = jacfwd_aux(f)(&x).unwrap();
    close(&j, &double);
    check(&aux);
    let (j, aux) = jacrev_aux(f)(&x).unwrap();
    close(&j, &double);
    check(&aux);
    let (h, aux) = hessian_aux(f)(&x).unwrap();
    close(&h, &diagonal(&[2.0; 3]));
    check(&aux);
    let (_, back, aux) = vjp_aux(f, &x).unwrap();
    close(&back(&t(&[3.0], [])).unwrap(), &double.map(|d| 3.0 * d));
    check(&aux);
    let (_, along, aux) = linearize_aux(f, &x).unwrap();
    close(&along(&x).unwrap(), &[10.5]);
    check(&aux);
    let (_, tangent, aux) = jvp_aux(f, &x, &x).unwrap();
    close(&tangent, &[10.5]);
    check(&aux);
    // To a derivative around, the auxiliary output is a function as any other.
    let outer = grad(|x: &Tensor| grad_aux(f)(x)?.1.0.sum())(&x).unwrap();
    close(&outer, &exp);
}

#[test]
fn arguments_are_chosen() {
    let f = |(x, n, y): &(Tensor, Tensor, (Tensor, Tensor))| x.mul(&y.0)?.mul(&y.1)?.mul(n)?.sum();
    let n = Tensor::from_slice(&[2i64], []).unwrap().to_device(host_device()).unwrap();
    let args = (t(&[1.0, 2.0], [2]), n, (t(&[3.0], []), t(&[5.0], [])));
    close(&grad_argnums(Arg::<0>, f)(&args).unwrap(), &[30.0, 30.0]);
    let (value, ((dy, dz), dx)) = value_and_grad_argnums((Arg::<2>, Arg::<0>), f)(&args).unwrap();
    close(&value, &[90.0]);
    close(&dx, &[30.0, 30.0]);
    close(&dy, &[30.0]);
    close(&dz, &[18.0]);
    let (_, dx) = jit(value_and_grad_argnums(Arg::<0>, f)).call(&args).unwrap();
    close(&dx, &[30.0, 30.0]);
    let (y, of_y) = argnums(Arg::<2>, f, &args).unwrap();
    let ((aa, ab), (ba, bb)) = hessian(&of_y)(&y).unwrap();
    for (got, want) in [(aa, 0.0), (ab, 6.0), (ba, 6.0), (bb, 0.0)] {
        close(&got, &[want]);
    }
    close(&jvp(of_y, &y, &y).unwrap().1, &[180.0]);
    let twice = grad_argnums((Arg::<0>, Arg::<0>), f)(&args).unwrap_err();
    assert_eq!(*twice.kind(), ErrorKind::Value);
}

#[test]
fn integers_are_refused_by_path_or_allowed() {
    let n = Tensor::from_slice(&[1i64, 0], [2]).unwrap();
    let args = (t(&[1.0, 2.0], [2]), vec![n]);
    type Args = (Tensor, Vec<Tensor>);
    let f = |(x, n): &Args| x.index_select(0, &n[0])?.mul(x)?.sum();
    let refusals = [
        grad(f)(&args).map(drop),
        value_and_grad(f)(&args).map(drop),
        jacfwd(f)(&args).map(drop),
        jacrev(f)(&args).map(drop),
        hessian(f)(&args).map(drop),
        hvp(f, &args, &args).map(drop),
        grad_aux(|a: &Args| Ok((f(a)?, ())))(&args).map(drop),
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::DType);
        assert!(error.to_string().contains("`[1][0]` is i64[2]"), "{error}");
    }
    let allow = GradOptions { allow_int: true };
    let (dx, dn) = grad_with(allow, f)(&args).unwrap();
    close(&dx, &[4.0, 2.0]);
    assert_eq!(dn[0].to_vec::<i64>().unwrap(), [0, 0]);
    close(&value_and_grad_with(allow, f)(&args).unwrap().0, &[4.0]);
    // Where tangents are given, those of integers do not count.
    close(&jvp(f, &args, &args).unwrap().1, &[8.0]);
    close(&linearize(f, &args).unwrap().1(&args).unwrap(), &[8.0]);
    close(&vjp(f, &args).unwrap().1(&t(&[1.0], [])).unwrap().0, &[4.0, 2.0]);
}

#[test]
fn stop_gradient_holds_in_every_order() {
    let x = x();
    // x · stop(x²): the slope is x², and that slope is x² anew, of slope 2x.
    let f = |x: &Tensor| x.mul(&stop_gradient(&x.mul(x)?)?)?.sum();
    close(&grad(f)(&x).unwrap(), &POINTS.map(|x| x * x));
    close(&jvp(f, &x, &x).unwrap().1, &[POINTS.iter().map(|x| x * x * x).sum()]);
    close(&hessian(f)(&x).unwrap(), &[0.0; 9]);
    close(&jit(hessian(f)).call(&x).unwrap(), &[0.0; 9]);
    close(&jit(grad(f)).call(&x).unwrap(), &POINTS.map(|x| x * x));
    close(
        &vmap(grad(|x: &Tensor| f(x)))(&x.view([3, 1]).unwrap()).unwrap(),
        &POINTS.map(|x| x * x),
    );
    // Under a derivative of its own argument the inner one is seen, but not through the stop.
    let inner = |x: &Tensor| stop_gradient(&grad(f)(x)?)?.mul(x)?.sum();
    close(&grad(inner)(&x).unwrap(), &POINTS.map(|x| x * x));
    let tree = (x.clone(), vec![Tensor::from_slice(&[true], [1]).unwrap()]);
    let (a, b) = stop_gradient(&tree).unwrap();
    same(&a, &x);
    assert_eq!(b[0].to_vec::<bool>().unwrap(), [true]);
    let complex = |x: &Tensor| {
        let z = x.to_dtype(DType::C128)?;
        stop_gradient(&z)?.abs()?.sum()
    };
    close(&grad(complex)(&x).unwrap(), &[0.0; 3]);
    // An in-place write of a stopped value keeps it stopped.
    let write = |x: &Tensor| {
        let y = x.copy()?;
        y.copy_(&stop_gradient(x)?)?;
        y.mul(x)?.sum()
    };
    close(&grad(write)(&x).unwrap(), &POINTS);
}

#[test]
fn what_the_result_does_not_need_is_not_run() {
    let client = Client::host(1);
    let x = x().to_device(&client.device(0).unwrap()).unwrap();
    let runs = |along: &dyn Fn(&Tensor) -> Result<Tensor>| {
        let before = client.metrics();
        close(&along(&x).unwrap(), &POINTS.map(|x| x * x.cos()));
        client.metrics().since(&before).executions
    };
    let (_, bare) = linearize(|x: &Tensor| x.sin(), &x).unwrap();
    let busy = |x: &Tensor| {
        x.exp()?.tanh()?.log1p()?;
        Ok((x.sin()?, x.exp()?.cos()?))
    };
    let (_, with_aux, _) = linearize_aux(busy, &x).unwrap();
    assert_eq!(runs(&bare), 1);
    assert_eq!(runs(&with_aux), 1);
}

#[test]
fn derivatives_follow_a_mesh() {
    let mesh = Mesh::new(&crate::mesh::DEVICES[..4], [("data", 4)]).unwrap();
    let plain = t(&[0.5, 1.0, 2.0, -0.3], [4]);
    let split = plain.shard(&mesh, spec!["data"]).unwrap();
    let close = |got: Tensor, want: Tensor| {
        assert_eq!(got.shape(), want.shape(), "shapes");
        close(&got, &want.to_vec::<f64>().unwrap());
    };
    close(hessian(f)(&split).unwrap(), hessian(f)(&plain).unwrap());
    let g = |x: &Tensor| x.mul(&x.sum()?)?.sin();
    close(jacfwd(g)(&split).unwrap(), jacfwd(g)(&plain).unwrap());
    close(jacrev(g)(&split).unwrap(), jacrev(g)(&plain).unwrap());
    close(jit(jacrev(g)).call(&split).unwrap(), jacrev(g)(&plain).unwrap());
    close(hvp(f, &split, &split).unwrap(), hvp(f, &plain, &plain).unwrap());
    close(linearize(g, &split).unwrap().1(&split).unwrap(), jvp(g, &plain, &plain).unwrap().1);
}

#[test]
fn transforms_of_tensors_that_require_grad() {
    let x = x();
    x.requires_grad_(true).unwrap();
    let h = hessian(f)(&x).unwrap();
    close(&h, &diagonal(&POINTS.map(curvature)));
    // The matrix depends on `x` as any other result does.
    h.sum().unwrap().backward().unwrap();
    close(&x.grad().unwrap(), &POINTS.map(third));
    x.zero_grad().unwrap();
    let (_, along) = linearize(f, &x).unwrap();
    along(&t(&[1.0; 3], [3])).unwrap().backward().unwrap();
    close(&x.grad().unwrap(), &POINTS.map(curvature));
    assert!(!stop_gradient(&x).unwrap().requires_grad());
    let (_, aux) = grad_aux(|x: &Tensor| Ok((f(x)?, x.exp()?)))(&x).unwrap();
    assert!(aux.requires_grad());
}
