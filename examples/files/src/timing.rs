//! Times of calls: each is measured by itself, so that the client's work on the reply is not
//! counted.

use crate::files::{Entry, Status};
use crate::walk::{Problem, Transport};
use std::time::{Duration, Instant};

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening a file.
    Open,
    /// Querying its status.
    Stat,
    /// Reading from it.
    Read,
    /// Closing a file or a directory.
    Close,
    /// Opening a directory.
    OpenDirectory,
    /// Listing it.
    Entries,
}

/// All operations, in the order of their numbers.
pub const OPERATIONS: [(Operation, &str); 6] = [
    (Operation::Open, "open"),
    (Operation::Stat, "stat"),
    (Operation::Read, "read"),
    (Operation::Close, "close"),
    (Operation::OpenDirectory, "open-directory"),
    (Operation::Entries, "entries"),
];

/// A transport that records the time of each call.
pub struct Timed<T> {
    inner: T,
    samples: [Vec<Duration>; OPERATIONS.len()],
}

impl<T> Timed<T> {
    /// Wraps `inner`, which carries the calls.
    pub fn new(inner: T) -> Self {
        Self { inner, samples: Default::default() }
    }

    /// The transport itself.
    pub fn inner(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Takes the times recorded since the last call.
    pub fn take(&mut self) -> Samples {
        Samples(std::mem::take(&mut self.samples))
    }

    fn note(&mut self, operation: Operation, since: Instant) {
        self.samples[operation as usize].push(since.elapsed());
    }
}

impl<T: Transport> Transport for Timed<T> {
    type File = T::File;
    type Directory = T::Directory;

    fn open(&mut self, path: &[u8]) -> Result<T::File, Problem> {
        let since = Instant::now();
        let done = self.inner.open(path);
        self.note(Operation::Open, since);
        done
    }

    fn stat(&mut self, file: &T::File) -> Result<Status, Problem> {
        let since = Instant::now();
        let done = self.inner.stat(file);
        self.note(Operation::Stat, since);
        done
    }

    fn read(&mut self, file: &T::File, offset: u64, most: u32) -> Result<&[u8], Problem> {
        let since = Instant::now();
        let done = self.inner.read(file, offset, most);
        // Not `note`, since the transport still lends the reply.
        self.samples[Operation::Read as usize].push(since.elapsed());
        done
    }

    fn close(&mut self, file: T::File) -> Result<(), Problem> {
        let since = Instant::now();
        let done = self.inner.close(file);
        self.note(Operation::Close, since);
        done
    }

    fn open_directory(&mut self, path: &[u8]) -> Result<T::Directory, Problem> {
        let since = Instant::now();
        let done = self.inner.open_directory(path);
        self.note(Operation::OpenDirectory, since);
        done
    }

    fn entries(
        &mut self,
        directory: &T::Directory,
        start: u64,
        most: u32,
    ) -> Result<Vec<Entry>, Problem> {
        let since = Instant::now();
        let done = self.inner.entries(directory, start, most);
        self.note(Operation::Entries, since);
        done
    }

    fn close_directory(&mut self, directory: T::Directory) -> Result<(), Problem> {
        let since = Instant::now();
        let done = self.inner.close_directory(directory);
        self.note(Operation::Close, since);
        done
    }
}

/// The times of the calls of one round, by operation.
#[derive(Clone, Debug, Default)]
pub struct Samples([Vec<Duration>; OPERATIONS.len()]);

impl Samples {
    /// The times of one operation.
    pub fn of(&self, operation: Operation) -> &[Duration] {
        &self.0[operation as usize]
    }

    /// Adds times of one operation that were measured elsewhere.
    pub fn add(&mut self, operation: Operation, lengths: Vec<Duration>) {
        self.0[operation as usize].extend(lengths);
    }

    /// Number of calls.
    pub fn calls(&self) -> u64 {
        self.0.iter().map(|s| s.len() as u64).sum()
    }

    /// The time inside calls.
    pub fn total(&self) -> Duration {
        self.0.iter().flatten().sum()
    }

    /// All times, shortest first.
    pub fn sorted(&self) -> Vec<Duration> {
        sorted(self.0.iter().flatten().copied().collect())
    }
}

/// Sorts times, shortest first.
pub fn sorted(mut lengths: Vec<Duration>) -> Vec<Duration> {
    lengths.sort_unstable();
    lengths
}

/// The value that `share` of the sorted times do not exceed; zero if there are none.
pub fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let Some(last) = sorted.len().checked_sub(1) else { return Duration::ZERO };
    sorted[((last as f64) * share).round() as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let lengths: Vec<Duration> = (0..=100).rev().map(Duration::from_nanos).collect();
        let lengths = sorted(lengths);
        assert_eq!(quantile(&lengths, 0.5), Duration::from_nanos(50));
        assert_eq!(quantile(&lengths, 0.99), Duration::from_nanos(99));
        assert_eq!(quantile(&lengths, 1.0), Duration::from_nanos(100));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }
}
