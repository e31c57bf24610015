//! Trees of tensors on disk, as safetensors files.
//!
//! A file holds every tensor of a tree, buffers too, under its state-dict name, and a map of texts.
//! A file is written whole beside its place and then renamed, so that what stands under a name is
//! always a whole checkpoint: the old one or the new one.

use super::module::named;
use crate::array::Array;
use crate::backend::Device;
use crate::backend::host::HostArray;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::trace::cell::Tensor;
use crate::trace::{Value, current};
use crate::transforms::tree::{Leaves, Tree};
use indexmap::IndexMap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, SafeTensorError, TensorView};
use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind as Os, Write};
use std::path::Path;

/// The name of a tree that is one tensor.
const ONLY: &str = "value";

/// What a checkpoint tells besides its tensors: the step, a seed, a description.
pub type Metadata = BTreeMap<String, String>;

/// Writes the tensors of a tree and `metadata` to `path`; a file that is there is replaced in one
/// step.
///
/// A state dict is a tree too. Sharded tensors are gathered.
///
/// # Errors
/// [`ErrorKind::Io`] if the folder cannot be written: what stood at `path` is still there, and
/// nothing else. [`ErrorKind::DType`] for complex numbers of two f64, which the format does not
/// have; [`ErrorKind::Tree`] if two tensors have one name; [`ErrorKind::NotConcrete`] inside `jit`.
///
/// # Example
/// ```
/// use oxbridge::nn::checkpoint::{Checkpoint, Metadata, save};
/// use oxbridge::prelude::*;
/// let dir = tempfile::tempdir().unwrap();
/// let path = dir.path().join("model.safetensors");
/// let tree = (Tensor::from_slice(&[1f32, 2.0], [2])?, Tensor::from_slice(&[3i64], [1])?);
/// save(&tree, &path, &Metadata::from([("step".into(), "7".into())]))?;
/// let checkpoint = Checkpoint::open(&path)?;
/// let back = checkpoint.restore(&tree)?;
/// assert_eq!(back.0.to_vec::<f32>()?, [1.0, 2.0]);
/// assert_eq!(checkpoint.metadata()["step"], "7");
/// # Ok::<(), Error>(())
/// ```
pub fn save(tree: &impl Leaves, path: impl AsRef<Path>, metadata: &Metadata) -> Result<()> {
    let mut arrays = IndexMap::new();
    for entry in named(tree) {
        let name = if entry.name.is_empty() { ONLY.to_string() } else { entry.name };
        let array = entry.tensor.value()?.concrete("save")?.to_host()?.contiguous();
        if arrays.contains_key(&name) {
            let text = format!("two tensors of the tree have the name `{name}`");
            return Err(Error::new(ErrorKind::Tree, "save", text));
        }
        arrays.insert(name, array);
    }
    write_whole(path.as_ref(), &encode(&arrays, metadata)?)
}

fn encode(arrays: &IndexMap<String, HostArray>, metadata: &Metadata) -> Result<Vec<u8>> {
    let mut views = Vec::with_capacity(arrays.len());
    for (name, array) in arrays {
        let bytes = array.contiguous_bytes().unwrap_or_default();
        let view =
            TensorView::new(to_file(array.dtype(), name)?, array.shape().dims().to_vec(), bytes)
                .map_err(|e| Error::new(ErrorKind::Format, "save", format!("`{name}`: {e}")))?;
        views.push((name, view));
    }
    let metadata: HashMap<String, String> = metadata.clone().into_iter().collect();
    safetensors::serialize(views, Some(metadata))
        .map_err(|e| Error::new(ErrorKind::Format, "save", e.to_string()))
}

/// Puts `bytes` at `path` by way of a file beside it.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    // The kind alone: the temporary file's name helps nobody.
    let failed = |e: std::io::Error| {
        let plain = std::io::Error::from(e.kind());
        Error::io("save", format!("{} cannot be written", path.display()), plain)
    };
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As for any other file: the process's mask takes away what it should.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder
        .prefix(".checkpoint-")
        .tempfile_in(parent.unwrap_or(Path::new(".")))
        .map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(path).map(drop).map_err(|e| failed(e.error))
}

/// A safetensors file that was read: tensors by name, not yet on a device, and a map of texts.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    arrays: IndexMap<String, HostArray>,
    metadata: Metadata,
}

impl Checkpoint {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it is missing or cannot be read; [`ErrorKind::Format`] if it is not in
    /// the safetensors format or is cut off; [`ErrorKind::DType`] if it holds a dtype that tensors
    /// do not have.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| unreadable(path, e))?;
        Checkpoint::decode(&bytes).map_err(|e| e.note(format!("the file is {}", path.display())))
    }

    fn decode(bytes: &[u8]) -> Result<Checkpoint> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| malformed(bytes, &e))?;
        let file = SafeTensors::deserialize(bytes).map_err(|e| malformed(bytes, &e))?;
        let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
        let mut arrays = IndexMap::new();
        // In the order of the data, which is the same for every reader.
        for name in header.offset_keys() {
            let view = file.tensor(&name).map_err(|e| malformed(bytes, &e))?;
            arrays.insert(name.clone(), decode_array(&name, &view)?);
        }
        Ok(Checkpoint { arrays, metadata })
    }

    /// What the file tells besides its tensors.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.keys().map(String::as_str)
    }

    /// One tensor, on the default device.
    ///
    /// # Errors
    /// [`ErrorKind::Tree`] if there is none of that name.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let array = self.arrays.get(name).ok_or_else(|| {
            Error::new(ErrorKind::Tree, "checkpoint", format!("there is no tensor `{name}`"))
        })?;
        upload(array)
    }

    /// All tensors by name, on the default device: what `Module::load_state_dict` takes.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn state_dict(&self) -> Result<IndexMap<String, Tensor>> {
        self.arrays.iter().map(|(name, array)| Ok((name.clone(), upload(array)?))).collect()
    }

    /// A tree like `like` with the file's tensors, each where that of `like` lies. Buffers are
    /// written in place.
    ///
    /// # Errors
    /// [`ErrorKind::Tree`] if names are missing or left over (all are told), [`ErrorKind::Shape`] or
    /// [`ErrorKind::DType`] if a tensor has another shape or dtype; nothing is changed then.
    pub fn restore<T: Tree>(&self, like: &T) -> Result<T> {
        let wants = named(like);
        self.check(wants.iter().map(|n| (key(&n.name), n.tensor)))?;
        let mut leaves = Vec::new();
        let mut buffers = Vec::new();
        for want in &wants {
            let tensor = placed_like(&self.arrays[key(&want.name)], want.tensor)?;
            if want.buffer {
                buffers.push((want.tensor, tensor));
            } else {
                leaves.push(tensor);
            }
        }
        for (buffer, tensor) in buffers {
            buffer.set_value(tensor.value()?)?;
        }
        crate::transforms::tree::rebuild(like, leaves)
    }

    fn check<'t>(&self, wants: impl Iterator<Item = (&'t str, &'t Tensor)>) -> Result<()> {
        let wants: IndexMap<&str, &Tensor> = wants.collect();
        let quoted = |names: Vec<&str>| {
            names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
        };
        let missing: Vec<&str> =
            wants.keys().copied().filter(|name| !self.arrays.contains_key(*name)).collect();
        let extra: Vec<&str> = self.names().filter(|name| !wants.contains_key(name)).collect();
        let mut texts = Vec::new();
        if !missing.is_empty() {
            texts.push(format!("missing keys: {}", quoted(missing)));
        }
        if !extra.is_empty() {
            texts.push(format!("unexpected keys: {}", quoted(extra)));
        }
        if !texts.is_empty() {
            let text = format!("the file does not fit the tree: {}", texts.join("; "));
            return Err(Error::new(ErrorKind::Tree, "checkpoint", text));
        }
        wants.into_iter().try_for_each(|(name, want)| same_type(name, want, &self.arrays[name]))
    }
}

fn key(name: &str) -> &str {
    if name.is_empty() { ONLY } else { name }
}

fn same_type(name: &str, want: &Tensor, have: &HostArray) -> Result<()> {
    let aval = want.aval();
    let text = || {
        let (dtype, shape) = (have.dtype(), have.shape());
        format!("`{name}` is {dtype}{shape} in the file, but {} in the tree", aval.unsharded())
    };
    if aval.shape() != have.shape() {
        return Err(Error::new(ErrorKind::Shape, "checkpoint", text()));
    }
    if aval.dtype() != have.dtype() {
        return Err(Error::new(ErrorKind::DType, "checkpoint", text()));
    }
    Ok(())
}

fn upload(host: &HostArray) -> Result<Tensor> {
    let array = Array::upload(host, &Device::default()?, false)?;
    Ok(Tensor::from_value(Value::Array(array)))
}

/// The data where `like` lies: split over its mesh, or on its device.
fn placed_like(host: &HostArray, like: &Tensor) -> Result<Tensor> {
    if current().is_some() {
        let text = "a file cannot be read into tensors inside of a transform";
        return Err(Error::new(ErrorKind::NotConcrete, "checkpoint", text));
    }
    let value = like.value()?;
    let array = value.concrete("checkpoint")?;
    let array = match array.aval().sharding() {
        Some(sharding) => Array::upload_sharded(host, sharding)?,
        None => {
            let place = array.place();
            let device = match place.device {
                Some(id) => Device::by_id(id)?,
                None => Device::default()?,
            };
            Array::upload(host, &device, place.committed)?
        }
    };
    Ok(Tensor::from_value(Value::Array(array)))
}

#[cold]
fn unreadable(path: &Path, e: std::io::Error) -> Error {
    let what = if e.kind() == Os::NotFound { "is not there" } else { "cannot be read" };
    Error::io("checkpoint", format!("{} {what}", path.display()), e)
}

#[cold]
fn malformed(bytes: &[u8], e: &SafeTensorError) -> Error {
    let text = match e {
        SafeTensorError::HeaderTooSmall
        | SafeTensorError::InvalidHeaderLength
        | SafeTensorError::MetadataIncompleteBuffer => {
            format!(
                "the file is cut off, or not in the safetensors format: {} bytes, {e}",
                bytes.len()
            )
        }
        _ => format!("the file is not in the safetensors format: {e}"),
    };
    Error::new(ErrorKind::Format, "checkpoint", text)
}

fn decode_array(name: &str, view: &TensorView<'_>) -> Result<HostArray> {
    let dtype = from_file(view.dtype(), name)?;
    if dtype == DType::Bool && view.data().iter().any(|byte| *byte > 1) {
        let text = format!("`{name}` is bool, but holds bytes other than 0 and 1");
        return Err(Error::new(ErrorKind::Format, "checkpoint", text));
    }
    HostArray::from_bytes(dtype, &view.shape().into(), view.data())
}

/// The dtypes that both sides have.
const DTYPES: [(DType, Dtype); 14] = [
    (DType::Bool, Dtype::BOOL),
    (DType::U8, Dtype::U8),
    (DType::U16, Dtype::U16),
    (DType::U32, Dtype::U32),
    (DType::U64, Dtype::U64),
    (DType::I8, Dtype::I8),
    (DType::I16, Dtype::I16),
    (DType::I32, Dtype::I32),
    (DType::I64, Dtype::I64),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::C64, Dtype::C64),
];

fn to_file(dtype: DType, name: &str) -> Result<Dtype> {
    let found = DTYPES.iter().find(|(ours, _)| *ours == dtype).map(|(_, theirs)| *theirs);
    found.ok_or_else(|| {
        let text = format!("`{name}` is {dtype}, which safetensors files do not have");
        Error::new(ErrorKind::DType, "save", text)
    })
}

fn from_file(dtype: Dtype, name: &str) -> Result<DType> {
    let found = DTYPES.iter().find(|(_, theirs)| *theirs == dtype).map(|(ours, _)| *ours);
    found.ok_or_else(|| {
        let text = format!("`{name}` is {dtype:?}, which tensors do not have");
        Error::new(ErrorKind::DType, "checkpoint", text)
    })
}
