// Open MPI, driven by src/messages/open_mpi.rs: blocking sends and receives between the two ranks,
// with handlers as tags. A function returns null, or an error text that is valid until the next
// call.

#include <stddef.h>
#include <stdint.h>

#include <mpi.h>

// Maximum size of a message, in bytes.
enum { LONGEST = 65536 };

typedef void (*Taken)(void *context, uint16_t handler, const void *data, size_t len);

static uint8_t received[LONGEST];
static char wrong[MPI_MAX_ERROR_STRING];
static int other;

static const char *text(int code) {
    if (code == MPI_SUCCESS) return NULL;
    int len;
    MPI_Error_string(code, wrong, &len);
    return wrong;
}

// Connects to the other process that was started with this one.
const char *upcall_mpi_join(int rank) {
    int code = MPI_Init(NULL, NULL), own, count;
    if (code != MPI_SUCCESS) return "MPI_Init failed";
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &own);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    if (count != 2 || own != rank)
        return "started without orterun, or not as its first and second process";
    other = 1 - rank;
    return NULL;
}

const char *upcall_mpi_send(uint16_t handler, const void *data, size_t len) {
    return text(MPI_Send(data, (int)len, MPI_BYTE, other, handler, MPI_COMM_WORLD));
}

// Waits for a message, and passes it to `taken`.
const char *upcall_mpi_receive(Taken taken, void *to) {
    MPI_Status status;
    int code = MPI_Recv(received, LONGEST, MPI_BYTE, other, MPI_ANY_TAG, MPI_COMM_WORLD, &status),
        len = 0;
    if (code != MPI_SUCCESS) return text(code);
    MPI_Get_count(&status, MPI_BYTE, &len);
    taken(to, (uint16_t)status.MPI_TAG, received, (size_t)len);
    return NULL;
}

const char *upcall_mpi_leave(void) { return text(MPI_Finalize()); }
