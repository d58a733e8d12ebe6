//! The messages of collective operations: how they are written, and how those of a peer are
//! checked.
//!
//! ```text
//! bytes 0..8    the operation's number, from 1
//! bytes 8..16   the call: operation, type of the items, root (call.rs)
//! bytes 16..24  number of blocks
//! then for each block, in ascending order of keys:
//!               its key (two ranks of 4 bytes), and its size in bytes
//! then          the blocks' items, one block after the other, to the end of the message
//! ```
//! All numbers are little-endian.
//!
//! A receiver copies a message and checks the copy: each key names members, no key comes twice, and
//! the sizes add up to that of the message. So a count or size that a peer has made up costs no
//! more memory than the message itself.

use crate::collectives::call::CollectiveCall;
use crate::collectives::element::Element;
use crate::collectives::plan::BlockKey;
use crate::payload::{Payload, Reader, Writer};
use crate::{Number, Rank};
use std::ops::Range;

/// Size of the head, in bytes.
pub(crate) const HEAD: usize = 24;

/// Size of the description of a block, in bytes.
pub(crate) const DESCRIPTION: usize = 16;

/// The operation to which a message belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CollectiveHead {
    pub(crate) number: u64,
    pub(crate) call: CollectiveCall,
}

impl CollectiveHead {
    /// Reads the head of a message. `None` if it names no operation of a group of `size` members.
    pub(crate) fn read(bytes: &[u8; HEAD], size: usize) -> Option<Self> {
        let (words, _) = bytes.as_chunks();
        let [number, call, _] = [0, 1, 2].map(|at| u64::from_le_bytes(words[at]));
        let call = CollectiveCall::from_word(call, size)?;
        (number > 0).then_some(Self { number, call })
    }
}

/// The reason why a message was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartError {
    /// Its sender breaks the protocol.
    Malformed(&'static str),
    NoMemory,
}

/// A message that was copied and checked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CollectivePart {
    pub(crate) from: Rank,
    pub(crate) call: CollectiveCall,
    bytes: Vec<u8>,
    blocks: Vec<(BlockKey, Range<usize>)>,
}

impl CollectivePart {
    /// Checks the copy of a message, whose head was read before.
    pub(crate) fn check(
        from: Rank,
        call: CollectiveCall,
        bytes: Vec<u8>,
        size: usize,
    ) -> Result<Self, PartError> {
        let word = |at: usize| {
            bytes.get(at..at + 8).map_or(0, |word| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                u64::from_le_bytes(bytes)
            })
        };
        let most = bytes.len().saturating_sub(HEAD) / DESCRIPTION;
        let count = usize::try_from(word(16)).ok().filter(|count| *count <= most);
        let count = count.ok_or(PartError::Malformed("more blocks than there is room for"))?;
        let mut blocks: Vec<(BlockKey, Range<usize>)> = Vec::new();
        blocks.try_reserve_exact(count).map_err(|_| PartError::NoMemory)?;
        let mut begin = HEAD + count * DESCRIPTION;
        for at in (0..count).map(|block| HEAD + block * DESCRIPTION) {
            let key = word(at);
            let key = ((key & 0xffff_ffff) as Rank, (key >> 32) as Rank);
            if key.0 >= size || key.1 >= size {
                return Err(PartError::Malformed("a block of a member that does not exist"));
            }
            if blocks.last().is_some_and(|(last, _)| *last >= key) {
                return Err(PartError::Malformed("blocks out of order"));
            }
            let end = usize::try_from(word(at + 8)).ok().and_then(|len| begin.checked_add(len));
            let end = end.filter(|end| *end <= bytes.len());
            let end = end.ok_or(PartError::Malformed("a block beyond its end"))?;
            if !(end - begin).is_multiple_of(call.width()) {
                return Err(PartError::Malformed("a block that ends within an item"));
            }
            blocks.push((key, begin..end));
            begin = end;
        }
        if begin != bytes.len() {
            return Err(PartError::Malformed("more than its blocks"));
        }
        let items = bytes.get(HEAD + count * DESCRIPTION..).unwrap_or_default();
        if call.item == Number::Bool && items.iter().any(|item| *item > 1) {
            return Err(PartError::Malformed("an item that is no bool"));
        }
        Ok(Self { from, call, bytes, blocks })
    }

    /// The keys of its blocks.
    pub(crate) fn keys(&self) -> impl Iterator<Item = BlockKey> {
        self.blocks.iter().map(|(key, _)| *key)
    }

    /// The items of a block, as bytes.
    pub(crate) fn block(&self, at: usize) -> &[u8] {
        self.blocks.get(at).and_then(|(_, range)| self.bytes.get(range.clone())).unwrap_or_default()
    }
}

/// The items of a block that is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BlockItems<'a, T> {
    Items(&'a [T]),
    Bytes(&'a [u8]),
}

impl<T: Element> BlockItems<'_, T> {
    fn bytes(self) -> usize {
        match self {
            Self::Items(items) => size_of_val(items),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    fn write(self, writer: &mut Writer<'_, '_>, mut at: usize) {
        const PIECE: usize = 4096;
        match self {
            Self::Bytes(bytes) => writer.part(at, bytes),
            Self::Items(items) => {
                let (mut piece, width) = ([0; PIECE], size_of::<T>());
                for items in items.chunks(PIECE / width) {
                    let piece = &mut piece[..size_of_val(items)];
                    for (to, item) in piece.chunks_exact_mut(width).zip(items) {
                        item.put(to);
                    }
                    writer.part(at, piece);
                    at += piece.len();
                }
            }
        }
    }
}

/// A message that is sent.
#[derive(Debug)]
pub(crate) struct OutgoingPart<'a, T> {
    pub(crate) head: CollectiveHead,
    /// In ascending order of keys.
    pub(crate) blocks: Vec<(BlockKey, BlockItems<'a, T>)>,
}

impl<T: Element> OutgoingPart<'_, T> {
    /// The head, and the descriptions of the blocks.
    fn description(&self) -> Vec<u8> {
        let head = [self.head.number, self.head.call.word(), self.blocks.len() as u64];
        let blocks = self.blocks.iter().flat_map(|((first, second), items)| {
            [*first as u64 | (*second as u64) << 32, items.bytes() as u64]
        });
        head.into_iter().chain(blocks).flat_map(u64::to_le_bytes).collect()
    }
}

impl<T: Element> Payload for OutgoingPart<'_, T> {
    type Owned = ();

    fn signature() -> String {
        String::new()
    }

    fn size(&self) -> usize {
        let items: usize = self.blocks.iter().map(|(_, items)| items.bytes()).sum();
        HEAD + self.blocks.len() * DESCRIPTION + items
    }

    fn write(&self, writer: &mut Writer<'_, '_>) {
        let description = self.description();
        writer.part(0, &description);
        let mut at = description.len();
        for (_, items) in &self.blocks {
            items.write(writer, at);
            at += items.bytes();
        }
    }

    fn read(_: &mut Reader<'_, '_>) -> Option<()> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::call::Collective;
    use crate::collectives::hosts::tests::Rolls;

    const CALL: CollectiveCall =
        CollectiveCall { collective: Collective::Gather, item: Number::U16, root: 1 };

    fn message(blocks: Vec<(BlockKey, BlockItems<'_, u16>)>) -> Vec<u8> {
        let part = OutgoingPart { head: CollectiveHead { number: 9, call: CALL }, blocks };
        let mut bytes = part.description();
        for (_, items) in &part.blocks {
            match items {
                BlockItems::Items(items) => {
                    bytes.extend(items.iter().flat_map(|item| item.to_le_bytes()));
                }
                BlockItems::Bytes(more) => bytes.extend(*more),
            }
        }
        assert_eq!(bytes.len(), part.size());
        bytes
    }

    fn good() -> Vec<u8> {
        message(vec![
            ((0, 3), BlockItems::Items(&[1, 2, 3])),
            ((1, 0), BlockItems::Bytes(&[])),
            ((1, 2), BlockItems::Bytes(&[4, 0])),
        ])
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let bytes = good();
        let head = CollectiveHead::read(bytes.first_chunk().unwrap(), 4);
        assert_eq!(head, Some(CollectiveHead { number: 9, call: CALL }));
        let part = CollectivePart::check(2, CALL, bytes, 4).unwrap();
        assert_eq!(part.keys().collect::<Vec<_>>(), [(0, 3), (1, 0), (1, 2)]);
        assert_eq!([0, 1, 2, 3].map(|at| part.block(at).len()), [6, 0, 2, 0]);
        assert_eq!(u16::get(&part.block(0)[4..]), 3);
    }

    #[test]
    fn counts_sizes_and_ranks_that_a_peer_made_up_are_refused() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good();
            change(&mut bytes);
            match CollectivePart::check(2, CALL, bytes, 4) {
                Err(PartError::Malformed(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        let set = |at: usize, word: u64| {
            move |bytes: &mut Vec<u8>| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes())
        };
        let room = "more blocks than there is room for";
        for count in [u64::MAX, 1 << 60, 5] {
            assert_eq!(refused(&set(16, count)), room);
        }
        assert_eq!(refused(&set(24, 4)), "a block of a member that does not exist");
        assert_eq!(refused(&set(24, u64::MAX)), "a block of a member that does not exist");
        assert_eq!(refused(&set(40, 0)), "blocks out of order");
        assert_eq!(refused(&set(56, 1)), "blocks out of order");
        for size in [u64::MAX, u64::MAX - 70, 10] {
            assert_eq!(refused(&set(32, size)), "a block beyond its end");
        }
        assert_eq!(refused(&set(32, 5)), "a block that ends within an item");
        assert_eq!(refused(&set(32, 4)), "more than its blocks");
        assert_eq!(refused(&|bytes| bytes.push(0)), "more than its blocks");
        assert_eq!(refused(&|bytes| bytes.truncate(HEAD + 20)), room);
        let flags = CollectiveCall { item: Number::Bool, ..CALL };
        let no_bool = CollectivePart::check(2, flags, good(), 4).unwrap_err();
        assert_eq!(no_bool, PartError::Malformed("an item that is no bool"));
    }

    #[test]
    fn no_bytes_make_it_panic_or_reserve_more_than_they_have() {
        let mut rolls = Rolls(3);
        for _ in 0..20_000 {
            let mut bytes = good();
            for _ in 0..=rolls.roll(3) {
                let at = rolls.roll(bytes.len());
                bytes[at] = [0, 1, 0x7f, 0xff, rolls.roll(256) as u8][rolls.roll(5)];
            }
            bytes.truncate(HEAD + rolls.roll(bytes.len() - HEAD + 1));
            let head = CollectiveHead::read(bytes.first_chunk().unwrap(), 4);
            let len = bytes.len();
            if let (Some(head), Ok(part)) = (head, CollectivePart::check(2, CALL, bytes, 4)) {
                assert!(head.number > 0 && part.blocks.capacity() * DESCRIPTION <= len);
            }
        }
    }
}
