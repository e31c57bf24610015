//! The plain engines: the host, and `jit`.

use super::case::{Case, place, read};
use super::{compare, each};
use oxbridge::trace::Value;
use oxbridge::trace::graph::Graph;
use oxbridge::transforms::jit::make_graph;
use oxbridge::{Tensor, jit};
use std::sync::Arc;

/// An error as the text of a failing row.
pub fn say(error: oxbridge::Error) -> String {
    error.to_string()
}

/// The row's call as a function of tensors.
pub fn function(case: &Case) -> impl Fn(&Vec<Tensor>) -> oxbridge::Result<Vec<Tensor>> + Clone {
    let apply = Arc::clone(&case.apply);
    move |tensors: &Vec<Tensor>| {
        let values = tensors.iter().map(Tensor::value).collect::<oxbridge::Result<Vec<_>>>()?;
        Ok(apply(&values)?.into_iter().map(Tensor::from_value).collect())
    }
}

/// Tensors of the given values.
pub fn tensors(values: impl IntoIterator<Item = Value>) -> Vec<Tensor> {
    values.into_iter().map(Tensor::from_value).collect()
}

/// The row's graph, without running it.
pub fn graph(case: &Case) -> oxbridge::Result<Arc<Graph>> {
    let values = case.data(0).iter().map(place).collect::<oxbridge::Result<Vec<_>>>()?;
    make_graph(function(case))(&tensors(values))
}

#[test]
fn host_gives_what_infer_says() {
    each("host", |case| {
        let graph = graph(case).map_err(say)?;
        graph.check().map_err(say)?;
        let outs = case.run(&case.data(0)).map_err(say)?;
        let came: Vec<String> =
            outs.iter().map(|out| format!("{}{}", out.dtype(), out.shape())).collect();
        let says: Vec<String> = graph
            .out_avals()
            .iter()
            .map(|aval| format!("{}{}", aval.dtype(), aval.shape()))
            .collect();
        if came != says {
            return Err(format!("{came:?} came out, but infer says {says:?}"));
        }
        Ok(true)
    });
}

#[test]
fn jit_is_the_function() {
    each("jit", |case| {
        let data = case.data(0);
        let want = case.run(&data).map_err(say)?;
        let values = data.iter().map(place).collect::<oxbridge::Result<Vec<_>>>().map_err(say)?;
        let outs = jit(function(case)).call(tensors(values)).map_err(say)?;
        let got = outs.iter().map(|t| read(&t.value()?)).collect::<oxbridge::Result<Vec<_>>>();
        compare::all(&got.map_err(say)?, &want, 1.0)?;
        Ok(true)
    });
}
