//! Derive macros of oxbridge.
