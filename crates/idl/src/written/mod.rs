//! Interfaces that are written in Rust: a module with one trait in it is converted to WIT, and then
//! compiled like all WIT.
//!
//! The types and traits in the module stay as they are; the trait is what a server implements. This
//! code makes the WIT text, has it parsed and checked like any other, and lets the Rust generator
//! write what is missing. So there is one compiler, and the text that C, Python and `upcall call`
//! get means the same, because the Rust stubs are made from it too.
//!
//! A macro sees the text of one item and no types. So an interface's module must contain everything
//! that the interface is made of. Names of types from elsewhere are refused, and so is everything
//! that WIT cannot express, each at its place and with what to write instead. Names must be the
//! Rust form of the names in WIT (`NotFound` for `not-found`), since the generated code finds
//! fields and cases by them.
//!
//! `module.rs` reads the items and writes the WIT, `types.rs` converts the types, and `text.rs`
//! remembers the place in Rust of each line, so that errors of the parser and of later checks are
//! reported at that place too.

mod module;
mod text;
mod types;

use crate::error::{Error, Location};
use crate::limits::LimitsFile;
use crate::model::Model;
use crate::{parse, rust};
use module::ModuleReader;
use proc_macro2::TokenStream;
use quote::quote;
use std::path::Path;
use syn::{Item, LitStr};
use text::SpannedText;

/// One interface, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// Its name in WIT.
    pub interface: String,
    /// The WIT text of its package.
    pub wit: String,
    /// The limits, which belong in the TOML file beside it; empty if there are none.
    pub limits: String,
}

/// Expands the attribute `package` to `item`, a module or a trait, with the stubs. `package` is the
/// attribute's argument, a literal.
///
/// # Errors
/// Everything that is refused, each at its place.
pub fn expand(package: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let written = AnnotatedItem::read(&syn::parse2(package).map_err(usage)?, syn::parse2(item)?)?;
    let model = written.model()?;
    let code =
        rust::complete(&model, &written.reading.written).map_err(|error| written.place(&error))?;
    let code: TokenStream =
        code.parse().map_err(|e| syn::Error::new(proc_macro2::Span::call_site(), e))?;
    let (wit, limits) = (&written.reading.wit.text, &written.reading.limits.text);
    let stubs = quote! {
        #code
        /// The interface as WIT: what stubs for other languages are generated from.
        pub const WIT: &str = #wit;
        /// The limits, as they stand in the TOML file beside the WIT.
        pub const LIMITS: &str = #limits;
    };
    let allow = quote! {
        #[allow(
            missing_docs, dead_code, unused_imports, private_bounds, private_interfaces,
            clippy::all, clippy::pedantic
        )]
    };
    Ok(match written.item {
        Item::Mod(mut module) => {
            let stubs = quote! {
                #allow mod stubs_ { use super::*; #stubs }
                #[allow(unused_imports)] pub use stubs_::*;
            };
            module.content.get_or_insert_default().1.push(Item::Verbatim(stubs));
            quote! { #module }
        }
        Item::Trait(server) => {
            let (visible, name) = (&server.vis, &server.ident);
            let mut module: syn::Ident =
                syn::parse_str(&rust::names::snake(&written.reading.interface))?;
            module.set_span(name.span());
            let docs = format!("The stubs of [`{name}`].");
            quote! {
                #server
                #[doc = #docs] #allow #visible mod #module { pub use super::#name; #stubs }
            }
        }
        other => quote! { #other },
    })
}

/// Reads the interfaces that are written in a Rust file: every module and trait in it with the
/// attribute `package`.
///
/// # Errors
/// The first item that is refused, or a syntax error if the file is not Rust.
pub fn emit(file: impl AsRef<Path>) -> Result<Vec<Emitted>, Error> {
    let path = file.as_ref();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::file("read", path, &e, "name a Rust file"))?;
    let tell = |error: syn::Error| {
        let start = error.span().start();
        let at = Location {
            file: path.display().to_string(),
            line: start.line as u32,
            column: start.column as u32 + 1,
        };
        Error::Wit { at, message: error.to_string() }
    };
    let mut found = Vec::new();
    emit_items(syn::parse_file(&text).map_err(tell)?.items, &mut found).map_err(tell)?;
    Ok(found)
}

fn emit_items(items: Vec<Item>, found: &mut Vec<Emitted>) -> syn::Result<()> {
    for mut item in items {
        let attributes = match &mut item {
            Item::Mod(module) => &mut module.attrs,
            Item::Trait(server) => &mut server.attrs,
            _ => continue,
        };
        let is_it =
            |a: &syn::Attribute| a.path().segments.last().is_some_and(|s| s.ident == "package");
        if let Some(at) = attributes.iter().position(is_it) {
            let package: LitStr = attributes.remove(at).parse_args().map_err(usage)?;
            let written = AnnotatedItem::read(&package, item)?;
            written.model()?;
            let ModuleReader { interface, wit, limits, .. } = written.reading;
            found.push(Emitted { interface, wit: wit.text, limits: limits.text });
        } else if let Item::Mod(syn::ItemMod { content: Some((_, items)), .. }) = item {
            emit_items(items, found)?;
        }
    }
    Ok(())
}

fn usage(error: syn::Error) -> syn::Error {
    syn::Error::new(
        error.span(),
        "the attribute takes the package's name as one string: \
        #[upcall::package(\"example:files@1.0.0\")]",
    )
}

/// An item with the attribute, after reading.
struct AnnotatedItem {
    /// The item without the attributes that only this macro uses.
    item: Item,
    reading: ModuleReader,
}

impl AnnotatedItem {
    fn read(package: &LitStr, mut item: Item) -> syn::Result<Self> {
        let reading = match &mut item {
            Item::Mod(module) => ModuleReader::of_module(package, module),
            Item::Trait(server) => ModuleReader::of_trait(package, server),
            other => {
                let says = "this is neither a module nor a trait: put the attribute on `mod files \
                    { pub trait Files { .. } }`, with all types of the interface in the module, \
                    or on a trait that needs none";
                return Err(syn::Error::new_spanned(other, says));
            }
        }?;
        Ok(Self { item, reading })
    }

    fn model(&self) -> syn::Result<Model> {
        let ModuleReader { wit, limits, .. } = &self.reading;
        let limits = LimitsFile::parse(SpannedText::LIMITS, &limits.text)
            .map_err(|error| self.place(&error))?;
        parse::parse(&parse::WitSource::Text(SpannedText::WIT, &wit.text), &limits)
            .map_err(|error| self.place(&error))
    }

    /// Converts an error of the WIT compiler to one at the place in Rust that it is about.
    fn place(&self, error: &Error) -> syn::Error {
        let at = error.location().cloned().unwrap_or_default();
        let text =
            if at.file == SpannedText::LIMITS { &self.reading.limits } else { &self.reading.wit };
        let whole = error.to_string();
        syn::Error::new(
            text.span(at.line),
            whole.strip_prefix(&format!("{at}: ")).unwrap_or(&whole),
        )
    }
}
