//! `debug_callback` and `debug_print`: eager, compiled on the host backend and on a plugin.

use crate::pitfalls::alone;
use oxbridge::prelude::*;
use oxbridge::{debug_callback, debug_print};
use std::sync::{Arc, Mutex};

/// What callbacks saw.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<f64>>>);

impl Log {
    /// Notes the sum of the tensor's elements when the program gets here.
    fn note(&self, tensor: &Tensor) -> Result<()> {
        let log = Arc::clone(&self.0);
        let push = move |values: &[Tensor]| {
            let sum = values[0].sum()?.item::<f64>()?;
            log.lock().unwrap().push(sum);
            Ok(())
        };
        debug_callback(push, &[tensor])
    }

    fn take(&self) -> Vec<f64> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn clients() -> [Client; 2] {
    [Client::host(1), Client::cpu(1).unwrap()]
}

fn on(client: &Client, values: &[f64]) -> Tensor {
    let x = Tensor::from_slice(values, [values.len()]).unwrap();
    x.to_device(&client.device(0).unwrap()).unwrap()
}

#[test]
fn called_once_for_each_run_and_in_order() {
    for client in clients() {
        let log = Log::default();
        let x = on(&client, &[1.0, 2.0]);
        log.note(&x).unwrap();
        assert_eq!(log.take(), [3.0]);
        let inner = log.clone();
        let f = jit(move |x: &Tensor| {
            inner.note(x)?;
            let y = x.mul(10.0)?;
            inner.note(&y)?;
            inner.note(&x.add(&y)?)?;
            y.sum()
        });
        for scale in 1..4 {
            let s = f64::from(scale);
            let y = f.call(on(&client, &[s, 2.0 * s])).unwrap();
            assert_eq!(y.item::<f64>().unwrap(), 30.0 * s);
            assert_eq!(log.take(), [3.0 * s, 30.0 * s, 33.0 * s], "on {client:?}");
        }
        assert_eq!(f.compiled(), 1);
    }
}

#[test]
fn inside_of_grad_vmap_and_loops() {
    for client in clients() {
        let log = Log::default();
        let x = on(&client, &[1.0, 2.0, 3.0]);
        let noted = |x: &Tensor| {
            log.note(x)?;
            x.mul(x)?.sum()
        };
        assert_eq!(grad(noted)(&x).unwrap().to_vec::<f64>().unwrap(), [2.0, 4.0, 6.0]);
        assert_eq!(log.take(), [6.0]);
        jit(grad(noted)).call(&x).unwrap();
        assert_eq!(log.take(), [6.0], "the primal once, on {client:?}");
        vmap(noted)(&x).unwrap();
        assert_eq!(log.take(), [1.0, 2.0, 3.0], "each example");
        jit(vmap(grad(noted))).call(&x).unwrap();
        assert_eq!(log.take(), [1.0, 2.0, 3.0], "each example, on {client:?}");
        let matrix = x.unsqueeze(0).unwrap().expand([2, 3]).unwrap();
        jit(vmap(vmap(noted))).call(&matrix).unwrap();
        assert_eq!(log.take(), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        let sums = jit(|x: &Tensor| {
            let step = |sum: &Tensor, x: &Tensor| {
                let sum = sum.add(x)?;
                log.note(&sum)?;
                Ok((sum, ()))
            };
            Ok(scan(step, &x.sum()?.mul(0.0)?, x, ScanOptions::default())?.0)
        });
        assert_eq!(sums.call(&x).unwrap().item::<f64>().unwrap(), 6.0);
        assert_eq!(log.take(), [1.0, 3.0, 6.0], "on {client:?}");
        let branch = jit(|x: &Tensor| {
            let noted = |x: &Tensor| {
                log.note(x)?;
                x.neg()
            };
            cond(&x.sum()?.gt(0.0)?, noted, |x| x.sin(), x)
        });
        branch.call(&x).unwrap();
        branch.call(x.neg().unwrap()).unwrap();
        assert_eq!(log.take(), [6.0], "on {client:?}");
    }
}

#[test]
fn an_error_or_a_panic_comes_back_at_the_call() {
    for client in clients() {
        let f = jit(|x: &Tensor| {
            let check = |values: &[Tensor]| {
                let value = values[0].item::<f64>()?;
                assert!(value < 10.0, "{value} is too much");
                match value < 0.0 {
                    true => Err(Error::new(ErrorKind::Value, "check", format!("{value} is less"))),
                    false => Ok(()),
                }
            };
            debug_callback(check, &[&x.sum()?])?;
            x.mul(2.0)
        });
        f.call(on(&client, &[1.0])).unwrap();
        let error = f.call(on(&client, &[-1.0])).unwrap_err();
        assert_eq!((error.kind(), error.op()), (&ErrorKind::Value, "check"), "on {client:?}");
        assert_eq!(error.text(), "-1 is less");
        let error = f.call(on(&client, &[11.0])).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Callback, "{error}");
        assert!(error.text().contains("11 is too much"), "{error}");
        assert_eq!(f.call(on(&client, &[1.0])).unwrap().to_vec::<f64>().unwrap(), [2.0]);
    }
}

#[test]
fn every_dtype_arrives() {
    let client = Client::cpu(1).unwrap();
    let x = Tensor::from_slice(&[0.0, 1.0, 2.0], [3]).unwrap();
    let x = x.to_device(&client.device(0).unwrap()).unwrap();
    for dtype in DType::ALL {
        let x = x.to_dtype(dtype).unwrap();
        let want = x.to_string();
        let seen = Arc::new(Mutex::new(String::new()));
        let log = Arc::clone(&seen);
        let f = jit(|x: &Tensor| {
            let log = Arc::clone(&log);
            let write = move |values: &[Tensor]| {
                *log.lock().unwrap() = values[0].to_string();
                Ok(())
            };
            debug_callback(write, &[x])?;
            x.eq(x)
        });
        f.call(&x).unwrap();
        assert_eq!(*seen.lock().unwrap(), want, "{dtype}");
    }
}

#[test]
fn a_mesh_is_refused_and_wrong_formats_too() {
    let mesh = Mesh::new(&Client::cpu(2).unwrap().devices(), [("data", 2)]).unwrap();
    let x = Tensor::from_slice(&[1.0, 2.0], [2]).unwrap().shard(&mesh, spec!["data"]).unwrap();
    let log = Log::default();
    let f = jit(|x: &Tensor| {
        log.note(x)?;
        x.neg()
    });
    let error = f.call(&x).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Callback, "{error}");
    // Outside of jit the whole tensor is there.
    log.note(&x).unwrap();
    assert_eq!(log.take(), [3.0]);
    assert_eq!(*debug_print("{} {}", &[&x]).unwrap_err().kind(), ErrorKind::Value);
    assert_eq!(*debug_print("nothing", &[]).unwrap_err().kind(), ErrorKind::Value);
}

#[test]
fn printed_lines_are_those_of_the_program() {
    if !alone("callbacks::printed_lines_are_those_of_the_program", &[]) {
        return;
    }
    let f = jit(|x: &Tensor| {
        debug_print("x is {} here", &[x])?;
        x.neg()
    });
    let x = Tensor::scalar(1.5f64);
    let client = Client::cpu(1).unwrap();
    let before = Client::cache_stats();
    f.call(x.to_device(&client.device(0).unwrap()).unwrap()).unwrap();
    let after = Client::cache_stats();
    assert_eq!(before, after, "the disk cache is passed by");
    assert_eq!(client.metrics().compiles, 1);
}
