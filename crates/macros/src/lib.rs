//! [`interface!`] makes stubs from WIT without a build script; [`package`] makes stubs from a
//! trait, and the trait's WIT.
//!
//! The work is done in `upcall-idl`; this crate only finds the text and turns errors into the
//! compiler's. A build script with `upcall_idl::build` gives the same code as `interface!`, in a
//! file that an editor can open. The examples need the runtime: the repository's crate
//! `upcall-tests` runs them.
#![forbid(unsafe_code)]

mod shared;

use proc_macro::TokenStream;
use quote::quote;
use std::path::{Path, PathBuf};
use syn::LitStr;

#[cfg_attr(not(doctest), doc = include_str!("../docs/interface.md"))]
#[proc_macro]
pub fn interface(input: TokenStream) -> TokenStream {
    let expanded = syn::parse::<LitStr>(input)
        .map_err(|e| {
            let usage =
                "interface! takes one string: the path of a .wit file or folder, or WIT text";
            syn::Error::new(e.span(), usage)
        })
        .and_then(|literal| {
            expand(&literal.value()).map_err(|message| syn::Error::new(literal.span(), message))
        });
    expanded.unwrap_or_else(|e| e.to_compile_error()).into()
}

#[cfg_attr(not(doctest), doc = include_str!("../docs/package.md"))]
#[proc_macro_attribute]
pub fn package(attribute: TokenStream, item: TokenStream) -> TokenStream {
    upcall_idl::written::expand(attribute.into(), item.into())
        .unwrap_or_else(|e| e.to_compile_error())
        .into()
}

#[cfg_attr(not(doctest), doc = include_str!("../docs/shared.md"))]
#[proc_macro_derive(Shared, attributes(shared))]
pub fn shared(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    shared::shared(&input).unwrap_or_else(|e| e.to_compile_error()).into()
}

/// Makes a struct or an enum a plain value, which is read and written as a whole in memory that
/// processes share: [`Shared`](macro@Shared).
///
/// Its fields must be plain, and it must be `Copy`. All zeros must be a valid value: for an enum,
/// that is the first variant.
#[proc_macro_derive(Plain, attributes(shared))]
pub fn plain(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    shared::plain(&input).unwrap_or_else(|e| e.to_compile_error()).into()
}

fn expand(given: &str) -> Result<proc_macro2::TokenStream, String> {
    let generated = if given.contains('{') {
        upcall_idl::generate_text("the text of interface!", given)
    } else {
        let root = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
        upcall_idl::generate(root.join(given))
    };
    let generated = generated.map_err(|e| e.to_string())?;
    let code: proc_macro2::TokenStream =
        generated.code.parse().map_err(|e| format!("{e} in generated code"))?;
    let files = generated.files.iter().map(|file| watched(file)).collect::<Result<Vec<_>, _>>()?;
    // The compiler watches included files. The bytes are not in the program.
    Ok(quote! { #code #( const _: &[u8] = ::core::include_bytes!(#files); )* })
}

fn watched(file: &Path) -> Result<String, String> {
    let absolute =
        std::path::absolute(file).map_err(|e| format!("cannot name {}: {e}", file.display()))?;
    absolute
        .into_os_string()
        .into_string()
        .map_err(|name| format!("the name of {name:?} is not UTF-8"))
}
