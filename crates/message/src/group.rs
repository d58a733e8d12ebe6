//! A member's group: its members, and the state that is kept of it.
//!
//! Sending is in `sending.rs`, receiving in `receiving.rs`, waiting in `waiting.rs`, and the
//! clerk's reports of other members in `news.rs`.

use crate::Rank;
use crate::collectives::hosts::{Crossing, HostMap};
use crate::collectives::window::CollectiveState;
use crate::error::ExpectError;
use crate::event::Event;
use crate::inbound::Attached;
use crate::invitation::{Invitation, InvitedHost};
use crate::kinds::Handlers;
use crate::link::Outward;
use crate::looks::LinkLooks;
use crate::member::{Member, Roster};
use crate::parting::Partings;
use crate::petition::Petition;
use crate::proto::offers::Offers;
use crate::proto::receiving::Senders;
use crate::reports::BarrierState;
use crate::supply::Supply;
use crate::waiters::Upcalls;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::headroom::Headroom;
use upcall_sched::Pacing;
use upcall_sched::mask::Mask;
use upcall_shm::mailbag::Mailbag;

/// How a member waits, and how much it may buffer.
pub(crate) struct Settings {
    pub(crate) pacing: Pacing,
    pub(crate) timeout: Option<Duration>,
    /// Set if handlers run by themselves.
    pub(crate) upcalls: bool,
    /// Maximum number of bytes that it may buffer.
    pub(crate) share: u64,
    pub(crate) headroom: fn() -> Option<Headroom>,
    /// For tests: other hosts than the members have.
    pub(crate) pretended: Option<Vec<u16>>,
}

/// Makes a thread come to a safe point soon.
pub(crate) type Notify = Arc<dyn Fn() + Send + Sync>;

/// A process's membership in a group; a clone is the same membership.
///
/// It belongs to the kernel thread that has joined. When the last clone is dropped, the process
/// leaves: what it has sent still arrives, and the other members learn that it has left.
#[derive(Clone)]
pub struct Group(pub(crate) Rc<Membership>);

/// The state that all clones share.
pub(crate) struct Membership {
    pub(crate) member: Arc<Member>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) handlers: Handlers,
    pub(crate) pacing: Pacing,
    pub(crate) timeout: Option<Duration>,
    /// By rank.
    pub(crate) links: Box<[RefCell<Outward>]>,
    pub(crate) senders: Senders<Mailbag, Attached>,
    pub(crate) events: RefCell<VecDeque<Event>>,
    pub(crate) petitions: RefCell<VecDeque<Petition>>,
    /// All events so far, one for each lost member.
    lost: RefCell<Vec<Event>>,
    pub(crate) barrier: BarrierState,
    /// Losses that other members have reported.
    pub(crate) partings: Partings,
    pub(crate) collectives: CollectiveState,
    pub(crate) hosts: HostMap,
    /// This member's place among the hosts; `None` if there is only one.
    pub(crate) crossing: Option<Crossing>,
    pub(crate) taken: Cell<u64>,
    /// Counts changes that a waiting thread does not make itself: on a virtual processor each
    /// handler that has run and each message that was received; elsewhere each handler that has run
    /// in an interrupt or at a safe point.
    pub(crate) changes: Cell<u64>,
    /// Number of diversions by senders that were forgotten.
    pub(crate) diversions: Cell<u64>,
    pub(crate) upcalls: Upcalls,
    /// Keeps interrupts and upcalls off.
    pub(crate) mask: Mask,
    /// Called in place of interrupts. Changes only while they are off.
    pub(crate) notify: RefCell<Option<Notify>>,
    /// Maximum number of bytes that it may buffer.
    pub(crate) share: u64,
    pub(crate) supply: Supply,
    /// Time of the last diversion, if it may have memory of segments that it could give back.
    pub(crate) spare: Cell<Option<Instant>>,
    pub(crate) offers: Offers,
    /// How long a wait polls the links.
    pub(crate) looks: LinkLooks,
    /// Number of sends that wait for room and run handlers, one within the other.
    pub(crate) nested: Cell<u32>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(member {} of {})", self.rank(), self.size())
    }
}

impl Group {
    pub(crate) fn new(
        member: Arc<Member>,
        roster: Arc<Roster>,
        handlers: Handlers,
        settings: Settings,
    ) -> Self {
        let barrier = BarrierState::new(roster.members.len());
        let is_across = roster.members.iter().any(|listed| listed.place.is_some());
        let partings = Partings::new(if is_across { roster.members.len() } else { 0 });
        let hosts = HostMap::new(&settings.pretended.unwrap_or_else(|| roster.hosts()));
        let crossing = Crossing::of(&hosts, roster.rank);
        let links = roster.members.iter().map(|_| RefCell::new(Outward::Unopened)).collect();
        Self(Rc::new(Membership {
            member,
            roster,
            handlers,
            pacing: settings.pacing,
            timeout: settings.timeout,
            links,
            senders: Senders::default(),
            events: RefCell::default(),
            petitions: RefCell::default(),
            lost: RefCell::default(),
            barrier,
            partings,
            collectives: CollectiveState::default(),
            hosts,
            crossing,
            taken: Cell::new(0),
            changes: Cell::new(0),
            diversions: Cell::new(0),
            upcalls: Upcalls::new(settings.upcalls),
            mask: Mask::default(),
            notify: RefCell::default(),
            share: settings.share,
            supply: Supply::new(settings.headroom),
            spare: Cell::new(None),
            offers: Offers::default(),
            looks: LinkLooks::default(),
            nested: Cell::new(0),
        }))
    }

    /// This member's rank, from 0.
    pub fn rank(&self) -> Rank {
        self.0.roster.rank
    }

    /// Number of members, including those that have ended, and those for which the group has
    /// [room](crate::GroupBuilder::room_for).
    pub fn size(&self) -> usize {
        self.0.roster.members.len()
    }

    /// Returns a member's process ID, as the kernel reported it when the group formed. `None` if
    /// there is no such member, or its process is not visible in this PID namespace.
    pub fn process(&self, rank: Rank) -> Option<u32> {
        (rank < self.size()).then(|| self.0.roster.pid(rank)).filter(|pid| *pid != 0)
    }

    /// Takes the next event of another member, in the order in which the events were noticed. Only
    /// [`poll`](Self::poll), [`receive`](Self::receive) and [`peek`](Self::peek) notice events.
    pub fn event(&self) -> Option<Event> {
        self.0.events.borrow_mut().pop_front()
    }

    /// Records an event. Each member is lost once.
    pub(crate) fn happened(&self, event: Event) {
        match event {
            Event::Joined { .. } | Event::Parted { .. } => {}
            Event::Ended { rank } | Event::Violation { rank, .. } if self.lost(rank).is_some() => {
                return;
            }
            Event::Ended { .. } | Event::Violation { .. } => {
                self.0.lost.borrow_mut().push(event.clone());
            }
        }
        self.0.events.borrow_mut().push_back(event);
        self.0.upcalls.wake();
    }

    /// The event by which a member was lost, if it was.
    pub(crate) fn lost(&self, member: Rank) -> Option<Event> {
        let of = |event: &&Event| match **event {
            Event::Ended { rank } | Event::Violation { rank, .. } => rank == member,
            Event::Joined { .. } | Event::Parted { .. } => false,
        };
        self.0.lost.borrow().iter().find(of).cloned()
    }

    /// Returns `false` if the member is to join later, and has not joined yet.
    pub fn has_joined(&self, rank: Rank) -> bool {
        rank < self.size() && self.0.member.far(rank).is_none_or(|other| other.has_joined())
    }

    /// Expects the members with these ranks to join from now on, together
    /// ([`GroupBuilder::late`](crate::GroupBuilder::late)). To be called in the member that listens
    /// at the address at which the members meet. Only processes that show the invitation join.
    ///
    /// # Errors
    /// See [`ExpectError`].
    pub fn expect(&self, ranks: Range<Rank>) -> Result<Invitation, ExpectError> {
        self.expect_of(ranks, InvitedHost::Any)
    }

    /// Expects the members with these ranks, as [`expect`](Self::expect) does, from the host of a
    /// petition only: on another host the invitation is worth nothing.
    ///
    /// # Errors
    /// See [`ExpectError`].
    pub fn expect_from(
        &self,
        ranks: Range<Rank>,
        petition: &Petition,
    ) -> Result<Invitation, ExpectError> {
        self.expect_of(ranks, InvitedHost::Only(petition.host().map(Into::into)))
    }

    fn expect_of(&self, ranks: Range<Rank>, from: InvitedHost) -> Result<Invitation, ExpectError> {
        self.0.member.bridge.get().ok_or(ExpectError::NoRoom)?.expect(ranks, from)
    }

    /// Does not expect the members of these ranks any more, as long as not all of them have
    /// applied. Those that have applied are refused, and the ranks may be expected again.
    pub fn expect_no_more(&self, ranks: &Range<Rank>) {
        if let Some(bridge) = self.0.member.bridge.get() {
            bridge.expect_no_more(ranks);
        }
    }

    /// Expels members on other hosts: this member neither sends to them nor receives from them any
    /// more, also if they live and answer nothing. Members on this host stay.
    ///
    /// A member that has joined is lost as if it had ended: [`Event::Ended`]. A member that has not
    /// joined yet is refused when it comes, and its rank stays unused.
    ///
    /// To be called in the member that listens at the address at which the members meet: a member
    /// that joins later needs no connection with an expelled one. Otherwise a process that is
    /// stopped while it joins would keep all later ones out. Other members keep their connections
    /// with an expelled member until they expel it too, or it ends.
    pub fn expel(&self, ranks: &Range<Rank>) {
        if let Some(bridge) = self.0.member.bridge.get() {
            bridge.expel(ranks);
        }
    }

    pub(crate) fn barriers(&self) -> &BarrierState {
        &self.0.barrier
    }

    /// Number of messages that this member has taken.
    pub fn taken(&self) -> u64 {
        let _busy = self.busy();
        self.0.taken.get()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.member.leave();
    }
}
