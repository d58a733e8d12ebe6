//! Memory that a process reads from another one, or writes to it, without the other one's doing
//! (`process_vm_readv(2)`): one copy, and none through shared memory.
//!
//! A process writes the pages of a ULP that has just run there, because they are in the caches of
//! its processor. So are those of the other process, if this one has written to them shortly
//! before. Then a page takes about 0.2 µs. It takes three to five times as long to write to one
//! that the other process has made, or to read one, and longer still if it has to be made.
//!
//! The kernel allows that to processes of one user. A container may refuse it, and so may Yama
//! (`kernel.yama.ptrace_scope`), unless the other process has named a process whose descendants may
//! read ([`allow_others`]). Where it is refused, the contents have to be sent.
//!
//! Here a process is named by its number, which becomes another process's when a process has ended
//! and was waited for. **The caller answers for that**: the number stays the same process's until
//! the function returns, also if this process is stopped just before the kernel's call. Then an
//! ended process is an error (`ESRCH`). A parent can keep the numbers of its children
//! ([`keep_ended_children`]).

use super::arriving::{ArrivingUlp, NotArrived, find, unfit};
use super::pages::UlpPages;
use super::state::PageRun;
use crate::blocks::{Block, twins::NotFilled};
use crate::layout::PAGE;
use std::io;

/// Maximum number of ranges for one call of the kernel (`UIO_MAXIOV`).
const RANGES: usize = 1024;

/// Allows the process with this number and its descendants to use this process's memory, where Yama
/// would allow that only to parents.
///
/// Does nothing where there is no Yama.
pub fn allow_others(process: u32) {
    // SAFETY: changes who may use this process's memory, and no memory.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, u64::from(process), 0, 0, 0) };
}

/// Makes this process's children keep their numbers when they have ended, until it waits for them.
///
/// The parent of this process may have left SIGCHLD ignored, and then they would not. A handler of
/// the signal is left alone, and must not wait for any children.
///
/// # Errors
/// The kernel refuses.
pub fn keep_ended_children() -> io::Result<()> {
    // SAFETY: all zeros are a valid action: the default one, without flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: reads the present action.
    if unsafe { libc::sigaction(libc::SIGCHLD, std::ptr::null(), &raw mut action) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if action.sa_sigaction == libc::SIG_IGN {
        action.sa_sigaction = libc::SIG_DFL;
    }
    action.sa_flags &= !libc::SA_NOCLDWAIT;
    // SAFETY: the action is the present one, or the default one.
    match unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Memory of this process, and where its contents are in another one.
#[derive(Clone, Copy)]
struct ReadRange {
    here: u64,
    there: u64,
    length: u64,
}

/// Reads another process's memory.
///
/// # Safety
/// The memory here is mapped and writable, and nothing else uses it.
unsafe fn read(process: u32, ranges: &[ReadRange]) -> io::Result<()> {
    transfer(process, ranges, |process, here, there| {
        let count = here.len() as u64;
        // SAFETY: the kernel writes to the ranges here, which the caller answers for, and reads the
        // other process's, or fails.
        unsafe { libc::process_vm_readv(process, here.as_ptr(), count, there.as_ptr(), count, 0) }
    })
}

/// Writes to another process's memory.
fn write(process: u32, ranges: &[ReadRange]) -> io::Result<()> {
    transfer(process, ranges, |process, here, there| {
        let count = here.len() as u64;
        // SAFETY: the kernel reads the ranges here, or fails, and changes no memory of this
        // process.
        unsafe { libc::process_vm_writev(process, here.as_ptr(), count, there.as_ptr(), count, 0) }
    })
}

/// Calls `call` until it has transferred all ranges.
fn transfer(
    process: u32,
    ranges: &[ReadRange],
    call: impl Fn(i32, &[libc::iovec], &[libc::iovec]) -> isize,
) -> io::Result<()> {
    let vector = |at: u64, length: u64| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(at as usize),
        iov_len: length as usize,
    };
    let process = i32::try_from(process).map_err(|_| io::ErrorKind::InvalidInput)?;
    for some in ranges.chunks(RANGES) {
        let mut done = 0;
        let total = some.iter().map(|one| one.length).sum::<u64>();
        while done < total {
            let (mut here, mut there, mut skipped) = (Vec::new(), Vec::new(), done);
            for one in some {
                let skip = skipped.min(one.length);
                skipped -= skip;
                if one.length > skip {
                    here.push(vector(one.here + skip, one.length - skip));
                    there.push(vector(one.there + skip, one.length - skip));
                }
            }
            match call(process, &here, &there) {
                ..0 => return Err(io::Error::last_os_error()),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                moved => done += moved as u64,
            }
        }
    }
    Ok(())
}

/// Writes pages of a ULP to the room that the process has made which it is to enter, as
/// [`UlpPages::write_to`] does for all of them. The same holds here.
///
/// # Errors
/// As with [`UlpPages::write_to`].
pub fn write_early(process: u32, PageRun { start, end }: PageRun) -> io::Result<()> {
    write(process, &[ReadRange { here: start, there: start, length: end - start }])
}

impl UlpPages {
    /// Writes all pages to the memory of the process that the ULP enters, which has mapped the same
    /// addresses for it ([`Ulp::arrive`](crate::Ulp::arrive)). Returns the number of bytes.
    ///
    /// To be called only by the process that has the ULP: no other has the right to its addresses.
    /// The number must stay that process's during the call ([`keep_ended_children`]).
    ///
    /// # Errors
    /// The kernel refuses, or the other process does not have all of the addresses. Some pages may
    /// have been written.
    pub fn write_to(&self, process: u32) -> io::Result<u64> {
        let ranges = self.runs().into_iter().map(|PageRun { start, end }| ReadRange {
            here: start,
            there: start,
            length: end - start,
        });
        write(process, &ranges.collect::<Vec<_>>())?;
        Ok(self.left())
    }
}

impl ArrivingUlp {
    /// Reads these pages of the ULP from the process that it leaves, where they have the same
    /// addresses. The number must stay that process's during the call ([`keep_ended_children`]).
    ///
    /// # Errors
    /// A range is not within one of the state's mappings, or is no number of whole pages; or the
    /// kernel refuses ([`NotArrived::Memory`]).
    pub fn pull(&mut self, process: u32, runs: &[PageRun]) -> Result<(), NotArrived> {
        let mut ranges = Vec::with_capacity(runs.len());
        for PageRun { start, end } in runs.iter().copied() {
            let length = end.checked_sub(start).filter(|length| *length > 0);
            let length = length.ok_or(unfit("pages", start))?;
            let is_within = find(&self.state.mappings, start, length).is_some();
            if !start.is_multiple_of(PAGE) || !length.is_multiple_of(PAGE) || !is_within {
                return Err(unfit("pages", start));
            }
            ranges.push(ReadRange { here: start, there: start, length });
        }
        let at = ranges.first().map_or(0, |one| one.here);
        // SAFETY: the ranges are within mappings of this ULP, all of which are writable until it is
        // complete. It does not run.
        unsafe { read(process, &ranges) }.map_err(|error| NotArrived::Memory { at, error })
    }
}

impl Block {
    /// Reads the contents of a block that was adopted from another process, where it has the same
    /// address.
    ///
    /// # Errors
    /// The block has other holders, or the kernel refuses.
    pub fn pull(&self, process: u32) -> io::Result<()> {
        match self.check_fill(0, self.capacity()) {
            Ok(()) => {}
            Err(NotFilled::Filled) => return Ok(()),
            Err(error) => return Err(io::Error::other(error)),
        }
        let (here, length) = (self.address(), self.capacity() as u64);
        // SAFETY: the block's data is not in use until the block is filled.
        unsafe { read(process, &[ReadRange { here, there: here, length }]) }
    }

    /// Makes a block with `length` bytes that are at `address` in another process.
    ///
    /// # Errors
    /// There is no memory, or the kernel refuses.
    pub fn pulled(process: u32, address: u64, length: usize) -> io::Result<Self> {
        let block = Self::new(length).ok_or(io::ErrorKind::OutOfMemory)?;
        let range = ReadRange { here: block.address(), there: address, length: length as u64 };
        // SAFETY: the block has room for the bytes, and is not in use yet.
        unsafe { read(process, &[range]) }?;
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_in_order_also_more_than_the_kernel_takes_at_once() {
        let from = (0..3000_u32).flat_map(u32::to_ne_bytes).collect::<Vec<_>>();
        let to = vec![0_u8; from.len()];
        let (there, here) = (from.as_ptr().addr() as u64, to.as_ptr().addr() as u64);
        let ranges = (0..3000).map(|at| ReadRange {
            here: here + at * 4,
            there: there + (2999 - at) * 4,
            length: 4,
        });
        to.as_ptr().expose_provenance();
        from.as_ptr().expose_provenance();
        // SAFETY: `to` is not used until the function returns.
        unsafe { read(std::process::id(), &ranges.collect::<Vec<_>>()) }.unwrap();
        let words = to.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word));
        assert!(words.eq((0..3000).rev()));
    }

    #[test]
    fn pages_are_written_to_a_process_that_has_their_addresses_and_to_no_other() {
        let memory = vec![7_u8; 3 * PAGE as usize];
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(PAGE);
        memory.as_ptr().expose_provenance();
        let mut pages = UlpPages::new(0, &[], None).unwrap();
        pages.add(PageRun { start, end: start + PAGE });
        assert_eq!(pages.write_to(std::process::id()).unwrap(), PAGE);
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        // Before it runs its program, it has this one's memory.
        let program = format!("/proc/{}/comm", other.id());
        while std::fs::read_to_string(&program).unwrap() != "sleep\n" {
            std::thread::yield_now();
        }
        let error = pages.write_to(other.id()).unwrap_err();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert_eq!(pages.write_to(other.id()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(pages.write_to(u32::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let block = Block::pulled(std::process::id(), 4096, 10);
        assert_eq!(block.unwrap_err().raw_os_error(), Some(libc::EFAULT));
        let nobody = Block::pulled(u32::MAX, 4096, 10);
        assert_eq!(nobody.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let copy = Block::of(b"some bytes").unwrap();
        let block = Block::pulled(std::process::id(), copy.address(), 10).unwrap();
        assert_eq!(block.read(10).as_deref(), Some(&b"some bytes"[..]));
    }
}
