//! Layers: torch's names, first values and numbers worked out by hand.

use crate::cases::engine::case::draws_alone;
use oxbridge::nn::*;
use oxbridge::prelude::*;
use oxbridge::tensor::conv::Conv;
use oxbridge::tensor::loss::CrossEntropy;
use oxbridge::transforms::tree::structure;

fn t(values: &[f64], shape: impl Into<Shape>) -> Tensor {
    Tensor::from_slice(values, shape).unwrap()
}

fn close(got: &Tensor, expected: &[f64]) {
    let values = got.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(values.len(), expected.len(), "{values:?}");
    for (a, b) in values.iter().zip(expected) {
        assert!((a - b).abs() < 1e-9 * (1.0 + b.abs()), "{values:?} is not {expected:?}");
    }
}

fn double() -> Init {
    Init::seed(3).dtype(DType::F64)
}

/// What a state dict says: names and shapes.
fn types(module: &impl Module) -> Vec<String> {
    module.state_dict().iter().map(|(name, t)| format!("{name} {}", t.aval())).collect()
}

#[test]
fn names_and_shapes_are_torchs() {
    let i = &mut Init::seed(0);
    assert_eq!(types(&Linear::new(3, 2, i).unwrap()), ["weight f32[2,3]", "bias f32[2]"]);
    assert_eq!(types(&Linear::without_bias(3, 2, i).unwrap()), ["weight f32[2,3]"]);
    assert_eq!(types(&Embedding::new(5, 2, i).unwrap()), ["weight f32[5,2]"]);
    assert_eq!(types(&LayerNorm::new([4], i).unwrap()), ["weight f32[4]", "bias f32[4]"]);
    assert_eq!(types(&RmsNorm::new([4], i).unwrap()), ["weight f32[4]"]);
    let norm = BatchNorm2d::new(3, i).unwrap();
    let expected = [
        "weight f32[3]",
        "bias f32[3]",
        "running_mean f32[3]",
        "running_var f32[3]",
        "num_batches_tracked i64[]",
    ];
    assert_eq!(types(&norm), expected);
    assert_eq!((norm.parameters().len(), norm.buffers().len()), (2, 3));
    let options = Conv { groups: 2, ..Conv::default() };
    let conv = Conv2d::new(4, 6, [3, 5], options, i).unwrap();
    assert_eq!(types(&conv), ["weight f32[6,2,3,5]", "bias f32[6]"]);
    let conv = Conv1d::new(4, 6, [3], Conv::default(), i).unwrap();
    assert_eq!(types(&conv.without_bias()), ["weight f32[6,4,3]"]);
    let expected = [
        "in_proj_weight f32[12,4]",
        "in_proj_bias f32[12]",
        "out_proj.weight f32[4,4]",
        "out_proj.bias f32[4]",
    ];
    assert_eq!(types(&MultiheadAttention::new(4, 2, i).unwrap()), expected);
}

#[test]
fn first_values_fill_torchs_ranges() {
    let i = &mut Init::seed(1);
    let range = |t: &Tensor| {
        let values = t.to_vec::<f32>().unwrap();
        values.iter().fold((0f32, 0f32), |(low, high), x| (low.min(*x), high.max(*x)))
    };
    // Uniform within 1/sqrt(fan_in): all inside, and the ends nearly reached.
    let conv = Conv2d::new(4, 64, [5, 5], Conv::default(), i).unwrap();
    let linear = Linear::new(100, 200, i).unwrap();
    for tensor in [&conv.weight, &linear.weight] {
        let (low, high) = range(tensor);
        assert!((-0.1..-0.0995).contains(&low) && (0.0995..0.1).contains(&high), "{low} {high}");
    }
    let weights = Embedding::new(400, 50, i).unwrap().weight;
    let (mean, std) = (weights.mean().unwrap(), weights.std().unwrap());
    assert!(mean.item::<f32>().unwrap().abs() < 0.03);
    assert!((std.item::<f32>().unwrap() - 1.0).abs() < 0.03);
    let again = Embedding::new(400, 50, &mut Init::seed(1)).unwrap().weight;
    assert!(!again.equal(&weights).unwrap(), "another draw of the same seed is another stream");
    let kaiming = i.kaiming_uniform([8, 75], 2f64.sqrt()).unwrap();
    let bound = (6f32 / 75.0).sqrt();
    let (low, high) = range(&kaiming);
    assert!(low >= -bound && high <= bound && high > 0.97 * bound);
}

#[test]
fn linear_embedding_and_norms_by_hand() {
    let mut linear = Linear::new(2, 2, &mut double()).unwrap();
    linear.weight = t(&[1.0, 2.0, 3.0, 4.0], [2, 2]);
    linear.bias = Some(t(&[10.0, 20.0], [2]));
    close(&linear.forward(&t(&[1.0, -1.0], [1, 2])).unwrap(), &[9.0, 19.0]);
    let table = Embedding { weight: t(&[0.0, 1.0, 2.0, 3.0], [2, 2]) };
    let ids = Tensor::from_slice(&[1i64, 0, 1], [3]).unwrap();
    close(&table.forward(&ids).unwrap(), &[2.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
    let slope = grad(|e: &Embedding| e.forward(&ids)?.sum())(&table).unwrap();
    close(&slope.weight, &[1.0, 1.0, 2.0, 2.0]);
    let mut norm = LayerNorm::new([2], &double()).unwrap();
    norm.weight = t(&[2.0, 3.0], [2]);
    norm.bias = Some(t(&[0.5, 0.0], [2]));
    let scale = 1.0 / (4.0f64 + 1e-5).sqrt();
    let y = norm.forward(&t(&[1.0, 5.0], [1, 2])).unwrap();
    close(&y, &[-2.0 * scale * 2.0 + 0.5, 2.0 * scale * 3.0]);
    let norm = RmsNorm::new([2], &double()).unwrap();
    let root = (12.5 + f64::EPSILON).sqrt();
    close(&norm.forward(&t(&[3.0, 4.0], [2])).unwrap(), &[3.0 / root, 4.0 / root]);
}

#[test]
fn batch_norm_keeps_running_statistics() {
    let x = t(&[1.0, 3.0, 5.0, 7.0, 10.0, 10.0, 20.0, 20.0], [2, 2, 1, 2]);
    // Channel 0 holds 1, 3, 10, 10 and channel 1 holds 5, 7, 20, 20.
    let (means, squares) = ([6.0, 13.0], [(25.0 + 9.0 + 32.0) / 4.0, (64.0 + 36.0 + 98.0) / 4.0]);
    let fresh = || BatchNorm2d::new(2, &double()).unwrap();
    let check = |norm: &BatchNorm2d, steps: i64| {
        let kept = 0.9f64.powi(steps as i32);
        let mean = means.map(|m| m * (1.0 - kept));
        let var = squares.map(|v: f64| kept + v * 4.0 / 3.0 * (1.0 - kept));
        close(norm.running_mean.tensor(), &mean);
        close(norm.running_var.tensor(), &var);
        assert_eq!(norm.num_batches_tracked.tensor().item::<i64>().unwrap(), steps);
    };
    let norm = fresh();
    let y = norm.forward(&x).unwrap();
    let at = |v: f64, c: usize| (v - means[c]) / (squares[c] + 1e-5).sqrt();
    let expected = [
        at(1.0, 0),
        at(3.0, 0),
        at(5.0, 1),
        at(7.0, 1),
        at(10.0, 0),
        at(10.0, 0),
        at(20.0, 1),
        at(20.0, 1),
    ];
    close(&y, &expected);
    check(&norm, 1);
    let step = jit(value_and_grad(|n: &BatchNorm2d| n.forward(&x)?.square()?.sum()));
    step.call(&norm).unwrap();
    step.call(&norm).unwrap();
    check(&norm, 3);
    assert_eq!(step.compiled(), 1);
    norm.eval();
    let before = norm.running_mean.tensor().to_vec::<f64>().unwrap();
    let y = norm.forward(&x).unwrap().to_vec::<f64>().unwrap();
    let var = norm.running_var.tensor().to_vec::<f64>().unwrap();
    assert!((y[0] - (1.0 - before[0]) / (var[0] + 1e-5).sqrt()).abs() < 1e-12);
    check(&norm, 3);
    let error = fresh().forward(&t(&[1.0, 2.0], [1, 2, 1, 1])).unwrap_err();
    assert!(error.text().contains("more than one value"), "{error}");
}

#[test]
fn pools_by_hand() {
    let values: Vec<f64> = (1..=9).map(f64::from).collect();
    let x = t(&values, [1, 1, 3, 3]);
    let max = MaxPool2d { stride: [1, 1], ..MaxPool2d::new(2) };
    close(&max.forward(&x).unwrap(), &[5.0, 6.0, 8.0, 9.0]);
    close(&MaxPool2d::new(2).forward(&x).unwrap(), &[5.0]);
    let slope = grad(|x: &Tensor| max.forward(x)?.sum())(&x).unwrap();
    close(&slope, &[0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
    let padded = MaxPool2d { padding: [1, 1], ..MaxPool2d::new(2) };
    close(&padded.forward(&x.neg().unwrap()).unwrap(), &[-1.0, -2.0, -4.0, -5.0]);
    let mean = AvgPool2d { padding: [1, 1], ..AvgPool2d::new(2) };
    close(&mean.forward(&x).unwrap(), &[0.25, 1.25, 2.75, 7.0]);
    let mean = AvgPool2d::new(3);
    close(&mean.forward(&t(&values, [1, 3, 3])).unwrap(), &[5.0]);
    close(&grad(|x: &Tensor| mean.forward(x)?.sum())(&x).unwrap(), &[1.0 / 9.0; 9]);
    for (pool, kind) in [
        (MaxPool2d { stride: [0, 1], ..MaxPool2d::new(2) }, ErrorKind::Value),
        (MaxPool2d { padding: [2, 0], ..MaxPool2d::new(2) }, ErrorKind::Value),
        (MaxPool2d::new(4), ErrorKind::Shape),
    ] {
        assert_eq!(*pool.forward(&x).unwrap_err().kind(), kind);
    }
}

#[test]
fn dropout_draws_anew_in_each_call() {
    let _alone = draws_alone();
    let layer = Dropout::new(0.5).unwrap();
    let x = Tensor::ones([256], DType::F32).unwrap();
    let step = jit(|layer: &Dropout| layer.forward(&x));
    let (a, b) = (step.call(&layer).unwrap(), step.call(&layer).unwrap());
    assert!(!a.equal(&b).unwrap());
    assert!(a.to_vec::<f32>().unwrap().iter().all(|x| *x == 0.0 || *x == 2.0));
    let slope = grad(|x: &Tensor| layer.forward(x)?.sum())(&x).unwrap().to_vec::<f32>().unwrap();
    assert!(slope.contains(&0.0) && slope.contains(&2.0));
    layer.eval();
    assert!(step.call(&layer).unwrap().equal(&x).unwrap());
    assert_eq!(step.compiled(), 2);
    assert_eq!(*Dropout::new(1.5).unwrap_err().kind(), ErrorKind::Value);
}

/// Attention of one head over `[t, d]`, in plain loops.
fn attention(q: &[Vec<f64>], k: &[Vec<f64>], v: &[Vec<f64>], causal: bool) -> Vec<Vec<f64>> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let row = |(i, q): (usize, &Vec<f64>)| {
        let seen = if causal { i + 1 } else { k.len() };
        let scores = k[..seen].iter().map(|k| (dot(q, k) / (q.len() as f64).sqrt()).exp());
        let scores: Vec<f64> = scores.collect();
        let sum: f64 = scores.iter().sum();
        (0..v[0].len()).map(|d| (0..seen).map(|j| scores[j] * v[j][d] / sum).sum()).collect()
    };
    q.iter().enumerate().map(row).collect()
}

#[test]
fn attention_is_what_loops_give() {
    let (width, heads, length) = (4, 2, 3);
    let layer = MultiheadAttention::new(width, heads, &mut double()).unwrap();
    let x = double().normal([1, length, width], 0.0, 1.0).unwrap();
    let values = |t: &Tensor| t.to_vec::<f64>().unwrap();
    let (weight, input) = (values(&layer.in_proj_weight), values(&x));
    let project = |part: usize, head: usize| -> Vec<Vec<f64>> {
        let row = |t: usize| {
            let entry = |d: usize| {
                let out = part * width + head * (width / heads) + d;
                (0..width).map(|i| weight[out * width + i] * input[t * width + i]).sum()
            };
            (0..width / heads).map(entry).collect()
        };
        (0..length).map(row).collect()
    };
    for causal in [false, true] {
        let layer = MultiheadAttention { causal, ..layer.clone() };
        let results: Vec<_> = (0..heads)
            .map(|h| attention(&project(0, h), &project(1, h), &project(2, h), causal))
            .collect();
        let merged: Vec<f64> =
            (0..length).flat_map(|t| results.iter().flat_map(move |r| r[t].clone())).collect();
        let expected = t(&merged, [1, length, width]).linear(&layer.out_proj.weight, None).unwrap();
        close(&layer.forward(&x).unwrap(), &values(&expected));
        close(&jit(|x: &Tensor| layer.forward(x)).call(&x).unwrap(), &values(&expected));
    }
    assert_eq!(*MultiheadAttention::new(4, 3, &mut double()).unwrap_err().kind(), ErrorKind::Value);
    let error = layer.forward(&t(&[0.0; 6], [1, 2, 3])).unwrap_err();
    assert_eq!(error.text(), "takes [n, t, 4], not f64[1,2,3]");
}

#[test]
fn a_sequence_of_layers_learns() {
    let _alone = draws_alone();
    let init = &mut Init::seed(5);
    let mut model = Sequential::new()
        .then(Conv2d::new(1, 4, [3, 3], Conv { padding: [1, 1], ..Conv::default() }, init).unwrap())
        .then(BatchNorm2d::new(4, init).unwrap())
        .then(ReLU)
        .then(MaxPool2d::new(2))
        .then(Flatten)
        .then(Dropout::new(0.1).unwrap())
        .then(Linear::new(16, 2, init).unwrap());
    let names: Vec<String> = model.named_parameters().into_iter().map(|n| n.0).collect();
    assert_eq!(names, ["0.weight", "0.bias", "1.weight", "1.bias", "6.weight", "6.bias"]);
    let x = init.normal([8, 1, 4, 4], 0.0, 1.0).unwrap();
    let targets = Tensor::from_slice(&[0i64, 1, 0, 1, 0, 1, 0, 1], [8]).unwrap();
    let loss = |m: &Sequential| m.forward(&x)?.cross_entropy(&targets, CrossEntropy::default());
    let step = jit(|model: &Sequential| {
        let (value, slope) = value_and_grad(loss)(model)?;
        let next =
            oxbridge::transforms::tree::tree_map2(model, &slope, |p, g| p.sub(&g.mul(0.2)?))?;
        Ok((value, next))
    });
    let mut losses = Vec::new();
    for _ in 0..30 {
        let (value, next) = step.call(&model).unwrap();
        losses.push(value.item::<f32>().unwrap());
        model = next;
    }
    assert!(losses[29] < 0.5 * losses[0], "{losses:?}");
    assert_eq!(step.compiled(), 1);
    let before = structure(&model);
    model.eval();
    assert_ne!(structure(&model), before);
    let (a, b) = (model.forward(&x).unwrap(), model.forward(&x).unwrap());
    assert!(a.equal(&b).unwrap(), "evaluation draws nothing");
    let (relu, gelu) = (Sequential::new().then(ReLU), Sequential::new().then(GELU));
    assert_ne!(structure(&relu), structure(&gelu));
}
