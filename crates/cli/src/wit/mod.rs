//! `upcall wit`: interface definitions, without a server.
use crate::told::Done;

mod check;
mod diff;
mod emit;
mod explain;
mod generate;

/// Works on interface definitions, without a server.
#[derive(clap::Subcommand)]
pub enum Suite {
    Check(check::Args),
    Diff(diff::Args),
    Emit(emit::Args),
    Explain(explain::Args),
    Generate(generate::Args),
}

pub fn run(suite: Suite) -> Done {
    match suite {
        Suite::Check(args) => check::run(&args),
        Suite::Diff(args) => diff::run(&args),
        Suite::Emit(args) => emit::run(&args),
        Suite::Explain(args) => explain::run(&args),
        Suite::Generate(args) => generate::run(&args),
    }
}
