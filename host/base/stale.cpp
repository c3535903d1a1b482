#include "host/base/stale.hpp"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>

#include "host/base/file_lock.hpp"

namespace cbk {
namespace {

constexpr size_t digits = 8;
constexpr std::string_view new_ending = ".tmp";
constexpr std::string_view old_ending = ".old";
constexpr std::string_view kept_ending = ".job";
constexpr size_t added = 1 + digits + new_ending.size();
static_assert(new_ending.size() == old_ending.size() && new_ending.size() == kept_ending.size());

/// The beginning of a temporary name; names are limited to 255 bytes.
std::string beginning_of(const fs::path& target) {
  return target.filename().string().substr(0, 255 - added);
}

/// "model.mdl" of "model.mdl.1f3a9c04.tmp"; empty for a name of another form.
std::string_view beginning_in(std::string_view name, std::string_view ending) {
  if (name.size() <= added || !name.ends_with(ending)) return {};
  const std::string_view beginning = name.substr(0, name.size() - added);
  const std::string_view number = name.substr(beginning.size() + 1, digits);
  const bool is_ours =
      name[beginning.size()] == '.' && number.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return is_ours ? beginning : std::string_view();
}

fs::path sibling(const fs::path& target, std::string_view tag, std::string_view ending) {
  return target.parent_path() / fmt::format("{}.{}{}", beginning_of(target), tag, ending);
}

bool is_sibling_of(const fs::path& name, const fs::path& target, std::string_view ending) {
  const std::string text = name.filename().string();
  return name.parent_path() == target.parent_path() && beginning_in(text, ending) == beginning_of(target);
}

bool is_path_in_use(const fs::path& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  return fd.get() < 0 || is_in_use(fd);
}

/// Removes temporaries beside `targets` with one ending.
void remove_siblings(const std::vector<fs::path>& targets, std::string_view ending) {
  std::map<fs::path, std::set<std::string, std::less<>>> folders;
  for (const fs::path& target : targets) folders[folder_of(target)].insert(beginning_of(target));
  std::error_code ignored;
  std::vector<fs::path> left_over;
  for (const auto& [folder, names] : folders) {
    for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored)) {
      const std::string name = at->path().filename().string();
      if (names.contains(beginning_in(name, ending))) left_over.push_back(at->path());
    }
  }
  std::erase_if(left_over, is_path_in_use);
  for (const fs::path& path : left_over) fs::remove_all(path, ignored);
}

struct Temporaries {
  std::timed_mutex mutex;
  std::set<fs::path> names;
};

/// Never destroyed: the program may end while other threads still write.
Temporaries& temporaries() {
  static auto* all = new Temporaries;
  return *all;
}

}  // namespace

std::string new_tag() {
  std::random_device source;
  return fmt::format("{:08x}", source());
}

fs::path temporary_sibling(const fs::path& target) {
  return sibling(target, new_tag(), new_ending);
}

fs::path temporary_sibling(const fs::path& target, std::string_view tag) {
  return sibling(target, tag, new_ending);
}

fs::path kept_sibling(const fs::path& target, std::string_view tag) {
  return sibling(target, tag, kept_ending);
}

fs::path old_sibling(const fs::path& target) {
  return sibling(target, new_tag(), old_ending);
}

void lock_as_in_use(const FileDescriptor& fd) noexcept {
  (void)lock_file(fd);
}

bool is_in_use(const FileDescriptor& fd) noexcept {
  return lock_file(fd) != FileLock::ours;
}

bool is_temporary_of(const fs::path& name, const fs::path& target) {
  return is_sibling_of(name, target, new_ending);
}

bool is_kept_of(const fs::path& name, const fs::path& target) {
  return is_sibling_of(name, target, kept_ending);
}

std::vector<fs::path> temporaries_in(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored)) {
    if (!beginning_in(at->path().filename().string(), new_ending).empty()) out.push_back(at->path());
  }
  return out;
}

void remove_unfinished(const std::vector<fs::path>& targets) noexcept {
  remove_siblings(targets, new_ending);
}

void remove_replaced(const std::vector<fs::path>& targets) noexcept {
  remove_siblings(targets, old_ending);
}

void remember_temporary(const fs::path& name) {
  const std::lock_guard lock(temporaries().mutex);
  temporaries().names.insert(name);
}

void forget_temporary(const fs::path& name) noexcept {
  const std::lock_guard lock(temporaries().mutex);
  temporaries().names.erase(name);
}

void remove_temporaries() noexcept {
  // A thread that hangs during a change must not keep the program from ending.
  const std::unique_lock lock(temporaries().mutex, std::chrono::seconds(2));
  if (!lock.owns_lock()) return;
  std::error_code ignored;
  for (const fs::path& name : temporaries().names) fs::remove_all(name, ignored);
}

std::unique_lock<std::timed_mutex> hold_temporaries() {
  return std::unique_lock(temporaries().mutex);
}

}  // namespace cbk
