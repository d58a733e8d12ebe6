//! What a suite has found.

use crate::case::Mode;
use crate::contender::Trust;
use crate::record::Record;
use crate::remains::Remains;

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One record for each case, system and setting.
    pub records: Vec<Record>,
    /// What systems cost that have nothing to do.
    pub idle: Vec<Idle>,
    /// What systems of calls are besides their figures.
    pub properties: Vec<Properties>,
    /// What a reader of the numbers should know: moved processors, absent settings and systems.
    pub notes: Vec<String>,
    /// What could not be measured, and why.
    pub failures: Vec<String>,
}

impl Report {
    /// Returns `true` if there is nothing to say.
    pub fn is_empty(&self) -> bool {
        let Report { records, idle, notes, failures, .. } = self;
        records.is_empty() && idle.is_empty() && notes.is_empty() && failures.is_empty()
    }
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

/// What a system of calls is besides its figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Properties {
    /// Its name.
    pub system: &'static str,
    /// What becomes of the data that a peer writes.
    pub trust: Trust,
    /// What is left of server and client that are killed; parked ones, if its servers can wait so.
    pub left: Remains,
    /// CPU time of server and client without calls, in percent of one processor, by how the server
    /// waits.
    pub idle: Vec<(Mode, f64)>,
}

impl Properties {
    /// The heads of a table of them.
    pub const HEADS: [&str; 5] =
        ["system", "peer's data", "left by kill -9", "CPU at rest, polling", "CPU at rest, parked"];

    /// The cells of a row.
    pub fn row(&self) -> [String; 5] {
        let [polling, parked] = [Mode::Polling, Mode::Parked].map(|mode| {
            let idle = self.idle.iter().find(|(of, _)| *of == mode);
            idle.map_or("-".to_owned(), |(_, percent)| format!("{percent:.2} %"))
        });
        [self.system.to_owned(), self.trust.to_string(), self.left.to_string(), polling, parked]
    }
}

/// Says that other programs are running, if they are: both processors are needed.
pub fn busy() -> Option<String> {
    let load: f64 =
        std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()?;
    (load > 0.5)
        .then(|| format!("other programs were running when this began (load average {load:.1}): single figures may be far off"))
}
