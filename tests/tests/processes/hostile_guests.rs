//! Peers of objects on other hosts that do not keep to the protocol: guests of an honest home, and
//! homes of an honest guest. Honest peers do not notice, and nothing of the hostile ones is left.

use crate::{in_company, place};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use upcall_net::frame::{HEAD, MOST_BODY};
use upcall_net::{Frame, FrameHeader, FrameKind};
use upcall_tests::bad_input::bend;
use upcall_tests::dice::Dice;
use upcall_tests::far_object::{Answering, Asking, OBJECTS, VERSION};
use upcall_tests::party::Party;
use upcall_tests::place::{Place, eventually};
use upcall_tests::raw_link::{begin, hello, message, read_hello, read_message};
use upcall_tests::usage::{Usage, memory};

/// The key of the sessions of guests by hand.
const SESSION: [u8; 16] = [9; 16];

/// Number of invocations of one link that a home takes at once.
const WINDOW: usize = 64;

/// Maximum length of arguments and results, in bytes.
const LONGEST: usize = 1 << 20;

struct Scene {
    place: Place,
    home: Party,
    honest: Party,
    address: String,
    shape: u64,
}

impl Scene {
    fn new() -> Self {
        let place = place();
        let mut home = place.start("home object 127.0.0.1:0");
        let at = home.hear().expect_ok("a home's start").swap_remove(0);
        let mut honest = place.start(&format!("guest {at} 5000"));
        honest.ask("find").expect_ok("finding it");
        honest.ask("add 0").expect_ok("adding");
        let shape = home.ask("shape").numbers("its shape")[0];
        let address = at.trim_start_matches("tcp://").split('/').next().expect("an address");
        let address = address.to_string();
        Self { place, home, honest, address, shape }
    }

    /// Opens a connection, and exchanges hellos.
    fn greeted(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&hello(SESSION, 1).to_bytes()).unwrap();
        assert_eq!(read_hello(&mut stream).unwrap().session, SESSION);
        stream
    }

    /// A guest by hand that has found the object.
    fn admitted(&self) -> TcpStream {
        let mut stream = self.greeted();
        let found = self.ask(&mut stream, 0, &self.open());
        assert!(matches!(found, Answering::Found(Some(_))), "{found:?}");
        stream
    }

    fn open(&self) -> Asking<'static> {
        Asking::Open { version: VERSION, name: "object", shape: self.shape }
    }

    fn bind(&self) -> Asking<'static> {
        Asking::Bind { version: VERSION, name: "object", shape: self.shape }
    }

    fn ask(&self, stream: &mut TcpStream, binding: u32, asking: &Asking<'_>) -> Answering {
        stream.write_all(&request(binding, asking)).unwrap();
        let answer = read_message(stream).unwrap();
        assert_eq!(answer.head.kind, FrameKind::Answer);
        postcard::from_bytes(&answer.body.to_vec()).unwrap()
    }

    /// Others are served, and the home lives.
    fn is_fine(&mut self, what: &str) {
        self.honest.ask("adds 5").expect_ok(what);
        assert!(self.home.lives(), "{what}");
    }

    fn end(self) {
        for mut party in [self.honest, self.home] {
            party.say("leave");
            party.ended();
        }
        self.place.expect_empty();
    }
}

fn head(kind: FrameKind, binding: u32, number: u16) -> FrameHeader {
    FrameHeader { kind, call: 7, binding, number, left: None, len: 0 }
}

fn request(binding: u32, asking: &Asking<'_>) -> Vec<u8> {
    let body = postcard::to_stdvec(asking).expect("a request");
    message(head(FrameKind::Ask, binding, OBJECTS), &body)
}

fn invocation(binding: u32, number: u16, args: &[u8]) -> Vec<u8> {
    message(head(FrameKind::Call, binding, number), args)
}

/// A stream whose other side may be closed for what is written.
struct OneWay<'a>(&'a mut TcpStream);

impl Read for OneWay<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for OneWay<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The reason for the end of a link, which comes after any number of other messages.
fn reason(stream: &mut TcpStream) -> Option<String> {
    loop {
        match read_message(&mut OneWay(stream)) {
            Ok(Frame { head: FrameHeader { kind: FrameKind::Farewell, .. }, body }) => {
                match postcard::from_bytes(&body.to_vec()) {
                    Ok(Answering::No(why)) => return Some(why),
                    other => panic!("{other:?}"),
                }
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the home has not ended the link")
            }
            Err(_) => return None,
        }
    }
}

#[test]
fn what_breaks_the_protocol_ends_the_link_with_a_reason() {
    let _company = in_company();
    let mut scene = Scene::new();
    let raw = |change: &dyn Fn(&mut [u8; HEAD])| {
        let mut bytes = head(FrameKind::Call, 1, 0).to_bytes();
        change(&mut bytes);
        begin(&bytes, &[])
    };
    let long =
        |kind, len: usize| begin(&FrameHeader { len, ..head(kind, 1, OBJECTS) }.to_bytes(), &[]);
    let set_len = |bytes: &mut [u8; HEAD], len: u64| bytes[..8].copy_from_slice(&len.to_le_bytes());
    let unreadable = message(head(FrameKind::Ask, 0, OBJECTS), &[0xff; 40]);
    for (what, bytes, part) in [
        ("a huge length", raw(&|bytes| set_len(bytes, u64::MAX)), "longer than messages"),
        ("a long length", raw(&|bytes| set_len(bytes, MOST_BODY as u64 + 1)), "longer than"),
        ("an unknown kind", raw(&|bytes| bytes[16] = 99), "unknown kind"),
        ("long arguments", long(FrameKind::Call, LONGEST + 1), "longer than arguments"),
        ("a long request", long(FrameKind::Ask, 1025), "longer than requests"),
        ("a request that cannot be read", unreadable, "cannot be read"),
        ("a request for procedures", message(head(FrameKind::Ask, 0, 0), &[3]), "objects are here"),
        ("a reply", message(head(FrameKind::Reply, 0, 0), &[]), "neither a request nor"),
        ("a farewell", message(head(FrameKind::Farewell, 0, 0), &[]), "neither a request nor"),
        ("a group's message", message(head(FrameKind::Deliver, 0, 0), &[1]), "neither a request"),
    ] {
        let mut stream = scene.admitted();
        stream.write_all(&bytes).unwrap();
        let why = reason(&mut stream).unwrap_or_else(|| panic!("{what}: no reason"));
        assert!(why.contains(part), "{what}: {why}");
        scene.is_fine(what);
    }
    // What is no request for an object at all does not get that far.
    for first in [&b"GET / HTTP/1.1\r\n\r\n"[..], &invocation(1, 0, &[])] {
        let mut stream = scene.greeted();
        stream.write_all(first).unwrap();
        assert_eq!(reason(&mut stream), None);
    }
    scene.is_fine("other protocols");
    scene.end();
}

#[test]
fn requests_by_hand_get_what_they_are_entitled_to() {
    let _company = in_company();
    let mut scene = Scene::new();
    let mut stream = scene.admitted();
    let other = |version, name, shape| Asking::Open { version, name, shape };
    let asked = scene.ask(&mut stream, 0, &other(VERSION, "another", scene.shape));
    assert_eq!(asked, Answering::Absent);
    for (asking, part) in [
        (other(VERSION, "object", scene.shape + 1), "another type"),
        (other(VERSION + 1, "object", scene.shape), "version 2"),
    ] {
        match scene.ask(&mut stream, 0, &asking) {
            Answering::No(why) => assert!(why.contains(part), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let Answering::Bound(operations) = scene.ask(&mut stream, 3, &scene.bind()) else {
        panic!("a binding")
    };
    let known: Vec<(&str, u8)> = operations.iter().map(|(name, kind)| (&**name, *kind)).collect();
    assert_eq!(known, [("add", 0), ("fail", 0), ("hold", 1), ("bounce", 1)]);
    // Twice under one number, or too often.
    assert!(matches!(scene.ask(&mut stream, 3, &scene.bind()), Answering::No(_)));
    for binding in 4..1027 {
        assert!(matches!(scene.ask(&mut stream, binding, &scene.bind()), Answering::Bound(_)));
    }
    assert!(matches!(scene.ask(&mut stream, 1027, &scene.bind()), Answering::No(_)));
    let mut invoke = |binding, number, args: &[u8]| {
        stream.write_all(&invocation(binding, number, args)).unwrap();
        let reply = read_message(&mut stream).unwrap();
        assert_eq!((reply.head.kind, reply.head.call), (FrameKind::Reply, 7));
        (reply.head.number, reply.body.to_vec())
    };
    // 0: a result. 1: a failure, after the number of its kind. 2: not run.
    assert_eq!(invoke(3, 0, &[5]), (0, vec![5]));
    assert_eq!(invoke(2000, 0, &[5]), (2, vec![]));
    for (number, args) in [(4, &[5][..]), (u16::MAX, &[]), (0, &[]), (0, &[0xff; 400]), (2, &[])] {
        let (outcome, said) = invoke(3, number, args);
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(outcome == 1 && said.contains("no such operation") | said.contains("decoded"));
    }
    let mut dice = Dice::thrown("arguments");
    for _ in 0..2000 {
        let (number, len) = (dice.below(2) as u16, dice.below(60) as usize);
        let args = dice.bytes(len);
        let (outcome, _) = invoke(3, number, &args);
        assert!(outcome <= 1, "{outcome}");
    }
    stream.write_all(&request(3, &Asking::Unbind)).unwrap();
    stream.write_all(&request(77_777, &Asking::Unbind)).unwrap();
    scene.is_fine("requests by hand");
    drop(stream);
    scene.end();
}

/// Each costs the home what its quotas permit, and the link ends with a reason.
#[test]
fn who_asks_for_too_much_is_cut_off() {
    let _company = in_company();
    let mut scene = Scene::new();
    // More procedures than a home takes at once, none of which ends.
    let mut stream = scene.admitted();
    let bound = scene.ask(&mut stream, 1, &scene.bind());
    assert!(matches!(bound, Answering::Bound(_)), "{bound:?}");
    stream.write_all(&invocation(1, 2, &[1]).repeat(WINDOW)).unwrap();
    let home = &mut scene.home;
    eventually("all have begun", || match home.ask("begun").numbers("procedures")[0] {
        64 => Ok(()),
        begun => Err(begun.to_string()),
    });
    scene.is_fine("beside as many procedures as a home takes");
    stream.write_all(&invocation(1, 2, &[1])).unwrap();
    let why = reason(&mut stream).expect("a reason");
    assert!(why.contains("more invocations"), "{why}");
    scene.home.ask("release").expect_ok("their release");
    // Requests whose answers are not read.
    let before = memory(scene.home.pid()).0;
    for what in ["requests", "invocations"] {
        let mut stream = scene.admitted();
        let bytes = match what {
            "requests" => request(0, &scene.open()).repeat(1000),
            _ => invocation(1, 0, &[1]).repeat(WINDOW),
        };
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        let cut_off = (0..100_000).any(|_| {
            let written = stream.write_all(&bytes);
            written.is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
        });
        assert!(cut_off, "{what}");
        scene.is_fine(what);
    }
    let grown = memory(scene.home.pid()).0.saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB");
    scene.end();
}

/// Long arguments of many guests are charged to each of them, and given back.
#[test]
fn guests_that_vanish_leave_nothing() {
    let _company = in_company();
    let mut scene = Scene::new();
    scene.is_fine("before");
    let before = Usage::of(scene.home.pid());
    for round in 0..30 {
        let mut guests: Vec<TcpStream> = (0..4).map(|_| scene.admitted()).collect();
        for (number, stream) in guests.iter_mut().enumerate() {
            assert!(matches!(scene.ask(stream, 1, &scene.bind()), Answering::Bound(_)));
            // All of some invocations, and a part of a long one.
            stream.write_all(&invocation(1, 0, &[0]).repeat(number * 8)).unwrap();
            let long = FrameHeader { len: LONGEST, ..head(FrameKind::Call, 1, 0) };
            stream.write_all(&begin(&long.to_bytes(), &[1; 100])).unwrap();
        }
        if round % 2 == 0 {
            scene.is_fine("beside guests that are about to vanish");
        }
    }
    let pid = scene.home.pid();
    eventually("the home has everything back", || {
        let now = Usage::of(pid);
        // A connection of this guest may keep some lanes.
        if now.is_back_to(&Usage { shared: before.shared + 8, ..before }) {
            Ok(())
        } else {
            Err(format!("{now:?}, before {before:?}"))
        }
    });
    scene.end();
}

/// Random bytes after a valid beginning: the home ends the link, or replies.
#[test]
fn bent_requests_of_guests() {
    let _company = in_company();
    let mut scene = Scene::new();
    let samples = vec![
        request(0, &scene.open()),
        request(1, &scene.bind()),
        request(1, &Asking::Unbind),
        invocation(1, 0, &[1]),
        invocation(1, 1, &[]),
        invocation(1, 0, &[7; 5000]),
        message(head(FrameKind::Cancel, 1, 0), &[]),
    ];
    let mut dice = Dice::thrown("bent requests of guests");
    for round in 0..300 {
        let mut stream = scene.admitted();
        stream.write_all(&samples[1]).unwrap();
        for _ in 0..10 {
            // The home may end the link during the write.
            if stream.write_all(&bend(&samples, &mut dice)).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        if round % 50 == 0 {
            scene.is_fine("beside bent requests");
        }
    }
    scene.is_fine("after bent requests");
    scene.end();
}

/// Answers and replies of a home by hand: its guest gets an error, and neither ends nor hangs.
#[test]
fn bent_answers_of_homes() {
    let _company = in_company();
    let place = place();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("tcp://{}/object", listener.local_addr().unwrap());
    let packed = |answer: &Answering| postcard::to_stdvec(answer).expect("an answer");
    let found = packed(&Answering::Found(None));
    let bound = packed(&Answering::Bound(vec![("add".into(), 0), ("hold".into(), 1)]));
    let no = packed(&Answering::No("as it was asked for".into()));
    let absent = packed(&Answering::Absent);
    // What is said to `find`, to the first request of `add`, and to the invocation: its outcome and
    // body. Then the guest's errors.
    type Reply<'a> = (u16, &'a [u8]);
    let long = vec![0; LONGEST + 1];
    let cases: Vec<(&[u8], &[u8], Reply<'_>, &str)> = vec![
        (&found, &bound, (0, &[5]), "ok"),
        (&no, &[], (0, &[]), "Refused"),
        (&absent, &[], (0, &[]), "Absent"),
        (&[0xff; 9], &[], (0, &[]), "Unreachable"),
        (&bound, &[], (0, &[]), "Unreachable"),
        (&found, &found, (0, &[]), "NotServed.Unreachable"),
        (&found, &no, (0, &[]), "NotServed.Refused"),
        (&found, &[0xff; 30], (0, &[]), "NotServed.Unreachable"),
        (&found, &bound, (0, &[0xff; 30]), "Malformed"),
        (&found, &bound, (0, &[]), "Malformed"),
        (&found, &bound, (1, &[0xff; 30]), "Malformed"),
        (&found, &bound, (3, &[]), "Ended"),
        (&found, &bound, (99, &[]), "Malformed"),
        (&found, &bound, (0, &long), "Lost"),
    ];
    std::thread::scope(|scope| {
        let said: Vec<_> =
            cases.iter().map(|(find, bind, reply, _)| (*find, *bind, *reply)).collect();
        let peer = scope.spawn(move || {
            for (find, bind, (outcome, result)) in said {
                let (mut stream, _) = listener.accept().unwrap();
                // Frames that are sent in two parts do not wait for an acknowledgement.
                stream.set_nodelay(true).unwrap();
                let theirs = read_hello(&mut stream).unwrap();
                stream.write_all(&hello(theirs.session, 9).to_bytes()).unwrap();
                for answer in [find, bind] {
                    let Ok(asked) = read_message(&mut stream) else { break };
                    assert_eq!((asked.head.kind, asked.head.number), (FrameKind::Ask, OBJECTS));
                    let head = FrameHeader { kind: FrameKind::Answer, ..asked.head };
                    let _ = stream.write_all(&message(head, answer));
                }
                if let Ok(asked) = read_message(&mut stream)
                    && asked.head.kind == FrameKind::Call
                {
                    let head =
                        FrameHeader { kind: FrameKind::Reply, number: outcome, ..asked.head };
                    let _ = stream.write_all(&message(head, result));
                }
                // Until the guest has gone.
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            }
        });
        for (_, _, _, error) in &cases {
            let mut guest = place.start(&format!("guest {at} 5000"));
            match (guest.ask("find"), *error) {
                (upcall_tests::party::Said::Ok(_), "ok") => {
                    assert_eq!(guest.ask("add 1").numbers("an honest reply"), [5]);
                }
                (upcall_tests::party::Said::Ok(_), error) => {
                    guest.ask("add 1").expect_error(error, &[]);
                }
                (refused, error) => _ = refused.expect_error(error, &[]),
            }
            guest.say("leave");
            guest.ended();
        }
        peer.join().unwrap();
    });
    place.expect_empty();
}
