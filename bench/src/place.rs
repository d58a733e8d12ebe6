//! Selection of processors, and confinement of threads and processes to them.

use std::fs;
use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpus {
    /// The client's, and the server's in `one-core`.
    pub first: usize,
    /// The server's in `two-cores`; `None` on a machine (or in a container) with one processor.
    pub second: Option<usize>,
}

impl Cpus {
    /// Returns the first two processors that this process may run on.
    ///
    /// # Errors
    /// The kernel does not report them, or reports none.
    pub fn allowed() -> io::Result<Cpus> {
        let mut cpus = allowed()?.into_iter();
        let first =
            cpus.next().ok_or_else(|| io::Error::other("this process may run on no processor"))?;
        Ok(Cpus { first, second: cpus.next() })
    }
}

/// Returns the processors that this process may run on, in order.
///
/// # Errors
/// The kernel does not report them.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Keeps the calling thread, and the threads and processes that it starts, on processor `cpu`.
///
/// # Errors
/// The processor does not exist, or this process may not use it.
pub fn pin(cpu: usize) -> io::Result<()> {
    confine(&[cpu])
}

/// Keeps the calling thread, and the threads and processes that it starts, on these processors.
///
/// # Errors
/// A processor does not exist, or this process may use none of them.
pub fn confine(cpus: &[usize]) -> io::Result<()> {
    let refused = |why: &str| {
        io::Error::other(format!(
            "processor {}: {why}; see `taskset -p $$` for those allowed",
            list(cpus)
        ))
    };
    if cpus.iter().any(|&cpu| cpu >= CpuSet::MAX_CPU) {
        return Err(refused("no such processor"));
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    sched_setaffinity(None, &set).map_err(|error| refused(&error.to_string()))
}

/// Keeps all threads of a process, and those that they start, on these processors.
///
/// # Errors
/// The process has ended, or none of the processors exists.
pub(crate) fn confine_process(process: u32, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        // `None` would mean the calling thread.
        if let Some(thread) =
            task?.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?))
        {
            sched_setaffinity(Some(thread), &set)?;
        }
    }
    Ok(())
}

/// Parses processors in the form of a child's command line: numbers separated by commas.
pub(crate) fn numbers(list: &str) -> Option<Vec<usize>> {
    list.split(',').map(|number| number.parse().ok()).collect()
}

/// Formats processors as [`numbers`] parses them.
pub(crate) fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Runs `body` on processor `cpu`, and then restores the processors of the calling thread.
///
/// # Errors
/// As for [`pin`]; or the kernel does not report where the thread may run.
pub fn on<T>(cpu: usize, body: impl FnOnce() -> T) -> io::Result<T> {
    let before = sched_getaffinity(None)?;
    pin(cpu)?;
    let result = body();
    sched_setaffinity(None, &before)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_confined_for_a_while() {
        let before = sched_getaffinity(None).unwrap();
        let first = Cpus::allowed().unwrap().first;
        let there = on(first, Cpus::allowed).unwrap().unwrap();
        assert_eq!(there, Cpus { first, second: None });
        assert_eq!(on(first, allowed).unwrap().unwrap(), [first]);
        assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
    }
}
