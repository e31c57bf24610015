//! The PJRT backend: any plugin that exports `GetPjrtApi`, from file to executed program.
//!
//! | module | holds |
//! |---|---|
//! | [`api`] | [`Plugin`]: an opened plugin, and the one gate that every C call goes through |
//! | [`client`] | [`Client`]: a plugin's devices, opened |
//! | [`buffer`] | [`Buffer`]: an array in the memory of one device |
//! | [`event`] | [`Event`]: what becomes ready later |
//! | [`executable`] | [`Executable`]: a compiled program on its devices, and its runs |
//! | [`program`] | [`Program`]: a compiled program apart from them: costs, memory, bytes |
//! | [`error`] | how a plugin's errors become ours |
//! | [`discover`], [`install`] | where plugins are found, how they are fetched |
//! | [`options`], [`shardings`] | compile options in, shardings of a compiled program out |
//! | `hlo_text` | a compiled program as text |
//! | [`cache`] | executables kept on disk |
//!
//! Raw pointers stay inside of these modules. Each owning type frees its handle when dropped and
//! keeps the client alive; nothing here panics.

#![expect(unsafe_code, reason = "the edge to the C ABI; every block says why it is sound")]

pub mod api;
pub mod buffer;
pub mod cache;
pub mod client;
pub mod discover;
pub mod error;
pub mod event;
pub mod executable;
#[cfg(test)]
mod fake;
pub mod ffi;
mod hlo_text;
pub mod install;
pub mod options;
pub mod program;
pub mod shardings;

pub use api::{AttrValue, OptionValue, Plugin};
pub use buffer::Buffer;
pub use client::{Client, Device, DeviceMemory};
pub use event::Event;
pub use executable::Executable;
pub use program::{OptimizedProgram, Program, ProgramMemory};
