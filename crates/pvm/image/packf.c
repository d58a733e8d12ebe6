/* Packing and unpacking by a format. */

#include "lib.h"
#include "pack.h"
#include <ctype.h>
#include <stdarg.h>

/* One conversion of a format: an array of items at an address, or a single item passed by value. */
struct item {
    int type, count, stride, is_array;
};

/* Reads a number from the format, or for `*` from an argument. 1 if there is neither. */
static int number(const char **at, va_list *args)
{
    if (**at == '*') {
        ++*at;
        return va_arg(*args, int);
    }
    int value = isdigit((unsigned char)**at) ? 0 : 1;
    while (isdigit((unsigned char)**at))
        value = 10 * value + *(*at)++ - '0';
    return value;
}

/* Reads a conversion after its %. Returns 0 if it is invalid. */
static int is_read(const char **at, va_list *args, struct item *item)
{
    const char *begin = *at;
    item->count = number(at, args), item->stride = 1;
    if (**at == '.') {
        ++*at;
        item->stride = number(at, args);
    }
    item->is_array = *at != begin;
    int is_short = 0, is_long = 0, is_unsigned = 0;
    for (;; ++*at) {
        if (**at == 'h')
            is_short = 1;
        else if (**at == 'l')
            is_long = 1;
        else if (**at == 'u')
            is_unsigned = 1;
        else
            break;
    }
    switch (*(*at)++) {
    case 'c': item->type = PVM_BYTE; return 1;
    case 's': item->type = PVM_STR; return 1;
    case 'f': item->type = is_long ? PVM_DOUBLE : PVM_FLOAT; return 1;
    case 'x': item->type = is_long ? PVM_DCPLX : PVM_CPLX; return 1;
    case 'd':
        if (is_unsigned)
            item->type = is_long ? PVM_ULONG : is_short ? PVM_USHORT : PVM_UINT;
        else
            item->type = is_long ? PVM_LONG : is_short ? PVM_SHORT : PVM_INT;
        return 1;
    }
    return 0;
}

static int pack_value(int type, va_list *args)
{
    union {
        char byte;
        short half;
        int whole;
        long large;
        float real;
        double precise;
    } value;
    switch (type) {
    case PVM_BYTE: value.byte = va_arg(*args, int); break;
    case PVM_SHORT: case PVM_USHORT: value.half = va_arg(*args, int); break;
    case PVM_INT: case PVM_UINT: value.whole = va_arg(*args, int); break;
    case PVM_LONG: case PVM_ULONG: value.large = va_arg(*args, long); break;
    case PVM_FLOAT: value.real = va_arg(*args, double); break;
    default: value.precise = va_arg(*args, double);
    }
    /* The value would be gone when the buffer is sent. */
    if (upvm_buffer(upvm_sends)->encoding == PvmDataInPlace)
        return PvmNotImpl;
    return upvm_pack(type, &value, 1, 1);
}

static int packed(const char *format, va_list *args)
{
    if (format[0] == '%' && format[1] == '+') {
        int code = pvm_initsend(va_arg(*args, int));
        if (code < 0)
            return code;
        format += 2;
    }
    if (!upvm_buffer(upvm_sends))
        return PvmNoBuf;
    int code = PvmOk;
    while (*format && code >= 0) {
        struct item item;
        if (*format++ != '%')
            continue;
        if (!is_read(&format, args, &item))
            return PvmBadParam;
        if (item.type == PVM_STR)
            code = upvm_pack_text(va_arg(*args, char *));
        else if (item.is_array || item.type == PVM_CPLX || item.type == PVM_DCPLX)
            code = upvm_pack(item.type, va_arg(*args, void *), item.count, item.stride);
        else
            code = pack_value(item.type, args);
    }
    return code;
}

static int unpacked(const char *format, va_list *args)
{
    if (!upvm_buffer(upvm_receives))
        return PvmNoBuf;
    int code = PvmOk;
    while (*format && code >= 0) {
        struct item item;
        if (*format++ != '%')
            continue;
        if (!is_read(&format, args, &item))
            return PvmBadParam;
        if (item.type == PVM_STR)
            code = upvm_unpack_text(va_arg(*args, char *));
        else
            code = upvm_unpack(item.type, va_arg(*args, void *), item.count, item.stride);
    }
    return code;
}

int pvm_packf(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int code = format ? packed(format, &args) : PvmBadParam;
    va_end(args);
    return upvm_done("pvm_packf", code);
}

int pvm_unpackf(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int code = format ? unpacked(format, &args) : PvmBadParam;
    va_end(args);
    return upvm_done("pvm_unpackf", code);
}
