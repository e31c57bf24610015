//! Extensions that `pjrt_c_api.h` does not declare itself: so far the FFI extension, by which
//! custom calls get their handlers.
//!
//! Their headers are not shipped with plugins, so the layout test cannot ask the C compiler; it
//! compares the size with what plugins of API 0.81, 0.106 and 0.115 report.

use crate::*;

/// A function of an extension whose arguments are not declared here.
pub type PJRT_Undeclared = unsafe extern "C" fn(args: *mut c_void) -> *mut PJRT_Error;

/// Registers the handler of a custom call for one platform.
pub type PJRT_FFI_Register_Handler =
    unsafe extern "C" fn(args: *mut PJRT_FFI_Register_Handler_Args) -> *mut PJRT_Error;

/// Arguments of [`PJRT_FFI_Register_Handler`]; unlike others they have no `extension_start`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PJRT_FFI_Register_Handler_Args {
    pub struct_size: usize,
    pub target_name: *const c_char,
    pub target_name_size: usize,
    /// An `XLA_FFI_Handler*`.
    pub handler: *mut c_void,
    pub platform_name: *const c_char,
    pub platform_name_size: usize,
    /// Bit 0: the handler may run inside of a command buffer.
    pub traits: c_uint,
}

/// The extension of type [`PJRT_Extension_Type::FFI`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PJRT_FFI_Extension {
    pub base: PJRT_Extension_Base,
    pub type_id_register: Option<PJRT_Undeclared>,
    pub user_data_add: Option<PJRT_Undeclared>,
    pub register_handler: Option<PJRT_FFI_Register_Handler>,
}
