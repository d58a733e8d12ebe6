//! Descriptors of a ULP that moves.
//!
//! The second process duplicates the first one's (`pidfd_getfd(2)`, Linux 5.6), which the kernel
//! allows to those that may read the first one's memory. Both then have the same open files, with
//! their offsets and locks, until the first process closes its own. The program's numbers stay, and
//! the table ([`image/files.c`](crate::descriptors)) gets the second process's descriptors.
//!
//! Another host opens the files by their paths instead (`paths`).
//!
//! A function of the archive may have one of the process's descriptors in a variable while it
//! waits. So a ULP that has opened descriptors moves only where it asks the library above for
//! something, sleeps, or was interrupted in its own code.

use super::arriving::{ArrivingUlp, NotArrived, unfit};
use super::state::{UlpDescriptor, UlpPin, words};
use crate::descriptors;
use crate::layout::{
    ASK_INTERRUPTED, ASK_OWN, ASK_SLEEP, FILES, NEAR_FILES, TABLE_FILES, TABLE_FILES_RANGE,
};
use crate::ulp::Ulp;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Number of standard descriptors, which each process has.
pub(super) const STANDARD: i32 = 3;

/// Returns `true` if no function of the archive that uses descriptors waits with this question.
pub(super) fn is_between_calls(what: u64) -> bool {
    what >= ASK_OWN || [ASK_SLEEP, ASK_INTERRUPTED].contains(&what)
}

/// The program's entry of a number: the process's descriptor, and whether children inherit it.
fn read_entry(entry: u32) -> Option<(i32, bool)> {
    let real = (entry >> 1) as i32 - 1;
    (real >= 0).then_some((real, entry & 1 == 1))
}

impl Ulp {
    /// One more than the highest number that has an entry. The program may have overwritten it.
    fn files_end(&self) -> u64 {
        (self.word(TABLE_FILES_RANGE) >> 32).min(FILES)
    }

    fn entry_address(&self, number: u64) -> u64 {
        match number {
            ..NEAR_FILES => self.table() + TABLE_FILES * 8 + number * 4,
            _ => self.slot.heap_end() + number * 4,
        }
    }

    /// The entries of all numbers.
    fn entries(&self, memory: &File) -> io::Result<Vec<u32>> {
        let end = self.files_end();
        let mut entries = Vec::new();
        for (first, last) in [(0, end.min(NEAR_FILES)), (NEAR_FILES, end)] {
            if first < last {
                let (at, odd) = (self.entry_address(first), (last - first) % 2);
                let words = words(memory, at, (last - first).div_ceil(2) as usize)?;
                entries.extend(words.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]));
                entries.truncate(entries.len() - odd as usize);
            }
        }
        Ok(entries)
    }

    /// The descriptors that the ULP has opened. Returns an error if its table does not have exactly
    /// those.
    pub(super) fn opened(&self, memory: &File) -> Result<Vec<UlpDescriptor>, UlpPin> {
        let slot = self.slot.number();
        let count = descriptors::count_of(slot);
        if count == 0 {
            return Ok(Vec::new());
        }
        let entries = self.entries(memory).map_err(|_| UlpPin::Descriptors(count))?;
        let opened = (0..).zip(entries).filter_map(|(number, entry)| {
            let (real, inherited) = read_entry(entry)?;
            (real >= STANDARD).then_some(UlpDescriptor { number, inherited, real, file: None })
        });
        let opened = opened.collect::<Vec<_>>();
        let is_own = |one: &UlpDescriptor| descriptors::is_of(one.real, slot);
        if opened.len() != count || !opened.iter().all(is_own) {
            return Err(UlpPin::Descriptors(count));
        }
        Ok(opened)
    }
}

/// Duplicates descriptors of another process.
fn duplicated(process: u32, all: &[UlpDescriptor]) -> io::Result<Vec<OwnedFd>> {
    let owned = |descriptor: i64| match descriptor {
        // SAFETY: the kernel has just returned this descriptor, which nothing else uses.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: opens a descriptor, and uses no memory.
    let other = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    let mut found = Vec::new();
    found.try_reserve_exact(all.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
    for one in all {
        // SAFETY: as above.
        let one = unsafe { libc::syscall(libc::SYS_pidfd_getfd, other.as_raw_fd(), one.real, 0) };
        let one = owned(one)?;
        let is_standard = one.as_raw_fd() < STANDARD;
        let least = rustix::io::fcntl_dupfd_cloexec(&one, STANDARD);
        found.push(if is_standard { least? } else { one });
    }
    Ok(found)
}

impl ArrivingUlp {
    /// Duplicates the ULP's descriptors from the process that it leaves.
    ///
    /// # Errors
    /// The kernel refuses, or there are too many.
    pub fn take_descriptors(&mut self, process: u32) -> io::Result<()> {
        if self.descriptors.is_empty() && !self.state.descriptors.is_empty() {
            self.descriptors = duplicated(process, &self.state.descriptors)?;
        }
        Ok(())
    }

    /// Leaves the ULP 0, 1 and 2 as far as it has them, and the descriptors that were duplicated.
    ///
    /// What else is in its table is the program's own doing.
    pub(super) fn fill_files(&mut self) -> Result<(), NotArrived> {
        let count = self.state.descriptors.len();
        if self.descriptors.len() != count {
            return Err(NotArrived::Descriptors(count));
        }
        let failed = |error| NotArrived::Memory { at: self.ulp.table(), error };
        let before = self.ulp.entries(&self.files.memory).map_err(failed)?;
        let mut entries = vec![0; before.len()];
        for (number, entry) in before.iter().take(STANDARD as usize).enumerate() {
            if read_entry(*entry).is_some_and(|(real, _)| real == number as i32) {
                entries[number] = *entry;
            }
        }
        for (one, own) in self.state.descriptors.iter().zip(std::mem::take(&mut self.descriptors)) {
            let entry = usize::try_from(one.number).ok().and_then(|at| entries.get_mut(at));
            let entry = entry.ok_or(unfit("descriptor", u64::from(one.number.cast_unsigned())))?;
            let real = descriptors::give(own, self.ulp.slot.number())
                .ok_or(NotArrived::Descriptors(count))?;
            *entry = (real as u32 + 1) << 1 | u32::from(one.inherited);
        }
        let lowest = entries.iter().position(|entry| *entry == 0).unwrap_or(entries.len());
        let end = entries.iter().rposition(|entry| *entry != 0).map_or(0, |last| last + 1);
        let changed = (0..).zip(&entries).zip(&before).filter(|((_, new), old)| new != old);
        for ((number, entry), _) in changed {
            let at = self.ulp.entry_address(number);
            self.files
                .memory
                .write_all_at(&entry.to_ne_bytes(), at)
                .map_err(|error| NotArrived::Memory { at, error })?;
        }
        let end = end.max(lowest) as u64;
        self.ulp.set_word(TABLE_FILES_RANGE, end << 32 | lowest as u64);
        Ok(())
    }
}
