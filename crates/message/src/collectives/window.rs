//! Which parts of collective operations a member takes in, and what it keeps of them.
//!
//! A member can be ahead of another one: the root of a broadcast does not wait for its receivers.
//! So parts arrive before the operation that needs them is called. A short part of the next two
//! operations is taken in at once, so that other messages behind it are not held back. Any other
//! early part is *held*: it stays the next message of its sender's queue, where it counts as the
//! sender's memory, until this member comes to that operation. So early parts of each sender take
//! at most two times [`EARLY`] bytes here, and a sender that runs ahead is stopped by its own share
//! of what the group may buffer.
//!
//! Once an operation was entered, its script says who sends a part, and that part is taken in at
//! any size. Each sender has one part for each operation.

use crate::Rank;
use crate::collectives::call::CollectiveCall;
use crate::collectives::part::{CollectiveHead, CollectivePart, DESCRIPTION, HEAD};
use crate::collectives::plan::PlanStep;
use crate::error::RunError;
use crate::inbound::Inbound;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// Maximum size of a part that is taken in before its operation was entered, in bytes.
pub(crate) const EARLY: usize = 64 << 10;

/// What to do with a part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PartFate {
    /// It is taken in. Its operation was entered.
    Take,
    /// It is taken in if there is memory, and held otherwise.
    TakeEarly,
    /// It is held until an operation is entered or ends.
    Hold,
    /// It is not needed any more.
    Drop,
    /// Its sender calls another operation than this member, which has called this one; `None` if
    /// that is long ago.
    Differs { here: Option<CollectiveCall> },
    /// Its sender calls a reduction of longer vectors than this member.
    Longer,
    /// Its sender breaks the protocol.
    Violates(&'static str),
}

/// What a member knows when a part arrives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// Number of operations that have ended here.
    pub(crate) done: u64,
    /// The last of them.
    pub(crate) last: Option<CollectiveCall>,
    /// The operation that was entered.
    pub(crate) entered: Option<CollectiveCall>,
    /// Maximum size of this sender's part in that operation, in bytes; `None` if the script has
    /// none.
    pub(crate) most: Option<usize>,
    /// Set if a part of this sender is there for the same operation.
    pub(crate) has: bool,
    /// Set if a member is missing: no operation ends any more.
    pub(crate) is_over: bool,
}

impl Window {
    /// Decides about a part of `bytes` bytes.
    pub(crate) fn judge(&self, head: CollectiveHead, bytes: usize) -> PartFate {
        let ahead = head.number.saturating_sub(self.done);
        if self.is_over {
            return PartFate::Drop;
        }
        if ahead == 0 {
            // An operation ends here only after all its parts for this member have arrived.
            let is_last = head.number == self.done;
            return match self.last.filter(|_| is_last) {
                Some(here) if here == head.call => {
                    PartFate::Violates("a part of an operation that has ended here")
                }
                here => PartFate::Differs { here },
            };
        }
        if self.has {
            return PartFate::Violates("a second part of one operation");
        }
        match self.entered {
            Some(here) if ahead == 1 && here != head.call => PartFate::Differs { here: Some(here) },
            Some(_) if ahead == 1 && self.most.is_none() => {
                PartFate::Violates("a part that no member sends in this operation")
            }
            Some(_) if ahead == 1 && self.most < Some(bytes) => PartFate::Longer,
            Some(_) if ahead == 1 => PartFate::Take,
            _ if ahead <= 2 && bytes <= EARLY => PartFate::TakeEarly,
            _ => PartFate::Hold,
        }
    }
}

/// An operation that was entered, and its progress.
#[derive(Debug)]
pub(crate) struct Underway {
    pub(crate) number: u64,
    pub(crate) call: CollectiveCall,
    pub(crate) script: Vec<PlanStep>,
    /// Number of items of each block in a reduction.
    pub(crate) count: Option<usize>,
    /// Index of the first step that was not made. A call that ends with an error leaves it there
    /// for the next call.
    pub(crate) next: Cell<usize>,
}

impl Underway {
    /// Maximum size of a member's part, in bytes; `None` if the script has none.
    pub(crate) fn most(&self, from: Rank) -> Option<usize> {
        let blocks = self.script.iter().find_map(|step| match step {
            PlanStep::Receive { from: of, keys } if *of == from => Some(keys.len()),
            _ => None,
        })?;
        let Some(count) = self.count else { return Some(usize::MAX) };
        let block = count.saturating_mul(self.call.width()).saturating_add(DESCRIPTION);
        Some(blocks.saturating_mul(block).saturating_add(HEAD))
    }
}

/// The state of a member's collective operations.
#[derive(Default)]
pub(crate) struct CollectiveState {
    pub(crate) done: Cell<u64>,
    pub(crate) last: Cell<Option<CollectiveCall>>,
    pub(crate) underway: RefCell<Option<Rc<Underway>>>,
    /// Set while a call runs.
    pub(crate) runs: Cell<bool>,
    /// By operation and sender.
    parts: RefCell<BTreeMap<(u64, Rank), Rc<CollectivePart>>>,
    /// Senders whose next message is a part that is held.
    held: RefCell<Vec<Rc<Inbound>>>,
    /// A member that calls another operation, and this member's error about it.
    differs: RefCell<Option<(Rank, RunError)>>,
    /// Size of a part for which there was no memory, in bytes.
    pub(crate) lacks: Cell<Option<usize>>,
}

impl fmt::Debug for CollectiveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} collective operations", self.done.get())
    }
}

impl CollectiveState {
    /// Returns `true` if this member has ever called an operation.
    pub(crate) fn is_used(&self) -> bool {
        self.done.get() > 0 || self.underway.borrow().is_some()
    }

    /// What is known when a part of `from` arrives.
    pub(crate) fn window(&self, from: Rank, number: u64, is_over: bool) -> Window {
        let underway = self.underway.borrow();
        Window {
            done: self.done.get(),
            last: self.last.get(),
            entered: underway.as_ref().map(|underway| underway.call),
            most: underway.as_ref().and_then(|underway| underway.most(from)),
            has: self.parts.borrow().contains_key(&(number, from)),
            is_over,
        }
    }

    pub(crate) fn keep(&self, number: u64, part: CollectivePart) {
        self.parts.borrow_mut().insert((number, part.from), Rc::new(part));
    }

    /// The part of a sender, if it is here.
    pub(crate) fn part(&self, number: u64, from: Rank) -> Option<Rc<CollectivePart>> {
        self.parts.borrow().get(&(number, from)).cloned()
    }

    /// Holds the next message of a sender.
    pub(crate) fn hold(&self, inbound: &Rc<Inbound>) {
        inbound.hold();
        self.held.borrow_mut().push(inbound.clone());
    }

    /// The senders whose parts are held; they are forgotten here.
    pub(crate) fn take_held(&self) -> Vec<Rc<Inbound>> {
        self.held.take()
    }

    pub(crate) fn differs(&self) -> Option<(Rank, RunError)> {
        self.differs.borrow().clone()
    }

    /// Notes that a member calls another operation; the first one counts.
    pub(crate) fn differ(&self, rank: Rank, here: Option<CollectiveCall>, there: CollectiveCall) {
        let here = here.map_or("another operation before".into(), |here| here.to_string());
        self.mismatch(rank, here, there.to_string());
    }

    /// Notes that a member calls a reduction of longer vectors.
    pub(crate) fn longer(&self, rank: Rank, call: CollectiveCall) {
        let underway = self.underway.borrow();
        let count = underway.as_ref().and_then(|underway| underway.count).unwrap_or_default();
        let here = format!("{call}, {count} items");
        self.mismatch(rank, here, format!("{call}, more than {count} items"));
    }

    fn mismatch(&self, rank: Rank, here: String, there: String) {
        let error = RunError::Mismatched { rank, here, there };
        self.differs.borrow_mut().get_or_insert((rank, error));
    }

    /// Enters an operation. Returns the senders of early parts that its script does not have.
    pub(crate) fn enter(&self, underway: &Rc<Underway>) -> Vec<Rank> {
        *self.underway.borrow_mut() = Some(underway.clone());
        let mut unexpected = Vec::new();
        let parts = self.parts.borrow();
        for ((_, from), part) in parts.range((underway.number, 0)..=(underway.number, Rank::MAX)) {
            if part.call != underway.call {
                self.differ(*from, Some(underway.call), part.call);
            } else if underway.most(*from).is_none() {
                unexpected.push(*from);
            }
        }
        unexpected
    }

    /// Ends the operation that was entered.
    pub(crate) fn end(&self) {
        if let Some(underway) = self.underway.take() {
            self.done.set(underway.number);
            self.last.set(Some(underway.call));
            self.parts.borrow_mut().retain(|(number, _), _| *number > underway.number);
        }
    }

    /// Drops all parts: no operation ends any more.
    pub(crate) fn give_up(&self) {
        self.underway.take();
        self.parts.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Number;
    use crate::collectives::call::Collective;

    const CALL: CollectiveCall =
        CollectiveCall { collective: Collective::Gather, item: Number::U64, root: 0 };
    const OTHER: CollectiveCall = CollectiveCall { collective: Collective::Broadcast, ..CALL };

    fn judged(window: Window, number: u64, bytes: usize) -> PartFate {
        window.judge(CollectiveHead { number, call: CALL }, bytes)
    }

    #[test]
    fn a_part_waits_for_its_operation() {
        let window = Window { done: 7, last: Some(OTHER), ..Window::default() };
        assert_eq!(judged(window, 8, EARLY), PartFate::TakeEarly);
        assert_eq!(judged(window, 9, EARLY), PartFate::TakeEarly);
        for (number, bytes) in [(8, EARLY + 1), (9, EARLY + 1), (10, 0), (u64::MAX, 0)] {
            assert_eq!(judged(window, number, bytes), PartFate::Hold);
        }
        let entered = Window { entered: Some(CALL), most: Some(EARLY * 2), ..window };
        assert_eq!(judged(entered, 8, EARLY * 2), PartFate::Take);
        assert_eq!(judged(entered, 8, EARLY * 2 + 1), PartFate::Longer);
        assert_eq!(judged(entered, 9, EARLY), PartFate::TakeEarly);
        assert_eq!(judged(entered, 9, EARLY + 1), PartFate::Hold);
        assert_eq!(judged(entered, 10, 0), PartFate::Hold);
    }

    #[test]
    fn a_part_that_cannot_be_is_a_violation() {
        let window = Window { done: 7, last: Some(CALL), ..Window::default() };
        assert!(matches!(judged(window, 7, 0), PartFate::Violates(_)));
        let second = Window { has: true, entered: Some(CALL), most: Some(usize::MAX), ..window };
        for number in [7, 8, 9, u64::MAX] {
            assert!(matches!(judged(second, number, 0), PartFate::Violates(_)), "{number}");
        }
        let unexpected = Window { entered: Some(CALL), ..window };
        assert!(matches!(judged(unexpected, 8, 0), PartFate::Violates(_)));
        assert_eq!(judged(Window { is_over: true, ..second }, 1, 0), PartFate::Drop);
    }

    #[test]
    fn another_call_is_noticed_before_and_after_the_operation() {
        let window = Window { done: 7, last: Some(OTHER), ..Window::default() };
        assert_eq!(judged(window, 7, 0), PartFate::Differs { here: Some(OTHER) });
        assert_eq!(judged(window, 6, 0), PartFate::Differs { here: None });
        let entered = Window { entered: Some(OTHER), most: Some(usize::MAX), ..window };
        assert_eq!(judged(entered, 8, 0), PartFate::Differs { here: Some(OTHER) });
        assert_eq!(judged(entered, 9, 0), PartFate::TakeEarly);
    }
}
