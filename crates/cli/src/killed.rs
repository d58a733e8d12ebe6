//! Processes of tests.

use std::process::Child;

/// A process that is killed on drop, also when its test panics.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
