//! The models of this crate, under loom: `make models`.
#![cfg(loom)]

mod loom_direct;
mod loom_hybrid;
mod loom_one_slot;
mod loom_ring;
mod loom_sequence;
