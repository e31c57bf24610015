//! The implementations as tokens.

use crate::parts::{Kind, Part, Variant, mentions, variants};
use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{DeriveInput, Generics, Member, Result, TypeParam, parse_quote};

/// `Leaves` and `Tree`.
pub(crate) fn tree(input: &DeriveInput) -> Result<TokenStream> {
    let variants = variants(input, "Tree")?;
    Ok(tree_of(input, &variants))
}

/// `Leaves`, `Tree` and `Module`.
pub(crate) fn module(input: &DeriveInput) -> Result<TokenStream> {
    let variants = variants(input, "Module")?;
    let tree = tree_of(input, &variants);
    let arms = variants.iter().map(train_arm);
    let body = quote! {
        fn train(&self, __mode: bool) {
            let _ = __mode;
            match self { #(#arms)* }
        }
    };
    let module = implement(input, &variants, &quote!(::oxbridge::nn::Module), &body);
    Ok(quote!(#tree #module))
}

fn tree_of(input: &DeriveInput, variants: &[Variant]) -> TokenStream {
    let visits = variants.iter().map(visit_arm);
    let visit = quote! {
        fn visit<'__t>(
            &'__t self,
            __visitor: &mut dyn ::oxbridge::transforms::tree::Visitor<'__t>,
        ) {
            let _ = &__visitor;
            match self { #(#visits)* }
        }
    };
    let maps = variants.iter().map(map_arm);
    let map = quote! {
        fn map(
            &self,
            __f: &mut dyn ::core::ops::FnMut(&::oxbridge::Tensor) -> ::oxbridge::Result<::oxbridge::Tensor>,
        ) -> ::oxbridge::Result<Self> {
            let _ = &__f;
            ::core::result::Result::Ok(match self { #(#maps)* })
        }
    };
    let leaves = implement(input, variants, &quote!(::oxbridge::transforms::tree::Leaves), &visit);
    let tree = implement(input, variants, &quote!(::oxbridge::transforms::tree::Tree), &map);
    let nest = nest_of(input, variants);
    quote!(#leaves #tree #nest)
}

/// `Nest`: other trees stand by the paths of the tensors.
fn nest_of(input: &DeriveInput, variants: &[Variant]) -> TokenStream {
    let tree = quote!(::oxbridge::transforms::tree::Tree);
    let generics = bounded(&input.generics, variants, &tree);
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    let ident = &input.ident;
    let map = quote!(::oxbridge::transforms::nest::ByPath<__A>);
    quote! {
        #[automatically_derived]
        impl #impl_generics ::oxbridge::transforms::nest::Nest for #ident #ty_generics #where_clause {
            type Of<__A: #tree> = #map;

            fn nest<__A: #tree>(
                &self,
                __f: &mut dyn ::core::ops::FnMut(&::oxbridge::Tensor) -> ::oxbridge::Result<__A>,
            ) -> ::oxbridge::Result<#map> {
                ::oxbridge::transforms::nest::by_path(self, __f)
            }
        }
    }
}

/// `impl Trait for Type { body }`, with the bounds that the fields need.
fn implement(
    input: &DeriveInput,
    variants: &[Variant],
    name: &TokenStream,
    body: &TokenStream,
) -> TokenStream {
    let generics = bounded(&input.generics, variants, name);
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    let ident = &input.ident;
    quote! {
        #[automatically_derived]
        impl #impl_generics #name for #ident #ty_generics #where_clause { #body }
    }
}

/// As the standard derives do, the bounds go on the type's own parameters.
fn bounded(generics: &Generics, variants: &[Variant], name: &TokenStream) -> Generics {
    let mut generics = generics.clone();
    let used = |param: &TypeParam, kind: fn(Kind) -> bool| {
        let mut parts = variants.iter().flat_map(|v| &v.parts);
        parts.any(|p| kind(p.kind) && mentions(&p.ty, &param.ident))
    };
    for param in generics.type_params_mut() {
        if used(param, |kind| kind == Kind::Tree) {
            param.bounds.push(parse_quote!(#name));
        }
        if used(param, |kind| kind != Kind::Tree) {
            param.bounds.push(parse_quote!(::core::clone::Clone));
            param.bounds.push(parse_quote!(::core::fmt::Debug));
            param.bounds.push(parse_quote!(::core::hash::Hash));
        }
    }
    generics
}

fn visit_arm(variant: &Variant) -> TokenStream {
    let pattern = variant.pattern();
    let name = variant.name.as_ref().map(|name| fixed(&quote!(&#name)));
    let parts = variant.parts.iter().map(visit_part);
    quote!(#pattern => { #name #(#parts)* })
}

fn fixed(part: &TokenStream) -> TokenStream {
    quote!(::oxbridge::transforms::tree::Visitor::fixed(__visitor, #part);)
}

fn field(member: &Member, part: &TokenStream) -> TokenStream {
    let key = key(member);
    quote! {
        ::oxbridge::transforms::tree::Visitor::stated(
            __visitor,
            ::core::option::Option::Some(#key),
            #part,
        );
    }
}

fn visit_part(part: &Part) -> TokenStream {
    let binding = &part.binding;
    match part.kind {
        Kind::Static | Kind::Training => field(&part.member, &quote!(#binding)),
        Kind::StaticFloat => {
            let number = quote!(::oxbridge::transforms::tree::Number);
            field(&part.member, &quote!(&#number(::core::convert::Into::into(*#binding))))
        }
        Kind::Tree => {
            let key = key(&part.member);
            quote! {
                ::oxbridge::transforms::tree::Visitor::enter(__visitor, #key);
                ::oxbridge::transforms::tree::Leaves::visit(#binding, __visitor);
                ::oxbridge::transforms::tree::Visitor::exit(__visitor);
            }
        }
    }
}

fn key(member: &Member) -> TokenStream {
    match member {
        Member::Named(ident) => {
            let name = ident.unraw().to_string();
            quote!(::oxbridge::transforms::tree::Key::Name(#name))
        }
        Member::Unnamed(index) => {
            let i = index.index as usize;
            quote!(::oxbridge::transforms::tree::Key::Index(#i))
        }
    }
}

fn map_arm(variant: &Variant) -> TokenStream {
    let pattern = variant.pattern();
    let built = variant.with(variant.parts.iter().map(|part| {
        let binding = &part.binding;
        match part.kind {
            Kind::Tree => quote!(::oxbridge::transforms::tree::Tree::map(#binding, __f)?),
            _ => quote!(::core::clone::Clone::clone(#binding)),
        }
    }));
    quote!(#pattern => #built,)
}

fn train_arm(variant: &Variant) -> TokenStream {
    let pattern = variant.pattern();
    let parts = variant.parts.iter().map(|part| {
        let binding = &part.binding;
        match part.kind {
            Kind::Tree => quote!(::oxbridge::nn::Module::train(#binding, __mode);),
            Kind::Training => quote!(#binding.set(__mode);),
            Kind::Static | Kind::StaticFloat => quote!(let _ = #binding;),
        }
    });
    quote!(#pattern => { #(#parts)* })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(source: &str) -> String {
        let input: DeriveInput = syn::parse_str(source).expect("the source parses");
        module(&input).expect_err("the derive refuses it").to_string()
    }

    fn text(source: &str) -> String {
        let input: DeriveInput = syn::parse_str(source).expect("the source parses");
        module(&input).expect("the derive takes it").to_string()
    }

    #[test]
    fn what_is_refused_is_told_why() {
        let union = error("union U { a: u32, b: f32 }");
        assert!(union.contains("works on structs and enums, not on unions"), "{union}");
        let empty = error("enum E {}");
        assert!(empty.contains("at least one variant"), "{empty}");
        let unknown = error("struct S { #[tree(skip)] a: usize }");
        assert!(unknown.contains("write `#[tree(static)]`"), "{unknown}");
        let unknown = error("struct S { #[module(eval)] a: bool }");
        assert!(unknown.contains("write `#[module(training)]`"), "{unknown}");
        let typed = error("struct S { #[module(training)] a: usize }");
        assert!(typed.contains("a field of type `Guarded<bool>`"), "{typed}");
        let tree: DeriveInput = syn::parse_str("union U { a: u32 }").expect("parses");
        let tree = super::tree(&tree).expect_err("the derive refuses it").to_string();
        assert!(tree.contains("`#[derive(Tree)]`"), "{tree}");
    }

    #[test]
    fn bounds_go_where_a_parameter_is_used() {
        let text =
            text("struct S<T, U, V> { a: Vec<T>, #[tree(static)] b: U, #[tree(static)] c: fn(V) }");
        assert!(text.contains("T : :: oxbridge :: nn :: Module"), "{text}");
        assert!(!text.contains("U : :: oxbridge"), "{text}");
        assert!(text.contains("U : :: core :: clone :: Clone"), "{text}");
    }

    #[test]
    fn floats_are_compared_by_their_bits() {
        let text = text("struct S { #[tree(static)] p: f64 }");
        assert!(text.contains("tree :: Number"), "{text}");
    }
}
