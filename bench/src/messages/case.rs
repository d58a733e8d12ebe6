//! The cases of messages: UDM's Table 4 (D14), and figures that users of queues ask for besides.

use std::fmt;
use std::str::FromStr;

use crate::case::Placement;
use crate::error::RunError;

/// Maximum number of messages in one burst. A contender with a shorter queue has fewer
/// ([`System::BURST`](super::child::System::BURST)).
pub const BURST: usize = 64;

/// Payload sizes of the cases `send-N`, in words.
pub const WORDS: [usize; 6] = [0, 1, 2, 4, 8, 16];

/// Payload sizes of the cases `one-way-N`, in bytes.
pub const BYTES: [usize; 4] = [0, 8, 1000, 10_000];

/// Size of the longest payload, in bytes.
pub const LONGEST: usize = 10_000;

/// A case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Case {
    /// The sender's own time for a message of this number of words: a burst that fits into the
    /// queue, divided. The receiver has taken all earlier messages, and does not poll before the
    /// burst is over.
    Send(usize),
    /// The same without payload, while the receiver polls continuously and takes messages.
    SendPolled,
    /// The receiver's time for a message without payload and a handler that counts: a burst that
    /// waits in the queue, divided.
    Receive,
    /// Half of a ping-pong of messages with this number of bytes. Both sides rewrite the payload
    /// and check the other's, which is included in the time.
    OneWay(usize),
    /// A stream of messages of 8 bytes. The receiver checks their order and their sum.
    Rate,
}

impl Case {
    /// Every case, in the order of the report.
    pub fn all() -> impl Iterator<Item = Case> {
        let sends = WORDS.into_iter().map(Case::Send).chain([Case::SendPolled, Case::Receive]);
        sends.chain(BYTES.into_iter().map(Case::OneWay)).chain([Case::Rate])
    }

    /// The name in records and on the command line.
    pub fn name(self) -> String {
        match self {
            Case::Send(words) => format!("send-{words}"),
            Case::SendPolled => "send-0-polled".to_owned(),
            Case::Receive => "receive-0".to_owned(),
            Case::OneWay(bytes) => format!("one-way-{bytes}"),
            Case::Rate => "rate-8".to_owned(),
        }
    }

    /// Returns `true` if the case is meaningful with both sides on one processor, as a ping-pong
    /// is. In the others one side works while the other does not.
    pub fn is_for(self, placement: Placement) -> bool {
        placement == Placement::TwoCores || matches!(self, Case::OneWay(_))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl FromStr for Case {
    type Err = RunError;

    fn from_str(s: &str) -> Result<Case, RunError> {
        let found = Case::all().find(|case| case.name() == s);
        found.ok_or_else(|| RunError::Unknown {
            what: "case",
            found: s.to_owned(),
            known: Case::all().map(Case::name).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for case in Case::all() {
            assert_eq!(case.name().parse::<Case>().ok(), Some(case));
        }
        let told = "send-3".parse::<Case>().unwrap_err().to_string();
        assert!(
            told.contains("no case `send-3`")
                && told.contains("send-0-polled, receive-0, one-way-0"),
            "{told}"
        );
    }

    #[test]
    fn payloads_are_whole_words() {
        assert!(BYTES.iter().all(|bytes| bytes % 8 == 0 && *bytes <= LONGEST));
    }

    #[test]
    fn one_processor_is_for_ping_pongs() {
        let on_one: Vec<_> =
            Case::all().filter(|case| case.is_for(Placement::OneCore)).map(Case::name).collect();
        assert_eq!(on_one, ["one-way-0", "one-way-8", "one-way-1000", "one-way-10000"]);
    }
}
