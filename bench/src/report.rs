//! What a suite has found.

use crate::case::Mode;
use crate::record::Record;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One record for each case, system and setting.
    pub records: Vec<Record>,
    /// What systems cost that have nothing to do.
    pub idle: Vec<Idle>,
    /// What a reader of the numbers should know: moved processors, absent settings and systems.
    pub notes: Vec<String>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
}

/// A system at rest.
#[derive(Debug, Clone, PartialEq)]
pub struct Idle {
    /// Its name.
    pub system: &'static str,
    /// How its server waits.
    pub mode: Mode,
    /// CPU time of the server, of the receiver, or of the only process, nanoseconds per second.
    pub cpu_ns_per_s: f64,
    /// Memory of each process, KiB: proportional set size, or in `threads` the peak.
    pub memory_kib: Vec<u64>,
}

/// Says that other programs are running, if they are: both processors are needed.
pub fn busy() -> Option<String> {
    let load: f64 =
        std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()?;
    (load > 0.5)
        .then(|| format!("other programs were running when this began (load average {load:.1}): single figures may be far off"))
}
