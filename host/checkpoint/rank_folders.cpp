#include "host/checkpoint/rank_folders.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "host/base/entries.hpp"
#include "host/formats/ranks/dtensor.hpp"
#include "host/formats/ranks/pieces.hpp"
#include "host/formats/ranks/tensor_parallel.hpp"
#include "host/formats/ranks/zero.hpp"
#include "host/formats/safetensors/reader.hpp"

namespace cbk {
namespace {

using ranks::PartReader;
using ranks::RankFile;

constexpr std::string_view zero_latest = "latest";
constexpr std::string_view megatron_latest = "latest_checkpointed_iteration.txt";
constexpr std::string_view fsdp_model = "pytorch_model_fsdp_0";  // of accelerate, beside its optimizer_0
constexpr uint64_t longest_tag = 4096;

/// The names in a folder, sorted.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : entries_of(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// The names of the files of ranks.
using Names = std::map<int64_t, std::string>;

/// Errors: `ambiguous`: another file is of that rank, too.
void put(Names& names, int64_t rank, const std::string& name) {
  const auto [found, is_new] = names.emplace(rank, name);
  if (!is_new)
    fail(Errc::format, "{} and {} are both of rank {}: the files of two runs are in one folder",
         quote(found->second), quote(name), rank);
}

/// Takes a text off the front.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<int64_t> take_number(std::string_view& text) {
  constexpr int64_t most = 10'000'000;  // ranks, or steps
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0 || number > most) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

/// A folder with the files of ranks, through which they are opened.
class Folder {
 public:
  Folder(const fs::path& folder, const OpenOptions& options)
      : path_(folder), files_(folder, options.allow_external), names_(names_in(folder)) {}

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] RankFile open(const std::string& name, int64_t rank) const {
    return {files_.open(name, NamedFiles::Link::followed), rank};
  }
  /// The files of all ranks, which must be 0 to n - 1. Errors: `missing`.
  [[nodiscard]] std::vector<RankFile> open(const Names& by_rank, int64_t count) const {
    std::vector<RankFile> out;
    for (int64_t rank = 0; rank < count; ++rank) {
      const auto found = by_rank.find(rank);
      if (found == by_rank.end())
        throw Error(Errc::missing,
                    {.problem = fmt::format("the folder has the files of {} of {} ranks: there is "
                                            "none of rank {}, as {} is of rank {}",
                                            by_rank.size(), count, rank, quote(by_rank.begin()->second),
                                            by_rank.begin()->first),
                     .advice = "copy the files of all ranks into the folder"});
      out.push_back(open(found->second, rank));
    }
    return out;
  }
  /// The text of a small file, without blanks at its end; empty: it is not there.
  [[nodiscard]] std::string text_of(std::string_view name) const {
    const auto file = files_.find(std::string(name), NamedFiles::Link::followed);
    if (file == nullptr || file->size() > longest_tag) return "";
    std::string text(as_text(file->bytes()));
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
    return text;
  }
  /// A folder in this one, by a name from a file: one part of a path.
  [[nodiscard]] std::optional<fs::path> inner(const std::string& name) const {
    std::error_code ignored;
    if (name.empty() || name.find('/') != std::string::npos || name.starts_with('.')) return std::nullopt;
    const fs::path path = path_ / name;
    if (!fs::is_directory(path, ignored)) return std::nullopt;
    if (fs::is_symlink(path, ignored))
      fail(Errc::refused, "{} is a symbolic link to another folder; open that folder", quote(path.string()));
    return path;
  }

 private:
  fs::path path_;
  NamedFiles files_;
  std::vector<std::string> names_;
};

// --- DeepSpeed ZeRO: [bf16_]zero_pp_rank_R_mp_rank_MM_{optim,model}_states.pt, mp_rank_MM_model_states.pt

struct ZeroName {
  bool is_optimizer = false;
  int64_t rank = 0;
  int64_t model_rank = 0;
};

std::optional<ZeroName> zero_name(std::string_view name) {
  ZeroName out;
  take(name, "bf16_");
  const bool has_rank = take(name, "zero_pp_rank_");
  if (has_rank) {
    const auto rank = take_number(name);
    if (!rank || !take(name, "_")) return std::nullopt;
    out.rank = *rank;
  }
  if (!take(name, "mp_rank_")) return std::nullopt;
  const auto model_rank = take_number(name);
  if (!model_rank) return std::nullopt;
  out.model_rank = *model_rank;
  out.is_optimizer = name == "_optim_states.pt";
  if (!out.is_optimizer && name != "_model_states.pt") return std::nullopt;
  return out;
}

std::optional<Checkpoint> read_zero(const Folder& folder, PartReader& reader) {
  Names models;
  Names optimizers;
  for (const std::string& name : folder.names()) {
    const auto parts = zero_name(name);
    if (!parts) continue;
    if (parts->model_rank > 0)
      fail(Errc::unsupported, "{}: ZeRO with tensor parallelism (Megatron-DeepSpeed) is not joined",
           quote(name));
    put(parts->is_optimizer ? optimizers : models, parts->rank, name);
  }
  if (optimizers.empty()) return std::nullopt;
  for (const std::string& name : folder.names()) {
    if (name.starts_with("layer_") && name.ends_with("model_states.pt"))
      fail(Errc::unsupported, "{}: DeepSpeed's pipeline or experts in files of their own are not joined",
           quote(name));
  }
  if (models.empty())
    fail(Errc::missing,
         "the folder has optimizer states of DeepSpeed (*_optim_states.pt), but no "
         "*_model_states.pt, which has the names and shapes");
  std::vector<RankFile> optimizer_files;
  for (const auto& [rank, name] : optimizers) optimizer_files.push_back(folder.open(name, rank));
  const auto model_files = folder.open(models, static_cast<int64_t>(models.size()));
  reader.note_unreadable();  // perhaps the optimizer's states
  std::vector<ranks::Part> model_parts = {reader.read(model_files.front())};
  if (ranks::needs_all_models(model_parts.front())) model_parts = reader.read(model_files);
  return reader.checkpoint("deepspeed-zero", ranks::join_zero(std::move(model_parts),
                                                              reader.read(optimizer_files), reader.memory()));
}

// --- DTensors: PREFIX_world_size_W_rank_R.pt

struct WorldName {
  std::string prefix;
  int64_t count = 0;
  int64_t rank = 0;
};

std::optional<WorldName> world_name(std::string_view name) {
  constexpr std::string_view world = "world_size_";
  const size_t at = name.find(world);
  if (at == std::string_view::npos || !name.ends_with(".pt")) return std::nullopt;
  WorldName out{.prefix = std::string(name.substr(0, at))};
  if (out.prefix.ends_with('_')) out.prefix.pop_back();
  name.remove_prefix(at + world.size());
  const auto count = take_number(name);
  const auto rank = count && take(name, "_rank_") ? take_number(name) : std::nullopt;
  if (!rank || name != ".pt" || *count < 1) return std::nullopt;
  out.count = *count;
  out.rank = *rank;
  return out;
}

std::optional<Checkpoint> read_dtensors(const Folder& folder, PartReader& reader) {
  std::map<std::string, Names> by_prefix;
  std::set<int64_t> counts;
  for (const std::string& name : folder.names()) {
    const auto parts = world_name(name);
    if (!parts) continue;
    counts.insert(parts->count);
    put(by_prefix[parts->prefix], parts->rank, name);
  }
  if (by_prefix.empty()) return std::nullopt;
  if (counts.size() > 1)
    fail(Errc::format, "the folder has the files of runs with {} and with {} ranks", *counts.begin(),
         *counts.rbegin());
  Value root = Value::dict();
  for (const auto& [prefix, files] : by_prefix)
    root.as_dict().set(prefix, ranks::join_dtensors(reader.read(folder.open(files, *counts.begin()))));
  if (by_prefix.size() == 1) root = Value(*root.find(by_prefix.begin()->first));
  return reader.checkpoint("dtensor", root);
}

// --- Meta: consolidated.NN.pth

std::optional<Checkpoint> read_meta(const Folder& folder, PartReader& reader) {
  Names files;
  for (const std::string& name : folder.names()) {
    std::string_view rest = name;
    const auto rank = take(rest, "consolidated.") ? take_number(rest) : std::nullopt;
    if (rank && rest == ".pth") put(files, *rank, name);
  }
  if (files.empty()) return std::nullopt;
  const int64_t count = files.rbegin()->first + 1;
  return reader.checkpoint("meta-parallel", ranks::join_meta(reader.read(folder.open(files, count))));
}

// --- Megatron: mp_rank_TT[_PPP]/model_optim_rng.pt

std::optional<Checkpoint> read_megatron(const Folder& folder, PartReader& reader) {
  constexpr std::string_view file_name = "model_optim_rng.pt";
  std::map<int64_t, Names> stages;
  std::error_code ignored;
  for (const std::string& name : folder.names()) {
    std::string_view rest = name;
    const auto rank = take(rest, "mp_rank_") ? take_number(rest) : std::nullopt;
    if (!rank || !fs::is_regular_file(folder.path() / name / file_name, ignored)) continue;
    const auto stage = rest.empty() ? 0 : take(rest, "_") ? take_number(rest) : std::nullopt;
    if (!stage || !rest.empty())
      fail(Errc::unsupported, "{}: Megatron's parallelism of experts is not joined", quote(name));
    put(stages[*stage], *rank, fmt::format("{}/{}", name, file_name));
  }
  if (stages.empty()) return std::nullopt;
  ranks::check_experts(reader.read(folder.open(stages.begin()->second.begin()->second, 0)));
  std::vector<std::vector<ranks::Part>> parts;
  int64_t count = 0;
  for (const auto& [stage, names] : stages) count = std::max(count, names.rbegin()->first + 1);
  for (int64_t stage = 0; stage <= stages.rbegin()->first; ++stage) {
    if (!stages.contains(stage)) fail(Errc::missing, "there is no file of pipeline stage {}", stage);
    parts.push_back(reader.read(folder.open(stages[stage], count)));
  }
  reader.note_unreadable();
  return reader.checkpoint("megatron", ranks::join_megatron(std::move(parts)));
}

// --- Pieces in files of safetensors: shard-RRRRR-model-NNNNN-of-MMMMM.safetensors

std::optional<Checkpoint> read_pieces(const Folder& folder, PartReader& reader) {
  std::vector<Checkpoint> files;
  for (const std::string& name : folder.names()) {
    if (!name.starts_with("shard-") || !name.ends_with(".safetensors")) continue;
    const ranks::FilePtr file = folder.open(name, 0).file;
    reader.memory().add_file(file->size());
    within(quote(name), [&] {
      files.push_back(safetensors::read(file, reader.options(), reader.memory()));
      files.back().path = file->path();
    });
    if (ranks::has_pieces(files.back())) continue;
    if (files.size() == 1) return std::nullopt;
    fail(Errc::format, "{} has pieces of tensors (DCP_SHARDING_INFO), and {} has not",
         quote(files.front().path.filename().string()), quote(name));
  }
  if (files.empty()) return std::nullopt;
  reader.warn(
      fmt::format("the pieces of tensors in {} files are joined; the files do not say if a rank wrote more",
                  files.size()));
  Checkpoint out = reader.checkpoint("dcp-safetensors", ranks::join_pieces(files, reader.memory()));
  for (const Checkpoint& file : files) out.files.push_back(file.path);
  return out;
}

/// The formats of folders, in the order in which they are tried.
constexpr auto readers = std::to_array({read_zero, read_dtensors, read_megatron, read_meta, read_pieces});

/// The name of the folder of the latest checkpoint; empty: none is named.
std::string latest_name(const Folder& folder) {
  std::string name = folder.text_of(zero_latest);
  if (!name.empty()) return name;
  std::string iteration = folder.text_of(megatron_latest);
  if (iteration == "release") return iteration;
  std::string_view rest = iteration;
  const auto number = take_number(rest);
  return number && rest.empty() ? fmt::format("iter_{:07}", *number) : "";
}

}  // namespace

std::optional<fs::path> inner_of_ranks(const fs::path& folder, const OpenOptions& options) {
  const Folder files(folder, options);
  const std::string name = latest_name(files);
  if (name.empty()) return files.inner(std::string(fsdp_model));
  if (auto found = files.inner(name)) return found;
  fail(Errc::missing, "the folder {}, which is named as the latest checkpoint, is not there",
       quote(name, 100));
}

std::optional<Checkpoint> read_rank_folder(const fs::path& folder, const OpenOptions& options,
                                           const MemoryPtr& memory) {
  const Folder files(folder, options);
  for (const auto& read : readers) {
    PartReader reader(options, memory);
    if (auto checkpoint = read(files, reader)) return checkpoint;
  }
  return std::nullopt;
}

bool names_latest(const fs::path& file) {
  const std::string name = file.filename().string();
  std::error_code error;
  const bool is_text =
      fs::is_regular_file(file, error) && fs::file_size(file, error) <= longest_tag && !error;
  return (name == zero_latest || name == megatron_latest) && is_text;
}

}  // namespace cbk
