//! The guest's side: an object whose home is on another host, and the links to its home.

use super::place::HomePlace;
use super::{HomeReply, HomeRequest, MOST_REPLY, OBJECTS, VERSION, body, head, outcome};
use crate::error::FindError;
use crate::failure::InvokeError;
use crate::finder::FindTerms;
use crate::here;
use crate::interrupts::keep_off;
use crate::lane::LONGEST;
use crate::wire::{self, InvokeFailure, OperationKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use upcall_directory::names::NotFound;
use upcall_directory::policy::Policy;
use upcall_net::{
    CallerTerms, FarName, Frame, FrameBody, FrameHeader, FrameKind, LateFrame, Lost, NetworkCaller,
    NoConnection, Unreached, address, reach,
};
use upcall_os::atomic::{AtomicU32, Ordering};
use upcall_os::lock::KernelMutex;
use upcall_os::socket::Peer;
use upcall_sched::NoReply;

/// Time within which a home must be reached, and answer a request that is no invocation.
const PATIENCE: Duration = Duration::from_secs(5);

/// A home, whose thread of links answers all requests that are no invocations.
const HOME: CallerTerms = CallerTerms { most_reply: MOST_REPLY, counts_asks: false };

/// Parses a name on another host. Returns `None` for a name on this host.
pub(crate) fn parse(name: &str) -> Result<Option<FarName>, FindError> {
    let bad = |why| FindError::Name(NotFound::BadName { name: name.into(), why });
    address::parse(name).map_err(bad)
}

/// An object whose home is on another host.
pub(crate) struct FarObject {
    /// As the program gave it.
    pub(crate) text: String,
    pub(crate) at: FarName,
    pub(crate) shape: u64,
    pub(crate) terms: FindTerms,
    /// Where the home is, as it says.
    pub(crate) place: Option<HomePlace>,
    /// The link that has found the object, kept until the first invocation.
    link: Cell<Option<Arc<FarHome>>>,
    /// For operations of each kind.
    bound: [RefCell<Option<BoundObject>>; 2],
}

impl fmt::Debug for FarObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FarObject").field(&self.text).finish()
    }
}

/// A binding to the thread that serves an object, by one link.
struct BoundObject {
    home: Arc<FarHome>,
    id: u32,
    operations: HashMap<String, (u16, OperationKind)>,
}

/// A link to a home, shared by the handles of this process.
pub(super) struct FarHome {
    caller: Arc<NetworkCaller>,
    /// The home's user, if it is on this host. The kernel knows it only while the link is open.
    user: Option<u32>,
    ids: AtomicU32,
}

/// The answer to the first request for an object.
pub(super) struct FirstAnswer {
    home: Arc<FarHome>,
    /// The number of the request.
    id: u32,
    pub(super) answer: Result<HomeReply, FindError>,
}

/// The home's address as the program gave it, the time after which it is lost, and the kind of
/// operations.
type HomeKey = (String, Duration, OperationKind);

/// A link, or the place for one. Locked while a thread connects, for which others wait.
type HomeSlot = Arc<KernelMutex<Weak<FarHome>>>;

/// The place for a link of this process.
fn slot(key: HomeKey) -> HomeSlot {
    static SLOTS: OnceLock<KernelMutex<HashMap<HomeKey, HomeSlot>>> = OnceLock::new();
    let mut slots = SLOTS.get_or_init(KernelMutex::default).lock();
    let is_empty = |slot: &HomeSlot| slot.try_lock().is_some_and(|home| home.strong_count() == 0);
    slots.retain(|_, slot| Arc::strong_count(slot) > 1 || !is_empty(slot));
    slots.entry(key).or_default().clone()
}

/// The reason that the home gave for the end of a link.
fn farewell(caller: &NetworkCaller) -> Option<String> {
    let reason = caller.farewell()?.to_vec();
    match wire::unpack(&reason) {
        Ok(HomeReply::No(why)) => Some(why),
        _ => None,
    }
}

impl FarHome {
    /// The open link, or a new one, if the policy accepts its home.
    fn to(
        at: &FarName,
        text: &str,
        terms: &FindTerms,
        kind: OperationKind,
        deadline: Instant,
    ) -> Result<Arc<Self>, FindError> {
        let key = (at.server.clone(), terms.lost_after, kind);
        let slot = slot(key);
        let mut open = slot.lock();
        let home = match open.upgrade().filter(|home| home.caller.closed().is_none()) {
            Some(home) => home,
            None => {
                let caller = reach(&at.server, terms.lost_after, HOME, deadline)
                    .map_err(|error| unreached(error, text))?;
                let (user, ids) = (caller.user(), AtomicU32::new(0));
                let home = Arc::new(Self { caller, user, ids });
                *open = Arc::downgrade(&home);
                home
            }
        };
        drop(open);
        home.is_accepted(text, &*terms.accepts).map(|()| home)
    }

    /// Makes a first request by the open link, or by a new one.
    ///
    /// A home that has ended may not be known to have ended. So a link that turns out to be closed
    /// is followed by a new one, to the next home at the address.
    pub(super) fn first(
        at: &FarName,
        text: &str,
        terms: &FindTerms,
        kind: OperationKind,
        request: &HomeRequest<'_>,
    ) -> Result<FirstAnswer, FindError> {
        let deadline = Instant::now() + PATIENCE;
        let mut is_last = false;
        loop {
            let home = Self::to(at, text, terms, kind, deadline)?;
            let id = home.ids.fetch_add(1, Ordering::Relaxed);
            let answer = home.ask(id, request, text, deadline);
            let is_over =
                matches!(answer, Err(FindError::Absent { .. })) && home.caller.closed().is_some();
            if !is_over || is_last {
                return Ok(FirstAnswer { home, id, answer });
            }
            is_last = true;
        }
    }

    fn is_accepted(&self, text: &str, accepts: &Policy) -> Result<(), FindError> {
        let refused = |found, reason| FindError::WrongUser { name: text.into(), found, reason };
        let peer = match (self.caller.host(), self.user) {
            (Some(host), _) => Peer::on_host(host.as_str().into()),
            (None, Some(user)) => Peer::of_user(user),
            (None, None) if self.has_ended_at_once() => {
                let why = "it has ended the link at once".into();
                return Err(FindError::Absent { name: text.into(), why });
            }
            (None, None) => {
                let reason = "the kernel does not say whose home it is (/proc/net/tcp)";
                return Err(refused(u32::MAX, reason.into()));
            }
        };
        accepts(&peer).map_err(|reason| refused(peer.uid, reason))
    }

    /// Returns `true` if the kernel does not know the home because its end of the link is closed.
    fn has_ended_at_once(&self) -> bool {
        // The thread of this process's links learns of the end a moment later.
        (0..100).any(|_| {
            let has_ended = self.caller.closed().is_some();
            if !has_ended {
                std::thread::sleep(Duration::from_millis(1));
            }
            has_ended
        })
    }

    /// Sends a request that is no invocation, and waits for the answer.
    fn ask(
        &self,
        id: u32,
        request: &HomeRequest<'_>,
        text: &str,
        deadline: Instant,
    ) -> Result<HomeReply, FindError> {
        let head = head(FrameKind::Ask, id, OBJECTS);
        let absent = |why: String| FindError::Absent { name: text.into(), why };
        let unreachable = |why: String| FindError::Unreachable { name: text.into(), why };
        match self.send(head, body(request), Some(deadline)) {
            Ok(Frame { head: FrameHeader { kind: FrameKind::Answer, .. }, body }) => {
                match wire::unpack(&body.to_vec()).map_err(unreachable)? {
                    HomeReply::No(why) => Err(FindError::Refused { name: text.into(), why }),
                    HomeReply::Absent => Err(absent("it has made no object of this name".into())),
                    answer => Ok(answer),
                }
            }
            Ok(_) => Err(unreachable("it sent a reply in place of an answer".into())),
            Err(NoReply::OutOfTime { .. }) => Err(absent("it does not answer".into())),
            Err(NoReply::NoMemory { .. }) => Err(unreachable("no memory is left here".into())),
            Err(NoReply::Closed(closed)) => Err(match farewell(&self.caller) {
                Some(why) => FindError::Refused { name: text.into(), why },
                None => absent(closed.to_string()),
            }),
        }
    }

    /// Sends a message, and waits for its reply. A kernel thread that serves objects runs the short
    /// operations that others request of them during the wait.
    fn send(
        &self,
        head: FrameHeader,
        body: FrameBody,
        ends: Option<Instant>,
    ) -> Result<Frame, NoReply> {
        let mut late = || -> LateFrame { Box::new(drop) };
        let post = here::post().filter(|_| upcall_thread::on_virtual_processor().is_none());
        let Some(post) = post else {
            return self.caller.call(head, body, ends.into(), &mut late);
        };
        let mut serve = || {
            if here::has_work() {
                let _kept_off = keep_off();
                here::serve(false);
            }
        };
        self.caller.call_at_post(head, body, ends, &mut late, (&post, &mut serve))
    }

    /// The error of a caller whose reply will not arrive.
    fn has_ended(&self, asked: bool) -> InvokeError {
        match (farewell(&self.caller), self.caller.lost()) {
            (Some(why), _) => InvokeError::Lost { asked, why },
            (None, Some(Lost::Ended) | None) => InvokeError::Ended { asked },
            (None, Some(lost)) => InvokeError::Lost { asked, why: lost.to_string() },
        }
    }
}

/// Why an object is not found whose home is not reached.
fn unreached(error: Unreached, text: &str) -> FindError {
    let (name, why) = (text.into(), error.to_string());
    match error {
        Unreached::NotProved(_) => FindError::NotProved { name, why },
        Unreached::NoConnection(NoConnection::Refused(error))
            if error.kind() == io::ErrorKind::ConnectionRefused =>
        {
            let why = "no process listens there: start the home, with `listen` at this address";
            FindError::Absent { name, why: why.into() }
        }
        Unreached::NoConnection(
            NoConnection::Refused(_) | NoConnection::Silent | NoConnection::Lost(_),
        ) => FindError::Absent { name, why },
        Unreached::NoAddress(_) | Unreached::NoConnection(_) => {
            FindError::Unreachable { name, why }
        }
    }
}

impl FarObject {
    /// Finds an object.
    ///
    /// # Blocking
    /// Blocks the kernel thread, for 5 s at most, and for as long as the resolver takes.
    pub(crate) fn find(
        text: &str,
        at: FarName,
        shape: u64,
        terms: FindTerms,
    ) -> Result<Self, FindError> {
        let request = HomeRequest::Open { version: VERSION, name: &at.name, shape };
        let first = FarHome::first(&at, text, &terms, OperationKind::Short, &request)?;
        let link = first.home;
        match first.answer? {
            HomeReply::Found { place } => {
                let place = place.map(HomePlace::of_number);
                let bound = [const { RefCell::new(None) }; 2];
                Ok(Self {
                    text: text.into(),
                    at,
                    shape,
                    terms,
                    place,
                    link: Cell::new(Some(link)),
                    bound,
                })
            }
            _ => Err(unexpected(text)),
        }
    }

    /// Finds the object again, for another handle.
    pub(crate) fn find_again(&self) -> Result<Self, FindError> {
        Self::find(&self.text, self.at.clone(), self.shape, self.terms.clone())
    }

    fn bind(&self, kind: OperationKind) -> Result<BoundObject, FindError> {
        let (name, shape) = (&*self.at.name, self.shape);
        let request = HomeRequest::Bind { version: VERSION, name, shape };
        let first = FarHome::first(&self.at, &self.text, &self.terms, kind, &request);
        let FirstAnswer { home, id, answer } = first?;
        // From here on the home may have the binding.
        let mut bound = BoundObject { home, id, operations: HashMap::new() };
        match answer? {
            HomeReply::Bound { operations } => {
                let numbered = operations.into_iter().enumerate();
                let known = numbered.map(|(at, (name, kind))| (name, (at as u16, kind)));
                bound.operations = known.collect();
                Ok(bound)
            }
            _ => Err(unexpected(&self.text)),
        }
    }

    /// Asks the home to run an operation, and waits for its reply.
    #[track_caller]
    pub(crate) fn ask<R: DeserializeOwned>(
        &self,
        name: &'static str,
        kind: OperationKind,
        args: &impl Serialize,
        patience: Option<Duration>,
    ) -> Result<R, InvokeError> {
        let malformed = |error: postcard::Error| InvokeError::Malformed(error.to_string());
        let args = postcard::to_stdvec(args).map_err(malformed)?;
        if args.len() > LONGEST {
            return Err(InvokeError::TooLong { bytes: args.len() });
        }
        let begun = Instant::now();
        let ends = patience.and_then(|patience| begun.checked_add(patience));
        let mut bound = self.bound[kind as usize].borrow_mut();
        // A binding that is gone has run nothing, so the request is repeated with a new binding.
        for _ in 0..2 {
            if bound.as_ref().is_some_and(|bound| bound.home.caller.closed().is_some()) {
                *bound = None;
            }
            let current = match &*bound {
                Some(current) => current,
                None => {
                    let new = self.bind(kind).map_err(InvokeError::NotServed)?;
                    self.link.set(None);
                    bound.insert(new)
                }
            };
            let number = current.number(name, kind)?;
            let head = head(FrameKind::Call, current.id, number);
            let reply = match current.home.send(head, FrameBody::from(&*args), ends) {
                Ok(reply) => reply,
                Err(NoReply::Closed(_)) => return Err(current.home.has_ended(true)),
                Err(NoReply::OutOfTime { sent: true }) => {
                    return Err(InvokeError::Busy { waited: begun.elapsed() });
                }
                Err(NoReply::OutOfTime { sent: false }) => {
                    return Err(InvokeError::Unsent { waited: begun.elapsed() });
                }
                Err(NoReply::NoMemory { .. }) => {
                    return Err(InvokeError::NotRun("no memory is left here".into()));
                }
            };
            if reply.head.kind != FrameKind::Reply {
                return Err(InvokeError::Malformed("an answer in place of a reply".into()));
            }
            match reply.head.number {
                outcome::DONE => {
                    return postcard::from_bytes(&reply.body.to_vec()).map_err(malformed);
                }
                outcome::FAILED => {
                    let said = reply.body.to_vec();
                    let failure = postcard::from_bytes::<InvokeFailure>(&said);
                    return Err(InvokeError::said(name, failure.map_err(malformed)?));
                }
                outcome::GONE => *bound = None,
                outcome::ENDED => return Err(InvokeError::Ended { asked: true }),
                _ => return Err(InvokeError::Malformed("a reply of an unknown kind".into())),
            }
        }
        Err(InvokeError::Ended { asked: false })
    }
}

pub(super) fn unexpected(text: &str) -> FindError {
    FindError::Unreachable { name: text.into(), why: "its answer is of an unexpected kind".into() }
}

impl BoundObject {
    /// The home's number for an operation.
    fn number(&self, name: &'static str, kind: OperationKind) -> Result<u16, InvokeError> {
        match self.operations.get(name) {
            Some(&(number, registered)) if registered == kind => Ok(number),
            Some(_) => Err(InvokeError::Kind { name }),
            None => {
                Err(InvokeError::Unknown { name, known: self.operations.keys().cloned().collect() })
            }
        }
    }
}

impl Drop for BoundObject {
    fn drop(&mut self) {
        let head = head(FrameKind::Ask, self.id, OBJECTS);
        self.home.caller.notify(head, body(&HomeRequest::Unbind));
    }
}
