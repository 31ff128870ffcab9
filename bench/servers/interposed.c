/* Count what a process asks of libc: memory, copies, wake-ups (bench/servers/interposed.py).

   LD_PRELOAD puts these functions before those of libc. The counters are the words of a
   file, COUNTED_FOLDER/PID, which another process reads between two requests.

   Python must run with PYTHONMALLOC=malloc, or most of its objects need no malloc.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <unistd.h>

/* In the order of `Counts` in counted.py. */
enum { BLOCKS, LARGE_BLOCKS, COPIED, WAITS, SIGNALS, WORDS };

#define LARGE (64 << 10) /* bytes of a large block */
#define BULK (4 << 10)   /* bytes of a copy that counts: smaller ones move no tensors */
#define SIGNAL 8         /* an eventfd takes and gives eight bytes at a time */

static uint64_t before[WORDS];
static uint64_t *counts = before;

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__memcpy_chk(void *, const void *, size_t, size_t);
extern void *__memmove_chk(void *, const void *, size_t, size_t);

static void add(int word, uint64_t more) {
    __atomic_fetch_add(&counts[word], more, __ATOMIC_RELAXED);
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("COUNTED_FOLDER");
    char path[4096];
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (ftruncate(file, sizeof before) == 0) {
        void *words = mmap(NULL, sizeof before, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (words != MAP_FAILED) counts = words;
    }
    close(file);
}

static void allocated(size_t size) {
    add(BLOCKS, 1);
    if (size >= LARGE) add(LARGE_BLOCKS, 1);
}

void *malloc(size_t size) {
    allocated(size);
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size) {
    allocated(number * size); /* an overflow fails in libc */
    return __libc_calloc(number, size);
}

void *realloc(void *old, size_t size) {
    allocated(size);
    return __libc_realloc(old, size);
}

void *memcpy(void *restrict to, const void *restrict from, size_t size) {
    if (size >= BULK) add(COPIED, size);
    return __memcpy_chk(to, from, size, SIZE_MAX);
}

void *memmove(void *to, const void *from, size_t size) {
    if (size >= BULK) add(COPIED, size);
    return __memmove_chk(to, from, size, SIZE_MAX);
}

/* Find the function of libc that the calling one stands before. */
#define NEXT(returned, ...)                  \
    static returned (*next)(__VA_ARGS__);    \
    if (!next) next = (returned (*)(__VA_ARGS__))dlsym(RTLD_NEXT, __func__)

static int waited(int ready, int may_sleep) {
    if (ready > 0 && may_sleep) add(WAITS, 1);
    return ready;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout) {
    NEXT(int, int, struct epoll_event *, int, int);
    return waited(next(fd, events, most, timeout), timeout);
}

int epoll_pwait(int fd, struct epoll_event *events, int most, int timeout,
                const sigset_t *mask) {
    NEXT(int, int, struct epoll_event *, int, int, const sigset_t *);
    return waited(next(fd, events, most, timeout, mask), timeout);
}

int select(int most, fd_set *restrict in, fd_set *restrict out, fd_set *restrict odd,
           struct timeval *restrict left) {
    NEXT(int, int, fd_set *, fd_set *, fd_set *, struct timeval *);
    int may_sleep = !left || left->tv_sec || left->tv_usec;
    return waited(next(most, in, out, odd, left), may_sleep);
}

ssize_t read(int fd, void *to, size_t size) {
    NEXT(ssize_t, int, void *, size_t);
    ssize_t got = next(fd, to, size);
    if (got == SIGNAL) add(SIGNALS, 1);
    return got;
}

int eventfd_read(int fd, eventfd_t *value) {
    return read(fd, value, sizeof *value) == sizeof *value ? 0 : -1;
}
