//! The words in which a group member reports barriers and reductions to another.
//!
//! Source: UDM, section 3.3: control traffic has a second network, which data cannot block. Here
//! each queue's memory has one set of these words, beside the messages, which the queue's sender
//! alone writes. A word has a place of its own, so a report is never refused for want of room,
//! however full the queue is. Each word grows, or is overwritten after its reader has used it. A
//! report that is repeated changes nothing, so a step that was interrupted starts again.
//!
//! # Ordering
//! A report is one release store, after the words that belong to it; its reader acquires it first.
//! The count of changes is stored last: a reader that finds the count unchanged has seen all
//! reports. The wake-up follows the rule of messages: the sender checks whether the reader sleeps
//! after the report, and the reader polls these words after it has announced its sleep.
//!
//! # Peers
//! The reader trusts only that its peer made the report. A false report can make a step end too
//! early or never, but so can a peer that reports too early or never. No word is used as an index.
//!
//! `crates/sched/tests/models/loom_steps.rs` is the model of barriers that are made of these words.

use crate::region::Cells;
use upcall_os::atomic::{AtomicU64, Ordering};

/// Distances in the ring of members to a barrier's partners, round by round.
///
/// No two partners are the same member.
pub fn rounds(size: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS).map(|round| 1 << round).take_while(move |step| *step < size)
}

/// The outcome of a poll for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportPoll<R, N> {
    /// The report.
    Came(R),
    /// No report yet.
    Nothing,
    /// The report never comes, for this reason.
    Never(N),
}

/// Polls for a report, after a check whether it can never come.
///
/// In this order a report that was made before its sender's death counts: a reader that knows of
/// the death finds all reports that came before.
pub fn find<R, N>(
    never: impl FnOnce() -> Option<N>,
    report: impl FnOnce() -> Option<R>,
) -> ReportPoll<R, N> {
    let never = never();
    match (report(), never) {
        (Some(report), _) => ReportPoll::Came(report),
        (None, Some(never)) => ReportPoll::Never(never),
        (None, None) => ReportPoll::Nothing,
    }
}

/// The words of a queue's sender. All are 0 at first.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Steps {
    changes: AtomicU64,
    /// The rank of a member that a barrier or reduction lacks, plus 1; 0 for none.
    missing: AtomicU64,
    /// The number of the last barrier.
    barrier: AtomicU64,
    /// Messages sent before the last barrier of an even number, and of an odd number: a sender that
    /// has passed a barrier may be at the next one before its reader has passed.
    before_barrier: [AtomicU64; 2],
    /// The number of the last reduction. `value` is its value, and `before_value` the messages that
    /// were sent before.
    reduction: AtomicU64,
    value: AtomicU64,
    before_value: AtomicU64,
}

// SAFETY: atomics and padding only, `repr(C)`, no drop.
unsafe impl Cells for Steps {}

/// All reports of a sender at one time, to be repeated on another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepsReport {
    /// As in [`Steps`]: missing, barrier, before an even one, before an odd one, reduction, value,
    /// before the value.
    words: [u64; 7],
}

impl StepsReport {
    /// Length of its encoding, in words.
    pub const WORDS: usize = 7;

    /// The words of its encoding.
    pub fn to_words(self) -> [u64; Self::WORDS] {
        self.words
    }

    /// Decodes a report. Every encoding is one.
    pub fn from_words(words: [u64; Self::WORDS]) -> Self {
        Self { words }
    }

    /// The reports that were made before more than `taken` messages were sent. `before` are those
    /// of an earlier time.
    ///
    /// A sender may have reported a barrier that its reader has not passed, and the next one.
    pub fn as_of(self, taken: u64, before: Self) -> Self {
        let [missing, barrier, even, odd, reduction, value, before_value] = self.words;
        let count = |number: u64| if number.is_multiple_of(2) { even } else { odd };
        let earlier = barrier.saturating_sub(1);
        let barrier = [barrier, earlier].into_iter().find(|number| count(*number) <= taken);
        let barrier = barrier.unwrap_or(before.words[1]);
        let [_, _, _, _, old, old_value, old_before] = before.words;
        let (reduction, value, before_value) = match before_value <= taken {
            true => (reduction, value, before_value),
            false => (old, old_value, old_before),
        };
        Self { words: [missing, barrier, even, odd, reduction, value, before_value] }
    }
}

/// For the sender.
impl Steps {
    /// Reports that the sender has reached a barrier, after `sent` messages.
    ///
    /// The reader has passed the last barrier but one.
    pub fn report_barrier(&self, number: u64, sent: u64) {
        self.before_barrier[(number % 2) as usize].store(sent, Ordering::Relaxed);
        self.barrier.store(number, Ordering::Release);
        self.count();
    }

    /// Reports a value for reduction `number`, after `sent` messages.
    ///
    /// The reader has used the previous value.
    pub fn report_value(&self, number: u64, value: u64, sent: u64) {
        self.before_value.store(sent, Ordering::Relaxed);
        self.value.store(value, Ordering::Relaxed);
        self.reduction.store(number, Ordering::Release);
        self.count();
    }

    /// Reports that the member of this rank will never come.
    pub fn report_missing(&self, rank: usize) {
        self.missing.store(rank as u64 + 1, Ordering::Release);
        self.count();
    }

    /// Repeats all reports that the sender has made elsewhere.
    ///
    /// They were made after those that were repeated before. The order of the stores is that of the
    /// sender's own reports.
    pub fn repeat(&self, report: StepsReport) {
        let [missing, barrier, even, odd, reduction, value, before_value] = report.words;
        self.before_barrier[0].store(even, Ordering::Relaxed);
        self.before_barrier[1].store(odd, Ordering::Relaxed);
        self.barrier.store(barrier, Ordering::Release);
        self.before_value.store(before_value, Ordering::Relaxed);
        self.value.store(value, Ordering::Relaxed);
        self.reduction.store(reduction, Ordering::Release);
        self.missing.store(missing, Ordering::Release);
        self.count();
    }

    fn count(&self) {
        // The reader could write this word, too, but would only mislead itself.
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Release);
    }
}

/// For the receiver.
impl Steps {
    /// A count that differs after each report.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// All reports as they are now.
    ///
    /// A number is read before the words that belong to it. They stay until the reader has used
    /// them, so they are those of this number.
    pub fn reports(&self) -> StepsReport {
        let missing = self.missing.load(Ordering::Acquire);
        let barrier = self.barrier.load(Ordering::Acquire);
        let [even, odd] = [0, 1].map(|at: usize| self.before_barrier[at].load(Ordering::Relaxed));
        let reduction = self.reduction.load(Ordering::Acquire);
        let value = self.value.load(Ordering::Relaxed);
        let before_value = self.before_value.load(Ordering::Relaxed);
        StepsReport { words: [missing, barrier, even, odd, reduction, value, before_value] }
    }

    /// Number of messages that the sender had sent before it reached a barrier.
    ///
    /// `None` if it has not reached the barrier yet.
    pub fn barrier(&self, number: u64) -> Option<u64> {
        let came = self.barrier.load(Ordering::Acquire) >= number;
        came.then(|| self.before_barrier[(number % 2) as usize].load(Ordering::Relaxed))
    }

    /// The value for a reduction, and the number of messages sent before.
    ///
    /// `None` if the value is not reported yet.
    pub fn value(&self, number: u64) -> Option<(u64, u64)> {
        let came = self.reduction.load(Ordering::Acquire) >= number;
        came.then(|| {
            (self.value.load(Ordering::Relaxed), self.before_value.load(Ordering::Relaxed))
        })
    }

    /// The rank of a member that will never come, if reported.
    ///
    /// The rank may be out of range.
    pub fn missing(&self) -> Option<usize> {
        let missing = self.missing.load(Ordering::Acquire);
        usize::try_from(missing.checked_sub(1)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_report_is_counted_and_read_as_it_was_written() {
        let steps = Steps::default();
        assert_eq!(
            (steps.changes(), steps.barrier(1), steps.value(1), steps.missing()),
            (0, None, None, None)
        );
        steps.report_barrier(1, 70);
        assert_eq!((steps.changes(), steps.barrier(1), steps.barrier(2)), (1, Some(70), None));
        // The reader may still poll for the first one.
        steps.report_barrier(2, 75);
        assert_eq!((steps.changes(), steps.barrier(1), steps.barrier(2)), (2, Some(70), Some(75)));
        steps.report_value(2, u64::MAX, 71);
        assert_eq!(
            (steps.changes(), steps.value(3), steps.value(2)),
            (3, None, Some((u64::MAX, 71)))
        );
        steps.report_missing(0);
        assert_eq!((steps.changes(), steps.missing()), (4, Some(0)));
        steps.missing.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(steps.missing(), Some(usize::MAX - 1));
    }

    #[test]
    fn reports_are_told_apart_by_the_messages_before_them() {
        let (steps, there) = (Steps::default(), Steps::default());
        let mut told = StepsReport::default();
        let mut tell = |steps: &Steps, taken| {
            told = steps.reports().as_of(taken, told);
            there.repeat(told);
            let barrier = |number| there.barrier(number);
            (barrier(1), barrier(2), barrier(3), there.value(1))
        };
        steps.report_barrier(1, 70);
        steps.report_value(1, 5, 72);
        steps.report_barrier(2, 75);
        assert_eq!(tell(&steps, 69), (None, None, None, None));
        assert_eq!(tell(&steps, 70), (Some(70), None, None, None));
        assert_eq!(tell(&steps, 74), (Some(70), None, None, Some((5, 72))));
        assert_eq!(tell(&steps, 75), (Some(70), Some(75), None, Some((5, 72))));
        // The reader has passed the first one.
        steps.report_barrier(3, 80);
        assert_eq!(tell(&steps, 79).2, None);
        assert_eq!(tell(&steps, 80), (Some(80), Some(75), Some(80), Some((5, 72))));
        steps.report_missing(4);
        tell(&steps, 80);
        assert_eq!(there.missing(), Some(4));
    }

    #[test]
    fn reports_read_the_same_where_they_are_repeated() {
        let (steps, there) = (Steps::default(), Steps::default());
        steps.report_barrier(1, 70);
        steps.report_barrier(2, 75);
        steps.report_value(3, 9, 80);
        steps.report_missing(4);
        let report = steps.reports();
        assert_eq!(StepsReport::from_words(report.to_words()), report);
        there.repeat(report);
        assert_eq!((there.barrier(1), there.barrier(2)), (Some(70), Some(75)));
        assert_eq!((there.value(3), there.missing()), (Some((9, 80)), Some(4)));
        assert_eq!((there.reports(), there.changes()), (report, 1));
    }
}
