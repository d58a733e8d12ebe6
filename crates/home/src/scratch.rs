//! The memory to which a handle copies an object for bulk transfer.

use std::cell::RefCell;
use std::sync::Arc;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_shm::region::Region;

/// A handle's own memory, as long as the object's, and how many of its bytes may be non-zero.
#[derive(Default)]
pub(crate) struct Scratch(RefCell<Option<(Arc<Region>, usize)>>);

impl Scratch {
    /// Returns the memory, or `None` if no memory or no descriptor is left.
    pub(crate) fn open(&self, length: usize) -> Option<Arc<Region>> {
        let mut own = self.0.borrow_mut();
        if own.is_none() {
            let file = MemoryFile::create("upcall-bulk", length).ok()?;
            *own = Some((Region::new(Mapping::shared(&file).ok()?)?, 0));
        }
        own.as_ref().map(|(region, _)| region.clone())
    }

    /// Notes that the first `length` bytes may become non-zero. Returns the previous number.
    pub(crate) fn fills(&self, length: usize) -> usize {
        self.0.borrow_mut().as_mut().map_or(0, |(_, filled)| std::mem::replace(filled, length))
    }
}
