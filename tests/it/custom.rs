//! Functions whose derivative is given, under every stack of transforms. The rules here are wrong on
//! purpose, so that one sees whose derivative it is.

use oxbridge::prelude::*;

fn t(data: &[f64], shape: impl Into<Shape>) -> Tensor {
    Tensor::from_slice(data, shape).unwrap()
}

fn x() -> Tensor {
    t(&[0.5, 1.0, 2.0], [3])
}

#[track_caller]
fn close(tensor: &Tensor, expected: &[f64]) {
    let got = tensor.to_vec::<f64>().unwrap();
    assert_eq!(got.len(), expected.len(), "number of elements");
    for (a, b) in got.iter().zip(expected) {
        assert!((a - b).abs() < 1e-12 * (1.0 + b.abs()), "{got:?} is not {expected:?}");
    }
}

/// A function with a rule of its own.
type Rule<'f> = &'f dyn Fn(&Tensor) -> Result<Tensor>;

/// `x²` with the derivative `x³`.
fn by_jvp() -> impl Fn(&Tensor) -> Result<Tensor> {
    custom_jvp(
        |x: &Tensor| x.mul(x),
        |x: &Tensor, t: &Tensor| Ok((x.mul(x)?, x.mul(x)?.mul(x)?.mul(t)?)),
    )
}

/// The same by a rule for reverse mode.
fn by_vjp() -> impl Fn(&Tensor) -> Result<Tensor> {
    custom_vjp(
        |x: &Tensor| x.mul(x),
        |x: &Tensor| Ok((x.mul(x)?, (x.clone(), x.mul(x)?))),
        |(x, square): &(Tensor, Tensor), ct: &Tensor| x.mul(square)?.mul(ct),
    )
}

const CUBES: [f64; 3] = [0.125, 1.0, 8.0];

/// What holds of reverse mode whatever the rule is: `f` has the derivative `x³`.
fn reverse_mode(f: &impl Fn(&Tensor) -> Result<Tensor>) {
    close(&f(&x()).unwrap(), &[0.25, 1.0, 4.0]);
    close(&jit(f).call(x()).unwrap(), &[0.25, 1.0, 4.0]);
    let sum = |x: &Tensor| f(x)?.sum();
    close(&grad(sum)(&x()).unwrap(), &CUBES);
    close(&jit(grad(sum)).call(x()).unwrap(), &CUBES);
    let inner = jit(sum);
    close(&grad(|x: &Tensor| inner.call(x))(&x()).unwrap(), &CUBES);
    close(&vmap(f)(&x()).unwrap(), &[0.25, 1.0, 4.0]);
    close(&vmap(grad(f))(&x()).unwrap(), &CUBES);
    close(&jit(vmap(grad(f))).call(x()).unwrap(), &CUBES);
    close(&grad(|x: &Tensor| vmap(f)(x)?.sum())(&x()).unwrap(), &CUBES);
    // The second derivative is that of the rule, `3 x²`, and the third `6 x`.
    let second = |x: &Tensor| grad(|x: &Tensor| grad(sum)(x)?.sum())(x);
    close(&second(&x()).unwrap(), &[0.75, 3.0, 12.0]);
    close(&jit(second).call(x()).unwrap(), &[0.75, 3.0, 12.0]);
    close(&vmap(second)(&t(&[0.5, 1.0, 2.0], [3, 1])).unwrap(), &[0.75, 3.0, 12.0]);
    let twice = |x: &Tensor| {
        let inner = jit(sum);
        grad(|x: &Tensor| grad(|x: &Tensor| inner.call(x))(x)?.sum())(x)
    };
    close(&twice(&x()).unwrap(), &[0.75, 3.0, 12.0]);
    let third = |x: &Tensor| grad(|x: &Tensor| second(x)?.sum())(x);
    close(&third(&x()).unwrap(), &[3.0, 6.0, 12.0]);
    let ones = t(&[1.0; 3], [3]);
    close(&jvp(|x: &Tensor| grad(sum)(x), &x(), &ones).unwrap().1, &[0.75, 3.0, 12.0]);
    // One function in another: f(f(x)) has the derivative x⁶ · x³.
    let nested = grad(|x: &Tensor| f(&f(x)?)?.sum());
    close(&nested(&x()).unwrap(), &[0.5f64.powi(9), 1.0, 512.0]);
    close(&jit(nested).call(x()).unwrap(), &[0.5f64.powi(9), 1.0, 512.0]);
}

/// In the bodies of loops and branches.
fn in_regions(f: &impl Fn(&Tensor) -> Result<Tensor>) {
    let looped = |x: &Tensor| {
        let step = |c: &Tensor, (): &()| Ok((f(c)?, ()));
        let options = ScanOptions { length: Some(2), ..ScanOptions::default() };
        scan(step, x, &(), options)?.0.sum()
    };
    let want = [0.5f64.powi(9), 1.0, 512.0];
    close(&grad(looped)(&x()).unwrap(), &want);
    close(&jit(grad(looped)).call(x()).unwrap(), &want);
    close(&vmap(grad(looped))(&t(&[0.5, 1.0, 2.0], [3, 1])).unwrap(), &want);
    let branched = |x: &Tensor| {
        let positive = x.sum()?.gt(0.0)?;
        cond(&positive, |x: &Tensor| f(x)?.sum(), |x: &Tensor| x.sum(), x)
    };
    close(&grad(branched)(&x()).unwrap(), &CUBES);
    close(&jit(grad(branched)).call(x()).unwrap(), &CUBES);
    close(&vmap(grad(branched))(&t(&[-0.5, 1.0, 2.0], [3, 1])).unwrap(), &[1.0, 1.0, 8.0]);
    let second = grad(|x: &Tensor| grad(branched)(x)?.sum());
    close(&second(&x()).unwrap(), &[0.75, 3.0, 12.0]);
}

#[test]
fn a_rule_for_forward_mode_serves_both() {
    let f = by_jvp();
    reverse_mode(&f);
    in_regions(&f);
    let two = t(&[2.0; 3], [3]);
    close(&jvp(&f, &x(), &two).unwrap().1, &[0.25, 2.0, 16.0]);
    close(&jit(|x: &Tensor| jvp(&f, x, &two)).call(x()).unwrap().1, &[0.25, 2.0, 16.0]);
    let along = |x: &Tensor| Ok(jvp(&f, x, &Tensor::ones([], DType::F64)?)?.1);
    close(&vmap(along)(&x()).unwrap(), &CUBES);
    // Forward over forward and reverse over forward.
    let slope = |x: &Tensor| Ok(jvp(&f, x, &t(&[1.0; 3], [3]))?.1);
    close(&jvp(slope, &x(), &two).unwrap().1, &[1.5, 6.0, 24.0]);
    close(&grad(|x: &Tensor| slope(x)?.sum())(&x()).unwrap(), &[0.75, 3.0, 12.0]);
}

#[test]
fn a_rule_for_reverse_mode_is_one() {
    let f = by_vjp();
    reverse_mode(&f);
    in_regions(&f);
    for result in [
        jvp(&f, &x(), &x()),
        jit(|x: &Tensor| jvp(&f, x, x)).call(x()),
        vmap(|x: &Tensor| jvp(&f, x, x))(&x()),
    ] {
        let error = result.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NoRule, "{error}");
        assert!(error.to_string().contains("help: use `custom_jvp`"), "{error}");
    }
}

type Mixed = (Tensor, Tensor, Tensor);

/// `(x y, n + n)`, of which the second has no derivative.
fn mixed((x, y, n): &Mixed) -> Result<(Tensor, Tensor)> {
    Ok((x.mul(y)?, n.add(n)?))
}

#[test]
fn integers_have_no_derivative() {
    let jvp_rule = |a: &Mixed, t: &Mixed| {
        // The integer's tangent is zeros of its type.
        let text = t.2.aval().to_string();
        assert_eq!(text, "i64[]", "tangent of an integer");
        let t0 = t.0.mul(&a.1)?.mul(10.0)?.add(&t.1.mul(&a.0)?)?;
        Ok((mixed(a)?, (t0, a.2.clone())))
    };
    let forward = custom_jvp(mixed, jvp_rule);
    let reverse = custom_vjp(
        mixed,
        |a: &Mixed| Ok((mixed(a)?, (a.0.clone(), a.1.clone(), a.2.clone()))),
        |(x, y, n): &Mixed, (ct, none): &(Tensor, Tensor)| {
            assert_eq!(none.aval().to_string(), "i64[]", "cotangent of an integer");
            Ok((ct.mul(y)?.mul(10.0)?, ct.mul(x)?, n.clone()))
        },
    );
    let args: Mixed = (x(), t(&[3.0, 4.0, 5.0], [3]), Tensor::from_slice(&[7i64], []).unwrap());
    for f in [&forward as &dyn Fn(&Mixed) -> Result<(Tensor, Tensor)>, &reverse] {
        let (out, back) = vjp(f, &args).unwrap();
        assert_eq!(out.1.item::<i64>().unwrap(), 14);
        let cts = back(&(t(&[1.0, 1.0, 2.0], [3]), out.1.clone())).unwrap();
        close(&cts.0, &[30.0, 40.0, 100.0]);
        close(&cts.1, &[0.5, 1.0, 4.0]);
        assert_eq!(cts.2.item::<i64>().unwrap(), 0);
        // Differentiated in one operand only.
        let one = grad(|x: &Tensor| f(&(x.clone(), args.1.clone(), args.2.clone()))?.0.sum());
        close(&one(&x()).unwrap(), &[30.0, 40.0, 50.0]);
        close(&jit(one).call(x()).unwrap(), &[30.0, 40.0, 50.0]);
    }
}

#[test]
fn shared_operands_of_a_batch_get_the_sum() {
    let f = custom_vjp(
        |(w, x): &(Tensor, Tensor)| w.mul(x),
        |(w, x): &(Tensor, Tensor)| Ok((w.mul(x)?, (w.clone(), x.clone()))),
        |(w, x): &(Tensor, Tensor), ct: &Tensor| Ok((x.mul(ct)?.mul(10.0)?, w.mul(ct)?)),
    );
    let xs = x();
    let loss = |w: &Tensor| vmap(|x: &Tensor| f(&(w.clone(), x.clone())))(&xs)?.sum();
    let w = t(&[3.0], []);
    close(&grad(loss)(&w).unwrap(), &[35.0]);
    close(&jit(grad(loss)).call(&w).unwrap(), &[35.0]);
}

#[test]
fn rules_may_capture_what_differs_between_calls() {
    let limit = t(&[1.0], []);
    let clipped = custom_vjp(
        |x: &Tensor| Ok(x.clone()),
        |x: &Tensor| Ok((x.clone(), ())),
        |(): &(), ct: &Tensor| ct.minimum(&limit),
    );
    let slope = jit(grad(|x: &Tensor| clipped(x)?.mul(x)?.sum()));
    close(&slope.call(x()).unwrap(), &[1.0, 2.0, 3.0]);
    limit.set_value(t(&[0.25], []).value().unwrap()).unwrap();
    close(&slope.call(x()).unwrap(), &[0.75, 1.25, 2.25]);
    assert_eq!(slope.compiled(), 1, "the captured tensor is an operand");
    // What the rule captures has a derivative of its own one order up.
    let outer = |limit: &Tensor| {
        let clipped = custom_vjp(
            |x: &Tensor| Ok(x.clone()),
            |x: &Tensor| Ok((x.clone(), ())),
            |(): &(), ct: &Tensor| ct.mul(limit),
        );
        grad(|x: &Tensor| clipped(x)?.sum())(&x())?.sum()
    };
    close(&grad(outer)(&limit).unwrap(), &[3.0]);
}

#[test]
fn a_rule_may_call_transforms_itself() {
    let cube = |x: &Tensor| x.mul(x)?.mul(x);
    let inner = jit(cube);
    // Forward mode of a jitted function in the rule; of a loop whose value and tangent go together.
    let f = custom_jvp(cube, |x: &Tensor, t: &Tensor| jvp(|x: &Tensor| inner.call(x), x, t));
    close(&grad(|x: &Tensor| f(x)?.sum())(&x()).unwrap(), &[0.75, 3.0, 12.0]);
    let second = grad(|x: &Tensor| grad(|x: &Tensor| f(x)?.sum())(x)?.sum());
    close(&second(&x()).unwrap(), &[3.0, 6.0, 12.0]);
    let doubled = |x: &Tensor| while_loop(|x: &Tensor| x.max()?.lt(3.0), |x: &Tensor| x.add(x), x);
    let g = custom_jvp(doubled, |x: &Tensor, t: &Tensor| jvp(doubled, x, t));
    close(&jvp(&g, &x(), &t(&[1.0; 3], [3])).unwrap().1, &[2.0; 3]);
    let error = grad(|x: &Tensor| g(x)?.sum())(&x()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotLinear, "{error}");
}

#[test]
fn on_a_mesh() {
    let mesh = Mesh::new(&crate::mesh::DEVICES, [("data", 8)]).unwrap();
    let data: Vec<f64> = (0..16).map(|i| f64::from(i) / 8.0).collect();
    let want: Vec<f64> = data.iter().map(|x| x * x * x).collect();
    let x = t(&data, [16]).shard(&mesh, spec!["data"]).unwrap();
    let (f, g) = (by_jvp(), by_vjp());
    close(&grad(|x: &Tensor| f(x)?.sum())(&x).unwrap(), &want);
    close(&jit(grad(|x: &Tensor| f(x)?.sum())).call(&x).unwrap(), &want);
    close(&grad(|x: &Tensor| g(x)?.sum())(&x).unwrap(), &want);
    close(&jit(grad(|x: &Tensor| g(x)?.sum())).call(&x).unwrap(), &want);
}

/// Eager steps that make the function anew compile nothing after the first.
#[test]
fn a_function_made_anew_compiles_nothing_new() {
    use oxbridge::backend::pjrt::cache::stats;
    let device = Client::cpu(1).unwrap().device(0).unwrap();
    let x = t(&[0.5, 1.0, 2.0, 1.0, 1.0], [5]).to_device(&device).unwrap();
    // The programs that the disk cache was asked for, by all tests that run at this time.
    let asked = || {
        let before = stats();
        let (f, g) = (by_jvp(), by_vjp());
        let slope = grad(|x: &Tensor| f(x)?.add(&g(x)?)?.sum())(&x).unwrap();
        close(&slope, &[0.25, 2.0, 16.0, 2.0, 2.0]);
        let after = stats();
        after.hits + after.misses - before.hits - before.misses
    };
    assert!(asked() > 0, "the first step looks for programs");
    let quiet = (0..2000).any(|_| asked() == 0);
    assert!(quiet, "each step looks for programs");
}

#[test]
fn with_backward() {
    let fs: [Rule<'_>; 2] = [&by_jvp(), &by_vjp()];
    for f in fs {
        let x = x().requires_grad_(true).unwrap();
        f(&x).unwrap().sum().unwrap().backward().unwrap();
        close(&x.grad().unwrap(), &CUBES);
        close(&no_grad(|| f(&x)).unwrap(), &[0.25, 1.0, 4.0]);
    }
}

#[test]
fn with_named_axes() {
    // `x` times the sum of all, with the derivative as if the sum were a constant.
    let scaled = |x: &Tensor| x.mul(&psum(x, "i")?);
    let forward =
        custom_jvp(scaled, |x: &Tensor, t: &Tensor| Ok((scaled(x)?, t.mul(&psum(x, "i")?)?)));
    let reverse = custom_vjp(
        scaled,
        |x: &Tensor| Ok((scaled(x)?, psum(x, "i")?)),
        |sum: &Tensor, ct: &Tensor| ct.mul(sum),
    );
    let fs: [Rule<'_>; 2] = [&forward, &reverse];
    for f in fs {
        let options = || VmapOptions::new().axis_name("i");
        close(&vmap_with(f, options())(&x()).unwrap(), &[1.75, 3.5, 7.0]);
        let inner = vmap_with(grad(|x: &Tensor| f(x)?.sum()), options());
        close(&inner(&x()).unwrap(), &[3.5; 3]);
        let outer = grad(|x: &Tensor| vmap_with(f, options())(x)?.sum());
        close(&outer(&x()).unwrap(), &[3.5; 3]);
        close(&jit(outer).call(x()).unwrap(), &[3.5; 3]);
    }
}
