//! Encoding of questions to services and their answers in a block: 32-bit integers, and texts as
//! their length including the final 0, then the bytes. `pvm_pkint` and `pvm_pkstr` use the same
//! layout, but with padding.
//!
//! Programs' texts are bytes in any encoding. Here each byte is a character of its own (U+0000 to
//! U+00FF), so that a text that is sent back is unchanged. [`exact`] returns the bytes.

use serde::{Deserialize, Serialize};

/// Reads a packet. It works on a copy, because the sender is not trusted.
#[derive(Clone, Copy, Debug)]
pub struct PacketReader<'a>(&'a [u8]);

impl<'a> PacketReader<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next integer. `None`: there is none.
    pub fn int(&mut self) -> Option<i32> {
        let (int, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i32::from_ne_bytes(*int))
    }

    /// The next text. `None`: there is no complete one.
    pub fn text(&mut self) -> Option<String> {
        let mut ahead = *self;
        let length = usize::try_from(ahead.int()?).ok()?;
        let (text, rest) = ahead.0.split_at_checked(length)?;
        let (0, text) = text.split_last()? else { return None };
        self.0 = rest;
        Some(text.iter().copied().map(char::from).collect())
    }

    /// All bytes that are left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// The bytes that a text was read from. A character that is not a byte becomes a question mark.
pub fn exact(text: &str) -> Vec<u8> {
    text.chars().map(|one| u8::try_from(one).unwrap_or(b'?')).collect()
}

/// A text that was read, for display.
pub fn shown(text: &str) -> String {
    String::from_utf8_lossy(&exact(text)).into_owned()
}

/// A text of a person, for writing to a packet.
pub fn written(text: &str) -> String {
    text.bytes().map(char::from).collect()
}

/// A packet to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet(Vec<u8>);

impl Packet {
    /// Appends an integer.
    #[must_use]
    pub fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    /// Appends integers.
    #[must_use]
    pub fn ints(self, values: impl IntoIterator<Item = i32>) -> Self {
        values.into_iter().fold(self, Self::int)
    }

    /// Appends a text, up to its first 0.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        let text = exact(text.split('\0').next().unwrap_or_default());
        let mut longer = self.int(i32::try_from(text.len() + 1).unwrap_or(i32::MAX));
        longer.0.extend(text);
        longer.0.push(0);
        longer
    }

    /// Appends bytes.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// The packet's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_short_is_not() {
        let packet = Packet::default().int(-3).text("tile").ints([1, 2]).text("").bytes(b"xyz");
        let mut reader = PacketReader::new(packet.as_bytes());
        assert_eq!((reader.int(), reader.text().as_deref()), (Some(-3), Some("tile")));
        assert_eq!(
            (reader.int(), reader.int(), reader.text().as_deref()),
            (Some(1), Some(2), Some(""))
        );
        assert_eq!(reader.rest(), b"xyz");
        let latin = Packet::default().text("\u{e9}");
        assert_eq!(
            (latin.as_bytes()[4], exact(&PacketReader::new(latin.as_bytes()).text().unwrap())),
            (0xE9, vec![0xE9])
        );
        for bad in [
            &[1, 0, 0][..],
            &[2, 0, 0, 0, b'a'],
            &[0, 0, 0, 0],
            &[255, 255, 255, 255, 0],
            &[2, 0, 0, 0, b'a', b'b'],
        ] {
            assert_eq!(PacketReader::new(bad).text(), None);
        }
    }
}
