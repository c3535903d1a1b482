#include "host/app/limits.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "bindings/runtime.hpp"
#include "host/app/confine.hpp"
#include "host/app/report.hpp"
#include "host/app/signals.hpp"
#include "host/base/file.hpp"
#include "host/base/parallel.hpp"
#include "host/base/stale.hpp"

namespace cbk::app {
namespace {

constexpr int64_t second = 1'000'000'000;  // in nanoseconds
constexpr int64_t most_time = 60 * second;
/// In addition to the memory that the program has when it begins to read the file, with all its threads.
constexpr uint64_t most_memory = 64ULL << 20;
/// The memory for a checkpoint's content: at most this many times its size.
constexpr uint64_t memory_of_byte = 4;
constexpr uint64_t most_memory_of_files = 192ULL << 20;
/// A thread's stack, and what it keeps for itself.
constexpr uint64_t memory_of_thread = 10ULL << 20;
constexpr uint64_t memory_of_blocks = 96ULL << 20;  // by default (StreamingOptions)
/// The time that the program gets for reading and writing checkpoints: a quarter of the speed of the slowest
/// work on each byte.
constexpr int64_t time_of_byte = second / 20'000'000;

/// CBK_SANDBOX_SECONDS may reduce it.
int64_t allowed_time() {
  const char* text = std::getenv("CBK_SANDBOX_SECONDS");
  const long seconds = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  return seconds > 0 ? std::min<int64_t>(seconds, most_time / second) * second : most_time;
}

struct Limits {
  bool is_on = false;
  bool has_limit = false;  // of memory
  std::string too_slow;
  std::string too_large;
  int64_t time = most_time;
  uint64_t memory_before = 0;
  uint64_t mapped_before = 0;
  std::atomic<uint64_t> granted{0};  // memory for writing
  lua_Alloc allocate = nullptr;      // Lua's own
  void* allocator = nullptr;
  // Time of the sandboxed code itself, which has a minute regardless of files. It never waits.
  std::atomic<int64_t> used{0};
  std::atomic<int64_t> entered{-1};  // -1: it does not run
};

/// Never destroyed: the thread uses it until the end.
Limits& limits() {
  static auto* all = new Limits;
  return *all;
}

int64_t nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * second + now.tv_nsec;
}

/// Wall-clock time.
int64_t time_now() {
  return nanoseconds(CLOCK_MONOTONIC);
}

/// Processor time of all threads.
int64_t processor_time() {
  return nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
}

/// Bytes that system calls read and wrote; 0 if the kernel does not count them.
int64_t bytes_moved() {
  const FileDescriptor fd(::open("/proc/self/io", O_RDONLY | O_CLOEXEC));
  char text[256] = "";
  if (fd.get() < 0 || ::read(fd.get(), text, sizeof text - 1) <= 0) return 0;
  long long read = 0;
  long long written = 0;
  if (std::sscanf(text, "rchar: %lld wchar: %lld", &read, &written) != 2) return 0;
  return read + written;
}

/// Ends the program. An error is not enough: the sandboxed code could catch it.
[[noreturn]] void end_at_limit(const std::string& message) {
  static std::atomic<bool> ends{false};
  if (ends.exchange(true)) {
    for (;;) ::pause();  // another thread is about to
  }
  std::set_new_handler(nullptr);
  rlimit memory{};
  ::getrlimit(RLIMIT_DATA, &memory);
  memory.rlim_cur = memory.rlim_max;
  ::setrlimit(RLIMIT_DATA, &memory);
  remove_temporaries();
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, message.data(), message.size());
  remove_empty_folders();
  ::_exit(exit_failure);
}

/// Private memory of the program, as RLIMIT_DATA counts it.
uint64_t private_memory() {
  const FileDescriptor fd(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  char text[256] = "";
  unsigned long long pages = 0;
  if (fd.get() < 0 || ::read(fd.get(), text, sizeof text - 1) <= 0 ||
      std::sscanf(text, "%*u %*u %*u %*u %*u %llu", &pages) != 1)
    fail(Errc::io, "cannot limit the memory of the sandboxed converter: /proc/self/statm is missing");
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// Raises the limit to the memory that is allowed by now; false if that is no more than before.
bool raise_limit() noexcept {
  const Limits& own = limits();
  const uint64_t of_files =
      std::min(memory_of_byte * (mapped_bytes() - own.mapped_before), most_memory_of_files);
  rlimit memory{};
  if (::getrlimit(RLIMIT_DATA, &memory) != 0) return false;
  const rlim_t most =
      std::min<rlim_t>(own.memory_before + most_memory + of_files + own.granted, memory.rlim_max);
  if (own.has_limit && most <= memory.rlim_cur) return false;
  memory.rlim_cur = most;
  return ::setrlimit(RLIMIT_DATA, &memory) == 0;
}

/// Called by operator new, which then tries again.
void find_memory() {
  if (!raise_limit()) end_at_limit(limits().too_large);
}

void* allocate_for_lua(void* allocator, void* block, size_t old_size, size_t size) {
  for (;;) {
    void* made = limits().allocate(allocator, block, old_size, size);
    if (made != nullptr || size == 0) return made;
    find_memory();
  }
}

[[noreturn]] void watch_time() {
  const int64_t begin = processor_time();
  int64_t moved = bytes_moved();
  int64_t granted = 0;
  for (;;) {
    const timespec pause{0, second / 20};
    nanosleep(&pause, nullptr);
    // Read this first: a callback that ends in between then counts twice, not never.
    const int64_t entered = limits().entered;
    const int64_t in_sandbox = limits().used + (entered < 0 ? 0 : time_now() - entered);
    const int64_t moved_now = bytes_moved();
    if (entered < 0) granted += (moved_now - moved) * time_of_byte;
    moved = moved_now;
    if (in_sandbox > limits().time || processor_time() - begin > limits().time + granted)
      end_at_limit(limits().too_slow);
  }
}

void limit_memory() {
  Limits& own = limits();
  parallel_for(2, [](int64_t) {});  // the stacks of the threads count as they are
  own.memory_before = private_memory();
  own.mapped_before = mapped_bytes();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their shadow counts as data
  if (!raise_limit()) fail_errno("limit the memory of", "the sandboxed converter");
  own.has_limit = true;
#endif
  std::set_new_handler(find_memory);
}

void start_watching() {
  sigset_t all;
  sigset_t old;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &old);
  std::thread(watch_time).detach();
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

/// limits.start(file): until the end of the program. The message about a reached limit names `file`.
int start(lua_State* L) {
  Limits& own = limits();
  if (own.is_on) return 0;
  own.is_on = true;
  const auto message = [&](std::string_view what) {
    return error_text(
        "converter",
        {.problem = fmt::format("cannot finish with the sandboxed converter {}: it takes more than {}",
                                quote(lua::check_string(L, 1)), what),
         .file = std::string(lua::check_string(L, 1)),
         .advice =
             "if you trust the file, pass --no-sandbox to `cbk rules`, or leave out --sandbox elsewhere"});
  };
  own.time = allowed_time();
  own.too_slow = message(fmt::format("{} second{}", own.time / second, own.time == second ? "" : "s"));
  own.too_large = message(fmt::format("{} MiB of memory", most_memory >> 20));
  own.allocate = lua_getallocf(L, &own.allocator);
  lua_setallocf(L, allocate_for_lua, own.allocator);
  start_watching();
  limit_memory();
  return 0;
}

/// limits.write(memory): from now on outputs may be written, with this memory for blocks (nil: the default).
int grant_writing(lua_State* L) {
  const auto memory = static_cast<uint64_t>(lua::opt_integer(L, 1, memory_of_blocks, 0));
  if (limits().is_on) limits().granted = memory + static_cast<uint64_t>(thread_count()) * memory_of_thread;
  return 0;
}

/// limits.confine(folders): from now on, files can be written in these folders alone. False if the kernel
/// cannot do that (see `confine`).
int confine_writing(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  std::vector<fs::path> folders;
  for (size_t i = 1; i <= lua_objlen(L, 1); ++i) {
    lua_rawgeti(L, 1, static_cast<int>(i));
    folders.emplace_back(lua::check_string(L, -1));
    lua_pop(L, 1);
  }
  const bool are_files_confined = confine(folders);
  restart_signal_thread();
  lua_pushboolean(L, are_files_confined ? 1 : 0);
  return 1;
}

/// limits.enter(): sandboxed code begins to run.
int enter(lua_State* /*L*/) {
  limits().entered = time_now();
  return 0;
}

/// limits.leave(): it has ended.
int leave_sandbox(lua_State* /*L*/) {
  const int64_t entered = limits().entered;
  if (entered >= 0) limits().used += time_now() - entered;
  limits().entered = -1;
  return 0;
}

}  // namespace

int open_limits_module(lua_State* L) {
  static const luaL_Reg functions[] = {
      {"start", lua::guarded<start>},         {"enter", lua::guarded<enter>},
      {"leave", lua::guarded<leave_sandbox>}, {"confine", lua::guarded<confine_writing>},
      {"write", lua::guarded<grant_writing>}, {nullptr, nullptr}};
  lua_newtable(L);
  lua::set_functions(L, functions, "limits.");
  return 1;
}

}  // namespace cbk::app
