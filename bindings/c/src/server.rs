//! Servers, and the calls that they answer.

use crate::accepts::{CAccepts, PolicyFn, asking};
use crate::client::{hand_out, pacing, take_back};
use crate::error::{CError, Problem, Status, guard, guard_or, guard_status, text};
use crate::interface::{CInterface, known};
use crate::object::CObject;
use crate::reader::CReader;
use crate::writer::{CWriter, OwnedWriter};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::slice;
use std::sync::Arc;
use upcall_rpc::encode::EncodeError;
use upcall_rpc::untyped::{Foreign, Pieces, ResultBlock};
use upcall_rpc::{Bytes, Call, Dispatch, Export, Malformed, Replied, Running, Server, policy};

/// Size of the stacks that run calls, in bytes. C needs more stack than user-level threads in Rust
/// have.
const STACK_SIZE: usize = 1 << 20;

/// `upcall_server`.
pub struct CServer(Option<Server>);

/// `upcall_dispatch_fn`.
type DispatchFn = unsafe extern "C" fn(*const c_void, u32, *const CCall<'_, '_>);

/// The generated dispatcher, with the program's functions.
struct Functions {
    table: *const c_void,
    dispatch: DispatchFn,
}

// SAFETY: per the header, the table lives as long as the server, and any thread may call its
// functions.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

/// The data that outlives a procedure: its results, until they are written.
#[derive(Default)]
struct ProcedureArena {
    arena: RefCell<Vec<*mut c_void>>,
    failed: RefCell<Option<String>>,
    results: OnceCell<CResults>,
}

struct CResults {
    /// A copy, since the generated code's stack is gone.
    fixed: Vec<u8>,
    tail: Vec<(usize, *const u8, usize)>,
    views: OnceCell<Vec<(usize, &'static [u8])>>,
    len: usize,
    objects: RefCell<Vec<(usize, Arc<Foreign>)>>,
    fault: Option<EncodeError>,
    _pieces: OwnedWriter,
}

/// `upcall_call`.
pub struct CCall<'a, 'k> {
    reader: CReader<'a>,
    kept: &'k ProcedureArena,
}

impl Drop for ProcedureArena {
    fn drop(&mut self) {
        for memory in self.arena.get_mut().drain(..) {
            // SAFETY: from `upcall_call_alloc`, or the reader's; each is freed once.
            unsafe { libc::free(memory) };
        }
    }
}

impl Dispatch for Functions {
    fn dispatch(&self, call: Call<'_>) -> Replied {
        let number = call.procedure();
        let kept = ProcedureArena::default();
        call.respond(|decoder| {
            let call = CCall { reader: CReader::new(decoder), kept: &kept };
            // SAFETY: per the header, the generated dispatcher of this table.
            unsafe { (self.dispatch)(self.table, number.into(), &call) };
            // Results may point to the memory of the arguments.
            kept.arena.borrow_mut().extend(call.reader.memory());
            if let Some(fault) = call.reader.fault() {
                return Err(fault);
            }
            if let Some(text) = kept.failed.take() {
                // A failure is passed on like a panic, but without the hook's message.
                std::panic::resume_unwind(Box::new(text));
            }
            kept.results.get().map(CResults::answer).ok_or(Malformed::Short { at: 0 })
        })
    }
}

impl CResults {
    fn new(taken: OwnedWriter) -> Self {
        let fault = match (taken.0.status, taken.0.too_long) {
            (0, _) => None,
            (status, len) if status == Status::TooLong as u32 => Some(EncodeError::TooLong {
                what: "value",
                len,
                limit: taken.0.list_limit.max(taken.0.string_limit),
            }),
            _ => Some(EncodeError::Room),
        };
        let null = taken.pieces().iter().any(|piece| piece.data.is_null());
        let tail = taken
            .pieces()
            .iter()
            .map(|piece| (piece.at as usize, piece.data.cast(), piece.len as usize));
        let mut results = Self {
            fixed: taken.fixed().to_vec(),
            tail: tail.collect(),
            views: OnceCell::new(),
            len: taken.len(),
            objects: RefCell::default(),
            fault: fault.or(null.then_some(EncodeError::Room)),
            _pieces: taken,
        };
        results.objects = RefCell::new(results.given());
        results
    }

    /// Returns each object with its place in the block. The address of its handle tells in which
    /// piece it is.
    fn given(&self) -> Vec<(usize, Arc<Foreign>)> {
        let taken = &self._pieces;
        let mut starts = BTreeMap::new();
        starts.insert(taken.0.fixed as usize, 0);
        starts.extend(taken.pieces().iter().map(|piece| (piece.data as usize, piece.at as usize)));
        let mut objects = Vec::new();
        for given in taken.given() {
            // SAFETY: per the header, null or an object that the procedure gives away.
            let object: Option<Arc<Foreign>> = (!given.what.is_null())
                .then(|| unsafe { Arc::from_raw(given.what.cast::<CObject>()) } as _);
            let place = starts
                .range(..=given.at as usize)
                .next_back()
                .map(|(start, at)| given.at as usize - start + at);
            objects.extend(place.zip(object));
        }
        objects
    }

    fn answer(&self) -> ResultBlock<'_> {
        let views = self.views.get_or_init(|| {
            let view = |&(at, data, len): &(usize, *const u8, usize)| {
                if data.is_null() {
                    // A fault was recorded, so the piece is not read.
                    return (at, &[][..]);
                }
                // SAFETY: per the header, what results point to lives until the call has been
                // answered, and this is dropped before that.
                (at, unsafe { slice::from_raw_parts(data, len) })
            };
            self.tail.iter().map(view).collect()
        });
        let block = Pieces { fixed: &self.fixed, tail: views, len: self.len };
        ResultBlock { block, objects: RefCell::new(self.objects.take()), fault: self.fault.clone() }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_call_reader<'a>(call: *const CCall<'a, '_>) -> *const CReader<'a> {
    // SAFETY: per the header, the dispatcher's own argument.
    unsafe { &raw const (*call).reader }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_call_accept(call: *const CCall<'_, '_>) {
    // SAFETY: per the header, the dispatcher's own argument.
    guard_or((), || unsafe { &*call }.reader.keep_objects());
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_call_reply(call: *const CCall<'_, '_>, results: *mut CWriter) {
    guard_or((), || {
        // SAFETY: per the header, the generated code's writer, which it does not use again.
        let taken = unsafe { OwnedWriter::take(results) };
        // SAFETY: per the header, the dispatcher's own argument.
        let call = unsafe { &*call };
        let _ = call.kept.results.set(CResults::new(taken));
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_call_failed(call: *const CCall<'_, '_>) -> bool {
    // SAFETY: per the header, the dispatcher's own argument.
    guard_or(true, || unsafe { &*call }.kept.failed.borrow().is_some())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_call_fail(call: *const CCall<'_, '_>, said: *const c_char) {
    guard_or((), || {
        // SAFETY: per the header, a C string.
        let text = unsafe { text(said, "the text") }.unwrap_or("without a text");
        // SAFETY: per the header, the procedure's own argument.
        *unsafe { &*call }.kept.failed.borrow_mut() = Some(text.to_owned());
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_call_alloc(
    call: *const CCall<'_, '_>,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: any size may be requested.
    let memory = unsafe { libc::malloc(bytes.max(1)) };
    if memory.is_null() {
        std::process::abort();
    }
    // SAFETY: per the header, the procedure's own argument.
    guard_or((), || unsafe { &*call }.kept.arena.borrow_mut().push(memory));
    memory
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_bytes_len(bytes: *const Bytes<'_>) -> usize {
    // SAFETY: per the header, an argument of a procedure that has not returned.
    unsafe { &*bytes }.len()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_bytes_copy(
    bytes: *const Bytes<'_>,
    at: usize,
    to: *mut u8,
    len: usize,
) -> bool {
    guard_or(false, || {
        // SAFETY: per the header, an argument of a procedure that has not returned.
        let Some(part) = unsafe { &*bytes }.part(at, len) else { return false };
        if len == 0 {
            return true;
        }
        // SAFETY: per the header, that many bytes of the caller's; they are fully written before
        // they are read.
        part.copy_to(unsafe { slice::from_raw_parts_mut(to, len) }).is_some()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_bytes_write(bytes: *const Bytes<'_>, descriptor: c_int) -> c_int {
    guard_or(libc::EIO, || {
        if descriptor < 0 {
            return libc::EBADF;
        }
        // SAFETY: the caller's descriptor; if it is not open, the kernel reports that.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        // SAFETY: per the header, an argument of a procedure that has not returned.
        match unsafe { &*bytes }.write_to(descriptor) {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_bytes_each(
    bytes: *const Bytes<'_>,
    each: unsafe extern "C" fn(*mut c_void, *const c_void, usize),
    context: *mut c_void,
) {
    guard_or((), || {
        // SAFETY: per the header, an argument of a procedure that has not returned.
        let bytes = unsafe { &*bytes };
        // SAFETY: per the header, a function for this context.
        bytes.for_each_chunk(|part| unsafe { each(context, part.as_ptr().cast(), part.len()) });
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn upcall_server_new() -> *mut CServer {
    guard_or(ptr::null_mut(), || hand_out(CServer(Some(Server::new().stack_size(STACK_SIZE)))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_free(server: *mut CServer) {
    // SAFETY: per the header, null or a server that is no longer in use.
    guard_or((), || drop(unsafe { take_back(server) }));
}

/// Changes a server that is being set up.
///
/// # Safety
/// `server` is null, or a server that is not in use elsewhere.
unsafe fn change(server: *mut CServer, change: impl FnOnce(Server) -> Server) {
    // SAFETY: the caller's contract.
    let Some(server) = (unsafe { server.as_mut() }) else { return };
    guard_or((), || server.0 = server.0.take().map(change));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_set_processors(server: *mut CServer, count: usize) {
    // SAFETY: the header's contract.
    unsafe { change(server, |server| server.processors(count)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_set_spare_processors(server: *mut CServer, most: usize) {
    // SAFETY: the header's contract.
    unsafe { change(server, |server| server.spare_processors(most)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_set_pacing(server: *mut CServer, number: u32) {
    // SAFETY: the header's contract.
    unsafe { change(server, |server| server.pacing(pacing(number))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_set_stack_size(server: *mut CServer, bytes: usize) {
    // SAFETY: the header's contract.
    unsafe { change(server, |server| server.stack_size(bytes.max(64 << 10))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_set_policy(
    server: *mut CServer,
    policy: Option<PolicyFn>,
    context: *mut c_void,
) {
    let Some(policy) = policy else { return };
    // SAFETY: the header's contract.
    unsafe { change(server, |server| server.policy(asking(policy, context))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_set_accepts(
    server: *mut CServer,
    accepts: *const CAccepts,
    error: *mut CError,
) -> Status {
    let run = || {
        // SAFETY: per the header, null or a server that is being set up by this thread.
        let server =
            unsafe { server.as_mut() }.ok_or_else(|| Problem::misuse("the server is NULL"))?;
        // SAFETY: per the header, null or a struct of the caller's.
        let policy = match unsafe { accepts.as_ref() } {
            None => Box::new(policy::own_user()),
            // SAFETY: the header's contract.
            Some(accepts) => unsafe { accepts.policy() }?,
        };
        server.0 = server.0.take().map(|server| server.policy(policy));
        Ok(())
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_set_mode(server: *mut CServer, mode: u32) {
    // SAFETY: the header's contract.
    unsafe { change(server, |server| server.mode(mode)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_set_group(server: *mut CServer, group: u32) {
    // SAFETY: the header's contract.
    unsafe { change(server, |server| server.group(group)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_set_group_named(
    server: *mut CServer,
    group: *const c_char,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { set_text(server, group, "the group", error, |server, group| server.group(group)) }
}

/// Changes a server that is being set up by a text; `what` names the text in errors.
///
/// # Safety
/// The server is null or not in use by another thread, `given` is null or a C string, and `error`
/// is null or the caller's.
unsafe fn set_text(
    server: *mut CServer,
    given: *const c_char,
    what: &str,
    error: *mut CError,
    how: fn(Server, &str) -> Server,
) -> Status {
    let run = || {
        // SAFETY: the caller's contract.
        let server =
            unsafe { server.as_mut() }.ok_or_else(|| Problem::misuse("the server is NULL"))?;
        // SAFETY: the caller's contract.
        let given = unsafe { text(given, what) }?;
        server.0 = server.0.take().map(|server| how(server, given));
        Ok(())
    };
    // SAFETY: the caller's contract.
    unsafe { guard_status(error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_listen(
    server: *mut CServer,
    address: *const c_char,
    error: *mut CError,
) -> Status {
    // SAFETY: the header's contract.
    unsafe { set_text(server, address, "the address", error, Server::listen) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_export(
    server: *mut CServer,
    name: *const c_char,
    interface: *const CInterface,
    table: *const c_void,
    dispatch: Option<DispatchFn>,
    error: *mut CError,
) -> Status {
    let run = || {
        // SAFETY: per the header, null or a server that is being set up by this thread.
        let server =
            unsafe { server.as_mut() }.ok_or_else(|| Problem::misuse("the server is NULL"))?;
        // SAFETY: per the header, a C string.
        let name = unsafe { text(name, "the name") }?;
        // SAFETY: per the header, a descriptor that lives as long as the program.
        let interface = unsafe { known(interface) }?;
        let dispatch = dispatch
            .filter(|_| !table.is_null())
            .ok_or_else(|| Problem::misuse("the functions are NULL"))?;
        let export = Export::new(interface, Functions { table, dispatch });
        server.0 = server.0.take().map(|server| server.export(name, export));
        Ok(())
    };
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

/// Returns the server that was set up, and frees the struct.
///
/// # Safety
/// As the header requires for functions that begin to serve.
unsafe fn begin(server: *mut CServer) -> Result<Server, Problem> {
    // SAFETY: the caller's contract.
    let server = unsafe { take_back(server) };
    server.and_then(|server| server.0).ok_or_else(|| Problem::misuse("the server is NULL"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_run(server: *mut CServer, error: *mut CError) -> Status {
    // SAFETY: per the header, a server that the caller gives up.
    let run = || Ok(unsafe { begin(server) }?.run()?);
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard_status(error, run) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_server_start(
    server: *mut CServer,
    error: *mut CError,
) -> *mut Running {
    let null = |_: Status| ptr::null_mut();
    // SAFETY: per the header, a server that the caller gives up.
    let run = || Ok(hand_out(unsafe { begin(server) }?.start()?));
    // SAFETY: per the header, `error` is null or the caller's.
    unsafe { guard(error, null, run) }
}

/// `UPCALL_ADDRESS_SIZE`: the longest address of IPv6, with its scope and port, has 58 characters.
const ADDRESS: usize = 64;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_running_address(
    running: *const Running,
    number: usize,
    text: *mut [c_char; ADDRESS],
) -> bool {
    guard_or(false, || {
        if text.is_null() {
            return false;
        }
        // SAFETY: per the header, null or a server that runs.
        let address = unsafe { running.as_ref() }
            .and_then(|running| running.addresses().get(number).copied());
        let address =
            address.map(|address| address.to_string()).filter(|address| address.len() < ADDRESS);
        let mut bytes = [0; ADDRESS];
        for (to, from) in bytes.iter_mut().zip(address.iter().flat_map(|address| address.bytes())) {
            *to = from as c_char;
        }
        // SAFETY: not null, and per the header, room for that many bytes of the caller's, which
        // need not be initialised.
        unsafe { text.write(bytes) };
        address.is_some()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn upcall_running_stop(running: *mut Running) {
    guard_or((), || {
        // SAFETY: per the header, null or a server that the caller gives up.
        if let Some(running) = unsafe { take_back(running) } {
            running.stop();
        }
    });
}
