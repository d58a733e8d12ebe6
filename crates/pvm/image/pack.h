/* What packing, formats, nested messages, Fortran and the shared functions have in common. */
#ifndef UPVM_PACK_H
#define UPVM_PACK_H

#include "lib.h"

/* How PvmDataDefault lays out an item. */
enum upvm_layout { UPVM_PLAIN, UPVM_FILLED, UPVM_SIGNED, UPVM_UNSIGNED };

/* For each type: its functions' suffix, its number, its argument's type, and an item's size in
 * bytes and layout. */
#define UPVM_TYPES(X)                                       \
    X(byte, PVM_BYTE, char, 1, UPVM_FILLED)                 \
    X(short, PVM_SHORT, short, 2, UPVM_SIGNED)              \
    X(ushort, PVM_USHORT, unsigned short, 2, UPVM_UNSIGNED) \
    X(int, PVM_INT, int, 4, UPVM_PLAIN)                     \
    X(uint, PVM_UINT, unsigned int, 4, UPVM_PLAIN)          \
    X(long, PVM_LONG, long, 8, UPVM_PLAIN)                  \
    X(ulong, PVM_ULONG, unsigned long, 8, UPVM_PLAIN)       \
    X(float, PVM_FLOAT, float, 4, UPVM_PLAIN)               \
    X(double, PVM_DOUBLE, double, 8, UPVM_PLAIN)            \
    X(cplx, PVM_CPLX, float, 8, UPVM_PLAIN)                 \
    X(dcplx, PVM_DCPLX, double, 16, UPVM_PLAIN)

/* An entry of a table of sizes, indexed by a type's number. */
#define UPVM_SIZE(name, number, argument, size, layout) [number] = size,

/* Returns 1 if the data are laid out as in memory. */
static inline int upvm_is_plain(const struct upvm_buffer *buffer, int layout)
{
    return layout == UPVM_PLAIN || (buffer->encoding & (PvmDataRaw | PvmDataInPlace));
}

/* Packs and unpacks items of a type (PVM_INT, …; not PVM_STR) as pvm_pkint and the like do, but
 * reports no errors. */
int upvm_pack(int type, const void *items, int count, int stride);
int upvm_unpack(int type, void *items, int count, int stride);

/* The same for a string. */
int upvm_pack_text(const char *text);
int upvm_unpack_text(char *text);

#endif
