//! The floor: a bare queue in shared memory without any checks, polled by both sides. On one
//! processor they yield between polls.

use rustix::thread::sched_yield;

use super::child::{End, Handler, Place, System};
use super::raw::{Incoming, Outgoing};
use crate::child::Outcome;

/// The system `limit`.
pub struct Floor;

/// The queues of one side.
pub struct Ends {
    outgoing: Outgoing,
    incoming: Incoming,
    yields: bool,
    taken: u64,
    /// `true` if the sender knows of all messages that were taken.
    told: bool,
}

impl System for Floor {
    const NAME: &'static str = "limit";
    type End = Ends;

    fn join(place: &Place) -> Outcome<Ends> {
        let memory = place.memory();
        let outgoing = Outgoing::open(&memory, place.side)?;
        Ok(Ends {
            outgoing,
            incoming: Incoming::open(&memory, place.side)?,
            yields: place.yields(),
            taken: 0,
            told: true,
        })
    }
}

impl Ends {
    #[inline(always)]
    fn pause(&self) {
        if self.yields {
            sched_yield();
        }
    }
}

impl End for Ends {
    #[inline(always)]
    fn send_words<const N: usize>(&mut self, handler: u16, words: &[u64; N]) -> Outcome<()> {
        while !self.outgoing.words(handler, words) {
            self.pause();
        }
        Ok(())
    }

    #[inline(always)]
    fn send_bytes(&mut self, handler: u16, bytes: &[u8]) -> Outcome<()> {
        while !self.outgoing.bytes(handler, bytes) {
            self.pause();
        }
        Ok(())
    }

    #[inline(always)]
    fn receive<H: Handler>(&mut self, handler: &mut H) -> Outcome<()> {
        loop {
            let before = self.taken;
            while let Some(message) = self.incoming.next() {
                handler.message(message.handler(), &message);
                self.taken += 1;
                // Rarely, because it costs the sender a line, but before the sender runs out of
                // room.
                if self.taken.is_multiple_of(256) {
                    self.incoming.dispose();
                }
            }
            if self.taken != before {
                self.told = false;
                return Ok(());
            }
            if !self.told {
                self.incoming.dispose();
                self.told = true;
            }
            self.pause();
        }
    }
}
