//! Tasks that move between the processes of a machine, by the shipped state machine
//! `upcall_pvm::moves`.
//!
//! Two to six processes exchange messages through queues that keep the order of each pair. Toy
//! tasks count what they send and receive, and carry vector clocks. At random, tasks are moved,
//! pinned, ended and killed; moves are cancelled; processes refuse tasks, are stopped, are killed,
//! or are cut off from the others while they go on. This may happen between any two effects
//! ([`Label`]).
//!
//! In half of the runs all processes are on one host: a message is there once it is sent, and a
//! process handles what is there in the order of the stamps, as the product does. In the others
//! there are several hosts, and each message to another one takes a time of its own. There causal
//! order is not promised.
//!
//! # What has to hold
//! - A task runs in one process at most.
//! - A task takes the next message of its sender, and on one host after all that have caused it.
//! - Answers of the first process arrive once, in order, where the task runs.
//! - Each request to move a task has one report.
//! - A task ends only by itself, by a kill, or with the process that it is in.
//! - When all is quiet, nothing is kept, all messages between tasks that live are taken, all
//!   processes agree where each task is, and it runs there. Whenever no process takes part in a
//!   move, and nothing is under way, no message is missing: so the counters that find a stuck
//!   machine are true.

mod carrying;
mod world;

use self::world::{Content, Errand, SeatState, World, index};
pub use self::world::{LABELS, Label, MovingSummary};
use std::time::Duration;
use upcall_pvm::moves::Pin;

/// Maximum number of rounds until all is quiet.
const MOST_ROUNDS: u64 = 100_000;

/// Runs about `steps` steps, and returns what was seen: the same again for the same seed and steps.
///
/// # Errors
/// The violation that was found.
pub fn run(seed: u64, steps: u64) -> Result<MovingSummary, String> {
    let mut world = World::new(seed);
    let title = format!("seed {seed}, {:?}", world.plan);
    let result = (|| -> Result<(), String> {
        while world.summary.steps < steps && !world.processes[0].is_dead {
            world.step()?;
        }
        if !world.processes[0].is_dead {
            world.drain()?;
        }
        Ok(())
    })();
    match result {
        Ok(()) => Ok(world.summary),
        Err(why) => {
            Err(format!("{title}\nafter {} steps: {why}\n{}", world.summary.steps, world.history()))
        }
    }
}

impl World {
    /// Lets a process do something, or trouble strike it.
    fn step(&mut self) -> Result<(), String> {
        self.summary.steps += 1;
        self.now += 1;
        let any = |world: &Self| world.dice.below(world.processes.len() as u64) as usize;
        let is_busy = |process: &world::Process| {
            !process.is_dead
                && process.stopped <= self.now
                && !(process.effects.is_empty() && process.batch.is_empty())
        };
        // Mostly a process that is in the middle of something.
        let busy = (0..4).map(|_| any(self)).find(|rank| is_busy(&self.processes[*rank]));
        let rank = busy.filter(|_| !self.dice.once_in(4)).unwrap_or_else(|| any(self));
        let process = &self.processes[rank];
        if process.is_dead || process.stopped > self.now {
            return Ok(());
        }
        let often = if process.effects.is_empty() { 40 } else { 1 };
        if self.dice.once_in(self.plan.trouble * often) {
            self.strike(rank);
            return Ok(());
        }
        if self.goes_on(rank)? {
            return Ok(());
        }
        match self.dice.below(8) {
            0..=2 => self.hear(rank, false),
            3 | 4 => {
                self.stop_task(rank)?;
                self.with(rank, |moves, effects| moves.turn(2, effects));
            }
            5 if rank == 0 && self.dice.once_in(2) => self.command()?,
            _ => self.run_task(rank)?,
        }
        if self.summary.steps.is_multiple_of(64) {
            self.check_counters()?;
        }
        Ok(())
    }

    /// Carries out an effect, or else handles a message that was taken.
    fn goes_on(&mut self, rank: usize) -> Result<bool, String> {
        if let Some(effect) = self.processes[rank].effects.pop_front() {
            self.carry_out(rank, effect)?;
            return Ok(true);
        }
        if let Some((from, sealed)) = self.processes[rank].batch.pop_front() {
            self.handle(rank, from, sealed)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Stops, kills or cuts off a process.
    fn strike(&mut self, rank: usize) {
        let label = self.label(rank);
        self.summary.strikes[label as usize] += 1;
        match self.dice.below(24) {
            // The end of the first process is the end of the machine.
            0 | 1 if rank != 0 || self.dice.once_in(10) => {
                self.summary.deaths[label as usize] += 1;
                self.kill_process(rank);
            }
            2 if rank != 0 => self.cut_off(rank),
            3..=7 => {
                self.summary.stops += 1;
                self.processes[rank].stopped = self.now + self.dice.magnitude(20_000);
            }
            _ => self.processes[rank].stopped = self.now + self.dice.magnitude(500),
        }
    }

    /// In the first process: a move, or something that concerns one.
    fn command(&mut self) -> Result<(), String> {
        let count = self.tids.len();
        let at = self.dice.below(count as u64) as usize;
        let lives = |at: &usize| !self.ended[*at];
        let at = (at..count).chain(0..at).find(lives).unwrap_or(at);
        let tid = self.tids[at];
        let now = Duration::from_micros(self.now);
        match self.dice.below(60) {
            0 => self.with(0, |moves, effects| moves.cancel(tid, effects)),
            1 if self.dice.once_in(40) => {
                self.with(0, |moves, effects| moves.kill(tid, Errand::Kill, effects));
            }
            2..=6 => {
                self.answers[at] += 1;
                let errand = Errand::Answer(self.answers[at]);
                self.with(0, |moves, effects| moves.errand(tid, errand, effects));
            }
            7..=50 => {
                let mut to = self.dice.below(self.processes.len() as u64) as usize;
                if self.dice.once_in(10) {
                    to += 1;
                } else if self.processes[0].moves.rank(tid) == Some(to) {
                    to = (to + 1) % self.processes.len();
                }
                let asker = self.asked.len() as u64;
                self.asked.push(false);
                self.summary.asked += 1;
                self.with(0, |moves, effects| moves.request(asker, tid, to, now, effects));
            }
            _ => self.with(0, |moves, effects| moves.tick(now, effects)),
        }
        Ok(())
    }

    /// Stops a task that is to stop, unless it turns out to be pinned.
    fn stop_task(&mut self, rank: usize) -> Result<bool, String> {
        let stopping = |seat: &Option<world::Seat>| {
            seat.as_ref().is_some_and(|seat| seat.state == SeatState::Stopping)
        };
        let Some(at) = self.processes[rank].seats.iter().position(stopping) else {
            return Ok(false);
        };
        let (tid, parts) = (self.tids[at], self.dice.below(4) as u32);
        let pinned = self.dice.once_in(20);
        if let Some(seat) = &mut self.processes[rank].seats[at] {
            seat.state = if pinned { SeatState::Runs } else { SeatState::Stopped };
        }
        self.with(rank, |moves, effects| match pinned {
            true => moves.stays(tid, Pin::Call, effects),
            false => moves.frozen(tid, parts, effects),
        });
        Ok(true)
    }

    /// Lets a task of this process run: it receives, sends, or ends.
    fn run_task(&mut self, rank: usize) -> Result<(), String> {
        let count = self.tids.len();
        let first = self.dice.below(count as u64) as usize;
        let runs = |at: &usize| {
            let state = self.processes[rank].seats[*at].as_ref().map(|seat| seat.state);
            matches!(state, Some(SeatState::Runs | SeatState::Stopping))
        };
        let Some(at) = (first..count).chain(0..first).find(runs) else { return Ok(()) };
        match self.dice.below(3_000) {
            0 => self.end_task(rank, at),
            1..=1_500 => _ = self.receive(rank, at)?,
            _ => {
                let to = self.dice.below(self.tids.len() as u64) as usize;
                self.send(rank, at, to)?;
            }
        }
        Ok(())
    }

    /// Without more trouble, lets everything come to rest, and checks what is left.
    fn drain(&mut self) -> Result<(), String> {
        self.processes.iter_mut().for_each(|process| process.stopped = 0);
        for _ in 0..MOST_ROUNDS {
            let mut goes_on = false;
            for rank in 0..self.processes.len() {
                if self.processes[rank].is_dead {
                    continue;
                }
                while self.goes_on(rank)? {
                    goes_on = true;
                }
                self.hear(rank, true);
                goes_on |= self.stop_task(rank)?;
                self.with(rank, |moves, effects| moves.turn(2, effects));
                for at in 0..self.tids.len() {
                    while self.receive(rank, at)? {}
                }
                let process = &self.processes[rank];
                goes_on |= !process.effects.is_empty() || !process.batch.is_empty();
            }
            if goes_on {
                continue;
            }
            let Some(end) = self.processes[0].moves.next_end() else {
                return self.check_rest();
            };
            self.now = end.as_micros() as u64;
            self.with(0, |moves, effects| moves.tick(end, effects));
        }
        Err("the machine does not come to rest".into())
    }

    /// Records the end of a task, in its process, and notifies the first one.
    pub(self) fn end_task(&mut self, rank: usize, at: usize) {
        self.ended[at] = true;
        self.summary.ended += 1;
        let tid = self.tids[at];
        self.processes[rank].seats[at] = None;
        self.processes[rank].moves.ended_here(tid);
        if rank == 0 {
            self.with(0, |moves, effects| moves.ended(tid, effects));
        } else {
            self.wire(rank, 0, Content::Ended(index(tid)));
        }
    }
}
