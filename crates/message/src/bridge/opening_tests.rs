//! Openings of a pair that are cut at each step: the pair opens, and each message arrives once.

use super::admission;
use super::gate::BridgeGate;
use super::opening;
use super::outward::Pumped;
use super::pair::{FarPair, Pairs};
use super::requests::{PairReply, open_request};
use super::tests::{GUARD, eventually, member, patient_home, place};
use crate::member::Roster;
use crate::wire::{Listed, ProcessKey, unpack};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};
use upcall_net::link::LinkSide;
use upcall_net::record::{self, HELLO, Hello, SessionStart};
use upcall_net::{
    Attend, BufferOwner, Frame, FrameBody, FrameError, FrameHeader, FrameKind, Lost, OutMessage,
    Protection, Wanted, Wire, WireTerms, dial, new_link,
};

/// What is lost with the first connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LosesFirst {
    Request,
    Answer,
    /// The first message after the answer.
    Message,
}

/// Passes the bytes of all connections on to `to`, except what the first one loses.
pub(super) fn cable(to: SocketAddr, loses: LosesFirst) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let loses = (number == 0).then_some(loses);
            std::thread::spawn(move || pass_on(client.unwrap(), to, loses));
        }
    });
    address
}

fn pass_on(mut client: TcpStream, to: SocketAddr, loses: Option<LosesFirst>) {
    let mut server = TcpStream::connect(to).unwrap();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let (mut up, mut down, mut bytes) = (0, 0, [0; 4096]);
    loop {
        let answered = down > HELLO;
        let from_client = match client.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return,
        };
        let is_lost = match loses {
            Some(LosesFirst::Request) => up + from_client > HELLO,
            Some(LosesFirst::Message) => from_client > 0 && answered,
            Some(LosesFirst::Answer) | None => false,
        };
        if is_lost {
            return;
        }
        server.write_all(&bytes[..from_client]).unwrap();
        up += from_client;
        let from_server = match server.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => return,
        };
        if loses == Some(LosesFirst::Answer) && up > HELLO && down + from_server > HELLO {
            return;
        }
        client.write_all(&bytes[..from_server]).unwrap();
        down += from_server;
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The list of two members, as the one with this rank knows it.
fn roster(rank: usize, addresses: [SocketAddr; 2]) -> Arc<Roster> {
    let listed = |rank: usize| Listed {
        process: ProcessKey::Numbered(0, 0),
        socket: String::new(),
        place: Some(place(addresses[rank], rank as u64)),
    };
    let members = vec![listed(0), listed(1)];
    Arc::new(Roster { group: [7; 16], rank, members, grows: false, pids: OnceLock::new() })
}

/// The server of a pair, which listens.
struct PairServer {
    gate: Arc<BridgeGate>,
    pair: Arc<FarPair>,
    address: SocketAddr,
    /// The address of the client, where it only listens.
    client: TcpListener,
}

impl PairServer {
    fn new() -> Self {
        let home = patient_home(&member(), 2 * GUARD);
        let gate = BridgeGate::new(&home);
        let address = admission::open(&gate, "127.0.0.1:0".parse().unwrap()).unwrap();
        let client = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = client.local_addr().unwrap();
        let pair = FarPair::new(0, Some(place(at, 0)), LinkSide::Server, &home);
        Self { gate, pair, address, client }
    }

    fn roster(&self, rank: usize) -> Arc<Roster> {
        roster(rank, [self.client.local_addr().unwrap(), self.address])
    }

    /// The server knows the list of members from now on.
    fn forms(&self) {
        let pairs: Pairs = vec![Some(self.pair.clone()), None].into();
        self.gate.formed(&self.roster(1), &pairs);
    }

    /// A client by hand, which asks to open the pair.
    fn asks(&self, attempt: u32) -> HandClient {
        self.asks_with(attempt, 2 * GUARD)
    }

    /// The same with this patience.
    fn asks_with(&self, attempt: u32, patience: Duration) -> HandClient {
        let request = open_request(&self.roster(0), 1, attempt, (0, 1 << 20), None).unwrap();
        HandClient::asks(self.address, request, patience)
    }
}

impl Drop for PairServer {
    fn drop(&mut self) {
        self.pair.hang_up();
        self.gate.shut();
    }
}

/// Passes on the messages that arrive.
struct Frames(mpsc::Sender<Frame>);
impl Attend for Frames {
    fn begun(&mut self, _: &FrameHeader, _: usize) -> Result<Wanted, FrameError> {
        Ok(Wanted::Yes(None))
    }
    fn came(&mut self, frame: Frame, _: Option<BufferOwner>) -> Result<(), FrameError> {
        drop(self.0.send(frame));
        Ok(())
    }
    fn given_up(&mut self, _: FrameHeader) -> Result<(), FrameError> {
        Ok(())
    }
    fn ended(self: Box<Self>, _: Lost) {}
}

/// The client of a pair, by hand.
pub(super) struct HandClient {
    pub(super) wire: Arc<Wire>,
    pub(super) frames: mpsc::Receiver<Frame>,
}

impl HandClient {
    /// Connects with this patience, and sends a request.
    pub(super) fn asks(at: SocketAddr, request: OutMessage, patience: Duration) -> Self {
        let mut link = new_link(patience).unwrap();
        let (until, terms) = (Instant::now() + GUARD, WireTerms::default());
        let (wire, first) = dial(at, &Protection::Clear, &mut link, terms, until).unwrap();
        let (gives, frames) = mpsc::channel();
        wire.start(&first, Box::new(Frames(gives))).unwrap();
        assert!(wire.try_send(0, request).is_none());
        Self { wire, frames }
    }

    pub(super) fn reply(&self) -> PairReply {
        let frame = self.frames.recv_timeout(GUARD).expect("an answer");
        assert_eq!(frame.head.kind, FrameKind::Answer);
        unpack(&frame.body.to_vec()).unwrap()
    }

    pub(super) fn expect_yes(&self) {
        let reply = self.reply();
        assert!(matches!(reply, PairReply::Yes { .. }), "{reply:?}");
    }

    /// Sends the first message after the answer.
    pub(super) fn knows(&self) {
        let body = FrameBody { words: vec![0], len: 8 };
        self.wire.send(1, FrameHeader::of(FrameKind::Room), body, None);
    }
}

#[test]
fn a_pair_opens_whatever_is_lost_in_a_cut() {
    for loses in [LosesFirst::Request, LosesFirst::Answer, LosesFirst::Message] {
        let server = PairServer::new();
        server.forms();
        let at = cable(server.address, loses);
        let home = patient_home(&member(), 2 * GUARD);
        let client = FarPair::new(1, Some(place(at, 1)), LinkSide::Client, &home);
        let roster = server.roster(0);
        let slice = Duration::from_millis(50);
        eventually("the client opens the pair", || opening::open(&client, &roster, slice).unwrap());
        let opens = || opening::await_client(&server.pair, slice).unwrap();
        eventually("the server has a client", opens);
        // Each side reports that it leaves, and gets an answer.
        for pair in [&client, &server.pair] {
            assert!(!pair.way.is_over(), "{loses:?}");
            pair.leave();
        }
        eventually("both get what was sent", || {
            let now = Instant::now();
            let turns = [&client, &server.pair].map(|pair| (pair.turn(now).0, pair.has_left()));
            turns == [(Pumped::All, true); 2]
        });
        assert!(!client.way.is_over() && !server.pair.way.is_over(), "{loses:?}");
        client.hang_up();
    }
}

/// The attempt that gets no answer is still open at the server when the next one comes.
#[test]
fn nothing_is_sent_before_the_client_has_the_answer() {
    let server = PairServer::new();
    server.forms();
    let first = server.asks(1);
    first.expect_yes();
    let none = opening::await_client(&server.pair, Duration::ZERO).unwrap();
    assert!(!none, "the client may not have the answer");
    server.pair.leave();
    assert_eq!(server.pair.turn(Instant::now()).0, Pumped::All);
    let second = server.asks(2);
    second.expect_yes();
    second.knows();
    eventually("the pair is open", || opening::await_client(&server.pair, GUARD).unwrap());
    assert_eq!(server.pair.turn(Instant::now()).0, Pumped::All);
    let leave = second.frames.recv_timeout(GUARD).unwrap();
    assert_eq!((leave.head.kind, &leave.body.words[..]), (FrameKind::Leave, &[1][..]));
    // The connection of the first attempt has ended, and had nothing but the answer.
    assert_eq!(first.frames.recv_timeout(GUARD), Err(mpsc::RecvTimeoutError::Disconnected));
    assert!(second.frames.try_recv().is_err() && server.pair.way.is_open());
}

/// An attempt may arrive late, and a member of the same host may be wrong.
#[test]
fn an_attempt_that_is_refused_does_not_end_the_pair() {
    let server = PairServer::new();
    server.forms();
    let client = server.asks(2);
    client.expect_yes();
    for attempt in [1, 2] {
        let refused = server.asks(attempt);
        let PairReply::No(why) = refused.reply() else { panic!("attempt {attempt}") };
        assert!(why.contains("before"), "{why}");
        let ended = refused.frames.recv_timeout(GUARD);
        assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected));
    }
    client.knows();
    eventually("the pair is open", || opening::await_client(&server.pair, GUARD).unwrap());
    // After the first message no attempt is later.
    let PairReply::No(_) = server.asks(3).reply() else { panic!("the pair is opened twice") };
    server.pair.leave();
    assert_eq!(server.pair.turn(Instant::now()).0, Pumped::All);
    let leave = client.frames.recv_timeout(GUARD).unwrap();
    assert_eq!(leave.head.kind, FrameKind::Leave);
    assert!(server.pair.way.is_open());
}

/// Before the server knows the others, it cannot answer. The connection of the first attempt may
/// be cut without its notice.
#[test]
fn the_last_of_early_attempts_opens_the_pair() {
    for order in [[1, 2, 3], [3, 1, 2], [2, 3, 1]] {
        let server = PairServer::new();
        let clients = order.map(|attempt| server.asks(attempt));
        eventually("all have asked", || server.gate.early() == 3);
        server.forms();
        let last = &clients[order.iter().position(|attempt| *attempt == 3).unwrap()];
        last.expect_yes();
        last.knows();
        eventually("the pair is open", || opening::await_client(&server.pair, GUARD).unwrap());
        assert!(server.pair.way.has_session(last.wire.session()));
    }
}

/// The session of a client without patience ends with its connection, which is still there.
#[test]
fn a_client_that_resumes_what_is_not_cut_does_not_hold_up_the_listener() {
    let server = PairServer::new();
    server.forms();
    let client = server.asks_with(1, Duration::ZERO);
    client.expect_yes();
    client.knows();
    eventually("the pair is open", || opening::await_client(&server.pair, GUARD).unwrap());
    let hello = Hello {
        version: record::VERSION,
        window: 1,
        begins: SessionStart::GoesOn,
        session: client.wire.session(),
        received: 0,
        patience: Duration::ZERO,
    };
    // If each took a second, the last one would not be answered in time.
    let resumes = (0..160).map(|_| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(&hello.to_bytes()).unwrap();
        stream
    });
    let resumes = resumes.collect::<Vec<_>>();
    let PairReply::No(_) = server.asks(2).reply() else { panic!("the pair is opened twice") };
    assert!(server.pair.way.is_open());
    drop(resumes);
}
