//! Calls between processes at memory speed.
//!
//! Part of a program is put into a process of its own, and called there as before: a codec that
//! crashes, a library that is not trusted, a service that several programs share. The interface is
//! written in WIT; the code on both sides is generated.
//!
//! ```no_run
//! upcall::interface!(r#"
//!     package demo:greeter@1.0.0;
//!     interface greeter {
//!         greet: func(name: string) -> string;
//!     }
//! "#);
//!
//! struct English;
//! impl greeter::Serve for English {
//!     fn greet(&self, name: &str) -> String {
//!         format!("Hello, {name}!")
//!     }
//! }
//!
//! // In the server's program:
//! # fn server() -> Result<(), upcall::ServeError> {
//! upcall::Server::new().export("greeter", greeter::export(English)).run()
//! # }
//!
//! // In the client's:
//! # fn client() -> Result<(), Box<dyn std::error::Error>> {
//! let greeter = greeter::Greeter::bind("greeter")?;
//! println!("{}", greeter.greet("Ada")?);
//! # Ok(())
//! # }
//! ```
//!
//! This crate re-exports the parts that programs use. Its own are [`deadline`] and
//! [`thread::processors`], which join threads with calls.
//!
//! # Features
//! Calls and threads are always there.
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `macros` | yes | [`interface!`], [`package`]; with `home`, derive macros for shared types |
//! | `message` | no | [`message`]: messages between the processes of a group |
//! | `home` | no | [`home`]: objects that processes share |
//!
//! A program without `macros` generates its stubs in a build script, by crate `upcall-idl`.
#![forbid(unsafe_code)]

#[cfg(feature = "macros")]
pub use upcall_macros::{interface, package};
pub use upcall_os::process::Identity;
pub use upcall_os::socket::Peer;
pub use upcall_rpc::{
    BindError, Binder, Bytes, CallError, CancelToken, ClientBinding, Export, Failure, Group,
    HandOff, Lent, Malformed, Pacing, Quota, QuotaScope, Quotas, Running, ServeError, Server,
    WhenFull, policy,
};
pub use upcall_sched::Closed;

/// The time until which the caller of the running handler waits. `None` if it waits for ever.
///
/// A handler that computes for long can look at it now and then, and return early: a later result
/// is dropped. The handler's own calls end at this time by themselves. If the thread has a deadline
/// of its own ([`thread::with_deadline`]), the earlier of the two counts.
///
/// Threads that the handler starts, and the work that it gives to [`thread::blocking`], see `None`:
/// pass the time on to them. A call through a local client has no deadline of its own, and its
/// handler sees that of the thread. The end of the caller, or its [`CancelToken`], changes nothing
/// here.
///
/// ```
/// # use std::time::Instant;
/// fn sum(numbers: &[u64]) -> Option<u64> {
///     let mut sum = 0_u64;
///     for part in numbers.chunks(1 << 20) {
///         if upcall::deadline().is_some_and(|ends| ends <= Instant::now()) {
///             return None;
///         }
///         sum = part.iter().fold(sum, |sum, number| sum.wrapping_add(*number));
///     }
///     Some(sum)
/// }
/// assert_eq!(sum(&[1, 2, 3]), Some(6));
/// ```
#[must_use]
pub fn deadline() -> Option<std::time::Instant> {
    upcall_thread::calls_end()
}

/// User-level threads.
pub mod thread {
    pub use upcall_thread::*;

    /// `count` virtual processors whose threads make calls: they poll the program's channels when
    /// they have nothing else to do. A process has at most 32 of them, servers' included; calls
    /// from threads of others block the processor.
    ///
    /// # Errors
    /// No descriptor or no memory left.
    pub fn processors(
        count: usize,
        pacing: crate::Pacing,
    ) -> std::io::Result<upcall_thread::Processors> {
        let idle = upcall_sched::PollingIdle::new(count, pacing)?;
        Ok(upcall_thread::Processors::new().count(count).idle(std::sync::Arc::new(idle)))
    }
}

/// Messages between the members of a group, with handlers.
#[cfg(feature = "message")]
pub mod message {
    pub use upcall_message::*;
}

/// Objects with a home: state that processes share.
#[cfg(feature = "home")]
pub mod home {
    pub use upcall_home::*;
    #[cfg(feature = "macros")]
    pub use upcall_macros::{Plain, Shared};
}

/// What is exported in the folder of names, and at addresses of other machines, as `upcall ls`
/// shows it.
pub mod directory {
    pub use upcall_os::socket::Peer;
    pub use upcall_rpc::Exported;
    pub use upcall_rpc::link::{
        MOST_LISTED, list, list_expecting, list_named, tallies, tallies_expecting,
    };
    pub use upcall_rpc::names::{
        FolderError, domains, domains_in, find, folder, folders, has_ended, names_in, process_of,
        sweep,
    };
    pub use upcall_rpc::{Arrival, HELD, PeerTallies, Reading};
    pub use upcall_rpc::{
        FarCalls, FarCounts, FarServer, Pinged, exported, exported_expecting, far_calls, list_far,
        ping,
    };
}

/// What generated stubs use. Not for direct use, and not stable.
pub mod stub {
    pub use upcall_rpc::{
        Binder, Binding, Bytes, Call, CallError, Decoder, Dispatch, Encoder, Export, Extent,
        Failure, Footprint, Get, Handle, Interface, Layout, Lent, Limits, Malformed, Pace, Part,
        Procedure, Put, Replied,
    };
}
