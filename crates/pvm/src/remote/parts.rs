//! Messages that are longer than one message of the group should be.
//!
//! Such a message goes in parts of [`PART`] or [`FAR_PART`] bytes. The last bytes are a message of
//! a kind of their own, with the header. Nothing else goes to that process between the parts, so
//! the receiver needs no names for them: it puts the parts into a block, which the last bytes
//! complete. A sender that gives up goes on with another message, and then the parts before are
//! dropped.

use std::cell::RefCell;
use std::ops::Range;
use upcall_message::{Message as Arrived, Payload, Rank, Writer};
use upcall_ulp::Block;

/// Length of a part, in bytes. A message of the group may have 1 GiB, all of which is in memory
/// that the processes share. Shorter in builds for tests, which send a few parts.
pub(super) const PART: usize = if cfg!(debug_assertions) { 64 << 20 } else { 512 << 20 };

/// The same for a process of another host. The group's limit may leave a member little more.
pub(super) const FAR_PART: usize = 512 << 10;

/// Size of the words in front of a part's bytes: the message's length, and the part's place in it.
const HEAD: usize = 16;

/// A part of a message: these bytes of its block.
pub(super) struct MessagePart {
    pub(super) block: Block,
    pub(super) length: usize,
    pub(super) range: Range<usize>,
}

impl Payload for MessagePart {
    type Owned = ();

    fn signature() -> String {
        "bytes".into()
    }

    fn size(&self) -> usize {
        HEAD + self.range.len()
    }

    fn write(&self, writer: &mut Writer<'_, '_>) {
        writer.word(self.length as u64);
        writer.word(self.range.start as u64);
        self.block.lent(self.length, |bytes| {
            bytes.get(self.range.clone()).into_iter().for_each(|part| writer.part(HEAD, part));
        });
    }

    fn read(_: &mut upcall_message::Reader<'_, '_>) -> Option<()> {
        None
    }
}

/// Maximum ratio of the room that is held for a message to what has arrived of it.
///
/// A part names the length of its message. With room for all of it at once, a part without contents
/// could take half an arena. A message that needs more room gets it in steps of this factor, for
/// each of which the contents so far are copied. No message of a process of this host does: the
/// longest that fits in a block has this number of parts.
const ROOM: usize = 16;

const _: () = assert!(cfg!(debug_assertions) || ROOM * PART >= Block::MOST);

/// What has arrived of a message.
#[derive(Debug)]
struct Begun {
    block: Block,
    length: usize,
    filled: usize,
}

/// There is no memory for this number of bytes. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MissingMemory(pub(super) usize);

/// The reason why a part was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoPart {
    NoMemory(MissingMemory),
    /// Its sender does not follow the protocol.
    Wrong,
}

/// Size of a block for a message of which so much has arrived, in bytes.
fn room(length: usize, arrived: usize) -> usize {
    length.min(arrived.saturating_mul(ROOM))
}

fn allocated(room: usize) -> Result<Block, NoPart> {
    Block::new(room).ok_or(NoPart::NoMemory(MissingMemory(room)))
}

impl Begun {
    /// The beginning of a message of this length, which `arrived` bytes follow.
    fn new(length: usize, arrived: usize) -> Result<Self, NoPart> {
        if length > Block::MOST {
            return Err(NoPart::Wrong);
        }
        Ok(Self { block: allocated(room(length, arrived))?, length, filled: 0 })
    }

    /// Makes room for this number of bytes in all.
    fn grow(&mut self, arrived: usize) -> Result<(), NoPart> {
        if arrived > self.block.capacity() {
            let (filled, room) = (self.filled, room(self.length, arrived));
            let copy = |from: &[u8]| {
                Block::written(room, |to| {
                    to[..filled].copy_from_slice(from);
                    Some(())
                })
            };
            let larger = self.block.lent(filled, copy).flatten();
            self.block = larger.ok_or(NoPart::NoMemory(MissingMemory(room)))?;
        }
        Ok(())
    }

    /// Appends the bytes of a message of the group, from byte `from` on. With an error nothing has
    /// changed.
    fn append(&mut self, arrived: &Arrived<'_, '_>, from: usize) -> Result<(), NoPart> {
        let more = arrived.size().checked_sub(from).ok_or(NoPart::Wrong)?;
        let filled = self.filled.checked_add(more).filter(|filled| *filled <= self.length);
        let filled = filled.ok_or(NoPart::Wrong)?;
        self.grow(filled)?;
        let mut copied = None;
        let fill =
            self.block.fill_with(self.filled, more, |to| copied = arrived.copy_out(from, to));
        fill.ok().and(copied).ok_or(NoPart::Wrong)?;
        self.filled = filled;
        Ok(())
    }
}

/// The messages of which some parts have arrived, by the rank of their sender.
#[derive(Debug)]
pub(super) struct Parts(Box<[RefCell<PartsState>]>);

/// What is known of a process's message in parts.
#[derive(Debug, Default)]
enum PartsState {
    #[default]
    None,
    Begun(Begun),
    /// Its sender does not follow the protocol.
    Lost,
}

/// The bytes of a message whose header has arrived.
#[derive(Debug)]
pub(super) enum Completion {
    /// All follow the header.
    Parcel,
    /// They are in this block, which has this length.
    Parts(Block, usize),
    /// They are not those that parts have announced.
    Lost,
}

impl Parts {
    pub(super) fn new(size: usize) -> Self {
        Self((0..size).map(|_| RefCell::default()).collect())
    }

    /// Number of bytes that are held for the message of each process.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> Vec<usize> {
        let room = |state: &RefCell<PartsState>| match &*state.borrow() {
            PartsState::Begun(begun) => begun.block.capacity(),
            PartsState::None | PartsState::Lost => 0,
        };
        self.0.iter().map(room).collect()
    }

    /// Takes a part.
    ///
    /// # Errors
    /// There is no memory for it now.
    pub(super) fn part(&self, arrived: &Arrived<'_, '_>) -> Result<(), MissingMemory> {
        let Some(state) = self.0.get(arrived.from()) else { return Ok(()) };
        let (mut begun, taken) = Self::with_part(state.take(), arrived);
        if let Err(NoPart::Wrong) = taken {
            begun = PartsState::Lost;
        }
        state.replace(begun);
        match taken {
            Err(NoPart::NoMemory(lack)) => Err(lack),
            Ok(()) | Err(NoPart::Wrong) => Ok(()),
        }
    }

    /// The state after a part, and whether it was taken.
    fn with_part(state: PartsState, arrived: &Arrived<'_, '_>) -> (PartsState, Result<(), NoPart>) {
        let words = arrived.word(0).zip(arrived.word(1));
        let (length, at) = match words {
            Some((length, at)) => (usize::try_from(length).unwrap_or(usize::MAX), at),
            None => return (PartsState::Lost, Err(NoPart::Wrong)),
        };
        let mut begun = match (state, at) {
            (_, 0) => match Begun::new(length, arrived.size().saturating_sub(HEAD)) {
                Ok(begun) => begun,
                Err(why) => return (PartsState::None, Err(why)),
            },
            (PartsState::Begun(begun), at)
                if at == begun.filled as u64 && begun.length == length =>
            {
                begun
            }
            _ => return (PartsState::Lost, Err(NoPart::Wrong)),
        };
        let taken = begun.append(arrived, HEAD);
        (PartsState::Begun(begun), taken)
    }

    /// Completes a message with its last bytes, which follow a header of `header` bytes.
    ///
    /// # Errors
    /// There is no memory for it now.
    pub(super) fn complete(
        &self,
        arrived: &Arrived<'_, '_>,
        header: usize,
    ) -> Result<Completion, MissingMemory> {
        let Some(state) = self.0.get(arrived.from()) else { return Ok(Completion::Lost) };
        let PartsState::Begun(mut begun) = state.take() else { return Ok(Completion::Lost) };
        match begun.append(arrived, header) {
            Ok(()) if begun.filled == begun.length => {
                Ok(Completion::Parts(begun.block, begun.length))
            }
            Err(NoPart::NoMemory(lack)) => {
                state.replace(PartsState::Begun(begun));
                Err(lack)
            }
            Ok(()) | Err(NoPart::Wrong) => Ok(Completion::Lost),
        }
    }

    /// Forgets what has arrived of a message whose sender has ended, or has given it up.
    #[inline]
    pub(super) fn forget(&self, rank: Rank) {
        if let Some(state) = self.0.get(rank)
            && !matches!(*state.borrow(), PartsState::None)
        {
            state.take();
        }
    }
}
