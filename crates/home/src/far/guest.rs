//! One guest's link as its home sees it: its requests, its bindings, and its end.
//!
//! Everything that arrives is untrusted, and a message that breaks the protocol ends the link with
//! a reason. When the link ends, for whichever reason, the requests that have not begun never run.
//! Operations that run go on to their end, and their replies are dropped.

use super::gate::ObjectGate;
use super::lanes::{FarBinding, FarCall, GuestLink};
use super::place::HomePlace;
use super::{HomeReply, HomeRequest, MOST_ASKED, OBJECTS, VERSION, WINDOW, body, outcome};
use crate::lane::LONGEST;
use crate::quota;
use crate::service_queue::ServiceQueue;
use crate::wire;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};
use upcall_directory::clerk::{Clerk, Watched};
use upcall_net::{
    Admitted, Attend, BufferOwner, Frame, FrameBody, FrameError, FrameHeader, FrameKind, Lost,
    Wanted, Wire,
};
use upcall_os::atomic::{AtomicBool, Ordering};
use upcall_os::doorbell::Doorbell;
use upcall_os::lock::KernelMutex;
use upcall_os::poll::Report;
use upcall_os::socket::Peer;
use upcall_sched::quota::{Holding, QuotaKind};

/// Maximum number of bindings of one link.
const MOST_BINDINGS: usize = 1024;

/// Maximum number of answers and replies that wait to be read, beyond which the link is ended.
const MOST_UNREAD: usize = 2 * WINDOW as usize;

/// Number of descriptors that a link takes: its socket, and its bell.
const OF_LINK: usize = 2;

/// An object that guests on other hosts reach.
pub(crate) trait Reached: Send + Sync {
    /// Decides whether a guest that takes the object to be of this shape may invoke it.
    ///
    /// # Errors
    /// The reason why not.
    fn admits(&self, guest: &Peer, shape: u64) -> Result<(), String>;

    /// The number that stands for its type.
    fn shape(&self) -> u64;

    /// The queue of the thread that serves the object.
    fn desk(&self) -> Option<Arc<ServiceQueue>>;
}

/// See the module.
pub(crate) struct LinkGuest {
    link: Arc<GuestLink>,
    gate: Weak<ObjectGate>,
    peer: Peer,
    bindings: KernelMutex<HashMap<u32, Arc<FarBinding>>>,
    ended: AtomicBool,
    /// The clerk's key for the bell.
    bell: OnceLock<u64>,
    _held: Holding,
    _counted: Admitted,
}

/// A guest that is charged for its link.
pub(crate) struct ChargedGuest {
    pub(crate) peer: Peer,
    pub(crate) counted: Admitted,
    account: Arc<upcall_sched::quota::QuotaAccount>,
    held: Holding,
    bell: Doorbell,
}

impl ChargedGuest {
    /// Charges a guest for its link.
    ///
    /// # Errors
    /// The reason why it gets none.
    pub(crate) fn new(peer: Peer, counted: Admitted) -> Result<Self, String> {
        let account = quota::of_link(&peer);
        let held =
            account.hold(QuotaKind::Descriptors, OF_LINK).map_err(|over| over.to_string())?;
        let bell = Doorbell::new().map_err(|error| format!("no descriptor is left: {error}"))?;
        Ok(Self { peer, counted, account, held, bell })
    }
}

/// Passes the requests that have arrived to the guest.
struct GuestRequests(Arc<LinkGuest>);

/// Watches for replies from interrupts.
struct ReplyBell {
    link: Arc<GuestLink>,
    guest: Weak<LinkGuest>,
}

impl LinkGuest {
    pub(crate) fn new(wire: Arc<Wire>, charged: ChargedGuest, gate: &Arc<ObjectGate>) -> Arc<Self> {
        let ChargedGuest { peer, counted, account, held, bell } = charged;
        Arc::new(Self {
            link: Arc::new(GuestLink::new(wire, account, bell)),
            gate: Arc::downgrade(gate),
            peer,
            bindings: KernelMutex::default(),
            ended: AtomicBool::new(false),
            bell: OnceLock::new(),
            _held: held,
            _counted: counted,
        })
    }

    /// Begins to handle requests. `first` has the bytes that were read already.
    pub(crate) fn attend(self: Arc<Self>, first: &[u8]) {
        let bell = ReplyBell { link: self.link.clone(), guest: Arc::downgrade(&self) };
        let watched = Clerk::current()
            .and_then(|clerk| clerk.watch(Arc::new(bell), Report::WhileReadable))
            .map(|key| _ = self.bell.set(key));
        let requests = Box::new(GuestRequests(self.clone()));
        let started = watched.and_then(|()| match self.link.wire() {
            Some(wire) => wire.start(first, requests),
            None => Ok(()),
        });
        // Without the process's driver there is no link.
        if started.is_err() {
            self.end();
        }
        if self.ended.load(Ordering::SeqCst) {
            self.forget_bell();
        }
    }

    /// The link has ended, perhaps before the clerk watched the bell.
    fn forget_bell(&self) {
        if let (Some(&key), Ok(clerk)) = (self.bell.get(), Clerk::current()) {
            clerk.forget(key);
        }
    }

    /// Ends the link.
    pub(crate) fn end(&self) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        self.link.end();
        let bindings = std::mem::take(&mut *self.bindings.lock());
        bindings.values().for_each(|binding| binding.over());
        self.forget_bell();
    }

    fn ask(&self, frame: &Frame) -> Result<(), FrameError> {
        if frame.head.number != OBJECTS {
            return Err(FrameError("it asks for procedures, and objects are here"));
        }
        let body = frame.body.to_vec();
        let request =
            wire::unpack(&body).map_err(|_| FrameError("a request that cannot be read"))?;
        let answer = match request {
            HomeRequest::Open { version, name, shape } => self
                .find(version, name, shape)
                .map(|_| HomeReply::Found { place: HomePlace::own().map(HomePlace::to_number) }),
            HomeRequest::Bind { version, name, shape } => self
                .find(version, name, shape)
                .and_then(|object| self.bind(frame.head.binding, &*object)),
            HomeRequest::Unbind => {
                let binding = self.bindings.lock().remove(&frame.head.binding);
                binding.iter().for_each(|binding| binding.over());
                return Ok(());
            }
            HomeRequest::List { version, after } => {
                let gate =
                    speaks(version).and_then(|()| self.gate.upgrade().ok_or(HomeReply::Absent));
                gate.map(|gate| gate.page(&self.peer, after))
            }
        };
        let answer = super::body(&answer.unwrap_or_else(|no| no));
        let head = FrameHeader {
            kind: FrameKind::Answer,
            number: 0,
            left: None,
            len: answer.len,
            ..frame.head
        };
        let kept = self.link.account.hold(QuotaKind::Results, answer.len);
        let kept = kept.map_err(|_| FrameError("answers that exceed a quota"))?;
        self.link.send(head, answer, Some(Box::new(kept)));
        Ok(())
    }

    /// The object of this name, if the guest may invoke it.
    fn find(&self, version: u32, name: &str, shape: u64) -> Result<Arc<dyn Reached>, HomeReply> {
        speaks(version)?;
        let object = self.gate.upgrade().and_then(|gate| gate.object(name));
        let object = object.ok_or(HomeReply::Absent)?;
        object.admits(&self.peer, shape).map_err(HomeReply::No)?;
        Ok(object)
    }

    fn bind(&self, id: u32, object: &dyn Reached) -> Result<HomeReply, HomeReply> {
        let no = |why: &str| HomeReply::No(why.into());
        let not_served = || no("it runs no operations for others now: the home has to serve it");
        let desk = object.desk().ok_or_else(not_served)?;
        let mut bindings = self.bindings.lock();
        if bindings.len() >= MOST_BINDINGS || bindings.contains_key(&id) {
            return Err(no("this process has too many handles to objects of the home"));
        }
        let operations = desk.names.clone();
        let binding = FarBinding::new(&self.link, desk).ok_or_else(not_served)?;
        bindings.insert(id, binding.clone());
        drop(bindings);
        // The link may have ended during this.
        if self.ended.load(Ordering::SeqCst) {
            binding.over();
        }
        Ok(HomeReply::Bound { operations })
    }

    fn call(&self, frame: Frame, room: Option<BufferOwner>) {
        self.link.under_way.fetch_add(1, Ordering::SeqCst);
        let call = frame.head.call;
        let binding = self.bindings.lock().get(&frame.head.binding).cloned();
        match (binding, room) {
            (_, None) => self.link.refuse(call, "the arguments exceed a quota of the home".into()),
            (None, _) => self.link.reply(call, outcome::GONE, FrameBody::default()),
            (Some(binding), Some(room)) => {
                let (operation, args) = (frame.head.number, frame.body);
                binding.call(FarCall { call, operation, args, room });
            }
        }
    }
}

/// Refuses a guest that speaks another version.
fn speaks(version: u32) -> Result<(), HomeReply> {
    if version == VERSION {
        return Ok(());
    }
    Err(HomeReply::No(format!(
        "it speaks version {VERSION} of the objects' protocol, and this process version {version}"
    )))
}

impl Attend for GuestRequests {
    fn begun(&mut self, head: &FrameHeader, unsent: usize) -> Result<Wanted, FrameError> {
        let link = &self.0.link;
        // A guest that keeps to the protocol never has more requests whose replies it has not read.
        if unsent > MOST_UNREAD {
            return Err(FrameError("replies that are not read"));
        }
        let room = || link.account.hold(QuotaKind::Results, head.len);
        match head.kind {
            FrameKind::Ask if head.len > MOST_ASKED => {
                Err(FrameError("a request that is longer than requests are"))
            }
            FrameKind::Ask => {
                let room = room().map_err(|_| FrameError("requests that exceed a quota"))?;
                Ok(Wanted::Yes(Some(Box::new(room))))
            }
            FrameKind::Call if head.len > LONGEST => {
                Err(FrameError("arguments that are longer than arguments are"))
            }
            FrameKind::Call => {
                if link.under_way.load(Ordering::SeqCst) >= WINDOW.into() {
                    return Err(FrameError("more invocations under way than there may be"));
                }
                Ok(room().map_or(Wanted::No, |room| Wanted::Yes(Some(Box::new(room)))))
            }
            FrameKind::Cancel => Ok(Wanted::No),
            _ => Err(FrameError("a message that is neither a request nor an invocation")),
        }
    }

    fn came(&mut self, frame: Frame, owner: Option<BufferOwner>) -> Result<(), FrameError> {
        match frame.head.kind {
            FrameKind::Ask => self.0.ask(&frame)?,
            // An invocation that was given up runs all the same, as on one host.
            FrameKind::Cancel => {}
            _ => self.0.call(frame, owner),
        }
        Ok(())
    }

    /// The invocation has not run, and its charge is gone with its bytes.
    fn given_up(&mut self, _head: FrameHeader) -> Result<(), FrameError> {
        Ok(())
    }

    fn farewell(&self, why: &Lost) -> Option<FrameBody> {
        match why {
            Lost::Untrusted(_) | Lost::Link(_) | Lost::NoMemory => {
                Some(body(&HomeReply::No(why.to_string())))
            }
            Lost::Ended | Lost::Error(_) | Lost::Silent(_) | Lost::Unprotected(_) => None,
        }
    }

    fn ended(self: Box<Self>, _why: Lost) {
        self.0.end();
    }
}

impl Watched for ReplyBell {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.link.bell.as_fd()
    }

    fn happened(&self, _hung_up: bool) -> bool {
        self.link.bell.silence();
        let Some(guest) = self.guest.upgrade() else { return false };
        let bindings: Vec<_> = guest.bindings.lock().values().cloned().collect();
        bindings.iter().for_each(|binding| binding.relay_all());
        true
    }

    fn failed(&self) -> bool {
        true
    }
}
