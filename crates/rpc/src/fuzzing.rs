//! The parts of this crate that read what a peer wrote, for tests that feed them arbitrary bytes:
//! `tests/fuzz/` and `upcall-tests`. They are not an interface for programs, and change with the
//! crate.

use crate::decode::{Decoder, DecoderSide, Malformed};
use crate::encode::{Encoder, block_len};
use crate::interface::Limits;
use crate::server::brought;
use crate::session::Session;
use crate::value::{Get, Put};
use crate::wire::{ClientRequest, Exported, ServerReply, ToClient, ToServer, unpack};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use upcall_sched::quota::{QuotaLedger, Quotas};
use upcall_shm::astack::AStackPlan;
use upcall_shm::region::Region;
use upcall_shm::slot::SlotMessage;
use upcall_shm::span::{Span, WritableSpan};

/// Decodes the bytes of a control message, and shows the message as text: to a server, to a client,
/// as the list of exports, and as a request and an answer on the network.
pub fn control(bytes: &[u8]) -> [Option<String>; 5] {
    fn text<T: Debug>(read: Result<T, String>) -> Option<String> {
        read.ok().map(|message| format!("{message:?}"))
    }
    [
        text(unpack::<ToServer>(bytes)),
        text(unpack::<ToClient>(bytes)),
        text(unpack::<Vec<Exported>>(bytes)),
        text(unpack::<ClientRequest<'_>>(bytes)),
        text(unpack::<ServerReply>(bytes)),
    ]
}

/// Reads the block as a `T`: as a client reads a result, or as a server reads arguments whose
/// client holds these objects.
///
/// # Errors
/// See [`Malformed`].
pub fn read<T: Get>(
    block: &mut [u64],
    len: usize,
    limits: Limits,
    objects: Option<&SessionObjects>,
) -> Result<T, Malformed> {
    let span = WritableSpan::of_words(block).part(0, len).ok_or(Malformed::Short { at: 0 })?;
    let side = objects.map_or(DecoderSide::None, |objects| DecoderSide::Server(&objects.0));
    T::get(&Decoder::new(span, T::SIZE, limits, side), 0)
}

/// Writes a value's block.
///
/// # Panics
/// The value computes a wrong length.
pub fn write<T: Put>(value: &T) -> Vec<u64> {
    let mut words = vec![0; block_len(value).div_ceil(8)];
    let written =
        Encoder::block(WritableSpan::of_words(&mut words), value, Limits::default(), None);
    written.unwrap_or_else(|fault| panic!("a value that was read cannot be written: {fault:?}"));
    words
}

/// Objects that a client holds.
#[derive(Debug)]
pub struct SessionObjects(Arc<Session>);

impl SessionObjects {
    /// Makes `count` objects of one type, and gives the client handles of them.
    ///
    /// # Panics
    /// `count` is more than a client may hold.
    pub fn new<T: ?Sized + Send + Sync + 'static>(
        objects: impl IntoIterator<Item = Arc<T>>,
    ) -> (Self, Vec<u64>) {
        let session = Session::new(QuotaLedger::new(Quotas::default(), None).account(None, None));
        let keep = |object: Arc<T>| session.insert(Box::new(object) as Box<dyn Any + Send + Sync>);
        let handles = objects
            .into_iter()
            .map(|object| keep(object).unwrap_or_else(|over| panic!("{over:?}")))
            .collect();
        (Self(Arc::new(session)), handles)
    }
}

/// Applies a server's guards: returns the arguments of this request, and the length of the A-stack
/// that it names.
pub fn guards<'a>(
    request: &'a SlotMessage,
    plan: &AStackPlan,
    astacks: Option<&'a Arc<Region>>,
    segment: Option<&'a Region>,
) -> Option<(Span<'a>, Option<usize>)> {
    let segment = segment.and_then(|region| region.room(0, region.len()));
    brought(request, plan, astacks, segment)
        .map(|(args, astack)| (args, astack.map(|room| room.len())))
}
