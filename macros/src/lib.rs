//! [`interface!`]: stubs from a `.wit` file, without a build script.
//!
//! The work is done in `upcall-idl`; what is here only finds the file and turns errors into the compiler's. A build
//! script with `upcall_idl::build` gives the same code, and a file that an editor can open.
#![forbid(unsafe_code)]

use proc_macro::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};
use std::path::{Path, PathBuf};

/// Expands to the stubs of the interfaces in a `.wit` file or a folder of them: one module for each.
///
/// The path is a string literal, relative to the folder of the crate's `Cargo.toml`. Limits are read from the `.toml`
/// beside it. A change to one of the files makes the crate compile again; to a file that did not exist before, it does
/// not.
///
/// ```ignore
/// upcall::interface!("wit/files.wit");
///
/// let files = files::Files::bind("files")?;
/// ```
///
/// # Errors
/// Everything that `upcall_idl::generate` refuses becomes a compile error with the place in the `.wit` file.
#[proc_macro]
pub fn interface(input: TokenStream) -> TokenStream {
    let (path, span) = match literal(input) {
        Ok(found) => found,
        Err((message, span)) => return compile_error(message, span),
    };
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    match expand(&root.join(path)) {
        Ok(code) => code,
        Err(message) => compile_error(&message, span),
    }
}

/// The one string literal that the macro takes.
fn literal(input: TokenStream) -> Result<(String, Span), (&'static str, Span)> {
    const USAGE: &str = "interface! takes one string: the path of a .wit file, as in interface!(\"wit/files.wit\")";
    let mut tokens = input.into_iter();
    let mut token = tokens.next().ok_or((USAGE, Span::call_site()))?;
    // A literal that came through another macro arrives in an invisible group.
    while let TokenTree::Group(group) = &token {
        if group.delimiter() != Delimiter::None {
            break;
        }
        token = group.stream().into_iter().next().ok_or((USAGE, Span::call_site()))?;
    }
    let span = token.span();
    let text = token.to_string();
    let inner = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).filter(|t| !t.contains('\\'));
    match (inner, tokens.next()) {
        (Some(inner), None) => Ok((inner.to_owned(), span)),
        (_, other) => Err((USAGE, other.map_or(span, |t| t.span()))),
    }
}

fn expand(path: &Path) -> Result<TokenStream, String> {
    let generated = upcall_idl::generate(path).map_err(|e| e.to_string())?;
    let mut code = generated.code;
    for file in &generated.files {
        let file = std::path::absolute(file).map_err(|e| format!("cannot name {}: {e}", file.display()))?;
        // The compiler watches what is included. The bytes end up nowhere.
        code.push_str(&format!("const _: &[u8] = ::core::include_bytes!({:?});\n", file.display().to_string()));
    }
    code.parse().map_err(|e| format!("upcall-idl made Rust that does not parse, a bug in it: {e}"))
}

/// `::core::compile_error!("message");`, shown at `span`.
fn compile_error(message: &str, span: Span) -> TokenStream {
    let mut literal = Literal::string(message);
    literal.set_span(span);
    let path = [colon(Spacing::Joint), colon(Spacing::Alone), Ident::new("core", span).into()];
    let name = [colon(Spacing::Joint), colon(Spacing::Alone), Ident::new("compile_error", span).into()];
    let mut group = Group::new(Delimiter::Parenthesis, TokenTree::from(literal).into());
    group.set_span(span);
    let call = [Punct::new('!', Spacing::Alone).into(), group.into(), Punct::new(';', Spacing::Alone).into()];
    path.into_iter().chain(name).chain(call).collect()
}

fn colon(spacing: Spacing) -> TokenTree {
    Punct::new(':', spacing).into()
}
