/* A clock that can be moved under a running server, loaded into it with LD_PRELOAD.
 *
 * Knows two offsets in a file that TENURE_CLOCK_FILE names: nanoseconds to add to the wall clock
 * and to the monotonic clocks, two signed 64-bit numbers. The file is mapped, so whoever writes to
 * it moves the clock at once. Without the file the clocks are as they are.
 *
 * Only raw system calls: allocators ask for the time before they can allocate, and what goes
 * through dlsym, as libfaketime does, then calls itself for ever (redis-server with jemalloc).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

enum { WALL, MONOTONIC, OFFSETS };

static const volatile int64_t *offsets;

/* Until the constructor has run, nobody is there to care about the time. */
__attribute__((constructor)) static void map_offsets(void) {
    const char *path = getenv("TENURE_CLOCK_FILE");
    if (path == NULL) return;
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *at = mmap(NULL, OFFSETS * sizeof(int64_t), PROT_READ, MAP_SHARED, (int)fd, 0);
    if (at != MAP_FAILED) offsets = at;
    syscall(SYS_close, fd);
}

static int64_t offset_of(clockid_t clock) {
    if (offsets == NULL) return 0;
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return offsets[WALL];
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_BOOTTIME:
        return offsets[MONOTONIC];
    default: /* The time a process or thread has used is not moved. */
        return 0;
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
    int64_t nanos = (int64_t)now->tv_nsec + offset_of(clock) % SECOND;
    now->tv_sec += offset_of(clock) / SECOND;
    if (nanos < 0) {
        nanos += SECOND;
        now->tv_sec -= 1;
    } else if (nanos >= SECOND) {
        nanos -= SECOND;
        now->tv_sec += 1;
    }
    now->tv_nsec = nanos;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    if (out != NULL) *out = precise.tv_sec;
    return precise.tv_sec;
}
