//! Derivatives and batches of 40 functions against those that JAX recorded:
//! `tests/data/goldens/jax_transforms`, or the directory that `OXBRIDGE_GOLDENS` names.
//!
//! Every recorded quantity is checked at once and under `jit`, on the host backend and on the CPU
//! plugin.

mod functions;

use functions::{Consts, Function};
use oxbridge::backend::host::HostArray;
use oxbridge::prelude::*;
use oxbridge::{Array, Value};
use safetensors::SafeTensors;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The tolerances of the recorded data's description: relative to the number, and absolute.
const TOLERANCE: f64 = 1e-5;
const OF_HESSIANS: f64 = 1e-4;

fn folder() -> PathBuf {
    let base = std::env::var_os("OXBRIDGE_GOLDENS").map(PathBuf::from);
    let ours = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens");
    base.unwrap_or_else(ours).join("jax_transforms")
}

/// The recorded tensors, and the device that they are put on.
struct Data<'d> {
    tensors: &'d SafeTensors<'d>,
    device: &'d Device,
}

impl Data<'_> {
    fn array(&self, name: &Json) -> HostArray {
        let view = self.tensors.tensor(name.as_str().unwrap()).unwrap();
        let short = format!("{:?}", view.dtype()).to_lowercase();
        let dtype = DType::ALL.into_iter().find(|d| d.to_string() == short).unwrap();
        HostArray::from_bytes(dtype, &Shape::new(view.shape()), view.data()).unwrap()
    }

    fn tensor(&self, name: &Json) -> Tensor {
        let array = Array::upload(self.array(name), self.device, true).unwrap();
        Tensor::from_value(Value::Array(array))
    }

    fn list(&self, names: &Json) -> Vec<Tensor> {
        names.as_array().unwrap().iter().map(|name| self.tensor(name)).collect()
    }
}

/// One case on one device, at once or under `jit`.
struct Run<'r> {
    case: &'r Json,
    data: &'r Data<'r>,
    f: Function,
    inputs: Vec<Tensor>,
    consts: Consts,
    jit: bool,
    /// What differs: the quantity, and how.
    failures: Vec<(String, String)>,
}

impl<'r> Run<'r> {
    fn new(case: &'r Json, data: &'r Data<'r>, jit: bool) -> Result<Run<'r>> {
        let f = functions::find(case["name"].as_str().unwrap())?;
        let consts = case["consts"].as_object().unwrap();
        let consts = consts.iter().map(|(k, name)| (k.clone(), data.tensor(name))).collect();
        let inputs = data.list(&case["inputs"]);
        Ok(Run { case, data, f, inputs, consts, jit, failures: Vec::new() })
    }

    /// The recorded names of a quantity, if it is recorded.
    fn recorded(&self, path: &[&str]) -> Option<&'r Json> {
        let found = path.iter().try_fold(self.case, |json, key| json.get(key));
        found.filter(|json| !json.is_null())
    }

    /// `f` of `args`, in the way that this run asks for.
    fn call<B: Tree>(
        &self,
        f: impl Fn(&Vec<Tensor>) -> Result<B>,
        args: &Vec<Tensor>,
    ) -> Result<B> {
        if self.jit { jit(f).call(args) } else { catch(|| f(args)) }
    }

    /// Checks what `f` gives for `args` against the tensors of the names given.
    fn check(
        &mut self,
        what: &str,
        names: &[&Json],
        tolerance: f64,
        args: &Vec<Tensor>,
        f: impl Fn(&Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) {
        let got = match self.call(f, args) {
            Ok(got) => got,
            Err(error) => return self.failures.push((what.into(), error.to_string())),
        };
        assert_eq!(got.len(), names.len(), "number of results of {what}");
        for (i, (got, name)) in got.iter().zip(names).enumerate() {
            let got = got.value().and_then(|v| v.array("read")?.to_host());
            let outcome = got.map_err(|e| e.to_string());
            let outcome = outcome.and_then(|got| near(&got, &self.data.array(name), tolerance));
            if let Err(why) = outcome {
                self.failures.push((format!("{what} {i}"), why));
            }
        }
    }

    fn all(mut self) -> Vec<(String, String)> {
        let (f, consts, inputs) = (self.f, self.consts.clone(), self.inputs.clone());
        let value = |x: &Vec<Tensor>| f(x, &consts);
        if let Some(name) = self.recorded(&["value"]) {
            self.check("value", &[name], TOLERANCE, &inputs, |x| Ok(vec![value(x)?]));
        }
        // The gradient of a vector is that of its product with a recorded cotangent.
        let cotangent = self.recorded(&["cotangent"]).map(|name| self.data.tensor(name));
        let gradient = |x: &Vec<Tensor>| match &cotangent {
            None => grad(value)(x),
            Some(ct) => vjp(value, x)?.1(ct),
        };
        if let Some(names) = self.recorded(&["grad"]) {
            self.check("grad", &list(names), TOLERANCE, &inputs, gradient);
        }
        if let Some(names) = self.recorded(&["vmap_grad", "grads"]) {
            let batch = self.data.list(&self.case["vmap_grad"]["inputs"]);
            self.check("vmap_grad", &list(names), TOLERANCE, &batch, vmap(gradient));
        }
        if let Some(name) = self.recorded(&["vmap_value", "output"]) {
            let batch = self.data.list(&self.case["vmap_value"]["inputs"]);
            self.check("vmap_value", &[name], TOLERANCE, &batch, |x| Ok(vec![vmap(value)(x)?]));
        }
        let tangents = self.recorded(&["jvp", "tangents"]).map(|names| self.data.list(names));
        if let (Some(name), Some(ts)) = (self.recorded(&["jvp", "out_tangent"]), &tangents) {
            self.check("jvp", &[name], TOLERANCE, &both(&inputs, ts), |x| {
                let (x, ts) = x.split_at(x.len() / 2);
                Ok(vec![jvp(value, &x.to_vec(), &ts.to_vec())?.1])
            });
        }
        self.in_first(value, tangents);
        self.failures
    }

    /// What is recorded for the first input alone.
    fn in_first(
        &mut self,
        value: impl Fn(&Vec<Tensor>) -> Result<Tensor> + Copy,
        tangents: Option<Vec<Tensor>>,
    ) {
        let inputs = self.inputs.clone();
        let first = |x: &Vec<Tensor>| {
            let rest = x[1..].to_vec();
            move |x0: &Tensor| value(&[vec![x0.clone()], rest.clone()].concat())
        };
        if let Some(name) = self.recorded(&["jacfwd"]) {
            let f = |x: &Vec<Tensor>| Ok(vec![jacfwd(first(x))(&x[0])?]);
            self.check("jacfwd", &[name], TOLERANCE, &inputs, f);
        }
        if let Some(name) = self.recorded(&["jacrev"]) {
            let f = |x: &Vec<Tensor>| Ok(vec![jacrev(first(x))(&x[0])?]);
            self.check("jacrev", &[name], TOLERANCE, &inputs, f);
        }
        if let Some(name) = self.recorded(&["hessian"]) {
            let f = |x: &Vec<Tensor>| Ok(vec![hessian(first(x))(&x[0])?]);
            self.check("hessian", &[name], OF_HESSIANS, &inputs, f);
        }
        if let (Some(name), Some(ts)) = (self.recorded(&["hvp"]), tangents) {
            let args = [inputs, vec![ts[0].clone()]].concat();
            self.check("hvp", &[name], OF_HESSIANS, &args, |x| {
                let (v, x) = x.split_last().unwrap();
                Ok(vec![hvp(first(&x.to_vec()), &x[0], v)?])
            });
        }
    }
}

fn both(a: &[Tensor], b: &[Tensor]) -> Vec<Tensor> {
    [a, b].concat()
}

fn list(names: &Json) -> Vec<&Json> {
    names.as_array().unwrap().iter().collect()
}

/// Whether the numbers are those recorded: within `tolerance` of the number, and of 1.
fn near(got: &HostArray, want: &HostArray, tolerance: f64) -> std::result::Result<(), String> {
    if (got.dtype(), got.shape()) != (want.dtype(), want.shape()) {
        let name = |x: &HostArray| format!("{}{}", x.dtype(), x.shape());
        return Err(format!("is {}, not {}", name(got), name(want)));
    }
    let (got, want) = (got.to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
    let pairs = got.into_iter().zip(want).map(|(a, b)| (f64::from(a), f64::from(b)));
    let off = |(a, b): (f64, f64)| (a - b).abs() / (tolerance * (1.0 + b.abs()));
    // NaN equals NaN, and is far off from a number.
    let bad = |(a, b): (f64, f64)| {
        let off = off((a, b));
        a != b && !(a.is_nan() && b.is_nan()) && (off > 1.0 || off.is_nan())
    };
    let worst = pairs.enumerate().filter(|(_, pair)| bad(*pair));
    match worst.max_by(|(_, a), (_, b)| off(*a).total_cmp(&off(*b))) {
        None => Ok(()),
        Some((i, (a, b))) => Err(format!("element {i} is {a:e}, not {b:e}: off by {:e}", a - b)),
    }
}

#[test]
fn transforms_are_those_of_jax() {
    let index = std::fs::read(folder().join("transforms.json")).unwrap();
    let index: Json = serde_json::from_slice(&index).unwrap();
    let bytes = std::fs::read(folder().join(index["tensors"].as_str().unwrap())).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let cpu = Client::cpu(1).expect("needs the CPU plugin: `oxbridge plugin install cpu`");
    let backends = [("host", Client::host(1)), ("plugin", cpu)];
    let cases = index["cases"].as_array().unwrap();
    let mut failed = BTreeSet::new();
    for (backend, client) in &backends {
        let data = Data { tensors: &tensors, device: &client.device(0).unwrap() };
        for case in cases {
            let name = case["name"].as_str().unwrap();
            for (mode, jit) in [("eager", false), ("jit", true)] {
                let failures = match Run::new(case, &data, jit) {
                    Ok(run) => run.all(),
                    Err(error) => vec![("all".into(), error.to_string())],
                };
                for (quantity, why) in failures {
                    println!("{name}, {quantity}, {mode}, {backend}: {why}");
                    failed.insert(name);
                }
            }
        }
    }
    println!("transforms: {} of {} passed", cases.len() - failed.len(), cases.len());
    assert!(failed.is_empty(), "{failed:?} fail");
}
