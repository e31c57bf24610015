//! The functions of the recorded cases, by name, over `Tensor`'s methods.

use oxbridge::nn::MaxPool2d;
use oxbridge::prelude::*;
use oxbridge::tensor::conv::Conv;
use oxbridge::tensor::unary::Approximate;
use std::collections::BTreeMap;

/// Integer tensors that a formula names.
pub(super) type Consts = BTreeMap<String, Tensor>;

/// A function of its inputs and constants.
pub(super) type Function = fn(&[Tensor], &Consts) -> Result<Tensor>;

/// The function of that name.
pub(super) fn find(name: &str) -> Result<Function> {
    let found = FUNCTIONS.iter().find(|(n, _)| *n == name);
    found.map(|(_, f)| *f).ok_or_else(|| {
        Error::new(ErrorKind::NoRule, "transforms", format!("there is no function `{name}`"))
    })
}

const FUNCTIONS: &[(&str, Function)] = &[
    ("sin_exp", |x, _| (x[0].sin()? * (-x[0].square()?).exp()?).sum()),
    ("matmul_tanh", |x, _| x[0].matmul(&x[1])?.tanh()?.square()?.sum()),
    ("softmax_xent", |x, c| {
        let target = constant(c, "y")?.to_dtype(DType::I64)?.unsqueeze(1)?;
        x[0].log_softmax(1)?.gather(1, &target)?.mean()?.neg()
    }),
    ("softmax_vec", |x, _| x[0].softmax(-1)?.mul(&x[1])),
    ("layernorm", |x, _| {
        let centred = &x[0] - x[0].mean_dim([-1], true)?;
        let variance = centred.square()?.mean_dim([-1], true)?;
        (centred / (variance + 1e-5).sqrt()? * &x[1] + &x[2]).sin()?.sum()
    }),
    ("rmsnorm", |x, _| {
        let size = (x[0].square()?.mean_dim([-1], true)? + 1e-6).sqrt()?;
        let c = grid(&x[0].shape(), |i, j| (i + 2.0 * j) * 0.1)?;
        (&x[0] / size * &x[1] * c).sum()
    }),
    ("gather", |x, c| {
        let rows = x[0].index_select(0, constant(c, "i")?)?;
        (rows.square()? * rows).sum()
    }),
    ("scatter_add", |x, c| {
        let zeros = Tensor::zeros([5, x[0].size(1)?], DType::F32)?;
        zeros.index_add(0, constant(c, "i")?, &x[0])?.square()?.sum()
    }),
    ("scatter_set", |x, _| {
        let rows = Tensor::from_slice(&[1i64, 2], [2])?;
        x[0].index_copy(0, &rows, &x[1])?.exp()?.sum()
    }),
    ("cumsum", |x, _| x[0].cumsum(0)?.square()?.sum()),
    ("cumprod", |x, _| x[0].cumprod(0)?.sum()),
    ("sort", |x, _| (x[0].sort(-1, false)?.0.square()? * count(&x[0], 0.0)?).sum()),
    ("where", |x, _| x[0].square()?.where_(&x[0].gt(0.0)?, &x[0].exp()?)?.sum()),
    ("conv2d", |x, _| {
        let options = Conv { stride: [2, 2], padding: [1, 1], ..Conv::default() };
        x[0].conv2d(&x[1], None, options)?.sin()?.sum()
    }),
    ("maxpool", |x, _| MaxPool2d::new(2).forward(&x[0])?.square()?.sum()),
    ("scan_rnn", scan_rnn),
    ("scan_cumulative", |x, _| {
        let step = |c: &Tensor, x: &Tensor| {
            let c = c * x.cos()?;
            Ok((c.clone(), c))
        };
        let one = Tensor::ones([], DType::F32)?;
        scan(step, &one, &x[0], ScanOptions::default())?.1.sum()
    }),
    ("cond_true", |x, _| {
        let test = x[0].sum()?.gt(-1e6)?;
        cond(&test, |x: &Tensor| x.sin()?.sum(), |x: &Tensor| x.square()?.sum(), &x[0])
    }),
    ("cond_data", |x, _| {
        let test = x[0].select(0, 0)?.gt(0.0)?;
        cond(&test, |x: &Tensor| (x.square()? * x).sum(), |x: &Tensor| x.exp()?.sum(), &x[0])
    }),
    ("switch", |x, _| {
        let k = Tensor::from_slice(&[2i64], [])?;
        let fourth = |x: &Tensor| x.square()?.square()?.sum();
        switch(&k, &[&|x: &Tensor| x.sum(), &|x: &Tensor| x.square()?.sum(), &fourth], &x[0])
    }),
    ("while_newton_fwd", |x, _| {
        let goal = x[0].square()? + 1.0;
        let far = |y: &Tensor| (y.square()? - &goal).abs()?.max()?.gt(1e-4);
        let next = |y: &Tensor| Ok((y + &goal / y) / 2.0);
        while_loop(far, next, &goal)?.sum()
    }),
    ("attention", |x, _| {
        let scores = x[0].matmul(&x[1].t()?)? / 2.0;
        let future = grid(&scores.shape(), |i, j| f64::from(j > i))?.gt(0.5)?;
        let hidden = Tensor::full(scores.shape(), -1e9, DType::F32)?;
        hidden.where_(&future, &scores)?.softmax(-1)?.matmul(&x[2])?.square()?.sum()
    }),
    ("mlp_mse", |x, _| {
        let hidden = (x[3].matmul(&x[0])? + &x[1]).silu()?;
        (hidden.matmul(&x[2])? - &x[4]).square()?.mean()
    }),
    ("gelu_erf", |x, _| x[0].gelu(Approximate::None)?.sum()),
    ("prod_reduce", |x, _| x[0].prod_dim([1], false)?.sum()),
    ("max_reduce", |x, _| {
        let most = x[0].amax_dim([1], false)?;
        (&most * count(&most, 1.0)?).sum()
    }),
    ("max_ties", |x, _| Tensor::cat(x, 0)?.max()),
    ("norm", |x, _| Ok((x[0].square()?.sum()? + 1e-8).sqrt()? + x[0].abs()?.sum()?)),
    ("einsum_bilinear", |x, _| Tensor::einsum("bij,bjk,ki->", x)),
    ("concat_slice", |x, _| {
        let z = Tensor::cat(&[x[0].clone(), x[1].flip([0])?], 0)?;
        let part = z.slice(0, Some(1), Some(6), 2)?;
        (part.square()? * count(&part, 1.0)?).sum()
    }),
    ("pad_transpose", |x, _| {
        let p = x[0].pad(&[1, 2], 0.5)?.t()?;
        (&p * grid(&p.shape(), |i, j| i - j)?).sum()
    }),
    ("vector_field", |x, _| {
        let x: Vec<Tensor> = x[0].unbind(0)?;
        let squares = x[0].square()? + x[1].square()? + x[2].square()?;
        Tensor::stack(&[&x[0] * &x[1], x[1].sin()? + &x[2], (&x[0] - &x[2]).exp()?, squares], 0)
    }),
    ("linear_solve", |x, _| {
        let n = x[0].numel();
        let a = x[0].outer(&x[0])? + Tensor::eye(n, n, DType::F32)? * 5.0;
        a.solve(&x[0])?.sum()
    }),
    ("cholesky_logdet", |x, _| {
        let n = x[0].size(0)?;
        let a = x[0].matmul(&x[0].t()?)? + Tensor::eye(n, n, DType::F32)? * 4.0;
        Ok(a.cholesky(false)?.diagonal(0, 0, 1)?.log()?.sum()? * 2.0)
    }),
    ("stop_gradient", |x, _| (&x[0] * stop_gradient(&x[0].exp()?)?).sum()),
    ("log1p_expm1", |x, _| {
        let product = x[0].expm1()? * x[0].erf()?;
        let two = Tensor::full(x[0].shape(), 2.0, DType::F32)?;
        (x[0].square()?.log1p()? + product + x[0].atan2(&two)?).sum()
    }),
    ("power_log", |x, _| x[0].exp()?.pow(&x[1])?.sum()),
    ("embedding_mean", |x, c| {
        constant(c, "t")?.embedding(&x[0])?.mean_dim([1], false)?.square()?.sum()
    }),
    ("custom_vjp", |x, _| {
        let f = custom_vjp(
            |x: &Tensor| x.sin()?.sum(),
            |x: &Tensor| Ok((x.sin()?.sum()?, x.cos()?)),
            |cos: &Tensor, ct: &Tensor| cos.mul(ct)?.clamp(-0.5, 0.5),
        );
        f(&x[0])
    }),
    ("custom_jvp", |x, _| {
        let f = |x: &Tensor| (x.exp()? + 1.0).log()?.sum();
        let rule = |x: &Tensor, t: &Tensor| Ok((f(x)?, (x.sigmoid()? * t).sum()?));
        custom_jvp(f, rule)(&x[0])
    }),
];

fn constant<'c>(consts: &'c Consts, name: &str) -> Result<&'c Tensor> {
    let missing = || Error::new(ErrorKind::Format, "transforms", format!("no constant `{name}`"));
    consts.get(name).ok_or_else(missing)
}

/// `f` of each row and column.
fn grid(shape: &Shape, f: impl Fn(f64, f64) -> f64) -> Result<Tensor> {
    let (rows, columns) = (shape[0], shape[1]);
    let at = |k: usize| f((k / columns) as f64, (k % columns) as f64) as f32;
    let data: Vec<f32> = (0..rows * columns).map(at).collect();
    Tensor::from_slice(&data, [rows, columns])
}

/// `first`, `first + 1`, …, one for each element of a vector.
fn count(x: &Tensor, first: f64) -> Result<Tensor> {
    let data: Vec<f32> = (0..x.numel()).map(|k| (first + k as f64) as f32).collect();
    Tensor::from_slice(&data, x.shape())
}

fn scan_rnn(x: &[Tensor], _: &Consts) -> Result<Tensor> {
    let (w, u) = (&x[1], &x[2]);
    let step = |h: &Tensor, x: &Tensor| {
        let h = (x.matmul(w)? + h.matmul(u)?).tanh()?;
        Ok((h.clone(), h.sum()?))
    };
    let start = Tensor::zeros([x[0].size(1)?, u.size(0)?], DType::F32)?;
    let (last, sums) = scan(step, &start, &x[0], ScanOptions::default())?;
    Ok(last.square()?.sum()? + sums.sum()? * 0.1)
}
