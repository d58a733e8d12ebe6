//! Objects with a home: state that several processes share.
//!
//! One of these processes, the home, is responsible for the memory.
//!
//! What: an object lives in memory of its own, which its home has made, and is found by name
//! ([`Homed`]). Its type must be able to live in shared memory ([`types`]). Other processes work on
//! the object in place, under its lock: remote access. When one of them dies in the middle of an
//! operation, the home learns of it and decides whether the object can still be used.
//!
//! ```
//! use upcall_home::{Homed, Map, Text};
//!
//! // At its home:
//! let name = format!("hits-{}", std::process::id());
//! let hits = Homed::<Map<Text, u64>>::create(&name).with(|hits| hits.insert("/", 0).map(drop))?;
//!
//! // Elsewhere, by the same user:
//! let other = Homed::<Map<Text, u64>>::find(&name)?;
//! other.access(|hits| hits.entry("/")?.update(|count| count + 1))?;
//!
//! assert_eq!(hits.access(|hits| hits.entry("/")?.get())?, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The home can also run operations for other processes ([`Operation`], [`Procedure`],
//! [`Serving`]): between its own work at safe points or by a signal, or as threads.
//!
//! Which of these is cheapest depends on the operation, the machine and what other processes do.
//! [`Homed::auto`] measures it, starting from the figures in [`costs`].
//!
//! Source: Psyche (P1 to P3, P5 to P8 here).
#![forbid(unsafe_code)]

mod absent;
mod account;
pub mod accounts;
mod asking;
mod auto;
mod away;
mod body;
mod builder;
mod bulk;
mod choices;
pub mod costs;
pub mod error;
mod failure;
mod far;
mod finder;
mod guest;
pub mod handle;
mod here;
mod homed;
mod interrupts;
mod invoke;
mod kept;
mod lane;
pub mod object;
mod operation;
mod quota;
mod reference;
mod rules;
mod scratch;
mod service_queue;
mod serving;
pub mod types;
mod waiting;
mod wire;

pub use account::Counts;
pub use builder::HomeBuilder;
pub use error::{AccessError, CreateError, FindError, NotAnObject};
pub use failure::InvokeError;
pub use far::ListedObject;
pub use far::list::objects_at;
pub use finder::Finder;
pub use handle::Handle;
pub use homed::{Homed, Making};
pub use kept::{Asked, Errand, Errands, KeepError, Kept};
pub use lane::LONGEST;
pub use object::{Grant, Torn, Verdict};
pub use operation::{Operation, Operations, Procedure};
pub use reference::{NotAReference, Reference};
pub use rules::{Blocked, Broken};
pub use serving::{Background, Masked, ServeError, Serving};
pub use types::arena::MOST;
pub use types::{
    Blob, Check, DataError, Init, Link, List, ListAt, Map, MapAt, Place, Plain, Queue, QueueAt,
    Shared, Spot, Text, Value, With,
};
#[doc(hidden)]
pub use types::{after, larger, shape};
pub use upcall_os::interrupt::Promise;
pub use upcall_sched::rung::InterruptError;
