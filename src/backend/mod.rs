//! Where programs run: the host backend and PJRT plugins behind one set of types.

pub mod host;
pub mod pjrt;
