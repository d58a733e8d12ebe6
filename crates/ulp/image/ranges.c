/* Which addresses of the slot the program's maps take.
 *
 * malloc calls mmap, so the list is memory of its own: the last MiB of what the host has mapped.
 * It takes no page before the first map. Ranges are in order, and those that touch are one. What is
 * mapped in a range, and how, only the kernel knows. Segments of System V are noted at the other
 * end of the same memory. */

#include "ranges.h"
#include <string.h>

struct range {
    uintptr_t start, end;
};

#define MOST (UPVM_RANGES / sizeof(struct range))

static unsigned count, segments;

static struct range *all(void)
{
    return (struct range *)upvm_limit();
}

static struct range *segment(unsigned number)
{
    return all() + MOST - 1 - number;
}

/* The first range that ends above this address. */
static unsigned first_above(uintptr_t address)
{
    unsigned low = 0, high = count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (all()[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Replaces the ranges from `first` to `last` by `more` others, which the caller writes. */
static void replace(unsigned first, unsigned last, unsigned more)
{
    struct range *ranges = all();
    if (first + more != last)
        memmove(ranges + first + more, ranges + last, (count - last) * sizeof *ranges);
    count = count - (last - first) + more;
}

uintptr_t upvm_lowest(void)
{
    return count ? all()->start : upvm_limit();
}

int upvm_has_room(void)
{
    return count + segments + 3 <= MOST;
}

int upvm_is_free(uintptr_t start, uintptr_t end)
{
    unsigned one = first_above(start);
    return one == count || all()[one].start >= end;
}

uintptr_t upvm_place(uintptr_t length, uintptr_t aligned, uintptr_t least)
{
    uintptr_t above = upvm_limit();
    for (unsigned one = count;; one--) {
        uintptr_t below = one ? all()[one - 1].end : least;
        if (above > below && above - below >= length) {
            uintptr_t start = (above - length) & -aligned;
            if (start >= below)
                return start;
        }
        if (!one)
            return 0;
        above = all()[one - 1].start;
    }
}

void upvm_take(uintptr_t start, uintptr_t end)
{
    unsigned first = first_above(start - 1), last = first;
    for (; last < count && all()[last].start <= end; last++) {
        if (all()[last].start < start)
            start = all()[last].start;
        if (all()[last].end > end)
            end = all()[last].end;
    }
    replace(first, last, 1);
    all()[first] = (struct range){start, end};
}

void upvm_free(uintptr_t start, uintptr_t end)
{
    unsigned first = first_above(start), last = first;
    while (last < count && all()[last].start < end)
        last++;
    if (first == last)
        return;
    struct range below = {all()[first].start, start}, above = {end, all()[last - 1].end};
    int stays_below = below.start < below.end, stays_above = above.start < above.end;
    replace(first, last, stays_below + stays_above);
    if (stays_below)
        all()[first] = below;
    if (stays_above)
        all()[first + stays_below] = above;
}

void upvm_attach(uintptr_t start, uintptr_t end)
{
    *segment(segments++) = (struct range){start, end};
}

uintptr_t upvm_attached(uintptr_t start)
{
    for (unsigned one = 0; one < segments; one++)
        if (segment(one)->start == start)
            return segment(one)->end;
    return 0;
}

void upvm_detach(uintptr_t start, uintptr_t end)
{
    for (unsigned one = 0; one < segments; one++) {
        struct range *this = segment(one);
        if (this->start < end && start < this->end)
            *this = *segment(--segments), one--;
    }
}
