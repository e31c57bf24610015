//! [`Client`] and [`Device`]: an opened backend, and the choice of the default one.

use super::host::HostArray;
use super::metrics::{Counters, Metrics, count, read};
use super::pjrt::cache::{self, Stats};
use super::pjrt::discover::Environment;
use super::pjrt::{AttrValue, OptionValue};
use super::session::{Session, result_avals};
use super::{Buffer, Executable, Loaded, Program, ProgramPlace};
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::{DeviceId, Mesh, NamedSharding};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// One opened backend: the host backend, or a PJRT plugin's client. Cheap to clone.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    id: u32,
    kind: Kind,
    counters: Counters,
}

enum Kind {
    Host { devices: usize },
    Pjrt(Session),
}

/// One device of a [`Client`].
#[derive(Clone, PartialEq, Eq)]
pub struct Device {
    client: Client,
    index: u32,
}

/// How to open a client.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The plugin: its name (`cpu`, `tpu`, `cuda`, `cpu-lammps`) or the path of its file; `host` for
    /// the host backend; none for what `PJRT_DEVICE` or the machine asks for.
    pub plugin: Option<String>,
    /// How many devices a CPU client has; none for the environment's `OXBRIDGE_CPU_DEVICES`, or
    /// else one.
    pub cpu_device_count: Option<usize>,
    /// More options of the plugin's own, by name.
    pub extra: Vec<(String, OptionValue)>,
}

static CLIENTS: RwLock<Vec<Client>> = RwLock::new(Vec::new());
static DEFAULT: RwLock<Option<Device>> = RwLock::new(None);

impl Client {
    fn register(kind: Kind) -> Client {
        let mut clients = CLIENTS.write().unwrap_or_else(PoisonError::into_inner);
        let client = Client(Arc::new(Inner {
            id: clients.len() as u32,
            kind,
            counters: Counters::default(),
        }));
        clients.push(client.clone());
        client
    }

    /// The host backend with the given number of devices, all of them this process's memory.
    pub fn host(devices: usize) -> Client {
        Client::register(Kind::Host { devices: devices.max(1) })
    }

    /// A CPU client with the given number of devices: of the CPU plugin.
    ///
    /// # Errors
    /// If there is no CPU plugin.
    pub fn cpu(devices: usize) -> Result<Client> {
        Client::open(&ClientOptions {
            plugin: Some("cpu".into()),
            cpu_device_count: Some(devices),
            ..ClientOptions::default()
        })
    }

    /// Opens a client. The host backend is opened, with a line on standard error that says how to
    /// install a plugin, if none is asked for and none is found.
    ///
    /// # Errors
    /// If the plugin that is asked for is not there, is no plugin, or makes no client.
    pub fn open(options: &ClientOptions) -> Result<Client> {
        let env = Environment::process();
        let count = options.cpu_device_count.or_else(|| {
            std::env::var("OXBRIDGE_CPU_DEVICES").ok().and_then(|text| text.parse().ok())
        });
        let Some(found) = env.find(options.plugin.as_deref())? else {
            if options.plugin.is_none() && env.get("PJRT_DEVICE").is_none() {
                say_no_plugin();
            }
            return Ok(Client::host(count.unwrap_or(1)));
        };
        let mut all = options.extra.clone();
        if let (Some(count), true) = (count, found.name.starts_with("cpu")) {
            all.push(("cpu_device_count".into(), OptionValue::Int64(count as i64)));
        }
        Ok(Client::register(Kind::Pjrt(Session::open(&found.path, &all, &env)?)))
    }

    /// The client of the default device, opened on first use.
    ///
    /// # Errors
    /// If the environment names a plugin that cannot be opened.
    #[expect(clippy::should_implement_trait, reason = "opening a client can fail")]
    pub fn default() -> Result<Client> {
        Ok(Device::default()?.client)
    }

    /// The client with the given number.
    ///
    /// # Errors
    /// If there is none.
    pub fn by_id(id: u32) -> Result<Client> {
        let clients = CLIENTS.read().unwrap_or_else(PoisonError::into_inner);
        clients.get(id as usize).cloned().ok_or_else(|| {
            let text = format!("there is no client {id} in this process");
            Error::new(ErrorKind::Device, "client", text)
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
            Kind::Pjrt(session) => session.platform(),
        }
    }

    /// The plugin's session; none for the host backend.
    pub fn session(&self) -> Option<&Session> {
        match &self.0.kind {
            Kind::Host { .. } => None,
            Kind::Pjrt(session) => Some(session),
        }
    }

    /// The number of devices.
    pub fn device_count(&self) -> usize {
        match &self.0.kind {
            Kind::Host { devices } => *devices,
            Kind::Pjrt(session) => session.client().devices().len(),
        }
    }

    /// All devices, in order.
    pub fn devices(&self) -> Vec<Device> {
        let count = self.device_count() as u32;
        (0..count).map(|index| Device { client: self.clone(), index }).collect()
    }

    /// The `index`-th device.
    ///
    /// # Errors
    /// If the client has fewer devices.
    pub fn device(&self, index: usize) -> Result<Device> {
        let count = self.device_count();
        if index >= count {
            let text =
                format!("{} has {count} devices, so there is no device {index}", self.platform());
            return Err(Error::new(ErrorKind::Device, "device", text).help(
                "open the client with `ClientOptions::cpu_device_count` for more CPU devices",
            ));
        }
        Ok(Device { client: self.clone(), index: index as u32 })
    }

    /// How many programs the plugin has compiled in this process, those from the disk cache not
    /// counted.
    pub fn compiles(&self) -> u64 {
        self.session().map_or(0, Session::compiles)
    }

    /// What the client has done since it was opened.
    pub fn metrics(&self) -> Metrics {
        let counters = &self.0.counters;
        Metrics {
            programs: read(&counters.programs),
            compiles: self.compiles(),
            disk_hits: self.session().map_or(0, Session::disk_hits),
            executions: read(&counters.executions),
            uploads: read(&counters.uploads),
        }
    }

    /// Counts one run of a program.
    pub(crate) fn executed(&self) {
        count(&self.0.counters.executions);
    }

    /// What the disk cache of executables has done in this process.
    pub fn cache_stats() -> Stats {
        cache::stats()
    }

    /// Compiles a program.
    ///
    /// # Errors
    /// What lowering or the backend's compiler says.
    pub fn compile(&self, program: &Program<'_>) -> Result<Loaded> {
        count(&self.0.counters.programs);
        let Kind::Pjrt(session) = &self.0.kind else {
            let executable = Executable::Host((program.host)());
            return Ok(Loaded { executable, outs: self.host_outs(program) });
        };
        if program.host_calls {
            check_host_calls(session, program)?;
        }
        match program.place {
            ProgramPlace::Device(device) => {
                let text = (program.stablehlo)(&[])?;
                let executable =
                    session.compile(&text, &[device.index as usize], false, program)?;
                let executable = Executable::Pjrt(Arc::new(executable));
                Ok(Loaded { executable, outs: program.outs.iter().cloned().collect() })
            }
            ProgramPlace::Mesh(mesh) => compile_on_mesh(session, program, mesh),
        }
    }

    fn host_outs(&self, program: &Program<'_>) -> crate::aval::Avals {
        let ProgramPlace::Mesh(mesh) = program.place else {
            return program.outs.iter().cloned().collect();
        };
        let asked = |i| program.out_shardings.get(i).cloned().flatten();
        let sharding = |i| asked(i).unwrap_or_else(|| NamedSharding::replicated(mesh));
        let outs = program.outs.iter().enumerate();
        outs.map(|(i, aval)| aval.with_sharding(Some(sharding(i)))).collect()
    }

    /// Puts an array into a device's memory.
    ///
    /// # Errors
    /// If the device refuses, for example for want of memory.
    pub fn upload(&self, data: impl Into<HostArray>, index: u32) -> Result<Buffer> {
        count(&self.0.counters.uploads);
        match &self.0.kind {
            Kind::Host { .. } => Ok(Buffer::Host(data.into().contiguous())),
            Kind::Pjrt(session) => Ok(Buffer::Pjrt(session.client().upload(data, index as usize)?)),
        }
    }
}

/// Whether the program may call functions of this process there; the plugin is told of them.
fn check_host_calls(session: &Session, program: &Program<'_>) -> Result<()> {
    let fail = |why: String| {
        Err(Error::new(ErrorKind::Callback, "debug_callback", why)
            .help("call it outside of `jit`, or run on the host backend"))
    };
    if let ProgramPlace::Mesh(mesh) = program.place {
        return fail(format!("a compiled program on {mesh} cannot call back: it has parts only"));
    }
    if session.platform() != "cpu" {
        let name = session.platform();
        return fail(format!(
            "programs of the `{name}` plugin cannot call back: memory of its own"
        ));
    }
    super::pjrt::ffi::register(session.client().plugin())
}

/// Compiles over a mesh; where the compiler's choice of a result's sharding cannot be told by the
/// mesh's axes, compiles again with whole results.
fn compile_on_mesh(session: &Session, program: &Program<'_>, mesh: &Mesh) -> Result<Loaded> {
    let devices: Vec<usize> = mesh.device_ids().iter().map(|d| d.index as usize).collect();
    let compile = |shardings: &[Option<NamedSharding>]| {
        session.compile(&(program.stablehlo)(shardings)?, &devices, true, program)
    };
    let executable = compile(program.out_shardings)?;
    if let Some(outs) = result_avals(&executable, mesh, program.outs)? {
        return Ok(Loaded { executable: Executable::Pjrt(Arc::new(executable)), outs });
    }
    let whole = Some(NamedSharding::replicated(mesh));
    let shardings: Vec<_> = (0..program.outs.len())
        .map(|i| program.out_shardings.get(i).cloned().flatten().or_else(|| whole.clone()))
        .collect();
    let executable = compile(&shardings)?;
    let outs = program.outs.iter().zip(shardings).map(|(a, s)| a.with_sharding(s)).collect();
    Ok(Loaded { executable: Executable::Pjrt(Arc::new(executable)), outs })
}

#[cold]
#[expect(clippy::print_stderr, reason = "a user without a plugin must see it once")]
fn say_no_plugin() {
    eprintln!(
        "oxbridge: no PJRT plugin found, so programs run on the host backend; \
         `oxbridge plugin install cpu` installs one"
    );
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
    #[expect(clippy::should_implement_trait, reason = "opening a client can fail")]
    pub fn default() -> Result<Device> {
        if let Some(device) = &*DEFAULT.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(device.clone());
        }
        let mut slot = DEFAULT.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = &*slot {
            return Ok(device.clone());
        }
        let device = Client::open(&ClientOptions::default())?.device(0)?;
        *slot = Some(device.clone());
        Ok(device)
    }

    /// Makes this the device that new tensors are put on, for all threads.
    pub fn set_default(&self) {
        *DEFAULT.write().unwrap_or_else(PoisonError::into_inner) = Some(self.clone());
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

    /// The kind, as the plugin names it: `cpu`, `TPU v5 lite`.
    pub fn kind(&self) -> &str {
        match self.client.session() {
            None => "host",
            Some(session) => session.client().devices()[self.index as usize].kind(),
        }
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

/// A program's cost as the plugin estimates it, by name.
pub type Costs = std::collections::BTreeMap<String, AttrValue>;
