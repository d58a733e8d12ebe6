/* Ends with its former umask. */
#include <sys/stat.h>

int main(void)
{
    return umask(0100027);
}
