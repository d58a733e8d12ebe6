//! Members on other hosts: their messages travel over links.
//!
//! # Design
//! - To the sending and receiving code of a group, a member on another host looks like a member on
//!   this host: it has a queue that this member writes and a queue that this member reads. The
//!   other end of both queues is the *bridge* of this process. The bridge moves messages from the
//!   first queue to a link ([`outward`]), and from the link to the second queue ([`inward`]). So
//!   handlers, upcalls, interrupts, waiting, diversion and barriers are those of one host.
//! - Each [`pair`] of members on two hosts has a link of its own (`upcall_net::link`), which
//!   survives cuts: each message arrives once and in order. A pair whose connection is lost is
//!   opened again ([`reopening`]) while both sides have patience. After that the other member has
//!   ended.
//! - Messages travel in batches ([`batch`]). The reports of barriers and reductions, which are
//!   words beside a queue, travel between the messages that were sent before and after them.
//! - Messages that a member does not take wait on the sender's host, but for a window ([`room`]).
//!   So a sender that floods a receiver on another host is stopped as on one host.
//! - Members find each other at an address ([`meeting`]), and admit only processes of hosts that
//!   this user trusts ([`gate`]).
//!
//! # Threads
//! The bridge has a thread, which sleeps at a post as a receiver of messages does. The doorbells of
//! the first queues wake it; [`upcall_sched::post`] argues that no wake is lost. Everything else
//! that it has to look at wakes it by [`BridgeGate::rouse`], whose flag it clears before it looks.
//! The driver's thread of `upcall_net` passes on what arrives.
//!
//! A message that is sent alone need not wait for the thread: its sender moves it to the link by
//! itself ([`pace`]).
//!
//! # Differences from one host
//! A process that is killed takes messages with it that the bridge has not sent. A process that
//! leaves its group waits until the other side has them. A message has at most as many bytes as a
//! body ([`most`]).
//!
//! Source: UDM, sections 3.1 and 3.3, for the queues and the rule of overflow. There the network
//! interface stores a message between nodes; here the bridge does.

mod applying;
mod batch;
mod gate;
mod inward;
mod meeting;
mod outward;
mod pace;
mod pair;
mod reopening;
mod room;

pub(crate) use meeting::GroupMeeting;

use crate::Rank;
use crate::far::{FarMember, FarMembers};
use gate::{BridgeGate, Pairs};
use outward::Pumped;
use pair::{FarPair, LONGEST};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_net::LOST_AFTER;
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::lock::{KernelCondvar, KernelMutex};
use upcall_sched::Pacing;

/// Default time for which a pair goes on after a cut.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time after which memory is tried for again.
const AGAIN: Duration = Duration::from_millis(10);

/// Time beyond the patience for which a member that leaves waits for the other hosts.
const PARTING: Duration = Duration::from_secs(1);

/// Maximum time for which a pair goes on after a cut.
pub(crate) const LONGEST_PATIENCE: Duration = Duration::from_secs(30 * 24 * 3600);

/// How a group crosses to other hosts.
#[derive(Clone, Debug)]
pub(crate) struct AcrossHosts {
    /// The address at which the members meet.
    pub(crate) address: String,
    /// Time for which a pair goes on after a cut.
    pub(crate) patience: Duration,
    /// Time after which a host that gives no sign of life is cut off.
    pub(crate) lost_after: Duration,
    /// For tests: members with different numbers behave as if they were on different hosts.
    pub(crate) apart: u64,
}

impl AcrossHosts {
    /// Members meet at this address.
    pub(crate) fn at(address: String) -> Self {
        Self { address, patience: PATIENCE, lost_after: LOST_AFTER, apart: 0 }
    }
}

/// Maximum length of a message to another host, for members that may buffer `share` bytes each.
pub(crate) fn most(share: u64) -> usize {
    usize::try_from(share).unwrap_or(LONGEST).max(room::WINDOW as usize).min(LONGEST)
}

/// See the module.
pub(crate) struct Bridge {
    gate: Arc<BridgeGate>,
    pairs: Pairs,
    leaves: AtomicBool,
    ended: KernelMutex<bool>,
    changed: KernelCondvar,
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bridge({} members)", self.pairs.iter().flatten().count())
    }
}

impl Bridge {
    fn start(gate: &Arc<BridgeGate>, pairs: Pairs) -> io::Result<Arc<Self>> {
        let bridge = Arc::new(Self {
            gate: gate.clone(),
            pairs,
            leaves: AtomicBool::new(false),
            ended: KernelMutex::new(false),
            changed: KernelCondvar::default(),
        });
        let works = bridge.clone();
        std::thread::Builder::new().name("upcall-bridge".into()).spawn(move || works.work())?;
        Ok(bridge)
    }

    fn work(&self) {
        while !(self.leaves.load(Ordering::Acquire) && self.all().all(|pair| pair.has_left())) {
            // Before the look: what happens during it wakes the next wait.
            self.gate.take_news();
            let now = Instant::now();
            let (mut due, mut left, mut is_short) = (None, Pumped::All, false);
            for pair in self.all() {
                let (pumped, again) = pair.turn(now);
                due = earlier(due, again);
                match pumped {
                    Pumped::NoMemory => {
                        due = earlier(due, Some(now + AGAIN));
                        is_short = true;
                    }
                    Pumped::More => left = Pumped::More,
                    _ => {}
                }
            }
            if left == Pumped::More {
                continue;
            }
            let limit = due.map(|due| due.saturating_duration_since(Instant::now()));
            // Messages for which there is no memory wait for the time above.
            let there =
                || self.gate.has_news() || !is_short && self.all().any(|pair| pair.has_work());
            self.gate.post().wait(Pacing::default(), limit, there);
        }
        self.end();
    }

    fn end(&self) {
        self.gate.shut();
        self.all().for_each(|pair| pair.hang_up());
        *self.ended.lock() = true;
        self.changed.notify_all();
    }

    fn all(&self) -> impl Iterator<Item = &Arc<FarPair>> {
        self.pairs.iter().flatten()
    }
}

impl FarMembers for Bridge {
    fn of(&self, rank: Rank) -> Option<Arc<dyn FarMember>> {
        let pair = self.pairs.get(rank)?.clone()?;
        Some(pair)
    }

    fn leave(&self) {
        self.all().for_each(|pair| pair.leave());
        self.leaves.store(true, Ordering::Release);
        self.gate.rouse();
        let limit = self.gate.patience() + PARTING;
        let ended = self.ended.lock();
        let (ended, _) = self.changed.wait_timeout_while(ended, limit, |ended| !*ended);
        if !*ended {
            drop(ended);
            // The bridge's thread finds all pairs over.
            self.all().for_each(|pair| pair.hang_up());
            self.gate.rouse();
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
