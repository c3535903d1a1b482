// The names of checkpoint files: suffixes of formats, and names of shards and indexes. Code that opens,
// finds, writes or removes files by name uses these functions.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cbk {

namespace fs = std::filesystem;

/// The names of one format.
struct FormatNames {
  std::string_view format;                     // as in WriteOptions
  std::span<const std::string_view> suffixes;  // of its files; TensorFlow: of its index
  std::string_view shard_suffix;               // of shards that are written; empty: it has none
  std::string_view shard_stem;                 // of shards that are written, unless another is asked for
  std::string_view usual;                      // the one file of a Hugging Face folder; empty: it has none
};

/// All formats that can be written.
std::span<const FormatNames> all_format_names();

/// nullptr for a format that cannot be written.
const FormatNames* names_of(std::string_view format);

/// By the suffix of a file; nullptr if it belongs to no format.
const FormatNames* names_by_suffix(const fs::path& file);

/// ".pt, .pth, .bin or .ckpt (torch), …", for messages.
std::string list_of_suffixes();

// --- shards

/// The suffix of the index of a checkpoint in several files.
inline constexpr std::string_view shard_index_suffix = ".index.json";

/// Whether it is the name of the index of a variant: "model.safetensors.index.fp16.json".
bool is_variant_index_name(std::string_view name);

/// "model-00001-of-00003.safetensors"; `number` counts from 1.
std::string shard_name(std::string_view stem, size_t number, size_t count, std::string_view suffix);

/// "-of-00003": the end of the names of all shards, without their suffix, and of all data files.
std::string end_of_parts(size_t count);

/// Whether it is the name of a shard, of any format.
bool is_shard_name(const fs::path& file);

/// Whether a writer of shards gives this name to a shard, to an index or to the one file of a folder.
bool is_written_shard_name(std::string_view name);

// --- GGUF, read only

inline constexpr std::string_view gguf_suffix = ".gguf";

/// Whether it is the name of one of several files of a GGUF model. They have no index.
bool is_gguf_part_name(const fs::path& file);

// --- TensorFlow

/// The suffix of the index of a TensorFlow checkpoint, after the prefix.
inline constexpr std::string_view bundle_index_suffix = ".index";

/// "<prefix>.data-00000-of-00002"; `number` counts from 0.
std::string data_file_name(std::string_view prefix, size_t number, size_t count);

/// The prefix of the name of a data file; nothing for other names.
std::optional<std::string> prefix_of_data_file(std::string_view name);

}  // namespace cbk
