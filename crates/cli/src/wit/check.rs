//! `upcall wit check`: finds all faults of an interface.

use crate::exit::{CommandResult, Exit};
use crate::output::{FAINT, counted, println, report};
use std::path::PathBuf;
use upcall_idl::Error;

/// Checks that stubs can be generated for an interface, and reports all faults with their places.
///
/// In a text that is not WIT only the first fault is found. In WIT that is not supported all faults
/// are found at once, with what to write instead. For each file without faults, the limits file
/// that was read is named, or the name that one would have.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct CheckArgs {
    /// WIT files, or folders of them, with the limits beside them.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

const HELP: &str = "\
Examples:
  upcall wit check wit/files.wit
  upcall wit check wit/*.wit

Exits with 1 if a file has a fault, and with 2 if one cannot be read.";

pub fn run(args: &CheckArgs) -> CommandResult {
    let mut exit = Exit::Done;
    for file in &args.files {
        match upcall_idl::check(file) {
            Ok(model) => {
                let own =
                    || model.interfaces.iter().filter(|interface| interface.foreign.is_none());
                let procedures: usize = own().map(|interface| interface.procedures.len()).sum();
                let version =
                    model.version.as_ref().map(|version| format!("@{version}")).unwrap_or_default();
                println(format_args!("{}: {}{version}", file.display(), model.package))?;
                println(format_args!(
                    "  {FAINT}{}, {}{FAINT:#}",
                    counted(own().count(), "interface"),
                    counted(procedures, "procedure")
                ))?;
                let limits = upcall_idl::limits_file(file);
                let shown = limits.display();
                match model.files.contains(&limits) {
                    true => println(format_args!("  {FAINT}limits of {shown}{FAINT:#}"))?,
                    false => println(format_args!(
                        "  {FAINT}default limits: there is no {shown}{FAINT:#}"
                    ))?,
                }
            }
            Err(errors) => {
                let is_unread = |error: &Error| matches!(error, Error::File { .. });
                exit = match exit {
                    Exit::Usage => exit,
                    _ if errors.iter().any(is_unread) => Exit::Usage,
                    _ => Exit::Failed,
                };
                errors.iter().for_each(report);
            }
        }
    }
    Ok(exit)
}
