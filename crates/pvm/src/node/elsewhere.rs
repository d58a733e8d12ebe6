//! Exchange with the machine's other processes, and the first process's work for all of them.

use super::{Node, SIGTERM, TaskEnd, posted};
use crate::balance::meter::own_time;
use crate::error;
use crate::hosts::SpawnPlace;
use crate::hosts::changes::HostState;
use crate::late::LateItem;
use crate::machine::{Machine, Started};
use crate::ops;
use crate::packed::PackedHead;
use crate::places::{TaskLocation, TaskPlaces};
use crate::remote::{
    ControlMessage, HearEnds, LeftMessage, LinkChange, MachineLink, RemoteArrival, SentFrom,
    Stamped, TaskSpec,
};
use crate::report::report_line;
use crate::services::Effect;
use crate::task::{TaskMessage, TaskState};
use crate::tid::Tid;
use crate::transit::errand_for;
use crate::wire::{Packet, PacketReader};
use std::path::Path;
use std::time::Duration;
use upcall_message::{Rank, SendError};
use upcall_ulp::UlpRange;
use upcall_ulp::arena::{self, ArenaNumber};

/// Flags of `pvm_tasks` for waiting and for running tasks.
const WAITS: i32 = 2;
const RUNS: i32 = 4;
/// Time between two tries to send without memory.
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum number of tasks that are started with one request: as many as a process has names for.
const MOST_STARTED: usize = Tid::MOST as usize;
/// Maximum number of messages of the only other process that are handled at once.
const MOST_AT_ONCE: usize = 1024;

impl Node {
    /// Handles messages from other processes.
    #[inline]
    pub(super) fn hear(&mut self) {
        if self.link.is_some() {
            self.hear_all(HearEnds::No);
        }
    }

    /// The same, and detects processes that have ended. While tasks run, this must be called at
    /// intervals.
    pub(super) fn hear_of_ends(&mut self) {
        if self.link.is_some() {
            self.hear_all(HearEnds::Yes);
        }
    }

    /// Takes messages before it handles any, so that each is handled after its cause
    /// ([`causal`](crate::causal)).
    #[inline]
    fn hear_all(&mut self, ends: HearEnds) {
        let Some(link) = &self.link else { return };
        if self.arrivals.is_empty() {
            if link.size() == 2 {
                self.hear_partner(ends);
            } else {
                self.hear_several(ends);
            }
        } else {
            self.handle_arrivals();
        }
        if self.link.as_ref().is_some_and(MachineLink::is_short) {
            self.report_left();
        }
        self.hear_of_lost();
        if !self.late.is_empty() {
            self.deliver_late();
        }
    }

    /// Reports a message for which there is no memory, and asks for more addresses.
    #[cold]
    fn report_left(&mut self) {
        let Some(LeftMessage { from, bytes }) = self.link.as_ref().and_then(MachineLink::left)
        else {
            return;
        };
        let own = self.places.rank();
        let what = bytes.map_or_else(String::new, |bytes| format!(" {bytes} bytes of"));
        self.report_lack(&format!(
            "process {own} has no memory for{what} a message from process {from}: it waits, and so \
             do later ones, until the tasks there have given memory back"
        ));
        self.keep_arena_free();
    }

    /// Handles the messages of the only other process, which come in the order of their times.
    /// Their contents can go straight to the receivers.
    ///
    /// Once a task can run, it runs first: the next turn finds the other messages. So a message
    /// that comes alone costs no further look at the queue, whose next line its sender is about to
    /// write.
    #[inline]
    fn hear_partner(&mut self, ends: HearEnds) {
        for _ in 0..MOST_AT_ONCE {
            let Self { link: Some(link), places, tasks, .. } = self else { return };
            let place = |message: &TaskMessage| posted::place(places, tasks, message);
            let Some(next) = link.next_or_end(ends, place) else { return };
            self.came(next);
            if ends == HearEnds::No && !self.queue.is_empty() {
                return;
            }
        }
    }

    /// Handles the messages of several processes, while none is kept. If one comes alone, its
    /// contents can go straight to its receiver.
    fn hear_several(&mut self, ends: HearEnds) {
        let Self { link: Some(link), places, tasks, .. } = self else { return };
        let place = |message: &TaskMessage| posted::place(places, tasks, message);
        let Some(first) = link.next_for_place(ends, place) else { return };
        if let RemoteArrival::Placed(_) = first.item {
            return self.came(first);
        }
        match link.next() {
            // Most messages come alone.
            None if !link.is_short() => self.came(first),
            second => {
                self.arrivals.add(first);
                second.into_iter().for_each(|second| self.arrivals.add(second));
                self.handle_arrivals();
            }
        }
    }

    /// Takes messages, and handles those all of whose causes are handled.
    fn handle_arrivals(&mut self) {
        let Some(link) = &self.link else { return };
        let all = self.arrivals.hear(link);
        let behind = self.arrivals.behind(link.time());
        all.into_iter().for_each(|one| self.came(one));
        behind.into_iter().for_each(|rank| self.tell(rank, ControlMessage::Time));
    }

    /// Handles the ends of processes, each after the last message of the process.
    #[inline]
    fn hear_of_lost(&mut self) {
        while let Some(link) = &self.link
            && let Some(change) = link.change_if(|rank| !self.arrivals.has_kept_of(rank))
        {
            self.changed(change);
        }
    }

    #[cold]
    fn changed(&mut self, change: LinkChange) {
        match change {
            LinkChange::Lost(rank) => self.lost(rank),
            LinkChange::Joined(rank) => self.joined(rank),
            LinkChange::Asked(petition) => self.heard_petition(petition),
        }
    }

    pub(super) fn came(&mut self, Stamped { stamp, from, item }: Stamped) {
        match item {
            RemoteArrival::Message(message) => self.arrived(from, stamp, message),
            RemoteArrival::Placed(message) => self.placed(&message),
            RemoteArrival::Control(control) => {
                if let Some(tid) = errand_for(&control) {
                    self.errand_came(tid, stamp);
                }
                self.heard(from, *control);
            }
            RemoteArrival::Packed(packed) => self.packed(from, packed.0, packed.1),
        }
    }

    /// Delivers a message from another process.
    fn arrived(&mut self, from: Rank, stamp: u64, message: TaskMessage) {
        match self.places.seat(message.destination) {
            Some(seat) => self.deliver_here(seat, message),
            None => self.arrived_for_none(from, stamp, message),
        }
    }

    /// Handles a message from another process whose receiver has no seat here. If the receiver does
    /// not move, it has ended: no process passes messages on.
    #[cold]
    fn arrived_for_none(&mut self, from: Rank, stamp: u64, message: TaskMessage) {
        let Some(to) = Tid::of(message.destination) else { return };
        match self.places.place(to) {
            TaskLocation::Console => self.deliver_to_console(&message),
            TaskLocation::Held => self.arrived_late(from, stamp, to, message),
            TaskLocation::Seat(_) | TaskLocation::There(_) | TaskLocation::Ended => {}
        }
    }

    /// Delivers a message whose receiver is no task of this process.
    #[cold]
    pub(super) fn deliver_elsewhere(&mut self, message: TaskMessage) {
        let Some(to) = Tid::of(message.destination) else { return };
        match self.places.place(to) {
            TaskLocation::There(rank) => self.send_there(rank, to, message, None),
            TaskLocation::Held => self.keep(to, message),
            TaskLocation::Console => self.deliver_to_console(&message),
            TaskLocation::Seat(_) | TaskLocation::Ended => {}
        }
    }

    /// Sends a message to a task's process. A kept message has the time of its sending.
    pub(super) fn send_there(
        &mut self,
        rank: Rank,
        to: Tid,
        mut message: TaskMessage,
        stamp: Option<u64>,
    ) {
        while let Some(link) = self.link.as_ref().filter(|link| rank < link.size()) {
            match link.send(rank, message, stamp) {
                Ok(()) => return,
                Err((error, unsent)) => {
                    message = unsent;
                    if !self.makes_room(
                        &error,
                        &format!("a message of {} bytes to {to}", message.length),
                    ) {
                        self.link.iter().for_each(crate::remote::MachineLink::give_up);
                        return;
                    }
                }
            }
        }
    }

    /// Sends a message from its sender's memory to a task's process.
    pub(super) fn send_there_from(
        &mut self,
        rank: Rank,
        message: &TaskMessage,
        data: UlpRange,
    ) -> SentFrom {
        while let Some(link) = self.link.as_ref().filter(|link| rank < link.size()) {
            match link.send_from(rank, message, data) {
                Ok(sent) => return sent,
                Err(error) if self.makes_room(&error, "a message from a task's memory") => {}
                Err(_) => return SentFrom::Nothing,
            }
        }
        SentFrom::Nothing
    }

    fn tell_there(&mut self, rank: Rank, control: &ControlMessage) {
        while let Some(link) = &self.link
            && let Err(error) = link.tell(rank, control)
            && self.makes_room(&error, "a request to the machine, or a reply,")
        {}
    }

    /// Sends something of a task that moves.
    pub(super) fn pack_there(&mut self, rank: Rank, head: &PackedHead, contents: &[u8]) {
        while let Some(link) = &self.link
            && let Err(error) = link.pack(rank, head, contents)
            && self.makes_room(&error, "a part of a task that moves")
        {}
    }

    /// Handles a failed send. Returns `true` if the caller is to try again.
    ///
    /// Without room, the other process may itself wait for room here. So this takes messages that
    /// have arrived, to be handled later.
    pub(super) fn makes_room(&mut self, error: &SendError, what: &str) -> bool {
        match error {
            // The end is also reported as an event.
            SendError::Ended { .. } => false,
            SendError::Full | SendError::Overflow { .. } | SendError::LowMemory { .. } => {
                self.link.iter().for_each(|link| self.arrivals.take_some(link));
                true
            }
            // The other process takes what is in its queue, or gets memory; or this one does.
            SendError::NoMemory { .. } | SendError::Refused { .. } => {
                self.report_lack(&format!("{what} waits until it can be sent: {error}"));
                self.link.iter().for_each(|link| self.arrivals.take_some(link));
                std::thread::sleep(PAUSE);
                true
            }
            error => {
                report_line!("upcall pvm: {what} was not sent: {error}");
                false
            }
        }
    }

    /// Sends a control message to the first process, which may be this one.
    pub(super) fn tell_first(&mut self, control: ControlMessage) {
        if self.link.is_some() && self.machine.is_none() {
            self.tell_there(0, &control);
        } else {
            self.heard(self.places.rank(), control);
        }
    }

    pub(super) fn tell_all(&mut self, control: &ControlMessage) {
        if let Some(size) =
            self.link.as_ref().filter(|_| self.machine.is_some()).map(MachineLink::size)
        {
            for rank in 1..size {
                if self.link.as_ref().is_some_and(|link| !link.is_lost(rank)) {
                    self.tell_there(rank, control);
                }
            }
        }
    }

    pub(super) fn tell(&mut self, rank: Rank, control: ControlMessage) {
        if self.link.is_some() && rank != self.places.rank() {
            self.tell_there(rank, &control);
        } else {
            self.heard(rank, control);
        }
    }

    /// Asks for another arena in time. To be called after blocks were made.
    pub(super) fn keep_arena_free(&mut self) {
        if arena::wants_more() {
            self.tell_first(ControlMessage::NeedsArena);
        }
    }

    /// In the first process: answers a question of the console, or of a task in any process.
    pub(super) fn answer(&mut self, tid: Tid, code: i32, packet: Packet) {
        let packet = packet.as_bytes().to_vec();
        if self.is_console(tid) {
            self.answer_console(code, packet);
            return;
        }
        self.tell_process_of(tid, ControlMessage::Answer { tid: tid.number(), code, packet });
    }

    pub(super) fn heard(&mut self, from: Rank, control: ControlMessage) {
        // What this process tells itself, another one has told it before.
        if control.is_of_first() && from != 0 && from != self.places.rank() {
            return;
        }
        let Some(control) = self.moving.after_messages(control) else { return };
        match control {
            ControlMessage::Move(message) => self.heard_move(from, message),
            ControlMessage::Hold { number, message } => {
                self.told_to_hold(number, message);
            }
            ControlMessage::NextName { name } => self.places.set_next_name(name),
            ControlMessage::HasBlocks { tid, epoch, blocks } => {
                self.lend_blocks(from, (tid, epoch), &blocks);
            }
            ControlMessage::LendsBlocks { tid, epoch, all } => {
                self.blocks_are_lent(from, (tid, epoch), all);
            }
            ControlMessage::HasPages { tid, epoch, result } => self.has_pages(tid, epoch, result),
            ControlMessage::DropPages { tid, epoch } => self.drop_pages(tid, epoch),
            ControlMessage::SendContents { tid, epoch } => self.send_contents(from, tid, epoch),
            ControlMessage::HadBlocks { blocks } => self.take_blocks_back(from, &blocks),
            ControlMessage::Answer { tid, code, packet } => self.answered(tid, code, packet),
            ControlMessage::Start { request, plan, slots } => {
                self.start_all(request, &plan, slots);
            }
            ControlMessage::Together { tids } => {
                self.together(&tids.into_iter().filter_map(Tid::of).collect::<Vec<_>>())
            }
            ControlMessage::Kill { tid } => {
                if let Some(seat) = self.seat(tid) {
                    self.end(seat, TaskEnd::Killed(SIGTERM));
                }
            }
            ControlMessage::Signal { tid, signal } => {
                if let Some(seat) = self.seat(tid) {
                    self.signal(seat, signal);
                }
            }
            ControlMessage::Lives { tids, rank, epoch } => {
                let tids = tids.into_iter().filter_map(Tid::of);
                tids.for_each(|tid| self.places.lives(tid, rank, epoch));
            }
            ControlMessage::Gone { tid } => {
                Tid::of(tid).into_iter().for_each(|tid| self.places.gone(tid))
            }
            ControlMessage::Halt => self.halted = true,
            ControlMessage::Count { question } => self.tell_count(question),
            ControlMessage::Measure { round, with_bytes } => self.measure(round, with_bytes),
            ControlMessage::Look { number } => {
                let (time, tasks) = (own_time(), self.seen_with_files());
                self.tell_first(ControlMessage::Seen { number, time, tasks })
            }
            ControlMessage::Arena { number } => {
                ArenaNumber::take_this(number).into_iter().for_each(add_arena);
            }
            ControlMessage::Time => {}
            ControlMessage::Arrived { .. } if self.machine.is_none() => self.tell_first(control),
            ControlMessage::Hosts { all } => self.know_hosts(&all),
            ControlMessage::Late(message) => self.late.push(LateItem::Message(message)),
            control if self.is_of_sender(from, &control) => self.heard_by_first(from, control),
            _ => {}
        }
    }

    /// Starts tasks, one in each of these slots.
    fn start_all(&mut self, request: u64, plan: &TaskSpec, slots: Vec<u32>) {
        let mut all = Vec::with_capacity(slots.len());
        let mut refused = None;
        for slot in slots {
            // After a failure the others would fail, too.
            let one = refused.map_or_else(|| self.start(plan, slot).map(Tid::number), Err);
            refused = one.err();
            all.push(one);
        }
        if refused == Some(error::NO_FILE) {
            self.report_missing(plan);
        }
        let name = Path::new(&plan.program).file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        self.tell_first(ControlMessage::Started { request, all, name });
    }

    /// Handles control messages to the first process.
    fn heard_by_first(&mut self, from: Rank, control: ControlMessage) {
        let Some(machine) = &mut self.machine else { return };
        let (mut effects, mut after) = (Vec::new(), Vec::new());
        match control {
            ControlMessage::Ask { tid, op, question } => {
                let Some(tid) = Tid::of(tid) else { return };
                self.asked_by_task(tid, op, &question, &mut effects);
            }
            ControlMessage::Seen { number, time, tasks } => self.seen_by(from, number, time, tasks),
            ControlMessage::Measured { round, loads } => self.measured_by(from, round, loads),
            ControlMessage::Wakes => self.woken(),
            ControlMessage::Counted { question, count, tasks } => {
                self.counted_by(from, question, count, tasks)
            }
            ControlMessage::Spawn { tid, plan, count, place } => {
                self.spawn_at(Tid::of(tid), plan, count as usize, place)
            }
            ControlMessage::Here { process, hosts } => self.is_here(from, process, hosts),
            ControlMessage::KnowsHosts { count } => self.hosts_are_known(from, count),
            ControlMessage::Unreachable { rank } => self.are_parted(from, rank),
            ControlMessage::Started { request, mut all, name } => {
                // The console is no task.
                let console = |one: &&mut Result<i32, i32>| {
                    let tid = one.ok().and_then(Tid::of);
                    tid.is_some_and(|tid| self.places.place(tid) == TaskLocation::Console)
                };
                all.iter_mut().filter(console).for_each(|one| *one = Err(error::SYS_ERR));
                let tids = all.iter().flatten().copied().filter_map(Tid::of).collect::<Vec<_>>();
                let started = machine.started(request, from, all, &name);
                let runs_there = |tid: &Tid| machine.rank(*tid) == Some(from);
                let tids = tids.into_iter().filter(runs_there).collect::<Vec<_>>();
                tids.iter().for_each(|tid| self.begin_moves_of(*tid, from));
                // Before any of the tasks runs, each process knows where they are.
                self.announce(from, &tids);
                if let Some(started) = started {
                    self.all_started(started);
                }
            }
            ControlMessage::NeedsArena => self.give_arena(from),
            ControlMessage::Arrived { tid, cost } => self.note_cost(tid, cost),
            ControlMessage::Held { number, message } => {
                self.heard_of_hold(from, number, message);
            }
            ControlMessage::Restored { tid, refused } => self.restored(from, tid, refused),
            ControlMessage::Left { tid, sent } => {
                Tid::of(tid).into_iter().for_each(|tid| machine.left(tid, &mut effects));
                after = sent;
            }
            ControlMessage::Entered { tid } => {
                Tid::of(tid).into_iter().for_each(|tid| machine.entered(tid))
            }
            ControlMessage::Spared { tid, is_spared } => {
                Tid::of(tid).into_iter().for_each(|tid| machine.spare(tid, is_spared))
            }
            ControlMessage::Ended { tid, status, catcher, sent } => {
                let Some(tid) = Tid::of(tid) else { return };
                machine.ended(tid, status, catcher, &mut effects);
                self.ended_moves_of(tid);
                after = sent;
            }
            _ => {}
        }
        self.effects_after(effects, from, &after);
        self.announce_gone();
    }

    /// In the first process: gives a process another arena, if there is one for it.
    fn give_arena(&mut self, to: Rank) {
        let own = self.places.rank();
        let Self { machine: Some(machine), hosts, .. } = self else { return };
        if !hosts.are_near(own, to) && !machine.allows_arena(to, hosts.most()) {
            return;
        }
        let Some(arena) = ArenaNumber::take() else { return };
        if to == own {
            return add_arena(arena);
        }
        let number = arena.number();
        machine.arenas.push(arena);
        self.tell(to, ControlMessage::Arena { number });
    }

    /// In the first process: announces those of a process's new tasks that were not named there.
    pub(super) fn announce(&mut self, rank: Rank, tids: &[Tid]) {
        let Some(machine) = &mut self.machine else { return };
        let others = tids.iter().filter(|tid| !TaskPlaces::is_named_in(**tid, rank));
        let tids = others.map(|tid| tid.number()).collect::<Vec<_>>();
        if !tids.is_empty() {
            let epoch = machine.announced(&tids);
            let lives = ControlMessage::Lives { tids, rank, epoch };
            self.tell_all(&lives);
            self.heard(self.places.rank(), lives);
        }
    }

    /// In the first process: announces the ends of tasks that did not run where they were named.
    fn announce_gone(&mut self) {
        while let Some(tid) = self.machine.as_mut().and_then(Machine::next_gone) {
            let gone = ControlMessage::Gone { tid: tid.number() };
            self.tell_all(&gone);
            self.heard(self.places.rank(), gone);
        }
    }

    /// Handles a question of the console, or of a task in any process.
    fn asked_by_task(&mut self, tid: Tid, op: u64, question: &[u8], effects: &mut Vec<Effect>) {
        match op {
            // These are answered later.
            ops::OP_MIGRATE => self.migrate(tid, question),
            ops::OP_ADD_HOSTS => self.asked_for_hosts(tid, question),
            ops::OP_DELETE_HOSTS => self.asked_to_remove(tid, question),
            _ => match self.ask_machine(tid, op, question) {
                Some((code, packet)) => effects.push(Effect::Answer(tid, code, packet)),
                None => self.ask_services(tid, op, question, effects),
            },
        }
    }

    /// Answers a question about the machine's tasks. `None`: the services answer it.
    fn ask_machine(&mut self, tid: Tid, op: u64, question: &[u8]) -> Option<(i32, Packet)> {
        let machine = self.machine.as_ref()?;
        let mut question = PacketReader::new(question);
        let (first, second) = (question.int(), question.int());
        let code = match op {
            ops::OP_TASKS => {
                let process = |rank: Rank| self.process(rank);
                let state = |tid: Tid| {
                    let seat = self.seat(tid.number())?;
                    self.tasks[seat as usize].as_deref().map(|task| task.state)
                };
                let flags = |tid: Tid| {
                    if matches!(state(tid), None | Some(TaskState::Runs)) {
                        RUNS
                    } else {
                        RUNS | WAITS
                    }
                };
                return Some(machine.list(first.unwrap_or(-1), &self.hosts, process, flags));
            }
            ops::OP_NO_RESETS => {
                let all = machine.spared().map(Tid::number).collect::<Vec<_>>();
                return Some((all.len() as i32, Packet::default().ints(all)));
            }
            ops::OP_TASK_STATE
                if first.and_then(Tid::of).is_some_and(|tid| machine.is_there(tid)) =>
            {
                error::OK
            }
            ops::OP_TASK_STATE => error::NO_TASK,
            ops::OP_KILL | ops::OP_SIGNAL => {
                // As in PVM, there need not be such a task.
                if let Some(whom) = first.and_then(Tid::of) {
                    match op {
                        ops::OP_KILL => self.kill(whom),
                        _ => self.send_signal(whom, second.unwrap_or(0)),
                    }
                }
                error::OK
            }
            ops::OP_OUTPUT_SOURCES => machine.sources(tid),
            ops::OP_HALT => {
                self.halted = true;
                error::OK
            }
            _ => return None,
        };
        Some((code, Packet::default()))
    }

    /// In the first process: spawns `count` tasks. The spawner is answered when all have started or
    /// failed.
    pub(crate) fn spawn(&mut self, spawner: Option<Tid>, plan: TaskSpec, count: usize) {
        self.spawn_at(spawner, plan, count, SpawnPlace::Any);
    }

    /// The same, where the spawner wants it.
    pub(super) fn spawn_at(
        &mut self,
        spawner: Option<Tid>,
        plan: TaskSpec,
        count: usize,
        place: SpawnPlace,
    ) {
        if count > MOST_STARTED {
            return spawner
                .into_iter()
                .for_each(|tid| self.answer(tid, error::OUT_OF_RES, Packet::default()));
        }
        if self.defers() {
            return self.defer_spawn((spawner, plan, count as u32, place));
        }
        let size = self.size();
        let ranks = self.hosts.ranks_for(place).unwrap_or_default();
        let ranks = self.that_take_tasks(ranks);
        if place == SpawnPlace::Any || ranks.len() == size {
            return self.spawn_in(spawner, plan, count, None);
        }
        if ranks.is_empty() {
            let tids = Vec::new();
            let errors = vec![error::NO_HOST; count];
            return self.all_started(Started { spawner, plan, tids, errors });
        }
        self.spawn_in(spawner, plan, count, Some(&ranks));
    }

    fn spawn_in(
        &mut self,
        spawner: Option<Tid>,
        plan: TaskSpec,
        count: usize,
        ranks: Option<&[Rank]>,
    ) {
        let processes = self.size();
        let any = || self.that_take_tasks((0..self.hosts.size()).collect());
        let any = (self.hosts.are_several() && ranks.is_none()).then(any);
        let ranks = ranks.or(any.as_deref());
        let Some(machine) = &mut self.machine else { return };
        let (request, shares) = machine.request(spawner, plan.clone(), count, processes, ranks);
        let left = count - shares.iter().map(|(_, slots)| slots.len()).sum::<usize>();
        if left > 0
            && let Some(report) = machine.no_room(left, count, processes)
        {
            report_line!("upcall pvm: {report}");
        }
        if shares.is_empty() {
            return machine
                .nowhere(request)
                .into_iter()
                .for_each(|started| self.all_started(started));
        }
        for (rank, slots) in shares {
            self.tell(rank, ControlMessage::Start { request, plan: plan.clone(), slots });
        }
    }

    /// In the first process: ends a task.
    pub(super) fn kill(&mut self, tid: Tid) {
        self.tell_process_of(tid, ControlMessage::Kill { tid: tid.number() });
    }

    /// In the first process: sends a signal to a task.
    pub(super) fn send_signal(&mut self, tid: Tid, signal: i32) {
        self.tell_process_of(tid, ControlMessage::Signal { tid: tid.number(), signal });
    }

    fn all_started(&mut self, started: Started) {
        let tids = started.tids.iter().map(|tid| tid.number()).collect::<Vec<_>>();
        let together = ControlMessage::Together { tids: tids.clone() };
        self.tell_all(&together);
        self.heard(self.places.rank(), together);
        if started.errors.contains(&error::NO_FILE) {
            self.report_refusal(started.spawner, &started.plan);
        }
        match started.spawner {
            Some(spawner) => {
                // The tids of those that were started, then the errors of the others.
                let packet = Packet::default().ints(tids.iter().copied().chain(started.errors));
                self.answer(spawner, tids.len() as i32, packet);
            }
            None => self.refused = started.errors.first().copied(),
        }
    }

    /// Reports why the name of a program led to no task. Where another text says that there is no
    /// such file, this does not: at the console, and when the machine starts.
    fn report_refusal(&mut self, spawner: Option<Tid>, plan: &TaskSpec) {
        self.go_home();
        if let Some(folder) = &plan.folder {
            self.programs.also_in(Path::new(folder));
        }
        let is_task = |tid| self.machine.as_ref().is_some_and(|machine| machine.is_there(tid));
        let is_spawned = spawner.is_some_and(is_task);
        if let Some(why) = self.programs.refusal(&plan.program, is_spawned) {
            report_line!("upcall pvm: {why}");
        }
    }

    /// Handles the end of a process, and with it of all its tasks.
    // Not inlined: each turn calls `hear_of_lost`, which would get this function's frame.
    #[cold]
    #[inline(never)]
    pub(super) fn lost(&mut self, rank: Rank) {
        self.count_anew();
        self.link.iter().for_each(MachineLink::leap);
        self.lose_moves(rank);
        let Some(machine) = &mut self.machine else {
            // Without the first process there is no machine.
            self.halted |= rank == 0;
            if !self.hosts.are_near(self.places.rank(), rank) && rank != 0 {
                self.tell_first(ControlMessage::Unreachable { rank });
            }
            return;
        };
        let mut effects = Vec::new();
        let (tids, started) = machine.lost(rank, &mut effects);
        let on = match self.hosts.are_several() {
            true => format!(" on host {}", self.hosts.name(self.hosts.of(rank))),
            false => String::new(),
        };
        if self.lose_host(rank, &mut effects) == HostState::Stays {
            let tasks = tids.len();
            report_line!("upcall pvm: process {rank}{on} has ended, and {tasks} tasks with it");
        }
        self.effects(effects);
        self.announce_gone();
        tids.iter().for_each(|tid| self.unbalance(*tid));
        for started in started {
            self.all_started(started);
        }
        self.lose_hold(rank);
        self.lose_process(rank);
        self.work_at_hosts();
    }
}

/// Adds an arena to those of this process.
fn add_arena(arena: ArenaNumber) {
    if let Err(error) = arena::add(arena) {
        report_line!("upcall pvm: {error}");
    }
}
