//! Several processes for one machine: the first process starts the others as copies of its own
//! program, and all of them form a group. On each other host that is done by the host's leader
//! ([`hosts`](crate::hosts)).
//!
//! # Numbers of processes
//! A process names another one of its host by its number when it reads or writes the other one's
//! memory (`upcall_ulp::UlpPages::write_to`). A check before that call would not do: the caller may
//! be stopped between the two, while the other process ends and its number becomes a stranger's. So
//! no number becomes free while a process of the machine can still make such a call:
//!
//! 1. The numbers are those of the first process and of its children ([`Others::join`]). On another
//!    host its leader is in the place of the first process.
//! 2. A child that has ended keeps its number until it is waited for. The kernel does not do that
//!    by itself ([`keep_ended_children`]), and tasks wait only for children of their own.
//! 3. The first process waits for none before all have ended ([`Others`]'s `drop`).
//! 4. When the first process ends, all others have a SIGKILL pending before the kernel hands any of
//!    the children to another parent, and before it reports the end (`bind`). Only then can one of
//!    these numbers become free. From then on no process of the machine begins a call. A call that
//!    has begun transfers nothing, because the kernel looks for a pending SIGKILL before it finds
//!    the first page.

use crate::door::GRACE;
use crate::hosts::{
    HostLaunches, HostRecruiter, HostStarter, MachineHosts, MachineMeeting, MemberOrder,
    StartHosts, end_with_input, input_for, read_invitation,
};
use crate::joining::{JoinPetition, JoiningHost, order_of};
use crate::node::Node;
use crate::places::TaskPlaces;
use crate::programs::Programs;
use crate::remote::{JoinInterruption, MachineLink};
use crate::report::report_line;
use crate::sizes::TaskSizes;
use crate::start::{NotRun, Start};
use crate::stream::STDERR;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use upcall_message::Rank;
use upcall_os::process::{self, Bounds};
use upcall_ulp::arena::ArenaNumber;
use upcall_ulp::keep_ended_children;

/// Pins this thread to its process's own CPU, chosen by the process's number on its host among the
/// CPUs that it may use. Two
/// processes that wait for each other on one CPU are ten times as slow as on two, and the kernel
/// tends to put them on the same one.
pub(crate) fn settle(number: usize) {
    let Ok(all) = sched_getaffinity(None) else { return };
    let mine = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor)).collect::<Vec<_>>();
    let mut own = CpuSet::new();
    if let Some(processor) = mine.get(number % mine.len().max(1)) {
        own.set(*processor);
        // If pinning is not permitted, the thread runs where the kernel puts it.
        let _ = sched_setaffinity(None, &own);
    }
}

/// Interval between two checks whether a child has ended.
const LOOK: Duration = Duration::from_micros(200);

/// Time for which processes that are started by hand are waited for.
const BY_HAND: Duration = Duration::from_secs(3600);

/// Time for which other processes are waited for.
const WITHIN: Duration = Duration::from_secs(60);

/// The processes that this one has started.
pub(crate) struct Others {
    /// The order of this process.
    order: MemberOrder,
    children: Vec<Child>,
    /// What has started the processes of other hosts.
    commands: HostLaunches,
    /// The numbers of their arenas, which no other process may have while they live.
    arenas: Vec<ArenaNumber>,
}

/// Arenas for the processes with these ranks.
fn arenas(ranks: &Range<Rank>) -> Result<Vec<ArenaNumber>, NotRun> {
    let no_arena = || io::Error::other("all addresses for messages are taken: start fewer");
    let taken = ranks.clone().map(|_| ArenaNumber::take().ok_or_else(no_arena));
    taken.collect::<Result<_, _>>().map_err(NotRun::Process)
}

fn numbers(arenas: &[ArenaNumber]) -> Vec<u32> {
    arenas.iter().map(ArenaNumber::number).collect()
}

/// The name of the group of a machine's processes. No other machine has it, on any host.
fn group_name() -> String {
    format!("pvm.{}.{:016x}", std::process::id(), RandomState::new().hash_one(0))
}

impl Others {
    /// Starts all other processes of a machine.
    pub(crate) fn start(
        start: &Start,
        hosts: &MachineHosts,
        sizes: TaskSizes,
    ) -> Result<Self, NotRun> {
        let meeting = start.hosts.as_ref().map(|others| MachineMeeting {
            address: others.rendezvous.clone(),
            patience: others.patience,
            within: if others.starter == HostStarter::ByHand { BY_HAND } else { WITHIN },
        });
        let ranks = hosts.ranks(0);
        let near = arenas(&(ranks.start + 1..ranks.end))?;
        let order = MemberOrder {
            group: group_name(),
            hosts: hosts.clone(),
            meeting,
            ranks,
            // This process itself takes one later.
            arenas: [&[0], &numbers(&near)[..]].concat(),
            sizes,
            folders: start.folders.clone(),
            directory: None,
            ends_with_input: false,
            invitation: None,
        };
        let mut others = Self::of(order, near)?;
        for host in 1..hosts.count() {
            let far = arenas(&hosts.ranks(host))?;
            let starts = start.hosts.as_ref();
            let order = MemberOrder {
                ranks: hosts.ranks(host),
                arenas: numbers(&far),
                directory: std::env::current_dir().ok(),
                ends_with_input: starts.is_some_and(|one| one.starter != HostStarter::ByHand),
                ..others.order.clone()
            };
            others.arenas.extend(far);
            let started = starts.map(|one| others.commands.start(one, hosts.name(host), &order));
            started.transpose().map_err(NotRun::Process)?;
        }
        Ok(others)
    }

    /// What starts the processes of hosts that come later.
    pub(crate) fn recruiter(&self, start: &StartHosts) -> HostRecruiter {
        let (launches, order) = (self.commands.clone(), self.order.clone());
        HostRecruiter { launches, start: start.clone(), order }
    }

    /// Starts the other processes of this host that this one is to start.
    fn of(order: MemberOrder, arenas: Vec<ArenaNumber>) -> Result<Self, NotRun> {
        let program = std::env::current_exe().map_err(NotRun::Process)?;
        keep_ended_children().map_err(NotRun::Process)?;
        let (orders, commands) = (order.others(), HostLaunches::default());
        let mut others = Self { order, children: Vec::new(), commands, arenas };
        for order in orders {
            let mut command = Command::new(&program);
            command.arg("pvm-member").args(order.words());
            if order.invitation.is_some() {
                command.stdin(input_for(&order).map_err(NotRun::Process)?.0);
            }
            // The child ends whenever this process ends, even while it is in a system call for a
            // task and receives no messages.
            process::bind(&mut command, Bounds::default());
            others.children.push(command.spawn().map_err(NotRun::Process)?);
        }
        Ok(others)
    }

    /// Joins the group of the processes.
    ///
    /// # Errors
    /// The group was not formed, or has a process of this host that is no child of this one.
    pub(crate) fn join(&self) -> Result<MachineLink, NotRun> {
        let commands = self.commands.clone();
        let children = self.children.iter().map(Pid::from_child).collect::<Vec<_>>();
        let is_over = move || {
            let has_ended = |child: &Pid| !lives(*child, WaitIdOptions::NOHANG);
            commands.failed().is_some() || children.iter().any(has_ended)
        };
        let link = joined(&self.order, Some(Box::new(is_over))).map_err(|error| {
            let ended = || {
                let child = self
                    .children
                    .iter()
                    .find(|one| !lives(Pid::from_child(one), WaitIdOptions::NOHANG));
                child.map(|child| format!("process {} has ended before it has joined", child.id()))
            };
            match self.commands.failed().or_else(ended) {
                Some(why) => NotRun::Process(io::Error::other(why)),
                None => error,
            }
        })?;
        self.commands.have_started(None);
        for (rank, child) in (self.order.ranks.start + 1..).zip(&self.children) {
            // The number of a process that cannot be seen is 0, which no process has.
            let process = link.process(rank).cast_unsigned();
            if process != 0 && process != child.id() {
                let report = format!("process {process} has joined in place of {}", child.id());
                return Err(NotRun::Process(io::Error::other(report)));
            }
        }
        Ok(link)
    }
}

/// Joins the machine's processes as this one.
fn joined(order: &MemberOrder, is_over: Option<JoinInterruption>) -> Result<MachineLink, NotRun> {
    let link = MachineLink::join(order, is_over);
    let link = link.map_err(NotRun::Join)?;
    // Later there may be no descriptor left, and tasks could neither leave nor enter. Where there
    // is no /proc, tasks stay.
    let _ = upcall_ulp::prepare_moves();
    Ok(link)
}

/// Waits for the processes, which end when the first one leaves the group. A process that is in a
/// system call that does not return is killed, but not while standard error is full, because what
/// tasks have written is not to be lost. No process remains.
impl Drop for Others {
    fn drop(&mut self) {
        let mut until = Instant::now() + GRACE;
        for child in &mut self.children {
            while lives(Pid::from_child(child), WaitIdOptions::NOHANG) && Instant::now() < until {
                std::thread::sleep(LOOK);
                if STDERR.is_full() {
                    until = Instant::now() + GRACE;
                }
            }
            // Does nothing if the child has ended.
            let _ = child.kill();
        }
        // Those that were killed end at once, also while they are stopped.
        while self
            .children
            .iter()
            .any(|child| lives(Pid::from_child(child), WaitIdOptions::empty()))
        {}
        // Now no process can use the number of another one.
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Returns `true` if a child has not ended. The child keeps its number. Without `NOHANG`, blocks
/// until the child has ended, or the call is interrupted.
fn lives(child: Pid, options: WaitIdOptions) -> bool {
    let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(child), options) {
        Ok(ended) => ended.is_none(),
        Err(error) => error == rustix::io::Errno::INTR,
    }
}

/// Enters the folder in which a machine was started, or else the user's own.
fn enter(folder: &Path, host: &str) {
    let Err(error) = std::env::set_current_dir(folder) else { return };
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let entered = home.filter(|home| std::env::set_current_dir(home).is_ok());
    let place = entered.or_else(|| std::env::current_dir().ok()).unwrap_or_default();
    report_line!(
        "upcall pvm: on host {host}, tasks start in {}, since {} cannot be entered: {error}",
        place.display(),
        folder.display()
    );
}

/// Runs one of the other processes, which [`run`](crate::run) starts: `pvm-member`, and an order
/// (`NAME=VALUE …`), for a host that comes later with its invitation as the first line of standard
/// input. On another host, starts the other processes of that host. Returns when the
/// machine is over. The thread can do nothing else then.
///
/// # Errors
/// See [`NotRun`]. Wrong arguments are reported as [`NotRun::Process`].
pub fn run_member(args: &[String]) -> Result<(), NotRun> {
    let wrong =
        || NotRun::Process(io::Error::other("pvm-member NAME=VALUE … is for the command itself"));
    let invitation = MemberOrder::are_invited(args).then(read_invitation).transpose();
    let invitation = invitation.map_err(NotRun::Process)?;
    run_ordered(MemberOrder::of(args, invitation).ok_or_else(wrong)?)
}

/// Joins a machine as a host, and runs its processes. Returns when the machine is over, or the host
/// has been removed from it. The thread can do nothing else then.
///
/// # Errors
/// See [`NotRun`].
pub fn join(host: &JoiningHost) -> Result<(), NotRun> {
    let petition = JoinPetition::of(host).map_err(NotRun::Process)?;
    let answer = upcall_message::petition(&host.rendezvous, &petition, host.within);
    let unreadable = || NotRun::Process(io::Error::other("the machine's answer cannot be read"));
    let order = order_of(&answer.map_err(NotRun::Join)?).ok_or_else(unreadable)?;
    run_ordered(order)
}

/// Runs the process that an order describes, and those that it starts.
pub(crate) fn run_ordered(order: MemberOrder) -> Result<(), NotRun> {
    let (rank, hosts, sizes) = (order.ranks.start, order.hosts.clone(), order.sizes);
    let host = hosts.of(rank);
    if order.ends_with_input {
        end_with_input().map_err(NotRun::Process)?;
    }
    order.directory.iter().for_each(|folder| enter(folder, hosts.name(host)));
    let taken = || NotRun::Process(io::Error::other("the addresses for messages are taken"));
    let arena = order.arenas.first().copied().and_then(ArenaNumber::take_this).ok_or_else(taken)?;
    let folders = order.folders.clone();
    let others = Others::of(order, Vec::new())?;
    let link = others.join()?;
    let worker = crate::worker(Some(arena))?;
    settle(rank - hosts.ranks(host).start);
    let places = TaskPlaces::new(rank as u32, hosts.size()).map_err(NotRun::Places)?;
    // With a link this process is never stuck, because others may send something.
    let node = Node::new(worker, Programs::new(folders), None, Some(link), places);
    let _ = node.with_hosts(hosts).with_sizes(sizes).run();
    STDERR.flush();
    Ok(())
}
