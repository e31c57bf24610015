//! Host = PJRT: each row's StableHLO on each of the CPU plugins that the tests know.

use super::case::Case;
use super::golden::module;
use super::run::say;
use super::{compare, each};
use oxbridge::backend::host::HostArray;
use oxbridge::backend::pjrt::discover::find;
use oxbridge::backend::pjrt::options::CompileOptions;
use oxbridge::backend::pjrt::{Client, Plugin};

fn client(name: &str, install: &str) -> Client {
    let found = find(Some(name)).unwrap_or_else(|error| panic!("{error}"));
    let found = found.unwrap_or_else(|| {
        panic!("no PJRT plugin `{name}`: run `oxbridge plugin install {install}`")
    });
    Client::create(&Plugin::load(&found.path).unwrap(), &[]).unwrap()
}

fn run(client: &Client, case: &Case, data: &[HostArray]) -> oxbridge::Result<Vec<HostArray>> {
    let text =
        module(case).map_err(|e| oxbridge::Error::new(oxbridge::ErrorKind::Format, "lower", e))?;
    let program = client.compile(&text, &CompileOptions::default().encode())?;
    let inputs = data.iter().map(|x| client.upload(x, 0)).collect::<oxbridge::Result<Vec<_>>>()?;
    let outs = program.execute_one(&inputs.iter().collect::<Vec<_>>())?;
    outs.iter().map(|out| out.download()).collect()
}

fn host_is(name: &str, install: &str) {
    let client = client(name, install);
    each(name, |case| {
        let data = case.data(0);
        let want = case.run(&data).map_err(say)?;
        let got = run(&client, case, &data).map_err(say)?;
        compare::all(&got, &want, case.tol)?;
        Ok(true)
    });
}

#[test]
fn host_is_pjrt() {
    host_is("cpu", "cpu");
}

#[test]
fn host_is_pjrt_fastatomstruct() {
    host_is("cpu-fastatomstruct", "all-cpu");
}

#[test]
fn host_is_pjrt_lammps() {
    host_is("cpu-lammps", "all-cpu");
}
