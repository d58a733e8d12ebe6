//! The home's side of invocations: it runs operations for others, at its own points.
//!
//! Source: Psyche, sections 2.1 and 3.1 (P1 to P3, P7 here). There an urgent invocation interrupts
//! the home's processor, unless that masks it, and an ordinary one becomes a process there. Here
//! one thread of the home serves an object. A virtual processor does so by itself, at its safe
//! points ([`arrivals`](upcall_sched::arrivals)); what may block is a thread there by that
//! alone. An ordinary kernel thread does so where it says ([`Serving::poll`],
//! [`Serving::run_until`]), and while it waits for an invocation of its own; it runs short
//! operations only, and hands procedures to other threads ([`crew`]). While it
//! [masks](Serving::mask) nothing is run; what has arrived waits in its lane, and is run at the end
//! of that. What it computes can be interrupted for some of them, by signal ([`interrupts`]).
//!
//! Who invokes has a lane of its own ([`lane`](crate::lane)), which the clerk takes in, and tells
//! this thread of by news. Short operations take the object's lock as the home does, so they wait
//! for those only who have it.

mod crew;
mod in_interrupts;

use crate::desk::{ServedLane, ServiceEvent, ServiceQueue};
use crate::here::{self, ServedObject};
use crate::homed::Homed;
use crate::interrupts::{self, keep_off};
use crate::lane::{InvocationLane, LaneDirection, MessageBuffer};
use crate::object::HomeObject;
use crate::operation::{HomeState, OperationBody, OperationEntry, Operations};
use crate::rules;
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

/// So often it looks before it looks at the clock.
const LOOKS: u32 = 64;

/// Why an object is not served.
#[derive(Debug)]
pub enum ServeError {
    /// This is not its home.
    Elsewhere,
    /// Another thread serves it already, or this one.
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
                "only its home can run operations for others: serve it where it was made",
            ),
            Self::Served => {
                f.write_str("a thread serves it already: have that do so, or end it there first")
            }
            Self::Twice(name) => {
                write!(f, "two operations are called {name:?}: give one of them another name")
            }
            Self::Resource(error) => write!(f, "it cannot be served: {error}"),
        }
    }
}

impl std::error::Error for ServeError {}

/// An object is served by this thread, as long as this lives.
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
    /// For interrupts.
    rooms: RefCell<Rooms>,
    /// For arguments that a slot has no room for.
    long: Cell<Vec<u8>>,
    /// How long the next invocation takes to come.
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
    /// Has this thread run operations on the object for others, until what this gives is dropped;
    /// at its home. On a virtual processor they run by themselves, at safe points; elsewhere where
    /// this thread [polls](Serving::poll), or waits.
    ///
    /// Elsewhere than on a virtual processor, procedures run on threads of their own: 64 of them at
    /// a time, at most. Dropping the result waits for procedures that are under way.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn serve(&self, operations: Operations<T>) -> Result<Serving<T>, ServeError> {
        self.serve_with(operations, Box::new(()))
    }

    /// The same, with something beside the object.
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
        // The virtual processor has each in its wake set.
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

    /// Has a kernel thread of its own run operations on the object for others, until what this
    /// gives is dropped; at its home. Idle, it sleeps.
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

/// A thread that serves an object, as long as this lives.
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
    /// What is beside the object.
    pub(crate) fn state(&self) -> &HomeState {
        &*self.inner.state
    }

    /// Runs what others wait for. Returns how many. Nothing is run while this thread
    /// [masks](Self::mask).
    pub fn poll(&self) -> usize {
        let _kept_off = keep_off();
        self.inner.serve(true)
    }

    /// Serves, with all else that this thread serves, until `done` is true, which is asked after
    /// each turn, and after others have come or gone. Spins first, then blocks the kernel thread;
    /// on a virtual processor others run meanwhile.
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

    /// Waits until somebody waits for something that this thread serves, at most as long as
    /// `limit`. Whether somebody does. May return before, when others have come or gone.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        if self.attended.as_ref().is_some_and(Attended::is_here) {
            // What comes is run by itself.
            upcall_thread::sleep(
                limit.unwrap_or(Duration::from_millis(1)).min(Duration::from_millis(1)),
            );
            return here::has_work();
        }
        let _kept_off = keep_off();
        // Most requests come soon, and without a look at the clock.
        let mut reply_timer = self.inner.reply_timer.get();
        let soon = reply_timer.await_answer(LOOKS, here::has_work);
        self.inner.reply_timer.set(reply_timer);
        if soon {
            return true;
        }
        self.inner.desk.post.wait(Pacing::Adaptive, limit, here::has_work)
    }

    /// Nothing is run for others until what this gives is dropped. What comes meanwhile waits, and
    /// is run then (P2). Takes about a nanosecond; may be nested. Who masks is not to invoke: in
    /// builds with debug assertions that is an error, which names both places.
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
                        self.desk.post.remove(&served.end.own);
                    }
                    stays
                }),
            }
        }
        *self.lanes.borrow_mut() = lanes.into();
    }

    /// Whether somebody waits for what may be run now.
    fn waits(&self) -> bool {
        self.masked.get() == 0 && self.has_deferred()
    }

    /// Whether somebody waits.
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
        // On a virtual processor another thread of it may wait for the lock just now.
        if self.on.handle().is_busy() || served.is_ordered.load(Ordering::Acquire) {
            return false;
        }
        // A procedure that blocks there is a user-level thread by that alone. Elsewhere the crew
        // runs it.
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

    /// What the next one is, as far as can be seen without taking it.
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
        // What runs may have others run meanwhile: they find no memory there, and bring their own.
        let mut copy = MessageBuffer::with(self.long.take());
        let args = lane
            .bytes(image, LaneDirection::There, &mut copy)
            .ok_or_else(|| not_run("its arguments are none"))?;
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

/// What a virtual processor knows of it.
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
