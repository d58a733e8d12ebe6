//! Tallies: statistics of each binding of a server, for other processes to read.
//!
//! Source: LRPC, section 2: what calls cross domains, and how large they are (Table I, Figure 1),
//! is what its design rests on. Here a running system reports it of itself. The server counts while
//! it runs, and only the server can write the memory, which is sealed like a station
//! ([`station`](crate::station)). A permitted reader maps it for reading and reads it as often as
//! it likes. Reading costs the server nothing, and works while the server is stopped.
//!
//! ```text
//! 0       magic | process | bindings that found no slot | processors that count |
//!         calls that the server has made to other machines, their bytes out and in
//! 64      what clients hold, by kind | the most that they may | how often more was refused
//! 4096    slot 0: generation (odd: in use) | client | since | name | interface |
//!         counts | the client's address, if it is on another machine
//! + 2048  slot 0 of the second processor that counts: only its counts; and so on for each
//!         slot 1
//! ```
//! Counting a call is two additions in lines that the server's processor has at hand. A third
//! addition in the same lines follows if the call did not come as most do ([`Arrival`]). What takes
//! more is done for one call in [`SAMPLED`]. The counts are exact, and no two processors write one
//! line: each serving processor has counts of its own, and a reader adds them up. A reader sees
//! each count by itself, not all at one moment. It reads a slot again if the slot's generation has
//! changed during the read.

mod reading;

pub use self::reading::{NoTallies, PeerTallies, Reading};

use crate::region::{Cells, Region, RegionView};
use crate::text;
use std::fmt;
use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use upcall_os::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use upcall_os::cold_path;
use upcall_os::lock::KernelMutex;
use upcall_os::memory::MemoryFile;

/// Maximum number of bindings that are counted at a time.
pub const SLOTS: usize = 4096;
/// Sampling interval: one in this number of calls of each procedure is timed.
pub const SAMPLED: u64 = 64;
/// Number of counts of an interface's procedures.
///
/// Procedures beyond it share the last count.
pub const PROCEDURES: usize = 152;
/// Number of power-of-two classes of sizes and times.
///
/// The last class takes all larger values.
pub const POWERS: usize = 32;

const MAGIC: u64 = u64::from_le_bytes(*b"TALLIES\x05");
const HEAD: usize = 4096;
/// Offset of the holdings, in bytes.
const HOLDINGS: usize = 64;
const NAME: usize = 8;
const INTERFACE: usize = 13;

/// How a call ended, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum CallOutcome {
    /// With the procedure's result.
    Done,
    /// It was refused: malformed, too long, or the client holds too much.
    Refused,
    /// The procedure panicked, or did not answer.
    Panicked,
    /// There is no such procedure, or no such handle.
    Unknown,
}

/// Number of outcomes that are counted.
pub const OUTCOMES: usize = 4;

/// How a request reached the server, as the server knows when it takes the request.
///
/// Each call is counted as one of these when it is answered, so their sum is the number of calls.
///
/// - *spin*: found by a probe of a processor that was awake, and that the caller had not given to
///   the server. The server made no system call for it, unless it gives way while it polls.
/// - *donation*: found by a probe of a processor that was awake on the caller's processor, which
///   the caller gave with the call. Both gave way, and neither slept.
/// - *hand-off*: found by the first probe after a sleep. The server's processor was brought to the
///   caller's processor and woken there.
/// - *wake*: found by the first probe after a sleep. The server's processor was woken elsewhere, or
///   there without being given the caller's processor.
/// - *wait*: found after other work. The server's processor had run another call or thread while
///   the request waited, or had no stack left for it.
/// - *network*: arrived in a message from another machine. A thread runs it that was started for
///   it.
///
/// Donations and hand-offs are both what the glossary calls control transfer by hand-off, and
/// donating. A donation here is the kind that takes two yields in place of a wake and two sleeps. A
/// call that waited is counted as a wait, even if it brought a processor. So of several calls for
/// which one processor was given, one is a hand-off and the others are waits.
///
/// *Exact*: that each call is counted once. *Approximate*:
/// - A call counts as a wait if the first probe after another call's end finds it, though it may
///   have arrived in the 0.1 µs between (unless its lane was seen to be empty).
/// - If several calls are there when the server wakes up, the first call found counts as the call
///   behind the wake-up, and the others as waits.
/// - A call from another machine whose results turn out too long for a message is counted as done,
///   though its client is refused them.
/// - Only the caller states whether it gave its processor, and a user-level thread's statement is
///   taken from its station. A client that lies deceives the readers of its own binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(usize)]
pub enum Arrival {
    /// A probe found the request.
    #[default]
    Spin,
    /// A probe found the request, on the caller's processor.
    Donation,
    /// The request woke the server on the caller's processor.
    HandOff,
    /// The request woke the server otherwise.
    Wake,
    /// Other work came first.
    Wait,
    /// The request came from another machine: a remote call; all others are local (LRPC, Table I).
    Network,
}

/// Number of arrivals that are counted.
pub const WAYS: usize = 6;

#[repr(C, align(64))]
struct CallStatsHeader {
    magic: AtomicU64,
    pid: AtomicU64,
    uncounted: AtomicU64,
    writers: AtomicU64,
    made: [AtomicU64; 3],
}

// SAFETY: atomics only, `repr(C)`, every bit pattern valid, no drop.
unsafe impl Cells for CallStatsHeader {}

/// Maximum number of kinds of resources that clients can hold.
pub const KINDS: usize = 8;

/// What all clients of a server hold, by kind.
///
/// This is the server's own account, which others may read.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Holdings {
    /// Number held.
    pub held: [AtomicU64; KINDS],
    /// Maximum that all clients together may hold.
    pub most: [AtomicU64; KINDS],
    /// How often a client asked for more than it may have.
    pub refused: [AtomicU64; KINDS],
}

// SAFETY: atomics only, `repr(C)`, every bit pattern valid, no drop.
unsafe impl Cells for Holdings {}

impl Holdings {
    /// For each kind: the number held, the maximum, and how often more was refused.
    pub fn read(&self) -> [[u64; 3]; KINDS] {
        let Self { held, most, refused } = self;
        std::array::from_fn(|kind| {
            [held, most, refused].map(|words| words[kind].load(Ordering::Relaxed))
        })
    }
}

/// One binding's slot.
#[repr(C, align(64))]
struct BindingSlot {
    generation: AtomicU64,
    client: AtomicU64,
    since: AtomicU64,
    name: [AtomicU64; NAME],
    interface: [AtomicU64; INTERFACE],
    /// Without [`Arrival::Spin`], whose number is what remains: the quickest calls pay nothing.
    came: [AtomicU64; WAYS - 1],
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    /// Calls by the power of two of their arguments and results together.
    sizes: [AtomicU64; POWERS],
    /// Sampled calls by the power of two of their nanoseconds in the server.
    times: [AtomicU64; POWERS],
    /// Without [`CallOutcome::Done`], whose number is what remains.
    outcomes: [AtomicU64; OUTCOMES],
    procedures: [AtomicU64; PROCEDURES],
    /// [`FAR`] and the port, then the address as IPv6, into which IPv4 is mapped; 0 for a client on
    /// this machine.
    address: [AtomicU64; 3],
    rest: [AtomicU64; 2],
}

impl BindingSlot {
    fn counts(&self) -> impl Iterator<Item = &AtomicU64> {
        let bytes = [&self.bytes_in, &self.bytes_out].into_iter();
        bytes
            .chain(&self.came)
            .chain(&self.outcomes)
            .chain(&self.sizes)
            .chain(&self.times)
            .chain(&self.procedures)
    }
}

/// Set if there is an address; its port is in the bits below.
const FAR: u64 = 1 << 16;

// SAFETY: atomics only, `repr(C)`, every bit pattern valid, no drop.
unsafe impl Cells for BindingSlot {}

#[cfg(not(loom))]
const _: () = assert!(size_of::<BindingSlot>() == 2048 && size_of::<CallStatsHeader>() <= HOLDINGS);
#[cfg(not(loom))]
const _: () = assert!(
    HOLDINGS + size_of::<Holdings>() <= HEAD && HOLDINGS.is_multiple_of(align_of::<Holdings>())
);
// Most calls add only to one line and to the procedure's own count. The line has the arrivals, the
// bytes, and the count of calls without any bytes.
#[cfg(not(loom))]
const _: () = assert!(
    offset_of!(BindingSlot, came) % 64 == 0
        && offset_of!(BindingSlot, sizes) + 8 - offset_of!(BindingSlot, came) == 64
);

/// Maximum number of processors that count.
pub const WRITERS: usize = 64;

/// Bytes of the tallies of `writers` processors.
fn bytes(writers: usize) -> usize {
    HEAD + SLOTS * writers * size_of::<BindingSlot>()
}

/// Offset of a processor's part of a slot, in bytes.
fn place(number: u16, writer: usize, writers: usize) -> usize {
    HEAD + (usize::from(number) * writers + writer) * size_of::<BindingSlot>()
}

/// A domain's own tallies.
pub struct DomainCallStats {
    file: MemoryFile,
    region: Arc<Region>,
    head: RegionView<CallStatsHeader>,
    /// The numbers of free slots, and which parts of each were used before.
    free: KernelMutex<Vec<(u16, Used)>>,
    /// Number of slots that were used so far: those with the smallest numbers.
    used: AtomicU64,
    /// Number of parts of a slot: one for each processor that counts alone, and a shared one.
    writers: usize,
}

/// Which parts of a slot were used.
#[derive(Clone, Copy, Default)]
struct Used {
    alone: bool,
    shared: bool,
}

impl fmt::Debug for DomainCallStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DomainCallStats").field("writers", &self.writers).finish_non_exhaustive()
    }
}

impl AsFd for DomainCallStats {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn power(number: u64) -> usize {
    (u64::BITS - number.leading_zeros()).min(POWERS as u32 - 1) as usize
}

fn write_address(words: &[AtomicU64; 3], address: Option<SocketAddr>) {
    let [high, low] = address.map_or([0; 2], |address| {
        let bits = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        [(bits.to_bits() >> 64) as u64, bits.to_bits() as u64]
    });
    let first = address.map_or(0, |address| FAR | u64::from(address.port()));
    words
        .iter()
        .zip([first, high, low])
        .for_each(|(word, value)| word.store(value, Ordering::Relaxed));
}

impl DomainCallStats {
    /// Makes the memory for 1 to [`WRITERS`] - 1 processors, and a shared part.
    ///
    /// `alone` processors count alone. All further processors share that part. Each part has 8 MiB
    /// of address space; a binding uses half a page of each part in which it is counted.
    ///
    /// # Errors
    /// No descriptor or no memory is left.
    pub fn new(alone: usize) -> io::Result<Arc<Self>> {
        let writers = alone.clamp(1, WRITERS - 1) + 1;
        let (file, map) = MemoryFile::create_for_one_writer("upcall-tallies", bytes(writers))?;
        let unable = || io::Error::other("the memory of the tallies cannot be viewed");
        let region = Region::new(map).ok_or_else(unable)?;
        let head = region.view::<CallStatsHeader>(0).ok_or_else(unable)?;
        head.pid.store(std::process::id().into(), Ordering::Relaxed);
        head.writers.store(writers as u64, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        let unused = |number| (number, Used::default());
        let free = KernelMutex::new((0..SLOTS as u16).rev().map(unused).collect());
        Ok(Arc::new(Self { file, region, head, free, used: AtomicU64::new(0), writers }))
    }

    /// The words in which the server counts what its clients hold.
    ///
    /// `None` would mean that the memory is too short, which it is not.
    pub fn holdings(&self) -> Option<RegionView<Holdings>> {
        self.region.view(HOLDINGS)
    }

    /// Shows the calls that this process has made to other machines, and their bytes of arguments
    /// and of results.
    pub fn show_made(&self, made: [u64; 3]) {
        let words = self.head.made.iter().zip(made);
        words.for_each(|(word, made)| word.store(made, Ordering::Relaxed));
    }

    /// Number of bindings that found no slot so far.
    pub fn uncounted(&self) -> u64 {
        self.head.uncounted.load(Ordering::Relaxed)
    }

    /// Reads the statistics of all present bindings, as [`PeerTallies::read`] does.
    ///
    /// Touches no slot that was never used, which would cost a page.
    pub fn read(&self) -> Vec<Reading> {
        let used = self.used.load(Ordering::Acquire) as u16;
        (0..used).filter_map(|number| self.read_slot(number)).collect()
    }

    fn read_slot(&self, number: u16) -> Option<Reading> {
        let view = |writer| self.region.view::<BindingSlot>(place(number, writer, self.writers));
        // Most slots of a server whose clients have gone are free.
        if view(0)?.generation.load(Ordering::Relaxed).is_multiple_of(2) {
            return None;
        }
        let parts: Box<[RegionView<BindingSlot>]> =
            (0..self.writers).map(view).collect::<Option<_>>()?;
        reading::read_slot(number, self.writers, &|writer| &parts[writer])
    }

    /// Begins to count for a binding of process `client`.
    ///
    /// `None` if all slots are taken.
    pub fn open(
        self: &Arc<Self>,
        name: &str,
        interface: &str,
        client: u32,
        since: u64,
    ) -> Option<CallStats> {
        self.begin([name, interface], client, None, since)
    }

    /// Begins to count for a binding of a client on another machine, with this address.
    ///
    /// `None` if all slots are taken.
    pub fn open_far(
        self: &Arc<Self>,
        name: &str,
        interface: &str,
        client: SocketAddr,
        since: u64,
    ) -> Option<CallStats> {
        self.begin([name, interface], 0, Some(client), since)
    }

    fn begin(
        self: &Arc<Self>,
        [name, interface]: [&str; 2],
        client: u32,
        far: Option<SocketAddr>,
        since: u64,
    ) -> Option<CallStats> {
        let free = self.free.lock().pop();
        let Some((number, used)) = free else {
            self.head.uncounted.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let view = |writer| self.region.view::<BindingSlot>(place(number, writer, self.writers));
        let slots: Box<[_]> = (0..self.writers).map(view).collect::<Option<_>>()?;
        let slot = &slots[0];
        // A reader that reads any of what follows sees that the generation differs from the last
        // binding's.
        fence(Ordering::Release);
        text::write(&slot.name, name);
        text::write(&slot.interface, interface);
        slot.client.store(client.into(), Ordering::Relaxed);
        slot.since.store(since, Ordering::Relaxed);
        write_address(&slot.address, far);
        // Unused memory is zero, and has no pages yet.
        let (shared, alone) = slots.split_last()?;
        alone
            .iter()
            .filter(|_| used.alone)
            .chain(used.shared.then_some(shared))
            .flat_map(|slot| slot.counts())
            .for_each(|count| count.store(0, Ordering::Relaxed));
        slot.generation.fetch_add(1, Ordering::Release);
        self.used.fetch_max(u64::from(number) + 1, Ordering::Release);
        Some(CallStats {
            slots,
            number,
            tallies: self.clone(),
            ended: AtomicBool::new(false),
            shared: AtomicBool::new(false),
        })
    }
}

/// The statistics of one binding. They end when this is dropped.
pub struct CallStats {
    /// One part for each processor that counts alone, followed by the shared part.
    slots: Box<[RegionView<BindingSlot>]>,
    number: u16,
    tallies: Arc<DomainCallStats>,
    ended: AtomicBool,
    /// `true` if the shared part was used.
    shared: AtomicBool,
}

impl fmt::Debug for CallStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tally({})", self.number)
    }
}

impl CallStats {
    /// The counts of processor `number`.
    ///
    /// A processor that counts alone must not use them twice at the same time. All further numbers
    /// share the last part.
    #[inline]
    pub fn of(&self, number: usize) -> BindingCounts<'_> {
        let last = self.slots.len() - 1;
        if number < last {
            return BindingCounts { slot: &self.slots[number], shared: false };
        }
        cold_path();
        self.shared.store(true, Ordering::Relaxed);
        BindingCounts { slot: &self.slots[last], shared: true }
    }
}

/// The counts of a binding by one processor.
#[derive(Clone, Copy)]
pub struct BindingCounts<'a> {
    slot: &'a BindingSlot,
    /// `true` if other processors count in the same slot.
    shared: bool,
}

impl fmt::Debug for BindingCounts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counts")
    }
}

impl BindingCounts<'_> {
    #[inline(always)]
    fn of(&self, procedure: u16) -> &AtomicU64 {
        &self.slot.procedures[usize::from(procedure).min(PROCEDURES - 1)]
    }

    /// Returns `true` if the next call of this procedure is to be timed.
    #[inline]
    pub fn is_sampled(&self, procedure: u16) -> bool {
        self.of(procedure).load(Ordering::Relaxed) % SAMPLED == SAMPLED - 1
    }

    /// Counts a call that has ended, with the bytes of its arguments and results.
    #[inline]
    pub fn count(
        &self,
        procedure: u16,
        came: Arrival,
        outcome: CallOutcome,
        bytes_in: usize,
        bytes_out: usize,
    ) {
        let bytes = [bytes_in, bytes_out];
        if self.shared {
            cold_path();
            let add = |count: &AtomicU64, more| _ = count.fetch_add(more, Ordering::Relaxed);
            self.count_by(add, procedure, came, outcome, bytes);
        } else {
            self.count_by(add, procedure, came, outcome, bytes);
        }
    }

    #[inline(always)]
    fn count_by(
        &self,
        add: impl Fn(&AtomicU64, u64),
        procedure: u16,
        came: Arrival,
        outcome: CallOutcome,
        [bytes_in, bytes_out]: [usize; 2],
    ) {
        add(self.of(procedure), 1);
        if came != Arrival::Spin {
            add(&self.slot.came[came as usize - 1], 1);
        }
        add(&self.slot.sizes[power((bytes_in + bytes_out) as u64)], 1);
        if bytes_in + bytes_out > 0 {
            add(&self.slot.bytes_in, bytes_in as u64);
            add(&self.slot.bytes_out, bytes_out as u64);
        }
        if outcome != CallOutcome::Done {
            add(&self.slot.outcomes[outcome as usize], 1);
        }
    }

    /// Records the duration of a sampled call.
    #[cold]
    pub fn time(&self, took: Duration) {
        let times = &self.slot.times[power(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))];
        if self.shared {
            times.fetch_add(1, Ordering::Relaxed);
        } else {
            add(times, 1);
        }
    }
}

/// Adds without a locked operation, for a processor that counts alone.
#[inline(always)]
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl CallStats {
    /// Ends the binding: it is shown no more. Calls that still run may go on counting.
    pub fn end(&self) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            self.slots[0].generation.fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for CallStats {
    fn drop(&mut self) {
        self.end();
        let used = Used { alone: true, shared: self.shared.load(Ordering::Relaxed) };
        self.tallies.free.lock().push((self.number, used));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use upcall_os::memory::Mapping;

    fn peer(tallies: &DomainCallStats) -> PeerTallies {
        PeerTallies::join(tallies.as_fd().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn what_is_counted_is_read() {
        let tallies = DomainCallStats::new(1).unwrap();
        let (peer, tally) =
            (peer(&tallies), tallies.open("files", "demo:files/files@1.0.0", 4711, 12).unwrap());
        for call in 0..200 {
            assert_eq!(tally.of(0).is_sampled(3), call % SAMPLED == SAMPLED - 1);
            tally.of(0).count(3, Arrival::Spin, CallOutcome::Done, 100, 28);
        }
        tally.of(0).count(9999, Arrival::Wait, CallOutcome::Refused, 0, 0);
        tally.of(0).time(Duration::from_nanos(1000));
        let read = &peer.read()[0];
        assert_eq!(
            (read.name.as_str(), read.interface.as_str(), read.client, read.since),
            ("files", "demo:files/files@1.0.0", 4711, 12)
        );
        assert_eq!(
            (read.calls(), read.outcomes, read.bytes),
            (201, [200, 1, 0, 0], [20_000, 5600])
        );
        assert_eq!((read.came, read.remote(), read.address), ([200, 0, 0, 0, 1, 0], 0, None));
        assert_eq!((read.sizes[8], read.sizes[0], read.times[10]), (200, 1, 1));
        assert_eq!((read.procedures[3], read.procedures[PROCEDURES - 1]), (200, 1));
        tally.end();
        assert!(peer.read().is_empty());
        tally.of(0).count(0, Arrival::HandOff, CallOutcome::Done, 0, 0);
        drop(tally);
        assert!(peer.read().is_empty());
        let again = tallies.open("other", "", 1, 0).unwrap();
        assert_eq!((peer.read()[0].calls(), peer.read()[0].name.as_str()), (0, "other"));
        drop(again);
    }

    #[test]
    fn several_processors_lose_no_count() {
        let tallies = DomainCallStats::new(4).unwrap();
        // In the second turn the slot was used by another binding before.
        for turn in 0..2 {
            let tally = tallies.open("x", "y", 1, 0).unwrap();
            std::thread::scope(|scope| {
                // The last three share their counts.
                for number in 0..7 {
                    let counts = tally.of(number);
                    scope.spawn(move || {
                        (0..10_000).for_each(|_| {
                            counts.count(0, Arrival::HandOff, CallOutcome::Done, 1, 0)
                        })
                    });
                }
            });
            let read = &peer(&tallies).read()[0];
            let counted = (read.calls(), read.bytes[0], read.came);
            assert_eq!(counted, (70_000, 70_000, [0, 0, 70_000, 0, 0, 0]), "{turn}");
        }
    }

    #[test]
    fn the_server_reads_what_others_read() {
        let tallies = DomainCallStats::new(3).unwrap();
        assert!(tallies.read().is_empty());
        let all: Vec<_> = (0..3).map(|at| tallies.open("x", "y", at, 0).unwrap()).collect();
        for number in 0..5 {
            all[1].of(number).count(7, Arrival::Wake, CallOutcome::Done, 10, 20);
        }
        all[0].end();
        let read = tallies.read();
        assert_eq!(read, peer(&tallies).read());
        assert_eq!((read.len(), read[0].client, read[0].calls()), (2, 1, 5));
        drop(all);
        assert!(tallies.read().is_empty());
    }

    #[test]
    fn what_was_done_between_two_readings() {
        let tallies = DomainCallStats::new(1).unwrap();
        let (peer, tally) = (peer(&tallies), tallies.open("x", "y", 1, 0).unwrap());
        let count = |came| tally.of(0).count(0, came, CallOutcome::Done, 1, 1);
        [Arrival::Donation, Arrival::Spin].into_iter().for_each(count);
        let before = peer.read().remove(0);
        [Arrival::Donation, Arrival::Wake, Arrival::Wait, Arrival::Spin, Arrival::Spin]
            .into_iter()
            .for_each(count);
        let since = peer.read().remove(0).since(&before);
        assert_eq!((since.calls(), since.came), (5, [2, 1, 0, 1, 1, 0]));
    }

    #[test]
    fn clients_on_other_machines_are_told_by_their_addresses() {
        let tallies = DomainCallStats::new(1).unwrap();
        let peer = peer(&tallies);
        for (came, told) in [
            ("192.0.2.1:7000", "192.0.2.1:7000"),
            ("[2001:db8::7]:65535", "[2001:db8::7]:65535"),
            ("[::1]:1", "[::1]:1"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("[::ffff:192.0.2.1]:80", "192.0.2.1:80"),
        ] {
            let tally = tallies.open_far("x", "y", came.parse().unwrap(), 0).unwrap();
            tally.of(0).count(0, Arrival::Network, CallOutcome::Done, 1, 1);
            tally.of(0).count(0, Arrival::Network, CallOutcome::Refused, 1, 1);
            let read = peer.read().remove(0);
            assert_eq!((read.client, read.address), (0, Some(told.parse().unwrap())), "{came}");
            assert_eq!((read.calls(), read.remote(), read.came), (2, 2, [0, 0, 0, 0, 0, 2]));
        }
        // The next client of the slot has no address.
        let _tally = tallies.open("x", "y", 7, 0).unwrap();
        assert_eq!(
            (peer.read()[0].client, peer.read()[0].address, peer.read()[0].remote()),
            (7, None, 0)
        );
    }

    /// The memory belongs to the server, which may write anything.
    #[test]
    fn nonsense_is_read_as_some_numbers() {
        let tallies = DomainCallStats::new(1).unwrap();
        let tally = tallies.open("x", "y", 1, 0).unwrap();
        let slot = &tally.slots[0];
        let counts = slot
            .came
            .iter()
            .chain(&slot.outcomes)
            .chain(&slot.procedures)
            .chain(&slot.sizes)
            .chain(&slot.times);
        let words = counts.chain(&slot.name).chain(&slot.address);
        for (nonsense, word) in [u64::MAX, u64::MAX / 3, 1 << 63].into_iter().cycle().zip(words) {
            word.store(nonsense, Ordering::Relaxed);
        }
        let read = peer(&tallies).read().remove(0);
        let _ = (read.calls(), read.remote(), read.clone().since(&read));
        for first in [u64::MAX, FAR, 0, FAR - 1, 1 << 63] {
            slot.address[0].store(first, Ordering::Relaxed);
            assert_eq!(peer(&tallies).read()[0].address.is_some(), first & FAR != 0, "{first:#x}");
        }
        assert!(read.name.chars().all(|c| !c.is_control()));
    }

    #[test]
    fn bindings_beyond_the_slots_are_not_counted_but_known() {
        let tallies = DomainCallStats::new(1).unwrap();
        let all: Vec<_> = (0..SLOTS).map(|_| tallies.open("x", "y", 1, 0).unwrap()).collect();
        assert!(tallies.open("x", "y", 1, 0).is_none());
        assert_eq!((peer(&tallies).uncounted(), peer(&tallies).read().len()), (1, SLOTS));
        drop(all);
        assert!(tallies.open("x", "y", 1, 0).is_some());
    }

    #[test]
    fn nobody_else_can_write_them_and_nothing_else_is_taken_for_them() {
        let tallies = DomainCallStats::new(1).unwrap();
        let file =
            MemoryFile::adopt_read_only(tallies.as_fd().try_clone_to_owned().unwrap(), bytes(1))
                .unwrap();
        assert!(Mapping::shared(&file).is_err(), "another mapping can be written to");
        let (other, _map) = MemoryFile::create_for_one_writer("other", bytes(1)).unwrap();
        let taken = PeerTallies::join(other.as_fd().try_clone_to_owned().unwrap());
        assert!(matches!(taken, Err(NoTallies::Magic(0))));
        // More processors than there is memory for, or than there can be.
        for writers in [0, 3, 64, 65, u64::MAX] {
            tallies.head.writers.store(writers, Ordering::Relaxed);
            let taken = PeerTallies::join(tallies.as_fd().try_clone_to_owned().unwrap());
            assert!(matches!(taken, Err(NoTallies::File(_) | NoTallies::Writers(_))), "{writers}");
        }
    }
}
