// Preloaded into cbk by faults_interop.py: counts the calls that touch files below the folders in FAULT_FOLDERS (A:B), and lets
// one of them go wrong. FAULT_LOG: a file that gets a line "NAME PATH" for each call. FAULT_AT: which call, counted from 1; FAULT_KIND:
// an error number, "short" (half of what was asked), "kill" (before the call), or "touch" (FAULT_FILE has a new time). FAULT_WITHOUT: what
// the system lacks: "tmpfile", "proc", "flags" (of renameat2). FAULT_TYPE: the type of the file system that all files seem to be on.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { fine, failed, cut };
static atomic_long calls;

static int lacks(const char* what) {
  const char* without = getenv("FAULT_WITHOUT");
  return without != NULL && strstr(without, what) != NULL;
}

static int is_below(const char* path) {
  const char* folders = getenv("FAULT_FOLDERS");
  while (folders != NULL && *folders != '\0') {
    size_t length = strcspn(folders, ":");
    if (strncmp(path, folders, length) == 0 && (path[length] == '/' || path[length] == '\0')) return 1;
    folders += length + (folders[length] == ':');
  }
  return 0;
}

// What becomes of this call; errno is set for `failed`.
static int fault_at(const char* name, const char* path) {
  if (!is_below(path)) return fine;
  long number = ++calls;
  const char* log = getenv("FAULT_LOG");
  if (log != NULL) {
    char line[8192];
    int length = snprintf(line, sizeof line, "%s %s\n", name, path);
    int fd = NEXT(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0 && NEXT(write)(fd, line, (size_t)length) != length) abort();
    NEXT(close)(fd);
  }
  const char* at = getenv("FAULT_AT");
  if (at == NULL || atol(at) != number) return fine;
  const char* kind = getenv("FAULT_KIND");
  if (strcmp(kind, "kill") == 0) kill(getpid(), SIGKILL);
  if (strcmp(kind, "short") == 0) return cut;
  if (strcmp(kind, "touch") == 0) return utimensat(AT_FDCWD, getenv("FAULT_FILE"), NULL, 0) == 0 ? fine : failed;
  errno = atoi(kind);
  return failed;
}

static int path_fault(const char* name, int folder, const char* path) {
  char full[8192];
  if (path[0] == '/' || folder == AT_FDCWD) return fault_at(name, path);
  snprintf(full, sizeof full, "/proc/self/fd/%d", folder);
  char base[4096];
  ssize_t length = readlink(full, base, sizeof base - 1);
  if (length < 0) return fine;
  base[length] = '\0';
  snprintf(full, sizeof full, "%s/%s", base, path);
  return fault_at(name, full);
}

static int fd_fault(const char* name, int fd) {
  char link[64];
  char path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return fine;
  path[length] = '\0';
  return fault_at(name, path);
}

static int open_at(int folder, const char* path, int flags, mode_t mode) {
  if ((flags & O_TMPFILE) == O_TMPFILE && lacks("tmpfile")) {
    errno = EOPNOTSUPP;
    return -1;
  }
  if (path_fault((flags & O_TMPFILE) == O_TMPFILE ? "opentmp" : "open", folder, path) == failed) return -1;
  return NEXT(openat)(folder, path, flags, mode);
}

#define MODE_AFTER(argument) ({ va_list more; va_start(more, argument); mode_t mode = va_arg(more, mode_t); va_end(more); mode; })
int open(const char* path, int flags, ...) { return open_at(AT_FDCWD, path, flags, MODE_AFTER(flags)); }
int openat(int folder, const char* path, int flags, ...) { return open_at(folder, path, flags, MODE_AFTER(flags)); }

int access(const char* path, int mode) {
  if (lacks("proc") && strncmp(path, "/proc/", 6) == 0) {
    errno = ENOENT;
    return -1;
  }
  return NEXT(access)(path, mode);
}

#define TRANSFER(name, arguments, ...)                       \
  ssize_t name arguments {                                   \
    int fault = fd_fault(#name, fd);                         \
    if (fault == failed) return -1;                          \
    if (fault == cut && count > 1) count /= 2;               \
    return NEXT(name)(__VA_ARGS__);                          \
  }
TRANSFER(read, (int fd, void* bytes, size_t count), fd, bytes, count)
TRANSFER(write, (int fd, const void* bytes, size_t count), fd, bytes, count)
TRANSFER(pread, (int fd, void* bytes, size_t count, off_t offset), fd, bytes, count, offset)
TRANSFER(pwrite, (int fd, const void* bytes, size_t count, off_t offset), fd, bytes, count, offset)
TRANSFER(copy_file_range, (int from, off64_t* in, int fd, off64_t* out, size_t count, unsigned flags), from, in, fd, out, count, flags)

#define FD_CALL(name, arguments, ...)            \
  int name arguments {                           \
    if (fd_fault(#name, fd) == failed) return -1; \
    return NEXT(name)(__VA_ARGS__);              \
  }
FD_CALL(ftruncate, (int fd, off_t size), fd, size)
FD_CALL(fsync, (int fd), fd)
FD_CALL(sync_file_range, (int fd, off64_t offset, off64_t count, unsigned flags), fd, offset, count, flags)
FD_CALL(fchmod, (int fd, mode_t mode), fd, mode)
FD_CALL(flock, (int fd, int how), fd, how)

int posix_fallocate(int fd, off_t offset, off_t size) {
  return fd_fault("posix_fallocate", fd) == failed ? errno : NEXT(posix_fallocate)(fd, offset, size);
}

// The same calls under other names, where off_t has 64 bits.
_Static_assert(sizeof(off_t) == sizeof(off64_t), "a system of 64 bits");
#define ALIAS(name) __attribute__((alias(#name)))
int open64(const char* path, int flags, ...) ALIAS(open);
int openat64(int folder, const char* path, int flags, ...) ALIAS(openat);
ssize_t pread64(int fd, void* bytes, size_t count, off64_t offset) ALIAS(pread);
ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t offset) ALIAS(pwrite);
int ftruncate64(int fd, off64_t size) ALIAS(ftruncate);
int posix_fallocate64(int fd, off64_t offset, off64_t size) ALIAS(posix_fallocate);

void* mmap(void* where, size_t size, int protection, int flags, int fd, off_t offset) {
  if (fd >= 0 && fd_fault("mmap", fd) == failed) return MAP_FAILED;
  return NEXT(mmap)(where, size, protection, flags, fd, offset);
}

#define PATH_CALL(name, arguments, folder, path, ...)       \
  int name arguments {                                      \
    if (path_fault(#name, folder, path) == failed) return -1; \
    return NEXT(name)(__VA_ARGS__);                         \
  }
PATH_CALL(mkdir, (const char* path, mode_t mode), AT_FDCWD, path, path, mode)
PATH_CALL(rmdir, (const char* path), AT_FDCWD, path, path)
PATH_CALL(unlink, (const char* path), AT_FDCWD, path, path)
PATH_CALL(remove, (const char* path), AT_FDCWD, path, path)
PATH_CALL(unlinkat, (int folder, const char* path, int flags), folder, path, folder, path, flags)
PATH_CALL(rename, (const char* from, const char* to), AT_FDCWD, to, from, to)
PATH_CALL(linkat, (int folder, const char* from, int other, const char* to, int flags), other, to, folder, from, other, to, flags)

int renameat2(int folder, const char* from, int other, const char* to, unsigned flags) {
  if (flags != 0 && lacks("flags")) {
    errno = EINVAL;
    return -1;
  }
  if (path_fault("renameat2", other, to) == failed) return -1;
  return NEXT(renameat2)(folder, from, other, to, flags);
}

int fstatfs(int fd, struct statfs* found) {
  int result = NEXT(fstatfs)(fd, found);
  const char* type = getenv("FAULT_TYPE");
  if (result == 0 && type != NULL) found->f_type = strtol(type, NULL, 0);
  return result;
}
