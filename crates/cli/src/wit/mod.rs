//! `upcall wit`: interface definitions, without a server.
use crate::told::CommandResult;

mod check;
mod diff;
mod emit;
mod explain;
mod generate;

/// Works on interface definitions, without a server.
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
