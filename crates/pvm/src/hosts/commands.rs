//! The commands that start the processes of other hosts, such as `ssh`.
//!
//! # Output
//! A command has this process's output and error stream. So what tasks of its host write there
//! comes here, by the command's own connection, in their order. When the machine ends, this process
//! waits for the command, which ends when it has passed on the last byte.
//!
//! # End
//! A command's input is a pipe that this process keeps open, and a leader reads it
//! ([`end_with_input`]), after its invitation if it comes later ([`invited`](super::invited)). So
//! the leader ends when this process does, also by a SIGKILL, and when the command's connection
//! breaks. The kernel ends the other processes of its host with it.

use super::{HostStarter, MachineHosts, MemberOrder, StartHosts, input_for};
use crate::calls::{NodeCall, NodeCaller};
use crate::door::GRACE;
use crate::report::report_line;
use crate::stream::STDERR;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, PipeWriter, Read};
use std::process::{Child, Command};
use std::rc::Rc;
use std::time::{Duration, Instant};
use upcall_message::{Invitation, Petition};
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
    input: Option<PipeWriter>,
    /// The processes have not joined yet.
    is_starting: bool,
}

impl HostLaunch {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn end_input(&mut self) {
        drop(self.input.take());
    }

    /// Kills the command, unless it has ended.
    fn end_by_force(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The commands for all other hosts. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct HostLaunches(Rc<RefCell<StartedLaunches>>);

#[derive(Default)]
struct StartedLaunches(Vec<HostLaunch>);

impl HostLaunches {
    /// Starts the processes of the host with this name, or reports how to start them by hand.
    /// Returns the command's number, if there is one.
    ///
    /// # Errors
    /// The kernel's, with the command.
    pub(crate) fn start(
        &self,
        start: &StartHosts,
        host: &str,
        order: &MemberOrder,
    ) -> io::Result<Option<Pid>> {
        let own = [start.command.clone(), "pvm-member".into()].into_iter().chain(order.words());
        let words = match &start.starter {
            HostStarter::Command(with) => {
                with.iter().map(|word| word.replace("{host}", host)).chain(own).collect::<Vec<_>>()
            }
            HostStarter::ByHand => {
                let own = own.collect::<Vec<_>>().join(" ");
                // A shell runs `echo` itself: the invitation is in no process's words.
                let invited = order.invitation.iter().map(|one| format!("echo {} | ", one.text()));
                let invited = invited.collect::<String>();
                report_line!("upcall pvm: on {host}, run: {invited}{own}");
                return Ok(None);
            }
        };
        let mut command = Command::new(&words[0]);
        let (input, other_end) = input_for(order)?;
        command.args(&words[1..]).stdin(input);
        process::bind(&mut command, Bounds::default());
        let spawned = command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("{:?} for host {host}: {error}", words[0]))
        });
        let (child, input) = (spawned?, Some(other_end));
        let launch = HostLaunch { host: host.into(), child, input, is_starting: true };
        let pid = launch.pid();
        self.0.borrow_mut().0.push(launch);
        Ok(Some(pid))
    }

    /// Records that the processes of all commands, or of one, have joined.
    pub(crate) fn have_started(&self, which: Option<Pid>) {
        let all = &mut self.0.borrow_mut().0;
        let meant = all.iter_mut().filter(|one| which.is_none_or(|which| one.pid() == which));
        meant.for_each(|one| one.is_starting = false);
    }

    /// Ends a command, and the processes that it has started.
    pub(crate) fn end(&self, which: Pid) {
        let all = &mut self.0.borrow_mut().0;
        if let Some(launch) = all.iter_mut().find(|one| one.pid() == which) {
            launch.is_starting = false;
            drop(launch.input.take());
        }
    }

    /// Describes a command that has ended before its processes have joined.
    pub(crate) fn failed(&self) -> Option<String> {
        let all = &self.0.borrow().0;
        let mut starting = all.iter().filter(|one| one.is_starting);
        starting.find_map(|one| Some(describe_end(&one.host, &ended(one.pid())?)))
    }
}

fn describe_end(host: &str, how: &str) -> String {
    format!("the command that starts the processes of host {host} has ended ({how})")
}

/// Starts the processes of hosts that come while the machine runs.
pub(crate) struct HostRecruiter {
    pub(crate) launches: HostLaunches,
    pub(crate) start: StartHosts,
    /// The order of the first process.
    pub(crate) order: MemberOrder,
}

impl HostRecruiter {
    /// The order for the invited processes of a host, which have these arenas.
    pub(crate) fn order(
        &self,
        hosts: &MachineHosts,
        host: usize,
        (arenas, invitation): (Vec<u32>, Invitation),
        how: HostComes<'_>,
    ) -> MemberOrder {
        let is_by_command = self.start.starter != HostStarter::ByHand;
        let is_started = matches!(how, HostComes::Started) && is_by_command;
        MemberOrder {
            hosts: hosts.clone(),
            ranks: hosts.ranks(host),
            arenas,
            directory: Some(std::env::current_dir().ok()).filter(|_| is_started).flatten(),
            ends_with_input: is_started,
            invitation: Some(invitation),
            ..self.order.clone()
        }
    }

    /// Starts the processes of a host, whose number is `host`. The caller learns when the command
    /// ends, if there is one.
    ///
    /// # Errors
    /// The kernel's: the command cannot be started, or not be watched.
    pub(crate) fn recruit(
        &self,
        host: usize,
        order: &MemberOrder,
        caller: NodeCaller,
    ) -> io::Result<Option<Pid>> {
        let name = order.hosts.name(host).to_owned();
        let Some(pid) = self.launches.start(&self.start, &name, order)? else { return Ok(None) };
        let watch = move || {
            let why = match await_end(pid) {
                Some(how) => describe_end(&name, &how),
                None => return,
            };
            caller.call(NodeCall::CommandEnded { host, why });
        };
        let thread = std::thread::Builder::new().name("host".into());
        if let Err(error) = thread.spawn(watch) {
            self.launches.end(pid);
            return Err(error);
        }
        Ok(Some(pid))
    }
}

/// How the processes of a host come to their order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostComes<'a> {
    /// The first process has them started.
    Started,
    /// The host has asked by this petition.
    ByItself(&'a Petition),
}

/// Waits until a child has ended, which keeps its number. `None`: there is no such child any more.
fn await_end(pid: Pid) -> Option<String> {
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => return ended(pid),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
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
/// end are killed, and so are their processes. Those whose processes have not joined are killed at
/// once: they would wait for the others.
impl Drop for StartedLaunches {
    fn drop(&mut self) {
        let mut until = Instant::now() + LAST_OUTPUT;
        for mut one in self.0.extract_if(.., |one| one.is_starting) {
            one.end_by_force();
        }
        for one in &mut self.0 {
            let pid = one.pid();
            while ended(pid).is_none() && Instant::now() < until {
                std::thread::sleep(LOOK);
                if STDERR.is_full() {
                    until = Instant::now() + LAST_OUTPUT;
                }
            }
            if ended(pid).is_none() {
                report_line!("upcall pvm: the processes of host {} do not end", one.host);
            }
        }
        self.0.iter_mut().for_each(HostLaunch::end_input);
        until = until.min(Instant::now() + GRACE);
        for one in &mut self.0 {
            while ended(one.pid()).is_none() && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
            one.end_by_force();
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
