//! Rows of what tells the compiler where values lie and in which order they are made.

use super::engine::case::device_id;
use super::{Case, arg};
use oxbridge::DType::*;
use oxbridge::{Mesh, NamedSharding, ops, spec};

pub fn rows(rows: &mut Vec<Case>) {
    for dtype in [F32, F64, I32, C64] {
        let row = Case::one("sharding_constraint", [arg(dtype, [2, 4])], |v| {
            let mesh = Mesh::from_ids(&[device_id()], &[("data", 1)])?;
            ops::sharding_constraint(&v[0], &NamedSharding::new(&mesh, spec!["data"])?)
        });
        rows.push(row);
        let operands = [arg(dtype, [2, 4]), arg(Bool, [4])];
        rows.push(Case::many("optimization_barrier", operands, |v| {
            Ok(ops::optimization_barrier(v)?.to_vec())
        }));
    }
}
