//! The operation that most tests of invocations use.

use upcall_home::{DataError, Operation, Place};

/// Adds to the number; fit for interrupts.
pub struct Add;

impl Operation for Add {
    type Of = u64;
    type Args<'a> = u64;
    type Reply = u64;
    const NAME: &'static str = "add";

    fn run(number: Place<'_, u64>, more: u64) -> Result<u64, DataError> {
        number.update(|number| number + more)
    }
}
