//! What the clerk reports of other members, as the polling thread takes it in.

use crate::Rank;
use crate::event::Event;
use crate::group::Group;
use crate::link::{Outward, Why};
use crate::member::{Bringing, MemberEvent, QueueRefusal};
use crate::proto::receiving;
use crate::receiving::Driver;
use std::rc::Rc;
use std::time::Instant;

impl Group {
    #[inline]
    pub(crate) fn attend_if_there_is_news(&self) {
        if self.0.member.has_news() {
            self.hear();
        }
    }

    /// Hears what the clerk has to tell.
    #[cold]
    fn hear(&self) {
        for news in self.0.member.news() {
            match news {
                MemberEvent::Brought(inbound) => {
                    self.0.barrier.brought(inbound.from(), inbound.with.steps.clone());
                    self.0.senders.add(Rc::from(inbound));
                }
                MemberEvent::Reads(bringing, ringer) => {
                    if let Outward::Open(link) = &mut *self.0.links[bringing.rank].borrow_mut()
                        && link.is_brought_by(bringing)
                    {
                        link.reads(ringer);
                    }
                }
                MemberEvent::Refuses(bringing, refusal) => self.refused(bringing, refusal),
                MemberEvent::Unheard(rank) => {
                    if let Outward::Open(link) = &*self.0.links[rank].borrow() {
                        link.hear(&self.0.member);
                    }
                }
                MemberEvent::Ended(rank) => self.ended(rank),
            }
        }
    }

    /// A member that lives does not read this one's queue.
    fn refused(&self, bringing: Bringing, refusal: QueueRefusal) {
        let outward = &mut *self.0.links[bringing.rank].borrow_mut();
        // If it is closed, the reason for which it was closed stands.
        let Outward::Open(link) = outward else { return };
        match refusal {
            QueueRefusal::ForNow(_) => {
                if let Some(due) = link.refuse(bringing, Instant::now()) {
                    self.0.offers.refused(due);
                    self.0.upcalls.wake();
                }
            }
            QueueRefusal::ForGood(why) if link.is_brought_by(bringing) => {
                *outward = Outward::Closed(Why::Refused(why))
            }
            QueueRefusal::ForGood(_) => {}
        }
    }

    fn ended(&self, rank: Rank) {
        let outward = &mut *self.0.links[rank].borrow_mut();
        // Who was left for another reason was left for that.
        if !matches!(outward, Outward::Closed(_)) {
            *outward = Outward::Closed(Why::Ended);
        }
        // The event comes once, after the messages that the member had sent.
        if receiving::ended(&Driver(self), rank) {
            // A barrier waits for it no longer, also if its messages are still to be taken.
            self.0.upcalls.wake();
        } else {
            self.happened(Event::Ended { rank });
        }
    }
}
