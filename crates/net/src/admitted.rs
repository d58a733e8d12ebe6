//! The count of admitted connections, by the account that is charged with them.

use crate::lobby::ConnectionOwner;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use upcall_os::lock::KernelMutex;

/// Maximum number of admitted connections of a listener, unless another is chosen. One user, or one
/// address of another machine, has at most as many as are left for others: half of them if it is
/// alone.
const MOST_ADMITTED: usize = 256;

/// The admitted connections of a listener.
#[derive(Clone)]
pub struct Admissions {
    counts: Arc<KernelMutex<HashMap<ConnectionOwner, usize>>>,
    most: usize,
}

impl fmt::Debug for Admissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Admissions({} accounts)", self.counts.lock().len())
    }
}

impl Default for Admissions {
    fn default() -> Self {
        Self::of(MOST_ADMITTED)
    }
}

/// An admitted connection, counted while this exists.
#[derive(Debug)]
pub struct Admitted {
    all: Admissions,
    account: ConnectionOwner,
}

impl Admissions {
    /// Admits at most this number of connections.
    pub fn of(most: usize) -> Self {
        Self { counts: Arc::default(), most }
    }

    /// Counts one more connection of an account.
    ///
    /// # Errors
    /// The account has as many as it may have.
    pub fn admit(&self, account: ConnectionOwner) -> Result<Admitted, String> {
        let (mut counts, most) = (self.counts.lock(), self.most);
        let all = counts.values().sum::<usize>();
        let own = counts.get(&account).copied().unwrap_or(0);
        if own >= most.saturating_sub(all + 1) {
            return Err(format!(
                "this user, address or host would have {} connections to it, more than would be \
                left of {most} for others",
                own + 1
            ));
        }
        counts.insert(account.clone(), own + 1);
        Ok(Admitted { all: self.clone(), account })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = self.all.counts.lock();
        if let Entry::Occupied(mut own) = counts.entry(self.account.clone()) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Admits as many connections as this account may have.
    fn all_of(inside: &Admissions, user: u32) -> Vec<Admitted> {
        std::iter::from_fn(|| inside.admit(ConnectionOwner::User(user)).ok()).collect()
    }

    #[test]
    fn whoever_takes_all_it_can_get_leaves_as_many_connections_for_others() {
        let inside = Admissions::default();
        let mut all: Vec<_> = (0..7).map(|user| all_of(&inside, user)).collect();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [128, 64, 32, 16, 8, 4, 2]);
        let text = inside.admit(ConnectionOwner::User(1)).unwrap_err();
        assert!(text.contains("have 65 connections") && text.contains("256"), "{text}");
        all.remove(0);
        assert_eq!(all_of(&inside, 100).len(), 65);
        drop(all);
        assert!(inside.counts.lock().is_empty());
        assert_eq!(all_of(&Admissions::of(1024), 1).len(), 512);
    }
}
