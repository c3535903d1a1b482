#include "host/base/journal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "host/base/renames.hpp"
#include "host/base/stale.hpp"

namespace cbk {
namespace {

constexpr std::string_view magic{"cbk: files that get their names together\0", 41};
constexpr uint64_t largest = uint64_t{16} << 20;

/// 0 if nothing exists.
uint64_t inode_of(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

/// A step of a journal that was found.
struct Known {
  Journal::Step step;
  uint64_t inode = 0;  // of the new file
  [[nodiscard]] bool is_done() const { return inode_of(step.target) == inode; }
  [[nodiscard]] bool is_waiting() const { return inode_of(step.temporary) == inode; }
  [[nodiscard]] bool is_missing() const { return inode_of(step.target) == 0; }
};

/// Four fields for each step, each followed by a byte 0. A journal beside the files has their names only.
std::string encode(const Journal::Step& each, bool has_paths) {
  const auto text = [has_paths](const fs::path& path) {
    return (has_paths ? path : path.filename()).string();
  };
  std::string out = fmt::format("{}", inode_of(each.temporary)) + '\0';
  out += text(each.temporary) + '\0';
  out += text(each.target) + '\0';
  out += each.replaces ? "1" : "0";
  return out + '\0';
}

/// Removes the next field of `rest` and returns it; nothing at the end.
std::optional<std::string_view> next_field(std::string_view& rest) {
  const size_t end = rest.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view field = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return field;
}

/// The steps in a text, which names files in `folder`, or whole paths; nullopt if it is cut short.
std::optional<std::vector<Known>> steps_in(std::string_view rest, const fs::path& folder) {
  if (!rest.starts_with(magic)) return std::nullopt;
  rest.remove_prefix(magic.size());
  std::vector<Known> steps;
  while (!rest.empty()) {
    const auto inode = next_field(rest);
    const auto temporary = next_field(rest);
    const auto target = next_field(rest);
    const auto replaces = next_field(rest);
    if (!replaces || target->empty()) return std::nullopt;
    Known known{{folder / *temporary, folder / *target, *replaces == "1"}};
    std::from_chars(inode->data(), inode->data() + inode->size(), known.inode);
    if (known.inode == 0) return std::nullopt;
    steps.push_back(std::move(known));
  }
  return steps;
}

/// The steps of the journal at `path`. Empty if the file is no journal, if another user wrote it, who would
/// choose what becomes of our files, or if it names files that no commit would.
std::vector<Known> read_journal(const fs::path& path, int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) > largest)
    return {};
  if (info.st_uid != ::geteuid()) return {};
  std::string text(static_cast<size_t>(info.st_size), '\0');
  if (retried([&] { return ::pread(fd, text.data(), text.size(), 0); }) != info.st_size) return {};
  const fs::path folder = path.parent_path();
  const auto steps = steps_in(text, folder);
  const auto is_beside = [&](const Known& known) {
    return known.step.target.parent_path() == folder &&
           is_temporary_of(known.step.temporary, known.step.target);
  };
  if (!steps || !std::ranges::all_of(*steps, is_beside)) return {};
  return *steps;
}

/// Continues like Transaction::commit: old files are set aside, the first of them last; then the new ones get
/// their names.
void finish(const std::vector<Known>& steps) {
  Renames renames;
  const auto replaces = [](const Known& known) { return known.step.replaces; };
  const auto first = std::ranges::find_if(steps, replaces);
  for (auto known = steps.end(); known != steps.begin();) {
    --known;
    if (known != first && replaces(*known) && !known->is_done() && !known->is_missing())
      renames.set_aside(known->step.target);
  }
  for (auto known = steps.begin(); known != steps.end(); ++known) {
    if (known->is_done()) continue;
    if (known == first && !known->is_missing()) {
      renames.exchange(known->step.temporary, known->step.target);
    } else {
      renames.move(known->step.temporary, known->step.target);
    }
  }
}

/// Whether some names have changed already.
bool has_begun(const std::vector<Known>& steps) {
  return std::ranges::any_of(steps, [](const Known& known) {
    return known.is_done() || (known.step.replaces && known.is_missing());
  });
}

std::vector<fs::path> finish_one(const fs::path& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (fd.get() < 0 || is_in_use(fd)) return {};
  const std::vector<Known> steps = read_journal(path, fd.get());
  if (steps.empty()) return {};
  std::vector<fs::path> targets;
  targets.reserve(steps.size());
  for (const Known& known : steps) targets.push_back(known.step.target);
  const bool is_ours =
      std::ranges::all_of(steps, [](const Known& k) { return k.is_done() || k.is_waiting(); });
  const bool was_all = std::ranges::all_of(steps, &Known::is_done);
  const bool begun = has_begun(steps);
  if (is_ours && begun && !was_all) finish(steps);
  ::unlink(path.c_str());
  if (!is_ours) return {};
  remove_unfinished(targets);
  if (begun) remove_replaced(targets);
  return begun && !was_all ? targets : std::vector<fs::path>();
}

}  // namespace

Journal::Journal(const std::vector<Step>& steps, bool sync) {
  const fs::path folder = folder_of(steps.front().target);
  const fs::path path = temporary_sibling(steps.front().target);
  std::string text(magic);
  for (const Step& each : steps) {
    if (folder_of(each.target) == folder) text += encode(each, false);
  }
  path_ = path;
  try {
    fd_ = open_file("create", path, O_RDWR | O_CREAT | O_EXCL, 0600);
    lock_as_in_use(fd_);
    write_at(fd_, 0, as_bytes(text), path);
    if (sync) {
      sync_to_disk(fd_, path);
      sync_to_disk(open_file("open", folder, O_RDONLY | O_DIRECTORY), folder);
    }
  } catch (...) {
    remove();
    throw;
  }
}

Journal::~Journal() {
  remove();
}

void Journal::remove() noexcept {
  ::unlink(path_.c_str());
}

void note_commit(const fs::path& note, const std::vector<Journal::Step>& steps) {
  std::string text(magic);
  for (const Journal::Step& each : steps) text += encode(each, true);
  const fs::path name = temporary_sibling(note);
  const FileDescriptor fd = open_file("create", name, O_RDWR | O_CREAT | O_EXCL, 0600);
  write_at(fd, 0, as_bytes(text), name);
  sync_to_disk(fd, name);
  if (::rename(name.c_str(), note.c_str()) != 0) fail_errno("create", note.string());
  sync_to_disk(open_file("open", folder_of(note), O_RDONLY | O_DIRECTORY), folder_of(note));
}

void complete_commit(const fs::path& note) {
  const auto steps = steps_in(read_file(note), "");
  const auto is_kept = [](const Known& known) { return is_kept_of(known.step.temporary, known.step.target); };
  if (!steps || !std::ranges::all_of(*steps, is_kept))
    fail(Errc::format, "'{}' is not a commit of cbk: remove its folder, and begin again", note.string());
  std::vector<fs::path> targets;
  for (const Known& known : *steps) {
    targets.push_back(known.step.target);
    if (known.is_done() || known.is_waiting()) continue;
    throw Error(Errc::changed,
                {.problem = fmt::format("'{}' has changed since its commit was interrupted",
                                        known.step.target.string()),
                 .file = known.step.target.string(),
                 .advice = fmt::format("remove '{}', and begin again", folder_of(note).string())});
  }
  finish(*steps);
  std::error_code ignored;
  for (const Known& known : *steps) fs::remove_all(known.step.temporary, ignored);  // what it replaced
  remove_replaced(targets);
}

std::vector<fs::path> finish_killed_commits(const fs::path& folder) noexcept {
  std::vector<fs::path> finished;
  try {
    for (const fs::path& path : temporaries_in(folder)) {
      for (fs::path& target : finish_one(path)) finished.push_back(std::move(target));
    }
  } catch (const std::exception&) {
    // The folder must not be changed, or another program changes it: it stays as it was.
  }
  return finished;
}

}  // namespace cbk
