//! Looking at values while a program runs: `debug_print`, `debug_callback`.

use super::placed;
use crate::array::Array;
use crate::backend::host::HostArray;
use crate::backend::host_call::HostCall;
use crate::backend::{Client, Device};
use crate::error::{Error, ErrorKind, Result};
use crate::ops;
use crate::trace::cell::Tensor;
use crate::trace::{Value, Values, with_current};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Prints `format` with each `{}` replaced by a tensor, each time that the program gets there: at
/// once outside of `jit`, at every run of a compiled function inside.
///
/// Inside of one function or one loop body prints come in the order of the program, and before the
/// call returns. Under `grad` it is the value that is printed, under `vmap` there is a line for each
/// example. A function under `jit` needs a plugin that can call back, as the CPU plugins can, and
/// one device. Programs that print are not kept in the disk cache.
///
/// # Errors
/// [`ErrorKind::Value`] if there are not as many `{}` as tensors;
/// [`ErrorKind::Callback`] when a function is compiled for a plugin that cannot call back.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let f = jit(|x: &Tensor| {
///     let y = x.sin()?;
///     oxbridge::debug_print("sin of {} is {}", &[x, &y])?;
///     y.sum()
/// });
/// f.call(&Tensor::from_slice(&[0f32], [1])?)?;
/// let one = Tensor::scalar(1f32);
/// assert!(oxbridge::debug_print("{} and {}", &[&one]).is_err());
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** `jax.debug.print`.
#[track_caller]
pub fn debug_print(format: &str, tensors: &[&Tensor]) -> Result<()> {
    let gaps = format.matches("{}").count();
    if gaps != tensors.len() {
        let text = format!("`{format}` has {gaps} places for {} tensors", tensors.len());
        return placed(Err(Error::new(ErrorKind::Value, "debug_print", text)));
    }
    placed(values(tensors).and_then(|values| ops::debug_callback(&printer(format), &values)))
}

/// Calls `f` with the values of `tensors` each time that the program gets there; see
/// [`debug_print`]. The tensors that `f` gets are on the host backend, whatever device computed them.
///
/// # Errors
/// What `f` says, at the call that ran the program; a panic of `f` as [`ErrorKind::Callback`].
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// use std::sync::{Arc, Mutex};
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let log = Arc::clone(&seen);
/// let f = jit(move |x: &Tensor| {
///     let log = Arc::clone(&log);
///     oxbridge::debug_callback(
///         move |values| {
///             log.lock().unwrap().push(values[0].item::<f32>()?);
///             Ok(())
///         },
///         &[&x.sum()?],
///     )?;
///     x.neg()
/// });
/// f.call(&Tensor::from_slice(&[1f32, 2.0], [2])?)?;
/// f.call(&Tensor::from_slice(&[3f32, 4.0], [2])?)?;
/// assert_eq!(*seen.lock().unwrap(), [3.0, 7.0]);
/// # Ok::<(), Error>(())
/// ```
///
/// **Source:** `jax.debug.callback`.
#[track_caller]
pub fn debug_callback(
    f: impl Fn(&[Tensor]) -> Result<()> + Send + Sync + 'static,
    tensors: &[&Tensor],
) -> Result<()> {
    let call = HostCall::new(move |arrays| with_tensors(arrays, &f));
    placed(values(tensors).and_then(|values| ops::debug_callback(&call, &values)))
}

fn values(tensors: &[&Tensor]) -> Result<Values> {
    tensors.iter().map(|t| t.value()).collect()
}

/// Runs `f`, outside of any transform, on arrays as tensors of the host backend.
fn with_tensors(arrays: &[HostArray], f: &dyn Fn(&[Tensor]) -> Result<()>) -> Result<()> {
    static HOST: OnceLock<Client> = OnceLock::new();
    let device: Device = HOST.get_or_init(|| Client::host(1)).device(0)?;
    with_current(None, || {
        let tensor = |x: &HostArray| {
            let array = Array::upload(x, &device, false)?;
            Ok(Tensor::from_value(Value::Array(array)))
        };
        f(&arrays.iter().map(tensor).collect::<Result<Vec<_>>>()?)
    })
}

/// What prints with a format: one for each text, so that a function traced twice is one program.
fn printer(format: &str) -> Arc<HostCall> {
    static KNOWN: Mutex<BTreeMap<String, Arc<HostCall>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(call) = known.get(format) {
        return Arc::clone(call);
    }
    let parts: Vec<String> = format.split("{}").map(String::from).collect();
    let call = HostCall::new(move |arrays| with_tensors(arrays, &|tensors| print(&parts, tensors)));
    known.insert(format.into(), Arc::clone(&call));
    call
}

#[expect(clippy::print_stdout, reason = "the user asked for it")]
#[expect(clippy::unnecessary_wraps, reason = "it stands where a function may fail")]
fn print(parts: &[String], tensors: &[Tensor]) -> Result<()> {
    let mut line = parts[0].clone();
    for (part, tensor) in parts[1..].iter().zip(tensors) {
        line += &tensor.to_string();
        line += part;
    }
    println!("{line}");
    Ok(())
}
