//! Where programs run: the host backend and PJRT plugins behind one set of types.
//!
//! A [`Client`] is one opened backend; it has [`Device`]s, takes data as [`Buffer`]s and compiles a
//! [`Program`] to an [`Executable`]. Clients live as long as the process and are found by their
//! number, so a [`DeviceId`] names a device for good.

pub mod host;
pub mod pjrt;

use crate::aval::Aval;
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::{DeviceId, Mesh};
use host::HostArray;
use smallvec::SmallVec;
use std::fmt;
use std::sync::{Arc, RwLock};

/// A program as the host backend runs it: whole arrays in, whole arrays out.
pub type HostProgram = Arc<dyn Fn(&[HostArray]) -> Result<Vec<HostArray>> + Send + Sync>;

/// Buffers of one kind of operand or result, one for each device that takes part.
pub type Shards = SmallVec<[Buffer; 1]>;

/// What is compiled: both forms of one program, made only if the backend asks for them.
pub struct Program<'a> {
    /// A name for diagnostics.
    pub name: &'a str,
    /// The StableHLO module's text.
    pub stablehlo: &'a dyn Fn() -> Result<String>,
    /// The program over host arrays.
    pub host: &'a dyn Fn() -> HostProgram,
    /// Types of the operands, with shardings.
    pub ins: &'a [Aval],
    /// Types of the results; a sharding that is not known here is left out.
    pub outs: &'a [Aval],
    /// The devices, in order; more than one means one partition each.
    pub devices: &'a [DeviceId],
}

/// Data of one array on one device.
#[derive(Clone)]
pub enum Buffer {
    /// In this process's memory.
    Host(HostArray),
}

/// A compiled program.
#[derive(Clone)]
pub enum Executable {
    /// Run by the host backend.
    Host(HostProgram),
}

/// One opened backend: the host backend, or a PJRT plugin's client. Cheap to clone.
#[derive(Clone)]
pub struct Client(Arc<ClientInner>);

struct ClientInner {
    id: u32,
    kind: Kind,
}

enum Kind {
    Host { devices: usize },
}

/// One device of a [`Client`].
#[derive(Clone, PartialEq, Eq)]
pub struct Device {
    client: Client,
    index: u32,
}

static CLIENTS: RwLock<Vec<Client>> = RwLock::new(Vec::new());
static DEFAULT: RwLock<Option<Device>> = RwLock::new(None);

impl fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({}, {:?} -> {:?})", self.name, self.ins, self.outs)
    }
}

impl Client {
    fn register(kind: Kind) -> Client {
        let mut clients = CLIENTS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let client = Client(Arc::new(ClientInner { id: clients.len() as u32, kind }));
        clients.push(client.clone());
        client
    }

    /// The host backend with the given number of devices, all of them this process's memory.
    pub fn host(devices: usize) -> Client {
        Client::register(Kind::Host { devices: devices.max(1) })
    }

    /// The client of the default device, opened on first use.
    ///
    /// # Errors
    /// If the environment names a plugin that cannot be opened.
    pub fn default() -> Result<Client> {
        Ok(Device::default()?.client)
    }

    /// The client with the given number.
    pub fn by_id(id: u32) -> Result<Client> {
        let clients = CLIENTS.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        clients.get(id as usize).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::Device,
                "client",
                format!("there is no client {id} in this process"),
            )
        })
    }

    /// The client's number.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// The platform: `host`, `cpu`, `tpu`, `cuda`.
    pub fn platform(&self) -> &str {
        match &self.0.kind {
            Kind::Host { .. } => "host",
        }
    }

    /// All devices, in order.
    pub fn devices(&self) -> Vec<Device> {
        let count = match &self.0.kind {
            Kind::Host { devices } => *devices,
        };
        (0..count as u32).map(|index| Device { client: self.clone(), index }).collect()
    }

    /// The `index`-th device.
    ///
    /// # Errors
    /// If the client has fewer devices.
    pub fn device(&self, index: usize) -> Result<Device> {
        let devices = self.devices();
        devices.get(index).cloned().ok_or_else(|| {
            let text =
                format!("{} has {} devices, not device {index}", self.platform(), devices.len());
            Error::new(ErrorKind::Device, "device", text)
        })
    }

    /// Compiles a program.
    ///
    /// # Errors
    /// What lowering or the backend's compiler says.
    pub fn compile(&self, program: &Program<'_>) -> Result<Executable> {
        match &self.0.kind {
            Kind::Host { .. } => Ok(Executable::Host((program.host)())),
        }
    }

    /// Puts an array into a device's memory.
    ///
    /// # Errors
    /// If the device refuses, for example for want of memory.
    pub fn upload(&self, data: &HostArray, _index: u32) -> Result<Buffer> {
        match &self.0.kind {
            Kind::Host { .. } => Ok(Buffer::Host(data.contiguous())),
        }
    }
}

impl PartialEq for Client {
    fn eq(&self, other: &Client) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Client {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({} #{})", self.platform(), self.0.id)
    }
}

impl Device {
    /// The device that new tensors are put on: the one set, or else the environment's choice.
    ///
    /// # Errors
    /// If the environment names a plugin that cannot be opened.
    pub fn default() -> Result<Device> {
        if let Some(device) = &*DEFAULT.read().unwrap_or_else(std::sync::PoisonError::into_inner) {
            return Ok(device.clone());
        }
        let mut slot = DEFAULT.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(device) = &*slot {
            return Ok(device.clone());
        }
        let device = Client::host(1).device(0)?;
        *slot = Some(device.clone());
        Ok(device)
    }

    /// Makes this the device that new tensors are put on, for all threads.
    pub fn set_default(&self) {
        *DEFAULT.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(self.clone());
    }

    /// The device that an id names.
    ///
    /// # Errors
    /// If it names none.
    pub fn by_id(id: DeviceId) -> Result<Device> {
        Client::by_id(id.client)?.device(id.index as usize)
    }

    /// The id, which holds on to nothing.
    pub fn id(&self) -> DeviceId {
        DeviceId { client: self.client.id(), index: self.index }
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client.platform(), self.index)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Mesh {
    /// A mesh over `devices`, row-major, with the given axis names and sizes, outermost first.
    ///
    /// # Errors
    /// As [`Mesh::from_ids`].
    pub fn new<N: AsRef<str>>(devices: &[Device], axes: impl AsRef<[(N, usize)]>) -> Result<Mesh> {
        let ids: Vec<_> = devices.iter().map(Device::id).collect();
        Mesh::from_ids(&ids, axes.as_ref())
    }
}

impl Buffer {
    /// The data in this process's memory; waits until it is there.
    ///
    /// # Errors
    /// If the computation that makes the data failed, or the buffer is gone.
    pub fn to_host(&self) -> Result<HostArray> {
        match self {
            Buffer::Host(array) => Ok(array.clone()),
        }
    }

    /// Waits until the data is there.
    ///
    /// # Errors
    /// If the computation that makes the data failed.
    pub fn block(&self) -> Result<()> {
        match self {
            Buffer::Host(_) => Ok(()),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::Host(array) => write!(f, "{array:?}"),
        }
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Executable::Host(_) => f.write_str("Executable(host)"),
        }
    }
}
