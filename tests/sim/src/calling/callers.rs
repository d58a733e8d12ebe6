//! The callers: each brings the server to its CPU, yields, spins and sleeps as a kernel thread
//! does. Liars publish what may harm others.

use super::world::{Calling, FENCE, LONGEST_SLEEP, MESSAGE, PROBE, Request, SERVER, World};
use crate::cpus::{Act, Cpus};
use std::time::Duration;
use upcall_os::processor::CpuSet;
use upcall_sched::pacing::{Offer, Pacing, Yielded};

/// Interval at which a liar probes for its reply, in ns.
const LIES: u64 = 2000;

impl World {
    /// A step of a caller.
    pub(super) fn call(&mut self, cpus: &mut Cpus, number: usize) -> Act {
        let thread = 1 + number;
        let (cpu, now) = cpus.place(thread);
        let pause = self.callers[number].plan.pause;
        let lies = self.callers[number].plan.lies;
        let there = self.lanes[number].reply;
        match std::mem::replace(&mut self.callers[number].phase, Calling::Calls) {
            Calling::Pauses if lies => Act::Run(1 + self.dice.below(2 * pause)),
            Calling::Pauses if pause > 0 => Act::Sleep(Some(now + 1 + self.dice.below(2 * pause))),
            Calling::Pauses => Act::Run(PROBE),
            Calling::Calls => self.send(cpus, number, (cpu as u32, now)),
            Calling::HandsOver { offers, since, asked } => {
                let took = now - since;
                if !there && offers < 2 && took < 20_000 {
                    let offers = offers + 1;
                    self.callers[number].phase = Calling::HandsOver { offers, since, asked };
                    return Act::Yield;
                }
                let caller = &mut self.callers[number];
                let yielded = if there { Yielded::Arrived } else { Yielded::Nothing };
                caller.hand_over.learn(yielded, Duration::from_nanos(took), || now / 4_000_000);
                if asked {
                    caller.stay.learn(&caller.hand_over);
                }
                caller.phase = if there { Calling::Ends } else { Calling::Announces };
                Act::Run(PROBE)
            }
            Calling::Spins { since } => {
                let caller = &mut self.callers[number];
                let spun = Duration::from_nanos(now - since);
                caller.phase = if there {
                    caller.budget.fruitful();
                    Calling::Ends
                } else if self.said.asleep || spun >= caller.budget.budget(Pacing::Adaptive) {
                    caller.budget.fruitless();
                    Calling::Announces
                } else {
                    Calling::Spins { since }
                };
                Act::Run(PROBE)
            }
            // A liar computes until it has its reply.
            Calling::Announces if lies => {
                let phase = if there { Calling::Ends } else { Calling::Announces };
                self.callers[number].phase = phase;
                Act::Run(LIES)
            }
            Calling::Announces => {
                self.lanes[number].asleep = true;
                self.callers[number].phase = Calling::LooksAgain;
                Act::Run(FENCE)
            }
            Calling::LooksAgain => {
                if there {
                    self.lanes[number].asleep = false;
                    self.callers[number].phase = Calling::Ends;
                    return Act::Run(PROBE);
                }
                if self.said.asleep {
                    self.bring(cpus, number, cpu as u32);
                    cpus.wake(SERVER, now);
                }
                self.callers[number].phase = Calling::Announces;
                Act::Sleep(Some(now + LONGEST_SLEEP))
            }
            Calling::Ends => self.end(number, now),
        }
    }

    pub(super) fn send(&mut self, cpus: &mut Cpus, number: usize, (cpu, now): (u32, u64)) -> Act {
        let asleep = self.said.asleep;
        let lies = self.callers[number].plan.lies;
        self.callers[number].begun = now;
        let is_here = if asleep {
            self.bring(cpus, number, cpu)
        } else {
            let caller = &self.callers[number];
            (caller.placed == Some(cpu) || !caller.plan.may_bring) && self.said.cpu == Some(cpu)
        };
        let caller = &mut self.callers[number];
        let donates = is_here || lies;
        let asks_to_stay = lies || donates && caller.stay.is_wanted(&caller.hand_over);
        self.lanes[number].request = Some(Request { donates, asks_to_stay });
        self.lanes[number].reply = false;
        if lies {
            self.lanes[number].near = Some(self.dice.below(8) as u32);
        }
        if asleep {
            cpus.wake(SERVER, now);
        }
        let hands_over = donates && (asleep || asks_to_stay);
        let offer = hands_over.then(|| caller.hand_over.offer());
        caller.phase = match offer {
            Some(Offer::Timed | Offer::Untimed) => {
                caller.phase = Calling::HandsOver { offers: 1, since: now, asked: asks_to_stay };
                return Act::Yield;
            }
            Some(Offer::LeftOut) => Calling::Announces,
            None if asleep => Calling::Announces,
            None => Calling::Spins { since: now },
        };
        Act::Run(MESSAGE)
    }

    /// Brings the sleeping server to this CPU, or asks it to come. Returns `true` if it is there.
    pub(super) fn bring(&mut self, cpus: &mut Cpus, number: usize, cpu: u32) -> bool {
        let caller = &mut self.callers[number];
        if caller.plan.may_bring {
            cpus.confine(SERVER, CpuSet::only(cpu as usize));
            caller.placed = Some(cpu);
            self.said.cpu = Some(cpu);
            return true;
        }
        self.lanes[number].near = Some(cpu);
        self.said.cpu == Some(cpu)
    }

    pub(super) fn end(&mut self, number: usize, now: u64) -> Act {
        let caller = &mut self.callers[number];
        if !caller.plan.lies {
            self.seen.times.push(now - caller.begun);
        }
        caller.left -= 1;
        if caller.left == 0 {
            return Act::End;
        }
        caller.phase = Calling::Pauses;
        Act::Run(MESSAGE)
    }
}
