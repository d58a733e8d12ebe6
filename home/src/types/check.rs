//! Whether all that an object's types lead to is as it should be, and what to do about it.

use super::arena::Arena;
use super::{DataError, Memory, Shared};

/// A walk over an object: each type tells what it holds in the arena, and may put right what an operation has left that ended in the middle.
#[derive(Debug)]
pub struct Check {
    claims: Vec<(u64, u64)>,
    /// So many there can be.
    most: usize,
    mends: bool,
}

impl Check {
    /// Whether what is off is to be put right where it can be, in place of being an error.
    pub fn mends(&self) -> bool {
        self.mends
    }

    /// `bytes` in a block at this offset belong to who calls this.
    pub(crate) fn claim(&mut self, memory: Memory<'_>, at: u64, bytes: u64, what: &'static str) -> Result<(), DataError> {
        if self.claims.len() >= self.most || !Arena::new(memory).has(at, bytes) {
            return Err(DataError::corrupt(what, usize::try_from(at).unwrap_or(usize::MAX)));
        }
        self.claims.push((at, bytes));
        Ok(())
    }
}

/// Checks an object whose root is a `T`. If it `mends`, its arena is made anew, so that what nobody leads to is free.
pub(crate) fn check<T: Shared>(memory: Memory<'_>, mends: bool) -> Result<(), DataError> {
    let mut check = Check { claims: Vec::new(), most: memory.len() / 32, mends };
    T::check(memory.spot(0), &mut check)?;
    let mut claims = check.claims;
    claims.sort_unstable();
    let within = claims.windows(2).find(|two| two[0].0 + two[0].1.max(8) + 8 > two[1].0);
    if let Some(two) = within {
        return Err(DataError::corrupt("a block of its own", two[1].0 as usize));
    }
    if mends { Arena::new(memory).rebuild(&claims) } else { Ok(()) }
}
