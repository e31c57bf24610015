//! Buffers: arrays in the memory of one device.

use crate::*;

unions! {
    /// The two ways of a [`PJRT_Buffer_MemoryLayout`]; its `type_` says which is set.
    PJRT_Buffer_MemoryLayout_Value {
        tiled: PJRT_Buffer_MemoryLayout_Tiled,
        strides: PJRT_Buffer_MemoryLayout_Strides,
    }
}

codes! {
    /// The element type of a buffer.
    PJRT_Buffer_Type("PJRT_Buffer_Type_") {
        INVALID = 0,
        PRED = 1,
        S8 = 2,
        S16 = 3,
        S32 = 4,
        S64 = 5,
        U8 = 6,
        U16 = 7,
        U32 = 8,
        U64 = 9,
        F16 = 10,
        F32 = 11,
        F64 = 12,
        BF16 = 13,
        C64 = 14,
        C128 = 15,
        F8E5M2 = 16,
        F8E4M3FN = 17,
        F8E4M3B11FNUZ = 18,
        F8E5M2FNUZ = 19,
        F8E4M3FNUZ = 20,
        S4 = 21,
        U4 = 22,
        TOKEN = 23,
        S2 = 24,
        U2 = 25,
        F8E4M3 = 26,
        F8E3M4 = 27,
        F8E8M0FNU = 28,
        F4E2M1FN = 29,
    }

    /// Which member of a memory layout is set.
    PJRT_Buffer_MemoryLayout_Type("PJRT_Buffer_MemoryLayout_Type_") {
        Tiled = 0,
        Strides = 1,
    }
}

structs! {
    /// A layout as an order of the axes, the fastest first, and tiles.
    PJRT_Buffer_MemoryLayout_Tiled {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        minor_to_major: *const i64,
        minor_to_major_size: usize,
        tile_dims: *const i64,
        tile_dim_sizes: *const usize,
        num_tiles: usize,
    }

    /// A layout as one stride in bytes for each axis.
    PJRT_Buffer_MemoryLayout_Strides {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        byte_strides: *const i64,
        num_byte_strides: usize,
    }

    /// The order of the elements of a buffer in memory.
    PJRT_Buffer_MemoryLayout {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        value as tiled: PJRT_Buffer_MemoryLayout_Value,
        type_: PJRT_Buffer_MemoryLayout_Type,
    }
}

functions! {
    /// Frees a buffer and, unless it is lent out, its memory.
    PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args) {
        buffer: *mut PJRT_Buffer,
    }

    /// Gives the element type.
    PJRT_Buffer_ElementType(PJRT_Buffer_ElementType_Args) {
        buffer: *mut PJRT_Buffer,
        type_: PJRT_Buffer_Type,
    }

    /// Gives the sizes, padding included.
    PJRT_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args) {
        buffer: *mut PJRT_Buffer,
        dims: *const i64,
        num_dims: usize,
    }

    /// Gives the sizes without padding.
    PJRT_Buffer_UnpaddedDimensions(PJRT_Buffer_UnpaddedDimensions_Args) {
        buffer: *mut PJRT_Buffer,
        unpadded_dims: *const i64,
        num_dims: usize,
    }

    /// Lists the axes whose size is only a bound.
    PJRT_Buffer_DynamicDimensionIndices(PJRT_Buffer_DynamicDimensionIndices_Args) {
        buffer: *mut PJRT_Buffer,
        dynamic_dim_indices: *const usize,
        num_dynamic_dims: usize,
    }

    /// Gives the order of the elements in device memory.
    PJRT_Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args) {
        buffer: *mut PJRT_Buffer,
        layout: PJRT_Buffer_MemoryLayout,
    }

    /// Gives the bytes in device memory.
    PJRT_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args) {
        buffer: *mut PJRT_Buffer,
        on_device_size_in_bytes: usize,
    }

    /// Gives the device that the buffer lies on.
    PJRT_Buffer_Device(PJRT_Buffer_Device_Args) {
        buffer: *mut PJRT_Buffer,
        device: *mut PJRT_Device,
    }

    /// Gives the memory space that the buffer lies in.
    PJRT_Buffer_Memory(PJRT_Buffer_Memory_Args) {
        buffer: *mut PJRT_Buffer,
        memory: *mut PJRT_Memory,
    }

    /// Drops the device memory; only the handle stays.
    PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args) {
        buffer: *mut PJRT_Buffer,
    }

    /// Tells whether the device memory was dropped or donated.
    PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args) {
        buffer: *mut PJRT_Buffer,
        is_deleted: bool,
    }

    /// Copies a buffer to another device.
    PJRT_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args) {
        buffer: *mut PJRT_Buffer,
        dst_device: *mut PJRT_Device,
        dst_buffer: *mut PJRT_Buffer,
    }

    /// Copies a buffer to host memory, or tells how many bytes that takes.
    PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args) {
        src: *mut PJRT_Buffer,
        host_layout: *mut PJRT_Buffer_MemoryLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut PJRT_Event,
    }

    /// Tells whether the buffer lies in host memory.
    PJRT_Buffer_IsOnCpu(PJRT_Buffer_IsOnCpu_Args) {
        buffer: *mut PJRT_Buffer,
        is_on_cpu: bool,
    }

    /// Gives an event, to be destroyed by the caller, for the buffer's contents.
    PJRT_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args) {
        buffer: *mut PJRT_Buffer,
        event: *mut PJRT_Event,
    }

    /// Gives the platform's address of the buffer.
    PJRT_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args) {
        buffer: *mut PJRT_Buffer,
        buffer_pointer: usize,
    }

    /// Keeps the device memory alive past the buffer.
    PJRT_Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args) {
        buffer: *mut PJRT_Buffer,
    }

    /// Undoes one increase.
    PJRT_Buffer_DecreaseExternalReferenceCount(PJRT_Buffer_DecreaseExternalReferenceCount_Args) {
        buffer: *mut PJRT_Buffer,
    }

    /// Gives the device address, valid while a reference is held.
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args) {
        buffer: *mut PJRT_Buffer,
        device_memory_ptr: *mut c_void,
    }

    /// Copies a buffer to another memory space.
    PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args) {
        buffer: *mut PJRT_Buffer,
        dst_memory: *mut PJRT_Memory,
        dst_buffer: *mut PJRT_Buffer,
    }

    /// Copies a range of a buffer's raw bytes to host memory.
    PJRT_Buffer_CopyRawToHost(PJRT_Buffer_CopyRawToHost_Args) {
        buffer: *mut PJRT_Buffer,
        dst: *mut c_void,
        offset: i64,
        transfer_size: i64,
        event: *mut PJRT_Event,
    }
}
