//! [`interface!`]: stubs from WIT, without a build script.
//!
//! The work is done in `upcall-idl`; what is here only finds the text and turns errors into the compiler's. A build
//! script with `upcall_idl::build` gives the same code, in a file that an editor can open.
#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use quote::quote;
use std::path::{Path, PathBuf};
use syn::LitStr;

/// Expands to the stubs of the interfaces in a `.wit` file, in a folder of them, or in the text given: one module for
/// each interface.
///
/// A path is relative to the folder of the crate's `Cargo.toml`. Limits are read from the `.toml` beside it. A change to
/// one of the files makes the crate compile again; the appearance of a new one does not. What holds a brace is taken for
/// WIT text instead, which is handy for something small; there are no limits with it.
///
/// ```no_run
/// upcall::interface!("package demo:math; interface math { add: func(a: u32, b: u32) -> u32; }");
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let math = math::Math::bind("math")?;
/// assert_eq!(math.add(2, 3)?, 5);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Everything that `upcall_idl::generate` refuses becomes a compile error with the place in the `.wit` file.
#[proc_macro]
pub fn interface(input: TokenStream) -> TokenStream {
    let expanded = syn::parse::<LitStr>(input)
        .map_err(|e| {
            let usage = "interface! takes one string: the path of a .wit file or folder, or WIT text";
            syn::Error::new(e.span(), usage)
        })
        .and_then(|literal| expand(&literal.value()).map_err(|message| syn::Error::new(literal.span(), message)));
    expanded.unwrap_or_else(|e| e.to_compile_error()).into()
}

fn expand(given: &str) -> Result<proc_macro2::TokenStream, String> {
    let generated = if given.contains('{') {
        upcall_idl::generate_text("the text of interface!", given)
    } else {
        let root = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
        upcall_idl::generate(root.join(given))
    };
    let generated = generated.map_err(|e| e.to_string())?;
    let code: proc_macro2::TokenStream = generated.code.parse().map_err(|e| format!("{e} in generated code"))?;
    let files = generated.files.iter().map(|file| watched(file)).collect::<Result<Vec<_>, _>>()?;
    // The compiler watches what is included. The bytes end up nowhere.
    Ok(quote! { #code #( const _: &[u8] = ::core::include_bytes!(#files); )* })
}

fn watched(file: &Path) -> Result<String, String> {
    let absolute = std::path::absolute(file).map_err(|e| format!("cannot name {}: {e}", file.display()))?;
    absolute.into_os_string().into_string().map_err(|name| format!("the name of {name:?} is not UTF-8"))
}
