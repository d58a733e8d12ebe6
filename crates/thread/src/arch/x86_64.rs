//! The context switch on x86-64 (System V calling convention).
//!
//! A switch stores a return label and the two registers that inline assembly may not name as
//! destroyed, exchanges the stack pointer, and jumps. All other registers are declared destroyed,
//! so the compiler saves those that are in use at the place and no more. It is inline, and jumps
//! instead of returning, for the sake of the processor's stack of predicted return addresses: a
//! `ret` on another stack than its `call` is mispredicted every time, which costs more than all the
//! rest (10 ns against 2, measured on an EPYC).
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
//! │ (keeps rsp aligned)          │ ◄─ saved pointer  │ (as on the left)             │ ◄─ saved pointer
//! └──────────────────────────────┘ suspended         └──────────────────────────────┘ fresh
//! low addresses
//! ```
//! A *running* thread looks like the left picture without the lowest four words; its stack pointer
//! is in `rsp`.
//!
//! # Floating-point control
//! MXCSR and the x87 control word are not switched: reading MXCSR alone costs as much as all the
//! rest (5.5 ns of 9). Rust code always runs with the default ones (to change them is undefined
//! behaviour, see `std::arch::x86_64::_mm_setcsr`), and code in other languages has to set them
//! back before it calls into Rust. A thread that needs its own, for such code, says so
//! ([`crate::Builder`]), and the scheduler exchanges them by [`control`] and [`set_control`] when
//! it is switched from or to; in a checked build it also looks whether others keep to the rule. The
//! word that would hold them keeps the stack aligned. All other floating-point and vector
//! state is declared destroyed, so the compiler keeps none of it across a switch. The direction
//! flag is clear, by the convention and by the rules of inline assembly.
//!
//! # Unwinding
//! The trampoline's call frame information says that it has no caller, and its frame pointer is 0;
//! so a backtrace ends there, by either method, and a panic finds no frame beyond. (None gets
//! there: the entry function catches it.) Shadow stacks (CET) are not supported; Rust programs on
//! Linux are not marked for them.

use std::arch::{asm, naked_asm};

/// Default MXCSR (0x1F80: all exceptions masked, round to nearest), and in the upper half the
/// default x87 control word (0x037F: all exceptions masked, extended precision, round to nearest).
pub(crate) const CONTROL: u64 = 0x037F_0000_1F80;

/// The running control words, as in [`CONTROL`], without the sticky exception flags.
pub(crate) fn control() -> u64 {
    let (mut mxcsr, mut x87) = (0_u32, 0_u16);
    // SAFETY: stores the register into a live word.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
    // SAFETY: stores the control word into a live word.
    unsafe { asm!("fnstcw [{}]", in(reg) &raw mut x87, options(nostack, preserves_flags)) };
    u64::from(x87) << 32 | u64::from(mxcsr & !0x3F)
}

/// Loads control words that [`control`] gave.
///
/// # Safety
/// Code runs next that expects them: that of the thread they belong to, or, with the default ones,
/// any.
pub(crate) unsafe fn set_control(control: u64) {
    let (mxcsr, x87) = (control as u32, (control >> 32) as u16);
    // SAFETY: a value that the register had before.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr, options(nostack, preserves_flags)) };
    // SAFETY: as above.
    unsafe { asm!("fldcw [{}]", in(reg) &raw const x87, options(nostack, preserves_flags)) };
}

/// The words of a fresh stack, lowest address first.
#[repr(C)]
struct FreshFrame {
    aligns: u64,
    resume_at: unsafe extern "C" fn() -> !,
    argument: *const (),
    entry: EntryFn,
    pad: [u64; 2],
}

const _: () = assert!(size_of::<FreshFrame>() == 48);

/// The first function of a thread: gets the argument given to `prepare`, and the gift of the switch
/// that started it.
pub(crate) type EntryFn = unsafe extern "C" fn(*const (), *const ()) -> !;

/// Writes the picture of a fresh thread below `top` and returns the stack pointer to switch to.
///
/// # Safety
/// `top` is 16-byte aligned, and the 48 bytes below it are writable and used by nobody else.
#[inline(always)]
pub(crate) unsafe fn prepare(top: *mut u8, entry: EntryFn, argument: *const ()) -> *mut u8 {
    let frame = top.wrapping_sub(size_of::<FreshFrame>()).cast::<FreshFrame>();
    let picture = FreshFrame { aligns: 0, resume_at: trampoline, argument, entry, pad: [0; 2] };
    // SAFETY: the caller promised that many free writable bytes below an aligned `top`.
    unsafe { frame.write(picture) };
    frame.cast()
}

/// Suspends the running stack, storing its pointer in `*save`, and resumes the one whose pointer is
/// `load`.
///
/// Continues on the resumed stack, with `gift`. Seen from the suspended stack, the call returns
/// when some other stack switches back to it, with that switch's gift.
///
/// # Safety
/// `save` is writable. `load` was stored by an earlier `switch` or made by `prepare`, has not been
/// resumed since, and its stack is mapped and in use by nobody else. Both stacks run on this kernel
/// thread only, so that addresses of thread-locals that the compiler has kept in registers or
/// frames stay right.
#[inline(always)]
pub(crate) unsafe fn switch(save: *mut *mut u8, load: *mut u8, gift: *const ()) -> *const () {
    let received;
    // SAFETY: the left picture is pushed below the running stack's frames (no `nostack`: the
    // compiler keeps nothing there), and popped again by the code at label 2 when the stack is
    // resumed, which the caller's promise makes the only way on. What lies between may change
    // any memory that is shared, as any call may, and destroys exactly the registers declared.
    // `prepare` and this code agree on the second-lowest word.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "lea rax, [rip + 2f]",
            "push rax",
            "sub rsp, 8",
            "mov qword ptr [rdi], rsp",
            "mov rsp, rsi",
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
    aligns: u64,
    resume_at: unsafe extern "C" fn() -> !,
    entry: extern "C" fn() -> !,
    pad: u64,
}

const _: () = assert!(size_of::<InterludeFrame>() == 32);

/// Has a suspended stack run `entry`, on top of what it has, when it is switched to by the pointer
/// returned. `entry` must switch away again without coming back; the stack is then as it was, to be
/// resumed by `suspended`. A backtrace taken in `entry` goes on into the suspended frames.
///
/// # Safety
/// `suspended` is what `switch` stored for a stack that is suspended now, and the bytes below it,
/// as many as `entry` needs and 32 more, are writable and used by nobody.
pub(crate) unsafe fn interlude(suspended: *mut u8, entry: extern "C" fn() -> !) -> *mut u8 {
    let frame = suspended.wrapping_sub(size_of::<InterludeFrame>()).cast::<InterludeFrame>();
    // SAFETY: the caller promised that the bytes below are free.
    unsafe {
        frame.write(InterludeFrame { aligns: 0, resume_at: interlude_trampoline, entry, pad: 0 })
    };
    frame.cast()
}

/// Where an interlude begins. `rsp` is 16 below the suspended picture; the call frame information
/// says that the caller is whoever was suspended, with the two registers that `switch` pushed, 48
/// bytes up.
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
/// By a jump, with the return address pushed: the entry does not return, and a call without a
/// return would make the processor mispredict the next return of whoever goes on after this thread,
/// such as its joiner (5 ns of 31).
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
        "lea rcx, [rip + 2f]",
        "push rcx",
        "jmp rax",
        "2:",
        "ud2",
        ".cfi_endproc",
    )
}
