//! A ledger of costs: after each hostile step, what the server pays is bounded by what its client
//! pays.

use crate::in_company;
use crate::scene::Scene;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use upcall_shm::slot::{NO_ASTACK, SlotMessage, ValueLocation};
use upcall_tests::group::Group;
use upcall_tests::place::AtLast;
use upcall_tests::segments::{allocate, bring, file, list};
use upcall_tests::speech::{
    Answer, Came, Hold, Refusal, Request, Speaker, bind_all, outcome, plan, tag,
};
use upcall_tests::usage::{Usage, memory, processor_time};

const MIB: u64 = 1 << 20;

/// The resources that a client holds at the moment, and pays for itself.
#[derive(Clone, Copy, Debug)]
struct Paid {
    descriptors: usize,
    mappings: usize,
    /// Number of bytes that the client has written, or asked the server to write.
    bytes: u64,
}

impl Paid {
    /// A channel with its A-stacks, one segment and one lane.
    const CHANNEL: Self = Self { descriptors: 5, mappings: 5, bytes: 2 * MIB };

    fn and(self, descriptors: usize, mappings: usize, bytes: u64) -> Self {
        Self {
            descriptors: self.descriptors + descriptors,
            mappings: self.mappings + mappings,
            bytes: self.bytes + bytes,
        }
    }
}

/// Number of descriptors, and of mappings, that a server may have beyond twice its client's: for
/// workers' stacks, the allocator's arenas, and a thread that maps segments.
const BEYOND: usize = 24;

/// Maximum processor time of a server, in nanoseconds: for each byte that its client writes, and a
/// constant beyond that. A build without optimisation takes some 20 ns to read a byte of a list.
const TIME: (u64, u64) = (200, 2_000_000_000);

/// What a server pays: bytes of memory that no other process pays for, descriptors, mappings, and
/// processor time.
struct Ledger {
    pid: u32,
    group: Group,
    before: (u64, u64),
    used: Usage,
    time: u64,
}

impl Ledger {
    fn of(scene: &Scene, limit: u64) -> Self {
        let pid = scene.server.pid();
        let (used, time) = (Usage::of(pid), processor_time(pid));
        let group = Group::around(pid, limit, "the part with a control group of memory");
        let mut ledger = Self { pid, group, before: (0, 0), used, time };
        ledger.before = ledger.now();
        ledger
    }

    /// Returns the bytes of the process's private memory, and the bytes that its control group is
    /// charged with.
    fn now(&self) -> (u64, u64) {
        let (all, shared) = memory(self.pid);
        ((all - shared) * 1024, self.group.charged())
    }

    /// Checks that the server pays at most `most` bytes more than before, and of every other
    /// resource at most a multiple of what its client has paid since then.
    #[track_caller]
    fn check(&self, what: &str, most: u64, paid: Paid) {
        let now = self.now();
        let more = (now.0.saturating_sub(self.before.0), now.1.saturating_sub(self.before.1));
        println!("    {what}: {} KiB of its own, {} KiB charged", more.0 / 1024, more.1 / 1024);
        assert!(
            more.0 <= most && more.1 <= most,
            "{what}: the server pays {more:?} bytes more, at most {most} were permitted"
        );
        let used = Usage::of(self.pid);
        let descriptors = used.descriptors.saturating_sub(self.used.descriptors);
        let mappings = used.mappings.saturating_sub(self.used.mappings);
        let time = processor_time(self.pid).saturating_sub(self.time);
        println!(
            "        {descriptors} descriptors, {mappings} mappings, {} ms; its client: {paid:?}",
            time / 1_000_000
        );
        assert!(
            descriptors <= 2 * paid.descriptors + BEYOND,
            "{what}: {descriptors} descriptors for {paid:?}"
        );
        assert!(mappings <= 2 * paid.mappings + BEYOND, "{what}: {mappings} mappings for {paid:?}");
        assert!(
            time <= TIME.0 * paid.bytes + TIME.1,
            "{what}: {time} ns of processor time for {paid:?}"
        );
    }
}

/// Makes a call whose arguments are the first `len` bytes of segment `number`.
fn in_segment(hold: &Hold, procedure: &str, number: u16, len: u64) -> SlotMessage {
    upcall_tests::segments::in_segment(hold.number(procedure), number, len)
}

#[test]
fn memory_files_with_holes_cost_the_server_nothing() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let hold = Hold::new(&scene.socket, "trial").expect("a channel");
    let ledger = Ledger::of(&scene, 512 * MIB);
    let huge = 1024 * MIB;
    let none = FallocateFlags::empty();
    // One file is never touched, one is touched in its first half, and one has as much memory as
    // its length, but all of it behind its end.
    type Fill = fn(&OwnedFd);
    let fills: [(&str, Fill); 3] = [
        ("never touched", |_| {}),
        ("half allocated", |fd| allocate(fd, FallocateFlags::empty(), 0, 4 * MIB)),
        ("allocated behind its end", |fd| {
            allocate(fd, FallocateFlags::KEEP_SIZE, 8 * MIB, 8 * MIB)
        }),
    ];
    for (what, fill) in fills {
        let refusal = bring(&hold, 2, &file(8 * MIB, fill), 8 * MIB).expect_err(what);
        assert!(format!("{refusal:?}").contains("allocate it"), "{what}: {refusal:?}");
    }
    bring(&hold, 2, &file(huge, |_| {}), huge).expect_err("a huge one");
    // The server has closed the files again. The huge file cost the client nothing, and so it must
    // not cost the server anything.
    ledger.check("files with holes", MIB, Paid::CHANNEL.and(1, 1, 12 * MIB));
    // A filled file, in which the client tries to punch holes after the server has mapped it.
    let filled = file(8 * MIB, |fd| allocate(fd, none, 0, 8 * MIB));
    bring(&hold, 2, &filled, 8 * MIB).expect("one without holes");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(
        rustix::fs::fallocate(&filled, punch, 0, 8 * MIB).is_err(),
        "a hole was punched in a segment that the server uses"
    );
    let again = rustix::fs::open(
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&filled)),
        rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::empty(),
    );
    assert!(
        rustix::fs::fallocate(again.expect("the same file"), punch, 0, 8 * MIB).is_err(),
        "by another descriptor"
    );
    hold.caller().call(&in_segment(&hold, "sum", 2, 8 * MIB)).expect("an answer");
    ledger.check("a call with 8 MiB of the client's", 2 * MIB, Paid::CHANNEL.and(1, 1, 20 * MIB));
    drop((hold, filled));
    scene.close(before);
}

#[test]
fn a_list_that_is_copied_has_a_quota_and_the_call_does_not_run_beyond() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let hold = Hold::new(&scene.socket, "trial").expect("a channel");
    let ledger = Ledger::of(&scene, 512 * MIB);
    let len = 64 * MIB;
    let filled = file(len, |fd| list(fd, len, (len - 16) / 8));
    bring(&hold, 2, &filled, len).expect("a segment");
    let reply = hold.caller().call(&in_segment(&hold, "total", 2, len)).expect("an answer");
    let said = (reply.tag(), reply.values[0], reply.values[1], reply.values[2]);
    assert_eq!(said, (outcome::QUOTA, len - 16, 16 * MIB, 0), "more than a call may have");
    ledger.check("a list of 64 MiB", 2 * MIB, Paid::CHANNEL.and(1, 1, len));
    // The same error as a program sees it. A list within the quota still goes through.
    scene
        .honest
        .ask("total 4000000")
        .expect_error("Quota", &["did not run", "more than 16777216", "TOML"]);
    assert_eq!(scene.honest.ask("total 2000000").numbers("total"), [6_000_000]);
    ledger.check("lists within the quota", 64 * MIB, Paid::CHANNEL.and(3, 3, len + 48 * MIB));
    drop((hold, filled));
    scene.close(before);
}

#[test]
fn no_memory_for_a_value_is_told_and_the_server_goes_on() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let hold = Hold::new(&scene.socket, "trial").expect("a channel");
    // A text of zeros, larger than what the allocator has in reserve.
    let len = 100 * MIB;
    let filled = file(len, |fd| list(fd, len, len - 16));
    bring(&hold, 2, &filled, len).expect("a segment");
    scene.server.ask("without-memory").expect_ok("no more memory");
    let reply = hold.caller().call(&in_segment(&hold, "echo", 2, len)).expect("an answer");
    assert_eq!((reply.tag(), reply.values[0]), (outcome::NO_MEMORY, len - 16));
    assert_eq!(scene.honest.ask("add 2 3").numbers("add"), [5]);
}

#[test]
fn shared_memory_that_may_have_no_pages_has_a_quota() {
    let _company = in_company();
    let mut scene = Scene::new("unfilled=262144");
    let before = scene.warm();
    let hold = Hold::new(&scene.socket, "trial").expect("a channel");
    let ledger = Ledger::of(&scene, 512 * MIB);
    let bytes = |procedures: &[(u16, u16, u32)]| plan(procedures).bytes();
    let mut bound = 0;
    let refusal = loop {
        let Came::Answer(Answer::Bound { procedures }, _) = hold
            .speaker
            .ask(bind_all(bound + 1, "trial", &upcall_tests::interfaces::trial::INTERFACE), &[])
        else {
            panic!("not bound, after {bound}")
        };
        let sparse =
            rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .expect("memory");
        rustix::fs::ftruncate(&sparse, bytes(&procedures) as u64).expect("a length");
        let proper = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW;
        rustix::fs::fcntl_add_seals(&sparse, proper).expect("seals");
        match hold.speaker.ask(Request::Stacks { id: bound + 1 }, &[sparse.as_fd()]) {
            Came::Answer(Answer::Mapped, _) => bound += 1,
            Came::Answer(Answer::Refused(refusal), _) => break refusal,
            other => panic!("{other:?}"),
        }
        assert!(bound < 60, "no limit for A-stacks that the client has not filled");
    };
    println!("    after {bound} bindings: {refusal:?}");
    // Each binding has a file of its own, which the client has mapped or could map.
    let bound = usize::from(bound);
    ledger.check(
        "bindings whose A-stacks the client has not filled",
        2 * MIB,
        Paid::CHANNEL.and(bound, bound, 0),
    );
    assert!(
        matches!(&refusal, Refusal::Quota(text) if text.contains("may have no pages")),
        "{refusal:?}"
    );
    drop(hold);
    scene.close(before);
}

#[test]
fn a_client_that_dies_with_large_segments_holds_up_no_binder() {
    dies_with_segments(8, 64 * MIB);
}

/// Each segment is short enough for the thread that drops it to unmap it.
#[test]
fn a_client_that_dies_with_many_segments_holds_up_no_binder() {
    dies_with_segments(256, 2 * MIB);
}

fn dies_with_segments(count: u16, len: u64) {
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let pid = scene.server.pid();
    // A clerk that freed the memory itself would answer one bind at most.
    let most = (0..20).map(|_| {
        let mut bystander = scene.place.client();
        bystander.ask("bind trial").expect_ok("binding");
        let without = Usage::of(pid).shared;
        let hold = Hold::new(&scene.socket, "trial").expect("a channel");
        for number in 2..2 + count {
            let filled = file(len, |fd| allocate(fd, FallocateFlags::empty(), 0, len));
            bring(&hold, number, &filled, len).expect("a segment");
        }
        // The server has the last reference to each segment, so it frees the pages.
        drop(hold);
        let mut binds = 0;
        loop {
            bystander.ask("bind trial").expect_ok("binding while memory is freed");
            // Each binding has A-stacks of its own for a moment.
            if Usage::of(pid).shared <= without + 2 {
                break binds;
            }
            binds += 1;
        }
    });
    let enough = most
        .inspect(|binds| println!("    {binds} binds while the segments went"))
        .any(|binds| binds >= 3);
    assert!(enough, "no client binds while memory is freed");
    scene.close(before);
}

/// A client makes one large call after another, until a second client has made eight calls in a row
/// during one large call. A server that did not give way would answer two at most: one taken before
/// the large call, and one after it.
#[test]
fn others_call_while_a_large_list_is_decoded() {
    const ENOUGH: u32 = 8;
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let hold = Hold::new(&scene.socket, "trial").expect("a channel");
    let bystander = Hold::new(&scene.socket, "trial").expect("another channel");
    let len = 16 * MIB;
    let filled = file(len, |fd| list(fd, len, (len - 16) / 8));
    bring(&hold, 2, &filled, len).expect("a segment");
    let mut null = SlotMessage::new(0, tag(0, bystander.number("null")), NO_ASTACK);
    null.place(ValueLocation::Inline, 0, 0);
    // The phase is odd while a large call is under way.
    let (phase, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (large, start) = (in_segment(&hold, "total", 2, len), Instant::now());
    std::thread::scope(|scope| {
        let _at_last = AtLast(&over);
        scope.spawn(|| {
            let caller = hold.caller();
            while !over.load(SeqCst) {
                phase.fetch_add(1, SeqCst);
                let reply = caller.call(&large).expect("an answer");
                phase.fetch_add(1, SeqCst);
                assert_eq!(reply.tag(), outcome::DONE);
            }
        });
        let (caller, mut during) = (bystander.caller(), 0);
        while during < ENOUGH && start.elapsed() < Duration::from_secs(60) {
            let begun = phase.load(SeqCst);
            let reply = caller.call(&null);
            let same = begun % 2 == 1 && phase.load(SeqCst) == begun;
            during = if same && reply.is_some() { during + 1 } else { 0 };
        }
        assert_eq!(during, ENOUGH, "others wait until a large call is over");
    });
    drop((hold, bystander, filled));
    scene.close(before);
}

#[test]
fn results_that_are_not_fetched_have_a_quota() {
    let _company = in_company();
    let mut scene = Scene::new("results=4194304");
    let before = scene.warm();
    let hold = Hold::new(&scene.socket, "trial").expect("a channel");
    let ledger = Ledger::of(&scene, 512 * MIB);
    let mut make = SlotMessage::new(0, tag(0, hold.number("make")), NO_ASTACK);
    (make.values[0], make.values[1]) = (MIB, 7);
    make.place(ValueLocation::Inline, 0, 16);
    let caller = hold.caller();
    let mut kept = 0;
    let refused = loop {
        let reply = caller.call(&make).expect("an answer");
        match reply.tag() {
            outcome::HELD => kept += 1,
            _ => break reply,
        }
        assert!(kept < 100, "no limit for results that the client does not fetch");
    };
    println!("    {kept} results were kept");
    // Number 1 stands for the limit of one client.
    assert_eq!(
        (refused.tag(), refused.values[1], refused.values[2]),
        (outcome::RESULT_QUOTA, 4 * MIB, 1)
    );
    assert!((1..=4).contains(&kept), "{kept}");
    ledger.check(
        "results that are not fetched",
        16 * MIB,
        Paid::CHANNEL.and(0, 0, (kept + 1) * MIB),
    );
    drop(caller);
    drop(hold);
    scene.close(before);
}

/// A connection costs the server two descriptors, and a message that it cannot use costs only time.
#[test]
fn connections_and_messages_that_are_no_use_cost_what_they_cost_their_sender() {
    let _company = in_company();
    let mut scene = Scene::new("");
    let before = scene.warm();
    let ledger = Ledger::of(&scene, 512 * MIB);
    let speakers: Vec<_> =
        (0..50).map(|_| Speaker::connect(&scene.socket).expect("a connection")).collect();
    // The last connection is accepted after all others.
    let came = speakers[49].ask(Request::List, &[]);
    assert!(matches!(came, Came::Answer(Answer::Exports, _)), "{came:?}");
    ledger.check("fifty connections", 4 * MIB, Paid { descriptors: 50, mappings: 0, bytes: 0 });
    // Long requests: each ends its connection.
    let long = vec![0xff; 150_000];
    for speaker in &speakers {
        speaker.send(&long, &[]);
        assert!(
            matches!(speaker.hear(), Came::Closed),
            "a message that cannot be read ends its connection"
        );
    }
    ledger.check(
        "fifty long messages",
        4 * MIB,
        Paid { descriptors: 50, mappings: 0, bytes: 50 * 150_000 },
    );
    drop(speakers);
    scene.close(before);
}
