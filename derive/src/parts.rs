//! What a type consists of: its variants, their fields, and what each field is to a tree.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Data, DeriveInput, Error, Field, Fields, GenericArgument, Ident, Member, PathArguments, Result,
    Type,
};

/// What a field is to a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A tree itself.
    Tree,
    /// A part of the structure.
    Static,
    /// A static `f32` or `f64`, which is compared by its bits.
    StaticFloat,
    /// A `Guarded<bool>` that `Module::train` sets.
    Training,
}

/// A field.
pub(crate) struct Part {
    pub(crate) member: Member,
    /// The name it is bound to in a pattern.
    pub(crate) binding: Ident,
    pub(crate) ty: Type,
    pub(crate) kind: Kind,
}

/// A struct, or one variant of an enum.
pub(crate) struct Variant {
    /// `Self` or `Self::Name`.
    pub(crate) path: TokenStream,
    /// The variant's name; none for a struct.
    pub(crate) name: Option<String>,
    pub(crate) parts: Vec<Part>,
}

impl Variant {
    /// The pattern that binds each field, and the expression that builds the type from `values`.
    pub(crate) fn with<T: ToTokens>(&self, values: impl IntoIterator<Item = T>) -> TokenStream {
        let path = &self.path;
        let members = self.parts.iter().map(|p| &p.member);
        let values = values.into_iter();
        quote!(#path { #(#members: #values),* })
    }

    /// The pattern that binds each field to its name here.
    pub(crate) fn pattern(&self) -> TokenStream {
        self.with(self.parts.iter().map(|p| &p.binding))
    }
}

/// The variants of a type; a struct is its only one.
pub(crate) fn variants(input: &DeriveInput, derive: &str) -> Result<Vec<Variant>> {
    match &input.data {
        Data::Struct(data) => {
            Ok(vec![Variant { path: quote!(Self), name: None, parts: parts(&data.fields)? }])
        }
        Data::Enum(data) if data.variants.is_empty() => {
            let text = format!(
                "`#[derive({derive})]` needs at least one variant: an empty enum has no values"
            );
            Err(Error::new(input.ident.span(), text))
        }
        Data::Enum(data) => data.variants.iter().map(variant).collect(),
        Data::Union(data) => {
            let text = format!(
                "`#[derive({derive})]` works on structs and enums, not on unions: which field of a \
                 union is the live one cannot be known"
            );
            Err(Error::new(data.union_token.span, text))
        }
    }
}

fn variant(variant: &syn::Variant) -> Result<Variant> {
    let ident = &variant.ident;
    Ok(Variant {
        path: quote!(Self::#ident),
        name: Some(ident.unraw().to_string()),
        parts: parts(&variant.fields)?,
    })
}

fn parts(fields: &Fields) -> Result<Vec<Part>> {
    let part = |(i, field): (usize, &Field)| {
        let member = match &field.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::Unnamed(i.into()),
        };
        let binding = format_ident!("__field{i}", span = Span::mixed_site());
        Ok(Part { member, binding, ty: field.ty.clone(), kind: kind(field)? })
    };
    fields.iter().enumerate().map(part).collect()
}

fn kind(field: &Field) -> Result<Kind> {
    let mut kind = Kind::Tree;
    for attribute in &field.attrs {
        if attribute.path().is_ident("tree") {
            attribute.parse_nested_meta(|meta| {
                if !meta.path.is_ident("static") {
                    return Err(
                        meta.error("unknown attribute of a tree's field: write `#[tree(static)]`")
                    );
                }
                if kind == Kind::Tree {
                    kind = if is_float(&field.ty) { Kind::StaticFloat } else { Kind::Static };
                }
                Ok(())
            })?;
        } else if attribute.path().is_ident("module") {
            attribute.parse_nested_meta(|meta| {
                if !meta.path.is_ident("training") {
                    return Err(meta.error(
                        "unknown attribute of a module's field: write `#[module(training)]`",
                    ));
                }
                kind = Kind::Training;
                Ok(())
            })?;
            if !is_guarded_bool(&field.ty) {
                let text = "`#[module(training)]` stands on a field of type `Guarded<bool>`, which `Module::train` sets";
                return Err(Error::new(field.ty.span(), text));
            }
        }
    }
    Ok(kind)
}

fn is_float(ty: &Type) -> bool {
    is_path(ty, &["f32", "f64"])
}

fn is_guarded_bool(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    path.path.segments.last().is_some_and(|last| {
        last.ident == "Guarded"
            && matches!(&last.arguments, PathArguments::AngleBracketed(list)
                if matches!(list.args.first(), Some(GenericArgument::Type(ty)) if is_path(ty, &["bool"])))
    })
}

fn is_path(ty: &Type, names: &[&str]) -> bool {
    matches!(ty, Type::Path(path) if names.iter().any(|name| path.path.is_ident(name)))
}

/// Whether a type speaks of the type parameter `param`.
pub(crate) fn mentions(ty: &Type, param: &Ident) -> bool {
    fn search(tokens: TokenStream, param: &Ident) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(ident) => ident == *param,
            TokenTree::Group(group) => search(group.stream(), param),
            _ => false,
        })
    }
    search(ty.to_token_stream(), param)
}
