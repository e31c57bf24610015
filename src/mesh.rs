//! Named meshes, partition specs and shardings: which slice of an array lies on which device.
//!
//! As in JAX: a [`Mesh`] names the axes of a grid of devices, a [`PartitionSpec`] says for each
//! axis of an array over which mesh axes it is split, and a [`NamedSharding`] is both together.

use crate::error::{Error, ErrorKind, Result};
use crate::shape::Shape;
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Names one device of one client, without holding on to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceId {
    /// Which client: each gets a number of its own in this process.
    pub client: u32,
    /// The position in the client's list of devices.
    pub index: u32,
}

/// A grid of devices with named axes. Cheap to clone; equal if axes and devices are equal.
#[derive(Clone)]
pub struct Mesh(Arc<MeshInner>);

#[derive(PartialEq, Eq, Hash)]
struct MeshInner {
    names: Vec<Arc<str>>,
    sizes: Vec<usize>,
    devices: Vec<DeviceId>,
}

impl Mesh {
    /// A mesh over `devices`, row-major, with the given axis names and sizes, outermost first.
    ///
    /// # Errors
    /// If the sizes do not multiply to the number of devices, a name is empty or stands twice, a
    /// device stands twice, or the devices belong to different clients.
    pub fn from_ids<N: AsRef<str>>(devices: &[DeviceId], axes: &[(N, usize)]) -> Result<Mesh> {
        let error = |text: String| Error::new(ErrorKind::Sharding, "mesh", text);
        let names: Vec<Arc<str>> = axes.iter().map(|(n, _)| Arc::from(n.as_ref())).collect();
        let sizes: Vec<usize> = axes.iter().map(|(_, s)| *s).collect();
        let total: usize = sizes.iter().product();
        if total != devices.len() || total == 0 {
            let text =
                format!("axes {sizes:?} need {total} devices, but {} are given", devices.len());
            return Err(error(text).help(
                "a CPU client has as many devices as `ClientOptions::cpu_device_count` says",
            ));
        }
        for (i, name) in names.iter().enumerate() {
            if name.is_empty() || names[..i].contains(name) {
                return Err(error(format!("axis name `{name}` is empty or stands twice")));
            }
        }
        for (i, device) in devices.iter().enumerate() {
            if devices[..i].contains(device) {
                return Err(error(format!("device {} stands twice", device.index)));
            }
            if device.client != devices[0].client {
                return Err(error("the devices belong to different clients".into()));
            }
        }
        Ok(Mesh(Arc::new(MeshInner { names, sizes, devices: devices.to_vec() })))
    }

    /// The axis names, outermost first.
    pub fn axis_names(&self) -> &[Arc<str>] {
        &self.0.names
    }

    /// The axis sizes, outermost first.
    pub fn axis_sizes(&self) -> &[usize] {
        &self.0.sizes
    }

    /// The number of devices along the named axis, if there is one.
    pub fn axis_size(&self, name: &str) -> Option<usize> {
        self.axis_index(name).map(|i| self.0.sizes[i])
    }

    /// The position of the named axis, if there is one.
    pub fn axis_index(&self, name: &str) -> Option<usize> {
        self.0.names.iter().position(|n| &**n == name)
    }

    /// The devices, row-major.
    pub fn device_ids(&self) -> &[DeviceId] {
        &self.0.devices
    }

    /// The number of devices.
    pub fn size(&self) -> usize {
        self.0.devices.len()
    }

    /// The coordinates of the `position`-th device.
    pub fn coordinates(&self, position: usize) -> Vec<usize> {
        let mut rest = position;
        let mut out = vec![0; self.0.sizes.len()];
        for (i, &size) in self.0.sizes.iter().enumerate().rev() {
            out[i] = rest % size;
            rest /= size;
        }
        out
    }
}

impl PartialEq for Mesh {
    fn eq(&self, other: &Mesh) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Mesh {}

impl std::hash::Hash for Mesh {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes = self.0.names.iter().zip(&self.0.sizes).map(|(n, s)| format!("{n}={s}"));
        write!(f, "Mesh({})", axes.collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The mesh axes that one axis of an array is split over; none means that it is whole everywhere.
pub type AxisSpec = SmallVec<[Arc<str>; 1]>;

/// For each axis of an array the mesh axes that split it. Axes past the end are whole.
///
/// Written with the macro [`spec!`](crate::spec): `spec!["data", None]`, `spec![("data", "model")]`.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct PartitionSpec(SmallVec<[AxisSpec; 2]>);

impl PartitionSpec {
    /// The spec with the given entries, one for each axis.
    pub fn new(entries: impl IntoIterator<Item = AxisSpec>) -> PartitionSpec {
        PartitionSpec(entries.into_iter().collect())
    }

    /// Whole on every device.
    pub fn replicated() -> PartitionSpec {
        PartitionSpec::default()
    }

    /// The entry of an axis; an axis past the end has an empty one.
    pub fn axis(&self, axis: usize) -> &[Arc<str>] {
        self.0.get(axis).map_or(&[], |a| a.as_slice())
    }

    /// The entries that are written.
    pub fn entries(&self) -> &[AxisSpec] {
        &self.0
    }

    /// Whether no axis is split.
    pub fn is_replicated(&self) -> bool {
        self.0.iter().all(SmallVec::is_empty)
    }

    /// The same spec with an entry inserted before `axis`, as `vmap` needs it.
    #[must_use]
    pub fn insert(&self, axis: usize, entry: AxisSpec) -> PartitionSpec {
        let mut entries = self.0.clone();
        while entries.len() < axis {
            entries.push(AxisSpec::new());
        }
        entries.insert(axis, entry);
        PartitionSpec(entries)
    }

    fn trimmed(&self) -> PartitionSpec {
        let len = self.0.iter().rposition(|e| !e.is_empty()).map_or(0, |i| i + 1);
        PartitionSpec(self.0[..len].iter().cloned().collect())
    }
}

impl fmt::Display for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = |e: &AxisSpec| match e.len() {
            0 => "None".to_string(),
            1 => format!("\"{}\"", e[0]),
            _ => {
                format!("({})", e.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", "))
            }
        };
        write!(f, "spec![{}]", self.0.iter().map(entry).collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Debug for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What may stand as an entry of [`spec!`](crate::spec): a name, a tuple or array of names, `None`.
pub trait IntoAxisSpec {
    /// The mesh axes that the entry names.
    fn into_axis_spec(self) -> AxisSpec;
}

impl IntoAxisSpec for &str {
    fn into_axis_spec(self) -> AxisSpec {
        SmallVec::from_elem(Arc::from(self), 1)
    }
}

impl IntoAxisSpec for Option<&str> {
    fn into_axis_spec(self) -> AxisSpec {
        self.map(IntoAxisSpec::into_axis_spec).unwrap_or_default()
    }
}

impl IntoAxisSpec for (&str, &str) {
    fn into_axis_spec(self) -> AxisSpec {
        [self.0, self.1].into_axis_spec()
    }
}

impl<const N: usize> IntoAxisSpec for [&str; N] {
    fn into_axis_spec(self) -> AxisSpec {
        self.into_iter().map(Arc::from).collect()
    }
}

/// A [`PartitionSpec`] from its entries: `spec!["data", None]`; `spec![]` is replicated.
#[macro_export]
macro_rules! spec {
    ($($entry:expr),* $(,)?) => {
        $crate::PartitionSpec::new([$($crate::mesh::IntoAxisSpec::into_axis_spec($entry)),*])
    };
}

/// A mesh and a partition spec over its axes: where each slice of an array lies.
#[derive(Clone)]
pub struct NamedSharding(Arc<(Mesh, PartitionSpec)>);

impl NamedSharding {
    /// The sharding of `spec` over `mesh`.
    ///
    /// # Errors
    /// If the spec names an axis that the mesh does not have, or one axis twice.
    pub fn new(mesh: &Mesh, spec: PartitionSpec) -> Result<NamedSharding> {
        let mut seen: Vec<&str> = Vec::new();
        for name in spec.0.iter().flatten() {
            let error = |text| Error::new(ErrorKind::Sharding, "sharding", text);
            if mesh.axis_index(name).is_none() {
                return Err(error(format!(
                    "{spec} names axis `{name}`, which {mesh} does not have"
                )));
            }
            if seen.contains(&&**name) {
                return Err(error(format!("{spec} names axis `{name}` twice")));
            }
            seen.push(name);
        }
        Ok(NamedSharding(Arc::new((mesh.clone(), spec.trimmed()))))
    }

    /// Whole on every device of the mesh.
    pub fn replicated(mesh: &Mesh) -> NamedSharding {
        NamedSharding(Arc::new((mesh.clone(), PartitionSpec::replicated())))
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.0.0
    }

    /// The partition spec, without trailing whole axes.
    pub fn spec(&self) -> &PartitionSpec {
        &self.0.1
    }

    /// Whether each device has the whole array.
    pub fn is_replicated(&self) -> bool {
        self.spec().is_replicated()
    }

    /// Into how many parts an axis is split.
    pub fn parts(&self, axis: usize) -> usize {
        self.spec().axis(axis).iter().filter_map(|n| self.mesh().axis_size(n)).product()
    }

    /// Checks that the sharding fits an array of `shape`.
    ///
    /// # Errors
    /// If the spec has more entries than the shape axes, or a size does not divide evenly.
    pub fn check(&self, op: &'static str, shape: &Shape) -> Result<()> {
        let error = |text| Error::new(ErrorKind::Sharding, op, text);
        if self.spec().0.len() > shape.rank() {
            let text = format!("{} has more entries than shape {shape} has axes", self.spec());
            return Err(error(text));
        }
        for (axis, &size) in shape.iter().enumerate() {
            let parts = self.parts(axis);
            if !size.is_multiple_of(parts) {
                let text = format!(
                    "axis {axis} of shape {shape} has size {size}, which does not divide by {parts} \
                     (mesh axes {:?} of {})",
                    self.spec().axis(axis),
                    self.mesh()
                );
                return Err(error(text).help("pad the axis, or leave it whole with `None`"));
            }
        }
        Ok(())
    }

    /// The shape of one device's part of an array of `shape`.
    pub fn shard_shape(&self, shape: &Shape) -> Shape {
        shape.iter().enumerate().map(|(axis, &size)| size / self.parts(axis)).collect()
    }

    /// For the `position`-th device of the mesh, the range of each axis that it holds.
    pub fn shard_ranges(&self, shape: &Shape, position: usize) -> Vec<Range<usize>> {
        let coordinates = self.mesh().coordinates(position);
        let part = |axis: usize| {
            self.spec().axis(axis).iter().fold(0, |at, name| {
                let i = self.mesh().axis_index(name).unwrap_or(0);
                at * self.mesh().axis_sizes()[i] + coordinates[i]
            })
        };
        let local = self.shard_shape(shape);
        local.iter().enumerate().map(|(a, &n)| part(a) * n..(part(a) + 1) * n).collect()
    }

    /// The attribute of Shardy for an array of `rank` axes over the mesh named `@mesh`:
    /// `#sdy.sharding<@mesh, [{"data"}, {}]>`.
    pub fn sdy(&self, rank: usize) -> String {
        let axis = |a| self.spec().axis(a).iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>();
        let axes: Vec<_> = (0..rank).map(|a| format!("{{{}}}", axis(a).join(", "))).collect();
        format!("#sdy.sharding<@mesh, [{}]>", axes.join(", "))
    }
}

impl PartialEq for NamedSharding {
    fn eq(&self, other: &NamedSharding) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for NamedSharding {}

impl std::hash::Hash for NamedSharding {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Display for NamedSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.spec(), self.mesh())
    }
}

impl fmt::Debug for NamedSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> Mesh {
        let ids: Vec<_> = (0..8).map(|index| DeviceId { client: 0, index }).collect();
        Mesh::from_ids(&ids, &[("data", 4), ("model", 2)]).unwrap()
    }

    #[test]
    fn slices_lie_row_major() {
        let sharding = NamedSharding::new(&mesh(), spec!["model", "data"]).unwrap();
        let shape = Shape::from([4, 8]);
        assert_eq!(sharding.shard_shape(&shape).dims(), [2, 2]);
        assert_eq!(sharding.shard_ranges(&shape, 5), [2..4, 4..6]);
        let both = NamedSharding::new(&mesh(), spec![("data", "model")]).unwrap();
        assert_eq!(both.shard_ranges(&Shape::from([8, 3]), 5), [5..6, 0..3]);
        assert_eq!(both.sdy(2), "#sdy.sharding<@mesh, [{\"data\", \"model\"}, {}]>");
    }

    #[test]
    fn misfits_are_named() {
        let mesh = mesh();
        assert!(NamedSharding::new(&mesh, spec!["data", "data"]).is_err());
        assert!(NamedSharding::new(&mesh, spec!["pipe"]).is_err());
        let sharding = NamedSharding::new(&mesh, spec!["data"]).unwrap();
        let text = sharding.check("shard", &Shape::from([6])).unwrap_err().to_string();
        assert!(text.contains("size 6, which does not divide by 4"), "{text}");
    }
}
