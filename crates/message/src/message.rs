//! A message that has arrived, and its kind.

use crate::Rank;
use crate::payload::{Payload, Reader};
use std::fmt;
use std::marker::PhantomData;
use upcall_shm::direct::Arrived;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::span::Span;

/// A kind of message that carries a `T`. Good for the group that is joined with the
/// [`Handlers`](crate::Handlers) which it came from.
pub struct Kind<T: ?Sized> {
    pub(crate) index: u16,
    carries: PhantomData<fn(&T)>,
}

impl<T: ?Sized> Kind<T> {
    /// The kind in this place. What it carries is the word of others.
    #[inline]
    pub(crate) fn at(index: u16) -> Self {
        Self { index, carries: PhantomData }
    }
}

impl<T: ?Sized> Clone for Kind<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Kind<T> {}

impl<T: ?Sized> fmt::Debug for Kind<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kind({})", self.index)
    }
}

/// A message, where it lies.
#[derive(Debug)]
pub struct Message<'a, 'q> {
    from: Rank,
    arrived: &'a Arrived<'q, Mailbag>,
}

impl<'a, 'q> Message<'a, 'q> {
    #[inline]
    pub(crate) fn new(from: Rank, arrived: &'a Arrived<'q, Mailbag>) -> Self {
        Self { from, arrived }
    }

    /// The sender.
    pub fn from(&self) -> Rank {
        self.from
    }

    /// What it carries, if it is of this kind and does carry that.
    pub fn get<T: Payload + ?Sized>(&self, kind: Kind<T>) -> Option<T::Owned> {
        if self.arrived.handler() != kind.index {
            return None;
        }
        T::read(&mut self.reader())
    }

    #[inline]
    pub(crate) fn reader(&self) -> Reader<'_, '_> {
        Reader::new(self.arrived)
    }

    /// The place of its kind among those that were registered, by its sender's word.
    pub fn kind(&self) -> u16 {
        self.arrived.handler()
    }

    /// A word of what it carries; `None` beyond the end.
    #[inline]
    pub fn word(&self, at: usize) -> Option<u64> {
        self.arrived.word(at)
    }

    /// Copies a part of what it carries, from byte `at` on; `None` if it does not reach so far.
    /// What is read twice may differ, if its sender is hostile.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) -> Option<()> {
        self.arrived.payload().copy_out(at, to)
    }

    /// What it carries, where it lies, uninterpreted: to be written to a descriptor, say, without a
    /// copy in this process. Its sender can still write there: what is to be checked is copied
    /// first, and the copy checked.
    pub fn payload(&self) -> Span<'_> {
        self.arrived.payload()
    }

    /// Bytes that it carries.
    pub fn size(&self) -> usize {
        self.arrived.len()
    }
}
