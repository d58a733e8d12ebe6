//! Two members that have lost each other, and live: they are *parted* for those that keep both.
//!
//! # Design
//! - A pair of members on two hosts whose link is cut for longer than the patience is over: each of
//!   the two takes the other one for ended, and their session is gone for good. A third member may
//!   still reach both, for example if one way of several is cut.
//! - So a member that loses another one reports that to all others on other hosts, over its links
//!   ([`bridge`](crate::bridge)), in order with its messages: once for each lost member, before
//!   what it sends when it knows of the loss. A member that has said that it leaves is not lost.
//! - A report alone means little: mostly the lost member has died, and its end is about to be
//!   noticed here, too. The dead report nothing. So two members are parted once *both* have
//!   reported the loss of the other. A member of this host makes no report here. It counts if the
//!   kernel says that it lives: the kernel marks a process that ends before it closes its
//!   connections.
//!   Nothing here depends on time.
//! - The program gets [`Event::Parted`](crate::Event::Parted) once, because each member reports a
//!   loss once. It gets none if the end of one of the two is known: that end wins.
//! - From then on barriers, reductions and collective operations end with
//!   [`RunError::Parted`](crate::RunError::Parted), as they end with a death. Before that they wait
//!   for nothing that never comes either: a member that waits for a lost one gives up, and reports
//!   that to all ([`barrier`](crate::barrier)).
//! - A member that joins late gets the reports of all losses so far when its links open. It takes
//!   part in no barrier, so it waits for none.
//!
//! # Peers
//! A member reports for itself only: the reporter is the other end of the link. So a liar can part
//! itself from members of this host, and two liars can part themselves from each other. Then
//! collective operations fail, as they do if a liar leaves. What a reporter makes this process hold
//! is one bit for each member.

use crate::error::RunError;
use crate::event::Event;
use crate::forming::MOST_MEMBERS;
use crate::member::has_ended;
use crate::{Group, Rank};
use std::cell::{Cell, RefCell};

/// Number of bits in a word of a set.
const BITS: usize = u64::BITS as usize;

/// Some members of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostRanks([u64; MOST_MEMBERS.div_ceil(BITS)]);

/// Whether a member was in a set before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    New,
    Before,
    /// No group has such a rank.
    NoRank,
}

impl LostRanks {
    pub(crate) fn insert(&mut self, rank: Rank) -> Inserted {
        let Some(word) = self.0.get_mut(rank / BITS) else { return Inserted::NoRank };
        let bit = 1 << (rank % BITS);
        let before = std::mem::replace(word, *word | bit);
        if before & bit == 0 { Inserted::New } else { Inserted::Before }
    }

    pub(crate) fn has(&self, rank: Rank) -> bool {
        self.0.get(rank / BITS).is_some_and(|word| word >> (rank % BITS) & 1 == 1)
    }
}

/// The state of a report that a member has lost another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossReport {
    /// Only the one has reported the loss of the other.
    OneSided,
    /// So has the other.
    Mutual,
    /// There are no such two members, or the report came before.
    Wrong,
}

/// The losses that other members have reported.
#[derive(Debug)]
pub(crate) struct Partings {
    /// By reporting member. Empty in a group on one host.
    lost_by: RefCell<Box<[LostRanks]>>,
    /// The first two that are parted.
    first: Cell<Option<(Rank, Rank)>>,
}

impl Partings {
    /// The state of a group of `size` members, which may be on several hosts.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            lost_by: RefCell::new(vec![LostRanks::default(); size].into()),
            first: Cell::new(None),
        }
    }

    /// Notes a report of member `by` to member `own`.
    fn note(&self, own: Rank, (by, lost): (Rank, Rank)) -> LossReport {
        let mut lost_by = self.lost_by.borrow_mut();
        let size = lost_by.len();
        if by >= size || lost >= size || by == lost || by == own || lost == own {
            return LossReport::Wrong;
        }
        match (lost_by[by].insert(lost), lost_by[lost].has(by)) {
            (Inserted::New, true) => LossReport::Mutual,
            (Inserted::New, false) => LossReport::OneSided,
            (Inserted::Before | Inserted::NoRank, _) => LossReport::Wrong,
        }
    }
}

impl Group {
    /// Takes in the report of a member on another host that it has lost a third one.
    pub(crate) fn reports_loss(&self, by: Rank, lost: Rank) {
        let both_live = || !self.is_gone(by) && !self.is_gone(lost);
        let is_parted = match self.0.partings.note(self.rank(), (by, lost)) {
            LossReport::Mutual => both_live(),
            // A member of this host makes no report here.
            LossReport::OneSided => self.0.member.far(lost).is_none() && both_live(),
            LossReport::Wrong => {
                self.0.member.account.refuses();
                false
            }
        };
        if is_parted {
            let (one, other) = (by.min(lost), by.max(lost));
            self.0.partings.first.set(self.0.partings.first.get().or(Some((one, other))));
            self.happened(Event::Parted { one, other });
        }
    }

    /// Returns `true` if this process knows, or the kernel does, that a member has ended or left,
    /// also if messages of it wait.
    fn is_gone(&self, rank: Rank) -> bool {
        let has_gone = || match self.0.member.far(rank) {
            Some(far) => far.has_ended(),
            None => {
                let listed = &self.0.roster.members[rank];
                has_ended(listed, &self.0.member.folder().join(&listed.socket))
            }
        };
        self.lost(rank).is_some()
            || self.0.senders.of(rank).is_some_and(|inbound| inbound.has_ended())
            || has_gone()
    }

    /// Two members that are parted, if any are, and the error of steps that both would take part
    /// in. The first one is the member that counts as missing.
    pub(crate) fn parted(&self) -> Option<(Rank, RunError)> {
        let (one, other) = self.0.partings.first.get()?;
        let lost = [one, other].into_iter().find_map(|rank| Some((rank, self.lost(rank)?)));
        Some(match lost {
            Some((rank, event)) => (rank, RunError::Lost(event)),
            None => (one, RunError::Parted { one, other }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_members_are_parted_once_both_report_it() {
        let partings = Partings::new(70);
        let note = |by, lost| partings.note(2, (by, lost));
        assert_eq!(note(0, 69), LossReport::OneSided);
        assert_eq!(note(0, 69), LossReport::Wrong, "again");
        assert_eq!(note(1, 69), LossReport::OneSided, "of another member");
        assert_eq!(note(69, 0), LossReport::Mutual);
        assert_eq!(note(69, 0), LossReport::Wrong, "again");
        assert_eq!(note(69, 1), LossReport::Mutual);
    }

    #[test]
    fn reports_of_members_that_cannot_be_lost_are_wrong() {
        let partings = Partings::new(3);
        for (by, lost) in [(0, 0), (0, 2), (2, 0), (0, 3), (3, 0), (0, usize::MAX), (1, 1 << 32)] {
            assert_eq!(partings.note(2, (by, lost)), LossReport::Wrong, "{by}, {lost}");
        }
        assert_eq!(Partings::new(0).note(2, (0, 1)), LossReport::Wrong, "on one host");
    }

    #[test]
    fn a_set_has_the_ranks_of_all_members_and_no_other() {
        let mut set = LostRanks::default();
        for rank in [0, 63, 64, MOST_MEMBERS - 1] {
            assert!(!set.has(rank));
            assert_eq!(set.insert(rank), Inserted::New);
            assert!(set.has(rank) && set.insert(rank) == Inserted::Before);
        }
        for rank in [MOST_MEMBERS, usize::MAX] {
            assert_eq!((set.insert(rank), set.has(rank)), (Inserted::NoRank, false));
        }
    }
}
