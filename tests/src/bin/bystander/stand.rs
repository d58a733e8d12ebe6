//! The bystander: repeats an operation with a pause between, and measures each.

use crate::case::What;
use crate::serve::interface::load::Load;
use std::error::Error;
use std::io::{BufRead, Read, Write};
use std::time::Duration;
use upcall_tests::now;
use upcall_tests::outcome::say;

/// Pause between two operations.
const PAUSE: Duration = Duration::from_micros(500);

/// Number of exchanges in a bind: the connection, the channel with the binding, the A-stacks.
const EXCHANGES: usize = 3;

/// The outcome of one operation, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When the operation began.
    pub at: u64,
    /// How late the kernel ended the pause before the operation.
    pub late: u64,
    /// How long the operation took.
    pub took: u64,
}

impl Sample {
    /// Parses the samples in a bystander's report.
    pub fn all(numbers: &[u64]) -> Vec<Self> {
        numbers
            .chunks_exact(3)
            .map(|parts| Self { at: parts[0], late: parts[1], took: parts[2] })
            .collect()
    }
}

/// Measures for the number of milliseconds in each line of standard input, and writes all samples
/// in one line.
pub fn run(way: &str) -> Result<(), Box<dyn Error>> {
    let bound = if way == "call" { Some(Load::bind("load")?) } else { None };
    say(Ok(Vec::new()));
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let length = Duration::from_millis(line.parse()?);
        let samples = match &bound {
            Some(load) => samples(length, || load.null())?,
            None => samples(length, || Load::bind("load"))?,
        };
        say(Ok(samples
            .iter()
            .flat_map(|sample| [sample.at, sample.late, sample.took])
            .map(|n| n.to_string())
            .collect()));
    }
    Ok(())
}

/// Measures a server without the library through its two pipes. A bind is [`EXCHANGES`] exchanges.
pub fn bare(
    length: Duration,
    what: What,
    to: &mut impl Write,
    from: &mut impl Read,
) -> std::io::Result<Vec<Sample>> {
    let exchanges = if what == What::Bind { EXCHANGES } else { 1 };
    samples(length, || {
        for _ in 0..exchanges {
            to.write_all(&[1])?;
            from.read_exact(&mut [0])?;
        }
        Ok(())
    })
}

/// Repeats the operation for this time. The result of an operation is dropped after its time was
/// taken.
fn samples<T, E>(
    length: Duration,
    mut operate: impl FnMut() -> Result<T, E>,
) -> Result<Vec<Sample>, E> {
    let end = now() + length.as_nanos() as u64;
    let mut samples = Vec::with_capacity(1 << 14);
    loop {
        let before = now();
        if before > end {
            return Ok(samples);
        }
        std::thread::sleep(PAUSE);
        let at = now();
        let made = operate()?;
        samples.push(Sample {
            at,
            late: (at - before).saturating_sub(PAUSE.as_nanos() as u64),
            took: now() - at,
        });
        drop(made);
    }
}
