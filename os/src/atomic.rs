//! The one door to atomics: `std`'s, or loom's when a model is being checked.
//!
//! Every layer above takes its atomics, its fences and its spin hint from here, so that `--cfg loom` reaches all of them.

#[cfg(not(loom))]
pub use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
