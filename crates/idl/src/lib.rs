//! Interfaces in WIT, compiled to layouts and stubs.
//!
//! This crate is a compiler that runs when a program is built. It reads a `.wit` file (or a folder
//! of them, with `deps`) and the limits in the `.toml` beside it, and checks that everything in it
//! can be passed between two domains. It decides where each value lies in a block of memory
//! ([`layout`]) and which text both sides compare when they bind ([`signature`]). Then it writes
//! Rust: types, a client, the trait that a server implements, and the code between. [`dynamic`]
//! does the work of that code at run time, for interfaces known only as text. [`written`] converts
//! an interface that is written in Rust to WIT, which is then compiled in the same way.
//!
//! The crate takes no part in calls: nothing of it is linked into a program that uses its stubs.
//! Nor is it an implementation of the component model: the language is WIT, the layout is Upcall's
//! ([`layout`] says how they differ).
//!
//! ```
//! # let folder = std::env::temp_dir().join(format!("upcall-idl-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let file = folder.join("math.wit");
//! let text = "package demo:math; interface math { add: func(a: u32, b: u32) -> u32; }";
//! std::fs::write(&file, text)?;
//!
//! let generated = upcall_idl::generate(&file)?;
//! let method = "pub fn add(&self, a: u32, b: u32) -> Result<u32, ::upcall::CallError>";
//! assert!(generated.code.contains(method));
//!
//! let add = &generated.model.interfaces[0].procedures[0];
//! assert_eq!((add.signature.as_str(), add.args.size), ("add: func(a: u32, b: u32) -> u32", 8));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The path through the code
//! `parse/` (all contact with `wit-parser`; refusals) → [`model`] with [`layout`], [`signature`]
//! and `limits.rs` → `rust/`, `c/`, [`python`] (the generators), `print.rs` (WIT again),
//! [`dynamic`], [`diff`].
//!
//! # Limits
//! The server's `tail` and `calls` apply, which it sends to its clients when they bind. Each side's
//! own `string` and `list` apply. The server's `values` applies: a call whose arguments take more
//! is refused, and its procedure does not run.
//!
//! ```toml
//! [limits]                  # for every interface of the package; each key may be left out
//! string = "64KiB"          # longest string: bytes, or with KiB, MiB, GiB. Default 1 GiB
//! list = 65536              # longest list, in elements. Default 2^30
//! values = "16MiB"          # a server's memory for the strings and copied lists of one call,
//!                           # in bytes. Default 16 MiB
//! tail = 1024               # room in an A-stack for the strings and lists of one call, in
//!                           # bytes. Default 1024
//! calls = 5                 # number of simultaneous calls that have A-stacks. Default 5
//!
//! [files]                   # the same keys for the interface `files`
//! calls = 8
//!
//! [files."file.read"]       # and for one procedure of it
//! tail = "64KiB"
//! ```
//! The innermost table takes precedence; carried interfaces of other packages have the limits of
//! `[limits]`. Values that fit in no A-stack are sent out of band. A value over `string` or `list`
//! is an error in the caller before anything is sent. Keys, interfaces and procedures that do not
//! exist are errors.
//!
//! # What is refused
//! `future`, `stream`, `map`, `error-context`, getters and setters; more than 16 parameters or
//! tuple members, 1000 procedures with those that are carried, 64 carried interfaces, 256 MiB in
//! place, 48 levels of nesting. The error gives the place and what to write instead. The parser
//! itself refuses flags above 32, recursive types, and borrowed handles in a result.
//!
//! `async func` is treated as `func`: a call blocks only the calling thread, and threads are cheap.
//!
//! # Resources
//! A handle may be anywhere in a value. A client's values hold the structs of its resources, a
//! server's the objects. So a record or variant with handles in it is two types in Rust, `Pair` and
//! `ServedPair`; a handle that a client lends inside another value is an `upcall::Lent` to the
//! server. Values with handles are passed by value, and no handle of another binding is sent.
//!
//! An interface whose procedures take or return objects of another interface *carries* that
//! interface: all its procedures are bound and served with the interface's own, under names like
//! `wasi:io/streams.input-stream.read`. The server implements both traits, and clients get a client
//! of the carried interface by `Streams::from(&files)`. `parse/carried.rs` gives the reason.
//!
//! # Features
//! None is on by default, and Rust needs none.
//!
//! | feature | what it adds |
//! |---|---|
//! | `c` | stubs in C: [`generate_c`] |
//! | `python` | modules in Python: [`generate_python`] |
//! | `dynamic` | interfaces that are known only at run time: [`dynamic`] |
#![forbid(unsafe_code)]

#[cfg(feature = "c")]
mod c;
pub mod diff;
#[cfg(feature = "dynamic")]
pub mod dynamic;
mod error;
pub mod layout;
mod limits;
pub mod model;
mod names;
mod parse;
mod print;
#[cfg(feature = "python")]
pub mod python;
mod rust;
pub mod signature;
pub mod written;

#[cfg(feature = "c")]
pub use c::{CCode, CNames};
pub use error::{Error, Location};
pub use model::Model;
pub use names::steers;
use std::path::Path;

/// Reads a `.wit` file, or a folder of them, with the limits beside it.
///
/// # Errors
/// [`Error`], with its place: files, syntax, unsupported constructs, limits.
pub fn load(path: impl AsRef<Path>) -> Result<Model, Error> {
    let path = path.as_ref();
    let (limits, file) = limits::LimitsFile::beside(path)?;
    let mut model = parse::parse(&parse::WitSource::Path(path), &limits)?;
    model.files.extend(file);
    Ok(model)
}

/// The path of the limits file beside a `.wit` file, or a folder of them, whether it exists or not.
/// If it was read, it is one of the [`files`](Model::files) of the model.
#[must_use]
pub fn limits_file(path: impl AsRef<Path>) -> std::path::PathBuf {
    limits::path_beside(path.as_ref())
}

/// Checks that stubs can be generated for a `.wit` file, or a folder of them. Unlike [`generate`],
/// it reports all errors.
///
/// # Errors
/// At least one error, and at most 100. Text that is not WIT, or limits that are not TOML, end the
/// check at once. Otherwise every unsupported construct is reported, and then names that become the
/// same in Rust.
pub fn check(path: impl AsRef<Path>) -> Result<Model, Vec<Error>> {
    let path = path.as_ref();
    let (limits, file) = limits::LimitsFile::beside(path).map_err(|error| vec![error])?;
    let mut model = parse::parse_all(&parse::WitSource::Path(path), &limits, 100)?;
    model.files.extend(file);
    let clashes = rust::clashes(&model);
    if clashes.is_empty() { Ok(model) } else { Err(clashes) }
}

/// Generated code and its inputs.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Rust source: one module per interface.
    pub code: String,
    /// Every file that was read. When one of them changes, the code must be generated again.
    pub files: Vec<std::path::PathBuf>,
    /// The checked model, for other generators.
    pub model: Model,
}

/// Generates the Rust stubs for a `.wit` file, or a folder of them.
///
/// # Errors
/// As [`load`], and names that become the same in Rust.
pub fn generate(path: impl AsRef<Path>) -> Result<Generated, Error> {
    let path = path.as_ref();
    let model = load(path)?;
    let title = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let code = rust::generate(&model, &title)?;
    Ok(Generated { code, files: model.files.clone(), model })
}

/// Generates the C stubs for a `.wit` file, or a folder of them: a header and a source file, called
/// `stem`.h and `stem`.c.
///
/// # Errors
/// As [`load`].
#[cfg(feature = "c")]
pub fn generate_c(path: impl AsRef<Path>, stem: &str) -> Result<CCode, Error> {
    generate_c_with(path, stem, CNames::Short)
}

/// Like [`generate_c`], with a choice of names.
///
/// # Errors
/// As [`load`].
#[cfg(feature = "c")]
pub fn generate_c_with(path: impl AsRef<Path>, stem: &str, names: CNames) -> Result<CCode, Error> {
    let path = path.as_ref();
    let title = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(c::generate(&load(path)?, stem, &title, names))
}

/// Generates the Rust stubs for WIT text that is not in a file, without limits. Error messages call
/// the text `name`.
///
/// # Errors
/// As [`generate`].
pub fn generate_text(name: &str, wit: &str) -> Result<Generated, Error> {
    let model = parse::parse(&parse::WitSource::Text(name, wit), &limits::LimitsFile::default())?;
    let code = rust::generate(&model, name)?;
    Ok(Generated { code, files: Vec::new(), model })
}

/// Generates the Python module for a `.wit` file, or a folder of them.
///
/// # Errors
/// As [`load`].
#[cfg(feature = "python")]
pub fn generate_python(path: impl AsRef<Path>) -> Result<String, Error> {
    let path = path.as_ref();
    let title = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(python::generate(&load(path)?, &title))
}

/// Generates the stubs and writes them to `OUT_DIR/<name>.rs`, from a build script.
///
/// ```no_run
/// // build.rs
/// upcall_idl::build("wit/files.wit");
/// ```
///
/// Cargo runs the script again when one of the files changes. An error is shown as Cargo shows a
/// compiler's, and ends the script; [`try_build`] returns it instead.
pub fn build(path: impl AsRef<Path>) {
    if let Err(error) = try_build(path) {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
        std::process::exit(1);
    }
}

/// Like [`build`], but returns the error. On success, returns the path of the file that was
/// written.
///
/// # Errors
/// As [`generate`], and if `OUT_DIR` is missing or cannot be written to.
pub fn try_build(path: impl AsRef<Path>) -> Result<std::path::PathBuf, Error> {
    let path = path.as_ref();
    println!("cargo::rerun-if-changed={}", path.display());
    // The TOML file is watched even if it does not exist yet: then its creation is the change.
    println!("cargo::rerun-if-changed={}", limits::path_beside(path).display());
    let generated = generate(path)?;
    for file in &generated.files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    let folder = std::env::var_os("OUT_DIR").ok_or_else(|| Error::File {
        tried: "write to",
        path: "$OUT_DIR".into(),
        found: "the variable is not set".into(),
        advice: "call this from a build script, or call generate() and write the code yourself",
    })?;
    let target = std::path::Path::new(&folder).join(format!("{}.rs", stem(path)));
    std::fs::write(&target, &generated.code).map_err(|e| {
        Error::file("write", &target, &e, "check the space and the rights in OUT_DIR")
    })?;
    Ok(target)
}

/// Returns `files` for `wit/files.wit` and for `wit/files`.
fn stem(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.unwrap_or_default().to_string_lossy().into_owned()
}
