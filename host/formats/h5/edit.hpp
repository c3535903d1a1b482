// Changes to an H5 file that leave its bytes in place: other attributes of the root, further names for
// datasets, other values of small ones. Changed parts are written after the end of the file; then the
// superblock, one small write, switches from the old root group to the new one. The layout is in FORMAT.md.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host/formats/checkpoint.hpp"
#include "host/formats/h5/datasets.hpp"
#include "host/formats/hdf5/builder.hpp"

namespace cbk::h5 {

/// Collects changes, and applies them to a copy or in place. Names are those of the root group, as stored.
/// Not thread-safe; belongs to one owner.
class FileEdit {
 public:
  /// Errors: `io`, `format`; `refused` for pickles that are not plain data (see check_pickles); `unsupported`
  /// for files whose HDF5 features an addition would break.
  explicit FileEdit(const fs::path& path) : FileEdit(MappedFile::open(path)) {}
  explicit FileEdit(std::shared_ptr<const MappedFile> file, const OpenOptions& options = {});

  [[nodiscard]] const fs::path& path() const { return mapped_->path(); }

  // The content of the file with the changes so far.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool has(const std::string& name) const { return links_.contains(name); }
  /// An attribute of the root; nullopt if it is missing.
  [[nodiscard]] std::optional<Value> attribute(const std::string& name) const;
  /// The one element of a dataset.
  [[nodiscard]] Value scalar(const std::string& name);
  [[nodiscard]] bool is_changed() const { return is_changed_; }

  /// Sets a text attribute of the root.
  void set_attribute(const std::string& name, const std::string& text);
  /// Makes `name` a hard link to the dataset of `source`. Errors: `key`, `exists`.
  void link(const std::string& name, const std::string& source);
  /// Every element of a small dataset becomes `value`; other names of the dataset keep the old one. A dataset
  /// without elements stays as it is. Errors: `key`, `dtype`, `value`, `unsupported`.
  void set_value(const std::string& name, const Value& value);

  /// A copy with the changes: it appears completely or not at all. `progress` gets bytes done and bytes in
  /// all.
  void save_as(const fs::path& target, bool overwrite, bool sync,
               const std::function<void(uint64_t, uint64_t)>& progress = {});
  /// Changes the file itself: if the program is killed, the file is either the old or the new one.
  void commit(bool sync);

 private:
  /// A rewritten dataset.
  struct NewValue {
    hdf5::ObjectHeader object;
    DType dtype = DType::float32;
    uint32_t swapped = 0;  // size of the units that are in the other byte order in the file; 0: none
    Shape shape;
    Bytes data;  // little-endian
  };
  /// The target of a name of the root.
  struct Target {
    hdf5::Link link;
    std::optional<size_t> value;  // of values_: then a hard link to that
    [[nodiscard]] hdf5::Link::Kind kind() const { return value ? hdf5::Link::Kind::hard : link.kind; }
  };
  /// The bytes after the old end, and the superblock that makes them valid.
  struct Change {
    uint64_t offset = 0;
    std::string tail;
    std::string superblock;
  };
  using Addresses = std::map<uint64_t, uint64_t>;

  Target& target(const std::string& name);
  /// The dataset of a name. Errors: `unsupported` if it is in another file.
  [[nodiscard]] Located locate(const std::string& name);
  [[nodiscard]] std::map<uint64_t, uint32_t> count_links() const;
  [[nodiscard]] Change build();
  [[nodiscard]] Addresses add_values(hdf5::Builder& builder);
  [[nodiscard]] Addresses add_recounted(hdf5::Builder& builder);
  [[nodiscard]] uint64_t add_root(hdf5::Builder& builder, std::optional<hdf5::GroupTables>& tables);

  std::shared_ptr<const MappedFile> mapped_;
  ExternalFiles files_;
  Datasets datasets_;
  hdf5::File& file_;
  std::string superblock_;  // as it was read
  hdf5::GroupRanks ranks_;
  std::map<std::string, Target> links_;
  std::map<uint64_t, uint32_t> old_counts_;   // names of each object before the changes
  std::map<std::string, std::string> texts_;  // attributes that are set
  std::vector<NewValue> values_;
  bool is_changed_ = false;
};

}  // namespace cbk::h5
