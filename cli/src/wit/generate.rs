//! `upcall wit generate`: stubs as a file, for who wants to read them, or builds without a build script.

use crate::Done;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes the stubs of an interface: types, clients, and what a server implements.
///
/// Rust programs need this only to read them: `upcall::interface!` and `upcall_idl::build` make the same while the program is built.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// A WIT file, or a folder of them, with the limits beside it.
    file: PathBuf,
    /// The language of the stubs.
    #[arg(short, long, value_enum, default_value_t = Language::Rust)]
    lang: Language,
    /// Write to this file, or into this folder by the name of the WIT; without it the stubs are printed.
    #[arg(short, long, value_name = "FILE|FOLDER")]
    output: Option<PathBuf>,
}

const HELP: &str = "\
Examples:
  upcall wit generate wit/files.wit --lang rust | less
  upcall wit generate wit/files.wit --lang rust -o src/files.rs";

/// A language that stubs can be written in.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Language {
    /// Types, clients and server traits, for the crate `upcall`.
    Rust,
}

impl Language {
    fn ending(self) -> &'static str {
        match self {
            Self::Rust => "rs",
        }
    }
}

pub fn run(args: &Args) -> Done {
    let code = match args.lang {
        Language::Rust => upcall_idl::generate(&args.file)?.code,
    };
    let Some(output) = &args.output else {
        print!("{code}");
        return Ok(ExitCode::SUCCESS);
    };
    let file = target(&args.file, output, args.lang);
    std::fs::write(&file, code)
        .map_err(|error| format!("cannot write {}: {error}; name a file in a folder that exists", file.display()))?;
    println!("{}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// The file to write: in a folder it has the name of the WIT.
fn target(wit: &Path, output: &Path, lang: Language) -> PathBuf {
    if !output.is_dir() && !output.as_os_str().to_string_lossy().ends_with('/') {
        return output.to_owned();
    }
    let name = if wit.is_dir() { wit.file_name() } else { wit.file_stem() };
    let mut name = name.unwrap_or_default().to_owned();
    name.push(".");
    name.push(lang.ending());
    output.join(name)
}
