//! Control flow over trees: values, derivatives, batches, `jit`, and errors.

use oxbridge::prelude::*;
use oxbridge::transforms::{Branch, map};

type Cell = (Tensor, Tensor);

fn t(data: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(data, shape).unwrap()
}

fn wave(n: usize, shape: &[usize]) -> Tensor {
    let data: Vec<f64> = (0..n).map(|i| (1.7 * i as f64 + 0.3).sin() * 0.8).collect();
    t(&data, shape)
}

fn close(got: &Tensor, want: &Tensor, tol: f64) {
    assert_eq!(got.aval().shape(), want.aval().shape(), "shape");
    let (got, want) = (got.to_vec::<f64>().unwrap(), want.to_vec::<f64>().unwrap());
    for (a, b) in got.iter().zip(&want) {
        assert!((a - b).abs() < tol * (1.0 + b.abs()), "{got:?} is not {want:?}");
    }
}

/// A recurrent net over `xs` whose parameters the body captures.
fn rnn((w, u): &Cell, xs: &Tensor) -> Result<Tensor> {
    let step = |h: &Tensor, x: &Tensor| {
        let h = w.matmul(h)?.add(&u.matmul(x)?)?.tanh()?;
        Ok((h.clone(), h.mul(&h)?))
    };
    let zero = Tensor::zeros([3], DType::F64)?;
    let (last, squares) = scan(step, &zero, xs, ScanOptions::default())?;
    last.sum()?.add(&squares.sum()?)
}

fn parameters() -> (Cell, Tensor) {
    ((wave(9, &[3, 3]), wave(6, &[3, 2])), wave(10, &[5, 2]))
}

/// The same net without a loop.
fn unrolled((w, u): &Cell, xs: &Tensor) -> Result<Tensor> {
    let mut h = Tensor::zeros([3], DType::F64)?;
    let mut sum = Tensor::zeros([], DType::F64)?;
    for i in 0..5 {
        let x = xs.select(0, i)?;
        h = w.matmul(&h)?.add(&u.matmul(&x)?)?.tanh()?;
        sum = sum.add(&h.mul(&h)?.sum()?)?;
    }
    h.sum()?.add(&sum)
}

#[test]
fn grad_of_an_rnn_is_that_of_the_loop_unrolled_and_of_differences() {
    let (p, xs) = parameters();
    close(&rnn(&p, &xs).unwrap(), &unrolled(&p, &xs).unwrap(), 1e-12);
    let got = grad(|p: &Cell| rnn(p, &xs))(&p).unwrap();
    let want = grad(|p: &Cell| unrolled(p, &xs))(&p).unwrap();
    close(&got.0, &want.0, 1e-12);
    close(&got.1, &want.1, 1e-12);
    let compiled = jit(grad(|p: &Cell| rnn(p, &xs))).call(&p).unwrap();
    close(&compiled.0, &want.0, 1e-12);
    let inner = jit(|(p, xs): &(Cell, Tensor)| rnn(p, xs));
    let through = grad(|p: &Cell| inner.call((p.clone(), xs.clone())))(&p).unwrap();
    close(&through.1, &want.1, 1e-12);
    for i in 0..9 {
        let at = |d: f64| {
            let mut w = p.0.to_vec::<f64>().unwrap();
            w[i] += d;
            rnn(&(t(&w, &[3, 3]), p.1.clone()), &xs).unwrap().item::<f64>().unwrap()
        };
        let slope = (at(1e-6) - at(-1e-6)) / 2e-6;
        assert!((got.0.to_vec::<f64>().unwrap()[i] - slope).abs() < 1e-7, "entry {i}");
    }
}

#[test]
fn second_derivatives_and_batches_of_an_rnn() {
    let (p, xs) = parameters();
    let second = |f: fn(&Cell, &Tensor) -> Result<Tensor>, xs: &Tensor| {
        let slope = |p: &Cell| {
            let g = grad(|p: &Cell| f(p, xs))(p)?;
            g.0.mul(&g.0)?.sum()?.add(&g.1.sum()?)
        };
        grad(slope)(&p).unwrap()
    };
    let (got, want) = (second(rnn, &xs), second(unrolled, &xs));
    close(&got.0, &want.0, 1e-10);
    close(&got.1, &want.1, 1e-10);
    let many = wave(40, &[4, 5, 2]);
    let got = vmap(|xs: &Tensor| Ok(grad(|p: &Cell| rnn(p, xs))(&p)?.0))(&many).unwrap();
    let want = vmap(|xs: &Tensor| Ok(grad(|p: &Cell| unrolled(p, xs))(&p)?.0))(&many).unwrap();
    close(&got, &want, 1e-12);
}

#[test]
fn reversed_scans_and_maps() {
    let xs = t(&[1., 2., 3.], &[3]);
    let step = |c: &Tensor, x: &Tensor| {
        let c = c.mul(&t(&[2.], &[]))?.add(x)?;
        Ok((c.clone(), c))
    };
    let options = ScanOptions { reverse: true, ..ScanOptions::default() };
    let (last, all) = scan(step, &t(&[0.], &[]), &xs, options).unwrap();
    close(&last, &t(&[17.], &[]), 1e-15);
    close(&all, &t(&[17., 8., 3.], &[3]), 1e-15);
    close(&map(|x: &Tensor| x.mul(x), &xs).unwrap(), &t(&[1., 4., 9.], &[3]), 1e-15);
    let options = ScanOptions { length: Some(4), ..ScanOptions::default() };
    let doubled = scan(|c: &Tensor, (): &()| Ok((c.add(c)?, ())), &xs, &(), options).unwrap().0;
    close(&doubled, &t(&[16., 32., 48.], &[3]), 1e-15);
}

/// A scan in one branch, captured parameters in both.
fn nested(w: &Tensor, x: &Tensor) -> Result<Tensor> {
    let looped = |x: &Tensor| fori_loop(0, 3, |_, y: &Tensor| y.mul(w)?.sin(), x);
    let plain = |x: &Tensor| x.mul(w);
    cond(&x.sum()?.gt(0.0)?, looped, plain, x)
}

#[test]
fn a_scan_in_a_cond() {
    let (w, x) = (t(&[0.7, -1.2], &[2]), t(&[1.0, 0.5], &[2]));
    let by_hand = |w: &Tensor, x: &Tensor| {
        let mut y = x.clone();
        for _ in 0..3 {
            y = y.mul(w)?.sin()?;
        }
        Ok::<_, Error>(y)
    };
    close(&nested(&w, &x).unwrap(), &by_hand(&w, &x).unwrap(), 1e-14);
    let got = grad(|(w, x): &Cell| nested(w, x)?.sum())(&(w.clone(), x.clone())).unwrap();
    let want = grad(|(w, x): &Cell| by_hand(w, x)?.sum())(&(w.clone(), x.clone())).unwrap();
    close(&got.0, &want.0, 1e-13);
    close(&got.1, &want.1, 1e-13);
    // A mapped predicate: the examples take different branches.
    let xs = t(&[1.0, 0.5, -1.0, 0.25], &[2, 2]);
    let batch = vmap(|x: &Tensor| nested(&w, x))(&xs).unwrap();
    close(&batch.select(0, 0).unwrap(), &by_hand(&w, &x).unwrap(), 1e-14);
    close(&batch.select(0, 1).unwrap(), &t(&[-0.7, -0.3], &[2]), 1e-14);
    let slopes = jit(vmap(grad(|x: &Tensor| nested(&w, x)?.sum()))).call(&xs).unwrap();
    close(&slopes.select(0, 0).unwrap(), &want.1, 1e-13);
    close(&slopes.select(0, 1).unwrap(), &w, 1e-14);
}

/// The square root by Newton's steps.
fn root(a: &Tensor) -> Result<Tensor> {
    let half = t(&[0.5], &[]);
    let test = |x: &Tensor| x.mul(x)?.sub(a)?.abs()?.gt(1e-13);
    while_loop(test, |x: &Tensor| x.add(&a.div(x)?)?.mul(&half), a)
}

#[test]
fn loops_of_unknown_length() {
    let a = t(&[2.0], &[]);
    close(&root(&a).unwrap(), &a.sqrt().unwrap(), 1e-12);
    let (y, slope) = jvp(root, &a, &t(&[1.0], &[])).unwrap();
    close(&y, &a.sqrt().unwrap(), 1e-12);
    close(&slope, &t(&[0.5 / 2f64.sqrt()], &[]), 1e-6);
    let (_, slope) = jvp(|a: &Tensor| jit(root).call(a), &a, &t(&[1.0], &[])).unwrap();
    close(&slope, &t(&[0.5 / 2f64.sqrt()], &[]), 1e-6);
    let many = t(&[0.3, 2.0, 900.0], &[3]);
    close(&vmap(root)(&many).unwrap(), &many.sqrt().unwrap(), 1e-12);
    close(&jit(vmap(root)).call(&many).unwrap(), &many.sqrt().unwrap(), 1e-12);
    let error = grad(root)(&a).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NoRule);
    assert!(error.to_string().contains("`scan`"), "{error}");
    let n = Tensor::from_slice(&[5i32], []).unwrap();
    let sum = |n: &Tensor| fori_loop(1, n, |_, s: &Tensor| s.add(s), &a);
    close(&sum(&n).unwrap(), &t(&[32.0], &[]), 1e-15);
    // The body reads `x` from outside, so a constant has a tangent too.
    let power = |x: &Tensor, n: &Tensor| fori_loop(0, n, |_, y: &Tensor| y.mul(x), x);
    let x = t(&[1.5], &[]);
    let (y, slope) = jvp(|x: &Tensor| power(x, &n), &x, &t(&[1.0], &[])).unwrap();
    close(&y, &t(&[1.5f64.powi(6)], &[]), 1e-14);
    close(&slope, &t(&[6.0 * 1.5f64.powi(5)], &[]), 1e-14);
    let counts = Tensor::from_slice(&[0i32, 3, 1], [3]).unwrap();
    let slope = |n: &Tensor| Ok(jvp(|x: &Tensor| power(x, n), &x, &t(&[1.0], &[]))?.1);
    let want = t(&[1.0, 4.0 * 1.5f64.powi(3), 3.0], &[3]);
    close(&vmap(slope)(&counts).unwrap(), &want, 1e-14);
    close(&jit(vmap(slope)).call(&counts).unwrap(), &want, 1e-14);
}

/// Everything above runs on the default device; this compares it with the host.
#[test]
fn the_host_gives_the_same() {
    let (p, xs) = parameters();
    let host = Client::host(1).device(0).unwrap();
    let there = |x: &Tensor| x.to_device(&host).unwrap();
    let moved = (there(&p.0), there(&p.1));
    let slopes = |p: &Cell, xs: &Tensor| grad(|p: &Cell| rnn(p, xs))(p).unwrap();
    let (here, on_host) = (slopes(&p, &xs), slopes(&moved, &there(&xs)));
    close(&here.0, &on_host.0, 1e-12);
    let (w, x) = (t(&[0.7, -1.2], &[2]), t(&[1.0, 0.5], &[2]));
    close(&nested(&w, &x).unwrap(), &nested(&there(&w), &there(&x)).unwrap(), 1e-14);
}

#[test]
fn a_switch_keeps_its_index_inside() {
    let x = t(&[1.0, 2.0], &[2]);
    let at = |i: i64| {
        let index = Tensor::from_slice(&[i], []).unwrap();
        let branches: [Branch<'_, Tensor, Tensor>; 3] =
            [&|x| x.neg(), &|x| x.mul(x), &|x| x.add(x)];
        switch(&index, &branches, &x).unwrap()
    };
    for (index, want) in [(-4, [-1., -2.]), (0, [-1., -2.]), (1, [1., 4.]), (9, [2., 4.])] {
        close(&at(index), &t(&want, &[2]), 1e-15);
    }
}

#[test]
fn what_does_not_fit_is_a_typed_error() {
    let x = t(&[1.0, 2.0], &[2]);
    let yes = Tensor::from_slice(&[true], []).unwrap();
    let outer = x.clone();
    let writes = |y: &Tensor| {
        outer.set_value(y.value()?)?;
        Ok(y.clone())
    };
    let error = cond(&yes, writes, |y: &Tensor| Ok(y.clone()), &x).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Value, "{error}");
    let error = cond(&yes, |y: &Tensor| y.sum(), |y: &Tensor| y.neg(), &x).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");
    let error = cond(&x, |y: &Tensor| y.sum(), |y: &Tensor| y.sum(), &x).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::DType, "{error}");
    let error = fori_loop(0, 2, |_, y: &Tensor| y.sum(), &x).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");
    let options = ScanOptions::default();
    let error = scan(|c: &Tensor, (): &()| Ok((c.clone(), ())), &x, &(), options).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Value, "{error}");
    let branch = |x: &Tensor| if x.sum()?.item::<f64>()? > 0.0 { x.sin() } else { x.cos() };
    let error = jit(branch).call(&x).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotConcrete);
    assert!(error.to_string().contains("`cond`"), "{error}");
}
