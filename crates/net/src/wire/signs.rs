//! What time brings: slow peers, signs of life, and the trust in the other host.

use super::{JUDGED_AGAIN, Wire, WireCore};
use crate::lost::Lost;
use std::time::Instant;
use upcall_os::tcp::{Acknowledged, acknowledged, round_trip};

/// What the driver does with a connection after its alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterTick {
    /// Nothing.
    Rest,
    /// It gives it a turn.
    Turn,
}

impl Wire {
    /// Tells the driver when the link next has something to do.
    pub(super) fn note_due(&self, core: &WireCore) {
        if let (Some(due), Some((driver, number))) = (core.link.due(), &core.driven) {
            driver.alarm(*number, due);
        }
    }

    /// The driver's alarm: time has passed.
    pub(crate) fn tick(&self, now: Instant) -> Result<AfterTick, Lost> {
        let mut core = self.core();
        core.link.tick(now)?;
        let after = match std::mem::take(&mut core.unwatched) {
            true => AfterTick::Turn,
            false => AfterTick::Rest,
        };
        self.note_due(&core);
        self.judge(&mut core, now)?;
        if core.checks.is_none_or(|at| at > now) {
            return Ok(after);
        }
        core.checks = None;
        let bound = self.terms.lost_after;
        if let Ok(took) = round_trip(&self.stream) {
            core.link.note_round_trip(took);
        }
        let next = match acknowledged(&self.stream) {
            Ok(Acknowledged::Silent(since)) if since >= bound => return Err(Lost::Silent(bound)),
            Ok(Acknowledged::Silent(since)) => Some(now + (bound - since)),
            Ok(Acknowledged::All) if core.blocked => Some(now + bound),
            Ok(Acknowledged::All) | Err(_) => None,
        };
        core.checks = next;
        if let (Some(at), Some((driver, number))) = (next, &core.driven) {
            driver.alarm(*number, at);
        }
        Ok(after)
    }

    /// Judges the host at the other end again, if it is time.
    fn judge(&self, core: &mut WireCore, now: Instant) -> Result<(), Lost> {
        let Some(host) =
            self.terms.host.as_ref().filter(|_| core.judges.is_some_and(|at| at <= now))
        else {
            return Ok(());
        };
        host.is_trusted()?;
        if let Some((driver, number)) = &core.driven {
            let at = driver.next_round(JUDGED_AGAIN);
            driver.alarm(*number, at);
            core.judges = Some(at);
        }
        Ok(())
    }
}
