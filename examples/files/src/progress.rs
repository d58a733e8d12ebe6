//! Progress of the work: a bar on a terminal, a line for each stage elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// A stage, whose end is reported on drop.
pub struct Stage {
    bar: ProgressBar,
    what: String,
    bytes: u64,
    since: Instant,
}

impl Stage {
    /// Begins a stage of about `expected` bytes, if that is known.
    pub fn begin(what: &str, expected: Option<u64>) -> Self {
        let bar = if !std::io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else if let Some(bytes) = expected {
            ProgressBar::new(bytes).with_style(style(
                "  {msg:28} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} \
                    {decimal_bytes_per_sec}",
            ))
        } else {
            ProgressBar::new_spinner()
                .with_style(style("  {msg:28} {spinner} {decimal_bytes} {decimal_bytes_per_sec}"))
        };
        bar.set_message(what.to_owned());
        if expected.is_none() {
            // A bar moves with the bytes. Only the spinner needs a thread to turn it, and nothing
            // is measured at that time.
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Self { bar, what: what.to_owned(), bytes: 0, since: Instant::now() }
    }

    /// Advances by `bytes` bytes.
    pub fn advance(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.bar.set_position(self.bytes);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        let seconds = self.since.elapsed().as_secs_f64();
        eprintln!("  {:28} {:>9.1} MB in {seconds:.2} s", self.what, self.bytes as f64 / 1e6);
    }
}

fn style(template: &str) -> ProgressStyle {
    // The template is a constant; if it were wrong, the plain bar would do.
    ProgressStyle::with_template(template)
        .map_or_else(|_| ProgressStyle::default_bar(), |s| s.progress_chars("=> "))
}
