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
  std::vector<std::string> missing;
  for (const auto& [file, keys] : index.keys) {
    const auto context = [&keys = keys] { return fmt::format("'weight_map' of {}", quote(keys.front())); };
    auto shard =
        within(context, [&files, &name = file] { return files.find(name, NamedFiles::Link::followed); });
    if (shard == nullptr) missing.push_back(quote(file));
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

/// A tensor in a shard for which the index does not list it.
struct Unlisted {
  std::string file;
  std::string key;
  Value value;
};

void note_unlisted(const Checkpoint& shard, const std::string& file, const std::vector<std::string>& keys,
                   std::vector<Unlisted>& out) {
  const std::unordered_set<std::string_view, KeyedHash> listed_keys(keys.begin(), keys.end());
  for (const auto& [key, value] : shard.root.as_dict().entries()) {
    if (!key.is(Value::Kind::string) || !value.is(Value::Kind::tensor)) continue;
    if (!listed_keys.contains(key.as_string())) out.push_back({file, key.as_string(), value});
  }
}

bool are_same(const Value& a, const Value& b) {
  if (!a.is(Value::Kind::tensor) || !b.is(Value::Kind::tensor)) return false;
  const Tensor& left = a.as_leaf().tensor;
  const Tensor& right = b.as_leaf().tensor;
  return left.dtype() == right.dtype() && left.shape() == right.shape() && compare(left, right).same_bits;
}

/// Programs that read all of a shard take tensors that the index does not list, too, and of a name in several
/// shards the last one. So other values under a listed name are an error, and other names a warning.
void check_unlisted(const Dict& root, const std::vector<Unlisted>& unlisted,
                    std::vector<std::string>& warnings) {
  std::vector<std::string> further;
  for (const Unlisted& one : unlisted) {
    const Value* listed_value = root.find(std::string_view(one.key));
    if (listed_value == nullptr) {
      further.push_back(fmt::format("{} in {}", quote(one.key), quote(one.file)));
    } else if (!are_same(*listed_value, one.value)) {
      throw Error(
          Errc::format,
          {.problem = fmt::format("the shard {} has another {} than the one that the index lists",
                                  quote(one.file), quote(one.key)),
           .advice = "programs differ in which one they load: leave the wrong one out of its shard, with "
                     "`cbk copy --exclude`"});
    }
  }
  if (!further.empty()) {
    warnings.push_back(fmt::format(
        "{} that the index does not list {} not read, but other programs may load {}: {}",
        further.size() == 1 ? "a tensor" : fmt::format("{} tensors", further.size()),
        further.size() == 1 ? "is" : "are", further.size() == 1 ? "it" : "them", listed(further, 3)));
  }
}

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
  std::vector<Unlisted> unlisted;
  std::vector<Value> notes;                                    // the metadata of the shards
  const Format* named = format_of_suffix(path.stem().stem());  // of an index without keys
  std::string format = named != nullptr && named->name == "safetensors" ? "safetensors" : "torch";
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
    if (!options.salvage) note_unlisted(shard, file, keys, unlisted);
    notes.push_back(std::move(shard.metadata));
    for (const std::string& warning : shard.warnings)
      out.warnings.push_back(fmt::format("{}: {}", file, warning));
    out.has_unreadable = out.has_unreadable || shard.has_unreadable;
    out.files.push_back(shards.at(file)->path());
    const bool has_name = shard.format == "safetensors" || shard.format == "flat-h5";
    format = has_name ? shard.format : "torch";
  }
  check_unlisted(*root, unlisted, out.warnings);
  if (format == "safetensors") {
    safetensors::take_aliases(*root, out.metadata, *memory);
    for (Value& metadata : notes) safetensors::take_aliases(*root, metadata, *memory);
  }
  out.format = format + "-sharded";
  out.root = std::move(root);
  return out;
}

}  // namespace cbk
