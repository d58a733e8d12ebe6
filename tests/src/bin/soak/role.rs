//! What all roles share: the record, a slot in it, and a way to complain.

use crate::book::{Book, Phase, Sum};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Duration;
use upcall_tests::dice::Dice;
use upcall_tests::party::Said;

/// Maximum number of complaints that one process prints. Any more are only counted.
const MOST_COMPLAINTS: u64 = 8;

/// A process of the run.
#[derive(Clone)]
pub struct Role {
    /// The shared record.
    pub book: Book,
    /// This process's slot in the record.
    pub slot: usize,
    seed: u64,
    plant: Option<String>,
}

impl Role {
    /// Joins the run. `words` are the record's path, the slot and the seed.
    pub fn enter(words: &[&str]) -> Result<Self, Box<dyn Error>> {
        let [path, slot, seed] = words else {
            return Err("a role needs a record, a slot and a seed".into());
        };
        // No role outlives the run, however the run ends.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let role = Self {
            book: Book::open(path)?,
            slot: slot.parse()?,
            seed: seed.parse()?,
            plant: std::env::var("SOAK_PLANT").ok(),
        };
        role.book.enter(role.slot);
        Ok(role)
    }

    /// Random numbers for part `part` of this process.
    pub fn dice(&self, part: u64) -> Dice {
        Dice::new(self.seed ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns `true` if this fault is to be planted.
    pub fn plants(&self, fault: &str) -> bool {
        self.plant.as_deref() == Some(fault)
    }

    /// Reports a violation. The run fails.
    pub fn complain(&self, kind: &str, text: impl std::fmt::Display) {
        self.book.add(Sum::Complaints, 1);
        if self
            .book
            .slot(self.slot, crate::book::SlotWord::Complaints)
            .fetch_add(1, std::sync::atomic::Ordering::SeqCst)
            < MOST_COMPLAINTS
        {
            say(&Said::Error { kind: kind.into(), text: text.to_string() });
        }
    }

    /// Complains if a check has failed.
    pub fn check(&self, kind: &str, outcome: Result<(), String>) {
        if let Err(text) = outcome {
            self.complain(kind, text);
        }
    }

    /// Returns `true` if this process is to finish and rest.
    pub fn rests(&self) -> bool {
        self.book.phase() == Phase::Rest
    }

    /// Waits on a kernel thread until there is work.
    pub fn rest(&self) {
        while self.rests() {
            self.tell_what_it_holds();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Notes in the record how much memory this process has allocated. The process calls this while
    /// it rests.
    pub fn tell_what_it_holds(&self) {
        let held = upcall_os::ration::held().bytes as u64;
        self.book
            .slot(self.slot, crate::book::SlotWord::Held)
            .store(held, std::sync::atomic::Ordering::SeqCst);
    }

    /// Reports that the process has begun, and waits until standard input ends.
    pub fn until_the_end(&self) {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {}
    }
}

/// Writes a line to the supervisor without buffering, so that the line survives this process.
pub fn say(said: &Said) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", said.to_line()).and_then(|()| out.flush());
}

/// The name of an error's variant.
pub fn kind(error: &(dyn Error + 'static)) -> String {
    match Said::error(error) {
        Said::Error { kind, .. } => kind,
        Said::Ok(_) => String::new(),
    }
}
