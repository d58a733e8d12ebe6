//! `upcall wit check`: whether an interface compiles, and all that is wrong with it.

use crate::told::{CommandResult, FAINT, tell};
use std::path::PathBuf;
use std::process::ExitCode;

/// Checks that stubs can be made for an interface, and tells all that is in the way, with its place
/// and what to write instead.
///
/// What is no WIT at all is told one by one, since nothing behind it can be read; all that is WIT
/// and not supported is told at once.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct CheckArgs {
    /// WIT files, or folders of them, with the limits beside them.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

const HELP: &str = "\
Exit code: 0 if all of them compile, 1 if not.

Examples:
  upcall wit check wit/files.wit
  upcall wit check wit/*.wit";

pub fn run(args: &CheckArgs) -> CommandResult {
    let mut good = true;
    for file in &args.files {
        match upcall_idl::check(file) {
            Ok(model) => {
                let own =
                    || model.interfaces.iter().filter(|interface| interface.foreign.is_none());
                let procedures: usize = own().map(|interface| interface.procedures.len()).sum();
                let version =
                    model.version.as_ref().map(|version| format!("@{version}")).unwrap_or_default();
                println!("{}: {}{version}", file.display(), model.package);
                anstream::println!(
                    "  {FAINT}{}, {}{FAINT:#}",
                    count(own().count(), "interface"),
                    count(procedures, "procedure")
                );
            }
            Err(errors) => {
                good = false;
                errors.iter().for_each(|error| tell(error));
            }
        }
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn count(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}
