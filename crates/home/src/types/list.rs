//! A list that is linked in both directions.
//!
//! ```text
//! place      first | last | how many
//! element    next | previous | value
//! ```
//! The forward links define the list: an element is in the list as soon as the previous one leads
//! to it, and no longer when the previous one leads past it. The rest follows, and can be rebuilt
//! from the forward links.

use super::arena::Arena;
use super::{Check, DataError, Init, Plain, Shared, Spot, Value, after, shape};
use std::fmt;
use std::marker::PhantomData;

const FIRST: usize = 0;
const LAST: usize = 8;
const COUNT: usize = 16;

const NEXT: usize = 0;
const PREVIOUS: usize = 8;
const VALUE: usize = 16;

const LIST: &str = "a list";
const ELEMENT: &str = "an element of a list";

/// A list. Its place is a [`ListAt`].
pub struct List<T>(PhantomData<fn() -> T>);

impl<T> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("List")
    }
}

/// The place of a [`List`].
pub struct ListAt<'a, T>(Spot<'a>, PhantomData<fn() -> T>);

impl<T> Clone for ListAt<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ListAt<'_, T> {}

impl<T: Shared> fmt::Debug for ListAt<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListAt").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Leads to an element of a list. All zeros lead to none.
///
/// A link is a plain value that can be kept in the same object, in a map for example.
///
/// A link is valid as long as the element is in the list. After that it leads nowhere, or to a
/// later element; its use is an error at most ([`DataError::Corrupt`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Link(u64);

impl Plain for Link {
    const SIZE: usize = 8;
    const ALIGN: usize = 8;
    const SHAPE: u64 = shape("link", &[]);

    fn read(spot: Spot<'_>) -> Result<Self, DataError> {
        Ok(Self(spot.word(0, "a link")?))
    }

    fn write(&self, spot: Spot<'_>) -> Result<(), DataError> {
        spot.put_word(0, self.0, "a link")
    }
}

impl<'a, T: Shared> ListAt<'a, T> {
    /// The number of elements.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn len(self) -> Result<u64, DataError> {
        self.0.word(COUNT, LIST)
    }

    /// Returns `true` if the list is empty.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn is_empty(self) -> Result<bool, DataError> {
        Ok(self.0.word(FIRST, LIST)? == 0)
    }

    /// The first element.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn first(self) -> Result<Option<Link>, DataError> {
        Ok(Some(Link(self.0.word(FIRST, LIST)?)).filter(|link| link.0 != 0))
    }

    /// The last element.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn last(self) -> Result<Option<Link>, DataError> {
        Ok(Some(Link(self.0.word(LAST, LIST)?)).filter(|link| link.0 != 0))
    }

    /// The value of an element.
    ///
    /// # Errors
    /// [`DataError::Corrupt`]: the element is in no list, as far as that can be found.
    #[inline]
    pub fn at(self, link: Link) -> Result<T::At<'a>, DataError> {
        self.around(link)?;
        Ok(T::at(self.node(link.0).part(VALUE)))
    }

    /// Appends an element.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn push_back(self, value: impl Init<T>) -> Result<Link, DataError> {
        let node = self.make(value)?;
        self.link(node, self.0.word(LAST, LIST)?, 0)?;
        Ok(Link(node))
    }

    /// Inserts an element before all others.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn push_front(self, value: impl Init<T>) -> Result<Link, DataError> {
        let node = self.make(value)?;
        self.link(node, 0, self.0.word(FIRST, LIST)?)?;
        Ok(Link(node))
    }

    /// Moves an element of the list before all others.
    ///
    /// # Errors
    /// [`DataError::Corrupt`]. An operation that ends in the middle of this may lose the element.
    pub fn move_to_front(self, link: Link) -> Result<(), DataError> {
        if self.0.word(FIRST, LIST)? == link.0 {
            return Ok(());
        }
        self.unlink(link)?;
        self.link(link.0, 0, self.0.word(FIRST, LIST)?)
    }

    /// Removes an element with its value.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn remove(self, link: Link) -> Result<(), DataError> {
        self.unlink(link)?;
        T::clear(self.node(link.0).part(VALUE))?;
        Arena::new(self.0.memory()).free(link.0)
    }

    /// Removes the first element. Returns its value, or `None` if the list is empty.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn pop_front(self) -> Result<Option<T::Owned>, DataError>
    where
        T: Value,
    {
        let Some(link) = self.first()? else { return Ok(None) };
        let value = T::copy(self.at(link)?)?;
        self.remove(link)?;
        Ok(Some(value))
    }

    /// Removes the last element. Returns its value, or `None` if the list is empty.
    ///
    /// # Errors
    /// [`DataError::Corrupt`].
    pub fn pop_back(self) -> Result<Option<T::Owned>, DataError>
    where
        T: Value,
    {
        let Some(link) = self.last()? else { return Ok(None) };
        let value = T::copy(self.at(link)?)?;
        self.remove(link)?;
        Ok(Some(value))
    }

    /// The elements in order.
    pub fn iter(self) -> Elements<'a, T> {
        // The memory holds no more elements than this, even if the links form a cycle.
        Elements {
            list: self,
            next: self.0.word(FIRST, LIST),
            previous: 0,
            left: self.0.memory().len() / (VALUE + 16),
        }
    }

    /// Makes an element that is in no list yet.
    fn make(self, value: impl Init<T>) -> Result<u64, DataError> {
        let arena = Arena::new(self.0.memory());
        let node = arena.allocate((VALUE + T::SIZE) as u64)?;
        let spot = self.node(node).part(VALUE);
        let made = spot.zero(T::SIZE, ELEMENT).and_then(|()| value.init(T::at(spot)));
        if let Err(error) = made {
            let _ = T::clear(spot);
            let _ = arena.free(node);
            return Err(error);
        }
        Ok(node)
    }

    /// Inserts an element between two neighbours.
    fn link(self, node: u64, previous: u64, next: u64) -> Result<(), DataError> {
        self.node(node).put_word(PREVIOUS, previous, ELEMENT)?;
        self.node(node).put_word(NEXT, next, ELEMENT)?;
        // From here on it is in the list.
        self.set_next(previous, node)?;
        self.set_previous(next, node)?;
        self.0.put_word(COUNT, self.len()?.wrapping_add(1), LIST)
    }

    fn unlink(self, link: Link) -> Result<(), DataError> {
        let (previous, next) = self.around(link)?;
        self.set_next(previous, next)?;
        self.set_previous(next, previous)?;
        self.0.put_word(COUNT, self.len()?.wrapping_sub(1), LIST)
    }

    /// The neighbours of an element, if both of them lead to it.
    fn around(self, link: Link) -> Result<(u64, u64), DataError> {
        let node = self.node(link.0);
        let (next, previous) = (node.word(NEXT, ELEMENT)?, node.word(PREVIOUS, ELEMENT)?);
        let known =
            link.0 != 0 && self.next_of(previous)? == link.0 && self.previous_of(next)? == link.0;
        if known { Ok((previous, next)) } else { Err(DataError::corrupt(ELEMENT, node.at())) }
    }

    fn node(self, at: u64) -> Spot<'a> {
        self.0.memory().spot_at(at)
    }

    fn next_of(self, node: u64) -> Result<u64, DataError> {
        if node == 0 { self.0.word(FIRST, LIST) } else { self.node(node).word(NEXT, ELEMENT) }
    }

    fn previous_of(self, node: u64) -> Result<u64, DataError> {
        if node == 0 { self.0.word(LAST, LIST) } else { self.node(node).word(PREVIOUS, ELEMENT) }
    }

    fn set_next(self, node: u64, next: u64) -> Result<(), DataError> {
        if node == 0 {
            self.0.put_word(FIRST, next, LIST)
        } else {
            self.node(node).put_word(NEXT, next, ELEMENT)
        }
    }

    fn set_previous(self, node: u64, previous: u64) -> Result<(), DataError> {
        if node == 0 {
            self.0.put_word(LAST, previous, LIST)
        } else {
            self.node(node).put_word(PREVIOUS, previous, ELEMENT)
        }
    }
}

/// The elements of a list: [`ListAt::iter`]. An error ends the iteration.
pub struct Elements<'a, T> {
    list: ListAt<'a, T>,
    next: Result<u64, DataError>,
    previous: u64,
    left: usize,
}

impl<T: Shared> fmt::Debug for Elements<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elements").field("list", &self.list).finish_non_exhaustive()
    }
}

impl<'a, T: Shared> Elements<'a, T> {
    /// Checks the next element's backward link, and moves on to it.
    fn step(&mut self, node: u64) -> Result<T::At<'a>, DataError> {
        let spot = self.list.node(node);
        let previous = spot.word(PREVIOUS, ELEMENT)?;
        // This finds a list that leads back into itself at the point where it does.
        if self.left == 0 || previous != self.previous {
            return Err(DataError::corrupt(ELEMENT, spot.at()));
        }
        self.left -= 1;
        self.previous = node;
        self.next = spot.word(NEXT, ELEMENT);
        Ok(T::at(spot.part(VALUE)))
    }
}

impl<'a, T: Shared> Iterator for Elements<'a, T> {
    type Item = Result<(Link, T::At<'a>), DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = match std::mem::replace(&mut self.next, Ok(0)) {
            Ok(0) => return None,
            Ok(node) => self.step(node).map(|at| (Link(node), at)),
            Err(error) => Err(error),
        };
        if found.is_err() {
            self.next = Ok(0);
        }
        Some(found)
    }
}

impl<T: Shared> Shared for List<T> {
    const SIZE: usize = 24;
    const ALIGN: usize = 8;
    const SHAPE: u64 = shape("list", &[T::SHAPE]);
    type At<'a> = ListAt<'a, T>;

    #[inline]
    fn at(spot: Spot<'_>) -> ListAt<'_, T> {
        ListAt(spot, PhantomData)
    }

    fn clear(spot: Spot<'_>) -> Result<(), DataError> {
        let list = Self::at(spot);
        // At most as many as there can be, even if another party adds some.
        for _ in 0..=spot.memory().len() / VALUE {
            let Some(first) = list.first()? else { break };
            list.remove(first)?;
        }
        spot.zero(Self::SIZE, LIST)
    }

    fn check(spot: Spot<'_>, check: &mut Check) -> Result<(), DataError> {
        let list = Self::at(spot);
        let (mut previous, mut count) = (0, 0_u64);
        loop {
            let at = list.next_of(previous)?;
            // Claimed before any of it is read. The second claim on an element of a cycle fails.
            if at != 0 {
                check.claim(spot.memory(), at, (VALUE + T::SIZE) as u64, ELEMENT)?;
            }
            if list.previous_of(at)? != previous {
                if !check.mends() {
                    return Err(DataError::corrupt(ELEMENT, list.node(at).at()));
                }
                list.set_previous(at, previous)?;
            }
            if at == 0 {
                break;
            }
            T::check(list.node(at).part(VALUE), check)?;
            (previous, count) = (at, count + 1);
        }
        if list.len()? != count {
            if !check.mends() {
                return Err(DataError::corrupt("the number of elements of a list", spot.at()));
            }
            spot.put_word(COUNT, count, LIST)?;
        }
        Ok(())
    }
}

// Values are aligned.
const _: () = assert!(after(0, VALUE, 8) == VALUE);
