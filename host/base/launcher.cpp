#include "host/base/launcher.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace cbk {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

/// The children of a process.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> out;
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", parent));
  for (pid_t child = 0; children >> child;) out.push_back(child);
  return out;
}

constexpr std::array<std::string_view, 4> launchers = {"mpirun", "orterun", "mpiexec", "prterun"};
constexpr std::array<std::string_view, 4> daemons = {"orted", "prted", "hydra_pmi_proxy", "slurmstepd"};

/// Whether the parent has one of these names.
bool parent_is_one_of(std::span<const std::string_view> names) {
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", ::getppid())), name);
  return std::ranges::find(names, name) != names.end();
}

/// Whether the reader of the launcher's output is slow: nothing can be written to it.
bool waits_for_reader(pid_t launcher) {
  return std::ranges::any_of(std::array{1, 2}, [launcher](int descriptor) {
    const std::string path = fmt::format("/proc/{}/fd/{}", launcher, descriptor);
    const FileDescriptor output(
        ::open(path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    pollfd asked{output.get(), POLLOUT, 0};
    return output.get() >= 0 && ::poll(&asked, 1, 0) == 0;
  });
}

/// Ends the launcher, as by Ctrl-C and Ctrl-C again, if it has not ended `wait` after this rank. After a
/// clean end that is the time since a slow reader took its output.
void end_launcher(pid_t launcher, seconds wait, bool is_clean) {
  const auto is_gone = [launcher] { return ::kill(launcher, 0) != 0; };
  const auto is_gone_within = [&](seconds time, bool may_wait) {
    for (auto end = Clock::now() + time; Clock::now() < end; ::usleep(50'000)) {
      if (is_gone()) return true;
      if (may_wait && waits_for_reader(launcher)) end = Clock::now() + time;
    }
    return is_gone();
  };
  if (is_gone_within(wait, is_clean)) return;
  const std::vector<pid_t> ranks = children_of(launcher);
  for (const int signal : {SIGTERM, SIGTERM, SIGKILL}) {
    ::kill(launcher, signal);
    if (is_gone_within(seconds(3), false)) break;
  }
  for (const pid_t stopped : ranks) ::kill(stopped, SIGCONT);  // it gets its signals then
}

}  // namespace

bool is_below_launcher() {
  return parent_is_one_of(launchers) || parent_is_one_of(daemons);
}

FileDescriptor guard_launcher(seconds wait) {
  std::array<int, 2> ends{};
  const pid_t launcher = ::getppid();
  if (!parent_is_one_of(launchers) || ::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  FileDescriptor ours(ends[1]), its(ends[0]);
  if (::fork() != 0) return ours;
  ::setsid();
  ::prctl(PR_SET_NAME, "cbk-guard");
  (void)::dup2(its.get(), 0);
  ::close_range(1, ~0U, 0);
  if (::chdir("/") != 0) ::_exit(1);
  char byte = 0;
  const bool is_clean = retried([&] { return ::read(0, &byte, 1); }) == 1;
  end_launcher(launcher, wait, is_clean);
  ::_exit(0);
}

}  // namespace cbk
