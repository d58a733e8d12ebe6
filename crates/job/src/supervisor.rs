//! The supervisor of a job: one thread that serves all its events.
//!
//! The events come from its members, its user, its clients and other supervisors. Members are
//! suspended for two reasons: a request to stop, or another job's turn. They run when there is
//! neither, or when the job is being ended. When this thread ends, for any reason, they end too
//! ([`JobMembers`]). No other process can keep them suspended: a supervisor that receives nothing
//! from the leader for too long lets its members run.

mod asks;
mod part;
mod signals;

use crate::error::JobError;
use crate::freezer::Freezer;
use crate::members::{JobMembers, Program, SuspendMethod, places};
use crate::turns::{ANYWHERE, JobSchedule, RunGrant};
use crate::{Happening, Job, MemberExit, OnDeath, label};
use part::Participation;
use rustix::process::Signal;
pub use signals::Signals;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use upcall_directory::names::{self, Whose, jobs};
use upcall_os::poll::{PollSet, Ready, Report};
use upcall_os::processor;
use upcall_os::socket::{Connection, Listener};

/// Keys of the set of descriptors. Members follow, then the connections of clients.
const LISTENER: u64 = 0;
const LEADER: u64 = 1;
const SIGNALS: u64 = 2;
const MEMBERS: u64 = 16;
const GUESTS: u64 = 1 << 32;

/// Maximum wait for the last output after the last member has ended. Processes that it started may
/// still have the pipe.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The job is being ended.
struct JobShutdown {
    /// When the remaining members are killed.
    kill_at: Option<Instant>,
}

pub(crate) struct Supervisor<'a> {
    job: Job,
    /// Dropped first, so that the fields that follow do not wait for a suspended process.
    members: JobMembers,
    entered: RegisteredName,
    since: u64,
    program: Program,
    places: BTreeSet<u32>,
    tell: &'a mut dyn FnMut(&Happening),
    poll: PollSet,
    listener: Listener,
    signals: Signals,
    guests: BTreeMap<u64, Connection>,
    guests_so_far: u64,
    output: Vec<Receiver<()>>,
    started: bool,
    stopped: bool,
    grant: RunGrant,
    ending: Option<JobShutdown>,
    failed: Option<MemberExit>,
    part: Participation,
    /// When to check next whether members work.
    look_at: Option<Instant>,
    works: BTreeSet<u32>,
}

/// Runs a job to its end.
pub(crate) fn run(job: Job, tell: &mut dyn FnMut(&Happening)) -> Result<u8, JobError> {
    Supervisor::new(job, tell)?.run()
}

/// Our name and our socket in the folder of names, removed at the end.
struct RegisteredName {
    name: String,
    socket: PathBuf,
}

impl Drop for RegisteredName {
    fn drop(&mut self) {
        jobs::forget(&self.name, &self.socket);
    }
}

impl<'a> Supervisor<'a> {
    fn new(job: Job, tell: &'a mut dyn FnMut(&Happening)) -> Result<Self, JobError> {
        let unable = |what: &str| {
            let what = what.to_string();
            move |error| JobError::Resource { what, error }
        };
        let name = job.name();
        names::check(&name).map_err(|why| JobError::BadName { name: name.clone(), why })?;
        let poll = PollSet::new().map_err(unable("a set of descriptors"))?;
        let signals = Signals::new(&poll, SIGNALS).map_err(unable("signals"))?;
        let freezer = match (job.way, job.schedule) {
            // Co-scheduling suspends single members, and the freezer suspends all.
            (Some(SuspendMethod::Signals), _) | (None, Some(JobSchedule::Co)) => None,
            (Some(SuspendMethod::Freezer), Some(JobSchedule::Co)) => {
                return Err(JobError::NoFreezer {
                    why: "co-scheduling suspends single members".into(),
                });
            }
            (Some(SuspendMethod::Freezer), _) => {
                Some(Freezer::new().map_err(|why| JobError::NoFreezer { why })?)
            }
            (None, _) => Freezer::new().ok(),
        };
        let found = places(job.size, job.pin).map_err(unable("the processors that may be used"))?;
        let (socket, listener) = names::listen(Whose::Job)?;
        let entered = RegisteredName { name, socket };
        jobs::enter(&entered.name, &entered.socket)?;
        let since = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let since = since.tv_sec as u64 * 1_000_000_000 + since.tv_nsec as u64;
        let program = Program {
            path: job.program.clone(),
            arguments: job.arguments.clone(),
            // No other run has this name.
            group: format!("run.{}.{since:x}", std::process::id()),
            size: job.size,
            limit: job.limit,
            pin: job.pin,
            input: job.input,
            pipes: job.label,
        };
        let places = found.into_iter().map(|place| place.unwrap_or(ANYWHERE)).collect();
        let grant = if job.schedule.is_some() { RunGrant::Nothing } else { RunGrant::All };
        let part = Participation::new(job.schedule.is_some());
        let supervisor = Self {
            job,
            members: JobMembers::new(freezer),
            entered,
            since,
            program,
            places,
            tell,
            poll,
            listener,
            signals,
            guests: BTreeMap::new(),
            guests_so_far: 0,
            output: Vec::new(),
            started: false,
            stopped: false,
            grant,
            ending: None,
            failed: None,
            part,
            look_at: None,
            works: BTreeSet::new(),
        };
        supervisor
            .poll
            .add(&supervisor.listener, LISTENER, Report::WhileReadable)
            .map_err(unable("its own socket"))?;
        Ok(supervisor)
    }

    fn run(&mut self) -> Result<u8, JobError> {
        let mut ready = Vec::new();
        loop {
            self.take_part();
            if !self.started
                && self.ending.is_none()
                && !self.stopped
                && self.grant != RunGrant::Nothing
            {
                self.start()?;
            }
            self.pass_time();
            if self.is_over() {
                self.last_words();
                return Ok(self.failed.as_ref().map_or(0, |how| how.code()));
            }
            self.poll.wait(
                &mut ready,
                self.due().map(|due| due.saturating_duration_since(Instant::now())),
            );
            for Ready { key, hung_up } in ready.drain(..) {
                match key {
                    LISTENER => self.let_in(),
                    LEADER => self.hear_leader(),
                    // The request of a client that has gone is not carried out: the client has
                    // reported that the supervisor does not reply.
                    GUESTS.. if hung_up => self.see_off(key),
                    GUESTS.. => self.hear(key),
                    MEMBERS.. => self.look_after((key - MEMBERS) as usize)?,
                    _ => self.obey(),
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        if self.started { self.members.living().next().is_none() } else { self.ending.is_some() }
    }

    /// The next time at which something is due without any event.
    fn due(&self) -> Option<Instant> {
        let kill = self.ending.as_ref().and_then(|ending| ending.kill_at);
        [kill, self.look_at, self.part.due(&self.grant)].into_iter().flatten().min()
    }

    fn start(&mut self) -> Result<(), JobError> {
        self.members.start(&self.program)?;
        self.started = true;
        for (rank, member) in self.members.all().iter().enumerate() {
            let added = self.poll.add(&member.pidfd, MEMBERS + rank as u64, Report::WhileReadable);
            added.map_err(|error| JobError::Resource {
                what: "a place to wait for members".into(),
                error,
            })?;
        }
        // After the start, since members would inherit these settings.
        processor::ask_for_short_slices();
        upcall_os::timer::be_exact();
        (self.tell)(&Happening::Started { name: self.entered.name.clone() });
        if self.job.label {
            self.label();
        }
        if self.job.input
            && let Some(mut pipe) = self.members.get(0).and_then(|first| first.child.stdin.take())
        {
            std::thread::spawn(move || io::copy(&mut io::stdin().lock(), &mut pipe));
        }
        self.apply();
        Ok(())
    }

    fn label(&mut self) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        for rank in 0..self.job.size {
            let Some(member) = self.members.get(rank) else { continue };
            out.extend(member.child.stdout.take().map(|pipe| (rank, pipe.into())));
            err.extend(member.child.stderr.take().map(|pipe| (rank, pipe.into())));
        }
        self.output = vec![label::pass(out, io::stdout()), label::pass(err, io::stderr())];
    }

    fn last_words(&mut self) {
        let until = Instant::now() + LAST_WORDS;
        for output in &self.output {
            let _ = output.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Suspends and resumes members, as is now required.
    fn apply(&mut self) {
        let (ending, stopped, grant) = (self.ending.is_some(), self.stopped, &self.grant);
        let may = |processor| ending || (!stopped && grant.permits(processor));
        self.members.let_run(may);
        self.plan_look();
    }

    /// Handles the end of a member, which its pidfd reports.
    fn look_after(&mut self, rank: usize) -> Result<(), JobError> {
        let Some(member) = self.members.get(rank) else { return Ok(()) };
        let unable =
            |error| JobError::Resource { what: format!("waiting for member {rank}"), error };
        let Some(status) = member.child.try_wait().map_err(unable)? else { return Ok(()) };
        member.ended = Some(status);
        let pid = member.pid();
        self.poll.remove(&member.pidfd);
        let how = MemberExit::of(status);
        if how.code() == 0 {
            return Ok(());
        }
        if self.ending.is_some()
            && let Some(failed) = self.failed
        {
            if how.explains(failed) {
                let name = self.entered.name.clone();
                (self.tell)(&Happening::Died { name, rank, pid, how, ends: false });
                self.failed = Some(how);
            }
            return Ok(());
        }
        let first = self.failed.is_none();
        let ends = self.job.on_death == OnDeath::End
            && self.ending.is_none()
            && self.members.living().next().is_some();
        (self.tell)(&Happening::Died { name: self.entered.name.clone(), rank, pid, how, ends });
        if first {
            self.failed = Some(how);
        }
        if ends {
            self.end();
        }
        Ok(())
    }

    /// Ends the members, by SIGTERM, and later by SIGKILL.
    fn end(&mut self) {
        self.leave_turns();
        self.members.signal(Signal::TERM);
        self.ending = Some(JobShutdown { kill_at: Some(Instant::now() + self.job.grace) });
        self.apply();
    }

    /// Handles the signals of our user.
    fn obey(&mut self) {
        for signal in self.signals.take() {
            if self.ending.is_some() || !self.started {
                // A second signal ends the job, even if its members ignore signals.
                self.failed.get_or_insert(MemberExit::Signal(signal.as_raw()));
                self.end();
                continue;
            }
            self.leave_turns();
            self.members.signal(signal);
            self.ending = Some(JobShutdown { kill_at: None });
            self.apply();
        }
    }

    fn pass_time(&mut self) {
        let now = Instant::now();
        if let Some(ending) = &mut self.ending
            && ending.kill_at.is_some_and(|at| now >= at)
        {
            ending.kill_at = None;
            self.members.signal(Signal::KILL);
        }
        if self.look_at.is_some_and(|at| now >= at) {
            self.look();
        }
    }
}

impl MemberExit {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }

    /// Returns `true` if this is a panic or a crash, and `failed` is the code of a program whose
    /// `main` returned an error.
    ///
    /// The other members of a group fail when one dies, and can end sooner than the member that
    /// panics. Another code than 1 was chosen by its program, and is no consequence.
    fn explains(self, failed: Self) -> bool {
        /// The code of a Rust program whose main thread panicked.
        const PANIC: i32 = 101;
        let crashes = [
            Signal::SEGV,
            Signal::BUS,
            Signal::ILL,
            Signal::FPE,
            Signal::ABORT,
            Signal::SYS,
            Signal::TRAP,
        ];
        let is_crash = match self {
            Self::Code(code) => code == PANIC,
            Self::Signal(signal) => crashes.map(Signal::as_raw).contains(&signal),
        };
        is_crash && failed == Self::Code(1)
    }

    /// The code as a shell reports it: for a signal, 128 and the signal.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code as u8,
            Self::Signal(signal) => (128 + signal) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_or_a_crash_explains_another_failure() {
        let (code, signal) = (MemberExit::Code, MemberExit::Signal);
        let segv = signal(Signal::SEGV.as_raw());
        for (later, first, expected) in [
            (code(101), code(1), true),
            (segv, code(1), true),
            (code(1), code(101), false),
            (segv, code(101), false),
            (code(101), segv, false),
            // A code that a program has chosen is the cause, and not a consequence.
            (code(101), code(3), false),
            (signal(Signal::PIPE.as_raw()), code(1), false),
            (signal(Signal::QUIT.as_raw()), code(1), false),
            (code(2), code(1), false),
            // Of the supervisor.
            (signal(Signal::TERM.as_raw()), code(1), false),
            (signal(Signal::KILL.as_raw()), code(1), false),
            (code(101), signal(Signal::TERM.as_raw()), false),
        ] {
            assert_eq!(later.explains(first), expected, "{later:?} after {first:?}");
        }
    }
}
