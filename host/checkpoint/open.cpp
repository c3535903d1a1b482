#include "host/checkpoint/open.hpp"

#include <algorithm>

#include "host/base/entries.hpp"
#include "host/base/journal.hpp"
#include "host/base/memory_budget.hpp"
#include "host/base/named_files.hpp"
#include "host/checkpoint/distributed.hpp"
#include "host/checkpoint/foreign_files.hpp"
#include "host/checkpoint/formats.hpp"
#include "host/checkpoint/rank_folders.hpp"
#include "host/checkpoint/read_limit.hpp"
#include "host/checkpoint/salvage.hpp"
#include "host/checkpoint/sharded.hpp"
#include "host/formats/file_names.hpp"
#include "host/formats/gguf/reader.hpp"
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

/// A tree that was read, with what users are warned of.
Checkpoint checked(Checkpoint checkpoint, const fs::path& path, const MemoryPtr& memory,
                   const OpenOptions& options) {
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

Checkpoint open_mapped(const FilePtr& file, const OpenOptions& options) {
  const Format* format = detect(*file);
  const auto memory = std::make_shared<MemoryBudget>(file->size());
  if (is_index(*file, format)) {
    const auto read_shard = [&](const FilePtr& shard) {
      return within(fmt::format("shard '{}'", shard->path().filename().string()), [&] {
        memory->add_file(shard->size());
        return open_single(shard, detect(*shard), options, memory);
      });
    };
    return checked(read_sharded(file, options, read_shard, memory), file->path(), memory, options);
  }
  Checkpoint checkpoint = open_single(file, format, options, memory);
  if (checkpoint.format == "safetensors")
    safetensors::take_aliases(checkpoint.root.as_dict(), checkpoint.metadata, *memory);
  return checked(std::move(checkpoint), file->path(), memory, options);
}

// --- folders

[[noreturn]] void fail_ambiguous(const std::vector<std::string>& names) {
  throw Error(Errc::ambiguous,
              {.problem = "the folder holds several checkpoints", .advice = "open one of " + listed(names)});
}

using Files = std::vector<FilePtr>;

constexpr size_t most_parts = 10000;

/// Fails if the names are some of the parts of one GGUF model.
void refuse_missing_parts(std::string_view model, const std::vector<std::string>& names) {
  const std::string stem = fs::path(names.front()).stem().string();
  // Five digits, as llama.cpp writes them; a name with more is no part for `shard_name` either.
  const size_t count = std::stoul(stem.substr(stem.size() - std::min<size_t>(stem.size(), 5)));
  std::vector<std::string> missing;
  size_t found = 0;
  for (size_t i = 1; i <= std::min<size_t>(count, most_parts); ++i) {
    const std::string name = shard_name(model, i, count, gguf_suffix);
    if (std::ranges::find(names, name) != names.end()) {
      ++found;
    } else {
      missing.push_back(quote(name));
    }
  }
  if (found == names.size() && !missing.empty())
    throw Error(Errc::missing,
                {.problem = fmt::format("the model {} is in {} files, and the folder has {}: {} {} missing",
                                        quote(model), count, found, listed(missing, 3),
                                        missing.size() == 1 ? "is" : "are"),
                 .advice = "copy all of them into one folder"});
}

/// The GGUF model of a folder without other checkpoints: one file, or all parts of one.
Files gguf_in(const NamedFiles& files, std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  const std::string stem = fs::path(names.front()).stem().string();
  const auto model = before_part(stem, "-");
  if (model) refuse_missing_parts(*model, names);
  for (size_t i = 0; names.size() > 1 && i < names.size(); ++i)
    if (!model || names[i] != shard_name(*model, i + 1, names.size(), gguf_suffix)) fail_ambiguous(names);
  Files out;
  for (const std::string& name : names) out.push_back(files.open(name, NamedFiles::Link::followed));
  return out;
}

/// The names in a folder that may be checkpoints, each sorted.
struct Candidates {
  std::vector<std::string> indexes;
  std::vector<std::string> usual;  // names that Hugging Face gives
  std::vector<std::string> files;  // with those
  std::vector<std::string> gguf;
  bool has_shards = false;
};

constexpr std::string_view fsdp_file = "pytorch_model_fsdp.bin";  // the whole model, as accelerate writes it

Candidates candidates_in(const fs::path& folder) {
  Candidates out;
  std::vector<std::string> variants;
  for (const fs::directory_entry& entry : entries_of(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory()) continue;
    const Format* format = format_of_suffix(name);
    if (name.ends_with(shard_index_suffix) || name.ends_with(bundle_index_suffix)) {
      out.indexes.push_back(name);
    } else if (is_variant_index_name(name)) {
      variants.push_back(name);
    } else if (name.ends_with(gguf_suffix)) {
      out.gguf.push_back(name);
    } else if (is_shard_name(name)) {
      out.has_shards = true;
    } else if (format != nullptr) {
      out.files.push_back(name);
      if (name == format->usual || name == fsdp_file) out.usual.push_back(name);
    }
  }
  if (out.indexes.empty() && out.usual.empty()) out.indexes = variants;
  std::sort(out.indexes.begin(), out.indexes.end());
  std::sort(out.files.begin(), out.files.end());
  return out;
}

/// Indexes, and files with usual names.
std::vector<std::string> main_names(const Candidates& candidates) {
  std::vector<std::string> all = candidates.indexes;
  all.insert(all.end(), candidates.usual.begin(), candidates.usual.end());
  return all;
}

/// The file that is the checkpoint of a folder: the latest one of TensorFlow; an index; else the file with
/// the usual name; else the index of a variant; else the metadata of pieces. nullptr: none of them.
FilePtr main_file_in(const fs::path& folder, const NamedFiles& files, const Candidates& candidates,
                     const OpenOptions& options) {
  if (auto latest = tensorflow::latest_in(folder, options.allow_external)) return latest;
  const auto found = [&](const std::string& name) { return files.open(name, NamedFiles::Link::followed); };
  std::vector<std::string> all = main_names(candidates);
  if (all.empty()) return metadata_in(files, folder);
  if (all.size() > 1)
    std::erase_if(all, [](const std::string& name) { return name.starts_with("pytorch_model"); });
  return all.size() == 1 ? found(all.front()) : nullptr;
}

/// The only file of a folder that may be a checkpoint.
Files only_file_in(const NamedFiles& files, Candidates candidates) {
  if (candidates.indexes.empty() && candidates.files.size() == 1)
    return {files.open(candidates.files.front(), NamedFiles::Link::followed)};
  std::vector<std::string> all = candidates.indexes;
  all.insert(all.end(), candidates.files.begin(), candidates.files.end());
  if (all.empty() && !candidates.has_shards && !candidates.gguf.empty())
    return gguf_in(files, std::move(candidates.gguf));
  if (all.empty() && candidates.has_shards)
    fail(Errc::format,
         "the folder has shards, but not their index (*{}); copy or download it again, or name a shard",
         shard_index_suffix);
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

/// The checkpoint of a folder: its main file, the files of all ranks, or its only file.
Checkpoint open_folder(const fs::path& folder, const OpenOptions& options) {
  std::optional<Checkpoint> joined;
  std::optional<fs::path> inner;
  std::vector<std::string> names;
  const FilePtr file = opening(folder, [&]() -> FilePtr {
    const NamedFiles files(folder, options.allow_external);
    Candidates candidates = candidates_in(folder);
    names = main_names(candidates);
    if (FilePtr main = main_file_in(folder, files, candidates, options)) return main;
    inner = inner_of_ranks(folder, options);
    if (inner) return nullptr;
    const auto memory = std::make_shared<MemoryBudget>(0);
    joined = read_rank_folder(folder, options, memory);
    if (!joined) {
      const Files found = only_file_in(files, std::move(candidates));
      if (found.size() == 1) return found.front();
      for (const FilePtr& one : found) memory->add_file(one->size());
      joined = gguf::read_split(found, options, memory);
    }
    joined = checked(std::move(*joined), folder, memory, options);
    return nullptr;
  });
  if (inner) return open_folder(*inner, options);
  if (joined) return std::move(*joined);
  Checkpoint checkpoint = opening(file->path(), [&] { return open_mapped(file, options); });
  for (const fs::directory_entry& entry : entries_of(folder))
    if (names_latest(entry.path())) names.push_back(entry.path().filename().string());
  // The file "checkpoint" names one of many steps of TensorFlow: the others are expected.
  std::erase_if(names, [](const std::string& name) { return name.ends_with(bundle_index_suffix); });
  for (const std::string& name : names)
    if (name != file->path().filename().string())
      checkpoint.warnings.push_back(fmt::format("{} is not read: {} beside it is", quote(name),
                                                quote(file->path().filename().string())));
  return checkpoint;
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
  if (is_folder) return with_warning(open_folder(path, options));
  if (names_latest(path)) return with_warning(open_folder(folder_of(path), options));
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
