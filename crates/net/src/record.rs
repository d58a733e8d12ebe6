//! Records: the pieces of messages, as they follow each other on a link.
//!
//! ```text
//!   each side first     "upcall\0n"   version (4)   window (2)   flags (2)   session (16)
//!                       received (8)   patience in ms (4)   0 (4)
//!   then records        kind (1)   0 (1)   length (2)   message (4)   received (4)   payload
//!   Begin               header of the message (32)   first bytes of its body
//!   More                further bytes of its body
//!   Credit              bytes of the body that may follow in addition (8)
//!   Reset, Stop, Ack    nothing
//! ```
//! All numbers are little endian. `message` counts the messages of its sender; in Credit and Stop
//! it is a number of the other side. `received` is the number of bytes of records that the sender
//! of the record has received on this link, modulo 2^32 in a record.
//!
//! There is no input or output here. All bytes that are read are untrusted.

use crate::frame::{FrameError, HEAD, u16_at, u32_at, u64_at};
use std::time::Duration;

/// The version of the protocol. Sides with different versions do not talk.
pub const VERSION: u32 = 6;

/// Length of a hello, in bytes.
pub const HELLO: usize = 48;

/// Length of a record's header, in bytes.
pub const RECORD: usize = 12;

/// Maximum length of a record's payload, in bytes: with its header, a record fills one of TLS.
pub const MOST_PAYLOAD: usize = (16 << 10) - RECORD;

/// Maximum number of bytes of a body in the record that begins its message.
pub const FIRST_PIECE: usize = MOST_PAYLOAD - HEAD;

const MAGIC: [u8; 8] = *b"upcall\0n";

/// The number of a session: random, and known to the two sides only.
pub type SessionKey = [u8; 16];

/// What each side says first on each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol version of the sender.
    pub version: u32,
    /// Maximum number of calls that the sender takes at once on this link.
    pub window: u16,
    /// Whether a session begins or goes on.
    pub begins: SessionStart,
    /// The session, which the client chooses.
    pub session: SessionKey,
    /// Number of bytes of records that the sender has received in this session.
    pub received: u64,
    /// Time for which the session may go on after a cut. Zero: it ends with its connection.
    pub patience: Duration,
}

/// Whether a connection begins a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStart {
    /// A new session.
    Begins,
    /// The session of an earlier connection goes on.
    GoesOn,
}

impl Hello {
    /// Encodes the hello.
    pub fn to_bytes(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.window.to_le_bytes());
        bytes[14] = u8::from(self.begins == SessionStart::GoesOn);
        bytes[16..32].copy_from_slice(&self.session);
        bytes[32..40].copy_from_slice(&self.received.to_le_bytes());
        let patience = u32::try_from(self.patience.as_millis()).unwrap_or(u32::MAX);
        bytes[40..44].copy_from_slice(&patience.to_le_bytes());
        bytes
    }

    /// Returns `true` if a hello may begin with these bytes.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.iter().zip(MAGIC).all(|(byte, magic)| *byte == magic)
    }

    /// The version of a hello that begins with these bytes, as soon as they have it.
    pub fn version_of(bytes: &[u8]) -> Option<u32> {
        (bytes.len() >= 12).then(|| u32_at(bytes, 8))
    }

    /// Decodes a hello. Of another version only the version is valid, so that it can be reported.
    ///
    /// # Errors
    /// The bytes are not a hello.
    pub fn read(bytes: &[u8; HELLO]) -> Result<Self, FrameError> {
        if bytes[..8] != MAGIC {
            return Err(FrameError("it does not speak Upcall's protocol"));
        }
        let (version, window) = (u32_at(bytes, 8), u16_at(bytes, 12));
        if version == VERSION {
            if window == 0 {
                return Err(FrameError("it takes no calls at all"));
            }
            if bytes[14] > 1 || bytes[15] != 0 || bytes[44..] != [0; 4] {
                return Err(FrameError("a hello whose reserved bytes are not zero"));
            }
        }
        let begins = if bytes[14] == 0 { SessionStart::Begins } else { SessionStart::GoesOn };
        let mut session = [0; 16];
        session.copy_from_slice(&bytes[16..32]);
        let patience = Duration::from_millis(u32_at(bytes, 40).into());
        Ok(Self { version, window, begins, session, received: u64_at(bytes, 32), patience })
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Begins a message.
    Begin,
    /// Continues its body.
    More,
    /// Lets the other side send more of a body.
    Credit,
    /// The rest of the message will not follow.
    Reset,
    /// The rest of the message is not wanted.
    Stop,
    /// Only tells what was received.
    Ack,
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The kind of the record.
    pub kind: RecordKind,
    /// Length of the payload, in bytes.
    pub len: usize,
    /// The message.
    pub message: u32,
    /// Number of bytes that the sender of the record has received, modulo 2^32.
    pub received: u32,
}

impl RecordHeader {
    /// Encodes the header. The payload has [`MOST_PAYLOAD`] bytes at most.
    pub fn to_bytes(self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[0] = self.kind as u8;
        bytes[2..4].copy_from_slice(&(self.len as u16).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.message.to_le_bytes());
        bytes[8..].copy_from_slice(&self.received.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// The bytes are not a header.
    pub fn read(bytes: &[u8; RECORD]) -> Result<Self, FrameError> {
        let (kind, least, most) = match bytes[0] {
            0 => (RecordKind::Begin, HEAD, MOST_PAYLOAD),
            1 => (RecordKind::More, 1, MOST_PAYLOAD),
            2 => (RecordKind::Credit, 8, 8),
            3 => (RecordKind::Reset, 0, 0),
            4 => (RecordKind::Stop, 0, 0),
            5 => (RecordKind::Ack, 0, 0),
            _ => return Err(FrameError("a record of an unknown kind")),
        };
        let len = u16_at(bytes, 2).into();
        if bytes[1] != 0 || !(least..=most).contains(&len) {
            return Err(FrameError("a record that has not the length of its kind"));
        }
        Ok(Self { kind, len, message: u32_at(bytes, 4), received: u32_at(bytes, 8) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            version: VERSION,
            window: 64,
            begins: SessionStart::GoesOn,
            session: *b"0123456789abcdef",
            received: 1 << 40,
            patience: Duration::from_millis(1500),
        }
    }

    #[test]
    fn who_speaks_something_else_is_told_from_who_speaks_another_version() {
        assert_eq!(Hello::read(&hello().to_bytes()), Ok(hello()));
        let newer = Hello { version: VERSION + 1, window: 0, ..hello() };
        assert_eq!(Hello::read(&newer.to_bytes()), Ok(newer));
        assert!(Hello::read(&Hello { window: 0, ..hello() }.to_bytes()).is_err());
        let mut other = [b' '; HELLO];
        other[..14].copy_from_slice(b"GET / HTTP/1.1");
        assert!(Hello::read(&other).is_err());
        for reserved in [14, 15, 44, 47] {
            let mut bytes = hello().to_bytes();
            bytes[reserved] = 2;
            assert!(Hello::read(&bytes).is_err(), "{reserved}");
        }
    }

    #[test]
    fn a_record_has_the_length_of_its_kind() {
        let header = RecordHeader { kind: RecordKind::More, len: 9, message: 7, received: 70_000 };
        assert_eq!(RecordHeader::read(&header.to_bytes()), Ok(header));
        for (kind, len) in [
            (RecordKind::Begin, HEAD - 1),
            (RecordKind::Begin, MOST_PAYLOAD + 1),
            (RecordKind::More, 0),
            (RecordKind::Credit, 9),
            (RecordKind::Ack, 1),
        ] {
            let bytes = RecordHeader { kind, len, ..header }.to_bytes();
            assert!(RecordHeader::read(&bytes).is_err(), "{kind:?} of {len}");
        }
        let mut bytes = header.to_bytes();
        bytes[0] = 6;
        assert!(RecordHeader::read(&bytes).is_err());
    }
}
