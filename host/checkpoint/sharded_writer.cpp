#include <algorithm>
#include <set>

#include "host/base/inside.hpp"
#include "host/base/open_files.hpp"
#include "host/checkpoint/sharded.hpp"
#include "host/formats/file_names.hpp"
#include "host/formats/tensorflow/foreign.hpp"
#include "host/value/json.hpp"
#include "host/value/state_dict.hpp"

namespace cbk {
namespace {

/// The size of a tensor for the limit. Bools count as bits, as in the reference.
uint64_t counted_size(const Tensor& tensor) {
  if (tensor.dtype() == DType::boolean) return (static_cast<uint64_t>(tensor.numel()) + 7) / 8;
  return tensor.nbytes();
}

struct Shard {
  std::string file;
  Value root = Value::dict();
};

class ShardedWriter : public Writer {
 public:
  ShardedWriter(const Value& root, fs::path target, const Format& format, const WriteOptions& options)
      : target_(std::move(target)),
        format_(format),
        overwrite_(options.overwrite),
        companions_(options.companions) {
    std::erase_if(companions_, [](const auto& each) { return !is_inside_folder(each.first); });
    if (options.shard_size == 0) fail(Errc::usage, "a shard size of 0; the default is 10GB");
    suffix_ = format_.shard_suffix;
    stem_ = options.shard_stem.empty() ? std::string(format_.shard_stem) : options.shard_stem;
    const Value texts = Value::dict();
    const std::vector<NamedTensor> tensors =
        flat_tensors(take_texts(root, texts.as_dict()), "a sharded checkpoint");
    is_single_ = options.single_file || (tensors.empty() && texts.as_dict().empty());  // nothing to index
    split(tensors, texts.as_dict(), options);
    check_companions();
    make_writers(options);
    for (const auto& writer : writers_) {
      items_.insert(items_.end(), writer->items().begin(), writer->items().end());
      overhead_ += writer->overhead();
    }
    warn_of_ties(count_ties(tensors));
  }

  [[nodiscard]] const std::vector<Item>& items() const override { return items_; }
  [[nodiscard]] uint64_t overhead() const override { return overhead_; }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }

  std::vector<Slot> lay_out(Transaction& transaction) override {
    StagedFolder& folder = transaction.folder(target_, overwrite_, is_written_shard_name, inner_);
    std::vector<Slot> slots;
    for (size_t i = 0; i < writers_.size(); ++i) {
      const std::vector<Slot> part = writers_[i]->lay_out_in(folder.file(shards_[i].file));
      slots.insert(slots.end(), part.begin(), part.end());
    }
    if (!is_single_) folder.file(index_name()).write(0, as_bytes(index_));
    for (const auto& [name, content] : companions_) folder.file(name).write(0, as_bytes(content));
    return slots;
  }

  void finish(const std::vector<uint32_t>& crcs) override {
    auto position = crcs.begin();
    for (const auto& writer : writers_) {
      const auto end = position + static_cast<ptrdiff_t>(writer->items().size());
      writer->finish({position, end});
      position = end;
    }
  }

 private:
  [[nodiscard]] bool is_h5() const { return format_.name == "h5"; }
  [[nodiscard]] std::string index_name() const { return stem_ + suffix_ + std::string(shard_index_suffix); }

  /// The tree without the tensors of texts.
  static Value take_texts(const Value& root, Dict& texts) {
    const auto is_texts = [](const Dict::Entry& entry) { return tensorflow::is_foreign(entry.second); };
    if (!root.is(Value::Kind::dict) ||
        std::none_of(root.as_dict().entries().begin(), root.as_dict().entries().end(), is_texts))
      return root;
    Value rest = Value::dict();
    for (const auto& [key, value] : root.as_dict().entries())
      (tensorflow::is_foreign(value) ? texts : rest.as_dict()).set(key, value);
    return rest;
  }

  /// A shard ends before a tensor that would exceed the limit. A larger tensor has a shard of its own, and no
  /// shard is empty.
  static std::vector<size_t> shards_by_size(const std::vector<NamedTensor>& tensors, uint64_t limit) {
    std::vector<size_t> out;
    size_t shard = 0;
    uint64_t current = 0;
    for (const NamedTensor& tensor : tensors) {
      const uint64_t size = counted_size(tensor.leaf.as_tensor());
      if (current > 0 && current + size > limit) {
        ++shard;
        current = 0;
      }
      current += size;
      out.push_back(shard);
    }
    return out;
  }

  /// The shard of each tensor.
  static std::vector<size_t> layout_of(const std::vector<NamedTensor>& tensors, const WriteOptions& options) {
    if (options.shard_size && options.shards.empty() && !options.single_file)
      return shards_by_size(tensors, *options.shard_size);
    std::vector<std::string> names;
    names.reserve(tensors.size());
    for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
    return shards_by_name(names, options.shards);
  }

  void split(const std::vector<NamedTensor>& tensors, const Dict& texts, const WriteOptions& options) {
    const std::vector<size_t> shard_of = layout_of(tensors, options);
    const auto last = std::max_element(shard_of.begin(), shard_of.end());
    shards_.resize(last == shard_of.end() ? 1 : *last + 1);
    for (const auto& [key, value] : texts.entries()) shards_.front().root.as_dict().set(key, value);
    uint64_t total = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      total += counted_size(tensors[i].leaf.as_tensor());
      shards_[shard_of[i]].root.as_dict().set(tensors[i].name, tensors[i].leaf);
    }
    check_open_files(shards_.size(), total);
    for (size_t i = 0; i < shards_.size(); ++i) {
      shards_[i].file =
          is_single_ ? std::string(format_.usual) : shard_name(stem_, i + 1, shards_.size(), suffix_);
    }
    const Value map = Value::dict();
    for (const auto& [key, value] : texts.entries()) map.as_dict().set(key_text(key), shards_.front().file);
    for (size_t i = 0; i < tensors.size(); ++i) map.as_dict().set(tensors[i].name, shards_[shard_of[i]].file);
    const Value metadata = Value::dict();
    metadata.as_dict().set("total_size", static_cast<int64_t>(total));
    if (!options.origin.empty()) metadata.as_dict().set(std::string(origin_name), options.origin);
    const Value index = Value::dict();
    index.as_dict().set("metadata", metadata);
    index.as_dict().set("weight_map", map);
    JsonWriteOptions json;
    json.indent = 4;
    index_ = to_json(index, json) + "\n";
    overhead_ += index_.size();
  }

  /// A file in the folder, or in a folder in it.
  void check_name(const std::string& name) {
    const fs::path folder = fs::path(name).parent_path();
    if (folder.empty()) return (void)inside(target_, name);
    inner_.insert(folder.string());
    inside(inside(target_, folder.string()), name.substr(folder.native().size() + 1));
  }

  void check_companions() {
    for (const auto& [name, content] : companions_) {
      const bool is_taken = name == index_name() ||
                            std::any_of(shards_.begin(), shards_.end(),
                                        [&, &file = name](const Shard& shard) { return shard.file == file; });
      check_name(name);
      if (is_taken) {
        fail(Errc::value, "{} cannot be the name of a file in the folder '{}'", quote(name),
             target_.string());
      }
      overhead_ += content.size();
    }
  }

  void make_writers(const WriteOptions& options) {
    WriteOptions own;
    own.overwrite = true;
    own.h5_version = is_h5() ? "flat" : "";
    own.compression = options.compression;
    own.metadata = options.metadata;
    own.origin = options.origin;
    for (const Shard& shard : shards_)
      writers_.push_back(format_.write_file(shard.root, target_ / shard.file, own));
  }

  /// Files of PyTorch keep the ties of their own tensors.
  void warn_of_ties(size_t ties) {
    const bool keeps_own = format_.name == "torch";
    for (const Shard& shard : shards_)
      if (keeps_own) ties -= count_ties(flat_tensors(shard.root, "a shard"));
    if (ties == 0) return;
    warnings_.push_back(written_as_copies(
        ties, keeps_own ? "its names are in several shards"
                        : fmt::format("{} has no ties", is_h5() ? "flat H5" : format_.name)));
  }

  fs::path target_;
  const Format& format_;
  bool overwrite_;
  std::vector<std::pair<std::string, std::string>> companions_;
  std::set<std::string> inner_;  // folders of companions
  std::string stem_;
  std::string suffix_;
  std::vector<Shard> shards_;
  bool is_single_ = false;
  std::string index_;
  uint64_t overhead_ = 0;
  std::vector<Item> items_;
  std::vector<std::string> warnings_;
  std::vector<std::unique_ptr<ShardWriter>> writers_;  // of the shards
};

}  // namespace

std::unique_ptr<Writer> make_sharded_writer(const Value& root, const fs::path& target, const Format& format,
                                            const WriteOptions& options) {
  const bool is_tree = format.name == "h5" && options.h5_version != "flat";
  if (!format.has_shards() || is_tree)
    fail(Errc::usage, "shards are written as torch, safetensors or flat H5, not as {}", quote(format.name));
  return std::make_unique<ShardedWriter>(root, target, format, options);
}

}  // namespace cbk
