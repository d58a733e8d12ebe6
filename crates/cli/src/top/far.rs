//! The servers on other machines that are watched.
//!
//! Each is asked by a thread of its own, because an answer may take seconds, in which the command
//! goes on to show the others and to take keys. The screen shows the last answers. A rate is that
//! between two answers, not between two screens.

use crate::stat::{self, BindingRow, FarBindings};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The last answer of one server.
#[derive(Default)]
struct LastAnswer {
    rows: Vec<BindingRow>,
    /// Whether the last question was not answered.
    is_silent: bool,
}

/// The servers on other machines.
#[derive(Default)]
pub struct WatchedFar {
    answers: Vec<Arc<Mutex<LastAnswer>>>,
    /// Number of servers for which there is no thread.
    unasked: usize,
}

impl WatchedFar {
    /// Begins to ask the servers of these names, again after each interval until the process ends.
    pub fn new(names: &[String], interval: Duration) -> Self {
        let mut own = Self::default();
        for server in stat::servers_of(names) {
            let last = Arc::new(Mutex::new(LastAnswer::default()));
            let (answer, names) = (last.clone(), names.to_vec());
            let work = move || watch(&server, &names, interval, &answer);
            match Builder::new().spawn(work) {
                Ok(_) => own.answers.push(last),
                Err(_) => own.unasked += 1,
            }
        }
        own
    }

    /// What the servers have done in their last intervals, and the number of silent servers.
    pub fn read(&self) -> (Vec<BindingRow>, usize) {
        let (mut rows, mut silent) = (Vec::new(), self.unasked);
        for last in &self.answers {
            let last = last.lock().unwrap_or_else(PoisonError::into_inner);
            rows.extend(last.rows.iter().cloned());
            silent += usize::from(last.is_silent);
        }
        (rows, silent)
    }
}

fn watch(server: &str, names: &[String], interval: Duration, answer: &Mutex<LastAnswer>) {
    let mut known: Option<FarBindings> = None;
    loop {
        let asked = match known.take() {
            None => FarBindings::ask(server).map(|mut far| {
                far.bindings.begin();
                (Vec::new(), far)
            }),
            Some(mut far) => {
                let before = far.read;
                far.renew().map(|()| {
                    let since = far.read.saturating_duration_since(before);
                    (stat::rows(&mut far.bindings, names, Some(since)), far)
                })
            }
        };
        let (rows, is_silent) = match asked {
            Ok((rows, far)) => {
                known = Some(far);
                (rows, false)
            }
            Err(_) => (Vec::new(), true),
        };
        *answer.lock().unwrap_or_else(PoisonError::into_inner) = LastAnswer { rows, is_silent };
        let next = known.as_ref().map_or_else(Instant::now, |far| far.read) + interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
