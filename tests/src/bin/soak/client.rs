//! Clients of the run: kernel threads and user-level threads that call all servers, and check that
//! each error tells the truth.

use crate::book::{End, Plane, SlotWord, Sum, Times};
use crate::role::{Role, kind, say};
use crate::server::interface::work::{Session, Work};
use crate::server::{INNER, step};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use upcall::{BindError, CallError, Closed, Failure, Pacing};
use upcall_tests::dice::Dice;
use upcall_tests::now;
use upcall_tests::party::Said;

/// Number of callers of one client that are kernel threads.
const KERNEL: usize = 2;
/// Number of callers of one client that are user-level threads of one virtual processor.
const USERS: usize = 3;
/// Number of callers of one client. Each has a lane of the record.
pub const CALLERS: usize = KERNEL + USERS;
/// Longest time for which a disturbance of a server explains a failed bind, in nanoseconds.
pub const EXPLAINED: u64 = 8_000_000_000;

/// A server as its clients know it.
#[derive(Clone)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Its slot in the record.
    pub slot: usize,
    /// Whether it is never killed or stopped.
    pub steady: bool,
}

/// Reads `NAME=SLOT` or `NAME=SLOT=steady`.
pub fn known(words: &[&str]) -> Vec<Known> {
    let one = |word: &&str| {
        let mut parts = word.split('=');
        let (name, slot) = (parts.next()?.to_string(), parts.next()?.parse().ok()?);
        Some(Known { name, slot, steady: parts.next() == Some("steady") })
    };
    words.iter().filter_map(one).collect()
}

struct Caller {
    role: Role,
    lane: usize,
    dice: Dice,
    servers: Vec<Known>,
    bound: Vec<Option<Bound>>,
}

struct Bound {
    work: Work,
    /// The server's process; 0 until the server has reported it.
    pid: u32,
    session: Option<(Session, u64)>,
}

/// The parameters of a call, on which depends which errors are valid.
struct Given {
    id: u64,
    deadline: bool,
    pid: u32,
    since: u64,
}

/// Calls until the run ends. The lanes from `first` on belong to this process.
pub fn run(role: &Role, first: usize, servers: &[Known]) {
    say(&Said::Ok(vec!["calls".into()]));
    std::thread::scope(|scope| {
        for part in 0..KERNEL {
            let mut caller = Caller::new(role, first + part, servers);
            scope.spawn(move || {
                loop {
                    caller.work();
                    caller.role.rest();
                }
            });
        }
        scope.spawn(|| {
            loop {
                let processors = upcall::thread::processors(1, Pacing::Adaptive);
                let run = processors.and_then(|processors| {
                    processors.run(|| {
                        let threads: Vec<_> = (KERNEL..CALLERS)
                            .map(|part| {
                                let mut caller = Caller::new(role, first + part, servers);
                                upcall::thread::spawn(move || caller.work())
                            })
                            .collect();
                        threads.into_iter().for_each(|thread| drop(thread.join()));
                    })
                });
                if let Err(error) = run {
                    role.complain("processors", error);
                }
                role.rest();
            }
        });
        role.until_the_end();
        // The process exits without waiting for calls under way, as a program does that returns
        // from `main`.
        std::process::exit(0);
    });
}

/// Calls one server at a steady pace, and notes how long each call takes.
pub fn stand_by(role: &Role, lane: usize, servers: &[Known]) {
    let mut caller = Caller::new(role, lane, servers);
    say(&Said::Ok(vec!["stands by".into()]));
    let bystander = role.clone();
    std::thread::spawn(move || {
        loop {
            bystander.rest();
            if caller.bind(0) {
                let (since, which) = (now(), u64::from(caller.dice.below(8) == 0));
                caller.call(0, which, None);
                bystander.book.note(Times::Bystander, now() - since);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    role.until_the_end();
    std::process::exit(0);
}

impl Caller {
    fn new(role: &Role, lane: usize, servers: &[Known]) -> Self {
        let dice = role.dice(lane as u64 + 1);
        Self {
            role: role.clone(),
            lane,
            dice,
            servers: servers.to_vec(),
            bound: servers.iter().map(|_| None).collect(),
        }
    }

    /// Works until this process is to rest, then unbinds from all servers.
    fn work(&mut self) {
        while !self.role.rests() {
            self.turn();
            match self.dice.below(8) {
                0 => upcall::thread::sleep(Duration::from_micros(self.dice.below(3000))),
                _ => upcall::thread::sleep(Duration::from_micros(self.dice.below(300))),
            }
        }
        for at in 0..self.bound.len() {
            self.let_go(at);
        }
    }

    fn let_go(&mut self, at: usize) {
        let pid = self.bound[at].as_ref().map_or(0, |bound| bound.pid);
        self.role.book.waits(self.lane, "rest", pid);
        self.bound[at] = None;
        self.role.book.goes(self.lane);
    }

    fn turn(&mut self) {
        let at = self.dice.below(self.servers.len() as u64) as usize;
        if !self.bind(at) {
            return upcall::thread::sleep(Duration::from_millis(2));
        }
        let deadline =
            (self.dice.below(6) == 0).then(|| Duration::from_micros(20 << self.dice.below(10)));
        match self.dice.below(100) {
            0..4 => self.let_go(at),
            4..50 => self.call(at, 0, deadline),
            50..62 => self.call(at, 1, deadline),
            62..75 => self.call(at, 2, deadline),
            75..83 => self.call(at, 3, deadline),
            83..92 => self.call(at, 4, deadline),
            _ => self.session(at),
        }
    }

    /// Binds to the server if needed. Returns `true` if there is a binding.
    fn bind(&mut self, at: usize) -> bool {
        if self.bound[at].as_ref().is_some_and(|bound| bound.work.is_open()) {
            return true;
        }
        self.let_go(at);
        let (role, server) = (self.role.clone(), self.servers[at].clone());
        let pid = role.book.slot(server.slot, SlotWord::Pid).load(SeqCst) as u32;
        role.book.waits(self.lane, "bind", pid);
        let bound = Work::bind(&server.name);
        let since = role.book.goes(self.lane);
        match bound {
            Ok(work) => {
                role.book.add(Sum::Binds, 1);
                role.book.waits(self.lane, "step", pid);
                let who = work.who();
                role.book.goes(self.lane);
                let pid = who.unwrap_or(0) as u32;
                self.bound[at] = Some(Bound { work, pid, session: None });
                true
            }
            Err(error) => {
                role.book.add(Sum::BindErrors, 1);
                let disturbed = role.book.slot(server.slot, SlotWord::Disturbed).load(SeqCst);
                let explained = match &error {
                    BindError::NoSuchName { .. }
                    | BindError::ServerGone { .. }
                    | BindError::HungUp { .. }
                    | BindError::NoAnswer { .. }
                    | BindError::Protocol { .. } => disturbed + EXPLAINED > since,
                    _ => false,
                };
                if server.steady || !explained {
                    let after = now().saturating_sub(disturbed) / 1_000_000;
                    role.complain(
                        "bind",
                        format!(
                            "binding {} failed, {after} ms after its last disturbance: {}: {error}",
                            server.name,
                            kind(&error)
                        ),
                    );
                }
                false
            }
        }
    }

    fn begin(&mut self, what: &'static str, at: usize, deadline: bool) -> Option<Given> {
        let pid = self.bound[at].as_ref().map_or(0, |bound| bound.pid);
        let id = match self.role.book.begin(self.lane) {
            Ok(id) => id,
            Err(wrong) => {
                self.role.complain("ledger", wrong);
                return None;
            }
        };
        self.role.book.waits(self.lane, what, pid);
        if id % 500 == 7 && self.role.plants("hang") {
            std::thread::sleep(Duration::from_secs(1000));
        }
        if id % 500 == 7 && self.role.plants("file") {
            drop(std::fs::File::create(std::env::temp_dir().join("planted")));
        }
        Some(Given { id, deadline, pid, since: now() })
    }

    /// Makes a call of this kind, whose right reply is known.
    fn call(&mut self, at: usize, which: u64, deadline: Option<Duration>) {
        const NAMES: [&str; 5] = ["step", "text", "blob", "nap", "relay"];
        let Some(bound) = &self.bound[at] else { return };
        let work = bound.work.with_deadline(deadline);
        let Some(given) = self.begin(NAMES[which as usize], at, deadline.is_some()) else { return };
        let (id, x) = (given.id, self.dice.any() & !INNER);
        match which {
            0 => self.ended(&given, work.step(id, x), |answer| *answer == step(id, x)),
            1 => {
                let text = "soak".repeat(1 + self.dice.below(1500) as usize);
                self.ended(&given, work.text(id, &text), |answer| *answer == text);
            }
            2 => {
                let most = [200, 4_000, 60_000, 1 << 20]
                    [[0, 0, 0, 1, 1, 1, 2, 3][self.dice.below(8) as usize]];
                let data = vec![id as u8; self.dice.below(most) as usize];
                self.ended(&given, work.blob(id, &data), |answer| *answer == data);
            }
            3 => {
                let us = self.dice.below(3000) as u32;
                self.ended(&given, work.nap(id, us), |answer| *answer == step(id, us.into()));
            }
            _ => self.relay(&given, &work, x),
        }
    }

    fn relay(&mut self, given: &Given, work: &Work, x: u64) {
        let to = self.servers[self.dice.below(self.servers.len() as u64) as usize].clone();
        let outcome = match work.relay(given.id, &to.name, x) {
            Ok(answer) => Ok(Ok(answer)),
            Err(Failure::Returned(error)) => Ok(Err(error)),
            Err(Failure::Call(error)) => Err(error),
        };
        let nested = self.role.book.executed(given.id, Plane::Nested);
        if let Ok(answer) = &outcome {
            let times = nested.unwrap_or(1);
            let wrong = if answer.is_ok() { times != 1 } else { times > 1 };
            if wrong {
                self.role.complain(
                    "nested",
                    format!(
                        "a nested call to {} gave {answer:?}, and was executed {times} times",
                        to.name
                    ),
                );
            }
            let ended = [
                "Failed.PeerEnded",
                "ServerGone",
                "HungUp",
                "NoSuchName",
                "NoAnswer",
                "Protocol",
                "Aborted.sent",
            ];
            if let Err(error) = answer
                && (to.steady && !error.starts_with("Aborted")
                    || !ended.iter().any(|known| error.starts_with(known)))
            {
                self.role
                    .complain("nested", format!("a nested call to {} failed: {error}", to.name));
            }
        }
        self.ended(given, outcome, |answer| {
            answer.as_ref().map_or(true, |answer| *answer == step(given.id, x | INNER))
        });
    }

    /// Opens an object, uses it several times, and drops it now or later.
    fn session(&mut self, at: usize) {
        let key = self.dice.below(1 << 20);
        if self.bound[at].as_ref().is_some_and(|bound| bound.session.is_none()) {
            let Some(given) = self.begin("open", at, false) else { return };
            let outcome = self.bound[at].as_ref().map(|bound| bound.work.open(given.id, key));
            let mut opened = None;
            if let Some(outcome) = outcome {
                self.ended(&given, outcome.map(|session| opened = Some(session)), |()| true);
            }
            if let Some(bound) = &mut self.bound[at] {
                bound.session = opened.map(|session| (session, key));
            }
        }
        for _ in 0..self.dice.below(4) {
            let Some(Some((_, key))) = self.bound[at].as_ref().map(|bound| bound.session.as_ref())
            else {
                return;
            };
            let (key, x) = (*key, self.dice.below(1 << 40));
            let Some(given) = self.begin("session", at, false) else { return };
            let outcome = self.bound[at]
                .as_ref()
                .and_then(|bound| Some(bound.session.as_ref()?.0.add(given.id, x)));
            if let Some(outcome) = outcome {
                self.ended(&given, outcome, |answer| {
                    *answer == step(given.id, x.wrapping_add(key))
                });
            }
        }
        if self.dice.below(3) == 0
            && let Some(bound) = &mut self.bound[at]
        {
            self.role.book.waits(self.lane, "session", bound.pid);
            bound.session = None;
            self.role.book.goes(self.lane);
        }
    }

    /// Checks the outcome of a call against the record.
    fn ended<T: std::fmt::Debug>(
        &mut self,
        given: &Given,
        outcome: Result<T, CallError>,
        is_right: impl FnOnce(&T) -> bool,
    ) {
        let (role, at) = (&self.role, now());
        role.book.goes(self.lane);
        role.book.note(Times::Calls, at - given.since);
        let steady = self.servers.iter().any(|server| {
            server.steady
                && role.book.slot(server.slot, SlotWord::Pid).load(SeqCst) == u64::from(given.pid)
                && given.pid != 0
        });
        let died = if given.pid == 0 { 0 } else { role.book.died(given.pid) };
        let end = match outcome {
            Ok(answer) => {
                if !is_right(&answer) {
                    role.complain("answer", format!("request {:#x}: a wrong answer", given.id));
                }
                End::Answered
            }
            Err(CallError::Failed(Closed::PeerEnded)) => {
                if given.pid != 0 && died == 0 {
                    role.complain(
                        "claim",
                        format!(
                            "a call reports that process {} has ended, but the run has not killed \
                            it",
                            given.pid
                        ),
                    );
                }
                if died != 0 {
                    role.book.note(
                        Times::CallAfterDeath,
                        at - died.max(given.since).max(own_going_on(role)).min(at),
                    );
                }
                End::Unknown
            }
            Err(CallError::Aborted { sent }) if given.deadline => {
                if sent {
                    End::Unknown
                } else {
                    End::NotRun
                }
            }
            Err(CallError::NoMemory { .. })
                if given.pid == 0 || role.book.was_disturbed(given.pid, EXPLAINED) =>
            {
                End::Unknown
            }
            Err(error) => {
                let whose = if steady { "the steady server" } else { "a server" };
                role.complain(
                    "call",
                    format!(
                        "a call to {whose} (process {}) failed: {}: {error}",
                        given.pid,
                        kind(&error)
                    ),
                );
                End::Unknown
            }
        };
        role.check("ledger", role.book.end(given.id, end));
    }
}

/// When this process last went on after a stop.
pub fn own_going_on(role: &Role) -> u64 {
    match role.book.went_on(std::process::id()) {
        u64::MAX => now(),
        at => at,
    }
}
