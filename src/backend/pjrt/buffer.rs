//! [`Buffer`]: an array in the memory of one device; its way there and back.

use super::api::{Padded, Plugin};
use super::client::Client;
use super::error::{self, slice};
use super::event::{Event, RawEvent};
use crate::backend::host::HostArray;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::shape::{Shape, inverse_permutation};
use pjrt_sys::{
    Function, PJRT_Buffer, PJRT_Buffer_CopyToDevice_Args, PJRT_Buffer_Delete_Args,
    PJRT_Buffer_Destroy_Args, PJRT_Buffer_Device_Args, PJRT_Buffer_Dimensions_Args,
    PJRT_Buffer_ElementType_Args, PJRT_Buffer_GetMemoryLayout_Args, PJRT_Buffer_IsDeleted_Args,
    PJRT_Buffer_MemoryLayout, PJRT_Buffer_MemoryLayout_Tiled, PJRT_Buffer_MemoryLayout_Type,
    PJRT_Buffer_OnDeviceSizeInBytes_Args, PJRT_Buffer_ReadyEvent_Args,
    PJRT_Buffer_ToHostBuffer_Args, PJRT_Buffer_Type, PJRT_Client_BufferFromHostBuffer_Args,
    PJRT_Error_Code, PJRT_HostBufferSemantics, Struct,
};
use smallvec::SmallVec;
use std::fmt;
use std::ptr::NonNull;

/// Up to this many bytes the plugin copies during the call: cheaper than an event.
const COPY_AT_ONCE: usize = 64 << 10;

/// What a plugin says that does not have a function.
const UNIMPLEMENTED: ErrorKind =
    ErrorKind::Backend { code: PJRT_Error_Code::UNIMPLEMENTED.0 as i32 };

/// Axes of a buffer in some order.
type Axes = SmallVec<[usize; 8]>;

/// An array in the memory of one device, freed when dropped.
///
/// Its contents may still be on their way: calls that read them wait, and an error of the program
/// that computes them comes out there.
pub struct Buffer {
    buffer: NonNull<PJRT_Buffer>,
    client: Client,
}

// SAFETY: the header ties no buffer to a thread; what it says of a buffer has the lifetime of the
// buffer, and only `PJRT_Buffer_Delete` and donation change one, which the plugin itself guards.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Client {
    /// A buffer on the device at `device` with the elements of `data`.
    ///
    /// On CPU a large contiguous array is used in place, without a copy, and overwritten by a program
    /// to which it is donated if no other array shares its bytes; elsewhere it is read while the
    /// transfer runs. Either way its bytes are kept alive for as long as that takes.
    ///
    /// # Errors
    /// If there is no such device, or the plugin's error.
    pub fn upload(&self, data: impl Into<HostArray>, device: usize) -> Result<Buffer> {
        let device = self.device(device)?.as_ptr();
        let data = data.into();
        let mut data = if data.is_contiguous() { data } else { data.contiguous() };
        let dims = dims(data.shape())?;
        let bytes = data.contiguous_bytes().unwrap_or_default();
        let (size, mut start) = (bytes.len(), bytes.as_ptr());
        let semantics = if size <= COPY_AT_ONCE {
            PJRT_HostBufferSemantics::kImmutableOnlyDuringCall
        } else if !self.is_cpu() {
            PJRT_HostBufferSemantics::kImmutableUntilTransferCompletes
        } else if let Some(own) = data.own_bytes() {
            // From here on nothing but the plugin looks at them.
            start = own.as_mut_ptr();
            PJRT_HostBufferSemantics::kMutableZeroCopy
        } else {
            PJRT_HostBufferSemantics::kImmutableZeroCopy
        };
        // SAFETY: the bytes are as many as type and sizes say; `keep_alive` holds them until the
        // plugin is done. Those that it may write to have no other reader.
        let args = unsafe {
            self.plugin().call(|args: &mut PJRT_Client_BufferFromHostBuffer_Args| {
                args.client = self.as_ptr();
                args.data = start.cast();
                args.type_ = buffer_type(data.dtype());
                args.dims = dims.as_ptr();
                args.num_dims = dims.len();
                args.host_buffer_semantics = semantics;
                args.device = device;
            })
        }?;
        let function = PJRT_Client_BufferFromHostBuffer_Args::FUNCTION;
        // SAFETY: the caller owns the new buffer.
        let buffer = unsafe { Buffer::new(self, args.buffer, function) };
        // SAFETY: the caller owns the event.
        let done = unsafe { RawEvent::new(self.plugin(), args.done_with_host_buffer, function) };
        if semantics != PJRT_HostBufferSemantics::kImmutableOnlyDuringCall {
            keep_alive(data, done?);
        }
        buffer
    }
}

/// Holds `data` until `done` is ready. If that cannot be asked for, the data is leaked: the device
/// may be reading it.
fn keep_alive(data: HostArray, done: RawEvent) {
    let kept = data.clone();
    // The closure must not hold the client: it may run on the client's own thread, which cannot
    // close the client.
    if done.on_ready(move |_| drop(kept)).is_err() {
        std::mem::forget(data);
    }
}

impl Buffer {
    /// Takes over a buffer that `function` gave out.
    ///
    /// # Safety
    /// `buffer` is null or a buffer of `client` that nobody else frees.
    #[inline]
    pub(super) unsafe fn new(
        client: &Client,
        buffer: *mut PJRT_Buffer,
        function: &'static str,
    ) -> Result<Buffer> {
        match NonNull::new(buffer) {
            Some(buffer) => Ok(Buffer { buffer, client: client.clone() }),
            None => Err(error::broken(function, "the plugin gave no buffer")),
        }
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *mut PJRT_Buffer {
        self.buffer.as_ptr()
    }

    fn plugin(&self) -> &Plugin {
        self.client.plugin()
    }

    /// The client that the buffer belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The element type.
    ///
    /// # Errors
    /// [`ErrorKind::DType`] for a type that [`DType`] does not have, for example an 8-bit float.
    pub fn dtype(&self) -> Result<DType> {
        // SAFETY: the buffer is alive.
        let args = unsafe {
            self.plugin()
                .call(|args: &mut PJRT_Buffer_ElementType_Args| args.buffer = self.as_ptr())
        }?;
        dtype_of(args.type_)
    }

    /// The sizes.
    pub fn shape(&self) -> Result<Shape> {
        // SAFETY: the buffer is alive.
        let args = unsafe {
            self.plugin().call(|args: &mut PJRT_Buffer_Dimensions_Args| args.buffer = self.as_ptr())
        }?;
        // SAFETY: the list lives as long as the buffer.
        shape_of(unsafe { slice(args.dims, args.num_dims) })
    }

    /// Bytes in device memory, padding included.
    pub fn size_in_bytes(&self) -> Result<usize> {
        // SAFETY: the buffer is alive.
        let args = unsafe {
            self.plugin()
                .call(|args: &mut PJRT_Buffer_OnDeviceSizeInBytes_Args| args.buffer = self.as_ptr())
        }?;
        Ok(args.on_device_size_in_bytes)
    }

    /// The position of the buffer's device among [`Client::devices`].
    pub fn device(&self) -> Result<usize> {
        // SAFETY: the buffer is alive.
        let args = unsafe {
            self.plugin().call(|args: &mut PJRT_Buffer_Device_Args| args.buffer = self.as_ptr())
        }?;
        self.client.position(args.device, PJRT_Buffer_Device_Args::FUNCTION)
    }

    /// An event for the contents.
    pub fn ready(&self) -> Result<Event> {
        Ok(Event::new(self.ready_event()?, &self.client))
    }

    /// Waits for the contents.
    ///
    /// # Errors
    /// If the program that computes them failed.
    pub fn block(&self) -> Result<()> {
        self.ready_event()?.wait()
    }

    fn ready_event(&self) -> Result<RawEvent> {
        // SAFETY: the buffer is alive.
        let args = unsafe {
            self.plugin().call(|args: &mut PJRT_Buffer_ReadyEvent_Args| args.buffer = self.as_ptr())
        }?;
        // SAFETY: the caller owns the event.
        unsafe { RawEvent::new(self.plugin(), args.event, PJRT_Buffer_ReadyEvent_Args::FUNCTION) }
    }

    /// Frees the device memory now, also for everyone else who refers to this buffer.
    pub fn delete(&self) -> Result<()> {
        // SAFETY: the buffer is alive.
        unsafe {
            self.plugin().call(|args: &mut PJRT_Buffer_Delete_Args| args.buffer = self.as_ptr())
        }?;
        Ok(())
    }

    /// Whether the device memory is gone, by [`delete`](Self::delete) or by donation.
    pub fn is_deleted(&self) -> Result<bool> {
        // SAFETY: the buffer is alive.
        let args = unsafe {
            self.plugin().call(|args: &mut PJRT_Buffer_IsDeleted_Args| args.buffer = self.as_ptr())
        }?;
        Ok(args.is_deleted)
    }

    /// A copy on the device at `device`.
    pub fn copy_to_device(&self, device: usize) -> Result<Buffer> {
        let device = self.client.device(device)?.as_ptr();
        // SAFETY: buffer and device are alive and of the same client.
        let args = unsafe {
            self.plugin().call(|args: &mut PJRT_Buffer_CopyToDevice_Args| {
                args.buffer = self.as_ptr();
                args.dst_device = device;
            })
        }?;
        let function = PJRT_Buffer_CopyToDevice_Args::FUNCTION;
        // SAFETY: the caller owns the copy.
        unsafe { Buffer::new(&self.client, args.dst_buffer, function) }
    }

    /// The contents in host memory, row-major whatever the layout on the device; waits for them.
    ///
    /// # Errors
    /// If the buffer was deleted or donated, or if the program that computes it failed.
    pub fn download(&self) -> Result<HostArray> {
        let (dtype, shape) = (self.dtype()?, self.shape()?);
        let axes = self.axes_in_memory(shape.rank())?;
        let in_memory: Shape = axes.iter().map(|&axis| shape[axis]).collect();
        let mut copied = Ok(());
        let array = HostArray::build(dtype, &in_memory, |out| copied = self.copy_into(out, &axes));
        copied?;
        let ordered = axes.iter().enumerate().all(|(i, &axis)| i == axis);
        Ok(if ordered { array } else { array.permute(&inverse_permutation(&axes)).contiguous() })
    }

    /// The axes from the slowest to the fastest in device memory.
    ///
    /// The CPU plugins copy in this order whatever layout they are asked for, so it is this order
    /// that [`download`](Self::download) asks for.
    fn axes_in_memory(&self, rank: usize) -> Result<Axes> {
        // SAFETY: the buffer is alive.
        let args = unsafe {
            self.plugin()
                .call(|args: &mut PJRT_Buffer_GetMemoryLayout_Args| args.buffer = self.as_ptr())
        };
        let layout = match args {
            Ok(args) => args.layout,
            Err(error) if *error.kind() == UNIMPLEMENTED => return Ok((0..rank).collect()),
            Err(error) => return Err(error),
        };
        // SAFETY: the lists live as long as the buffer.
        let axes = unsafe { slowest_first(&layout) };
        let mut sorted = axes.clone();
        sorted.sort_unstable();
        if sorted.iter().copied().eq(0..rank) {
            return Ok(axes);
        }
        let what = format!("the plugin gave the layout {axes:?} for a buffer of {rank} axes");
        Err(error::broken(PJRT_Buffer_GetMemoryLayout_Args::FUNCTION, &what))
    }

    /// Fills `out` with the contents, the axes from the slowest to the fastest.
    fn copy_into(&self, out: &mut [u8], axes: &[usize]) -> Result<()> {
        let minor_to_major: SmallVec<[i64; 8]> = axes.iter().rev().map(|&a| a as i64).collect();
        let mut layout = Padded::<PJRT_Buffer_MemoryLayout>::new();
        layout.type_ = PJRT_Buffer_MemoryLayout_Type::Tiled;
        layout.value.tiled = PJRT_Buffer_MemoryLayout_Tiled {
            struct_size: size_of::<PJRT_Buffer_MemoryLayout_Tiled>(),
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            ..Struct::zeroed()
        };
        // SAFETY: layout and destination live until the call returns, and the destination until
        // the event below is ready.
        let args = unsafe {
            self.plugin().call(|args: &mut PJRT_Buffer_ToHostBuffer_Args| {
                args.src = self.as_ptr();
                args.host_layout = layout.as_mut_ptr();
                args.dst = out.as_mut_ptr().cast();
                args.dst_size = out.len();
            })
        }?;
        let function = PJRT_Buffer_ToHostBuffer_Args::FUNCTION;
        // SAFETY: the caller owns the event.
        unsafe { RawEvent::new(self.plugin(), args.event, function) }?.wait()
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        let buffer = self.as_ptr();
        // SAFETY: this is the only owner of the buffer.
        unsafe { self.plugin().free(|args: &mut PJRT_Buffer_Destroy_Args| args.buffer = buffer) };
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.dtype(), self.shape()) {
            (Ok(dtype), Ok(shape)) => write!(f, "Buffer({dtype}{shape})"),
            _ => f.write_str("Buffer(?)"),
        }
    }
}

/// The axes of a layout from the slowest to the fastest.
///
/// # Safety
/// The layout follows the header, and its lists live for the call.
unsafe fn slowest_first(layout: &PJRT_Buffer_MemoryLayout) -> Axes {
    if layout.type_ == PJRT_Buffer_MemoryLayout_Type::Strides {
        // SAFETY: the type says which member is set.
        let strides = unsafe { layout.value.strides };
        // SAFETY: the list has that many elements.
        let strides = unsafe { slice(strides.byte_strides, strides.num_byte_strides) };
        let mut axes: Axes = (0..strides.len()).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(strides[axis]));
        return axes;
    }
    // SAFETY: the type says which member is set.
    let tiled = unsafe { layout.value.tiled };
    // SAFETY: the list has that many elements.
    let order = unsafe { slice(tiled.minor_to_major, tiled.minor_to_major_size) };
    order.iter().rev().map(|&axis| axis as usize).collect()
}

const TYPES: [(DType, PJRT_Buffer_Type); 15] = [
    (DType::Bool, PJRT_Buffer_Type::PRED),
    (DType::U8, PJRT_Buffer_Type::U8),
    (DType::U16, PJRT_Buffer_Type::U16),
    (DType::U32, PJRT_Buffer_Type::U32),
    (DType::U64, PJRT_Buffer_Type::U64),
    (DType::I8, PJRT_Buffer_Type::S8),
    (DType::I16, PJRT_Buffer_Type::S16),
    (DType::I32, PJRT_Buffer_Type::S32),
    (DType::I64, PJRT_Buffer_Type::S64),
    (DType::F16, PJRT_Buffer_Type::F16),
    (DType::BF16, PJRT_Buffer_Type::BF16),
    (DType::F32, PJRT_Buffer_Type::F32),
    (DType::F64, PJRT_Buffer_Type::F64),
    (DType::C64, PJRT_Buffer_Type::C64),
    (DType::C128, PJRT_Buffer_Type::C128),
];

/// PJRT's element type for a dtype.
pub(super) fn buffer_type(dtype: DType) -> PJRT_Buffer_Type {
    let found = TYPES.iter().find(|(ours, _)| *ours == dtype);
    found.map_or(PJRT_Buffer_Type::INVALID, |(_, theirs)| *theirs)
}

/// The dtype for PJRT's element type.
pub(super) fn dtype_of(theirs: PJRT_Buffer_Type) -> Result<DType> {
    let found = TYPES.iter().find(|(_, t)| *t == theirs);
    found.map(|(dtype, _)| *dtype).ok_or_else(|| {
        let name = theirs.name().unwrap_or("unlisted");
        let text = format!("PJRT's element type {name} ({}) has no dtype here", theirs.0);
        Error::new(ErrorKind::DType, "buffer", text)
    })
}

/// PJRT's sizes as a shape.
pub(super) fn shape_of(dims: &[i64]) -> Result<Shape> {
    let size = |&d: &i64| {
        let text = || format!("the plugin gave a size of {d}");
        usize::try_from(d).map_err(|_| Error::new(ErrorKind::Shape, "buffer", text()))
    };
    dims.iter().map(size).collect()
}

/// A shape as PJRT's sizes.
fn dims(shape: &Shape) -> Result<SmallVec<[i64; 8]>> {
    let dim = |&d: &usize| {
        let text = || format!("a size of {d} is more than PJRT can count");
        i64::try_from(d).map_err(|_| Error::new(ErrorKind::Shape, "upload", text()))
    };
    shape.iter().map(dim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_has_its_own_type() {
        for dtype in DType::ALL {
            assert_eq!(dtype_of(buffer_type(dtype)).unwrap(), dtype);
        }
        let error = dtype_of(PJRT_Buffer_Type::F8E5M2).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::DType);
        assert!(dtype_of(PJRT_Buffer_Type(200)).is_err());
    }
}
