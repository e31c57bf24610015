//! Executables: compiled programs, unloaded and loaded, and their runs.

use crate::*;

/// Takes one chunk that the program sends; a returned error ends the run.
pub type PJRT_SendCallback = unsafe extern "C" fn(
    chunk: *mut PJRT_Chunk,
    callback_error: *mut Option<PJRT_CallbackError>,
    total_size_in_bytes: usize,
    done: bool,
    user_arg: *mut c_void,
) -> *mut PJRT_Error;

/// Feeds what the program receives into `stream`, which it owns from then on.
pub type PJRT_RecvCallback =
    unsafe extern "C" fn(stream: *mut PJRT_CopyToDeviceStream, user_arg: *mut c_void);

structs! {
    /// What takes the data of one send channel.
    PJRT_SendCallbackInfo {
        channel_id: i64,
        user_arg: *mut c_void,
        send_callback: Option<PJRT_SendCallback>,
    }

    /// What feeds one receive channel.
    PJRT_RecvCallbackInfo {
        channel_id: i64,
        user_arg: *mut c_void,
        recv_callback: Option<PJRT_RecvCallback>,
    }

    /// Options of one run.
    PJRT_ExecuteOptions {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        send_callbacks: *mut *mut PJRT_SendCallbackInfo,
        recv_callbacks: *mut *mut PJRT_RecvCallbackInfo,
        num_send_ops: usize,
        num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize,
        context: *mut PJRT_ExecuteContext,
        call_location: *const c_char,
        num_tasks: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
    }
}

functions! {
    /// Frees an executable; a loaded one made from it lives on.
    PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args) {
        executable: *mut PJRT_Executable,
    }

    /// Gives the program's name.
    PJRT_Executable_Name(PJRT_Executable_Name_Args) {
        executable: *mut PJRT_Executable,
        executable_name: *const c_char,
        executable_name_size: usize,
    }

    /// Gives the number of replicas.
    PJRT_Executable_NumReplicas(PJRT_Executable_NumReplicas_Args) {
        executable: *mut PJRT_Executable,
        num_replicas: usize,
    }

    /// Gives the number of partitions.
    PJRT_Executable_NumPartitions(PJRT_Executable_NumPartitions_Args) {
        executable: *mut PJRT_Executable,
        num_partitions: usize,
    }

    /// Gives the number of outputs of one device.
    PJRT_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args) {
        executable: *mut PJRT_Executable,
        num_outputs: usize,
    }

    /// Gives the size of the machine code.
    PJRT_Executable_SizeOfGeneratedCodeInBytes(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args) {
        executable: *mut PJRT_Executable,
        size_in_bytes: i64,
    }

    /// Gives the compiler's estimates, for example `flops`.
    PJRT_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args) {
        executable: *mut PJRT_Executable,
        num_properties: usize,
        properties: *const PJRT_NamedValue,
    }

    /// Gives the memory kind of each output.
    PJRT_Executable_OutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args) {
        executable: *mut PJRT_Executable,
        num_outputs: usize,
        memory_kinds: *const *const c_char,
        memory_kind_sizes: *const usize,
    }

    /// Gives the program after the compiler's passes; first its size, then its bytes.
    PJRT_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args) {
        executable: *mut PJRT_Executable,
        program: *mut PJRT_Program,
    }

    /// Turns an executable into bytes that the caller frees through the deleter.
    PJRT_Executable_Serialize(PJRT_Executable_Serialize_Args) {
        executable: *const PJRT_Executable,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_executable: *mut PJRT_SerializedExecutable,
        serialized_executable_deleter: Option<unsafe extern "C" fn(*mut PJRT_SerializedExecutable)>,
    }

    /// Frees a loaded executable.
    PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args) {
        executable: *mut PJRT_LoadedExecutable,
    }

    /// Gives the unloaded side, which the caller has to destroy.
    PJRT_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args) {
        loaded_executable: *mut PJRT_LoadedExecutable,
        executable: *mut PJRT_Executable,
    }

    /// Lists the devices of this process that the executable runs on.
    PJRT_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args) {
        executable: *mut PJRT_LoadedExecutable,
        addressable_devices: *const *mut PJRT_Device,
        num_addressable_devices: usize,
    }

    /// Drops the code from the devices; only the handle stays.
    PJRT_LoadedExecutable_Delete(PJRT_LoadedExecutable_Delete_Args) {
        executable: *mut PJRT_LoadedExecutable,
    }

    /// Tells whether the code was dropped.
    PJRT_LoadedExecutable_IsDeleted(PJRT_LoadedExecutable_IsDeleted_Args) {
        executable: *mut PJRT_LoadedExecutable,
        is_deleted: bool,
    }

    /// Runs the program once on each of its devices.
    PJRT_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args) {
        executable: *mut PJRT_LoadedExecutable,
        options: *mut PJRT_ExecuteOptions,
        argument_lists: *const *const *mut PJRT_Buffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut PJRT_Buffer,
        device_complete_events: *mut *mut PJRT_Event,
        execute_device: *mut PJRT_Device,
    }

    /// Loads an executable from such bytes.
    PJRT_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args) {
        client: *mut PJRT_Client,
        serialized_executable: *const c_char,
        serialized_executable_size: usize,
        loaded_executable: *mut PJRT_LoadedExecutable,
        overridden_serialized_compile_options: *const c_char,
        overridden_serialized_compile_options_size: usize,
    }

    /// The older place of `PJRT_Executable_Fingerprint`.
    PJRT_LoadedExecutable_Fingerprint(PJRT_LoadedExecutable_Fingerprint_Args) {
        executable: *mut PJRT_LoadedExecutable,
        executable_fingerprint: *const c_char,
        executable_fingerprint_size: usize,
    }

    /// Gives the element type of each output.
    PJRT_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args) {
        executable: *mut PJRT_Executable,
        output_types: *mut PJRT_Buffer_Type,
        num_output_types: usize,
    }

    /// Gives the sizes of all outputs in one list, with each one's rank.
    PJRT_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args) {
        executable: *mut PJRT_Executable,
        num_outputs: usize,
        dims: *const i64,
        dim_sizes: *const usize,
    }

    /// Gives a text that differs when the program does.
    PJRT_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args) {
        executable: *mut PJRT_Executable,
        executable_fingerprint: *const c_char,
        executable_fingerprint_size: usize,
    }

    /// Gives the bytes that one run needs, by purpose.
    PJRT_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args) {
        executable: *mut PJRT_Executable,
        generated_code_size_in_bytes: i64,
        argument_size_in_bytes: i64,
        output_size_in_bytes: i64,
        alias_size_in_bytes: i64,
        temp_size_in_bytes: i64,
        host_generated_code_size_in_bytes: i64,
        host_argument_size_in_bytes: i64,
        host_output_size_in_bytes: i64,
        host_alias_size_in_bytes: i64,
        host_temp_size_in_bytes: i64,
        peak_memory_in_bytes: i64,
    }

    /// Makes a context that carries user data to custom calls.
    PJRT_ExecuteContext_Create(PJRT_ExecuteContext_Create_Args) {
        context: *mut PJRT_ExecuteContext,
    }

    /// Frees a context.
    PJRT_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args) {
        context: *mut PJRT_ExecuteContext,
    }

    /// Gives a serialised `DeviceAssignmentProto`.
    PJRT_LoadedExecutable_GetDeviceAssignment(PJRT_LoadedExecutable_GetDeviceAssignment_Args) {
        executable: *mut PJRT_LoadedExecutable,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_device_assignment: *mut PJRT_DeviceAssignmentSerialized,
        serialized_device_assignment_deleter: Option<unsafe extern "C" fn(*mut PJRT_DeviceAssignmentSerialized)>,
    }
}
