#include "host/checkpoint/open.hpp"

#include <algorithm>

#include "host/base/entries.hpp"
#include "host/base/journal.hpp"
#include "host/base/memory_budget.hpp"
#include "host/base/named_files.hpp"
#include "host/checkpoint/distributed.hpp"
#include "host/checkpoint/foreign_files.hpp"
#include "host/checkpoint/formats.hpp"
#include "host/checkpoint/read_limit.hpp"
#include "host/checkpoint/salvage.hpp"
#include "host/checkpoint/sharded.hpp"
#include "host/formats/file_names.hpp"
#include "host/formats/safetensors/aliases.hpp"
#include "host/formats/tensorflow/state_file.hpp"
#include "host/value/unreadable.hpp"

namespace cbk {
namespace {

/// Charges the dotted names of the leaves as far as they are longer than usual: a file has the key of a
/// container once, but every leaf below it repeats that key in its name.
void charge_names(const Value& place, size_t name, MemoryBudget& memory) {
  const Value& value = insides(place);
  constexpr size_t usual = 128;   // is charged with the leaf
  constexpr uint64_t copies = 8;  // of names, where a checkpoint is listed or written; measured
  if (value.is(Value::Kind::dict) && !value.as_dict().empty()) {
    for (const auto& [key, item] : value.as_dict().entries()) {
      const size_t part = key.is(Value::Kind::string) ? key.as_string().size() : key_text(key).size();
      charge_names(item, name + 1 + part, memory);
    }
  } else if (value.is(Value::Kind::sequence) && !value.as_sequence().items.empty()) {
    constexpr size_t part = 8;  // of a number, about
    for (const Value& item : value.as_sequence().items) charge_names(item, name + 1 + part, memory);
  } else if (name > usual) {
    memory.charge(copies * (name - usual));
  }
}

/// Any checkpoint but a sharded one.
Checkpoint open_single(const FilePtr& file, const Format* format, const OpenOptions& options,
                       const MemoryPtr& memory) {
  refuse_distributed(*file);
  if (format == nullptr) fail_as_foreign(*file);
  return format->read(file, options, memory);
}

/// A file of shards' names; `format` is what it is by its content.
bool is_index(const MappedFile& file, const Format* format) {
  if (format != nullptr) return false;
  return file.path().string().ends_with(shard_index_suffix) || is_shard_index(file);
}

Checkpoint open_mapped(const FilePtr& file, const OpenOptions& options) {
  const fs::path& path = file->path();
  const Format* format = detect(*file);
  const auto memory = std::make_shared<MemoryBudget>(file->size());
  Checkpoint checkpoint;
  if (is_index(*file, format)) {
    checkpoint = read_sharded(
        file, options,
        [&](const FilePtr& shard) {
          return within(fmt::format("shard '{}'", shard->path().filename().string()), [&] {
            memory->add_file(shard->size());
            return open_single(shard, detect(*shard), options, memory);
          });
        },
        memory);
  } else {
    checkpoint = open_single(file, format, options, memory);
    if (checkpoint.format == "safetensors")
      safetensors::take_aliases(checkpoint.root.as_dict(), checkpoint.metadata, *memory);
  }
  checkpoint.memory = memory;
  limit_expansion(checkpoint, options.max_expansion);
  within("the names in it", [&] { charge_names(checkpoint.root, 0, *memory); });
  if (options.salvage) leave_out_lost(checkpoint);  // makes all names
  if (checkpoint.has_unreadable) {
    for (std::string& one : unreadable_warnings(checkpoint.root))
      checkpoint.unreadable.push_back(std::move(one));
  }
  checkpoint.path = path;
  if (checkpoint.files.empty()) checkpoint.files = {path};
  return checkpoint;
}

// --- folders

[[noreturn]] void fail_ambiguous(const std::vector<std::string>& names) {
  throw Error(Errc::ambiguous,
              {.problem = "the folder holds several checkpoints", .advice = "open one of " + listed(names)});
}

/// The one GGUF file of a folder without other checkpoints.
FilePtr gguf_in(const NamedFiles& files, std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  if (names.size() == 1) return files.open(names.front(), NamedFiles::Link::followed);
  if (std::ranges::none_of(names, is_gguf_part_name)) fail_ambiguous(names);
  throw Error(Errc::usage, {.problem = fmt::format(
                                "the folder holds a GGUF model in {} files, each of which is read by itself",
                                names.size()),
                            .advice = "open one of " + listed(names)});
}

/// The one checkpoint of a folder: the latest one of TensorFlow; an index; else the file with the usual name;
/// else the index of a variant; else the only model file.
FilePtr checkpoint_in(const fs::path& folder, const OpenOptions& options) {
  if (auto latest = tensorflow::latest_in(folder, options.allow_external)) return latest;
  std::vector<std::string> indexes;
  std::vector<std::string> variants;
  std::vector<std::string> usual;
  std::vector<std::string> files;
  std::vector<std::string> gguf;
  bool has_shards = false;
  for (const fs::directory_entry& entry : entries_of(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory()) continue;
    const Format* format = format_of_suffix(name);
    if (name.ends_with(shard_index_suffix) || name.ends_with(bundle_index_suffix)) {
      indexes.push_back(name);
    } else if (is_variant_index_name(name)) {
      variants.push_back(name);
    } else if (name.ends_with(gguf_suffix)) {
      gguf.push_back(name);
    } else if (is_shard_name(name)) {
      has_shards = true;
    } else if (format != nullptr) {
      files.push_back(name);
      if (name == format->usual) usual.push_back(name);
    }
  }
  if (indexes.empty() && usual.empty()) indexes = variants;
  std::sort(indexes.begin(), indexes.end());
  std::sort(files.begin(), files.end());
  std::sort(usual.begin(), usual.end());
  const bool has_whole = !usual.empty();
  const NamedFiles files_of(folder, options.allow_external);
  const auto found = [&](const std::string& name) { return files_of.open(name, NamedFiles::Link::followed); };
  if (indexes.size() == 1 && !has_whole) return found(indexes.front());
  if (indexes.empty() && usual.size() == 1) return found(usual.front());
  if (indexes.empty() && usual.empty())
    if (auto metadata = metadata_in(files_of, folder)) return metadata;
  if (indexes.empty() && files.size() == 1) return found(files.front());
  std::vector<std::string> all = indexes;
  all.insert(all.end(), files.begin(), files.end());
  if (all.empty() && !has_shards && !gguf.empty()) return gguf_in(files_of, std::move(gguf));
  if (all.empty() && has_shards)
    fail(Errc::format, "the folder has shards, but not their index (*{})", shard_index_suffix);
  if (all.empty()) fail(Errc::missing, "the folder holds no checkpoint");
  fail_ambiguous(all);
}

/// Opens a file or folder; errors are about that, unless they name another file.
template <typename Body>
auto opening(const fs::path& path, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw error.about(path.string()).in(fmt::format("cannot open '{}'", path.string()));
  }
}

std::string warning_of(const std::vector<fs::path>& finished) {
  std::vector<std::string> names;
  names.reserve(finished.size());
  for (const fs::path& path : finished) names.push_back(quote(path.string()));
  return fmt::format("a program was killed while it replaced {}: they have their new content now",
                     listed(names, 5));
}

}  // namespace

Checkpoint open_checkpoint(const fs::path& path, const OpenOptions& options) {
  const std::string with_index = path.string() + std::string(bundle_index_suffix);
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  const auto is_there = [&] { return fs::exists(path, ignored) || fs::exists(with_index, ignored); };
  const auto finished = is_folder    ? finish_killed_commits(path)
                        : is_there() ? std::vector<fs::path>()
                                     : finish_killed_commits(folder_of(path));
  const auto with_warning = [&](Checkpoint checkpoint) {
    if (!finished.empty()) checkpoint.warnings.push_back(warning_of(finished));
    return checkpoint;
  };
  if (is_folder) {
    const auto inner = opening(path, [&] { return checkpoint_in(path, options); });
    return with_warning(opening(inner->path(), [&] { return open_mapped(inner, options); }));
  }
  if (!fs::exists(path, ignored) && fs::exists(with_index, ignored))
    return with_warning(open_checkpoint(with_index, options));
  if (const auto prefix = prefix_of_data_file(path.string())) {
    opening(path,
            [&] { fail(Errc::usage, "it is a data file of a TensorFlow checkpoint; open '{}'", *prefix); });
  }
  const auto file = MappedFile::open(path);
  return with_warning(opening(path, [&] { return open_mapped(file, options); }));
}

}  // namespace cbk
