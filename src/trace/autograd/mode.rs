//! Whether operations are recorded on this thread.

use crate::error::Result;
use crate::trace::{Value, Values};
use std::cell::Cell;
use std::marker::PhantomData;

/// Gives a value without its derivative.
pub type Stop = fn(&Value) -> Result<Value>;

#[derive(Clone, Copy, Debug)]
enum Mode {
    On,
    Off,
    /// Off, and results are constants for the transform that is under way.
    Constants(Stop),
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::On) };
}

/// Whether operations on this thread are recorded.
pub fn is_grad_enabled() -> bool {
    matches!(MODE.get(), Mode::On)
}

/// Switches recording on this thread; dropping it switches back.
#[derive(Debug)]
#[must_use = "recording switches back when this is dropped"]
pub struct GradMode {
    before: Mode,
    // Belongs to the thread whose flag it restores.
    here: PhantomData<*const ()>,
}

impl GradMode {
    /// Switches recording on or off.
    pub fn set(enabled: bool) -> GradMode {
        GradMode::enter(if enabled { Mode::On } else { Mode::Off })
    }

    /// Switches recording off; results in a transform pass through `stop`.
    pub fn constants(stop: Stop) -> GradMode {
        GradMode::enter(Mode::Constants(stop))
    }

    fn enter(mode: Mode) -> GradMode {
        GradMode { before: MODE.replace(mode), here: PhantomData }
    }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        MODE.set(self.before);
    }
}

/// The results of an operation in a transform: constants for it inside of `no_grad`.
pub(in crate::trace) fn results(run: impl FnOnce() -> Result<Values>) -> Result<Values> {
    let Mode::Constants(stop) = MODE.get() else { return run() };
    // What the operation is made of is not its result.
    let _quiet = GradMode::set(false);
    run()?.iter().map(stop).collect()
}
