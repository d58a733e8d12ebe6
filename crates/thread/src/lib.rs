//! User-level threads on virtual processors.
//!
//! A *virtual processor* is a kernel thread that runs *threads*: each has a stack of its own, and
//! they are switched cooperatively in user space. Threads block ([`JoinHandle::join`], [`Mutex`],
//! [`RwLock`], [`Condvar`], [`Semaphore`], [`Barrier`], [`OnceLock`], [`mpsc`], [`sleep`],
//! [`park`], and [`block`], on which all of them are built). Processors do not block: they run
//! another thread. When no thread is ready, a processor polls for outside work as its [`Idle`]
//! directs, then sleeps. Every wait has a form with a timeout, and [`with_deadline`] cuts all waits
//! of a thread short.
//!
//! ```
//! use std::sync::Arc;
//! use upcall_thread as thread;
//!
//! let total = thread::run(|| {
//!     let total = Arc::new(thread::Mutex::new(0_u64));
//!     let adders: Vec<_> = (1..=1000)
//!         .map(|n| {
//!             let total = Arc::clone(&total);
//!             thread::spawn(move || *total.lock() += n)
//!         })
//!         .collect();
//!     for adder in adders {
//!         adder.join().unwrap();
//!     }
//!     *total.lock()
//! });
//! assert_eq!(total, 500_500);
//! ```
//!
//! **What it is for.** Many threads that wait for each other or for messages. A thread costs a page
//! of memory, and tens of nanoseconds to start and end (`examples/cost.rs` measures it). 100 000
//! live threads are unremarkable (from Linux 6.13; before that, the usual `vm.max_map_count` allows
//! some 32 700). Source: URPC (Bershad, Anderson, Lazowska, Levy, 1991), sections 2 and 3. One
//! scheduler serves both local synchronisation and messages, which arrive by way of [`Idle`].
//!
//! **Rules.**
//! * An idle processor may steal a thread that has not started. A thread that has started stays on
//!   its processor, since the compiler may keep addresses of thread-locals across a switch.
//! * Nothing is preempted. A thread that computes for long holds its processor, so it should call
//!   [`yield_now`] now and then. A blocking system call, or a lock of `std`, blocks the processor
//!   with all its threads: run it by [`blocking`].
//! * `std`'s thread-locals and `std::thread::panicking` belong to the processor. A `RefCell` in a
//!   thread-local that stays borrowed across a switch is borrowed for the other threads too.
//!   [`thread_local!`] of this crate gives each thread its own value.
//! * Stacks are 64 KiB by default, those of outside work (calls, handlers) 1 MiB, and do not grow.
//!   An overflow hits a guard page: the thread's name and stack size are written to standard error,
//!   and the process dies by SIGSEGV, never by silent corruption. The exception is a function of
//!   another language that was compiled without stack probes: it can jump over the page.
//! * [`Mutex`], [`Condvar`], `join`, `park` and `sleep` also work on an ordinary kernel thread, and
//!   block it, so both kinds of threads may share data. [`spawn`] needs a virtual processor.
//!
//! **What it is not.** No preemption, no asynchronous I/O, no `async`. x86-64 Linux only.

#![cfg_attr(loom, allow(dead_code, missing_docs))]

mod fresh;
mod inbox;
mod link;
mod list;
mod lock;
mod parker;
mod shares;
mod sync;

/// The lock-free parts by themselves, for the models under `tests/models/loom_*.rs`.
///
/// This is not a public interface.
#[cfg(loom)]
pub mod model {
    pub use crate::fresh::{Fresh, Pop};
    pub use crate::inbox::Inbox;
    pub use crate::link::Linked;
    pub use crate::list::{ListedWait, OpenList, TakenWaiters, WaitList, WaitNode};
    pub use crate::lock::{LockAttempt, RawLock};
    pub use crate::parker::Parker;
    pub use crate::shares::Shares;
    pub use crate::sync::Fences;
}

#[cfg(not(loom))]
mod abort;
#[cfg(not(loom))]
mod arch;
#[cfg(not(loom))]
mod barrier;
#[cfg(not(loom))]
mod beacon;
#[cfg(not(loom))]
mod block;
#[cfg(not(loom))]
mod blocking;
#[cfg(not(loom))]
mod channel;
#[cfg(not(loom))]
mod condvar;
#[cfg(not(loom))]
mod current;
#[cfg(not(loom))]
mod deadline;
#[cfg(not(loom))]
mod dispatch;
#[cfg(not(loom))]
mod dump;
#[cfg(not(loom))]
mod extra;
#[cfg(not(loom))]
mod idle;
#[cfg(not(loom))]
mod join;
#[cfg(not(loom))]
mod kernel;
#[cfg(not(loom))]
mod local;
#[cfg(not(loom))]
mod locals;
#[cfg(not(loom))]
mod mutex;
#[cfg(not(loom))]
mod number;
#[cfg(not(loom))]
mod once;
#[cfg(all(not(loom), any(miri, upcall_kernel_threads)))]
mod outside;
#[cfg(not(loom))]
mod overflow;
#[cfg(not(loom))]
mod record;
#[cfg(not(loom))]
mod recycle;
#[cfg(not(loom))]
mod run;
#[cfg(not(loom))]
mod rwlock;
#[cfg(not(loom))]
mod scope;
#[cfg(not(loom))]
mod semaphore;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod slot;
#[cfg(not(loom))]
mod spawn;
#[cfg(not(loom))]
mod spin;
#[cfg(not(loom))]
mod stack;
#[cfg(not(loom))]
mod start;
#[cfg(not(loom))]
mod steal;
#[cfg(not(loom))]
mod switch;
#[cfg(not(loom))]
mod thread;
#[cfg(not(loom))]
mod turn;
#[cfg(not(loom))]
mod vp;
#[cfg(not(loom))]
mod waiter;
#[cfg(not(loom))]
mod workers;

/// Channels with many senders and one receiver, as in `std::sync::mpsc`.
///
/// The error types are those of `std`.
#[cfg(not(loom))]
pub mod mpsc {
    pub use crate::channel::{
        IntoIter, Iter, Receiver, RecvError, RecvTimeoutError, SendError, Sender, SyncSender,
        TryIter, TryRecvError, TrySendError, channel, sync_channel,
    };
}

#[cfg(not(loom))]
pub use self::{
    barrier::{Barrier, BarrierWaitResult},
    block::{Waited, block, block_unless, block_until},
    blocking::{MOST_KERNEL_THREADS, blocking},
    condvar::Condvar,
    deadline::{DeadlinePassed, calls_end, deadline, with_calls_that_end, with_deadline},
    dump::dump_on_quit,
    idle::{Found, Idle},
    join::JoinHandle,
    local::LocalKey,
    locals::AccessError,
    mutex::{Mutex, MutexGuard},
    once::{LazyLock, Once, OnceLock},
    parker::Parker,
    run::{Processors, run},
    rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard},
    scope::{Scope, ScopedJoinHandle, scope},
    semaphore::{Permits, Semaphore},
    spawn::{Builder, runs_outside_work, spawn},
    spin::SpinThenPark,
    stack::{DEFAULT_STACK_SIZE, DEFAULT_WORK_STACK_SIZE},
    thread::{
        Thread, ThreadId, current, park, park_timeout, safe_point, sleep, sleep_until, yield_now,
    },
    vp::{Vp, on_virtual_processor},
    waiter::{Ticket, Waiter, WaiterCell},
};
