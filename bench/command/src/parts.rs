//! The parts of a call, in one process on one processor, as `upcall_bench::urpc::case::Part`
//! specifies them.

use crate::rpc::{Answers, tests};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use upcall::{Bytes, Pacing, Server};
use upcall_bench::case::BIG;
use upcall_bench::child::Outcome;
use upcall_bench::stats::{Clock, median};
use upcall_bench::urpc::case::{BATCH, Part};
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_sched::{Sleeper, WaitLimit, block_unless};
use upcall_shm::channel::{BYTES, Channel, Lane};
use upcall_shm::region::Region;
use upcall_shm::ring::{RingReceiver, RingSender, SharedReceiver, SharedSender};
use upcall_shm::slot::{NO_ASTACK, SlotMessage};

/// Fills `samples` with nanoseconds of `BATCH` operations each.
pub fn measure(part: Part, clock: &Clock, samples: &mut [f64]) -> Outcome<()> {
    match part {
        Part::ProcedureCall => {
            Err("a procedure call is no part of a call between processes".into())
        }
        Part::SendClient => requests(clock, Some(samples), None),
        Part::ReceiveServer => requests(clock, None, Some(samples)),
        Part::SendServer => replies(clock, Some(samples), None),
        Part::ReceiveClient => replies(clock, None, Some(samples)),
        Part::PollClient => {
            let replies = RingReceiver::new(lane()?.replies);
            looks(clock, samples, || replies.waits())
        }
        Part::PollServer => {
            let requests = SharedReceiver::new(lane()?.requests);
            looks(clock, samples, || requests.waits())
        }
        Part::DispatchClient => dispatch_client(clock, samples),
        Part::DispatchServer => dispatch_server(clock, samples),
    }
}

/// Creates a lane of a channel in shared memory, as a client does.
fn lane() -> Outcome<Lane> {
    let region = Region::new(Mapping::shared(&MemoryFile::create("upcall-bench", BYTES)?)?)
        .ok_or("no region")?;
    Channel::create(region)?.lane(0).ok_or_else(|| "a channel without lanes".into())
}

/// Times batches of two operations that undo each other: a batch of the first, then one of the
/// second.
fn alternate(
    clock: &Clock,
    (first, second): (Option<&mut [f64]>, Option<&mut [f64]>),
    mut one: impl FnMut(usize),
    mut other: impl FnMut(),
) -> Outcome<()> {
    let count = first.as_ref().or(second.as_ref()).map_or(0, |samples| samples.len());
    let (mut ticks, mut turn) = (vec![1; 2 * count], false);
    clock.time_each(&mut ticks, || {
        turn = !turn;
        match turn {
            true => (0..BATCH).for_each(&mut one),
            false => (0..BATCH).for_each(|_| other()),
        }
        Ok::<(), std::convert::Infallible>(())
    })?;
    for (samples, offset) in [(first, 0), (second, 1)] {
        let own = ticks.iter().skip(offset).step_by(2);
        samples
            .into_iter()
            .flatten()
            .zip(own)
            .for_each(|(sample, &ticks)| *sample = clock.ns(ticks));
    }
    Ok(())
}

/// Measures the direction from client to server.
fn requests(clock: &Clock, sends: Option<&mut [f64]>, receipts: Option<&mut [f64]>) -> Outcome<()> {
    let lane = lane()?;
    let (sender, receiver) =
        (RingSender::new(lane.requests.clone()), SharedReceiver::new(lane.requests));
    let (mut image, mut taken) = (SlotMessage::new(0, 0, NO_ASTACK), 0);
    alternate(
        clock,
        (sends, receipts),
        |call| sender.send(&SlotMessage::new(call as u16, 1, NO_ASTACK)),
        || taken += u64::from(receiver.take_alone(&mut image)),
    )?;
    all_taken(taken)
}

/// Measures the direction from server to client.
fn replies(clock: &Clock, sends: Option<&mut [f64]>, receipts: Option<&mut [f64]>) -> Outcome<()> {
    let lane = lane()?;
    let (sender, receiver) =
        (SharedSender::new(lane.replies.clone()), RingReceiver::new(lane.replies));
    // Replies are stored for the threads that wait for them.
    let (mut kept, mut taken) = (vec![SlotMessage::new(0, 0, NO_ASTACK); BATCH], 0);
    alternate(
        clock,
        (sends, receipts),
        |call| sender.send_alone(&SlotMessage::new(call as u16, 1, NO_ASTACK)),
        || {
            let reply = receiver.take();
            let place = reply.as_ref().and_then(|reply| kept.get_mut(usize::from(reply.call())));
            if let Some((place, reply)) = place.zip(reply) {
                *place = reply;
                taken += 1;
            }
        },
    )?;
    all_taken(taken)
}

fn all_taken(taken: u64) -> Outcome<()> {
    if taken > 0 && taken.is_multiple_of(BATCH as u64) {
        Ok(())
    } else {
        Err(format!("{taken} messages were taken").into())
    }
}

fn looks(clock: &Clock, samples: &mut [f64], look: impl Fn() -> bool) -> Outcome<()> {
    let (mut ticks, mut found) = (vec![1; samples.len()], false);
    clock.time_each(&mut ticks, || {
        (0..BATCH).for_each(|_| found |= std::hint::black_box(look()));
        Ok::<(), std::convert::Infallible>(())
    })?;
    samples.iter_mut().zip(ticks).for_each(|(sample, ticks)| *sample = clock.ns(ticks));
    if found { Err("a message was found that was not sent".into()) } else { Ok(()) }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the thread that sleeps in `seat`, and sleeps there itself. Takes a lock, as the calls of a
/// lane do.
#[inline]
fn pass_on(seat: &Mutex<Option<Sleeper>>) {
    block_unless(WaitLimit::FOR_EVER, |me| {
        let other = locked(seat).replace(me);
        other.into_iter().for_each(|other| _ = other.wake());
        None
    });
}

/// Times two threads that run in turn.
fn dispatch_client(clock: &Clock, samples: &mut [f64]) -> Outcome<()> {
    upcall::thread::processors(1, Pacing::default())?.run(|| {
        let (seat, stop) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let other = {
            let (seat, stop) = (seat.clone(), stop.clone());
            upcall::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    pass_on(&seat);
                }
                locked(&seat).take().into_iter().for_each(|first: Sleeper| _ = first.wake());
            })
        };
        let mut ticks = vec![1; samples.len()];
        clock.time_each(&mut ticks, || {
            (0..BATCH / 2).for_each(|_| pass_on(&seat));
            Ok::<(), std::convert::Infallible>(())
        })?;
        samples.iter_mut().zip(ticks).for_each(|(sample, ticks)| *sample = clock.ns(ticks));
        stop.store(true, Relaxed);
        pass_on(&seat);
        other.join().map_err(|_| "the other thread panicked")?;
        Ok(())
    })?
}

/// Number of calls that arrive together, and number of calls between two readings of the clock: the
/// number after which the server polls other lanes.
const CALLERS: usize = BATCH;
const STRETCH: u64 = 8;

/// A procedure that measures the time between calls.
struct Timed {
    base: Instant,
    calls: AtomicU64,
    /// Number of calls that the client's threads have made. If it has changed, the server did not
    /// have the processor to itself.
    made: Arc<AtomicU64>,
    stretch: Mutex<Stretch>,
}

#[derive(Default)]
struct Stretch {
    since: u64,
    made: u64,
    found: Vec<f64>,
}

impl tests::Serve for Arc<Timed> {
    fn null(&self) {
        let calls = self.calls.load(Relaxed);
        self.calls.store(calls + 1, Relaxed);
        if calls.is_multiple_of(STRETCH) {
            let now = self.base.elapsed().as_nanos() as u64;
            let (mut stretch, made) = (locked(&self.stretch), self.made.load(Relaxed));
            if stretch.made == made {
                let spent = now - stretch.since;
                stretch.found.push(spent as f64);
            }
            stretch.made = made;
            stretch.since = self.base.elapsed().as_nanos() as u64;
        }
    }

    fn stamp(&self) -> u64 {
        Answers.stamp()
    }

    fn add(&self, a: i32, b: i32) -> i32 {
        Answers.add(a, b)
    }

    fn big_in(&self, data: &[u8; BIG]) -> u64 {
        Answers.big_in(data)
    }

    fn big_in_out(&self, data: &[u8; BIG]) -> [u8; BIG] {
        Answers.big_in_out(data)
    }

    fn bytes_in(&self, data: Bytes<'_>) -> u64 {
        Answers.bytes_in(data)
    }
}

/// Runs a server and its client in this process, on one processor: all callers call, then the
/// server answers them all, and so on.
fn dispatch_server(clock: &Clock, samples: &mut [f64]) -> Outcome<()> {
    let (mut sends, mut receipts) = (vec![0.0; 1000], vec![0.0; 1000]);
    replies(clock, Some(&mut sends), None)?;
    requests(clock, None, Some(&mut receipts))?;
    let besides = (median(&sends) + median(&receipts)) / BATCH as f64;

    let made = Arc::new(AtomicU64::new(0));
    let base = Instant::now();
    let timed = Arc::new(Timed {
        base,
        calls: AtomicU64::new(0),
        made: made.clone(),
        stretch: Mutex::default(),
    });
    locked(&timed.stretch).found.reserve(4 * samples.len());
    let name = format!("bench-part-{}", std::process::id());
    let server = Server::new().export(&name, tests::export(timed.clone())).start()?;
    let tests = tests::Tests::bind(&name)?;
    let wanted = samples.len();
    let enough = || locked(&timed.stretch).found.len() >= wanted;
    upcall::thread::processors(1, Pacing::default())?.run(|| -> Outcome<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (tests, made, stop) = (tests.clone(), made.clone(), stop.clone());
                upcall::thread::spawn(move || -> Result<(), String> {
                    while !stop.load(Relaxed) {
                        made.fetch_add(1, Relaxed);
                        tests.null().map_err(|error| error.to_string())?;
                    }
                    Ok(())
                })
            })
            .collect();
        while !enough() {
            upcall::thread::sleep(std::time::Duration::from_millis(1));
        }
        stop.store(true, Relaxed);
        callers
            .into_iter()
            .try_for_each(|caller| caller.join().map_err(|_| "a caller panicked".to_string())?)?;
        Ok(())
    })??;
    drop(tests);
    server.stop();
    let reading = cost_of_reading(base);
    let whole = |spent: &f64| (spent - reading).max(0.0) / STRETCH as f64;
    let found = std::mem::take(&mut locked(&timed.stretch).found);
    samples
        .iter_mut()
        .zip(&found)
        .for_each(|(sample, spent)| *sample = (whole(spent) - besides).max(0.0) * BATCH as f64);
    Ok(())
}

/// Measures one reading of the clock that times stretches.
fn cost_of_reading(base: Instant) -> f64 {
    let reading = || base.elapsed().as_nanos() as u64;
    let tries: Vec<f64> = (0..1000)
        .map(|_| reading())
        .scan(reading(), |last, now| Some((now - std::mem::replace(last, now)) as f64))
        .collect();
    tries.iter().sum::<f64>() / tries.len() as f64
}
