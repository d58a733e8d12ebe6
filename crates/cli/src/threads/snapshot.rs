//! The copy of a stopped process's processors, records, names, registers, and used parts of stacks.
//!
//! Everything is another program's memory, so it is checked: chains are followed up to a maximum
//! length, sizes are bounded, and unreadable places are left out. The copies are not trusted later
//! either: an address in them is only given to the kernel, to read from.
//!
//! The process waits, so nothing else is done here. The meaning of the numbers is found out later,
//! from the copies (`thread`, `unwind`).

use super::beacon::{BeaconAddress, RecordOffsets};
use super::error::InspectError;
use super::halt::{Halted, StoppedThread};
use super::memory::{CopiedSpans, copy, copy_dense, read, u32_at, u64_at};
use super::process::TargetProcess;
use super::slabs::Slabs;
use std::collections::{HashMap, HashSet};
use std::io;
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;
use upcall_os::trace::{ProcessSpan, Registers};

/// Maximum number of links in a chain: of processors, of slabs (with some 240 threads each), or of
/// kernel threads.
const MOST_LINKS: usize = 1 << 16;
const MOST_NAME: usize = 256;
/// Bytes of the stack below a record that are read with the record. Most waiting threads use no
/// more of their stacks, and the bytes are in the same page, which is what costs time.
const PEEK: u64 = 1024;
/// Maximum number of bytes of one stack, and of all stacks together. If all are larger, each stack
/// gets an equal share of at least [`LEAST_STACK`].
const MOST_STACK: usize = 256 << 10;
const MOST_STACKS: usize = 1 << 30;
const LEAST_STACK: usize = 4 << 10;

/// `Cause::Work`, in `crates/thread/src/record.rs`.
pub const WORK: u8 = 8;
/// The numbers of rsp and rdi in DWARF.
const STACK_POINTER: usize = 7;
const FIRST_ARGUMENT: usize = 5;
/// `futex`, and `restart_syscall`, which continues an interrupted `futex`.
const FUTEX_CALLS: [u64; 2] = [202, 219];

/// The copy of a process.
pub struct Snapshot {
    /// The virtual processors whose kernel threads run.
    pub processors: Vec<ProcessorSnapshot>,
    pub records: Vec<ThreadRecord>,
    pub stacks: StackCopies,
    /// The time for which the process was stopped.
    pub stopped: Duration,
    /// Notes on parts that had to be left out.
    pub notes: Vec<String>,
}

pub struct ProcessorSnapshot {
    pub index: u32,
    pub kernel_thread: u32,
    /// The record of the thread that the processor runs, or on whose stack it idles.
    pub current: u64,
}

/// The fields of a thread's record.
pub struct ThreadRecord {
    pub at: u64,
    /// 0 for a kernel thread without a record.
    pub number: u64,
    pub name: Option<String>,
    pub blocking: bool,
    pub cause: u8,
    pub object: u64,
    pub stack_pointer: u64,
    /// The record is of a kernel thread or of a processor's first thread, which run on the kernel
    /// thread's stack.
    pub outside: bool,
    /// The index of the thread's processor; `None` if the thread has not started or is a kernel
    /// thread.
    pub home: Option<u32>,
    /// The kernel thread in which the thread is stopped, if it is, with its registers.
    pub on: Option<(u32, Option<Registers>)>,
    /// The usable stack, up to the record; empty for a stack outside the slabs.
    slot: (u64, u64),
    /// The part of the stack that was read with the record.
    peek: StackPart,
    /// The parts of the stack that were read.
    pub parts: Vec<StackPart>,
}

impl ThreadRecord {
    /// Reads the record at `at` from its `bytes`. `slot` is its stack if that is in a slab, and
    /// `peek` the part of the stack that was read with the record.
    fn read(
        at: u64,
        bytes: &[u8],
        layout: RecordOffsets,
        slot: Option<(u64, u64)>,
        peek: StackPart,
    ) -> Self {
        Self {
            at,
            number: u64_at(bytes, layout.number),
            name: None,
            blocking: bytes[layout.blocking] != 0,
            cause: bytes[layout.cause],
            object: u64_at(bytes, layout.object),
            stack_pointer: u64_at(bytes, layout.stack_pointer),
            outside: slot.is_none(),
            home: None,
            on: None,
            slot: slot.unwrap_or_default(),
            peek,
            parts: Vec::new(),
        }
    }

    /// A kernel thread that has no record, or whose record is not known.
    fn without_record(task: &StoppedThread) -> Self {
        Self {
            at: 0,
            number: 0,
            name: None,
            blocking: false,
            cause: 0,
            object: 0,
            stack_pointer: 0,
            outside: true,
            home: None,
            on: Some((task.tid, task.registers)),
            slot: (0, 0),
            peek: StackPart { at: 0, copy: 0, index: 0, range: (0, 0) },
            parts: Vec::new(),
        }
    }
}

/// The kernel threads that run no thread of the program's and wait through no record.
fn others(
    tasks: &[StoppedThread],
    processors: &[ProcessorSnapshot],
    records: &[ThreadRecord],
) -> Vec<ThreadRecord> {
    let of_processors = processors.iter().map(|processor| processor.kernel_thread);
    let of_records = records.iter().filter_map(|record| record.on.map(|(tid, _)| tid));
    let known: HashSet<u32> = of_processors.chain(of_records).collect();
    let others = tasks.iter().filter(|task| !known.contains(&task.tid));
    others.map(ThreadRecord::without_record).collect()
}

/// Copies of stacks.
#[derive(Default)]
pub struct StackCopies {
    copies: Vec<CopiedSpans>,
}

/// A part of a stack that begins at `at`.
#[derive(Clone, Copy)]
pub struct StackPart {
    at: u64,
    copy: usize,
    index: usize,
    /// Begin and end of the part in the copied span.
    range: (usize, usize),
}

impl StackCopies {
    /// The address and the bytes of a part.
    pub fn part(&self, part: &StackPart) -> (u64, &[u8]) {
        let copied = self.copies.get(part.copy).map_or(&[][..], |copy| copy.get(part.index));
        let end = part.range.1.min(copied.len());
        (part.at, copied.get(part.range.0..end).unwrap_or_default())
    }
}

/// Copies a process by its beacons. Without `backtraces`, only the parts of stacks are read that
/// show what the threads do.
pub fn take(
    process: &TargetProcess,
    beacons: &[BeaconAddress<'_>],
    backtraces: bool,
) -> Result<Snapshot, InspectError> {
    // The beacons are checked first, so that the process is not stopped in vain.
    for beacon in beacons {
        beacon.read(process.pid)?;
    }
    // A kernel thread for this purpose: when the thread ends, even by a panic, the kernel releases
    // everything that the thread still holds.
    let taken = std::thread::scope(|scope| {
        let taking = Taking { process, notes: Vec::new(), stacks: StackCopies::default() };
        let started = Builder::new().spawn_scoped(scope, || taking.run(beacons, backtraces));
        started.map(ScopedJoinHandle::join).map_err(InspectError::NoThread)
    });
    taken?.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

struct Taking<'a> {
    process: &'a TargetProcess,
    notes: Vec<String>,
    stacks: StackCopies,
}

impl Taking<'_> {
    fn run(
        mut self,
        beacons: &[BeaconAddress<'_>],
        backtraces: bool,
    ) -> Result<Snapshot, InspectError> {
        let halted = Halted::new(self.process)?;
        let tasks = halted.tasks(self.process);
        let (mut processors, mut records) = (Vec::new(), Vec::new());
        for beacon in beacons {
            self.program(beacon, &tasks, &mut processors, &mut records)?;
        }
        let others = others(&tasks, &processors, &records);
        let first_other = records.len();
        records.extend(others);
        let pid = self.process.pid;
        self.stacks(&mut records, backtraces)
            .map_err(|error| InspectError::kernel(pid, "read the memory", error))?;
        let stopped = halted.release();
        // The kernel has the names of these threads, so the process need not wait for them.
        for record in &mut records[first_other..] {
            record.name = record.on.and_then(|(tid, _)| self.process.name_of(tid));
        }
        Ok(Snapshot { processors, records, stacks: self.stacks, stopped, notes: self.notes })
    }

    /// Copies everything to which one beacon leads.
    fn program(
        &mut self,
        beacon: &BeaconAddress<'_>,
        tasks: &[StoppedThread],
        processors: &mut Vec<ProcessorSnapshot>,
        records: &mut Vec<ThreadRecord>,
    ) -> Result<(), InspectError> {
        let pid = self.process.pid;
        let read = beacon.read(pid)?;
        let layout = read.layout;
        let failed = |error| InspectError::kernel(pid, "read the memory", error);
        let nodes = self.chain("slabs of stacks", read.slabs, 40).map_err(failed)?;
        let (slabs, left_out) = Slabs::new(&nodes, layout);
        if left_out > 0 {
            self.notes.push(format!(
                "{left_out} slabs of stacks were left out: their sizes are impossible"
            ));
        }
        let kernel = self.chain("kernel threads", read.kernel, 16).map_err(failed)?;
        let posts = self.chain("virtual processors", read.processors, 24).map_err(failed)?;

        // Each record, with the number of bytes below it that are read as well.
        let peek = |at: u64| slabs.slot_of(at).map_or(0, |(bottom, _)| PEEK.min(at - bottom));
        let inside = slabs.records().map(|at| (at, peek(at)));
        let places: Vec<(u64, u64)> =
            inside.chain(kernel.iter().map(|node| (u64_at(node, 8), 0))).collect();
        let len = |peek: u64| peek as usize + layout.record;
        let spans: Vec<_> = places
            .iter()
            .map(|&(at, peek)| ProcessSpan { at: at - peek, len: len(peek) })
            .collect();
        let copied = copy(pid, &spans).map_err(failed)?;
        let first = records.len();
        let (mut homes, mut extras) = (Vec::new(), Vec::new());
        for (index, &(at, peek)) in places.iter().enumerate() {
            let Some(bytes) = copied.whole(index, len(peek)).map(|bytes| &bytes[peek as usize..])
            else {
                continue;
            };
            if u64_at(bytes, layout.number) == 0 {
                continue;
            }
            homes.push(u64_at(bytes, layout.home));
            extras.push(u64_at(bytes, layout.extra));
            let part = StackPart {
                at: at - peek,
                copy: self.stacks.copies.len(),
                index,
                range: (0, peek as usize),
            };
            records.push(ThreadRecord::read(at, bytes, layout, slabs.slot_of(at), part));
        }
        self.stacks.copies.push(copied);
        let mine = &mut records[first..];
        self.names(mine, &extras, layout).map_err(failed)?;
        self.homes(mine, &homes, layout).map_err(failed)?;
        let live = posts.iter().filter_map(|post| {
            let task = tasks.iter().find(|task| task.own_number == u32_at(post, 16))?;
            Some((
                ProcessorSnapshot {
                    index: u32_at(post, 20),
                    kernel_thread: task.tid,
                    current: u64_at(post, 8),
                },
                task,
            ))
        });
        let before = processors.len();
        for (processor, task) in live {
            place(mine, &slabs, &processor, task);
            processors.push(processor);
        }
        processors[before..].sort_by_key(|processor| processor.index);
        find_kernel_threads(mine, tasks, layout.record as u64);
        Ok(())
    }

    /// The nodes of a chain. The first word of a node is the address of the next node.
    fn chain(&mut self, what: &str, first: u64, len: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut nodes = Vec::new();
        let mut at = first;
        while at != 0 {
            if nodes.len() == MOST_LINKS {
                self.notes.push(format!(
                    "the chain of {what} was cut after {MOST_LINKS}: it is too long, or a circle"
                ));
                break;
            }
            let Some(node) = read(self.process.pid, at, len)? else {
                self.notes
                    .push(format!("the chain of {what} leads to 0x{at:x}, which cannot be read"));
                break;
            };
            at = u64_at(&node, 0);
            nodes.push(node);
        }
        Ok(nodes)
    }

    fn names(
        &self,
        records: &mut [ThreadRecord],
        extras: &[u64],
        layout: RecordOffsets,
    ) -> io::Result<()> {
        let named: Vec<_> =
            records.iter_mut().zip(extras).filter(|(_, extra)| **extra != 0).collect();
        let span = |extra: u64| ProcessSpan { at: extra.wrapping_add(layout.name), len: 16 };
        let heads = copy_dense(
            self.process.pid,
            &named.iter().map(|(_, extra)| span(**extra)).collect::<Vec<_>>(),
        )?;
        let texts = (0..named.len()).map(|index| {
            let head = heads.get(index);
            ProcessSpan { at: u64_at(head, 0), len: u64_at(head, 8).min(MOST_NAME as u64) as usize }
        });
        let texts: Vec<_> = texts.collect();
        let copied = copy_dense(self.process.pid, &texts)?;
        for (index, (record, _)) in named.into_iter().enumerate() {
            if texts[index].at != 0 {
                record.name = Some(String::from_utf8_lossy(copied.get(index)).into_owned());
            }
        }
        Ok(())
    }

    /// Finds the processors of threads.
    fn homes(
        &self,
        records: &mut [ThreadRecord],
        homes: &[u64],
        layout: RecordOffsets,
    ) -> io::Result<()> {
        let different: Vec<u64> = homes
            .iter()
            .copied()
            .filter(|&home| home != 0)
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        let spans: Vec<_> = different
            .iter()
            .map(|home| ProcessSpan { at: home.wrapping_add(layout.index), len: 8 })
            .collect();
        let copied = copy(self.process.pid, &spans)?;
        let index = |place| u32::try_from(u64_at(copied.get(place), 0)).unwrap_or(u32::MAX);
        let indexes: HashMap<_, _> =
            different.iter().enumerate().map(|(place, &home)| (home, index(place))).collect();
        for (record, home) in records.iter_mut().zip(homes) {
            record.home = indexes.get(home).copied();
        }
        Ok(())
    }

    /// Copies the used parts of stacks.
    fn stacks(&mut self, records: &mut [ThreadRecord], backtraces: bool) -> io::Result<()> {
        let telling = |record: &ThreadRecord| {
            record.on.is_some() || !(record.blocking || record.cause == WORK)
        };
        let used = |record: &ThreadRecord, limit| {
            if backtraces || telling(record) { record.in_use(limit) } else { Vec::new() }
        };
        let most = MOST_STACK as u64;
        let bytes: u64 = records
            .iter()
            .flat_map(|record| used(record, most))
            .map(|(at, end)| (end - at).min(most))
            .sum();
        let share = (MOST_STACKS / records.len().max(1)).clamp(LEAST_STACK, MOST_STACK) as u64;
        let limit = if bytes <= MOST_STACKS as u64 { most } else { share };
        let mut spans = Vec::new();
        for record in records {
            for (at, end) in used(record, limit) {
                let (peek, len) = (record.peek, (end - at).min(limit) as usize);
                record.parts.push(if peek.at <= at && at < record.at {
                    StackPart { at, range: ((at - peek.at) as usize, peek.range.1), ..peek }
                } else {
                    spans.push(ProcessSpan { at, len });
                    StackPart {
                        at,
                        copy: self.stacks.copies.len(),
                        index: spans.len() - 1,
                        range: (0, len),
                    }
                });
            }
        }
        self.stacks.copies.push(copy(self.process.pid, &spans)?);
        Ok(())
    }
}

impl ThreadRecord {
    fn in_use(&self, limit: u64) -> Vec<(u64, u64)> {
        let (bottom, top) = self.slot;
        let inside = |at: u64| bottom <= at && at < top;
        match self.on {
            Some((_, Some(registers))) => {
                let at = registers.general[STACK_POINTER];
                if inside(at) {
                    vec![(at, top)]
                } else {
                    // The stack is a kernel thread's or a signal handler's, and the next frames are
                    // on this one.
                    let all = [
                        (at, at.saturating_add(limit)),
                        (bottom.max(top.saturating_sub(limit)), top),
                    ];
                    all.into_iter().filter(|(at, end)| at < end).collect()
                }
            }
            Some((_, None)) => Vec::new(),
            // A thread that has not started, or a kernel thread that was not found.
            None if self.home.is_none() => Vec::new(),
            None if self.outside => {
                vec![(self.stack_pointer, self.stack_pointer.saturating_add(limit))]
            }
            None if inside(self.stack_pointer) => vec![(self.stack_pointer, top)],
            None => Vec::new(),
        }
    }
}

/// Finds the thread that the kernel thread of `processor` runs. During the few instructions of a
/// switch this is still the old thread, whose saved stack pointer is out of date.
fn place(
    records: &mut [ThreadRecord],
    slabs: &Slabs,
    processor: &ProcessorSnapshot,
    task: &StoppedThread,
) {
    let under = task
        .registers
        .and_then(|registers| slabs.record_of_stack(registers.general[STACK_POINTER]));
    let position = |at: u64| records.iter().position(|record| record.at == at);
    if let Some(index) = under.and_then(position).or_else(|| position(processor.current)) {
        records[index].on = Some((task.tid, task.registers));
    }
}

/// Finds kernel threads that wait through the crate: they wait on a futex in their records.
fn find_kernel_threads(records: &mut [ThreadRecord], tasks: &[StoppedThread], size: u64) {
    let mut by_place: Vec<_> =
        records.iter_mut().filter(|record| record.outside && record.on.is_none()).collect();
    by_place.sort_by_key(|record| record.at);
    for task in tasks {
        let Some(registers) = task.registers else { continue };
        if !registers.system_call.is_some_and(|call| FUTEX_CALLS.contains(&call)) {
            continue;
        }
        let word = registers.general[FIRST_ARGUMENT];
        let index = by_place.partition_point(|record| record.at <= word);
        if let Some(record) = index.checked_sub(1).and_then(|index| by_place.get_mut(index))
            && record.at.checked_add(size).is_some_and(|end| word < end)
        {
            record.on = Some((task.tid, task.registers));
        }
    }
}
