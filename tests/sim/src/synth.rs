//! synth-N, the application of Figure 7 in UDM: producers send groups of N messages and wait for
//! all their acknowledgements, consumers take some time for each message. How many messages are
//! buffered?
//!
//! Source: UDM, section 5.2. There are two producers and two consumers, on a processor each. The
//! application shares the processors with another one, in slices of half a million units at the
//! same time everywhere, except that the consumers' slices begin 2000 units late. A message that
//! arrives in this time has a receiver that does not run. In UDM the network interface sees that
//! and has the message buffered ([`Entry::Mismatch`]), and all that follow until the buffer is
//! empty. The senders of Upcall do not know which receivers run. They divert when the queue was
//! full for longer than their patience ([`Entry::Patience`]), and a queue of a common size takes
//! what arrives in such a time.
//!
//! A unit is one of the paper's cycles, and a ns of the simulator's clock. The higher cost of a
//! message from the buffer is the paper's figure (Table 5); here both ways are the same code.

use crate::bag::{Bag, File};
use crate::dice::{Dice, mixed};
use crate::engine::{self, Cpu, Failure, Setup};
use crate::slices::Slices;
use std::sync::Arc;
use std::time::Duration;
use upcall_message::proto::flow::{Flow, Full};
use upcall_shm::direct::{Incoming, Outgoing};

/// Time that a handler takes, in units.
pub const HANDLER: u64 = 750;
/// Length of a slice, in units.
pub const SLICE: u64 = 500_000;
/// Delay of the consumers' slices, in units.
pub const SKEW: u64 = 2000;
/// Cost of receiving a message from the buffer, in units.
pub const BUFFERED: u64 = 234;
/// Cost of receiving a message directly, in units.
pub(crate) const DIRECT: u64 = 65;
/// Part of both costs that some ten accesses take anyway, in units.
pub(crate) const ACCESSES: u64 = 30;
/// Interval between two probes for a message, in units.
pub(crate) const LOOK: u64 = 40;

const COUNT: usize = 4;
const SEGMENTS: u64 = 1 << 20;
const SEGMENT: usize = 4096;

type Sending = Outgoing<Bag<SEGMENTS>>;
type Taking = Incoming<Bag<SEGMENTS>>;

/// When messages begin to be buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A message arrives while its receiver does not run.
    Mismatch,
    /// The queue was full for this long.
    Patience(Duration),
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Synth {
    /// Number of messages in a group: N.
    pub group: u64,
    /// Mean time from one message to the next, in units.
    pub interval: u64,
    /// When messages are buffered.
    pub entry: Entry,
    /// Number of words of the queue.
    pub home: usize,
    /// Number of its own slices for which it runs.
    pub slices: u64,
    /// The seed of the intervals.
    pub seed: u64,
}

impl Synth {
    /// The parameters of the figure.
    pub fn new(group: u64, interval: u64) -> Self {
        Self { group, interval, entry: Entry::Mismatch, home: 64, slices: 4, seed: 1 }
    }
}

/// A point of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of messages in a group.
    pub group: u64,
    /// Mean time from one message to the next, in units.
    pub interval: u64,
    /// Number of messages that were sent.
    pub sent: u64,
    /// Number of those that were buffered.
    pub buffered: u64,
}

impl Row {
    /// The share of messages that were buffered.
    pub fn share(&self) -> f64 {
        self.buffered as f64 / self.sent.max(1) as f64
    }
}

/// Runs it.
///
/// # Errors
/// The violation that was found.
pub fn run(synth: Synth) -> Result<Row, Failure> {
    // By producer: its messages, and their acknowledgements.
    let file = |words| File::new(words, SEGMENT, 0, Dice::new(0));
    let files: Vec<_> = (0..COUNT / 2).map(|_| (file(synth.home), file(SEGMENT))).collect();
    let slices = |rank| Some(Slices { length: SLICE, of: 2, own: 0, skew: rank as u64 % 2 * SKEW });
    let most = 20 * synth.slices * SLICE;
    let setup = Setup {
        dice: Dice::new(synth.seed),
        slices: (0..COUNT).map(slices).collect(),
        trouble: None,
        most,
    };
    let program = move |cpu: Cpu| {
        let (messages, replies) = &files[cpu.rank() / 2];
        let bag = |file: &Arc<File>, sends| Bag { file: file.clone(), cpu: cpu.clone(), sends };
        if cpu.rank().is_multiple_of(2) {
            produce(
                &cpu,
                &synth,
                Outgoing::new(bag(messages, true)),
                Incoming::new(bag(replies, false)),
            );
        } else {
            consume(&cpu, Incoming::new(bag(messages, false)), Outgoing::new(bag(replies, true)));
        }
    };
    let ledger = engine::run(setup, program, |_, _| Err("no domain can go on".into()))?;
    let (sent, buffered) = (ledger.summary.launched, ledger.summary.buffered);
    Ok(Row { group: synth.group, interval: synth.interval, sent, buffered })
}

fn produce(cpu: &Cpu, synth: &Synth, mut queue: Sending, mut replies: Taking) {
    let dice = Dice::new(mixed(synth.seed + cpu.rank() as u64));
    let mut flow = Flow::new(match synth.entry {
        Entry::Mismatch => None,
        Entry::Patience(patience) => Some(patience),
    });
    while cpu.time() < synth.slices * 2 * SLICE {
        for number in 0..synth.group {
            cpu.spend(1 + dice.below(2 * synth.interval));
            send(cpu, synth.entry, &mut queue, &mut flow, number);
        }
        let mut answered = 0;
        while answered < synth.group {
            answered += take(cpu, &mut replies, |_| {});
        }
    }
}

fn send(cpu: &Cpu, entry: Entry, queue: &mut Sending, flow: &mut Flow, number: u64) {
    let to = cpu.rank() + 1;
    // The next message after the buffer is empty leaves it.
    if entry == Entry::Mismatch && !queue.is_diverted() && !cpu.has_processor(to) {
        divert(cpu, queue);
    }
    while queue.try_send(queue.is_diverted().into(), &[number]).is_err() {
        let progress = queue.progress();
        if entry == Entry::Mismatch && queue.is_diverted() {
            divert(cpu, queue);
        } else if flow.full(cpu.now(), progress) == Full::Divert {
            divert(cpu, queue);
            flow.diverted(progress);
        } else {
            cpu.spend(LOOK);
        }
    }
    flow.fits();
    let buffered = queue.is_diverted();
    cpu.count(|seen| {
        seen.launched += 1;
        seen.buffered += u64::from(buffered);
    });
}

fn divert(cpu: &Cpu, queue: &mut Sending) {
    if let Err(error) = queue.divert() {
        cpu.fail(format!("no segment: {error}"));
    }
}

fn consume(cpu: &Cpu, mut queue: Taking, mut replies: Sending) {
    let mut expected = 0;
    loop {
        let taken = take(cpu, &mut queue, |number| {
            if number != 0 && number != expected {
                cpu.fail(format!("message {number} is not {expected}"));
            }
            expected = number + 1;
            cpu.spend(HANDLER);
        });
        if taken == 1 && replies.try_send(0, &[]).is_err() {
            cpu.fail("there is no room for an acknowledgement".into());
        }
        if taken == 0 && cpu.has_news() && cpu.news().contains(&(cpu.rank() - 1)) {
            return;
        }
    }
}

/// Takes a message, if there is one. Returns the number of messages taken.
fn take(cpu: &Cpu, queue: &mut Taking, handler: impl FnOnce(u64)) -> u64 {
    let (cost, number) = match queue.peek() {
        Ok(Some(arrived)) => {
            let number = arrived.word(0);
            let cost = if arrived.handler() == 0 { DIRECT } else { BUFFERED };
            arrived.dispose();
            (cost, number)
        }
        Ok(None) => {
            queue.tell();
            cpu.spend(LOOK);
            return 0;
        }
        Err(error) => cpu.fail(error.to_string()),
    };
    cpu.spend(cost - ACCESSES);
    handler(number.unwrap_or(0));
    1
}
