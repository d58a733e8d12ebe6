//! Reads without the lock, by the object's sequence number.

use super::{BusyGuard, Handle, ObjectLocation};
use crate::away::{GrantedMemory, RemoteObject};
use crate::body::{BodyState, Readable};
use crate::error::AccessError;
use crate::waiting;
use std::time::Instant;
use upcall_shm::sequence;
use upcall_shm::span::Span;

/// Maximum number of reads that are tried before other threads get the processor.
const LOOKS: u32 = 64;

impl Handle {
    /// Runs an operation that only reads the object, in place and without the lock.
    ///
    /// The operation writes nothing that others see, so any number of reads can run at once. If the
    /// object has changed during the operation, the operation is run again. So it may run several
    /// times, and may find a mixture of two states, but the result that is returned belongs to one
    /// state. A panic in it is a panic, even if it found a mixture.
    ///
    /// Where changes leave no time for a read, this waits for the lock as other operations do, if
    /// the handle may take it.
    ///
    /// # Errors
    /// See [`AccessError`].
    ///
    /// # Blocking
    /// Blocks the thread while the object is being changed.
    #[inline]
    pub fn read<R>(&self, mut operation: impl FnMut(Span<'_>) -> R) -> Result<R, AccessError> {
        let busy = self.enter()?;
        let tried = match &self.side {
            ObjectLocation::Home(object, _) => Self::try_read(&object.body, &mut operation),
            ObjectLocation::Away(away) if away.has_ended() => return Err(Self::ended(away)),
            ObjectLocation::Away(RemoteObject { memory: GrantedMemory::Body(body, _), .. }) => {
                Self::try_read(body, &mut operation)
            }
            ObjectLocation::Away(RemoteObject { memory: GrantedMemory::View(view), .. }) => {
                Self::try_read(view, &mut operation)
            }
            ObjectLocation::Away(RemoteObject { memory: GrantedMemory::None, .. }) => {
                return Err(AccessError::NotGranted);
            }
            ObjectLocation::Far(_) => return Err(AccessError::OtherHost),
        };
        tried.map_or_else(|| self.read_at_last(busy, operation), Ok)
    }

    /// Tries one read. Returns `None` if the object is being changed, has changed during the read,
    /// or is not whole.
    #[inline]
    fn try_read<R>(
        memory: &(impl Readable + ?Sized),
        operation: &mut impl FnMut(Span<'_>) -> R,
    ) -> Option<R> {
        let began = sequence::look(memory.word())?;
        if memory.state() != BodyState::Whole {
            return None;
        }
        let result = operation(memory.span());
        sequence::held(began, || memory.word()).then_some(result)
    }

    #[cold]
    fn read_at_last<R>(
        &self,
        busy: BusyGuard<'_>,
        mut operation: impl FnMut(Span<'_>) -> R,
    ) -> Result<R, AccessError> {
        let mut looks = |memory: &dyn Readable| {
            (0..LOOKS).find_map(|_| {
                std::hint::spin_loop();
                Self::try_read(memory, &mut operation)
            })
        };
        let ObjectLocation::Away(RemoteObject { memory: GrantedMemory::View(view), .. }) =
            &self.side
        else {
            if let Some(result) = self.writing().and_then(|(_, body)| looks(body)) {
                return Ok(result);
            }
            drop(busy);
            return self.access_to_look(operation);
        };
        let (begun, mut result) = (Instant::now(), None);
        waiting::until(self.patience, || {
            result = looks(view);
            result.is_some() || view.state() == BodyState::Poisoned || self.is_over()
        });
        match result {
            Some(result) => Ok(result),
            None if view.state() == BodyState::Poisoned => Err(AccessError::Poisoned),
            None if self.is_over() => Err(AccessError::Ended),
            None => Err(AccessError::Busy { waited: begun.elapsed(), holder: None }),
        }
    }
}
