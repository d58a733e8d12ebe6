//! A member's door: where others connect, to form the group or to bring their queues. All of it
//! runs on the clerk.

use crate::Rank;
use crate::error::Lack;
use crate::forming::{Asks, MemberCandidate};
use crate::member::{Member, Roster};
use crate::wire::{
    self, GroupId, Lacks, Listed, MemberRequest, ProcessKey, QueueOpenReply, VERSION, Welcome,
    shown,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use upcall_directory::clerk::{self, TURN, Watched};
use upcall_directory::names;
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::lock::KernelMutex;
use upcall_os::memory::AdoptError;
use upcall_os::socket::{Connection, Listener, Peer, Received, SocketMessage, says_ended};
use upcall_sched::Domain;
use upcall_sched::domain::MOST_POSTS;
use upcall_sched::post::Post;
use upcall_shm::mailbag::{Mailbag, NotAMailbag};

/// Maximum number of connections of one process: two for each member that it can be, one to ask and
/// one to bring a queue. Each takes two descriptors.
const MOST_CONNECTIONS: usize = 2 * MOST_POSTS as usize;

/// Maximum number of connections that wait at a door; the kernel has room for one more than it was
/// asked for.
pub(crate) const ALL: usize = 1025;

/// The door.
pub(crate) struct MemberListener {
    pub(crate) listener: Listener,
    pub(crate) member: Weak<Member>,
}

impl MemberListener {
    /// Accepts connections that wait, at most `most`.
    pub(crate) fn accept(&self, most: usize) {
        let Some(member) = self.member.upgrade() else { return };
        let own = upcall_os::socket::own_user();
        let admit = |connection: Connection| {
            let peer = match connection.peer() {
                Ok(peer) => peer,
                // A process that has ended is no longer known, and of no use.
                Err(error) if says_ended(&error) => return,
                Err(error) => return answer_shortage(&connection, &error),
            };
            let process = ProcessKey::of(&peer);
            if peer.uid == own
                && member.forming.expects(process)
                && self.has_room_for(&member, process)
            {
                let here = self.member.clone();
                let new = |me: &Weak<_>| GroupPeer {
                    me: me.clone(),
                    connection,
                    peer,
                    process,
                    member: here,
                    brought: KernelMutex::default(),
                };
                member.admit(Arc::new_cyclic(new));
            } else if matches!(connection.receive(), Ok(Received::Message(_))) {
                // A connection that only checks whether a member is here sends no message.
                member.account.refuses();
            }
        };
        clerk::let_in(&self.listener, most, |_| false, admit);
    }

    fn has_room_for(&self, member: &Member, process: ProcessKey) -> bool {
        let has_room = || member.guests_of(process).len() < MOST_CONNECTIONS;
        if !has_room() {
            // Some may be closed already, and not yet removed.
            member.see_off_guests_of(process);
        }
        has_room()
    }
}

impl Watched for MemberListener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        self.accept(TURN);
        true
    }

    fn failed(&self) -> bool {
        true
    }
}

/// A peer that has connected.
pub(crate) struct GroupPeer {
    me: Weak<Self>,
    connection: Connection,
    peer: Peer,
    process: ProcessKey,
    member: Weak<Member>,
    /// The member whose queue came through this connection.
    brought: KernelMutex<Option<Rank>>,
}

impl GroupPeer {
    pub(crate) fn process(&self) -> ProcessKey {
        self.process
    }

    pub(crate) fn rank(&self) -> Option<Rank> {
        *self.brought.lock()
    }

    /// Answers that this process lacks a resource for the guest, if the error reports that.
    pub(crate) fn cannot(&self, error: &io::Error) {
        answer_shortage(&self.connection, error);
    }

    fn answer(&self, answer: &QueueOpenReply, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.connection.send(&wire::pack(answer)?, descriptors)
    }

    /// Handles what it has sent, up to [`TURN`] messages. Returns `false` if the peer is gone, or
    /// is to go.
    pub(crate) fn attend(&self) -> bool {
        let said =
            |message| self.member.upgrade().is_some_and(|member| self.said(&member, message));
        clerk::hear_or(&self.connection, said, |error| self.cannot(error))
    }

    /// Handles an application; see [`Forming::apply`](crate::forming::Forming::apply).
    fn applies(
        self: Arc<Self>,
        member: &Member,
        asks: Asks<'_>,
        socket: &str,
    ) -> Result<(), Option<String>> {
        if !member.forming.takes_in() {
            return Err(None);
        }
        let (pid, process) = (self.pid(), self.process);
        if !names::is_member_of(socket, pid) {
            return Err(Some(format!(
                "{socket:?} is no socket of a member that is {}",
                shown(pid)
            )));
        }
        if matches!(process, ProcessKey::Numbered(0, _)) {
            let why = "it is in a PID namespace that the process which takes in the members does \
                       not see, and before Linux 6.9 the kernel does not tell such processes apart";
            return Err(Some(why.into()));
        }
        let listed = Listed { process, socket: socket.into(), place: None };
        member.forming.apply(&(self as Arc<dyn MemberCandidate>), asks, listed)
    }

    /// Handles one message. Returns `false` to hang up.
    fn said(&self, member: &Member, message: SocketMessage) -> bool {
        let Some(guest) = self.me.upgrade() else { return false };
        match wire::unpack(&message.bytes) {
            Ok(MemberRequest::Hello { version, size, rank, socket, kinds }) => {
                let applied = if version == VERSION {
                    guest.applies(member, Asks { size, rank, kinds: &kinds }, &socket)
                } else {
                    Err(Some(format!(
                        "it speaks version {VERSION} of the protocol, and this process version \
                         {version}"
                    )))
                };
                match applied {
                    Ok(()) => true,
                    // No answer: there is no group to join here any more, so the applicant looks
                    // again.
                    Err(None) => false,
                    Err(Some(why)) => {
                        member.account.refuses();
                        self.welcome(&Welcome::Refused(why));
                        false
                    }
                }
            }
            Ok(MemberRequest::Open { version, group, from, to }) => {
                if message.lost {
                    // The kernel reports that the table is full, and no number.
                    let lacks = Lacks { lack: Lack::Descriptors, errno: None };
                    member.account.refuses();
                    let _ = self.answer(&QueueOpenReply::Lacks(lacks), &[]);
                    return false;
                }
                let descriptors = message.descriptors;
                member
                    .forming
                    .bring(OfferedQueue { guest, version, group, from, to, descriptors }, member)
            }
            Err(_) => {
                member.account.refuses();
                false
            }
        }
    }
}

impl MemberCandidate for GroupPeer {
    fn pid(&self) -> u32 {
        self.peer.pid
    }

    fn lives(&self) -> bool {
        !self.peer.pidfd.as_ref().is_some_and(upcall_os::socket::has_ended)
    }

    fn shut_down(&self) {
        self.connection.shut_down();
    }

    fn welcome(&self, welcome: &Welcome) {
        let _ = wire::pack(welcome).and_then(|bytes| self.connection.send(&bytes, &[]));
    }
}

/// A queue that another member brings.
pub(crate) struct OfferedQueue {
    guest: Arc<GroupPeer>,
    version: u32,
    group: GroupId,
    from: u32,
    to: u32,
    descriptors: Vec<OwnedFd>,
}

impl OfferedQueue {
    /// The process that brings it; `None` if it cannot be a queue.
    pub(crate) fn process(&self) -> Option<ProcessKey> {
        (self.version == VERSION && self.descriptors.len() == 2).then(|| self.guest.process())
    }

    /// Takes the queue in, and answers. Returns `false` to hang up. A queue that was taken in is
    /// kept if the answer cannot be sent: its sender then notifies for each message.
    pub(crate) fn open(self, member: &Member, roster: &Roster) -> bool {
        let guest = self.guest.clone();
        let refusal = match self.check_and_open(member, roster) {
            Ok(rank) => {
                *guest.brought.lock() = Some(rank);
                let yes = QueueOpenReply::Yes {
                    line: member.post.line(),
                    makes_fences: Post::makes_fences(),
                };
                if let Ok(domain) = Domain::current() {
                    let _ = guest.answer(&yes, &[domain.station().as_fd()]);
                }
                return true;
            }
            Err(OfferRefusal::Shortage(lacks)) => QueueOpenReply::Lacks(lacks),
            Err(OfferRefusal::Unfit(why)) => QueueOpenReply::No(why),
        };
        member.account.refuses();
        let _ = guest.answer(&refusal, &[]);
        false
    }

    fn check_and_open(self, member: &Member, roster: &Roster) -> Result<Rank, OfferRefusal> {
        let Self { guest, version, group, from, to, descriptors } = self;
        if version != VERSION {
            return Err(OfferRefusal::Unfit(format!(
                "the receiver speaks version {VERSION} of the protocol, the sender version \
                 {version}"
            )));
        }
        if group != roster.group {
            return Err("the queue is of another group".into());
        }
        let (from, to) = (from as usize, to as usize);
        if to != roster.rank {
            return Err(OfferRefusal::Unfit(format!(
                "the queue is for member {to}, and this is member {}",
                roster.rank
            )));
        }
        match roster.members.get(from) {
            Some(listed) if listed.process.is(guest.process()) => {}
            Some(_) => {
                let (listed, guest) = (shown(roster.pid(from)), shown(guest.pid()));
                return Err(OfferRefusal::Unfit(format!(
                    "member {from} is {listed}, and this is {guest}"
                )));
            }
            None => return Err(OfferRefusal::Unfit(format!("there is no member {from}"))),
        }
        if !member.forming.first_queue_of(from) {
            return Err(OfferRefusal::Unfit(format!("member {from} has brought a queue before")));
        }
        let Ok([queue, doorbell]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err("a queue comes with two descriptors".into());
        };
        let take_in = || {
            let queue = Mailbag::join(queue)?;
            let doorbell = Doorbell::adopt(doorbell)?;
            point(Point::MemberTakesIn);
            member.take_in(from, queue, doorbell)?;
            point(Point::MemberTookIn);
            Ok(from)
        };
        take_in().inspect_err(|refused| {
            // Nothing was read from it, so it may be brought again.
            if let OfferRefusal::Shortage(_) = refused {
                member.forming.has_no_queue_of(from);
            }
        })
    }
}

/// The reason why a queue is not taken in.
enum OfferRefusal {
    /// This process lacks a resource for it.
    Shortage(Lacks),
    /// It is malformed, or its sender may not bring it.
    Unfit(String),
}

impl From<&str> for OfferRefusal {
    fn from(why: &str) -> Self {
        Self::Unfit(why.into())
    }
}

impl From<io::Error> for OfferRefusal {
    fn from(error: io::Error) -> Self {
        Lacks::of(&error).map_or_else(|| Self::Unfit(error.to_string()), Self::Shortage)
    }
}

impl From<NotAMailbag> for OfferRefusal {
    fn from(error: NotAMailbag) -> Self {
        match error {
            NotAMailbag::Map(error) | NotAMailbag::File(AdoptError::Kernel(error)) => error.into(),
            error => Self::Unfit(error.to_string()),
        }
    }
}

/// Answers that this process lacks a resource, if the error reports that. The answer fits every
/// request ([`Lacks`]). An end that gets no answer sees that the connection is closed.
fn answer_shortage(connection: &Connection, error: &io::Error) {
    if let Some(lacks) = Lacks::of(error) {
        let _ = wire::pack(&QueueOpenReply::Lacks(lacks))
            .and_then(|bytes| connection.send(&bytes, &[]));
    }
}

impl Watched for GroupPeer {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        let Some(member) = self.member.upgrade() else { return false };
        let there = self.attend();
        if !there {
            member.lost(self);
        }
        there
    }

    fn failed(&self) -> bool {
        if let Some(member) = self.member.upgrade() {
            member.lost(self);
        }
        false
    }
}

/// The end of another member's process.
pub(crate) struct AtEnd<D> {
    /// Readable once the member has ended.
    pub(crate) descriptor: D,
    pub(crate) rank: Rank,
    pub(crate) process: ProcessKey,
    /// The socket of its door.
    pub(crate) socket: PathBuf,
    pub(crate) member: Weak<Member>,
}

impl<D: AsFd + Send + Sync> Watched for AtEnd<D> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        if let Some(member) = self.member.upgrade() {
            member.has_ended(self.rank, self.process);
        }
        // A killed member leaves its socket behind.
        let _ = std::fs::remove_file(&self.socket);
        false
    }

    fn failed(&self) -> bool {
        false
    }
}
