//! Running one primitive at once: by which compiled program, and what comes out.
//!
//! The cache's key is the primitive with its parameters, the types of its operands and the
//! device; a hit is confirmed by equality. On a hit nothing is inferred, no string is built, and
//! no lock is taken: each thread keeps the programs it has used (see `programs`).

use super::finite;
use super::forbid;
use super::graph::{Atom, Eqn, Graph};
use super::lower::{self, Entry};
use super::placement::{Operands, bring, in_place, mesh_of, place_of, place_scalar, upload_scalar};
use super::primitive::Primitive;
use super::programs::{self, Use};
use super::{Value, Values, autograd};
use crate::array::{Array, Place};
use crate::aval::{Aval, Avals};
use crate::backend::client::Costs;
use crate::backend::host::HostArray;
use crate::backend::host_call::HostCall;
use crate::backend::{
    Buffer, Client, Device, Executable, HostProgram, Loaded, Program, ProgramPlace, Shards, pjrt,
};
use crate::error::{Error, ErrorKind, Result};
use crate::mesh::{DeviceId, Mesh, NamedSharding};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// A compiled program with what is needed to find it again and to wrap its results.
#[derive(Debug)]
pub struct Compiled {
    prim: Arc<dyn Primitive>,
    ins: Avals,
    device: DeviceId,
    /// The devices, if there are several.
    mesh: Option<Mesh>,
    client: Client,
    loaded: Loaded,
    /// The functions of this process that it calls.
    host_calls: SmallVec<[Arc<HostCall>; 1]>,
    last_use: Use,
}

/// Runs a primitive on concrete operands.
///
/// # Errors
/// A tracer among the operands, operands on different devices, what `infer`, the compiler or the
/// device says.
pub fn run(prim: &dyn Primitive, operands: &[Value]) -> Result<Values> {
    if finite::watching() {
        return finite::run(prim, operands);
    }
    let mut arrays = Operands::new();
    for operand in operands {
        match operand {
            Value::Array(array) => arrays.push(array),
            Value::Tracer(tracer) => return autograd::eager(prim, operands, tracer),
        }
    }
    let place = place_of(prim.name(), &arrays)?;
    let asked = prim.mesh();
    let sharded = asked.is_some() || arrays.iter().any(|a| a.aval().sharding().is_some());
    if !sharded && in_place(&arrays, place) {
        return run_in_place(prim, &arrays, place, None);
    }
    let (place, mesh, brought) = brought(prim, &arrays, place)?;
    run_in_place(prim, &brought.iter().collect::<Operands<'_>>(), place, mesh.as_ref())
}

/// The operands where the program runs: all on one device, or all on one mesh.
fn brought(
    prim: &dyn Primitive,
    arrays: &[&Array],
    place: Place,
) -> Result<(Place, Option<Mesh>, Vec<Array>)> {
    let mesh = mesh_of(prim.name(), arrays, prim.mesh())?.cloned();
    let place = match &mesh {
        Some(mesh) => Place { device: mesh.device_ids().first().copied(), committed: true },
        None => place,
    };
    let brought = arrays.iter().map(|a| bring(a, place, mesh.as_ref())).collect::<Result<_>>()?;
    Ok((place, mesh, brought))
}

fn run_in_place(
    prim: &dyn Primitive,
    arrays: &[&Array],
    place: Place,
    mesh: Option<&Mesh>,
) -> Result<Values> {
    let device = place.device.ok_or_else(|| no_device(prim.name()))?;
    for array in arrays {
        array.check_alive(prim.name())?;
    }
    find(prim, arrays, device, mesh)?.run(arrays, place)
}

#[cold]
fn no_device(op: &'static str) -> Error {
    Error::new(ErrorKind::Device, op, "there is no device to run on")
}

fn key(prim: &dyn Primitive, arrays: &[&Array], device: DeviceId) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |h: u64, x: u64| (h.rotate_left(5) ^ x).wrapping_mul(K);
    let start = mix(prim.dyn_hash(), (u64::from(device.client) << 32) | u64::from(device.index));
    arrays.iter().fold(start, |h, a| mix(h, a.aval().hash_code()))
}

/// The compiled program for a primitive and its operands' types on a device or mesh.
///
/// # Errors
/// What `infer` or the compiler says.
fn find(
    prim: &dyn Primitive,
    arrays: &[&Array],
    device: DeviceId,
    mesh: Option<&Mesh>,
) -> Result<Arc<Compiled>> {
    let key = key(prim, arrays, device);
    if let Some(found) = programs::find(key, |c| c.matches(prim, arrays, device)) {
        return Ok(found);
    }
    forbid::check(prim.name(), || (missing(prim, arrays), String::new()))?;
    // Under no lock: compiling takes long, and other threads have other programs.
    let made = Arc::new(compile(prim, arrays, device, mesh)?);
    programs::insert(key, &made);
    Ok(made)
}

/// Drops the programs of a primitive that will not be run again.
pub(crate) fn forget(prim: &dyn Primitive) {
    programs::forget(|compiled| compiled.prim.dyn_eq(prim));
}

/// What a program would be compiled for.
#[cold]
fn missing(prim: &dyn Primitive, arrays: &[&Array]) -> String {
    let operands: Vec<String> = arrays.iter().map(|a| a.aval().to_string()).collect();
    format!("a program of `{}` for ({})", prim.entry_name(), operands.join(", "))
}

fn compile(
    prim: &dyn Primitive,
    arrays: &[&Array],
    device: DeviceId,
    mesh: Option<&Mesh>,
) -> Result<Compiled> {
    let ins: Avals = arrays.iter().map(|a| a.aval().clone()).collect();
    let bare: Avals = ins.iter().map(Aval::unsharded).collect();
    let outs = prim.infer(&bare)?;
    let prim = prim.to_arc();
    let graph = match prim.graph() {
        Some(graph) => Arc::clone(graph),
        None => Arc::new(single(&prim, &bare, &outs)),
    };
    let host_calls = prim.host_calls();
    let whole = mesh.map(NamedSharding::replicated);
    let shardings: Vec<Option<NamedSharding>> =
        ins.iter().map(|a| a.sharding().cloned().or_else(|| whole.clone())).collect();
    let on = Device::by_id(device)?;
    let client = on.client();
    let text = |out_shardings: &[Option<NamedSharding>]| {
        let entry = Entry {
            name: prim.entry_name(),
            in_shardings: &shardings,
            out_shardings,
            donated: prim.donated(),
            partitions: mesh.map_or(1, Mesh::size),
            platform: client.platform(),
        };
        lower::module(&graph, &entry)
    };
    let program = Program {
        name: prim.entry_name(),
        stablehlo: &text,
        host: &|| host_program(&prim, &outs),
        outs: &outs,
        out_shardings: prim.out_shardings(),
        host_calls: !host_calls.is_empty(),
        compiler_options: prim.compiler_options(),
        place: mesh.map_or(ProgramPlace::Device(device), ProgramPlace::Mesh),
    };
    let client = Device::by_id(device)?.client().clone();
    let loaded = if prim.graphs().is_empty() && program.host_calls {
        let executable = Executable::Host(host_program(&prim, &outs));
        Loaded { executable, outs: outs.clone() }
    } else {
        client.compile(&program)?
    };
    let (prim, mesh, last_use) = (Arc::clone(&prim), mesh.cloned(), Use::default());
    Ok(Compiled { prim, ins, device, mesh, client, loaded, host_calls, last_use })
}

/// The graph of one primitive.
fn single(prim: &Arc<dyn Primitive>, ins: &Avals, outs: &Avals) -> Graph {
    let avals = ins.iter().chain(outs).cloned().collect();
    let n = ins.len() as u32;
    let outputs: SmallVec<[u32; 1]> = (n..n + outs.len() as u32).collect();
    let results = outputs.iter().map(|&v| Atom::Var(v)).collect();
    let eqn =
        Eqn { prim: Arc::clone(prim), inputs: (0..n).map(Atom::Var).collect(), outputs, at: None };
    Graph::new((0..n).collect(), vec![eqn], results, avals)
}

fn host_program(prim: &Arc<dyn Primitive>, outs: &Avals) -> HostProgram {
    let (prim, outs) = (Arc::clone(prim), outs.clone());
    Arc::new(move |inputs: &[HostArray]| prim.host(inputs, &outs))
}

impl Compiled {
    pub(super) fn last_use(&self) -> &Use {
        &self.last_use
    }

    fn matches(&self, prim: &dyn Primitive, arrays: &[&Array], device: DeviceId) -> bool {
        self.device == device
            && self.ins.len() == arrays.len()
            && self.ins.iter().zip(arrays).all(|(aval, array)| aval == array.aval())
            && self.prim.dyn_eq(prim)
    }

    fn run(&self, arrays: &[&Array], place: Place) -> Result<Values> {
        self.client.executed();
        let outs = match (&self.loaded.executable, &self.mesh) {
            (Executable::Host(program), _) => self.run_on_host(program, arrays, place),
            (Executable::Pjrt(executable), None) => self.run_on_one(executable, arrays, place),
            (Executable::Pjrt(executable), Some(mesh)) => {
                self.run_on_mesh(executable, arrays, place, mesh)
            }
        };
        let outs = if self.host_calls.is_empty() { outs? } else { self.called_back(outs)? };
        for (array, _) in arrays.iter().zip(self.prim.donated()).filter(|(_, d)| **d) {
            array.set_donated();
        }
        Ok(outs)
    }

    /// The results once the program has ended; the error of a function that it called.
    #[cold]
    fn called_back(&self, outs: Result<Values>) -> Result<Values> {
        let ended = outs.and_then(|outs| {
            outs.iter().try_for_each(|out| out.array("wait")?.block())?;
            Ok(outs)
        });
        match self.host_calls.iter().find_map(|call| call.take_failure()) {
            Some(error) => Err(error),
            None => ended,
        }
    }

    fn wrap(&self, index: usize, place: Place, buffers: Shards) -> Value {
        Value::Array(Array::from_buffers(self.loaded.outs[index].clone(), place, buffers))
    }

    fn run_on_host(
        &self,
        program: &HostProgram,
        arrays: &[&Array],
        place: Place,
    ) -> Result<Values> {
        let inputs = arrays.iter().map(|a| a.to_host()).collect::<Result<Vec<_>>>()?;
        let outs = program(&inputs)?;
        let wrap = |(i, out): (usize, HostArray)| match self.loaded.outs[i].sharding() {
            Some(sharding) => Array::upload_sharded(&out, sharding).map(Value::Array),
            None => Ok(self.wrap(i, place, smallvec![Buffer::Host(out)])),
        };
        outs.into_iter().enumerate().map(wrap).collect()
    }

    fn run_on_one(
        &self,
        executable: &pjrt::Executable,
        arrays: &[&Array],
        place: Place,
    ) -> Result<Values> {
        let scalars = self.scalars(arrays, self.device)?;
        let operands = buffers(arrays, &scalars, 0)?;
        let kept = self.kept(arrays);
        let outs: SmallVec<[pjrt::Buffer; 1]> = if kept.is_empty() {
            executable.execute_one(&operands)?
        } else {
            executable.execute(&[&operands], &kept)?.into_iter().flatten().collect()
        };
        let outs = outs.into_iter().enumerate();
        Ok(outs.map(|(i, b)| self.wrap(i, place, smallvec![Buffer::Pjrt(b)])).collect())
    }

    fn run_on_mesh(
        &self,
        executable: &pjrt::Executable,
        arrays: &[&Array],
        place: Place,
        mesh: &Mesh,
    ) -> Result<Values> {
        let devices = mesh.device_ids();
        let scalars =
            devices.iter().map(|&d| self.scalars(arrays, d)).collect::<Result<Vec<_>>>()?;
        // The executable names its devices in an order of its own.
        let position = |d: &usize| {
            devices
                .iter()
                .position(|id| id.index as usize == *d)
                .ok_or_else(|| no_device("execute"))
        };
        let order = executable.devices().iter().map(position).collect::<Result<Vec<_>>>()?;
        let operands = order.iter().map(|&p| buffers(arrays, &scalars[p], p));
        let operands = operands.collect::<Result<Vec<_>>>()?;
        let lists: Vec<&[&pjrt::Buffer]> = operands.iter().map(SmallVec::as_slice).collect();
        let mut outs: Vec<Vec<Option<pjrt::Buffer>>> = executable
            .execute(&lists, &self.kept(arrays))?
            .into_iter()
            .map(|list| list.into_iter().map(Some).collect())
            .collect();
        let place = Place { committed: true, ..place };
        let mut values = Values::new();
        for i in 0..self.loaded.outs.len() {
            let mut shards = Shards::new();
            for p in 0..devices.len() {
                let row = order.iter().position(|&o| o == p).ok_or_else(|| no_device("execute"))?;
                shards.extend(outs[row][i].take().map(Buffer::Pjrt));
            }
            values.push(self.wrap(i, place, shards));
        }
        Ok(values)
    }

    fn is_donated(&self, operand: usize) -> bool {
        self.prim.donated().get(operand).copied().unwrap_or(false)
    }

    /// The numbers among the operands, as arrays on `device`. Those that the program may write over
    /// are made for this run: CPU plugins copy all donated operands if one has to be kept.
    fn scalars(&self, arrays: &[&Array], device: DeviceId) -> Result<SmallVec<[Array; 2]>> {
        let numbers = arrays.iter().enumerate().filter_map(|(i, a)| Some((i, a.as_literal()?)));
        let place = |(i, value)| match self.is_donated(i) {
            true => upload_scalar(value, device),
            false => place_scalar(value, device),
        };
        numbers.map(place).collect()
    }

    /// The operands that must not be overwritten although their places are donated: arrays that are
    /// passed twice.
    fn kept(&self, arrays: &[&Array]) -> SmallVec<[i64; 4]> {
        if self.prim.donated().is_empty() {
            return SmallVec::new();
        }
        let twice = |i: usize| (0..arrays.len()).any(|j| j != i && arrays[i].same(arrays[j]));
        let keep = |&i: &usize| self.is_donated(i) && twice(i);
        (0..arrays.len()).filter(keep).map(|i| i as i64).collect()
    }

    /// The types of the results.
    pub fn outs(&self) -> &[Aval] {
        &self.loaded.outs
    }

    /// The compiler's estimates, for example `flops`; empty for the host backend.
    ///
    /// # Errors
    /// Code 12 (`UNIMPLEMENTED`) from plugins that make none.
    pub fn cost_analysis(&self) -> Result<Costs> {
        match &self.loaded.executable {
            Executable::Host(_) => Ok(Costs::new()),
            Executable::Pjrt(executable) => executable.cost_analysis(),
        }
    }

    /// The memory that one run needs on each device; zeros for the host backend.
    ///
    /// # Errors
    /// If the plugin does not tell.
    pub fn memory_analysis(&self) -> Result<pjrt::ProgramMemory> {
        match &self.loaded.executable {
            Executable::Host(_) => Ok(pjrt::ProgramMemory::default()),
            Executable::Pjrt(executable) => executable.memory_stats(),
        }
    }

    /// The program as the compiler made it, as XLA prints HLO; the graph for the host backend, which
    /// compiles nothing.
    ///
    /// # Errors
    /// If the plugin does not give it.
    ///
    /// # Example
    /// ```
    /// use oxbridge::prelude::*;
    /// let f = jit(|x: &Tensor| x.sin()?.mul(x)).named("wave");
    /// let text = f.lower(&Tensor::zeros([3], DType::F32)?)?.compile()?.as_text()?;
    /// assert!(text.contains("f32[3]"), "{text}");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn as_text(&self) -> Result<String> {
        match &self.loaded.executable {
            Executable::Host(_) => {
                let graph = match self.prim.graph() {
                    Some(graph) => Arc::clone(graph),
                    None => Arc::new(single(&self.prim, &self.ins, &self.loaded.outs)),
                };
                Ok(format!("{graph}\n"))
            }
            Executable::Pjrt(executable) => executable.program().optimized_program()?.as_text(),
        }
    }

    /// The compiled program.
    pub fn executable(&self) -> &Executable {
        &self.loaded.executable
    }
}

/// The buffers of the operands on the device at `position`; those of numbers from `scalars`.
fn buffers<'a>(
    arrays: &[&'a Array],
    scalars: &'a [Array],
    position: usize,
) -> Result<SmallVec<[&'a pjrt::Buffer; 8]>> {
    let mut scalars = scalars.iter();
    let mut out = SmallVec::new();
    for array in arrays {
        let buffer = match array.as_literal() {
            Some(_) => scalars.next().and_then(|s| s.buffers().first()),
            None => array.buffers().get(position),
        };
        match buffer {
            Some(Buffer::Pjrt(buffer)) => out.push(buffer),
            _ => return Err(no_device("execute")),
        }
    }
    Ok(out)
}

/// The compiled program for a primitive and its operands, without running it.
///
/// # Errors
/// As [`run`].
pub fn compile_only(prim: &dyn Primitive, operands: &[Value]) -> Result<Arc<Compiled>> {
    let arrays = operands.iter().map(|v| v.concrete(prim.name())).collect::<Result<Vec<_>>>()?;
    let arrays: Operands<'_> = arrays.iter().collect();
    let place = place_of(prim.name(), &arrays)?;
    let (place, mesh, brought) = brought(prim, &arrays, place)?;
    let arrays: Operands<'_> = brought.iter().collect();
    let device = place.device.ok_or_else(|| no_device(prim.name()))?;
    find(prim, &arrays, device, mesh.as_ref())
}

/// The platform that a program over these operands is compiled for; empty if it is not known.
pub fn platform_of(operands: &[Value]) -> String {
    let arrays = operands.iter().map(|v| v.array("lower")).collect::<Result<Operands<'_>>>();
    let place = arrays.and_then(|arrays| place_of("lower", &arrays));
    let device = place.ok().and_then(|place| Device::by_id(place.device?).ok());
    device.map_or_else(String::new, |device| device.client().platform().into())
}
