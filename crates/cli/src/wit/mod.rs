//! `upcall wit`: works on interface definitions, without a server.

use crate::exit::{CommandError, CommandResult, Exit};
use std::path::Path;

mod check;
mod diff;
mod emit;
mod explain;
mod generate;

pub const EXAMPLES: &str = "\
Examples:
  upcall wit check wit/files.wit
  upcall wit generate wit/files.wit --lang c -o src/";

#[derive(clap::Subcommand)]
pub enum WitCommand {
    Check(check::CheckArgs),
    Diff(diff::DiffArgs),
    Emit(emit::EmitArgs),
    Explain(explain::ExplainArgs),
    Generate(generate::GenerateArgs),
}

pub fn run(suite: WitCommand) -> CommandResult {
    match suite {
        WitCommand::Check(args) => check::run(&args),
        WitCommand::Diff(args) => diff::run(&args),
        WitCommand::Emit(args) => emit::run(&args),
        WitCommand::Explain(args) => explain::run(&args),
        WitCommand::Generate(args) => generate::run(&args),
    }
}

/// Writes a file that the command line names.
fn write(file: &Path, text: &str, advice: &str) -> Result<(), CommandError> {
    std::fs::write(file, text).map_err(|error| {
        let text = format!("cannot write {}: {error}; {advice}", file.display());
        CommandError::new(Exit::of_file(&error), text)
    })
}
