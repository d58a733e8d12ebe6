//! What a trusted host may do, and the file that records it.

use super::address::HostAddress;
use super::certificate::IdentityCertificate;
use super::error::IdentityError;
use super::name::HostName;
use super::stranger::PeerRole;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// What a trusted host may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPermission {
    /// It may call servers of this user here.
    Call,
    /// It may be called from here.
    Serve,
    /// Both.
    #[default]
    Both,
}

impl HostPermission {
    /// Returns `true` if a peer may play this part.
    pub fn allows(self, role: PeerRole) -> bool {
        match role {
            PeerRole::Client => self != Self::Serve,
            PeerRole::Server => self != Self::Call,
        }
    }
}

impl fmt::Display for HostPermission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Call => "call",
            Self::Serve => "serve",
            Self::Both => "call, serve",
        })
    }
}

impl FromStr for HostPermission {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words: Vec<_> = text.split(',').map(str::trim).collect();
        words.sort_unstable();
        match &words[..] {
            ["call"] => Ok(Self::Call),
            ["serve"] => Ok(Self::Serve),
            ["both"] | ["call", "serve"] => Ok(Self::Both),
            _ => Err("give `call`, `serve` or `both`".into()),
        }
    }
}

/// A host that this user trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedHost {
    /// The label that this user gave it.
    pub name: HostName,
    /// What it may do.
    pub may: HostPermission,
    /// Where servers of it listen, as this user knows. May be empty.
    pub addresses: Vec<HostAddress>,
    /// The certificate of its identity.
    pub certificate: IdentityCertificate,
}

impl TrustedHost {
    /// Where its server with this port listens, if this user has said that.
    pub fn address(&self, port: u16) -> Option<&HostAddress> {
        self.addresses.iter().find(|address| address.port() == port)
    }

    /// The text of the host's file: lines for a person to read, and the certificate as PEM.
    pub fn text(&self) -> String {
        let Self { name, may, addresses, certificate } = self;
        let mut lines = format!("name: {name}\nmay: {may}\n");
        if !addresses.is_empty() {
            let all: Vec<_> = addresses.iter().map(HostAddress::to_string).collect();
            lines += &format!("address: {}\n", all.join(", "));
        }
        lines + &format!("fingerprint: {}\n{}", certificate.fingerprint(), certificate.pem())
    }

    /// Reads the host's file. Lines may be missing; a host without the line `may` may do both.
    ///
    /// # Errors
    /// [`IdentityError::Malformed`]
    pub fn read(name: HostName, path: &Path, text: &str) -> Result<Self, IdentityError> {
        let malformed = |what: String| IdentityError::Malformed { path: path.into(), what };
        let may = match field(text, "may") {
            Some(may) => {
                may.parse().map_err(|_| malformed(format!("has the line `may: {may}`")))?
            }
            None => HostPermission::Both,
        };
        let addresses = match field(text, "address") {
            Some(all) => all
                .split(',')
                .map(|one| one.trim().parse())
                .collect::<Result<_, _>>()
                .map_err(|_| malformed(format!("has the line `address: {all}`")))?,
            None => Vec::new(),
        };
        let certificate = IdentityCertificate::from_pem(text.as_bytes())
            .map_err(|_| malformed("holds no certificate of an identity".into()))?;
        let written = field(text, "fingerprint");
        if written.is_some_and(|written| written.parse() != Ok(certificate.fingerprint())) {
            return Err(malformed("has another fingerprint than its certificate".into()));
        }
        Ok(Self { name, may, addresses, certificate })
    }
}

/// The value of a line `key: value` before the first block of PEM.
pub fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let lines = text.lines().take_while(|line| !line.starts_with("-----BEGIN"));
    let mut pairs = lines.filter_map(|line| line.split_once(':'));
    pairs.find(|(found, _)| found.trim() == key).map(|(_, value)| value.trim())
}
