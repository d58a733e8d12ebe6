//! How a member performs its script: it sends its blocks, and waits for the parts of others.
//!
//! # Restart
//! A call that ends with an error other than a loss leaves its operation underway: the parts that
//! are here, and the index of the first step that was not made. The next call begins with them.
//!
//! # Peer death
//! As in a barrier ([`barrier`](crate::barrier)): a member that waits for a dead one, or for one
//! that has given up, gives the operation up. It reports that to all members, because any of them
//! may wait for it in a later operation.

use crate::collectives::call::{Collective, CollectiveCall};
use crate::collectives::element::Element;
use crate::collectives::part::{BlockItems, CollectiveHead, CollectivePart, OutgoingPart};
use crate::collectives::plan::{self, BlockKey, PlanStep};
use crate::collectives::window::Underway;
use crate::error::{RunError, SendError};
use crate::kinds::COLLECTIVE;
use crate::link::Outward;
use crate::message::Kind;
use crate::proto::receiving::{self, Forgotten};
use crate::receiving::Driver;
use crate::sending::SendPath;
use crate::waiters::Wants;
use crate::{Event, Group, Rank};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Maximum time of one wait for room, in which nothing else is noticed.
const SLICE: Duration = Duration::from_millis(20);

/// A block that a member has.
enum KnownBlock<'a, T> {
    Own(&'a [T]),
    /// A block of a part, by its index there.
    Received(Rc<CollectivePart>, usize),
    Combined(Vec<T>),
}

impl<T: Element> KnownBlock<'_, T> {
    fn items(&self) -> BlockItems<'_, T> {
        match self {
            Self::Own(items) => BlockItems::Items(items),
            Self::Received(part, at) => BlockItems::Bytes(part.block(*at)),
            Self::Combined(items) => BlockItems::Items(items),
        }
    }
}

/// Number of items.
fn count<T: Element>(items: BlockItems<'_, T>) -> usize {
    match items {
        BlockItems::Items(items) => items.len(),
        BlockItems::Bytes(bytes) => bytes.len() / size_of::<T>(),
    }
}

/// Calls `with` for each item, with its index.
fn for_each<T: Element>(items: BlockItems<'_, T>, mut with: impl FnMut(usize, T)) {
    match items {
        BlockItems::Items(items) => {
            items.iter().enumerate().for_each(|(at, item)| with(at, *item));
        }
        BlockItems::Bytes(bytes) => {
            let items = bytes.chunks_exact(size_of::<T>()).enumerate();
            items.for_each(|(at, item)| with(at, T::get(item)));
        }
    }
}

fn no_memory<T>(items: usize) -> RunError {
    RunError::NoMemory { bytes: items.saturating_mul(size_of::<T>()) }
}

/// Replaces the contents of a vector.
fn copy_to<T: Element>(items: BlockItems<'_, T>, to: &mut Vec<T>) -> Result<(), RunError> {
    let count = count(items);
    to.clear();
    to.try_reserve_exact(count).map_err(|_| no_memory::<T>(count))?;
    for_each(items, |_, item| to.push(item));
    Ok(())
}

/// The blocks that a member has in an operation.
pub(crate) struct KnownBlocks<'a, T>(BTreeMap<BlockKey, KnownBlock<'a, T>>);

impl<'a, T: Element> KnownBlocks<'a, T> {
    pub(crate) fn own(blocks: impl IntoIterator<Item = (BlockKey, &'a [T])>) -> Self {
        Self(blocks.into_iter().map(|(key, items)| (key, KnownBlock::Own(items))).collect())
    }

    fn items(&self, key: BlockKey) -> BlockItems<'_, T> {
        self.0.get(&key).map_or(BlockItems::Items(&[]), KnownBlock::items)
    }

    /// Copies a block to a vector.
    pub(crate) fn copy(&self, key: BlockKey, to: &mut Vec<T>) -> Result<(), RunError> {
        copy_to(self.items(key), to)
    }

    /// Copies of blocks.
    pub(crate) fn copies(
        &self,
        keys: impl ExactSizeIterator<Item = BlockKey>,
    ) -> Result<Vec<Vec<T>>, RunError> {
        keys.map(|key| {
            let mut items = Vec::new();
            self.copy(key, &mut items).map(|()| items)
        })
        .collect()
    }

    /// Combines the blocks of the members from `key.0` to `key.1`, in the order of ranks.
    pub(crate) fn combine(
        &mut self,
        key: BlockKey,
        combine: &dyn Fn(T, T) -> T,
    ) -> Result<(), RunError> {
        if self.0.contains_key(&key) {
            return Ok(());
        }
        let mut combined = Vec::new();
        let mut next = key.0;
        while next <= key.1 {
            let mut from_here = self.0.range((next, next)..=(next, key.1));
            let Some(((_, last), block)) = from_here.next() else { break };
            if next == key.0 {
                copy_to(block.items(), &mut combined)?;
            } else {
                for_each(block.items(), |at, item| {
                    if let Some(value) = combined.get_mut(at) {
                        *value = combine(*value, item);
                    }
                });
            }
            next = last + 1;
        }
        self.0.insert(key, KnownBlock::Combined(combined));
        Ok(())
    }
}

/// Combines two items.
pub(crate) type Combine<'a, T> = Option<&'a dyn Fn(T, T) -> T>;

impl Group {
    /// Performs an operation with the blocks that this member has, and returns what `result` makes
    /// of the blocks in the end.
    pub(crate) fn perform<T: Element, R>(
        &self,
        (collective, root): (Collective, Rank),
        mut blocks: KnownBlocks<'_, T>,
        combine: Combine<'_, T>,
        result: impl FnOnce(&mut KnownBlocks<'_, T>) -> Result<R, RunError>,
    ) -> Result<R, RunError> {
        let size = self.size();
        assert!(root < size, "there is no member {root} in a group of {size}");
        if self.0.roster.grows {
            return Err(RunError::Growing);
        }
        let call = CollectiveCall { collective, item: T::NUMBER, root };
        let own = combine.and(blocks.0.values().next()).map(|own| count(own.items()));
        let underway = self.enter(call, own)?;
        self.0.collectives.runs.set(true);
        let _runs = RunsGuard(&self.0.collectives.runs);
        // A script without a wait also notices what the others do.
        self.poll();
        if let Some((rank, error)) = self.0.collectives.differs() {
            return Err(self.give_up(rank, error));
        }
        for (at, step) in underway.script.iter().enumerate() {
            match step {
                PlanStep::Receive { from, keys } => {
                    let part = self.await_part(&underway, *from)?;
                    self.check_part::<T>(&part, keys, call, own)?;
                    let received = part.keys().enumerate();
                    blocks.0.extend(
                        received.map(|(at, key)| (key, KnownBlock::Received(part.clone(), at))),
                    );
                }
                PlanStep::Send { to, keys } if at >= underway.next.get() => {
                    if let Some(combine) = combine {
                        keys.iter().try_for_each(|key| blocks.combine(*key, combine))?;
                    }
                    let head = CollectiveHead { number: underway.number, call };
                    let blocks = keys.iter().map(|key| (*key, blocks.items(*key))).collect();
                    self.send_part(*to, &OutgoingPart { head, blocks })?;
                }
                PlanStep::Send { .. } => {}
            }
            underway.next.set(underway.next.get().max(at + 1));
        }
        let result = result(&mut blocks)?;
        self.0.collectives.end();
        self.let_parts_go();
        Ok(result)
    }

    /// Enters an operation, or goes on with it.
    fn enter(&self, call: CollectiveCall, count: Option<usize>) -> Result<Rc<Underway>, RunError> {
        self.attend_if_there_is_news();
        if let Some((missed, error)) = self.never_comes(self.rank()) {
            return Err(self.give_up(missed, error));
        }
        let state = &self.0.collectives;
        let underway = state.underway.borrow().clone();
        let underway = match underway {
            Some(underway) if underway.call == call && !state.runs.get() => underway,
            Some(other) => {
                let there = format!("{}, which has not ended", other.call);
                let (rank, here) = (self.rank(), call.to_string());
                return Err(RunError::Mismatched { rank, here, there });
            }
            None => {
                let script = plan::script(call, &self.0.hosts, self.rank());
                let number = state.done.get() + 1;
                let underway =
                    Rc::new(Underway { number, call, script, count, next: Cell::new(0) });
                for from in state.enter(&underway) {
                    self.is_wrong(from, "a part that no member sends in this operation", call);
                }
                underway
            }
        };
        self.let_parts_go();
        Ok(underway)
    }

    /// Takes no more messages of a member whose part is wrong.
    fn is_wrong(&self, from: Rank, what: &str, call: CollectiveCall) {
        if let Some(inbound) = self.0.senders.of(from) {
            let what = format!("{what}: {call}");
            receiving::forget(&Driver(self), &inbound, Forgotten::Violation(what));
        }
    }

    /// Checks that a part has the blocks that the script names; in a reduction, also that they are
    /// of `own` items.
    fn check_part<T: Element>(
        &self,
        part: &CollectivePart,
        keys: &[BlockKey],
        call: CollectiveCall,
        own: Option<usize>,
    ) -> Result<(), RunError> {
        let from = part.from;
        if !part.keys().eq(keys.iter().copied()) {
            let what = "a part with other blocks than it sends in this operation";
            self.is_wrong(from, what, call);
            let lost = self.lost(from).unwrap_or(Event::Ended { rank: from });
            return Err(self.give_up(from, RunError::Lost(lost)));
        }
        let Some(own) = own else { return Ok(()) };
        let counts = (0..keys.len()).map(|at| count::<T>(BlockItems::Bytes(part.block(at))));
        match counts.into_iter().find(|count| *count != own) {
            None => Ok(()),
            Some(count) => {
                let shown = |count| format!("{call}, {count} items");
                let (here, there) = (shown(own), shown(count));
                Err(self.give_up(from, RunError::Mismatched { rank: from, here, there }))
            }
        }
    }

    /// Polls and waits until the part of a member is here.
    fn await_part(&self, underway: &Underway, from: Rank) -> Result<Rc<CollectivePart>, RunError> {
        let state = &self.0.collectives;
        let find = || state.part(underway.number, from);
        loop {
            let changes = self.changes();
            // A part that was sent before its sender's death counts.
            let never = self.never_comes(from);
            if let Some(part) = find() {
                return Ok(part);
            }
            if let Some((rank, error)) = state.differs() {
                return Err(self.give_up(rank, error));
            }
            if let Some((missed, error)) = never
                && !self.has_more_of(from)
            {
                return Err(self.give_up(missed, error));
            }
            state.lacks.set(None);
            if self.poll() > 0 || find().is_some() {
                continue;
            }
            if let Some(bytes) = state.lacks.get() {
                return Err(RunError::NoMemory { bytes });
            }
            match self.check_handlers(Some(from)) {
                Err(unhandled) if find().is_none() => return Err(unhandled),
                _ => {}
            }
            self.offer_reports()?;
            let limit = self.connect_to(from)?;
            self.wait_unless(limit, changes, Wants::Of(from), || {
                find().is_some()
                    || state.differs().is_some()
                    || self.never_comes(from).is_some()
                    || self.keeps_reports_back().is_some()
            });
            if self.is_interrupted() {
                return Err(RunError::Interrupted);
            }
        }
    }

    /// Connects to a member, if this one never has: only a connection shows that a living process
    /// has left the group. Returns the time after which to try again.
    pub(crate) fn connect_to(&self, from: Rank) -> Result<Option<Duration>, RunError> {
        let is_unopened =
            |link: &RefCell<Outward>| matches!(link.try_borrow().as_deref(), Ok(Outward::Unopened));
        if !is_unopened(&self.0.links[from]) {
            return Ok(None);
        }
        match self.way_to(from, |_| ()) {
            Ok(SendPath::Crowded) => Ok(Some(SLICE)),
            Err(SendError::Ended { .. }) => self.has_found_gone(from).map(|()| Some(SLICE)),
            // Without resources for that, the kernel still reports a death.
            Ok(SendPath::Open(())) | Err(_) => Ok(None),
        }
    }

    /// Returns `true` if a member has ended, and further messages that it has sent are here.
    fn has_more_of(&self, from: Rank) -> bool {
        let inbound = self.0.senders.of(from);
        inbound.is_some_and(|inbound| inbound.has_ended() && inbound.next().is_some())
    }

    /// Sends a part. While it waits for room, it notices that the operation never ends.
    fn send_part<T: Element>(&self, to: Rank, part: &OutgoingPart<'_, T>) -> Result<(), RunError> {
        loop {
            match self.send_within(to, Kind::at(COLLECTIVE), part, SLICE) {
                Ok(()) => return Ok(()),
                Err(SendError::Full | SendError::Overflow { .. } | SendError::LowMemory { .. }) => {
                }
                Err(SendError::Interrupted) => return Err(RunError::Interrupted),
                Err(SendError::Ended { .. } | SendError::Violation { .. }) => {
                    let lost = self.lost(to).unwrap_or(Event::Ended { rank: to });
                    return Err(self.give_up(to, RunError::Lost(lost)));
                }
                // No later call could send it.
                Err(error @ SendError::TooLong { .. }) => {
                    let error = RunError::Unsent { rank: to, why: error.to_string() };
                    return Err(self.give_up(self.rank(), error));
                }
                Err(error) => return Err(RunError::Unsent { rank: to, why: error.to_string() }),
            }
            if let Some((missed, error)) =
                self.never_comes(to).or_else(|| self.0.collectives.differs())
            {
                return Err(self.give_up(missed, error));
            }
            self.offer_reports()?;
            if self.is_interrupted() {
                return Err(RunError::Interrupted);
            }
        }
    }

    /// Ends all operations, because a member never comes.
    fn give_up(&self, missed: Rank, error: RunError) -> RunError {
        let error = self.is_missed(missed, error);
        self.0.collectives.give_up();
        self.let_parts_go();
        error
    }
}

/// Notes the end of a call, even if a handler or a combination panics.
struct RunsGuard<'a>(&'a Cell<bool>);

impl Drop for RunsGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
