//! One signature's program, and the bounded table of all of them.

use super::explain::{Difference, Readable, Recompile, differences};
use super::options::Options;
use super::signature::{Context, Request};
use crate::aval::{Aval, Avals};
use crate::ops::call::Call;
use crate::trace::batch::{NamedAxes, note_axes_read};
use crate::trace::cell::Cell;
use crate::trace::eval::forget;
use crate::trace::guard::{Guards, watch};
use crate::trace::record::Source;
use crate::trace::{Value, is_eager};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// One signature's program.
pub(super) struct Entry<B> {
    pub(super) structure: SmallVec<[u8; 64]>,
    pub(super) avals: Avals,
    pub(super) context: Context,
    pub(super) options: Arc<Options>,
    pub(super) readable: Readable,
    pub(super) call: Arc<Call>,
    pub(super) hidden: Vec<(Source, Aval)>,
    /// What the function read of guarded cells.
    pub(super) guards: Guards,
    /// The axes of `vmap`s around, if the function depends on them.
    pub(super) axes: Option<NamedAxes>,
    /// Which leaves of the argument the function wrote in place.
    pub(super) written_args: Vec<usize>,
    /// The cells from outside that the function wrote.
    pub(super) written: Vec<Arc<Cell>>,
    pub(super) out: B,
    pub(super) results: usize,
    /// Whether the function ran a backward pass, after which its results require no grad.
    pub(super) ran_backward: bool,
    /// The table's clock when it was used last.
    pub(super) used: AtomicU64,
}

impl<B> Entry<B> {
    fn matches(&self, request: &Request<'_>) -> bool {
        self.structure == request.signature.structure
            && self.avals.len() == request.operands.len()
            && self.avals.iter().zip(&request.operands).all(|(aval, v)| aval == v.aval())
            && self.context == request.context
            && Arc::ptr_eq(&self.options, request.options)
            && self.axes.as_ref().is_none_or(|axes| *axes == request.axes)
            && self.guards.iter().all(|guard| guard.holds())
            && self.hidden.iter().all(|(source, aval)| match source {
                Source::Cell(cell) => cell.read().is_ok_and(|v| v.aval() == aval),
                Source::Constant(_) => true,
            })
            && self.is_usable()
    }

    /// Whether no operand is a tracer of a transform that has ended.
    fn is_usable(&self) -> bool {
        self.hidden.iter().all(|(source, _)| match source {
            Source::Constant(Value::Tracer(tracer)) => tracer.trace().is_alive(),
            _ => true,
        })
    }

    /// Makes a function being traced around this one depend on what this one read.
    pub(super) fn pass_guards_on(&self) {
        if !self.guards.is_empty() && !is_eager() {
            self.guards.iter().for_each(watch);
        }
        if self.axes.is_some() && !is_eager() {
            note_axes_read();
        }
    }

    fn touch(&self, clock: &AtomicU64) {
        // The one used last, as it mostly is, stays so without a write.
        if self.used.load(Ordering::Relaxed) != clock.load(Ordering::Relaxed) {
            self.used.store(clock.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

/// The programs of one function.
pub(super) struct Table<B> {
    entries: RwLock<Entries<B>>,
    /// Grows with each use of another program than the one used last.
    clock: AtomicU64,
    traced: AtomicUsize,
    evictions: AtomicUsize,
    history: Mutex<VecDeque<Recompile>>,
}

struct Entries<B> {
    by_key: FxHashMap<u64, SmallVec<[Arc<Entry<B>>; 1]>>,
    /// The keys of programs that were evicted.
    evicted: FxHashSet<u64>,
}

impl<B> Default for Table<B> {
    fn default() -> Table<B> {
        Table {
            entries: RwLock::new(Entries {
                by_key: FxHashMap::default(),
                evicted: FxHashSet::default(),
            }),
            clock: AtomicU64::new(0),
            traced: AtomicUsize::new(0),
            evictions: AtomicUsize::new(0),
            history: Mutex::default(),
        }
    }
}

impl<B> Table<B> {
    fn read(&self) -> RwLockReadGuard<'_, Entries<B>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn history(&self) -> MutexGuard<'_, VecDeque<Recompile>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.read().by_key.values().map(SmallVec::len).sum()
    }

    pub(super) fn traced(&self) -> usize {
        self.traced.load(Ordering::Relaxed)
    }

    pub(super) fn evictions(&self) -> usize {
        self.evictions.load(Ordering::Relaxed)
    }

    pub(super) fn find(&self, key: u64, request: &Request<'_>) -> Option<Arc<Entry<B>>> {
        let entries = self.read();
        let found = entries.by_key.get(&key)?.iter().find(|entry| entry.matches(request))?;
        found.touch(&self.clock);
        Some(Arc::clone(found))
    }

    /// In what a request differs from the nearest program.
    pub(super) fn nearest(
        &self,
        key: u64,
        request: &Request<'_>,
        readable: &Readable,
    ) -> Vec<Difference> {
        let entries = self.read();
        if entries.evicted.contains(&key) {
            return vec![Difference::Evicted];
        }
        let all = entries.by_key.values().flatten();
        let compared = all.map(|entry| {
            let used = u64::MAX - entry.used.load(Ordering::Relaxed);
            (differences(entry, request, readable), used)
        });
        let nearest = compared.min_by_key(|(found, used)| (found.len(), *used));
        nearest.map_or_else(|| vec![Difference::First], |(found, _)| found)
    }

    /// Puts a new program in, and takes out those that are too many.
    pub(super) fn insert(&self, key: u64, entry: &Arc<Entry<B>>, limit: usize) {
        self.traced.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.evicted.remove(&key);
        let list = entries.by_key.entry(key).or_default();
        list.retain(|entry| entry.is_usable());
        list.push(Arc::clone(entry));
        entry.touch(&self.clock);
        while entries.len() > limit.max(1) {
            let Some(oldest) = entries.take_oldest() else { break };
            forget(&*oldest.call);
            self.evictions.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn remember(&self, recompile: Recompile) {
        /// Older ones are forgotten.
        const MAX: usize = 32;
        let mut history = self.history();
        if history.len() == MAX {
            history.pop_front();
        }
        history.push_back(recompile);
    }
}

impl<B> Drop for Table<B> {
    fn drop(&mut self) {
        let entries = self.entries.get_mut().unwrap_or_else(PoisonError::into_inner);
        entries.by_key.values().flatten().for_each(|entry| forget(&*entry.call));
    }
}

impl<B> Entries<B> {
    fn len(&self) -> usize {
        self.by_key.values().map(SmallVec::len).sum()
    }

    fn take_oldest(&mut self) -> Option<Arc<Entry<B>>> {
        /// More keys than this are forgotten at once.
        const MAX: usize = 1024;
        let used = |entry: &Arc<Entry<B>>| entry.used.load(Ordering::Relaxed);
        let all = self.by_key.iter().flat_map(|(&key, list)| list.iter().map(move |e| (key, e)));
        let (key, oldest) = all.min_by_key(|(_, entry)| used(entry))?;
        let oldest = Arc::clone(oldest);
        if let Some(list) = self.by_key.get_mut(&key) {
            list.retain(|entry| !Arc::ptr_eq(entry, &oldest));
            if list.is_empty() {
                self.by_key.remove(&key);
            }
        }
        if self.evicted.len() >= MAX {
            self.evicted.clear();
        }
        self.evicted.insert(key);
        Some(oldest)
    }
}
