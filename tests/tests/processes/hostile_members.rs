//! Groups with hostile members, and strangers at their doors. The hostile side is this process, which speaks the protocol by hand; the honest members are processes that send each other numbers meanwhile, and count what is missing, doubled or
//! out of order.

use crate::in_company;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use upcall_os::bell::Bell;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_os::socket::{Connection, Listener, Message, Received};
use upcall_shm::direct::Outgoing;
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::{Region, Shared};
use upcall_shm::station::Station;
use upcall_tests::dice::Dice;
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, eventually};
use upcall_tests::usage::{Usage, processor_time};

// What `message/src/wire.rs` has.

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
enum Request {
    Hello { version: u32, size: u32, rank: Option<u32>, socket: String, kinds: Vec<(String, String)> },
    Open { version: u32, group: [u8; 16], from: u32, to: u32 },
}

#[derive(Debug, Serialize, Deserialize)]
enum Welcome {
    Formed { group: [u8; 16], rank: u32, members: Vec<Listed> },
    Refused(String),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Listed {
    pid: u32,
    born: u64,
    socket: String,
}

#[derive(Debug, Serialize, Deserialize)]
enum Opened {
    Yes { line: u16, makes_fences: bool },
    No(String),
}

fn pack(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).unwrap()
}

// What `shm/src/direct` and `shm/src/mailbag.rs` have.

const MESSAGE: u64 = 1 << 63;
const WRAP: u64 = 1 << 62;
const HOME: u64 = 1 << 61;
const SEGMENT: u64 = 1 << 60;
/// From a place in one segment to the same place in the next, in what a receiver tells.
const STRIDE: u64 = 1 << 28;
const MAGIC: u64 = u64::from_le_bytes(*b"MAILBAG\x03");
const BYTES: usize = 1 << 40;
const DISPOSED: usize = 8;
const DIVERTED: usize = 9;
const HOME_AT: usize = 512;
const HOME_WORDS: usize = 4096;
const SEGMENT_BYTES: usize = 1 << 20;
const SEGMENT_WORDS: usize = SEGMENT_BYTES / 8;

fn header(kind: u16, len: u32, count: u64) -> u64 {
    MESSAGE | (count & 0x3fff) << 48 | u64::from(kind) << 32 | u64::from(len)
}

/// The kinds of `upcall-honest`, by their places.
const NUMBER: u16 = 0;
const TEXT: u16 = 1;
const WORDS: u16 = 2;
const NESTED: u16 = 3;

fn kinds() -> Vec<(String, String)> {
    [
        ("number", "[u64; 2]"),
        ("text", "text"),
        ("words", "words"),
        ("nested", "()"),
        ("upcall:came", "u8"),
        ("upcall:broken", "u32"),
        ("upcall:value", "u64"),
    ]
    .map(|(name, of)| (name.into(), of.into()))
    .into()
}

fn place() -> Place {
    Place::new(env!("CARGO_BIN_EXE_upcall-honest"))
}

fn own_pid() -> u32 {
    std::process::id()
}

/// What somebody answers; `None` when it hangs up.
fn answer(connection: &Connection) -> Option<Message> {
    match connection.receive_within(Duration::ZERO, Duration::from_secs(10)) {
        Ok(Received::Message(message)) => Some(message),
        Ok(Received::Closed) => None,
        other => panic!("no answer: {other:?}"),
    }
}

fn answer_of<'a, T: Deserialize<'a>>(message: &'a Message) -> T {
    postcard::from_bytes(&message.bytes).expect("an answer")
}

/// Why a queue is refused.
fn refused(connection: &Connection) -> String {
    match answer_of(&answer(connection).expect("an answer")) {
        Opened::No(why) => why,
        Opened::Yes { .. } => panic!("a queue was taken in"),
    }
}

fn connect(path: &Path) -> Connection {
    let start = Instant::now();
    loop {
        match Connection::connect(path) {
            Ok(connection) => return connection,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(10), "{}: {error}", path.display()),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The socket of who takes in the members of the group.
fn leader(place: &Place) -> PathBuf {
    let entry = place.names().join("group.g");
    eventually("somebody leads", || std::fs::read_link(&entry).map(drop).map_err(|error| error.to_string()));
    place.names().join(std::fs::read_link(entry).unwrap())
}

fn hello(size: u32, rank: Option<u32>, socket: &str) -> Request {
    Request::Hello { version: VERSION, size, rank, socket: socket.into(), kinds: kinds() }
}

/// A group of honest members, of the ranks from 0, and hostile ones that are all this process.
struct Scene {
    honest: Vec<Party>,
    place: Place,
    group: [u8; 16],
    members: Vec<Listed>,
    /// By rank, from that of the first hostile member.
    doors: Vec<Listener>,
}

impl Scene {
    fn new(honest: usize, hostile: usize, options: &str) -> Self {
        let (place, size) = (place(), honest + hostile);
        let start = |rank| place.start(&format!("g {size} {rank} {options}"));
        let mut members = vec![start(0)];
        let leader = leader(&place);
        members.extend((1..honest).map(start));
        let asked: Vec<_> = (honest..size)
            .map(|rank| {
                let socket = format!("member.{}.{rank}", own_pid());
                let door = Listener::bind(&place.names().join(&socket)).unwrap();
                let connection = connect(&leader);
                connection.send(&pack(&hello(size as u32, Some(rank as u32), &socket)), &[]).unwrap();
                (door, connection)
            })
            .collect();
        let (mut doors, mut formed) = (Vec::new(), None);
        for (at, (door, connection)) in asked.into_iter().enumerate() {
            match answer_of(&answer(&connection).expect("a welcome")) {
                Welcome::Formed { group, rank, members } => {
                    assert_eq!(rank as usize, honest + at);
                    formed = Some((group, members));
                }
                Welcome::Refused(why) => panic!("{why}"),
            }
            doors.push(door);
        }
        for (rank, member) in members.iter_mut().enumerate() {
            assert_eq!(member.hear().numbers("joining"), [rank as u64]);
        }
        let (group, members_listed) = formed.expect("hostile members");
        Self { honest: members, place, group, members: members_listed, doors }
    }

    fn first_hostile(&self) -> usize {
        self.honest.len()
    }

    fn socket(&self, rank: usize) -> PathBuf {
        self.place.names().join(&self.members[rank].socket)
    }

    fn open(&self, from: usize, to: usize) -> Request {
        Request::Open { version: VERSION, group: self.group, from: from as u32, to: to as u32 }
    }

    /// Has the first two exchange numbers while something is done, and checks that they are unharmed.
    fn meanwhile<T>(&mut self, what: &str, done: impl FnOnce(&Self) -> T) -> T {
        let count = 3000;
        self.honest[0].say(&format!("exchange 1 {count}"));
        self.honest[1].say(&format!("exchange 0 {count}"));
        let outcome = done(self);
        for member in &mut self.honest[..2] {
            member.hear().expect_ok(what);
        }
        self.unharmed(what);
        outcome
    }

    /// The first two know nothing bad of each other.
    fn unharmed(&mut self, what: &str) {
        for (own, other) in [(0, 1), (1, 0)] {
            let words = self.honest[own].ask(&format!("about {other}")).expect_ok(what);
            assert!(words.len() == 2 && words[1] == "0", "{what}: {own} about {other}: {words:?}");
        }
    }

    /// What an honest member knows of another one, after it has noticed it.
    fn noticed(&mut self, by: usize, of: usize, event: &str, what: &str) -> Vec<String> {
        let mut words = Vec::new();
        let start = Instant::now();
        while !words.iter().any(|word: &String| word.starts_with(event)) {
            assert!(start.elapsed() < Duration::from_secs(5), "{what}: member {of} is not known for {event:?}: {words:?}");
            words = self.honest[by].ask(&format!("about {of}")).expect_ok(what);
        }
        words
    }
}

/// A queue that the hostile side brings, word by word.
struct Brought {
    connection: Connection,
    first: Shared<[AtomicU64]>,
    file: MemoryFile,
    bell: Bell,
}

impl Brought {
    fn new(scene: &Scene, from: usize, to: usize) -> Self {
        let file = MemoryFile::create("hostile", BYTES).unwrap();
        let first = words(&file, 0, HOME_AT + HOME_WORDS);
        first[1].store(HOME_WORDS as u64, Ordering::Relaxed);
        first[0].store(MAGIC, Ordering::Release);
        let (connection, bell) = (connect(&scene.socket(to)), Bell::new().unwrap());
        connection.send(&pack(&scene.open(from, to)), &[file.as_fd(), bell.as_fd()]).unwrap();
        let taken = answer(&connection).expect("an answer");
        assert!(matches!(answer_of(&taken), Opened::Yes { .. }), "{:?}", answer_of::<Opened>(&taken));
        Self { connection, first, file, bell }
    }

    fn home(&self, at: usize) -> &AtomicU64 {
        &self.first[HOME_AT + at % HOME_WORDS]
    }

    fn segment(&self, number: usize) -> Shared<[AtomicU64]> {
        words(&self.file, SEGMENT_BYTES * (3 + number), SEGMENT_WORDS)
    }

    fn spare(&self, number: usize) -> Shared<[AtomicU64]> {
        words(&self.file, SEGMENT_BYTES * number, SEGMENT_WORDS)
    }

    /// Writes the words from a place at home on, the first one last, and rings.
    fn put(&self, at: usize, words: &[u64]) {
        for (offset, &word) in words.iter().enumerate().rev() {
            self.home(at + offset).store(word, Ordering::Release);
        }
        self.bell.ring();
    }
}

fn words(file: &MemoryFile, at: usize, count: usize) -> Shared<[AtomicU64]> {
    Region::new(Mapping::part(file, at, count * 8).unwrap()).unwrap().view_slice(0, count).unwrap()
}

fn as_fds<'a>(fds: &'a [OwnedFd]) -> Vec<BorrowedFd<'a>> {
    fds.iter().map(AsFd::as_fd).collect()
}

// Strangers at the door.

#[test]
fn strangers_are_shown_the_door() {
    let _company = in_company();
    let mut scene = Scene::new(2, 3, "");
    scene.meanwhile("strangers", |scene| {
        let (door, [own, other]) = (scene.socket(0), [2, 3]);
        let say = |request: &Request, fds: &[BorrowedFd<'_>]| {
            let connection = connect(&door);
            connection.send(&pack(request), fds).unwrap();
            connection
        };
        let silent: Vec<_> = (0..20).map(|_| connect(&door)).collect();
        // Hello after the group has formed: there is nobody to join.
        assert!(answer(&say(&hello(5, None, "member.1.1"), &[])).is_none());
        let garbage = connect(&door);
        garbage.send(&[0xff; 100], &[]).unwrap();
        assert!(answer(&garbage).is_none());
        let group = scene.group;
        let mut unknown = group;
        unknown[3] ^= 1;
        let wrong = [
            (Request::Open { version: 2, group, from: own, to: 0 }, "version 2"),
            (Request::Open { version: VERSION, group: unknown, from: own, to: 0 }, "another group"),
            (Request::Open { version: VERSION, group, from: own, to: 1 }, "for member 1"),
            (Request::Open { version: VERSION, group, from: own, to: u32::MAX }, "for member 4294967295"),
            (Request::Open { version: VERSION, group, from: 1, to: 0 }, "member 1 is process"),
            (Request::Open { version: VERSION, group, from: 0, to: 0 }, "member 0 is process"),
            (Request::Open { version: VERSION, group, from: 5, to: 0 }, "no member 5"),
            (Request::Open { version: VERSION, group, from: u32::MAX, to: 0 }, "no member"),
        ];
        let (bag, bell) = (Mailbag::create().unwrap(), Bell::new().unwrap());
        for (request, why) in wrong {
            let said = refused(&say(&request, &[bag.as_fd(), bell.as_fd()]));
            assert!(said.contains(why), "{said}, not {why}");
        }
        let taken = Brought::new(scene, own as usize, 0);
        let again = refused(&say(&scene.open(own as usize, 0), &[bag.as_fd(), bell.as_fd()]));
        assert!(again.contains("before"), "{again}");
        // By the connection that has brought one: that one goes with it.
        taken.connection.send(&pack(&scene.open(own as usize, 0)), &[]).unwrap();
        assert!(refused(&taken.connection).contains("before"));
        assert!(answer(&taken.connection).is_none());
        assert!(silent.iter().all(|silent| matches!(silent.receive(), Ok(Received::Nothing))));
        let _ = other;
    });
    assert_eq!(scene.noticed(0, 2, "ended", "a second queue")[2..], ["ended"]);
    assert_eq!(scene.honest[0].ask("about 3").expect_ok("one who did nothing").len(), 2);
}

#[test]
fn descriptors_that_are_no_queue() {
    let _company = in_company();
    let bad: Vec<(&str, Vec<OwnedFd>)> = {
        let own = |fd: &dyn Fn() -> OwnedFd, count: usize| (0..count).map(|_| fd()).collect::<Vec<_>>();
        let bag = || Mailbag::create().unwrap().as_fd().try_clone_to_owned().unwrap();
        let bell = || Bell::new().unwrap().as_fd().try_clone_to_owned().unwrap();
        let memory = |len| MemoryFile::create("t", len).unwrap().as_fd().try_clone_to_owned().unwrap();
        let sealed = || MemoryFile::frozen("t", &[0; 64]).unwrap().as_fd().try_clone_to_owned().unwrap();
        let one_writes = || MemoryFile::create_for_one_writer("t", 1 << 20).unwrap().0.as_fd().try_clone_to_owned().unwrap();
        let unsealed = || {
            let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("t", flags).unwrap();
            rustix::fs::ftruncate(&fd, BYTES as u64).unwrap();
            fd
        };
        let other_home = || {
            let file = MemoryFile::create("t", BYTES).unwrap();
            let first = words(&file, 0, 2);
            first[0].store(MAGIC, Ordering::Relaxed);
            first[1].store(1 << 40, Ordering::Relaxed);
            file.as_fd().try_clone_to_owned().unwrap()
        };
        vec![
            ("none", vec![]),
            ("one", vec![bag()]),
            ("three", vec![bag(), bell(), bell()]),
            ("eight", own(&bell, 8)),
            ("eight queues", own(&bag, 8)),
            ("two bells", vec![bell(), bell()]),
            ("two queues", vec![bag(), bag()]),
            ("the other way round", vec![bell(), bag()]),
            ("short", vec![memory(1 << 20), bell()]),
            ("no header", vec![memory(BYTES), bell()]),
            ("another home", vec![other_home(), bell()]),
            ("frozen", vec![sealed(), bell()]),
            ("of one writer", vec![one_writes(), bell()]),
            ("without seals", vec![unsealed(), bell()]),
        ]
    };
    let strange: Vec<(&str, OwnedFd)> = vec![
        ("a file", std::fs::File::open("/proc/self/exe").unwrap().into()),
        ("a folder", std::fs::File::open("/").unwrap().into()),
        ("a device", std::fs::File::open("/dev/zero").unwrap().into()),
        ("a socket", std::os::unix::net::UnixStream::pair().unwrap().0.into()),
        ("a pipe", std::io::pipe().unwrap().0.into()),
    ];
    let mut scene = Scene::new(2, bad.len() + strange.len(), "");
    let first = scene.first_hostile();
    let before = Usage::of(scene.honest[0].pid());
    scene.meanwhile("wrong descriptors", |scene| {
        for (at, (what, fds)) in bad.iter().enumerate() {
            let connection = connect(&scene.socket(0));
            connection.send(&pack(&scene.open(first + at, 0)), &as_fds(fds)).unwrap();
            let why = refused(&connection);
            println!("    {what}: {why}");
        }
        let bell = Bell::new().unwrap();
        for (at, (what, fd)) in strange.iter().enumerate() {
            let connection = connect(&scene.socket(0));
            connection.send(&pack(&scene.open(first + bad.len() + at, 0)), &[fd.as_fd(), bell.as_fd()]).unwrap();
            assert!(answer(&connection).is_none(), "{what}");
        }
    });
    let pid = scene.honest[0].pid();
    eventually("nothing of them stays", || {
        let now = Usage::of(pid);
        // Its own two ends of the queues with the other honest one.
        if now.descriptors <= before.descriptors + 8 { Ok(()) } else { Err(format!("{now:?}, before {before:?}")) }
    });
    for rank in first..first + bad.len() + strange.len() {
        let words = scene.honest[0].ask(&format!("about {rank}")).expect_ok("about it");
        assert_eq!(words, ["0", "0"], "member {rank}");
    }
}

/// So few descriptors a member has when strangers want them all.
const FEW: u64 = 1024;

fn with_few_descriptors(party: &Party) {
    let limit = rustix::process::Rlimit { current: Some(FEW), maximum: Some(FEW) };
    let pid = rustix::process::Pid::from_raw(party.pid() as i32);
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).unwrap();
}

#[test]
fn thousands_of_connections() {
    let _company = in_company();
    let mut scene = Scene::new(2, 1, "");
    with_few_descriptors(&scene.honest[0]);
    let door = scene.socket(0);
    let mut held: Vec<Connection> = Vec::new();
    let start = Instant::now();
    while held.len() < 4000 && start.elapsed() < Duration::from_secs(2) {
        match Connection::connect(&door) {
            Ok(connection) => held.push(connection),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    println!("    {} connections held", held.len());
    // The two have no queue yet.
    scene.meanwhile("thousands of connections", |_| ());
    drop(held);
    // A flood that does not end: one comes as soon as another one has been taken.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(Connection::connect(&door));
                }
            });
        }
        scene.meanwhile("a flood of connections", |_| std::thread::sleep(Duration::from_millis(300)));
        let mut late = Scene::new(2, 1, "");
        late.meanwhile("another group", |_| ());
        // The end of a member is noticed in spite of it.
        drop(scene.honest.pop());
        scene.noticed(0, 1, "ended", "a flood of connections");
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn strangers_walk() {
    let _company = in_company();
    let mut scene = Scene::new(2, 4, "");
    let mut dice = Dice::thrown("strangers");
    let before = {
        scene.meanwhile("nobody", |_| ());
        Usage::of(scene.honest[0].pid())
    };
    for _ in 0..3 {
        scene.meanwhile("strangers", |scene| {
            let mut open: Vec<Connection> = Vec::new();
            for _ in 0..400 {
                let connection = if open.is_empty() || dice.below(3) == 0 {
                    connect(&scene.socket(dice.below(2) as usize))
                } else {
                    open.swap_remove(dice.below(open.len() as u64) as usize)
                };
                let some = |dice: &mut Dice, most: u64| [dice.below(most + 2), dice.any()][(dice.below(8) == 0) as usize] as u32;
                let mut group = scene.group;
                if dice.below(4) == 0 {
                    group[dice.below(16) as usize] ^= dice.any() as u8;
                }
                let mut bytes = match dice.below(4) {
                    0 => pack(&Request::Hello {
                        version: VERSION,
                        size: some(&mut dice, 5),
                        rank: (dice.below(2) == 0).then(|| some(&mut dice, 5)),
                        socket: ["member.1.2", "../x", "", "member./etc"][dice.below(4) as usize].into(),
                        kinds: kinds(),
                    }),
                    1 => {
                        let len = dice.below(2000) as usize;
                        dice.bytes(len)
                    }
                    _ => pack(&Request::Open {
                        version: [VERSION, some(&mut dice, 2)][(dice.below(6) == 0) as usize],
                        group,
                        // Its own ranks are used up by this, and by no other test.
                        from: some(&mut dice, 5),
                        to: some(&mut dice, 1),
                    }),
                };
                if dice.below(6) == 0 && !bytes.is_empty() {
                    let at = dice.below(bytes.len() as u64) as usize;
                    bytes[at] = dice.any() as u8;
                }
                if dice.below(10) == 0 {
                    bytes.truncate(dice.below(bytes.len() as u64 + 1) as usize);
                }
                let fds: Vec<OwnedFd> = (0..[2, 2, dice.below(9)][dice.below(3) as usize])
                    .map(|at| match (at + dice.below(6) / 5) % 2 {
                        0 => MemoryFile::create("t", 1 << dice.below(41)).unwrap().as_fd().try_clone_to_owned().unwrap(),
                        _ => Bell::new().unwrap().as_fd().try_clone_to_owned().unwrap(),
                    })
                    .collect();
                let _ = connection.send(&bytes, &as_fds(&fds));
                if dice.below(2) == 0 {
                    open.push(connection);
                }
            }
        });
    }
    let pid = scene.honest[0].pid();
    eventually("nothing of them stays", || {
        let now = Usage::of(pid);
        if now.descriptors <= before.descriptors { Ok(()) } else { Err(format!("{now:?}, before {before:?}")) }
    });
}

// Forming.

/// Takes the name of the group, by hand.
fn lead(place: &Place) -> Listener {
    std::fs::create_dir_all(place.names()).unwrap();
    let socket = format!("member.{}.lead", own_pid());
    let door = Listener::bind(&place.names().join(&socket)).unwrap();
    std::os::unix::fs::symlink(socket, place.names().join("group.g")).unwrap();
    door
}

/// The next one who says something at a door: others only look whether somebody is there.
fn next_at(door: &Listener) -> (Connection, Message) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(10), "nobody comes");
        match door.accept().unwrap() {
            Some(connection) => {
                if let Ok(Received::Message(message)) = connection.receive_within(Duration::ZERO, Duration::from_secs(1)) {
                    return (connection, message);
                }
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[test]
fn a_leader_tells_of_a_group_that_cannot_be() {
    let _company = in_company();
    let place = place();
    let door = lead(&place);
    type Change = fn(&mut u32, &mut Vec<Listed>);
    let cases: [(&str, Change); 13] = [
        ("one member less", |_, members| drop(members.remove(0))),
        ("one more", |_, members| members.push(members[0].clone())),
        ("none", |_, members| members.clear()),
        ("many", |_, members| members.resize(2000, members[1].clone())),
        ("no such rank", |rank, _| *rank = u32::MAX),
        ("another one's rank", |rank, _| *rank = 0),
        ("not the rank that it asked for", |rank, members| (*rank, _) = (0, members.swap(0, 1))),
        ("another process", |_, members| members[1].pid = own_pid()),
        ("another socket", |_, members| members[1].socket += "1"),
        ("a path", |_, members| members[0].socket = format!("../names/member.{}.lead", own_pid())),
        ("a path behind", |_, members| members[0].socket += "/../../x"),
        ("no socket", |_, members| members[0].socket.clear()),
        ("that of a third process", |_, members| members[0].socket = "member.1.1".into()),
    ];
    for (what, change) in cases {
        let mut honest = place.start("g 2 1 within=5000");
        let (connection, asked) = next_at(&door);
        let Request::Hello { socket, .. } = answer_of(&asked) else { panic!("no hello") };
        let own = Listed { pid: own_pid(), born: 0, socket: format!("member.{}.lead", own_pid()) };
        let (mut rank, mut members) = (1, vec![own, Listed { pid: honest.pid(), born: 0, socket }]);
        change(&mut rank, &mut members);
        connection.send(&pack(&Welcome::Formed { group: [7; 16], rank, members }), &[]).unwrap();
        println!("    {what}:");
        honest.hear().expect_error("Refused", &["cannot be true"]);
        honest.ended();
    }
    let mut honest = place.start("g 2 1 within=5000");
    next_at(&door).0.send(&[9; 50], &[]).unwrap();
    honest.hear().expect_error("Refused", &["cannot be read"]);
}

#[test]
fn a_leader_that_stops_or_dies() {
    let _company = in_company();
    let place = place();
    let door = lead(&place);
    let start = Instant::now();
    let mut honest = place.start("g 2 1 within=300");
    let silent = next_at(&door);
    honest.hear().expect_error("Incomplete", &["not all of 2"]);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(silent);
    let mut others = [0, 1].map(|rank| place.start(&format!("g 2 {rank}")));
    let taken = [next_at(&door), next_at(&door)];
    // Its name leads nowhere from here on.
    drop(door);
    drop(taken);
    for (rank, other) in others.iter_mut().enumerate() {
        assert_eq!(other.hear().numbers("joining without it"), [rank as u64]);
    }
    others[0].say("exchange 1 100");
    others[1].ask("exchange 0 100").expect_ok("numbers");
}

#[test]
fn applicants_that_vanish_and_ask_for_too_much() {
    let _company = in_company();
    let place = place();
    let mut first = place.start("g 3 0");
    with_few_descriptors(&first);
    let door = leader(&place);
    let own = format!("member.{}.x", own_pid());
    let ask = |request: &Request| {
        let connection = connect(&door);
        connection.send(&pack(request), &[]).unwrap();
        connection
    };
    let why = |connection: &Connection| match answer_of(&answer(connection).expect("an answer")) {
        Welcome::Refused(why) => why,
        formed => panic!("{formed:?}"),
    };
    for _ in 0..100 {
        drop(ask(&hello(3, Some(1), &own)));
    }
    let mut other_kinds = hello(3, None, &own);
    if let Request::Hello { kinds, .. } = &mut other_kinds {
        kinds.swap(0, 1);
    }
    let mut other_version = hello(3, None, &own);
    if let Request::Hello { version, .. } = &mut other_version {
        *version = 0;
    }
    for (request, expected) in [
        (hello(2, None, &own), "3 members"),
        (hello(u32::MAX, None, &own), "3 members"),
        (hello(3, Some(3), &own), "no rank 3"),
        (hello(3, Some(u32::MAX), &own), "no rank"),
        (hello(3, Some(0), &own), "rank 0 is taken by process"),
        (hello(3, None, "member.1.x"), "no socket"),
        (hello(3, None, "../member"), "no socket"),
        (hello(3, None, &format!("{own}/../x")), "no socket"),
        (other_kinds, "kind 0"),
        (other_version, "version 0"),
    ] {
        let found = why(&ask(&request));
        assert!(found.contains(expected), "{found}, not {expected}");
    }
    let one = ask(&hello(3, Some(1), &own));
    eventually("one of two gets the rank", || {
        let found = why(&ask(&hello(3, Some(1), &own)));
        if found.contains("rank 1 is taken") { Ok(()) } else { Err(found) }
    });
    // By the same connection: both are gone then.
    one.send(&pack(&hello(3, Some(2), &own)), &[]).unwrap();
    assert!(why(&one).contains("before"));
    // Queues for a group that nobody knows yet, as many as can be.
    let (bag, bell) = (Mailbag::create().unwrap(), Bell::new().unwrap());
    let open = pack(&Request::Open { version: VERSION, group: [1; 16], from: 1, to: 0 });
    let mut kept = Vec::new();
    for round in 0..400 {
        let connection = connect(&door);
        let mut fds = vec![bag.as_fd(), bell.as_fd()];
        if round % 2 == 0 {
            fds.resize(8, bell.as_fd());
        }
        for _ in 0..5 {
            let _ = connection.send(&open, &fds);
        }
        kept.push(connection);
    }
    std::thread::sleep(Duration::from_millis(100));
    let usage = Usage::of(first.pid());
    assert!(usage.descriptors < 600, "{usage:?}");
    let mut others = [1, 2].map(|rank| place.start(&format!("g 3 {rank}")));
    assert_eq!(first.hear().numbers("forming"), [0]);
    for (at, other) in others.iter_mut().enumerate() {
        assert_eq!(other.hear().numbers("forming"), [at as u64 + 1]);
        first.say(&format!("exchange {} 500", at + 1));
        other.ask("exchange 0 500").expect_ok("numbers");
        first.hear().expect_ok("numbers");
    }
    eventually("the early queues are gone", || {
        let usage = Usage::of(first.pid());
        if usage.descriptors < 300 { Ok(()) } else { Err(format!("{usage:?}")) }
    });
}

// In the queue.

type Fault = fn(&Brought);

/// Faults in the queue, and what the receiver says of them.
const FAULTS: [(&str, Fault, &str); 27] = [
    ("no header", |queue| queue.put(0, &[1]), "no-message's-header"),
    ("all bits", |queue| queue.put(0, &[u64::MAX]), "no-message's-header"),
    ("a wrap at the beginning", |queue| queue.put(0, &[WRAP]), "no-message's-header"),
    ("a way home from home", |queue| queue.put(0, &[HOME]), "no-message's-header"),
    ("the second segment first", |queue| queue.put(0, &[SEGMENT | 1]), "no-message's-header"),
    ("a segment far away", |queue| queue.put(0, &[SEGMENT | (SEGMENT - 1)]), "no-message's-header"),
    ("a segment longer than any", |queue| queue.put(0, &[SEGMENT | 11 << 52]), "no-message's-header"),
    ("a segment of no length", |queue| queue.put(0, &[SEGMENT | 0xff << 52]), "no-message's-header"),
    ("a spare that there is not", |queue| queue.put(0, &[SEGMENT | 3 << 44]), "no-message's-header"),
    ("a long segment in a spare", |queue| queue.put(0, &[SEGMENT | 1 << 52 | 1 << 44]), "no-message's-header"),
    ("all ways at once", |queue| queue.put(0, &[SEGMENT | HOME | WRAP]), "no-message's-header"),
    ("a message that wraps", |queue| queue.put(0, &[header(NUMBER, 16, 0) | WRAP]), "no-message's-header"),
    ("the longest length", |queue| queue.put(0, &[header(TEXT, u32::MAX, 0)]), "does-not-fit"),
    ("a word too long", |queue| queue.put(0, &[header(TEXT, 2048 * 8, 0)]), "does-not-fit"),
    ("the second message first", |queue| queue.put(0, &[header(NUMBER, 16, 1)]), "not-the-next"),
    ("the same one twice", |queue| queue.put(0, &[header(NUMBER, 16, 0), 0, 0, header(NUMBER, 16, 0)]), "not-the-next"),
    ("a kind too many", |queue| queue.put(0, &[header(7, 0, 0)]), "kind-7"),
    ("the last kind", |queue| queue.put(0, &[header(u16::MAX, 0, 0)]), "kind-65535"),
    ("a number of one word", |queue| queue.put(0, &[header(NUMBER, 8, 0)]), "does-not-carry"),
    ("a number of three words", |queue| queue.put(0, &[header(NUMBER, 24, 0)]), "does-not-carry"),
    ("a number of 15 bytes", |queue| queue.put(0, &[header(NUMBER, 15, 0)]), "does-not-carry"),
    ("half a word", |queue| queue.put(0, &[header(WORDS, 12, 0)]), "does-not-carry"),
    ("text that is none", |queue| queue.put(0, &[header(TEXT, 8, 0), u64::MAX]), "does-not-carry"),
    (
        "a message over the end",
        |queue| {
            // Two of 2000 words, and one of 200 where 96 are left.
            queue.put(4000, &[header(WORDS, 199 * 8, 2)]);
            queue.put(2000, &[header(WORDS, 1999 * 8, 1)]);
            queue.put(0, &[header(WORDS, 1999 * 8, 0)]);
        },
        "does-not-fit",
    ),
    (
        "a wrap to what was taken",
        |queue| {
            queue.put(3, &[WRAP]);
            queue.put(0, &[header(NUMBER, 16, 0), 0, 0]);
        },
        "not-the-next",
    ),
    (
        "a wrap in a segment",
        |queue| {
            queue.segment(0)[0].store(WRAP, Ordering::Release);
            queue.put(0, &[SEGMENT]);
        },
        "no-message's-header",
    ),
    (
        "back from a segment to the word that led there",
        |queue| {
            queue.segment(0)[0].store(HOME, Ordering::Release);
            queue.put(0, &[SEGMENT]);
        },
        "no-message's-header",
    ),
];

#[test]
fn faults_in_the_queue_are_named() {
    let _company = in_company();
    let mut scene = Scene::new(2, FAULTS.len(), "");
    let first = scene.first_hostile();
    let mut queues = Vec::new();
    for (at, (what, fault, expected)) in FAULTS.iter().enumerate() {
        let queue = scene.meanwhile(what, |scene| {
            let queue = Brought::new(scene, first + at, 0);
            fault(&queue);
            queue
        });
        let words = scene.noticed(0, first + at, "violation", what);
        println!("    {what}: {}", words[2]);
        assert!(words.len() == 3 && words[2].contains(expected), "{what}: {words:?}");
        queues.push(queue);
    }
    // Who was forgotten costs nothing more.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                queues.iter().for_each(|queue| queue.bell.ring());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let numbers = scene.honest[0].ask("endure 300").numbers("a quiet time");
        over.store(true, Ordering::Relaxed);
        assert!(numbers[0] < 20, "woken {} times by who was forgotten", numbers[0]);
    });
    drop(queues);
    for at in 0..FAULTS.len() {
        let words = scene.honest[0].ask(&format!("about {}", first + at)).expect_ok("about it");
        assert!(words.iter().filter(|word| word.starts_with("violation")).count() <= 1, "{words:?}");
    }
}

#[test]
fn what_a_handler_notices_is_told_once() {
    let _company = in_company();
    let mut scene = Scene::new(2, 2, "");
    let violating = Brought::new(&scene, 2, 0);
    let ending = Brought::new(&scene, 3, 0);
    for queue in [&violating, &ending] {
        queue.put(0, &[header(NESTED, 0, 0)]);
    }
    // The handlers poll later than this.
    scene.honest[0].say("endure 1000");
    std::thread::sleep(Duration::from_millis(100));
    violating.put(1, &[1]);
    drop(ending);
    scene.honest[0].hear().expect_ok("handlers that poll");
    let about = |scene: &mut Scene, rank| scene.honest[0].ask(&format!("about {rank}")).expect_ok("about it")[2..].to_vec();
    assert_eq!(about(&mut scene, 3), ["ended"]);
    let words = about(&mut scene, 2);
    assert!(words.len() == 1 && words[0].starts_with("violation"), "{words:?}");
    scene.meanwhile("afterwards", |_| ());
}

#[test]
fn words_change_while_they_are_read() {
    let _company = in_company();
    let mut scene = Scene::new(2, 6, "");
    let mut dice = Dice::thrown("words that change");
    for rank in 2..8 {
        scene.meanwhile("words that change", |scene| {
            let queue = Brought::new(scene, rank, 0);
            let good = header([TEXT, WORDS][rank % 2], 800, 0);
            let others =
                [header(TEXT, 16_000, 0), header(WORDS, 8, 0), header(NUMBER, 16, 0), 0, WRAP, SEGMENT, header(TEXT, 801, 0)];
            let end = Instant::now() + Duration::from_millis(60);
            let mut sent = 0;
            // Each message changes until it was taken, as its receiver says it.
            while Instant::now() < end && sent < 4000 / 101 {
                let at = sent * 101;
                let count = (sent as u64 & 0x3fff) << 48;
                for _ in 0..200 {
                    queue.home(at + 1 + dice.below(100) as usize).store(dice.any() | 0x8080, Ordering::Relaxed);
                    queue.home(at).store(others[dice.below(7) as usize] | count, Ordering::Release);
                    queue.home(at + 1 + dice.below(100) as usize).store(u64::from_le_bytes(*b"harmless"), Ordering::Relaxed);
                    queue.home(at).store(good | count, Ordering::Release);
                }
                queue.bell.ring();
                sent += 1;
            }
        });
    }
}

#[test]
fn segments_in_circles() {
    let _company = in_company();
    let mut scene = Scene::new(2, 2, "sleep");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let queue = Brought::new(&scene, 2, 0);
        let (over, back) = (&over, Brought::new(&scene, 3, 0));
        scope.spawn(move || {
            // Always some segments ahead of who follows.
            let mut next = 0;
            queue.segment(0)[0].store(SEGMENT | 1, Ordering::Release);
            queue.put(0, &[SEGMENT]);
            while !over.load(Ordering::Relaxed) {
                let there = queue.first[DIVERTED].load(Ordering::Acquire) / STRIDE;
                if next < there + 32 {
                    next += 1;
                    queue.segment(next as usize)[0].store(SEGMENT | (next + 1), Ordering::Release);
                } else {
                    std::thread::yield_now();
                }
                queue.bell.ring();
            }
        });
        scope.spawn(move || {
            // Home and away, over and over, and never a message.
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                back.segment(number as usize)[0].store(HOME, Ordering::Release);
                back.home(0).store(SEGMENT | number, Ordering::Release);
                back.bell.ring();
                let left = (number + 1) * STRIDE;
                // Home leads to the next one before it is looked at again, or it is a violation.
                while !over.load(Ordering::Relaxed) && back.first[DIVERTED].load(Ordering::Acquire) < left {
                    back.home(0).store(SEGMENT | (number + 1), Ordering::Release);
                }
                number += 1;
            }
        });
        for _ in 0..3 {
            scene.meanwhile("circles", |_| ());
        }
        scene.honest[1].say("endure 300");
        let numbers = scene.honest[0].ask("endure 300").numbers("circles");
        assert!(numbers[1] < 500, "a wait of 300 ms took {} ms longer", numbers[1]);
        scene.honest[1].hear().expect_ok("nothing to do");
        over.store(true, Ordering::Relaxed);
    });
    scene.meanwhile("circles", |_| ());
}

#[test]
fn queues_walk() {
    let _company = in_company();
    const LIVES: usize = 40;
    let mut scene = Scene::new(2, LIVES, "");
    let mut dice = Dice::thrown("hostile queues");
    let mut seen = Vec::new();
    for life in 0..LIVES {
        let rank = 2 + life;
        let seed = dice.any();
        scene.meanwhile(&format!("life {life}, seed {seed}"), |scene| walk(&Brought::new(scene, rank, 0), &mut Dice::new(seed)));
        let words = scene.honest[0].ask(&format!("about {rank}")).expect_ok("about it");
        let times = |event| words.iter().filter(|word| word.starts_with(event)).count();
        assert!(times("violation") <= 1 && times("ended") <= 1, "life {life}, seed {seed}: {words:?}");
        seen.extend(words.into_iter().find(|word| word.starts_with("violation")));
    }
    seen.sort();
    seen.dedup();
    println!("    {} violations of {LIVES} lives, all different", seen.len());
    assert!(!seen.is_empty());
}

/// Writes what could be a message or a way, mostly in the right place.
fn walk(queue: &Brought, dice: &mut Dice) {
    let (mut at, mut count, mut segment) = (0_usize, 0_u64, 0_u64);
    let mut away: Option<Shared<[AtomicU64]>> = None;
    let word = |away: &Option<Shared<[AtomicU64]>>, at: usize, word: u64| match away {
        Some(words) => words[at % SEGMENT_WORDS].store(word, Ordering::Release),
        None => queue.home(at).store(word, Ordering::Release),
    };
    let steps = 20 + dice.below(200);
    for _ in 0..steps {
        match dice.below(40) {
            // A good message.
            0..28 => {
                let (kind, len) = match dice.below(3) {
                    0 => (NUMBER, 16),
                    1 => (TEXT, dice.below(300) as u32),
                    _ => (WORDS, 8 * dice.below(300) as u32),
                };
                let size = 1 + (len as usize).div_ceil(8);
                for offset in (1..size).rev() {
                    word(&away, at + offset, u64::from_le_bytes(*b"harmless"));
                }
                word(&away, at + size, 0);
                word(&away, at, header(kind, len, count));
                (at, count) = (at + size, count + 1);
            }
            28..31 => {
                // Every other one is a spare.
                let spare = dice.below(4).saturating_sub(1);
                word(&away, at, SEGMENT | spare << 44 | segment);
                away = Some(if spare == 0 { queue.segment(segment as usize) } else { queue.spare(spare as usize) });
                (at, segment) = (0, segment + 1);
            }
            31..33 => word(&away, at + dice.below(100) as usize, dice.any()),
            33 => word(&away, at, [MESSAGE, WRAP, HOME, SEGMENT, 0][dice.below(5) as usize] | dice.any() >> dice.below(64)),
            34 => word(&away, at, header(dice.below(6) as u16, (dice.any() >> dice.below(64)) as u32, count)),
            35 => queue.first[DISPOSED + dice.below(2) as usize].store(dice.any() >> dice.below(64), Ordering::Release),
            36 => queue.first[dice.below(2) as usize].store(dice.any(), Ordering::Release),
            37 => {
                let _ = queue.file.give_back(0, SEGMENT_BYTES * 2);
            }
            38 => word(&away, at, 0),
            _ => std::thread::sleep(Duration::from_micros(dice.below(300))),
        }
        if dice.below(2) == 0 {
            queue.bell.ring();
        }
    }
    // What it has sent is looked at before it goes.
    std::thread::sleep(Duration::from_millis(2));
}

// A hostile receiver.

/// A queue that an honest member brings to a hostile one.
struct Taken {
    connection: Connection,
    first: Shared<[AtomicU64]>,
    file: MemoryFile,
    bell: OwnedFd,
}

impl Taken {
    fn at(door: &Listener) -> Self {
        let (connection, message) = next_at(door);
        assert!(matches!(answer_of(&message), Request::Open { .. }));
        let [queue, bell] = <[OwnedFd; 2]>::try_from(message.descriptors).expect("a queue and a bell");
        let file = MemoryFile::adopt(queue, BYTES).unwrap();
        Self { connection, first: words(&file, 0, HOME_AT + HOME_WORDS), file, bell }
    }

    fn answer(&self, station: &Station) {
        let yes = pack(&Opened::Yes { line: 0, makes_fences: true });
        self.connection.send(&yes, &[station.as_fd()]).unwrap();
    }

    fn tell(&self, at: usize, word: u64) {
        self.first[at].store(word, Ordering::Release);
    }
}

/// Whether a receiver was found out.
fn found_out(error: &str, rank: usize) -> bool {
    error == format!("Violation{{rank:{rank}}}")
}

/// What came of `send`: how many were sent, and the error.
fn sent(said: Said) -> (u64, String) {
    let words = said.expect_ok("sending");
    (words[0].parse().unwrap(), words.get(1).cloned().unwrap_or_default())
}

#[test]
fn a_receiver_lies_about_what_it_has_taken() {
    let _company = in_company();
    let mut scene = Scene::new(2, 6, "");
    let station = Station::new().unwrap();
    let taken: Vec<Taken> = (0..6)
        .map(|at| {
            scene.honest[0].say(&format!("send {} 1", 2 + at));
            let taken = Taken::at(&scene.doors[at]);
            taken.answer(&station);
            assert_eq!(sent(scene.honest[0].hear()), (1, String::new()));
            taken
        })
        .collect();
    let send = |scene: &mut Scene, at: usize, count: u64| sent(scene.honest[0].ask(&format!("send {} {count}", 2 + at)));
    // Too much, at home.
    taken[0].tell(DISPOSED, 1 << 40);
    assert!(found_out(&send(&mut scene, 0, 5000).1, 2));
    taken[1].tell(DISPOSED, u64::MAX);
    assert!(found_out(&send(&mut scene, 1, 5000).1, 2 + 1));
    // Back again.
    send(&mut scene, 2, 1000);
    taken[2].tell(DISPOSED, 900);
    assert_eq!(send(&mut scene, 2, 600), (600, String::new()));
    taken[2].tell(DISPOSED, 100);
    assert!(found_out(&send(&mut scene, 2, 500).1, 2 + 2));
    // In the segments: too much, and back again.
    for at in 3..5 {
        assert_eq!(send(&mut scene, at, 3000), (3000, String::new()));
    }
    taken[3].tell(DIVERTED, 1 << 50);
    assert!(found_out(&send(&mut scene, 3, 1).1, 2 + 3));
    taken[4].tell(DIVERTED, 5);
    assert_eq!(send(&mut scene, 4, 1), (1, String::new()));
    taken[4].tell(DIVERTED, 2);
    assert!(found_out(&send(&mut scene, 4, 1).1, 2 + 4));
    // It stays so.
    for at in 0..5 {
        let (count, error) = send(&mut scene, at, 1);
        assert!(count == 0 && found_out(&error, 2 + at), "{error}");
    }
    scene.meanwhile("lies", |_| ());
}

#[test]
fn receivers_walk() {
    let _company = in_company();
    const LIVES: usize = 16;
    let mut scene = Scene::new(2, LIVES, "");
    let mut dice = Dice::thrown("hostile receivers");
    let station = Station::new().unwrap();
    let mut violations = 0;
    for life in 0..LIVES {
        let (rank, seed) = (2 + life, dice.any());
        let what = format!("life {life}, seed {seed}");
        scene.honest[0].say(&format!("send {rank} 20000"));
        let taken = Taken::at(&scene.doors[life]);
        let mut own = Dice::new(seed);
        if own.below(4) > 0 {
            taken.answer(&station);
        }
        let line = station.line(0);
        let over = AtomicBool::new(false);
        let said = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let near = taken.first[DISPOSED].load(Ordering::Relaxed) + own.below(40);
                    match own.below(64) {
                        0 => taken.tell(DISPOSED, own.any() >> own.below(64)),
                        1 => taken.tell(DIVERTED, own.any() >> own.below(64)),
                        2 => taken.tell(DISPOSED, own.below(4096)),
                        3 => taken.tell(DIVERTED, own.below(4096)),
                        // What was sent and is still to be read, and the words that lead on.
                        4..8 => taken.first[HOME_AT + own.below(4096) as usize].store(own.any(), Ordering::Relaxed),
                        8 => drop(taken.file.give_back(0, SEGMENT_BYTES)),
                        9..16 => line.asleep.store(own.below(2) as u32, Ordering::Release),
                        16..20 => line.sleeps.store(own.any(), Ordering::Release),
                        20..30 => std::thread::sleep(Duration::from_micros(own.below(200))),
                        _ => taken.tell(DISPOSED, near),
                    }
                }
            });
            let said = sent(scene.honest[0].hear_within(Duration::from_secs(10)));
            over.store(true, Ordering::Relaxed);
            said
        });
        assert!(said == (20_000, String::new()) || found_out(&said.1, rank), "{what}: {said:?}");
        violations += u32::from(found_out(&said.1, rank));
        scene.unharmed(&what);
    }
    println!("    {violations} of {LIVES} were found out");
    scene.meanwhile("receivers", |_| ());
}

#[test]
fn answers_that_are_none() {
    let _company = in_company();
    let mut scene = Scene::new(2, 9, "");
    let station = Station::new().unwrap();
    let (plain, bell) = (MemoryFile::create("t", 8192).unwrap(), Bell::new().unwrap());
    let short = MemoryFile::create_for_one_writer("t", 4096).unwrap();
    let no_station = MemoryFile::create_for_one_writer("t", 8192).unwrap();
    let yes = pack(&Opened::Yes { line: 0, makes_fences: true });
    let far = pack(&Opened::Yes { line: u16::MAX, makes_fences: false });
    let no = pack(&Opened::No("x".repeat(100_000)));
    let answers: [(&str, &[u8], Vec<BorrowedFd<'_>>, &str); 8] = [
        ("no station", &yes, vec![], "Unreachable"),
        ("a bell", &yes, vec![bell.as_fd()], "Unreachable"),
        ("memory that others write", &yes, vec![plain.as_fd()], "Unreachable"),
        ("short memory", &yes, vec![short.0.as_fd()], "Unreachable"),
        ("memory that is no station", &yes, vec![no_station.0.as_fd()], "Unreachable"),
        ("a long refusal", &no, vec![], "Unreachable"),
        ("garbage", &[7; 100], vec![], "Unreachable"),
        ("a line that is none", &far, vec![station.as_fd()], ""),
    ];
    for (at, (what, bytes, fds, expected)) in answers.iter().enumerate() {
        scene.honest[0].say(&format!("send {} 3", 2 + at));
        let taken = Taken::at(&scene.doors[at]);
        taken.connection.send(bytes, fds).unwrap();
        // It may have been sent before the answer came.
        let (count, mut error) = sent(scene.honest[0].hear());
        if count == 3 && !expected.is_empty() {
            eventually(what, || {
                error = sent(scene.honest[0].ask(&format!("send {} 1", 2 + at))).1;
                if error.is_empty() { Err("nothing".into()) } else { Ok(()) }
            });
        }
        assert!(error.starts_with(expected) && error.is_empty() == expected.is_empty(), "{what}: {error}");
    }
    // It answers again and again: each answer is mapped.
    scene.honest[0].say("send 10 1");
    let taken = Taken::at(&scene.doors[8]);
    let before = Usage::of(scene.honest[0].pid());
    for _ in 0..2000 {
        if taken.connection.send(&yes, &[station.as_fd()]).is_err() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    let now = Usage::of(scene.honest[0].pid());
    assert!(now.mappings < before.mappings + 50, "{before:?}, {now:?}");
    scene.honest[0].hear().expect_ok("sending");
    eventually("it is refused", || {
        let again = sent(scene.honest[0].ask("send 10 1")).1;
        if again.contains("Unreachable") && again.contains("morethanonce") { Ok(()) } else { Err(again) }
    });
    scene.meanwhile("answers", |_| ());
}

// Bells and stations.

#[test]
fn bells_that_never_rest() {
    let _company = in_company();
    for pacing in ["sleep", ""] {
        let mut scene = Scene::new(2, 2, pacing);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let queues = [2, 3].map(|rank| Brought::new(&scene, rank, 0));
            scope.spawn(|| {
                let [rung, drained] = queues;
                while !over.load(Ordering::Relaxed) {
                    rung.bell.ring();
                    drained.bell.ring();
                    drained.bell.silence();
                }
                // Full, and blocking.
                let flags = rustix::fs::fcntl_getfl(&rung.bell).unwrap();
                rustix::fs::fcntl_setfl(&rung.bell, flags & !rustix::fs::OFlags::NONBLOCK).unwrap();
                rung.bell.silence();
                rustix::io::write(&rung.bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            });
            scene.meanwhile("bells", |_| ());
            scene.honest[1].say("endure 300");
            let numbers = scene.honest[0].ask("endure 300").numbers("bells");
            scene.honest[1].hear().expect_ok("nothing to do");
            println!("    {} rounds in 300 ms, {} ms late", numbers[0], numbers[1]);
            assert!(numbers[1] < 300, "a wait of 300 ms took {} ms longer", numbers[1]);
            over.store(true, Ordering::Relaxed);
        });
        scene.meanwhile("bells that are full", |_| ());
        let before = processor_time(scene.honest[0].pid());
        scene.honest[0].ask("endure 300").expect_ok("a quiet time");
        let spent = Duration::from_nanos(processor_time(scene.honest[0].pid()) - before);
        assert!(spent < Duration::from_millis(150), "{spent:?} of 300 ms in a quiet time");
    }
}

#[test]
fn stations_that_lie() {
    let _company = in_company();
    let mut scene = Scene::new(2, 4, "");
    let station = Station::new().unwrap();
    for (at, (asleep, changes)) in [(1, false), (0, false), (1, true), (1, true)].into_iter().enumerate() {
        let line = station.line(0);
        line.asleep.store(asleep, Ordering::Release);
        scene.honest[0].say(&format!("send {} 1", 2 + at));
        let taken = Taken::at(&scene.doors[at]);
        taken.answer(&station);
        scene.honest[0].hear().expect_ok("the first one");
        // The bell is full and blocking: who would ring it by a write would wait for ever.
        let flags = rustix::fs::fcntl_getfl(&taken.bell).unwrap();
        let _ = rustix::io::write(&taken.bell, &(u64::MAX - 2).to_ne_bytes());
        let _ = rustix::io::write(&taken.bell, &1_u64.to_ne_bytes());
        rustix::fs::fcntl_setfl(&taken.bell, flags & !rustix::fs::OFlags::NONBLOCK).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while changes && !over.load(Ordering::Relaxed) {
                    line.sleeps.fetch_add(1, Ordering::Relaxed);
                    line.asleep
                        .store((at < 3 || !line.sleeps.load(Ordering::Relaxed).is_multiple_of(3)) as u32, Ordering::Release);
                }
            });
            scene.honest[0].say(&format!("send {} 3000", 2 + at));
            let said = sent(scene.honest[0].hear_within(Duration::from_secs(10)));
            over.store(true, Ordering::Relaxed);
            assert_eq!(said, (3000, String::new()));
        });
        // It goes with its bell.
        if at == 3 {
            drop(taken);
        }
        scene.meanwhile("stations", |_| ());
    }
    // One that never answers, with a bell that is closed.
    let mut scene = Scene::new(2, 1, "");
    scene.honest[0].say("send 2 1");
    let Taken { connection, first, file, bell } = Taken::at(&scene.doors[0]);
    drop((first, file, bell));
    scene.honest[0].hear().expect_ok("the first one");
    assert_eq!(sent(scene.honest[0].ask("send 2 100")), (100, String::new()));
    drop(connection);
    scene.meanwhile("one that never answers", |_| ());
    assert_eq!(scene.noticed(0, 2, "ended", "its end")[2..], ["ended"]);
}

#[test]
fn one_that_takes_nothing_holds_nobody_up() {
    let _company = in_company();
    let mut scene = Scene::new(2, 1, "");
    scene.honest[0].say("pour 2 1000");
    let taken = Taken::at(&scene.doors[0]);
    let start = Instant::now();
    let words = scene.honest[0].hear().expect_ok("twelve megabytes");
    assert!(words.concat().is_empty(), "{words:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    scene.meanwhile("one that takes nothing", |_| ());
    // What it never took goes with it.
    let held = taken.file.allocated();
    assert!(held > 12_000_000, "{held}");
    drop(taken);
}

#[test]
fn an_honest_queue_by_hand_is_taken() {
    let _company = in_company();
    let mut scene = Scene::new(2, 1, "");
    let (bag, bell) = (Mailbag::create().unwrap(), Bell::new().unwrap());
    let connection = connect(&scene.socket(0));
    connection.send(&pack(&scene.open(2, 0)), &[bag.as_fd(), bell.as_fd()]).unwrap();
    assert!(matches!(answer_of(&answer(&connection).unwrap()), Opened::Yes { .. }));
    let mut outgoing = Outgoing::new(bag);
    for number in 0..1000 {
        outgoing.try_send(NUMBER, &[number, 2 * number]).unwrap();
    }
    bell.ring();
    drop(connection);
    // All that was sent before the end, and the end once.
    assert_eq!(scene.noticed(0, 2, "ended", "its end"), ["1000", "0", "ended"]);
}
