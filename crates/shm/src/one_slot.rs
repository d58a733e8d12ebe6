//! One slot for all, as in the paper: an experiment. Nothing of ours uses it: each invoker has a
//! lane of its own (`crates/home/src/lane.rs`), and needs none of this. It is here, and not in the
//! example that measures it (`crates/home/examples/one_slot.rs`), so that a model checks the same
//! lines (`tests/models/loom_one_slot.rs`).
//!
//! Source: Psyche, section 2.1 (P7 here). Who requires an operation writes it to a buffer of its
//! own, a pointer to that to the one location that the home has, and rings; then it waits for the
//! mark *received*, and for *completed*. Another one may write its pointer over that: then the home
//! serves the other, and who has waited for *received* for some time sends again, that is, writes
//! its pointer anew. The home ignores a buffer that is marked as received. Ringing, waiting and the
//! time are the program's: the home here is one that looks.
//!
//! # Each request is run once
//! At least once: who waits for *received* writes its pointer again and again, and the home looks
//! again and again, so one of its looks finds a pointer that nobody has overwritten yet. Nothing
//! says when: others may be quicker each time, for ever. That is what lanes are for.
//!
//! At most once: the pointer is a hint, and may be late, or come twice. What counts is the mark,
//! which lies in the buffer, where nobody else writes:
//! * It goes *asked*, *received*, *completed*, and round again. The requester takes the step to
//!   *asked*, and only from *completed* (or a buffer that is new); the home takes the other two. So
//!   at any time one of both may write, and knows what it finds.
//! * One thread is the home. It goes on only if it finds *asked*, and leaves that at once, before
//!   it runs the operation. The next time *asked* stands there is after the requester has seen
//!   *completed*: another request. To send again changes no mark, so it begins nothing.
//! * A pointer that is late (its request was completed, and the next one is there already) leads to
//!   the next one, which is then run before it was sent. That is no harm: it was asked for. Its own
//!   pointer is ignored later.
//!
//! What is run, and what is given back, is whole: the words are written before the mark by which
//! they are passed on (release), and read behind it (acquire). The pointer orders nothing.
//!
//! Both sides are believed; a requester that dies leaves a buffer that nobody waits for.

use upcall_os::atomic::{AtomicU64, Ordering};

/// Of an operation and what it is given, and of what it gives back: with the mark one line. Fewer
/// where a model is checked.
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

/// How far a request is. A buffer that is new is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Mark {
    /// Nobody waits for anything.
    Completed = 0,
    /// To be run.
    Asked = 1,
    /// The home runs it.
    Received = 2,
}

impl Buffer {
    /// How far it is, and what was written before.
    #[inline]
    pub fn mark(&self) -> Mark {
        match self.mark.load(Ordering::Acquire) {
            0 => Mark::Completed,
            1 => Mark::Asked,
            _ => Mark::Received,
        }
    }

    /// Passes on what was written.
    #[inline]
    pub fn set_mark(&self, mark: Mark) {
        self.mark.store(mark as u64, Ordering::Release);
    }

    /// By whose turn it is.
    #[inline]
    pub fn write(&self, words: &[u64; WORDS]) {
        for (to, word) in self.words.iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
    }

    /// What was passed on.
    #[inline]
    pub fn read(&self) -> [u64; WORDS] {
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }
}

/// A word in lines of its own; two, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedWord(AtomicU64);

/// A home's one location, and the buffers of those that may ask it.
#[derive(Debug)]
pub struct OneSlot {
    /// The number of a buffer, and one; 0 at first.
    location: PaddedWord,
    buffers: Box<[Buffer]>,
}

/// What the home has found at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// Nobody has ever asked.
    Nothing,
    /// A pointer to what is marked as received, or completed.
    Ignored,
    /// A request of this requester, which was run.
    Ran(usize),
}

impl OneSlot {
    /// For so many requesters.
    pub fn new(requesters: usize) -> Self {
        Self {
            location: PaddedWord::default(),
            buffers: (0..requesters).map(|_| Buffer::default()).collect(),
        }
    }

    /// The buffer of a requester.
    ///
    /// # Panics
    /// There are not so many.
    #[inline]
    pub fn buffer(&self, number: usize) -> &Buffer {
        &self.buffers[number]
    }

    /// Writes the pointer to a requester's buffer, over whatever stands there.
    #[inline]
    pub fn point_to(&self, number: usize) {
        self.location.0.store(number as u64 + 1, Ordering::Relaxed);
    }

    /// Whose buffer the pointer leads to.
    #[inline]
    pub fn pointed(&self) -> Option<usize> {
        (self.location.0.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// The home looks once, and runs what it finds. By one thread only.
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

    /// A requester asks. What it asked for before is completed.
    #[inline]
    pub fn send(&self, number: usize, words: &[u64; WORDS]) {
        let buffer = self.buffer(number);
        buffer.write(words);
        buffer.set_mark(Mark::Asked);
        self.point_to(number);
    }

    /// It asks again for the same, for that has not been received for some time.
    #[inline]
    pub fn resend(&self, number: usize) {
        self.point_to(number);
    }

    /// Whether it was received: from then on it is waited for, and not sent again.
    #[inline]
    pub fn is_received(&self, number: usize) -> bool {
        self.buffer(number).mark() != Mark::Asked
    }

    /// What it has given back, once it is completed.
    #[inline]
    pub fn take(&self, number: usize) -> Option<[u64; WORDS]> {
        let buffer = self.buffer(number);
        (buffer.mark() == Mark::Completed).then(|| buffer.read())
    }
}
