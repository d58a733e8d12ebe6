//! What a member shares with its domain's clerk: its identity, and events of other members.

use crate::Rank;
use crate::door::{ALL, AtEnd, GroupPeer, MemberListener};
use crate::far::{FarMember, FarMembers};
use crate::forming::{Forming, MemberCandidate};
use crate::inbound::{Inbound, inbound};
use crate::petition::Petition;
use crate::place::MemberPlace;
use crate::wire::{GroupId, Lacks, Listed, ProcessKey};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use upcall_directory::clerk::{Clerk, Watched};
use upcall_directory::names;
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::lock::KernelMutex;
use upcall_os::poll::Report;
use upcall_os::process;
use upcall_os::socket::{Connection, is_shut, says_ended};
use upcall_sched::post::Post;
use upcall_sched::ringer::Ringer;
use upcall_sched::rung::Rings;
use upcall_shm::account::MemberStats;
use upcall_shm::mailbag::Mailbag;

/// The members of a group.
#[derive(Debug)]
pub(crate) struct Roster {
    pub(crate) group: GroupId,
    pub(crate) rank: Rank,
    pub(crate) members: Vec<Listed>,
    /// Whether members may join after the group has formed.
    pub(crate) grows: bool,
    /// Process IDs by rank, 0 if a process cannot be seen.
    pub(crate) pids: OnceLock<Vec<u32>>,
}

impl Roster {
    /// A number by which people distinguish groups of one name. It does not reveal the group's
    /// identifier.
    pub(crate) fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.group.hash(&mut hasher);
        hasher.finish()
    }

    /// Where a member is, if it is on another host.
    pub(crate) fn place_elsewhere(&self, rank: Rank) -> Option<&MemberPlace> {
        let machine = |rank: Rank| Some(self.members.get(rank)?.place.as_ref()?.machine);
        let is_here = machine(rank) == machine(self.rank);
        self.members.get(rank)?.place.as_ref().filter(|_| !is_here)
    }

    /// The port at which this member listens for those on other hosts; 0 if there are none.
    pub(crate) fn own_port(&self) -> u16 {
        let own = self.members.get(self.rank).and_then(|own| own.place.as_ref());
        own.map_or(0, |place| place.address.port())
    }

    /// Marks of the members' hosts, by rank. Members with the same mark share a host.
    pub(crate) fn hosts(&self) -> Vec<u16> {
        let mut machines = Vec::new();
        let mut mark = |machine| {
            machines.iter().position(|known| *known == machine).unwrap_or_else(|| {
                machines.push(machine);
                machines.len() - 1
            }) as u16
        };
        self.members
            .iter()
            .map(|member| mark(member.place.as_ref().map(|place| place.machine)))
            .collect()
    }

    /// The ID of a member's process, 0 if it cannot be seen.
    pub(crate) fn pid(&self, rank: Rank) -> u32 {
        let seen = self.pids.get().and_then(|pids| pids.get(rank).copied());
        seen.unwrap_or_else(|| {
            names::process_of(Path::new(&self.members[rank].socket)).unwrap_or(0)
        })
    }
}

/// One time at which this member has brought its queue to another one. A queue that was refused is
/// brought again, and then events of the earlier time are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bringing {
    pub(crate) rank: Rank,
    /// Unique in this process.
    pub(crate) number: u64,
}

/// A living member's refusal to read this member's queue.
#[derive(Debug)]
pub(crate) enum QueueRefusal {
    /// It has read nothing from it, and may read it later.
    ForNow(ForNow),
    /// Nothing more is sent to it, for this reason.
    ForGood(String),
}

/// The reason why a member does not read a queue for now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ForNow {
    /// It lacks a resource for it.
    Lacks(Lacks),
    /// It has closed the connection without an answer.
    HungUp,
}

/// An event that the clerk leaves for the thread that polls.
#[derive(Debug)]
pub(crate) enum MemberEvent {
    /// Another member has brought its queue.
    Brought(Box<Inbound>),
    /// Another member reads this one's queue.
    Reads(Bringing, Ringer),
    /// It does not read the queue.
    Refuses(Bringing, QueueRefusal),
    /// It has answered, and the clerk has no memory to read the answer: the thread that polls does
    /// it.
    Unheard(Rank),
    /// A member has ended or left: no more comes from it.
    Ended(Rank),
    /// A member on another host has broken the protocol in this way.
    Broke(Rank, String),
    /// The first member, which is on another host, reports that it has lost the second one.
    ReportsLoss(Rank, Rank),
    /// A member has joined the group that has formed before.
    Joined(Rank),
    /// A process asks this member for something ([`Petition`]).
    Asked(Petition),
}

/// The state that a member shares with the clerk; see the module.
pub(crate) struct Member {
    /// The socket of its own door.
    pub(crate) socket: PathBuf,
    /// This process, as the other members know it.
    pub(crate) own: ProcessKey,
    pub(crate) post: Post,
    /// The account that it publishes.
    pub(crate) account: MemberStats,
    pub(crate) forming: Forming,
    /// Where others connect.
    pub(crate) door: OnceLock<Arc<MemberListener>>,
    /// The way to members on other hosts, if the group has any.
    pub(crate) bridge: OnceLock<Arc<dyn FarMembers>>,
    any_news: AtomicBool,
    /// Set once its thread has been interruptible.
    interrupts: AtomicBool,
    news: KernelMutex<Vec<MemberEvent>>,
    guests: KernelMutex<Vec<Arc<GroupPeer>>>,
    /// Keys of what the clerk watches for it.
    keys: KernelMutex<Vec<u64>>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Rings for Member {
    fn rings(&self) -> BorrowedFd<'_> {
        self.post.rings()
    }
}

impl Member {
    pub(crate) fn new(
        socket: PathBuf,
        own: ProcessKey,
        post: Post,
        account: MemberStats,
    ) -> Arc<Self> {
        Arc::new(Self {
            socket,
            own,
            post,
            account,
            forming: Forming::default(),
            door: OnceLock::new(),
            bridge: OnceLock::new(),
            any_news: AtomicBool::new(false),
            interrupts: AtomicBool::new(false),
            news: KernelMutex::default(),
            guests: KernelMutex::default(),
            keys: KernelMutex::default(),
        })
    }

    /// The way to a member on another host; `None` if the member is on this one.
    pub(crate) fn far(&self, rank: Rank) -> Option<Arc<dyn FarMember>> {
        self.bridge.get()?.of(rank)
    }

    /// The folder of all sockets.
    pub(crate) fn folder(&self) -> &Path {
        self.socket.parent().unwrap_or(Path::new("/"))
    }

    /// Makes the clerk watch something for as long as this is a member.
    pub(crate) fn watch(&self, watched: Arc<dyn Watched>) -> io::Result<()> {
        self.watch_for(watched, Report::WhileReadable).map(drop)
    }

    /// Like [`watch`](Self::watch) with another rule for reports. Returns the key by which
    /// [`unwatch`](Self::unwatch) ends it.
    pub(crate) fn watch_for(&self, watched: Arc<dyn Watched>, report: Report) -> io::Result<u64> {
        let key = Clerk::current()?.watch(watched, report)?;
        self.keys.lock().push(key);
        Ok(key)
    }

    /// Ends what [`watch_for`](Self::watch_for) began.
    pub(crate) fn unwatch(&self, key: u64) {
        let mut keys = self.keys.lock();
        if let Some(at) = keys.iter().position(|other| *other == key) {
            keys.swap_remove(at);
        }
        drop(keys);
        if let Ok(clerk) = Clerk::current() {
            clerk.forget(key);
        }
    }

    pub(crate) fn tell(&self, news: MemberEvent) {
        self.news.lock().push(news);
        self.any_news.store(true, Ordering::Release);
        self.post.rouse();
    }

    /// Drops the petitions of processes that wait for no answer any more.
    pub(crate) fn forget_gone_petitions(&self) {
        let is_gone = |news: &mut MemberEvent| match news {
            MemberEvent::Asked(petition) => petition.is_gone(),
            _ => false,
        };
        let gone = self.news.lock().extract_if(.., is_gone).collect::<Vec<_>>();
        drop(gone);
    }

    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.any_news.load(Ordering::Acquire)
    }

    pub(crate) fn news(&self) -> Vec<MemberEvent> {
        let mut news = self.news.lock();
        self.any_news.store(false, Ordering::Release);
        std::mem::take(&mut *news)
    }

    /// Reads the events and leaves them there. Reads none while another thread adds to them; that
    /// thread then notifies. Allocates nothing.
    pub(crate) fn look_at_news(&self, look: impl FnMut(&MemberEvent)) {
        if let Some(news) = self.news.try_lock() {
            news.iter().for_each(look);
        }
    }

    /// Makes queues come with segments at hand from now on.
    pub(crate) fn bring_spares(&self) {
        self.interrupts.store(true, Ordering::Relaxed);
    }

    /// Takes in a peer that has connected.
    pub(crate) fn admit(&self, guest: Arc<GroupPeer>) {
        self.guests.lock().push(guest.clone());
        if let Err(error) = self.watch(guest.clone()) {
            guest.cannot(&error);
            self.lost(&guest);
        }
    }

    /// Removes a peer that is gone.
    pub(crate) fn lost(&self, guest: &GroupPeer) {
        let mut guests = self.guests.lock();
        if let Some(at) = guests.iter().position(|other| std::ptr::eq(&**other, guest)) {
            drop(guests.swap_remove(at));
        }
        drop(guests);
        self.forming.lost(guest, Some(self.folder()));
        if let Some(rank) = guest.rank() {
            self.tell(MemberEvent::Ended(rank));
        }
    }

    /// Handles the end of a member's process, which the clerk has seen. Queues that it has brought
    /// come before the event of its end: they may still wait at the door.
    pub(crate) fn has_ended(&self, rank: Rank, process: ProcessKey) {
        if let Some(door) = self.door.get() {
            door.accept(ALL);
        }
        self.guests_of(process).iter().for_each(|guest| _ = guest.attend());
        self.tell(MemberEvent::Ended(rank));
    }

    /// Reports to the clerk that a member has ended or left, as this thread has found.
    ///
    /// # Errors
    /// There is no descriptor or no memory for that.
    pub(crate) fn tell_clerk_of_end(
        self: &Arc<Self>,
        rank: Rank,
        process: ProcessKey,
        socket: PathBuf,
    ) -> io::Result<()> {
        let (descriptor, member) = (Doorbell::new()?, Arc::downgrade(self));
        descriptor.notify();
        self.watch(Arc::new(AtEnd { descriptor, rank, process, socket, member }))
    }

    /// The peers that have connected from a process.
    pub(crate) fn guests_of(&self, process: ProcessKey) -> Vec<Arc<GroupPeer>> {
        // Includes processes without a number, which only `==` compares as equal.
        self.guests
            .lock()
            .iter()
            .filter(|guest| guest.process() == process || guest.process().is(process))
            .cloned()
            .collect()
    }

    /// Takes a queue that another member brought.
    pub(crate) fn take_in(
        &self,
        from: Rank,
        mut queue: Mailbag,
        doorbell: Doorbell,
    ) -> io::Result<()> {
        self.post.add(&doorbell)?;
        queue.count_in(self.account.pair(from));
        if self.interrupts.load(Ordering::Relaxed) {
            let _ = queue.bring_spares();
        }
        self.tell(MemberEvent::Brought(Box::new(inbound(from, queue, doorbell))));
        Ok(())
    }

    /// Makes the clerk watch for the end of each other member. After an error, the next call with
    /// the same `pids` goes on where this one has stopped.
    ///
    /// # Errors
    /// There is no descriptor or no memory for that. The end of a member that has sent nothing here
    /// would not be noticed.
    pub(crate) fn watch_others(
        self: &Arc<Self>,
        roster: &Roster,
        pids: &mut Vec<u32>,
    ) -> io::Result<()> {
        let own = roster.members[roster.rank].process;
        for (rank, listed) in roster.members.iter().enumerate().skip(pids.len()) {
            if rank == roster.rank || listed.process.is(own) {
                pids.push(std::process::id());
                continue;
            }
            let socket = self.folder().join(&listed.socket);
            let seen = see(listed, &socket)?;
            let pid =
                if let ProcessStatus::Lives { pid, .. } = &seen { *pid } else { roster.pid(rank) };
            match seen {
                ProcessStatus::Lives { pidfd, .. } => {
                    let process = listed.process;
                    let end = AtEnd {
                        descriptor: pidfd,
                        rank,
                        process,
                        socket,
                        member: Arc::downgrade(self),
                    };
                    self.watch(Arc::new(end))?;
                }
                ProcessStatus::Ended => self.tell(MemberEvent::Ended(rank)),
                // Only its connections show its end.
                ProcessStatus::Nothing => {}
            }
            pids.push(pid);
        }
        let _ = roster.pids.set(std::mem::take(pids));
        Ok(())
    }

    /// Removes the peers of a process that have hung up.
    pub(crate) fn see_off_guests_of(&self, process: ProcessKey) {
        for guest in self.guests_of(process).into_iter().filter(|guest| !guest.attend()) {
            self.lost(&guest);
        }
    }

    /// Ends the membership.
    ///
    /// # Blocking
    /// Until members on other hosts have all that was sent to them, for as long as a cut may last.
    pub(crate) fn leave(&self) {
        if let Some(bridge) = self.bridge.get() {
            bridge.leave();
        }
        if let Ok(clerk) = Clerk::current() {
            for key in std::mem::take(&mut *self.keys.lock()) {
                clerk.forget(key);
            }
        }
        let _ = std::fs::remove_file(&self.socket);
        for guest in std::mem::take(&mut *self.guests.lock()) {
            guest.shut_down();
        }
    }
}

/// Returns `true` if the kernel knows that the process of a member, whose socket this is, has ended
/// or is about to. A process that cannot be seen counts as alive.
pub(crate) fn has_ended(listed: &Listed, socket: &Path) -> bool {
    match see(listed, socket).unwrap_or(ProcessStatus::Nothing) {
        ProcessStatus::Lives { pidfd, pid } => {
            upcall_os::socket::has_ended(&pidfd) || pid != 0 && upcall_os::socket::is_ending(pid)
        }
        ProcessStatus::Ended => true,
        ProcessStatus::Nothing => false,
    }
}

/// What can be seen of another member's process.
enum ProcessStatus {
    Lives {
        pidfd: OwnedFd,
        pid: u32,
    },
    Ended,
    /// Nothing: the kernel gives no pidfd of it (it is in another PID namespace, or such calls are
    /// refused), or its door is full.
    Nothing,
}

/// Finds the process of a member: by its number if that belongs to this PID namespace, otherwise
/// through its door.
///
/// # Errors
/// This process lacks a descriptor or memory for that.
fn see(listed: &Listed, socket: &Path) -> io::Result<ProcessStatus> {
    let lives = |(pidfd, pid)| ProcessStatus::Lives { pidfd, pid };
    Ok(match listed.process {
        ProcessKey::Numbered(_, 0) => ProcessStatus::Nothing,
        ProcessKey::Numbered(pid, born) => match process::open(pid, born) {
            Ok(Some(pidfd)) => lives((pidfd, pid)),
            Ok(None) => ProcessStatus::Ended,
            Err(error) => nothing_or_shortage(error)?,
        },
        ProcessKey::Pidfd(_) => match names::process_of(socket) {
            Some(pid) => match process::open_any(pid) {
                Ok(pidfd) => {
                    let same = pidfd.filter(|fd| {
                        process::identity(fd).is_some_and(|found| listed.process == found.into())
                    });
                    same.map_or(ProcessStatus::Ended, |pidfd| lives((pidfd, pid)))
                }
                Err(error) if Lacks::of(&error).is_some() => return Err(error),
                // The kernel refuses the call.
                Err(_) => see_by_door(listed, socket)?,
            },
            None => see_by_door(listed, socket)?,
        },
    })
}

/// Converts an error. If it is no shortage here, only the member's connections show its end.
fn nothing_or_shortage(error: io::Error) -> io::Result<ProcessStatus> {
    if Lacks::of(&error).is_some() { Err(error) } else { Ok(ProcessStatus::Nothing) }
}

/// Like [`see`] through a connection: for its other end the kernel gives a pidfd in every
/// namespace.
fn see_by_door(listed: &Listed, socket: &Path) -> io::Result<ProcessStatus> {
    let connection = match Connection::connect(socket) {
        Ok(connection) => connection,
        Err(error) if is_shut(&error) => return Ok(ProcessStatus::Ended),
        Err(error) => return nothing_or_shortage(error),
    };
    Ok(match connection.peer() {
        Ok(peer) if ProcessKey::of(&peer).is(listed.process) => peer
            .pidfd
            .map_or(ProcessStatus::Nothing, |pidfd| ProcessStatus::Lives { pidfd, pid: peer.pid }),
        // Another process is there.
        Ok(_) => ProcessStatus::Ended,
        Err(error) if says_ended(&error) => ProcessStatus::Ended,
        Err(error) => nothing_or_shortage(error)?,
    })
}
