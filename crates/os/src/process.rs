//! Other processes, and children that do not outlive their parent.
//!
//! A process is identified by its number and the time at which it began, since the number alone may
//! later be another process's.

use crate::processor::CpuSet;
use crate::socket::Connection;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Time at which a process began, in ticks since the machine started.
///
/// `None` if the process has ended, or is not shown by /proc.
pub fn born(pid: u32) -> Option<u64> {
    stat(pid, BORN)
}

/// Index of the start time in proc_pid_stat(5).
const BORN: usize = 22;

/// A number of proc_pid_stat(5), by its index there, from the fourth on.
pub(crate) fn stat(pid: u32, place: usize) -> Option<u64> {
    read_stat(pid, place).ok()?
}

/// Like [`stat`], with the kernel's error.
fn read_stat(pid: u32, place: usize) -> io::Result<Option<u64>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second word is the program's name in parentheses, which may contain anything. The rest
    // begins with the third word.
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest);
    Ok(rest.and_then(|rest| rest.split_ascii_whitespace().nth(place - 3)?.parse().ok()))
}

/// A descriptor that becomes readable when the process ends.
///
/// `None` if the process that began at `at` has ended already, or is not shown by /proc.
///
/// # Errors
/// No descriptor or no memory is left to find out, or the kernel refuses the call.
pub fn open(pid: u32, at: u64) -> io::Result<Option<OwnedFd>> {
    let Some(fd) = open_any(pid)? else { return Ok(None) };
    // The descriptor is opened before the check: a process that has the number now had it before.
    match read_stat(pid, BORN) {
        Ok(Some(began)) => Ok((began == at).then_some(fd)),
        _ if crate::socket::has_ended(&fd) => Ok(None),
        Ok(None) => Err(io::Error::other("the start time of the process cannot be read")),
        Err(error) => Err(error),
    }
}

/// A pidfd of the process that has this number in our PID namespace now.
///
/// `None` if there is none.
///
/// # Errors
/// No descriptor or no memory is left to find out, or the kernel refuses the call, as in a
/// container. A [connection](crate::socket::Connection::peer) has a pidfd of its peer nevertheless.
pub fn open_any(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    match pidfd_open(number, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        // There is none, or the number is that of a thread which is no process.
        Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A value that distinguishes a process from all others of this machine.
///
/// Two values are equal only if they are of the same process. It is a key, not a number to show:
/// processes in any namespace have one, and it is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The inode of its pidfds, from Linux 6.9 on.
    Pidfd(u64),
    /// On older kernels, its number in our PID namespace and the time at which it began.
    Numbered(u32, u64),
}

/// The identity of a pidfd's process.
///
/// `None` on kernels before 6.9, where pidfds cannot be compared.
pub fn identity(pidfd: impl AsFd) -> Option<Identity> {
    /// `PID_FS_MAGIC` of linux/magic.h.
    const PIDFS: i64 = 0x5049_4446;
    let on_pidfs = rustix::fs::fstatfs(&pidfd).is_ok_and(|system| system.f_type == PIDFS);
    let stat = rustix::fs::fstat(&pidfd).ok().filter(|_| on_pidfs)?;
    Some(Identity::Pidfd(stat.st_ino))
}

/// The identity of the process with this number in our PID namespace.
///
/// `None` if the number is 0, or /proc does not show the process.
pub fn identity_of_number(pid: u32) -> Option<Identity> {
    Some(Identity::Numbered(pid, born(pid).filter(|_| pid != 0)?))
}

/// The identity of this process.
///
/// `None` if neither its pidfd nor its number in /proc is available.
///
/// Where the kernel refuses `pidfd_open`, as in a container, the pidfd is that of a connection to
/// this process. Other processes find the same one at the ends of their connections, so a number
/// would not do.
///
/// # Errors
/// No descriptor or no memory is left.
pub fn own() -> io::Result<Option<Identity>> {
    let pidfd = match pidfd_open(rustix::process::getpid(), PidfdFlags::empty()) {
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(error.into()),
        Ok(pidfd) => Some(pidfd),
        Err(_) => Connection::pair()?.0.peer()?.pidfd,
    };
    Ok(pidfd.and_then(identity).or_else(|| identity_of_number(std::process::id())))
}

/// The effective user of this process.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns `true` if `uid` is the number of one user only.
///
/// The kernel shows every user without a number in our user namespace under the overflow number
/// (user_namespaces(7)). In a namespace that has a number for every user, the overflow number is
/// that of a single user, too.
pub fn is_known_user(uid: u32) -> bool {
    static OVERFLOW: OnceLock<u32> = OnceLock::new();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let overflow = || read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    // A process may enter another user namespace, so its map is read each time.
    uid != *OVERFLOW.get_or_init(overflow) || maps_all_users(&read("/proc/self/uid_map"))
}

/// Returns `true` if a user namespace with this `uid_map` has a number for every user.
fn maps_all_users(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// The inode of the PID namespace in which this process sees process numbers.
///
/// `None` if /proc is not mounted, or shows the processes of another namespace.
pub fn pid_namespace() -> Option<u32> {
    static FOUND: OnceLock<Option<u32>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let shown = std::fs::read_link("/proc/self").ok()?;
        let own = std::process::id().to_string();
        let space = std::fs::metadata("/proc/self/ns/pid").ok()?.ino();
        u32::try_from(space).ok().filter(|_| shown.as_os_str() == own.as_str())
    })
}

/// Restrictions that a child applies before it executes its program.
#[derive(Debug, Default)]
pub struct Bounds {
    /// The processors to which it confines itself.
    pub processors: Option<CpuSet>,
    /// The cgroup that it enters: its `cgroup.procs`, open for writing.
    pub cgroup: Option<OwnedFd>,
}

/// Makes the kernel kill the command's child when the starting thread ends.
///
/// That holds for an end by SIGKILL, too, and for a child that is stopped. A program that changes
/// its user when it starts (set-user-ID) escapes it. If a restriction cannot be applied, the start
/// fails with the kernel's error.
pub fn bind(command: &mut Command, bounds: Bounds) {
    let parent = rustix::process::getpid();
    let before_exec = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The kernel does not report a parent that ended before that line, but then the child
        // already has another parent.
        if rustix::process::getppid() != Some(parent) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        if let Some(cgroup) = &bounds.cgroup {
            rustix::io::write(cgroup, b"0")?;
        }
        if let Some(processors) = &bounds.processors {
            processors.confine()?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only code that is safe in a signal handler may run. The closure
    // makes system calls on values that existed before, and counts them in an atomic. It neither
    // allocates, frees nor locks (an error of the kernel is a number).
    unsafe { command.pre_exec(before_exec) };
}

/// The processor time that all threads of a process have used so far.
///
/// It is exact, and ten times as fast as reading /proc. `None` if there is no such process.
pub fn processor_time(pid: u32) -> Option<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is valid for writes.
    if unsafe { libc::clock_getcpuclockid(libc::pid_t::try_from(pid).ok()?, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes; for the clock of an ended process the kernel returns an
    // error.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

/// Returns `true` if any thread of a process runs, or would if it had a processor.
///
/// It reads /proc, which takes about 10 µs for each thread.
pub fn is_runnable(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stats
        .into_iter()
        .any(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R')))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::socket::has_ended;
    use crate::trace::tests::Killed;

    #[test]
    fn a_process_is_known_by_number_and_birth() {
        let mut child = Killed(Command::new("sleep").arg("100").spawn().unwrap());
        let at = born(child.0.id()).unwrap();
        let fd = open(child.0.id(), at).unwrap().unwrap();
        assert!(!has_ended(&fd) && open(child.0.id(), at + 1).unwrap().is_none());
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        assert!(
            has_ended(&fd)
                && born(child.0.id()).is_none()
                && open(child.0.id(), at).unwrap().is_none()
        );
    }

    #[test]
    fn processes_are_told_apart() {
        let open = |pid| {
            pidfd_open(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), PidfdFlags::empty())
                .unwrap()
        };
        let own = || open(std::process::id());
        let mut child = Killed(Command::new("sleep").arg("100").spawn().unwrap());
        // Kernels before 6.9 have no identity for a pidfd.
        assert_eq!(identity(own()), identity(own()));
        assert_eq!(
            super::own().unwrap(),
            identity(own()).or_else(|| identity_of_number(std::process::id()))
        );
        if let Some(own) = identity(own()) {
            assert_ne!(identity(open(child.0.id())), Some(own));
        }
        assert_ne!(identity_of_number(child.0.id()), identity_of_number(std::process::id()));
        assert_eq!(identity_of_number(0), None);
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(identity(reader), None);
        child.0.kill().unwrap();
        child.0.wait().unwrap();
    }

    #[test]
    fn the_overflow_number_is_no_users_own() {
        assert!(is_known_user(0) && is_known_user(1000) && is_known_user(65533));
        assert!(maps_all_users("         0          0 4294967295\n"));
        for map in ["", "0 1000 1", "0 100000 65536", "0 0 65535\n65535 65535 4294901760"] {
            assert!(!maps_all_users(map), "{map}");
        }
    }

    #[test]
    fn a_bound_child_ends_with_the_thread_that_started_it() {
        let processors = CpuSet::allowed().unwrap();
        let first = processors.iter().next().unwrap();
        let start = move || {
            let mut command = Command::new("sleep");
            bind(
                command.arg("100"),
                Bounds { processors: Some(CpuSet::only(first)), cgroup: None },
            );
            command.spawn().unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        let mut child = start();
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        assert!(
            status.lines().any(|line| line == format!("Cpus_allowed_list:\t{first}")),
            "{status}"
        );
        assert!(processor_time(child.id()).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(processor_time(child.id()).is_none() && !is_runnable(child.id()));
    }
}
