//! Work that kernel threads of this process submit to the virtual processors of a group: calls that
//! came from other machines.
//!
//! A piece of work is like a request in a lane: the virtual processor that finds it runs it, on a
//! stack of the same size. All processors of the group take pieces, and so do the substitutes of
//! those that a handler blocks ([`takeover`](super::takeover)). Requests and pieces take turns.
//! The rules for stacks count all pieces as calls of one client ([`stacks`](super::stacks)).
//!
//! # Why no piece waits while a processor sleeps
//! The submitter adds the piece, makes a fence, and reads which processors sleep. A sleeper
//! announces itself, makes a fence, and reads the number of pieces ([`sleep`]). So one of them sees
//! the other. The word of a processor that is taken over is its substitute's.
//!
//! # Why no piece waits long for a handler that blocks
//! No caller sleeps on a lane and would report that. So the clerk checks as long as pieces wait
//! ([`rechecks`](crate::rechecks)). The checks begin where a piece is left behind: the submitter
//! finds no processor that sleeps or polls; a processor takes something else, or one piece of
//! several; or a thread goes on after the processor has polled. A piece that a polling processor is
//! about to take costs no check.

use super::group::Processors;
use super::takeover::Takeover;
use crate::rechecks::Rechecks;
use crate::sleep;
use std::collections::VecDeque;
use std::fmt;
use upcall_os::atomic::{AtomicUsize, Ordering, fence};
use upcall_os::lock::Mutex;
use upcall_shm::station::{Awake, State};

/// A piece of work. It may block.
pub type Piece = Box<dyn FnOnce() + Send>;

/// The pieces that wait; see the module.
#[derive(Default)]
pub(super) struct WorkQueue {
    waiting: AtomicUsize,
    running: AtomicUsize,
    /// Number of pieces that were submitted: processors to notify take turns.
    turns: AtomicUsize,
    /// Whether the clerk checks.
    pub(super) checks: Rechecks,
    pieces: Mutex<Pieces>,
}

#[derive(Default)]
struct Pieces {
    queue: VecDeque<Piece>,
    closed: bool,
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// A piece that was taken, and runs.
pub(super) struct TakenPiece {
    processors: Processors,
    piece: Option<Piece>,
}

impl TakenPiece {
    pub(super) fn run(mut self) {
        if let Some(piece) = self.piece.take() {
            piece();
        }
    }
}

impl Drop for TakenPiece {
    fn drop(&mut self) {
        self.processors.queue().running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WorkQueue {
    /// Returns `true` if a piece waits.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Number of pieces that run.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Adds a piece. Returns it if the queue is closed, or there is no memory.
    fn add(&self, piece: Piece) -> Option<Piece> {
        let mut pieces = self.pieces.lock();
        if pieces.closed || pieces.queue.try_reserve(1).is_err() {
            return Some(piece);
        }
        pieces.queue.push_back(piece);
        self.waiting.store(pieces.queue.len(), Ordering::Relaxed);
        None
    }

    fn take(&self) -> Option<Piece> {
        let mut pieces = self.pieces.lock();
        let piece = pieces.queue.pop_front()?;
        self.waiting.store(pieces.queue.len(), Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        Some(piece)
    }
}

impl Processors {
    pub(super) fn queue(&self) -> &WorkQueue {
        &self.group.queue
    }

    /// Has a virtual processor of the group run this piece of work. Does not block. Without memory
    /// for it, and after [`close_queue`](Self::close_queue), the piece is dropped.
    pub fn submit(&self, piece: Piece) {
        if let Some(refused) = self.queue().add(piece) {
            return drop(refused);
        }
        fence(Ordering::SeqCst);
        let domain = self.group.domain;
        let turn = self.queue().turns.fetch_add(1, Ordering::Relaxed);
        let count = self.running().count().max(1);
        for number in self.running().cycle().skip(turn % count).take(count) {
            if sleep::seems_asleep(&domain.station().line(number).asleep) {
                return domain.rouse(number);
            }
            if domain.station().state(number) == State::Awake(Awake::Polling) {
                return;
            }
        }
        self.piece_left();
    }

    /// Drops the pieces that wait, and all that are submitted from now on.
    pub fn close_queue(&self) {
        let mut pieces = self.queue().pieces.lock();
        pieces.closed = true;
        self.queue().waiting.store(0, Ordering::Relaxed);
        let queue = std::mem::take(&mut pieces.queue);
        drop(pieces);
        drop(queue);
    }

    /// Takes a piece for the caller's processor.
    pub(super) fn take_piece(&self) -> Option<TakenPiece> {
        let piece = self.queue().take()?;
        if self.queue().waits() {
            self.piece_left();
        }
        Some(TakenPiece { processors: self.clone(), piece: Some(piece) })
    }

    /// A piece waits, and the caller does not take it: the clerk checks as long as one waits.
    #[cold]
    pub(super) fn piece_left(&self) {
        if let Some(takeover) = self.group.takeover.get().filter(|_| self.queue().checks.begin()) {
            takeover.check_soon();
        }
    }

    /// Sets the timer for the clerk's next check, if pieces wait.
    pub(super) fn check_queue_later(&self, takeover: &Takeover) {
        let queue = self.queue();
        if let Some(pause) = queue.checks.next(|| queue.waits()) {
            takeover.check_after(pause);
        }
    }
}
