/* Where the kernel stops a program: at an interrupt, and at a system call of its own. Both are
 * entered like a handler that the kernel has called on the program's stack. They return to an
 * address in this image, so that nothing of the host's lies on that stack. Debuggers recognise a
 * signal's frame by the exact instructions there. They are not executed: the host's instruction
 * makes that system call, too. */

#include "layout.h"

/* Offset of the blocked signals in ucontext_t. */
#define MASK 296

    .text
    .globl upvm_interrupted
    .type upvm_interrupted, @function
    .hidden upvm_interrupted
upvm_interrupted:
    .cfi_startproc
    lea .Lback(%rip), %rax
    mov %rax, (%rsp)
    mov %gs:UPVM_GS_TABLE, %rdi
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    call upvm_look_around
    jmp .Lleave
    .cfi_endproc
    .size upvm_interrupted, . - upvm_interrupted

    .globl upvm_caught
    .type upvm_caught, @function
    .hidden upvm_caught
upvm_caught:
    .cfi_startproc
    lea .Lback(%rip), %rax
    mov %rax, (%rsp)
    lea 40(%rdx), %rdi /* the registers in ucontext_t */
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    call upvm_make
.Lleave:
    add $16, %rsp
    .cfi_adjust_cfa_offset -16
    /* The program may go on in another process than the one that it was stopped in, whose thread
     * has other signals blocked. */
    mov %gs:UPVM_GS_MASK, %rcx
    mov %rcx, MASK(%rsp)
    mov %gs:UPVM_GS_TABLE, %rcx
    mov $15, %eax /* rt_sigreturn */
    jmp *8*UPVM_TABLE_CALL(%rcx)
    .cfi_endproc
    .size upvm_caught, . - upvm_caught

    /* The place of each register, from the stack pointer on, in the frame that the kernel has made.
     * Unwinders look for a caller one byte before its return address. */
    .balign 16
    .cfi_startproc
    .cfi_signal_frame
    .cfi_escape 0x0f, 4, 0x77, 0xa0, 0x1, 0x6 /* the stack as it was */
    .cfi_escape 0x10, 8, 2, 0x77, 0x28 /* r8 */
    .cfi_escape 0x10, 9, 2, 0x77, 0x30 /* r9 */
    .cfi_escape 0x10, 10, 2, 0x77, 0x38 /* r10 */
    .cfi_escape 0x10, 11, 3, 0x77, 0xc0, 0x0 /* r11 */
    .cfi_escape 0x10, 12, 3, 0x77, 0xc8, 0x0 /* r12 */
    .cfi_escape 0x10, 13, 3, 0x77, 0xd0, 0x0 /* r13 */
    .cfi_escape 0x10, 14, 3, 0x77, 0xd8, 0x0 /* r14 */
    .cfi_escape 0x10, 15, 3, 0x77, 0xe0, 0x0 /* r15 */
    .cfi_escape 0x10, 5, 3, 0x77, 0xe8, 0x0 /* rdi */
    .cfi_escape 0x10, 4, 3, 0x77, 0xf0, 0x0 /* rsi */
    .cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0x0 /* rbp */
    .cfi_escape 0x10, 3, 3, 0x77, 0x80, 0x1 /* rbx */
    .cfi_escape 0x10, 1, 3, 0x77, 0x88, 0x1 /* rdx */
    .cfi_escape 0x10, 0, 3, 0x77, 0x90, 0x1 /* rax */
    .cfi_escape 0x10, 2, 3, 0x77, 0x98, 0x1 /* rcx */
    .cfi_escape 0x10, 7, 3, 0x77, 0xa0, 0x1 /* rsp */
    .cfi_escape 0x10, 16, 3, 0x77, 0xa8, 0x1 /* rip */
    nop
.Lback:
    mov $15, %rax /* rt_sigreturn */
    syscall
    .cfi_endproc

    .section .note.GNU-stack, "", @progbits
