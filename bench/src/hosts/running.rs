//! A system that is running, and how its processes are started.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::case::{Program, Served};
use super::network::{ADDRESSES, DEVICE, Network, Side, surround};
use super::there::There;
use crate::built::ORTERUN;
use crate::case::Placement;
use crate::process::{ChildError, Process, cpu_ns, descendants};
use crate::run::Run;

/// Maximum time for a system's processes to end.
const END: Duration = Duration::from_secs(20);

/// A running system.
pub(super) struct Running {
    /// Its name.
    pub name: &'static str,
    // Fields drop in this order: the client goes first.
    /// The client. For Open MPI, its command, which passes the client's input and output on.
    pub client: Process,
    /// The server; `None` if the client's process has started it.
    _server: Option<Process>,
    /// The processes on the client's host and on the server's, also those that others of them have
    /// started.
    processes: [Vec<u32>; 2],
}

impl Running {
    /// Starts a system.
    ///
    /// # Errors
    /// A side did not start, or was not ready in time.
    pub fn start(
        name: &'static str,
        served: Served,
        program: &Path,
        network: &Network,
        run: &Run<'_>,
    ) -> Result<Running, ChildError> {
        let ready = |mut command: Command, side: Side| {
            surround(&mut command, side, run.dir);
            let role = side.name();
            let errors = run.dir.join(format!("{name}-{role}-errors"));
            Process::ready(command, format!("{name} {role}"), errors, run.interrupted)
        };
        let arguments = |side: Side| arguments(name, served, side, run);
        let (client, server) = if served.program == Program::OpenMpi {
            let here = |program: &Path| network.command(Side::Client, program);
            let command = by_open_mpi(here, run.cpus.first, program, arguments, run.dir);
            (ready(command, Side::Client)?, None)
        } else {
            let of = |side: Side| {
                let mut command = network.command(side, program);
                command.args(arguments(side)).arg(run.dir);
                command
            };
            let server = ready(of(Side::Server), Side::Server)?;
            (ready(of(Side::Client), Side::Client)?, Some(server))
        };
        let started = [Some(client.id()), server.as_ref().map(Process::id)].into_iter().flatten();
        let all = started.flat_map(|first| [vec![first], descendants(first)].concat());
        let mut processes = [Vec::new(), Vec::new()];
        for process in all {
            if let Some(side) = network.side(process) {
                processes[side as usize].push(process);
            }
        }
        Ok(Running { name, client, _server: server, processes })
    }

    /// Returns the processor time of both hosts' processes so far.
    ///
    /// # Errors
    /// A process has ended.
    pub fn cpu_ns(&self) -> Result<[u64; 2], ChildError> {
        let of = |side: Side| {
            let all = self.processes[side as usize].iter();
            all.map(|&process| cpu_ns(process)).sum::<Result<u64, _>>().map_err(|error| {
                let of = side.name();
                self.client.fault(&format!("a process of the {of}'s host has ended ({error})"))
            })
        };
        Ok([of(Side::Client)?, of(Side::Server)?])
    }

    /// Ends both sides.
    ///
    /// # Errors
    /// The client did not end by itself, or failed; it is killed then.
    pub fn end(mut self, run: &Run<'_>) -> Result<(), ChildError> {
        self.client.say("quit")?;
        self.client.end(END, run.interrupted)
    }
}

/// Returns the arguments of one side, without the run's folder.
fn arguments(name: &str, served: Served, side: Side, run: &Run<'_>) -> [String; 5] {
    let server: SocketAddr =
        match format!("{}:{}", ADDRESSES[Side::Server as usize], served.port).parse() {
            Ok(server) => server,
            Err(_) => unreachable!("a number and a port"),
        };
    let cpu = match side {
        Side::Client => run.cpus.first,
        Side::Server => run.other(Placement::TwoCores),
    };
    ["bench-hosts", name, side.name(), &cpu.to_string(), &server.to_string()].map(str::to_owned)
}

/// Returns the command by which Open MPI starts both sides, over TCP only. `here` runs a program on
/// the client's host.
///
/// The client is the first process, which gets the command's standard input. The command is the
/// first process of a namespace of processes, to which all that it starts belongs, also on the
/// server's host. So none of it outlives the harness.
fn by_open_mpi(
    here: impl Fn(&Path) -> Command,
    cpu: usize,
    program: &Path,
    arguments: impl Fn(Side) -> [String; 5],
    dir: &Path,
) -> Command {
    let mut command = here(Path::new("setpriv"));
    command.args(["--pdeathsig", "KILL", "taskset", "-c", &cpu.to_string()]);
    command.args(["unshare", "--pid", "--fork", "--kill-child", ORTERUN]);
    // Allows root. The processes confine themselves, so the command must not bind them.
    command.args(["--allow-run-as-root", "--bind-to", "none"]);
    for parameter in [
        ["pml", "ob1"],
        ["btl", "tcp,self"],
        ["btl_tcp_if_include", DEVICE],
        ["oob_tcp_if_include", DEVICE],
        ["plm_rsh_agent", There::RELATIVE],
    ] {
        command.arg("--mca").args(parameter);
    }
    for side in [Side::Client, Side::Server] {
        command.args(["--host", ADDRESSES[side as usize], "-np", "1"]).arg(program);
        command.args(arguments(side)).arg(dir);
        if side == Side::Client {
            command.arg(":");
        }
    }
    // The directory of its files.
    command.current_dir(dir).env("TMPDIR", dir);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_mpi_starts_both_sides_over_tcp_only() {
        let here = |program: &Path| {
            let mut command = Command::new("on-client");
            command.arg(program);
            command
        };
        let arguments = |side: Side| ["a", "b", side.name(), "d", "e"].map(str::to_owned);
        let command = by_open_mpi(here, 3, Path::new("/x/program"), arguments, Path::new("/run"));
        let words = command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>();
        let line = words.join(" ");
        assert!(line.starts_with("setpriv --pdeathsig KILL taskset -c 3 unshare --pid"), "{line}");
        assert!(line.contains(" --mca btl tcp,self ") && line.contains(" ./there "), "{line}");
        let sides: Vec<_> = line.split(" : ").collect();
        assert!(
            sides[0].ends_with("--host 10.77.0.1 -np 1 /x/program a b client d e /run"),
            "{line}"
        );
        assert_eq!(sides[1], "--host 10.77.0.2 -np 1 /x/program a b server d e /run");
        assert_eq!(command.get_current_dir(), Some(Path::new("/run")));
    }
}
