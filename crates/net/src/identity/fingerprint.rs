//! Fingerprints of identity keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::fmt;
use std::str::FromStr;

const PREFIX: &str = "SHA256:";

/// The SHA-256 of an identity's public key (its `SubjectPublicKeyInfo`).
///
/// It is printed as ssh prints it: `SHA256:` and the hash in base64 without padding. Two hosts with
/// the same fingerprint have the same identity key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a public key, given as DER.
    pub fn of_key(key: &[u8]) -> Self {
        let hash = ring::digest::digest(&ring::digest::SHA256, key);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(hash.as_ref());
        Self(bytes)
    }

    /// The hash in hexadecimal digits, which is safe as a file name.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what [`Fingerprint::hex`] wrote.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{PREFIX}{}", STANDARD_NO_PAD.encode(self.0)))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = BadFingerprint;

    fn from_str(text: &str) -> Result<Self, BadFingerprint> {
        let digits = text.strip_prefix(PREFIX).map(|digits| digits.trim_end_matches('='));
        let bytes = digits.and_then(|digits| STANDARD_NO_PAD.decode(digits).ok());
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or(BadFingerprint)
    }
}

/// A text that is no fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFingerprint;

impl fmt::Display for BadFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a fingerprint is `{PREFIX}` and 43 characters, as `upcall host show` prints it")
    }
}

impl std::error::Error for BadFingerprint {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_it_is_written() {
        let one = Fingerprint::of_key(b"");
        let text = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU";
        assert_eq!(one.to_string(), text);
        assert_eq!(text.parse(), Ok(one));
        assert_eq!(format!("{text}=").parse(), Ok(one));
        assert_eq!(Fingerprint::from_hex(&one.hex()), Some(one));
        for bad in ["", "SHA256:", &text[7..], &text[..49], "SHA256:é", "MD5:aa"] {
            assert_eq!(bad.parse::<Fingerprint>(), Err(BadFingerprint), "{bad}");
        }
        for bad in ["", "é", &"0".repeat(63), &"+0".repeat(32), &"é".repeat(32)] {
            assert_eq!(Fingerprint::from_hex(bad), None, "{bad}");
        }
    }
}
