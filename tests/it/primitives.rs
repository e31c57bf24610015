//! Rules of primitives against each other: the host against the plugin, derivatives against
//! differences, `vmap` against one example at a time.

#![expect(clippy::panic, reason = "tests fail by panicking")]

use crate::pjrt::run_text;
use oxbridge::backend::host::HostArray;
use oxbridge::backend::host::layout;
use oxbridge::ops;
use oxbridge::prelude::*;
use oxbridge::trace::batch::{Batch, BatchAxis, join, split};
use oxbridge::trace::lower::{Entry, module};
use oxbridge::trace::{Trace, Value, Values};
use oxbridge::transforms::jit::make_graph;
use oxbridge::{Array, Aval};
use std::sync::OnceLock;

/// What is checked: a function of arrays.
pub(crate) type Function<'f> = &'f dyn Fn(&[Value]) -> Result<Value>;

/// Distinct floats around zero in no order.
pub(crate) fn floats(shape: &[usize], seed: usize) -> HostArray {
    let n: usize = shape.iter().product();
    let one = |i: usize| ((i * 7919 + seed * 104_729 + 13) % 1009) as f64 / 400.0 - 1.25;
    HostArray::from_slice(&(0..n).map(one).collect::<Vec<f64>>(), &shape.into()).unwrap()
}

/// Integers of dtype i32.
pub(crate) fn ints(values: &[i32], shape: &[usize]) -> HostArray {
    HostArray::from_slice(values, &shape.into()).unwrap()
}

fn value(x: &HostArray) -> Value {
    // On the host, whatever the default is: the plugin's results are compared with these.
    static HOST: OnceLock<Device> = OnceLock::new();
    let device = HOST.get_or_init(|| Client::host(1).device(0).unwrap());
    Value::Array(Array::upload(x, device, true).unwrap())
}

fn host(x: &Value) -> HostArray {
    x.array("test").unwrap().to_host().unwrap()
}

fn tensors(xs: &[HostArray]) -> Vec<Tensor> {
    xs.iter().map(|x| Tensor::from_value(value(x))).collect()
}

fn values(xs: &[Tensor]) -> Values {
    xs.iter().map(|x| x.value().unwrap()).collect()
}

fn close(what: &str, got: &HostArray, expected: &HostArray, tolerance: f64) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    assert_eq!(got.dtype(), expected.dtype(), "{what}");
    let list = |x: &HostArray| {
        oxbridge::backend::host::convert::convert(x, DType::F64).to_vec::<f64>().unwrap()
    };
    let (got, expected) = (list(got), list(expected));
    for (a, b) in got.iter().zip(&expected) {
        let near =
            (a - b).abs() <= tolerance * (1.0 + b.abs()) || a.is_nan() && b.is_nan() || a == b;
        assert!(near, "{what}: {got:?} is not {expected:?}");
    }
}

/// `f` as a graph: checked, and run by the plugin.
fn on_plugin(what: &str, f: Function<'_>, xs: &[HostArray]) -> HostArray {
    let graph = make_graph(|x: &Vec<Tensor>| Ok(Tensor::from_value(f(&values(x))?)))(&tensors(xs));
    let graph = graph.unwrap_or_else(|e| panic!("{what}: {e}"));
    graph.check().unwrap_or_else(|e| panic!("{what}: {e}\n{graph}"));
    let text = module(&graph, &Entry { name: "test", ..Entry::default() }).unwrap();
    run_text(&text, xs).unwrap_or_else(|e| panic!("{what}: {e}\n{text}")).swap_remove(0)
}

/// The sum of the result weighted by fixed numbers, so that each element's derivative differs.
fn weighted(f: Function<'_>, xs: &[Value]) -> Result<Value> {
    let y = f(xs)?;
    let axes: Vec<usize> = (0..y.rank()).collect();
    // Made in place: a captured array would be one more operand of the graph.
    let w = ops::iota(DType::F64, &Shape::new(&[y.shape().size()]), 0)?;
    let w = ops::reshape(&ops::sin(&w)?, y.shape())?;
    let w = ops::add(&w, &ops::full_like(&w, 1.5)?)?;
    ops::reduce_sum(&ops::mul(&ops::convert(&y, DType::F64)?, &w)?, &axes)
}

/// Gradients of [`weighted`] in the floats among the operands.
fn gradients(f: Function<'_>, xs: &[Value]) -> Result<Vec<Value>> {
    let floats: Vec<Tensor> =
        xs.iter().filter(|x| x.dtype().is_float()).map(|x| Tensor::from_value(x.clone())).collect();
    let inner = |ys: &Vec<Tensor>| Ok(Tensor::from_value(weighted(f, &merge(xs, &values(ys)))?));
    Ok(values(&grad(inner)(&floats)?).into_vec())
}

fn merge(xs: &[Value], floats: &[Value]) -> Vec<Value> {
    let mut floats = floats.iter();
    let pick = |x: &Value| {
        if x.dtype().is_float() { floats.next().unwrap().clone() } else { x.clone() }
    };
    xs.iter().map(pick).collect()
}

fn shifted(x: &HostArray, i: usize, by: f64) -> HostArray {
    let mut data = x.to_vec::<f64>().unwrap();
    data[i] += by;
    HostArray::from_slice(&data, x.shape()).unwrap()
}

/// Central differences of a scalar function in operand `at`.
fn differences(f: Function<'_>, xs: &[HostArray], at: usize) -> HostArray {
    let one = |i: usize| {
        let ends = [1e-5, -1e-5].map(|by| {
            let mut xs = xs.to_vec();
            xs[at] = shifted(&xs[at], i, by);
            let xs: Vec<Value> = xs.iter().map(value).collect();
            host(&f(&xs).unwrap()).to_vec::<f64>().unwrap()[0]
        });
        (ends[0] - ends[1]) / 2e-5
    };
    let n = xs[at].shape().size();
    HostArray::from_slice(&(0..n).map(one).collect::<Vec<f64>>(), xs[at].shape()).unwrap()
}

/// Everything that holds for one primitive with these operands.
pub(crate) fn check(what: &str, xs: &[HostArray], f: Function<'_>) {
    let operands: Vec<Value> = xs.iter().map(value).collect();
    let y = f(&operands).unwrap_or_else(|e| panic!("{what}: {e}"));
    close(&format!("{what} on the plugin"), &on_plugin(what, f, xs), &host(&y), 1e-10);
    check_vmap(what, xs, f);
    check_grad(what, xs, f);
}

/// First and second derivatives, and the vmap of the first.
pub(crate) fn check_grad(what: &str, xs: &[HostArray], f: Function<'_>) {
    let operands: Vec<Value> = xs.iter().map(value).collect();
    let places: Vec<usize> = (0..xs.len()).filter(|&i| xs[i].dtype().is_float()).collect();
    let cts = gradients(f, &operands).unwrap_or_else(|e| panic!("grad of {what}: {e}"));
    for (ct, &place) in cts.iter().zip(&places) {
        let expected = differences(&|xs| weighted(f, xs), xs, place);
        close(&format!("grad of {what} in operand {place}"), &host(ct), &expected, 1e-6);
    }
    for (which, &place) in places.iter().enumerate() {
        let slope = |xs: &[Value]| Ok(gradients(f, xs)?.swap_remove(which));
        let name = format!("grad of {what} in operand {place}");
        close(&name, &on_plugin(&name, &slope, xs), &host(&cts[which]), 1e-10);
        check_vmap(&name, xs, &slope);
        let curve = gradients(&slope, &operands).unwrap_or_else(|e| panic!("grad of {name}: {e}"));
        for (ct, &second) in curve.iter().zip(&places) {
            let expected = differences(&|xs| weighted(&slope, xs), xs, second);
            close(&format!("grad of {name} in {second}"), &host(ct), &expected, 1e-6);
        }
    }
}

/// `vmap` over each subset of operands, the mapped axis first, last and mixed, against one example
/// at a time.
pub(crate) fn check_vmap(what: &str, xs: &[HostArray], f: Function<'_>) {
    for subset in 1..1usize << xs.len() {
        for last in [0, subset, 1] {
            let mapped: Vec<Option<usize>> = (0..xs.len())
                .map(|i| {
                    let axis = if last >> i & 1 == 1 { xs[i].shape().rank() } else { 0 };
                    (subset >> i & 1 == 1).then_some(axis)
                })
                .collect();
            check_mapped(&format!("vmap of {what} over {mapped:?}"), xs, &mapped, f);
        }
    }
}

/// Another example: the elements of `x` in another order.
fn example(x: &HostArray, i: usize) -> HostArray {
    let n = x.shape().size();
    let at = value(x);
    let flat = ops::reshape(&at, &Shape::new(&[n])).unwrap();
    let order: Vec<usize> = (0..n).map(|k| (k + i) % n.max(1)).collect();
    match x.dtype() {
        DType::F64 => {
            let data = host(&flat).to_vec::<f64>().unwrap();
            let data: Vec<f64> = order.iter().map(|&k| data[k]).collect();
            HostArray::from_slice(&data, x.shape()).unwrap()
        }
        DType::U32 => {
            let data = host(&flat).to_vec::<u32>().unwrap();
            let data: Vec<u32> = order.iter().map(|&k| data[k]).collect();
            HostArray::from_slice(&data, x.shape()).unwrap()
        }
        _ => {
            let data = host(&flat).to_vec::<i32>().unwrap();
            let data: Vec<i32> = order.iter().map(|&k| data[k]).collect();
            HostArray::from_slice(&data, x.shape()).unwrap()
        }
    }
}

fn stack(parts: &[HostArray], axis: usize) -> HostArray {
    let parts: Vec<HostArray> =
        parts.iter().map(|p| p.reshape(&p.shape().insert(axis, 1))).collect();
    layout::concatenate(&parts, axis)
}

fn check_mapped(what: &str, xs: &[HostArray], axes: &[Option<usize>], f: Function<'_>) {
    const SIZE: usize = 2;
    let examples: Vec<Vec<HostArray>> = (0..SIZE)
        .map(|i| {
            xs.iter()
                .zip(axes)
                .map(|(x, a)| if a.is_some() { example(x, i) } else { x.clone() })
                .collect()
        })
        .collect();
    let guard = Trace::start(Box::new(Batch { axis: BatchAxis::of_size(SIZE) }));
    let operands: Vec<Value> = axes
        .iter()
        .enumerate()
        .map(|(k, &axis)| match axis {
            None => value(&xs[k]),
            Some(axis) => {
                let parts: Vec<HostArray> = examples.iter().map(|e| e[k].clone()).collect();
                join(guard.trace(), value(&stack(&parts, axis)), Some(axis))
            }
        })
        .collect();
    let out = guard.enter(|| f(&operands)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (out, axis) = split(guard.trace(), &out);
    let out = ops::move_batch_axis(SIZE, &out, axis, 0).unwrap();
    let singles: Vec<HostArray> = examples
        .iter()
        .map(|e| host(&f(&e.iter().map(value).collect::<Vec<_>>()).unwrap()))
        .collect();
    close(what, &host(&out), &stack(&singles, 0), 1e-10);
}

/// Whether `infer` gives what comes out, for dtypes other than f64 too.
pub(crate) fn check_value(what: &str, xs: &[HostArray], f: Function<'_>, tolerance: f64) -> Aval {
    let operands: Vec<Value> = xs.iter().map(value).collect();
    let y = f(&operands).unwrap_or_else(|e| panic!("{what}: {e}"));
    close(&format!("{what} on the plugin"), &on_plugin(what, f, xs), &host(&y), tolerance);
    y.aval().clone()
}

mod dot {
    use super::*;
    use oxbridge::ops::{DotDims, Precision};

    fn dims(lb: &[usize], rb: &[usize], lc: &[usize], rc: &[usize]) -> DotDims {
        DotDims {
            lhs_batch: lb.to_vec(),
            rhs_batch: rb.to_vec(),
            lhs_contract: lc.to_vec(),
            rhs_contract: rc.to_vec(),
        }
    }

    #[test]
    fn products_follow_their_rules() {
        let rows: &[(&[usize], &[usize], DotDims)] = &[
            (&[2, 3], &[3, 2], dims(&[], &[], &[1], &[0])),
            (&[2, 3], &[4, 3], dims(&[], &[], &[1], &[1])),
            (&[3], &[3], dims(&[], &[], &[0], &[0])),
            (&[3], &[2], dims(&[], &[], &[], &[])),
            (&[2, 3, 2], &[2, 2, 3], dims(&[0], &[0], &[2], &[1])),
            (&[3, 2, 2], &[2, 3, 2], dims(&[1], &[2], &[0, 2], &[1, 0])),
            (&[2, 3, 2, 2], &[2, 2, 3, 1], dims(&[0, 3], &[0, 1], &[1], &[2])),
        ];
        for (l, r, d) in rows {
            let f = |xs: &[Value]| ops::dot_general(&xs[0], &xs[1], d, Precision::Highest, None);
            check(&format!("dot {l:?} {r:?} {d:?}"), &[floats(l, 1), floats(r, 2)], &f);
        }
    }

    #[test]
    fn products_of_other_dtypes() {
        let d = dims(&[], &[], &[1], &[0]);
        for (from, out) in [
            (DType::F32, DType::F32),
            (DType::BF16, DType::F32),
            (DType::F16, DType::F16),
            (DType::F32, DType::F64),
            (DType::I8, DType::I32),
            (DType::I64, DType::I64),
            (DType::U8, DType::U8),
        ] {
            let f = |xs: &[Value]| {
                let (x, y) = (ops::convert(&xs[0], from)?, ops::convert(&xs[1], from)?);
                ops::dot_general(&x, &y, &d, Precision::Default, Some(out))
            };
            let xs = [ints(&[3, 1, 4, 1, 5, 9], &[2, 3]), ints(&[2, 6, 5, 3, 5, 8], &[3, 2])];
            assert_eq!(check_value("dot", &xs, &f, 0.0).dtype(), out);
        }
    }

    #[test]
    fn half_products_summed_in_f32_have_half_gradients() {
        let d = dims(&[], &[], &[1], &[0]);
        let f = |xs: &[Value]| {
            let (x, y) = (ops::convert(&xs[0], DType::BF16)?, ops::convert(&xs[1], DType::BF16)?);
            ops::dot_general(&x, &y, &d, Precision::Default, Some(DType::F32))
        };
        let xs = [value(&floats(&[2, 3], 1)), value(&floats(&[3, 2], 2))];
        let cts = gradients(&f, &xs).unwrap();
        assert_eq!(cts[0].aval(), xs[0].aval());
        assert_eq!(cts[1].aval(), xs[1].aval());
    }

    #[test]
    fn products_that_do_not_fit_say_why() {
        let fail = |l: &[usize], r: &[usize], d: &DotDims| {
            let (x, y) = (value(&floats(l, 1)), value(&floats(r, 1)));
            ops::dot_general(&x, &y, d, Precision::Default, None).unwrap_err().to_string()
        };
        let text = fail(&[2, 3], &[4, 5], &dims(&[], &[], &[1], &[0]));
        assert!(text.contains("contracting axis 1 of lhs has size 3"), "{text}");
        assert!(text.contains("axis 0 of rhs has size 4"), "{text}");
        assert!(fail(&[2], &[2], &dims(&[], &[], &[1], &[0])).contains("has no axis 1"));
        assert!(fail(&[2], &[2], &dims(&[0], &[0], &[0], &[0])).contains("named twice"));
        assert!(fail(&[2], &[2], &dims(&[], &[], &[0], &[])).contains("do not pair up"));
        assert!(fail(&[2], &[3], &dims(&[0], &[0], &[], &[])).contains("batch axis 0"));
    }
}

mod index {
    use super::*;
    use oxbridge::ops::{GatherDims, IndexMode, ScatterDims, ScatterKind};

    const MODES: [IndexMode; 3] =
        [IndexMode::Clip, IndexMode::FillOrDrop, IndexMode::PromiseInBounds];

    #[test]
    fn slices_of_two_axes_follow_their_rules() {
        let d = GatherDims {
            offset_dims: vec![0, 2],
            start_index_map: vec![1, 0],
            ..GatherDims::default()
        };
        let at = ints(&[1, 3, 0, 2, 0, 1], &[2, 3]);
        for mode in MODES {
            let f = |xs: &[Value]| ops::gather(&xs[0], &xs[1], &d, &[2, 2], mode);
            check(&format!("gather {mode:?}"), &[floats(&[4, 5], 1), at.clone()], &f);
        }
    }

    #[test]
    fn indices_outside_fill_with_zero_derivative() {
        let at = ints(&[1, -1, 0, 3], &[4]);
        let x = floats(&[3, 2], 1);
        let f = |xs: &[Value]| ops::take(&xs[0], &xs[1], 0);
        check_value("take", &[x.clone(), at.clone()], &f, 0.0);
        check_vmap("take", &[x.clone(), at.clone()], &f);
        let cts = gradients(&f, &[value(&x), value(&at)]).unwrap();
        let row = host(&cts[0]).to_vec::<f64>().unwrap();
        assert!(row[0] != 0.0 && row[2] != 0.0 && row[4] == 0.0, "{row:?}");
        for dtype in [DType::U8, DType::U64, DType::U32, DType::I16] {
            let f = |xs: &[Value]| ops::take(&xs[0], &ops::convert(&xs[1], dtype)?, 0);
            check_value("take", &[x.clone(), at.clone()], &f, 0.0);
        }
    }

    #[test]
    fn takes_follow_their_rules() {
        let rows = ints(&[2, 0, 1, 1], &[2, 2]);
        for axis in 0..2 {
            let f = |xs: &[Value]| ops::take(&xs[0], &xs[1], axis);
            check(&format!("take {axis}"), &[floats(&[3, 3], 1), rows.clone()], &f);
        }
        let f = |xs: &[Value]| ops::take_along_axis(&xs[0], &xs[1], 1);
        check("take_along_axis", &[floats(&[2, 3], 1), rows], &f);
        let f = |xs: &[Value]| ops::take(&xs[0], &xs[1], 1);
        check("take of one", &[floats(&[2, 3], 1), ints(&[2], &[])], &f);
    }

    #[test]
    fn scatters_follow_their_rules() {
        let d = ScatterDims {
            update_window_dims: vec![0],
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![0, 1],
            index_vector_dim: 1,
            ..ScatterDims::default()
        };
        let at = ints(&[0, 1, 0, 2, 1, 0], &[3, 2]);
        let xs = [floats(&[2, 4], 1), at, floats(&[2, 3], 2)];
        for mode in MODES {
            for kind in [ScatterKind::Set, ScatterKind::Add] {
                let f = |xs: &[Value]| ops::scatter(&xs[0], &xs[1], &xs[2], &d, kind, mode);
                check(&format!("{kind:?} {mode:?}"), &xs, &f);
            }
            for kind in [ScatterKind::Mul, ScatterKind::Min, ScatterKind::Max] {
                let f = |xs: &[Value]| ops::scatter(&xs[0], &xs[1], &xs[2], &d, kind, mode);
                check_value(&format!("{kind:?} {mode:?}"), &xs, &f, 1e-12);
                check_vmap(&format!("{kind:?} {mode:?}"), &xs, &f);
                let error = gradients(&f, &xs.each_ref().map(value)).unwrap_err();
                assert_eq!(*error.kind(), ErrorKind::NoRule);
            }
            let f = |xs: &[Value]| {
                let y = ops::full_like(&xs[0], 2.0)?;
                let y = ops::broadcast_in_dim(&ops::reduce_sum(&y, &[0, 1])?, &[2, 3].into(), &[])?;
                ops::scatter(&xs[0], &xs[1], &y, &d, ScatterKind::Mul, mode)
            };
            check("scatter_mul in its operand", &xs[..2], &f);
        }
    }

    #[test]
    fn scatters_along_an_axis_and_outside() {
        let at = ints(&[2, 0, 1, 1, 2, 2], &[2, 3]);
        for kind in [ScatterKind::Set, ScatterKind::Add] {
            let f = |xs: &[Value]| ops::scatter_along_axis(&xs[0], &xs[1], &xs[2], 1, kind);
            check(
                &format!("{kind:?} along"),
                &[floats(&[2, 3], 1), at.clone(), floats(&[2, 3], 2)],
                &f,
            );
            let at = ints(&[-1, 0, 7, 3, 2, 1], &[2, 3]);
            let xs = [floats(&[2, 3], 1), at, floats(&[2, 3], 2)];
            check(&format!("{kind:?} along, some outside"), &xs, &f);
        }
    }

    #[test]
    fn what_does_not_fit_says_why() {
        let x = value(&floats(&[3, 2], 1));
        let at = value(&ints(&[0, 1], &[2]));
        let fails = |text: &str, got: Result<Value>| {
            let error = got.unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        fails("integers as indices", ops::take(&x, &x, 0));
        fails("has no axis 2", ops::take(&x, &at, 2));
        fails("differ in rank", ops::take_along_axis(&x, &at, 0));
        let d = GatherDims {
            offset_dims: vec![1],
            collapsed_slice_dims: vec![0],
            start_index_map: vec![0],
            index_vector_dim: 1,
            ..GatherDims::default()
        };
        let run = |d: GatherDims, sizes: &[usize]| ops::gather(&x, &at, &d, sizes, IndexMode::Clip);
        fails("must be 1, not 2", run(d.clone(), &[2, 2]));
        fails("does not fit axis 1", run(d.clone(), &[1, 3]));
        fails("one slice size an axis", run(d.clone(), &[1]));
        fails("components", run(GatherDims { start_index_map: vec![0, 1], ..d.clone() }, &[1, 2]));
        fails("not in order", run(GatherDims { offset_dims: vec![2], ..d.clone() }, &[1, 2]));
        fails("axes are named for windows", run(GatherDims { offset_dims: vec![], ..d }, &[1, 2]));
        let d = ScatterDims {
            update_window_dims: vec![1],
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![0],
            index_vector_dim: 1,
            ..ScatterDims::default()
        };
        let run =
            |y: &HostArray| ops::scatter(&x, &at, &value(y), &d, ScatterKind::Add, IndexMode::Clip);
        fails("do not have the shape", run(&floats(&[3, 2], 1)));
        fails("does not fit axis 1", run(&floats(&[2, 3], 1)));
        fails("does not promote", run(&ints(&[1, 2, 3, 4], &[2, 2])));
    }
}

mod conv {
    use super::*;
    use oxbridge::ops::{ConvDims, Precision};

    fn run(what: &str, x: &[usize], w: &[usize], d: &ConvDims) {
        let f = |xs: &[Value]| ops::conv_general(&xs[0], &xs[1], d, Precision::Default, None);
        check(what, &[floats(x, 1), floats(w, 2)], &f);
    }

    #[test]
    fn convolutions_follow_their_rules() {
        run("plain", &[1, 2, 4], &[2, 2, 3], &ConvDims::new(1));
        let d = ConvDims {
            strides: vec![2, 1],
            padding: vec![(1, 2), (0, -1)],
            lhs_dilation: vec![1, 2],
            rhs_dilation: vec![2, 1],
            window_reversal: vec![false, true],
            ..ConvDims::new(2)
        };
        run("all of it", &[1, 1, 3, 3], &[2, 1, 2, 2], &d);
        let d = ConvDims {
            lhs_batch: 0,
            lhs_feature: 2,
            lhs_spatial: vec![1],
            rhs_out_feature: 2,
            rhs_in_feature: 1,
            rhs_spatial: vec![0],
            out_batch: 2,
            out_feature: 0,
            out_spatial: vec![1],
            ..ConvDims::new(1)
        };
        run("axes in another order", &[2, 3, 1], &[2, 1, 2], &d);
    }

    #[test]
    fn grouped_convolutions_follow_their_rules() {
        let d = ConvDims { feature_groups: 2, padding: vec![(1, 0)], ..ConvDims::new(1) };
        run("feature groups", &[2, 4, 3], &[4, 2, 2], &d);
        let d = ConvDims { batch_groups: 2, strides: vec![2], ..ConvDims::new(1) };
        run("batch groups", &[4, 2, 3], &[4, 2, 2], &d);
    }

    #[test]
    fn convolutions_that_do_not_fit_say_why() {
        let fails = |text: &str, x: &[usize], w: &[usize], d: ConvDims| {
            let (x, w) = (value(&floats(x, 1)), value(&floats(w, 2)));
            let error = ops::conv_general(&x, &w, &d, Precision::Default, None).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        };
        let one = || ConvDims::new(1);
        fails("spatial axes", &[1, 2], &[1, 2, 3], one());
        fails("more than three", &[1; 6], &[1; 6], ConvDims::new(4));
        fails("are not those of lhs", &[1, 2, 3], &[1, 2, 3], ConvDims { lhs_batch: 1, ..one() });
        fails(
            "stride or dilation is 0",
            &[1, 2, 3],
            &[1, 2, 3],
            ConvDims { strides: vec![0], ..one() },
        );
        fails("need 1 entries", &[1, 2, 3], &[1, 2, 3], ConvDims { padding: vec![], ..one() });
        fails("has 2 features", &[1, 2, 3], &[1, 3, 3], one());
        fails("do not divide", &[1, 2, 3], &[3, 1, 3], ConvDims { feature_groups: 2, ..one() });
        fails("the batch of lhs", &[1, 2, 3], &[2, 2, 3], ConvDims { batch_groups: 2, ..one() });
        let both = ConvDims { batch_groups: 2, feature_groups: 2, ..one() };
        fails("one of them must be 1", &[2, 2, 3], &[2, 1, 3], both);
    }
}

mod window {
    use super::*;
    use oxbridge::ops::{Pick, WindowDims};

    fn windows() -> Vec<(&'static str, Vec<usize>, WindowDims)> {
        let plain = WindowDims::new(&[1, 2], &[1, 2]);
        let padded =
            WindowDims { padding: vec![(1, 0), (0, 2)], ..WindowDims::new(&[2, 3], &[1, 2]) };
        let holes = WindowDims {
            window_dilation: vec![2],
            base_dilation: vec![2],
            padding: vec![(2, 1)],
            ..WindowDims::new(&[2], &[1])
        };
        let cut = WindowDims { padding: vec![(-1, 1)], ..WindowDims::new(&[3], &[1]) };
        vec![
            ("plain", vec![2, 5], plain),
            ("padded", vec![2, 4], padded),
            ("with holes", vec![5], holes),
            ("cut", vec![6], cut),
        ]
    }

    #[test]
    fn window_sums_follow_their_rules() {
        for (name, shape, d) in windows() {
            let f = |xs: &[Value]| ops::reduce_window_sum(&xs[0], &d);
            check(&format!("window sum, {name}"), &[floats(&shape, 1)], &f);
        }
    }

    #[test]
    fn window_maxima_follow_their_rules() {
        for (name, shape, d) in windows() {
            // Windows over padding alone are infinite: what is finite is looked at.
            let finite = |y: &Value| ops::select(&ops::is_finite(y)?, y, &ops::full_like(y, 0.0)?);
            let f = |xs: &[Value]| finite(&ops::reduce_window_max(&xs[0], &d)?);
            check(&format!("window max, {name}"), &[floats(&shape, 1)], &f);
            let f = |xs: &[Value]| finite(&ops::reduce_window_min(&xs[0], &d)?);
            check(&format!("window min, {name}"), &[floats(&shape, 3)], &f);
        }
    }

    #[test]
    fn picked_elements_follow_their_rules() {
        let d = WindowDims { padding: vec![(1, 1)], ..WindowDims::new(&[2], &[2]) };
        let x = HostArray::from_slice(&[3i32, 1, 4, 1], &[4].into()).unwrap();
        for pick in [Pick::Ge, Pick::Le] {
            let f = |xs: &[Value]| {
                ops::select_and_scatter_add(&ops::convert(&xs[0], DType::F64)?, &xs[1], &d, pick)
            };
            check("select_and_scatter_add", &[x.clone(), floats(&[3], 1)], &f);
            let f = |xs: &[Value]| ops::select_and_gather(&xs[0], &xs[1], &d, pick);
            check("select_and_gather", &[x.clone(), floats(&[4], 1)], &f);
        }
    }

    #[test]
    fn windows_that_do_not_fit_say_why() {
        let x = value(&floats(&[4], 1));
        let fails = |text: &str, got: Result<Value>| {
            let error = got.unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        let d = WindowDims::new(&[2], &[1]);
        fails("one entry", ops::reduce_window_sum(&x, &WindowDims::new(&[2, 2], &[1, 1])));
        fails("is 0", ops::reduce_window_sum(&x, &WindowDims::new(&[2], &[0])));
        let bools = ops::lt(&x, &x).unwrap();
        fails("numbers, not bool", ops::reduce_window_sum(&bools, &d));
        fails("one element a window", ops::select_and_scatter_add(&x, &x, &d, Pick::Ge));
        let holes = WindowDims { window_dilation: vec![2], ..d };
        fails("no dilation", ops::select_and_scatter_add(&x, &x, &holes, Pick::Ge));
    }
}

mod sharding {
    use super::*;
    use oxbridge::mesh::DeviceId;
    use oxbridge::spec;

    #[test]
    fn constraints_are_written_and_differentiated() {
        let ids: Vec<_> = (0..2).map(|index| DeviceId { client: 0, index }).collect();
        let mesh = Mesh::from_ids(&ids, &[("data", 2)]).unwrap();
        let sharding = NamedSharding::new(&mesh, spec!["data", None]).unwrap();
        let f =
            |x: &Tensor| Ok(Tensor::from_value(ops::sharding_constraint(&x.value()?, &sharding)?));
        let lowered = |graph: &oxbridge::trace::graph::Graph| {
            module(graph, &Entry { name: "test", partitions: 2, ..Entry::default() }).unwrap()
        };
        let x = Tensor::from_value(value(&floats(&[3, 2, 4], 1)));
        let text = lowered(&make_graph(vmap(f))(&x).unwrap());
        assert!(text.contains("#sdy.sharding<@mesh, [{?}, {\"data\"}, {}]>"), "{text}");
        let x = Tensor::from_value(value(&floats(&[2, 4], 1)));
        let text = lowered(&make_graph(grad(|x: &Tensor| f(x)?.sin()?.sum()))(&x).unwrap());
        assert_eq!(text.matches("sdy.sharding_constraint").count(), 2, "{text}");
        let x = value(&floats(&[3, 4], 1));
        let error = ops::sharding_constraint(&x, &sharding).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Sharding);
    }

    #[test]
    fn barriers_follow_their_rules() {
        let f = |xs: &[Value]| {
            let held = ops::optimization_barrier(xs)?;
            ops::mul(&held[0], &held[1])
        };
        check("barrier", &[floats(&[3], 1), floats(&[3], 2)], &f);
    }
}
