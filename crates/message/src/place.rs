//! Where the members of a group over several hosts are, as its leader lists them.

use serde::{Deserialize, Serialize};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use upcall_net::identity::Fingerprint;

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
    /// The key of this machine and this folder. If they cannot be read, the key is random, so that
    /// every other process counts as one on another machine.
    pub(crate) fn of(folder: &Path, apart: u64) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let boot =
            boot.and_then(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok());
        let folder = fs::metadata(folder).ok();
        let known = boot.zip(folder.map(|folder| (folder.dev(), folder.ino())));
        let (boot, (device, inode)) = known.unwrap_or_else(|| (random(), (0, 0)));
        Self { boot, device, inode, apart }
    }
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    // getrandom fills at most 256 bytes at once, without being interrupted by signals.
    let _ = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    u128::from_le_bytes(bytes)
}
