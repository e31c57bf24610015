//! Transforms in every nesting on small functions.

use oxbridge::prelude::*;
use oxbridge::transforms::jit::make_graph;

fn x() -> Tensor {
    Tensor::from_slice(&[0.5f64, 1.0, 2.0], [3]).unwrap()
}

fn f(x: &Tensor) -> Result<Tensor> {
    x.mul(x)?.sin()?.sum()
}

fn slope(x: f64) -> f64 {
    (x * x).cos() * 2.0 * x
}

fn curvature(x: f64) -> f64 {
    2.0 * (x * x).cos() - 4.0 * x * x * (x * x).sin()
}

fn close(tensor: &Tensor, expected: &[f64]) {
    let got = tensor.to_vec::<f64>().unwrap();
    assert_eq!(got.len(), expected.len(), "number of elements");
    for (a, b) in got.iter().zip(expected) {
        assert!((a - b).abs() < 1e-12 * (1.0 + b.abs()), "{got:?} is not {expected:?}");
    }
}

#[test]
fn graph_prints() {
    let graph = make_graph(|x: &Tensor| x.sin())(&x()).unwrap();
    assert_eq!(graph.to_string(), "{ a:f64[3] -> b:f64[3] = sin a; (b) }");
    graph.check().unwrap();
}

#[test]
fn grad_nests_with_itself_jit_and_vmap() {
    let points = [0.5f64, 1.0, 2.0];
    let slopes = points.map(slope);
    close(&grad(f)(&x()).unwrap(), &slopes);
    close(&jit(grad(f)).call(x()).unwrap(), &slopes);
    let inner = jit(f);
    close(&grad(|x: &Tensor| inner.call(x))(&x()).unwrap(), &slopes);
    close(&vmap(grad(f))(&x()).unwrap(), &slopes);
    let curvatures = points.map(curvature);
    let second = |x: &Tensor| grad(|x: &Tensor| grad(f)(x)?.sum())(x);
    close(&second(&x()).unwrap(), &curvatures);
    close(&jit(second).call(x()).unwrap(), &curvatures);
    close(&vmap(second)(&x()).unwrap(), &curvatures);
    let through = |x: &Tensor| {
        let inner = jit(f);
        grad(|x: &Tensor| grad(|x: &Tensor| inner.call(x))(x)?.sum())(x)
    };
    close(&through(&x()).unwrap(), &curvatures);
    let (_, t) =
        jvp(|x: &Tensor| grad(f)(x), &x(), &Tensor::from_slice(&[1f64; 3], [3]).unwrap()).unwrap();
    close(&t, &curvatures);
    let (_, t) =
        jvp(|x: &Tensor| inner.call(x), &x(), &Tensor::from_slice(&[1f64; 3], [3]).unwrap())
            .unwrap();
    close(&t, &[slopes.iter().sum()]);
    let batched = jit(f);
    close(&vmap(|x: &Tensor| batched.call(x))(&x()).unwrap(), &points.map(|x| (x * x).sin()));
}

#[test]
fn jit_reads_captures_anew_and_writes_back() {
    let state = Tensor::from_slice(&[1f64], [1]).unwrap();
    let captured = state.clone();
    let step = jit(move |x: &Tensor| {
        let new = captured.mul(x)?;
        captured.set_value(new.value()?)?;
        Ok(new)
    });
    let two = Tensor::from_slice(&[2f64], [1]).unwrap();
    step.call(&two).unwrap();
    close(&state, &[2.0]);
    step.call(&two).unwrap();
    close(&state, &[4.0]);
    assert_eq!(step.compiled(), 1);
}

#[test]
fn a_leaked_tracer_is_named() {
    let leak = std::sync::Mutex::new(None);
    let f = jit(|x: &Tensor| {
        *leak.lock().unwrap() = Some(x.clone());
        x.sin()
    });
    f.call(x()).unwrap();
    let error = leak.lock().unwrap().take().unwrap().sin().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::LeakedTracer);
    assert!(error.to_string().contains("`jit`"), "{error}");
}

#[test]
fn graphs_print_with_what_they_call() {
    let wave = jit(|x: &Tensor| x.sin()?.neg()).named("wave");
    let f = |x: &Tensor| {
        let step = |c: &Tensor, x: &Tensor| Ok((wave.call(c)?.mul(x)?, ()));
        let start = x.sum()?;
        let (end, ()) = scan(step, &start, x, ScanOptions::default())?;
        cond(&end.gt(0.0)?, |x: &Tensor| x.neg(), |x: &Tensor| x.abs(), &end)
    };
    let graph = make_graph(f)(&Tensor::zeros([3], DType::F32).unwrap()).unwrap();
    let text = "\
{ a:f32[3] ->
  b:f32[] = reduce_sum[axes=[0]] a;
  c:f32[] = scan[length=3, reverse=false, num_consts=0, num_carry=1, body={ a:f32[] b:f32[] ->
    c:f32[] = call[name=wave, graph={ a:f32[] ->
      b:f32[] = sin a;
      c:f32[] = neg b;
      (c)
    }] a;
    d:f32[] = mul c b;
    (d)
  }] b a;
  d:bool[] = gt c 0.0f32;
  e:i32[] = convert[dtype=i32] d;
  f:f32[] = cond[branches=[{ a:f32[] -> b:f32[] = abs a; (b) }, { a:f32[] -> b:f32[] = neg a; (b) }]] e c;
  (f)
}";
    assert_eq!(graph.to_string(), text);
}
