//! [`Plugin`]: an opened plugin, and the one gate that every C call goes through.
//!
//! Plugins are older or newer than the header that `pjrt-sys` follows. The gate therefore looks
//! whether the plugin's table is long enough to hold the function, and hands over an argument
//! struct with 256 zeroed bytes behind it: plugins refuse a struct shorter than their own, but
//! take a longer one.

use super::error::{self, slice, text};
use crate::error::{Error, ErrorKind, Result};
use pjrt_sys::{
    Function, GetPjrtApi, PJRT_Api, PJRT_Error, PJRT_Error_Destroy, PJRT_Error_GetCode,
    PJRT_Error_Message, PJRT_Extension_Base, PJRT_Extension_Type, PJRT_NamedValue,
    PJRT_NamedValue_Type, PJRT_NamedValue_Value, PJRT_Plugin_Attributes_Args,
    PJRT_Plugin_Initialize_Args, Struct,
};
use std::collections::BTreeMap;
use std::fmt;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// A value that a plugin tells of itself, a device or a program.
#[derive(Clone, Debug, PartialEq)]
pub enum AttrValue {
    /// A text.
    String(String),
    /// An integer.
    Int64(i64),
    /// A list of integers, for example a version or coordinates.
    Int64List(Vec<i64>),
    /// A float, for example a cost.
    Float(f32),
    /// A truth value.
    Bool(bool),
}

/// A value of an option of [`Client::create`](super::Client::create).
pub type OptionValue = AttrValue;

/// An opened plugin. Clones share it; it stays in the process until the process ends.
#[derive(Clone)]
pub struct Plugin(Arc<Inner>);

struct Inner {
    table: NonNull<PJRT_Api>,
    /// Bytes of the table that exist.
    size: usize,
    version: (i32, i32),
    path: PathBuf,
    functions: ErrorFunctions,
}

/// The functions that even an error needs, looked up once.
#[derive(Clone, Copy)]
pub(super) struct ErrorFunctions {
    pub(super) destroy: PJRT_Error_Destroy,
    pub(super) message: PJRT_Error_Message,
    pub(super) code: PJRT_Error_GetCode,
}

// SAFETY: the table is constant once `GetPjrtApi` has given it, and the header ties no function
// to a thread (it asks for thread-safety even of the callbacks that it calls).
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The plugins of this process, so that `PJRT_Plugin_Initialize` runs once for each.
static LOADED: Mutex<BTreeMap<PathBuf, Plugin>> = Mutex::new(BTreeMap::new());

impl Plugin {
    /// Opens the plugin at `path` and sets it up; a second call gives the same plugin.
    ///
    /// # Errors
    /// [`ErrorKind::Plugin`] if the file cannot be opened as a shared library or does not export
    /// `GetPjrtApi`, and the plugin's own error if it cannot be set up.
    pub fn load(path: &Path) -> Result<Plugin> {
        let path = path.canonicalize().map_err(|e| unusable(path, &e.to_string()))?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = loaded.get(&path) {
            return Ok(plugin.clone());
        }
        let table = open(&path)?;
        // SAFETY: the table came from the plugin's `GetPjrtApi`, and its library stays open.
        let plugin = unsafe { Plugin::from_table(table, &path) }?;
        loaded.insert(path, plugin.clone());
        Ok(plugin)
    }

    /// The plugin behind a table of functions, set up; `path` only names it.
    ///
    /// # Safety
    /// `table` is null or a table that follows the header, whose first `struct_size` bytes exist
    /// for as long as the process does.
    pub(super) unsafe fn from_table(table: *const PJRT_Api, path: &Path) -> Result<Plugin> {
        let Some(table) = NonNull::new(table.cast_mut()) else {
            return Err(unusable(path, "`GetPjrtApi` gave a null pointer"));
        };
        // SAFETY: every table begins with its size.
        let size = unsafe { (*table.as_ptr()).struct_size };
        if size < offset_of!(PJRT_Api, PJRT_Error_Destroy) {
            return Err(unusable(path, &format!("its table of functions has {size} bytes only")));
        }
        // SAFETY: the size says that the version exists.
        let version = unsafe { (*table.as_ptr()).pjrt_api_version };
        let version = (version.major_version, version.minor_version);
        // SAFETY: the caller's promise.
        let functions = unsafe { ErrorFunctions::read(table, size) };
        let functions =
            functions.ok_or_else(|| unusable(path, "its table lacks the functions for errors"))?;
        let inner = Inner { table, size, version, path: path.to_owned(), functions };
        let plugin = Plugin(Arc::new(inner));
        // SAFETY: the function takes nothing.
        unsafe { plugin.call(|_: &mut PJRT_Plugin_Initialize_Args| ()) }?;
        Ok(plugin)
    }

    /// The version, major and minor, of the header that the plugin was built with.
    pub fn api_version(&self) -> (i32, i32) {
        self.0.version
    }

    /// The file that the plugin was opened from.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// What the plugin tells of itself: `stablehlo_current_version`, `xla_version` and so on.
    pub fn attributes(&self) -> Result<BTreeMap<String, AttrValue>> {
        // SAFETY: nothing goes in.
        let args = unsafe { self.call(|_: &mut PJRT_Plugin_Attributes_Args| ()) }?;
        // SAFETY: the header gives the attributes the lifetime of the process.
        Ok(unsafe { named_values(args.attributes, args.num_attributes) })
    }

    /// Whether the plugin offers the extension.
    pub fn has_extension(&self, which: PJRT_Extension_Type) -> bool {
        self.extension(which).is_some()
    }

    /// The head of the extension in the plugin's list, if it is there.
    pub(super) fn extension(
        &self,
        which: PJRT_Extension_Type,
    ) -> Option<NonNull<PJRT_Extension_Base>> {
        // SAFETY: `from_table` checked that the table reaches beyond this field.
        let mut next = unsafe { (*self.0.table.as_ptr()).extension_start };
        while let Some(head) = NonNull::new(next) {
            // SAFETY: a constant list of the plugin, each part beginning with this head.
            let base = unsafe { head.read() };
            if base.type_ == which {
                return Some(head);
            }
            next = base.next;
        }
        None
    }

    /// Calls a function of the plugin: `fill` writes the arguments, and they come back with what
    /// the function wrote.
    ///
    /// # Errors
    /// What the plugin reports, or code 12 (`UNIMPLEMENTED`) if it has no such function.
    ///
    /// # Safety
    /// The arguments that `fill` writes are what the header asks of this function: handles are
    /// alive and come from this plugin, pointers reach as many elements as the sizes beside say.
    #[inline]
    pub(super) unsafe fn call<A: Function>(&self, fill: impl FnOnce(&mut A)) -> Result<Padded<A>> {
        let mut args = Padded::new();
        fill(&mut args);
        // SAFETY: the caller's promise.
        unsafe { self.invoke(&mut args) }?;
        Ok(args)
    }

    /// [`call`](Self::call) on arguments that are already written; they do not move.
    ///
    /// # Safety
    /// As for `call`.
    #[inline]
    pub(super) unsafe fn invoke<A: Function>(&self, args: &mut Padded<A>) -> Result<()> {
        let function = self.function::<A>().ok_or_else(|| self.missing(A::FUNCTION))?;
        // SAFETY: the function belongs to these arguments, and the caller's promise.
        let error = unsafe { function(args.as_mut_ptr()) };
        match NonNull::new(error) {
            None => Ok(()),
            // SAFETY: the caller of a function owns the error that it gives.
            Some(error) => Err(unsafe { error::take(self, error, A::FUNCTION) }),
        }
    }

    /// [`invoke`](Self::invoke) for functions that free a handle when it is dropped: their errors
    /// have nobody to go to, and are logged.
    ///
    /// # Safety
    /// As for `call`; and the handle is not used again.
    #[inline]
    pub(super) unsafe fn free<A: Function>(&self, fill: impl FnOnce(&mut A)) {
        let mut args = Padded::new();
        fill(&mut args);
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { self.invoke(&mut args) } {
            tracing::warn!(%error, "a handle could not be freed");
        }
    }

    /// The function that takes `A`, if the plugin has it.
    #[inline]
    pub(super) fn function<A: Function>(
        &self,
    ) -> Option<unsafe extern "C" fn(*mut A) -> *mut PJRT_Error> {
        // SAFETY: `Function` promises that the slot is of this type.
        unsafe { slot(self.0.table, self.0.size, A::SLOT) }
    }

    pub(super) fn functions(&self) -> ErrorFunctions {
        self.0.functions
    }

    #[cold]
    pub(super) fn missing(&self, function: &'static str) -> Error {
        let (major, minor) = self.0.version;
        let what = format!(
            "the plugin {} (PJRT API {major}.{minor}) has no `{function}`",
            self.0.path.display()
        );
        error::backend(function, pjrt_sys::PJRT_Error_Code::UNIMPLEMENTED, &what)
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.0.version;
        write!(f, "Plugin({}, PJRT API {major}.{minor})", self.0.path.display())
    }
}

impl ErrorFunctions {
    /// # Safety
    /// As for [`Plugin::from_table`].
    unsafe fn read(table: NonNull<PJRT_Api>, size: usize) -> Option<ErrorFunctions> {
        // SAFETY: the slot is of this type.
        let destroy = unsafe { slot(table, size, offset_of!(PJRT_Api, PJRT_Error_Destroy)) };
        // SAFETY: the slot is of this type.
        let message = unsafe { slot(table, size, offset_of!(PJRT_Api, PJRT_Error_Message)) };
        // SAFETY: the slot is of this type.
        let code = unsafe { slot(table, size, offset_of!(PJRT_Api, PJRT_Error_GetCode)) };
        Some(ErrorFunctions { destroy: destroy?, message: message?, code: code? })
    }
}

/// The function pointer at `offset` of a table, if the table reaches so far.
///
/// # Safety
/// `table` has `size` bytes, and `F` is the type of the function at `offset`.
#[inline]
unsafe fn slot<F: Copy>(table: NonNull<PJRT_Api>, size: usize, offset: usize) -> Option<F> {
    if offset + size_of::<Option<F>>() > size {
        return None;
    }
    // SAFETY: within the table.
    let slot = unsafe { table.byte_add(offset) };
    // SAFETY: the caller names the type; null is `None`.
    unsafe { slot.cast::<Option<F>>().read() }
}

/// A struct of the header with 256 zeroed bytes behind it, and its `struct_size` counting both.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Padded<A> {
    args: A,
    tail: [u64; 32],
}

impl<A: Struct> Padded<A> {
    #[inline]
    pub(super) fn new() -> Padded<A> {
        let mut padded = Padded { args: A::zeroed(), tail: [0; 32] };
        let start = (&raw mut padded).cast::<usize>();
        // SAFETY: the structs of the header that are passed by pointer begin with their size.
        unsafe { start.write(size_of::<Padded<A>>()) };
        padded
    }

    /// The address to pass, with the right to read and write the tail too.
    #[inline]
    pub(super) fn as_mut_ptr(&mut self) -> *mut A {
        (&raw mut *self).cast()
    }
}

impl<A> Deref for Padded<A> {
    type Target = A;

    #[inline]
    fn deref(&self) -> &A {
        &self.args
    }
}

impl<A> DerefMut for Padded<A> {
    #[inline]
    fn deref_mut(&mut self) -> &mut A {
        &mut self.args
    }
}

/// The values of a plugin's list, by name.
///
/// # Safety
/// `values` is null or points to `len` named values that live for the call.
pub(super) unsafe fn named_values(
    values: *const PJRT_NamedValue,
    len: usize,
) -> BTreeMap<String, AttrValue> {
    let mut out = BTreeMap::new();
    if values.is_null() || len == 0 {
        return out;
    }
    // SAFETY: there is a first element, and it begins with its size.
    let size = unsafe { (*values).struct_size };
    // A newer plugin's elements are larger than ours and lie further apart.
    let stride = size.max(size_of::<PJRT_NamedValue>()).next_multiple_of(8);
    for i in 0..len {
        // SAFETY: within the list.
        let value = unsafe { values.byte_add(i * stride) };
        // SAFETY: an element of the list begins with the fields that we know.
        let value = unsafe { value.read() };
        // SAFETY: the name has that many bytes.
        let name = unsafe { text(value.name, value.name_size) };
        // SAFETY: the caller's promise.
        if let Some(value) = unsafe { attr_value(&value) } {
            out.insert(name, value);
        }
    }
    out
}

/// The value, unless it is of a type that the header does not list.
///
/// # Safety
/// `value` follows the header.
unsafe fn attr_value(value: &PJRT_NamedValue) -> Option<AttrValue> {
    let PJRT_NamedValue { value: member, value_size: size, .. } = *value;
    Some(match value.type_ {
        PJRT_NamedValue_Type::kString => {
            // SAFETY: the type says which member is set.
            let string = unsafe { member.string_value };
            // SAFETY: a string has `value_size` bytes.
            AttrValue::String(unsafe { text(string, size) })
        }
        // SAFETY: the type says which member is set.
        PJRT_NamedValue_Type::kInt64 => AttrValue::Int64(unsafe { member.int64_value }),
        PJRT_NamedValue_Type::kInt64List => {
            // SAFETY: the type says which member is set.
            let list = unsafe { member.int64_array_value };
            // SAFETY: a list has `value_size` elements.
            AttrValue::Int64List(unsafe { slice(list, size) }.to_vec())
        }
        // SAFETY: the type says which member is set.
        PJRT_NamedValue_Type::kFloat => AttrValue::Float(unsafe { member.float_value }),
        // SAFETY: the type says which member is set.
        PJRT_NamedValue_Type::kBool => AttrValue::Bool(unsafe { member.bool_value }),
        _ => return None,
    })
}

/// The C form of an option, which borrows from `name` and `value`.
pub(super) fn named_value(name: &str, value: &OptionValue) -> PJRT_NamedValue {
    let (type_, member, size) = match value {
        AttrValue::String(s) => (
            PJRT_NamedValue_Type::kString,
            PJRT_NamedValue_Value { string_value: s.as_ptr().cast() },
            s.len(),
        ),
        AttrValue::Int64(i) => {
            (PJRT_NamedValue_Type::kInt64, PJRT_NamedValue_Value { int64_value: *i }, 1)
        }
        AttrValue::Int64List(list) => (
            PJRT_NamedValue_Type::kInt64List,
            PJRT_NamedValue_Value { int64_array_value: list.as_ptr() },
            list.len(),
        ),
        AttrValue::Float(x) => {
            (PJRT_NamedValue_Type::kFloat, PJRT_NamedValue_Value { float_value: *x }, 1)
        }
        AttrValue::Bool(b) => {
            (PJRT_NamedValue_Type::kBool, PJRT_NamedValue_Value { bool_value: *b }, 1)
        }
    };
    PJRT_NamedValue {
        // The elements of a list cannot be padded: the plugin steps by its own size.
        struct_size: size_of::<PJRT_NamedValue>(),
        name: name.as_ptr().cast(),
        name_size: name.len(),
        type_,
        value: member,
        value_size: size,
        ..PJRT_NamedValue::zeroed()
    }
}

/// Opens the library and takes its table. The library is never closed: plugins leave threads and
/// handlers behind that must not lose their code.
fn open(path: &Path) -> Result<*const PJRT_Api> {
    keep_quiet();
    // SAFETY: a plugin's initialisers run; that is what loading a plugin means.
    let library = unsafe { libloading::Library::new(path) };
    let library = library.map_err(|e| unusable(path, &e.to_string()))?;
    // SAFETY: the header gives this symbol this type.
    let symbol = unsafe { library.get::<GetPjrtApi>(c"GetPjrtApi".to_bytes_with_nul()) };
    let get_api = *symbol.map_err(|_| {
        unusable(path, "it does not export `GetPjrtApi`")
            .help("name a PJRT plugin; `oxbridge plugin install cpu` fetches one")
    })?;
    std::mem::forget(library);
    // SAFETY: the function takes nothing and may be called at any time.
    Ok(unsafe { get_api() })
}

/// Asks XLA's log for warnings and errors alone, unless the user has asked for something: plugins
/// write a line for every program otherwise.
fn keep_quiet() {
    const LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";
    if std::env::var_os(LEVEL).is_none() {
        // SAFETY: Rust's own readers are locked out by the standard library, and the one C reader
        // of this variable is in a library that is not loaded yet.
        unsafe { std::env::set_var(LEVEL, "1") };
    }
}

#[cold]
fn unusable(path: &Path, reason: &str) -> Error {
    let text = format!("{} is not a usable PJRT plugin: {reason}", path.display());
    Error::new(ErrorKind::Plugin, "plugin", text)
}
