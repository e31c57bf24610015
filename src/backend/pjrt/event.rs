//! [`Event`]: something on a device that becomes ready later, with or without an error.

use super::api::Plugin;
use super::client::Client;
use super::error;
use crate::error::Result;
use pjrt_sys::{
    Function, PJRT_Error, PJRT_Event, PJRT_Event_Await_Args, PJRT_Event_Destroy_Args,
    PJRT_Event_IsReady_Args, PJRT_Event_OnReady_Args,
};
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// Something that becomes ready later: the contents of a buffer, a copy to the host.
///
/// Dropping an event does not stop what it stands for.
pub struct Event {
    raw: RawEvent,
    /// Keeps the client open, which the event's work belongs to.
    _client: Client,
}

/// An event's handle, freed when dropped, which does not keep the client open.
pub(super) struct RawEvent {
    plugin: Plugin,
    event: NonNull<PJRT_Event>,
}

// SAFETY: the header ties no event to a thread: `PJRT_Event_Await` blocks "the calling thread",
// whichever it is, and callbacks come from threads of the plugin.
unsafe impl Send for RawEvent {}
// SAFETY: as above; no function changes an event but the one that frees it.
unsafe impl Sync for RawEvent {}

impl Event {
    pub(super) fn new(raw: RawEvent, client: &Client) -> Event {
        Event { raw, _client: client.clone() }
    }

    /// Blocks until the event is ready.
    ///
    /// # Errors
    /// If what it stands for failed; the error is that of the device.
    pub fn await_(&self) -> Result<()> {
        self.raw.wait()
    }

    /// Whether the event is ready; does not block.
    pub fn is_ready(&self) -> Result<bool> {
        let RawEvent { plugin, event } = &self.raw;
        // SAFETY: the event is alive.
        let args = unsafe {
            plugin.call(|args: &mut PJRT_Event_IsReady_Args| args.event = event.as_ptr())
        }?;
        Ok(args.is_ready)
    }

    /// Has `callback` run once the event is ready, on a thread of the plugin, or at once on this
    /// one if it is ready already. It must be quick and must not wait for device work.
    pub fn on_ready(&self, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        self.raw.on_ready(callback)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event(ready: {:?})", self.is_ready())
    }
}

/// What travels through the callback's `user_arg`.
struct Pending<F> {
    plugin: Plugin,
    callback: F,
}

impl RawEvent {
    /// Takes over the event that `function` gave out.
    ///
    /// # Safety
    /// `event` is null or an event of `plugin` that nobody else frees.
    pub(super) unsafe fn new(
        plugin: &Plugin,
        event: *mut PJRT_Event,
        function: &'static str,
    ) -> Result<RawEvent> {
        let event = NonNull::new(event)
            .ok_or_else(|| error::broken(function, "the plugin gave no event"))?;
        Ok(RawEvent { plugin: plugin.clone(), event })
    }

    pub(super) fn wait(&self) -> Result<()> {
        let event = self.event.as_ptr();
        // SAFETY: the event is alive.
        unsafe { self.plugin.call(|args: &mut PJRT_Event_Await_Args| args.event = event) }?;
        Ok(())
    }

    pub(super) fn on_ready<F: FnOnce(Result<()>) + Send + 'static>(
        &self,
        callback: F,
    ) -> Result<()> {
        let pending = Box::new(Pending { plugin: self.plugin.clone(), callback });
        let pending = Box::into_raw(pending);
        let event = self.event.as_ptr();
        // SAFETY: the event is alive, and the callback takes `user_arg` as what it is.
        let called = unsafe {
            self.plugin.call(|args: &mut PJRT_Event_OnReady_Args| {
                args.event = event;
                args.callback = Some(ready::<F>);
                args.user_arg = pending.cast();
            })
        };
        if let Err(error) = called {
            // SAFETY: the plugin refused, so the callback will not run and the box is still ours.
            drop(unsafe { Box::from_raw(pending) });
            return Err(error);
        }
        Ok(())
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        let event = self.event.as_ptr();
        // SAFETY: this is the only owner of the event.
        unsafe { self.plugin.free(|args: &mut PJRT_Event_Destroy_Args| args.event = event) };
    }
}

/// The C side of [`Event::on_ready`]. A panic ends here: the plugin's threads know no unwinding.
unsafe extern "C" fn ready<F: FnOnce(Result<()>)>(error: *mut PJRT_Error, user_arg: *mut c_void) {
    // SAFETY: `on_ready` passes this box, and the plugin calls back once.
    let pending = unsafe { Box::from_raw(user_arg.cast::<Pending<F>>()) };
    let Pending { plugin, callback } = *pending;
    let result = match NonNull::new(error) {
        None => Ok(()),
        Some(error) => {
            // SAFETY: the header gives the callback the error to own.
            Err(unsafe { error::take(&plugin, error, PJRT_Event_OnReady_Args::FUNCTION) })
        }
    };
    if catch_unwind(AssertUnwindSafe(|| callback(result))).is_err() {
        tracing::error!("the callback of an event panicked");
    }
}
