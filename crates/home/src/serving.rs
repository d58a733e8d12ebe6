//! The home's side of invocations: runs operations for others, at its own points.
//!
//! Source: Psyche, sections 2.1 and 3.1 (P1 to P3, P7 here). There an urgent invocation interrupts
//! the home's processor, unless it masks invocations, and an ordinary one becomes a process there.
//!
//! Here one thread of the home serves an object. A virtual processor serves by itself, at its safe
//! points ([`arrivals`](upcall_sched::arrivals)), and a procedure that blocks there is simply a
//! user-level thread. An ordinary kernel thread serves at explicit points ([`Serving::poll`],
//! [`Serving::run_until`]), and while it waits for an invocation of its own. It runs short
//! operations only, and hands procedures to other threads ([`crew`]). While it
//! [masks](Serving::mask), nothing is run: requests wait in their lanes, and are run at the end of
//! the mask. Some operations can also interrupt its computation, by a signal ([`interrupts`]).
//!
//! Each caller has a lane of its own ([`lane`](crate::lane)). The clerk accepts the lane, and
//! passes it to this thread as an event. Short operations take the object's lock as the home does,
//! so they wait only for its holder.

mod crew;
mod in_interrupts;

use crate::here::{self, ServedObject};
use crate::homed::Homed;
use crate::interrupts::{self, keep_off};
use crate::lane::{InvocationLane, LaneDirection, MessageBuffer};
use crate::object::HomeObject;
use crate::operation::{HomeState, OperationBody, OperationEntry, Operations};
use crate::rules;
use crate::service_queue::{ServedLane, ServiceEvent, ServiceQueue};
use crate::types::Shared;
use crate::wire::{InvokeFailure, OperationKind};
use crew::{Crew, ProcedureOrder};
use in_interrupts::Rooms;
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::fault::{Point, point};
use upcall_sched::Attended;
use upcall_sched::Pacing;
use upcall_sched::arrivals::Arrivals;
use upcall_sched::look::ReplyTimer;
use upcall_sched::post::Post;
use upcall_shm::slot::{NO_ASTACK, SlotMessage};
use upcall_thread::Found;

/// Number of polls before the first look at the clock.
const LOOKS: u32 = 64;

/// Why an object is not served.
pub enum ServeError {
    /// This process is not the object's home.
    Elsewhere,
    /// A thread serves the object already.
    Served,
    /// Two operations have this name.
    Twice(String),
    /// No memory, no descriptor or no place is left.
    Resource(String),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere => f.write_str(
                "only an object's home can serve it: serve it in the process that made it",
            ),
            Self::Served => {
                f.write_str("a thread serves the object already: use that one, or end it first")
            }
            Self::Twice(name) => {
                write!(f, "two operations are called {name:?}: give one of them another name")
            }
            Self::Resource(error) => write!(f, "the object cannot be served: {error}"),
        }
    }
}

upcall_os::error_debug!(ServeError { Elsewhere, Served, Twice(error), Resource(error) });

impl std::error::Error for ServeError {}

/// This thread serves an object as long as this lives.
#[must_use = "nothing is served any more when this is dropped"]
pub struct Serving<T: Shared> {
    inner: Rc<ServingState<T>>,
    attended: Option<Attended>,
}

struct ServingState<T> {
    on: Homed<T>,
    object: Arc<HomeObject>,
    desk: Arc<ServiceQueue>,
    operations: Vec<OperationEntry<T>>,
    state: Box<HomeState>,
    crew: Crew<T>,
    lanes: RefCell<Rc<[Arc<ServedLane>]>>,
    masked: Cell<u32>,
    /// Memory for interrupts.
    rooms: RefCell<Rooms>,
    /// Memory for arguments that do not fit in a slot.
    long: Cell<Vec<u8>>,
    /// How long the next invocation takes to arrive.
    reply_timer: Cell<ReplyTimer>,
}

impl<T: Shared> fmt::Debug for Serving<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("on", &self.inner.on)
            .field("lanes", &self.inner.lanes.borrow().len())
            .finish_non_exhaustive()
    }
}

/// Nothing is run for others until this is dropped: [`Serving::mask`].
#[must_use = "what has come is run when this is dropped"]
pub struct Masked<'a, T: Shared>(&'a Serving<T>);

impl<T: Shared> fmt::Debug for Masked<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Masked")
    }
}

impl<T: Shared> Drop for Masked<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let inner = &self.0.inner;
        inner.masked.set(inner.masked.get() - 1);
        if inner.masked.get() == 0 {
            rules::unmask();
            if inner.has_deferred() && !std::thread::panicking() {
                self.0.make_good();
            }
        }
        interrupts::end_section();
    }
}

impl<T: Shared> Homed<T> {
    /// Makes this thread run operations on the object for others.
    ///
    /// It does so until the result is dropped. Only the object's home can do this.
    ///
    /// On a virtual processor the operations run by themselves, at safe points; elsewhere where
    /// this thread [polls](Serving::poll) or waits.
    ///
    /// Elsewhere than on a virtual processor, procedures run on threads of their own, at most 64 of
    /// them at a time. Dropping the result waits for procedures that are under way.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn serve(&self, operations: Operations<T>) -> Result<Serving<T>, ServeError> {
        self.serve_with(operations, Box::new(()))
    }

    /// Like [`serve`](Self::serve), with a state beside the object.
    pub(crate) fn serve_with(
        &self,
        operations: Operations<T>,
        state: Box<HomeState>,
    ) -> Result<Serving<T>, ServeError> {
        let object = self.handle().object().ok_or(ServeError::Elsewhere)?;
        let _kept_off = keep_off();
        let Operations(operations) = operations;
        let mut names = operations
            .iter()
            .map(|entry| (entry.name.to_string(), entry.kind()))
            .collect::<Vec<_>>();
        if let Some(at) =
            (1..names.len()).find(|&at| names[..at].iter().any(|(name, _)| *name == names[at].0))
        {
            return Err(ServeError::Twice(names.swap_remove(at).0));
        }
        let resource = |error: io::Error| ServeError::Resource(error.to_string());
        // A virtual processor has each post in its wake set.
        let post = match here::post().filter(|_| upcall_thread::on_virtual_processor().is_none()) {
            Some(post) => post,
            None => Arc::new(Post::take().map_err(resource)?),
        };
        let desk = Arc::new(ServiceQueue::new(post, names));
        let on = self.try_clone().map_err(|error| ServeError::Resource(error.to_string()))?;
        let inner = Rc::new(ServingState {
            on,
            object,
            desk,
            operations,
            state,
            crew: Crew::default(),
            lanes: RefCell::new(Rc::default()),
            masked: Cell::new(0),
            long: Cell::default(),
            reply_timer: Cell::default(),
            rooms: RefCell::default(),
        });
        let attended = Attended::begin(Rc::new(ServingHook {
            inner: Rc::downgrade(&inner),
            desk: inner.desk.clone(),
        }))
        .map_err(resource)?;
        if !inner.object.is_served_by(&inner.desk) {
            return Err(ServeError::Served);
        }
        let here: Rc<dyn ServedObject> = inner.clone();
        here::add(&here);
        Ok(Serving { inner, attended })
    }

    /// Starts a kernel thread that runs operations on the object for others.
    ///
    /// It does so until the result is dropped, and sleeps while it is idle. Only the object's home
    /// can do this.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn serve_in_background(&self, operations: Operations<T>) -> Result<Background, ServeError> {
        let on = self.try_clone().map_err(|error| ServeError::Resource(error.to_string()))?;
        let over = Arc::new(AtomicBool::new(false));
        let (own, (begun, begins)) = (over.clone(), std::sync::mpsc::channel());
        let serve = move || {
            let serving = match on.serve(operations) {
                Ok(serving) => serving,
                Err(error) => return drop(begun.send(Err(error))),
            };
            let _ = begun.send(Ok(serving.inner.desk.clone()));
            serving.run_until(|| own.load(Ordering::Acquire));
        };
        let thread = std::thread::Builder::new().name("upcall-home".into()).spawn(serve);
        let thread = thread.map_err(|error| ServeError::Resource(error.to_string()))?;
        let desk =
            begins.recv().map_err(|_| ServeError::Resource("its thread has ended".into()))??;
        Ok(Background { over, desk, thread: Some(thread) })
    }
}

/// A thread that serves an object as long as this lives.
#[must_use = "nothing is served any more when this is dropped"]
pub struct Background {
    over: Arc<AtomicBool>,
    desk: Arc<ServiceQueue>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.desk.nudge();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<T: Shared> Serving<T> {
    /// The state beside the object.
    pub(crate) fn state(&self) -> &HomeState {
        &*self.inner.state
    }

    /// Runs the operations that callers wait for. Returns their number.
    ///
    /// Runs none while this thread [masks](Self::mask).
    pub fn poll(&self) -> usize {
        let _kept_off = keep_off();
        self.inner.serve(true)
    }

    /// Serves this and all other objects of this thread, until `done` returns `true`.
    ///
    /// `done` is called after each turn, and after callers came or left. The thread spins first,
    /// then blocks. On a virtual processor other threads run in between.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) {
        while !done() {
            let ran = {
                let _kept_off = keep_off();
                here::serve(true)
            };
            if ran == 0 && !done() {
                self.wait(None);
            }
        }
    }

    /// Waits for a request to this thread, at most as long as `limit`.
    ///
    /// Returns `true` if a request waits. May return earlier if callers came or left.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        if self.attended.as_ref().is_some_and(Attended::is_here) {
            // Requests are run by themselves.
            upcall_thread::sleep(
                limit.unwrap_or(Duration::from_millis(1)).min(Duration::from_millis(1)),
            );
            return here::has_work();
        }
        let _kept_off = keep_off();
        // Most requests arrive soon, and need no look at the clock.
        let mut reply_timer = self.inner.reply_timer.get();
        let soon = reply_timer.await_answer(LOOKS, here::has_work);
        self.inner.reply_timer.set(reply_timer);
        if soon {
            return true;
        }
        self.inner.desk.post.wait(Pacing::Adaptive, limit, here::has_work)
    }

    /// Masks invocations: nothing is run for others until the result is dropped.
    ///
    /// Requests that arrive in the meantime wait, and are run then (Psyche, section 3.1). Masking
    /// takes about a nanosecond and may be nested. A thread that masks must not invoke: in builds
    /// with debug assertions that is an error, which names both places.
    #[inline]
    #[track_caller]
    pub fn mask(&self) -> Masked<'_, T> {
        interrupts::begin_section();
        let masked = self.inner.masked.get();
        self.inner.masked.set(masked + 1);
        if masked == 0 {
            rules::mask(Location::caller());
        }
        Masked(self)
    }

    #[cold]
    fn make_good(&self) {
        if self.attended.as_ref().is_some_and(Attended::is_here) {
            upcall_thread::safe_point();
        } else {
            self.poll();
        }
    }
}

impl<T: Shared> Drop for Serving<T> {
    fn drop(&mut self) {
        let _kept_off = keep_off();
        self.inner.crew.end();
        self.inner.object.is_served_no_more();
        here::remove(Rc::as_ptr(&self.inner).cast());
    }
}

impl<T: Shared> ServingState<T> {
    fn attend(&self) {
        if !self.desk.has_news() {
            return;
        }
        let news = self.desk.take_news();
        let mut lanes = self.lanes.borrow().to_vec();
        for one in news {
            match one {
                ServiceEvent::Came(served) => lanes.push(served),
                ServiceEvent::Gone(guest) => lanes.retain(|served| {
                    let stays = served.end.guest != guest;
                    if !stays {
                        self.desk.forget(served);
                    }
                    stays
                }),
            }
        }
        *self.lanes.borrow_mut() = lanes.into();
    }

    /// Returns `true` if a request waits that may be run now.
    fn waits(&self) -> bool {
        self.masked.get() == 0 && self.has_deferred()
    }

    /// Returns `true` if a request waits.
    #[inline]
    fn has_deferred(&self) -> bool {
        self.lanes.borrow().iter().any(|served| served.waits())
    }

    fn serve(&self, all: bool) -> usize {
        self.attend();
        if self.masked.get() > 0 {
            return 0;
        }
        let lanes = self.lanes.borrow().clone();
        lanes.iter().map(|served| usize::from(self.serve_one(served, all))).sum()
    }

    fn serve_one(&self, served: &Arc<ServedLane>, all: bool) -> bool {
        // On a virtual processor another thread of it may be waiting for the lock.
        if self.on.handle().is_busy() || served.is_ordered.load(Ordering::Acquire) {
            return false;
        }
        // On a virtual processor a procedure that blocks is simply a user-level thread. Elsewhere
        // the crew runs it.
        let has_threads = upcall_thread::on_virtual_processor().is_some();
        if !all && has_threads && self.kind_of(served) == Some(OperationKind::MayBlock) {
            return false;
        }
        let mut image = SlotMessage::new(0, 0, NO_ASTACK);
        if !served.server.take_alone(&mut image) {
            return false;
        }
        point(Point::InvocationTaken);
        let entry = self.operations.get(usize::from(image.tag()));
        if let Some(OperationEntry { run: OperationBody::MayBlock(run), .. }) = entry
            && !has_threads
        {
            self.crew.run(&self.on, ProcedureOrder { served: served.clone(), image, run: *run });
            return true;
        }
        let reply = self
            .run(entry, &served.end.lane, &image)
            .unwrap_or_else(|failure| served.end.lane.failed(&failure));
        point(Point::InvocationRan);
        served.answer(&reply);
        true
    }

    /// The kind of the next request, as far as it can be seen without taking the request.
    fn kind_of(&self, served: &ServedLane) -> Option<OperationKind> {
        Some(self.operations.get(usize::from(served.server.peek_tag()?))?.kind())
    }

    fn run(
        &self,
        entry: Option<&OperationEntry<T>>,
        lane: &InvocationLane,
        image: &SlotMessage,
    ) -> Result<SlotMessage, InvokeFailure> {
        let not_run = |why: &'static str| InvokeFailure::NotRun(why.into());
        let entry = entry.ok_or_else(|| not_run("there is no such operation"))?;
        // The operation may serve others while it runs: they find no memory here and allocate their
        // own.
        let mut copy = MessageBuffer::with(self.long.take());
        let args = lane
            .bytes(image, LaneDirection::There, &mut copy)
            .ok_or_else(|| not_run("its arguments are not valid"))?;
        let reply = match &entry.run {
            OperationBody::Short(run) => run(&self.on, &*self.state, args, lane),
            OperationBody::MayBlock(run) => run(&self.on, args, lane),
        };
        self.long.set(copy.long());
        reply
    }
}

impl<T: Shared> ServedObject for ServingState<T> {
    fn serve(&self, all: bool) -> usize {
        Self::serve(self, all)
    }

    fn has_work(&self) -> bool {
        self.desk.has_news() || self.waits()
    }

    fn serve_in_interrupt(&self) -> u32 {
        self.serve_lanes_in_interrupt()
    }

    fn has_more(&self) -> bool {
        self.has_more_for_interrupts()
    }

    fn post(&self) -> &Arc<Post> {
        &self.desk.post
    }
}

/// The hook by which a virtual processor serves an object.
struct ServingHook<T> {
    inner: Weak<ServingState<T>>,
    desk: Arc<ServiceQueue>,
}

impl<T: Shared> Arrivals for ServingHook<T> {
    fn look(&self) -> Found {
        let Some(inner) = self.inner.upgrade() else { return Found::Nothing };
        inner.attend();
        if inner.waits() && !inner.on.handle().is_busy() { Found::Work } else { Found::Nothing }
    }

    fn waits(&self) -> bool {
        let Some(inner) = self.inner.upgrade() else { return false };
        self.desk.has_news() || inner.waits() && !inner.on.handle().is_busy()
    }

    fn falls_asleep(&self) {}

    fn serve(&self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.serve(true);
        }
    }

    fn post(&self) -> &Post {
        &self.desk.post
    }
}
