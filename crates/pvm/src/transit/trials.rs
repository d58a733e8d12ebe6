//! Moves at random, and faults, for tests: in builds with debug assertions only.
//!
//! - `UPCALL_PVM_SHUFFLE=MICROSECONDS[,SEED]`: the first process asks for a move of some task to
//!   some process at these intervals.
//! - `UPCALL_PVM_FAULT=RANK:LABEL:kill|stop[:COUNT]`: the process of this rank kills or stops
//!   itself when it is to carry out an effect of this name, for the COUNT-th time (1 by default).
//!   Labels are the names of [`MoveEffect`](crate::moves::MoveEffect), of messages in `Tell`, of
//!   `HasPages`, of messages for a checkpoint ([`holding`](crate::holding)), and `Restored`.
//!   Others are the steps of a checkpoint's file (`NamingStep`).
//! - `UPCALL_PVM_CONTENTS=sent`: tasks' contents are sent, as if no process could read another
//!   process's memory. `read`: they are read, as if none could write to it.
//! - `UPCALL_PVM_TMPFILE=no`: checkpoints are written as if the file system had no files without
//!   names.
//! - `UPCALL_PVM_SAVED=BYTES`: for a checkpoint, the first process takes no more than this of each
//!   task of another host.
//! - `UPCALL_PVM_BENT=RANK:SEED`: the process of this rank is hostile. Of each task that leaves it
//!   whose contents are sent, it changes one message, and sends the sum of what it has changed. It
//!   does the same with tasks for a checkpoint.

use super::NodeEffect;
use crate::checkpoint::{NamingStep, UntilWhole, WriterTrial};
use crate::moves::MoveEffect;
use crate::report::report_line;
use rustix::process::{Signal, getpid, kill_process};
use std::time::{Duration, Instant};
use upcall_message::Rank;

/// What a test wants of this process.
#[derive(Debug, Default)]
pub(crate) struct MoveTrials {
    shuffle: Option<Shuffle>,
    fault: Option<Fault>,
    contents: TrialContents,
    bends: Option<Bends>,
    saved: Option<u64>,
    until_whole: UntilWhole,
}

/// A fault of the thread that writes a checkpoint.
pub(crate) struct WriterFault(Option<Fault>, UntilWhole);

impl WriterTrial for WriterFault {
    fn before(&mut self, step: NamingStep) {
        if let Some(fault) = &mut self.0 {
            fault.before_label(&format!("{step:?}"));
        }
    }

    fn until_whole(&self) -> UntilWhole {
        self.1
    }
}

/// How a hostile process changes what it sends of tasks.
#[derive(Debug)]
struct Bends {
    random: Shuffle,
    /// Number of messages before the bent message.
    left: Option<usize>,
}

/// How the contents of tasks go to their new process.
#[derive(Debug, Default, PartialEq, Eq)]
enum TrialContents {
    /// By the fastest way there is.
    #[default]
    Any,
    /// As if no process could write to another one's memory.
    Read,
    /// As if no process could use another one's memory.
    Sent,
}

#[derive(Debug)]
struct Shuffle {
    every: Duration,
    next: Instant,
    /// The state of a linear congruential generator.
    random: u64,
}

#[derive(Clone, Debug)]
struct Fault {
    label: String,
    signal: Signal,
    /// Number of effects until the fault.
    left: u32,
}

impl MoveTrials {
    pub(crate) fn of_environment(rank: Rank) -> Self {
        if !cfg!(debug_assertions) {
            return Self::default();
        }
        let value = |name: &str| std::env::var(name).ok();
        let shuffle = value("UPCALL_PVM_SHUFFLE").filter(|_| rank == 0).and_then(|value| {
            let (every, seed) = value.split_once(',').unwrap_or((&value, "1"));
            let every = Duration::from_micros(every.parse().ok()?);
            Some(Shuffle { every, next: Instant::now() + every, random: seed.parse().ok()? })
        });
        let fault = value("UPCALL_PVM_FAULT").and_then(|value| {
            let words = value.split(':').collect::<Vec<_>>();
            let [at, label, what, rest @ ..] = &words[..] else { return None };
            let signal = if *what == "kill" { Signal::KILL } else { Signal::STOP };
            let left = rest.first().map_or(Some(1), |count| count.parse().ok())?;
            let is_here = at.parse() == Ok(rank);
            is_here.then(|| Fault { label: (*label).to_owned(), signal, left })
        });
        let contents = match value("UPCALL_PVM_CONTENTS").as_deref() {
            Some("sent") => TrialContents::Sent,
            Some("read") => TrialContents::Read,
            _ => TrialContents::Any,
        };
        let bends = value("UPCALL_PVM_BENT").and_then(|value| {
            let (at, seed) = value.split_once(':')?;
            let (every, next) = (Duration::ZERO, Instant::now());
            let random = Shuffle { every, next, random: seed.parse().ok()? };
            (at.parse() == Ok(rank)).then_some(Bends { random, left: None })
        });
        let saved = value("UPCALL_PVM_SAVED").and_then(|value| value.parse().ok());
        let is_named = value("UPCALL_PVM_TMPFILE").is_some_and(|value| value == "no");
        let until_whole = if is_named { UntilWhole::Named } else { UntilWhole::Unnamed };
        Self { shuffle, fault, contents, bends, saved, until_whole }
    }

    /// What a test wants of the thread that writes a checkpoint.
    pub(crate) fn of_writer(&self) -> WriterFault {
        WriterFault(self.fault.clone(), self.until_whole)
    }

    /// Number of bytes that a test allows a task of another host in a checkpoint.
    pub(crate) fn most_saved(&self) -> Option<u64> {
        self.saved
    }

    /// Returns `false` if a test wants the contents of tasks to be sent.
    pub(crate) fn allows_reading(&self) -> bool {
        self.contents != TrialContents::Sent
    }

    /// Returns `false` if a test wants no process to write to another one's memory.
    pub(crate) fn allows_writing(&self) -> bool {
        self.contents == TrialContents::Any
    }

    /// A task leaves, in this number of messages. The first one has all but its contents.
    pub(crate) fn leaves(&mut self, messages: usize) {
        if let Some(Bends { random, left }) = &mut self.bends {
            let of = if random.random().is_multiple_of(2) { 1 } else { messages };
            *left = Some(random.random() % of);
        }
    }

    /// Changes a message about a task if a test wants that.
    pub(crate) fn bend(&mut self, bytes: &mut Vec<u8>) {
        let Some(Bends { random, left: left @ Some(_) }) = &mut self.bends else { return };
        *left = left.and_then(|left| left.checked_sub(1));
        if left.is_none() && !bytes.is_empty() {
            random.bend(bytes);
        }
    }

    /// Kills or stops this process if this is the effect at which a test wants that.
    #[inline]
    pub(crate) fn before(&mut self, effect: &NodeEffect) {
        if let Some(fault) = &mut self.fault {
            fault.before(effect);
        }
    }

    /// The same for a step that is no effect, whose label is the first word of what is shown.
    #[inline]
    pub(crate) fn before_step(&mut self, step: &dyn std::fmt::Debug) {
        if let Some(fault) = &mut self.fault {
            fault.before_label(&format!("{step:?}"));
        }
    }
}

impl Fault {
    fn before(&mut self, effect: &NodeEffect) {
        let shown = match effect {
            MoveEffect::Tell { message, .. } => format!("{message:?}"),
            effect => format!("{effect:?}"),
        };
        self.before_label(&shown);
    }

    fn before_label(&mut self, shown: &str) {
        if shown.split([' ', '(']).next() != Some(&self.label) {
            return;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            report_line!("upcall pvm: {:?} at {}", self.signal, self.label);
            let _ = kill_process(getpid(), self.signal);
            self.left = u32::MAX;
        }
    }
}

impl MoveTrials {
    /// Two random numbers, for a task and a process, if it is time for a move at random, and when
    /// it is time for the next one.
    pub(crate) fn next_move(&mut self) -> Option<([usize; 2], Instant)> {
        let (shuffle, now) = (self.shuffle.as_mut()?, Instant::now());
        if now < shuffle.next {
            return None;
        }
        shuffle.next = now + shuffle.every;
        Some(([(); 2].map(|()| shuffle.random()), shuffle.next))
    }
}

impl Shuffle {
    /// Changes a place of a message: mostly near its beginning, where the numbers are.
    fn bend(&mut self, bytes: &mut Vec<u8>) {
        let near = if self.random().is_multiple_of(2) { bytes.len() } else { 128 };
        let at = self.random() % bytes.len().min(near);
        match self.random() % 5 {
            0 => bytes[at] ^= 1 << (self.random() % 8),
            1 => bytes[at] = self.random() as u8,
            2 => bytes.truncate(at),
            3 => _ = bytes.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0x0f]),
            _ => _ = bytes.splice(at..=at, [0xff; 9].into_iter().chain([1])),
        }
    }

    fn random(&mut self) -> usize {
        const FACTOR: u64 = 6_364_136_223_846_793_005;
        self.random = self.random.wrapping_mul(FACTOR).wrapping_add(1);
        (self.random >> 33) as usize
    }
}
