/* pvm_recv and pvm_nrecv for Fortran. They are outside the library's own section like receive.S, so
 * that a task that waits there is not within another function of the library: such a task does not
 * move. */

#include "lib.h"

void pvmfrecv_(int *tid, int *tag, int *buffer)
{
    *buffer = pvm_recv(*tid, *tag);
}

void pvmfnrecv_(int *tid, int *tag, int *buffer)
{
    *buffer = pvm_nrecv(*tid, *tag);
}
