//! The PJRT C ABI, declared by hand: no build script, no libclang, no protoc.
//!
//! The names are those of the C header `pjrt_c_api.h`, version 0.81, so that its text can be read
//! beside this crate. A plugin is a shared library that exports [`GetPjrtApi`], which gives a
//! table [`PJRT_Api`] of function pointers; every function takes one pointer to its argument
//! struct, which also holds what comes out.
//!
//! | module | holds |
//! |---|---|
//! | [`api`] | the table, its version, extensions |
//! | [`error`], [`event`] | what failed, what comes later |
//! | [`plugin`], [`client`], [`device`], [`topology`] | a plugin, its devices opened, described |
//! | [`transfer`], [`buffer`] | host to device, arrays on a device |
//! | [`executable`] | compiled programs and their runs |
//! | [`extensions`], [`ffi`] | the FFI extension, and how its handlers are called |
//! | [`layout`] | what the structs are called in C and where their fields lie |
//!
//! Beyond the header's names there are two traits. [`Struct`] tells each struct's C name, its
//! fields and where they lie (the layout test compares that with the C compiler's answer);
//! [`Function`] ties an argument struct to its slot in the table, so that a caller needs a single
//! generic gate. A plugin newer than these declarations has larger structs: pass a larger
//! `struct_size` with a zeroed tail.

#![expect(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "names of the C header"
)]
#![expect(missing_docs, reason = "fields and codes are plain mirrors of the C header's")]
#![expect(unsafe_code, reason = "the two traits promise the compiler facts about C structs")]

#[macro_use]
mod macros;

pub mod api;
pub mod buffer;
pub mod client;
pub mod device;
pub mod error;
pub mod event;
pub mod executable;
pub mod extensions;
pub mod ffi;
pub mod layout;
pub mod plugin;
pub mod topology;
pub mod transfer;

pub use api::*;
pub use buffer::*;
pub use client::*;
pub use device::*;
pub use error::*;
pub use event::*;
pub use executable::*;
pub use extensions::*;
pub use ffi::*;
pub use layout::{Function, Layout, Struct, codes, layouts};
pub use plugin::*;
pub use topology::*;
pub use transfer::*;

pub(crate) use std::ffi::{c_char, c_int, c_uint, c_void};

opaque! {
    /// An error, owned by whoever got it.
    PJRT_Error
    /// Something that becomes ready later.
    PJRT_Event
    /// The devices of a plugin, opened.
    PJRT_Client
    /// A device; owned by its client.
    PJRT_Device
    /// A memory space; owned by its client.
    PJRT_Memory
    /// What is known of a device, present or not.
    PJRT_DeviceDescription
    /// What is known of a whole machine, present or not.
    PJRT_TopologyDescription
    /// A compiled program.
    PJRT_Executable
    /// A compiled program on its devices, ready to run.
    PJRT_LoadedExecutable
    /// An array in the memory of one device.
    PJRT_Buffer
    /// What fulfils an alias buffer.
    PJRT_FulfillAliasBufferCallback
    /// Buffers that are being filled piece by piece.
    PJRT_AsyncHostToDeviceTransferManager
    /// User data on its way to custom calls.
    PJRT_ExecuteContext
    /// Owner of the bytes of a serialised executable.
    PJRT_SerializedExecutable
    /// Owner of the bytes of a serialised topology.
    PJRT_SerializedTopology
    /// Owner of the bytes of a serialised device assignment.
    PJRT_DeviceAssignmentSerialized
    /// Where a receive callback puts its chunks.
    PJRT_CopyToDeviceStream
}
