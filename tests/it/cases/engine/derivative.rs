//! `jvp` and `vjp` of each row against differences in doubles, and second order as `jvp` of `vjp`.

use super::case::{Case, place, read, uniform};
use super::compare::{self, parts};
use super::run::{function, say, tensors};
use super::{all, each};
use num_complex::Complex;
use oxbridge::backend::host::HostArray;
use oxbridge::{DType, Result, Tensor, jvp, vjp};
use std::collections::BTreeSet;

/// The relative error accepted of a difference of fourth order with this step.
const TOLERANCE: f64 = 1e-7;
const STEP: f64 = 1e-4;

/// A function over host arrays.
type Host<'f> = &'f dyn Fn(&[HostArray]) -> Result<Vec<HostArray>>;

/// `x + s * t`.
pub fn axpy(x: &HostArray, s: f64, t: &HostArray) -> HostArray {
    let sum: Vec<f64> = parts(x).iter().zip(parts(t)).map(|(x, t)| x + s * t).collect();
    if x.dtype().is_complex() {
        let sum: Vec<_> = sum.chunks(2).map(|z| Complex::new(z[0], z[1])).collect();
        return HostArray::from_slice(&sum, x.shape()).unwrap();
    }
    HostArray::from_slice(&sum, x.shape()).unwrap()
}

/// The derivative of `f` at `xs` along `ts`, by differences.
pub fn difference(f: Host<'_>, xs: &[HostArray], ts: &[HostArray]) -> Result<Vec<HostArray>> {
    let at = |s: f64| {
        let moved: Vec<_> = xs.iter().zip(ts).map(|(x, t)| axpy(x, s * STEP, t)).collect();
        f(&moved)
    };
    let (a, b, c, d) = (at(-2.0)?, at(-1.0)?, at(1.0)?, at(2.0)?);
    Ok((0..a.len())
        .filter(|&i| is_double(a[i].dtype()))
        .map(|i| {
            let near = axpy(&c[i], -1.0, &b[i]);
            let far = axpy(&d[i], -1.0, &a[i]);
            let zero = axpy(&near, -1.0, &near);
            axpy(&axpy(&zero, 8.0 / (12.0 * STEP), &near), -1.0 / (12.0 * STEP), &far)
        })
        .collect())
}

fn is_double(dtype: DType) -> bool {
    dtype.real() == DType::F64
}

/// `Re sum(x * y)`: how a cotangent is paired with a tangent.
pub fn pairing(xs: &[HostArray], ys: &[HostArray]) -> f64 {
    let mut sum = 0.0;
    for (x, y) in xs.iter().zip(ys) {
        let (a, b) = (parts(x), parts(y));
        let products = a.iter().zip(&b).map(|(a, b)| a * b);
        sum += if x.dtype().is_complex() {
            products.enumerate().map(|(i, p)| if i % 2 == 0 { p } else { -p }).sum::<f64>()
        } else {
            products.sum()
        };
    }
    sum
}

fn random_like(xs: &[HostArray], seed: u64) -> Vec<HostArray> {
    let arrays = xs.iter().enumerate();
    arrays.map(|(i, x)| uniform(x.dtype(), x.shape(), seed + i as u64, -1.0, 1.0)).collect()
}

fn values(arrays: &[HostArray]) -> Result<Vec<Tensor>> {
    Ok(tensors(arrays.iter().map(place).collect::<Result<Vec<_>>>()?))
}

fn hosts(tensors: &[Tensor]) -> Result<Vec<HostArray>> {
    tensors.iter().map(|t| read(&t.value()?)).collect()
}

/// The doubles among `arrays`.
fn doubles(arrays: Vec<HostArray>) -> Vec<HostArray> {
    arrays.into_iter().filter(|a| is_double(a.dtype())).collect()
}

/// The row as a function of some of its operands; the others keep their data. Results that are no
/// doubles are left out.
fn partial(
    case: &Case,
    data: &[HostArray],
    active: &[usize],
) -> Result<impl Fn(&Vec<Tensor>) -> Result<Vec<Tensor>> + Clone> {
    let (f, fixed, active) = (function(case), values(data)?, active.to_vec());
    Ok(move |xs: &Vec<Tensor>| {
        let mut all = fixed.clone();
        for (&i, x) in active.iter().zip(xs) {
            all[i] = x.clone();
        }
        let mut outs = f(&all)?;
        outs.retain(|out| is_double(out.aval().dtype()));
        Ok(outs)
    })
}

fn check(case: &Case, data: &[HostArray], active: &[usize]) -> std::result::Result<(), String> {
    let f = partial(case, data, active).map_err(say)?;
    let xs: Vec<_> = active.iter().map(|&i| data[i].clone()).collect();
    let ts = random_like(&xs, 1);
    let host = |xs: &[HostArray]| hosts(&f(&values(xs)?)?);
    let outs = host(&xs).map_err(say)?;
    let tol = TOLERANCE * case.tol;
    let forward =
        |ts: &[HostArray]| -> Result<_> { hosts(&jvp(&f, &values(&xs)?, &values(ts)?)?.1) };
    let got = forward(&ts).map_err(say)?;
    let want = difference(&host, &xs, &ts).map_err(say)?;
    for (got, want) in got.iter().zip(&want) {
        compare::one(got, want, tol).map_err(|e| format!("jvp in {active:?}: {e}"))?;
    }
    let cts = random_like(&outs, 2);
    let gradient = |xs: &Vec<Tensor>| vjp(&f, xs)?.1(&values(&cts)?);
    let backward = |xs: &[HostArray]| hosts(&gradient(&values(xs)?)?);
    let in_cts = backward(&xs).map_err(say)?;
    let (forth, back) = (pairing(&cts, &got), pairing(&in_cts, &ts));
    if (forth - back).abs() > 1e-10 * (1.0 + forth.abs()) || forth.is_nan() != back.is_nan() {
        return Err(format!("vjp in {active:?}: <ct, J t> = {forth} but <ct J, t> = {back}"));
    }
    if !case.second {
        return Ok(());
    }
    let second = |ts: &[HostArray]| hosts(&jvp(gradient, &values(&xs)?, &values(ts)?)?.1);
    let got = second(&ts).map_err(|e| format!("second order in {active:?}: {e}"))?;
    let want = difference(&backward, &xs, &ts).map_err(say)?;
    for (got, want) in got.iter().zip(&want) {
        compare::one(got, want, tol).map_err(|e| format!("second order in {active:?}: {e}"))?;
    }
    Ok(())
}

#[test]
fn jvp_and_vjp_are_differences() {
    let mut seen = BTreeSet::new();
    let seen = std::cell::RefCell::new(&mut seen);
    each("derivatives", |case| {
        let Some(case) = case.doubled().filter(|case| case.grad) else { return Ok(false) };
        if !seen.borrow_mut().insert(case.id()) {
            return Ok(false);
        }
        let data = case.data(0);
        let active: Vec<usize> = (0..data.len()).filter(|&i| is_double(data[i].dtype())).collect();
        let outs = doubles(case.run(&data).map_err(say)?);
        if active.is_empty() || outs.is_empty() {
            return Ok(false);
        }
        check(&case, &data, &active)?;
        if active.len() > 1 {
            active.iter().try_for_each(|&i| check(&case, &data, &[i]))?;
        }
        Ok(true)
    });
}

/// A primitive that is never differentiated has to say so in all of its rows.
#[test]
fn every_differentiable_primitive_is_differentiated() {
    let (mut can, mut does) = (BTreeSet::new(), BTreeSet::new());
    for (_, case) in all() {
        let double = case.doubled().is_some_and(|case| {
            case.operands.iter().any(|o| is_double(o.dtype))
                && case
                    .run(&case.data(0))
                    .is_ok_and(|outs| outs.iter().any(|o| is_double(o.dtype())))
        });
        if double {
            can.insert(case.prim);
        }
        if double && case.grad {
            does.insert(case.prim);
        }
    }
    let missing: Vec<_> =
        can.difference(&does).filter(|p| !NOT_DIFFERENTIABLE.contains(p)).collect();
    assert!(missing.is_empty(), "primitives whose rows all say `no_grad`: {missing:?}");
}

/// What has no derivative rule by design; `while` has one forwards only, which `control` tests, and
/// `custom_vjp` one backwards only, which `custom` tests.
const NOT_DIFFERENTIABLE: &[&str] = &[
    "custom_vjp",
    "digamma",
    "next_after",
    "reduce_window_prod",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "while",
];
