//! A private virtual machine of PVM's: a daemon with its own name and folder, and perhaps a second
//! one on another host.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use crate::process::{ChildError, Process, pause};

/// The daemon's program.
const DAEMON: &str = "/usr/bin/pvmd";
/// Maximum time for the daemons to start, and for them to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between two questions whether the second host has joined.
const ASKED: Duration = Duration::from_millis(20);

/// The hosts of a virtual machine.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Span<'a> {
    /// This host.
    One,
    /// Two hosts with these addresses.
    Two {
        addresses: [&'a str; 2],
        /// The program in place of `rsh`, which starts the daemon of the second host. It sets
        /// PVM_TMP to a folder of that host.
        rsh: &'a Path,
    },
}

/// A running daemon. Drop halts it, that of the second host, and all their tasks.
pub(crate) struct Machine {
    daemon: Process,
    /// The processes that the daemon's process started. If that one made a namespace of processes,
    /// this is its first process, which ends when all others of the namespace have ended.
    within: Vec<OwnedFd>,
    dir: PathBuf,
}

impl Machine {
    /// Starts the daemon with the command that `runs` makes of a program, and that of a second
    /// host. The daemons find tasks in `programs`.
    ///
    /// # Errors
    /// A daemon did not start.
    pub fn start(
        runs: impl FnOnce(&Path) -> Command,
        span: Span<'_>,
        programs: &Path,
        dir: &Path,
        interrupted: &AtomicBool,
    ) -> Result<Machine, ChildError> {
        let failed = |error| ChildError::Start { exe: dir.to_owned(), error };
        fs::create_dir_all(dir).map_err(failed)?;
        let hosts = dir.join("hosts");
        let mut lines = format!("* ep={0}:/usr/bin wd={0} dx={DAEMON}\n", programs.display());
        let mut command = runs(Path::new(DAEMON));
        match span {
            // With this name, the host's own name needs no address.
            Span::One => _ = command.arg("-nlocalhost"),
            Span::Two { addresses: [own, other], rsh } => {
                lines += &format!("{other}\n");
                command.arg(format!("-n{own}")).env("PVM_RSH", rsh);
            }
        }
        fs::write(&hosts, lines).map_err(failed)?;
        command.arg(hosts);
        variables(&mut command, dir);
        let mut daemon = Process::start(command, "pvmd".to_owned(), dir.join("errors"))?;
        // The first line announces that it is ready.
        daemon.line("its start", Instant::now() + PATIENCE, interrupted)?;
        let within = children_of(daemon.id());
        let machine = Machine { daemon, within, dir: dir.to_owned() };
        if let Span::Two { .. } = span {
            machine.await_second(interrupted)?;
        }
        Ok(machine)
    }

    /// Waits until the second host has joined.
    fn await_second(&self, interrupted: &AtomicBool) -> Result<(), ChildError> {
        let begun = Instant::now();
        while !console(&self.dir, "conf").contains("2 hosts") {
            if begun.elapsed() > PATIENCE {
                return Err(self.daemon.fault("the second host has not joined"));
            }
            pause(ASKED, interrupted)?;
        }
        Ok(())
    }

    /// Sets the environment by which a program finds the daemon.
    pub fn variables(&self, command: &mut Command) {
        variables(command, &self.dir);
    }

    /// Keeps the daemon, and the tasks that it starts, on these processors.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn confine(&self, cpus: &[usize]) -> Result<(), ChildError> {
        self.daemon.confine(cpus)
    }

    /// Returns the daemon's process id.
    pub fn id(&self) -> u32 {
        self.daemon.id()
    }
}

/// Sets PVM's environment. HOME is the machine's folder, so that a user's ~/.pvmrc is ignored.
fn variables(command: &mut Command, dir: &Path) {
    command.envs([
        ("PVM_ALLOW_ROOT", "1"),
        ("PVM_ROOT", "/usr/lib/pvm3"),
        ("PVM_ARCH", "LINUX64"),
        ("PVM_VMID", "upcall-bench"),
    ]);
    command.env("PVM_TMP", dir).env("HOME", dir);
}

/// Returns handles of the processes that this one has started.
fn children_of(process: u32) -> Vec<OwnedFd> {
    let path = format!("/proc/{process}/task/{process}/children");
    let ids = fs::read_to_string(path).unwrap_or_default();
    let ids = ids.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?));
    ids.filter_map(|id| pidfd_open(id, PidfdFlags::empty()).ok()).collect()
}

/// Runs a command of the console, and returns what the console prints.
fn console(dir: &Path, command: &str) -> String {
    let mut console = Command::new("/usr/bin/pvm");
    variables(&mut console, dir);
    let piped = console.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut console) = piped.spawn() else { return String::new() };
    if let Some(mut input) = console.stdin.take() {
        writeln!(input, "{command}").ok();
    }
    let begun = Instant::now();
    while matches!(console.try_wait(), Ok(None)) && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    console.kill().ok();
    let output = console.wait_with_output();
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Drop for Machine {
    fn drop(&mut self) {
        console(&self.dir, "halt");
        // Tasks that have not ended by then are ended with the daemon.
        if !self.daemon.terminate(Duration::from_secs(2)) {
            self.daemon.kill();
        }
        // The kernel ends the processes of a namespace after this one. Until then they write files.
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        for process in &self.within {
            poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)).ok();
        }
    }
}
