//! The rules by which jobs share the processors, without processes or sockets.
//!
//! The time is an argument. Jobs that have something to do hold the turn one after another, in the
//! order in which they were started. What the others may do during that turn depends on their kind
//! (UDM, section 4.3; D13 here):
//!
//! - *batch*: all batch jobs together are one in the round, by their oldest; so each runs to its
//!   end before the next begins.
//! - *gang*: a turn is a slice, and all members of all others are suspended.
//! - *co*: a turn is a slice, or ends when all members sleep. Where no member of the holder works,
//!   those of the next co-scheduled job that has work there run. A job that only sleeps is not
//!   suspended, since it takes nothing from the others; it takes part again when it is seen to
//!   work.
//!
//! A change is made in two steps: first the jobs that must stop are suspended and confirm it, then
//! the jobs that may run get their orders. A job that does not confirm is not waited for again
//! until it sends a message.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How a job shares the processors with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobSchedule {
    /// One job after another, each to its end.
    Batch,
    /// Slices, on all processors at once.
    Gang,
    /// Slices, on demand.
    Co,
}

/// Which members may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunGrant {
    /// None.
    Nothing,
    /// Members with one of these processors.
    On(BTreeSet<u32>),
    /// All.
    All,
}

impl RunGrant {
    /// Returns `true` if a member with this processor, or without one, may run.
    pub fn permits(&self, processor: Option<u32>) -> bool {
        match self {
            Self::Nothing => false,
            Self::All => true,
            Self::On(some) => processor.is_some_and(|processor| some.contains(&processor)),
        }
    }

    /// What both grants permit.
    fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, grant) | (grant, Self::All) => grant.clone(),
            (Self::On(a), Self::On(b)) => Self::on(a & b),
            _ => Self::Nothing,
        }
    }

    fn on(some: BTreeSet<u32>) -> Self {
        if some.is_empty() { Self::Nothing } else { Self::On(some) }
    }
}

/// The place of a member that may run on any processor.
pub(crate) const ANYWHERE: u32 = u32::MAX;

/// A job that joins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Newcomer {
    pub(crate) kind: JobSchedule,
    pub(crate) slice: Duration,
    /// When it was started, in nanoseconds of the clock that all processes share.
    pub(crate) since: u64,
    /// The processors of its members, or [`ANYWHERE`].
    pub(crate) places: BTreeSet<u32>,
    /// What its members may do now.
    pub(crate) grant: RunGrant,
    /// `true` if it is to run at all: it is not stopped.
    pub(crate) wants: bool,
}

/// An order to one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TurnOrder {
    pub(crate) number: u64,
    pub(crate) grant: RunGrant,
    /// `true` if the job is to report where its members work.
    pub(crate) watch: bool,
}

/// Maximum wait for a job that has to suspend its members.
const LIMIT: Duration = Duration::from_millis(500);

struct Seat {
    id: u64,
    job: Newcomer,
    /// The processors on which its members work, as far as is known.
    busy: BTreeSet<u32>,
    told: TurnOrder,
    /// Since when its confirmation is awaited.
    waited_for: Option<Instant>,
    silent: bool,
}

impl Seat {
    fn contends(&self) -> bool {
        self.job.wants
            && !self.silent
            && (self.job.kind != JobSchedule::Co || !self.busy.is_empty())
    }
}

/// All jobs that take part.
#[derive(Default)]
pub(crate) struct JobTurns {
    /// In the order in which they were started.
    seats: Vec<Seat>,
    holder: Option<u64>,
    /// When the holder's slice ends, once it has begun.
    until: Option<Instant>,
    numbers: u64,
}

impl JobTurns {
    pub(crate) fn join(&mut self, id: u64, job: Newcomer) {
        let told = TurnOrder { number: 0, grant: job.grant.clone(), watch: false };
        let seat =
            Seat { id, busy: job.places.clone(), told, waited_for: None, silent: false, job };
        let at =
            self.seats.partition_point(|other| (other.job.since, other.id) < (seat.job.since, id));
        self.seats.insert(at, seat);
    }

    pub(crate) fn leave(&mut self, id: u64) {
        self.seats.retain(|seat| seat.id != id);
    }

    /// Records whether the job is to run at all.
    pub(crate) fn wants(&mut self, id: u64, wants: bool) {
        if let Some(seat) = self.speaks(id) {
            seat.job.wants = wants;
        }
    }

    /// Records where the job's members work.
    pub(crate) fn busy(&mut self, id: u64, busy: BTreeSet<u32>) {
        if let Some(seat) = self.speaks(id) {
            seat.busy = busy;
        }
    }

    /// Records that an order was carried out.
    pub(crate) fn done(&mut self, id: u64, number: u64) {
        if let Some(seat) = self.speaks(id)
            && seat.told.number == number
        {
            seat.waited_for = None;
        }
    }

    /// Records that the job has heard nothing for too long, and runs all members.
    pub(crate) fn loose(&mut self, id: u64) {
        if let Some(seat) = self.speaks(id) {
            seat.told.grant = RunGrant::All;
        }
    }

    /// The seat of a job that has sent a message, which is therefore not silent any more.
    fn speaks(&mut self, id: u64) -> Option<&mut Seat> {
        let seat = self.seats.iter_mut().find(|seat| seat.id == id)?;
        if std::mem::take(&mut seat.silent) {
            // It may have carried out any of its orders.
            (seat.told.grant, seat.waited_for) = (RunGrant::All, None);
        }
        Some(seat)
    }

    /// Returns `true` if this job takes part.
    pub(crate) fn seats(&self, id: u64) -> bool {
        self.seats.iter().any(|seat| seat.id == id)
    }

    /// Number of jobs that take part.
    pub(crate) fn len(&self) -> usize {
        self.seats.len()
    }

    /// The jobs that take turns: of the batch jobs only the oldest.
    fn round(&self) -> Vec<u64> {
        let mut batch = false;
        let first = |seat: &&Seat| {
            seat.job.kind != JobSchedule::Batch || !std::mem::replace(&mut batch, true)
        };
        self.seats.iter().filter(|seat| seat.contends()).filter(first).map(|seat| seat.id).collect()
    }

    fn choose(&mut self, now: Instant) {
        let round = self.round();
        let at = |id| self.seats.iter().position(|seat| seat.id == id);
        let over = self.until.is_some_and(|until| now >= until);
        if self.holder.is_some_and(|holder| round.contains(&holder) && !(over && round.len() > 1)) {
            return;
        }
        let after = self.holder.and_then(at);
        let next = round.iter().find(|&&id| at(id) > after).or(round.first()).copied();
        if next.is_none() || next != self.holder {
            (self.holder, self.until) = (next, None);
        }
    }

    /// What each job may do at present.
    fn wanted(&self) -> Vec<RunGrant> {
        let holder =
            self.holder.and_then(|holder| self.seats.iter().position(|seat| seat.id == holder));
        let mut wanted: Vec<RunGrant> = self.seats.iter().map(|_| RunGrant::Nothing).collect();
        let mut taken = BTreeSet::new();
        let first = holder.unwrap_or(0);
        for at in (0..self.seats.len()).map(|step| (first + step) % self.seats.len()) {
            let seat = &self.seats[at];
            let places = &seat.job.places;
            wanted[at] = match seat.job.kind {
                _ if !seat.job.wants => RunGrant::Nothing,
                _ if Some(at) == holder => RunGrant::All,
                JobSchedule::Co if seat.busy.is_empty() => RunGrant::All,
                JobSchedule::Co
                    if holder
                        .is_some_and(|holder| self.seats[holder].job.kind == JobSchedule::Co) =>
                {
                    if taken.is_disjoint(places)
                        && !taken.contains(&ANYWHERE)
                        && (taken.is_empty() || !places.contains(&ANYWHERE))
                    {
                        RunGrant::All
                    } else if taken.contains(&ANYWHERE) || places.contains(&ANYWHERE) {
                        RunGrant::Nothing
                    } else {
                        RunGrant::on(places - &taken)
                    }
                }
                _ => RunGrant::Nothing,
            };
            if wanted[at] != RunGrant::Nothing && seat.job.kind == JobSchedule::Co {
                taken.extend(seat.busy.iter().filter(|&&place| wanted[at].permits(Some(place))));
            }
        }
        wanted
    }

    /// The orders to send now.
    ///
    /// To be called after each change, and at the time [`JobTurns::next`].
    pub(crate) fn orders(&mut self, now: Instant) -> Vec<(u64, TurnOrder)> {
        for seat in &mut self.seats {
            if seat.waited_for.is_some_and(|since| now >= since + LIMIT) {
                (seat.silent, seat.waited_for) = (true, None);
            }
        }
        self.choose(now);
        let (wanted, watch) = (self.wanted(), self.seats.len() > 1);
        let mut orders = Vec::new();
        let mut tell = |seat: &mut Seat, grant: RunGrant| {
            self.numbers += 1;
            seat.told = TurnOrder { number: self.numbers, grant, watch };
            orders.push((seat.id, seat.told.clone()));
        };
        let present = |(seat, _): &(&mut Seat, &RunGrant)| !seat.silent;
        for (seat, wanted) in self.seats.iter_mut().zip(&wanted).filter(present) {
            let less = seat.told.grant.and(wanted);
            if less != seat.told.grant {
                tell(seat, less);
                seat.waited_for = Some(now);
            }
        }
        if self.seats.iter().any(|seat| seat.waited_for.is_some()) {
            return orders;
        }
        for (seat, wanted) in self.seats.iter_mut().zip(&wanted).filter(present) {
            if seat.told.grant != *wanted || seat.told.watch != watch {
                tell(seat, wanted.clone());
            }
            if self.holder == Some(seat.id) && self.until.is_none() {
                self.until = Some(now + seat.job.slice);
            }
        }
        orders
    }

    /// The time of the next call of [`JobTurns::orders`], if nothing happens before.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.seats.iter().filter_map(|seat| seat.waited_for).min() {
            Some(since) => Some(since + LIMIT),
            None if self.round().len() > 1 => self.until,
            None => None,
        }
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
