//! The primitives: strict functions over [`Value`]s, one family a file.
//!
//! A function here never promotes, broadcasts or wraps an axis: operands have equal dtypes and
//! shapes where an operation takes several, and axes are positions. `Tensor`'s methods do the rest
//! before they call. Each function is one [`bind`](crate::trace::bind) of its primitive.
//!
//! | module | family |
//! |---|---|
//! | [`elementwise`] | one operand: `sin`, `exp`, `neg`, … |
//! | [`binary`] | two operands: `add`, `mul`, `max`, `pow`, … |
//! | [`compare`] | `eq`, `lt`, …, `select`, `clamp` |
//! | [`mod@convert`] | `convert`, `bitcast` |
//! | [`create`] | no operand: `full`, `iota` |
//! | [`shape`] | `reshape`, `broadcast_in_dim`, `permute`, … |
//! | [`slice`](mod@slice) | `slice`, `pad`, `concatenate`, `reverse` |
//! | [`dynamic_slice`](mod@dynamic_slice) | slices whose place is data |
//! | [`reduce`] | `reduce_sum` and its like, `argmax` |
//! | [`cumulative`] | `cumsum` and its like |
//! | [`dot`] | `dot_general` |
//! | [`linalg`], [`lu`](mod@lu) | `cholesky`, `triangular_solve`, `lu`, `solve` |
//! | [`sort`](mod@sort) | `sort`, `argsort`, `top_k` |
//! | [`conv`] | `conv_general` |
//! | [`index`] | `gather`, `take`, `take_along_axis` |
//! | [`scatter`](mod@scatter) | `scatter`, `scatter_along_axis` |
//! | [`rng`] | `threefry2x32`, keys, random bits |
//! | [`distributions`] | `uniform`, `normal`, `randint`, … |
//! | [`window`] | `reduce_window_sum`, …, `select_and_scatter_add` |
//! | [`sharding`] | `sharding_constraint`, `optimization_barrier` |
//! | [`mod@cond`], [`mod@while_loop`], [`mod@scan`] | control flow; [`region`] is what they share |
//! | [`custom`] | functions whose derivative is given |
//! | [`collective`] | `psum`, `all_gather`, … over the examples of a named `vmap` |
//! | [`checkpoint`](mod@checkpoint) | calls whose values are worked out again, `checkpoint_name` |
//! | [`callback`] | `debug_callback` |
//! | [`call`] | a graph as one operation, and [`call::fused`] |

pub mod binary;
pub mod call;
pub mod callback;
pub mod checkpoint;
pub mod collective;
pub mod compare;
pub mod cond;
pub mod conv;
pub mod convert;
pub mod create;
pub mod cumulative;
pub mod custom;
pub mod distributions;
pub mod dot;
pub mod dynamic_slice;
pub mod elementwise;
pub mod index;
pub mod linalg;
pub mod lu;
pub mod precision;
pub mod reduce;
pub mod region;
mod residuals;
pub mod rng;
pub mod scan;
pub mod scatter;
pub mod shape;
pub mod sharding;
pub mod slice;
pub mod sort;
pub mod while_loop;
pub mod window;

pub use binary::*;
pub use callback::*;
pub use compare::*;
pub use cond::*;
pub use conv::*;
pub use convert::*;
pub use create::*;
pub use cumulative::*;
pub use dot::*;
pub use dynamic_slice::*;
pub use elementwise::*;
pub use index::*;
pub use linalg::*;
pub use lu::*;
pub use reduce::*;
pub use scan::*;
pub use scatter::*;
pub use shape::*;
pub use sharding::*;
pub use slice::*;
pub use sort::*;
pub use while_loop::*;
pub use window::*;

use crate::aval::Aval;
use crate::error::{Error, ErrorKind};
use crate::trace::Value;
use crate::trace::linear::Arithmetic;

/// What the interpreters need of the operations.
pub const ARITHMETIC: Arithmetic = Arithmetic { add, zeros };

/// The error of operands that should have one dtype and one shape.
#[cold]
pub(crate) fn mismatch(op: &'static str, lhs: &Aval, rhs: &Aval) -> Error {
    if lhs.dtype() != rhs.dtype() {
        let (a, b) = (lhs.dtype(), rhs.dtype());
        let text = format!("lhs is {a} and rhs is {b}; `ops` does not promote");
        return Error::new(ErrorKind::DType, op, text)
            .help(format!("use the `Tensor` method, or convert one operand to {a} or {b}"));
    }
    let text = format!("lhs {lhs} and rhs {rhs} differ in shape; `ops` does not broadcast");
    Error::new(ErrorKind::Shape, op, text)
        .help("use the `Tensor` method, or `ops::broadcast_in_dim`")
}

/// The error of a dtype that an operation does not take.
#[cold]
pub(crate) fn bad_dtype(op: &'static str, aval: &Aval, takes: &str) -> Error {
    Error::new(ErrorKind::DType, op, format!("takes {takes}, not {aval}"))
}

/// The one operand and its mapped axis: how the batch rules of one operand begin.
pub(crate) fn mapped<'v>(operands: &'v [Value], axes: &[Option<usize>]) -> (&'v Value, usize) {
    (&operands[0], axes[0].unwrap_or(0))
}
