//! The models of this crate, under loom: `make models`.
#![cfg(loom)]

mod loom_condvar;
mod loom_fresh;
mod loom_lock;
mod loom_park;
mod loom_shares;
mod loom_waits;
