//! The structs by which XLA's runtime calls a handler: of the header `xla/ffi/api/c_api.h`, version
//! 0.1, as far as a handler of arrays and numbers needs them.

use crate::*;

opaque! {
    /// An error that a handler gives; the runtime frees it.
    XLA_FFI_Error
    /// State of one run.
    XLA_FFI_ExecutionContext
    /// The runtime's own table.
    XLA_FFI_InternalApi
}

/// A handler of a custom call.
pub type XLA_FFI_Handler =
    unsafe extern "C" fn(frame: *mut XLA_FFI_CallFrame) -> *mut XLA_FFI_Error;

/// The head of an extension of a struct.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_Extension_Base {
    pub struct_size: usize,
    /// 1 for [`XLA_FFI_Metadata_Extension`].
    pub type_: c_uint,
    pub next: *mut XLA_FFI_Extension_Base,
}

/// A version of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_Api_Version {
    pub struct_size: usize,
    pub extension_start: *mut XLA_FFI_Extension_Base,
    pub major_version: c_int,
    pub minor_version: c_int,
}

/// What a handler tells of itself when it is registered.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_Metadata {
    pub struct_size: usize,
    pub api_version: XLA_FFI_Api_Version,
    pub traits: u32,
}

/// The question for [`XLA_FFI_Metadata`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_Metadata_Extension {
    pub extension_base: XLA_FFI_Extension_Base,
    pub metadata: *mut XLA_FFI_Metadata,
}

/// Arguments of [`XLA_FFI_Api::XLA_FFI_Error_Create`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_Error_Create_Args {
    pub struct_size: usize,
    pub extension_start: *mut XLA_FFI_Extension_Base,
    /// Ends with a zero byte.
    pub message: *const c_char,
    pub errc: c_uint,
}

/// The head of the runtime's table of functions.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_Api {
    pub struct_size: usize,
    pub extension_start: *mut XLA_FFI_Extension_Base,
    pub api_version: XLA_FFI_Api_Version,
    pub internal_api: *mut XLA_FFI_InternalApi,
    pub XLA_FFI_Error_Create:
        Option<unsafe extern "C" fn(*mut XLA_FFI_Error_Create_Args) -> *mut XLA_FFI_Error>,
}

/// An array.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_Buffer {
    pub struct_size: usize,
    pub extension_start: *mut XLA_FFI_Extension_Base,
    /// Numbered as XLA's `PrimitiveType`.
    pub dtype: c_uint,
    pub data: *mut c_void,
    pub rank: i64,
    pub dims: *mut i64,
}

/// The operands of a call.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_Args {
    pub struct_size: usize,
    pub extension_start: *mut XLA_FFI_Extension_Base,
    pub size: i64,
    /// 1 for an array.
    pub types: *mut c_uint,
    pub args: *mut *mut c_void,
}

/// Some bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_ByteSpan {
    pub ptr: *const c_char,
    pub len: usize,
}

/// A number.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_Scalar {
    pub dtype: c_uint,
    pub value: *mut c_void,
}

/// The attributes of a call, sorted by name.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_Attrs {
    pub struct_size: usize,
    pub extension_start: *mut XLA_FFI_Extension_Base,
    pub size: i64,
    /// 3 for a number.
    pub types: *mut c_uint,
    pub names: *mut *mut XLA_FFI_ByteSpan,
    pub attrs: *mut *mut c_void,
}

/// One call.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct XLA_FFI_CallFrame {
    pub struct_size: usize,
    pub extension_start: *mut XLA_FFI_Extension_Base,
    pub api: *const XLA_FFI_Api,
    pub ctx: *mut XLA_FFI_ExecutionContext,
    /// 3 for execution.
    pub stage: c_uint,
    pub args: XLA_FFI_Args,
    pub rets: XLA_FFI_Args,
    pub attrs: XLA_FFI_Attrs,
}
