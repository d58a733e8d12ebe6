//! How a group forms.
//!
//! All members say the name and the size of their group. The first of them finds the name free,
//! enters it, and leads: the others connect to it, say who they are and which kinds of messages
//! they know, and wait. When all are there the leader gives each a rank, those who asked for one
//! the one that they asked for, and tells everybody of all. From then on it leads no more, and the
//! name is free for another group.

use crate::Rank;
use crate::door::{GroupPeer, OfferedQueue};
use crate::member::{Member, Roster};
use crate::wire::{GroupId, Listed, ProcessKey, Welcome, shown};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use upcall_directory::names::{self};
use upcall_os::fault::{Point, point};
use upcall_os::lock::{KernelCondvar, KernelMutex};
use upcall_sched::domain::MOST_POSTS;
use upcall_shm::account::{self};

/// The most members of a group.
pub const MOST_MEMBERS: usize = account::MOST;

/// Longest wait between two looks whether the wait was interrupted, its time is over, or the leader
/// is still there.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// The time for which a member waits for the others. It passes only while this process runs: of one
/// that was stopped, or whose machine was, two looks' worth passes.
pub(crate) struct FormingTimeout {
    time: Duration,
    looked: Instant,
}

impl FormingTimeout {
    pub(crate) fn new(time: Duration) -> Self {
        Self { time, looked: Instant::now() }
    }

    /// How long to wait until the next look.
    pub(crate) fn slice(&self) -> Duration {
        self.time.min(LOOK)
    }

    /// Returns `true` if the time is over.
    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        self.time = self.time.saturating_sub(passed.min(2 * LOOK));
        self.time.is_zero()
    }
}

/// How far the forming of a member's group is.
#[derive(Default)]
pub(crate) struct Forming {
    state: KernelMutex<Formation>,
    changed: KernelCondvar,
}

#[derive(Default)]
struct Formation {
    stage: FormingStage,
    /// Queues of those who knew before us that the group has formed.
    early: Vec<OfferedQueue>,
}

#[derive(Default)]
enum FormingStage {
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
    guest: Arc<GroupPeer>,
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
    pub(crate) fn begin_to_lead(
        &self,
        size: usize,
        rank: Option<Rank>,
        kinds: Vec<(String, String)>,
    ) {
        self.state.lock().stage =
            FormingStage::Leading(Leading { size, rank, kinds, applicants: Vec::new() });
    }

    /// From now on no applicants are taken in. Those that were hear that they are to look again.
    pub(crate) fn begin_to_follow(&self) {
        let stage = std::mem::take(&mut self.state.lock().stage);
        if let FormingStage::Leading(leading) = stage {
            leading.applicants.iter().for_each(|applicant| applicant.guest.shut_down());
        }
    }

    /// Takes in the others. How many were there, ourselves included, if not all came in time.
    pub(crate) fn lead(
        &self,
        size: usize,
        member: &Member,
        left: &mut FormingTimeout,
        is_interrupted: impl Fn() -> bool,
    ) -> Result<Arc<Roster>, usize> {
        point(Point::MemberFormsLeads);
        let mut state = self.state.lock();
        let some_lack = |state: &mut Formation| {
            let FormingStage::Leading(leading) = &mut state.stage else { return false };
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
            let is_interrupted = is_interrupted();
            state = self.state.lock();
            if is_interrupted {
                break;
            }
        }
        let FormingStage::Leading(leading) = std::mem::take(&mut state.stage) else {
            return Err(0);
        };
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
    pub(crate) fn apply(
        &self,
        guest: &Arc<GroupPeer>,
        asks: Asks<'_>,
    ) -> Result<(), Option<String>> {
        let mut state = self.state.lock();
        let FormingStage::Leading(leading) = &mut state.stage else { return Err(None) };
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
        if matches!(process, ProcessKey::Numbered(0, _)) {
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
    pub(crate) fn lost(&self, guest: &GroupPeer, folder: &Path) {
        let mut state = self.state.lock();
        if let FormingStage::Leading(leading) = &mut state.stage {
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
    pub(crate) fn formed(&self, roster: Roster, member: &Member) -> Arc<Roster> {
        let roster = Arc::new(roster);
        let mut state = self.state.lock();
        state.stage = FormingStage::Formed {
            roster: roster.clone(),
            brought: vec![false; roster.members.len()],
        };
        let early = std::mem::take(&mut state.early);
        drop(state);
        for brought in early {
            // Who is refused hears it, and hangs up.
            brought.open(member, &roster);
        }
        roster
    }

    /// Whether a process can be of this group.
    pub(crate) fn expects(&self, process: ProcessKey) -> bool {
        match &self.state.lock().stage {
            FormingStage::Formed { roster, .. } => {
                roster.members.iter().any(|listed| listed.process.is(process))
            }
            _ => true,
        }
    }

    /// A member brings its queue. False to hang up.
    pub(crate) fn bring(&self, brought: OfferedQueue, member: &Member) -> bool {
        let mut state = self.state.lock();
        let FormingStage::Formed { roster, .. } = &state.stage else {
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
            FormingStage::Formed { brought, .. } => {
                brought.get_mut(rank).is_some_and(|brought| !std::mem::replace(brought, true))
            }
            _ => false,
        }
    }

    /// This member's queue was refused for lack of a resource: it may bring it again.
    pub(crate) fn has_no_queue_of(&self, rank: Rank) {
        if let FormingStage::Formed { brought, .. } = &mut self.state.lock().stage
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
        let mut left = FormingTimeout::new(Duration::from_secs(1));
        let start = left.looked;
        assert_eq!(left.slice(), LOOK);
        assert!(!left.is_over(start + LOOK) && left.time == Duration::from_millis(800));
        // A stop of an hour.
        let later = start + Duration::from_secs(3600);
        assert!(!left.is_over(later) && left.time == Duration::from_millis(400));
        assert!(!left.is_over(later + LOOK + LOOK / 2));
        assert_eq!(left.slice(), LOOK / 2);
        assert!(left.is_over(later + 2 * LOOK));
        assert!(!FormingTimeout::new(Duration::MAX).is_over(later));
    }
}
