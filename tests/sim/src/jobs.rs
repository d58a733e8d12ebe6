//! The members of jobs that share processors: Tpuz, synth-N with all members as producers and
//! consumers, and a job that sends nothing.
//!
//! What a member computes it owes. Its processor pays while the job has it, so a slice may end
//! anywhere. Messages are sent and taken by the product's own queues, each access to which is a
//! step.

use crate::Rank;
use crate::bag::{Bag, File};
use crate::dice::Dice;
use crate::engine::Cpu;
use crate::puzzle::{Board, Level, Position, home};
use crate::synth::{ACCESSES, BUFFERED, DIRECT, Entry, LOOK};
use std::collections::{VecDeque, btree_map};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use upcall_message::proto::flow::{Flow, Full};
use upcall_os::lock::{KernelMutex, MutexGuard};
use upcall_shm::direct::{Incoming, Outgoing};

/// Number of members of a job, and of processors.
pub const MEMBERS: usize = 4;

/// Time that Tpuz's handler takes, in ns (UDM).
const REACHED: u64 = 170;
/// Time that Tpuz computes for a jump, in ns, chosen so that the search takes as long as the
/// paper's. A test checks that.
const JUMP: u64 = 470;
/// Time that the handler of synth-N takes here, and mean time from one message to the next, in ns
/// (UDM).
const HANDLER: u64 = 500;
const INTERVAL: u64 = 1000;
/// Longest time until an interruption is noticed, in ns.
const PIECE: u64 = 250;

const SEGMENTS: u64 = 1 << 20;
const SEGMENT: usize = 4096;

/// Kinds of messages, in the order of their numbers: `reached` or a request, and an
/// acknowledgement.
const FIRST: u16 = 0;
const ANSWER: u16 = 1;

/// The program of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Computes for this many ns, and sends nothing.
    Null(u64),
    /// The puzzle.
    Tpuz,
    /// Each member sends groups of this many requests, this many times.
    Synth(u64, u64),
}

/// What the members of a job share: their counts, and control words, which are never full.
#[derive(Debug, Default)]
pub struct Books {
    /// Number of messages, without acknowledgements.
    pub sent: u64,
    /// Number of those that were buffered.
    pub buffered: u64,
    /// Number of ways in which one peg was left.
    pub solutions: u64,
    /// By level: number of members that have searched their part, and of messages that were sent
    /// and taken.
    levels: Vec<(usize, u64, u64)>,
    /// Number of members that no longer wait for anything.
    finished: usize,
    /// Number of members that have ended.
    pub ended: usize,
}

/// A job.
#[derive(Debug)]
pub struct Job {
    number: usize,
    entry: Entry,
    books: KernelMutex<Books>,
    /// By sender and receiver.
    files: Vec<Arc<File>>,
    /// For each processor, the job that runs there.
    running: Arc<[AtomicUsize]>,
}

impl Job {
    /// One of the jobs on these processors.
    pub fn new(number: usize, entry: Entry, home: usize, running: Arc<[AtomicUsize]>) -> Arc<Self> {
        let books = KernelMutex::new(Books { levels: vec![(0, 0, 0); 32], ..Books::default() });
        let files =
            (0..MEMBERS * MEMBERS).map(|_| File::new(home, SEGMENT, 0, Dice::new(0))).collect();
        Arc::new(Self { number, entry, books, files, running })
    }

    /// The job's counts.
    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }
}

/// The outcome of a member's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The member did something.
    Did,
    /// The member can only probe again.
    Waits,
    /// The member has ended.
    Ended,
}

type Sending = Outgoing<Bag<SEGMENTS>>;
type Taking = Incoming<Bag<SEGMENTS>>;

/// A member of a job, on its processor.
#[derive(Debug)]
pub struct Member {
    cpu: Cpu,
    job: Arc<Job>,
    work: Work,
    /// Time of computing that is still to be paid for, in ns.
    pub owed: u64,
    out: Vec<(Sending, Flow)>,
    incoming: Vec<Taking>,
    outbox: VecDeque<(Rank, u16, [u64; 2])>,
}

#[derive(Debug)]
enum Work {
    Null(u64),
    Tpuz(Box<Search>),
    Synth(Synth),
}

#[derive(Debug)]
struct Search {
    board: Arc<Board>,
    pegs: u32,
    /// The level of an even number of pegs, and that of an odd number.
    levels: [Level; 2],
    level: btree_map::IntoIter<Position, u64>,
    /// The positions to which the jumps from a position lead.
    jumps: Vec<(Position, u64)>,
    searched: bool,
}

#[derive(Debug)]
struct Synth {
    group: u64,
    groups: u64,
    sent: u64,
    answered: u64,
    /// Time until the next request, in ns.
    pause: u64,
    dice: Dice,
    finished: bool,
}

impl Member {
    /// Creates a member on this processor.
    pub fn new(cpu: &Cpu, job: &Arc<Job>, program: Program, board: &Arc<Board>, seed: u64) -> Self {
        let rank = cpu.rank();
        let bag = |from: Rank, to: Rank, sends| Bag {
            file: job.files[from * MEMBERS + to].clone(),
            cpu: cpu.clone(),
            sends,
        };
        let patience = match job.entry {
            Entry::Mismatch => None,
            Entry::Patience(patience) => Some(patience),
        };
        let out = (0..MEMBERS)
            .map(|to| (Outgoing::new(bag(rank, to, true)), Flow::new(patience)))
            .collect();
        let incoming = (0..MEMBERS).map(|from| Incoming::new(bag(from, rank, false))).collect();
        let work = match program {
            Program::Null(cycles) => Work::Null(cycles),
            Program::Tpuz => Work::Tpuz(Box::new(Search::new(board.clone(), rank))),
            Program::Synth(group, groups) => Work::Synth(Synth {
                group,
                groups,
                sent: 0,
                answered: 0,
                pause: 0,
                dice: Dice::new(seed),
                finished: false,
            }),
        };
        Self {
            cpu: cpu.clone(),
            job: job.clone(),
            work,
            owed: 0,
            out,
            incoming,
            outbox: VecDeque::new(),
        }
    }

    /// Takes the next step, or looks for something to do.
    pub fn step(&mut self) -> Step {
        if let Work::Null(cycles) = &mut self.work {
            self.owed = std::mem::take(cycles);
            return if self.owed > 0 { Step::Did } else { self.end() };
        }
        if self.take() || self.send() {
            return Step::Did;
        }
        let goes_on = self.outbox.is_empty() && self.work_on();
        if goes_on {
            return Step::Did;
        }
        if self.is_over() {
            return self.end();
        }
        self.cpu.spend(LOOK);
        Step::Waits
    }

    fn end(&self) -> Step {
        self.job.books().ended += 1;
        Step::Ended
    }

    /// Computes something, unless it waits for another member.
    fn work_on(&mut self) -> bool {
        let rank = self.cpu.rank();
        match &mut self.work {
            Work::Null(_) => false,
            Work::Tpuz(search) => {
                if let Some((next, ways)) = search.jumps.pop() {
                    self.owed += JUMP;
                    match home(next, MEMBERS) {
                        own if own == rank => {
                            self.owed += REACHED;
                            search.add(next, ways);
                        }
                        other => {
                            self.job.books().levels[search.pegs as usize].1 += 1;
                            self.outbox.push_back((other, FIRST, [next.into(), ways]));
                        }
                    }
                    return true;
                }
                if let Some((position, ways)) = search.level.next() {
                    search.jumps.extend(search.board.after(position).map(|next| (next, ways)));
                    return true;
                }
                let mut books = self.job.books();
                let level = &mut books.levels[search.pegs as usize];
                if !std::mem::replace(&mut search.searched, true) {
                    level.0 += 1;
                }
                let is_over = level.0 == MEMBERS && level.1 == level.2;
                if is_over && search.pegs > 1 {
                    if search.pegs == 2 {
                        books.solutions += search.levels[1].values().sum::<u64>();
                    }
                    search.begin(search.pegs - 1);
                    return true;
                }
                false
            }
            Work::Synth(synth) => {
                if synth.pause > 0 {
                    let piece = synth.pause.min(PIECE);
                    (synth.pause, self.owed) = (synth.pause - piece, piece);
                    // The next message is sent when its computing is paid for.
                    if synth.pause == 0 {
                        let to =
                            (rank + 1 + synth.dice.below(MEMBERS as u64 - 1) as usize) % MEMBERS;
                        self.outbox.push_back((to, FIRST, [synth.sent, 0]));
                        synth.sent += 1;
                    }
                    return true;
                }
                let of_group = synth.sent % synth.group;
                let may = of_group > 0 || synth.answered == synth.sent;
                if may && synth.sent < synth.group * synth.groups {
                    synth.pause = 1 + synth.dice.below(2 * INTERVAL);
                    return true;
                }
                if may
                    && synth.answered == synth.sent
                    && !std::mem::replace(&mut synth.finished, true)
                {
                    self.job.books().finished += 1;
                }
                false
            }
        }
    }

    /// Returns `true` if no member waits for anything any more.
    fn is_over(&self) -> bool {
        match &self.work {
            Work::Null(_) => true,
            Work::Tpuz(search) => {
                let level = self.job.books().levels[1];
                search.pegs == 1 && level.0 == MEMBERS
            }
            Work::Synth(_) => self.job.books().finished == MEMBERS,
        }
    }

    /// Takes a message and runs its handler, if one is there.
    fn take(&mut self) -> bool {
        let rank = self.cpu.rank();
        for from in (0..MEMBERS).filter(|from| *from != rank) {
            let queue = &mut self.incoming[from];
            if !queue.waits() {
                queue.tell();
                continue;
            }
            let (handler, words) = match queue.peek() {
                Ok(Some(arrived)) => {
                    let word = |at| arrived.word(at).unwrap_or(0);
                    let found = (arrived.handler(), [word(0), word(1)]);
                    arrived.dispose();
                    found
                }
                Ok(None) => {
                    queue.tell();
                    continue;
                }
                Err(error) => self.cpu.fail(error.to_string()),
            };
            self.owed += if handler % 2 == 0 { DIRECT } else { BUFFERED } - ACCESSES;
            self.handle(from, handler / 2, words);
            return true;
        }
        false
    }

    fn handle(&mut self, from: Rank, kind: u16, words: [u64; 2]) {
        match &mut self.work {
            Work::Null(_) => self.cpu.fail("a message to one that has no handlers".into()),
            Work::Tpuz(search) => {
                self.owed += REACHED;
                let position = words[0] as Position;
                search.add(position, words[1]);
                self.job.books().levels[position.count_ones() as usize + 1].2 += 1;
            }
            Work::Synth(synth) if kind == ANSWER => synth.answered += 1,
            Work::Synth(_) => {
                self.owed += HANDLER;
                self.outbox.push_back((from, ANSWER, words));
            }
        }
    }

    /// Sends what is to be sent, if there is room.
    fn send(&mut self) -> bool {
        let Some(&(to, kind, words)) = self.outbox.front() else { return false };
        let mismatch = self.job.entry == Entry::Mismatch;
        let (queue, flow) = &mut self.out[to];
        let divert = |queue: &mut Sending| {
            if let Err(error) = queue.divert() {
                self.cpu.fail(format!("no segment: {error}"));
            }
        };
        if mismatch
            && !queue.is_diverted()
            && self.job.running[to].load(Ordering::Relaxed) != self.job.number
        {
            divert(queue);
        }
        while queue.try_send(2 * kind + u16::from(queue.is_diverted()), &words).is_err() {
            let progress = queue.progress();
            if mismatch && queue.is_diverted() {
                divert(queue);
            } else if flow.full(self.cpu.now(), progress) == Full::Divert {
                divert(queue);
                flow.diverted(progress);
            } else {
                return false;
            }
        }
        flow.fits();
        if kind == FIRST {
            let mut books = self.job.books();
            books.sent += 1;
            books.buffered += u64::from(queue.is_diverted());
        }
        self.outbox.pop_front();
        true
    }
}

impl Search {
    fn new(board: Arc<Board>, rank: Rank) -> Self {
        let pegs = board.start().count_ones();
        let mut search = Self {
            board,
            pegs,
            levels: Default::default(),
            level: Level::new().into_iter(),
            jumps: Vec::new(),
            searched: false,
        };
        if home(search.board.start(), MEMBERS) == rank {
            search.add(search.board.start(), 1);
        }
        search.begin(pegs);
        search
    }

    fn add(&mut self, position: Position, ways: u64) {
        *self.levels[position.count_ones() as usize % 2].entry(position).or_default() += ways;
    }

    fn begin(&mut self, pegs: u32) {
        (self.pegs, self.searched) = (pegs, false);
        self.level = std::mem::take(&mut self.levels[pegs as usize % 2]).into_iter();
    }
}
