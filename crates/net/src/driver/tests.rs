use super::*;
use crate::attend::Attend;
use crate::frame::{Frame, FrameBody, FrameError, FrameHeader, FrameKind};
use crate::incoming::Wanted;
use crate::link::{HostLink, LinkTerms};
use crate::outgoing::BufferOwner;
use crate::record::{HELLO, Hello};
use crate::secure::Secure;
use crate::wire::{LATEST_LOST, WireTerms};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use upcall_os::unforked::Unforked;

/// Time after which a wait hangs.
const HANG: Duration = Duration::from_secs(60);

/// What a side hears, and on which thread.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Message(ThreadId),
    End(ThreadId),
}

struct Tells(Sender<Heard>);

impl Tells {
    fn tell(&self, heard: fn(ThreadId) -> Heard) {
        let _ = self.0.send(heard(std::thread::current().id()));
    }
}

impl Attend for Tells {
    fn begun(&mut self, _: &FrameHeader, _: usize) -> Result<Wanted, FrameError> {
        Ok(Wanted::Yes(None))
    }

    fn came(&mut self, _: Frame, _: Option<BufferOwner>) -> Result<(), FrameError> {
        self.tell(Heard::Message);
        Ok(())
    }

    fn given_up(&mut self, _: FrameHeader) -> Result<(), FrameError> {
        Ok(())
    }

    fn ended(self: Box<Self>, _: Lost) {
        self.tell(Heard::End);
    }
}

/// Terms with which no alarm of a connection wakes the driver's thread during a test.
fn quiet() -> WireTerms {
    WireTerms { lost_after: LATEST_LOST, host: None }
}

/// Two ends of a connection in the clear: the client's, the server's, and what the latter hears.
fn ends() -> (Arc<Wire>, Arc<Wire>, Receiver<Heard>) {
    let terms = LinkTerms { window: 9, patience: Duration::ZERO };
    let mut client = HostLink::client([7; 16], terms);
    client.connect();
    let mut said = Vec::new();
    while let count @ 1.. = client.output().unwrap().len() {
        said.extend_from_slice(client.output().unwrap());
        client.sent(count);
    }
    let (hello, rest) = said.split_at(HELLO);
    let hello = Hello::read(hello.first_chunk().unwrap()).unwrap();
    let mut server = HostLink::server(&hello, terms).unwrap();
    server.accept(&hello).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    let wire = |stream, link| {
        Wire::new(Unforked::new(stream).unwrap(), Secure::Clear, link, quiet()).unwrap()
    };
    let (client, server) = (wire(theirs, client), wire(ours, server));
    let (tells, heard) = channel();
    server.start(rest, Box::new(Tells(tells))).unwrap();
    client.start(&[], Box::new(Tells(channel().0))).unwrap();
    (client, server, heard)
}

fn send(wire: &Wire) {
    let head = FrameHeader::of(FrameKind::Deliver);
    wire.send(0, head, FrameBody::from(&b"a message"[..]), None);
}

#[test]
fn who_polls_takes_what_arrives_and_leaves_ends_to_the_driver() {
    const MESSAGES: usize = 100;
    let here = std::thread::current().id();
    let (client, server, heard) = ends();
    let polling = LinkPolling::begin().unwrap();
    let begun = Instant::now();
    let mut polled = 0;
    for _ in 0..MESSAGES {
        send(&client);
        let heard = loop {
            polling.round();
            match heard.try_recv() {
                Ok(heard) => break heard,
                Err(_) => assert!(begun.elapsed() < HANG, "nothing arrives"),
            }
        };
        polled += usize::from(heard == Heard::Message(here));
    }
    // The driver's thread may have been awake at the beginning, and at an alarm of another test.
    assert!(polled > MESSAGES / 2, "{polled} of {MESSAGES}");
    client.hang_up();
    let end = loop {
        polling.round();
        match heard.try_recv() {
            Ok(heard) => break heard,
            Err(_) => assert!(begun.elapsed() < HANG, "no end"),
        }
    };
    assert!(matches!(end, Heard::End(thread) if thread != here), "{end:?}");
    drop((polling, server));
}

#[test]
fn sockets_do_not_wake_the_driver_while_a_thread_polls() {
    let (client, server, heard) = ends();
    // The driver's thread may be within a round, and reads this connection as well then.
    let attempts = 100;
    let rests = (0..attempts).any(|_| {
        let polling = LinkPolling::begin().unwrap();
        send(&client);
        // As an alarm does: the thread is awake, and gives no round.
        polling.0.bell.notify();
        let early = heard.recv_timeout(Duration::from_millis(20)).is_ok();
        drop(polling);
        if !early {
            heard.recv_timeout(HANG).expect("the driver's thread reads");
        }
        !early
    });
    assert!(rests, "the driver's thread has read each of {attempts} messages");
    drop((client, server));
}

#[test]
fn what_comes_without_a_round_is_read_when_nobody_polls_any_more() {
    let (client, server, heard) = ends();
    for _ in 0..200 {
        let polling = [LinkPolling::begin().unwrap(), LinkPolling::begin().unwrap()];
        send(&client);
        drop(polling);
        let heard = heard.recv_timeout(HANG).expect("the driver's thread reads");
        assert!(matches!(heard, Heard::Message(_)), "{heard:?}");
    }
    drop((client, server));
}

#[test]
fn alarms_of_connections_that_have_ended_do_not_wake_the_driver() {
    let ending: Vec<_> = (0..20).map(|_| ends()).collect();
    let stays = ends();
    let driver = DRIVER.lock().as_ref().map(|(_, driver)| driver.clone()).unwrap();
    for (client, _server, heard) in &ending {
        client.hang_up();
        assert!(matches!(heard.recv_timeout(HANG), Ok(Heard::End(_))));
    }
    let begun = Instant::now();
    let is_for_the_living = || {
        let state = driver.state();
        let first = state.alarms.first();
        first.is_some_and(|(at, number)| {
            state.wires.contains_key(number) && state.sleeps == Some(*at)
        })
    };
    while !is_for_the_living() {
        assert!(begun.elapsed() < HANG, "{:?}", driver.state().alarms);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(stays);
}
