#include "host/app/confine.hpp"

#include <fcntl.h>
#include <linux/landlock.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "host/base/stale.hpp"

namespace cbk::app {
namespace {

/// landlock_ruleset_attr and the rights of newer kernels than the headers of Debian 12 know.
/// https://docs.kernel.org/userspace-api/landlock.html
struct Ruleset {
  uint64_t of_files;
  uint64_t of_networks;
  uint64_t scoped;
};
constexpr uint64_t right_to_truncate = 1ULL << 14;
constexpr uint64_t scope_of_abstract_sockets = 1ULL << 0;
constexpr uint64_t scope_of_signals = 1ULL << 1;

constexpr uint64_t right_to_write = LANDLOCK_ACCESS_FS_WRITE_FILE;
constexpr uint64_t right_to_remove_folders = LANDLOCK_ACCESS_FS_REMOVE_DIR;
constexpr uint64_t rights_to_change =
    right_to_write | right_to_remove_folders | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
    LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |
    LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM |
    LANDLOCK_ACCESS_FS_REFER;

constexpr long abi_with_renames = 2;  // between folders, which outputs need
constexpr long abi_with_truncate = 3;
constexpr long abi_with_scopes = 6;

[[noreturn]] void refuse(int error_number) {
  fail_errno("confine", "the sandboxed converter", error_number);
}

void check(long result) {
  if (result < 0) refuse(errno);
}

/// 0 without Landlock.
long landlock_abi() {
  return std::max(0L, ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION));
}

void allow(const FileDescriptor& ruleset, const fs::path& path, uint64_t rights) {
  const FileDescriptor fd(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (fd.get() < 0) return;  // a folder that cannot be made: writing into it fails with a better message
  const landlock_path_beneath_attr rule{.allowed_access = rights, .parent_fd = fd.get()};
  check(::syscall(SYS_landlock_add_rule, ruleset.get(), LANDLOCK_RULE_PATH_BENEATH, &rule, 0));
}

/// Makes a folder with its parents; the folder above the first that was missing, or an empty path.
fs::path made_below(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> missing;
  fs::path at = folder;
  for (; !at.empty() && !fs::exists(fs::symlink_status(at, error)); at = at.parent_path())
    missing.push_back(at);
  if (missing.empty()) return {};
  for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
    if (fs::create_directory(*path, error)) remember_folder(*path);
  }
  return at;
}

/// Whether the kernel can.
bool confine_files(const std::vector<fs::path>& folders) {
  const long abi = landlock_abi();
  if (abi < abi_with_renames) return false;
  const uint64_t rights = rights_to_change | (abi >= abi_with_truncate ? right_to_truncate : 0);
  const uint64_t to_file = rights & (right_to_write | right_to_truncate);
  const Ruleset attributes{rights, 0,
                           abi >= abi_with_scopes ? scope_of_abstract_sockets | scope_of_signals : 0};
  const FileDescriptor ruleset(
      static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0)));
  check(ruleset.get());
  for (const char* device : {"/dev/null", "/dev/tty"}) allow(ruleset, device, to_file);
  for (const fs::path& folder : folders) {
    const fs::path path = fs::absolute(folder).lexically_normal();
    const fs::path above = made_below(path);
    std::error_code error;
    if (!above.empty()) allow(ruleset, above, right_to_remove_folders);  // empty ones, at the end
    if (fs::is_directory(path, error)) allow(ruleset, path, rights);
  }
  check(::syscall(SYS_landlock_restrict_self, ruleset.get(), 0));
  return true;
}

/// No sockets, no input typed into the terminal.
void confine_calls() {
  const std::unique_ptr<void, decltype(&seccomp_release)> filter(seccomp_init(SCMP_ACT_ALLOW),
                                                                 seccomp_release);
  const auto forbid = [&](int call, auto... arguments) {
    const int result =
        seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(EACCES), call, sizeof...(arguments), arguments...);
    if (result < 0) refuse(-result);
  };
  if (filter == nullptr) refuse(ENOMEM);
  forbid(SCMP_SYS(socket));
  forbid(SCMP_SYS(io_uring_setup));
  forbid(SCMP_SYS(ioctl), SCMP_A1_32(SCMP_CMP_EQ, TIOCSTI));
  const int result = seccomp_load(filter.get());
  if (result < 0) refuse(-result);
}

}  // namespace

bool confine(const std::vector<fs::path>& folders) {
  check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  const bool are_files_confined = confine_files(folders);
  confine_calls();
  return are_files_confined;
}

}  // namespace cbk::app
