//! `upcall wit emit`: writes the WIT of interfaces that are written in Rust.

use crate::exit::{CommandError, CommandResult, Exit};
use crate::output::{print, println};
use std::path::PathBuf;

/// Writes the WIT of the interfaces in a Rust file: modules and traits with
/// `#[upcall::package("..")]`.
///
/// The text is that of the constants `WIT` and `LIMITS` of the stubs. Nothing is built. `upcall wit
/// generate` makes stubs for other languages from the text.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct EmitArgs {
    /// A Rust file.
    file: PathBuf,
    /// Write files into this folder: for each interface a .wit file by its name, and a .toml file
    /// beside it if there are limits. Without this option the text is printed.
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
        return Err(CommandError::usage(format_args!(
            "{} has no interface: put #[upcall::package(\"name:space@1.0.0\")] on a module with a \
             trait",
            args.file.display()
        )));
    }
    for interface in found {
        for (ending, text) in [("wit", interface.wit), ("toml", interface.limits)] {
            let Some(folder) = &args.output else {
                // Limits are not WIT, so they are printed as a comment.
                print(if ending == "toml" {
                    text.lines().map(|line| format!("// {line}\n")).collect()
                } else {
                    text
                })?;
                continue;
            };
            let file = folder.join(format!("{}.{ending}", interface.interface));
            if text.is_empty() && !file.exists() {
                continue;
            }
            super::write(&file, &text, "name a folder that exists")?;
            println(file.display())?;
        }
    }
    Ok(Exit::Done)
}
