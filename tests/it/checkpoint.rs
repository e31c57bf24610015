//! Checkpoints: every dtype there and back, and every way in which one can fail.

use crate::mesh::DEVICES;
use half::{bf16, f16};
use oxbridge::nn::checkpoint::{Checkpoint, Metadata, save};
use oxbridge::nn::{BatchNorm2d, Buffer, Linear};
use oxbridge::optim::{AdamW, AdamWOptions, Schedule};
use oxbridge::prelude::*;
use oxbridge::tensor::random::Key;
use std::fs;
use std::path::Path;

#[derive(Clone, Debug, Module)]
struct Net {
    layers: Vec<Tensor>,
    seen: Buffer,
}

fn net(scale: f32) -> Net {
    let tensor = |values: &[f32]| Tensor::from_slice(values, [values.len()]).unwrap();
    let seen = Tensor::from_slice(&[scale as i64], [1]).unwrap();
    Net { layers: vec![tensor(&[scale, 2.0]), tensor(&[3.0])], seen: Buffer::new(&seen).unwrap() }
}

fn files(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn modules_come_back_with_buffers_and_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    let metadata = Metadata::from([("step".into(), "12".into()), ("key".into(), "0 7".into())]);
    save(&net(5.0), &path, &metadata).unwrap();
    assert_eq!(files(dir.path()), ["net.safetensors"]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(*checkpoint.metadata(), metadata);
    let mut names: Vec<&str> = checkpoint.names().collect();
    names.sort_unstable();
    assert_eq!(names, ["layers.0", "layers.1", "seen"]);
    let other = net(1.0);
    let back = checkpoint.restore(&other).unwrap();
    assert_eq!(back.layers[0].to_vec::<f32>().unwrap(), [5.0, 2.0]);
    assert_eq!(back.seen.tensor().item::<i64>().unwrap(), 5);
    assert_eq!(other.layers[0].to_vec::<f32>().unwrap(), [1.0, 2.0]);
    other.load_state_dict(&checkpoint.state_dict().unwrap()).unwrap();
    assert_eq!(other.layers[0].to_vec::<f32>().unwrap(), [5.0, 2.0]);
    assert_eq!(checkpoint.tensor("layers.1").unwrap().item::<f32>().unwrap(), 3.0);
    assert_eq!(*checkpoint.tensor("layers.2").unwrap_err().kind(), ErrorKind::Tree);
    save(&net(6.0).state_dict(), &path, &Metadata::new()).unwrap();
    let again = Checkpoint::open(&path).unwrap();
    assert_eq!(again.restore(&other).unwrap().layers[0].to_vec::<f32>().unwrap(), [6.0, 2.0]);
}

#[test]
fn dtypes_keep_their_bits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all");
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let halves = ([bf16::from_f32(0.1), bf16::NAN], [f16::from_f32(0.1), f16::NEG_INFINITY]);
    let tree = (
        (Tensor::from_slice(&halves.0, [2]).unwrap(), Tensor::from_slice(&halves.1, [2]).unwrap()),
        Tensor::from_slice(&[i64::MIN, i64::MAX, 0], [3, 1]).unwrap(),
        Tensor::from_slice(&[true, false, true], [3]).unwrap(),
        Tensor::from_slice(&[0.1f64], []).unwrap(),
        Tensor::from_slice(&[inf, nan, -0.0], [1, 3]).unwrap(),
        Tensor::from_slice::<u8>(&[], [0, 4]).unwrap(),
    );
    save(&tree, &path, &Metadata::new()).unwrap();
    let back = Checkpoint::open(&path).unwrap().restore(&tree).unwrap();
    let bits =
        |t: &Tensor| t.to_vec::<bf16>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&back.0.0), bits(&tree.0.0));
    assert_eq!(back.0.1.to_vec::<f16>().unwrap(), halves.1);
    assert_eq!(back.1.to_vec::<i64>().unwrap(), [i64::MIN, i64::MAX, 0]);
    assert_eq!(back.2.to_vec::<bool>().unwrap(), [true, false, true]);
    assert_eq!(back.3.item::<f64>().unwrap(), 0.1);
    let bits: Vec<u32> = back.4.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    assert_eq!(bits, [inf, nan, -0.0].map(f32::to_bits));
    assert_eq!(back.5.aval(), tree.5.aval());
    let one = Tensor::from_slice(&[7f32], [1]).unwrap();
    save(&one, &path, &Metadata::new()).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().restore(&one).unwrap().item::<f32>().unwrap(), 7.0);
}

#[test]
fn what_cannot_be_read_is_told_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net");
    let open = || Checkpoint::open(&path).unwrap_err();
    let missing = open();
    assert_eq!(*missing.kind(), ErrorKind::Io);
    assert!(missing.to_string().contains("is not there"), "{missing}");
    fs::write(&path, "PK no safetensors file, but a text that is long enough").unwrap();
    assert_eq!(*open().kind(), ErrorKind::Format);
    fs::write(&path, b"\x02\0\0\0\0\0\0\0[]").unwrap();
    assert!(open().text().contains("not in the safetensors format"), "{}", open());
    save(&net(1.0), &path, &Metadata::new()).unwrap();
    let whole = fs::read(&path).unwrap();
    for length in [0, 4, 8, 20, whole.len() - 5, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let error = open();
        assert_eq!(*error.kind(), ErrorKind::Format, "{length} bytes: {error}");
        assert!(error.text().contains("cut off"), "{length} bytes: {error}");
    }
    // Every flipped bit of the header gives an error or a checkpoint, never a panic.
    for bit in 0..whole.len().min(200) * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        if let Ok(checkpoint) = Checkpoint::open(&path) {
            drop(checkpoint.restore(&net(1.0)));
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net");
    let file = net(1.0);
    save(&file, &path, &Metadata::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let error = |layers: Vec<Tensor>| {
        let like = Net { layers, ..file.clone() };
        let error = checkpoint.restore(&like).unwrap_err();
        (error.kind().clone(), error.text().to_string())
    };
    let [a, b] = [&file.layers[0], &file.layers[1]];
    assert_eq!(
        error(vec![a.clone(), b.clone(), b.clone()]),
        (ErrorKind::Tree, "the file does not fit the tree: missing keys: `layers.2`".into())
    );
    assert_eq!(
        error(vec![a.clone()]),
        (ErrorKind::Tree, "the file does not fit the tree: unexpected keys: `layers.1`".into())
    );
    assert_eq!(
        error(vec![a.clone(), a.clone()]),
        (ErrorKind::Shape, "`layers.1` is f32[1] in the file, but f32[2] in the tree".into())
    );
    let double = Tensor::zeros([1], DType::F64).unwrap();
    assert_eq!(
        error(vec![a.clone(), double]),
        (ErrorKind::DType, "`layers.1` is f32[1] in the file, but f64[1] in the tree".into())
    );
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("no/such/folder/net");
    assert_eq!(*save(&net(1.0), &nowhere, &Metadata::new()).unwrap_err().kind(), ErrorKind::Io);
    // A folder cannot be replaced by a file: the last step fails, and cleans up behind it.
    let taken = dir.path().join("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("inside"), "kept").unwrap();
    assert_eq!(*save(&net(1.0), &taken, &Metadata::new()).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(files(dir.path()), ["taken"]);
    let path = dir.path().join("net");
    save(&net(1.0), &path, &Metadata::new()).unwrap();
    let twice = indexmap::IndexMap::from([
        ("a.0".to_string(), vec![]),
        ("a".to_string(), vec![Tensor::zeros([1], DType::F32).unwrap()]),
    ]);
    save(&twice, &path, &Metadata::new()).unwrap();
    let complex = Tensor::zeros([1], DType::C128).unwrap();
    assert_eq!(*save(&complex, &path, &Metadata::new()).unwrap_err().kind(), ErrorKind::DType);
    assert_eq!(Checkpoint::open(&path).unwrap().names().collect::<Vec<_>>(), ["a.0"]);
    let inside = jit(|x: &Tensor| save(x, &path, &Metadata::new()).map(|()| x.clone()));
    let x = Tensor::zeros([1], DType::F32).unwrap();
    assert_eq!(*inside.call(&x).unwrap_err().kind(), ErrorKind::NotConcrete);
}

#[derive(Clone, Debug, Module)]
struct Deep {
    first: Linear,
    norm: BatchNorm2d,
    last: Linear,
}

impl Deep {
    /// Dropout's draws come from `key`, a number that a resumed run has to know.
    fn loss(&self, x: &Tensor, key: &Key) -> Result<Tensor> {
        let y = self.norm.forward(&self.first.forward(x)?.unflatten(-1, [4, 4, 1])?)?;
        let y = y.relu()?.flatten(1, -1)?;
        let kept = key.fold_in(0)?.bernoulli(0.8, y.shape())?;
        self.last.forward(&(y / 0.8).where_(&kept, 0.0)?)?.sub(x)?.square()?.mean()
    }
}

#[derive(Debug, Tree)]
struct Run {
    model: Deep,
    opt: AdamW<Deep>,
    key: Key,
}

/// A run's first state; over a mesh each matrix is split by its rows.
fn run(mesh: Option<&Mesh>) -> Run {
    let init = &mut Init::seed(4);
    let model = Deep {
        first: Linear::new(8, 16, init).unwrap(),
        norm: BatchNorm2d::new(4, init).unwrap(),
        last: Linear::new(16, 8, init).unwrap(),
    };
    let opt = AdamW::new(&model, AdamWOptions::default()).unwrap();
    let run = Run { model, opt, key: Key::new(9).unwrap() };
    let Some(mesh) = mesh else { return run };
    let shard = |t: &Tensor| match t.dim() {
        2 if t.size(0)? > 2 => t.shard(mesh, spec!["model", None]),
        _ => t.shard(mesh, spec![]),
    };
    oxbridge::transforms::tree::tree_map(&run, shard).unwrap()
}

/// Takes the given steps, and gives the bits of their losses.
fn steps(mesh: Option<&Mesh>, mut run: Run, range: std::ops::Range<usize>) -> (Run, Vec<u32>) {
    let step = jit(|(run, x): &(Run, Tensor)| {
        let mut keys = Key::from_data(run.key.data()).split(2)?;
        let draw = keys.remove(1);
        let (loss, grads) = value_and_grad(|m: &Deep| m.loss(x, &draw))(&run.model)?;
        let (model, opt) = run.opt.update(&run.model, &grads)?;
        Ok((loss, Run { model, opt, key: keys.remove(0) }))
    });
    let step = step.donate([0]).out_like([None, Some(0)]);
    let schedule = Schedule::cosine(0.05, 0.0, 2, 8);
    let mut losses = Vec::new();
    for at in range {
        let x = Init::seed(at as u64).normal([8, 8], 0.0, 1.0).unwrap();
        let x = mesh.map_or(Ok(x.clone()), |mesh| x.shard(mesh, spec!["data"])).unwrap();
        run.opt = run.opt.with_lr(schedule.at(at));
        let (loss, next) = step.call((run, x)).unwrap();
        losses.push(loss.item::<f32>().unwrap().to_bits());
        run = next;
    }
    (run, losses)
}

#[test]
fn a_resumed_run_has_the_same_losses_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mesh = Mesh::new(&DEVICES, [("data", 4), ("model", 2)]).unwrap();
    for mesh in [None, Some(&mesh)] {
        let (_, whole) = steps(mesh, run(mesh), 0..8);
        let (half, first) = steps(mesh, run(mesh), 0..4);
        save(&half, &path, &Metadata::from([("step".into(), "4".into())])).unwrap();
        drop(half);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let from = checkpoint.metadata()["step"].parse().unwrap();
        let resumed = checkpoint.restore(&run(mesh)).unwrap();
        let before = resumed.model.norm.num_batches_tracked.tensor().item::<i64>().unwrap();
        assert_eq!((before, resumed.opt.step.item::<i64>().unwrap()), (4, 4));
        let (_, second) = steps(mesh, resumed, from..8);
        assert_eq!([first, second].concat(), whole);
        assert!(f32::from_bits(whole[7]) < f32::from_bits(whole[0]), "{whole:?}");
    }
}
