//! What the kernel knows about a TCP connection.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Whether a peer has acknowledged what was sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// It has acknowledged all bytes.
    All,
    /// Some bytes are not acknowledged, or not taken by the peer's kernel. Its last sign of life
    /// came this long ago.
    Silent(Duration),
}

/// Asks the kernel when the peer of a connection last gave a sign of life.
///
/// A peer whose kernel has no room for bytes says so, which is a sign of life.
///
/// # Errors
/// The kernel's error.
pub fn acknowledged(socket: impl AsFd) -> io::Result<Acknowledged> {
    let info = info(socket)?;
    let waits = info.tcpi_unacked > 0 || info.tcpi_probes > 0 || info.tcpi_backoff > 0;
    Ok(match waits {
        true => Acknowledged::Silent(Duration::from_millis(info.tcpi_last_ack_recv.into())),
        false => Acknowledged::All,
    })
}

/// Asks the kernel how long the shortest round trip has taken.
///
/// Others are longer by what they wait in queues, and for a process that answers late. A kernel
/// from before Linux 4.6 tells the average only.
///
/// # Errors
/// The kernel's error.
pub fn round_trip(socket: impl AsFd) -> io::Result<Duration> {
    let info = info(socket)?;
    let shortest = if info.tcpi_min_rtt == 0 { info.tcpi_rtt } else { info.tcpi_min_rtt };
    Ok(Duration::from_micros(shortest.into()))
}

fn info(socket: impl AsFd) -> io::Result<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = mem::size_of_val(&info) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `info` has `len` bytes, which the kernel may write.
    let done = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all fields are numbers, the kernel has written some, and the others are zero.
    Ok(unsafe { info.assume_init() })
}

/// Lets the kernel take bytes only while it holds fewer than this number that it has not sent.
///
/// # Errors
/// The kernel's error.
pub fn hold_unsent(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let (value, len) = (&raw const bytes, mem::size_of_val(&bytes) as libc::socklen_t);
    // SAFETY: `value` points to `len` bytes, which the kernel reads.
    let done = unsafe {
        libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, value.cast(), len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_whose_bytes_have_arrived_is_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        // A reply acknowledges.
        server.write_all(b"hello").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(acknowledged(&client).unwrap(), Acknowledged::All);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(acknowledged(&file).is_err());
    }
}
