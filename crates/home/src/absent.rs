//! Waiting for a home that has not made its object yet.

use crate::error::FindError;
use std::time::Duration;
use upcall_directory::absent::{self, Absence};
use upcall_directory::names::NotFound;

/// Repeats `find` until it finds the object, until it fails although a home is there, or until
/// `limit` is over. The error of the last attempt has a hint where the object may be.
pub(crate) fn wait_while_absent<H>(
    limit: Duration,
    find: impl FnMut() -> Result<H, FindError>,
) -> Result<H, FindError> {
    absent::wait_while_absent(limit, find, absence).map_err(FindError::with_hint)
}

/// What is absent, if the error says that no home is there now, and one may be there later.
fn absence(error: &FindError) -> Option<Absence<'_>> {
    match error {
        FindError::Name(NotFound::Unknown { folder, .. }) => Some(Absence::Name(folder)),
        FindError::Absent { .. } => Some(Absence::Holder),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::homed::Homed;
    use std::sync::mpsc;

    /// Longest wait for a home that is about to start, in seconds.
    const GUARD: Duration = Duration::from_secs(60);

    #[test]
    fn a_guest_looks_again_when_a_home_has_made_its_object() {
        let name = &format!("absent-{}", std::process::id());
        let (looked, looks) = mpsc::channel();
        std::thread::scope(|scope| {
            let found = scope.spawn(move || {
                wait_while_absent(GUARD, || {
                    let found = Homed::<u64>::find(name);
                    let _ = looked.send(());
                    found.map(drop)
                })
            });
            for _ in 0..2 {
                looks.recv().unwrap();
            }
            let home = Homed::<u64>::create(name).with(|_| Ok(())).unwrap();
            assert!(found.join().unwrap().is_ok());
            drop(home);
        });
    }
}
