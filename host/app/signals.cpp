#include "host/app/signals.hpp"

#include <semaphore.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

#include "bindings/runtime.hpp"
#include "host/app/confine.hpp"
#include "host/app/report.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/message.hpp"
#include "host/base/stale.hpp"

namespace cbk::app {
namespace {

lua_State* interruptible = nullptr;
pid_t owner = 0;
std::atomic<int> fatal_signal{0};
std::atomic<uintptr_t> fault_address{0};
std::atomic<bool> noticed{false};      // the program reacts to the first Ctrl-C
std::atomic<bool> is_replaced{false};  // the thread that waits for signals
sem_t wake;

void stop_lua(lua_State* L, lua_Debug* /*info*/) {
  noticed = true;
  // Only bytecode counts, so no C function (a message handler, a finalizer) is stopped. The hook stays, so
  // that a script that catches the error is stopped again.
  lua::push_failure(L, {.code = "interrupted", .parts = {.problem = "interrupted"}});
  lua_error(L);
}

void say(const std::string& line) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
}

/// "byte 4096 of model.mdl": what is mapped at `address`, from the kernel's list.
std::string mapped_file(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    unsigned long long offset = 0;
    int path = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %*s %llx %*s %*s %n", &begin, &end, &offset, &path) < 3)
      continue;
    if (address >= begin && address < end && path > 0)
      return fmt::format("byte {} of {}", address - begin + offset, line.substr(static_cast<size_t>(path)));
  }
  return "a file";
}

[[noreturn]] void end_program(int signal) {
  say(std::string(progress_eraser()));
  remove_temporaries();
  if (signal == SIGBUS) {
    const std::string file = mapped_file(fault_address.load());
    say("cbk: " +
        error_line("cannot read " + file + ": it became shorter while it was read (or its disk failed)") +
        "\n");
  }
  remove_empty_folders();
  _exit(signal == SIGINT ? exit_interrupted : signal == SIGBUS ? exit_failure : 128 + signal);
}

/// A thread for actions that a signal handler must not perform (locks, memory, removing folders). It waits
/// for them.
void watch_signals() {
  while (!is_replaced) {
    while (sem_wait(&wake) != 0 && errno == EINTR) {
    }
    if (is_replaced) return;
    if (const int signal = fatal_signal.load(); signal != 0) end_program(signal);
    // The first Ctrl-C. Hooks do not reach compiled Lua loops.
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    while (sem_timedwait(&wake, &until) != 0) {
      if (errno == EINTR) continue;
      if (!noticed) say("cbk: still busy; Ctrl-C again ends it at once\n");
      break;
    }
    if (const int signal = fatal_signal.load(); signal != 0) end_program(signal);
  }
}

/// Never destroyed: the program may end while it waits.
std::thread& signal_thread() {
  static auto* thread = new std::thread;
  return *thread;
}

void start_signal_thread() {
  sigset_t all;
  sigset_t old;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &old);
  signal_thread() = std::thread(watch_signals);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

void request_end(int signal) {
  if (::getpid() != owner) _exit(128 + signal);  // a forked helper: nobody waits for the semaphore there
  int expected = 0;
  if (fatal_signal.compare_exchange_strong(expected, signal)) sem_post(&wake);
  for (;;) ::pause();  // this thread must not go on
}

void on_interrupt(int signal) {
  if (interrupt_requested() || ::getpid() != owner) request_end(signal);
  request_interrupt();
  noticed = false;
  sem_post(&wake);
  lua_sethook(interruptible, stop_lua, LUA_MASKCOUNT, 1);
}

void on_termination(int signal) {
  if (ends_gently()) return on_interrupt(signal);
  request_end(signal);
}

void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  fault_address.store(reinterpret_cast<uintptr_t>(info->si_addr));
  request_end(signal);
}

void set_handler(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;  // no SA_RESTART: Ctrl-C also ends waiting for input
  sigaction(signal, &action, nullptr);
}

}  // namespace

void install_signal_handlers(lua_State* L) {
  interruptible = L;
  owner = ::getpid();
  sem_init(&wake, 0, 0);
  start_signal_thread();
  set_handler(SIGINT, on_interrupt);
  set_handler(SIGTERM, on_termination);
  set_handler(SIGHUP, request_end);
  set_handler(SIGPIPE, request_end);
  set_handler(SIGXFSZ, SIG_IGN);  // the write fails with a message instead
  struct sigaction bus {};
  bus.sa_sigaction = on_bus_error;
  bus.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &bus, nullptr);
}

void restart_signal_thread() {
  is_replaced = true;
  sem_post(&wake);
  signal_thread().join();
  is_replaced = false;
  start_signal_thread();
}

void reset_interrupt(lua_State* L) {
  noticed = true;
  lua_sethook(L, nullptr, 0, 0);
  clear_interrupt();
}

}  // namespace cbk::app
