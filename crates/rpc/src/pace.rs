//! Turns for others while a large value is copied.
//!
//! Before a procedure is entered, and after it has returned, the server's code holds no lock. So
//! between the pieces of a value the call gives way, first to requests of other clients and then to
//! the other threads of its virtual processor. A call of any size delays others by the time of one
//! piece, about 50 µs.
//!
//! A caller of a server on another machine gives way as well, while it copies its arguments to
//! memory of its own: other callers may share its processor. It begins after [`AT_ONCE`] bytes. On
//! one machine a caller writes its arguments in one copy.

use std::cell::Cell;
use upcall_os::memory;
use upcall_sched::give_way;

pub(crate) use upcall_sched::PIECE;

/// Minimum cost of freeing one value, in bytes that are copied in the same time.
const OF_FREEING: usize = 64;

/// Minimum cost of reading or writing one element of a list, in bytes that are copied in the same
/// time.
pub(crate) const OF_ELEMENT: usize = 16;

/// Minimum cost of writing one text or list, in bytes that are copied in the same time.
pub(crate) const OF_WRITING: usize = 64;

/// Minimum cost of making one text or list, in bytes that are copied in the same time: an
/// allocation, and its share of a page that the kernel has to provide.
pub(crate) const OF_MAKING: usize = 256;

/// Number of values that are freed before the C library is asked to merge their blocks.
const MERGED: usize = PIECE / OF_FREEING;

/// Number of words in a piece.
pub(crate) const WORDS: usize = PIECE / 8;

/// Number of bytes that a caller copies before others get their first turn. That takes 0.1 ms.
/// Turns would take a hundredth of a call with as many bytes.
const AT_ONCE: usize = 1 << 20;

/// Counts the work since the last turn of others; see the module.
#[derive(Debug)]
pub struct Pace {
    gives_way: bool,
    since: Cell<usize>,
    /// Number of bytes since the last turn after which the next one comes.
    next: Cell<usize>,
    freed: Cell<usize>,
}

impl Pace {
    #[inline]
    pub(crate) fn new(gives_way: bool) -> Self {
        let next = Cell::new(PIECE);
        Self { gives_way, since: Cell::new(0), next, freed: Cell::new(0) }
    }

    /// Counts the work of a caller that gives way.
    pub(crate) fn of_caller() -> Self {
        Self { next: Cell::new(AT_ONCE), ..Self::new(true) }
    }

    pub(crate) fn gives_way(&self) -> bool {
        self.gives_way
    }

    /// Counts this many copied bytes.
    #[inline]
    pub(crate) fn spent(&self, bytes: usize) {
        let since = self.since.get().saturating_add(bytes);
        self.since.set(since);
        if since >= self.next.get() {
            self.give_way();
        }
    }

    /// Counts a value of this many bytes that was freed.
    pub(crate) fn freed(&self, bytes: usize) {
        self.freed.set(self.freed.get() + 1);
        if self.freed.get() >= MERGED {
            self.freed.set(0);
            memory::merge_freed();
        }
        self.spent(bytes.max(OF_FREEING));
    }

    /// Frees a list whose values need no drop, in pieces if the C library would return its memory
    /// to the kernel at once. Returning takes 0.1 ms for each MiB.
    pub(crate) fn free<T>(&self, list: Vec<T>) {
        memory::free_in_pieces(list, PIECE, |bytes| self.spent(bytes));
    }

    #[cold]
    fn give_way(&self) {
        self.since.set(0);
        self.next.set(PIECE);
        if self.gives_way {
            give_way();
        }
    }
}

/// Makes `words` words of zeros in pieces. Returns `None` if there is no memory for them.
pub(crate) fn zeroed(words: usize) -> Option<Vec<u64>> {
    let mut block = Vec::new();
    block.try_reserve_exact(words).ok()?;
    while block.len() < words {
        if !block.is_empty() {
            give_way();
        }
        block.resize(words.min(block.len() + WORDS), 0);
    }
    Some(block)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::decode::{Decoder, DecoderSide, Malformed, QuotaScope};
    use crate::encode::{Encoder, RoomContents, block_len};
    use crate::interface::Limits;
    use crate::session::Session;
    use crate::session::tests::account;
    use crate::value::Layout;
    use crate::value::{Get, Put};
    use std::sync::Arc;
    use upcall_os::atomic::{AtomicBool, AtomicUsize, Ordering};
    use upcall_shm::span::WritableSpan;

    const LIMITS: Limits = Limits { string: u64::MAX, list: u64::MAX, values: 64 << 20 };

    /// Number of turns that another thread of the virtual processor gets while `work` runs.
    fn turns_during(work: impl FnOnce() + Send + 'static) -> usize {
        let ran = upcall_thread::Processors::new().count(1).run(|| {
            let (turns, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
            let (counted, ends) = (turns.clone(), over.clone());
            let other = upcall_thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    counted.fetch_add(1, Ordering::Relaxed);
                    upcall_thread::yield_now();
                }
            });
            let before = turns.load(Ordering::Relaxed);
            work();
            let during = turns.load(Ordering::Relaxed) - before;
            over.store(true, Ordering::Relaxed);
            other.join().unwrap();
            during
        });
        ran.unwrap()
    }

    /// Number of turns that others get while a server reads this value, and while it writes it.
    fn turns<T: Put + Get + Send + 'static>(value: T) -> (usize, usize) {
        let mut words = vec![0; block_len(&value).div_ceil(8)];
        Encoder::block(WritableSpan::of_words(&mut words), &value, LIMITS, None).unwrap();
        let session = Arc::new(Session::new(account(64 << 20)));
        let (of_reader, mut block) = (session.clone(), words.clone());
        let read = turns_during(move || {
            let len = block.len() * 8;
            let span = WritableSpan::of_words(&mut block).part(0, len).unwrap();
            drop(
                T::get(&Decoder::new(span, T::SIZE, LIMITS, DecoderSide::Server(&of_reader)), 0)
                    .unwrap(),
            );
        });
        let written = turns_during(move || {
            Encoder::block(WritableSpan::of_words(&mut words), &value, LIMITS, Some(&session))
                .unwrap();
        });
        (read, written)
    }

    #[test]
    fn others_have_turns_while_a_server_reads_or_writes_a_large_value() {
        let pieces = (4 << 20) / PIECE;
        let found = [
            turns(vec![7_u64; 4 << 17]),
            turns(vec![7_u8; 4 << 20]),
            turns("x".repeat(4 << 20)),
            turns(vec!["x".repeat(64 << 10); 64]),
            turns(vec![vec![7_u16; 1 << 15]; 64]),
        ];
        for (at, (read, written)) in found.into_iter().enumerate() {
            assert!(
                read + 1 >= pieces && written + 1 >= pieces,
                "value {at}: {read} and {written} turns, not {pieces}"
            );
        }
        // Small texts cost more time than their number of bytes suggests.
        let (count, (read, written)) = (50_000, turns(vec![String::from("x"); 50_000]));
        assert!(
            read + 1 >= count * OF_MAKING / PIECE && written + 1 >= count * OF_WRITING / PIECE,
            "{read}, {written}"
        );
        let (read, written) = turns(vec![None::<u8>; 1 << 20]);
        let pieces = (1 << 20) * OF_ELEMENT / PIECE;
        assert!(read + 1 >= pieces && written + 1 >= pieces, "{read}, {written}");
        // A small value is read at once.
        assert_eq!(turns(vec![7_u64; 100]), (0, 0));
    }

    #[test]
    fn others_have_turns_while_a_caller_writes_a_large_argument_for_another_machine() {
        let value = vec![7_u64; 4 << 17];
        let pieces = ((4 << 20) - AT_ONCE) / PIECE;
        for contents in [RoomContents::Own, RoomContents::Foreign] {
            let (value, mut words) = (value.clone(), vec![0; block_len(&value).div_ceil(8)]);
            let turns = turns_during(move || {
                let room = WritableSpan::of_words(&mut words);
                match contents {
                    RoomContents::Own => Encoder::block_in_turns(room, &value, LIMITS),
                    RoomContents::Foreign => Encoder::block_over(room, &value, LIMITS),
                }
                .unwrap();
            });
            assert!(turns + 1 >= pieces, "{contents:?}: {turns} turns, not {pieces}");
        }
    }

    #[test]
    fn others_have_turns_while_a_large_value_is_freed() {
        // Pages that were never touched take no memory.
        fn large() -> Vec<u64> {
            vec![0; 8 << 20]
        }
        let freed = |free: fn(&Pace)| turns_during(move || free(&Pace::new(true)));
        let many = (0..100_000).map(|_| String::from("x"));
        assert!(freed(|pace| large().free(pace)) >= (64 << 20) / PIECE - 1);
        assert!(freed(|pace| Some((large(), 7_u8)).free(pace)) >= (64 << 20) / PIECE - 1);
        assert!(freed(|pace| vec![Vec::new(), large()].free(pace)) >= (64 << 20) / PIECE - 1);
        let turns = turns_during(move || many.collect::<Vec<_>>().free(&Pace::new(true)));
        assert!(turns >= 100_000 * OF_FREEING / PIECE - 1, "{turns}");
        // A small value is freed at once.
        assert_eq!(freed(|pace| vec![String::from("x"); 100].free(pace)), 0);
    }

    #[test]
    fn values_count_against_the_call_and_the_client_until_they_are_dropped() {
        let session = Arc::new(Session::new(account(1 << 20)));
        let mut words = vec![0; block_len(&vec![0_u64; 65536]).div_ceil(8)];
        let len = words.len() * 8;
        Encoder::block(WritableSpan::of_words(&mut words), &vec![0_u64; 65536], LIMITS, None)
            .unwrap();
        let room = WritableSpan::of_words(&mut words);
        let reader = |values| {
            let limits = Limits { values, ..LIMITS };
            Decoder::new(room.part(0, len).unwrap(), 16, limits, DecoderSide::Server(&session))
        };
        let bytes = 65536 * 8;
        assert_eq!(
            Vec::<u64>::get(&reader(bytes - 1), 0),
            Err(Malformed::Quota { bytes, limit: bytes - 1, of: QuotaScope::Call })
        );
        // The account has 1 MiB. While others have nothing, one client may take half of what is
        // free.
        let first = reader(LIMITS.values);
        first.get::<Vec<u64>>(0).unwrap();
        let second = reader(LIMITS.values);
        second.get::<Vec<u64>>(0).unwrap();
        let third = reader(LIMITS.values);
        let refused = third.get::<Vec<u64>>(0).unwrap_err();
        assert!(
            matches!(refused, Malformed::Quota { of: QuotaScope::Client, limit: 0x10_0000, .. }),
            "{refused:?}"
        );
        drop(second);
        drop(third);
        reader(LIMITS.values).get::<Vec<u64>>(0).unwrap();
        drop(first);
        session.account().charge(upcall_sched::quota::QuotaKind::Values, 1 << 20).unwrap();
    }

    #[test]
    fn a_count_that_nothing_is_behind_allocates_nothing() {
        let session = Arc::new(Session::new(account(1 << 20)));
        for count in [1 << 40, u64::MAX, u64::MAX / 8] {
            let mut words = [16, count, 0, 0];
            let span = WritableSpan::of_words(&mut words).part(0, 32).unwrap();
            for side in [DecoderSide::Server(&session), DecoderSide::None] {
                let decoder = Decoder::new(span, 16, LIMITS, side);
                assert!(matches!(decoder.get::<Vec<u64>>(0), Err(Malformed::TooLong { .. })));
                assert!(matches!(decoder.get::<String>(0), Err(Malformed::TooLong { .. })));
                assert!(matches!(decoder.get::<Vec<()>>(0), Err(Malformed::TooLong { .. })));
            }
        }
    }
}
