// An HDF5 file for readers of checkpoints: objects by path, attributes by name.
#pragma once

#include <optional>
#include <unordered_map>

#include "host/base/hash.hpp"
#include "host/formats/hdf5/dataset.hpp"
#include "host/formats/hdf5/group.hpp"
#include "host/value/value.hpp"

namespace cbk::hdf5 {

/// Attributes by name, as views into the file.
class Attributes {
 public:
  Attributes(Objects& objects, std::vector<Attribute> list);

  [[nodiscard]] const std::vector<Attribute>& list() const { return list_; }
  [[nodiscard]] const Attribute* find(std::string_view name) const;
  /// A scalar string; nullopt if the attribute is missing. Another type is a `format` error.
  [[nodiscard]] std::optional<std::string_view> text(std::string_view name) const;
  /// As Value: number, bool, text, bytes, or a list of them; `none` for null dataspaces. Nothing if there is
  /// no such attribute.
  [[nodiscard]] std::optional<Value> value(std::string_view name) const;
  /// True only for a scalar that is true (or not 0).
  [[nodiscard]] bool is_set(std::string_view name) const;
  /// Whether `value` supports the type.
  [[nodiscard]] static bool is_readable(const Attribute& attribute);
  [[nodiscard]] Value value(const Attribute& attribute) const;

 private:
  [[nodiscard]] Value element(const Datatype& type, ByteView bytes) const;
  Objects* objects_;
  std::vector<Attribute> list_;
  std::unordered_map<std::string_view, size_t, KeyedHash> names_;  // only of long lists
};

/// Not thread-safe; the storages it returns are.
class File {
 public:
  explicit File(std::shared_ptr<const MappedFile> file, MemoryPtr memory = {}, bool may_be_cut = false);
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[nodiscard]] Objects& objects() { return objects_; }
  [[nodiscard]] const Objects& objects() const { return objects_; }
  [[nodiscard]] const std::shared_ptr<const MappedFile>& mapped() const { return objects_.image().file(); }
  [[nodiscard]] const MemoryPtr& memory() const { return objects_.image().shared_memory(); }
  [[nodiscard]] const ObjectHeader& root() const { return root_; }
  [[nodiscard]] const std::vector<Link>& links() const { return groups_.at(root_.address).links; }
  [[nodiscard]] Attributes attributes(const ObjectHeader& object) {
    return {objects_, objects_.attributes(object)};
  }
  /// The link at a path from the root ("a/b": in group a), following soft links; nullptr if it does not
  /// exist.
  [[nodiscard]] const Link* find(std::string_view path);
  /// The links of a group.
  [[nodiscard]] const std::vector<Link>& links_of(const ObjectHeader& group);

 private:
  struct Group {
    std::vector<Link> links;
    std::unordered_map<std::string_view, size_t, KeyedHash> names;
  };
  const Group& group(const ObjectHeader& object);
  Objects objects_;
  ObjectHeader root_;
  std::unordered_map<uint64_t, Group> groups_;
};

}  // namespace cbk::hdf5
