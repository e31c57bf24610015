//! Running one primitive at once: where, by which compiled program, and what comes out.
//!
//! The cache's key is the primitive with its parameters, the types of its operands and the
//! device; a hit is confirmed by equality. On a hit nothing is inferred, no string is built, and
//! no lock is taken: each thread keeps the programs it has used.

use super::graph::{Atom, Eqn, Graph};
use super::lower::{self, Entry};
use super::primitive::Primitive;
use super::{Value, Values, leaked};
use crate::array::{Array, Place};
use crate::aval::{Aval, Avals};
use crate::backend::host::HostArray;
use crate::backend::{Buffer, Client, Device, Executable, HostProgram, Program, Shards};
use crate::dtype::Scalar;
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::{DeviceId, NamedSharding};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::sync::{Arc, Mutex};

/// A compiled program with what is needed to wrap its results.
#[derive(Debug)]
pub struct Compiled {
    prim: Arc<dyn Primitive>,
    ins: Avals,
    place: Place,
    outs: Avals,
    executable: Executable,
}

type Bucket = SmallVec<[Arc<Compiled>; 1]>;

thread_local! {
    static SEEN: RefCell<FxHashMap<u64, Bucket>> = RefCell::default();
    static SCALARS: RefCell<FxHashMap<(Scalar, DeviceId), Array>> = RefCell::default();
}

static ALL: Mutex<Option<FxHashMap<u64, Bucket>>> = Mutex::new(None);

/// Runs a primitive on concrete operands.
///
/// # Errors
/// A tracer among the operands, operands on different devices, what `infer`, the compiler or the
/// device says.
pub fn run(prim: &dyn Primitive, operands: &[Value]) -> Result<Values> {
    let arrays = operands
        .iter()
        .map(|v| match v {
            Value::Array(array) => Ok(array),
            Value::Tracer(tracer) => Err(leaked(prim.name(), tracer)),
        })
        .collect::<Result<SmallVec<[&Array; 4]>>>()?;
    let place = place_of(prim.name(), &arrays)?;
    let compiled = compiled(prim, &arrays, place)?;
    compiled.run(&arrays, place.committed)
}

/// Where a program over these operands runs: on the committed ones' device, or else the first's,
/// or else the default device.
fn place_of(op: &'static str, arrays: &[&Array]) -> Result<Place> {
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

#[cold]
fn device_mismatch(op: &'static str, arrays: &[&Array]) -> Error {
    let describe = |a: &&Array| match a.place().device.map(Device::by_id) {
        Some(Ok(device)) => format!("{} on {device}", a.aval()),
        _ => a.aval().to_string(),
    };
    let list = arrays.iter().map(describe).collect::<Vec<_>>().join(", ");
    Error::new(ErrorKind::Device, op, format!("operands are on different devices: {list}"))
        .help("move them to one device with `to_device`, or to one mesh with `shard`")
}

fn key(prim: &dyn Primitive, arrays: &[&Array], place: Place) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |h: u64, x: u64| (h.rotate_left(5) ^ x).wrapping_mul(K);
    let start = mix(
        prim.dyn_hash(),
        place.device.map_or(0, |d| (u64::from(d.client) << 32) | u64::from(d.index)),
    );
    arrays.iter().fold(start, |h, a| mix(h, a.aval().hash_code()))
}

impl Compiled {
    fn matches(&self, prim: &dyn Primitive, arrays: &[&Array], place: Place) -> bool {
        self.place.device == place.device
            && self.ins.len() == arrays.len()
            && self.ins.iter().zip(arrays).all(|(aval, array)| aval == array.aval())
            && self.prim.dyn_eq(prim)
    }

    /// Runs the program.
    ///
    /// # Errors
    /// A donated operand, or what the device says.
    pub fn run(&self, arrays: &[&Array], committed: bool) -> Result<Values> {
        let device = self.place.device.unwrap_or(DeviceId { client: 0, index: 0 });
        let place = Place { device: Some(device), committed };
        match &self.executable {
            Executable::Host(program) => {
                let inputs = arrays.iter().map(|a| a.to_host()).collect::<Result<Vec<_>>>()?;
                let outs = program(&inputs)?.into_iter().zip(&self.outs);
                Ok(outs
                    .map(|(out, aval)| {
                        let buffers: Shards = smallvec![Buffer::Host(out)];
                        Value::Array(Array::from_buffers(aval.clone(), place, buffers))
                    })
                    .collect())
            }
        }
    }

    /// The types of the results.
    pub fn outs(&self) -> &[Aval] {
        &self.outs
    }

    /// The compiled program.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }
}

fn compiled(prim: &dyn Primitive, arrays: &[&Array], place: Place) -> Result<Arc<Compiled>> {
    let key = key(prim, arrays, place);
    let find = |map: &FxHashMap<u64, Bucket>| {
        map.get(&key)?.iter().find(|c| c.matches(prim, arrays, place)).cloned()
    };
    if let Some(found) = SEEN.with_borrow(find) {
        return Ok(found);
    }
    let found = {
        let mut all = ALL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        find(all.get_or_insert_default())
    };
    let found = match found {
        Some(found) => found,
        None => {
            let made = Arc::new(compile(prim, arrays, place)?);
            let mut all = ALL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            all.get_or_insert_default().entry(key).or_default().push(Arc::clone(&made));
            made
        }
    };
    SEEN.with_borrow_mut(|seen| seen.entry(key).or_default().push(Arc::clone(&found)));
    Ok(found)
}

fn compile(prim: &dyn Primitive, arrays: &[&Array], place: Place) -> Result<Compiled> {
    let ins: Avals = arrays.iter().map(|a| a.aval().clone()).collect();
    let bare: Avals = ins.iter().map(Aval::unsharded).collect();
    let outs = prim.infer(&bare)?;
    let device = place.device.map_or_else(Device::default, Device::by_id)?;
    let shardings: Vec<Option<NamedSharding>> = ins.iter().map(|a| a.sharding().cloned()).collect();
    let mesh = shardings.iter().flatten().next().map(|s| s.mesh().clone());
    let devices = mesh.as_ref().map_or_else(|| vec![device.id()], |m| m.device_ids().to_vec());
    let prim = prim.to_arc();
    let graph = match prim.graph() {
        Some(graph) => Arc::clone(graph),
        None => Arc::new(single(&prim, &bare, &outs)),
    };
    let entry = Entry {
        name: prim.name(),
        in_shardings: &shardings,
        donated: prim.donated(),
        partitions: devices.len(),
        ..Entry::default()
    };
    let program = Program {
        name: prim.name(),
        stablehlo: &|| lower::module(&graph, &entry),
        host: &|| host_program(&prim, &outs),
        ins: &ins,
        outs: &outs,
        devices: &devices,
    };
    let executable = device.client().compile(&program)?;
    Ok(Compiled { prim: Arc::clone(&prim), ins, place, outs: outs.clone(), executable })
}

/// The graph of one primitive.
fn single(prim: &Arc<dyn Primitive>, ins: &Avals, outs: &Avals) -> Graph {
    let avals = ins.iter().chain(outs).cloned().collect();
    let n = ins.len() as u32;
    let outputs: SmallVec<[u32; 1]> = (n..n + outs.len() as u32).collect();
    let results = outputs.iter().map(|&v| Atom::Var(v)).collect();
    let eqn = Eqn { prim: Arc::clone(prim), inputs: (0..n).map(Atom::Var).collect(), outputs };
    Graph::new((0..n).collect(), vec![eqn], results, avals)
}

fn host_program(prim: &Arc<dyn Primitive>, outs: &Avals) -> HostProgram {
    let (prim, outs) = (Arc::clone(prim), outs.clone());
    Arc::new(move |inputs: &[HostArray]| prim.host(inputs, &outs))
}

/// A literal as an array on `device`, kept for the next time.
///
/// # Errors
/// If the device refuses.
pub fn place_scalar(value: Scalar, device: DeviceId) -> Result<Array> {
    /// More numbers than this are forgotten at once.
    const MAX: usize = 1024;
    if let Some(found) = SCALARS.with_borrow(|map| map.get(&(value, device)).cloned()) {
        return Ok(found);
    }
    let host = HostArray::full(value, &crate::shape::Shape::scalar());
    let buffer = Client::by_id(device.client)?.upload(&host, device.index)?;
    let place = Place { device: Some(device), committed: false };
    let array = Array::from_buffers(Aval::scalar(value.dtype()), place, smallvec![buffer]);
    SCALARS.with_borrow_mut(|map| {
        if map.len() >= MAX {
            map.clear();
        }
        map.insert((value, device), array.clone());
    });
    Ok(array)
}
