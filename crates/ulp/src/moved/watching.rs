//! The pages that a ULP writes while its memory is copied already.
//!
//! So a ULP is stopped only for the pages that it has written since: a large one for as long as a
//! small one (pre-copy; Clark et al., "Live Migration of Virtual Machines", NSDI 2005, section 3).
//! The kernel protects pages from writing, notes the first write to each, and lets it happen
//! (`userfaultfd(2)` with `UFFD_FEATURE_WP_ASYNC`, and `PAGEMAP_SCAN`: Linux 6.7). A first write
//! costs the ULP a fault of about half a microsecond.
//!
//! Watched is anonymous memory. The pages of the program's file that the ULP has written are few,
//! and are always copied after the stop.

use super::pages::{PageScan, UlpPages};
use super::state::{PageRun, UlpMapping, UlpState};
use crate::own::OwnFiles;
use crate::ulp::Ulp;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

const UFFD_API: u64 = 0xAA;
const UFFDIO_API: u64 = 0xC018_AA3F;
const UFFDIO_REGISTER: u64 = 0xC020_AA00;
const UFFDIO_UNREGISTER: u64 = 0x8010_AA01;
const USER_MODE_ONLY: i32 = 1;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const MODE_WP: u64 = 1 << 1;

/// Maximum number of ranges that are watched for writes, or that were copied already.
const MOST: usize = 1 << 20;

/// The kernel's side of watching, one for the process.
static WATCH: Mutex<Option<Arc<OwnedFd>>> = Mutex::new(None);

fn request<T>(descriptor: &OwnedFd, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: the request's argument is of this type, and the kernel uses it only during the call.
    // What the requests here change about memory is only how writes to it are noted.
    match unsafe { libc::ioctl(descriptor.as_raw_fd(), request, &raw mut *argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens the kernel's side.
///
/// # Errors
/// The kernel does not have it, or refuses.
fn watch() -> io::Result<Arc<OwnedFd>> {
    let mut known = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = &*known {
        return Ok(known.clone());
    }
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
    // SAFETY: opens a descriptor, and uses no memory.
    let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, which nothing else uses.
    let descriptor = Arc::new(unsafe { OwnedFd::from_raw_fd(descriptor as i32) });
    // Version, features, requests that there are.
    let mut api = [UFFD_API, FEATURE_WP_ASYNC, 0_u64];
    request(&descriptor, UFFDIO_API, &mut api)?;
    Ok(known.insert(descriptor).clone())
}

/// Finds the pages that a ULP writes. Dropping this ends the watch, which takes some 50 µs for each
/// MiB, and nothing if the ULP's memory is gone.
#[derive(Debug)]
pub struct UlpWrites {
    watch: Arc<OwnedFd>,
    files: Arc<OwnFiles>,
    mappings: Vec<UlpMapping>,
    /// The anonymous memory that is watched.
    watched: Vec<PageRun>,
    /// The pages that were found so far, in ascending order.
    found: Vec<PageRun>,
}

impl Ulp {
    /// Begins to watch which pages this ULP writes. `state` has its mappings.
    ///
    /// # Errors
    /// The kernel cannot do that (before Linux 6.7), or refuses.
    pub fn watch(&self, state: &UlpState) -> io::Result<UlpWrites> {
        let (files, mappings) = (OwnFiles::get()?, state.mappings.clone());
        let (watched, found) = (Vec::new(), Vec::new());
        let mut writes = UlpWrites { watch: watch()?, files, mappings, watched, found };
        for one in state.mappings.iter().filter(|one| one.offset.is_none()) {
            // Start, length, mode, requests that there are.
            let mut register = [one.start, one.end - one.start, MODE_WP, 0];
            request(&writes.watch, UFFDIO_REGISTER, &mut register)?;
            writes.watched.push(PageRun { start: one.start, end: one.end });
        }
        Ok(writes)
    }
}

impl UlpWrites {
    /// The kernel's map of this process's pages.
    fn map(&self) -> io::Result<&File> {
        self.files.pages.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The pages that were written since the last call; in the first call, all that there are.
    ///
    /// # Errors
    /// The kernel refuses, or there are too many ranges.
    pub fn written(&mut self) -> io::Result<Vec<PageRun>> {
        let (mut written, map) = (Vec::new(), self.map()?);
        for one in &self.watched {
            PageScan::written(*one).run(map, &mut written)?;
        }
        self.found = joined(&self.found, &written);
        if self.found.len() > MOST || written.len() > MOST {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(written)
    }

    /// Looks at a ULP that has stopped in this state. Returns the pages that were written
    /// since the last call of [`written`](Self::written), with `left` and those of the program's
    /// file, and the pages that were found before and are not there any more.
    ///
    /// # Errors
    /// The kernel refuses, or the ULP has other mappings than it had: all of its pages have to be
    /// copied.
    pub fn finish(
        &mut self,
        ulp: &Ulp,
        state: &UlpState,
        left: &[PageRun],
    ) -> io::Result<(UlpPages, Vec<PageRun>)> {
        if self.mappings != state.mappings {
            return Err(io::Error::other("the ULP has other mappings than before"));
        }
        let (mut written, mut present) = (Vec::new(), Vec::<PageRun>::new());
        for one in &self.watched {
            PageScan::present_and_written(*one).each(self.map()?, |run, kind| {
                if kind & PageScan::WRITTEN != 0 {
                    written.push(run);
                }
                match present.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => present.push(run),
                }
            })?;
        }
        let gone = without(&self.found, &present);
        let of_file = state.mappings.iter().filter(|one| one.offset.is_some());
        let of_file = of_file.copied().collect::<Vec<_>>();
        let mut pages = UlpPages::new(ulp.slot(), &of_file, self.files.pages.as_ref())?;
        // A page that is not there any more cannot be read.
        let all = joined(&written, left);
        without(&all, &gone).into_iter().for_each(|run| pages.add(run));
        Ok((pages, gone))
    }
}

impl Drop for UlpWrites {
    fn drop(&mut self) {
        for one in &self.watched {
            let mut range = [one.start, one.end - one.start];
            // Memory that was unmapped is not watched any more.
            let _ = request(&self.watch, UFFDIO_UNREGISTER, &mut range);
        }
    }
}

/// The pages of either list, each in ascending order.
fn joined(one: &[PageRun], other: &[PageRun]) -> Vec<PageRun> {
    let mut all = [one, other].concat();
    all.sort_unstable_by_key(|run| run.start);
    let mut joined = Vec::<PageRun>::new();
    for run in all {
        match joined.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => joined.push(run),
        }
    }
    joined
}

/// The pages of the first list that are not in the second one, both in ascending order.
fn without(all: &[PageRun], some: &[PageRun]) -> Vec<PageRun> {
    let (mut left, mut next) = (Vec::new(), 0);
    for run in all {
        let mut start = run.start;
        while let Some(one) = some.get(next).filter(|one| one.start < run.end) {
            if one.start > start {
                left.push(PageRun { start, end: one.start });
            }
            start = start.max(one.end);
            // A range that is longer may also cover pages of the next run.
            if one.end > run.end {
                break;
            }
            next += 1;
        }
        if start < run.end {
            left.push(PageRun { start, end: run.end });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(pages: &[(u64, u64)]) -> Vec<PageRun> {
        pages.iter().map(|(start, end)| PageRun { start: *start, end: *end }).collect()
    }

    #[test]
    fn runs_are_joined_where_they_touch_and_taken_out_of_others() {
        let all = joined(&runs(&[(0, 4), (8, 10), (20, 30)]), &runs(&[(4, 6), (9, 12), (15, 16)]));
        assert_eq!(all, runs(&[(0, 6), (8, 12), (15, 16), (20, 30)]));
        let some = runs(&[(1, 2), (5, 9), (11, 25), (26, 27), (29, 40)]);
        assert_eq!(without(&all, &some), runs(&[(0, 1), (2, 5), (9, 11), (25, 26), (27, 29)]));
        assert_eq!(without(&all, &[]), all);
        assert_eq!(without(&all, &runs(&[(0, 100)])), []);
        // Against sets of single pages.
        let mut random = 7_u64;
        for _ in 0..500 {
            let mut list = || {
                let pages = (0..40_u64).filter(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    random >> 62 != 0
                });
                joined(&pages.map(|at| PageRun { start: at, end: at + 1 }).collect::<Vec<_>>(), &[])
            };
            let (one, other) = (list(), list());
            let has = |list: &[PageRun], page| {
                list.iter().any(|run| (run.start..run.end).contains(&page))
            };
            for page in 0..40 {
                let (first, second) = (has(&one, page), has(&other, page));
                assert_eq!(has(&without(&one, &other), page), first && !second);
                assert_eq!(has(&joined(&one, &other), page), first || second);
            }
        }
    }
}
