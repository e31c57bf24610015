//! The PJRT edge against a real CPU plugin: upload, compile, run, serialise, fail.

use oxbridge::backend::host::HostArray;
use oxbridge::backend::pjrt::discover::find;
use oxbridge::backend::pjrt::options::CompileOptions;
use oxbridge::backend::pjrt::{AttrValue, Buffer, Client, Executable, Plugin};
use oxbridge::dtype::DType;
use oxbridge::error::{Error, ErrorKind};
use oxbridge::shape::Shape;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The plugin's file: the one named in the environment, or else an installed CPU plugin.
fn path() -> PathBuf {
    if let Some(path) = std::env::var_os("OXBRIDGE_TEST_PLUGIN") {
        return path.into();
    }
    let found = find(Some("cpu")).unwrap();
    found.expect("no PJRT plugin for CPU: run `oxbridge plugin install cpu`").path
}

fn plugin() -> Plugin {
    Plugin::load(&path()).unwrap()
}

/// Eight CPU devices, opened once for all tests.
pub(crate) fn client() -> Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    let eight = [("cpu_device_count".to_owned(), AttrValue::Int64(8))];
    CLIENT.get_or_init(|| Client::create(&plugin(), &eight).unwrap()).clone()
}

/// Options for one replica of `partitions` partitions, as exact as the crate asks for.
pub(crate) fn options(partitions: usize) -> Vec<u8> {
    CompileOptions { partitions, ..CompileOptions::default() }.exact_on("cpu").encode()
}

const ADD: &str = "module @add {
  func.func @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %z = stablehlo.add %x, %y : tensor<2x3xf32>
    return %z : tensor<2x3xf32>
  }
}";

fn f32s(values: &[f32], shape: impl Into<Shape>) -> HostArray {
    HostArray::from_slice(values, &shape.into()).unwrap()
}

fn add() -> (Client, Executable, Buffer) {
    let client = client();
    let add = client.compile(ADD, &options(1)).unwrap();
    let x = client.upload(f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]), 0).unwrap();
    (client, add, x)
}

fn one(executable: &Executable, args: &[&Buffer]) -> HostArray {
    executable.execute_one(args).unwrap()[0].download().unwrap()
}

/// Compiles a module's text and runs it on device 0.
pub(crate) fn run_text(text: &str, args: &[HostArray]) -> oxbridge::Result<Vec<HostArray>> {
    let client = client();
    let program = client.compile(text, &options(1))?;
    let buffers = args.iter().map(|x| client.upload(x.contiguous(), 0));
    let buffers: Vec<Buffer> = buffers.collect::<oxbridge::Result<_>>()?;
    let outs = program.execute_one(&buffers.iter().collect::<Vec<_>>())?;
    outs.iter().map(Buffer::download).collect()
}

#[test]
fn plugin_tells_of_itself() {
    let plugin = plugin();
    assert!(plugin.api_version().1 >= 54, "{plugin:?}");
    assert_eq!(plugin.path(), path().canonicalize().unwrap());
    let attributes = plugin.attributes().unwrap();
    let version = &attributes["stablehlo_current_version"];
    assert!(matches!(version, AttrValue::Int64List(v) if v.len() == 3), "{attributes:?}");
    assert!(plugin.has_extension(pjrt_sys::PJRT_Extension_Type::FFI), "{plugin:?}");
    assert!(plugin.has_extension(pjrt_sys::PJRT_Extension_Type::Layouts), "{plugin:?}");
}

#[test]
fn files_that_are_no_plugins() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    let library = folder.path().join("library.so");
    let cc = std::process::Command::new("cc")
        .args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(&library)
        .status();
    assert!(cc.unwrap().success(), "an empty shared library");
    let rows: [(&Path, &str); 3] = [
        (&folder.path().join("none.so"), "No such file"),
        (&text, "text.so"),
        (&library, "does not export `GetPjrtApi`"),
    ];
    for (path, reason) in rows {
        let error = Plugin::load(path).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Plugin, "{error}");
        assert!(error.text().contains(reason), "{error}");
        assert!(error.text().contains(path.file_name().unwrap().to_str().unwrap()), "{error}");
    }
}

#[test]
fn client_and_devices() {
    let client = client();
    assert_eq!(client.platform_name().to_lowercase(), "cpu");
    assert_eq!(client.process_index(), 0);
    assert_eq!(client.devices().len(), 8);
    for (i, device) in client.devices().iter().enumerate() {
        assert_eq!((device.index(), device.id()), (i, i as i32));
        assert!(!device.kind().is_empty() && !device.debug_text().is_empty(), "{device:?}");
    }
    let error = client.upload(f32s(&[1.0], [1]), 8).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Device, "{error}");
    let unknown = [("no_such_option".to_owned(), AttrValue::Bool(true))];
    if let Err(error) = Client::create(&plugin(), &unknown) {
        assert!(error.op().starts_with("PJRT_"), "{error}");
    }
}

#[test]
fn upload_and_download_each_dtype() {
    let client = client();
    for dtype in DType::ALL {
        for shape in [Shape::scalar(), [0, 3].into(), [2, 3, 4].into(), [33, 1024].into()] {
            let array = HostArray::build(dtype, &shape, |bytes| {
                for (i, byte) in bytes.iter_mut().enumerate() {
                    *byte = (i % if dtype == DType::Bool { 2 } else { 59 }) as u8;
                }
            });
            let buffer = client.upload(&array, 3).unwrap();
            assert_eq!(buffer.dtype().unwrap(), dtype);
            assert_eq!(buffer.shape().unwrap(), shape);
            assert_eq!(buffer.device().unwrap(), 3);
            let back = buffer.download().unwrap();
            assert_eq!(back.contiguous_bytes(), array.contiguous_bytes(), "{dtype}{shape}");
        }
    }
}

#[test]
fn views_are_uploaded_in_order() {
    let client = client();
    let values: Vec<f32> = (0..300 * 200).map(|i| i as f32).collect();
    let view = f32s(&values, [300, 200]).permute(&[1, 0]).reverse(&[0]);
    let buffer = client.upload(&view, 0).unwrap();
    let back = buffer.download().unwrap();
    assert_eq!(back.to_vec::<f32>().unwrap(), view.to_vec::<f32>().unwrap());
}

/// The compiler may choose any layout for a result; what is downloaded is row-major all the same.
#[test]
fn download_is_row_major() {
    let client = client();
    let text = "module @t {
      func.func @main(%x: tensor<2x3xf32>) -> (tensor<3x2xf32> {mhlo.layout_mode = \"{0,1}\"}) {
        %z = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
        return %z : tensor<3x2xf32>
      }
    }";
    let transpose = client.compile(text, &options(1)).unwrap();
    let x = client.upload(f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]), 0).unwrap();
    let y = one(&transpose, &[&x]);
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

/// A large upload on CPU uses the host array in place, and lets it go with the buffer.
#[test]
fn large_uploads_keep_their_bytes_alive() {
    let client = client();
    let values: Vec<f32> = (0..1 << 20).map(|i| i as f32).collect();
    let buffer = client.upload(f32s(&values, [1 << 20]), 0).unwrap();
    let copy = buffer.copy_to_device(5).unwrap();
    assert_eq!(copy.device().unwrap(), 5);
    assert_eq!(buffer.download().unwrap().to_vec::<f32>().unwrap(), values);
    drop(buffer);
    assert_eq!(copy.download().unwrap().to_vec::<f32>().unwrap(), values);
}

#[test]
fn add_runs_and_tells_of_itself() {
    let (client, add, x) = add();
    assert_eq!(one(&add, &[&x, &x]).to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    assert_eq!(add.name().unwrap(), "add");
    assert_eq!(add.num_outputs(), 1);
    assert_eq!(add.devices(), [0]);
    assert_eq!(add.output_dtypes().unwrap(), [DType::F32]);
    assert_eq!(add.output_shapes().unwrap(), [Shape::from([2, 3])]);
    let memory = add.memory_stats().unwrap();
    assert_eq!((memory.arguments, memory.outputs), (48, 24));
    let optimized = add.optimized_program().unwrap();
    assert!(!optimized.code.is_empty() && !optimized.format.is_empty(), "{optimized:?}");
    match add.cost_analysis() {
        Ok(costs) => assert_eq!(costs["flops"], AttrValue::Float(6.0)),
        Err(error) => assert_eq!(*error.kind(), ErrorKind::Backend { code: 12 }, "{error}"),
    }
    let again = client.deserialize(&add.serialize().unwrap()).unwrap();
    assert_eq!(one(&again, &[&x, &x]).to_vec::<f32>().unwrap()[5], 12.0);
    assert_eq!(again.output_shapes().unwrap(), [Shape::from([2, 3])]);
}

#[test]
fn eight_devices_in_one_process() {
    let client = client();
    let sharding = "{sdy.sharding = #sdy.sharding<@mesh, [{\"d\"}, {}]>}";
    let text = format!(
        "module @sum attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32}} {{
          sdy.mesh @mesh = <[\"d\"=8]>
          func.func @main(%x: tensor<8x2xf32> {sharding}) -> (tensor<8x2xf32> {sharding}, tensor<2xf32>) {{
            %zero = stablehlo.constant dense<0.0> : tensor<f32>
            %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
              : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32>
            %all = stablehlo.broadcast_in_dim %sum, dims = [1] : (tensor<2xf32>) -> tensor<8x2xf32>
            %y = stablehlo.subtract %x, %all : tensor<8x2xf32>
            return %y, %sum : tensor<8x2xf32>, tensor<2xf32>
          }}
        }}"
    );
    let program = client.compile(&text, &CompileOptions::spmd((0..8).collect()).encode()).unwrap();
    assert_eq!(program.devices(), [0, 1, 2, 3, 4, 5, 6, 7]);
    let shard = |i: usize| client.upload(f32s(&[i as f32, 1.0], [1, 2]), i).unwrap();
    let shards: Vec<Buffer> = (0..8).map(shard).collect();
    let lists: Vec<[&Buffer; 1]> = shards.iter().map(|shard| [shard]).collect();
    let lists: Vec<&[&Buffer]> = lists.iter().map(|list| &list[..]).collect();
    for _ in 0..3 {
        let outputs = program.execute(&lists, &[]).unwrap();
        for (i, list) in outputs.iter().enumerate() {
            let [y, sum] = [0, 1].map(|k| list[k].download().unwrap().to_vec::<f32>().unwrap());
            assert_eq!((y, sum), (vec![i as f32 - 28.0, -7.0], vec![28.0, 8.0]), "device {i}");
            assert_eq!(list[0].device().unwrap(), i);
        }
    }
    for error in [program.execute(&lists[1..], &[]).err(), program.execute_one(lists[0]).err()] {
        assert_eq!(error.as_ref().map(Error::kind), Some(&ErrorKind::Device), "{error:?}");
    }
}

#[test]
fn a_portable_program_runs_on_any_device() {
    let client = client();
    let portable = CompileOptions { portable: true, ..CompileOptions::default() }.encode();
    let add = client.compile(ADD, &portable).unwrap();
    for i in [6, 0] {
        let x = client.upload(f32s(&[1.0; 6], [2, 3]), i).unwrap();
        let y = &add.execute_on(i, &[&x, &x]).unwrap()[0];
        assert_eq!(y.device().unwrap(), i);
        assert_eq!(y.download().unwrap().to_vec::<f32>().unwrap(), [2.0; 6]);
    }
    let again = client.deserialize(&add.serialize().unwrap()).unwrap();
    let x = client.upload(f32s(&[1.0; 6], [2, 3]), 2).unwrap();
    assert_eq!(again.execute_on(2, &[&x, &x]).unwrap()[0].device().unwrap(), 2);
    assert_eq!(*again.execute_on(9, &[&x, &x]).unwrap_err().kind(), ErrorKind::Device);
}

#[test]
fn donation() {
    let client = client();
    let alias = "{tf.aliasing_output = 0 : i32}";
    for (attribute, size) in [(alias, 4), ("{jax.buffer_donor = true}", 4), (alias, 1 << 20)] {
        let text = format!(
            "module @inc {{
              func.func @main(%x: tensor<{size}xf32> {attribute}) -> tensor<{size}xf32> {{
                %y = stablehlo.add %x, %x : tensor<{size}xf32>
                return %y : tensor<{size}xf32>
              }}
            }}"
        );
        let double = client.compile(&text, &options(1)).unwrap();
        let host = f32s(&vec![1.5; size], [size]);
        let x = client.upload(&host, 0).unwrap();
        let kept = double.execute(&[&[&x]], &[0]).unwrap();
        assert_eq!(kept[0][0].download().unwrap().to_vec::<f32>().unwrap()[0], 3.0);
        assert!(!x.is_deleted().unwrap(), "not donatable: {attribute}");
        assert_eq!(one(&double, &[&x]).to_vec::<f32>().unwrap(), vec![3.0; size]);
        assert!(x.is_deleted().unwrap(), "donated: {attribute}");
        assert_eq!(host.to_vec::<f32>().unwrap(), vec![1.5; size], "host bytes stay");
        let error = double.execute_one(&[&x]).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Donated, "{error}");
        assert!(error.notes()[0].contains("PJRT_LoadedExecutable_Execute"), "{error}");
        assert!(x.download().is_err(), "a donated buffer has no contents");
    }
}

#[test]
fn a_deleted_buffer_is_an_error() {
    let (_, add, x) = add();
    x.delete().unwrap();
    assert!(x.is_deleted().unwrap());
    let error = add.execute_one(&[&x, &x]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Donated, "{error}");
    assert!(error.text().contains("operand 0"), "{error}");
    let error = x.download().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Backend { .. }), "{error}");
}

#[test]
fn wrong_programs_and_operands_are_errors() {
    let (client, add, x) = add();
    let error = client.compile("module { nonsense", &options(1)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Backend { .. }), "{error}");
    assert!(error.op() == "PJRT_Client_Compile", "{error}");
    let error = add.execute_one(&[&x]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Backend { .. }), "{error}");
    let other = Client::create(&plugin(), &[]).unwrap();
    let y = other.upload(f32s(&[0.0; 6], [2, 3]), 0).unwrap();
    let error = add.execute_one(&[&x, &y]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Device, "{error}");
    let small = client.upload(f32s(&[0.0; 2], [2]), 0).unwrap();
    let outcome = add.execute_one(&[&x, &small]).and_then(|out| out[0].download());
    assert!(outcome.is_err(), "an operand of another size was taken");
}

#[test]
fn corrupt_executables_are_errors() {
    let (client, add, _) = add();
    let bytes = add.serialize().unwrap();
    let mut rows = vec![b"nonsense".to_vec(), Vec::new(), bytes[..bytes.len() / 2].to_vec()];
    let mut flipped = bytes.clone();
    flipped[0] ^= 0xff;
    rows.push(flipped);
    for bytes in rows {
        let error = client.deserialize(&bytes).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Backend { .. }), "{error}");
        assert_eq!(error.op(), "PJRT_Executable_DeserializeAndLoad");
    }
}

#[test]
fn too_large_a_result_is_out_of_memory() {
    let client = client();
    let text = "module @huge {
      func.func @main(%x: tensor<f32>) -> tensor<1000000x10000000xf32> {
        %y = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> tensor<1000000x10000000xf32>
        return %y : tensor<1000000x10000000xf32>
      }
    }";
    let huge = client.compile(text, &options(1)).unwrap();
    let x = client.upload(f32s(&[1.0], Shape::scalar()), 0).unwrap();
    let outcome = huge.execute_one(&[&x]).and_then(|out| out[0].block());
    let error = outcome.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(error.text().contains("RESOURCE_EXHAUSTED (8)"), "{error}");
}

#[test]
fn events_call_back() {
    let (_, add, x) = add();
    let y = add.execute_one(&[&x, &x]).unwrap();
    let ready = y[0].ready().unwrap();
    let (send, receive) = mpsc::channel();
    ready.on_ready(move |result| send.send(result).unwrap()).unwrap();
    receive.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    ready.await_().unwrap();
    assert!(ready.is_ready().unwrap());
    ready.on_ready(|_| panic!("ends at the callback's edge")).unwrap();
}

#[test]
fn many_threads_share_one_program() {
    let (client, add, x) = add();
    let (add, x) = (Arc::new(add), Arc::new(x));
    let work = |k: usize| {
        let (client, add, x) = (client.clone(), add.clone(), x.clone());
        move || {
            for _ in 0..50 {
                let y = client.upload(f32s(&[k as f32; 6], [2, 3]), 0).unwrap();
                assert_eq!(one(&add, &[&x, &y]).to_vec::<f32>().unwrap()[0], 1.0 + k as f32);
            }
        }
    };
    let threads: Vec<_> = (0..4).map(|k| std::thread::spawn(work(k))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
