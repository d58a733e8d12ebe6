//! Both ends in one process: messages arrive, and violations are found.

use super::incoming::MOVES;
use super::*;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use upcall_os::atomic::Ordering;
use upcall_os::lock::KernelMutex;

/// A part of some memory.
#[derive(Clone, Debug)]
struct Words(Arc<[AtomicU64]>, Range<usize>);

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0[self.1.clone()]
    }
}

/// The memory that both ends share.
#[derive(Clone, Debug)]
struct Ours {
    home: Words,
    told: Arc<ReceiverProgress>,
    /// The places of all segments, followed by the spares.
    places: Arc<[AtomicU64]>,
    /// Length of each segment in use, by number.
    segments: Arc<KernelMutex<BTreeMap<u64, u64>>>,
    /// How often each spare was entered, left, and given back.
    spares: Arc<KernelMutex<[(u64, u64, u64); 2]>>,
    /// `true` for the sender's end.
    sends: bool,
    /// `true` if there is no more memory.
    none_left: Arc<AtomicBool>,
}

impl Ours {
    fn new(capacity: usize) -> Self {
        let home = Words((0..capacity).map(|_| AtomicU64::new(0)).collect(), 0..capacity);
        // Segments begin with arbitrary old contents.
        let places = (0..capacity * (Self::SEGMENTS as usize + Self::SPARES))
            .map(|at| AtomicU64::new(MESSAGE | at as u64))
            .collect();
        Self {
            home,
            told: Arc::default(),
            places,
            segments: Arc::default(),
            spares: Arc::default(),
            sends: false,
            none_left: Arc::default(),
        }
    }

    fn place(&self, place: SegmentLocation) -> Words {
        let words = self.home.len();
        let (first, many) = match place {
            SegmentLocation::Row { number, many } => {
                ((number % Self::SEGMENTS) as usize, many as usize)
            }
            SegmentLocation::Spare(spare) => (Self::SEGMENTS as usize + usize::from(spare), 1),
        };
        Words(self.places.clone(), first * words..(first + many) * words)
    }
}

impl QueueMemory for Ours {
    type Words = Words;
    type Told = Arc<ReceiverProgress>;
    const SEGMENTS: u64 = 8;
    const SPARES: usize = 2;

    fn home(&self) -> Words {
        self.home.clone()
    }
    fn told(&self) -> Arc<ReceiverProgress> {
        self.told.clone()
    }
    fn segment_words(&self) -> u64 {
        self.home.len() as u64
    }
    fn segment(&mut self, place: SegmentLocation) -> io::Result<Words> {
        if self.none_left.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let (number, many) = match place {
            SegmentLocation::Row { number, many } => (number, many),
            SegmentLocation::Spare(spare) => {
                let (entered, left, _) = &mut self.spares.lock()[usize::from(spare)];
                // The sender enters it, then the receiver, which leaves it before the sender enters
                // it again.
                assert_eq!(*entered, 2 * *left + u64::from(!self.sends), "spare {spare} is in use");
                *entered += 1;
                return Ok(self.place(place));
            }
        };
        assert!(
            number % Self::SEGMENTS + many <= Self::SEGMENTS,
            "{many} from {number} go round the end"
        );
        let mut segments = self.segments.lock();
        let apart = |(other, len): (&u64, &u64)| {
            *other == number
                || (number..number + many).all(|at| {
                    (*other..other + len).all(|taken| taken % Self::SEGMENTS != at % Self::SEGMENTS)
                })
        };
        assert!(segments.iter().all(apart), "{many} from {number} are in use: {segments:?}");
        assert_eq!(*segments.entry(number).or_insert(many), many);
        Ok(self.place(place))
    }
    fn leave(&mut self, place: SegmentLocation) {
        match place {
            SegmentLocation::Row { number, .. } => _ = self.segments.lock().remove(&number),
            SegmentLocation::Spare(spare) => self.spares.lock()[usize::from(spare)].1 += 1,
        }
    }
    fn shrink(&mut self, spare: u8) {
        let (entered, left, given_back) = &mut self.spares.lock()[usize::from(spare)];
        assert_eq!(*entered, 2 * *left, "spare {spare} is in use");
        *given_back += 1;
        self.place(SegmentLocation::Spare(spare))
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

type Sending = Outgoing<Ours>;
type Receiving = Incoming<Ours>;

fn queue(capacity: usize) -> (Sending, Receiving, Ours) {
    let ours = Ours::new(capacity);
    (Outgoing::new(Ours { sends: true, ..ours.clone() }), Incoming::new(ours.clone()), ours)
}

fn dice() -> impl FnMut(u64) -> u64 {
    let mut dice = 1_u64;
    move |sides| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    }
}

/// The violation of the sender.
fn broken(incoming: &mut Receiving) -> Violation {
    match incoming.peek() {
        Err(Unreadable::Violation(violation)) => violation,
        other => panic!("{other:?}"),
    }
}

fn receive(incoming: &mut Receiving) -> Option<(u16, Vec<u64>)> {
    let arrived = incoming.peek().unwrap()?;
    let words = (0..arrived.len() / 8).map(|at| arrived.word(at).unwrap()).collect();
    assert_eq!(
        [arrived.len().div_ceil(8), usize::MAX].map(|beyond| arrived.word(beyond)),
        [None; 2]
    );
    let message = (arrived.handler(), words);
    arrived.dispose();
    Some(message)
}

#[test]
fn every_order_of_sending_and_taking_gives_what_was_sent() {
    let mut roll = dice();
    for capacity in [4, 8, 64] {
        let (mut outgoing, mut incoming, _) = queue(capacity);
        let (mut expected, mut number, mut full) = (VecDeque::new(), 0, 0);
        for _ in 0..if cfg!(miri) { 300 } else { 100_000 } {
            if roll(2) == 0 {
                let len = roll(capacity as u64 / 2);
                let payload: Vec<u64> = (0..len).map(|at| number + at).collect();
                match outgoing.try_send(number as u16, &payload) {
                    Ok(()) => expected.push_back((number as u16, payload)),
                    Err(refused) => {
                        assert_eq!(refused, SendRefusal::Full);
                        full += 1;
                        incoming.tell();
                    }
                }
                number += 1;
            } else {
                assert_eq!(incoming.waits(), !expected.is_empty());
                assert_eq!(receive(&mut incoming), expected.pop_front());
            }
        }
        assert!(full > 0);
        incoming.tell();
        assert_eq!(outgoing.is_empty(), expected.is_empty());
    }
}

#[test]
fn what_always_fits_fits_wherever_it_begins() {
    for before in 0..16 {
        let (mut outgoing, mut incoming, _) = queue(16);
        for _ in 0..before {
            outgoing.try_send(0, &[]).unwrap();
            receive(&mut incoming).unwrap();
        }
        incoming.tell();
        let most = outgoing.most_directly();
        assert_eq!(outgoing.describe(0, most + 1).unwrap_err(), SendRefusal::Outsized);
        outgoing.try_send(1, &vec![5; most / 8]).unwrap();
        assert_eq!(receive(&mut incoming), Some((1, vec![5; most / 8])));
    }
}

/// Messages of each length, between others: those that need several segments, and those that do
/// not.
#[test]
fn what_does_not_fit_at_home_fits_into_segments() {
    let (mut outgoing, mut incoming, ours) = queue(16);
    let most = outgoing.most();
    assert_eq!(most, (2 * 16 - 2) * 8);
    assert_eq!(outgoing.describe(0, most + 1).unwrap_err(), SendRefusal::TooLong { most });
    assert_eq!(outgoing.divert_for(most + 1).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    let mut roll = dice();
    let mut expected = VecDeque::new();
    for number in 0..20_000 {
        let len = roll(most as u64 / 8 + 1) as usize;
        loop {
            match outgoing.try_send(number, &vec![number.into(); len]) {
                Ok(()) => break expected.push_back((number, vec![u64::from(number); len])),
                Err(refused) => {
                    let diverts = refused == SendRefusal::Outsized || roll(2) == 0;
                    assert!(diverts || refused == SendRefusal::Full, "{refused}");
                    if !diverts || outgoing.divert_for(len * 8).is_err() {
                        assert_eq!(receive(&mut incoming), expected.pop_front());
                        incoming.tell();
                    }
                }
            }
        }
        while roll(3) > 0 {
            assert_eq!(receive(&mut incoming), expected.pop_front());
            incoming.tell();
        }
        assert!(outgoing.buffered() <= 8);
    }
    while !expected.is_empty() {
        assert_eq!(receive(&mut incoming), expected.pop_front());
    }
    incoming.tell();
    outgoing.try_send(1, &[]).unwrap();
    assert_eq!(receive(&mut incoming), Some((1, vec![])));
    assert!(!outgoing.is_diverted() && outgoing.buffered() == 0 && ours.segments.lock().is_empty());
}

#[test]
fn bytes_of_any_number_are_carried() {
    let (mut outgoing, mut incoming, _) = queue(64);
    let bytes: Vec<u8> = (1..=200).collect();
    for len in 0..200 {
        let draft = outgoing.describe(7, len).unwrap();
        draft.room().copy_in(0, &bytes[..len]).unwrap();
        draft.launch();
        let arrived = incoming.peek().unwrap().unwrap();
        let mut copy = vec![0; arrived.len()];
        arrived.payload().copy_out(0, &mut copy).unwrap();
        assert_eq!(copy, bytes[..len]);
        arrived.dispose();
        incoming.tell();
    }
}

#[test]
fn what_was_not_launched_was_never_there() {
    let (mut outgoing, mut incoming, _) = queue(8);
    let draft = outgoing.describe(1, 16).unwrap();
    draft.put(0, 1);
    drop(draft);
    assert!(!incoming.waits() && incoming.peek().unwrap().is_none());
    outgoing.try_send(2, &[3]).unwrap();
    assert_eq!(receive(&mut incoming), Some((2, vec![3])));
}

#[test]
#[should_panic(expected = "of a message of 8 bytes")]
fn nothing_is_written_beside_a_message() {
    let (mut outgoing, _, _) = queue(8);
    outgoing.describe(1, 8).unwrap().put(usize::MAX, 1);
}

#[test]
fn a_peeked_message_stays() {
    let (mut outgoing, mut incoming, _) = queue(8);
    outgoing.try_send(2, &[3]).unwrap();
    assert_eq!(incoming.peek().unwrap().unwrap().word(0), Some(3));
    assert_eq!(receive(&mut incoming), Some((2, vec![3])));
}

#[test]
fn a_kept_message_stays_until_it_is_disposed_of_and_its_memory_longer() {
    let (mut outgoing, mut incoming, ours) = queue(8);
    outgoing.try_send(1, &[2, 3]).unwrap();
    outgoing.divert().unwrap();
    outgoing.try_send(4, &[5]).unwrap();
    let first = incoming.peek().unwrap().unwrap().keep();
    let again = incoming.peek().unwrap().unwrap().keep();
    // A kept message is what its sender described first.
    ours.home[0].store(header(9, 1 << 20, 0), Ordering::Relaxed);
    assert_eq!(
        (first.handler(), first.len(), first.payload().u64(8), first.payload().u64(16)),
        (1, 16, Some(3), None)
    );
    assert!(incoming.dispose_of(&first) && !incoming.dispose_of(&again));
    let second = incoming.peek().unwrap().unwrap().keep();
    drop(incoming);
    drop(outgoing);
    assert_eq!((second.handler(), second.is_empty(), second.payload().u64(0)), (4, false, Some(5)));
}

#[test]
fn a_sender_that_breaks_the_rules_is_found() {
    let bad = [
        (1, Violation::NoHeader(1)),
        (WRAP | 5, Violation::NoHeader(WRAP | 5)),
        (HOME, Violation::NoHeader(HOME)),
        (SEGMENT | 1, Violation::NoHeader(SEGMENT | 1)),
        (SEGMENT | 3 << SEGMENT_LENGTH, Violation::NoHeader(SEGMENT | 3 << SEGMENT_LENGTH)),
        (SEGMENT | 0xff << SEGMENT_LENGTH, Violation::NoHeader(SEGMENT | 0xff << SEGMENT_LENGTH)),
        (header(0, 0, 1), Violation::Sequence(1)),
        (header(0, u32::MAX, 0), Violation::Length(u32::MAX)),
        (header(0, 25, 0), Violation::Length(25)),
        (WRAP, Violation::NoHeader(WRAP)),
        (u64::MAX, Violation::NoHeader(u64::MAX)),
    ];
    for (word, violation) in bad {
        let (_, mut incoming, ours) = queue(8);
        ours.home[0].store(word, Ordering::Release);
        for _ in 0..2 {
            assert_eq!(broken(&mut incoming), violation, "{word:#x}");
        }
    }
    // A wrapped message must be at the beginning of home.
    for elsewhere in [0, WRAP, 5] {
        let (mut outgoing, mut incoming, ours) = queue(8);
        outgoing.try_send(0, &[]).unwrap();
        receive(&mut incoming).unwrap();
        ours.home[1].store(WRAP, Ordering::Release);
        ours.home[0].store(elsewhere, Ordering::Release);
        assert_eq!(broken(&mut incoming), Violation::NoHeader(elsewhere));
    }
}

#[test]
fn a_receiver_that_breaks_the_rules_is_found() {
    for said in [1, 8, u64::MAX, u64::MAX - 3] {
        let (mut outgoing, _, ours) = queue(4);
        ours.told.disposed.store(said, Ordering::Release);
        let sent = (0..8).map(|_| outgoing.try_send(0, &[])).find(Result::is_err);
        // The sender may send three before it reads the word; one may have been taken by then.
        assert!(
            matches!(sent, Some(Err(SendRefusal::Violation | SendRefusal::Full))),
            "{said}: {sent:?}"
        );
        assert!(said == 1 || sent == Some(Err(SendRefusal::Violation)), "{said}: {sent:?}");
    }
    // The receiver may not take back what it has reported.
    let (mut outgoing, mut incoming, ours) = queue(4);
    for _ in 0..4 {
        outgoing.try_send(0, &[]).unwrap();
        receive(&mut incoming).unwrap();
        incoming.tell();
    }
    ours.told.disposed.store(1, Ordering::Release);
    let sent = (0..8).map(|_| outgoing.try_send(0, &[])).find(Result::is_err);
    assert_eq!(sent, Some(Err(SendRefusal::Violation)));
}

#[test]
fn diverted_at_random_nothing_is_lost_doubled_or_out_of_order() {
    for capacity in [4, 8, 64] {
        let mut roll = dice();
        let (mut outgoing, mut incoming, ours) = queue(capacity);
        let (mut expected, mut number, mut diverts, mut stuck, mut buffered) =
            (VecDeque::new(), 0, 0, 0, 0);
        for _ in 0..if cfg!(miri) { 500 } else { 200_000 } {
            match roll(16) {
                0..8 => {
                    let payload: Vec<u64> =
                        (0..roll(capacity as u64 / 2)).map(|at| number + at).collect();
                    match outgoing.try_send(number as u16, &payload) {
                        Ok(()) => {
                            expected.push_back((number as u16, payload));
                            buffered += u64::from(outgoing.is_diverted());
                        }
                        Err(refused) => assert_eq!(refused, SendRefusal::Full),
                    }
                    number += 1;
                }
                8 => match outgoing.divert() {
                    Ok(()) => diverts += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                        stuck += 1;
                    }
                },
                9..11 => incoming.tell(),
                _ => {
                    let mut found = receive(&mut incoming);
                    // Several words in a row may lead on.
                    for _ in 0..Ours::SEGMENTS {
                        found = found.or_else(|| receive(&mut incoming));
                    }
                    assert_eq!(found, expected.pop_front());
                }
            }
            assert!(ours.segments.lock().len() as u64 <= Ours::SEGMENTS + 1);
        }
        assert!(diverts > 0 && stuck > 0, "{diverts}, {stuck}");
        assert!(buffered > 0 && outgoing.ever_buffered() == buffered, "{buffered}");
        while incoming.waits() {
            if let Some(found) = receive(&mut incoming) {
                assert_eq!(Some(found), expected.pop_front());
            }
        }
        incoming.tell();
        assert!(expected.is_empty() && outgoing.is_empty());
    }
}

#[test]
fn a_drained_queue_goes_home_and_its_segments_are_left() {
    let (mut outgoing, mut incoming, ours) = queue(8);
    for round in 0..100 {
        let mut sent = 0;
        while sent < 17 {
            if outgoing.try_send(sent, &[1]).is_err() {
                outgoing.divert().unwrap_or_else(|error| panic!("{round}, {sent}: {error}"));
                continue;
            }
            sent += 1;
            if sent == 12 {
                assert!(outgoing.is_diverted() && outgoing.buffered() > 0);
                (0..8)
                    .for_each(|number| assert_eq!(receive(&mut incoming), Some((number, vec![1]))));
            }
        }
        assert!(!outgoing.is_empty());
        (8..17).for_each(|number| assert_eq!(receive(&mut incoming), Some((number, vec![1]))));
        assert_eq!(receive(&mut incoming), None);
        incoming.tell();
        assert!(outgoing.is_empty());
        outgoing.try_send(9, &[]).unwrap();
        assert!(!outgoing.is_diverted() && outgoing.buffered() == 0);
        assert_eq!(receive(&mut incoming), Some((9, vec![])));
        incoming.tell();
        assert!(ours.segments.lock().is_empty());
    }
}

#[test]
fn a_sender_may_divert_and_go_back_before_the_receiver_looks() {
    let (mut outgoing, mut incoming, _) = queue(8);
    // All has been disposed of, but the receiver has not followed the word that leads away.
    outgoing.try_send(0, &[]).unwrap();
    receive(&mut incoming).unwrap();
    incoming.tell();
    for number in 1..10 {
        outgoing.divert().unwrap();
        outgoing.try_send(number, &[]).unwrap();
        assert!(outgoing.is_diverted());
        assert_eq!(receive(&mut incoming), Some((number, vec![])));
        incoming.tell();
    }
}

#[test]
fn without_memory_nothing_changes() {
    let (mut outgoing, mut incoming, ours) = queue(8);
    let none_left = |none| ours.none_left.store(none, std::sync::atomic::Ordering::Relaxed);
    none_left(true);
    assert_eq!(outgoing.divert().unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    outgoing.try_send(1, &[2]).unwrap();
    none_left(false);
    outgoing.divert().unwrap();
    outgoing.try_send(3, &[4]).unwrap();
    none_left(true);
    assert_eq!(receive(&mut incoming), Some((1, vec![2])));
    for _ in 0..3 {
        assert!(matches!(incoming.peek(), Err(Unreadable::Memory(_))));
    }
    none_left(false);
    assert_eq!(receive(&mut incoming), Some((3, vec![4])));
}

#[test]
fn words_that_lead_in_a_circle_lead_nowhere() {
    let (mut outgoing, mut incoming, ours) = queue(8);
    outgoing.divert().unwrap();
    outgoing.try_send(1, &[]).unwrap();
    assert_eq!(receive(&mut incoming), Some((1, vec![])));
    // Home, and from there to one segment after another, each of which leads on at once.
    ours.place(SegmentLocation::Spare(0))[1].store(HOME, Ordering::Release);
    ours.home[0].store(SEGMENT | 1, Ordering::Release);
    for round in 0..3 {
        for number in round * MOVES as u64..(round + 1) * MOVES as u64 {
            ours.place(SegmentLocation::Row { number: number + 1, many: 1 })[0]
                .store(SEGMENT | (number + 2), Ordering::Release);
        }
        assert!(incoming.peek().unwrap().is_none());
    }
    // A segment's number never repeats.
    let (_, mut incoming, ours) = queue(8);
    ours.home[0].store(SEGMENT, Ordering::Release);
    ours.place(SegmentLocation::Row { number: 0, many: 1 })[0].store(SEGMENT, Ordering::Release);
    assert_eq!(broken(&mut incoming), Violation::NoHeader(SEGMENT));
}

#[test]
fn a_receiver_that_says_too_much_of_segments_is_found() {
    for said in [u64::MAX, place(1, 1), 0] {
        let (mut outgoing, mut incoming, ours) = queue(8);
        outgoing.divert().unwrap();
        outgoing.try_send(0, &[]).unwrap();
        receive(&mut incoming).unwrap();
        incoming.tell();
        outgoing.try_send(0, &[]).unwrap();
        assert!(!outgoing.is_diverted());
        outgoing.divert().unwrap();
        ours.told.diverted.store(said, Ordering::Release);
        assert_eq!(outgoing.try_send(0, &[]), Err(SendRefusal::Violation), "{said}");
    }
}
