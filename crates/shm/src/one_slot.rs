//! One slot for all requesters, as in the paper: an experiment.
//!
//! Nothing in Upcall uses it: each invoker has a lane of its own (`crates/home/src/lane.rs`). It is
//! here, and not in the example that measures it (`crates/home/examples/one_slot.rs`), so that a
//! model checks the same lines (`tests/models/loom_one_slot.rs`).
//!
//! Source: Psyche, section 2.1 (P7 here). A requester writes an operation to a buffer of its own,
//! writes a pointer to that buffer to the one location that the home has, and rings. Then it waits
//! for the mark *received*, and for *completed*. Another requester may overwrite the pointer: then
//! the home serves that one. A requester that has waited for *received* for some time sends again,
//! that is, writes its pointer again. The home ignores a buffer that is marked as received.
//! Notification, waiting and time-outs are the program's: the home here polls.
//!
//! # Each request is run once
//! At least once: a requester that waits for *received* writes its pointer again and again, and the
//! home polls again and again, so one of its probes finds a pointer that is not overwritten yet. No
//! bound holds: other requesters may be quicker each time, for ever. That is what lanes are for.
//!
//! At most once: the pointer is a hint, and may be late, or come twice. What counts is the mark,
//! which lies in the buffer, where no other requester writes:
//! * It goes *asked*, *received*, *completed*, and round again. The requester takes the step to
//!   *asked*, and only from *completed* (or a new buffer); the home takes the other two. So at any
//!   time exactly one of the two may write, and knows what it finds.
//! * One thread is the home. It goes on only if it finds *asked*, and leaves that state at once,
//!   before it runs the operation. The next time *asked* stands there is after the requester has
//!   seen *completed*: another request. To send again changes no mark, so it begins nothing.
//! * A late pointer, whose request was completed and followed by the next one, leads to that next
//!   request. The request is then run before its own pointer was sent. This is harmless, since it
//!   was asked for. Its own pointer is ignored later.
//!
//! What is run, and what is returned, is whole: the words are written before the mark that passes
//! them on (release), and read after it (acquire). The pointer orders nothing.
//!
//! Both sides are trusted; a requester that dies leaves a buffer for which no requester waits.

use upcall_os::atomic::{AtomicU64, Ordering};

/// Number of words of an operation and its arguments, and of its result.
///
/// With the mark they fill one line. There are fewer under a model checker.
pub const WORDS: usize = if cfg!(loom) { 2 } else { 7 };

/// A requester's buffer: see the module.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Buffer {
    mark: AtomicU64,
    words: [AtomicU64; WORDS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Buffer>() == 64);

/// State of a request. A new buffer is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Mark {
    /// The requester waits for nothing.
    Completed = 0,
    /// The request is to be run.
    Asked = 1,
    /// The home runs it.
    Received = 2,
}

impl Buffer {
    /// The state; acquires what was written before it.
    #[inline]
    pub fn mark(&self) -> Mark {
        match self.mark.load(Ordering::Acquire) {
            0 => Mark::Completed,
            1 => Mark::Asked,
            _ => Mark::Received,
        }
    }

    /// Sets the state, and passes on what was written before.
    #[inline]
    pub fn set_mark(&self, mark: Mark) {
        self.mark.store(mark as u64, Ordering::Release);
    }

    /// Writes the words. For the side whose turn it is.
    #[inline]
    pub fn write(&self, words: &[u64; WORDS]) {
        for (to, word) in self.words.iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
    }

    /// The words that were passed on.
    #[inline]
    pub fn read(&self) -> [u64; WORDS] {
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }
}

/// A word in lines of its own; two, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedWord(AtomicU64);

/// A home's one location, and the buffers of its requesters.
#[derive(Debug)]
pub struct OneSlot {
    /// The number of a buffer plus one; 0 at first.
    location: PaddedWord,
    buffers: Box<[Buffer]>,
}

/// What a probe of the home found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// No request was ever sent.
    Nothing,
    /// A pointer to a buffer that is marked as received or completed.
    Ignored,
    /// A request of this requester, which was run.
    Ran(usize),
}

impl OneSlot {
    /// A slot for this number of requesters.
    pub fn new(requesters: usize) -> Self {
        Self {
            location: PaddedWord::default(),
            buffers: (0..requesters).map(|_| Buffer::default()).collect(),
        }
    }

    /// The buffer of a requester.
    ///
    /// # Panics
    /// There is no requester of this number.
    #[inline]
    pub fn buffer(&self, number: usize) -> &Buffer {
        &self.buffers[number]
    }

    /// Writes the pointer to a requester's buffer, over the previous pointer.
    #[inline]
    pub fn point_to(&self, number: usize) {
        self.location.0.store(number as u64 + 1, Ordering::Relaxed);
    }

    /// The requester whose buffer the pointer leads to.
    #[inline]
    pub fn pointed(&self) -> Option<usize> {
        (self.location.0.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// Probes once, and runs the request found. Only one thread, the home, may call it.
    #[inline]
    pub fn look(&self, run: impl FnOnce(usize, [u64; WORDS]) -> [u64; WORDS]) -> ProbeOutcome {
        let Some(number) = self.pointed() else { return ProbeOutcome::Nothing };
        let buffer = self.buffer(number);
        if buffer.mark() != Mark::Asked {
            return ProbeOutcome::Ignored;
        }
        buffer.set_mark(Mark::Received);
        buffer.write(&run(number, buffer.read()));
        buffer.set_mark(Mark::Completed);
        ProbeOutcome::Ran(number)
    }

    /// Sends a request. The requester's previous request is completed.
    #[inline]
    pub fn send(&self, number: usize, words: &[u64; WORDS]) {
        let buffer = self.buffer(number);
        buffer.write(words);
        buffer.set_mark(Mark::Asked);
        self.point_to(number);
    }

    /// Sends the same request again, if it was not received for some time.
    #[inline]
    pub fn resend(&self, number: usize) {
        self.point_to(number);
    }

    /// Returns `true` if the request was received.
    ///
    /// From then on the requester waits, and does not send it again.
    #[inline]
    pub fn is_received(&self, number: usize) -> bool {
        self.buffer(number).mark() != Mark::Asked
    }

    /// The result, once the request is completed.
    #[inline]
    pub fn take(&self, number: usize) -> Option<[u64; WORDS]> {
        let buffer = self.buffer(number);
        (buffer.mark() == Mark::Completed).then(|| buffer.read())
    }
}
