//! `upcall wit`: interface definitions, without a server.

mod diff;

use crate::Done;

/// Works on interface definitions, without a server.
#[derive(clap::Subcommand)]
pub enum Suite {
    Diff(diff::Args),
}

pub fn run(suite: Suite) -> Done {
    match suite {
        Suite::Diff(args) => diff::run(&args),
    }
}
