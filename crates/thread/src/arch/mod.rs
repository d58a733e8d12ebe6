//! Code that depends on the processor.
//!
//! There is one file per architecture, each with `prepare`, `switch` and `interlude`, and the
//! floating-point control words.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{CONTROL, EntryFn, control, interlude, prepare, set_control, switch};

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "upcall-thread switches stacks on x86-64 only; add a file beside src/arch/x86_64.rs"
);
