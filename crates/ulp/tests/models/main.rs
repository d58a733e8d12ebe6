//! The models of this crate, under loom: `make models`.
#![cfg(loom)]

mod loom_aside;
