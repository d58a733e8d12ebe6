//! The inputs of an idle policy, its questions, and its decisions: recorded in a run, and replayed
//! to a new policy.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Instant;
use upcall_os::processor::CpuSet;
use upcall_sched::costs::WaitCosts;
use upcall_sched::pacing::Pacing;
use upcall_sched::poller::{
    BeforeServing, Facts, IdleEvent, IdleStep, ParkPlace, Poller, ServedRequest, Wakeup,
};

/// Maximum number of recorded entries.
const MOST: usize = 20_000;

/// An input of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Input {
    Donors(bool),
    Found(u64),
    Serves(usize),
    Served(ServedRequest),
    Migrated(CpuSet),
    Step(IdleEvent),
    Parks,
    Woke(Wakeup),
}

/// A decision of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decided {
    Nothing,
    Donor(Option<usize>),
    Before(BeforeServing),
    Step(IdleStep),
    Place(Parked),
}

/// Where it parks: a [`ParkPlace`] without a borrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parked {
    /// On its current CPU.
    Here,
    /// On this CPU.
    Near(u32),
    /// On its own CPUs.
    Home(CpuSet),
}

/// The answer to a question of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fact {
    Now(Instant),
    Tick(u64),
    Cpu(u32),
    Allowed(Option<CpuSet>),
    Is(bool),
    Lane(Option<usize>),
    Wished(Option<u32>),
}

#[derive(Clone, Debug)]
struct Entry {
    input: Input,
    facts: Vec<Fact>,
    decided: Decided,
}

/// A recording. See the module.
#[derive(Clone, Debug)]
pub struct Trace {
    pacing: Pacing,
    home: CpuSet,
    entries: Vec<Entry>,
}

/// Facts whose answers are recorded.
struct Noted<'a, F> {
    facts: &'a F,
    answers: RefCell<Vec<Fact>>,
}

/// Recorded facts, in the same order.
struct Replayed {
    answers: RefCell<VecDeque<Fact>>,
}

macro_rules! facts {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty: $kind:ident;)*) => {
        impl<F: Facts> Facts for Noted<'_, F> {
            $(fn $name(&self $(, $arg: $type)*) -> $answer {
                let answer = self.facts.$name($($arg),*);
                self.answers.borrow_mut().push(Fact::$kind(answer.clone()));
                answer
            })*
        }

        impl Facts for Replayed {
            $(fn $name(&self $(, _: $type)*) -> $answer {
                match self.answers.borrow_mut().pop_front() {
                    Some(Fact::$kind(answer)) => answer,
                    other => panic!("it asks {}, and the trace has {other:?}", stringify!($name)),
                }
            })*
        }
    };
}

facts! {
    now() -> Instant: Now;
    tick() -> u64: Tick;
    cpu() -> u32: Cpu;
    allowed() -> Option<CpuSet>: Allowed;
    is_calling() -> bool: Is;
    has_reply() -> bool: Is;
    has_server_elsewhere(cpu: u32) -> bool: Is;
    has_lanes() -> bool: Is;
    has_posts() -> bool: Is;
    has_only_callers_on(cpu: u32) -> bool: Is;
    shares(cpu: u32) -> bool: Is;
    donor(cpu: u32) -> Option<usize>: Lane;
    wished_cpu(lane: usize) -> Option<u32>: Wished;
    is_caller_on(lane: usize, cpu: u32) -> bool: Is;
    is_caller_running(lane: usize) -> bool: Is;
}

/// Passes an input to the policy, and returns its decision.
fn apply(poller: &mut Poller, input: &Input, facts: &impl Facts) -> Decided {
    match input.clone() {
        Input::Donors(waits) => Decided::Donor(poller.take_donors(|_| waits)),
        Input::Found(client) => {
            poller.found();
            poller.found_request(|| client);
            Decided::Nothing
        }
        Input::Serves(lane) => Decided::Before(poller.serves(lane, facts)),
        Input::Served(served) => {
            poller.served(served);
            Decided::Nothing
        }
        Input::Migrated(cpus) => {
            poller.migrated(cpus);
            Decided::Nothing
        }
        Input::Step(event) => Decided::Step(poller.step(event, None, facts)),
        Input::Parks => Decided::Place(match poller.parks(facts) {
            ParkPlace::Here => Parked::Here,
            ParkPlace::Near(cpu) => Parked::Near(cpu),
            ParkPlace::Home(home) => Parked::Home(home.clone()),
        }),
        Input::Woke(woken) => {
            poller.woke(woken, facts);
            Decided::Nothing
        }
    }
}

impl Trace {
    /// Creates a policy for a virtual processor that may run on these CPUs, and its empty trace.
    pub fn begin(pacing: Pacing, home: CpuSet) -> (Poller, Self) {
        let poller = Poller::new(pacing, Some(home.clone()), WaitCosts::USUAL);
        (poller, Self { pacing, home, entries: Vec::new() })
    }

    fn tell(&mut self, poller: &mut Poller, input: Input, facts: &impl Facts) -> Decided {
        let noted = Noted { facts, answers: RefCell::default() };
        let decided = apply(poller, &input, &noted);
        if self.entries.len() < MOST {
            let facts = noted.answers.into_inner();
            self.entries.push(Entry { input, facts, decided: decided.clone() });
        }
        decided
    }

    /// Asks for the donor whose requests come before all others, if one `waits` there.
    pub fn take_donors(
        &mut self,
        poller: &mut Poller,
        facts: &impl Facts,
        waits: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let waits = poller.donor().is_some_and(waits);
        match self.tell(poller, Input::Donors(waits), facts) {
            Decided::Donor(lane) => lane,
            _ => None,
        }
    }

    /// Records that a probe has found a request of this client, in `lane`.
    pub fn found(
        &mut self,
        poller: &mut Poller,
        (lane, client): (usize, u64),
        facts: &impl Facts,
    ) -> BeforeServing {
        self.tell(poller, Input::Found(client), facts);
        match self.tell(poller, Input::Serves(lane), facts) {
            Decided::Before(before) => before,
            _ => BeforeServing::Serve,
        }
    }

    /// Records that a request was served.
    pub fn served(&mut self, poller: &mut Poller, served: ServedRequest, facts: &impl Facts) {
        self.tell(poller, Input::Served(served), facts);
    }

    /// Records that the virtual processor has given its CPU back.
    pub fn migrated(&mut self, poller: &mut Poller, to: CpuSet, facts: &impl Facts) {
        self.tell(poller, Input::Migrated(to), facts);
    }

    /// Asks for the next step after an event.
    pub fn step(&mut self, poller: &mut Poller, event: IdleEvent, facts: &impl Facts) -> IdleStep {
        match self.tell(poller, Input::Step(event), facts) {
            Decided::Step(step) => step,
            _ => IdleStep::Park,
        }
    }

    /// Asks where to park.
    pub fn parks(&mut self, poller: &mut Poller, facts: &impl Facts) -> Parked {
        match self.tell(poller, Input::Parks, facts) {
            Decided::Place(place) => place,
            _ => Parked::Here,
        }
    }

    /// Records that the virtual processor was woken.
    pub fn woke(&mut self, poller: &mut Poller, woken: Wakeup, facts: &impl Facts) {
        self.tell(poller, Input::Woke(woken), facts);
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Replays all entries to a new policy.
    ///
    /// # Errors
    /// The first entry for which its decision differs, and both decisions.
    ///
    /// # Panics
    /// If it asks for other facts than the recorded policy did.
    pub fn replay(&self) -> Result<(), String> {
        let (mut poller, _) = Self::begin(self.pacing, self.home.clone());
        for (number, Entry { input, facts, decided }) in self.entries.iter().enumerate() {
            let replayed = Replayed { answers: RefCell::new(facts.iter().cloned().collect()) };
            let again = apply(&mut poller, input, &replayed);
            if again != *decided || !replayed.answers.borrow().is_empty() {
                return Err(format!("entry {number}, {input:?}: {decided:?}, and now {again:?}"));
            }
        }
        Ok(())
    }
}
