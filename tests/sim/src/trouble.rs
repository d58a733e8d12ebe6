//! Trouble that strikes domains at any step: they are delayed, stopped and continued, stopped for
//! ever, or killed.

use crate::Rank;
use crate::dice::Dice;
use crate::state::{FOREVER, State};

/// The source of trouble. See the module.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// The source of its decisions.
    pub dice: Dice,
    /// Mean number of steps from one strike to the next.
    pub every: u64,
    /// The step of the next strike.
    pub next: u64,
    /// The step after which there is no more trouble.
    pub until: u64,
    /// Number of domains that may still be killed.
    pub deaths: u64,
    /// Number of domains that may still be stopped for ever.
    pub stops_for_ever: u64,
}

impl Trouble {
    /// Strikes if it is time, before `current` takes its next step.
    pub(crate) fn strike(&mut self, current: Rank, state: &mut State) {
        let step = state.steps();
        if step < self.next || step > self.until {
            return;
        }
        self.next = step + 1 + self.dice.below(2 * self.every);
        let count = state.domains.len();
        // The victim is mostly the current domain, in the middle of something.
        let victim =
            if self.dice.once_in(4) { self.dice.below(count as u64) as Rank } else { current };
        let now = state.time_of(current);
        if !state.domains[victim].is_well() || state.domains[victim].doomed {
            return;
        }
        match self.dice.below(40) {
            0 if self.deaths > 0 => {
                self.deaths -= 1;
                state.ledger.summary.deaths += 1;
                state.kill(victim, now);
            }
            1 if self.stops_for_ever > 0 => {
                self.stops_for_ever -= 1;
                state.ledger.summary.stops_for_ever += 1;
                self.stop(victim, FOREVER, state);
            }
            2..=9 => {
                state.ledger.summary.stops += 1;
                let until = now + self.dice.magnitude(300_000);
                self.stop(victim, until, state);
            }
            _ => {
                state.ledger.summary.held_up += 1;
                let by = self.dice.magnitude(10_000);
                state.delay(victim, by);
            }
        }
    }

    fn stop(&self, victim: Rank, until: u64, state: &mut State) {
        state.domains[victim].stopped = until;
        state.event(
            victim,
            if until == FOREVER { "is stopped for ever" } else { "is stopped until" },
            until,
            0,
        );
    }
}
