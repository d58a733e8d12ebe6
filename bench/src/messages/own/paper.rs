//! The experiments of UDM's section 5: the parameters (D16, D17), and the paper's results.
//!
//! Figure 7 is known as a picture only: the text says that few messages are buffered once the
//! interval exceeds the time of a buffered message, [`KNEE`], and fewer with smaller N. So the
//! simulator, which uses the paper's times, stands for it.
//!
//! On the real machine a cycle is [`CYCLE_NS`]: handlers would be faster than in the paper, but a
//! page of the buffer has its real cost. The paper's network interface notices at once that the
//! receiver does not run; Upcall diverts when a queue was full for longer than a timeout. Requests
//! are long, so that the queue holds only four and this happens within the time that a consumer is
//! late ([`AWAY_NS`]). That time is longer in proportion than the paper's 2000 cycles.

use crate::record::Record;

/// N: number of messages between two waits for all acknowledgements.
pub const GROUPS: [u64; 3] = [10, 100, 1000];

/// Average intervals between messages, in the paper's cycles.
pub const INTERVALS: [u64; 8] = [250, 500, 750, 1000, 1250, 1500, 2000, 3000];

/// Duration of a handler, in cycles.
pub const HANDLER: u64 = 750;

/// Time to receive a message from the buffer, including its handler, in cycles.
pub const KNEE: u64 = HANDLER + 234;

/// Duration of a cycle on the real machine, in nanoseconds.
pub const CYCLE_NS: f64 = 10_000.0 / 750.0;

/// Duration of a slice on the real machine, in nanoseconds.
pub const SLICE_NS: u64 = 6_666_667;
/// Delay of the consumers' slices on the real machine, in nanoseconds.
pub const AWAY_NS: u64 = 200_000;

/// Time that a producer waits for room, in nanoseconds.
pub const TIMEOUT_NS: u64 = 50_000;

/// Size of a request, in bytes. The queue holds four.
pub const REQUEST: usize = 8_000;

/// The jobs that share the processors with Tpuz in Table 6.
pub const OTHERS: [&str; 4] = ["null", "tpuz", "synth-100", "synth-10"];

/// How the two jobs take turns.
pub const SCHEDULES: [&str; 3] = ["batch", "gang", "co"];

/// A row of Table 6: run times as multiples of batch, and the number of buffered messages of Tpuz
/// and of the other job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// One of [`OTHERS`].
    pub other: &'static str,
    /// Gang-scheduled.
    pub gang: (f64, [u64; 2]),
    /// Co-scheduled.
    pub co: (f64, [u64; 2]),
}

/// Number of messages of Tpuz, and of synth-N, in Table 6.
pub const MESSAGES: [u64; 2] = [513_500, 280_000];

/// Table 6.
pub const TABLE_6: [Row; 4] = [
    Row { other: "null", gang: (1.009, [2, 0]), co: (1.008, [12_100, 0]) },
    Row { other: "tpuz", gang: (1.019, [172, 191]), co: (1.059, [147_900, 144_300]) },
    Row { other: "synth-100", gang: (1.010, [63, 17]), co: (1.189, [202_300, 62_600]) },
    Row { other: "synth-10", gang: (1.010, [61, 20]), co: (1.377, [167_400, 6_500]) },
];

/// Table 5, in cycles: the minimum to insert a message into the buffer, a null handler from there,
/// and a message by the direct path.
pub const TABLE_5: [f64; 3] = [163.0, 71.0, 65.0];

/// Name of the record of a point of Figure 7, real or simulated.
pub fn figure_7(real: bool, group: u64, interval: u64) -> String {
    format!("synth-{}{group}-{interval}", simulated(real))
}

/// Name of the record of Tpuz alone, real or simulated.
pub fn table_6_alone(real: bool) -> String {
    format!("tpuz-{}alone", simulated(real))
}

/// Name of the record of Tpuz beside another job, real or simulated.
pub fn table_6(real: bool, other: &str, schedule: &str) -> String {
    format!("tpuz-{}{other}-{schedule}", simulated(real))
}

/// Name of the record of the other job there, if it sends messages.
pub fn table_6_other(real: bool, other: &str, schedule: &str) -> Option<String> {
    (other != "null").then(|| format!("{}-other", table_6(real, other, schedule)))
}

fn simulated(real: bool) -> &'static str {
    if real { "" } else { "simulated-" }
}

/// Returns the share of buffered messages, in percent.
pub fn percent(records: &[Record], case: &str) -> Option<f64> {
    let record = records.iter().find(|record| record.case == case)?;
    Some(100.0 * record.buffered? as f64 / record.samples.max(1) as f64)
}

/// Returns a workload's time as a multiple of its time as a batch.
pub fn multiple(records: &[Record], real: bool, other: &str, schedule: &str) -> Option<f64> {
    let case = |schedule| table_6(real, other, schedule);
    let ns = |schedule| {
        records.iter().find(|record| record.case == case(schedule)).map(|record| record.p50_ns)
    };
    Some(ns(schedule)? / ns("batch")?)
}
