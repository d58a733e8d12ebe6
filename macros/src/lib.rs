//! [`interface!`]: stubs from WIT, without a build script; and [`package`]: stubs from a trait, and the WIT of it.
//!
//! The work is done in `upcall-idl`; what is here only finds the text and turns errors into the compiler's. A build
//! script with `upcall_idl::build` gives the same code as `interface!`, in a file that an editor can open.
#![forbid(unsafe_code)]

mod shared;

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

/// Makes an interface of a Rust module: its trait is what a server implements, the functions are the procedures, the structs and enums the types. The WIT of it is in `WIT`.
///
/// The string is the package's name, as WIT has it; the interface is called as the trait.
///
/// ```
/// #[upcall::package("example:files@1.0.0")]
/// pub mod files {
///     use std::sync::Arc;
///
///     /// Files, read-only.
///     #[limits(string = "4KiB")]
///     pub trait Files {
///         /// What is known of a file.
///         fn look_at(&self, path: &str) -> Result<Stat, Error>;
///         /// Opens one.
///         #[limits(calls = 8)]
///         fn open(&self, path: String) -> Result<Arc<dyn File>, Error>;
///     }
///
///     /// An open file.
///     #[resource]
///     pub trait File {
///         /// Reads at most `len` bytes from `at` on.
///         fn read(&self, at: u64, len: u32) -> Vec<u8>;
///     }
///
///     #[derive(Clone, Debug, PartialEq)]
///     pub struct Stat {
///         /// In bytes.
///         pub size: u64,
///         pub rights: Rights,
///     }
///
///     #[flags]
///     pub enum Rights {
///         Read,
///         Write,
///     }
///
///     #[derive(Clone, Debug)]
///     pub enum Error {
///         NotFound,
///         Other(String),
///     }
/// }
///
/// use files::{Error, File, Files, Rights, Stat};
/// use std::sync::Arc;
///
/// struct Empty;
/// impl Files for Empty {
///     fn look_at(&self, path: &str) -> Result<Stat, Error> {
///         if path == "/dev/null" { Ok(Stat { size: 0, rights: Rights::READ | Rights::WRITE }) } else { Err(Error::NotFound) }
///     }
///     fn open(&self, path: String) -> Result<Arc<dyn File>, Error> {
///         Err(Error::Other(format!("{path} does not open")))
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let name = format!("package-doc-{}", std::process::id());
/// # let name = name.as_str();
/// let server = upcall::Server::new().export(name, files::export(Empty)).start()?;
/// let client = files::FilesClient::bind(name)?;
/// assert_eq!(client.look_at("/dev/null")?.rights.bits(), 3);
/// assert!(client.open("/dev/null").is_err());
///
/// assert!(files::WIT.contains("open: func(path: string) -> result<own<file>, error>;"));
/// # drop(server);
/// # Ok(())
/// # }
/// ```
///
/// # What there is then
/// What is written stays as it is. In the same module there are, besides, what [`interface!`] gives: `FilesClient` with `bind` and `local`, `FileClient` for what a server's `Arc<dyn File>` is to
/// a client, `export`, `INTERFACE`; and the texts `WIT` and `LIMITS`. The traits also ask for `Send` and `Sync`, since calls come from many threads. A trait that needs no types of its own may have
/// the attribute by itself; what is generated is in a module beside it then, `files` for `Files`.
///
/// # For other languages
/// `upcall wit emit src/files.rs -o wit/` writes the WIT, and the limits beside it, from which `upcall wit generate --lang c` makes stubs. A program that is to do it by itself, or a test that is to find a file that is not as the
/// trait, has the same text in `WIT`. `upcall call` needs nothing: servers tell it.
///
/// # Types
/// | Rust | WIT |
/// |---|---|
/// | `bool`, `u8` … `u64`, `i8` … `i64`, `f32`, `f64`, `char` | `bool`, `u8` … `u64`, `s8` … `s64`, `f32`, `f64`, `char` |
/// | `String`; `&str` as a parameter | `string` |
/// | `Vec<T>`; `&[T]` as a parameter | `list<T>` |
/// | `Vec<u8>`, a copy; `upcall::Bytes<'_>` as a parameter, a view | `list<u8>` |
/// | `[T; N]`, `Option<T>`, `Result<T, E>`, `(A, B)` | `list<T, N>`, `option<T>`, `result<T, E>`, `tuple<A, B>` |
/// | a struct, an enum, an enum with values, a type alias | `record`, `enum`, `variant`, `type` |
/// | an enum with `#[flags]`, which becomes a struct with constants | `flags` |
/// | a trait with `#[resource]`; `Arc<dyn File>`, `&dyn File`, `Lent<dyn File>` inside another value | `resource`; `own<file>`, `borrow<file>` |
///
/// Structs, tuples, options and the like are taken by reference or by value, as the trait says. Through a channel a value costs nothing more, since it was made for the call; for a client in the same
/// domain (`local`) it is cloned. So types that are taken by value are `Clone`, and errors are `Debug`; nothing else is asked of them. In WIT types and functions share their names: `fn stat`
/// beside `struct Stat` is refused.
///
/// `#[limits(string = "64KiB", list = 1000, tail = "4KiB", calls = 8)]`, at the trait or at a function, is what the TOML file says beside a WIT file.
///
/// # Errors
/// What WIT cannot say is an error at its place, with what to write instead: generic types, `async`, `usize`, maps, types from other modules, names that would not come back from WIT as they are.
///
/// ```compile_fail
/// #[upcall::package("example:sizes")]
/// pub trait Sizes {
///     fn size(&self) -> usize; // its size is a matter of the machine: write `u64` or `i64`
/// }
/// # fn main() {}
/// ```
#[proc_macro_attribute]
pub fn package(attribute: TokenStream, item: TokenStream) -> TokenStream {
    upcall_idl::written::expand(attribute.into(), item.into()).unwrap_or_else(|e| e.to_compile_error()).into()
}

/// Makes a struct a type that can live in an object that processes share: `upcall::home`.
///
/// Its fields are types that can. For a struct `Cache` there is `CacheAt` then, the place of one, with a method for each field that gives the field's place. What no other process could use, pointers, references, `String`, `Vec`, handles, `usize`, is an
/// error that says what to write instead.
///
/// ```
/// use upcall::home::{Homed, Map, Plain, Shared, Text};
///
/// /// What several programs have counted.
/// #[derive(Shared)]
/// struct Counts {
///     all: u64,
///     each: Map<Text, u64>,
///     last: Seen,
/// }
///
/// #[derive(Clone, Copy, Debug, PartialEq, Plain)]
/// enum Seen {
///     Nothing,
///     At { second: u64 },
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let name = format!("doc-counts-{}", std::process::id());
/// # let name = name.as_str();
/// let counts = Homed::<Counts>::create(name).with(|counts| counts.all().set(0))?;
/// counts.access(|counts| {
///     counts.all().update(|all| all + 1)?;
///     counts.each().entry("files")?.update(|files| files + 1)?;
///     counts.last().set(Seen::At { second: 7 })
/// })?;
/// assert_eq!(counts.access(|counts| counts.last().get())?, Seen::At { second: 7 });
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail
/// #[derive(upcall::home::Shared)]
/// struct Names {
///     all: Vec<String>, // it points into this process's memory: write `Queue`, `List`, or `Blob`
/// }
/// # fn main() {}
/// ```
///
/// `#[shared(crate = "path")]` says where the types come from, if it is not `upcall::home`.
#[proc_macro_derive(Shared, attributes(shared))]
pub fn shared(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    shared::shared(&input).unwrap_or_else(|e| e.to_compile_error()).into()
}

/// Makes a struct or an enum a plain value, that is read and written as a whole where it lies in memory that processes share: [`Shared`](macro@Shared).
///
/// Its fields are plain, and it is `Copy`. All zeros are to be a value of it: of an enum that is the first variant.
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
    let code: proc_macro2::TokenStream = generated.code.parse().map_err(|e| format!("{e} in generated code"))?;
    let files = generated.files.iter().map(|file| watched(file)).collect::<Result<Vec<_>, _>>()?;
    // The compiler watches what is included. The bytes end up nowhere.
    Ok(quote! { #code #( const _: &[u8] = ::core::include_bytes!(#files); )* })
}

fn watched(file: &Path) -> Result<String, String> {
    let absolute = std::path::absolute(file).map_err(|e| format!("cannot name {}: {e}", file.display()))?;
    absolute.into_os_string().into_string().map_err(|name| format!("the name of {name:?} is not UTF-8"))
}
