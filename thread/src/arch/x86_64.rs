//! The context switch on x86-64 (System V calling convention).
//!
//! A switch stores a return label and the two registers that inline assembly may not name as destroyed, exchanges the
//! stack pointer, and jumps. All other registers are declared destroyed, so the compiler saves those that are in use at
//! the place and no more. It is inline, and jumps instead of returning, for the sake of the processor's stack of
//! predicted return addresses: a `ret` on another stack than its `call` is mispredicted every time, which costs more
//! than all the rest (10 ns against 2, measured on an EPYC).
//!
//! ```text
//! high addresses
//! ┌──────────────────────────────┐                   ┌──────────────────────────────┐
//! │ the thread's record          │                   │ the thread's record          │
//! │ its closure and its result   │                   │ its closure and its result   │
//! │ frames …                     │                   │ 0, 0: keeps rsp aligned      │
//! │ rbp                          │                   │ entry                        │
//! │ rbx                          │                   │ argument                     │
//! │ label in `switch`            │                   │ trampoline                   │
//! │ x87 control word │ MXCSR     │ ◄─ saved pointer  │ default control words        │ ◄─ saved pointer
//! └──────────────────────────────┘ suspended         └──────────────────────────────┘ fresh
//! low addresses
//! ```
//! A *running* thread looks like the left picture without the lowest four words; its stack pointer is in `rsp`.
//!
//! # Floating-point control
//! MXCSR (with its sticky exception flags) and the x87 control word belong to the thread, as they belong to a kernel
//! thread: they are saved on every switch (some 3 ns) and loaded only when they differ from the running ones, which is
//! almost never. A fresh thread starts with the System V defaults (0x1F80, 0x037F). All other floating-point and vector
//! state is declared destroyed, so the compiler keeps none of it across a switch. The direction flag is clear, by the
//! convention and by the rules of inline assembly.
//!
//! # Unwinding
//! The trampoline's call frame information says that it has no caller, and its frame pointer is 0; so a backtrace ends
//! there, by either method, and a panic finds no frame beyond. (None gets there: the entry function catches it.)
//! Shadow stacks (CET) are not supported; Rust programs on Linux are not marked for them.

use std::arch::{asm, naked_asm};

/// Default MXCSR (0x1F80: all exceptions masked, round to nearest), and in the upper half the default x87 control word
/// (0x037F: all exceptions masked, extended precision, round to nearest).
const CONTROL: u64 = 0x037F_0000_1F80;

/// The words of a fresh stack, lowest address first.
#[repr(C)]
struct FreshFrame {
    control: u64,
    resume_at: unsafe extern "C" fn() -> !,
    argument: *const (),
    entry: Entry,
    pad: [u64; 2],
}

const _: () = assert!(size_of::<FreshFrame>() == 48);

/// The first function of a thread: gets the argument given to `prepare`, and the gift of the switch that started it.
pub(crate) type Entry = unsafe extern "C" fn(*const (), *const ()) -> !;

/// Writes the picture of a fresh thread below `top` and returns the stack pointer to switch to.
///
/// # Safety
/// `top` is 16-byte aligned, and the 48 bytes below it are writable and used by nobody else.
#[inline(always)]
pub(crate) unsafe fn prepare(top: *mut u8, entry: Entry, argument: *const ()) -> *mut u8 {
    let frame = top.wrapping_sub(size_of::<FreshFrame>()).cast::<FreshFrame>();
    let picture = FreshFrame { control: CONTROL, resume_at: trampoline, argument, entry, pad: [0; 2] };
    // SAFETY: the caller promised that many free writable bytes below an aligned `top`.
    unsafe { frame.write(picture) };
    frame.cast()
}

/// Suspends the running stack, storing its pointer in `*save`, and resumes the one whose pointer is `load`.
///
/// Continues on the resumed stack, with `gift`. Seen from the suspended stack, the call returns when some other stack
/// switches back to it, with that switch's gift.
///
/// # Safety
/// `save` is writable. `load` was stored by an earlier `switch` or made by `prepare`, has not been resumed since, and
/// its stack is mapped and in use by nobody else. Both stacks run on this kernel thread only, so that addresses of
/// thread-locals that the compiler has kept in registers or frames stay right.
#[inline(always)]
pub(crate) unsafe fn switch(save: *mut *mut u8, load: *mut u8, gift: *const ()) -> *const () {
    let received;
    // SAFETY: the left picture is pushed below the running stack's frames (no `nostack`: the compiler keeps nothing
    // there), and popped again by the code at label 2 when the stack is resumed, which the caller's promise makes the
    // only way on. What lies between may change any memory that is shared, as any call may, and destroys exactly the
    // registers declared. `prepare` and this code agree on the lowest two words.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "lea rax, [rip + 2f]",
            "push rax",
            "sub rsp, 8",
            "stmxcsr dword ptr [rsp]",
            "fnstcw word ptr [rsp + 4]",
            "mov ecx, dword ptr [rsp]",
            "movzx r8d, word ptr [rsp + 4]",
            "mov qword ptr [rdi], rsp",
            "mov rsp, rsi",
            "cmp ecx, dword ptr [rsp]",
            "je 3f",
            "ldmxcsr dword ptr [rsp]",
            "3:",
            "cmp r8w, word ptr [rsp + 4]",
            "je 4f",
            "fldcw word ptr [rsp + 4]",
            "4:",
            "mov rax, qword ptr [rsp + 8]",
            "add rsp, 16",
            "jmp rax",
            "2:",
            "pop rbx",
            "pop rbp",
            inout("rdi") save => _,
            inout("rsi") load => _,
            inout("rdx") gift => received,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
            clobber_abi("sysv64"),
        );
    }
    received
}

/// The words of an interlude, below those of the suspended thread, lowest address first.
#[repr(C)]
struct InterludeFrame {
    control: u64,
    resume_at: unsafe extern "C" fn() -> !,
    entry: extern "C" fn() -> !,
    pad: u64,
}

const _: () = assert!(size_of::<InterludeFrame>() == 32);

/// Has a suspended stack run `entry`, on top of what it has, when it is switched to by the pointer returned. `entry` must switch away again
/// without coming back; the stack is then as it was, to be resumed by `suspended`. A backtrace taken in `entry` goes on into the suspended frames.
///
/// # Safety
/// `suspended` is what `switch` stored for a stack that is suspended now, and the bytes below it, as many as `entry` needs and 32 more, are
/// writable and used by nobody.
pub(crate) unsafe fn interlude(suspended: *mut u8, entry: extern "C" fn() -> !) -> *mut u8 {
    // SAFETY: the lowest word of a suspended stack.
    let control = unsafe { suspended.cast::<u64>().read() };
    let frame = suspended.wrapping_sub(size_of::<InterludeFrame>()).cast::<InterludeFrame>();
    // SAFETY: the caller promised that the bytes below are free.
    unsafe { frame.write(InterludeFrame { control, resume_at: interlude_trampoline, entry, pad: 0 }) };
    frame.cast()
}

/// Where an interlude begins. `rsp` is 16 below the suspended picture; the call frame information says that the caller is whoever was
/// suspended, with the two registers that `switch` pushed, 48 bytes up.
///
/// # Safety
/// Only `switch` comes here, by the picture that `interlude` wrote.
#[unsafe(naked)]
unsafe extern "C" fn interlude_trampoline() -> ! {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_def_cfa rsp, 48",
        ".cfi_offset rip, -24",
        ".cfi_offset rbx, -16",
        ".cfi_offset rbp, -8",
        "mov rax, qword ptr [rsp]",
        "call rax",
        "ud2",
        ".cfi_endproc",
    )
}

/// Where a fresh stack begins: calls the entry with its argument and the gift.
///
/// # Safety
/// Only `switch` comes here, by the picture that `prepare` wrote.
#[unsafe(naked)]
unsafe extern "C" fn trampoline() -> ! {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined rip",
        "pop rdi",
        "pop rax",
        "mov rsi, rdx",
        "xor ebp, ebp",
        "call rax",
        "ud2",
        ".cfi_endproc",
    )
}
