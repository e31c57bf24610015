//! The PJRT C ABI.
