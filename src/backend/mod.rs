//! Where programs run: the host backend and PJRT plugins behind one set of types.
//!
//! A [`Client`] is one opened backend; it has [`Device`]s, takes data as [`Buffer`]s and compiles a
//! [`Program`] to an [`Executable`]. Clients live as long as the process and are found by their
//! number, so a [`DeviceId`] names a device for good.

pub mod client;
pub mod host;
pub mod host_call;
pub mod metrics;
pub mod pjrt;
pub mod session;

pub use client::{Client, ClientOptions, Device};
pub use metrics::Metrics;

use crate::aval::{Aval, Avals};
use crate::error::Result;
use crate::mesh::{DeviceId, NamedSharding};
use host::HostArray;
use pjrt::options::OverrideValue;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// A program as the host backend runs it: whole arrays in, whole arrays out.
pub type HostProgram = Arc<dyn Fn(&[HostArray]) -> Result<Vec<HostArray>> + Send + Sync>;

/// Buffers of one operand or result, one for each device that takes part.
pub type Shards = SmallVec<[Buffer; 1]>;

/// Makes the StableHLO text for the results' shardings that are asked for; an empty list leaves
/// them to the compiler.
pub type MakeText<'a> = &'a dyn Fn(&[Option<NamedSharding>]) -> Result<String>;

/// What is compiled: both forms of one program, made only if the backend asks for them.
pub struct Program<'a> {
    /// A name for diagnostics.
    pub name: &'a str,
    /// Makes the StableHLO module's text.
    pub stablehlo: MakeText<'a>,
    /// Makes the program over host arrays.
    pub host: &'a dyn Fn() -> HostProgram,
    /// Types of the results, without shardings.
    pub outs: &'a [Aval],
    /// The shardings that the results must have; empty or none leaves them to the compiler.
    pub out_shardings: &'a [Option<NamedSharding>],
    /// Whether it calls functions of this process.
    pub host_calls: bool,
    /// XLA flags for this program; the host backend has no use for them.
    pub compiler_options: &'a [(String, OverrideValue)],
    /// The mesh, if the program runs on several devices; else the one device.
    pub place: ProgramPlace<'a>,
}

/// Where a program runs.
#[derive(Clone, Copy, Debug)]
pub enum ProgramPlace<'a> {
    /// On one device.
    Device(DeviceId),
    /// On all devices of a mesh, a part on each.
    Mesh(&'a crate::mesh::Mesh),
}

impl fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({} -> {:?} on {:?})", self.name, self.outs, self.place)
    }
}

/// Data of one array on one device.
pub enum Buffer {
    /// In this process's memory.
    Host(HostArray),
    /// In the memory of a plugin's device.
    Pjrt(pjrt::Buffer),
}

/// A compiled program.
#[derive(Clone)]
pub enum Executable {
    /// Run by the host backend.
    Host(HostProgram),
    /// Run by a plugin.
    Pjrt(Arc<pjrt::Executable>),
}

/// A compiled program and the types of its results, with shardings on a mesh.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The program.
    pub executable: Executable,
    /// The types of its results.
    pub outs: Avals,
}

impl Buffer {
    /// The data in this process's memory; waits until it is there.
    ///
    /// # Errors
    /// If the computation that makes the data failed, or the buffer is gone.
    pub fn to_host(&self) -> Result<HostArray> {
        match self {
            Buffer::Host(array) => Ok(array.clone()),
            Buffer::Pjrt(buffer) => buffer.download(),
        }
    }

    /// Waits until the data is there.
    ///
    /// # Errors
    /// If the computation that makes the data failed.
    pub fn block(&self) -> Result<()> {
        match self {
            Buffer::Host(_) => Ok(()),
            Buffer::Pjrt(buffer) => buffer.block(),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::Host(array) => write!(f, "{array:?}"),
            Buffer::Pjrt(_) => f.write_str("Buffer(pjrt)"),
        }
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Executable::Host(_) => f.write_str("Executable(host)"),
            Executable::Pjrt(executable) => write!(f, "{executable:?}"),
        }
    }
}
