//! The shared record of a run: words in a memory file that every process maps and that outlives
//! each of them.
//!
//! A process writes what it has done into the record itself, so the counts of a killed process are
//! still readable. Every word has one meaning, and is written either by one process or by atomic
//! additions.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_shm::region::{Region, RegionView};
use upcall_tests::now;

/// Number of callers that have a ledger.
pub const LANES: usize = 64;
/// Number of requests of one caller that its ledger keeps.
pub const HISTORY: u64 = 4096;
/// Maximum number of processes of a run at a time.
pub const SLOTS: usize = 48;
/// Number of process IDs of the machine.
const PIDS: usize = 1 << 22;
/// Number of members of the group.
pub const MEMBERS: usize = 4;
/// Number of groups.
pub const GROUPS: usize = 2;
/// Number of group epochs and of homes that the record keeps.
const GENERATIONS: usize = 64;
/// Number of buckets of a histogram, eight for each doubling.
const BUCKETS: usize = 512;
/// Number of words of a histogram: its buckets, then the count and the longest time.
const HISTOGRAM: usize = BUCKETS + 2;

/// What a histogram measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// From a server's death to the error of a call that was under way or was made later.
    CallAfterDeath,
    /// From a member's death to the survivors' notice of it.
    MemberAfterDeath,
    /// From a home's death to the error of an invocation or an access.
    HomeAfterDeath,
    /// The bystander's calls.
    Bystander,
    /// Calls and binds of all other clients.
    Calls,
    /// Urgent invocations.
    Urgent,
    /// From the signal that kills a process to the end of its teardown in the kernel, which closes
    /// its descriptors. Peers learn of a death by the closed descriptors.
    Ending,
}

impl Times {
    /// All histograms, in the order of the record.
    pub const ALL: [Self; 7] = [
        Self::CallAfterDeath,
        Self::MemberAfterDeath,
        Self::HomeAfterDeath,
        Self::Bystander,
        Self::Calls,
        Self::Urgent,
        Self::Ending,
    ];

    /// The name in the summary.
    pub fn name(self) -> &'static str {
        match self {
            Self::CallAfterDeath => "death to a call's error",
            Self::MemberAfterDeath => "death to a member's notice",
            Self::HomeAfterDeath => "death to a guest's error",
            Self::Bystander => "bystander's call",
            Self::Calls => "any other call",
            Self::Urgent => "urgent invocation",
            Self::Ending => "kill to the kernel's end",
        }
    }
}

/// How a request ended, as its caller reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The caller is waiting, or died while it waited.
    Open = 1,
    /// The caller has the right result: the request was executed exactly once.
    Answered = 2,
    /// The error leaves open whether the request was executed: at most once.
    Unknown = 3,
    /// The error says that the request was not executed.
    NotRun = 4,
}

/// The execution of a request that a count refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// The execution by the server or the home that the caller called.
    First,
    /// The execution by a server that the first one called on the caller's behalf.
    Nested,
}

/// Sums that all processes add to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// Requests that were begun.
    Begun,
    /// Requests that ended with [`End::Answered`].
    Answered,
    /// Requests that ended with [`End::Unknown`].
    Unknown,
    /// Requests that ended with [`End::NotRun`].
    NotRun,
    /// Executions in servers and homes.
    Executed,
    /// Binds that succeeded.
    Binds,
    /// Binds that failed.
    BindErrors,
    /// Requests executed after their caller's ledger had dropped them, so that they could not be
    /// checked.
    Late,
    /// Messages that members have sent.
    Sent,
    /// Messages that members have taken.
    Taken,
    /// Barriers that held.
    Barriers,
    /// Barriers and sends that ended with an error after a death.
    GroupErrors,
    /// Groups that all survivors of a death have verified.
    Epochs,
    /// Objects of servers that clients have opened.
    Opened,
    /// Reads of an object without its lock.
    Looks,
    /// Repairs of an object after a death in the middle of an operation.
    Repairs,
    /// Steps of hostile clients and members.
    HostileSteps,
    /// Breaches of the protocol by the hostile member that its peers noticed.
    Violations,
    /// Calls that a client of the hostile server has endured.
    Endured,
    /// Complaints of all processes.
    Complaints,
}

impl Sum {
    /// All sums, with their names in the summary.
    pub const ALL: [(Self, &str); 20] = [
        (Self::Begun, "requests begun"),
        (Self::Answered, "requests answered"),
        (Self::Unknown, "requests failed, may have run"),
        (Self::NotRun, "requests failed, not run"),
        (Self::Executed, "executions"),
        (Self::Binds, "binds and finds"),
        (Self::BindErrors, "binds and finds that failed"),
        (Self::Late, "executions too late to be checked"),
        (Self::Sent, "messages sent"),
        (Self::Taken, "messages taken"),
        (Self::Barriers, "barriers held"),
        (Self::GroupErrors, "group errors after a death"),
        (Self::Epochs, "group ends verified by a member"),
        (Self::Opened, "resources opened"),
        (Self::Looks, "looks without the lock"),
        (Self::Repairs, "objects repaired"),
        (Self::HostileSteps, "hostile steps"),
        (Self::Violations, "breaches that members noticed"),
        (Self::Endured, "calls to a hostile server"),
        (Self::Complaints, "complaints"),
    ];
}

/// What all processes are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Work.
    Work = 0,
    /// Finish what is under way, unbind from all peers, and wait.
    Rest = 1,
}

/// Number of words of one caller.
const LANE_WORDS: usize = 16;
/// Stands for a process ID that the caller does not know.
pub const UNKNOWN: u32 = u32::MAX;

/// What an operation under way waits for, and since when.
#[derive(Clone, Copy, Debug)]
pub struct Underway {
    /// The process that waits.
    pub by: u32,
    /// The process it waits for; 0 if it is not known.
    pub target: u32,
    /// The process that the target waits for on its behalf; 0 if there is none.
    pub via: u32,
    /// When it began, by [`now`].
    pub since: u64,
    /// The kind of operation.
    pub what: &'static str,
}

/// The kinds of operations, as the watchdog names them.
pub const OPERATIONS: [&str; 20] = [
    "idle", "bind", "step", "text", "blob", "nap", "relay", "open", "session", "find", "urgent",
    "invoke", "perform", "auto", "read", "join", "send", "barrier", "finish", "rest",
];

// Offsets of the parts of the record, in words.
const SUMS: usize = 16;
const HISTOGRAMS: usize = SUMS + 64;
const SLOT: usize = HISTOGRAMS + Times::ALL.len() * HISTOGRAM;
const SLOT_WORDS: usize = 8;
const LANE: usize = SLOT + SLOTS * SLOT_WORDS;
const LEDGER: usize = LANE + LANES * LANE_WORDS;
const EPOCHS: usize = LEDGER + LANES * HISTORY as usize * 3;
const EPOCH_WORDS: usize = MEMBERS * MEMBERS * 3 + 3 * MEMBERS + 1;
const HOMES: usize = EPOCHS + GENERATIONS * EPOCH_WORDS;
const BY_PID: usize = HOMES + GENERATIONS * 2;
const WORDS: usize = BY_PID + PIDS * 3;

/// The record. Clones refer to the same record.
#[derive(Clone)]
pub struct Book(RegionView<[AtomicU64]>);

/// A request's number: its caller's lane, and its place among that caller's requests.
pub fn request(lane: usize, number: u64) -> u64 {
    (lane as u64) << 48 | number
}

fn parts(id: u64) -> (usize, u64) {
    ((id >> 48) as usize % LANES, id & ((1 << 48) - 1))
}

impl Book {
    /// Creates an empty record, with the path by which other processes open it while this one
    /// lives.
    pub fn create() -> std::io::Result<(Self, MemoryFile, String)> {
        let file = MemoryFile::create("soak", WORDS * 8)?;
        let path = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            std::os::fd::AsFd::as_fd(&file).as_raw_fd()
        );
        Ok((Self::map(&file)?, file, path))
    }

    /// Opens the record of the process that created it.
    pub fn open(path: &str) -> std::io::Result<Self> {
        let file: OwnedFd = File::options().read(true).write(true).open(path)?.into();
        let file = MemoryFile::adopt(file, WORDS * 8).map_err(std::io::Error::other)?;
        Self::map(&file)
    }

    fn map(file: &MemoryFile) -> std::io::Result<Self> {
        let region = Region::new(Mapping::shared(file)?)
            .ok_or_else(|| std::io::Error::other("a read-only record"))?;
        let words = region
            .view_slice(0, WORDS)
            .ok_or_else(|| std::io::Error::other("a record too short"))?;
        Ok(Self(words))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.0[at]
    }

    /// The epoch of a group. The supervisor raises it after it has killed a member, so that the
    /// survivors know what to do next.
    pub fn epoch(&self, group: usize) -> &AtomicU64 {
        self.word(8 + group)
    }

    /// The number of homes so far.
    pub fn homes(&self) -> &AtomicU64 {
        self.word(1)
    }

    /// What all processes are to do.
    pub fn phase(&self) -> Phase {
        if self.word(2).load(SeqCst) == 0 { Phase::Work } else { Phase::Rest }
    }

    /// Changes what all processes are to do.
    pub fn set_phase(&self, phase: Phase) {
        self.word(2).store(phase as u64, SeqCst);
    }

    /// Adds to a sum.
    pub fn add(&self, sum: Sum, more: u64) {
        self.word(SUMS + sum as usize).fetch_add(more, Relaxed);
    }

    /// Returns a sum.
    pub fn sum(&self, sum: Sum) -> u64 {
        self.word(SUMS + sum as usize).load(Relaxed)
    }

    /// Adds a time to a histogram.
    pub fn note(&self, times: Times, ns: u64) {
        let at = HISTOGRAMS + times as usize * HISTOGRAM;
        self.word(at + bucket(ns)).fetch_add(1, Relaxed);
        self.word(at + BUCKETS).fetch_add(1, Relaxed);
        self.word(at + BUCKETS + 1).fetch_max(ns, Relaxed);
    }

    /// The number of times in a histogram, and the longest of them in nanoseconds.
    pub fn noted(&self, times: Times) -> (u64, u64) {
        let at = HISTOGRAMS + times as usize * HISTOGRAM + BUCKETS;
        (self.word(at).load(Relaxed), self.word(at + 1).load(Relaxed))
    }

    /// The time that this share of all times in a histogram does not exceed, to within an eighth,
    /// in nanoseconds.
    pub fn quantile(&self, times: Times, share: f64) -> u64 {
        let (count, longest) = self.noted(times);
        let (mut left, at) =
            ((count as f64 * share).ceil() as u64, HISTOGRAMS + times as usize * HISTOGRAM);
        for place in 0..BUCKETS {
            let here = self.word(at + place).load(Relaxed);
            if here >= left {
                return bucket_end(place).min(longest);
            }
            left -= here;
        }
        longest
    }

    /// Clears all histograms.
    pub fn forget_times(&self) {
        (HISTOGRAMS..SLOT).for_each(|at| self.word(at).store(0, Relaxed));
    }

    /// A word of a slot.
    pub fn slot(&self, slot: usize, word: SlotWord) -> &AtomicU64 {
        self.word(SLOT + slot * SLOT_WORDS + word as usize)
    }

    /// Notes that this process has begun in a slot, and clears what an earlier process with its ID
    /// left.
    pub fn enter(&self, slot: usize) {
        let pid = std::process::id();
        (0..3).for_each(|table| self.word(BY_PID + table * PIDS + pid as usize).store(0, SeqCst));
        self.slot(slot, SlotWord::Opened).store(0, SeqCst);
        self.slot(slot, SlotWord::Dropped).store(0, SeqCst);
        self.slot(slot, SlotWord::Held).store(0, SeqCst);
        self.slot(slot, SlotWord::Pid).store(pid.into(), SeqCst);
    }

    /// When a process was killed; 0 if it was not.
    pub fn died(&self, pid: u32) -> u64 {
        self.word(BY_PID + pid as usize % PIDS).load(SeqCst)
    }

    /// Notes that a process is about to be killed.
    pub fn dies(&self, pid: u32) {
        self.word(BY_PID + pid as usize % PIDS).store(now(), SeqCst);
    }

    /// When a process went on after a stop; 0 if it was never stopped, `u64::MAX` if it is stopped
    /// now.
    pub fn went_on(&self, pid: u32) -> u64 {
        self.word(BY_PID + PIDS + pid as usize % PIDS).load(SeqCst)
    }

    /// Notes that a process is about to be stopped.
    pub fn stops(&self, pid: u32) {
        self.word(BY_PID + PIDS + pid as usize % PIDS).store(u64::MAX, SeqCst);
    }

    /// Notes that a stopped process goes on.
    pub fn goes_on(&self, pid: u32) {
        self.word(BY_PID + PIDS + pid as usize % PIDS).store(now(), SeqCst);
    }

    /// Returns `true` if this process was killed, is stopped, or went on after a stop within the
    /// last `ns` nanoseconds.
    pub fn was_disturbed(&self, pid: u32, ns: u64) -> bool {
        self.died(pid) != 0
            || self.went_on(pid).saturating_add(ns) > now() && self.went_on(pid) != 0
    }

    /// Returns `true` if the slot's process began or was disturbed within the last `ns`
    /// nanoseconds.
    pub fn was_slot_disturbed(&self, slot: usize, ns: u64) -> bool {
        self.slot(slot, SlotWord::Disturbed).load(SeqCst).saturating_add(ns) > now()
    }

    /// Notes that the slot's process begins, is stopped, goes on, or is killed.
    pub fn disturb_slot(&self, slot: usize) {
        self.slot(slot, SlotWord::Disturbed).store(now(), SeqCst);
    }

    fn lane(&self, lane: usize, word: usize) -> &AtomicU64 {
        self.word(LANE + lane * LANE_WORDS + word)
    }

    fn cell(&self, lane: usize, number: u64, table: usize) -> &AtomicU64 {
        self.word(LEDGER + (lane * HISTORY as usize + (number % HISTORY) as usize) * 3 + table)
    }

    /// Begins a caller's next request. It takes the place of an earlier one, whose record is
    /// checked first.
    pub fn begin(&self, lane: usize) -> Result<u64, String> {
        let number = self.lane(lane, 0).load(SeqCst) + 1;
        self.check(lane, number.saturating_sub(HISTORY))?;
        self.lane(lane, 0).store(number, SeqCst);
        self.cell(lane, number, 2).store(number << 4 | End::Open as u64, SeqCst);
        self.add(Sum::Begun, 1);
        Ok(request(lane, number))
    }

    /// Notes how a request ended, and checks that against its executions.
    pub fn end(&self, id: u64, end: End) -> Result<(), String> {
        let (lane, number) = parts(id);
        self.cell(lane, number, 2).store(number << 4 | end as u64, SeqCst);
        match end {
            End::Open => {}
            End::Answered => self.add(Sum::Answered, 1),
            End::Unknown => self.add(Sum::Unknown, 1),
            End::NotRun => self.add(Sum::NotRun, 1),
        }
        self.check(lane, number)
    }

    /// How many times a request was executed; `None` if the ledger no longer has it.
    pub fn executed(&self, id: u64, plane: Plane) -> Option<u64> {
        let (lane, number) = parts(id);
        let cell = self.cell(lane, number, plane as usize).load(SeqCst);
        match (cell >> 4).cmp(&number) {
            std::cmp::Ordering::Less => Some(0),
            std::cmp::Ordering::Equal => Some(cell & 15),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// Notes an execution.
    pub fn execute(&self, id: u64, plane: Plane) -> Result<(), String> {
        let (lane, number) = parts(id);
        let cell = self.cell(lane, number, plane as usize);
        self.add(Sum::Executed, 1);
        let noted = cell.fetch_update(SeqCst, SeqCst, |old| match (old >> 4).cmp(&number) {
            std::cmp::Ordering::Less => Some(number << 4 | 1),
            std::cmp::Ordering::Equal => Some(number << 4 | ((old & 15) + 1).min(15)),
            std::cmp::Ordering::Greater => None,
        });
        match noted {
            Ok(old) if old >> 4 == number => {
                Err(format!("request {number} of caller {lane} is executed again"))
            }
            Ok(_) => Ok(()),
            Err(_) => {
                self.add(Sum::Late, 1);
                Ok(())
            }
        }
    }

    /// Checks that a request's executions agree with its end.
    fn check(&self, lane: usize, number: u64) -> Result<(), String> {
        let end = self.cell(lane, number, 2).load(SeqCst);
        if number == 0 || end >> 4 != number {
            return Ok(());
        }
        let Some(times) = self.executed(request(lane, number), Plane::First) else { return Ok(()) };
        let wrong = match end & 15 {
            2 => times != 1,
            4 => times != 0,
            _ => times > 1,
        };
        if !wrong {
            return Ok(());
        }
        let end = match end & 15 {
            2 => "was answered",
            4 => "was not run, by its error",
            _ => "has failed",
        };
        Err(format!("request {number} of caller {lane} {end}, and was executed {times} times"))
    }

    /// Checks all requests in the ledgers.
    pub fn check_all(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for lane in 0..LANES {
            let last = self.lane(lane, 0).load(SeqCst);
            for number in last.saturating_sub(HISTORY - 1)..=last {
                wrong.extend(self.check(lane, number).err());
            }
        }
        wrong
    }

    /// Notes what a caller starts to wait for.
    pub fn waits(&self, lane: usize, what: &'static str, target: u32) {
        let kind = OPERATIONS.iter().position(|name| *name == what).unwrap_or(0);
        self.lane(lane, 1).store(std::process::id().into(), SeqCst);
        self.lane(lane, 2).store(target.into(), SeqCst);
        self.lane(lane, 3).store(0, SeqCst);
        self.lane(lane, 4).store(kind as u64, SeqCst);
        self.lane(lane, 5).store(now(), SeqCst);
    }

    /// Notes that a server waits for another server on a caller's behalf.
    pub fn waits_via(&self, id: u64, via: u32) {
        self.lane(parts(id).0, 3).store(via.into(), SeqCst);
    }

    /// Notes that a caller no longer waits. Returns when the wait began.
    pub fn goes(&self, lane: usize) -> u64 {
        self.lane(lane, 5).swap(0, SeqCst)
    }

    /// What a caller waits for.
    pub fn underway(&self, lane: usize) -> Option<Underway> {
        let read = |word: usize| self.lane(lane, word).load(SeqCst);
        let since = read(5);
        let [by, target, via] = [1, 2, 3].map(|word| read(word) as u32);
        (since != 0).then(|| Underway {
            by,
            target,
            via,
            since,
            what: OPERATIONS[read(4) as usize % OPERATIONS.len()],
        })
    }

    /// A word about the messages from one member to another in an epoch.
    pub fn messages(&self, epoch: u64, from: usize, to: usize, word: Messages) -> &AtomicU64 {
        let at = epoch_at(epoch);
        self.word(at + (from * MEMBERS + to) * 3 + word as usize)
    }

    /// The last epoch in which a member sent all it had to send.
    pub fn has_sent(&self, epoch: u64, rank: usize) -> &AtomicU64 {
        self.word(epoch_at(epoch) + MEMBERS * MEMBERS * 3 + rank)
    }

    /// The process of a member in an epoch, once it has joined.
    pub fn joined(&self, epoch: u64, rank: usize) -> &AtomicU64 {
        self.word(epoch_at(epoch) + MEMBERS * MEMBERS * 3 + MEMBERS + rank)
    }

    /// The number of the last barrier of an epoch that a member has reached.
    pub fn came(&self, epoch: u64, rank: usize) -> &AtomicU64 {
        self.word(epoch_at(epoch) + MEMBERS * MEMBERS * 3 + 2 * MEMBERS + rank)
    }

    /// The last round of an epoch; 0 until a member has chosen it.
    pub fn last_round(&self, epoch: u64) -> &AtomicU64 {
        self.word(epoch_at(epoch) + MEMBERS * MEMBERS * 3 + 3 * MEMBERS)
    }

    /// Clears the record of a future epoch.
    pub fn clear_epoch(&self, epoch: u64) {
        let at = epoch_at(epoch);
        (at..at + EPOCH_WORDS).for_each(|at| self.word(at).store(0, SeqCst));
    }

    /// Number of operations on a home's object that were begun.
    pub fn home_begun(&self, home: u64) -> &AtomicU64 {
        self.word(HOMES + home as usize % GENERATIONS * 2)
    }

    /// Number of operations on a home's object that were completed.
    pub fn home_done(&self, home: u64) -> &AtomicU64 {
        self.word(HOMES + home as usize % GENERATIONS * 2 + 1)
    }
}

/// A word of a slot.
#[derive(Clone, Copy, Debug)]
pub enum SlotWord {
    /// The process in the slot.
    Pid = 0,
    /// Resources that its clients have opened.
    Opened = 1,
    /// Resources that it has dropped.
    Dropped = 2,
    /// When its process was last killed or stopped.
    Disturbed = 3,
    /// Complaints of its processes.
    Complaints = 4,
    /// Bytes that its process had allocated and not freed at its last rest.
    Held = 5,
}

/// A word of a pair of members.
#[derive(Clone, Copy, Debug)]
pub enum Messages {
    /// Sends that were begun.
    Begun = 0,
    /// Sends that returned `Ok`.
    Sent = 1,
    /// Messages that the receiver has taken.
    Taken = 2,
}

/// The offset of the words of an epoch. The upper 32 bits of an epoch's number are its group.
fn epoch_at(epoch: u64) -> usize {
    let (group, number) = (epoch as usize >> 32, epoch as usize % (GENERATIONS / GROUPS));
    EPOCHS + (group % GROUPS * (GENERATIONS / GROUPS) + number) * EPOCH_WORDS
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(8);
    let doubling = ns.ilog2() as usize;
    ((doubling - 3) * 8 + (ns >> (doubling - 3)) as usize - 8).min(BUCKETS - 1)
}

fn bucket_end(bucket: usize) -> u64 {
    (8 + bucket as u64 % 8 + 1) << (bucket / 8)
}
