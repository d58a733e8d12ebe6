/* Serves interfaces that give back what they get, for many packages at once. Each package is in a
 * library of its own, since the generated code of two packages may use the same names. Arguments:
 * for each package a library, what it gives back (values or objects), and the names for its two
 * servers. */
#include <upcall.h>

#include <dlfcn.h>
#include <stdio.h>

typedef upcall_status (*export_fn)(upcall_server *server, const char *plain, const char *forward,
                                   upcall_error *error);
typedef bool (*bind_fn)(const char *plain, upcall_error *error);

static void *find(const char *library, const char *kind, const char *what) {
    char name[64];
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL), *found;
    snprintf(name, sizeof name, "%s_%s", kind, what);
    found = loaded ? dlsym(loaded, name) : NULL;
    if (!found) {
        fprintf(stderr, "%s: %s\n", library, dlerror());
        exit(1);
    }
    return found;
}

static void check(bool right, const char *what, const upcall_error *error) {
    if (right) return;
    fprintf(stderr, "%s: %s\n", what, error->text);
    exit(1);
}

int main(int count, char **arguments) {
    upcall_error error;
    upcall_server *server = upcall_server_new();
    for (int i = 1; i + 3 < count; i += 4) {
        export_fn export_both = (export_fn)find(arguments[i], arguments[i + 1], "export");
        check(export_both(server, arguments[i + 2], arguments[i + 3], &error) == UPCALL_OK,
              arguments[i], &error);
    }
    upcall_running *running = upcall_server_start(server, &error);
    check(running, "start", &error);
    for (int i = 1; i + 3 < count; i += 4) {
        bind_fn bind_plain = (bind_fn)find(arguments[i], arguments[i + 1], "bind");
        check(bind_plain(arguments[i + 2], &error), arguments[i], &error);
    }
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {}
    for (int i = 1; i + 3 < count; i += 4)
        ((void (*)(void))find(arguments[i], arguments[i + 1], "unbind"))();
    upcall_running_stop(running);
    return 0;
}
