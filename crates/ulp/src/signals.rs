//! Signals for one ULP: its table shows what it does with each, and which are pending.
//!
//! The host marks signals as pending while no ULP runs; the image checks when a question returns.
//! So no signal can arrive between a check and the next question, and at a question the host checks
//! for signals too: no signal is lost. A ULP that was interrupted may be in the middle of a check.
//! So the image changes that word by one instruction each time, and handlers run only where no
//! function of the library is under way ([`Ulp::is_in_own_code`]).

use crate::layout::{TABLE_BLOCKED, TABLE_HANDLED, TABLE_IGNORED, TABLE_SIGNALS, TABLE_WAITED};
use crate::ulp::Ulp;

/// The effect of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// There is no signal of this number.
    None,
    /// The ULP ignores it.
    Ignored,
    /// It is blocked, and waits until it is not.
    Kept,
    /// It is handled as soon as the ULP returns from a question, whose wait is over.
    Comes,
    /// It is to end the ULP.
    Ends,
}

/// Signals whose default action is to do nothing. A ULP cannot be stopped either.
const HARMLESS: [i32; 7] = [
    libc::SIGCHLD,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

impl Ulp {
    /// Delivers a signal to the ULP, as to a process. `number` is the kernel's.
    ///
    /// The caller acts on the result.
    pub fn signal(&mut self, number: i32) -> Signalled {
        let Some(bit) = u32::try_from(number - 1).ok().and_then(|shift| 1_u64.checked_shl(shift))
        else {
            return Signalled::None;
        };
        let is = |word| self.word(word) & bit != 0;
        let comes = match number {
            libc::SIGKILL => return Signalled::Ends,
            libc::SIGSTOP => return Signalled::Ignored,
            _ if is(TABLE_WAITED) => Signalled::Comes,
            _ if is(TABLE_BLOCKED) => Signalled::Kept,
            _ if is(TABLE_HANDLED) => Signalled::Comes,
            _ if is(TABLE_IGNORED) || HARMLESS.contains(&number) => return Signalled::Ignored,
            _ => return Signalled::Ends,
        };
        self.set_word(TABLE_SIGNALS, self.word(TABLE_SIGNALS) | bit);
        comes
    }

    /// Returns `true` if a signal is pending that is not blocked, so that the ULP must not sleep.
    ///
    /// A signal that the ULP waits for counts even if it is blocked.
    pub fn is_signalled(&self) -> bool {
        let come = self.word(TABLE_SIGNALS);
        come != 0 && come & (!self.word(TABLE_BLOCKED) | self.word(TABLE_WAITED)) != 0
    }

    /// Returns `true` if a pending signal is to be handled as soon as possible, before the ULP
    /// waits.
    ///
    /// Signals that the ULP waits for itself do not count.
    pub fn handles(&self) -> bool {
        let come = self.word(TABLE_SIGNALS);
        come != 0 && come & !self.word(TABLE_BLOCKED) & !self.word(TABLE_WAITED) != 0
    }

    /// Returns `true` if there is a signal that the ULP handles and does not block, or waits for.
    pub fn expects_signals(&self) -> bool {
        self.word(TABLE_HANDLED) & !self.word(TABLE_BLOCKED) | self.word(TABLE_WAITED) != 0
    }
}
