// Files that a checkpoint refers to by name.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/formats/h5/container/file.hpp"

namespace cbk::h5 {

/// Opens neighbours once each. A relative name is looked for in the working directory, then beside the
/// checkpoint. Not thread-safe.
class ExternalFiles {
 public:
  explicit ExternalFiles(std::shared_ptr<const MappedFile> checkpoint, MemoryPtr memory = {});

  /// Errors name every place that was tried; anything but a regular file is refused.
  std::shared_ptr<const MappedFile> map(const std::string& name);
  /// The same as HDF5; the checkpoint itself is the file that is open already.
  std::shared_ptr<File> open(const std::string& name);
  [[nodiscard]] const std::shared_ptr<File>& main() const { return main_; }
  /// Every file opened so far, the checkpoint first.
  [[nodiscard]] std::vector<fs::path> paths() const;

 private:
  fs::path folder_;
  std::shared_ptr<File> main_;
  std::map<fs::path, std::shared_ptr<const MappedFile>> mapped_;
  std::map<fs::path, std::shared_ptr<File>> opened_;
};

}  // namespace cbk::h5
