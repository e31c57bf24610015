//! Views, buffers, modes, ties, random numbers, dtypes: what is silently wrong elsewhere.

use super::{alone, list, on};
use crate::cases::engine::case::draws_alone;
use oxbridge::nn::{BatchNorm2d, Dropout, Sequential};
use oxbridge::prelude::*;
use oxbridge::tensor::random::{Generator, manual_seed};

fn x() -> Tensor {
    Tensor::from_slice(&(0..12).map(f64::from).collect::<Vec<_>>(), [3, 4]).unwrap()
}

type Write = fn(&Tensor) -> Result<()>;
type Element = fn(usize, usize) -> f64;

/// Each writes through a view; the last is what the base then holds, by hand.
const WRITES: &[(&str, Write, Element)] = &[
    (
        "a slice of a slice",
        |x| x.narrow(0, 0, 2)?.narrow(1, 0, 2)?.add_(1.0).map(drop),
        |i, j| at(i, j) + f64::from(i < 2 && j < 2),
    ),
    ("t", |x| x.t()?.add_(1.0).map(drop), |i, j| at(i, j) + 1.0),
    (
        "view",
        |x| x.view([-1])?.select(0, 5)?.fill_(0.5).map(drop),
        |i, j| {
            if (i, j) == (1, 1) { 0.5 } else { at(i, j) }
        },
    ),
    (
        "diagonal",
        |x| x.diagonal(0, 0, 1)?.fill_(-1.0).map(drop),
        |i, j| {
            if i == j { -1.0 } else { at(i, j) }
        },
    ),
    ("chunk", |x| x.chunk(2, 1)?[0].add_(1.0).map(drop), |i, j| at(i, j) + f64::from(j < 2)),
    (
        "select",
        |x| x.select(0, 1)?.mul_(2.0).map(drop),
        |i, j| at(i, j) * if i == 1 { 2.0 } else { 1.0 },
    ),
    ("unbind", |x| x.unbind(0)?[2].zero_().map(drop), |i, j| if i == 2 { 0.0 } else { at(i, j) }),
    ("detach", |x| x.detach()?.add_(1.0).map(drop), |i, j| at(i, j) + 1.0),
    (
        "fill_ of a slice",
        |x| x.narrow(0, 0, 2)?.fill_(7.0).map(drop),
        |i, j| {
            if i < 2 { 7.0 } else { at(i, j) }
        },
    ),
    (
        "masked_fill_ of a slice",
        |x| {
            let part = x.narrow(0, 1, 2)?;
            part.masked_fill_(&part.gt(9.0)?, 0.0).map(drop)
        },
        |i, j| if i > 0 && at(i, j) > 9.0 { 0.0 } else { at(i, j) },
    ),
    (
        "a copy from a part that overlaps",
        |x| x.narrow(0, 0, 2)?.copy_(&x.narrow(0, 1, 2)?).map(drop),
        |i, j| if i < 2 { at(i + 1, j) } else { at(i, j) },
    ),
];

fn at(i: usize, j: usize) -> f64 {
    (4 * i + j) as f64
}

#[test]
fn writes_through_views_arrive_eager_and_compiled() {
    for (name, write, after) in WRITES {
        let expected: Vec<f64> = (0..12).map(|k| after(k / 4, k % 4)).collect();
        let base = x();
        write(&base).unwrap();
        assert_eq!(list(&base), expected, "{name}");
        let base = x();
        let compiled = jit(|x: &Tensor| {
            write(x)?;
            Ok(())
        });
        compiled.call(&base).unwrap();
        assert_eq!(list(&base), expected, "{name}, an argument of jit");
        let base = x();
        let captured = base.clone();
        let compiled = jit(move |(): &()| write(&captured));
        compiled.call(()).unwrap();
        assert_eq!(list(&base), expected, "{name}, captured by jit");
    }
}

#[test]
fn a_view_sees_what_its_base_becomes() {
    let base = x();
    let row = base.select(0, 1).unwrap();
    base.mul_(10.0).unwrap();
    assert_eq!(list(&row), [40.0, 50.0, 60.0, 70.0]);
}

#[test]
fn in_place_keeps_shape_and_category() {
    let host = Client::host(1);
    let small = on(&host, &[1f32; 3], [1, 3]);
    let error = small.add_(&on(&host, &[1f32; 6], [2, 3])).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape);
    assert_eq!(small.shape(), Shape::from([1, 3]));
    let ints = on(&host, &[1i32, 2], [2]);
    let error = ints.add_(1.5).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::DType);
    assert_eq!(ints.to_vec::<i32>().unwrap(), [1, 2]);
}

#[test]
fn dtypes_are_torchs() {
    let host = Client::host(1);
    let half = on(&host, &[1f32], [1]).to_dtype(DType::BF16).unwrap();
    assert_eq!(half.add(&on(&host, &[1f32], [])).unwrap().dtype(), DType::BF16);
    assert_eq!(half.add(1.0).unwrap().dtype(), DType::BF16);
    let truth = on(&host, &[true, true], [2]);
    assert_eq!(truth.add(&truth).unwrap().dtype(), DType::Bool);
    let bytes = on(&host, &[100i8, 100], [2]);
    assert_eq!(bytes.cumsum(0).unwrap().to_vec::<i64>().unwrap(), [100, 200]);
    assert_eq!(bytes.sum().unwrap().item::<i64>().unwrap(), 200);
    let three = on(&host, &[3i64], [1]);
    assert_eq!(three.pow(39).unwrap().to_vec::<i64>().unwrap(), [3i64.pow(39)]);
    let big = on(&host, &[(1i64 << 53) + 1], [1]);
    assert_eq!(big.add(0).unwrap().to_vec::<i64>().unwrap(), [(1i64 << 53) + 1]);
    assert_eq!(Tensor::arange(0, 3, 1).unwrap().dtype(), DType::I64);
    assert_eq!(on(&host, &[1f64], [1]).mul(2.0).unwrap().dtype(), DType::F64);
}

/// Elsewhere an index out of range is clamped, and the neighbour's row comes back.
#[test]
fn an_index_out_of_range_reads_no_other_row() {
    let index = Tensor::from_slice(&[1i64, 9], [2]).unwrap();
    let rows = x().index_select(0, &index);
    let rows = list(&rows.unwrap());
    assert_eq!(rows[..4], [4.0, 5.0, 6.0, 7.0]);
    assert!(rows[4..].iter().all(|v| v.is_nan()), "{rows:?}");
    assert_eq!(*x().select(0, 3).unwrap_err().kind(), ErrorKind::Index);
}

fn norm() -> BatchNorm2d {
    BatchNorm2d::new(2, &Init::seed(0).dtype(DType::F64)).unwrap()
}

/// Two channels of two values each: means 2 and 15, unbiased variances 2 and 50.
fn images() -> Tensor {
    Tensor::from_slice(&[1.0, 3.0, 10.0, 20.0], [1, 2, 1, 2]).unwrap()
}

fn statistics(norm: &BatchNorm2d) -> (Vec<f64>, Vec<f64>, i64) {
    let steps = norm.num_batches_tracked.tensor().item().unwrap();
    (list(norm.running_mean.tensor()), list(norm.running_var.tensor()), steps)
}

fn near(got: &[f64], want: &[f64]) {
    let close = got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(close, "{got:?} is not {want:?}");
}

#[test]
fn batch_statistics_are_kept_eager_compiled_and_under_grad() {
    let check = |norm: &BatchNorm2d, steps: i32, how: &str| {
        let (mean, var, seen) = statistics(norm);
        let old = 0.9f64.powi(steps);
        near(&mean, &[2.0 * (1.0 - old), 15.0 * (1.0 - old)]);
        near(&var, &[old + 2.0 * (1.0 - old), old + 50.0 * (1.0 - old)]);
        assert_eq!(seen, i64::from(steps), "{how}");
    };
    let eager = norm();
    for step in 1..=3 {
        eager.forward(&images()).unwrap();
        check(&eager, step, "eager");
    }
    let passed = norm();
    let forward = jit(|(norm, x): (BatchNorm2d, Tensor)| norm.forward(&x));
    for step in 1..=3 {
        forward.call((&passed, &images())).unwrap();
        check(&passed, step, "an argument of jit");
    }
    let kept = norm();
    let captured = kept.clone();
    let forward = jit(move |x: &Tensor| captured.forward(x));
    for step in 1..=3 {
        forward.call(images()).unwrap();
        check(&kept, step, "captured by jit");
    }
    let learnt = norm();
    let loss = |norm: &BatchNorm2d| norm.forward(&images())?.sin()?.sum();
    for step in 1..=2 {
        grad(loss)(&learnt).unwrap();
        check(&learnt, step, "grad");
    }
    jit(grad(loss)).call(&learnt).unwrap();
    check(&learnt, 3, "jit of grad");
}

/// Theirs returns 1, 1, 1.
#[test]
fn a_counter_inside_of_jit_counts() {
    let count = Tensor::scalar(0i64);
    let captured = count.clone();
    let next = jit(move |(): &()| {
        captured.add_(1)?;
        captured.add(0)
    });
    let seen: Vec<i64> = (0..3).map(|_| next.call(()).unwrap().item().unwrap()).collect();
    assert_eq!(seen, [1, 2, 3]);
    assert_eq!(count.item::<i64>().unwrap(), 3);
}

#[test]
fn evaluation_after_the_first_trace_is_another_program() {
    let model = norm();
    let forward = jit(|(model, x): (BatchNorm2d, Tensor)| model.forward(&x));
    let trained = list(&forward.call((&model, &images())).unwrap());
    let before = statistics(&model);
    model.eval();
    let judged = list(&forward.call((&model, &images())).unwrap());
    assert_eq!(statistics(&model), before, "evaluation changes no statistics");
    let (mean, var, _) = before;
    let by_hand = |x: f64, c: usize| (x - mean[c]) / (var[c] + 1e-5).sqrt();
    near(&judged, &[by_hand(1.0, 0), by_hand(3.0, 0), by_hand(10.0, 1), by_hand(20.0, 1)]);
    assert_ne!(trained, judged);
    model.train(true);
    assert_eq!(list(&forward.call((&model, &images())).unwrap()), trained);
    assert_eq!(forward.compiled(), 2);
}

/// Theirs keeps the mode of the first trace for a module that the function captured.
#[test]
fn evaluation_is_seen_by_a_function_that_captured_the_model() {
    let _alone = draws_alone();
    let model = norm();
    let forward = jit(|x: &Tensor| model.forward(x));
    let trained = list(&forward.call(images()).unwrap());
    let before = statistics(&model);
    model.eval();
    let judged = list(&forward.call(images()).unwrap());
    assert_ne!(trained, judged);
    assert_eq!(statistics(&model), before, "evaluation changes no statistics");
    near(&judged, &list(&model.forward(&images()).unwrap()));
    model.train(true);
    assert_eq!(list(&forward.call(images()).unwrap()), trained);
    assert_eq!(statistics(&model).2, 2);
    // Dropout as well, whose mode changes whether anything is drawn.
    let dropout = Dropout::new(0.5).unwrap();
    let noisy = jit(|x: &Tensor| dropout.forward(x));
    let ones = Tensor::ones([256], DType::F32).unwrap();
    assert_ne!(list(&noisy.call(&ones).unwrap()), [1.0; 256]);
    dropout.eval();
    assert_eq!(list(&noisy.call(&ones).unwrap()), [1.0; 256]);
}

/// Handles of one weight are one weight: what is written through one is read through the other.
#[test]
fn tied_weights_stay_tied() {
    #[derive(Clone, Debug, Module)]
    struct Tied {
        embedding: Tensor,
        head: Tensor,
    }
    let weight = Tensor::from_slice(&[1.0, 2.0], [2]).unwrap();
    let model = Tied { embedding: weight.clone(), head: weight };
    let tied = |model: &Tied, expected: &[f64], how: &str| {
        assert!(model.embedding.same_storage(&model.head), "{how}");
        assert_eq!(list(&model.embedding), expected, "{how}");
        assert_eq!(list(&model.head), expected, "{how}");
    };
    model.embedding.mul_(2.0).unwrap();
    tied(&model, &[2.0, 4.0], "in place");
    let captured = model.clone();
    let step = jit(move |(): &()| {
        captured.embedding.add_(1.0)?;
        captured.head.mul(1.0)
    });
    assert_eq!(list(&step.call(()).unwrap()), [3.0, 5.0], "seen inside of jit");
    tied(&model, &[3.0, 5.0], "captured by jit");
    let state = model.state_dict();
    assert_eq!(state.keys().collect::<Vec<_>>(), ["embedding", "head"]);
    let fresh = Tensor::from_slice(&[7.0, 8.0], [2]).unwrap();
    let fresh = [("embedding", &fresh), ("head", &fresh)];
    let fresh = fresh.into_iter().map(|(name, t)| (name.to_string(), t.clone())).collect();
    model.load_state_dict(&fresh).unwrap();
    tied(&model, &[7.0, 8.0], "loaded");
    // A weight that is used twice has the sum of both uses' gradients.
    let loss = |w: &Tensor| w.mul(w)?.sum();
    assert_eq!(list(&grad(loss)(&model.head).unwrap()), [14.0, 16.0]);
}

#[test]
fn dropout_differs_between_calls_and_repeats_with_the_seed() {
    let _alone = draws_alone();
    let name = "pitfalls::state::dropout_differs_between_calls_and_repeats_with_the_seed";
    if !alone(name, &[]) {
        return;
    }
    let model = Sequential::new().then(Dropout::new(0.5).unwrap());
    let ones = Tensor::ones([64], DType::F32).unwrap();
    let compiled = jit(|(model, x): (Sequential, Tensor)| model.forward(&x));
    let captured = model.clone();
    let inside = jit(move |x: &Tensor| captured.forward(x));
    let slope = |x: &Tensor| grad(|x: &Tensor| model.forward(x)?.sum())(x);
    let hows: [&dyn Fn() -> Result<Tensor>; 4] = [
        &|| model.forward(&ones),
        &|| compiled.call((&model, &ones)),
        &|| inside.call(&ones),
        &|| slope(&ones),
    ];
    let mut streams = Vec::new();
    for draw in hows {
        let stream = || {
            manual_seed(7).unwrap();
            let draws: Vec<_> = (0..4).map(|_| draw().unwrap().to_vec::<f32>().unwrap()).collect();
            draws
        };
        let first = stream();
        assert!((0..4).all(|i| (0..i).all(|j| first[i] != first[j])), "each call draws anew");
        assert!(first.iter().flatten().all(|v| *v == 0.0 || *v == 2.0));
        assert_eq!(stream(), first, "the seed repeats them");
        streams.push(first);
    }
    assert!(streams.iter().all(|s| *s == streams[0]), "eager, compiled and under grad alike");
    assert_eq!((compiled.compiled(), inside.compiled()), (1, 1));
    // Nothing of a trace is left in the generator, also after a trace that fails.
    let broken = jit(|x: &Tensor| {
        Tensor::randn([2])?;
        x.add(&Tensor::zeros([3], DType::F32)?)
    });
    broken.call(&ones).unwrap_err();
    Tensor::randn([2]).unwrap().to_vec::<f32>().unwrap();
    // Threads share the one stream.
    let thread = || std::thread::spawn(|| Tensor::randn([4]).unwrap().to_vec::<f32>().unwrap());
    assert_ne!(thread().join().unwrap(), thread().join().unwrap());
}

#[test]
fn a_generator_moves_on_and_leaks_no_tracer() {
    let generator = std::sync::Arc::new(Generator::new(5).unwrap());
    let own = std::sync::Arc::clone(&generator);
    let draw = jit(move |(): &()| own.key()?.normal([3], DType::F64));
    let numbers: Vec<Vec<f64>> = (0..3).map(|_| list(&draw.call(()).unwrap())).collect();
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2]);
    let eager = Generator::new(5).unwrap();
    for drawn in &numbers {
        near(&list(&eager.key().unwrap().normal([3], DType::F64).unwrap()), drawn);
    }
    let state = generator.state();
    assert!(matches!(state.value().unwrap(), oxbridge::Value::Array(_)));
    // Through nested transforms, too.
    let own = std::sync::Arc::clone(&generator);
    let noisy = move |x: &Tensor| own.key()?.normal([], DType::F64)?.mul(x)?.sum();
    let slope = jit(grad(noisy));
    let one = Tensor::scalar(1.0f64);
    assert_ne!(list(&slope.call(&one).unwrap()), list(&slope.call(&one).unwrap()));
    list(&generator.key().unwrap().normal([2], DType::F64).unwrap());
    // A state is put back as any tensor.
    let saved = generator.state().copy().unwrap();
    let next = || list(&generator.key().unwrap().normal([2], DType::F64).unwrap());
    let first = next();
    generator.state().copy_(&saved).unwrap();
    assert_eq!(next(), first);
}

/// Theirs is left with a handle on memory that another program has overwritten.
#[test]
fn a_donated_tensor_is_an_error_and_a_copy_is_not() {
    let client = Client::cpu(1).unwrap();
    let step = jit(|x: &Tensor| x.add(1.0)).donate([0]);
    let old = on(&client, &[1f32, 2.0], [2]);
    let copy = old.copy().unwrap();
    let new = step.call(&old).unwrap();
    assert_eq!(list(&new), [2.0, 3.0]);
    assert_eq!(list(&copy), [1.0, 2.0]);
    assert_eq!(*old.to_vec::<f32>().unwrap_err().kind(), ErrorKind::Donated);
    // Also as an operand, and twice in one call.
    assert_eq!(*step.call(&old).unwrap_err().kind(), ErrorKind::Donated);
    let pair = jit(|(a, b): (Tensor, Tensor)| a.add(&b)).donate([0]);
    assert_eq!(list(&pair.call((&new, &new)).unwrap()), [4.0, 6.0]);
}

/// An `if` on a value inside of `jit` is told, with what to write.
#[test]
fn a_branch_on_a_traced_value_names_cond() {
    let f = jit(|x: &Tensor| if x.sum()?.item::<f64>()? > 0.0 { x.sin() } else { x.cos() });
    let error = f.call(x()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotConcrete);
    assert!(error.to_string().contains("`cond`"), "{error}");
    assert!(error.location().unwrap().file().ends_with("state.rs"), "{error}");
}
