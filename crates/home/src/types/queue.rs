//! A queue: elements in first-in, first-out order, in a ring that grows.
//!
//! ```text
//! place    offset of a block, or 0: nothing
//! block    how many it has room for, a power of two | taken | put | 0 | elements
//! ```
//! The numbers of elements taken and put only grow. So each change becomes visible by a single
//! store, which is the last one. A larger ring also replaces a smaller one by a single store.

use super::arena::Arena;
use super::{Check, DataError, Init, Memory, Shared, Spot, Value, after, shape};
use std::fmt;
use std::marker::PhantomData;

const ROOM: usize = 0;
const TAKEN: usize = 8;
const PUT: usize = 16;
const ELEMENTS: usize = 32;

/// Number of elements for which the first ring has room.
const AT_FIRST: u64 = 4;

const QUEUE: &str = "a queue";
const RING: &str = "the ring of a queue";

/// A queue. Its place is a [`QueueAt`].
pub struct Queue<T>(PhantomData<fn() -> T>);

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

/// The place of a [`Queue`].
pub struct QueueAt<'a, T>(Spot<'a>, PhantomData<fn() -> T>);

impl<T> Clone for QueueAt<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for QueueAt<'_, T> {}

impl<T: Shared> fmt::Debug for QueueAt<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueAt").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A ring whose words were read and checked.
struct QueueRing<'a, T> {
    block: Spot<'a>,
    room: u64,
    taken: u64,
    put: u64,
    of: PhantomData<fn() -> T>,
}

impl<'a, T: Shared> QueueRing<'a, T> {
    const STRIDE: u64 = after(0, T::SIZE, T::ALIGN) as u64;

    fn bytes(room: u64) -> u64 {
        room.saturating_mul(Self::STRIDE).saturating_add(ELEMENTS as u64)
    }

    fn read(memory: Memory<'a>, at: u64) -> Result<Self, DataError> {
        let block = memory.spot_at(at);
        let room = block.word(ROOM, RING)?;
        let (taken, put) = (block.word(TAKEN, RING)?, block.word(PUT, RING)?);
        if !room.is_power_of_two()
            || Self::bytes(room) > memory.len() as u64
            || put.wrapping_sub(taken) > room
        {
            return Err(DataError::corrupt(RING, block.at()));
        }
        Ok(Self { block, room, taken, put, of: PhantomData })
    }

    fn len(&self) -> u64 {
        self.put.wrapping_sub(self.taken)
    }

    /// The spot of the element with this number.
    fn element(&self, number: u64) -> Spot<'a> {
        self.block.part(ELEMENTS + ((number & (self.room - 1)) * Self::STRIDE) as usize)
    }
}

impl<'a, T: Shared> QueueAt<'a, T> {
    fn ring(self) -> Result<Option<QueueRing<'a, T>>, DataError> {
        match self.0.word(0, QUEUE)? {
            0 => Ok(None),
            at => QueueRing::read(self.0.memory(), at).map(Some),
        }
    }

    /// The number of elements.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn len(self) -> Result<u64, DataError> {
        Ok(self.ring()?.map_or(0, |ring| ring.len()))
    }

    /// Returns `true` if the queue is empty.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn is_empty(self) -> Result<bool, DataError> {
        Ok(self.len()? == 0)
    }

    /// The element with this number, counted from 0. `None` if there are fewer.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn at(self, number: u64) -> Result<Option<T::At<'a>>, DataError> {
        let ring = self.ring()?;
        Ok(ring
            .filter(|ring| number < ring.len())
            .map(|ring| T::at(ring.element(ring.taken.wrapping_add(number)))))
    }

    /// The first element.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn front(self) -> Result<Option<T::At<'a>>, DataError> {
        self.at(0)
    }

    /// Appends an element.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn push(self, value: impl Init<T>) -> Result<(), DataError> {
        let ring = match self.ring()? {
            Some(ring) if ring.len() < ring.room => ring,
            full => self.grow(full)?,
        };
        let spot = ring.element(ring.put);
        spot.zero(T::SIZE, RING)?;
        if let Err(error) = value.init(T::at(spot)) {
            let _ = T::clear(spot);
            return Err(error);
        }
        ring.block.put_word(PUT, ring.put.wrapping_add(1), RING)
    }

    /// Removes the first element with its value. Returns `false` if the queue is empty.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn remove_front(self) -> Result<bool, DataError> {
        let Some(ring) = self.ring()?.filter(|ring| ring.len() > 0) else { return Ok(false) };
        // The element is removed before its value is freed, so that no party finds half of it.
        ring.block.put_word(TAKEN, ring.taken.wrapping_add(1), RING)?;
        T::clear(ring.element(ring.taken))?;
        Ok(true)
    }

    /// Removes the first element. Returns its value, or `None` if the queue is empty.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn pop(self) -> Result<Option<T::Owned>, DataError>
    where
        T: Value,
    {
        let Some(front) = self.front()? else { return Ok(None) };
        let value = T::copy(front)?;
        self.remove_front()?;
        Ok(Some(value))
    }

    /// The elements in order.
    pub fn iter(self) -> impl Iterator<Item = Result<T::At<'a>, DataError>> {
        let (ring, broken) = match self.ring() {
            Ok(ring) => (ring, None),
            Err(error) => (None, Some(Err(error))),
        };
        let all = ring.into_iter().flat_map(|ring| {
            (0..ring.len()).map(move |at| Ok(T::at(ring.element(ring.taken.wrapping_add(at)))))
        });
        broken.into_iter().chain(all)
    }

    /// Replaces a full ring by one with more room.
    #[cold]
    fn grow(self, full: Option<QueueRing<'a, T>>) -> Result<QueueRing<'a, T>, DataError> {
        let memory = self.0.memory();
        let arena = Arena::new(memory);
        let room = full.as_ref().map_or(AT_FIRST, |ring| ring.room * 2);
        let put = full.as_ref().map_or(0, QueueRing::len);
        let new = arena.allocate(QueueRing::<T>::bytes(room))?;
        let block = memory.spot_at(new);
        for (at, word) in [(ROOM, room), (TAKEN, 0), (PUT, put)] {
            block.put_word(at, word, RING)?;
        }
        let ring = QueueRing { block, room, taken: 0, put, of: PhantomData };
        if let Some(full) = &full {
            // What the elements hold in the arena goes with them.
            for number in 0..put {
                let from = full.element(full.taken.wrapping_add(number)).bytes(T::SIZE, RING)?;
                let to = ring.element(number);
                let copied =
                    to.to_write()?.within(to.at(), T::SIZE).and_then(|to| from.copy_to(to));
                copied.ok_or_else(|| DataError::corrupt(RING, to.at()))?;
            }
        }
        self.0.put_word(0, new, QUEUE)?;
        if let Some(full) = full {
            arena.free(full.block.at() as u64)?;
        }
        Ok(ring)
    }
}

impl<T: Shared> Shared for Queue<T> {
    const SIZE: usize = 8;
    const ALIGN: usize = 8;
    const SHAPE: u64 = shape("queue", &[T::SHAPE]);
    type At<'a> = QueueAt<'a, T>;

    #[inline]
    fn at(spot: Spot<'_>) -> QueueAt<'_, T> {
        QueueAt(spot, PhantomData)
    }

    fn clear(spot: Spot<'_>) -> Result<(), DataError> {
        let queue = Self::at(spot);
        let Some(ring) = queue.ring()? else { return Ok(()) };
        // At most as many as there were, even if another party adds some.
        for _ in 0..ring.len() {
            queue.remove_front()?;
        }
        spot.put_word(0, 0, QUEUE)?;
        Arena::new(spot.memory()).free(ring.block.at() as u64)
    }

    fn check(spot: Spot<'_>, check: &mut Check) -> Result<(), DataError> {
        let at = spot.word(0, QUEUE)?;
        if at == 0 {
            return Ok(());
        }
        check.expect(spot.memory(), at, ELEMENTS as u64, RING)?;
        let ring = QueueRing::<T>::read(spot.memory(), at)?;
        check.claim_sparse(spot.memory(), at, QueueRing::<T>::bytes(ring.room), RING)?;
        if T::SIZE == 0 {
            return Ok(());
        }
        // `push` writes all bytes of an element, so each element exists.
        (0..ring.len()).try_for_each(|number| {
            let element = ring.element(ring.taken.wrapping_add(number));
            check.look_at(QueueRing::<T>::STRIDE)?;
            if !check.exist(element.at(), T::SIZE) {
                return Err(DataError::corrupt("an element of a queue", element.at()));
            }
            T::check(element, check)
        })
    }
}
