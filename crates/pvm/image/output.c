/* pvm_catchout: the output of tasks that this one has spawned. It arrives as messages, and is
 * printed line by line. */

#include "lib.h"
#include "options.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int upvm_show_tids = 1;

static FILE *to;

/* The unfinished line of a task. */
static struct piece {
    struct piece *next;
    int tid;
    size_t length;
    char *text;
} *pieces;

static struct piece *piece(int tid)
{
    struct piece *one = pieces;
    while (one && one->tid != tid)
        one = one->next;
    if (!one && (one = calloc(1, sizeof *one))) {
        one->tid = tid, one->next = pieces;
        pieces = one;
    }
    return one;
}

static void line(int tid, const char *text, size_t length)
{
    if (upvm_show_tids)
        fprintf(to, "[t%x] ", tid);
    fwrite(text, 1, length, to);
    putc('\n', to);
}

static void text(int tid, const char *bytes, size_t count)
{
    struct piece *one = piece(tid);
    if (!one)
        return;
    for (const char *end; (end = memchr(bytes, '\n', count));
         count -= end + 1 - bytes, bytes = end + 1) {
        if (one->length && upvm_show_tids)
            fprintf(to, "[t%x] ", tid);
        fwrite(one->text, 1, one->length, to);
        if (one->length) {
            fwrite(bytes, 1, end - bytes, to);
            putc('\n', to);
        } else {
            line(tid, bytes, end - bytes);
        }
        one->length = 0;
    }
    char *more = count ? realloc(one->text, one->length + count) : 0;
    if (more) {
        memcpy(more + one->length, bytes, count);
        one->text = more;
        one->length += count;
    }
}

static void end(int tid)
{
    for (struct piece **at = &pieces; *at; at = &(*at)->next) {
        struct piece *one = *at;
        if (one->tid != tid)
            continue;
        if (one->length)
            line(tid, one->text, one->length);
        *at = one->next;
        free(one->text);
        free(one);
        break;
    }
}

/* A message has a task's tid, and the number of bytes that follow or a mark for the task's start or
 * end. */
static int caught(struct upvm_buffer *buffer)
{
    if (buffer->context != UPVM_OUTPUT_CONTEXT)
        return 0;
    const char *words = upvm_next(buffer, 2 * sizeof(int));
    int tid, count;
    if (!words || !to)
        return 1;
    memcpy(&tid, words, sizeof tid);
    memcpy(&count, words + sizeof tid, sizeof count);
    if (count > 0) {
        const char *bytes = upvm_next(buffer, count);
        if (bytes)
            text(tid, bytes, count);
    } else if (count == UPVM_OUTPUT_NEW) {
        if (upvm_show_tids)
            line(tid, "BEGIN", 5);
    } else if (count == UPVM_OUTPUT_END) {
        end(tid);
        if (upvm_show_tids)
            line(tid, "EOF", 3);
    }
    fflush(to);
    return 1;
}

int pvm_catchout(FILE *file)
{
    int tid = upvm_self();
    if (file) {
        to = file;
        upvm_look = caught;
        upvm_looks_changed();
    }
    upvm_set_at_host(PvmOutputTid, file ? tid : 0);
    upvm_set_at_host(PvmOutputCode, 0);
    upvm_set_at_host(PvmOutputContext, file ? UPVM_OUTPUT_CONTEXT : 0);
    return PvmOk;
}

void upvm_catch_the_rest(void)
{
    if (!upvm_look ||
        !upvm_ask_quietly(upvm_here(), UPVM_ASK_SHORT, UPVM_OP_OPTION, (long)PvmOutputTid, 0, 0))
        return;
    upvm_poll();
    while (upvm_ask_short(UPVM_OP_OUTPUT_SOURCES, 0) > 0) {
        /* A message arrives in any case: output, or its end. */
        upvm_wait();
    }
    upvm_poll();
}
