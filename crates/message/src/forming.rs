//! How a group forms.
//!
//! All members say the name and the size of their group. The first of them finds the name free,
//! enters it, and leads: the others connect to it, say who they are and which kinds of messages
//! they know, and wait. When all are there the leader gives each a rank, those who asked for one
//! the one that they asked for, and tells everybody of all. From then on it leads no more, and the
//! name is free for another group.

use crate::door::{AtDoor, Brought, Guest};
use crate::error::JoinError;
use crate::flow;
use crate::kinds::Handlers;
use crate::member::{Member, Roster};
use crate::wire::{self, GroupId, Lacks, Listed, Process, Request, VERSION, Welcome, shown};
use crate::{Group, Rank};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use upcall_directory::names::{self, Leader, Whose};
use upcall_os::fault::{Point, point};
use upcall_os::headroom::{self, Headroom};
use upcall_os::lock::{Condvar, Mutex};
use upcall_os::socket::{Connection, Received, is_shut};
use upcall_sched::Attended;
use upcall_sched::Pacing;
use upcall_sched::domain::MOST_POSTS;
use upcall_sched::post::Post;
use upcall_shm::account::{self, Account};

/// Where a member of a job finds its group.
const GROUP: &str = "UPCALL_GROUP";
const SIZE: &str = "UPCALL_SIZE";
const RANK: &str = "UPCALL_RANK";

/// The most members of a group.
pub const MOST_MEMBERS: usize = account::MOST;

/// So long the others are waited for where nothing else is said.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest wait between two looks whether the wait was interrupted, its time is over, or the leader
/// is still there.
const LOOK: Duration = Duration::from_millis(200);

/// The time for which a member waits for the others. It passes only while this process runs: of one
/// that was stopped, or whose machine was, two looks' worth passes.
struct Left {
    time: Duration,
    looked: Instant,
}

impl Left {
    fn new(time: Duration) -> Self {
        Self { time, looked: Instant::now() }
    }

    /// How long to wait until the next look.
    fn slice(&self) -> Duration {
        self.time.min(LOOK)
    }

    /// Returns `true` if the time is over.
    fn is_over(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        self.time = self.time.saturating_sub(passed.min(2 * LOOK));
        self.time.is_zero()
    }
}

/// How to become a member of a group.
#[derive(Clone, Debug)]
pub struct Joining {
    name: String,
    size: usize,
    rank: Option<Rank>,
    patience: Duration,
    pub(crate) pacing: Pacing,
    pub(crate) timeout: Option<Duration>,
    pub(crate) upcalls: bool,
    limit: Option<u64>,
    pub(crate) headroom: fn() -> Option<Headroom>,
}

impl Joining {
    /// The variable of the environment in which [`Joining::from_environment`] finds the
    /// [limit](Self::limit) of a job, in bytes. It need not be there.
    pub const LIMIT: &'static str = "UPCALL_LIMIT";

    /// A group of `size` members that all say this name.
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
        }
    }

    /// The group of the job that this process was started in, with the size and the rank that it
    /// has there (`upcall job run`; docs/jobs.md). They stand in the environment: `UPCALL_GROUP`,
    /// `UPCALL_SIZE`, `UPCALL_RANK`, and, if the job has a limit of what its group may buffer,
    /// [`UPCALL_LIMIT`](Self::LIMIT).
    ///
    /// # Errors
    /// [`JoinError::NoJob`]: one of them is missing, or makes no sense.
    pub fn from_environment() -> Result<Self, JoinError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// The environment in which [`Joining::from_environment`] finds a group: for who starts its
    /// members.
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
        Ok(Self { limit, ..Self::new(&group, size).rank(rank) })
    }

    /// Asks for a rank. Otherwise it gets one that nobody asked for.
    #[must_use]
    pub fn rank(self, rank: Rank) -> Self {
        Self { rank: Some(rank), ..self }
    }

    /// How long to wait for the others: a minute, if nothing else is said. Time in which this
    /// process is stopped does not count.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// How the wait for messages is spent.
    #[must_use]
    pub fn pacing(self, pacing: Pacing) -> Self {
        Self { pacing, ..self }
    }

    /// The atomicity timeout (UDM, section 3.2): so long at most a sender waits for room in the
    /// queue of a receiver that does not take its messages; then they are diverted to a buffer. 200
    /// µs if nothing else is said. At zero every message is buffered; with `None` none is, and
    /// senders wait.
    #[must_use]
    pub fn timeout(self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self }
    }

    /// So many bytes at most the group buffers for members that do not take their messages, beside
    /// 3 MiB for each pair: a quarter of the machine's memory, if nothing else is said. Each member
    /// has the same share of that (all members are to say the same limit). One that has its
    /// share in use is stopped when it sends more, until a receiver has taken some: no other member
    /// notices, and what goes the direct way is not stopped. So are all who would buffer more
    /// while a sixteenth or less is left of the machine's memory, or of what a control group
    /// (cgroup v2) lets this process have.
    #[must_use]
    pub fn limit(self, bytes: u64) -> Self {
        Self { limit: Some(bytes), ..self }
    }

    /// For tests: another way to see how much memory is left.
    #[doc(hidden)]
    #[must_use]
    pub fn headroom(self, headroom: fn() -> Option<Headroom>) -> Self {
        Self { headroom, ..self }
    }

    /// Whether handlers run by themselves ([upcalls](Group#upcalls)), which they do if nothing else
    /// is said and the group is joined on a virtual processor that polls. Else they run when the
    /// group is polled, and while a [`send`](Group::send) waits for room.
    #[must_use]
    pub fn upcalls(self, upcalls: bool) -> Self {
        Self { upcalls, ..self }
    }

    /// Becomes a member, and returns when all others are there. Blocks the kernel thread until
    /// then.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join(self, handlers: Handlers) -> Result<Group, JoinError> {
        if self.size == 0 || self.size > MOST_MEMBERS {
            return Err(JoinError::BadSize { size: self.size, rank: None });
        }
        if self.rank.is_some_and(|rank| rank >= self.size) {
            return Err(JoinError::BadSize { size: self.size, rank: self.rank });
        }
        handlers.check_bytes()?;
        let unable =
            |what: &'static str| move |error| JoinError::Resource { what: what.into(), error };
        if self.upcalls {
            Attended::check().map_err(unable("a virtual processor that looks for messages"))?;
        }
        let post = Post::take().map_err(unable("a place to wait for messages"))?;
        let account = Account::open(&self.name, self.size, self.share())
            .map_err(unable("memory to count in"))?;
        let own = Process::own().map_err(unable("a descriptor of this process"))?;
        let (socket, listener) = names::listen(Whose::Member)?;
        let member = Member::new(socket, own, post, account);
        let entered = Entered(&member);
        let door = Arc::new(AtDoor { listener, member: Arc::downgrade(&member) });
        let _ = member.door.set(door.clone());
        member.watch(door).map_err(unable("the clerk's thread"))?;
        point(Point::MemberForms);
        let mut left = Left::new(self.patience);
        let roster = self.find_others(&member, &handlers, &mut left)?;
        let mut pids = Vec::new();
        // The others count on this member now: a lack that passes does not end its membership.
        while let Err(error) = member.watch_others(&roster, &mut pids) {
            if left.is_over(Instant::now()) {
                return Err(unable("what tells of the end of other members")(error));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::forget(entered);
        member.account.formed(
            roster.rank,
            roster.number(),
            upcall_os::clock::stamp(Instant::now()),
        );
        let group = Group::new(member, roster, handlers, &self);
        group.attend_here().map_err(unable("a doorbell for messages"))?;
        Ok(group)
    }

    /// Bytes that each member may buffer.
    pub(crate) fn share(&self) -> u64 {
        flow::share(self.limit.unwrap_or_else(flow::default_limit), self.size)
    }

    fn find_others(
        &self,
        member: &Arc<Member>,
        handlers: &Handlers,
        left: &mut Left,
    ) -> Result<Arc<Roster>, JoinError> {
        loop {
            // Before the name is there: applicants may come as soon as they can find it.
            member.forming.begin_to_lead(self, handlers);
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
        left: &mut Left,
    ) -> Result<Arc<Roster>, JoinError> {
        let formed = member.forming.lead(self, handlers, member, left);
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
        left: &mut Left,
    ) -> Result<Followed, JoinError> {
        let again = |why: &str| {
            Ok(Followed::Again(
                self.incomplete(&format!("the member that takes in the others {why}")),
            ))
        };
        let connection = match Connection::connect(leader) {
            Ok(connection) => connection,
            Err(error) if is_shut(&error) => return again("leads no more"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return again("lets nobody in: it is busy or stopped");
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
        let hello = Request::Hello {
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
            match connection.receive_within(Duration::ZERO, left.slice()) {
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
                Err(error) => return again(&format!("has sent what cannot be read: {error}")),
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
                let plain = |listed: &Listed| names::is_member(&listed.socket);
                let asked = self.rank.is_none_or(|asked| asked == rank);
                if members.len() != self.size || !own || !asked || !members.iter().all(plain) {
                    return Err(self.refused("a list of members that cannot be true".into()));
                }
                let roster = Roster { group, rank, members, pids: OnceLock::new() };
                Ok(Followed::Formed(member.forming.formed(roster, member)))
            }
        }
    }
}

/// What comes of asking a leader.
enum Followed {
    Formed(Arc<Roster>),
    /// Nothing, for this reason. Another member may lead soon, or the same one take this one in.
    Again(JoinError),
}

/// Leaves again, unless it is forgotten.
struct Entered<'a>(&'a Member);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// How far the forming of a member's group is.
#[derive(Default)]
pub(crate) struct Forming {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// Queues of those who knew before us that the group has formed.
    early: Vec<Brought>,
}

#[derive(Default)]
enum Stage {
    /// Not known, or somebody else leads.
    #[default]
    Following,
    Leading(Leading),
    Formed {
        roster: Arc<Roster>,
        /// By rank: whether it has brought a queue.
        brought: Vec<bool>,
    },
}

struct Leading {
    size: usize,
    rank: Option<Rank>,
    kinds: Vec<(String, String)>,
    applicants: Vec<Applicant>,
}

struct Applicant {
    guest: Arc<Guest>,
    rank: Option<Rank>,
    listed: Listed,
}

impl Leading {
    /// How many are there, the leader included.
    fn there(&self) -> usize {
        self.applicants.len() + 1
    }

    /// Whether another member knows the same kinds of messages.
    fn check_kinds(&self, theirs: &[(String, String)]) -> Result<(), String> {
        let shown = |kind: Option<&(String, String)>| match kind {
            Some((name, carries)) => format!("{name:?} that carries {carries}"),
            None => "none".into(),
        };
        let differs = (0..self.kinds.len().max(theirs.len()))
            .find(|&at| self.kinds.get(at) != theirs.get(at));
        match differs {
            None => Ok(()),
            Some(at) => Err(format!(
                "kind {at} of its messages is {} there, and {} here: all members register the same kinds in the same order",
                shown(self.kinds.get(at)),
                shown(theirs.get(at))
            )),
        }
    }

    /// Everybody's rank, that of the leader last.
    fn ranks(&self) -> Vec<Rank> {
        let asked = || self.applicants.iter().map(|applicant| applicant.rank).chain([self.rank]);
        let mut free = (0..self.size).filter(|rank| asked().all(|taken| taken != Some(*rank)));
        // Who came first is the leader.
        let own = self.rank.or_else(|| free.next()).unwrap_or_default();
        let mut next = |rank: Option<Rank>| rank.or_else(|| free.next()).unwrap_or_default();
        self.applicants
            .iter()
            .map(|applicant| next(applicant.rank))
            .collect::<Vec<_>>()
            .into_iter()
            .chain([own])
            .collect()
    }
}

impl Forming {
    /// From now on applicants are taken in.
    fn begin_to_lead(&self, joining: &Joining, handlers: &Handlers) {
        let Joining { size, rank, .. } = *joining;
        self.state.lock().stage = Stage::Leading(Leading {
            size,
            rank,
            kinds: handlers.kinds.clone(),
            applicants: Vec::new(),
        });
    }

    /// From now on no applicants are taken in. Those that were hear that they are to look again.
    fn begin_to_follow(&self) {
        let stage = std::mem::take(&mut self.state.lock().stage);
        if let Stage::Leading(leading) = stage {
            leading.applicants.iter().for_each(|applicant| applicant.guest.shut_down());
        }
    }

    /// Takes in the others. How many were there, ourselves included, if not all came in time.
    fn lead(
        &self,
        joining: &Joining,
        handlers: &Handlers,
        member: &Member,
        left: &mut Left,
    ) -> Result<Arc<Roster>, usize> {
        point(Point::MemberFormsLeads);
        let size = joining.size;
        let mut state = self.state.lock();
        let some_lack = |state: &mut State| {
            let Stage::Leading(leading) = &mut state.stage else { return false };
            if leading.there() == size {
                // Who has ended meanwhile may be missed only later.
                leading.applicants.retain(|applicant| applicant.guest.lives());
            }
            leading.there() < size
        };
        loop {
            let waited;
            (state, waited) = self.changed.wait_timeout_while(state, left.slice(), some_lack);
            if !waited.timed_out() || left.is_over(Instant::now()) {
                break;
            }
            // Who is asked may take long over it, and the clerk waits for the lock.
            drop(state);
            let is_interrupted = handlers.is_interrupted();
            state = self.state.lock();
            if is_interrupted {
                break;
            }
        }
        let Stage::Leading(leading) = std::mem::take(&mut state.stage) else { return Err(0) };
        drop(state);
        if leading.there() < size {
            for Applicant { guest, .. } in &leading.applicants {
                guest.welcome(&Welcome::Refused(format!(
                    "{} of {size} came in time",
                    leading.there()
                )));
                guest.shut_down();
            }
            return Err(leading.there());
        }
        let ranks = leading.ranks();
        let socket = member.socket.file_name().unwrap_or_default().to_string_lossy().into();
        let own = Listed { process: member.own, socket };
        let mut members = vec![own; size];
        for (applicant, &rank) in leading.applicants.iter().zip(&ranks) {
            members[rank] = applicant.listed.clone();
        }
        let group = new_id();
        point(Point::MemberFormsAll);
        for (applicant, &rank) in leading.applicants.iter().zip(&ranks) {
            applicant.guest.welcome(&Welcome::Formed {
                group,
                rank: rank as u32,
                members: members.clone(),
            });
        }
        Ok(self.formed(
            Roster { group, rank: ranks[size - 1], members, pids: OnceLock::new() },
            member,
        ))
    }

    /// One asks to become a member. The answer to a refusal; `None` if nobody is taken in here.
    pub(crate) fn apply(&self, guest: &Arc<Guest>, asks: Asks<'_>) -> Result<(), Option<String>> {
        let mut state = self.state.lock();
        let Stage::Leading(leading) = &mut state.stage else { return Err(None) };
        if leading.there() == leading.size {
            // Its group is complete; this one is for the next.
            return Err(None);
        }
        if asks.size as usize != leading.size {
            return Err(Some(format!(
                "it is to have {} members, and this process expects {}",
                leading.size, asks.size
            )));
        }
        leading.check_kinds(asks.kinds).map_err(Some)?;
        if leading.applicants.iter().any(|other| Arc::ptr_eq(&other.guest, guest)) {
            return Err(Some("it has asked before".into()));
        }
        let rank = asks.rank.map(|rank| rank as usize);
        if let Some(rank) = rank {
            if rank >= leading.size {
                return Err(Some(format!(
                    "there is no rank {rank} in a group of {}",
                    leading.size
                )));
            }
            let others = leading.applicants.iter().map(|other| (other.rank, other.guest.pid()));
            let mut holders = others.chain([(leading.rank, std::process::id())]);
            if let Some((_, pid)) = holders.find(|(taken, _)| *taken == Some(rank)) {
                return Err(Some(format!("rank {rank} is taken by {}", shown(pid))));
            }
        }
        if !names::is_member_of(asks.socket, guest.pid()) {
            return Err(Some(format!(
                "{:?} is no socket of a member that is {}",
                asks.socket,
                shown(guest.pid())
            )));
        }
        let process = guest.process();
        if matches!(process, Process::Numbered(0, _)) {
            let why = "it is in a PID namespace that the process which takes in the members does not see, \
                       and before Linux 6.9 the kernel does not tell such processes apart";
            return Err(Some(why.into()));
        }
        let listed = Listed { process, socket: asks.socket.into() };
        leading.applicants.push(Applicant { guest: guest.clone(), rank, listed });
        self.changed.notify_all();
        Ok(())
    }

    /// One who had connected is gone.
    pub(crate) fn lost(&self, guest: &Guest, folder: &Path) {
        let mut state = self.state.lock();
        if let Stage::Leading(leading) = &mut state.stage {
            let gone = leading
                .applicants
                .extract_if(.., |applicant| std::ptr::eq(&*applicant.guest, guest));
            for Applicant { listed, .. } in gone {
                if !guest.lives() {
                    // Who was killed has left it.
                    let _ = std::fs::remove_file(folder.join(listed.socket));
                }
            }
        }
    }

    /// The group has formed. Queues that came before are taken in.
    fn formed(&self, roster: Roster, member: &Member) -> Arc<Roster> {
        let roster = Arc::new(roster);
        let mut state = self.state.lock();
        state.stage =
            Stage::Formed { roster: roster.clone(), brought: vec![false; roster.members.len()] };
        let early = std::mem::take(&mut state.early);
        drop(state);
        for brought in early {
            // Who is refused hears it, and hangs up.
            brought.open(member, &roster);
        }
        roster
    }

    /// Whether a process can be of this group.
    pub(crate) fn expects(&self, process: Process) -> bool {
        match &self.state.lock().stage {
            Stage::Formed { roster, .. } => {
                roster.members.iter().any(|listed| listed.process.is(process))
            }
            _ => true,
        }
    }

    /// A member brings its queue. False to hang up.
    pub(crate) fn bring(&self, brought: Brought, member: &Member) -> bool {
        let mut state = self.state.lock();
        let Stage::Formed { roster, .. } = &state.stage else {
            // Whoever brings it has descriptors kept here. A process is so many members at most.
            let Some(process) = brought.process() else { return false };
            let of_process =
                state.early.iter().filter(|other| other.process() == Some(process)).count();
            let kept = of_process < usize::from(MOST_POSTS) && state.early.len() < MOST_MEMBERS;
            if kept {
                state.early.push(brought);
            }
            return kept;
        };
        let roster = roster.clone();
        drop(state);
        brought.open(member, &roster)
    }

    /// Whether this member has brought none before.
    pub(crate) fn first_queue_of(&self, rank: Rank) -> bool {
        match &mut self.state.lock().stage {
            Stage::Formed { brought, .. } => {
                brought.get_mut(rank).is_some_and(|brought| !std::mem::replace(brought, true))
            }
            _ => false,
        }
    }

    /// This member's queue was refused for lack of a resource: it may bring it again.
    pub(crate) fn has_no_queue_of(&self, rank: Rank) {
        if let Stage::Formed { brought, .. } = &mut self.state.lock().stage
            && let Some(brought) = brought.get_mut(rank)
        {
            *brought = false;
        }
    }
}

/// What one who wants to become a member says.
pub(crate) struct Asks<'a> {
    pub(crate) size: u32,
    pub(crate) rank: Option<u32>,
    pub(crate) socket: &'a str,
    pub(crate) kinds: &'a [(String, String)],
}

fn new_id() -> GroupId {
    let mut id = GroupId::default();
    // Memory is filled with at most 256 bytes at once, whatever signals come.
    let _ = rustix::rand::getrandom(&mut id[..], rustix::rand::GetRandomFlags::empty());
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_wait_passes_only_while_the_process_runs() {
        let mut left = Left::new(Duration::from_secs(1));
        let start = left.looked;
        assert_eq!(left.slice(), LOOK);
        assert!(!left.is_over(start + LOOK) && left.time == Duration::from_millis(800));
        // A stop of an hour.
        let later = start + Duration::from_secs(3600);
        assert!(!left.is_over(later) && left.time == Duration::from_millis(400));
        assert!(!left.is_over(later + LOOK + LOOK / 2));
        assert_eq!(left.slice(), LOOK / 2);
        assert!(left.is_over(later + 2 * LOOK));
        assert!(!Left::new(Duration::MAX).is_over(later));
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
                Joining::from_variables(find).map_err(|error| error.to_string())
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
