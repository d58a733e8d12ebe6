//! Where the members of a group over several hosts are, as its leader lists them.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use upcall_net::identity::Fingerprint;
use upcall_os::random;

/// Where a member is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberPlace {
    pub(crate) machine: MachineKey,
    /// Where members on other machines reach it.
    pub(crate) address: SocketAddr,
    /// The identity of its host, in hexadecimal digits, as the leader has found it proved. `None`:
    /// all members are on one machine, and no host is proved.
    pub(crate) identity: Option<String>,
}

impl MemberPlace {
    /// Returns `true` if both give the same machine, and different hosts.
    pub(crate) fn is_at_odds_with(&self, other: &Self) -> bool {
        self.machine == other.machine && self.identity != other.identity
    }

    /// The identity of its host.
    pub(crate) fn identity(&self) -> Option<Fingerprint> {
        self.identity.as_deref().and_then(Fingerprint::from_hex)
    }
}

/// A machine, and a folder of names on it. Members with the same key reach each other through
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct MachineKey {
    boot: u128,
    device: u64,
    inode: u64,
    /// For tests: members of one machine that behave as if they were on several.
    apart: u64,
}

impl MachineKey {
    /// A key that no machine has.
    pub(crate) fn unknown() -> Self {
        Self { boot: 0, device: 0, inode: 0, apart: 0 }
    }

    /// The key of this machine and this folder. If they cannot be read, the key is random, so that
    /// every other process counts as one on another machine.
    ///
    /// # Errors
    /// The key has to be random, and the kernel gives no random bytes.
    pub(crate) fn of(folder: &Path, apart: u64) -> io::Result<Self> {
        match Self::read(folder, apart) {
            Some(key) => Ok(key),
            None => {
                let boot = u128::from_le_bytes(random::bytes()?);
                Ok(Self { boot, device: 0, inode: 0, apart })
            }
        }
    }

    /// The key of this machine and this folder. `None` if they cannot be read.
    pub(crate) fn read(folder: &Path, apart: u64) -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let boot = u128::from_str_radix(&boot.trim().replace('-', ""), 16).ok()?;
        let folder = fs::metadata(folder).ok()?;
        Some(Self { boot, device: folder.dev(), inode: folder.ino(), apart })
    }
}
