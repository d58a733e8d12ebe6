//! The state that all domains share, and that the simulator knows of them: their clocks, and what
//! happens next.

use crate::Rank;
use crate::dice::Dice;
use crate::ledger::Ledger;
use crate::slices::Slices;
use crate::trouble::Trouble;
use std::collections::VecDeque;
use std::fmt::Write;

/// A time that never comes.
pub const FOREVER: u64 = u64::MAX;

/// Time from a ring to the first step of the domain that it wakes, in ns.
const WAKE: u64 = 1000;

/// Number of recent events that the report of a failure lists.
const EVENTS: usize = 32;

/// Whether a domain lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It lives, though it may be stopped for ever.
    Lives,
    /// Its program has ended.
    Ended,
    /// It was killed.
    Dead,
}

/// A domain, as the engine sees it.
#[derive(Debug)]
pub struct Domain {
    /// Its clock.
    pub(crate) at: u64,
    /// The time before which it does nothing.
    pub(crate) stopped: u64,
    /// Whether it dies where it is.
    pub(crate) doomed: bool,
    /// If it sleeps, until when.
    pub(crate) asleep: Option<u64>,
    /// When its doorbell first rang since it last woke.
    pub(crate) rung: Option<u64>,
    /// The domains whose end its clerk has reported and the domain has not read.
    pub(crate) news: Vec<Rank>,
    pub(crate) used: u64,
    pub(crate) life: Life,
    pub(crate) slices: Option<Slices>,
}

impl Domain {
    /// When the domain can go on.
    fn next(&self) -> Option<u64> {
        let ready = match (self.life, self.asleep) {
            _ if self.life == Life::Lives && self.doomed => return Some(self.at),
            (Life::Lives, None) => self.at,
            (Life::Lives, Some(until)) => {
                self.rung.map_or(FOREVER, |rung| rung.saturating_add(WAKE)).min(until).max(self.at)
            }
            _ => FOREVER,
        };
        let at = ready.max(self.stopped);
        (at != FOREVER).then(|| self.slices.map_or(at, |slices| slices.first(at).1))
    }

    /// Returns `true` if the domain sleeps and nothing is under way that ends the sleep.
    pub(crate) fn sleeps_on(&self) -> bool {
        self.asleep.is_some() && self.rung.is_none()
    }

    /// Returns `true` if the domain lives, and will act again.
    pub fn is_well(&self) -> bool {
        self.life == Life::Lives && self.stopped != FOREVER
    }
}

/// An event: its step, its time, its domain, what it was, and two numbers.
#[derive(Clone, Copy, Debug)]
struct Event(u64, u64, Rank, &'static str, u64, u64);

/// The state of all domains.
#[derive(Debug)]
pub struct State {
    pub(crate) domains: Vec<Domain>,
    pub(crate) ledger: Ledger,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) dice: Dice,
    /// Reports on their way to domains: when, to which domain, which domain has ended.
    pub(crate) mail: Vec<(u64, Rank, Rank)>,
    pub(crate) steps: u64,
    pub(crate) most: u64,
    events: VecDeque<Event>,
    pub(crate) stage: u32,
    pub(crate) round: u64,
    pub(crate) failure: Option<String>,
    pub(crate) over: bool,
}

impl State {
    pub(crate) fn new(
        dice: Dice,
        slices: Vec<Option<Slices>>,
        trouble: Option<Trouble>,
        most: u64,
    ) -> Self {
        let ledger = Ledger::new(slices.len());
        let fresh = |slices| Domain {
            at: 0,
            stopped: 0,
            doomed: false,
            asleep: None,
            rung: None,
            news: Vec::new(),
            used: 0,
            life: Life::Lives,
            slices,
        };
        Self {
            domains: slices.into_iter().map(fresh).collect(),
            ledger,
            trouble,
            dice,
            mail: Vec::new(),
            steps: 0,
            most,
            events: VecDeque::new(),
            stage: 0,
            round: 0,
            failure: None,
            over: false,
        }
    }

    pub(crate) fn event(&mut self, who: Rank, what: &'static str, a: u64, b: u64) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event(self.steps, self.domains[who].at, who, what, a, b));
    }

    /// Number of the current step.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The domain that has the turn, at its time; `None` if none can go on.
    pub(crate) fn choose(&mut self) -> Option<Rank> {
        loop {
            let nexts = self
                .domains
                .iter()
                .enumerate()
                .filter_map(|(rank, domain)| Some((domain.next()?, rank)));
            let first = nexts.min();
            let mail = (0..self.mail.len()).min_by_key(|at| self.mail[*at]);
            if let Some(at) =
                mail.filter(|at| first.is_none_or(|first| self.mail[*at].0 <= first.0))
            {
                let (time, to, ended) = self.mail.swap_remove(at);
                self.domains[to].news.push(ended);
                self.notify(to, time);
                continue;
            }
            let (time, rank) = first?;
            self.domains[rank].at = time;
            return Some(rank);
        }
    }

    pub(crate) fn notify(&mut self, to: Rank, time: u64) {
        self.domains[to].rung.get_or_insert(time);
    }

    /// Rouses all domains for the next stage.
    pub(crate) fn rouse_all(&mut self, stage: u32) {
        self.stage = stage;
        self.round += 1;
        let now = self.domains.iter().map(|domain| domain.at).max().unwrap_or(0);
        (0..self.domains.len()).for_each(|rank| self.notify(rank, now));
    }

    /// Returns `true` if a clerk is about to rouse a domain.
    pub(crate) fn is_being_roused(&self, rank: Rank) -> bool {
        self.mail.iter().any(|mail| mail.1 == rank)
    }

    pub(crate) fn advance(&mut self, rank: Rank, cost: u64) {
        self.steps += 1;
        let domain = &mut self.domains[rank];
        let mut cost = cost;
        if self.trouble.is_some() {
            cost = 1 + self.dice.below(2 * cost);
        }
        domain.used += cost;
        domain.at = domain.slices.map_or(domain.at + cost, |slices| slices.done(domain.at, cost));
        if let Some(mut trouble) = self.trouble.take() {
            trouble.strike(rank, self);
            self.trouble = Some(trouble);
        }
        if self.steps > self.most {
            self.fails(format!("no end after {} steps", self.most));
        }
    }

    /// Kills a domain.
    pub(crate) fn kill(&mut self, rank: Rank, now: u64) {
        let domain = &mut self.domains[rank];
        (domain.doomed, domain.at) = (true, now);
        self.event(rank, "is killed", 0, 0);
    }

    /// The time of a domain's clock.
    pub(crate) fn time_of(&self, rank: Rank) -> u64 {
        self.domains[rank].at
    }

    /// Delays a domain.
    pub(crate) fn delay(&mut self, rank: Rank, by: u64) {
        self.domains[rank].at += by;
    }

    pub(crate) fn fails(&mut self, what: String) {
        if self.failure.is_none() {
            let mut report = format!("step {}: {what}\n", self.steps);
            for Event(step, time, who, what, a, b) in &self.events {
                let _ =
                    writeln!(report, "  step {step:>7}, {time:>9} ns: domain {who} {what} {a} {b}");
            }
            self.failure = Some(report);
        }
    }

    /// Ends a domain, which the clerks of the others report to them.
    pub(crate) fn ended(&mut self, rank: Rank, life: Life) {
        self.domains[rank].life = life;
        if self.over {
            return;
        }
        let time = self.domains[rank].at;
        self.event(rank, "has ended", 0, 0);
        self.ledger.ended(rank);
        for other in (0..self.domains.len()).filter(|other| *other != rank) {
            self.mail.push((time + 1 + self.dice.magnitude(50_000), other, rank));
        }
    }
}
