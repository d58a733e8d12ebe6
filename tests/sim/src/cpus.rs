//! CPUs that threads share as a kernel shares them: one step at a time, in the order of time.
//!
//! A thread is a number here. Its program takes its steps, and decides what it does next ([`Act`]).
//! The CPU whose clock is behind all others goes on. A woken thread runs on an idle CPU if it may;
//! otherwise it waits in a queue, before or behind the running thread, at random. A thread that has
//! run for a slice goes to the end of its queue.

use crate::dice::Dice;
use crate::state::FOREVER;
use std::collections::VecDeque;
use upcall_os::processor::CpuSet;

/// Length of a slice of a CPU, in ns.
pub const SLICE: u64 = 3_000_000;
/// Cost of a switch from one thread to another on the same CPU, in ns.
const SWITCH: u64 = 1000;
/// Cost of a system call that changes nothing, in ns.
const SYSTEM_CALL: u64 = 300;
/// Time from a wake to the first step on an idle CPU, in ns.
const WAKE: u64 = 5000;
/// Time that a thread takes to move to another CPU to which it is confined, in ns.
const MOVE: u64 = 20_000;

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Computes for this many ns.
    Run(u64),
    /// Yields the CPU.
    Yield,
    /// Sleeps until it is woken, or until this time. An earlier wake counts.
    Sleep(Option<u64>),
    /// Ends.
    End,
}

#[derive(Debug)]
struct Cpu {
    at: u64,
    running: Option<usize>,
    ready: VecDeque<usize>,
    /// The part of its slice that the running thread has used, in ns.
    slice: u64,
}

#[derive(Debug)]
struct Thread {
    allowed: CpuSet,
    cpu: usize,
    /// If it sleeps, until when.
    asleep: Option<u64>,
    woken: bool,
    used: u64,
}

/// The CPUs, with the threads on them. See the module.
#[derive(Debug)]
pub struct Cpus {
    cpus: Vec<Cpu>,
    threads: Vec<Thread>,
    dice: Dice,
}

impl Cpus {
    /// Creates `count` CPUs, on which no thread runs yet.
    pub fn new(count: usize, dice: Dice) -> Self {
        let cpu = || Cpu { at: 0, running: None, ready: VecDeque::new(), slice: 0 };
        Self { cpus: (0..count).map(|_| cpu()).collect(), threads: Vec::new(), dice }
    }

    /// Starts a thread that may run on these CPUs. Returns its number.
    pub fn begin(&mut self, allowed: CpuSet) -> usize {
        let cpu = allowed.iter().next().unwrap_or(0);
        self.threads.push(Thread { allowed, cpu, asleep: Some(FOREVER), woken: false, used: 0 });
        self.wake(self.threads.len() - 1, 0);
        self.threads.len() - 1
    }

    /// The CPU of a thread, and the time of that CPU's clock.
    pub fn place(&self, thread: usize) -> (usize, u64) {
        let cpu = self.threads[thread].cpu;
        (cpu, self.cpus[cpu].at)
    }

    /// The CPUs on which a thread may run.
    pub fn allowed(&self, thread: usize) -> CpuSet {
        self.threads[thread].allowed.clone()
    }

    /// The CPU time that a thread has used, in ns.
    pub fn used(&self, thread: usize) -> u64 {
        self.threads[thread].used
    }

    /// Returns `true` if a thread sleeps and no wake is under way.
    pub fn sleeps(&self, thread: usize) -> bool {
        self.threads[thread].asleep.is_some()
    }

    /// Confines a thread. If it runs elsewhere, it moves after its step.
    pub fn confine(&mut self, thread: usize, allowed: CpuSet) {
        self.threads[thread].allowed = allowed;
    }

    /// Wakes a thread, or keeps it from falling asleep.
    pub fn wake(&mut self, thread: usize, now: u64) {
        if self.threads[thread].asleep.take().is_none() {
            self.threads[thread].woken = true;
            return;
        }
        self.enqueue(thread, now + WAKE);
    }

    /// Puts a thread into a queue. It runs at `time`, or after the threads before it.
    fn enqueue(&mut self, thread: usize, time: u64) {
        let Thread { allowed, cpu, .. } = &self.threads[thread];
        let may = |cpu: &usize| allowed.contains(*cpu);
        let is_idle = |cpu: &usize| self.cpus[*cpu].running.is_none();
        let all = || [*cpu].into_iter().chain(0..self.cpus.len()).filter(may);
        let to = all().find(is_idle).or_else(|| all().next()).unwrap_or(0);
        self.threads[thread].cpu = to;
        let at = &mut self.cpus[to];
        if at.running.is_none() {
            at.at = at.at.max(time);
            (at.running, at.slice) = (Some(thread), 0);
        } else if self.dice.once_in(2) {
            // The running thread is preempted after its step.
            at.ready.push_front(thread);
            at.slice = SLICE;
        } else {
            at.ready.push_back(thread);
        }
    }

    /// The thread that takes the next step; `None` if all sleep for ever, or have ended.
    pub fn turn(&mut self) -> Option<usize> {
        loop {
            let busy =
                self.cpus.iter().filter(|cpu| cpu.running.is_some()).min_by_key(|cpu| cpu.at);
            let until = |thread: &usize| self.threads[*thread].asleep.unwrap_or(FOREVER);
            let first = (0..self.threads.len()).min_by_key(until).filter(|at| until(at) < FOREVER);
            match (busy, first) {
                (Some(cpu), None) => return cpu.running,
                (Some(cpu), Some(first)) if cpu.at <= until(&first) => return cpu.running,
                (_, Some(first)) => {
                    let time = until(&first);
                    self.wake(first, time);
                }
                (None, None) => return None,
            }
        }
    }

    /// Performs the act that ends this thread's step.
    pub fn does(&mut self, thread: usize, act: Act) {
        let cpu = &mut self.cpus[self.threads[thread].cpu];
        let took = if let Act::Run(took) = act { took } else { SYSTEM_CALL };
        cpu.at += took;
        cpu.slice += took;
        self.threads[thread].used += took;
        match act {
            Act::Run(_) => {}
            Act::Yield => cpu.slice = SLICE,
            Act::Sleep(_) if std::mem::take(&mut self.threads[thread].woken) => {}
            Act::Sleep(until) => {
                self.threads[thread].asleep = Some(until.unwrap_or(FOREVER));
                cpu.running = None;
            }
            Act::End => {
                self.threads[thread].asleep = Some(FOREVER);
                cpu.running = None;
            }
        }
        self.switch(thread);
    }

    /// Ends a step of `thread`: moves the thread if it has to move, and runs the next thread if it
    /// is due.
    fn switch(&mut self, thread: usize) {
        let own = self.threads[thread].cpu;
        let moves = self.cpus[own].running.is_some() && !self.threads[thread].allowed.contains(own);
        let cpu = &mut self.cpus[own];
        if moves {
            cpu.running = None;
            let time = cpu.at + MOVE;
            self.enqueue(thread, time);
        } else if cpu.running.is_some() && cpu.slice >= SLICE && !cpu.ready.is_empty() {
            cpu.ready.extend(cpu.running.take());
        }
        // A thread in the queue may have been confined to other CPUs.
        let cpu = &mut self.cpus[own];
        if cpu.running.is_none() {
            cpu.running = cpu.ready.pop_front();
            (cpu.slice, cpu.at) = (0, cpu.at + SWITCH);
        }
    }
}
