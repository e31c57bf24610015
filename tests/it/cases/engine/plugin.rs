//! Host = PJRT: each row on each of the CPU plugins that the tests know, by the public client.

use super::case::{Case, with_device};
use super::run::{function, say, tensors};
use super::{compare, each};
use oxbridge::array::Array;
use oxbridge::backend::host::HostArray;
use oxbridge::{Client, ClientOptions, Device, Result, Scalar, Shape, Tensor, Value, jit};

fn device(name: &str, install: &str) -> Device {
    let options = ClientOptions { plugin: Some(name.into()), ..ClientOptions::default() };
    let client = Client::open(&options);
    let help = format!("no PJRT plugin `{name}`: run `oxbridge plugin install {install}`");
    client.expect(&help).device(0).unwrap()
}

fn run(device: &Device, case: &Case, data: &[HostArray]) -> Result<Vec<HostArray>> {
    let place = |x: &HostArray| Ok(Value::Array(Array::upload(x, device, true)?));
    let mut values = data.iter().map(place).collect::<Result<Vec<_>>>()?;
    // The last operand is not read: it says where a row without operands runs.
    values.push(place(&HostArray::full(Scalar::new(0f32), &Shape::scalar()))?);
    let f = function(case);
    let program = jit(move |xs: &Vec<Tensor>| f(&xs[..xs.len() - 1].to_vec())).named(case.prim);
    let outs = program.call(tensors(values))?;
    outs.iter().map(|out| out.value()?.array("read")?.to_host()).collect()
}

/// Where a plugin is known to differ from StableHLO: the plugin, and the row. A row that no longer
/// differs fails, so that this list stays true.
const KNOWN: &[(&str, &str)] = &[
    // An infinite number by the largest finite one is NaN: the reciprocal is flushed to zero.
    ("cpu-lammps", "div(f32[13], f32[13]) all pairs of edges"),
];

fn host_is(name: &str, install: &str) {
    let device = device(name, install);
    each(name, |case| {
        let data = case.data(0);
        let want = case.run(&data).map_err(say)?;
        let got = with_device(&device, || run(&device, case, &data)).map_err(say)?;
        let differs = compare::all(&got, &want, case.tol);
        match KNOWN.contains(&(name, case.id().as_str())) {
            false => differs.map(|()| true),
            true if differs.is_err() => Ok(false),
            true => Err("is the host's now: take it off the list of known differences".into()),
        }
    });
}

#[test]
fn host_is_pjrt() {
    host_is("cpu", "cpu");
}

#[test]
fn host_is_pjrt_fastatomstruct() {
    host_is("cpu-fastatomstruct", "all-cpu");
}

#[test]
fn host_is_pjrt_lammps() {
    host_is("cpu-lammps", "all-cpu");
}
