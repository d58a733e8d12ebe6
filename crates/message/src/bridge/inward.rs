//! From a sender on another host to the queue of its receiver here.

use super::batch::{self, message_at};
use crate::Rank;
use crate::far::LONG;
use crate::member::{Member, MemberEvent};
use crate::parting::{Inserted, LostRanks};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use upcall_net::FrameBody;
use upcall_os::doorbell::Doorbell;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_sched::Domain;
use upcall_sched::post::Post;
use upcall_sched::ringer::Ringer;
use upcall_shm::direct::{HandedPayload, HandedPayloads, Outgoing, SendRefusal};
use upcall_shm::mailbag::Mailbag;
use upcall_shm::region::RegionView;
use upcall_shm::span::Span;
use upcall_shm::station::PeerStation;
use upcall_shm::steps::{Steps, StepsReport};

/// Maximum number of segments in which messages wait for a member that does not take them.
const SEGMENTS: u64 = 2;

/// Time between two looks whether a member has made room: the first, and the longest.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(64);

/// Why nothing more comes from a member.
#[derive(Clone, Debug)]
pub(super) enum PairLost {
    /// It has left, or ended, or its host was not reached for too long.
    Gone,
    /// It broke the protocol.
    Broke(String),
    /// This member knows.
    Told,
}

impl PairLost {
    /// What to tell the member here, once: `None` within for an end, or the violation.
    pub(super) fn tell(&mut self) -> Option<Option<String>> {
        match std::mem::replace(self, Self::Told) {
            Self::Gone => Some(None),
            Self::Broke(what) => Some(Some(what)),
            Self::Told => None,
        }
    }
}

/// Something that has arrived for a member here.
pub(super) enum FarArrival {
    /// Messages, of which those before word `at` were passed on.
    Messages {
        body: FrameBody,
        at: usize,
    },
    Report(StepsReport),
    /// The sender has lost this member.
    Loss(Rank),
}

/// What has arrived for a member here, and is not passed on yet.
#[derive(Default)]
pub(super) struct Inward {
    queue: Option<InwardQueue>,
    waiting: VecDeque<FarArrival>,
    /// When to look again whether there is room, and the time after that.
    looks: Option<(Instant, Duration)>,
    /// Nothing more will arrive; the member learns of it after what waits.
    lost: Option<PairLost>,
    /// The member takes nothing more.
    drops: bool,
    /// The losses that the sender has reported.
    reported: LostRanks,
}

/// A report of a loss that no member makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrongLoss;

/// Whether nothing had ended before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstEnd {
    Yes,
    No,
}

/// The sending end of the queue from which the member takes the messages.
struct InwardQueue {
    queue: Outgoing<Mailbag>,
    /// The bodies of long messages, which the queue does not hold.
    handed: Arc<HandedPayloads>,
    steps: RegionView<Steps>,
    doorbell: Doorbell,
    safe_doorbell: &'static SafeDoorbell,
    ringer: Ringer,
}

/// The way back to the sender, which gets room once the member has taken a message.
pub(super) trait RoomGiver: fmt::Debug + Send + Sync {
    /// Gives room for so many bytes back, once it is enough.
    fn gives_room(&self, bytes: usize);
}

/// The body of one long message, which the member reads where it is.
#[derive(Debug)]
struct HandedBody {
    body: FrameBody,
    room: Weak<dyn RoomGiver>,
}

impl HandedPayload for HandedBody {
    fn words(&self) -> &[u64] {
        self.body.words.get(1..).unwrap_or_default()
    }
}

/// The member has taken the message, which makes room for others.
impl Drop for HandedBody {
    fn drop(&mut self) {
        if let Some(room) = self.room.upgrade() {
            room.gives_room(self.body.len);
        }
    }
}

/// What was passed on.
#[derive(Clone, Copy, Debug, Default)]
struct PassedOn {
    /// Number of bytes that have left this side's memory.
    bytes: usize,
    /// Whether the queue has anything new.
    any: bool,
}

/// How far what has arrived was passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    All,
    /// The member has to make room, or there is no memory now.
    Waits,
}

impl Inward {
    /// Adds what has arrived. Nothing is added once the member knows that nothing more comes.
    pub(super) fn add(&mut self, arrival: FarArrival) {
        if self.lost.is_some() {
            return;
        }
        match (self.waiting.back_mut(), arrival) {
            // A report says what those before it have said, so no more than one waits.
            (Some(FarArrival::Report(last)), FarArrival::Report(next)) => *last = next,
            (_, arrival) => self.waiting.push_back(arrival),
        }
    }

    /// Adds the sender's report that it has lost a member.
    ///
    /// # Errors
    /// It has reported that before, or no group has such a rank.
    pub(super) fn add_loss(&mut self, lost: Rank) -> Result<(), WrongLoss> {
        match self.reported.insert(lost) {
            Inserted::New => {
                self.add(FarArrival::Loss(lost));
                Ok(())
            }
            Inserted::Before | Inserted::NoRank => Err(WrongLoss),
        }
    }

    /// Nothing more will arrive. The first reason stays. Returns whether this is the first.
    pub(super) fn ends(&mut self, lost: PairLost) -> FirstEnd {
        let first = if self.lost.is_none() { FirstEnd::Yes } else { FirstEnd::No };
        self.lost.get_or_insert(lost);
        first
    }

    /// The member takes nothing more: what arrives is dropped.
    pub(super) fn drops_all(&mut self) {
        self.drops = true;
    }

    /// When to look again whether the member has made room.
    pub(super) fn due(&self) -> Option<Instant> {
        self.looks.map(|(at, _)| at)
    }

    /// Passes on what waits, as far as the member has room. Returns the number of bytes of messages
    /// that were passed on, without those that the member has yet to take.
    pub(super) fn pass_on(
        &mut self,
        member: &Member,
        (from, room): (Rank, &Weak<dyn RoomGiver>),
        now: Instant,
    ) -> usize {
        let mut done = PassedOn::default();
        let passed = self.pass(member, (from, room), &mut done);
        if done.any
            && let Some(queue) = &self.queue
        {
            queue.wake();
        }
        match passed {
            Passed::All => {
                self.looks = None;
                // Later calls find that the member knows.
                if let Some(lost) = self.lost.as_mut().and_then(PairLost::tell) {
                    member.tell(match lost {
                        None => MemberEvent::Ended(from),
                        Some(what) => MemberEvent::Broke(from, what),
                    });
                }
            }
            Passed::Waits => {
                let (_, last) = self.looks.unwrap_or((now, FIRST_LOOK / 2));
                let next = if done.any { FIRST_LOOK } else { (2 * last).min(LAST_LOOK) };
                self.looks = Some((now + next, next));
            }
        }
        done.bytes
    }

    fn pass(
        &mut self,
        member: &Member,
        (from, room): (Rank, &Weak<dyn RoomGiver>),
        done: &mut PassedOn,
    ) -> Passed {
        while let Some(first) = self.waiting.front_mut() {
            if self.drops {
                if let FarArrival::Messages { body, at } = first {
                    done.bytes += body.len - (*at * 8).min(body.len);
                }
                self.waiting.pop_front();
                continue;
            }
            if let FarArrival::Loss(lost) = first {
                member.tell(MemberEvent::ReportsLoss(from, *lost));
                self.waiting.pop_front();
                continue;
            }
            let queue = match &mut self.queue {
                Some(queue) => queue,
                None => match InwardQueue::open(member, from) {
                    Ok(queue) => self.queue.insert(queue),
                    Err(_) => return Passed::Waits,
                },
            };
            match first {
                FarArrival::Report(report) => queue.report(*report),
                FarArrival::Loss(_) => {}
                FarArrival::Messages { body, at } => {
                    while let Ok(Some(message)) = message_at(&body.words, *at) {
                        let (kind, len, next) = (message.kind, message.payload.len(), message.next);
                        let is_alone = *at == 0 && next == body.words.len() && len >= LONG;
                        let wrote = match is_alone {
                            true => queue.hand(kind, len, body, room),
                            false => queue.write(kind, message.payload),
                        };
                        match wrote {
                            WroteMessage::Yes => done.any = true,
                            WroteMessage::NoRoom => return Passed::Waits,
                            // The member here has broken the rules, which its own end reports.
                            WroteMessage::Never => {}
                        }
                        if body.words.is_empty() {
                            break;
                        }
                        done.bytes += batch::size_of(len);
                        *at = next;
                    }
                }
            }
            self.waiting.pop_front();
        }
        Passed::All
    }
}

/// Whether a message was written to a queue.
enum WroteMessage {
    Yes,
    NoRoom,
    Never,
}

impl InwardQueue {
    /// Makes a queue, and gives its receiving end to the member.
    fn open(member: &Member, from: Rank) -> io::Result<Self> {
        let (queue, doorbell) = (Mailbag::create()?, Doorbell::new()?);
        let safe_doorbell = SafeDoorbell::current()?;
        let station = Domain::current()?.station().as_fd().try_clone_to_owned()?;
        let station = PeerStation::join(station).map_err(io::Error::other)?;
        let ringer = Ringer::new(station, member.post.line(), Post::makes_fences());
        let theirs = Mailbag::join(queue.as_fd().try_clone_to_owned()?);
        let handed = Arc::<HandedPayloads>::default();
        let theirs = theirs.map_err(io::Error::other)?.with_handed(handed.clone());
        member.take_in(from, theirs, Doorbell::adopt(doorbell.as_fd().try_clone_to_owned()?)?)?;
        let steps = queue.steps();
        Ok(Self { queue: Outgoing::new(queue), handed, steps, doorbell, safe_doorbell, ringer })
    }

    fn write(&mut self, kind: u16, payload: Span<'_>) -> WroteMessage {
        self.launch(payload.len(), |queue, _| {
            let draft = queue.describe(kind, payload.len())?;
            // The room has as many bytes.
            let _ = payload.copy_to(draft.room());
            draft.launch();
            Ok(())
        })
    }

    /// Hands over the body of one message, whose payload has `len` bytes.
    fn hand(
        &mut self,
        kind: u16,
        len: usize,
        body: &mut FrameBody,
        room: &Weak<dyn RoomGiver>,
    ) -> WroteMessage {
        self.launch(0, |queue, handed| {
            queue.hand((kind, len as u32), handed, || {
                Arc::new(HandedBody { body: std::mem::take(body), room: room.clone() })
            })
        })
    }

    /// Launches a message that takes `len` bytes of the queue besides its header.
    fn launch(
        &mut self,
        len: usize,
        mut attempt: impl FnMut(&mut Outgoing<Mailbag>, &HandedPayloads) -> Result<(), SendRefusal>,
    ) -> WroteMessage {
        loop {
            match attempt(&mut self.queue, &self.handed) {
                Ok(()) => return WroteMessage::Yes,
                Err(SendRefusal::Full | SendRefusal::Outsized) => {
                    if self.queue.buffered() >= SEGMENTS || self.queue.divert_for(len).is_err() {
                        return WroteMessage::NoRoom;
                    }
                }
                Err(_) => return WroteMessage::Never,
            }
        }
    }

    fn report(&self, report: StepsReport) {
        self.steps.repeat(report);
        self.wake();
    }

    /// To be called after messages and reports.
    fn wake(&self) {
        self.ringer.launched(self.safe_doorbell, &self.doorbell);
    }
}
