/* Where a program is interrupted: as a handler that the kernel has called on the program's stack. To whom it returns is
 * this image's own, so that nothing of the host's lies on that stack; debuggers know a signal's frame by these very
 * instructions. */

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

    .balign 16
    nop
.Lback:
    mov $15, %rax /* rt_sigreturn */
    syscall

    .section .note.GNU-stack, "", @progbits
