//! The cases of Upcall alone: sections, polling, upcalls, and the handling of messages that are not
//! taken.

use std::fmt;

use crate::error::RunError;

/// Measurements that one child makes together in one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Own {
    /// Begin and end of an atomic section while no message waits, where 1, 7 or 30 other members
    /// have sent something before (`section-1`, `section-7`, `section-30`); and the check for
    /// waiting messages alone (`available-1`, `available-7`, `available-30`). On a virtual
    /// processor, where handlers run as upcalls.
    Section,
    /// The receiver's time for a message without payload and a handler that counts, by `poll`
    /// (`poll-0`) and by `receive` (`poll-0-by-receive`): bursts that wait in the queue, for the
    /// two in turn.
    Poll,
    /// Both sides' own time for a message without payload and one of 4 words, where none is
    /// buffered (`direct-0`, `direct-4`) and where all are (`buffered-0`, `buffered-4`), and the
    /// two parts (`…-sender`, `…-receiver`).
    ///
    /// Bursts, as in the cases `send-N`. A sample is the mean over the number of messages that fill
    /// a segment, so that each has its share of new pages, and of a segment that is mapped on both
    /// sides and given back. Bursts of more than 0.3 ms, in which the working side had lost its
    /// processor, are excluded.
    Buffered,
    /// A diversion, as the time above a direct message: the send that maps a segment (`divert`),
    /// the take that follows it there (`divert-take`), the send that returns to the queue
    /// (`divert-home`), the take that follows it back and returns the segment's memory to the
    /// machine (`divert-leave`), and the sum (`divert-and-back`).
    Divert,
    /// A stream of messages of 8 bytes from A to B, while C takes nothing and D has sent it nothing
    /// (`stopped-nothing`), and while D's messages to C fill 1 GiB of buffers (`stopped-buffered`).
    /// A sample is the mean over 4096 messages. If the times before and after differ, the
    /// measurement is repeated.
    Stopped,
    /// From before a send to the handler's first instruction, where the receiver polls continuously
    /// by `poll`: half of a ping-pong by handlers. The basis for comparison with upcalls.
    Polled,
    /// The same by upcalls, where the receiver's virtual processor is idle and polls continuously
    /// (`Pacing::Poll`).
    Idle,
    /// By upcall, where it sleeps. This and the following are measured by the clock's value in the
    /// message.
    Asleep,
    /// By upcall, where it has three threads that yield to each other continuously.
    Busy,
    /// By upcall, where its one thread computes, with a safe point every microsecond.
    Computing,
    /// By a signal, where the receiver is an ordinary kernel thread that computes without safe
    /// points.
    Signal,
    /// A check and not a time: messages of 1 to 8 words, each with its number, to a receiver that
    /// stops polling at random, so that some are diverted. Checks that each arrives once, in order
    /// and whole. The figures are the rate, and the number of messages that went through segments
    /// (`exactly-once-diverted`).
    Once,
    /// The paper's synth-N, for N = 10, 100 and 1000: a producer, and a consumer that is late at
    /// the beginning of each slice, by send interval (`synth-10-250` and so on, in the paper's
    /// cycles; [`paper`](super::paper)). The figures are the rate of requests, and the number of
    /// buffered messages.
    Synth(u64),
    /// The same on the simulator's virtual clocks, with the paper's times
    /// (`synth-simulated-10-250`).
    Simulated,
    /// The paper's Tpuz alone (`tpuz-alone`), and beside another job, as batch, gang and
    /// co-scheduled jobs (`tpuz-null-gang` and so on, and `…-other` for the other job's messages).
    /// The rate is of its messages in the time of both jobs.
    Tpuz,
    /// The same by four members on the simulator's virtual clocks, with the paper's cycles as ns
    /// (`tpuz-simulated-null-gang` and so on).
    TpuzSimulated,
}

impl Own {
    /// Every case, in the order of the report.
    pub const ALL: [Own; 18] = [
        Own::Section,
        Own::Poll,
        Own::Buffered,
        Own::Divert,
        Own::Stopped,
        Own::Polled,
        Own::Idle,
        Own::Asleep,
        Own::Busy,
        Own::Computing,
        Own::Signal,
        Own::Once,
        Own::Synth(10),
        Own::Synth(100),
        Own::Synth(1000),
        Own::Simulated,
        Own::Tpuz,
        Own::TpuzSimulated,
    ];

    /// The name on the command line. Names of records begin with it, except `direct-…` and
    /// `available-…`.
    pub fn name(self) -> &'static str {
        match self {
            Own::Section => "section",
            Own::Poll => "poll-0",
            Own::Buffered => "buffered",
            Own::Divert => "divert",
            Own::Stopped => "stopped",
            Own::Polled => "upcall-polled",
            Own::Idle => "upcall-idle",
            Own::Asleep => "upcall-asleep",
            Own::Busy => "upcall-busy",
            Own::Computing => "upcall-computing",
            Own::Signal => "upcall-signal",
            Own::Once => "exactly-once",
            Own::Synth(10) => "synth-10",
            Own::Synth(100) => "synth-100",
            Own::Synth(_) => "synth-1000",
            Own::Simulated => "synth-simulated",
            Own::Tpuz => "tpuz",
            Own::TpuzSimulated => "tpuz-simulated",
        }
    }

    /// Returns `true` if the case is of the paper's section 5, which has tables of its own.
    pub fn is_papers(self) -> bool {
        matches!(self, Own::Synth(_) | Own::Simulated | Own::Tpuz | Own::TpuzSimulated)
    }
}

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Own {
    type Err = RunError;

    fn from_str(s: &str) -> Result<Own, RunError> {
        let known = || Own::ALL.map(|own| own.name().to_owned()).into();
        Own::ALL.into_iter().find(|own| own.name() == s).ok_or_else(|| RunError::Unknown {
            what: "case",
            found: s.to_owned(),
            known: known(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_are_those_of_no_other_case() {
        for own in Own::ALL {
            assert_eq!(own.name().parse::<Own>().ok(), Some(own));
            assert!(crate::messages::case::Case::all().all(|case| case.name() != own.name()));
        }
        let told = "upcall".parse::<Own>().unwrap_err().to_string();
        assert!(told.contains("no case `upcall`") && told.contains("section, poll-0"), "{told}");
    }
}
