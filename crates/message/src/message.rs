//! A message that has arrived, and its kind.

use crate::Rank;
use crate::payload::{Payload, Reader};
use std::fmt;
use std::marker::PhantomData;
use upcall_shm::direct::Arrived;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::span::Span;

/// A kind of message that carries a `T`. It belongs to the group that is joined with the
/// [`Handlers`](crate::Handlers) that it came from.
pub struct Kind<T: ?Sized> {
    pub(crate) index: u16,
    carries: PhantomData<fn(&T)>,
}

impl<T: ?Sized> Kind<T> {
    /// The kind with this index. Its type is not checked here.
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

/// A message, where it has arrived: in shared memory, or in memory of this process if it is a long
/// one of another host.
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

    /// Returns the payload, if the message is of this kind and the payload matches it.
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

    /// Index of its kind among the registered kinds, as the sender set it.
    pub fn kind(&self) -> u16 {
        self.arrived.handler()
    }

    /// A word of the payload; `None` beyond the end.
    #[inline]
    pub fn word(&self, at: usize) -> Option<u64> {
        self.arrived.word(at)
    }

    /// Copies a part of the payload, from byte `at` on; `None` if the payload ends before. Two
    /// reads may differ, if the sender is hostile.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) -> Option<()> {
        self.arrived.payload().copy_out(at, to)
    }

    /// The payload in shared memory, uninterpreted.
    ///
    /// It can for example be written to a descriptor without a copy in this process. The sender can
    /// still write there: copy a payload before you check it, and check the copy.
    pub fn payload(&self) -> Span<'_> {
        self.arrived.payload()
    }

    /// Size of the payload, in bytes.
    pub fn size(&self) -> usize {
        self.arrived.len()
    }
}
