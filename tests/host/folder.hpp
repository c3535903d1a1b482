// A folder that vanishes at the end of a test.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "host/base/transaction.hpp"

namespace cbk {

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / fmt::format("cbk-test-{}", getpid())) {
    fs::create_directories(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  [[nodiscard]] fs::path path(const std::string& name = "") const {
    return name.empty() ? path_ : path_ / name;
  }
  [[nodiscard]] std::vector<std::string> names(const std::string& below = "") const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path(below))) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  fs::path write(const std::string& name, std::string_view content) const {
    write_file(path(name), content, true);
    return path(name);
  }

 private:
  fs::path path_;
};

}  // namespace cbk
