//! The models of this crate, under loom: `make models`.
#![cfg(loom)]

mod kernel;
mod loom_cancel_flag;
mod loom_donation;
mod loom_duty;
mod loom_gate;
mod loom_mask;
mod loom_rechecks;
mod loom_reply;
mod loom_serving;
mod loom_sleep;
mod loom_steps;
