//! A hostile server, which speaks the protocol as it should up to some step, and then breaks each
//! rule in turn: the same walk from the other side.
//!
//! Each connection has its own life, from the seed and its turn: some control messages and some
//! calls are answered as they should be, and later ones are not. It ends with a hang-up after some
//! milliseconds, since a call without a reply lasts as long as its server.

mod answers;
mod calls;

use self::calls::Calls;
use crate::dice::Dice;
use crate::impostor::listen;
use crate::outcome::{say, show};
use crate::speech::{Answer, Request, ToServer, any_list, plan};
use std::io::BufRead;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use upcall_os::doorbell::Doorbell;
use upcall_os::memory::{Mapping, MemoryFile};
use upcall_os::socket::{Connection, Received};
use upcall_shm::channel;
use upcall_shm::region::Region;
use upcall_shm::station::Station;

/// What the server has done on all connections.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Number of things done that no honest server does.
    pub(super) steps: AtomicU64,
    /// Number of calls answered as they should be.
    pub(super) honest: AtomicU64,
    connections: AtomicU64,
}

impl Tally {
    pub(super) fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Listens under `name`. In reply to each line of standard input, reports the number of steps
/// taken, of connections, and of honest answers.
pub fn serve(name: &str, seed: u64) {
    let listener = listen(name);
    let tally = Arc::new(Tally::default());
    let counts = tally.clone();
    say(Ok(Vec::new()));
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            say(show(
                [&counts.steps, &counts.connections, &counts.honest]
                    .map(|count| count.load(Ordering::Relaxed)),
            ));
        }
    });
    let mut dice = Dice::new(seed);
    loop {
        match listener.accept() {
            Ok(Some(connection)) => {
                let (dice, tally) = (Dice::new(dice.any()), tally.clone());
                tally.connections.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || attend(&connection, &tally, dice));
            }
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn mapped(fd: OwnedFd, len: usize) -> Option<Arc<Region>> {
    Region::new(Mapping::shared(&MemoryFile::adopt(fd, len).ok()?).ok()?)
}

fn attend(connection: &Connection, tally: &Arc<Tally>, mut dice: Dice) {
    let station = Arc::new(Station::new().unwrap_or_else(|error| panic!("a station: {error}")));
    let doorbell = Doorbell::new().unwrap_or_else(|error| panic!("a doorbell: {error}"));
    let over = Arc::new(AtomicBool::new(false));
    // Half of the connections answer all control messages correctly, so that there are calls.
    let good = if dice.below(2) == 0 { dice.below(6) } else { u64::MAX };
    let mut calls = None;
    let mut said = 0;
    while let Ok(Received::Message(message)) =
        connection.receive_within(Duration::ZERO, Duration::from_secs(60))
    {
        let Ok(ToServer { serial, request }) = postcard::from_bytes::<ToServer>(&message.bytes)
        else {
            break;
        };
        let mut given = message.descriptors.into_iter();
        let mut out = Vec::new();
        let answer = match request {
            Request::Open { .. } => {
                let Some(memory) = given.next().and_then(|fd| mapped(fd, channel::BYTES)) else {
                    break;
                };
                hang_up_later(connection, Duration::from_millis(5 + dice.below(60)));
                let parts = (memory, station.clone(), tally.clone(), over.clone());
                calls = Some(Calls::begin(parts, Dice::new(dice.any())));
                out = vec![station.as_fd(), doorbell.as_fd()];
                Answer::Opened { home: 0 }
            }
            Request::Bind { procedures, .. } => {
                let names = procedures.into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
                let procedures = any_list(names.len());
                calls.iter().for_each(|calls: &Calls| calls.bound(names.clone()));
                // The memory is used if it is long enough, as by an honest server.
                let memory = given.next().and_then(|fd| mapped(fd, plan(&procedures).bytes()));
                calls.iter().zip(memory).for_each(|(calls, memory)| calls.memory(0, memory));
                Answer::Bound { procedures }
            }
            Request::Stacks { .. } => {
                let memory = given.next().and_then(|fd| mapped(fd, plan(&any_list(1)).bytes()));
                calls.iter().zip(memory).for_each(|(calls, memory)| calls.memory(0, memory));
                Answer::Mapped
            }
            Request::Segment { number, len } => {
                let memory = given
                    .next()
                    .and_then(|fd| Region::new(MemoryFile::adopt_filled(fd, len as usize).ok()?));
                calls.iter().zip(memory).for_each(|(calls, memory)| calls.memory(number, memory));
                Answer::Mapped
            }
            Request::OpenLane { number, vp } => {
                let doorbell = given.next().and_then(|fd| Doorbell::adopt(fd).ok());
                calls.iter().for_each(|calls| calls.lane(number, vp, doorbell.as_ref()));
                continue;
            }
            Request::Unbind { .. } | Request::DropSegment { .. } => continue,
            // Requests that only ask for information.
            _ => Answer::Exports,
        };
        said += 1;
        if said <= good {
            if !answers::as_it_should(connection, serial, answer, &out) {
                break;
            }
        } else if !answers::otherwise(connection, serial, answer, &out, tally, &mut dice) {
            break;
        }
    }
    connection.shut_down();
    std::thread::sleep(Duration::from_millis(20));
    over.store(true, Ordering::Relaxed);
}

/// Hangs up after `time`, so that there are many lives and no caller waits for long.
fn hang_up_later(connection: &Connection, time: Duration) {
    let Ok(copy) = connection.as_fd().try_clone_to_owned() else { return };
    std::thread::spawn(move || {
        std::thread::sleep(time);
        let _ = rustix::net::shutdown(copy, rustix::net::Shutdown::Both);
    });
}
