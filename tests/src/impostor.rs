//! Servers that do not keep to the protocol.

use crate::dice::Dice;
use crate::outcome::say;
use crate::speech::{
    Answer, Refusal, Request, ToClient, ToServer, VERSION, any_list, outcome, plan,
};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use upcall_os::doorbell::Doorbell;
use upcall_os::lock::KernelMutex;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_os::socket::{Connection, Listener, Received};
use upcall_shm::channel::{self, Channel};
use upcall_shm::region::Region;
use upcall_shm::ring::{RingReceiver, RingSender};
use upcall_shm::single::SingleServer;
use upcall_shm::slot::{SlotMessage, ValueLocation};
use upcall_shm::station::Station;

/// Listens under `name` and answers in this manner: `silence`, `noise`, `hang-up`, `other-answer`,
/// `other-version`, `few-descriptors`, `scribble`, `lies`, `blocks`, `boasts`, `boasts-of-panics`,
/// `boasts-of-refusals`, `snatches-TID` (claims that it sleeps, and that its thread is TID, or
/// `own`). With the suffix `-for-ever`, it does not hang up.
pub fn run(name: &str, manner: &str) {
    let listener = listen(name);
    say(Ok(Vec::new()));
    let mut dice = Dice::new(crate::now());
    loop {
        match listener.accept() {
            Ok(Some(connection)) => {
                let (manner, dice) = (manner.to_string(), Dice::new(dice.any()));
                std::thread::spawn(move || attend(&connection, &manner, dice));
            }
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Listens as the server of `name` would.
pub(crate) fn listen(name: &str) -> Listener {
    let folder = upcall::directory::folder().unwrap_or_else(|error| panic!("{error}"));
    let _ = std::fs::create_dir_all(&folder);
    let socket = format!("domain.{}.0", std::process::id());
    let listener = crate::place::listen(&folder.join(&socket));
    crate::place::enter(&folder, name, &socket);
    listener
}

/// The memory and the doorbells that a client has passed.
#[derive(Clone, Default)]
struct Given(Arc<KernelMutex<Memories>>, Arc<KernelMutex<Vec<Doorbell>>>);

/// Memory by the number that the client gave it.
type Memories = Vec<(u16, Arc<Region>)>;

impl Given {
    fn add(&self, number: u16, fd: OwnedFd, len: usize) {
        let region = MemoryFile::adopt(fd, len)
            .ok()
            .and_then(|file| Region::new(Mapping::shared(&file).ok()?));
        self.enter(number, region);
    }

    fn add_segment(&self, number: u16, fd: OwnedFd, len: usize) {
        self.enter(number, MemoryFile::adopt_filled(fd, len).ok().and_then(Region::new));
    }

    fn enter(&self, number: u16, region: Option<Arc<Region>>) {
        self.0.lock().extend(region.map(|region| (number, region)));
    }

    fn notify(&self) {
        self.1.lock().iter().for_each(Doorbell::notify);
    }

    fn all(&self) -> Memories {
        self.0.lock().clone()
    }
}

/// The number of the channel among what a client has passed. Segments have their own numbers.
const CHANNEL: u16 = u16::MAX;

#[expect(clippy::too_many_lines, reason = "one arm for each manner")]
fn attend(connection: &Connection, manner: &str, mut dice: Dice) {
    let (manner, stays) =
        manner.strip_suffix("-for-ever").map_or((manner, false), |manner| (manner, true));
    let (given, over) = (Given::default(), Arc::new(AtomicBool::new(false)));
    let station = Station::new().unwrap_or_else(|error| panic!("a station: {error}"));
    let doorbell = Doorbell::new().unwrap_or_else(|error| panic!("a doorbell: {error}"));
    if manner == "hang-up" {
        return;
    }
    loop {
        let message = match connection.receive_within(Duration::ZERO, Duration::from_secs(60)) {
            Ok(Received::Message(message)) => message,
            _ => break,
        };
        let Ok(ToServer { serial, request }) = postcard::from_bytes::<ToServer>(&message.bytes)
        else {
            break;
        };
        let mut descriptors = message.descriptors.into_iter();
        let mut out = Vec::new();
        let answer = match (manner, request) {
            ("silence", _) => continue,
            ("noise", _) => {
                let len = 1 + dice.below(200) as usize;
                let _ = connection.send(&dice.bytes(len), &[]);
                continue;
            }
            ("other-answer", _) => Answer::Mapped,
            // The answer of a server with the next version that is otherwise correct.
            ("other-version", Request::Open { version }) => Answer::Refused(Refusal::Version(
                format!("the client speaks version {version}, the server version {}", VERSION + 1),
            )),
            ("few-descriptors", Request::Open { .. }) => Answer::Opened { home: 0 },
            (_, Request::Open { .. }) => {
                descriptors
                    .next()
                    .into_iter()
                    .for_each(|fd| given.add(CHANNEL, fd, channel::BYTES));
                let (given, over, manner, mut dice) =
                    (given.clone(), over.clone(), manner.to_string(), Dice::new(dice.any()));
                let time = Duration::from_millis(match &*manner {
                    "blocks" => 1500,
                    "boasts" | "boasts-of-panics" | "boasts-of-refusals" => 60_000,
                    _ => 5 + dice.below(60),
                });
                let snatched = manner.strip_prefix("snatches-").map(|tid| match tid {
                    "own" => std::process::id(),
                    tid => tid.parse().unwrap_or_else(|_| panic!("{tid} is no thread")),
                });
                let hung_up = connection.as_fd().try_clone_to_owned();
                if let Some(tid) = snatched {
                    station.line(0).tid.store(tid, Ordering::SeqCst);
                }
                station
                    .line(0)
                    .asleep
                    .store(u32::from(manner == "blocks" || snatched.is_some()), Ordering::SeqCst);
                let copy = doorbell.as_fd().try_clone_to_owned();
                std::thread::spawn(move || match &*manner {
                    "lies" => lie(&given, &over, dice),
                    "blocks" => block(copy, &over),
                    "boasts" => boast(&given, &over, outcome::HELD),
                    "boasts-of-panics" => boast(&given, &over, outcome::PANICKED_HELD),
                    "boasts-of-refusals" => boast(&given, &over, outcome::REFUSED_HELD),
                    _ if snatched.is_some() => {}
                    _ => scribble(&given, &over, dice),
                });
                // It hangs up after a while, so that there are many rounds, and goes on interfering
                // for some moments.
                if !stays {
                    std::thread::spawn(move || {
                        std::thread::sleep(time);
                        hung_up.map(|fd| rustix::net::shutdown(fd, rustix::net::Shutdown::Both))
                    });
                }
                out = vec![station.as_fd(), doorbell.as_fd()];
                Answer::Opened { home: 0 }
            }
            (_, Request::Bind { procedures, .. }) => {
                descriptors
                    .next()
                    .into_iter()
                    .for_each(|fd| given.add(0, fd, plan(&any_list(1)).bytes()));
                Answer::Bound { procedures: any_list(procedures.len()) }
            }
            (_, Request::Stacks { .. }) => {
                descriptors
                    .next()
                    .into_iter()
                    .for_each(|fd| given.add(0, fd, plan(&any_list(1)).bytes()));
                Answer::Mapped
            }
            (_, Request::Segment { number, len }) => {
                descriptors
                    .next()
                    .into_iter()
                    .for_each(|fd| given.add_segment(number, fd, len as usize));
                Answer::Mapped
            }
            (_, Request::OpenLane { vp: Some(_), .. }) => {
                let doorbell = descriptors.next().and_then(|fd| Doorbell::adopt(fd).ok());
                given.1.lock().extend(doorbell);
                continue;
            }
            (_, Request::List) => Answer::Refused(Refusal::Denied("no".into())),
            _ => continue,
        };
        let bytes = postcard::to_stdvec(&ToClient { serial, answer }).unwrap_or_default();
        if connection.send(&bytes, &out).is_err() {
            break;
        }
    }
    std::thread::sleep(Duration::from_millis(20));
    over.store(true, Ordering::Relaxed);
}

/// Makes every ring of the impostor's doorbell block.
fn block(doorbell: std::io::Result<OwnedFd>, over: &AtomicBool) {
    let doorbell = doorbell.unwrap_or_else(|error| panic!("a copy of the doorbell: {error}"));
    while !over.load(Ordering::Relaxed) {
        let flags =
            rustix::fs::fcntl_getfl(&doorbell).unwrap_or_else(|error| panic!("flags: {error}"));
        // First full, by a write that does not block. Then blocking again, since the client made
        // the doorbell non-blocking when it received it.
        let _ = rustix::fs::fcntl_setfl(&doorbell, flags | rustix::fs::OFlags::NONBLOCK);
        for count in [u64::MAX - 1, 1] {
            let _ = rustix::io::write(&doorbell, &count.to_ne_bytes());
        }
        let _ = rustix::fs::fcntl_setfl(&doorbell, flags - rustix::fs::OFlags::NONBLOCK);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes random bytes over all memory that the client shares with the impostor.
fn scribble(given: &Given, over: &AtomicBool, mut dice: Dice) {
    // A short pause, so that calls are under way.
    std::thread::sleep(Duration::from_micros(dice.below(2000)));
    while !over.load(Ordering::Relaxed) {
        for (_, region) in given.all() {
            let len = 1 + dice.below(64) as usize;
            let at = dice.below((region.len() - len) as u64) as usize;
            // Half of the writes go to the rings of the first lanes and the control words.
            let at = if dice.below(2) == 0 { at } else { at % (8192 * 8) };
            if let Some(room) = region.room(0, region.len()) {
                let _ = room.copy_in(at.min(region.len() - len), &dice.bytes(len));
            }
        }
    }
}

/// The channel that the client has passed; `None` if it is not a channel.
fn channel(given: &Given) -> Option<Channel> {
    let all = given.all();
    let (_, region) = all.iter().find(|(number, _)| *number == CHANNEL)?;
    Channel::join(region.clone()).ok()
}

/// Answers each request of a polling kernel thread with a claim: there is a result, or with another
/// `tag` a panic message, that takes three quarters of the memory that is left.
fn boast(given: &Given, over: &AtomicBool, tag: u16) {
    let left = upcall_os::headroom::available();
    let Some(channel) = channel(given) else { return };
    let lanes: Vec<_> = (0..32)
        .filter_map(|number| channel.lane(number))
        .map(|lane| SingleServer::new(lane.single))
        .collect();
    while !over.load(Ordering::Relaxed) {
        let mut request = SlotMessage::new(0, 0, 0);
        for lane in &lanes {
            while lane.take(&mut request) {
                let mut reply = SlotMessage::new(request.call(), tag, request.astack());
                (reply.values[0], reply.values[1]) = (1, left / 4 * 3);
                reply.place(ValueLocation::Inline, 0, 16);
                lane.reply(&reply);
            }
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Answers every request of a virtual processor in its proper slot, mostly with the right call
/// number, and with everything else wrong.
fn lie(given: &Given, over: &AtomicBool, mut dice: Dice) {
    let Some(channel) = channel(given) else { return };
    let lanes = (32..channel::LANES).filter_map(|number| channel.lane(number));
    let lanes: Vec<_> = lanes
        .map(|lane| (RingReceiver::new(lane.requests), RingSender::new(lane.replies)))
        .collect();
    while !over.load(Ordering::Relaxed) {
        let all = given.all();
        let mut idle = true;
        for (requests, replies) in &lanes {
            let Some(request) = requests.take() else { continue };
            idle = false;
            let numbers = [
                0,
                1,
                8,
                16,
                1 << 16,
                1 << 20,
                u64::MAX,
                1 << 56,
                u64::MAX - (1 << 20),
                dice.any(),
            ];
            let outcome = if dice.below(2) == 0 { 0 } else { dice.below(10) as u16 };
            let call = if dice.below(500) == 0 { dice.any() as u16 } else { request.call() };
            let mut reply = SlotMessage::new(call, outcome, dice.any() as u16);
            let place = [ValueLocation::Inline, ValueLocation::AStack, ValueLocation::Segment]
                [dice.below(3) as usize];
            reply.place(
                place,
                dice.below(4) as u16,
                [0, 8, 16, 48, 4096, u32::MAX][dice.below(6) as usize],
            );
            reply.values =
                std::array::from_fn(|_| numbers[dice.below(numbers.len() as u64) as usize]);
            // A result for which a call had no room is held for it, and the client fetches this
            // many bytes. The cap keeps that from harming the machine.
            if outcome == 5 && (1 << 28..1 << 48).contains(&reply.values[1]) {
                reply.values[1] = 1 << 20;
            }
            for (_, region) in all.iter().filter(|(number, _)| *number != CHANNEL) {
                let at = dice.below(region.len() as u64 / 8) as usize * 8;
                let _ = region.room(0, region.len()).and_then(|room| room.put_u64(at, dice.any()));
            }
            replies.send(&reply);
        }
        if idle {
            std::thread::sleep(Duration::from_micros(50));
        } else {
            given.notify();
        }
    }
}
