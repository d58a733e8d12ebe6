//! Keeps the kernel's own mappings away from the addresses of tasks and messages.
//!
//! When a program begins, the kernel reserves addresses for the largest stack that the limit of the
//! stack allows, and puts mappings of its choice below them. With an unlimited stack they begin at
//! 20.3 to 21.3 TiB and go down from there. Where `vm.mmap_rnd_bits` is 32, that may be anywhere
//! above 5.3 TiB. Slots and arenas end at 19 TiB (`upcall_ulp::arena`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Largest limit of the stack that leaves these addresses alone, in bytes.
const MOST: u64 = 64 << 30;
/// The limit in place of none, in bytes: the kernel's default.
const USUAL: u64 = 8 << 20;

/// Executes the program again if the limit of its stack is too large for a machine.
///
/// The soft limit is lowered first: 8 MiB in place of none, and 64 GiB in place of more. All
/// processes that this one starts inherit that. Returns if the limit is small enough. To be called
/// at the program's beginning, before it has threads or files open.
///
/// # Errors
/// The limit was not lowered, or the program not executed.
pub fn make_room() -> io::Result<()> {
    let Some(lower) = lower(getrlimit(Resource::Stack)) else { return Ok(()) };
    setrlimit(Resource::Stack, lower)?;
    if self::lower(getrlimit(Resource::Stack)).is_some() {
        return Err(io::Error::other("the limit of the stack stays as it is"));
    }
    let mut words = std::env::args_os();
    let mut program = Command::new(std::env::current_exe()?);
    words.next().into_iter().for_each(|name| _ = program.arg0(name));
    Err(program.args(words).exec())
}

/// The limit to be set in place of this one. `None`: this one is small enough.
fn lower(limit: Rlimit) -> Option<Rlimit> {
    match limit.current {
        None => Some(Rlimit { current: Some(USUAL), ..limit }),
        Some(current) if current > MOST => Some(Rlimit { current: Some(MOST), ..limit }),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_that_is_too_large_is_lowered_and_others_may_raise_it_again() {
        let lowered = |current| {
            let lower = lower(Rlimit { current, maximum: None })?;
            Some((lower.current.unwrap(), lower.maximum))
        };
        assert_eq!([Some(0), Some(USUAL), Some(MOST)].map(lowered), [None; 3]);
        assert_eq!([Some(MOST + 1), None].map(lowered), [Some((MOST, None)), Some((USUAL, None))]);
    }
}
