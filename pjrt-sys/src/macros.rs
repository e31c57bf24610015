//! How the declarations are written: structs, unions, functions with their arguments, codes, and
//! the table. Each macro also lists what it declared, for the layout test.

/// `name` as C spells it: without the underscore that keeps a field off a Rust keyword.
pub(crate) const fn c_name(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [rest @ .., b'_'] => match std::str::from_utf8(rest) {
            Ok(rest) => rest,
            Err(_) => name,
        },
        _ => name,
    }
}

/// Declares structs; `field as name` is a field that C calls `name`.
macro_rules! structs {
    ($($(#[$meta:meta])* $name:ident {
        $($field:ident $(as $c_name:ident)?: $ty:ty),* $(,)?
    })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $name { $(pub $field: $ty),* }

            // SAFETY: `repr(C)`; pointers, numbers, `bool` and `Option` of functions may be zero.
            unsafe impl $crate::Struct for $name {
                const NAME: &'static str = stringify!($name);
                const FIELDS: &'static [(&'static str, usize)] = &[
                    $((structs!(@ $field $($c_name)?), std::mem::offset_of!($name, $field))),*
                ];
            }
        )*
        /// The structs of this module, but for the arguments of functions.
        pub(crate) const STRUCTS: &[$crate::Layout] = &[$($crate::Layout::of::<$name>()),*];
    };
    (@ $field:ident) => { $crate::macros::c_name(stringify!($field)) };
    (@ $field:ident $c_name:ident) => { stringify!($c_name) };
}

/// Declares a union, which C leaves without a name.
macro_rules! unions {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub union $name { $(pub $field: $ty),* }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

/// Declares functions of the table by their argument structs, which all begin with
/// `struct_size` and `extension_start`.
macro_rules! functions {
    ($($(#[$meta:meta])* $function:ident($args:ident) {
        $($field:ident: $ty:ty),* $(,)?
    })*) => {
        $(
            $(#[$meta])*
            pub type $function = unsafe extern "C" fn(args: *mut $args) -> *mut $crate::PJRT_Error;

            #[doc = concat!("Arguments of [`", stringify!($function), "`].")]
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $args {
                pub struct_size: usize,
                pub extension_start: *mut $crate::PJRT_Extension_Base,
                $(pub $field: $ty),*
            }

            // SAFETY: `repr(C)`; pointers, numbers, `bool` and `Option` of functions may be zero.
            unsafe impl $crate::Struct for $args {
                const NAME: &'static str = stringify!($args);
                const FIELDS: &'static [(&'static str, usize)] = &[
                    ("struct_size", std::mem::offset_of!($args, struct_size)),
                    ("extension_start", std::mem::offset_of!($args, extension_start)),
                    $((
                        $crate::macros::c_name(stringify!($field)),
                        std::mem::offset_of!($args, $field),
                    )),*
                ];
            }

            // SAFETY: the field of the table has the function's own type, declared above.
            unsafe impl $crate::Function for $args {
                const FUNCTION: &'static str = stringify!($function);
                const SLOT: usize = std::mem::offset_of!($crate::PJRT_Api, $function);
            }
        )*
        /// The arguments of the functions of this module.
        pub(crate) const ARGUMENTS: &[$crate::Layout] = &[$($crate::Layout::of::<$args>()),*];
    };
}

/// Declares C enums as numbers with names: a newer plugin may send one that is not listed.
macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident($prefix:literal) {
        $($code:ident = $value:literal),* $(,)?
    })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            #[repr(transparent)]
            pub struct $name(pub $crate::c_uint);

            impl $name {
                $(pub const $code: $name = $name($value);)*

                /// The code's name, without the prefix that C puts before it.
                pub const fn name(self) -> Option<&'static str> {
                    match self.0 {
                        $($value => Some(stringify!($code)),)*
                        _ => None,
                    }
                }
            }
        )*
        /// The codes of this module, under their names in C.
        pub(crate) const CODES: &[(&str, $crate::c_uint)] =
            &[$($((concat!($prefix, stringify!($code)), $value)),*),*];
    };
}

/// Declares types that only the plugin can look into.
macro_rules! opaque {
    ($($(#[$meta:meta])* $name:ident)*) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        #[repr(C)]
        pub struct $name {
            _opaque: [u8; 0],
            _neither_send_nor_sync_nor_unpin: std::marker::PhantomData<(*mut u8, std::marker::PhantomPinned)>,
        }
    )*};
}

/// Declares the table of functions, each field named and typed after its function.
macro_rules! table {
    ($($function:ident,)*) => {
        /// The table of functions; only its first `struct_size` bytes exist.
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct PJRT_Api {
            pub struct_size: usize,
            pub extension_start: *mut PJRT_Extension_Base,
            pub pjrt_api_version: PJRT_Api_Version,
            $(pub $function: Option<$function>),*
        }

        // SAFETY: `repr(C)`; pointers, numbers and `Option` of functions may be zero.
        unsafe impl $crate::Struct for PJRT_Api {
            const NAME: &'static str = "PJRT_Api";
            const FIELDS: &'static [(&'static str, usize)] = &[
                ("struct_size", std::mem::offset_of!(PJRT_Api, struct_size)),
                ("extension_start", std::mem::offset_of!(PJRT_Api, extension_start)),
                ("pjrt_api_version", std::mem::offset_of!(PJRT_Api, pjrt_api_version)),
                $((stringify!($function), std::mem::offset_of!(PJRT_Api, $function))),*
            ];
        }
    };
}
