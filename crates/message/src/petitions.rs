//! The requests of processes that are no members, as the member takes them.

use crate::group::Group;
use crate::petition::Petition;

impl Group {
    /// Takes the next request of a process that is no member ([`petition()`](crate::petition())).
    ///
    /// Petitions arrive as events do ([`event`](Self::event)). While 16 are not answered, further
    /// ones are refused. If the other process gives up before, its petition does not appear here.
    pub fn petition(&self) -> Option<Petition> {
        let mut petitions = self.0.petitions.borrow_mut();
        petitions.retain(|petition| !petition.is_gone());
        petitions.pop_front()
    }

    /// Keeps a petition until it is asked for.
    pub(crate) fn asked(&self, petition: Petition) {
        self.0.petitions.borrow_mut().push_back(petition);
        self.0.upcalls.wake();
    }
}
