//! The report of a suite.

use serde::{Deserialize, Serialize};

use crate::case::Mode;
use crate::contender::Trust;
use crate::record::Record;
use crate::remains::Remains;

/// The findings of a run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One record for each case, system and setting.
    pub records: Vec<Record>,
    /// Costs of idle systems.
    pub idle: Vec<Idle>,
    /// Properties of systems of calls besides their figures.
    pub properties: Vec<Properties>,
    /// Notes for the reader: moved processors, missing settings and systems.
    pub notes: Vec<String>,
    /// Measurements that failed, with the reason.
    pub failures: Vec<String>,
}

impl Report {
    /// Returns `true` if the report is empty.
    pub fn is_empty(&self) -> bool {
        let Report { records, idle, notes, failures, .. } = self;
        records.is_empty() && idle.is_empty() && notes.is_empty() && failures.is_empty()
    }
}

/// An idle system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// Its name.
    pub system: String,
    /// How its server waits.
    pub mode: Mode,
    /// CPU time of the server, of the receiver, or of the only process, in nanoseconds per second.
    pub cpu_ns_per_s: f64,
    /// Memory of each process, in KiB: proportional set size, or in `threads` the peak.
    pub memory_kib: Vec<u64>,
}

/// Properties of a system of calls besides its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Properties {
    /// Its name.
    pub system: String,
    /// How it treats data from a peer.
    pub trust: Trust,
    /// What server and client leave behind when they are killed; of parked servers if the system
    /// has them.
    pub left: Remains,
    /// CPU time of server and client without calls, in percent of one processor, for each mode of
    /// the server.
    pub idle: Vec<(Mode, f64)>,
}

/// Returns a note if other programs are running: both processors are needed.
pub fn busy() -> Option<String> {
    let load: f64 =
        std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()?;
    (load > 0.5)
        .then(|| format!("other programs were running (load {load:.1}): figures may be far off"))
}
