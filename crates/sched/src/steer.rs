//! Decides which servers poll, where not all servers of a client can.
//!
//! Source: LRPC, section 3.4: the kernel counts how often a processor that idles in a domain was
//! needed, and prods idle processors to spin in the domains with the most activity. Here there is
//! no kernel between, and servers do not know of each other; only their client sees all of them. So
//! each client counts its calls to each server. The servers that it calls most may poll on CPUs of
//! their own, as many servers as there are CPUs besides the client's. Each request to another
//! server asks that server to rest when it has answered. Such a server is called by hand-off on the
//! caller's CPU, which costs some microseconds; several servers that spin on one CPU take it from
//! each other for milliseconds.
//!
//! Counting takes no atomic operation that others see: each lane counts for itself, and hands in
//! [`STRIDE`] calls at once, if there are several servers. The lane that hands in decides again, if
//! [`BETWEEN`] has passed. No other lane waits for that.
//!
//! A server that lies about its CPUs makes the servers of its own clients poll as if there were no
//! steering, and does no other harm.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use upcall_os::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use upcall_os::lock::KernelMutex;

/// Number of calls that a lane counts before it hands them in.
const STRIDE: u32 = 256;

/// Minimum time between two decisions: many times the cost of a server's move, and enough for so
/// many calls that those that lanes have not handed in do not matter.
const BETWEEN: Duration = Duration::from_millis(20);

/// How much more often another server must be called before it polls in place of this one, in
/// quarters: the change costs both a move.
const MORE: u64 = 6;

/// A client's record of the calls to one of its servers.
#[derive(Debug)]
pub(crate) struct Attention {
    calls: AtomicU64,
    /// Number of CPUs on which the server may run, as it reports.
    places: AtomicU32,
    polls: AtomicBool,
}

struct Servers {
    known: Vec<KnownServer>,
    decided: Option<Instant>,
}

struct KnownServer {
    attention: Weak<Attention>,
    /// Number of calls that the last decision saw, and a decaying sum of the calls per decision.
    seen: u64,
    lately: u64,
}

impl KnownServer {
    /// Updates the recent calls. Returns `false` if the client has left the server.
    fn look(&mut self) -> bool {
        let Some(attention) = self.attention.upgrade() else { return false };
        let calls = attention.calls.load(Relaxed);
        self.lately = self.lately * 3 / 4 + (calls - self.seen);
        self.seen = calls;
        true
    }
}

/// Set if there are several servers. With one there is nothing to decide, and no lane writes what
/// another lane reads.
static SEVERAL: AtomicBool = AtomicBool::new(false);

static SERVERS: KernelMutex<Servers> =
    KernelMutex::new(Servers { known: Vec::new(), decided: None });

impl Attention {
    /// Creates the record of a server that was not called yet.
    pub(crate) fn new(places: u32) -> Arc<Self> {
        let attention = Arc::new(Self {
            calls: AtomicU64::new(0),
            places: AtomicU32::new(places),
            polls: AtomicBool::new(false),
        });
        let mut servers = SERVERS.lock();
        servers.known.push(KnownServer {
            attention: Arc::downgrade(&attention),
            seen: 0,
            lately: 0,
        });
        servers.decide();
        attention
    }

    /// Returns `true` if the server is to rest when it has answered, rather than poll for the next
    /// call.
    #[inline]
    pub(crate) fn rests(&self) -> bool {
        !self.polls.load(Relaxed)
    }

    /// Stores only a change: all lanes read it with each call.
    fn shall_poll(&self, polls: bool) {
        if self.polls.load(Relaxed) != polls {
            self.polls.store(polls, Relaxed);
        }
    }

    /// Counts one more call by a lane that has `uncounted` calls to hand in.
    #[inline]
    pub(crate) fn count(&self, uncounted: &mut u32, places: impl FnOnce() -> u32) {
        *uncounted += 1;
        if *uncounted == STRIDE {
            *uncounted = 0;
            self.hand_in(places());
        }
    }

    #[cold]
    fn hand_in(&self, places: u32) {
        if !SEVERAL.load(Relaxed) {
            return;
        }
        self.calls.fetch_add(STRIDE.into(), Relaxed);
        self.places.store(places, Relaxed);
        // Another lane decides, and sees these calls at its next decision.
        let Some(mut servers) = SERVERS.try_lock() else { return };
        let now = Instant::now();
        if servers.decided.is_none_or(|decided| now.saturating_duration_since(decided) >= BETWEEN) {
            servers.decided = Some(now);
            servers.decide();
        }
    }
}

impl Servers {
    fn decide(&mut self) {
        self.known.retain_mut(KnownServer::look);
        SEVERAL.store(self.known.len() > 1, Relaxed);
        if let [one] = &*self.known {
            return one
                .attention
                .upgrade()
                .into_iter()
                .for_each(|attention| attention.shall_poll(true));
        }
        let there: Vec<_> = self
            .known
            .iter()
            .filter_map(|known| Some((known.lately, known.attention.upgrade()?)))
            .collect();
        let places =
            there.iter().map(|(_, attention)| attention.places.load(Relaxed)).max().unwrap_or(0);
        let calls: Vec<_> = there
            .iter()
            .map(|(lately, attention)| (*lately, attention.polls.load(Relaxed)))
            .collect();
        for ((_, attention), polls) in there.iter().zip(who_polls(&calls, spare(places))) {
            attention.shall_poll(polls);
        }
    }
}

/// Number of servers that may poll, if each may run on at most `places` CPUs: one of these is the
/// client's. A server that may run on one CPU only is assumed to have it for itself.
fn spare(places: u32) -> usize {
    places.saturating_sub(1).max(1) as usize
}

/// Decides which servers poll, given the recent calls of each and whether it polls now.
fn who_polls(calls: &[(u64, bool)], spare: usize) -> Vec<bool> {
    let mut by_calls: Vec<usize> = (0..calls.len()).collect();
    let weight = |&(lately, polled): &(u64, bool)| {
        (lately.saturating_mul(if polled { MORE } else { 4 }), polled)
    };
    by_calls.sort_by_key(|&at| std::cmp::Reverse(weight(&calls[at])));
    let mut polls = vec![false; calls.len()];
    by_calls.into_iter().take(spare).for_each(|at| polls[at] = true);
    polls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_called_poll() {
        assert_eq!(who_polls(&[(5, false), (9, false), (7, false)], 1), [false, true, false]);
        assert_eq!(who_polls(&[(5, false), (9, false), (7, false)], 2), [false, true, true]);
        assert_eq!(who_polls(&[(0, false)], 1), [true]);
        assert!(who_polls(&[], 3).is_empty());
    }

    #[test]
    fn who_polls_keeps_it_until_another_is_called_much_more() {
        assert_eq!(who_polls(&[(100, true), (149, false)], 1), [true, false]);
        assert_eq!(who_polls(&[(100, true), (151, false)], 1), [false, true]);
        // Without calls all stays as it is.
        assert_eq!(who_polls(&[(0, false), (0, true), (0, false)], 1), [false, true, false]);
    }

    #[test]
    fn one_place_is_the_clients() {
        assert_eq!([0, 1, 2, 3, 64].map(spare), [1, 1, 1, 2, 63]);
    }
}
