//! The context switch on x86-64 (System V calling convention).
//!
//! A switch is a function call that returns on another stack. So the compiler has already saved what the convention
//! lets a function destroy, and only what a function must preserve remains: six registers, the stack pointer, and the
//! control bits of the two floating-point units.
//!
//! ```text
//! high addresses                                     a fresh thread
//! ┌──────────────────────────────┐                   ┌──────────────────────────────┐
//! │ the thread's record          │                   │ the thread's record          │
//! │ its closure and its result   │                   │ its closure and its result   │
//! │ frames …                     │                   │ 0, 0                         │ keeps rsp aligned to 16
//! │ return address into the      │                   │ trampoline                   │
//! │ caller of switch             │                   │ rbp = 0: ends frame chains   │
//! │ rbp                          │                   │ rbx = 0                      │
//! │ rbx                          │                   │ r12 = first argument         │
//! │ r12                          │                   │ r13 = entry                  │
//! │ r13                          │                   │ r14 = 0                      │
//! │ r14                          │                   │ r15 = 0                      │
//! │ r15                          │                   │ default control words        │
//! │ x87 control word │ MXCSR     │ ◄─ saved pointer  └──────────────────────────────┘ ◄─ saved pointer
//! └──────────────────────────────┘ (suspended)
//! low addresses
//! ```
//! A *running* thread looks like the left picture without the lowest eight words; its stack pointer is in `rsp`.
//!
//! # Floating-point control
//! MXCSR (with its sticky exception flags) and the x87 control word belong to the thread, as they belong to a kernel
//! thread: they are saved on every switch and loaded only when they differ from the running ones, which is almost
//! never, because a load stalls the pipeline and a compare does not. A fresh thread starts with the System V defaults
//! (0x1F80, 0x037F). All other floating-point and vector state is the caller's to save, by the convention. The direction
//! flag is clear at every call, also by the convention.
//!
//! # Unwinding
//! The trampoline's call frame information says that it has no caller, and its frame pointer is 0; so a backtrace ends
//! there, by either method, and a panic finds no frame beyond. (None gets there: the entry function catches it.)
//! Shadow stacks (CET) are not supported; Rust programs on Linux are not marked for them.

use std::arch::naked_asm;

/// Default MXCSR (0x1F80: all exceptions masked, round to nearest), and in the upper half the default x87 control word
/// (0x037F: all exceptions masked, extended precision, round to nearest).
const CONTROL: u64 = 0x037F_0000_1F80;

/// The words of a fresh stack, lowest address first.
#[repr(C)]
struct FreshFrame {
    control: u64,
    r15: u64,
    r14: u64,
    r13: Entry,
    r12: *const (),
    rbx: u64,
    rbp: u64,
    returns_to: unsafe extern "C" fn() -> !,
    pad: u64,
}

const _: () = assert!(size_of::<FreshFrame>() == 72);

/// The first function of a thread: gets the argument given to `prepare`, and the gift of the switch that started it.
pub(crate) type Entry = unsafe extern "C" fn(*const (), *const ()) -> !;

/// Writes the picture of a fresh thread below `top` and returns the stack pointer to switch to.
///
/// # Safety
/// `top` is 16-byte aligned, and the 80 bytes below it are writable and used by nobody else.
#[inline(always)]
pub(crate) unsafe fn prepare(top: *mut u8, entry: Entry, argument: *const ()) -> *mut u8 {
    // When `ret` has taken the trampoline's address, rsp is top - 16: aligned to 16, as it must be at a `call`.
    let frame = top.wrapping_sub(80).cast::<FreshFrame>();
    let picture = FreshFrame {
        control: CONTROL,
        r15: 0,
        r14: 0,
        r13: entry,
        r12: argument,
        rbx: 0,
        rbp: 0,
        returns_to: trampoline,
        pad: 0,
    };
    // SAFETY: the caller promised 80 free writable bytes below an aligned `top`, and the frame takes the lowest 72.
    unsafe { frame.write(picture) };
    frame.cast()
}

/// Suspends the running stack, storing its pointer in `*save`, and resumes the one whose pointer is `load`.
///
/// Returns on the resumed stack, with `gift`. Seen from the suspended stack, the call returns when some other stack
/// switches back to it, with that switch's gift.
///
/// # Safety
/// `save` is writable. `load` was stored by an earlier `switch` or made by `prepare`, has not been resumed since, and
/// its stack is mapped and in use by nobody else. Both stacks run on this kernel thread only, so that addresses of
/// thread-locals that the compiler has kept in registers or frames stay right.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn switch(save: *mut *mut u8, load: *mut u8, gift: *const ()) -> *const () {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "stmxcsr dword ptr [rsp]",
        "fnstcw word ptr [rsp + 4]",
        "mov ecx, dword ptr [rsp]",
        "movzx r8d, word ptr [rsp + 4]",
        "mov qword ptr [rdi], rsp",
        "mov rsp, rsi",
        "mov rax, rdx",
        "cmp ecx, dword ptr [rsp]",
        "jne 3f",
        "2:",
        "cmp r8w, word ptr [rsp + 4]",
        "jne 4f",
        "5:",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        "3:",
        "ldmxcsr dword ptr [rsp]",
        "jmp 2b",
        "4:",
        "fldcw word ptr [rsp + 4]",
        "jmp 5b",
    )
}

/// Where a fresh stack begins: calls the entry with its argument and the gift.
///
/// # Safety
/// Only `switch` comes here, by the picture that `prepare` wrote.
#[unsafe(naked)]
unsafe extern "C" fn trampoline() -> ! {
    naked_asm!(".cfi_startproc", ".cfi_undefined rip", "mov rdi, r12", "mov rsi, rax", "call r13", "ud2", ".cfi_endproc",)
}
