//! A script in place of `ssh` and `rsh`, by which programs start others on the server's host.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::network::{Network, Side, surround};
use crate::case::Placement;
use crate::error::RunError;
use crate::run::Run;

/// The script, in the run's folder. It has the arguments HOST COMMAND …, and runs the command on
/// the server's host, on that host's processor. It takes no notice of HOST.
pub(super) struct There(PathBuf);

impl There {
    /// Its path from the run's folder, for programs that separate its arguments by spaces, which
    /// the folder's path may have.
    pub const RELATIVE: &'static str = "./there";

    /// Writes the script, and makes the folder of the PVM daemon that it starts.
    ///
    /// # Errors
    /// A file cannot be written to the run's folder.
    pub fn write(network: &Network, run: &Run<'_>) -> Result<There, RunError> {
        let path = run.dir.join("there");
        let command = command(network, run);
        match command.and_then(|command| write(&path, &command)) {
            Ok(()) => Ok(There(path)),
            Err(error) => Err(RunError::File { path, error }),
        }
    }

    /// Returns its whole path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Returns the command that runs another one on the server's host.
fn command(network: &Network, run: &Run<'_>) -> io::Result<Command> {
    let folder = run.dir.join("pvm-there");
    fs::create_dir_all(&folder)?;
    let mut command = network.command(Side::Server, Path::new("taskset"));
    command.args(["-c", &run.other(Placement::TwoCores).to_string()]);
    surround(&mut command, Side::Server, run.dir);
    command.env("PVM_TMP", folder);
    Ok(command)
}

fn write(path: &Path, command: &Command) -> io::Result<()> {
    fs::write(path, script_of(command))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

/// Returns a script with the arguments HOST COMMAND …, which passes the command to another one, as
/// `ssh` does.
fn script_of(command: &Command) -> String {
    let quoted =
        |text: &std::ffi::OsStr| format!("'{}'", text.to_string_lossy().replace('\'', r"'\''"));
    let words = [command.get_program()].into_iter().chain(command.get_args()).map(quoted);
    let words = words.collect::<Vec<_>>().join(" ");
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("export {}={}\n", name.to_string_lossy(), quoted(value?)))
    });
    let variables = variables.collect::<String>();
    format!("#!/bin/sh\nshift\n{variables}exec {words} sh -c \"exec $*\"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_passed_on_with_its_words_and_variables() {
        let dir = std::env::temp_dir().join(format!("upcall-hosts-there-{}", std::process::id()));
        let mut other = Command::new("env");
        other.arg("WORD=it's one").env("UPCALL_THERE", "a b");
        fs::write(&dir, script_of(&other)).unwrap();
        let asked = "printenv WORD UPCALL_THERE";
        for words in [vec![asked], asked.split(' ').collect()] {
            let output = Command::new("sh").arg(&dir).arg("host").args(words).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "it's one\na b\n", "{output:?}");
        }
        fs::remove_file(dir).unwrap();
    }
}
