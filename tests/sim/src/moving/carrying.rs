//! What a process does: it carries out effects, takes and handles messages, and runs tasks.

use super::world::{Content, Effect, Errand, Letter, Sealed, Seat, SeatState, World, index};
use std::rc::Rc;
use upcall_pvm::Tid;
use upcall_pvm::moves::{KeptMessage, MoveEffect, NotMoved, Pin, Refusal, TaskPlace, sum};

impl World {
    pub(super) fn carry_out(&mut self, rank: usize, effect: Effect) -> Result<(), String> {
        self.note(|| format!("{rank} {effect:?}"));
        match effect {
            MoveEffect::Tell { to, message } => self.wire(rank, to, Content::Move(message)),
            MoveEffect::Send { to, tid, kept } => {
                let stamp = kept.stamp;
                self.wire_stamped((rank, to), stamp, Content::Letter(tid, kept));
            }
            MoveEffect::Resend { tid, kept } => return self.send_kept(rank, tid, kept),
            MoveEffect::Errand { to, tid, errand } if to == rank => {
                return self.errand(rank, tid, errand);
            }
            MoveEffect::Errand { to, tid, errand } => {
                self.wire(rank, to, Content::Errand(tid, errand));
            }
            MoveEffect::Place { tid, place } => self.processes[rank].places[index(tid)] = place,
            MoveEffect::Deliver { tid, message } => return self.deliver(rank, tid, message),
            MoveEffect::Report { asker, result, .. } => return self.report(asker, result),
            effect => return self.carry_task(rank, effect),
        }
        Ok(())
    }

    fn report(&mut self, asker: u64, result: Result<usize, NotMoved>) -> Result<(), String> {
        match result {
            Ok(_) => self.summary.moved += 1,
            Err(NotMoved::TimedOut) => self.summary.timed_out += 1,
            Err(NotMoved::Full) => self.summary.full += 1,
            Err(_) => self.summary.not_moved += 1,
        }
        match std::mem::replace(&mut self.asked[asker as usize], true) {
            true => Err(format!("request {asker} has a second report: {result:?}")),
            false => Ok(()),
        }
    }

    /// Carries out an effect on a task as a whole.
    fn carry_task(&mut self, rank: usize, effect: Effect) -> Result<(), String> {
        let (pinned, refused) = (self.dice.once_in(12), self.dice.once_in(20));
        let process = &mut self.processes[rank];
        match effect {
            MoveEffect::MayLeave { tid } => {
                let (is_here, clock) = (process.seats[index(tid)].is_some(), process.clock);
                self.with(rank, |moves, effects| match (is_here, pinned) {
                    (false, _) => moves.stays(tid, Pin::Ended, effects),
                    (true, true) => moves.stays(tid, Pin::Descriptor, effects),
                    (true, false) => moves.begin(tid, clock, effects),
                });
            }
            MoveEffect::Freeze { tid } => {
                if let Some(seat) = &mut process.seats[index(tid)] {
                    seat.state = SeatState::Stopping;
                }
            }
            MoveEffect::Take { to, tid, epoch, parts, messages } => {
                self.summary.carried += messages.carried.len() as u64;
                let seat = process.seats[index(tid)].as_ref().ok_or("the task has gone")?;
                if seat.state != SeatState::Stopped {
                    return Err(format!("{tid} is sent while it runs"));
                }
                let task = seat.task.clone();
                self.wire(rank, to, Content::Take(tid, epoch, parts, messages, task));
            }
            MoveEffect::SendPart { to, tid, epoch, at } => {
                let bytes = vec![at as u8; 20];
                let sum = sum(&bytes) ^ u64::from(self.dice.once_in(200));
                self.wire(rank, to, Content::Part { tid, epoch, at, sum, bytes });
            }
            MoveEffect::Run { tid } => return self.runs(rank, tid),
            MoveEffect::Free { tid } => {
                let state = process.seats[index(tid)].take().map(|seat| seat.state);
                if !matches!(state, Some(SeatState::Stopped | SeatState::Arrives)) {
                    return Err(format!("process {rank} frees {tid}: {state:?}"));
                }
            }
            MoveEffect::Prepare { tid } => {
                let (task, all) = process.arrives.take().ok_or("no task has arrived")?;
                let seat = Seat { task, state: SeatState::Arrives, parts: 0, all };
                if process.seats[index(tid)].replace(seat).is_some() {
                    return Err(format!("{tid} arrives in {rank} twice"));
                }
                if refused {
                    self.with(rank, |moves, out| moves.refuse(tid, Refusal::Memory, out));
                }
            }
            MoveEffect::Fill { tid, at, .. } => {
                let seat = process.seats[index(tid)].as_mut().ok_or("no room for a part")?;
                if seat.parts != at {
                    return Err(format!("part {at} of {tid} is filled after {}", seat.parts));
                }
                seat.parts += 1;
            }
            MoveEffect::Finish { tid } => {
                // It was refused before.
                let Some(seat) = &process.seats[index(tid)] else { return Ok(()) };
                if seat.parts != seat.all {
                    return Err(format!(
                        "{tid} is whole with {} of {} parts",
                        seat.parts, seat.all
                    ));
                }
                self.with(rank, |moves, effects| match refused {
                    true => moves.refuse(tid, Refusal::Program, effects),
                    false => moves.ready(tid, effects),
                });
            }
            effect => return Err(format!("no effect on a task: {effect:?}")),
        }
        Ok(())
    }

    /// Lets a task run. No other process may run it.
    fn runs(&mut self, rank: usize, tid: Tid) -> Result<(), String> {
        let at = index(tid);
        for (other, process) in self.processes.iter().enumerate() {
            let state = process.seats[at].as_ref().map(|seat| seat.state);
            let runs = matches!(state, Some(SeatState::Runs | SeatState::Stopping));
            if runs && other != rank && !process.is_dead {
                return Err(format!("{tid} is to run in {rank}, and runs in {other}"));
            }
        }
        let seat = self.processes[rank].seats[at].as_mut();
        let seat = seat.ok_or_else(|| format!("{tid} is to run in {rank}, and is not there"))?;
        seat.state = SeatState::Runs;
        Ok(())
    }

    /// Puts a letter into the inbox of a task that runs here, or has ended.
    fn deliver(&mut self, rank: usize, tid: Tid, letter: Rc<Letter>) -> Result<(), String> {
        match &mut self.processes[rank].seats[index(tid)] {
            Some(seat) if matches!(seat.state, SeatState::Runs | SeatState::Stopping) => {
                seat.task.inbox.push_back(letter);
                Ok(())
            }
            None if self.ended[index(tid)] => Ok(()),
            seat => {
                let state = seat.as_ref().map(|seat| seat.state);
                let Letter { from, number, .. } = *letter;
                Err(format!("{number} of {from} for {tid} is lost in {rank}: {state:?}"))
            }
        }
    }

    fn errand(&mut self, rank: usize, tid: Tid, errand: Errand) -> Result<(), String> {
        let at = index(tid);
        let seat = match &mut self.processes[rank].seats[at] {
            Some(seat) if matches!(seat.state, SeatState::Runs | SeatState::Stopping) => seat,
            None if self.ended[at] => return Ok(()),
            seat => return Err(format!("{errand:?} for {tid} is lost in {rank}: {seat:?}")),
        };
        match errand {
            Errand::Answer(number) if number == seat.task.answers + 1 => seat.task.answers = number,
            Errand::Answer(number) => {
                return Err(format!("{tid} has {} answers, then {number}", seat.task.answers));
            }
            Errand::Kill => self.end_task(rank, at),
        }
        Ok(())
    }

    /// Takes what has arrived: all of it, or what is due of other hosts.
    pub(super) fn hear(&mut self, rank: usize, all: bool) {
        let count = self.processes.len();
        if !self.processes[rank].batch.is_empty() {
            return;
        }
        let mut batch = Vec::new();
        for from in (0..count).filter(|from| *from != rank) {
            let queue = &mut self.queues[from * count + rank];
            let due = |sealed: &Sealed| all || sealed.due <= self.now;
            while queue.front().is_some_and(due) {
                batch.extend(queue.pop_front().map(|sealed| (from, sealed)));
            }
        }
        batch.sort_by_key(|(_, sealed)| sealed.stamp);
        let process = &mut self.processes[rank];
        let stamps = batch.iter().map(|(_, sealed)| sealed.stamp);
        let latest = stamps.filter(|stamp| *stamp < u64::MAX).max().unwrap_or(0);
        process.clock = process.clock.max(latest);
        process.batch.extend(batch);
    }

    pub(super) fn handle(
        &mut self,
        rank: usize,
        from: usize,
        sealed: Sealed,
    ) -> Result<(), String> {
        self.note(|| format!("{rank} handles, of {from}: {sealed:?}"));
        match sealed.content {
            Content::Move(message) => self.with(rank, |moves, out| moves.heard(from, message, out)),
            Content::Letter(tid, kept) => match self.processes[rank].places[index(tid)] {
                TaskPlace::In(place) if place == rank => {
                    return self.deliver(rank, tid, kept.message);
                }
                TaskPlace::Held => {
                    let astray = self.with(rank, |moves, out| moves.arrived(tid, kept, out));
                    return self.check_astray(rank, tid, astray);
                }
                _ => return self.check_astray(rank, tid, Err(kept)),
            },
            Content::Errand(tid, errand) => return self.errand(rank, tid, errand),
            Content::Take(tid, epoch, parts, messages, task) => {
                self.processes[rank].arrives = Some((task, parts));
                self.with(rank, |moves, out| moves.take(from, (tid, epoch, parts), messages, out));
            }
            Content::Part { tid, epoch, at, sum, bytes } => {
                self.with(rank, |moves, out| moves.part(from, (tid, epoch, at), sum, bytes, out));
            }
            Content::Ended(at) => {
                let tid = self.tids[at];
                self.with(rank, |moves, effects| moves.ended(tid, effects));
            }
            Content::Lost => return self.lose(rank, from),
        }
        Ok(())
    }

    /// Handles that a process has ended, as far as this one knows.
    fn lose(&mut self, rank: usize, lost: usize) -> Result<(), String> {
        if lost == 0 {
            self.kill_process(rank);
            return Ok(());
        }
        let tids = self.with(rank, |moves, effects| moves.lost(lost, effects));
        for tid in tids {
            let at = index(tid);
            if self.processes[lost].seats[at].is_none() && !self.ended[at] {
                return Err(format!("{tid} has ended with {lost}, and was not there"));
            }
            self.ended[at] = true;
        }
        Ok(())
    }

    /// Only a message for a task that has ended may be left over.
    fn check_astray(
        &self,
        rank: usize,
        tid: Tid,
        astray: Result<(), KeptMessage<Rc<Letter>>>,
    ) -> Result<(), String> {
        match astray {
            Err(kept) if !self.ended[index(tid)] && !self.processes[rank].is_cut => {
                Err(format!("a message for {tid} is astray in {rank}: {kept:?}"))
            }
            _ => Ok(()),
        }
    }

    /// A task sends a letter to a task.
    pub(super) fn send(&mut self, rank: usize, from: usize, to: usize) -> Result<(), String> {
        let (tid, source) = (self.tids[to], Some(self.tids[from]));
        let process = &mut self.processes[rank];
        let Some(seat) = &mut process.seats[from] else { return Ok(()) };
        seat.task.sent[to] += 1;
        seat.task.clock[from] += 1;
        let (number, clock) = (seat.task.sent[to], seat.task.clock.clone());
        process.clock += 1;
        let (stamp, length) = (process.clock, 10);
        let message = Rc::new(Letter { from, number, clock });
        self.summary.sent += 1;
        self.note(|| format!("{rank} task {from} sends {number} to {to}, stamp {stamp}"));
        self.send_kept(rank, tid, KeptMessage { stamp, from: rank, source, length, message })
    }

    fn send_kept(
        &mut self,
        rank: usize,
        tid: Tid,
        kept: KeptMessage<Rc<Letter>>,
    ) -> Result<(), String> {
        match self.processes[rank].places[index(tid)] {
            TaskPlace::In(place) if place == rank => self.deliver(rank, tid, kept.message),
            TaskPlace::In(place) => {
                let stamp = kept.stamp;
                self.wire_stamped((rank, place), stamp, Content::Letter(tid, kept));
                Ok(())
            }
            TaskPlace::Held => {
                self.summary.kept += 1;
                let astray = self.with(rank, |moves, effects| moves.keep(tid, kept, effects));
                self.check_astray(rank, tid, astray)
            }
            TaskPlace::Ended => self.check_astray(rank, tid, Err(kept)),
        }
    }

    /// A task takes its next letter, if there is one and it runs here.
    pub(super) fn receive(&mut self, rank: usize, at: usize) -> Result<bool, String> {
        let is_causal = self.plan.is_causal();
        let Some(seat) = &mut self.processes[rank].seats[at] else { return Ok(false) };
        if !matches!(seat.state, SeatState::Runs | SeatState::Stopping) {
            return Ok(false);
        }
        let task = &mut seat.task;
        let Some(letter) = task.inbox.pop_front() else { return Ok(false) };
        let from = letter.from;
        if letter.number != task.got[from] + 1 {
            let (number, got) = (letter.number, task.got[from]);
            return Err(format!("task {at} takes {number} of {from} after {got}"));
        }
        if is_causal && from != at && letter.clock[from] <= task.clock[from] {
            let number = letter.number;
            return Err(format!(
                "task {at} takes {number} of {from} after a message that it has caused"
            ));
        }
        task.got[from] += 1;
        for (own, other) in task.clock.iter_mut().zip(&letter.clock) {
            *own = (*own).max(*other);
        }
        task.clock[at] += 1;
        self.summary.taken += 1;
        Ok(true)
    }
}
