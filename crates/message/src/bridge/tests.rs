//! What other sides do to a pair: they end at any step, break the protocol, or take nothing.

use super::admission;
use super::applying::Application;
use super::gate::BridgeGate;
use super::home::{BridgeHome, BridgeTerms};
use super::pair::{FarPair, Pairs};
use super::reopening::{self, PairReader};
use super::requests::{PairReply, open_request};
use super::room::ReceiveRoom;
use super::way::PairWay;
use crate::member::{Member, Roster};
use crate::place::{MachineKey, MemberPlace};
use crate::wire::{Listed, ProcessKey, VERSION, Welcome, pack, unpack};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};
use upcall_net::link::{HostLink, LinkSide, LinkTerms};
use upcall_net::record::{HELLO, Hello, SessionStart};
use upcall_net::{
    Attend, BufferOwner, Frame, FrameBody, FrameError, FrameHeader, FrameKind, Lost, NoConnection,
    Protection, Wanted, WireTerms, dial, new_link,
};
use upcall_os::atomic::{AtomicU32, Ordering};
use upcall_sched::post::Post;
use upcall_shm::account::MemberStats;

/// Maximum time of a wait.
pub(super) const GUARD: Duration = Duration::from_secs(60);

pub(super) fn member() -> Arc<Member> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("pairs-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let account = MemberStats::open(&name, 2, 1 << 20).unwrap();
    Member::new(
        format!("/tmp/{name}").into(),
        ProcessKey::own().unwrap(),
        Post::take().unwrap(),
        account,
    )
}

fn home(member: &Arc<Member>) -> Arc<BridgeHome> {
    patient_home(member, Duration::from_secs(5))
}

pub(super) fn patient_home(member: &Arc<Member>, patience: Duration) -> Arc<BridgeHome> {
    let terms = BridgeTerms {
        room: 0,
        kinds: Vec::new(),
        name: "g".into(),
        patience,
        lost_after: Duration::from_secs(5),
        most: 1 << 20,
        apart: 0,
    };
    BridgeHome::new(member, terms, Post::take().unwrap(), None)
}

pub(super) fn place(address: SocketAddr, apart: u64) -> MemberPlace {
    let machine = MachineKey::of(std::path::Path::new("/tmp"), apart).unwrap();
    MemberPlace { machine, address, identity: None }
}

pub(super) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + GUARD;
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Accepts a connection and answers its hello.
fn greet(listener: &TcpListener, link: &mut Option<HostLink>) -> Option<TcpStream> {
    greet_unless(listener, link, || false)
}

/// Like [`greet`], unless `ends` is true before a connection comes.
fn greet_unless(
    listener: &TcpListener,
    link: &mut Option<HostLink>,
    ends: impl Fn() -> bool,
) -> Option<TcpStream> {
    listener.set_nonblocking(true).unwrap();
    let until = Instant::now() + GUARD;
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) if Instant::now() < until && !ends() => {
                std::thread::sleep(Duration::from_micros(50));
            }
            Err(_) => return None,
        }
    };
    stream.set_nonblocking(false).unwrap();
    let mut bytes = [0; HELLO];
    stream.read_exact(&mut bytes).ok()?;
    let hello = Hello::read(&bytes).unwrap();
    if hello.begins == SessionStart::Begins {
        let terms = LinkTerms { window: 9, patience: Duration::from_secs(30) };
        *link = Some(HostLink::server(&hello, terms).unwrap());
    }
    let link = link.as_mut().unwrap();
    link.cut();
    link.accept(&hello).unwrap();
    let out = link.output().unwrap().to_vec();
    link.sent(out.len());
    stream.write_all(&out).ok()?;
    Some(stream)
}

/// A connection that is lost at once after it was made again.
#[test]
fn a_pair_whose_new_connection_is_lost_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let member = member();
    let home = home(&member);
    let pair = FarPair::new(1, Some(place(address, 1)), LinkSide::Client, &home);
    let opens = {
        let pair = pair.clone();
        std::thread::spawn(move || {
            let mut link = new_link(Duration::from_secs(5)).unwrap();
            let until = Instant::now() + GUARD;
            let terms = WireTerms::default();
            let (wire, first) = dial(address, &Protection::Clear, &mut link, terms, until).unwrap();
            wire.start(&first, Box::new(PairReader::of(&pair, wire.session()))).unwrap();
            pair.way.with(|way| *way = PairWay::open(&wire));
        })
    };
    let mut link = None;
    let stream = greet(&listener, &mut link).unwrap();
    opens.join().unwrap();
    drop(stream);
    let mut _last = None;
    for _ in 0..60 {
        // The pair is over if each connection was lost before the kernel knew its user.
        let Some(stream) = greet_unless(&listener, &mut link, || pair.way.is_over()) else { break };
        // Its user stays known to the kernel until the next one comes.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        _last = Some(stream);
    }
    drop(listener);
    // Without a thread that connects, the pair would stay cut.
    let until = Instant::now() + GUARD;
    while !pair.way.is_over() {
        assert!(Instant::now() < until, "the pair stays cut");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The client of a pair dies after its request, before this member knows the others.
#[test]
fn an_early_pair_whose_client_has_died() {
    let member = member();
    let home = home(&member);
    let gate = BridgeGate::new(&home);
    let address = admission::open(&gate, "127.0.0.1:0".parse().unwrap()).unwrap();
    let listed = |apart| Listed {
        process: ProcessKey::Numbered(0, 0),
        socket: String::new(),
        place: Some(place(address, apart)),
    };
    let roster = |rank| {
        let members = vec![listed(0), listed(1)];
        Arc::new(Roster { group: [7; 16], rank, members, grows: false, pids: OnceLock::new() })
    };
    struct Deaf;
    impl Attend for Deaf {
        fn begun(&mut self, _: &FrameHeader, _: usize) -> Result<Wanted, FrameError> {
            Ok(Wanted::Yes(None))
        }
        fn came(&mut self, _: Frame, _: Option<BufferOwner>) -> Result<(), FrameError> {
            Ok(())
        }
        fn given_up(&mut self, _: FrameHeader) -> Result<(), FrameError> {
            Ok(())
        }
        fn ended(self: Box<Self>, _: Lost) {}
    }
    let mut link = new_link(Duration::from_secs(30)).unwrap();
    let until = Instant::now() + GUARD;
    let (wire, first) =
        dial(address, &Protection::Clear, &mut link, WireTerms::default(), until).unwrap();
    wire.start(&first, Box::new(Deaf)).unwrap();
    assert!(
        wire.try_send(0, open_request(&roster(0), 1, 1, (0, 1 << 20), None).unwrap()).is_none()
    );
    std::thread::sleep(Duration::from_millis(300));
    wire.hang_up();
    std::thread::sleep(Duration::from_millis(300));
    let pair = FarPair::new(0, Some(place(address, 0)), LinkSide::Server, &home);
    let pairs: Pairs = vec![Some(pair.clone()), None].into();
    gate.formed(&roster(1), &pairs);
    let until = Instant::now() + GUARD;
    while pair.way.is_open() {
        assert!(Instant::now() < until, "a dead connection keeps the pair open");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[derive(Default)]
struct Fate {
    told: AtomicU32,
}
struct Reads(Arc<Fate>);
impl Attend for Reads {
    fn begun(&mut self, _: &FrameHeader, _: usize) -> Result<Wanted, FrameError> {
        Ok(Wanted::Yes(None))
    }
    fn came(&mut self, _: Frame, _: Option<BufferOwner>) -> Result<(), FrameError> {
        Ok(())
    }
    fn given_up(&mut self, _: FrameHeader) -> Result<(), FrameError> {
        Ok(())
    }
    fn ended(self: Box<Self>, _: Lost) {
        self.0.told.fetch_add(1, Ordering::SeqCst);
    }
    fn cut(self: Box<Self>, _: Lost, _: HostLink) {
        self.0.told.fetch_add(1, Ordering::SeqCst);
    }
}

/// Both sides notice a cut at the same time: one of them has the link.
#[test]
fn a_link_is_taken_off_while_the_driver_notices_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (mut by_detach, mut by_driver) = (0, 0);
    for round in 0..500_u32 {
        let fate = Arc::new(Fate::default());
        let connects = std::thread::spawn(move || {
            let mut link = new_link(Duration::from_secs(30)).unwrap();
            let until = Instant::now() + GUARD;
            dial(address, &Protection::Clear, &mut link, WireTerms::default(), until).unwrap()
        });
        let stream = greet(&listener, &mut None).unwrap();
        let (wire, first) = connects.join().unwrap();
        wire.start(&first, Box::new(Reads(fate.clone()))).unwrap();
        drop(stream);
        let spins = round.wrapping_mul(2654435761) % 20_000;
        (0..spins).for_each(|_| std::hint::spin_loop());
        if wire.detach().is_some() {
            by_detach += 1;
            continue;
        }
        let until = Instant::now() + GUARD;
        while fate.told.load(Ordering::SeqCst) == 0 {
            assert!(
                Instant::now() < until,
                "round {round}: no side has the link ({by_detach} by detach, {by_driver} by driver)"
            );
            std::thread::yield_now();
        }
        by_driver += 1;
    }
}

/// A peer whose bodies are no whole words.
#[test]
fn bodies_that_are_no_whole_words() {
    let room = ReceiveRoom::new(1 << 20);
    for _ in 0..1 << 18 {
        if room.begins(1).is_err() {
            return;
        }
        // One byte is padded to a word: a message of no bytes.
        room.passed(8);
    }
}

/// What a peer that never reads costs: it says again and again that it leaves.
#[test]
fn a_member_that_leaves_again_and_again_costs_one_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let member = member();
    let home = home(&member);
    let pair = FarPair::new(1, Some(place(address, 1)), LinkSide::Client, &home);
    let server = std::thread::spawn(move || greet(&listener, &mut None).unwrap());
    let mut link = new_link(Duration::from_secs(30)).unwrap();
    let until = Instant::now() + GUARD;
    let (wire, first) =
        dial(address, &Protection::Clear, &mut link, WireTerms::default(), until).unwrap();
    wire.start(&first, Box::new(PairReader::of(&pair, wire.session()))).unwrap();
    {
        let wire = wire.clone();
        pair.way.with(|way| *way = PairWay::open(&wire));
    }
    let _stream = server.join().unwrap();
    let body = FrameBody { words: vec![1], len: 8 };
    for _ in 0..1000 {
        let head = FrameHeader { len: 8, ..FrameHeader::of(FrameKind::Leave) };
        pair.begun(&head).unwrap();
        pair.came(Frame { head, body: body.clone() }).unwrap();
    }
    assert!(wire.unsent() < 10, "{} answers wait", wire.unsent());
}

/// What a peer costs that reports losses that no member has.
#[test]
fn a_member_reports_each_loss_once() {
    use crate::member::MemberEvent;
    let member = member();
    let home = home(&member);
    let address = "127.0.0.1:9".parse().unwrap();
    let pair = FarPair::new(1, Some(place(address, 1)), LinkSide::Client, &home);
    let report = |words: &[u64]| {
        let len = words.len() * 8;
        let head = FrameHeader { len, ..FrameHeader::of(FrameKind::Loss) };
        pair.begun(&head)?;
        pair.came(Frame { head, body: FrameBody { words: words.into(), len } })
    };
    report(&[2]).unwrap();
    let most = crate::MOST_MEMBERS as u64;
    report(&[most - 1]).unwrap();
    // Again, its own, no member's, and what is no rank.
    for wrong in [&[2][..], &[1], &[most], &[u64::MAX], &[], &[3, 4], &[3; 1000]] {
        report(wrong).unwrap_err();
    }
    let news = member.news();
    let lost = |news: &MemberEvent| match news {
        MemberEvent::ReportsLoss(1, lost) => *lost,
        other => panic!("{other:?}"),
    };
    assert_eq!(news.iter().map(lost).collect::<Vec<_>>(), [2, crate::MOST_MEMBERS - 1]);
}

#[test]
fn a_report_is_not_held_up_by_messages_that_follow_it() {
    use super::outward::OutwardQueue;
    use super::room::{SendRoom, WINDOW};
    use std::os::fd::AsFd;
    use upcall_os::doorbell::Doorbell;
    use upcall_shm::{direct::Outgoing, mailbag::Mailbag};
    let queue = Mailbag::create().unwrap();
    let theirs = Mailbag::join(queue.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let steps = queue.steps();
    let mut outgoing = Outgoing::new(queue);
    let mut outward = OutwardQueue::new(theirs, Doorbell::new().unwrap());
    let room = SendRoom::default();
    let mut sent = Vec::new();
    let mut launch = || outgoing.describe(1, 8).unwrap().launch();
    // The bridge is within a turn while the sender reports, passes, and sends.
    launch();
    launch();
    outward.pump(&room, |kind, _| sent.push(kind));
    steps.report_barrier(1, 1);
    room.sent(WINDOW as usize);
    launch();
    for _ in 0..100 {
        outward.pump(&room, |kind, _| sent.push(kind));
    }
    assert!(sent.contains(&FrameKind::Report), "{sent:?}");
}

enum Step {
    Reopened,
    Over,
    Refused,
}

fn peer_sees_end(step: &Step) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let member = member();
    let home = home(&member);
    let pair = FarPair::new(1, Some(place(address, 1)), LinkSide::Client, &home);
    let server = std::thread::spawn(move || greet(&listener, &mut None).unwrap());
    let mut link = new_link(Duration::from_secs(30)).unwrap();
    let until = Instant::now() + GUARD;
    let (wire, first) =
        dial(address, &Protection::Clear, &mut link, WireTerms::default(), until).unwrap();
    wire.start(&first, Box::new(PairReader::of(&pair, wire.session()))).unwrap();
    let mut stream = server.join().unwrap();
    match step {
        // The patience was over while the connection was made.
        Step::Reopened => {
            pair.over(super::inward::PairLost::Gone);
            reopening::reopened(&pair, &wire);
        }
        // The connection was made while the patience was found to be over.
        Step::Over => {
            {
                let wire = wire.clone();
                pair.way.with(|way| *way = PairWay::open(&wire));
            }
            pair.over(super::inward::PairLost::Gone);
        }
        Step::Refused => {
            pair.way.with(|way| *way = PairWay::Asks(wire.clone()));
            let no = PairReply::No("no".into());
            pair.answered(&FrameBody::from(&*pack(&no).unwrap()));
            pair.hang_up();
        }
    }
    drop((wire, pair, home, member));
    stream.set_read_timeout(Some(GUARD)).unwrap();
    matches!(stream.read(&mut [0; 9]), Ok(0))
}

#[test]
fn a_connection_that_comes_too_late_is_ended() {
    assert!(peer_sees_end(&Step::Reopened));
}
#[test]
fn the_connection_of_a_pair_that_is_over_is_ended() {
    assert!(peer_sees_end(&Step::Over));
}
#[test]
fn a_refused_connection_is_ended() {
    assert!(peer_sees_end(&Step::Refused));
}

/// What a peer costs that begins answers and never ends them.
#[test]
fn a_side_answers_once() {
    use upcall_net::Attend;
    let member = member();
    let home = home(&member);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pair = FarPair::new(1, Some(place(address, 1)), LinkSide::Client, &home);
    let server = std::thread::spawn(move || greet(&listener, &mut None).unwrap());
    let mut link = new_link(Duration::from_secs(30)).unwrap();
    let until = Instant::now() + GUARD;
    let (wire, _) =
        dial(address, &Protection::Clear, &mut link, WireTerms::default(), until).unwrap();
    let mut reader = PairReader::of(&pair, wire.session());
    let head = FrameHeader { len: 1 << 20, ..FrameHeader::of(FrameKind::Answer) };
    let begun = (0..1024).take_while(|_| reader.begun(&head, 0).is_ok()).count();
    drop(server.join());
    assert!(begun < 2, "{begun} answers of 1 MiB begin on one connection");
}

/// Passes on the answers that arrive.
struct Answers(mpsc::Sender<Vec<u8>>);
impl Attend for Answers {
    fn begun(&mut self, _: &FrameHeader, _: usize) -> Result<Wanted, FrameError> {
        Ok(Wanted::Yes(None))
    }
    fn came(&mut self, frame: Frame, _: Option<BufferOwner>) -> Result<(), FrameError> {
        assert_eq!(frame.head.kind, FrameKind::Answer);
        drop(self.0.send(frame.body.to_vec()));
        Ok(())
    }
    fn given_up(&mut self, _: FrameHeader) -> Result<(), FrameError> {
        Ok(())
    }
    fn ended(self: Box<Self>, _: Lost) {}
}

/// Sends a request to a listener, and returns its answer.
pub(super) fn answer_to(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut link = new_link(Duration::from_secs(30)).unwrap();
    let until = Instant::now() + GUARD;
    let (wire, first) =
        dial(address, &Protection::Clear, &mut link, WireTerms::default(), until).unwrap();
    let (gives, answers) = mpsc::channel();
    wire.start(&first, Box::new(Answers(gives))).unwrap();
    wire.send(0, FrameHeader::of(FrameKind::Ask), FrameBody::from(request), None);
    let answer = answers.recv_timeout(GUARD).expect("an answer");
    wire.hang_up();
    answer
}

/// Requests of other versions have other fields, and the same beginning.
#[test]
fn who_speaks_another_version_is_told_in_the_answer_that_it_reads() {
    let member = member();
    let gate = BridgeGate::new(&home(&member));
    let address = admission::open(&gate, "127.0.0.1:0".parse().unwrap()).unwrap();
    let (apply, open) = (0_u32, 1_u32);
    for version in [VERSION - 1, VERSION + 1, u32::MAX] {
        let request = |kind: u32, fields: &str| pack(&(kind, version, fields)).unwrap();
        for fields in ["", "other fields"] {
            let names = |why: String| {
                let both = [VERSION, version].map(|version| format!("version {version}"));
                assert!(both.iter().all(|one| why.contains(one)), "{why}");
            };
            match unpack(&answer_to(address, &request(open, fields))).unwrap() {
                PairReply::No(why) => names(why),
                other => panic!("version {version}: {other:?}"),
            }
            match unpack(&answer_to(address, &request(apply, fields))).unwrap() {
                Welcome::Refused(why) => names(why),
                other => panic!("version {version}: {other:?}"),
            }
        }
    }
}

/// The leader accepts an applicant, and ends before the applicant knows whose process it is.
#[test]
fn a_leader_that_ends_at_once_is_looked_for_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let rounds = 200;
    let leads =
        std::thread::spawn(move || (0..rounds).for_each(|_| drop(greet(&listener, &mut None))));
    for round in 0..rounds {
        if let Err(NoConnection::NotProved(why)) = Application::connect(address, &Protection::Clear)
        {
            panic!("round {round}: {why}");
        }
    }
    leads.join().unwrap();
}
