//! Groups with hostile members, and strangers that connect to their sockets. The hostile side is
//! this process, which speaks the protocol by hand. The honest members are processes that send each
//! other numbers all the time, and count what is missing, doubled or out of order.

mod door;
mod doorbells;
mod forming;
mod queue;
mod receiver;
mod steps;

use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use upcall::message::Lack;
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_os::socket::{Connection, Listener, Received, SocketMessage};
use upcall_shm::region::{Region, RegionView};
use upcall_shm::station::Station;
use upcall_tests::party::{Party, Said};
use upcall_tests::place::{Place, entered, eventually, listen};

// Copies of the types in `crates/message/src/wire.rs`.

const VERSION: u32 = 9;

#[derive(Serialize, Deserialize)]
enum Request {
    Hello {
        version: u32,
        size: u32,
        rank: Option<u32>,
        socket: String,
        kinds: Vec<(String, String)>,
    },
    Open {
        version: u32,
        group: [u8; 16],
        from: u32,
        to: u32,
    },
}

#[derive(Debug, Serialize, Deserialize)]
enum Welcome {
    Formed { group: [u8; 16], rank: u32, members: Vec<Listed> },
    Refused(String),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Lacks {
    lack: Lack,
    errno: Option<i32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Listed {
    process: Process,
    socket: String,
    /// Where it is, in a group over several hosts.
    place: Option<()>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Process {
    Pidfd(u64),
    Numbered(u32, u64),
}

#[derive(Debug, Serialize, Deserialize)]
enum Opened {
    Yes { line: u16, makes_fences: bool },
    No(String),
    Lacks(Lacks),
}

fn pack(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).unwrap()
}

// Copies of the constants in `crates/shm/src/direct` and `crates/shm/src/mailbag.rs`.

const MESSAGE: u64 = 1 << 63;
const WRAP: u64 = 1 << 62;
const HOME: u64 = 1 << 61;
const SEGMENT: u64 = 1 << 60;
/// Distance from a place in one segment to the same place in the next, in the receiver's reports.
const STRIDE: u64 = 1 << 28;
const MAGIC: u64 = u64::from_le_bytes(*b"MAILBAG\x04");
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

/// The kinds of `upcall-honest`, by their positions.
const NUMBER: u16 = 0;
const TEXT: u16 = 1;
const WORDS: u16 = 2;
const NESTED: u16 = 3;

fn kinds() -> Vec<(String, String)> {
    [("number", "[u64; 2]"), ("text", "text"), ("words", "words"), ("nested", "()")]
        .map(|(name, of)| (name.into(), of.into()))
        .into()
}

/// Longest wait on a busy machine, in milliseconds. A wait that a hostile member prolongs without
/// end takes longer.
const LATE_MS: u64 = 10_000;

fn place() -> Place {
    Place::new(env!("CARGO_BIN_EXE_upcall-honest"))
}

fn own_pid() -> u32 {
    std::process::id()
}

/// The identity by which the kernel distinguishes a process.
fn process(pid: u32) -> Process {
    use upcall_os::process::{Identity, identity, identity_of_number, open_any};
    match open_any(pid)
        .ok()
        .flatten()
        .and_then(identity)
        .or_else(|| identity_of_number(pid))
        .expect("a process that lives")
    {
        Identity::Pidfd(inode) => Process::Pidfd(inode),
        Identity::Numbered(pid, born) => Process::Numbered(pid, born),
    }
}

/// Returns the next answer, or `None` if the peer hangs up.
fn answer(connection: &Connection) -> Option<SocketMessage> {
    match connection.receive_within(Duration::ZERO, Duration::from_secs(60)) {
        Ok(Received::Message(message)) => Some(message),
        Ok(Received::Closed) => None,
        other => panic!("no answer: {other:?}"),
    }
}

fn answer_of<'a, T: Deserialize<'a>>(message: &'a SocketMessage) -> T {
    postcard::from_bytes(&message.bytes).expect("an answer")
}

/// Returns the reason for which a queue is refused.
fn refused(connection: &Connection) -> String {
    match answer_of(&answer(connection).expect("an answer")) {
        Opened::No(why) => why,
        other => panic!("{other:?}"),
    }
}

fn connect(path: &Path) -> Connection {
    let start = Instant::now();
    loop {
        match Connection::connect(path) {
            Ok(connection) => return connection,
            Err(error) => {
                assert!(start.elapsed() < Duration::from_secs(60), "{}: {error}", path.display())
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the socket name of a member that is this process.
fn own_socket(mark: &str) -> String {
    let space = upcall_os::process::pid_namespace().expect("/proc");
    format!("member.{}.{space:x}.{mark}", own_pid())
}

/// Returns the socket of the leader, which admits the members of the group.
fn leader(place: &Place) -> PathBuf {
    let leader = || entered(&place.names(), "group.g");
    eventually("a member leads", || leader().map(drop).ok_or_else(String::new));
    leader().unwrap()
}

fn hello(size: u32, rank: Option<u32>, socket: &str) -> Request {
    Request::Hello { version: VERSION, size, rank, socket: socket.into(), kinds: kinds() }
}

/// A group whose first ranks are honest members, and whose other members are hostile and all this
/// process.
struct Scene {
    honest: Vec<Party>,
    place: Place,
    group: [u8; 16],
    members: Vec<Listed>,
    /// The listeners of the hostile members, in the order of their ranks.
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
                let socket = own_socket(&rank.to_string());
                let door = listen(&place.names().join(&socket));
                let connection = connect(&leader);
                connection
                    .send(&pack(&hello(size as u32, Some(rank as u32), &socket)), &[])
                    .unwrap();
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

    /// Runs `done` while the first two members exchange numbers, and checks that they are unharmed.
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

    /// Checks that the first two members have noticed nothing bad about each other.
    fn unharmed(&mut self, what: &str) {
        for (own, other) in [(0, 1), (1, 0)] {
            let words = self.honest[own].ask(&format!("about {other}")).expect_ok(what);
            assert!(words.len() == 2 && words[1] == "0", "{what}: {own} about {other}: {words:?}");
        }
    }

    /// Returns how much a member has refused so far, as an observer sees it.
    fn refusals(&self, rank: usize) -> u64 {
        let accounts =
            upcall::message::accounts::of(self.honest[rank].pid()).expect("its accounts");
        accounts.iter().map(|account| account.read().refused).sum()
    }

    /// Waits until an honest member has noticed an event of another one, and returns what it knows
    /// of it.
    fn noticed(&mut self, by: usize, of: usize, event: &str, what: &str) -> Vec<String> {
        let mut words = Vec::new();
        let start = Instant::now();
        while !words.iter().any(|word: &String| word.starts_with(event)) {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{what}: member {of} is not known for {event:?}: {words:?}"
            );
            words = self.honest[by].ask(&format!("about {of}")).expect_ok(what);
        }
        words
    }
}

/// A queue that the hostile side brings, and writes word by word.
struct Brought {
    connection: Connection,
    first: RegionView<[AtomicU64]>,
    file: MemoryFile,
    doorbell: Doorbell,
}

impl Brought {
    fn new(scene: &Scene, from: usize, to: usize) -> Self {
        let file = MemoryFile::create("hostile", BYTES).unwrap();
        let first = words(&file, 0, HOME_AT + HOME_WORDS);
        first[1].store(HOME_WORDS as u64, Ordering::Relaxed);
        first[0].store(MAGIC, Ordering::Release);
        let (connection, doorbell) = (connect(&scene.socket(to)), Doorbell::new().unwrap());
        connection.send(&pack(&scene.open(from, to)), &[file.as_fd(), doorbell.as_fd()]).unwrap();
        let taken = answer(&connection).expect("an answer");
        assert!(
            matches!(answer_of(&taken), Opened::Yes { .. }),
            "{:?}",
            answer_of::<Opened>(&taken)
        );
        Self { connection, first, file, doorbell }
    }

    fn home(&self, at: usize) -> &AtomicU64 {
        &self.first[HOME_AT + at % HOME_WORDS]
    }

    fn segment(&self, number: usize) -> RegionView<[AtomicU64]> {
        words(&self.file, SEGMENT_BYTES * (3 + number), SEGMENT_WORDS)
    }

    fn spare(&self, number: usize) -> RegionView<[AtomicU64]> {
        words(&self.file, SEGMENT_BYTES * number, SEGMENT_WORDS)
    }

    /// Writes the words from position `at` of the home segment on, the first word last, and rings.
    fn put(&self, at: usize, words: &[u64]) {
        for (offset, &word) in words.iter().enumerate().rev() {
            self.home(at + offset).store(word, Ordering::Release);
        }
        self.doorbell.notify();
    }
}

fn words(file: &MemoryFile, at: usize, count: usize) -> RegionView<[AtomicU64]> {
    Region::new(Mapping::part(file, at, count * 8).unwrap()).unwrap().view_slice(0, count).unwrap()
}

fn as_fds<'a>(fds: &'a [OwnedFd]) -> Vec<BorrowedFd<'a>> {
    fds.iter().map(AsFd::as_fd).collect()
}

/// Maximum number of descriptors of a member that strangers try to exhaust.
const FEW: u64 = 1024;

fn with_few_descriptors(party: &Party) {
    let limit = rustix::process::Rlimit { current: Some(FEW), maximum: Some(FEW) };
    let pid = rustix::process::Pid::from_raw(party.pid() as i32);
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).unwrap();
}

/// Returns the next connection that sends a message. Others connect only to see whether the member
/// listens.
fn next_at(door: &Listener) -> (Connection, SocketMessage) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(60), "no connection arrives");
        match door.accept().unwrap() {
            Some(connection) => {
                if let Ok(Received::Message(message)) =
                    connection.receive_within(Duration::ZERO, Duration::from_secs(1))
                {
                    return (connection, message);
                }
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A queue that an honest member brings to a hostile one.
struct Taken {
    connection: Connection,
    first: RegionView<[AtomicU64]>,
    file: MemoryFile,
    doorbell: OwnedFd,
}

impl Taken {
    fn at(door: &Listener) -> Self {
        let (connection, message) = next_at(door);
        Self::of(connection, message)
    }

    /// Like `at`, but returns `None` if no queue arrives now.
    fn at_once(door: &Listener) -> Option<Self> {
        let connection = door.accept().unwrap()?;
        match connection.receive_within(Duration::ZERO, Duration::from_secs(1)) {
            Ok(Received::Message(message)) => Some(Self::of(connection, message)),
            _ => None,
        }
    }

    fn of(connection: Connection, message: SocketMessage) -> Self {
        assert!(matches!(answer_of(&message), Request::Open { .. }));
        let [queue, doorbell] =
            <[OwnedFd; 2]>::try_from(message.descriptors).expect("a queue and a doorbell");
        let file = MemoryFile::adopt(queue, BYTES).unwrap();
        Self { connection, first: words(&file, 0, HOME_AT + HOME_WORDS), file, doorbell }
    }

    fn answer(&self, station: &Station) {
        let yes = pack(&Opened::Yes { line: 0, makes_fences: true });
        self.connection.send(&yes, &[station.as_fd()]).unwrap();
    }

    fn tell(&self, at: usize, word: u64) {
        self.first[at].store(word, Ordering::Release);
    }
}

/// Returns how many messages `send` has sent, and its error.
fn sent(said: Said) -> (u64, String) {
    let words = said.expect_ok("sending");
    (words[0].parse().unwrap(), words.get(1).cloned().unwrap_or_default())
}
