//! Where a home is, for references that leave its host.

use siphasher::sip::SipHasher13;
use std::fmt;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use upcall_directory::names;
use upcall_net::NotListening;
use upcall_net::address::is_server;

/// A host with its network, and a folder of names there, each as a number that no other one has.
///
/// A process in the same place reaches the home through memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HomePlace {
    host: u32,
    folder: u32,
}

/// Hashes what tells one place from another. The numbers mean nothing to anybody else.
fn number(of: &impl Hash) -> u32 {
    let mut hasher = SipHasher13::new_with_keys(0x686f_6d65, 0x706c_6163);
    of.hash(&mut hasher);
    hasher.finish() as u32
}

impl HomePlace {
    /// The place of this process. `None` if the kernel does not tell.
    pub(crate) fn own() -> Option<Self> {
        static OWN: OnceLock<Option<HomePlace>> = OnceLock::new();
        *OWN.get_or_init(|| {
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            let network = fs::metadata("/proc/self/ns/net").ok()?.ino();
            let folder = fs::metadata(names::folder().ok()?).ok()?;
            let host = (boot.trim().to_string(), network);
            Some(Self { host: number(&host), folder: number(&(host, folder.dev(), folder.ino())) })
        })
    }

    /// The place as a number, for messages.
    pub(crate) fn to_number(self) -> u64 {
        u64::from(self.host) << 32 | u64::from(self.folder)
    }

    /// The place with this number.
    pub(crate) fn of_number(number: u64) -> Self {
        Self { host: (number >> 32) as u32, folder: number as u32 }
    }

    /// Returns `true` if both are on one host.
    pub(crate) fn is_on_host_of(self, other: Self) -> bool {
        self.host == other.host
    }
}

/// Returns `true` if HOST:PORT leads each host to itself.
pub(crate) fn is_within_host(server: &str) -> bool {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Returns `true` if HOST:PORT stands for all addresses of a host, and leads nowhere.
pub(crate) fn is_unspecified(server: &str) -> bool {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host).trim_matches(['[', ']']);
    host.is_empty() || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_unspecified())
}

/// The address at which other hosts reach a home that listens at `address`, HOST:PORT as the
/// program gave it, with the port that the kernel chose for 0.
pub(crate) fn reached_at(address: &str, port: u16) -> Option<String> {
    let (host, _) = address.rsplit_once(':')?;
    (!is_unspecified(address)).then(|| format!("{host}:{port}"))
}

/// Maximum length of HOST:PORT, in bytes.
const LONGEST_SERVER: usize = 264;

/// Returns `true` if an address, which may come from another party, can be in a reference.
pub(crate) fn may_be_reached(address: &str) -> bool {
    address.len() <= LONGEST_SERVER
        && is_server(address)
        && !address.contains(['/', '@'])
        && !is_unspecified(address)
}

/// An address for references, if it can be one.
pub(crate) fn checked_address(address: String) -> Result<String, NotListening> {
    if may_be_reached(&address) {
        return Ok(address);
    }
    Err(NotListening::Unable {
        what: format!("{address:?} as the address at which other hosts reach the home"),
        error: io::Error::new(
            io::ErrorKind::InvalidInput,
            "it has to be HOST:PORT, by the name under which they trust this host",
        ),
    })
}

impl fmt::Display for HomePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.to_number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        for within in ["127.0.0.1:7", "localhost:7", "[::1]:7", "127.9.9.9:7"] {
            assert!(is_within_host(within) && !is_unspecified(within), "{within}");
        }
        for none in ["0.0.0.0:7", "[::]:7", ":7"] {
            assert!(is_unspecified(none) && reached_at(none, 9).is_none(), "{none}");
        }
        for other in ["ws2:7", "10.0.0.1:7", "[fe80::1]:7"] {
            assert!(!is_unspecified(other) && !is_within_host(other), "{other}");
        }
        let long = format!("{}:7", "h".repeat(264));
        for bad in ["ws2", "ws2:0", "a/b:7", "a@b:7", "0.0.0.0:7", ":7", &long] {
            assert!(!may_be_reached(bad), "{bad}");
        }
        assert!(may_be_reached("ws2:7") && may_be_reached("[::1]:7"));
        assert_eq!(reached_at("ws2:0", 9).as_deref(), Some("ws2:9"));
        assert_eq!(reached_at("[::1]:0", 9).as_deref(), Some("[::1]:9"));
        let own = HomePlace::own().unwrap();
        assert_eq!(HomePlace::of_number(own.to_number()), own);
    }
}
