//! Objects whose homes are on other hosts.
//!
//! # Design
//! - A home listens ([`gate`]), and its objects are found by `tcp://HOST:PORT/NAME`. Their memory
//!   stays where it is: a guest on another host can only invoke.
//! - A guest's process has at most two links ([`upcall_net`]) to an address: one for urgent and one
//!   for ordinary invocations ([`client`]). So no urgent request waits behind procedures, and the
//!   handles of a process share both.
//! - At the home, one thread drives all links ([`guest`]). It writes each request into a lane of
//!   the home's own ([`lanes`]), as a guest of the same host does with a lane that it brings. So
//!   the serving thread, its masks, its interrupts and its crew treat both alike.
//! - The thread that has run an operation takes the reply from the lane and sends it. In an
//!   interrupt it rings a bell, and the clerk sends the reply.
//! - A request is sent once, and a session ends with its connection. The outcomes tell whether the
//!   operation may have run ([`outcome`]). A binding that its home no longer serves answers
//!   [`outcome::GONE`] without running anything, so the guest binds again and repeats the request.
//! - A peer is not trusted. Lengths, kinds and counts are checked when a message begins, arguments,
//!   results and lanes are charged to the connection's account, and a violation ends the link with
//!   a reason.
//!
//! Source: Psyche, section 2.1, for a home that shares no memory with its guests.

pub(crate) mod client;
pub(crate) mod gate;
pub(crate) mod guest;
pub(crate) mod lanes;
pub(crate) mod list;
pub(crate) mod place;

use crate::lane::LONGEST;
use crate::wire::{self, OperationKind};
use serde::{Deserialize, Serialize};
use upcall_net::{FrameBody, FrameHeader, FrameKind};

/// The version of these messages.
pub(crate) const VERSION: u32 = 1;

/// Maximum number of invocations of one link that a home takes at once. Further ones wait in the
/// guest, in turn.
pub(crate) const WINDOW: u16 = 64;

/// Maximum length of a request that is no invocation, in bytes.
pub(crate) const MOST_ASKED: usize = 1024;

/// Maximum length of a reply, in bytes: a result, or an error with a text.
pub(crate) const MOST_REPLY: usize = LONGEST;

/// Maximum number of objects at which a home looks for one request for a list. The next request
/// continues behind them.
pub(crate) const PAGE: usize = 256;

/// The number in the header of a request to a home. Requests to servers of procedures have others.
pub(crate) const OBJECTS: u16 = 0x0b1e;

/// What the number in the header of a reply says about the operation.
pub(crate) mod outcome {
    use crate::lane;

    /// It was run, and its result follows.
    pub(crate) const DONE: u16 = lane::DONE;
    /// It has no result, for the reason that follows: an [`InvokeFailure`].
    ///
    /// [`InvokeFailure`]: crate::wire::InvokeFailure
    pub(crate) const FAILED: u16 = lane::FAILED;
    /// It was not run: the home no longer serves the object, or has begun again.
    pub(crate) const GONE: u16 = 2;
    /// The home no longer serves the object, and may have run the operation.
    pub(crate) const ENDED: u16 = 3;
}

/// A guest's request to a home.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HomeRequest<'a> {
    /// Asks for the object of this name, which must have this shape.
    Open { version: u32, name: &'a str, shape: u64 },
    /// Asks the home to run operations on the object, under the binding's number in the header.
    Bind { version: u32, name: &'a str, shape: u64 },
    /// The binding in the header is not needed any more. It has no answer.
    Unbind,
    /// Asks for the objects behind the one with this key, or for the first ones.
    List { version: u32, after: Option<u64> },
}

/// The home's answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HomeReply {
    /// The object may be invoked. `place` is where its home is ([`place::HomePlace`]).
    Found { place: Option<u64> },
    /// The operations, each under its number.
    Bound { operations: Vec<(String, OperationKind)> },
    /// No object of this name has its home there.
    Absent,
    /// The home refuses, for this reason.
    No(String),
    /// Objects that the guest may invoke, and the key behind which the list goes on.
    Listed { objects: Vec<ListedObject>, next: Option<u64> },
}

/// An object of a home on another host, as [`objects_at`](crate::objects_at) lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedObject {
    /// The name by which it is found there.
    pub name: String,
    /// The number that stands for its type in references.
    pub shape: u64,
    /// Number of operations that its home runs for others; `None` if it runs none now.
    pub operations: Option<u32>,
}

/// The header of a request.
pub(crate) fn head(kind: FrameKind, binding: u32, number: u16) -> FrameHeader {
    FrameHeader { kind, call: 0, binding, number, left: None, len: 0 }
}

/// A message as a body.
pub(crate) fn body(message: &impl Serialize) -> FrameBody {
    FrameBody::from(&*wire::pack(message).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, and are the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.0 >> 33
        }
    }

    /// Good messages with some bytes changed, removed or added.
    fn bent(samples: &[Vec<u8>]) -> impl Iterator<Item = Vec<u8>> {
        let mut numbers = Numbers(5);
        (0..20_000).map(move |round| {
            let mut bytes = samples[round % samples.len()].clone();
            for _ in 0..numbers.next() % 4 {
                let at = numbers.next() as usize % (bytes.len() + 1);
                match numbers.next() % 3 {
                    0 if at < bytes.len() => bytes[at] = numbers.next() as u8,
                    1 if at < bytes.len() => drop(bytes.remove(at)),
                    _ => bytes.insert(at, numbers.next() as u8),
                }
            }
            bytes
        })
    }

    fn packed(message: &impl Serialize) -> Vec<u8> {
        wire::pack(message).unwrap()
    }

    #[test]
    fn bent_messages_are_errors_or_messages() {
        let requests = [
            packed(&HomeRequest::Open { version: VERSION, name: "object", shape: u64::MAX }),
            packed(&HomeRequest::Bind { version: VERSION, name: "", shape: 0 }),
            packed(&HomeRequest::Unbind),
            packed(&HomeRequest::List { version: VERSION, after: Some(7) }),
        ];
        let mut read = 0;
        for bytes in bent(&requests) {
            if let Ok(request) = wire::unpack::<HomeRequest<'_>>(&bytes) {
                let again = packed(&request);
                assert_eq!(wire::unpack::<HomeRequest<'_>>(&again), Ok(request));
                read += 1;
            }
        }
        let operations = vec![("add".into(), OperationKind::Short); 3];
        let listed = ListedObject { name: "object".into(), shape: 7, operations: Some(2) };
        let replies = [
            packed(&HomeReply::Listed { objects: vec![listed; 3], next: Some(9) }),
            packed(&HomeReply::Found { place: Some(7) }),
            packed(&HomeReply::Bound { operations }),
            packed(&HomeReply::Absent),
            packed(&HomeReply::No("why".into())),
        ];
        for bytes in bent(&replies) {
            if let Ok(reply) = wire::unpack::<HomeReply>(&bytes) {
                assert_eq!(wire::unpack::<HomeReply>(&packed(&reply)), Ok(reply));
                read += 1;
            }
        }
        assert!((10_000..40_000).contains(&read), "{read}");
    }

    #[test]
    fn bent_references_are_errors_or_references() {
        use crate::reference::Reference;
        let shape = crate::homed::shape_of::<u64>();
        let texts = [
            format!("object@{shape:016x}"),
            format!("tcp://ws2:7000/object@{shape:016x}"),
            format!("tcp://[::1]:7000/object@{shape:016x}-0123456789abcdef"),
        ];
        let mut read = 0;
        for bytes in bent(&texts.map(String::into_bytes)) {
            let Ok(text) = String::from_utf8(bytes) else { continue };
            if let Ok(reference) = text.parse::<Reference<u64>>() {
                assert_eq!(reference.to_string().parse(), Ok(reference), "{text}");
                read += 1;
            }
        }
        assert!((1000..20_000).contains(&read), "{read}");
    }
}
