//! What users of lazy and bridging libraries trip over, each a test of how it is here.
//!
//! [`programs`] counts what is compiled and run, [`state`] is about views, buffers, modes and random
//! numbers. Counters belong to a client, so each test has clients of its own.

mod programs;
mod state;

use oxbridge::backend::host::convert::convert;
use oxbridge::prelude::*;

/// The host backend and the CPU plugin, newly opened: nothing is compiled yet.
fn clients() -> [Client; 2] {
    [Client::host(1), Client::cpu(1).unwrap()]
}

fn on<T: oxbridge::Element>(client: &Client, values: &[T], shape: impl Into<Shape>) -> Tensor {
    let device = client.device(0).unwrap();
    Tensor::from_slice(values, shape).unwrap().to_device(&device).unwrap()
}

/// `n` numbers from 1 up, as f32.
fn numbers(client: &Client, n: usize) -> Tensor {
    on(client, &(1..=n).map(|i| i as f32).collect::<Vec<_>>(), [n])
}

/// The elements as doubles; no program is run for them.
fn list(tensor: &Tensor) -> Vec<f64> {
    let host = tensor.value().unwrap().array("list").unwrap().to_host().unwrap();
    convert(&host, DType::F64).to_vec().unwrap()
}

/// How many programs are made while `f` runs.
fn programs_of(client: &Client, f: impl FnOnce() -> Result<()>) -> u64 {
    let before = client.metrics();
    f().unwrap();
    client.metrics().since(&before).programs
}

/// Checks on a new client of each kind that `once` makes `expected` programs, and that each of
/// `variants` after it makes none.
#[track_caller]
fn one_program_for_all<V: Copy + std::fmt::Debug>(
    expected: u64,
    variants: &[V],
    f: impl Fn(&Client, V) -> Result<()>,
) {
    for client in clients() {
        let mut counts = variants.iter().map(|&v| programs_of(&client, || f(&client, v)));
        assert_eq!(counts.next(), Some(expected), "first, on {client:?}");
        for (count, variant) in counts.zip(&variants[1..]) {
            assert_eq!(count, 0, "{variant:?} on {client:?}");
        }
    }
}

/// Runs the named test of this binary in a process of its own, with more environment variables:
/// nobody else draws from the default generator there. Returns `true` there.
pub(crate) fn alone(name: &str, variables: &[(&str, &str)]) -> bool {
    const ALONE: &str = "OXBRIDGE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("1 passed"), "{text}");
    false
}
