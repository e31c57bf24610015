//! The integration tests, in one binary: each process loads a large plugin.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod autograd;
mod callbacks;
mod cases;
mod check;
mod checkpoint;
mod control;
mod custom;
mod derivatives;
mod derive;
mod errors;
mod jit;
mod laws;
mod layers;
mod linalg;
mod mesh;
mod nans;
mod nn;
mod ops_a;
mod optim;
mod pitfalls;
mod pjrt;
mod primitives;
mod random;
mod remat;
mod residuals;
mod structure;
mod tensor;
mod transform_goldens;
mod transforms;
mod vmap;
