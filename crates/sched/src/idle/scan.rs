//! The probes of one virtual processor: which lanes it probes, in which order, and how it came to
//! what it found.

use super::own::is_asleep;
use super::posts::{Attending, LOOKS};
use super::stacks::StackHeadroom;
use crate::calls::VpLane;
use crate::domain::Domain;
use crate::look;
use crate::poller::{Poller, StackSupply};
use crate::server::{ChannelOwner, ServerLane};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use upcall_shm::tally::Arrival;
use upcall_thread::{Found, Vp};

/// Number of fruitless probes in a row after which the lanes of other processors are probed too,
/// and again after as many. A processor that finds something now and then probes them every
/// [`BUSY_BETWEEN`] times, some 100 µs.
const QUIET_BETWEEN: u32 = 64;
const BUSY_BETWEEN: u32 = 1024;

/// Number of requests after which a processor checks whether more requests wait, and wakes another
/// processor of the server to help.
const FOUND_BETWEEN: u32 = 64;

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundWork {
    /// A request, in this lane.
    Call(usize),
    /// Messages.
    Messages,
}

/// What the last probe found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LastProbe {
    /// Something.
    #[default]
    Found,
    /// Nothing.
    Nothing,
}

/// How often a virtual processor probes before it returns to its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Once.
    Once,
    /// Several times in a row: the detour through the scheduler takes longer than a probe.
    Several,
}

/// What a probe needs.
pub(super) struct Probe<'a> {
    pub(super) domain: &'a Domain,
    pub(super) vp: &'a Vp,
    /// The rule for which requests get a stack.
    pub(super) stacks: StackHeadroom,
}

/// The lanes and groups that one virtual processor probes.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) generation: u64,
    /// The number of this processor in the domain.
    pub(super) me: Option<usize>,
    /// Its own lanes come first, then those of each other processor.
    pub(super) lanes: Rc<Vec<Arc<ServerLane>>>,
    pub(super) own: usize,
    others: Vec<(usize, Range<usize>)>,
    /// The lanes through which it calls.
    pub(super) vp_lanes: Rc<Vec<Arc<VpLane>>>,
    pub(super) attending: Attending,
    /// Number of probes of others' lanes: in all, and since the last that found something.
    probes: u32,
    in_vain: u32,
    /// Number of requests that were found.
    requests: u32,
    /// Where the next probe begins, and where the last one found a request.
    pub(super) next: usize,
    /// How it came to that request.
    pub(super) came: Arrival,
    /// The lane that was served last, and how the processor comes to a request there that the next
    /// probe finds.
    pub(super) left: (usize, Arrival),
    /// Set if it slept since the last probe.
    pub(super) slept: bool,
    last: LastProbe,
    pub(super) stacks: StackSupply,
}

impl Scan {
    /// Probes these lanes from now on, each with the number of the processor that it belongs to.
    /// `me` is this processor, `others` are those whose lanes it probes too.
    #[cold]
    pub(super) fn set_lanes(
        &mut self,
        me: Option<usize>,
        mut lanes: Vec<(Option<usize>, Arc<ServerLane>)>,
        others: Vec<usize>,
    ) {
        self.me = me;
        lanes.sort_by_key(|(owner, _)| (*owner != me, *owner));
        let of = |whose| lanes.iter().filter(|(owner, _)| *owner == whose).count();
        self.own = of(me);
        let mut from = self.own;
        self.others.clear();
        for other in others {
            let count = of(Some(other));
            self.others.push((other, from..from + count));
            from += count;
        }
        self.lanes = Rc::new(lanes.into_iter().map(|(_, lane)| lane).collect());
    }

    /// Makes the checks of callers that are owed: other processors may own these lanes from now on,
    /// and do not know about them.
    pub(super) fn pay_looks(&self) {
        self.lanes[..self.own].iter().for_each(|lane| lane.look());
    }

    /// Probes once for work that needs a thread. Calls and messages take turns. If threads `woke`
    /// already, and only calls are probed, the threads come first (URPC, section 2).
    #[inline]
    pub(super) fn find_work(
        &mut self,
        probe: &Probe<'_>,
        poller: &mut Poller,
        woke: &mut bool,
    ) -> Option<FoundWork> {
        if !self.attending.posts.is_empty() {
            return self.find_any(probe, poller, woke);
        }
        if *woke && self.lanes.is_empty() {
            None
        } else {
            self.find_request(probe, poller).map(FoundWork::Call)
        }
    }

    fn find_any(
        &mut self,
        probe: &Probe<'_>,
        poller: &mut Poller,
        woke: &mut bool,
    ) -> Option<FoundWork> {
        let vp = probe.vp;
        let messages_first = std::mem::take(&mut self.attending.first);
        let mut messages = |scan: &mut Self| {
            let alone = scan.effort(vp) == Effort::Several && scan.lanes.is_empty();
            let found = scan.attending.look(|| vp.has_stack() && vp.can_begin_work(), alone);
            *woke |= found == Found::Woke;
            (found == Found::Work).then_some(FoundWork::Messages)
        };
        if messages_first && let Some(found) = messages(self) {
            return Some(found);
        }
        if let Some(lane) = self.find_request(probe, poller) {
            self.attending.first = true;
            return Some(FoundWork::Call(lane));
        }
        if messages_first { None } else { messages(self) }
    }

    #[inline]
    fn effort(&self, vp: &Vp) -> Effort {
        match self.last {
            LastProbe::Nothing if vp.is_idle() => Effort::Several,
            _ => Effort::Once,
        }
    }

    /// Probes once for a lane with a request. Records how the processor came to that request.
    #[inline]
    fn find_request(&mut self, probe: &Probe<'_>, poller: &mut Poller) -> Option<usize> {
        let (slept, before) = (std::mem::take(&mut self.slept), self.stacks);
        let found = self.find(probe, poller, slept);
        if let Some(at) = found {
            self.came = self.came(probe.domain, at, (slept, before), poller.donor());
        }
        found
    }

    /// Records what the whole probe found.
    #[inline]
    pub(super) fn probed(&mut self, found: LastProbe) {
        self.last = found;
        if found == LastProbe::Found {
            self.in_vain = 0;
        }
    }

    /// What the last probe found.
    #[inline]
    pub(super) fn last(&self) -> LastProbe {
        self.last
    }

    /// Returns how the processor came to the request in lane `at`: by the first probe after it
    /// `slept`, after a shortage of stacks, or otherwise.
    #[inline]
    fn came(
        &self,
        domain: &Domain,
        at: usize,
        (slept, stacks): (bool, StackSupply),
        donor: Option<usize>,
    ) -> Arrival {
        if stacks == StackSupply::Short {
            return Arrival::Wait;
        }
        if slept {
            // A virtual processor decides to give its CPU after it has sent the request (see
            // `park`). A kernel thread marks the request itself.
            return if donor == Some(at) { Arrival::HandOff } else { Arrival::Wake };
        }
        // Found by the first probe after the processor did something else.
        if self.last == LastProbe::Found {
            return if self.left.0 == at { self.left.1 } else { Arrival::Wait };
        }
        // The owner of the lane has not probed for a while.
        let busy = |(other, lanes): &(usize, Range<usize>)| {
            lanes.contains(&at) && !is_asleep(domain, *other)
        };
        if at >= self.own && self.others.iter().any(busy) { Arrival::Wait } else { Arrival::Spin }
    }

    /// Returns a lane with a request; the probe begins behind the last one served.
    ///
    /// If stacks run low, a request that the rule passes over makes the supply short. A processor
    /// that has just `slept` probes the lanes of all.
    fn find(&mut self, probe: &Probe<'_>, poller: &mut Poller, slept: bool) -> Option<usize> {
        self.stacks = StackSupply::Enough;
        if probe.stacks != StackHeadroom::Many {
            return self.find_among(probe.stacks);
        }
        if let Some(donors) = poller.take_donors(|lane| self.lanes[lane].waits()) {
            return Some(donors);
        }
        let (before, from) = self.lanes[..self.own].split_at(self.next.min(self.own));
        let several = self.effort(probe.vp) == Effort::Several && self.own > 0;
        let probes = if several { LOOKS } else { 1 };
        for _ in 0..probes {
            if let Some(at) = from.iter().position(|lane| lane.waits()) {
                return Some(before.len() + at);
            }
            if let Some(at) = before.iter().position(|lane| lane.waits()) {
                return Some(at);
            }
            if probes > 1 {
                look::again();
            }
        }
        if self.others.is_empty() { None } else { self.find_of_others(probe.domain, slept) }
    }

    /// Like [`find`](Self::find) when stacks run low. It checks more than whether a request waits,
    /// but the processor then has little else to do.
    #[cold]
    fn find_among(&mut self, stacks: StackHeadroom) -> Option<usize> {
        let first = self.next.min(self.lanes.len());
        let mut waiting = (first..self.lanes.len())
            .chain(0..first)
            .filter(|&at| self.lanes[at].waits())
            .peekable();
        let any = waiting.peek().is_some();
        let found = waiting.find(|&at| stacks.allow(|| self.calls_beside(at)));
        if any && found.is_none() {
            self.stacks = StackSupply::Short;
        }
        found
    }

    /// Number of calls under way of the client that lane `at` belongs to, and of the client's user
    /// if the user is bounded.
    #[cold]
    fn calls_beside(&self, at: usize) -> [usize; 2] {
        let ChannelOwner { client, user } = self.lanes[at].owner();
        let calls = |is_meant: &dyn Fn(ChannelOwner) -> bool| {
            let meant = self.lanes.iter().filter(|lane| is_meant(lane.owner()));
            meant.map(|lane| lane.calls()).sum()
        };
        let of_user = if user.is_none() { 0 } else { calls(&|owner| owner.user == user) };
        [calls(&|owner| owner.client == client), of_user]
    }

    /// Returns `true` if another processor is to help, because more calls wait in this processor's
    /// lanes than the one in lane `found`. Checked every [`FOUND_BETWEEN`] requests.
    #[inline]
    pub(super) fn wants_help(&mut self, found: usize) -> bool {
        if self.others.is_empty() {
            return false;
        }
        self.requests = self.requests.wrapping_add(1);
        let mut others = (0..self.own).filter(|&at| at != found);
        self.requests.is_multiple_of(FOUND_BETWEEN) && others.any(|at| self.lanes[at].waits())
    }

    fn find_of_others(&mut self, domain: &Domain, slept: bool) -> Option<usize> {
        (self.probes, self.in_vain) = (self.probes.wrapping_add(1), self.in_vain.wrapping_add(1));
        let all = slept
            || self.in_vain.is_multiple_of(QUIET_BETWEEN)
            || self.probes.is_multiple_of(BUSY_BETWEEN);
        let mut probed = self
            .others
            .iter()
            .filter(|&&(other, _)| all || is_asleep(domain, other))
            .flat_map(|(_, lanes)| lanes.clone());
        probed.find(|&at| self.lanes[at].waits())
    }

    /// Returns `true` if it serves one caller, has no calls of its own, and receives no messages.
    pub(super) fn has_one_caller(&self) -> bool {
        self.lanes.len() == 1
            && self.vp_lanes.is_empty()
            && self.others.is_empty()
            && self.attending.posts.is_empty()
    }

    /// The sleeper's second probe. If stacks are short, waiting requests that the rule does not
    /// allow are passed over again.
    pub(super) fn waits(&self, stacks: impl FnOnce() -> StackHeadroom) -> bool {
        let rule = match self.stacks {
            StackSupply::Enough => StackHeadroom::Many,
            StackSupply::Short => stacks(),
        };
        let is_found = |at: usize| self.lanes[at].waits() && rule.allow(|| self.calls_beside(at));
        let calls =
            self.vp_lanes.iter().any(|lane| lane.waits()) || (0..self.lanes.len()).any(is_found);
        calls || self.attending.waits()
    }

    /// Returns `true` if any lane has a request.
    pub(super) fn has_request(&self) -> bool {
        self.lanes.iter().any(|lane| lane.waits())
    }
}
