//! Bulk transfer: an operation on a copy, which is copied back ([`Homed::bulk`]).
//!
//! Source: Psyche, section 1, which names it beside remote access and invocation (P1 here), for
//! operations that go over all of some data many times. As much of the object is copied as was ever
//! in use, into memory of the handle's own, which is kept for the next time.

use crate::error::AccessError;
use crate::homed::Homed;
use crate::object::Grant;
use crate::rules;
use crate::types::{DataError, Memory, Shared, touched};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};

impl<T: Shared> Homed<T> {
    /// Runs an operation on a copy of the object, which is copied back (bulk transfer).
    ///
    /// The object is locked during all of this.
    ///
    /// This is for operations that go over much of the data several times, so that each line moves
    /// once in each direction. It is also for operations that must happen as a whole or not at all:
    /// if the operation returns an error, or panics, the object is unchanged. It takes the time to
    /// copy twice all that was ever in use, about 0.1 ms for each MiB, and as much memory.
    /// Otherwise it is like [`access`](Self::access).
    ///
    /// # Errors
    /// See [`AccessError`]. [`DataError::Full`]: there is no memory for the copy.
    ///
    /// # Panics
    /// Panics if the operation does.
    #[track_caller]
    pub fn bulk<R>(
        &self,
        operation: impl FnOnce(T::At<'_>) -> Result<R, DataError>,
    ) -> Result<R, AccessError> {
        let (here, at_home) = (Location::caller(), self.is_home());
        rules::access(at_home, here).map_err(|broken| AccessError::Rule(Box::new(broken)))?;
        if self.grant() != Grant::ReadWrite {
            return Err(self.handle().not_granted());
        }
        let length = self.handle().length();
        let scratch = &self.handle().scratch;
        let copy = scratch
            .open(length)
            .ok_or(AccessError::Data(DataError::Full { asked: length as u64 }))?;
        let copy = copy
            .room(0, length)
            .ok_or(AccessError::Data(DataError::Full { asked: length as u64 }))?;
        let done = self.handle().access(|room| {
            let _holds = rules::hold(at_home, here);
            let outside = || DataError::Corrupt { what: "the end of what is in use", at: 0 };
            let there = touched(Memory::of::<T>(room))?;
            let before = scratch.fills(length);
            room.part(0, there)
                .zip(copy.within(0, there))
                .and_then(|(from, to)| from.copy_to(to))
                .ok_or_else(outside)?;
            if before > there {
                Memory::of::<T>(copy).spot(there).zero(before - there, "the copy")?;
            }
            let memory = Memory::of::<T>(copy);
            let run = AssertUnwindSafe(|| operation(T::at(memory.spot(0))));
            let result = match catch_unwind(run) {
                Ok(done) => done?,
                Err(panic) => return Ok(Err(panic)),
            };
            let now = touched(memory)?;
            scratch.fills(now);
            copy.part(0, now)
                .zip(room.within(0, now))
                .and_then(|(from, to)| from.copy_to(to))
                .ok_or_else(outside)?;
            Ok(Ok(result))
        })?;
        done.map_err(AccessError::Data)?.map_or_else(|panic| resume_unwind(panic), Ok)
    }
}
