//! Functions of this process that compiled programs call: `debug_callback`.
//!
//! A program names a function by its number. Numbers mean nothing in another process, so such
//! programs are never kept on disk.

use super::host::HostArray;
use crate::error::{Error, ErrorKind, Result};
use rustc_hash::FxHashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The name under which plugins know the one handler of all calls.
pub const TARGET: &str = "oxbridge_host_call";

type Function = dyn Fn(&[HostArray]) -> Result<()> + Send + Sync;

/// A function that programs can call, and the error that its last run gave.
pub struct HostCall {
    id: u64,
    function: Box<Function>,
    failed: Mutex<Option<Error>>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);
static CALLS: Mutex<Option<FxHashMap<u64, Weak<HostCall>>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostCall {
    /// Makes the function known to programs for as long as the value lives.
    pub fn new(
        function: impl Fn(&[HostArray]) -> Result<()> + Send + Sync + 'static,
    ) -> Arc<HostCall> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let call =
            Arc::new(HostCall { id, function: Box::new(function), failed: Mutex::default() });
        let mut calls = lock(&CALLS);
        let calls = calls.get_or_insert_default();
        calls.retain(|_, weak| weak.strong_count() > 0);
        calls.insert(id, Arc::downgrade(&call));
        call
    }

    /// The number by which programs name it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Calls the function; for each example if there is a batch of `axes` axes in front of every
    /// operand.
    ///
    /// # Errors
    /// What the function says; its panic as [`ErrorKind::Callback`].
    pub fn run(&self, operands: &[HostArray], axes: usize) -> Result<()> {
        let result = catch_unwind(AssertUnwindSafe(|| self.examples(operands, axes)));
        result.unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "without a text".into());
            Err(Error::new(ErrorKind::Callback, "debug_callback", format!("panicked: {text}")))
        })
    }

    fn examples(&self, operands: &[HostArray], axes: usize) -> Result<()> {
        let count = operands.first().map_or(0, |x| x.shape().first().copied().unwrap_or(0));
        if axes == 0 {
            return (self.function)(operands);
        }
        (0..count).try_for_each(|i| {
            let example = |x: &HostArray| {
                let (mut starts, rest) = (vec![0; x.shape().rank()], x.shape().remove(0));
                starts[0] = i;
                let limits = x.shape().with(0, i + 1);
                let part = x.slice(&starts, &limits, &vec![1; starts.len()]);
                part.contiguous().reshape(&rest)
            };
            self.examples(&operands.iter().map(example).collect::<Vec<_>>(), axes - 1)
        })
    }

    /// The error of a run since the last time that this was asked.
    pub fn take_failure(&self) -> Option<Error> {
        lock(&self.failed).take()
    }
}

/// Calls the function of a number for a plugin; an error is kept for who started the program, and
/// given as text.
///
/// # Errors
/// The text of what the function says, or that there is none of the number.
pub(super) fn dispatch(id: u64, operands: &[HostArray], axes: usize) -> Result<(), String> {
    let call = lock(&CALLS).as_ref().and_then(|calls| calls.get(&id)?.upgrade());
    let Some(call) = call else { return Err(format!("there is no host call {id}")) };
    call.run(operands, axes).map_err(|error| {
        let text = error.to_string();
        *lock(&call.failed) = Some(error);
        text
    })
}

impl fmt::Debug for HostCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostCall({})", self.id)
    }
}
