//! Optimisers against torch's formulas worked out beside them in f64.

use oxbridge::optim::*;
use oxbridge::prelude::*;
use oxbridge::transforms::tree::leaves;

type Params = (Tensor, Vec<Tensor>);

/// The parameters and gradients of all tests: step `k` has gradient `GRADS[i] * (1 + k)`.
const PARAMS: [f64; 3] = [1.0, -2.0, 0.5];
const GRADS: [f64; 3] = [0.1, -0.4, 2.0];

fn tree(values: [f64; 3]) -> Params {
    let first = Tensor::from_slice(&values[..2], [2]).unwrap();
    (first, vec![Tensor::from_slice(&values[2..], []).unwrap()])
}

fn flat(tree: &Params) -> Vec<f64> {
    leaves(tree).into_iter().flat_map(|t| t.to_vec::<f64>().unwrap()).collect()
}

fn grads(step: usize) -> Params {
    tree(GRADS.map(|g| g * (1 + step) as f64))
}

fn close(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "number of elements");
    for (a, b) in got.iter().zip(expected) {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{got:?} is not {expected:?}");
    }
}

/// Each parameter after each of four steps of `step(p, g, state, k)`.
fn reference<S: Copy>(start: S, step: impl Fn(f64, f64, &mut S, i32) -> f64) -> Vec<Vec<f64>> {
    let mut params = PARAMS;
    let mut states = [start; 3];
    let mut all = Vec::new();
    for k in 0..4 {
        for i in 0..3 {
            params[i] = step(params[i], GRADS[i] * f64::from(1 + k), &mut states[i], k);
        }
        all.push(params.to_vec());
    }
    all
}

#[test]
fn sgd_is_torchs() {
    let options = [
        SgdOptions { lr: 0.1, ..SgdOptions::default() },
        SgdOptions { lr: 0.1, momentum: 0.9, weight_decay: 0.01, ..SgdOptions::default() },
        SgdOptions { lr: 0.1, momentum: 0.9, dampening: 0.3, ..SgdOptions::default() },
        SgdOptions { lr: 0.1, momentum: 0.9, nesterov: true, ..SgdOptions::default() },
    ];
    for o in options {
        let expected = reference(0.0, |p, g, buffer: &mut f64, k| {
            let g = g + o.weight_decay * p;
            *buffer = if k == 0 { g } else { o.momentum * *buffer + (1.0 - o.dampening) * g };
            let direction = match (o.momentum != 0.0, o.nesterov) {
                (false, _) => g,
                (true, false) => *buffer,
                (true, true) => g + o.momentum * *buffer,
            };
            p - o.lr * direction
        });
        let mut params = tree(PARAMS);
        let mut opt = Sgd::new(&params, o.clone()).unwrap();
        for (k, expected) in expected.iter().enumerate() {
            (params, opt) = opt.update(&params, &grads(k)).unwrap();
            close(&flat(&params), expected, 1e-14);
        }
        assert_eq!(opt.step.item::<i64>().unwrap(), 4);
    }
}

fn adam(lr: f64, decay: f64, decoupled: bool) -> Vec<Vec<f64>> {
    reference((0.0, 0.0), |mut p, mut g, (m, v): &mut (f64, f64), k| {
        if decoupled {
            p *= 1.0 - lr * decay;
        } else {
            g += decay * p;
        }
        *m = 0.9 * *m + 0.1 * g;
        *v = 0.999 * *v + 0.001 * g * g;
        let (a, b) = (1.0 - 0.9f64.powi(k + 1), 1.0 - 0.999f64.powi(k + 1));
        p - lr / a * *m / (v.sqrt() / b.sqrt() + 1e-8)
    })
}

#[test]
fn adam_and_adamw_are_torchs() {
    let mut params = tree(PARAMS);
    let mut opt =
        Adam::new(&params, AdamOptions { lr: 0.01, weight_decay: 0.1, ..Default::default() })
            .unwrap();
    for (k, expected) in adam(0.01, 0.1, false).iter().enumerate() {
        (params, opt) = opt.update(&params, &grads(k)).unwrap();
        close(&flat(&params), expected, 1e-12);
    }
    let mut params = tree(PARAMS);
    let mut opt =
        AdamW::new(&params, AdamWOptions { lr: 0.01, weight_decay: 0.1, ..Default::default() })
            .unwrap();
    for (k, expected) in adam(0.01, 0.1, true).iter().enumerate() {
        (params, opt) = opt.update(&params, &grads(k)).unwrap();
        close(&flat(&params), expected, 1e-12);
    }
    // The first step without decay, by hand: lr times the sign, but for eps.
    let params = tree(PARAMS);
    let opt =
        AdamW::new(&params, AdamWOptions { weight_decay: 0.0, ..Default::default() }).unwrap();
    let (params, _) = opt.update(&params, &grads(0)).unwrap();
    close(&flat(&params), &[1.0 - 1e-3, -2.0 + 1e-3, 0.5 - 1e-3], 1e-9);
}

#[test]
fn f32_steps_keep_their_digits() {
    let p = Tensor::from_slice(&[1f32], [1]).unwrap();
    let opt =
        AdamW::new(&p, AdamWOptions { lr: 0.01, weight_decay: 0.0, ..Default::default() }).unwrap();
    let (p, _) = opt.update(&p, &p).unwrap();
    assert!((f64::from(p.item::<f32>().unwrap()) - 0.99).abs() < 1e-7);
}

#[test]
fn a_sweep_of_rates_compiles_once() {
    type State = (Params, AdamW<Params>, Params);
    let step = jit(|(p, opt, g): State| opt.update(&p, &g)).donate([0, 1]);
    for lr in [0.1, 0.01, 0.001] {
        let mut params = tree(PARAMS);
        let options = AdamWOptions { weight_decay: 0.1, ..Default::default() };
        let mut opt = AdamW::new(&params, options).unwrap();
        for (k, expected) in adam(lr, 0.1, true).iter().enumerate() {
            (params, opt) = step.call((params, opt.with_lr(lr), grads(k))).unwrap();
            close(&flat(&params), expected, 1e-12);
        }
    }
    assert_eq!(step.compiled(), 1);
}

#[test]
fn other_options_are_another_program() {
    let params = tree(PARAMS);
    let step = jit(|(p, opt): (Params, Sgd<Params>)| Ok(opt.update(&p, &p)?.0));
    let run = |momentum| {
        let opt =
            Sgd::new(&params, SgdOptions { lr: 0.5, momentum, ..Default::default() }).unwrap();
        step.call((params.clone(), opt)).unwrap()
    };
    close(&flat(&run(0.5)), &[0.5, -1.0, 0.25], 1e-15);
    run(0.25);
    assert_eq!(step.compiled(), 2);
}

#[test]
fn gradients_are_clipped_together() {
    let norm = GRADS.iter().map(|g| g * g).sum::<f64>().sqrt();
    let (clipped, got) = clip_grad_norm(&grads(0), 1.0).unwrap();
    close(&[got.item::<f64>().unwrap()], &[norm], 1e-15);
    close(&flat(&clipped), &GRADS.map(|g| g / (norm + 1e-6)), 1e-15);
    let (whole, _) = clip_grad_norm(&grads(0), 100.0).unwrap();
    assert_eq!(flat(&whole), GRADS);
    close(&[grad_norm(&grads(1)).unwrap().item::<f64>().unwrap()], &[2.0 * norm], 1e-15);
}

#[test]
fn schedules_rise_and_fall() {
    let cosine = Schedule::cosine(2.0, 0.2, 4, 12);
    let rates: Vec<f64> = [0, 3, 4, 8, 12, 50].into_iter().map(|k| cosine.at(k)).collect();
    close(&rates, &[0.5, 2.0, 2.0, 1.1, 0.2, 0.2], 1e-15);
    let linear = Schedule::linear(1.0, 2, 6);
    let rates: Vec<f64> = [0, 1, 2, 4, 6, 9].into_iter().map(|k| linear.at(k)).collect();
    close(&rates, &[0.5, 1.0, 1.0, 0.5, 0.0, 0.0], 1e-15);
    let steps = Schedule::Step { lr: 1.0, gamma: 0.1, every: 3 };
    close(&[steps.at(2), steps.at(3), steps.at(6)], &[1.0, 0.1, 0.01], 1e-15);
    assert_eq!(Schedule::constant(0.3).at(7), 0.3);
}

#[test]
fn gradients_of_another_shape_are_refused() {
    let params = tree(PARAMS);
    let opt = AdamW::new(&params, AdamWOptions::default()).unwrap();
    let mut grads = grads(0);
    grads.1[0] = Tensor::zeros([3], DType::F64).unwrap();
    let error = opt.update(&params, &grads).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape);
    assert_eq!(error.text(), "the gradient of `[1][0]` is f64[3], but the parameter is f64[]");
    grads.1.clear();
    assert_eq!(*opt.update(&params, &grads).unwrap_err().kind(), ErrorKind::Tree);
}
