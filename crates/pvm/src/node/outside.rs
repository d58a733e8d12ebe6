//! Events from outside of the process: timers, descriptors that tasks wait for, and their system
//! calls on a helper thread.
//!
//! While tasks can run, these are checked at intervals. Otherwise the worker waits for them in the
//! kernel, and uses no processor.

use super::{NextTask, Node};
use crate::error;
use crate::remote::MachineLink;
use crate::task::TaskState;
use rustix::process::fchdir;
use std::cmp::Reverse;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use upcall_ulp::{Aside, NOT_ASIDE, descriptors};

/// Time between two tries to get memory, for a process without a task to run.
const SHORT: Duration = Duration::from_millis(1);
/// Minimum time between two checks of descriptors while tasks run, because a check is a system
/// call.
const BETWEEN: Duration = Duration::from_micros(500);
/// Maximum time of a wait for descriptors that nothing else can end.
const SOON: Duration = Duration::from_millis(1);
/// `POLLIN` of `poll(2)`.
const POLLIN: u16 = 1;

/// The time `nanoseconds` from now. `None` (never) if that is negative or too far away.
pub(super) fn after(nanoseconds: i64) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_nanos(u64::try_from(nanoseconds).ok()?))
}

/// Makes a task's descriptor readable.
pub(super) fn notify(descriptor: &OwnedFd) {
    // It would be full after 2^64 messages.
    let _ = rustix::io::write(descriptor, &1_u64.to_ne_bytes());
}

/// Makes a task's descriptor unreadable.
pub(super) fn silence(descriptor: &OwnedFd) {
    // Does nothing if the task itself has read it.
    let _ = rustix::io::read(descriptor, &mut [0; 8]);
}

/// The umask of a process, some of whose tasks have their own.
pub(super) struct NodeUmask {
    /// Of tasks that have not changed theirs.
    original: u32,
    present: u32,
}

impl NodeUmask {
    fn change_to(&mut self, mask: u32) {
        if self.present != mask {
            self.present = mask;
            set_umask(mask);
        }
    }
}

/// Sets the process's umask, and returns the former one.
fn set_umask(mask: u32) -> u32 {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask)).as_raw_mode()
}

/// Opens a folder, to change into it later.
pub(super) fn folder(path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags =
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

impl Node {
    /// Wakes the tasks whose events have occurred. If `wait`, first waits for an event.
    pub(super) fn look_outside(&mut self, wait: bool) {
        // A message that waits for memory would end each wait at once.
        let is_short = wait && self.is_short();
        if is_short {
            std::thread::sleep(SHORT);
            self.send_unsent();
        }
        let wait = wait && !is_short;
        if self.saving.is_still() {
            if wait {
                self.wait_still();
            }
            return;
        }
        // A node that always has a task to run never gets to settle in a wait.
        if let Some(link) = self.link.as_ref().filter(|_| !wait) {
            link.settle();
        }
        let calls = self.aside_calls > 0;
        if calls && self.aside.as_ref().is_some_and(Aside::has_done) {
            return self.aside_done();
        }
        if self.timers.is_empty() && self.awaiting.is_empty() && !wait {
            return;
        }
        // Reading the clock takes as long as handling a message.
        let timed = !self.timers.is_empty() || !self.awaiting.is_empty();
        let now = if timed { Instant::now() } else { self.looked };
        let until =
            self.timers.peek().map(|Reverse((when, _))| when.saturating_duration_since(now));
        let asked = wait && self.desk.is_some();
        let own = self.next_of_saving().filter(|_| asked);
        let until = until.into_iter().chain(own).chain(self.saving.waits()).min();
        let moves = wait && !self.moving.is_quiet();
        match (&self.link, until) {
            _ if (calls && wait)
                || (!self.awaiting.is_empty() && (wait || now >= self.looked + BETWEEN)) =>
            {
                self.looked = now;
                self.descriptors(if wait { until } else { Some(Duration::ZERO) });
            }
            // With a desk, the wait must include its descriptor. At first, a short wait for the
            // link alone reacts faster to other processes.
            (Some(link), _) if asked && !self.quiet => {
                self.quiet = !link.wait(Some(until.unwrap_or(SOON).min(SOON)), moves);
            }
            _ if asked => {
                self.quiet = false;
                let watches = self.watches();
                let begun = watches.map(|_| Instant::now());
                self.descriptors(until.into_iter().chain(watches).min());
                begun.into_iter().for_each(|begun| self.has_waited(begun.elapsed()));
            }
            (Some(link), _) if wait => _ = link.wait(until, moves),
            (None, Some(until)) if wait => std::thread::sleep(until),
            _ => {}
        }
        self.times();
    }

    /// Sets a timer for a task.
    pub(super) fn at(&mut self, when: Instant, index: u32) {
        self.timers.push(Reverse((when, index)));
    }

    fn times(&mut self) {
        if self.timers.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&Reverse((when, index))) =
            self.timers.peek().filter(|Reverse((when, _))| *when <= now)
        {
            self.timers.pop();
            let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut)
            else {
                continue;
            };
            match task.state {
                TaskState::Receives(_, until) | TaskState::Sleeps(until) if until == Some(when) => {
                    self.wake(index, 0)
                }
                TaskState::Awaits(_, _, until) if until == Some(when) => {
                    self.awaiting.retain(|one| *one != index);
                    self.wake(index, 0);
                }
                _ => {}
            }
            self.alarm(index, when);
        }
    }

    /// Waits for descriptors. Messages of other processes and finished system calls also end the
    /// wait, because they ring doorbells.
    fn descriptors(&mut self, time: Option<Duration>) {
        let tasks = &self.tasks;
        let awaits = |index: &u32| match tasks.get(*index as usize)?.as_deref()?.state {
            TaskState::Awaits(descriptor, events, _) => Some((*index, (descriptor, events))),
            _ => None,
        };
        let (indices, mut wanted): (Vec<_>, Vec<_>) =
            self.awaiting.iter().filter_map(awaits).unzip();
        self.awaiting.clear();
        let waits = time != Some(Duration::ZERO);
        let doorbell = self.link.as_ref().filter(|_| waits).and_then(|link| link.doorbell());
        wanted.extend(doorbell.iter().map(|doorbell| (doorbell.descriptor(), POLLIN)));
        let aside = self.aside.as_ref().filter(|_| waits && self.aside_calls > 0);
        wanted.extend(aside.map(|aside| (aside.descriptor(), POLLIN)));
        wanted.extend(self.desk.iter().filter(|_| waits).map(|desk| (desk.descriptor(), POLLIN)));
        let time = match (&self.link, &doorbell) {
            // A message that arrived before the doorbell was announced does not ring it.
            (Some(link), Some(_)) if link.has_come() => Some(Duration::ZERO),
            // Without a doorbell the wait is short, and messages are polled.
            (Some(_), None) => Some(time.unwrap_or(SOON).min(SOON)),
            _ => time,
        };
        let until = time.and_then(|time| Instant::now().checked_add(time));
        let ready = loop {
            // A ring may announce a queue that the link has to offer again.
            let settles = self.link.as_ref().filter(|_| waits).and_then(MachineLink::settle);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.into_iter().chain(settles).min();
            let ready = descriptors::ready(&wanted, left);
            match doorbell.as_ref().zip(self.link.as_ref()) {
                // A ring without a message: waits on with the same doorbell, because a new one
                // would be rung at once.
                Some((doorbell, link))
                    if ready[indices.len()]
                        && !link.heard(doorbell)
                        && ready.iter().filter(|one| **one).count() == 1 => {}
                _ => break ready,
            }
        };
        drop(doorbell);
        for (index, ready) in indices.into_iter().zip(ready) {
            if ready { self.wake(index, 1) } else { self.awaiting.push(index) }
        }
        if self.aside.as_ref().is_some_and(Aside::has_done) {
            self.aside_done();
        }
    }

    /// Runs a task's system call, described at address `at`, on a helper thread.
    pub(super) fn call_aside(&mut self, index: u32, at: u64) -> NextTask {
        if self.aside.is_none() {
            self.aside = Aside::begin().ok();
        }
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return NextTask::Any;
        };
        match &self.aside {
            Some(aside) if task.ulp.begin_aside(aside, at, index.into()).is_ok() => {
                task.state = TaskState::Aside;
                self.aside_calls += 1;
                // A pending signal interrupts the call if it blocks.
                if task.ulp.handles() {
                    task.ulp.interrupt_aside();
                }
                NextTask::Any
            }
            _ => {
                task.ulp.answer(-(NOT_ASIDE as i64));
                NextTask::Same
            }
        }
    }

    fn aside_done(&mut self) {
        let tokens = self.aside.as_ref().map(Aside::done).unwrap_or_default();
        for index in tokens.into_iter().filter_map(|token| u32::try_from(token).ok()) {
            let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut)
            else {
                continue;
            };
            // The call may belong to an ended task whose number this one has now.
            if task.state == TaskState::Aside
                && let Some(result) = task.ulp.aside()
            {
                self.aside_calls -= 1;
                self.wake(index, result);
            }
        }
    }

    /// Gives the task the folder of this descriptor as its own.
    pub(super) fn own_folder(&mut self, index: u32, descriptor: i32) {
        // Saves the process's original folder when the first task changes its own.
        let first = if self.folder.is_none() { folder(".").map(Some) } else { Ok(None) };
        let own = folder(format!("/proc/self/fd/{descriptor}"));
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        let done =
            first.and_then(|first| own.and_then(|own| fchdir(own.as_fd()).map(|()| (first, own))));
        match done {
            Ok((first, own)) => {
                task.folder = Some(own);
                task.ulp.answer(0);
                self.folder_of = index;
                self.folder = first.or(self.folder.take());
            }
            Err(error) => task.ulp.answer(-i64::from(error.raw_os_error())),
        }
    }

    /// Opens the folder in which a new task starts, or returns PVM's error. The process must be in
    /// its original folder, which this saves.
    pub(super) fn first_folder(&mut self, path: &OsStr) -> Result<OwnedFd, i32> {
        let own = folder(path).map_err(|_| error::NO_FILE)?;
        if self.folder.is_none() {
            self.folder = Some(folder(".").map_err(|_| error::SYS_ERR)?);
        }
        Ok(own)
    }

    /// Moves the process to this task's folder.
    pub(super) fn go_to_folder(&mut self, index: u32) {
        let Some(task) = self.tasks.get(index as usize).and_then(Option::as_deref) else { return };
        let own = task.folder.as_ref().map_or(0, |_| index);
        if own != self.folder_of
            && let Some(folder) = task.folder.as_ref().or(self.folder.as_ref())
        {
            self.folder_of = own;
            // Cannot fail: the folder was entered before, and is held open.
            let _ = fchdir(folder.as_fd());
        }
    }

    /// Gives the task a umask of its own, and answers with the former one.
    pub(super) fn own_umask(&mut self, index: u32, mask: u32) {
        let Some(task) = self.tasks.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        let present = set_umask(mask);
        let node = self.umask.get_or_insert(NodeUmask { original: present, present });
        node.present = mask;
        task.ulp.answer(task.umask.replace(mask).unwrap_or(node.original).into());
    }

    /// Reads the process's umask, before a task with its own enters the process, or one without
    /// leaves for another host. Returns the original one.
    pub(super) fn learn_umask(&mut self) -> u32 {
        let umask = self.umask.get_or_insert_with(|| {
            let present = set_umask(0o077);
            set_umask(present);
            NodeUmask { original: present, present }
        });
        umask.original
    }

    /// Gives the process this task's umask.
    pub(super) fn go_to_umask(&mut self, index: u32) {
        let Some(task) = self.tasks.get(index as usize).and_then(Option::as_deref) else { return };
        if let Some(node) = &mut self.umask {
            node.change_to(task.umask.unwrap_or(node.original));
        }
    }

    /// Moves the process to its original folder, and gives it its original umask.
    pub(super) fn go_home(&mut self) {
        if let Some(node) = &mut self.umask {
            node.change_to(node.original);
        }
        if let Some(folder) = self.folder.as_ref().filter(|_| self.folder_of != 0) {
            self.folder_of = 0;
            let _ = fchdir(folder.as_fd());
        }
    }
}
