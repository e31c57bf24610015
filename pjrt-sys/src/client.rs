//! Clients: the devices of a plugin, opened, and what is made on them.

use crate::*;

/// Waits for a key of the store that the processes of a distributed run share.
pub type PJRT_KeyValueGetCallback =
    unsafe extern "C" fn(args: *mut PJRT_KeyValueGetCallback_Args) -> *mut PJRT_Error;

/// Reads a key without waiting.
pub type PJRT_KeyValueTryGetCallback =
    unsafe extern "C" fn(args: *mut PJRT_KeyValueTryGetCallback_Args) -> *mut PJRT_Error;

/// Writes a key.
pub type PJRT_KeyValuePutCallback =
    unsafe extern "C" fn(args: *mut PJRT_KeyValuePutCallback_Args) -> *mut PJRT_Error;

/// Frees a value that a get callback handed out.
pub type PJRT_KeyValueGetCallback_ValueDeleter = unsafe extern "C" fn(value: *mut c_char);

/// Frees a value that a try-get callback handed out.
pub type PJRT_KeyValueTryGetCallback_ValueDeleter = unsafe extern "C" fn(value: *mut c_char);

codes! {
    /// How a process of a distributed run is doing.
    PJRT_ProcessState("PJRT_ProcessState_") {
        kUnspecified = 0,
        kUninitialized = 1,
        kDisconnected = 2,
        kConnected = 3,
        kError = 4,
    }
}

structs! {
    /// What is known of one process of a distributed run.
    PJRT_ProcessInfo {
        struct_size: usize,
        task_id: c_int,
        incarnation_id: u64,
        state: PJRT_ProcessState,
        error_code: c_int,
        error_message: *const c_char,
        error_message_size: usize,
    }

    /// A program as text or bytes, with the name of its format (`mlir`, `hlo`, `hlo_with_config`).
    PJRT_Program {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        code: *mut c_char,
        code_size: usize,
        format: *const c_char,
        format_size: usize,
    }

    /// Arguments of the callback that waits for a key of the shared store.
    PJRT_KeyValueGetCallback_Args {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        key: *const c_char,
        key_size: usize,
        timeout_in_ms: c_int,
        callback_error: *mut Option<PJRT_CallbackError>,
        user_arg: *mut c_void,
        value: *mut c_char,
        value_size: usize,
        value_deleter_callback: Option<PJRT_KeyValueGetCallback_ValueDeleter>,
    }

    /// Arguments of the callback that reads a key without waiting.
    PJRT_KeyValueTryGetCallback_Args {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        key: *const c_char,
        key_size: usize,
        callback_error: *mut Option<PJRT_CallbackError>,
        user_arg: *mut c_void,
        value: *mut c_char,
        value_size: usize,
        value_deleter_callback: Option<PJRT_KeyValueTryGetCallback_ValueDeleter>,
    }

    /// Arguments of the callback that writes a key.
    PJRT_KeyValuePutCallback_Args {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        key: *const c_char,
        key_size: usize,
        value: *const c_char,
        value_size: usize,
        callback_error: *mut Option<PJRT_CallbackError>,
        user_arg: *mut c_void,
    }
}

functions! {
    /// Makes a client: the plugin's devices, opened.
    PJRT_Client_Create(PJRT_Client_Create_Args) {
        create_options: *const PJRT_NamedValue,
        num_options: usize,
        kv_get_callback: Option<PJRT_KeyValueGetCallback>,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: Option<PJRT_KeyValuePutCallback>,
        kv_put_user_arg: *mut c_void,
        client: *mut PJRT_Client,
        kv_try_get_callback: Option<PJRT_KeyValueTryGetCallback>,
        kv_try_get_user_arg: *mut c_void,
    }

    /// Closes a client; all its buffers and executables have to be gone.
    PJRT_Client_Destroy(PJRT_Client_Destroy_Args) {
        client: *mut PJRT_Client,
    }

    /// Gives the platform's name, for example `cpu`.
    PJRT_Client_PlatformName(PJRT_Client_PlatformName_Args) {
        client: *mut PJRT_Client,
        platform_name: *const c_char,
        platform_name_size: usize,
    }

    /// Gives this process's place among those of a distributed run; 0 if alone.
    PJRT_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args) {
        client: *mut PJRT_Client,
        process_index: c_int,
    }

    /// Gives the version text of the platform.
    PJRT_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args) {
        client: *mut PJRT_Client,
        platform_version: *const c_char,
        platform_version_size: usize,
    }

    /// Lists all devices, those of other processes too.
    PJRT_Client_Devices(PJRT_Client_Devices_Args) {
        client: *mut PJRT_Client,
        devices: *const *mut PJRT_Device,
        num_devices: usize,
    }

    /// Lists the devices that this process can use.
    PJRT_Client_AddressableDevices(PJRT_Client_AddressableDevices_Args) {
        client: *mut PJRT_Client,
        addressable_devices: *const *mut PJRT_Device,
        num_addressable_devices: usize,
    }

    /// Finds a device by its global id.
    PJRT_Client_LookupDevice(PJRT_Client_LookupDevice_Args) {
        client: *mut PJRT_Client,
        id: c_int,
        device: *mut PJRT_Device,
    }

    /// Finds a device of this process by its hardware id.
    PJRT_Client_LookupAddressableDevice(PJRT_Client_LookupAddressableDevice_Args) {
        client: *mut PJRT_Client,
        local_hardware_id: c_int,
        addressable_device: *mut PJRT_Device,
    }

    /// Lists the memory spaces that this process can use.
    PJRT_Client_AddressableMemories(PJRT_Client_AddressableMemories_Args) {
        client: *mut PJRT_Client,
        addressable_memories: *const *mut PJRT_Memory,
        num_addressable_memories: usize,
    }

    /// Compiles a program and loads it onto the client's devices.
    PJRT_Client_Compile(PJRT_Client_Compile_Args) {
        client: *mut PJRT_Client,
        program: *const PJRT_Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut PJRT_LoadedExecutable,
    }

    /// Fills in which device runs which replica and partition.
    PJRT_Client_DefaultDeviceAssignment(PJRT_Client_DefaultDeviceAssignment_Args) {
        client: *mut PJRT_Client,
        num_replicas: c_int,
        num_partitions: c_int,
        default_assignment_size: usize,
        default_assignment: *mut c_int,
    }

    /// Gives the topology that the client owns.
    PJRT_Client_TopologyDescription(PJRT_Client_TopologyDescription_Args) {
        client: *mut PJRT_Client,
        topology: *mut PJRT_TopologyDescription,
    }

    /// Pins host memory for direct access by the devices.
    PJRT_Client_DmaMap(PJRT_Client_DmaMap_Args) {
        client: *mut PJRT_Client,
        data: *mut c_void,
        size: usize,
    }

    /// Undoes `PJRT_Client_DmaMap`.
    PJRT_Client_DmaUnmap(PJRT_Client_DmaUnmap_Args) {
        client: *mut PJRT_Client,
        data: *mut c_void,
    }

    /// Tells the client the state of the other processes.
    PJRT_Client_UpdateGlobalProcessInfo(PJRT_Client_UpdateGlobalProcessInfo_Args) {
        client: *mut PJRT_Client,
        process_infos: *mut PJRT_ProcessInfo,
        num_process_infos: usize,
    }
}
