//! Signals for one ULP: its table says what it does with each, and which have come.
//!
//! The host writes down what has come while no ULP runs; the image looks when a question returns.
//! So nothing can come between a look and the next question, and the host looks at a question
//! whether something is there: no signal is lost. One that was interrupted may be in the midst of a
//! look: so the image changes that word by one instruction each time, and handlers run only where
//! none of the library's functions is under way ([`Ulp::is_in_own_code`]).

use crate::layout::{TABLE_BLOCKED, TABLE_HANDLED, TABLE_IGNORED, TABLE_SIGNALS, TABLE_WAITED};
use crate::ulp::Ulp;

/// What becomes of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// There is none of this number.
    None,
    /// Nothing.
    Ignored,
    /// It waits until it is not blocked any more.
    Kept,
    /// It is handled as soon as the ULP goes on from a question: whatever that waits for is over.
    Comes,
    /// The ULP is to end by it.
    Ends,
}

/// Whose default is to do nothing; for a ULP cannot be stopped either.
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
    /// A signal comes, as for a process: its number, as the kernel has them. Whoever calls this
    /// sees to what comes of it.
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

    /// Whether a signal has come that it has not looked at: then it is not to sleep.
    pub fn is_signalled(&self) -> bool {
        let come = self.word(TABLE_SIGNALS);
        come != 0 && come & (!self.word(TABLE_BLOCKED) | self.word(TABLE_WAITED)) != 0
    }

    /// Whether one of them is to be handled as soon as it may be: then it is to wait for nothing
    /// before. A signal that it waits for itself is not.
    pub fn handles(&self) -> bool {
        let come = self.word(TABLE_SIGNALS);
        come != 0 && come & !self.word(TABLE_BLOCKED) & !self.word(TABLE_WAITED) != 0
    }

    /// Whether it does something of its own with any signal that may come: handles it, or waits for
    /// it.
    pub fn expects_signals(&self) -> bool {
        self.word(TABLE_HANDLED) & !self.word(TABLE_BLOCKED) | self.word(TABLE_WAITED) != 0
    }
}
