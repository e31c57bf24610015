//! Programs over a mesh of eight CPU devices, beside the same programs on one.

use oxbridge::prelude::*;
use std::sync::LazyLock;

pub(crate) static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let client = Client::cpu(8).expect("needs the CPU plugin: `oxbridge plugin install cpu`");
    client.devices()
});

fn mesh() -> Mesh {
    Mesh::new(&DEVICES, [("data", 4), ("model", 2)]).unwrap()
}

fn ramp(shape: &[usize], scale: f32) -> Tensor {
    let n: usize = shape.iter().product();
    let data: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 / 101.0 - 0.5) * scale).collect();
    Tensor::from_slice(&data, shape).unwrap()
}

type Params = (Tensor, Tensor, Tensor, Tensor);
type Batch = (Tensor, Tensor);

fn params() -> Params {
    (ramp(&[16, 32], 0.5), ramp(&[32], 0.1), ramp(&[32, 8], 0.5), ramp(&[8], 0.1))
}

fn batch() -> Batch {
    (ramp(&[8, 16], 2.0), ramp(&[8, 8], 1.0))
}

fn sharded() -> (Params, Batch) {
    let (m, (w1, b1, w2, b2), (x, y)) = (mesh(), params(), batch());
    let params = (
        w1.shard(&m, spec![None, "model"]).unwrap(),
        b1.shard(&m, spec!["model"]).unwrap(),
        w2.shard(&m, spec!["model", None]).unwrap(),
        b2.shard(&m, spec![]).unwrap(),
    );
    (params, (x.shard(&m, spec!["data"]).unwrap(), y.shard(&m, spec!["data"]).unwrap()))
}

fn loss((w1, b1, w2, b2): &Params, (x, y): &Batch) -> Result<Tensor> {
    let hidden = (x.matmul(w1)? + b1).tanh()?;
    (hidden.matmul(w2)? + b2 - y).square()?.mean()
}

fn update(params: &Params, grads: &Params) -> Params {
    let lr = 0.3;
    (
        &params.0 - &grads.0 * lr,
        &params.1 - &grads.1 * lr,
        &params.2 - &grads.2 * lr,
        &params.3 - &grads.3 * lr,
    )
}

/// The losses of some steps of a step function.
fn train(
    steps: usize,
    (mut params, batch): (Params, Batch),
    step: impl Fn(&Params, &Batch) -> Result<(Tensor, Params)>,
) -> Vec<f32> {
    let mut losses = Vec::new();
    for _ in 0..steps {
        let (loss, new) = step(&params, &batch).unwrap();
        losses.push(loss.item::<f32>().unwrap());
        params = new;
    }
    losses
}

fn assert_close(what: &str, one: &[f32], many: &[f32]) {
    assert!(one[one.len() - 1] < one[0], "{what}: the loss does not fall: {one:?}");
    for (a, b) in one.iter().zip(many) {
        assert!((a - b).abs() <= 1e-4 * a.abs(), "{what}: {one:?} is not {many:?}");
    }
}

fn eager_step(params: &Params, batch: &Batch) -> Result<(Tensor, Params)> {
    let (value, grads) = value_and_grad(|p: &Params| loss(p, batch))(params)?;
    Ok((value, update(params, &grads)))
}

#[test]
fn one_device_and_a_mesh_give_the_same_losses() {
    let one = train(20, (params(), batch()), eager_step);
    assert_close("eager", &one[..3], &train(3, sharded(), eager_step));

    let step = jit(|(p, b): &(Params, Batch)| eager_step(p, b)).out_like([None, Some(0)]);
    let jitted = |p: &Params, b: &Batch| step.call((p, b));
    assert_close("jit of grad, one device", &one, &train(20, (params(), batch()), jitted));
    assert_close("jit of grad, mesh", &one, &train(20, sharded(), jitted));
    assert_eq!(step.compiled(), 2, "one program for one device, one for the mesh");

    let inner = jit(|(p, b): &(Params, Batch)| loss(p, b));
    let outer = |p: &Params, b: &Batch| {
        let (value, grads) = value_and_grad(|p: &Params| inner.call((p, b)))(p)?;
        Ok((value, update(p, &grads)))
    };
    assert_close("grad of jit, one device", &one, &train(20, (params(), batch()), outer));
    assert_close("grad of jit, mesh", &one, &train(20, sharded(), outer));
}

#[test]
fn computation_follows_the_data() {
    let m = mesh();
    let x = ramp(&[8, 16], 1.0).shard(&m, spec!["data", None]).unwrap();
    let w = ramp(&[16, 4], 1.0).shard(&m, spec![None, "model"]).unwrap();
    let y = x.matmul(&w).unwrap();
    assert_eq!(y.value().unwrap().aval().to_string(), "f32[8@data,4@model]");
    let plain = ramp(&[8, 16], 1.0).matmul(&ramp(&[16, 4], 1.0)).unwrap();
    let (a, b) = (y.to_vec::<f32>().unwrap(), plain.to_vec::<f32>().unwrap());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?} is not {b:?}");
    // A number and an uncommitted tensor go where the data are.
    let z = (&y * 2.0 + ramp(&[4], 1.0)).sum().unwrap();
    assert_eq!(z.value().unwrap().aval().sharding().unwrap().mesh(), &m);
    let picture = x.visualize_sharding().unwrap();
    assert!(picture.contains("cpu 0,1") && picture.contains("cpu 6,7"), "{picture}");
}

#[test]
fn constraints_and_shardings_of_jit() {
    let m = mesh();
    let rows = NamedSharding::new(&m, spec!["data"]).unwrap();
    let inside = rows.clone();
    let f = jit(move |x: &Tensor| x.mul(x)?.with_sharding_constraint(&inside)?.sin());
    let y = f.call(ramp(&[8, 4], 1.0)).unwrap();
    let lowered = f.lower(ramp(&[8, 4], 1.0)).unwrap().stablehlo();
    assert!(lowered.contains("sdy.sharding_constraint"), "{lowered}");
    assert_eq!(y.sharding().unwrap().unwrap().mesh(), &m);
    let columns = NamedSharding::new(&m, spec![None, "model"]).unwrap();
    let g =
        jit(|x: &Tensor| x.cos()).in_shardings([Some(rows)]).out_shardings([Some(columns.clone())]);
    let y = g.call(ramp(&[8, 4], 1.0)).unwrap();
    assert_eq!(y.sharding().unwrap().unwrap(), columns);
    let grads = grad(|x: &Tensor| g.call(x)?.sum())(&ramp(&[8, 4], 1.0)).unwrap();
    let expected = (-ramp(&[8, 4], 1.0).sin().unwrap()).to_vec::<f32>().unwrap();
    let got = grads.to_vec::<f32>().unwrap();
    assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}");
}

#[test]
fn operands_on_two_places_are_refused() {
    let x = ramp(&[4], 1.0).to_device(&DEVICES[1]).unwrap();
    let y = ramp(&[4], 1.0).to_device(&DEVICES[2]).unwrap();
    let error = x.add(&y).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Device);
    assert!(error.to_string().contains("cpu:1") && error.to_string().contains("cpu:2"), "{error}");
    let z = ramp(&[4], 1.0).shard(&mesh(), spec!["data"]).unwrap();
    assert_eq!(*x.add(&z).unwrap_err().kind(), ErrorKind::Device);
}

#[test]
fn donation_on_a_mesh_gives_the_buffers_away() {
    let m = mesh();
    let step = jit(|(w, g): &(Tensor, Tensor)| w.sub(g)).donate([0]).out_like([Some(0)]);
    let w = ramp(&[8, 4], 1.0).shard(&m, spec!["data"]).unwrap();
    let g = ramp(&[8, 4], 0.5).shard(&m, spec!["data"]).unwrap();
    let new = step.call((&w, &g)).unwrap();
    assert_eq!(*w.sin().unwrap_err().kind(), ErrorKind::Donated);
    assert_eq!(new.sharding().unwrap(), g.sharding().unwrap());
}
