//! The integration tests, in one binary: each process loads a large plugin.
