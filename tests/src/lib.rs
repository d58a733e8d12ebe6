//! Tests with real processes: crashes, hostile peers, bad input.
//!
//! This crate has the parts that the tests in `tests/` share. Every test has its own folder of
//! names ([`place`]) and starts programs in it: servers and clients, which are the binary
//! `upcall-party` with arguments that choose its role ([`party`]). A client obeys its input, line
//! by line ([`client`]). An impostor is a server that does not keep to the protocol ([`impostor`]).
//! [`speech`] is the protocol spoken by hand, for peers that break it, such as those in
//! [`hostile`]. [`member`] is a member of a group that sends and takes messages, [`job`] has
//! jobs of such members, [`sharer`] shares an object, and [`far_object`] shares one over links.
//! [`hosts`] makes hosts on one machine, and [`foul`] a network between them that treats packets
//! badly.
//! [`shortage`] refuses system calls. [`shapes`] has values of chosen sizes. [`bad_input`] runs
//! the readers of a peer's bytes on arbitrary input.
//!
//! Tests of the parts of a single crate are in that crate.
#![forbid(unsafe_code)]

pub mod bad_input;
pub mod client;
mod deadline;
pub mod dice;
pub mod donors;
mod everywhere;
pub mod far_object;
pub mod foul;
pub mod group;
pub mod hoard;
pub mod hostile;
pub mod hosts;
pub mod impostor;
pub mod job;
mod latch;
pub mod member;
pub mod object;
pub mod outcome;
pub mod packet;
#[cfg(doctest)]
mod pages;
pub mod party;
pub mod place;
pub mod raw_link;
pub mod relay;
mod scenario;
pub mod segments;
pub mod shapes;
pub mod sharer;
pub mod shortage;
pub mod slow_files;
pub mod speech;
pub mod usage;
pub mod without_kernel;

/// The interfaces that the tests call.
#[allow(missing_docs, reason = "generated; the WIT has the documentation")]
pub mod interfaces {
    upcall::interface!("wit/trial.wit");

    /// `trial` as known to a program that was built before `add` was changed.
    pub mod changed {
        upcall::interface!(
            "package upcall:tests@1.0.0; interface trial { add: func(a: u64, b: u64) -> u64; \
            null: func(); }"
        );
    }
    /// `trial` as known to a program that was built before most of it was added.
    pub mod older {
        upcall::interface!(
            "package upcall:tests@0.9.0; interface trial { add: func(a: u32, b: u32) -> u32; }"
        );
    }
    /// What clients can take from a server, with the limits that hold where an interface sets none.
    pub mod hoard {
        upcall::interface!(
            "package upcall:hoard@1.0.0;
            interface hoard {
                /// An object that does nothing.
                resource thing { null: func(); }
                /// Number of objects.
                open: func(count: u32) -> list<thing>;
                /// Number of bytes.
                give: func(len: u64) -> list<u8>;
                /// Never returns.
                keep: func(text: string);
                /// Never returns.
                stay: func();
                /// Number of calls of the two above that are under way.
                inside: func() -> u64;
            }"
        );
    }
    /// Another interface.
    pub mod other {
        upcall::interface!(
            "package upcall:other@1.0.0; interface other { add: func(a: u32, b: u32) -> u32; }"
        );
    }
}

/// The clock that all processes of the machine share, in nanoseconds.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
