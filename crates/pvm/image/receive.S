/* pvm_recv and pvm_nrecv, as programs call them. They ask the host, and a shared function
 * (shared.c) puts the answer into the buffer. In unusual cases the host is not asked, and
 * UPVM_UNASKED is passed on instead.
 *
 * This code is in the image and not shared, because a waiting task must have nothing of the shared
 * code on its stack. It leaves by a jump instead of a return: a processor predicts returns from the
 * calls that it saw, and after the gate those are another task's. */

#include "doors.h"
#include "layout.h"
#include "ops.h"

#define LIBRARY (UPVM_TABLE_LIBRARY * 8)

    .text
    .balign 64
    .globl pvm_nrecv
    .type pvm_nrecv, @function
pvm_nrecv:
    .cfi_startproc
    xor %edx, %edx
    jmp .Lreceived
    .cfi_endproc
    .size pvm_nrecv, . - pvm_nrecv

    .globl pvm_recv
    .type pvm_recv, @function
pvm_recv:
    .cfi_startproc
    mov $-1, %rdx
    /* Receives from edi a message with the tag in esi, within rdx microseconds. */
.Lreceived:
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    push %rbx
    .cfi_def_cfa_offset 24
    .cfi_offset %rbx, -24
    push %r12
    .cfi_def_cfa_offset 32
    .cfi_offset %r12, -32
    mov %edi, %ebp
    mov %esi, %ebx
    mov %rdx, %r12
    mov %gs:UPVM_GS_TABLE, %rax
    mov $UPVM_UNASKED, %rcx
    cmpl $0, LIBRARY + UPVM_HOT_SELF(%rax)
    je .Lanswered
    cmpq $0, LIBRARY + UPVM_HOT_UNUSUAL(%rax)
    jne .Lanswered
    cmp $-1, %edi
    jl .Lanswered
    cmp $-1, %esi
    jl .Lanswered
    movslq LIBRARY + UPVM_HOT_CONTEXT(%rax), %rcx
    movslq %esi, %rdx
    movslq %edi, %rsi
    mov %r12, %r8
    mov $UPVM_ASK_RECEIVE, %edi
    call *(UPVM_TABLE_GATE * 8)(%rax)
    mov %rax, %rcx
.Lanswered:
    mov %ebp, %edi
    mov %ebx, %esi
    mov %r12, %rdx
    call *%gs:(UPVM_GS_DOORS + UPVM_DOOR_CAME * 8)
    pop %r12
    .cfi_def_cfa_offset 24
    .cfi_restore %r12
    pop %rbx
    .cfi_def_cfa_offset 16
    .cfi_restore %rbx
    pop %rbp
    .cfi_def_cfa_offset 8
    .cfi_restore %rbp
    pop %rdx
    .cfi_def_cfa_offset 0
    .cfi_register %rip, %rdx
    jmp *%rdx
    .cfi_endproc
    .size pvm_recv, . - pvm_recv

    .section .note.GNU-stack, "", @progbits
