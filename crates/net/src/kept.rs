//! Bytes that are on their way to the peer.
//!
//! They are kept until they are sent, and in a session that survives its connection until the peer
//! has acknowledged them. A new connection sends them again from where the peer wants them.
//!
//! A long piece of a body is not copied: it stays in the body, which is kept with it. A message
//! whose owner was dropped when all of it was sent may so keep its memory for longer. That is no
//! more than what was being sent at one time, because new messages wait for the window.
//!
//! Positions count the bytes of records since the session began. There is no input or output here.

use crate::frame::{FrameBody, FrameError, NoLinkMemory};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Size of a block of memory, in bytes. It holds four of TLS's records.
const BLOCK: usize = 64 << 10;

/// Size of the block that a link keeps while nothing is under way, in bytes.
const IDLE: usize = 1 << 10;

/// Whether sent bytes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Until they are sent: the session ends with its connection.
    UntilSent,
    /// Until they are acknowledged.
    UntilAcknowledged,
}

/// Bytes that lie together.
#[derive(Debug)]
enum KeptBlock {
    /// Records, or their beginnings.
    Copied(Vec<u8>),
    /// These bytes of a body.
    Body(Arc<FrameBody>, Range<usize>),
}

impl KeptBlock {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Body(body, part) => &body.bytes()[part.clone()],
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct KeptBytes {
    blocks: VecDeque<KeptBlock>,
    /// Bodies that are not kept any more. The holder of the lock drops them after it.
    freed: Vec<Arc<FrameBody>>,
    /// Position of the first byte of the first block.
    base: u64,
    /// Position of the first byte that this connection has not sent.
    next: u64,
    /// Position after the last byte.
    end: u64,
    keeps: Keeps,
}

impl KeptBytes {
    /// Begins a session.
    pub fn new(keeps: Keeps) -> Self {
        Self { blocks: VecDeque::new(), freed: Vec::new(), base: 0, next: 0, end: 0, keeps }
    }

    /// Changes how long sent bytes are kept.
    pub fn keep(&mut self, keeps: Keeps) {
        self.keeps = keeps;
        if keeps == Keeps::UntilSent {
            self.free(self.next);
        }
    }

    /// Returns `true` if no byte was ever sent.
    pub fn is_unused(&self) -> bool {
        self.next == 0
    }

    /// Allocates memory for `len` bytes, at most [`BLOCK`], and for one block after them. Returns
    /// the block to add the bytes to.
    ///
    /// # Errors
    /// There is no memory.
    fn room(&mut self, len: usize) -> Result<&mut Vec<u8>, NoLinkMemory> {
        self.blocks.try_reserve(2).map_err(|_| NoLinkMemory)?;
        let fits = |block: &KeptBlock| match block {
            KeptBlock::Copied(bytes) => bytes.len() + len <= BLOCK,
            KeptBlock::Body(..) => false,
        };
        if !self.blocks.back().is_some_and(fits) {
            self.blocks.push_back(KeptBlock::Copied(Vec::new()));
        }
        let Some(KeptBlock::Copied(block)) = self.blocks.back_mut() else {
            return Err(NoLinkMemory);
        };
        let reserved = match block.is_empty() && len > BLOCK / 16 {
            true => block.try_reserve_exact(BLOCK),
            false => block.try_reserve(len),
        };
        reserved.map_err(|_| NoLinkMemory)?;
        Ok(block)
    }

    /// Adds `len` bytes, at most [`BLOCK`], that `write` appends to a block. They stay together.
    ///
    /// # Errors
    /// There is no memory, and nothing was added.
    pub fn add(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), NoLinkMemory> {
        let block = self.room(len)?;
        let before = block.len();
        write(block);
        let added = block.len() - before;
        debug_assert_eq!(added, len, "bytes that were announced");
        self.end += added as u64;
        Ok(())
    }

    /// Adds bytes, at most [`BLOCK`], and after them a part of a body, which is not copied.
    ///
    /// # Errors
    /// There is no memory, and nothing was added.
    pub fn add_with(
        &mut self,
        bytes: &[u8],
        body: &Arc<FrameBody>,
        part: Range<usize>,
    ) -> Result<(), NoLinkMemory> {
        self.add(bytes.len(), |block| block.extend_from_slice(bytes))?;
        self.end += part.len() as u64;
        self.blocks.push_back(KeptBlock::Body(body.clone(), part));
        Ok(())
    }

    /// Bytes that this connection has not sent, as far as they lie together.
    pub fn unsent(&self) -> &[u8] {
        self.unsent_pieces().next().unwrap_or_default()
    }

    /// All bytes that this connection has not sent.
    pub fn unsent_pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = self.base;
        self.blocks.iter().filter_map(move |block| {
            let bytes = block.bytes();
            let sent = self.next.saturating_sub(start);
            start += bytes.len() as u64;
            usize::try_from(sent).ok().and_then(|sent| bytes.get(sent..)).filter(|b| !b.is_empty())
        })
    }

    /// Takes the bodies that are not kept any more, to be dropped outside a lock.
    pub fn take_freed(&mut self) -> Vec<Arc<FrameBody>> {
        std::mem::take(&mut self.freed)
    }

    /// Number of bytes that this connection has not sent.
    pub fn count_unsent(&self) -> u64 {
        self.end - self.next
    }

    /// Number of bytes that are kept.
    pub fn count(&self) -> u64 {
        self.end - self.base
    }

    /// The connection has sent the first `count` of the unsent bytes.
    pub fn sent(&mut self, count: usize) {
        self.next = self.end.min(self.next + count as u64);
        if self.keeps == Keeps::UntilSent {
            self.free(self.next);
        }
    }

    /// The peer has received all bytes before the position whose low 32 bits are `received`.
    ///
    /// # Errors
    /// These bytes were not sent.
    pub fn acknowledged(&mut self, received: u32) -> Result<(), FrameError> {
        if self.keeps == Keeps::UntilSent {
            return Ok(());
        }
        // Far less than 2^31 bytes are kept. A record that a new connection repeats may be behind.
        let ahead = received.wrapping_sub(self.base as u32);
        if ahead > u32::MAX / 2 {
            return Ok(());
        }
        let position = self.base + u64::from(ahead);
        if position > self.next {
            return Err(FrameError("bytes received that were never sent"));
        }
        self.free(position);
        Ok(())
    }

    /// Begins a connection that sends from this position on.
    ///
    /// # Errors
    /// The bytes there are not kept.
    pub fn resume(&mut self, received: u64) -> Result<(), FrameError> {
        if !(self.base..=self.end).contains(&received) {
            return Err(FrameError("it wants bytes again that were acknowledged, or never sent"));
        }
        self.next = received;
        self.free(received);
        Ok(())
    }

    /// Frees the blocks before a position.
    fn free(&mut self, position: u64) {
        loop {
            let is_last = self.blocks.len() == 1;
            let Some(first) = self.blocks.front_mut() else { return };
            let len = first.bytes().len() as u64;
            if self.base + len > position {
                return;
            }
            self.base += len;
            if let KeptBlock::Copied(bytes) = first
                && is_last
                && len < BLOCK as u64
            {
                // An idle link keeps one small block, so that a call need not allocate one.
                bytes.clear();
                if bytes.capacity() > IDLE {
                    bytes.shrink_to(IDLE);
                }
                return;
            }
            if let Some(KeptBlock::Body(body, _)) = self.blocks.pop_front() {
                self.freed.push(body);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(kept: &mut KeptBytes, bytes: &[u8]) {
        kept.add(bytes.len(), |block| block.extend_from_slice(bytes)).unwrap();
    }

    fn send_all(kept: &mut KeptBytes) -> Vec<u8> {
        let mut sent = Vec::new();
        while !kept.unsent().is_empty() {
            let now = kept.unsent().len().min(1000);
            sent.extend_from_slice(&kept.unsent()[..now]);
            kept.sent(now);
        }
        sent
    }

    #[test]
    fn what_was_not_acknowledged_is_sent_again() {
        let mut kept = KeptBytes::new(Keeps::UntilAcknowledged);
        let all: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        all.chunks(12_345).for_each(|piece| add(&mut kept, piece));
        assert_eq!(send_all(&mut kept), all);
        kept.acknowledged(200_000).unwrap();
        assert!(kept.count() < 100_000 + BLOCK as u64, "{}", kept.count());
        for from in [200_000, 250_000, 250_000, 300_000] {
            kept.resume(from).unwrap();
            assert_eq!(send_all(&mut kept), all[from as usize..], "from {from}");
        }
        // An acknowledgement that is repeated is older than what the peer wanted last.
        kept.acknowledged(200_000).unwrap();
        assert!(kept.acknowledged(300_001).is_err());
        assert!(kept.resume(0).is_err() && kept.resume(300_001).is_err());
    }

    #[test]
    fn bodies_are_kept_where_they_are_and_freed_when_they_were_received() {
        let mut kept = KeptBytes::new(Keeps::UntilAcknowledged);
        let bytes: Vec<u8> = (0..50_000u32).map(|n| (n * 7) as u8).collect();
        let body = Arc::new(FrameBody::from(&*bytes));
        let mut all = Vec::new();
        for part in [0..20_000, 20_000..20_000, 20_000..50_000] {
            kept.add_with(b"head", &body, part.clone()).unwrap();
            all.extend_from_slice(b"head");
            all.extend_from_slice(&bytes[part]);
        }
        assert_eq!(kept.unsent_pieces().collect::<Vec<_>>().concat(), all);
        kept.sent(10);
        assert_eq!(kept.unsent_pieces().collect::<Vec<_>>().concat(), all[10..]);
        assert_eq!(send_all(&mut kept), all[10..]);
        let freed = |kept: &mut KeptBytes| {
            let count = kept.take_freed().len();
            (count, Arc::strong_count(&body))
        };
        kept.acknowledged(20_003).unwrap();
        assert_eq!(freed(&mut kept), (0, 4));
        kept.resume(20_004).unwrap();
        assert_eq!(freed(&mut kept), (1, 3));
        assert_eq!(send_all(&mut kept), all[20_004..]);
        kept.acknowledged(all.len() as u32).unwrap();
        assert_eq!(freed(&mut kept), (2, 1));
        assert_eq!((kept.count(), kept.unsent().len()), (0, 0));
    }

    #[test]
    fn positions_beyond_32_bits_are_told_apart() {
        let mut kept = KeptBytes::new(Keeps::UntilAcknowledged);
        (kept.base, kept.next, kept.end) = (u32::MAX.into(), u32::MAX.into(), u32::MAX.into());
        add(&mut kept, &[7; 10]);
        send_all(&mut kept);
        kept.acknowledged(4).unwrap();
        assert!(kept.acknowledged(10).is_err());
        kept.acknowledged(9).unwrap();
        assert_eq!(kept.count(), 0);
    }

    #[test]
    fn without_a_session_that_goes_on_nothing_is_kept() {
        let mut kept = KeptBytes::new(Keeps::UntilSent);
        for _ in 0..100 {
            add(&mut kept, &[1; 5000]);
            assert_eq!(send_all(&mut kept).len(), 5000);
            assert_eq!((kept.count(), kept.count_unsent()), (0, 0));
        }
        assert!(kept.blocks.len() <= 1);
    }
}
