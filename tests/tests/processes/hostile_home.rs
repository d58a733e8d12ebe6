//! A home that breaks its protocol: its guests get errors or wrong values, but neither crash nor
//! hang.
//!
//! This process stands between the guests and an honest home, and is the only home that the guests
//! know. It passes on the honest home's answers, or sends other ones. It writes over the memory
//! that guests share with the home, and hangs up after some milliseconds. The messages are those of
//! `crates/home/src/wire.rs`, written down a second time on purpose.

use crate::{in_company, place};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_os::socket::{Connection, Received, SocketMessage};
use upcall_shm::region::{Region, RegionView};
use upcall_shm::single::SingleServer;
use upcall_shm::slot::{NO_ASTACK, Slot, SlotMessage, ValueLocation as Where};
use upcall_tests::dice::Dice;
use upcall_tests::party::PATIENCE;
use upcall_tests::place::{AtLast, Place, enter, entered, eventually, listen};
use upcall_tests::usage::Usage;

#[derive(Serialize, Deserialize)]
enum Kind {
    Short,
    MayBlock,
}

#[derive(Serialize, Deserialize)]
enum Opened {
    Yes { place: Option<u16>, length: u64, sealed: bool, reached_at: Option<String> },
    ToInvoke { reached_at: Option<String> },
    Invokes { line: u16, makes_fences: bool, operations: Vec<(String, Kind)> },
    No(String),
}

/// The hostile process between the guests and the home whose socket is `home`.
struct Between {
    home: PathBuf,
    /// The bytes of the object, as its home made it.
    object: OnceLock<Vec<u8>>,
    over: AtomicBool,
    /// Number of answers passed on unchanged; `bent` counts the others.
    passed: AtomicU64,
    bent: AtomicU64,
}

fn any_answer(dice: &mut Dice) -> Opened {
    let place = [None, Some(0), Some(dice.any() as u16)][dice.below(3) as usize];
    let length = [0, 8, 4096, 1 << 30, 1 << 62, u64::MAX, dice.any()][dice.below(7) as usize];
    let names = [0, 1, 300][dice.below(3) as usize];
    let kind = |dice: &mut Dice| if dice.below(2) == 0 { Kind::Short } else { Kind::MayBlock };
    let reached_at = [None, Some("ws2:7"), Some("@/:")][dice.below(3) as usize].map(Into::into);
    match dice.below(5) {
        0 | 1 => Opened::Yes { place, length, sealed: dice.below(2) == 0, reached_at },
        2 => Opened::ToInvoke { reached_at },
        3 => Opened::No("x".repeat(dice.below(3000) as usize)),
        _ => Opened::Invokes {
            line: dice.any() as u16,
            makes_fences: dice.below(2) == 0,
            operations: (0..names)
                .map(|_| (["add", "", "other"][dice.below(3) as usize].into(), kind(dice)))
                .collect(),
        },
    }
}

/// A descriptor of a random kind, to be sent in place of another one.
fn any_descriptor(dice: &mut Dice) -> Option<OwnedFd> {
    match dice.below(6) {
        0 => Doorbell::new().ok()?.as_fd().try_clone_to_owned().ok(),
        1 => std::fs::File::open(
            ["/dev/null", "/dev/zero", "/", "/proc/self/exe"][dice.below(4) as usize],
        )
        .ok()
        .map(OwnedFd::from),
        2 => std::io::pipe().ok().map(|(reader, _)| reader.into()),
        _ => {
            let fd =
                rustix::fs::memfd_create("hostile", rustix::fs::MemfdFlags::ALLOW_SEALING).ok()?;
            rustix::fs::ftruncate(&fd, [0, 4096, 8192, 1 << 20, 1 << 40][dice.below(5) as usize])
                .ok()?;
            rustix::fs::fcntl_add_seals(
                &fd,
                rustix::fs::SealFlags::from_bits_retain(dice.below(32) as u32),
            )
            .ok()?;
            Some(fd)
        }
    }
}

/// Sends the home's answer, or something else. Returns `true` if the connection still stands.
fn answer(guest: &Connection, said: &SocketMessage, between: &Between, dice: &mut Dice) -> bool {
    let descriptors: Vec<BorrowedFd<'_>> = said.descriptors.iter().map(AsFd::as_fd).collect();
    let send =
        |bytes: &[u8], descriptors: &[BorrowedFd<'_>]| guest.send(bytes, descriptors).is_ok();
    let pack = |answer: &Opened| postcard::to_stdvec(answer).expect("an answer can be encoded");
    if dice.below(3) > 0 {
        between.passed.fetch_add(1, Ordering::Relaxed);
        return send(&said.bytes, &descriptors);
    }
    between.bent.fetch_add(1, Ordering::Relaxed);
    match dice.below(9) {
        0 => {
            let mut bytes = said.bytes.clone();
            let at = dice.below(bytes.len() as u64) as usize;
            bytes[at] = dice.any() as u8;
            bytes.truncate(1 + dice.below(2 * bytes.len() as u64) as usize);
            send(&bytes, &descriptors)
        }
        1 => {
            let length = 1 + dice.below(2000) as usize;
            send(&dice.bytes(length), &descriptors)
        }
        2 => send(&said.bytes, &[]),
        3 | 4 => {
            let odd: Vec<OwnedFd> =
                (0..=dice.below(8)).filter_map(|_| any_descriptor(dice)).collect();
            send(&said.bytes, &odd.iter().map(AsFd::as_fd).collect::<Vec<_>>())
        }
        // Answers after the one answer; an honest home sends no more.
        5 => {
            send(&said.bytes, &descriptors)
                && (0..dice.below(100)).all(|_| send(&pack(&any_answer(dice)), &descriptors))
        }
        6 => false,
        _ => send(&pack(&any_answer(dice)), &descriptors),
    }
}

/// Maps all of the memory behind a descriptor, if it can be mapped.
fn mapped(descriptor: &OwnedFd) -> Option<Arc<Region>> {
    let length = usize::try_from(rustix::fs::fstat(descriptor).ok()?.st_size).ok()?;
    let file = MemoryFile::adopt(descriptor.try_clone().ok()?, length).ok()?;
    Region::new(Mapping::shared(&file).ok()?)
}

/// Writes over memory that a guest shares with its home: anywhere in it, or over its first words.
fn scribble(memory: &Region, dice: &mut Dice) {
    for _ in 0..dice.below(8) {
        let words = if dice.below(2) == 0 { memory.len() as u64 / 8 } else { 16 };
        let word = [0, 1, 8, u64::MAX, 1 << 32, 1 << 63, dice.any()][dice.below(7) as usize];
        let at = dice.below(words) as usize * 8;
        let _ = memory.room(0, memory.len()).and_then(|room| room.put_u64(at, word));
    }
}

/// Answers an invocation that may never have been made.
fn reply(slot: &SingleServer<RegionView<Slot>>, dice: &mut Dice) {
    if dice.below(2) == 0 {
        slot.take(&mut SlotMessage::new(0, 0, NO_ASTACK));
    }
    let mut image = SlotMessage::new(dice.any() as u16, dice.below(4) as u16, dice.any() as u16);
    let place = [Where::Inline, Where::AStack, Where::Segment][dice.below(3) as usize];
    image.place(
        place,
        dice.below(3) as u16,
        [0, 1, 8, 48, 1 << 20, u32::MAX][dice.below(6) as usize],
    );
    image.values = std::array::from_fn(|_| dice.any());
    slot.reply(&image);
}

fn attend(guest: &Connection, between: &Between, mut dice: Dice) {
    let Ok(Received::Message(asked)) = guest.receive_within(Duration::ZERO, PATIENCE) else {
        return;
    };
    let Ok(home) = Connection::connect_until(&between.home, Instant::now() + PATIENCE) else {
        return;
    };
    let given: Vec<BorrowedFd<'_>> = asked.descriptors.iter().map(AsFd::as_fd).collect();
    let Ok(()) = home.send(&asked.bytes, &given) else { return };
    let Ok(Received::Message(said)) = home.receive_within(Duration::ZERO, PATIENCE) else { return };
    // The memory of a lane that the guest has brought, or of the object.
    let invokes = asked.descriptors.len() == 4;
    let memory = asked.descriptors.first().or(said.descriptors.first()).and_then(mapped);
    if let Some(room) =
        memory.as_ref().filter(|_| !invokes).and_then(|memory| memory.room(0, memory.len()))
    {
        let object = between.object.get_or_init(|| {
            let mut bytes = Vec::new();
            room.append_to(&mut bytes);
            bytes
        });
        // Restore the object, which was written over for the last guest.
        let _ = room.copy_in(0, object);
    }
    if answer(guest, &said, between, &mut dice) {
        let slot = memory
            .as_ref()
            .filter(|_| invokes)
            .and_then(|memory| memory.view(0))
            .map(SingleServer::new);
        let doorbell = asked
            .descriptors
            .get(2)
            .and_then(|doorbell| Doorbell::adopt(doorbell.try_clone().ok()?).ok());
        // One in three connections leaves its guest in peace.
        let peaceful = dice.below(3) == 0;
        let end = Instant::now() + Duration::from_millis(dice.below(40));
        while Instant::now() < end && !between.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(dice.below(500)));
            if !peaceful {
                memory.iter().for_each(|memory| scribble(memory, &mut dice));
                slot.iter().for_each(|slot| reply(slot, &mut dice));
                doorbell.iter().for_each(Doorbell::notify);
            }
        }
    }
    guest.shut_down();
}

impl Between {
    /// Serves the name `evil` until the test is over.
    fn stand(&self, place: &Place, mut dice: Dice) {
        let space = upcall_os::process::pid_namespace().expect("/proc");
        let socket = format!("home.{}.{space:x}.evil", std::process::id());
        let listener = listen(&place.names().join(&socket));
        enter(&place.names(), "object.evil", &socket);
        std::thread::scope(|scope| {
            while !self.over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok(Some(guest)) => {
                        let dice = Dice::new(dice.any());
                        drop(scope.spawn(move || attend(&guest, self, dice)));
                    }
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
    }
}

fn guests_endure(ms: u64) {
    let _company = in_company();
    let place = place();
    let mut home = place.start("share honest serve");
    home.hear().expect_ok("an honest home");
    let home_socket = entered(&place.names(), "object.honest").expect("its socket");
    let zero = AtomicU64::default;
    let between = Between {
        home: home_socket,
        object: OnceLock::new(),
        over: AtomicBool::new(false),
        passed: zero(),
        bent: zero(),
    };
    let dice = Dice::thrown("a hostile home");
    std::thread::scope(|scope| {
        let _at_last = AtLast(&between.over);
        scope.spawn(|| between.stand(&place, dice));
        eventually("the hostile home stands", || {
            entered(&place.names(), "object.evil").map(drop).ok_or_else(String::new)
        });
        for way in ["kernel", "user-level"] {
            let mut guest = place.start(&format!("share evil endure {way}"));
            guest.hear().expect_ok("a guest");
            let mut other = place.start(&format!("share other-{way} serve"));
            other.hear().expect_ok("another honest home");
            // What the first use of an object leaves for later uses is no leak.
            assert_eq!(guest.ask(&format!("add-at other-{way} 2")).numbers("adding"), [2]);
            guest.ask("for 300").numbers("a first turn");
            let before = Usage::of(guest.pid());
            // A slow machine takes several turns.
            let (mut all, start) = ([0; 3], Instant::now());
            while all.contains(&0) {
                assert!(start.elapsed() < PATIENCE, "found, done, failed: {all:?}");
                let numbers = guest.ask(&format!("for {ms}")).numbers("what was endured");
                let [found, done, failed] = numbers[..] else { panic!("{numbers:?}") };
                println!(
                    "    {way} thread: found {found} times, {done} operations were done, {failed} \
                    failed"
                );
                all = [all[0] + found, all[1] + done, all[2] + failed];
            }
            eventually("the guest has everything back", || {
                let now = Usage::of(guest.pid());
                let is_back = now.descriptors <= before.descriptors && now.shared <= before.shared;
                if is_back { Ok(()) } else { Err(format!("{now:?}, before {before:?}")) }
            });
            // The guest can use an honest home afterwards.
            assert_eq!(guest.ask(&format!("add-at other-{way} 3")).numbers("adding"), [5]);
        }
    });
    let [passed, bent] =
        [&between.passed, &between.bent].map(|count| count.load(Ordering::Relaxed));
    println!("    {passed} answers were passed on, and {bent} were bent");
    assert!(passed > 0 && bent > 0);
    assert!(home.lives(), "the honest home, whose guests' memory was written over");
}

#[test]
fn guests_endure_a_home_that_breaks_its_protocol() {
    guests_endure(2000);
}

#[test]
#[ignore = "long"]
fn long_guests_endure_a_home_that_breaks_its_protocol() {
    guests_endure(60_000);
}
