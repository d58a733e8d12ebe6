//! The cases of the suite `urpc`: calls by T threads at once (Figures 3 and 4 of URPC), and the
//! parts of a call (its Table II).

use std::fmt;

use super::config::Config;

/// Maximum number of threads in the figures.
pub const MOST_FIGURES: usize = 16;

/// T, the number of threads that call at once. The last one is for S = 0 only, where it shows the
/// effect of many calls on one hand-off.
pub const THREADS: [usize; 11] = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 32];

/// A part of a null call, on one processor, with every line of memory in its cache.
///
/// A sample is the time of a batch of [`BATCH`] operations divided by their number, without the
/// clock's own cost. The parts are those of the real code: rings of `upcall-shm` with as many slots
/// as a lane has, waits of `upcall-sched`, a server of `upcall-rpc`. The cost of a line that moves
/// between processors is in none of them: see `line_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// A call of a function that is not inlined and only counts: the unit of the paper's Table I.
    ProcedureCall,
    /// A client puts a request into its lane: `Sender::send`.
    SendClient,
    /// A client polls for a reply, and there is none: `Receiver::waits`.
    PollClient,
    /// A client takes a reply that has arrived: `Receiver::take`.
    ReceiveClient,
    /// A client's thread is made ready for its reply, and runs: `Sleeper::wake` and the switch from
    /// the thread that blocks. Two threads do this for each other.
    DispatchClient,
    /// A server puts a reply into the lane: `SharedSender::send_alone`, as a server with one
    /// processor does.
    SendServer,
    /// A server polls for a request, and there is none: `SharedReceiver::waits`.
    PollServer,
    /// A server takes a request that has arrived: `SharedReceiver::take_alone`.
    ReceiveServer,
    /// From a taken request to the first instruction of its procedure, and from the procedure's
    /// last instruction to the reply that is about to be sent: all work of a server for a call
    /// besides receiving and sending. It is the time between two procedures in a batch of calls
    /// that arrived together, without `receive-server` and `send-server`.
    DispatchServer,
}

/// Number of operations in one sample: the number of slots of a lane.
pub const BATCH: usize = 64;

impl Part {
    /// Every part, in the order of the report.
    pub const ALL: [Part; 9] = [
        Part::ProcedureCall,
        Part::SendClient,
        Part::PollClient,
        Part::ReceiveClient,
        Part::DispatchClient,
        Part::SendServer,
        Part::PollServer,
        Part::ReceiveServer,
        Part::DispatchServer,
    ];

    /// The name in records and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Part::ProcedureCall => "procedure-call",
            Part::SendClient => "send-client",
            Part::PollClient => "poll-client",
            Part::ReceiveClient => "receive-client",
            Part::DispatchClient => "dispatch-client",
            Part::SendServer => "send-server",
            Part::PollServer => "poll-server",
            Part::ReceiveServer => "receive-server",
            Part::DispatchServer => "dispatch-server",
        }
    }

    /// The paper's figure, in µs.
    pub fn paper_us(self) -> f64 {
        match self {
            Part::ProcedureCall => 7.0,
            Part::SendClient => 18.0,
            Part::PollClient | Part::PollServer => 6.0,
            Part::ReceiveClient => 10.0,
            Part::DispatchClient => 20.0,
            Part::SendServer => 13.0,
            Part::ReceiveServer => 9.0,
            Part::DispatchServer => 25.0,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns the name of the case of `threads` null calls at once.
pub fn null(threads: usize) -> String {
    format!("null-t{threads}")
}

/// Returns `true` if this number of threads is measured in a configuration.
pub fn is_tried(threads: usize, config: Config) -> bool {
    threads <= MOST_FIGURES || config.servers == 0
}

/// A point of Figures 3 and 4 that the paper's text states: C and S, T, latency in µs and calls per
/// second. The curves themselves are not in the text, and no points of them are here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Anchor {
    /// C and S.
    pub config: Config,
    /// T; `None` where the text gives the maximum.
    pub threads: Option<usize>,
    /// Latency.
    pub us: Option<f64>,
    /// Throughput.
    pub per_s: Option<f64>,
}

/// Section 4.3 of the paper.
pub const ANCHORS: [Anchor; 4] = [
    Anchor {
        config: Config { clients: 1, servers: 1 },
        threads: Some(1),
        us: Some(93.0),
        per_s: Some(10_300.0),
    },
    Anchor {
        config: Config { clients: 1, servers: 1 },
        threads: Some(2),
        us: Some(112.0),
        per_s: Some(17_850.0),
    },
    Anchor {
        config: Config { clients: 2, servers: 2 },
        threads: None,
        us: None,
        per_s: Some(23_800.0),
    },
    Anchor {
        config: Config { clients: 1, servers: 0 },
        threads: Some(1),
        us: Some(375.0),
        per_s: None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_sums() {
        let sum = |side: &str| -> f64 {
            Part::ALL.iter().filter(|p| p.name().ends_with(side)).map(|p| p.paper_us()).sum()
        };
        assert_eq!((sum("-client"), sum("-server")), (54.0, 53.0));
    }

    #[test]
    fn many_threads_are_for_servers_without_a_processor() {
        let tried = |servers| {
            THREADS.into_iter().filter(|&t| is_tried(t, Config { clients: 1, servers })).max()
        };
        assert_eq!((tried(0), tried(1)), (Some(32), Some(16)));
    }
}
