//! The times that the idle policy assumes, scaled to the machine.
//!
//! The time of a yield, a hand-off or a move grows with the time of a system call. The times below
//! hold where the kernel answers a call within [`USUAL_CALL`]. Where it takes longer, because a
//! supervisor catches system calls, they grow in proportion. The call is measured once per process
//! ([`cost`]).
//!
//! Two times are no costs, and are the same everywhere: [`LONGEST`](crate::pacing::LONGEST) is a
//! promise about idle domains, and the kernel's time slices are as long under a supervisor.

use std::time::Duration;
use upcall_os::cost;

/// Maximum time of a system call that finds nothing to do, where no supervisor catches it.
const USUAL_CALL: Duration = Duration::from_nanos(300);

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitCosts {
    /// Minimum time of a yield that another thread takes: less than two switches of the CPU.
    pub taken_yield: Duration,
    /// Maximum time of yields to a server on this CPU that answers at once. If they take longer, a
    /// third thread took the CPU, or the procedure is one beside which a sleep is cheap.
    pub hand_over: Duration,
    /// Time that a server takes to move to another CPU, as a rule. Its callers poll for that time.
    pub server_moves: Duration,
}

impl WaitCosts {
    /// The costs under a kernel that answers within [`USUAL_CALL`].
    pub const USUAL: Self = Self {
        taken_yield: Duration::from_nanos(900),
        hand_over: Duration::from_micros(20),
        server_moves: Duration::from_micros(150),
    };

    /// The costs on this machine.
    pub fn measured() -> Self {
        Self::of(cost::system_call())
    }

    /// The costs on a machine whose system calls take `system_call`.
    fn of(system_call: Duration) -> Self {
        let usual = USUAL_CALL.as_nanos() as u32;
        let call = u32::try_from(system_call.as_nanos()).unwrap_or(u32::MAX).max(usual);
        let grown = |time: Duration| time.saturating_mul(call) / usual;
        let Self { taken_yield, hand_over, server_moves } = Self::USUAL;
        Self {
            taken_yield: grown(taken_yield),
            hand_over: grown(hand_over),
            server_moves: grown(server_moves),
        }
    }
}

impl Default for WaitCosts {
    fn default() -> Self {
        Self::USUAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_grow_with_system_calls_and_are_never_less_than_usual() {
        assert_eq!(WaitCosts::of(Duration::ZERO), WaitCosts::USUAL);
        assert_eq!(WaitCosts::of(USUAL_CALL), WaitCosts::USUAL);
        let slow = WaitCosts::of(USUAL_CALL * 7);
        assert_eq!(slow.taken_yield, WaitCosts::USUAL.taken_yield * 7);
        assert_eq!(slow.hand_over, WaitCosts::USUAL.hand_over * 7);
        assert_eq!(slow.server_moves, WaitCosts::USUAL.server_moves * 7);
        assert!(WaitCosts::of(Duration::MAX).server_moves > Duration::from_secs(1));
    }
}
