//! Storage cells and the [`Tensor`] handle: what in-place methods write, and what a transform
//! sees of a tensor from outside.
//!
//! A read or write goes through the stack of traces. While a transform runs, what it writes to a
//! tensor from outside stays in the transform's overlay; when it ends, the transform decides what
//! is written back (`jit`: a hidden output; `grad`: the value without its derivative). A read
//! inside of `jit` makes the cell a hidden input.

use super::{Overlay, Trace, Tracer, Value, autograd, current, leaked};
use crate::aval::Aval;
use crate::error::Result;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Names a cell for as long as the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CellId(u64);

impl fmt::Debug for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "storage {}", self.0)
    }
}

/// The storage that tensor handles share.
pub struct Cell {
    id: CellId,
    /// The trace that was current when the cell was made; 0 for none.
    scope: u64,
    made_at: &'static Location<'static>,
    value: Mutex<Value>,
    view: Option<View>,
}

/// Makes a view's value from its base's.
pub type ViewForward = Arc<dyn Fn(&Value) -> Result<Value> + Send + Sync>;

/// Makes a base's new value from its old one and the view's new value.
pub type ViewBackward = Arc<dyn Fn(&Value, &Value) -> Result<Value> + Send + Sync>;

struct View {
    base: Arc<Cell>,
    /// The base's value that the view's was made from.
    seen: Mutex<Value>,
    forward: ViewForward,
    backward: ViewBackward,
    depth: usize,
    /// Whether it became a leaf that requires grad, which has storage of its own from then on.
    cut: AtomicBool,
}

static NEXT_CELL: AtomicU64 = AtomicU64::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Cell {
    #[track_caller]
    fn new(value: Value, view: Option<View>) -> Arc<Cell> {
        Arc::new(Cell {
            id: CellId(NEXT_CELL.fetch_add(1, Ordering::Relaxed)),
            scope: super::CURRENT.with_borrow(|t| t.as_ref().map_or(0, |t| t.id())),
            made_at: Location::caller(),
            value: Mutex::new(value),
            view,
        })
    }

    /// A cell that no tensor has yet.
    #[track_caller]
    pub(super) fn plain(value: Value) -> Arc<Cell> {
        Cell::new(value, None)
    }

    /// The base that it is a view of, if it has no storage of its own.
    fn view(&self) -> Option<&View> {
        self.view.as_ref().filter(|view| !view.cut.load(Ordering::Acquire))
    }

    /// Whether it is a view, whose storage is its base's.
    pub fn is_view(&self) -> bool {
        self.view().is_some()
    }

    /// The cell's name.
    pub fn id(&self) -> CellId {
        self.id
    }

    /// Where in the source it was made.
    pub fn made_at(&self) -> &'static Location<'static> {
        self.made_at
    }

    /// The value as the current trace sees it.
    ///
    /// # Errors
    /// If a view's value has to be made anew and that fails.
    pub fn read(self: &Arc<Cell>) -> Result<Value> {
        if let Some(view) = self.view() {
            return self.read_view(view);
        }
        match current() {
            None => Ok(lock(&self.value).clone()),
            Some(trace) => Ok(self.read_in(Some(&trace))),
        }
    }

    fn read_in(self: &Arc<Cell>, trace: Option<&Arc<Trace>>) -> Value {
        let Some(trace) = trace else { return lock(&self.value).clone() };
        if self.scope >= trace.id() {
            return lock(&self.value).clone();
        }
        if let Some(overlay) = trace.overlay().get(&self.id) {
            return overlay.value.clone();
        }
        let outer = self.read_in(trace.parent());
        let Some(recorder) = trace.interpreter().recorder() else { return outer };
        let value = recorder.capture_cell(trace, self, &outer);
        let entry = Overlay { cell: Arc::clone(self), value: value.clone(), written: false };
        trace.overlay().insert(self.id, entry);
        value
    }

    fn read_view(self: &Arc<Cell>, view: &View) -> Result<Value> {
        let base = view.base.read()?;
        let mut seen = lock(&view.seen);
        if !seen.same(&base) {
            let value = (view.forward)(&base)?;
            *lock(&self.value) = value;
            *seen = base;
        }
        Ok(lock(&self.value).clone())
    }

    /// Writes a value, as the current trace sees the cell. Where what stands there requires grad,
    /// the value keeps what torch keeps: a leaf stays a leaf.
    pub fn write(self: &Arc<Cell>, value: Value) {
        self.store(true, |old| match old {
            Some(old @ Value::Tracer(_)) => autograd::successor(self.id, old, value),
            _ => value,
        });
    }

    /// Puts a value in as it is.
    pub fn put(self: &Arc<Cell>, value: Value) {
        self.store(true, |_| value);
    }

    /// Puts in what stands there under another guise: with or without a past. That is no write.
    pub fn mark(self: &Arc<Cell>, value: Value) {
        if self.is_view() {
            *lock(&self.value) = value;
        } else {
            self.store(false, |_| value);
        }
    }

    /// Puts in the value as a leaf that requires grad; a view has storage of its own from then on.
    pub fn mark_leaf(self: &Arc<Cell>, value: &Value) {
        if let Some(view) = &self.view {
            view.cut.store(true, Ordering::Release);
        }
        self.mark(autograd::leaf(self, value));
    }

    fn store(self: &Arc<Cell>, written: bool, new: impl FnOnce(Option<&Value>) -> Value) {
        // What stood there is dropped when no lock is held: it may be all of a tensor's past.
        let _old = match current() {
            Some(trace) if self.scope < trace.id() => {
                let mut overlay = trace.overlay();
                let old = overlay.get(&self.id);
                let value = new(old.map(|o| &o.value));
                let written = written || old.is_some_and(|o| o.written);
                let entry = Overlay { cell: Arc::clone(self), value, written };
                overlay.insert(self.id, entry).map(|o| o.value)
            }
            _ => {
                let mut slot = lock(&self.value);
                let value = new(Some(&slot));
                Some(std::mem::replace(&mut *slot, value))
            }
        };
    }

    /// What stands there, if the current trace has seen it; a look that captures nothing.
    fn peek(&self) -> Option<Value> {
        match current() {
            Some(trace) if self.scope < trace.id() => {
                trace.overlay().get(&self.id).map(|o| o.value.clone())
            }
            _ => Some(lock(&self.value).clone()),
        }
    }

    /// What stands there, here or outside of the current trace; a look that captures nothing.
    pub(super) fn seen(&self) -> Option<Value> {
        self.peek().or_else(|| self.outside())
    }

    /// The value outside of the current trace, if the cell was made there.
    pub(crate) fn outside(&self) -> Option<Value> {
        let trace = current()?;
        (self.scope < trace.id()).then(|| lock(&self.value).clone())
    }

    fn write_through(self: &Arc<Cell>, value: Value, check: bool, view: bool) -> Result<()> {
        if let Some(through) = self.view() {
            let base = through.base.read()?;
            let new_base = (through.backward)(&base, &value)?;
            return through.base.write_through(new_base, check, true);
        }
        if check && let Some(old @ Value::Tracer(_)) = self.peek() {
            autograd::check_write(self.id, &old, &value, view)?;
        }
        self.write(value);
        Ok(())
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cell({:?}, {})", self.id, lock(&self.value).aval())
    }
}

/// The torch face: a cheap handle on a storage cell.
///
/// Methods have torch's names, argument order, dtype promotion, broadcasting, views and in-place
/// forms; each gives a [`Result`]. A clone shares the storage.
#[derive(Clone)]
pub struct Tensor(Arc<Cell>);

impl Tensor {
    /// A tensor of its own that holds `value`.
    #[track_caller]
    pub fn from_value(value: Value) -> Tensor {
        Tensor(Cell::new(value, None))
    }

    /// A view of `base`: `forward` makes its value from the base's, `backward` the base's new value
    /// when the view is written.
    ///
    /// # Errors
    /// What `forward` says.
    #[track_caller]
    pub fn view_of(base: &Tensor, forward: ViewForward, backward: ViewBackward) -> Result<Tensor> {
        /// Past this many views of views a tensor stands alone, so that chains stay short.
        const MAX_DEPTH: usize = 64;
        let seen = base.0.read()?;
        let value = forward(&seen)?;
        let depth = base.0.view.as_ref().map_or(0, |v| v.depth) + 1;
        if depth > MAX_DEPTH {
            return Ok(Tensor::from_value(value));
        }
        let base = Arc::clone(&base.0);
        let cut = AtomicBool::new(false);
        let view = View { base, seen: Mutex::new(seen), forward, backward, depth, cut };
        Ok(Tensor(Cell::new(value, Some(view))))
    }

    /// The value as the transform that is under way sees it.
    ///
    /// # Errors
    /// [`ErrorKind::LeakedTracer`](crate::ErrorKind::LeakedTracer) if the tensor was made inside of
    /// a transform that has ended.
    pub fn value(&self) -> Result<Value> {
        let value = self.0.read()?;
        match &value {
            Value::Tracer(tracer) => match tracer.dead() {
                Some(dead) => Err(self.leaked(dead)),
                None => Ok(value),
            },
            Value::Array(_) => Ok(value),
        }
    }

    #[cold]
    fn leaked(&self, tracer: &Tracer) -> crate::Error {
        let at = self.0.made_at;
        leaked("tensor", tracer).note(format!("it was made at {}:{}", at.file(), at.line()))
    }

    /// Writes a value: to the cell that all clones share, and through a view to its base.
    ///
    /// # Errors
    /// If a view cannot be written back to its base; if the tensor or its base is a leaf that
    /// requires grad and operations are recorded.
    pub fn set_value(&self, value: Value) -> Result<()> {
        self.0.write_through(value, true, false)
    }

    /// Writes what a transform found to be written; a leaf that requires grad stays one.
    ///
    /// # Errors
    /// If a view cannot be written back to its base.
    pub(crate) fn write_back(&self, value: Value) -> Result<()> {
        self.0.write_through(value, false, false)
    }

    /// The handle on a storage cell.
    pub(crate) fn of_cell(cell: Arc<Cell>) -> Tensor {
        Tensor(cell)
    }

    /// The type, without looking for who wrote last.
    pub fn aval(&self) -> Aval {
        lock(&self.0.value).aval().clone()
    }

    /// The storage cell.
    pub fn cell(&self) -> &Arc<Cell> {
        &self.0
    }

    /// Whether both are handles on one storage cell.
    pub fn same_storage(&self, other: &Tensor) -> bool {
        self.0.root().id == other.0.root().id
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({})", self.aval())
    }
}

impl Cell {
    fn root(self: &Arc<Cell>) -> &Arc<Cell> {
        self.view().map_or(self, |v| v.base.root())
    }
}
