//! The commands that start the processes of other hosts, such as `ssh`.
//!
//! # Output
//! A command has this process's output and error stream. So what tasks of its host write there
//! comes here, by the command's own connection, in their order. When the machine ends, this process
//! waits for the command, which ends when it has passed on the last byte.
//!
//! # End
//! A command's input is a pipe that this process keeps open, and a leader reads it
//! ([`end_with_input`]). So the leader ends when this process does, also by a SIGKILL, and when the
//! command's connection breaks. The kernel ends the other processes of its host with it.

use super::{HostStarter, MemberOrder, StartHosts};
use crate::door::GRACE;
use crate::report::report_line;
use crate::stream::STDERR;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall_os::process::{self, Bounds};

/// Interval between two checks whether a command has ended.
const LOOK: Duration = Duration::from_millis(1);

/// Maximum time for which a command may pass on output after the machine has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(10);

/// A command that has started processes of another host.
struct HostLaunch {
    host: String,
    child: Child,
    /// The leader ends when this is closed.
    input: Option<ChildStdin>,
}

/// The commands for all other hosts.
#[derive(Default)]
pub(crate) struct HostLaunches {
    all: Vec<HostLaunch>,
    /// Those whose end keeps the machine from its start.
    starting: Rc<RefCell<Vec<(String, Pid)>>>,
}

impl HostLaunches {
    /// Starts the processes of the host with this name, or reports how to start them by hand.
    ///
    /// # Errors
    /// The kernel's, with the command.
    pub(crate) fn start(
        &mut self,
        start: &StartHosts,
        host: &str,
        order: &MemberOrder,
    ) -> io::Result<()> {
        let own = [start.command.clone(), "pvm-member".into()].into_iter().chain(order.words());
        let words = match &start.starter {
            HostStarter::Command(with) => {
                with.iter().map(|word| word.replace("{host}", host)).chain(own).collect::<Vec<_>>()
            }
            HostStarter::ByHand => {
                let own = own.collect::<Vec<_>>().join(" ");
                report_line!("upcall pvm: on {host}, run: {own}");
                return Ok(());
            }
        };
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped());
        process::bind(&mut command, Bounds::default());
        let spawned = command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("{:?} for host {host}: {error}", words[0]))
        });
        let mut child = spawned?;
        self.starting.borrow_mut().push((host.into(), Pid::from_child(&child)));
        let input = child.stdin.take();
        self.all.push(HostLaunch { host: host.into(), child, input });
        Ok(())
    }

    /// Returns whether a command has ended, until [`have_started`](Self::have_started).
    pub(crate) fn watch(&self) -> impl Fn() -> bool + 'static {
        let starting = self.starting.clone();
        move || starting.borrow().iter().any(|(_, pid)| ended(*pid).is_some())
    }

    /// Records that all processes have joined.
    pub(crate) fn have_started(&self) {
        self.starting.borrow_mut().clear();
    }

    /// Describes a command that has ended before its processes have joined.
    pub(crate) fn failed(&self) -> Option<String> {
        let starting = self.starting.borrow();
        let mut all = starting.iter().filter_map(|(host, pid)| Some((host, ended(*pid)?)));
        all.next().map(|(host, how)| {
            format!("the command that starts the processes of host {host} has ended ({how})")
        })
    }

    /// Returns `true` if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// How a child has ended, which keeps its number. `None`: it has not.
fn ended(pid: Pid) -> Option<String> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let status = waitid(WaitId::Pid(pid), options).ok()??;
    Some(match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown status".into(),
    })
}

/// Waits for the commands, which end with the processes that they have started. Those that do not
/// end are killed, and so are their processes. If the machine has not started, all are killed at
/// once: their processes would wait for the others.
impl Drop for HostLaunches {
    fn drop(&mut self) {
        let has_started = self.starting.borrow().is_empty();
        let mut until = Instant::now() + if has_started { LAST_OUTPUT } else { Duration::ZERO };
        for one in &mut self.all {
            let pid = Pid::from_child(&one.child);
            while ended(pid).is_none() && Instant::now() < until {
                std::thread::sleep(LOOK);
                if STDERR.is_full() {
                    until = Instant::now() + LAST_OUTPUT;
                }
            }
            if has_started && ended(pid).is_none() {
                report_line!("upcall pvm: the processes of host {} do not end", one.host);
            }
        }
        self.all.iter_mut().for_each(|one| drop(one.input.take()));
        until = until.min(Instant::now() + GRACE);
        for one in &mut self.all {
            while ended(Pid::from_child(&one.child)).is_none() && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
            // Does nothing if the command has ended.
            let _ = one.child.kill();
            let _ = one.child.wait();
        }
    }
}

/// Lets this process end soon after its standard input, which tasks find empty.
///
/// # Errors
/// The kernel's: there are no descriptors, or is no thread.
pub(crate) fn end_with_input() -> io::Result<()> {
    let mut input = File::from(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let watch = move || {
        let mut bytes = [0; 64];
        loop {
            match input.read(&mut bytes) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        // The machine may just be ending.
        std::thread::sleep(GRACE);
        let _ = kill_process(getpid(), Signal::KILL);
    };
    std::thread::Builder::new().name("input".into()).spawn(watch).map(drop)
}
