//! A plugin in Rust: a table of functions that count what they hand out and what comes back, for
//! tests of loading, versions, errors and ownership with no plugin at hand.
//!
//! It acts as a plugin newer than this crate's declarations: it refuses an argument struct that is
//! not 64 bytes longer than ours, or whose tail is not zero.

use super::api::Plugin;
use super::client::Client;
use crate::backend::host::HostArray;
use crate::dtype::Scalar;
use crate::error::ErrorKind;
use pjrt_sys::*;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::mem::offset_of;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// What the fake plugin hands out.
#[derive(Clone, Copy)]
enum Kind {
    Error,
    Event,
    Client,
    Buffer,
}

thread_local! {
    /// How many of each kind were made and freed on this thread.
    static MADE: RefCell<[(i32, i32); 4]> = const { RefCell::new([(0, 0); 4]) };
    /// The function that fails, with its code.
    static FAILING: Cell<Option<(&'static str, u32)>> = const { Cell::new(None) };
    /// Where the host bytes of the last upload lie.
    static UPLOADED: Cell<*const f32> = const { Cell::new(null()) };
    /// What the last upload allows the plugin.
    static ALLOWED: Cell<PJRT_HostBufferSemantics> =
        const { Cell::new(PJRT_HostBufferSemantics::kImmutableZeroCopy) };
    /// What events wait with.
    static WAITING: RefCell<Vec<(PJRT_Event_OnReadyCallback, *mut c_void)>> =
        const { RefCell::new(Vec::new()) };
}

/// Made and freed so far.
fn made(kind: Kind) -> (i32, i32) {
    MADE.with_borrow(|made| made[kind as usize])
}

fn make<T>(kind: Kind, value: T) -> *mut T {
    MADE.with_borrow_mut(|made| made[kind as usize].0 += 1);
    Box::into_raw(Box::new(value))
}

/// # Safety
/// `value` came from [`make`] with the same type and was not freed.
unsafe fn free<T>(kind: Kind, value: *mut T) {
    MADE.with_borrow_mut(|made| made[kind as usize].1 += 1);
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(value) });
}

struct FakeError {
    code: PJRT_Error_Code,
    message: String,
}

fn fail(code: u32, message: impl Into<String>) -> *mut PJRT_Error {
    let error = FakeError { code: PJRT_Error_Code(code), message: message.into() };
    make(Kind::Error, error).cast()
}

/// Bytes by which this plugin's structs are longer than ours.
const NEWER: usize = 64;

/// Checks the size and the tail as a newer plugin would, then lets `fill` write the results.
///
/// # Safety
/// `args` follows the header.
unsafe fn answer<A: Function>(args: *mut A, fill: impl FnOnce(&mut A)) -> *mut PJRT_Error {
    // SAFETY: argument structs begin with their size.
    let size = unsafe { args.cast::<usize>().read() };
    let (name, least) = (A::NAME, size_of::<A>() + NEWER);
    if size < least {
        return fail(3, format!("Unexpected {name} size: expected {least}, got {size}"));
    }
    // SAFETY: the size says that the tail exists.
    let tail = unsafe { args.add(1) };
    // SAFETY: as above.
    let tail = unsafe { std::slice::from_raw_parts(tail.cast::<u8>(), size - size_of::<A>()) };
    if tail.iter().any(|&byte| byte != 0) {
        return fail(3, format!("the tail of {name} is not zero"));
    }
    if let Some((function, code)) = FAILING.get()
        && function == A::FUNCTION
    {
        return fail(code, "asked to fail\n");
    }
    // SAFETY: the caller's promise.
    fill(unsafe { &mut *args });
    null_mut()
}

unsafe extern "C" fn error_destroy(args: *mut PJRT_Error_Destroy_Args) {
    // SAFETY: the caller passes alive arguments.
    let error = unsafe { (*args).error };
    // SAFETY: errors come from `fail`.
    unsafe { free(Kind::Error, error.cast::<FakeError>()) };
}

unsafe extern "C" fn error_message(args: *mut PJRT_Error_Message_Args) {
    // SAFETY: the caller passes alive arguments.
    let args = unsafe { &mut *args };
    // SAFETY: errors come from `fail`.
    let error = unsafe { &*args.error.cast::<FakeError>() };
    args.message = error.message.as_ptr().cast();
    args.message_size = error.message.len();
}

/// A function of the fake table.
macro_rules! fake {
    ($name:ident($args:ident: $ty:ty) $body:block) => {
        unsafe extern "C" fn $name(args: *mut $ty) -> *mut PJRT_Error {
            let fill = |$args: &mut $ty| $body;
            // SAFETY: only the gate calls this, with arguments that follow the header.
            unsafe { answer(args, fill) }
        }
    };
}

fake!(error_get_code(args: PJRT_Error_GetCode_Args) {
    // SAFETY: errors come from `fail`.
    args.code = unsafe { (*args.error.cast::<FakeError>()).code };
});
fake!(initialize(_args: PJRT_Plugin_Initialize_Args) {});
fake!(client_create(args: PJRT_Client_Create_Args) {
    args.client = make(Kind::Client, 0_u8).cast();
});
fake!(client_destroy(args: PJRT_Client_Destroy_Args) {
    // SAFETY: clients come from `client_create`.
    unsafe { free(Kind::Client, args.client.cast::<u8>()) };
});
fake!(platform_name(args: PJRT_Client_PlatformName_Args) {
    args.platform_name = c"cpu".as_ptr();
    args.platform_name_size = 3;
});
fake!(platform_version(args: PJRT_Client_PlatformVersion_Args) {
    args.platform_version = null();
});
fake!(process_index(args: PJRT_Client_ProcessIndex_Args) {
    args.process_index = 7;
});
fake!(addressable_devices(args: PJRT_Client_AddressableDevices_Args) {
    struct Devices([*mut PJRT_Device; 2]);
    // SAFETY: two constants that nobody looks behind.
    unsafe impl Sync for Devices {}
    static DEVICES: Devices = Devices([8 as *mut PJRT_Device, 16 as *mut PJRT_Device]);
    args.addressable_devices = DEVICES.0.as_ptr();
    args.num_addressable_devices = 2;
});
fake!(get_description(args: PJRT_Device_GetDescription_Args) {
    args.device_description = args.device.cast();
});
fake!(description_id(args: PJRT_DeviceDescription_Id_Args) {
    args.id = args.device_description.addr() as i32;
});
fake!(description_kind(args: PJRT_DeviceDescription_Kind_Args) {
    args.device_kind = c"fake".as_ptr();
    args.device_kind_size = 4;
});
fake!(description_debug(args: PJRT_DeviceDescription_DebugString_Args) {
    args.debug_string = c"fake \xff".as_ptr();
    args.debug_string_size = 6;
});
fake!(upload(args: PJRT_Client_BufferFromHostBuffer_Args) {
    UPLOADED.set(args.data.cast());
    ALLOWED.set(args.host_buffer_semantics);
    args.buffer = make(Kind::Buffer, 0_u8).cast();
    args.done_with_host_buffer = make(Kind::Event, 0_u8).cast();
});
fake!(buffer_destroy(args: PJRT_Buffer_Destroy_Args) {
    // SAFETY: buffers come from `upload`.
    unsafe { free(Kind::Buffer, args.buffer.cast::<u8>()) };
});
fake!(buffer_ready(args: PJRT_Buffer_ReadyEvent_Args) {
    args.event = make(Kind::Event, 0_u8).cast();
});
fake!(event_destroy(args: PJRT_Event_Destroy_Args) {
    // SAFETY: events come from `make`.
    unsafe { free(Kind::Event, args.event.cast::<u8>()) };
});
fake!(event_await(_args: PJRT_Event_Await_Args) {});
fake!(event_on_ready(args: PJRT_Event_OnReady_Args) {
    let callback = args.callback.expect("the gate's caller passes a callback");
    WAITING.with_borrow_mut(|waiting| waiting.push((callback, args.user_arg)));
});

/// Lets all that waits go on, with an error if `failed`.
fn finish(failed: bool) {
    for (callback, user_arg) in WAITING.take() {
        let error = if failed { fail(13, "the transfer failed") } else { null_mut() };
        // SAFETY: the callback came with this argument and is called once.
        unsafe { callback(error, user_arg) };
    }
}

/// The table, as far as `size` bytes.
fn table(size: usize) -> &'static mut PJRT_Api {
    let mut table = PJRT_Api::zeroed();
    table.struct_size = size;
    table.pjrt_api_version.major_version = 0;
    table.pjrt_api_version.minor_version = 99;
    table.PJRT_Error_Destroy = Some(error_destroy);
    table.PJRT_Error_Message = Some(error_message);
    table.PJRT_Error_GetCode = Some(error_get_code);
    table.PJRT_Plugin_Initialize = Some(initialize);
    table.PJRT_Client_Create = Some(client_create);
    table.PJRT_Client_Destroy = Some(client_destroy);
    table.PJRT_Client_PlatformName = Some(platform_name);
    table.PJRT_Client_PlatformVersion = Some(platform_version);
    table.PJRT_Client_ProcessIndex = Some(process_index);
    table.PJRT_Client_AddressableDevices = Some(addressable_devices);
    table.PJRT_Device_GetDescription = Some(get_description);
    table.PJRT_DeviceDescription_Id = Some(description_id);
    table.PJRT_DeviceDescription_Kind = Some(description_kind);
    table.PJRT_DeviceDescription_DebugString = Some(description_debug);
    table.PJRT_Client_BufferFromHostBuffer = Some(upload);
    table.PJRT_Buffer_Destroy = Some(buffer_destroy);
    table.PJRT_Buffer_ReadyEvent = Some(buffer_ready);
    table.PJRT_Event_Destroy = Some(event_destroy);
    table.PJRT_Event_Await = Some(event_await);
    table.PJRT_Event_OnReady = Some(event_on_ready);
    Box::leak(Box::new(table))
}

fn load(table: *const PJRT_Api) -> crate::error::Result<Plugin> {
    // SAFETY: null, or the table above, which is never freed.
    unsafe { Plugin::from_table(table, Path::new("fake")) }
}

fn plugin() -> Plugin {
    load(table(size_of::<PJRT_Api>())).unwrap()
}

fn failing<T>(function: &'static str, code: u32, f: impl FnOnce() -> T) -> T {
    FAILING.set(Some((function, code)));
    let out = f();
    FAILING.set(None);
    out
}

fn balanced(kind: Kind, count: i32) {
    assert_eq!(made(kind), (count, count), "made and freed");
}

#[test]
fn tables_that_are_too_short() {
    let rows = [
        (0, "0 bytes only"),
        (offset_of!(PJRT_Api, pjrt_api_version), "16 bytes only"),
        (offset_of!(PJRT_Api, PJRT_Error_GetCode), "lacks the functions for errors"),
    ];
    for (size, reason) in rows {
        let error = load(table(size)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Plugin, "{error}");
        assert!(error.text().contains(reason) && error.text().contains("fake"), "{error}");
    }
    let error = load(null()).unwrap_err();
    assert!(error.text().contains("null"), "{error}");
}

#[test]
fn functions_that_are_not_there() {
    let old = load(table(offset_of!(PJRT_Api, PJRT_Client_Create) + 4)).unwrap();
    assert_eq!(old.api_version(), (0, 99));
    let error = Client::create(&old, &[]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Backend { code: 12 }, "{error}");
    assert_eq!(error.op(), "PJRT_Client_Create");
    assert!(error.text().contains("API 0.99") && error.text().contains("fake"), "{error}");
    let error = plugin().attributes().unwrap_err();
    assert_eq!(error.op(), "PJRT_Plugin_Attributes", "a null slot within the table");
    balanced(Kind::Error, 0);
}

#[test]
fn errors_are_read_and_freed() {
    let create = "PJRT_Client_Create";
    let rows = [
        (3, ErrorKind::Backend { code: 3 }, "INVALID_ARGUMENT (3): asked to fail"),
        (8, ErrorKind::OutOfMemory, "RESOURCE_EXHAUSTED (8): asked to fail"),
        (99, ErrorKind::Backend { code: 99 }, "unlisted code (99): asked to fail"),
    ];
    for (i, (code, kind, text)) in rows.into_iter().enumerate() {
        let error = failing(create, code, || Client::create(&plugin(), &[])).unwrap_err();
        assert_eq!((error.kind(), error.op(), error.text()), (&kind, create, text));
        balanced(Kind::Error, i as i32 + 1);
    }
    let setup = failing("PJRT_Plugin_Initialize", 14, || load(table(size_of::<PJRT_Api>())));
    assert_eq!(*setup.unwrap_err().kind(), ErrorKind::Backend { code: 14 });
    balanced(Kind::Error, 4);
    balanced(Kind::Client, 0);
}

#[test]
fn a_client_that_cannot_be_read_is_closed() {
    for (i, function) in
        ["PJRT_Client_ProcessIndex", "PJRT_DeviceDescription_Kind"].into_iter().enumerate()
    {
        let error = failing(function, 13, || Client::create(&plugin(), &[])).unwrap_err();
        assert_eq!(error.op(), function);
        balanced(Kind::Client, i as i32 + 1);
    }
}

#[test]
fn buffers_keep_their_client_open() {
    let client = Client::create(&plugin(), &[]).unwrap();
    assert_eq!((client.process_index(), client.platform_version()), (7, ""));
    let ids: Vec<i32> = client.devices().iter().map(super::Device::id).collect();
    assert_eq!(ids, [8, 16]);
    assert_eq!(client.devices()[0].debug_text(), "fake \u{fffd}");
    let buffer = client.upload(HostArray::from_slice(&[1.0_f32], &[1].into()).unwrap(), 1);
    let buffer = buffer.unwrap();
    let event = buffer.ready().unwrap();
    event.await_().unwrap();
    drop(client);
    drop(buffer);
    balanced(Kind::Buffer, 1);
    assert_eq!(made(Kind::Client), (1, 0), "the event still needs it");
    drop(event);
    balanced(Kind::Client, 1);
    balanced(Kind::Event, 2);
    balanced(Kind::Error, 0);
}

/// Miri and valgrind see it if the bytes are freed too early.
#[test]
fn host_bytes_are_held_until_the_plugin_is_done() {
    for (i, failed) in [false, true].into_iter().enumerate() {
        let client = Client::create(&plugin(), &[]).unwrap();
        let large = HostArray::from_slice(&vec![1.0_f32; 1 << 15], &[1 << 15].into()).unwrap();
        let buffer = client.upload(&large, 0).unwrap();
        assert_eq!(WAITING.with_borrow(Vec::len), 1, "the bytes wait for the event");
        drop((client, buffer, large));
        // SAFETY: until the plugin says that it is done, the bytes are held.
        assert_eq!(unsafe { UPLOADED.get().read() }, 1.0, "the first element");
        balanced(Kind::Client, i as i32 + 1);
        finish(failed);
        balanced(Kind::Error, i as i32);
    }
}

/// A program may write to bytes only if they were given away.
#[test]
fn shared_host_bytes_are_read_only() {
    let client = Client::create(&plugin(), &[]).unwrap();
    let large = || HostArray::from_slice(&vec![1.0_f32; 1 << 15], &[1 << 15].into()).unwrap();
    let shared = large();
    let other = shared.clone();
    let _buffer = client.upload(shared, 0).unwrap();
    assert_eq!(ALLOWED.get(), PJRT_HostBufferSemantics::kImmutableZeroCopy);
    let _buffer = client.upload(&other, 0).unwrap();
    assert_eq!(ALLOWED.get(), PJRT_HostBufferSemantics::kImmutableZeroCopy);
    let start = UPLOADED.get();
    let _buffer = client.upload(large(), 0).unwrap();
    assert_eq!(ALLOWED.get(), PJRT_HostBufferSemantics::kMutableZeroCopy);
    assert_ne!(UPLOADED.get(), start);
    // SAFETY: as the semantics say, the plugin alone has these bytes.
    unsafe { UPLOADED.get().cast_mut().write(2.0) };
    let part = other.slice(&[8], &[1 << 15], &[1]);
    let _buffer = client.upload(part, 0).unwrap();
    assert_eq!(ALLOWED.get(), PJRT_HostBufferSemantics::kImmutableZeroCopy);
    let _buffer = client.upload(HostArray::full(Scalar::new(1f32), &[1 << 15].into()), 0).unwrap();
    assert_eq!(ALLOWED.get(), PJRT_HostBufferSemantics::kMutableZeroCopy, "made for the upload");
    finish(false);
    assert_eq!(other.to_vec::<f32>().unwrap()[0], 1.0);
}

#[test]
fn callbacks_get_the_error_and_are_dropped_if_refused() {
    let client = Client::create(&plugin(), &[]).unwrap();
    let array = HostArray::from_slice(&[1.0_f32], &[1].into()).unwrap();
    let event = client.upload(&array, 0).unwrap().ready().unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    event.on_ready(move |result| send.send(result).unwrap()).unwrap();
    finish(true);
    let error = receive.try_recv().unwrap().unwrap_err();
    assert_eq!(
        (error.op(), error.text()),
        ("PJRT_Event_OnReady", "INTERNAL (13): the transfer failed")
    );
    let held = Arc::new(());
    let inside = held.clone();
    let refused =
        failing("PJRT_Event_OnReady", 3, || event.on_ready(move |_| drop(inside))).unwrap_err();
    assert_eq!(refused.op(), "PJRT_Event_OnReady");
    assert_eq!(Arc::strong_count(&held), 1, "the refused callback is dropped");
    balanced(Kind::Error, 2);
}
