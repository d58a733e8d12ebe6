//! A network device whose packets this process reads and writes, for tests.
//!
//! What the kernel of a network namespace sends through the device is read here, a packet at a
//! time, and what is written here arrives there. So a test can delay, lose and change packets on a
//! kernel without `netem`.

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Maximum number of bytes of a packet.
pub const PACKET: usize = 1 << 16;

/// A device for IP packets. It exists until this is dropped.
#[derive(Debug)]
pub struct Tun(OwnedFd);

impl Tun {
    /// Creates the device `name` in a network namespace, which a file names. The device is down
    /// and has no address.
    ///
    /// # Errors
    /// The kernel's error: this process may not do it, the kernel has no such devices, or the name
    /// is taken.
    pub fn create(namespace: &Path, name: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let namespace = open(namespace, flags, Mode::empty())?;
        // Only a thread of its own changes its namespace. The device stays where it was made.
        let create = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Self::create_here(name)
        };
        let made = std::thread::scope(|scope| scope.spawn(create).join());
        made.unwrap_or_else(|_| Err(io::Error::other("the thread that makes a device panicked")))
    }

    fn create_here(name: &str) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let device = open("/dev/net/tun", flags, Mode::empty())?;
        let mut wanted = libc::ifreq {
            ifr_name: [0; libc::IFNAMSIZ],
            ifr_ifru: libc::__c_anonymous_ifr_ifru {
                ifru_flags: (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short,
            },
        };
        // One byte at least is left for the end of the name.
        let bytes = name.bytes().take(libc::IFNAMSIZ - 1);
        wanted.ifr_name.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as libc::c_char);
        // SAFETY: `wanted` is an `ifreq` that lives during the call, as TUNSETIFF expects.
        match unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut wanted) } {
            0 => Ok(Self(device)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Reads the next packet that the namespace's kernel has sent. Returns its length.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none, or another error of the kernel.
    pub fn read(&self, packet: &mut [u8; PACKET]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, packet)?)
    }

    /// Lets a packet arrive at the namespace's kernel.
    ///
    /// # Errors
    /// The kernel's error, if it refuses the packet.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.0, packet)?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
