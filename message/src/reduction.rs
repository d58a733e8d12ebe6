//! Values of all members made into one, which all get.
//!
//! By a binomial tree: values go up to member 0, combined on the way, and the result comes down. What goes up from a member stands for it and those after it, so values are combined in the order of ranks, and the way of combining need only be
//! associative. No member is at the next reduction before its
//! value for this one was used, so a word for each is enough.

use crate::error::RunError;
use crate::kinds::{Handlers, Kind};
use crate::{Group, Rank};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// What a member has heard from others, and has not used yet.
type Heard = Rc<RefCell<HashMap<Rank, u64>>>;

/// What a member knows of its reductions.
pub(crate) struct Reduction {
    value: Kind<u64>,
    heard: Heard,
}

impl fmt::Debug for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reduction").finish_non_exhaustive()
    }
}

impl Reduction {
    pub(crate) const KINDS: usize = 1;

    /// Registers its kind of messages, behind all others.
    pub(crate) fn new(handlers: &mut Handlers) -> Self {
        let (value, heard) = (handlers.own_kind("upcall:value"), Heard::default());
        let here = heard.clone();
        handlers.on(value, move |group, from, word| {
            // From nobody but those that this member hears of; honest ones say no more before this was used.
            if group.is_near(from) {
                here.borrow_mut().entry(from).or_insert(word);
            }
        });
        Self { value, heard }
    }
}

/// What can be reduced: a number that goes into a word.
pub trait Reducible: Copy {
    /// As a word.
    fn to_word(self) -> u64;
    /// From a word that was made so.
    fn from_word(word: u64) -> Self;
}

macro_rules! reducible {
    ($($type:ty: $to:expr, $from:expr;)*) => {$(
        impl Reducible for $type {
            fn to_word(self) -> u64 {
                ($to)(self)
            }
            fn from_word(word: u64) -> Self {
                ($from)(word)
            }
        }
    )*};
}

reducible! {
    u64: |value| value, |word| word;
    i64: |value| value as u64, |word| word as i64;
    u32: u64::from, |word| word as u32;
    f64: f64::to_bits, f64::from_bits;
}

impl Group {
    /// Combines a value of each member with `combine`, in the order of ranks, and gives the result to all. All members call it, with the same `combine`, which is to be associative. Takes two messages, and the time that they need to come, for each
    /// doubling of the group; runs the handlers of what comes meanwhile.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier).
    pub fn reduce<T: Reducible>(&self, value: T, combine: impl Fn(T, T) -> T) -> Result<T, RunError> {
        let (rank, reduction) = (self.rank(), &self.barriers().reduction);
        let mut combined = value;
        for child in self.children() {
            combined = combine(combined, T::from_word(self.hear_of(child)?));
        }
        if rank > 0 {
            let parent = rank & (rank - 1);
            self.tell(parent, reduction.value, &combined.to_word())?;
            combined = T::from_word(self.hear_of(parent)?);
        }
        for child in self.children() {
            self.tell(child, reduction.value, &combined.to_word())?;
        }
        Ok(combined)
    }

    /// Those below it in the tree, the next in rank first.
    fn children(&self) -> impl Iterator<Item = Rank> {
        let (rank, size) = (self.rank(), self.size());
        let steps = (0..usize::BITS).map(|bit| 1_usize << bit);
        steps.take_while(move |step| rank & step == 0 && rank + step < size).map(move |step| rank + step)
    }

    /// Whether a member is above or below this one in the tree.
    fn is_near(&self, other: Rank) -> bool {
        let rank = self.rank();
        rank > 0 && rank & (rank - 1) == other || self.children().any(|child| child == other)
    }

    fn hear_of(&self, member: Rank) -> Result<u64, RunError> {
        let heard = &self.barriers().reduction.heard;
        loop {
            let word = heard.borrow_mut().remove(&member);
            if let Some(word) = word {
                return Ok(word);
            }
            self.await_of(member, || heard.borrow().contains_key(&member))?;
        }
    }
}
