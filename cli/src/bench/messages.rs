//! Ours, as systems of the suite `messages`: each is an end that sends and receives, in the table of `super::messages_child`, and a name in `upcall_bench::messages::contender::OURS`.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::symlink;
use std::sync::atomic::AtomicU64;
use upcall_bench::child::Outcome;
use upcall_bench::messages::child::{End, Handler, Payload, Place, Side, System};
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_shm::direct::{Arrived, Incoming, Outgoing, Refused};
use upcall_shm::region::Region;

/// The direct queue by itself, one each way, in memory that the receiver makes. Both sides look; on one processor they yield between looks.
pub struct DirectQueue;

/// Words of a queue.
const WORDS: usize = 8192;

/// A queue, then what its receiver has disposed of, which has a page of its own.
const QUEUE: usize = WORDS * 8 + 4096;

/// The memory stays mapped until the process ends.
type Words = &'static [AtomicU64];
type Word = &'static AtomicU64;

/// The ends of one side.
pub struct Ends {
    outgoing: Outgoing<Words, Word>,
    incoming: Incoming<Words, Word>,
    yields: bool,
    /// Others find the memory by its descriptor.
    _memory: MemoryFile,
}

/// The file by which the sender finds the memory.
const MEMORY: &str = "direct-queue";

impl System for DirectQueue {
    const NAME: &'static str = "direct-queue";
    type End = Ends;

    fn join(place: &Place) -> Outcome<Ends> {
        let path = place.dir.join(MEMORY);
        let memory = match place.side {
            Side::Receiver => {
                let memory = MemoryFile::create("upcall-bench", 2 * QUEUE)?;
                symlink(format!("/proc/{}/fd/{}", std::process::id(), memory.as_fd().as_raw_fd()), path)?;
                memory
            }
            Side::Sender => {
                place.until(|| path.exists())?;
                MemoryFile::adopt(OpenOptions::new().read(true).write(true).open(path)?.into(), 2 * QUEUE)?
            }
        };
        let region = Region::new(Mapping::shared(&memory)?).ok_or("the memory cannot be written")?;
        let region: &'static Region = Box::leak(Box::new(region));
        let queue = |from: Side| {
            let at = if from == Side::Sender { 0 } else { QUEUE };
            let all = region.room(at, QUEUE).and_then(|room| room.words()).ok_or("the memory is too small")?;
            Outcome::Ok((&all[..WORDS], &all[WORDS]))
        };
        let (outgoing, incoming): ((Words, Word), (Words, Word)) = (queue(place.side)?, queue(place.side.other())?);
        Ok(Ends {
            outgoing: Outgoing::new(outgoing.0, outgoing.1),
            incoming: Incoming::new(incoming.0, incoming.1),
            yields: place.yields(),
            _memory: memory,
        })
    }
}

impl Ends {
    #[inline(always)]
    fn pause(&self) {
        if self.yields {
            std::thread::yield_now();
        }
    }
}

impl End for Ends {
    #[inline(always)]
    fn send_words<const N: usize>(&mut self, handler: u16, words: &[u64; N]) -> Outcome<()> {
        loop {
            match self.outgoing.try_send(handler, words) {
                Ok(()) => return Ok(()),
                Err(Refused::Full) => self.pause(),
                Err(refused) => return Err(refused.into()),
            }
        }
    }

    fn send_bytes(&mut self, handler: u16, bytes: &[u8]) -> Outcome<()> {
        loop {
            match self.outgoing.describe(handler, bytes.len()) {
                Ok(mut draft) => {
                    draft.room().copy_in(0, bytes).ok_or("a draft without room")?;
                    draft.launch();
                    return Ok(());
                }
                Err(Refused::Full) => {}
                Err(refused) => return Err(refused.into()),
            }
            self.pause();
        }
    }

    #[inline(always)]
    fn receive<H: Handler>(&mut self, handler: &mut H) -> Outcome<()> {
        loop {
            let mut taken = false;
            while let Some(arrived) = self.incoming.peek()? {
                handler.message(arrived.handler(), &Lying(&arrived));
                arrived.dispose();
                taken = true;
            }
            if taken {
                return Ok(());
            }
            self.incoming.tell();
            self.pause();
        }
    }
}

/// A payload where it lies.
struct Lying<'a, 'b>(&'a Arrived<'b, Words, Word>);

impl Payload for Lying<'_, '_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        self.0.word(at).expect("a word of the payload")
    }

    #[inline]
    fn checksum(&self) -> u64 {
        let words = self.0.payload().words().unwrap_or_default();
        words.iter().fold(0, |sum, word| sum.wrapping_add(word.load(std::sync::atomic::Ordering::Relaxed)))
    }
}
