//! Rows of the random generator; its numbers have tests of their own against recorded ones.

use super::{Case, arg, edges};
use oxbridge::DType::*;
use oxbridge::ops::rng;

pub fn rows(rows: &mut Vec<Case>) {
    let apply = |v: &[oxbridge::Value]| {
        let (x, y) = rng::threefry2x32(&v[0], &v[1], &v[2], &v[3])?;
        Ok(vec![x, y])
    };
    let word = || arg(U32, [2, 3]).range(0.0, 4_294_967_295.0);
    rows.push(Case::many("threefry2x32", [word(), word(), word(), word()], apply));
    let edge = || edges(U32);
    rows.push(Case::many("threefry2x32", [edge(), edge(), edge(), edge()], apply).tag("edges"));
    for bits in [8, 16, 32, 64] {
        let key = arg(U32, [2]).range(0.0, 4_294_967_295.0);
        let row = Case::one("threefry2x32", [key], move |v| {
            rng::random_bits(&v[0], bits, &[3, 5].into())
        });
        rows.push(row.tag(format!("{bits} bits")));
    }
}
