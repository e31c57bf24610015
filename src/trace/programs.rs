//! The table of compiled programs: bounded, found without a lock by each thread.

use super::eval::Compiled;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// When a program was used last, and whether it is still in the table.
#[derive(Debug, Default)]
pub(super) struct Use {
    /// The table's clock at the last use.
    at: AtomicU64,
    dropped: AtomicBool,
}

impl Use {
    /// Most uses follow one without a compile between, and write nothing.
    fn touch(&self) {
        let now = CLOCK.load(Ordering::Relaxed);
        if self.at.load(Ordering::Relaxed) != now {
            self.at.store(now, Ordering::Relaxed);
        }
    }
}

type Bucket = SmallVec<[Arc<Compiled>; 1]>;

#[derive(Default)]
struct Table {
    buckets: FxHashMap<u64, Bucket>,
    len: usize,
}

/// What one thread has used.
#[derive(Default)]
struct Seen {
    table: Table,
    /// How many programs had been dropped when the table was cleared of dropped ones.
    dropped: u64,
}

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::default();
}

/// The programs of all threads.
static ALL: Mutex<Option<Table>> = Mutex::new(None);

/// Grows with each program that is made: uses are told apart by the compiles between them.
static CLOCK: AtomicU64 = AtomicU64::new(1);

static LIMIT: AtomicUsize = AtomicUsize::new(4096);
static DROPPED: AtomicU64 = AtomicU64::new(0);
static EVICTED: AtomicU64 = AtomicU64::new(0);

/// What the table of compiled programs holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramStats {
    /// Programs that are kept, of operations and of `jit`.
    pub programs: usize,
    /// Programs that were dropped because there were too many.
    pub evictions: u64,
}

/// What the table of compiled programs holds now.
pub fn program_stats() -> ProgramStats {
    let programs = all().get_or_insert_default().len;
    ProgramStats { programs, evictions: EVICTED.load(Ordering::Relaxed) }
}

/// Sets how many compiled programs the process keeps (4,096 if nothing is said). Of more, the one
/// that was not used through the most compiles is dropped; it is compiled anew, or read from the
/// disk cache, when it is needed again. A thread that is idle lets go of a dropped program when it
/// next meets a new one.
pub fn set_program_limit(programs: usize) {
    LIMIT.store(programs.max(1), Ordering::Relaxed);
    all().get_or_insert_default().shrink(programs.max(1));
    SEEN.with_borrow_mut(Seen::let_go);
}

fn all() -> MutexGuard<'static, Option<Table>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program under `key` that `matches`, if it is known.
pub(super) fn find(key: u64, matches: impl Fn(&Compiled) -> bool) -> Option<Arc<Compiled>> {
    let seen = SEEN.with_borrow(|seen| seen.table.find(key, &matches));
    let found = match seen {
        Some(found) => found,
        None => {
            let found = all().get_or_insert_default().find(key, &matches)?;
            remember(key, &found);
            found
        }
    };
    found.last_use().touch();
    Some(found)
}

/// Puts a new program in.
pub(super) fn insert(key: u64, made: &Arc<Compiled>) {
    made.last_use().at.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    let mut all = all();
    let all = all.get_or_insert_default();
    all.push(key, made);
    all.shrink(LIMIT.load(Ordering::Relaxed));
    remember(key, made);
}

/// Drops the programs that `unwanted` names.
pub(super) fn forget(unwanted: impl Fn(&Compiled) -> bool) {
    let removed = all().get_or_insert_default().remove(unwanted);
    DROPPED.fetch_add(removed as u64, Ordering::Relaxed);
}

fn remember(key: u64, found: &Arc<Compiled>) {
    SEEN.with_borrow_mut(|seen| {
        seen.let_go();
        seen.table.push(key, found);
    });
}

impl Seen {
    /// Lets go of the programs that were dropped from the table of all threads.
    fn let_go(&mut self) {
        let dropped = DROPPED.load(Ordering::Relaxed);
        if self.dropped != dropped {
            self.table.remove(|c| c.last_use().dropped.load(Ordering::Relaxed));
            self.dropped = dropped;
        }
    }
}

impl Table {
    fn find(&self, key: u64, matches: &impl Fn(&Compiled) -> bool) -> Option<Arc<Compiled>> {
        self.buckets.get(&key)?.iter().find(|c| matches(c)).cloned()
    }

    fn push(&mut self, key: u64, program: &Arc<Compiled>) {
        self.buckets.entry(key).or_default().push(Arc::clone(program));
        self.len += 1;
    }

    /// Takes out what is unwanted; gives how many there were.
    fn remove(&mut self, unwanted: impl Fn(&Compiled) -> bool) -> usize {
        let before = self.len;
        self.buckets.retain(|_, bucket| {
            bucket.retain(|program| {
                let unwanted = unwanted(program);
                if unwanted {
                    program.last_use().dropped.store(true, Ordering::Relaxed);
                    self.len -= 1;
                }
                !unwanted
            });
            !bucket.is_empty()
        });
        before - self.len
    }

    /// Drops the programs used least recently.
    fn shrink(&mut self, limit: usize) {
        while self.len > limit {
            let at = |program: &Arc<Compiled>| program.last_use().at.load(Ordering::Relaxed);
            let oldest = self.buckets.values().flatten().min_by_key(|p| at(p)).cloned();
            let Some(oldest) = oldest else { return };
            let removed = self.remove(|program| std::ptr::eq(program, Arc::as_ptr(&oldest)));
            DROPPED.fetch_add(removed as u64, Ordering::Relaxed);
            EVICTED.fetch_add(removed as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    /// The only test of this binary that counts on what is compiled.
    #[test]
    fn the_least_recently_used_program_goes_and_comes_back() {
        let xs: Vec<Tensor> =
            (0..6).map(|n| Tensor::from_slice(&vec![1f32; n + 90], [n + 90]).unwrap()).collect();
        let run = |x: &Tensor| x.add(x).unwrap().to_vec::<f32>().unwrap();
        for x in &xs {
            run(x);
        }
        let before = program_stats();
        assert!(before.programs >= 6);
        // The oldest of the six is in use through the next compile.
        run(&xs[0]);
        xs[0].sin().unwrap();
        run(&xs[0]);
        set_program_limit(2);
        let after = program_stats();
        assert!(after.programs <= 2 && after.evictions >= before.evictions + 5, "{after:?}");
        {
            let _kept = forbid_compile();
            run(&xs[0]);
        }
        {
            let _gone = forbid_compile();
            assert_eq!(*xs[4].add(&xs[4]).unwrap_err().kind(), ErrorKind::Compile);
        }
        assert_eq!(run(&xs[4]), [2.0; 94]);
        let kept = SEEN.with_borrow(|seen| seen.table.len);
        assert!(kept <= 2, "{kept} programs are kept by this thread");
        set_program_limit(4096);
        let f = jit(|x: &Tensor| x.cos());
        let lowered = f.lower(&xs[1]).unwrap();
        lowered.compile().unwrap();
        drop(f);
        // This thread lets go of it at the next new program.
        xs[2].sin().unwrap();
        let _gone = forbid_compile();
        assert!(lowered.compile().is_err(), "a function takes its programs along");
    }
}
