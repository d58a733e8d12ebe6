//! A supervisor's part in letting jobs take turns: one leads, the others follow.
//!
//! ```text
//!   follower               leader (its socket is entered as turns.now)
//!   Join(job)      ──►     gives it a seat
//!            ◄──  Order    run: nothing, on some processors, all
//!   Done           ──►     once it is so; only then the others may run
//!   Busy, Wants    ──►     where its members work; whether the job is stopped
//!            ◄──  Still    four times a second
//! ```
//! The lock is the folder's, and held only to enter and to check. The leader is the supervisor
//! whose socket stands there and is listened at. A leader that ends or is killed closes its
//! connections. Each follower then tries to enter itself, one is first, and the others join it. A
//! leader that sends nothing (it is stopped, or in a debugger) is no longer obeyed after a second,
//! and obeyed again when it sends something. Only a member's own supervisor suspends it, so nothing
//! here can leave a member suspended.

use super::{LEADER, Supervisor};
use crate::turns::{JobSchedule, JobTurns, Newcomer, RunGrant, TurnOrder};
use crate::wire::{JobReply, JobRequest, pack, unpack};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use upcall_directory::names::Leader;
use upcall_directory::names::jobs;
use upcall_os::poll::Report;
use upcall_os::socket::{Connection, Received};

/// Interval between a leader's messages that it still leads.
const STILL: Duration = Duration::from_millis(250);

/// Maximum time for which a silent leader is obeyed.
const SILENCE: Duration = Duration::from_secs(1);

/// Interval between two attempts to find the leader.
const RETRY: Duration = Duration::from_millis(2);

/// The seat of the leader's own job.
const OWN: u64 = 0;

pub(super) enum Role {
    /// The job takes no turns.
    None,
    /// It takes turns, and the leader is not known yet.
    Seeking,
    Following(Connection),
    Leading {
        turns: Box<JobTurns>,
        still_at: Instant,
    },
}

pub(super) struct Participation {
    role: Role,
    /// When something is due next.
    at: Option<Instant>,
    /// When the leader's last message arrived, or the search for a leader began.
    heard: Instant,
    watch: bool,
}

impl Participation {
    pub(super) fn new(takes_turns: bool) -> Self {
        let role = if takes_turns { Role::Seeking } else { Role::None };
        Self { role, at: None, heard: Instant::now(), watch: false }
    }

    pub(super) fn leads(&self) -> bool {
        matches!(self.role, Role::Leading { .. })
    }

    pub(super) fn due(&self, grant: &RunGrant) -> Option<Instant> {
        let silence = match self.role {
            Role::Seeking | Role::Following(_) if *grant != RunGrant::All => {
                Some(self.heard + SILENCE)
            }
            _ => None,
        };
        [self.at, silence].into_iter().flatten().min()
    }
}

impl Supervisor<'_> {
    /// Does what is due.
    pub(super) fn take_part(&mut self) {
        let now = Instant::now();
        if let Role::Seeking = self.part.role
            && self.part.at.is_none_or(|at| now >= at)
        {
            self.seek(now);
        }
        if matches!(self.part.role, Role::Seeking | Role::Following(_))
            && self.grant != RunGrant::All
            && now >= self.part.heard + SILENCE
        {
            self.grant = RunGrant::All;
            self.apply();
            self.tell_leader(&JobRequest::Loose);
        }
        if self.part.leads() {
            self.lead();
        }
    }

    fn own_job(&self) -> Newcomer {
        Newcomer {
            kind: self.job.schedule.unwrap_or(JobSchedule::Co),
            slice: self.job.slice,
            since: self.since,
            places: self.places.clone(),
            grant: self.grant.clone(),
            wants: !self.stopped,
        }
    }

    fn seek(&mut self, now: Instant) {
        self.part.at = Some(now + RETRY);
        match jobs::try_lead(&self.entered.socket) {
            Some(Leader::Us) => {
                let mut turns = Box::new(JobTurns::default());
                turns.join(OWN, self.own_job());
                self.works = self.places.clone();
                self.part.role = Role::Leading { turns, still_at: now };
            }
            Some(Leader::At(socket)) => {
                let Ok(connection) = Connection::connect(&socket) else { return };
                let join = pack(&JobRequest::Join(self.own_job()));
                let ready = connection.send(&join, &[]).is_ok()
                    && self.poll.add(&connection, LEADER, Report::WhileReadable).is_ok();
                if ready {
                    self.works = self.places.clone();
                    self.part.role = Role::Following(connection);
                    self.part.at = None;
                }
            }
            None => {}
        }
    }

    fn tell_leader(&mut self, ask: &JobRequest) {
        if let Role::Following(leader) = &self.part.role
            && leader.send(&pack(ask), &[]).is_err()
        {
            self.lose_leader();
        }
    }

    fn lose_leader(&mut self) {
        // Closing takes the connection out of the set.
        self.part.role = Role::Seeking;
        self.part.at = None;
    }

    pub(super) fn hear_leader(&mut self) {
        let Role::Following(leader) = &self.part.role else { return };
        let answer = match leader.receive() {
            Ok(Received::Nothing) => return,
            Ok(Received::Message(message)) => unpack(&message.bytes),
            Ok(Received::Closed) | Err(_) => return self.lose_leader(),
        };
        self.part.heard = Instant::now();
        match answer {
            Ok(JobReply::Order(order)) => {
                let number = order.number;
                self.carry_out(order);
                self.tell_leader(&JobRequest::Done { number });
            }
            Ok(_) => {}
            // The leader is of another version: go on as if there were no leader.
            Err(_) => self.lose_leader(),
        }
    }

    fn carry_out(&mut self, order: TurnOrder) {
        if self.ending.is_some() {
            return;
        }
        (self.grant, self.part.watch) = (order.grant, order.watch);
        self.apply();
    }

    /// Sends all seats their orders, until there are none left.
    fn lead(&mut self) {
        loop {
            let now = Instant::now();
            let Role::Leading { turns, still_at } = &mut self.part.role else { return };
            let orders = turns.orders(now);
            let many = turns.len() > 1;
            let still = many && now >= *still_at;
            if still {
                *still_at = now + STILL;
            }
            self.part.at = [turns.next(), many.then_some(*still_at)].into_iter().flatten().min();
            if orders.is_empty() && !still {
                return;
            }
            if still {
                let guests: Vec<u64> = self.guests.keys().copied().collect();
                guests.into_iter().for_each(|guest| self.beat(guest));
            }
            let (own, others): (Vec<_>, Vec<_>) =
                orders.into_iter().partition(|(id, _)| *id == OWN);
            for (id, order) in others {
                self.reply(id, &JobReply::Order(order));
            }
            for (_, order) in own {
                let number = order.number;
                self.carry_out(order);
                if let Role::Leading { turns, .. } = &mut self.part.role {
                    turns.done(OWN, number);
                }
            }
        }
    }

    fn beat(&mut self, guest: u64) {
        if let Role::Leading { turns, .. } = &self.part.role
            && turns.seats(guest)
        {
            self.reply(guest, &JobReply::Still);
        }
    }

    /// Handles a follower's message to the leader.
    pub(super) fn seated(&mut self, key: u64, ask: JobRequest) {
        let Role::Leading { turns, .. } = &mut self.part.role else {
            // The follower takes us for the leader, which we no longer are. It sees the
            // disconnection, and seeks the leader again.
            return self.see_off(key);
        };
        match ask {
            JobRequest::Join(job) => turns.join(key, job),
            JobRequest::Done { number } => turns.done(key, number),
            JobRequest::Wants(wants) => turns.wants(key, wants),
            JobRequest::Busy(busy) => turns.busy(key, busy),
            JobRequest::Loose => turns.loose(key),
            _ => {}
        }
        self.lead();
    }

    pub(super) fn unseat(&mut self, key: u64) {
        if let Role::Leading { turns, .. } = &mut self.part.role {
            turns.leave(key);
            self.lead();
        }
    }

    /// Reports that the job was stopped or resumed.
    pub(super) fn tell_wants(&mut self) {
        let wants = !self.stopped;
        match &mut self.part.role {
            Role::Leading { turns, .. } => {
                turns.wants(OWN, wants);
                self.lead();
            }
            _ => self.tell_leader(&JobRequest::Wants(wants)),
        }
    }

    /// Ends the job's turns: the job is being ended, and all its members run for that.
    ///
    /// If this supervisor leads, it goes on leading: another can lead only when its socket is gone.
    pub(super) fn leave_turns(&mut self) {
        match &mut self.part.role {
            Role::Leading { turns, .. } => {
                turns.leave(OWN);
                self.lead();
            }
            role => {
                *role = Role::None;
                self.part.at = None;
            }
        }
        self.look_at = None;
    }

    pub(super) fn plan_look(&mut self) {
        let looks = self.part.watch
            && self.job.schedule == Some(JobSchedule::Co)
            && self.started
            && self.ending.is_none();
        if !looks {
            self.look_at = None;
        } else if self.look_at.is_none() {
            self.look_at = Some(Instant::now() + self.look_after_so_long());
        }
    }

    fn look_after_so_long(&self) -> Duration {
        (self.job.slice / 4).clamp(Duration::from_millis(1), Duration::from_millis(50))
    }

    /// Reports to the leader where members work, if that has changed.
    pub(super) fn look(&mut self) {
        self.look_at = Some(Instant::now() + self.look_after_so_long());
        let works: BTreeSet<u32> = self.members.look();
        if works == self.works {
            return;
        }
        self.works = works.clone();
        match &mut self.part.role {
            Role::Leading { turns, .. } => {
                turns.busy(OWN, works);
                self.lead();
            }
            _ => self.tell_leader(&JobRequest::Busy(works)),
        }
    }
}
