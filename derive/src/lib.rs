//! Derive macros of oxbridge.
//!
//! `#[derive(Tree)]` makes a struct or an enum a tree of tensors: its fields are visited in order,
//! each under its name. `#[derive(Module)]` does that and adds what layers have: torch's
//! state-dict names and the switch between training and evaluation.
//!
//! | attribute of a field | the field is |
//! |---|---|
//! | none | a tree itself: a tensor, a layer, a `Vec` of layers, … |
//! | `#[tree(static)]` | a part of the structure: compared, cloned, never traced |
//! | `#[module(training)]` | a static `bool` that `Module::train` sets |

mod expand;
mod parts;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

/// Implements `oxbridge::transforms::Tree` (with `Leaves` and `Nest`) for a struct or an enum.
///
/// Fields are visited in order, each under its name or place; the variant of an enum is a static
/// part. A `#[tree(static)]` field needs `Clone`, `Debug` and `Hash` (`f32` and `f64` count by their
/// bits); every other field must be a tree.
#[proc_macro_derive(Tree, attributes(tree))]
pub fn derive_tree(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::tree(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Implements `oxbridge::nn::Module` for a struct or an enum, and the `Tree` that it stands on; do
/// not derive `Tree` beside it.
///
/// `Module::train` goes to every field that is not static, and sets a `#[module(training)]` field,
/// which is a `Guarded<bool>`.
#[proc_macro_derive(Module, attributes(tree, module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::module(&input).unwrap_or_else(Error::into_compile_error).into()
}
