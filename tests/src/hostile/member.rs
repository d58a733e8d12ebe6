//! A hostile member of a group: it joins as it should, and then breaks each rule in turn, from a
//! seed.
//!
//! The messages are those of `crates/message/src/wire.rs` and the words those of
//! `crates/shm/src/direct`. They are deliberately written down a second time, since this side
//! speaks them by hand.

use crate::dice::Dice;
use crate::place::{entered, listen};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_os::socket::{Connection, Listener, Received, SocketMessage};
use upcall_shm::region::{Region, RegionView};
use upcall_shm::station::Station;

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

#[derive(Serialize, Deserialize)]
enum Welcome {
    Formed { group: [u8; 16], rank: u32, members: Vec<Listed> },
    Refused(String),
}

#[derive(Clone, Serialize, Deserialize)]
struct Listed {
    process: Process,
    socket: String,
    /// Where it is, in a group over several hosts.
    place: Option<()>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Process {
    Pidfd(u64),
    Numbered(u32, u64),
}

#[derive(Serialize, Deserialize)]
enum Opened {
    Yes { line: u16, makes_fences: bool },
    No(String),
}

const MESSAGE: u64 = 1 << 63;
const WRAP: u64 = 1 << 62;
const HOME: u64 = 1 << 61;
const SEGMENT: u64 = 1 << 60;
const MAGIC: u64 = u64::from_le_bytes(*b"MAILBAG\x04");
/// Length of a queue's file, in bytes. It takes memory only where it is touched.
const BYTES: usize = 1 << 40;
const DISPOSED: usize = 8;
const DIVERTED: usize = 9;
const HOME_AT: usize = 512;
const HOME_WORDS: usize = 4096;
/// Size of a page, in bytes. Home begins with the second page.
const PAGE: usize = 4096;
/// Longest wait for a peer's answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A place in the group.
pub struct Place<'a> {
    /// The folder of names.
    pub folder: &'a Path,
    /// The name of the group.
    pub group: &'a str,
    /// The size of the group.
    pub size: usize,
    /// The hostile member's rank.
    pub rank: usize,
    /// The kinds of messages that the honest members have registered, with the type that each
    /// carries.
    pub kinds: &'a [(&'a str, &'a str)],
}

struct Hostile<'a> {
    place: &'a Place<'a>,
    dice: Dice,
    group: [u8; 16],
    members: Vec<Listed>,
    door: Listener,
    station: Station,
    brought: Vec<Queue>,
    taken: Vec<Queue>,
}

/// A queue in either direction, with all its parts that this side may write.
struct Queue {
    _connection: Connection,
    first: RegionView<[AtomicU64]>,
    file: MemoryFile,
    doorbell: Doorbell,
}

/// Joins, is hostile for `length`, and returns the number of steps taken; 0 if the group did not
/// form.
///
/// # Errors
/// If the members refuse it, or this process lacks a resource.
pub fn walk(place: &Place<'_>, seed: u64, length: Duration) -> Result<u64, Box<dyn Error>> {
    let Some(mut hostile) = Hostile::join(place, Dice::new(seed))? else { return Ok(0) };
    let (end, mut steps) = (Instant::now() + length, 0);
    while Instant::now() < end {
        hostile.step();
        steps += 1;
        if hostile.dice.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(hostile.dice.below(2000)));
        }
    }
    // The member dies in the middle of everything.
    std::mem::forget(hostile);
    Ok(steps)
}

fn pack(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).unwrap_or_default()
}

fn answer(connection: &Connection, patience: Duration) -> Option<SocketMessage> {
    match connection.receive_within(Duration::ZERO, patience) {
        Ok(Received::Message(message)) => Some(message),
        _ => None,
    }
}

fn words(file: &MemoryFile, at: usize, count: usize) -> Option<RegionView<[AtomicU64]>> {
    Region::new(Mapping::part(file, at, count * 8).ok()?)?.view_slice(0, count)
}

/// The socket of the member that admits the others.
fn leader(place: &Place<'_>) -> Option<PathBuf> {
    let (name, start) = (format!("group.{}", place.group), Instant::now());
    while start.elapsed() < PATIENCE {
        if let Some(socket) = entered(place.folder, &name) {
            return Some(socket);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

impl<'a> Hostile<'a> {
    fn join(place: &'a Place<'a>, dice: Dice) -> Result<Option<Self>, Box<dyn Error>> {
        let Some(leader) = leader(place) else { return Ok(None) };
        let space = upcall_os::process::pid_namespace().ok_or("no /proc")?;
        let socket = format!("member.{}.{space:x}.{}", std::process::id(), place.rank);
        let door = listen(&place.folder.join(&socket));
        let Ok(connection) = Connection::connect(&leader) else { return Ok(None) };
        let kinds =
            place.kinds.iter().map(|(name, of)| (name.to_string(), of.to_string())).collect();
        let rank = Some(place.rank as u32);
        connection.send(
            &pack(&Request::Hello {
                version: VERSION,
                size: place.size as u32,
                rank,
                socket,
                kinds,
            }),
            &[],
        )?;
        let Some(message) = answer(&connection, PATIENCE) else { return Ok(None) };
        match postcard::from_bytes(&message.bytes)? {
            Welcome::Formed { group, members, .. } => {
                let station = Station::new()?;
                Ok(Some(Self {
                    place,
                    dice,
                    group,
                    members,
                    door,
                    station,
                    brought: Vec::new(),
                    taken: Vec::new(),
                }))
            }
            // A member was stopped or killed. The others form the group again.
            Welcome::Refused(why) if why.ends_with("came in time") => Ok(None),
            Welcome::Refused(why) => Err(why.into()),
        }
    }

    fn any_other(&mut self) -> usize {
        let rank = self.dice.below(self.place.size as u64 - 1) as usize;
        rank + usize::from(rank >= self.place.rank)
    }

    fn step(&mut self) {
        self.look_at_the_door();
        match self.dice.below(64) {
            0..3 if self.brought.len() < 4 => self.bring(),
            0..24 => self.scribble_brought(),
            24..40 => self.lie_as_receiver(),
            40..48 => self.notify(),
            48..56 => self.babble(),
            56..58 => drop(self.brought.pop()),
            58..60 => drop(self.taken.pop()),
            60..62 => self.punch(),
            _ => self.tamper_with_bells(),
        }
    }

    /// Opens a queue as an honest member does.
    fn bring(&mut self) {
        let to = self.any_other();
        let opened = || -> Option<Queue> {
            let file = MemoryFile::create("hostile", BYTES).ok()?;
            let first = words(&file, 0, HOME_AT + HOME_WORDS)?;
            first[1].store(HOME_WORDS as u64, Ordering::Relaxed);
            first[0].store(MAGIC, Ordering::Release);
            let connection =
                Connection::connect(&self.place.folder.join(&self.members[to].socket)).ok()?;
            let doorbell = Doorbell::new().ok()?;
            connection.send(&pack(&self.open(to)), &[file.as_fd(), doorbell.as_fd()]).ok()?;
            let answered = answer(&connection, Duration::from_millis(200))?;
            matches!(postcard::from_bytes(&answered.bytes).ok()?, Opened::Yes { .. })
                .then_some(Queue { _connection: connection, first, file, doorbell })
        };
        let queue = opened();
        self.brought.extend(queue);
    }

    fn open(&self, to: usize) -> Request {
        Request::Open {
            version: VERSION,
            group: self.group,
            from: self.place.rank as u32,
            to: to as u32,
        }
    }

    /// A number that a receiver of messages might accept.
    fn number(&mut self) -> u64 {
        let (kind, count, len) =
            (self.dice.below(8), self.dice.below(1 << 14), self.dice.below(1 << 20));
        let header = MESSAGE | count << 48 | kind << 32 | len;
        let flag = [WRAP, HOME, SEGMENT, MESSAGE][self.dice.below(4) as usize];
        match self.dice.below(8) {
            0..3 => header,
            3 => flag | self.dice.below(1 << 30),
            4 => self.dice.below(64),
            5 => u64::MAX,
            6 => 0,
            _ => self.dice.any(),
        }
    }

    fn scribble_brought(&mut self) {
        if self.brought.is_empty() {
            return;
        }
        let at = self.dice.below(self.brought.len() as u64) as usize;
        for _ in 0..1 + self.dice.below(16) {
            let place = match self.dice.below(4) {
                0 => self.dice.below(HOME_AT as u64) as usize,
                1 => HOME_AT + self.dice.below(8) as usize,
                _ => HOME_AT + self.dice.below(HOME_WORDS as u64) as usize,
            };
            let number = self.number();
            self.brought[at].first[place].store(number, Ordering::Release);
        }
        if self.dice.below(8) == 0
            && let Some(segment) =
                words(&self.brought[at].file, (1 << 20) * (1 + self.dice.below(6) as usize), 4096)
        {
            let number = self.number();
            segment[self.dice.below(4096) as usize].store(number, Ordering::Release);
        }
        self.brought[at].doorbell.notify();
    }

    /// Writes false reports into queues that honest members have brought.
    fn lie_as_receiver(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let at = self.dice.below(self.taken.len() as u64) as usize;
        let place = match self.dice.below(4) {
            0 => DISPOSED,
            1 => DIVERTED,
            2 => self.dice.below(HOME_AT as u64) as usize,
            _ => HOME_AT + self.dice.below(HOME_WORDS as u64) as usize,
        };
        let number = self.number();
        self.taken[at].first[place].store(number, Ordering::Release);
        self.taken[at].doorbell.notify();
    }

    /// Punches a hole into a queue of either direction: its header and the words beside the
    /// messages, a page of home, a segment, or all of it. Messages under way are lost, and words
    /// that the other side wrote become 0.
    fn punch(&mut self) {
        let count = self.brought.len() + self.taken.len();
        let at = self.dice.below(count as u64) as usize;
        let (start, len) = match self.dice.below(4) {
            0 => (0, PAGE),
            1 => (PAGE * (1 + self.dice.below(8) as usize), PAGE),
            2 => ((1 << 20) * (1 + self.dice.below(6) as usize), 1 << 20),
            _ => (0, BYTES),
        };
        if let Some(queue) = self.brought.iter().chain(&self.taken).nth(at) {
            // Some kernels refuse to punch holes.
            let _ = queue.file.give_back(start, len);
            queue.doorbell.notify();
        }
    }

    fn notify(&mut self) {
        let times = if self.dice.below(16) == 0 { 200 } else { 1 };
        for queue in self.brought.iter().chain(&self.taken) {
            (0..times).for_each(|_| queue.doorbell.notify());
        }
    }

    /// Sends nonsense to an honest member's endpoint: bytes, another group, other descriptors, or
    /// too few of them.
    fn babble(&mut self) {
        let to = self.any_other();
        let Ok(connection) = Connection::connect(&self.place.folder.join(&self.members[to].socket))
        else {
            return;
        };
        let mut open = self.open(to);
        if let Request::Open { group, from, to, version } = &mut open {
            match self.dice.below(5) {
                0 => group[0] ^= 1,
                1 => *from = self.dice.any() as u32,
                2 => *to = self.dice.any() as u32,
                3 => *version = self.dice.any() as u32,
                _ => {}
            }
        }
        let noise = self.dice.bytes(40);
        let bytes = if self.dice.below(3) == 0 { noise } else { pack(&open) };
        let (file, doorbell) = (MemoryFile::create("hostile", 4096), Doorbell::new());
        if let (Ok(file), Ok(doorbell)) = (file, doorbell) {
            let given = [file.as_fd(), doorbell.as_fd()];
            let _ = connection.send(&bytes, &given[..self.dice.below(3) as usize]);
        }
        if self.dice.below(4) == 0 {
            answer(&connection, Duration::from_millis(5));
        }
    }

    fn tamper_with_bells(&mut self) {
        for queue in &self.taken {
            match self.dice.below(3) {
                0 => drop(rustix::io::write(&queue.doorbell, &(u64::MAX - 1).to_ne_bytes())),
                1 => drop(queue.doorbell.silence()),
                _ => queue.doorbell.notify(),
            }
        }
    }

    /// Takes a queue that an honest member brings, or sends a wrong answer.
    fn look_at_the_door(&mut self) {
        let Ok(Some(connection)) = self.door.accept() else { return };
        let Some(message) = answer(&connection, Duration::from_millis(50)) else { return };
        let yes = pack(&Opened::Yes { line: self.dice.below(3) as u16, makes_fences: true });
        let sent = match self.dice.below(6) {
            0 => connection.send(&pack(&Opened::No("no".into())), &[]),
            1 => connection.send(&self.dice.bytes(20), &[]),
            2 => connection.send(&yes, &[]),
            _ => connection.send(&yes, &[self.station.as_fd()]),
        };
        let Ok([queue, doorbell]) = <[OwnedFd; 2]>::try_from(message.descriptors) else { return };
        let taken = || -> Option<Queue> {
            sent.ok()?;
            let file = MemoryFile::adopt(queue, BYTES).ok()?;
            let first = words(&file, 0, HOME_AT + HOME_WORDS)?;
            Some(Queue {
                _connection: connection,
                first,
                file,
                doorbell: Doorbell::adopt(doorbell).ok()?,
            })
        };
        let taken = taken();
        self.taken.extend(taken);
    }
}
