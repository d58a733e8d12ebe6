//! Calls that go on from domain to domain, and come back.

use crate::interfaces::relay::{self, Relay};
use crate::outcome::{Outcome, show};
use crate::party::Said;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use upcall::thread::Mutex;
use upcall::{CallError, Failure};

/// One domain on the way.
#[derive(Default)]
pub struct Station {
    bound: Mutex<HashMap<String, Relay>>,
    marks: Mutex<Marks>,
}

#[derive(Clone, Copy, Default)]
struct Marks {
    begun: u64,
    ended: u64,
    /// Time left for the newest call.
    left: Option<Duration>,
}

impl std::fmt::Debug for Station {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Station")
    }
}

/// The variant of an error, as tests name it.
fn kind(error: &CallError) -> String {
    match Said::error(error) {
        Said::Error { kind, .. } => kind,
        Said::Ok(_) => String::new(),
    }
}

impl Station {
    fn next(&self, name: &str) -> Result<Relay, String> {
        if let Some(bound) = self.bound.lock().get(name).filter(|bound| bound.is_open()) {
            return Ok(bound.clone());
        }
        let relay = Relay::bind(name).map_err(|error| format!("{name}: {error}"))?;
        self.bound.lock().insert(name.into(), relay.clone());
        Ok(relay)
    }

    fn go_on(&self, names: &[String], ms: u32) -> Result<Vec<u32>, String> {
        let Some((name, rest)) = names.split_first() else {
            upcall::thread::sleep(Duration::from_millis(ms.into()));
            return Ok(vec![std::process::id()]);
        };
        let mut on_the_way = self.next(name)?.go(rest, ms).map_err(|failure| match failure {
            Failure::Returned(error) => error,
            Failure::Call(error) => format!("{name}: {}", kind(&error)),
        })?;
        on_the_way.push(std::process::id());
        Ok(on_the_way)
    }
}

impl relay::Serve for Station {
    fn go(&self, names: &[String], ms: u32) -> Result<Vec<u32>, String> {
        let left = upcall::deadline().map(|ends| ends.saturating_duration_since(Instant::now()));
        let before = *self.marks.lock();
        *self.marks.lock() = Marks { begun: before.begun + 1, left, ..before };
        let gone = self.go_on(names, ms);
        self.marks.lock().ended += 1;
        gone
    }

    fn marks(&self) -> (u64, u64, Option<u64>) {
        let Marks { begun, ended, left } = *self.marks.lock();
        (begun, ended, left.map(|left| left.as_millis() as u64))
    }
}

/// Runs `go NAME,NAME,… MS [DEADLINE]`: a call to the first name that goes on to the others.
pub fn go(words: &[&str]) -> Outcome {
    let names: Vec<String> = words[1].split(',').map(Into::into).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let first = Relay::bind(&names[0])?.with_deadline(number(3).map(Duration::from_millis));
    match first.go(&names[1..], number(2).unwrap_or(0) as u32) {
        Ok(on_the_way) => Ok(on_the_way.iter().map(u32::to_string).collect()),
        Err(Failure::Returned(error)) => Err(error.into()),
        Err(Failure::Call(error)) => Err(error.into()),
    }
}

/// A station's marks: how many times `go` has begun and ended, and the time in milliseconds that
/// the newest caller has left to wait; 0 if it set no limit.
pub(crate) fn marks(name: &str) -> Outcome {
    let (begun, ended, left) = Relay::bind(name)?.marks()?;
    show([begun, ended, left.unwrap_or(0)])
}
