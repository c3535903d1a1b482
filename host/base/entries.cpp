#include "host/base/entries.hpp"

namespace cbk {

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator at(folder, error);
  while (error == std::errc::interrupted) at = fs::directory_iterator(folder, error);
  std::vector<fs::directory_entry> entries;
  for (; !error && at != fs::directory_iterator(); at.increment(error)) entries.push_back(*at);
  if (error) fail_errno("list", folder.string(), error.value());
  return entries;
}

}  // namespace cbk
