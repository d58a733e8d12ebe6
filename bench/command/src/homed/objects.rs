//! Objects and their operations: those of Table 1, a hot counter, and a chain of lines.

use std::collections::{LinkedList, VecDeque};
use std::hint::black_box;
use upcall::home::types::BlobAt;
use upcall::home::{
    Blob, DataError, Homed, List, ListAt, Operation, Place, Procedure, Queue, QueueAt, Shared,
};
use upcall_os::memory::{Mapping, MemoryFile};

/// A short operation, and the object on which it is measured. The argument is a number.
pub trait Subject: Sync {
    /// The object's type.
    type Of: Shared;
    /// The operation.
    type Run: for<'a> Operation<Of = Self::Of, Args<'a> = u64>;
    /// Returns the argument.
    fn argument(&self) -> u64;

    /// Fills a new object.
    fn fill(&self, object: <Self::Of as Shared>::At<'_>) -> Result<(), DataError>;

    /// Writes the lines that the operation reads, without changing their content.
    fn touch(&self, object: <Self::Of as Shared>::At<'_>) -> Result<(), DataError>;

    /// Returns the same operation on Rust's own types, without a lock.
    fn bare(&self) -> Box<dyn FnMut() -> u64>;
}

/// Puts a number into a queue and takes one out.
pub struct EnqueueDequeue;

impl Operation for EnqueueDequeue {
    type Of = Queue<u64>;
    type Args<'a> = u64;
    type Reply = Option<u64>;
    const NAME: &'static str = "enqueue-dequeue";

    #[inline]
    fn run(queue: QueueAt<'_, u64>, number: u64) -> Result<Option<u64>, DataError> {
        queue.push(number)?;
        queue.pop()
    }
}

impl Subject for EnqueueDequeue {
    type Of = Queue<u64>;
    type Run = Self;

    fn argument(&self) -> u64 {
        7
    }

    fn fill(&self, queue: QueueAt<'_, u64>) -> Result<(), DataError> {
        (0..4).try_for_each(|number| queue.push(number))
    }

    fn touch(&self, queue: QueueAt<'_, u64>) -> Result<(), DataError> {
        Self::run(queue, 8).map(drop)
    }

    fn bare(&self) -> Box<dyn FnMut() -> u64> {
        let mut queue: VecDeque<u64> = (0..4).collect();
        Box::new(move || {
            let queue = black_box(&mut queue);
            queue.push_back(7);
            queue.pop_front().unwrap_or_default()
        })
    }
}

/// Searches a list of this length for its last number.
pub struct FindLast(pub u32);

/// The operation of `FindLast`.
pub struct Find;

impl Operation for Find {
    type Of = List<u64>;
    type Args<'a> = u64;
    type Reply = bool;
    const NAME: &'static str = "find";
    const LOOKS: bool = true;

    #[inline]
    fn run(list: ListAt<'_, u64>, number: u64) -> Result<bool, DataError> {
        for element in list.iter() {
            if element?.1.get()? == number {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Subject for FindLast {
    type Of = List<u64>;
    type Run = Find;

    fn argument(&self) -> u64 {
        u64::from(self.0)
    }

    fn fill(&self, list: ListAt<'_, u64>) -> Result<(), DataError> {
        (1..=u64::from(self.0)).try_for_each(|number| list.push_back(number).map(drop))
    }

    fn touch(&self, list: ListAt<'_, u64>) -> Result<(), DataError> {
        list.iter().try_for_each(|element| element?.1.update(|number| number).map(drop))
    }

    fn bare(&self) -> Box<dyn FnMut() -> u64> {
        let list: LinkedList<u64> = (1..=self.argument()).collect();
        let number = self.argument();
        Box::new(move || u64::from(black_box(&list).iter().any(|element| *element == number)))
    }
}

/// Allocates 4 KiB in an object's arena, filled with zeros, in place of the previous ones.
pub struct CreateSegment;

const SEGMENT: [u8; 4096] = [0; 4096];

impl Operation for CreateSegment {
    type Of = Blob;
    type Args<'a> = u64;
    type Reply = ();
    const NAME: &'static str = "create-segment";

    #[inline]
    fn run(segment: BlobAt<'_>, bytes: u64) -> Result<(), DataError> {
        segment.set(&SEGMENT[..SEGMENT.len().min(bytes as usize)])
    }
}

impl Subject for CreateSegment {
    type Of = Blob;
    type Run = Self;

    fn argument(&self) -> u64 {
        SEGMENT.len() as u64
    }

    fn fill(&self, segment: BlobAt<'_>) -> Result<(), DataError> {
        segment.set(&SEGMENT)
    }

    fn touch(&self, segment: BlobAt<'_>) -> Result<(), DataError> {
        segment.set(&SEGMENT)
    }

    fn bare(&self) -> Box<dyn FnMut() -> u64> {
        let mut segment = SEGMENT.to_vec();
        Box::new(move || {
            drop(std::mem::replace(black_box(&mut segment), black_box(&SEGMENT).to_vec()));
            segment.len() as u64
        })
    }
}

/// Increments a counter.
pub struct Count;

impl Operation for Count {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "count";

    #[inline]
    fn run(number: Place<'_, u64>, more: u64) -> Result<u64, DataError> {
        number.update(|number| number + more)
    }
}

impl Subject for Count {
    type Of = u64;
    type Run = Self;

    fn argument(&self) -> u64 {
        1
    }

    fn fill(&self, _: Place<'_, u64>) -> Result<(), DataError> {
        Ok(())
    }

    fn touch(&self, number: Place<'_, u64>) -> Result<(), DataError> {
        number.update(|number| number).map(drop)
    }

    fn bare(&self) -> Box<dyn FnMut() -> u64> {
        let mut number = 0;
        Box::new(move || {
            number = black_box(number) + 1;
            number
        })
    }
}

/// Runs a short operation as an operation that may block.
pub struct Ordinary<O>(O);

impl<O: for<'a> Operation<Args<'a> = u64>> Procedure for Ordinary<O> {
    type Of = O::Of;
    type Args<'a> = u64;
    type Reply = O::Reply;
    const NAME: &'static str = "ordinary";

    fn run(on: &Homed<O::Of>, number: u64) -> Result<O::Reply, String> {
        on.perform::<O>(number).map_err(|error| error.to_string())
    }
}

/// The access to the object that both long operations make.
fn enter(on: &Homed<Queue<u64>>, number: u64) -> Result<u64, String> {
    let out = on.perform::<EnqueueDequeue>(number).map_err(|error| error.to_string())?;
    out.ok_or_else(|| "the queue is empty".to_owned())
}

/// Maps and unmaps 64 KiB in the process that runs it, and accesses the object.
pub struct MapSegment;

thread_local! {
    static SEGMENT_FILE: Option<MemoryFile> = MemoryFile::create("upcall-bench", 64 << 10).ok();
}

impl Procedure for MapSegment {
    type Of = Queue<u64>;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "map-segment";

    fn run(on: &Homed<Queue<u64>>, number: u64) -> Result<u64, String> {
        SEGMENT_FILE.with(|file| {
            let file = file.as_ref().ok_or("no memory for a segment")?;
            let mapping = Mapping::shared(file).map_err(|error| error.to_string())?;
            black_box(mapping.start());
            drop(mapping);
            Ok::<(), String>(())
        })?;
        enter(on, number)
    }
}

/// Starts and joins a kernel thread in the process that runs it, and accesses the object.
pub struct CreateProcess;

impl Procedure for CreateProcess {
    type Of = Queue<u64>;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "create-process";

    fn run(on: &Homed<Queue<u64>>, number: u64) -> Result<u64, String> {
        let thread = std::thread::Builder::new().spawn(|| ()).map_err(|error| error.to_string())?;
        thread.join().map_err(|_| "the thread panicked")?;
        enter(on, number)
    }
}

/// A line, which contains the number of the next line.
#[derive(Shared)]
pub struct Line {
    next: u64,
    rest: [u64; 7],
}

/// Number of lines of a chain. A power of two.
pub const LINES: u64 = 512;

/// Distance between consecutive lines of a chain, in lines. It prevents prefetching.
const STEP: u64 = 197;

/// Walks over a chain of this number of lines, in an order that a processor does not predict.
pub struct Walk(pub u32);

impl Operation for Walk {
    type Of = Queue<Line>;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "walk";
    const LOOKS: bool = true;

    #[inline]
    fn run(lines: QueueAt<'_, Line>, count: u64) -> Result<u64, DataError> {
        let mut at = 0;
        for _ in 0..count {
            at = lines.at(at)?.map_or(Ok(0), |line| line.next().get())?;
        }
        Ok(at)
    }
}

impl Subject for Walk {
    type Of = Queue<Line>;
    type Run = Self;

    fn argument(&self) -> u64 {
        u64::from(self.0)
    }

    fn fill(&self, lines: QueueAt<'_, Line>) -> Result<(), DataError> {
        use upcall::home::With;
        (0..LINES).try_for_each(|at| {
            lines.push(With(|line: LineAt<'_>| {
                line.rest().set([0; 7])?;
                line.next().set((at + STEP) % LINES)
            }))
        })
    }

    fn touch(&self, lines: QueueAt<'_, Line>) -> Result<(), DataError> {
        touch_chain(lines, self.argument())
    }

    fn bare(&self) -> Box<dyn FnMut() -> u64> {
        let (next, count): (Vec<u64>, u64) =
            ((0..LINES).map(|at| (at + STEP) % LINES).collect(), self.argument());
        Box::new(move || (0..count).fold(0, |at, _| black_box(&next)[at as usize]))
    }
}

/// Writes the lines of a walk.
pub fn touch_chain(lines: QueueAt<'_, Line>, count: u64) -> Result<(), DataError> {
    let mut at = 0;
    for _ in 0..count {
        at = lines.at(at)?.map_or(Ok(0), |line| line.next().update(|next| next))?;
    }
    Ok(())
}
