//! Members that join a group after it has formed.
//!
//! # Design
//! - A group may have room for more members, whose ranks follow those of the first ones. Until such
//!   a member has joined, every other member has a *dormant* pair for its rank: a pair without a
//!   place and without a connection.
//! - The leader, which took in the first members, keeps listening at the group's address. It
//!   expects ranks in *batches*: the processes of one batch join together. When all of them have
//!   applied, each gets the list of the members so far, and of its batch.
//! - A late member connects to every listed member that is in no later batch. Members of its own
//!   batch on its machine it reaches through memory, and of those on other machines the one with
//!   the lower rank connects, as when a group forms. So of two batches the later one connects.
//! - The connection ends the dormancy: the other member gets an event before the first message.
//! - An applicant shows the invitation to its batch ([`pass`](super::pass)), and the leader may
//!   expect the batch from one host only. So no process that is merely trusted takes the rank of an
//!   invited process. A refused application leaves nothing: the rank stays free.
//! - A process that opens a dormant pair shows a pass of the leader. So no other process takes the
//!   rank, not even another member.
//!
//! # Process death
//! An applicant that ends before its batch is complete makes room for another one with its rank. A
//! late member that ends while it opens its pairs has ended for the members that it has reached.
//! The others never learn of it. A rank is given once.
//!
//! An applicant whose connection is lost applies again, as the same process at the same address. If
//! it was admitted before, it gets the answer again, without members that have ended since.
//!
//! # A member that answers nothing
//! A newcomer needs a pair with each listed member, so one stopped process would keep all others
//! out. A member can *expel* it: its pair there is over, also if it was dormant. The leader lists
//! no expelled member, and refuses it if it opens its pair afterwards. A newcomer that waits for a
//! listed member asks for the list again. Only the leader's list counts for newcomers; other
//! members keep their pairs until they expel it too, or it ends.

use super::admitted::{AdmittedWire, PetitionPlace};
use super::home::BridgeHome;
use super::pair::Pairs;
use super::pass::PassIssuer;
use super::requests::{LateWelcome, PetitionReply, answer};
use crate::Rank;
use crate::error::ExpectError;
use crate::forming::MemberCandidate;
use crate::invitation::{Invitation, InvitedHost};
use crate::member::Roster;
use crate::petition::Petitioner;
use crate::wire::{Listed, Welcome};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use upcall_net::Wire;
use upcall_os::atomic::{AtomicBool, Ordering};

/// A process on a connection that has asked the leader, and gets one answer.
pub(super) struct FarGuest {
    home: Arc<BridgeHome>,
    wire: Arc<Wire>,
    /// The connection counts while an answer is awaited on it.
    admitted: Arc<AdmittedWire>,
    call: u32,
    is_gone: AtomicBool,
}

impl FarGuest {
    pub(super) fn new(
        home: &Arc<BridgeHome>,
        wire: &Arc<Wire>,
        admitted: &Arc<AdmittedWire>,
        call: u32,
    ) -> Self {
        admitted.awaits_answer();
        let (home, wire, admitted) = (home.clone(), wire.clone(), admitted.clone());
        Self { home, wire, admitted, call, is_gone: AtomicBool::new(false) }
    }

    /// Its connection has ended.
    pub(super) fn has_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Refuses its petition.
    pub(super) fn refuse(&self, why: &str) {
        self.reply(&PetitionReply::Refused(why.into()));
    }

    /// Sends it the answer. If it has ended, it needs none.
    pub(super) fn reply(&self, reply: &impl Serialize) {
        answer(&self.wire, self.call, reply);
        self.admitted.is_answered();
    }
}

impl MemberCandidate for FarGuest {
    fn pid(&self) -> u32 {
        0
    }

    fn lives(&self) -> bool {
        true
    }

    fn shut_down(&self) {
        self.wire.hang_up();
    }

    fn welcome(&self, welcome: &Welcome) {
        let key = match welcome {
            Welcome::Formed { rank, .. } => {
                self.home.issuer().map(|issuer| issuer.key_of(*rank as Rank))
            }
            Welcome::Refused(_) | Welcome::Lacks(_) => None,
        };
        self.reply(&(welcome, key));
    }
}

/// A guest that has sent a petition.
pub(super) struct FarPetitioner {
    guest: Arc<FarGuest>,
    _place: PetitionPlace,
}

impl FarPetitioner {
    pub(super) fn new(guest: Arc<FarGuest>, place: PetitionPlace) -> Self {
        Self { guest, _place: place }
    }
}

impl Petitioner for FarPetitioner {
    fn answer(&self, bytes: &[u8]) {
        self.guest.reply(&PetitionReply::Answer(bytes.to_vec()));
    }

    fn refuse(&self, why: &str) {
        self.guest.refuse(why);
    }

    fn is_gone(&self) -> bool {
        self.guest.is_gone.load(Ordering::Acquire)
    }
}

/// The late members, as the leader knows them.
#[derive(Default)]
pub(super) struct LateMembers {
    batches: Vec<LateBatch>,
    /// Those that were admitted.
    admitted: BTreeMap<Rank, AdmittedMember>,
    /// Number of batches so far.
    count: u64,
}

/// The ranks that were expected together.
#[derive(Clone)]
struct ExpectedRanks {
    ranks: Range<Rank>,
    /// The number of the batch: no other one has it.
    batch: u64,
    /// Where their processes are.
    host: InvitedHost,
}

impl ExpectedRanks {
    /// Checks that an applicant is invited to join with its rank.
    fn check(&self, applicant: &LateApplicant, issuer: &PassIssuer) -> Result<(), LateRefusal> {
        let rank = applicant.rank;
        let place = applicant.listed.place.as_ref();
        let identity = place.and_then(|place| place.identity.as_deref());
        match issuer.invites(&self.ranks, self.batch, &applicant.invitation) {
            false => Err(LateRefusal::NotInvited { rank }),
            true if !self.host.admits(identity) => Err(LateRefusal::OtherHost { rank }),
            true => Ok(()),
        }
    }
}

/// Why an applicant is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LateRefusal {
    /// The rank is in no batch, or its member has been admitted.
    NotExpected { rank: Rank },
    /// It does not show the invitation to the batch.
    NotInvited { rank: Rank },
    /// The batch is expected from another host.
    OtherHost { rank: Rank },
    /// Another process has applied for the rank.
    Taken { rank: Rank },
    /// It was admitted, and its pair is over.
    Over,
    /// It claims to be on the machine of another applicant.
    WrongMachine,
}

impl fmt::Display for LateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotExpected { rank } => {
                write!(f, "no member is expected to join with rank {rank}")
            }
            Self::NotInvited { rank } => {
                write!(f, "it does not show the invitation to join with rank {rank}")
            }
            Self::OtherHost { rank } => {
                write!(
                    f,
                    "the process that was invited to join with rank {rank} is on another host"
                )
            }
            Self::Taken { rank } => write!(f, "rank {rank} is taken"),
            Self::Over => f.write_str("it was expelled, or counts as ended"),
            Self::WrongMachine => f.write_str("it gives the key of a machine that is not its own"),
        }
    }
}

/// A member that was admitted.
struct AdmittedMember {
    listed: Listed,
    /// The ranks that have joined together with it.
    expected: ExpectedRanks,
    /// By rank: whether it was listed when this one was admitted.
    known: Arc<[bool]>,
}

struct LateBatch {
    expected: ExpectedRanks,
    applicants: Vec<LateApplicant>,
}

/// A process that asks to join.
pub(super) struct LateApplicant {
    pub(super) rank: Rank,
    pub(super) guest: Arc<FarGuest>,
    pub(super) listed: Listed,
    pub(super) invitation: Invitation,
}

impl LateApplicant {
    pub(super) fn refuse(&self, why: &str) {
        self.guest.reply(&LateWelcome::Refused(why.into()));
    }
}

/// A batch all of whose members have applied.
pub(super) struct AdmittedBatch(Vec<(Arc<FarGuest>, LateWelcome)>);

impl AdmittedBatch {
    /// Sends each its answer.
    pub(super) fn welcome(&self) {
        self.0.iter().for_each(|(guest, welcome)| guest.reply(welcome));
    }
}

impl LateMembers {
    /// Expects a batch with these ranks, from this host. Returns the invitation to it.
    ///
    /// # Errors
    /// A rank is another member's, or there is none.
    pub(super) fn expect(
        &mut self,
        (ranks, host): (Range<Rank>, InvitedHost),
        pairs: &Pairs,
        issuer: &PassIssuer,
    ) -> Result<Invitation, ExpectError> {
        // The rank of an expelled member is given to no other one.
        let is_dormant = |rank: Rank| {
            let pair = pairs.get(rank).and_then(Option::as_ref);
            pair.is_some_and(|pair| pair.is_dormant() && !pair.way.is_over())
        };
        let is_taken = |rank: &Rank| {
            !is_dormant(*rank)
                || self.admitted.contains_key(rank)
                || self.batches.iter().any(|batch| batch.expected.ranks.contains(rank))
        };
        if let Some(rank) = ranks.clone().find(is_taken) {
            return Err(ExpectError::Taken { rank });
        }
        self.count += 1;
        let invitation = issuer.invitation(&ranks, self.count);
        if !ranks.is_empty() {
            let expected = ExpectedRanks { ranks, batch: self.count, host };
            self.batches.push(LateBatch { expected, applicants: Vec::new() });
        }
        Ok(invitation)
    }

    /// Expects a batch no more. Returns those that have applied.
    pub(super) fn expect_no_more(&mut self, ranks: &Range<Rank>) -> Vec<LateApplicant> {
        let gone = self.batches.extract_if(.., |batch| batch.expected.ranks == *ranks);
        gone.flat_map(|batch| batch.applicants).collect()
    }

    /// Ends each batch with one of these ranks. Returns those that have applied.
    pub(super) fn expel(&mut self, ranks: &Range<Rank>) -> Vec<LateApplicant> {
        let has_any =
            |batch: &mut LateBatch| batch.expected.ranks.clone().any(|rank| ranks.contains(&rank));
        let gone = self.batches.extract_if(.., has_any);
        gone.flat_map(|batch| batch.applicants).collect()
    }

    /// Adds an applicant. Returns its batch once that is complete. A member that is admitted and
    /// applies again is alone in it.
    ///
    /// # Errors
    /// See [`LateRefusal`]. A refused applicant changes nothing.
    pub(super) fn apply(
        &mut self,
        applicant: LateApplicant,
        (roster, pairs): (&Roster, &Pairs),
        issuer: &PassIssuer,
    ) -> Result<Option<AdmittedBatch>, LateRefusal> {
        let rank = applicant.rank;
        if let Some(before) = self.admitted.get(&rank) {
            before.expected.check(&applicant, issuer)?;
            if before.listed != applicant.listed {
                return Err(LateRefusal::NotExpected { rank });
            }
            let pair = pairs.get(rank).and_then(Option::as_ref);
            if pair.is_none_or(|pair| pair.way.is_over()) {
                return Err(LateRefusal::Over);
            }
            let welcome = self.welcome(rank, (roster, pairs), issuer);
            return Ok(Some(AdmittedBatch(vec![(applicant.guest, welcome)])));
        }
        let Some(at) = self.batches.iter().position(|batch| batch.expected.ranks.contains(&rank))
        else {
            return Err(LateRefusal::NotExpected { rank });
        };
        let batch = &mut self.batches[at];
        batch.expected.check(&applicant, issuer)?;
        if let Some(other) = batch.applicants.iter_mut().find(|other| other.rank == rank) {
            if other.listed != applicant.listed {
                return Err(LateRefusal::Taken { rank });
            }
            // Its first connection is lost, which is not noticed yet.
            other.guest = applicant.guest;
            return Ok(None);
        }
        let place = applicant.listed.place.as_ref();
        let others = batch.applicants.iter().filter_map(|other| other.listed.place.as_ref());
        if place.is_some_and(|place| others.into_iter().any(|other| other.is_at_odds_with(place))) {
            return Err(LateRefusal::WrongMachine);
        }
        batch.applicants.push(applicant);
        if batch.applicants.len() < batch.expected.ranks.len() {
            return Ok(None);
        }
        let LateBatch { expected, applicants } = self.batches.swap_remove(at);
        let known: Arc<[bool]> = self.listed(roster, pairs).iter().map(Option::is_some).collect();
        for LateApplicant { rank, listed, .. } in &applicants {
            let (listed, expected, known) = (listed.clone(), expected.clone(), known.clone());
            self.admitted.insert(*rank, AdmittedMember { listed, expected, known });
        }
        let welcome =
            |one: LateApplicant| (one.guest, self.welcome(one.rank, (roster, pairs), issuer));
        Ok(Some(AdmittedBatch(applicants.into_iter().map(welcome).collect())))
    }

    /// The answer to a member that is admitted: its batch, and those before it that have not ended.
    fn welcome(
        &self,
        rank: Rank,
        (roster, pairs): (&Roster, &Pairs),
        issuer: &PassIssuer,
    ) -> LateWelcome {
        let AdmittedMember { expected, known, .. } = &self.admitted[&rank];
        let mut members = self.listed(roster, pairs);
        let mut passes = vec![None; members.len()];
        for (other, listed) in members.iter_mut().enumerate() {
            if expected.ranks.contains(&other) {
                *listed = self.admitted.get(&other).map(|one| one.listed.clone());
            } else if !known[other] {
                // It joined later, and opens the pair.
                *listed = None;
            } else if listed.is_some() {
                passes[other] = Some(issuer.pass(rank, other));
            }
        }
        let (group, key) = (roster.group, issuer.key_of(rank));
        LateWelcome::Admitted { group, members, key, passes }
    }

    /// The members so far that have not ended, as those on other hosts reach them.
    fn listed(&self, roster: &Roster, pairs: &Pairs) -> Vec<Option<Listed>> {
        let one = |rank: Rank| {
            let pair = pairs.get(rank).and_then(Option::as_ref);
            let has_ended = pair.is_some_and(|pair| pair.way.is_over());
            let admitted = self.admitted.get(&rank).map(|one| &one.listed);
            let listed = admitted.or(roster.members.get(rank));
            let listed = listed.filter(|listed| listed.place.is_some() && !has_ended)?;
            Some(listed.clone().elsewhere())
        };
        (0..roster.members.len()).map(one).collect()
    }

    /// Number of processes that have applied and are not admitted.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.batches.iter().map(|batch| batch.applicants.len()).sum()
    }

    /// Removes an applicant whose connection is gone.
    pub(super) fn lost(&mut self, guest: &FarGuest) {
        for batch in &mut self.batches {
            batch.applicants.retain(|one| !std::ptr::eq(&*one.guest, guest));
        }
    }
}
