//! The handler by which a plugin's programs call functions of this process.
//!
//! It is registered once for a plugin through its FFI extension. Programs name the function by an
//! attribute; see [`host_call`](crate::backend::host_call).

use super::api::Plugin;
use super::error::{slice, take};
use crate::backend::host::HostArray;
use crate::backend::host_call::{TARGET, dispatch};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::shape::Shape;
use pjrt_sys::*;
use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The plugins that have the handler.
static REGISTERED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The minor version of the handlers' header that the handler says it was written for.
static MINOR: AtomicI32 = AtomicI32::new(1);

/// The newest minor version that is tried; what the handler uses is the same in all.
const LAST_MINOR: i32 = 8;

/// Arguments of the extension's version 2, which has one more field than later ones.
#[repr(C)]
struct VersionTwo {
    struct_size: usize,
    target_name: *const c_char,
    target_name_size: usize,
    /// 1 for typed handlers.
    api_version: i32,
    handler: *mut c_void,
    platform_name: *const c_char,
    platform_name_size: usize,
    traits: u32,
}

/// Makes the handler known to the plugin.
///
/// # Errors
/// [`ErrorKind::Callback`] if the plugin cannot call functions of this process.
pub fn register(plugin: &Plugin) -> Result<()> {
    let mut known = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    if known.iter().any(|path| path == plugin.path()) {
        return Ok(());
    }
    let unable = |why: &str| {
        let text = format!("the plugin {} cannot call back: {why}", plugin.path().display());
        Error::new(ErrorKind::Callback, "debug_callback", text)
            .help("call it outside of `jit`, or run on the host backend")
    };
    let Some(head) = plugin.extension(PJRT_Extension_Type::FFI) else {
        return Err(unable("it has no FFI extension"));
    };
    // SAFETY: an extension of this type is this struct, which lives as long as the process.
    let extension = unsafe { head.cast::<PJRT_FFI_Extension>().read() };
    let Some(function) = extension.register_handler else {
        return Err(unable("its FFI extension registers no handlers"));
    };
    let mut last = None;
    for minor in 1..=LAST_MINOR {
        MINOR.store(minor, Ordering::Relaxed);
        match register_as(plugin, function) {
            Ok(()) => {
                known.push(plugin.path().to_owned());
                return Ok(());
            }
            Err(error) => last = Some(error),
        }
    }
    Err(unable(last.as_ref().map_or("", Error::text)))
}

fn register_as(plugin: &Plugin, function: PJRT_FFI_Register_Handler) -> Result<()> {
    let handler = handle as XLA_FFI_Handler as *mut c_void;
    let platform = "Host";
    let mut new = PJRT_FFI_Register_Handler_Args {
        // Less than version 2 asks for, so that it refuses and reads nothing.
        struct_size: size_of::<PJRT_FFI_Register_Handler_Args>(),
        target_name: TARGET.as_ptr().cast(),
        target_name_size: TARGET.len(),
        handler,
        platform_name: platform.as_ptr().cast(),
        platform_name_size: platform.len(),
        traits: 0,
    };
    // SAFETY: the arguments and the names live for the call.
    let error = unsafe { function(&raw mut new) };
    let Some(error) = NonNull::new(error) else { return Ok(()) };
    // SAFETY: the caller of a function owns the error that it gives.
    let first = unsafe { take(plugin, error, "PJRT_FFI_Register_Handler") };
    if !first.text().contains("size") {
        return Err(first);
    }
    let mut old = VersionTwo {
        struct_size: size_of::<VersionTwo>(),
        target_name: TARGET.as_ptr().cast(),
        target_name_size: TARGET.len(),
        api_version: 1,
        handler,
        platform_name: platform.as_ptr().cast(),
        platform_name_size: platform.len(),
        traits: 0,
    };
    // SAFETY: as above; a plugin that asks for this size reads this layout.
    let error = unsafe { function((&raw mut old).cast()) };
    match NonNull::new(error) {
        None => Ok(()),
        // SAFETY: the caller of a function owns the error that it gives.
        Some(error) => Err(unsafe { take(plugin, error, "PJRT_FFI_Register_Handler") }),
    }
}

/// The handler. It never unwinds: a panic of a function is caught where it is called.
unsafe extern "C" fn handle(frame: *mut XLA_FFI_CallFrame) -> *mut XLA_FFI_Error {
    // SAFETY: the runtime passes a frame that lives for the call; at registration it is the same
    // struct with nothing but its head filled.
    let frame = unsafe { &*frame };
    if let Some(head) = NonNull::new(frame.extension_start) {
        // SAFETY: each extension begins with this head.
        let base = unsafe { head.read() };
        if base.type_ == 1 {
            // SAFETY: an extension of this type is this struct.
            let question = unsafe { head.cast::<XLA_FFI_Metadata_Extension>().read() };
            // SAFETY: it points to a struct to be filled, which nobody else uses meanwhile.
            let metadata = unsafe { &mut *question.metadata };
            metadata.api_version.major_version = 0;
            metadata.api_version.minor_version = MINOR.load(Ordering::Relaxed);
            metadata.traits = 0;
            return null_mut();
        }
    }
    // SAFETY: the frame is one of a run.
    match unsafe { run(frame) } {
        Ok(()) => null_mut(),
        // SAFETY: the frame's table is the runtime's.
        Err(text) => unsafe { failure(frame, &text) },
    }
}

/// # Safety
/// The frame is one of the runtime, which lives for the call.
unsafe fn run(frame: &XLA_FFI_CallFrame) -> Result<(), String> {
    // SAFETY: the caller's promise.
    let found = |name: &str| unsafe { attribute(&frame.attrs, name) };
    let number = |name: &str| found(name).ok_or_else(|| format!("attribute `{name}` is missing"));
    let (id, axes, count) = (number("id")?, number("axes")?, number("count")?);
    // SAFETY: the runtime's list has as many entries as it says.
    let args = unsafe { slice(frame.args.args, frame.args.size as usize) };
    let mut operands = Vec::new();
    for &arg in args.iter().take(count as usize) {
        // SAFETY: operands of a custom call are arrays, described by this struct.
        let buffer = unsafe { &*arg.cast::<XLA_FFI_Buffer>() };
        // SAFETY: the same.
        operands.push(unsafe { array(buffer) }.map_err(|e| e.to_string())?);
    }
    dispatch(id as u64, &operands, axes as usize)
}

/// The whole number of an attribute.
///
/// # Safety
/// The attributes are those of a frame.
unsafe fn attribute(attrs: &XLA_FFI_Attrs, name: &str) -> Option<i64> {
    let size = attrs.size as usize;
    // SAFETY: the list has as many entries as it says.
    let names = unsafe { slice(attrs.names, size) };
    // SAFETY: the list has as many entries as it says.
    let values = unsafe { slice(attrs.attrs, size) };
    for (&span, &value) in names.iter().zip(values) {
        // SAFETY: each entry points to a span that lives for the call.
        let span = unsafe { &*span };
        // SAFETY: the span's own length.
        let text = unsafe { slice(span.ptr.cast::<u8>(), span.len) };
        if text == name.as_bytes() {
            // SAFETY: the programs that name this handler have numbers as attributes only.
            let scalar = unsafe { &*value.cast::<XLA_FFI_Scalar>() };
            // SAFETY: they are written as `i64`.
            return Some(unsafe { scalar.value.cast::<i64>().read_unaligned() });
        }
    }
    None
}

/// A copy of an array.
///
/// # Safety
/// The buffer is one of a frame that runs on this process's memory.
unsafe fn array(buffer: &XLA_FFI_Buffer) -> Result<HostArray> {
    let dtype = DTYPES.iter().find(|(_, code)| *code == buffer.dtype).map(|(dtype, _)| *dtype);
    let dtype = dtype.ok_or_else(|| {
        let text = format!("XLA's element type {} has no dtype here", buffer.dtype);
        Error::new(ErrorKind::DType, "debug_callback", text)
    })?;
    // SAFETY: the buffer has as many sizes as its rank.
    let dims = unsafe { slice(buffer.dims.cast_const(), buffer.rank as usize) };
    let shape: Shape = dims.iter().map(|&d| d as usize).collect();
    let bytes = shape.size() * dtype.size();
    // SAFETY: the data are dense, row-major, and of this size.
    let data = unsafe { slice(buffer.data.cast::<u8>().cast_const(), bytes) };
    HostArray::from_bytes(dtype, &shape, data)
}

/// XLA's numbers of the element types.
const DTYPES: &[(DType, u32)] = &[
    (DType::Bool, 1),
    (DType::I8, 2),
    (DType::I16, 3),
    (DType::I32, 4),
    (DType::I64, 5),
    (DType::U8, 6),
    (DType::U16, 7),
    (DType::U32, 8),
    (DType::U64, 9),
    (DType::F16, 10),
    (DType::F32, 11),
    (DType::F64, 12),
    (DType::C64, 15),
    (DType::BF16, 16),
    (DType::C128, 18),
];

/// The runtime's error with a text; none if it cannot be made.
///
/// # Safety
/// The frame is one of the runtime.
unsafe fn failure(frame: &XLA_FFI_CallFrame, text: &str) -> *mut XLA_FFI_Error {
    const INTERNAL: u32 = 13;
    let message = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the runtime's table lives as long as the process.
    let Some(create) = (unsafe { (*frame.api).XLA_FFI_Error_Create }) else { return null_mut() };
    let mut args = XLA_FFI_Error_Create_Args {
        struct_size: size_of::<XLA_FFI_Error_Create_Args>(),
        extension_start: null_mut(),
        message: message.as_ptr(),
        errc: INTERNAL,
    };
    // SAFETY: the text is copied during the call.
    unsafe { create(&raw mut args) }
}
