//! The torch face: promotion, broadcasting, operators, views, in-place methods, printing.

use crate::cases::engine::case::draws_alone;
use oxbridge::prelude::*;
use oxbridge::tensor::promotion::{Operand, result_type};

fn f32s(data: &[f32]) -> Tensor {
    Tensor::from_slice(data, [data.len()]).unwrap()
}

#[test]
fn promotion_follows_the_categories() {
    use DType::*;
    let dims = |d| Tensor::zeros([2], d).unwrap();
    let zero = |d| Tensor::zeros((), d).unwrap();
    let rows: &[(DType, DType, DType)] = &[
        // tensor with dimensions, tensor without, result
        (F32, F64, F32),
        (F16, F32, F16),
        (I32, I64, I32),
        (U8, I64, U8),
        (I64, F64, F64),
        (I32, F16, F16),
        (Bool, I32, I32),
        (Bool, F64, F64),
        (F32, C64, C64),
        (F64, C64, C128),
        (C64, F64, C64),
    ];
    for &(a, b, out) in rows {
        let (a, b) = (dims(a), zero(b));
        assert_eq!(result_type(&[(&a).into(), (&b).into()]).unwrap(), out, "{a:?} {b:?}");
    }
    let numbers: &[(DType, Operand<'_>, DType)] = &[
        (F16, 2.0.into(), F16),
        (F32, 2i64.into(), F32),
        (I32, 2i64.into(), I32),
        (I32, 2.0.into(), F32),
        (U8, 300i64.into(), U8),
        (Bool, 2i64.into(), I64),
        (Bool, 2.0f64.into(), F32),
        (Bool, true.into(), Bool),
        (C128, 2.0.into(), C128),
    ];
    for &(a, b, out) in numbers {
        for a in [dims(a), zero(a)] {
            assert_eq!(result_type(&[(&a).into(), b]).unwrap(), out, "{a:?} {b:?}");
        }
    }
    let pairs: &[(DType, DType, DType)] = &[
        (U8, I8, I16),
        (U8, I32, I32),
        (F16, BF16, F32),
        (I64, F16, F16),
        (F32, F64, F64),
        (C64, F64, C128),
        (Bool, U8, U8),
    ];
    for &(a, b, out) in pairs {
        assert_eq!(dims(a).add(&dims(b)).unwrap().dtype(), out, "{a} {b}");
        assert_eq!(dims(b).mul(&dims(a)).unwrap().dtype(), out, "{b} {a}");
    }
}

#[test]
fn operators_take_tensors_and_numbers_on_both_sides() {
    let x = f32s(&[1.0, -2.0, 4.0]);
    let y = f32s(&[2.0, 2.0, 3.0]);
    let rows: Vec<(&str, Tensor, [f32; 3])> = vec![
        ("add", &x + &y, [3.0, 0.0, 7.0]),
        ("owned", x.clone() + y.clone(), [3.0, 0.0, 7.0]),
        ("left owned", x.clone() - &y, [-1.0, -4.0, 1.0]),
        ("right owned", &x * y.clone(), [2.0, -4.0, 12.0]),
        ("div", &x / 2, [0.5, -1.0, 2.0]),
        ("number left", 1.0 - &x, [0.0, 3.0, -3.0]),
        ("integer left", 8i64 / &x, [8.0, -4.0, 2.0]),
        ("remainder", &x % &f32s(&[3.0, 3.0, -3.0]), [1.0, 1.0, -2.0]),
        ("neg", -&x, [-1.0, 2.0, -4.0]),
        ("chain", (2.0 * &x + 1) / 2.0, [1.5, -1.5, 4.5]),
    ];
    for (name, out, expected) in rows {
        assert_eq!(out.to_vec::<f32>().unwrap(), expected, "{name}");
    }
    let p = Tensor::from_slice(&[true, true, false], [3]).unwrap();
    let q = Tensor::from_slice(&[true, false, false], [3]).unwrap();
    assert_eq!((&p & &q).to_vec::<bool>().unwrap(), [true, false, false]);
    assert_eq!((&p | &q).to_vec::<bool>().unwrap(), [true, true, false]);
    assert_eq!((&p ^ !&q).to_vec::<bool>().unwrap(), [true, false, true]);
}

#[test]
fn element_wise_methods_give_torch_values() {
    let ints = |v: &[i64]| Tensor::from_slice(v, [v.len()]).unwrap();
    let a = ints(&[7, -7, 7, -7]);
    let b = ints(&[2, 2, -2, -2]);
    assert_eq!(a.floor_divide(&b).unwrap().to_vec::<i64>().unwrap(), [3, -4, -4, 3]);
    assert_eq!(a.remainder(&b).unwrap().to_vec::<i64>().unwrap(), [1, 1, -1, -1]);
    assert_eq!(a.fmod(&b).unwrap().to_vec::<i64>().unwrap(), [1, -1, 1, -1]);
    assert_eq!(a.div(&b).unwrap().to_vec::<f32>().unwrap(), [3.5, -3.5, -3.5, 3.5]);
    assert_eq!(a.pow(2i64).unwrap().to_vec::<i64>().unwrap(), [49; 4]);
    let x = Tensor::from_slice(&[-1.5f64, -0.2, 0.0, 0.3, 2.5], [5]).unwrap();
    type Method = fn(&Tensor) -> Result<Tensor>;
    type Expected = fn(f64) -> f64;
    let rows: &[(&str, Method, Expected)] = &[
        ("sinh", |x| x.sinh(), f64::sinh),
        ("cosh", |x| x.cosh(), f64::cosh),
        ("asinh", |x| x.asinh(), f64::asinh),
        ("atan", |x| x.atan(), f64::atan),
        ("asin", |x| x.div(3.0)?.asin(), |x| (x / 3.0).asin()),
        ("acos", |x| x.div(3.0)?.acos(), |x| (x / 3.0).acos()),
        ("atanh", |x| x.div(3.0)?.atanh(), |x| (x / 3.0).atanh()),
        ("acosh", |x| x.abs()?.add(1.0)?.acosh(), |x| (x.abs() + 1.0).acosh()),
        ("exp2", |x| x.exp2(), f64::exp2),
        ("trunc", |x| x.trunc(), f64::trunc),
        ("softplus", |x| x.softplus(1.0, 20.0), |x| (1.0 + x.exp()).ln()),
        ("logsigmoid", |x| x.logsigmoid(), |x| -(1.0 + (-x).exp()).ln()),
        ("silu", |x| x.silu(), |x| x / (1.0 + (-x).exp())),
        ("elu", |x| x.elu(1.0), |x| if x > 0.0 { x } else { x.exp_m1() }),
        ("leaky_relu", |x| x.leaky_relu(0.1), |x| if x > 0.0 { x } else { 0.1 * x }),
        ("relu6", |x| x.mul(4.0)?.relu6(), |x| (4.0 * x).clamp(0.0, 6.0)),
        ("hypot", |x| x.hypot(2.0), |x| x.hypot(2.0)),
        ("logaddexp", |x| x.logaddexp(1.0), |x| (x.exp() + 1f64.exp()).ln()),
        ("copysign", |x| x.copysign(-1.0), |x| x.copysign(-1.0)),
        ("lerp", |x| x.lerp(&Tensor::scalar(1.0f64), 0.75), |x| x + 0.75 * (1.0 - x)),
    ];
    for (name, method, expected) in rows {
        let got = method(&x).unwrap_or_else(|e| panic!("{name}: {e}")).to_vec::<f64>().unwrap();
        for (v, got) in x.to_vec::<f64>().unwrap().into_iter().zip(got) {
            let want = expected(v);
            assert!(
                (got - want).abs() < 1e-6 * (1.0 + want.abs()),
                "{name}({v}) is {got}, not {want}"
            );
        }
    }
}

#[test]
fn gradients_follow_torch_at_the_edges() {
    let slope = |f: fn(&Tensor) -> Result<Tensor>, at: f32| {
        let x = Tensor::scalar(at);
        grad(f)(&x).unwrap().item::<f32>().unwrap()
    };
    assert_eq!(slope(|x| x.relu(), 0.0), 0.0);
    assert_eq!(slope(|x| x.clamp(0.0, 1.0), 1.0), 1.0);
    assert_eq!(slope(|x| x.asinh(), 0.0), 1.0);
    assert_eq!(slope(|x| x.sinh(), 100.0), f32::INFINITY);
    assert_eq!(slope(|x| x.sinc(), 0.0), 0.0);
    assert_eq!(slope(|x| x.detach()?.mul(x), 3.0), 3.0);
    assert_eq!(slope(|x| x.elu(1.0), 200.0), 1.0);
}

#[test]
fn in_place_methods_check_as_torch_does() {
    let x = f32s(&[1.0, 2.0, 3.0]);
    let handle = x.clone();
    x.add_(1.0).unwrap().mul_(&f32s(&[1.0, 0.0, 2.0])).unwrap();
    assert_eq!(handle.to_vec::<f32>().unwrap(), [2.0, 0.0, 8.0]);
    let own = x.copy().unwrap();
    x.zero_().unwrap();
    assert_eq!(own.to_vec::<f32>().unwrap(), [2.0, 0.0, 8.0]);
    let detached = x.detach().unwrap();
    detached.fill_(7i64).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [7.0; 3]);
    let mut y = x.clone();
    y += 1;
    assert_eq!(x.to_vec::<f32>().unwrap(), [8.0; 3]);
    let ints = Tensor::from_slice(&[1i64, 2], [2]).unwrap();
    let error = ints.add_(0.5).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::DType);
    assert_eq!(error.op(), "add_");
    assert_eq!(error.text(), "the result f32[2] cannot be written into i64[2]");
    let error = x.add_(&Tensor::zeros([2, 3], DType::F32).unwrap()).unwrap_err();
    assert_eq!(error.text(), "the result f32[2,3] does not fit into f32[3]");
    let counter = Tensor::scalar(0i64);
    let step = jit(|x: &Tensor| {
        counter.add_(1i64)?;
        x.add(1.0)
    });
    for _ in 0..3 {
        step.call(&x).unwrap();
    }
    assert_eq!(counter.item::<i64>().unwrap(), 3);
}

#[test]
fn errors_name_the_method_and_the_place() {
    let x = f32s(&[1.0, 2.0, 3.0]);
    let error = x.maximum(&f32s(&[1.0, 2.0])).unwrap_err();
    assert_eq!(error.op(), "maximum");
    assert!(error.location().is_some_and(|l| l.file().ends_with("tensor.rs")));
    assert_eq!(
        error.text(),
        "shapes [3] and [2] do not broadcast: axis 0 of the result would have size 3 and 2"
    );
    let error = catch(|| Ok(&x + &f32s(&[1.0, 2.0]))).unwrap_err();
    assert_eq!((error.op(), error.kind()), ("add", &ErrorKind::Shape));
    let error = jit(|x: &Tensor| Ok(x & x)).call(&x).unwrap_err();
    assert_eq!((error.op(), error.kind()), ("bitwise_and", &ErrorKind::DType));
    let error = x.item::<f32>().unwrap_err();
    assert_eq!(error.text(), "takes a tensor of one element, not f32[3]");
}

#[test]
fn prints_as_torch_does() {
    let t = |v: &[f32], s: &[usize]| Tensor::from_slice(v, s).unwrap().to_string();
    let rows: Vec<(String, &str)> = vec![
        (t(&[1.0, 2.0], &[2]), "tensor([1., 2.])"),
        (t(&[0.5, -2.0, 10.0], &[3]), "tensor([ 0.5000, -2.0000, 10.0000])"),
        (t(&[1e-5, 1.0], &[2]), "tensor([1.0000e-05, 1.0000e+00])"),
        (t(&[1.0, 2000.0], &[2]), "tensor([1.0000e+00, 2.0000e+03])"),
        (t(&[f32::NAN, 1.5, f32::INFINITY], &[3]), "tensor([   nan, 1.5000,    inf])"),
        (t(&[3.25], &[]), "tensor(3.2500)"),
        (t(&[], &[0]), "tensor([])"),
        (t(&[], &[2, 0]), "tensor([], size=[2,0])"),
        (t(&[1.0, 2.0, 3.0, 4.0], &[2, 1, 2]), "tensor([[[1., 2.]],\n\n        [[3., 4.]]])"),
        (Tensor::from_slice(&[true, false], [2]).unwrap().to_string(), "tensor([ True, False])"),
        (Tensor::from_slice(&[1i64, -20], [2]).unwrap().to_string(), "tensor([  1, -20])"),
        (Tensor::from_slice(&[1.5f64], [1]).unwrap().to_string(), "tensor([1.5000], dtype=f64)"),
        (
            Tensor::arange(0, 1001, 1).unwrap().to_string(),
            "tensor([   0,    1,    2,  ...,  998,  999, 1000])",
        ),
    ];
    for (got, expected) in rows {
        assert_eq!(got, expected);
    }
    let traced = std::sync::Mutex::new(String::new());
    jit(|x: &Tensor| {
        *traced.lock().unwrap() = x.to_string();
        x.neg()
    })
    .call(f32s(&[1.0]))
    .unwrap();
    assert_eq!(*traced.lock().unwrap(), "tensor(f32[1], traced by `jit`)");
}

#[test]
fn views_share_storage_both_ways() {
    let ints = |t: &Tensor| t.to_vec::<i64>().unwrap();
    let base = Tensor::arange(0, 12, 1).unwrap();
    let grid = base.view([3, -1]).unwrap();
    let row = grid.select(0, 1).unwrap();
    let column = grid.t().unwrap().select(0, -1).unwrap();
    row.fill_(50i64).unwrap();
    assert_eq!(ints(&base), [0, 1, 2, 3, 50, 50, 50, 50, 8, 9, 10, 11]);
    assert_eq!(ints(&column), [3, 50, 11]);
    base.zero_().unwrap();
    assert_eq!(ints(&row), [0; 4]);
    column.add_(&Tensor::arange(1, 4, 1).unwrap()).unwrap();
    assert_eq!(ints(&grid), [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]);
    grid.diagonal(1, 0, 1).unwrap().copy_(&Tensor::arange(7, 10, 1).unwrap()).unwrap();
    assert_eq!(ints(&base), [0, 7, 0, 1, 0, 0, 8, 2, 0, 0, 0, 9]);
    assert_eq!(ints(&grid.diagonal(-1, 0, 1).unwrap()), [0, 0]);
    grid.slice(1, Some(-3), None, 2).unwrap().fill_(4i64).unwrap();
    assert_eq!(ints(&base), [0, 4, 0, 4, 0, 4, 8, 4, 0, 4, 0, 4]);
    let parts = base.split(5, 0).unwrap();
    assert_eq!(parts.iter().map(Tensor::numel).collect::<Vec<_>>(), [5, 5, 2]);
    parts[2].fill_(-1i64).unwrap();
    assert_eq!(ints(&grid.narrow(0, 2, 1).unwrap()), [0, 4, -1, -1]);
    let wide = Tensor::zeros([1], DType::F32).unwrap().expand([3]).unwrap();
    assert!(wide.add_(1.0).is_err());
    assert_eq!(*grid.narrow(0, 2, 2).unwrap_err().kind(), ErrorKind::Index);
    assert_eq!(*grid.select(5, 0).unwrap_err().kind(), ErrorKind::Axis);
}

#[test]
fn views_work_inside_of_transforms() {
    let x = f32s(&[1.0, 2.0, 3.0, 4.0]);
    let f = |x: &Tensor| {
        let y = x.mul(2.0)?;
        y.view([2, 2])?.select(0, 0)?.mul_(10.0)?;
        y.mul(&y)?.sum()
    };
    let expected = [800.0, 1600.0, 24.0, 32.0];
    assert_eq!(grad(f)(&x).unwrap().to_vec::<f32>().unwrap(), expected);
    assert_eq!(jit(grad(f)).call(&x).unwrap().to_vec::<f32>().unwrap(), expected);
    let cache = Tensor::zeros([2, 2], DType::F32).unwrap();
    let write = jit(|x: &Tensor| {
        cache.select(0, 1)?.copy_(x)?;
        cache.sum()
    });
    assert_eq!(write.call(f32s(&[3.0, 4.0])).unwrap().item::<f32>().unwrap(), 7.0);
    assert_eq!(cache.to_vec::<f32>().unwrap(), [0.0, 0.0, 3.0, 4.0]);
}

#[test]
fn shape_methods_give_torch_values() {
    let x = Tensor::arange(0, 6, 1).unwrap().view([2, 3]).unwrap();
    let ints = |t: Result<Tensor>| {
        let t = t.unwrap();
        (t.shape().to_vec(), t.to_vec::<i64>().unwrap())
    };
    let shape = |t: Result<Tensor>| t.unwrap().shape().to_vec();
    assert_eq!(ints(x.flip([1])), (vec![2, 3], vec![2, 1, 0, 5, 4, 3]));
    assert_eq!(ints(x.roll(-1, 1)), (vec![2, 3], vec![1, 2, 0, 4, 5, 3]));
    assert_eq!(ints(x.repeat(&[2, 1, 2])).0, [2, 2, 6]);
    assert_eq!(ints(x.repeat_interleave(2, 0)).1, [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
    assert_eq!(ints(x.tril(0)).1, [0, 0, 0, 3, 4, 0]);
    assert_eq!(ints(x.triu(1)).1, [0, 1, 2, 0, 0, 5]);
    assert_eq!(ints(x.pad(&[1, -1, 0, 1], 9i64)), (vec![3, 3], vec![9, 0, 1, 9, 3, 4, 9, 9, 9]));
    let line = Tensor::arange(0, 3, 1).unwrap();
    use oxbridge::tensor::shape::PadMode;
    assert_eq!(ints(line.pad_mode(&[2, 1], PadMode::Reflect)).1, [2, 1, 0, 1, 2, 1]);
    assert_eq!(ints(line.pad_mode(&[2, 1], PadMode::Replicate)).1, [0, 0, 0, 1, 2, 2]);
    assert_eq!(ints(line.pad_mode(&[2, 1], PadMode::Circular)).1, [1, 2, 0, 1, 2, 0]);
    assert_eq!(ints(Tensor::cat(&[&x, &x.neg().unwrap()], 1)).0, [2, 6]);
    assert_eq!(
        Tensor::cat(&[x.clone(), x.to_dtype(DType::F64).unwrap()], 0).unwrap().dtype(),
        DType::F64
    );
    assert_eq!(ints(line.diag(1)).1, [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
    let y = Tensor::zeros([2, 1, 3, 1], DType::F32).unwrap();
    assert_eq!(shape(y.squeeze()), [2, 3]);
    assert_eq!(shape(y.squeeze_dim([1, 2])), [2, 3, 1]);
    assert_eq!(shape(y.unsqueeze(-1)), [2, 1, 3, 1, 1]);
    assert_eq!(shape(y.flatten(0, -2)), [6, 1]);
    assert_eq!(shape(y.unflatten(2, [3, -1])), [2, 1, 3, 1, 1]);
    assert_eq!(shape(y.movedim([0], [-1])), [1, 3, 1, 2]);
    assert_eq!(shape(y.expand([4, 2, -1, -1, 5])), [4, 2, 1, 3, 5]);
    assert_eq!(y.chunk(2, 2).unwrap().len(), 2);
}

#[test]
fn products_follow_torch_ranks() {
    let t = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        Tensor::from_slice(&(0..n).map(|i| i as f64 * 0.5 - 1.0).collect::<Vec<_>>(), shape)
            .unwrap()
    };
    type Row<'r> = (&'r [usize], &'r [usize], &'r [usize], &'r str);
    let rows: &[Row<'_>] = &[
        (&[3], &[3], &[], "i,i->"),
        (&[2, 3], &[3], &[2], "ij,j->i"),
        (&[3], &[3, 2], &[2], "j,jk->k"),
        (&[2, 3], &[3, 4], &[2, 4], "ij,jk->ik"),
        (&[5, 2, 3], &[3, 4], &[5, 2, 4], "bij,jk->bik"),
        (&[2, 3], &[5, 3, 4], &[5, 2, 4], "ij,bjk->bik"),
        (&[3], &[5, 3, 4], &[5, 4], "j,bjk->bk"),
        (&[5, 2, 3], &[3], &[5, 2], "bij,j->bi"),
        (&[5, 1, 2, 3], &[6, 3, 4], &[5, 6, 2, 4], "...ij,...jk->...ik"),
    ];
    for (a, b, out, equation) in rows {
        let (x, y) = (t(a), t(b));
        let got = x.matmul(&y).unwrap();
        let by_name = Tensor::einsum(equation, &[&x, &y]).unwrap();
        assert_eq!(got.shape().dims(), *out, "{equation}");
        assert_eq!(by_name.shape().dims(), *out, "{equation}");
        assert_eq!(got.to_vec::<f64>().unwrap(), by_name.to_vec::<f64>().unwrap(), "{equation}");
    }
    let x = t(&[2, 2]);
    assert_eq!(x.matmul(&x).unwrap().to_vec::<f64>().unwrap(), [1.0, 0.25, 0.0, 0.25]);
    let error = t(&[8, 3]).matmul(&t(&[4, 5])).unwrap_err();
    assert_eq!(
        error.text(),
        "lhs f64[8,3] and rhs f64[4,5] cannot be multiplied: axis 1 of lhs has size 3, but axis 0 of \
         rhs has size 4"
    );
    assert_eq!(Tensor::einsum("ab,c", &[&x, &t(&[3])]).unwrap().shape().dims(), [2, 2, 3]);
    assert!(Tensor::einsum("ab,c", &[&x]).is_err());
    assert_eq!(x.tensordot(&t(&[2, 4]), [0], [0]).unwrap().shape().dims(), [2, 4]);
    let out = t(&[2]).addmm(&x, &x, 2.0, 3.0).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(out, [1.0, -0.25, -2.0, -0.25]);
}

#[test]
fn reductions_give_torch_values() {
    let x = Tensor::from_slice(&[3.0f32, -1.0, 2.0, 0.0, 5.0, 5.0], [2, 3]).unwrap();
    let v = |t: Result<Tensor>| t.unwrap().to_vec::<f32>().unwrap();
    let i = |t: Result<Tensor>| t.unwrap().to_vec::<i64>().unwrap();
    assert_eq!(v(x.sum_dim([1], false)), [4.0, 10.0]);
    assert_eq!(x.mean_dim([0], true).unwrap().shape().dims(), [1, 3]);
    assert_eq!(v(x.prod_dim([0], false)), [0.0, -5.0, 10.0]);
    assert_eq!(v(x.amax_dim([-1], false)), [3.0, 5.0]);
    assert_eq!(i(x.argmax(None, false)), [4]);
    assert_eq!(i(x.argmin(Some(1), true)), [1, 0]);
    assert_eq!(v(x.var()), [6.266_667]);
    assert_eq!(v(x.std_dim([1], 0.0, false)), [(26.0f32 / 9.0).sqrt(), (50.0f32 / 9.0).sqrt()]);
    assert_eq!(v(x.norm(f64::INFINITY)), [5.0]);
    assert_eq!(v(x.norm_dim(1.0, [1], false)), [6.0, 10.0]);
    assert_eq!(i(x.count_nonzero()), [5]);
    assert_eq!(i(x.gt(0.0).unwrap().sum()), [4]);
    assert!(!x.all().unwrap().item::<bool>().unwrap());
    let (values, indices) = x.sort(1, true).unwrap();
    assert_eq!(v(Ok(values)), [3.0, 2.0, -1.0, 5.0, 5.0, 0.0]);
    assert_eq!(i(Ok(indices)), [0, 2, 1, 1, 2, 0]);
    assert_eq!(v(Ok(x.topk(1, 1, false).unwrap().0)), [-1.0, 0.0]);
    assert_eq!(v(Ok(x.median(1).unwrap().0)), [2.0, 5.0]);
    assert_eq!(v(x.cumsum(1)), [3.0, 2.0, 4.0, 0.0, 5.0, 10.0]);
    let soft = x.softmax(1).unwrap();
    assert!(
        soft.sum_dim([1], false)
            .unwrap()
            .allclose(&Tensor::ones([2], DType::F32).unwrap(), 1e-6, 0.0)
            .unwrap()
    );
    assert!(soft.log().unwrap().allclose(&x.log_softmax(1).unwrap(), 1e-5, 1e-6).unwrap());
    let far = f32s(&[f32::NEG_INFINITY, f32::NEG_INFINITY]);
    assert_eq!(v(far.logsumexp()), [f32::NEG_INFINITY]);
    let error = Tensor::arange(0, 3, 1).unwrap().mean().unwrap_err();
    assert_eq!(error.text(), "takes floating dtypes, not i64[3]");
    let slope = grad(|x: &Tensor| x.log_softmax(1)?.select(1, 0)?.sum())(&x).unwrap();
    let expected = (&Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0, 0.0, 0.0], [2, 3]).unwrap()
        - soft)
        .to_vec::<f32>()
        .unwrap();
    for (a, b) in slope.to_vec::<f32>().unwrap().iter().zip(expected) {
        assert!((a - b).abs() < 1e-6);
    }
    assert_eq!(
        v(grad(|x: &Tensor| x.norm(2.0))(&Tensor::zeros([2], DType::F32).unwrap())),
        [0.0, 0.0]
    );
}

#[test]
fn indexing_gives_torch_values() {
    let x = Tensor::arange(0, 6, 1).unwrap().view([2, 3]).unwrap();
    let ints = |v: &[i64], s: &[usize]| Tensor::from_slice(v, s).unwrap();
    let v = |t: Result<Tensor>| t.unwrap().to_vec::<i64>().unwrap();
    assert_eq!(v(x.gather(0, &ints(&[1, 0], &[1, 2]))), [3, 1]);
    let src = ints(&[10, 20, 30, 40], &[2, 2]);
    let index = ints(&[0, 2, 1, 1], &[2, 2]);
    assert_eq!(v(x.scatter(1, &ints(&[0, 2], &[2, 1]), &src)), [10, 1, 2, 3, 4, 30]);
    assert_eq!(v(x.scatter_add(1, &index, &src)), [10, 1, 22, 3, 74, 5]);
    assert_eq!(v(x.index_select(1, &ints(&[2, 0], &[2]))), [2, 0, 5, 3]);
    assert_eq!(v(x.index_add(0, &ints(&[1, 1], &[2]), &x)), [0, 1, 2, 6, 9, 12]);
    assert_eq!(v(ints(&[1, 0], &[2]).embedding(&x)), [3, 4, 5, 0, 1, 2]);
    let (top, at) = x.max_dim(0, true).unwrap();
    assert_eq!((v(Ok(top)), v(Ok(at))), (vec![3, 4, 5], vec![1, 1, 1]));
    let ties = f32s(&[2.0, 2.0, 1.0]);
    let slope = grad(|x: &Tensor| Ok(x.max_dim(0, false)?.0))(&ties).unwrap();
    assert_eq!(slope.to_vec::<f32>().unwrap(), [1.0, 0.0, 0.0]);
    let slope = grad(|x: &Tensor| x.max())(&ties).unwrap();
    assert_eq!(slope.to_vec::<f32>().unwrap(), [0.5, 0.5, 0.0]);
}

#[test]
fn losses_and_normalisation_give_torch_values() {
    use oxbridge::tensor::loss::{CrossEntropy, Reduction};
    use oxbridge::tensor::normalise::{Attention, BatchNorm};
    let close = |t: Result<Tensor>, want: &[f32]| {
        let got = t.unwrap().to_vec::<f32>().unwrap();
        assert_eq!(got.len(), want.len());
        for (a, b) in got.iter().zip(want) {
            assert!((a - b).abs() < 1e-5, "{got:?} is not {want:?}");
        }
    };
    let logits = Tensor::from_slice(&[1.0f32, 2.0, 0.5, -1.0, 0.0, 3.0], [2, 3]).unwrap();
    let target = Tensor::from_slice(&[1i64, 2], [2]).unwrap();
    let none = CrossEntropy { reduction: Reduction::None, ..Default::default() };
    let row = |v: [f32; 3], i: usize| v.iter().map(|x| x.exp()).sum::<f32>().ln() - v[i];
    let (a, b) = (row([1.0, 2.0, 0.5], 1), row([-1.0, 0.0, 3.0], 2));
    close(logits.cross_entropy(&target, none), &[a, b]);
    let ignore = CrossEntropy { ignore_index: 1, ..Default::default() };
    close(logits.cross_entropy(&target, ignore), &[b]);
    let weight = f32s(&[1.0, 2.0, 4.0]);
    let weighted = CrossEntropy { weight: Some(&weight), ..Default::default() };
    close(logits.cross_entropy(&target, weighted), &[(2.0 * a + 4.0 * b) / 6.0]);
    let all = (0..3).map(|i| row([1.0, 2.0, 0.5], i)).sum::<f32>() / 3.0;
    let smooth = CrossEntropy { label_smoothing: 0.1, ..none };
    let got = logits.cross_entropy(&target, smooth).unwrap();
    assert!((got.to_vec::<f32>().unwrap()[0] - (0.9 * a + 0.1 * all)).abs() < 1e-5);
    close(logits.log_softmax(1).unwrap().nll_loss(&target, none), &[a, b]);
    let p = f32s(&[0.0, 2.0]);
    let bce = f32::midpoint(2f32.ln(), (1.0 + (-2f32).exp()).ln());
    close(p.binary_cross_entropy_with_logits(&f32s(&[1.0, 1.0]), Reduction::Mean), &[bce]);
    close(p.sigmoid().unwrap().binary_cross_entropy(&f32s(&[1.0, 1.0]), Reduction::Mean), &[bce]);
    let x = Tensor::from_slice(&[1.0f32, 3.0, 5.0, 7.0], [2, 2]).unwrap();
    close(x.rms_norm([2], None, Some(0.0)), &[0.447_214, 1.341_641, 0.821_995, 1.150_793]);
    let (mean, var) =
        (Tensor::zeros([2], DType::F32).unwrap(), Tensor::ones([2], DType::F32).unwrap());
    let train = BatchNorm { training: true, eps: 0.0, ..Default::default() };
    close(x.batch_norm(Some(&mean), Some(&var), train), &[-1.0, -1.0, 1.0, 1.0]);
    close(Ok(mean.clone()), &[0.3, 0.5]);
    close(Ok(var.clone()), &[1.7, 1.7]);
    let eval = BatchNorm { eps: 0.0, weight: Some(&var), bias: Some(&mean), ..Default::default() };
    let s = 1.7f32.sqrt();
    close(
        x.batch_norm(Some(&mean), Some(&var), eval),
        &[0.7 * s + 0.3, 2.5 * s + 0.5, 4.7 * s + 0.3, 6.5 * s + 0.5],
    );
    close(x.group_norm(1, None, None, 0.0), &[-1.0, 1.0, -1.0, 1.0]);
    let causal = Attention { is_causal: true, ..Default::default() };
    let zero = Tensor::zeros([2, 2], DType::F32).unwrap();
    close(zero.scaled_dot_product_attention(&zero, &x, causal), &[1.0, 3.0, 3.0, 5.0]);
}

#[test]
fn convolutions_give_torch_values() {
    use oxbridge::tensor::conv::{Conv, ConvTranspose};
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [1, 1, 4]).unwrap();
    let w = Tensor::from_slice(&[1.0f32, 0.0, -1.0], [1, 1, 3]).unwrap();
    let v = |t: Result<Tensor>| t.unwrap().to_vec::<f32>().unwrap();
    assert_eq!(v(x.conv1d(&w, None, Conv::default())), [-2.0, -2.0]);
    let padded = Conv { padding: [1], stride: [2], ..Conv::default() };
    assert_eq!(v(x.conv1d(&w, Some(&f32s(&[10.0])), padded)), [8.0, 8.0]);
    let one = x.select(0, 0).unwrap();
    assert_eq!(one.conv1d(&w, None, Conv::default()).unwrap().shape().dims(), [1, 2]);
    let up = ConvTranspose { stride: [2], ..ConvTranspose::default() };
    assert_eq!(v(x.conv_transpose1d(&w, None, up)), [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, -4.0]);
    // The transposed convolution is the derivative of the convolution in its input.
    let image =
        Tensor::from_slice(&(0..64).map(|i| i as f32 * 0.1).collect::<Vec<_>>(), [1, 4, 4, 4])
            .unwrap();
    let kernel = Tensor::from_slice(
        &(0..108).map(|i| (i % 7) as f32 - 3.0).collect::<Vec<_>>(),
        [6, 2, 3, 3],
    )
    .unwrap();
    let options = Conv { stride: [2, 1], padding: [1, 0], dilation: [1, 1], groups: 2 };
    let out = image.conv2d(&kernel, None, options).unwrap();
    assert_eq!(out.shape().dims(), [1, 6, 2, 2]);
    let slope =
        grad(|x: &Tensor| x.conv2d(&kernel, None, options)?.mul(&out)?.sum())(&image).unwrap();
    let back = ConvTranspose {
        stride: [2, 1],
        padding: [1, 0],
        output_padding: [1, 0],
        dilation: [1, 1],
        groups: 2,
    };
    let transposed = out.conv_transpose2d(&kernel, None, back).unwrap();
    assert!(slope.allclose(&transposed, 1e-4, 1e-3).unwrap(), "{slope} {transposed}");
    let error = x
        .conv1d(&Tensor::zeros([1, 2, 3], DType::F32).unwrap(), None, Conv::default())
        .unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape);
}

#[test]
fn random_streams_move_on_also_inside_of_jit() {
    let _alone = draws_alone();
    use oxbridge::tensor::random::{Generator, Key};
    let draws = Generator::new(3).unwrap();
    let a = draws.key().unwrap().normal([4], DType::F32).unwrap();
    let b = draws.key().unwrap().normal([4], DType::F32).unwrap();
    assert!(!a.equal(&b).unwrap());
    draws.manual_seed(3).unwrap();
    let step = jit(|x: &Tensor| x.add(&draws.key()?.normal([4], DType::F32)?));
    let zero = Tensor::zeros([4], DType::F32).unwrap();
    assert!(step.call(&zero).unwrap().allclose(&a, 1e-6, 1e-6).unwrap());
    assert!(step.call(&zero).unwrap().allclose(&b, 1e-6, 1e-6).unwrap());
    // The words that `jax.random.key(42)` has.
    let key = Key::new(42).unwrap();
    assert_eq!(key.data().to_vec::<u32>().unwrap(), [0, 42]);
    let mut order = Tensor::randperm(50).unwrap().to_vec::<i64>().unwrap();
    order.sort_unstable();
    assert_eq!(order, (0..50).collect::<Vec<_>>());
    let dice = Tensor::randint(1, 7, [200]).unwrap();
    assert_eq!(
        (dice.min().unwrap().item::<i64>().unwrap(), dice.max().unwrap().item::<i64>().unwrap()),
        (1, 6)
    );
    let x = Tensor::ones([64], DType::F32).unwrap();
    let kept = x.dropout(0.5, true).unwrap();
    assert!(kept.to_vec::<f32>().unwrap().iter().all(|v| *v == 0.0 || *v == 2.0));
    assert!(x.dropout(0.5, false).unwrap().equal(&x).unwrap());
    let first = jit(|x: &Tensor| x.dropout(0.5, true));
    assert!(!first.call(&x).unwrap().equal(&first.call(&x).unwrap()).unwrap());
}
