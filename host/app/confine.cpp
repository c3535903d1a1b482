#include "host/app/confine.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/landlock.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "host/base/reversed.hpp"

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
constexpr uint64_t right_to_control_devices = 1ULL << 15;
constexpr uint64_t scope_of_abstract_sockets = 1ULL << 0;
constexpr uint64_t scope_of_signals = 1ULL << 1;

constexpr uint64_t right_to_write = LANDLOCK_ACCESS_FS_WRITE_FILE;
/// What a checkpoint needs, in the output's folder.
constexpr uint64_t rights_there = right_to_write | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                                  LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR |
                                  LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REFER;
/// What is refused elsewhere, and these kinds of files everywhere.
constexpr uint64_t rights_handled = rights_there | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                                    LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SOCK |
                                    LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_SYM;

constexpr long abi_with_renames = 2;  // between folders, which outputs need
constexpr long abi_with_truncate = 3;
constexpr long abi_with_devices = 5;
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

/// Makes a folder and what is missing above it; the new ones are added to `made`.
void make_folder(const fs::path& folder, std::vector<fs::path>& made) {
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path at = folder; at.has_relative_path() && !fs::exists(at, error); at = at.parent_path())
    missing.push_back(at);
  for (const fs::path& path : Reversed(missing)) {
    if (fs::create_directory(path, error)) made.push_back(path);
  }
}

/// A process that outlives the program, however it ends, and then removes the new folders that are empty. It
/// is not confined, and takes no orders.
struct Keeper {
  pid_t process = 0;
  FileDescriptor alive;  // the end of a pipe that closes with the program
};

// Null before there is one, and not made on first use: a signal may end the program at that moment.
Keeper* keeper = nullptr;

[[noreturn]] void keep(int end_of_program, const std::vector<fs::path>& made) {
  const auto all_but = static_cast<unsigned>(end_of_program);
  if (all_but > 0) ::syscall(SYS_close_range, 0, all_but - 1, 0);
  ::syscall(SYS_close_range, all_but + 1, ~0U, 0);
  ::setsid();  // no signal of the terminal
  char ignored = 0;
  while (::read(end_of_program, &ignored, 1) < 0 && errno == EINTR) {
  }
  for (const fs::path& path : Reversed(made)) ::rmdir(path.c_str());
  ::_exit(0);
}

void start_keeper(const std::vector<fs::path>& made) {
  if (made.empty()) return;
  int ends[2];
  check(::pipe2(ends, O_CLOEXEC));
  const FileDescriptor end_of_program(ends[0]);
  keeper = new Keeper{.alive = FileDescriptor(ends[1])};
  const pid_t process = ::fork();
  check(process);
  if (process == 0) keep(end_of_program.get(), made);
  keeper->process = process;
}

/// Whether the kernel can.
bool confine_files(const std::vector<fs::path>& folders) {
  const long abi = landlock_abi();
  if (abi < abi_with_renames) return false;
  const uint64_t more = abi >= abi_with_truncate ? right_to_truncate : 0;
  const uint64_t devices = abi >= abi_with_devices ? right_to_control_devices : 0;
  const Ruleset attributes{rights_handled | more | devices, 0,
                           abi >= abi_with_scopes ? scope_of_abstract_sockets | scope_of_signals : 0};
  const FileDescriptor ruleset(
      static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attributes, sizeof attributes, 0)));
  check(ruleset.get());
  for (const char* device : {"/dev/null", "/dev/tty"}) allow(ruleset, device, right_to_write | more);
  std::vector<fs::path> made;
  for (const fs::path& folder : folders) make_folder(fs::absolute(folder), made);
  start_keeper(made);
  std::error_code error;
  for (const fs::path& folder : folders) {
    if (fs::is_directory(folder, error)) allow(ruleset, folder, rights_there | more);
  }
  check(::syscall(SYS_landlock_restrict_self, ruleset.get(), 0));
  return true;
}

/// No network, no input typed into the terminal, no memory, messages and keys of other processes or that
/// outlive the program, no limits, priorities and traces of other processes, and nothing of the machine.
void confine_calls() {
  const std::unique_ptr<void, decltype(&seccomp_release)> filter(seccomp_init(SCMP_ACT_ALLOW),
                                                                 seccomp_release);
  const auto forbid = [&](int call, auto... arguments) {
    const int result =
        seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(EACCES), call, sizeof...(arguments), arguments...);
    if (result < 0) refuse(-result);
  };
  if (filter == nullptr) refuse(ENOMEM);
  constexpr uint64_t low_half = 0xffffffff;  // what the kernel reads of an int
  constexpr uint64_t type_of_socket = 0xf;   // without its flags
  for (const int call : {SCMP_SYS(socket),         SCMP_SYS(connect),
                         SCMP_SYS(io_uring_setup), SCMP_SYS(truncate),
                         SCMP_SYS(shmget),         SCMP_SYS(shmat),
                         SCMP_SYS(shmctl),         SCMP_SYS(msgget),
                         SCMP_SYS(msgsnd),         SCMP_SYS(msgrcv),
                         SCMP_SYS(msgctl),         SCMP_SYS(semget),
                         SCMP_SYS(semop),          SCMP_SYS(semtimedop),
                         SCMP_SYS(semctl),         SCMP_SYS(mq_open),
                         SCMP_SYS(mq_unlink),      SCMP_SYS(add_key),
                         SCMP_SYS(request_key),    SCMP_SYS(keyctl),
                         SCMP_SYS(ptrace),         SCMP_SYS(process_vm_writev),
                         SCMP_SYS(setpriority),    SCMP_SYS(bpf),
                         SCMP_SYS(userfaultfd),    SCMP_SYS(perf_event_open),
                         SCMP_SYS(unshare),        SCMP_SYS(setns),
                         SCMP_SYS(ioprio_set),     SCMP_SYS(sched_setscheduler),
                         SCMP_SYS(sched_setparam), SCMP_SYS(sched_setattr),
                         SCMP_SYS(fanotify_init)})
    forbid(call);
  // What only root can do, and a file that root converts must not.
  for (const int call : {SCMP_SYS(sethostname),   SCMP_SYS(setdomainname),   SCMP_SYS(reboot),
                         SCMP_SYS(init_module),   SCMP_SYS(finit_module),    SCMP_SYS(delete_module),
                         SCMP_SYS(kexec_load),    SCMP_SYS(kexec_file_load), SCMP_SYS(settimeofday),
                         SCMP_SYS(clock_settime), SCMP_SYS(clock_adjtime),   SCMP_SYS(adjtimex),
                         SCMP_SYS(swapon),        SCMP_SYS(swapoff),         SCMP_SYS(acct),
                         SCMP_SYS(mount),         SCMP_SYS(mount_setattr),   SCMP_SYS(move_mount),
                         SCMP_SYS(fsopen),        SCMP_SYS(fspick),          SCMP_SYS(fsmount),
                         SCMP_SYS(open_tree),     SCMP_SYS(quotactl_fd),     SCMP_SYS(umount2),
                         SCMP_SYS(pivot_root),    SCMP_SYS(chroot),          SCMP_SYS(open_by_handle_at),
                         SCMP_SYS(quotactl),      SCMP_SYS(syslog),          SCMP_SYS(vhangup),
                         SCMP_SYS(iopl),          SCMP_SYS(ioperm)})
    forbid(call);
  // Newer than Debian's headers; they have the same number on every machine.
  constexpr int open_tree_attr = 467;
  constexpr int file_setattr = 469;
  for (const int call : {open_tree_attr, file_setattr}) forbid(call);
  forbid(SCMP_SYS(sched_setaffinity), SCMP_A0(SCMP_CMP_NE, 0));
  for (const uint64_t space : {uint64_t{CLONE_NEWUSER}, uint64_t{CLONE_NEWNS}, uint64_t{CLONE_NEWNET},
                               uint64_t{CLONE_NEWPID}, uint64_t{CLONE_NEWIPC}, uint64_t{CLONE_NEWUTS}})
    forbid(SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, space, space));
  // The flags of clone3 are in memory, where no filter sees them. Without it, the C library takes clone.
  if (const int result = seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
      result < 0)
    refuse(-result);
  // Before Linux 6.2, Landlock lets a file be emptied that is opened for reading alone.
  constexpr uint64_t emptying = O_TRUNC | O_ACCMODE;
  for (const uint64_t flags : {uint64_t{O_TRUNC | O_RDONLY}, emptying}) {
    forbid(SCMP_SYS(open), SCMP_A1(SCMP_CMP_MASKED_EQ, emptying, flags));
    forbid(SCMP_SYS(openat), SCMP_A2(SCMP_CMP_MASKED_EQ, emptying, flags));
  }
  forbid(SCMP_SYS(openat2));  // its flags are in memory
  forbid(SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_NE, 0));
  for (const uint64_t type : {SOCK_DGRAM, SOCK_RAW})  // the second one makes datagrams of a local socket, too
    forbid(SCMP_SYS(socketpair), SCMP_A1(SCMP_CMP_MASKED_EQ, type_of_socket, type));
  forbid(SCMP_SYS(sendto), SCMP_A4(SCMP_CMP_NE, 0));  // with an address
  // Controls of a terminal that others use: typing into it, taking it over, resizing, stopping, locking and
  // hanging it up.
  constexpr uint64_t hang_up = 0x5437;  // TIOCVHANGUP, which headers for programs do not have
  // Controls of a whole file system: freezing, shutting down, removing a part.
  constexpr uint64_t shut_down = 0x8004587d;                                           // FS_IOC_SHUTDOWN
  constexpr uint64_t destroy_snapshot = 0x5000940f, destroy_snapshot_v2 = 0x5000943f;  // of Btrfs
  for (const uint64_t request :
       {uint64_t{TIOCSTI}, uint64_t{TIOCLINUX}, uint64_t{TIOCSCTTY}, uint64_t{TIOCSWINSZ}, uint64_t{TIOCCONS},
        uint64_t{TIOCSETD}, hang_up, uint64_t{TIOCEXCL}, uint64_t{TCXONC}, uint64_t{TIOCSLCKTRMIOS},
        uint64_t{TIOCSPGRP}, uint64_t{FIFREEZE}, uint64_t{FITHAW}, shut_down, destroy_snapshot,
        destroy_snapshot_v2})
    forbid(SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, low_half, request));
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

void remove_empty_folders() noexcept {
  if (keeper == nullptr || keeper->process == 0) return;
  keeper->alive = {};
  ::waitpid(keeper->process, nullptr, 0);
}

}  // namespace cbk::app
