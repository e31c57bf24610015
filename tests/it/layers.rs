//! Equal layers as one loop, unrolled loops, and associative scans.

use oxbridge::nn::{BatchNorm2d, Dropout};
use oxbridge::prelude::*;
use oxbridge::transforms::map;
use std::sync::OnceLock;

fn t(data: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(data, shape).unwrap()
}

fn wave(seed: f64, shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let data: Vec<f64> = (0..n).map(|i| (seed + 1.7 * i as f64).sin() * 0.6).collect();
    t(&data, shape)
}

/// The tensor on the host device, where many small shapes cost no compilation.
fn hosted(x: &Tensor) -> Tensor {
    static HOST: OnceLock<Device> = OnceLock::new();
    x.to_device(HOST.get_or_init(|| Client::host(1).device(0).unwrap())).unwrap()
}

fn close(got: &Tensor, want: &Tensor, tol: f64) {
    assert_eq!(got.aval().shape(), want.aval().shape(), "shape");
    let (got, want) = (got.to_vec::<f64>().unwrap(), want.to_vec::<f64>().unwrap());
    for (a, b) in got.iter().zip(&want) {
        assert!((a - b).abs() < tol * (1.0 + b.abs()), "{got:?} is not {want:?}");
    }
}

#[derive(Clone, Debug, Module)]
struct Block {
    weight: Tensor,
    bias: Option<Tensor>,
    #[tree(static)]
    power: i64,
}

impl Block {
    fn run(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.weight.matmul(x)?;
        let y = if let Some(bias) = &self.bias { y.add(bias)? } else { y };
        y.tanh()?.add(&x.mul(self.power)?)
    }
}

fn blocks(n: usize) -> Vec<Block> {
    let block = |i: usize| Block {
        weight: wave(i as f64, &[3, 3]),
        bias: Some(wave(0.5 * i as f64, &[3])),
        power: 1,
    };
    (0..n).map(block).collect()
}

type Model = (Vec<Block>, Tensor);

fn looped((blocks, x): &Model) -> Result<Tensor> {
    scan_layers(blocks, x, Block::run)?.square()?.sum()
}

fn unrolled((blocks, x): &Model) -> Result<Tensor> {
    blocks.iter().try_fold(x.clone(), |x, block| block.run(&x))?.square()?.sum()
}

fn same(a: &Model, b: &Model, tol: f64) {
    assert_eq!(a.0.len(), b.0.len(), "layers");
    close(&a.1, &b.1, tol);
    for (a, b) in a.0.iter().zip(&b.0) {
        close(&a.weight, &b.weight, tol);
        close(a.bias.as_ref().unwrap(), b.bias.as_ref().unwrap(), tol);
    }
}

#[test]
fn a_loop_over_layers_is_the_layers_one_after_the_other() {
    let model = (blocks(4), wave(0.3, &[3]));
    close(&looped(&model).unwrap(), &unrolled(&model).unwrap(), 1e-13);
    let want = grad(unrolled)(&model).unwrap();
    same(&grad(looped)(&model).unwrap(), &want, 1e-12);
    same(&jit(grad(looped)).call(&model).unwrap(), &want, 1e-12);
    let second = |f: fn(&Model) -> Result<Tensor>| {
        grad(move |m: &Model| {
            let g = grad(f)(m)?;
            g.0.iter().try_fold(g.1.sum()?, |sum, b| sum.add(&b.weight.square()?.sum()?))
        })(&model)
        .unwrap()
    };
    same(&second(looped), &second(unrolled), 1e-10);
    let many = wave(0.9, &[5, 3]);
    let over = |f: fn(&Model) -> Result<Tensor>| {
        vmap(|x: &Tensor| Ok(grad(f)(&(model.0.clone(), x.clone()))?.0.remove(2).weight))(&many)
    };
    close(&over(looped).unwrap(), &over(unrolled).unwrap(), 1e-12);
    // Layers that the function captures have derivatives as well.
    let last = grad(|x: &Tensor| looped(&(model.0.clone(), x.clone())))(&model.1).unwrap();
    close(&last, &want.1, 1e-12);
    let none: [Block; 0] = [];
    close(&scan_layers(&none, &model.1, Block::run).unwrap(), &model.1, 1e-300);
}

#[test]
fn stacked_layers_keep_their_form_and_their_size_of_program() {
    let text = |n: usize| {
        let stacked = stack_layers(&blocks(n)).unwrap();
        let run = |(s, x): &(Block, Tensor)| scan_stacked(s, x, Block::run)?.sum();
        let step = jit(grad(run));
        let args = (stacked, wave(0.3, &[3]));
        let slopes = step.call(&args).unwrap();
        let lines = step.lower(&args).unwrap().stablehlo().lines().count();
        (unstack_layers(&slopes.0).unwrap(), lines)
    };
    let (slopes, short) = text(2);
    let (_, long) = text(20);
    assert_eq!(short, long, "lines of the program for 2 and 20 layers");
    let model = (blocks(2), wave(0.3, &[3]));
    let plain = |(b, x): &Model| b.iter().try_fold(x.clone(), |x, b| b.run(&x))?.sum();
    let want = grad(plain)(&model).unwrap().0;
    close(&slopes[1].weight, &want[1].weight, 1e-12);
    close(slopes[0].bias.as_ref().unwrap(), want[0].bias.as_ref().unwrap(), 1e-12);
    // Results of each layer's own.
    let stacked = stack_layers(&model.0).unwrap();
    let step = |x: &Tensor, b: &Block| Ok((b.run(x)?, x.sum()?));
    let (last, sums) = scan(step, &model.1, &stacked, ScanOptions::default()).unwrap();
    close(&last.sum().unwrap(), &plain(&model).unwrap(), 1e-13);
    close(&sums.select(0, 0).unwrap(), &model.1.sum().unwrap(), 1e-15);
}

#[test]
fn the_mode_of_layers_is_watched() {
    #[derive(Clone, Debug, Module)]
    struct Noisy(Tensor, Dropout);
    let layers: Vec<Noisy> =
        (0..3).map(|i| Noisy(wave(f64::from(i), &[2]), Dropout::new(0.0).unwrap())).collect();
    let f = jit(|x: &Tensor| {
        scan_layers(
            &layers,
            x,
            |Noisy(w, noise), x: &Tensor| {
                if noise.training.get() { x.add(w) } else { x.sub(w) }
            },
        )
    });
    let x = wave(0.1, &[2]);
    let sum = layers.iter().try_fold(x.clone(), |x, l| x.add(&l.0)).unwrap();
    close(&f.call(&x).unwrap(), &sum, 1e-15);
    layers.eval();
    let difference = layers.iter().try_fold(x.clone(), |x, l| x.sub(&l.0)).unwrap();
    close(&f.call(&x).unwrap(), &difference, 1e-15);
    layers[1].train(true);
    let error = f.call(&x).unwrap_err();
    assert!(error.to_string().contains("layers 0 and 1 differ"), "{error}");
}

#[test]
fn layers_that_differ_are_told_with_the_path() {
    let x = wave(0.3, &[3]);
    let run = |change: fn(&mut Block)| {
        let mut blocks = blocks(3);
        change(&mut blocks[2]);
        let error = scan_layers(&blocks, &x, Block::run).unwrap_err();
        (error.kind().clone(), error.to_string())
    };
    let (kind, text) = run(|b| b.weight = wave(0.0, &[3, 2]));
    assert_eq!(kind, ErrorKind::Shape);
    assert!(text.contains("layers 0 and 2 differ at `weight`: f64[3,3] and f64[3,2]"), "{text}");
    let (kind, text) = run(|b| b.weight = b.weight.to_dtype(DType::F32).unwrap());
    assert_eq!(kind, ErrorKind::DType);
    assert!(text.contains("`weight`: f64[3,3] and f32[3,3]"), "{text}");
    let (kind, text) = run(|b| b.bias = None);
    assert_eq!(kind, ErrorKind::Tree);
    assert!(text.contains("`bias`"), "{text}");
    let (kind, text) = run(|b| b.power = 3);
    assert_eq!(kind, ErrorKind::Tree);
    assert!(text.contains("`power`: 1 and 3"), "{text}");
    let lists = [vec![x.clone()], vec![x.clone(), x.clone()]];
    let error = stack_layers(&lists).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Tree, "{error}");
    let error = scan_layers(&blocks(2), &x, |_, x: &Tensor| x.sum()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");
    let norm = || BatchNorm2d::new(2, &Init::seed(0)).unwrap();
    let norms = [norm(), norm()];
    let error = stack_layers(&norms).unwrap_err();
    assert!(error.to_string().contains("buffer"), "{error}");
    let error = stack_layers::<Block>(&[]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Value);
}

/// The steps `h = tanh(w h + x)` with rows out, `unroll` at a time.
fn recurrent(w: &Tensor, xs: &Tensor, unroll: usize, reverse: bool) -> Result<Tensor> {
    let options = ScanOptions { reverse, unroll, ..ScanOptions::default() };
    let step = |h: &Tensor, x: &Tensor| {
        let h = w.matmul(h)?.add(x)?.tanh()?;
        Ok((h.clone(), h.square()?))
    };
    let (last, rows) = scan(step, &wave(0.2, &[3]), xs, options)?;
    last.sum()?.add(&rows.mul(&rows.cumsum(0)?)?.sum()?)
}

#[test]
fn unrolled_loops_give_the_same() {
    let (there, xs) = (wave(0.4, &[3, 3]), wave(1.1, &[7, 3]));
    let w = hosted(&there);
    let second = |w: &Tensor, unroll, reverse| {
        let slope = |w: &Tensor| grad(|w: &Tensor| recurrent(w, &xs, unroll, reverse))(w);
        grad(move |w: &Tensor| slope(w)?.square()?.sum())(w)
    };
    for reverse in [false, true] {
        let want = recurrent(&w, &xs, 0, reverse).unwrap();
        let slope = grad(|w: &Tensor| recurrent(w, &xs, 1, reverse))(&w).unwrap();
        let curve = second(&w, 1, reverse).unwrap();
        for unroll in [2, 3, 7, ScanOptions::UNROLL_ALL] {
            close(&recurrent(&w, &xs, unroll, reverse).unwrap(), &want, 1e-13);
            let step = jit(grad(|w: &Tensor| recurrent(w, &xs, unroll, reverse)));
            close(&step.call(&there).unwrap(), &slope, 1e-12);
            close(&second(&w, unroll, reverse).unwrap(), &curve, 1e-11);
            let loops = step.lower(&there).unwrap().stablehlo().matches("stablehlo.while").count();
            assert_eq!(loops, if unroll < 7 { 2 } else { 0 }, "unroll {unroll}");
        }
        let both = Tensor::stack(&[w.clone(), w.neg().unwrap()], 0).unwrap();
        let batch = |unroll| vmap(|w: &Tensor| recurrent(w, &xs, unroll, reverse))(&both).unwrap();
        close(&batch(3), &batch(1), 1e-13);
    }
}

#[test]
fn associative_scans_of_every_length() {
    type Pair = (Tensor, Tensor);
    // Composition of the maps `x -> a x + b`, which does not commute.
    let compose = |(a, b): &Pair, (c, d): &Pair| Ok((a.mul(c)?, b.mul(c)?.add(d)?));
    for n in 0..=9 {
        let there = (wave(0.7, &[2, n]).add(1.0).unwrap(), wave(2.0, &[2, n]));
        let xs = (hosted(&there.0), hosted(&there.1));
        for reverse in [false, true] {
            let by_steps = |xs: &Pair| {
                let turned = (xs.0.t()?.copy()?, xs.1.t()?.copy()?);
                let init = (hosted(&t(&[1.0, 1.0], &[2])), hosted(&t(&[0.0, 0.0], &[2])));
                let step = |c: &Pair, x: &Pair| {
                    let c = compose(c, x)?;
                    Ok((c.clone(), c))
                };
                let options = ScanOptions { reverse, ..ScanOptions::default() };
                let rows: Pair = scan(step, &init, &turned, options)?.1;
                Ok::<_, Error>((rows.0.t()?.copy()?, rows.1.t()?.copy()?))
            };
            let at_once = |xs: &Pair| associative_scan(compose, xs, reverse, -1);
            let (got, want) = (at_once(&xs).unwrap(), by_steps(&xs).unwrap());
            close(&got.0, &want.0, 1e-12);
            close(&got.1, &want.1, 1e-12);
            if n == 0 || n % 3 != 0 {
                continue;
            }
            let score = |(a, b): Pair| a.sin()?.sum()?.add(&b.cos()?.sum()?);
            let slope = grad(|xs: &Pair| score(by_steps(xs)?))(&xs).unwrap();
            let got = grad(|xs: &Pair| score(at_once(xs)?))(&xs).unwrap();
            close(&got.0, &slope.0, 1e-11);
            if n == 3 {
                let step = jit(grad(|xs: &Pair| score(at_once(xs)?)));
                close(&step.call(&there).unwrap().1, &slope.1, 1e-11);
            }
            // The dimension that is not scanned, mapped: the last one is the scanned one still.
            let rows = vmap(at_once)(&xs).unwrap();
            close(&rows.1, &want.1, 1e-12);
        }
    }
    let zeros = t(&[-0.0, -0.0, -0.0], &[3]);
    let signs = associative_scan(|a: &Tensor, b: &Tensor| a.minimum(b), &zeros, false, 0).unwrap();
    assert!(signs.to_vec::<f64>().unwrap().iter().all(|z| z.is_sign_negative()), "{signs}");
    let sizes = (wave(0.0, &[3]), wave(0.0, &[4]));
    let error = associative_scan(compose, &sizes, false, 0).unwrap_err();
    assert!(error.to_string().contains("`[1]` f64[4] has size 4"), "{error}");
    let error = associative_scan(|a: &Tensor, _| a.sum(), &zeros, false, 0).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");
}

/// What JAX gives at the edges: no steps, mapped branches, bounds that cross.
#[test]
fn edges_of_control_flow() {
    let x = t(&[1.0, 2.0], &[2]);
    let none = Tensor::zeros([0, 2], DType::F64).unwrap();
    let step = |c: &Tensor, x: &Tensor| Ok((c.add(x)?, c.mul(x)?));
    let (last, rows) = scan(step, &x, &none, ScanOptions::default()).unwrap();
    close(&last, &x, 1e-300);
    assert_eq!(rows.shape(), Shape::new(&[0, 2]));
    let slope = grad(|x: &Tensor| scan(step, x, &none, ScanOptions::default())?.0.sum());
    close(&slope(&x).unwrap(), &t(&[1.0, 1.0], &[2]), 1e-300);
    assert_eq!(map(|x: &Tensor| x.sum(), &none).unwrap().shape(), Shape::new(&[0]));
    let down = fori_loop(5, 2, |_, y: &Tensor| y.mul(y), &x).unwrap();
    close(&down, &x, 1e-300);
    let options = ScanOptions { length: Some(3), ..ScanOptions::default() };
    let error = scan(step, &x, &none, options).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");

    // A mapped index, also outside of the branches, and its derivative.
    let indices = Tensor::from_slice(&[-3i32, 0, 1, 7], [4]).unwrap();
    let xs = wave(0.5, &[4, 2]);
    type Pair = (Tensor, Tensor);
    let pick = |(i, x): &Pair| {
        let (neg, square) = (|x: &Tensor| x.neg(), |x: &Tensor| x.mul(x));
        switch(i, &[&neg, &square], x)
    };
    let args = (indices, xs.clone());
    let want =
        |f: &dyn Fn(&Tensor) -> Result<Tensor>, i: i64| f(&xs.select(0, i).unwrap()).unwrap();
    let got = vmap(pick)(&args).unwrap();
    let slopes = vmap(|(i, x): &Pair| grad(|x: &Tensor| pick(&(i.clone(), x.clone()))?.sum())(x));
    let slopes = slopes(&args).unwrap();
    for (row, squares) in [(0, false), (1, false), (2, true), (3, true)] {
        let value: &dyn Fn(&Tensor) -> Result<Tensor> =
            if squares { &|x| x.mul(x) } else { &|x| x.neg() };
        let slope: &dyn Fn(&Tensor) -> Result<Tensor> =
            if squares { &|x| x.mul(2.0) } else { &|x| x.mul(0.0)?.sub(1.0) };
        close(&got.select(0, row).unwrap(), &want(value, row), 1e-15);
        close(&slopes.select(0, row).unwrap(), &want(slope, row), 1e-15);
    }

    // A loop whose examples end at different times: each keeps its last value.
    let count = |x: &Tensor| while_loop(|x: &Tensor| x.lt(10.0), |x: &Tensor| x.mul(3.0), x);
    let starts = t(&[0.5, 20.0, 4.0], &[3]);
    close(&vmap(count)(&starts).unwrap(), &t(&[13.5, 20.0, 12.0], &[3]), 1e-15);
    close(&jit(vmap(count)).call(&starts).unwrap(), &t(&[13.5, 20.0, 12.0], &[3]), 1e-15);
}
