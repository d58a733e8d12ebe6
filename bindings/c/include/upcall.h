/*
 * Upcall: calls between processes over shared memory.
 *
 * What it is: the C interface of libupcall. A client binds to an interface that a server exports under a name, and
 * calls its procedures; a call takes well under a microsecond while the server has a processor of its own. Programs
 * use the functions that `upcall wit generate --lang c` writes for an interface, and from this header what is common
 * to all of them: errors, strings, whom a peer may be, clients' terms, servers. The last part of this header is for generated code only.
 *
 *     upcall_error error;
 *     greeter_client_t *greeter = greeter_bind("greeter", &error);
 *     upcall_string text;
 *     if (!greeter || greeter_greet(greeter, upcall_text("Ada"), &text, &error) != UPCALL_OK) {
 *         fprintf(stderr, "%s\n", error.text);
 *         return 1;
 *     }
 *     printf("%.*s\n", (int)text.len, text.data);
 *     upcall_string_free(&text);
 *     greeter_unbind(greeter);
 *
 * Errors. What can fail returns an upcall_status, or NULL in place of an object. With an `upcall_error *` it also says
 * what was tried, what was found and what to do, as text; NULL there is allowed. The struct is written only on failure.
 * Errors that an interface declares (`result<..>`) are not among these: they are results. Nothing in this library
 * unwinds or jumps through C, and nothing of C's may through it: no longjmp and no C++ exception out of a callback.
 *
 * Ownership. Arguments belong to the caller, and are read before the call returns. Results belong to the caller once a
 * call has returned UPCALL_OK: each type that owns memory has a function `.._free` that frees all that a value owns
 * but not the value itself, and drops the resources in it; to keep one of these, put NULL in its place first. After
 * another status there are no results to free. The memory comes from malloc.
 *
 * Threads. Every function may be called by any thread at any time, with three exceptions: terms of a client
 * (upcall_client_set_..) are set before other threads use that client, or on a copy; what is freed is used by nobody
 * else; and a server that is being set up belongs to one thread. Calls by one client from many threads run at once: 32
 * at a time to one server, others wait.
 *
 * Names. A name is one of this machine's, or tcp://HOST:PORT/NAME: that of a server on another machine, which listens there (upcall_server_listen). Calls to
 * that are the same in all but their time; docs/reference/network.md says what they do not have.
 *
 * Blocking. A call blocks the thread that makes it until the reply is there. How it waits is the client's pacing.
 *
 * If the server dies, calls to it return UPCALL_FAILED, within milliseconds; a call that was under way may or may not
 * have run. If it is stopped or never answers, they wait for ever unless there is a deadline. If a client dies, its
 * resources are dropped in the server. Handlers of signals and fork need nothing special: a child after fork without
 * exec must not use what its parent had.
 *
 * Strings have a length and are not terminated by a NUL; they are UTF-8, and may contain NULs.
 *
 * Durations are in nanoseconds, sizes in bytes.
 */
#ifndef UPCALL_H
#define UPCALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of what this header declares. Generated code made for another one does not compile. */
#define UPCALL_ABI 2

/* ---- Errors ---------------------------------------------------------------------------------------------------- */

typedef enum upcall_status {
    UPCALL_OK = 0,

    /* The program's own mistakes. Nothing was done. */
    UPCALL_MISUSE = 1,          /* NULL where there must be something, a name that is no name, .. */
    UPCALL_TOO_LONG = 2,        /* a string or list is longer than the interface permits */
    UPCALL_FOREIGN_HANDLE = 3,  /* a resource of another binding was given */
    UPCALL_OTHER_THREAD = 4,    /* a group belongs to the thread that has joined it */
    UPCALL_UNFIT = 5,           /* a payload is not what its kind of message carries */

    /* A call has no results. */
    UPCALL_FAILED = 10,         /* the server has ended, or its connection: bind again */
    UPCALL_ABORTED = 11,        /* the deadline passed, or the call was given up; see upcall_error.sent */
    UPCALL_REFUSED = 12,        /* the server refused the arguments, or its results break the interface's limits */
    UPCALL_NO_SUCH_HANDLE = 13, /* the server does not know the resource any more */
    UPCALL_PANICKED = 14,       /* the procedure failed; the server goes on */
    UPCALL_REVOKED = 15,        /* the binding was revoked */
    UPCALL_NO_SUCH_PROCEDURE = 16,
    UPCALL_BAD_REPLY = 17,      /* the results break the interface's types or this side's limits */
    UPCALL_NO_MEMORY = 18,      /* no memory for arguments or results */

    /* A client cannot bind. */
    UPCALL_NO_SUCH_NAME = 30,   /* nobody exports it */
    UPCALL_SERVER_GONE = 31,
    UPCALL_NO_ANSWER = 32,      /* the server is stopped or overloaded */
    UPCALL_WRONG_USER = 33,     /* the server is of a user that the client does not accept: see upcall_accepts */
    UPCALL_DENIED = 34,
    UPCALL_CEILING = 35,        /* this process holds as much in the server as it may */
    UPCALL_VERSION = 36,        /* another version of Upcall's protocol */
    UPCALL_WRONG_INTERFACE = 37,
    UPCALL_MISMATCH = 38,       /* procedures have other types in the server */
    UPCALL_PROTOCOL = 39,
    UPCALL_UNREACHABLE = 40,    /* another machine's address: nobody listens there, or not one of ours, or the connection was lost */
    UPCALL_NOT_THERE = 41,      /* the server at that address does not export the name */

    /* A server cannot serve. */
    UPCALL_NAME_TAKEN = 50,
    UPCALL_TOO_MANY_PROCEDURES = 51,
    UPCALL_UNPROTECTED = 52,    /* other machines can reach the address to listen at, and nothing would protect it */

    /* Messages: upcall_message.h says when. */
    UPCALL_INCOMPLETE = 80,     /* not all members of the group came in time */
    UPCALL_NOT_TAKEN_IN = 81,   /* the group refuses this process: other kinds of messages, say */
    UPCALL_NO_JOB = 82,         /* the environment tells of no job */
    UPCALL_NO_SUCH_RANK = 83,
    UPCALL_ENDED = 84,          /* the other member has ended or left the group */
    UPCALL_VIOLATION = 85,      /* the other member does not keep to the protocol */
    UPCALL_FULL = 86,           /* there is no room yet */
    UPCALL_OVERFLOW = 87,       /* this member has its share of the buffer in use, or memory is low */
    UPCALL_NO_QUEUE = 88,       /* no queue to the other member could be opened */
    UPCALL_UNHANDLED = 89,      /* a message waits that has no handler */
    UPCALL_UNSENT = 90,         /* no resource is left to reach another member */
    UPCALL_INTERRUPTED = 91,
    UPCALL_NOTHING_THERE = 92,  /* no message, or no event, waits */
    UPCALL_GIVEN_UP = 93,       /* another member has given a barrier up, and reports that a third one never comes */
    UPCALL_QUEUE_REFUSED = 94,  /* the other member lives, and lacks a resource for the queue */

    UPCALL_RESOURCE = 70,       /* the system has no descriptor, memory or thread left */
    UPCALL_INTERNAL = 71        /* a bug in Upcall, stopped at the border */
} upcall_status;

/* What went wrong. Needs no initialisation and no freeing. */
typedef struct upcall_error {
    upcall_status status;
    /* UPCALL_ABORTED: the server has the request, so the procedure may have run, or may still run; if false it never will.
     * UPCALL_NO_MEMORY: the procedure has run, and the server did not keep its result; if false, see the text. */
    bool sent;
    /* UTF-8, with a NUL at its end, cut if it is longer. */
    char text[1000];
} upcall_error;

/* A short text for a status, for ever valid. */
const char *upcall_status_text(upcall_status status);

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* UTF-8 without a NUL at its end. */
typedef struct upcall_string {
    const char *data;
    size_t len;
} upcall_string;

/* A string of a C string, which it does not copy. */
static inline upcall_string upcall_text(const char *text) {
    upcall_string string;
    string.data = text;
    string.len = strlen(text);
    return string;
}

/* Frees a string that came as a result. */
static inline void upcall_string_free(upcall_string *string) {
    free((void *)(uintptr_t)string->data);
    string->data = NULL;
    string->len = 0;
}

/* Lists of numbers, as arguments and results: `upcall_list_u8_t`, which upcall_list_u8_free frees, and so on. A char is a Unicode scalar value. */
#define UPCALL_LIST(name, type)                                          \
    typedef struct upcall_list_##name##_t {                              \
        const type *data;                                                \
        size_t len;                                                      \
    } upcall_list_##name##_t;                                            \
    static inline void upcall_list_##name##_free(upcall_list_##name##_t *list) { \
        free((void *)(uintptr_t)list->data);                             \
        list->data = NULL;                                               \
        list->len = 0;                                                   \
    }
UPCALL_LIST(bool, bool)
UPCALL_LIST(u8, uint8_t)
UPCALL_LIST(u16, uint16_t)
UPCALL_LIST(u32, uint32_t)
UPCALL_LIST(u64, uint64_t)
UPCALL_LIST(s8, int8_t)
UPCALL_LIST(s16, int16_t)
UPCALL_LIST(s32, int32_t)
UPCALL_LIST(s64, int64_t)
UPCALL_LIST(f32, float)
UPCALL_LIST(f64, double)
UPCALL_LIST(char, uint32_t)

/* ---- Peers ----------------------------------------------------------------------------------------------------- */

/* Decides whether a process is accepted at the other end of a binding, by the kernel's word for its user, group and process. `process` is 0
 * where its number is not visible in this PID namespace. A user without a number in this user namespace comes as 65534, which stands
 * for all such users. */
typedef bool (*upcall_policy)(void *context, uint32_t user, uint32_t group, uint32_t process);

/* Which processes are accepted: those that any of these members accepts. With zeros in all of them it is none.
 *
 *     uint32_t service = 1001;
 *     upcall_accepts accepts = {.users = &service, .user_count = 1};
 *     greeter_client_t *greeter = greeter_bind_expecting("greeter", &accepts, &error);
 *
 * Names of users and groups become numbers by getpwnam and getgrnam. The numbers are copied. */
typedef struct upcall_accepts {
    bool any_user;
    /* Effective users. */
    const uint32_t *users;
    size_t user_count;
    /* Effective or supplementary groups. */
    const uint32_t *groups;
    size_t group_count;
    /* What returns true for a process that is accepted; NULL: nothing. A client's is asked while it binds, maybe on another thread
     * than the caller's, which waits. */
    upcall_policy policy;
    void *context;
} upcall_accepts;

/* ---- Clients --------------------------------------------------------------------------------------------------- */

/* A binding with the terms of its calls. Generated code gives each interface a type of its own for it; `x_base(client)`
 * is the same as one of these. */
typedef struct upcall_client upcall_client;

/* Another one for the same binding, with terms of its own, to be given up by itself. Never NULL, except for NULL. */
upcall_client *upcall_client_copy(const upcall_client *client);

/* Gives it up; NULL is allowed. Resources that came by it remain good. The last one of a binding, resources included, ends the binding. */
void upcall_client_free(upcall_client *client);

/* How long each call made by this client, or by a resource that it returns from now on, may take, in nanoseconds; 0: without
 * end, as at first. At the deadline a call returns UPCALL_ABORTED. It travels with the calls that the server makes in turn. */
void upcall_client_set_deadline(upcall_client *client, uint64_t nanoseconds);

/* A word on which calls are given up, from any thread. */
typedef struct upcall_abandon upcall_abandon;
upcall_abandon *upcall_abandon_new(void);
/* All calls under way whose client has this word return UPCALL_ABORTED, and later ones do at once. */
void upcall_abandon_give(const upcall_abandon *word);
void upcall_abandon_free(upcall_abandon *word);
/* Gives a client a word, or takes it away (NULL). The word may be freed afterwards. */
void upcall_client_set_abandon(upcall_client *client, const upcall_abandon *word);

/* When a call gives its processor to a server that sleeps. A thread that calls has nothing else to do, so that for C it matters only together with UPCALL_POLL. */
typedef enum upcall_hand_off { UPCALL_WHEN_IDLE = 0, UPCALL_AT_ONCE = 1 } upcall_hand_off;
void upcall_client_set_hand_off(upcall_client *client, upcall_hand_off when);

/* What a call does that needs memory for its values while calls under way have all there is: wait, or bring more. */
typedef enum upcall_shortage { UPCALL_WAIT = 0, UPCALL_GROW = 1 } upcall_shortage;
void upcall_client_set_shortage(upcall_client *client, upcall_shortage what);

/* How a thread spends the time until something comes. UPCALL_ADAPTIVE spins for at most 50 us, then sleeps; UPCALL_POLL keeps a processor busy. */
typedef enum upcall_pacing { UPCALL_ADAPTIVE = 0, UPCALL_POLL = 1, UPCALL_SLEEP = 2 } upcall_pacing;
/* For all that call the same server. */
void upcall_client_set_pacing(const upcall_client *client, upcall_pacing pacing);

/* Whether calls can still go through; once false, always so. */
bool upcall_client_is_open(const upcall_client *client);
/* The server's process; 0 on another machine. */
uint32_t upcall_client_server(const upcall_client *client);

/* ---- Servers --------------------------------------------------------------------------------------------------- */

/* A server that is being set up: interfaces under names, and threads that run their calls. Generated code exports:
 *
 *     upcall_server *server = upcall_server_new();
 *     if (greeter_export(server, "greeter", &functions, &error) != UPCALL_OK || upcall_server_run(server, &error) != UPCALL_OK)
 *         fprintf(stderr, "%s\n", error.text);
 *
 * Procedures are called by the server's threads, one call a processor at a time, unless a procedure itself makes calls by this library; with more
 * than one processor, many at once. Until they return, other calls of that processor wait. They run on stacks of the server's own, 1 MiB each
 * unless upcall_server_set_stack_size says otherwise: only the pages that are used take memory. A procedure that overflows its stack ends the process with a message.
 */
typedef struct upcall_server upcall_server;

/* The stacks that calls of a server in C run on, in bytes. */
#define UPCALL_STACK_SIZE ((size_t)1 << 20)

upcall_server *upcall_server_new(void);
/* For one that is not run after all; NULL is allowed. */
void upcall_server_free(upcall_server *server);
/* How many processors, which are kernel threads, run calls: 1 at first, at most 32. */
void upcall_server_set_processors(upcall_server *server, size_t count);
/* Maximum number of spare processors, which are further kernel threads: 15 at first. They take over while functions of the server
 * block. So the functions run concurrently, even with one processor; with one processor and 0 spares they do not, and
 * calls wait for a function that blocks. */
void upcall_server_set_spare_processors(upcall_server *server, size_t most);
/* What they do while there is nothing to do. */
void upcall_server_set_pacing(upcall_server *server, upcall_pacing pacing);
/* The size of the stacks of calls: at least 64 KiB. */
void upcall_server_set_stack_size(upcall_server *server, size_t bytes);
/* Which clients may bind, in place of those of the same user: those that `policy` admits. It is asked on threads of the library, on 256 KiB of
 * stack, for those who list the server's exports too; never on two threads at once, for all servers of the process together, so that
 * `context` needs no lock against itself. It must not block, for all who come would wait; `context` must live as long as the server. */
void upcall_server_set_policy(upcall_server *server, upcall_policy policy, void *context);
/* The same by numbers of users and groups, which are copied; a policy among them is asked as the one above. NULL: the same user.
 * UPCALL_MISUSE: a count without numbers.
 *
 * Clients of other users also need the right to connect, which the mode and the group of the server's socket give, and a folder
 * of names that both sides use (docs/reference/names.md):
 *
 *     upcall_accepts clients = {.any_user = true};
 *     upcall_server_set_mode(server, 0660);
 *     if (upcall_server_set_group_named(server, "audio", &error) != UPCALL_OK
 *         || upcall_server_set_accepts(server, &clients, &error) != UPCALL_OK) ...
 */
upcall_status upcall_server_set_accepts(upcall_server *server, const upcall_accepts *accepts, upcall_error *error);
/* The mode of the server's socket, in place of 0600. A client needs the right to write to connect at all: 0660 admits the members of
 * the socket's group, 0666 every user. The policy decides after that. The umask of this process does not count. */
void upcall_server_set_mode(upcall_server *server, uint32_t mode);
/* The group of the server's socket, by number or by name, in place of this process's own. A user other than root can give only a group
 * of its own. With another one, or a name that no group has, the server cannot begin: UPCALL_RESOURCE. */
void upcall_server_set_group(upcall_server *server, uint32_t group);
upcall_status upcall_server_set_group_named(upcall_server *server, const char *group, upcall_error *error);

/* Also serves clients that come by TCP, and bind `tcp://HOST:PORT/NAME`. `address` is "HOST:PORT" and lies within this machine (127.0.0.1 or [::1]), or the server cannot begin:
 * UPCALL_UNPROTECTED. With port 0 the kernel chooses one, which upcall_running_address tells. The policy is asked for these clients too: the kernel says whose process has the other end
 * of the connection, but not which, so that `process` is 0, and `group` UINT32_MAX. Nothing is encrypted: from another machine one comes here by a tunnel (`ssh -L 7000:127.0.0.1:7000 host`). */
upcall_status upcall_server_listen(upcall_server *server, const char *address, upcall_error *error);
/* The same at any address, without any protection: whoever can reach it may call all that is exported, and whoever is between sees and can change all values. The
 * policy is not asked. For networks that protect by themselves (WireGuard). */
upcall_status upcall_server_listen_unprotected(upcall_server *server, const char *address, upcall_error *error);

/* Serves on the calling thread for ever. Frees `server` in any case; returns only if it cannot begin. */
upcall_status upcall_server_run(upcall_server *server, upcall_error *error);

/* A server that runs on threads of its own. */
typedef struct upcall_running upcall_running;
/* Starts it; clients can bind when this returns. Frees `server` in any case. NULL: it cannot begin. */
upcall_running *upcall_server_start(upcall_server *server, upcall_error *error);
/* Where it listens, with the port that it has: the address `number`, from 0 on, in the order of upcall_server_listen, as "HOST:PORT" with a NUL. False, and an empty text, if there are not
 * so many; false too if `text` is NULL. */
#define UPCALL_ADDRESS_SIZE 64
bool upcall_running_address(const upcall_running *running, size_t number, char text[UPCALL_ADDRESS_SIZE]);
/* Takes its names out, ends its clients' bindings, waits for the calls that run, drops its objects, and frees it; NULL is allowed. Not to be called by a procedure of the server. */
void upcall_running_stop(upcall_running *running);

/* A call that a procedure answers. Good until the procedure returns. */
typedef struct upcall_call upcall_call;
/* Memory for results: it lives until the call has been answered. Aligned for anything; the program ends if there is none. What a
 * procedure's results point to must live that long: this, strings and lists of its arguments, or what never goes away. */
void *upcall_call_alloc(upcall_call *call, size_t bytes);
/* A copy of a string as a result. */
static inline upcall_string upcall_call_text(upcall_call *call, const char *text) {
    upcall_string string;
    string.len = strlen(text);
    string.data = (const char *)memcpy(upcall_call_alloc(call, string.len), text, string.len);
    return string;
}
/* Answers that the procedure failed: the client gets UPCALL_PANICKED with the first 32 bytes of `text`, and no results. The results are not looked at. */
void upcall_call_fail(upcall_call *call, const char *text);

/* A list<u8> argument as a server sees it: in memory that the client may still write, so there is no pointer to it. What is to be interpreted is copied first. */
typedef struct upcall_bytes upcall_bytes;
size_t upcall_bytes_len(const upcall_bytes *bytes);
/* Copies `len` bytes from `at` on; false, and nothing done, if they do not lie within. */
bool upcall_bytes_copy(const upcall_bytes *bytes, size_t at, void *to, size_t len);
/* Writes all of them to a descriptor, without a copy in this process. 0, or errno. */
int upcall_bytes_write(const upcall_bytes *bytes, int descriptor);
/* Calls `each` with copies of consecutive parts, at most 4096 bytes each. */
void upcall_bytes_each(const upcall_bytes *bytes, void (*each)(void *context, const void *part, size_t len), void *context);

/* ---- For generated code only from here on ---------------------------------------------------------------------- */
/*
 * The layout of values is "upcall-1" (crates/idl/src/layout.rs). A block of arguments or results is written into private memory, its fixed part into an array on the
 * stack, what is in its tail as pieces, and copied from there into memory that the peer can see, once. It is read the same way: what the peer wrote is copied to
 * private memory, by functions that check all bounds, and looked at there. So no pointer into shared memory exists on this side of the interface.
 */

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Upcall's layout is little endian, and so must the machine be"
#endif

/* What the files of two packages may both define, because both use the interface of a third: the linker takes one. */
#define UPCALL_SHARED __attribute__((weak))

typedef struct upcall_procedure {
    const char *name;
    const char *signature;
    uint64_t hash;
    uint32_t args_fixed, args_tail, results_fixed, results_tail;
    uint64_t string_limit, list_limit, values_limit;
    uint16_t calls;
} upcall_procedure;

typedef struct upcall_part {
    const char *id;
    uint16_t first;
} upcall_part;

/* An interface. Lives as long as the program. */
typedef struct upcall_interface {
    uint32_t abi;
    uint32_t procedure_count;
    uint32_t part_count;
    const char *id;
    const upcall_procedure *procedures;
    const upcall_part *parts;
    const char *source;
    const char *limits;
} upcall_interface;

/* Six words: what a message carries itself. */
#define UPCALL_WORDS 6

/* A client's hold on an object in a server. */
typedef struct upcall_resource upcall_resource;
/* A server's object. */
typedef struct upcall_object upcall_object;

/* A piece of a tail. */
typedef struct upcall_piece {
    uint64_t at;
    const void *data;
    uint64_t len;
    void *owned; /* freed with the writer, or NULL */
} upcall_piece;

/* A resource or object in a block, and where its handle stands in private memory. */
typedef struct upcall_given {
    const uint8_t *at;
    void *what;
} upcall_given;

/* A block in the making. */
typedef struct upcall_writer {
    const uint8_t *fixed;
    uint64_t fixed_len;
    uint64_t tail; /* where the next piece goes */
    uint64_t string_limit, list_limit;
    uint64_t too_long; /* the length of what is longer than its limit, if any */
    upcall_status status;
    const upcall_client *client; /* whose resources may be written; NULL in a server */
    upcall_piece *pieces;
    size_t piece_count, piece_room;
    upcall_given *given;
    size_t given_count, given_room;
} upcall_writer;

/* What a peer wrote. */
typedef struct upcall_reader upcall_reader;
typedef bool (*upcall_read_fn)(upcall_reader *reader, void *result);
typedef void (*upcall_dispatch_fn)(const void *functions, uint32_t number, upcall_call *call);

upcall_client *upcall_bind(const char *name, const upcall_interface *interface, upcall_error *error);
upcall_client *upcall_bind_expecting(const char *name, const upcall_interface *interface, const upcall_accepts *accepts, upcall_error *error);
upcall_client *upcall_bind_wait(const char *name, const upcall_interface *interface,
                                const upcall_accepts *accepts, uint64_t nanoseconds,
                                upcall_error *error);
upcall_client *upcall_client_part(const upcall_client *client, const char *id, upcall_error *error);
/* Results are read by `read` into `result`, of `size` bytes; if it returns false, what it has allocated is freed. `late` says that results that
 * come after a deadline hold resources. Frees the writer, and takes what was given away if the server has answered. */
upcall_status upcall_invoke(const upcall_client *client, uint32_t number, upcall_writer *args, upcall_read_fn read, void *result,
                            size_t size, bool late, upcall_error *error);
/* For arguments and results that are in the message itself. */
upcall_status upcall_invoke_words(const upcall_client *client, uint32_t number, uint64_t *words, size_t len, upcall_error *error);
upcall_status upcall_bad_reply(upcall_error *error);
upcall_status upcall_misuse(upcall_error *error, const char *text);

upcall_client *upcall_resource_client(const upcall_resource *resource);
uint64_t upcall_resource_number(const upcall_resource *resource);
void upcall_resource_drop(upcall_resource *resource);

bool upcall_read(upcall_reader *reader, uint64_t at, void *to, size_t len);
/* Copies a piece to memory of its own (freed with the call in a server). */
bool upcall_read_piece(upcall_reader *reader, const uint8_t *descriptor, size_t stride, const void **data, size_t *count);
bool upcall_read_string(upcall_reader *reader, const uint8_t *descriptor, upcall_string *string);
bool upcall_read_bytes(upcall_reader *reader, const uint8_t *descriptor, const upcall_bytes **bytes);
/* Zeroed memory for decoded values; what upcall_read_piece gave can be given back. */
void *upcall_read_alloc(upcall_reader *reader, size_t count, size_t size);
void upcall_read_release(upcall_reader *reader, const void *data);
bool upcall_read_resource(upcall_reader *reader, const uint8_t *handle, const char *interface, upcall_resource **resource);
bool upcall_read_lent(upcall_reader *reader, const uint8_t *handle, const void *type, void **value);
bool upcall_read_object(upcall_reader *reader, const uint8_t *handle, const void *type, upcall_object **object);
bool upcall_read_fault(upcall_reader *reader, uint64_t found, uint64_t cases);

upcall_reader *upcall_call_reader(upcall_call *call);
/* All arguments are there: objects among them are the procedure's. */
void upcall_call_accept(upcall_call *call);
bool upcall_call_failed(const upcall_call *call);
/* Answers; takes the writer over. */
void upcall_call_reply(upcall_call *call, upcall_writer *results);

upcall_status upcall_server_export(upcall_server *server, const char *name, const upcall_interface *interface, const void *functions,
                                   upcall_dispatch_fn dispatch, upcall_error *error);

upcall_object *upcall_object_new(const void *type, void *value, void (*drop)(void *value));
void *upcall_object_value(const upcall_object *object);
void upcall_object_drop(upcall_object *object);

/* Writing. */
void *upcall_write_grow(void *items, size_t *room, size_t size);
void upcall_write_own(upcall_writer *writer, uint8_t *at, upcall_resource *resource);
void upcall_write_lent(upcall_writer *writer, uint8_t *at, const upcall_resource *resource);

static inline void upcall_write_begin(upcall_writer *writer, const uint8_t *fixed, size_t len, const upcall_procedure *procedure,
                                      const upcall_client *client) {
    memset(writer, 0, sizeof *writer);
    writer->fixed = fixed;
    writer->fixed_len = len;
    writer->tail = ((uint64_t)len + 7) & ~(uint64_t)7;
    writer->string_limit = procedure->string_limit;
    writer->list_limit = procedure->list_limit;
    writer->client = client;
}

static inline void upcall_put_1(uint8_t *at, uint8_t value) { *at = value; }
static inline void upcall_put_2(uint8_t *at, uint16_t value) { memcpy(at, &value, 2); }
static inline void upcall_put_4(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }
static inline void upcall_put_8(uint8_t *at, uint64_t value) { memcpy(at, &value, 8); }
static inline void upcall_put_f32(uint8_t *at, float value) { memcpy(at, &value, 4); }
static inline void upcall_put_f64(uint8_t *at, double value) { memcpy(at, &value, 8); }

/* A piece of `count` elements with its descriptor at `at`; false if there is no use in going on. */
static inline bool upcall_write_piece(upcall_writer *writer, uint8_t *at, const void *data, uint64_t count, uint64_t stride,
                                      uint64_t limit, void *owned) {
    uint64_t len = count * stride;
    if (count > limit) {
        writer->status = UPCALL_TOO_LONG;
        writer->too_long = count;
    }
    if (writer->status != UPCALL_OK) {
        free(owned);
        return false;
    }
    upcall_put_8(at, writer->tail);
    upcall_put_8(at + 8, count);
    if (len > 0) {
        upcall_piece *piece;
        if (writer->piece_count == writer->piece_room)
            writer->pieces = (upcall_piece *)upcall_write_grow(writer->pieces, &writer->piece_room, sizeof *writer->pieces);
        piece = &writer->pieces[writer->piece_count++];
        piece->at = writer->tail;
        piece->data = data;
        piece->len = len;
        piece->owned = owned;
        writer->tail += (len + 7) & ~(uint64_t)7;
    } else {
        free(owned);
    }
    return true;
}

static inline void upcall_put_string(upcall_writer *writer, uint8_t *at, upcall_string value) {
    upcall_write_piece(writer, at, value.data, value.len, 1, writer->string_limit, NULL);
}

/* A list whose elements are the same in C and in a block. */
static inline void upcall_put_list(upcall_writer *writer, uint8_t *at, const void *data, size_t count, size_t stride) {
    upcall_write_piece(writer, at, data, count, stride, writer->list_limit, NULL);
}

/* Room for the elements of another list; NULL if there are none, or it is too long. */
static inline uint8_t *upcall_put_run(upcall_writer *writer, uint8_t *at, size_t count, size_t stride) {
    uint8_t *run = NULL;
    if (count > 0 && count <= writer->list_limit) {
        run = (uint8_t *)calloc(count, stride);
        if (run == NULL) writer->status = UPCALL_NO_MEMORY;
    }
    return upcall_write_piece(writer, at, run, count, stride, writer->list_limit, run) ? run : NULL;
}

/* An object that a server gives away. */
static inline void upcall_put_object(upcall_writer *writer, uint8_t *at, upcall_object *object) {
    if (writer->given_count == writer->given_room)
        writer->given = (upcall_given *)upcall_write_grow(writer->given, &writer->given_room, sizeof *writer->given);
    writer->given[writer->given_count].at = at;
    writer->given[writer->given_count].what = object;
    writer->given_count++;
}

/* Reading from private memory. */
static inline uint8_t upcall_get_1(const uint8_t *at) { return *at; }
static inline uint16_t upcall_get_2(const uint8_t *at) { uint16_t value; memcpy(&value, at, 2); return value; }
static inline uint32_t upcall_get_4(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return value; }
static inline uint64_t upcall_get_8(const uint8_t *at) { uint64_t value; memcpy(&value, at, 8); return value; }
static inline float upcall_get_f32(const uint8_t *at) { float value; memcpy(&value, at, 4); return value; }
static inline double upcall_get_f64(const uint8_t *at) { double value; memcpy(&value, at, 8); return value; }

static inline bool upcall_get_bool(upcall_reader *reader, const uint8_t *at, bool *value) {
    *value = *at == 1;
    return *at <= 1 || upcall_read_fault(reader, *at, 2);
}

static inline bool upcall_get_char(upcall_reader *reader, const uint8_t *at, uint32_t *value) {
    *value = upcall_get_4(at);
    return (*value < 0x110000 && (*value < 0xd800 || *value > 0xdfff)) || upcall_read_fault(reader, *value, 0x110000);
}

#ifdef __cplusplus
}
#endif

#endif
