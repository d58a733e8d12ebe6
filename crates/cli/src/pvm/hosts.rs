//! `upcall pvm run --host`, `add`, `delete`, `conf` and `join`: a machine over several hosts.

use super::{MOST_PROCESSES, Which, ended, make_room};
use crate::exit::{CommandError, CommandResult, Exit};
use crate::names::some_seconds;
use crate::output::{println, report_in_time};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use upcall_pvm::{HostStarter, JoiningHost, StartHost, StartHosts};

/// The other hosts of a machine.
#[derive(clap::Args)]
pub struct HostArgs {
    /// Another host, with the number of its processes (1 by default); may be repeated.
    ///
    /// The host must be trusted (`upcall host trust`) and must trust this one, and the programs
    /// must be there.
    #[arg(long, value_name = "NAME[:PROCESSES]", value_parser = host, requires = "rendezvous")]
    host: Vec<StartHost>,
    /// Address at which the processes of all hosts meet, also those of hosts that come later.
    ///
    /// HOST is this host, by the name under which the others trust it. Hosts come by `upcall pvm
    /// add` and pvm_addhosts, or by themselves (`upcall pvm join`).
    #[arg(long, value_name = "HOST:PORT")]
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
///
/// The file appears under its name when it has the whole token. So a command that is killed leaves
/// no part of it, and another command reads none.
fn own_token(file: &Path) -> Result<String, CommandError> {
    if file.symlink_metadata().is_ok() {
        return token_of(file);
    }
    let failed = |error: io::Error| not_usable(file, &error);
    let name = file.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}", std::process::id()));
    let part = file.with_file_name(hidden);
    // That of a command with this number that was killed.
    let _ = std::fs::remove_file(&part);
    let made: io::Result<String> = (|| {
        let token = random_token()?;
        let mut made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        writeln!(made, "{token}")?;
        made.sync_all()?;
        std::fs::hard_link(&part, file)?;
        Ok(token)
    })();
    let _ = std::fs::remove_file(&part);
    match made {
        // Another command has made it in the meantime.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => token_of(file),
        made => made.map_err(failed),
    }
}

fn random_token() -> io::Result<String> {
    let bytes: [u8; 16] = upcall_os::random::bytes()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads the token of a file that no other user can have written.
fn token_of(file: &Path) -> Result<String, CommandError> {
    /// More than the longest token has.
    const MOST: u64 = 300;
    let failed = |error: io::Error| not_usable(file, &error);
    // A pipe would not open before its writer.
    let data = file.metadata().map_err(failed)?;
    if !data.is_file() {
        return Err(not_usable(file, &"it is no regular file"));
    }
    let open = File::open(file).map_err(failed)?;
    let data = open.metadata().map_err(failed)?;
    let own = upcall_os::process::own_user();
    if ![own, 0].contains(&data.uid()) {
        return Err(not_usable(file, &"it is another user's: make one of your own"));
    }
    if data.mode() & 0o022 != 0 {
        let why = "others can write to it: make another one, which nobody has written to";
        return Err(not_usable(file, &why));
    }
    if data.mode() & 0o044 != 0 && data.uid() == own {
        let name = file.display();
        report_in_time(format_args!("--token-file {name}: others can read it (chmod 600)"));
    }
    let mut text = String::new();
    open.take(MOST).read_to_string(&mut text).map_err(failed)?;
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
///
/// In a machine with --balance the tasks move to other hosts first. Those that cannot move end with
/// their host, and the machine reports the reason.
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
  srun -n 4 upcall pvm join ws1:7000 --token-file token")]
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
    fn a_token_is_made_once_and_read_only_if_nobody_else_can_have_written_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let made = own_token(&file).unwrap();
        assert_eq!((own_token(&file).unwrap(), token_of(&file).unwrap()), (made.clone(), made));
        let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        for bad in [0o620, 0o602, 0o666] {
            mode(bad);
            let why = token_of(&file).unwrap_err().to_string();
            assert!(why.contains("others can write to it"), "{bad:o}: {why}");
        }
        mode(0o600);
        std::fs::write(&file, "x".repeat(1000)).unwrap();
        assert!(own_token(&file).unwrap_err().to_string().contains("16 to 256"));
        let why = own_token(folder.path()).unwrap_err().to_string();
        assert!(why.contains("no regular file"), "{why}");
        // Nothing else is left behind.
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn a_host_has_a_name_and_a_number_of_processes() {
        let of = |text| host(text).map(|host| (host.name, host.processes));
        assert_eq!(of("ws2"), Ok(("ws2".into(), 1)));
        assert_eq!(of("ws2:8"), Ok(("ws2".into(), 8)));
        assert!(["ws2:", "ws2:0", "ws2:257", "ws2:x"].iter().all(|text| of(text).is_err()));
    }
}
