//! Slices, reductions, running results and sorting: on the host and a plugin, under derivatives of
//! both orders and under `vmap`.

#![expect(
    clippy::panic,
    reason = "tests fail by panicking, and a row reads best as a list of operands"
)]

use crate::pjrt::{client, options};
use oxbridge::backend::host::{HostArray, convert};
use oxbridge::dtype::{DType, Scalar};
use oxbridge::ops;
use oxbridge::prelude::*;
use oxbridge::trace::batch::{self, Batch, BatchAxis};
use oxbridge::trace::linear::linearize;
use oxbridge::trace::lower::{self, Entry};
use oxbridge::trace::record::Recorder;
use oxbridge::trace::{Trace, Value, Values};
use smallvec::smallvec;

type Function<'a> = &'a dyn Fn(&[Value]) -> Result<Values>;

fn f64s(data: &[f64], shape: &[usize]) -> Value {
    Tensor::from_slice(data, shape).unwrap().value().unwrap()
}

/// Numbers without ties in no order, of a few signs.
fn any(shape: &[usize]) -> Value {
    let n: usize = shape.iter().product();
    let data: Vec<f64> =
        (0..n).map(|i| ((i * 7 + 3) % 11) as f64 * 0.3 - 1.4 + i as f64 * 0.01).collect();
    f64s(&data, shape)
}

fn i32s(data: &[i32], shape: &[usize]) -> Value {
    Tensor::from_slice(data, shape).unwrap().value().unwrap()
}

fn host(x: &Value) -> HostArray {
    x.concrete("test").unwrap().to_host().unwrap()
}

fn numbers(x: &HostArray) -> Vec<f64> {
    convert::convert(x, DType::F64).to_vec::<f64>().unwrap()
}

fn close(what: &str, got: &HostArray, want: &HostArray, tolerance: f64) {
    assert_eq!(got.shape(), want.shape(), "{what}: shape");
    assert_eq!(got.dtype(), want.dtype(), "{what}: dtype");
    let (got, want) = (numbers(got), numbers(want));
    let near = |(a, b): (&f64, &f64)| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs())
    };
    assert!(got.iter().zip(&want).all(near), "{what}: {got:?} is not {want:?}");
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 | DType::BF16 => 2e-2,
        DType::F32 | DType::C64 => 1e-5,
        _ => 1e-12,
    }
}

/// The function on a plugin, from its StableHLO text.
fn on_plugin(what: &str, xs: &[Value], f: Function<'_>) -> Vec<HostArray> {
    let avals: Vec<_> = xs.iter().map(|x| x.aval().clone()).collect();
    let recorded = Recorder::record("jit", &avals, f).unwrap();
    assert!(recorded.hidden.is_empty(), "{what}: captures nothing");
    recorded.graph.check().unwrap();
    let text = lower::module(&recorded.graph, &Entry { name: "f", ..Entry::default() }).unwrap();
    let program =
        client().compile(&text, &options(1)).unwrap_or_else(|e| panic!("{what}: {e}\n{text}"));
    let buffers: Vec<_> =
        xs.iter().map(|x| client().upload(host(x).contiguous(), 0).unwrap()).collect();
    let outs = program.execute_one(&buffers.iter().collect::<Vec<_>>()).unwrap();
    outs.iter().map(|b| b.download().unwrap()).collect()
}

/// Another example of the same type: the elements in another order, a single integer moved on.
fn example(x: &Value, i: usize) -> Value {
    let n = x.shape().iter().product::<usize>();
    if n == 1 && x.dtype().is_int() {
        let step = ops::full(Scalar::from_i64(x.dtype(), i as i64), x.shape()).unwrap();
        return ops::add(x, &step).unwrap();
    }
    let flat = ops::reshape(x, &[n].into()).unwrap();
    let at = i.min(n);
    let (a, b) =
        (ops::slice_axis(&flat, 0, 0, at).unwrap(), ops::slice_axis(&flat, 0, at, n).unwrap());
    ops::reshape(&ops::concatenate(&[b, a], 0).unwrap(), x.shape()).unwrap()
}

/// `vmap` over each subset of the operands, at the first and the last axis, is the stack of the
/// single results.
fn over_batches(what: &str, xs: &[Value], f: Function<'_>) {
    const SIZE: usize = 3;
    for subset in 1..1 << xs.len() {
        for last in [false, true] {
            let single = |i| -> Vec<Value> {
                let pick =
                    |(k, x)| if subset >> k & 1 == 1 { example(x, i) } else { Value::clone(x) };
                xs.iter().enumerate().map(pick).collect()
            };
            let examples: Vec<Vec<Value>> = (0..SIZE).map(single).collect();
            let outs: Vec<Values> = examples.iter().map(|xs| f(xs).unwrap()).collect();
            let guard = Trace::start(Box::new(Batch { axis: BatchAxis::of_size(SIZE) }));
            let mapped: Values = (0..xs.len())
                .map(|k| {
                    if subset >> k & 1 == 0 {
                        return xs[k].clone();
                    }
                    let axis = if last { xs[k].rank() } else { 0 };
                    let all: Vec<Value> = examples.iter().map(|xs| xs[k].clone()).collect();
                    batch::join(guard.trace(), ops::stack(&all, axis).unwrap(), Some(axis))
                })
                .collect();
            let got = guard.enter(|| f(&mapped)).unwrap_or_else(|e| panic!("{what}: {e}"));
            for (k, got) in got.iter().enumerate() {
                let (got, axis) = batch::split(guard.trace(), got);
                let got = ops::move_batch_axis(SIZE, &got, axis, 0).unwrap();
                let want: Vec<Value> = outs.iter().map(|o| o[k].clone()).collect();
                let want = ops::stack(&want, 0).unwrap();
                let what =
                    format!("{what}: vmap over operands {subset:b}, last={last}, result {k}");
                close(&what, &host(&got), &host(&want), tolerance(want.dtype()) * 10.0);
            }
        }
    }
}

/// Host equals plugin, and `vmap` the stack of single results.
fn plain(what: &str, xs: &[Value], f: Function<'_>) {
    let outs = f(xs).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (got, want) in on_plugin(what, xs, f).iter().zip(&outs) {
        close(&format!("{what}: plugin"), got, &host(want), tolerance(want.dtype()));
    }
    over_batches(what, xs, f);
}

/// Fixed weights, so that no derivative vanishes by symmetry.
fn weights(x: &Value) -> Value {
    let n: usize = x.shape().iter().product();
    let data: Vec<f64> = (0..n).map(|i| 0.5 + ((i * 5) % 7) as f64 * 0.2).collect();
    f64s(&data, x.shape().dims())
}

/// The derivative of the weighted sum of the float results, by reverse mode.
fn gradient(f: Function<'_>, xs: &[Value]) -> Result<Values> {
    let active: Vec<bool> = xs.iter().map(|x| x.dtype().is_differentiable()).collect();
    let lin = linearize("grad", xs, &active, ops::ARITHMETIC, f)?;
    let seed =
        |x: &Value| x.dtype().is_differentiable().then(|| ops::full_like(x, 1.0)).transpose();
    let cts = lin.outputs.iter().map(seed).collect::<Result<Vec<_>>>()?;
    let cts = lin.transpose(&cts)?;
    let each = cts.into_iter().zip(xs).zip(active).filter(|(_, a)| *a);
    each.map(|((ct, x), _)| ct.map_or_else(|| ops::zeros(x.aval()), Ok)).collect()
}

/// The tangents for tangents [`weights`] of the float operands agree with differences.
fn against_differences(what: &str, xs: &[Value], f: Function<'_>) {
    const H: f64 = 1e-5;
    let active: Vec<bool> = xs.iter().map(|x| x.dtype() == DType::F64).collect();
    let lin = linearize("grad", xs, &active, ops::ARITHMETIC, f)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let ts: Vec<Option<Value>> =
        xs.iter().zip(&active).map(|(x, a)| a.then(|| weights(x))).collect();
    let got = lin.apply(&ts).unwrap_or_else(|e| panic!("{what}: {e}"));
    let moved = |h: f64| {
        let add = |(x, t): (&Value, &Option<Value>)| match t {
            Some(t) => ops::add(x, &ops::mul(t, &ops::full_like(t, h).unwrap()).unwrap()).unwrap(),
            None => x.clone(),
        };
        f(&xs.iter().zip(&ts).map(add).collect::<Vec<_>>()).unwrap()
    };
    for (k, (up, down)) in moved(H).iter().zip(&moved(-H)).enumerate() {
        if up.dtype() != DType::F64 {
            assert!(got[k].is_none(), "{what}: an integer result has no tangent");
            continue;
        }
        let (up, down) = (numbers(&host(up)), numbers(&host(down)));
        let slope: Vec<f64> = up.iter().zip(&down).map(|(a, b)| (a - b) / (2.0 * H)).collect();
        let slope = host(&f64s(&slope, lin.outputs[k].shape().dims()));
        let got = got[k].clone().unwrap_or_else(|| ops::zeros(lin.outputs[k].aval()).unwrap());
        close(&format!("{what}: tangent of result {k}"), &host(&got), &slope, 1e-7);
        transposed(what, &lin, &ts, k);
    }
}

/// `<ct, J t>` equals `<J^T ct, t>`.
fn transposed(
    what: &str,
    lin: &oxbridge::trace::linear::Linearized,
    ts: &[Option<Value>],
    k: usize,
) {
    let dot = |x: &Value, y: &Value| -> f64 {
        numbers(&host(x)).iter().zip(numbers(&host(y))).map(|(a, b)| a * b).sum()
    };
    let ct = ops::neg(&weights(&lin.outputs[k])).unwrap();
    let tangents = lin.apply(ts).unwrap();
    let left = tangents[k].as_ref().map_or(0.0, |t| dot(&ct, t));
    let cts: Vec<Option<Value>> =
        (0..lin.outputs.len()).map(|i| (i == k).then(|| ct.clone())).collect();
    let back = lin.transpose(&cts).unwrap_or_else(|e| panic!("{what}: {e}"));
    let pairs = back.iter().zip(ts).filter_map(|(a, b)| Some(dot(a.as_ref()?, b.as_ref()?)));
    let right: f64 = pairs.sum();
    assert!((left - right).abs() < 1e-9 * (1.0 + left.abs()), "{what}: transpose {left} {right}");
}

/// All checks, of the function and of its gradient (which gives the second order).
fn smooth(what: &str, xs: &[Value], f: Function<'_>) {
    plain(what, xs, f);
    against_differences(what, xs, f);
    // Squared, so that linear functions have a gradient that depends on the operands.
    let square = |xs: &[Value]| -> Result<Values> {
        f(xs)?
            .iter()
            .map(|y| if y.dtype() == DType::F64 { ops::mul(y, y) } else { Ok(y.clone()) })
            .collect()
    };
    let grad = |xs: &[Value]| gradient(&square, xs);
    plain(&format!("{what}: grad"), xs, &grad);
    against_differences(&format!("{what}: grad"), xs, &grad);
}

fn one(y: Result<Value>) -> Result<Values> {
    Ok(smallvec![y?])
}

/// The error's text.
fn fails(y: Result<Value>, text: &str) {
    let error = y.unwrap_err().to_string();
    assert!(error.contains(text), "{error} does not tell `{text}`");
}

#[test]
fn slices() {
    let x = any(&[4, 5]);
    smooth("slice", std::slice::from_ref(&x), &|v| {
        one(ops::slice(&v[0], &[1, 0], &[3, 5], &[1, 2]))
    });
    smooth("slice: none", std::slice::from_ref(&x), &|v| {
        one(ops::slice(&v[0], &[1, 2], &[3, 2], &[1, 2]))
    });
    smooth("slice: step over", std::slice::from_ref(&x), &|v| {
        one(ops::slice(&v[0], &[0, 1], &[4, 5], &[3, 9]))
    });
    smooth("reverse", std::slice::from_ref(&x), &|v| one(ops::reverse(&v[0], &[1])));
    smooth("reverse: all", std::slice::from_ref(&x), &|v| one(ops::reverse(&v[0], &[1, 0])));
    let other = any(&[4, 2]);
    let all = [x.clone(), other.clone(), ops::neg(&other).unwrap()];
    smooth("concatenate", &all, &|v| one(ops::concatenate(v, 1)));
    smooth("index", std::slice::from_ref(&x), &|v| one(ops::index_axis(&v[0], 1, 4)));
    for dtype in DType::ALL {
        let x = ops::convert(&ops::mul(&x, &x).unwrap(), dtype).unwrap();
        let y = on_plugin("dtypes", std::slice::from_ref(&x), &|v| {
            let y = ops::slice(&v[0], &[1, 0], &[3, 5], &[1, 2])?;
            one(ops::reverse(&ops::concatenate(&[y.clone(), y], 0)?, &[0]))
        });
        assert_eq!(y[0].dtype(), dtype);
        assert_eq!(y[0].shape().dims(), [4, 3]);
    }
    fails(
        ops::slice(&x, &[0], &[4, 5], &[1, 1]),
        "slice: 1 starts, 2 limits and 2 steps do not fit",
    );
    fails(ops::slice(&x, &[0, 0], &[4, 6], &[1, 1]), "limit 6 is beyond axis 1");
    fails(ops::slice(&x, &[3, 0], &[2, 5], &[1, 1]), "start 3 is beyond limit 2");
    fails(ops::slice(&x, &[0, 0], &[4, 5], &[0, 1]), "step of axis 0");
    fails(ops::concatenate(&[], 0), "nothing to join");
    fails(
        ops::concatenate(&[x.clone(), other.clone()], 0),
        "differs from f64[4,5] not only on axis 0",
    );
    fails(ops::concatenate(&[x.clone(), other], 2), "axis 2 is outside");
    fails(ops::reverse(&x, &[0, 0]), "named twice");
}

#[test]
fn pads() {
    let (x, value) = (any(&[3, 4]), f64s(&[0.7], &[]));
    let rows: [([i64; 2], [i64; 2], [i64; 2]); 6] = [
        ([1, 2], [0, 1], [0, 0]),
        ([0, 0], [0, 0], [1, 2]),
        ([-1, 3], [2, -2], [0, 1]),
        ([-1, -2], [-1, -1], [1, 2]),
        ([-5, 0], [2, 0], [0, 0]),
        ([-3, 0], [0, -4], [0, 0]),
    ];
    for (low, high, interior) in rows {
        if low[0] == -5 {
            // Beyond one end and back: only padding is left.
            fails(ops::pad(&x, &value, &low, &high, &[0, -1]), "interior size -1");
        }
        let what = format!("pad {low:?} {high:?} {interior:?}");
        let all = [x.clone(), value.clone()];
        if low[0] + high[0] + 3 + 2 * interior[0] >= 0 {
            smooth(&what, &all, &|v| one(ops::pad(&v[0], &v[1], &low, &high, &interior)));
        }
    }
    let empty = f64s(&[], &[0, 2]);
    plain("pad: empty", &[empty, value.clone()], &|v| {
        one(ops::pad(&v[0], &v[1], &[1, 0], &[1, 0], &[3, 0]))
    });
    fails(ops::pad(&x, &value, &[-5, 0], &[1, 0], &[0, 0]), "has size -1");
    fails(ops::pad(&x, &value, &[i64::MAX, 0], &[i64::MAX, 0], &[0, 0]), "has size");
    fails(ops::pad(&x, &x, &[1, 0], &[1, 0], &[0, 0]), "not a scalar");
    fails(ops::pad(&x, &i32s(&[1], &[]), &[1, 0], &[1, 0], &[0, 0]), "does not promote");
    fails(ops::pad(&x, &value, &[1], &[1, 0], &[0, 0]), "do not fit");
}

#[test]
fn dynamic_slices() {
    let (x, update) = (any(&[5, 4]), any(&[2, 3]));
    for (i, j) in [(1, 1), (4, -3), (-2, 7)] {
        let (i, j) = (i32s(&[i], &[]), i32s(&[j], &[]));
        smooth("dynamic_slice", &[x.clone(), i.clone(), j.clone()], &|v| {
            one(ops::dynamic_slice(&v[0], &v[1..], &[2, 3]))
        });
        smooth("dynamic_update_slice", &[x.clone(), update.clone(), i, j], &|v| {
            one(ops::dynamic_update_slice(&v[0], &v[1], &v[2..]))
        });
    }
    let scalar = f64s(&[2.0], &[]);
    smooth("dynamic_update_slice: scalar", &[scalar.clone(), f64s(&[3.0], &[])], &|v| {
        one(ops::dynamic_update_slice(&v[0], &v[1], &[]))
    });
    let i = i32s(&[0], &[]);
    fails(
        ops::dynamic_slice(&x, std::slice::from_ref(&i), &[2, 3]),
        "1 starts are given for the 2 axes",
    );
    fails(ops::dynamic_slice(&x, &[i.clone(), i.clone()], &[2]), "has not the 2 axes");
    fails(ops::dynamic_slice(&x, &[i.clone(), i.clone()], &[2, 9]), "does not fit on axis 1");
    fails(
        ops::dynamic_slice(&x, &[i.clone(), scalar.clone()], &[2, 3]),
        "takes starts of i32 or i64",
    );
    fails(ops::dynamic_slice(&x, &[i.clone(), i32s(&[0], &[1])], &[2, 3]), "not a scalar");
    let wide = ops::convert(&i, DType::I64).unwrap();
    fails(ops::dynamic_slice(&x, &[i.clone(), wide], &[2, 3]), "does not promote");
    fails(ops::dynamic_update_slice(&x, &i, &[]), "does not promote");
}

/// Of each dtype: bool from the sign, integers truncated.
fn of_dtype(x: &Value, dtype: DType) -> Value {
    match dtype {
        DType::Bool => ops::gt(x, &ops::full_like(x, 0.0).unwrap()).unwrap(),
        d if d.is_unsigned() => ops::convert(&ops::abs(&scaled(x)).unwrap(), d).unwrap(),
        d => ops::convert(&scaled(x), d).unwrap(),
    }
}

fn scaled(x: &Value) -> Value {
    ops::mul(x, &ops::full_like(x, 2.5).unwrap()).unwrap()
}

type Reduction = (&'static str, fn(&Value, &[usize]) -> Result<Value>);

const REDUCTIONS: [Reduction; 6] = [
    ("reduce_sum", ops::reduce_sum),
    ("reduce_prod", ops::reduce_prod),
    ("reduce_max", ops::reduce_max),
    ("reduce_min", ops::reduce_min),
    ("reduce_and", ops::reduce_and),
    ("reduce_or", ops::reduce_or),
];

#[test]
fn reductions_of_every_dtype() {
    let x = any(&[2, 3, 4]);
    for (name, f) in REDUCTIONS {
        let mut taken = 0;
        for dtype in DType::ALL.into_iter().filter(|d| !d.is_complex()) {
            let x = of_dtype(&x, dtype);
            let result = f(&x, &[2, 0]);
            let is_taken = match name {
                "reduce_sum" | "reduce_prod" => dtype != DType::Bool,
                "reduce_max" | "reduce_min" => true,
                _ => dtype == DType::Bool || dtype.is_int(),
            };
            if !is_taken {
                fails(result, "takes");
                continue;
            }
            taken += 1;
            let y = on_plugin(name, std::slice::from_ref(&x), &|v| one(f(&v[0], &[2, 0])));
            close(&format!("{name} of {dtype}"), &y[0], &host(&result.unwrap()), tolerance(dtype));
            let empty = ops::slice_axis(&x, 1, 0, 0).unwrap();
            let want = host(&f(&empty, &[1]).unwrap());
            let y = on_plugin(name, &[empty], &|v| one(f(&v[0], &[1])));
            close(&format!("{name} of no {dtype}"), &y[0], &want, 0.0);
        }
        assert!(taken >= 9, "{name}");
        fails(f(&of_dtype(&x, DType::I32), &[3]), "outside of");
        fails(f(&of_dtype(&x, DType::I32), &[1, 1]), "named twice");
        plain(name, &[of_dtype(&x, DType::I32)], &|v| one(f(&v[0], &[1])));
    }
    // Half precision adds up in f32 on both.
    let ones = ops::full(Scalar::one(DType::F16), &[4096].into()).unwrap();
    let y = on_plugin("half", &[ones], &|v| one(ops::reduce_sum(&v[0], &[0])));
    assert_eq!(numbers(&y[0]), [4096.0]);
}

#[test]
fn derivatives_of_reductions() {
    let x = any(&[2, 3, 4]);
    for axes in [&[0][..], &[1], &[0, 2], &[0, 1, 2]] {
        for (name, f) in &REDUCTIONS[..4] {
            smooth(&format!("{name} {axes:?}"), std::slice::from_ref(&x), &|v| one(f(&v[0], axes)));
        }
    }
    for zeros in [&[0.0, 2.0, 3.0, -1.5, 0.5][..], &[0.0, 2.0, 0.0, -1.5, 0.5], &[0.0; 5]] {
        let x = f64s(zeros, &[5]);
        smooth("reduce_prod with zeros", &[x], &|v| one(ops::reduce_prod(&v[0], &[0])));
    }
    let equal = f64s(&[2.0, 1.0, 2.0, 2.0, 0.0, 1.0], &[2, 3]);
    let g = gradient(&|v| one(ops::reduce_max(&v[0], &[1])), std::slice::from_ref(&equal)).unwrap();
    assert_eq!(numbers(&host(&g[0])), [0.5, 0.0, 0.5, 1.0, 0.0, 0.0]);
    let g = gradient(&|v| one(ops::reduce_min(&v[0], &[0, 1])), &[equal]).unwrap();
    assert_eq!(numbers(&host(&g[0])), [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
}

#[test]
fn positions_of_extremes() {
    let x = any(&[2, 3, 4]);
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let odd = f64s(&[1.0, nan, 3.0, nan, -inf, -inf, -inf, -inf, 5.0, 7.0, 7.0, 5.0], &[3, 4]);
    for f in [ops::argmax, ops::argmin] {
        for index in [DType::I32, DType::I64] {
            plain("argmax", std::slice::from_ref(&odd), &|v| one(f(&v[0], 1, index)));
            for dtype in DType::ALL.into_iter().filter(|d| !d.is_complex()) {
                let x = of_dtype(&x, dtype);
                let want = host(&f(&x, 1, index).unwrap());
                let y = on_plugin("argmax", &[x], &|v| one(f(&v[0], 1, index)));
                close(&format!("argmax of {dtype}"), &y[0], &want, 0.0);
            }
        }
        plain("argmax", std::slice::from_ref(&x), &|v| one(f(&v[0], 0, DType::I32)));
        fails(f(&x, 3, DType::I32), "axis 3 is outside");
        fails(f(&x, 0, DType::F32), "an index is i32 or i64");
        fails(f(&ops::slice_axis(&x, 0, 0, 0).unwrap(), 0, DType::I32), "has no element");
        fails(
            f(&ops::convert(&x, DType::C64).unwrap(), 0, DType::I32),
            "takes real numbers or bool",
        );
    }
    let index = |f: fn(&Value, usize, DType) -> Result<Value>| {
        numbers(&host(&f(&odd, 1, DType::I32).unwrap()))
    };
    assert_eq!(
        (index(ops::argmax), index(ops::argmin)),
        (vec![1.0, 0.0, 1.0], vec![1.0, 0.0, 0.0])
    );
    let grad =
        gradient(&|v| Ok(smallvec![v[0].clone(), ops::argmax(&v[0], 1, DType::I32)?]), &[odd]);
    assert_eq!(numbers(&host(&grad.unwrap()[0])), [1.0; 12]);
}

type RunningResult = (&'static str, fn(&Value, usize, bool) -> Result<Value>);

const RUNNING: [RunningResult; 5] = [
    ("cumsum", ops::cumsum),
    ("cumprod", ops::cumprod),
    ("cummax", ops::cummax),
    ("cummin", ops::cummin),
    ("cumlogsumexp", ops::cumlogsumexp),
];

#[test]
fn running_results() {
    for (name, f) in RUNNING {
        for (shape, axis, reverse) in [([5, 2], 0, false), ([1, 3], 1, true)] {
            let what = format!("{name} {shape:?} {axis} {reverse}");
            smooth(&what, &[any(&shape)], &|v| one(f(&v[0], axis, reverse)));
        }
        plain(name, &[any(&[2, 9])], &|v| one(f(&v[0], 1, true)));
        for dtype in DType::ALL.into_iter().filter(|d| !d.is_complex()) {
            let x = of_dtype(&any(&[3, 5]), dtype);
            let result = f(&x, 1, false);
            let is_taken = match name {
                "cumsum" | "cumprod" => dtype != DType::Bool,
                "cummax" | "cummin" => true,
                _ => dtype.is_float(),
            };
            if !is_taken {
                fails(result, "takes");
                continue;
            }
            let y = on_plugin(name, &[x], &|v| one(f(&v[0], 1, false)));
            close(&format!("{name} of {dtype}"), &y[0], &host(&result.unwrap()), tolerance(dtype));
        }
        plain(name, &[f64s(&[], &[0, 3])], &|v| one(f(&v[0], 0, false)));
        fails(f(&any(&[3]), 1, false), "axis 1 is outside");
    }
}

#[test]
fn running_results_at_odd_places() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for row in
        [[1.0, nan, 0.0, 2.0, -1.0], [-inf, -inf, 1.0, inf, 2.0], [3.0, 3.0, -inf, 3.0, 900.0]]
    {
        for (name, f) in RUNNING {
            for reverse in [false, true] {
                let what = format!("{name} {row:?} {reverse}");
                let y = on_plugin(&what, &[f64s(&row, &[5])], &|v| one(f(&v[0], 0, reverse)));
                close(&what, &y[0], &host(&f(&f64s(&row, &[5]), 0, reverse).unwrap()), 1e-12);
            }
        }
    }
    for zeros in [[0.0, 2.0, 3.0, -1.5, 0.5], [2.0, 0.0, 3.0, 0.0, 0.5]] {
        let x = f64s(&zeros, &[5]);
        smooth("cumprod with zeros", &[x], &|v| one(ops::cumprod(&v[0], 0, false)));
    }
    let low = [f64s(&[-inf, -inf, 1.0, 2.0, -inf], &[5])];
    let g = gradient(&|v| one(ops::cumlogsumexp(&v[0], 0, false)), &low).unwrap();
    let part = 1.0 / (1.0 + 1f64.exp());
    let want = f64s(&[0.0, 0.0, 1.0 + 2.0 * part, 2.0 - 2.0 * part, 0.0], &[5]);
    close("cumlogsumexp", &host(&g[0]), &host(&want), 1e-12);
    let equal = [f64s(&[1.0, 3.0, 3.0, 2.0, nan], &[5])];
    let g = gradient(&|v| one(ops::cummax(&v[0], 0, false)), &equal).unwrap();
    assert_eq!(numbers(&host(&g[0])), [1.0, 1.0, 2.0, 0.0, 1.0]);
}

#[test]
fn sorting() {
    let (x, carried) = (any(&[3, 5]), ops::neg(&any(&[3, 5])).unwrap());
    let ties = ops::convert(&ops::floor(&x).unwrap(), DType::I32).unwrap();
    for descending in [false, true] {
        for axis in [0, 1] {
            let what = format!("sort {axis} {descending}");
            smooth(&what, std::slice::from_ref(&x), &|v| ops::sort(v, axis, 1, descending));
            plain(&what, std::slice::from_ref(&ties), &|v| {
                one(ops::argsort(&v[0], axis, descending))
            });
        }
        smooth("sort pairs", &[x.clone(), carried.clone()], &|v| ops::sort(v, 1, 1, descending));
        let two = [ties.clone(), x.clone(), carried.clone()];
        smooth("sort by two", &two, &|v| ops::sort(v, 0, 2, descending));
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let odd = f64s(&[nan, 1.0, inf, 0.0, -0.0, -nan, -inf, 1.0], &[8]);
        plain("odd", std::slice::from_ref(&odd), &|v| one(ops::argsort(&v[0], 0, descending)));
        let keys = [i32s(&[1, 0, 1, 0, 1, 0, 0, 0], &[8]), odd];
        plain("odd by two", &keys, &|v| {
            let iota = ops::iota(DType::I32, v[0].shape(), 0)?;
            ops::sort(&[v[1].clone(), v[0].clone(), iota], 0, 2, descending)
        });
        for dtype in DType::ALL {
            let x = of_dtype(&x, dtype);
            let want = host(&ops::argsort(&x, 1, descending).unwrap());
            let y = on_plugin("argsort", &[x], &|v| one(ops::argsort(&v[0], 1, descending)));
            close(&format!("argsort of {dtype}"), &y[0], &want, 0.0);
        }
    }
    let z = ops::complex(&ops::convert(&ties, DType::F64).unwrap(), &x).unwrap();
    let want = host(&ops::argsort(&z, 1, false).unwrap());
    let y = on_plugin("argsort", &[z], &|v| one(ops::argsort(&v[0], 1, false)));
    close("argsort of complex", &y[0], &want, 0.0);
    let sorted = |keys, axis| {
        ops::sort(&[x.clone(), ties.clone()], axis, keys, false).map(|mut v| v.remove(0))
    };
    fails(sorted(0, 0), "0 keys are asked for among 2 operands");
    fails(sorted(3, 0), "3 keys are asked for among 2 operands");
    fails(sorted(1, 2), "axis 2 is outside");
    fails(
        ops::sort(&[x.clone(), any(&[5])], 0, 1, false).map(|mut v| v.remove(0)),
        "has not the shape",
    );
}

#[test]
fn largest() {
    let x = any(&[3, 5]);
    let both = |v: &[Value], k| ops::top_k(&v[0], k).map(|(y, i)| smallvec![y, i]);
    for k in [0, 1, 3, 5] {
        smooth(&format!("top_k {k}"), std::slice::from_ref(&x), &|v| both(v, k));
    }
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let odd = f64s(&[nan, 1.0, inf, 0.0, -0.0, -nan, -inf, 1.0], &[8]);
    plain("odd", &[odd], &|v| both(v, 7));
    for dtype in DType::ALL.into_iter().filter(|d| !d.is_complex()) {
        let x = of_dtype(&x, dtype);
        let want = both(std::slice::from_ref(&x), 3).unwrap();
        for (got, want) in on_plugin("top_k", &[x], &|v| both(v, 3)).iter().zip(&want) {
            close(&format!("top_k of {dtype}"), got, &host(want), 0.0);
        }
    }
    fails(ops::top_k(&x, 6).map(|y| y.0), "6 elements are asked for");
    fails(ops::top_k(&f64s(&[1.0], &[]), 0).map(|y| y.0), "no last axis");
}
