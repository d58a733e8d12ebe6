//! The thread of a process that moves the bytes of all its connections.
//!
//! The thread begins with the first connection, sleeps while nothing happens, and ends [`LINGERS`]
//! after the last one: a process that connects again and again would start a thread each time,
//! which takes a tenth of the time of a connection. It waits for all sockets at once, and for the
//! earliest of the alarms that connections have set.
//!
//! # Polling
//! A thread of this process that would rather poll than sleep gives the rounds itself
//! ([`LinkPolling`]). During that time the driver's thread gives none and sleeps, so that a message
//! costs no wake, and no change of threads where both have one processor. The sockets have a set of
//! their own for that, which is one of the two descriptors that the driver's thread waits for. A
//! round costs one system call, however many connections there are. Alarms, and the ends of
//! connections, stay with the driver's thread.
//!
//! # No lost wake
//! An alarm is entered under the lock. The thread computes how long it may sleep under the same
//! lock, and notes it there. A connection that enters an earlier alarm rings the bell after that,
//! and the bell is one of the descriptors that the thread waits for. So the thread either has seen
//! the alarm, or is rung.
//!
//! A turn that leaves bytes to write makes the socket report when it takes more. For that the
//! connection has to know its driver. So it is given to the driver under its own lock, for which
//! its first turn waits. Else that turn could leave bytes that no later event would move.
//!
//! The last thread that stops polling makes the sockets' set report again, after its last round. If
//! a socket has reported by then, the kernel finds the set readable when it is made to report, and
//! wakes the driver's thread. What a round has left over, and an end that it has found, are entered
//! under the lock of the rounds. The poller rings the bell after that, and the driver's thread
//! looks there after each wake.

use crate::bodies;
use crate::lost::Lost;
use crate::wire::{AfterTick, BUFFER, Wire, WireStep};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::poll::{Changes, PollSet, Ready, Report};
use upcall_sched::turns::give_turn;

/// The keys of the bell, and of the set of sockets. Connections are numbered from the next key on.
const BELL: u64 = 0;
const SOCKETS: u64 = 1;
/// What the socket of a connection reports unless the connection says otherwise.
pub(crate) const READS: Changes = Changes { readable: true, writable: false };
/// Time for which the thread waits for another connection after the last one.
const LINGERS: Duration = Duration::from_millis(100);
/// Size of the stack, in bytes: what comes is handed on here.
const STACK: usize = 256 << 10;

/// See the module.
pub struct LinkDriver {
    /// The sockets of all connections.
    set: PollSet,
    /// What the thread waits for: that set, and the bell.
    watched: PollSet,
    bell: Doorbell,
    began: Instant,
    state: KernelMutex<DriverState>,
    /// The holder of this lock gives turns.
    rounds: KernelMutex<Rounds>,
}

#[derive(Default)]
struct DriverState {
    wires: HashMap<u64, Arc<Wire>>,
    alarms: BTreeSet<(Instant, u64)>,
    next: u64,
    /// Until when the thread sleeps; `None` without end.
    sleeps: Option<Instant>,
    /// Number of threads that poll.
    pollers: u32,
}

/// What a round needs, and what it leaves for the next one.
struct Rounds {
    ready: Vec<Ready>,
    /// Connections with more to read, and those whose end was reported.
    again: Vec<Ready>,
    /// Connections that have ended, and why. They get no turn any more: bytes after the end mean
    /// nothing, also if the kernel still has some.
    lost: Vec<(Arc<Wire>, Lost)>,
    buffer: Vec<u8>,
}

/// What rounds have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundsLeft {
    Nothing,
    /// Turns, which any thread may give.
    Turns,
    /// Ends of connections, for the driver's thread.
    Ends,
}

/// A thread that reads the connections of its process in place of the driver's thread.
///
/// For threads that wait for what arrives on some connection, and poll for a short time. What
/// arrives on others is handed on as well. The driver's thread reads again when this is dropped.
#[derive(Debug)]
pub struct LinkPolling(Arc<LinkDriver>);

/// What a round of [`LinkPolling`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolledLinks {
    /// Nothing has arrived.
    Nothing,
    /// Another thread gives a round, which may be waiting for this thread's processor.
    Elsewhere,
    /// Some connection had something to read or to write.
    Something,
}

impl LinkPolling {
    /// Begins to poll. `None` if this process has no connection, or the kernel lacks memory.
    pub fn begin() -> Option<Self> {
        let driver = {
            let driver = DRIVER.lock();
            let (_, driver) = driver.as_ref().filter(|(of, _)| *of == std::process::id())?;
            driver.clone()
        };
        driver.polled()?;
        Some(Self(driver))
    }

    /// Reads and writes what can be, without waiting.
    pub fn round(&self) -> PolledLinks {
        self.0.poll()
    }
}

impl Drop for LinkPolling {
    fn drop(&mut self) {
        self.0.polled_no_more();
    }
}

/// The driver of the process with that number. A connection is added under this lock, and the
/// driver ends under it, so that no connection is given to a driver that ends.
static DRIVER: KernelMutex<Option<(u32, Arc<LinkDriver>)>> = KernelMutex::new(None);

impl fmt::Debug for LinkDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkDriver({} connections)", self.state().wires.len())
    }
}

impl LinkDriver {
    /// Gives a connection to the driver of this process, which is started if there is none.
    ///
    /// Returns the driver, and its number for the connection.
    ///
    /// # Errors
    /// There is no kernel thread or no descriptor left.
    pub(crate) fn take_in(wire: &Arc<Wire>) -> io::Result<(Arc<Self>, u64)> {
        // A forked child has the memory of its parent's driver, but not its thread.
        let pid = std::process::id();
        let mut driver = DRIVER.lock();
        let driver = match &*driver {
            Some((of, driver)) if *of == pid => driver.clone(),
            _ => {
                let made = Self::start()?;
                // A parent's is not dropped, because its connections are the parent's.
                std::mem::forget(driver.replace((pid, made.clone())));
                made
            }
        };
        let number = {
            let mut state = driver.state();
            state.next += 1;
            let number = state.next;
            state.wires.insert(number, wire.clone());
            number
        };
        if let Err(error) = driver.set.add(wire.stream(), number, Report::EachChange(READS)) {
            drop(driver.remove(number));
            driver.bell.notify();
            return Err(error);
        }
        Ok((driver, number))
    }

    fn start() -> io::Result<Arc<Self>> {
        let (set, watched, bell) = (PollSet::new()?, PollSet::new()?, Doorbell::new()?);
        watched.add(&bell, BELL, Report::EachRing)?;
        watched.add(&set, SOCKETS, Report::WhileReadable)?;
        let state = DriverState { next: SOCKETS, ..DriverState::default() };
        let (ready, again, lost) = (Vec::new(), Vec::new(), Vec::new());
        let rounds = Rounds { ready, again, lost, buffer: vec![0; BUFFER] };
        let driver = Arc::new(Self {
            set,
            watched,
            bell,
            began: Instant::now(),
            state: KernelMutex::new(state),
            rounds: KernelMutex::new(rounds),
        });
        let works = driver.clone();
        let thread = std::thread::Builder::new().name("upcall-net".into()).stack_size(STACK);
        thread.spawn(move || works.work())?;
        Ok(driver)
    }

    /// Changes what the socket of a connection reports.
    ///
    /// # Errors
    /// The kernel's: it reports what it did before.
    pub(crate) fn watch(&self, number: u64, wire: &Wire, changes: Changes) -> io::Result<()> {
        self.set.change(wire.stream(), number, Report::EachChange(changes))
    }

    /// The next time that is a whole number of intervals after the driver began. So the alarms of
    /// many connections come at once.
    pub(crate) fn next_round(&self, interval: Duration) -> Instant {
        let rounds = self.began.elapsed().as_nanos() / interval.as_nanos().max(1);
        self.began + interval * (rounds as u32).saturating_add(1)
    }

    /// Wakes a connection at that time. An earlier alarm stays.
    pub(crate) fn alarm(&self, number: u64, at: Instant) {
        let mut state = self.state();
        state.alarms.insert((at, number));
        if state.sleeps.is_none_or(|until| at < until) {
            state.sleeps = Some(at);
            drop(state);
            self.bell.notify();
        }
    }

    fn remove(&self, number: u64) -> Option<Arc<Wire>> {
        // Its alarms stay until they come first: numbers are not used again.
        self.state().wires.remove(&number)
    }

    fn work(&self) {
        let (mut woken, mut lingers) = (Vec::new(), None);
        while !self.ends(&mut lingers, Instant::now()) {
            let left = self.rounds.lock().left();
            if left == RoundsLeft::Turns {
                // A long message comes or goes, and other threads may wait for this processor.
                give_turn();
            }
            self.watched.wait(&mut woken, self.time_to_sleep(left, lingers));
            let mut rounds = self.rounds.lock();
            if self.state().pollers == 0 {
                self.round(&mut rounds);
            }
            let lost = std::mem::take(&mut rounds.lost);
            drop(rounds);
            for (wire, why) in lost {
                wire.end(why);
            }
            let due = self.due(Instant::now());
            if !due.is_empty() {
                bodies::age();
            }
            for key in due {
                let wire = self.state().wires.get(&key).cloned();
                let Some(wire) = wire else { continue };
                match wire.tick(Instant::now()) {
                    Ok(AfterTick::Rest) => {}
                    // The end of the connection may not have been reported.
                    Ok(AfterTick::Turn) => {
                        self.rounds.lock().again.push(Ready { key, hung_up: true });
                    }
                    Err(why) => {
                        self.leave(key, &wire);
                        wire.end(why);
                    }
                }
            }
        }
        bodies::clear();
    }

    /// Gives all connections that have something to read or to write a turn.
    fn round(&self, rounds: &mut Rounds) -> PolledLinks {
        let Rounds { ready, again, lost, buffer } = rounds;
        self.set.wait(ready, Some(Duration::ZERO));
        ready.append(again);
        let found = if ready.is_empty() { PolledLinks::Nothing } else { PolledLinks::Something };
        for event in ready.drain(..) {
            let wire = self.state().wires.get(&event.key).cloned();
            let Some(wire) = wire else { continue };
            match wire.turn(buffer, event.hung_up) {
                WireStep::Read => {}
                WireStep::More => again.push(event),
                WireStep::Lost(why) => {
                    self.leave(event.key, &wire);
                    lost.push((wire, why));
                }
            }
        }
        found
    }

    /// A round on a thread that polls.
    fn poll(&self) -> PolledLinks {
        let Some(mut rounds) = self.rounds.try_lock() else { return PolledLinks::Elsewhere };
        let found = self.round(&mut rounds);
        let has_lost = !rounds.lost.is_empty();
        drop(rounds);
        if has_lost {
            self.bell.notify();
        }
        found
    }

    /// Keeps the sockets from waking the driver's thread. `None`: the kernel has no memory for it.
    fn polled(&self) -> Option<()> {
        let mut state = self.state();
        if state.pollers == 0 {
            let nothing = Report::EachChange(Changes::default());
            self.watched.change(&self.set, SOCKETS, nothing).ok()?;
        }
        state.pollers += 1;
        Some(())
    }

    /// Lets the sockets wake the driver's thread again, unless another thread polls.
    fn polled_no_more(&self) {
        let mut state = self.state();
        state.pollers -= 1;
        if state.pollers == 0 {
            // The kernel has what it needs for it since the set was added.
            let _ = self.watched.change(&self.set, SOCKETS, Report::WhileReadable);
        }
        drop(state);
        // Another holder of the lock looks there after it has let go.
        if self.rounds.try_lock().is_some_and(|rounds| rounds.left() != RoundsLeft::Nothing) {
            self.bell.notify();
        }
    }

    /// Returns `true` if there was no connection for long enough. None will be added then.
    ///
    /// `lingers` is the time at which that is so, if nothing is added.
    fn ends(&self, lingers: &mut Option<Instant>, now: Instant) -> bool {
        // One lock after the other: a round takes the state's within its own.
        let left = self.rounds.lock().left();
        if left != RoundsLeft::Nothing || !self.state().wires.is_empty() {
            *lingers = None;
            return false;
        }
        if now < *lingers.get_or_insert(now + LINGERS) {
            return false;
        }
        let mut driver = DRIVER.lock();
        let is_last = self.state().wires.is_empty();
        if is_last {
            let ended = driver.take_if(|(_, driver)| std::ptr::eq(&**driver, self));
            drop(driver);
            drop(ended);
        }
        is_last
    }

    fn leave(&self, number: u64, wire: &Wire) {
        self.set.remove(wire.stream());
        drop(self.remove(number));
    }

    fn time_to_sleep(&self, left: RoundsLeft, lingers: Option<Instant>) -> Option<Duration> {
        let mut state = self.state();
        match left {
            RoundsLeft::Ends => return Some(Duration::ZERO),
            // The last thread that polls rings the bell.
            RoundsLeft::Turns if state.pollers == 0 => return Some(Duration::ZERO),
            RoundsLeft::Turns | RoundsLeft::Nothing => {}
        }
        // Alarms of connections that have ended would wake the thread one by one.
        while let Some(&alarm @ (_, number)) = state.alarms.first()
            && !state.wires.contains_key(&number)
        {
            state.alarms.remove(&alarm);
        }
        state.sleeps = state.alarms.first().map(|&(at, _)| at).into_iter().chain(lingers).min();
        state.sleeps.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Takes the connections whose alarms are due.
    fn due(&self, now: Instant) -> Vec<u64> {
        let mut state = self.state();
        let later = state.alarms.split_off(&(now, u64::MAX));
        std::mem::replace(&mut state.alarms, later).into_iter().map(|(_, number)| number).collect()
    }

    fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock()
    }
}

impl Rounds {
    fn left(&self) -> RoundsLeft {
        match (self.lost.is_empty(), self.again.is_empty()) {
            (false, _) => RoundsLeft::Ends,
            (true, false) => RoundsLeft::Turns,
            (true, true) => RoundsLeft::Nothing,
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
