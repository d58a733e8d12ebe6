//! Peers on other machines that do not keep to the protocol. Honest peers do not notice, and
//! nothing of the hostile ones is left.

use crate::{in_company, in_idle_company, place};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use upcall::directory::{FarServer, list_far};
use upcall_net::frame::{HEAD, MOST_ANSWER, MOST_BODY};
use upcall_net::record::{HELLO, Hello, RECORD, VERSION};
use upcall_net::{Frame, FrameHeader, FrameKind};
use upcall_tests::bad_input::{bend, frame_samples};
use upcall_tests::dice::Dice;
use upcall_tests::interfaces::trial;
use upcall_tests::party::Party;
use upcall_tests::place::{Place, eventually};
use upcall_tests::raw_link::{begin, hello, message, read_hello, read_message};
use upcall_tests::speech::{Answer, RELEASE, Request, any_list};
use upcall_tests::usage::{Usage, connections};

/// The number of the answer that lists exports.
const LISTED: u8 = 6;
/// The number of the answer that has the counts.
const COUNTED: u8 = 7;

struct Scene {
    place: Place,
    server: Party,
    honest: Party,
    address: String,
}

impl Scene {
    fn new(options: &str) -> Self {
        let place = place();
        let (server, address) = place.serve_far(&format!("trial tcp {options}"));
        let mut honest = place.client();
        honest.ask(&format!("bind tcp://{address}/trial")).expect_ok("binding");
        Self { place, server, honest, address }
    }

    /// Opens a connection and exchanges hellos.
    fn greeted(&self) -> TcpStream {
        let mut stream = self.connected();
        stream.write_all(&hello(SESSION, 1).to_bytes()).unwrap();
        let theirs = read_hello(&mut stream).unwrap();
        assert_eq!((theirs.version, theirs.session), (VERSION, SESSION));
        stream
    }

    fn connected(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }
}

/// Accepts a connection, whose other end need not wait 40 ms for a frame that is sent in two parts.
fn accepted(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The key of the sessions of clients by hand.
const SESSION: [u8; 16] = [7; 16];

fn head(kind: FrameKind, len: usize) -> FrameHeader {
    FrameHeader { call: 1, len, ..FrameHeader::of(kind) }
}

/// Reads until the other side has closed the connection.
fn expect_closed(stream: &mut TcpStream, what: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("{what}: the server has not closed the connection: {error}"),
    }
}

fn frame(stream: &mut TcpStream) -> Frame {
    read_message(stream).unwrap()
}

fn asking(request: &Request) -> Vec<u8> {
    message(head(FrameKind::Ask, 0), &postcard::to_stdvec(request).expect("a request"))
}

#[test]
fn what_breaks_the_protocol_closes_the_connection() {
    let _company = in_idle_company();
    let mut scene = Scene::new("");
    let raw = |head: FrameHeader, change: &dyn Fn(&mut [u8; HEAD])| {
        let mut bytes = head.to_bytes();
        change(&mut bytes);
        bytes.to_vec()
    };
    for (what, bytes) in [
        (
            "a huge length",
            raw(head(FrameKind::Call, 0), &|bytes| {
                bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes())
            }),
        ),
        (
            "a length beyond the limit",
            raw(head(FrameKind::Call, 0), &|bytes| {
                bytes[..8].copy_from_slice(&(MOST_BODY as u64 + 1).to_le_bytes());
            }),
        ),
        ("an unknown kind", raw(head(FrameKind::Call, 0), &|bytes| bytes[16] = 99)),
        ("a reply to a server", message(head(FrameKind::Reply, 0), &[])),
        ("a farewell to a server", message(head(FrameKind::Farewell, 0), &[])),
        ("a request that cannot be read", message(head(FrameKind::Ask, 0), &[0xff; 40][..])),
        ("a request of a channel", message(head(FrameKind::Ask, 0), &[0, 4][..])),
        ("a request without a meaning here", asking(&Request::Stalled)),
        ("a request without end", raw(head(FrameKind::Ask, 161 << 10), &|_| {})),
        ("a call before a binding", message(head(FrameKind::Call, 0), &[])),
        (
            "more calls than there may be",
            [
                frame_samples().swap_remove(0),
                message(head(FrameKind::Call, 0), &[]).repeat(100_000),
            ]
            .concat(),
        ),
    ] {
        let mut stream = scene.greeted();
        // The server may close the connection during the write.
        let _ = stream.write_all(&bytes);
        if what.starts_with("more calls") {
            // None of these calls names an existing binding. Each is answered, so none stays under
            // way.
            let _ = stream.shutdown(Shutdown::Write);
        }
        expect_closed(&mut stream, what);
    }
    for (what, first) in [("HTTP", &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..]), ("nothing", &[][..])]
    {
        let mut stream = scene.connected();
        stream.write_all(first).unwrap();
        let start = Instant::now();
        let said = expect_closed(&mut stream, what);
        assert!(
            start.elapsed() < Duration::from_secs(50) && said.len() <= HELLO,
            "{what}: {said:?}"
        );
    }
    assert_eq!(scene.honest.ask("add 2 3").numbers("the honest client"), [5]);
    assert!(scene.server.lives());
}

#[test]
fn another_version_is_refused_with_both_named() {
    let _company = in_company();
    let place = place();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("tcp://{}/trial", listener.local_addr().unwrap());
    let other = std::thread::spawn(move || {
        for first in [
            &Hello { version: 7, ..hello([0; 16], 3) }.to_bytes()[..],
            // What version 4 said first.
            b"upcall\0n\x04\0\0\0\x09\0\0\0",
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"up",
        ] {
            let mut stream = accepted(&listener);
            stream.write_all(first).unwrap();
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut [0; 64]);
        }
    });
    let mut client = place.client();
    let own = format!("speaks version {VERSION}");
    client.ask(&format!("bind {name}")).expect_error("Version", &[&own, "version 7"]);
    client.ask(&format!("bind {name}")).expect_error("Version", &[&own, "version 4"]);
    client
        .ask(&format!("bind {name}"))
        .expect_error("Unreachable", &["does not speak Upcall's protocol"]);
    client.ask(&format!("bind {name}")).expect_error("Unreachable", &["closed the connection"]);
    other.join().unwrap();
}

/// A short request can have a long answer. A client that sends request after request and reads no
/// answer is cut off before the server has kept much of them, for every kind of request.
#[test]
fn who_asks_and_does_not_read_is_cut_off() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let none = Request::Bind {
        id: 0,
        name: "none".into(),
        interface: "a:b/c".into(),
        procedures: Vec::new(),
        stacks: 0,
    };
    let release =
        message(FrameHeader { binding: 3, number: RELEASE, ..head(FrameKind::Call, 0) }, &[0; 8]);
    let pid = scene.server.pid();
    scene.honest.ask("honest 300").expect_ok("calls of all kinds");
    // Each of these types differs from the server's, which is part of the refusal.
    let longest = trial::INTERFACE
        .procedures
        .iter()
        .max_by_key(|procedure| procedure.signature.len())
        .expect("a procedure");
    let other = Request::Bind {
        id: 0,
        name: "trial".into(),
        interface: trial::INTERFACE.id.to_string(),
        procedures: vec![(longest.name.to_string(), 0, String::new()); 1000],
        stacks: 0,
    };
    let all = [
        ("lists", asking(&Request::List)),
        ("counts", asking(&Request::Tallies)),
        ("bindings", asking(&none)),
        ("types", asking(&other)),
        ("calls", release),
    ];
    for (what, request) in all {
        let before = resident(pid);
        let mut stream = scene.greeted();
        stream.write_all(&frame_samples().swap_remove(0)).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        let requests = request.repeat(2000);
        let mut written = 0;
        // Until the server hangs up: the kernels buffer some megabytes of answers first.
        let cut_off = (0..3000).any(|_| {
            written += 2000;
            stream
                .write_all(&requests)
                .is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
        });
        let more = resident(pid).saturating_sub(before) >> 20;
        println!(
            "{what}: cut off after {written} requests at most; the server has {more} MiB more"
        );
        assert!(cut_off, "{what}: {written} requests were taken, and none of their answers");
        assert!(more < 80, "{what}: {more} MiB more");
        assert_eq!(scene.honest.ask("add 2 3").numbers("an honest client"), [5]);
    }
}

/// Returns the resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("a process");
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages")
        * 4096
}

/// Malformed lists: their reader gets an error, and neither ends nor hangs.
#[test]
fn bent_lists_from_servers() {
    let _company = in_company();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("tcp://{}", listener.local_addr().unwrap());
    let listed = |name: &str| {
        let exports = vec![(name, "a:b/c", "", "", 0u32, vec![("p", "p: func()")])];
        [vec![LISTED], postcard::to_stdvec(&exports).expect("a list")].concat()
    };
    let good = listed("files");
    let answers: Vec<(Vec<u8>, &str)> = vec![
        (good.clone(), ""),
        (listed("\u{1b}[2J"), "whose name cannot be one"),
        (listed("domain.1"), "whose name cannot be one"),
        (good[..good.len() - 3].to_vec(), "cannot be read"),
        ([vec![LISTED], vec![0xff; 9]].concat(), "cannot be read"),
        (vec![1, 0], "another answer"),
        (vec![99], "cannot be read"),
        (vec![4, 2], "has ended"),
    ];
    let mut dice = Dice::thrown("bent lists");
    let bent: Vec<Vec<u8>> =
        (0..400).map(|_| bend(std::slice::from_ref(&good), &mut dice)).collect();
    let said: Vec<Vec<u8>> =
        answers.iter().map(|(said, _)| said.clone()).chain(bent.iter().cloned()).collect();
    let peer = std::thread::spawn(move || {
        for said in said {
            let mut stream = accepted(&listener);
            let theirs = read_hello(&mut stream).unwrap();
            stream.write_all(&hello(theirs.session, 1).to_bytes()).unwrap();
            let asked = frame(&mut stream);
            assert_eq!(
                (asked.head.kind, asked.body.to_vec()),
                (FrameKind::Ask, postcard::to_stdvec(&Request::List).unwrap())
            );
            let head = FrameHeader { kind: FrameKind::Answer, ..asked.head };
            stream.write_all(&message(head, &said)).unwrap();
            // The server ends when its reader has gone.
            let _ = stream.read(&mut [0; 8]);
        }
        // An answer longer than answers may be: the reader does not wait for it.
        let mut stream = accepted(&listener);
        let theirs = read_hello(&mut stream).unwrap();
        stream.write_all(&hello(theirs.session, 1).to_bytes()).unwrap();
        let asked = frame(&mut stream).head;
        let long = FrameHeader { kind: FrameKind::Answer, len: MOST_ANSWER + 1, ..asked };
        stream.write_all(&begin(&long.to_bytes(), &[])).unwrap();
        let _ = stream.read(&mut [0; 8]);
    });
    for (_, part) in &answers {
        match list_far(&server) {
            Ok(exports) => assert!(
                part.is_empty() && exports.len() == 1 && exports[0].name == "files",
                "{part}: {exports:?}"
            ),
            Err(error) => {
                assert!(!part.is_empty() && error.to_string().contains(part), "{part:?}: {error}")
            }
        }
    }
    let errors = bent.iter().filter(|_| list_far(&server).is_err()).count();
    println!("{errors} of {} bent lists are errors", bent.len());
    assert!(errors > 0);
    let error = list_far(&server).expect_err("too long").to_string();
    assert!(error.contains("longer than answers are"), "{error}");
    peer.join().unwrap();
}

/// The counts of one binding, as they are on the wire: its slot, name, interface, client, address
/// and age, and its counts.
type Counts = (
    ((u16, u64), String, String, u32, Option<std::net::SocketAddr>, u64),
    ([u64; 4], [u64; 6], [u64; 2], [u64; 32], [u64; 32], Vec<u64>),
);

/// Malformed counts: their reader gets an error, and neither ends nor hangs.
#[test]
fn bent_counts_from_servers() {
    let _company = in_company();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("tcp://{}", listener.local_addr().unwrap());
    let binding = |procedures: usize| -> Counts {
        (
            ((1, 3), "files".into(), "a:b/c".into(), 7, "[::1]:9".parse().ok(), 5),
            ([u64::MAX; 4], [1; 6], [2; 2], [3; 32], [4; 32], vec![u64::MAX; procedures]),
        )
    };
    let counted = |bindings: Vec<Counts>| {
        let counts = (3_u64, [[1_u64, 2, 3]; 8], bindings);
        [vec![COUNTED], postcard::to_stdvec(&counts).expect("counts")].concat()
    };
    let good = counted(vec![binding(152); 2]);
    let answers: Vec<(Vec<u8>, &str)> = vec![
        (good.clone(), ""),
        (counted(vec![binding(1); 4096]), ""),
        (counted(vec![binding(153)]), "cannot be read"),
        (counted(vec![binding(0); 4097]), "cannot be read"),
        (good[..good.len() - 3].to_vec(), "cannot be read"),
        (vec![LISTED, 0], "another answer"),
        (vec![5], "another answer"),
        (vec![99], "cannot be read"),
    ];
    let mut dice = Dice::thrown("bent counts");
    let bent: Vec<Vec<u8>> =
        (0..400).map(|_| bend(std::slice::from_ref(&good), &mut dice)).collect();
    let all = answers.iter().map(|(said, _)| said.clone()).chain(bent.iter().cloned());
    let all: Vec<Vec<u8>> = all.collect();
    let peer = std::thread::spawn(move || {
        for said in all.into_iter().map(Some).chain([None]) {
            let mut stream = accepted(&listener);
            let theirs = read_hello(&mut stream).unwrap();
            stream.write_all(&hello(theirs.session, 1).to_bytes()).unwrap();
            let asked = frame(&mut stream);
            assert_eq!(asked.body.to_vec(), postcard::to_stdvec(&Request::Tallies).unwrap());
            let head = FrameHeader { kind: FrameKind::Answer, ..asked.head };
            // An older server ends the connection in place of an answer.
            let Some(said) = said else { return };
            stream.write_all(&message(head, &said)).unwrap();
            // Until the reader has gone; it allows a long answer in pieces.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    let read = || FarServer::at(&server).expect("an address").read();
    for (_, part) in &answers {
        match read() {
            Ok(counts) => {
                assert!(part.is_empty() && counts.bindings[0].name == "files", "{part}");
                let _ = counts.bindings[0].calls();
            }
            Err(error) => {
                assert!(!part.is_empty() && error.to_string().contains(part), "{part:?}: {error}")
            }
        }
    }
    let errors = bent.iter().filter(|_| read().is_err()).count();
    println!("{errors} of {} bent counts are errors", bent.len());
    assert!(errors > 0);
    let error = read().expect_err("an older server").to_string();
    assert!(error.contains("gives no counts to other hosts"), "{error}");
    peer.join().unwrap();
}

/// Calls by hand to bindings and procedures that do not exist, with handles and blocks that do not
/// exist.
#[test]
fn calls_by_hand_get_what_they_are_entitled_to() {
    let _company = in_company();
    let scene = Scene::new("wary");
    let mut stream = scene.greeted();
    let bind = frame_samples().swap_remove(0);
    stream.write_all(&bind).unwrap();
    let answer = frame(&mut stream);
    assert_eq!(answer.head.kind, FrameKind::Answer);
    let mut ask = |binding: u32, number: u16, body: &[u8]| {
        let head = FrameHeader { binding, number, ..head(FrameKind::Call, 0) };
        stream.write_all(&message(head, body)).unwrap();
        frame(&mut stream).head.number
    };
    use upcall_tests::speech::outcome;
    assert_eq!(ask(9, 0, &[]), outcome::REVOKED);
    for number in [500, 1000, 1021, 1022, u16::MAX] {
        assert_eq!(ask(3, number, &[0; 8]), outcome::NO_SUCH_PROCEDURE, "procedure {number}");
    }
    // The runtime's own procedures, with a handle that does not exist.
    assert_eq!(ask(3, 1023, &[7; 8]), outcome::DONE);
    assert_eq!(ask(3, 1023, &[]), outcome::DONE);
    let mut dice = Dice::thrown("arguments");
    for _ in 0..2000 {
        let (number, len) = (dice.below(21) as u16, dice.below(60) as usize);
        // Not the procedures that sleep.
        if ![12, 13, 17].contains(&number) {
            ask(3, number, &dice.bytes(len));
        }
    }
}

#[test]
fn bent_messages_from_clients() {
    let _company = in_company();
    let mut scene = Scene::new("wary");
    let pid = scene.server.pid();
    let mut dice = Dice::thrown("what hostile clients send");
    let samples = frame_samples();
    // The first rounds create everything that is created on demand.
    let mut before = None;
    let end = Instant::now() + Duration::from_secs(3);
    scene.honest.say("honest 2500");
    let mut rounds = 0;
    // A slow machine takes longer than that for the first rounds.
    while Instant::now() < end || rounds < 100 {
        let mut stream = scene.connected();
        let mut bytes =
            if dice.below(8) == 0 { dice.bytes(16) } else { hello(SESSION, 9).to_bytes().to_vec() };
        for _ in 0..dice.below(20) {
            bytes.extend(if dice.below(2) == 0 {
                bend(&samples, &mut dice)
            } else {
                samples[dice.below(samples.len() as u64) as usize].clone()
            });
        }
        for piece in bytes.chunks(1 + dice.below(400) as usize) {
            if stream.write_all(piece).is_err() {
                break;
            }
        }
        match dice.below(3) {
            // Hang up in the middle.
            0 => {}
            1 => drop(stream.shutdown(Shutdown::Write)),
            _ => {
                let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
                let _ = stream.read(&mut [0; 4096]);
            }
        }
        rounds += 1;
        if rounds == 50 {
            before = Some(Usage::of(pid));
        }
    }
    let numbers = scene.honest.hear().numbers("the honest client");
    println!(
        "{rounds} hostile clients; honest: {} calls, the longest {:.1} ms",
        numbers[0],
        numbers[1] as f64 / 1e6
    );
    assert!(numbers[1] < 10_000_000_000, "{numbers:?}");
    assert!(scene.server.lives() && before.is_some());
    eventually("no connection is left but the honest client's", || match connections(pid) {
        1 => Ok(()),
        more => Err(format!("{more} connections")),
    });
    assert_eq!(scene.honest.ask("add 2 3").numbers("afterwards"), [5]);
}

/// A server sends arbitrary answers. Its client gets errors, and neither ends nor hangs.
#[test]
fn bent_messages_from_servers() {
    let _company = in_company();
    let place = place();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("tcp://{}/trial", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut dice = Dice::thrown("what a hostile server says");
        let samples = frame_samples();
        for stream in listener.incoming().flatten() {
            let mut dice = Dice::new(dice.any());
            let samples = samples.clone();
            std::thread::spawn(move || answer_anything(stream, &samples, &mut dice));
        }
    });
    let mut client = place.client();
    // The number of binds is fixed, and not the time: a slow machine takes longer for them.
    let numbers = client.ask(&format!("endure-binds {name} 30")).numbers("a client that endures");
    println!(
        "{} binds, {} calls, {} errors, the longest call {:.1} ms",
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3] as f64 / 1e6
    );
    assert!(numbers[0] >= 30 && numbers[1] > 0 && numbers[2] > 0, "{numbers:?}");
    assert!(numbers[3] < 12_000_000_000, "{numbers:?}");
}

/// Answers as a server would, mostly with the right numbers but with arbitrary contents, and then
/// hangs up.
fn answer_anything(mut stream: TcpStream, samples: &[Vec<u8>], dice: &mut Dice) {
    let Ok(theirs) = read_hello(&mut stream) else { return };
    let _ = stream.write_all(&hello(theirs.session, 1 + dice.below(300) as u16).to_bytes());
    for _ in 0..dice.below(200) {
        let Ok(Frame { head: asked, body }) = read_message(&mut stream) else { return };
        let body = body.to_vec();
        let answer = match (asked.kind, dice.below(30)) {
            // A client would wait for the rest of half a message, so the connection is closed after
            // it.
            (FrameKind::Call, 0) => {
                let _ = stream.write_all(&bend(samples, dice));
                return;
            }
            (FrameKind::Ask, _)
                if body == postcard::to_stdvec(&Request::List).expect("a request") =>
            {
                let export = ("trial", "a:b/c", "", "", 1u32, vec![("null", "null: func()")]);
                let list =
                    postcard::to_stdvec(&vec![export; 1 + dice.below(3) as usize]).expect("a list");
                let list = [vec![LISTED], list].concat();
                let said = if dice.below(2) == 0 { bend(&[list], dice) } else { list };
                message(FrameHeader { kind: FrameKind::Answer, ..asked }, &said)
            }
            (FrameKind::Ask, _) => {
                // A binding, mostly with as many procedures as `trial` has.
                let count = trial::INTERFACE.procedures.len();
                let count = if dice.below(10) == 0 { dice.below(128) as usize } else { count };
                let answer =
                    postcard::to_stdvec(&Answer::Bound { procedures: any_list(count) }).unwrap();
                message(FrameHeader { kind: FrameKind::Answer, ..asked }, &answer)
            }
            _ => {
                let number = if dice.below(3) == 0 { dice.below(12) as u16 } else { 0 };
                let len = dice.below(90) as usize;
                let mut body = dice.bytes(len);
                // Counts and offsets that are nearly right.
                body.iter_mut()
                    .for_each(|byte| *byte &= [0, 0, 0x1f, 0xff][dice.below(4) as usize]);
                message(FrameHeader { kind: FrameKind::Reply, number, ..asked }, &body)
            }
        };
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

/// A client that stops in the middle of a message keeps neither its place for ever, nor the memory
/// of what it has sent.
#[test]
fn who_does_not_go_on_is_cut_off() {
    let _company = in_idle_company();
    let mut scene = Scene::new("");
    let start = Instant::now();
    let mut stalled: Vec<TcpStream> = (0..20)
        .map(|number| {
            let mut stream = scene.greeted();
            stream.write_all(&frame_samples().swap_remove(0)).unwrap();
            assert_eq!(frame(&mut stream).head.kind, FrameKind::Answer);
            let bytes = begin(&head(FrameKind::Call, 50_000).to_bytes(), &[]);
            stream.write_all(&bytes[..if number % 2 == 0 { bytes.len() } else { 11 }]).unwrap();
            stream
        })
        .collect();
    assert_eq!(scene.honest.ask("add 2 3").numbers("in the meantime"), [5]);
    for stream in &mut stalled {
        expect_closed(stream, "a message that does not go on");
    }
    // A server waits for 10 s.
    assert!((9..60).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!(scene.honest.ask("add 2 3").numbers("afterwards"), [5]);
}

/// Passes on the bytes between a client and the server at `to`. Once the flag is set, the server's
/// bytes arrive one by one, 10 ms apart.
fn trickling(to: &str) -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, slow) =
        (listener.local_addr().unwrap().to_string(), Arc::new(AtomicBool::new(false)));
    let (to, is_slow) = (to.to_owned(), slow.clone());
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(to).unwrap();
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let (mut asked, mut asking) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut asking, &mut asked));
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = (&server).read(&mut buffer) {
            let bytes = &buffer[..count];
            let piece = if is_slow.load(SeqCst) { 1 } else { count };
            for part in bytes.chunks(piece) {
                if (&client).write_all(part).is_err() {
                    return;
                }
                if piece == 1 {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    });
    (address, slow)
}

/// A reply that trickles in holds up its caller until the deadline, and so does a reply behind it.
#[test]
fn a_reply_that_trickles_is_given_up_at_the_deadline() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let (address, slow) = trickling(&scene.address);
    let mut client = scene.place.client();
    client.ask(&format!("bind tcp://{address}/trial")).expect_ok("binding");
    assert_eq!(client.ask("add 2 3").numbers("before"), [5]);
    slow.store(true, SeqCst);
    client.ask("deadline 200").expect_ok("a deadline");
    // The reply has at least 50 000 bytes, which would take eight minutes.
    client.ask("echo 50000").expect_error("Aborted.sent", &["deadline"]);
    client.ask("null").expect_error("Aborted.sent", &["deadline"]);
    assert_eq!(scene.honest.ask("add 2 3").numbers("another client"), [5]);
}

/// A client that reads no replies gets no more of them than it may leave unread, and others go on.
#[test]
fn who_does_not_read_holds_up_nobody() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let mut stream = scene.greeted();
    stream.write_all(&frame_samples().swap_remove(0)).unwrap();
    assert_eq!(frame(&mut stream).head.kind, FrameKind::Answer);
    // `make`: replies of 4 MB each, none of which is read.
    for call in 0..200 {
        let mut body = [0; 16];
        body[..8].copy_from_slice(&4_000_000u64.to_le_bytes());
        let head = FrameHeader { call, binding: 3, number: make(), ..head(FrameKind::Call, 0) };
        stream.write_all(&message(head, &body)).unwrap();
    }
    assert_eq!(scene.honest.ask("add 2 3").numbers("in the meantime"), [5]);
    scene.honest.ask("honest 500").expect_ok("calls of all kinds");
    drop(stream);
    assert_eq!(scene.honest.ask("add 2 3").numbers("afterwards"), [5]);
}

fn make() -> u16 {
    let procedures = &trial::INTERFACE.procedures;
    procedures.iter().position(|procedure| procedure.name == "make").expect("a procedure") as u16
}

/// The connections sent nothing, a greeting, or the beginning of a message.
#[test]
fn silent_connections_cost_no_threads_and_lock_nobody_out() {
    let _company = in_idle_company();
    let mut scene = Scene::new("");
    let pid = scene.server.pid();
    let all = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    let before = all();
    let greeting = hello(SESSION, 1).to_bytes();
    let asks = asking(&Request::List);
    let said = [
        &[][..],
        &greeting[..7],
        &greeting,
        &[&greeting[..], &asks[..RECORD / 2]].concat(),
        &[&greeting[..], &asks[..RECORD + HEAD]].concat(),
    ];
    let mut silent: Vec<TcpStream> = (0..300)
        .map(|number| {
            let mut stream = scene.connected();
            stream.write_all(said[number % said.len()]).unwrap();
            stream
        })
        .collect();
    assert_eq!(scene.honest.ask("add 2 3").numbers("an earlier client"), [5]);
    // The server accepts in order, so it has seen all of them. The first ones had to go for later
    // ones.
    for _ in 0..10 {
        let mut late = scene.place.client();
        late.ask(&format!("bind tcp://{}/trial", scene.address)).expect_ok("binding beside them");
        assert_eq!(late.ask("add 2 3").numbers("a later client"), [5]);
    }
    assert_eq!(list_far(&format!("tcp://{}", scene.address)).expect("a list").len(), 2);
    eventually("no thread is theirs", || {
        // A call may have started the threads of one more virtual processor, but not 300.
        let now = all();
        if now <= before + 4 { Ok(()) } else { Err(format!("{now} threads, {before} before")) }
    });
    // Each connection has one time limit for all of its silence.
    let start = Instant::now();
    silent.iter_mut().for_each(|stream| drop(expect_closed(stream, "a silent connection")));
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert_eq!(scene.honest.ask("add 2 3").numbers("afterwards"), [5]);
}

/// The policy is asked before the first byte, so a client that it refuses needs no request.
#[test]
fn who_is_not_let_in_is_told_after_its_hello() {
    let _company = in_company();
    let place = place();
    let (_server, address) = place.serve_far("trial refuse tcp");
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&hello(SESSION, 1).to_bytes()).unwrap();
    read_hello(&mut stream).unwrap();
    let farewell = frame(&mut stream);
    assert_eq!(farewell.head.kind, FrameKind::Farewell);
    assert!(String::from_utf8_lossy(&farewell.body.to_vec()).contains("is not on the list"));
    // The client neither reads the refusal nor hangs up: the connection is closed all the same.
    expect_closed(&mut stream, "a refused client");
    let start = Instant::now();
    while stream.write_all(&[1; 100]).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(60), "it is still open");
        std::thread::sleep(Duration::from_millis(10));
    }
}
