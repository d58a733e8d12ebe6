//! `upcall wit generate`: writes stubs into files, to read them or to build without a build script.

use crate::exit::{CommandResult, Exit};
use crate::output::{print, println};
use std::path::{Path, PathBuf};
use upcall_idl::CNames;

/// Writes the stubs of an interface: types, clients, and the traits or functions of a server.
///
/// Rust programs do not need the files: `upcall::interface!` and `upcall_idl::build` generate the
/// same stubs while the program is built.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct GenerateArgs {
    /// A WIT file, or a folder of them, with the limits beside it.
    file: PathBuf,
    /// The language of the stubs.
    #[arg(short, long, value_enum, default_value_t = StubLanguage::Rust)]
    lang: StubLanguage,
    /// Write to this file, or into this folder by the name of the WIT; for C two files, .h and .c.
    /// Without this option the stubs are printed.
    #[arg(short, long, value_name = "FILE|FOLDER")]
    output: Option<PathBuf>,
    /// In C, put the package's name before the names of the package (`wasi_http_types_`, not
    /// `types_`), for programs with several packages.
    #[arg(long)]
    long_names: bool,
}

const HELP: &str = "\
Examples:
  upcall wit generate wit/files.wit --lang rust | less
  upcall wit generate wit/files.wit --lang rust -o src/files.rs
  upcall wit generate wit/files.wit --lang c -o src/
  upcall wit generate wit/files.wit --lang python -o src/files_stubs.py";

/// A language that stubs can be written in.
#[derive(Clone, Copy, clap::ValueEnum)]
enum StubLanguage {
    /// Types, clients and server traits, for the crate `upcall`.
    Rust,
    /// Types, client functions and structs of server functions, for libupcall and its header.
    C,
    /// Types, clients and abstract servers with type hints, for the package `upcall`.
    Python,
}

impl StubLanguage {
    fn ending(self) -> &'static str {
        match self {
            Self::Rust => "rs",
            Self::C => "c",
            Self::Python => "py",
        }
    }
}

pub fn run(args: &GenerateArgs) -> CommandResult {
    let file = args.output.as_ref().map(|output| target(&args.file, output, args.lang));
    let files = match args.lang {
        StubLanguage::Rust => vec![(file, upcall_idl::generate(&args.file)?.code)],
        StubLanguage::Python => vec![(file, upcall_idl::generate_python(&args.file)?)],
        StubLanguage::C => {
            let source = file
                .clone()
                .unwrap_or_else(|| target(&args.file, Path::new("./"), StubLanguage::C));
            let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let names = if args.long_names { CNames::Long } else { CNames::Short };
            let code = upcall_idl::generate_c_with(&args.file, &stem, names)?;
            vec![
                (file.as_ref().map(|_| source.with_extension("h")), code.header),
                (file.as_ref().map(|_| source.with_extension("c")), code.source),
            ]
        }
    };
    for (file, code) in files {
        let Some(file) = file else {
            print(code)?;
            continue;
        };
        super::write(&file, &code, "name a file in a folder that exists")?;
        println(file.display())?;
    }
    Ok(Exit::Done)
}

/// The file to write; in a folder it gets the name of the WIT.
fn target(wit: &Path, output: &Path, lang: StubLanguage) -> PathBuf {
    if !output.is_dir() && !output.as_os_str().to_string_lossy().ends_with('/') {
        return output.to_owned();
    }
    let name = if wit.is_dir() { wit.file_name() } else { wit.file_stem() };
    let mut name = name.unwrap_or_default().to_owned();
    if matches!(lang, StubLanguage::Python) {
        // Python imports modules by names without these characters.
        name = name.to_string_lossy().replace(['-', '.'], "_").into();
    }
    name.push(".");
    name.push(lang.ending());
    output.join(name)
}
