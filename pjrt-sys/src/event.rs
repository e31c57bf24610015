//! Events: what becomes ready later, with or without an error.

use crate::*;

/// Runs once an event has come; owns `error`, which is null if all went well.
pub type PJRT_Event_OnReadyCallback =
    unsafe extern "C" fn(error: *mut PJRT_Error, user_arg: *mut c_void);

functions! {
    /// Frees an event; the work that it stands for goes on.
    PJRT_Event_Destroy(PJRT_Event_Destroy_Args) {
        event: *mut PJRT_Event,
    }

    /// Tells without waiting whether an event has come.
    PJRT_Event_IsReady(PJRT_Event_IsReady_Args) {
        event: *mut PJRT_Event,
        is_ready: bool,
    }

    /// Gives the error that a ready event carries, or null.
    PJRT_Event_Error(PJRT_Event_Error_Args) {
        event: *mut PJRT_Event,
    }

    /// Blocks until an event has come and gives its error.
    PJRT_Event_Await(PJRT_Event_Await_Args) {
        event: *mut PJRT_Event,
    }

    /// Has a callback run once the event has come, at once if it has already.
    PJRT_Event_OnReady(PJRT_Event_OnReady_Args) {
        event: *mut PJRT_Event,
        callback: Option<PJRT_Event_OnReadyCallback>,
        user_arg: *mut c_void,
    }
}
