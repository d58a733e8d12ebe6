//! Messages that are longer than one message of the group should be.
//!
//! Such a message goes in parts of [`PART`] bytes. The last bytes are a message of a kind of their
//! own, with the header. Nothing else goes to that process between the parts, so the receiver needs
//! no names for them: it puts the parts into a block, which the last bytes complete. A sender that
//! gives up goes on with another message, and then the parts before are dropped.

use std::cell::RefCell;
use std::ops::Range;
use upcall_message::{Message as Arrived, Payload, Rank, Writer};
use upcall_ulp::Block;

/// Length of a part, in bytes. A message of the group may have 1 GiB, all of which is in memory
/// that the processes share. Shorter in builds for tests, which send a few parts.
pub(super) const PART: usize = if cfg!(debug_assertions) { 64 << 20 } else { 512 << 20 };

/// Size of the words in front of a part's bytes: the message's length, and the part's place in it.
const HEAD: usize = 16;

/// Size of the copies from shared memory into a block, in bytes.
const PIECE: usize = 256 << 10;

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

/// What has arrived of a message.
#[derive(Debug)]
struct Begun {
    block: Block,
    length: usize,
    filled: usize,
}

impl Begun {
    /// Appends the bytes of a message of the group, from byte `from` on.
    fn append(&mut self, arrived: &Arrived<'_, '_>, from: usize) -> Option<()> {
        let end = arrived.size();
        let fits = end.checked_sub(from).is_some_and(|more| more <= self.length - self.filled);
        fits.then_some(())?;
        let mut piece = Vec::new();
        piece.try_reserve_exact(PIECE).ok()?;
        for at in (from..end).step_by(PIECE) {
            piece.resize(PIECE.min(end - at), 0);
            arrived.copy_out(at, &mut piece)?;
            self.block.fill(self.filled, &piece).ok()?;
            self.filled += piece.len();
        }
        Some(())
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
    /// There was no memory for it, or its sender does not follow the protocol.
    Lost,
}

/// The bytes of a message whose header has arrived.
#[derive(Debug)]
pub(super) enum Completion {
    /// All follow the header.
    Parcel,
    /// They are in this block, which has this length.
    Parts(Block, usize),
    Lost,
}

impl Parts {
    pub(super) fn new(size: usize) -> Self {
        Self((0..size).map(|_| RefCell::default()).collect())
    }

    /// Takes a part.
    pub(super) fn part(&self, arrived: &Arrived<'_, '_>) {
        let Some(state) = self.0.get(arrived.from()) else { return };
        let begun = Self::with_part(state.take(), arrived);
        state.replace(begun.map_or(PartsState::Lost, PartsState::Begun));
    }

    fn with_part(state: PartsState, arrived: &Arrived<'_, '_>) -> Option<Begun> {
        let length = usize::try_from(arrived.word(0)?).ok()?;
        let mut begun = match (state, arrived.word(1)?) {
            (_, 0) => Begun { block: Block::new(length)?, length, filled: 0 },
            (PartsState::Begun(begun), at) if at == begun.filled as u64 => begun,
            _ => return None,
        };
        (begun.length == length).then_some(())?;
        begun.append(arrived, HEAD)?;
        Some(begun)
    }

    /// Completes a message with its last bytes, which follow a header of `header` bytes.
    pub(super) fn complete(&self, arrived: &Arrived<'_, '_>, header: usize) -> Completion {
        match self.0.get(arrived.from()).map(RefCell::take).unwrap_or_default() {
            PartsState::None | PartsState::Lost => Completion::Lost,
            PartsState::Begun(mut begun) => match begun.append(arrived, header) {
                Some(()) if begun.filled == begun.length => {
                    Completion::Parts(begun.block, begun.length)
                }
                _ => Completion::Lost,
            },
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
