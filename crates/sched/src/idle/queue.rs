//! Work that kernel threads of this process submit to the virtual processors of a group: calls that
//! came from other machines.
//!
//! A piece of work is like a request in a lane: the virtual processor that finds it runs it, on a
//! stack of the same size. All processors of the group take pieces, and so do the substitutes of
//! those that a handler blocks ([`takeover`](super::takeover)). Requests and pieces take turns. The
//! rules for stacks count all pieces as calls of one client ([`stacks`](super::stacks)).
//!
//! # Why no piece waits while a processor sleeps
//! The submitter adds the piece, makes a fence, and reads which processors sleep. A sleeper
//! announces itself, makes a fence, and reads the number of pieces ([`sleep`](crate::sleep)). So
//! one of them sees the other. The word of a processor that is taken over is its substitute's. A
//! sleeper for which the rules allow no piece passes over those that wait: when a piece has ended,
//! a sleeper is notified.
//!
//! # Why no piece waits long for a handler that blocks
//! No caller sleeps on a lane and would report the stall. So the clerk checks as long as pieces
//! wait ([`rechecks`](crate::rechecks)). The checks begin where a piece is left behind: the
//! submitter finds no processor that sleeps or polls, a processor runs something while a piece
//! waits, or a processor has no stack for the piece. The clerk also notifies the sleepers in turn:
//! another one may have a stack.

use super::group::PollingIdle;
use super::takeover::Takeover;
use crate::domain::MOST_PROCESSORS;
use crate::rechecks::{Rechecks, write_and_read};
use crate::sleep;
use crate::stall::STALL;
use std::collections::VecDeque;
use std::fmt;
use upcall_os::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use upcall_os::lock::KernelMutex;
use upcall_shm::station::{Awake, ProcessorState};

/// A piece of work. It may block.
pub type Piece = Box<dyn FnOnce() + Send>;

/// The pieces that wait; see the module.
#[derive(Default)]
pub(super) struct WorkQueue {
    waiting: AtomicUsize,
    running: AtomicUsize,
    /// Number of notifications so far, by which the processors take turns.
    turns: AtomicUsize,
    /// Set while pieces are accepted. Changes under the lock of `pieces`.
    is_open: AtomicBool,
    /// The checks by the clerk.
    pub(super) checks: Rechecks,
    pieces: KernelMutex<VecDeque<Piece>>,
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// A piece that was taken and runs.
pub(super) struct TakenPiece {
    processors: PollingIdle,
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
        if self.processors.queue().waits() {
            // A sleeper has read the number of running pieces.
            fence(Ordering::SeqCst);
            self.processors.notify_sleeper();
        }
    }
}

impl WorkQueue {
    /// Returns `true` if a piece waits.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns `true` if pieces may come.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Number of pieces that run.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Adds a piece. Returns it if the queue is not open, or there is no memory.
    fn add(&self, piece: Piece) -> Option<Piece> {
        let mut pieces = self.pieces.lock();
        if !self.is_open() || pieces.try_reserve(1).is_err() {
            return Some(piece);
        }
        pieces.push_back(piece);
        self.waiting.store(pieces.len(), Ordering::Relaxed);
        None
    }

    fn take(&self) -> Option<Piece> {
        let mut pieces = self.pieces.lock();
        let piece = pieces.pop_front()?;
        self.waiting.store(pieces.len(), Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        Some(piece)
    }
}

impl PollingIdle {
    pub(super) fn queue(&self) -> &WorkQueue {
        &self.group.queue
    }

    /// Accepts pieces from now on.
    pub fn open_queue(&self) {
        let _pieces = self.queue().pieces.lock();
        self.queue().is_open.store(true, Ordering::SeqCst);
    }

    /// Gives this piece of work to a virtual processor of the group. Does not block. If the queue
    /// is not open, or without memory for the piece, the piece is dropped.
    pub fn submit(&self, piece: Piece) {
        let mut refused = None;
        let add = || refused = self.queue().add(piece);
        let left = write_and_read(add, || self.notify_sleeper() == Notified::AllRun);
        if left && refused.is_none() {
            self.piece_left();
        }
    }

    /// Drops the pieces that wait, and all that are submitted from now on.
    pub fn close_queue(&self) {
        let mut pieces = self.queue().pieces.lock();
        self.queue().is_open.store(false, Ordering::SeqCst);
        self.queue().waiting.store(0, Ordering::Relaxed);
        let refused = std::mem::take(&mut *pieces);
        drop(pieces);
        drop(refused);
    }

    /// Notifies a sleeping processor, unless a polling one precedes it in turn. Follows a fence.
    fn notify_sleeper(&self) -> Notified {
        let (domain, own) = (self.group.domain, self.group.count.min(MOST_PROCESSORS));
        let turn = self.queue().turns.fetch_add(1, Ordering::Relaxed);
        for member in (0..own).map(|step| &self.group.members[(turn + step) % own]) {
            let Some(number) = member.number() else { continue };
            if sleep::seems_asleep(&domain.station().line(number).asleep) {
                domain.rouse(number);
                return Notified::OneLooks;
            }
            let substitute = member.duty.substitute().and_then(|index| self.number_of(index));
            let probes = substitute.unwrap_or(number);
            if domain.station().state(probes) == ProcessorState::Awake(Awake::Polling) {
                return Notified::OneLooks;
            }
        }
        Notified::AllRun
    }

    /// Takes a piece for the caller's processor.
    pub(super) fn take_piece(&self) -> Option<TakenPiece> {
        let piece = self.queue().take()?;
        if self.queue().checks.shorten() {
            self.check_after_stall();
        }
        Some(TakenPiece { processors: self.clone(), piece: Some(piece) })
    }

    /// Makes the clerk check while a piece waits, because the caller does not take one.
    #[cold]
    pub(super) fn piece_left(&self) {
        if self.queue().checks.begin() {
            self.check_after_stall();
        }
    }

    fn check_after_stall(&self) {
        if let Some(takeover) = self.group.takeover.get() {
            takeover.check_after(STALL);
        }
    }

    /// Sets the timer for the clerk's next check, if pieces wait.
    pub(super) fn check_queue_later(&self, takeover: &Takeover) {
        let queue = self.queue();
        if let Some(pause) = queue.checks.next(|| queue.waits()) {
            takeover.check_after(pause);
            // A processor may have made the pause short again, and its timer was set before.
            if queue.checks.is_short() {
                takeover.check_after(pause.min(STALL));
            }
            fence(Ordering::SeqCst);
            self.notify_sleeper();
        }
    }
}

/// Whether a processor probes the queue soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notified {
    /// A processor polls, or was notified.
    OneLooks,
    /// All processors run something.
    AllRun,
}
