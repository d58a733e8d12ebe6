/* Where a program is interrupted: entered like a handler that the kernel has called on the
 * program's stack. It returns to an address in this image, so that nothing of the host's lies on
 * that stack. Debuggers recognise a signal's frame by these exact instructions. */

#include "layout.h"

    .text
    .globl upvm_interrupted
    .type upvm_interrupted, @function
    .hidden upvm_interrupted
upvm_interrupted:
    lea .Lback(%rip), %rax
    mov %rax, (%rsp)
    mov %gs:UPVM_GS_TABLE, %rdi
    jmp upvm_look_around
    .size upvm_interrupted, . - upvm_interrupted

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
