//! `debug_nans` and `debug_infs`: which operation, which line of this file.

use crate::pitfalls::alone;
use oxbridge::prelude::*;
use oxbridge::{debug_infs, debug_nans};

fn t(values: &[f64]) -> Tensor {
    Tensor::from_slice(values, [values.len()]).unwrap()
}

/// The error that `f` must give is of operation `op`, on line `line` of this file.
#[track_caller]
fn names(op: &str, line: u32, f: impl FnOnce() -> Result<Tensor>) -> Error {
    let _looking = debug_nans();
    let error = f().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotFinite, "{error}");
    assert_eq!(error.op(), op, "{error}");
    let at = error.location().unwrap();
    assert!(at.file().ends_with("nans.rs"), "{error}");
    assert_eq!(at.line(), line, "{error}");
    error
}

fn has_note(error: &Error, part: &str) {
    assert!(error.notes().iter().any(|note| note.contains(part)), "{error}");
}

#[test]
fn an_eager_operation_is_named_with_the_callers_line() {
    let x = t(&[4.0, -1.0, -2.0]);
    let error = names("sqrt", line!(), || x.sqrt());
    assert!(error.text().contains("f64[3] has NaN at [1], 2 of 3 elements"), "{error}");
    assert!(error.text().contains("operands are (f64[3])"), "{error}");
    names("div", line!(), || catch(|| Ok(&t(&[0.0]) / &t(&[0.0]))));
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = x.to_dtype(dtype).unwrap();
        names("log", line!(), || x.log());
    }
    let z = t(&[f64::NAN]).complex(&t(&[1.0])).unwrap();
    let error = names("mul", line!(), || z.mul(&z));
    has_note(&error, "operand 0 has one already");
    // Out of range, hence NaN.
    let index = Tensor::from_slice(&[7i64], [1]).unwrap();
    names("gather", line!(), || x.index_select(0, &index));
}

/// A composite operation is opened; the place is that of its call.
#[test]
fn a_composite_operation_is_opened() {
    let x = t(&[f64::INFINITY, 1.0]);
    let error = names("sub", line!(), || x.softmax(0));
    has_note(&error, "inside of `softmax`");
}

#[test]
fn in_a_compiled_function_the_line_that_was_traced_is_named() {
    let line = line!() + 2;
    let f = jit(|x: &Tensor| {
        let root = x.sqrt()?;
        root.add(1.0)?.sum()
    });
    let error = names("sqrt", line, || f.call(t(&[1.0, -1.0])));
    has_note(&error, "one operation at a time");
    assert_eq!(f.call(t(&[4.0])).unwrap().item::<f64>().unwrap(), 3.0);
    let line = line!() + 1;
    let inner = jit(|x: &Tensor| x.log()).named("inner");
    let outer = jit(move |x: &Tensor| inner.call(&x.sub(3.0)?)?.sin());
    let error = names("log", line, || outer.call(t(&[1.0])));
    has_note(&error, "inside of `inner`");
    // The standard operators, and what comes after them.
    let line = line!() + 2;
    let f = jit(|x: &Tensor| {
        let y = x / x;
        y.mul(2.0)
    });
    names("div", line, || f.call(t(&[0.0])));
}

#[test]
fn loops_and_branches_are_opened() {
    let x = t(&[2.0, 1.0, 0.0, -1.0]);
    let zero = Tensor::scalar(0f64);
    let line = line!() + 2;
    let sum = jit(|x: &Tensor| {
        let step = |sum: &Tensor, x: &Tensor| Ok((sum.add(&x.sqrt()?)?, ()));
        Ok(scan(step, &zero, x, ScanOptions::default())?.0)
    });
    let error = names("sqrt", line, || sum.call(&x));
    has_note(&error, "in round 3 of a `scan`");
    let line = line!() + 1;
    let branch = |x: &Tensor| cond(&x.sum()?.lt(0.0)?, |x| x.log(), |x| x.neg(), x);
    branch(&t(&[1.0])).unwrap();
    let error = names("log", line, || branch(&t(&[-1.0])));
    has_note(&error, "in branch 1 of a `cond`");
    let line = line!() + 2;
    let halves = jit(|x: &Tensor| {
        let step = |x: &Tensor| x.sub(1.0)?.sqrt();
        while_loop(|x: &Tensor| x.gt(-1.0), step, x)
    });
    let error = names("sqrt", line, || halves.call(Tensor::scalar(1.5f64)));
    has_note(&error, "in round 1 of a `while`");
}

/// Backwards, the line is that of the operation whose derivative it is.
#[test]
fn a_derivative_is_on_the_line_of_its_operation() {
    let line = line!() + 2;
    let loss = |x: &Tensor| {
        let root = x.sqrt()?;
        root.mul(0.0)?.sum()
    };
    let x = t(&[1.0, 0.0]);
    assert!(grad(loss)(&x).unwrap().to_vec::<f64>().unwrap()[1].is_nan());
    let eager = names("div", line, || grad(loss)(&x));
    let compiled = jit(grad(loss));
    let error = names("div", line, || compiled.call(&x));
    assert_eq!(error.op(), eager.op());
    let inner = jit(loss);
    names("div", line, || grad(|x: &Tensor| inner.call(x))(&x));
    names("div", line, || vmap(grad(loss))(&x.unsqueeze(0)?));
    names("div", line, || Ok(jvp(loss, &x, &x.zeros_like()?)?.1));
}

/// Also of torch's graph.
#[test]
fn a_backward_pass_is_on_the_line_of_the_operation() {
    let x = t(&[1.0, 0.0]).requires_grad_(true).unwrap();
    let line = line!() + 1;
    let root = x.sqrt().unwrap();
    let loss = root.mul(0.0).unwrap().sum().unwrap();
    names("div", line, || loss.backward().map(|()| x.clone()));
}

#[test]
fn donated_arguments_are_run_again_from_copies() {
    let client = Client::cpu(1).unwrap();
    let x = t(&[4.0, -1.0]).to_device(&client.device(0).unwrap()).unwrap();
    let line = line!() + 1;
    let f = jit(|x: &Tensor| x.sqrt()).donate([0]);
    let error = names("sqrt", line, || f.call(&x));
    has_note(&error, "what was donated to");
    assert_eq!(*x.to_vec::<f64>().unwrap_err().kind(), ErrorKind::Donated);
}

#[test]
fn infinities_are_looked_for_only_where_asked() {
    let x = t(&[0.0, 1.0]);
    let finite = || {
        x.log()?;
        t(&[-1.0]).sqrt()
    };
    names("sqrt", line!() - 2, finite);
    let _looking = debug_infs();
    let error = x.log().unwrap_err();
    assert!(error.text().contains("has an infinity at [0], 1 of 2"), "{error}");
    t(&[-1.0]).sqrt().unwrap();
}

#[test]
fn a_scope_is_its_threads_and_ends() {
    let bad = || t(&[-1.0]).sqrt();
    {
        let _looking = debug_nans();
        let _twice = debug_nans();
        bad().unwrap_err();
        std::thread::spawn(move || bad().map(drop)).join().unwrap().unwrap();
        let mesh = Mesh::new(&Client::host(2).devices(), [("data", 2)]).unwrap();
        let split = t(&[1.0, -1.0]).shard(&mesh, spec!["data"]).unwrap();
        assert_eq!(*split.sqrt().unwrap_err().kind(), ErrorKind::NotFinite);
    }
    bad().unwrap();
}

#[test]
fn looking_runs_nothing_more_where_all_is_well() {
    for client in [Client::host(1), Client::cpu(1).unwrap()] {
        let x = t(&[1.0, 2.0]).to_device(&client.device(0).unwrap()).unwrap();
        let f = jit(|x: &Tensor| x.sqrt()?.sum());
        let _looking = debug_nans();
        let before = client.metrics();
        f.call(&x).unwrap();
        x.sin().unwrap();
        assert_eq!(client.metrics().since(&before).executions, 2, "on {client:?}");
    }
}

#[test]
fn the_environment_turns_it_on() {
    let name = "nans::the_environment_turns_it_on";
    if !alone(name, &[("OXBRIDGE_DEBUG_NANS", "1"), ("OXBRIDGE_DEBUG_INFS", "0")]) {
        return;
    }
    assert_eq!(*t(&[-1.0]).sqrt().unwrap_err().kind(), ErrorKind::NotFinite);
    t(&[0.0]).log().unwrap();
    let thread = std::thread::spawn(|| t(&[-1.0]).sqrt().map(drop));
    assert_eq!(*thread.join().unwrap().unwrap_err().kind(), ErrorKind::NotFinite);
}

#[test]
fn an_optimiser_step_is_on_the_callers_line() {
    use oxbridge::optim::{Sgd, SgdOptions};
    let w = t(&[1.0]);
    let sgd = Sgd::new(&w, SgdOptions::default()).unwrap();
    let slope = t(&[f64::NAN]);
    names("mul", line!(), || Ok(sgd.update(&w, &slope)?.0));
    let line = line!() + 1;
    let step = jit(|(w, slope): (Tensor, Tensor)| Ok(sgd.update(&w, &slope)?.0));
    names("mul", line, || step.call((&w, &slope)));
}
