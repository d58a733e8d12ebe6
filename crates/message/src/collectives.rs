//! Collective operations on vectors: broadcast, gather, reduce, all-gather, all-reduce, all-to-all.
//!
//! All members call the same operations in the same order. Each operation has a number, and is a
//! script of messages that all members derive alike ([`plan`]). The scripts know which members
//! share a host ([`hosts`]), and cross between hosts as little as possible. A script's messages are
//! parts ([`part`]): they go through the queues as other messages do ([`performing`]), and no
//! receiver of the program sees them ([`intake`]). A peer that runs ahead is bounded by [`window`].
//!
//! Source: MPI 3.1, chapter 5. Here vectors may differ in length, as in MPI's operations with `v`,
//! and a receiver need not know the lengths before.

pub(crate) mod call;
pub(crate) mod element;
pub(crate) mod hosts;
pub(crate) mod intake;
pub(crate) mod part;
pub(crate) mod performing;
pub(crate) mod plan;
pub(crate) mod window;

use crate::collectives::call::Collective;
use crate::collectives::element::Element;
use crate::collectives::performing::KnownBlocks;
use crate::{Group, Rank, RunError};

impl Group {
    /// The number of a member's host; `None` if there is no such member.
    ///
    /// Hosts are numbered from 0, by the lowest rank on each. Members with the same number share
    /// memory.
    pub fn host(&self, rank: Rank) -> Option<usize> {
        self.0.hosts.host(rank)
    }

    /// Copies the root's vector to all members (MPI's `Bcast`).
    ///
    /// On the root, `items` stays as it is; elsewhere it is replaced, and may have any length. One
    /// message goes to each other host, along a binomial tree, and then one to each member there.
    ///
    /// All members call the same collective operations on vectors in the same order, with the same
    /// root and type. The operation runs the handlers of the messages that arrive. What one message
    /// of the operation carries is limited as messages are (1 GiB).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let group = upcall_message::GroupBuilder::new("sum", 4)
    /// #     .join(upcall_message::Handlers::new())?;
    /// let mut weights = if group.rank() == 0 { vec![0.5, 0.25] } else { vec![] };
    /// group.broadcast(0, &mut weights)?;
    /// let mut sums = [weights[0], 1.0];
    /// group.all_reduce(&mut sums, |a, b| a + b)?;
    /// assert_eq!(sums[1], group.size() as f64);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RunError::Lost`]: a member that this one needs has ended or broken the protocol. All
    /// members that still wait learn of that, and no later operation, barrier or reduction holds.
    /// [`RunError::GivenUp`]: the same, but only another member reports it.
    /// [`RunError::Mismatched`]: a member calls another operation, or with another root, type, or
    /// length where lengths have to agree. All other members get an error, too, and no later
    /// operation holds.
    ///
    /// After any other error the members still wait for this one, and the next call goes on with
    /// the same operation; what was sent stands. [`RunError::NoMemory`]: there is no memory for
    /// another member's items. [`RunError::Unhandled`], [`RunError::Unsent`] and
    /// [`RunError::Interrupted`] are as for [`barrier`](Self::barrier).
    ///
    /// # Blocking
    /// Until the members that this one needs have called the operation; the root of a broadcast,
    /// and a member that only sends in a gather, need none. Waits for room as [`send`](Self::send)
    /// does. A member may be ahead of another one: then its messages to that one can wait until
    /// that one has called the operation, too. A member that is stopped only delays the others.
    ///
    /// # Peer death
    /// What a member had sent before its death counts. A member that waits for a dead one gets an
    /// error, and so do those that wait for it.
    ///
    /// # Panics
    /// If there is no member of rank `root`, or if a handler panics.
    pub fn broadcast<T: Element>(&self, root: Rank, items: &mut Vec<T>) -> Result<(), RunError> {
        let key = (root, root);
        if self.rank() == root {
            let own = KnownBlocks::own([(key, &items[..])]);
            return self.perform((Collective::Broadcast, root), own, None, |_| Ok(()));
        }
        let none = KnownBlocks::own([]);
        self.perform((Collective::Broadcast, root), none, None, |known| known.copy(key, items))
    }

    /// Collects the vectors of all members at the root, by rank (MPI's `Gatherv`).
    ///
    /// The root gets `Some`, all others `None`. One message comes from each other host. For the
    /// rest see [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    ///
    /// # Panics
    /// As [`broadcast`](Self::broadcast).
    pub fn gather<T: Element>(
        &self,
        root: Rank,
        items: &[T],
    ) -> Result<Option<Vec<Vec<T>>>, RunError> {
        let (rank, size) = (self.rank(), self.size());
        self.perform((Collective::Gather, root), self.contribution(items), None, |known| {
            let all = || known.copies((0..size).map(|of| (of, of)));
            (rank == root).then(all).transpose()
        })
    }

    /// Collects the vectors of all members at all members, by rank (MPI's `Allgatherv`).
    ///
    /// Two messages cross for each host but one: to member 0's host, and back. For the rest see
    /// [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn all_gather<T: Element>(&self, items: &[T]) -> Result<Vec<Vec<T>>, RunError> {
        let size = self.size();
        self.perform((Collective::AllGather, 0), self.contribution(items), None, |known| {
            known.copies((0..size).map(|of| (of, of)))
        })
    }

    /// Combines the vectors of all members item by item, in the order of ranks, at the root (MPI's
    /// `Reduce`).
    ///
    /// The root gets `Some`, all others `None`. All members call it with the same `combine`, which
    /// must be associative, and with vectors of the same length. Values are combined within each
    /// host before they cross, as far as the ranks there follow each other. For the rest see
    /// [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    ///
    /// # Panics
    /// As [`broadcast`](Self::broadcast), and if `combine` panics.
    pub fn reduce_to<T: Element>(
        &self,
        root: Rank,
        items: &[T],
        combine: impl Fn(T, T) -> T,
    ) -> Result<Option<Vec<T>>, RunError> {
        let (rank, all) = (self.rank(), (0, self.size() - 1));
        let own = self.contribution(items);
        self.perform((Collective::Reduce, root), own, Some(&combine), |known| {
            if rank != root {
                return Ok(None);
            }
            known.combine(all, &combine)?;
            let mut combined = Vec::new();
            known.copy(all, &mut combined)?;
            Ok(Some(combined))
        })
    }

    /// Combines the vectors of all members item by item, in the order of ranks (MPI's `Allreduce`).
    ///
    /// `items` is this member's vector, and then the result, which is the same for all members. All
    /// members call it with the same `combine`, which must be associative, and with vectors of the
    /// same length. After an error, `items` is unchanged. [`reduce`](Self::reduce) does the same
    /// for one word, faster. For the rest see [`reduce_to`](Self::reduce_to).
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    ///
    /// # Panics
    /// If `combine` or a handler panics.
    pub fn all_reduce<T: Element>(
        &self,
        items: &mut [T],
        combine: impl Fn(T, T) -> T,
    ) -> Result<(), RunError> {
        let all = (0, self.size() - 1);
        let own = self.contribution(items);
        let mut combined = Vec::new();
        self.perform((Collective::AllReduce, 0), own, Some(&combine), |known| {
            known.combine(all, &combine)?;
            known.copy(all, &mut combined)
        })?;
        items.copy_from_slice(&combined);
        Ok(())
    }

    /// Sends a vector to each member, and returns those that all members have sent here, by rank
    /// (MPI's `Alltoallv`).
    ///
    /// `items` has a vector for each member, by rank. One message crosses for each ordered pair of
    /// hosts; members on one host exchange their vectors directly. For the rest see
    /// [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    ///
    /// # Panics
    /// If `items` has not one vector for each member, or if a handler panics.
    pub fn all_to_all<T: Element>(&self, items: &[Vec<T>]) -> Result<Vec<Vec<T>>, RunError> {
        let (rank, size) = (self.rank(), self.size());
        assert!(items.len() == size, "{} vectors for {size} members", items.len());
        let own = items.iter().enumerate().map(|(to, items)| ((rank, to), &items[..]));
        self.perform((Collective::AllToAll, 0), KnownBlocks::own(own), None, |known| {
            known.copies((0..size).map(|from| (from, rank)))
        })
    }

    /// This member's block of an operation with one for each member.
    fn contribution<'a, T: Element>(&self, items: &'a [T]) -> KnownBlocks<'a, T> {
        KnownBlocks::own([((self.rank(), self.rank()), items)])
    }
}
