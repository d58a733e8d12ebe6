//! Random bytes, for keys that no peer can guess.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// Maximum number of bytes that the kernel gives at once, without an interruption by signals.
const MOST: usize = 256;

/// Takes `N` random bytes from the kernel, 256 at most.
///
/// # Errors
/// The kernel's: a filter of system calls may refuse getrandom(2). There is no substitute, because
/// a key that a peer can guess protects nothing.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= MOST) };
    let mut bytes = [0; N];
    loop {
        match getrandom(&mut bytes[..], GetRandomFlags::empty()) {
            Ok(count) if count == N => return Ok(bytes),
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // The kernel waits for its first random bytes after the machine has started.
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
        assert_eq!(bytes::<0>().unwrap(), []);
        assert_ne!(bytes::<MOST>().unwrap(), [0; MOST]);
    }

    #[cfg(feature = "testing")]
    #[test]
    fn bytes_that_the_kernel_refuses_are_an_error() {
        let refused = std::thread::spawn(|| {
            // Without a supervisor the kernel refuses the call.
            drop(crate::seccomp::listen(&[libc::SYS_getrandom as u32]).unwrap());
            bytes::<16>()
        });
        let error = refused.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
    }
}
