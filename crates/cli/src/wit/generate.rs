//! `upcall wit generate`: writes stubs into files, to read them or to build without a build script.

use crate::exit::{CommandError, CommandResult, Exit};
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
    /// The language of the stubs. Without this option the ending of the output decides (.rs, .c or
    /// .h, .py); otherwise it is Rust.
    #[arg(short, long, value_enum)]
    lang: Option<StubLanguage>,
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
  upcall wit generate wit/files.wit -o src/files.rs
  upcall wit generate wit/files.wit --lang c -o src/
  upcall wit generate wit/files.wit -o src/files_stubs.py";

/// A language that stubs can be written in.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
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

    /// The name that `--lang` takes.
    fn name(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::C => "c",
            Self::Python => "python",
        }
    }

    /// The language of files with the ending of `file`.
    fn of_file(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()? {
            "rs" => Some(Self::Rust),
            "c" | "h" => Some(Self::C),
            "py" => Some(Self::Python),
            _ => None,
        }
    }
}

pub fn run(args: &GenerateArgs) -> CommandResult {
    let lang = language(args)?;
    let file = args.output.as_ref().map(|output| target(&args.file, output, lang));
    if let (StubLanguage::Python, Some(file)) = (lang, &file) {
        check_module(file)?;
    }
    let files = match lang {
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

/// The language that `--lang` names, or the ending of the output.
///
/// # Errors
/// Both are given, and contradict each other.
fn language(args: &GenerateArgs) -> Result<StubLanguage, CommandError> {
    let output = args.output.as_deref().filter(|output| !is_folder(output));
    let ending = output.and_then(StubLanguage::of_file);
    match (args.lang, ending, output) {
        (Some(lang), Some(other), Some(output)) if lang != other => {
            Err(CommandError::usage(format_args!(
                "--lang {} cannot write {}: name a file that ends in .{}, or type --lang {}",
                lang.name(),
                output.display(),
                lang.ending(),
                other.name()
            )))
        }
        (lang, ending, _) => Ok(lang.or(ending).unwrap_or(StubLanguage::Rust)),
    }
}

/// Returns `true` if the output names a folder.
fn is_folder(output: &Path) -> bool {
    output.is_dir() || output.as_os_str().to_string_lossy().ends_with('/')
}

/// Refuses a file that ends in .py and whose name has characters that no Python module can have.
fn check_module(file: &Path) -> Result<(), CommandError> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let module = module_name(&stem);
    if StubLanguage::of_file(file) != Some(StubLanguage::Python) || *stem == *module {
        return Ok(());
    }
    Err(CommandError::usage(format_args!(
        "{} is not written, because Python cannot import a module of the name {stem:?}: name the \
         file {}",
        file.display(),
        file.with_file_name(format!("{module}.py")).display()
    )))
}

/// The name with an underscore for each character that the name of a Python module cannot have.
fn module_name(name: &str) -> String {
    let part = |c: char| if c.is_alphanumeric() { c } else { '_' };
    let digit = name.starts_with(|c: char| c.is_numeric());
    digit.then_some('_').into_iter().chain(name.chars().map(part)).collect()
}

/// The file to write; in a folder it gets the name of the WIT.
fn target(wit: &Path, output: &Path, lang: StubLanguage) -> PathBuf {
    if !is_folder(output) {
        return output.to_owned();
    }
    let name = if wit.is_dir() { wit.file_name() } else { wit.file_stem() };
    let mut name = name.unwrap_or_default().to_owned();
    if lang == StubLanguage::Python {
        name = module_name(&name.to_string_lossy()).into();
    }
    name.push(".");
    name.push(lang.ending());
    output.join(name)
}
