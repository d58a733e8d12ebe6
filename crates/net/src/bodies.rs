//! Memory of long bodies, kept for the next ones.
//!
//! The kernel clears each page that a process gets, which takes longer than a copy of as many
//! bytes. So a process whose bodies are long one after another keeps the memory of some: of
//! [`MOST`] bytes at most, and only while such bodies come ([`age`]).

use std::collections::TryReserveError;
use std::mem::take;
use upcall_os::lock::KernelMutex;

/// Length from which the memory of a body is kept, in bytes.
const SHORTEST: usize = 32 << 10;

/// Maximum number of bytes that are kept.
const MOST: usize = 4 << 20;

/// A body may get memory that is at most so many times longer.
const WASTE: usize = 4;

/// See the module.
struct KeptBodies {
    lists: Vec<Vec<u64>>,
    bytes: usize,
    /// Some were used since the last time that they aged.
    used: bool,
}

static SPARES: KernelMutex<KeptBodies> =
    KernelMutex::new(KeptBodies { lists: Vec::new(), bytes: 0, used: false });

/// Empty memory for so many words, if some is kept.
pub fn spare(words: usize) -> Option<Vec<u64>> {
    let mut list = take_kept(words)?;
    list.clear();
    Some(list)
}

/// Memory for `words` words, if some is kept, with the contents of earlier bodies. The caller
/// overwrites all of them: an earlier body may have been for another peer.
pub fn old(words: usize) -> Option<Vec<u64>> {
    let mut list = take_kept(words)?;
    // There is as much memory.
    list.resize(words, 0);
    Some(list)
}

/// As [`old`], or as many zeros.
///
/// # Errors
/// There is no memory.
pub fn filled(words: usize) -> Result<Vec<u64>, TryReserveError> {
    if let Some(list) = old(words) {
        return Ok(list);
    }
    let mut list = Vec::new();
    list.try_reserve_exact(words)?;
    list.resize(words, 0);
    Ok(list)
}

fn take_kept(words: usize) -> Option<Vec<u64>> {
    if words * 8 < SHORTEST {
        return None;
    }
    let mut spares = SPARES.lock();
    let fits = |list: &Vec<u64>| (words..=WASTE * words).contains(&list.capacity());
    let at = spares.lists.iter().position(fits)?;
    let list = spares.lists.swap_remove(at);
    spares.bytes -= list.capacity() * 8;
    spares.used = true;
    Some(list)
}

/// Keeps the memory of a body, or returns it.
pub(crate) fn keep(list: Vec<u64>) -> Option<Vec<u64>> {
    let bytes = list.capacity() * 8;
    if !(SHORTEST..=MOST).contains(&bytes) {
        return Some(list);
    }
    let mut spares = SPARES.lock();
    if spares.bytes + bytes > MOST || spares.lists.try_reserve(1).is_err() {
        return Some(list);
    }
    spares.bytes += bytes;
    spares.lists.push(list);
    None
}

/// Frees what is kept if none of it was used since the last call.
pub fn age() {
    let mut spares = SPARES.lock();
    if !take(&mut spares.used) {
        spares.bytes = 0;
        let lists = take(&mut spares.lists);
        drop(spares);
        drop(lists);
    }
}

/// Frees what is kept: this process has no connection any more.
pub(crate) fn clear() {
    (0..2).for_each(|_| age());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because all share what is kept.
    #[test]
    fn memory_is_kept_within_bounds_and_while_it_is_used() {
        let of = |bytes: usize| Vec::<u64>::with_capacity(bytes / 8);
        assert!(keep(of(SHORTEST - 8)).is_some() && keep(of(MOST + 8)).is_some());
        let mut kept = 0;
        while keep(vec![7; (512 << 10) / 8]).is_none() {
            kept += 1;
            assert!(kept <= 8, "more than the maximum");
        }
        assert!(spare(SHORTEST / 8 - 1).is_none() && spare((512 << 10) / 8 + 1).is_none());
        assert!(spare((128 << 10) / 8 - 1).is_none(), "it would waste most of it");
        let list = spare((128 << 10) / 8).unwrap();
        assert!(list.is_empty() && list.capacity() >= (512 << 10) / 8);
        let list = filled((128 << 10) / 8).unwrap();
        assert!(list.len() == (128 << 10) / 8 && list.iter().all(|&word| word == 7), "kept");
        assert_eq!(filled(3).unwrap(), [0; 3]);
        age();
        let list = spare((512 << 10) / 8).unwrap();
        age();
        age();
        assert!(spare((512 << 10) / 8).is_none());
        drop(list);
    }
}
