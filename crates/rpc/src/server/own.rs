//! The runtime's own procedures: a client drops its hold on a resource, or fetches a result.

use super::{Call, Replied, outcome};
use crate::pace::WORDS;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use upcall_os::fault::{Point, point};
use upcall_os::memory;
use upcall_sched::give_way;
use upcall_shm::slot::{NO_ASTACK, SlotMessage, ValueLocation};
use upcall_shm::span::WritableSpan;

impl Call<'_> {
    /// The client drops its hold on a resource.
    pub(super) fn release(self) -> Replied {
        let handle = self.args.u64(0).unwrap_or(0);
        point(Point::ServerReleases);
        // The object's drop is the server's code. If it panics, the server goes on.
        let _ = catch_unwind(AssertUnwindSafe(|| self.bound.session.remove(handle)));
        self.plain(outcome::DONE)
    }

    /// The client brings a segment for a result that it had no room for.
    pub(super) fn fetch(self) -> Replied {
        let Some(mut kept) = self.args.u64(0).and_then(|key| self.bound.session.fetch(key)) else {
            return self.plain(outcome::NO_SUCH_HANDLE);
        };
        let len = kept.block.len() * 8;
        let Some(room) = self.segment.filter(|room| room.len() >= len) else {
            kept.forget();
            return self.plain(outcome::REFUSED);
        };
        let block = &mut kept.block;
        point(Point::ServerGives);
        let returns = memory::returns_to_the_kernel(len);
        // The last piece comes first, so that each piece can be freed after it was copied.
        while let Some(at) = block.len().checked_sub(1).map(|last| last / WORDS * WORDS) {
            let from = WritableSpan::of_words(&mut block[at..]);
            let _ = room.within(at * 8, from.len()).map(|to| from.copy_to(to));
            let words = block.len() - at;
            block.truncate(at);
            if returns {
                memory::discard(&mut block.spare_capacity_mut()[..words]);
            }
            give_way();
        }
        drop(mem::take(block));
        // Charged until here. A client that fetches its results may have the next one kept.
        drop(kept);
        let mut reply = SlotMessage::new(0, outcome::DONE, NO_ASTACK);
        reply.values[0] = len as u64;
        reply.place(ValueLocation::Segment, 0, 8);
        self.answer(&mut reply, len)
    }
}
