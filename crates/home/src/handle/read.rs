//! Reads without the lock, by the object's sequence number.

use super::{BusyGuard, Handle, ObjectLocation};
use crate::away::{GrantedMemory, RemoteObject};
use crate::body::{BodyState, Readable};
use crate::error::AccessError;
use crate::waiting;
use std::time::Instant;
use upcall_shm::sequence;
use upcall_shm::span::Span;

/// Number of looks that are tried before others have the processor.
const LOOKS: u32 = 64;

impl Handle {
    /// Runs an operation that only reads the object where it is, and without the lock. It writes
    /// nothing that others see, so any number of them can run at once. If the object has changed
    /// during the operation, the operation is run again. So it may run several times, and may find
    /// a mixture of two states; what it returns is of one state. A panic of it is a panic, also
    /// then. Where changes leave no time for a read, this waits for the lock as other operations
    /// do, if the handle may take it. Waits for changes under way, and blocks the thread for that.
    ///
    /// # Errors
    /// See [`AccessError`].
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
        };
        tried.map_or_else(|| self.read_at_last(busy, operation), Ok)
    }

    /// One look. `None`: the object is being changed, has changed during the look, or is not whole.
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
