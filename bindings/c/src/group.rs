//! Groups: members in C, their handlers, and the messages that they send and receive.
//! `include/upcall_message.h` documents the functions.
//!
//! A group belongs to the thread that joined it. The parts that another thread may read, such as
//! the rank, never change; every other function checks the calling thread first ([`here`]). A
//! program's handlers run within functions of this module, which count themselves ([`GroupUse`]),
//! so that the group is not freed while one of them uses it.
//!
//! Outgoing payloads are checked against their signatures. Incoming payloads are copied, and the
//! copy is checked. C gets no pointer into memory that a peer can write, except where it asks for
//! the message in place ([`place`](crate::place)).

use crate::client::{hand_out, pacing, take_back};
use crate::error::{CError, Problem, Status, guard, guard_or, guard_status, text};
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use upcall_message::{
    Carried, Event, ForeignKind, Group, GroupBuilder, Handlers, Message, Rank, SendError,
};

/// `UPCALL_NEVER`.
const NEVER: u64 = u64::MAX;

/// `UPCALL_NO_KIND`.
pub(crate) const NO_KIND: u32 = u32::MAX;

/// Maximum size of a payload that is copied to the stack, in bytes.
pub(crate) const SMALL: usize = 64;

/// Size of an event's text in bytes, including its NUL.
const TEXT: usize = 300;

/// `upcall_message`.
#[repr(C)]
pub struct CMessage {
    pub(crate) from: usize,
    pub(crate) kind: u32,
    pub(crate) size: usize,
    pub(crate) data: *const c_void,
}

/// `upcall_event`.
#[repr(C)]
pub struct CEvent {
    what: u32,
    rank: usize,
    other: usize,
    text: [c_char; TEXT],
}

const _: () = assert!(size_of::<CMessage>() == 32 && size_of::<CEvent>() == 328);

impl CEvent {
    fn of(what: u32, (rank, other): (usize, usize), text: &str) -> Self {
        Self { what, rank, other, text: fill(text) }
    }
}

type HandlerFn = unsafe extern "C" fn(*mut c_void, *mut CGroup, *const CMessage);
type DoneFn = unsafe extern "C" fn(*mut c_void) -> bool;
type CombineFn = unsafe extern "C" fn(*mut c_void, *mut u64, *const u64);

/// Where handlers find the group that they belong to.
type GroupCell = Rc<Cell<*mut CGroup>>;

/// `upcall_handlers`.
#[derive(Default)]
pub struct CHandlers {
    pub(crate) handlers: Handlers,
    pub(crate) kinds: Vec<ForeignKind>,
    pub(crate) place: GroupCell,
}

/// `upcall_joining`.
pub struct CGroupBuilder(pub(crate) GroupBuilder);

/// `upcall_group`.
pub struct CGroup {
    thread: u64,
    rank: usize,
    /// By rank.
    processes: Box<[u32]>,
    /// Used by this thread only, like all fields below.
    pub(crate) group: Group,
    pub(crate) kinds: Box<[ForeignKind]>,
    /// Number of functions under way.
    within: Cell<u32>,
}

/// The calling thread's number, which no other thread ever has.
#[inline]
fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

/// Returns the group, for a function that only the group's thread may call.
///
/// # Safety
/// `group` is null or a group.
#[inline]
unsafe fn here<'g>(group: *const CGroup) -> Result<&'g CGroup, Problem> {
    // SAFETY: the caller's contract.
    let group = unsafe { group.as_ref() }.ok_or_else(|| Problem::misuse("the group is NULL"))?;
    if group.thread == thread() { Ok(group) } else { Err(other_thread()) }
}

#[cold]
fn other_thread() -> Problem {
    Problem::new(
        Status::OtherThread,
        "the group belongs to the thread that has joined it: call this function on that thread",
    )
}

/// A function of the group that is under way.
struct GroupUse<'g>(&'g Cell<u32>);

impl<'g> GroupUse<'g> {
    #[inline]
    fn enter(group: &'g CGroup) -> Self {
        group.within.set(group.within.get() + 1);
        Self(&group.within)
    }
}

impl Drop for GroupUse<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Runs `run` with a group, for a function that only the group's thread may call. The group is not
/// freed while it runs.
///
/// # Safety
/// The group is null or a group, and `error` is null or the caller's.
#[inline]
pub(crate) unsafe fn with(
    group: *const CGroup,
    error: *mut CError,
    run: impl FnOnce(&CGroup) -> Result<Status, Problem>,
) -> Status {
    let run = || {
        // SAFETY: the caller's contract.
        let group = unsafe { here(group) }?;
        let _within = GroupUse::enter(group);
        run(group)
    };
    // SAFETY: the caller's contract.
    unsafe { guard(error, |status| status, run) }
}

/// A C string's bytes, truncated if necessary, and padded with NULs.
pub(crate) fn fill<const N: usize>(said: &str) -> [c_char; N] {
    let mut end = said.len().min(N - 1);
    while !said.is_char_boundary(end) {
        end -= 1;
    }
    let mut text = [0; N];
    for (to, from) in text.iter_mut().zip(said[..end].bytes()) {
        *to = if from == 0 { b' ' } else { from } as c_char;
    }
    text
}

/// Memory from `calloc`.
pub(crate) struct MallocBlock {
    start: NonNull<u8>,
    size: usize,
}

impl MallocBlock {
    /// Allocates zeroed memory. The program ends if there is none, as for all memory of Rust.
    pub(crate) fn new(size: usize) -> Self {
        // SAFETY: asks for memory.
        let start = unsafe { libc::calloc(1, size) };
        match NonNull::new(start.cast()) {
            Some(start) => Self { start, size },
            None => std::alloc::handle_alloc_error(
                std::alloc::Layout::array::<u8>(size).unwrap_or(std::alloc::Layout::new::<u8>()),
            ),
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: initialised, of this size, and owned by this block.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.size) }
    }

    /// Returns the memory, which C frees.
    pub(crate) fn give(self) -> *const c_void {
        let start = self.start.as_ptr();
        std::mem::forget(self);
        start.cast()
    }
}

impl Drop for MallocBlock {
    fn drop(&mut self) {
        // SAFETY: from `calloc`, and owned by this block.
        unsafe { libc::free(self.start.as_ptr().cast()) };
    }
}

/// A payload that was copied and checked.
enum CopiedPayload {
    Small([u64; SMALL / 8], usize),
    Large(MallocBlock),
}

impl CopiedPayload {
    /// Returns `None` if the message does not fit its kind.
    fn small(message: &Message<'_, '_>, kind: &ForeignKind) -> Option<Self> {
        let (mut words, mut bytes, size) = ([0; SMALL / 8], [0; SMALL], message.size());
        message.copy_out(0, &mut bytes[..size])?;
        kind.check(&bytes[..size]).ok()?;
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Some(Self::Small(words, size))
    }

    fn large(message: &Message<'_, '_>, kind: &ForeignKind) -> Option<MallocBlock> {
        let mut block = MallocBlock::new(message.size());
        message.copy_out(0, block.bytes())?;
        kind.check(block.bytes()).ok()?;
        Some(block)
    }

    fn of(message: &Message<'_, '_>, kind: &ForeignKind) -> Option<Self> {
        if kind.size().is_some_and(|size| size != message.size()) {
            return None;
        }
        if message.size() <= SMALL {
            Self::small(message, kind)
        } else {
            Self::large(message, kind).map(Self::Large)
        }
    }

    fn message(&self, from: Rank, kind: u32) -> CMessage {
        let (data, size) = match self {
            Self::Small(words, size) => (words.as_ptr().cast(), *size),
            Self::Large(block) => (block.start.as_ptr().cast_const().cast(), block.size),
        };
        CMessage { from, kind, size, data: if size == 0 { ptr::null() } else { data } }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn upcall_handlers_new() -> *mut CHandlers {
    guard_or(ptr::null_mut(), || hand_out(CHandlers::default()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_handlers_free(handlers: *mut CHandlers) {
    // SAFETY: per the header, null, or handlers that is no longer in use.
    guard_or((), || drop(unsafe { take_back(handlers) }));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_handlers_kind(
    handlers: *mut CHandlers,
    name: *const c_char,
    carries: *const c_char,
    error: *mut CError,
) -> u32 {
    let run = || {
        // SAFETY: per the header, null, or handlers that is not in use elsewhere.
        let told =
            unsafe { handlers.as_mut() }.ok_or_else(|| Problem::misuse("the handlers are NULL"))?;
        // SAFETY: per the header, a C string.
        let name = unsafe { text(name, "the name") }?;
        // SAFETY: per the header, a C string.
        let carries = unsafe { text(carries, "the signature") }?;
        let carries = Carried::parse(carries).map_err(|bad| Problem::misuse(bad.to_string()))?;
        let kind =
            told.handlers.foreign(name, carries).map_err(|bad| Problem::misuse(bad.to_string()))?;
        told.kinds.push(kind.clone());
        Ok(kind.index().into())
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard(error, |_| NO_KIND, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_handlers_on(
    handlers: *mut CHandlers,
    kind: u32,
    handler: Option<HandlerFn>,
    context: *mut c_void,
    error: *mut CError,
) -> Status {
    let run = || {
        // SAFETY: per the header, null, or handlers that is not in use elsewhere.
        let told =
            unsafe { handlers.as_mut() }.ok_or_else(|| Problem::misuse("the handlers are NULL"))?;
        let kind_of = told.kinds.get(kind as usize).cloned().ok_or_else(|| no_such_kind(kind))?;
        let handler = handler.ok_or_else(|| Problem::misuse("the handler is NULL"))?;
        let (place, of) = (told.place.clone(), kind_of.clone());
        told.handlers.on_foreign(
            &kind_of,
            move |message| CopiedPayload::of(message, &of),
            move |_, from, copied| {
                let group = place.get();
                // SAFETY: set when the group was joined; it is freed only when it is left, which
                // does not happen within a handler.
                let Some(within) = (unsafe { group.as_ref() }) else { return };
                let _within = GroupUse::enter(within);
                // SAFETY: per the header, a function for this context.
                unsafe { handler(context, group, &copied.message(from, kind)) };
            },
        );
        Ok(())
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

#[cold]
pub(crate) fn no_such_kind(kind: u32) -> Problem {
    Problem::misuse(format!("there is no kind of message {kind} among these handlers"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_handlers_set_interruption(
    handlers: *mut CHandlers,
    ask: Option<DoneFn>,
    context: *mut c_void,
) {
    // SAFETY: per the header, null, or handlers that is not in use elsewhere.
    let Some(told) = (unsafe { handlers.as_mut() }) else { return };
    let Some(ask) = ask else { return };
    // SAFETY: per the header, a function for this context.
    guard_or((), || told.handlers.interruption(move || unsafe { ask(context) }));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_new(
    name: *const c_char,
    size: usize,
    error: *mut CError,
) -> *mut CGroupBuilder {
    let run = || {
        // SAFETY: per the header, a C string.
        let name = unsafe { text(name, "the name") }?;
        Ok(hand_out(CGroupBuilder(GroupBuilder::new(name, size).upcalls(false))))
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard(error, |_| ptr::null_mut(), run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_from_environment(error: *mut CError) -> *mut CGroupBuilder {
    let run = || Ok(hand_out(CGroupBuilder(GroupBuilder::from_environment()?.upcalls(false))));
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard(error, |_| ptr::null_mut(), run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_free(joining: *mut CGroupBuilder) {
    // SAFETY: per the header, null or a builder that is no longer in use.
    guard_or((), || drop(unsafe { take_back(joining) }));
}

/// Changes a group's builder.
///
/// # Safety
/// `joining` is null, or a builder that is not in use elsewhere.
pub(crate) unsafe fn say(
    joining: *mut CGroupBuilder,
    how: impl FnOnce(GroupBuilder) -> GroupBuilder,
) {
    // SAFETY: the caller's contract.
    let Some(joining) = (unsafe { joining.as_mut() }) else { return };
    guard_or((), || joining.0 = how(joining.0.clone()));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_set_rank(joining: *mut CGroupBuilder, rank: usize) {
    // SAFETY: the header's contract.
    unsafe { say(joining, |joining| joining.rank(rank)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_set_patience(
    joining: *mut CGroupBuilder,
    nanoseconds: u64,
) {
    // SAFETY: the header's contract.
    unsafe { say(joining, |joining| joining.within(duration(nanoseconds))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_set_pacing(joining: *mut CGroupBuilder, number: u32) {
    // SAFETY: the header's contract.
    unsafe { say(joining, |joining| joining.pacing(pacing(number))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_set_timeout(joining: *mut CGroupBuilder, nanoseconds: u64) {
    // SAFETY: the header's contract.
    unsafe { say(joining, |joining| joining.timeout(limit(nanoseconds))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_joining_set_limit(joining: *mut CGroupBuilder, bytes: u64) {
    // SAFETY: the header's contract.
    unsafe { say(joining, |joining| joining.limit(bytes)) }
}

/// A duration; `UPCALL_NEVER` is the longest one.
pub(crate) fn duration(nanoseconds: u64) -> Duration {
    limit(nanoseconds).unwrap_or(Duration::MAX)
}

/// A time limit, or `None` for no limit.
fn limit(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != NEVER).then(|| Duration::from_nanos(nanoseconds))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_join(
    joining: *mut CGroupBuilder,
    handlers: *mut CHandlers,
    error: *mut CError,
) -> *mut CGroup {
    let run = || {
        // SAFETY: per the header, null or a builder that the caller gives up.
        let joining = unsafe { take_back(joining) };
        // SAFETY: per the header, null, or handlers that the caller gives up.
        let handlers = unsafe { take_back(handlers) };
        let joining = joining.ok_or_else(|| Problem::misuse("`joining` is NULL"))?;
        let CHandlers { handlers, kinds, place } =
            *handlers.ok_or_else(|| Problem::misuse("the handlers are NULL"))?;
        let group = joining.0.join(handlers)?;
        let processes = (0..group.size()).map(|rank| group.process(rank).unwrap_or(0)).collect();
        let (rank, kinds, within) = (group.rank(), kinds.into(), Cell::new(0));
        let joined = hand_out(CGroup { thread: thread(), rank, processes, group, kinds, within });
        place.set(joined);
        Ok(joined)
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard(error, |_| ptr::null_mut(), run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_leave(group: *mut CGroup, error: *mut CError) -> Status {
    let run = || {
        if group.is_null() {
            return Ok(());
        }
        // SAFETY: per the header, a group.
        if unsafe { here(group) }?.within.get() > 0 {
            return Err(Problem::misuse(
                "a handler or another callback of the group is running: leave after that",
            ));
        }
        // SAFETY: per the header, the group is no longer in use; its count says that none of its
        // functions is under way.
        drop(unsafe { take_back(group) });
        Ok(())
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_rank(group: *const CGroup) -> usize {
    // SAFETY: per the header, null or a group; what is read never changes.
    unsafe { group.as_ref() }.map_or(0, |group| group.rank)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_size(group: *const CGroup) -> usize {
    // SAFETY: as above.
    unsafe { group.as_ref() }.map_or(0, |group| group.processes.len())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_process(group: *const CGroup, rank: usize) -> u32 {
    // SAFETY: as above.
    unsafe { group.as_ref() }.and_then(|group| group.processes.get(rank).copied()).unwrap_or(0)
}

/// How long a message waits for room.
enum SendTimeout {
    Not,
    Within(Duration),
    Always,
}

/// Sends a message.
///
/// # Safety
/// As for [`with`], and `size` bytes lie at `data`.
#[inline]
unsafe fn send(
    group: *const CGroup,
    to: usize,
    kind: u32,
    (data, size): (*const c_void, usize),
    waits: SendTimeout,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        let kind = group.kinds.get(kind as usize).ok_or_else(|| no_such_kind(kind))?;
        let payload = match data.is_null() {
            true if size > 0 => {
                return Err(Problem::misuse(format!("the payload of {size} bytes is NULL")));
            }
            true => &[],
            // SAFETY: the caller's contract.
            false => unsafe { slice::from_raw_parts(data.cast::<u8>(), size) },
        };
        match waits {
            SendTimeout::Always => group.group.send_foreign(to, kind, payload)?,
            SendTimeout::Within(limit) => {
                group.group.send_foreign_within(to, kind, payload, limit)?
            }
            SendTimeout::Not => group.group.try_send_foreign(to, kind, payload)?,
        }
        Ok(Status::Ok)
    };
    // SAFETY: the caller's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_send(
    group: *mut CGroup,
    to: usize,
    kind: u32,
    data: *const c_void,
    size: usize,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { send(group, to, kind, (data, size), SendTimeout::Always, error) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_send_within(
    group: *mut CGroup,
    to: usize,
    kind: u32,
    data: *const c_void,
    size: usize,
    nanoseconds: u64,
    error: *mut CError,
) -> Status {
    let waits = limit(nanoseconds).map_or(SendTimeout::Always, SendTimeout::Within);
    // SAFETY: the header's contract.
    unsafe { send(group, to, kind, (data, size), waits, error) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_try_send(
    group: *mut CGroup,
    to: usize,
    kind: u32,
    data: *const c_void,
    size: usize,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { send(group, to, kind, (data, size), SendTimeout::Not, error) }
}

/// The status for whether a message or an event waits. `NothingThere` is not a failure, and writes
/// no error.
pub(crate) fn there(is: bool) -> Status {
    if is { Status::Ok } else { Status::NothingThere }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_available(
    group: *const CGroup,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { with(group, error, |group| Ok(there(group.group.available()))) }
}

/// Takes the next message, or peeks at it.
///
/// # Safety
/// As the header requires for both.
unsafe fn next(
    group: *const CGroup,
    message: *mut CMessage,
    takes: bool,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        if message.is_null() {
            return Err(Problem::misuse("the pointer to the message is NULL"));
        }
        let read = |message: &Message<'_, '_>| {
            // A message of an unknown kind is a violation.
            let kind = group.kinds.get(usize::from(message.kind()))?;
            let fits = kind.size().is_none_or(|size| size == message.size());
            let block = if fits { CopiedPayload::large(message, kind) } else { None }?;
            Some((message.from(), message.kind(), block))
        };
        let found =
            if takes { group.group.receive_foreign(read) } else { group.group.peek_foreign(read) };
        let Ok((from, kind, block)) = found else { return Ok(Status::NothingThere) };
        let size = block.size;
        let data = if size == 0 { ptr::null() } else { block.give() };
        // SAFETY: not null, and per the header the caller's; it need not be initialised.
        unsafe { message.write(CMessage { from, kind: kind.into(), size, data }) };
        Ok(Status::Ok)
    };
    // SAFETY: the caller's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_receive(
    group: *mut CGroup,
    message: *mut CMessage,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { next(group, message, true, error) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_peek(
    group: *mut CGroup,
    message: *mut CMessage,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { next(group, message, false, error) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_poll(
    group: *mut CGroup,
    count: *mut usize,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        let polled = group.group.poll();
        if !count.is_null() {
            // SAFETY: not null, and per the header the caller's.
            unsafe { count.write(polled) };
        }
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_wait(
    group: *mut CGroup,
    nanoseconds: u64,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { with(group, error, |group| Ok(there(group.group.wait_foreign(limit(nanoseconds))?))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_run_until(
    group: *mut CGroup,
    done: Option<DoneFn>,
    context: *mut c_void,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        // SAFETY: per the header, a function for this context.
        group.group.run_until(|| done.is_some_and(|done| unsafe { done(context) }))?;
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_barrier(group: *mut CGroup, error: *mut CError) -> Status {
    let run = |group: &CGroup| {
        group.group.barrier()?;
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_reduce(
    group: *mut CGroup,
    value: *mut c_void,
    combine: Option<CombineFn>,
    context: *mut c_void,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        let value = NonNull::new(value.cast::<u64>())
            .ok_or_else(|| Problem::misuse("the value is NULL"))?;
        let combine = combine.ok_or_else(|| Problem::misuse("the function `combine` is NULL"))?;
        // SAFETY: per the header, eight bytes of the caller's, which need not be aligned.
        let own = unsafe { value.read_unaligned() };
        let reduced = group.group.reduce(own, |mut one, next| {
            // SAFETY: per the header, a function for this context and for two values of 8 bytes.
            unsafe { combine(context, &mut one, &next) };
            one
        })?;
        // SAFETY: as above.
        unsafe { value.write_unaligned(reduced) };
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_event(
    group: *mut CGroup,
    event: *mut CEvent,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        if event.is_null() {
            return Err(Problem::misuse("the pointer to the event is NULL"));
        }
        let told = match group.group.event() {
            None => return Ok(Status::NothingThere),
            Some(Event::Ended { rank }) => {
                CEvent::of(0, (rank, rank), "it has ended, or has left the group")
            }
            Some(Event::Violation { rank, what }) => CEvent::of(1, (rank, rank), &what),
            Some(Event::Joined { rank }) => CEvent::of(2, (rank, rank), "it has joined the group"),
            Some(Event::Parted { one, other }) => {
                CEvent::of(3, (one, other), "it and another member have lost each other")
            }
            Some(_) => return Err(Problem::new(Status::Internal, "an event of an unknown kind")),
        };
        // SAFETY: not null, and per the header the caller's; it need not be initialised.
        unsafe { event.write(told) };
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_begin_atomic(
    group: *mut CGroup,
    error: *mut CError,
) -> Status {
    let run = |group: &CGroup| {
        group.group.begin_atomic();
        Ok(Status::Ok)
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_end_atomic(group: *mut CGroup, error: *mut CError) -> Status {
    let run = |group: &CGroup| match group.group.end_atomic() {
        true => Ok(Status::Ok),
        false => Err(Problem::misuse("there is no atomic section to end")),
    };
    // SAFETY: the header's contract.
    unsafe { with(group, error, run) }
}

/// Writes one of a group's counters to `to`.
///
/// # Safety
/// As for [`with`], and `to` is null or the caller's.
unsafe fn tell(
    group: *const CGroup,
    to: *mut u64,
    error: *mut CError,
    number: impl FnOnce(&CGroup) -> Result<u64, Problem>,
) -> Status {
    let run = |group: &CGroup| {
        let to =
            NonNull::new(to).ok_or_else(|| Problem::misuse("the pointer to the number is NULL"))?;
        let number = number(group)?;
        // SAFETY: the caller's contract.
        unsafe { to.write(number) };
        Ok(Status::Ok)
    };
    // SAFETY: the caller's contract.
    unsafe { with(group, error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_buffered(
    group: *const CGroup,
    to: usize,
    bytes: *mut u64,
    error: *mut CError,
) -> Status {
    let buffered = |group: &CGroup| match group.processes.len() {
        size if to >= size => Err(SendError::NoSuchRank { rank: to, size }.into()),
        _ => Ok(group.group.buffered(to)),
    };
    // SAFETY: the header's contract.
    unsafe { tell(group, bytes, error, buffered) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_diverted(
    group: *const CGroup,
    count: *mut u64,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { tell(group, count, error, |group| Ok(group.group.diverted())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_group_diversions(
    group: *const CGroup,
    count: *mut u64,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { tell(group, count, error, |group| Ok(group.group.diversions())) }
}
