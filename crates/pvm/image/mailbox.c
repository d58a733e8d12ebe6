/* Mailboxes: messages that the machine keeps (src/services/mailboxes.rs), and the older functions
 * for integers. */

#include "services.h"
#include <stdlib.h>
#include <string.h>

static int is_name(const char *name)
{
    return name && *name;
}

/* Puts a buffer at `index`; -1: the flags say where. Returns the index, or an error. */
static int put(const char *name, struct upvm_buffer *buffer, int flags, int index)
{
    struct upvm_question question = {0};
    upvm_put_text(&question, name);
    upvm_put(&question, flags);
    upvm_put(&question, index);
    upvm_put(&question, buffer->tag);
    upvm_put_buffer(&question, buffer);
    int put_at = upvm_ask(&question, UPVM_OP_MAILBOX_PUT);
    upvm_over(&question);
    return put_at;
}

/* Returns the index and stores the number of a buffer with the entry; or returns an error. */
static int get(const char *name, int index, int flags, int *number)
{
    struct upvm_question question = {0};
    upvm_put_text(&question, name);
    upvm_put(&question, index);
    upvm_put(&question, flags);
    int found = upvm_ask(&question, UPVM_OP_MAILBOX_GET);
    if (found >= 0) {
        int source = upvm_get(&question), tag = upvm_get(&question);
        *number = upvm_get_buffer(&question);
        struct upvm_buffer *buffer = upvm_buffer(*number);
        if (buffer)
            buffer->source = source, buffer->tag = tag;
        else
            found = PvmNoMem;
    }
    upvm_over(&question);
    return found;
}

static int delete(const char *name, int index)
{
    struct upvm_question question = {0};
    upvm_put_text(&question, name);
    upvm_put(&question, index);
    int deleted = upvm_ask(&question, UPVM_OP_MAILBOX_DELETE);
    upvm_over(&question);
    return deleted;
}

int pvm_putinfo(char *name, int number, int flags)
{
    upvm_self();
    if (!is_name(name) || number <= 0)
        return upvm_done("pvm_putinfo", PvmBadParam);
    struct upvm_buffer *buffer = upvm_buffer(number);
    if (!buffer)
        return upvm_done("pvm_putinfo", PvmNoSuchBuf);
    int code = upvm_captured(buffer);
    if (code >= 0)
        code = put(name, buffer, flags, -1);
    return code == PvmDenied ? upvm_polled(code) : upvm_done("pvm_putinfo", code);
}

int pvm_recvinfo(char *name, int index, int flags)
{
    upvm_self();
    if (!is_name(name) || index < 0)
        return upvm_done("pvm_recvinfo", PvmBadParam);
    int number, found = get(name, index, flags, &number);
    if (found == PvmNotFound)
        return upvm_polled(found);
    if (found < 0)
        return upvm_done("pvm_recvinfo", found);
    /* The entry becomes the active receive buffer, as a received message does. */
    upvm_buffer_free(upvm_receives);
    return upvm_receives = number;
}

int pvm_delinfo(char *name, int index, int flags)
{
    (void)flags;
    upvm_self();
    if (!is_name(name) || index < 0)
        return upvm_done("pvm_delinfo", PvmBadParam);
    int code = delete(name, index);
    return code == PvmDenied || code == PvmNotFound ? upvm_polled(code)
                                                    : upvm_done("pvm_delinfo", code);
}

/* The last result. It is valid until the next call. */
static struct pvmmboxinfo *classes;
static int class_count;

static void forget(void)
{
    for (int one = 0; one < class_count; one++) {
        free(classes[one].mi_name);
        free(classes[one].mi_indices);
    }
    free(classes);
    classes = 0, class_count = 0;
}

/* Reads a class. Its indices, owners and flags are three parts of one array. */
static int read_class(struct upvm_question *question, struct pvmmboxinfo *class)
{
    char *name = strdup(upvm_get_text(question));
    int count = upvm_get(question);
    int *entries = malloc(3 * sizeof *entries * count + 1);
    if (!name || !entries) {
        free(name);
        free(entries);
        return 0;
    }
    *class = (struct pvmmboxinfo){name, count, entries, entries + count, entries + 2 * count};
    for (int one = 0; one < count; one++) {
        class->mi_indices[one] = upvm_get(question);
        class->mi_owners[one] = upvm_get(question);
        class->mi_flags[one] = upvm_get(question);
    }
    return 1;
}

int pvm_getmboxinfo(char *pattern, int *count, struct pvmmboxinfo **infos)
{
    upvm_self();
    forget();
    struct upvm_question question = {0};
    upvm_put_text(&question, pattern);
    int found = upvm_ask(&question, UPVM_OP_MAILBOX_INFO);
    if (found >= 0 && !(classes = malloc(found * sizeof *classes + 1)))
        found = PvmNoMem;
    while (class_count < found)
        if (read_class(&question, &classes[class_count]))
            class_count++;
        else
            found = PvmNoMem;
    upvm_over(&question);
    /* Programs poll until an entry exists. */
    upvm_yield();
    if (found < 0)
        return upvm_done("pvm_getmboxinfo", found);
    if (count)
        *count = class_count;
    if (infos)
        *infos = classes;
    return PvmOk;
}

/* The older functions store a packed integer. */
static int packed(int value)
{
    int number = upvm_buffer_new(PvmDataDefault), sends = upvm_sends;
    if (number < 0)
        return number;
    upvm_sends = number;
    int code = pvm_pkint(&value, 1, 1);
    upvm_sends = sends;
    if (code >= 0)
        return number;
    upvm_buffer_free(number);
    return code;
}

int pvm_insert(char *name, int index, int value)
{
    upvm_self();
    if (!is_name(name) || index < -1)
        return upvm_done("pvm_insert", PvmBadParam);
    int number = packed(value), code = number;
    if (number > 0) {
        code = put(name, upvm_buffer(number), PvmMboxPersistent | PvmMboxMultiInstance, index);
        upvm_buffer_free(number);
    }
    return code == PvmDupEntry ? upvm_polled(code) : upvm_done("pvm_insert", code);
}

int pvm_lookup(char *name, int index, int *value)
{
    upvm_self();
    if (!is_name(name) || index < -1)
        return upvm_done("pvm_lookup", PvmBadParam);
    int number, found =
        get(name, index < 0 ? 0 : index, index < 0 ? PvmMboxFirstAvail : PvmMboxDefault, &number);
    if (found == PvmNoEntry)
        return upvm_polled(found);
    if (found < 0)
        return upvm_done("pvm_lookup", found);
    int receives = upvm_receives, its = 0;
    upvm_receives = number;
    int code = pvm_upkint(&its, 1, 1);
    upvm_receives = receives;
    upvm_buffer_free(number);
    if (value && code >= 0)
        *value = its;
    return code < 0 ? upvm_done("pvm_lookup", code) : found;
}

int pvm_delete(char *name, int index)
{
    upvm_self();
    if (!is_name(name) || index < 0)
        return upvm_done("pvm_delete", PvmBadParam);
    int code = delete(name, index);
    return code == PvmNoEntry ? upvm_polled(code) : upvm_done("pvm_delete", code);
}
