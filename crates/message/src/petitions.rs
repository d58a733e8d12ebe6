//! The requests of processes that are no members, as the member takes them.

use crate::group::Group;
use crate::petition::{MOST_WAITING, Petition};

impl Group {
    /// Takes the next request of a process that is no member ([`petition()`](crate::petition())).
    ///
    /// Petitions arrive as events do ([`event`](Self::event)). At most 16 wait.
    pub fn petition(&self) -> Option<Petition> {
        self.0.petitions.borrow_mut().pop_front()
    }

    /// Keeps a petition until it is asked for.
    pub(crate) fn asked(&self, petition: Petition) {
        let mut petitions = self.0.petitions.borrow_mut();
        if petitions.len() >= MOST_WAITING {
            return petition.refuse("too many requests wait: ask again later");
        }
        petitions.push_back(petition);
        drop(petitions);
        self.0.upcalls.wake();
    }
}
