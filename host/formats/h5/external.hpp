// The files that an H5 checkpoint refers to, opened on demand.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/base/named_files.hpp"
#include "host/formats/hdf5/file.hpp"

namespace cbk::h5 {

/// Opens neighbours of the checkpoint once each. Not thread-safe.
class ExternalFiles {
 public:
  /// `allowed`: see NamedFiles. `memory`: charged for the content that is read.
  ExternalFiles(std::shared_ptr<const MappedFile> checkpoint, const std::vector<fs::path>& allowed,
                MemoryPtr memory = {}, bool may_be_cut = false);
  /// Whether the checkpoint may be shorter than it states; missing parts cannot be read.
  [[nodiscard]] bool may_be_cut() const { return may_be_cut_; }

  /// Errors: those of NamedFiles.
  std::shared_ptr<const MappedFile> map(const std::string& name);
  /// The same as HDF5; the checkpoint itself is the open file.
  std::shared_ptr<hdf5::File> open(const std::string& name);
  [[nodiscard]] const std::shared_ptr<hdf5::File>& main() const { return main_; }
  /// Every file opened so far, the checkpoint first.
  [[nodiscard]] std::vector<fs::path> paths() const;

 private:
  NamedFiles files_;
  std::shared_ptr<hdf5::File> main_;
  bool may_be_cut_;
  std::map<std::string, std::shared_ptr<const MappedFile>> mapped_;  // by the names that the checkpoint has
  std::map<std::string, std::shared_ptr<hdf5::File>> opened_;
};

}  // namespace cbk::h5
