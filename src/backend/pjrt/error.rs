//! How a plugin's errors become [`Error`]s: read, freed, and named after the C function.

use super::api::{Padded, Plugin};
use crate::error::{Error, ErrorKind};
use pjrt_sys::{
    PJRT_Error, PJRT_Error_Code, PJRT_Error_Destroy_Args, PJRT_Error_GetCode_Args,
    PJRT_Error_Message_Args,
};
use std::ffi::c_char;
use std::ptr::NonNull;

/// An error of the plugin, freed when dropped.
struct Raw<'a> {
    plugin: &'a Plugin,
    error: NonNull<PJRT_Error>,
}

/// Reads and frees `error`, which `function` gave back.
///
/// # Safety
/// `error` came from `plugin` and nobody else frees it.
#[cold]
pub(super) unsafe fn take(
    plugin: &Plugin,
    error: NonNull<PJRT_Error>,
    function: &'static str,
) -> Error {
    let raw = Raw { plugin, error };
    backend(function, raw.code(), &raw.message())
}

/// The error of a call to `function` that failed with `code`.
#[cold]
pub(super) fn backend(function: &'static str, code: PJRT_Error_Code, message: &str) -> Error {
    let kind = match code {
        PJRT_Error_Code::RESOURCE_EXHAUSTED => ErrorKind::OutOfMemory,
        PJRT_Error_Code(code) => ErrorKind::Backend { code: code as i32 },
    };
    let name = code.name().unwrap_or("unlisted code");
    Error::new(kind, function, format!("{name} ({}): {}", code.0, message.trim_end()))
}

/// The error of a plugin that broke the header's rules, for example by a null pointer.
#[cold]
pub(super) fn broken(function: &'static str, what: &str) -> Error {
    backend(function, PJRT_Error_Code::INTERNAL, what)
}

/// The text of `size` bytes at `data`; invalid UTF-8 is replaced.
///
/// # Safety
/// `data` is null or points to `size` bytes that live for the call.
pub(super) unsafe fn text(data: *const c_char, size: usize) -> String {
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice(data.cast::<u8>(), size) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// The slice of `len` elements at `data`, empty if `data` is null.
///
/// # Safety
/// `data` is null or points to `len` elements that live, unchanged, for `'a`.
pub(super) unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { std::slice::from_raw_parts(data, len) }
}

impl Raw<'_> {
    fn message(&self) -> String {
        let mut args = Padded::<PJRT_Error_Message_Args>::new();
        args.error = self.error.as_ptr();
        let message = self.plugin.functions().message;
        // SAFETY: the error is alive, and the arguments are those of this function.
        unsafe { message(args.as_mut_ptr()) };
        // SAFETY: the header gives the message the lifetime of the error.
        unsafe { text(args.message, args.message_size) }
    }

    fn code(&self) -> PJRT_Error_Code {
        let mut args = Padded::<PJRT_Error_GetCode_Args>::new();
        args.error = self.error.as_ptr();
        let get_code = self.plugin.functions().code;
        // SAFETY: the error is alive, and the arguments are those of this function.
        let error = unsafe { get_code(args.as_mut_ptr()) };
        let Some(error) = NonNull::new(error) else { return args.code };
        drop(Raw { plugin: self.plugin, error });
        PJRT_Error_Code::UNKNOWN
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        let mut args = Padded::<PJRT_Error_Destroy_Args>::new();
        args.error = self.error.as_ptr();
        let destroy = self.plugin.functions().destroy;
        // SAFETY: this is the only owner of the error.
        unsafe { destroy(args.as_mut_ptr()) };
    }
}
