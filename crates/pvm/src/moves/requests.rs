//! Requests to the first process's part of [`Moves`]: to move a task, to abort its move, and to
//! send it an errand.

use super::first::Deciding;
use super::{MoveEffect, Moves, NotMoved};
use crate::tid::Tid;
use std::ops::Range;
use std::time::Duration;
use upcall_message::Rank;

impl<M: Clone, E> Moves<M, E> {
    /// Records that processes of another host have joined. Moves under way may be aborted.
    ///
    /// To be called before tasks start in these processes. Afterwards they are to learn where tasks
    /// run that have moved.
    pub fn joined(&mut self, ranks: Range<Rank>, effects: &mut Vec<MoveEffect<M, E>>) {
        self.decide(effects, |first, peers, out| first.joined(ranks.into(), peers, out));
        self.run_own(effects);
    }

    /// The tasks whose moves are not over.
    pub fn moving(&self) -> Vec<Tid> {
        self.first.iter().flat_map(Deciding::moving).collect()
    }

    /// Records that a task has begun in a process.
    pub fn began(&mut self, tid: Tid, rank: Rank) {
        self.first.iter_mut().for_each(|first| first.began(tid, rank));
    }

    /// The process of a task.
    pub fn rank(&self, tid: Tid) -> Option<Rank> {
        self.first.as_ref()?.rank(tid)
    }

    /// Number of moves that are not over.
    pub fn open(&self) -> usize {
        self.first.as_ref().map_or(0, Deciding::open)
    }

    /// Returns `true` if a move of this task is not over.
    pub fn is_moving(&self, tid: Tid) -> bool {
        self.first.as_ref().is_some_and(|first| first.is_open(tid))
    }

    /// The time at which to call [`tick`](Self::tick).
    pub fn next_end(&self) -> Option<Duration> {
        self.first.as_ref()?.next_end()
    }

    /// Begins to move a task to process `to`. There is exactly one [`MoveEffect::Report`] for this
    /// request, now or later.
    pub fn request(
        &mut self,
        asker: u64,
        tid: Tid,
        to: Rank,
        now: Duration,
        effects: &mut Vec<MoveEffect<M, E>>,
    ) {
        let ends = now + self.limits.within;
        let began = self
            .decide(effects, |first, peers, out| first.request((asker, tid, to), ends, peers, out));
        if let Some(Err(why)) = began {
            effects.push(MoveEffect::Report { asker, tid, result: Err(why) });
        }
        self.run_own(effects);
    }

    /// Aborts a task's move, unless it is settled, and drops the request that waits for its end.
    pub fn cancel(&mut self, tid: Tid, effects: &mut Vec<MoveEffect<M, E>>) {
        self.decide(effects, |first, peers, out| {
            first.drop_next(tid, NotMoved::Cancelled, out);
            first.abort(tid, NotMoved::Cancelled, peers, out);
        });
        self.run_own(effects);
    }

    /// Sends an errand to a task's process. While the task moves, the errand waits for the
    /// decision.
    /// Dropped if the task has ended.
    pub fn errand(&mut self, tid: Tid, errand: E, effects: &mut Vec<MoveEffect<M, E>>) {
        self.decide(effects, |first, peers, out| first.errand(tid, errand, peers, out));
        self.run_own(effects);
    }

    /// The same for an errand that ends the task. A move that is not settled is aborted first.
    pub fn kill(&mut self, tid: Tid, errand: E, effects: &mut Vec<MoveEffect<M, E>>) {
        self.decide(effects, |first, peers, out| {
            first.drop_next(tid, NotMoved::Killed, out);
            first.abort(tid, NotMoved::Killed, peers, out);
            first.errand(tid, errand, peers, out);
        });
        self.run_own(effects);
    }

    /// Records that a task has ended, as its process has reported.
    pub fn ended(&mut self, tid: Tid, effects: &mut Vec<MoveEffect<M, E>>) {
        self.decide(effects, |first, peers, out| first.ended(tid, peers, out));
        self.run_own(effects);
    }

    /// Aborts the moves that have taken too long.
    pub fn tick(&mut self, now: Duration, effects: &mut Vec<MoveEffect<M, E>>) {
        let limits = self.limits;
        self.decide(effects, |first, peers, out| first.tick(now, limits, peers, out));
        self.run_own(effects);
    }
}
