//! `upcall wit emit`: the WIT of interfaces that are written in Rust.

use crate::told::CommandResult;
use std::path::PathBuf;
use std::process::ExitCode;

/// Writes the WIT of the interfaces that a Rust file has: modules and traits with
/// `#[upcall::package("..")]`.
///
/// It has the same text as the constants `WIT` and `LIMITS` of their stubs, and builds nothing.
/// From it the stubs for other languages are generated.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct EmitArgs {
    /// A Rust file.
    file: PathBuf,
    /// Write into this folder: for each interface a .wit file by its name, and a .toml file beside
    /// it if there are limits. Without it they are printed.
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

const HELP: &str = "\
Examples:
  upcall wit emit src/files.rs
  upcall wit emit src/files.rs -o wit/ && upcall wit generate wit/files.wit --lang c -o c/";

pub fn run(args: &EmitArgs) -> CommandResult {
    let found = upcall_idl::written::emit(&args.file)?;
    if found.is_empty() {
        let none = format!(
            "{} has no interface: put #[upcall::package(\"name:space@1.0.0\")] on a module with a trait",
            args.file.display()
        );
        return Err(none.into());
    }
    for interface in found {
        for (ending, text) in [("wit", interface.wit), ("toml", interface.limits)] {
            let Some(folder) = &args.output else {
                // The limits are no WIT; as a comment they spoil nothing.
                print!(
                    "{}",
                    if ending == "toml" {
                        text.lines().map(|line| format!("// {line}\n")).collect()
                    } else {
                        text
                    }
                );
                continue;
            };
            let file = folder.join(format!("{}.{ending}", interface.interface));
            if text.is_empty() && !file.exists() {
                continue;
            }
            std::fs::write(&file, text).map_err(|error| {
                format!("cannot write {}: {error}; name a folder that exists", file.display())
            })?;
            println!("{}", file.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
