//! Holes that a hostile client punches into memory which it shares with the server.
//!
//! A hole takes pages away while both sides have them mapped. What was written there is lost, and
//! the next access by either side finds zeros. The kernel permits holes in a channel and in
//! A-stacks. It refuses them in files with `F_SEAL_FUTURE_WRITE`: stations, and segments that the
//! server has accepted.

use super::words::SEGMENT;
use crate::dice::Dice;
use crate::interfaces::trial;
use crate::speech::{Answer, Came, Hold, Request, Speaker, VERSION, bind_all, plan};
use rustix::fs::FallocateFlags;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use upcall_os::bell::Bell;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_shm::channel::{self, Channel};
use upcall_shm::region::Region;
use upcall_shm::station::Station;

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// The descriptors of a channel's memory, which [`Hold::new`] closes once the memory is mapped.
pub(super) struct Files {
    pub(super) channel: MemoryFile,
    pub(super) astacks: MemoryFile,
    segment: MemoryFile,
    /// The station of the server's domain.
    station: OwnedFd,
}

impl Files {
    /// The files that have a seal against holes, with what each is.
    pub(super) fn sealed<'a>(&'a self, hold: &'a Hold) -> [(&'static str, BorrowedFd<'a>); 3] {
        [
            ("a segment that the server has accepted", self.segment.as_fd()),
            ("the server's station", self.station.as_fd()),
            ("the client's station", hold.station.as_fd()),
        ]
    }
}

/// Opens a channel as [`Hold::new`] does, and keeps the descriptors.
///
/// # Errors
/// The server or the kernel refused.
pub(super) fn open(socket: &Path) -> io::Result<(Hold, Files)> {
    let (speaker, own_station) = (Speaker::connect(socket)?, Station::new()?);
    let (channel_file, channel) = shared("upcall-channel", channel::BYTES)?;
    Channel::create(channel.clone()).map_err(io::Error::other)?;
    let opened = speaker.ask(Request::Open { version: VERSION }, &[channel_file.as_fd(), own_station.as_fd()]);
    let Came::Answer(Answer::Opened { .. }, descriptors) = opened else { return Err(other("a channel", &opened)) };
    let [station, bell] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| io::Error::other("descriptors"))?;
    let bound = speaker.ask(bind_all(0, "trial", &trial::INTERFACE), &[]);
    let Came::Answer(Answer::Bound { procedures }, _) = bound else { return Err(other("a binding", &bound)) };
    let plan = plan(&procedures);
    let (astacks_file, astacks) = shared("upcall-astacks", plan.bytes())?;
    give(&speaker, Request::Stacks { id: 0 }, &astacks_file)?;
    let (segment_file, segment) = MemoryFile::create_filled("upcall-segment", SEGMENT)?;
    let segment = Region::new(segment).ok_or_else(|| io::Error::other("read-only"))?;
    give(&speaker, Request::Segment { number: 1, len: SEGMENT as u64 }, &segment_file)?;
    speaker.tell(Request::OpenLane { number: 0, vp: None }, &[]);
    let numbers = procedures.iter().map(|&(number, ..)| number).collect();
    let stacks = plan.classes().iter().map(|class| usize::from(class.count)).sum();
    let server_bell = Bell::adopt(bell)?;
    let hold = Hold { speaker, channel, astacks, segment, station: own_station, server_bell, numbers, stacks };
    Ok((hold, Files { channel: channel_file, astacks: astacks_file, segment: segment_file, station }))
}

/// Makes memory that both sides write, and maps it.
fn shared(name: &str, len: usize) -> io::Result<(MemoryFile, Arc<Region>)> {
    let file = MemoryFile::create(name, len)?;
    let region = Region::new(Mapping::shared(&file)?).ok_or_else(|| io::Error::other("read-only"))?;
    Ok((file, region))
}

/// Asks the server to map memory.
fn give(speaker: &Speaker, request: Request, file: &MemoryFile) -> io::Result<()> {
    match speaker.ask(request, &[file.as_fd()]) {
        Came::Answer(Answer::Mapped, _) => Ok(()),
        came => Err(other("mapped memory", &came)),
    }
}

fn other(wanted: &str, came: &Came) -> io::Error {
    io::Error::other(format!("wanted {wanted}: {came:?}"))
}

/// Punches a hole of one page, or of all pages from some page on. Returns `true` if the kernel made
/// the hole.
pub(super) fn punch(file: BorrowedFd<'_>, within: Range<usize>, dice: &mut Dice) -> bool {
    let pages = within.len().div_ceil(PAGE) as u64;
    let first = dice.below(pages);
    let count = if dice.below(4) == 0 { pages - first } else { 1 };
    let (at, len) = (within.start as u64 + first * PAGE as u64, count * PAGE as u64);
    rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len).is_ok()
}
