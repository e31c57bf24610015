//! Errors: made by the plugin, read and freed by the caller.

use crate::*;

codes! {
    /// The code of an error; the numbers are those of `absl::StatusCode`.
    PJRT_Error_Code("PJRT_Error_Code_") {
        OK = 0,
        CANCELLED = 1,
        UNKNOWN = 2,
        INVALID_ARGUMENT = 3,
        DEADLINE_EXCEEDED = 4,
        NOT_FOUND = 5,
        ALREADY_EXISTS = 6,
        PERMISSION_DENIED = 7,
        RESOURCE_EXHAUSTED = 8,
        FAILED_PRECONDITION = 9,
        ABORTED = 10,
        OUT_OF_RANGE = 11,
        UNIMPLEMENTED = 12,
        INTERNAL = 13,
        UNAVAILABLE = 14,
        DATA_LOSS = 15,
        UNAUTHENTICATED = 16,
    }
}

/// Makes an error on behalf of a callback that failed.
pub type PJRT_CallbackError = unsafe extern "C" fn(
    code: PJRT_Error_Code,
    message: *const c_char,
    message_size: usize,
) -> *mut PJRT_Error;

/// Frees an error.
pub type PJRT_Error_Destroy = unsafe extern "C" fn(*mut PJRT_Error_Destroy_Args);

/// Gives the text of an error; it lives as long as the error.
pub type PJRT_Error_Message = unsafe extern "C" fn(*mut PJRT_Error_Message_Args);

structs! {
    /// Arguments of [`PJRT_Error_Destroy`].
    PJRT_Error_Destroy_Args {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        error: *mut PJRT_Error,
    }

    /// Arguments of [`PJRT_Error_Message`].
    PJRT_Error_Message_Args {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        error: *const PJRT_Error,
        message: *const c_char,
        message_size: usize,
    }
}

functions! {
    /// Gives the code of an error.
    PJRT_Error_GetCode(PJRT_Error_GetCode_Args) {
        error: *const PJRT_Error,
        code: PJRT_Error_Code,
    }
}
