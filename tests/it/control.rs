//! Control flow over trees: values, derivatives, batches, `jit`, and errors.

use crate::cases::engine::case::draws_alone;
use oxbridge::check_grads;
use oxbridge::prelude::*;
use oxbridge::tensor::random::manual_seed;
use oxbridge::transforms::check::CheckOptions;
use oxbridge::transforms::{Branch, map};

type Cell = (Tensor, Tensor);
/// One step: the next state from a row and the state.
type Step<'f> = &'f dyn Fn(&Tensor, &Tensor) -> Result<Tensor>;

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
    let test = |y: &Tensor| outer.add_(1)?.sum()?.lt(&y.sum()?);
    let error = while_loop(test, |y: &Tensor| Ok(y.clone()), &x).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Value, "{error}");
    assert!(error.to_string().contains("writes in place"), "{error}");
    close(&outer, &x, 1e-15);
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

fn number(x: &Tensor) -> f64 {
    x.item().unwrap()
}

/// Runs `f` at once and under `jit`, on a state of zero: the results and the state after two calls.
fn twice(f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>, x: &Tensor) -> Vec<[f64; 3]> {
    let mut out = Vec::new();
    for compiled in [false, true] {
        let state = t(&[0.0], &[]);
        let on = |x: &Tensor| f(&state, x);
        let program = jit(on);
        let run = || if compiled { program.call(x) } else { on(x) };
        out.push([number(&run().unwrap()), number(&run().unwrap()), number(&state)]);
    }
    out
}

#[test]
fn loops_carry_what_they_write_to_tensors_from_outside() {
    let x = t(&[2.0], &[]);
    // The state goes up by 3 in each call; results are sums of what the steps see of it.
    let scanned = |state: &Tensor, x: &Tensor| {
        let step = |y: &Tensor, row: &Tensor| {
            state.add_(row)?;
            Ok((y.add(state)?, state.clone()))
        };
        let (y, rows) = scan(step, x, &t(&[1.0; 3], &[3]), ScanOptions::default())?;
        y.add(&rows.sum()?)
    };
    assert_eq!(twice(scanned, &x), [[14.0, 32.0, 6.0]; 2]);
    let counted = |state: &Tensor, x: &Tensor| {
        fori_loop(
            0,
            3,
            |i, y: &Tensor| {
                state.add_(i)?;
                y.add(state)
            },
            x,
        )
    };
    assert_eq!(twice(counted, &x), [[6.0, 15.0, 6.0]; 2]);
    // The test sees what the body has written, and a state that is never read.
    let tested = |state: &Tensor, x: &Tensor| {
        let seen = Tensor::zeros([], DType::F64)?;
        let last = while_loop(
            |y: &Tensor| state.lt(&y.mul(3.0)?),
            |y: &Tensor| {
                state.add_(1.0)?;
                seen.set_value(state.value()?)?;
                Ok(y.clone())
            },
            x,
        )?;
        last.add(&seen)
    };
    assert_eq!(twice(tested, &x), [[8.0, 2.0, 6.0]; 2]);
    // No step, nothing written.
    let none =
        |state: &Tensor, x: &Tensor| fori_loop(2, 2, |_, y: &Tensor| y.add(&state.add_(1.0)?), x);
    assert_eq!(twice(none, &x), [[2.0, 2.0, 0.0]; 2]);
    // A loop in a loop, and a write to a part of a tensor.
    let outer = t(&[0.0; 4], &[2, 2]);
    let part = outer.select(0, 1).unwrap();
    let inner = |_: &Tensor, y: &Tensor| {
        part.add_(y)?;
        y.mul(2.0)
    };
    let nested = |_: &Tensor, y: &Tensor| fori_loop(0, 2, inner, y);
    let y = fori_loop(0, 2, nested, &t(&[1.0, 10.0], &[2])).unwrap();
    close(&y, &t(&[16.0, 160.0], &[2]), 1e-15);
    close(&outer, &t(&[0.0, 0.0, 15.0, 150.0], &[2, 2]), 1e-15);
}

#[test]
fn branches_write_to_tensors_from_outside() {
    let step = |state: &Tensor, x: &Tensor| {
        let up = state.lt(2.0)?;
        let add = |x: &Tensor| {
            state.add_(x)?;
            state.mul(10.0)
        };
        cond(&up, add, |x: &Tensor| x.neg(), x)
    };
    // 0 -> 2 by the first branch; the other one writes nothing.
    assert_eq!(twice(step, &t(&[2.0], &[])), [[20.0, -2.0, 2.0]; 2]);
    let (a, b) = (t(&[1.0], &[]), t(&[2.0], &[]));
    let x = t(&[5.0], &[]);
    let branches: [Branch<'_, Tensor, Tensor>; 3] = [
        &|x: &Tensor| {
            a.set_value(x.value()?)?;
            Ok(x.clone())
        },
        &|x: &Tensor| {
            b.set_value(a.mul(x)?.value()?)?;
            Ok(x.clone())
        },
        &|_: &Tensor| a.add(&b),
    ];
    let mut seen = Vec::new();
    for i in [2i64, 0, 1, 2] {
        let y = switch(&Tensor::from_slice(&[i], []).unwrap(), &branches, &x).unwrap();
        seen.push([number(&y), number(&a), number(&b)]);
    }
    assert_eq!(seen, [[3.0, 1.0, 2.0], [5.0, 5.0, 2.0], [5.0, 5.0, 25.0], [30.0, 5.0, 25.0]]);
}

#[test]
fn derivatives_go_through_what_a_loop_writes() {
    // A sum kept in a tensor from outside: x + x^2 + x^3 by what is written alone.
    let powers = |x: &Tensor| {
        let sum = Tensor::zeros([], DType::F64)?;
        let step = |y: &Tensor, _: &Tensor| {
            let y = y.mul(x)?;
            sum.add_(&y)?;
            Ok((y, ()))
        };
        scan(step, &t(&[1.0], &[]), &t(&[0.0; 3], &[3]), ScanOptions::default())?;
        sum.mul(1.0)
    };
    let x = t(&[2.0], &[]);
    assert_eq!(number(&powers(&x).unwrap()), 14.0);
    assert_eq!(number(&grad(powers)(&x).unwrap()), 1.0 + 4.0 + 12.0);
    assert_eq!(number(&jit(grad(powers)).call(&x).unwrap()), 17.0);
    assert_eq!(number(&grad(grad(powers))(&x).unwrap()), 2.0 + 12.0);
    let many = t(&[1.0, 2.0, 3.0], &[3]);
    close(&vmap(grad(powers))(&many).unwrap(), &t(&[6.0, 17.0, 34.0], &[3]), 1e-12);
    check_grads(powers, &x, 2, &CheckOptions::default()).unwrap();
}

#[test]
fn steps_draw_numbers_of_their_own() {
    let _alone = draws_alone();
    let x = Tensor::ones([64], DType::F32).unwrap();
    let draw = |x: &Tensor| {
        let step = |x: &Tensor, _: &Tensor| Ok((x.clone(), x.dropout(0.5, true)?));
        let rows = Tensor::zeros([4], DType::F32)?;
        Ok(scan(step, x, &rows, ScanOptions::default())?.1)
    };
    let compiled = jit(draw);
    let mut all = Vec::new();
    for run in [&|x: &Tensor| draw(x) as Result<Tensor>, &|x: &Tensor| compiled.call(x)]
        as [&dyn Fn(&Tensor) -> Result<Tensor>; 2]
    {
        manual_seed(7).unwrap();
        let two = [run(&x).unwrap(), run(&x).unwrap()];
        let masks: Vec<Vec<f32>> = two
            .iter()
            .flat_map(|rows| {
                rows.to_vec::<f32>().unwrap().chunks(64).map(<[f32]>::to_vec).collect::<Vec<_>>()
            })
            .collect();
        for (i, mask) in masks.iter().enumerate() {
            assert!(mask.iter().all(|m| *m == 0.0 || *m == 2.0));
            assert!(!masks[..i].contains(mask), "draw {i} repeats");
        }
        all.push(masks);
    }
    assert_eq!(all[0], all[1], "eager and compiled draw the same");
    // As written one after the other.
    manual_seed(7).unwrap();
    for mask in &all[0] {
        assert_eq!(&x.dropout(0.5, true).unwrap().to_vec::<f32>().unwrap(), mask);
    }
    // The derivative has the masks of the first run; so has one that works the layers out again.
    let weights: Vec<Tensor> = (1..4).map(|i| x.mul(i).unwrap()).collect();
    let layer = |w: &Tensor, x: &Tensor| x.mul(w)?.dropout(0.25, true);
    let light = checkpoint(|(w, x): &Cell| layer(w, x));
    let bodies: [Step<'_>; 2] = [&layer, &|w, x| light(&(w.clone(), x.clone()))];
    for body in bodies {
        let model = |x: &Tensor| scan_layers(&weights, x, body);
        let (y, back) = vjp(model, &x).unwrap();
        let (y, slope) = (y.to_vec::<f32>().unwrap(), back(&x).unwrap().to_vec::<f32>().unwrap());
        for (y, slope) in y.iter().zip(&slope) {
            assert!((y - slope).abs() < 1e-4, "{y} at slope {slope}");
        }
        let dropped = y.iter().filter(|y| **y == 0.0).count();
        assert!((16..58).contains(&dropped), "{dropped} of 64 through three masks");
    }
}
