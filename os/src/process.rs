//! Other processes, by number and the moment at which they began: a number alone may be another process's tomorrow.

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;

/// When a process began, in the kernel's ticks since the machine did. `None` if it has ended, or cannot be seen (/proc).
pub fn born(pid: u32) -> Option<u64> {
    stat(pid, 22)
}

/// A number of proc_pid_stat(5), by its place there, from the fourth on.
pub(crate) fn stat(pid: u32, place: usize) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second word is the program's name in parentheses, which may hold anything; what follows begins with the third.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(place - 3)?.parse().ok()
}

/// A descriptor that becomes readable when the process ends; `None` if that process, the one which began then, has ended already or cannot be seen.
pub fn open(pid: u32, at: u64) -> Option<OwnedFd> {
    let fd = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    // Opened first, looked at then: whoever has the number now had it before.
    (born(pid) == Some(at)).then_some(fd)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::socket::has_ended;

    #[test]
    fn a_process_is_known_by_number_and_birth() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let at = born(child.id()).unwrap();
        let fd = open(child.id(), at).unwrap();
        assert!(!has_ended(&fd) && open(child.id(), at + 1).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(&fd) && born(child.id()).is_none() && open(child.id(), at).is_none());
    }
}
