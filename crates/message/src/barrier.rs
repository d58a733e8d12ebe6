//! Barriers: no member goes on before all have arrived.
//!
//! By dissemination (Hensgen, Finkel and Manber, 1988): in round `r` each member reports to the one
//! `2^r` places after it, and waits for the report of the one `2^r` before. After ⌈log2 n⌉ rounds
//! all have arrived. A pair has one round in each barrier, so the barrier's number is the whole
//! report.
//!
//! On several hosts each round would cross between hosts. So the members of a host first report up
//! a binomial tree to their leader, the leaders do the rounds, and each leader releases its members
//! down the same tree. A pair still has one report in each direction: the trees' pairs share a
//! host, and those of the rounds do not.
//!
//! # Restart
//! A report is a word of its own ([`Steps`]), with the number of the barrier. So no full queue
//! holds it back, and repeating it changes nothing. A barrier counts once it is passed: if it ends
//! with an error, it starts again with the next call, and waits for no report twice.
//!
//! # Peer death
//! Only the kernel reports a death. A member that waits for a dead one, in a barrier or reduction,
//! gives the step up, and reports that to all that may wait for it; they do the same. So no member
//! waits for a report that never comes, whichever of them die before they have reported. A report
//! that was made before the death counts. Two members on different hosts that have lost each other,
//! and live, end the steps of those that have both in the same way ([`parting`](crate::parting)).

use crate::collectives::hosts::Crossing;
use crate::error::{RunError, SendError};
use crate::inbound::Inbound;
use crate::link::{MemberLink, Outward, Why};
use crate::member::has_ended;
use crate::proto::receiving::{self, Forgotten};
use crate::receiving::Driver;
use crate::sending::SendPath;
use crate::waiters::Wants;
use crate::{Event, Group, Rank};
use std::cell::RefCell;
use std::rc::Rc;
use upcall_shm::steps::{self, ReportPoll, Steps};

impl Group {
    /// Waits until all members have reached the barrier, and runs the handlers of the messages that
    /// arrive.
    ///
    /// Takes one word, and its travel time, for each doubling of the group; on several hosts, one
    /// between hosts for each doubling of the hosts. On one host, all messages that the preceding
    /// member had sent here before it reached the barrier have been taken when this returns.
    ///
    /// # Errors
    /// [`RunError::Lost`]: a member ended or broke the protocol before it came. All members
    /// learn of that, and neither this barrier nor a later one holds. [`RunError::GivenUp`]: the
    /// same, but only another member reports it. [`RunError::Parted`]: two members on different
    /// hosts have lost each other, and this one has both; no later barrier holds either.
    ///
    /// After any other error the members still wait for this one, and the next call goes on with
    /// the same barrier. [`RunError::Unhandled`]: a message that was sent here before its sender
    /// came has no handler. [`RunError::Unsent`]: this process or another member has no memory or
    /// descriptor left for this member's report to that one. [`RunError::Interrupted`].
    ///
    /// # Blocking
    /// While another member lives and does not come. Full queues do not matter.
    pub fn barrier(&self) -> Result<(), RunError> {
        self.check_missing()?;
        let barrier = self.barriers();
        let number = barrier.passed.get() + 1;
        match &self.0.crossing {
            None => self.disseminate(number, self.rank(), self.size(), |rank| rank)?,
            Some(crossing) => self.cross(number, crossing)?,
        }
        barrier.passed.set(number);
        Ok(())
    }

    /// Exchanges reports with `count` members, of which this one has the index `own`.
    fn disseminate(
        &self,
        number: u64,
        own: usize,
        count: usize,
        member: impl Fn(usize) -> Rank,
    ) -> Result<(), RunError> {
        for step in steps::rounds(count) {
            let (next, from) = (member((own + step) % count), member((own + count - step) % count));
            self.report_barrier(number, next, from)?;
            if self.0.crossing.is_some() {
                self.connect_to(from)?;
            }
            self.await_barrier(number, from)?;
        }
        Ok(())
    }

    /// Passes a barrier of several hosts.
    fn cross(&self, number: u64, crossing: &Crossing) -> Result<(), RunError> {
        let Crossing { place, leaders, host, leads, .. } = crossing;
        for child in &place.near {
            self.connect_to(*child)?;
            self.await_barrier(number, *child)?;
        }
        match place.parent.filter(|_| !leads) {
            None => self.disseminate(number, *host, leaders.len(), |host| leaders[host])?,
            Some(parent) => {
                self.report_barrier(number, parent, parent)?;
                self.await_barrier(number, parent)?;
            }
        }
        place.near.iter().rev().try_for_each(|child| self.report_barrier(number, *child, *child))
    }

    fn report_barrier(&self, number: u64, to: Rank, from: Rank) -> Result<(), RunError> {
        self.report(to, from, |link| link.steps.report_barrier(number, link.sent()))
    }

    fn await_barrier(&self, number: u64, from: Rank) -> Result<(), RunError> {
        self.await_report(from, |steps| Some(((), steps.barrier(number)?)))
    }

    /// Reports to member `to`, while this one waits for `from`.
    pub(crate) fn report(
        &self,
        to: Rank,
        from: Rank,
        report: impl Fn(&MemberLink),
    ) -> Result<(), RunError> {
        loop {
            match self.way_to(to, |link| {
                report(link);
                link.reported();
            }) {
                Ok(SendPath::Open(())) => return Ok(()),
                // A member that has ended, and had passed already, needs no report: only the
                // awaited member is missed.
                Err(SendError::Ended { .. }) => return self.has_found_gone(to),
                Err(SendError::Violation { .. }) => return Ok(()),
                Err(error) => return Err(RunError::Unsent { rank: to, why: error.to_string() }),
                Ok(SendPath::Crowded) => {}
            }
            if let Some((missed, error)) = self.never_comes(from) {
                return Err(self.is_missed(missed, error));
            }
            self.poll();
            if self.is_interrupted() {
                return Err(RunError::Interrupted);
            }
            self.nap();
        }
    }

    /// Polls and waits for a report of another member, until as many of its messages were taken as
    /// it had sent before.
    pub(crate) fn await_report<R>(
        &self,
        from: Rank,
        read: impl Fn(&Steps) -> Option<(R, u64)>,
    ) -> Result<R, RunError> {
        let report =
            || self.barriers().heard.borrow()[from].as_ref().and_then(|heard| read(&heard.steps));
        let look = || match steps::find(|| self.never_comes(from), report) {
            ReportPoll::Came((report, sent)) if self.has_taken(from, sent) => {
                ReportPoll::Came(report)
            }
            ReportPoll::Came(_) | ReportPoll::Nothing => ReportPoll::Nothing,
            ReportPoll::Never(error) => ReportPoll::Never(error),
        };
        loop {
            let changes = self.changes();
            match look() {
                ReportPoll::Came(report) => return Ok(report),
                ReportPoll::Never((missed, error)) => return Err(self.is_missed(missed, error)),
                ReportPoll::Nothing => {}
            }
            if self.poll() == 0 {
                if let Some(sent) = report().map(|(_, sent)| sent) {
                    self.hold_to_its_word(from, sent);
                }
                // Messages that were sent after the report do not belong to this step.
                match self.check_handlers(Some(from)) {
                    Err(unhandled) if matches!(look(), ReportPoll::Nothing) => {
                        return Err(unhandled);
                    }
                    _ => {}
                }
                self.offer_reports()?;
                self.wait_unless(None, changes, Wants::Of(from), || {
                    let is_false = || {
                        report().is_some_and(|(_, sent)| self.breaks_its_word(from, sent).is_some())
                    };
                    !matches!(look(), ReportPoll::Nothing)
                        || self.keeps_reports_back().is_some()
                        || is_false()
                });
                if self.is_interrupted() {
                    return Err(RunError::Interrupted);
                }
            }
        }
    }

    /// Returns a member that lives and has refused the queue with a report of this one.
    pub(crate) fn keeps_reports_back(&self) -> Option<Rank> {
        let refuses = |cell: &RefCell<Outward>| match cell.try_borrow().ok().as_deref() {
            Some(Outward::Open(link)) => link.keeps_a_report_back(),
            _ => false,
        };
        self.0.links.iter().position(refuses)
    }

    /// Offers queues again that were refused with a report in them: a member may wait for it.
    pub(crate) fn offer_reports(&self) -> Result<(), RunError> {
        while let Some(rank) = self.keeps_reports_back() {
            match self.way_to(rank, |_| ()) {
                Ok(SendPath::Open(())) => {}
                Ok(SendPath::Crowded) => {
                    self.nap();
                    return Ok(());
                }
                // A member that has ended needs no report any more.
                Err(SendError::Ended { .. }) => self.has_found_gone(rank)?,
                Err(error) => return Err(RunError::Unsent { rank, why: error.to_string() }),
            }
        }
        Ok(())
    }

    /// Stops sending to a member that has ended or left. What it has sent comes before the event,
    /// which ends a step that waits for it.
    pub(crate) fn has_found_gone(&self, rank: Rank) -> Result<(), RunError> {
        // The bridge reports the end of a member on another host by itself.
        if self.0.member.far(rank).is_some() {
            *self.0.links[rank].borrow_mut() = Outward::Closed(Why::Ended);
            return Ok(());
        }
        // A closed queue means that its end is known.
        if !matches!(*self.0.links[rank].borrow(), Outward::Closed(_)) {
            let listed = &self.0.roster.members[rank];
            let told = self.0.member.tell_clerk_of_end(
                rank,
                listed.process,
                self.0.member.folder().join(&listed.socket),
            );
            told.map_err(|error| RunError::Unsent { rank, why: error.to_string() })?;
            *self.0.links[rank].borrow_mut() = Outward::Closed(Why::Ended);
        }
        Ok(())
    }

    /// Returns `true` if `count` messages of a member were taken, or all that will ever come.
    fn has_taken(&self, from: Rank, count: u64) -> bool {
        self.0.senders.of(from).is_none_or(|inbound| inbound.taken() >= count)
    }

    /// Returns the queue of a member whose report is false. A report comes after the messages that
    /// its sender had sent before. So the report is false if fewer are here, and none waits.
    fn breaks_its_word(&self, from: Rank, sent: u64) -> Option<Rc<Inbound>> {
        self.0.senders.of(from).filter(|inbound| inbound.is_drained() && inbound.taken() < sent)
    }

    fn hold_to_its_word(&self, from: Rank, sent: u64) {
        if let Some(inbound) = self.breaks_its_word(from, sent) {
            let what = format!(
                "it reports that it had sent {sent} messages, of which {} are here",
                inbound.taken()
            );
            receiving::forget(&Driver(self), &inbound, Forgotten::Violation(what));
        }
    }

    /// Returns the member that never comes, if it is the awaited one or holds that one back.
    pub(crate) fn never_comes(&self, member: Rank) -> Option<(Rank, RunError)> {
        let barrier = self.barriers();
        let known = || barrier.missing.borrow().clone();
        let reported =
            || barrier.reported().map(|(by, missed)| (missed, self.given_up(by, missed)));
        known()
            .or_else(|| self.parted())
            .or_else(reported)
            .or_else(|| Some((member, RunError::Lost(self.lost(member)?))))
            .or_else(|| {
                // Its last messages may wait here for ever.
                let has_ended =
                    self.0.senders.of(member).is_some_and(|inbound| inbound.has_ended());
                has_ended.then_some((member, RunError::Lost(Event::Ended { rank: member })))
            })
    }

    /// Returns the error for a member that another member reports as never coming. Only what this
    /// member or the kernel knows is called an end.
    fn given_up(&self, by: Rank, missed: Rank) -> RunError {
        let is_over = || match self.0.member.far(missed) {
            Some(other) => other.has_ended(),
            None => self.0.roster.members.get(missed).is_some_and(|listed| {
                has_ended(listed, &self.0.member.folder().join(&listed.socket))
            }),
        };
        match self.lost(missed) {
            Some(event) => RunError::Lost(event),
            None if is_over() => RunError::Lost(Event::Ended { rank: missed }),
            None => RunError::GivenUp { by, missed },
        }
    }

    /// Returns `true` if any other member may wait for this one, as in collective operations and
    /// across hosts, and so learns what this one misses.
    fn tells_all(&self) -> bool {
        self.0.crossing.is_some() || self.0.collectives.is_used()
    }

    /// Checks that no member is missing. Where members learn that from any other one, those that
    /// they wait for may still come; but no step holds after an error.
    pub(crate) fn check_missing(&self) -> Result<(), RunError> {
        if self.0.roster.grows {
            return Err(RunError::Growing);
        }
        if !self.tells_all() {
            return Ok(());
        }
        let missing = self.barriers().missing.borrow().clone().or_else(|| self.parted());
        missing.map_or(Ok(()), |(missed, error)| Err(self.is_missed(missed, error)))
    }

    /// Reports that a member never comes to all that may wait for this one, which reports no
    /// further step. They do the same.
    pub(crate) fn is_missed(&self, missed: Rank, error: RunError) -> RunError {
        *self.barriers().missing.borrow_mut() = Some((missed, error.clone()));
        // Each of two that are parted misses the other one.
        let missed_by = |reader: Rank| match error {
            RunError::Parted { one, other } if reader == missed => one.max(other),
            _ => missed,
        };
        let (rank, size) = (self.rank(), self.size());
        let next = steps::rounds(size).map(|step| (rank + step) % size);
        let any = (0..if self.tells_all() { size } else { 0 }).filter(|other| *other != rank);
        // Also to the missed one: it may live, if another member has lied about it.
        for other in next.chain(self.children()).chain(self.parent()).chain(any) {
            // A member that cannot be reached for lack of resources learns of it when this one
            // ends.
            let _ = self.way_to(other, |link| {
                link.steps.report_missing(missed_by(other));
                link.reported();
            });
        }
        error
    }
}
