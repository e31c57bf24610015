//! PJRT plugins: finding and installing them, and what is kept on disk for them.

pub mod discover;
pub mod install;
pub mod options;
