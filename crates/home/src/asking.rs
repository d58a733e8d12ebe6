//! The caller's side of invocations.
//!
//! A caller spins for some microseconds and then sleeps at a post. On a virtual processor other
//! threads run during the wait, and the caller polls again and again, in pauses that grow with the
//! time that has passed. If its kernel thread serves objects itself, it sleeps at the post where it
//! is notified of their requests, and runs the short operations that others wait for. So homes can
//! invoke each other (Psyche, section 3.1).

use crate::away::{HomeConnection, connect};
use crate::error::FindError;
use crate::failure::InvokeError;
use crate::here;
use crate::interrupts::keep_off;
use crate::lane::{DONE, InvocationLane, LaneDirection, MessageBuffer};
use crate::wire::{InvokeFailure, ObjectRequest, OpenReply, OperationKind, VERSION};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use upcall_directory::clerk::Clerk;
use upcall_directory::policy::Policy;
use upcall_os::doorbell::Doorbell;
use upcall_os::fault::{Point, point};
use upcall_os::safe_doorbell::SafeDoorbell;
use upcall_sched::look::ReplyTimer;
use upcall_sched::post::Post;
use upcall_sched::ringer::Ringer;
use upcall_sched::{Domain, Pacing};
use upcall_shm::region::RegionView;
use upcall_shm::single::SingleCaller;
use upcall_shm::slot::{NO_ASTACK, Slot, SlotMessage};
use upcall_shm::station::PeerStation;

/// On a virtual processor: number of turns that other threads get before the caller pauses.
const TURNS: u32 = 1000;
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Number of polls before the first look at the clock.
const LOOKS: u32 = 256;

const REPLY_TIMERS: usize = 16;

/// A kernel thread's lane to a home; see the module.
pub(crate) struct InvocationClient {
    lane: InvocationLane,
    caller: SingleCaller<RegionView<Slot>>,
    ringer: Ringer,
    /// Wakes the home, through the safe doorbell if there is one.
    theirs: Doorbell,
    safe_doorbell: Option<&'static SafeDoorbell>,
    /// Rung by the home.
    own: Doorbell,
    /// The post where the caller sleeps.
    post: Arc<Post>,
    /// `true` if the thread serves objects at this post.
    serves: bool,
    /// The thread that sleeps there.
    thread: usize,
    operations: HashMap<String, (u16, OperationKind)>,
    /// The operation that was requested last.
    last: Option<(&'static str, (u16, OperationKind))>,
    /// How long the replies take, by operation; several operations may share a timer.
    reply_timer: [ReplyTimer; REPLY_TIMERS],
    /// The last reply.
    copy: MessageBuffer,
    far: Arc<HomeConnection>,
    key: u64,
    /// `true` if a reply is still to arrive for which no caller waits any more.
    stale: Cell<bool>,
}

/// A number that no other living kernel thread has.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// The post of a kernel thread that serves nothing, which the thread uses for all its waits.
fn own_post() -> io::Result<Arc<Post>> {
    thread_local!(static OWN: RefCell<Weak<Post>> = const { RefCell::new(Weak::new()) });
    OWN.with_borrow_mut(|own| {
        if let Some(post) = own.upgrade() {
            return Ok(post);
        }
        let post = Arc::new(Post::take()?);
        *own = Arc::downgrade(&post);
        Ok(post)
    })
}

impl InvocationClient {
    /// Opens a lane to the home of this object.
    pub(crate) fn open(name: &str, shape: u64, accepts: &Policy) -> Result<Self, FindError> {
        let unreachable = |why: String| FindError::Unreachable { name: name.into(), why };
        let failed = |error: std::io::Error| unreachable(error.to_string());
        let lane = InvocationLane::create().map_err(failed)?;
        let (theirs, own) = (Doorbell::new().map_err(failed)?, Doorbell::new().map_err(failed)?);
        let here = here::post();
        let serves = here.is_some();
        let post = here.map_or_else(own_post, Ok).map_err(failed)?;
        post.add(&own).map_err(failed)?;
        let station = Domain::current().map_err(failed)?.station();
        let request = ObjectRequest::Invoke {
            version: VERSION,
            shape,
            line: post.line(),
            makes_fences: Post::makes_fences(),
        };
        let descriptors = [lane.as_fd(), theirs.as_fd(), own.as_fd(), station.as_fd()];
        let connected = connect(name, accepts, &request, &descriptors)?;
        let OpenReply::Invokes { line, makes_fences, operations } = connected.answer else {
            return Err(unreachable("its answer is of an unexpected kind".into()));
        };
        let station = connected.descriptors.into_iter().next();
        let station =
            station.ok_or_else(|| unreachable("no station came with its answer".into()))?;
        let station = PeerStation::join(station).map_err(|error| unreachable(error.to_string()))?;
        let (far, key) =
            HomeConnection::watch(connected.connection, Some(post.clone())).map_err(failed)?;
        let numbered = operations.into_iter().enumerate();
        Ok(Self {
            caller: SingleCaller::new(lane.slot()),
            lane,
            ringer: Ringer::new(station, line, makes_fences),
            theirs,
            safe_doorbell: SafeDoorbell::current().ok(),
            own,
            post,
            serves,
            thread: this_thread(),
            operations: numbered.map(|(at, (name, kind))| (name, (at as u16, kind))).collect(),
            last: None,
            reply_timer: [ReplyTimer::default(); REPLY_TIMERS],
            copy: MessageBuffer::with(Vec::new()),
            far,
            key,
            stale: Cell::new(false),
        })
    }

    /// Returns `true` if this thread can use the lane, because it sleeps where its doorbell is
    /// rung.
    pub(crate) fn is_of_this_thread(&self) -> bool {
        let sleeps_here = here::post().map_or(!self.serves, |here| Arc::ptr_eq(&here, &self.post));
        sleeps_here && self.thread == this_thread()
    }

    /// Returns `true` if the lane can be used: no abandoned reply is still on its way.
    pub(crate) fn is_free(&self) -> bool {
        if self.stale.get() && self.caller.take(&mut SlotMessage::new(0, 0, NO_ASTACK)) {
            self.stale.set(false);
        }
        !self.stale.get()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.far.has_ended()
    }

    /// Asks the home to run an operation, and waits for its reply.
    #[track_caller]
    pub(crate) fn ask<R: DeserializeOwned>(
        &mut self,
        name: &'static str,
        kind: OperationKind,
        args: &impl Serialize,
        patience: Option<Duration>,
    ) -> Result<R, InvokeError> {
        let number = self.number(name, kind)?;
        if self.far.has_ended() {
            return Err(InvokeError::Ended { asked: false });
        }
        let message = self.lane.message(number, args, LaneDirection::There)?;
        let reply = self.send_and_wait(&message, patience)?;
        let wrong = || InvokeError::Malformed("the reply has no values".into());
        let bytes =
            self.lane.bytes(&reply, LaneDirection::Back, &mut self.copy).ok_or_else(wrong)?;
        let malformed = |error: postcard::Error| InvokeError::Malformed(error.to_string());
        if reply.tag() == DONE {
            return postcard::from_bytes(bytes).map_err(malformed);
        }
        Err(InvokeError::said(
            name,
            postcard::from_bytes::<InvokeFailure>(bytes).map_err(malformed)?,
        ))
    }

    /// The home's number for an operation.
    #[inline]
    fn number(&mut self, name: &'static str, kind: OperationKind) -> Result<u16, InvokeError> {
        let found = self.last.filter(|last| std::ptr::eq(last.0, name)).map(|last| last.1);
        let Some((number, registered)) = found.or_else(|| self.operations.get(name).copied())
        else {
            return Err(InvokeError::Unknown {
                name,
                known: self.operations.keys().cloned().collect(),
            });
        };
        self.last = Some((name, (number, registered)));
        if registered == kind { Ok(number) } else { Err(InvokeError::Kind { name }) }
    }

    fn send_and_wait(
        &mut self,
        message: &SlotMessage,
        patience: Option<Duration>,
    ) -> Result<SlotMessage, InvokeError> {
        self.caller.send(message);
        point(Point::InvocationSent);
        match self.safe_doorbell {
            Some(safe_doorbell) => self.ringer.launched(safe_doorbell, &self.theirs),
            None => self.theirs.notify(),
        }
        // Most replies arrive soon, and need no look at the clock.
        let reply_timer = &mut self.reply_timer[usize::from(message.tag()) % REPLY_TIMERS];
        let soon = upcall_thread::on_virtual_processor().is_none()
            && reply_timer.await_answer(LOOKS, || self.caller.waits());
        let mut reply = SlotMessage::new(0, 0, NO_ASTACK);
        if soon && self.caller.take(&mut reply) {
            return Ok(reply);
        }
        let begun = Instant::now();
        if self.wait(begun, patience) && self.caller.take(&mut reply) {
            return Ok(reply);
        }
        if self.far.has_ended() {
            return Err(InvokeError::Ended { asked: true });
        }
        self.stale.set(true);
        Err(InvokeError::Busy { waited: begun.elapsed() })
    }

    /// Waits for the reply. Returns `false` if the home has ended, or the caller's patience has.
    fn wait(&self, begun: Instant, patience: Option<Duration>) -> bool {
        let there = || self.caller.waits() || self.far.has_ended();
        if upcall_thread::on_virtual_processor().is_some() {
            let (mut turns, mut pause) = (0, SHORTEST);
            while !there() {
                if patience.is_some_and(|patience| begun.elapsed() >= patience) {
                    return false;
                }
                if turns < TURNS {
                    turns += 1;
                    upcall_thread::yield_now();
                } else {
                    upcall_thread::sleep(pause);
                    pause = (begun.elapsed() / 16).clamp(SHORTEST, LONGEST_PAUSE);
                }
            }
            return self.caller.waits();
        }
        let look = || {
            if there() {
                return true;
            }
            if self.serves && here::has_work() {
                let _kept_off = keep_off();
                here::serve(false);
            }
            there()
        };
        self.post.wait(Pacing::Adaptive, patience, look);
        self.caller.waits()
    }
}

impl Drop for InvocationClient {
    fn drop(&mut self) {
        self.post.remove(&self.own);
        self.far.hang_up();
        if let Ok(clerk) = Clerk::current() {
            clerk.forget(self.key);
        }
    }
}
