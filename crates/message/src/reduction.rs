//! Reductions: a value of each member is combined into one, and all members get the result.
//!
//! By a binomial tree: values go up to member 0, combined on the way, and the result comes down. A
//! value that goes up stands for its member and those after it, so values are combined in the order
//! of ranks, and the combination only has to be associative.
//!
//! On several hosts whose ranks follow each other, the tree is one of hosts, with a tree of members
//! on each: one value crosses to each host, and one back. Where the ranks of a host do not follow
//! each other, its values cannot be combined before they cross, so the tree stays as on one host.
//!
//! A value is a word that its sender writes in place ([`steps`](upcall_shm::steps)). No member
//! comes to the next reduction before its value for this one was used: a parent uses the values of
//! its children before the result comes down, and a child uses the result before its next value
//! goes up.
//!
//! # Restart
//! A reduction that ends with an error, other than a loss, goes on with the next call. What has
//! been reported stands: the value that went up, and the result, after which the children's words
//! may belong to the next reduction.

use crate::collectives::hosts::{self, TreePlace};
use crate::error::RunError;
use crate::{Group, Rank};

/// A number that fits into a word, and so can be reduced.
pub trait Reducible: Copy {
    /// Converts the number to a word.
    fn to_word(self) -> u64;
    /// Converts back a word that [`to_word`](Self::to_word) returned.
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
    /// Combines a value of each member, in the order of ranks. All members get the result.
    ///
    /// All members call it with the same `combine`, which must be associative. Takes two words, and
    /// their travel time, for each doubling of the group. Runs the handlers of the messages that
    /// arrive.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier). When the next call goes on with the same reduction, a value
    /// that has been used already stands.
    ///
    /// # Blocking
    /// As [`barrier`](Self::barrier).
    pub fn reduce<T: Reducible>(
        &self,
        value: T,
        combine: impl Fn(T, T) -> T,
    ) -> Result<T, RunError> {
        self.check_missing()?;
        let reduction = &self.barriers().reduction;
        let number = reduction.done.get() + 1;
        let result = match reduction.result.get() {
            Some(result) => result,
            None => self.result(number, value, combine)?,
        };
        reduction.result.set(Some(result));
        for child in self.children() {
            self.report(child, child, |link| link.steps.report_value(number, result, link.sent()))?;
        }
        reduction.combined.set(None);
        reduction.result.set(None);
        reduction.done.set(number);
        Ok(T::from_word(result))
    }

    /// Combines the values of the children, passes the result up, and returns the result of all.
    fn result<T: Reducible>(
        &self,
        number: u64,
        value: T,
        combine: impl Fn(T, T) -> T,
    ) -> Result<u64, RunError> {
        let reduction = &self.barriers().reduction;
        let combined = match reduction.combined.get() {
            Some(combined) => combined,
            None => {
                let mut combined = value;
                for child in self.children() {
                    if self.0.crossing.is_some() {
                        self.connect_to(child)?;
                    }
                    combined = combine(combined, T::from_word(self.value_of(child, number)?));
                }
                combined.to_word()
            }
        };
        reduction.combined.set(Some(combined));
        let Some(parent) = self.parent() else { return Ok(combined) };
        self.report(parent, parent, |link| link.steps.report_value(number, combined, link.sent()))?;
        self.value_of(parent, number)
    }

    /// The members below this one in the tree, the next in rank first.
    pub(crate) fn children(&self) -> impl Iterator<Item = Rank> {
        let place = self.place();
        let ranks = hosts::children(self.rank(), if place.is_none() { self.size() } else { 0 });
        ranks.chain(place.into_iter().flat_map(TreePlace::children))
    }

    /// The member above this one in the tree.
    pub(crate) fn parent(&self) -> Option<Rank> {
        match self.place() {
            None => hosts::parent(self.rank()),
            Some(place) => place.parent,
        }
    }

    /// This member's place in the tree of hosts, if values go along that.
    fn place(&self) -> Option<&TreePlace> {
        let crossing = self.0.crossing.as_ref().filter(|crossing| crossing.in_blocks);
        crossing.map(|crossing| &crossing.place)
    }

    fn value_of(&self, member: Rank, reduction: u64) -> Result<u64, RunError> {
        self.await_report(member, |steps| steps.value(reduction))
    }
}
