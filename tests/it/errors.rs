//! The text of every error that a user can cause, against `tests/data/errors.txt`.
//!
//! **To add a row** write one line in the table of its kind: a name and a function that must fail.
//! Then run once with `UPDATE_GOLDEN=1` and read the difference. A row that succeeds or panics fails
//! the test. The caller's place in the source and the names of temporary folders are cut out.

use crate::cases::engine::golden;
use oxbridge::autograd::{self, GradOptions};
use oxbridge::backend::pjrt::cache::{DiskCache, Key, KeyParts, stats};
use oxbridge::debug_print;
use oxbridge::nn::checkpoint::{Checkpoint, Metadata, save};
use oxbridge::optim::{Sgd, SgdOptions};
use oxbridge::prelude::*;
use oxbridge::transforms::jit::{Bucketing, Buckets, Excess, Padded};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

pub(crate) type Row = (&'static str, fn() -> Result<()>);

/// Zeros of a shape, f32.
fn t(shape: impl Into<Shape>) -> Tensor {
    Tensor::zeros(shape, DType::F32).unwrap()
}

fn of(dtype: DType, shape: impl Into<Shape>) -> Tensor {
    Tensor::zeros(shape, dtype).unwrap()
}

/// The error of a result that should be one.
pub(crate) fn err<T>(result: Result<T>) -> Result<()> {
    result.map(drop)
}

fn mesh(axes: &[(&str, usize)]) -> Result<Mesh> {
    let size = axes.iter().map(|(_, n)| n).product();
    Mesh::new(&Client::host(size).devices(), axes)
}

const SHAPES: &[Row] = &[
    ("from_slice: count", || err(Tensor::from_slice(&[1f32, 2.0], [3]))),
    ("add: no broadcast", || err(t([2, 3]).add(&t([2, 4])))),
    ("operator: no broadcast", || err(catch(|| Ok(&t([2]) + &t([3]))))),
    ("matmul: inner sizes", || err(t([8, 3]).matmul(&t([4, 5])))),
    ("matmul: scalar", || err(t([]).matmul(&t([4])))),
    ("matmul: batches", || err(t([2, 3, 4]).matmul(&t([5, 4, 3])))),
    ("mm: ranks", || err(t([2, 3, 4]).mm(&t([4, 3])))),
    ("bmm: ranks", || err(t([3, 4]).bmm(&t([4, 3])))),
    ("dot: ranks", || err(t([3, 4]).dot(&t([4])))),
    ("reshape: count", || err(t([2, 3]).reshape([4, 2]))),
    ("reshape: two unknown", || err(t([2, 3]).reshape([-1, -1]))),
    ("reshape: indivisible", || err(t([2, 3]).reshape([4, -1]))),
    ("view: count", || err(t([2, 3]).view([7]))),
    ("expand: size", || err(t([2, 3]).expand([2, 4]))),
    ("broadcast_to: rank", || err(t([2, 3]).broadcast_to([3]))),
    ("cat: sizes", || err(Tensor::cat(&[t([2, 3]), t([2, 4])], 0))),
    ("cat: nothing", || err(Tensor::cat::<Tensor>(&[], 0))),
    ("stack: shapes", || err(Tensor::stack(&[t([2]), t([3])], 0))),
    ("split_sizes: sum", || err(t([5]).split_sizes(&[2, 2], 0))),
    ("unflatten: product", || err(t([6]).unflatten(0, [4, 2]))),
    ("item: many elements", || err(t([2]).item::<f32>())),
    ("einsum: sizes", || err(Tensor::einsum("ij,jk->ik", &[t([2, 3]), t([4, 5])]))),
    ("einsum: operands", || err(Tensor::einsum("ij,jk->ik", &[t([2, 3])]))),
    ("einsum: output", || err(Tensor::einsum("ij->ik", &[t([2, 3])]))),
    ("linear: features", || err(t([2, 3]).linear(&t([4, 5]), None))),
    ("copy_: shape", || err(t([2]).copy_(&t([3])))),
    ("cholesky: not square", || err(t([2, 3]).cholesky(false))),
    ("inv: vector", || err(t([3]).inv())),
    ("solve: right side", || err(t([3, 3]).solve(&t([2, 4])))),
    ("solve: batches", || err(t([2, 3, 3]).solve(&t([4, 3, 1])))),
    ("solve_triangular: right", || err(t([3, 3]).solve_triangular(&t([3, 2]), true, false, false))),
    ("diag_embed: dims", || err(t([3]).diag_embed(0, 1, -1))),
    ("trace: rank", || err(t([2, 3, 3]).trace())),
    ("ops cholesky: not square", || err(oxbridge::ops::cholesky(&t([2, 3]).value()?))),
    ("ops lu: vector", || err(oxbridge::ops::lu(&t([3]).value()?))),
    ("ops solve: rank", || err(oxbridge::ops::solve(&t([3, 3]).value()?, &t([3]).value()?))),
    ("scan_layers: shapes", || {
        err(scan_layers(&[t([2]), t([3])], &t([2]), |w: &Tensor, x: &Tensor| x.mul(w)))
    }),
    ("scan_layers: structure", || err(stack_layers(&[Some(t([2])), None]))),
    ("scan_layers: carry", || err(scan_layers(&[t([2])], &t([2]), |_, x: &Tensor| x.sum()))),
    ("stack_layers: none", || err(stack_layers::<Tensor>(&[]))),
    ("associative_scan: sizes", || {
        err(associative_scan(|a: &(Tensor, Tensor), _| Ok(a.clone()), &(t([2]), t([3])), false, 0))
    }),
    ("ops solve: sizes", || err(oxbridge::ops::solve(&t([3, 3]).value()?, &t([2, 1]).value()?))),
];

const DTYPES: &[Row] = &[
    ("to_vec: dtype", || err(t([2]).to_vec::<f64>())),
    ("item: dtype", || err(t([]).item::<i64>())),
    ("sin: bool kept as error below Tensor", || {
        err(oxbridge::ops::sin(&of(DType::Bool, [2]).value()?))
    }),
    ("ops add: dtypes", || {
        err(oxbridge::ops::add(&t([2]).value()?, &of(DType::F64, [2]).value()?))
    }),
    ("ops add: shapes", || err(oxbridge::ops::add(&t([2]).value()?, &t([3]).value()?))),
    ("bitwise and of floats", || err(catch(|| Ok(&t([2]) & &t([2]))))),
    ("sub of bool", || err(catch(|| Ok(&of(DType::Bool, [2]) - &of(DType::Bool, [2]))))),
    ("complex to real", || err(of(DType::C64, [2]).to_dtype(DType::F32))),
    ("max of complex", || err(of(DType::C64, [2]).max())),
    ("det: integers", || err(of(DType::I32, [2, 2]).det())),
    ("ops lu: halves", || err(oxbridge::ops::lu(&of(DType::F16, [2, 2]).value()?))),
    ("matmul: bool", || err(of(DType::Bool, [2, 2]).matmul(&of(DType::Bool, [2, 2])))),
    ("index of floats", || err(t([4]).index_select(0, &t([2])))),
    ("grad: integer", || err(grad(|x: &Tensor| x.sum())(&of(DType::I64, [2])))),
    ("hvp: integer", || {
        let args = (t([2]), of(DType::I64, [2]));
        err(hvp(|(x, _): &(Tensor, Tensor)| x.sum(), &args, &args))
    }),
    ("jacfwd: integer argument", || {
        err(jacfwd(|(x, _): &(Tensor, Tensor)| x.sin())(&(t([2]), of(DType::I64, [2]))))
    }),
    ("jacfwd: integer result", || {
        err(jacfwd(|x: &Tensor| Ok((x.sin()?, x.argmax(None, false)?)))(&t([2])))
    }),
    ("jacfwd: complex argument", || err(jacfwd(|x: &Tensor| x.sin())(&of(DType::C64, [2])))),
    ("jacrev: complex result", || {
        err(jacrev(|x: &Tensor| Ok(vec![x.sin()?, x.to_dtype(DType::C64)?]))(&t([2])))
    }),
    ("hessian: bool result", || err(hessian(|x: &Tensor| x.gt(0.0))(&t([2])))),
    ("in place: dtype", || err(of(DType::I32, [2]).copy_(&of(DType::C64, [2])))),
];

const AXES: &[Row] = &[
    ("softmax: dim", || err(t([2, 3]).softmax(2))),
    ("softmax: negative dim", || err(t([2, 3]).softmax(-3))),
    ("permute: dims", || err(t([2, 3]).permute([0, 0]))),
    ("permute: count", || err(t([2, 3]).permute([0]))),
    ("transpose: dim", || err(t([2, 3]).transpose(0, 2))),
    ("t: rank", || err(t([2, 3, 4]).t())),
    ("unsqueeze: dim", || err(t([2]).unsqueeze(3))),
    ("squeeze: dim", || err(t([2]).squeeze_dim([1]))),
    ("flip: dim", || err(t([2]).flip([1]))),
    ("cumsum: dim", || err(t([2]).cumsum(1))),
    ("argmax: dim", || err(t([2]).argmax(Some(2), false))),
    ("size: dim", || err(t([2]).size(1))),
    ("iota: axis", || err(oxbridge::ops::iota(DType::F32, &[2].into(), 1))),
];

const INDICES: &[Row] = &[
    ("narrow: beyond", || err(t([4]).narrow(0, 3, 2))),
    ("select: beyond", || err(t([4]).select(0, 4))),
    ("select: before", || err(t([4]).select(0, -5))),
    ("topk: k", || err(t([4]).topk(5, 0, true))),
    ("kthvalue: k", || err(t([4]).kthvalue(9, 0))),
    ("chunk: none", || err(t([4]).chunk(0, 0))),
    ("split: none", || err(t([4]).split(0, 0))),
    ("dtype by name", || err(DType::from_name("float33"))),
];

const PLACES: &[Row] = &[
    ("devices differ", || {
        let devices = Client::host(2).devices();
        let (x, y) = (t([2]).to_device(&devices[0])?, t([2]).to_device(&devices[1])?);
        err(x.add(&y))
    }),
    ("no such device", || err(Client::host(2).device(2))),
    ("no such client", || err(Client::by_id(1_000_000))),
    ("mesh: devices", || err(Mesh::new(&Client::host(3).devices(), [("data", 2), ("model", 2)]))),
    ("mesh: name twice", || err(mesh(&[("data", 2), ("data", 2)]))),
    ("sharding: no such axis", || err(NamedSharding::new(&mesh(&[("data", 2)])?, spec!["model"]))),
    ("sharding: axis twice", || {
        err(NamedSharding::new(&mesh(&[("data", 2)])?, spec!["data", "data"]))
    }),
    ("sharding: indivisible", || {
        NamedSharding::new(&mesh(&[("data", 2)])?, spec!["data"])?.check("shard", &[3].into())
    }),
    ("sharding: rank", || {
        NamedSharding::new(&mesh(&[("data", 2)])?, spec![None, "data"])?.check("shard", &[4].into())
    }),
];

const TRANSFORMS: &[Row] = &[
    ("grad: not a scalar", || err(grad(|x: &Tensor| x.sin())(&t([2])))),
    ("grad: complex result", || err(grad(|x: &Tensor| x.sum())(&of(DType::C64, [2])))),
    ("vmap: no axis", || err(vmap(|x: &Tensor| x.sin())(&t([])))),
    ("vmap: sizes", || err(vmap(|(x, y): &(Tensor, Tensor)| x.mul(y))(&(t([2]), t([3]))))),
    ("vmap: nothing", || err(vmap(|x: &Vec<Tensor>| Ok(x.clone()))(&Vec::new()))),
    ("vmap: inside", || {
        err(vmap(|(x, y): &(Tensor, Tensor)| x.matmul(y))(&(t([5, 2, 3]), t([5, 2, 3]))))
    }),
    ("vmap: no such axis", || {
        err(vmap_with(|x: &Tensor| x.sin(), VmapOptions::new().in_axes(-3))(&t([2, 3])))
    }),
    ("vmap: nothing mapped", || {
        err(vmap_with(|x: &Tensor| x.sin(), VmapOptions::new().in_axes(None))(&t([2])))
    }),
    ("vmap: axis_size", || {
        err(vmap_with(|x: &Tensor| x.sin(), VmapOptions::new().axis_size(5))(&t([2])))
    }),
    ("vmap: in_axes of one tensor", || {
        err(vmap_with(|x: &Tensor| x.sin(), VmapOptions::new().in_axes((0, None)))(&t([2])))
    }),
    ("vmap: in_axes too short", || {
        let options = VmapOptions::new().in_axes((0, (1,)));
        let f = vmap_with(|x: &(Tensor, Vec<Tensor>)| Ok(x.0.clone()), options);
        err(f(&(t([2]), vec![t([3, 2]), t([3, 2])])))
    }),
    ("vmap: in_axes too long", || {
        let options = VmapOptions::new().in_axes((0, (1, 0)));
        let f = vmap_with(|x: &(Tensor, (Tensor,))| Ok(x.0.clone()), options);
        err(f(&(t([2]), (t([3, 2]),))))
    }),
    ("vmap: out_axes of what is mapped", || {
        let options = VmapOptions::new().out_axes((0, None));
        err(vmap_with(|x: &Tensor| Ok((x.clone(), x.sin()?)), options)(&t([2, 3])))
    }),
    ("vmap: no such out axis", || {
        err(vmap_with(|x: &Tensor| x.sin(), VmapOptions::new().out_axes(2))(&t([2, 3])))
    }),
    ("vmap: name", || {
        err(vmap_with(|x: &Tensor| x.sin(), VmapOptions::new().axis_name("#0"))(&t([2])))
    }),
    ("psum: unbound", || err(psum(&t([2]), "batch"))),
    ("psum: another name", || {
        err(vmap_with(|x: &Tensor| psum(x, "j"), VmapOptions::new().axis_name("i"))(&t([2])))
    }),
    ("psum: a name twice", || {
        let options = VmapOptions::new().axis_name("i");
        err(vmap_with(|x: &Tensor| psum(x, ["i", "i"]), options)(&t([2])))
    }),
    ("pmax of complex", || {
        let options = VmapOptions::new().axis_name("i");
        err(vmap_with(|x: &Tensor| pmax(x, "i"), options)(&of(DType::C64, [2])))
    }),
    ("all_gather: axis", || {
        let options = VmapOptions::new().axis_name("i");
        err(vmap_with(|x: &Tensor| all_gather(x, "i", 1, true), options)(&t([2, 3])))
    }),
    ("psum_scatter: size", || {
        let options = VmapOptions::new().axis_name("i");
        err(vmap_with(|x: &Tensor| psum_scatter(x, "i", 0, true), options)(&t([2, 3])))
    }),
    ("all_to_all: size", || {
        let options = VmapOptions::new().axis_name("i");
        err(vmap_with(|x: &Tensor| all_to_all(x, "i", 0, 0, false), options)(&t([2, 3])))
    }),
    ("ppermute: no such example", || {
        let options = VmapOptions::new().axis_name("i");
        err(vmap_with(|x: &Tensor| ppermute(x, "i", &[(0, 2)]), options)(&t([2])))
    }),
    ("ppermute: a source twice", || {
        let options = VmapOptions::new().axis_name("i");
        err(vmap_with(|x: &Tensor| ppermute(x, "i", &[(0, 1), (0, 0)]), options)(&t([2])))
    }),
    ("vmap: read of a value", || {
        err(vmap(|x: &Tensor| {
            x.item::<f32>()?;
            Ok(x.clone())
        })(&t([2])))
    }),
    ("jit: read of a value", || {
        err(jit(|x: &Tensor| {
            x.item::<f32>()?;
            Ok(x.clone())
        })
        .call(t([])))
    }),
    ("jit: what the function says", || err(jit(|x: &Tensor| x.reshape([7])).call(t([2])))),
    ("jit: an operator's panic", || err(jit(|x: &Tensor| Ok(x + &t([3]))).call(t([2])))),
    ("jit: escaped tracer", || {
        let leak = Mutex::new(None);
        jit(|x: &Tensor| {
            *leak.lock().unwrap() = Some(x.clone());
            x.sin()
        })
        .call(t([2]))?;
        let leaked = leak.lock().unwrap().take().unwrap();
        err(leaked.sin())
    }),
    ("vmap: write to a tensor from outside", || {
        let outside = t([]);
        err(vmap(|x: &Tensor| {
            outside.set_value(x.value()?)?;
            Ok(x.clone())
        })(&t([2])))
    }),
    ("jvp: tangent's shape", || err(jvp(|x: &Tensor| x.sin(), &t([2]), &t([3])))),
    ("jvp: tangent's dtype", || err(jvp(|x: &Tensor| x.sin(), &t([2]), &of(DType::F64, [2])))),
    ("hvp: tangent's shape", || err(hvp(|x: &Tensor| x.sum(), &t([2]), &t([3])))),
    ("linearize: tangent's shape", || {
        let (_, along) = linearize(|x: &Tensor| x.sin(), &t([2]))?;
        err(along(&t([3])))
    }),
    ("argnums: chosen twice", || {
        let f = |(x, y): &(Tensor, Tensor)| x.mul(y)?.sum();
        err(grad_argnums((Arg::<1>, Arg::<1>), f)(&(t([2]), t([2]))))
    }),
    ("jvp: number of tangents", || {
        err(jvp(|x: &Vec<Tensor>| x[0].sin(), &vec![t([2])], &vec![t([2]), t([2])]))
    }),
    ("vjp: cotangent's shape", || {
        let x = t([2]);
        let (_, back) = vjp(|x: &Tensor| x.sin(), &x)?;
        err(back(&t([3])))
    }),
    ("no derivative: digamma", || {
        let digamma = |x: &Tensor| Tensor::from_value(oxbridge::ops::digamma(&x.value()?)?).sum();
        err(grad(digamma)(&Tensor::ones([2], DType::F32)?))
    }),
    ("donated by a call", || {
        let x = Tensor::from_slice(&[1f32, 2.0], [2])?;
        jit(|x: &Tensor| x.sin()).donate([0]).call(&x)?;
        err(x.add(&x))
    }),
    ("jit: a compile that is forbidden", || {
        let f = jit(|(x, n): &(Tensor, Static<i64>)| x.mul(**n)).named("scale");
        let (two, three) = (t([2]), t([3]));
        f.call((&two, &Static(3)))?;
        let _serving = forbid_compile();
        err(f.call((&three, &Static(4))))
    }),
    ("jit: a first compile that is forbidden", || {
        let x = t([2]);
        let _serving = forbid_compile();
        err(jit(|x: &Tensor| x.sin()).named("wave").call(x))
    }),
    ("an operation that is not compiled", || {
        let x = t([2, 3, 5, 7]);
        let _serving = forbid_compile();
        err(x.asinh())
    }),
    ("jit: more graphs than allowed", || {
        let f = jit(|x: &Tensor| x.sin()).named("wave").max_graphs(2, Excess::Error);
        f.call(t([2]))?;
        f.call(t([3]))?;
        err(f.call(of(DType::F64, [4, 4])))
    }),
    ("debug_print on a mesh of a plugin", || {
        let mesh = Mesh::new(&Client::cpu(2)?.devices(), [("data", 2)])?;
        let f = jit(|x: &Tensor| {
            debug_print("{}", &[x])?;
            x.add(1)
        });
        err(f.call(t([4]).shard(&mesh, spec!["data"])?))
    }),
    ("while_loop: the test writes", || {
        let x = t([]);
        let test = |y: &Tensor| x.add_(1)?.lt(y);
        err(while_loop(test, |y: &Tensor| Ok(y.clone()), &t([])))
    }),
    ("jit: compiler options inside of another jit", || {
        let f = jit(|x: &Tensor| x.sin()).named("wave").compiler_option("xla_flag", true);
        err(jit(|x: &Tensor| f.call(x)?.add(1)).call(t([2])))
    }),
    ("jit: a flag that the compiler does not know", || {
        let x = t([2]).to_device(&Client::cpu(1)?.device(0)?)?;
        err(jit(|x: &Tensor| x.sin()).compiler_option("xla_no_such_flag", true).call(x))
    }),
    ("jit: a flag of another type", || {
        let x = t([2]).to_device(&Client::cpu(1)?.device(0)?)?;
        err(jit(|x: &Tensor| x.sin()).compiler_option("xla_cpu_enable_fast_math", "many").call(x))
    }),
    ("a type without data", || err(Tensor::meta([2], DType::F32).add(&t([2])))),
    ("read of a type without data", || err(Tensor::meta([2], DType::F32).to_vec::<f32>())),
    ("bucket: beyond the last", || bucketed(rows().of(0, 0), 9)),
    ("bucket: no such tensor", || bucketed(rows().of_leaf("[3].x", 0), 3)),
    ("bucket: no such element", || bucketed(rows().of(2, 0), 3)),
    ("bucket: of nothing", || bucketed(rows(), 3)),
    ("bucket: no such axis", || bucketed(rows().of(0, 2), 3)),
    ("bucket: sizes differ", || bucketed(rows().of(0, 0).of(1, 0), 3)),
    ("bucket: a result without the dimension", || bucketed(rows().of(0, 0).result(0, 0), 3)),
    ("mask: no such dimension", || {
        let f = jit(|p: &Padded<Tensor>| p.mask.of("columns"));
        err(f.bucket([rows().of(0, 0)]).call(t([3])))
    }),
    ("mask: another dimension", || {
        let f = jit(|p: &Padded<Tensor>| p.mask.keep(&p.args, "rows", 1, 0.0));
        err(f.bucket([rows().of(0, 0)]).call(t([3, 2])))
    }),
    ("donated", || {
        let device = Client::host(1).device(0)?;
        let x = t([2]).to_device(&device)?;
        x.value()?.array("test")?.set_donated();
        err(x.sin())
    }),
];

/// A function of a pair with the given cotangents.
fn with_bwd<A: Tree + Clone>(bwd: fn(&Tensor) -> Result<A>, args: &A) -> Result<()> {
    let sum = |args: &A| {
        let parts = oxbridge::transforms::tree::leaves(args);
        parts.into_iter().try_fold(t([]), |sum, x| sum.add(&x.sum()?))
    };
    let f = custom_vjp(sum, |args: &A| Ok((sum(args)?, t([]))), move |_: &Tensor, ct| bwd(ct));
    err(vjp(f, args)?.1(&t([])))
}

const CUSTOM: &[Row] = &[
    ("custom_vjp: forward mode", || {
        let f = custom_vjp(
            Tensor::sin,
            |x: &Tensor| Ok((x.sin()?, x.cos()?)),
            |c: &Tensor, ct: &Tensor| c.mul(ct),
        );
        err(jvp(f, &t([2]), &t([2])))
    }),
    ("custom_vjp: forward mode inside of jit", || {
        let f = custom_vjp(
            Tensor::sin,
            |x: &Tensor| Ok((x.sin()?, x.cos()?)),
            |c: &Tensor, ct: &Tensor| c.mul(ct),
        );
        err(jit(|x: &Tensor| jvp(&f, x, x)).call(t([2])))
    }),
    ("custom_vjp: cotangent's shape", || with_bwd(|_| Ok((t([2]), t([3]))), &(t([2]), t([4])))),
    ("custom_vjp: cotangent's dtype", || with_bwd(|_| Ok(of(DType::F64, [2])), &t([2]))),
    ("custom_vjp: cotangents' structure", || with_bwd(|_| Ok(vec![t([2])]), &vec![t([2]), t([2])])),
    ("custom_vjp: result of fwd", || {
        let fwd = |x: &Tensor| Ok((x.sum()?, ()));
        let f = custom_vjp(Tensor::sin, fwd, |(): &(), ct: &Tensor| Ok(ct.clone()));
        err(vjp(f, &t([2])))
    }),
    ("custom_vjp: captured", || {
        let outer = |w: &Tensor| {
            let f = custom_vjp(
                |x: &Tensor| x.mul(w),
                |x: &Tensor| Ok((x.mul(w)?, w.clone())),
                |w: &Tensor, ct: &Tensor| w.mul(ct),
            );
            f(&t([2]))?.sum()
        };
        err(grad(outer)(&t([2])))
    }),
    ("custom_jvp: captured", || {
        let outer = |w: &Tensor| {
            let f = custom_jvp(
                |x: &Tensor| x.mul(w),
                |x: &Tensor, t: &Tensor| Ok((x.mul(w)?, t.mul(w)?)),
            );
            f(&t([2]))?.sum()
        };
        err(grad(outer)(&t([2])))
    }),
    ("custom_jvp: tangent of the result", || {
        let f = custom_jvp(Tensor::sin, |x: &Tensor, t: &Tensor| Ok((x.sin()?, t.sum()?)));
        err(jvp(f, &t([2]), &t([2])))
    }),
    ("custom_jvp: result of the rule", || {
        let f = custom_jvp(Tensor::sin, |x: &Tensor, t: &Tensor| Ok((x.sum()?, t.clone())));
        err(jvp(f, &t([2]), &t([2])))
    }),
    ("custom_jvp: rule that is not linear", || {
        let f = custom_jvp(Tensor::sum, |x: &Tensor, t: &Tensor| Ok((x.sum()?, t.mul(t)?.sum()?)));
        err(grad(f)(&t([2])))
    }),
    ("custom_jvp: result that depends on a tangent", || {
        let f = custom_jvp(Tensor::sum, |x: &Tensor, t: &Tensor| Ok((x.add(t)?.sum()?, t.sum()?)));
        err(grad(f)(&t([2])))
    }),
    ("custom_jvp: write to a tensor from outside", || {
        let outside = t([2]);
        let f = |x: &Tensor| {
            outside.set_value(x.value()?)?;
            x.sin()
        };
        let f = custom_jvp(f, |x: &Tensor, t: &Tensor| Ok((x.sin()?, t.clone())));
        err(jvp(f, &t([2]), &t([2])))
    }),
];
fn rows() -> Bucketing {
    Bucketing::new("rows", Buckets::List(vec![4, 8]))
}

/// A sum over a tensor of `n` rows and another one of 5.
fn bucketed(rows: Bucketing, n: usize) -> Result<()> {
    let f = jit(|p: &Padded<(Tensor, Tensor)>| p.args.0.sum_dim([0], true));
    err(f.bucket([rows]).call((&t([n, 2]), &t([5]))))
}

/// A leaf that requires grad.
fn leaf(shape: impl Into<Shape>) -> Result<Tensor> {
    t(shape).requires_grad_(true)
}

const AUTOGRAD: &[Row] = &[
    ("requires_grad_: integer", || err(of(DType::I64, [2]).requires_grad_(true))),
    ("requires_grad_: no leaf", || err(leaf([2])?.mul(2.0)?.requires_grad_(false))),
    ("backward: not one number", || leaf([2])?.mul(2.0)?.backward()),
    ("backward: nothing recorded", || t([]).backward()),
    ("backward: cotangent's shape", || leaf([2])?.mul(2.0)?.backward_with(&t([3]))),
    ("backward: cotangent's dtype", || leaf([2])?.mul(2.0)?.backward_with(&of(DType::F64, [2]))),
    ("backward: freed", || {
        let y = leaf([])?.sin()?;
        y.backward()?;
        y.backward()
    }),
    ("backward: hook's shape", || {
        let x = leaf([2])?;
        let _hook = x.register_hook(|_| Ok(Some(t([3]))))?;
        x.sum()?.backward()
    }),
    ("register_hook: nothing recorded", || err(t([2]).register_hook(|_| Ok(None)))),
    ("set_grad: shape", || leaf([2])?.set_grad(Some(&t([3])))),
    ("leaf written in place", || err(leaf([2])?.add_(1.0))),
    ("view of a leaf written in place", || err(leaf([2])?.select(0, 0)?.fill_(1.0))),
    ("autograd: unused input", || {
        err(autograd::grad(&[leaf([2])?.sum()?], &[leaf([2])?], &GradOptions::default()))
    }),
    ("autograd: number of cotangents", || {
        let x = leaf([2])?;
        let options = GradOptions { grad_outputs: Some(Vec::new()), ..GradOptions::default() };
        err(autograd::grad(&[x.sum()?], &[x], &options))
    }),
    ("to_device: requires grad", || {
        let devices = Client::host(2).devices();
        err(t([2]).to_device(&devices[0])?.requires_grad_(true)?.to_device(&devices[1]))
    }),
    ("optimiser: no gradient", || {
        let w = leaf([2])?;
        Sgd::new(&w, SgdOptions::default())?.step_(&w)
    }),
];

const FILES: &[Row] = &[
    ("checkpoint: no file", || {
        let dir = tempfile::tempdir().unwrap();
        err(Checkpoint::open(dir.path().join("none.safetensors")).map_err(without(dir.path())))
    }),
    ("checkpoint: empty file", || checkpoint(b"")),
    ("checkpoint: no header", || checkpoint(b"this is no checkpoint at all")),
    ("checkpoint: header cut off", || checkpoint(&[200, 0, 0, 0, 0, 0, 0, 0, b'{'])),
    ("checkpoint: other shape", || restored(&t([2]), &t([3]))),
    ("checkpoint: other dtype", || restored(&t([2]), &of(DType::I64, [2]))),
    ("checkpoint: other names", || {
        let named = |name: &str| std::collections::BTreeMap::from([(name.to_string(), t([2]))]);
        restored(&named("weight"), &named("bias"))
    }),
    ("checkpoint: folder that is not there", || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none").join("model.safetensors");
        save(&t([2]), path, &Metadata::new()).map_err(without(dir.path()))
    }),
    ("plugin: library that is none", || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut names = maps.lines().filter_map(|line| line.split_whitespace().last());
        let other = names.rfind(|name| name.contains("libgcc_s.so")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin.so");
        std::fs::copy(other, &path).unwrap();
        open_plugin(path.to_str().unwrap()).map_err(without(dir.path()))
    }),
    ("out of memory", || {
        // Both by the plugin's own word: the program would need 40 TB.
        let device = Client::cpu(1)?.device(0)?;
        let x = Tensor::zeros([1], DType::F32)?.to_device(&device)?;
        let huge = x.expand([1_000_000, 10_000_000])?.copy()?;
        err(huge.value()?.array("test")?.block())
    }),
    ("plugin: no such name", || open_plugin("no-such-plugin").map_err(without_notes)),
    ("plugin: no shared library", || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin.so");
        std::fs::write(&path, b"text").unwrap();
        open_plugin(path.to_str().unwrap()).map_err(without(dir.path()))
    }),
    ("plugin: no such file", || {
        let dir = tempfile::tempdir().unwrap();
        open_plugin(dir.path().join("none.so").to_str().unwrap()).map_err(without(dir.path()))
    }),
];

const TABLES: &[&[Row]] = &[
    SHAPES,
    DTYPES,
    AXES,
    INDICES,
    PLACES,
    TRANSFORMS,
    CUSTOM,
    crate::check::ERRORS,
    AUTOGRAD,
    FILES,
];

fn checkpoint(bytes: &[u8]) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.safetensors");
    std::fs::write(&path, bytes).unwrap();
    err(Checkpoint::open(&path).map_err(without(dir.path())))
}

/// What restoring one tree's checkpoint as another says.
fn restored(saved: &impl Tree, like: &impl Tree) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    save(saved, &path, &Metadata::new())?;
    err(Checkpoint::open(&path)?.restore(like))
}

fn open_plugin(name: &str) -> Result<()> {
    let options = ClientOptions { plugin: Some(name.into()), ..ClientOptions::default() };
    err(Client::open(&options))
}

/// The error with the temporary folder's name cut out of its text.
fn without(dir: &std::path::Path) -> impl FnOnce(Error) -> Error {
    let dir = dir.display().to_string();
    move |error| replaced(&error, &dir, "<dir>")
}

/// The error without its notes, which tell what is on this machine.
fn without_notes(error: Error) -> Error {
    assert!(!error.notes().is_empty(), "{error}");
    let bare = Error::new(error.kind().clone(), error.op().to_string(), error.text());
    helped(bare, &error, str::to_string)
}

fn replaced(error: &Error, from: &str, to: &str) -> Error {
    let text = error.text().replace(from, to);
    let mut made = Error::new(error.kind().clone(), error.op().to_string(), text);
    for note in error.notes() {
        made = made.note(note.replace(from, to));
    }
    helped(made, error, |help| help.replace(from, to))
}

/// `made` with the help of `error`, if it has one.
fn helped(made: Error, error: &Error, change: impl Fn(&str) -> String) -> Error {
    let shown = error.to_string();
    match shown.lines().find_map(|line| line.strip_prefix("help: ")) {
        Some(help) => made.help(change(help)),
        None => made,
    }
}

/// The error as the golden file has it: without places in the source.
fn written(error: &Error) -> String {
    let text = error.to_string();
    let lines = text.lines().filter(|line| !line.starts_with("  at "));
    let lines: Vec<&str> =
        lines.map(|line| line.split(" made at ").next().unwrap_or(line)).collect();
    lines.join("\n")
}

#[test]
fn texts() {
    let (mut text, mut failures) = (String::new(), Vec::new());
    let mut names = std::collections::BTreeSet::new();
    for (name, row) in TABLES.iter().copied().flatten() {
        if !names.insert(name) {
            failures.push(format!("{name}: stands twice"));
        }
        match catch_unwind(AssertUnwindSafe(row)) {
            Ok(Err(error)) => {
                writeln!(text, "# {name}\n{:?}\n{}\n", error.kind(), written(&error)).unwrap();
            }
            Ok(Ok(())) => failures.push(format!("{name}: gives no error")),
            Err(_) => failures.push(format!("{name}: panics")),
        }
    }
    failures.extend(golden::check("errors.txt", &text).err());
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// A damaged entry of the disk cache is no error: it is counted, and as good as not there.
#[test]
fn a_damaged_cache_entry_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DiskCache::open(dir.path()).unwrap();
    let key = Key::new(&KeyParts {
        program: "module {}",
        plugin_digest: "digest",
        plugin_version: "1",
        options: &[],
        device_kind: "cpu",
        cpu_features: "",
    });
    cache.put(&key, b"an executable");
    assert_eq!(cache.get(&key).as_deref(), Some(&b"an executable"[..]));
    let mut damaged = 0;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap_or_default();
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
            std::fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0);
    let before = stats().corrupt;
    assert_eq!(cache.get(&key), None);
    assert!(stats().corrupt > before);
}
