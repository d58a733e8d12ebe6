//! The context switch on x86-64 (System V calling convention).
//!
//! A switch stores a return label and the two registers that inline assembly may not name as
//! clobbered, exchanges the stack pointer, and jumps. All other registers are declared clobbered,
//! so the compiler saves those that are in use at that point and no more. The switch is inline, and
//! jumps instead of returning, for the sake of the processor's stack of predicted return addresses:
//! a `ret` on another stack than its `call` is mispredicted every time, which costs more than all
//! the rest (10 ns against 2, measured on an EPYC).
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
//! │ (keeps rsp aligned)          │ ◄─ saved pointer  │ (as on the left)             │ ◄─ saved
//! └──────────────────────────────┘ suspended         └──────────────────────────────┘ fresh
//! low addresses
//! ```
//! A *running* thread looks like the left picture without the lowest four words; its stack pointer
//! is in `rsp`.
//!
//! # Floating-point control
//! MXCSR and the x87 control word are not switched: reading MXCSR alone costs as much as all the
//! rest (5.5 ns of 9). Rust code always runs with the default values (to change them is undefined
//! behaviour, see `std::arch::x86_64::_mm_setcsr`), and code in other languages has to restore them
//! before it calls into Rust. A thread that needs its own control words, for such code, declares it
//! ([`crate::Builder`]), and the scheduler exchanges them by [`control`] and [`set_control`] when
//! it switches from or to that thread. A checked build also verifies that other threads keep to the
//! rule. The stack word that could hold the control words keeps the stack aligned. All other
//! floating-point and vector state is declared clobbered, so the compiler keeps none of it across a
//! switch. The direction flag is clear, by the calling convention and by the rules of inline
//! assembly.
//!
//! # Unwinding
//! The trampoline's call frame information says that it has no caller, and its frame pointer is 0.
//! So a backtrace ends there, by either method, and a panic finds no frame beyond. (No panic gets
//! there: the entry function catches it.) Shadow stacks (CET) are not supported; Rust programs on
//! Linux are not marked for them.

use std::arch::{asm, naked_asm};

/// The default control words.
///
/// The lower half is MXCSR (0x1F80: all exceptions masked, round to nearest). The upper half is the
/// x87 control word (0x037F: all exceptions masked, extended precision, round to nearest).
pub(crate) const CONTROL: u64 = 0x037F_0000_1F80;

/// Reads the control words, laid out as in [`CONTROL`], without the sticky exception flags.
pub(crate) fn control() -> u64 {
    let (mut mxcsr, mut x87) = (0_u32, 0_u16);
    // SAFETY: stores the register into a live word.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
    // SAFETY: stores the control word into a live word.
    unsafe { asm!("fnstcw [{}]", in(reg) &raw mut x87, options(nostack, preserves_flags)) };
    u64::from(x87) << 32 | u64::from(mxcsr & !0x3F)
}

/// Loads control words that [`control`] returned.
///
/// # Safety
/// The code that runs next expects these control words: it is that of the thread they belong to,
/// or, with the default ones, any code.
pub(crate) unsafe fn set_control(control: u64) {
    let (mxcsr, x87) = (control as u32, (control >> 32) as u16);
    // SAFETY: the register held this value before.
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

/// The first function of a thread.
///
/// It gets the argument that was given to `prepare`, and the gift of the switch that started it.
pub(crate) type EntryFn = unsafe extern "C" fn(*const (), *const ()) -> !;

/// Writes the picture of a fresh thread below `top` and returns the stack pointer to switch to.
///
/// # Safety
/// `top` is 16-byte aligned, and the 48 bytes below it are writable and otherwise unused.
#[inline(always)]
pub(crate) unsafe fn prepare(top: *mut u8, entry: EntryFn, argument: *const ()) -> *mut u8 {
    let frame = top.wrapping_sub(size_of::<FreshFrame>()).cast::<FreshFrame>();
    let picture = FreshFrame { aligns: 0, resume_at: trampoline, argument, entry, pad: [0; 2] };
    // SAFETY: the caller promised that the bytes below an aligned `top` are writable and unused.
    unsafe { frame.write(picture) };
    frame.cast()
}

/// Suspends the running stack, stores its pointer in `*save`, and resumes the stack at `load`.
///
/// Execution continues on the resumed stack, with `gift`. Seen from the suspended stack, the call
/// returns when some other stack switches back to it, with that switch's gift.
///
/// # Safety
/// `save` is writable. `load` was stored by an earlier `switch` or returned by `prepare`, and has
/// not been resumed since; its stack is mapped and not otherwise in use. Both stacks run on this
/// kernel thread only, so that addresses of thread-locals that the compiler has kept in registers
/// or frames stay valid.
#[inline(always)]
pub(crate) unsafe fn switch(save: *mut *mut u8, load: *mut u8, gift: *const ()) -> *const () {
    let received;
    // SAFETY: the left picture is pushed below the running stack's frames (no `nostack`: the
    // compiler keeps nothing there). The code at label 2 pops it again when the stack is resumed,
    // which by the caller's promise is the only way it continues. What runs in between may change
    // any shared memory, as any call may, and clobbers exactly the registers declared. `prepare`
    // and this code agree on the second-lowest word.
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

/// Prepares a suspended stack to run `entry` on top of its present contents.
///
/// `entry` runs when the stack is switched to by the pointer returned. It must switch away again
/// and never return; the stack is then as it was, to be resumed by `suspended`. A backtrace taken
/// in `entry` continues into the suspended frames.
///
/// # Safety
/// `suspended` is what `switch` stored for a stack that is suspended now. Below it, 32 bytes more
/// than `entry` needs are writable and unused.
pub(crate) unsafe fn interlude(suspended: *mut u8, entry: extern "C" fn() -> !) -> *mut u8 {
    let frame = suspended.wrapping_sub(size_of::<InterludeFrame>()).cast::<InterludeFrame>();
    // SAFETY: the caller promised that the bytes below are unused.
    unsafe {
        frame.write(InterludeFrame { aligns: 0, resume_at: interlude_trampoline, entry, pad: 0 })
    };
    frame.cast()
}

/// The start of an interlude.
///
/// `rsp` is 16 below the suspended picture. The call frame information names the suspended thread
/// as the caller, with the two registers that `switch` pushed, 48 bytes up.
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

/// The start of a fresh stack: calls the entry with its argument and the gift.
///
/// The call is a jump with the return address pushed. The entry does not return, and a `call`
/// without a return would make the processor mispredict the next return of the thread that runs
/// after this one, such as its joiner (5 ns of 31).
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
