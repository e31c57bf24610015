//! The plugin itself: setup, attributes, and the pairs of names and values used all over.

use crate::*;

unions! {
    /// The value of a [`PJRT_NamedValue`]; its `type_` says which member is set.
    PJRT_NamedValue_Value {
        string_value: *const c_char,
        int64_value: i64,
        int64_array_value: *const i64,
        float_value: f32,
        bool_value: bool,
    }
}

codes! {
    /// Which member of a named value is set.
    PJRT_NamedValue_Type("PJRT_NamedValue_") {
        kString = 0,
        kInt64 = 1,
        kInt64List = 2,
        kFloat = 3,
        kBool = 4,
    }
}

structs! {
    /// A name and a value; `value_size` counts the bytes of a string or the elements of a list.
    PJRT_NamedValue {
        struct_size: usize,
        extension_start: *mut PJRT_Extension_Base,
        name: *const c_char,
        name_size: usize,
        type_: PJRT_NamedValue_Type,
        value as string_value: PJRT_NamedValue_Value,
        value_size: usize,
    }
}

functions! {
    /// One-time setup of the plugin; to be called before all else.
    PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args) {}

    /// Gives the plugin's own key-value pairs, for example `stablehlo_current_version`.
    PJRT_Plugin_Attributes(PJRT_Plugin_Attributes_Args) {
        attributes: *const PJRT_NamedValue,
        num_attributes: usize,
    }
}
