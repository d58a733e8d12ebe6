//! The terms of the idle policy: the parts of its state, the events, the steps and the facts.

use crate::pacing::{Offer, Yielded};
use std::time::{Duration, Instant};
use upcall_os::processor::CpuSet;
use upcall_shm::tally::Arrival;

/// Whose CPU the virtual processor runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cpu {
    /// One of its own.
    #[default]
    Own,
    /// A caller's. It serves that caller's requests first, and leaves when they are answered.
    Borrowed {
        /// The caller, if it is known.
        from: Option<Lender>,
        /// Whether that caller asks it to stay.
        stay: StayWish,
        /// How it came to be there.
        by: CameBy,
    },
    /// A caller's, to which it has moved by itself: the caller may not move it.
    Near {
        /// The caller.
        near: NearbyCaller,
        /// Number of times that it still parks here.
        parks_left: u32,
    },
    /// Still the CPU of a caller that had a use for it before it parked.
    Kept {
        /// Number of times that it still parks here.
        parks_left: u32,
    },
    /// One of its own, away from a caller whose calls follow each other closely.
    Refuge {
        /// The CPUs to which it has confined itself.
        cpus: CpuSet,
        /// Number of times that it still parks here.
        parks_left: u32,
    },
}

/// How a virtual processor came to the CPU of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CameBy {
    /// The caller moved it.
    Brought,
    /// It parked there by itself, near this caller.
    Parked(NearbyCaller),
    /// The caller came to one of these CPUs, the refuge of the virtual processor.
    InRefuge(CpuSet),
}

/// A caller near which a virtual processor parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearbyCaller {
    /// The number of the client.
    pub client: u64,
    /// The caller's CPU.
    pub cpu: u32,
}

/// A caller whose CPU a virtual processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lender {
    /// Its lane.
    pub lane: usize,
    /// Number of batches of this lane that come before other lanes.
    pub batches_left: usize,
}

/// A caller's wish to a server that runs on the caller's CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StayWish {
    /// To sleep when it has answered.
    #[default]
    Sleep,
    /// To yield before it sleeps: the next call comes soon ([`Stay`]).
    Stay,
}

/// The wish of the caller that was answered last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollWish {
    /// To poll, if the server would.
    #[default]
    Poll,
    /// Not to poll ([`steer`](crate::steer)).
    Rest,
}

/// Whether a server has the CPU of the virtual processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lending {
    /// No server has it.
    #[default]
    None,
    /// A server has it. There was no reply since.
    Given,
    /// A server had it, and has not reported since that it is elsewhere.
    Lent,
}

/// How long probes have found nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Polling {
    /// The poller has not polled since something was found.
    #[default]
    NotBegun,
    /// It polls, and has not read the clock.
    Begun,
    /// It polls since this moment.
    Since(Instant),
}

/// Whether peers need the CPU on which the virtual processor polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CpuDemand {
    /// It may run on several CPUs, so the kernel finds another CPU for a peer.
    Several,
    /// It has one CPU, and no peer that it waits for is there.
    Alone,
    /// It has one CPU, and a peer that it waits for may be there.
    Shared,
}

/// What the virtual processor is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// It serves lanes, or calls.
    #[default]
    Work,
    /// It is a spare without a duty: it sleeps whenever it has nothing to run.
    Rest,
}

/// Whether requests wait that get no stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackSupply {
    /// No request waits for a stack.
    #[default]
    Enough,
    /// Some requests wait. There is a stack again when a call of this virtual processor has ended,
    /// or one of another processor that probes its lanes while it sleeps.
    Short,
}

/// An event of an idle virtual processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdleEvent {
    /// A probe found nothing, for the `round`th time in a row.
    NothingFound {
        /// 1, 2, 3, and so on.
        round: u32,
        /// Whether requests wait that get no stack.
        stacks: StackSupply,
    },
    /// It has yielded, which took this long.
    Yielded(Duration),
    /// It has yielded to a server, which took this long; zero if that was not measured.
    ServerYielded(Yielded, Duration),
    /// It has yielded to its callers.
    CallersYielded(Yielded),
    /// It has migrated to these CPUs.
    Migrated(CpuSet),
    /// It could not migrate.
    NotMigrated,
}

/// The next step of an idle virtual processor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum IdleStep {
    /// It probes again.
    PollAgain,
    /// It yields the CPU once, and reports [`IdleEvent::Yielded`].
    Yield,
    /// It yields to a server until a reply is there, and reports [`IdleEvent::ServerYielded`].
    YieldToServer(Offer),
    /// It yields to its callers until a request is there, and reports
    /// [`IdleEvent::CallersYielded`].
    YieldToCallers,
    /// It moves to these CPUs, and reports [`IdleEvent::Migrated`] or [`IdleEvent::NotMigrated`].
    Migrate(CpuSet),
    /// It sleeps until it is woken, or until its deadline. [`Poller::parks`](super::Poller::parks)
    /// follows.
    Park,
}

/// The step of a virtual processor before it serves a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum BeforeServing {
    /// Nothing.
    Serve,
    /// It gives the CPU back to its donor: it migrates to these CPUs, or yields once if it cannot.
    GiveBack(Option<CpuSet>),
}

/// Where a virtual processor parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ParkPlace<'a> {
    /// Where it is.
    Here,
    /// On this CPU, to which it confines itself. If it cannot,
    /// [`Poller::not_near`](super::Poller::not_near) follows.
    Near(u32),
    /// On its own CPUs, to which it confines itself.
    Home(&'a CpuSet),
}

/// How a virtual processor was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wakeup {
    /// The CPU that it published before it parked.
    pub said: u32,
    /// The CPU where it is now.
    pub cpu: u32,
    /// How long it was parked.
    pub slept: Duration,
    /// Why it was woken.
    pub reason: WakeReason,
}

/// Why a virtual processor was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// It was notified.
    Notified,
    /// Its deadline has passed.
    Deadline,
}

/// The hints of a request that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedRequest {
    /// Its lane; `None` if the lanes have changed since.
    pub lane: Option<usize>,
    /// The number of its client.
    pub client: u64,
    /// How the virtual processor came to it.
    pub came: Arrival,
    /// The caller's wish, if the caller gave its CPU.
    pub donated: Option<StayWish>,
    /// The caller's wish in any case.
    pub wish: PollWish,
}

/// The facts that the policy asks for. It asks for each only where the answer matters.
pub trait Facts {
    /// The current time.
    fn now(&self) -> Instant;
    /// The number of the kernel's tick.
    fn tick(&self) -> u64;
    /// The CPU that the virtual processor runs on.
    fn cpu(&self) -> u32;
    /// The CPUs on which the virtual processor may run; `None` if the kernel does not report them.
    fn allowed(&self) -> Option<CpuSet>;
    /// Returns `true` if calls of the virtual processor are under way.
    fn is_calling(&self) -> bool;
    /// Returns `true` if a reply is there.
    fn has_reply(&self) -> bool;
    /// Returns `true` if a server that it calls reports another CPU than `cpu`.
    fn has_server_elsewhere(&self, cpu: u32) -> bool;
    /// Returns `true` if it probes lanes of callers.
    fn has_lanes(&self) -> bool;
    /// Returns `true` if it receives messages.
    fn has_posts(&self) -> bool;
    /// Returns `true` if all its callers are on CPU `cpu`, and it has no calls under way itself.
    fn has_only_callers_on(&self, cpu: u32) -> bool;
    /// Returns `true` if a peer that it waits for is on CPU `cpu`, or may be.
    fn shares(&self, cpu: u32) -> bool;
    /// A lane whose caller has given CPU `cpu`.
    fn donor(&self, cpu: u32) -> Option<usize>;
    /// The CPU near which the caller of `lane` wishes the virtual processor to park, because the
    /// caller may not move it there.
    fn wished_cpu(&self, lane: usize) -> Option<u32>;
    /// Returns `true` if the caller of `lane` reports that it is on CPU `cpu`.
    fn is_caller_on(&self, lane: usize, cpu: u32) -> bool;
    /// Returns `true` if the caller of `lane` reports that it has something to run.
    fn is_caller_running(&self, lane: usize) -> bool;
}
