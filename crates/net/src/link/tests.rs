//! Two links, joined by pipes that cut at each byte that the test chooses.

use super::*;
use crate::frame::{Frame, FrameBody, FrameKind, HEAD};
use crate::outgoing::UNASKED;
use crate::record::FIRST_PIECE;
use std::collections::HashMap;
use std::collections::VecDeque;

const PATIENT: LinkTerms = LinkTerms { window: 9, patience: Duration::from_secs(9) };
const IMPATIENT: LinkTerms = LinkTerms { window: 9, patience: Duration::ZERO };

/// Small numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % most
    }
}

fn head(kind: FrameKind, call: u32) -> FrameHeader {
    FrameHeader { call, ..FrameHeader::of(kind) }
}

fn message(call: u32, bytes: &[u8]) -> OutMessage {
    OutMessage { head: head(FrameKind::Call, call), body: FrameBody::from(bytes), owner: None }
}

/// A body that only this message has.
fn body(call: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(call + 1).wrapping_add(call) as u8).collect()
}

/// One side, and what it has received.
struct End {
    link: HostLink,
    came: Vec<Frame>,
    given_up: Vec<u32>,
    refuses: fn(&FrameHeader) -> bool,
}

impl End {
    fn new(link: HostLink) -> Self {
        Self { link, came: Vec::new(), given_up: Vec::new(), refuses: |_| false }
    }

    fn take(&mut self, bytes: &[u8], now: Instant) -> Result<(), LinkError> {
        let (mut events, refuses) = (Vec::new(), self.refuses);
        let mut wants =
            |head: &FrameHeader| Ok(if refuses(head) { Wanted::No } else { Wanted::Yes(None) });
        let taken = self.link.take(bytes, now, &mut wants, &mut events);
        for event in events {
            match event {
                LinkEvent::Came(frame, _) => self.came.push(frame),
                LinkEvent::GivenUp(head) => self.given_up.push(head.call),
            }
        }
        taken
    }

    /// Moves up to `most` bytes of output into a pipe. Returns `true` if there were any.
    fn put(&mut self, pipe: &mut VecDeque<u8>, most: usize) -> bool {
        let output = self.link.output().unwrap();
        let count = output.len().min(most);
        pipe.extend(&output[..count]);
        self.link.sent(count);
        count > 0
    }
}

/// Both sides, and the bytes between them.
struct Pair {
    client: End,
    server: End,
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    now: Instant,
    /// The server's part of the current connection has begun.
    met: bool,
}

impl Pair {
    fn new(terms: LinkTerms) -> Self {
        let client = HostLink::client(*b"sixteen letters.", terms);
        let hello = Hello {
            version: VERSION,
            window: terms.window,
            begins: SessionStart::Begins,
            session: client.session(),
            received: 0,
            patience: terms.patience,
        };
        let server = HostLink::server(&hello, terms).unwrap();
        let mut pair = Self {
            client: End::new(client),
            server: End::new(server),
            up: VecDeque::new(),
            down: VecDeque::new(),
            now: Instant::now(),
            met: false,
        };
        pair.client.link.connect();
        pair
    }

    fn cut(&mut self) {
        self.up.clear();
        self.down.clear();
        self.client.link.cut();
        self.server.link.cut();
        self.met = false;
    }

    /// Delivers up to `most` bytes to the server.
    fn deliver_up(&mut self, most: usize) -> Result<bool, LinkError> {
        if !self.met {
            if self.up.len() < HELLO {
                return Ok(false);
            }
            let hello: Vec<u8> = self.up.drain(..HELLO).collect();
            self.server.link.accept(&Hello::read(hello.first_chunk().unwrap()).unwrap())?;
            self.met = true;
        }
        let bytes: Vec<u8> = self.up.drain(..most.min(self.up.len())).collect();
        self.server.take(&bytes, self.now)?;
        Ok(!bytes.is_empty())
    }

    fn deliver_down(&mut self, most: usize) -> Result<bool, LinkError> {
        let bytes: Vec<u8> = self.down.drain(..most.min(self.down.len())).collect();
        self.client.take(&bytes, self.now)?;
        Ok(!bytes.is_empty())
    }

    /// Moves bytes until nothing moves.
    fn settle(&mut self, piece: usize) -> Result<(), LinkError> {
        loop {
            let mut moved = self.client.put(&mut self.up, piece);
            moved |= self.server.put(&mut self.down, piece);
            moved |= self.deliver_up(piece)?;
            moved |= self.deliver_down(piece)?;
            if !moved {
                return Ok(());
            }
        }
    }
}

fn bodies(frames: &[Frame]) -> HashMap<u32, Vec<u8>> {
    let all: HashMap<_, _> =
        frames.iter().map(|frame| (frame.head.call, frame.body.to_vec())).collect();
    assert_eq!(all.len(), frames.len(), "a message came twice");
    all
}

#[test]
fn messages_arrive_as_they_were_sent_however_the_bytes_come() {
    for terms in [PATIENT, IMPATIENT] {
        for piece in [1, 7, 48, 4096, 1 << 20] {
            let mut pair = Pair::new(terms);
            let lens = [0, 1, 7, 8, FIRST_PIECE, FIRST_PIECE + 1, 40_000];
            for (call, len) in (0..).zip(lens) {
                pair.client.link.send(call.into(), message(call, &body(call, len)));
                pair.server.link.send(call.into(), message(call + 100, &body(call + 100, len)));
            }
            pair.settle(piece).unwrap();
            let (up, down) = (bodies(&pair.server.came), bodies(&pair.client.came));
            for (call, len) in (0..).zip(lens) {
                assert_eq!(up[&call], body(call, len), "{len} up in pieces of {piece}");
                assert_eq!(down[&(call + 100)], body(call + 100, len), "{len} down, {piece}");
            }
            assert_eq!((pair.client.link.unsent(), pair.server.link.unsent()), (0, 0));
            assert_eq!(pair.client.link.peer_window(), Some(9));
        }
    }
}

#[test]
fn a_long_message_delays_no_short_one() {
    let mut pair = Pair::new(IMPATIENT);
    pair.settle(4096).unwrap();
    pair.client.link.send(1, message(1, &vec![1; 8 << 20]));
    let mut before = 0;
    for call in 2..50 {
        // Some of the long one is on its way.
        for _ in 0..3 {
            pair.client.put(&mut pair.up, usize::MAX);
        }
        pair.deliver_up(usize::MAX).unwrap();
        before = before.max(pair.up.len());
        pair.client.link.send(call.into(), message(call, b"short"));
        // What was prepared, and one piece: no more goes ahead of the short one.
        let mut ahead = 0;
        while !pair.server.came.iter().any(|frame| frame.head.call == call) {
            pair.client.put(&mut pair.up, 1000);
            pair.server.put(&mut pair.down, 1000);
            ahead += pair.up.len();
            pair.deliver_up(usize::MAX).unwrap();
            pair.deliver_down(usize::MAX).unwrap();
        }
        assert!(ahead < PREPARED as usize + (32 << 10), "{ahead} bytes ahead of call {call}");
    }
    pair.settle(1 << 20).unwrap();
    assert_eq!(bodies(&pair.server.came)[&1].len(), 8 << 20);
}

#[test]
fn messages_of_one_lane_keep_their_order_and_neither_kind_starves() {
    let mut pair = Pair::new(IMPATIENT);
    for call in 0..200 {
        let len = if call % 3 == 0 { 50_000 } else { 10 };
        pair.client.link.send(7, message(call, &body(call, len)));
        pair.client.link.send(8, message(call + 1000, b"x"));
    }
    pair.settle(10_000).unwrap();
    let calls: Vec<_> = pair.server.came.iter().map(|frame| frame.head.call).collect();
    let lane = |range: std::ops::Range<u32>| -> Vec<u32> {
        calls.iter().copied().filter(|call| range.contains(call)).collect()
    };
    assert_eq!(lane(0..1000), (0..200).collect::<Vec<_>>());
    assert_eq!(lane(1000..2000), (1000..1200).collect::<Vec<_>>());
}

/// Messages go both ways through cuts at random bytes.
fn survive(seed: u64) {
    const MOST: u32 = 30;
    const CUTS: usize = 40;
    let mut dice = Dice(seed);
    let mut pair = Pair::new(PATIENT);
    let (mut sent_up, mut sent_down, mut cuts) = (0, 0, 0);
    let len = |dice: &mut Dice| match dice.below(12) {
        0 => 300_000,
        some => [0, 9, 3000, 20_000][some % 4],
    };
    for step in 0.. {
        assert!(step < 100_000, "no end, seed {seed}");
        let piece = [1, 50, 3000, 100_000, 100_000][dice.below(5)];
        match dice.below(12) {
            0 if sent_up < MOST => {
                let len = len(&mut dice);
                pair.client.link.send((sent_up % 3).into(), message(sent_up, &body(sent_up, len)));
                sent_up += 1;
            }
            1 if sent_down < MOST => {
                let len = len(&mut dice);
                pair.server.link.send(0, message(sent_down, &body(sent_down, len)));
                sent_down += 1;
            }
            2 if cuts < CUTS && pair.client.link.peer_window().is_some() => {
                cuts += 1;
                pair.cut();
                pair.client.link.connect();
            }
            3..6 => drop(pair.client.put(&mut pair.up, piece)),
            6..8 => drop(pair.server.put(&mut pair.down, piece)),
            8..10 => drop(pair.deliver_up(piece).unwrap()),
            _ => drop(pair.deliver_down(piece).unwrap()),
        }
        let came = (pair.server.came.len(), pair.client.came.len());
        if came == (MOST as usize, MOST as usize) && cuts == CUTS {
            break;
        }
    }
    for (call, bytes) in bodies(&pair.server.came) {
        assert_eq!(bytes, body(call, bytes.len()), "seed {seed}");
    }
    for lane in 0..3 {
        let calls = pair.server.came.iter().map(|frame| frame.head.call);
        let found: Vec<_> = calls.filter(|call| call % 3 == lane).collect();
        assert!(found.is_sorted(), "lane {lane}, seed {seed}: {found:?}");
    }
    let down: Vec<_> = pair.client.came.iter().map(|frame| frame.head.call).collect();
    assert_eq!(down, (0..MOST).collect::<Vec<_>>(), "seed {seed}");
}

#[test]
fn a_session_survives_cuts_at_any_byte() {
    (0..60).for_each(survive);
}

#[test]
#[ignore = "a minute: many more of the same"]
fn a_session_survives_many_more_cuts() {
    (60..10_000).for_each(survive);
}

#[test]
fn a_server_that_forgot_the_session_is_not_given_its_messages_again() {
    let mut pair = Pair::new(PATIENT);
    pair.client.link.send(1, message(1, b"once"));
    pair.client.put(&mut pair.up, usize::MAX);
    pair.client.put(&mut pair.up, usize::MAX);
    // The server took the call and died before it could say anything.
    pair.cut();
    pair.client.link.connect();
    pair.client.put(&mut pair.up, usize::MAX);
    let hello = Hello::read(pair.up.make_contiguous().first_chunk().unwrap()).unwrap();
    assert_eq!(hello.begins, SessionStart::GoesOn);
    assert_eq!(HostLink::server(&hello, PATIENT).unwrap_err(), LinkError::Forgotten);
    // A client that has sent no record begins another session.
    let mut link = HostLink::client([1; 16], PATIENT);
    link.connect();
    link.cut();
    link.connect();
    let hello = Hello::read(link.output().unwrap().first_chunk().unwrap()).unwrap();
    assert_eq!(hello.begins, SessionStart::Begins);
}

#[test]
fn what_is_not_wanted_is_not_sent() {
    let mut pair = Pair::new(IMPATIENT);
    pair.server.refuses = |head| head.call == 1;
    pair.settle(4096).unwrap();
    let (mut sent, len) = (0, 64 << 20);
    pair.client.link.send(1, message(1, &vec![1; len]));
    pair.client.link.send(2, message(2, b"wanted"));
    while pair.client.link.unsent() > 0 {
        pair.client.put(&mut pair.up, 4096);
        sent += pair.up.len();
        pair.deliver_up(4096).unwrap();
        pair.server.put(&mut pair.down, 4096);
        pair.deliver_down(4096).unwrap();
    }
    pair.settle(4096).unwrap();
    assert!(sent < UNASKED + (64 << 10), "{sent} bytes");
    let came: Vec<_> =
        pair.server.came.iter().map(|frame| (frame.head.call, frame.body.len)).collect();
    assert_eq!(came, [(2, 6), (1, 0)], "short messages went first");
    assert!(pair.server.link.incoming.is_between());
}

#[test]
fn pieces_of_the_output_are_bounded_also_after_a_cut() {
    let mut pair = Pair::new(PATIENT);
    pair.settle(4096).unwrap();
    for call in 0..200 {
        pair.client.link.send(u64::from(call), message(call, &[7; 1500]));
    }
    // All of it is prepared and sent, and nothing arrives.
    while let count @ 1.. = pair.client.link.output().unwrap().len() {
        pair.client.link.sent(count);
    }
    pair.cut();
    pair.client.link.connect();
    pair.client.put(&mut pair.up, HELLO);
    pair.deliver_up(0).unwrap();
    pair.server.put(&mut pair.down, HELLO);
    pair.deliver_down(usize::MAX).unwrap();
    let mut pieces = [std::io::IoSlice::new(&[]); 16];
    let count = pair.client.link.output_pieces(&mut pieces, MOST_OUTPUT).unwrap();
    let bytes = pieces[..count].iter().map(|piece| piece.len()).sum::<usize>();
    assert_eq!(bytes, super::MOST_OUTPUT);
}

#[test]
fn a_message_that_is_given_up_ends_on_both_sides() {
    let mut pair = Pair::new(IMPATIENT);
    pair.settle(4096).unwrap();
    pair.client.link.send(1, message(1, &vec![1; 1 << 20]));
    pair.client.link.send(2, message(2, b"not begun"));
    pair.client.link.send(3, message(3, b"kept"));
    pair.client.put(&mut pair.up, 40_000);
    pair.deliver_up(usize::MAX).unwrap();
    assert_eq!(pair.client.link.give_up(1), GivenUp::Unsent);
    assert_eq!(pair.client.link.unsent(), 0, "short messages went first");
    assert_eq!(pair.client.link.give_up(2), GivenUp::Sent);
    pair.settle(4096).unwrap();
    assert_eq!(pair.server.given_up, [1]);
    assert!(pair.server.link.incoming.is_between());
    assert_eq!(pair.client.link.take_done().messages.len(), 3);
}

#[test]
fn a_peer_must_make_progress_once_a_message_has_begun() {
    let mut pair = Pair::new(IMPATIENT);
    pair.settle(4096).unwrap();
    assert_eq!(pair.server.link.due(), None);
    pair.client.link.send(1, message(1, &vec![1; 2 << 20]));
    pair.client.put(&mut pair.up, 1000);
    pair.deliver_up(usize::MAX).unwrap();
    let due = pair.server.link.due().unwrap();
    assert_eq!(due, pair.now + GRACE);
    // As many bytes as it has to bring.
    let mut brought = 0;
    while brought < SLOWEST * 10 {
        pair.client.put(&mut pair.up, 10_000);
        pair.server.put(&mut pair.down, 10_000);
        brought += pair.up.len();
        pair.deliver_up(usize::MAX).unwrap();
        pair.deliver_down(usize::MAX).unwrap();
    }
    pair.server.link.tick(due).unwrap();
    let next = pair.server.link.due().unwrap();
    assert_eq!(next, due + GRACE);
    assert_eq!(pair.server.link.tick(next), Err(LinkError::Slow));
}

#[test]
fn a_peer_that_breaks_the_protocol_is_refused() {
    let open = || {
        let mut pair = Pair::new(PATIENT);
        pair.settle(4096).unwrap();
        pair
    };
    let record = |kind, len, message, received| RecordHeader { kind, len, message, received };
    let begin = |message, len| {
        let head = FrameHeader { len, ..head(FrameKind::Call, 1) };
        let record = record(RecordKind::Begin, HEAD, message, 0);
        [record.to_bytes().to_vec(), head.to_bytes().to_vec()].concat()
    };
    let more = |message, len| {
        let record = record(RecordKind::More, len, message, 0).to_bytes();
        [record.to_vec(), vec![0; len]].concat()
    };
    let control = |kind, message, received| record(kind, 0, message, received).to_bytes().to_vec();
    for (what, bytes) in [
        ("a piece of nothing", more(1, 10)),
        ("a message twice", [begin(1, 10), begin(1, 10)].concat()),
        ("a piece that is too long", [begin(1, 10), more(1, 11)].concat()),
        ("the end of nothing", control(RecordKind::Reset, 1, 0)),
        ("bytes that were never sent", control(RecordKind::Ack, 0, 1)),
        ("too many messages", (0..=1024).flat_map(|number| begin(number, 1)).collect()),
    ] {
        let mut pair = open();
        let taken = pair.server.take(&bytes, pair.now);
        assert!(matches!(taken, Err(LinkError::Broken(_))), "{what}: {taken:?}");
    }
    // More than was allowed of a body that is not wanted.
    let mut pair = open();
    pair.server.refuses = |_| true;
    let all = [begin(1, 2 * UNASKED)]
        .into_iter()
        .chain((0..UNASKED / 8192 + 1).map(|_| more(1, 8192)))
        .collect::<Vec<_>>()
        .concat();
    assert!(pair.server.take(&all, pair.now).is_err());
    // Endless messages that are not wanted, whose answers are not read.
    let mut pair = open();
    pair.server.refuses = |_| true;
    let refused = (0..10_000).find_map(|number| {
        let both = [begin(number, 1), control(RecordKind::Reset, number, 0)].concat();
        pair.server.take(&both, pair.now).err()
    });
    assert!(matches!(refused, Some(LinkError::Broken(_))), "{refused:?}");
    // Credit for what is not there, and for nothing.
    let mut pair = open();
    pair.server.link.send(1, message(1, &vec![0; 1 << 20]));
    pair.server.put(&mut pair.down, usize::MAX);
    for message in [0, 1, 77] {
        let credit = record(RecordKind::Credit, 8, message, 0).to_bytes();
        for more in [0, u64::MAX, u64::MAX] {
            let bytes = [credit.to_vec(), more.to_le_bytes().to_vec()].concat();
            pair.server.take(&bytes, pair.now).unwrap();
        }
    }
}

#[test]
fn memory_is_bounded_while_the_peer_acknowledges_nothing() {
    let mut pair = Pair::new(PATIENT);
    pair.settle(4096).unwrap();
    for call in 0..1000 {
        pair.server.link.send(call.into(), message(call, &vec![1; 10_000]));
    }
    let mut sent = 0;
    while pair.server.put(&mut pair.down, usize::MAX) {
        sent += pair.down.len();
        pair.down.clear();
    }
    assert!(sent as u64 <= WINDOW + (64 << 10), "{sent}");
    assert!(pair.server.link.kept.count() <= WINDOW + (64 << 10));
}

/// Moves bytes until nothing moves. Returns how many bytes the sender was ahead at most.
fn run_ahead(pair: &mut Pair) -> usize {
    let mut most = 0;
    loop {
        while pair.client.put(&mut pair.up, usize::MAX) {}
        most = most.max(pair.up.len());
        let came = pair.deliver_up(usize::MAX).unwrap();
        while pair.server.put(&mut pair.down, usize::MAX) {}
        let told = pair.deliver_down(usize::MAX).unwrap();
        if !came && !told {
            return most;
        }
    }
}

#[test]
fn a_sender_is_ahead_by_as_much_as_the_way_holds() {
    for (round_trip, least, most) in [(0, UNASKED, UNASKED + (16 << 10)), (50, 4 << 20, 17 << 20)] {
        let mut pair = Pair::new(IMPATIENT);
        pair.settle(4096).unwrap();
        pair.server.link.note_round_trip(Duration::from_millis(round_trip));
        pair.client.link.send(1, message(1, &vec![1; 64 << 20]));
        let ahead = run_ahead(&mut pair);
        assert!((least..=most).contains(&ahead), "{ahead} bytes at {round_trip} ms");
        assert_eq!(bodies(&pair.server.came)[&1].len(), 64 << 20);
    }
    // The rest of a body, for which nothing has to be allowed, tells nothing about the way.
    let mut pair = Pair::new(IMPATIENT);
    pair.settle(4096).unwrap();
    pair.server.link.note_round_trip(Duration::from_millis(50));
    for call in 0..20 {
        pair.client.link.send(call.into(), message(call, &vec![1; 100 << 10]));
    }
    run_ahead(&mut pair);
    pair.server.link.note_round_trip(Duration::ZERO);
    pair.client.link.send(20, message(20, &vec![1; 64 << 20]));
    let ahead = run_ahead(&mut pair);
    assert!(ahead <= UNASKED + (16 << 10), "{ahead} bytes after short messages");
    // Another message goes on, although more is allowed now than when it began.
    let mut pair = Pair::new(IMPATIENT);
    pair.settle(4096).unwrap();
    pair.server.link.note_round_trip(Duration::from_millis(50));
    for call in 0..3 {
        pair.client.link.send(call.into(), message(call, &vec![1; 32 << 20]));
    }
    run_ahead(&mut pair);
    assert_eq!(pair.server.came.len(), 3);
}
