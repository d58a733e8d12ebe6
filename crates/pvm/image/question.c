/* Questions to the system: a buffer is sent to it, and another comes back. */

#include "lib.h"
#include <string.h>

static struct upvm_buffer *asked(struct upvm_question *question)
{
    if (!question->asked)
        question->asked = upvm_buffer_new(PvmDataRaw);
    return upvm_buffer(question->asked);
}

/* Without memory the question is cut short, and the host rejects it. */
static void put(struct upvm_question *question, const void *bytes, size_t count)
{
    struct upvm_buffer *buffer = asked(question);
    char *room = buffer ? upvm_room(buffer, count) : 0;
    if (room)
        memcpy(room, bytes, count);
}

void upvm_put(struct upvm_question *question, int value)
{
    put(question, &value, sizeof value);
}

void upvm_put_text(struct upvm_question *question, const char *text)
{
    size_t length = text ? strlen(text) + 1 : 1;
    upvm_put(question, length);
    put(question, text ? text : "", length);
}

void upvm_put_bytes(struct upvm_question *question, const void *bytes, size_t count)
{
    put(question, bytes, count);
}

void upvm_put_buffer(struct upvm_question *question, const struct upvm_buffer *buffer)
{
    upvm_put(question, buffer->encoding);
    upvm_put(question, (int)buffer->length);
    upvm_put(question, (int)(buffer->length >> 32));
    put(question, buffer->data, buffer->length);
}

int upvm_ask(struct upvm_question *question, int op)
{
    struct upvm_buffer *buffer = asked(question);
    if (!buffer)
        return PvmNoMem;
    uint64_t *table = upvm_here();
    long answer = upvm_ask_quietly(table, UPVM_ASK_SYSTEM, op, buffer->handle, buffer->length, 0);
    uint64_t *reply = &table[UPVM_TABLE_REPLY];
    if (reply[UPVM_REPLY_HANDLE]) {
        question->answered = upvm_buffer_new(PvmDataRaw);
        if (question->answered < 0) {
            upvm_letter(UPVM_LETTER_RELEASE | reply[UPVM_REPLY_HANDLE] << 8, 0, 0, 0);
            question->answered = 0;
            return PvmNoMem;
        }
        upvm_filled(upvm_buffer(question->answered), reply);
    }
    return answer;
}

int upvm_ask_short(int op, int value)
{
    return upvm_ask_quietly(upvm_here(), UPVM_ASK_SHORT, op, (long)value, 0, 0);
}

int upvm_get(struct upvm_question *question)
{
    struct upvm_buffer *buffer = upvm_buffer(question->answered);
    const char *next = buffer ? upvm_next(buffer, sizeof(int)) : 0;
    int value = 0;
    if (next)
        memcpy(&value, next, sizeof value);
    return value;
}

const char *upvm_get_text(struct upvm_question *question)
{
    int length = upvm_get(question);
    const char *text = length > 0 ? upvm_next(upvm_buffer(question->answered), length) : 0;
    return text ? text : "";
}

int upvm_get_buffer(struct upvm_question *question)
{
    int encoding = upvm_get(question);
    size_t length = (uint32_t)upvm_get(question);
    length |= (size_t)upvm_get(question) << 32;
    int number = upvm_buffer_new(encoding);
    struct upvm_buffer *buffer = upvm_buffer(number), *from = upvm_buffer(question->answered);
    const char *bytes = from ? upvm_next(from, length) : 0;
    char *room = buffer && bytes ? upvm_room(buffer, length) : 0;
    if (!room) {
        upvm_buffer_free(number);
        return 0;
    }
    memcpy(room, bytes, length);
    return number;
}

void upvm_over(struct upvm_question *question)
{
    upvm_buffer_free(question->asked);
    upvm_buffer_free(question->answered);
    question->asked = question->answered = 0;
}
