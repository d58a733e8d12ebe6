//! `upcall pvm run --host`: a machine over several hosts.

use crate::exit::CommandError;
use crate::names::some_seconds;
use std::time::Duration;
use upcall_pvm::{HostStarter, StartHost, StartHosts};

/// The other hosts of a machine.
#[derive(clap::Args)]
pub struct HostArgs {
    /// Another host, with the number of its processes (1 by default); may be repeated.
    ///
    /// The host must be trusted (`upcall host trust`) and must trust this one, and the programs
    /// must be there. In a machine with several hosts tasks do not move, and there are no
    /// checkpoints.
    #[arg(
        long, value_name = "NAME[:PROCESSES]", value_parser = host, requires = "rendezvous",
        conflicts_with_all = ["balance", "as_processes"]
    )]
    host: Vec<StartHost>,
    /// Address at which the processes of all hosts meet.
    ///
    /// HOST is this host, by the name under which the others trust it.
    #[arg(long, value_name = "HOST:PORT", requires = "host")]
    rendezvous: Option<String>,
    /// Command that starts processes on another host; {host} becomes its name.
    ///
    /// With `none`, the commands to run on each host are printed, and the machine waits for an
    /// hour.
    #[arg(long, value_name = "COMMAND", default_value = "ssh {host}", requires = "host")]
    with: String,
    /// The command `upcall` on the other hosts.
    ///
    /// A path, or a name in their PATH.
    #[arg(long, value_name = "PATH", default_value = "upcall", requires = "host")]
    upcall: String,
    /// Time for which a host may be out of reach.
    ///
    /// After that it has ended, and its tasks with it.
    #[arg(
        long, value_name = "SECONDS", default_value = "30", value_parser = some_seconds,
        requires = "host"
    )]
    patience: Duration,
}

/// Reads a host and its number of processes.
fn host(text: &str) -> Result<StartHost, String> {
    let (name, processes) = match text.rsplit_once(':') {
        Some((name, processes)) => (name, super::number(processes, super::MOST_PROCESSES)?),
        None => (text, 1),
    };
    Ok(StartHost { name: name.into(), processes: processes as usize })
}

impl HostArgs {
    /// Number of processes on other hosts.
    pub fn processes(&self) -> usize {
        self.host.iter().map(|host| host.processes).sum()
    }

    /// The hosts, if there are other ones.
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
        let Self { host: hosts, upcall: command, patience, .. } = self;
        Ok(Some(StartHosts { hosts, rendezvous, starter, command, patience }))
    }
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
