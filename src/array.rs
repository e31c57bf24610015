//! [`Array`]: immutable data on devices. It knows transfer and printing, no arithmetic.

use crate::aval::Aval;
use crate::backend::host::HostArray;
use crate::backend::{Buffer, Client, Device, Shards};
use crate::dtype::Scalar;
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::{DeviceId, NamedSharding};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Data on devices: an [`Aval`], and one buffer for each device that holds a part. Immutable, and
/// cheap to clone.
#[derive(Clone)]
pub struct Array(Arc<ArrayInner>);

struct ArrayInner {
    aval: Aval,
    place: Place,
    data: Data,
    /// Set when the buffers were given to a program that may overwrite them.
    donated: AtomicBool,
}

enum Data {
    /// A number that no device holds yet: an operand of a program, never a part of one.
    Literal(Scalar),
    Buffers(Shards),
    /// A type without data, to compile for.
    Meta,
}

/// Where an array lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device; of a sharded array the first of its mesh. None for a literal.
    pub device: Option<DeviceId>,
    /// Whether the user chose the device: a committed array does not follow others.
    pub committed: bool,
}

impl Array {
    /// A scalar that goes to whatever device the other operands are on.
    pub fn literal(value: Scalar) -> Array {
        Array(Arc::new(ArrayInner {
            aval: Aval::scalar(value.dtype()),
            place: Place { device: None, committed: false },
            data: Data::Literal(value),
            donated: AtomicBool::new(false),
        }))
    }

    /// An array of buffers that are there, or will be: one, or one for each device of the aval's
    /// mesh in the mesh's order.
    pub fn from_buffers(aval: Aval, place: Place, buffers: Shards) -> Array {
        Array(Arc::new(ArrayInner {
            aval,
            place,
            data: Data::Buffers(buffers),
            donated: AtomicBool::new(false),
        }))
    }

    /// A type without data: a program can be compiled for it, not run.
    pub fn meta(aval: Aval, place: Place) -> Array {
        Array(Arc::new(ArrayInner { aval, place, data: Data::Meta, donated: false.into() }))
    }

    /// An array on `device` with a copy of `data` (or `data` itself, where the device can use it:
    /// given by value it may then be donated without a copy).
    ///
    /// # Errors
    /// If the device refuses, for example for want of memory.
    pub fn upload(data: impl Into<HostArray>, device: &Device, committed: bool) -> Result<Array> {
        let data = data.into();
        let aval = Aval::new(data.dtype(), data.shape());
        let buffer = device.client().upload(data, device.id().index)?;
        let place = Place { device: Some(device.id()), committed };
        Ok(Array::from_buffers(aval, place, Shards::from_iter([buffer])))
    }

    /// An array split over a mesh, from the whole of its data.
    ///
    /// # Errors
    /// If the sharding does not fit the shape, or a device refuses.
    pub fn upload_sharded(data: &HostArray, sharding: &NamedSharding) -> Result<Array> {
        sharding.check("shard", data.shape())?;
        let mesh = sharding.mesh();
        let mut buffers = Shards::new();
        for (position, id) in mesh.device_ids().iter().enumerate() {
            let ranges = sharding.shard_ranges(data.shape(), position);
            let starts: Vec<_> = ranges.iter().map(|r| r.start).collect();
            let limits: Vec<_> = ranges.iter().map(|r| r.end).collect();
            let part = data.slice(&starts, &limits, &vec![1; ranges.len()]);
            buffers.push(Client::by_id(id.client)?.upload(part, id.index)?);
        }
        let aval = Aval::new(data.dtype(), data.shape()).with_sharding(Some(sharding.clone()));
        let place = Place { device: mesh.device_ids().first().copied(), committed: true };
        Ok(Array::from_buffers(aval, place, buffers))
    }

    /// The type.
    pub fn aval(&self) -> &Aval {
        &self.0.aval
    }

    /// Where it lies.
    pub fn place(&self) -> Place {
        self.0.place
    }

    /// The number, if this is a scalar that no device holds yet.
    pub fn as_literal(&self) -> Option<Scalar> {
        match self.0.data {
            Data::Literal(value) => Some(value),
            Data::Buffers(_) | Data::Meta => None,
        }
    }

    /// Whether there is a type and no data.
    pub fn is_meta(&self) -> bool {
        matches!(self.0.data, Data::Meta)
    }

    /// The buffers: none for a literal.
    pub fn buffers(&self) -> &[Buffer] {
        match &self.0.data {
            Data::Literal(_) | Data::Meta => &[],
            Data::Buffers(buffers) => buffers,
        }
    }

    /// Whether both are the same array, not only equal ones.
    pub fn same(&self, other: &Array) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// An identity that holds as long as the array lives.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Marks the buffers as given away; using the array from now on is an error.
    pub fn set_donated(&self) {
        self.0.donated.store(true, Ordering::Release);
    }

    /// Whether the buffers were given away.
    pub fn is_donated(&self) -> bool {
        self.0.donated.load(Ordering::Acquire)
    }

    /// Checks that there is data, and that it was not given away.
    ///
    /// # Errors
    /// [`ErrorKind::Donated`] if it was; [`ErrorKind::NotConcrete`] if there is only a type.
    pub fn check_alive(&self, op: &'static str) -> Result<()> {
        match self.0.data {
            Data::Meta => Err(meta_error(op, &self.0.aval)),
            _ if self.is_donated() => Err(donated_error(op, &self.0.aval)),
            _ => Ok(()),
        }
    }

    /// The whole of the data in this process's memory; waits until it is there.
    ///
    /// # Errors
    /// If the computation that makes the data failed, or the buffers were donated.
    pub fn to_host(&self) -> Result<HostArray> {
        self.check_alive("to_host")?;
        let buffers = match &self.0.data {
            Data::Literal(value) => return Ok(HostArray::full(*value, self.0.aval.shape())),
            Data::Buffers(buffers) => buffers,
            Data::Meta => return Err(meta_error("to_host", &self.0.aval)),
        };
        match self.0.aval.sharding() {
            Some(sharding) if !sharding.is_replicated() => {
                assemble(&self.0.aval, sharding, buffers)
            }
            _ => buffers[0].to_host(),
        }
    }

    /// Waits until the data is on its devices.
    ///
    /// # Errors
    /// If the computation that makes the data failed.
    pub fn block(&self) -> Result<()> {
        self.buffers().iter().try_for_each(Buffer::block)
    }
}

#[cold]
fn meta_error(op: &'static str, aval: &Aval) -> Error {
    let text = format!("this tensor {aval} is a type without data (`meta`)");
    Error::new(ErrorKind::NotConcrete, op, text)
        .help("pass it to `Jit::warm_up`, `Jit::lower` or `eval_shape`; run on tensors with data")
}

#[cold]
fn donated_error(op: &'static str, aval: &Aval) -> Error {
    let text = format!(
        "this tensor {aval} was donated to a compiled function, which may have overwritten it"
    );
    Error::new(ErrorKind::Donated, op, text)
        .help("use what the function returned, or pass a copy of the tensor")
}

/// Copies each device's part to its place in the whole.
fn assemble(aval: &Aval, sharding: &NamedSharding, buffers: &[Buffer]) -> Result<HostArray> {
    let parts: Vec<HostArray> = buffers.iter().map(Buffer::to_host).collect::<Result<_>>()?;
    let size = aval.dtype().size();
    let strides = aval.shape().strides();
    Ok(HostArray::build(aval.dtype(), aval.shape(), |out| {
        for (position, part) in parts.iter().enumerate() {
            let ranges = sharding.shard_ranges(aval.shape(), position);
            let whole = part.contiguous();
            let bytes = whole.contiguous_bytes().unwrap_or_default();
            let row = ranges.last().map_or(1, ExactSizeIterator::len) * size;
            if row == 0 || bytes.is_empty() {
                continue;
            }
            for (i, chunk) in bytes.chunks_exact(row).enumerate() {
                let at = row_start(&ranges, &strides, i) * size;
                out[at..at + row].copy_from_slice(chunk);
            }
        }
    }))
}

/// Where the `i`-th row (run along the last axis) of a part starts in the whole, in elements.
fn row_start(ranges: &[std::ops::Range<usize>], strides: &[usize], i: usize) -> usize {
    let mut rest = i;
    let mut at = ranges.last().map_or(0, |r| r.start);
    for axis in (0..ranges.len().saturating_sub(1)).rev() {
        at += (ranges[axis].start + rest % ranges[axis].len()) * strides[axis];
        rest /= ranges[axis].len();
    }
    at
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({})", self.0.aval)
    }
}
