// Files that are named in another file: the shards of an index, external data, linked checkpoints. Such a
// name is not trusted: it may lead only to an entry below the folder of the checkpoint, or below a folder
// that the user allows. The working directory does not count.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "host/base/file.hpp"

namespace cbk {

/// Thread-safe. It opens exactly the file that it checked: another process that replaces a folder by a
/// symbolic link in the meantime gains nothing.
class NamedFiles {
 public:
  /// `followed`: a name may also be a symbolic link that ends below the folder, or among the blobs of the
  /// Hugging Face cache that the folder is a snapshot of, where every file is such a link.
  enum class Link { refused, followed };

  /// `folder`: of the checkpoint; empty is the working directory. `allowed`: more folders, to which symbolic
  /// links and names that leave `folder` may lead. `index`: the file with the names, if the opened files
  /// depend on it. Errors: `usage` for one that is not a folder.
  NamedFiles(fs::path folder, const std::vector<fs::path>& allowed,
             std::shared_ptr<const MappedFile> index = nullptr);

  /// The file of that name; nullptr if absent. Errors: `refused`, naming the option that allows it;
  /// `io` for a file that cannot be read or is not a regular file; `format` for an invalid name.
  [[nodiscard]] std::shared_ptr<const MappedFile> find(const std::string& name,
                                                       Link link = Link::refused) const;
  /// The same; no such file is an `io` error.
  [[nodiscard]] std::shared_ptr<const MappedFile> open(const std::string& name,
                                                       Link link = Link::refused) const;

 private:
  [[nodiscard]] std::shared_ptr<const MappedFile> find_allowed(const std::string& name, bool is_link,
                                                               Link link) const;
  fs::path folder_;
  std::shared_ptr<const MappedFile> index_;
  std::vector<fs::path> allowed_;  // canonical
};

}  // namespace cbk
