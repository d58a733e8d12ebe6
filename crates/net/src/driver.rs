//! The thread of a process that moves the bytes of all its connections.
//!
//! The thread begins with the first connection, sleeps while nothing happens, and ends with the
//! last one. It waits for all sockets at once, and for the earliest of the alarms that connections
//! have set.
//!
//! # No lost wake
//! An alarm is entered under the lock. The thread computes how long it may sleep under the same
//! lock, and notes it there. A connection that enters an earlier alarm rings the bell after that,
//! and the bell is one of the descriptors that the thread waits for. So the thread either has seen
//! the alarm, or is rung.

use crate::wire::{AfterTick, BUFFER, Wire, WireStep};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upcall_os::doorbell::Doorbell;
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_os::poll::{Changes, PollSet, Ready, Report};

/// The bell's key in the poll set. Connections are numbered from the next key on.
const BELL: u64 = 0;
/// What the socket of a connection reports unless the connection says otherwise.
pub(crate) const READS: Changes = Changes { readable: true, writable: false };
/// Size of the stack, in bytes: what comes is handed on here.
const STACK: usize = 256 << 10;

/// See the module.
pub struct LinkDriver {
    set: PollSet,
    bell: Doorbell,
    began: Instant,
    state: KernelMutex<DriverState>,
}

#[derive(Default)]
struct DriverState {
    wires: HashMap<u64, Arc<Wire>>,
    alarms: BTreeSet<(Instant, u64)>,
    next: u64,
    /// Until when the thread sleeps; `None` without end.
    sleeps: Option<Instant>,
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
        let (set, bell) = (PollSet::new()?, Doorbell::new()?);
        set.add(&bell, BELL, Report::EachRing)?;
        let state = DriverState { next: BELL + 1, ..DriverState::default() };
        let driver =
            Arc::new(Self { set, bell, began: Instant::now(), state: KernelMutex::new(state) });
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
        // Its alarms stay until they are due: numbers are not used again.
        self.state().wires.remove(&number)
    }

    fn work(&self) {
        let mut ready = Vec::new();
        // Connections with more to read, and those whose end was reported.
        let mut again: Vec<Ready> = Vec::new();
        let mut buffer = vec![0; BUFFER];
        while !self.ends() {
            let sleeps = self.time_to_sleep(!again.is_empty());
            self.set.wait(&mut ready, sleeps);
            ready.append(&mut again);
            for event in ready.drain(..).filter(|event| event.key != BELL) {
                self.turn(event, &mut buffer, &mut again);
            }
            for key in self.due(Instant::now()) {
                let wire = self.state().wires.get(&key).cloned();
                let Some(wire) = wire else { continue };
                match wire.tick(Instant::now()) {
                    Ok(AfterTick::Rest) => {}
                    // The end of the connection may not have been reported.
                    Ok(AfterTick::Turn) => {
                        self.turn(Ready { key, hung_up: true }, &mut buffer, &mut again);
                    }
                    Err(why) => {
                        self.leave(key, &wire);
                        wire.end(why);
                    }
                }
            }
        }
    }

    /// Gives a connection its turn.
    fn turn(&self, event: Ready, buffer: &mut [u8], again: &mut Vec<Ready>) {
        let wire = self.state().wires.get(&event.key).cloned();
        let Some(wire) = wire else { return };
        match wire.turn(buffer, event.hung_up) {
            WireStep::Read => {}
            WireStep::More => again.push(event),
            WireStep::Lost(why) => {
                self.leave(event.key, &wire);
                wire.end(why);
            }
        }
    }

    /// Returns `true` if no connection is left. None will be added then.
    fn ends(&self) -> bool {
        if !self.state().wires.is_empty() {
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

    fn time_to_sleep(&self, busy: bool) -> Option<Duration> {
        if busy {
            return Some(Duration::ZERO);
        }
        let mut state = self.state();
        state.sleeps = state.alarms.first().map(|&(at, _)| at);
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
