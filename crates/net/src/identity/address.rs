//! Where a server of a trusted host listens.

use std::fmt;
use std::str::FromStr;

/// Maximum length of the host's part, in bytes: that of a name in DNS.
const LONGEST_HOST: usize = 253;

/// An address `HOST:PORT` at which a server of a trusted host listens.
///
/// HOST is a name of DNS, an IPv4 address, or an IPv6 address in brackets. It is not looked up
/// here. The text is safe in a file of lines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostAddress {
    host: String,
    port: u16,
}

impl HostAddress {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for HostAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || "give HOST:PORT, such as 10.0.0.2:7000, with a port from 1 to 65535".to_owned();
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let is_part = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let ip = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match ip {
            Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.len() <= LONGEST_HOST && host.bytes().all(is_part),
        };
        let is_number = port.bytes().all(|b| b.is_ascii_digit());
        let port = port.parse().ok().filter(|&port| port != 0 && is_number);
        port.filter(|_| is_host).map(|port| Self { host: host.into(), port }).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in ["10.0.0.2:7000", "ws2.example:1", "[::1]:65535", "a_b-c:80"] {
            assert_eq!(good.parse::<HostAddress>().unwrap().to_string(), good);
        }
        for bad in [
            "", ":", "a", "a:", ":7", "a:0", "a:65536", "a:+7", "a b:7", "a,b:7", "a\n:7", "::1:7",
            "[a]:7", "a/b:7", "é:7",
        ] {
            assert!(bad.parse::<HostAddress>().is_err(), "{bad:?}");
        }
        assert!(format!("{}:7", "x".repeat(254)).parse::<HostAddress>().is_err());
    }
}
