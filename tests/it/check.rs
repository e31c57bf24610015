//! `check_grads` tells right derivatives from wrong ones.

use crate::errors::{Row, err};
use oxbridge::check_grads;
use oxbridge::prelude::*;
use oxbridge::transforms::check::{CheckOptions, Mode};

fn t(values: &[f64]) -> Tensor {
    Tensor::from_slice(values, [values.len()]).unwrap()
}

fn only(mode: Mode) -> CheckOptions {
    CheckOptions { modes: vec![mode], ..CheckOptions::default() }
}

#[derive(Clone, Debug, Tree)]
struct Args {
    weights: Vec<Tensor>,
    scale: Tensor,
    index: Tensor,
}

fn args() -> Args {
    let index = Tensor::from_slice(&[2i64, 0, 1], [3]).unwrap();
    Args { weights: vec![t(&[0.5, -1.0, 2.0]), t(&[1.5, 0.2, -0.7])], scale: t(&[0.3]), index }
}

/// Right in all leaves but `wrong`, whose derivative is hidden.
fn product(args: &Args, wrong: usize) -> Result<(Tensor, Vec<Tensor>)> {
    let hide = |i: usize, x: &Tensor| if i == wrong { x.detach() } else { Ok(x.clone()) };
    let a = hide(0, &args.weights[0])?.index_select(0, &args.index)?;
    let b = hide(1, &args.weights[1])?.sin()?;
    let product = a.mul(&b)?.mul(&hide(2, &args.scale)?)?;
    Ok((args.index.clone(), vec![product.sum()?, product.exp()?]))
}

#[test]
fn right_derivatives_pass_to_third_order() {
    let all = CheckOptions::default();
    check_grads(|a: &Args| product(a, 9), &args(), 2, &all).unwrap();
    check_grads(|x: &Tensor| x.mul(x)?.sin(), &t(&[0.4, 1.2]), 3, &all).unwrap();
    let z = t(&[0.3, -0.8]).complex(&t(&[0.5, 0.1])).unwrap();
    check_grads(|z: &Tensor| z.mul(z)?.exp(), &z, 2, &all).unwrap();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = t(&[0.5, 1.25]).to_dtype(dtype).unwrap();
        let order = if dtype == DType::F32 { 2 } else { 1 };
        check_grads(|x: &Tensor| x.mul(x)?.sum(), &x, order, &all).unwrap();
    }
    let scalar = Tensor::scalar(0.7f64);
    check_grads(|x: &Tensor| x.exp(), &scalar, 2, &all).unwrap();
}

#[test]
fn a_wrong_derivative_is_named() {
    for (i, path) in ["weights[0]", "weights[1]", "scale"].into_iter().enumerate() {
        let wrong = |a: &Args| product(a, i);
        let error = check_grads(wrong, &args(), 1, &only(Mode::Reverse)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Derivative);
        let text = error.text();
        assert!(text.contains("order 1, `vjp`") && text.contains(path), "{error}");
        let error = check_grads(wrong, &args(), 1, &only(Mode::Forward)).unwrap_err();
        let text = error.text();
        assert!(text.contains("order 1, `jvp`") && text.contains("result `[1]["), "{error}");
    }
    let twice = |x: &Tensor| x.mul(&x.detach()?);
    let error = check_grads(twice, &Tensor::scalar(3.0f64), 1, &only(Mode::Reverse)).unwrap_err();
    let numbers: Vec<f64> =
        error.text().split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    // The number 1 is the order.
    assert!((numbers[2] - 2.0 * numbers[1]).abs() < 1e-4 * numbers[1].abs(), "{error}");
}

/// The value is `x²` and the first derivative right; the second comes out as 4 in place of 2.
#[test]
fn a_wrong_second_derivative_is_found_at_order_2() {
    let f = |x: &Tensor| {
        let rest = x.sub(&x.detach()?)?;
        x.mul(x)?.add(&rest.mul(&rest)?)
    };
    let x = t(&[0.5, -1.5]);
    for mode in [Mode::Forward, Mode::Reverse] {
        check_grads(f, &x, 1, &only(mode)).unwrap();
        let error = check_grads(f, &x, 2, &only(mode)).unwrap_err();
        let text = error.text();
        assert!(text.contains(&format!("order 2, `{mode}` of `{mode}`")), "{error}");
    }
}

#[test]
fn what_is_not_smooth_or_not_a_number_does_not_pass() {
    let all = CheckOptions::default();
    let error = check_grads(|x: &Tensor| x.log(), &t(&[-1.0]), 1, &all).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Derivative);
    let error = check_grads(|x: &Tensor| x.relu(), &t(&[0.0]), 1, &all).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Derivative);
    let ints = Tensor::from_slice(&[1i64], [1]).unwrap();
    let error = check_grads(|x: &Tensor| x.mul(x), &ints, 1, &all).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::DType);
}

#[test]
fn sharded_arguments_keep_their_sharding() {
    let mesh = Mesh::new(&Client::host(2).devices(), [("data", 2)]).unwrap();
    let x = t(&[0.5, 1.0, 1.5, 2.0]).shard(&mesh, spec!["data"]).unwrap();
    let sharding = x.aval();
    let f = |x: &Tensor| {
        assert_eq!(x.aval().shape(), sharding.shape());
        x.mul(x)?.sum()
    };
    check_grads(f, &x, 2, &CheckOptions::default()).unwrap();
}

fn checked(mode: Mode, order: usize, f: fn(&Tensor) -> Result<Tensor>) -> Result<()> {
    let options = CheckOptions { modes: vec![mode], ..CheckOptions::default() };
    check_grads(f, &Tensor::from_slice(&[0.5, 2.0], [2])?, order, &options)
}

fn half_hidden(x: &Tensor) -> Result<Tensor> {
    x.mul(&x.detach()?)
}

fn watched(f: impl FnOnce() -> Result<Tensor>) -> Result<()> {
    let _looking = oxbridge::debug_nans();
    err(f())
}

/// Rows of the table of error texts.
pub(crate) const ERRORS: &[Row] = &[
    ("check_grads: jvp", || checked(Mode::Forward, 1, half_hidden)),
    ("check_grads: vjp", || checked(Mode::Reverse, 1, half_hidden)),
    ("check_grads: second order", || {
        checked(Mode::Reverse, 2, |x| {
            let rest = x.sub(&x.detach()?)?;
            x.mul(x)?.add(&rest.mul(&rest)?)
        })
    }),
    ("check_grads: integers", || {
        check_grads(
            |x: &Tensor| x.neg(),
            &Tensor::zeros([2], DType::I64)?,
            1,
            &CheckOptions::default(),
        )
    }),
    ("debug_nans: eager", || watched(|| t(&[-1.0, -4.0]).sqrt())),
    ("debug_nans: a composite operation", || watched(|| t(&[f64::INFINITY]).softmax(0))),
    ("debug_nans: in a loop of a compiled function", || {
        let f = jit(|x: &Tensor| {
            fori_loop(0, 3, |_: &Tensor, x: &Tensor| x.sub(1.0)?.sqrt(), x)?.add(1.0)
        });
        watched(|| f.named("step").donate([0]).call(t(&[1.5])))
    }),
    ("debug_infs", || {
        let _looking = oxbridge::debug_infs();
        err(Tensor::scalar(0f64).log())
    }),
    ("check_grads: inside of jit", || {
        let check = |x: &Tensor| {
            check_grads(half_hidden, x, 1, &CheckOptions::default())?;
            x.neg()
        };
        err(jit(check).call(t(&[1.0, 2.0])))
    }),
];
