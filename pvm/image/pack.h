/* What packing, formats, messages in messages and Fortran know of each other. */
#ifndef UPVM_PACK_H
#define UPVM_PACK_H

/* Packs and unpacks items of a type (PVM_INT, …; not PVM_STR) as pvm_pkint and its like do, and says nothing. */
int upvm_pack(int type, const void *items, int count, int stride);
int upvm_unpack(int type, void *items, int count, int stride);

/* The same for a string. */
int upvm_pack_text(const char *text);
int upvm_unpack_text(char *text);

#endif
