//! System calls of one process that another process answers, for tests.
//!
//! A process calls [`listen`] and gives the listener to its supervisor. Each system call on the
//! list then waits for the supervisor, which lets the kernel do the call or returns an error in its
//! place. The kernel's name for this is `SECCOMP_RET_USER_NOTIF` (seccomp_unotify(2), Linux 5.5).
//!
//! The supervisor does not protect the kernel from the process: the process may change the memory
//! that its arguments point to after the supervisor has answered.

use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Maximum number of system calls on a list: a jump of the filter skips at most 255 instructions.
const MOST: usize = 200;

/// Makes each system call of `numbers` wait for a reply of the supervisor.
///
/// This holds in this thread and in threads that it starts from now on. No program that this
/// process executes gets more rights than it has.
///
/// # Errors
/// The list is too long, or the kernel has no such filter.
pub fn listen(numbers: &[u32]) -> io::Result<SeccompListener> {
    if numbers.len() > MOST {
        return Err(io::Error::other(format!(
            "{} system calls on a list; {MOST} are possible",
            numbers.len()
        )));
    }
    let mut code = filter(numbers);
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: the call takes no pointer.
    let promised = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if promised != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `program` points to `code`, and the kernel copies both during the call.
    let made = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and it has no other owner.
    Ok(SeccompListener(unsafe { OwnedFd::from_raw_fd(made as i32) }))
}

/// Loads the call's number, compares it with each of `numbers`, and returns the action.
fn filter(numbers: &[u32]) -> Vec<libc::sock_filter> {
    let instruction =
        |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let load = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0);
    // A match jumps over the other comparisons and over the instruction that allows.
    let compare = numbers.iter().enumerate().map(|(at, &number)| {
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, (numbers.len() - at) as u8)
    });
    let give = |action| instruction(libc::BPF_RET | libc::BPF_K, action, 0);
    let ends = [give(libc::SECCOMP_RET_ALLOW), give(libc::SECCOMP_RET_USER_NOTIF)];
    std::iter::once(load).chain(compare).chain(ends).collect()
}

/// The supervisor's end of a filter.
///
/// Without one the calls of the list fail with `ENOSYS`.
#[derive(Debug)]
pub struct SeccompListener(OwnedFd);

/// A system call that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingSyscall {
    id: u64,
    /// Its number.
    pub number: u32,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// The process, in the supervisor's PID namespace; 0 if it is not visible there.
    pub thread: u32,
}

/// What happens to a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The kernel does it.
    Continue,
    /// It fails with this error number.
    Fail(i32),
}

impl From<OwnedFd> for SeccompListener {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for SeccompListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl SeccompListener {
    /// Waits for a system call. `None` when all threads under the filter have ended.
    ///
    /// # Errors
    /// The kernel's; or the descriptor is not a listener.
    pub fn next(&self) -> io::Result<Option<PendingSyscall>> {
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let found = fds[0].revents();
            if !found.contains(PollFlags::IN) {
                if found.is_empty() {
                    continue;
                }
                return Ok(None);
            }
            let mut notice = libc::seccomp_notif {
                id: 0,
                pid: 0,
                flags: 0,
                data: libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] },
            };
            // SAFETY: the request takes a pointer to a zeroed structure of this type.
            let got = unsafe {
                libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice)
            };
            if got == 0 {
                let (number, arguments) = (notice.data.nr as u32, notice.data.args);
                return Ok(Some(PendingSyscall {
                    id: notice.id,
                    number,
                    arguments,
                    thread: notice.pid,
                }));
            }
            match io::Error::last_os_error() {
                // The thread was killed or interrupted.
                error if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                error => return Err(error),
            }
        }
    }

    /// Replies to a system call. A reply to a thread that no longer waits is dropped.
    pub fn answer(&self, waiting: &PendingSyscall, reply: Reply) {
        let (error, flags) = match reply {
            Reply::Continue => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Reply::Fail(error) => (-error, 0),
        };
        let response = libc::seccomp_notif_resp { id: waiting.id, val: 0, error, flags };
        // SAFETY: the request takes a pointer to a structure of this type.
        let _ = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_supervisor_refuses_one_call_and_lets_the_next_one_through() {
        let (give, given) = mpsc::channel();
        let process = std::thread::spawn(move || {
            let listener = listen(&[libc::SYS_eventfd2 as u32, libc::SYS_timerfd_create as u32]);
            give.send(listener).unwrap();
            let open = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
            (open().map(drop), open().map(drop))
        });
        let listener = given.recv().unwrap().unwrap();
        let first = listener.next().unwrap().unwrap();
        assert_eq!((first.number, first.arguments[0]), (libc::SYS_eventfd2 as u32, 0));
        listener.answer(&first, Reply::Fail(libc::EMFILE));
        let second = listener.next().unwrap().unwrap();
        listener.answer(&second, Reply::Continue);
        assert_eq!(process.join().unwrap(), (Err(rustix::io::Errno::MFILE), Ok(())));
        assert_eq!(listener.next().unwrap(), None);
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        listen(&[0; MOST + 1]).unwrap_err();
    }
}
