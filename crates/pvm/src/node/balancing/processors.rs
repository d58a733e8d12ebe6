//! The number of processors that the machine may use, which can change while it runs.

use rustix::process::Pid;
use rustix::thread::sched_getaffinity;

/// Number of processors on which the threads of this process may run. `None`: not known.
///
/// The calling thread does not count, because it is confined to one processor. The kernel changes
/// the other threads' masks when a control group loses a processor or gets one, and `taskset -a`
/// changes them for a user.
pub(super) fn processors() -> Option<usize> {
    let own = rustix::thread::gettid();
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let threads = tasks.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Pid::from_raw(name.to_str()?.parse().ok()?)
    });
    let count = |thread: Pid| Some(sched_getaffinity(Some(thread)).ok()?.count() as usize);
    threads.filter(|thread| *thread != own).filter_map(count).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_other_threads_are_counted() {
        let (done, waits) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || waits.recv());
        let all = std::thread::available_parallelism().unwrap().get();
        // Without a control group's quota, that is what the standard library finds.
        assert!(processors().unwrap() >= all);
        drop(done);
        assert!(other.join().unwrap().is_err());
    }
}
