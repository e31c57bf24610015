//! What the structs are called in C and where their fields lie; which function takes which.

use crate::{
    PJRT_Api, api, buffer, client, device, error, event, executable, plugin, topology, transfer,
};

/// A struct of the C header.
///
/// # Safety
/// The type is `repr(C)`, and all-zero bytes are a valid value of it.
pub unsafe trait Struct: Copy {
    /// The name in C.
    const NAME: &'static str;
    /// The name in C and the offset of each field, in order.
    const FIELDS: &'static [(&'static str, usize)];

    /// The value whose bytes are all zero: null pointers, no sizes, no callbacks.
    #[inline]
    fn zeroed() -> Self {
        // SAFETY: the trait promises that all-zero bytes are a valid value.
        unsafe { std::mem::zeroed() }
    }
}

/// The argument struct of a function that gives back an error or null.
///
/// # Safety
/// The field of [`PJRT_Api`] at offset `SLOT` is an `Option` of an
/// `unsafe extern "C" fn(*mut Self) -> *mut PJRT_Error`, and the first field of `Self` is
/// `struct_size: usize`.
pub unsafe trait Function: Struct {
    /// The function's name in C.
    const FUNCTION: &'static str;
    /// Where its pointer lies in [`PJRT_Api`], in bytes.
    const SLOT: usize;
}

/// What is known of a struct: its C name, size and fields.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The name in C.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// The name in C and the offset of each field, in order.
    pub fields: &'static [(&'static str, usize)],
}

impl Layout {
    /// The layout of `T`.
    pub const fn of<T: Struct>() -> Layout {
        Layout { name: T::NAME, size: size_of::<T>(), fields: T::FIELDS }
    }
}

/// The layouts of all structs that are declared here.
pub fn layouts() -> impl Iterator<Item = Layout> {
    let structs = [
        api::STRUCTS,
        buffer::STRUCTS,
        client::STRUCTS,
        error::STRUCTS,
        executable::STRUCTS,
        plugin::STRUCTS,
        transfer::STRUCTS,
    ];
    let arguments = [
        buffer::ARGUMENTS,
        client::ARGUMENTS,
        device::ARGUMENTS,
        error::ARGUMENTS,
        event::ARGUMENTS,
        executable::ARGUMENTS,
        plugin::ARGUMENTS,
        topology::ARGUMENTS,
        transfer::ARGUMENTS,
    ];
    let table = std::iter::once(Layout::of::<PJRT_Api>());
    table.chain(structs.into_iter().chain(arguments).flatten().copied())
}

/// The codes of all C enums that are declared here, under their names in C.
pub fn codes() -> impl Iterator<Item = (&'static str, u32)> {
    [api::CODES, buffer::CODES, client::CODES, error::CODES, plugin::CODES, transfer::CODES]
        .into_iter()
        .flatten()
        .copied()
}
