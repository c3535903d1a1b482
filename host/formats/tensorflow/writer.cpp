#include "host/formats/tensorflow/writer.hpp"

#include <algorithm>
#include <limits>

#include "host/base/crc32c.hpp"
#include "host/base/journal.hpp"
#include "host/base/open_files.hpp"
#include "host/base/replaced.hpp"
#include "host/base/utf8.hpp"
#include "host/formats/file_names.hpp"
#include "host/formats/tensorflow/foreign.hpp"
#include "host/formats/tensorflow/index.hpp"
#include "host/formats/tensorflow/state_file.hpp"
#include "host/value/kind.hpp"
#include "host/value/state_dict.hpp"

namespace cbk::tensorflow {
namespace {

fs::path prefix_of(const fs::path& target) {
  const std::string text = target.string();
  const bool is_index = text.ends_with(bundle_index_suffix);
  fs::path prefix = is_index ? fs::path(text.substr(0, text.size() - bundle_index_suffix.size())) : target;
  std::error_code ignored;
  if (!prefix.has_filename() || (!is_index && fs::is_directory(prefix, ignored))) {
    fail(Errc::usage, "'{}' is a folder; a TensorFlow checkpoint is written under a prefix, such as '{}'",
         target.string(), (target / "model.ckpt").string());
  }
  return prefix;
}

fs::path index_file(const fs::path& prefix) {
  return prefix.string() + std::string(bundle_index_suffix);
}

/// A planned variable, and its bytes.
struct Variable {
  Entry entry;
  Tensor bytes;
  bool has_checksum = false;  // else it is that of the bytes, known when they are written
};

Variable numbers_variable(std::string name, const DTypeInfo* dtype, const Tensor& tensor) {
  Entry entry;
  entry.name = std::move(name);
  entry.dtype = dtype;
  entry.shape = tensor.shape();
  entry.size = tensor.nbytes();
  return {std::move(entry), tensor};
}

/// All bytes of a dense tensor: in place if they are addressable, else in memory.
class Stored {
 public:
  explicit Stored(const Tensor& tensor) {
    const View* view = tensor.view();
    if (view != nullptr && view->strides == contiguous_strides(view->shape)) bytes_ = view->storage->view();
    if (bytes_.empty()) {
      copy_ = tensor.to_bytes();
      bytes_ = copy_;
    } else {
      bytes_ = bytes_.subspan(static_cast<uint64_t>(view->offset) * size_of(view->dtype), tensor.nbytes());
    }
  }
  [[nodiscard]] ByteView bytes() const { return bytes_; }

 private:
  ByteView bytes_;
  Bytes copy_;
};

Variable foreign_variable(const std::string& name, const Value& value) {
  const ForeignTensor foreign = to_foreign(value);
  if (foreign.dtype->kind != DTypeInfo::Kind::string)
    return numbers_variable(name, foreign.dtype, foreign.elements);
  Variable variable = numbers_variable(name, foreign.dtype, foreign.elements);
  variable.entry.shape = foreign.shape;
  // The checksum of texts does not cover their bytes, so they are checked here.
  const Stored stored(foreign.elements);
  variable.entry.crc = texts_crc(stored.bytes(), numel_of(foreign.shape), false);
  variable.has_checksum = true;
  return variable;
}

/// An empty name belongs to the header, and one that begins with a byte 0 to a slice.
void check_name(const std::string& name) {
  if (name.empty() || is_slice_key(name))
    fail(Errc::value, "a TensorFlow variable cannot be named {}", quote(name));
  if (!is_strict_utf8(name)) fail(Errc::value, "the name {} is not UTF-8", quote(name));
}

class BundleWriter final : public Writer {
 public:
  BundleWriter(const Value& root, fs::path prefix, const WriteOptions& options)
      : prefix_(std::move(prefix)), overwrite_(options.overwrite) {
    if (options.shard_size == 0) fail(Errc::usage, "a shard size of 0; the default is one data file");
    collect(root);
    place(options);
    finish_killed_commits(folder_of(prefix_));
    refuse_existing(index_file(prefix_), overwrite_ || options.may_exist);
    if (!overwrite_) warn_of_remains();
    uint64_t bytes = 0;
    for (const uint64_t size : shard_sizes_) bytes += size;
    check_open_files(shard_sizes_.size(), bytes);
    state_ = next_state(prefix_);
    for (const Variable& variable : variables_) {
      items_.push_back(
          {variable.entry.name, variable.bytes, variable.has_checksum ? Checksum::none : Checksum::crc32c});
    }
  }

  [[nodiscard]] const std::vector<Item>& items() const override { return items_; }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }
  [[nodiscard]] uint64_t overhead() const override {
    uint64_t total = state_.size();
    for (const Variable& variable : variables_) total += variable.entry.name.size() + 40;
    return total;
  }

  std::vector<Slot> lay_out(Transaction& transaction) override {
    std::vector<StagedFile*> data;
    for (uint32_t shard = 0; shard < shards(); ++shard) {
      data.push_back(&transaction.early_file(data_file_name(prefix_.string(), shard, shards()), true));
      data.back()->reserve(shard_sizes_[shard]);
    }
    index_ = &transaction.early_file(index_file(prefix_), overwrite_);
    transaction.file(prefix_.parent_path() / state_file_name, true).write(0, as_bytes(state_));
    for (const fs::path& path : other_data_files()) transaction.remove(path);
    std::vector<Slot> slots;
    for (const Variable& variable : variables_)
      slots.push_back({data[variable.entry.shard], variable.entry.offset});
    return slots;
  }

  void finish(const std::vector<uint32_t>& crcs) override {
    std::vector<Entry> entries;
    for (size_t i = 0; i < variables_.size(); ++i) {
      entries.push_back(variables_[i].entry);
      if (!variables_[i].has_checksum) entries.back().crc = masked_crc32c(crcs[i]);
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
    index_->write(0, as_bytes(write_index(shards(), entries)));
  }

 private:
  [[nodiscard]] uint32_t shards() const { return static_cast<uint32_t>(shard_sizes_.size()); }

  /// Data without an index was left by a run that was killed while its files got their names.
  void warn_of_remains() {
    std::vector<std::string> remains;
    std::error_code ignored;
    for (uint32_t shard = 0; shard < shards(); ++shard) {
      const fs::path path = data_file_name(prefix_.string(), shard, shards());
      if (fs::exists(fs::symlink_status(path, ignored))) remains.push_back(quote(path.filename().string()));
    }
    if (remains.empty()) return;
    warnings_.push_back(fmt::format("{} {} no index, so {} of no use: replaced", listed(remains, 3),
                                    remains.size() == 1 ? "has" : "have",
                                    remains.size() == 1 ? "it is" : "they are"));
  }

  void collect(const Value& root) {
    if (!root.is(Value::Kind::dict))
      fail(Errc::value, "a TensorFlow checkpoint holds a dict of tensors; this is {}", a_kind(root));
    const Value rest = Value::dict();
    for (const auto& [key, value] : root.as_dict().entries()) {
      if (key.is(Value::Kind::string) && is_foreign(value)) {
        variables_.push_back(within(quote(key.as_string()), [&, &name = key, &what = value] {
          return foreign_variable(name.as_string(), what);
        }));
      } else {
        rest.as_dict().set(key, value);
      }
    }
    const std::vector<NamedTensor> tensors = flat_tensors(rest, "a TensorFlow checkpoint");
    std::vector<std::string> unknown;
    for (const NamedTensor& tensor : tensors) {
      const Tensor& data = tensor.leaf.as_tensor();
      const DTypeInfo* dtype = find(data.dtype());
      if (dtype == nullptr)
        unknown.push_back(fmt::format("{} ({})", quote(tensor.name), name_of(data.dtype())));
      variables_.push_back(numbers_variable(tensor.name, dtype, data));
    }
    if (!unknown.empty()) fail(Errc::dtype, "TensorFlow has no such dtype: {}", listed(unknown));
    check_names();
    if (const size_t ties = count_ties(tensors); ties > 0)
      warnings_.push_back(written_as_copies(ties, "TensorFlow checkpoints have no ties"));
  }

  void check_names() const {
    std::vector<std::string> names;
    for (const Variable& variable : variables_) {
      check_name(variable.entry.name);
      names.push_back(variable.entry.name);
    }
    std::sort(names.begin(), names.end());
    if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
      fail(Errc::value, "two tensors would get the name {}", quote(*twice));
    }
  }

  /// The data file of each variable.
  [[nodiscard]] std::vector<size_t> layout(const WriteOptions& options) const {
    std::vector<std::string> names;
    for (const Variable& variable : variables_) names.push_back(variable.entry.name);
    if (!options.shards.empty()) return shards_by_name(names, options.shards);
    const uint64_t limit = options.shard_size.value_or(std::numeric_limits<uint64_t>::max());
    std::vector<size_t> out;
    size_t shard = 0;
    uint64_t used = 0;
    for (const Variable& variable : variables_) {
      if (used > 0 && variable.entry.size > limit - std::min(used, limit)) {
        ++shard;
        used = 0;
      }
      used = checked_add(used, variable.entry.size, "the data file");
      out.push_back(shard);
    }
    return out;
  }

  /// Places the variables in the order of the tree, one after the other in their file, as TensorFlow does.
  void place(const WriteOptions& options) {
    const std::vector<size_t> shard_of = layout(options);
    const auto last = std::max_element(shard_of.begin(), shard_of.end());
    shard_sizes_.assign(last == shard_of.end() ? 1 : *last + 1, 0);
    for (size_t i = 0; i < variables_.size(); ++i) {
      Entry& entry = variables_[i].entry;
      uint64_t& size = shard_sizes_[shard_of[i]];
      entry.shard = static_cast<uint32_t>(shard_of[i]);
      entry.offset = size;
      size = checked_add(size, entry.size, "the data file");
    }
  }

  /// The data files of the replaced checkpoint, if it had another number of them.
  [[nodiscard]] std::vector<fs::path> other_data_files() const {
    if (!overwrite_) return {};
    const fs::path folder = prefix_.parent_path().empty() ? fs::path(".") : prefix_.parent_path();
    std::error_code ignored;
    std::vector<fs::path> old;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      if (prefix_of_data_file(name) == prefix_.filename().string() && !name.ends_with(end_of_parts(shards())))
        old.push_back(entry.path());
    }
    return old;
  }

  fs::path prefix_;
  bool overwrite_;
  std::vector<Variable> variables_;  // in the order of the data
  std::vector<uint64_t> shard_sizes_;
  std::string state_;
  std::vector<Item> items_;
  std::vector<std::string> warnings_;
  StagedFile* index_ = nullptr;
};

}  // namespace

std::unique_ptr<Writer> make_writer(const Value& root, const fs::path& target, const WriteOptions& options) {
  return std::make_unique<BundleWriter>(root, prefix_of(target), options);
}

}  // namespace cbk::tensorflow
