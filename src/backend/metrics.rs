//! What a client has done: programs made and run, data sent.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a [`Client`](super::Client) has done since it was opened.
///
/// Counters only grow; take a second one and [`since`](Metrics::since) for a part of the program.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let client = Client::host(1);
/// let x = Tensor::from_slice(&[1f32, 2.0], [2])?.to_device(&client.device(0)?)?;
/// let before = client.metrics();
/// for lr in [0.1, 0.2, 0.3] {
///     x.mul(lr)?;
/// }
/// let done = client.metrics().since(&before);
/// assert_eq!((done.programs, done.executions), (1, 3));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Programs made ready to run: each is one primitive, composite operation or traced function for
    /// one list of operand types. All other runs have found theirs in memory.
    pub programs: u64,
    /// How often the plugin's compiler ran; never on the host backend.
    pub compiles: u64,
    /// Programs that came from the disk cache of executables.
    pub disk_hits: u64,
    /// Runs of programs.
    pub executions: u64,
    /// Arrays put into a device's memory.
    pub uploads: u64,
}

impl Metrics {
    /// What was done after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Metrics) -> Metrics {
        Metrics {
            programs: self.programs - earlier.programs,
            compiles: self.compiles - earlier.compiles,
            disk_hits: self.disk_hits - earlier.disk_hits,
            executions: self.executions - earlier.executions,
            uploads: self.uploads - earlier.uploads,
        }
    }
}

/// The counters that a client itself keeps.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) programs: AtomicU64,
    pub(super) executions: AtomicU64,
    pub(super) uploads: AtomicU64,
}

/// Counts one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What a counter has come to.
pub(super) fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
