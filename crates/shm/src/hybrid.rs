//! The hybrid lock: for data that others touch where they are and that its home touches, too, also
//! while it serves what is urgent.
//!
//! Source: Psyche, section 3.1 and Figure 1 (P5 here). The home says that it needs the lock
//! urgently, and the others stand back, so it waits for those only who had it, or were just taking
//! it. Under contention each of the others waits on a line of its own, and the lock is handed over,
//! as by Mellor-Crummey and Scott's lock, which the paper names. That has a list of those who wait,
//! which one that was killed would cut; here they are a set, from which anybody can be taken.
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
//! **One at a time.** `held` is changed from free by compare-and-swap, and else by who it names, or
//! by the home when that has died. A party goes in when it names that party and in no other case.
//!
//! **Nobody is forgotten.** The set is a hint: a party that is not in it, because it came when the
//! holder had looked already or because that died, finds `held` free when it looks there itself,
//! and enters itself in the set again when it has waited for long ([`Party::look`]).
//!
//! **The home comes first, one party after the other.** Waiting parties at the home form a set of
//! their own, and get the lock before all others. While a party at the home needs the lock, no
//! other party starts to take it. So a party at the home waits for the holder, for parties that
//! were just taking the lock, and for each other party at the home once.
//!
//! **The home starves no other party.** If parties at the home pass the lock on without a pause,
//! each [`IN_A_ROW`]th turn goes to a waiting party elsewhere. A party at the home waits for one
//! more operation because of that, at most.
//!
//! **Who gives up** does so by compare-and-swap from waits to outside, so the holder's fails, and
//! it goes on to the next. Who was granted already has to take it.
//!
//! # When a party dies
//! Its home puts its stand to outside ([`Party::bury`]), so that nobody grants it anything any
//! more, and takes the lock: either from whoever has it in the ordinary way, or from the dead party
//! itself, if `held` names it ([`Party::inherit`]). Only then is its place free for others, for
//! until then a holder may be about to name it. Whom `held` names, and whose stand did not say that
//! it waits, may have left something half done: the kernel ends a process between two of its
//! instructions, and what comes before in the program's order is done.
//!
//! Nothing here waits; the caller decides how. Everything lies in memory that the parties can
//! write: one that does not keep to this takes the lock from others, or keeps it. It makes no other
//! one loop here: each function ends after a number of steps that does not depend on what it reads.

use crate::region::Cells;
use crate::sequence::Sequence;
use std::cell::Cell;
use std::ops::Deref;
use upcall_os::atomic::{AtomicU64, Ordering, fence};

/// So many parties at most.
pub const PLACES: u16 = 256;

const WORDS: usize = PLACES as usize / 64;

/// Number of turns after which a waiting party elsewhere gets the lock though the home needs it.
pub const IN_A_ROW: u64 = 16;

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
    home: AtHome,
}

/// Words that are used only while the home needs the lock.
#[repr(C, align(64))]
#[derive(Debug)]
struct AtHome {
    /// The places of the waiting parties at the home.
    waiting: [AtomicU64; WORDS],
    /// Number of turns with waiters elsewhere. Changed by the holder of the lock.
    turns: AtomicU64,
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
            home: AtHome {
                waiting: std::array::from_fn(|_| AtomicU64::new(0)),
                turns: AtomicU64::new(0),
            },
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
    /// It did not hold it, and does not now; it may be about to be named, until the lock was had by
    /// the caller once.
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
    /// What its stand says of the turn. Kept here, too, so that no store to it has to be waited
    /// for.
    turn: Cell<u64>,
    /// This party waits as one at the home.
    at_home: Cell<bool>,
}

impl<L: Deref<Target = Lock>, S: Deref<Target = [Stand]>> Party<L, S> {
    /// The party in a place that no other one has. `None` if there is no such place.
    pub fn new(lock: L, stands: S, place: u16) -> Option<Self> {
        let turn = stands.get(usize::from(place))?.state.load(Ordering::Relaxed) & !STATE;
        (place < PLACES).then_some(Self {
            lock,
            stands,
            place,
            turn: Cell::new(turn),
            at_home: Cell::new(false),
        })
    }

    /// By which those who only look find out that something has changed: who has the lock begins
    /// and ends its changes by it. In the lock's own line, which is here then.
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

    /// The set in which this party waits.
    fn own_set(&self) -> &[AtomicU64; WORDS] {
        if self.at_home.get() { &self.lock.home.waiting } else { &self.lock.waiting }
    }

    /// The word of a set that a place is in, and its bit.
    fn place_in(set: &[AtomicU64; WORDS], place: u16) -> (&AtomicU64, u64) {
        (&set[usize::from(place) / 64], 1 << (place % 64))
    }

    /// Returns `true` if a party at the home needs the lock now.
    #[inline]
    pub fn is_needed(&self) -> bool {
        self.lock.urgent.load(Ordering::Relaxed) != 0
    }

    /// Returns `true` if [`unlock`](Self::unlock) would now hand over to a party at the home. A
    /// party needs the lock a moment before that.
    pub fn has_waiting_at_home(&self) -> bool {
        self.lock.home.waiting.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Takes the lock if it is free and the home does not need it.
    #[inline]
    pub fn try_lock(&self) -> bool {
        !self.is_needed() && self.try_lock_at_home()
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock_at_home(&self) -> bool {
        self.lock
            .held
            .compare_exchange(FREE, self.name(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// The home needs the lock now: until [`need_no_more`](Self::need_no_more) nobody else takes it
    /// who has not begun to.
    pub fn need(&self) {
        self.lock.urgent.fetch_add(1, Ordering::SeqCst);
    }

    /// The home has it, or has given up.
    pub fn need_no_more(&self) {
        self.lock.urgent.fetch_sub(1, Ordering::Relaxed);
    }

    /// Begins to wait for the lock. Until it has it, or has given up, its thread looks again and
    /// again: [`is_granted`](Self::is_granted), and now and then [`look`](Self::look).
    pub fn wait(&self) {
        self.at_home.set(false);
        self.wait_anew();
        self.enter_set();
    }

    /// The same at the home, which [needs](Self::need) the lock until it has it or has given up.
    pub fn wait_at_home(&self) {
        self.need();
        self.at_home.set(true);
        self.wait_anew();
        self.enter_set();
    }

    /// Another turn begins: who was about to hand over in the one before does not.
    fn wait_anew(&self) {
        self.turn.set(self.turn.get().wrapping_add(TURN));
        self.own().store(self.turn.get() | WAITS, Ordering::Release);
    }

    fn enter_set(&self) {
        let (word, bit) = Self::place_in(self.own_set(), self.place);
        word.fetch_or(bit, Ordering::SeqCst);
    }

    /// Whether the lock was handed over: then it is had. Looks at a line that nobody else writes
    /// meanwhile.
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
        Self::leave_set(self.own_set(), self.place);
    }

    fn leave_set(set: &[AtomicU64; WORDS], place: u16) {
        let (word, bit) = Self::place_in(set, place);
        if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// The other look, at the lock itself. Takes a free lock if this party is at the home, or if
    /// the home does not need the lock. Enters this party in its set again if it is missing there.
    /// Returns `true` if this party has the lock.
    pub fn look(&self) -> bool {
        if self.is_named() {
            return true;
        }
        if (self.at_home.get() || !self.is_needed()) && self.try_lock_at_home() {
            self.end_wait();
            return true;
        }
        if self.own().load(Ordering::Relaxed) & STATE == GRANTED {
            // By one who has not named it yet, or has died before it could: it can still be named.
            self.wait_anew();
        }
        let (word, bit) = Self::place_in(self.own_set(), self.place);
        if word.load(Ordering::Relaxed) & bit == 0 {
            self.enter_set();
        }
        false
    }

    /// Waits no longer. False if the lock was granted: it is to be taken, by looking on.
    #[must_use]
    pub fn give_up(&self) -> bool {
        let turn = self.turn.get();
        let left = self
            .own()
            .compare_exchange(turn | WAITS, turn | OUTSIDE, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if left {
            Self::leave_set(self.own_set(), self.place);
        }
        left
    }

    /// Lets go of the lock, which this party has.
    #[inline]
    pub fn unlock(&self) {
        let waits =
            self.lock.waiting.iter().fold(0, |all, word| all | word.load(Ordering::Relaxed));
        let is_handed_over = if self.is_needed() {
            self.hand_over_at_home(waits != 0)
        } else {
            waits != 0 && self.hand_over(&self.lock.waiting)
        };
        if !is_handed_over {
            self.lock.held.store(FREE, Ordering::Release);
        }
    }

    /// Hands over to a party at the home, or to one elsewhere after [`IN_A_ROW`] turns. Returns
    /// `false` if no party waits.
    #[cold]
    fn hand_over_at_home(&self, others_wait: bool) -> bool {
        if others_wait {
            let turns = self.lock.home.turns.load(Ordering::Relaxed).wrapping_add(1);
            self.lock.home.turns.store(turns, Ordering::Relaxed);
            if turns.is_multiple_of(IN_A_ROW) && self.hand_over(&self.lock.waiting) {
                return true;
            }
        }
        self.hand_over(&self.lock.home.waiting)
    }

    /// Hands over to the next party of a set after this place. Returns `false` if none waits there.
    #[cold]
    fn hand_over(&self, set: &[AtomicU64; WORDS]) -> bool {
        let first = usize::from(self.place) + 1;
        for at in 0..=WORDS {
            let number = (first / 64 + at) % WORDS;
            // The word that this begins in comes twice: at first only what is after this place.
            let mut bits = set[number].load(Ordering::Relaxed);
            if at == 0 {
                bits &= u64::MAX << (first % 64);
            }
            while bits != 0 {
                let place = (number * 64) as u16 + bits.trailing_zeros() as u16;
                bits &= bits - 1;
                Self::leave_set(set, place);
                if self.grant(place) {
                    return true;
                }
            }
        }
        false
    }

    fn grant(&self, place: u16) -> bool {
        let Some(Stand { state: stand, .. }) = self.stands.get(usize::from(place)) else {
            return false;
        };
        let now = stand.load(Ordering::Relaxed);
        // What the holder has written is there for who finds itself named.
        let granted = place != self.place
            && now & STATE == WAITS
            && stand
                .compare_exchange(now, now & !STATE | GRANTED, Ordering::Release, Ordering::Relaxed)
                .is_ok();
        if granted {
            self.lock.held.store(u64::from(place) + 1, Ordering::Release);
        }
        granted
    }

    /// At the home: nobody hands over to a place any more whose party has died. To be called once,
    /// and then [`inherit`](Self::inherit) with what it returns, until the lock was had by the
    /// caller. True if it waited, and so had begun nothing.
    pub fn bury(&self, place: u16) -> bool {
        let Some(Stand { state: stand, .. }) = self.stands.get(usize::from(place)) else {
            return true;
        };
        let was = stand.swap(OUTSIDE, Ordering::AcqRel);
        Self::leave_set(&self.lock.waiting, place);
        was & STATE != OUTSIDE
    }

    /// At the home: takes the lock from one who has died, was buried, and waited or not. Or in the
    /// ordinary way, if it is free. `None` if another one has it now: to be asked again.
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
        let seized = self
            .lock
            .held
            .compare_exchange(theirs, self.name(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if seized && self.own().load(Ordering::Relaxed) & STATE != OUTSIDE {
            self.end_wait();
        }
        seized
    }
}

/// The lock's promises, step by step on one thread.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    type Ours = Party<Arc<Lock>, Arc<[Stand]>>;

    fn parties<const N: usize>() -> [Ours; N] {
        let lock = Arc::new(Lock::default());
        let stands: Arc<[Stand]> = (0..PLACES).map(|_| Stand::default()).collect();
        // In different words of the sets, and in one.
        std::array::from_fn(|number| {
            Party::new(lock.clone(), stands.clone(), number as u16 * 37 + 1).unwrap()
        })
    }

    #[test]
    fn others_stand_back_while_the_home_needs_it() {
        let [home, waits, comes]: [Ours; 3] = parties();
        home.need();
        assert!(!comes.try_lock());
        waits.wait();
        assert!(!waits.is_granted() && !waits.look());
        assert!(home.try_lock_at_home());
        assert!(!comes.try_lock());
        home.unlock();
        assert!(
            home.holder().is_none() && !waits.is_granted() && !waits.look(),
            "it is needed still"
        );
        home.need_no_more();
        assert!(waits.look() && !comes.try_lock());
        waits.unlock();
        assert!(comes.try_lock());
    }

    #[test]
    fn the_next_turn_is_the_homes_whoever_waits_for_longer() {
        let [home, holder, first, second]: [Ours; 4] = parties();
        assert!(holder.try_lock());
        [&first, &second].into_iter().for_each(Party::wait);
        home.wait_at_home();
        assert!(!home.is_granted() && !home.look());
        holder.unlock();
        assert!(home.is_granted() && !first.is_granted() && !second.is_granted());
        home.need_no_more();
        // Then the others have their turns.
        home.unlock();
        let order = [first.is_granted(), second.is_granted()];
        assert_eq!(order, [true, false]);
        first.unlock();
        assert!(second.is_granted());
    }

    /// Each party waits for one turn of each other party.
    #[test]
    fn parties_at_home_have_their_turns_one_after_the_other() {
        let homes: [Ours; 4] = parties();
        assert!(homes[0].try_lock_at_home());
        homes[1..].iter().for_each(Party::wait_at_home);
        let mut turns = [0_u32; 4];
        let mut holder = 0;
        for turn in 0..400 {
            // The last holder wants the lock again at once.
            homes[holder].unlock();
            assert!(!homes[holder].try_lock_at_home(), "turn {turn}");
            homes[holder].wait_at_home();
            let next = (0..4).filter(|&other| homes[other].is_granted()).collect::<Vec<_>>();
            assert_eq!(next.len(), 1, "turn {turn}");
            holder = next[0];
            homes[holder].need_no_more();
            turns[holder] += 1;
        }
        assert_eq!(turns, [100; 4]);
    }

    /// Two parties at the home want the lock all the time.
    #[test]
    fn a_busy_home_starves_nobody_and_waits_for_one_more_at_most() {
        let [one, other, away]: [Ours; 3] = parties();
        let (mut own, mut theirs, mut since) = (0_u64, 0_u64, 0);
        assert!(one.try_lock_at_home());
        other.wait_at_home();
        away.wait();
        let (mut holder, mut waits) = (&one, &other);
        for _ in 0..20 * IN_A_ROW {
            holder.unlock();
            holder.wait_at_home();
            if away.is_granted() {
                theirs += 1;
                assert!(since <= IN_A_ROW, "{since} turns of the home in between");
                since = 0;
                away.unlock();
                away.wait();
            }
            assert!(waits.is_granted(), "it waited for one other at most");
            waits.need_no_more();
            (own, since) = (own + 1, since + 1);
            std::mem::swap(&mut holder, &mut waits);
        }
        assert!(theirs >= 15 && own == 20 * IN_A_ROW, "{theirs} and {own}");
    }

    #[test]
    fn a_party_that_does_not_wait_is_passed_over() {
        let [holder, gone, waits]: [Ours; 3] = parties();
        assert!(holder.try_lock());
        waits.wait();
        // Its place is still in the set, as in the moment after it has given up.
        gone.enter_set();
        holder.unlock();
        assert!(!gone.is_granted() && waits.is_granted());
    }

    #[test]
    fn one_at_home_that_gives_up_is_handed_nothing() {
        let [home, holder, comes]: [Ours; 3] = parties();
        assert!(holder.try_lock());
        home.wait_at_home();
        assert!(home.give_up());
        home.need_no_more();
        holder.unlock();
        assert!(!home.is_granted() && comes.try_lock());
        comes.unlock();
        // A granted lock has to be taken.
        assert!(holder.try_lock());
        home.wait_at_home();
        holder.unlock();
        assert!(!home.give_up() && home.is_granted());
    }
}
