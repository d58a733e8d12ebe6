//! Objects with a home: state that several processes share, in memory that one of them is responsible for.
//!
//! What: an object lives in memory of its own, which its home has made, and is found by name ([`object`]). Others work on it where it is, under its lock ([`handle`]): remote access. When one dies in the middle of an operation
//! its home learns of it, and decides whether the object can still be used.
//!
//! ```
//! use upcall_home::{Creating, Handle, Verdict};
//!
//! const SHAPE: u64 = 0x1f3a;
//!
//! // At its home:
//! let name = format!("hits-{}", std::process::id());
//! let counter = Creating::new(&name, 4096)
//!     .repair(|data, _torn| if data.u64(0).is_some() { Verdict::Keep } else { Verdict::Poison })
//!     .create(SHAPE, |data| _ = data.put_u64(0, 0))?;
//!
//! // Elsewhere, by the same user:
//! let hits = Handle::find(&name, SHAPE)?;
//! hits.access(|data| _ = data.put_u64(0, data.u64(0).unwrap_or(0) + 1))?;
//!
//! assert_eq!(counter.access(|data| data.u64(0))?, Some(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What not: invocations, by which the home runs operations for others, and the choice between both (issue 6).
//!
//! Source: Psyche (P1, P5 here).
#![forbid(unsafe_code)]

mod away;
mod body;
pub mod error;
mod guest;
pub mod handle;
pub mod object;
mod waiting;
mod wire;

pub use body::MOST;
pub use error::{AccessError, CreateError, FindError, NotAnObject};
pub use handle::Handle;
pub use object::{Creating, Torn, Verdict};
