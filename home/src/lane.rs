//! The memory by which one who invokes and the home speak, and how each wakes the other.
//!
//! ```text
//!        0  slot: the request, and the reply in the same line     both, in turns
//!     4096  arguments that do not fit there                        who invokes
//!  1052672  results that do not fit there                          the home
//! ```
//! Who invokes brings it, with a bell for each side. Both sleep at posts of theirs ([`upcall_transfer::post`]). One invocation is under way at a time, so neither the buffer nor the line is ever overwritten by another one: a request is
//! there when the slot is on its lap, is taken once, and answered once (P7; the paper's one buffer for all senders needs resending for that).
//!
//! Neither side believes the other: what is in the slot is copied and then used, what lies behind it is copied by a length that was looked at.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_shm::region::{Region, Shared};
use upcall_shm::slot::{INLINE, Image, NO_ASTACK, Place, Slot};

/// The most bytes of arguments, and of results.
pub const LONGEST: usize = 1 << 20;

const ARGUMENTS: usize = 4096;
const RESULTS: usize = ARGUMENTS + LONGEST;
const ALL: usize = RESULTS + LONGEST;

/// See the module.
pub(crate) struct Lane {
    file: MemoryFile,
    region: Arc<Region>,
}

/// Which way values go.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    There,
    Back,
}

impl Way {
    fn at(self) -> usize {
        match self {
            Self::There => ARGUMENTS,
            Self::Back => RESULTS,
        }
    }
}

impl Lane {
    pub(crate) fn create() -> io::Result<Self> {
        Self::map(MemoryFile::create("upcall-lane", ALL)?)
    }

    /// One that came from who invokes.
    pub(crate) fn join(file: OwnedFd) -> Result<Self, String> {
        let file = MemoryFile::adopt(file, ALL).map_err(|error| error.to_string())?;
        Self::map(file).map_err(|error| error.to_string())
    }

    fn map(file: MemoryFile) -> io::Result<Self> {
        let region = Region::new(Mapping::shared(&file)?).ok_or_else(|| io::Error::other("a lane cannot be written"))?;
        Ok(Self { file, region })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn slot(&self) -> Shared<Slot> {
        self.region.view(0).expect("a lane begins with a slot")
    }

    /// A message with this tag and these bytes, which are no more than [`LONGEST`].
    #[inline]
    pub(crate) fn message(&self, tag: u16, bytes: &[u8], way: Way) -> Image {
        let mut image = Image::new(0, tag, NO_ASTACK);
        if bytes.is_empty() {
            return image;
        }
        let place = if bytes.len() <= INLINE {
            for (value, bytes) in image.values.iter_mut().zip(bytes.chunks(8)) {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                *value = u64::from_le_bytes(word);
            }
            Place::Inline
        } else {
            let room = self.region.room(way.at(), LONGEST).expect("a lane has room for that");
            room.copy_in(0, bytes).expect("no more than the longest");
            Place::Segment
        };
        image.place(place, 0, bytes.len() as u32);
        image
    }

    /// The bytes of a message, put at the end of `to`. `None`: it cannot be one.
    #[inline]
    pub(crate) fn bytes(&self, image: &Image, way: Way, to: &mut Vec<u8>) -> Option<()> {
        match image.values_in()? {
            Place::Inline if image.len() <= INLINE => {
                let mut bytes = [0; INLINE];
                for (bytes, value) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(image.values) {
                    *bytes = value.to_le_bytes();
                }
                to.extend_from_slice(&bytes[..image.len()]);
                Some(())
            }
            Place::Segment if image.len() <= LONGEST => {
                self.region.room(way.at(), image.len())?.append_to(to);
                Some(())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_all_lengths_arrive() {
        let lane = Lane::create().unwrap();
        for length in [0, 1, 7, 8, 47, 48, 49, 4096, LONGEST] {
            let bytes = (0..length).map(|at| at as u8).collect::<Vec<_>>();
            for way in [Way::There, Way::Back] {
                let image = lane.message(7, &bytes, way);
                let mut found = Vec::new();
                lane.bytes(&image, way, &mut found).unwrap();
                assert!(found == bytes && image.tag() == 7, "{length}");
            }
        }
        let mut image = Image::new(0, 1, NO_ASTACK);
        for (place, length) in
            [(Place::Inline, 49), (Place::Segment, LONGEST as u32 + 1), (Place::AStack, 1), (Place::Segment, u32::MAX)]
        {
            image.place(place, 0, length);
            assert!(lane.bytes(&image, Way::There, &mut Vec::new()).is_none());
        }
    }
}
