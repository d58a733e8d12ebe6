//! Finds the calls on a thread's stack (`upcall_os::frames`).
//!
//! A suspended thread is unwound as if it had popped the four words that `arch::switch` pushes,
//! since the call frame information does not know of those of inline assembly. See the pictures in
//! `crates/thread/src/arch/x86_64.rs`.

use super::code::ProcessCode;
use super::image::Elf;
use object::{Object, ObjectSection};
use upcall_os::frames::{self, RBP, RBX, REGISTERS, RIP, RSP, Sections};
pub use upcall_os::frames::{CallStack, UnwindRegisters, UnwindRow, UnwindTable};
use upcall_os::trace::Registers;

/// Maximum number of frames. A deeper stack is an endless recursion, or is not a stack.
const MOST_FRAMES: usize = 512;

/// The call frame information of a file.
pub fn table(elf: &Elf<'static>) -> UnwindTable<'static> {
    let section = |name: &str| {
        let section = elf.section_by_name(name)?;
        Some((section.address(), section.data().ok()?))
    };
    UnwindTable::new(Sections {
        text: section(".text").unwrap_or_default().0,
        frames: section(".eh_frame").unwrap_or_default(),
        sorted: section(".eh_frame_hdr"),
    })
}

/// The registers of a stopped kernel thread, from which unwinding starts.
pub fn running(registers: &Registers) -> UnwindRegisters {
    let mut all = [None; REGISTERS];
    for (to, from) in all.iter_mut().zip(registers.general) {
        *to = Some(from);
    }
    all[RIP] = Some(registers.instruction);
    UnwindRegisters::stopped(all)
}

/// The registers of a thread whose saved stack pointer is `sp`; `None` if the words there were not
/// read.
pub fn suspended(sp: u64, stack: &impl Fn(u64) -> Option<u64>) -> Option<UnwindRegisters> {
    let word = |index: u64| stack(sp.checked_add(8 * index)?);
    let mut registers = [None; REGISTERS];
    registers[RIP] = Some(word(1)?);
    registers[RBX] = Some(word(2)?);
    registers[RBP] = Some(word(3)?);
    registers[RSP] = Some(sp.checked_add(32)?);
    Some(UnwindRegisters::stopped(registers))
}

/// Follows the calls from `place` on `stack`, which returns the word at an address.
pub fn unwind(
    code: &ProcessCode<'_>,
    place: UnwindRegisters,
    stack: &impl Fn(u64) -> Option<u64>,
) -> CallStack {
    frames::unwind(|address| code.row(address), place, MOST_FRAMES, stack)
}
