//! Upcall as systems of the suite `messages`. Each is an end that sends and receives, with a row in
//! the table of `crate::children` and a name in `upcall_bench::messages::contender::OURS`.

use std::array;
use std::time::Duration;
use upcall::message::{Group, GroupBuilder, Handlers, Kind, Message, Pacing, Rank};
use upcall_bench::child::Outcome;
use upcall_bench::messages::child::{End, Handler, Payload, Place, Side, System};

/// Messages of a group of two. A side that waits polls continuously. On one processor it waits in
/// the default way: it polls for a while, then sleeps.
pub struct Messages;

/// Maximum number of handlers that the cases use.
const HANDLERS: usize = 16;

/// A member of a group of two.
pub struct Member {
    group: Group,
    other: Rank,
    words: [Kind<[u64]>; HANDLERS],
    bytes: [Kind<[u8]>; HANDLERS],
    waits: bool,
}

impl System for Messages {
    const NAME: &'static str = "upcall";
    type End = Member;

    fn join(place: &Place) -> Outcome<Member> {
        let mut handlers = Handlers::new();
        let words = array::from_fn(|at| handlers.kind(&format!("words-{at}")));
        let bytes = array::from_fn(|at| handlers.kind(&format!("bytes-{at}")));
        let rank = usize::from(place.side == Side::Sender);
        let (name, waits) = (
            format!(
                "bench-{}",
                place
                    .dir
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .replace(|c: char| !c.is_ascii_alphanumeric(), "-")
            ),
            place.yields(),
        );
        let pacing = if waits { Pacing::Adaptive } else { Pacing::Poll };
        let joining =
            GroupBuilder::new(&name, 2).rank(rank).pacing(pacing).within(Duration::from_secs(10));
        Ok(Member { group: joining.join(handlers)?, other: 1 - rank, words, bytes, waits })
    }
}

impl End for Member {
    #[inline(always)]
    fn send_words<const N: usize>(&mut self, handler: u16, words: &[u64; N]) -> Outcome<()> {
        Ok(self.group.send(self.other, self.words[usize::from(handler)], &words[..])?)
    }

    fn send_bytes(&mut self, handler: u16, bytes: &[u8]) -> Outcome<()> {
        Ok(self.group.send(self.other, self.bytes[usize::from(handler)], bytes)?)
    }

    #[inline(always)]
    fn receive<H: Handler>(&mut self, handler: &mut H) -> Outcome<()> {
        let mut take = || {
            self.group.receive(|message| {
                handler.message(message.kind() % HANDLERS as u16, &Lying(message))
            })
        };
        loop {
            if take().is_ok() {
                while take().is_ok() {}
                return Ok(());
            }
            if self.waits {
                self.group.wait(None);
            }
            if let Some(event) = self.group.event() {
                return Err(format!("{event:?}").into());
            }
        }
    }
}

/// The payload of a message, in place.
struct Lying<'a, 'b, 'c>(&'a Message<'b, 'c>);

impl Payload for Lying<'_, '_, '_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.0.size()
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        self.0.word(at).expect("a word of the payload")
    }

    #[inline]
    fn checksum(&self) -> u64 {
        (0..self.0.size() / 8).fold(0, |sum, at| sum.wrapping_add(self.word(at)))
    }
}
