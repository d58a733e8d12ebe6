//! How a group forms.
//!
//! All members give the name and the size of their group. The first of them finds the name free,
//! enters it, and leads. The others connect to it, report their identity and the kinds of messages
//! that they know, and wait. When all are there, the leader gives each a rank (the requested
//! rank, if any), and sends every member the list of all. From then on it no longer leads, and the
//! name is free for another group.

use crate::Rank;
use crate::door::OfferedQueue;
use crate::error::JoinError;
use crate::member::{Member, Roster};
use crate::place::MemberPlace;
use crate::wire::{GroupId, Listed, ProcessKey, Welcome, shown};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicUsize, Ordering};
use upcall_os::fault::{Point, point};
use upcall_os::lock::{KernelCondvar, KernelMutex};
use upcall_os::random;
use upcall_sched::domain::MOST_POSTS;
use upcall_shm::account::{self};

/// Maximum number of members of a group.
pub const MOST_MEMBERS: usize = account::MOST;

/// Maximum time between two checks whether the wait was interrupted, its time is over, or the
/// leader is still there.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// Maximum time between two checks of a wait that no callback can end, and that ends by itself
/// when another member comes. Such a wait may last for days, and each check costs processor time.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// The time for which a member waits for the others. It passes only while this process runs: if the
/// process or its machine was stopped, at most two checks' worth of time passes.
pub(crate) struct FormingTimeout {
    time: Duration,
    looked: Instant,
    /// Time until the next check of a wait that ends by itself, and its maximum.
    rest: Duration,
    longest: Duration,
}

/// How often a wait checks whether it has to end: often if a callback of the program can end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitChecks {
    Often,
    Rarely,
}

impl FormingTimeout {
    pub(crate) fn new(time: Duration, checks: WaitChecks) -> Self {
        let longest = match checks {
            WaitChecks::Often => LOOK,
            WaitChecks::Rarely => LONGEST_LOOK,
        };
        Self { time, looked: Instant::now(), rest: LOOK, longest }
    }

    /// Time until the next check.
    pub(crate) fn slice(&self) -> Duration {
        self.time.min(LOOK)
    }

    /// Time until the next check of a wait that ends by itself when something happens. It doubles
    /// from one check to the next.
    pub(crate) fn rest(&self) -> Duration {
        self.time.min(self.rest)
    }

    /// Returns `true` if the time is over.
    pub(crate) fn is_over(&mut self, now: Instant) -> bool {
        self.is_over_after(now, Duration::ZERO)
    }

    /// Returns `true` if the time is over. Since the last check this process has also waited
    /// elsewhere, for at most `waited`.
    pub(crate) fn is_over_after(&mut self, now: Instant, waited: Duration) -> bool {
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        self.time = self.time.saturating_sub(passed.min(2 * self.rest + waited));
        if passed >= self.rest {
            self.rest = (2 * self.rest).min(self.longest);
        }
        self.time.is_zero()
    }
}

/// The progress of forming a member's group.
#[derive(Default)]
pub(crate) struct Forming {
    state: KernelMutex<Formation>,
    /// Number of members that may join after the group has formed.
    room: AtomicUsize,
    changed: KernelCondvar,
}

#[derive(Default)]
struct Formation {
    stage: FormingStage,
    /// Queues from members that knew before this member that the group has formed.
    early: Vec<OfferedQueue>,
}

#[derive(Default)]
enum FormingStage {
    /// Not known, or another member leads.
    #[default]
    Following,
    Leading(Leading),
    Formed {
        roster: Arc<Roster>,
        /// By rank: whether the member has brought a queue.
        brought: Vec<bool>,
    },
}

struct Leading {
    /// The key of the group that forms.
    group: GroupId,
    size: usize,
    rank: Option<Rank>,
    kinds: Vec<(String, String)>,
    applicants: Vec<Applicant>,
}

/// A process that asks to become a member.
pub(crate) trait MemberCandidate: Send + Sync {
    /// The ID of its process here, for reports; 0 if that cannot be seen.
    fn pid(&self) -> u32;

    /// Returns `true` if its process lives, as far as can be seen.
    fn lives(&self) -> bool;

    fn shut_down(&self);

    /// Sends it the result. If the send fails, it has ended.
    fn welcome(&self, welcome: &Welcome);
}

struct Applicant {
    guest: Arc<dyn MemberCandidate>,
    rank: Option<Rank>,
    listed: Listed,
}

impl Leading {
    /// Number of members that are there, the leader included.
    fn there(&self) -> usize {
        self.applicants.len() + 1
    }

    /// Checks that another member knows the same kinds of messages.
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
                "kind {at} of its messages is {} there, and {} here: all members register the same \
                 kinds in the same order",
                shown(self.kinds.get(at)),
                shown(theirs.get(at))
            )),
        }
    }

    /// The ranks of all members, the leader's last.
    fn ranks(&self) -> Vec<Rank> {
        let asked = || self.applicants.iter().map(|applicant| applicant.rank).chain([self.rank]);
        let mut free = (0..self.size).filter(|rank| asked().all(|taken| taken != Some(*rank)));
        // The leader came first.
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
    /// Leaves room for this number of members that join after the group has formed.
    pub(crate) fn leave_room(&self, more: usize) {
        self.room.store(more, Ordering::Relaxed);
    }

    /// Takes in applicants from now on.
    ///
    /// # Errors
    /// The kernel gives no random bytes for the key of the group.
    pub(crate) fn begin_to_lead(
        &self,
        size: usize,
        rank: Option<Rank>,
        kinds: Vec<(String, String)>,
    ) -> Result<(), JoinError> {
        let group = random::bytes().map_err(|error| JoinError::Resource {
            what: "random bytes for the key of the group".into(),
            error,
        })?;
        self.state.lock().stage =
            FormingStage::Leading(Leading { group, size, rank, kinds, applicants: Vec::new() });
        Ok(())
    }

    /// Takes in no applicants from now on, and makes those that have applied look again.
    pub(crate) fn begin_to_follow(&self) {
        let stage = std::mem::take(&mut self.state.lock().stage);
        if let FormingStage::Leading(leading) = stage {
            leading.applicants.iter().for_each(|applicant| applicant.guest.shut_down());
        }
    }

    /// Takes in the others. If not all came in time, returns how many were there, this one
    /// included.
    pub(crate) fn lead(
        &self,
        size: usize,
        (member, place): (&Member, Option<MemberPlace>),
        left: &mut FormingTimeout,
        is_interrupted: impl Fn() -> bool,
    ) -> Result<Arc<Roster>, usize> {
        point(Point::MemberFormsLeads);
        let mut state = self.state.lock();
        let some_lack = |state: &mut Formation| {
            let FormingStage::Leading(leading) = &mut state.stage else { return false };
            if leading.there() == size {
                // An applicant that ends now may be missed only later.
                leading.applicants.retain(|applicant| applicant.guest.lives());
            }
            leading.there() < size
        };
        loop {
            let waited;
            (state, waited) = self.changed.wait_timeout_while(state, left.rest(), some_lack);
            if !waited.timed_out() || left.is_over(Instant::now()) {
                break;
            }
            // The callback may take long, and the clerk waits for the lock.
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
        let own = Listed { process: member.own, socket, place };
        let mut members = vec![own; size];
        for (applicant, &rank) in leading.applicants.iter().zip(&ranks) {
            members[rank] = applicant.listed.clone();
        }
        let group = leading.group;
        point(Point::MemberFormsAll);
        for (applicant, &rank) in leading.applicants.iter().zip(&ranks) {
            applicant.guest.welcome(&Welcome::Formed {
                group,
                rank: rank as u32,
                members: members.clone(),
            });
        }
        Ok(self.formed(
            Roster { group, rank: ranks[size - 1], members, grows: false, pids: OnceLock::new() },
            member,
        ))
    }

    /// Returns `true` if this member takes in applicants, and there is room for one.
    pub(crate) fn takes_in(&self) -> bool {
        match &self.state.lock().stage {
            FormingStage::Leading(leading) => leading.there() < leading.size,
            _ => false,
        }
    }

    /// Handles an application. Returns the refusal to send; `Err(None)` if this member takes in
    /// none.
    pub(crate) fn apply(
        &self,
        guest: &Arc<dyn MemberCandidate>,
        asks: Asks<'_>,
        listed: Listed,
    ) -> Result<(), Option<String>> {
        let mut state = self.state.lock();
        let FormingStage::Leading(leading) = &mut state.stage else { return Err(None) };
        if leading.there() == leading.size {
            // The group is complete; the applicant is for the next one.
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
        let others = leading.applicants.iter().filter_map(|other| other.listed.place.as_ref());
        if let Some(place) = &listed.place
            && others.into_iter().any(|other| other.is_at_odds_with(place))
        {
            return Err(Some("it gives the key of a machine that is not its own".into()));
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
        leading.applicants.push(Applicant { guest: guest.clone(), rank, listed });
        self.changed.notify_all();
        Ok(())
    }

    /// Removes an applicant whose connection is gone. `folder` is that of its socket, if it is on
    /// this machine.
    pub(crate) fn lost(&self, guest: &dyn MemberCandidate, folder: Option<&Path>) {
        let mut state = self.state.lock();
        if let FormingStage::Leading(leading) = &mut state.stage {
            let gone = leading
                .applicants
                .extract_if(.., |applicant| std::ptr::addr_eq(&*applicant.guest, guest));
            for Applicant { listed, .. } in gone {
                if let Some(folder) = folder.filter(|_| !guest.lives()) {
                    // A killed member leaves its socket behind.
                    let _ = std::fs::remove_file(folder.join(listed.socket));
                }
            }
        }
    }

    /// Notes that the group has formed, and takes in the queues that came before.
    pub(crate) fn formed(&self, roster: Roster, member: &Member) -> Arc<Roster> {
        let mut roster = roster;
        let room = self.room.load(Ordering::Relaxed);
        roster.members.resize(roster.members.len() + room, Listed::absent());
        roster.grows |= room > 0;
        for rank in 0..roster.members.len() {
            if roster.place_elsewhere(rank).is_some() {
                let listed = roster.members[rank].clone();
                roster.members[rank] = listed.elsewhere();
            }
        }
        let roster = Arc::new(roster);
        let mut state = self.state.lock();
        state.stage = FormingStage::Formed {
            roster: roster.clone(),
            brought: vec![false; roster.members.len()],
        };
        let early = std::mem::take(&mut state.early);
        drop(state);
        for brought in early {
            // A sender that is refused gets the answer, and hangs up.
            brought.open(member, &roster);
        }
        roster
    }

    /// Returns `true` if a process can belong to this group.
    pub(crate) fn expects(&self, process: ProcessKey) -> bool {
        match &self.state.lock().stage {
            FormingStage::Formed { roster, .. } => {
                roster.members.iter().any(|listed| listed.process.is(process))
            }
            _ => true,
        }
    }

    /// Takes a queue that a member brings. Returns `false` to hang up.
    pub(crate) fn bring(&self, brought: OfferedQueue, member: &Member) -> bool {
        let mut state = self.state.lock();
        let FormingStage::Formed { roster, .. } = &state.stage else {
            // The descriptors of the queue are kept here. A process can be only this number of
            // members.
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

    /// Returns `true` if this member has brought no queue before.
    pub(crate) fn first_queue_of(&self, rank: Rank) -> bool {
        match &mut self.state.lock().stage {
            FormingStage::Formed { brought, .. } => {
                brought.get_mut(rank).is_some_and(|brought| !std::mem::replace(brought, true))
            }
            _ => false,
        }
    }

    /// Allows this member to bring its queue again, because it was refused for lack of a resource.
    pub(crate) fn has_no_queue_of(&self, rank: Rank) {
        if let FormingStage::Formed { brought, .. } = &mut self.state.lock().stage
            && let Some(brought) = brought.get_mut(rank)
        {
            *brought = false;
        }
    }
}

/// The request of an applicant.
pub(crate) struct Asks<'a> {
    pub(crate) size: u32,
    pub(crate) rank: Option<u32>,
    pub(crate) kinds: &'a [(String, String)],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_wait_passes_only_while_the_process_runs() {
        let mut left = FormingTimeout::new(Duration::from_secs(1), WaitChecks::Often);
        let start = left.looked;
        assert_eq!(left.slice(), LOOK);
        assert!(!left.is_over(start + LOOK) && left.time == Duration::from_millis(800));
        // A stop of an hour.
        let later = start + Duration::from_secs(3600);
        assert!(!left.is_over(later) && left.time == Duration::from_millis(400));
        assert!(!left.is_over(later + LOOK + LOOK / 2));
        assert_eq!(left.slice(), LOOK / 2);
        assert!(left.is_over(later + 2 * LOOK));
        assert!(!FormingTimeout::new(Duration::MAX, WaitChecks::Often).is_over(later));
    }

    #[test]
    fn a_wait_that_no_callback_can_end_checks_less_and_less_often() {
        let hour = Duration::from_secs(3600);
        let count_of = |checks| {
            let mut left = FormingTimeout::new(hour, checks);
            let (mut now, mut count) = (left.looked, 0);
            loop {
                now += left.rest();
                count += 1;
                if left.is_over(now) {
                    return count;
                }
            }
        };
        assert_eq!(count_of(WaitChecks::Often), 5 * 3600);
        assert!((720..740).contains(&count_of(WaitChecks::Rarely)));
        // A stop passes for two checks.
        let mut left = FormingTimeout::new(hour, WaitChecks::Rarely);
        assert!(!left.is_over(left.looked + hour) && left.time == hour - 2 * LOOK);
    }

    #[cfg(not(miri))]
    #[test]
    fn no_group_forms_with_a_key_that_can_be_guessed() {
        let refused = std::thread::spawn(|| {
            // Without a supervisor the kernel refuses the call: `getrandom` on x86-64.
            drop(upcall_os::seccomp::listen(&[318]).unwrap());
            Forming::default().begin_to_lead(2, None, Vec::new())
        });
        let refused = refused.join().unwrap().unwrap_err();
        assert!(matches!(refused, JoinError::Resource { .. }), "{refused}");
    }
}
