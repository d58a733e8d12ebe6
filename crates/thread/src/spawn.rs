//! Starting threads.
//!
//! A spawn writes the closure and a few words below the record of a pooled stack and queues it: no
//! allocation. The result takes its place beside the closure, and the joiner reads it there (see
//! `join`).

use crate::arch;
use crate::extra::Extra;
use crate::join::{JoinHandle, joiner, leave_result, say_done};
use crate::list::ListedWait;
use crate::record::{DONE, JOINING, REF, Rec, ThreadVtable};
use crate::slot;
use crate::start::{begin, place};
use crate::vp::{Vp, here};
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// What a thread gets from its spawner and leaves for its joiner.
///
/// The result comes first, so that its place does not depend on `F`, which the joiner does not
/// know.
#[repr(C)]
struct ThreadPacket<F, T> {
    result: MaybeUninit<std::thread::Result<T>>,
    body: ManuallyDrop<F>,
}

impl<F: FnOnce() -> T, T> ThreadPacket<F, T> {
    const TABLE: &'static ThreadVtable = &ThreadVtable {
        run: run_packet::<F, T>,
        drop_result: drop_result::<T>,
        #[cfg(any(miri, upcall_kernel_threads))]
        layout: std::alloc::Layout::new::<Self>(),
    };
    const ALIGN: usize = if align_of::<Self>() > 64 { align_of::<Self>() } else { 64 };
    /// Bytes that a packet may take on a stack, including those lost to alignment.
    const SIZE: usize = size_of::<Self>() + Self::ALIGN - 64;
}

/// Starts a thread with the default name and stack size; see [`Builder`].
///
/// # Panics
/// If the caller is not on a virtual processor, or there is no memory for the stack.
#[inline]
pub fn spawn<F, T>(body: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    // SAFETY: nothing is borrowed for less than the life of the process.
    match unsafe { spawn_with(Builder::new(), body) } {
        Ok(handle) => handle,
        Err(error) => panic!("upcall-thread: cannot spawn a thread: {error}"),
    }
}

/// Starts a thread with a name or a stack size.
#[derive(Debug, Default, Clone)]
#[must_use = "nothing starts before spawn"]
pub struct Builder {
    name: Option<Box<str>>,
    stack_size: Option<usize>,
    owns_control: bool,
}

impl Builder {
    /// No name, and the processors' default stack size.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the thread.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into().into_boxed_str());
        self
    }

    /// Asks for about `bytes` of stack or more.
    ///
    /// The size is rounded up to 16 KiB times a power of two, at most 256 MiB. Some 1.5 KiB of it
    /// hold the thread's record. Memory is committed page by page as the thread touches it; going
    /// beyond the end faults (SIGSEGV).
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Gives the thread floating-point control words of its own.
    ///
    /// These are MXCSR and the x87 control word on x86-64: rounding, exceptions, denormals. They
    /// have the default values at first, and each switch exchanges them, at a price of some 15 ns.
    /// This is for threads that run code in other languages which changes the control words and
    /// then waits. Rust code must not change them, and all other threads share the default ones.
    pub fn own_floating_point_control(mut self) -> Self {
        self.owns_control = true;
        self
    }

    /// Starts the thread on the caller's virtual processor, or on another idle one.
    ///
    /// Never blocks.
    ///
    /// # Errors
    /// `Unsupported` if the caller is not on a virtual processor; `InvalidInput` for a stack size
    /// above 256 MiB; the kernel's error when there is no memory for a stack or its guard. In each
    /// case the closure is dropped.
    pub fn spawn<F, T>(self, body: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        // SAFETY: nothing is borrowed for less than the life of the process.
        unsafe { spawn_with(self, body) }
    }

    /// As [`spawn`](Self::spawn), for a closure that may borrow.
    ///
    /// # Safety
    /// The closure and its result are dropped before anything that they borrow ends.
    pub(crate) unsafe fn spawn_unchecked<F, T>(self, body: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        // SAFETY: the caller's promise.
        unsafe { spawn_with(self, body) }
    }
}

/// # Safety
/// The closure and its result are dropped before anything that they borrow ends.
#[inline(always)]
unsafe fn spawn_with<F, T>(wish: Builder, body: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    #[cfg(any(miri, upcall_kernel_threads))]
    if crate::outside::is_running() {
        let rec =
            crate::kernel::record_with_packet(std::alloc::Layout::new::<ThreadPacket<F, T>>());
        let packet = rec.packet.get().cast();
        fill(rec, packet, wish.name, body);
        return crate::outside::start(rec, ThreadPacket::<F, T>::TABLE, wish.stack_size)
            // SAFETY: as below.
            .map(|()| unsafe { JoinHandle::of(rec) });
    }
    let Some(vp) = here() else { return Err(off_processor()) };
    let class = match wish.stack_size {
        None if ThreadPacket::<F, T>::SIZE <= slot::ORDINARY_PACKET => vp.group.default_class,
        None => slot::class_for(vp.group.stack_size, ThreadPacket::<F, T>::SIZE)?,
        Some(size) => slot::class_for(size, ThreadPacket::<F, T>::SIZE)?,
    };
    let rec = vp.stacks.take(class)?;
    let packet = place(rec, ThreadPacket::<F, T>::ALIGN);
    fill(rec, packet, wish.name, body);
    rec.owns_control.set(wish.owns_control);
    if wish.owns_control {
        rec.extra_or_new(Extra::default).control.set(arch::CONTROL);
    }
    begin(vp, rec, packet.cast(), 2 * REF, enter);
    vp.add_fresh(rec);
    // SAFETY: the packet, which has room for a `T`, was filled above, and the word has two
    // references.
    Ok(unsafe { JoinHandle::of(rec) })
}

/// Moves the closure to its place, and sets the fields of the record that depend on it.
#[inline(always)]
fn fill<F: FnOnce() -> T, T>(
    rec: Rec,
    packet: *mut ThreadPacket<F, T>,
    name: Option<Box<str>>,
    body: F,
) {
    // SAFETY: the caller passes room for a packet that nothing else uses.
    let slot = unsafe { &raw mut (*packet).body };
    // SAFETY: as above; the place holds nothing that would need to be dropped.
    unsafe { slot.write(ManuallyDrop::new(body)) };
    rec.packet.set(packet.cast());
    rec.table.set(Some(ThreadPacket::<F, T>::TABLE));
    if let Some(name) = name {
        rec.extra_or_new(|| Extra::named(name));
    }
}

#[cold]
fn off_processor() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "this kernel thread is not a virtual processor; spawn from inside of upcall_thread::run",
    )
}

/// The first frame of every thread.
///
/// No panic leaves it: `run_packet` catches those of the body, and any other aborts at this
/// function's C boundary.
unsafe extern "C" fn enter(argument: *const (), gift: *const ()) -> ! {
    let vp = here().expect("threads start on virtual processors only");
    vp.bury(gift);
    // SAFETY: the argument is what `begin` passed: `Record::as_raw`.
    let me: Rec = unsafe { &*argument.cast() };
    me.set_home(Some(vp.shared.address()));
    let table = me.table.get().expect("the spawner sets what to run");
    // SAFETY: spawner and runner agree on the packet's type; it is run once, here.
    unsafe { (table.run)(me.packet.get()) };
    finish(vp, me)
}

/// # Safety
/// `packet` holds a `ThreadPacket<F, T>` whose body has not run.
unsafe fn run_packet<F: FnOnce() -> T, T>(packet: *mut u8) {
    let packet = packet.cast::<ThreadPacket<F, T>>();
    // SAFETY: the packet is live and ours.
    let slot = unsafe { &raw const (*packet).body };
    // SAFETY: the body is there and is read once, since the thread runs once.
    let body = ManuallyDrop::into_inner(unsafe { slot.read() });
    let result = catch_unwind(AssertUnwindSafe(body));
    // SAFETY: the packet is live and ours.
    let slot = unsafe { &raw mut (*packet).result };
    // SAFETY: as above; the result is not read before `DONE`.
    unsafe { slot.write(MaybeUninit::new(result)) };
}

/// # Safety
/// `packet` holds a result of type `T` that has not been taken.
unsafe fn drop_result<T>(packet: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { packet.cast::<std::thread::Result<T>>().drop_in_place() };
}

#[inline(always)]
fn finish(vp: &Vp, me: Rec) -> ! {
    leave_result(me);
    let word = me.word.load(Ordering::Acquire);
    if word & JOINING != 0 {
        let joiner = joiner(me);
        if vp.shared.is_home_of(joiner.rec()) && joiner.draw() {
            // The joiner cannot run before this processor switches to it, and its own reference
            // outlives that. So "done" and releasing our reference are one step. If there is no
            // third reference, no other thread can touch the word, and no locked operation is
            // needed.
            if word == 2 * REF + JOINING {
                me.word.store(REF + JOINING + DONE, Ordering::Release);
            } else {
                me.word.fetch_sub(REF - DONE, Ordering::AcqRel);
            }
            vp.end_with(me, joiner.rec());
        }
    }
    say_done(me);
    vp.end(me)
}

/// Returns `true` if the calling thread runs a piece of outside work.
///
/// That is [`Idle::work`](crate::Idle::work): as a rule, a call from another domain.
pub fn runs_outside_work() -> bool {
    here().is_some_and(|vp| vp.current().is_worker())
}
