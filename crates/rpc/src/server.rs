//! Exporting interfaces and serving calls.
//!
//! Source: LRPC, sections 3.1 (the clerk, the procedure descriptor list), 3.2 (dispatch), 5.3
//! (termination).

use crate::decode::{Decoder, Malformed, Quota, Side};
use crate::encode::{Encoder, Fault, block_len};
use crate::interface::{Descriptor, Interface, MOST_PROCEDURES, Wanted, match_each};
use crate::keeper::Keeper;
use crate::pace::{PIECE, Pace};
use crate::session::Session;
use crate::shared::Shared;
use crate::value::Put;
use crate::wire::{Exported, Refusal};
use rustix::io::Errno;
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::hint::cold_path;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use upcall_net::Block;
use upcall_net::frame::MOST_BODY;
use upcall_os::atomic::{AtomicBool, AtomicU32, Ordering};
use upcall_os::clock;
use upcall_os::fault::{Point, point};
use upcall_os::lock::RwLock;
use upcall_os::memory;
use upcall_os::process::Identity;
use upcall_sched::ceilings::{Bound as Crossed, Over};
use upcall_sched::{Request, give_way};
use upcall_shm::astack::Plan;
use upcall_shm::region::Region;
use upcall_shm::slot::{INLINE, Image, NO_ASTACK, Place};
use upcall_shm::span::{Room, Span};
use upcall_shm::tally::{self, Came, Tally};

pub use crate::endpoint::{Policy, Running, Server};

/// The most bindings that go through one channel in its life; then another channel is made.
pub const MOST_BINDINGS: u16 = 64;

/// Procedure numbers of the runtime itself.
pub(crate) const RELEASE: u16 = 1023;
pub(crate) const FETCH: u16 = 1022;

/// A message's tag: six bits of binding, ten of procedure.
pub(crate) fn tag(binding: u16, procedure: u16) -> u16 {
    binding << 10 | procedure & 0x3ff
}

/// How a call went: the tag of a reply.
pub(crate) mod outcome {
    pub(crate) const DONE: u16 = 0;
    pub(crate) const REFUSED: u16 = 1;
    pub(crate) const PANICKED: u16 = 2;
    pub(crate) const NO_SUCH_PROCEDURE: u16 = 3;
    pub(crate) const REVOKED: u16 = 4;
    pub(crate) const HELD: u16 = 5;
    pub(crate) const NO_SUCH_HANDLE: u16 = 6;
    pub(crate) const QUOTA: u16 = 7;
    pub(crate) const NO_MEMORY: u16 = 8;
    /// The procedure has run; its results are not kept.
    pub(crate) const RESULT_QUOTA: u16 = 9;
    /// The procedure has run; there is no memory for its results.
    pub(crate) const RESULT_NO_MEMORY: u16 = 10;
    pub(crate) const UNANSWERED: u16 = upcall_sched::server::UNANSWERED;
}

/// Runs an interface's procedures. Implemented by generated code.
pub trait Dispatch: Send + Sync {
    /// Runs one call.
    fn dispatch(&self, call: Call<'_>) -> Replied;
}

/// An implementation of an interface, ready to be exported under a name.
pub struct Export {
    pub(crate) interface: &'static Interface,
    pub(crate) dispatch: Arc<dyn Dispatch>,
}

impl Export {
    /// Joins an interface with code that runs it. Generated code calls this.
    pub fn new(interface: &'static Interface, dispatch: impl Dispatch + 'static) -> Self {
        Self { interface, dispatch: Arc::new(dispatch) }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({})", self.interface.id)
    }
}

/// The exports of this domain, by name.
#[derive(Default)]
pub(crate) struct Exports(RwLock<BTreeMap<String, Arc<Entry>>>);

pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) interface: &'static Interface,
    pub(crate) dispatch: Arc<dyn Dispatch>,
    pub(crate) clients: AtomicU32,
}

impl Exports {
    fn read(&self) -> upcall_os::lock::RwLockReadGuard<'_, BTreeMap<String, Arc<Entry>>> {
        self.0.read()
    }

    pub(crate) fn add(&self, name: &str, export: Export) -> Result<(), crate::ServeError> {
        let found = export.interface.procedures.len();
        if found > MOST_PROCEDURES {
            return Err(crate::ServeError::TooManyProcedures { found });
        }
        let entry = Entry {
            name: name.into(),
            interface: export.interface,
            dispatch: export.dispatch,
            clients: AtomicU32::new(0),
        };
        let before = self.0.write().insert(name.into(), Arc::new(entry));
        // Its drop is the server's code, and not for under the lock.
        drop(before);
        Ok(())
    }

    /// What a binder may have: the entry and the descriptors of the procedures it wants.
    pub(crate) fn bind(
        &self,
        name: &str,
        interface: &str,
        wanted: &[Wanted<'_>],
    ) -> Result<(Arc<Entry>, Vec<Descriptor>), Refusal> {
        if wanted.len() > MOST_PROCEDURES {
            return Err(Refusal::Protocol(
                "a binding to more procedures than an interface has".into(),
            ));
        }
        let entry = self.read().get(name).cloned().ok_or(Refusal::NoSuchName)?;
        // Versions of one interface may differ; what counts is whether each procedure is understood
        // alike.
        if without_version(interface) != without_version(&entry.interface.id) {
            return Err(Refusal::WrongInterface { exported: entry.interface.id.to_string() });
        }
        let mut descriptors = Vec::new();
        let no_memory = |_| Refusal::Resource {
            what: "the list of procedures".into(),
            code: Errno::NOMEM.raw_os_error(),
        };
        descriptors.try_reserve_exact(wanted.len()).map_err(no_memory)?;
        let matched = |number| descriptors.push(entry.interface.descriptor(number));
        match_each(wanted, entry.interface, matched).map_err(Refusal::Mismatch)?;
        Ok((entry, descriptors))
    }

    /// Takes all out, also those whose names could not be entered.
    pub(crate) fn remove_all(&self) -> Vec<Arc<Entry>> {
        let all = std::mem::take(&mut *self.0.write());
        all.into_values().collect()
    }

    pub(crate) fn list(&self) -> Vec<Exported> {
        let describe = |(name, entry): (&String, &Arc<Entry>)| Exported {
            name: name.clone(),
            interface: entry.interface.id.to_string(),
            source: entry.interface.source.to_string(),
            limits: entry.interface.limits.to_string(),
            clients: entry.clients.load(Ordering::Relaxed),
            procedures: entry
                .interface
                .procedures
                .iter()
                .map(|p| (p.name.to_string(), p.signature.to_string()))
                .collect(),
        };
        self.read().iter().map(describe).collect()
    }
}

fn without_version(id: &str) -> &str {
    id.split('@').next().unwrap_or(id)
}

/// A client's binding, as its server sees it: see [`Running::revoke`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientBinding<'a> {
    /// The name that was bound.
    pub name: &'a str,
    /// The client's process, by the kernel's word; 0 if it is not visible in this PID namespace,
    /// or is on another machine.
    pub pid: u32,
    /// The user of the client's process.
    pub uid: u32,
    /// What tells the client's process apart from all others, also where its number is 0: the same
    /// as [`Peer::process`](upcall_os::socket::Peer::process), which the policy has seen. `None`
    /// for a client on another machine.
    pub process: Option<Identity>,
}

/// One binding, on the server's side.
pub(crate) struct Bound {
    pub(crate) entry: Arc<Entry>,
    /// What it has done. `None` if too many others are counted.
    pub(crate) tally: Option<Tally>,
    pub(crate) session: Arc<Session>,
    pub(crate) plan: Plan,
    /// Once its client has brought what the plan needs.
    pub(crate) astacks: OnceLock<Arc<Region>>,
    revoked: AtomicBool,
}

impl Bound {
    /// Counts the client as one of the entry's. On a machine of its own its values come in
    /// messages, and the plan has no A-stacks.
    pub(crate) fn new(
        entry: Arc<Entry>,
        tally: Option<Tally>,
        session: Session,
        plan: Plan,
        astacks: Option<Arc<Region>>,
    ) -> Self {
        entry.clients.fetch_add(1, Ordering::Relaxed);
        let astacks = astacks.map(OnceLock::from).unwrap_or_default();
        Self {
            entry,
            tally,
            session: Arc::new(session),
            plan,
            astacks,
            revoked: AtomicBool::new(false),
        }
    }

    /// Whether it is good no longer.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Lets no call in any more, and leaves what the client holds to the keeper. Calls that run go
    /// on to their end.
    pub(crate) fn revoke(&self, keeper: &Keeper) {
        if !self.revoked.swap(true, Ordering::SeqCst) {
            self.entry.clients.fetch_sub(1, Ordering::Relaxed);
            self.tally.iter().for_each(Tally::end);
            keeper.take(self.session.close());
        }
    }
}

/// A call that has arrived: answer it by one of the methods that give a [`Replied`].
pub struct Call<'a> {
    request: Asker<'a>,
    bound: &'a Bound,
    procedure: u16,
    came: Came,
    args: Span<'a>,
    /// Where results may go that do not fit into a slot.
    astack: Option<Room<'a>>,
    segment: Option<Room<'a>>,
    /// When it was taken, if its time is to be.
    taken: Option<Instant>,
}

/// Who waits for the answer.
enum Asker<'a> {
    /// A client that shares memory.
    Channel(Request<'a>),
    /// One on another machine, for which the answer is taken from here.
    Network(&'a Cell<Option<Image>>),
}

impl Asker<'_> {
    #[inline]
    fn reply(self, reply: &mut Image) {
        match self {
            Self::Channel(request) => request.reply(reply),
            Self::Network(answer) => answer.set(Some(*reply)),
        }
    }
}

/// Proof that a call was answered.
#[derive(Debug)]
pub struct Replied(());

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({}, procedure {})", self.bound.entry.interface.id, self.procedure)
    }
}

impl Call<'_> {
    /// The procedure's number in the interface.
    #[inline]
    pub fn procedure(&self) -> u16 {
        self.procedure
    }

    /// Runs the procedure on its arguments and answers with its result. A panic in it is answered
    /// as such, and the server goes on.
    #[inline]
    pub fn respond<R: Put>(
        self,
        run: impl FnOnce(&Decoder<'_>) -> Result<R, Malformed>,
    ) -> Replied {
        let Some(procedure) =
            self.bound.entry.interface.procedures.get(usize::from(self.procedure))
        else {
            return self.unknown();
        };
        let fixed = procedure.args.fixed as usize;
        let args =
            Decoder::new(self.args, fixed, procedure.limits, Side::Server(&self.bound.session));
        point(Point::ServerRuns);
        let ran = catch_unwind(AssertUnwindSafe(|| run(&args)));
        point(Point::ServerRan);
        match ran {
            Ok(Ok(result)) => self.done(result, procedure.limits),
            Ok(Err(malformed)) => self.malformed(&malformed),
            Err(panic) => self.panicked(&*panic),
        }
    }

    /// Answers that there is no such procedure.
    #[cold]
    pub fn unknown(self) -> Replied {
        self.plain(outcome::NO_SUCH_PROCEDURE)
    }

    pub(crate) fn plain(self, tag: u16) -> Replied {
        self.answer(&mut Image::new(0, tag, NO_ASTACK), 0)
    }

    /// Sends the reply, with so many bytes of results, and counts the call while that is on its
    /// way.
    #[inline(never)]
    fn answer(self, reply: &mut Image, results: usize) -> Replied {
        let Self { request, bound, procedure, came, args, taken, .. } = self;
        let outcome = reply.tag();
        request.reply(reply);
        if let Some(tally) = bound.tally.as_ref().filter(|_| procedure < FETCH) {
            let counts = tally.of(processor());
            counts.count(procedure, came, counted(outcome), args.len(), results);
            if let Some(taken) = taken {
                cold_path();
                counts.time(taken.elapsed());
            }
        }
        Replied(())
    }

    /// Writes the result to where the client can read it: the slot, the A-stack, the segment; or
    /// keeps it until it is fetched.
    #[inline]
    fn done<R: Put>(self, result: R, limits: crate::Limits) -> Replied {
        let replied = self.reply_with(&result, limits);
        // The client has its answer, and waits no longer.
        if !R::FIXED {
            result.free(&Pace::new(true));
        }
        replied
    }

    #[inline]
    fn reply_with<R: Put>(self, result: &R, limits: crate::Limits) -> Replied {
        let session = Some(&self.bound.session);
        let len = block_len(result);
        let mut reply = Image::new(0, outcome::DONE, NO_ASTACK);
        let fault = if len <= INLINE {
            reply.place(Place::Inline, 0, len as u32);
            if len == 0 {
                Ok(())
            } else {
                Encoder::block(Room::of_words(&mut reply.values), result, limits, session)
            }
        } else if let Some(room) = self.astack.filter(|room| room.len() >= len) {
            reply.place(Place::AStack, 0, len as u32);
            Encoder::block(room, result, limits, session)
        } else if let Some(room) = self.segment.filter(|room| room.len() >= len) {
            reply.values[0] = len as u64;
            reply.place(Place::Segment, 0, 8);
            Encoder::block(room, result, limits, session)
        } else {
            // Before there is one: what a client may not leave here costs no memory.
            let counted = match self.bound.session.count_result(len.div_ceil(8)) {
                Ok(counted) => counted,
                Err(over) => return self.numbers(outcome::RESULT_QUOTA, unkept(len, over)),
            };
            let Some(mut block) = zeroed(len.div_ceil(8)) else {
                return self.numbers(outcome::RESULT_NO_MEMORY, [len as u64, 0, 0]);
            };
            let fault = Encoder::block(Room::of_words(&mut block), result, limits, session);
            if fault.is_ok() {
                point(Point::ServerHolds);
                let key = self.bound.session.hold(block, counted);
                reply = Image::new(0, outcome::HELD, NO_ASTACK);
                (reply.values[0], reply.values[1]) = (key, len as u64);
                reply.place(Place::Inline, 0, 16);
            } else {
                Pace::new(true).free(block);
            }
            fault
        };
        match fault {
            Ok(()) => self.answer(&mut reply, len),
            Err(Fault::TooLong { what, len, limit }) => {
                self.text(outcome::REFUSED, &format!("result: {what} of {len} > limit {limit}"))
            }
            Err(Fault::TooManyObjects) => {
                self.text(outcome::REFUSED, "too many resources are held")
            }
            Err(Fault::NoMemory) => self.text(outcome::REFUSED, "no memory to hold a resource"),
            Err(_) => self.text(outcome::REFUSED, "the result has no room"),
        }
    }

    #[cold]
    fn malformed(self, malformed: &Malformed) -> Replied {
        match malformed {
            Malformed::NoSuchHandle { .. } => self.plain(outcome::NO_SUCH_HANDLE),
            Malformed::Quota { bytes, limit, of } => {
                self.numbers(outcome::QUOTA, [*bytes, *limit, *of as u64])
            }
            Malformed::NoMemory { bytes } => self.numbers(outcome::NO_MEMORY, [*bytes, 0, 0]),
            other => {
                let text = other.to_string();
                self.text(outcome::REFUSED, &text)
            }
        }
    }

    #[cold]
    fn panicked(self, panic: &(dyn Any + Send)) -> Replied {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        self.text(outcome::PANICKED, text.unwrap_or("with something else than a text"))
    }

    fn numbers(self, tag: u16, numbers: [u64; 3]) -> Replied {
        let mut reply = Image::new(0, tag, NO_ASTACK);
        reply.values[..3].copy_from_slice(&numbers);
        reply.place(Place::Inline, 0, 24);
        self.answer(&mut reply, 0)
    }

    /// Answers with a short text, cut to what a slot carries.
    fn text(self, tag: u16, text: &str) -> Replied {
        let mut end = text.len().min(INLINE - 16);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut reply = Image::new(0, tag, NO_ASTACK);
        let _ = Encoder::block(
            Room::of_words(&mut reply.values),
            &text[..end],
            crate::Limits::default(),
            None,
        );
        reply.place(Place::Inline, 0, INLINE as u32);
        self.answer(&mut reply, 0)
    }

    /// The runtime's own procedure: the client drops its hold on a resource.
    fn release(self) -> Replied {
        let handle = self.args.u64(0).unwrap_or(0);
        point(Point::ServerReleases);
        // The object's drop is the server's code: if it panics, the server goes on.
        let _ = catch_unwind(AssertUnwindSafe(|| self.bound.session.remove(handle)));
        self.plain(outcome::DONE)
    }

    /// The runtime's own procedure: the client brings a segment for a result that it had no room
    /// for.
    fn fetch(self) -> Replied {
        let Some(mut kept) = self.args.u64(0).and_then(|key| self.bound.session.fetch(key)) else {
            return self.plain(outcome::NO_SUCH_HANDLE);
        };
        let len = kept.block.len() * 8;
        let Some(room) = self.segment.filter(|room| room.len() >= len) else {
            kept.forget();
            return self.plain(outcome::REFUSED);
        };
        let block = &mut kept.block;
        point(Point::ServerGives);
        let returns = memory::returns_to_the_kernel(len);
        // The last piece first, so that each can be freed when it was copied.
        while let Some(at) = block.len().checked_sub(1).map(|last| last / WORDS * WORDS) {
            let from = Room::of_words(&mut block[at..]);
            let _ = room.within(at * 8, from.len()).map(|to| from.copy_to(to));
            let words = block.len() - at;
            block.truncate(at);
            if returns {
                memory::discard(&mut block.spare_capacity_mut()[..words]);
            }
            give_way();
        }
        drop(mem::take(block));
        // Counted until here: a client that fetches its results may have the next one kept.
        drop(kept);
        let mut reply = Image::new(0, outcome::DONE, NO_ASTACK);
        reply.values[0] = len as u64;
        reply.place(Place::Segment, 0, 8);
        self.answer(&mut reply, len)
    }
}

/// The numbers of a reply to a client whose result is not kept.
pub(crate) fn unkept(bytes: usize, over: Over) -> [u64; 3] {
    let of = if over.bound == Crossed::Client { Quota::Client } else { Quota::All };
    [bytes as u64, over.most as u64, of as u64]
}

/// Words of a piece.
const WORDS: usize = PIECE / 8;

/// Makes `words` words of zeros in pieces; `None` if there is no memory for them.
pub(crate) fn zeroed(words: usize) -> Option<Vec<u64>> {
    let mut block = Vec::new();
    block.try_reserve_exact(words).ok()?;
    while block.len() < words {
        if !block.is_empty() {
            give_way();
        }
        block.resize(words.min(block.len() + WORDS), 0);
    }
    Some(block)
}

/// Which processor of the server this is: procedures run on no other ones.
#[inline]
fn processor() -> usize {
    upcall_sched::index()
}

/// How an outcome is counted.
fn counted(outcome: u16) -> tally::Outcome {
    if outcome == outcome::DONE {
        return tally::Outcome::Done;
    }
    cold_path();
    match outcome {
        outcome::HELD => tally::Outcome::Done,
        outcome::PANICKED | outcome::UNANSWERED => tally::Outcome::Panicked,
        outcome::NO_SUCH_PROCEDURE | outcome::NO_SUCH_HANDLE => tally::Outcome::Unknown,
        _ => tally::Outcome::Refused,
    }
}

/// Where the arguments of a request lie, and the A-stack that it names; `None` if one of them is
/// not there.
#[inline]
pub(crate) fn brought<'a>(
    image: &'a Image,
    plan: &Plan,
    astacks: Option<&'a Arc<Region>>,
    segment: Option<Room<'a>>,
) -> Option<(Span<'a>, Option<Room<'a>>)> {
    let astack = match image.astack() {
        NO_ASTACK => None,
        number => {
            let (at, len) = plan.place(number)?;
            Some(astacks?.room(at, len)?)
        }
    };
    let args = match image.values_in()? {
        // With a deadline in the last word the values end before it; a client that says otherwise
        // has that read as one.
        Place::Inline => Span::of_words(&image.values).part(0, image.len()),
        Place::AStack => astack.and_then(|room| room.part(0, image.len())),
        Place::Segment => usize::try_from(image.values[0])
            .ok()
            .and_then(|len| segment.and_then(|room| room.part(0, len))),
    };
    Some((args?, astack))
}

/// The guards of every call, in order; each leaves by an answer that says why (LRPC, section 3.2:
/// the kernel verifies the binding, the procedure and the A-stack).
pub(crate) fn serve(shared: &Shared, request: Request<'_>, came: Came) {
    let image = request.image();
    let Some(bound) = shared.bound(image.tag() >> 10) else {
        return refuse(request, outcome::REVOKED);
    };
    if bound.is_revoked() {
        return refuse(request, outcome::REVOKED);
    }
    match image.segment() {
        0 => serve_bound(bound, request, None, came),
        number => serve_with_segment(shared, bound, request, number, came),
    }
}

#[cold]
fn refuse(request: Request<'_>, tag: u16) {
    request.reply(&mut Image::new(0, tag, NO_ASTACK));
}

#[inline(never)]
fn serve_with_segment(
    shared: &Shared,
    bound: &Bound,
    request: Request<'_>,
    number: u16,
    came: Came,
) {
    let Some(region) = shared.segment(number) else { return refuse(request, outcome::REFUSED) };
    serve_bound(bound, request, region.room(0, region.len()), came);
}

/// Runs a request by its binding, whose client has brought this segment with it. Laid out for what
/// most calls do: on a processor that has just been switched to, each line of code comes from
/// memory far away.
#[inline(always)]
fn serve_bound(bound: &Bound, request: Request<'_>, segment: Option<Room<'_>>, came: Came) {
    let image = request.image();
    let Some((args, astack)) = brought(image, &bound.plan, bound.astacks.get(), segment) else {
        return refuse(request, outcome::REFUSED);
    };
    let procedure = image.tag() & 0x3ff;
    let mut taken = None;
    if bound.tally.as_ref().is_some_and(|tally| tally.of(processor()).is_sampled(procedure)) {
        cold_path();
        taken = Some(Instant::now());
    }
    let ends = image.deadline();
    let call = Call {
        request: Asker::Channel(request),
        bound,
        procedure,
        came,
        args,
        astack,
        segment,
        taken,
    };
    if procedure >= FETCH || ends.is_some() {
        return serve_uncommon(call, ends);
    }
    let _replied = bound.entry.dispatch.dispatch(call);
}

/// Requests to the runtime itself, and those that end at a time.
#[inline(never)]
fn serve_uncommon(call: Call<'_>, ends: Option<u64>) {
    let dispatch = &call.bound.entry.dispatch;
    let _replied = match call.procedure {
        RELEASE => call.release(),
        FETCH => call.fetch(),
        _ => match ends.and_then(clock::moment) {
            None => dispatch.dispatch(call),
            Some(ends) => upcall_thread::with_calls_that_end(ends, || dispatch.dispatch(call)),
        },
    };
}

/// The same for a client on another machine, whose arguments are here already. Gives the outcome,
/// and the results.
pub(crate) fn serve_guest(
    bound: &Bound,
    procedure: u16,
    args: &Block,
    ends: Option<Instant>,
) -> (u16, Block) {
    if bound.is_revoked() {
        return (outcome::REVOKED, Block::default());
    }
    let answer = Cell::new(None);
    let taken = bound
        .tally
        .as_ref()
        .filter(|tally| tally.of(processor()).is_sampled(procedure))
        .map(|_| Instant::now());
    let (request, args, came) = (Asker::Network(&answer), args.view(), Came::Network);
    let call = Call { request, bound, procedure, came, args, astack: None, segment: None, taken };
    let run = || match procedure {
        RELEASE => call.release(),
        FETCH => call.unknown(),
        _ => bound.entry.dispatch.dispatch(call),
    };
    // Generated code answers however the procedure ends. Other code may end in a panic of its own.
    let _replied = catch_unwind(AssertUnwindSafe(|| match ends {
        None => run(),
        Some(ends) => upcall_thread::with_calls_that_end(ends, run),
    }));
    let Some(image) = answer.take() else { return (outcome::UNANSWERED, Block::default()) };
    if image.tag() != outcome::HELD {
        return (image.tag(), Block { len: image.len(), words: image.values.to_vec() });
    }
    // What was kept for a client that has no room is sent at once.
    match bound.session.fetch(image.values[0]) {
        Some(mut kept) if kept.block.len() * 8 <= MOST_BODY => {
            let words = mem::take(&mut kept.block);
            (outcome::DONE, Block { len: words.len() * 8, words })
        }
        Some(kept) => {
            kept.forget();
            (outcome::REFUSED, text_block("results longer than messages"))
        }
        None => (outcome::REVOKED, Block::default()),
    }
}

/// Frees what a call over the network brought or returned, as [`Pace`] does.
pub(crate) fn free(mut block: Block) {
    Pace::new(true).free(mem::take(&mut block.words));
}

/// A short text as a block, for replies of the runtime itself.
pub(crate) fn text_block(text: &str) -> Block {
    let mut words = vec![0; INLINE / 8];
    let _ = Encoder::block(Room::of_words(&mut words), text, crate::Limits::default(), None);
    Block { words, len: INLINE }
}
