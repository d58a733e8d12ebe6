//! Hosts that come and go, as the first process keeps them: a state machine without input and
//! output, whose time is an argument.

use crate::error;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use upcall_message::Rank;

/// Time within which the processes of a host end that is to leave.
pub(crate) const TO_GO: Duration = Duration::from_secs(30);

/// Number of a request to add or to remove hosts.
pub(crate) type RequestNumber = u64;

/// A host of a request: the request, and its place there.
pub(crate) type RequestedHost = (RequestNumber, usize);

/// See the module. `A` is the receiver of the answer to a request.
#[derive(Debug)]
pub(crate) struct HostChanges<A> {
    coming: BTreeMap<usize, ComingHost>,
    /// Hosts whose processes are being ended.
    going: BTreeMap<usize, GoingHost>,
    /// Hosts that have not joined.
    failed: BTreeSet<usize>,
    requests: BTreeMap<RequestNumber, HostRequest<A>>,
    last: RequestNumber,
    /// Number of hosts that each process knows.
    known: BTreeMap<Rank, usize>,
    /// Processes of hosts that have joined, as they have reported themselves.
    here: BTreeSet<Rank>,
}

/// What becomes of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostState {
    /// It is part of the machine until it ends.
    Stays,
    /// It has begun to come, and is not part of the machine yet.
    Comes,
    /// Its processes are being ended, or do not end although they should.
    Goes,
    /// It has not joined. Some of its processes may not have ended yet.
    Failed,
}

#[derive(Debug)]
struct ComingHost {
    until: Instant,
    asked: Option<RequestedHost>,
}

#[derive(Debug, Default)]
struct GoingHost {
    /// When the requests have failed. `None`: they have. The host gets no tasks until it ends.
    until: Option<Instant>,
    asked: Vec<RequestedHost>,
}

#[derive(Debug)]
struct HostRequest<A> {
    asker: A,
    results: Vec<Option<i32>>,
}

/// A request with a result for each host: the host's number, or PVM's error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestDone<A> {
    pub(crate) asker: A,
    pub(crate) results: Vec<i32>,
}

impl<A> Default for HostChanges<A> {
    fn default() -> Self {
        Self {
            coming: BTreeMap::new(),
            going: BTreeMap::new(),
            failed: BTreeSet::new(),
            requests: BTreeMap::new(),
            last: 0,
            known: BTreeMap::new(),
            here: BTreeSet::new(),
        }
    }
}

impl<A> HostChanges<A> {
    /// Returns `true` if no host comes, and no request waits for one to go.
    pub(crate) fn is_quiet(&self) -> bool {
        self.coming.is_empty() && self.going.values().all(|one| one.until.is_none())
    }

    /// Begins a request for this number of hosts.
    pub(crate) fn request(&mut self, asker: A, count: usize) -> RequestNumber {
        self.last += 1;
        self.requests.insert(self.last, HostRequest { asker, results: vec![None; count] });
        self.last
    }

    /// Records the result for a host.
    pub(crate) fn result(&mut self, (request, at): RequestedHost, result: i32) {
        let results = self.requests.get_mut(&request).and_then(|one| one.results.get_mut(at));
        if let Some(place) = results {
            place.get_or_insert(result);
        }
    }

    /// A request that is done, which is answered once.
    pub(crate) fn next_done(&mut self) -> Option<RequestDone<A>> {
        let is_done = |one: &HostRequest<A>| one.results.iter().all(Option::is_some);
        let number = *self.requests.iter().find(|(_, one)| is_done(one))?.0;
        let HostRequest { asker, results } = self.requests.remove(&number)?;
        Some(RequestDone { asker, results: results.into_iter().flatten().collect() })
    }

    /// A host begins to come.
    pub(crate) fn comes(&mut self, host: usize, until: Instant, asked: Option<RequestedHost>) {
        self.coming.insert(host, ComingHost { until, asked });
    }

    /// What becomes of a host.
    pub(crate) fn state(&self, host: usize) -> HostState {
        match host {
            host if self.coming.contains_key(&host) => HostState::Comes,
            host if self.going.contains_key(&host) => HostState::Goes,
            host if self.failed.contains(&host) => HostState::Failed,
            _ => HostState::Stays,
        }
    }

    /// A host begins to go, or is to go once more.
    pub(crate) fn goes(&mut self, host: usize, until: Instant, asked: RequestedHost) {
        let going = self.going.entry(host).or_default();
        going.until = Some(until);
        going.asked.push(asked);
    }

    /// A process knows this number of hosts.
    pub(crate) fn knows(&mut self, rank: Rank, hosts: usize) {
        let known = self.known.entry(rank).or_default();
        *known = hosts.max(*known);
    }

    /// A process of a host that comes has reported itself.
    pub(crate) fn is_here(&mut self, rank: Rank) {
        self.here.insert(rank);
    }

    /// Takes a host that is complete: all its processes are here, and all processes know it.
    /// `ranks` are those of a host, and `others` those of all processes that have not ended, but
    /// the first one. `before` is the number of hosts at the start. Returns whether it was asked
    /// for.
    pub(crate) fn next_complete(
        &mut self,
        ranks: impl Fn(usize) -> std::ops::Range<Rank>,
        others: &[Rank],
        before: usize,
    ) -> Option<(usize, Option<RequestedHost>)> {
        let knows = |rank: &Rank, host: usize| {
            self.known.get(rank).copied().unwrap_or_default().max(before) > host
        };
        let is_complete = |host: &usize| {
            ranks(*host).all(|rank| self.here.contains(&rank))
                && others.iter().all(|rank| knows(rank, *host))
        };
        let host = self.coming.keys().copied().find(is_complete)?;
        let ComingHost { asked, .. } = self.coming.remove(&host)?;
        Some((host, asked))
    }

    /// A host does not join. Returns `true` if it was about to.
    pub(crate) fn does_not_come(&mut self, host: usize) -> bool {
        let Some(ComingHost { asked, .. }) = self.coming.remove(&host) else { return false };
        if let Some(asked) = asked {
            self.result(asked, error::CANT_START);
        }
        self.failed.insert(host);
        true
    }

    /// A host has left. Returns `true` if it was asked to go.
    pub(crate) fn has_gone(&mut self, host: usize) -> bool {
        let Some(GoingHost { asked, .. }) = self.going.remove(&host) else { return false };
        asked.into_iter().for_each(|asked| self.result(asked, error::OK));
        true
    }

    /// A host that should have joined by now.
    pub(crate) fn overdue(&self, now: Instant) -> Option<usize> {
        self.coming.iter().find(|(_, one)| one.until <= now).map(|(host, _)| *host)
    }

    /// A host that should have left by now. Its requests have failed, and it gets no more tasks.
    pub(crate) fn next_stubborn(&mut self, now: Instant) -> Option<usize> {
        let is_late = |one: &&mut GoingHost| one.until.is_some_and(|until| until <= now);
        let mut all = self.going.iter_mut().map(|(host, one)| (*host, one));
        let (host, going) = all.find(|(_, one)| is_late(one))?;
        going.until = None;
        let asked = std::mem::take(&mut going.asked);
        asked.into_iter().for_each(|asked| self.result(asked, error::HOST_FAIL));
        Some(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(host: usize) -> std::ops::Range<Rank> {
        [0..2, 2..3, 3..5][host].clone()
    }

    #[test]
    fn a_host_has_joined_when_all_of_it_is_here_and_all_know_it() {
        let (mut changes, now) = (HostChanges::default(), Instant::now());
        let request = changes.request("asker", 2);
        changes.result((request, 0), error::DUP_HOST);
        changes.comes(2, now + Duration::from_secs(60), Some((request, 1)));
        assert!(
            changes.state(2) == HostState::Comes
                && !changes.is_quiet()
                && changes.next_done().is_none()
        );
        let others = [1, 2, 3, 4];
        for (rank, hosts) in [(1, 3), (3, 3), (4, 3)] {
            changes.is_here(rank);
            changes.knows(rank, hosts);
            assert_eq!(changes.next_complete(ranks, &others, 2), None);
        }
        // A process that does not know it has ended.
        assert_eq!(changes.next_complete(ranks, &[1, 3, 4], 2), Some((2, Some((request, 1)))));
        changes.result((request, 1), 0xC_0000);
        let results = vec![error::DUP_HOST, 0xC_0000];
        assert_eq!(changes.next_done(), Some(RequestDone { asker: "asker", results }));
        assert!(changes.next_done().is_none() && changes.is_quiet());
    }

    #[test]
    fn a_host_that_does_not_come_or_go_in_time_has_failed() {
        let (mut changes, now) = (HostChanges::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        let request = changes.request(7, 3);
        changes.comes(1, later, Some((request, 0)));
        changes.goes(2, later, (request, 1));
        changes.goes(0, later, (request, 2));
        assert_eq!((changes.overdue(now), changes.next_stubborn(now)), (None, None));
        assert!(changes.has_gone(0) && !changes.has_gone(0) && changes.state(2) == HostState::Goes);
        assert_eq!((changes.overdue(later), changes.next_stubborn(later)), (Some(1), Some(2)));
        assert!(changes.does_not_come(1) && !changes.does_not_come(1));
        let states = [0, 1, 2].map(|host| changes.state(host));
        assert_eq!(states, [HostState::Stays, HostState::Failed, HostState::Goes]);
        assert!(changes.is_quiet() && changes.next_stubborn(later).is_none());
        let results = vec![error::CANT_START, error::HOST_FAIL, error::OK];
        assert_eq!(changes.next_done(), Some(RequestDone { asker: 7, results }));
        // It can be asked to go again, by several.
        let requests = [8, 9].map(|asker| changes.request(asker, 1));
        requests.into_iter().for_each(|one| changes.goes(2, later, (one, 0)));
        assert!(!changes.is_quiet() && changes.has_gone(2));
        for asker in [8, 9] {
            let results = vec![error::OK];
            assert_eq!(changes.next_done(), Some(RequestDone { asker, results }));
        }
        assert_eq!(changes.state(2), HostState::Stays);
    }
}
