//! The console's own options (`pvm_getopt`). Tasks that the console spawns inherit them as children
//! do.

use crate::output::{Output, OutputTarget};
use crate::tid::Tid;

/// Name, number and default value, in PVM's order.
const ALL: [(&str, i32, i32); 23] = [
    ("PvmRoute", 1, 1),
    ("PvmDebugMask", 2, 0),
    ("PvmAutoErr", 3, 1),
    (OUTPUT_TID, 4, -1),
    ("PvmOutputCode", 5, 0),
    ("PvmTraceTid", 6, -1),
    ("PvmTraceCode", 7, 0),
    ("PvmTraceBuffer", 8, 0),
    ("PvmTraceOptions", 9, 1),
    ("PvmFragSize", 10, 4080),
    ("PvmResvTids", 11, 1),
    ("PvmSelfOutputTid", 12, -1),
    ("PvmSelfOutputCode", 13, 0),
    ("PvmSelfTraceTid", 14, -1),
    ("PvmSelfTraceCode", 15, 0),
    ("PvmSelfTraceBuffer", 16, 0),
    ("PvmSelfTraceOptions", 17, 0),
    (SHOW_TIDS, 18, 1),
    ("PvmOutputContext", 21, 0),
    ("PvmTraceContext", 22, 0),
    ("PvmSelfOutputContext", 23, 0),
    ("PvmSelfTraceContext", 24, 0),
    ("PvmNoReset", 25, 1),
];
const OUTPUT_TID: &str = "PvmOutputTid";
const SHOW_TIDS: &str = "PvmShowTids";
/// Numbers of the trace options, which children inherit.
const TRACES: [i32; 5] = [6, 7, 8, 9, 22];

/// The values, in the order of [`ALL`].
#[derive(Debug)]
pub(super) struct Options([i32; ALL.len()]);

impl Options {
    pub(super) fn new() -> Self {
        Self(ALL.map(|(_, _, usual)| usual))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, i32)> {
        ALL.iter().zip(self.0).map(|((name, ..), value)| (*name, value))
    }

    pub(super) fn get(&self, name: &str) -> Option<i32> {
        self.all().find(|(one, _)| *one == name).map(|(_, value)| value)
    }

    /// Sets a value and returns the old one. `None`: there is no such option.
    pub(super) fn set(&mut self, name: &str, value: i32) -> Option<i32> {
        let at = ALL.iter().position(|(one, ..)| *one == name)?;
        Some(std::mem::replace(&mut self.0[at], value))
    }

    pub(super) fn show_tids(&self) -> bool {
        self.get(SHOW_TIDS) != Some(0)
    }

    /// The output of tasks that are spawned without `->`.
    pub(super) fn output(&self) -> Output {
        match self.get(OUTPUT_TID).and_then(Tid::of) {
            Some(tid) => {
                let value = |name| self.get(name).unwrap_or_default();
                let mut output = Output::log();
                (output.to, output.tag, output.context) =
                    (OutputTarget::Task(tid), value("PvmOutputCode"), value("PvmOutputContext"));
                output
            }
            None => Output::log(),
        }
    }

    /// The other options that children inherit, if their values were changed.
    pub(super) fn inherited(&self) -> Vec<(i32, i32)> {
        let set = ALL
            .iter()
            .zip(self.0)
            .filter(|((_, number, usual), value)| TRACES.contains(number) && value != usual);
        set.map(|((_, number, _), value)| (*number, value)).collect()
    }
}
