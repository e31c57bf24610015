//! [`Client`]: a plugin's devices, opened.

use super::api::{OptionValue, Plugin, named_value};
use super::error::{self, slice, text};
use crate::error::{Error, ErrorKind, Result};
use pjrt_sys::{
    Function, PJRT_Client, PJRT_Client_AddressableDevices_Args, PJRT_Client_Create_Args,
    PJRT_Client_Destroy_Args, PJRT_Client_PlatformName_Args, PJRT_Client_PlatformVersion_Args,
    PJRT_Client_ProcessIndex_Args, PJRT_Device, PJRT_Device_GetDescription_Args,
    PJRT_Device_MemoryStats_Args, PJRT_DeviceDescription, PJRT_DeviceDescription_DebugString_Args,
    PJRT_DeviceDescription_Id_Args, PJRT_DeviceDescription_Kind_Args, PJRT_NamedValue,
};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// The devices of a plugin, opened. Clones share it; it closes with its last buffer, executable
/// and event.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    devices: Vec<Device>,
    platform_name: String,
    platform_version: String,
    process_index: i32,
    handle: Handle,
}

/// The C client, closed when dropped.
struct Handle {
    plugin: Plugin,
    client: NonNull<PJRT_Client>,
}

// SAFETY: the header ties no client to a thread, and the strings and devices that it owns do not
// change while it lives.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// A device of this process.
pub struct Device {
    index: usize,
    id: i32,
    kind: String,
    debug: String,
    plugin: Plugin,
    raw: NonNull<PJRT_Device>,
}

// SAFETY: the header gives a device the lifetime of its client, which lends it out by reference
// only, and ties it to no thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What the allocator of a device tells, in bytes; what it does not track is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceMemory {
    /// In use now.
    pub bytes_in_use: i64,
    /// The highest use so far.
    pub peak_bytes_in_use: Option<i64>,
    /// What may be used at most.
    pub bytes_limit: Option<i64>,
    /// The largest block that could be had now.
    pub largest_free_block: Option<i64>,
    /// How many allocations there were (not bytes).
    pub allocations: Option<i64>,
}

impl Client {
    /// Opens the plugin's devices. Options are the plugin's own: on CPU, `cpu_device_count` splits
    /// the host into that many devices.
    ///
    /// # Errors
    /// The plugin's, for example for an option that it does not know or if its device is missing.
    pub fn create(plugin: &Plugin, options: &[(String, OptionValue)]) -> Result<Client> {
        let options: Vec<PJRT_NamedValue> =
            options.iter().map(|(name, value)| named_value(name, value)).collect();
        // SAFETY: the options live until the call returns.
        let args = unsafe {
            plugin.call(|args: &mut PJRT_Client_Create_Args| {
                args.create_options = options.as_ptr();
                args.num_options = options.len();
            })
        }?;
        let client = NonNull::new(args.client).ok_or_else(|| {
            error::broken(PJRT_Client_Create_Args::FUNCTION, "the plugin gave no client")
        })?;
        let handle = Handle { plugin: plugin.clone(), client };
        Ok(Client(Arc::new(Inner {
            devices: handle.devices()?,
            platform_name: handle.platform_name()?,
            platform_version: handle.platform_version()?,
            process_index: handle.process_index()?,
            handle,
        })))
    }

    /// The plugin that this client came from.
    pub fn plugin(&self) -> &Plugin {
        &self.0.handle.plugin
    }

    /// The platform's name, for example `cpu` or `tpu`.
    pub fn platform_name(&self) -> &str {
        &self.0.platform_name
    }

    /// The version text of the platform.
    pub fn platform_version(&self) -> &str {
        &self.0.platform_version
    }

    /// This process's place in a distributed run; 0 if it is alone.
    pub fn process_index(&self) -> i32 {
        self.0.process_index
    }

    /// The devices of this process, in the plugin's order.
    pub fn devices(&self) -> &[Device] {
        &self.0.devices
    }

    /// Whether both are the same opened client, so that their buffers can meet in one program.
    pub fn same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether device memory is host memory.
    pub(super) fn is_cpu(&self) -> bool {
        self.0.platform_name.eq_ignore_ascii_case("cpu")
    }

    pub(super) fn as_ptr(&self) -> *mut PJRT_Client {
        self.0.handle.client.as_ptr()
    }

    /// The device at a position of [`devices`](Self::devices).
    pub(super) fn device(&self, index: usize) -> Result<&Device> {
        self.devices().get(index).ok_or_else(|| {
            let text = format!(
                "there is no device {index}: the {} client has {}",
                self.platform_name(),
                self.devices().len()
            );
            Error::new(ErrorKind::Device, "device", text)
        })
    }

    /// The position of a device in [`devices`](Self::devices).
    pub(super) fn position(
        &self,
        device: *mut PJRT_Device,
        function: &'static str,
    ) -> Result<usize> {
        let position = self.devices().iter().position(|d| d.raw.as_ptr() == device);
        position.ok_or_else(|| error::broken(function, "the plugin named a device of no client"))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {} devices)", self.platform_name(), self.devices().len())
    }
}

impl Device {
    /// Its position among [`Client::devices`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its id among the devices of all processes.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The vendor's name for this sort of device.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The plugin's text for logs.
    pub fn debug_text(&self) -> &str {
        &self.debug
    }

    /// What the device's allocator tells.
    ///
    /// # Errors
    /// Code 12 (`UNIMPLEMENTED`) from plugins that do not track memory, as on CPU.
    pub fn memory_stats(&self) -> Result<DeviceMemory> {
        let device = self.as_ptr();
        // SAFETY: the device is alive as long as its client lends it out.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Device_MemoryStats_Args| args.device = device)
        }?;
        Ok(DeviceMemory {
            bytes_in_use: args.bytes_in_use,
            peak_bytes_in_use: args.peak_bytes_in_use_is_set.then_some(args.peak_bytes_in_use),
            bytes_limit: args.bytes_limit_is_set.then_some(args.bytes_limit),
            largest_free_block: args
                .largest_free_block_bytes_is_set
                .then_some(args.largest_free_block_bytes),
            allocations: args.num_allocs_is_set.then_some(args.num_allocs),
        })
    }

    pub(super) fn as_ptr(&self) -> *mut PJRT_Device {
        self.raw.as_ptr()
    }

    /// # Safety
    /// `device` is a device of a client of `plugin`, which outlives the result.
    unsafe fn new(plugin: &Plugin, index: usize, device: *mut PJRT_Device) -> Result<Device> {
        // SAFETY: the caller's promise.
        let args = unsafe {
            plugin.call(|args: &mut PJRT_Device_GetDescription_Args| args.device = device)
        }?;
        // SAFETY: the device owns its description.
        let description = unsafe { Description::read(plugin, args.device_description) }?;
        let raw = NonNull::new(device).ok_or_else(|| {
            error::broken(PJRT_Client_AddressableDevices_Args::FUNCTION, "a device is null")
        })?;
        let Description { id, kind, debug } = description;
        Ok(Device { index, id, kind, debug, plugin: plugin.clone(), raw })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.debug)
    }
}

/// What a device's description says, copied.
pub(super) struct Description {
    pub(super) id: i32,
    pub(super) kind: String,
    pub(super) debug: String,
}

impl Description {
    /// # Safety
    /// `description` is alive and of `plugin`.
    pub(super) unsafe fn read(
        plugin: &Plugin,
        description: *mut PJRT_DeviceDescription,
    ) -> Result<Description> {
        // SAFETY: the caller's promise.
        let id = unsafe {
            plugin.call(|args: &mut PJRT_DeviceDescription_Id_Args| {
                args.device_description = description;
            })
        }?;
        // SAFETY: the caller's promise.
        let kind = unsafe {
            plugin.call(|args: &mut PJRT_DeviceDescription_Kind_Args| {
                args.device_description = description;
            })
        }?;
        // SAFETY: the caller's promise.
        let debug = unsafe {
            plugin.call(|args: &mut PJRT_DeviceDescription_DebugString_Args| {
                args.device_description = description;
            })
        }?;
        Ok(Description {
            id: id.id,
            // SAFETY: the text lives as long as the device.
            kind: unsafe { text(kind.device_kind, kind.device_kind_size) },
            // SAFETY: the text lives as long as the device.
            debug: unsafe { text(debug.debug_string, debug.debug_string_size) },
        })
    }
}

impl Handle {
    fn devices(&self) -> Result<Vec<Device>> {
        let client = self.client.as_ptr();
        // SAFETY: the client is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Client_AddressableDevices_Args| args.client = client)
        }?;
        // SAFETY: the list belongs to the client.
        let devices = unsafe { slice(args.addressable_devices, args.num_addressable_devices) };
        devices
            .iter()
            .enumerate()
            // SAFETY: the devices belong to the client, which keeps them together with its handle.
            .map(|(index, &device)| unsafe { Device::new(&self.plugin, index, device) })
            .collect()
    }

    fn platform_name(&self) -> Result<String> {
        let client = self.client.as_ptr();
        // SAFETY: the client is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Client_PlatformName_Args| args.client = client)
        }?;
        // SAFETY: the text lives as long as the client.
        Ok(unsafe { text(args.platform_name, args.platform_name_size) })
    }

    fn platform_version(&self) -> Result<String> {
        let client = self.client.as_ptr();
        // SAFETY: the client is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Client_PlatformVersion_Args| args.client = client)
        }?;
        // SAFETY: the text lives as long as the client.
        Ok(unsafe { text(args.platform_version, args.platform_version_size) })
    }

    fn process_index(&self) -> Result<i32> {
        let client = self.client.as_ptr();
        // SAFETY: the client is alive.
        let args = unsafe {
            self.plugin.call(|args: &mut PJRT_Client_ProcessIndex_Args| args.client = client)
        }?;
        Ok(args.process_index)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let client = self.client.as_ptr();
        // SAFETY: whatever was made on the client keeps it, so nothing of it is left.
        unsafe { self.plugin.free(|args: &mut PJRT_Client_Destroy_Args| args.client = client) };
    }
}
