/*
 * Upcall: calls between processes over shared memory.
 *
 * This is the C interface of libupcall. A client binds to an interface that a server exports under
 * a name, and calls its procedures. A call takes well under a microsecond while the server has a
 * processor of its own. Programs use the functions that `upcall wit generate --lang c` writes for
 * an interface. This header declares what is common to all interfaces: errors, strings, checks of
 * the peer, clients' terms and servers. The last part of this header is for generated code only.
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
 * Errors. A function that can fail returns an upcall_status, or NULL in place of an object. It also
 * fills in the `upcall_error` that it is given, whose text says what was tried, what was found and
 * what to do. NULL is allowed in place of the `upcall_error *`. The struct is written only on
 * failure. Errors that an interface declares (`result<..>`) are results, and not among these. This
 * library never unwinds or jumps through C code, and C code must not unwind or jump through this
 * library: no longjmp and no C++ exception may leave a callback.
 *
 * Ownership. Arguments belong to the caller, and are read before the call returns. Results belong
 * to the caller once a call has returned UPCALL_OK; after any other status there are no results to
 * free. Each type that owns memory has a function `.._free`, which frees all that a value owns but
 * not the value itself, and drops the resources in the value. To keep a resource, set its field to
 * NULL before freeing the value. The memory comes from malloc.
 *
 * Threads. Any thread may call any function at any time, with three exceptions. The terms of a
 * client (upcall_client_set_..) are set before other threads use that client, or on a copy. An
 * object must not be in use when it is freed. A server that is being set up belongs to one thread.
 * Calls by one client from many threads run at once: 32 at a time to one server, while others wait.
 *
 * Names. A name is either one of this machine's, or tcp://HOST:PORT/NAME for a server on another
 * machine that listens there (upcall_server_listen). Calls to such a server differ only in their
 * time and in the features that docs/reference/network.md lists as missing.
 *
 * Blocking. A call blocks the calling thread until the reply arrives. The client's pacing decides
 * how the thread waits.
 *
 * Peer death. If the server dies, calls to it return UPCALL_FAILED within milliseconds; a call that
 * was under way may or may not have run. If the server is stopped or never answers, calls wait
 * forever unless they have a deadline. If a client dies, its resources are dropped in the server.
 *
 * Signals and fork. Signal handlers need nothing special. After fork, a child that does not exec
 * must not use what its parent had.
 *
 * Strings have a length and no terminating NUL. They are UTF-8, and may contain NULs.
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

/* The version of the declarations in this header. Code generated for another version does not
 * compile. */
#define UPCALL_ABI 2

/* ---- Errors ---------------------------------------------------------------------------------- */

typedef enum upcall_status {
    UPCALL_OK = 0,

    /* Mistakes of the calling program. Nothing was done. */
    UPCALL_MISUSE = 1,          /* NULL or a malformed name as an argument, for example */
    UPCALL_TOO_LONG = 2,        /* a string or list is longer than the interface permits */
    UPCALL_FOREIGN_HANDLE = 3,  /* a resource belongs to another binding */
    UPCALL_OTHER_THREAD = 4,    /* a group belongs to the thread that joined it */
    UPCALL_UNFIT = 5,           /* a payload does not fit its kind of message */

    /* A call has no results. */
    UPCALL_FAILED = 10,         /* the server, or the connection to it, has ended: bind again */
    UPCALL_ABORTED = 11,        /* deadline passed or call cancelled; see upcall_error.sent */
    UPCALL_REFUSED = 12,        /* the server refused the arguments, or its results exceed limits */
    UPCALL_NO_SUCH_HANDLE = 13, /* the server no longer knows the resource */
    UPCALL_PANICKED = 14,       /* the procedure failed; the server continues */
    UPCALL_REVOKED = 15,        /* the binding was revoked */
    UPCALL_NO_SUCH_PROCEDURE = 16,
    UPCALL_BAD_REPLY = 17,      /* results violate the interface's types or this side's limits */
    UPCALL_NO_MEMORY = 18,      /* no memory for arguments or results */

    /* A client cannot bind. */
    UPCALL_NO_SUCH_NAME = 30,   /* no server exports the name */
    UPCALL_SERVER_GONE = 31,
    UPCALL_NO_ANSWER = 32,      /* the server is stopped or overloaded */
    UPCALL_WRONG_USER = 33,     /* the client does not accept its user: see upcall_accepts */
    UPCALL_DENIED = 34,
    UPCALL_QUOTA_REACHED = 35,        /* this process has reached its limit in the server */
    UPCALL_VERSION = 36,        /* the server uses another version of Upcall's protocol */
    UPCALL_WRONG_INTERFACE = 37,
    UPCALL_MISMATCH = 38,       /* the server's procedures have other types */
    UPCALL_PROTOCOL = 39,
    UPCALL_UNREACHABLE = 40,    /* no Upcall server listens there, or the connection was lost */
    UPCALL_NOT_THERE = 41,      /* the server at that address does not export the name */
    UPCALL_NOT_PROVED = 42,     /* its host is not trusted, or has not proved its identity; also
                                 * for the hosts of a group's members */

    /* A server cannot serve. */
    UPCALL_NAME_TAKEN = 50,
    UPCALL_TOO_MANY_PROCEDURES = 51,
    UPCALL_UNPROTECTED = 52,    /* other hosts reach the address, and this host has no identity */

    /* Messages; upcall_message.h describes when each is returned. */
    UPCALL_INCOMPLETE = 80,     /* not all members of the group joined in time */
    UPCALL_NOT_TAKEN_IN = 81,   /* the group refuses this process (other kinds of messages, say) */
    UPCALL_NO_JOB = 82,         /* the environment describes no job */
    UPCALL_NO_SUCH_RANK = 83,
    UPCALL_ENDED = 84,          /* the other member has ended or left the group */
    UPCALL_VIOLATION = 85,      /* the other member violates the protocol */
    UPCALL_FULL = 86,           /* there is no room yet */
    UPCALL_OVERFLOW = 87,       /* this member's share of the buffer is used up, or memory is low */
    UPCALL_NO_QUEUE = 88,       /* no queue to the other member could be opened */
    UPCALL_UNHANDLED = 89,      /* a message without a handler waits */
    UPCALL_UNSENT = 90,         /* there is no resource left to reach another member */
    UPCALL_INTERRUPTED = 91,
    UPCALL_NOTHING_THERE = 92,  /* no message, or no event, waits */
    UPCALL_GIVEN_UP = 93,       /* another member gave up a barrier, as a third one is lost */
    UPCALL_QUEUE_REFUSED = 94,  /* the other member lives, but lacks a resource for the queue */
    UPCALL_NO_ROOM = 95,        /* the group has no room for members that join later */
    UPCALL_NOT_LEADER = 96,     /* another member expects those that join later */
    UPCALL_RANK_TAKEN = 97,     /* the rank is another member's, or outside the room */
    UPCALL_GROWING = 98,        /* members may join later, so there are no barriers */
    UPCALL_PARTED = 99,         /* two other members have lost each other, so no barrier holds */

    UPCALL_RESOURCE = 70,       /* the system has no descriptor, memory or thread left */
    UPCALL_INTERNAL = 71        /* a bug in Upcall, stopped at the border to C */
} upcall_status;

/* What went wrong. Needs neither initialising nor freeing. */
typedef struct upcall_error {
    upcall_status status;
    /* UPCALL_ABORTED: if true, the server has the request, so the procedure may have run or may
     * still run; if false, it never will. UPCALL_NO_MEMORY: if true, the procedure has run, and the
     * server did not keep its result; if false, see the text. */
    bool sent;
    /* UTF-8, terminated by a NUL, and truncated if too long. */
    char text[1000];
} upcall_error;

/* Returns a short description of a status. It is never freed. */
const char *upcall_status_text(upcall_status status);

/* ---- Values ---------------------------------------------------------------------------------- */

/* UTF-8, without a terminating NUL. */
typedef struct upcall_string {
    const char *data;
    size_t len;
} upcall_string;

/* Makes a string of a C string, without copying it. */
static inline upcall_string upcall_text(const char *text) {
    upcall_string string;
    string.data = text;
    string.len = strlen(text);
    return string;
}

/* Frees a string that was returned as a result. */
static inline void upcall_string_free(upcall_string *string) {
    free((void *)(uintptr_t)string->data);
    string->data = NULL;
    string->len = 0;
}

/* Lists of numbers, as arguments and results: `upcall_list_u8_t`, freed by upcall_list_u8_free, and
 * so on. A char is a Unicode scalar value. */
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

/* ---- Peers ----------------------------------------------------------------------------------- */

/* Returns true to accept a process at the other end of a binding, given the user, group and process
 * that the kernel reports for it. `process` is 0 if the process is not visible in this PID
 * namespace, or connects by TCP. For a peer on another host, which has proved a host that is
 * trusted here, `user` and `group` are UINT32_MAX, and upcall_policy_host returns the host. A user
 * without a number in this user namespace appears as 65534, which stands for all such users. */
typedef bool (*upcall_policy)(void *context, uint32_t user, uint32_t group, uint32_t process);

/* In a policy: the host that the peer has proved, by the name under which it is trusted here. NULL
 * for a peer on this host, and outside a policy. The text lives until the policy returns. */
const char *upcall_policy_host(void);
/* A policy that accepts peers on these hosts, and no others. `context` is an array of their names,
 * ended by NULL:
 *
 *     static const char *const hosts[] = {"ws1", "ws2", NULL};
 *     upcall_server_set_policy(server, upcall_admits_hosts, (void *)hosts); */
bool upcall_admits_hosts(void *context, uint32_t user, uint32_t group, uint32_t process);

/* Which processes are accepted: those that at least one of these members accepts. If all members
 * are zero, no process is accepted.
 *
 *     uint32_t service = 1001;
 *     upcall_accepts accepts = {.users = &service, .user_count = 1};
 *     greeter_client_t *greeter = greeter_bind_expecting("greeter", &accepts, &error);
 *
 * Use getpwnam and getgrnam to find the numbers of named users and groups. The numbers are copied.
 */
typedef struct upcall_accepts {
    bool any_user;
    /* Effective users. */
    const uint32_t *users;
    size_t user_count;
    /* Effective or supplementary groups. */
    const uint32_t *groups;
    size_t group_count;
    /* Returns true for a process that is accepted; may be NULL. A client's policy runs while the
     * client binds, possibly on a thread other than the caller's, while the caller's thread waits.
     */
    upcall_policy policy;
    void *context;
} upcall_accepts;

/* The terms on which a client binds. A member that is zero has its usual value.
 *
 *     upcall_bind_terms terms = {.wait = 1000000000, .lost_after = 2000000000};
 *     greeter_client_t *greeter = greeter_bind_on("tcp://ws2:7000/greeter", &terms, &error); */
typedef struct upcall_bind_terms {
    /* NULL: servers of this user and of root, at addresses of this machine, and of hosts that are
     * trusted here. */
    const upcall_accepts *accepts;
    /* Maximum time, in nanoseconds, that the client waits while no server serves the name. */
    uint64_t wait;
    /* Time, in nanoseconds, after which a server on another host that gives no sign of life is
     * lost, in place of 5 s. It is rounded up to a second. */
    uint64_t lost_after;
} upcall_bind_terms;

/* ---- Clients --------------------------------------------------------------------------------- */

/* A binding with the terms of its calls. Generated code defines a type of its own for each
 * interface; `x_base(client)` converts that to this type. */
typedef struct upcall_client upcall_client;

/* Returns another client of the same binding, with its own terms, to be freed separately. Returns
 * NULL only for NULL. */
upcall_client *upcall_client_copy(const upcall_client *client);

/* Frees a client; NULL is allowed. Resources that calls by this client returned remain valid. The
 * binding ends with the last of its clients and resources. */
void upcall_client_free(upcall_client *client);

/* Sets how long each call may take, in nanoseconds. This applies to calls by this client, and by
 * resources that it returns from now on. 0, the default, means no deadline. At the deadline a call
 * returns UPCALL_ABORTED. The deadline also applies to the calls that the server makes in turn. */
void upcall_client_set_deadline(upcall_client *client, uint64_t nanoseconds);

/* A token that cancels calls, from any thread. */
typedef struct upcall_cancel_token upcall_cancel_token;
upcall_cancel_token *upcall_cancel_token_new(void);
/* Makes all calls under way whose client has this token return UPCALL_ABORTED. Later calls
 * return it at once. */
void upcall_cancel(const upcall_cancel_token *token);
void upcall_cancel_token_free(upcall_cancel_token *token);
/* Sets a client's token, or removes it (NULL). The token may be freed afterwards. */
void upcall_client_set_cancel_token(upcall_client *client, const upcall_cancel_token *token);

/* When a call gives its processor to a sleeping server. In C the calling thread has nothing else to
 * run, so this matters only with UPCALL_POLL. */
typedef enum upcall_hand_off { UPCALL_WHEN_IDLE = 0, UPCALL_AT_ONCE = 1 } upcall_hand_off;
void upcall_client_set_hand_off(upcall_client *client, upcall_hand_off when);

/* What a call does if it needs memory for its values while calls under way use all of it: wait, or
 * add more. */
typedef enum upcall_when_full { UPCALL_WAIT = 0, UPCALL_GROW = 1 } upcall_when_full;
void upcall_client_set_when_full(upcall_client *client, upcall_when_full what);

/* How a thread waits. UPCALL_ADAPTIVE spins for at most 50 us and then sleeps; UPCALL_POLL keeps a
 * processor busy. */
typedef enum upcall_pacing { UPCALL_ADAPTIVE = 0, UPCALL_POLL = 1, UPCALL_SLEEP = 2 } upcall_pacing;
/* Sets the pacing for all clients of the same server. */
void upcall_client_set_pacing(const upcall_client *client, upcall_pacing pacing);

/* Returns true while calls can go through. Once false, it stays false. */
bool upcall_client_is_open(const upcall_client *client);
/* Returns the process ID of the server, or 0 if the server is on another machine. */
uint32_t upcall_client_server(const upcall_client *client);

/* ---- Servers --------------------------------------------------------------------------------- */

/* A server that is being set up: interfaces under names, and the threads that run their calls.
 * Generated code exports interfaces:
 *
 *     upcall_server *server = upcall_server_new();
 *     if (greeter_export(server, "greeter", &functions, &error) != UPCALL_OK
 *         || upcall_server_run(server, &error) != UPCALL_OK)
 *         fprintf(stderr, "%s\n", error.text);
 *
 * The server's threads call the procedures: one call at a time on each processor, unless a
 * procedure itself makes calls by this library. With more than one processor, several procedures
 * run at once. Until a procedure returns, other calls of its processor wait. Procedures run on the
 * server's own stacks, 1 MiB each unless upcall_server_set_stack_size changes it; only the pages
 * that are used take memory. A procedure that overflows its stack ends the process with a message.
 */
typedef struct upcall_server upcall_server;

/* Default size of the stacks that run the calls of a server in C, in bytes. */
#define UPCALL_STACK_SIZE ((size_t)1 << 20)

upcall_server *upcall_server_new(void);
/* Frees a server that was never run; NULL is allowed. */
void upcall_server_free(upcall_server *server);
/* Sets how many processors, which are kernel threads, run calls: 1 by default, at most 32. */
void upcall_server_set_processors(upcall_server *server, size_t count);
/* Sets the maximum number of spare processors, which are further kernel threads: 15 by default.
 * They take over while functions of the server block, so the functions run concurrently even with
 * one processor. With one processor and 0 spares they do not, and calls wait for a function that
 * blocks. */
void upcall_server_set_spare_processors(upcall_server *server, size_t most);
/* Sets how idle processors wait. */
void upcall_server_set_pacing(upcall_server *server, upcall_pacing pacing);
/* Sets the size of the stacks that run calls, at least 64 KiB. */
void upcall_server_set_stack_size(upcall_server *server, size_t bytes);
/* Lets the clients bind that `policy` admits, in place of those of the same user. The policy also
 * decides who may list the server's exports. It runs on threads of the library, on 256 KiB of
 * stack, and never on two threads at once, for all servers of the process together; so `context`
 * needs no lock for it. The policy must not block, since other clients would wait for it. `context`
 * must live as long as the server. */
void upcall_server_set_policy(upcall_server *server, upcall_policy policy, void *context);
/* The same by numbers of users and groups, which are copied. A policy among them runs as described
 * above. NULL: the same user. UPCALL_MISUSE: a count without numbers.
 *
 * Clients of other users also need the right to connect, which the mode and the group of the
 * server's socket give, and a folder of names that both sides use (docs/reference/names.md):
 *
 *     upcall_accepts clients = {.any_user = true};
 *     upcall_server_set_mode(server, 0660);
 *     if (upcall_server_set_group_named(server, "audio", &error) != UPCALL_OK
 *         || upcall_server_set_accepts(server, &clients, &error) != UPCALL_OK) ... */
upcall_status upcall_server_set_accepts(upcall_server *server, const upcall_accepts *accepts,
                                        upcall_error *error);
/* Sets the mode of the server's socket, in place of 0600. A client needs write permission to
 * connect at all: 0660 admits the members of the socket's group, 0666 every user. The policy
 * decides after that. The umask of this process has no effect. */
void upcall_server_set_mode(upcall_server *server, uint32_t mode);
/* Sets the group of the server's socket, by number or by name, in place of this process's own. A
 * user other than root can give only a group of its own. With another group, or a name that no
 * group has, the server fails to start: UPCALL_RESOURCE. */
void upcall_server_set_group(upcall_server *server, uint32_t group);
upcall_status upcall_server_set_group_named(upcall_server *server, const char *group,
                                            upcall_error *error);

/* Also serves clients that connect by TCP and bind `tcp://HOST:PORT/NAME`. `address` is
 * "HOST:PORT". With port 0 the kernel chooses a port, which upcall_running_address returns. May be
 * called several times, for several addresses.
 *
 * The policy decides about these clients too. For a client within this machine (127.0.0.1 or [::1])
 * the kernel reports the user that has the other end of the connection, but not the process, so
 * `process` is 0 and `group` is UINT32_MAX. A client on another host has to prove, by TLS, a host
 * that is trusted here (`upcall host trust`). Of such a client the policy sees the host
 * (upcall_policy_host), and no user: `process` is 0, and `user` and `group` are UINT32_MAX. The
 * default policy admits it; numbers of users and groups do not.
 *
 * An address beyond this machine needs an identity of this host (`upcall host init`). Without one
 * the server fails to start: UPCALL_UNPROTECTED. */
upcall_status upcall_server_listen(upcall_server *server, const char *address, upcall_error *error);

/* Serves on the calling thread, forever. Always frees `server`. Returns only if the server fails to
 * start. */
upcall_status upcall_server_run(upcall_server *server, upcall_error *error);

/* A server that runs on threads of its own. */
typedef struct upcall_running upcall_running;
/* Starts the server; clients can bind when this returns. Always frees `server`. NULL: the server
 * failed to start. */
upcall_running *upcall_server_start(upcall_server *server, upcall_error *error);
/* Writes the address that the server listens at, with the actual port, as "HOST:PORT" with a NUL.
 * `number` counts the addresses from 0, in the order of upcall_server_listen. Returns false, and an
 * empty text, if there is no such address; also false if `text` is NULL. */
#define UPCALL_ADDRESS_SIZE 64
bool upcall_running_address(const upcall_running *running, size_t number,
                            char text[UPCALL_ADDRESS_SIZE]);
/* Removes the server's names, ends its clients' bindings, waits for running calls, drops its
 * objects, and frees it; NULL is allowed. A procedure of the server must not call this. */
void upcall_running_stop(upcall_running *running);

/* A call that a procedure answers. Valid until the procedure returns. */
typedef struct upcall_call upcall_call;
/* Allocates memory for results, which lives until the call has been answered. It is aligned for any
 * type; if there is no memory, the program ends. All that a procedure's results point to must live
 * that long: this memory, strings and lists of the arguments, or static data. */
void *upcall_call_alloc(upcall_call *call, size_t bytes);
/* Copies a string to be a result. */
static inline upcall_string upcall_call_text(upcall_call *call, const char *text) {
    upcall_string string;
    string.len = strlen(text);
    string.data = (const char *)memcpy(upcall_call_alloc(call, string.len), text, string.len);
    return string;
}
/* Reports that the procedure failed: the client gets UPCALL_PANICKED with up to 4096 bytes of
 * `text`, and no results. The results are ignored. */
void upcall_call_fail(upcall_call *call, const char *text);

/* Returned by upcall_deadline if there is no deadline. */
#define UPCALL_NO_DEADLINE UINT64_MAX
/* Returns how long the caller of the running procedure still waits, in nanoseconds. 0: its deadline
 * has passed, and the result will be dropped. UPCALL_NO_DEADLINE: it waits forever.
 *
 * A procedure that computes for long can look at it now and then, and return early. The calls that
 * the procedure makes end at the same time by themselves. The end of the caller, or its cancel
 * token, changes nothing here.
 *
 * The time belongs to the thread on which the library calls the procedure. All other threads, and
 * code outside of procedures, get UPCALL_NO_DEADLINE. To limit the calls of a thread that the
 * procedure starts, give it the time. Do not give 0 to upcall_client_set_deadline, which takes it
 * for "no deadline". This function never blocks. */
uint64_t upcall_deadline(void);

/* A list<u8> argument as a server sees it. The bytes are in memory that the client can still write,
 * so there is no pointer to them. Copy them before interpreting them. */
typedef struct upcall_bytes upcall_bytes;
size_t upcall_bytes_len(const upcall_bytes *bytes);
/* Copies `len` bytes from `at` on. Returns false, and does nothing, if the range is out of bounds.
 */
bool upcall_bytes_copy(const upcall_bytes *bytes, size_t at, void *to, size_t len);
/* Writes all bytes to a descriptor, without a copy in this process. Returns 0 or an errno. */
int upcall_bytes_write(const upcall_bytes *bytes, int descriptor);
/* Calls `each` with copies of consecutive parts of at most 4096 bytes. */
void upcall_bytes_each(const upcall_bytes *bytes,
                       void (*each)(void *context, const void *part, size_t len), void *context);

/* ---- For generated code only from here on ---------------------------------------------------- */
/* The layout of values is "upcall-1" (crates/idl/src/layout.rs). A block of arguments or results is
 * written into private memory: its fixed part into an array on the stack, and its tail as pieces.
 * From there it is copied once into memory that the peer can see. Reading is symmetric: functions
 * that check all bounds copy what the peer wrote to private memory, where it is decoded. So no
 * pointer into shared memory exists on this side of the interface. */

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Upcall's layout is little endian, and so must the machine be"
#endif

/* Marks what the files of two packages may both define, because both use the interface of a third.
 * The linker keeps one. */
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

/* Maximum number of words that a message itself carries. */
#define UPCALL_WORDS 6

/* A client's handle of an object in a server. */
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

/* A resource or object in a block, and the address of its handle in private memory. */
typedef struct upcall_given {
    const uint8_t *at;
    void *what;
} upcall_given;

/* A block that is being written. */
typedef struct upcall_writer {
    const uint8_t *fixed;
    uint64_t fixed_len;
    uint64_t tail; /* where the next piece goes */
    uint64_t string_limit, list_limit;
    uint64_t too_long; /* the length of the value that exceeds its limit, if any */
    upcall_status status;
    const upcall_client *client; /* the owner of writable resources; NULL in a server */
    upcall_piece *pieces;
    size_t piece_count, piece_room;
    upcall_given *given;
    size_t given_count, given_room;
} upcall_writer;

/* Reads what a peer wrote. */
typedef struct upcall_reader upcall_reader;
typedef bool (*upcall_read_fn)(upcall_reader *reader, void *result);
typedef void (*upcall_dispatch_fn)(const void *functions, uint32_t number, upcall_call *call);

upcall_client *upcall_bind(const char *name, const upcall_interface *interface,
                           upcall_error *error);
upcall_client *upcall_bind_expecting(const char *name, const upcall_interface *interface,
                                     const upcall_accepts *accepts, upcall_error *error);
upcall_client *upcall_bind_wait(const char *name, const upcall_interface *interface,
                                const upcall_accepts *accepts, uint64_t nanoseconds,
                                upcall_error *error);
upcall_client *upcall_bind_on(const char *name, const upcall_interface *interface,
                              const upcall_bind_terms *terms, upcall_error *error);
upcall_client *upcall_client_part(const upcall_client *client, const char *id, upcall_error *error);
/* Reads the results by `read` into `result`, which has `size` bytes; if `read` returns false, what
 * it has allocated is freed. `late`: the results hold resources, so results that arrive after a
 * deadline are read and released. Frees the writer, and the resources that were given away if the
 * server has answered. */
upcall_status upcall_invoke(const upcall_client *client, uint32_t number, upcall_writer *args,
                            upcall_read_fn read, void *result,
                            size_t size, bool late, upcall_error *error);
/* For arguments and results that fit into the message itself. */
upcall_status upcall_invoke_words(const upcall_client *client, uint32_t number, uint64_t *words,
                                  size_t len, upcall_error *error);
upcall_status upcall_bad_reply(upcall_error *error);
upcall_status upcall_misuse(upcall_error *error, const char *text);

upcall_client *upcall_resource_client(const upcall_resource *resource);
uint64_t upcall_resource_number(const upcall_resource *resource);
void upcall_resource_drop(upcall_resource *resource);

bool upcall_read(upcall_reader *reader, uint64_t at, void *to, size_t len);
/* Copies a piece to memory of its own (freed with the call in a server). */
bool upcall_read_piece(upcall_reader *reader, const uint8_t *descriptor, size_t stride,
                       const void **data, size_t *count);
bool upcall_read_string(upcall_reader *reader, const uint8_t *descriptor, upcall_string *string);
bool upcall_read_bytes(upcall_reader *reader, const uint8_t *descriptor,
                       const upcall_bytes **bytes);
/* Allocates zeroed memory for decoded values. upcall_read_release frees what upcall_read_piece
 * returned. */
void *upcall_read_alloc(upcall_reader *reader, size_t count, size_t size);
void upcall_read_release(upcall_reader *reader, const void *data);
bool upcall_read_resource(upcall_reader *reader, const uint8_t *handle, const char *interface,
                          upcall_resource **resource);
bool upcall_read_lent(upcall_reader *reader, const uint8_t *handle, const void *type, void **value);
bool upcall_read_object(upcall_reader *reader, const uint8_t *handle, const void *type,
                        upcall_object **object);
bool upcall_read_fault(upcall_reader *reader, uint64_t found, uint64_t cases);

upcall_reader *upcall_call_reader(upcall_call *call);
/* Reports that all arguments are decoded: the procedure now owns the objects among them. */
void upcall_call_accept(upcall_call *call);
bool upcall_call_failed(const upcall_call *call);
/* Answers the call, and takes ownership of the writer's contents. */
void upcall_call_reply(upcall_call *call, upcall_writer *results);

upcall_status upcall_server_export(upcall_server *server, const char *name,
                                   const upcall_interface *interface, const void *functions,
                                   upcall_dispatch_fn dispatch, upcall_error *error);

upcall_object *upcall_object_new(const void *type, void *value, void (*drop)(void *value));
void *upcall_object_value(const upcall_object *object);
void upcall_object_drop(upcall_object *object);

/* Writing. */
void *upcall_write_grow(void *items, size_t *room, size_t size);
void upcall_write_own(upcall_writer *writer, uint8_t *at, upcall_resource *resource);
void upcall_write_lent(upcall_writer *writer, uint8_t *at, const upcall_resource *resource);

static inline void upcall_write_begin(upcall_writer *writer, const uint8_t *fixed, size_t len,
                                      const upcall_procedure *procedure,
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

/* Writes a piece of `count` elements, and its descriptor at `at`. Returns false if writing cannot
 * go on. */
static inline bool upcall_write_piece(upcall_writer *writer, uint8_t *at, const void *data,
                                      uint64_t count, uint64_t stride,
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
            writer->pieces = (upcall_piece *)upcall_write_grow(writer->pieces, &writer->piece_room,
                                                               sizeof *writer->pieces);
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
static inline void upcall_put_list(upcall_writer *writer, uint8_t *at, const void *data,
                                   size_t count, size_t stride) {
    upcall_write_piece(writer, at, data, count, stride, writer->list_limit, NULL);
}

/* Returns room for the elements of any other list, or NULL if there are none or the list is too
 * long. */
static inline uint8_t *upcall_put_run(upcall_writer *writer, uint8_t *at, size_t count,
                                      size_t stride) {
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
        writer->given = (upcall_given *)upcall_write_grow(writer->given, &writer->given_room,
                                                          sizeof *writer->given);
    writer->given[writer->given_count].at = at;
    writer->given[writer->given_count].what = object;
    writer->given_count++;
}

/* Reading from private memory. */
static inline uint8_t upcall_get_1(const uint8_t *at) { return *at; }
static inline uint16_t upcall_get_2(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, 2);
    return value;
}
static inline uint32_t upcall_get_4(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}
static inline uint64_t upcall_get_8(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}
static inline float upcall_get_f32(const uint8_t *at) {
    float value;
    memcpy(&value, at, 4);
    return value;
}
static inline double upcall_get_f64(const uint8_t *at) {
    double value;
    memcpy(&value, at, 8);
    return value;
}

static inline bool upcall_get_bool(upcall_reader *reader, const uint8_t *at, bool *value) {
    *value = *at == 1;
    return *at <= 1 || upcall_read_fault(reader, *at, 2);
}

static inline bool upcall_get_char(upcall_reader *reader, const uint8_t *at, uint32_t *value) {
    *value = upcall_get_4(at);
    return (*value < 0x110000 && (*value < 0xd800 || *value > 0xdfff))
        || upcall_read_fault(reader, *value, 0x110000);
}

#ifdef __cplusplus
}
#endif

#endif
