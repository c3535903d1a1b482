#include "host/app/history.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_set>

#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace cbk::app {
namespace {

constexpr size_t max_entries = 5000;
constexpr mode_t owner_only = 0600;
constexpr char line_break = '\x1e';  // in the file, which has a line for each entry

std::string with(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

void write_text(const fs::path& path, int flags, const std::string& text) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, owner_only));
  if (file.get() < 0) return;
  ::fchmod(file.get(), owner_only);
  [[maybe_unused]] const ssize_t written = ::write(file.get(), text.data(), text.size());
}

}  // namespace

History::History(fs::path file) : file_(std::move(file)) {
  if (file_.empty()) return;
  std::error_code ignored;
  fs::create_directories(file_.parent_path(), ignored);
  load();
}

void History::load() {
  std::string text;
  try {
    text = read_file(file_, 64ULL << 20);
  } catch (const Error&) {
    return;  // none exists yet
  }
  size_t lines = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) entries_.push_back(with(text.substr(begin, end - begin), line_break, '\n'));
    begin = end + 1;
    ++lines;
  }
  std::unordered_set<std::string> seen;
  std::vector<std::string> newest_first;
  for (auto it = entries_.rbegin(); it != entries_.rend() && newest_first.size() < max_entries; ++it) {
    if (seen.insert(*it).second) newest_first.push_back(*it);
  }
  entries_.assign(newest_first.rbegin(), newest_first.rend());
  if (entries_.size() < lines) save();
}

void History::save() const {
  std::string text;
  for (const std::string& entry : entries_) text += with(entry, '\n', line_break) + "\n";
  const fs::path temporary = file_.string() + "." + std::to_string(::getpid());
  write_text(temporary, O_TRUNC, text);
  std::error_code error;
  fs::rename(temporary, file_, error);
  if (error) fs::remove(temporary, error);
}

bool History::add(const std::string& entry) {
  if (!entries_.empty() && entries_.back() == entry) return false;
  entries_.erase(std::remove(entries_.begin(), entries_.end(), entry), entries_.end());
  entries_.push_back(entry);
  if (!file_.empty()) write_text(file_, O_APPEND, with(entry, '\n', line_break) + "\n");
  return true;
}

}  // namespace cbk::app
