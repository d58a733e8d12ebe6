//! Hostile clients: they send what no client sends, and write over every byte that they may write,
//! while an honest client calls.

use crate::in_company;
use crate::scene::Scene;
use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::MemoryFile;
use upcall_shm::channel::{self, Channel};
use upcall_shm::region::{Region, RegionView};
use upcall_shm::ring::{RingReceiver, RingSender};
use upcall_shm::slot::{self, NO_ASTACK, Slot, SlotMessage};
use upcall_shm::station::Station;
use upcall_tests::dice::Dice;
use upcall_tests::interfaces::trial;
use upcall_tests::place::eventually;
use upcall_tests::speech::{
    self, Answer, Came, FETCH, Hold, RELEASE, Refusal, Request, Speaker, ToServer, VERSION,
    bind_all, outcome, plan,
};

fn memory(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .expect("memory");
    rustix::fs::ftruncate(&fd, len).expect("a length");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
    fd
}

/// Memory for a segment.
fn filled(len: usize) -> OwnedFd {
    let (file, _map) = MemoryFile::create_filled("hostile", len).expect("memory");
    file.as_fd().try_clone_to_owned().expect("a copy")
}

fn proper() -> SealFlags {
    SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW
}

/// A well-formed channel's memory.
pub(crate) fn channel_memory() -> MemoryFile {
    let file = MemoryFile::create("upcall-channel", channel::BYTES).expect("memory");
    let map = upcall_os::memory::Mapping::shared(&file).expect("a mapping");
    Channel::create(Region::new(map).expect("writable")).expect("a channel");
    file
}

/// Descriptors of every kind that a client might have.
fn odd_descriptors() -> Vec<(&'static str, OwnedFd)> {
    let (reader, writer) = rustix::pipe_pair();
    let epoll =
        rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("a set");
    vec![
        ("/dev/null", File::open("/dev/null").expect("it").into()),
        ("/dev/zero", File::options().read(true).write(true).open("/dev/zero").expect("it").into()),
        ("a folder", File::open("/tmp").expect("it").into()),
        ("a file", tempfile::tempfile().expect("a file").into()),
        (
            "a doorbell",
            Doorbell::new().expect("a doorbell").as_fd().try_clone_to_owned().expect("a copy"),
        ),
        ("a pipe's reader", reader),
        ("a pipe's writer", writer),
        ("a set", epoll),
        ("memory without seals", memory(channel::BYTES as u64, SealFlags::empty())),
        (
            "memory that may shrink",
            memory(channel::BYTES as u64, SealFlags::SEAL | SealFlags::GROW),
        ),
        (
            "memory that may grow",
            memory(channel::BYTES as u64, SealFlags::SEAL | SealFlags::SHRINK),
        ),
        (
            "memory whose seals are open",
            memory(channel::BYTES as u64, SealFlags::SHRINK | SealFlags::GROW),
        ),
        (
            "memory that no process may write",
            memory(channel::BYTES as u64, proper() | SealFlags::WRITE),
        ),
        (
            "memory that others may not write",
            memory(channel::BYTES as u64, proper() | SealFlags::FUTURE_WRITE),
        ),
        ("short memory", memory(channel::BYTES as u64 - 1, proper())),
        ("empty memory", memory(0, proper())),
        ("zeroed memory", memory(channel::BYTES as u64, proper())),
    ]
}

mod rustix {
    pub use ::rustix::*;

    pub fn pipe_pair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        (reader.into(), writer.into())
    }
}

#[track_caller]
fn refused(came: Came, what: &str) -> String {
    match came {
        Came::Answer(Answer::Refused(refusal), _) => {
            println!("    {what}: {refusal:?}");
            format!("{refusal:?}")
        }
        Came::Closed => {
            println!("    {what}: the connection was closed");
            String::new()
        }
        other => panic!("{what} was not refused: {other:?}"),
    }
}

#[test]
fn wrong_memory_and_wrong_order() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let mut first = true;
    scene.while_honest(1500, |socket| {
        if std::mem::take(&mut first) {
            wrong_things(socket);
        } else {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    scene.close(before);
}

#[expect(clippy::too_many_lines, reason = "one step for each wrong thing")]
fn wrong_things(socket: &Path) {
    let connect = || Speaker::connect(socket).expect("a connection");
    let open = |version| Request::Open { version };
    let station = Station::new().expect("a station");
    // Versions.
    for version in [0, VERSION - 1, VERSION + 1, 99, u32::MAX] {
        let text = refused(connect().ask(open(version), &[]), "another version");
        assert!(text.contains("Version") && text.contains(&version.to_string()), "{text}");
    }
    // Too few and too many descriptors.
    let good = channel_memory();
    for count in [0, 1, 3, 8] {
        let all: Vec<BorrowedFd<'_>> = std::iter::repeat_n(good.as_fd(), count).collect();
        refused(connect().ask(open(VERSION), &all), &format!("{count} descriptors"));
    }
    // Wrong ones in each place.
    for (what, fd) in odd_descriptors() {
        refused(
            connect().ask(open(VERSION), &[fd.as_fd(), station.as_fd()]),
            &format!("{what} for a channel"),
        );
        refused(
            connect().ask(open(VERSION), &[good.as_fd(), fd.as_fd()]),
            &format!("{what} for a station"),
        );
    }
    // Before the channel is open.
    refused(
        connect().ask(Request::Segment { number: 1, len: 4096 }, &[memory(4096, proper()).as_fd()]),
        "a segment without a channel",
    );
    let unready = connect();
    unready.tell(Request::OpenLane { number: 0, vp: None }, &[]);
    refused(unready.hear(), "a lane without a channel");
    // On an open channel.
    let proper_len = |len: u64| memory(len, proper());
    let hold = || Hold::new(socket, "trial").expect("a channel");
    let it = hold();
    refused(it.speaker.ask(open(VERSION), &[good.as_fd(), station.as_fd()]), "a second channel");
    let bind = |id, interface: &str, wanted: &str| Request::Bind {
        id,
        name: "trial".into(),
        interface: interface.into(),
        procedures: vec![(wanted.into(), 1, "func()".into())],
        stacks: 0,
    };
    let ours = "upcall:tests/trial@1.0.0";
    let text =
        refused(it.speaker.ask(bind(1, "other:other/other", "null"), &[]), "another interface");
    assert!(text.contains("WrongInterface"), "{text}");
    let text = refused(it.speaker.ask(bind(1, ours, "nothing"), &[]), "an unknown procedure");
    assert!(text.contains("nothing"), "{text}");
    let none = |id| Request::Bind {
        id,
        name: "trial".into(),
        interface: ours.into(),
        procedures: vec![],
        stacks: 0,
    };
    for id in [0, 64, u16::MAX] {
        refused(it.speaker.ask(none(id), &[]), &format!("binding number {id}"));
    }
    // A-stacks: for a binding with A-stacks of its own, for a binding without, and for a binding
    // that does not exist.
    let stacks = |id| Request::Stacks { id };
    let exact = trial::INTERFACE.plan().bytes() as u64;
    let there = it.speaker.ask(none(2), &[]);
    assert!(
        matches!(&there, Came::Answer(Answer::Bound { procedures }, _) if procedures.is_empty()),
        "{there:?}"
    );
    for id in [0, 1, 2, 64, u16::MAX] {
        let text = refused(
            it.speaker.ask(stacks(id), &[proper_len(exact).as_fd()]),
            &format!("A-stacks for binding {id}"),
        );
        assert!(text.contains("A-stacks"), "{text}");
    }
    let bare = || {
        let it = hold();
        let bound = it.speaker.ask(bind_all(1, "trial", &trial::INTERFACE), &[]);
        let Came::Answer(Answer::Bound { procedures }, _) = bound else {
            panic!("not bound: {bound:?}")
        };
        assert_eq!(plan(&procedures), trial::INTERFACE.plan());
        it
    };
    let at_once = |count| {
        let mut request = bind_all(1, "trial", &trial::INTERFACE);
        let Request::Bind { stacks, .. } = &mut request else { unreachable!() };
        *stacks = count;
        request
    };
    let it = hold();
    refused(it.speaker.ask(at_once(exact as u32), &[]), "A-stacks without memory");
    refused(
        it.speaker.ask(at_once(u32::MAX), &[proper_len(exact - 4096).as_fd()]),
        "short A-stacks",
    );
    let it = bare();
    refused(it.speaker.ask(stacks(1), &[]), "A-stacks without memory, later");
    refused(
        it.speaker.ask(stacks(1), &[proper_len(exact - 4096).as_fd()]),
        "short A-stacks, later",
    );
    it.speaker.tell(Request::Unbind { id: 1 }, &[]);
    refused(
        it.speaker.ask(stacks(1), &[proper_len(exact).as_fd()]),
        "A-stacks for a binding that was given up",
    );
    let it = bare();
    let given = it.speaker.ask(stacks(1), &[proper_len(exact).as_fd()]);
    assert!(matches!(given, Came::Answer(Answer::Mapped, _)), "{given:?}");
    refused(it.speaker.ask(stacks(1), &[proper_len(exact).as_fd()]), "A-stacks twice");
    for (what, fd) in odd_descriptors() {
        if !["zeroed memory", "short memory"].contains(&what) {
            // A descriptor that is neither memory nor a doorbell ends the connection.
            let it = hold();
            refused(
                it.speaker.ask(at_once(exact as u32), &[fd.as_fd()]),
                &format!("{what} for A-stacks"),
            );
            let it = bare();
            refused(
                it.speaker.ask(stacks(1), &[fd.as_fd()]),
                &format!("{what} for A-stacks, later"),
            );
            let it = hold();
            refused(
                it.speaker
                    .ask(Request::Segment { number: 2, len: channel::BYTES as u64 }, &[fd.as_fd()]),
                &format!("{what} for a segment"),
            );
        }
    }
    for (number, len) in [(0, 4096), (2, 0), (2, 1 << 40), (2, u64::MAX)] {
        refused(
            it.speaker.ask(Request::Segment { number, len }, &[filled(8192).as_fd()]),
            &format!("segment {number} of {len}"),
        );
    }
    // More address space than one client may have.
    let huge = memory(65 << 30, SealFlags::SHRINK | SealFlags::GROW);
    let text = refused(
        it.speaker.ask(Request::Segment { number: 3, len: 65 << 30 }, &[huge.as_fd()]),
        "too much address space",
    );
    assert!(text.contains("mapped bytes"), "{text}");
    for number in [64, u16::MAX, 0] {
        let it = hold();
        it.speaker.tell(Request::OpenLane { number, vp: None }, &[]);
        refused(it.speaker.hear(), &format!("lane {number}, which is no lane or open already"));
    }
    let it = hold();
    it.speaker.tell(Request::OpenLane { number: 1, vp: Some(0) }, &[]);
    refused(it.speaker.hear(), "a virtual processor's lane without a doorbell");
    // An odd descriptor as a doorbell, and a notification of it.
    for (what, fd) in odd_descriptors() {
        let it = hold();
        it.station.line(5).asleep.store(1, Ordering::SeqCst);
        let ring = open_ring(&it, 40, 5, fd.as_fd());
        call(&it, &ring);
        println!("    {what} for a doorbell");
    }
}

/// The ring of a virtual processor's lane, opened with this doorbell.
fn open_ring(
    hold: &Hold,
    lane: u16,
    vp: u16,
    doorbell: BorrowedFd<'_>,
) -> RingSender<RegionView<[Slot]>> {
    hold.speaker.tell(Request::OpenLane { number: lane, vp: Some(vp) }, &[doorbell]);
    let channel = Channel::join(hold.channel.clone()).expect("a channel");
    RingSender::new(channel.lane(lane).expect("a lane").requests)
}

/// Calls `null`, which does the same in every state of the rest, and rings the server's doorbell.
fn call(hold: &Hold, ring: &RingSender<RegionView<[Slot]>>) {
    ring.send(&SlotMessage::new(0, hold.number("null"), NO_ASTACK));
    std::sync::atomic::fence(Ordering::SeqCst);
    hold.server_doorbell.notify();
}

/// A request without values.
fn plain(call: u16, binding: u16, procedure: u16) -> SlotMessage {
    SlotMessage::new(call, speech::tag(binding, procedure), NO_ASTACK)
}

/// Requests that name something that does not exist, each with the outcome that its reply must
/// have.
fn calls_to_nothing(it: &Hold) -> Vec<(String, SlotMessage, u16)> {
    let count = it.numbers.len() as u16;
    let mut all = Vec::new();
    for procedure in [count, count + 1, 500, 999, 1000, 1021] {
        all.push((
            format!("procedure {procedure} of {count}"),
            plain(0, 0, procedure),
            outcome::NO_SUCH_PROCEDURE,
        ));
    }
    for binding in 1..64 {
        all.push((
            format!("binding {binding}, of which there is one"),
            plain(0, binding, it.number("null")),
            outcome::REVOKED,
        ));
    }
    all.push(("neither binding nor procedure".into(), plain(0, 63, 1021), outcome::REVOKED));
    // The runtime's own procedures, on another binding and without their arguments.
    all.push(("release, of no binding".into(), plain(0, 1, 1023), outcome::REVOKED));
    all.push(("fetch, of no binding".into(), plain(0, 1, 1022), outcome::REVOKED));
    all.push(("fetch of nothing".into(), plain(0, 0, 1022), outcome::NO_SUCH_HANDLE));
    let stack = SlotMessage::new(0, speech::tag(0, it.number("null")), it.stacks as u16);
    all.push(("an A-stack behind the last".into(), stack, outcome::REFUSED));
    let mut segment = plain(0, 0, it.number("null"));
    segment.place(slot::ValueLocation::Inline, 2, 0);
    all.push(("a segment that was not given".into(), segment, outcome::REFUSED));
    all
}

#[test]
fn calls_to_what_is_not_there() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let it = Hold::new(&scene.socket, "trial").expect("a channel");
    let doorbell = Doorbell::new().expect("a doorbell");
    let (caller, ring) = (it.caller(), open_ring(&it, 40, 5, doorbell.as_fd()));
    let replies = RingReceiver::new(
        Channel::join(it.channel.clone()).expect("a channel").lane(40).expect("a lane").replies,
    );
    // A virtual processor's lane, in which calls may be under way together. The virtual processor
    // stays awake, so that no wake-up is needed.
    let call_by_ring = |request: &SlotMessage| {
        ring.send(request);
        std::sync::atomic::fence(Ordering::SeqCst);
        it.server_doorbell.notify();
        let start = Instant::now();
        loop {
            if let Some(reply) = replies.take() {
                return Some(reply);
            }
            if start.elapsed() > Duration::from_secs(60) {
                return None;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    };
    type Lane<'a> = (&'a str, &'a dyn Fn(&SlotMessage) -> Option<SlotMessage>);
    let both: [Lane<'_>; 2] = [
        ("a kernel thread's lane", &|request| caller.call(request)),
        ("a virtual processor's lane", &call_by_ring),
    ];
    let null = plain(0, 0, it.number("null"));
    let mut number = 0;
    scene.while_honest(1500, |_| {
        for (lane, call) in both {
            for (what, mut request, expected) in calls_to_nothing(&it) {
                number = (number + 1) % 64;
                request.set_call(number);
                let reply = call(&request)
                    .unwrap_or_else(|| panic!("{lane}: no reply to a call to {what}"));
                assert_eq!((reply.tag(), reply.call()), (expected, number), "{lane}: {what}");
                // The lane goes on: the next call succeeds.
                let reply = call(&null)
                    .unwrap_or_else(|| panic!("{lane}: no reply after a call to {what}"));
                assert_eq!((reply.tag(), reply.call()), (outcome::DONE, 0), "{lane}: after {what}");
            }
        }
    });
    assert!(
        matches!(it.speaker.0.receive(), Ok(upcall_os::socket::Received::Nothing)),
        "the connection was closed"
    );
    drop((caller, ring, replies));
    drop(it);
    scene.close(before);
}

/// A virtual processor's lane has slots for `DEPTH` calls. A client that sends one more call before
/// it has a reply takes the slot of a call that is under way, and loses its channel.
#[test]
fn one_call_more_than_a_lane_has_slots() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let it = Hold::new(&scene.socket, "trial").expect("a channel");
    let doorbell = Doorbell::new().expect("a doorbell");
    let ring = open_ring(&it, 40, 5, doorbell.as_fd());
    let mut long = plain(0, 0, it.number("work"));
    // How long the procedure sleeps, in milliseconds: longer than this test takes.
    long.values[0] = 3_600_000;
    long.place(slot::ValueLocation::Inline, 0, 4);
    let mut begun = || scene.honest.ask("marks").numbers("calls that have begun")[0];
    for call in 0..=channel::DEPTH {
        long.set_call((call % channel::DEPTH) as u16);
        ring.send(&long);
        std::sync::atomic::fence(Ordering::SeqCst);
        it.server_doorbell.notify();
        // The server has taken each call before the next one is sent, so the server has
        // read each slot that is lost.
        if call < channel::DEPTH {
            eventually("the server runs the call", || match begun() {
                found if found > call as u64 => Ok(()),
                found => Err(format!("{found} of {} have begun", call + 1)),
            });
        }
    }
    refused(it.speaker.hear(), "a call more than the lane has slots");
    assert_eq!(scene.honest.ask("add 2 3").numbers("add"), [5], "another client");
}

/// Numbers of bindings, objects, results and segments have a meaning on one's own channel only. A
/// client that guesses another client's number gains nothing by it.
#[test]
fn nothing_of_another_client_is_reached() {
    let _company = in_company();
    let mut scene = Scene::new("");
    // Bindings 1 to 3 of its channel; two objects through binding 0.
    scene.honest.ask("bind trial.small as small").expect_ok("binding");
    scene.honest.ask("bind-more trial.small").expect_ok("binding");
    scene.honest.ask("bind-more trial.small").expect_ok("binding");
    scene.honest.ask("open 2").expect_ok("opening");
    let before = scene.warm();
    let it = Hold::new(&scene.socket, "trial").expect("a channel");
    let caller = it.caller();
    let with = |binding, procedure, value| {
        let mut request = plain(0, binding, procedure);
        request.values[0] = value;
        request.place(slot::ValueLocation::Inline, 0, 8);
        let reply = caller
            .call(&request)
            .unwrap_or_else(|| panic!("no reply to procedure {procedure} of binding {binding}"));
        (reply.tag(), reply.values[0])
    };
    let (open, number) = (it.number("open"), it.number("thing.number"));

    // Sessions number their objects alike, so our own first handle has the same number as the other
    // client's.
    let (opened, handle) = with(0, open, 77);
    assert_eq!(
        (opened, with(0, number, handle)),
        (outcome::DONE, (outcome::DONE, 77)),
        "our own object"
    );
    assert_eq!(with(0, RELEASE, handle).0, outcome::DONE);
    let around =
        |number: u64| [number, number + 1, number + (1 << 32), number.wrapping_sub(1 << 32)];
    let guesses: Vec<u64> =
        (0..8).chain(around(handle)).chain(around(handle + 1)).chain([u64::MAX]).collect();

    scene.while_honest(500, |_| {
        for &guess in &guesses {
            assert_eq!(
                with(0, number, guess).0,
                outcome::NO_SUCH_HANDLE,
                "object {guess:#x} of the other client"
            );
            assert_eq!(
                with(0, FETCH, guess).0,
                outcome::NO_SUCH_HANDLE,
                "result {guess:#x} of the other client"
            );
            // The reply does not show whether anything was dropped; that is checked below.
            assert_eq!(with(0, RELEASE, guess).0, outcome::DONE);
            for binding in 1..5 {
                for procedure in [number, 0, RELEASE, FETCH] {
                    assert_eq!(
                        with(binding, procedure, guess).0,
                        outcome::REVOKED,
                        "binding {binding} of the other client"
                    );
                }
            }
        }
        for id in 1..5 {
            it.speaker.tell(Request::Unbind { id }, &[]);
            it.speaker.tell(Request::DropSegment { number: 1 + id }, &[]);
        }
    });

    assert_eq!(scene.honest.ask("numbers").numbers("the objects' numbers"), [0, 1]);
    scene.honest.ask("add-small").expect_ok("calls through its other bindings");
    assert_eq!(
        with(0, it.number("null"), 0).0,
        outcome::DONE,
        "our own binding is as good as before"
    );
    drop(caller);
    drop(it);
    scene.close(before);
}

#[test]
fn messages_of_every_length() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let mut dice = Dice::thrown("messages");
    let mut whole = postcard::to_stdvec(&ToServer {
        serial: 7,
        request: Request::Bind {
            id: 3,
            name: "trial".into(),
            interface: "upcall:tests/trial@1.0.0".into(),
            procedures: vec![("null".into(), 0, "func()".into())],
            stacks: 4096,
        },
    })
    .expect("a message");
    let lengths: Vec<usize> =
        (0..300).chain([1000, 4095, 65_536, 163_839, 163_840, 163_841, 200_000]).collect();
    let mut at = 0;
    scene.while_honest(3000, |socket| {
        let len = lengths[at % lengths.len()];
        at += 1;
        let Ok(speaker) = Speaker::try_connect(socket) else {
            return std::thread::sleep(Duration::from_millis(1));
        };
        // Noise of this length, with or without descriptors. A connection that still stands then
        // gets a proper message, cut and mutated.
        let fds = [memory(4096, proper())];
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).take(dice.below(2) as usize).collect();
        speaker.send(&dice.bytes(len), &fds);
        let Ok(bent) = Speaker::try_connect(socket) else { return };
        bent.send(&whole[..len.min(whole.len())], &fds);
        for _ in 0..4 {
            let place = dice.below(whole.len() as u64) as usize;
            let kept = whole[place];
            whole[place] = dice.any() as u8;
            bent.send(&whole, &fds);
            whole[place] = kept;
        }
    });
    scene.close(before);
}

#[test]
fn connections_that_say_nothing_and_answers_that_nobody_reads() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let mut held = Vec::new();
    scene.while_honest(1500, |socket| {
        if held.len() < 200 {
            held.extend(Speaker::try_connect(socket));
        }
        if let Ok(deaf) = Speaker::try_connect(socket) {
            let list = postcard::to_stdvec(&ToServer { serial: 1, request: Request::List })
                .expect("a message");
            for _ in 0..500 {
                if deaf
                    .0
                    .send(&list, &[])
                    .is_err_and(|error: io::Error| error.kind() != io::ErrorKind::WouldBlock)
                {
                    break;
                }
            }
        }
    });
    let text = refused(
        Speaker::connect(&scene.socket).expect("a connection").hear(),
        "one connection too many",
    );
    assert!(text.contains("Denied") && text.contains("64 connections"), "{text}");
    drop(held);
    scene.close(before);
}

fn scribble(ms: u64, options: &str) {
    let _company = in_company();
    let mut scene = Scene::new(options);
    let before = scene.warm();
    let mut dice = Dice::thrown("scribbling");
    let mut hold: Option<(Hold, RingSender<RegionView<[Slot]>>)> = None;
    let (mut channels, mut since) = (0, 0);
    scene.while_honest(ms, |socket| {
        let stale = since > 3000
            || hold.as_ref().is_some_and(|(hold, _)| {
                matches!(hold.speaker.0.receive(), Ok(upcall_os::socket::Received::Closed))
            });
        if stale {
            hold = None;
        }
        let (it, ring) = hold.get_or_insert_with(|| {
            since = 0;
            channels += 1;
            let it = Hold::new(socket, "trial").expect("a channel");
            for lane in 1..6u16 {
                it.speaker.tell(Request::OpenLane { number: lane, vp: None }, &[]);
            }
            let doorbell = Doorbell::new().expect("a doorbell");
            let ring = open_ring(&it, 33, 3, doorbell.as_fd());
            (it, ring)
        });
        since += 1;
        for _ in 0..20 {
            disturb(it, ring, &mut dice);
        }
        it.server_doorbell.notify();
        if dice.below(50) == 0 {
            let words = [
                Request::Unbind { id: dice.below(3) as u16 },
                Request::DropSegment { number: dice.below(3) as u16 },
            ];
            it.speaker.tell(words[dice.below(2) as usize].clone(), &[]);
        }
    });
    println!("    {channels} channels");
    drop(hold);
    scene.close(before);
}

/// Makes one random change among those that a client can write.
#[expect(clippy::too_many_lines, reason = "one arm for each disturbance")]
fn disturb(it: &Hold, ring: &RingSender<RegionView<[Slot]>>, dice: &mut Dice) {
    let room = it.channel.room(0, it.channel.len()).expect("the whole");
    match dice.below(8) {
        // Anything anywhere, in each memory.
        0 => {
            for region in [&it.channel, &it.astacks, &it.segment] {
                let len = 1 + dice.below(100) as usize;
                let at = dice.below((region.len() - len) as u64) as usize;
                let _ = region.room(at, len).and_then(|room| room.copy_in(0, &dice.bytes(len)));
            }
        }
        // The control words and the first rings.
        1 => {
            let at = dice.below(8192 + 6 * 8192 - 8) as usize;
            let _ = room.copy_in(at, &dice.bytes(8));
        }
        2 => {
            for vp in 0..63 {
                it.station.line(vp).asleep.store(dice.any() as u32 & 1, Ordering::SeqCst);
                it.station.line(vp).sleeps.store(dice.any(), Ordering::SeqCst);
                it.station.line(vp).tid.store(dice.any() as u32 & 0xffff, Ordering::SeqCst);
                it.station.line(vp).cpu.store(dice.any() as u32, Ordering::SeqCst);
            }
        }
        // Requests that a server takes, with arbitrary arguments.
        _ => {
            let number = |dice: &mut Dice| match dice.below(8) {
                0 => 0,
                1 => dice.below(64),
                2 => 1 << dice.below(64),
                3 => u64::MAX - dice.below(64),
                4 => 1 << 20,
                5 => (1 << 20) - dice.below(64),
                _ => dice.any(),
            };
            let procedure = match dice.below(10) {
                0 => dice.any() as u16 & 0x3ff,
                1 => 1023,
                2 => 1022,
                _ => it.numbers[dice.below(it.numbers.len() as u64) as usize],
            };
            // Not `make`, which allocates what it is asked for, nor the procedures that last as
            // long as they are asked to: their arguments are their own responsibility.
            let procedure = if ["make", "nap", "work", "compute", "open-slow"]
                .map(|name| it.number(name))
                .contains(&procedure)
            {
                it.number("null")
            } else {
                procedure
            };
            let binding = if dice.below(10) == 0 { dice.below(64) as u16 } else { 0 };
            let astack =
                if dice.below(4) == 0 { dice.below(1 << 16) } else { dice.below(it.stacks as u64) };
            let place = [
                slot::ValueLocation::Inline,
                slot::ValueLocation::AStack,
                slot::ValueLocation::Segment,
            ][dice.below(3) as usize];
            let segment = if dice.below(4) == 0 {
                dice.below(4)
            } else {
                u64::from(place == slot::ValueLocation::Segment)
            };
            let mut image =
                SlotMessage::new(dice.any() as u16, binding << 10 | procedure, astack as u16);
            image.place(place, segment as u16, number(dice) as u32);
            if dice.below(10) == 0 {
                image.donate();
            }
            image.values = std::array::from_fn(|_| number(dice));
            // Descriptors of lists, and handles, in the other memories, too.
            for region in [&it.astacks, &it.segment] {
                let at = dice.below(region.len() as u64 / 8 - 4) as usize * 8;
                let at = if dice.below(2) == 0 { at } else { 0 };
                for word in 0..4 {
                    let _ = region
                        .room(0, region.len())
                        .and_then(|room| room.put_u64(at + word * 8, number(dice)));
                }
            }
            ring.send(&image);
        }
    }
}

#[test]
fn a_client_scribbles() {
    scribble(1500, "");
}

#[test]
fn a_client_scribbles_at_two_processors() {
    scribble(1000, "two");
}

#[test]
#[ignore = "long"]
fn long_a_client_scribbles() {
    scribble(60_000, "");
    scribble(60_000, "two");
    scribble(30_000, "poll");
    scribble(30_000, "sleep");
}

#[test]
fn a_bell_that_blocks() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let hold = Hold::new(&scene.socket, "trial").expect("a channel");
    let doorbell = Doorbell::new().expect("a doorbell");
    hold.station.line(5).asleep.store(1, Ordering::SeqCst);
    let ring = open_ring(&hold, 40, 5, doorbell.as_fd());
    call(&hold, &ring);
    std::thread::sleep(Duration::from_millis(100));
    // The eventfd is full, and blocking again: a server that wrote to it as to its own would wait
    // for ever.
    let _ = rustix::io::write(&doorbell, &(u64::MAX - 2).to_ne_bytes());
    let flags = rustix::fs::fcntl_getfl(&doorbell).expect("flags");
    rustix::fs::fcntl_setfl(&doorbell, flags - rustix::fs::OFlags::NONBLOCK).expect("flags");
    for _ in 0..3 {
        // A new sleep each time: the server notifies once for each.
        hold.station.line(5).sleeps.fetch_add(1, Ordering::SeqCst);
        call(&hold, &ring);
    }
    scene.while_honest(500, |_| std::thread::sleep(Duration::from_millis(20)));
    drop((hold, doorbell));
    scene.close(before);
}

#[test]
fn a_name_that_is_not_exported_any_more() {
    let _company = in_company();
    let scene = Scene::new("");
    let hold = Hold::new(&scene.socket, "trial").expect("a channel");
    let bind = Request::Bind {
        id: 9,
        name: "gone".into(),
        interface: "x".into(),
        procedures: vec![],
        stacks: 0,
    };
    assert!(matches!(
        hold.speaker.ask(bind, &[]),
        Came::Answer(Answer::Refused(Refusal::NoSuchName), _)
    ));
}
