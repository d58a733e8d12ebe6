//! The experiments of UDM's section 5: what is varied (D16, D17), and what the paper found.
//!
//! Figure 7 is known as a picture only: what the text says of it is that few messages are buffered
//! once the interval exceeds what a message takes from the buffer, [`KNEE`], and fewer with smaller
//! N. So the simulator, which has the paper's times, stands for it.
//!
//! For real a cycle is [`CYCLE_NS`]: the machine is faster in handlers, but a page of the buffer
//! costs what it costs. The paper's network interface notices at once that the receiver does not
//! run; ours divert when a queue was full for longer than a time. So that this happens in the time
//! that a consumer is late ([`AWAY_NS`]), requests are long, so that the queue holds four; and that
//! time is longer in proportion than the paper's 2000 cycles.

use crate::record::Record;

/// N: messages from one wait for all acknowledgements to the next.
pub const GROUPS: [u64; 3] = [10, 100, 1000];

/// From one message to the next, on average, in the paper's cycles.
pub const INTERVALS: [u64; 8] = [250, 500, 750, 1000, 1250, 1500, 2000, 3000];

/// What a handler takes, in cycles.
pub const HANDLER: u64 = 750;

/// What it takes to receive a message from the buffer besides, in cycles.
pub const KNEE: u64 = HANDLER + 234;

/// A cycle for real.
pub const CYCLE_NS: f64 = 10_000.0 / 750.0;

/// A slice for real, and so much later consumers have theirs.
pub const SLICE_NS: u64 = 6_666_667;
/// See [`SLICE_NS`].
pub const AWAY_NS: u64 = 200_000;

/// So long a producer waits for room.
pub const TIMEOUT_NS: u64 = 50_000;

/// Bytes of a request: the queue holds four.
pub const REQUEST: usize = 8_000;

/// What shares the processors with Tpuz in Table 6.
pub const OTHERS: [&str; 4] = ["null", "tpuz", "synth-100", "synth-10"];

/// How the two take turns.
pub const SCHEDULES: [&str; 3] = ["batch", "gang", "co"];

/// A row of Table 6: run times as multiples of batch, and messages buffered, of Tpuz and of the
/// other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// One of [`OTHERS`].
    pub other: &'static str,
    /// Gang-scheduled.
    pub gang: (f64, [u64; 2]),
    /// Co-scheduled.
    pub co: (f64, [u64; 2]),
}

/// Messages of Tpuz, and of synth-N, in Table 6.
pub const MESSAGES: [u64; 2] = [513_500, 280_000];

/// Table 6.
pub const TABLE_6: [Row; 4] = [
    Row { other: "null", gang: (1.009, [2, 0]), co: (1.008, [12_100, 0]) },
    Row { other: "tpuz", gang: (1.019, [172, 191]), co: (1.059, [147_900, 144_300]) },
    Row { other: "synth-100", gang: (1.010, [63, 17]), co: (1.189, [202_300, 62_600]) },
    Row { other: "synth-10", gang: (1.010, [61, 20]), co: (1.377, [167_400, 6_500]) },
];

/// Table 5, in cycles: inserting into the buffer at least, a null handler from there, and a message
/// by the direct path.
pub const TABLE_5: [f64; 3] = [163.0, 71.0, 65.0];

/// The record of a point of Figure 7, found for real or in the simulator.
pub fn figure_7(real: bool, group: u64, interval: u64) -> String {
    format!("synth-{}{group}-{interval}", simulated(real))
}

/// The record of Tpuz by itself, for real or in the simulator.
pub fn table_6_alone(real: bool) -> String {
    format!("tpuz-{}alone", simulated(real))
}

/// The record of Tpuz beside another one, for real or in the simulator.
pub fn table_6(real: bool, other: &str, schedule: &str) -> String {
    format!("tpuz-{}{other}-{schedule}", simulated(real))
}

/// That of the other one there, if it sends messages.
pub fn table_6_other(real: bool, other: &str, schedule: &str) -> Option<String> {
    (other != "null").then(|| format!("{}-other", table_6(real, other, schedule)))
}

fn simulated(real: bool) -> &'static str {
    if real { "" } else { "simulated-" }
}

/// The share of messages that were buffered, in percent.
pub fn percent(records: &[Record], case: &str) -> Option<f64> {
    let record = records.iter().find(|record| record.case == case)?;
    Some(100.0 * record.buffered? as f64 / record.samples.max(1) as f64)
}

/// What one workload took as a multiple of what it took as a batch.
pub fn multiple(records: &[Record], real: bool, other: &str, schedule: &str) -> Option<f64> {
    let case = |schedule| table_6(real, other, schedule);
    let ns = |schedule| {
        records.iter().find(|record| record.case == case(schedule)).map(|record| record.p50_ns)
    };
    Some(ns(schedule)? / ns("batch")?)
}
