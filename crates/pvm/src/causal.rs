//! Messages of other processes, in an order in which no message comes before its cause.
//!
//! A message carries a Lamport time, its *stamp*. The messages of one sender come in the order of
//! their stamps, and a cause has a lower stamp than its effect. Between processes of one host, a
//! message is in its queue before any effect of it is in another queue. So a process that takes all
//! messages of all queues, and sorts them by their stamps, handles each cause first.
//!
//! # Between hosts
//! A message to another host travels for a while, and an effect of it may be in a queue before.
//! Then the effect is handled first: PVM promises no order between the messages of different tasks.
//! What holds in any case are these two:
//!
//! - The messages of one sender are handled in the order of their sending. They come in that order,
//!   and are sorted by stamps that rise.
//! - Messages wait only for messages that are there. They are kept while a queue has more, and the
//!   holder has its next message in its queue.
//!
//! The machine's own messages about what happens in a process of another host wait for the messages
//! of that process ([`LateMessage`](crate::remote::LateMessage)). A task goes on in another process
//! only when all that it has sent before has arrived on the other hosts
//! ([`moves`](crate::moves)).
//!
//! With many messages that would need much memory, and would keep the process from its tasks. So
//! at most [`FLOOD`] messages are taken at once. Then other messages may be left in the queues,
//! among them causes of those that were taken.
//!
//! # Which messages are handled
//! After the last message was taken, the senders are determined that have more: the *open* ones.
//! What an open sender has left has higher stamps than what was taken of it. So a message is
//! handled if its stamp is at most the highest taken stamp of each open sender. The open sender
//! with the lowest of these stamps is the *holder*: the other messages are kept until it has caught
//! up, or has no more. A sender of which nothing was taken yet counts as 0.
//!
//! While at least [`FLOOD`] messages are kept, only the holder's are taken. Those can be handled,
//! but for the last one of each holder. So what is kept does not grow, except by what arrives from
//! others at that time, and while a send waits for room ([`CausalInbox::take_some`]).
//!
//! A message may stay in its queue, because there is no memory for it. Then its sender is open, and
//! what it may have caused is kept.
//!
//! A holder that sends without end, and gets no message, would have lower stamps for ever. It is
//! sent a message ([`CausalInbox::behind`]): its stamps are higher once it has taken that.
//!
//! # Messages that a move has kept
//! A message that was kept for a task that moves has the stamp of its sending ([`moves`]). So what
//! an open sender has left may have lower stamps after all. That does no harm: such messages wait,
//! and are sorted, in the task's new process, until their sender's mark follows. The mark has a new
//! stamp, and so is handled after them, by the rule above.
//!
//! Source: Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System" (1978).
//!
//! [`moves`]: crate::moves

#[cfg(test)]
mod tests;

use upcall_message::Rank;

/// Maximum number of messages that are taken at once. As many that are kept make this process take
/// only the holder's.
pub(crate) const FLOOD: usize = 4096;

/// A message that was taken.
#[derive(Debug)]
pub(crate) struct StampedMessage<T> {
    pub(crate) stamp: u64,
    pub(crate) from: Rank,
    pub(crate) item: T,
}

/// The queues of all senders.
pub(crate) trait Queues<T> {
    /// Takes the next message of any sender. Senders take turns.
    fn next(&self) -> Option<StampedMessage<T>>;

    /// Takes the next message of this sender.
    fn next_of(&self, from: Rank) -> Option<StampedMessage<T>>;

    /// The senders that have messages in their queues.
    fn waiting(&self) -> Vec<Rank>;

    /// Returns `true` if a message stays in its queue, and is not returned by the functions above
    /// until there is memory for it.
    fn is_short(&self) -> bool;
}

/// The result of taking messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// All queues were empty.
    All,
    /// Some messages may be left.
    Some,
}

/// Messages that were taken, and are not handled yet; see the module.
#[derive(Debug)]
pub(crate) struct CausalInbox<T> {
    kept: Vec<StampedMessage<T>>,
    /// The highest stamp of the messages that were taken of each sender, by rank.
    highest: Box<[u64]>,
    /// The time of the last message that was sent to each sender because it was behind.
    sent: Box<[u64]>,
    /// Senders that had more when messages were handled last.
    open: Vec<Rank>,
    flood: usize,
}

impl<T> CausalInbox<T> {
    /// No messages, in a machine of `size` processes.
    pub(crate) fn new(size: usize) -> Self {
        let none = || vec![0; size].into_boxed_slice();
        Self { kept: Vec::new(), highest: none(), sent: none(), open: Vec::new(), flood: FLOOD }
    }

    /// Returns `true` if all messages that were taken are handled.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Returns `true` if a message of this sender was taken and is not handled.
    pub(crate) fn has_kept_of(&self, from: Rank) -> bool {
        self.kept.iter().any(|one| one.from == from)
    }

    /// Adds a message that was taken.
    pub(crate) fn add(&mut self, arrival: StampedMessage<T>) {
        if let Some(highest) = self.highest.get_mut(arrival.from) {
            *highest = arrival.stamp.max(*highest);
        }
        self.kept.push(arrival);
    }

    /// Takes messages, at most [`FLOOD`], and returns those that are to be handled now, in their
    /// order.
    pub(crate) fn hear(&mut self, queues: &impl Queues<T>) -> Vec<StampedMessage<T>> {
        let taken = self.take_in(queues);
        // Only after the last message was taken: the queues of the others then had its causes.
        self.open = if taken == Taken::All { Vec::new() } else { queues.waiting() };
        self.kept.sort_by_key(|one| one.stamp);
        match self.bound() {
            None => std::mem::take(&mut self.kept),
            Some(bound) => {
                let count = self.kept.partition_point(|one| one.stamp <= bound);
                self.kept.drain(..count).collect()
            }
        }
    }

    /// Takes messages, at most [`FLOOD`], which are handled later. For a process whose send waits
    /// for room. Takes them from all senders, however many it keeps: each process of a circle of
    /// senders may wait for room in the next one.
    pub(crate) fn take_some(&mut self, queues: &impl Queues<T>) {
        for _ in 0..self.flood {
            let Some(arrival) = queues.next() else { return };
            self.add(arrival);
        }
    }

    /// The sender that is to get a message from this process, whose time is `time`, because it
    /// holds back the others and its stamps need not become higher.
    pub(crate) fn behind(&mut self, time: u64) -> Option<Rank> {
        let least = self.kept.iter().map(|one| one.stamp).min()?;
        let (_, holder) = self.holder()?;
        let sent = self.sent.get_mut(holder).filter(|sent| **sent < least)?;
        *sent = time;
        Some(holder)
    }

    fn take_in(&mut self, queues: &impl Queues<T>) -> Taken {
        if self.is_full() {
            self.take_of_holders(queues);
            return Taken::Some;
        }
        while !self.is_full() {
            match queues.next() {
                Some(arrival) => self.add(arrival),
                None if queues.is_short() => return Taken::Some,
                None => return Taken::All,
            }
        }
        Taken::Some
    }

    fn take_of_holders(&mut self, queues: &impl Queues<T>) {
        self.open = queues.waiting();
        for _ in 0..self.flood {
            let Some((_, holder)) = self.holder() else { return };
            match queues.next_of(holder) {
                Some(arrival) => self.add(arrival),
                None if queues.is_short() => return,
                None => self.open.retain(|open| *open != holder),
            }
        }
    }

    fn is_full(&self) -> bool {
        self.kept.len() >= self.flood
    }

    /// The holder, with its highest taken stamp.
    fn holder(&self) -> Option<(u64, Rank)> {
        let highest = |rank: &Rank| (self.highest.get(*rank).copied().unwrap_or(0), *rank);
        self.open.iter().map(highest).min()
    }

    /// The highest stamp of the messages to be handled. `None`: all of them.
    fn bound(&self) -> Option<u64> {
        self.holder().map(|(highest, _)| highest)
    }
}
