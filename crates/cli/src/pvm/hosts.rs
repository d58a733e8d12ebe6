//! `upcall pvm run --host`, `add`, `delete`, `conf` and `join`: a machine over several hosts.

use super::{MOST_PROCESSES, Which, ended, make_room};
use crate::exit::{CommandError, CommandResult, Exit};
use crate::names::some_seconds;
use crate::output::{println, report_in_time};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use upcall_pvm::{HostStarter, JoiningHost, StartHost, StartHosts};

/// The other hosts of a machine.
#[derive(clap::Args)]
pub struct HostArgs {
    /// Another host, with the number of its processes (1 by default); may be repeated.
    ///
    /// The host must be trusted (`upcall host trust`) and must trust this one, and the programs
    /// must be there. In a machine with several hosts there are no checkpoints.
    #[arg(long, value_name = "NAME[:PROCESSES]", value_parser = host, requires = "rendezvous")]
    host: Vec<StartHost>,
    /// Address at which the processes of all hosts meet, also those of hosts that come later.
    ///
    /// HOST is this host, by the name under which the others trust it. Hosts come by `upcall pvm
    /// add` and pvm_addhosts, or by themselves (`upcall pvm join`).
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "as_processes")]
    rendezvous: Option<String>,
    /// Number of processes that there is room for on hosts that come later; 16 by default.
    ///
    /// Each takes a part of what the machine may buffer.
    #[arg(
        long, value_name = "N", requires = "rendezvous", hide_short_help = true,
        value_parser = clap::value_parser!(u32).range(..i64::from(MOST_PROCESSES))
    )]
    room: Option<u32>,
    /// File with the token by which hosts join by themselves (`upcall pvm join`).
    ///
    /// If there is no such file, it is made, with a random token. Without this option no host joins
    /// by itself.
    #[arg(long, value_name = "FILE", requires = "rendezvous", hide_short_help = true)]
    token_file: Option<PathBuf>,
    /// Command that starts processes on another host; {host} becomes its name.
    ///
    /// With `none`, the commands to run on each host are printed, and the machine waits for an
    /// hour.
    #[arg(long, value_name = "COMMAND", default_value = "ssh {host}", requires = "rendezvous")]
    with: String,
    /// The command `upcall` on the other hosts.
    ///
    /// A path, or a name in their PATH.
    #[arg(
        long,
        value_name = "PATH",
        default_value = "upcall",
        requires = "rendezvous",
        hide_short_help = true
    )]
    upcall: String,
    /// Time for which a host may be out of reach.
    ///
    /// After that it has ended, and its tasks with it.
    #[arg(
        long, value_name = "SECONDS", default_value = "30", value_parser = some_seconds,
        requires = "rendezvous", hide_short_help = true
    )]
    patience: Duration,
}

/// Reads a host and its number of processes.
fn host(text: &str) -> Result<StartHost, String> {
    let (name, processes) = match text.rsplit_once(':') {
        Some((name, processes)) => (name, super::number(processes, MOST_PROCESSES)?),
        None => (text, 1),
    };
    Ok(StartHost { name: name.into(), processes: processes as usize })
}

impl HostArgs {
    /// Number of processes on other hosts.
    pub fn processes(&self) -> usize {
        self.host.iter().map(|host| host.processes).sum()
    }

    /// Returns `true` if there are other hosts, or may be later.
    pub fn are_several(&self) -> bool {
        self.rendezvous.is_some()
    }

    /// The hosts, if there are other ones, or may be later.
    pub fn start(self) -> Result<Option<StartHosts>, CommandError> {
        let Some(rendezvous) = self.rendezvous else { return Ok(None) };
        let words = self.with.split_whitespace().map(String::from).collect::<Vec<_>>();
        let starter = match &words[..] {
            [] => {
                return Err(CommandError::usage(format_args!(
                    "--with is empty: give a command, or `none` to start the processes by hand"
                )));
            }
            [none] if none == "none" => HostStarter::ByHand,
            _ => HostStarter::Command(words),
        };
        let token = self.token_file.as_deref().map(own_token).transpose()?;
        let Self { host: hosts, upcall: command, patience, room, .. } = self;
        let room = room.map(|room| room as usize);
        Ok(Some(StartHosts { hosts, rendezvous, starter, command, patience, room, token }))
    }
}

/// Reads the token of a file, or makes the file.
fn own_token(file: &Path) -> Result<String, CommandError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    match made {
        Ok(mut made) => {
            let written = random_token().and_then(|token| {
                writeln!(made, "{token}")?;
                Ok(token)
            });
            written.map_err(|error| {
                // A file without a token would stay in the way.
                let _ = std::fs::remove_file(file);
                not_usable(file, &error)
            })
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => token_of(file),
        Err(error) => Err(not_usable(file, &error)),
    }
}

fn random_token() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads the token of a file.
fn token_of(file: &Path) -> Result<String, CommandError> {
    let text = std::fs::read_to_string(file).map_err(|error| not_usable(file, &error))?;
    let token = text.trim_end_matches(['\n', '\r']);
    upcall_pvm::check_token(token).map_err(|why| not_usable(file, &why))?;
    Ok(token.into())
}

fn not_usable(file: &Path, why: &dyn std::fmt::Display) -> CommandError {
    CommandError::usage(format_args!("--token-file {}: {why}", file.display()))
}

/// Adds hosts to a machine, and returns when each has joined or failed.
///
/// The machine was started with --rendezvous. It starts the processes of the hosts by the command
/// of --with. New tasks can start there, and tasks that asked for it (pvm_notify) get a notice.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall pvm add ws2\n  upcall pvm add ws2:4 ws3:4 --machine 4711"
)]
pub struct PvmAddArgs {
    /// The hosts, each with the number of its processes (1 by default).
    #[arg(value_name = "NAME[:PROCESSES]", required = true)]
    hosts: Vec<String>,
    #[command(flatten)]
    which: Which,
}

/// Removes hosts from a machine, with all their tasks, and returns when they have left.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  upcall pvm delete ws2\n  upcall pvm delete ws2 --machine 4711"
)]
pub struct PvmDeleteArgs {
    /// The hosts, as `upcall pvm conf` lists them.
    #[arg(value_name = "NAME", required = true)]
    hosts: Vec<String>,
    #[command(flatten)]
    which: Which,
}

/// Lists the hosts of a machine, with their numbers as programs see them.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  upcall pvm conf\n  upcall pvm conf --json")]
pub struct PvmConfArgs {
    /// Print a JSON array with one object for each host: its name and number.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

/// Joins a machine on another host as a host of it, and runs its tasks here.
///
/// For schedulers that start processes by themselves (Slurm's srun, Kubernetes, systemd): the
/// machine was started with --rendezvous and --token-file, and this host has a copy of that file.
/// The two hosts trust each other (`upcall host trust`). The command returns when the machine has
/// ended, or has removed this host.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  upcall pvm join ws1:7000 --token-file token
  srun -n 4 upcall pvm join ws1:7000 --token-file token --processes 8")]
pub struct PvmJoinArgs {
    /// Address at which the machine's processes meet.
    #[arg(value_name = "HOST:PORT")]
    rendezvous: String,
    /// File with the machine's token.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// This host's name in the machine; by default its own.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Number of processes here.
    #[arg(
        short, long, value_name = "P", default_value = "1",
        value_parser = |text: &str| super::number(text, MOST_PROCESSES)
    )]
    processes: u32,
    /// Time for which the machine is waited for.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = some_seconds)]
    within: Duration,
}

pub fn add(args: &PvmAddArgs) -> CommandResult {
    changed(&upcall_pvm::add_hosts(args.which.machine, &args.hosts)?, "has joined")
}

pub fn delete(args: &PvmDeleteArgs) -> CommandResult {
    changed(&upcall_pvm::remove_hosts(args.which.machine, &args.hosts)?, "has left")
}

/// Reports what has become of hosts.
fn changed(all: &[(String, i32)], how: &str) -> CommandResult {
    let mut exit = Exit::Done;
    for (name, result) in all {
        match result {
            0.. => println(format_args!("host {} {how}", crate::output::cell(name)))?,
            error => {
                exit = Exit::Failed;
                let (name, why) = (crate::output::cell(name), upcall_pvm::host_error(*error));
                report_in_time(format_args!("host {name}: {why}"));
            }
        }
    }
    Ok(exit)
}

pub fn conf(args: &PvmConfArgs) -> CommandResult {
    let all = upcall_pvm::hosts(args.which.machine)?;
    if args.json {
        let one = |(name, number): &(String, i32)| {
            let number = format!("{number:x}");
            serde_json::json!({ "host": name, "number": number })
        };
        println(format_args!("{}", serde_json::Value::from_iter(all.iter().map(one))))?;
        return Ok(Exit::Done);
    }
    println(format_args!("{:<24} NUMBER", "HOST"))?;
    for (name, number) in &all {
        println(format_args!("{:<24} {number:x}", crate::output::cell(name)))?;
    }
    Ok(Exit::Done)
}

pub fn join(args: PvmJoinArgs) -> CommandResult {
    make_room();
    let token = token_of(&args.token_file)?;
    let PvmJoinArgs { rendezvous, name, processes, within, .. } = args;
    let processes = processes as usize;
    let host = JoiningHost { rendezvous, token, name, processes, within };
    ended(upcall_pvm::join(&host).map(|()| 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_name_and_a_number_of_processes() {
        let of = |text| host(text).map(|host| (host.name, host.processes));
        assert_eq!(of("ws2"), Ok(("ws2".into(), 1)));
        assert_eq!(of("ws2:8"), Ok(("ws2".into(), 8)));
        assert!(["ws2:", "ws2:0", "ws2:257", "ws2:x"].iter().all(|text| of(text).is_err()));
    }
}
