//! PJRT plugins: finding and installing them, and what is kept on disk for them.

pub mod cache;
pub mod discover;
pub mod install;
pub mod options;
pub mod shardings;
