//! The memory that a caller and a home share for invocations.
//!
//! ```text
//!        0  slot: the request, and the reply in the same line     both, in turns
//!     4096  arguments that do not fit in the slot                 the caller
//!  1052672  results that do not fit in the slot                   the home
//! ```
//! The caller brings the lane, with a doorbell for each side. Both sides sleep at posts of their
//! own ([`upcall_sched::post`]). One invocation is under way at a time, so neither the buffer nor
//! the line is ever overwritten by another request. A request exists when the slot is on its lap,
//! is taken once, and is answered once. (Psyche's single slot for all senders needs requests to be
//! sent again for that: `crates/shm/src/one_slot.rs`, an experiment.)
//!
//! Neither side trusts the other. The slot is copied before it is used, and the bytes outside of it
//! are copied by a length that was checked.

use crate::wire::InvokeFailure;
use postcard::ser_flavors::Flavor;
use serde::Serialize;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_shm::region::{Region, RegionView};
use upcall_shm::slot::{INLINE, NO_ASTACK, Slot, SlotMessage, ValueLocation};
use upcall_shm::span::WritableSpan;

/// Maximum length of arguments, and of results, in bytes.
pub const LONGEST: usize = 1 << 20;

const ARGUMENTS: usize = 4096;
const RESULTS: usize = ARGUMENTS + LONGEST;
/// Length of a lane, in bytes. The home may be the first to write to the slot's page and to the
/// results.
pub(crate) const ALL: usize = RESULTS + LONGEST;

/// Tag of a reply that is the result of the operation.
pub(crate) const DONE: u16 = 0;
/// Tag of a reply that gives the reason why there is no result.
pub(crate) const FAILED: u16 = 1;

/// The memory of a lane; see the module.
pub(crate) struct InvocationLane {
    file: MemoryFile,
    region: Arc<Region>,
}

/// The direction in which values travel.
#[derive(Clone, Copy)]
pub(crate) enum LaneDirection {
    There,
    Back,
}

impl LaneDirection {
    fn at(self) -> usize {
        match self {
            Self::There => ARGUMENTS,
            Self::Back => RESULTS,
        }
    }
}

impl InvocationLane {
    pub(crate) fn create() -> io::Result<Self> {
        Self::map(MemoryFile::create("upcall-lane", ALL)?)
    }

    /// Maps a lane that a caller has brought.
    pub(crate) fn join(file: OwnedFd) -> Result<Self, String> {
        let file = MemoryFile::adopt(file, ALL).map_err(|error| error.to_string())?;
        Self::map(file).map_err(|error| error.to_string())
    }

    fn map(file: MemoryFile) -> io::Result<Self> {
        let region = Region::new(Mapping::shared(&file)?)
            .ok_or_else(|| io::Error::other("a lane cannot be written"))?;
        Ok(Self { file, region })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn slot(&self) -> RegionView<Slot> {
        self.region.view(0).expect("a lane begins with a slot")
    }

    /// Encodes a message with this tag and value, and does not send it.
    ///
    /// The value is encoded in the slot or, if it does not fit there, in the lane's own memory.
    #[inline]
    pub(crate) fn message(
        &self,
        tag: u16,
        value: &impl Serialize,
        way: LaneDirection,
    ) -> Result<SlotMessage, MessageError> {
        let mut image = SlotMessage::new(0, tag, NO_ASTACK);
        let mut short = [0; INLINE];
        match postcard::to_slice(value, &mut short).map(|used| used.len()) {
            Ok(0) => {}
            Ok(length) => {
                for (value, bytes) in image.values.iter_mut().zip(short.as_chunks::<8>().0) {
                    *value = u64::from_le_bytes(*bytes);
                }
                image.place(ValueLocation::Inline, 0, length as u32);
            }
            Err(postcard::Error::SerializeBufferFull) => {
                image.place(ValueLocation::Segment, 0, self.write(value, way)? as u32)
            }
            Err(error) => return Err(MessageError::Unencodable(error)),
        }
        Ok(image)
    }

    /// The reply that gives the reason why there is no result.
    #[cold]
    pub(crate) fn failed(&self, failure: &InvokeFailure) -> SlotMessage {
        let said = self.message(FAILED, failure, LaneDirection::Back).or_else(|_| {
            let shorter =
                InvokeFailure::Said("it failed, with a text that is too long to send".into());
            self.message(FAILED, &shorter, LaneDirection::Back)
        });
        // A reply without values is not valid, which the caller notices.
        said.unwrap_or_else(|_| SlotMessage::new(0, FAILED, NO_ASTACK))
    }

    /// Encodes a value in the lane's own memory. Returns the number of bytes that it takes.
    fn write(&self, value: &impl Serialize, way: LaneDirection) -> Result<usize, MessageError> {
        let room = self.region.room(way.at(), LONGEST).expect("a lane has room for that");
        match postcard::serialize_with_flavor(value, Writing { room, length: 0 }) {
            Ok(bytes) if bytes > LONGEST => Err(MessageError::TooLong { bytes }),
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(MessageError::Unencodable(error)),
        }
    }

    /// Writes a message with this tag, whose value is encoded already, and does not send it.
    /// Returns `None` if it is too long.
    pub(crate) fn raw(&self, tag: u16, bytes: &[u8], way: LaneDirection) -> Option<SlotMessage> {
        let mut image = SlotMessage::new(0, tag, NO_ASTACK);
        if bytes.len() > LONGEST {
            return None;
        }
        if bytes.len() > INLINE {
            self.region.room(way.at(), bytes.len())?.copy_in(0, bytes)?;
            image.place(ValueLocation::Segment, 0, bytes.len() as u32);
        } else if !bytes.is_empty() {
            let mut short = [0; INLINE];
            short[..bytes.len()].copy_from_slice(bytes);
            for (value, bytes) in image.values.iter_mut().zip(short.as_chunks::<8>().0) {
                *value = u64::from_le_bytes(*bytes);
            }
            image.place(ValueLocation::Inline, 0, bytes.len() as u32);
        }
        Some(image)
    }

    /// Copies the bytes of a message to `copy`. Returns `None` if the message is not valid.
    #[inline]
    pub(crate) fn bytes<'a>(
        &self,
        image: &SlotMessage,
        way: LaneDirection,
        copy: &'a mut MessageBuffer,
    ) -> Option<&'a [u8]> {
        match image.values_in()? {
            ValueLocation::Inline if image.len() <= INLINE => {
                for (bytes, value) in copy.short.as_chunks_mut::<8>().0.iter_mut().zip(image.values)
                {
                    *bytes = value.to_le_bytes();
                }
                Some(&copy.short[..image.len()])
            }
            ValueLocation::Segment if image.len() <= LONGEST => {
                copy.long.clear();
                self.region.room(way.at(), image.len())?.append_to(&mut copy.long);
                Some(&copy.long)
            }
            _ => None,
        }
    }
}

/// Why a value could not be encoded as a message.
#[derive(Debug)]
pub(crate) enum MessageError {
    TooLong { bytes: usize },
    Unencodable(postcard::Error),
}

/// Private copies of messages' bytes, one after the other in the same memory.
pub(crate) struct MessageBuffer {
    short: [u8; INLINE],
    long: Vec<u8>,
}

impl MessageBuffer {
    /// Uses this memory for messages that do not fit in a slot.
    #[inline]
    pub(crate) fn with(long: Vec<u8>) -> Self {
        Self { short: [0; INLINE], long }
    }

    /// Returns that memory.
    #[inline]
    pub(crate) fn long(self) -> Vec<u8> {
        self.long
    }
}

/// An encoding under way, of which nothing is ever read back. It also counts bytes beyond the end.
struct Writing<'a> {
    room: WritableSpan<'a>,
    length: usize,
}

impl Flavor for Writing<'_> {
    type Output = usize;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        let _ = self.room.put_u8(self.length, byte);
        self.length += 1;
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        let _ = self.room.copy_in(self.length, bytes);
        self.length += bytes.len();
        Ok(())
    }

    fn finalize(self) -> postcard::Result<usize> {
        Ok(self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_all_lengths_arrive() {
        let (lane, mut copy) = (InvocationLane::create().unwrap(), MessageBuffer::with(Vec::new()));
        for length in [0, 1, 7, 8, 46, 47, 48, 49, 4096, LONGEST - 3] {
            let value = (0..length).map(|at| at as u8).collect::<Vec<_>>();
            for way in [LaneDirection::There, LaneDirection::Back] {
                let image = lane.message(7, &value, way).unwrap();
                let bytes = lane.bytes(&image, way, &mut copy).unwrap();
                assert!(
                    postcard::from_bytes::<Vec<u8>>(bytes).unwrap() == value && image.tag() == 7,
                    "{length}"
                );
            }
        }
        let image = lane.message(7, &(), LaneDirection::There).unwrap();
        assert_eq!(lane.bytes(&image, LaneDirection::There, &mut copy), Some(&[][..]));
    }

    #[test]
    fn what_is_too_long_is_counted_to_its_end() {
        let lane = InvocationLane::create().unwrap();
        for value in [vec![7_u8; LONGEST - 2], vec![7; LONGEST], vec![7; 3 * LONGEST]] {
            match lane.message(7, &value, LaneDirection::There) {
                Err(MessageError::TooLong { bytes }) => {
                    assert!(bytes == value.len() + 3 || bytes == value.len() + 4, "{bytes}")
                }
                other => panic!("{:?}", other.map(|image| image.len())),
            }
            let text = "x".repeat(value.len());
            assert!(matches!(
                lane.message(7, &text, LaneDirection::Back),
                Err(MessageError::TooLong { bytes }) if bytes > LONGEST
            ));
        }
    }

    #[test]
    fn what_cannot_be_a_message_is_none() {
        let (lane, mut copy) = (InvocationLane::create().unwrap(), MessageBuffer::with(Vec::new()));
        let mut image = SlotMessage::new(0, 1, NO_ASTACK);
        for (place, length) in [
            (ValueLocation::Inline, 49),
            (ValueLocation::Segment, LONGEST as u32 + 1),
            (ValueLocation::AStack, 1),
            (ValueLocation::Segment, u32::MAX),
        ] {
            image.place(place, 0, length);
            assert!(lane.bytes(&image, LaneDirection::There, &mut copy).is_none());
        }
    }
}
