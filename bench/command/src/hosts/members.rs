//! A group of two members, the server's and the client's, for the cases of messages.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;
use std::time::Duration;
use upcall::message::{Group, GroupBuilder, Handlers, Kind, Message};
use upcall_bench::child::Outcome;
use upcall_bench::payload::Checksum;

/// Number of bytes that are read at once from a message.
const PIECE: usize = 16 << 10;

/// Maximum time until the client joins.
const WITHIN: Duration = Duration::from_secs(3600);

/// The kinds of messages.
struct Kinds {
    /// Asks for an answer.
    asks: Kind<u64>,
    data: Kind<[u8]>,
    /// Asks for the sum of the data since the last such question, after this many messages.
    ends: Kind<u64>,
    answers: Kind<u64>,
}

impl Kinds {
    fn of(handlers: &mut Handlers) -> Self {
        Self {
            asks: handlers.kind("asks"),
            data: handlers.kind("data"),
            ends: handlers.kind("ends"),
            answers: handlers.kind("answers"),
        }
    }
}

/// The server meets clients at the port after next.
fn group(server: SocketAddr, rank: usize) -> GroupBuilder {
    let at = SocketAddr::new(server.ip(), server.port() + 2);
    GroupBuilder::new("bench", 2).rank(rank).within(WITHIN).across(at.to_string())
}

/// The checksum of a message, which is read piece by piece as the limit does. `None` if it ends
/// before it should.
fn checksum_of(message: &Message<'_, '_>, piece: &mut [u8]) -> Option<u64> {
    let mut sum = Checksum::default();
    for at in (0..message.size()).step_by(piece.len()) {
        let len = piece.len().min(message.size() - at);
        let part = &mut piece[..len];
        message.copy_out(at, part)?;
        sum.piece(part);
    }
    Some(sum.value())
}

/// Starts the thread that receives the messages of one client.
pub(super) fn receive(server: SocketAddr) -> Outcome<()> {
    thread::Builder::new().name("member".into()).spawn(move || {
        let mut handlers = Handlers::new();
        let kinds = Kinds::of(&mut handlers);
        let sum = Rc::new(Cell::new((0_u64, 0_u64)));
        let answers = kinds.answers;
        handlers.on(kinds.asks, move |group, from, word| _ = group.send(from, answers, &word));
        let (of_data, piece) = (sum.clone(), RefCell::new(vec![0; PIECE]));
        handlers.on_message(kinds.data, move |_, message| {
            let (count, all) = of_data.get();
            // A wrong length makes a wrong sum.
            let of_one = checksum_of(message, &mut piece.borrow_mut()).unwrap_or_default();
            of_data.set((count + 1, all.wrapping_add(of_one)));
        });
        handlers.on(kinds.ends, move |group, from, count| {
            let (taken, all) = sum.take();
            // A wrong count makes a wrong sum.
            _ = group.send(from, answers, &(if taken == count { all } else { 0 }));
        });
        if let Ok(group) = group(server, 0).join(handlers) {
            // Until the client ends.
            _ = group.run_until(|| false);
        }
    })?;
    Ok(())
}

/// The client's member.
pub(super) struct Sender {
    group: Group,
    kinds: Kinds,
    answer: Rc<Cell<Option<u64>>>,
}

impl Sender {
    pub(super) fn join(server: SocketAddr) -> Outcome<Self> {
        let mut handlers = Handlers::new();
        let kinds = Kinds::of(&mut handlers);
        let answer = Rc::new(Cell::new(None));
        let here = answer.clone();
        handlers.on(kinds.answers, move |_, _, word| here.set(Some(word)));
        Ok(Self { group: group(server, 1).join(handlers)?, kinds, answer })
    }

    fn answer(&self) -> Outcome<u64> {
        self.group.run_until(|| self.answer.get().is_some())?;
        Ok(self.answer.take().ok_or("no answer")?)
    }

    pub(super) fn round(&self) -> Outcome<()> {
        self.group.send(0, self.kinds.asks, &7)?;
        self.answer().map(drop)
    }

    pub(super) fn send(&self, data: &[u8], count: u64) -> Outcome<u64> {
        for _ in 0..count {
            self.group.send(0, self.kinds.data, data)?;
        }
        self.group.send(0, self.kinds.ends, &count)?;
        self.answer()
    }
}
