//! Guarded cells: plain values that a traced function may read.
//!
//! `jit` runs a function once and then its program. What the function read of plain Rust values
//! while it was traced is fixed in the program; a [`Guarded`] value is remembered with what was
//! read of it, and a later call that finds another value traces anew.

use super::record::Recorder;
use super::{current, is_eager};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A value that can be changed behind a shared reference, and whose change is never missed by a
/// compiled function that read it: the mode of a layer, a switch, a number of steps.
///
/// A clone is a cell of its own with the same value. As a static part of a tree its value is in the
/// key of `jit`; captured by a function, it is watched from the first [`get`](Guarded::get) on.
/// What is set while a function is traced is set once, as any side effect of it.
///
/// # Example
/// ```
/// use oxbridge::prelude::*;
/// let double = Guarded::new(false);
/// let f = jit(|x: &Tensor| if double.get() { x.mul(2) } else { Ok(x.clone()) });
/// let x = Tensor::from_slice(&[3f32], [1])?;
/// assert_eq!(f.call(&x)?.to_vec::<f32>()?, [3.0]);
/// double.set(true);
/// assert_eq!(f.call(&x)?.to_vec::<f32>()?, [6.0]);
/// double.set(false);
/// assert_eq!(f.call(&x)?.to_vec::<f32>()?, [3.0]);
/// assert_eq!(f.compiled(), 2);
/// # Ok::<(), Error>(())
/// ```
pub struct Guarded<T>(Arc<Inner<T>>);

struct Inner<T> {
    value: RwLock<T>,
    /// How many times the value became another one.
    changes: AtomicU64,
    /// The trace that was current when the cell was made; 0 for none.
    scope: u64,
    made_at: &'static Location<'static>,
}

impl<T> Inner<T> {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Guarded<T> {
    /// A cell that holds `value`.
    #[track_caller]
    pub fn new(value: T) -> Guarded<T> {
        Guarded(Arc::new(Inner {
            value: RwLock::new(value),
            changes: AtomicU64::new(0),
            scope: current().map_or(0, |trace| trace.id()),
            made_at: Location::caller(),
        }))
    }
}

impl<T: Clone + Eq + fmt::Debug + Send + Sync + 'static> Guarded<T> {
    /// The value; a function that is being traced is traced anew once it is another one.
    pub fn get(&self) -> T {
        let changes = self.0.changes.load(Ordering::Acquire);
        let value = self.0.read().clone();
        if !is_eager() {
            let cell = Arc::clone(&self.0);
            watch(&(Arc::new(Seen { cell, value: value.clone(), changes: changes.into() }) as _));
        }
        value
    }

    /// Puts a value in.
    pub fn set(&self, value: T) {
        let mut now = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
        if *now != value {
            *now = value;
            self.0.changes.fetch_add(1, Ordering::Release);
        }
        drop(now);
        let address = Arc::as_ptr(&self.0) as usize;
        each_recorder(self.0.scope, |recorder| recorder.set_inside(address));
    }
}

impl<T: Clone + Eq + fmt::Debug + Send + Sync + 'static> Clone for Guarded<T> {
    #[track_caller]
    fn clone(&self) -> Guarded<T> {
        Guarded::new(self.get())
    }
}

impl<T: fmt::Debug> fmt::Debug for Guarded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.read().fmt(f)
    }
}

impl<T: Default> Default for Guarded<T> {
    #[track_caller]
    fn default() -> Guarded<T> {
        Guarded::new(T::default())
    }
}

impl<T> From<T> for Guarded<T> {
    #[track_caller]
    fn from(value: T) -> Guarded<T> {
        Guarded::new(value)
    }
}

impl<T: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static> Hash for Guarded<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // A function being traced may pass it on to another compiled one.
        self.get().hash(state);
    }
}

/// What a function read of a guarded cell while it was traced.
pub trait Guard: Send + Sync {
    /// Whether the cell still has the value.
    fn holds(&self) -> bool;
    /// The value that was read, as text.
    fn seen(&self) -> String;
    /// The value that is there now, as text.
    fn now(&self) -> String;
    /// Where the cell was made.
    fn made_at(&self) -> &'static Location<'static>;
    /// An identity of the cell, which lives as long as the guard.
    fn address(&self) -> usize;
    /// The trace that was current when the cell was made; 0 for none.
    fn scope(&self) -> u64;
}

impl fmt::Debug for dyn Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({}, {})", self.made_at(), self.seen())
    }
}

/// Several guards.
pub type Guards = Vec<Arc<dyn Guard>>;

struct Seen<T> {
    cell: Arc<Inner<T>>,
    value: T,
    /// The number of changes up to which the value is known to be that of the cell.
    changes: AtomicU64,
}

impl<T: Eq + fmt::Debug + Send + Sync> Guard for Seen<T> {
    fn holds(&self) -> bool {
        let changes = self.cell.changes.load(Ordering::Acquire);
        if self.changes.load(Ordering::Relaxed) == changes {
            return true;
        }
        let same = *self.cell.read() == self.value;
        if same {
            self.changes.store(changes, Ordering::Relaxed);
        }
        same
    }

    fn seen(&self) -> String {
        format!("{:?}", self.value)
    }

    fn now(&self) -> String {
        format!("{:?}", *self.cell.read())
    }

    fn made_at(&self) -> &'static Location<'static> {
        self.cell.made_at
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.cell) as usize
    }

    fn scope(&self) -> u64 {
        self.cell.scope
    }
}

/// Makes every recorder under way on this thread remember the guard, if the cell was made before.
pub(crate) fn watch(guard: &Arc<dyn Guard>) {
    each_recorder(guard.scope(), |recorder| recorder.watch(guard));
}

fn each_recorder(scope: u64, f: impl Fn(&Recorder)) {
    let mut next = current();
    while let Some(trace) = next.filter(|trace| trace.id() > scope) {
        if let Some(recorder) = trace.interpreter().recorder() {
            f(recorder);
        }
        next = trace.parent().cloned();
    }
}
