//! Payloads that the sender hands to a receiver of its own process, in place of writing them in the
//! queue's memory.
//!
//! The queue holds the header of such a message, marked by [`WRAP`](super::WRAP), and nothing else
//! of it. So a long payload is not copied, and order and counts are those of the queue. The two
//! ends have a list in common, to which the sender adds a payload before it launches the message.
//! The receiver takes it from there when it first reads the header, which it loads with acquire.
//!
//! A receiver whose sender is another process has no list. To it such a header is a violation.

use std::collections::{TryReserveError, VecDeque};
use std::fmt;
use std::sync::Arc;
use upcall_os::lock::KernelMutex;

/// A payload that was handed over. The receiver drops it when it disposes of the message.
pub trait HandedPayload: fmt::Debug + Send + Sync {
    /// The payload, and what fills its last word.
    fn words(&self) -> &[u64];
}

/// The payloads that were handed over, and that the receiver has not taken.
#[derive(Debug, Default)]
pub struct HandedPayloads(KernelMutex<VecDeque<Arc<dyn HandedPayload>>>);

impl HandedPayloads {
    /// Adds the payload of the next message. `payload` is not called without memory for it.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn add(
        &self,
        payload: impl FnOnce() -> Arc<dyn HandedPayload>,
    ) -> Result<(), TryReserveError> {
        let mut list = self.0.lock();
        list.try_reserve(1)?;
        list.push_back(payload());
        Ok(())
    }

    fn take(&self) -> Option<Arc<dyn HandedPayload>> {
        self.0.lock().pop_front()
    }
}

/// The receiver's part: the list, and the payload of the next message once its header was read.
#[derive(Debug, Default)]
pub(super) struct HandedNext {
    pub(super) list: Option<Arc<HandedPayloads>>,
    pub(super) payload: Option<Arc<dyn HandedPayload>>,
}

impl HandedNext {
    /// Takes the payload of a message of `len` bytes, unless that has happened.
    pub(super) fn find(&mut self, len: u32) -> Option<()> {
        if self.payload.is_none() {
            self.payload = self.list.as_ref()?.take();
        }
        let words = self.payload.as_ref()?.words();
        (words.len() >= (len as usize).div_ceil(8)).then_some(())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::direct::{Incoming, Outgoing, SendRefusal, Unreadable, Violation};
    use crate::mailbag::Mailbag;
    use std::os::fd::AsFd;

    #[derive(Debug)]
    struct Words(Vec<u64>);

    impl HandedPayload for Words {
        fn words(&self) -> &[u64] {
            &self.0
        }
    }

    type Ends = (Outgoing<Mailbag>, Incoming<Mailbag>, Arc<HandedPayloads>);

    fn queue() -> Ends {
        let (outgoing, list) = (Mailbag::create().unwrap(), Arc::<HandedPayloads>::default());
        let incoming = Mailbag::join(outgoing.as_fd().try_clone_to_owned().unwrap()).unwrap();
        (Outgoing::new(outgoing), Incoming::new(incoming.with_handed(list.clone())), list)
    }

    fn receive(incoming: &mut Incoming<Mailbag>) -> Option<(u16, Vec<u8>)> {
        let arrived = incoming.peek().unwrap()?;
        let mut bytes = Vec::new();
        arrived.payload().append_to(&mut bytes);
        let first = arrived.word(0).map(u64::to_le_bytes);
        assert_eq!(first.is_some(), !bytes.is_empty());
        assert_eq!(arrived.word(arrived.len().div_ceil(8)), None);
        let found = (arrived.handler(), bytes);
        arrived.dispose();
        Some(found)
    }

    #[test]
    fn payloads_that_are_handed_over_arrive_in_order_with_others() {
        let (mut outgoing, mut incoming, list) = queue();
        let (mut expected, mut dice) = (VecDeque::new(), 7_u64);
        for number in 0..20_000_u32 {
            dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let words: Vec<u64> = (0..dice >> 58).map(|at| at ^ dice).collect();
            let len = (words.len() * 8).saturating_sub((dice >> 40 & 7) as usize);
            let bytes: Vec<u8> =
                words.iter().flat_map(|word| word.to_le_bytes()).take(len).collect();
            let kind = number as u16;
            let sent = match dice >> 50 & 1 {
                0 => outgoing.hand((kind, len as u32), &list, || Arc::new(Words(words.clone()))),
                _ => outgoing.describe(kind, len).map(|draft| {
                    draft.room().copy_in(0, &bytes).unwrap();
                    draft.launch();
                }),
            };
            match sent {
                Ok(()) => expected.push_back((kind, bytes)),
                Err(refused) => {
                    assert_eq!(refused, SendRefusal::Full);
                    outgoing.divert().unwrap();
                }
            }
            if dice >> 51 & 0x1ff == 0 {
                while let Some(found) = receive(&mut incoming) {
                    assert_eq!(Some(found), expected.pop_front());
                }
                assert!(expected.is_empty());
            }
        }
        assert!(outgoing.ever_buffered() > 0);
    }

    #[test]
    fn a_payload_lives_until_its_message_is_disposed_of_or_no_longer_kept() {
        let (mut outgoing, mut incoming, list) = queue();
        let payloads = [1, 2].map(|word| Arc::new(Words(vec![word; 100])));
        for payload in &payloads {
            outgoing.hand((3, 800), &list, || payload.clone()).unwrap();
        }
        let counts = || payloads.each_ref().map(Arc::strong_count);
        // An interrupt takes none.
        assert!(incoming.peek_lightly().unwrap().is_none());
        let kept = incoming.peek().unwrap().unwrap().keep();
        assert!(incoming.dispose_of(&kept) && !incoming.dispose_of(&kept));
        assert_eq!(counts(), [2, 2]);
        let mut bytes = Vec::new();
        kept.payload().append_to(&mut bytes);
        assert_eq!((kept.len(), &bytes[..8]), (800, &1_u64.to_le_bytes()[..]));
        drop(kept);
        assert_eq!(counts(), [1, 2]);
        assert_eq!(receive(&mut incoming).map(|(kind, bytes)| (kind, bytes.len())), Some((3, 800)));
        assert_eq!(counts(), [1, 1]);
    }

    /// A sender in another process can hand nothing over.
    #[test]
    fn without_a_list_or_a_payload_such_a_header_is_a_violation() {
        let broken = |incoming: &mut Incoming<Mailbag>| {
            matches!(incoming.peek(), Err(Unreadable::Violation(Violation::NoHeader(_))))
        };
        let (mut outgoing, _, list) = queue();
        let theirs = outgoing.memory().as_fd().try_clone_to_owned().unwrap();
        let mut foreign = Incoming::new(Mailbag::join(theirs).unwrap());
        outgoing.hand((3, 8), &list, || Arc::new(Words(vec![5]))).unwrap();
        assert!(broken(&mut foreign) && broken(&mut foreign));
        let (mut outgoing, mut incoming, _) = queue();
        outgoing.hand((3, 8), &HandedPayloads::default(), || Arc::new(Words(vec![5]))).unwrap();
        assert!(broken(&mut incoming), "nothing was handed over");
        let (mut outgoing, mut incoming, list) = queue();
        outgoing.hand((3, 9), &list, || Arc::new(Words(vec![5]))).unwrap();
        assert!(broken(&mut incoming), "less than the header says");
    }
}
