//! The thread of a process that gives all pairs their turns.

use super::gate::BridgeGate;
use super::home::{AGAIN, BridgeHome};
use super::outward::Pumped;
use super::pair::{FarPair, Pairs};
use crate::Rank;
use crate::error::ExpectError;
use crate::far::{FarMember, FarMembers};
use crate::invitation::{Invitation, InvitedHost};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::lock::{KernelCondvar, KernelMutex};
use upcall_sched::Pacing;

/// Time beyond the patience for which a member that leaves waits for the other hosts.
const PARTING: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Bridge {
    home: Arc<BridgeHome>,
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
    pub(super) fn start(
        home: &Arc<BridgeHome>,
        gate: &Arc<BridgeGate>,
        pairs: Pairs,
    ) -> io::Result<Arc<Self>> {
        let bridge = Arc::new(Self {
            home: home.clone(),
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
            self.home.take_news();
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
                || self.home.has_news() || !is_short && self.all().any(|pair| pair.has_work());
            self.home.post().wait(Pacing::default(), limit, there);
        }
        self.end();
    }

    fn end(&self) {
        self.gate.shut();
        self.pairs.iter().flatten().for_each(|pair| pair.hang_up());
        *self.ended.lock() = true;
        self.changed.notify_all();
    }

    /// The pairs with members that have joined.
    fn all(&self) -> impl Iterator<Item = &Arc<FarPair>> {
        self.pairs.iter().flatten().filter(|pair| !pair.is_dormant())
    }
}

impl FarMembers for Bridge {
    fn expect(&self, ranks: Range<Rank>, from: InvitedHost) -> Result<Invitation, ExpectError> {
        self.gate.expect(ranks, from)
    }

    fn expect_no_more(&self, ranks: &Range<Rank>) {
        self.gate.expect_no_more(ranks);
    }

    fn expel(&self, ranks: &Range<Rank>) {
        self.gate.expel(ranks);
    }

    fn of(&self, rank: Rank) -> Option<Arc<dyn FarMember>> {
        let pair = self.pairs.get(rank)?.clone()?;
        Some(pair)
    }

    fn leave(&self) {
        // A member that joins at this time either finds the pair over, or has opened it before.
        self.gate.leaves();
        self.pairs.iter().flatten().for_each(|pair| pair.leave());
        self.leaves.store(true, Ordering::Release);
        self.home.rouse();
        let limit = self.home.patience() + PARTING;
        let ended = self.ended.lock();
        let (ended, _) = self.changed.wait_timeout_while(ended, limit, |ended| !*ended);
        if !*ended {
            drop(ended);
            // The bridge's thread finds all pairs over.
            self.all().for_each(|pair| pair.hang_up());
            self.home.rouse();
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
