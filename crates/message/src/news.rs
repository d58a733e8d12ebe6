//! The clerk's reports of other members, as the polling thread takes them in.

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

    /// Takes in the clerk's events.
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
                MemberEvent::Broke(rank, what) => self.broke(rank, what),
                MemberEvent::ReportsLoss(by, lost) => self.reports_loss(by, lost),
                MemberEvent::Joined(rank) => self.happened(Event::Joined { rank }),
                MemberEvent::Asked(petition) => self.asked(petition),
            }
        }
    }

    /// Handles a living member's refusal to read this one's queue.
    fn refused(&self, bringing: Bringing, refusal: QueueRefusal) {
        let outward = &mut *self.0.links[bringing.rank].borrow_mut();
        // If the path is closed already, its reason stays.
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

    /// Handles a breach of the protocol by a member on another host. What it had sent before is
    /// still to be taken.
    fn broke(&self, rank: Rank, what: String) {
        *self.0.links[rank].borrow_mut() = Outward::Closed(Why::Violation);
        self.0.member.account.refuses();
        self.happened(Event::Violation { rank, what });
        receiving::ended(&Driver(self), rank);
        self.0.upcalls.wake();
    }

    fn ended(&self, rank: Rank) {
        let outward = &mut *self.0.links[rank].borrow_mut();
        // A path that was closed for another reason keeps that reason.
        if !matches!(outward, Outward::Closed(_)) {
            *outward = Outward::Closed(Why::Ended);
        }
        // The event comes once, after the messages that the member had sent.
        if receiving::ended(&Driver(self), rank) {
            // A barrier no longer waits for it, even if its messages are still to be taken.
            self.0.upcalls.wake();
        } else {
            self.happened(Event::Ended { rank });
        }
    }
}
