//! The cases of the suite `rpc`, where the two processes run, and how the server waits.
//!
//! The cases are the four tests of LRPC (Bershad et al., TOCS 1990, Table IV), three sizes of
//! argument, and null calls from several callers at once.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Size of the argument of `bigin`, and of argument and result of `biginout`, in bytes (LRPC, Table
/// IV).
pub const BIG: usize = 200;

/// One kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Case {
    /// No argument, no result.
    Null,
    /// Two 4-byte arguments, one 4-byte result.
    Add,
    /// 200 bytes in; the server reads them.
    BigIn,
    /// 200 bytes in and 200 bytes out; each side reads what it gets.
    BigInOut,
    /// 4 KiB in; the server reads every byte.
    In4k,
    /// 64 KiB in; the server reads every byte.
    In64k,
    /// 1 MiB in; the server reads every byte.
    In1m,
    /// No argument, no result. The client sleeps before each call.
    NullGap(Gap),
}

/// Time that a client sleeps before each call of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gap {
    /// 20 µs.
    Us20,
    /// 200 µs.
    Us200,
    /// 1 ms.
    Ms1,
    /// 5 ms.
    Ms5,
}

impl Case {
    /// Every case, in the order of the report.
    pub const ALL: [Case; 11] = [
        Case::Null,
        Case::Add,
        Case::BigIn,
        Case::BigInOut,
        Case::In4k,
        Case::In64k,
        Case::In1m,
        Case::NullGap(Gap::Us20),
        Case::NullGap(Gap::Us200),
        Case::NullGap(Gap::Ms1),
        Case::NullGap(Gap::Ms5),
    ];

    /// The name in records and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Case::Null => "null",
            Case::Add => "add",
            Case::BigIn => "bigin",
            Case::BigInOut => "biginout",
            Case::In4k => "in-4k",
            Case::In64k => "in-64k",
            Case::In1m => "in-1m",
            Case::NullGap(Gap::Us20) => "null-gap-20us",
            Case::NullGap(Gap::Us200) => "null-gap-200us",
            Case::NullGap(Gap::Ms1) => "null-gap-1ms",
            Case::NullGap(Gap::Ms5) => "null-gap-5ms",
        }
    }

    /// Time that the client sleeps before each call, or `None` if calls are back to back.
    pub fn gap(self) -> Option<Duration> {
        match self {
            Case::NullGap(Gap::Us20) => Some(Duration::from_micros(20)),
            Case::NullGap(Gap::Us200) => Some(Duration::from_micros(200)),
            Case::NullGap(Gap::Ms1) => Some(Duration::from_millis(1)),
            Case::NullGap(Gap::Ms5) => Some(Duration::from_millis(5)),
            _ => None,
        }
    }

    /// Returns `true` if the case runs in this setting. Calls after a gap are meaningful only with
    /// a parked server. Unpinned, only null calls are measured.
    pub fn is_for(self, placement: Placement, mode: Mode) -> bool {
        match self.gap() {
            Some(_) => mode == Mode::Parked,
            None => placement != Placement::Unpinned || self == Case::Null,
        }
    }

    /// Number of payload bytes that the client rewrites for each call.
    pub fn bytes(self) -> usize {
        match self {
            Case::Null | Case::NullGap(_) | Case::Add => 0,
            Case::BigIn | Case::BigInOut => BIG,
            Case::In4k => 4 << 10,
            Case::In64k => 64 << 10,
            Case::In1m => 1 << 20,
        }
    }
}

/// Numbers of calls outstanding at once in the throughput cases `null-tN`.
pub const THREADS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// Names of the cases of binds: the first bind opens the channel between client and server, and
/// further binds find it open.
pub const BINDS: [&str; 2] = ["bind", "bind-further"];

/// Where client and server run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Client and server on different processors.
    TwoCores,
    /// Client and server on the same processor.
    OneCore,
    /// Nothing is pinned, and each system has its default settings.
    Unpinned,
}

/// How the server waits for calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The server polls continuously.
    Polling,
    /// The server sleeps in the kernel.
    Parked,
}

/// The settings in which cases run ([`Case::is_for`]), in the order of the report.
pub const SETTINGS: [(Placement, Mode); 5] = [
    (Placement::TwoCores, Mode::Polling),
    (Placement::OneCore, Mode::Polling),
    (Placement::TwoCores, Mode::Parked),
    (Placement::OneCore, Mode::Parked),
    (Placement::Unpinned, Mode::Parked),
];

impl Placement {
    /// The name in records and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Placement::TwoCores => "two-cores",
            Placement::OneCore => "one-core",
            Placement::Unpinned => "unpinned",
        }
    }
}

impl Mode {
    /// The name in records and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Polling => "polling",
            Mode::Parked => "parked",
        }
    }
}

/// A name that is not known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    what: &'static str,
    found: String,
    known: Vec<&'static str>,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} `{}`; known: {}", self.what, self.found, self.known.join(", "))
    }
}

impl std::error::Error for UnknownName {}

fn find<T: Copy>(
    what: &'static str,
    all: &[T],
    name: fn(T) -> &'static str,
    found: &str,
) -> Result<T, UnknownName> {
    all.iter().copied().find(|&x| name(x) == found).ok_or_else(|| UnknownName {
        what,
        found: found.to_owned(),
        known: all.iter().map(|&x| name(x)).collect(),
    })
}

impl FromStr for Case {
    type Err = UnknownName;
    fn from_str(s: &str) -> Result<Self, UnknownName> {
        find("case", &Case::ALL, Case::name, s)
    }
}

impl FromStr for Placement {
    type Err = UnknownName;
    fn from_str(s: &str) -> Result<Self, UnknownName> {
        let all = [Placement::TwoCores, Placement::OneCore, Placement::Unpinned];
        find("placement", &all, Placement::name, s)
    }
}

impl FromStr for Mode {
    type Err = UnknownName;
    fn from_str(s: &str) -> Result<Self, UnknownName> {
        find("mode", &[Mode::Polling, Mode::Parked], Mode::name, s)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for case in Case::ALL {
            assert_eq!(case.name().parse(), Ok(case));
        }
        for (placement, mode) in SETTINGS {
            assert_eq!(placement.name().parse(), Ok(placement));
            assert_eq!(mode.name().parse(), Ok(mode));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "in-2k".parse::<Case>().unwrap_err().to_string();
        assert_eq!(
            error,
            "no case `in-2k`; known: null, add, bigin, biginout, in-4k, in-64k, in-1m, \
             null-gap-20us, null-gap-200us, null-gap-1ms, null-gap-5ms"
        );
    }
}
