//! Where an eager operation runs, and how its operands get there.
//!
//! As in JAX, an array that the user put somewhere is committed and decides; others follow. If one
//! operand is split over a mesh, the operation runs on the mesh, and uncommitted operands are
//! repeated on each of its devices.

use crate::array::{Array, Place};
use crate::backend::Device;
use crate::backend::host::HostArray;
use crate::dtype::Scalar;
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::{DeviceId, Mesh, NamedSharding};
use crate::shape::Shape;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;

/// Operands, borrowed where they lie right.
pub(super) type Operands<'a> = SmallVec<[&'a Array; 8]>;

thread_local! {
    static SCALARS: RefCell<FxHashMap<(Scalar, DeviceId), Array>> = RefCell::default();
}

/// Where a program over these operands runs: on the committed ones' device, or else the first's,
/// or else the default device.
pub(super) fn place_of(op: &'static str, arrays: &[&Array]) -> Result<Place> {
    let mut place = Place { device: None, committed: false };
    for array in arrays {
        let other = array.place();
        if other.device.is_none() || (place.committed && !other.committed) {
            continue;
        }
        if place.committed && other.device != place.device {
            return Err(device_mismatch(op, arrays));
        }
        if place.device.is_none() || other.committed {
            place = other;
        }
    }
    if place.device.is_none() {
        place.device = Some(Device::default()?.id());
    }
    Ok(place)
}

/// The mesh that the operands are split over, or that the operation asks for, if there is one.
pub(super) fn mesh_of<'a>(
    op: &'static str,
    arrays: &[&'a Array],
    asked: Option<&'a Mesh>,
) -> Result<Option<&'a Mesh>> {
    let mut mesh = asked;
    for array in arrays {
        let Some(sharding) = array.aval().sharding() else {
            continue;
        };
        match mesh {
            Some(other) if other != sharding.mesh() => return Err(device_mismatch(op, arrays)),
            _ => mesh = Some(sharding.mesh()),
        }
    }
    let Some(mesh) = mesh else { return Ok(None) };
    // A committed array fits a mesh of its own device alone.
    let elsewhere = |a: &Array| {
        let place = a.place();
        place.committed && !mesh.device_ids().iter().all(|&id| place.device == Some(id))
    };
    if arrays.iter().any(|a| a.aval().sharding().is_none() && elsewhere(a)) {
        return Err(device_mismatch(op, arrays));
    }
    Ok(Some(mesh))
}

#[cold]
fn device_mismatch(op: &'static str, arrays: &[&Array]) -> Error {
    let describe = |a: &&Array| match (a.aval().sharding(), a.place().device.map(Device::by_id)) {
        (Some(sharding), _) => format!("{} on {}", a.aval(), sharding.mesh()),
        (None, Some(Ok(device))) => format!("{} on {device}", a.aval()),
        _ => a.aval().to_string(),
    };
    let list = arrays.iter().map(describe).collect::<Vec<_>>().join(", ");
    Error::new(ErrorKind::Device, op, format!("operands are on different devices: {list}"))
        .help("move them to one device with `to_device`, or to one mesh with `shard`")
}

/// Whether each operand can be used where the program runs as it is: it lies there, or is a number.
pub(super) fn in_place(arrays: &[&Array], place: Place) -> bool {
    arrays.iter().all(|a| a.place().device == place.device || a.place().device.is_none())
}

/// An operand brought to `place`, or repeated over `mesh`.
pub(super) fn bring(array: &Array, place: Place, mesh: Option<&Mesh>) -> Result<Array> {
    if array.is_meta() {
        let whole = || mesh.map(NamedSharding::replicated);
        let sharding = array.aval().sharding().cloned().or_else(whole);
        return Ok(Array::meta(array.aval().with_sharding(sharding), place));
    }
    if let Some(mesh) = mesh {
        if array.aval().sharding().is_some() || array.as_literal().is_some() {
            return Ok(array.clone());
        }
        return Array::upload_sharded(&array.to_host()?, &NamedSharding::replicated(mesh));
    }
    match place.device {
        Some(id) if array.place().device.is_some_and(|d| d != id) => {
            Array::upload(array.to_host()?, &Device::by_id(id)?, false)
        }
        _ => Ok(array.clone()),
    }
}

/// A number as a new array on `device`.
///
/// # Errors
/// If the device refuses.
pub fn upload_scalar(value: Scalar, device: DeviceId) -> Result<Array> {
    Array::upload(HostArray::full(value, &Shape::scalar()), &Device::by_id(device)?, false)
}

/// A number as an array on `device`, kept for the next time.
///
/// # Errors
/// If the device refuses.
pub fn place_scalar(value: Scalar, device: DeviceId) -> Result<Array> {
    /// More numbers than this are forgotten at once.
    const MAX: usize = 1024;
    if let Some(found) = SCALARS.with_borrow(|map| map.get(&(value, device)).cloned()) {
        return Ok(found);
    }
    let array = upload_scalar(value, device)?;
    SCALARS.with_borrow_mut(|map| {
        if map.len() >= MAX {
            map.clear();
        }
        map.insert((value, device), array.clone());
    });
    Ok(array)
}
