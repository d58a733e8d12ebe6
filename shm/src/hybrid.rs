//! The hybrid lock: for data that others touch where they are and that its home touches, too, also while it serves what is urgent.
//!
//! Source: Psyche, section 3.1 and Figure 1 (P5 here). The home says that it needs the lock urgently, and the others stand back, so it waits for those only who had it, or were just taking it. Under contention each of the others waits on a
//! line of its own, and the lock is handed over, as by Mellor-Crummey and Scott's lock, which the paper names. That has a list of those who wait, which one that was killed would cut; here they are a set, from which anybody can be taken.
//!
//! # How it is handed over
//! ```text
//!   party p waits                              holder g leaves
//!   stand[p] = waits, of a new turn
//!   waiting |= p                               p: the next in `waiting` after g; waiting &= !p
//!   until stand[p] == granted:                 stand[p]: waits → granted, by compare-and-swap; else the next one
//!     now and then: held: free → p             held = p;   if nobody is left, held = free
//!   until held == p
//!   stand[p] = outside; waiting &= !p
//! ```
//! **One at a time.** `held` is changed from free by compare-and-swap, and else by who it names, or by the home when that has died. A party goes in when it names that party and in no other case.
//!
//! **Nobody is forgotten.** The set is a hint: a party that is not in it, because it came when the holder had looked already or because that died, finds `held` free when it looks there itself, and enters itself in the set again when
//! it has waited for long ([`Party::look`]).
//!
//! **Who gives up** does so by compare-and-swap from waits to outside, so the holder's fails, and it goes on to the next. Who was granted already has to take it.
//!
//! # When a party dies
//! Its home puts its stand to outside ([`Party::bury`]), so that nobody grants it anything any more, and takes the lock: either from whoever has it in the ordinary way, or from the dead party itself, if `held` names it
//! ([`Party::inherit`]). Only then is its place free for others, for until then a holder may be about to name it. Whom `held` names, and whose stand did not say that it waits, may have left something half done: the kernel ends a process
//! between two of its instructions, and what comes before in the program's order is done.
//!
//! Nothing here waits; the caller decides how. Everything lies in memory that the parties can write: one that does not keep to this takes the lock from others, or keeps it. It makes no other one loop here: each function ends after a number of steps that does not depend on what it reads.

use crate::region::Cells;
use crate::sequence::Sequence;
use std::cell::Cell;
use std::ops::Deref;
use upcall_os::atomic::{AtomicU64, Ordering, fence};

/// So many parties at most.
pub const PLACES: u16 = 256;

const WORDS: usize = PLACES as usize / 64;

/// The word of a lock that nobody holds.
const FREE: u64 = 0;

/// What a stand says, below the number of the turn.
const OUTSIDE: u64 = 0;
const WAITS: u64 = 1;
const GRANTED: u64 = 2;
const STATE: u64 = 3;
const TURN: u64 = 4;

/// What all parties change, in one line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Lock {
    /// Free, or the place of who holds it, and one.
    held: AtomicU64,
    /// So many at the home need it now.
    urgent: AtomicU64,
    /// The places of those who wait.
    waiting: [AtomicU64; WORDS],
    /// Odd while somebody changes what the lock is for.
    sequence: Sequence,
}

/// Where one party waits: a line that is written by it, and by who hands over to it.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Stand {
    state: AtomicU64,
    /// The process of its party, for people.
    process: AtomicU64,
}

// SAFETY: atomics in a C layout, of which every pattern is valid.
unsafe impl Cells for Lock {}
// SAFETY: as above.
unsafe impl Cells for Stand {}

impl Lock {
    /// Where its sequence is, in bytes.
    pub const SEQUENCE: usize = std::mem::offset_of!(Self, sequence);
    /// Where the place of who holds it is, and one; 0 if nobody does.
    pub const HELD: usize = std::mem::offset_of!(Self, held);

    /// See [`Party::sequence`].
    #[inline]
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }
}

impl Stand {
    /// Where the process of its party is, in bytes; 0 if nobody has the place.
    pub const PROCESS: usize = std::mem::offset_of!(Self, process);
}

impl Default for Lock {
    fn default() -> Self {
        Self {
            held: AtomicU64::new(FREE),
            urgent: AtomicU64::new(0),
            waiting: std::array::from_fn(|_| AtomicU64::new(0)),
            sequence: Sequence::default(),
        }
    }
}

impl Default for Stand {
    fn default() -> Self {
        Self { state: AtomicU64::new(OUTSIDE), process: AtomicU64::new(0) }
    }
}

/// What became of the lock of one who has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// It did not hold it, and does not now; it may be about to be named, until the lock was had by the caller once.
    Nothing,
    /// It was named, and had not begun: the caller holds it now, and nothing is half done.
    Whole,
    /// It held it, and the caller does now. Something may be half done.
    Torn,
}

/// One party to a lock, in its place. Used by one thread at a time.
#[derive(Debug)]
pub struct Party<L, S> {
    lock: L,
    stands: S,
    place: u16,
    /// What its stand says of the turn. Kept here, too, so that no store to it has to be waited for.
    turn: Cell<u64>,
}

impl<L: Deref<Target = Lock>, S: Deref<Target = [Stand]>> Party<L, S> {
    /// The party in a place that no other one has. `None` if there is no such place.
    pub fn new(lock: L, stands: S, place: u16) -> Option<Self> {
        let turn = stands.get(usize::from(place))?.state.load(Ordering::Relaxed) & !STATE;
        (place < PLACES).then_some(Self { lock, stands, place, turn: Cell::new(turn) })
    }

    /// By which those who only look find out that something has changed: who has the lock begins and ends its changes by it. In the lock's own line, which is here then.
    #[inline]
    pub fn sequence(&self) -> &Sequence {
        &self.lock.sequence
    }

    /// Its place.
    pub fn place(&self) -> u16 {
        self.place
    }

    #[inline]
    fn own(&self) -> &AtomicU64 {
        &self.stands[usize::from(self.place)].state
    }

    #[inline]
    fn name(&self) -> u64 {
        u64::from(self.place) + 1
    }

    /// The word in which a place waits, and its bit.
    fn waits_in(&self, place: u16) -> (&AtomicU64, u64) {
        (&self.lock.waiting[usize::from(place) / 64], 1 << (place % 64))
    }

    /// Takes the lock if it is free and the home does not need it.
    #[inline]
    pub fn try_lock(&self) -> bool {
        self.lock.urgent.load(Ordering::Relaxed) == 0 && self.try_lock_at_home()
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock_at_home(&self) -> bool {
        self.lock.held.compare_exchange(FREE, self.name(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The home needs the lock now: until [`need_no_more`](Self::need_no_more) nobody else takes it who has not begun to.
    pub fn need(&self) {
        self.lock.urgent.fetch_add(1, Ordering::SeqCst);
    }

    /// The home has it, or has given up.
    pub fn need_no_more(&self) {
        self.lock.urgent.fetch_sub(1, Ordering::Relaxed);
    }

    /// Begins to wait for the lock. Until it has it, or has given up, its thread looks again and again: [`is_granted`](Self::is_granted), and now and then [`look`](Self::look).
    pub fn wait(&self) {
        self.wait_anew();
        self.enter_set();
    }

    /// Another turn begins: who was about to hand over in the one before does not.
    fn wait_anew(&self) {
        self.turn.set(self.turn.get().wrapping_add(TURN));
        self.own().store(self.turn.get() | WAITS, Ordering::Release);
    }

    fn enter_set(&self) {
        let (word, bit) = self.waits_in(self.place);
        word.fetch_or(bit, Ordering::SeqCst);
    }

    /// Whether the lock was handed over: then it is had. Looks at a line that nobody else writes meanwhile.
    #[inline]
    pub fn is_granted(&self) -> bool {
        self.own().load(Ordering::Acquire) & STATE == GRANTED && self.is_named()
    }

    fn is_named(&self) -> bool {
        let named = self.lock.held.load(Ordering::Acquire) == self.name();
        if named {
            self.end_wait();
        }
        named
    }

    fn end_wait(&self) {
        self.own().store(self.turn.get() | OUTSIDE, Ordering::Relaxed);
        // Whoever finds what comes now finds that, too.
        fence(Ordering::Release);
        self.leave_set(self.place);
    }

    fn leave_set(&self, place: u16) {
        let (word, bit) = self.waits_in(place);
        if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// The other look, at the lock itself: takes it if it is free and the home does not need it, and sees to it that this party is not forgotten. True if it is had.
    pub fn look(&self) -> bool {
        if self.is_named() {
            return true;
        }
        if self.lock.urgent.load(Ordering::Relaxed) == 0
            && self.lock.held.compare_exchange(FREE, self.name(), Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            self.end_wait();
            return true;
        }
        if self.own().load(Ordering::Relaxed) & STATE == GRANTED {
            // By one who has not named it yet, or has died before it could: it can still be named.
            self.wait_anew();
        }
        let (word, bit) = self.waits_in(self.place);
        if word.load(Ordering::Relaxed) & bit == 0 {
            self.enter_set();
        }
        false
    }

    /// Waits no longer. False if the lock was granted: it is to be taken, by looking on.
    #[must_use]
    pub fn give_up(&self) -> bool {
        let turn = self.turn.get();
        let left = self.own().compare_exchange(turn | WAITS, turn | OUTSIDE, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if left {
            self.leave_set(self.place);
        }
        left
    }

    /// Lets go of the lock, which this party has.
    #[inline]
    pub fn unlock(&self) {
        let waits = self.lock.waiting.iter().fold(0, |all, word| all | word.load(Ordering::Relaxed));
        if waits != 0 && self.lock.urgent.load(Ordering::Relaxed) == 0 && self.hand_over() {
            return;
        }
        self.lock.held.store(FREE, Ordering::Release);
    }

    /// Hands over to the next one after this place. False if nobody waits.
    #[cold]
    fn hand_over(&self) -> bool {
        let first = usize::from(self.place) + 1;
        for at in 0..=WORDS {
            let number = (first / 64 + at) % WORDS;
            // The word that this begins in comes twice: at first only what is after this place.
            let mut bits = self.lock.waiting[number].load(Ordering::Relaxed);
            if at == 0 {
                bits &= u64::MAX << (first % 64);
            }
            while bits != 0 {
                let place = (number * 64) as u16 + bits.trailing_zeros() as u16;
                bits &= bits - 1;
                self.leave_set(place);
                if self.grant(place) {
                    return true;
                }
            }
        }
        false
    }

    fn grant(&self, place: u16) -> bool {
        let Some(Stand { state: stand, .. }) = self.stands.get(usize::from(place)) else { return false };
        let now = stand.load(Ordering::Relaxed);
        // What the holder has written is there for who finds itself named.
        let granted = place != self.place
            && now & STATE == WAITS
            && stand.compare_exchange(now, now & !STATE | GRANTED, Ordering::Release, Ordering::Relaxed).is_ok();
        if granted {
            self.lock.held.store(u64::from(place) + 1, Ordering::Release);
        }
        granted
    }

    /// At the home: nobody hands over to a place any more whose party has died. To be called once, and then [`inherit`](Self::inherit) with what it returns, until the lock was had by the caller. True if it waited, and so had begun nothing.
    pub fn bury(&self, place: u16) -> bool {
        let Some(Stand { state: stand, .. }) = self.stands.get(usize::from(place)) else { return true };
        let was = stand.swap(OUTSIDE, Ordering::AcqRel);
        self.leave_set(place);
        was & STATE != OUTSIDE
    }

    /// At the home: takes the lock from one who has died, was buried, and waited or not. Or in the ordinary way, if it is free. `None` if another one has it now: to be asked again.
    pub fn inherit(&self, place: u16, waited: bool) -> Option<Inherited> {
        if self.seize(u64::from(place)) {
            return Some(if waited { Inherited::Whole } else { Inherited::Torn });
        }
        self.try_lock_at_home().then_some(Inherited::Nothing)
    }

    /// The place of who holds it now, which is no place if somebody has written what is none.
    pub fn holder(&self) -> Option<u64> {
        self.lock.held.load(Ordering::Relaxed).checked_sub(1)
    }

    /// At the home: says whose a place is.
    pub fn is_of(&self, place: u16, process: u32) {
        if let Some(stand) = self.stands.get(usize::from(place)) {
            stand.process.store(u64::from(process), Ordering::Relaxed);
        }
    }

    /// The process of who holds it now, for people: anybody could have written it.
    pub fn holder_process(&self) -> Option<u32> {
        let stand = self.stands.get(usize::try_from(self.holder()?).ok()?)?;
        u32::try_from(stand.process.load(Ordering::Relaxed)).ok().filter(|&process| process != 0)
    }

    /// At the home: takes the lock from a holder that is none, as read by [`holder`](Self::holder).
    pub fn seize(&self, holder: u64) -> bool {
        let theirs = holder.wrapping_add(1);
        self.lock.held.compare_exchange(theirs, self.name(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}
