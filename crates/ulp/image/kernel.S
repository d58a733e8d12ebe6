/* System calls of this library. The kernel reports each system call in a slot to the host
 * (src/catching.rs). So these calls are made by an instruction of the host's, whose address is in
 * the table. It returns to the caller here. Before the table is known, and in a program that was
 * started by itself, nothing is caught. */

#include "layout.h"

    .text
    .globl upvm_call6
    .type upvm_call6, @function
    .hidden upvm_call6
upvm_call6:
    .cfi_startproc
    mov %rdi, %rax
    mov %rsi, %rdi
    mov %rdx, %rsi
    mov %rcx, %rdx
    mov %r8, %r10
    mov %r9, %r8
    mov 8(%rsp), %r9
    mov upvm_known_table(%rip), %r11
    test %r11, %r11
    jz .Litself
    jmp *8*UPVM_TABLE_CALL(%r11)
.Litself:
    syscall
    ret
    .cfi_endproc
    .size upvm_call6, . - upvm_call6

    .section .note.GNU-stack, "", @progbits
