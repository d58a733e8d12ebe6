//! A machine of a few processes, whose messages arrive one after the other.

use super::*;

pub(super) const T: Tid = Tid::new(1, 1);
pub(super) const U: Tid = Tid::new(1, 2);
/// The driver's clock of time-outs.
pub(super) const NOW: Duration = Duration::from_secs(100);

/// What one process sends to another one.
#[derive(Clone, Debug)]
pub(super) enum TestWire {
    Move(MoveMessage),
    Task(Tid, KeptMessage<u32>),
    Errand(Tid, &'static str),
    Take(Tid, u64, u32, TakenMessages<u32>, Vec<String>),
    Part(Tid, u64, u32),
}

type TestEffect = MoveEffect<u32, &'static str>;

pub(super) struct TestProcess {
    pub(super) moves: Moves<u32, &'static str>,
    pub(super) clock: u64,
    pub(super) places: BTreeMap<Tid, TaskPlace>,
    /// Tasks that run here, and what they were given.
    pub(super) runs: BTreeMap<Tid, Vec<String>>,
    pub(super) stopped: BTreeMap<Tid, Vec<String>>,
    /// The inbox of the task that arrives.
    pub(super) arrives: Vec<String>,
    pub(super) pin: Option<Pin>,
    pub(super) refusal: Option<Refusal>,
    /// Whether tasks do not stop.
    pub(super) is_busy: bool,
    pub(super) is_dead: bool,
    /// Whether messages wait for this process.
    pub(super) is_stopped: bool,
}

impl TestProcess {
    fn new(rank: Rank, size: usize, limits: MoveLimits) -> Self {
        Self {
            moves: Moves::new(rank, size, limits),
            clock: 0,
            places: BTreeMap::new(),
            runs: BTreeMap::new(),
            stopped: BTreeMap::new(),
            arrives: Vec::new(),
            pin: None,
            refusal: None,
            is_busy: false,
            is_dead: false,
            is_stopped: false,
        }
    }
}

pub(super) struct TestMachine {
    pub(super) all: Vec<TestProcess>,
    pub(super) wires: VecDeque<(Rank, Rank, u64, TestWire)>,
    pub(super) reports: Vec<(u64, Result<Rank, NotMoved>)>,
}

impl TestMachine {
    pub(super) fn new(size: usize) -> Self {
        Self::with(size, MoveLimits { kept: 100, ..MoveLimits::default() })
    }

    pub(super) fn with(size: usize, limits: MoveLimits) -> Self {
        let all = (0..size).map(|rank| TestProcess::new(rank, size, limits)).collect();
        let mut machine = Self { all, wires: VecDeque::new(), reports: Vec::new() };
        if size > 1 {
            machine.begin(T, 1);
        }
        machine
    }

    /// Adds a host with one process, which knows where tasks are.
    pub(super) fn add_host(&mut self, rank: Rank) {
        let mut process = TestProcess::new(rank, rank, self.all[0].moves.limits);
        let places = self.all[0].places.keys();
        let places = places.filter_map(|tid| Some((*tid, self.all[0].moves.rank(*tid)?)));
        process.places = places.map(|(tid, rank)| (tid, TaskPlace::In(rank))).collect();
        self.all.push(process);
        self.at(0, |moves, effects| moves.joined(rank..rank + 1, effects));
    }

    pub(super) fn begin(&mut self, tid: Tid, rank: Rank) {
        self.all[0].moves.began(tid, rank);
        self.all.iter_mut().for_each(|one| _ = one.places.insert(tid, TaskPlace::In(rank)));
        self.all[rank].runs.insert(tid, Vec::new());
    }

    /// Calls a process's moves, and carries out the effects.
    pub(super) fn at<T>(
        &mut self,
        rank: Rank,
        call: impl FnOnce(&mut Moves<u32, &'static str>, &mut Vec<TestEffect>) -> T,
    ) -> T {
        let mut effects = Vec::new();
        let result = call(&mut self.all[rank].moves, &mut effects);
        for effect in effects {
            self.carry_out(rank, effect);
        }
        result
    }

    pub(super) fn wire(&mut self, from: Rank, to: Rank, wire: TestWire) {
        self.all[from].clock += 1;
        self.wires.push_back((from, to, self.all[from].clock, wire));
    }

    pub(super) fn carry_out(&mut self, rank: Rank, effect: TestEffect) {
        let process = &mut self.all[rank];
        match effect {
            MoveEffect::Tell { to, message } => self.wire(rank, to, TestWire::Move(message)),
            MoveEffect::Send { to, tid, kept } => self.wire(rank, to, TestWire::Task(tid, kept)),
            MoveEffect::Resend { tid, kept } => self.send_again(rank, tid, kept),
            MoveEffect::Errand { to, tid, errand } if to == rank => self.give(rank, tid, errand),
            MoveEffect::Errand { to, tid, errand } => {
                self.wire(rank, to, TestWire::Errand(tid, errand));
            }
            MoveEffect::Place { tid, place } => _ = process.places.insert(tid, place),
            MoveEffect::Deliver { tid, message } => self.give(rank, tid, &message.to_string()),
            MoveEffect::MayLeave { tid } => {
                let ended = (!process.runs.contains_key(&tid)).then_some(Pin::Ended);
                let (pin, clock) = (ended.or(process.pin), process.clock);
                self.at(rank, |moves, effects| match pin {
                    Some(why) => moves.stays(tid, why, effects),
                    None => moves.begin(tid, clock, effects),
                });
            }
            MoveEffect::Freeze { tid } if !process.is_busy => self.freeze(rank, tid),
            MoveEffect::Freeze { .. } => {}
            MoveEffect::Take { to, tid, epoch, parts, messages } => {
                let inbox = process.stopped[&tid].clone();
                self.wire(rank, to, TestWire::Take(tid, epoch, parts, messages, inbox));
                self.at(rank, |moves, effects| moves.turn(1000, effects));
            }
            MoveEffect::SendPart { to, tid, epoch, at } => {
                self.wire(rank, to, TestWire::Part(tid, epoch, at));
            }
            MoveEffect::Run { tid } => {
                let inbox = process.stopped.remove(&tid).unwrap_or_default();
                process.runs.entry(tid).or_insert(inbox);
                let runners = self.all.iter().filter(|one| one.runs.contains_key(&tid)).count();
                assert_eq!(runners, 1, "{tid} runs in {runners} processes");
            }
            MoveEffect::Free { tid } => {
                assert!(!process.runs.contains_key(&tid), "{tid} is freed while it runs");
                process.stopped.remove(&tid);
            }
            MoveEffect::Prepare { tid } | MoveEffect::Finish { tid } => {
                let finished = matches!(effect, MoveEffect::Finish { .. });
                if !finished {
                    process.stopped.insert(tid, std::mem::take(&mut process.arrives));
                }
                let refusal = process.refusal.clone();
                self.at(rank, |moves, effects| match refusal {
                    Some(why) => moves.refuse(tid, why, effects),
                    None if finished => moves.ready(tid, effects),
                    None => {}
                });
            }
            MoveEffect::Fill { .. } => {}
            MoveEffect::Report { asker, result, .. } => self.reports.push((asker, result)),
        }
    }

    pub(super) fn freeze(&mut self, rank: Rank, tid: Tid) {
        let process = &mut self.all[rank];
        if let Some(why) = process.pin {
            return self.at(rank, |moves, effects| moves.stays(tid, why, effects));
        }
        let inbox = process.runs.remove(&tid).unwrap();
        process.stopped.insert(tid, inbox);
        self.at(rank, |moves, effects| moves.frozen(tid, 2, effects));
    }

    pub(super) fn give(&mut self, rank: Rank, tid: Tid, what: &str) {
        let process = &mut self.all[rank];
        let inbox = process.runs.get_mut(&tid).or_else(|| process.stopped.get_mut(&tid));
        inbox.unwrap_or_else(|| panic!("{what} for {tid} in {rank}")).push(what.into());
    }

    /// A task in process `from` sends a number to a task.
    pub(super) fn send(&mut self, from: Rank, tid: Tid, message: u32) {
        self.all[from].clock += 1;
        let (stamp, source) = (self.all[from].clock, None);
        self.send_again(from, tid, KeptMessage { stamp, from, source, length: 10, message });
    }

    /// A task sends a number to a task.
    pub(super) fn send_by(&mut self, source: Tid, from: Rank, tid: Tid, message: u32) {
        self.all[from].clock += 1;
        let (stamp, source) = (self.all[from].clock, Some(source));
        self.send_again(from, tid, KeptMessage { stamp, from, source, length: 10, message });
    }

    fn send_again(&mut self, from: Rank, tid: Tid, kept: KeptMessage<u32>) {
        let (stamp, message) = (kept.stamp, kept.message);
        match self.all[from].places[&tid] {
            TaskPlace::Held => _ = self.at(from, |moves, effects| moves.keep(tid, kept, effects)),
            TaskPlace::In(rank) if rank == from => self.give(rank, tid, &message.to_string()),
            TaskPlace::In(rank) => {
                self.wires.push_back((from, rank, stamp, TestWire::Task(tid, kept)))
            }
            TaskPlace::Ended => {}
        }
    }

    /// Handles the next message that is not for a stopped process. Returns `false` if there is
    /// none.
    pub(super) fn step(&mut self) -> bool {
        let ready = |(_, to, ..): &(Rank, Rank, u64, TestWire)| !self.all[*to].is_stopped;
        let Some(at) = self.wires.iter().position(ready) else { return false };
        let (from, to, stamp, wire) = self.wires.remove(at).unwrap();
        let process = &mut self.all[to];
        if process.is_dead {
            return true;
        }
        process.clock = process.clock.max(stamp);
        match wire {
            TestWire::Move(message) => {
                self.at(to, |moves, effects| moves.heard(from, message, effects));
            }
            TestWire::Task(tid, kept) => match process.places[&tid] {
                TaskPlace::Held => {
                    _ = self.at(to, |moves, effects| moves.arrived(tid, kept, effects))
                }
                TaskPlace::In(rank) => {
                    assert_eq!(rank, to, "a message for {tid} has gone astray");
                    self.give(to, tid, &kept.message.to_string());
                }
                TaskPlace::Ended => {}
            },
            TestWire::Errand(tid, errand) => {
                self.at(to, |moves, effects| moves.errand_came(tid, stamp, effects));
                self.give(to, tid, errand);
            }
            TestWire::Take(tid, epoch, parts, messages, inbox) => {
                process.arrives = inbox;
                self.at(to, |moves, out| moves.take(from, (tid, epoch, parts), messages, out));
            }
            TestWire::Part(tid, epoch, at) => {
                let bytes = vec![at as u8; 100];
                let sum = sum(&bytes);
                self.at(to, |moves, out| moves.part(from, (tid, epoch, at), sum, bytes, out));
            }
        }
        true
    }

    pub(super) fn run(&mut self) {
        while self.step() {}
    }

    /// Asks to move a task to a process.
    pub(super) fn ask(&mut self, asker: u64, tid: Tid, to: Rank) {
        self.at(0, |moves, effects| moves.request(asker, tid, to, NOW, effects));
    }

    pub(super) fn lose(&mut self, rank: Rank) -> Vec<Tid> {
        self.all[rank].is_dead = true;
        self.all[rank].runs.clear();
        self.all[rank].stopped.clear();
        self.run();
        let living = (0..self.all.len()).filter(|one| *one != rank).collect::<Vec<_>>();
        let ended = living.iter().map(|one| self.at(*one, |moves, out| moves.lost(rank, out)));
        let ended = ended.collect::<Vec<_>>().concat();
        self.run();
        ended
    }

    pub(super) fn inbox(&self, rank: Rank, tid: Tid) -> Vec<&str> {
        self.all[rank].runs[&tid].iter().map(String::as_str).collect()
    }

    /// All is quiet, and all processes agree about the place of a task.
    pub(super) fn assert_quiet(&self, tid: Tid, place: TaskPlace) {
        for (rank, one) in self.all.iter().enumerate() {
            if !self.all[0].moves.peers.lost.contains(rank) {
                assert!(one.moves.is_quiet(), "process {rank}: {:?}", one.moves);
                assert_eq!(one.places[&tid], place, "process {rank}");
                assert_eq!((one.moves.keeping.length(), one.moves.leaving.length()), (0, 0));
                assert!(one.stopped.is_empty() && one.moves.full.is_empty(), "process {rank}");
            }
        }
    }
}
