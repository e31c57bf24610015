//! Cases as data: each row is one call of an operation, and every engine goes over all rows.
//!
//! **To add a row** go to the family's file here and write one line:
//!
//! ```text
//! rows.push(Case::one("sin", [arg(F32, [2, 3])], |v| ops::sin(&v[0])));
//! ```
//!
//! that is: the primitive that the row is about, the operands, and the call. Then run the tests once
//! with `UPDATE_GOLDEN=1`, which writes the row's StableHLO to `tests/data/hlo/<family>.txt`, and read
//! the difference. A new family is a file here, one `mod` line and one entry of [`FAMILIES`].
//!
//! Operands are [`arg`] (uniform, reproducible; `.range(low, high)`), [`vals`] (given numbers),
//! [`exact`] (given Rust values) and [`edges`] (infinities, NaN, zeros of both signs, the ends of the
//! range). What a row needs to say beyond that: [`Case::many`] for several results, [`Case::tag`]
//! to tell rows with equal operands apart, [`Case::tol`] to widen the tolerance,
//! [`Case::no_grad`] for edge values and kinks, [`Case::no_second`] where the derivative has no
//! derivative. Each of the last three takes the reason.
//!
//! Rows of f32 and c64 are differentiated too: the engine gives them doubles.
//!
//! | engine | checks |
//! |---|---|
//! | `run::host_gives_what_infer_says` | the host's results have the inferred types |
//! | `run::jit_is_the_function` | `jit(f) = f` |
//! | `plugin::…` | host = PJRT, for each CPU plugin |
//! | `derivative::…` | `jvp`, `vjp` and second order against differences |
//! | `batch::…` | `vmap` = stacked calls; `grad` of `vmap` = `vmap` of `grad` |
//! | `golden::stablehlo` | the text of each row |
//! | `complete::…` | every primitive has a row |

#![expect(clippy::print_stdout, reason = "every failing row is printed")]
#![expect(unreachable_pub, reason = "the binary is one crate, `pub` reads as in the library")]

mod binary;
pub mod collective;
mod compare;
mod control;
mod conv;
mod convert;
mod create;
mod cumulative;
mod custom;
mod dot;
mod elementwise;
pub mod engine;
mod index;
mod linalg;
mod reduce;
mod rng;
mod scatter;
mod shape;
mod sharding;
mod slice;
mod sort;
mod window;

pub use engine::case::{Case, Operand, arg, edges, exact, vals};

/// A family: the file's name and what pushes its rows.
pub type Family = (&'static str, fn(&mut Vec<Case>));

/// All families.
pub const FAMILIES: &[Family] = &[
    ("binary", binary::rows),
    ("collective", collective::rows),
    ("compare", compare::rows),
    ("control", control::rows),
    ("conv", conv::rows),
    ("convert", convert::rows),
    ("create", create::rows),
    ("cumulative", cumulative::rows),
    ("custom", custom::rows),
    ("dot", dot::rows),
    ("elementwise", elementwise::rows),
    ("index", index::rows),
    ("linalg", linalg::rows),
    ("reduce", reduce::rows),
    ("rng", rng::rows),
    ("scatter", scatter::rows),
    ("shape", shape::rows),
    ("sharding", sharding::rows),
    ("slice", slice::rows),
    ("sort", sort::rows),
    ("window", window::rows),
];
