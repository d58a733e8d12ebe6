//! The members that this one has lost, which it reports to all others over its links.
//!
//! A report is a word: the rank. [`parting`](crate::parting) says what it is for.

use crate::Rank;
use upcall_net::FrameBody;
use upcall_os::atomic::{AtomicUsize, Ordering};
use upcall_os::lock::KernelMutex;

/// The losses of this member so far, in their order.
#[derive(Debug, Default)]
pub(super) struct Losses {
    all: KernelMutex<Vec<Rank>>,
    /// Their number, for senders, which mostly find nothing new.
    count: AtomicUsize,
}

impl Losses {
    /// Adds a member, which is lost once.
    pub(super) fn add(&self, rank: Rank) {
        let mut all = self.all.lock();
        all.push(rank);
        self.count.store(all.len(), Ordering::Release);
    }

    /// The first loss after this number of them.
    pub(super) fn after(&self, count: usize) -> Option<Rank> {
        if self.count.load(Ordering::Acquire) == count {
            return None;
        }
        self.all.lock().get(count).copied()
    }
}

pub(super) fn encode(lost: Rank) -> FrameBody {
    FrameBody { words: vec![lost as u64], len: 8 }
}

/// Reads a report. `None`: it is none.
pub(super) fn decode(body: &FrameBody) -> Option<Rank> {
    match body.words[..] {
        [rank] if body.len == 8 => usize::try_from(rank).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        assert_eq!(decode(&encode(7)), Some(7));
        for (words, len) in [(vec![], 0), (vec![7], 7), (vec![7, 7], 16)] {
            assert_eq!(decode(&FrameBody { words, len }), None);
        }
    }

    #[test]
    fn each_loss_follows_those_before_it() {
        let losses = Losses::default();
        assert_eq!(losses.after(0), None);
        [4, 2].into_iter().for_each(|rank| losses.add(rank));
        assert_eq!([0, 1, 2].map(|count| losses.after(count)), [Some(4), Some(2), None]);
    }
}
