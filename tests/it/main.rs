//! The integration tests, in one binary: each process loads a large plugin.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod ops_a;
mod checkpoint;
mod derive;
mod optim;
mod pjrt;
mod primitives;
mod tensor;
mod transforms;
