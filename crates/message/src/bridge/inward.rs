//! From a sender on another host to the queue of its receiver here.

use super::batch::{self, message_at};
use crate::Rank;
use crate::member::{Member, MemberEvent};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use upcall_net::FrameBody;
use upcall_os::doorbell::Doorbell;
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_sched::Domain;
use upcall_sched::post::Post;
use upcall_sched::ringer::Ringer;
use upcall_shm::direct::{Outgoing, SendRefusal};
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
}

/// Whether nothing had ended before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstEnd {
    Yes,
    No,
}

/// The sending end of the queue from which the member takes the messages.
struct InwardQueue {
    queue: Outgoing<Mailbag>,
    steps: RegionView<Steps>,
    doorbell: Doorbell,
    safe_doorbell: &'static SafeDoorbell,
    ringer: Ringer,
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
    /// that were passed on.
    pub(super) fn pass_on(&mut self, member: &Member, from: Rank, now: Instant) -> usize {
        let mut bytes = 0;
        let passed = self.pass(member, from, &mut bytes);
        if bytes > 0
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
                let next = if bytes > 0 { FIRST_LOOK } else { (2 * last).min(LAST_LOOK) };
                self.looks = Some((now + next, next));
            }
        }
        bytes
    }

    fn pass(&mut self, member: &Member, from: Rank, bytes: &mut usize) -> Passed {
        while let Some(first) = self.waiting.front_mut() {
            if self.drops {
                if let FarArrival::Messages { body, at } = first {
                    *bytes += body.len - (*at * 8).min(body.len);
                }
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
                FarArrival::Messages { body, at } => {
                    while let Ok(Some(message)) = message_at(&body.words, *at) {
                        match queue.write(message.kind, message.payload) {
                            WroteMessage::Yes => {}
                            WroteMessage::NoRoom => return Passed::Waits,
                            // The member here has broken the rules, which its own end reports.
                            WroteMessage::Never => {}
                        }
                        *bytes += batch::size_of(message.payload.len());
                        *at = message.next;
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
        let theirs = theirs.map_err(io::Error::other)?;
        member.take_in(from, theirs, Doorbell::adopt(doorbell.as_fd().try_clone_to_owned()?)?)?;
        let steps = queue.steps();
        Ok(Self { queue: Outgoing::new(queue), steps, doorbell, safe_doorbell, ringer })
    }

    fn write(&mut self, kind: u16, payload: Span<'_>) -> WroteMessage {
        loop {
            match self.queue.describe(kind, payload.len()) {
                Ok(draft) => {
                    // The room has as many bytes.
                    let _ = payload.copy_to(draft.room());
                    draft.launch();
                    return WroteMessage::Yes;
                }
                Err(SendRefusal::Full | SendRefusal::Outsized) => {
                    if self.queue.buffered() >= SEGMENTS
                        || self.queue.divert_for(payload.len()).is_err()
                    {
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
