//! The shardings that the partitioner chose for a program's outputs.
//!
//! `PJRT_Executable_OptimizedProgram` gives the program as an `HloModuleProto` (format `hlo`) or
//! inside an `HloModuleProtoWithConfig` (`hlo_with_config`). Only the fields read here are
//! declared; their numbers are those of `xla/service/hlo.proto` and `xla/xla_data.proto`.

use prost::Message;

use crate::error::{Error, ErrorKind, Result};

const OP: &str = "output_shardings";
/// No machine has more devices; a larger list comes from damaged bytes.
const MAX_DEVICES: usize = 1 << 24;

/// How one array lies on the devices; devices are numbered by their position in the program's
/// device assignment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpSharding {
    /// All of it on every device.
    Replicated,
    /// All of it on this one device.
    Maximal(usize),
    /// Cut into tiles.
    Tiled {
        /// The number of tiles along each axis of the array, then the sizes of the subgroups.
        dims: Vec<usize>,
        /// The device of each tile, in the row-major order of `dims`.
        devices: Vec<usize>,
        /// How many of the last `dims` cut nothing: along them a tile is replicated.
        subgroups: usize,
    },
}

impl OpSharding {
    /// The mesh axes (as indices into `mesh`) that cut each of the array's `rank` axes, major
    /// first, on a mesh of these axis sizes whose devices are numbered in row-major order.
    ///
    /// # Errors
    /// [`ErrorKind::Sharding`] if whole axes of this mesh do not express the sharding: one axis
    /// alone on part of a mesh axis, devices in another order, another number of devices or axes.
    pub fn mesh_axes(&self, mesh: &[usize], rank: usize) -> Result<Vec<Vec<usize>>> {
        let on_mesh = count(mesh)?;
        match self {
            OpSharding::Replicated => Ok(vec![Vec::new(); rank]),
            OpSharding::Maximal(0) if on_mesh == 1 => Ok(vec![Vec::new(); rank]),
            OpSharding::Maximal(device) => {
                Err(not_on_mesh(mesh, &format!("all of it lies on device {device}")))
            }
            OpSharding::Tiled { dims, devices, subgroups } => {
                if dims.len() != rank + subgroups {
                    let text = format!("tiles {dims:?} do not cut an array of rank {rank}");
                    return Err(Error::new(ErrorKind::Sharding, OP, text));
                }
                if devices.len() != on_mesh || count(dims)? != on_mesh {
                    return Err(not_on_mesh(mesh, &format!("{} devices hold it", devices.len())));
                }
                tiles_on_mesh(mesh, dims, devices, rank)
            }
        }
    }
}

/// The shardings of a compiled program's outputs, from its optimised form.
///
/// A program that was not partitioned says nothing; its outputs are [`OpSharding::Replicated`].
///
/// # Errors
/// [`ErrorKind::Format`] if `format` is no HLO proto or the bytes are damaged;
/// [`ErrorKind::Sharding`] if there is not one sharding for each output, or one is of a sort that
/// an output cannot have (manual, unreduced, unknown).
pub fn output_shardings(format: &str, bytes: &[u8], num_outputs: usize) -> Result<Vec<OpSharding>> {
    let bad = |e: prost::DecodeError| {
        Error::new(ErrorKind::Format, OP, format!("the optimised program is no HLO proto: {e}"))
    };
    let module = match format {
        "hlo" => Module::decode(bytes).map_err(bad)?,
        "hlo_with_config" => {
            let outer = ModuleWithConfig::decode(bytes).map_err(bad)?;
            let empty = || Error::new(ErrorKind::Format, OP, "the optimised program has no module");
            outer.module.ok_or_else(empty)?
        }
        _ => {
            let text = format!("the optimised program is in the format `{format}`, not `hlo`");
            return Err(Error::new(ErrorKind::Format, OP, text));
        }
    };
    let Some(sharding) = module.spmd_output_sharding else {
        return Ok(vec![OpSharding::Replicated; num_outputs]);
    };
    let shardings = expand(&sharding)?;
    match shardings.len() {
        n if n == num_outputs => Ok(shardings),
        // One sharding that is no tuple holds for all outputs.
        1 if !sharding.is_tuple() => Ok(vec![shardings[0].clone(); num_outputs]),
        n => {
            let text = format!("the program has {num_outputs} outputs, but {n} output shardings");
            Err(Error::new(ErrorKind::Sharding, OP, text))
        }
    }
}

/// Every leaf of a sharding that may be a tuple.
fn expand(proto: &Sharding) -> Result<Vec<OpSharding>> {
    match &proto.named {
        Some(named) if !named.tuple.is_empty() => named.tuple.iter().map(from_named).collect(),
        Some(named) => Ok(vec![from_named(named)?]),
        None if proto.kind == TUPLE => proto.tuple.iter().map(from_leaf).collect(),
        None => Ok(vec![from_leaf(proto)?]),
    }
}

fn from_leaf(proto: &Sharding) -> Result<OpSharding> {
    if let Some(named) = &proto.named {
        return from_named(named);
    }
    match proto.kind {
        REPLICATED => Ok(OpSharding::Replicated),
        MAXIMAL => match proto.devices.first().map(|d| usize::try_from(*d)) {
            Some(Ok(device)) => Ok(OpSharding::Maximal(device)),
            _ => Err(damaged("a maximal sharding names no device")),
        },
        OTHER => from_tiles(proto),
        kind => {
            let name = match kind {
                TUPLE => "a nested tuple",
                4 => "manual",
                5 => "unknown",
                6 => "unreduced",
                _ => "of a new sort",
            };
            Err(Error::new(ErrorKind::Sharding, OP, format!("an output's sharding is {name}")))
        }
    }
}

fn from_tiles(proto: &Sharding) -> Result<OpSharding> {
    let dims = sizes(&proto.dims)?;
    let subgroups = match (proto.last_tile_dims.as_slice(), proto.replicate_on_last_tile_dim) {
        ([], replicate) => usize::from(replicate),
        (kinds, _) if kinds.iter().all(|kind| *kind == REPLICATED) => kinds.len(),
        _ => {
            let text = "an output's sharding has manual or unreduced subgroups";
            return Err(Error::new(ErrorKind::Sharding, OP, text));
        }
    };
    let devices = if proto.devices.is_empty() {
        let iota = sizes(&proto.iota_dims)?;
        let order: Result<Vec<usize>> = proto.iota_permutation.iter().map(|d| index(*d)).collect();
        permuted_iota(&iota, &order?)?
    } else {
        proto.devices.iter().map(|d| index(*d)).collect::<Result<_>>()?
    };
    let tiles = count(&dims)?;
    if tiles != devices.len() || subgroups > dims.len() {
        return Err(damaged(&format!("{tiles} tiles lie on {} devices", devices.len())));
    }
    Ok(OpSharding::Tiled { dims, devices, subgroups })
}

/// The numbers `0..` in an array of these sizes, read after its axes were permuted.
fn permuted_iota(sizes: &[usize], order: &[usize]) -> Result<Vec<usize>> {
    let total = count(sizes)?;
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if !order.is_empty() && !sorted.iter().copied().eq(0..sizes.len()) {
        return Err(damaged(&format!("{order:?} does not permute the axes of {sizes:?}")));
    }
    let identity: Vec<usize> = (0..sizes.len()).collect();
    let order = if order.is_empty() { &identity } else { order };
    let strides = strides(sizes);
    let permuted: Vec<usize> = order.iter().map(|axis| sizes[*axis]).collect();
    let device = |tile: usize| -> usize {
        let place = coordinates(tile, &permuted);
        place.iter().zip(order).map(|(at, axis)| at * strides[*axis]).sum()
    };
    Ok((0..total).map(device).collect())
}

/// A named sharding as tiles: all pieces of mesh axes that cut nothing become subgroups.
fn from_named(named: &Named) -> Result<OpSharding> {
    let axes = named.mesh.as_ref().map(|mesh| mesh.axes.as_slice()).unwrap_or_default();
    let ids = named.mesh.as_ref().map(|mesh| mesh.device_ids.as_slice()).unwrap_or_default();
    if let ([], [id]) = (axes, ids) {
        return Ok(OpSharding::Maximal(index(*id)?));
    }
    if !named.unreduced.is_empty() {
        return Err(Error::new(ErrorKind::Sharding, OP, "an output's sharding is unreduced"));
    }
    let mesh = sizes(&axes.iter().map(|axis| axis.size).collect::<Vec<_>>())?;
    let mut used = Vec::new();
    let mut dims = Vec::new();
    for dim in &named.dims {
        let pieces: Vec<Piece> = dim.axes.iter().map(|a| piece(a, &mesh)).collect::<Result<_>>()?;
        dims.push(count(&pieces.iter().map(|p| p.size).collect::<Vec<_>>())?);
        used.extend(pieces);
    }
    if dims.iter().all(|size| *size == 1) {
        return Ok(OpSharding::Replicated);
    }
    let rest = unused_pieces(&used, &mesh)?;
    let subgroups = rest.len();
    dims.extend(rest.iter().map(|p| p.size));
    let pieces: Vec<Piece> = used.into_iter().chain(rest).collect();
    let strides: Vec<usize> = pieces.iter().map(|p| p.stride(&mesh)).collect();
    let piece_sizes: Vec<usize> = pieces.iter().map(|p| p.size).collect();
    let total = count(&piece_sizes)?;
    let place = |tile: usize| -> usize {
        coordinates(tile, &piece_sizes).iter().zip(&strides).map(|(at, stride)| at * stride).sum()
    };
    let device = |tile: usize| match ids.get(place(tile)) {
        Some(id) => index(*id),
        None if ids.is_empty() => Ok(place(tile)),
        None => Err(damaged("a mesh names fewer devices than it has")),
    };
    let devices = (0..total).map(device).collect::<Result<_>>()?;
    Ok(OpSharding::Tiled { dims, devices, subgroups })
}

/// The part of a mesh axis that lies between two of its factors.
#[derive(Clone, Copy, Debug)]
struct Piece {
    axis: usize,
    /// The product of the factors before it.
    before: usize,
    size: usize,
}

impl Piece {
    /// How far apart in the mesh's row-major order its neighbours lie.
    fn stride(self, mesh: &[usize]) -> usize {
        mesh[self.axis] / (self.before * self.size) * strides(mesh)[self.axis]
    }
}

fn piece(axis: &AxisRef, mesh: &[usize]) -> Result<Piece> {
    let number = index(axis.index)?;
    let Some(full) = mesh.get(number).copied() else {
        return Err(damaged("a sharding names an axis that its mesh does not have"));
    };
    let (before, size) = match &axis.sub {
        Some(sub) => (index(sub.pre_size)?, index(sub.size)?),
        None => (1, full),
    };
    let product = before.checked_mul(size).filter(|p| *p > 0 && full.is_multiple_of(*p));
    product
        .map(|_| Piece { axis: number, before, size })
        .ok_or_else(|| damaged(&format!("a mesh axis of size {full} has no part ({before}){size}")))
}

/// What of the mesh's axes no piece covers.
fn unused_pieces(used: &[Piece], mesh: &[usize]) -> Result<Vec<Piece>> {
    let mut rest = Vec::new();
    for (axis, full) in mesh.iter().copied().enumerate() {
        let mut own: Vec<&Piece> = used.iter().filter(|p| p.axis == axis).collect();
        own.sort_by_key(|p| p.before);
        let mut covered = 1;
        for (before, next) in
            own.iter().map(|p| (p.before, p.before * p.size)).chain([(full, full)])
        {
            if before < covered || before % covered != 0 {
                return Err(damaged("a sharding uses a mesh axis twice"));
            }
            if before > covered {
                rest.push(Piece { axis, before: covered, size: before / covered });
            }
            covered = next;
        }
    }
    Ok(rest)
}

/// Which whole mesh axes cut each of the first `rank` axes of the tiles.
///
/// One step along a mesh axis must move the tile along at most one axis of the array; the steps'
/// lengths then order the axes, and every device is checked against the result.
fn tiles_on_mesh(
    mesh: &[usize],
    dims: &[usize],
    devices: &[usize],
    rank: usize,
) -> Result<Vec<Vec<usize>>> {
    let mut tile_of = vec![usize::MAX; devices.len()];
    for (tile, device) in devices.iter().enumerate() {
        match tile_of.get_mut(*device) {
            Some(slot) if *slot == usize::MAX => *slot = tile,
            _ => return Err(not_on_mesh(mesh, "its devices are not each there once")),
        }
    }
    let place = |device: usize| coordinates(tile_of[device], dims);
    let mut steps: Vec<Vec<(usize, usize)>> = vec![Vec::new(); rank];
    for (axis, stride) in strides(mesh).into_iter().enumerate().filter(|(a, _)| mesh[*a] > 1) {
        let at = place(stride);
        for (dim, step) in at[..rank].iter().copied().enumerate().filter(|(_, step)| *step > 0) {
            steps[dim].push((step, axis));
        }
    }
    for dim in &mut steps {
        dim.sort_unstable_by(|a, b| b.cmp(a));
    }
    let fits = |device: usize| {
        let on_mesh = coordinates(device, mesh);
        let at = place(device);
        let sum =
            |dim: &Vec<(usize, usize)>| -> usize { dim.iter().map(|(s, a)| s * on_mesh[*a]).sum() };
        steps.iter().map(sum).eq(at[..rank].iter().copied())
    };
    if (0..devices.len()).all(fits) {
        return Ok(steps.iter().map(|dim| dim.iter().map(|(_, axis)| *axis).collect()).collect());
    }
    Err(not_on_mesh(mesh, &format!("it has tiles {dims:?} on devices {devices:?}")))
}

/// The place of element `at` in an array of these sizes, row-major.
fn coordinates(mut at: usize, sizes: &[usize]) -> Vec<usize> {
    let mut place = vec![0; sizes.len()];
    for (slot, size) in place.iter_mut().zip(sizes).rev() {
        *slot = at % size;
        at /= size;
    }
    place
}

fn strides(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis] * sizes[axis];
    }
    strides
}

/// The number of elements, if it is one that devices can have.
fn count(sizes: &[usize]) -> Result<usize> {
    let product = sizes.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
    let too_large = || damaged(&format!("{sizes:?} are no sizes of a list of devices"));
    product.filter(|n| (1..=MAX_DEVICES).contains(n)).ok_or_else(too_large)
}

fn sizes(values: &[i64]) -> Result<Vec<usize>> {
    let sizes: Vec<usize> = values.iter().map(|v| index(*v)).collect::<Result<_>>()?;
    count(&sizes).map(|_| sizes)
}

fn index(value: impl TryInto<usize> + Copy + std::fmt::Display) -> Result<usize> {
    value.try_into().map_err(|_| damaged(&format!("{value} is no index")))
}

#[cold]
fn damaged(text: &str) -> Error {
    Error::new(ErrorKind::Format, OP, format!("an output's sharding is damaged: {text}"))
}

#[cold]
fn not_on_mesh(mesh: &[usize], why: &str) -> Error {
    let text = format!("whole axes of the mesh {mesh:?} do not express a sharding: {why}");
    Error::new(ErrorKind::Sharding, OP, text)
}

const REPLICATED: i32 = 0;
const MAXIMAL: i32 = 1;
const TUPLE: i32 = 2;
const OTHER: i32 = 3;

#[derive(Clone, PartialEq, Message)]
struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    module: Option<Module>,
}

#[derive(Clone, PartialEq, Message)]
struct Module {
    #[prost(message, optional, tag = "12")]
    spmd_output_sharding: Option<Sharding>,
}

#[derive(Clone, PartialEq, Message)]
struct Sharding {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(int64, repeated, tag = "3")]
    dims: Vec<i64>,
    #[prost(int64, repeated, tag = "4")]
    devices: Vec<i64>,
    #[prost(message, repeated, tag = "5")]
    tuple: Vec<Sharding>,
    #[prost(bool, tag = "6")]
    replicate_on_last_tile_dim: bool,
    #[prost(int32, repeated, tag = "8")]
    last_tile_dims: Vec<i32>,
    #[prost(int64, repeated, tag = "9")]
    iota_dims: Vec<i64>,
    #[prost(int32, repeated, tag = "10")]
    iota_permutation: Vec<i32>,
    #[prost(message, optional, tag = "14")]
    named: Option<Named>,
}

impl Sharding {
    fn is_tuple(&self) -> bool {
        self.named.as_ref().map_or(self.kind == TUPLE, |named| !named.tuple.is_empty())
    }
}

/// `NamedShardingProto`, which newer plugins may send instead of the fields above.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(message, repeated, tag = "1")]
    tuple: Vec<Named>,
    #[prost(message, optional, tag = "2")]
    mesh: Option<NamedMesh>,
    #[prost(message, repeated, tag = "3")]
    dims: Vec<NamedDim>,
    #[prost(message, repeated, tag = "5")]
    unreduced: Vec<AxisRef>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedMesh {
    #[prost(message, repeated, tag = "1")]
    axes: Vec<MeshAxis>,
    #[prost(int64, repeated, tag = "2")]
    device_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct MeshAxis {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "2")]
    size: i64,
}

#[derive(Clone, PartialEq, Message)]
struct NamedDim {
    #[prost(message, repeated, tag = "1")]
    axes: Vec<AxisRef>,
}

#[derive(Clone, PartialEq, Message)]
struct AxisRef {
    #[prost(int64, tag = "1")]
    index: i64,
    #[prost(message, optional, tag = "2")]
    sub: Option<SubAxis>,
}

#[derive(Clone, PartialEq, Message)]
struct SubAxis {
    #[prost(int64, tag = "1")]
    pre_size: i64,
    #[prost(int64, tag = "2")]
    size: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESH: [usize; 2] = [4, 2];

    fn iota(dims: &[i64], iota_dims: &[i64], permutation: &[i32], last: bool) -> Sharding {
        Sharding {
            kind: OTHER,
            dims: dims.to_vec(),
            iota_dims: iota_dims.to_vec(),
            iota_permutation: permutation.to_vec(),
            replicate_on_last_tile_dim: last,
            ..Sharding::default()
        }
    }

    fn list(dims: &[i64], devices: &[i64], last: bool) -> Sharding {
        Sharding { devices: devices.to_vec(), ..iota(dims, &[], &[], last) }
    }

    fn of_kind(kind: i32) -> Sharding {
        Sharding { kind, ..Sharding::default() }
    }

    /// A named sharding on the mesh; an axis is its number, and part `(before)size` if not (0)0.
    fn named(dims: &[&[(i64, i64, i64)]]) -> Sharding {
        let axis = |(index, pre_size, size): &(i64, i64, i64)| AxisRef {
            index: *index,
            sub: (*size > 0).then_some(SubAxis { pre_size: *pre_size, size: *size }),
        };
        let mesh_axes = MESH.map(|size| MeshAxis { name: "x".into(), size: size as i64 });
        let named = Named {
            mesh: Some(NamedMesh { axes: mesh_axes.to_vec(), device_ids: Vec::new() }),
            dims: dims.iter().map(|d| NamedDim { axes: d.iter().map(axis).collect() }).collect(),
            ..Named::default()
        };
        Sharding { named: Some(named), ..Sharding::default() }
    }

    fn module(sharding: Option<Sharding>) -> Vec<u8> {
        Module { spmd_output_sharding: sharding }.encode_to_vec()
    }

    fn one(sharding: Sharding) -> Result<OpSharding> {
        output_shardings("hlo", &module(Some(sharding)), 1).map(|mut all| all.remove(0))
    }

    #[test]
    fn iota_and_lists_on_a_mesh_of_4_by_2() {
        // The same shardings as XLA writes them: with iota, with a list, named.
        let rows: [(Sharding, Sharding, Sharding, &[&[usize]]); 6] = [
            (
                iota(&[4, 2], &[8], &[0], false),
                list(&[4, 2], &[0, 1, 2, 3, 4, 5, 6, 7], false),
                named(&[&[(0, 0, 0)], &[(1, 0, 0)]]),
                &[&[0], &[1]],
            ),
            (
                iota(&[2, 4], &[4, 2], &[1, 0], false),
                list(&[2, 4], &[0, 2, 4, 6, 1, 3, 5, 7], false),
                named(&[&[(1, 0, 0)], &[(0, 0, 0)]]),
                &[&[1], &[0]],
            ),
            (
                iota(&[8, 1], &[4, 2], &[1, 0], false),
                list(&[8, 1], &[0, 2, 4, 6, 1, 3, 5, 7], false),
                named(&[&[(1, 0, 0), (0, 0, 0)], &[]]),
                &[&[1, 0], &[]],
            ),
            (
                iota(&[1, 8], &[8], &[0], false),
                list(&[1, 8], &[0, 1, 2, 3, 4, 5, 6, 7], false),
                named(&[&[], &[(0, 0, 0), (1, 0, 0)]]),
                &[&[], &[0, 1]],
            ),
            (
                iota(&[4, 1, 2], &[8], &[0], true),
                list(&[4, 1, 2], &[0, 1, 2, 3, 4, 5, 6, 7], true),
                named(&[&[(0, 0, 0)], &[]]),
                &[&[0], &[]],
            ),
            (
                iota(&[1, 2, 4], &[4, 2], &[1, 0], true),
                list(&[1, 2, 4], &[0, 2, 4, 6, 1, 3, 5, 7], true),
                named(&[&[], &[(1, 0, 0)]]),
                &[&[], &[1]],
            ),
        ];
        for (iota, list, named, axes) in rows {
            let sharding = one(iota).unwrap();
            assert_eq!(sharding, one(list).unwrap());
            assert_eq!(sharding.mesh_axes(&MESH, 2).unwrap(), axes);
            assert_eq!(one(named).unwrap().mesh_axes(&MESH, 2).unwrap(), axes);
        }
    }

    #[test]
    fn axes_of_size_one_and_three_axes() {
        let sharding = one(iota(&[2, 4], &[2, 2, 2], &[1, 0, 2], false)).unwrap();
        assert_eq!(sharding.mesh_axes(&[2, 1, 2, 2], 2).unwrap(), [vec![2], vec![0, 3]]);
    }

    #[test]
    fn part_of_an_axis() {
        let sharding = one(named(&[&[(0, 2, 2)], &[(1, 0, 0)]])).unwrap();
        let expected = OpSharding::Tiled {
            dims: vec![2, 2, 2],
            devices: vec![0, 4, 1, 5, 2, 6, 3, 7],
            subgroups: 1,
        };
        assert_eq!(sharding, expected);
        let error = sharding.mesh_axes(&MESH, 2).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Sharding);
        // The same devices on a mesh that has the part as an axis.
        assert_eq!(sharding.mesh_axes(&[2, 2, 2], 2).unwrap(), [[1], [2]]);
    }

    #[test]
    fn replicated_and_maximal() {
        assert_eq!(one(of_kind(REPLICATED)).unwrap(), OpSharding::Replicated);
        assert_eq!(OpSharding::Replicated.mesh_axes(&MESH, 1).unwrap(), [[0; 0]]);
        assert_eq!(one(named(&[&[], &[]])).unwrap(), OpSharding::Replicated);
        let maximal = Sharding { devices: vec![3], ..of_kind(MAXIMAL) };
        assert_eq!(one(maximal).unwrap(), OpSharding::Maximal(3));
        let maximal = OpSharding::Maximal(0);
        assert_eq!(maximal.mesh_axes(&[1], 1).unwrap(), [[0; 0]]);
        assert!(maximal.mesh_axes(&MESH, 1).is_err(), "one device is no mesh of eight");
    }

    #[test]
    fn outputs_of_a_program() {
        assert_eq!(output_shardings("hlo", &module(None), 2).unwrap().len(), 2);
        let both = vec![of_kind(REPLICATED), iota(&[8], &[8], &[0], false)];
        let tuple = Sharding { tuple: both, ..of_kind(TUPLE) };
        let wrapped =
            ModuleWithConfig { module: Some(Module { spmd_output_sharding: Some(tuple.clone()) }) };
        let read = output_shardings("hlo_with_config", &wrapped.encode_to_vec(), 2).unwrap();
        assert_eq!(read[0], OpSharding::Replicated);
        assert_eq!(read[1].mesh_axes(&MESH, 1).unwrap(), [[0, 1]]);
        assert_eq!(
            output_shardings("hlo", &module(Some(of_kind(REPLICATED))), 3).unwrap().len(),
            3
        );
        let error = output_shardings("hlo", &module(Some(tuple)), 3).unwrap_err();
        assert!(error.text().contains("3 outputs, but 2 output shardings"), "{error}");
    }

    #[test]
    fn bad_input_is_a_typed_error() {
        let cases = [
            output_shardings("mlir", b"", 1),
            output_shardings("hlo", b"\xff\xff", 1),
            output_shardings("hlo_with_config", b"", 1),
            one(of_kind(MAXIMAL)).map(|s| vec![s]),
            one(list(&[4], &[0, 1], false)).map(|s| vec![s]),
            one(list(&[2], &[0, -1], false)).map(|s| vec![s]),
            one(list(&[0], &[0], false)).map(|s| vec![s]),
            one(iota(&[8], &[8], &[1], false)).map(|s| vec![s]),
            one(iota(&[8], &[4, 2], &[0, 0], false)).map(|s| vec![s]),
            one(iota(&[1 << 40], &[1 << 40], &[0], false)).map(|s| vec![s]),
            one(iota(&[i64::MAX, 4], &[8], &[0], false)).map(|s| vec![s]),
            one(named(&[&[(7, 0, 0)]])).map(|s| vec![s]),
            one(named(&[&[(0, 2, 4)]])).map(|s| vec![s]),
            one(named(&[&[(0, 0, 0)], &[(0, 0, 0)]])).map(|s| vec![s]),
        ];
        for (i, case) in cases.into_iter().enumerate() {
            assert_eq!(*case.unwrap_err().kind(), ErrorKind::Format, "case {i}");
        }
        for kind in 4..8 {
            assert_eq!(*one(of_kind(kind)).unwrap_err().kind(), ErrorKind::Sharding);
        }
        let manual = Sharding { last_tile_dims: vec![4], ..iota(&[4, 2], &[8], &[0], false) };
        assert_eq!(*one(manual).unwrap_err().kind(), ErrorKind::Sharding);
    }

    #[test]
    fn what_a_mesh_cannot_express() {
        let tiled = |dims: &[usize], devices: &[usize]| OpSharding::Tiled {
            dims: dims.to_vec(),
            devices: devices.to_vec(),
            subgroups: 0,
        };
        let cases = [
            tiled(&[8], &[1, 0, 2, 3, 4, 5, 6, 7]),
            tiled(&[8], &[7, 6, 5, 4, 3, 2, 1, 0]),
            tiled(&[8], &[0, 0, 2, 3, 4, 5, 6, 7]),
            tiled(&[8], &[0, 1, 2, 3, 4, 5, 6, 9]),
            tiled(&[4], &[0, 1, 2, 3]),
            tiled(&[4, 2], &[0, 1, 2, 3, 4, 5, 6, 7]),
        ];
        for case in cases {
            let error = case.mesh_axes(&MESH, 1).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Sharding, "{case:?}");
        }
        assert!(tiled(&[0], &[0, 1, 2, 3, 4, 5, 6, 7]).mesh_axes(&MESH, 1).is_err(), "no tiles");
        assert!(OpSharding::Replicated.mesh_axes(&[usize::MAX, 2], 1).is_err(), "no such mesh");
    }
}
