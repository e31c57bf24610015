//! Devices, their descriptions, and memory spaces.

use crate::*;

functions! {
    /// Gives the device's global id.
    PJRT_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args) {
        device_description: *mut PJRT_DeviceDescription,
        id: c_int,
    }

    /// Gives the process that the device belongs to.
    PJRT_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args) {
        device_description: *mut PJRT_DeviceDescription,
        process_index: c_int,
    }

    /// Gives the device's key-value pairs, for example its coordinates.
    PJRT_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args) {
        device_description: *mut PJRT_DeviceDescription,
        num_attributes: usize,
        attributes: *const PJRT_NamedValue,
    }

    /// Gives the vendor's name of this sort of device.
    PJRT_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args) {
        device_description: *mut PJRT_DeviceDescription,
        device_kind: *const c_char,
        device_kind_size: usize,
    }

    /// Gives a text for logs, with details.
    PJRT_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args) {
        device_description: *mut PJRT_DeviceDescription,
        debug_string: *const c_char,
        debug_string_size: usize,
    }

    /// Gives a short text for people.
    PJRT_DeviceDescription_ToString(PJRT_DeviceDescription_ToString_Args) {
        device_description: *mut PJRT_DeviceDescription,
        to_string: *const c_char,
        to_string_size: usize,
    }

    /// Gives the description, which the device owns.
    PJRT_Device_GetDescription(PJRT_Device_GetDescription_Args) {
        device: *mut PJRT_Device,
        device_description: *mut PJRT_DeviceDescription,
    }

    /// Tells whether this process can use the device.
    PJRT_Device_IsAddressable(PJRT_Device_IsAddressable_Args) {
        device: *mut PJRT_Device,
        is_addressable: bool,
    }

    /// Gives the id of the hardware within this host, or -1.
    PJRT_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args) {
        device: *mut PJRT_Device,
        local_hardware_id: c_int,
    }

    /// Lists the memory spaces attached to the device.
    PJRT_Device_AddressableMemories(PJRT_Device_AddressableMemories_Args) {
        device: *mut PJRT_Device,
        memories: *const *mut PJRT_Memory,
        num_memories: usize,
    }

    /// Gives the memory space that buffers go to by default.
    PJRT_Device_DefaultMemory(PJRT_Device_DefaultMemory_Args) {
        device: *mut PJRT_Device,
        memory: *mut PJRT_Memory,
    }

    /// Gives the allocator's figures; each but the first has its own flag that says if it is set.
    PJRT_Device_MemoryStats(PJRT_Device_MemoryStats_Args) {
        device: *mut PJRT_Device,
        bytes_in_use: i64,
        peak_bytes_in_use: i64,
        peak_bytes_in_use_is_set: bool,
        num_allocs: i64,
        num_allocs_is_set: bool,
        largest_alloc_size: i64,
        largest_alloc_size_is_set: bool,
        bytes_limit: i64,
        bytes_limit_is_set: bool,
        bytes_reserved: i64,
        bytes_reserved_is_set: bool,
        peak_bytes_reserved: i64,
        peak_bytes_reserved_is_set: bool,
        bytes_reservable_limit: i64,
        bytes_reservable_limit_is_set: bool,
        largest_free_block_bytes: i64,
        largest_free_block_bytes_is_set: bool,
        pool_bytes: i64,
        pool_bytes_is_set: bool,
        peak_pool_bytes: i64,
        peak_pool_bytes_is_set: bool,
    }

    /// Gives the memory space's id.
    PJRT_Memory_Id(PJRT_Memory_Id_Args) {
        memory: *mut PJRT_Memory,
        id: c_int,
    }

    /// Gives the name of this sort of memory, for example `pinned_host`.
    PJRT_Memory_Kind(PJRT_Memory_Kind_Args) {
        memory: *mut PJRT_Memory,
        kind: *const c_char,
        kind_size: usize,
    }

    /// Gives a text for logs, with details.
    PJRT_Memory_DebugString(PJRT_Memory_DebugString_Args) {
        memory: *mut PJRT_Memory,
        debug_string: *const c_char,
        debug_string_size: usize,
    }

    /// Gives a short text for people.
    PJRT_Memory_ToString(PJRT_Memory_ToString_Args) {
        memory: *mut PJRT_Memory,
        to_string: *const c_char,
        to_string_size: usize,
    }

    /// Lists the devices that can reach the memory space.
    PJRT_Memory_AddressableByDevices(PJRT_Memory_AddressableByDevices_Args) {
        memory: *mut PJRT_Memory,
        devices: *const *mut PJRT_Device,
        num_devices: usize,
    }

    /// Gives a number for this sort of memory.
    PJRT_Memory_Kind_Id(PJRT_Memory_Kind_Id_Args) {
        memory: *mut PJRT_Memory,
        kind_id: c_int,
    }
}
