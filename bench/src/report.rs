//! What a suite of calls has found.

use crate::record::Record;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One record for each case, configuration and system.
    pub records: Vec<Record>,
    /// What a reader of the numbers should know, also what this machine has no processors for.
    pub notes: Vec<String>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
}

/// Says that other programs are running, if they are: both processors are needed.
pub fn busy() -> Option<String> {
    let load: f64 =
        std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()?;
    (load > 0.5)
        .then(|| format!("other programs were running when this began (load average {load:.1}): single figures may be far off"))
}
