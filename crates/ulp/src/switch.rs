//! The switch between a worker and a ULP on x86-64 (System V calling convention).
//!
//! A ULP has all registers of a process: those that a called function preserves, the control words
//! of both floating-point units, and FS, by which its libc finds its thread-locals. Registers that
//! a called function may clobber are not saved, since each switch is a call on both sides. GS
//! belongs to the worker. By it the gate, which a ULP calls, finds its way back, and an image finds
//! its table and the code that it [shares](crate::SharedImage) with others. So a ULP needs to know
//! nothing of the host but the gate's address, which is in its table, and while it waits no address
//! of the host is on its stack.
//!
//! ```text
//! high addresses
//! ┌────────────────────────────┐               ┌────────────────────────────┐
//! │ frames …                   │               │ argc, argv, … (as from the │
//! │ return address (image's)   │               │ kernel); entry             │
//! │ rbp rbx r12 r13 r14 r15    │               │ six zeros                  │
//! │ fs                         │               │ 0                          │
//! │ mxcsr, x87                 │ ◄─ sp         │ mxcsr, x87                 │ ◄─ sp
//! └────────────────────────────┘ waits         └────────────────────────────┘ fresh
//! low addresses
//! ```
//! While a ULP runs, the worker's own stack ends in rbp, rbx and the address where the worker goes
//! on.

use crate::copying::{COPYING, copying};
use crate::interrupts::{assign, thread_time};
use crate::layout::{
    CONTEXT_WHAT, DOORS, GS_ASSIGNED, GS_CATCHES, GS_CURRENT, GS_DOORS, GS_MASK, GS_NAMES,
    GS_TABLE, SLOT, TABLE_CAUGHT, TABLE_HEAP_END, TABLE_INTERRUPTED, TIMED,
};
use std::arch::{asm, naked_asm};
use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

/// The default control words, as they lie on a stack: MXCSR, and above it the x87 unit's.
pub(crate) const CONTROL: u64 = 0x037F_0000_1F80;

/// The control bits of MXCSR. The other bits are flags that stay set until they are cleared.
const CONTROLS: u32 = 0xFFC0;

/// A value of [`Context::what`]: the ULP did not ask, but has crashed.
pub(crate) const CRASHED: u64 = u64::MAX;

const _: () = assert!(TIMED != CRASHED, "a value of no question");

/// What is kept of a ULP while it does not run, and how it and the host communicate.
///
/// A switch by the host touches only the first line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) sp: u64,
    /// Address of the ULP's table.
    pub(crate) table: u64,
    /// What the ULP asks for, and its arguments.
    pub(crate) what: u64,
    pub(crate) args: [u64; ARGS],
    /// The answer.
    pub(crate) reply: u64,
    /// The ULPs that run after this one yields, and that ran before it: addresses of contexts. With
    /// a `next` of 0 the host decides.
    pub(crate) next: u64,
    pub(crate) previous: u64,
    /// Index of this ULP among those in turn.
    pub(crate) index: u64,
    /// The signal's code, for a crash.
    pub(crate) code: u64,
}

/// Number of argument words of a question.
pub(crate) const ARGS: usize = 4;

const _: () =
    assert!(offset_of!(Context, next) == 64 && offset_of!(Context, what) as u64 == CONTEXT_WHAT);

/// What is kept of the host's thread while a ULP runs. GS points here.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Host {
    sp: u64,
    fs: u64,
    /// Context of the ULP that runs; 0 while none does.
    pub(crate) current: u64,
    /// Its table: what runs on its stack finds it by GS.
    table: u64,
    /// Context of the ULP that ran last.
    pub(crate) last: u64,
    /// The control registers when a ULP is resumed, as they lie on a stack. Loading them takes
    /// long, so it is skipped where they are right already.
    control: u64,
    /// The thread's number, since the threads that it starts have its GS too.
    thread: i32,
    /// What the kernel does with system calls in slots: see [`crate::catching`].
    pub(crate) catches: u8,
    /// Address of the library's words of names; 0 if there are none.
    pub(crate) names: u64,
    /// Functions that images call by GS.
    pub(crate) doors: EntryPoints,
    /// The thread's processor time that interrupts have assigned: see [`crate::interrupts`].
    pub(crate) assigned: AtomicU64,
    /// Registers of the ULP that crashed or was interrupted last, in the kernel's order (`gregs`,
    /// without the segment registers).
    pub(crate) registers: [u64; REGISTERS],
    /// The signals that the thread has blocked, as the kernel has them.
    pub(crate) mask: u64,
}

/// Addresses of shared functions, in whole lines.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryPoints(pub(crate) [u64; DOORS as usize]);

const _: () = assert!(
    offset_of!(Host, table) as u64 == GS_TABLE
        && offset_of!(Host, doors) as u64 == GS_DOORS
        && offset_of!(Host, catches) as u64 == GS_CATCHES
        && offset_of!(Host, current) as u64 == GS_CURRENT
        && offset_of!(Host, assigned) as u64 == GS_ASSIGNED
        && offset_of!(Host, names) as u64 == GS_NAMES
        && offset_of!(Host, mask) as u64 == GS_MASK
        && offset_of!(libc::ucontext_t, uc_sigmask) == 296
);

impl Host {
    /// The host of this thread.
    ///
    /// # Safety
    /// The kernel lets programs read FS.
    pub(crate) unsafe fn here() -> Self {
        let fs;
        // SAFETY: the caller's promise.
        unsafe { asm!("rdfsbase {}", out(reg) fs, options(nomem, nostack, preserves_flags)) };
        // SAFETY: asks the kernel for a number.
        let thread = unsafe { libc::gettid() };
        let doors = EntryPoints([0; DOORS as usize]);
        Self {
            sp: 0,
            fs,
            current: 0,
            table: 0,
            last: 0,
            control: CONTROL,
            thread,
            catches: CATCHES,
            assigned: AtomicU64::new(thread_time()),
            names: 0,
            doors,
            registers: [0; REGISTERS],
            mask: 0,
        }
    }
}

/// Resumes the ULP whose context is in rsi.
///
/// edx and r8w hold the present control registers. For a template with `sp`, `table`, `host_table`
/// and `reply`.
macro_rules! go_on {
    () => {
        "mov rsp, [rsi + {sp}]
        mov rcx, [rsi + {table}]
        mov rax, [rsi + {reply}]
        mov gs:[{host_table}], rcx
        mov rcx, [rsp + 8]
        wrfsbase rcx
        cmp edx, [rsp]
        je 4f
        ldmxcsr [rsp]
        4:
        cmp r8w, [rsp + 4]
        je 4f
        fnclex
        fldcw [rsp + 4]
        4:
        add rsp, 16
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbx
        pop rbp
        pop rcx
        // A fresh ULP learns from this that it has nothing to call at its end.
        xor edx, edx
        jmp rcx"
    };
}

/// Runs a ULP until it asks for something, or crashes.
///
/// Inlined, and left by jumps: a `ret` on another stack than its `call` is mispredicted each time.
///
/// # Safety
/// GS points to `host`, which is this thread's. `context` is that of a ULP whose memory is mapped,
/// and which waits or is fresh. Neither is otherwise used until this returns.
#[inline]
pub(crate) unsafe fn resume(host: *mut Host, context: *mut Context) {
    // SAFETY: the caller's promise. All registers that a ULP may change are declared here, or kept
    // on the stack.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "lea rax, [rip + 3f]",
            "push rax",
            "stmxcsr [rdi + {control}]",
            "fnstcw [rdi + {control} + 4]",
            "mov [rdi + {host_sp}], rsp",
            "mov [rdi + {current}], rsi",
            "mov edx, [rdi + {control}]",
            "movzx r8d, word ptr [rdi + {control} + 4]",
            go_on!(),
            "3:",
            "pop rbx",
            "pop rbp",
            host_sp = const offset_of!(Host, sp),
            current = const offset_of!(Host, current),
            control = const offset_of!(Host, control),
            sp = const offset_of!(Context, sp),
            table = const offset_of!(Context, table),
            host_table = const offset_of!(Host, table),
            reply = const offset_of!(Context, reply),
            inout("rdi") host => _,
            inout("rsi") context => _,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
            clobber_abi("sysv64"),
        );
    }
}

/// Goes back to the host with a question, and returns the answer when the ULP runs again.
///
/// An image calls this. A ULP that only yields is followed by the next one at once, without the
/// host: setting FS takes longer than the rest of a switch, and is done once this way.
#[unsafe(naked)]
pub(crate) extern "sysv64" fn gate() {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "rdfsbase rax",
        "push rax",
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov rax, gs:[{current}]",
        "mov [rax + {what}], rdi",
        "mov [rax + {args}], rsi",
        "mov [rax + {args} + 8], rdx",
        "mov [rax + {args} + 16], rcx",
        "mov [rax + {args} + 24], r8",
        "mov [rax + {sp}], rsp",
        "mov edx, [rsp]",
        "movzx r8d, word ptr [rsp + 4]",
        "cmp rdi, {yields}",
        "jne 2f",
        "mov rsi, [rax + {next}]",
        "test rsi, rsi",
        "jz 2f",
        // The next ULP, as in `resume`; its answer is in its own words.
        "mov qword ptr [rax + {reply}], 0",
        "mov gs:[{current}], rsi",
        go_on!(),
        // Back to the host.
        "2:",
        "mov gs:[{last}], rax",
        "and edx, {controls}",
        "cmp edx, {mxcsr}",
        "jne {defaults}",
        "cmp r8d, {x87}",
        "jne {defaults}",
        "jmp {leave}",
        yields = const crate::layout::ASK_YIELD,
        next = const offset_of!(Context, next),
        reply = const offset_of!(Context, reply),
        last = const offset_of!(Host, last),
        current = const offset_of!(Host, current),
        what = const offset_of!(Context, what),
        args = const offset_of!(Context, args),
        sp = const offset_of!(Context, sp),
        table = const offset_of!(Context, table),
        host_table = const offset_of!(Host, table),
        controls = const CONTROLS,
        mxcsr = const CONTROL as u32,
        x87 = const CONTROL >> 32,
        defaults = sym defaults,
        leave = sym leave,
    )
}

/// Returns to the host with the control words that it expects.
#[unsafe(naked)]
extern "sysv64" fn defaults() {
    naked_asm!(
        "mov dword ptr gs:[{control}], {mxcsr}",
        "mov word ptr gs:[{control} + 4], {x87}",
        "ldmxcsr gs:[{control}]",
        "fnclex",
        "fldcw gs:[{control} + 4]",
        "jmp {leave}",
        control = const offset_of!(Host, control),
        mxcsr = const CONTROL as u32,
        x87 = const CONTROL >> 32,
        leave = sym leave,
    )
}

/// Returns to the host, from any stack.
#[unsafe(naked)]
extern "sysv64" fn leave() {
    naked_asm!(
        "mov rcx, gs:[{host_fs}]",
        "wrfsbase rcx",
        "mov rsp, gs:[{host_sp}]",
        "mov qword ptr gs:[{current}], 0",
        "mov byte ptr gs:[{catches}], {block}",
        "pop rcx",
        "jmp rcx",
        catches = const offset_of!(Host, catches),
        block = const CATCHES,
        host_fs = const offset_of!(Host, fs),
        host_sp = const offset_of!(Host, sp),
        current = const offset_of!(Host, current),
    )
}

/// Values of [`Host::catches`], the kernel's: it catches system calls in slots, or lets them pass.
pub(crate) const CATCHES: u8 = 1;
const PASSES: u8 = 0;

/// Where a fresh ULP begins, with the address of its entry in rbx.
///
/// Its libc makes some 15 system calls before the image can answer for them. They pass.
#[unsafe(naked)]
pub(crate) extern "sysv64" fn begin() {
    naked_asm!(
        "mov byte ptr gs:[{catches}], {passes}",
        "jmp rbx",
        catches = const offset_of!(Host, catches),
        passes = const PASSES,
    )
}

/// Makes a system call for an image, whose registers are as the kernel expects them.
///
/// No call of the host's own comes through here.
#[unsafe(naked)]
pub(crate) extern "sysv64" fn call() {
    naked_asm!("syscall", "ret")
}

/// Returns `true` if this is an address within [`call`].
pub(crate) fn is_in_call(address: u64) -> bool {
    /// `syscall` has two bytes, and `ret` one.
    const LENGTH: u64 = 3;
    let start = call as *const () as u64;
    (start..start + LENGTH).contains(&address)
}

/// Offset of the registers in what the kernel passes to a handler (`ucontext_t`, `gregs`), their
/// number, and the offsets of some of them.
const GREGS: usize = 40;
pub(crate) const REGISTERS: usize = 17;
const STACK_FLAGS: usize =
    offset_of!(libc::ucontext_t, uc_stack) + offset_of!(libc::stack_t, ss_flags);
const RSP: usize = GREGS + 8 * libc::REG_RSP as usize;
const RIP: usize = GREGS + 8 * libc::REG_RIP as usize;
/// The flags register as the calling convention has it, and its flag for checks of alignment (AC).
const FLAGS: u32 = 0x202;
const CHECKS_ALIGNMENT: u32 = 1 << 18;
/// Offsets of the address and of the origin in `siginfo_t`.
const ADDRESS: usize = 16;
const CODE: usize = 8;

/// Finds the host of this thread, in a signal handler.
///
/// Leaves it in r8, or goes to label 2 if there is none. For a template with `gettid` and `thread`.
/// Other threads have no host, or that of the thread that started them.
macro_rules! here {
    () => {
        "rdgsbase r8
        test r8, r8
        jz 2f
        mov eax, {gettid}
        syscall
        cmp eax, [r8 + {thread}]
        jne 2f"
    };
}

/// Leaves the context of the ULP that runs on this host's thread in rax, or goes to label 2.
///
/// For a template with `current`, after [`here`].
macro_rules! running {
    () => {
        "mov rax, [r8 + {current}]
        test rax, rax
        jz 2f"
    };
}

/// The handler of signals that end a program.
///
/// While a ULP runs, it abandons that ULP for good and goes back to the host, with default flags.
/// Otherwise the host itself has crashed: the signal comes again, and is not handled then. If a ULP
/// has switched on the processor's check of alignment, which the host does not pass, the host goes
/// on without that. A fault of a [copy](crate::copying) of a ULP's memory ends that copy.
#[unsafe(naked)]
pub(crate) extern "sysv64" fn crashed() {
    naked_asm!(
        here!(),
        running!(),
        "mov gs:[{last}], rax",
        "mov qword ptr [rax + {what}], -1",
        "mov [rax + {args}], rdi",
        "mov rcx, [rsi + {address}]",
        "mov [rax + {args} + 8], rcx",
        "mov rcx, [rdx + {rip}]",
        "mov [rax + {args} + 16], rcx",
        "mov rcx, [rdx + {rsp}]",
        "mov [rax + {args} + 24], rcx",
        "movsxd rcx, dword ptr [rsi + {code}]",
        "mov [rax + {crash_code}], rcx",
        "push {flags}",
        "popfq",
        "lea rsi, [rdx + {gregs}]",
        "lea rdi, [r8 + {registers}]",
        "mov ecx, {count}",
        "rep movsq",
        "fninit",
        "jmp {defaults}",
        "2:",
        "lea rax, [rip + {copying}]",
        "cmp rax, [rdx + {rip}]",
        "je 4f",
        "cmp edi, {bus}",
        "jne 3f",
        "test dword ptr [rdx + {eflags}], {aligned}",
        "jz 3f",
        "and dword ptr [rdx + {eflags}], ~{aligned}",
        "ret",
        "3:",
        "jmp {own}",
        "4:",
        "add qword ptr [rdx + {rip}], {skipped}",
        "ret",
        copying = sym copying,
        skipped = const COPYING,
        flags = const FLAGS,
        bus = const libc::SIGBUS,
        eflags = const GREGS + 8 * libc::REG_EFL as usize,
        aligned = const CHECKS_ALIGNMENT,
        current = const offset_of!(Host, current),
        what = const offset_of!(Context, what),
        args = const offset_of!(Context, args),
        address = const ADDRESS,
        gregs = const GREGS,
        registers = const offset_of!(Host, registers),
        count = const REGISTERS,
        rip = const RIP,
        rsp = const RSP,
        defaults = sym defaults,
        last = const offset_of!(Host, last),
        thread = const offset_of!(Host, thread),
        gettid = const libc::SYS_gettid,
        code = const CODE,
        crash_code = const offset_of!(Context, code),
        own = sym crate::crash::own,
    )
}

/// The handler of the signal that interrupts a ULP.
///
/// First it assigns the processor time since the last one. While a ULP runs its own code, and can
/// be interrupted, this continues in its image's handler, as if the kernel had called that.
/// Otherwise it does nothing more: the host, or shared code, is done soon.
#[unsafe(naked)]
pub(crate) extern "sysv64" fn interrupted() {
    naked_asm!(
        here!(),
        "push rdx",
        "push r8",
        "sub rsp, 8",
        "mov rdi, r8",
        "call {assign}",
        "add rsp, 8",
        "pop r8",
        "pop rdx",
        running!(),
        "mov rax, [rax + {table}]",
        "mov r9, [rdx + {rip}]",
        // Its own code is from its slot's beginning to the end of its heap.
        "mov rcx, rax",
        "shr rcx, {slot}",
        "shl rcx, {slot}",
        "cmp r9, rcx",
        "jb 2f",
        "cmp r9, [rax + {end}]",
        "jae 2f",
        "mov rax, [rax + {handler}]",
        "test rax, rax",
        "jz 2f",
        // Disables the alternate signal stack in the frame: see `interrupts`.
        "mov dword ptr [rdx + {stack_flags}], -1",
        "lea rsi, [rdx + {gregs}]",
        "lea rdi, [r8 + {registers}]",
        "mov ecx, {count}",
        "rep movsq",
        "jmp rax",
        "2:",
        "ret",
        gettid = const libc::SYS_gettid,
        thread = const offset_of!(Host, thread),
        current = const offset_of!(Host, current),
        table = const offset_of!(Context, table),
        rip = const RIP,
        slot = const SLOT.trailing_zeros(),
        end = const TABLE_HEAP_END * 8,
        handler = const TABLE_INTERRUPTED * 8,
        assign = sym assign,
        stack_flags = const STACK_FLAGS,
        gregs = const GREGS,
        registers = const offset_of!(Host, registers),
        count = const REGISTERS,
    )
}

/// The handler of SIGSYS: a ULP's program has made a system call itself.
///
/// Continues in the image's handler, as if the kernel had called that. The kernel does this only on
/// a worker's thread, so no check is needed that it is one.
#[unsafe(naked)]
pub(crate) extern "sysv64" fn caught() {
    naked_asm!(
        "cmp dword ptr [rsi + {code}], {dispatched}",
        "jne 2f",
        "mov rax, gs:[{current}]",
        "test rax, rax",
        "jz 2f",
        "mov rax, [rax + {table}]",
        "mov rax, [rax + {handler}]",
        "test rax, rax",
        "jz 2f",
        // Disables the alternate signal stack in the frame: see `interrupts`.
        "mov dword ptr [rdx + {stack_flags}], -1",
        "jmp rax",
        "2:",
        "jmp {own}",
        code = const CODE,
        dispatched = const DISPATCHED,
        current = const offset_of!(Host, current),
        table = const offset_of!(Context, table),
        handler = const TABLE_CAUGHT * 8,
        stack_flags = const STACK_FLAGS,
        own = sym crate::crash::own,
    )
}

/// The `si_code` of SIGSYS for a system call that is caught (`SYS_USER_DISPATCH`).
const DISPATCHED: u32 = 2;

/// Makes GS point to `host`.
///
/// # Safety
/// Nothing else in this thread uses GS, and the kernel lets programs set it.
pub(crate) unsafe fn set_gs(host: *mut Host) {
    // SAFETY: the caller's promise.
    unsafe { asm!("wrgsbase {}", in(reg) host, options(nostack, preserves_flags)) };
}
