//! The users of an object: taken places, guests, and dead parties.
//!
//! The places of dead parties are not free yet.

use crate::guest::ObjectPeer;
use std::sync::Arc;
use upcall_sched::quota::is_bounded;
use upcall_shm::hybrid::PLACES;

#[derive(Default)]
pub(super) struct Register {
    /// The places that are taken, a bit for each.
    pub(super) places: [u64; PLACES as usize / 64],
    pub(super) guests: Vec<KnownGuest>,
    /// Dead parties that were buried, but that a holder of the lock may still be about to name.
    pub(super) dead: Vec<Dead>,
    /// The process that ended in the middle of the operation that tore the object.
    pub(super) torn_by: Option<u32>,
    /// The heir exists. It checks for work before it ends.
    pub(super) heir: bool,
}

pub(super) struct KnownGuest {
    pub(super) guest: Arc<ObjectPeer>,
    /// The clerk's keys for the guest's connection and for the end of its process.
    pub(super) keys: [Option<u64>; 2],
}

#[derive(Clone, Copy)]
pub(super) struct Dead {
    pub(super) place: u16,
    pub(super) pid: u32,
    pub(super) user: u32,
    pub(super) waited: bool,
}

impl Register {
    pub(super) fn take_place(&mut self) -> Option<u16> {
        let (number, word) =
            self.places.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let bit = word.trailing_ones();
        *word |= 1 << bit;
        Some(number as u16 * 64 + bit as u16)
    }

    /// Takes a place for a guest.
    ///
    /// All guests of one user, other than the home's own and root, have no more places together
    /// than are left for others. The places of a user's dead guests count until they are free.
    pub(super) fn take_place_for(&mut self, user: u32) -> Result<u16, String> {
        if is_bounded(user) {
            let living = self.guests.iter().map(|known| &known.guest);
            let living = living.filter(|guest| {
                guest.peer().uid == user && matches!(guest.place.get(), Some(Some(_)))
            });
            let theirs =
                living.count() + self.dead.iter().filter(|dead| dead.user == user).count() + 1;
            let taken: u32 = self.places.iter().map(|word| word.count_ones()).sum();
            let left = usize::from(PLACES).saturating_sub(taken as usize + 1);
            if theirs > left {
                return Err(format!(
                    "the processes of user {user} would have {theirs} of its {} places, more than \
                     would be left for others",
                    PLACES - 1
                ));
            }
        }
        self.take_place().ok_or_else(|| format!("all its {} places are taken", PLACES - 1))
    }

    pub(super) fn give_place(&mut self, place: u16) {
        self.places[usize::from(place) / 64] &= !(1 << (place % 64));
    }
}
