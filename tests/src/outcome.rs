//! The outcome of a command to a party, and how the party reports it.

use crate::party::Said;
use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};
use upcall::CallError;

/// The outcome of every command.
pub(crate) type Outcome = Result<Vec<String>, Box<dyn Error>>;

/// Writes an outcome to standard output.
pub fn say(outcome: Outcome) {
    let said = match outcome {
        Ok(words) => Said::Ok(words),
        Err(error) => Said::error(&*error),
    };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", said.to_line()).and_then(|()| out.flush());
}

pub(crate) fn done() -> Outcome {
    Ok(Vec::new())
}

pub(crate) fn show<const N: usize>(numbers: [u64; N]) -> Outcome {
    Ok(numbers.iter().map(u64::to_string).collect())
}

pub(crate) fn same<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Outcome {
    if found == expected {
        done()
    } else {
        Err(format!("wrong answer: {found:?}, not {expected:?}").into())
    }
}

/// Polls until the number found is the one wanted.
pub(crate) fn until(
    wanted: u64,
    found: impl Fn() -> Result<u64, CallError>,
) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    while found()? != wanted {
        if start.elapsed() > Duration::from_secs(60) {
            return Err(format!("{} after 60 s, not {wanted}", found()?).into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}
