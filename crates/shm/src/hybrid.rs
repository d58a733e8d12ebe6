//! The hybrid lock: for data that its home and other parties access in place.
//!
//! Source: Psyche, section 3.1 and Figure 1 (P5 here). The home accesses the data even while it
//! serves urgent invocations. It announces that it needs the lock urgently, and the others stand
//! back, so it waits only for those that hold the lock or are just taking it. Under contention each
//! of the others waits on a line of its own, and the lock is handed over, as by Mellor-Crummey and
//! Scott's lock, which the paper names. That lock has a list of waiters, which the death of one
//! would cut. Here the waiters are a set, from which any party can be removed.
//!
//! # How it is handed over
//! ```text
//!   party p waits                              holder g leaves
//!   stand[p] = waits, of a new turn
//!   waiting |= p                               p: the next in `waiting` after g; waiting &= !p
//!   until stand[p] == granted:                 stand[p]: waits → granted by CAS, or next p
//!     now and then: held: free → p             held = p;   if no party is left, held = free
//!   until held == p
//!   stand[p] = outside; waiting &= !p
//! ```
//! **One at a time.** `held` is changed from free by compare-and-swap, and else by the party that
//! it names, or by the home when that party has died. A party enters only when `held` names it.
//!
//! **No party is forgotten.** The set is a hint. A party may be missing from it because it came
//! after the holder had looked, or because the holder died. Such a party finds `held` free when it
//! checks there itself, and enters itself in the set again when it has waited for long
//! ([`Party::look`]).
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
//! **A party gives up** by compare-and-swap from waits to outside. The holder's own
//! compare-and-swap then fails, and the holder goes on to the next party. A party that was granted
//! the lock already has to take it.
//!
//! # When a party dies
//! The home sets the dead party's stand to outside ([`Party::bury`]), so that no holder grants it
//! anything any more. Then the home takes the lock: either from its holder in the ordinary way, or
//! from the dead party itself, if `held` names it ([`Party::inherit`]). Only then is the place free
//! for others, since until then a holder may be about to name it. If `held` names a dead party
//! whose stand did not say that it waits, that party may have left something half done. The kernel
//! ends a process between two of its instructions, and what comes before in the program's order is
//! done.
//!
//! Nothing here waits; the caller decides how. All words lie in memory that the parties can write.
//! A party that breaks the protocol can take the lock from others, or keep it, but it cannot make
//! another party loop here: each function ends after a number of steps that does not depend on what
//! it reads.

use crate::region::Cells;
use crate::sequence::Sequence;
use std::cell::Cell;
use std::ops::Deref;
use upcall_os::atomic::{AtomicU64, Ordering, fence};

/// Maximum number of parties.
pub const PLACES: u16 = 256;

const WORDS: usize = PLACES as usize / 64;

/// Number of turns after which a waiter elsewhere goes before the home.
pub const IN_A_ROW: u64 = 16;

/// The word of a free lock.
const FREE: u64 = 0;

/// States of a stand, in the bits below the number of the turn.
const OUTSIDE: u64 = 0;
const WAITS: u64 = 1;
const GRANTED: u64 = 2;
const STATE: u64 = 3;
const TURN: u64 = 4;

/// The words that all parties change, in one line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Lock {
    /// [`FREE`], or the place of the holder plus one.
    held: AtomicU64,
    /// Number of parties at the home that need the lock now.
    urgent: AtomicU64,
    /// The places of the waiting parties elsewhere.
    waiting: [AtomicU64; WORDS],
    /// Odd while the holder changes the data that the lock protects.
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

/// The line on which one party waits.
///
/// It is written by that party, and by the holder that hands over to it.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Stand {
    state: AtomicU64,
    /// The process of its party, for display.
    process: AtomicU64,
}

// SAFETY: atomics in a C layout, of which every pattern is valid.
unsafe impl Cells for Lock {}
// SAFETY: as above.
unsafe impl Cells for Stand {}

impl Lock {
    /// Offset of the sequence, in bytes.
    pub const SEQUENCE: usize = std::mem::offset_of!(Self, sequence);
    /// Offset of the holder's place plus one, in bytes.
    ///
    /// 0 stands there if the lock is free.
    pub const HELD: usize = std::mem::offset_of!(Self, held);

    /// See [`Party::sequence`].
    #[inline]
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }
}

impl Stand {
    /// Offset of the process of the stand's party, in bytes.
    ///
    /// 0 stands there if the place is free.
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

/// What became of the lock when a party died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// The dead party did not hold the lock, which was free. The caller holds it now.
    Nothing,
    /// The dead party was named, and had not begun. The caller holds the lock now, and nothing is
    /// half done.
    Whole,
    /// The dead party held the lock, and the caller does now. Something may be half done.
    Torn,
}

/// One party to a lock, in its place. Used by one thread at a time.
#[derive(Debug)]
pub struct Party<L, S> {
    lock: L,
    stands: S,
    place: u16,
    /// The turn in its stand, kept here as well so that no store to the stand has to be waited for.
    turn: Cell<u64>,
    /// `true` if the party waits as one at the home.
    at_home: Cell<bool>,
}

impl<L: Deref<Target = Lock>, S: Deref<Target = [Stand]>> Party<L, S> {
    /// The party in a place that no other party has. `None` if there is no such place.
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

    /// The sequence by which readers without the lock detect a change.
    ///
    /// The holder begins and ends its changes by it. It lies in the lock's own line, which the
    /// holder has in its cache then.
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

    /// Returns `true` if [`unlock`](Self::unlock) would hand over at the home.
    ///
    /// A party needs the lock a moment before it waits.
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

    /// Announces that the home needs the lock now.
    ///
    /// Until [`need_no_more`](Self::need_no_more) no other party takes the lock, except for those
    /// that have begun to.
    pub fn need(&self) {
        self.lock.urgent.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the need: the home has the lock, or has given up.
    pub fn need_no_more(&self) {
        self.lock.urgent.fetch_sub(1, Ordering::Relaxed);
    }

    /// Begins to wait for the lock.
    ///
    /// Until the party has the lock or has given up, its thread polls
    /// [`is_granted`](Self::is_granted), and now and then [`look`](Self::look).
    pub fn wait(&self) {
        self.at_home.set(false);
        self.wait_anew();
        self.enter_set();
    }

    /// Begins to wait at the home.
    ///
    /// The home [needs](Self::need) the lock until it has it or has given up.
    pub fn wait_at_home(&self) {
        self.need();
        self.at_home.set(true);
        self.wait_anew();
        self.enter_set();
    }

    /// Begins another turn, so that a holder about to hand over in the turn before does not.
    fn wait_anew(&self) {
        self.turn.set(self.turn.get().wrapping_add(TURN));
        self.own().store(self.turn.get() | WAITS, Ordering::Release);
    }

    fn enter_set(&self) {
        let (word, bit) = Self::place_in(self.own_set(), self.place);
        word.fetch_or(bit, Ordering::SeqCst);
    }

    /// Returns `true` if the lock was handed over: then this party has it.
    ///
    /// It polls a line that no other party writes while this one waits.
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
        // A party that sees what follows sees that store, too.
        fence(Ordering::Release);
        Self::leave_set(self.own_set(), self.place);
    }

    fn leave_set(set: &[AtomicU64; WORDS], place: u16) {
        let (word, bit) = Self::place_in(set, place);
        if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Polls the lock itself. Returns `true` if this party has the lock.
    ///
    /// It takes a free lock if this party is at the home, or if the home does not need the lock. It
    /// enters this party in its set again if it is missing there.
    pub fn look(&self) -> bool {
        if self.is_named() {
            return true;
        }
        if (self.at_home.get() || !self.is_needed()) && self.try_lock_at_home() {
            self.end_wait();
            return true;
        }
        if self.own().load(Ordering::Relaxed) & STATE == GRANTED {
            // The granting holder has not named this party yet, or died before it could. It can
            // still be named.
            self.wait_anew();
        }
        let (word, bit) = Self::place_in(self.own_set(), self.place);
        if word.load(Ordering::Relaxed) & bit == 0 {
            self.enter_set();
        }
        false
    }

    /// Stops waiting.
    ///
    /// Returns `false` if the lock was granted: then poll until it is taken.
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

    /// Releases the lock, which this party holds.
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
            // The first word is visited twice: at first only for the places after this one.
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
        // What the holder has written is visible to the party that finds itself named.
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

    /// At the home: stops all hand-overs to a place whose party has died.
    ///
    /// Returns `true` if the party waited, and so had begun nothing. To be called once, and
    /// followed by [`inherit`](Self::inherit) with the result, until the caller has had the lock.
    pub fn bury(&self, place: u16) -> bool {
        let Some(Stand { state: stand, .. }) = self.stands.get(usize::from(place)) else {
            return true;
        };
        let was = stand.swap(OUTSIDE, Ordering::AcqRel);
        Self::leave_set(&self.lock.waiting, place);
        was & STATE != OUTSIDE
    }

    /// At the home: takes the lock from a dead party that was buried.
    ///
    /// It takes a free lock in the ordinary way. `waited` is what [`bury`](Self::bury) returned.
    /// `None` if another party has the lock now: call it again.
    pub fn inherit(&self, place: u16, waited: bool) -> Option<Inherited> {
        if self.seize(u64::from(place)) {
            return Some(if waited { Inherited::Whole } else { Inherited::Torn });
        }
        self.try_lock_at_home().then_some(Inherited::Nothing)
    }

    /// The place of the holder. It may be no place, if a party has written nonsense.
    pub fn holder(&self) -> Option<u64> {
        self.lock.held.load(Ordering::Relaxed).checked_sub(1)
    }

    /// At the home: records the process that has a place.
    pub fn is_of(&self, place: u16, process: u32) {
        if let Some(stand) = self.stands.get(usize::from(place)) {
            stand.process.store(u64::from(process), Ordering::Relaxed);
        }
    }

    /// The process of the holder, for display. Any party could have written it.
    pub fn holder_process(&self) -> Option<u32> {
        let stand = self.stands.get(usize::try_from(self.holder()?).ok()?)?;
        u32::try_from(stand.process.load(Ordering::Relaxed)).ok().filter(|&process| process != 0)
    }

    /// At the home: takes the lock from an invalid [`holder`](Self::holder).
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

/// The promises of the lock, step by step on one thread.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    type Ours = Party<Arc<Lock>, Arc<[Stand]>>;

    fn parties<const N: usize>() -> [Ours; N] {
        let lock = Arc::new(Lock::default());
        let stands: Arc<[Stand]> = (0..PLACES).map(|_| Stand::default()).collect();
        // In different words of the sets, and in the same word.
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
            "the home still needs it"
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
            assert!(waits.is_granted(), "it waited for at most one other party");
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
