//! Linear algebra: torch's methods, their derivatives through every stack of transforms, and what
//! bad input gives.

use oxbridge::prelude::*;

fn t(data: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(data, shape).unwrap()
}

fn wave(n: usize, shape: &[usize]) -> Tensor {
    let data: Vec<f64> =
        (0..n).map(|i| ((i * i) as f64 * 0.37 + 1.7 * i as f64).sin() * 1.5).collect();
    t(&data, shape)
}

fn close(got: &Tensor, want: &Tensor, tol: f64) {
    assert_eq!(got.aval().shape(), want.aval().shape(), "shape");
    let (got, want) = (got.to_vec::<f64>().unwrap(), want.to_vec::<f64>().unwrap());
    for (a, b) in got.iter().zip(&want) {
        assert!((a - b).abs() < tol * (1.0 + b.abs()), "{got:?} is not {want:?}");
    }
}

fn eye(n: usize) -> Tensor {
    Tensor::ones([n], DType::F64).unwrap().diag_embed(0, -2, -1).unwrap()
}

/// `f(x) = sum(solve(x x^T + 5, x))`, which is `sum(x) / (5 + x · x)`.
fn linear_solve(x: &Tensor) -> Result<Tensor> {
    let n = x.shape()[0];
    x.outer(x)?.add(&eye(n).mul(5.0)?)?.solve(x)?.sum()
}

fn linear_solve_in_closed_form(x: &Tensor) -> Result<Tensor> {
    x.sum()?.div(&x.mul(x)?.sum()?.add(5.0)?)
}

/// `f(x) = 2 sum(log(diag(cholesky(x x^T + 4))))`.
fn cholesky_logdet(x: &Tensor) -> Result<Tensor> {
    let n = x.shape()[0];
    let l = x.matmul(&x.t()?)?.add(&eye(n).mul(4.0)?)?.cholesky(false)?;
    l.diagonal(0, 0, 1)?.log()?.sum()?.mul(2.0)
}

/// The same for matrices of two rows, written out.
fn logdet_in_closed_form(x: &Tensor) -> Result<Tensor> {
    let a = x.matmul(&x.t()?)?.add(&eye(2).mul(4.0)?)?;
    let at = |i: i64, j: i64| a.select(0, i)?.select(0, j);
    at(0, 0)?.mul(&at(1, 1)?)?.sub(&at(0, 1)?.mul(&at(1, 0)?)?)?.log()
}

/// The product of the Hessian with `t`, forward over reverse.
fn curve(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor, t: &Tensor) -> Result<Tensor> {
    Ok(jvp(grad(f), x, t)?.1)
}

type Function = fn(&Tensor) -> Result<Tensor>;

/// Both functions agree with their derivatives up to the third, under each transform.
fn same(f: Function, g: Function, x: &Tensor, tol: f64) {
    let direction = x.cos().unwrap();
    close(&f(x).unwrap(), &g(x).unwrap(), tol);
    let slope = grad(g)(x).unwrap();
    close(&grad(f)(x).unwrap(), &slope, tol);
    close(&jit(grad(f)).call(x).unwrap(), &slope, tol);
    let along = jvp(g, x, &direction).unwrap().1;
    close(&jvp(f, x, &direction).unwrap().1, &along, tol);
    let second = curve(g, x, &direction).unwrap();
    close(&curve(f, x, &direction).unwrap(), &second, tol);
    let at = direction.clone();
    close(&jit(move |x: &Tensor| curve(f, x, &at)).call(x).unwrap(), &second, tol);
    let twice = |f: Function| {
        let slope = |x: &Tensor| grad(f)(x)?.mul(&direction)?.sum();
        grad(|x: &Tensor| grad(slope)(x)?.mul(&direction)?.sum())(x).unwrap()
    };
    close(&twice(f), &twice(g), 10.0 * tol);
    let many = Tensor::stack(&[x.clone(), direction.clone(), x.neg().unwrap()], 0).unwrap();
    let slopes = vmap(grad(g))(&many).unwrap();
    close(&vmap(grad(f))(&many).unwrap(), &slopes, tol);
    close(&jit(vmap(grad(f))).call(&many).unwrap(), &slopes, tol);
    let seconds = |f: Function| vmap(|t: &Tensor| curve(f, x, t))(&many).unwrap();
    close(&seconds(f), &seconds(g), tol);
}

#[test]
fn derivatives_of_systems_and_determinants() {
    let host = Client::host(1).device(0).unwrap();
    for device in [None, Some(host)] {
        let there = |x: Tensor| match &device {
            Some(device) => x.to_device(device).unwrap(),
            None => x,
        };
        let x = there(wave(4, &[4]));
        same(linear_solve, linear_solve_in_closed_form, &x, 1e-11);
        let x = there(wave(6, &[2, 3]));
        same(cholesky_logdet, logdet_in_closed_form, &x, 1e-11);
    }
}

#[test]
fn determinants_agree_with_each_other() {
    let a = wave(18, &[2, 3, 3]);
    let by_hand = |a: &Tensor| {
        let at = |i: i64, j: i64| a.select(0, i)?.select(0, j);
        let minor = |j: i64, k: i64| at(1, j)?.mul(&at(2, k)?)?.sub(&at(1, k)?.mul(&at(2, j)?)?);
        let (x, y, z) = (at(0, 0)?.mul(&minor(1, 2)?)?, at(0, 1)?, at(0, 2)?);
        x.sub(&y.mul(&minor(0, 2)?)?)?.add(&z.mul(&minor(0, 1)?)?)
    };
    let det = a.det().unwrap();
    close(&det, &vmap(by_hand)(&a).unwrap(), 1e-13);
    let slope = grad(|a: &Tensor| a.det()?.sum())(&a).unwrap();
    close(&slope, &vmap(grad(by_hand))(&a).unwrap(), 1e-12);
    let (sign, log) = a.slogdet().unwrap();
    close(&sign.mul(&log.exp().unwrap()).unwrap(), &det, 1e-13);
    let slope = grad(|a: &Tensor| a.slogdet()?.1.sum())(&a).unwrap();
    close(&slope, &a.inv().unwrap().mt().unwrap(), 1e-12);
    let log = t(&[1., 2., 3., 4., 2., 0., 0., 3., 1., 2., 2., 4.], &[3, 2, 2]).logdet().unwrap();
    let log = log.to_vec::<f64>().unwrap();
    assert!(log[0].is_nan() && (log[1] - 6f64.ln()).abs() < 1e-15, "{log:?}");
    assert_eq!(log[2], f64::NEG_INFINITY);
    let singular = t(&[1., 2., 2., 4.], &[2, 2]);
    assert_eq!(singular.det().unwrap().item::<f64>().unwrap(), 0.0);
    assert_eq!(singular.slogdet().unwrap().0.item::<f64>().unwrap(), 0.0);
    close(&t(&[], &[0, 0]).det().unwrap(), &t(&[1.], &[]), 1e-15);
    let none = t(&[], &[0, 3, 3]);
    assert_eq!(none.det().unwrap().shape(), Shape::new(&[0]));
    assert_eq!(grad(|a: &Tensor| a.logdet()?.sum())(&none).unwrap().shape(), none.shape());
    assert_eq!(none.inv().unwrap().shape(), none.shape());
    assert_eq!(none.lu().unwrap().2.shape(), none.shape());
}

#[test]
fn factors_multiply_to_the_matrix() {
    for shape in [[2, 4, 4], [2, 5, 3], [2, 3, 5]] {
        let a = wave(shape.iter().product(), &shape);
        let (p, l, u) = a.lu().unwrap();
        let product = |(p, l, u): (Tensor, Tensor, Tensor)| p.matmul(&l)?.matmul(&u);
        close(&product((p, l, u)).unwrap(), &a, 1e-14);
        // The product is the matrix whatever the factors: its derivative is the cotangent.
        let ct = wave(shape.iter().product(), &shape).cos().unwrap();
        let back = vjp(|a: &Tensor| product(a.lu()?), &a).unwrap().1(&ct).unwrap();
        close(&back, &ct, 1e-11);
        let (packed, pivots) = a.lu_factor().unwrap();
        let k = shape[1].min(shape[2]);
        assert_eq!((packed.shape(), pivots.shape()), (a.shape(), Shape::new(&[2, k])));
    }
    let x = wave(18, &[2, 3, 3]);
    let a = x.matmul(&x.mt().unwrap()).unwrap().add(&eye(3)).unwrap();
    let (l, u) = (a.cholesky(false).unwrap(), a.cholesky(true).unwrap());
    close(&l.matmul(&u).unwrap(), &a, 1e-14);
    close(&l.tril(0).unwrap(), &l, 1e-300);
    let b = wave(6, &[3, 2]);
    let want = a.solve(&b).unwrap();
    close(&a.matmul(&want).unwrap(), &b.expand([2, 3, 2]).unwrap(), 1e-12);
    close(&b.cholesky_solve(&l, false).unwrap(), &want, 1e-12);
    close(&b.cholesky_solve(&u, true).unwrap(), &want, 1e-12);
    close(&a.inv().unwrap().matmul(&b).unwrap(), &want, 1e-12);
    let upper =
        u.solve_triangular(&l.solve_triangular(&b, false, true, false).unwrap(), true, true, false);
    close(&upper.unwrap(), &want, 1e-12);
    let right = l.solve_triangular(&b.t().unwrap(), false, false, false).unwrap();
    close(&right.matmul(&l).unwrap(), &b.t().unwrap().expand([2, 2, 3]).unwrap(), 1e-12);
    let unit = l.solve_triangular(&b, false, true, true).unwrap();
    let ones = l.tril(-1).unwrap().add(&eye(3)).unwrap();
    close(&ones.matmul(&unit).unwrap(), &b.expand([2, 3, 2]).unwrap(), 1e-12);
}

#[test]
fn right_sides_are_vectors_or_matrices() {
    let a = wave(18, &[2, 3, 3]);
    let column = |b: &Tensor| a.solve(&b.unsqueeze(-1)?)?.squeeze_dim([-1]);
    let b = wave(3, &[3]);
    close(&a.solve(&b).unwrap(), &column(&b).unwrap(), 1e-15);
    let b = wave(6, &[2, 3]);
    close(&a.solve(&b).unwrap(), &column(&b).unwrap(), 1e-15);
    let f32s = a.to_dtype(DType::F32).unwrap();
    assert_eq!(f32s.solve(&b).unwrap().dtype(), DType::F64);
    // A matrix that is not mapped, with right sides that are: one system of more columns.
    let first = a.select(0, 0).unwrap();
    let many = vmap(|b: &Tensor| first.solve(b))(&b).unwrap();
    close(&many, &first.expand([2, 3, 3]).unwrap().solve(&b).unwrap(), 1e-15);
}

#[test]
fn what_cannot_be_factored_is_nan() {
    let bad = t(&[1., 2., 2., 1.], &[2, 2]);
    let l = bad.cholesky(false).unwrap().to_vec::<f64>().unwrap();
    assert!(l[0].is_nan() && l[1] == 0.0 && l[2].is_nan() && l[3].is_nan(), "{l:?}");
    let x = t(&[1., 2., 2., 4.], &[2, 2]).inv().unwrap().to_vec::<f64>().unwrap();
    assert!(x.iter().all(|v| !v.is_finite()), "{x:?}");
}

#[test]
fn diagonals_and_traces() {
    let x = t(&[1., 2., 3., 4.], &[2, 2]);
    let y = x.diag_embed(-1, -2, -1).unwrap();
    assert_eq!(y.shape(), Shape::new(&[2, 3, 3]));
    close(&y.diagonal(-1, 1, 2).unwrap(), &x, 1e-15);
    assert_eq!(y.sum().unwrap().item::<f64>().unwrap(), 10.0);
    let y = x.diag_embed(2, 2, 0).unwrap();
    assert_eq!(y.shape(), Shape::new(&[4, 2, 4]));
    close(&y.diagonal(2, 2, 0).unwrap(), &x, 1e-15);
    let slope = grad(|x: &Tensor| x.trace()?.mul(3.0))(&x).unwrap();
    close(&slope, &t(&[3., 0., 0., 3.], &[2, 2]), 1e-15);
    let whole = Tensor::from_slice(&[1i32, 2, 3, 4, 5, 6], [2, 3]).unwrap().trace().unwrap();
    assert_eq!(whole.item::<i64>().unwrap(), 6);
}

/// Complex matrices: the derivative of a real result along a step is that of differences.
#[test]
fn complex_systems() {
    use num_complex::Complex;
    let c = |n: usize, shape: &[usize], by: f64| {
        let at = |i: usize| Complex::new((by * (i * i) as f64).sin(), (by * i as f64 + 1.0).cos());
        Tensor::from_slice(&(0..n).map(at).collect::<Vec<_>>(), shape).unwrap()
    };
    let (a, b) = (c(9, &[3, 3], 1.3), c(3, &[3], 0.7));
    let x = a.solve(&b).unwrap();
    let back = a.matmul(&x).unwrap().sub(&b).unwrap().abs().unwrap().sum().unwrap();
    assert!(back.item::<f64>().unwrap() < 1e-13, "{back}");
    let (sign, log) = a.slogdet().unwrap();
    let det = a.det().unwrap().item::<Complex<f64>>().unwrap();
    let other = sign.item::<Complex<f64>>().unwrap() * log.item::<f64>().unwrap().exp();
    assert!((det - other).norm() < 1e-13, "{det} is not {other}");
    let log = a.logdet().unwrap().item::<Complex<f64>>().unwrap();
    assert!((log.exp() - det).norm() < 1e-13, "{log}");
}
