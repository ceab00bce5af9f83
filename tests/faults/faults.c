/* Faults of disk and clock for processes that preload this library (LD_PRELOAD).
 *
 * FAULT_RULES names a file of rules, one a line; it may appear, change and go while the processes run. Without the file
 * everything works as always.
 *
 *     sync  EIO     /broker-0/            fsync and fdatasync of files whose path holds the text fail
 *     sync  300     /broker-0/            they take 300 ms longer
 *     write ENOSPC  /broker-0/t-0/        writes to such files come to an end in the middle, then fail
 *     write EIO     /broker-0/            writes to such files fail
 *     clock -3600   broker-1              the wall clock of the process of this name goes wrong, by so many seconds
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

/* The argument of the first rule for `call` whose text occurs in `subject` (or equals it, for `clock`). */
static int rule(const char *call, const char *subject, char *argument) {
    static const char *path;
    char line[512], called[16], text[400];
    int found = 0, saved = errno;
    if (!path && !(path = getenv("FAULT_RULES"))) path = "";
    FILE *rules = *path ? fopen(path, "re") : NULL;
    while (rules && !found && fgets(line, sizeof line, rules))
        found = sscanf(line, "%15s %31s %399s", called, argument, text) == 3 && !strcmp(called, call) &&
                (*call == 'c' ? !strcmp(subject, text) : strstr(subject, text) != NULL);
    if (rules) fclose(rules);
    errno = saved;
    return found;
}

static int armed(void) {
    const char *path = getenv("FAULT_RULES");
    return path && access(path, F_OK) == 0;
}

/* The rule for a descriptor; never for pipes, sockets and terminals. */
static int rule_of(const char *call, int fd, char *argument) {
    char link[40], path[400];
    struct stat status;
    int saved = errno, found = 0;
    if (armed() && fstat(fd, &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(link, path, sizeof path - 1);
        if (size > 0) {
            path[size] = 0;
            found = rule(call, path, argument);
        }
    }
    errno = saved;
    return found;
}

static int fails(const char *argument) {
    if (!strcmp(argument, "EIO")) return EIO;
    if (!strcmp(argument, "ENOSPC")) return ENOSPC;
    long ms = atol(argument);
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
    return 0;
}

static int sync_fails(int fd) {
    char argument[32];
    return rule_of("sync", fd, argument) && (errno = fails(argument));
}

int fsync(int fd) { return sync_fails(fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return sync_fails(fd) ? -1 : REAL(fdatasync)(fd); }

/* How much of a write is let through: all (-1), nothing (0, errno set), or the first half, as a disk that fills up does. */
static ssize_t allowed(int fd, size_t size) {
    char argument[32];
    int error;
    if (!rule_of("write", fd, argument) || !(error = fails(argument))) return -1;
    if (error == ENOSPC && size > 1) return size / 2;
    errno = error;
    return 0;
}

static size_t length(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

/* The first `size` bytes of the parts, for one plain write. */
static char *head(const struct iovec *parts, int count, size_t size) {
    char *data = malloc(size);
    size_t filled = 0;
    for (int i = 0; data && i < count && filled < size; i++) {
        size_t taken = parts[i].iov_len < size - filled ? parts[i].iov_len : size - filled;
        memcpy(data + filled, parts[i].iov_base, taken);
        filled += taken;
    }
    return data;
}

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t most = allowed(fd, size);
    return most == 0 ? -1 : REAL(write)(fd, data, most < 0 ? size : (size_t)most);
}

#define PWRITE(name, type)                                                                 \
    ssize_t name(int fd, const void *data, size_t size, type position) {                   \
        ssize_t most = allowed(fd, size);                                                  \
        return most == 0 ? -1 : REAL(name)(fd, data, most < 0 ? size : (size_t)most, position); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

static ssize_t write_head(int fd, const struct iovec *parts, int count, size_t most, off_t position) {
    char *data = head(parts, count, most);
    ssize_t written = data ? REAL(pwrite)(fd, data, most, position) : -1;
    free(data);
    return written;
}

#define PWRITEV(name, type)                                                                \
    ssize_t name(int fd, const struct iovec *parts, int count, type position) {            \
        ssize_t most = allowed(fd, length(parts, count));                                  \
        if (most == 0) return -1;                                                          \
        return most < 0 ? REAL(name)(fd, parts, count, position) : write_head(fd, parts, count, most, position); \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define PWRITEV2(name, type)                                                               \
    ssize_t name(int fd, const struct iovec *parts, int count, type position, int flags) { \
        ssize_t most = allowed(fd, length(parts, count));                                  \
        if (most == 0) return -1;                                                          \
        return most < 0 ? REAL(name)(fd, parts, count, position, flags) : write_head(fd, parts, count, most, position); \
    }
PWRITEV2(pwritev2, off_t)
PWRITEV2(pwritev64v2, off64_t)

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real_clock;
    char name[17] = "", argument[32];
    if (!real_clock) real_clock = REAL(clock_gettime);
    int result = real_clock(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && armed()) {
        prctl(PR_GET_NAME, name);
        if (rule("clock", name, argument)) now->tv_sec += atol(argument);
    }
    return result;
}

/* OpenSSL compares the times of certificates with this. */
time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
