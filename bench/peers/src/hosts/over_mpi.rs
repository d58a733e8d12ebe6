//! Open MPI's blocking sends and receives over TCP, in the clear: it has no protection of its own.
//!
//! The handlers of messages are MPI's tags. The server is the second process, which prints nothing:
//! the harness has the first one's input and output only.

use std::time::Duration;

use upcall_bench::child::{Outcome, Ready};
use upcall_bench::hosts::child::{ClientSide, Place, System, Ticket};
use upcall_bench::messages::child::{End, Handler, Payload};

use crate::Rank;

/// Asks for an answer.
const ASKS: u16 = 0;
const DATA: u16 = 1;
/// Asks for the sum of the data since the last such question, after this many messages.
const ENDS: u16 = 2;
const ANSWERS: u16 = 3;
/// The client ends.
const LEAVES: u16 = 4;

/// The system `openmpi`.
pub struct OpenMpi;

impl System for OpenMpi {
    const NAME: &'static str = "openmpi";
    type Client = Client;

    fn serve(_: &Place, _: Ready) -> Outcome<()> {
        let mut rank = Rank::join(1)?;
        let mut receiver = Receiver::default();
        while !receiver.left {
            rank.receive(&mut receiver)?;
            if let Some(answer) = receiver.answer.take() {
                rank.send_words(ANSWERS, &[answer])?;
            }
        }
        Ok(())
    }

    fn connect(_: &Place) -> Outcome<Client> {
        Ok(Client { rank: Rank::join(0)? })
    }
}

/// What the server knows of the client's messages.
#[derive(Default)]
struct Receiver {
    /// Number of data messages since the last question, and the sum of their checksums.
    taken: (u64, u64),
    /// The answer to the last question.
    answer: Option<u64>,
    left: bool,
}

impl Handler for Receiver {
    fn message(&mut self, handler: u16, payload: &impl Payload) {
        match handler {
            ASKS => self.answer = Some(payload.word(0)),
            DATA => {
                let (count, all) = self.taken;
                self.taken = (count + 1, all.wrapping_add(payload.checksum()));
            }
            ENDS => {
                let (count, all) = std::mem::take(&mut self.taken);
                // A wrong count makes a wrong sum.
                self.answer = Some(if count == payload.word(0) { all } else { 0 });
            }
            _ => self.left = true,
        }
    }
}

/// What the client has received.
struct Answer(Option<u64>);

impl Handler for Answer {
    fn message(&mut self, handler: u16, payload: &impl Payload) {
        self.0 = (handler == ANSWERS).then(|| payload.word(0));
    }
}

/// The client.
pub struct Client {
    rank: Rank,
}

impl Client {
    fn ask(&mut self, handler: u16, word: u64) -> Outcome<u64> {
        self.rank.send_words(handler, &[word])?;
        let mut answer = Answer(None);
        self.rank.receive(&mut answer)?;
        Ok(answer.0.ok_or("a message that is no answer")?)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // An error means that the server has ended.
        self.rank.send_words(LEAVES, &[0]).ok();
    }
}

impl ClientSide for Client {
    /// There are no calls: a message, and its answer.
    fn null(&mut self) -> Outcome<()> {
        self.message_round()
    }

    fn bytes_in(&mut self, _: &[u8]) -> Outcome<u64> {
        Err("it has no calls".into())
    }

    fn beside(
        &mut self,
        _: &[u8],
        _: &mut dyn FnMut(&mut Self) -> Outcome<()>,
    ) -> Outcome<(u64, u64)> {
        Err("it has no calls".into())
    }

    fn message_round(&mut self) -> Outcome<()> {
        match self.ask(ASKS, 7)? {
            7 => Ok(()),
            other => Err(format!("the answer to 7 is {other}").into()),
        }
    }

    fn messages(&mut self, data: &[u8], count: u64) -> Outcome<u64> {
        for _ in 0..count {
            self.rank.send_bytes(DATA, data)?;
        }
        self.ask(ENDS, count)
    }

    fn reconnect(&mut self, _: Ticket) -> Outcome<Duration> {
        Err("it connects when its processes start".into())
    }
}
