//! How a process becomes a member of a group, by itself or as part of a job.

use crate::Rank;
use crate::bridge::{self, AcrossHosts, GroupMeeting};
use crate::door::MemberListener;
use crate::error::JoinError;
use crate::forming::{FormingTimeout, MOST_MEMBERS};
use crate::group::{Group, Settings};
use crate::invitation::{Invitation, InvitedRanks};
use crate::kinds::Handlers;
use crate::member::{Member, Roster};
use crate::proto::flow;
use crate::supply::default_limit;
use crate::wire::{self, Lacks, Listed, MemberRequest, ProcessKey, VERSION, Welcome};
use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use upcall_directory::names::{self, Leader, Whose};
use upcall_os::fault::{Point, point};
use upcall_os::headroom::{self, Headroom};
use upcall_os::socket::{Connection, Received, is_shut};
use upcall_sched::Attended;
use upcall_sched::Pacing;
use upcall_sched::post::Post;
use upcall_shm::account::MemberStats;

/// Environment variables in which a member of a job finds its group.
const GROUP: &str = "UPCALL_GROUP";
const SIZE: &str = "UPCALL_SIZE";
const RANK: &str = "UPCALL_RANK";

/// Default time for which a member waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// The settings with which a process joins a group.
#[derive(Clone, Debug)]
pub struct GroupBuilder {
    name: String,
    size: usize,
    rank: Option<Rank>,
    patience: Duration,
    pacing: Pacing,
    timeout: Option<Duration>,
    upcalls: bool,
    limit: Option<u64>,
    headroom: fn() -> Option<Headroom>,
    /// Number of members that may join after the group has formed.
    room: usize,
    /// The members that join together with this one after the group has formed.
    late: Option<InvitedRanks>,
    /// The address at which members on several hosts meet.
    address: Option<String>,
    /// How they cross to each other.
    across: AcrossHosts,
    pretended: Option<Vec<u16>>,
}

impl GroupBuilder {
    /// Environment variable with the [limit](Self::limit) of a job, in bytes.
    ///
    /// [`GroupBuilder::from_environment`] reads it. Optional.
    pub const LIMIT: &'static str = "UPCALL_LIMIT";

    /// Environment variable with the [address](Self::across) at which the members of a job meet.
    ///
    /// [`GroupBuilder::from_environment`] reads it. Optional.
    pub const RENDEZVOUS: &'static str = "UPCALL_RENDEZVOUS";

    /// Creates the builder of a group of `size` members that all use this name.
    pub fn new(name: &str, size: usize) -> Self {
        Self {
            name: name.into(),
            size,
            rank: None,
            patience: PATIENCE,
            pacing: Pacing::default(),
            timeout: Some(flow::TIMEOUT),
            upcalls: true,
            limit: None,
            headroom: headroom::headroom,
            room: 0,
            late: None,
            address: None,
            across: AcrossHosts::default(),
            pretended: None,
        }
    }

    /// Creates the builder of the group of the job that started this process.
    ///
    /// Jobs are started by `upcall job run`, and by schedulers through `upcall job member`
    /// (docs/reference/jobs.md). The group, its size and the rank come from the environment:
    /// `UPCALL_GROUP`, `UPCALL_SIZE`, `UPCALL_RANK`, and, if the job limits what its group may
    /// buffer, [`UPCALL_LIMIT`](Self::LIMIT). A job on several hosts has
    /// [`UPCALL_RENDEZVOUS`](Self::RENDEZVOUS), the address at which its members meet.
    ///
    /// # Errors
    /// [`JoinError::NoJob`]: a variable is missing, or makes no sense.
    pub fn from_environment() -> Result<Self, JoinError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// The environment that [`GroupBuilder::from_environment`] reads.
    ///
    /// For the process that starts the group's members.
    pub fn environment(group: &str, size: usize, rank: Rank) -> [(&'static str, String); 3] {
        [(GROUP, group.into()), (SIZE, size.to_string()), (RANK, rank.to_string())]
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, JoinError> {
        let text = |name| match variable(name) {
            None => Err(JoinError::NoJob { variable: name, found: None }),
            Some(text) => Ok(text.to_string_lossy().into_owned()),
        };
        let nonsense =
            |variable, found: &str| JoinError::NoJob { variable, found: Some(found.into()) };
        let number = |name| {
            text(name).and_then(|text| text.parse::<usize>().map_err(|_| nonsense(name, &text)))
        };
        let group = text(GROUP)?;
        names::check(&group).map_err(|_| nonsense(GROUP, &group))?;
        let (size, rank) = (number(SIZE)?, number(RANK)?);
        if size == 0 || size > MOST_MEMBERS {
            return Err(nonsense(SIZE, &size.to_string()));
        }
        if rank >= size {
            return Err(nonsense(RANK, &rank.to_string()));
        }
        let limit = match variable(Self::LIMIT) {
            None => None,
            Some(_) => {
                let text = text(Self::LIMIT)?;
                Some(text.parse().map_err(|_| nonsense(Self::LIMIT, &text))?)
            }
        };
        let builder = Self { limit, ..Self::new(&group, size).rank(rank) };
        match variable(Self::RENDEZVOUS) {
            Some(_) => Ok(builder.across(text(Self::RENDEZVOUS)?)),
            None => Ok(builder),
        }
    }

    /// Asks for a rank. Otherwise the member gets a rank that no other member asked for.
    #[must_use]
    pub fn rank(self, rank: Rank) -> Self {
        Self { rank: Some(rank), ..self }
    }

    /// Sets how long to wait for the others; a minute by default. Time in which this process is
    /// stopped does not count.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Forms the group of members on several hosts, which meet at `address`, HOST:PORT.
    ///
    /// All members give the same address. It belongs to one of their hosts: the first member there
    /// that can listen at it takes in the others. HOST is the name under which the other hosts
    /// trust that host (`upcall host trust`), or all members are on one machine, at a loopback
    /// address. Each member listens at a further port of its own, which the kernel chooses.
    ///
    /// Only processes of trusted hosts are admitted, and on one host only those of this user.
    /// Messages between hosts are encrypted. A member on another host is used in the same way as a
    /// member on this host, with these differences:
    ///
    /// - A message to it has at most 256 MiB, and at most its share of the
    ///   [limit](Self::limit), or 1 MiB if that is more ([`SendError::TooLong`]).
    /// - When this process leaves the group, it waits until the other hosts have what it sent. If
    ///   this process is killed, some of that may be lost.
    /// - If its host cannot be reached, messages wait for as long as a cut may last
    ///   ([`reconnect_within`](Self::reconnect_within)). Then it has ended, for this member.
    /// - It has no process here ([`Group::process`]).
    ///
    /// [`SendError::TooLong`]: crate::SendError::TooLong
    #[must_use]
    pub fn across(self, address: impl Into<String>) -> Self {
        Self { address: Some(address.into()), ..self }
    }

    /// Sets after which time a host that gives no sign of life is cut off: from a second to 12
    /// hours, 5 s by default. The kernel of that host gives the signs, so a stopped process lives.
    /// No effect in a group on one host.
    #[must_use]
    pub fn lost_after(self, silence: Duration) -> Self {
        Self { across: AcrossHosts { lost_after: silence, ..self.across }, ..self }
    }

    /// Sets how long a member on a host that is cut off may be out of reach before it has ended:
    /// at most 30 days, 30 s by default. Of two members the shorter time holds. No effect in a
    /// group on one host.
    #[must_use]
    pub fn reconnect_within(self, patience: Duration) -> Self {
        Self { across: AcrossHosts { patience, ..self.across }, ..self }
    }

    /// Leaves room for `more` members that join after the group has formed.
    ///
    /// Their ranks follow those of the first members. [`Group::size`] counts them from the start,
    /// and so does each member's share of the [limit](Self::limit). Such a group has no barriers,
    /// reductions and collective operations ([`RunError::Growing`]). All first members leave the
    /// same room, and the one with rank 0 takes in the others: it asks for that rank. Only a group
    /// [across hosts](Self::across) has room; all its members may be on one machine, at a loopback
    /// address.
    ///
    /// A further member joins by [`late`](Self::late), once the member that took in the first ones
    /// expects it ([`Group::expect`]). All others get an [`Event::Joined`]. A message to a rank
    /// that has not joined is refused ([`SendError::Unreachable`]).
    ///
    /// [`RunError::Growing`]: crate::RunError::Growing
    /// [`SendError::Unreachable`]: crate::SendError::Unreachable
    /// [`Event::Joined`]: crate::Event::Joined
    #[must_use]
    pub fn room_for(self, more: usize) -> Self {
        Self { room: more, ..self }
    }

    /// Joins a group that has formed, as one of the members `ranks`, which join together.
    ///
    /// `size` of the builder is then [`Group::size`] of the others, and the
    /// [rank](Self::rank) is one of `ranks`. The processes of these ranks reach each other through
    /// memory if they share a machine; all other members count as members on other hosts. The
    /// [address](Self::across) is that at which the first members met.
    ///
    /// `invitation` is what [`Group::expect`] has returned for `ranks`. Without it the member that
    /// takes in others refuses this process ([`JoinError::Refused`]).
    #[must_use]
    pub fn late(self, ranks: Range<Rank>, invitation: Invitation) -> Self {
        Self { late: Some(InvitedRanks { ranks, invitation }), ..self }
    }

    /// For tests: members with different numbers behave as if they were on different hosts.
    #[doc(hidden)]
    #[must_use]
    pub fn apart(self, apart: u64) -> Self {
        Self { across: AcrossHosts { apart, ..self.across }, ..self }
    }

    /// Sets how the wait for messages is spent.
    #[must_use]
    pub fn pacing(self, pacing: Pacing) -> Self {
        Self { pacing, ..self }
    }

    /// Sets the atomicity timeout (UDM, section 3.2); 200 µs by default.
    ///
    /// It is the maximum time that a sender waits for room in the queue of a receiver that does not
    /// take its messages; then they are diverted to a buffer. With zero every message is buffered.
    /// With `None` none is, and senders wait.
    #[must_use]
    pub fn timeout(self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self }
    }

    /// Sets the maximum number of bytes that the group buffers.
    ///
    /// They are for messages to members that do not take them, beside 3 MiB for each pair. The
    /// default is a quarter of the machine's memory.
    ///
    /// Each member has the same share of the limit, so all members must set the same limit. A
    /// member that has used up its share is stopped when it sends more, until a receiver has taken
    /// some messages. Other members do not notice, and messages that go the direct way are not
    /// stopped. All members that would buffer more are also stopped while a sixteenth or less is
    /// left of the machine's memory, or of what a control group (cgroup v2) lets this process have.
    #[must_use]
    pub fn limit(self, bytes: u64) -> Self {
        Self { limit: Some(bytes), ..self }
    }

    /// For tests: another source for how much memory is left.
    #[doc(hidden)]
    #[must_use]
    pub fn headroom(self, headroom: fn() -> Option<Headroom>) -> Self {
        Self { headroom, ..self }
    }

    /// For tests: marks of the members' hosts, by rank, in place of the hosts that they run on.
    #[doc(hidden)]
    #[must_use]
    pub fn pretend_hosts(self, marks: &[u16]) -> Self {
        Self { pretended: Some(marks.into()), ..self }
    }

    /// Sets whether handlers run by themselves ([upcalls](Group#upcalls)).
    ///
    /// By default they do, if the group is joined on a virtual processor that polls. Otherwise they
    /// run when the group is polled, and while a [`send`](Group::send) waits for room.
    #[must_use]
    pub fn upcalls(self, upcalls: bool) -> Self {
        Self { upcalls, ..self }
    }

    /// Becomes a member, and returns when all others are there. Blocks the kernel thread until
    /// then.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join(self, mut handlers: Handlers) -> Result<Group, JoinError> {
        let total = self.size.saturating_add(self.room);
        if self.size == 0 || total > MOST_MEMBERS {
            return Err(JoinError::BadSize { size: total, rank: None });
        }
        if self.rank.is_some_and(|rank| rank >= self.size) {
            return Err(JoinError::BadSize { size: self.size, rank: self.rank });
        }
        let is_among = |ranks: &Range<Rank>| self.rank.is_some_and(|rank| ranks.contains(&rank));
        if let Some(InvitedRanks { ranks, .. }) = &self.late
            && (!is_among(ranks) || ranks.end > self.size)
        {
            let (ranks, size, rank) = (ranks.clone(), self.size, self.rank);
            return Err(JoinError::NotAmongLate { rank, ranks, size });
        }
        if self.address.is_none() && (self.room > 0 || self.late.is_some()) {
            return Err(JoinError::NoAddress { name: self.name });
        }
        handlers.check_bytes()?;
        let unable =
            |what: &'static str| move |error| JoinError::Resource { what: what.into(), error };
        if self.upcalls {
            Attended::check().map_err(unable("a virtual processor that polls for messages"))?;
        }
        let post = Post::take().map_err(unable("a place to wait for messages"))?;
        let account = MemberStats::open(&self.name, total, self.share())
            .map_err(unable("memory for its counters"))?;
        let own = ProcessKey::own().map_err(unable("a descriptor of this process"))?;
        let (socket, listener) = names::listen(Whose::Member)?;
        let member = Member::new(socket, own, post, account);
        let entered = LeaveGuard(&member);
        let door = Arc::new(MemberListener { listener, member: Arc::downgrade(&member) });
        let _ = member.door.set(door.clone());
        if self.address.is_some() {
            member.forming.leave_room(self.room);
        }
        member.watch(door).map_err(unable("the clerk's thread"))?;
        point(Point::MemberForms);
        let mut left = FormingTimeout::new(self.patience, handlers.checks());
        let roster = self.find_others(&member, &handlers, &mut left)?;
        let mut pids = Vec::new();
        // The others count on this member now: a temporary lack does not end its membership.
        while let Err(error) = member.watch_others(&roster, &mut pids) {
            if left.is_over(Instant::now()) {
                return Err(unable("a watch on the end of other members")(error));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::forget(entered);
        handlers.join_interruption = None;
        member.account.formed(
            roster.rank,
            roster.number(),
            upcall_os::clock::stamp(Instant::now()),
        );
        let settings = Settings {
            pacing: self.pacing,
            timeout: self.timeout,
            upcalls: self.upcalls,
            share: self.share(),
            headroom: self.headroom,
            pretended: self.pretended.clone().filter(|marks| marks.len() == total),
        };
        let group = Group::new(member, roster, handlers, settings);
        group.attend_here().map_err(unable("a doorbell for messages"))?;
        Ok(group)
    }

    /// Maximum number of bytes that each member may buffer.
    fn share(&self) -> u64 {
        flow::share(self.limit.unwrap_or_else(default_limit), self.size + self.room)
    }

    fn find_others(
        &self,
        member: &Arc<Member>,
        handlers: &Handlers,
        left: &mut FormingTimeout,
    ) -> Result<Arc<Roster>, JoinError> {
        if let Some(address) = &self.address {
            let (name, size, rank, crossing) = (&*self.name, self.size, self.rank, &self.across);
            let (room, late) = (self.room, self.late.clone());
            let most = bridge::most(self.share());
            let within = self.patience;
            let meeting = GroupMeeting {
                name,
                size,
                room,
                rank,
                late,
                address,
                crossing,
                within,
                most,
                member,
                handlers,
            };
            return meeting.meet(left);
        }
        loop {
            // Before the name is there: applicants may come as soon as they can find it.
            member.forming.begin_to_lead(self.size, self.rank, handlers.kinds.clone())?;
            let followed = match names::lead_or_follow(&self.name, &member.socket)? {
                Leader::Us => return self.lead(member, handlers, left),
                Leader::At(leader) => {
                    member.forming.begin_to_follow();
                    self.follow(member, handlers, &leader, left)?
                }
            };
            match followed {
                Followed::Formed(roster) => return Ok(roster),
                Followed::Again(error) if left.is_over(Instant::now()) => return Err(error),
                Followed::Again(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn incomplete(&self, found: &str) -> JoinError {
        JoinError::Incomplete { name: self.name.clone(), after: self.patience, found: found.into() }
    }

    fn lead(
        &self,
        member: &Arc<Member>,
        handlers: &Handlers,
        left: &mut FormingTimeout,
    ) -> Result<Arc<Roster>, JoinError> {
        let interrupted = || handlers.is_interrupted();
        let formed = member.forming.lead(self.size, (member, None), left, interrupted);
        names::lead_no_more(&self.name, &member.socket);
        formed.map_err(|there| match handlers.is_interrupted() {
            true => JoinError::Interrupted,
            false => self.incomplete(&format!("{there} of {} are there", self.size)),
        })
    }

    fn follow(
        &self,
        member: &Arc<Member>,
        handlers: &Handlers,
        leader: &Path,
        left: &mut FormingTimeout,
    ) -> Result<Followed, JoinError> {
        let again = |why: &str| {
            Ok(Followed::Again(
                self.incomplete(&format!("the member that takes in the others {why}")),
            ))
        };
        let connection = match Connection::connect(leader) {
            Ok(connection) => connection,
            Err(error) if is_shut(&error) => return again("no longer leads"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return again("takes in no members: it is busy or stopped");
            }
            Err(error) => {
                let what = format!(
                    "asking at {} to become a member of the group {:?}",
                    leader.display(),
                    self.name
                );
                return Ok(Followed::Again(JoinError::Resource { what, error }));
            }
        };
        let hello = MemberRequest::Hello {
            version: VERSION,
            size: self.size as u32,
            rank: self.rank.map(|rank| rank as u32),
            socket: member.socket.file_name().unwrap_or_default().to_string_lossy().into(),
            kinds: handlers.kinds.clone(),
        };
        let resource =
            |error| JoinError::Resource { what: "asking to become a member".into(), error };
        point(Point::MemberFormsFinds);
        connection.ask(&wire::pack(&hello).map_err(resource)?, &[]).map_err(resource)?;
        point(Point::MemberFormsAsked);
        loop {
            match connection.receive_within(Duration::ZERO, left.rest()) {
                Ok(Received::Message(message)) => {
                    let welcome =
                        wire::unpack(&message.bytes).map_err(|reason| self.refused(reason))?;
                    return self.welcomed(member, welcome);
                }
                Ok(Received::Nothing) if handlers.is_interrupted() => {
                    return Err(JoinError::Interrupted);
                }
                Ok(Received::Nothing) if !left.is_over(Instant::now()) => {}
                Ok(Received::Nothing) => {
                    return Err(self.incomplete(&format!("not all of {} are there", self.size)));
                }
                Ok(Received::Closed) => return again("has hung up without an answer"),
                Err(error) => return again(&format!("has sent an unreadable message: {error}")),
            }
        }
    }

    fn refused(&self, reason: String) -> JoinError {
        JoinError::Refused { name: self.name.clone(), reason }
    }

    fn welcomed(&self, member: &Member, welcome: Welcome) -> Result<Followed, JoinError> {
        match welcome {
            Welcome::Refused(reason) => Err(self.refused(reason)),
            Welcome::Lacks(Lacks { lack, .. }) => {
                let why = format!("the member that takes in the others lacks {lack} for this one");
                Ok(Followed::Again(self.incomplete(&why)))
            }
            Welcome::Formed { group, rank, members } => {
                let rank = rank as usize;
                let socket = member.socket.file_name().and_then(|name| name.to_str());
                let own = members.get(rank).is_some_and(|own| {
                    Some(&*own.socket) == socket && own.process.may_be(member.own)
                });
                let plain =
                    |listed: &Listed| names::is_member(&listed.socket) && listed.place.is_none();
                let asked = self.rank.is_none_or(|asked| asked == rank);
                if members.len() != self.size || !own || !asked || !members.iter().all(plain) {
                    return Err(self.refused("a list of members that cannot be true".into()));
                }
                let roster = Roster { group, rank, members, grows: false, pids: OnceLock::new() };
                Ok(Followed::Formed(member.forming.formed(roster, member)))
            }
        }
    }
}

/// The result of asking a leader.
enum Followed {
    Formed(Arc<Roster>),
    /// No group yet, for this reason. Another member may lead soon, or the same one may take this
    /// one in.
    Again(JoinError),
}

/// Makes the member leave, unless the guard is forgotten.
struct LeaveGuard<'a>(&'a Member);

impl Drop for LeaveGuard<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_across_hosts_have_no_order() {
        let [silence, patience] = [7, 9].map(Duration::from_secs);
        let builder = GroupBuilder::new("g", 2).lost_after(silence).reconnect_within(patience);
        let AcrossHosts { lost_after, patience: within, .. } = builder.across("ws1:7500").across;
        assert_eq!((lost_after, within), (silence, patience));
    }

    #[test]
    fn the_environment_tells_of_a_job() {
        let of_limit =
            |group: Option<&str>, size: Option<&str>, rank: Option<&str>, limit: Option<&str>| {
                let find = |name: &str| match name {
                    GROUP => group.map(Into::into),
                    SIZE => size.map(Into::into),
                    RANK => rank.map(Into::into),
                    _ => limit.map(Into::into),
                };
                GroupBuilder::from_variables(find).map_err(|error| error.to_string())
            };
        let of = |group, size, rank| of_limit(group, size, rank, None);
        let limited = |limit| of_limit(Some("g"), Some("4"), Some("3"), Some(limit));
        assert_eq!(
            (limited("5000").unwrap().limit, limited("5000").unwrap().share()),
            (Some(5000), 1250)
        );
        let joining = of(Some("sieve.1"), Some("4"), Some("3")).unwrap();
        assert_eq!((joining.name.as_str(), joining.size, joining.rank), ("sieve.1", 4, Some(3)));
        for (found, said) in [
            (of(None, None, None), "UPCALL_GROUP is not set"),
            (of(Some("g"), Some("4"), None), "UPCALL_RANK is not set"),
            (of(Some("a/b"), Some("4"), Some("0")), "UPCALL_GROUP=a/b makes no sense"),
            (of(Some("g"), Some("4"), Some("4")), "UPCALL_RANK=4 makes no sense"),
            (of(Some("g"), Some("0"), Some("0")), "UPCALL_SIZE=0 makes no sense"),
            (of(Some("g"), Some("four"), Some("0")), "UPCALL_SIZE=four makes no sense"),
            (limited("5M"), "UPCALL_LIMIT=5M makes no sense"),
        ] {
            let error = found.unwrap_err();
            assert!(error.contains(said) && error.contains("upcall job run --group N"), "{error}");
        }
    }
}
