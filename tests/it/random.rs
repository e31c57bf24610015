//! Random numbers against those that JAX recorded: `tests/data/goldens/jax_rng`, or the directory
//! that `OXBRIDGE_GOLDENS` names.

use oxbridge::backend::host::{HostArray, convert};
use oxbridge::ops::{self, distributions as draw, rng};
use oxbridge::prelude::*;
use oxbridge::trace::Value;
use oxbridge::{Array, Scalar};
use safetensors::SafeTensors;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::PathBuf;

fn folder() -> PathBuf {
    let base = std::env::var_os("OXBRIDGE_GOLDENS").map(PathBuf::from);
    let ours = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens");
    base.unwrap_or_else(ours).join("jax_rng")
}

fn value(x: &HostArray) -> Value {
    Value::Array(Array::upload(x, &Device::default().unwrap(), false).unwrap())
}

fn host(x: &Value) -> HostArray {
    x.array("test").unwrap().to_host().unwrap()
}

fn number(dtype: DType, x: f64) -> Value {
    Value::scalar(Scalar::from_f64(dtype, x))
}

/// What a case asks for.
struct Case<'j> {
    key: Option<Value>,
    params: &'j Json,
    /// The recorded result's dtype.
    out: DType,
    x64: bool,
    original: bool,
}

impl Case<'_> {
    fn key(&self) -> Result<&Value> {
        self.key.as_ref().ok_or_else(|| Error::new(ErrorKind::Format, "case", "no key"))
    }

    fn shape(&self) -> Shape {
        let shape = self.params["shape"].as_array().unwrap();
        shape.iter().map(|d| d.as_u64().unwrap() as usize).collect()
    }

    fn dtype(&self) -> DType {
        let name = self.params["dtype"].as_str().unwrap();
        DType::ALL.into_iter().find(|d| long_name(*d) == name).unwrap()
    }

    /// The dtype of floats where none is named.
    fn float(&self) -> DType {
        if self.x64 { DType::F64 } else { DType::F32 }
    }

    fn number(&self, name: &str, dtype: DType) -> Value {
        number(dtype, self.params[name].as_f64().unwrap())
    }

    fn split(&self, key: &Value, n: usize) -> Result<Value> {
        if self.original { rng::split_original(key, n) } else { rng::split(key, n) }
    }

    fn bits(&self, width: usize) -> Result<Value> {
        if self.original {
            rng::random_bits_original(self.key()?, width, &self.shape())
        } else {
            rng::random_bits(self.key()?, width, &self.shape())
        }
    }
}

fn long_name(dtype: DType) -> String {
    let short = dtype.to_string();
    match short.as_str() {
        "bf16" => "bfloat16".into(),
        "bool" => short,
        _ => short
            .replace('f', "float")
            .replace('u', "uint")
            .replace('i', "int")
            .replace("uintnt", "uint"),
    }
}

fn fold(key: &Value, data: u32) -> Result<Value> {
    rng::fold_in(key, &Value::scalar(Scalar::new(data)))
}

/// `arange(12, float32).reshape(4,3)`.
fn table() -> Result<Value> {
    ops::reshape(&ops::iota(DType::F32, &[12].into(), 0)?, &[4, 3].into())
}

fn run(name: &str, case: &Case<'_>) -> Result<Value> {
    let axis = || case.params["axis"].as_i64().unwrap();
    match name {
        "key" => {
            let seed: i64 = case.params["seed"].as_str().unwrap().parse().unwrap();
            // Without 64-bit integers a seed is one word.
            rng::key_from_seed(if case.x64 { seed as u64 } else { u64::from(seed as u32) })
        }
        "threefry_2x32" => {
            let count = case.params["count"].as_array().unwrap();
            let count: Vec<u32> = count.iter().map(|c| c.as_u64().unwrap() as u32).collect();
            let (half, shape) = (count.len() / 2, Shape::new(&[count.len() / 2]));
            let words = |w: &[u32]| value(&HostArray::from_slice(w, &shape).unwrap());
            let key = |i| ops::broadcast_in_dim(&ops::index_axis(case.key()?, 0, i)?, &shape, &[]);
            let (x, y) = (words(&count[..half]), words(&count[half..]));
            let (x, y) = rng::threefry2x32(&key(0)?, &key(1)?, &x, &y)?;
            ops::concatenate(&[x, y], 0)
        }
        "split" => match &case.params["num"] {
            Json::Array(dims) => {
                let shape: Shape = dims.iter().map(|d| d.as_u64().unwrap() as usize).collect();
                rng::split_shape(case.key()?, &shape)
            }
            n => case.split(case.key()?, n.as_u64().unwrap() as usize),
        },
        "fold_in" => fold(case.key()?, case.params["data"].as_u64().unwrap() as u32),
        "fold_in_chain" => {
            let second = ops::index_axis(&case.split(case.key()?, 2)?, 0, 1)?;
            fold(&fold(&second, 3)?, 5)
        }
        "normal_vmap_keys" => {
            let keys = Tensor::from_value(rng::split(case.key()?, 4)?);
            let one = |key: &Tensor| {
                Ok(Tensor::from_value(draw::normal(&key.value()?, &[3].into(), case.float())?))
            };
            vmap(one)(&keys)?.value()
        }
        "permutation_array" => draw::permute_parts(case.key()?, &table()?, axis() as usize),
        "permutation_independent" => draw::shuffle(case.key()?, &table()?, axis() as usize),
        "permutation" => {
            let n = case.params["x"].as_u64().unwrap() as usize;
            if case.original {
                // One round of sorting is enough for so few.
                let key = ops::index_axis(&case.split(case.key()?, 2)?, 0, 1)?;
                let order = rng::random_bits_original(&key, 32, &[n].into())?;
                let all = ops::iota(DType::I32, &[n].into(), 0)?;
                return Ok(ops::sort(&[order, all], 0, 1, false)?.swap_remove(1));
            }
            draw::permutation(case.key()?, n)
        }
        "categorical" => {
            let at = ops::reshape(&ops::iota(DType::F32, &[15].into(), 0)?, &[3, 5].into())?;
            let logits = ops::rem(&at, &ops::full_like(&at, 4.0)?)?;
            let logits = ops::mul(&logits, &ops::full_like(&at, 0.5)?)?;
            let axis = axis().rem_euclid(2) as usize;
            let draws = match &case.params["shape"] {
                Json::Null => Shape::scalar(),
                _ => Shape::new(&case.shape()[..case.shape().rank() - 1]),
            };
            draw::categorical(case.key()?, &logits, axis, &draws)
        }
        "choice" => choice(case),
        _ => numbers(name, case),
    }
}

fn choice(case: &Case<'_>) -> Result<Value> {
    let n = case.params["a"].as_u64().unwrap() as usize;
    if let Some(p) = case.params["p"].as_array() {
        let p: Vec<f64> = p.iter().map(|p| p.as_f64().unwrap()).collect();
        let p = value(&HostArray::from_slice(&p, &[p.len()].into()).unwrap());
        return draw::choice(case.key()?, &case.shape(), &ops::convert(&p, DType::F32)?);
    }
    if case.params["replace"].as_bool().unwrap() {
        let dtype = if case.x64 { DType::I64 } else { DType::I32 };
        return draw::randint(case.key()?, &case.shape(), dtype, 0, n as i128);
    }
    let all = draw::permutation(case.key()?, n)?;
    ops::reshape(&ops::slice_axis(&all, 0, 0, case.shape().size())?, &case.shape())
}

fn numbers(name: &str, case: &Case<'_>) -> Result<Value> {
    let (key, shape) = (case.key()?, case.shape());
    if name == "bernoulli" {
        return draw::bernoulli(key, &shape, &case.number("p", case.float()));
    }
    let dtype = case.dtype();
    match name {
        "bits" => case.bits(dtype.size() * 8),
        "uniform" => {
            let (low, high) = (case.number("minval", dtype), case.number("maxval", dtype));
            if case.original {
                let bits = case.bits(draw::uniform_bits(dtype))?;
                return draw::uniform_of_bits(&bits, dtype, &low, &high);
            }
            draw::uniform(key, &shape, dtype, &low, &high)
        }
        "normal" if case.original => {
            draw::normal_of_bits(&case.bits(draw::uniform_bits(dtype))?, dtype)
        }
        "normal" => draw::normal(key, &shape, dtype),
        "truncated_normal" => {
            // Some cases name f32 but were drawn, and recorded, in the default dtype.
            let dtype = case.out;
            let (low, high) = (case.number("lower", dtype), case.number("upper", dtype));
            draw::truncated_normal(key, &shape, dtype, &low, &high)
        }
        "randint" => {
            let end = |name: &str| i128::from(case.params[name].as_i64().unwrap());
            if case.original {
                let keys = rng::split_original(key, 2)?;
                let bits =
                    |i| rng::random_bits_original(&ops::index_axis(&keys, 0, i)?, 32, &shape);
                let bits = (&bits(0)?, &bits(1)?);
                return draw::randint_of_bits(bits, dtype, end("minval"), end("maxval"));
            }
            draw::randint(key, &shape, dtype, end("minval"), end("maxval"))
        }
        "exponential" => draw::exponential(key, &shape, dtype),
        "gumbel" => draw::gumbel(key, &shape, dtype),
        "laplace" => draw::laplace(key, &shape, dtype),
        "logistic" => draw::logistic_numbers(key, &shape, dtype),
        "cauchy" => draw::cauchy(key, &shape, dtype),
        // With 64-bit floats it is made from those.
        "rademacher" if case.x64 => {
            let up = draw::bernoulli(key, &shape, &number(DType::F64, 0.5))?;
            let up = ops::convert(&up, dtype)?;
            ops::sub(&ops::add(&up, &up)?, &ops::full_like(&up, 1.0)?)
        }
        "rademacher" => draw::rademacher(key, &shape, dtype),
        _ => Err(Error::new(ErrorKind::NoRule, "random", format!("there is no `{name}`"))),
    }
}

/// Whether the numbers are those recorded: exactly, or to a few units in the last place.
fn agrees(name: &str, got: &HostArray, expected: &HostArray) -> std::result::Result<(), String> {
    if got.shape() != expected.shape() {
        return Err(format!("shape {} is not {}", got.shape(), expected.shape()));
    }
    let near =
        ["normal", "gumbel", "truncated_normal", "exponential", "laplace", "logistic", "cauchy"];
    let relative = match expected.dtype() {
        _ if !near.iter().any(|n| name.starts_with(n)) => 0.0,
        DType::BF16 => 2f64.powi(-7),
        DType::F16 => 2f64.powi(-10),
        DType::F64 => 1e-12,
        _ => 2e-6,
    };
    let wide = |x: &HostArray| convert::convert(x, DType::F64).to_vec::<f64>().unwrap();
    for (i, (a, b)) in wide(got).into_iter().zip(wide(expected)).enumerate() {
        let slack = relative * b.abs() + if relative > 0.0 { relative * 1e-1 } else { 0.0 };
        if a != b && (a - b).abs() > slack {
            return Err(format!("element {i} is {a:e}, not {b:e}"));
        }
    }
    Ok(())
}

fn array(tensors: &SafeTensors<'_>, name: &str) -> HostArray {
    let view = tensors.tensor(name).unwrap();
    let short = format!("{:?}", view.dtype()).to_lowercase();
    let dtype = DType::ALL.into_iter().find(|d| d.to_string() == short).unwrap();
    HostArray::from_bytes(dtype, &Shape::new(view.shape()), view.data()).unwrap()
}

#[test]
fn random_numbers_are_those_of_jax() {
    let index = std::fs::read(folder().join("rng.json")).unwrap();
    let index: Json = serde_json::from_slice(&index).unwrap();
    let data = std::fs::read(folder().join(index["tensors"].as_str().unwrap())).unwrap();
    let tensors = SafeTensors::deserialize(&data).unwrap();
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for json in index["cases"].as_array().unwrap() {
        let name = json["fn"].as_str().unwrap();
        let key = match &json["key"] {
            Json::Null => None,
            Json::Array(words) => {
                let words: Vec<u32> = words.iter().map(|w| w.as_u64().unwrap() as u32).collect();
                Some(value(&HostArray::from_slice(&words, &[2].into()).unwrap()))
            }
            other => Some(value(&array(&tensors, other["t"].as_str().unwrap()))),
        };
        let expected = array(&tensors, json["output"]["t"].as_str().unwrap());
        let case = Case {
            out: expected.dtype(),
            key,
            params: &json["params"],
            x64: json["enable_x64"].as_bool().unwrap(),
            original: json["partitionable"] == Json::Bool(false),
        };
        let outcome = run(name, &case).map_err(|e| e.to_string());
        let outcome = outcome.and_then(|got| agrees(name, &host(&got), &expected));
        let count = counts.entry(name).or_default();
        count.1 += 1;
        match outcome {
            Ok(()) => count.0 += 1,
            Err(why) => println!("{} {}: {why}", json["id"], json["params"]),
        }
    }
    for (name, (passed, all)) in &counts {
        println!("{name}: {passed} of {all}");
    }
    let passed: usize = counts.values().map(|c| c.0).sum();
    let all: usize = counts.values().map(|c| c.1).sum();
    println!("rng: {passed} of {all} passed");
    assert!(passed >= 1403, "only {passed} of {all} random cases pass");
}
