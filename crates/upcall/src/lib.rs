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
//! This crate re-exports the parts that programs use; its own is one function that joins threads
//! with calls ([`thread::processors`]).
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
    pub use upcall_rpc::link::{MOST_LISTED, list, list_expecting, list_named, tallies};
    pub use upcall_rpc::names::{
        FolderError, domains, domains_in, find, folder, folders, has_ended, names_in, process_of,
        sweep,
    };
    pub use upcall_rpc::{Arrival, HELD, PeerTallies, Reading};
    pub use upcall_rpc::{exported, exported_expecting, list_far};
}

/// What generated stubs use. Not for direct use, and not stable.
pub mod stub {
    pub use upcall_rpc::{
        Binder, Binding, Bytes, Call, CallError, Decoder, Dispatch, Encoder, Export, Extent,
        Failure, Footprint, Get, Handle, Interface, Layout, Lent, Limits, Malformed, Pace, Part,
        Procedure, Put, Replied,
    };
}
