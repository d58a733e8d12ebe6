//! User-level processes (ULPs): whole programs, many in one process.
//!
//! Each has globals, heap, stack, thread-locals and libc of its own.
//!
//! Source: UPVM, sections 2 and 3 (V1, V2, V4 here). A program is linked as static-PIE, with its
//! own libc and with the small [archive](tools) that this crate brings. It is mapped into a
//! [`slot`] of addresses that nothing else ever uses, and started at its normal entry. So its
//! source needs no change, and a switch from one to another is a few instructions (`switch.rs`). A
//! kernel thread runs the ULPs, the [`Worker`]. The library above decides which ULP runs next and
//! answers what they [ask](StopReason::Asks) for.
//!
//! What it does not do: it knows no tasks, no messages and no scheduling order. A ULP that does not
//! ask for anything keeps its worker, which can only [interrupt](Worker::interrupt_every) it to
//! check what has arrived. ULPs are not protected from each other's stray writes.
//!
//! ```no_run
//! use upcall_ulp::{Image, StopReason, Ulp, Worker};
//!
//! let image = Image::open("hello".as_ref())?;
//! let mut worker = Worker::begin()?;
//! let mut ulp = Ulp::load(&image, &[c"hello".into()], &[])?;
//! loop {
//!     match worker.resume(&mut ulp) {
//!         StopReason::Asks(asked) => ulp.answer(asked.what as i64),
//!         StopReason::Interrupted => {}
//!         StopReason::Ended { status } => break println!("it has ended with {status}"),
//!         StopReason::Crashed(crash) => break println!("{crash}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "user-level processes are for Linux on x86-64: for another machine, write a switch and a \
     loader"
);

pub mod arena;
mod aside;
mod backtrace;
mod blocks;
mod catching;
mod clock;
mod copying;
mod crash;
mod debug;
pub mod descriptors;
#[cfg(loom)]
pub mod helping;
#[cfg(not(loom))]
mod helping;
mod image;
mod interrupts;
mod layout;
mod loading;
mod moved;
mod own;
mod pid;
mod shared;
mod signals;
pub mod slot;
mod switch;
pub mod tools;
mod ulp;
mod words;
mod worker;

pub use aside::Aside;
pub use backtrace::UlpFrame;
pub use blocks::{Block, twins};
pub use catching::NotCaught;
pub use clock::{ClockOrigin, UlpClocks};
pub use copying::{NotCopied, UlpRange, copied};
pub use crash::Crash;
pub use image::{FileStamp, Image, ImageIdentity, NoImage};
pub use layout::{
    ASK_ASIDE, ASK_FOLDER, ASK_OWN, ASK_READY, ASK_SLEEP, ASK_TIMER, ASK_UMASK, ASK_YIELD,
    NOT_ASIDE,
};
pub use loading::{NotLoaded, UlpOptions};
pub use moved::{
    ArrivingUlp, FileIdentity, FileLack, FilePin, FileStays, NotArrived, NotTaken, PIECE, PageRun,
    PageSum, ProcessNumber, ProcessorLack, ProcessorTraits, UlpContext, UlpDescriptor, UlpFile,
    UlpMapping, UlpPages, UlpPin, UlpState, UlpWrites, allow_others, keep_ended_children,
    prepare_moves, write_early,
};
pub use shared::{NotShared, SharedImage};
pub use signals::Signalled;
pub use ulp::Ulp;
pub use words::NameWords;
pub use worker::{NoWorker, StopReason, UlpRequest, UlpTurns, Worker};
