//! A hostile client's control connection: messages that are correct but for one thing, in any
//! order, and some that are not messages.

use super::requests::number;
use crate::dice::Dice;
use crate::speech::{Hold, Request, Speaker, ToServer, VERSION, bind_all};
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, OwnedFd};
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::MemoryFile;
use upcall_shm::channel;
use upcall_shm::station::Station;

/// Memory that the process passes with many messages. It is large, so it is made once.
pub(super) struct Goods {
    channel: MemoryFile,
    station: Station,
}

impl Goods {
    pub(super) fn new() -> std::io::Result<Self> {
        let channel = MemoryFile::create("upcall-channel", channel::BYTES)?;
        Ok(Self { channel, station: Station::new()? })
    }

    /// A descriptor of some kind.
    fn any(&self, len: u64, dice: &mut Dice) -> Option<OwnedFd> {
        let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().ok();
        match dice.below(10) {
            0 => copy(self.channel.as_fd()),
            1 => copy(self.station.as_fd()),
            2 => copy(Doorbell::new().ok()?.as_fd()),
            3 => std::fs::File::open("/dev/null").ok().map(OwnedFd::from),
            4 => std::io::pipe().ok().map(|(reader, _)| reader.into()),
            5 => memory(len, SealFlags::from_bits_retain(dice.below(32) as u32)),
            6 => filled(len.min(1 << 20) as usize),
            _ => memory(len, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW),
        }
    }
}

/// Memory for a segment.
fn filled(len: usize) -> Option<OwnedFd> {
    let (file, _map) = MemoryFile::create_filled("hostile", len).ok()?;
    file.as_fd().try_clone_to_owned().ok()
}

fn memory(len: u64, seals: SealFlags) -> Option<OwnedFd> {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .ok()?;
    rustix::fs::ftruncate(&fd, len.min(1 << 40)).ok()?;
    rustix::fs::fcntl_add_seals(&fd, seals).ok()?;
    Some(fd)
}

fn any_text(dice: &mut Dice) -> String {
    let len = [0, 1, 64, 65, 200][dice.below(5) as usize];
    (0..len).map(|_| char::from_u32(dice.below(0x800) as u32).unwrap_or('?')).collect()
}

/// A message, and the length of the memory that it refers to.
fn any_request(dice: &mut Dice) -> (Request, u64) {
    let small = |dice: &mut Dice| {
        if dice.below(4) == 0 { number(dice) as u16 } else { dice.below(6) as u16 }
    };
    match dice.below(18) {
        0 => (
            Request::Open { version: if dice.below(2) == 0 { VERSION } else { dice.any() as u32 } },
            channel::BYTES as u64,
        ),
        1..=4 => {
            let mut procedures = vec![(
                "add".to_string(),
                dice.any(),
                "add: func(a: u32, b: u32) -> u32".to_string(),
            )];
            if dice.below(4) != 0 {
                let known = &crate::interfaces::small::INTERFACE.procedures[0];
                procedures =
                    vec![(known.name.to_string(), known.hash, known.signature.to_string())];
            }
            if dice.below(8) == 0 {
                procedures.resize(
                    [0, 3, 1001][dice.below(3) as usize],
                    (any_text(dice), dice.any(), String::new()),
                );
            }
            let name = if dice.below(4) == 0 { any_text(dice) } else { "trial.small".into() };
            let interface =
                if dice.below(8) == 0 { any_text(dice) } else { "upcall:tests/small@1.0.0".into() };
            let len = crate::interfaces::trial::INTERFACE.plan().bytes();
            let some = [0, len as u32, number(dice) as u32][dice.below(3) as usize];
            let mut request =
                Request::Bind { id: small(dice), name, interface, procedures, stacks: some };
            // An interface that has A-stacks.
            if dice.below(4) == 0 {
                request = bind_all(small(dice), "trial", &crate::interfaces::trial::INTERFACE);
                let Request::Bind { stacks, .. } = &mut request else { unreachable!() };
                *stacks = some;
            }
            (request, len as u64)
        }
        5 => (Request::Unbind { id: if dice.below(8) == 0 { 0 } else { small(dice).max(1) } }, 0),
        6 => {
            let vp = (dice.below(2) == 0).then(|| number(dice) as u16);
            (Request::OpenLane { number: number(dice) as u16, vp }, 64)
        }
        7..=11 => {
            let len = if dice.below(4) == 0 { number(dice) } else { 1 << (12 + dice.below(8)) };
            (Request::Segment { number: small(dice), len }, len)
        }
        12..=14 => (Request::DropSegment { number: small(dice) }, 0),
        15 | 16 => {
            // Some binding may have A-stacks of this length.
            (
                Request::Stacks { id: small(dice) },
                crate::interfaces::trial::INTERFACE.plan().bytes() as u64,
            )
        }
        _ => {
            ([Request::List, Request::Tallies, Request::Stalled][dice.below(3) as usize].clone(), 0)
        }
    }
}

/// Sends something on a connection. Without `fatal`, it is nothing that certainly closes the
/// connection.
pub(super) fn say(speaker: &Speaker, goods: &Goods, fatal: bool, dice: &mut Dice) {
    let (mut request, len) = any_request(dice);
    if !fatal && matches!(request, Request::OpenLane { .. }) {
        request = Request::List;
    }
    let len = if dice.below(4) == 0 { number(dice) % (1 << 24) } else { len };
    let wanted = match &request {
        Request::Open { .. } => 2,
        Request::Bind { stacks: 1.., .. } | Request::Stacks { .. } | Request::Segment { .. } => 1,
        Request::OpenLane { vp: Some(_), .. } => 1,
        _ => 0,
    };
    let count = if dice.below(4) == 0 { dice.below(9) } else { wanted };
    let owned: Vec<OwnedFd> = (0..count).filter_map(|_| goods.any(len, dice)).collect();
    let descriptors: Vec<_> = owned.iter().map(AsFd::as_fd).collect();
    let Ok(mut bytes) = postcard::to_stdvec(&ToServer { serial: dice.any() as u32, request })
    else {
        return;
    };
    if fatal {
        for _ in 0..dice.below(4) {
            let at = dice.below(bytes.len() as u64) as usize;
            bytes[at] = dice.any() as u8;
        }
        if dice.below(4) == 0 {
            bytes.truncate(dice.below(bytes.len() as u64) as usize + 1);
        }
        if dice.below(8) == 0 {
            let len = 1 + dice.below(300) as usize;
            bytes = dice.bytes(len);
        }
    }
    // If the connection is full, the message is dropped: a hostile client does not wait for the
    // server to read.
    let _ = speaker.0.send(&bytes, &descriptors);
}

/// Length of the segment with number 1, in bytes.
pub(super) const SEGMENT: usize = 1 << 20;

/// Brings a segment of the same number again, so that there usually is one. Returns its file.
pub(super) fn renew_segment(hold: &Hold) -> Option<OwnedFd> {
    let file = filled(SEGMENT)?;
    hold.speaker.tell(Request::Segment { number: 1, len: SEGMENT as u64 }, &[file.as_fd()]);
    Some(file)
}
