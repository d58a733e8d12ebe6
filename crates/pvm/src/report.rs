//! The host's own reports on standard error: crashes, refusals, ends of processes.
//!
//! A report is one piece of the [stream](crate::stream), so it is written whole, neither waits for
//! its reader nor ends the host, and is counted if it is dropped.

use crate::stream::{STDERR, WHOLE};
use crate::tid::Tid;
use std::path::Path;
use upcall_ulp::{Crash, UlpFrame};

/// Bytes of a report that are kept for the number of dropped ones.
const SPARE: usize = 128;
/// Maximum number of characters of a line that describes a call.
const LONGEST: usize = 300;

/// Writes a report. `text` ends with a newline.
pub(crate) fn report(text: &str) {
    STDERR.report(text);
}

/// Reports one line, formatted as by `format!`.
macro_rules! report_line {
    ($($arg:tt)*) => { $crate::report::report(&(format!($($arg)*) + "\n")) };
}
pub(crate) use report_line;

/// The report of a task's crash, with the calls under way as far as there is room.
pub(crate) fn crashed(tid: Tid, program: &Path, crash: &Crash, frames: &[UlpFrame]) -> String {
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let mut report =
        format!("upcall pvm: {tid} ({}) has crashed: {crash}\n", program.escape_debug());
    for (at, frame) in frames.iter().enumerate() {
        let text = frame.to_string();
        let line = text.chars().take(LONGEST).flat_map(char::escape_debug).collect::<String>();
        if report.len() + line.len() > WHOLE - SPARE {
            report += &format!("  and {} more calls\n", frames.len() - at);
            break;
        }
        report += &format!("  {line}{}\n", if text.len() > LONGEST { "…" } else { "" });
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_long_names_is_whole_and_has_no_control_characters() {
        let crash = Crash { signal: 6, address: 0, at: 1, stack: 2, code: -6 };
        let frame = |name: &str| UlpFrame {
            address: 1,
            function: Some(name.into()),
            offset: 0,
            line: None,
        };
        let name = "n".repeat(5000);
        let frames = vec![frame(&name); 24];
        let text = crashed(Tid::new(0, 2), Path::new("/a\nb"), &crash, &frames);
        assert!(text.len() <= WHOLE && text.ends_with(" more calls\n"), "{text}");
        assert!(text.starts_with("upcall pvm: t40002 (a\\nb) has crashed: SIGABRT at 0x1\n"));
        let shown = text.matches("  0x1 in nnn").count();
        assert!(
            shown > 5 && text.contains(&format!("  and {} more calls\n", 24 - shown)),
            "{text}"
        );
        let short = crashed(Tid::new(0, 2), Path::new("p"), &crash, &[frame("\u{1b}[2J")]);
        assert!(short.ends_with("  0x1 in \\u{1b}[2J\n"), "{short}");
    }
}
