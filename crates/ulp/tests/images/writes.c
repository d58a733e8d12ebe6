/* Asks, with the address of its pages, which byte to change; a number below 0 lets it return, and
 * one beyond the last byte lets the first page go. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include "image.h"

#define PAGES 1024

static char pages[PAGES * 4096] __attribute__((aligned(4096)));

int main(void)
{
    memset(pages, 1, sizeof pages);
    for (long at; (at = UPVM_ASK(upvm_table(), UPVM_ASK_OWN, (long)pages, 0, 0, 0)) >= 0;) {
        if (at < (long)sizeof pages)
            pages[at]++;
        else
            madvise(pages, 4096, MADV_DONTNEED);
    }
    return 0;
}
