#include <algorithm>
#include <map>
#include <unordered_set>
#include <vector>

#include "host/base/hash.hpp"
#include "host/base/named_files.hpp"
#include "host/checkpoint/foreign_files.hpp"
#include "host/checkpoint/sharded.hpp"
#include "host/formats/file_names.hpp"
#include "host/formats/safetensors/aliases.hpp"
#include "host/tensor/compare.hpp"
#include "host/value/json.hpp"
#include "host/value/kind.hpp"
#include "host/value/unreadable.hpp"

namespace cbk {
namespace {

constexpr uint64_t max_index = 256ULL << 20;

struct Index {
  Value metadata;
  std::map<std::string, std::vector<std::string>> keys;  // by file, in the order of the index
};

Index read_index(const fs::path& path) {
  JsonReadOptions options;
  options.reject_duplicates = true;
  options.python = true;
  const Value root = parse_json(read_file(path, max_index), options);
  const Value* map = root.find("weight_map");
  if (map == nullptr || !map->is(Value::Kind::dict))
    fail(Errc::format, "it has no 'weight_map', a table of keys and their files");
  if (map->as_dict().size() == 0)
    throw Error(Errc::format,
                {.problem = "its 'weight_map' is empty, so no tensor of the shards beside it is read",
                 .advice = "copy or download the index again"});
  Index index;
  for (const auto& [key, file] : map->as_dict().entries()) {
    if (!file.is(Value::Kind::string)) {
      fail(Errc::format, "'weight_map' should name a file, but gives {} for {}", a_kind(file),
           quote(key.as_string()));
    }
    index.keys[file.as_string()].push_back(key.as_string());
  }
  if (const Value* metadata = root.find("metadata")) index.metadata = *metadata;
  return index;
}

using Shards = std::map<std::string, std::shared_ptr<const MappedFile>>;

Shards open_shards(const NamedFiles& files, const Index& index, bool salvage) {
  Shards shards;
  std::map<std::pair<uint64_t, uint64_t>, const std::string*> names;  // by device and inode
  std::vector<std::string> missing;
  for (const auto& [file, keys] : index.keys) {
    const auto context = [&keys = keys] { return fmt::format("'weight_map' of {}", quote(keys.front())); };
    auto shard =
        within(context, [&files, &name = file] { return files.find(name, NamedFiles::Link::followed); });
    if (shard == nullptr) missing.push_back(quote(file));
    const auto [other, is_new] =
        shard == nullptr ? std::pair{names.end(), true} : names.emplace(shard->identity(), &file);
    if (!is_new)
      fail(Errc::format, "'weight_map' names one file as {} and as {}", quote(*other->second), quote(file));
    shards.emplace(file, std::move(shard));
  }
  if (!missing.empty() && !salvage) {
    fail(Errc::io, "{} of {} shards {} missing: {}", missing.size(), index.keys.size(),
         missing.size() == 1 ? "is" : "are", listed(missing));
  }
  return shards;
}

/// Takes over the keys that the index lists; other content of the shard is not part of the checkpoint.
void take_keys(Dict& root, const Checkpoint& shard, const std::string& file,
               const std::vector<std::string>& keys) {
  if (!shard.root.is(Value::Kind::dict)) {
    fail(Errc::format, "the shard {} holds {}, not a dict", quote(file), a_kind(shard.root));
  }
  std::vector<std::string> absent;
  for (const std::string& key : keys) {
    const Value* value = shard.root.find(key);
    if (value == nullptr) {
      absent.push_back(quote(key));
    } else {
      root.set(key, *value);
    }
  }
  if (!absent.empty()) {
    fail(Errc::format, "the shard {} lacks {} that the index lists: {}", quote(file),
         absent.size() == 1 ? "a key" : fmt::format("{} keys", absent.size()), listed(absent));
  }
}

/// Tensors in shards for which the index does not list them. Programs that read all of a shard take them,
/// too, and of a name in several shards the last one. So another tensor under a listed name is an error, and
/// another name a warning.
class Unlisted {
 public:
  explicit Unlisted(MemoryBudget& memory) : memory_(memory) {}

  void note(const Checkpoint& shard, const std::string& file, const std::vector<std::string>& keys) {
    const Names own(keys.begin(), keys.end());
    for (const auto& [key, value] : shard.root.as_dict().entries()) {
      const bool may_hold_tensors = value.is(Value::Kind::tensor) || value.is(Value::Kind::dict);
      if (!key.is(Value::Kind::string) || !may_hold_tensors || own.contains(key.as_string())) continue;
      memory_.charge(sizeof(Unread) + key.as_string().size());
      tensors_.push_back({&file, key.as_string(), value});
    }
  }

  /// `root`: with the further names of tied tensors. `bytes`: of all shards; so many are compared, and views
  /// that repeat their bytes count as different. `salvage`: an error is a warning.
  void check(const Dict& root, uint64_t bytes, bool salvage, std::vector<std::string>& warnings) const {
    uint64_t further = 0;
    std::vector<std::string> names;
    for (const Unread& one : tensors_) {
      const Value* read = root.find(std::string_view(one.key));
      if (read == nullptr && ++further <= shown)
        names.push_back(fmt::format("{} in {}", quote(one.key), quote(*one.file)));
      if (read == nullptr || are_same(*read, one.value, bytes)) continue;
      const ErrorParts parts{
          .problem = fmt::format("the shard {} has another {} than the one that is read by the index",
                                 quote(*one.file), quote(one.key)),
          .advice =
              "programs differ in which one they load: leave the wrong one out of its shard, with "
              "`cbk copy --exclude`"};
      if (!salvage) throw Error(Errc::format, parts);
      warnings.push_back(parts.problem);
    }
    if (further == 0) return;
    const std::string more = further > shown ? fmt::format(", … and {} more", further - shown) : "";
    warnings.push_back(text(listed(names) + more, further));
  }

 private:
  using Names = std::unordered_set<std::string_view, KeyedHash>;
  struct Unread {
    const std::string* file;
    std::string key;
    Value value;
  };
  static constexpr size_t shown = 3;

  static bool are_same(const Value& a, const Value& b, uint64_t& bytes) {
    if (!a.is(Value::Kind::tensor) || !b.is(Value::Kind::tensor)) return false;
    const Tensor& left = a.as_leaf().tensor;
    const Tensor& right = b.as_leaf().tensor;
    if (left.dtype() != right.dtype() || left.shape() != right.shape()) return false;
    const uint64_t needed = static_cast<uint64_t>(left.numel()) * size_of(left.dtype());
    if (needed > bytes) return false;
    bytes -= needed;
    return compare(left, right).same_bits;
  }

  static std::string text(const std::string& names, uint64_t count) {
    return count == 1
               ? "a tensor that the index does not list is not read, but other programs may load it: " + names
               : fmt::format(
                     "{} tensors that the index does not list are not read, but other programs may "
                     "load them: {}",
                     count, names);
  }

  MemoryBudget& memory_;
  std::vector<Unread> tensors_;
};

}  // namespace

bool is_shard_index(const MappedFile& file) {
  if (!is_text_file(file)) return false;
  const std::string_view text = as_text(file.bytes());
  const size_t start = text.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos || text[start] != '{') return false;
  return text.find("\"weight_map\"") != std::string_view::npos;
}

Checkpoint read_sharded(const FilePtr& index_file, const OpenOptions& options, const OpenFile& open_file,
                        const MemoryPtr& memory) {
  const fs::path& path = index_file->path();
  const Index index = read_index(path);
  const Shards shards =
      open_shards({path.parent_path(), options.allow_external, index_file}, index, options.salvage);
  Checkpoint out;
  out.path = path;
  out.metadata = index.metadata;
  auto root = std::make_shared<Dict>();
  Unlisted unlisted(*memory);
  uint64_t bytes = 0;
  std::vector<Value> notes;  // the metadata of the shards
  std::string format;
  bool has_aliases = false;
  for (const auto& [file, keys] : index.keys) {
    const auto lose_keys = [&root = *root, &keys = keys](const std::string& why) {
      for (const std::string& key : keys) root.set(key, unreadable(why));
    };
    if (shards.at(file) == nullptr) {
      lose_keys(fmt::format("its shard {} is missing", quote(file)));
      continue;
    }
    Checkpoint shard;
    try {
      shard = open_file(shards.at(file));
    } catch (const Error& error) {
      if (!options.salvage || error.code() != Errc::format) throw;
      lose_keys(error.what());
      continue;
    }
    take_keys(*root, shard, file, keys);
    unlisted.note(shard, file, keys);
    bytes += shards.at(file)->size();
    notes.push_back(std::move(shard.metadata));
    for (const std::string& warning : shard.warnings)
      out.warnings.push_back(fmt::format("{}: {}", file, warning));
    out.has_unreadable = out.has_unreadable || shard.has_unreadable;
    out.files.push_back(shards.at(file)->path());
    has_aliases = has_aliases || shard.format == "safetensors";
    const bool has_name = shard.format == "safetensors" || shard.format == "flat-h5";
    format = has_name ? shard.format : "torch";
  }
  if (has_aliases) {
    safetensors::take_aliases(*root, out.metadata, *memory);
    for (Value& metadata : notes) safetensors::take_aliases(*root, metadata, *memory);
  }
  unlisted.check(*root, bytes, options.salvage, out.warnings);
  out.format = format + "-sharded";
  out.root = std::move(root);
  return out;
}

}  // namespace cbk
