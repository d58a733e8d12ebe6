/* Checks for the programs of these tests. A failed check prints the condition and the library's
 * last error, and ends the program. */
#include <stdio.h>
#include <upcall.h>

static upcall_error error;

#define CHECK(right)                                                                     \
    do {                                                                                 \
        if (!(right)) {                                                                  \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #right, error.text); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)
#define OK(call) CHECK((call) == UPCALL_OK)
