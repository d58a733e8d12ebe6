/* What signals.c and handlers.c share. */
#ifndef UPVM_HANDLERS_H
#define UPVM_HANDLERS_H

#include <signal.h>
#include <string.h>
#include "image.h"

#define BIT(number) (1ul << ((number)-1))
#define NEVER (BIT(SIGKILL) | BIT(SIGSTOP))
#define CRASHES (BIT(SIGSEGV) | BIT(SIGBUS) | BIT(SIGILL) | BIT(SIGFPE) | BIT(SIGABRT))

extern struct sigaction upvm_actions[65];
/* Number of handlers that have run. */
extern unsigned long upvm_handled;

static inline uint64_t upvm_bits(const sigset_t *set)
{
    uint64_t word;
    memcpy(&word, set, sizeof word);
    return word;
}

static inline void upvm_tell_bits(sigset_t *set, uint64_t word)
{
    if (!set)
        return;
    memset(set, 0, sizeof *set);
    memcpy(set, &word, sizeof word);
}

static inline int upvm_is_signal(int number)
{
    return number > 0 && number < 65;
}

/* The word of pending signals is also written by the host, and by nested handlers where the program
 * is interrupted. So it is changed by one instruction each time. */
static inline void upvm_note(uint64_t *table, uint64_t bits)
{
    __asm__ volatile("or %1, %0" : "+m"(table[UPVM_TABLE_SIGNALS]) : "r"(bits) : "cc", "memory");
}

static inline void upvm_forget(uint64_t *table, uint64_t bits)
{
    __asm__ volatile("and %1, %0" : "+m"(table[UPVM_TABLE_SIGNALS]) : "r"(~bits) : "cc", "memory");
}

/* Claims a pending signal for the caller: no other code finds it any more. Returns 1 if it was
 * pending. */
static inline int upvm_claims(uint64_t *table, int number)
{
    unsigned char was;
    __asm__ volatile("btr %2, %0\n\tsetc %1"
                     : "+m"(table[UPVM_TABLE_SIGNALS]), "=q"(was)
                     : "r"((uint64_t)(number - 1))
                     : "cc", "memory");
    return was;
}

#endif
